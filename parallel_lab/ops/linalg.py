"""The matrix product: an operator, declared once.

    matmul((m, k), (k, n)) -> (m, n)

`_labels` names the dims: "mk,kn->mn". From them follow the shape of the result, what may be split, and which messages a
split needs: `k` is missing in the result, so ranks that split it hold partial sums, and an all_reduce adds them. The
decorated function computes the product of arrays. The rule below it gives both gradients, as products again.
"""

from __future__ import annotations

import numpy as np

from .machine.registry import case, op, unbroadcast
from .shape import expand_dims, reshape


def _labels(shapes, *, transpose_a, transpose_b):
    a, b = ("...km" if transpose_a else "...mk"), ("...nk" if transpose_b else "...kn")
    row, column = (len(shape) == 1 for shape in shapes)  # vectors, whose other dim is missing in the result
    return f"{'k' if row else a},{'k' if column else b}->...{'' if row else 'm'}{'' if column else 'n'}"


@op(
    _labels,
    name="MatMul BatchMatMul MatMulExt BatchMatMulExt",
    method="matmul(other)",
    operator="__matmul__",
    ufunc="matmul",
    numpy="dot",
    mint="matmul",
    axes="mkn",
    linear="a, b",
    flops=2,
    example=(
        case((16, 8), (8, 24)),
        case((8, 16), (8, 24), transpose_a=True),
        case((16, 8), (24, 8), transpose_b=True),
        case((8, 16), (24, 8), transpose_a=True, transpose_b=True),
        case((8, 4, 2), (8, 2, 4)),
        case((8, 16, 2), (2, 4)),
        case((2, 4, 8, 2), (4, 4, 8), transpose_a=True, transpose_b=True),
        *(case((8,), (8,)), case((4, 16, 8), (8,)), case((8,), (4, 8, 16))),
    ),
)
def matmul(a, b, *, transpose_a=False, transpose_b=False):
    """Matrix product.  a: (..., m, k), b: (..., k, n) -> (..., m, n).

    Leading dims broadcast; transposed operands are stored (k, m) and (n, k); vectors (k,) are a row and a column.

    Strategies are in storage order. A split contraction dim k leaves partial sums: an all_reduce over k's ranks
    follows.
    """
    if transpose_a and a.ndim > 1:
        a = np.swapaxes(a, -1, -2)
    if transpose_b and b.ndim > 1:
        b = np.swapaxes(b, -1, -2)
    return np.matmul(a, b)


@matmul.vjp
def _(g, out, a, b, *, transpose_a, transpose_b, needs):
    row, column = len(a.shape) == 1, len(b.shape) == 1
    if row:
        g, a, transpose_a = expand_dims(g, -1 if column else -2), expand_dims(a, 0), False
    if column:
        g, b, transpose_b = expand_dims(g, -1), expand_dims(b, 1), False
    # a stored transposed takes the transposed gradient: (g b^T)^T = b g^T
    grad_a = grad_b = None
    if needs[0]:
        if transpose_a:
            grad_a = unbroadcast(matmul(b, g, transpose_a=transpose_b, transpose_b=True), a)
        else:
            grad_a = unbroadcast(matmul(g, b, transpose_b=not transpose_b), a)
    if needs[1]:
        if transpose_b:
            grad_b = unbroadcast(matmul(g, a, transpose_a=True, transpose_b=transpose_a), b)
        else:
            grad_b = unbroadcast(matmul(a, g, transpose_a=not transpose_a), b)
    return tuple(reshape(x, (-1,)) if v and x is not None else x for x, v in ((grad_a, row), (grad_b, column)))
