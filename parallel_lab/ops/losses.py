"""Losses as functions, and the formulas that they share with the loss Cells of `nn`.

    loss = ops.cross_entropy(logits, labels, label_smoothing=0.1)

A formula (`..._of`) is written with the operators and settings of the loss it is given: those of a Cell, which carry strategies, or plain ones.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np

from ..errors import ArgumentError, ShapeError, message, shorten
from .class_loss import check_ignore_index, check_smoothing, class_cross_entropy, label_weight, nll
from .elementwise import add, cast, div, mul, sub
from .functions import abs_, square
from .loss import softmax_cross_entropy, sparse_softmax_cross_entropy
from .pair_loss import bce_with_logits_values, binary_cross_entropy_values, smooth_l1_values
from .reduce import reduce_mean, reduce_sum
from .shape import reshape, transpose

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]


def check_reduction(where, reduction):
    """The reduction; ArgumentError unless it is one of the three."""
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        raise ArgumentError(message(f"reduction={shorten(reduction)}", where=where, allowed="'mean', 'sum' or 'none'"))
    return reduction


# ---- formulas ----


def reduced(loss, values):
    """Mean or sum over all dims, or the values themselves.  values: (...) -> () or (...)."""
    if loss.reduction == "mean":
        return loss.reduce_mean(values)
    return loss.reduce_sum(values) if loss.reduction == "sum" else values


def mse_of(loss, x, y):
    """Squared difference.  x, y: (...) broadcast -> () or (...)."""
    return loss.get_loss(loss.square(loss.sub(x, y)))


def l1_of(loss, x, y):
    """Absolute difference.  x, y: (...) broadcast -> () or (...)."""
    return loss.get_loss(loss.abs(loss.sub(x, y)))


def smooth_l1_of(loss, x, y):
    """Squared near 0, absolute beyond.  x, y: (...) broadcast -> () or (...)."""
    return loss.get_loss(loss.smooth_l1(x, y))


def binary_of(loss, x, y):
    """Binary cross-entropy of probabilities.  x, y: (...) -> () or (...)."""
    return loss.get_loss(loss.binary_cross_entropy(x, y, loss.weight))


def binary_logits_of(loss, x, y):
    """Binary cross-entropy of a sigmoid.  x, y: (...) -> () or (...)."""
    return loss.get_loss(loss.bce_with_logits(x, y, loss.weight, loss.pos_weight))


def _class_weights(loss, count):
    """The weights of `count` classes; ones if none were given."""
    return np.ones(count, np.float32) if loss.weight is None else loss.weight


def _weighted(loss, losses, labels, weights):
    """Weighted losses reduced: a mean divides by the sum of the samples' weights."""
    if loss.reduction != "mean" or (loss.weight is None and loss.ignore_index is None):
        return loss.get_loss(losses)
    counted = loss.label_weight(labels, weights)
    if str(counted.dtype) != str(losses.dtype):
        counted = cast(counted, str(losses.dtype))
    return loss.div(loss.reduce_sum(losses), loss.sum_weights(counted))


def nll_of(loss, logits, labels):
    """Minus the log-probability of each class.  logits: (n, c, ...), labels: (n, ...) int -> () or (n, ...)."""
    shape = tuple(logits.shape)
    weights = _class_weights(loss, shape[1] if len(shape) > 1 else 1)  # one dim is refused by the operator, in its words
    return _weighted(loss, loss.nll(logits, labels, weights), labels, weights)


def cross_entropy_of(loss, logits, labels, where):
    """Cross-entropy of a softmax.  logits: (n, c, ...), labels: (n, ...) int, or (n, c, ...) float -> () or (n, ...)."""
    is_integer, shape, given = np.dtype(str(labels.dtype)).kind in "iu", tuple(logits.shape), tuple(labels.shape)
    fits = (*shape[:1], *shape[2:]) if is_integer else shape
    if len(shape) < 2 or given != fits:
        what = f"logits of shape {shape} with labels of shape {given}, {labels.dtype}"
        hint = "Further dims of logits are positions with a label each: (a, c, d1, ...) with (a, d1, ...)" if len(shape) > 2 else ""
        raise ShapeError(message(what, where=where, allowed="Logits (a, c) with int labels (a,), or with float labels (a, c)", hint=hint))
    if loss.weight is not None and tuple(loss.weight.shape) != (shape[1],):
        given = f"{loss.weight.shape[0]} numbers" if len(loss.weight.shape) == 1 else f"shape {tuple(loss.weight.shape)}"
        raise ShapeError(message(f"weight has {given}", where=where, allowed=f"One per class: {shape[1]}"))
    if not is_integer:
        return loss.get_loss(_against_weights(loss, logits, labels))
    if loss.weight is None and loss.ignore_index is None and not loss.label_smoothing and len(shape) == 2:
        return loss.get_loss(loss.sparse_softmax_cross_entropy(logits, labels))
    weights = _class_weights(loss, shape[1])
    return _weighted(loss, loss.class_cross_entropy(logits, labels, weights), labels, weights)


def _against_weights(loss, logits, labels):
    """Loss of every sample against given class weights."""
    shape = tuple(logits.shape)
    if len(shape) > 2:
        perm = (0, *range(2, len(shape)), 1)
        logits = loss.rows(loss.classes_last(logits, perm), (-1, shape[1]))
        labels = loss.label_rows(loss.labels_last(labels, perm), (-1, shape[1]))
    if loss.label_smoothing:
        labels = loss.smooth_add(loss.smooth_mul(labels, 1 - loss.label_smoothing), loss.label_smoothing / shape[1])
    if loss.weight is not None:
        labels = loss.weight_mul(labels, loss.weight)
    losses = loss.softmax_cross_entropy(logits, labels)
    return losses if len(shape) == 2 else loss.positions(losses, (shape[0], *shape[2:]))


# ---- functions ----


class _Plain(SimpleNamespace):
    """Settings, and operators without strategies: what a formula takes in place of a loss Cell."""

    def __init__(self, where, reduction, **settings):
        super().__init__(reduction=check_reduction(where, reduction), reduce_mean=reduce_mean, reduce_sum=reduce_sum, **settings)

    def get_loss(self, values):
        return reduced(self, values)


def _operand(value):
    """What may be given as a list, as an operand."""
    return np.asarray(value, np.float32) if isinstance(value, (list, tuple)) else value


def _array(value):
    return value if hasattr(value, "dtype") else np.asarray(value)


def mse_loss(input, target, reduction="mean"):
    """Squared difference, as `nn.MSELoss`.  input, target: (...) broadcast -> (), or (...) for reduction="none"."""
    return mse_of(_Plain("mse_loss", reduction, sub=sub, square=square), input, target)


def l1_loss(input, target, reduction="mean"):
    """Absolute difference, as `nn.L1Loss`.  input, target: (...) broadcast -> (), or (...) for reduction="none"."""
    return l1_of(_Plain("l1_loss", reduction, sub=sub, abs=abs_), input, target)


def smooth_l1_loss(input, target, beta=1.0, reduction="none"):
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere, as `nn.SmoothL1Loss`.  input, target: (...) broadcast -> (...), or () if reduced.

    By default nothing is reduced (MindSpore); PyTorch's function gives the mean.
    """
    return smooth_l1_of(_Plain("smooth_l1_loss", reduction, smooth_l1=partial(smooth_l1_values, beta=beta)), input, target)


def binary_cross_entropy(logits, labels, weight=None, reduction="mean"):
    """-weight * (y log x + (1 - y) log(1 - x)), as `nn.BCELoss`.  logits: (...) probabilities x, labels: (...) y -> (), or (...) for "none".

    weight  broadcast to (...); a mean divides by the number of elements
    """
    weight = 1.0 if weight is None else _operand(weight)
    return binary_of(_Plain("binary_cross_entropy", reduction, weight=weight, binary_cross_entropy=binary_cross_entropy_values), logits, labels)


def binary_cross_entropy_with_logits(logits, label, weight=None, pos_weight=None, reduction="mean"):
    """Binary cross-entropy of a sigmoid, without overflow, as `nn.BCEWithLogitsLoss`.  logits, label: (...) -> (), or (...) for "none".

    weight, pos_weight  broadcast to (...): factors of the losses, and of their part for label 1
    """
    weight, pos_weight = (1.0 if w is None else _operand(w) for w in (weight, pos_weight))
    settings = {"weight": weight, "pos_weight": pos_weight, "bce_with_logits": bce_with_logits_values}
    return binary_logits_of(_Plain("binary_cross_entropy_with_logits", reduction, **settings), logits, label)


def _class_loss(where, weight, ignore_index, reduction, **settings):
    check_ignore_index(where, ignore_index)
    shared = {"label_weight": partial(label_weight, ignore_index=ignore_index), "sum_weights": reduce_sum, "div": div}
    return _Plain(where, reduction, weight=_operand(weight), ignore_index=ignore_index, **shared, **settings)


def nll_loss(input, target, weight=None, ignore_index=None, reduction="mean"):
    """Minus the log-probability of each sample's class, as `nn.NLLLoss`.  input: (n, c, ...), target: (n, ...) int -> (), or (n, ...) for "none".

    weight        (c,), one number per class; a mean divides by the sum of the samples' weights
    ignore_index  class number of samples to leave out; None: there are none
    """
    loss = _class_loss("nll_loss", weight, ignore_index, reduction, nll=partial(nll, ignore_index=ignore_index))
    return nll_of(loss, _array(input), _array(target))


def cross_entropy(input, target, weight=None, ignore_index=None, reduction="mean", label_smoothing=0.0):
    """Cross-entropy of a softmax, as `nn.CrossEntropyLoss`.  input: (n, c, ...) logits, target: (n, ...) int class numbers, or (n, c, ...) float
    class weights -> (), or (n, ...) for reduction="none".

    weight           (c,), one number per class; with class numbers a mean divides by the sum of the samples' weights
    ignore_index     class number of samples to leave out; None: there are none (MindSpore's and PyTorch's default is -100)
    label_smoothing  share of the target that is spread over all classes equally
    """
    check_smoothing("cross_entropy", label_smoothing)
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss = _class_loss(
        *("cross_entropy", weight, ignore_index, reduction),
        label_smoothing=label_smoothing,
        sparse_softmax_cross_entropy=sparse_softmax_cross_entropy,
        softmax_cross_entropy=softmax_cross_entropy,
        class_cross_entropy=partial(class_cross_entropy, **options),
        **dict.fromkeys(("smooth_mul", "weight_mul"), mul),
        **dict.fromkeys(("classes_last", "labels_last"), transpose),
        **dict.fromkeys(("rows", "label_rows", "positions"), reshape),
        smooth_add=add,
    )
    return cross_entropy_of(loss, _array(input), _array(target), "cross_entropy")
