"""`if` on a tensor's value in a compiled network: both sides are written down, and one runs. Expected: what the same
Python does on one device, where nothing is compiled.
"""

import numpy as np
import pytest

from parallel_lab import Parameter, Simulator, Tensor, TraceError, compile, nn, ops, value_and_grad
from parallel_lab.base.cluster import get_cluster
from parallel_lab.base.errors import DeadlockError, NotBuiltYet
from parallel_lab.cost import predict_memory, predict_timeline
from parallel_lab.graph.plan import Plan
from tests.crossed import each_of
from tests.graph.one_device import check_equal, draw, plan_of
from tests.graph.test_training_step import batch, stepping, steps_on_one_device, steps_on_ranks

X, Y = draw(16, 32, seed=1), draw(16, 8, seed=2)


class Sides(nn.Cell):
    """A product, and a body that takes sides; `at`: the bound that decides."""

    def __init__(self, body, at, cuts=((2, 4), (4, 1))):
        super().__init__()
        self.w = Parameter(Tensor(draw(32, 8, seed=3)), "w")
        self.v = Parameter(Tensor(draw(8, 8, seed=4)), "v")
        self.fc, self.other = ops.MatMul().shard(cuts), ops.MatMul().shard(((4, 1), (1, 2)))
        self.body, self.at = body, at

    def construct(self, x):
        return self.body(self, self.fc(x, self.w))


def both(net, h):
    if h.sum() > net.at:
        y = ops.tanh(h)
        y = y * 2
    else:
        y = net.other(h, net.v)
    return y


def no_else(net, h):
    if h.sum() > net.at:
        h = net.other(h, net.v)
    return h


def returns(net, h):
    if h.sum() > net.at:
        return net.other(h, net.v)
    h = h + 1
    if h.max() < net.at:
        return h
    return ops.tanh(h)


def nested(net, h):
    if h.sum() > net.at:
        y = h * 2
        if h.max() > 1 and not h.min() > 0:
            y = net.other(y, net.v)
        z = y
    else:
        y, z = h, net.other(h, net.v)
    return y + z * 3


def returns_inside(net, h):
    if h.sum() > net.at:
        if h.max() > 1e9:
            return h
        h = net.other(h, net.v)
    return ops.tanh(h)


def expression(net, h):
    scale = 2.0 if h.sum() > net.at else 3.0 if h.max() > 1 else 4.0
    return (net.other(h, net.v) if h.max() > net.at else h) * scale


def helper(h, at):
    return ops.tanh(h) if h.mean() > at else h


def called(net, h):
    return helper(helper(h, net.at), -net.at)


def breaks(net, h):
    for _ in range(4):
        if h.sum() > net.at:
            break
        h = h + 0.5
    return net.other(h, net.v)


def items(net, h):
    h = h * 1
    if h.sum() > net.at:
        h[0] = 5.0
    else:
        h[1:3] = h[1:3] * 2
    return h


def parts(net, h):
    pair, table = [h, 1], {"a": h}
    if h.sum() > net.at:
        pair, table = [h * 2, 3], {"a": net.other(h, net.v)}
    return pair[0] * pair[1] + table["a"]


BODIES = (both, no_else, returns, nested, returns_inside, expression, called, breaks, items, parts)


@pytest.mark.quick(3)
@pytest.mark.parametrize("at", [-1e6, 0.3, 1e6])
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_a_network_with_an_if_equals_one_device(body, at):
    """Forward and gradient, whichever side is taken."""
    plan = check_equal(Sides(body, at), X, Y)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "{if: " in plan.text()


@pytest.mark.quick(1)
@pytest.mark.parametrize("search", ["dynamic_programming", "recursive_programming", "sharding_propagation"])
def test_a_search_gives_both_sides_strategies(search):
    net = Sides(nested, 0.3)
    net.other = ops.MatMul()
    check_equal(net, X, Y, parallel_mode="auto_parallel", search_mode=search)


# ---- training steps ----


def loss_of(net):
    return lambda x, y: ops.reduce_mean(ops.square(net(x) - y))


def accumulating(net):
    """Gradients of two steps are added up by hand, and applied with every second one."""
    optimizer = nn.SGD(net.trainable_params(), 0.1, momentum=0.5)
    zeros = [Tensor(np.zeros(p.shape)) for p in net.trainable_params()]
    total = [Parameter(zero, name=f"total{n}", requires_grad=False) for n, zero in enumerate(zeros)]
    count = Parameter(Tensor(0), name="count", requires_grad=False)
    gradient = value_and_grad(loss_of(net), None, optimizer.parameters)

    def step(x, y):
        loss, gradients = gradient(x, y)
        for part, g in zip(total, gradients, strict=True):
            ops.assign_add(part, g / 2)
        ops.assign_add(count, 1)
        if count % 2 == 0:
            optimizer(tuple(total))
            for part in total:
                ops.assign(part, ops.zeros_like(part))
        return loss

    return step, optimizer


def clipping(net):
    """Gradients are scaled where their norm is large; the step is left out where the loss is small."""
    optimizer = nn.Adam(net.trainable_params(), 0.02)
    gradient = value_and_grad(loss_of(net), None, optimizer.parameters)

    def step(x, y):
        loss, gradients = gradient(x, y)
        if loss > 6.9:
            norm = ops.sqrt(sum(ops.reduce_sum(g * g) for g in gradients))
            if norm > 0.5:
                gradients = tuple(g / norm for g in gradients)
            optimizer(gradients)
        return loss

    return step, optimizer


def averaging(net):
    """An average of weights after every second step."""
    average = Parameter(Tensor(np.zeros((12, 8))), name="average", requires_grad=False)
    count = Parameter(Tensor(0), name="count", requires_grad=False)
    step, optimizer = stepping(nn.SGD(net.trainable_params(), 0.1), loss_of(net))

    def averaged(x, y):
        loss = step(x, y)
        ops.assign_add(count, 1)
        if count % 2 == 1:
            ops.assign(average, average * 0.5 + net.w * 0.5)
        return loss + ops.reduce_sum(average)

    return averaged, optimizer


def taking_sides(net):
    """An `if` in the function that is differentiated, which is itself called on one side of another."""
    optimizer = nn.SGD(net.trainable_params(), 0.05)

    def forward(x, y):
        h = net.fc1(x, net.w) + net.b
        h = ops.tanh(h) if h.mean() > 0 else ops.sin(h) * 2
        return ops.reduce_mean(ops.square(net.fc2(h, net.v) - y))

    gradient = value_and_grad(forward, None, optimizer.parameters)

    def step(x, y):
        loss = ops.reduce_mean(ops.abs(net(x)))
        if loss > 1.5:
            loss, gradients = gradient(x, y)
            optimizer(gradients)
        return loss

    return step, optimizer


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "settings", [{}, {"parallel_mode": "auto_parallel"}, {"enable_parallel_optimizer": True}], ids=str
)
@pytest.mark.parametrize("make_step", [accumulating, clipping, averaging, taking_sides], ids=lambda f: f.__name__)
def test_a_training_step_with_an_if_equals_one_device(make_step, settings):
    """Losses and Parameters of five steps; some of them take the other side."""
    strategies, devices = ((((2, 2), (2, 1)), ((4, 1), (1, 2))), 8) if settings == {} else ((None, None), 4)
    settings |= {"parallel_optimizer_threshold": 0} if "enable_parallel_optimizer" in settings else {}
    want, parameters = steps_on_one_device(make_step, *batch(), 5)
    found, trained, plan = steps_on_ranks(make_step, *batch(), strategies, devices, 5, **settings)
    np.testing.assert_allclose([float(x) for x in found], [float(x) for x in want], rtol=1e-9)
    for name, value in parameters.items():
        np.testing.assert_allclose(trained[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert Plan.from_dict(plan.to_dict()) == plan


# ---- ranks ----


class Sends(nn.Cell):
    """Sums over all ranks where its own rows have a positive mean."""

    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, x):
        if x.mean() > 0:
            x = self.all_reduce(x)
        return x * 2


@pytest.mark.parametrize("sign", [1, -1])
def test_ranks_that_decide_alike_send_on_one_side(sign):
    x = sign * np.abs(draw(8, 4))
    plan = compile(Sends(), x[:2], device_num=4, parallel_mode="data_parallel")
    simulator = Simulator(plan, {})
    simulator.run_step(x)
    parts = x.reshape(4, 2, 4)
    for rank in range(4):
        want = 2 * (parts.sum(axis=0) if sign > 0 else parts[rank])
        np.testing.assert_allclose(simulator.envs[rank][plan.outputs[0]], want)


def test_ranks_that_decide_otherwise_are_named_with_the_line():
    plan = compile(Sends(), np.ones((2, 4)), device_num=4, parallel_mode="data_parallel")
    x = np.ones((8, 4))
    x[6:] = -1
    with pytest.raises(DeadlockError, match=r"all_reduce.*test_branches\.py:\d+"):
        Simulator(plan, {}).run_step(x)


# ---- what is predicted, and what is refused ----


def test_predictions_count_the_dearer_side():
    """As for the network that has only this side, up to the bytes and time of the condition and of `branch`."""
    taken, never = plan_of(Sides(no_else, 0.3), X, Y), plan_of(Sides(lambda net, h: h, 0.3), X, Y)
    only = plan_of(Sides(lambda net, h: net.other(h, net.v), 0.3), X, Y)
    cluster = get_cluster("gpu_node")
    times = [predict_timeline(plan, cluster).end_s for plan in (never, only, taken)]
    assert times[0] < times[1] <= times[2] < 2 * times[1]
    peaks = [predict_memory(plan).peak_bytes for plan in (only, taken)]
    assert peaks[0] <= peaks[1] < 2 * peaks[0]


def other_shape(net, h):
    if h.sum() > 0:
        h = h[:4]
    return h


def one_sided(net, h):
    if h.sum() > 0:
        y = h
    return y


def returns_once(net, h):
    if h.sum() > 0:
        return h


def other_kind(net, h):
    name = "a"
    if h.sum() > 0:
        name = "b"
    return h if name == "a" else h * 2


@each_of(
    ("body", "words"),
    (other_shape, r"'h' is shape \(4, 8\), float64 where the condition holds, and shape \(16, 8\), float64"),
    (one_sided, "'y' is not set on each side of an if"),
    (returns_once, "returns a value on one side of an if only"),
    (other_kind, "'name' is 'b' where the condition holds, and 'a' where it does not"),
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_sides_that_no_tensor_can_stand_for_are_refused_with_the_line(body, words):
    with pytest.raises(TraceError, match=words) as caught:
        plan_of(Sides(body, 0), X, Y)
    assert str(caught.value).startswith("test_branches.py:")


def test_an_if_without_source_is_refused():
    scope = {}
    exec("def body(net, h):\n    return h if h.sum() > 0 else -h", scope)
    with pytest.raises(TraceError, match="a truth test"):
        plan_of(Sides(scope["body"], 0), X, Y)


def test_a_side_within_one_stage_only():
    """In a pipeline a condition may come from another stage, what a side makes may not."""

    class Staged(nn.Cell):
        def __init__(self, across):
            super().__init__()
            self.first, self.second = nn.Dense(8, 8), nn.Dense(8, 8)
            self.first.pipeline_stage, self.second.pipeline_stage = 0, 1
            self.across = across

        def construct(self, x):
            mean = x.mean()
            y = x
            if self.across:
                if mean > 0:
                    y = self.second(self.first(y))
                return y
            y = self.first(y)
            if mean > 0:
                y = self.second(y)
            return y

    def compiled(across):
        net = nn.PipelineCell(nn.WithLossCell(Staged(across), nn.MSELoss()), 4)
        x = np.abs(draw(16, 8)).astype(np.float32)
        return compile(net, x, x, device_num=8, dataset_strategy="full_batch", pipeline_stages=2)

    assert len(compiled(False).stages) == 2
    with pytest.raises(NotBuiltYet, match="crosses from part 0 to 1"):
        compiled(True)


def prints_inside(net, h):
    if h.sum() > net.at:
        print(h)
    return h * 1


@pytest.mark.parametrize(("at", "shown"), [(-1e6, 8), (1e6, 0)])
def test_a_print_on_one_side_shows_what_runs(at, shown, capsys):
    """It showed the value on either side: that was made before the if."""
    net = Sides(prints_inside, at)
    simulator = Simulator(plan_of(net, X, Y), {n: p.asnumpy() for n, p in net.parameters_dict().items()})
    capsys.readouterr()
    simulator.run_step(X, Y)
    assert capsys.readouterr().out.count("printed at test_branches.py") == shown
