"""Losses that compare element with element, made of operators that can be sharded one by one, and `WithLossCell`, which
joins a network and its loss.

Cross-entropies are in `class_losses.py`; the formulas, shared with the functions (`ops.mse_loss`), in `ops/losses.py`.

loss = nn.MSELoss()
net_with_loss = nn.WithLossCell(net, loss)      # (data, label) -> loss
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...base.checks import checked, number
from ...base.errors import ArgumentTypeError, ShapeError, shorten
from ...ops import losses
from ..cell import Cell
from ..tensor.tensor import Tensor

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "L1Loss",
    "LossBase",
    "MAELoss",
    "MSELoss",
    "SmoothL1Loss",
    "WithLossCell",
    "check_outputs",
]


class LossBase(Cell):
    """Base of losses. `get_loss` combines the values of the samples.

    reduction  "mean", "sum" or "none" (the values themselves)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = losses.check_reduction(type(self).__name__, reduction)
        self.reduce_mean = ops.ReduceMean()
        self.reduce_sum = ops.ReduceSum()

    def get_loss(self, x: Any) -> Any:
        """Mean or sum over all dims, or x itself.  x: (...) -> () or (...)."""
        return losses.reduced(self, x)

    def extend_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class MSELoss(LossBase):
    """Squared difference: Sub, Square, then ReduceMean or ReduceSum.  logits, labels: (...) broadcast -> () or
    (...).
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.sub = ops.Sub()
        self.square = ops.Square()

    def construct(self, logits: Any, labels: Any) -> Any:
        return losses.mse_of(self, logits, labels)


class L1Loss(LossBase):
    """Absolute difference: Sub, Abs, then ReduceMean or ReduceSum.  logits, labels: (...) broadcast -> () or (...)."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.sub = ops.Sub()
        self.abs = ops.Abs()

    def construct(self, logits: Any, labels: Any) -> Any:
        return losses.l1_of(self, logits, labels)


MAELoss = L1Loss  # MindSpore has both names


class SmoothL1Loss(LossBase):
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere (Girshick 2015).  logits, labels: (...) -> () or (...).

    By default nothing is reduced, as in MindSpore. Operator: `smooth_l1`.
    """

    @checked(beta=number(0, above=True))
    def __init__(self, beta: float = 1.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.beta = beta
        self.smooth_l1 = ops.SmoothL1Loss(beta=self.beta)

    def construct(self, logits: Any, labels: Any) -> Any:
        return losses.smooth_l1_of(self, logits, labels)

    def extend_repr(self) -> str:
        return f"beta={self.beta}, {super().extend_repr()}"


def _factor(value: Any, where: str, name: str) -> Any:
    """A number or tensor that multiplies losses; 1.0 for None."""
    if value is None:
        return 1.0
    if isinstance(value, Tensor):
        return value
    array = (
        np.asarray(value)
        if isinstance(value, (list, tuple, np.ndarray, int, float)) and not isinstance(value, bool)
        else None
    )
    if array is None or array.dtype.kind not in "fiu":
        raise ArgumentTypeError(f"{name}={shorten(value)}", where=where, allowed="A Tensor, an array, numbers, or None")
    return Tensor(
        array.astype(array.dtype if array.dtype == np.float64 and isinstance(value, np.ndarray) else np.float32)
    )


class BCELoss(LossBase):
    """Binary cross-entropy: -weight * (y log x + (1 - y) log(1 - x)).  logits: (...) probabilities x, labels: (...) y
    -> () or (...).

    weight  numbers that broadcast to the elements; a mean divides by the number of elements

    Operator: `binary_cross_entropy`. Logarithms are at least -100.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = _factor(weight, "BCELoss", "weight")
        self.binary_cross_entropy = ops.BinaryCrossEntropy()

    def construct(self, logits: Any, labels: Any) -> Any:
        return losses.binary_of(self, logits, labels)


class BCEWithLogitsLoss(LossBase):
    """Binary cross-entropy of a sigmoid, without overflow.  logits, labels: (...) -> () or (...).

    weight      numbers that broadcast to the elements and multiply their losses
    pos_weight  numbers that broadcast to the elements and multiply the part of label 1

    Operator: `bce_with_logits` (BCEWithLogitsLoss).
    """

    def __init__(self, reduction: str = "mean", weight: Any = None, pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self.weight, self.pos_weight = (
            _factor(weight, "BCEWithLogitsLoss", "weight"),
            _factor(pos_weight, "BCEWithLogitsLoss", "pos_weight"),
        )
        self.bce_with_logits = ops.BCEWithLogitsLoss()

    def construct(self, logits: Any, labels: Any) -> Any:
        return losses.binary_logits_of(self, logits, labels)


def check_outputs(outputs: Any) -> Any:
    """What a network returned, on its way to a loss. Raises ShapeError for truth values, which no training can change:
    they have no gradient.
    """
    for out in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        if str(getattr(out, "dtype", "")) == "bool":
            nodes = getattr(getattr(out, "tracer", None), "nodes", ())
            made = next((node for node in nodes if node.name == out.name), None)
            by = f", made by {made.op_class} {made.name!r} ({made.origin.place})" if made is not None else ""
            hint = (
                "Return the numbers themselves, and let the loss compare them with the label; comparisons (Equal, "
                "Greater, ...) belong to metrics"
            )
            raise ShapeError(
                f"the network returns truth values{by}",
                where="loss",
                allowed="Numbers: a comparison has no gradient",
                hint=hint,
            )
    return outputs


class WithLossCell(Cell):
    """A network and its loss as one Cell: (data, ..., label) -> loss_fn(backbone(data, ...), label).

    Parameters keep the names they have in the network.
    """

    def __init__(self, backbone: Cell, loss_fn: Cell | Callable[[Any, Any], Any]) -> None:
        super().__init__(auto_prefix=False)
        for name, value in (("backbone", backbone), ("loss_fn", loss_fn)):
            if not callable(value):
                raise ArgumentTypeError(
                    f"{name}={shorten(value)}", where="WithLossCell", allowed="A Cell or a function"
                )
        self._backbone = backbone
        self._loss_fn = loss_fn

    def construct(self, data: Any, label: Any, *more: Any) -> Any:
        *data, label = (data, label, *more)  # a backbone may take several inputs; the label is last
        return self._loss_fn(check_outputs(self._backbone(*data)), label)

    @property
    def backbone_network(self) -> Cell:
        """The network without its loss."""
        return self._backbone
