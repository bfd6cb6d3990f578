"""Losses of samples with a class in the forms of MindSpore's and PyTorch's functions, and from log-probabilities.

    nll                           log-probabilities, labels, weight -> loss, sum of the samples' weights
    sparse_softmax_cross_entropy  logits, labels -> mean of the losses, or its gradient

A mean of weighted losses is sum(losses) / sum(weights of the samples), both over all samples (`ops/class_losses.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ...base.checks import SHAPE_ERRORS, choice
from ...base.errors import ShapeError
from ...ops.activation import log_softmax_of, softmax, softmax_grad
from ...ops.class_losses import (
    EXAMPLES,
    IGNORE_INDEX,
    SMOOTHING,
    SPARSE,
    at_labels,
    class_cross_entropy,
    class_fault,
    class_weights,
    cross_entropy_of,
    label_weight,
    label_weight_grad,
    row_labels,
    softmax_cross_entropy,
    sparse_cross_entropy,
    sparse_cross_entropy_fused,
    sparse_cross_entropy_grad,
    weighted_reduction,
)
from ...ops.elementwise import add, cast, div, float_result, mul, neg
from ...ops.losses import FormulaParts, float_operand
from ...ops.machine.composed import composed
from ...ops.machine.operand_checks import floats, ints
from ...ops.machine.registry import case, gradient, op, total
from ...ops.reduce import reduce_sum
from ...ops.shape import as_array, reshape, transpose
from ...ops.spellings import function, tensor_operand
from ...ops.split_cross_entropy import check_labels, rows_of, unrow


@op(row_labels, whole="b", dtype=0, flops=2)
def nll_rows(logits, labels, weight, *, ignore_index):
    """Minus the label's log-probability, weighted.  logits: (n, c, ...), labels: (n, ...), weight: (c,) -> (n, ...)."""
    numbers, counted = check_labels("NLLLoss", labels.reshape(-1), logits.shape[1], ignore_index)
    loss = -at_labels(rows_of(logits), numbers) * weight[numbers] * counted
    return loss.reshape(labels.shape).astype(logits.dtype, copy=False)


@gradient(nll_rows, shown="NLLLossGrad")
def nll_grad(g, labels, weight, *, ignore_index, shape):
    """Gradient for the log-probabilities.  g: (n, ...) or (), labels: (n, ...), weight: (c,) -> `shape`, as those."""
    numbers, counted = check_labels("NLLLoss", labels.reshape(-1), shape[1], ignore_index)
    grad = np.zeros((len(numbers), shape[1]), g.dtype)
    grad[np.arange(len(numbers)), numbers] = -g.reshape(-1) * weight[numbers] * counted
    return unrow(grad, shape)


@gradient(nll_rows, "weight", dtype=3)
def nll_weight_grad(g, logits, labels, weight, *, ignore_index):
    """Gradient for the weights.  g: (n, ...) or (), logits: (n, c, ...), labels: (n, ...), weight: (c,) -> (c,)."""
    numbers, counted = check_labels("NLLLoss", labels.reshape(-1), logits.shape[1], ignore_index)
    share = -g.reshape(-1) * counted * at_labels(rows_of(logits), numbers)
    return np.bincount(numbers, share, minlength=len(weight)).astype(weight.dtype)


@op(lambda shapes, **_: row_labels(shapes).partition("->")[0] + "->,,", whole="b", dtype=(0, 2), flops=2)
def nll_sums(logits, labels, weight, *, ignore_index):
    """Sums of `nll_rows` and of `label_weight`.  logits: (n, c, ...), labels: (n, ...), weight: (c,) -> (), ()."""
    losses = nll_rows.fn(logits, labels, weight, ignore_index=ignore_index)
    return losses.sum(), label_weight.fn(labels, weight, ignore_index=ignore_index).sum()


@nll_sums.vjp
def _(g, out, logits, labels, weight, *, ignore_index, needs):
    of_loss, of_total = g
    kept, found = {"ignore_index": ignore_index}, [None, None, None]
    if of_loss is not None:
        found[0] = nll_grad(of_loss, labels, weight, shape=tuple(logits.shape), **kept)
        found[1] = nll_weight_grad(of_loss, logits, labels, weight, **kept) if needs[2] else None
    if of_total is not None and needs[2]:
        found[2] = label_weight_grad(of_total, labels, shape=tuple(weight.shape), **kept)
    return found[0], None, total(*found[1:])


def _nll_labels(shapes, *, reduction, **_):
    given, _, rows = row_labels(shapes).partition("->")
    return f"{given}->{rows if reduction == 'none' else ''},,"


@composed(
    _nll_labels,
    name="NLLLoss",
    attrs={"reduction": choice("none", "mean", "sum"), "ignore_index": IGNORE_INDEX},
    check=class_fault,
    whole="b",
    dtype=(0, 2),
    flops=2,
    example=(
        *(replace(each, attrs=(*each.attrs, ("reduction", "none"))) for each in EXAMPLES),
        *EXAMPLES,
        replace(EXAMPLES[0], attrs=(("ignore_index", 2), ("reduction", "sum"))),
    ),
)
def nll(part, logits, labels, weight, *, reduction="mean", ignore_index=-100):
    """Minus the labels' log-probabilities, weighted, and the sum of the samples' weights.

    logits: (n, c, ...), labels: (n, ...) int, weight: (c,) -> loss: (), or (n, ...) for "none"; total weight: ()

    A mean divides by the total weight, both over all samples: two all_reduces of a number where n is split. c stays
    whole. Samples labelled `ignore_index` count nothing. Form and defaults: MindSpore, ops.NLLLoss.
    """
    (operands, _, rows), kept = row_labels([x.shape for x in (logits, labels, weight)]).partition("->"), ignore_index
    if reduction == "none":
        labelled = f"{operands}->{rows}"
        loss = part(nll_rows, logits, labels, weight, labels=labelled, alone=True, ignore_index=kept)
        weights = part(label_weight, labels, weight, labels=f"{rows},b->{rows}", ignore_index=kept)
        return loss, part(reduce_sum, weights, labels=f"{rows}->")
    loss, counted = part(nll_sums, logits, labels, weight, labels=operands, alone=True, ignore_index=kept)
    if reduction == "mean":
        divisor = counted if loss.dtype == counted.dtype else part(cast, counted, labels="", dtype=str(loss.dtype))
        loss = part(div, loss, divisor, labels=",")
    return loss, counted


def all_or_none(signature, cuts, device_num, **_):
    """MindSpore, batch parallel: samples are split by all devices, or whole. The fault of another split, or None."""
    if 1 < cuts["a"] < device_num:
        what = f"splits the samples {cuts['a']} ways, with {device_num} devices"
        return what, f"Batch parallel: {device_num} ways, or whole"


_BATCH = {"whole": "c", "devices": all_or_none, **SPARSE}


@op("ac,a->", reduce="mean", **_BATCH)
def sparse_mean(logits, labels):
    """Mean of `sparse_cross_entropy`.  logits: (a, c), labels: (a,) int -> ()."""
    return np.mean(sparse_cross_entropy_fused.fn(logits, labels))


@op("ac,a->ac", **_BATCH)
def sparse_mean_slope(logits, labels, *, rows):
    """(softmax - one-hot rows) / `rows`.  logits: (a, c), labels: (a,) int -> (a, c)."""
    each = np.full(len(labels), 1 / rows, float_result((logits.dtype,)))
    return sparse_cross_entropy_grad.fn(each, logits, labels)


@sparse_mean.vjp
def _(g, out, logits, labels):
    return mul(sparse_mean_slope(logits, labels, rows=labels.shape[0]), g), None


@sparse_mean_slope.vjp
def _(g, out, logits, labels, *, rows):
    return mul(softmax_grad(g, softmax(logits), axis=-1), 1 / rows), None


@composed(
    lambda shapes, *, is_grad: "ac,a->ac" if is_grad else "ac,a->",
    name="SparseSoftmaxCrossEntropyWithLogits",
    instead="SparseCrossEntropy",
    example=(case((16, 8), (16,), ints={1: 8}), case((16, 8), (16,), ints={1: 8}, is_grad=True)),
    **_BATCH,
)
def sparse_softmax_cross_entropy(part, logits, labels, *, is_grad=False):
    """Mean of the cross-entropies against class numbers.  logits: (a, c), labels: (a,) int -> ().

    is_grad  the gradient of that mean for the logits, (a, c), in its place

    Where a is split, by all devices, the mean of the ranks' means: one all_reduce of a number. c stays whole. Form and
    rule: MindSpore (batch_parallel_info).
    """
    if is_grad:
        return part(sparse_mean_slope, logits, labels, labels="ac,a->ac", alone=True, rows=labels.shape[0])
    return part(sparse_mean, logits, labels, labels="ac,a->", alone=True)


def nll_of(loss, logits, labels):
    """Minus the log-probability of each class.  logits: (n, c, ...), labels: (n, ...) int -> () or (n, ...)."""
    shape = tuple(tensor_operand("nll_loss", "logits", logits).shape)
    weights = class_weights(loss, shape[1] if len(shape) > 1 else 1)  # one dim is refused by the operator
    return weighted_reduction(loss, loss.nll(logits, labels, weights)[0], labels, weights)


def _class_loss(where, weight, ignore_index, reduction, **settings):
    IGNORE_INDEX(where, "ignore_index", ignore_index, SHAPE_ERRORS)
    shared = {"label_weight": partial(label_weight, ignore_index=ignore_index), "sum_weights": reduce_sum, "div": div}
    return FormulaParts(where, reduction, weight=float_operand(weight), ignore_index=ignore_index, **shared, **settings)


@function(mint="functional.nll_loss")
def nll_loss(input, target, weight=None, ignore_index=None, reduction="mean", label_smoothing=0.0):
    """Negative log-likelihood, as `nn.NLLLoss`.  input: (n, c, ...), target: (n, ...) int -> (), or (n, ...).

    weight  (c,): a mean divides by the sum of the samples' weights;  ignore_index: class number to ignore, or None
    label_smoothing  share of the target that is spread over all classes equally
    """
    SMOOTHING("nll_loss", "label_smoothing", label_smoothing, SHAPE_ERRORS)
    loss = _class_loss(
        "nll_loss", weight, ignore_index, reduction, nll=partial(nll, reduction="none", ignore_index=ignore_index)
    )
    found, x = nll_of(loss, as_array(input), as_array(target)), as_array(input)
    if not label_smoothing:
        return found
    # the logarithms of all classes, weighted, of the samples that count
    count = tuple(x.shape)[1]
    weighted = x if loss.weight is None else mul(x, reshape(loss.weight, (count, *[1] * (len(x.shape) - 2))))
    spread, weights = neg(reduce_sum(weighted, 1)), class_weights(loss, count)
    if ignore_index is not None:
        spread = mul(spread, label_weight(as_array(target), np.ones(count, np.float32), ignore_index=ignore_index))
    spread = weighted_reduction(loss, spread, as_array(target), weights)
    return add(mul(found, 1 - label_smoothing), mul(spread, label_smoothing / count))


@function(mint="functional.cross_entropy")
def cross_entropy(input, target, weight=None, ignore_index=None, reduction="mean", label_smoothing=0.0):
    """Cross-entropy of a softmax, as `nn.CrossEntropyLoss`.  input: (n, c, ...) logits, target: (n, ...) int class
    numbers, or (n, c, ...) float class weights -> (), or (n, ...) for reduction="none".

    weight           (c,), one number per class; with class numbers a mean divides by the sum of the samples' weights
    ignore_index     class number of samples to ignore; None: every sample counts (MindSpore's and PyTorch's default is
                     -100)
    label_smoothing  share of the target that is spread over all classes equally
    """
    SMOOTHING("cross_entropy", "label_smoothing", label_smoothing, SHAPE_ERRORS)
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss = _class_loss(
        *("cross_entropy", weight, ignore_index, reduction),
        label_smoothing=label_smoothing,
        sparse_cross_entropy=sparse_cross_entropy,
        softmax_cross_entropy=softmax_cross_entropy,
        class_cross_entropy=partial(class_cross_entropy, **options),
        **dict.fromkeys(("smooth_mul", "weight_mul"), mul),
        **dict.fromkeys(("classes_last", "labels_last"), transpose),
        **dict.fromkeys(("rows", "label_rows", "positions"), reshape),
        smooth_add=add,
    )
    return cross_entropy_of(loss, as_array(input), as_array(target), "cross_entropy")


def _check_ctc(operands, **_):
    x, *others = (each.shape for each in operands)
    if len(x) != 3 or not all(x) or others[0] != (*others[1], 2) or others[2] != x[1:2]:
        return f"x of shape {x}, the others {others}", "(t, n, c), (l, 2), (l,) and (n,)"
    return floats(operands[0]) or next(filter(None, (ints(each, "labels and lengths") for each in operands[1:])), None)


def _ways(steps, stays, skips):
    """Logarithms of the sums over all ways to each place: stay, next, or over a blank.  steps: (t, places) -> same."""
    made = np.full_like(steps, -np.inf)
    made[0, :2] = steps[0, :2]
    for t in range(1, len(steps)):
        before = np.where(stays, made[t - 1], -np.inf)
        before[1:] = np.logaddexp(before[1:], made[t - 1, :-1])
        before[2:] = np.logaddexp(before[2:], np.where(skips, made[t - 1, :-2], -np.inf))
        made[t] = before + steps[t]
    return made


def _alignments(logs, labels, merge):
    """Minus the logarithm of the sum over alignments, and the classes' shares in them.  logs: (t, c) -> (), (t, c)."""
    places = np.full(2 * len(labels) + 1, logs.shape[1] - 1)
    stays, skips = (np.arange(len(places)) % 2 == 0) | merge, np.arange(2, len(places)) % 2 == 1
    places[1::2] = labels
    skips &= (places[2:] != places[:-2]) | (not merge)
    steps, shares = logs[:, places], np.zeros_like(logs)
    ahead, back = _ways(steps, stays, skips), _ways(steps[::-1, ::-1], stays, skips[::-1])[::-1, ::-1]
    total = np.logaddexp.reduce(ahead[-1, -2:])
    np.add.at(shares.T, places, np.exp(ahead + back - steps - total).T)
    return -total, shares


@op(
    "tnc,lz,l,n->n,tnc",
    name="CTCLoss",
    whole="tnclz",
    check=_check_ctc,
    dtype=(0, 0),
    example=case((6, 2, 4), (3, 2), (3,), (2,), ints={1: 2, 2: 3, 3: 7}, ignore_longer_outputs_than_inputs=True),
)
def alignment_loss(
    x,
    labels_indices,
    labels_values,
    sequence_length,
    *,
    preprocess_collapse_repeated=False,
    ctc_merge_repeated=True,
    ignore_longer_outputs_than_inputs=False,
):
    """CTC's losses (Graves 2006) and their gradients.  x: (t, n, c) logits, the labels' samples and places (l, 2) and
    values (l,), the samples' steps (n,) -> (n,), (t, n, c). Collapsed: equal labels in a row are one. Merged: a label
    may last. Ignored: samples with too few steps count 0, and are not refused. No gradient of the second (MindSpore).
    """
    losses, grads = np.zeros(x.shape[1], x.dtype), np.zeros_like(x)
    for i, length in enumerate(sequence_length):
        labels = labels_values[labels_indices[:, 0] == i]
        again = np.append(False, labels[1:] == labels[:-1])[: len(labels)]
        if preprocess_collapse_repeated:
            labels, again = labels[~again], again[:0]
        needed, blank = max(len(labels) + ctc_merge_repeated * int(again.sum()), 1), x.shape[2] - 1
        short = length < needed and not ignore_longer_outputs_than_inputs
        if short or not 0 <= length <= len(x) or (labels < 0).any() or (labels >= blank).any():
            what = f"labels {labels.tolist()} and {length} steps of sample {i}"
            raise ShapeError(what, where="CTCLoss", allowed=f"0 to {blank - 1} and {needed} to {len(x)} steps")
        if length >= needed:
            logs = log_softmax_of(np.asarray(x[:length, i], np.float64))
            losses[i], shares = _alignments(logs, labels, ctc_merge_repeated)
            grads[:length, i] = np.exp(logs) - shares
    return losses, grads


@alignment_loss.vjp
def _(g, out, *_, **__):
    return None if g[0] is None else mul(out[1], reshape(g[0], (1, -1, 1))), None, None, None
