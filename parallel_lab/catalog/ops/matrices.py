"""Square matrices: inverse, determinant and its logarithm. Matrices of a batch may be split, a matrix stays whole.

ops.MatrixInverse().shard(((4, 1, 1),))(x)      x: (8, 3, 3): two matrices per rank of four
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import flag, is_int
from ...base.errors import ShapeError, shorten
from ...ops.elementwise import float_result, mul
from ...ops.linalg import matmul
from ...ops.logic import select
from ...ops.machine.registry import Case, op
from ...ops.shape import expand_dims, swapaxes
from ...ops.spellings import function
from .diagonals import eye
from .elementary_functions import log


def _check_square(operands, **_):
    shape = operands[0].shape
    if len(shape) < 2:
        return f"a tensor of shape {tuple(shape)}", "Matrices: two dims at least"
    if str(operands[0].dtype) in ("float16", "bfloat16"):  # LAPACK has neither
        return f"matrices of dtype {operands[0].dtype}", "float32 or float64: cast them first, x.astype('float32')"
    return None if shape[-2] == shape[-1] else (f"matrices of shape {shape[-2:]}", "As many rows as columns")


class _Regular(Case):
    """Examples of matrices far from singular: by rows the diagonal is larger than the rest."""

    def arrays(self, rng: np.random.Generator, dtype: Any = np.float64) -> list[np.ndarray]:
        return [x + 2 * x.shape[-1] * np.eye(x.shape[-1], dtype=x.dtype) for x in super().arrays(rng, dtype)]


_SQUARE = {
    "whole": "mn",
    "check": _check_square,
    "flops": lambda s: 2 * s.m**3,
    "example": tuple(_Regular((shape,)) for shape in ((3, 3), (16, 2, 2), (4, 8, 3, 3))),
}


def _solved(name, x, compute):
    try:
        return compute(x)
    except np.linalg.LinAlgError as error:
        raise ShapeError("a singular matrix", where=name, allowed="Matrices that have an inverse") from error


@op("...mn->...nm", name="MatrixInverse", attrs={"adjoint": flag}, dtype=float_result, **_SQUARE)
def matrix_inverse(x, *, adjoint=False):
    """Inverse of square matrices, transposed with `adjoint`.  x: (..., n, n) -> (..., n, n)."""
    made = _solved("MatrixInverse", x, np.linalg.inv).astype(float_result((x.dtype,)), copy=False)
    return np.ascontiguousarray(np.swapaxes(made, -1, -2)) if adjoint else made


@matrix_inverse.vjp
def _(g, out, x, *, adjoint):
    out, g = (swapaxes(out, -1, -2), swapaxes(g, -1, -2)) if adjoint else (out, g)
    turned = swapaxes(out, -1, -2)
    return (mul(matmul(matmul(turned, g), turned), -1.0),)


def _spread(g, x):
    """A gradient of the determinant's logarithm, times what that is by the matrix.  g: (...), x: (..., n, n)."""
    return mul(expand_dims(expand_dims(g, -1), -1), swapaxes(matrix_inverse(x), -1, -2))


@op("...mn->...", name="MatrixDeterminant", also="det", dtype=float_result, **_SQUARE)
def matrix_determinant(x):
    """Determinant of square matrices.  x: (..., n, n) -> (...)."""
    return np.asarray(np.linalg.det(x), float_result((x.dtype,)))


@matrix_determinant.vjp
def _(g, out, x):
    return (_spread(mul(g, out), x),)


@op("...mn->...,...", name="LogMatrixDeterminant", also="slogdet", mint="slogdet", dtype=float_result, **_SQUARE)
def log_matrix_determinant(x):
    """Sign of the determinant, and logarithm of its size.  x: (..., n, n) -> (...), (...)."""
    dtype = float_result((x.dtype,))
    return tuple(np.asarray(part, dtype) for part in np.linalg.slogdet(x))


@log_matrix_determinant.vjp
def _(g, out, x):
    return (None if g[1] is None else _spread(g[1], x),)


@function(mint="inverse")
def inverse(input):
    """Inverse of square matrices.  input: (..., n, n) -> (..., n, n)."""
    return matrix_inverse(input)


@function()
def logdet(input):
    """Logarithm of the determinant, which must be above 0.  input: (..., n, n) -> (...)."""
    return log(matrix_determinant(input))


@function()
def matrix_power(input, n):
    """A square matrix n times with itself, its inverse for n below 0.  input: (..., m, m) -> (..., m, m)."""
    if not is_int(n, -(2**31), 2**31):
        raise ShapeError(f"n={shorten(n)}", where="matrix_power", allowed="An int")
    if fault := _check_square((input,)):
        raise ShapeError(fault[0], where="matrix_power", allowed=fault[1])
    factor, left = (matrix_inverse(input) if n < 0 else input), abs(n)
    result = None
    while left:  # by squares
        result = (factor if result is None else matmul(result, factor)) if left % 2 else result
        factor, left = (matmul(factor, factor) if left > 1 else factor), left // 2
    if result is None:  # n = 0: chosen, not multiplied by 0, because inf * 0 is not a number
        return select(np.zeros((), bool), input, eye(*input.shape[-2:], dtype=str(input.dtype)))
    return result
