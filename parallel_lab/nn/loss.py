"""Losses, made of operators that can be sharded one by one, and `WithLossCell`, which joins a network and its loss.

loss = nn.MSELoss()
net_with_loss = nn.WithLossCell(net, loss)      # (data, label) -> loss
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..errors import ArgumentError, ArgumentTypeError, ShapeError, message, shorten
from ..tensor import Tensor
from .cell import Cell

__all__ = ["CrossEntropyLoss", "LossBase", "MSELoss", "SoftmaxCrossEntropyExpand", "SoftmaxCrossEntropyWithLogits", "WithLossCell"]


class LossBase(Cell):
    """Base of losses. `get_loss` combines the values of the samples.

    reduction  "mean", "sum" or "none" (the values themselves)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(message(f"reduction={shorten(reduction)}", where=type(self).__name__, allowed="'mean', 'sum' or 'none'"))
        self.reduction = reduction
        self.reduce_mean = ops.ReduceMean()
        self.reduce_sum = ops.ReduceSum()

    def get_loss(self, x: Any) -> Any:
        """Mean or sum over all dims, or x itself.  x: (...) -> () or (...)."""
        if self.reduction == "mean":
            return self.reduce_mean(x)
        return self.reduce_sum(x) if self.reduction == "sum" else x

    def extend_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class MSELoss(LossBase):
    """Squared difference: Sub, Square, then ReduceMean or ReduceSum.  logits, labels: (...) broadcast -> () or (...)."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.sub = ops.Sub()
        self.square = ops.Square()

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.get_loss(self.square(self.sub(logits, labels)))


class CrossEntropyLoss(LossBase):
    """Cross-entropy of a softmax.  logits: (a, c), labels: (a,) int class numbers, or (a, c) float class weights -> () or (a,).

    The class dim stays whole in a parallel program; `SoftmaxCrossEntropyExpand` may cut it.
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.sparse_softmax_cross_entropy = ops.SparseSoftmaxCrossEntropyWithLogits()
        self.softmax_cross_entropy = ops.SoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Any, labels: Any) -> Any:
        is_integer = np.dtype(str(labels.dtype)).kind in "iu"
        rows, dims = ops.shape(logits)[:1], len(ops.shape(labels))
        if dims != (1 if is_integer else 2) or ops.shape(labels)[:1] != rows:
            raise ShapeError(
                message(
                    f"logits of shape {ops.shape(logits)} with labels of shape {ops.shape(labels)}, {labels.dtype}",
                    where=type(self).__name__,
                    allowed="Logits (a, c) with int labels (a,), or with float labels (a, c)",
                )
            )
        op = self.sparse_softmax_cross_entropy if is_integer else self.softmax_cross_entropy
        return self.get_loss(op(logits, labels))


class SoftmaxCrossEntropyWithLogits(LossBase):
    """Cross-entropy of a softmax.  logits: (a, c), labels: (a, c) class weights, or (a,) int class numbers if sparse -> () or (a,).

    As MindSpore's, by default nothing is reduced. The class dim stays whole in a parallel program.
    """

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.sparse = _check_sparse(sparse, "SoftmaxCrossEntropyWithLogits")
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
        self.sparse = _check_sparse(sparse, "SoftmaxCrossEntropyExpand")
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


class WithLossCell(Cell):
    """A network and its loss as one Cell: (data, ..., label) -> loss_fn(backbone(data, ...), label).

    Parameters keep the names they have in the network.
    """

    def __init__(self, backbone: Cell, loss_fn: Cell | Callable[[Any, Any], Any]) -> None:
        super().__init__(auto_prefix=False)
        for name, value in (("backbone", backbone), ("loss_fn", loss_fn)):
            if not callable(value):
                raise ArgumentTypeError(message(f"{name}={shorten(value)}", where="WithLossCell", allowed="A Cell or a function"))
        self._backbone = backbone
        self._loss_fn = loss_fn

    def construct(self, data: Any, label: Any, *more: Any) -> Any:
        *data, label = (data, label, *more)  # a backbone may take several inputs; the label is last
        return self._loss_fn(self._backbone(*data), label)

    @property
    def backbone_network(self) -> Cell:
        """The network without its loss."""
        return self._backbone


def _check_sparse(sparse: Any, where: str) -> bool:
    if not isinstance(sparse, bool):
        raise ArgumentTypeError(message(f"sparse={shorten(sparse)}", where=where, allowed="True or False"))
    return sparse
