"""Elements in order: sorted, the largest few, and places in what is sorted.

ops.sort(x) -> values, indices      ops.topk(x, k)      ops.searchsorted(sorted, values)
"""

from __future__ import annotations

import numpy as np

from ...base.checks import SHAPE_ERRORS, choice, flag, is_int
from ...base.dtypes import kind_of
from ...base.errors import ShapeError, shorten
from ...ops.elementwise import cast
from ...ops.gather import gather_elements
from ...ops.logic import greater, greater_equal
from ...ops.machine.operand_checks import filled_dim, one_dim
from ...ops.machine.registry import case, form, op
from ...ops.machine.signature import along_axis, letters, more_letters
from ...ops.reduce import reduce_sum
from ...ops.shape import as_array, expand_dims, reshape
from ...ops.spellings import function, tensor_operand
from .cumulative import put_along
from .extremes import _two_labels, argmax, argmin

# ---- order ----


def _order(x, axis, descending):
    """Numbers of the elements along `axis` in their order; equal ones stay in theirs."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # the ascending order of the row read from its end, read from its end
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


@op(
    "...->...,...",
    name="Sort",
    attrs={"axis": filled_dim},
    dtype=(0, "int32"),
    whole=along_axis,
    example=(case((16, 8)), case((8, 4, 2), axis=0, descending=True)),
)
def sort(x, *, axis=-1, descending=False):
    """Elements along `axis` in order, and their numbers.  x: (..., n, ...) -> values, numbers int32, (..., n, ...)."""
    order = _order(x, axis, descending)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


@sort.vjp
def _(g, out, x, *, axis, descending):
    return _back_in_place(g[0], out[1], x, axis)


@function()
def argsort(x, axis=-1, descending=False):
    """The numbers that elements along `axis` have, in order, no gradient.  x: (..., n, ...) -> (..., n, ...) int32."""
    return sort(x, axis=axis, descending=descending)[1]


def _check_top_k(operands, *, k, sorted, dim, largest):
    shape = operands[0].shape
    if not is_int(k, 0, shape[dim]):
        what = f"k={shorten(k)} for dim {dim} of a tensor of shape {shape}"
        return what, f"An int from 0 to {shape[dim]}, the size of the dim"


def _top_k_labels(shapes, *, k, sorted, dim, largest):
    names, place = letters(len(shapes[0])), dim % len(shapes[0])
    made = names[:place] + more_letters(1) + names[place + 1 :]
    return f"{names}->{made},{made}"


@op(
    _top_k_labels,
    name="TopK",
    static=("k",),
    attrs={"dim": one_dim},
    check=_check_top_k,
    sizes=lambda shapes, *, k, **_: {more_letters(1): k},
    dtype=(0, "int32"),
    whole=lambda signature, *, dim, **_: signature.ins[0][dim],
    example=(case((16, 8), k=3), case((4, 2, 8), k=8), case((4, 8, 2), k=5, dim=1, largest=False)),
)
def top_k(x, k, *, sorted=True, dim=-1, largest=True):
    """The k largest (largest=False: smallest) along `dim`, in order (sorted=False too), and their numbers.

    x: (..., n, ...) -> two (..., k, ...)
    """
    numbers = np.take(_order(x, dim, largest), range(k), dim)
    return np.take_along_axis(x, numbers, dim), numbers.astype(np.int32)


@top_k.vjp
def _(g, out, x, *, k, sorted, dim, largest):
    return _back_in_place(g[0], out[1], x, dim)


@form(sort, "SortExt")
def _(self, input, dim=-1, descending=False, stable=False):
    """Elements along `dim` in order, equal ones always in theirs, and their numbers.  input: (...) -> two (...)."""
    return self.run(input, axis=dim, descending=descending)


@form(top_k, "TopkExt")
def _(self, input, k, dim=-1, largest=True, sorted=True):
    """The k largest (or smallest) elements along `dim` in order, and their numbers.  -> two (..., k, ...)."""
    return self.run(input, k, dim=dim, largest=largest)


@function(mint="topk")
def topk(input, k, dim=None, largest=True, sorted=True):
    """The k largest or smallest elements along `dim` (None: the last), in order, and their numbers.

    input: (..., n, ...) -> values (..., k, ...), numbers (..., k, ...) int32. `sorted=False` changes nothing.
    """
    return top_k(as_array(input), k, dim=-1 if dim is None else dim, largest=largest)


@function()
def msort(input):
    """Elements along the first dim in order.  input: (n, ...) -> (n, ...)."""
    return sort(input, axis=0)[0]


# ---- places in an order ----


@function(mint="searchsorted")
def searchsorted(sorted_sequence, values, *, out_int32=False, right=False, side=None, sorter=None):
    """Where values would stand in an ordered sequence: how many of its elements are smaller, with `right` how many are
    not larger.  sorted_sequence: (n,) or (..., n), values: (...) or (..., m) -> like values, int64 or int32.

    side    "left" or "right", instead of `right`;  sorter: the order of a sequence that is not sorted, like argsort's
    """
    if side is not None:
        at_right = choice("left", "right")("searchsorted", "side", side, SHAPE_ERRORS) == "right"
        if right and not at_right:
            raise ShapeError("side='left' with right=True", where="searchsorted", allowed="One of both")
        right = at_right
    if sorter is not None:
        order = tensor_operand("searchsorted", "sorter", sorter)
        sorted_sequence = gather_elements(as_array(sorted_sequence), -1, order)
    dtype = "int32" if flag("searchsorted", "out_int32", out_int32) else "int64"
    row, wanted = as_array(sorted_sequence), as_array(values)
    if len(row.shape) > 1:
        if tuple(row.shape[:-1]) != tuple(wanted.shape[:-1]) or len(row.shape) != len(wanted.shape):
            what = f"a sequence of shape {tuple(row.shape)} and values of shape {tuple(wanted.shape)}"
            raise ShapeError(what, where="searchsorted", allowed="One row, or as many rows in both")
        row = expand_dims(row, -2)
    below = (greater_equal if flag("searchsorted", "right", right) else greater)(expand_dims(wanted, -1), row)
    return reduce_sum(cast(below, dtype=dtype), axis=-1)


@function(mint="bucketize")
def bucketize(input, boundaries, *, right=False):
    """The number of the interval that each element is in.  input: (...), boundaries: (n,), ascending -> (...) int."""
    edges = np.asarray(boundaries) if isinstance(boundaries, (list, tuple)) else as_array(boundaries)
    if len(edges.shape) != 1 or kind_of(edges.dtype) not in "biuf":
        what = f"boundaries={shorten(boundaries)}"
        raise ShapeError(what, where="bucketize", allowed="One row of numbers, the smaller ones first")
    return searchsorted(edges, input, right=right)


def _back_in_place(g, numbers, x, axis):
    """The gradient of values that were taken from x, each where its element was; their numbers get no gradient."""
    return (None if g is None else put_along(g, numbers, shape=tuple(x.shape), axis=axis),)


def _extreme_along(name, class_name, place, text):
    """Declare the extreme elements along one dim with their numbers, which numpy's `place` finds."""

    def fn(x, dim, keepdim=False):
        numbers = np.expand_dims(place(x, axis=dim), dim)
        found = np.take_along_axis(x, numbers, dim), numbers.astype(np.int32)
        return found if keepdim else tuple(np.squeeze(each, dim) for each in found)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"""The {text} elements along `dim`, which stays whole, and their numbers, the first of equal ones.

    x: (..., n, ...) -> values, numbers int32, (...) without that dim, or with size 1 there if keepdim.
    """
    made = op(
        lambda shapes, *, dim, keepdim: _two_labels(shapes, axis=dim, keep_dims=keepdim),
        name=class_name,
        static=("dim",),
        attrs={"dim": filled_dim},
        dtype=(0, "int32"),
        whole=lambda signature, *, dim, **_: signature.ins[0][dim],
        example=(case((16, 8), dim=1), case((4, 8, 2), dim=0, keepdim=True)),
    )(fn)

    @made.vjp
    def _(g, out, x, *, dim, keepdim):
        shape = tuple(x.shape)
        kept = (*shape[: dim % len(shape)], 1, *shape[dim % len(shape) + 1 :])
        return (None,) if g[0] is None else _back_in_place(reshape(g[0], kept), reshape(out[1], kept), x, dim)

    return made


max_dim = _extreme_along("max_dim", "MaxDim", np.argmax, "largest")
min_dim = _extreme_along("min_dim", "MinDim", np.argmin, "smallest")


@form(argmax, "ArgMaxExt")
@form(argmin, "ArgMinExt")
def _(self, input, dim=None, keepdim=False):
    """The number of the largest (ArgMinExt: smallest) element along `dim`, of None: of all.  input: (...) -> (...)."""
    x, axis = (input, dim) if dim is not None else (reshape(input, (-1,)), 0)
    return self.run(x, axis=axis, output_type="int64", keep_dims=keepdim)
