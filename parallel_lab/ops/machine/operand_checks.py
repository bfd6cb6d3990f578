"""What operators refuse: checks of attributes and operands, which a declaration names in `attrs=` and `check=`.

    @op(..., attrs={"axis": one_dim, "depth": integer(1)}, check=check)

    def check(operands, *, axis, depth):
        if operands[1].shape:
            return f"on_value has shape {operands[1].shape}", "A number: shape ()"

A check of an attribute is one of `base/checks.py`, or a function of (name, value, shape of operand 0), whose attribute
`alone` may be a check for use before any operand exists. Both kinds of function give None or a fault: the reason,
what is allowed, and perhaps a hint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.checks import integer, is_int, sequence_of
from ...base.dtypes import is_bfloat16, is_masked
from ...base.errors import ArgumentTypeError, ShapeError, shorten
from .signature import Fault, Shape


def is_operand(value: Any) -> bool:
    """Whether `value` is a tensor, or an array or number of numpy that could be one: no text, object, complex, mask."""
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        return (dtype.kind in "biuf" or is_bfloat16(dtype)) and not is_masked(value)
    return isinstance(dtype, str)  # of what inference knows


class OperandType:
    """Shape and dtype of an operand, whatever it is: what `check=` functions look at. bfloat16 is float32 to them."""

    __slots__ = ("dtype", "shape")

    def __init__(self, operand: Any) -> None:
        if not is_operand(operand):
            operand = np.asarray(operand)
        dtype = operand.dtype
        dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(str(dtype))
        self.shape, self.dtype = tuple(operand.shape), np.dtype(np.float32) if is_bfloat16(dtype) else dtype


def refuse(where: str, fault: Fault | None) -> None:
    """Raise ShapeError for a fault; nothing for None."""
    if fault is not None:
        what, allowed, *hint = fault
        raise ShapeError(what, where=where, allowed=allowed, hint="".join(hint))


# ---- attributes that name dims ----


def check_dim(where: str, name: str, dim: Any, ndim: int, shape: Any = None) -> int:
    """`dim` counted from the front; ShapeError unless it is an int that names one of `ndim` dims."""
    refuse(where, _dim_fault(name, dim, ndim, shape))
    return dim % ndim


def own_dim(where: str, name: str, dim: Any, x: Any) -> int:
    """`dim` of x, counted from the front; ShapeError unless it is an int that names one of x's dims."""
    return check_dim(where, name, dim, len(x.shape), tuple(x.shape))


def _dim_fault(name: str, dim: Any, ndim: int, shape: Any = None) -> Fault | None:
    if is_int(dim, -ndim, ndim - 1):
        return None
    what = f"{name}={shorten(dim)}" + ("" if shape is None else f" for a tensor of shape {shape}")
    return what, f"An int from {-ndim} to {ndim - 1}" if ndim else "A tensor with dims"


def one_dim(name: str, value: Any, shape: Shape) -> Fault | None:
    """An int that names a dim."""
    return _dim_fault(name, value, len(shape), shape)


def filled_dim(name: str, value: Any, shape: Shape) -> Fault | None:
    """An int that names a dim with elements."""
    empty = (f"{name}={value} for a tensor of shape {shape}", "A dim with elements")
    return one_dim(name, value, shape) or (None if shape[value] else empty)


def new_dim(name: str, value: Any, shape: Shape) -> Fault | None:
    """An int that names a dim of the result, which has one more."""
    return _dim_fault(name, value, len(shape) + 1)


def some_dims(name: str, value: Any, shape: Shape) -> Fault | None:
    """An int, or a tuple of ints, each naming another dim."""
    values = value if isinstance(value, tuple) else (value,)
    for each in values:
        if fault := one_dim(name, each, shape):
            return fault
    twice = len({each % len(shape) for each in values}) < len(values)
    return (f"{name}={value} for a tensor of shape {shape} names a dim twice", "Each dim once") if twice else None


def any_dims(name: str, value: Any, shape: Shape) -> Fault | None:
    """As `some_dims`, or None."""
    return None if value is None else some_dims(name, value, shape)


_DIM = integer()
_DIMS = sequence_of(_DIM, "An int, or a tuple of ints", one=True, empty=True)
one_dim.alone = filled_dim.alone = new_dim.alone = _DIM  # type: ignore[attr-defined]
some_dims.alone, any_dims.alone = _DIMS, _DIMS | None  # type: ignore[attr-defined]


# ---- operands ----


def ints(operand: OperandType, what: str) -> Fault | None:
    """An integer dtype: class numbers, indices."""
    if operand.dtype.kind in "iu":
        return None
    hint = "Convert them: labels.astype('int32')" if operand.dtype.kind == "f" else ""
    return f"the {what} are {operand.dtype}", f"The {what} must be ints", hint


def floats(operand: OperandType, name: str = "x") -> Fault | None:
    """A float dtype."""
    if operand.dtype.kind == "f":
        return None
    return f"{name} is {operand.dtype}", "Floats", "Convert it: x.astype('float32')"


def one_per_input(gradients: Any, inputs: Sequence[Any], of: Any) -> Sequence[Any]:
    """What a gradient rule gave, as it is. Raises ArgumentTypeError where that is not one gradient per input."""
    if not isinstance(gradients, (tuple, list)) or len(gradients) != len(inputs):
        count = len(gradients) if isinstance(gradients, (tuple, list)) else type(gradients).__name__
        what, allowed = f"the gradient rule gives {count}", f"A tuple of {len(inputs)}, one gradient per input"
        raise ArgumentTypeError(what, where=str(getattr(of, "class_name", of)), allowed=allowed)
    return gradients
