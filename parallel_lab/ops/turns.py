"""Pairs of numbers turned by angles that stand for positions, and vector products of three numbers.

    rotary_position_embedding(x (b, h, s, d), cos (1, 1, s, d), sin (1, 1, s, d)) -> (b, h, s, d)
    cross((8, 3), (8, 3)) -> (8, 3)

The dim that holds a pair or a vector stays whole, all others may be split.
"""

from __future__ import annotations

import numpy as np

from ..base.checks import integer
from ..base.errors import ShapeError
from .elementwise import mul, sub
from .machine.operand_checks import floats, one_dim
from .machine.registry import case, op, unbroadcast
from .machine.signature import along_axis, letters
from .shape import broadcast_to
from .spellings import function

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


# ---- vectors of three ----


def _check_cross(operands, *, dim):
    shapes = tuple(each.shape for each in operands)
    if shapes[0] != shapes[1] or not shapes[0]:
        return f"tensors of shape {shapes[0]} and {shapes[1]}", "Equal shapes"
    return one_dim("dim", dim, shapes[0]) or (
        None if shapes[0][dim] == 3 else (f"dim={dim} of a tensor of shape {shapes[0]}", "A dim with 3 elements")
    )


@op(
    lambda shapes, **_: "{0},{0}->{0}".format(letters(len(shapes[0]))),
    name="Cross",
    whole=lambda signature, *, dim: along_axis(signature, axis=dim),
    attrs={"dim": integer()},
    check=_check_cross,
    flops=3,
    example=(case((8, 3, 4), (8, 3, 4), dim=1), case((16, 3), (16, 3))),
)
def cross_product(x1, x2, *, dim=-1):
    """Vector products of three numbers along `dim`, which stays whole.  x1, x2: (..., 3, ...) -> (..., 3, ...)."""
    return np.array(np.cross(x1, x2, axis=dim), order="C")


@cross_product.vjp
def _(g, out, x1, x2, *, dim):
    return cross_product(x2, g, dim=dim), cross_product(g, x1, dim=dim)


@function(method="cross(other,dim)", mint="cross")
def cross(input, other, dim=None):
    """Vector products along `dim` (None: the first with 3 elements).  input, other: (..., 3, ...) -> broadcast."""
    shapes = tuple(input.shape), tuple(other.shape)
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(f"shapes {shapes[0]} and {shapes[1]}", where="cross", allowed="What broadcasts") from None
    given = [each if tuple(each.shape) == shape else broadcast_to(each, shape) for each in (input, other)]
    if dim is None and 3 not in shape:
        raise ShapeError(f"tensors of shape {shape}", where="cross", allowed="A dim with 3 elements")
    return cross_product(*given, dim=shape.index(3) if dim is None else dim)
