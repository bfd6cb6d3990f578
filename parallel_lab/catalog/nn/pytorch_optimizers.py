"""mindspore.mint.optim: Adam, AdamW and SGD with PyTorch's arguments and formulas, each a rule (`update_rule.py`).

    from mindspore import mint
    optimizer = mint.optim.AdamW(net.trainable_params(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

They differ from `nn.Adam` and its like in more than names: eps is added after the correction of the first steps, and
weight decay spares no parameter for its name.
"""

from __future__ import annotations

from typing import Any

from ...base.checks import number, sequence_of
from ...base.errors import ArgumentError
from ...nn.optim.rules import check_nesterov, one_minus, real, sgd, switch
from ...nn.optim.update_rule import WEIGHT_DECAY, Argument, update_rule
from ...ops import elementwise, updates
from ...ops.elementwise import add, maximum, mul
from ...ops.unary import sqrt

AT_LEAST_0, ABOVE_0, FRACTION = number(0), number(0, above=True), number(0, 1, above=True, below=True)


def _check_pair(adam: Any, given: dict[str, Any]) -> None:
    if len(adam.betas) != 2:
        raise ArgumentError(f"betas={adam.betas}", where=type(adam).__name__, allowed="Two numbers between 0 and 1")


def _lr(*default: float) -> Argument:
    return Argument("lr", "Rate", *default)


_ADAM = (
    Argument("betas", "tuple[float, float]", (0.9, 0.999), sequence_of(FRACTION, "Two numbers between 0 and 1")),
    real("eps", ABOVE_0, 1e-8),
)
_FORM: dict[str, Any] = {
    "states": lambda h: {"exp_avg": 0.0, "exp_avg_sq": 0.0, **({"max_exp_avg_sq": 0.0} if h.amsgrad else {})},
    "shared": lambda h: {
        f"beta{i}_power": (1.0, lambda power, beta=beta: mul(power, beta)) for i, beta in enumerate(h.betas, 1)
    },
    "decoupled": True,
    "decays_by_name": False,
    "check": _check_pair,
}
_SWITCHES = (switch("amsgrad"), switch("maximize"))


def _moved(h: Any, g: Any, m: Any, v: Any, top: Any) -> tuple[Any, tuple[Any, ...]]:
    """(the step before the learning rate, the new states)."""
    m = elementwise.moving_mean(m, g, keep=h.betas[0], add=one_minus(h.betas[0], g))
    v = updates.moving_square(v, g, keep=h.betas[1], add=one_minus(h.betas[1], g))
    kept = (m, v) if top is None else (m, v, maximum(top, v))
    spread = sqrt(kept[-1] / (1.0 - h.scalars["beta2_power"]))
    return m / (1.0 - h.scalars["beta1_power"]) / (spread + h.eps), kept


@update_rule(_lr(1e-3), *_ADAM, WEIGHT_DECAY, *_SWITCHES, **_FORM)
def Adam(h, p, g, m, v, top=None):
    """Adam (Kingma and Ba 2015) in PyTorch's words.

    g = gradient + weight_decay * p
    m = betas[0] * m + (1 - betas[0]) * g,  v = betas[1] * v + (1 - betas[1]) * g^2
    p = p - lr * m / (1 - betas[0]^t) / (sqrt(v / (1 - betas[1]^t)) + eps)          in step t = 1, 2, ...

    amsgrad   the last line has the largest v so far, element by element
    maximize  the gradient's sign is turned first: the loss rises
    """
    step, kept = _moved(h, h.decayed(p, -g if h.maximize else g), m, v, top)
    return p - step * h.rate, *kept


@update_rule(_lr(1e-3), *_ADAM, Argument("weight_decay", "float", 1e-2), *_SWITCHES, **_FORM)
def AdamW(h, p, g, m, v, top=None):
    """`Adam` with decoupled weight decay (Loshchilov and Hutter 2019): it belongs to the step, not to the gradient.

    p = p - lr * (m / (1 - betas[0]^t) / (sqrt(v / (1 - betas[1]^t)) + eps) + weight_decay * p)
    """
    step, kept = _moved(h, -g if h.maximize else g, m, v, top)
    return p - h.decayed(p, step) * h.rate, *kept


@update_rule(
    *(_lr(), real("momentum", AT_LEAST_0, 0.0), real("dampening", AT_LEAST_0, 0.0), WEIGHT_DECAY),
    *(switch("nesterov"), switch("maximize")),
    states=lambda h: {"accum": 0.0} if h.momentum else {},
    shared=lambda h: {"step": (0.0, lambda step: add(step, 1.0))} if h.momentum and h.dampening else {},
    decoupled=True,
    decays_by_name=False,
    check=check_nesterov,
)
def SGD(h, p, g, v=None):
    """Stochastic gradient descent in PyTorch's words, with momentum if it is above 0.

    g = gradient + weight_decay * p
    v = g in the first step, then momentum * v + (1 - dampening) * g
    p = p - lr * v           with nesterov: p - lr * (g + momentum * v)

    maximize  the gradient's sign is turned first: the loss rises
    """
    return sgd(h, p, h.decayed(p, -g if h.maximize else g), v)
