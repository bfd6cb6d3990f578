"""Cross-entropy of classes: fused, weighted.

    loss = nn.CrossEntropyLoss(weight=Tensor([1.0, 2.0, 1.0]), ignore_index=-100)

A weighted mean is sum(weight * loss) / sum(weight), with both sums over the whole batch: two all_reduces when the batch
is split, where a mean of the ranks' means would be wrong where their weights differ. The formulas are those of the
functions, in `ops/class_losses.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import floating, integer, kept
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...ops.class_losses import (
    class_cross_entropy,
    cross_entropy_of,
    label_weight,
    softmax_cross_entropy,
    sparse_cross_entropy,
)
from ...ops.elementwise import add, div, mul
from ...ops.reduce import reduce_sum
from ...ops.shape import reshape, transpose
from ..tensor.tensor import Tensor
from .losses import FormulaLoss

__all__ = ["CrossEntropyLoss"]


def _class_weights(weight: Any, where: str) -> Tensor | None:
    """Weights of classes as a Tensor (c,), or None."""
    if weight is None:
        return None
    values = weight.asnumpy() if isinstance(weight, Tensor) else weight
    values = values if isinstance(values, np.ndarray) else np.empty(0, object)
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise ArgumentTypeError(f"weight={shorten(weight)}", where=where, allowed="A Tensor of one number per class")
    if not np.all(np.isfinite(values)) or np.any(values < 0) or not np.any(values > 0):
        allowed = "Finite numbers, at least 0, not all of them 0"
        raise ArgumentError(f"weight={shorten(weight)}", where=where, allowed=allowed)
    return Tensor(values if values.dtype.kind == "f" else values.astype(np.float32))


class ClassLoss(FormulaLoss):
    """What losses with class weights and ignored samples share."""

    parts = (("sum_weights", reduce_sum.primitive), ("div", div.primitive))

    @kept(ignore_index=integer() | None)
    def __init__(self, weight: Any, ignore_index: int | None, reduction: str) -> None:
        super().__init__(reduction)
        self.weight = _class_weights(weight, type(self).__name__)
        self.label_weight = label_weight.primitive(ignore_index=ignore_index)


class CrossEntropyLoss(ClassLoss):
    """Cross-entropy of a softmax.  logits: (n, c), labels: (n,) int classes or (n, c) class weights -> () or (n,).

    With further dims every position is a sample: logits (n, c, d1, ...), labels (n, d1, ...) or (n, c, d1, ...) -> ()
    or (n, d1, ...).

    weight           (c,), one number per class that multiplies its samples' losses
    ignore_index     class numbers to leave out; a mean does not count them. Default None: every label is a class.
                     (MindSpore's default is -100; here leaving out is asked for, because the mean then needs a second
                     sum over all ranks)
    reduction        "mean": with class numbers, the sum of weighted losses over the sum of the weights; "sum"; "none"
    label_smoothing  share of the target that is spread over all classes equally (Szegedy et al. 2016)

    Operators: for class numbers `sparse_cross_entropy`, or with any of the options `class_cross_entropy`,
    `label_weight`, `reduce_sum`, `sum_weights`, `div`; for class weights `softmax_cross_entropy`. With class numbers
    the class dim may be split, `loss.sparse_cross_entropy.shard(((1, 8), (1,)))`: the logits stay where they are, and
    the messages have a number or two per label. With class weights it stays whole; `SoftmaxCrossEntropyExpand` may
    split it.
    """

    @kept(label_smoothing=floating(0, 1))
    def __init__(
        self, weight: Any = None, ignore_index: int | None = None, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        self.sparse_cross_entropy = sparse_cross_entropy.primitive()
        self.softmax_cross_entropy = softmax_cross_entropy.primitive()
        self.class_cross_entropy = class_cross_entropy.primitive(
            ignore_index=ignore_index, label_smoothing=label_smoothing
        )
        self.smooth_mul, self.smooth_add, self.weight_mul = mul.primitive(), add.primitive(), mul.primitive()
        self.classes_last, self.labels_last = transpose.primitive(), transpose.primitive()
        self.rows, self.label_rows, self.positions = reshape.primitive(), reshape.primitive(), reshape.primitive()

    def construct(self, logits: Any, labels: Any) -> Any:
        return cross_entropy_of(self, logits, labels, self._where())
