"""Distances between rows of two tensors, and between two tensors.

ops.cdist((b, p, m), (b, r, m)) -> (b, p, r)      ops.dist(x, y, p=2) -> ()
"""

from __future__ import annotations

import math

import numpy as np

from ...base.errors import shorten
from ...ops.elementwise import float_result, sub
from ...ops.machine.registry import case, gradient, op
from ...ops.spellings import function
from .norms import lp_norm

# ---- distances ----


def _check_cdist(operands, *, p):
    shapes = [o.shape for o in operands]
    if not all(len(s) in (2, 3) and len(s) == len(shapes[0]) for s in shapes):
        return f"shapes {shapes[0]} and {shapes[1]}", "(b, p, m) and (b, r, m), or (p, m) and (r, m)"
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p >= 0:
        return f"p={shorten(p)}", "A number, at least 0; infinity too"


def _cdist_labels(shapes, *, p):
    return "pm,rm->pr" if len(shapes[0]) == 2 else "bpm,brm->bpr"


def _apart(x1, x2):
    return x1[..., :, None, :] - x2[..., None, :, :]


@op(
    _cdist_labels,
    name="Cdist",
    check=_check_cdist,
    axes="bpr",
    whole="m",
    dtype=float_result,
    flops=lambda s: 3 * s.p * s.r * s.m * getattr(s, "b", 1),
    example=(
        case((8, 4, 3), (8, 2, 3)),
        case((16, 3), (8, 3), p=1.0),
        case((8, 3), (16, 3), p=3.5),
        case((4, 2, 3), (4, 8, 3), p=math.inf),
    ),
)
def cdist(x1, x2, *, p=2.0):
    """Distances (sum of |difference|^p)^(1/p) of all rows; p 0: how many differ.

    x1: (b, p, m), x2: (b, r, m) -> (b, p, r); or without b. The rows' dim m stays whole.
    """
    size = np.abs(_apart(x1, x2))
    if p == 0:
        return np.count_nonzero(size, axis=-1).astype(size.dtype)
    if math.isinf(p):
        return size.max(axis=-1)
    return np.sqrt(np.square(size).sum(axis=-1)) if p == 2 else np.power(np.power(size, p).sum(axis=-1), 1 / p)


def _cdist_slope(out, x1, x2, p):
    """Derivative of every distance for every difference; 0 where it is undefined.  -> (..., p, r, m)."""
    apart, far = _apart(x1, x2), out[..., None]
    if p == 0:
        return np.zeros_like(apart)
    if math.isinf(p):
        return np.sign(apart) * (np.abs(apart) == far)
    safe = np.where(far == 0, np.ones((), far.dtype), far)
    return np.sign(apart) * np.power(np.abs(apart) / safe, p - 1, where=apart != 0, out=np.zeros_like(apart))


@gradient(cdist)
def cdist_grad(g, out, x1, x2, *, p):
    """Gradient for x1.  g, out: (b, p, r), x1: (b, p, m), x2: (b, r, m) -> like x1."""
    return (g[..., None] * _cdist_slope(out, x1, x2, p)).sum(axis=-2)


@gradient(cdist, "x2", shown="CdistGrad")
def cdist_grad_2(g, out, x1, x2, *, p):
    """Gradient for x2.  g, out: (b, p, r), x1: (b, p, m), x2: (b, r, m) -> like x2."""
    return -(g[..., None] * _cdist_slope(out, x1, x2, p)).sum(axis=-3)


@function()
def dist(input, other, p=2):
    """p-norm of the difference of all elements.  input, other: (...) -> ()."""
    return lp_norm(sub(input, other), p=p)
