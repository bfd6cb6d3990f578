"""Comparisons, logic and choice, element by element. Results of comparisons and logic are bools and have no gradient.

Any dim may be cut; a dim of size 1 that is broadcast stays whole. No communication forward.
"""

from __future__ import annotations

import numpy as np

from ..base.errors import ShapeError
from .elementwise import BINARY, UNARY, first_dtype, unbroadcast
from .machine.registry import case, op

BOOLS = (case((16, 8), (16, 8), bools={0, 1}), case((16, 8), (8,), bools={0, 1}))


# ---- comparisons ----


@op(
    BINARY,
    name="Equal",
    also="eq",
    operator="__eq__",
    ufunc="equal",
    mint="equal eq",
    dtype="bool",
    example=(case((16, 8), (8,)), case((16, 8), (16, 8), ints={0: 3, 1: 3})),
)
def equal(x, y):
    """Whether elements are equal.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.equal(x, y)


@op(
    BINARY,
    name="NotEqual",
    also="ne",
    operator="__ne__",
    ufunc="not_equal",
    mint="not_equal ne",
    dtype="bool",
    example=(case((16, 8), (8,)), case((16, 8), (16, 8), ints={0: 3, 1: 3})),
)
def not_equal(x, y):
    """Whether elements differ.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.not_equal(x, y)


@op(
    BINARY,
    name="Greater",
    also="gt",
    operator="__gt__",
    ufunc="greater",
    mint="greater gt",
    dtype="bool",
    example=case((16, 8), (8,)),
)
def greater(x, y):
    """Whether x > y.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.greater(x, y)


@op(
    BINARY,
    name="GreaterEqual",
    also="ge",
    operator="__ge__",
    ufunc="greater_equal",
    mint="greater_equal ge",
    dtype="bool",
    example=case((16, 8), (8,)),
)
def greater_equal(x, y):
    """Whether x >= y.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.greater_equal(x, y)


@op(
    BINARY,
    name="Less",
    also="lt",
    operator="__lt__",
    ufunc="less",
    mint="less lt",
    dtype="bool",
    example=case((16, 8), (8,)),
)
def less(x, y):
    """Whether x < y.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.less(x, y)


@op(
    BINARY,
    name="LessEqual",
    also="le",
    operator="__le__",
    ufunc="less_equal",
    mint="less_equal le",
    dtype="bool",
    example=case((16, 8), (8,)),
)
def less_equal(x, y):
    """Whether x <= y.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.less_equal(x, y)


@op(UNARY, name="IsNan", ufunc="isnan", dtype="bool", example=case((16, 8)))
def isnan(x):
    """Whether an element is not a number (NaN).  x: (...) -> (...) bool. No gradient."""
    return np.isnan(x)


@op(UNARY, name="IsInf", ufunc="isinf", mint="isinf", dtype="bool", example=case((16, 8)))
def isinf(x):
    """Whether an element is infinite, of either sign.  x: (...) -> (...) bool. No gradient."""
    return np.isinf(x)


@op(UNARY, name="IsFinite", ufunc="isfinite", mint="isfinite", dtype="bool", example=case((16, 8)))
def isfinite(x):
    """Whether an element is a number and not infinite.  x: (...) -> (...) bool. No gradient."""
    return np.isfinite(x)


# ---- logic: a number counts as True unless it is 0 ----


@op(BINARY, name="LogicalAnd", operator="__and__", ufunc="logical_and", mint="logical_and", dtype="bool", example=BOOLS)
def logical_and(x, y):
    """Whether both are true.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.logical_and(x, y)


@op(BINARY, name="LogicalOr", operator="__or__", ufunc="logical_or", mint="logical_or", dtype="bool", example=BOOLS)
def logical_or(x, y):
    """Whether one of them is true, or both.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.logical_or(x, y)


@op(BINARY, name="LogicalXor", operator="__xor__", ufunc="logical_xor", mint="logical_xor", dtype="bool", example=BOOLS)
def logical_xor(x, y):
    """Whether exactly one of them is true.  x, y: (...) -> broadcast (...) bool. No gradient."""
    return np.logical_xor(x, y)


@op(
    UNARY,
    name="LogicalNot",
    operator="__invert__",
    ufunc="logical_not",
    mint="logical_not",
    dtype="bool",
    example=case((16, 8), bools={0}),
)
def logical_not(x):
    """Whether it is false.  x: (...) -> (...) bool. No gradient."""
    return np.logical_not(x)


# ---- choice ----


def _check_condition(where, operands, position=0, name="condition"):
    dtype = operands[position].dtype
    if dtype.kind != "b":
        hint = f"Compare first: {name} != 0"
        raise ShapeError(f"the {name} is {dtype}", where=where, allowed=f"The {name} must be bools", hint=hint)


@op(
    "...,...,...->...",
    name="Select",
    also="where",
    numpy="where",
    mint="select where",
    check=_check_condition,
    dtype=lambda dtypes: np.result_type(*dtypes[1:]),
    example=(
        case((16, 8), (16, 8), (16, 8), bools={0}),
        case((8,), (16, 8), (), bools={0}),
        case((16, 8), (16, 1), (8,), bools={0}),
    ),
)
def select(condition, x, y):
    """x where the condition is true, y elsewhere.  condition: (...) bool, x, y: (...) -> broadcast (...)."""
    return np.where(condition, x, y)


@select.vjp
def _(g, out, condition, x, y):
    # chosen, not multiplied by 0: an infinite or undefined gradient of the branch that was not taken does not reach the
    # other
    return None, unbroadcast(select(condition, g, 0.0), x), unbroadcast(select(condition, 0.0, g), y)


where = select


def _check_masked_fill(where, operands):
    _check_condition(where, operands, 1, "mask")
    if operands[2].shape:
        raise ShapeError(f"value has shape {operands[2].shape}", where=where, allowed="A number: shape ()")


@op(
    "...,...,...->...",
    name="MaskedFill",
    method="masked_fill",
    mint="masked_fill",
    check=_check_masked_fill,
    dtype=first_dtype,
    example=(case((16, 8), (16, 8), (), bools={1}), case((4, 8, 2), (8, 1), (), bools={1})),
)
def masked_fill(x, mask, value):
    """x with `value` where the mask is true.  x: (...), mask: (...) bool, value: () -> broadcast (...) of x's dtype."""
    return np.where(mask, np.asarray(value, x.dtype), x)


@masked_fill.vjp
def _(g, out, x, mask, value):
    return unbroadcast(select(mask, 0.0, g), x), None, unbroadcast(select(mask, g, 0.0), value)
