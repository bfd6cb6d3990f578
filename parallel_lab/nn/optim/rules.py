"""The optimizers, each a rule (`update_rule.py`, `optimizer.py`). Formulas and defaults: MindSpore, nn.SGD etc."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...base.checks import Check, flag, number
from ...base.errors import ArgumentError
from ...ops import elementwise
from .update_rule import LOSS_SCALE, WEIGHT_DECAY, Argument, update_rule

AT_LEAST_0, ABOVE_0, FRACTION = number(0), number(0, above=True), number(0, 1, above=True, below=True)


def rate(*default: float) -> Argument:
    """The learning rate: a number or a schedule."""
    return Argument("learning_rate", "Rate", *default)


def real(name: str, check: Check, *default: float) -> Argument:
    """A hyperparameter that is a number."""
    return Argument(name, "float", *default, check=check)


def switch(name: str, default: bool = False, kept: bool = True) -> Argument:
    """A hyperparameter that is True or False."""
    return Argument(name, "bool", default, flag, kept)


# ---- down the gradient ----


def _step(h: Any, p: Any, v: Any, g: Any, nesterov: bool) -> tuple[Any, Any]:
    """Down v, or with nesterov where the next v would point if the gradient stayed."""
    if nesterov:
        return elementwise.descend_ahead(p, v, g, h.rate, keep=h.momentum, add=1.0), v
    return elementwise.descend(p, v, h.rate), v


def _check_nesterov(sgd: Any) -> None:
    if sgd.nesterov and (sgd.momentum == 0 or sgd.dampening != 0):
        given = f"nesterov=True with momentum={sgd.momentum} and dampening={sgd.dampening}"
        raise ArgumentError(given, where="SGD", allowed="Momentum above 0 and dampening 0")


@update_rule(
    rate(0.1),
    real("momentum", AT_LEAST_0, 0.0),
    real("dampening", AT_LEAST_0, 0.0),
    WEIGHT_DECAY,
    switch("nesterov"),
    LOSS_SCALE,
    states=lambda h: {"accum": 0.0} if h.momentum else {},
    shared=lambda h: {"step": (0.0, lambda step: ops.add(step, 1.0))} if h.momentum and h.dampening else {},
    check=_check_nesterov,
)
def SGD(h, p, g, v=None):
    """Stochastic gradient descent, with momentum if it is above 0.

    g = gradient + weight_decay * p
    v = g in the first step, then momentum * v + (1 - dampening) * g
    p = p - learning_rate * v           with nesterov: p - learning_rate * (g + momentum * v)

    Without momentum there is no v. nesterov needs momentum above 0 and no dampening.
    """
    if not h.momentum:
        return (elementwise.descend(p, g, h.rate),)
    kept = g
    if h.dampening:
        # first: 1 in step 1 and 0 later; v starts at 0, so that an undampened gradient gives v = g there
        first = ops.maximum(2.0 - h.scalars["step"], 0.0)
        kept = g * (1.0 - (1.0 - first) * h.dampening)
    return _step(h, p, elementwise.moving_mean(v, kept, keep=h.momentum, add=1.0), g, h.nesterov)


@update_rule(
    rate(), real("momentum", AT_LEAST_0), WEIGHT_DECAY, LOSS_SCALE, switch("use_nesterov"), states={"moments": 0.0}
)
def Momentum(h, p, g, v):
    """Gradient descent with momentum.

    g = gradient + weight_decay * p
    v = momentum * v + g
    p = p - learning_rate * v           with use_nesterov: p - learning_rate * (g + momentum * v)
    """
    return _step(h, p, elementwise.moving_mean(v, g, keep=h.momentum, add=1.0), g, h.use_nesterov)


# ---- a rate for every element ----

_BETA1, _BETA2 = real("beta1", FRACTION, 0.9), real("beta2", FRACTION, 0.999)


def _powers(h: Any) -> dict[str, Any]:
    """beta1^t and beta2^t in step t = 1, 2, ..."""
    return {
        "beta1_power": (1.0, lambda power: ops.mul(power, h.beta1)),
        "beta2_power": (1.0, lambda power: ops.mul(power, h.beta2)),
    }


def _rest(beta: float, like: Any) -> float:
    """1 - beta, computed in the dtype of `like`.

    In float32, 1 - 0.999 is 4.7e-5 too large. The bias correction, which works on powers kept in that dtype, has the
    same error, and the two cancel; with the exact 0.001 here the first steps would be 2.3e-5 off.
    """
    dtype = np.dtype(str(like.dtype)).type
    return float(dtype(1) - dtype(beta))


def _moments(h: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any]:
    """The running means of the gradient and of its square."""
    m = elementwise.moving_mean(m, g, keep=h.beta1, add=_rest(h.beta1, g))
    return m, elementwise.moving_square(v, g, keep=h.beta2, add=_rest(h.beta2, g))


@update_rule(
    rate(1e-3),
    _BETA1,
    _BETA2,
    real("eps", ABOVE_0, 1e-8),
    switch("use_locking", kept=False),
    switch("use_nesterov"),
    WEIGHT_DECAY,
    LOSS_SCALE,
    states={"moment1": 0.0, "moment2": 0.0},
    shared=_powers,
)
def Adam(h, p, g, m, v):
    """Adam (Kingma and Ba 2015, the faster form at the end of section 2).

    g = gradient + weight_decay * p
    m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2
    p = p - learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)      in step t = 1, 2, ...

    use_locking   accepted for MindSpore's sake, without effect
    use_nesterov  the last line has beta1 * m + (1 - beta1) * g instead of m
    """
    m, v = _moments(h, g, m, v)
    correction = ops.sqrt(1.0 - h.scalars["beta2_power"]) / (1.0 - h.scalars["beta1_power"])
    ahead = elementwise.moving_mean(m, g, keep=h.beta1, add=_rest(h.beta1, g)) if h.use_nesterov else m
    return elementwise.descend_by_root(p, ahead, v, h.rate * correction, eps=h.eps), m, v


@update_rule(
    rate(1e-3),
    _BETA1,
    _BETA2,
    real("eps", ABOVE_0, 1e-6),
    WEIGHT_DECAY,
    states={"adam_m": 0.0, "adam_v": 0.0},
    decoupled=True,
    can_be_grouped=True,
)
def AdamWeightDecay(h, p, g, m, v):
    """Adam without bias correction, with decoupled weight decay (Loshchilov and Hutter 2019; the form of BERT).

    m = beta1 * m + (1 - beta1) * gradient,  v = beta2 * v + (1 - beta2) * gradient^2
    p = p - learning_rate * (m / (sqrt(v) + eps) + weight_decay * p)
    """
    m, v = _moments(h, g, m, v)
    return elementwise.descend_decayed(p, m, v, h.rate, eps=h.eps, decay=h.place.weight_decay), m, v


@update_rule(
    rate(),
    _BETA1,
    _BETA2,
    real("eps", ABOVE_0, 1e-6),
    WEIGHT_DECAY,
    states={"lamb_m": 0.0, "lamb_v": 0.0},
    shared=_powers,
    decoupled=True,
    can_be_grouped=True,
)
def Lamb(h, p, g, m, v):
    """Adam with decoupled weight decay whose step is as long as the parameter (You and others 2020, "Large batch
    optimization for deep learning").

    m = beta1 * m + (1 - beta1) * gradient,  v = beta2 * v + (1 - beta2) * gradient^2
    u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p       in step t = 1, 2, ...
    p = p - learning_rate * |p| / |u| * u               |p| / |u| is 1 where one of these L2 norms is 0
    """
    m, v = _moments(h, g, m, v)
    mean, spread = m / (1.0 - h.scalars["beta1_power"]), v / (1.0 - h.scalars["beta2_power"])
    step = h.decayed(p, mean / (ops.sqrt(spread) + h.eps))
    ratio = elementwise.norm_ratio(h.norm(p, "{} for Lamb's step"), h.norm(step, "the step of {} for Lamb"))
    return p - step * (h.rate * ratio), m, v


@update_rule(
    rate(0.1),
    real("decay", number(0, 1), 0.9),
    real("momentum", AT_LEAST_0, 0.0),
    real("epsilon", ABOVE_0, 1e-10),
    switch("use_locking", kept=False),
    switch("centered"),
    LOSS_SCALE,
    WEIGHT_DECAY,
    states=lambda h: {**({"mean_grad": 0.0} if h.centered else {}), "mean_square": 1.0, "moment": 0.0},
)
def RMSProp(h, p, g, *states):
    """Gradients divided by a running root mean square (Hinton, lecture 6e of "Neural networks for machine learning").

    g = gradient + weight_decay * p
    s = decay * s + (1 - decay) * g^2, from s = 1
    m = momentum * m + learning_rate * g / sqrt(s + epsilon)
    p = p - m

    centered     divide by the standard deviation: a = decay * a + (1 - decay) * g, and sqrt(s - a^2 + epsilon) in the
                 third line
    use_locking  accepted for MindSpore's sake, without effect
    """
    *mean, s, m = states
    rest = 1 - h.decay
    s = elementwise.moving_square(s, g, keep=h.decay, add=rest)
    if h.centered:
        mean = [elementwise.moving_mean(mean[0], g, keep=h.decay, add=rest)]
        m = elementwise.moving_deviation_mean(m, g, s, mean[0], h.rate, keep=h.momentum, eps=h.epsilon)
    else:
        m = elementwise.moving_root_mean(m, g, s, h.rate, keep=h.momentum, eps=h.epsilon)
    return p - m, *mean, s, m


EPS = 1e-10  # only so that 0 / 0 is 0 with accum=0: MindSpore's formula has an epsilon, but no argument for it


@update_rule(
    real("accum", AT_LEAST_0, 0.1),
    rate(0.001),
    switch("update_slots", True),
    LOSS_SCALE,
    WEIGHT_DECAY,
    states=lambda h: {"accum": h.accum},
)
def Adagrad(h, p, g, s):
    """Gradients divided by the root of the sum of all squares so far (Duchi, Hazan and Singer 2011).

    g = gradient + weight_decay * p
    h = h + g^2, from h = accum
    p = p - learning_rate * g / (sqrt(h) + 1e-10)

    update_slots  False: h stays at accum
    """
    s = elementwise.moving_square(s, g, keep=1.0, add=1.0) if h.update_slots else s
    return elementwise.descend_by_root(p, g, s, h.rate, eps=EPS), s
