"""2D and 3D tensor parallelism: strategies given as layouts, against one device."""

import math

import numpy as np
import pytest

from parallel_lab import Layout, Parameter, StrategyError, Tensor, compile, nn, ops
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.ops.layout_products import Product, kinds, train

# ---- 2D and 3D tensor parallelism ----

GRID = Layout((2, 4), ("x", "y"))
BOX = Layout((2, 2, 2), ("z", "x", "y"))

LINE = Layout((1, 8), ("x", "y"))
ACROSS, BACK = GRID("None", ("x", "y")), GRID("None", ("y", "x"))
ROWS, SUMS = BOX(("z", "y"), "x"), BOX(("z", "x"), "y")


def gather(axis, dim):
    return "all_gather", (axis,), dim


def scatter(axis, dim):
    return "reduce_scatter", (axis,), dim


# MindSpore's tutorial (2D, 3D), its unit tests (2D with rows; a size of 1), transposed weights
HIGH = {
    "2D columns": (ACROSS, GRID("x", "y"), False, [gather(0, 1), scatter(1, 1)], BACK),
    "2D back": (BACK, GRID("y", "x"), False, [gather(1, 1), scatter(0, 1)], ACROSS),
    "2D rows": (GRID("x", "y"), GRID("y", "x"), False, [gather(1, 0), scatter(0, 0)], GRID("y", "x")),
    "2D rows, transposed": (GRID("x", "y"), GRID("x", "y"), True, [gather(1, 0), scatter(0, 0)], GRID("y", "x")),
    "3D": (ROWS, BOX(("x", "z"), "y"), False, [gather(0, 0), gather(2, 0), scatter(1, 0)], SUMS),
    "3D, transposed": (ROWS, BOX("y", ("x", "z")), True, [gather(0, 0), gather(2, 1), scatter(1, 0)], SUMS),
    "one rank along x": (LINE("x", "y"), LINE("y", "x"), False, [scatter(0, 0)], None),
    "nothing to gather": (GRID("x", "y"), GRID("y", "None"), False, [scatter(0, 0)], GRID(("x", "y"), "None")),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", HIGH)
def test_a_product_gathers_its_inputs_and_scatters_its_sums(name, rng):
    *layouts, transposed, messages, result = HIGH[name]
    batch = rng.normal(size=(16, 16)), rng.normal(size=(16, 8))
    shape = (8, 16) if transposed else (16, 8)
    losses, w, _ = train(Product(None, shape=shape, transpose_b=transposed), batch, 1)
    got, found, plan = train(Product(tuple(layouts), nd_tp=True, shape=shape, transpose_b=transposed), batch, 8)
    assert kinds(plan) == messages
    assert plan.value("w").layout.same_placement(layouts[1].tensor_layout())
    assert result is None or plan.value("matmul").layout.same_placement(result.tensor_layout())
    assert got == pytest.approx(losses, rel=1e-10)
    np.testing.assert_allclose(found, w, rtol=1e-10)


def test_a_batch_of_products_gathers_and_scatters(rng):
    layout = Layout((2, 2, 2), ("b", "x", "y"))

    class Batched(Product):
        def __init__(self, layouts, nd_tp):
            super().__init__(layouts, nd_tp=nd_tp, shape=(4, 16, 8))
            self.matmul = ops.BatchMatMul().shard(layouts)
            if nd_tp:
                self.matmul.add_prim_attr("enable_nd_tp", True)

    batch = rng.normal(size=(4, 16, 16)), rng.normal(size=(4, 16, 8))
    losses, w, _ = train(Batched(None, False), batch, 1)
    got, found, plan = train(Batched((layout("b", "x", "y"), layout("b", "y", "x")), True), batch, 8)
    assert kinds(plan) == [("all_gather", (1,), 1), ("reduce_scatter", (0,), 1)]
    assert got == pytest.approx(losses, rel=1e-10)
    np.testing.assert_allclose(found, w, rtol=1e-10)


@pytest.mark.parametrize("name", list(HIGH)[:6])
def test_without_the_attribute_they_are_refused_with_a_reason(name):
    *layouts, transposed, _, _ = HIGH[name]
    net = Product(tuple(layouts), shape=(8, 16) if transposed else (16, 8), transpose_b=transposed)
    words = (
        r"MatMul 'matmul'.*(by the same axes in the same order|splits one dim).*add_prim_attr\('enable_nd_tp', True\)"
    )
    with pytest.raises(StrategyError, match=words):
        compile(net, np.zeros((16, 16)), device_num=8, dataset_strategy="full_batch")


@each_of(
    ("strategy", "out", "words"),
    (((2, 4), (4, 1)), None, r"enable_nd_tp with strategy \(\(2, 4\), \(4, 1\)\).*needs a Layout per input"),
    (None, None, "enable_nd_tp with no strategy.*needs a Layout per input"),
    # rows gathered over y: z stands inside it
    ((BOX(("y", "z"), "x"), BOX(("x", "z"), "y")), None, "'m' by .*'y', 'z'.*not the innermost.*come last"),
    (
        (BOX(("z", "y"), "x"), BOX(("z", "x"), "y")),
        None,
        r"'k' by 'x' in input 0 and by \('z', 'x'\) in input 1.*same outer axis",
    ),
    (
        (GRID("x", "y"), GRID("y", "x")),
        (GRID("x", "None"),),
        r"may be split \(layout\(y, x\),\).*Try \(layout\('y', 'x'\),\)",
    ),
)
def test_other_forms_are_refused_with_what_is_allowed(strategy, out, words):
    with pytest.raises(StrategyError, match=rf"MatMul 'matmul' \(layout_products.py:\d+\): .*{words}"):
        compile(Product(strategy, out, nd_tp=True), np.zeros((16, 16)), device_num=8, dataset_strategy="full_batch")


def test_only_products_gather_and_scatter():
    class Wrong(nn.Cell):
        def __init__(self):
            super().__init__()
            self.relu = ops.ReLU().shard((GRID("x", "y"),)).add_prim_attr("enable_nd_tp", True)

        def construct(self, x):
            return self.relu(x)

    with pytest.raises(StrategyError, match=r"ReLU is not a matrix product.*MatMul and BatchMatMul"):
        compile(Wrong(), np.zeros((16, 16)), device_num=8, dataset_strategy="full_batch")


class TwoProducts(nn.Cell):
    """x (b, h) -> (b, e) -> (b, h), as in MindSpore's tutorial on high-dimension tensor parallelism."""

    def __init__(self, h, e, first, middle, second, nd_tp):
        super().__init__()
        rng = np.random.default_rng(0)
        self.w1 = Parameter(Tensor(rng.normal(size=(h, e))), name="w1")
        self.w2 = Parameter(Tensor(rng.normal(size=(e, h))), name="w2")
        self.matmul1, self.matmul2 = ops.MatMul().shard(first), ops.MatMul().shard(second)
        self.relu = ops.ReLU().shard(middle)
        if nd_tp:
            self.matmul1.add_prim_attr("enable_nd_tp", True)
            self.matmul2.add_prim_attr("enable_nd_tp", True)

    def construct(self, x):
        return self.matmul2(self.relu(self.matmul1(x, self.w1)), self.w2)


def received_elements(plan):
    """Elements a rank receives forward in rings: (p - 1) / p of what a group gathers or scatters, twice for both."""
    total = 0
    for _, instr in plan.instructions("forward"):
        p, source, out = instr.group_size, *(math.prod(plan.value(n).slice_shape) for n in (instr.ins[0], instr.out))
        weights = {"all_gather": out, "reduce_scatter": source, "all_reduce": 2 * source}
        total += weights.get(instr.kind, 0) * (p - 1) // p
    return total


B, H, E = 32, 16, 64


@pytest.mark.quick(2)
@pytest.mark.parametrize(("x", "y"), [(2, 4), (4, 2), (8, 1), (1, 8)])
def test_volume_of_2d_tensor_parallelism(x, y, rng):
    """MindSpore's table: 2 b s [e (x - 1) + h (y - 1)] / (x y) elements per rank."""
    grid = Layout((x, y), ("x", "y"))
    back = grid("None", ("y", "x"))
    net = TwoProducts(H, E, (grid("None", ("x", "y")), grid("x", "y")), (back,), (back, grid("y", "x")), True)
    plan = compile(net, np.zeros((B, H)), device_num=8, dataset_strategy="full_batch")
    assert received_elements(plan) == 2 * B * (E * (x - 1) + H * (y - 1)) // (x * y)
    check_against_one_device(net, rng)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("z", "x", "y"), [(2, 2, 2), (1, 2, 4), (2, 4, 1), (4, 2, 1)])
def test_volume_of_3d_tensor_parallelism(z, x, y, rng):
    """MindSpore's table: 2 [b s e (x - 1) + b s h (y - 1) + h e (z - 1)] / (x y z) elements per rank."""
    box = Layout((z, x, y), ("z", "x", "y"))
    middle = box(("z", "x"), "y")
    first, second = (box(("z", "y"), "x"), box(("x", "z"), "y")), (middle, box(("y", "z"), "x"))
    net = TwoProducts(H, E, first, (middle,), second, True)
    plan = compile(net, np.zeros((B, H)), device_num=8, dataset_strategy="full_batch")
    assert received_elements(plan) == 2 * (B * E * (x - 1) + B * H * (y - 1) + H * E * (z - 1)) // (x * y * z)
    check_against_one_device(net, rng)


def test_volume_of_1d_tensor_parallelism(rng):
    """MindSpore's table: 2 (P - 1) b s h / P elements per rank."""
    line = Layout((8,), ("p",))
    middle = line("None", "p")
    net = TwoProducts(H, E, (line("None", "None"), middle), (middle,), (middle, line("p", "None")), False)
    plan = compile(net, np.zeros((B, H)), device_num=8, dataset_strategy="full_batch")
    assert received_elements(plan) == 2 * 7 * B * H // 8
    check_against_one_device(net, rng)


def check_against_one_device(net, rng):
    """Loss and gradients of `net` on eight ranks and on one."""
    batch = rng.normal(size=(B, H)), rng.normal(size=(B, H))
    start = {p.name: p.asnumpy() for p in net.trainable_params()}
    found = []
    for settings in ({"device_num": 8, "dataset_strategy": "full_batch"}, {"parallel_mode": "stand_alone"}):
        plan = compile(net, *batch, loss=nn.MSELoss(), **settings)
        sim = Simulator(plan, start)
        found.append([float(sim.run_step(*batch)), *(sim.full(dict(plan.gradients)[name]) for name in start)])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


# ---- parts of what a rank computes ----


def test_the_numbers_of_interleaved_parallel_are_those_of_the_layout_without_it():
    """MindSpore: the axis has no ranks; it only asks for messages of one part during another's computation."""
    interleaved = Layout((2, 4, 2), ("dp", "mp", "interleaved_parallel"))
    plain = Layout((2, 4), ("dp", "mp"))
    pairs = (
        (interleaved(("dp", "interleaved_parallel"), "mp"), interleaved("mp", "None")),
        (plain("dp", "mp"), plain("mp", "None")),
    )
    views = []
    for pair in pairs:
        plan = compile(Product(pair), np.zeros((16, 16)), device_num=8, dataset_strategy="full_batch")
        view = plan.to_dict(rank=0)
        sent = [(m["kind"], m["group"], m["in_shape"], m["out_shape"]) for m in view["comm"]]
        views.append((sent, view["params"], [o["out_slice"] for o in view["ops"]]))
    assert views[0] == views[1] and ("all_reduce", [0, 1, 2, 3], [8, 8], [8, 8]) in views[0][0]


def test_a_network_has_one_interleave_number():
    pairs = []
    for parts in (2, 4):
        layout = Layout((2, 4, parts), ("dp", "mp", "interleaved_parallel"))
        pairs.append((layout(("dp", "interleaved_parallel"), "mp"), layout("mp", "None")))
    one, two = (Product(pair, shape=(16, 16)) for pair in pairs)
    with pytest.raises(RuntimeError, match=r"'interleaved_parallel' of sizes 2 \(MatMul .* and 4 \(MatMul .*One size"):
        compile(nn.SequentialCell(one, two), np.zeros((16, 16)), device_num=8, dataset_strategy="full_batch")
