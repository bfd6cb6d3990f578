"""Operators with windows, split along the dims these slide along: results, plans, refusals, costs and views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel_lab import StrategyError, compile, nn
from parallel_lab.base.cluster import Cluster, Device, Link
from parallel_lab.cost import instr_time_s, message_bytes, predict_memory, predict_timeline, sent_bytes
from parallel_lab.graph.instr import Value, attr_pairs
from parallel_lab.graph.passes import PASSES
from parallel_lab.graph.plan import Plan
from parallel_lab.lab.pictures.picture import message_table, tensor_entries
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.registry import OPS, PRIMITIVES
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import Session
from tests.crossed import each_of
from tests.graph import stencil
from tests.graph.test_plan_verify import changed, find, verify_refuses, with_program, with_value
from tests.nets import cell

DEVICES = 8
SHAPE, KERNEL = (2, 16, 8), (3, 3)
SAME = {"stride": 1, "pads": ((1, 1), (1, 1))}
CUT_H, CUT_BOTH = ((1, 8, 1), (1, 1)), ((1, 4, 2), (1, 1))
F8 = 8  # bytes


@pytest.fixture(autouse=True, scope="module")
def stencil_operator():
    stencil.register()
    yield
    stencil.forget()


class Net(nn.Cell):
    """sum(weight * stencil(a, k)), with a and k trained, so that both gradients are there."""

    def __init__(self, strategy=None, shape=SHAPE, kernel=KERNEL, **attrs):
        super().__init__()
        rng = np.random.default_rng(5)
        self.a = Parameter(rng.standard_normal(shape), name="a")
        self.k = Parameter(rng.standard_normal(kernel), name="k")
        self.stencil = PRIMITIVES["Stencil"](**attrs)
        if strategy is not None:
            self.stencil.shard(strategy)

    def construct(self, weight):
        return (self.stencil(self.a, self.k) * weight).sum()


def weight_for(shape=SHAPE, kernel=KERNEL, *, stride, pads):
    out = [shape[0], *((shape[d + 1] + sum(pads[d]) - kernel[d]) // stride + 1 for d in (0, 1))]
    return np.random.default_rng(6).uniform(0.5, 1.5, out)


def compiled(strategy, shape=SHAPE, kernel=KERNEL, **attrs) -> Plan:
    net, weight = Net(strategy, shape, kernel, **attrs), weight_for(shape, kernel, **attrs)
    return compile(net, weight, device_num=DEVICES, dataset_strategy="full_batch", passes=PASSES)


@pytest.fixture(scope="module")
def plan():
    return compiled(CUT_BOTH, **SAME)


def halos(plan, kind="halo_exchange"):
    return [i for _, i in plan.instructions() if i.kind == kind]


CASES = {
    "same": (SHAPE, KERNEL, SAME),
    "uneven padding": (SHAPE, (2, 3), {"stride": 1, "pads": ((0, 1), (1, 1))}),
    "windows that drift from their slices": ((2, 18, 10), KERNEL, {"stride": 1, "pads": ((0, 0), (0, 0))}),
    "stride below the kernel": (SHAPE, KERNEL, {"stride": 2, "pads": ((1, 0), (0, 1))}),
    "stride above the kernel": (SHAPE, (1, 1), {"stride": 2, "pads": ((0, 0), (0, 0))}),
    "large kernel": ((1, 16, 16), (5, 4), {"stride": 1, "pads": ((2, 2), (2, 1))}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_every_strategy_equals_one_device(name):
    shape, kernel, attrs = CASES[name]
    weight = weight_for(shape, kernel, **attrs)
    # the undivided computation, with its gradients by central differences: k and a enter linearly, so they are exact up
    # to rounding
    a, k = Net(None, shape, kernel, **attrs).a.asnumpy(), Net(None, shape, kernel, **attrs).k.asnumpy()
    compute = OPS["stencil"].compute
    want = compute(a, k, **attrs)
    strategies = legal_strategies(OPS["stencil"], (shape, kernel), attrs, DEVICES)
    assert any(s[0][1] > 1 for s in strategies) and any(s[0][2] > 1 for s in strategies)

    def slopes(array, run):
        found = np.empty_like(array)
        for at in np.ndindex(array.shape):
            unit = np.zeros_like(array)
            unit[at] = 1
            found[at] = (run(unit) * weight).sum()
        return found

    slope = {"a": slopes(a, lambda unit: compute(unit, k, **attrs))}
    slope["k"] = slopes(k, lambda unit: compute(a, unit, **attrs))
    for strategy in strategies:
        plan = compiled(strategy, shape, kernel, **attrs)
        plan.verify()
        sim = Simulator(plan, {"a": a, "k": k})
        loss = sim.run_step(weight)
        np.testing.assert_allclose(loss, (want * weight).sum(), rtol=1e-12, err_msg=str(strategy))
        for parameter, gradient in plan.gradients:
            got, place = sim.full(gradient), f"{strategy} {parameter}"
            np.testing.assert_allclose(got, slope[parameter], rtol=1e-10, atol=1e-12, err_msg=place)


def test_a_slice_that_suffices_is_not_exchanged():
    plan = compiled(CUT_BOTH, SHAPE, (1, 1), stride=2, pads=((0, 0), (0, 0)))
    assert halos(plan) == []


def test_one_exchange_per_cut_dim_with_the_corners_in_the_second(plan):
    first, second = halos(plan)
    # 16 rows on 4, 8 columns on 2, kernel 3, padding 1
    assert (first.attr("dim"), first.attr("window"), first.group_size) == (1, (4, -1, 6, 4), 4)
    assert (second.attr("dim"), second.attr("window"), second.group_size) == (2, (4, -1, 6, 4), 2)
    assert second.ins == (first.out,)
    assert plan.value(first.out).slice_shape == (2, 6, 4)
    assert plan.value(second.out).slice_shape == (2, 6, 6)
    assert plan.value(second.out).layout is None
    conv = next(i for _, i in plan.instructions("forward") if i.op == "stencil")
    assert conv.ins[0] == second.out
    assert conv.attr("pads") == ((0, 0), (0, 0))


def test_backward_adds_up_along_the_same_dims_in_reverse(plan):
    found = [(i.attr("dim"), i.attr("window"), i.axes) for i in halos(plan, "halo_reduce")]
    assert found == [(i.attr("dim"), i.attr("window"), i.axes) for i in reversed(halos(plan))]


def test_two_readers_of_the_same_windows_share_one_exchange():
    first, second = (PRIMITIVES["Stencil"](**SAME).shard(CUT_H) for _ in range(2))
    parts = {"first": first, "second": second, "k": Parameter(np.ones(KERNEL), name="k")}
    net = cell(lambda net, a: (net.first(a, net.k) - net.second(a, net.k)).sum(), **parts)
    plan = compile(net, np.ones(SHAPE), device_num=DEVICES, dataset_strategy="full_batch")
    assert len(halos(plan)) == 1
    assert float(Simulator(plan, {"k": np.ones(KERNEL)}).run_step(np.ones(SHAPE))) == 0.0


@pytest.mark.exhaustive
def test_the_plan_comes_back_from_its_data(plan):
    assert Plan.from_dict(plan.to_dict()) == plan


# ---- refusals ----


def test_windows_beyond_the_neighbours_are_refused_with_the_elements():
    # slices of 2 rows, kernel 7, padding 3: rows 0 and 1 of the result read rows -3 to 4, slice 0 and its neighbour
    # hold 0 to 3
    words = r"splits 'h' 8 ways: slice 0 needs the elements \[0, 5\), but it and its neighbours hold \[0, 4\)"
    with pytest.raises(StrategyError, match=words):
        compiled(CUT_H, SHAPE, (7, 1), stride=1, pads=((3, 3), (0, 0)))


def test_refused_strategies_are_not_candidates():
    attrs = {"stride": 1, "pads": ((3, 3), (0, 0))}
    cut = {s[0][1] for s in legal_strategies(OPS["stencil"], (SHAPE, (7, 1)), attrs, DEVICES)}
    assert cut == {1, 2, 4}  # with 8, slices have 2 rows and windows reach 3


# ---- the verifier ----


@each_of(
    ("window", "match"),
    ((4, 0, 6, 4), "is not a halo_exchange along dim 1 of windows"),  # shifted by one
    ((4, -1, 5, 4), "gives .2, 5, 4., the table says .2, 6, 4."),
    ((4, -1, 6, 2), "takes 2 elements"),
    ((4, -5, 6, 4), r"slice 2 needs the elements \[3, 9\), but it and its neighbours hold \[4, 16\)"),
)
def test_a_wrong_window_is_found(plan, window, match):
    position, instr = find(plan, "forward", "halo_exchange", dim=1)
    attrs = attr_pairs({**dict(instr.attrs), "window": window})
    verify_refuses(changed(plan, "forward", position, attrs=attrs), match)


def test_an_exchange_along_the_wrong_axis_is_found(plan):
    position, _ = find(plan, "forward", "halo_exchange", dim=1)
    (other,) = halos(plan)[1].axes
    verify_refuses(
        changed(plan, "forward", position, axes=(other,)), "is not split into one slice of 4 per rank of the group"
    )


def test_an_exchange_that_is_left_out_is_found():
    plan = compiled(CUT_H, SHAPE, (1, 3), stride=1, pads=((0, 0), (1, 1)))
    assert halos(plan) == []  # nothing to exchange along the height
    sound = compiled(CUT_H, **SAME)
    (exchange,) = halos(sound)
    position, reader = next((p, i) for p, i in enumerate(sound.stages[0].program("forward")) if exchange.out in i.ins)
    # the slices instead of the windows: the operator then makes slices that are too small
    verify_refuses(changed(sound, "forward", position, ins=(exchange.ins[0], *reader.ins[1:])), "gives")


def test_windows_have_no_layout(plan):
    first = halos(plan)[0]
    value, layout = plan.value(first.out), plan.value(first.ins[0]).layout
    changed_plan = with_value(plan, first.out, Value((2, 24, 8), value.dtype, layout))
    verify_refuses(changed_plan, "windows overlap, so they have no layout")


def test_another_operator_may_not_read_windows(plan):
    """Only what declares windows may read a value without a layout."""
    program = plan.stages[0].program("forward")
    fields = {"attrs": attr_pairs({"shape": (2, 6, 6)}), "axes": (), "op": "", "strategy": None}
    copy = replace(program[-1], kind="reshape", ins=(halos(plan)[-1].out,), outs=("view",), **fields)
    values = (*plan.values, ("view", Value((2, 6, 6), "float64", None)))
    verify_refuses(with_program(replace(plan, values=values), "forward", (*program, copy)), "has no layout")


# ---- cost ----

# seconds per message, per byte sent, per byte added (two reads and a write at 1e9 bytes per second)
A, B, G = 3e-6, 2e-9, 3e-9
DEVICE = Device(flops_per_s=1e9, memory_bytes=10**9, memory_bandwidth_bytes_per_s=1e9, overhead_s=0.0)
NODE = Cluster("node", DEVICE, Link(A, B), devices_per_node=8)


def test_an_exchange_costs_two_messages_of_a_strip(plan):
    rows, columns = halos(plan)
    strip = 2 * 1 * 4 * F8  # one row of a slice (2, 4, 4)
    assert instr_time_s(plan, rows, NODE) == pytest.approx(2 * (A + strip * B))
    assert sent_bytes(plan, rows) == message_bytes(plan, rows) == 2 * strip
    # two ranks side by side: each sends one strip while it receives the other's; a column of (2, 6, 4)
    column = 2 * 6 * 1 * F8
    assert instr_time_s(plan, columns, NODE) == pytest.approx(A + column * B)
    assert sent_bytes(plan, columns) == message_bytes(plan, columns) == column


def test_a_reduce_also_adds_what_it_receives(plan):
    columns, rows = halos(plan, "halo_reduce")
    strip, column = 2 * 1 * 4 * F8, 2 * 6 * 1 * F8
    assert instr_time_s(plan, rows, NODE) == pytest.approx(2 * (A + strip * (B + G)))
    assert instr_time_s(plan, columns, NODE) == pytest.approx(A + column * (B + G))


def test_ranks_at_the_edge_hand_over_less(plan):
    rows = halos(plan)[0]
    strip = 2 * 1 * 4 * F8
    # 4 x 2 slices: ranks 0, 1 hold the top rows, 6, 7 the bottom rows
    handed = [message_bytes(plan, rows, r) for r in range(8)]
    assert handed == [n * strip for n in (1, 1, 2, 2, 2, 2, 1, 1)]
    log = predict_timeline(plan, NODE).log.filter(name=rows.out, kind="communication")
    assert [e.bytes for e in sorted(log, key=lambda e: e.rank)] == handed


def test_windows_take_memory_of_their_own(plan):
    points = {p.name: p for p in predict_memory(plan).timeline}
    first, second = halos(plan)
    # read again in backward (the kernel's gradient): the second is an activation, the first only feeds the second
    assert points[second.out].by_kind["activations"] == 2 * 6 * 6 * F8
    assert points[second.out].by_kind["workspace"] >= 2 * 6 * 4 * F8
    assert points[first.out].by_kind["workspace"] == 2 * 6 * 4 * F8


def test_events_of_a_run_carry_the_predicted_bytes(plan):
    net = Net(CUT_BOTH, **SAME)
    rule = nn.SGD(net.trainable_params(), 0.0)
    weight = weight_for(**SAME)
    batch, settings = (weight, np.zeros(())), {"device_num": DEVICES, "dataset_strategy": "full_batch"}
    trained = compile(net, *batch, loss=lambda out, label: out, optimizer=rule, **settings)
    with Session(trained, net, rule) as session:
        session.train([batch], steps=1, record=1)
        events = [e for e in session.events if e.op in ("halo_exchange", "halo_reduce")]
    assert len(events) == 4 * 8
    by_name = {i.out: i for _, i in trained.instructions()}
    assert all(e.bytes == message_bytes(trained, by_name[e.name], e.rank) for e in events)
    for name in {e.name for e in events}:
        for group in {e.group for e in events if e.name == name}:
            assert len({e.end_s for e in events if e.name == name and e.group == group}) == 1


# ---- views ----


def test_the_text_says_what_a_rank_gets(plan):
    text = plan.text(rank=2)
    assert "NeighborExchangeV2(" in text and "NeighborExchangeV2Grad(" in text
    # rank 2 is the second of 4 along the rows, the first of 2 along the columns
    assert "this rank gets [3, 9) along dim 1 of 16: 1 of rank 0 and 1 of rank 4" in text
    assert "this rank gets [-1, 5) along dim 2 of 8: 1 of rank 3, 1 zeros outside the tensor" in text
    assert "slides a window along dim 1, split 4 ways" in text
    assert f"# global: ({SHAPE}, {KERNEL}) -> {SHAPE}" in text


def test_the_data_of_a_rank_names_the_message(plan):
    view = plan.to_dict(rank=0)
    message = next(m for m in view["comm"] if m["kind"] == "halo_exchange")
    assert (message["op"], message["group"]) == ("NeighborExchangeV2", [0, 2, 4, 6])
    assert (message["in_shape"], message["out_shape"]) == ([2, 4, 4], [2, 6, 4])
    assert message["bytes"] == 2 * 1 * 4 * F8  # the first rank has one neighbour
    entry = next(o for o in view["ops"] if o["op"] == "Stencil")
    assert entry["in_global"] == [list(SHAPE), list(KERNEL)]
    assert (entry["in_slice"], entry["out_slice"]) == ([[2, 6, 6], [3, 3]], [[2, 4, 4]])


def test_the_lab_lists_it_with_its_tensor(plan):
    rows = [m for m in message_table(plan, 3) if m["collective"] == "NeighborExchangeV2"]
    both_halos = "a.halo.stencil.halo.stencil"  # what the operator reads
    listed = [("stencil", "a", 2 * 2 * 1 * 4 * F8), ("stencil", both_halos, 2 * 6 * 1 * F8)]
    assert [(m["operator"], m["tensor"], m["bytes_predicted"]) for m in rows] == listed
    # of the slices with halos only the one that the operator reads can be looked at
    assert {e.value for e in tensor_entries(plan)} & {i.out for i in halos(plan)} == {both_halos}
