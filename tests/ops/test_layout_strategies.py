"""Strategies made of layouts: every operator under random legal layouts equals one device, forward and gradients; what
a product does with them.

Expected values are those of the undivided computation (numpy forward, the eager tape), or formulas.
"""

import json
import math
import zlib

import numpy as np
import pytest

from parallel_lab import Layout, Parameter, Plan, StrategyError, Tensor, compile, nn, ops
from parallel_lab.graph.passes import PASSES
from parallel_lab.graph.passes.parallelize import descending_runs
from parallel_lab.layout.named_layout import LayoutStrategy
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.ops.machine.completion import completed
from parallel_lab.ops.machine.registry import OPS, PRIMITIVES
from parallel_lab.ops.machine.sharding import sharding_rule
from parallel_lab.ops.machine.split_labels import strategy_operands
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.layout_products import Product, kinds, train
from tests.ops.test_battery import OneOperator, has_rule, results

MATRICES = ((2, 2, 2), (2, 4), (8,))
NAMES = ("dp", "sp", "mp")
# an internal operator is given no strategy; tests/nn/test_dtensor_operators.py draws layouts for all that have examples
CASES = [(name, i) for name, op in sorted(OPS.items()) if not op.internal for i, _ in enumerate(op.cases)]
IDS = [f"{name}-{i}" for name, i in CASES]


# ---- the battery ----


def draw_layouts(op, case, matrix, rng):
    """Layouts for the operands: axes dealt to labels in any order, where they divide; some repeat the calculation."""
    attrs = {**op.default_attrs, **dict(case.attrs)}
    signature = op.signature_for(case.shapes, attrs)
    operands = strategy_operands(op, signature)
    sizes = op.label_sizes(signature, case.shapes, attrs)
    out = op.result_sizes(sizes, case.shapes, attrs)
    whole = op.whole_labels(signature, case.shapes, attrs)
    free = [c for c in dict.fromkeys("".join(operands)) if c != "1" and c not in whole]
    cuts = dict.fromkeys(free, ())
    for axis in rng.permutation(len(matrix)).tolist():
        label = str(rng.choice(free)) if free and rng.random() < 0.9 else ""
        parts = matrix[-1 - axis] * math.prod(matrix[-1 - a] for a in cuts.get(label, ()))
        if label and sizes[label] % parts == 0 and out[label] % parts == 0:
            cuts[label] = (*cuts[label], axis)
    layout = Layout(matrix, NAMES[: len(matrix)])
    return tuple(layout.named(cuts.get(c, ()) for c in labels) for labels in operands)


def legal_layouts(op, case, matrix, rng):
    """A drawn strategy the operator takes. With no rules beyond labels it must take all; others may omit some."""
    attrs = {**op.default_attrs, **dict(case.attrs)}
    particular = op.restrict is not None or op.counted is not None or op.window is not None
    for _ in range(60):
        layouts = draw_layouts(op, case, matrix, rng)
        try:
            rule = sharding_rule(op, case.shapes, attrs, LayoutStrategy(layouts), math.prod(matrix))
        except StrategyError:
            if not particular:
                raise
            continue
        if any(c > 1 for _, c in rule.cuts):
            return layouts
    return None


def check_layouts(op, case, layouts, device_num):
    """Compile and run one operator under layouts; compare results and gradients with one device."""
    arrays = case.arrays(np.random.default_rng(0))
    expected = results(op, case, arrays)
    weights = [np.random.default_rng(1).uniform(0.5, 1.5, e.shape) for e in expected]
    differentiable = has_rule(op) and any(e.dtype.kind == "f" for e in expected)
    cell = OneOperator(op, case, arrays, layouts, weighted=differentiable)
    passes = {"passes": PASSES} if differentiable else {}
    plan = compile(cell, *weights, device_num=device_num, dataset_strategy="full_batch", **passes)
    sim = Simulator(plan, {p.name: p.asnumpy() for p in cell.operands})
    value = sim.run_step(*weights)
    if not differentiable:
        for out, want in zip(plan.outputs, expected, strict=True):
            np.testing.assert_allclose(sim.full(out), want, rtol=1e-12)
        return
    eager = OneOperator(op, case, arrays, None, weighted=True)
    loss = eager(*map(Tensor, weights))
    assert math.isclose(float(value), loss.item(), rel_tol=1e-10, abs_tol=1e-10)
    for parameter, want in zip(cell.operands, gradients(loss, eager.operands), strict=True):
        if parameter.requires_grad and parameter.name in dict(plan.gradients):
            got = sim.full(dict(plan.gradients)[parameter.name])
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10, err_msg=parameter.name)


def check_drawn(name, number, matrix, draws):
    op = OPS[name]
    case = op.cases[number]
    rng = np.random.default_rng(zlib.crc32(f"{name}-{number}-{matrix}".encode()))
    for _ in range(draws):
        layouts = legal_layouts(op, case, matrix, rng)
        if layouts is not None:
            print(f"{name} {case.shapes} on {matrix}: {', '.join(map(str, layouts))}")
            check_layouts(op, case, layouts, math.prod(matrix))


@pytest.mark.quick(4)
@pytest.mark.parametrize(("name", "number"), CASES, ids=IDS)
def test_layouts_equal_one_device(name, number):
    """One draw per operator and example, the device matrices taking turns."""
    check_drawn(name, number, MATRICES[(CASES.index((name, number)) + number) % 3], 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("matrix", MATRICES, ids=str)
@pytest.mark.parametrize(("name", "number"), CASES, ids=IDS)
def test_many_layouts_equal_one_device(name, number, matrix):
    check_drawn(name, number, matrix, 6)


OFTEN_USED = (
    "MatMul Add Mul ReduceSum ReduceMean ReduceMax LayerNorm Gather BiasAdd Transpose Conv2D "
    "SoftmaxExpand OneHot Dropout BatchNorm"
)
OFTEN = {name: PRIMITIVES[name].op.name for name in OFTEN_USED.split()}


@pytest.mark.parametrize("name", OFTEN.values(), ids=OFTEN)
def test_the_draw_finds_layouts_that_cut(name):
    """No empty loop: in 20 draws of its first example every one of these has an operand split in 4 slices or more."""
    op = OPS[name]
    rng = np.random.default_rng(3)
    found = [legal_layouts(op, op.cases[0], (2, 2, 2), rng) for _ in range(20)]
    assert any(f is not None and max(math.prod(layout.splits) for layout in f) >= 4 for f in found)


# ---- products ----

CUBE = Layout((2, 2, 2), ("dp", "sp", "mp"))


PAIR = (CUBE("mp", ("sp", "dp")), CUBE(("sp", "dp"), "None"))


@pytest.mark.quick(1)
@each_of(
    ("layouts", "out", "messages"),
    (PAIR, None, [("all_reduce", (2, 1), None)]),
    (PAIR, (CUBE("mp", "None"),), [("all_reduce", (2, 1), None)]),
    # (("mp", "sp", "dp"), "None"): blocks go by sp first, and a group hands them out in rank order, so each axis is
    # a message
    (PAIR, (CUBE(("mp", "sp", "dp"), "None"),), [("reduce_scatter", (1,), 0), ("reduce_scatter", (2,), 0)]),
    (
        (CUBE("mp", ("dp", "sp")), CUBE(("dp", "sp"), "None")),
        (CUBE(("mp", "dp", "sp"), "None"),),
        [("reduce_scatter", (2, 1), 0)],
    ),
    ((CUBE("dp", "sp"), CUBE("sp", "mp")), (CUBE(("dp", "sp"), "mp"),), [("reduce_scatter", (1,), 0)]),
    ((CUBE("dp", "None"), CUBE("None", ("mp", "sp"))), None, []),
)
@pytest.mark.parametrize("then", [None, ((4, 2),), (CUBE(("mp", "sp"), "dp"),), (CUBE("None", ("dp", "sp", "mp")),)])
def test_a_product_of_layouts(layouts, out, messages, then, rng):
    batch = rng.normal(size=(16, 16)), rng.normal(size=(16, 8))
    losses, w, _ = train(Product(None), batch, 1)
    got, found, plan = train(Product(layouts, out, then), batch, 8)
    assert kinds(plan) == messages
    if out is not None:
        assert plan.value("matmul").layout.same_placement(out[0].tensor_layout())
    assert got == pytest.approx(losses, rel=1e-10)
    np.testing.assert_allclose(found, w, rtol=1e-10)


@each_of(
    ("layouts", "counts"),
    ((CUBE(("dp", "sp"), "None"), CUBE("None", "mp")), ((4, 1), (1, 2))),
    ((CUBE("dp", ("sp", "mp")), CUBE(("sp", "mp"), "None")), ((2, 4), (4, 1))),
)
def test_layouts_that_say_what_counts_say_make_the_same_messages_and_slices(layouts, counts, rng):
    batch = rng.normal(size=(16, 16)), rng.normal(size=(16, 8))
    one, two = (
        compile(Product(s), *batch, loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch")
        for s in (layouts, counts)
    )
    for name in ("x", "w", "matmul"):
        assert one.value(name).layout.same_placement(two.value(name).layout), name

    def messages(plan):
        return [
            (phase, i.kind, i.name, tuple(i.group(r) for r in range(8)))
            for phase, i in plan.instructions()
            if i.is_communication
        ]

    assert messages(one) == messages(two)


def test_a_plan_with_layouts_survives_json_and_shows_them():
    plan = compile(Product(PAIR), np.zeros((16, 16)), device_num=8, dataset_strategy="full_batch")
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan and hash(again.graph) == hash(plan.graph) and again.digest == plan.digest
    found = "{in_strategy: (layout(mp, (sp, dp)), layout((sp, dp), None)) on device_matrix (dp=2, sp=2, mp=2)}"
    assert found in plan.text()
    entry = next(op for op in plan.to_dict(rank=3)["ops"] if op["name"] == "matmul")
    assert entry["strategy"] == [[2, 4], [4, 1]]
    assert [e["tensor_map"] for e in entry["layouts"]] == [(0, (1, 2)), ((1, 2), -1)]
    assert json.dumps(plan.to_dict(rank=3))
    assert "layout(mp, (sp, dp))" in plan.graph.text()


def test_empty_layouts_follow_the_labels():
    op = PRIMITIVES["LayerNorm"].op
    shapes, attrs = ((16, 32, 8), (32, 8), (32, 8)), {**op.default_attrs, "begin_norm_axis": -1}
    given = LayoutStrategy((CUBE("dp", ("mp", "sp"), "None"), CUBE(), CUBE()))
    rest = CUBE(("mp", "sp"), "None")
    assert completed(op, shapes, attrs, given).layouts == (given[0], rest, rest)
    matmul = OPS["matmul"]
    given = LayoutStrategy((CUBE("dp", ("sp", "mp")), CUBE()))
    full = completed(matmul, ((8, 16), (16, 4)), matmul.default_attrs, given)
    assert full.layouts == (CUBE("dp", ("sp", "mp")), CUBE(("sp", "mp"), "None"))
    assert completed(matmul, ((8, 16), (16, 4)), matmul.default_attrs, full) is full


def test_a_parameter_that_two_operators_place_differently_is_refused_with_both_layouts():
    class Twice(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = Parameter(Tensor(np.ones((16, 16))), name="w")
            self.first = ops.MatMul().shard((CUBE("dp", "sp"), CUBE("sp", "mp")))
            self.second = ops.MatMul().shard((CUBE("dp", "mp"), CUBE("mp", "sp")))

        def construct(self, x):
            return self.second(self.first(x, self.w), self.w)

    words = r"'w', shape \(16, 16\), has two layouts.*layout\(sp, mp\).*layout\(mp, sp\)"
    with pytest.raises(StrategyError, match=words):
        compile(Twice(), np.zeros((16, 16)), device_num=8, dataset_strategy="full_batch")


def test_layouts_are_ignored_where_strategies_are(rng):
    batch = rng.normal(size=(16, 16)), rng.normal(size=(16, 8))
    plan = compile(Product(PAIR, nd_tp=True), *batch, loss=nn.MSELoss(), parallel_mode="stand_alone")
    assert not [i for _, i in plan.instructions() if i.is_communication]
    settings = {"device_num": 8, "parallel_mode": "data_parallel", "dataset_strategy": "data_parallel"}
    plan = compile(Product(PAIR), *batch, loss=nn.MSELoss(), **settings)
    assert all(node.strategy is None for node in plan.graph.nodes)


@each_of(
    ("axes", "runs"),
    *[((), []), ((2, 1, 0), [(2, 1, 0)]), ((0, 1, 2), [(0,), (1,), (2,)]), ((1, 2, 0), [(1,), (2, 0)])],
    ((1, 0, 2), [(1, 0), (2,)]),
)
def test_axes_are_one_message_as_long_as_they_descend(axes, runs):
    assert descending_runs(axes) == runs


# ---- operators that look beyond their slice ----


def picture(height):
    """A convolution whose height is split: every rank needs rows of its neighbours."""
    conv = ops.Conv2D(2, 3, pad_mode="same")
    if height is not None:
        conv.shard((CUBE("None", "None", height, "None"), CUBE()))
    w = Parameter(Tensor(np.random.default_rng(0).normal(size=(2, 2, 3, 3))), name="w")
    return cell(lambda net, x: net.conv(x, net.w), w=w, conv=conv)


@pytest.mark.quick(1)
@pytest.mark.parametrize("height", ["sp", ("dp", "mp"), ("dp", "sp")])
def test_neighbours_exchange_rows_over_several_axes(height, rng):
    batch = rng.normal(size=(2, 2, 8, 4)), rng.normal(size=(2, 2, 8, 4))
    losses, w, _ = train(picture(None), batch, 1)
    got, found, plan = train(picture(height), batch, 8)
    assert [kind for kind, _, _ in kinds(plan, "conv")] == ["halo_exchange"]
    assert got == pytest.approx(losses, rel=1e-10)
    np.testing.assert_allclose(found, w, rtol=1e-10)


def test_neighbours_stand_in_the_order_of_the_ranks():
    words = r"Conv2D 'conv'.*splits dim 2 of input 0 by \('mp', 'dp'\).*ascending order.*Try "
    with pytest.raises(StrategyError, match=words):
        compile(picture(("mp", "dp")), np.zeros((2, 2, 8, 4)), device_num=8, dataset_strategy="full_batch")


def looking_up(rows, out=None):
    """A table whose rows are split by axes in any order: each rank must know which rows it holds."""
    gather = ops.Gather()
    if rows is not None:
        gather.shard((CUBE(rows, "None"), CUBE("None")), out)
    w = Parameter(Tensor(np.random.default_rng(0).normal(size=(16, 4))), name="w")
    return cell(lambda net, ids: net.gather(net.w, ids, 0), w=w, gather=gather)


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows", ["sp", ("mp", "dp"), ("sp", "mp", "dp"), ("dp", "sp", "mp")])
@pytest.mark.parametrize("scattered", [False, True])
def test_a_table_cut_by_several_axes(rows, scattered, rng):
    batch = rng.integers(0, 16, 8).astype(np.int32), rng.normal(size=(8, 4))
    losses, w, _ = train(looking_up(None), batch, 1)
    got, found, plan = train(looking_up(rows, (CUBE(rows, "None"),) if scattered else None), batch, 8)
    assert {kind for kind, _, _ in kinds(plan, "gather")} == {"reduce_scatter" if scattered else "all_reduce"}
    assert plan.value("w").layout.same_placement(CUBE(rows, "None").tensor_layout())
    assert got == pytest.approx(losses, rel=1e-10)
    np.testing.assert_allclose(found, w, rtol=1e-10)
