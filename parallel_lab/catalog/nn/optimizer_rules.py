"""Optimizers, each a rule (`nn/optim/update_rule.py`). Formulas and defaults: MindSpore, nn.FTRL etc."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...base.checks import floating, sequence_of
from ...base.errors import ArgumentError
from ...nn.optim.global_norm import in_dtype_of, wide
from ...nn.optim.rules import (
    ABOVE_0,
    ADAM_ARGUMENTS,
    AT_LEAST_0,
    BETA1,
    BETA2,
    adam_step,
    beta_powers,
    one_minus,
    rate,
    real,
    switch,
)
from ...nn.optim.update_rule import LOSS_SCALE, WEIGHT_DECAY, Argument, update_rule
from ...ops import elementwise, unary, updates
from ...ops.elementwise import add, maximum, minimum, power, update_op
from ...ops.machine.primitive import WithoutStrategy
from ...ops.shape import expand_dims
from ...ops.unary import abs_, sign, sqrt
from ..ops.arithmetic import clip

EPS = 1e-10  # only so that 0 / 0 is 0 with accum=0: MindSpore's formula has an epsilon, but no argument for it
_ADAM_STATES = {"states": {"moment1": 0.0, "moment2": 0.0}, "shared": beta_powers}


@update_rule(*ADAM_ARGUMENTS, **_ADAM_STATES, offloads=True)
def AdamOffload(h, p, g, m, v):
    """`Adam` whose moments lie on the host, and are updated there: per step gradients go down to it, and what is to be
    subtracted from the Parameters comes back; these stay on the device. In compiled steps; a network that runs at once
    has one memory. Formula, arguments and numbers are Adam's.
    """
    return adam_step(h, p, g, m, v)


@update_rule(*ADAM_ARGUMENTS, **_ADAM_STATES, on_host=True)
def LazyAdam(h, p, g, m, v):
    """`Adam`, in MindSpore's other form, which treats sparse gradients in its own way.

    The gradients of this package are dense: that of an embedding table has all rows, with zeros where no index pointed.
    For dense gradients MindSpore's LazyAdam is Adam, and so is this: all rows' moments decay in every step. (For sparse
    ones only the rows that were looked up would move.) Formula and arguments: `Adam`.
    `sparse_opt`, MindSpore's operator for sparse gradients, keeps what a script notes at it, and is never run.
    """
    return adam_step(h, p, g, m, v)


LazyAdam.other_names = {"sparse_opt": type("FusedSparseLazyAdam", (WithoutStrategy,), {})}


@update_rule(
    rate(0.1),
    real("decay", floating(0, 1), 0.9),
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
    s = updates.moving_square(s, g, keep=h.decay, add=rest)
    if h.centered:
        mean = [elementwise.moving_mean(mean[0], g, keep=h.decay, add=rest)]
        m = moving_deviation_mean(m, g, s, mean[0], h.rate, keep=h.momentum, eps=h.epsilon)
    else:
        m = moving_root_mean(m, g, s, h.rate, keep=h.momentum, eps=h.epsilon)
    return p - m, *mean, s, m


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
    s = updates.moving_square(s, g, keep=1.0, add=1.0) if h.update_slots else s
    return updates.descend_by_root(p, g, s, h.rate, eps=EPS), s


def _check_rates(adafactor: Any, given: dict[str, Any]) -> None:
    own, rates = (
        adafactor.relative_step,
        "learning_rate=None with relative_step=True, or a rate with relative_step=False",
    )
    if own and (given["learning_rate"] is not None or adafactor.is_group_lr):
        what = "a group's lr" if given["learning_rate"] is None else f"learning_rate={given['learning_rate']}"
        raise ArgumentError(f"{what} with relative_step=True", where="AdaFactor", allowed=rates)
    if not own and given["learning_rate"] is None:
        raise ArgumentError("no learning_rate, and relative_step=False", where="AdaFactor", allowed=rates)
    if adafactor.warmup_init and not own:
        raise ArgumentError("warmup_init=True with relative_step=False", where="AdaFactor", allowed="Both True")
    if len(adafactor.eps) != 2:
        raise ArgumentError(f"eps={adafactor.eps}", where="AdaFactor", allowed="Two numbers above 0")
    if given["compression"]:
        what = "compression=True, which would keep running means in float16, where squares below 6e-8 are 0"
        raise ArgumentError(what, where="AdaFactor", allowed="False: they have the parameter's dtype")


def _moving(old: Any, new: Any, keep: Any) -> Any:
    return in_dtype_of(old, old * keep + in_dtype_of(old, new) * (1.0 - keep))


@update_rule(
    Argument("learning_rate", "Rate | None", None),
    Argument("eps", "tuple[float, float]", (1e-30, 1e-3), sequence_of(ABOVE_0, "Two numbers above 0")),
    real("clip_threshold", ABOVE_0, 1.0),
    real("decay_rate", floating(0, 1, above=True), 0.8),
    real("beta1", floating(0, 1, below=True), 0.9),
    WEIGHT_DECAY,
    switch("scale_parameter", True),
    switch("relative_step", True),
    switch("warmup_init"),
    switch("compression", kept=False),
    LOSS_SCALE,
    states=lambda h: {
        **dict.fromkeys(("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"), 0.0),
        **({"exp_avg": 0.0} if h.beta1 else {}),
    },
    shared=lambda h: {"step": (0.0, lambda step: add(step, 1.0))},
    decoupled=True,
    can_be_grouped=True,
    check=_check_rates,
)
def AdaFactor(h, p, g, row, column, square, mean=None):
    """Adam's second moment from means of rows and of columns, in less memory (Shazeer and Stern 2018, "Adafactor").

    b = 1 - t^(-decay_rate)                                in step t = 1, 2, ...
    q = gradient^2 + eps[0]
    p of 2 dims and more:  row = b * row + (1 - b) * (mean of q along the last dim)
                           column, the same along the last dim but one
                           u = gradient / sqrt(row / (mean of row) * column)
    p of fewer dims:       square = b * square + (1 - b) * q,  u = gradient / sqrt(square)
    u = rate * u / max(1, rms(u) / clip_threshold)         rms: root of the mean square
    with beta1 above 0:    mean = beta1 * mean + (1 - beta1) * u, which then takes the place of u
    p = p - rate * weight_decay * p - u

    rate             relative_step: 1 / sqrt(t), at most 0.01 (warmup_init: at most t / 10^6); otherwise learning_rate.
                     With scale_parameter times rms(p), at least eps[1]
    learning_rate    with relative_step=False only
    compression      must be False: running means in float16 are not supported

    Means and rms are those of the whole parameter, whatever slices the ranks hold: up to five small all_reduces for a
    parameter that is split. Formula: MindSpore, nn.AdaFactor.
    """
    step, dims = h.scalars["step"], tuple(range(len(p.shape)))
    rate = h.rate
    if h.relative_step:
        rate = minimum(1.0 / sqrt(step), step * 1e-6 if h.warmup_init else 1e-2)
    if h.scale_parameter:
        length = sqrt(h.mean(unary.square(wide(p)), "squares of {}, for AdaFactor's rate,"))
        rate = rate * in_dtype_of(rate, maximum(length, h.eps[1]))
    keep = 1.0 - elementwise.power(step, -h.decay_rate)
    q = unary.square(wide(g)) + h.eps[0]
    if len(dims) >= 2:
        *others, rows, columns = dims
        row = _moving(row, h.mean(q, "squared gradients of {} along its last dim", [columns]), keep)
        column = _moving(column, h.mean(q, "squared gradients of {} along its last dim but one", [rows]), keep)
        level = h.mean(wide(row), "these means of {}", [rows], [*others, rows])
        share = sqrt(wide(row) / expand_dims(level, -1))
        below = expand_dims(share, -1) * expand_dims(sqrt(wide(column)), -2)
    else:
        square = _moving(square, q, keep)
        below = sqrt(wide(square))
    u = wide(g) / below
    length = sqrt(h.mean(unary.square(u), "squares of the step of {}"))
    u = u * (in_dtype_of(u, rate) / maximum(length / h.clip_threshold, 1.0))
    u = in_dtype_of(p, u)
    if h.beta1:
        mean = u = elementwise.moving_mean(mean, u, keep=h.beta1, add=one_minus(h.beta1, u))
    if h.place.fixed_decay != 0:
        p = p - p * (rate * h.place.weight_decay)
    states = (row, column, None) if len(dims) >= 2 else (None, None, square)
    return p - u, *states, *([mean] if h.beta1 else [])


def _check_constant_rate(ftrl: Any, given: dict[str, Any]) -> None:
    if ftrl.dynamic_lr or ftrl.is_group_lr or ftrl.learning_rate == 0:
        what = "a learning rate that is 0, depends on the step, or differs between groups"
        raise ArgumentError(what, where="FTRL", allowed="One number above 0: the states are in its units")


@update_rule(
    real("initial_accum", AT_LEAST_0, 0.1),
    rate(0.001),
    real("lr_power", floating(-math.inf, 0), -0.5),
    real("l1", AT_LEAST_0, 0.0),
    real("l2", AT_LEAST_0, 0.0),
    switch("use_locking", kept=False),
    LOSS_SCALE,
    WEIGHT_DECAY,
    states=lambda h: {"moments": h.initial_accum, "linear": 0.0},
    check=_check_constant_rate,
    on_host=True,
)
def FTRL(h, p, g, m, u):
    """Follow the regularized leader: weights that l1 makes exactly 0 (McMahan and others 2013, "Ad click prediction").

    g = gradient + weight_decay * p
    s = ((m + g^2)^-lr_power - m^-lr_power) / learning_rate,  u = u + g - s * p
    m = m + g^2, from m = initial_accum
    p = (sign(u) * l1 - u) / (m^-lr_power / learning_rate + 2 * l2) where |u| > l1, else 0

    learning_rate  one number above 0 for all parameters and steps
    use_locking    accepted for MindSpore's sake, without effect
    """

    def root(x: Any) -> Any:
        return sqrt(x) if h.lr_power == -0.5 else elementwise.power(x, -h.lr_power)

    before, m = root(m), updates.moving_square(m, g, keep=1.0, add=1.0)
    after = root(m)
    u = u + g - (after - before) / h.rate * p
    if not h.l1:
        return -u / (after / h.rate + 2 * h.l2), m, u
    beyond = u - clip(u, -h.l1, h.l1)  # u - sign(u) * l1 where |u| > l1, else 0
    return -beyond / (after / h.rate + 2 * h.l2), m, u


def _steps(h: Any) -> dict[str, Any]:
    """The number of the step, from 1 on."""
    return {"step": (0.0, lambda step: add(step, 1.0))}


def _pair(name: str, default: tuple[float, float]) -> Argument:
    return Argument(name, "tuple[float, float]", default, sequence_of(ABOVE_0, "Two numbers above 0"))


@update_rule(
    *(rate(1e-3), BETA1, BETA2, real("eps", ABOVE_0, 1e-8), WEIGHT_DECAY, LOSS_SCALE),
    states={"moment1": 0.0, "moment2": 0.0},
    shared=beta_powers,
)
def AdaMax(h, p, g, m, v):
    """Adam with the largest gradient instead of the root mean square (Kingma and Ba 2015, section 7.1).

    g = gradient + weight_decay * p
    m = beta1 * m + (1 - beta1) * g,  v = max(beta2 * v, |g|)
    p = p - learning_rate / (1 - beta1^t) * m / (v + eps)      in step t = 1, 2, ...
    """
    m = elementwise.moving_mean(m, g, keep=h.beta1, add=one_minus(h.beta1, g))
    v = maximum(v * h.beta2, abs_(g))
    return p - m / (v + h.eps) * (h.rate / (1.0 - h.scalars["beta1_power"])), m, v


@update_rule(
    *(rate(1.0), real("rho", AT_LEAST_0, 0.9), real("epsilon", AT_LEAST_0, 1e-6), LOSS_SCALE, WEIGHT_DECAY),
    states={"accum": 0.0, "accum_update": 0.0},
)
def Adadelta(h, p, g, s, u):
    """Steps as long as the last ones, over the size of the gradients (Zeiler 2012, "ADADELTA").

    g = gradient + weight_decay * p
    s = rho * s + (1 - rho) * g^2
    d = sqrt(u + epsilon) / sqrt(s + epsilon) * g
    u = rho * u + (1 - rho) * d^2
    p = p - learning_rate * d
    """
    s = updates.moving_square(s, g, keep=h.rho, add=1 - h.rho)
    d = g * sqrt(u + h.epsilon) / sqrt(s + h.epsilon)
    return updates.descend(p, d, h.rate), s, updates.moving_square(u, d, keep=h.rho, add=1 - h.rho)


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
    s = updates.moving_square(s, g, keep=1.0, add=1.0)
    p = updates.descend_by_root(p, g, s, h.rate, eps=EPS)
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
    p    = p - sign(g) * size, with 0 instead of g, for the next step too, where the sign has changed
    """
    same = sign(g * before)
    grown, shrunk = maximum(same, 0.0), maximum(-same, 0.0)
    size = size + maximum(2.0 - h.scalars["step"], 0.0) * h.rate  # from 0 in step 1
    size = size * (1.0 + grown * (h.etas[1] - 1.0) + shrunk * (h.etas[0] - 1.0))
    size = clip(size, *h.step_sizes)
    g = g * (1.0 - shrunk)
    return p - sign(g) * size, g, size


@update_op
def moving_root_mean(mean, x, square, rate, *, keep, eps):
    """mean * keep + x * rate / sqrt(square + eps).  mean, x, square: (...), rate: () -> (...)."""
    return mean * keep + x * rate / np.sqrt(square + eps)


@update_op
def moving_deviation_mean(mean, x, square, first, rate, *, keep, eps):
    """mean * keep + x * rate / sqrt(square - first^2 + eps).  rate: (), the others (...) -> (...)."""
    # a variance; of gradients that are all alike, rounding leaves it a little below 0
    return mean * keep + x * rate / np.sqrt(np.maximum(square - first * first, 0) + eps)
