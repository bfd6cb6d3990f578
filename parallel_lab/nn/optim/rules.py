"""Optimizers, each a rule (`update_rule.py`, `optimizer.py`). Formulas and defaults: MindSpore, nn.SGD etc."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import Check, flag, floating, number
from ...base.errors import ArgumentError
from ...ops import elementwise, updates
from ...ops.elementwise import add, maximum, mul
from ...ops.unary import sqrt
from .update_rule import LOSS_SCALE, WEIGHT_DECAY, Argument, update_rule

AT_LEAST_0, ABOVE_0, FRACTION = floating(0), floating(0, above=True), floating(0, 1, above=True, below=True)


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
        return updates.descend_ahead(p, v, g, h.rate, keep=h.momentum, add=1.0), v
    return updates.descend(p, v, h.rate), v


def check_nesterov(sgd: Any, given: dict[str, Any]) -> None:
    """nesterov needs momentum, and no dampening. Raises ArgumentError."""
    if sgd.nesterov and (sgd.momentum == 0 or sgd.dampening != 0):
        given = f"nesterov=True with momentum={sgd.momentum} and dampening={sgd.dampening}"
        raise ArgumentError(given, where="SGD", allowed="Momentum above 0 and dampening 0")


@update_rule(
    rate(0.1),
    real("momentum", number(0), 0.0),
    real("dampening", number(0), 0.0),
    WEIGHT_DECAY,
    switch("nesterov"),
    LOSS_SCALE,
    states=lambda h: {"accum": 0.0} if h.momentum else {},
    shared=lambda h: {"step": (0.0, lambda step: add(step, 1.0))} if h.momentum and h.dampening else {},
    check=check_nesterov,
)
def SGD(h, p, g, v=None):
    """Stochastic gradient descent, with momentum if it is above 0.

    g = gradient + weight_decay * p
    v = g in the first step, then momentum * v + (1 - dampening) * g
    p = p - learning_rate * v           with nesterov: p - learning_rate * (g + momentum * v)

    Without momentum there is no v. nesterov needs momentum above 0 and no dampening.
    """
    return sgd(h, p, g, v)


def sgd(h: Any, p: Any, g: Any, v: Any) -> tuple[Any, ...]:
    """`SGD` from the decayed gradient on."""
    if not h.momentum:
        return (updates.descend(p, g, h.rate),)
    kept = g
    if h.dampening:
        # first: 1 in step 1 and 0 later; v starts at 0, so that an undampened gradient gives v = g there
        first = maximum(2.0 - h.scalars["step"], 0.0)
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

BETA1, BETA2 = real("beta1", FRACTION, 0.9), real("beta2", FRACTION, 0.999)


def beta_powers(h: Any) -> dict[str, Any]:
    """beta1^t and beta2^t in step t = 1, 2, ..."""
    return {
        "beta1_power": (1.0, lambda power: mul(power, h.beta1)),
        "beta2_power": (1.0, lambda power: mul(power, h.beta2)),
    }


def one_minus(beta: float, like: Any) -> float:
    """1 - beta, computed in the dtype of `like`.

    In float32, 1 - 0.999 is 4.7e-5 too large. The bias correction, which works on powers kept in that dtype, has the
    same error, and the two cancel; with the exact 0.001 here the first steps would be 2.3e-5 off.
    """
    dtype = np.dtype(str(like.dtype)).type
    return float(dtype(1) - dtype(beta))


def _moments(h: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any]:
    """The running means of the gradient and of its square."""
    m = elementwise.moving_mean(m, g, keep=h.beta1, add=one_minus(h.beta1, g))
    return m, updates.moving_square(v, g, keep=h.beta2, add=one_minus(h.beta2, g))


ADAM_ARGUMENTS = (
    *(rate(1e-3), BETA1, BETA2, real("eps", ABOVE_0, 1e-8)),
    *(switch("use_locking", kept=False), switch("use_nesterov"), WEIGHT_DECAY, LOSS_SCALE),
)


def _check_forms(adam: Any, given: dict[str, Any]) -> None:
    """MindSpore's rules about settings that exclude each other."""
    for one, other in (("lazy", "offload"), ("lazy", "amsgrad"), ("offload", "amsgrad")):
        if given[f"use_{one}"] and given[f"use_{other}"]:
            raise ArgumentError(f"use_{one}=True with use_{other}=True", where="Adam", allowed="One of the two")


@update_rule(
    *ADAM_ARGUMENTS,
    switch("use_amsgrad"),
    switch("use_lazy", kept=False),
    switch("use_offload"),
    states=lambda h: {"moment1": 0.0, "moment2": 0.0, **({"vhat": 0.0} if h.use_amsgrad else {})},
    shared=beta_powers,
    check=_check_forms,
    on_host=True,
)
def Adam(h, p, g, m, v, top=None):
    """Adam (Kingma and Ba 2015, the faster form at the end of section 2).

    g = gradient + weight_decay * p
    m = beta1 * m + (1 - beta1) * g,  v = beta2 * v + (1 - beta2) * g^2
    p = p - learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)      in step t = 1, 2, ...

    use_locking   accepted for MindSpore's sake, without effect
    use_nesterov  the last line has beta1 * m + (1 - beta1) * g instead of m
    use_amsgrad   the last line has the largest v so far, element by element (Reddi, Kale and Kumar 2018)
    use_lazy      accepted, without effect: see `LazyAdam`
    use_offload   see `AdamOffload`
    """
    return adam_step(h, p, g, m, v, top)


def adam_step(h: Any, p: Any, g: Any, m: Any, v: Any, top: Any = None) -> tuple[Any, ...]:
    """The formula of `Adam`, for its other forms too."""
    m, v = _moments(h, g, m, v)
    correction = sqrt(1.0 - h.scalars["beta2_power"]) / (1.0 - h.scalars["beta1_power"])
    ahead = elementwise.moving_mean(m, g, keep=h.beta1, add=one_minus(h.beta1, g)) if h.use_nesterov else m
    if h.use_offload:  # the same in two steps: the host's, and what the device does
        return p - ahead * (h.rate * correction) / (sqrt(v) + h.eps), m, v
    if top is None:
        return updates.descend_by_root(p, ahead, v, h.rate * correction, eps=h.eps), m, v
    top = maximum(top, v)
    return updates.descend_by_root(p, ahead, top, h.rate * correction, eps=h.eps), m, v, top


@update_rule(
    rate(1e-3),
    BETA1,
    BETA2,
    real("eps", ABOVE_0, 1e-6),
    WEIGHT_DECAY,
    states={"adam_m": 0.0, "adam_v": 0.0},
    decoupled=True,
    can_be_grouped=True,
    on_host=True,
)
def AdamWeightDecay(h, p, g, m, v):
    """Adam without bias correction, with decoupled weight decay (Loshchilov and Hutter 2019; the form of BERT).

    m = beta1 * m + (1 - beta1) * gradient,  v = beta2 * v + (1 - beta2) * gradient^2
    p = p - learning_rate * (m / (sqrt(v) + eps) + weight_decay * p)
    """
    m, v = _moments(h, g, m, v)
    if h.place.fixed_decay is None:
        return updates.descend(p, h.decayed(p, m / (sqrt(v) + h.eps)), h.rate), m, v
    return updates.descend_decayed(p, m, v, h.rate, eps=h.eps, decay=h.place.fixed_decay), m, v


@update_rule(
    rate(),
    BETA1,
    BETA2,
    real("eps", ABOVE_0, 1e-6),
    WEIGHT_DECAY,
    states={"lamb_m": 0.0, "lamb_v": 0.0},
    shared=beta_powers,
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
    step = h.decayed(p, mean / (sqrt(spread) + h.eps))
    ratio = updates.norm_ratio(h.norm(p, "{} for Lamb's step"), h.norm(step, "the step of {} for Lamb"))
    return p - step * (h.rate * ratio), m, v
