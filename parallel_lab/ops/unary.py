"""Functions of one number per element, split along any dim; float32 for integers, except where the result is one."""

from __future__ import annotations

import numpy as np

from .elementwise import POSITIVE, SHAPE, UNARY, div, float_result, mul, neg, number_result, unary
from .machine.registry import case, op

POSITIVE_CASE = case(SHAPE, **POSITIVE)


def floats(x):
    """x in the dtype that a function with fractions computes in."""
    return x.astype(float_result((x.dtype,)), copy=False)


def fractional(name, function, text, vjp, /, **facts):
    """Declare a function whose results have fractions; of integers it is float32. mint: its own name."""
    return unary(name, function, text, vjp, **{"dtype": float_result, "mint": name, **facts})


def _one_over(x):
    return np.ones((), x.dtype) / x


abs_ = unary(
    "abs_",
    np.abs,
    "Absolute value; its gradient at 0 is 0",
    lambda g, out, x: mul(g, sign(x)),
    name="Abs",
    also="abs absolute",
    method="abs",
    operator="__abs__",
    mint="abs",
)
sign = unary(
    "sign", np.sign, "-1, 0 or 1", also="sgn", method="sign", mint="sign", dtype=number_result, linear="max min: x"
)
square = unary(
    "square",
    np.square,
    "x times x",
    lambda g, out, x: mul(g, mul(x, 2.0)),
    method="square",
    mint="square",
    dtype=number_result,
)
sqrt = fractional("sqrt", np.sqrt, "Square root", lambda g, out, x: div(mul(g, 0.5), out), example=POSITIVE_CASE)
rsqrt = fractional(
    "rsqrt",
    lambda x: _one_over(np.sqrt(x)),
    "1 / sqrt(x)",
    lambda g, out, x: mul(mul(g, -0.5), mul(out, square(out))),
    example=POSITIVE_CASE,
)

# ---- angles, in radians ----

sin = fractional("sin", np.sin, "Sine of an angle in radians", lambda g, out, x: mul(g, cos(x)))
cos = fractional("cos", np.cos, "Cosine of an angle in radians", lambda g, out, x: neg(mul(g, sin(x))))


# ---- the error function ----

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969); coefficients as in his
# CALERF (SPECFUN, netlib), highest power first. Below _NEAR erf(x) = x P(x^2) / Q(x^2), above it 1 - exp(-x^2) P(x) /
# Q(x). His third range, beyond 4, matters to erfc only.
_NEAR, _FAR = 0.46875, 6.0  # beyond 6, 1 - erf(x) < 2^-53: erf is 1 in float64
# fmt: off
_NEAR_P = (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
           3.20937758913846947e3)
_NEAR_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_FAR_P = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
          2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
          1.23033935479799725e3)
_FAR_Q = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
          3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)
# float32 needs less: x P(x^2) / Q(x^2) on [-4, 4], beyond which erf is 1 to 2e-8 (Eigen's and XLA's coefficients).
_SINGLE_P = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
             -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
_SINGLE_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
             -1.42647390514189e-02)
# fmt: on
# elements; the 20 to 50 passes over a block stay in the cache: a third of the time of passes over 1e6 (measured)
_BLOCK = 1 << 15


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
    ratio = _polynomial(_SINGLE_P, squared)
    ratio *= x
    ratio /= _polynomial(_SINGLE_Q, squared)
    return np.clip(ratio, np.float32(-1), np.float32(1), out=ratio)


def error_function(x):
    """erf of floats, with relative error 1e-15 or 5e-7; math.erf by elements takes 3 and 30 times as long."""
    if x.dtype == np.float16:  # the coefficients leave its range
        return error_function(x.astype(np.float32)).astype(np.float16)
    one_block = _erf_single if x.dtype == np.float32 else _erf_double
    flat = x.reshape(-1)
    result = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        result[start : start + _BLOCK] = one_block(flat[start : start + _BLOCK])
    return result.reshape(x.shape)


@op(UNARY, name="StopGradient", flops=0, example=case(SHAPE))
def stop_gradient(x):
    """x itself, through which no gradient flows.  x: (...) -> (...)."""
    return x
