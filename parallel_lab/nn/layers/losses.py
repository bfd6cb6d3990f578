"""Losses that compare element with element, made of operators that can be sharded one by one.

Cross-entropies are in `class_losses.py`; the formulas, shared with the functions (`ops.mse_loss`), in `ops/losses.py`.

loss = nn.MSELoss()
net_with_loss = nn.WithLossCell(net, loss)      # (data, label) -> loss; `nn/feeding.py`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...base.checks import choice, kept
from ...base.errors import ArgumentTypeError, shorten
from ...ops import losses
from ...ops.elementwise import cast, mul, sub
from ...ops.losses import bce_with_logits_values
from ...ops.machine.primitive import Primitive
from ...ops.reduce import reduce_mean, reduce_sum
from ...ops.unary import square
from ..cell import Cell
from ..tensor.tensor import Tensor

__all__ = ["BCEWithLogitsLoss", "LossBase", "MSELoss"]


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


def factor_tensor(value: Any, where: str, name: str) -> Any:
    """A tensor that multiplies losses; 1.0 for None."""
    if value is None:
        return 1.0
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        raise ArgumentTypeError(f"{name}={shorten(value)}", where=where, allowed="A Tensor, an array, or None")
    return Tensor(value if value.dtype == np.float64 else value.astype(np.float32))


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
