"""Losses of pairs of numbers that no lesson has, each with its three reductions."""

from __future__ import annotations

import numpy as np

from ...base.checks import choice, number
from ...ops.elementwise import float_result, mul, sub
from ...ops.losses import (
    FormulaParts,
    _check,
    _check_pairs,
    _reduced,
    _sigmoid_of_minus,
    _softplus_of_minus,
    _unlike,
    bce_with_logits_values,
    binary_logits_of,
    float_operand,
    mse_of,
    with_broadcast_warning,
)
from ...ops.machine.composed import composed
from ...ops.machine.operand_checks import refuse
from ...ops.machine.registry import case, form, gradient, op, unbroadcast
from ...ops.machine.signature import but_numbers, letters
from ...ops.reduce import reduce_mean, reduce_sum
from ...ops.spellings import function
from ...ops.unary import abs_, square

# logarithms of probabilities are at least this: a loss of 0 * infinity would not be a number (PyTorch, BCELoss)
LEAST_LOG = -100.0
# and so is x (1 - x), by which the gradient is divided (PyTorch and MindSpore, BCELoss)
LEAST_SPREAD = 1e-12
_INSIDE = {"low": 0.1, "high": 0.9}


def _log(x):
    """Logarithm, not below LEAST_LOG."""
    least, none = x.dtype.type(LEAST_LOG), x <= 0
    return np.where(none, least, np.maximum(np.log(np.where(none, x.dtype.type(1), x)), least))


@op(
    "...,...,...->...",
    name="BinaryCrossEntropy",
    numbers="weight",
    strategy_labels=but_numbers,
    check=_check_pairs,
    dtype=float_result,
    flops=10,
    example=(case((16, 8), (16, 8), (16, 8), **_INSIDE), case((8, 4, 2), (8, 4, 2), (4, 1), **_INSIDE)),
)
def binary_cross_entropy_values(logits, labels, weight):
    """-weight * (y log x + (1 - y) log(1 - x)), logs >= -100.  logits x, labels y, weight: (...) -> (...)."""
    one = logits.dtype.type(1)
    return -weight * (labels * _log(logits) + (one - labels) * _log(one - logits))


@gradient(binary_cross_entropy_values)
def binary_cross_entropy_grad(g, logits, labels, weight):
    """Gradient for the probabilities.  g, logits, labels: (...), weight: broadcast to (...) -> (...)."""
    least = max(LEAST_SPREAD, np.finfo(logits.dtype).tiny)
    return g * weight * (logits - labels) / np.maximum(logits * (1 - logits), least)


@gradient(binary_cross_entropy_values, "labels")
def binary_cross_entropy_label_grad(g, logits, weight):
    """Gradient for the labels.  g, logits: (...), weight: broadcast to (...) -> (...)."""
    return g * weight * (_log(1 - logits) - _log(logits))


@gradient(binary_cross_entropy_values, "weight")
def binary_cross_entropy_weight_grad(g, logits, labels):
    """Gradient for the weight.  g, logits, labels: (...) -> (...)."""
    return -g * (labels * _log(logits) + (1 - labels) * _log(1 - logits))


@op(
    "...,...->...",
    name="SmoothL1Loss",
    numbers="",
    attrs={"beta": number(0, above=True)},
    check=_check,
    dtype=float_result,
    example=case((16, 8), (16, 8), beta=0.7),
)
def smooth_l1_values(prediction, target, *, beta=1.0):
    """0.5 d^2 / beta where |d| = |prediction - target| < beta, else |d| - 0.5 beta.  Both: (...) -> (...)."""
    size = np.abs(prediction - target)
    return np.where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta).astype(size.dtype, copy=False)


@smooth_l1_values.vjp
def _(g, out, prediction, target, *, beta):
    grad = smooth_l1_grad(g, prediction, target, beta=beta)
    return unbroadcast(grad, prediction), unbroadcast(-grad, target)


def _alike(shapes, **_):
    names = letters(len(shapes[0]))
    return f"{names},{names}->{names}"


@op(
    _alike,
    name="SigmoidCrossEntropyWithLogits",
    check=_check,
    dtype=float_result,
    flops=8,
    example=(case((16, 8), (16, 8)), case((8, 4, 2), (8, 4, 2))),
)
def sigmoid_cross_entropy_with_logits(logits, label):
    """Cross-entropy of a sigmoid: (1 - y) x + log(1 + exp(-x)), no overflow.  logits x, label y: (...) -> (...)."""
    return (1 - label) * logits + _softplus_of_minus(logits)


@gradient(sigmoid_cross_entropy_with_logits, shown="SigmoidCrossEntropyWithLogitsGrad")
def sigmoid_cross_entropy_grad(g, logits, label):
    """Gradient for the logits: g * (sigmoid(x) - y).  g, logits, label: (...) -> (...)."""
    return g * (1 - label - _sigmoid_of_minus(logits))


@gradient(sigmoid_cross_entropy_with_logits, "label")
def sigmoid_cross_entropy_label_grad(g, logits, label):
    """Gradient for the labels: -g * x.  g, logits, label: (...) -> (...)."""
    return -g * logits


@op(_alike, check=_check, dtype=float_result, flops=5)
def kl_div_values(logits, labels):
    """labels * (log labels - logits), 0 where a label is not above 0.  logits, labels: (...) -> (...)."""
    some = labels > 0
    return np.where(some, labels, 0) * (np.log(np.where(some, labels, 1)) - logits)


kl_div_values.class_name = "KLDivLoss"  # in plans it is what it is a part of


@gradient(kl_div_values, shown="KLDivLossGrad")
def kl_div_grad(g, logits, labels):
    """Gradient for the logits: -g * labels.  g, logits, labels: (...) -> (...)."""
    return -g * np.maximum(labels, 0)


@gradient(kl_div_values, "labels")
def kl_div_label_grad(g, logits, labels):
    """Gradient for the labels: g * (log labels - logits + 1).  g, logits, labels: (...) -> (...)."""
    some = labels > 0
    return np.where(some, g * (np.log(np.where(some, labels, 1)) - logits + 1), np.zeros((), g.dtype))


@composed(
    lambda shapes, *, reduction: _alike(shapes) if reduction == "none" else _alike(shapes).partition(">")[0] + ">",
    name="KLDivLoss",
    attrs={"reduction": choice("none", "mean", "sum", "batchmean")},
    dtype=float_result,
    example=[case((8, 4, 2), (8, 4, 2), **_INSIDE, reduction=r) for r in ("none", "mean", "sum", "batchmean")],
)
def kl_div_loss(part, logits, labels, *, reduction="mean"):
    """labels * (log labels - logits), reduced.  logits (log-probabilities), labels: (...) -> (), or (...) for "none".

    reduction  "mean" over all elements, "batchmean": the sum divided by the size of dim 0, "sum", "none"
    """
    shape, names = tuple(logits.shape), letters(len(logits.shape))
    values = part(kl_div_values, logits, labels, labels=f"{names},{names}")
    if reduction == "none":
        return values
    if reduction == "mean":
        return part(reduce_mean, values, labels=names)
    total = part(reduce_sum, values, labels=names)
    return total if reduction == "sum" else part(mul, total, 1.0 / shape[0], labels=",")


@form(binary_cross_entropy_values, "BinaryCrossEntropy")
def _(self, logits, labels, weight=None, *, reduction="mean"):
    """-weight * (y log x + (1 - y) log(1 - x)).  logits x, labels y, weight: (...) -> (), or (...) for "none"."""
    return _reduced(self, reduction, self.run(logits, labels, 1.0 if weight is None else weight))


@form(smooth_l1_values, "SmoothL1Loss")
def _(self, logits, labels, *, beta=1.0, reduction="none"):
    """0.5 d^2 / beta where |d| < beta, else |d| - 0.5 beta.  logits, labels: (...) -> (...), or () if reduced."""
    values = self.run(logits, labels, beta=beta)
    refuse(self.name, _unlike(logits, labels))
    return _reduced(self, reduction, values)


def l1_of(loss, x, y):
    """Absolute difference.  x, y: (...) broadcast -> () or (...)."""
    return loss.get_loss(loss.abs(with_broadcast_warning("l1_loss", loss.sub(x, y), x, y)))


def binary_of(loss, x, y):
    """Binary cross-entropy of probabilities.  x, y: (...) -> () or (...)."""
    return loss.get_loss(loss.binary_cross_entropy(x, y, loss.weight))


@function(mint="functional.mse_loss")
def mse_loss(input, target, reduction="mean"):
    """Squared difference, as `nn.MSELoss`.  input, target: (...) broadcast -> (), or (...) for reduction="none"."""
    return mse_of(FormulaParts("mse_loss", reduction, sub=sub, square=square), input, target)


@function(mint="functional.l1_loss")
def l1_loss(input, target, reduction="mean"):
    """Absolute difference, as `nn.L1Loss`.  input, target: (...) broadcast -> (), or (...) for reduction="none"."""
    return l1_of(FormulaParts("l1_loss", reduction, sub=sub, abs=abs_), input, target)


@function()
def kl_div(logits, labels, reduction="mean"):
    """`kl_div_loss`: labels * (log labels - logits), reduced.  logits, labels: (...) -> (), or (...) for "none"."""
    return kl_div_loss(logits, labels, reduction=reduction)


@function()
def smooth_l1_loss(input, target, beta=1.0, reduction="none"):
    """`nn.SmoothL1Loss`: 0.5 d^2 / beta where |d| < beta, else |d| - 0.5 beta.  input, target: (...) -> (...) or ().

    By default nothing is reduced (MindSpore); PyTorch's function gives the mean.
    """
    parts = FormulaParts("smooth_l1_loss", reduction)
    values = smooth_l1_values(input, target, beta=beta)
    refuse("smooth_l1_loss", _unlike(input, target))
    return parts.get_loss(values)


@function()
def huber_loss(input, target, reduction="mean", delta=1.0):
    """0.5 d^2 where |d| <= delta, else delta (|d| - 0.5 delta): delta times `smooth_l1_loss`.  input, target: (...)
    broadcast -> () or (...).
    """
    parts = FormulaParts("huber_loss", reduction)
    values = with_broadcast_warning("huber_loss", smooth_l1_values(input, target, beta=delta), input, target)
    return mul(parts.get_loss(values), delta)


@function()
def binary_cross_entropy(logits, labels, weight=None, reduction="mean"):
    """-weight * (y log x + (1 - y) log(1 - x)), as `nn.BCELoss`.  logits: x, labels: y -> (), or (...) for "none".

    weight  broadcast to (...); a mean divides by the number of elements
    """
    weight = 1.0 if weight is None else float_operand(weight)
    settings = {"weight": weight, "binary_cross_entropy": binary_cross_entropy_values}
    return binary_of(FormulaParts("binary_cross_entropy", reduction, **settings), logits, labels)


@function()
def binary_cross_entropy_with_logits(logits, label, weight=None, pos_weight=None, reduction="mean"):
    """Binary cross-entropy of a sigmoid, as `nn.BCEWithLogitsLoss`.  logits, label: (...) -> (), or (...).

    weight, pos_weight  broadcast to (...): factors of the losses, and of their part for label 1
    """
    weight, pos_weight = (1.0 if w is None else float_operand(w) for w in (weight, pos_weight))
    settings = {"weight": weight, "pos_weight": pos_weight, "bce_with_logits": bce_with_logits_values}
    return binary_logits_of(FormulaParts("binary_cross_entropy_with_logits", reduction, **settings), logits, label)


# ---- the smooth loss ----


@op(result_shape=0, dtype=0, shown="SmoothL1LossGrad")
def smooth_l1_grad(g, prediction, target, *, beta):
    """Gradient for the prediction.  g: (...), prediction, target: broadcast to (...) -> (...)."""
    return g * np.clip((prediction - target) / beta, -1, 1)


def smooth_l1_of(loss, x, y):
    """Squared near 0, absolute beyond.  x, y: (...) -> () or (...)."""
    return loss.get_loss(loss.smooth_l1(x, y))
