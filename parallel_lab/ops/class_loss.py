"""Losses of samples with a class number, where classes have weights and some samples are left out.

    class_cross_entropy   logits, labels, weight -> loss of every sample      = log_softmax and nll in one
    nll                   log-probabilities, labels, weight -> loss of every sample
    label_weight          labels, weight -> weight of every sample: what a mean divides by

The mean of a weighted loss is sum(losses) / sum(weights of the samples), both over all samples: with a cut batch two all_reduces, never a mean of the
ranks' means. Samples whose label is `ignore_index` have loss 0 and weight 0. Further dims after the class are positions with a label each: logits
(n, c, h, w), labels (n, h, w). The class dim stays whole.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import ShapeError, message, shorten
from .elementwise import first_dtype
from .registry import case, check_ints, op
from .signature import letters

__all__ = ["class_cross_entropy", "label_weight", "nll"]


def check_labels(where, labels, classes, ignore_index=None):
    """The labels, with 0 in place of those to ignore, and which are not ignored. ShapeError for numbers that are no class."""
    counted = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    known = np.where(counted, labels, 0)
    if known.size and not (known.min() >= 0 and known.max() < classes):
        worst = known.min() if known.min() < 0 else known.max()
        hint = f"To leave samples out, give ignore_index={worst}" if ignore_index is None and worst < 0 else ""
        raise ShapeError(message(f"a label is {worst}", where=where, allowed=f"Labels are class numbers from 0 to {classes - 1}", hint=hint))
    return known.astype(np.int64), counted


def check_ignore_index(where, ignore_index):
    """ShapeError unless it is an int or None."""
    if ignore_index is not None and (isinstance(ignore_index, bool) or not isinstance(ignore_index, int)):
        raise ShapeError(message(f"ignore_index={shorten(ignore_index)}", where=where, allowed="An int, or None"))


def check_smoothing(where, label_smoothing):
    """ShapeError unless it is a number from 0 to 1."""
    if isinstance(label_smoothing, bool) or not isinstance(label_smoothing, (int, float)) or not 0 <= label_smoothing <= 1:
        raise ShapeError(message(f"label_smoothing={shorten(label_smoothing)}", where=where, allowed="A number from 0 to 1"))


def _check(where, operands, *, ignore_index, label_smoothing=0.0):
    x, labels, weight = operands
    if len(x.shape) < 2 or x.dtype.kind != "f":
        raise ShapeError(message(f"logits are {x.dtype} of shape {x.shape}", where=where, allowed="Floats, (n, c) or (n, c, d1, ...)"))
    check_ints(where, labels, "labels")
    if labels.shape != (x.shape[0], *x.shape[2:]):
        raise ShapeError(message(f"labels of shape {labels.shape} for {x.shape}", where=where, allowed=f"Shape {(x.shape[0], *x.shape[2:])}"))
    if weight.shape != x.shape[1:2]:
        raise ShapeError(message(f"weight of shape {weight.shape} for {x.shape}", where=where, allowed=f"One per class: {x.shape[1:2]}"))
    check_ignore_index(where, ignore_index)
    check_smoothing(where, label_smoothing)


def _labels(shapes, **_):
    names = letters(len(shapes[0]))
    out = names[0] + names[2:]
    return f"{names},{out},b->{out}"


def _rows(x):
    """Classes last, one row per label.  x: (n, c, ...) -> (r, c)."""
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def _unrow(rows, like):
    """Reverse of _rows, in C order."""
    return np.ascontiguousarray(np.moveaxis(rows.reshape(like.shape[0], *like.shape[2:], like.shape[1]), -1, 1))


def _log_softmax(rows):
    shifted = rows - rows.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _at(rows, numbers):
    return np.take_along_axis(rows, numbers[:, None], axis=1)[:, 0]


_EXAMPLES = (
    case((16, 6), (16,), (6,), ints={1: 6}, low=0.2, high=2.0),
    case((8, 4, 3, 2), (8, 3, 2), (4,), ints={1: 4}, low=0.2, high=2.0, ignore_index=1),
)


@op(
    _labels,
    name="ClassCrossEntropy",
    instead="nn.SoftmaxCrossEntropyExpand",
    check=_check,
    whole="b",
    dtype=first_dtype,
    flops=lambda s: 8 * math.prod(vars(s).values()),
    example=(*_EXAMPLES, case((16, 6), (16,), (6,), ints={1: 6}, low=0.2, high=2.0, label_smoothing=0.1, ignore_index=2)),
)
def class_cross_entropy(logits, labels, weight, *, ignore_index=None, label_smoothing=0.0):
    """Cross-entropy of every sample against its class number, times the weight of the class.

    logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> (n, ...). The class dim stays whole.

    ignore_index     label of samples whose loss is 0; None: there are none
    label_smoothing  share of the target that is spread over all classes equally: with weights w, (1 - e) w_y l_y + e / c * sum over k of w_k l_k
    """
    numbers, counted = check_labels("ClassCrossEntropy", labels.reshape(-1), logits.shape[1], ignore_index)
    logs = _log_softmax(_rows(logits))
    loss = -_at(logs, numbers) * weight[numbers]
    if label_smoothing:
        loss = (1 - label_smoothing) * loss - label_smoothing / logits.shape[1] * (logs @ weight)
    return (loss * counted).reshape(labels.shape).astype(logits.dtype, copy=False)


@op(infer_fn=lambda shapes, **_: shapes[1], dtype=first_dtype)
def class_cross_entropy_grad(g, logits, labels, weight, *, ignore_index, label_smoothing):
    """Gradient for the logits.  g: (n, ...), logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> (n, c, ...)."""
    numbers, counted = check_labels("ClassCrossEntropy", labels.reshape(-1), logits.shape[1], ignore_index)
    grad = np.exp(_log_softmax(_rows(logits)))
    weight = weight.astype(np.result_type(weight, logits), copy=False)  # fractions of float32 weights would be rounded beside float64 logits
    picked = (1 - label_smoothing) * weight[numbers]
    spread = label_smoothing / logits.shape[1] * weight
    grad *= (picked + spread.sum())[:, None]
    grad -= spread
    grad[np.arange(len(numbers)), numbers] -= picked
    grad *= (g.reshape(-1) * counted)[:, None]
    return _unrow(grad, logits).astype(g.dtype, copy=False)


@op(infer_fn=lambda shapes, **_: shapes[3], dtype=lambda dtypes, **_: dtypes[3])
def class_cross_entropy_weight_grad(g, logits, labels, weight, *, ignore_index, label_smoothing):
    """Gradient for the weights.  g: (n, ...), logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> (c,)."""
    numbers, counted = check_labels("ClassCrossEntropy", labels.reshape(-1), logits.shape[1], ignore_index)
    logs, share = -_log_softmax(_rows(logits)), g.reshape(-1) * counted
    of_label = np.bincount(numbers, share * _at(logs, numbers), minlength=len(weight))
    return ((1 - label_smoothing) * of_label + label_smoothing / len(weight) * (share @ logs)).astype(weight.dtype)


@class_cross_entropy.vjp
def _(g, out, logits, labels, weight, *, needs, **attrs):
    of_weight = class_cross_entropy_weight_grad(g, logits, labels, weight, **attrs) if needs[2] else None
    return class_cross_entropy_grad(g, logits, labels, weight, **attrs), None, of_weight


@op(
    _labels,
    name="NLLLoss",
    check=_check,
    whole="b",
    dtype=first_dtype,
    flops=lambda s: 2 * math.prod(vars(s).values()),
    example=_EXAMPLES,
)
def nll(logits, labels, weight, *, ignore_index=None):
    """Minus the log-probability of every sample's class, times the weight of the class.

    logits: (n, c, ...) log-probabilities, labels: (n, ...) int, weight: (c,) -> (n, ...). Nothing is reduced; the class dim stays whole.
    """
    numbers, counted = check_labels("NLLLoss", labels.reshape(-1), logits.shape[1], ignore_index)
    return (-_at(_rows(logits), numbers) * weight[numbers] * counted).reshape(labels.shape).astype(logits.dtype, copy=False)


@op(infer_fn=lambda shapes, *, ignore_index, shape: shape, dtype=first_dtype)
def nll_grad(g, labels, weight, *, ignore_index, shape):
    """Gradient for the log-probabilities.  g, labels: (n, ...), weight: (c,) -> `shape`, (n, c, ...)."""
    numbers, counted = check_labels("NLLLoss", labels.reshape(-1), shape[1], ignore_index)
    grad = np.zeros((len(numbers), shape[1]), g.dtype)
    grad[np.arange(len(numbers)), numbers] = -g.reshape(-1) * weight[numbers] * counted
    return np.ascontiguousarray(np.moveaxis(grad.reshape(shape[0], *shape[2:], shape[1]), -1, 1))


@op(infer_fn=lambda shapes, **_: shapes[3], dtype=lambda dtypes, **_: dtypes[3])
def nll_weight_grad(g, logits, labels, weight, *, ignore_index):
    """Gradient for the weights.  g: (n, ...), logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> (c,)."""
    numbers, counted = check_labels("NLLLoss", labels.reshape(-1), logits.shape[1], ignore_index)
    share = -g.reshape(-1) * counted * _at(_rows(logits), numbers)
    return np.bincount(numbers, share, minlength=len(weight)).astype(weight.dtype)


@nll.vjp
def _(g, out, logits, labels, weight, *, ignore_index, needs):
    of_weight = nll_weight_grad(g, logits, labels, weight, ignore_index=ignore_index) if needs[2] else None
    return nll_grad(g, labels, weight, ignore_index=ignore_index, shape=tuple(logits.shape)), None, of_weight


def _check_weight(where, operands, *, ignore_index):
    check_ints(where, operands[0], "labels")
    if len(operands[1].shape) != 1:
        raise ShapeError(message(f"weight of shape {operands[1].shape}", where=where, allowed="One per class: (c,)"))
    check_ignore_index(where, ignore_index)


def _weight_labels(shapes, *, ignore_index):
    names = letters(len(shapes[0]))
    return f"{names},z->{names}"


@op(
    _weight_labels,
    name="LabelWeight",
    check=_check_weight,
    whole="z",
    dtype=lambda dtypes, **_: dtypes[1],
    flops=lambda s: 0,
    example=(case((16,), (6,), ints={0: 6}, ignore_index=2), case((8, 4), (6,), ints={0: 6})),
)
def label_weight(labels, weight, *, ignore_index=None):
    """Weight of every sample's class; 0 for samples to ignore.  labels: (...) int, weight: (c,) -> (...)."""
    numbers, counted = check_labels("LabelWeight", labels, len(weight), ignore_index)
    return weight[numbers] * counted


@op(infer_fn=lambda shapes, *, ignore_index, classes: (classes,), dtype=first_dtype)
def label_weight_grad(g, labels, *, ignore_index, classes):
    """Gradient for the weights.  g, labels: (...) -> (classes,)."""
    numbers, counted = check_labels("LabelWeight", labels, classes, ignore_index)
    return np.bincount(numbers.reshape(-1), (g * counted).reshape(-1), minlength=classes).astype(g.dtype)


@label_weight.vjp
def _(g, out, labels, weight, *, ignore_index):
    return None, label_weight_grad(g, labels, ignore_index=ignore_index, classes=weight.shape[0])
