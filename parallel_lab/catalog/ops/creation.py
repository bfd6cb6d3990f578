"""Constants made from a shape, which a trace records as constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...base.checks import INT_LIMIT, INTS, SHAPE_ERRORS, integer, number, sequence_of
from ...base.dtypes import MOST_ELEMENTS
from ...base.errors import ShapeError, shorten
from ...ops.elementwise import a_dtype
from ...ops.spellings import function, method, tensor_operand

# ---- constants ----


_NUMBER = number(kinds=(int, float, np.number))
_SIZE = sequence_of(integer(0), "An int, or a tuple of ints, none below 0", one=True, empty=True)


def _shape(size: Any, where: str) -> tuple[int, ...]:
    shape = _SIZE(where, "size", size, SHAPE_ERRORS)
    if math.prod(shape) > MOST_ELEMENTS or len(shape) > 64:
        raise ShapeError(f"size={shorten(size)}", where=where, allowed="At most 64 dims, and 2**59 elements")
    return shape


def _plain(given: Any) -> Any:
    """The number in a tensor of one element, which MindSpore takes where numbers are; anything else as it is."""
    if not isinstance(given, np.generic) and math.prod(getattr(given, "shape", ())) == 1 and hasattr(given, "dtype"):
        return np.asarray(given).reshape(-1)[0].item()
    return given


def _dtype(dtype: Any, where: str) -> np.dtype:
    return a_dtype(where, "dtype", dtype, SHAPE_ERRORS)


@function()
def zeros(size, dtype="float32"):
    """Zeros.  -> array of shape `size`, an int or a tuple."""
    return np.zeros(_shape(size, "zeros"), _dtype(dtype, "zeros"))


@function()
def ones(size, dtype="float32"):
    """Ones.  -> array of shape `size`, an int or a tuple."""
    return np.ones(_shape(size, "ones"), _dtype(dtype, "ones"))


@function()
def full(size, fill_value, dtype=None):
    """One number everywhere.  -> array of shape `size`; default dtype: float32 for a float, else the number's."""
    value = tensor_operand("full", "fill_value", fill_value, number=True)
    if value.shape:
        raise ShapeError(f"fill_value={shorten(fill_value)}", where="full", allowed="One number")
    if dtype is None:
        dtype = "float32" if isinstance(fill_value, float) else str(value.dtype)
    try:
        return np.full(_shape(size, "full"), fill_value, _dtype(dtype, "full"))
    except OverflowError:
        raise ShapeError(f"fill_value={shorten(fill_value)}", where="full", allowed=f"What {dtype} holds") from None


@function()
def zeros_like(x, dtype=None):
    """Zeros in the shape of x.  x: (...) -> array (...) of x's dtype, or the given one."""
    return zeros(tuple(x.shape), str(x.dtype) if dtype is None else dtype)


@function()
def ones_like(x, dtype=None):
    """Ones in the shape of x.  x: (...) -> array (...) of x's dtype, or the given one."""
    return ones(tuple(x.shape), str(x.dtype) if dtype is None else dtype)


@function()
def full_like(x, fill_value, dtype=None):
    """One number everywhere, in the shape of x.  x: (...) -> array (...) of x's dtype, or the given one."""
    return full(tuple(x.shape), fill_value, str(x.dtype) if dtype is None else dtype)


@function()
def arange(start, end=None, step=1, dtype=None):
    """start, start + step, ... before end; `arange(n)`: 0, ..., n - 1.  -> array (count,) int64, or float32."""
    start, end = (0, start) if end is None else (start, end)
    given = {"start": _plain(start), "end": _plain(end), "step": _plain(step)}
    start, end, step = (
        (integer() if isinstance(n, INTS) else _NUMBER)("arange", name, n, SHAPE_ERRORS) for name, n in given.items()
    )
    if not step or abs((end - start) / step) > INT_LIMIT:
        told = ", ".join(f"{name} {shorten(n)}" for name, n in given.items())
        raise ShapeError(told, where="arange", allowed=f"At most {INT_LIMIT} numbers, the step not 0")
    made = np.arange(start, end, step)
    default = np.float32 if made.dtype.kind == "f" else np.int64
    return made.astype(_dtype(default if dtype is None else dtype, "arange"))


@function()
def linspace(start, end, steps, dtype="float32"):
    """`steps` numbers at equal distances from start to end, both included.  -> array (steps,)."""
    start, end = (_NUMBER("linspace", name, _plain(n), SHAPE_ERRORS) for name, n in (("start", start), ("end", end)))
    return np.linspace(start, end, *_shape(_plain(steps), "linspace"), dtype=_dtype(dtype, "linspace"))


# ---- methods of a Tensor in a form of their own ----


@method("new_full")
def _(self, size, fill_value, *, dtype=None):
    """A tensor of this shape, every element `fill_value`; dtype None: this tensor's."""
    return full(size, fill_value, dtype=dtype or self.dtype)


@method("new_zeros")
@method("new_empty")
def _(self, size, *, dtype=None):
    """Zeros of this shape; dtype None: this tensor's."""
    return zeros(size, dtype or self.dtype)


@method("new_ones")
def _(self, size, *, dtype=None):
    """Ones of this shape; dtype None: this tensor's."""
    return ones(size, dtype or self.dtype)
