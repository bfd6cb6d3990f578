"""Cross-entropy losses: fused, weighted, from log-probabilities, and expanded into small operators.

    loss = nn.CrossEntropyLoss(weight=[1.0, 2.0, 1.0], ignore_index=-100)

A weighted mean is sum(weight * loss) / sum(weight), with both sums over the whole batch: two all_reduces when the batch is cut, where a mean of the
ranks' means would be wrong as soon as their weights differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..errors import ArgumentError, ArgumentTypeError, ShapeError, message, shorten
from ..tensor import Tensor
from .cell import Cell
from .checks import flag, number, whole_number
from .loss import LossBase

__all__ = ["CrossEntropyLoss", "NLLLoss", "SoftmaxCrossEntropyExpand", "SoftmaxCrossEntropyWithLogits"]


def _class_weights(weight: Any, where: str) -> Tensor | None:
    """Weights of classes as a Tensor (c,), or None."""
    if weight is None:
        return None
    try:
        values = np.asarray(weight.asnumpy() if isinstance(weight, Tensor) else weight)
    except ValueError:
        values = np.empty(0, object)
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise ArgumentTypeError(message(f"weight={shorten(weight)}", where=where, allowed="One number per class: (c,), or None"))
    if not np.all(np.isfinite(values)) or np.any(values < 0) or not np.any(values > 0):
        raise ArgumentError(message(f"weight={shorten(weight)}", where=where, allowed="Finite numbers, at least 0, not all of them 0"))
    return Tensor(values if values.dtype.kind == "f" else values.astype(np.float32))


class _ClassLoss(LossBase):
    """What losses with class weights and ignored samples share."""

    def __init__(self, weight: Any, ignore_index: int | None, reduction: str) -> None:
        super().__init__(reduction)
        where = type(self).__name__
        self.weight = _class_weights(weight, where)
        self.ignore_index = None if ignore_index is None else whole_number(ignore_index, where, "ignore_index")
        self.label_weight = ops.LabelWeight(ignore_index=self.ignore_index)
        self.sum_weights = ops.ReduceSum()
        self.div = ops.Div()
        self._ones: dict[int, Tensor] = {}

    def _weights(self, logits: Any) -> Tensor:
        """Weights for the classes of these logits; ones if none were given."""
        classes = ops.shape(logits)[1]
        if self.weight is None:
            return self._ones.setdefault(classes, Tensor(np.ones(classes, np.float32)))
        return self.weight

    def _combined(self, losses: Any, labels: Any, weights: Tensor) -> Any:
        """The weighted losses reduced: a mean divides by the sum of the samples' weights."""
        if self.reduction != "mean" or (self.weight is None and self.ignore_index is None):
            return self.get_loss(losses)
        counted = self.label_weight(labels, weights)
        if str(counted.dtype) != str(losses.dtype):
            counted = ops.cast(counted, str(losses.dtype))
        return self.div(self.reduce_sum(losses), self.sum_weights(counted))

    def extend_repr(self) -> str:
        return f"{super().extend_repr()}, ignore_index={self.ignore_index}"


def _is_integer(labels: Any) -> bool:
    return np.dtype(str(labels.dtype)).kind in "iu"


class CrossEntropyLoss(_ClassLoss):
    """Cross-entropy of a softmax.  logits: (n, c), labels: (n,) int class numbers, or (n, c) float class weights -> () or (n,).

    With further dims every position is a sample: logits (n, c, d1, ...), labels (n, d1, ...) or (n, c, d1, ...) -> () or (n, d1, ...).

    weight           (c,), one number per class that multiplies its samples' losses
    ignore_index     class numbers to leave out; a mean does not count them. Default None: every label is a class. (MindSpore's default is -100; here
                     leaving out is asked for, because the mean then needs a second sum over all ranks)
    reduction        "mean": with class numbers, the sum of weighted losses divided by the sum of the weights; "sum"; "none"
    label_smoothing  share of the target that is spread over all classes equally (Szegedy et al. 2016)

    The class dim stays whole in a parallel program; `SoftmaxCrossEntropyExpand` may cut it. Operators: `sparse_softmax_cross_entropy` or
    `softmax_cross_entropy`; for class numbers with any of the options `class_cross_entropy`, `label_weight`, `reduce_sum`, `sum_weights`, `div`.
    """

    def __init__(self, weight: Any = None, ignore_index: int | None = None, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(weight, ignore_index, reduction)
        self.label_smoothing = number(label_smoothing, "CrossEntropyLoss", "label_smoothing", 0, 1)
        self.sparse_softmax_cross_entropy = ops.SparseSoftmaxCrossEntropyWithLogits()
        self.softmax_cross_entropy = ops.SoftmaxCrossEntropyWithLogits()
        self.class_cross_entropy = ops.ClassCrossEntropy(ignore_index=self.ignore_index, label_smoothing=self.label_smoothing)
        self.smooth_mul, self.smooth_add, self.weight_mul = ops.Mul(), ops.Add(), ops.Mul()
        self.classes_last, self.labels_last = ops.Transpose(), ops.Transpose()
        self.rows, self.label_rows, self.positions = ops.Reshape(), ops.Reshape(), ops.Reshape()

    def construct(self, logits: Any, labels: Any) -> Any:
        is_integer, shape, given = _is_integer(labels), ops.shape(logits), ops.shape(labels)
        fits = (shape[0], *shape[2:]) if is_integer else shape
        if len(shape) < 2 or given != fits:
            raise ShapeError(
                message(
                    f"logits of shape {shape} with labels of shape {given}, {labels.dtype}",
                    where=self._where(),
                    allowed="Logits (a, c) with int labels (a,), or with float labels (a, c)",
                    hint="Further dims of logits are positions with a label each: (a, c, d1, ...) with (a, d1, ...)" if len(shape) > 2 else "",
                )
            )
        if self.weight is not None and self.weight.shape != (shape[1],):
            raise ShapeError(message(f"weight has {self.weight.shape[0]} numbers", where=self._where(), allowed=f"One per class: {shape[1]}"))
        if not is_integer:
            return self.get_loss(self._against_weights(logits, labels))
        if self.weight is None and self.ignore_index is None and not self.label_smoothing and len(shape) == 2:
            return self.get_loss(self.sparse_softmax_cross_entropy(logits, labels))
        weights = self._weights(logits)
        return self._combined(self.class_cross_entropy(logits, labels, weights), labels, weights)

    def _against_weights(self, logits: Any, labels: Any) -> Any:
        """Loss of every sample against given class weights."""
        shape = ops.shape(logits)
        if len(shape) > 2:
            perm = (0, *range(2, len(shape)), 1)
            logits = self.rows(self.classes_last(logits, perm), (-1, shape[1]))
            labels = self.label_rows(self.labels_last(labels, perm), (-1, shape[1]))
        if self.label_smoothing:
            labels = self.smooth_add(self.smooth_mul(labels, 1 - self.label_smoothing), self.label_smoothing / shape[1])
        if self.weight is not None:
            labels = self.weight_mul(labels, self.weight)
        losses = self.softmax_cross_entropy(logits, labels)
        return losses if len(shape) == 2 else self.positions(losses, (shape[0], *shape[2:]))

    def extend_repr(self) -> str:
        return f"{super().extend_repr()}, label_smoothing={self.label_smoothing}"


class NLLLoss(_ClassLoss):
    """Minus the log-probability of each sample's class.  logits: (n, c, ...) log-probabilities, labels: (n, ...) int -> () or (n, ...).

    weight, ignore_index, reduction  as in CrossEntropyLoss

    Operators: `nll` (NLLLoss) and, for a mean, `label_weight`, `reduce_sum`, `sum_weights`, `div`.
    """

    def __init__(self, weight: Any = None, ignore_index: int | None = None, reduction: str = "mean") -> None:
        super().__init__(weight, ignore_index, reduction)
        self.nll = ops.NLLLoss(ignore_index=self.ignore_index)

    def construct(self, logits: Any, labels: Any) -> Any:
        weights = self._weights(logits) if len(ops.shape(logits)) > 1 else Tensor(np.ones(1, np.float32))
        return self._combined(self.nll(logits, labels, weights), labels, weights)


class SoftmaxCrossEntropyWithLogits(LossBase):
    """Cross-entropy of a softmax.  logits: (a, c), labels: (a, c) class weights, or (a,) int class numbers if sparse -> () or (a,).

    As MindSpore's, by default nothing is reduced. The class dim stays whole in a parallel program.
    """

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.sparse = flag(sparse, "SoftmaxCrossEntropyWithLogits", "sparse")
        self.softmax_cross_entropy = ops.SparseSoftmaxCrossEntropyWithLogits() if sparse else ops.SoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.get_loss(self.softmax_cross_entropy(logits, labels))

    def extend_repr(self) -> str:
        return f"sparse={self.sparse}, {super().extend_repr()}"


class SoftmaxCrossEntropyExpand(Cell):
    """Mean cross-entropy written with small operators, so that every one can take its own strategy, also along the class dim.

    logits: (a, c), labels: (a, c) class weights, or (a,) int class numbers if sparse -> ().

    The logarithm is taken of the softmax itself, as the formula says: a probability that underflows to 0 gives an infinite loss, where the fused
    operators stay finite.
    """

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.sparse = flag(sparse, "SoftmaxCrossEntropyExpand", "sparse")
        self.max = ops.ReduceMax(keep_dims=True)
        self.sub = ops.Sub()
        self.exp = ops.Exp()
        self.sum = ops.ReduceSum(keep_dims=True)
        self.div = ops.Div()
        self.log = ops.Log()
        self.onehot = ops.OneHot()
        self.on_value = Tensor(1.0, np.float32)
        self.off_value = Tensor(0.0, np.float32)
        self.mul = ops.Mul()
        self.sum_cross_entropy = ops.ReduceSum(keep_dims=False)
        self.mul2 = ops.Mul()
        self.mean = ops.ReduceMean(keep_dims=False)

    def construct(self, logit: Any, label: Any) -> Any:
        exp = self.exp(self.sub(logit, self.max(logit, -1)))
        softmax = self.div(exp, self.sum(exp, -1))
        if self.sparse:
            label = self.onehot(label, ops.shape(logit)[1], self.on_value, self.off_value)
        loss = self.sum_cross_entropy(self.mul(self.log(softmax), label), -1)
        return self.mean(self.mul2(ops.scalar_to_array(-1.0), loss), -1)

    def extend_repr(self) -> str:
        return f"sparse={self.sparse}"
