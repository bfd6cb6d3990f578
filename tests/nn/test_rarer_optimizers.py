"""The rarer optimizers, and centralized gradients: every step against a formula written with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import nn
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.refusals import refused

STEPS, RATE = 6, 0.1
RNG = np.random.default_rng(23)
START, GRADS = RNG.normal(size=(3, 4)), RNG.normal(size=(STEPS, 3, 4))
GRADS[3] = GRADS[2]  # a sign that stays the same twice


def adamax(b1=0.9, b2=0.999, eps=1e-8, decay=0.0):
    p, m, v, values = START, 0.0, np.zeros_like(START), []
    for t, g in enumerate(GRADS, 1):
        g = g + decay * p
        m, v = b1 * m + (1 - b1) * g, np.maximum(b2 * v, abs(g))
        p = p - RATE / (1 - b1**t) * m / (v + eps)
        values.append(p)
    return values


def proximal(accum=0.1, l1=0.0, l2=0.0):
    p, s, values = START, accum, []
    for g in GRADS:
        s = s + g**2
        q = p - RATE * g / (np.sqrt(s) + 1e-10)
        p = np.sign(q) / (1 + RATE * l2) * np.maximum(abs(q) - RATE * l1, 0)
        values.append(p)
    return values


def asgd(lambd=1e-4, alpha=0.75, decay=0.0):
    p, values = START, []
    for t, g in enumerate(GRADS, 1):
        eta = RATE / (1 + lambd * RATE * (t - 1)) ** alpha
        p = p * (1 - lambd * eta) - eta * (g + decay * p)
        values.append(p)
    return values


def amsgrad(b1=0.9, b2=0.999, eps=1e-8):
    p, m, v, top, values = START, 0.0, 0.0, 0.0, []
    for t, g in enumerate(GRADS, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        top = np.maximum(top, v)
        p = p - RATE * np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(top) + eps)
        values.append(p)
    return values


def centralized_momentum(keep=0.9, decay=0.3):
    """The mean of a row is taken from what weight decay was added to, as in MindSpore."""
    p, velocity, values = START, 0.0, []
    for g in GRADS:
        g = g + decay * p
        velocity = keep * velocity + g - g.mean(axis=1, keepdims=True)
        p = p - RATE * velocity
        values.append(p)
    return values


FORMULAS = {
    "adamax decay": (lambda p: nn.AdaMax(p, RATE, 0.7, 0.8, 1e-3, 0.2, 1.0), adamax(0.7, 0.8, 1e-3, 0.2)),
    "proximal": (lambda p: nn.ProximalAdagrad(p, learning_rate=RATE), proximal()),
    "proximal l1 l2": (lambda p: nn.ProximalAdagrad(p, 0.4, RATE, 0.9, 0.3), proximal(0.4, 0.9, 0.3)),
    "asgd all": (lambda p: nn.ASGD(p, RATE, 0.3, 0.5, weight_decay=0.2), asgd(0.3, 0.5, 0.2)),
    "amsgrad": (lambda p: nn.Adam(p, RATE, 0.6, 0.5, use_amsgrad=True), amsgrad(0.6, 0.5)),
    "offload": (lambda p: nn.AdamOffload(p, RATE, 0.6, 1e-9), None),
    "centralized": (
        lambda p: nn.Momentum([{"params": p, "grad_centralization": True}], RATE, 0.9, weight_decay=0.3),
        centralized_momentum(),
    ),
}


def steps(make):
    w = Parameter(Tensor(START), "w")
    optimizer, values = make([w]), []
    for g in GRADS:
        optimizer([g])
        values.append(w.asnumpy().copy())
    return values, optimizer


@each_of("name", *FORMULAS)
def test_steps_follow_the_formula(name):
    make, expected = FORMULAS[name]
    if expected is None:
        expected, _ = steps(lambda p: nn.Adam(p, RATE, 0.6, 1e-9))
    np.testing.assert_allclose(steps(make)[0], expected, rtol=1e-12, atol=1e-13)


def test_asgd_keeps_the_mean_of_the_parameters_from_step_t0_on():
    """With t0=2: ax is p up to step 3; then the mean of p of steps 3, 4, ... ."""
    values, optimizer = steps(lambda p: nn.ASGD(p, RATE, t0=2.0))
    np.testing.assert_allclose(optimizer.states["w"]["ax"], np.mean(values[3:], axis=0), rtol=1e-12)


def test_a_parameter_of_one_dim_is_not_centralized():
    b, same = Parameter(Tensor(START[0]), "b"), Parameter(Tensor(START[0]), "b")
    nn.SGD([{"params": [b], "grad_centralization": True}], RATE)([GRADS[0][0]])
    nn.SGD([same], RATE)([GRADS[0][0]])
    np.testing.assert_array_equal(b.asnumpy(), same.asnumpy())


def test_an_optimizer_of_ones_own_centralizes_the_gradients_of_its_groups():
    class Own(nn.Optimizer):
        def construct(self, gradients):
            return self.gradients_centralization(self.decay_weight(gradients))

    w, b = Parameter(Tensor(START), "w"), Parameter(Tensor(START), "b")
    given = [{"params": [w], "grad_centralization": True}, {"params": [b]}]
    first, second = Own(RATE, given)([Tensor(GRADS[0]), Tensor(GRADS[1])])
    np.testing.assert_allclose(first.asnumpy(), GRADS[0] - GRADS[0].mean(axis=1, keepdims=True))
    np.testing.assert_array_equal(second.asnumpy(), GRADS[1])


def w():
    return Parameter(Tensor(START), "w")


test_wrong_settings_are_refused = refused(
    (lambda p: nn.Rprop(p, etas=(1.5, 1.2)), ValueError, "etas"),
    (lambda p: nn.Rprop(p, step_sizes=(2.0, 1.0)), ValueError, "step_sizes"),
    (lambda p: nn.Rprop(p, step_sizes=(1.0,)), ValueError, "step_sizes"),
    (lambda p: nn.Adam(p, use_lazy=True, use_offload=True), ValueError, "One of the two"),
    by=lambda make: make([w()]),
)


@pytest.mark.parametrize("name", ["use_lazy", "use_offload"])
def test_other_forms_of_adam_take_the_same_steps(name):
    expected, _ = steps(lambda p: nn.Adam(p, RATE))
    np.testing.assert_array_equal(steps(lambda p: nn.Adam(p, RATE, **{name: True}))[0], expected)
