"""Matrix products."""

from __future__ import annotations

import numpy as np

from .elementwise import unbroadcast
from .registry import case, op

__all__ = ["matmul"]


def _labels(shapes, *, transpose_a, transpose_b):
    a = "km" if transpose_a else "mk"
    b = "nk" if transpose_b else "kn"
    return f"...{a},...{b}->...mn"


@op(
    _labels,
    name="MatMul",
    aliases=("BatchMatMul",),
    axes="mkn",
    flops=lambda s: 2 * np.prod(list(vars(s).values())),
    example=(
        case((16, 8), (8, 24)),
        case((8, 16), (8, 24), transpose_a=True),
        case((16, 8), (24, 8), transpose_b=True),
        case((8, 16), (24, 8), transpose_a=True, transpose_b=True),
        case((8, 4, 2), (8, 2, 4)),
        case((8, 16, 2), (2, 4)),
        case((2, 4, 8, 2), (4, 4, 8), transpose_a=True, transpose_b=True),
    ),
)
def matmul(a, b, *, transpose_a=False, transpose_b=False):
    """Matrix product.  a: (..., m, k), b: (..., k, n) -> (..., m, n); leading dims broadcast; transposed operands are stored (k, m) and (n, k).

    Strategies are in storage order. A cut contraction dim k leaves partial sums: an all_reduce over k's ranks follows.
    """
    if transpose_a:
        a = np.swapaxes(a, -1, -2)
    if transpose_b:
        b = np.swapaxes(b, -1, -2)
    return np.matmul(a, b)


@matmul.vjp
def _(g, out, a, b, *, transpose_a, transpose_b, needs):
    # a stored transposed takes the transposed gradient: (g b^T)^T = b g^T
    grad_a = grad_b = None
    if needs[0]:
        grad_a = unbroadcast(matmul(b, g, transpose_a=transpose_b, transpose_b=True) if transpose_a else matmul(g, b, transpose_b=not transpose_b), a)
    if needs[1]:
        grad_b = unbroadcast(matmul(g, a, transpose_a=True, transpose_b=transpose_a) if transpose_b else matmul(a, g, transpose_a=not transpose_a), b)
    return grad_a, grad_b
