"""The error function, the gamma function and Bessel functions, element by element, to the last digits of float64."""

from __future__ import annotations

import math

import numpy as np

from ...ops.elementwise import SHAPE, mul, neg, sub
from ...ops.machine.registry import case, op
from ...ops.unary import POSITIVE_CASE, error_function, fractional, sign, square
from .elementary_functions import BELOW_ONE, exp

erf = fractional(
    "erf",
    error_function,
    "The error function 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x",
    lambda g, out, x: erf_grad(g, x),
    flops=40,
    linear="max min: x",
)


@op(result_shape=0, dtype=0)
def erf_grad(g, x):
    """Gradient of erf: g * 2 / sqrt(pi) * exp(-x^2).  g, x: (...) -> (...)."""
    return g * (2 / math.sqrt(math.pi) * np.exp(-x * x))


def by_elements(function, beyond):
    """A function of arrays from one of Python's floats. beyond: its value where Python's raises."""

    def one(value):
        try:
            return function(value)
        except (ValueError, OverflowError):
            return beyond

    each = np.frompyfunc(one, 1, 1)
    return lambda x: np.asarray(each(x.astype(np.float64)), x.dtype)


erfc = fractional(
    "erfc",
    by_elements(math.erfc, math.nan),  # not 1 - erf(x), which has no digits left beyond 6
    "1 - erf(x), without loss of digits where that is small",
    lambda g, out, x: neg(erf_grad(g, x)),
    flops=40,
    linear="max>min min>max: x",
)


def _inverse_error(x):
    given = x.astype(np.float64)
    inside = np.abs(given) < 1
    y = np.where(inside, given, 0.0)
    # S. Winitzki's approximation (2008), relative error 2e-3; each of Halley's steps has three times the digits
    log_left, a = np.log1p(-y * y), 0.147
    half = 2 / (math.pi * a) + log_left / 2
    found = np.copysign(np.sqrt(np.sqrt(half * half - log_left / a) - half), y)
    for _ in range(3):
        off = (error_function(found) - y) * (math.sqrt(math.pi) / 2) * np.exp(found * found)
        found = found - off / (1 + found * off)
    ends = np.where(np.abs(given) == 1, np.copysign(np.inf, given), np.nan)
    return np.where(inside, found, ends).astype(x.dtype)


erfinv = fractional(
    "erfinv",
    _inverse_error,
    "The number whose erf is x, infinite at -1 and 1",
    lambda g, out, x: mul(g, mul(exp(square(out)), math.sqrt(math.pi) / 2)),
    flops=150,
    example=BELOW_ONE,
)


# ---- the gamma function ----

lgamma = fractional(
    "lgamma",
    by_elements(math.lgamma, math.inf),
    "Logarithm of the absolute value of the gamma function",
    lambda g, out, x: mul(g, digamma(x)),
    mint="",
    flops=40,
    example=POSITIVE_CASE,
)


def _digamma(x):
    given = x.astype(np.float64)
    turned = given < 0.5
    y = np.where(turned, 1 - given, given)
    total = np.zeros_like(y)
    for _ in range(10):  # digamma(y) = digamma(y + 1) - 1 / y, until the series in 1 / y^2 has 16 digits
        total -= 1 / y
        y = y + 1
    z = 1 / (y * y)
    # Abramowitz and Stegun, 6.3.18: Bernoulli numbers over 2n
    series = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * (691 / 32760 - z / 12))))))
    total += np.log(y) - 0.5 / y - series
    with np.errstate(divide="ignore", invalid="ignore"):
        poles = np.where(turned & (given == np.floor(given)), np.nan, given)
        return np.where(turned, total - math.pi / np.tan(math.pi * poles), total).astype(x.dtype)


digamma = fractional(
    "digamma",
    _digamma,
    "Derivative of lgamma",
    lambda g, out, x: digamma_grad(g, x),
    flops=60,
    mint="",
    example=(POSITIVE_CASE, case(SHAPE, low=-0.9, high=-0.1)),  # between two poles
)


@op(result_shape=0, dtype=0)
def digamma_grad(g, x):
    """Gradient of digamma: g times trigamma(x), the sum of 1 / (x + n)^2.  g, x: (...) -> (...)."""
    given = x.astype(np.float64)
    turned = given < 0.5
    y = np.where(turned, 1 - given, given)
    total = sum((y + n) ** -2.0 for n in range(10))
    y = y + 10
    z = 1 / (y * y)
    # Abramowitz and Stegun, 6.4.12 and, below a half, 6.4.7
    series = 1 / 6 - z * (1 / 30 - z * (1 / 42 - z * (1 / 30 - z * (5 / 66))))
    total = total + 1 / y + z / 2 + z / y * series
    with np.errstate(divide="ignore", invalid="ignore"):
        return (g * np.where(turned, (math.pi / np.sin(math.pi * given)) ** 2 - total, total)).astype(g.dtype)


# ---- modified Bessel functions, times exp(-|x|) ----


def _scaled_bessel(order, x):
    """I_order(|x|) * exp(-|x|), order 0 or 1."""
    size = np.abs(x.astype(np.float64))
    # near: the integral of exp(|x| (cos t - 1)) cos(order t) over a half circle, by 64 parts that converge beyond any
    # digit; far: its asymptotic series (Abramowitz and Stegun 9.6.19, 9.7.1)
    near, angles = np.minimum(size, 40.0), (np.arange(64) + 0.5) * (math.pi / 64)
    found = sum(np.exp(near * (math.cos(t) - 1)) * math.cos(order * t) for t in angles.tolist()) / 64
    far, term, total = np.maximum(size, 40.0), 1.0, 1.0
    for k in range(1, 30):
        term = term * ((2 * k - 1) ** 2 - 4 * order * order) / (8 * k * far)
        total = total + term
    found = np.where(size > 40, total / np.sqrt(2 * math.pi * far), found)
    return (found * (np.sign(x) if order else 1)).astype(x.dtype)


bessel_i0e = fractional(
    "bessel_i0e",
    lambda x: _scaled_bessel(0, x),
    "Modified Bessel function of order 0 times exp(-|x|)",
    lambda g, out, x: mul(g, sub(bessel_i1e(x), mul(out, sign(x)))),
    name="BesselI0e",
    mint="",
    flops=300,
)
bessel_i1e = fractional(
    "bessel_i1e",
    lambda x: _scaled_bessel(1, x),
    "Modified Bessel function of order 1 times exp(-|x|)",
    lambda g, out, x: bessel_i1e_grad(g, out, x),
    name="BesselI1e",
    mint="",
    flops=300,
)


@op(result_shape=0, dtype=0)
def bessel_i1e_grad(g, out, x):
    """Gradient of bessel_i1e: g * (I0e - out * (sign x + 1 / x)), g / 2 at 0.  g, out, x: (...) -> (...)."""
    zero = x == 0
    safe = np.where(zero, np.ones((), x.dtype), x)
    return g * np.where(zero, np.asarray(0.5, x.dtype), _scaled_bessel(0, x) - out * (np.sign(x) + 1 / safe))


bessel_i0 = fractional(
    "bessel_i0",
    lambda x: _scaled_bessel(0, x) * np.exp(np.abs(x)),
    "Modified Bessel function of order 0",
    lambda g, out, x: mul(g, bessel_i1(x)),
    name="BesselI0",
    also="i0",
    mint="",
    flops=300,
)
bessel_i1 = fractional(
    "bessel_i1",
    lambda x: _scaled_bessel(1, x) * np.exp(np.abs(x)),
    "Modified Bessel function of order 1",
    lambda g, out, x: bessel_i1_grad(g, out, x),
    name="BesselI1",
    mint="",
    flops=300,
)


@op(result_shape=0, dtype=0)
def bessel_i1_grad(g, out, x):
    """Gradient of bessel_i1: g * (I0 - out / x), g / 2 at 0.  g, out, x: (...) -> (...)."""
    zero = x == 0
    safe = np.where(zero, np.ones((), x.dtype), x)
    return g * np.where(zero, np.asarray(0.5, x.dtype), _scaled_bessel(0, x) * np.exp(np.abs(x)) - out / safe)
