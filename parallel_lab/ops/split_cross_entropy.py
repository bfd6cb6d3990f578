"""Cross-entropy against class numbers where the ranks split the classes: the logits of a large vocabulary stay where
the product that made them left them ("vocabulary parallel", Shoeybi and others 2019, Megatron-LM, section 3).

    ReduceMax            largest logit of every row                           all_reduce(max)
    exp_sums             sum of exp(logit - largest)                          all_reduce(sum)
    split_losses         largest + log(sum) - logit of the label, from the
                         rank that has it                                     all_reduce(sum)

Each message has a number per row, where gathering the logits would move a number per row and class. So has the one
backward, the adjoint of the last sum: exp(logit - largest) / sum, less 1 at the label, is what a rank can compute for
its own classes. With weights of classes the second message has two numbers per row: the other is what the row's softmax
is multiplied by.

`class_losses.py` calls these where a strategy splits the class dim; otherwise one fused operator computes it all.
"""

from __future__ import annotations

import numpy as np

from ..base.dtypes import promoted
from ..base.errors import ShapeError
from .machine.registry import gradient, op
from .machine.signature import letters


def check_labels(where, labels, classes, ignore_index=None):
    """Labels, with 0 for ignored ones, and which ones count. ShapeError if one is not a class number."""
    counted = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    numbers = np.where(counted, labels, 0)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < classes):
        worst = numbers.min() if numbers.min() < 0 else numbers.max()
        hint = f"To ignore samples, give ignore_index={worst}" if ignore_index is None and worst < 0 else ""
        what = f"a label is {worst}"
        raise ShapeError(what, where=where, allowed=f"Labels are class numbers from 0 to {classes - 1}", hint=hint)
    return numbers.astype(np.int64), counted


def rows_of(x):
    """Classes last, one row per label.  x: (n, c, ...) -> (r, c)."""
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def unrow(rows, shape):
    """Reverse of rows_of, in C order.  rows: (r, c) -> `shape`, (n, c, ...)."""
    return np.ascontiguousarray(np.moveaxis(rows.reshape(shape[0], *shape[2:], shape[1]), -1, 1))


def _labels(*operands, out="{rows}"):
    """A signature in terms of the labels of the logits, {all}, and of what has a number per row, {rows}."""

    def signature(shapes, **_):
        names = letters(len(shapes[0]))
        return f"{','.join(operands)}->{out}".format(all=names, rows=names[0] + names[2:])

    return signature


def _wide(dtypes, **_):
    return promoted((dtypes[0], "float32"))


class _SliceRows:
    """The rows of a slice without the largest logit, and where in it the labels are that lie in it.

    logits: (n, c, ...), largest: (n, ...), labels: (n, ...); the slice has the classes from `offset` on, of `classes`
    """

    def __init__(self, logits, largest, labels, offset, classes, ignore_index=None):
        dtype = _wide((logits.dtype,))
        self.rows = rows_of(logits).astype(dtype, copy=False) - largest.reshape(-1, 1).astype(dtype)
        numbers, self.counted = check_labels("CrossEntropy", labels.reshape(-1), classes, ignore_index)
        own = (numbers >= offset) & (numbers < offset + self.rows.shape[1])
        self.at, self.numbers = np.flatnonzero(own), (numbers - offset)[own]

    def picked(self, values):
        """The number of every row's label, 0 where that is another rank's.  values: (r, c) or (c,) -> (r,)."""
        elements = np.zeros(len(self.rows), values.dtype)
        elements[self.at] = values[self.at, self.numbers] if values.ndim == 2 else values[self.numbers]
        return elements

    def less_at_labels(self, rows, values):
        """Take `values`, one per row, off the label's element, in place.  rows: (r, c), values: (r,) -> rows."""
        rows[self.at, self.numbers] -= values[self.at]
        return rows


# ---- every class counts alike ----


@op(_labels("{all}", "{rows}"), dtype=_wide, flops=3)
def exp_sums(logits, largest):
    """Sum of exp(logit - largest) over the classes.  logits: (n, c, ...), largest: (n, ...) -> (n, ...)."""
    rows = rows_of(logits).astype(_wide((logits.dtype,)), copy=False) - largest.reshape(-1, 1)
    return np.exp(rows).sum(axis=1).reshape(largest.shape)


@op(_labels("{all}", "{rows}", "{rows}", "{rows}"), dtype=0, offset="b", flops=2)
def split_losses(logits, largest, sums, labels, *, classes, offset=0):
    """log(sum) - (logit of the label - largest), an addend of the ranks with their classes.

    logits: (n, c, ...), the others: (n, ...) -> (n, ...).  classes: of all ranks
    """
    local = _SliceRows(logits, largest, labels, offset, classes)
    logs = np.zeros(len(local.rows), local.rows.dtype)
    logs[local.at] = np.log(sums.reshape(-1)[local.at])
    return (logs - local.picked(local.rows)).reshape(labels.shape).astype(logits.dtype, copy=False)


def _own_classes(shapes, attrs):
    """How many classes a rank has, by the shapes of g and logits."""
    return shapes[1][1]


@gradient(split_losses, part_size=_own_classes, result_shape=1)
def split_losses_grad(g, logits, largest, sums, labels, *, classes, offset=0):
    """Gradient for the logits, through `largest` and `sums` too.  g: (n, ...), logits: (n, c, ...) -> (n, c, ...)."""
    local = _SliceRows(logits, largest, labels, offset, classes)
    grad = np.exp(local.rows, out=local.rows)
    grad /= sums.reshape(-1, 1)
    local.less_at_labels(grad, np.ones(len(grad), grad.dtype))
    grad *= g.reshape(-1, 1)
    return unrow(grad, logits.shape).astype(g.dtype, copy=False)


# ---- classes with weights, labels to ignore, label smoothing ----


def _two_rows(shapes, **attrs):
    return {"z": 2}


@op(
    _labels("{all}", "{rows}", "{rows}", "b", out="z{rows}"),
    sizes=_two_rows,
    whole="z",
    dtype=_wide,
    offset="b",
    flops=3,
)
def exp_and_weight_sums(logits, largest, labels, weight, *, classes, ignore_index, label_smoothing, offset=0):
    """Two numbers per row: sum of exp(logit - largest), and the weight of its target, that of the label and of what is
    spread over all classes.  logits: (n, c, ...), largest, labels: (n, ...), weight: (c,) -> (2, n, ...).
    """
    local = _SliceRows(logits, largest, labels, offset, classes, ignore_index)
    spread = label_smoothing / classes * weight.sum()
    weights = ((1 - label_smoothing) * local.picked(weight) + spread) * local.counted
    return np.stack([np.exp(local.rows).sum(axis=1), weights]).reshape(2, *labels.shape).astype(local.rows.dtype)


@op(_labels("{all}", "{rows}", "z{rows}", "{rows}", "b"), whole="z", dtype=0, offset="b", flops=3)
def split_weighted_losses(logits, largest, sums, labels, weight, *, classes, ignore_index, label_smoothing, offset=0):
    """Weighted loss of every row, an addend of the ranks with their classes.

    logits: (n, c, ...), largest, labels: (n, ...), sums: (2, n, ...) of `exp_and_weight_sums`, weight: (c,) -> (n, ...)
    """
    local = _SliceRows(logits, largest, labels, offset, classes, ignore_index)
    logs = local.rows - np.log(sums[0].reshape(-1, 1))
    loss = -(1 - label_smoothing) * local.picked(logs) * local.picked(weight)
    if label_smoothing:
        loss = loss - label_smoothing / classes * (logs @ weight)
    return (loss * local.counted).reshape(labels.shape).astype(logits.dtype, copy=False)


@gradient(split_weighted_losses, part_size=_own_classes, result_shape=1)
def split_weighted_losses_grad(
    g, logits, largest, sums, labels, weight, *, classes, ignore_index, label_smoothing, offset=0
):
    """Gradient for the logits, through `largest` and `sums` too.  g: (n, ...), logits: (n, c, ...) -> (n, c, ...)."""
    local = _SliceRows(logits, largest, labels, offset, classes, ignore_index)
    weight = weight.astype(np.result_type(weight, local.rows), copy=False)
    grad = np.exp(local.rows, out=local.rows)
    grad *= (sums[1] / sums[0]).reshape(-1, 1)
    grad -= label_smoothing / classes * weight * local.counted[:, None]
    local.less_at_labels(grad, (1 - label_smoothing) * local.picked(weight) * local.counted)
    grad *= g.reshape(-1, 1)
    return unrow(grad, logits.shape).astype(g.dtype, copy=False)


@gradient(split_weighted_losses, "weight", part_size=_own_classes, result_shape=5, dtype=5)
def split_weighted_losses_weight_grad(
    g, logits, largest, sums, labels, weight, *, classes, ignore_index, label_smoothing, offset=0
):
    """Gradient for the weights.  g: (n, ...), logits: (n, c, ...), weight: (c,) -> (c,)."""
    local = _SliceRows(logits, largest, labels, offset, classes, ignore_index)
    logs, share = np.log(sums[0].reshape(-1, 1)) - local.rows, g.reshape(-1) * local.counted
    of_label = np.bincount(local.numbers, (share * local.picked(logs))[local.at], minlength=len(weight))
    return ((1 - label_smoothing) * of_label + label_smoothing / classes * (share @ logs)).astype(weight.dtype)
