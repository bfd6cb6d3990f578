"""Pass `fuse`: which gradients travel together, that they do, and that no result depends on it."""

import dataclasses
import math

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn
from parallel_lab.base.errors import ContextConflictError, PlanError
from parallel_lab.base.settings.fusion_rules import buckets_of, size_groups_by_bytes, size_groups_by_elements
from parallel_lab.cost import get_cluster, instr_time_s, predict_memory, predict_timeline, step_time_s
from parallel_lab.graph.passes import fuse
from parallel_lab.graph.plan import Plan
from parallel_lab.train.session import Session
from tests.nets import cell, chain as made_of

RNG = np.random.default_rng(5)
MODES = ("semi_auto_parallel", "data_parallel")


def chain(widths):
    """Layers of given widths; parameters are l.0.weight, l.0.bias, l.1.weight, ... in network order."""
    parts = (part for width in widths[1:] for part in (f"dense {width}", "relu"))
    return made_of(*parts, inputs=widths[0], dtype=np.float32)


def data(widths, rows=8, dtype=np.float32):
    return RNG.standard_normal((rows, widths[0])).astype(dtype), RNG.standard_normal((rows, widths[-1])).astype(dtype)


def compiled(net, mode, widths, devices=4, optimizer=None, **settings):
    x, y = data(widths)
    strategy = "data_parallel" if mode == "data_parallel" else "full_batch"
    settings = {"device_num": devices, "parallel_mode": mode, "dataset_strategy": strategy, **settings}
    return pl.compile(net, x, y, loss=nn.MSELoss(), optimizer=optimizer, **settings)


def messages(plan):
    """Parameters per message of the backward program, in the order they are sent."""
    return [i.carried for _, i in plan.instructions("backward") if i.is_communication and i.carried]


def as_sets(groups):
    return {frozenset(group) for group in groups}


def allreduce(mode, config):
    return {"allreduce": {"mode": mode, "config": config}}


WIDTHS = [8] * 6
NAMES = [f"l.{n}.{part}" for n in range(5) for part in ("weight", "bias")]


# ---- which messages share a bucket ----


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", MODES)
def test_nobody_asked(mode):
    plan = compiled(chain(WIDTHS), mode, WIDTHS)
    assert as_sets(messages(plan)) == {frozenset([n]) for n in NAMES}
    assert all(i.kind not in ("start", "wait", "concat", "split") for _, i in plan.instructions())
    assert dict(plan.notes)["fuse"].startswith("no fusion was requested")


@pytest.mark.quick(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("indices", "said"),
    [([3, 9], ""), ([3, 10], "index 10 splits nothing: the last is 9"), ([20, 35], "index 20, 35 split nothing")],
)
def test_positions_behind_the_last_message_are_reported(mode, indices, said):
    note = dict(compiled(chain(WIDTHS), mode, WIDTHS, comm_fusion=allreduce("index", indices)).notes)["fuse"]
    assert said in note and ("nothing" in note) == bool(said)


@pytest.mark.parametrize("mode", MODES)
def test_equal_ids_travel_together_and_0_alone(mode):
    net = chain(WIDTHS)
    for n, layer in enumerate(net.l):
        layer.set_comm_fusion([0, 1, 1, 2, 2][n])
    plan = compiled(net, mode, WIDTHS)
    assert as_sets(messages(plan)) == as_sets([[NAMES[0]], [NAMES[1]], NAMES[2:6], NAMES[6:]])


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", MODES)
def test_one_id_given_to_all_is_one_message(mode):
    plan = compiled(chain(WIDTHS).set_comm_fusion(1), mode, WIDTHS)
    assert as_sets(messages(plan)) == {frozenset(NAMES)}


@pytest.mark.parametrize("mode", MODES)
def test_openstate_off_leaves_messages_alone(mode):
    plan = compiled(chain(WIDTHS), mode, WIDTHS, comm_fusion={"openstate": False, **allreduce("auto", None)})
    assert as_sets(messages(plan)) == {frozenset([n]) for n in NAMES}


def test_index_counts_the_optimizers_parameters_in_data_parallel():
    """Seeds 000 and 004: [20, 35] of 40 gradients gives 21, 15 and the rest; "first_n" as their prose counts."""
    widths = [4] * 21
    names = [f"l.{n}.{part}" for n in range(20) for part in ("weight", "bias")]
    for wording, ends in (("inclusive", (21, 36)), ("first_n", (20, 35))):
        settings = {"comm_fusion": allreduce("index", [20, 35]), "fusion_index": wording}
        plan, (one, two) = compiled(chain(widths), "data_parallel", widths, **settings), ends
        assert as_sets(messages(plan)) == as_sets([names[:one], names[one:two], names[two:]])


def test_the_order_is_the_optimizers():
    net = chain(WIDTHS)
    optimizer = nn.SGD(list(reversed(net.trainable_params())), 0.1)
    plan = compiled(net, "data_parallel", WIDTHS, optimizer=optimizer, comm_fusion=allreduce("index", [2]))
    assert as_sets(messages(plan)) == as_sets([NAMES[-3:], NAMES[:-3]])


def test_index_counts_messages_as_they_are_sent_in_semi_auto():
    plan = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("index", [1, 4]))
    sent = [m for (m,) in messages(compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS))]
    assert messages(plan) == [tuple(sent[:2]), tuple(sent[2:5]), tuple(sent[5:])]
    assert sent[0].startswith("l.4") and sent[-1].startswith("l.0")


def test_ids_that_differ_come_before_positions_in_data_parallel():
    net = chain(WIDTHS)
    net.l[0].set_comm_fusion(7)
    plan = compiled(net, "data_parallel", WIDTHS, comm_fusion=allreduce("index", [4]))
    assert as_sets(messages(plan)) == as_sets([NAMES[:2], NAMES[2:]])


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("mode", MODES)
def test_sizes_of_random_networks(mode, seed):
    """By elements, in network order, in semi_auto; by bytes, in the optimizer's order, in data_parallel."""
    rng = np.random.default_rng(seed)
    widths = [int(n) for n in rng.integers(1, 9, 6) * 64]
    net, threshold = chain(widths), int(rng.integers(1, 3))
    plan = compiled(net, mode, widths, comm_fusion=allreduce("size", threshold))
    sizes = [math.prod(p.shape) for p in net.trainable_params()]
    names = [p.name for p in net.trainable_params()]
    groups = size_groups_by_elements(sizes, threshold)
    if mode == "data_parallel":
        groups = size_groups_by_bytes([4 * n for n in sizes], threshold)
    assert as_sets(messages(plan)) == {frozenset(names[i] for i in bucket) for bucket in buckets_of(groups)}


# recorded with MindSpore 2.10: the ids of gradients w1, w2, ... of these sizes, in network order (mindspore.md, 14.4)
SIX = (512 * 512,) * 6
SIZED = {
    (SIX, 1): [1, 2, 3, 4, 5, 6],
    (SIX, 2): [1, 2, 2, 3, 3, 4],
    (SIX, 3): [1, 1, 2, 2, 2, 3],
    ((524288, 32768, 2048, 2048), 1): [1, 2, 2, 2],
}


def fusion_ids(plan):
    """{parameter: the id that its gradient's message shows}, in network order."""
    shown = {c["parameter"]: c["fusion"] for c in plan.to_dict(rank=0)["comm"] if c["phase"] == "backward"}
    return {p.name: shown[p.name] for p in plan.parameters}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("sizes", "threshold"), SIZED)
def test_by_size_messages_count_from_one(sizes, threshold):
    """A chain of scalings, whose weights may have any size."""
    weights = {f"w{n}": pl.Parameter(np.ones((1, size), np.float32), name=f"w{n}") for n, size in enumerate(sizes)}
    net = cell(lambda net, x: sum(pl.ops.reduce_mean(x * getattr(net, name)) for name in weights), **weights)
    x, settings = np.ones((4, 1), np.float32), {"device_num": 4, "dataset_strategy": "full_batch"}
    settings |= {"parallel_mode": "semi_auto_parallel", "comm_fusion": allreduce("size", threshold)}
    plan = pl.compile(net, x, x, loss=lambda out, label: out, **settings)
    assert list(fusion_ids(plan).values()) == SIZED[sizes, threshold]


def test_what_other_rules_count_is_shown_as_they_count_it():
    """Positions begin at 1024 in data_parallel, the furthest group of the cost model is 1; "auto" leaves ids alone."""
    settings = {"comm_fusion": allreduce("index", [1, 4])}
    positions = fusion_ids(compiled(chain(WIDTHS), "data_parallel", WIDTHS, **settings))
    assert list(positions.values()) == [1024] * 2 + [1025] * 3 + [1026] * 5
    assert set(fusion_ids(compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, **settings)).values()) == {1}
    widths = [128] * 9
    by_cost = fusion_ids(compiled(chain(widths), "semi_auto_parallel", widths, cost_model_fusion=("times", 2, 0.5)))
    assert set(by_cost.values()) == {1, 2} and (by_cost["l.0.weight"], by_cost["l.7.weight"]) == (1, 2)
    auto = compiled(chain(WIDTHS).set_comm_fusion(3), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("auto", None))
    assert set(fusion_ids(auto).values()) == {3}


def test_auto_is_64_mb():
    auto = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("auto", None))
    size = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("size", 64))
    assert messages(auto) == messages(size) and as_sets(messages(auto)) == {frozenset(NAMES)}


def test_no_threshold():
    plan = compiled(chain(WIDTHS), "data_parallel", WIDTHS, comm_fusion=allreduce("size", 0))
    assert as_sets(messages(plan)) == {frozenset([n]) for n in NAMES}
    with pytest.raises(ContextConflictError):
        compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("size", 0))


def test_different_groups_never_share_a_message():
    """One weight is cut in two: its replicas are other ranks than those of a whole one."""
    net = chain([8, 8, 8])
    net.l[0].matmul.shard(((2, 1), (2, 1)))
    net.set_comm_fusion(1)
    plan = compiled(net, "semi_auto_parallel", [8, 8, 8])
    groups = {}
    for _, i in plan.instructions("backward"):
        groups |= dict.fromkeys(i.carried, tuple(i.group(rank) for rank in range(4)))
    for names in messages(plan):
        assert len({groups[n] for n in names}) == 1
    assert len(messages(plan)) == len(set(groups.values())) > 1


def test_different_dtypes_never_share_a_message():
    layers = {"a": nn.Dense(8, 8), "b": nn.Dense(8, 8, dtype="float64")}
    net = cell(lambda net, x: net.b(pl.ops.cast(net.a(x), "float64")), **layers).set_comm_fusion(3)
    x, y = data([8, 8])
    plan = pl.compile(net, x, y.astype(np.float64), loss=nn.MSELoss(), device_num=4, dataset_strategy="full_batch")
    assert as_sets(messages(plan)) == as_sets([["a.weight", "a.bias"], ["b.weight", "b.bias"]])


def test_the_cost_model_orders_parameters_by_their_distance_from_the_loss():
    widths = [128] * 9
    plan = compiled(chain(widths), "semi_auto_parallel", widths, cost_model_fusion=("times", 2, 0.5))
    near, far = messages(plan)
    assert {name.split(".")[1] for name in near} | {name.split(".")[1] for name in far} == set("01234567")
    assert min(int(n.split(".")[1]) for n in near) >= max(int(n.split(".")[1]) for n in far)


def test_the_cost_model_counts_the_gradient_of_an_input_as_the_furthest():
    """It was an error of Python's: only parameters had a distance. An input lies before all layers."""
    widths = [128] * 5
    net, (x, y) = chain(widths), data(widths)
    of_both = pl.value_and_grad(lambda x, y: nn.MSELoss()(net(x), y), 0, net.trainable_params())
    settings = {"device_num": 4, "parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}

    def run(**asked):
        plan = pl.compile(lambda x, y: of_both(x, y)[0], x, y, **settings, **asked)
        with Session(plan, net, executor="simulator") as session:
            return plan, session.train([(x, y)], 1, record=1), session.gradients()

    plan, *found = run(cost_model_fusion=("times", 2, 0.5))
    near, far = messages(plan)
    assert "l.3.weight" in near and {"x", "l.0.weight"} <= set(far)
    _, *alone = run()
    np.testing.assert_equal(found, alone)


# ---- what a bucket is ----


def test_buckets_are_counted_and_carry_what_their_members_would():
    plan = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("index", [3]))
    view = plan.to_dict(rank=2)
    assert [b["members"] for b in view["buckets"]] == [list(m) for m in messages(plan)]
    alone = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS).to_dict(rank=2)["comm"]

    def same(messages):
        """All of them but what a bucket changes: how they travel, and which pass made them."""
        return sorted(
            str({k: v for k, v in m.items() if k not in ("bucket", "overlapped", "origin")}) for m in messages
        )

    assert same(view["comm"]) == same(alone)
    assert sum(b["bytes"] for b in view["buckets"]) == sum(c["bytes"] for c in view["comm"] if c["parameter"])


def test_a_bucket_starts_as_soon_as_its_last_gradient_is_there():
    plan = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("index", [1, 3, 5, 7]))
    program = [i for _, i in plan.instructions("backward")]
    place = {i.out: n for n, i in enumerate(program)}
    for n, i in enumerate(program):
        if i.kind == "start":
            concat = program[place[i.ins[0]]]
            last = max(place[name] for name in concat.ins)
            assert all(other.kind in ("concat", "start") for other in program[last + 1 : n])
    starts = [n for n, i in enumerate(program) if i.kind == "start"]
    waits = [n for n, i in enumerate(program) if i.kind == "wait"]
    assert len(starts) == len(waits) == 5
    assert max(starts[:-1]) < min(waits), "the rest of backward lies between"
    order = [program[n].out for n in starts]
    assert [program[n].ins[0] for n in waits] == order


def test_fused_plans_survive_their_json_form():
    plan = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("auto", None))
    assert Plan.from_dict(plan.to_dict()) == plan
    text = plan.text()
    assert "AllReduce" in text and "started" in text and "Wait(" in text and "Concat(" in text


def _with_program(plan, change):
    stage = plan.stages[0]
    programs = tuple(
        (phase, tuple(change(list(program))) if phase == "backward" else program) for phase, program in stage.programs
    )
    return dataclasses.replace(plan, stages=(dataclasses.replace(stage, programs=programs),))


def test_a_broken_bucket_is_found():
    plan = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("auto", None))

    def swapped(program):
        a, b = [n for n, i in enumerate(program) if i.kind == "split" and i.out.split(".")[2] == "weight"][:2]
        first, second = program[a], program[b]
        attrs = tuple((k, 0 if k == "start" else v) for k, v in second.attrs)
        program[a], program[b] = (dataclasses.replace(i, attrs=x) for i, x in ((first, attrs), (second, first.attrs)))
        return program

    def not_waited_for(program):
        return [i for i in program if i.kind not in ("wait", "split")]

    def read_early(program):
        wait = next(i for i in program if i.kind == "wait")
        program.remove(wait)
        start = next(n for n, i in enumerate(program) if i.kind == "start")
        program.insert(start, wait)
        return program

    for change in (swapped, not_waited_for, read_early):
        with pytest.raises(PlanError):
            _with_program(plan, change).verify()


# ---- no result depends on it ----


def trained(plan, net, optimizer, batch, executor="simulator", steps=4, **options):
    with Session(plan, net, optimizer, executor=executor, **options) as session:
        losses = session.train([batch], steps, record=1)
        return losses, session.parameters() | {f"grad {k}": v for k, v in session.gradients().items()}, session.events


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mean", [False, True])
def test_results_of_groups_by_id_are_equal_to_the_bit(mode, mean):
    def run(ids):
        pl.set_seed(3)
        net = chain(WIDTHS)
        if ids:
            for n, layer in enumerate(net.l):
                layer.set_comm_fusion(n // 2)
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        plan = compiled(net, mode, WIDTHS, optimizer=optimizer, gradients_mean=mean)
        rows = 32 if mode == "data_parallel" else 8
        rng = np.random.default_rng(0)
        batch = tuple(rng.standard_normal((rows, 8)).astype(np.float32) for _ in range(2))
        return trained(plan, net, optimizer, batch)

    losses, values, _ = run(ids=False)
    fused_losses, fused_values, _ = run(ids=True)
    assert fused_losses == losses
    assert all(np.array_equal(fused_values[name], values[name]) for name in values)


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", MODES)
def test_messages_counted_are_messages_predicted(mode):
    pl.set_seed(3)
    net = chain(WIDTHS)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    plan = compiled(net, mode, WIDTHS, optimizer=optimizer, comm_fusion=allreduce("index", [2, 6]))
    rows = 32 if mode == "data_parallel" else 8
    batch = tuple(RNG.standard_normal((rows, 8)).astype(np.float32) for _ in range(2))
    _, _, events = trained(plan, net, optimizer, batch)
    predicted = predict_timeline(plan, get_cluster("laptop")).log
    for log in (events, predicted):
        mine = [e for e in log if e.rank == 1 and e.kind == "communication"]
        assert len(mine) == step_time_s(plan, get_cluster("laptop")).messages
        found = [(e.name, e.bytes) for e in mine if e.overlapped]
        assert found == [(i.out, plan.value(i.ins[0]).slice_bytes) for _, i in plan.instructions() if i.kind == "start"]


def test_half_precision_is_added_in_single_and_fused_as_such():
    def construct(net, x):
        return pl.ops.cast(net.b(net.a(pl.ops.cast(x, "float16"))), "float32")

    found, how = {}, {"loss": nn.MSELoss(), "device_num": 4, "dataset_strategy": "full_batch"}
    for settings in ({}, {"comm_fusion": allreduce("auto", None)}):
        pl.set_seed(1)
        net = cell(construct, a=nn.Dense(8, 8, dtype="float16"), b=nn.Dense(8, 8, dtype="float16"))
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        x, y = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8), np.ones((8, 8), np.float32)
        plan = pl.compile(net, x, y, optimizer=optimizer, **how, **settings)
        sent = [i.ins[0] for _, i in plan.instructions("backward") if i.is_communication]
        assert {plan.value(name).dtype for name in sent} == {"float32"}
        found[bool(settings)] = trained(plan, net, optimizer, (x, y))[:2]
    assert found[False][0] == found[True][0]
    assert all(np.array_equal(found[False][1][n], found[True][1][n]) for n in found[False][1])


# ---- time and memory ----


def test_predicted_time_hides_what_travels_during_backward():
    """By hand: on the line a message starts when its gradients are there and the one before it has ended."""
    widths = [256] * 6
    plan = compiled(chain(widths), "semi_auto_parallel", widths, comm_fusion=allreduce("index", [1, 3, 5, 7]))
    cluster = get_cluster("laptop")
    log = predict_timeline(plan, cluster, ranks=(0,)).log
    now = line = 0.0
    due = {}
    for _, i in plan.instructions():
        if i.kind == "start":
            line = due[i.out] = max(now, line) + instr_time_s(plan, i, cluster)
        elif i.kind == "wait":
            now = max(now, due[i.ins[0]])
        else:
            now += instr_time_s(plan, i, cluster)
    assert predict_timeline(plan, cluster).end_s == pytest.approx(max(now, line), rel=1e-12)
    assert {e.name: e.end_s for e in log if e.overlapped} == pytest.approx(due)
    together = compiled(chain(widths), "semi_auto_parallel", widths)
    assert predict_timeline(plan, cluster).end_s < predict_timeline(together, cluster).end_s


def test_memory_of_a_bucket_is_that_of_its_gradients():
    plan = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS, comm_fusion=allreduce("auto", None))
    alone = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS)
    assert predict_memory(plan).grads_bytes == predict_memory(alone).grads_bytes == 5 * (64 + 8) * 4


def test_instructions_that_wait_for_each_other_are_refused_and_not_left_out():
    plan = compiled(chain(WIDTHS), "semi_auto_parallel", WIDTHS)
    first, second = [instr for _, instr in plan.instructions()][:2]
    steps = [fuse._Step([first], {second.out}, (0,)), fuse._Step([second], {first.out}, (1,))]
    with pytest.raises(PlanError, match=f"{first.out}' waits for a message that waits for it"):
        fuse._in_turn(steps)
    steps[0].needs.clear()
    assert fuse._in_turn(steps) == (first, second)


# ---- float16 ----


@pytest.mark.parametrize("fusion", [{}, {"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}}])
def test_a_mean_that_float16_can_hold_of_a_sum_that_it_cannot(fusion):
    """The sum is 80000, above 65504; the mean over the 4 ranks that were summed is 20000."""
    w = pl.Parameter(pl.Tensor(np.zeros(4, np.float16)), name="w")
    net = cell(lambda net, x: pl.ops.mul(x, net.w), w=w)
    wide_sum = cell(lambda net, outputs, label: pl.ops.reduce_sum(pl.ops.cast(outputs, "float32")))
    optimizer = nn.SGD(net.trainable_params(), 1.0)
    x, label = np.full((8, 4), 10000, np.float16), np.zeros(8, np.float32)
    settings = {"device_num": 4, "parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}
    plan = pl.compile(net, x, label, loss=wide_sum, optimizer=optimizer, gradients_mean=True, **settings, **fusion)
    with Session(plan, net, optimizer) as session:
        session.train([(x, label)], 1)
        found = session.gradients()["w"]
    assert found.dtype == np.float16 and np.array_equal(found, np.full(4, 20000))
