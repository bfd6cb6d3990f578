"""Comparisons, logic and choice per element; bools have no gradient. Any dim may be split, if it is not broadcast."""

from __future__ import annotations

import numpy as np

from ..base.checks import number
from ..base.dtypes import alike, promoted
from .elementwise import BINARY, SHAPE, binary, unary
from .machine.registry import case, op, unbroadcast
from .machine.signature import but_numbers

VECTOR = case(SHAPE, (8,))
TIES = (VECTOR, case(SHAPE, SHAPE, ints={0: 3, 1: 3}))
BOOLS = (case(SHAPE, SHAPE, bools={0, 1}), case(SHAPE, (8,), bools={0, 1}))


# ---- comparisons ----


def _comparison(function, text, class_name, short, example=VECTOR):
    """Declare numpy's comparison `function`. short: its name as Python's operators have it, "eq" of `__eq__`."""
    name = function.__name__
    spelled = {"also": short, "operator": f"__{short}__", "mint": f"{name} {short}"}
    return binary(
        name, function, f"Whether {text}; no gradient", name=class_name, dtype="bool", example=example, **spelled
    )


equal = _comparison(np.equal, "elements are equal", "Equal", "eq", TIES)
not_equal = _comparison(np.not_equal, "elements differ", "NotEqual", "ne", TIES)
greater = _comparison(np.greater, "x > y", "Greater", "gt")
greater_equal = _comparison(np.greater_equal, "x >= y", "GreaterEqual", "ge")
less = _comparison(np.less, "x < y", "Less", "lt")
less_equal = _comparison(np.less_equal, "x <= y", "LessEqual", "le")

isnan = unary("isnan", np.isnan, "Whether an element is not a number (NaN)", name="IsNan", dtype="bool")
isinf = unary(
    "isinf", np.isinf, "Whether an element is infinite, of either sign", name="IsInf", mint="isinf", dtype="bool"
)
isfinite = unary(
    "isfinite",
    np.isfinite,
    "Whether an element is a number and not infinite",
    name="IsFinite",
    mint="isfinite",
    dtype="bool",
)


signbit = unary("signbit", np.signbit, "Whether an element has a minus sign, also -0.0", method="signbit", dtype="bool")
isneginf = unary(
    "isneginf", lambda x: x == -np.inf, "Whether an element is minus infinity", mint="isneginf", dtype="bool"
)
isposinf = unary("isposinf", lambda x: x == np.inf, "Whether an element is plus infinity", dtype="bool")


def _near(name, class_name, near, text, **facts):
    """Declare whether two elements are near each other."""
    near.__name__ = near.__qualname__ = name
    near.__doc__ = f"Whether {text}; no gradient.  x, y: (...) -> broadcast (...) bool."
    return op(BINARY, name=class_name, dtype="bool", numbers="", flops=3, example=VECTOR, **facts)(near)


def _isclose(x, y, *, rtol=1e-05, atol=1e-08, equal_nan=False):
    return np.isclose(x, y, rtol, atol, equal_nan)


def _approximate_equal(x, y, *, tolerance=1e-05):
    return np.abs(x - y) <= tolerance


near = _near(
    "near", "IsClose", _isclose, "|x - y| is at most atol + rtol * |y|", attrs={"rtol": number(0), "atol": number(0)}
)
approximate_equal = _near(
    "approximate_equal",
    "ApproximateEqual",
    _approximate_equal,
    "|x - y| is at most the tolerance",
    attrs={"tolerance": number(0)},
)


# ---- logic: a number counts as True unless it is 0 ----


def _logic(function, text, class_name, operator, declare=binary, example=BOOLS):
    name = function.__name__
    facts = {"name": class_name, "operator": operator, "mint": name, "dtype": "bool", "example": example}
    return declare(name, function, f"Whether {text}{'; no gradient' if declare is binary else ''}", **facts)


logical_and = _logic(np.logical_and, "both are true", "LogicalAnd", "__and__")
logical_or = _logic(np.logical_or, "one of them is true, or both", "LogicalOr", "__or__")
logical_xor = _logic(np.logical_xor, "exactly one of them is true", "LogicalXor", "__xor__")
logical_not = _logic(np.logical_not, "it is false", "LogicalNot", "__invert__", unary, case(SHAPE, bools={0}))


# ---- choice ----


def _truth(operand, name):
    if operand.dtype.kind != "b":
        return f"the {name} is {operand.dtype}", f"The {name} must be bools", f"Compare first: {name} != 0"


@op(
    "...,...,...->...",
    name="Select",
    also="where",
    numpy="where",
    mint="select where",
    check=lambda operands: _truth(operands[0], "condition"),
    dtype=lambda dtypes: promoted(dtypes[1:]),
    example=(
        case((16, 8), (16, 8), (16, 8), bools={0}),
        case((8,), (16, 8), (), bools={0}),
        case((16, 8), (16, 1), (8,), bools={0}),
    ),
)
def select(condition, x, y):
    """x where the condition is true, y elsewhere.  condition: (...) bool, x, y: (...) -> broadcast (...)."""
    return np.where(condition, *alike((x, y), "Select"))


@select.vjp
def _(g, out, condition, x, y):
    # chosen, not multiplied by 0: an infinite or undefined gradient of the other branch does not get through
    return None, unbroadcast(select(condition, g, 0.0), x), unbroadcast(select(condition, 0.0, g), y)


where = select


def _check_masked_fill(operands):
    shape = operands[2].shape
    return _truth(operands[1], "mask") or ((f"value has shape {shape}", "A number: shape ()") if shape else None)


@op(
    "...,...,...->...",
    name="MaskedFill",
    method="masked_fill",
    mint="masked_fill",
    check=_check_masked_fill,
    strategy_labels=but_numbers,
    dtype=0,
    example=(case((16, 8), (16, 8), (), bools={1}), case((4, 8, 2), (8, 1), (), bools={1})),
)
def masked_fill(x, mask, value):
    """x with `value` where the mask is true.  x: (...), mask: (...) bool, value: () -> broadcast (...) of x's dtype.

    A strategy has two tuples, for x and mask (MindSpore: MaskedFill).
    """
    return np.where(mask, np.asarray(value, x.dtype), x)


@masked_fill.vjp
def _(g, out, x, mask, value):
    return unbroadcast(select(mask, 0.0, g), x), None, unbroadcast(select(mask, g, 0.0), value)
