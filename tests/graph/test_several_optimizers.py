"""Several optimizers in one compiled step, and Parameters that are read after the step. All equal one device."""

import numpy as np
import pytest

from parallel_lab import Session, TraceError, compile, nn, ops, value_and_grad
from parallel_lab.base.errors import NotBuiltYet
from parallel_lab.graph.compiler import compile_program
from parallel_lab.nn import FixedLossScaleManager
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.graph.test_training_step import Net, assert_same, batch, steps_on_one_device, steps_on_ranks

SPLIT = (((2, 2), (2, 2)), ((2, 2), (2, 2)))
WHOLE = (None, None)
COLUMNS = (((1, 1), (1, 8)), ((1, 8), (8, 1)))


def loss_of(net, x, y):
    return ops.reduce_mean(ops.square(net(x) - y))


def two_losses(net):
    """Wide & Deep's step: FTRL for one part and Adam for the other, each with the gradients of a loss of its own."""
    one = nn.FTRL([net.w], 1.0, 0.05, l1=1e-3, l2=1e-3, loss_scale=4.0)
    other = nn.Adam([net.b, net.v], 0.02, eps=1e-8, weight_decay=0.01)
    gradient = value_and_grad(lambda x, y: loss_of(net, x, y) * 4.0, None, one.parameters)
    decayed = value_and_grad(lambda x, y: ops.reduce_mean(ops.abs(net(x) - y)), None, other.parameters)

    def step(x, y):
        (first, grads), (second, more) = gradient(x, y), decayed(x, y)
        one(grads)
        other(more)
        return first, second

    return step, [one, other]


def three_of_two_classes(net, rates=(0.1, 0.02, 0.05)):
    """Two of one class, and one that clips what it is given."""
    parameters = [net.w], [net.b], [net.v]
    optimizers = [
        nn.Momentum(parameters[0], rates[0], 0.9),
        nn.Momentum(parameters[1], rates[1], 0.5),
        nn.SGD(parameters[2], rates[2], clip=nn.GradientClip("global_norm", 0.01)),
    ]
    gradient = value_and_grad(lambda x, y: loss_of(net, x, y), None, [net.w, net.b, net.v])

    def step(x, y):
        loss, grads = gradient(x, y)
        for optimizer, one in zip(optimizers, grads, strict=True):
            optimizer((one,))
        return loss

    return step, optimizers


def averages(net):
    """Averages of the weights after the step, a weight that is clipped after it, and new values that are returned."""
    mean, kept = (Parameter(Tensor(np.zeros(p.shape)), name=f"{p.name}.mean") for p in (net.w, net.v))
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    gradient = value_and_grad(lambda x, y: loss_of(net, x, y), None, optimizer.parameters)

    def step(x, y):
        loss, grads = gradient(x, y)
        optimizer(grads)
        ops.assign(mean, mean * 0.9 + net.w * 0.1)
        ops.assign(kept, ops.reshape(ops.reshape(net.v, (-1,)) * 0.5, (8, 16)) + kept)
        ops.assign(net.b, ops.clip_by_value(net.b, -0.2, 0.2))
        return {"loss": loss, "sum": ops.reduce_sum(net.w * net.w), "b": net.b * 2.0}

    return step, optimizer


@pytest.mark.quick(1)
@pytest.mark.parametrize("make_step", [two_losses, three_of_two_classes, averages])
@pytest.mark.parametrize("strategies", [WHOLE, SPLIT, pytest.param(COLUMNS, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("sharded", [False, True])
def test_the_step_equals_one_device(make_step, strategies, sharded):
    """Wrong was, where a mean was read after the step: the mean of the values before it."""
    x, y = batch()
    results, parameters = steps_on_one_device(make_step, x, y)
    settings = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
    found, values, _ = steps_on_ranks(make_step, x, y, strategies, 8, **settings if sharded else {})
    assert_same(results, found)
    assert_same(parameters, {name: values[name] for name in parameters})


def test_an_average_lies_as_its_weight_and_moves_nothing():
    """Wrong would be a gather of every weight in every step: what is added to the mean lies as the mean does."""
    x, y = batch()

    def mean_of_each(net):
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        means = [Parameter(Tensor(np.zeros(p.shape)), name=f"{p.name}.mean") for p in optimizer.parameters]
        gradient = value_and_grad(lambda x, y: loss_of(net, x, y), None, optimizer.parameters)

        def step(x, y):
            loss, grads = gradient(x, y)
            optimizer(grads)
            for p, mean in zip(optimizer.parameters, means, strict=True):
                ops.assign(mean, mean * 0.9 + p * 0.1)
            return loss

        return step, optimizer

    _, _, plan = steps_on_ranks(mean_of_each, x, y, SPLIT, 8)
    for name in ("w", "b", "v"):
        assert plan.value(f"{name}.mean").slice_shape == plan.value(name).slice_shape
    assert plan.value("w").slice_shape == (6, 4)
    assert not [i for i in plan.stages[0].program("update") if i.is_communication]


def test_rates_follow_each_optimizer_s_own_schedule():
    x, y = batch()
    rates = [0.1, 0.05, 0.02], lambda step: 0.1 / (step + 1), 0.05
    _, parameters = steps_on_one_device(lambda net: three_of_two_classes(net, rates), x, y)
    net = Net(SPLIT)
    step, optimizers = three_of_two_classes(net, rates)
    plan = compile(step, x, y, device_num=8, dataset_strategy="full_batch")
    with Session(plan, net, optimizers) as session:
        session.train([(x, y)], 2)
        names = ("learning_rate.Momentum", "learning_rate.Momentum2", "learning_rate.SGD")
        assert session.scalars() == pytest.approx(dict(zip(names, (0.05, 0.05, 0.05), strict=True)))
        session.train([(x, y)], 1)
        found = session.parameters()
    assert_same(parameters, {name: found[name] for name in parameters})
    assert plan.optimizer == " and ".join(one.rule for one in optimizers)


def test_groups_of_weights_are_each_optimizers_own():
    """MindSpore: parameter i of an optimizer belongs to rank i mod N; b is the first of the second optimizer."""
    x, y = batch()

    def made(net):
        one, other = nn.Lamb([net.w, net.v], 0.05), nn.AdamWeightDecay([net.b, net.more], 0.05)
        gradient = value_and_grad(
            lambda x, y: loss_of(net, x, y) + ops.reduce_mean(net.more * net.more),
            None,
            [net.w, net.v, net.b, net.more],
        )

        def step(x, y):
            loss, (w, v, b, more) = gradient(x, y)
            one((w, v))
            other((b, more))
            ops.assign(net.mean, net.mean * 0.5 + net.w)
            return loss

        return step, [one, other]

    class More(Net):
        def __init__(self):
            super().__init__()
            self.more = Parameter(Tensor(np.arange(6.0)), name="more")
            self.mean = Parameter(Tensor(np.zeros((12, 8))), name="mean", requires_grad=False)

    eager, net = More(), More()
    step, _ = made(eager)
    for _ in range(3):
        step(Tensor(x), Tensor(y))
    step, optimizers = made(net)
    config = {"parallel_mode": "data_parallel", "gradients_mean": True, "enable_parallel_optimizer": True}
    plan = compile(step, x[:8], y[:8], device_num=2, **config)
    assert dict(plan.owners) == {"w": 0, "v": 1, "b": 0, "more": 1}
    with Session(plan, net, optimizers) as session:
        for _ in range(3):
            session.train([(x, y)], 1)
        for p in eager.get_parameters():
            np.testing.assert_allclose(session.parameters()[p.name], p.asnumpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.quick(1)
@each_of(
    ("number", "attribute", "value", "on_host"),
    (0, "target", "CPU", {"w", "moments.w", "linear.w"}),
    (1, "use_offload", True, {f"moment{n}.{name}" for n in (1, 2) for name in "bv"}),
)
def test_one_optimizer_on_the_host_and_one_on_the_device(number, attribute, value, on_host):
    """Its Parameters and states, or its moments alone."""
    x, y = batch()

    def placed(net):
        step, optimizers = two_losses(net)
        setattr(optimizers[number], attribute, value)
        return step, optimizers

    results, parameters = steps_on_one_device(two_losses, x, y)
    found, values, plan = steps_on_ranks(placed, x, y, SPLIT, 8)
    assert_same(results, found)
    assert_same(parameters, values)
    lasting = {"w", "b", "v"} | {s.name for s in plan.states if s.parameter}
    assert lasting & set(plan.host) == on_host


def both_for(net, one, other):
    gradients = [value_and_grad(lambda x, y: loss_of(net, x, y), None, o.parameters) for o in (one, other)]

    def step(x, y):
        (loss, grads), (_, more) = gradients[0](x, y), gradients[1](x, y)
        one(grads)
        other(more)
        return loss

    return step


@pytest.mark.parametrize("how", ["the same", "shared", "scaled"])
def test_what_several_optimizers_cannot_do_is_refused(how):
    x, y = batch()
    net = Net()
    one = nn.SGD([net.w, net.v], 0.1)
    other = {"the same": one, "shared": nn.Adam([net.w, net.v], 0.1)}.get(how)
    if how == "scaled":
        scaler = FixedLossScaleManager(8.0, drop_overflow_update=True)
        one, other = nn.SGD([net.w], 0.1), nn.SGD([net.v], 0.1, loss_scaler=scaler)
    words = {"the same": "a second step of the same optimizer", "shared": "for 'w'", "scaled": "loss_scaler"}[how]
    with pytest.raises(NotBuiltYet, match=words):
        compile(both_for(net, one, other), x, y, device_num=2, dataset_strategy="full_batch")


def test_what_comes_from_new_values_is_not_differentiated_or_given_to_an_optimizer():
    x, y = batch()
    net = Net()
    one, other = nn.SGD([net.w], 0.1), nn.SGD([net.v], 0.1)
    gradient = value_and_grad(lambda x, y: loss_of(net, x, y), None, one.parameters)
    further = value_and_grad(lambda x, y: loss_of(net, x, y), None, other.parameters)

    def differentiated(x, y):
        loss, grads = gradient(x, y)
        one(grads)
        other(further(x, y)[1])  # the network with the new w
        return loss

    def given(x, y):
        loss, grads = gradient(x, y)
        _, (v,) = further(x, y)
        one(grads)
        other((v * ops.reduce_sum(net.w),))
        return loss

    for step, words in ((differentiated, "after an optimizer's step"), (given, "before any optimizer's step")):
        with pytest.raises(TraceError, match=words):
            compile_program(step, x, y, device_num=2, dataset_strategy="full_batch")


def test_a_new_value_is_not_read_where_an_overflow_may_skip_the_step():
    x, y = batch()
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step_cell = nn.TrainOneStepWithLossScaleCell(net, optimizer, Tensor(np.float32(8.0)))
    gradient = value_and_grad(lambda x, y: loss_of(net, x, y), None, optimizer.parameters)

    def step(x, y):
        loss, grads = gradient(x, y)
        if not step_cell.process_loss_scale(step_cell.get_overflow_status(False, grads)):
            optimizer(grads)
        return loss, net.w

    with pytest.raises(NotBuiltYet, match="'w' is read after an optimizer's step"):
        compile(step, x, y, device_num=2, dataset_strategy="full_batch")
