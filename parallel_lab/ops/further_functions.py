"""More functions made of operators, in the words of MindSpore and PyTorch: diagonals, places in an order, pieces added
or put in, sums under curves, and elements whose number depends on values.

    ops.diag(v), ops.searchsorted(sorted, values), ops.index_add(x, numbers, y, axis=0), ops.nonzero(x)

How many elements `nonzero`, `masked_select` and their like give is known only when the values are there: they compute
at once, and in a network that is compiled they say that its tensors have no values yet.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ..base.checks import choice, flag, integer, is_int, number
from ..base.dtypes import kind_of
from ..base.errors import ShapeError, shorten
from .creation import eye
from .elementwise import add, cast, mul, sub
from .gather import gather, gather_elements
from .indexing import narrow
from .join import concat
from .logic import greater, greater_equal, select
from .machine.opdef import SHAPE_ERRORS
from .machine.operand_checks import check_dim
from .machine.registry import OPS
from .order import sort
from .padding import flip, pad_dims
from .reduce import reduce_sum
from .shape import as_array, broadcast_to, expand_dims, reshape, swapaxes, transpose
from .spellings import function, tensor_operand
from .statistics import lp_norm


def _dim(where, name, dim, x):
    return check_dim(where, name, dim, len(x.shape), tuple(x.shape)) % len(x.shape)


def _ranged(where, name, value, low, high):
    """An int in a range, from the end if it is below 0."""
    if not is_int(value, low, high):
        raise ShapeError(f"{name}={shorten(value)}", where=where, allowed=f"An int from {low} to {high}")
    return value


# ---- diagonals ----


@function(method="diagonal")
def diagonal(input, offset=0, dim1=0, dim2=1):
    """Elements of a diagonal, as the last dim.  input: (..., m, n) -> (..., k). offset: above the main one."""
    if len(input.shape) < 2:
        raise ShapeError(f"a tensor of shape {tuple(input.shape)}", where="diagonal", allowed="Two dims at least")
    first, second = (_dim("diagonal", *each, input) for each in (("dim1", dim1), ("dim2", dim2)))
    if first == second:
        raise ShapeError(f"dim1={dim1} and dim2={dim2}", where="diagonal", allowed="Two dims")
    order = [d for d in range(len(input.shape)) if d not in (first, second)] + [first, second]
    rest, (m, n) = [input.shape[d] for d in order[:-2]], (input.shape[first], input.shape[second])
    offset = _ranged("diagonal", "offset", offset, -m, n)
    rows = np.arange(max(0, -offset), min(m, n - offset))
    moved = transpose(input, tuple(order))
    return gather(reshape(moved, (*rest, m * n)), rows * n + rows + offset, axis=len(rest))


@function(method="diag", mint="diag")
def diag(input, diagonal=0):
    """The matrix with a vector on a diagonal; of a matrix that diagonal.  input: (n,) -> (m, m), or (m, n) -> (k,)."""
    if len(input.shape) not in (1, 2):
        raise ShapeError(f"a tensor of shape {tuple(input.shape)}", where="diag", allowed="A vector or a matrix")
    if len(input.shape) == 2:
        return _diagonal(input, diagonal)
    n, k = input.shape[0], _ranged("diag", "diagonal", diagonal, -(2**20), 2**20)
    zeros = np.zeros((), str(input.dtype))  # chosen, not multiplied: inf * 0 is no number
    square = select(eye(n, n, dtype="bool"), expand_dims(input, 0), zeros)
    return pad_dims(square, paddings=((max(-k, 0), max(k, 0)), (max(k, 0), max(-k, 0)))) if k else square


_diagonal = diagonal


@function()
def block_diag(*inputs):
    """Matrices one after the other on the diagonal, zeros elsewhere.  inputs: (m_i, n_i) each -> (sum m, sum n)."""
    given = [as_array(x) for x in inputs]
    if not given or any(len(x.shape) > 2 for x in given):
        what = f"tensors of {', '.join(str(len(x.shape)) for x in given)} dims" if given else "no tensors"
        raise ShapeError(what, where="block_diag", allowed="Matrices; a vector is a row")
    given = [x if len(x.shape) == 2 else reshape(x, (1, -1)) for x in given]
    wide, rows, left = sum(x.shape[1] for x in given), [], 0
    for x in given:
        rows.append(pad_dims(x, paddings=((0, 0), (left, wide - left - x.shape[1]))))
        left += x.shape[1]
    return concat(rows, axis=0)


@function()
def kron(input, other):
    """Every element of `input` times all of `other`.  input: (m, ...), other: (n, ...) -> (m * n, ...)."""
    x, y = as_array(input), as_array(other)
    dims = max(len(x.shape), len(y.shape))
    a, b = ((1,) * (dims - len(each.shape)) + tuple(each.shape) for each in (x, y))
    spread = mul(
        reshape(x, tuple(n for size in a for n in (size, 1))), reshape(y, tuple(n for size in b for n in (1, size)))
    )
    return reshape(spread, tuple(m * n for m, n in zip(a, b, strict=True)))


# ---- dims ----


@function(method="rot90")
def rot90(input, k, dims):
    """Turned k times by 90 degrees, from the first of two dims to the second.  input: (...) -> (...)."""
    where = "rot90"
    if not isinstance(dims, (tuple, list)) or len(dims) != 2 or not is_int(k, -(2**31), 2**31):
        raise ShapeError(f"k={shorten(k)}, dims={shorten(dims)}", where=where, allowed="An int, and two dims")
    first, second = (_dim(where, "dims", d, input) for d in dims)
    if first == second:
        raise ShapeError(f"dims={dims}", where=where, allowed="Two different dims")
    if k % 4 == 2:
        return flip(input, (first, second))
    if k % 4 == 1:
        return swapaxes(flip(input, (second,)), first, second)
    return flip(swapaxes(input, first, second), (second,)) if k % 4 else input


@function(method="tensor_split", mint="tensor_split")
def tensor_split(input, indices_or_sections, axis=0):
    """Pieces along `axis`: as many as an int says, the first ones larger; or cut at a tuple of places.

    input: (..., n, ...) -> several (..., n_i, ...)
    """
    axis, given = _dim("tensor_split", "axis", axis, input), indices_or_sections
    n = input.shape[axis]
    if isinstance(given, (tuple, list)) and all(is_int(i, -(2**31), 2**31) for i in given):
        ends = [min(max(i + n if i < 0 else i, 0), n) for i in given]
        pairs = list(zip([0, *ends], [*ends, n], strict=True))
    elif is_int(given, 1, 2**31):
        small, larger = divmod(n, given)
        ends = np.cumsum([0] + [small + (i < larger) for i in range(given)]).tolist()
        pairs = list(itertools.pairwise(ends))
    else:
        allowed = "A count above 0, or a tuple of ints"
        raise ShapeError(f"indices_or_sections={shorten(given)}", where="tensor_split", allowed=allowed)
    return tuple(narrow(input, axis, min(begin, n), max(end - begin, 0)) for begin, end in pairs)


@function(method="msort")
def msort(input):
    """Elements along the first dim in order.  input: (n, ...) -> (n, ...)."""
    return sort(input, axis=0)[0]


# ---- places in an order ----


@function(mint="searchsorted")
def searchsorted(sorted_sequence, values, *, out_int32=False, right=False, side=None, sorter=None):
    """Where values would stand in an ordered sequence: how many of its elements are smaller, with `right` how many are
    not larger.  sorted_sequence: (n,) or (..., n), values: (...) or (..., m) -> like values, int64 or int32.

    side    "left" or "right", in place of `right`;  sorter: the order of the sequence where it has none, like argsort's
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


# ---- pieces added or put in ----


def _rows(where, x, numbers, dim):
    """The dim in front, and the numbers as coordinates: (k, 1)."""
    numbers = as_array(numbers)
    if len(numbers.shape) != 1:
        raise ShapeError(f"numbers of shape {tuple(numbers.shape)}", where=where, allowed="A vector of ints")
    return swapaxes(x, 0, dim) if dim else x, expand_dims(numbers, -1)


@function(method="index_add")
def index_add(x, indices, y, axis, use_lock=True, check_index_bound=True):
    """`y` added to the rows (columns, ...) of x with these numbers, in a new tensor.

    x: (..., n, ...), indices: (k,) int, y: (..., k, ...) -> like x. use_lock, check_index_bound: without effect
    """
    y = as_array(y)
    axis = _dim("index_add", "axis", axis, x)
    moved, places = _rows("index_add", x, indices, axis)
    made = OPS["tensor_scatter_add"](moved, places, swapaxes(y, 0, axis) if axis else y)
    return swapaxes(made, 0, axis) if axis else made


@function(method="index_fill")
def index_fill(x, axis, index, value):
    """The rows (columns, ...) with these numbers set to a value.  x: (..., n, ...), index: (k,) int -> like x."""
    axis = _dim("index_fill", "axis", axis, x)
    moved, places = _rows("index_fill", x, index, axis)
    value = value.item() if hasattr(value, "item") and math.prod(value.shape) == 1 else value
    value = value if isinstance(value, bool) else number()("index_fill", "value", value, SHAPE_ERRORS)
    filled = np.full((places.shape[0], *moved.shape[1:]), value, str(x.dtype))
    made = OPS["tensor_scatter_update"](moved, places, filled)
    return swapaxes(made, 0, axis) if axis else made


@function(method="index_put", lists="indices", numbers="values")
def index_put(x, indices, values, accumulate=False):
    """`values` at these places, in a new tensor; with accumulate they are added to what is there.

    x: (n1, n2, ...), indices: m tensors of ints that broadcast to one shape s, one for each of the first m dims,
    values: broadcast to s + x.shape[m:] -> like x. Negative numbers count from the end.
    """
    flag("index_put", "accumulate", accumulate, SHAPE_ERRORS)
    shape = tuple(x.shape)
    if not isinstance(indices, (tuple, list)) or not 0 < len(indices) <= len(shape):
        allowed = f"A tuple of 1 to {len(shape)} tensors of ints, one per dim"
        raise ShapeError(f"indices={shorten(indices)}", where="index_put", allowed=allowed)
    numbers = [tensor_operand("index_put", "indices", each) for each in indices]
    try:
        places = np.broadcast_shapes(*(tuple(each.shape) for each in numbers))
    except ValueError:
        given = f"indices of shapes {[tuple(each.shape) for each in numbers]}"
        raise ShapeError(given, where="index_put", allowed="Shapes that broadcast to one") from None
    wrong = next((each for each in numbers if kind_of(each.dtype) not in "iu"), None)
    if wrong is not None:
        raise ShapeError(f"indices of {wrong.dtype}", where="index_put", allowed="Tensors of ints")
    at_end = [
        add(each, mul(cast(greater(0, each), str(each.dtype)), n)) for each, n in zip(numbers, shape, strict=False)
    ]
    together = concat([expand_dims(broadcast_to(each, places), -1) for each in at_end], axis=-1)
    values = cast(tensor_operand("index_put", "values", values), str(x.dtype))
    values = broadcast_to(values, (*places, *shape[len(numbers) :]))
    return OPS["tensor_scatter_add" if accumulate else "tensor_scatter_update"](x, together, values)


# ---- sums and distances ----


@function(mint="trapz")
def trapz(y, x=None, *, dx=1.0, dim=-1):
    """Area below points joined by lines.  y: (..., n, ...) -> (...).

    x   places of the points: (n,), or like y;  dx: the distance where there are none
    """
    y = as_array(y)
    dim = _dim("trapz", "dim", dim, y)
    n = y.shape[dim]
    if not n:
        raise ShapeError(f"a tensor of shape {tuple(y.shape)}", where="trapz", allowed="Points along dim")
    middle = mul(add(narrow(y, dim, 1, n - 1), narrow(y, dim, 0, n - 1)), 0.5)
    if x is None:
        return reduce_sum(mul(middle, number()("trapz", "dx", dx)), axis=dim)
    places = as_array(x)
    along = dim if len(places.shape) > 1 else 0
    if tuple(places.shape) not in ((n,), tuple(y.shape)):
        what = f"x of shape {tuple(places.shape)} for points of shape {tuple(y.shape)}, dim {dim}"
        raise ShapeError(what, where="trapz", allowed=f"({n},), or one place per point")
    widths = sub(narrow(places, along, 1, n - 1), narrow(places, along, 0, n - 1))
    if len(places.shape) == 1:
        widths = reshape(widths, tuple(n - 1 if d == dim else 1 for d in range(len(y.shape))))
    return reduce_sum(mul(middle, widths), axis=dim)


@function()
def dist(input, other, p=2):
    """p-norm of the difference of all elements.  input, other: (...) -> ()."""
    return lp_norm(sub(input, other), p=p)


# ---- windows ----


def _window(name, terms):
    def window(window_length, periodic=True, *, dtype=None):
        n = integer(0, (1 << 31) - 1)(name, "window_length", window_length)
        steps = n if flag(name, "periodic", periodic) else n - 1
        angle = 2 * np.pi * np.arange(n) / max(steps, 1)
        made = sum(factor * np.cos(k * angle) for k, factor in enumerate(terms)) if n > 1 else np.ones(n)
        return cast(np.asarray(made, np.float32), dtype="float32" if dtype is None else dtype)

    window.__name__ = window.__qualname__ = name
    window.__doc__ = f"Weights of a window: {' + '.join(f'{f} cos({k} a)' for k, f in enumerate(terms))}.  -> (n,)."
    return window


hann_window = function(mint="hann_window")(_window("hann_window", (0.5, -0.5)))
blackman_window = function()(_window("blackman_window", (0.42, -0.5, 0.08)))


# ---- elements whose number depends on values ----


@function(method="nonzero")
def nonzero(input, *, as_tuple=False):
    """Where elements are not 0: coordinates.  input: (...) -> (k, dims) int64; as_tuple: one (k,) per dim."""
    given = np.asarray(input)
    if not given.ndim:
        raise ShapeError("a single number", where="nonzero", allowed="A tensor of one dim at least")
    found = np.nonzero(given)
    if flag("nonzero", "as_tuple", as_tuple):
        return tuple(cast(places, dtype="int64") for places in found)
    return cast(np.stack(found, -1), dtype="int64")


@function()
def argwhere(input):
    """Where elements are not 0: coordinates.  input: (...) -> (k, dims) int64."""
    return nonzero(input)


@function(method="masked_select", mint="masked_select")
def masked_select(input, mask):
    """Elements where the mask holds, row by row.  input, mask: (...) -> (k,)."""
    input, mask = as_array(input), as_array(mask)
    try:
        shape = np.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    except ValueError:
        what = f"input of shape {tuple(input.shape)} and mask of shape {tuple(mask.shape)}"
        raise ShapeError(what, where="masked_select", allowed="Shapes that broadcast") from None
    places = np.flatnonzero(np.broadcast_to(np.asarray(mask), shape))
    return gather(reshape(broadcast_to(input, shape=shape), (-1,)), places, axis=0)
