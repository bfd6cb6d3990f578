"""Losses of margins, of pairs and triples, of distributions: the functions of `catalog/ops/margin_losses.py` as Cells.

loss = nn.TripletMarginLoss(margin=0.5)      # (anchor, positive, negative) -> ()
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ...base.checks import checked, flag, integer, kept, number
from ...nn.cell import Cell
from ...nn.layers.losses import LossBase, factor_tensor
from ...ops.elementwise import div


class CosineEmbeddingLoss(LossBase):
    """1 - cos where the label is 1, else max(0, cos - margin).  logits_x1, logits_x2: (n, d), labels: (n,) -> ()."""

    @kept(margin=number(-1, 1))
    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def construct(self, logits_x1: Any, logits_x2: Any, labels: Any) -> Any:
        return ops.cosine_embedding_loss(logits_x1, logits_x2, labels, self.margin, self.reduction)


class MarginRankingLoss(LossBase):
    """max(0, margin - target * (input1 - input2)), target 1 or -1.  All: (...) -> () or (...)."""

    @kept(margin=number())
    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def construct(self, input1: Any, input2: Any, target: Any) -> Any:
        return ops.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class SoftMarginLoss(LossBase):
    """log(1 + exp(-labels * logits)), labels 1 or -1.  logits, labels: (...) -> () or (...)."""

    def construct(self, logits: Any, labels: Any) -> Any:
        return ops.soft_margin_loss(logits, labels, self.reduction)


class HingeEmbeddingLoss(LossBase):
    """x where the label is 1, max(0, margin - x) where it is -1.  logits, labels: (...) -> () or (...)."""

    @kept(margin=number())
    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def construct(self, logits: Any, labels: Any) -> Any:
        return ops.hinge_embedding_loss(logits, labels, self.margin, self.reduction)


class TripletMarginLoss(LossBase):
    """max(0, margin + d(x, positive) - d(x, negative)), d the p-norm.  x, positive, negative: (n, d) -> () or (n,).

    swap  the smaller of d(x, negative) and d(positive, negative);  eps  added to differences
    """

    @kept(p=integer(), swap=flag, eps=number(0), margin=number())
    def __init__(
        self, p: int = 2, swap: bool = False, eps: float = 1e-6, reduction: str = "mean", margin: float = 1.0
    ) -> None:
        super().__init__(reduction)

    def construct(self, x: Any, positive: Any, negative: Any, margin: Any = None) -> Any:
        margin = self.margin if margin is None else margin
        return ops.triplet_margin_loss(x, positive, negative, margin, self.p, self.eps, self.swap, self.reduction)


class GaussianNLLLoss(LossBase):
    """(log var + (logits - labels)^2 / var) / 2, var at least eps.  All: (...) -> (). full: plus log(2 pi) / 2."""

    @kept(full=flag, eps=number(0, above=True))
    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def construct(self, logits: Any, labels: Any, var: Any) -> Any:
        return ops.gaussian_nll_loss(logits, labels, var, self.full, self.eps, self.reduction)


class PoissonNLLLoss(LossBase):
    """exp(x) - target * x, or x - target * log(x + eps) without log_input.  input x, target: (...) -> () or (...).

    full  plus t log t - t + log(2 pi t) / 2 for targets t above 1
    """

    @kept(log_input=flag, full=flag, eps=number(0, above=True))
    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def construct(self, input: Any, target: Any) -> Any:
        return ops.poisson_nll_loss(input, target, self.log_input, self.full, self.eps, self.reduction)


class MultiLabelSoftMarginLoss(LossBase):
    """Mean over the classes of binary cross-entropies.  x, target: (n, c) -> () or (n,). weight: (c,), or None."""

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = None if weight is None else factor_tensor(weight, "MultiLabelSoftMarginLoss", "weight")

    def construct(self, x: Any, target: Any) -> Any:
        return ops.multilabel_soft_margin_loss(x, target, self.weight, self.reduction)


class RMSELoss(Cell):
    """Square root of the mean squared difference.  logits, label: (...) -> ()."""

    def construct(self, logits: Any, label: Any) -> Any:
        return ops.sqrt(ops.mse_loss(logits, label))


class DiceLoss(Cell):
    """1 - 2 sum(x y) / (sum(x^2) + sum(y^2) + smooth).  logits x, label y: (...) -> ()."""

    @checked(smooth=number(0, above=True))
    def __init__(self, smooth: float = 1e-5) -> None:
        super().__init__()
        self.smooth = smooth

    def construct(self, logits: Any, label: Any) -> Any:
        both = ops.reduce_sum(ops.mul(logits, label))
        apart = ops.add(ops.reduce_sum(ops.square(logits)), ops.reduce_sum(ops.square(label)))
        return ops.sub(1.0, div(ops.mul(both, 2.0), ops.add(apart, self.smooth)))
