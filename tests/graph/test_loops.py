"""`while` on a tensor's value in a compiled network: one turn is written down, and runs as often as the numbers say.
Expected: what the same Python does on one device, where nothing is compiled.
"""

import numpy as np
import pytest

from parallel_lab import Parameter, Simulator, Tensor, TraceError, compile, nn, ops, value_and_grad
from parallel_lab.base.errors import NotBuiltYet
from parallel_lab.graph.plan import Plan
from tests.graph.one_device import check_equal, draw, plan_of
from tests.graph.test_branches import Sides, X, Y, loss_of
from tests.graph.test_training_step import batch, stepping, steps_on_one_device, steps_on_ranks
from tests.nets import cell
from tests.refusals import refused


def halves(net, h):
    while ops.abs(h).max() > net.at:
        h = h * 0.5
    return h


def counts(net, h):
    """Reads a Parameter in every turn, with messages; its gradients are added up over the turns."""
    i = 0
    while h.sum() + i < net.at:
        h = ops.tanh(net.other(h, net.v)) + h
        i = i + 1
    return h * (i + 1)


def newton(net, h):
    """A square root; one of the two conditions is on a number that the turns count."""
    y, n = h * 0 + 1.0, 0
    while ops.abs(y * y - ops.abs(h) - 1).max() > 1e-6 * net.at and n < 6:
        y = 0.5 * (y + (ops.abs(h) + 1) / y)
        n += 1
    return y


def nested(net, h):
    i = 0
    while h.max() > net.at:
        if i % 2 == 0:
            h = h - 1.0
        elif i > 2:
            h = h * 0.7
        else:
            h = h * 0.8
        while h.min() < -4.0:
            h = h * 0.9
        i += 1
    return h


def breaks(net, h):
    n = 0
    while n < 5:
        h = h * 0.8
        if h.max() < net.at:
            break
        n = n + 1
    return h + n


def sets_items(net, h):
    h = h * 1
    while h.max() > net.at:
        h[0] = h[1] * 0.5
        h[1:] = h[1:] * 0.6
    return h


def pairs(net, h):
    held, table = [h, h * 2], {"n": 0}
    while held[0].max() > net.at:
        held, table = [held[1] * 0.4, held[0]], {"n": table["n"] + 1}
    return held[0] + held[1] * table["n"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("at", [0.5, 2.0, 40.0])
@pytest.mark.parametrize("body", [halves, counts, newton, nested, breaks, sets_items, pairs], ids=lambda f: f.__name__)
def test_a_network_with_a_while_equals_one_device(body, at):
    """Forward and gradient, for no, few and many turns."""
    plan = check_equal(Sides(body, at), X, Y)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "Loop(" in plan.text()


@pytest.mark.exhaustive
def test_a_search_gives_the_operators_of_a_turn_strategies():
    net = Sides(counts, 2.0)
    net.other = ops.MatMul()
    check_equal(net, X, Y, parallel_mode="auto_parallel")


def shrinking(net):
    """Gradients are halved until their norm is small, in the update program; turns are counted in a Parameter."""
    optimizer = nn.Adam(net.trainable_params(), 0.02)
    turns = Parameter(Tensor(0), name="turns", requires_grad=False)
    gradient = value_and_grad(loss_of(net), None, optimizer.parameters)

    def shrunk(x, y):
        loss, (w, b, v) = gradient(x, y)
        while ops.reduce_sum(w * w) + ops.reduce_sum(v * v) > 0.05:
            w, v = w * 0.5, v * 0.5
            ops.assign_add(turns, 1)
        optimizer((w, b, v))
        return loss + turns

    return shrunk, optimizer


def iterating(net):
    """A loop in the function that is differentiated, which writes a Parameter in each turn."""
    turns = Parameter(Tensor(0.0), name="turns", requires_grad=False)

    def forward(x, y):
        h = net.fc1(x, net.w) + net.b
        while ops.abs(h).mean() > 0.5:
            h = ops.tanh(h) * 0.9
            ops.assign_add(turns, 1.0)
        return ops.reduce_mean(ops.square(net.fc2(h, net.v) - y)) + turns * 0.1

    return stepping(nn.SGD(net.trainable_params(), 0.1), forward)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "settings", [{}, {"parallel_mode": "auto_parallel"}, {"enable_parallel_optimizer": True}], ids=str
)
@pytest.mark.parametrize("make_step", [shrinking, iterating], ids=lambda f: f.__name__)
def test_a_training_step_with_a_while_equals_one_device(make_step, settings):
    strategies, devices = ((((2, 2), (2, 1)), ((4, 1), (1, 2))), 8) if settings == {} else ((None, None), 4)
    settings |= {"parallel_optimizer_threshold": 0} if "enable_parallel_optimizer" in settings else {}
    fused = {"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}} if settings == {} else {}
    want, parameters = steps_on_one_device(make_step, *batch(), 4)
    found, trained, _ = steps_on_ranks(make_step, *batch(), strategies, devices, 4, **settings, **fused)
    np.testing.assert_allclose([float(x) for x in found], [float(x) for x in want], rtol=1e-9)
    for name, value in parameters.items():
        np.testing.assert_allclose(trained[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


class Sums(nn.Cell):
    """Sums over all ranks until the sum is large: messages in a loop, where every rank runs the whole network."""

    def construct(self, x):
        while x.max() < 100:
            x = ops.AllReduce()(x)
        return x


def test_ranks_that_turn_alike_send_in_each_turn():
    x = np.abs(draw(4, 8)) + 0.5
    plan = compile(Sums(), np.full((1, 8), 1.0), device_num=4, parallel_mode="data_parallel")
    simulator, even = Simulator(plan, {}), np.repeat(x[:1], 4, axis=0)
    simulator.run_step(even)
    want = x[:1]
    while want.max() < 100:
        want = want * 4
    np.testing.assert_allclose(simulator.envs[3][plan.outputs[0]], want)


def test_micro_batches_turn_as_often_as_each_needs():
    net = Sides(halves, 0.5)
    plan = plan_of(net, X, Y, grad_accumulation_step=2)
    simulator = Simulator(plan, {n: p.asnumpy() for n, p in net.parameters_dict().items()})
    loss = simulator.run_step(X, Y)
    parts = [check_equal(net, X[rows], Y[rows], parallel_mode="stand_alone") for rows in (slice(8), slice(8, 16))]
    alone = [Simulator(p, {n: q.asnumpy() for n, q in net.parameters_dict().items()}) for p in parts]
    losses = [s.run_step(X[rows], Y[rows]) for s, rows in zip(alone, (slice(8), slice(8, 16)), strict=True)]
    np.testing.assert_allclose(loss, sum(losses), rtol=1e-9)


def grows(net, h):
    while h.sum() > 0:
        h = ops.concat((h, h))
    return h


def becomes_text(net, h):
    name = None
    while h.sum() > 0:
        name, h = "a", h - 1.0
    return h if name is None else -h


test_what_a_turn_cannot_hand_on_is_refused = refused(
    (grows, r"'h' is shape \(16, 8\), float64 before a turn of the loop"),
    (becomes_text, "'name' is None before a turn of the loop, and 'a' after it"),
    by=lambda body: plan_of(Sides(body, 0), X, Y),
    error=TraceError,
)


def sends_to_decide(net, x):
    while ops.AllReduce()(x).max() < 100:
        x = x * 2
    return x


def test_a_condition_that_sends_is_asked_as_often_as_python_asks_it():
    """Once more than there are turns; another time was left over from finding out that there is a loop."""
    x = np.full((4, 8), 1.0)
    plan = compile(cell(sends_to_decide), x[:1], device_num=4, parallel_mode="data_parallel")
    assert [i.kind for _, i in plan.instructions()].count("all_reduce") == 1
    simulator = Simulator(plan, {})
    simulator.run_step(x)
    np.testing.assert_array_equal(simulator.envs[0][plan.outputs[0]], x[:1] * 32)  # 4 * 32 > 100 > 4 * 16


def gradients_in_turns(net):
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    gradient = value_and_grad(loss_of(net), None, optimizer.parameters)

    def step(x, y):
        loss = ops.reduce_mean(net(x))
        while loss > 0.5:
            loss, _ = gradient(x, y)
        return loss

    return step, optimizer


def steps_in_turns(net):
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    gradient = value_and_grad(loss_of(net), None, optimizer.parameters)

    def step(x, y):
        loss, gradients = gradient(x, y)
        while loss > 0.5:
            optimizer(gradients)
            loss = loss * 0.5
        return loss

    return step, optimizer


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("make_step", "words"),
    [(gradients_in_turns, "gradients are asked for in a loop"), (steps_in_turns, "an optimizer's step in a loop")],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_loop_makes_no_gradients_and_no_steps(make_step, words):
    with pytest.raises(NotBuiltYet, match=words):
        steps_on_ranks(make_step, *batch(), (None, None), 4, 1)
