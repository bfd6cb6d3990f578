"""A small net, its plans, and what one device computes for it (the eager tape, float64)."""

import numpy as np

from parallel_lab import Tensor, compile, nn, value_and_grad
from parallel_lab.run.simulator import Simulator
from tests.recorded.nets import Quick

S = ((2, 4), (4, 1))


def draw(*shape, seed=7):
    return np.random.default_rng(seed).normal(size=shape)


X, Y = draw(16, 32, seed=1), draw(16, 16, seed=2)


def quick(*triple):
    net = Quick(32, 16, 16, *triple)
    for i, p in enumerate(net.trainable_params()):
        p._initial, p._data = None, draw(*p.shape, seed=10 + i)
    return net


def plan_of(net, *inputs, devices=8, loss=nn.MSELoss, cuts="full_batch", **settings):
    settings |= {"loss": None if loss is None else loss(), "device_num": devices, "dataset_strategy": cuts}
    return compile(net, *inputs, **settings)


def simulated(plan, net, *inputs):
    """(outputs of the first kind in full, gradients in full)."""
    table = net.parameters_dict() if hasattr(net, "parameters_dict") else net
    sim = Simulator(plan, {n: p.asnumpy() for n, p in table.items()})
    loss = sim.run_step(*inputs)
    return loss, {n: sim.full(g) for n, g in plan.gradients}


def alone(net, *inputs, loss=nn.MSELoss):
    """The same on one device, by the eager tape."""
    params = net.trainable_params()
    value, grads = value_and_grad(nn.WithLossCell(net, loss()), None, params)(*(Tensor(x) for x in inputs))
    return float(value), {p.name: g.asnumpy() for p, g in zip(params, grads, strict=True)}


def check_equal(net, *inputs, devices=8, **settings):
    plan = plan_of(net, *inputs, devices=devices, **settings)
    loss, grads = simulated(plan, net, *inputs)
    want_loss, want = alone(net, *inputs)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-10)
    for name, g in want.items():
        if name in grads:
            np.testing.assert_allclose(grads[name], g, rtol=1e-10, atol=1e-10, err_msg=name)
        else:
            assert not np.any(g), name
    return plan
