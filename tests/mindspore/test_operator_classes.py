"""Operators that MindSpore calls in another way: random ones, pictures, dropout with a mask, unique. As scripts do."""

from __future__ import annotations

import numpy as np
import pytest

import parallel_lab.mindspore as ms
from parallel_lab import compile
from parallel_lab.base.errors import ArgumentTypeError, ShapeError, StrategyError
from parallel_lab.mindspore import Tensor, mint, nn, ops
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of


def steps(net, *arrays, device_num=8):
    """The whole first result of two steps."""
    plan = compile(net, *arrays, device_num=device_num, dataset_strategy="full_batch")
    sim, found = Simulator(plan, {}), []
    for _ in range(2):
        sim.run_step(*arrays)
        found.append(sim.full(plan.outputs[0]).copy())
    return np.stack(found)


class Random(nn.Cell):
    """Numbers of every class, split as `strategy` says; one operator called twice."""

    def __init__(self, strategy=None):
        super().__init__()
        ms.set_seed(3)
        whole = ((), (1,)) if strategy else ()
        draws = [ops.StandardNormal(), ops.UniformReal(seed=2), ops.StandardLaplace(1, 2), ops.TruncatedNormal()]
        self.draws = [each.shard((strategy,)) if strategy else each for each in draws]
        self.gamma, self.poisson, self.ints = ops.Gamma(seed=4), ops.Poisson(), ops.UniformInt()
        if strategy:
            self.gamma.shard((strategy, *whole))
            self.poisson.shard((strategy, (1,)))
            self.ints.shard((strategy,))
        self.alpha, self.beta = Tensor(np.float32(2.5)), Tensor(np.ones(8, np.float32))
        self.low, self.high = Tensor(1, ms.int32), Tensor(9, ms.int32)

    def construct(self, x):
        for draw in (*self.draws, self.draws[0]):
            x = x + draw((16, 8))
        x = x + self.gamma((16, 8), self.alpha, self.beta) * self.poisson((16, 8), self.beta)
        return x * self.ints((16, 8), self.low, self.high)


def test_random_operators_draw_the_same_however_they_are_split():
    """MindSpore's own draws differ with the strategy: each rank has a seed of its own."""
    x = np.zeros((16, 8), np.float32)
    one = steps(Random(), x, device_num=1)
    assert (one[0] != one[1]).all()
    for strategy in (None, (2, 4), (8, 1), (1, 1)):
        assert (steps(Random(strategy), x) == one).all(), strategy


@each_of(
    ("make", "strategy"), (ops.StandardNormal, ((32, 1),)), (ops.UniformReal, ((2, 4), ())), (ops.UniformReal, ((8,),))
)
def test_strategies_of_a_draw_are_for_its_shape(make, strategy):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.draw = make().shard(strategy)

        def construct(self, x):
            return x + self.draw((16, 8))

    with pytest.raises(StrategyError, match="strategy"):
        compile(Net(), np.zeros((16, 8), np.float32), device_num=8, dataset_strategy="full_batch")


def test_parameters_of_a_gamma_stay_whole():
    """MindSpore, operator list: the strategy for alpha and beta must be all-1."""
    net = Random()
    net.gamma.shard(((2, 4), (), (8,)))
    with pytest.raises(StrategyError, match="stays whole"):
        compile(net, np.zeros((16, 8), np.float32), device_num=8, dataset_strategy="full_batch")


def test_classes_and_functions_give_tensors_of_the_documented_dtypes():
    made = {
        "StandardNormal": ops.StandardNormal()((2, 3)),
        "UniformInt": ops.UniformInt()((2,), Tensor(1, ms.int32), Tensor(5, ms.int32)),
        "Multinomial": ops.Multinomial(seed=1)(Tensor([0.0, 9, 4, 0]), 2),
        "RandomChoiceWithMask": ops.RandomChoiceWithMask(count=3)(Tensor([[True, False]]))[0],
        "candidates": ops.UniformCandidateSampler(1, 3, False, 4)(Tensor([[1], [2]], ms.int64))[0],
        "randperm": mint.randperm(4),
        "randint": mint.randint(5, (3,)),
        "normal": mint.normal(0.0, Tensor([1.0, 2.0])),
    }
    kinds = {name: (tuple(x.shape), str(x.dtype)) for name, x in made.items()}
    assert all(isinstance(x, Tensor) for x in made.values())
    assert kinds == {
        "StandardNormal": ((2, 3), "float32"),
        "UniformInt": ((2,), "int32"),
        "Multinomial": ((2,), "int32"),
        "RandomChoiceWithMask": ((3, 2), "int32"),
        "candidates": ((3,), "int64"),
        "randperm": ((4,), "int64"),
        "randint": ((3,), "int64"),
        "normal": ((2,), "float32"),
    }


class Masked(nn.Cell):
    def __init__(self, strategy):
        super().__init__()
        ms.set_seed(3)
        self.generate, self.keep_prob = ops.DropoutGenMask(), Tensor(0.6, ms.float32)
        self.drop = ops.DropoutDoMask().shard((strategy,))

    def construct(self, x):
        return self.drop(x, self.generate(ops.Shape()(x), self.keep_prob), self.keep_prob)


def test_a_generated_mask_is_the_same_however_it_is_split():
    x = np.ones((16, 8), np.float32)
    one = steps(Masked((1, 1)), x, device_num=1)
    assert set(np.unique(one).tolist()) == {0, np.float32(1 / 0.6)} and (one[0] != one[1]).any()
    assert (steps(Masked((2, 4)), x) == one).all()


def test_a_mask_is_what_a_generator_gives_and_the_generator_takes_no_strategy():
    with pytest.raises(ArgumentTypeError, match="What a DropoutGenMask gives"):
        ops.DropoutDoMask()(Tensor(np.ones(4)), Tensor(np.ones(4)), 0.5)
    with pytest.raises(StrategyError, match="DropoutDoMask behind it"):
        ops.DropoutGenMask().shard(((1,),))


def test_whole_channels_are_dropped():
    out, _ = ops.Dropout2D(0.5)(Tensor(np.ones((16, 8, 2, 2), np.float32)))
    shares = out.asnumpy().reshape(16, 8, 4)
    assert (shares == shares[:, :, :1]).all() and 0.2 < (shares == 0).mean() < 0.8


def test_a_bilinear_picture_may_be_split_by_columns():
    class Net(nn.Cell):
        def __init__(self, strategy):
            super().__init__()
            self.resize, self.second = ops.ResizeBilinear((6, 32)).shard((strategy,)), ops.ResizeBilinearV2()

        def construct(self, x):
            return self.second(self.resize(x), (3, 4))

    x = np.arange(2 * 2 * 4 * 16, dtype=np.float32).reshape(2, 2, 4, 16) ** 0.5
    one = steps(Net((1, 1, 1, 1)), x, device_num=1)
    np.testing.assert_allclose(steps(Net((2, 1, 1, 4)), x), one, rtol=1e-6)


def test_different_elements_are_as_many_as_there_are():
    values, numbers = ops.Unique()(Tensor([1, 2, 5, 2], ms.int32))
    assert values.asnumpy().tolist() == [1, 2, 5] and numbers.asnumpy().tolist() == [0, 1, 2, 1]
    assert ops.InvertPermutation()((3, 4, 0, 2, 1)) == (2, 4, 3, 0, 1)
    with pytest.raises(ShapeError, match="Each number"):
        ops.InvertPermutation()((3, 4))


def test_a_function_as_an_operator_is_traced_where_it_is_called():
    """100 x^2 and its gradient 200 x, as without it; compiled, its operators are lines of the plan."""
    morph = ops.Morph(lambda x: 100 * x * x, lambda x: x, lambda x: x)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    value, gradient = ms.value_and_grad(lambda x: morph(x).sum())(Tensor(x))
    assert float(value) == 100 * (x * x).sum() and np.array_equal(gradient.asnumpy(), 200 * x)

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.morph = morph

        def construct(self, x):
            return self.morph(x)

    assert [n.op for n in compile(Net(), x, device_num=2, dataset_strategy="full_batch").graph.nodes] == ["mul", "mul"]
    with pytest.raises(ShapeError, match="as inferred"):
        ops.Morph(lambda x: x.sum(), lambda x: x, lambda x: x)(Tensor(x))
    with pytest.raises(StrategyError, match="operators of its function"):
        morph.shard(((2, 1),))


ROWS = ms.Layout((4, 2), ("dp", "mp"))("dp", "None")


class Doubled(nn.Cell):
    """x + x through a function with layouts and a gradient of its own."""

    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(Tensor(np.ones((8, 4), np.float32)), "w")
        self.add = ops.Add().shard(((1, 2), (1, 2)))
        self.morph = ops.Morph(lambda x: x * x, lambda x: x, lambda x: x, lambda x, out, dout: (20 * x * dout,))
        self.morph.add_prim_attr("self_define_shard", True).shard((ROWS,), (ROWS,))

    def construct(self, x):
        return self.morph(self.add(x, self.w))


def test_a_function_with_layouts_lies_there_and_has_its_own_gradient(rng):
    """(x + 1)^2 on four rows' groups; its gradient is 20 (x + 1) as the function says, not 2 (x + 1)."""
    x, options = rng.normal(size=(8, 4)).astype(np.float32), {"device_num": 8, "dataset_strategy": "full_batch"}
    plan = compile(Doubled(), x, **options)
    assert plan.value(plan.outputs[0]).placed.same_placement(ROWS.tensor_layout())
    y = np.zeros((8, 4), np.float32)
    plan = compile(Doubled(), x, y, loss=nn.L1Loss(reduction="sum"), **options)
    sim = Simulator(plan, {"w": np.ones((8, 4), np.float32)})
    sim.run_step(x, y)
    np.testing.assert_allclose(sim.full(dict(plan.gradients)["w"]), 20 * (x + 1), rtol=1e-5)
    with pytest.raises(StrategyError, match="2 layouts for 1 tensors it is given"):
        net = Doubled()
        net.morph.shard((ROWS, ROWS), (ROWS,))
        compile(net, x, **options)
    with pytest.raises(StrategyError, match="Layouts: one per tensor"):
        Doubled().morph.shard(((4, 1),), ((4, 1),))


FILLED = {
    "a tuple": (((2, 4), ()), (8, 16), ""),
    "a Tensor": (((2, 4), ()), Tensor([8, 16], ms.int32), ""),
    "one tuple": (((2, 4),), (8, 16), "2: one for the tensor"),
    "a dim too many": (((2, 4, 1), ()), (8, 16), "One count per dim"),
    "sixteen slices": (((2, 8), ()), (8, 16), "Their number divides the devices"),
}


@pytest.mark.parametrize("strategy, shape, words", FILLED.values(), ids=FILLED)
def test_a_filled_tensor_has_a_strategy_for_itself_and_an_empty_one_for_the_number(strategy, shape, words):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.fill, self.mul = ops.FillV2().shard(strategy), ops.Mul()

        def construct(self, x):
            return self.mul(x, self.fill(shape, Tensor(2.5, ms.float32)))

    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    options = {"device_num": 8, "parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}
    if words:
        with pytest.raises(StrategyError, match=words):
            compile(Net(), Tensor(x), **options)
        return
    plan = compile(Net(), Tensor(x), **options)
    sim = Simulator(plan, {})
    sim.run_step(x)
    np.testing.assert_array_equal(sim.full(plan.outputs[0]), 2.5 * x)
