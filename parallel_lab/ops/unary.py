"""Functions of one number, applied to every element: roots, exponentials, logarithms, waves, the error function,
rounding.

Any dim may be cut; no communication forward. Integers give float32, except where the result is an integer.
"""

from __future__ import annotations

import math

import numpy as np

from .elementwise import POSITIVE, UNARY, add, div, first_dtype, float_result, mul, neg, number_result
from .machine.registry import case, op

EXAMPLE = case((16, 8))


def floats(x):
    """x in the dtype that a function with fractions computes in."""
    return x.astype(float_result((x.dtype,)), copy=False)


@op(
    UNARY,
    name="Abs",
    also="abs absolute",
    method="abs",
    operator="__abs__",
    ufunc="absolute",
    mint="abs",
    example=EXAMPLE,
)
def abs_(x):
    """Absolute value; its gradient at 0 is 0.  x: (...) -> (...)."""
    return np.abs(x)


@abs_.vjp
def _(g, out, x):
    return (mul(g, sign(x)),)


@op(UNARY, name="Sign", ufunc="sign", mint="sign", dtype=number_result, example=EXAMPLE)
def sign(x):
    """-1, 0 or 1.  x: (...) -> (...). No gradient."""
    return np.sign(x)


@op(UNARY, name="Exp", method="exp", ufunc="exp", mint="exp", dtype=float_result, example=EXAMPLE)
def exp(x):
    """e to the power x.  x: (...) -> (...)."""
    return np.exp(floats(x))


@exp.vjp
def _(g, out, x):
    return (mul(g, out),)


@op(UNARY, name="Expm1", ufunc="expm1", mint="expm1", dtype=float_result, example=EXAMPLE)
def expm1(x):
    """exp(x) - 1 without loss of digits near 0.  x: (...) -> (...)."""
    return np.expm1(floats(x))


@expm1.vjp
def _(g, out, x):
    return (mul(g, add(out, 1.0)),)


@op(UNARY, name="Log", method="log", ufunc="log", mint="log", dtype=float_result, example=case((16, 8), **POSITIVE))
def log(x):
    """Natural logarithm.  x: (...) -> (...)."""
    return np.log(floats(x))


@log.vjp
def _(g, out, x):
    return (div(g, x),)


@op(UNARY, name="Log1p", ufunc="log1p", mint="log1p", dtype=float_result, example=case((16, 8), **POSITIVE))
def log1p(x):
    """log(1 + x) without loss of digits near 0.  x: (...) -> (...)."""
    return np.log1p(floats(x))


@log1p.vjp
def _(g, out, x):
    return (div(g, add(x, 1.0)),)


@op(UNARY, name="Sqrt", method="sqrt", ufunc="sqrt", mint="sqrt", dtype=float_result, example=case((16, 8), **POSITIVE))
def sqrt(x):
    """Square root.  x: (...) -> (...)."""
    return np.sqrt(floats(x))


@sqrt.vjp
def _(g, out, x):
    return (div(mul(g, 0.5), out),)


@op(UNARY, name="Rsqrt", mint="rsqrt", dtype=float_result, example=case((16, 8), **POSITIVE))
def rsqrt(x):
    """1 / sqrt(x).  x: (...) -> (...)."""
    x = floats(x)
    return np.ones((), x.dtype) / np.sqrt(x)


@rsqrt.vjp
def _(g, out, x):
    return (mul(mul(g, -0.5), mul(out, square(out))),)


@op(
    UNARY,
    name="Reciprocal Inv",
    ufunc="reciprocal",
    mint="reciprocal",
    dtype=float_result,
    example=case((16, 8), **POSITIVE),
)
def reciprocal(x):
    """1 / x.  x: (...) -> (...)."""
    x = floats(x)
    return np.ones((), x.dtype) / x


@reciprocal.vjp
def _(g, out, x):
    return (neg(mul(g, square(out))),)


@op(UNARY, name="Square", method="square", ufunc="square", mint="square", dtype=number_result, example=EXAMPLE)
def square(x):
    """x times x.  x: (...) -> (...)."""
    return np.square(x)


@square.vjp
def _(g, out, x):
    return (mul(g, mul(x, 2.0)),)


@op(UNARY, name="Sin", ufunc="sin", mint="sin", dtype=float_result, example=EXAMPLE)
def sin(x):
    """Sine of an angle in radians.  x: (...) -> (...)."""
    return np.sin(floats(x))


@sin.vjp
def _(g, out, x):
    return (mul(g, cos(x)),)


@op(UNARY, name="Cos", ufunc="cos", mint="cos", dtype=float_result, example=EXAMPLE)
def cos(x):
    """Cosine of an angle in radians.  x: (...) -> (...)."""
    return np.cos(floats(x))


@cos.vjp
def _(g, out, x):
    return (neg(mul(g, sin(x))),)


# ---- the error function ----

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969); coefficients as in his
# CALERF (SPECFUN, netlib), # highest power first. Below _NEAR erf(x) = x P(x^2) / Q(x^2), above it 1 - exp(-x^2) P(x) /
# Q(x). His third range, beyond 4, matters to erfc only.
_NEAR, _FAR = 0.46875, 6.0  # beyond 6, 1 - erf(x) < 2^-53: erf is 1 in float64
_NEAR_P = (
    1.85777706184603153e-1,
    3.16112374387056560,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_NEAR_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_FAR_P = (
    *(
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594,
        6.61191906371416295e1,
        2.98635138197400131e2,
    ),
    *(8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
)
_FAR_Q = (
    *(1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3),
    *(3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)


# float32 needs less: x P(x^2) / Q(x^2) on [-4, 4], beyond which erf is 1 to 2e-8. Coefficients of Eigen's and XLA's
# float32 erf.
_SINGLE_P = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_SINGLE_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
_BLOCK = (
    1 << 15
    # elements; the 20 to 50 passes over a block stay in the cache: a third of the time of passes over 1e6 elements
    # (measured)
)


def _polynomial(coefficients, x):
    total = x * x.dtype.type(coefficients[0])
    total += x.dtype.type(coefficients[1])
    for c in coefficients[2:]:
        total *= x
        total += x.dtype.type(c)
    return total


def _erf_double(x):
    size = np.minimum(np.abs(x), _FAR)
    squared = size * size
    near = size * (_polynomial(_NEAR_P, squared) / _polynomial(_NEAR_Q, squared))
    far = 1 - np.exp(-squared) * (_polynomial(_FAR_P, size) / _polynomial(_FAR_Q, size))
    return np.copysign(np.where(size < _NEAR, near, far), x)


def _erf_single(x):
    x = np.clip(x, np.float32(-4), np.float32(4))
    squared = x * x
    made = _polynomial(_SINGLE_P, squared)
    made *= x
    made /= _polynomial(_SINGLE_Q, squared)
    return np.clip(made, np.float32(-1), np.float32(1), out=made)


def error_function(x):
    """erf of an array of floats: relative error below 1e-15 in float64, 5e-7 in float32. math.erf element by element
    takes 3 and 30 times as long.
    """
    if x.dtype == np.float16:  # the coefficients leave its range
        return error_function(x.astype(np.float32)).astype(np.float16)
    one_block = _erf_single if x.dtype == np.float32 else _erf_double
    flat = x.reshape(-1)
    made = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        made[start : start + _BLOCK] = one_block(flat[start : start + _BLOCK])
    return made.reshape(x.shape)


@op(
    UNARY,
    name="Erf",
    mint="erf",
    dtype=float_result,
    flops=lambda s: 40 * np.prod(list(vars(s).values())),
    example=EXAMPLE,
)
def erf(x):
    """The error function 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x.  x: (...) -> (...)."""
    return error_function(floats(x))


@op(infer_fn=lambda shapes: shapes[0], dtype=first_dtype)
def erf_grad(g, x):
    """Gradient of erf: g * 2 / sqrt(pi) * exp(-x^2).  g, x: (...) -> (...)."""
    return g * (2 / math.sqrt(math.pi) * np.exp(-x * x))


@erf.vjp
def _(g, out, x):
    return (erf_grad(g, x),)


# ---- rounding, and no gradient ----


@op(UNARY, name="Floor", ufunc="floor", mint="floor", example=EXAMPLE)
def floor(x):
    """The largest whole number not above x, in x's dtype.  x: (...) -> (...). No gradient."""
    return np.floor(x)


@op(UNARY, name="Ceil", ufunc="ceil", mint="ceil", example=EXAMPLE)
def ceil(x):
    """The smallest whole number not below x, in x's dtype.  x: (...) -> (...). No gradient."""
    return np.ceil(x)


@op(UNARY, name="Round Rint", also="round", mint="round", example=EXAMPLE)
def round_(x):
    """The nearest whole number, halves to the even one, in x's dtype.  x: (...) -> (...). No gradient."""
    return np.rint(x).astype(x.dtype, copy=False)


@op(UNARY, name="StopGradient", flops=lambda s: 0, example=EXAMPLE)
def stop_gradient(x):
    """x itself, through which no gradient flows.  x: (...) -> (...)."""
    return x
