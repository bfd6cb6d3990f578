"""Numbers compared within a tolerance, and numbers instead of NaN and infinities."""

from __future__ import annotations

import numpy as np

from ...base.checks import instance, number
from ...base.dtypes import is_bfloat16, kind_of
from ...ops.elementwise import BINARY, SHAPE, UNARY, unary
from ...ops.logic import VECTOR
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


@function(mint="nan_to_num")
def nan_to_num(input, nan=None, posinf=None, neginf=None):
    """`NanToNum`; None: 0, and the largest and smallest number of the dtype.  input: (...) -> (...)."""
    return PRIMITIVES["NanToNum"](nan=nan, posinf=posinf, neginf=neginf)(input)


@function(mint="isclose")
def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether |input - other| is at most atol + rtol * |other|.  input, other: (...) -> broadcast (...) bool."""
    return near(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


@function(mint="allclose")
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether all elements are close (`isclose`).  input, other: (...) broadcast -> () bool."""
    return reduce_all(isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan))


# ---- what an element is ----

isinf = unary(
    "isinf", np.isinf, "Whether an element is infinite, of either sign", name="IsInf", mint="isinf", dtype="bool"
)


signbit = unary("signbit", np.signbit, "Whether an element has a minus sign, also -0.0", dtype="bool")
isneginf = unary(
    "isneginf", lambda x: x == -np.inf, "Whether an element is minus infinity", mint="isneginf", dtype="bool"
)
isposinf = unary("isposinf", lambda x: x == np.inf, "Whether an element is plus infinity", dtype="bool")


# ---- nearness ----


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
