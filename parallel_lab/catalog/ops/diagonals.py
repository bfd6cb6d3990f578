"""Diagonals: taken out of a matrix, put into one, and what lies above or below."""

from __future__ import annotations

import numpy as np

from ...base.checks import integer, is_int
from ...base.errors import ShapeError, shorten
from ...ops.gather import gather
from ...ops.join import concat
from ...ops.logic import select
from ...ops.machine.operand_checks import own_dim
from ...ops.machine.registry import case, form, op
from ...ops.shape import as_array, expand_dims, reshape, transpose
from ...ops.spellings import function
from .creation import _dtype, _shape
from .padding import pad_dims


def _ranged(where, name, value, low, high):
    """An int in a range, from the end if it is below 0."""
    if not is_int(value, low, high):
        raise ShapeError(f"{name}={shorten(value)}", where=where, allowed=f"An int from {low} to {high}")
    return value


# ---- diagonals ----


@function()
def diagonal(input, offset=0, dim1=0, dim2=1):
    """Elements of a diagonal, as the last dim.  input: (..., m, n) -> (..., k). offset: above the main one."""
    if len(input.shape) < 2:
        raise ShapeError(f"a tensor of shape {tuple(input.shape)}", where="diagonal", allowed="Two dims at least")
    first, second = (own_dim("diagonal", *each, input) for each in (("dim1", dim1), ("dim2", dim2)))
    if first == second:
        raise ShapeError(f"dim1={dim1} and dim2={dim2}", where="diagonal", allowed="Two dims")
    order = [d for d in range(len(input.shape)) if d not in (first, second)] + [first, second]
    rest, (m, n) = [input.shape[d] for d in order[:-2]], (input.shape[first], input.shape[second])
    offset = _ranged("diagonal", "offset", offset, -m, n)
    rows = np.arange(max(0, -offset), min(m, n - offset))
    moved = transpose(input, tuple(order))
    return gather(reshape(moved, (*rest, m * n)), rows * n + rows + offset, axis=len(rest))


@function(mint="diag")
def diag(input, diagonal=0):
    """The matrix with a vector on a diagonal; of a matrix that diagonal.  input: (n,) -> (m, m), or (m, n) -> (k,)."""
    if len(input.shape) not in (1, 2):
        raise ShapeError(f"a tensor of shape {tuple(input.shape)}", where="diag", allowed="A vector or a matrix")
    if len(input.shape) == 2:
        return _diagonal(input, diagonal)
    n, k = input.shape[0], _ranged("diag", "diagonal", diagonal, -(2**20), 2**20)
    zeros = np.zeros((), str(input.dtype))  # chosen, not multiplied: inf * 0 is not a number
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


# ---- triangles ----


def _check_triangle(operands, *, diagonal):
    shape = operands[0].shape
    return None if len(shape) >= 2 else (f"a tensor of shape {shape}", "At least 2 dims")


def _above(x, offset):
    """For every place of the last two dims, on which diagonal of the whole matrix it lies: column minus row."""
    rows, columns = (start + np.arange(n) for start, n in zip(offset, x.shape[-2:], strict=True))
    return columns - rows[:, None]


_TRIANGLE = {
    "attrs": {"diagonal": integer()},
    "check": _check_triangle,
    "offset": "mn",
    "flops": 0,
    "example": (case((8, 16)), case((4, 8, 8), diagonal=-2), case((16, 4), diagonal=1)),
}


@op("...mn->...mn", name="Tril", mint="tril", **_TRIANGLE)
def tril(x, *, diagonal=0, offset=(0, 0)):
    """The lower triangle: zeros above `diagonal` (0 the main one, 1 above it, -1 below).  x: (..., m, n) -> like x.

    Any dim may be split: a rank's slice begins at row and column `offset`.
    """
    return np.where(_above(x, offset) <= diagonal, x, np.zeros((), x.dtype))


@op("...mn->...mn", name="Triu", mint="triu", **_TRIANGLE)
def triu(x, *, diagonal=0, offset=(0, 0)):
    """The upper triangle: zeros below the given diagonal.  x: (..., m, n) -> (..., m, n). See `tril`."""
    return np.where(_above(x, offset) >= diagonal, x, np.zeros((), x.dtype))


@tril.vjp
def _(g, out, x, *, diagonal):
    return (tril(g, diagonal=diagonal),)


@triu.vjp
def _(g, out, x, *, diagonal):
    return (triu(g, diagonal=diagonal),)


@function()
def eye(n, m=None, dtype="float32"):
    """Ones on the main diagonal, zeros elsewhere.  -> array (n, m); m defaults to n."""
    shape = _shape((n, n if m is None else m), "eye")
    return np.eye(*shape, dtype=_dtype(dtype, "eye"))


@form(tril, "TrilExt")
def _(self, input, diagonal=0):
    """The lower triangle: zeros above `diagonal`.  input: (..., m, n) -> (..., m, n)."""
    return self.run(input, diagonal=diagonal)
