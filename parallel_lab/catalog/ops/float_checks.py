"""Numbers compared within a tolerance, and numbers instead of NaN and infinities."""

from __future__ import annotations

import numpy as np

from ...base.checks import instance
from ...base.dtypes import is_bfloat16, kind_of
from ...ops.elementwise import SHAPE, UNARY
from ...ops.logic import near
from ...ops.machine.registry import PRIMITIVES, case, form, gradient, op
from ...ops.reduce import reduce_all
from ...ops.spellings import function

NUMBER = instance((int, float, np.integer, np.floating), "A number")


@op(UNARY, name="NanToNum", example=case(SHAPE, nan=0.5, posinf=1.0, neginf=-1.0))
def numbers_instead(x, *, nan=0.0, posinf=None, neginf=None):
    """Numbers instead of NaN and infinities; None: the largest and smallest of the dtype.  x: (...) -> (...)."""
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


@gradient(numbers_instead)
def numbers_instead_grad(g, x):
    """g where x is a number, 0 elsewhere.  g, x: (...) -> (...)."""
    return np.where(np.isfinite(x), g, 0).astype(g.dtype)


@form(numbers_instead, "NanToNum")
def _(self, x, *, nan=0.0, posinf=None, neginf=None):
    """Numbers instead of NaN and infinities; None: the largest and smallest of the dtype.  x: (...) -> (...)."""
    nan, posinf, neginf = (n if n is None else NUMBER("nan_to_num", "a number", n) for n in (nan, posinf, neginf))
    if kind_of(x.dtype) != "f":
        return x
    # bfloat16 is computed in float32, whose largest number is more than it holds
    largest = (2 - 2**-7) * 2.0**127 if is_bfloat16(x.dtype) else float(np.finfo(str(x.dtype)).max)
    limits = {"posinf": largest if posinf is None else posinf, "neginf": -largest if neginf is None else neginf}
    return self.run(x, nan=0.0 if nan is None else nan, **limits)


@function(method="nan_to_num", mint="nan_to_num")
def nan_to_num(input, nan=None, posinf=None, neginf=None):
    """`NanToNum`; None: 0, and the largest and smallest number of the dtype.  input: (...) -> (...)."""
    return PRIMITIVES["NanToNum"](nan=nan, posinf=posinf, neginf=neginf)(input)


@function(method="isclose", mint="isclose")
def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether |input - other| is at most atol + rtol * |other|.  input, other: (...) -> broadcast (...) bool."""
    return near(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


@function(method="allclose", mint="allclose")
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether all elements are close (`isclose`).  input, other: (...) broadcast -> () bool."""
    return reduce_all(isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan))
