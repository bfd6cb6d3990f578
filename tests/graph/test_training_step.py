"""Functions that are whole training steps: gradients, operators on them, optimizer inside. All equal one device."""

import numpy as np
import pytest

from parallel_lab import ParallelLabError, TraceError, nn, ops, value_and_grad
from parallel_lab.graph.compiler import compile_program
from parallel_lab.graph.forms import fill_form
from parallel_lab.nn.tensor.functional import GradOperation
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import initial_values
from tests.crossed import each_of

DTYPE = np.float64


class Net(nn.Cell):
    def __init__(self, strategies=(None, None)):
        super().__init__()
        rng = np.random.default_rng(3)
        self.w = Parameter(Tensor(rng.normal(size=(12, 8))), name="w")
        self.b = Parameter(Tensor(rng.normal(size=8)), name="b")
        self.v = Parameter(Tensor(rng.normal(size=(8, 16))), name="v")
        self.fc1, self.add, self.act, self.fc2 = ops.MatMul(), ops.Add(), ops.Tanh(), ops.MatMul()
        for prim, strategy in zip((self.fc1, self.fc2), strategies, strict=True):
            if strategy is not None:
                prim.shard(strategy)

    def construct(self, x):
        return self.fc2(self.act(self.add(self.fc1(x, self.w), self.b)), self.v)


def batch(rows=16):
    rng = np.random.default_rng(5)
    return rng.normal(size=(rows, 12)), rng.normal(size=(rows, 16))


def steps_on_one_device(make_step, x, y, count=3):
    """Results of `count` eager steps, and the parameters after them."""
    net = Net()
    step, _ = make_step(net)
    results = [step(Tensor(x), Tensor(y)) for _ in range(count)]
    return results, {p.name: p.asnumpy() for p in net.trainable_params()}


def steps_on_ranks(make_step, x, y, strategies, device_num, count=3, **settings):
    """The same steps compiled and simulated."""
    net = Net(strategies)
    step, optimizer = make_step(net)
    made = compile_program(step, x, y, device_num=device_num, dataset_strategy="full_batch", **settings)
    plan = made.plan
    simulator = Simulator(plan, initial_values(plan, made.parameters, optimizer if plan.states else None))
    results = []
    for number in range(count):
        simulator.run_step(x, y, step=number)
        results.append(fill_form(made.form, [simulator.full(name) for name in plan.outputs]))
    return results, {p.name: simulator.full(p.name) for p in plan.parameters}, plan


def stepping(optimizer, forward):
    """The step that gives the optimizer the gradients of `forward` as they are."""
    grad_fn = value_and_grad(forward, None, optimizer.parameters)

    def step(x, y):
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        return loss

    return step, optimizer


def plain_step(net):
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    return stepping(optimizer, lambda x, y: ops.reduce_mean(ops.square(net(x) - y)))


def clipped_step(net):
    """Gradients are scaled to a global norm of 1 by hand, and the norm is returned with the logits."""
    optimizer = nn.Adam(net.trainable_params(), 0.01)

    def forward(x, y):
        logits = net(x)
        return ops.reduce_mean(ops.square(logits - y)), logits

    grad_fn = value_and_grad(forward, None, optimizer.parameters, has_aux=True)

    def step(x, y):
        (loss, logits), grads = grad_fn(x, y)
        squares = [ops.reduce_sum(ops.square(g)) for g in grads]
        norm = ops.sqrt(squares[0] + squares[1] + squares[2])
        optimizer(tuple(g / ops.maximum(norm, 1.0) for g in grads))
        return {"loss": loss, "norm": norm, "more": [logits, None, 3]}

    return step, optimizer


def reshaped_step(net):
    """Gradients go through a reshape and a transpose, and are updated with what comes back."""
    optimizer = nn.SGD(net.trainable_params(), 0.1, momentum=0.5)
    grad_fn = value_and_grad(lambda x, y: ops.reduce_sum(ops.abs(net(x) - y)), None, optimizer.parameters)

    def step(x, y):
        loss, (w, b, v) = grad_fn(x, y)
        w = ops.transpose(ops.transpose(w, (1, 0)) * 0.5, (1, 0))
        v = ops.reshape(ops.reshape(v, (-1,)) * 0.25, (8, 16))
        optimizer([w, b - ops.reduce_mean(b), v])
        return loss

    return step, optimizer


STRATEGIES = [(None, None), (((2, 4), (4, 1)), ((2, 4), (4, 1))), (((1, 1), (1, 8)), ((1, 8), (8, 1)))]
STRATEGIES += [(((4, 1), (1, 2)), ((2, 2), (2, 2)))]


def assert_same(one, many):
    if isinstance(one, dict):
        assert one.keys() == many.keys()
        for key in one:
            assert_same(one[key], many[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(many)
        for a, b in zip(one, many, strict=True):
            assert_same(a, b)
    elif one is None or isinstance(one, int):
        assert one == many
    else:
        want = one.asnumpy() if isinstance(one, Tensor) else one
        np.testing.assert_allclose(np.asarray(many), want, rtol=1e-10, atol=1e-12)


@pytest.mark.quick(1)
@pytest.mark.parametrize("make_step", [plain_step, clipped_step, reshaped_step])
@pytest.mark.parametrize("strategies", STRATEGIES)
def test_training_step_equals_one_device(make_step, strategies):
    x, y = batch()
    losses, parameters = steps_on_one_device(make_step, x, y)
    found, values, _ = steps_on_ranks(make_step, x, y, strategies, 8)
    assert_same(losses, found)
    assert_same(parameters, values)


def test_gradients_are_returned_whole_when_no_optimizer_is_called():
    x, y = batch()

    def make_step(net):
        grad_fn = value_and_grad(lambda x, y: ops.reduce_mean(ops.square(net(x) - y)), (0,), net.trainable_params())
        return (lambda x, y: grad_fn(x, y)), None

    one, _ = steps_on_one_device(make_step, x, y, count=1)
    many, _, plan = steps_on_ranks(make_step, x, y, STRATEGIES[1], 8, count=1)
    assert_same(one, many)
    assert {target for target, _ in plan.gradients} == {"x", "w", "b", "v"}


def test_parameters_that_the_loss_does_not_use_get_zero_gradients():
    x, y = batch()

    def make_step(net):
        # zeros as gradients, so the unused one decays
        optimizer = nn.SGD(net.trainable_params(), 0.1, weight_decay=0.5)
        return stepping(optimizer, lambda x, y: ops.reduce_mean(net.fc1(x, net.w)))

    one, parameters = steps_on_one_device(make_step, x, y)
    many, values, _ = steps_on_ranks(make_step, x, y, STRATEGIES[1], 8)
    assert_same(one, many)
    assert_same(parameters, values)


def test_a_loss_that_uses_no_parameter_has_zero_gradients_for_all():
    """It was refused, as a network that is to be trained is."""
    x, y = batch()

    def make_step(net):
        return value_and_grad(lambda x, y: ops.reduce_mean(ops.square(x)), 1, net.trainable_params()), None

    one, _ = steps_on_one_device(make_step, x, y, count=1)
    many, _, _ = steps_on_ranks(make_step, x, y, STRATEGIES[1], 8, count=1)
    assert_same(one, many)
    assert not many[0][1][0].any() and not many[0][1][1][0].any()


def test_accumulators_take_gradients_and_are_read_anew():
    x, y = batch()

    def make_step(net):
        params = net.trainable_params()
        sums = [Parameter(Tensor(np.zeros(p.shape)), name=f"sum.{p.name}") for p in params]
        grad_fn = value_and_grad(lambda x, y: ops.reduce_mean(ops.square(net(x) - y)), None, params)

        def step(x, y):
            loss, grads = grad_fn(x, y)
            for total, g in zip(sums, grads, strict=True):
                ops.assign(total, total + g)
            return loss, [total * 2.0 for total in sums]

        return step, None

    one, _ = steps_on_one_device(make_step, x, y)
    many, values, _ = steps_on_ranks(make_step, x, y, STRATEGIES[1], 8)
    assert_same(one, many)
    assert_same([2 * values[f"sum.{n}"] for n in ("w", "b", "v")], many[-1][1])


def two_losses(net):
    """Wide&Deep's form: each loss is differentiated for weights of its own, the network run for each."""
    first = value_and_grad(lambda x, y: ops.reduce_mean(ops.square(net(x) - y)), None, [net.w, net.b])
    second = value_and_grad(lambda x, y: ops.reduce_sum(ops.abs(net(x))) / 64.0, None, [net.v])
    return first, second


def updated_by_two(net):
    first, second = two_losses(net)
    optimizer = nn.Adam([net.w, net.b, net.v], 0.01)

    def step(x, y):
        (one, by_first), (two, by_second) = first(x, y), second(x, y)
        optimizer((*by_first, *by_second))
        return one, two

    return step, optimizer


def updated_by_the_sum(net):
    """The same weights, and the input, twice: a gradient of each is used."""
    weights = net.trainable_params()
    optimizer = nn.Momentum(weights, 0.05, 0.9)
    first = value_and_grad(lambda x, y: ops.reduce_mean(ops.square(net(x) - y)), 0, weights)
    second = value_and_grad(lambda x: ops.reduce_mean(ops.sin(net.fc1(x, net.w))), 0, weights)

    def step(x, y):
        (one, (by_x, by_first)), (two, (again, by_second)) = first(x, y), second(x)
        optimizer(tuple(a + 0.5 * b for a, b in zip(by_first, by_second, strict=True)))
        return one, two, by_x, again

    return step, optimizer


@pytest.mark.quick(1)
@pytest.mark.parametrize("make_step", [updated_by_two, updated_by_the_sum])
@pytest.mark.parametrize("strategies", STRATEGIES)
@each_of("settings", {}, {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0})
def test_gradients_are_asked_for_twice(make_step, strategies, settings):
    """A value that both losses use is differentiated for each alone: sums of both would be wrong."""
    x, y = batch()
    losses, parameters = steps_on_one_device(make_step, x, y)
    found, values, _ = steps_on_ranks(make_step, x, y, strategies, 8, **settings)
    assert_same(losses, found)
    assert_same(parameters, values)


def of_a_gradient(net):
    inner = value_and_grad(lambda x: ops.reduce_mean(net(x)), 0)
    return lambda x, y: value_and_grad(lambda x: ops.reduce_sum(inner(x)[1]), 0)(x)


def from_outside(net):
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    return lambda x, y: (ops.reduce_mean(net(x)), optimizer([net.w * 1.0, net.b * 1.0, net.v * 1.0]))[0]


def of_a_middle_value(net):
    return lambda x, y: value_and_grad(lambda m: ops.reduce_mean(net(m)), 0)(x * 2.0)


@each_of(
    ("make", "kind", "words"),
    (of_a_gradient, TraceError, "not from gradients"),
    (from_outside, TraceError, "value_and_grad in the same"),
    (of_a_middle_value, TraceError, "inputs of the"),
)
def test_what_a_compiled_step_cannot_be_is_refused_with_a_reason(make, kind, words):
    x, y = batch()
    with pytest.raises(kind, match=words) as caught:
        compile_program(make(Net()), x, y, device_num=8, dataset_strategy="full_batch")
    assert isinstance(caught.value, ParallelLabError)


# ---- by hand in pipeline stages, as PanGu-alpha's step is written ----


class Half(nn.Cell):
    """tanh(x w), w split along a dim among the two ranks of a stage."""

    def __init__(self, stage, seed, strategy):
        super().__init__()
        self.w = Parameter(Tensor(np.random.default_rng(seed).normal(size=(12, 12))), name=f"w{stage}")
        self.product, self.pipeline_stage = ops.MatMul().shard(strategy), stage

    def construct(self, x):
        return ops.tanh(self.product(x, self.w))


class Halves(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = Half(0, 1, ((1, 1), (1, 2))), Half(1, 2, ((1, 2), (2, 1)))

    def construct(self, x, y):
        return ops.reduce_mean(ops.square(self.second(self.first(x)) - y))


def summed_step(net, ranks):
    """Gradients of micro-batches are read in `accu_grads`, and divided by their norm, a sum over ranks and stages."""
    network = nn.PipelineCell(net, 4)
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    sums = optimizer.parameters.clone("accu_grads", "zeros")
    over_ranks = ops.AllReduce() if ranks > 1 else lambda x: x

    def step(x, y):
        loss = network(x, y)
        gradient = GradOperation(get_by_list=True, sens_param=True)(network, optimizer.parameters)
        grads = gradient(x, y, ops.ones_like(loss) * 0.25)
        grads = sums if ranks > 1 else grads
        norm = ops.sqrt(over_ranks(sum(ops.reduce_sum(ops.square(g)) for g in grads)))
        count = over_ranks(Tensor(np.ones(1)))
        optimizer([g / norm for g in grads])
        for one in sums:
            ops.assign(one, ops.zeros_like(one))
        return loss / 4, norm, count * (4 / ranks)

    return step, optimizer


def test_a_step_by_hand_in_pipeline_stages_equals_one_device():
    """Sums over all ranks add up what the stages have of their own; what none has made counts once per rank."""
    x, y = np.random.default_rng(5).normal(size=(2, 16, 12))
    found = []
    for ranks, stages in ((1, 1), (4, 2)):
        net = Halves()
        step, optimizer = summed_step(net, ranks)
        settings = {"device_num": ranks, "pipeline_stages": stages, "dataset_strategy": "full_batch"}
        if ranks == 1:
            net.first.pipeline_stage = net.second.pipeline_stage = 0
            found.append([[np.asarray(v).item() for v in step(Tensor(x), Tensor(y))] for _ in range(3)])
            continue
        made = compile_program(step, x, y, parallel_mode="semi_auto_parallel", **settings)
        simulator = Simulator(made.plan, initial_values(made.plan, made.parameters, optimizer))
        found.append([])
        for number in range(3):
            simulator.run_step(x, y, step=number)
            found[1].append([simulator.full(name).item() for name in made.plan.outputs])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)
