"""Losses that compare element with element, made of operators that can be sharded one by one, and `WithLossCell`, which
joins a network and its loss.

Cross-entropies are in `class_losses.py`; the formulas, shared with the functions (`ops.mse_loss`), in `ops/losses.py`.

loss = nn.MSELoss()
net_with_loss = nn.WithLossCell(net, loss)      # (data, label) -> loss
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...base.checks import choice, kept, number
from ...base.errors import ArgumentTypeError, shorten
from ...ops import losses
from ...ops.elementwise import cast, mul, sub
from ...ops.losses import bce_with_logits_values, binary_cross_entropy_values, huber_loss, kl_div_loss, smooth_l1_values
from ...ops.machine.primitive import Primitive
from ...ops.reduce import reduce_mean, reduce_sum
from ...ops.unary import abs_, square
from ..cell import Cell
from ..tensor.tensor import Tensor

__all__ = ["BCELoss", "BCEWithLogitsLoss", "KLDivLoss", "L1Loss", "LossBase", "MAELoss", "MSELoss"]
__all__ += ["SmoothL1Loss"]


class LossBase(Cell):
    """Base of losses. `get_loss` combines the samples' values by `reduction`: "mean", "sum" or "none"."""

    other_names: ClassVar = {"mul": mul.primitive, "cast": cast.primitive}

    @kept(reduction=choice("mean", "sum", "none"))
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduce_mean = reduce_mean.primitive()
        self.reduce_sum = reduce_sum.primitive()

    def get_loss(self, x: Any, weights: Any = 1.0) -> Any:
        """Mean or sum over all dims, or x itself, of weights * x.  x, weights: (...) broadcast -> () or (...)."""
        weighted = not isinstance(weights, (int, float)) or weights != 1
        return losses.reduced(self, self.mul(weights, x) if weighted else x)


class FormulaLoss(LossBase):
    """A loss by `formula(loss, logits, labels)`, also in `ops`. parts: (attribute, operator class) that it needs."""

    formula: Callable[..., Any]
    parts: tuple[tuple[str, Callable[[], Primitive]], ...] = ()

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)
        for name, operator in self.parts:
            setattr(self, name, operator())

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.formula(logits, labels)


class MSELoss(FormulaLoss):
    """Squared difference: Sub, Square, ReduceMean or ReduceSum.  logits, labels: (...) broadcast -> () or (...)."""

    formula = losses.mse_of
    parts = (("sub", sub.primitive), ("square", square.primitive))


class L1Loss(FormulaLoss):
    """Absolute difference: Sub, Abs, then ReduceMean or ReduceSum.  logits, labels: (...) broadcast -> () or (...)."""

    formula = losses.l1_of
    parts = (("sub", sub.primitive), ("abs", abs_.primitive))


MAELoss = L1Loss  # MindSpore has both names


class HuberLoss(LossBase):
    """0.5 d^2 where |d| <= delta, delta (|d| - 0.5 delta) elsewhere.  logits, labels: (...) -> () or (...)."""

    @kept(delta=number(0, above=True))
    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def construct(self, logits: Any, labels: Any) -> Any:
        return huber_loss(logits, labels, self.reduction, self.delta)


class SmoothL1Loss(FormulaLoss):
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere (Girshick 2015).  logits, labels: (...) -> () or (...).

    By default nothing is reduced, as in MindSpore. Operator: `smooth_l1`.
    """

    formula = losses.smooth_l1_of
    other_names: ClassVar = {**LossBase.other_names, "smooth_l1_loss": "smooth_l1"}

    @kept(beta=number(0, above=True))
    def __init__(self, beta: float = 1.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.smooth_l1 = smooth_l1_values.primitive(beta=beta)


class KLDivLoss(Cell):
    """labels * (log labels - logits), reduced.  logits (log-probabilities), labels: (...) -> () or (...).

    reduction  "mean" over all elements, "batchmean": the sum divided by the size of dim 0, "sum", "none"

    Operator: `kl_div_loss` (KLDivLoss).
    """

    @kept(reduction=choice("none", "mean", "batchmean", "sum"))
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.kl_div_loss = kl_div_loss.primitive(reduction)

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.kl_div_loss(logits, labels)


def factor_tensor(value: Any, where: str, name: str) -> Any:
    """A tensor that multiplies losses; 1.0 for None."""
    if value is None:
        return 1.0
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        raise ArgumentTypeError(f"{name}={shorten(value)}", where=where, allowed="A Tensor, an array, or None")
    return Tensor(value if value.dtype == np.float64 else value.astype(np.float32))


class BCELoss(FormulaLoss):
    """Binary cross-entropy: -weight * (y log x + (1 - y) log(1 - x)).  logits: x, labels: y -> () or (...).

    weight  numbers that broadcast to the elements; a mean divides by the number of elements

    Operator: `binary_cross_entropy`. Logarithms are at least -100.
    """

    formula = losses.binary_of
    parts = (("binary_cross_entropy", partial(binary_cross_entropy_values.primitive, "none")),)

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = factor_tensor(weight, "BCELoss", "weight")


class BCEWithLogitsLoss(FormulaLoss):
    """Binary cross-entropy of a sigmoid, without overflow.  logits, labels: (...) -> () or (...).

    weight      numbers that broadcast to the elements and multiply their losses
    pos_weight  numbers that broadcast to the elements and multiply the part of label 1

    Operator: `bce_with_logits` (BCEWithLogitsLoss).
    """

    formula = losses.binary_logits_of
    other_names: ClassVar = {**LossBase.other_names, "bce_with_logits_loss": "bce_with_logits"}
    parts = (("bce_with_logits", partial(bce_with_logits_values.primitive, "none")),)

    def __init__(self, reduction: str = "mean", weight: Any = None, pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self.weight = factor_tensor(weight, "BCEWithLogitsLoss", "weight")
        self.pos_weight = factor_tensor(pos_weight, "BCEWithLogitsLoss", "pos_weight")
