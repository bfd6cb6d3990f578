"""The optimizers, each a rule (`update_rule.py`, `optimizer.py`). Formulas and defaults: MindSpore, nn.SGD etc."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...base.checks import Check, flag, floating, number, sequence_of
from ...base.errors import ArgumentError
from ...ops import elementwise, unary
from ...ops.elementwise import add, clip, maximum, minimum, mul
from ...ops.shape import expand_dims
from ...ops.unary import sqrt
from .global_norm import in_dtype_of, wide
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
        return elementwise.descend_ahead(p, v, g, h.rate, keep=h.momentum, add=1.0), v
    return elementwise.descend(p, v, h.rate), v


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
        return (elementwise.descend(p, g, h.rate),)
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

_BETA1, _BETA2 = real("beta1", FRACTION, 0.9), real("beta2", FRACTION, 0.999)


def _powers(h: Any) -> dict[str, Any]:
    """beta1^t and beta2^t in step t = 1, 2, ..."""
    return {
        "beta1_power": (1.0, lambda power: mul(power, h.beta1)),
        "beta2_power": (1.0, lambda power: mul(power, h.beta2)),
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


_ADAM = (
    *(rate(1e-3), _BETA1, _BETA2, real("eps", ABOVE_0, 1e-8)),
    *(switch("use_locking", kept=False), switch("use_nesterov"), WEIGHT_DECAY, LOSS_SCALE),
)
_ADAM_STATES = {"states": {"moment1": 0.0, "moment2": 0.0}, "shared": _powers}


def _check_forms(adam: Any, given: dict[str, Any]) -> None:
    """MindSpore's rules for what does not go together."""
    for one, other in (("lazy", "offload"), ("lazy", "amsgrad"), ("offload", "amsgrad")):
        if given[f"use_{one}"] and given[f"use_{other}"]:
            raise ArgumentError(f"use_{one}=True with use_{other}=True", where="Adam", allowed="One of the two")


@update_rule(
    *_ADAM,
    switch("use_amsgrad"),
    switch("use_lazy", kept=False),
    switch("use_offload"),
    states=lambda h: {"moment1": 0.0, "moment2": 0.0, **({"vhat": 0.0} if h.use_amsgrad else {})},
    shared=_powers,
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
    return _adam(h, p, g, m, v, top)


def _adam(h: Any, p: Any, g: Any, m: Any, v: Any, top: Any = None) -> tuple[Any, ...]:
    m, v = _moments(h, g, m, v)
    correction = sqrt(1.0 - h.scalars["beta2_power"]) / (1.0 - h.scalars["beta1_power"])
    ahead = elementwise.moving_mean(m, g, keep=h.beta1, add=_rest(h.beta1, g)) if h.use_nesterov else m
    if h.use_offload:  # the same in two steps: the host's, and what the device does
        return p - ahead * (h.rate * correction) / (sqrt(v) + h.eps), m, v
    if top is None:
        return elementwise.descend_by_root(p, ahead, v, h.rate * correction, eps=h.eps), m, v
    top = maximum(top, v)
    return elementwise.descend_by_root(p, ahead, top, h.rate * correction, eps=h.eps), m, v, top


@update_rule(*_ADAM, **_ADAM_STATES, offloads=True)
def AdamOffload(h, p, g, m, v):
    """`Adam` whose moments lie on the host, and are updated there: per step gradients go down to it, and what is to be
    subtracted from the Parameters comes back; these stay on the device. In compiled steps; a network that runs at once
    has one memory. Formula, arguments and numbers are Adam's.
    """
    return _adam(h, p, g, m, v)


@update_rule(*_ADAM, **_ADAM_STATES, on_host=True)
def LazyAdam(h, p, g, m, v):
    """`Adam`, in MindSpore's other form, which treats sparse gradients in its own way.

    The gradients of this package are dense: that of an embedding table has all rows, with zeros where no index pointed.
    For dense gradients MindSpore's LazyAdam is Adam, and so is this: all rows' moments decay in every step. (For sparse
    ones only the rows that were looked up would move.) Formula and arguments: `Adam`.
    """
    return _adam(h, p, g, m, v)


@update_rule(
    rate(1e-3),
    _BETA1,
    _BETA2,
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
        return elementwise.descend(p, h.decayed(p, m / (sqrt(v) + h.eps)), h.rate), m, v
    return elementwise.descend_decayed(p, m, v, h.rate, eps=h.eps, decay=h.place.fixed_decay), m, v


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
    step = h.decayed(p, mean / (sqrt(spread) + h.eps))
    ratio = elementwise.norm_ratio(h.norm(p, "{} for Lamb's step"), h.norm(step, "the step of {} for Lamb"))
    return p - step * (h.rate * ratio), m, v


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


# ---- with a learning rate of its own ----


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
        mean = u = elementwise.moving_mean(mean, u, keep=h.beta1, add=_rest(h.beta1, u))
    if h.place.fixed_decay != 0:
        p = p - p * (rate * h.place.weight_decay)
    states = (row, column, None) if len(dims) >= 2 else (None, None, square)
    return p - u, *states, *([mean] if h.beta1 else [])


# ---- towards zeros ----


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

    before, m = root(m), elementwise.moving_square(m, g, keep=1.0, add=1.0)
    after = root(m)
    u = u + g - (after - before) / h.rate * p
    if not h.l1:
        return -u / (after / h.rate + 2 * h.l2), m, u
    beyond = u - clip(u, -h.l1, h.l1)  # u - sign(u) * l1 where |u| > l1, else 0
    return -beyond / (after / h.rate + 2 * h.l2), m, u
