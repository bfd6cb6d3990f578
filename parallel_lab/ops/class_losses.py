"""Losses of samples with a class: fused cross-entropies, with and without weights.

    softmax_cross_entropy         logits, shares of the classes -> loss of every sample, softmax - shares
    sparse_cross_entropy          logits, labels -> loss of every sample
    class_cross_entropy           logits, labels, weight -> loss of every sample
    label_weight                  labels, weight -> weight of every sample: what a mean divides by

The mean of a weighted loss is sum(losses) / sum(weights of the samples), both over all samples: with a split batch two
all_reduces, never a mean of the ranks' means. Samples whose label is `ignore_index` have loss 0 and weight 0. Further
dims after the class are positions with a label each: logits (n, c, h, w), labels (n, h, w).

A softmax along a split dim is not "local softmax, then one reduction". Against class numbers (`SparseCrossEntropy`,
`ClassCrossEntropy`, and so `nn.CrossEntropyLoss`) the class dim may be split all the same: the operator is then made of
others, with messages of a number per row (`split_cross_entropy.py`). In the others it stays whole; the expanded
cross-entropy (`nn.SoftmaxCrossEntropyExpand`: ReduceMax, Sub, Exp, ReduceSum, Div, Log, Mul, ...) may split it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.checks import integer, number
from ..base.errors import ShapeError
from .activation import log_softmax_of, softmax, softmax_grad, softmax_of
from .elementwise import cast, float_result, neg
from .machine.composed import composed
from .machine.operand_checks import floats, ints
from .machine.registry import case, gradient, op, total
from .machine.signature import letters
from .reduce import reduce_max
from .spellings import tensor_operand
from .split_cross_entropy import (
    check_labels,
    exp_and_weight_sums,
    exp_sums,
    rows_of,
    split_losses,
    split_weighted_losses,
    unrow,
)

IGNORE_INDEX, SMOOTHING = integer() | None, number(0, 1)


def class_fault(operands, **_):
    """The fault of logits, labels or class weights that do not fit each other, or None."""
    x, labels, weight = operands
    if len(x.shape) < 2 or x.dtype.kind != "f":
        return f"logits are {x.dtype} of shape {x.shape}", "Floats, (n, c) or (n, c, d1, ...)"
    if fault := ints(labels, "labels") or floats(weight, "weight"):
        return fault
    if labels.shape != (x.shape[0], *x.shape[2:]):
        return f"labels of shape {labels.shape} for {x.shape}", f"Shape {(x.shape[0], *x.shape[2:])}"
    if weight.shape != x.shape[1:2]:
        return f"weight of shape {weight.shape} for {x.shape}", f"One per class: {x.shape[1:2]}"


def row_labels(shapes, **_):
    """Labels of (n, c, ...) logits, (n, ...) class numbers and (c,) weights -> (n, ...)."""
    names = letters(len(shapes[0]))
    out = names[0] + names[2:]
    return f"{names},{out},b->{out}"


def at_labels(rows, numbers):
    """The element of every row that its number names.  rows: (r, c), numbers: (r,) int -> (r,)."""
    return np.take_along_axis(rows, numbers[:, None], axis=1)[:, 0]


EXAMPLES = (
    case((16, 6), (16,), (6,), ints={1: 6}, low=0.2, high=2.0),
    case((8, 4, 3, 2), (8, 3, 2), (4,), ints={1: 4}, low=0.2, high=2.0, ignore_index=1),
)


_CLASS = {
    "attrs": {"ignore_index": IGNORE_INDEX, "label_smoothing": SMOOTHING},
    "check": class_fault,
    "dtype": 0,
    "flops": 8,
}


@op(row_labels, whole="b", **_CLASS)
def class_cross_entropy_fused(logits, labels, weight, *, ignore_index=None, label_smoothing=0.0):
    """`class_cross_entropy` with c whole.  logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> (n, ...)."""
    numbers, counted = check_labels("ClassCrossEntropy", labels.reshape(-1), logits.shape[1], ignore_index)
    logs = log_softmax_of(rows_of(logits))
    loss = -at_labels(logs, numbers) * weight[numbers]
    if label_smoothing:
        loss = (1 - label_smoothing) * loss - label_smoothing / logits.shape[1] * (logs @ weight)
    return (loss * counted).reshape(labels.shape).astype(logits.dtype, copy=False)


@gradient(class_cross_entropy_fused)
def class_cross_entropy_grad(g, logits, labels, weight, *, ignore_index, label_smoothing):
    """Gradient for the logits.  g: (n, ...), logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> (n, c, ...)."""
    numbers, counted = check_labels("ClassCrossEntropy", labels.reshape(-1), logits.shape[1], ignore_index)
    grad = np.exp(log_softmax_of(rows_of(logits)))
    # with float64 logits, fractions of float32 weights would be rounded
    weight = weight.astype(np.result_type(weight, logits), copy=False)
    picked = (1 - label_smoothing) * weight[numbers]
    spread = label_smoothing / logits.shape[1] * weight
    grad *= (picked + spread.sum())[:, None]
    grad -= spread
    grad[np.arange(len(numbers)), numbers] -= picked
    grad *= (g.reshape(-1) * counted)[:, None]
    return unrow(grad, logits.shape).astype(g.dtype, copy=False)


@gradient(class_cross_entropy_fused, "weight", dtype=3)
def class_cross_entropy_weight_grad(g, logits, labels, weight, *, ignore_index, label_smoothing):
    """Gradient for the weights.  g: (n, ...), logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> (c,)."""
    numbers, counted = check_labels("ClassCrossEntropy", labels.reshape(-1), logits.shape[1], ignore_index)
    logs, share = -log_softmax_of(rows_of(logits)), g.reshape(-1) * counted
    of_label = np.bincount(numbers, share * at_labels(logs, numbers), minlength=len(weight))
    return ((1 - label_smoothing) * of_label + label_smoothing / len(weight) * (share @ logs)).astype(weight.dtype)


@composed(
    row_labels,
    name="ClassCrossEntropy",
    example=(
        *EXAMPLES,
        case((16, 6), (16,), (6,), ints={1: 6}, low=0.2, high=2.0, label_smoothing=0.1, ignore_index=2),
        case((4, 8, 2), (4, 2), (8,), ints={1: 8}, low=0.2, high=2.0, label_smoothing=0.2, ignore_index=5),
    ),
    **_CLASS,
)
def class_cross_entropy(part, logits, labels, weight, *, ignore_index=None, label_smoothing=0.0):
    """Cross-entropy of every sample against its class number, times the weight of the class.

    logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> (n, ...)

    ignore_index     label of samples whose loss is 0; None: every sample counts
    label_smoothing  share of the target that is spread over all classes equally: with weights w, (1 - e) w_y l_y + e /
                     c * sum over k of w_k l_k

    Where c is split: three all_reduces, of one, two and one numbers per label, and backward of one.
    """
    names = letters(len(logits.shape))
    rows, attrs = names[0] + names[2:], {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if not part.splits("b"):
        labelled = f"{names},{rows},b->{rows}"
        return part(class_cross_entropy_fused, logits, labels, weight, labels=labelled, alone=True, **attrs)
    attrs["classes"] = logits.shape[1]
    largest = part(reduce_max, logits, labels=f"{names}->{rows}", axis=1)
    sums = part(
        exp_and_weight_sums, logits, largest, labels, weight, labels=f"{names},{rows},{rows},b->z{rows}", **attrs
    )
    labelled = f"{names},{rows},z{rows},{rows},b->{rows}"
    return part(split_weighted_losses, logits, largest, sums, labels, weight, labels=labelled, **attrs)


def _check_weight(operands, *, ignore_index):
    labels, weight = operands
    one_each = (f"weight of shape {weight.shape}", "One per class: (c,)")
    return ints(labels, "labels") or (None if len(weight.shape) == 1 else one_each)


@op(
    lambda shapes, **_: f"{letters(len(shapes[0]))},z->{letters(len(shapes[0]))}",
    name="LabelWeight",
    attrs={"ignore_index": IGNORE_INDEX},
    check=_check_weight,
    whole="z",
    dtype=1,
    flops=0,
    example=(case((16,), (6,), ints={0: 6}, ignore_index=2), case((8, 4), (6,), ints={0: 6})),
)
def label_weight(labels, weight, *, ignore_index=None):
    """Weight of every sample's class; 0 for samples to ignore.  labels: (...) int, weight: (c,) -> (...)."""
    numbers, counted = check_labels("LabelWeight", labels, len(weight), ignore_index)
    return weight[numbers] * counted


@gradient(label_weight, "weight")
def label_weight_grad(g, labels, *, ignore_index, shape):
    """Gradient for the weights.  g: (...) or (), labels: (...) -> `shape`, (c,)."""
    numbers, counted = check_labels("LabelWeight", labels, shape[0], ignore_index)
    return np.bincount(numbers.reshape(-1), (g * counted).reshape(-1), minlength=shape[0]).astype(g.dtype)


# ---- without weights ----


@op(
    "ac,ac->a,ac",
    name="SoftmaxCrossEntropyWithLogits",
    instead="nn.SoftmaxCrossEntropyExpand",
    whole="c",
    dtype=float_result,
    flops=8,
    example=case((16, 8), (16, 8), low=0.1, high=1.0),
)
def softmax_cross_entropy(logits, labels):
    """Cross-entropy of every sample against given class weights, and softmax - weights: the gradient of their sum for
    the logits where the weights add up to 1.  logits, labels: (a, c) -> (a,), (a, c). c stays whole.
    """
    dtype, logs = float_result((logits.dtype, labels.dtype)), log_softmax_of(logits)
    loss = -(labels * logs).sum(axis=-1).astype(dtype, copy=False)
    return loss, (np.exp(logs) - labels).astype(dtype, copy=False)


@op(result_shape=1)
def softmax_cross_entropy_grad(g, difference, labels):
    """Gradient for the logits.  g: (a,), difference (softmax - labels), labels: (a, c) -> (a, c)."""
    total_share = labels.sum(axis=-1, keepdims=True)
    return g[:, None] * (difference * total_share + labels * (total_share - 1))


@op(result_shape=1)
def softmax_cross_entropy_label_grad(g, logits):
    """Gradient for the class weights.  g: (a,), logits: (a, c) -> (a, c)."""
    return -g[:, None] * log_softmax_of(logits)


@softmax_cross_entropy.vjp
def _(g, out, logits, labels, *, needs):
    of_loss, of_difference = g
    parts: list[Any] = [None] * 4
    if of_loss is not None:
        parts[0] = softmax_cross_entropy_grad(of_loss, out[1], labels)
        parts[1] = softmax_cross_entropy_label_grad(of_loss, logits) if needs[1] else None
    if of_difference is not None:
        parts[2], parts[3] = softmax_grad(of_difference, softmax(logits), axis=-1), neg(of_difference)
    return total(parts[0], parts[2]), total(parts[1], parts[3])


SPARSE = {
    "check": lambda operands, **_: ints(operands[1], "labels"),
    "dtype": lambda dtypes, **_: float_result(dtypes[:1]),
    "flops": 6,
}


@op("ac,a->a", whole="c", **SPARSE)
def sparse_cross_entropy_fused(logits, labels):
    """`sparse_cross_entropy` with c whole.  logits: (a, c), labels: (a,) int -> (a,)."""
    labels, _ = check_labels("SparseCrossEntropy", labels, logits.shape[-1])
    return -at_labels(log_softmax_of(logits), labels)


@gradient(sparse_cross_entropy_fused)
def sparse_cross_entropy_grad(g, logits, labels):
    """Gradient for the logits.  g: (a,), logits: (a, c), labels: (a,) int -> (a, c)."""
    grad = softmax_of(logits)
    grad[np.arange(len(labels)), labels] -= 1
    return grad * g[:, None]


@composed("ac,a->a", name="SparseCrossEntropy", example=case((16, 8), (16,), ints={1: 8}), **SPARSE)
def sparse_cross_entropy(part, logits, labels):
    """Cross-entropy of every sample against a class number.  logits: (a, c), labels: (a,) int -> (a,).

    Where c is split: three all_reduces of a number per label, and one backward.
    """
    if not part.splits("c"):
        return part(sparse_cross_entropy_fused, logits, labels, labels="ac,a->a", alone=True)
    largest = part(reduce_max, logits, labels="ac->a", axis=1)
    sums = part(exp_sums, logits, largest, labels="ac,a->a")
    classes = logits.shape[1]
    return part(split_losses, logits, largest, sums, labels, labels="ac,a,a,a->a", classes=classes)


# ---- the loss, written with the operators of a Cell ----


def class_weights(loss, count):
    """The weights of `count` classes; ones if none were given."""
    return np.ones(count, np.float32) if loss.weight is None else loss.weight


def weighted_reduction(loss, losses, labels, weights):
    """Weighted losses reduced: a mean divides by the sum of the samples' weights."""
    if loss.reduction != "mean" or (loss.weight is None and loss.ignore_index is None):
        return loss.get_loss(losses)
    counted = loss.label_weight(labels, weights)
    if str(counted.dtype) != str(losses.dtype):
        counted = cast(counted, str(losses.dtype))
    return loss.div(loss.reduce_sum(losses), loss.sum_weights(counted))


def cross_entropy_of(loss, logits, labels, where):
    """Cross-entropy of a softmax.  logits: (n, c, ...), labels: (n, ...) int or (n, c, ...) float -> () or (n, ...)."""
    logits, labels = tensor_operand(where, "logits", logits), tensor_operand(where, "labels", labels)
    is_integer, shape, label_shape = np.dtype(str(labels.dtype)).kind in "iu", tuple(logits.shape), tuple(labels.shape)
    fits = (*shape[:1], *shape[2:]) if is_integer else shape
    if len(shape) < 2 or label_shape != fits:
        what = f"logits of shape {shape} with labels of shape {label_shape}, {labels.dtype}"
        hint = "Further dims of logits are positions with a label each: (a, c, d1, ...) with (a, d1, ...)"
        allowed = "Logits (a, c) with int labels (a,), or with float labels (a, c)"
        raise ShapeError(what, where=where, allowed=allowed, hint=hint if len(shape) > 2 else "")
    weight_shape = None if loss.weight is None else tuple(tensor_operand(where, "weight", loss.weight).shape)
    if weight_shape not in (None, (shape[1],)):
        numbers = f"{weight_shape[0]} numbers" if len(weight_shape) == 1 else f"shape {weight_shape}"
        raise ShapeError(f"weight has {numbers}", where=where, allowed=f"One per class: {shape[1]}")
    if not is_integer:
        return loss.get_loss(_against_weights(loss, logits, labels))
    plain = loss.weight is None and loss.ignore_index is None and not loss.label_smoothing and len(shape) == 2
    if getattr(logits, "answers", False) and (losses := logits.row_losses(labels, plain, loss.reduction)) is not None:
        return loss.get_loss(losses)
    if plain:
        return loss.get_loss(loss.sparse_cross_entropy(logits, labels))
    weights = class_weights(loss, shape[1])
    return weighted_reduction(loss, loss.class_cross_entropy(logits, labels, weights), labels, weights)


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
    losses = loss.softmax_cross_entropy(logits, labels)[0]
    return losses if len(shape) == 2 else loss.positions(losses, (shape[0], *shape[2:]))
