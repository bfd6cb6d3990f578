"""Functions of two numbers per element from the family of the gamma function: incomplete gamma functions, zeta.

    igamma(a, x)    share of Gamma(a) that its integral has from 0 to x      igammac(a, x)    the rest
    zeta(x, q)      sum of 1 / (q + n)^x over n = 0, 1, 2, ...

Split as all element-wise operators are (MindSpore: Igamma, Igammac, Zeta in arithmetic_info.cc).
"""

from __future__ import annotations

import math

import numpy as np

from ...ops.elementwise import BINARY, float_result, neg
from ...ops.machine.registry import case, op, unbroadcast
from .flash_attention import refuse_gradient
from .special_functions import by_elements, digamma

_LGAMMA, _ERF = by_elements(math.lgamma, math.inf), by_elements(math.erf, math.nan)
_FAR = 1e7  # from this a on the sum has too many terms
_BOTH = {"dtype": float_result, "flops": 200}
_PAIRS = (
    case((16, 8), (16, 8), low=0.3, high=4.0),
    case((8, 16, 4), (16, 1), low=0.3, high=4.0),
    case((8, 1), (1, 16), low=0.3, high=4.0),
)


def _far(a, x, slope):
    """`_terms` for large a, to 1e-9: the cube root of x is nearly normal (Wilson and Hilferty 1931)."""
    a = np.clip(a, _FAR, 1e300)
    root, cube = np.sqrt(a), np.cbrt(np.minimum(x, 8 * a) / a)
    z = 3 * root * (cube - 1) + 1 / (3 * root)
    if slope:
        return np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * ((0.5 * cube - 1.5) / root - 1 / (6 * root**3))
    return (1 + _ERF(z / math.sqrt(2))) / 2


def _terms(a, x, slope=False):
    """Sum of exp(-x) x^(a+n) / Gamma(a+n+1) over n, all positive, which is the share; or its slope along a."""
    a, x = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(x, np.float64))
    valid = (a > 0) & (x >= 0)
    near = valid & (a < _FAR)
    safe_a, safe_x = np.where(near, a, 1.0), np.where(near & (x > 0), x, 1.0)
    safe_x = np.minimum(safe_x, 4 * safe_a + 800)  # further out nothing is left that float64 could hold
    # terms grow until n = x - a, and are 16 digits smaller ten standard deviations (square roots of x) before and later
    reach = 10 * np.sqrt(safe_x) + 60
    safe_a = safe_a + np.maximum(np.floor(safe_x - safe_a - reach), 0)
    logs, made = np.log(safe_x), np.zeros(a.shape)
    size = safe_a * logs - safe_x - _LGAMMA(safe_a + 1)  # a logarithm: the first terms may be too small for a float
    psi = digamma.compute(safe_a + 1) if slope else None
    for n in range(1, int(2 * reach.max(initial=0)) + 2):
        made += np.exp(size) * (logs - psi if slope else 1)
        size = size + logs - np.log(safe_a + n)
        psi = psi + 1 / (safe_a + n) if slope else None
    made = np.where(x > 0, np.where(near, made, _far(a, np.where(valid, x, 1.0), slope)), 0.0)
    return np.where(valid, made, np.nan)


@op(BINARY, name="Igamma", numbers="", also="gammainc", example=_PAIRS, **_BOTH)
def igamma(a, x):
    """The integral of t^(a-1) exp(-t) from 0 to x over that to infinity.  a, x: (...) -> broadcast (...)."""
    return np.minimum(_terms(a, x), 1).astype(float_result((np.asarray(a).dtype, np.asarray(x).dtype)))


@op(BINARY, name="Igammac", numbers="", example=_PAIRS, **_BOTH)
def igammac(a, x):
    """1 - igamma(a, x).  a, x: (...) -> broadcast (...)."""
    return np.maximum(1 - _terms(a, x), 0).astype(float_result((np.asarray(a).dtype, np.asarray(x).dtype)))


@op(result_shape=0, dtype=0)
def igamma_slope(g, a, x, *, operand):
    """g times the derivative of igamma for `operand`, "a" or "x".  g: (...), a, x: broadcast to it -> (...)."""
    if operand == "a":
        return (g * _terms(a, x, slope=True)).astype(g.dtype)
    given = np.asarray(x, np.float64)
    return (g * np.exp((a - 1) * np.log(given) - given - _LGAMMA(np.asarray(a, np.float64)))).astype(g.dtype)


@igamma.vjp
def _(g, out, a, x):
    return unbroadcast(igamma_slope(g, a, x, operand="a"), a), unbroadcast(igamma_slope(g, a, x, operand="x"), x)


@igammac.vjp
def _(g, out, a, x):
    slopes = (neg(g), a, x)
    return tuple(unbroadcast(igamma_slope(*slopes, operand=name), each) for name, each in (("a", a), ("x", x)))


# Bernoulli numbers B_2k over (2k)!, k = 1, 2, ...: the series after the last term (Euler, Maclaurin)
_TAIL = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)


@op(
    BINARY,
    name="Zeta",
    example=tuple(case(*shapes, low=1.5, high=4.0) for shapes in (((16, 8), (16, 8)), ((8, 1), (1, 16)))),
    **_BOTH,
)
def zeta(x, q):
    """Hurwitz's zeta function, the sum of (q + n)^-x over n from 0 on, for x above 1 and q above 0.

    x, q: (...) -> broadcast (...); elsewhere nan, and infinity at x = 1. No gradient.
    """
    wide, start = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(q, np.float64))
    valid = (wide > 1) & (start > 0)
    s, first = np.where(valid, wide, 2.0), np.where(valid, start, 1.0)
    made = sum((first + n) ** -s for n in range(12))
    last = first + 12
    made = made + last ** (1 - s) / (s - 1) + 0.5 * last**-s
    rising = s * last ** (-s - 1)
    for k, share in enumerate(_TAIL):
        made = made + share * rising
        rising = rising * (s + 2 * k + 1) * (s + 2 * k + 2) / last**2
    made = np.where(valid, made, np.where(wide == 1, np.inf, np.nan))
    return made.astype(float_result((x.dtype, q.dtype)))


refuse_gradient(zeta)
