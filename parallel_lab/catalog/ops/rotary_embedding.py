"""Pairs of numbers turned by angles that stand for positions, and vector products of three numbers.

    rotary_position_embedding(x (b, h, s, d), cos (1, 1, s, d), sin (1, 1, s, d)) -> (b, h, s, d)
    cross((8, 3), (8, 3)) -> (8, 3)

The dim that holds a pair or a vector stays whole, all others may be split.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import integer
from ...ops.elementwise import mul, sub
from ...ops.machine.operand_checks import floats
from ...ops.machine.registry import case, op, unbroadcast

# ---- positions as angles (Su et al. 2021, "RoFormer") ----


def _check(operands, *, mode):
    shapes = [each.shape for each in operands]
    if any(not s or s[-1] != shapes[0][-1] or len(s) != len(shapes[0]) for s in shapes) or shapes[0][-1] % 2:
        return f"tensors of shape {' and '.join(map(str, shapes))}", "As many dims, the last equal and even"
    return floats(operands[0])


@op(result_shape=0, dtype=0)
def quarter_turn(x, *, mode):
    """Every pair (u, v) of the last dim turned to (-v, u).  x: (..., d) -> (..., d). Turned back: times -1."""
    pairs = x.reshape((*x.shape[:-1], 2, -1) if mode == 0 else (*x.shape[:-1], -1, 2))
    first, second = np.moveaxis(pairs, -2 if mode == 0 else -1, 0)
    return np.stack([-second, first], axis=-2 if mode == 0 else -1).reshape(x.shape)


@op(
    "...d,...d,...d->...d",
    name="RotaryPositionEmbedding",
    whole="d",
    attrs={"mode": integer(0, 1)},
    check=_check,
    flops=4,
    example=(case((4, 2, 8, 6), (1, 1, 8, 6), (1, 1, 8, 6)), case((4, 8, 2, 4), (1, 8, 1, 4), (1, 8, 1, 4), mode=1)),
)
def rotary_position_embedding(x, cos, sin, mode=0):
    """x with its pairs turned: x cos + (quarter turn of x) sin.  x: (..., d), cos, sin: broadcast to it -> (..., d).

    mode  0: the pairs are elements i and i + d / 2, 1: elements 2i and 2i + 1

    Form: mindspore.ops.rotary_position_embedding.
    """
    return x * cos + quarter_turn.compute(x, mode=mode) * sin


@rotary_position_embedding.vjp
def _(g, out, x, cos, sin, *, mode):
    back = quarter_turn(mul(g, sin), mode=mode)
    of_sin = mul(g, quarter_turn(x, mode=mode))
    return sub(mul(g, cos), back), unbroadcast(mul(g, x), cos), unbroadcast(of_sin, sin)
