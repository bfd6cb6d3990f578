"""Quotients that are rounded; `zero_where` is for those that are 0 where the divisor is 0 (in the catalogue)."""

from __future__ import annotations

import numpy as np

from ..base.checks import SHAPE_ERRORS, choice
from .elementwise import POSITIVE_PAIR, binary, div as quotient, floor_div, number_result
from .machine.registry import form
from .spellings import function


def zero_where(zero, formula, x, y):
    """formula(x, y), and 0 where `zero`, where the formula sees ones."""
    one = np.ones((), x.dtype)
    zero = np.broadcast_to(zero, np.broadcast_shapes(x.shape, y.shape))
    return np.where(zero, np.zeros((), x.dtype), formula(np.where(zero, one, x), np.where(zero, one, y)))


def _truncated(x, y):
    if x.dtype.kind == "f":
        return np.trunc(x / y)
    return (np.abs(x) // np.abs(y) * (np.sign(x) * np.sign(y))).astype(x.dtype)  # no float between: all digits


truncate_div = binary(
    "truncate_div",
    _truncated,
    "x / y without its fraction, in the operands' dtype; no gradient, which is 0 wherever it exists",
    name="TruncateDiv",
    dtype=number_result,
    example=POSITIVE_PAIR[:2],
)


_QUOTIENTS = {None: quotient, "floor": floor_div, "trunc": truncate_div}
_MODE = choice(*_QUOTIENTS)


@function(numbers="input other", also="divide true_divide", method="div(other) divide(other)", mint="div divide")
def div(input, other, *, rounding_mode=None):
    """input / other; integers give float32.  input, other: (...) -> broadcast (...).

    rounding_mode  "floor": the largest whole number not above the quotient, "trunc": the quotient without its fraction,
                   both in the operands' dtype and without a gradient
    """
    return _QUOTIENTS[_MODE("div", "rounding_mode", rounding_mode, SHAPE_ERRORS)](input, other)


@form(quotient, "DivMod")
def _(self, input, other, rounding_mode=None):
    """input / other, rounded as `ops.div` says.  input, other: (...) -> broadcast (...)."""
    return self.run(input, other, of=_QUOTIENTS[_MODE("DivMod", "rounding_mode", rounding_mode, SHAPE_ERRORS)])
