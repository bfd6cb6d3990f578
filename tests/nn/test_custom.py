"""Operators of the user's own: traced, whole on every rank, computed and differentiated by what the user gives."""

import gc

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import Parameter, Tensor, nn, ops
from parallel_lab.base.errors import ArgumentTypeError, NotBuiltYet, ShapeError, StrategyError
from parallel_lab.catalog.nn.custom import (
    Custom,
    PrimitiveWithInfer,
    bprop_getters,
    prim_attr_register,
    vm_impl_registry,
)
from parallel_lab.nn.tensor.autograd import value_and_grad
from parallel_lab.ops.own_gradient import MADE
from parallel_lab.run.simulator import Simulator
from tests.nets import cell
from tests.refusals import refused


class Shaped(PrimitiveWithInfer):
    """Says what its result is, and nothing more."""

    @prim_attr_register
    def __init__(self, shape=()):
        pass

    def infer_shape(self, x):
        return list(self.shape)

    def infer_dtype(self, x):
        return x


class Cubes(PrimitiveWithInfer):
    """The sum of scale * x^3, with a gradient."""

    @prim_attr_register
    def __init__(self, scale=1.0):
        pass

    def infer_shape(self, x):
        return []

    def infer_dtype(self, x):
        return x

    def __call__(self, x):
        return (x * x * x).sum() * self.scale


@bprop_getters.register(Cubes)
def gradient_of_cubes(self):
    def bprop(x, out, dout):
        return (dout * (3.0 * self.scale) * ops.square(x),)

    return bprop


class Net(nn.Cell):
    def __init__(self, w, strategy=None):
        super().__init__()
        self.w, self.matmul, self.cubes = Parameter(Tensor(w), name="w"), ops.MatMul(), Cubes(2.0)
        if strategy:
            self.matmul.shard(strategy)

    def construct(self, x):
        return self.cubes(self.matmul(x, self.w))


class Step(nn.Cell):
    """A network, and the gradient of its parameters."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x):
        loss, (slope,) = value_and_grad(self.net, None, self.net.trainable_params())(x)
        return loss, slope


X, W = np.arange(32.0).reshape(4, 8) / 16 - 1, np.linspace(-1, 1, 32).reshape(8, 4)
LOSS, SLOPE = 2 * ((X @ W) ** 3).sum(), X.T @ (6 * (X @ W) ** 2)


def test_at_once_it_computes_and_its_gradient_is_the_registered_one():
    net = Net(W)
    loss, (slope,) = value_and_grad(net, None, net.trainable_params())(Tensor(X))
    assert float(loss) == pytest.approx(LOSS)
    np.testing.assert_allclose(slope.asnumpy(), SLOPE)


class Own(Shaped):
    """Its gradient is a method, as in MindSpore 1.x: twice the operand, whatever is computed."""

    def get_bprop(self):
        return lambda x, out, dout: x * 2


def test_the_gradient_may_be_a_method_of_the_class():
    def loss(x):
        return Own()(x)

    steps = pl.compile(lambda x: value_and_grad(loss)(x)[1], X, device_num=8, dataset_strategy="full_batch")
    assert steps.value(steps.outputs[0]).shape == X.shape


@pytest.mark.parametrize("strategy", [((2, 4), (4, 1)), ((1, 2), (2, 4)), ((4, 1), (1, 2))])
def test_among_ranks_it_is_whole_and_equals_one_device(strategy):
    net = Step(Net(W, strategy))  # kept: a plan knows such an operator by number only
    plan = pl.compile(net, X, device_num=8, dataset_strategy="full_batch")
    (instr,) = [i for _, i in plan.instructions() if i.op == "custom"]
    assert instr.op_class == "Cubes" and plan.value(instr.ins[0]).layout.splits == (1, 1)
    simulator = Simulator(plan, {plan.parameters[0].name: W})
    simulator.run_step(X)
    loss, slope = map(simulator.full, plan.outputs)
    np.testing.assert_allclose(loss, LOSS)
    np.testing.assert_allclose(slope, SLOPE)


def test_without_a_computation_it_compiles_and_does_not_run():
    shaped = Shaped((2, 3))
    with pytest.raises(NotBuiltYet, match=r"Shaped says what its result looks like.*__call__"):
        shaped(Tensor(X))
    assert shaped.prim_attrs["shape"] == (2, 3)

    def holder():
        return cell(lambda net, x: net.shaped(x), shaped=shaped)

    plan = pl.compile(holder(), X, device_num=8, dataset_strategy="full_batch", parallel_mode="semi_auto_parallel")
    assert plan.value(plan.outputs[0]).shape == (2, 3)
    with pytest.raises(NotBuiltYet, match="Shaped"):
        Simulator(plan, {}).run_step(X)


def test_what_is_registered_computes_and_several_results_are_a_tuple():
    class Both(PrimitiveWithInfer):
        def __init__(self):
            super().__init__("Both")

        def __infer__(self, x):
            return {"shape": ([4], x["shape"]), "dtype": (x["dtype"], np.bool_), "value": None}

    @vm_impl_registry.register(Both)
    def computed(self):
        return lambda x: (x.sum(1), x > 0)

    rows, positive = Both()(Tensor(X))
    np.testing.assert_allclose(rows, X.sum(1))
    np.testing.assert_array_equal(positive, X > 0)


class Liar(Shaped):
    def __call__(self, x):
        return x


class NoInfer(PrimitiveWithInfer):
    @prim_attr_register
    def __init__(self):
        pass


class NotBegun(PrimitiveWithInfer):
    def __init__(self):
        pass


test_missing_parts_are_named = refused(
    (lambda: Cubes().shard(((2, 1),)), StrategyError, "no rule says"),
    (lambda: NoInfer()(Tensor(X)), ArgumentTypeError, "does not say what its result is.*infer_shape"),
    (lambda: NotBegun()(Tensor(X)), ArgumentTypeError, r"super\(\).__init__.*prim_attr_register"),
    (lambda: Shaped(("a",))(Tensor(X)), ShapeError, "A shape and a dtype per result"),
    (lambda: Liar((2, 3))(Tensor(X)), ShapeError, r"Liar: it computes float64 \(4, 8\).*inferred: float64 \(2, 3\)"),
    (lambda: bprop_getters.register(ops.MatMul), ArgumentTypeError, "subclass of PrimitiveWithInfer"),
    (lambda: value_and_grad(Shaped(), 0)(Tensor(X)), NotBuiltYet, "Shaped"),
)


def test_strategies_spread_around_it():
    """The product's rows are split 4 ways, as given; what it computes is whole on every rank."""
    more = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation", "dataset_strategy": "full_batch"}
    plan = pl.compile(Net(W, ((4, 1), (1, 2))), X, device_num=8, **more)
    kinds = {n.op: n for n in plan.graph.nodes}
    assert kinds["matmul"].strategy == ((4, 1), (1, 2)) and kinds["custom"].strategy in (None, ((1, 1),))


@pytest.mark.parametrize("ones", [True, False])
def test_a_gradient_may_be_made_of_a_shape_alone(ones):
    """The weight's gradient is x.T @ ones, or zeros."""

    class Flat(Shaped):
        pass

    @bprop_getters.register(Flat)
    def gradient(self):
        return lambda x, out, dout: (ops.ones_like(x) if ones else ops.zeros_like(x),)

    class Step(Net):
        def __init__(self):
            super().__init__(W)
            self.cubes = Flat()

        def construct(self, x):
            return value_and_grad(super().construct, None, [self.w])(x)[1]

    plan = pl.compile(Step(), X, device_num=8, dataset_strategy="full_batch", parallel_mode="semi_auto_parallel")
    assert next(i.op for _, i in plan.instructions("backward")) == "fill"


def test_nothing_is_kept_of_an_operator_that_is_gone():
    gc.collect()
    before, made = len(MADE), Cubes()
    assert len(MADE) == before + 1
    del made
    gc.collect()
    assert len(MADE) == before


def made_by_calls(func_type="pyfunc", **more):
    return Custom(lambda x, y: x * y, lambda x, y: x, lambda x, y: x, func_type, **more)


def test_an_operator_may_be_made_in_one_call():
    """x y + x / 2, and the gradient for x that bprop says, which is not y."""
    product = made_by_calls(bprop=lambda x, y, out, dout: (3 * dout * y, dout * x))
    x, y = Tensor(X), Tensor(X + 1)
    assert np.array_equal(product(x, y).asnumpy(), X * (X + 1))
    assert np.array_equal(value_and_grad(lambda x: product(x, y).sum())(x)[1].asnumpy(), 3 * (X + 1))
    both = Custom(lambda x: (-x, x.astype(np.int32)))  # what it makes says what its results are
    assert [str(each.dtype) for each in both(x)] == [str(X.dtype), "int32"]


def test_compiled_code_is_compiled_by_its_declared_result_and_does_not_run():
    class Named(nn.Cell):
        def __init__(self):
            super().__init__()
            self.custom = Custom("add.so:Add", lambda x: [x[1], x[0]], lambda x: x, "aot").shard(((4, 1),))

        def construct(self, x):
            return self.custom(x)

    plan = pl.compile(Named(), X, device_num=8, dataset_strategy="full_batch", parallel_mode="semi_auto_parallel")
    assert plan.value(plan.outputs[0]).shape == X.shape[::-1]
    with pytest.raises(NotBuiltYet, match="how it is computed"):
        Named()(Tensor(X))
    with pytest.raises(TypeError, match="out_shape and out_dtype"):
        Custom("add.so:Add")
    with pytest.raises(StrategyError, match=r"powers|at least 1"):
        made_by_calls().shard(((0, 1), (1, 1)))
