"""Nets of unusual form: what they compute in slices equals one device (the eager tape, float64)."""

import numpy as np
import pytest

from parallel_lab import Parameter, ShapeError, Tensor, TraceError, compile, nn, ops
from parallel_lab.graph.passes import PASSES
from parallel_lab.run.simulator import Simulator
from tests.graph.one_device import X, Y, alone, check_equal, draw, plan_of, quick, simulated
from tests.nets import cell
from tests.recorded.nets import Chain


class Shaped(nn.Cell):
    """Runs `how(x, parameters)`."""

    def __init__(self, how, *shapes, trainable=True):
        super().__init__()
        self.how, self.p = how, []
        for i, shape in enumerate(shapes):
            self.p.append(Parameter(draw(*shape, seed=30 + i), name=f"p{i}", requires_grad=trainable or i == 0))
            self.insert_param_to_cell(f"p{i}", self.p[i])

    def construct(self, x):
        return self.how(x, *self.p)


KEPT = Tensor(draw(16, 8, seed=40))
rows, columns = ((8, 1), (8, 1)), ((1, 8), (1, 8))
FORMS = {
    "constant": lambda x, p: (x + KEPT) * p,
    "numpy constant": lambda x, p: x * p + np.arange(8.0),
    "constants alone": lambda x, p: x * p + KEPT * KEPT,
    "split constant": lambda x, p: ops.Mul().shard(columns)(ops.Add().shard(rows)(x, KEPT), p),
    "scalars": lambda x, p: 2 * x * p - 1.5 + (3.0 - x) / 4,
    "scalar Tensor": lambda x, p: x * p * Tensor(2.0, np.float64),
    "reshape chain": lambda x, p: (x * p).reshape(4, 4, 8).reshape(32, 4).reshape(2, -1).reshape(16, 8) * p,
    "reshape back": lambda x, p: (x.reshape(128).reshape(16, 8)) * p,
    "reshaped input": lambda x, p: x.reshape(8, 16).T.reshape(16, 8) * p,
    "reshaped output": lambda x, p: (x * p).reshape(8, 16).reshape(16, 8),
    "transposes": lambda x, p: (x * p).T.T,
    "transpose to columns": lambda x, p: ops.Mul().shard(rows)(ops.Transpose().shard(((2, 4),))(x.T, (1, 0)), p),
    "fan-out": lambda x, p: ops.Add().shard(rows)(
        ops.ReLU().shard(((1, 8),))(x * p), ops.Tanh().shard(((2, 4),))(x * p)
    ),
    "fan-out of one value": lambda x, p: fan_out(x * p),
    "value twice": lambda x, p: square(x * p),
    "parameter twice": lambda x, p: ops.Mul().shard(rows)(x, p) + ops.Add().shard(rows)(p, x),
    "parameter times itself": lambda x, p: x + p * p,
    "reshaped parameter, then split": lambda x, p: ops.Mul().shard(rows)(p.reshape(8, 16).T.reshape(16, 8) * x, p),
    "split parameter, then reshaped": lambda x, p: ops.Mul().shard(columns)(x, p) + p.reshape(4, 32).sum(0).sum(),
    "input and its sum": lambda x, p: x * p + x.sum(axis=0, keep_dims=True),
}  # fmt: skip


def fan_out(y):
    """One value read in four layouts, one of them twice."""
    by_rows = ops.ReLU().shard(((8, 1),))(y)
    by_columns = ops.Sigmoid().shard(((1, 8),))(y)
    blocks = ops.Tanh().shard(((2, 4),))(y)
    again = ops.Abs().shard(((8, 1),))(y)
    return by_rows + by_columns + blocks * again


def square(y):
    product = ops.MatMul(transpose_b=True).shard(((2, 4), (1, 4)))(y, y)
    return ops.Mul().shard(((4, 2), (4, 2)))(y, y) + product.sum(axis=1, keep_dims=True)


@pytest.mark.quick(5)
@pytest.mark.parametrize("alltoall", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_form_equals_one_device(form, alltoall):
    check_equal(Shaped(FORMS[form], (16, 8)), draw(16, 8, seed=50), draw(16, 8, seed=51), enable_alltoall=alltoall)


@pytest.mark.parametrize("first", [0, 1])
def test_a_reshape_of_a_parameter_leaves_its_layout_to_another_operator(first):
    """It was refused once, as if the reshape wanted the parameter whole; a cast copy of it too."""

    def construct(net, x):
        w = ops.cast(net.w, "float64")
        parts = [lambda: net.matmul(x, w).sum(), lambda: w.reshape(4, -1).sum(0).mean()]
        return parts[first]() + parts[1 - first]()

    net = cell(construct, w=Parameter(draw(32, 16), name="w"), matmul=ops.MatMul().shard(((2, 4), (4, 1))))
    plan = plan_of(net, X, loss=None)
    assert plan.to_dict(rank=0)["params"][0]["slice"] == [8, 16]
    sim = Simulator(plan, {"w": net.w.asnumpy()})
    sim.run_step(X)
    want = (X @ net.w.asnumpy()).sum() + net.w.asnumpy().reshape(4, -1).sum(0).mean()
    np.testing.assert_allclose(sim.full(plan.outputs[0]), want, rtol=1e-10)


@pytest.mark.parametrize(
    ("mul", "product", "gather"),
    [((24, 1), ((24, 1), (1, 1)), ((1, 1), (24,))), ((3, 8), ((3, 8), (8, 1)), ((24, 1), (1,)))],
)
def test_24_devices_may_split_by_any_divisor(mul, product, gather):
    """MindSpore, test_device_num_not_power_of_2: strategies that it compiles."""
    check_equal(on_24(mul, product, gather), draw(48, 48), draw(24, 24), devices=24)


def on_24(mul, product, gather):
    def construct(net, x):
        return net.gather(net.product(net.mul(x, net.p), net.w), net.picked, 0)

    parts = {"mul": ops.Mul().shard((mul, mul)), "product": ops.MatMul().shard(product)}
    parts |= {"gather": ops.Gather().shard(gather), "picked": Tensor(np.arange(24) * 2)}
    return cell(construct, p=Parameter(draw(48, 48), name="p"), w=Parameter(draw(48, 24), name="w"), **parts)


def test_device_matrices_that_do_not_nest_are_refused():
    """The third form of that test: 8 and 3 against 3 and 8."""
    with pytest.raises(RuntimeError, match=r"Gather 'gather'.*\(8, 3\).*\(3, 8\).*same factors"):
        plan_of(on_24((8, 3), ((8, 3), (3, 1)), ((3, 1), (1,))), draw(48, 48), devices=24, loss=None)


def test_a_value_in_one_layout_is_moved_there_once():
    plan = plan_of(Shaped(lambda x, p: fan_out(x * p), (16, 8)), draw(16, 8), draw(16, 8))
    moves = [i.out for _, i in plan.instructions("forward") if i.ins == ("mul",) and i.kind != "compute"]
    wanted = {str(plan.value(m).layout.canonical()) for m in moves}
    assert len(moves) == len(wanted)


def test_unused_parameters_have_no_place_in_the_plan():
    net = Shaped(lambda x, p, q: x * p, (16, 8), (3, 3))
    plan = check_equal(net, draw(16, 8), draw(16, 8, seed=5))
    assert [p.name for p in plan.parameters] == ["p0"]


def test_parameters_without_gradient_are_kept_and_not_trained():
    net = Shaped(lambda x, p, q: x * p + q, (16, 8), (8,), trainable=False)
    rule = nn.SGD(net.trainable_params(), 0.1)
    plan = plan_of(net, draw(16, 8), draw(16, 8), optimizer=rule)
    assert [n for n, _ in plan.gradients] == ["p0"]
    assert [t for t, _ in plan.assignments] == ["p0"]
    assert [p.name for p in plan.parameters] == ["p0", "p1"]


def test_several_outputs():
    net = Shaped(lambda x, p: (ops.Mul().shard(rows)(x, p), x.sum(), (x + p).reshape(8, 16), x), (16, 8))
    x = draw(16, 8, seed=6)
    plan = plan_of(net, x, loss=None)
    sim = Simulator(plan, {"p0": net.p[0].asnumpy()})
    sim.run_step(x)
    for name, want in zip(plan.outputs, net(Tensor(x)), strict=True):
        np.testing.assert_allclose(sim.full(name), want.asnumpy(), rtol=1e-12)


def test_a_parameter_that_only_the_caller_reads_is_an_output():
    """There was no value for it: "plan: no value 'p0'"."""
    net = Shaped(lambda x, w: (ops.relu(x), w), (4, 8))
    for mode in ("semi_auto_parallel", "data_parallel", "stand_alone"):
        plan = compile(net, X, device_num=8, parallel_mode=mode, dataset_strategy="full_batch")
        sim = Simulator(plan, {"p0": net.p[0].asnumpy()})
        np.testing.assert_array_equal(sim.run_step(X), np.maximum(X, 0))
        np.testing.assert_array_equal(sim.full(plan.outputs[1]), net.p[0].asnumpy())


def test_several_outputs_are_differentiated_as_their_sum():
    net = Shaped(lambda x, p: ((x * p).sum(), (p * p).mean()), (16, 8))
    x = draw(16, 8, seed=6)
    plan = plan_of(net, x, loss=None, passes=PASSES)
    _, grads = simulated(plan, net, x)
    p = net.p[0].asnumpy()
    np.testing.assert_allclose(grads["p0"], x + 2 * p / p.size, rtol=1e-10)


def test_a_net_without_parameters_runs_and_cannot_be_trained():
    plan = compile(lambda x: ops.relu(x) * 2.0, X, device_num=8, dataset_strategy="full_batch")
    sim = Simulator(plan, {})
    np.testing.assert_array_equal(sim.run_step(X), np.maximum(X, 0) * 2)
    with pytest.raises(TraceError, match="no trainable parameter"):
        plan_of(lambda x: x * 2.0, X, X)


def test_an_optimizer_without_a_loss_is_refused():
    net = quick()
    with pytest.raises(TraceError, match="optimizer is given without a loss"):
        compile(net, X, optimizer=nn.SGD(net.trainable_params(), 0.1), device_num=8)


def test_an_unknown_setting_is_refused_by_name():
    with pytest.raises(TraceError, match="'mean'"):
        plan_of(quick(), X, Y, mean=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dims", [[6, 10, 14], [24, 40, 8], [1, 3, 5]])
def test_dims_that_are_not_powers_of_two(dims):
    net = Chain(dims, None)
    for i, p in enumerate(net.trainable_params()):
        p._initial, p._data = None, draw(*p.shape, seed=60 + i)
    for batch in (8, 9, 40):
        check_equal(net, draw(batch, dims[0]), draw(batch, dims[-1], seed=8))


def test_products_of_odd_dims_cut_where_they_divide():
    net = Chain([6, 10, 14], [((4, 2), (2, 1)), ((1, 2), (2, 2))])
    for i, p in enumerate(net.trainable_params()):
        p._initial, p._data = None, draw(*p.shape, seed=60 + i)
    check_equal(net, draw(12, 6), draw(12, 14))


def test_integer_labels_and_a_cut_class_dim():
    """The expanded cross-entropy with its classes split 4 ways equals the fused one on one device."""

    def expanded():
        loss = nn.SoftmaxCrossEntropyExpand(sparse=True)
        for primitive in (loss.max, loss.exp, loss.sum, loss.log, loss.sum_cross_entropy):
            primitive.shard(((2, 4),))
        for primitive in (loss.sub, loss.div):
            primitive.shard(((2, 4), (2, 1)))
        loss.onehot.shard(((2, 4), (), ()))
        loss.mul.shard(((2, 4), (2, 4)))
        return loss

    matmul = ops.MatMul().shard(((2, 1), (1, 4)))
    net = cell(lambda net, x: net.matmul(x, net.w), w=Parameter(draw(8, 12), name="w"), matmul=matmul)
    x, labels = draw(16, 8), np.random.default_rng(3).integers(0, 12, 16).astype(np.int32)
    plan = plan_of(net, x, labels, loss=expanded)
    loss, grads = simulated(plan, net, x, labels)
    want_loss, want = alone(net, x, labels, loss=nn.CrossEntropyLoss)
    # its one-hot holds float32 ones; exact, but labels times logs stay float64
    np.testing.assert_allclose(loss, want_loss, rtol=1e-6)
    np.testing.assert_allclose(grads["w"], want["w"], rtol=1e-6, atol=1e-9)


def test_a_loss_without_gradient_is_refused():
    def first(out, label):
        return ops.argmax(ops.reshape(out - label, (-1,)))

    with pytest.raises(ShapeError, match=r"the loss is of dtype int32.*A float"):
        compile(quick(), X, Y, loss=first, device_num=8, dataset_strategy="full_batch")
