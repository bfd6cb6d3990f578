"""Softmax, one-hot and the fused cross-entropies.

A softmax along a cut dim is not "local softmax, then one reduction": the fused operators keep the class dim whole. The expanded cross-entropy
(`nn.SoftmaxCrossEntropyExpand`: ReduceMax, Sub, Exp, ReduceSum, Div, Log, Mul, ...) may cut it.
"""

from __future__ import annotations

import numpy as np

from ..errors import ShapeError, message, shorten
from .activation import check_axis
from .class_loss import check_labels
from .elementwise import float_result
from .functions import floats
from .registry import case, check_dim, check_ints, op
from .signature import letters

__all__ = ["one_hot", "softmax", "softmax_cross_entropy", "sparse_softmax_cross_entropy"]


def _softmax(x, axis=-1):
    x = floats(x)
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def _log_softmax(x):
    x = floats(x)
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@op(
    "...->...",
    name="Softmax",
    instead="SoftmaxExpand",
    check=check_axis,
    dtype=float_result,
    whole=lambda signature, *, axis: signature.out[axis],
    flops=lambda s: 5 * np.prod(list(vars(s).values())),
    example=(case((16, 8)), case((8, 4, 2), axis=0)),
)
def softmax(x, *, axis=-1):
    """exp(x) / sum of exp(x) along `axis`, which stays whole.  x: (...) -> (...)."""
    return _softmax(x, axis)


@op(infer_fn=lambda shapes, *, axis: shapes[0])
def softmax_grad(g, out, *, axis):
    """Gradient of softmax.  g, out: (...) -> (...)."""
    return out * (g - (g * out).sum(axis=axis, keepdims=True))


@softmax.vjp
def _(g, out, x, *, axis):
    return (softmax_grad(g, out, axis=axis),)


def _one_hot_labels(shapes, *, depth, axis):
    names = letters(len(shapes[0]))
    place = axis % (len(names) + 1)
    return f"{names},,->{names[:place]}z{names[place:]}"


def _check_one_hot(where, operands, *, depth, axis):
    check_ints(where, operands[0], "indices (labels)")
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ShapeError(message(f"depth={shorten(depth)}", where=where, allowed="An int, at least 1: the number of classes"))
    shape = operands[0].shape
    check_dim(where, "axis", axis, len(shape) + 1, f"(*{shape}, {depth})")
    for name, operand in zip(("on_value", "off_value"), operands[1:], strict=True):
        if operand.shape:
            raise ShapeError(message(f"{name} has shape {operand.shape}", where=where, allowed="A number: shape ()"))


def _restrict_one_hot(signature, cuts, sizes, *, depth, axis):
    """MindSpore, OneHot: CheckStrategy."""
    dims = len(signature.ins[0])
    if dims < 2 or all(n == 1 for n in cuts.values()):
        return None
    if axis % (dims + 1) != dims:
        what = f"cuts the result of input 0 (indices with {dims} dims), whose classes are dim {axis % (dims + 1)}"
        return what, "With indices of more than 1 dim the classes are the last dim: axis=-1"
    if cuts["z"] > 1:
        what = f"cuts dim {dims} of input 0 ('z', the classes) {cuts['z']} ways, but the indices have {dims} dims"
        return what, "Classes are cut for indices with 1 dim only"
    return None


def _one_hot_local(attrs, parts):
    return {**attrs, "depth": attrs["depth"] // parts["z"]}


@op(
    _one_hot_labels,
    name="OneHot",
    check=_check_one_hot,
    static=("depth",),
    sizes=lambda shapes, *, depth, axis: {"z": depth},
    strategy_labels=lambda signature: (signature.out, "", ""),
    restrict=_restrict_one_hot,
    offset="z",
    part_size=lambda shapes, attrs: attrs["depth"],
    localize=_one_hot_local,
    dtype=lambda dtypes, **_: np.result_type(*dtypes[1:]),
    flops=lambda s: 0,
    example=(case((16,), (), (), ints={0: 8}, depth=8), case((8,), (), (), ints={0: 16}, depth=16, axis=0)),
)
def one_hot(indices, depth, on_value, off_value, *, axis=-1, offset=0):
    """`on_value` at each index, `off_value` elsewhere.  indices: (...) int, values: () -> (..., depth) with the new dim at `axis`.

    The strategy's first tuple cuts the result; the other two are (). A rank that holds classes offset..offset+depth sees indices outside as
    "elsewhere".
    No gradient for the indices.
    """
    hit = np.expand_dims(indices, axis) - offset == np.arange(depth).reshape(
        [-1 if i == axis % (indices.ndim + 1) else 1 for i in range(indices.ndim + 1)]
    )
    return np.where(hit, on_value, off_value)


@op(
    "ac,ac->a",
    name="SoftmaxCrossEntropyWithLogits",
    instead="nn.SoftmaxCrossEntropyExpand",
    whole="c",
    dtype=float_result,
    flops=lambda s: 8 * s.a * s.c,
    example=case((16, 8), (16, 8), low=0.1, high=1.0),
)
def softmax_cross_entropy(logits, labels):
    """Cross-entropy of every sample against given class weights.  logits, labels: (a, c) -> (a,). The class dim stays whole."""
    dtype = float_result((logits.dtype, labels.dtype))
    return -(labels * _log_softmax(logits)).sum(axis=-1).astype(dtype, copy=False)


@op(infer_fn=lambda shapes: shapes[1])
def softmax_cross_entropy_grad(g, logits, labels):
    """Gradient for the logits.  g: (a,), logits, labels: (a, c) -> (a, c)."""
    return g[:, None] * (_softmax(logits) * labels.sum(axis=-1, keepdims=True) - labels)


@op(infer_fn=lambda shapes: shapes[1])
def softmax_cross_entropy_label_grad(g, logits):
    """Gradient for the class weights.  g: (a,), logits: (a, c) -> (a, c)."""
    return -g[:, None] * _log_softmax(logits)


@softmax_cross_entropy.vjp
def _(g, out, logits, labels):
    return softmax_cross_entropy_grad(g, logits, labels), softmax_cross_entropy_label_grad(g, logits)


@op(
    "ac,a->a",
    name="SparseSoftmaxCrossEntropyWithLogits",
    instead="nn.SoftmaxCrossEntropyExpand",
    check=lambda where, operands: check_ints(where, operands[1], "labels"),
    whole="c",
    dtype=lambda dtypes: float_result(dtypes[:1]),
    flops=lambda s: 6 * s.a * s.c,
    example=case((16, 8), (16,), ints={1: 8}),
)
def sparse_softmax_cross_entropy(logits, labels):
    """Cross-entropy of every sample against a class number.  logits: (a, c), labels: (a,) int -> (a,). The class dim stays whole."""
    labels, _ = check_labels("SparseSoftmaxCrossEntropyWithLogits", labels, logits.shape[-1])
    return -np.take_along_axis(_log_softmax(logits), labels[:, None], axis=-1)[:, 0]


@op(infer_fn=lambda shapes: shapes[1], dtype=lambda dtypes: dtypes[0])
def sparse_softmax_cross_entropy_grad(g, logits, labels):
    """Gradient for the logits.  g: (a,), logits: (a, c), labels: (a,) int -> (a, c)."""
    grad = _softmax(logits)
    grad[np.arange(len(labels)), labels] -= 1
    return grad * g[:, None]


@sparse_softmax_cross_entropy.vjp
def _(g, out, logits, labels):
    return sparse_softmax_cross_entropy_grad(g, logits, labels), None
