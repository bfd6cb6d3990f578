"""Functions of one number per element: angles, hyperbolic functions, logarithms and powers to other bases."""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import number
from ...ops.elementwise import SHAPE, UNARY, add, div, float_result, mul, neg, number_result, sub, unary
from ...ops.machine.registry import case, gradient, op
from ...ops.unary import POSITIVE_CASE, _one_over, floats, fractional, sqrt, square

BELOW_ONE = case(SHAPE, low=-0.9, high=0.9)

expm1 = fractional(
    "expm1",
    np.expm1,
    "exp(x) - 1 without loss of digits near 0",
    lambda g, out, x: mul(g, add(out, 1.0)),
    linear="max min: x",
)
log1p = fractional(
    "log1p",
    np.log1p,
    "log(1 + x) without loss of digits near 0",
    lambda g, out, x: div(g, add(x, 1.0)),
    example=POSITIVE_CASE,
)
reciprocal = fractional(
    "reciprocal",
    _one_over,
    "1 / x",
    lambda g, out, x: neg(mul(g, square(out))),
    name="Reciprocal Inv",
    also="inv",
    ufunc="reciprocal",
    example=POSITIVE_CASE,
)
LN_2, LN_10 = math.log(2), math.log(10)
exp2 = fractional("exp2", np.exp2, "2 to the power x", lambda g, out, x: mul(g, mul(out, LN_2)), linear="max min: x")
log2 = fractional("log2", np.log2, "Logarithm to base 2", lambda g, out, x: div(g, mul(x, LN_2)), example=POSITIVE_CASE)
log10 = fractional(
    "log10", np.log10, "Logarithm to base 10", lambda g, out, x: div(g, mul(x, LN_10)), example=POSITIVE_CASE
)
tan = fractional(
    "tan",
    np.tan,
    "Tangent of an angle in radians",
    lambda g, out, x: mul(g, add(square(out), 1.0)),
    example=BELOW_ONE,  # away from the poles at half of pi
)
rad2deg = fractional("rad2deg", np.rad2deg, "Degrees for radians", lambda g, out, x: mul(g, 180 / math.pi))
deg2rad = fractional("deg2rad", np.deg2rad, "Radians for degrees", lambda g, out, x: mul(g, math.pi / 180))
sinc = fractional(
    "sinc", np.sinc, "sin(pi x) / (pi x), 1 at 0", lambda g, out, x: sinc_grad(g, x), example=(case(SHAPE), BELOW_ONE)
)


def _inverse(name, function, text, vjp, /, **facts):
    """Declare the inverse of an angle function, which has numpy's name too: asin and arcsin."""
    title = facts.pop("name", name.title())
    names = {"name": f"{title} {name.title()}Ext", "also": function.__name__, "mint": f"{name} {function.__name__}"}
    return fractional(name, function, text, vjp, **{"example": case(SHAPE), **names, **facts})


def _root_of(x, sign_of_square, one):
    """sqrt(one + sign * x^2)."""
    return sqrt(add(mul(square(x), sign_of_square), one))


asin = _inverse(
    "asin",
    np.arcsin,
    "Angle with the sine x, from -pi/2 to pi/2",
    lambda g, out, x: div(g, _root_of(x, -1.0, 1.0)),
    example=BELOW_ONE,
)
acos = _inverse(
    "acos",
    np.arccos,
    "Angle with the cosine x, from 0 to pi",
    lambda g, out, x: neg(div(g, _root_of(x, -1.0, 1.0))),
    name="ACos",
    example=BELOW_ONE,
)
atan = _inverse(
    "atan",
    np.arctan,
    "Angle with the tangent x, from -pi/2 to pi/2",
    lambda g, out, x: div(g, add(square(x), 1.0)),
    linear="max min: x",
)

# ---- hyperbolic ----

sinh = fractional("sinh", np.sinh, "Hyperbolic sine", lambda g, out, x: mul(g, cosh(x)), linear="max min: x")
cosh = fractional("cosh", np.cosh, "Hyperbolic cosine", lambda g, out, x: mul(g, sinh(x)))
asinh = _inverse(
    "asinh",
    np.arcsinh,
    "Inverse of the hyperbolic sine",
    lambda g, out, x: div(g, _root_of(x, 1.0, 1.0)),
    linear="max min: x",
)
acosh = _inverse(
    "acosh",
    np.arccosh,
    "Inverse of the hyperbolic cosine, for x >= 1",
    lambda g, out, x: div(g, _root_of(x, 1.0, -1.0)),
    example=case(SHAPE, low=1.2, high=3.0),
)
atanh = _inverse(
    "atanh",
    np.arctanh,
    "Inverse of the hyperbolic tangent, for |x| < 1",
    lambda g, out, x: div(g, sub(1.0, square(x))),
    example=BELOW_ONE,
)


@op(
    UNARY,
    name="Logit",
    attrs={"eps": number() | None},
    dtype=float_result,
    flops=3,
    example=(case(SHAPE, low=0.1, high=0.9), case(SHAPE, low=0.1, high=0.9, eps=0.3)),
)
def logit(x, *, eps=None):
    """log(x / (1 - x)).  x: (...) -> (...). eps, if not None or below 0: x is at least eps and at most 1 - eps."""
    x = floats(x)
    x = x if eps is None or eps < 0 else np.clip(x, x.dtype.type(eps), x.dtype.type(1 - eps))
    return np.log(x) - np.log1p(-x)


@gradient(logit)
def logit_grad(g, x, *, eps):
    """Gradient of logit: g / (x (1 - x)), 0 where x was changed.  g, x: (...) -> (...)."""
    grad = g / (x * (1 - x))
    return grad if eps is None or eps < 0 else np.where((x < eps) | (x > 1 - eps), np.zeros((), g.dtype), grad)


# ---- rounding, and no gradient ----

floor = unary(
    "floor", np.floor, "The largest whole number not above x, in x's dtype", mint="floor", linear="max min: x"
)
ceil = unary("ceil", np.ceil, "The smallest whole number not below x, in x's dtype", mint="ceil", linear="max min: x")
trunc = unary(
    "trunc",
    np.trunc,
    "The whole number next to x towards 0, in x's dtype",
    also="fix",
    mint="trunc fix",
    linear="max min: x",
)
frac = unary(
    "frac",
    lambda x: x - np.trunc(x),
    "x without its whole part, with the sign of x",
    lambda g, out, x: g,
    mint="frac",
    dtype=number_result,
)
round_ = unary(
    "round_",
    lambda x: np.rint(x).astype(x.dtype, copy=False),
    "The nearest whole number, halves to the even one, in x's dtype",
    linear="max min: x",
    name="Round Rint",
    also="round",
)


@op(result_shape=0, dtype=0)
def sinc_grad(g, x):
    """Gradient of sinc: g * (cos(pi x) - sinc(x)) / x, 0 at 0.  g, x: (...) -> (...)."""
    zero = x == 0
    return g * (np.cos(np.pi * x) - np.sinc(x)) / np.where(zero, np.ones((), x.dtype), x)


# ---- e to the power x, and back ----

exp = fractional("exp", np.exp, "e to the power x", lambda g, out, x: mul(g, out), linear="max min: x")
log = fractional("log", np.log, "Natural logarithm", lambda g, out, x: div(g, x), example=POSITIVE_CASE)
