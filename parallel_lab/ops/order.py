"""Operators that need a whole row at once: the order of its elements (sort, top_k, argmax, argmin) and running sums (cumsum).

The dim they work along stays whole (MindSpore: ArgMax, TopK, CumSum); all others may be cut. Of equal elements the earlier one comes first, in both
directions. Numbers of elements are int32, as in MindSpore, unless `output_type` says otherwise.
"""

from __future__ import annotations

import numpy as np

from ..errors import ShapeError, message, shorten
from .elementwise import UNARY, first_dtype
from .registry import case, check_dim, op
from .signature import letters, more_letters

__all__ = ["argmax", "argmin", "argsort", "cumsum", "sort", "top_k"]


def _check_axis(where, operands, *, axis, **_):
    shape = operands[0].shape
    if not shape[check_dim(where, "axis", axis, len(shape), shape)]:
        raise ShapeError(message(f"axis={axis} for a tensor of shape {shape}", where=where, allowed="A dim with elements"))


def _along(signature, *, axis, **_):
    return signature.ins[0][axis]


# ---- the place of an extreme ----


def _check_arg(where, operands, *, axis, output_type, keep_dims):
    _check_axis(where, operands, axis=axis)
    if output_type not in ("int32", "int64"):
        raise ShapeError(message(f"output_type={shorten(output_type)}", where=where, allowed="'int32' or 'int64'"))


def _arg_labels(shapes, *, axis, output_type, keep_dims):
    names, place = letters(len(shapes[0])), axis % len(shapes[0])
    return f"{names}->{names[:place]}{'1' if keep_dims else ''}{names[place + 1 :]}"


_ARG = {
    "check": _check_arg,
    "dtype": lambda dtypes, *, axis, output_type, keep_dims: output_type,
    "whole": _along,
    "example": (case((16, 8)), case((4, 8, 2), axis=0), case((16, 8), axis=1, keep_dims=True, output_type="int64")),
}


@op(_arg_labels, name="Argmax", **_ARG)
def argmax(x, *, axis=-1, output_type="int32", keep_dims=False):
    """The number of the largest element along `axis`, the first of equal ones.  x: (..., n, ...) -> (...) int, with size 1 there if keep_dims.

    No gradient.
    """
    return np.argmax(x, axis=axis, keepdims=keep_dims).astype(output_type)


@op(_arg_labels, name="Argmin", **_ARG)
def argmin(x, *, axis=-1, output_type="int32", keep_dims=False):
    """The number of the smallest element along `axis`, the first of equal ones.  x: (..., n, ...) -> (...) int, with size 1 there if keep_dims.

    No gradient.
    """
    return np.argmin(x, axis=axis, keepdims=keep_dims).astype(output_type)


# ---- order ----


def _order(x, axis, descending):
    """Numbers of the elements along `axis` in their order; equal ones stay in theirs."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # the ascending order of the row read from its end, read from its end
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def _value_and_number(dtypes, *, index, **_):
    return dtypes[0] if index == 0 else "int32"


@op(infer_fn=lambda shapes, *, shape, axis: shape, dtype=first_dtype)
def put_along(g, numbers, *, shape, axis):
    """Zeros, with g at the given numbers along `axis`, each at most once.  g, numbers: (..., k, ...) -> `shape`."""
    grad = np.zeros(shape, g.dtype)
    np.put_along_axis(grad, numbers.astype(np.int64, copy=False), g, axis)
    return grad


@op(
    UNARY,
    name="Sort",
    check=_check_axis,
    outputs=lambda shapes, **_: 2,
    dtype=_value_and_number,
    whole=_along,
    example=(case((16, 8)), case((8, 4, 2), axis=0, descending=True)),
)
def sort(x, *, axis=-1, descending=False, index):
    """Elements along `axis` in order, and the numbers they had.  x: (..., n, ...) -> values (..., n, ...), numbers (..., n, ...) int32."""
    order = _order(x, axis, descending)
    return np.take_along_axis(x, order, axis) if index == 0 else order.astype(np.int32)


@op(infer_fn=lambda shapes, **_: shapes[0], dtype="int32")
def order_numbers(x, *, axis, descending):
    """Numbers of the elements along `axis` in order.  x: (..., n, ...) -> (..., n, ...) int32."""
    return _order(x, axis, descending).astype(np.int32)


@sort.vjp
def _(g, out, x, *, axis, descending, index):
    if index:
        return (None,)
    return (put_along(g, order_numbers(x, axis=axis, descending=descending), shape=tuple(x.shape), axis=axis),)


def argsort(x, axis=-1, descending=False):
    """The numbers that elements along `axis` have, in their order.  x: (..., n, ...) -> (..., n, ...) int32. No gradient."""
    return sort(x, axis=axis, descending=descending)[1]


def _check_top_k(where, operands, *, k, sorted):
    shape = operands[0].shape
    if not shape or isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= shape[-1]:
        allowed = f"An int from 0 to {shape[-1]}, the size of the last dim" if shape else "A tensor with dims"
        raise ShapeError(message(f"k={shorten(k)} for a tensor of shape {shape}", where=where, allowed=allowed))


def _top_k_labels(shapes, *, k, sorted, index):
    names = letters(len(shapes[0]))
    return f"{names}->{names[:-1]}{more_letters(1)}"


@op(
    _top_k_labels,
    name="TopK",
    static=("k",),
    check=_check_top_k,
    outputs=lambda shapes, **_: 2,
    sizes=lambda shapes, *, k, **_: {more_letters(1): k},
    dtype=_value_and_number,
    whole=lambda signature, **_: signature.ins[0][-1],
    example=(case((16, 8), k=3), case((4, 2, 8), k=8)),
)
def top_k(x, k, *, sorted=True, index):
    """The k largest elements of every row, the largest first, and their numbers.  x: (..., n) -> values (..., k), numbers (..., k) int32.

    sorted  kept for MindSpore's form: the order is the same with False, which promises none
    """
    numbers = _order(x, -1, True)[..., :k]
    return np.take_along_axis(x, numbers, -1) if index == 0 else numbers.astype(np.int32)


@op(infer_fn=lambda shapes, *, k: (*shapes[0][:-1], k), dtype="int32")
def top_numbers(x, *, k):
    """Numbers of the k largest elements of every row.  x: (..., n) -> (..., k) int32."""
    return _order(x, -1, True)[..., :k].astype(np.int32)


@top_k.vjp
def _(g, out, x, *, k, sorted, index):
    if index:
        return (None,)
    return (put_along(g, top_numbers(x, k=k), shape=tuple(x.shape), axis=-1),)


# ---- running sums ----


def _check_cumsum(where, operands, *, axis, exclusive, reverse):
    check_dim(where, "axis", axis, len(operands[0].shape), operands[0].shape)


def _summed(dtypes, **_):
    return "int64" if dtypes[0] == "bool" else dtypes[0]


@op(
    UNARY,
    name="CumSum",
    static=("axis",),
    check=_check_cumsum,
    dtype=_summed,
    whole=_along,
    example=(case((16, 8), axis=1), case((4, 8, 2), axis=0, exclusive=True), case((16, 8), axis=-1, reverse=True, exclusive=True)),
)
def cumsum(x, axis, *, exclusive=False, reverse=False):
    """Sums of all elements along `axis` up to each one.  x: (..., n, ...) -> (..., n, ...). `axis` stays whole.

    exclusive  without the element itself; reverse: from the end
    """
    turned = np.flip(x, axis) if reverse else x
    total = np.cumsum(turned, axis=axis, dtype=_summed((str(x.dtype),)))
    if exclusive:
        total = np.roll(total, 1, axis)
        total[(slice(None),) * (axis % x.ndim) + (slice(0, 1),)] = 0
    return np.array(np.flip(total, axis) if reverse else total, order="C")


@cumsum.vjp
def _(g, out, x, *, axis, exclusive, reverse):
    return (cumsum(g, axis, exclusive=exclusive, reverse=not reverse),)
