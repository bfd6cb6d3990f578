"""Comparisons, logic and choice per element; bools have no gradient. Any dim may be split, if it is not broadcast."""

from __future__ import annotations

import numpy as np

from ..base.dtypes import alike, promoted
from .elementwise import SHAPE, binary, unary
from .machine.registry import case, op, unbroadcast

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
isfinite = unary(
    "isfinite", np.isfinite, "Whether an element is finite", name="IsFinite", mint="isfinite", dtype="bool"
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


def truth_fault(operand, name):
    """The fault of an operand that does not hold bools, or None.  name: what it is."""
    if operand.dtype.kind != "b":
        return f"the {name} is {operand.dtype}", f"The {name} must be bools", f"Compare first: {name} != 0"


@op(
    "...,...,...->...",
    name="Select",
    also="where",
    numpy="where",
    mint="where",
    check=lambda operands: truth_fault(operands[0], "condition"),
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
