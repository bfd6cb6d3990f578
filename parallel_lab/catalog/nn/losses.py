"""Losses of elements (L1, Huber, Kullback-Leibler, binary cross-entropy), and of classes: from log-probabilities, with
MindSpore's older arguments, expanded into small operators.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from ... import ops
from ...base.checks import choice, flag, kept, number
from ...nn.cell import Cell
from ...nn.layers.class_losses import ClassLoss
from ...nn.layers.losses import FormulaLoss, LossBase, factor_tensor
from ...nn.tensor.tensor import Tensor
from ...ops.elementwise import div
from ..ops import losses
from ..ops.class_losses import nll_of
from ..ops.elementary_functions import exp


class NLLLoss(ClassLoss):
    """Minus the log-probability of each sample's class.  logits: (n, c, ...) log-probabilities, labels: (n, ...) int ->
    () or (n, ...).

    weight        (c,), one number per class that multiplies its samples' losses
    ignore_index  class number of samples to leave out; a mean does not count them. Default None: every label is a class
    reduction     "mean": the sum of weighted losses divided by the sum of the weights; "sum"; "none"

    Operators: `nll` (NLLLoss) and, for a mean, `label_weight`, `reduce_sum`, `sum_weights`, `div`.
    """

    formula = nll_of

    def __init__(self, weight: Any = None, ignore_index: int | None = None, reduction: str = "mean") -> None:
        super().__init__(weight, ignore_index, reduction)
        self.nll = ops.NLLLoss(reduction="none", ignore_index=ignore_index)


class SoftmaxCrossEntropyWithLogits(LossBase):
    """Cross-entropy of a softmax.  logits: (a, c), labels: (a, c), or (a,) int if sparse -> () or, by default, (a,).

    As MindSpore's, by default nothing is reduced. The class dim stays whole in a parallel program. Operators: for a
    mean over class numbers `sparse_softmax_cross_entropy`, else `softmax_cross_entropy`, after `one_hot` if sparse.
    """

    @kept(sparse=flag)
    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.softmax_cross_entropy = ops.SoftmaxCrossEntropyWithLogits()
        self.sparse_softmax_cross_entropy = ops.SparseSoftmaxCrossEntropyWithLogits()
        self.one_hot = ops.OneHot()

    def construct(self, logits: Any, labels: Any) -> Any:
        if self.sparse and self.reduction == "mean":
            return self.sparse_softmax_cross_entropy(logits, labels)
        if self.sparse:
            on, off = (Tensor(value, str(logits.dtype)) for value in (1.0, 0.0))
            labels = self.one_hot(labels, ops.shape(logits)[-1], on, off)
        return self.get_loss(self.softmax_cross_entropy(logits, labels)[0])


class SoftmaxCrossEntropyExpand(Cell):
    """Mean cross-entropy written with small operators, each with its own strategy, also along the class dim.

    logits: (a, c), labels: (a, c) class weights, or (a,) int class numbers if sparse -> ().

    The logarithm is taken of the softmax itself, as the formula says: a probability that underflows to 0 gives an
    infinite loss, where the fused operators stay finite.
    """

    @kept(sparse=flag)
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.max, self.sub, self.exp = ops.ReduceMax(keep_dims=True), ops.Sub(), exp.primitive()
        self.sum, self.div, self.log = ops.ReduceSum(keep_dims=True), div.primitive(), ops.Log()
        self.onehot = ops.OneHot()
        self.on_value = Tensor(1.0, np.float32)
        self.off_value = Tensor(0.0, np.float32)
        self.mul, self.sum_cross_entropy = ops.Mul(), ops.ReduceSum(keep_dims=False)
        self.mul2, self.mean = ops.Mul(), ops.ReduceMean(keep_dims=False)

    def construct(self, logit: Any, label: Any) -> Any:
        exp = self.exp(self.sub(logit, self.max(logit, -1)))
        softmax = self.div(exp, self.sum(exp, -1))
        if self.sparse:
            label = self.onehot(label, ops.shape(logit)[1], self.on_value, self.off_value)
        loss = self.sum_cross_entropy(self.mul(self.log(softmax), label), -1)
        return self.mean(self.mul2(ops.scalar_to_array(-1.0), loss), -1)


class L1Loss(FormulaLoss):
    """Absolute difference: Sub, Abs, then ReduceMean or ReduceSum.  logits, labels: (...) broadcast -> () or (...)."""

    formula = losses.l1_of
    parts = (("sub", ops.Sub), ("abs", ops.Abs))


MAELoss = L1Loss  # MindSpore has both names


class HuberLoss(LossBase):
    """0.5 d^2 where |d| <= delta, delta (|d| - 0.5 delta) elsewhere.  logits, labels: (...) -> () or (...)."""

    @kept(delta=number(0, above=True))
    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def construct(self, logits: Any, labels: Any) -> Any:
        return ops.huber_loss(logits, labels, self.reduction, self.delta)


class SmoothL1Loss(FormulaLoss):
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere (Girshick 2015).  logits, labels: (...) -> () or (...).

    By default nothing is reduced, as in MindSpore. Operator: `smooth_l1`.
    """

    formula = losses.smooth_l1_of
    other_names: ClassVar = {**LossBase.other_names, "smooth_l1_loss": "smooth_l1"}

    @kept(beta=number(0, above=True))
    def __init__(self, beta: float = 1.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.smooth_l1 = ops.SmoothL1Loss(beta=beta)


class KLDivLoss(Cell):
    """labels * (log labels - logits), reduced.  logits (log-probabilities), labels: (...) -> () or (...).

    reduction  "mean" over all elements, "batchmean": the sum divided by the size of dim 0, "sum", "none"

    Operator: `kl_div_loss` (KLDivLoss).
    """

    @kept(reduction=choice("none", "mean", "batchmean", "sum"))
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.kl_div_loss = ops.KLDivLoss(reduction)

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.kl_div_loss(logits, labels)


class BCELoss(FormulaLoss):
    """Binary cross-entropy: -weight * (y log x + (1 - y) log(1 - x)).  logits: x, labels: y -> () or (...).

    weight  numbers that broadcast to the elements; a mean divides by the number of elements

    Operator: `binary_cross_entropy`. Logarithms are at least -100.
    """

    formula = losses.binary_of
    parts = (("binary_cross_entropy", partial(ops.BinaryCrossEntropy, "none")),)

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = factor_tensor(weight, "BCELoss", "weight")
