"""Rarer optimizers, each a rule (`update_rule.py`). Formulas and defaults: MindSpore, nn.AdaMax etc."""

from __future__ import annotations

from typing import Any

from ...base.checks import floating, sequence_of
from ...base.errors import ArgumentError
from ...ops import elementwise
from ...ops.elementwise import add, clip, maximum, power
from ...ops.unary import abs_, sign
from .rules import _BETA1, _BETA2, ABOVE_0, AT_LEAST_0, EPS, _powers, _rest, rate, real, switch
from .update_rule import LOSS_SCALE, WEIGHT_DECAY, Argument, update_rule


def _steps(h: Any) -> dict[str, Any]:
    """The number of the step, from 1 on."""
    return {"step": (0.0, lambda step: add(step, 1.0))}


def _pair(name: str, default: tuple[float, float]) -> Argument:
    return Argument(name, "tuple[float, float]", default, sequence_of(ABOVE_0, "Two numbers above 0"))


@update_rule(
    *(rate(1e-3), _BETA1, _BETA2, real("eps", ABOVE_0, 1e-8), WEIGHT_DECAY, LOSS_SCALE),
    states={"moment1": 0.0, "moment2": 0.0},
    shared=_powers,
)
def AdaMax(h, p, g, m, v):
    """Adam with the largest gradient in place of the root mean square (Kingma and Ba 2015, section 7.1).

    g = gradient + weight_decay * p
    m = beta1 * m + (1 - beta1) * g,  v = max(beta2 * v, |g|)
    p = p - learning_rate / (1 - beta1^t) * m / (v + eps)      in step t = 1, 2, ...
    """
    m = elementwise.moving_mean(m, g, keep=h.beta1, add=_rest(h.beta1, g))
    v = maximum(v * h.beta2, abs_(g))
    return p - m / (v + h.eps) * (h.rate / (1.0 - h.scalars["beta1_power"])), m, v


@update_rule(
    *(real("accum", AT_LEAST_0, 0.1), rate(0.001), real("l1", AT_LEAST_0, 0.0), real("l2", AT_LEAST_0, 0.0)),
    *(switch("use_locking", kept=False), LOSS_SCALE, WEIGHT_DECAY),
    states=lambda h: {"accum": h.accum},
    on_host=True,
)
def ProximalAdagrad(h, p, g, s):
    """`Adagrad` whose step ends nearer to 0: l1 makes small weights exactly 0 (Duchi and Singer 2009).

    g = gradient + weight_decay * p
    s = s + g^2, from s = accum
    q = p - learning_rate * g / (sqrt(s) + 1e-10)
    p = sign(q) / (1 + learning_rate * l2) * max(|q| - learning_rate * l1, 0)

    use_locking  accepted for MindSpore's sake, without effect
    """
    s = elementwise.moving_square(s, g, keep=1.0, add=1.0)
    p = elementwise.descend_by_root(p, g, s, h.rate, eps=EPS)
    if h.l1:
        p = sign(p) * maximum(abs_(p) - h.rate * h.l1, 0.0)
    return (p / (1.0 + h.rate * h.l2) if h.l2 else p), s


@update_rule(
    *(rate(0.1), real("lambd", floating(), 1e-4), real("alpha", floating(), 0.75), real("t0", floating(), 1e6)),
    WEIGHT_DECAY,
    states={"ax": 0.0},
    shared=_steps,
)
def ASGD(h, p, g, ax):
    """Gradient descent that keeps the mean of its parameters (Polyak and Juditsky 1992), as the state `ax`.

    g  = gradient + weight_decay * p,  eta = learning_rate / (1 + lambd * learning_rate * (t - 1))^alpha
    p  = p * (1 - lambd * eta) - eta * g                                 in step t = 1, 2, ...
    ax = ax + (p - ax) / max(1, t - 1 - t0)
    """
    before = h.scalars["step"] - 1.0
    eta = h.rate / power(1.0 + h.rate * h.lambd * before, h.alpha)
    p = p * (1.0 - eta * h.lambd) - g * eta
    return p, ax + (p - ax) / maximum(before - h.t0, 1.0)


def _check_pairs(rprop: Any, given: dict[str, Any]) -> None:
    for name, fine in (("etas", "0 < etas[0] < 1 < etas[1]"), ("step_sizes", "Two numbers, the smaller one first")):
        pair = getattr(rprop, name)
        if len(pair) != 2 or not pair[0] < pair[1] or (name == "etas" and not pair[0] < 1 < pair[1]):
            raise ArgumentError(f"{name}={pair}", where="Rprop", allowed=fine)


@update_rule(
    *(rate(0.1), _pair("etas", (0.5, 1.2)), _pair("step_sizes", (1e-6, 50.0)), WEIGHT_DECAY),
    states={"prev": 0.0, "step_size": 0.0},
    shared=_steps,
    check=_check_pairs,
)
def Rprop(h, p, g, before, size):
    """Steps by the sign of the gradient alone, longer while it stays the same (Riedmiller and Braun 1993).

    g    = gradient + weight_decay * p
    size = size * etas[1] where g has the sign of the step before, * etas[0] where it has the other one; within
           step_sizes; learning_rate in the first step
    p    = p - sign(g) * size, with 0 in place of g, for the next step too, where the sign has changed
    """
    same = sign(g * before)
    grown, shrunk = maximum(same, 0.0), maximum(-same, 0.0)
    size = size + maximum(2.0 - h.scalars["step"], 0.0) * h.rate  # from 0 in step 1
    size = size * (1.0 + grown * (h.etas[1] - 1.0) + shrunk * (h.etas[0] - 1.0))
    size = clip(size, *h.step_sizes)
    g = g * (1.0 - shrunk)
    return p - sign(g) * size, g, size
