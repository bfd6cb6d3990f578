"""Rotary positions (Su et al. 2021): pairs of elements are turned by an angle that grows with the token's position.

    y[i], y[i + d/2] = x[i] cos a - x[i + d/2] sin a, x[i + d/2] cos a + x[i] sin a        a = position / base^(2 i / d)

The product of a query and a key then depends on how far apart they are. Where a sequence is split over ranks, or was
permuted for them, a slice needs the positions that its tokens have in the sequence, not in the slice.
"""

from __future__ import annotations

import functools

import numpy as np

from ..base.checks import choice, flag, integer, number
from ..base.dtypes import promoted
from ..base.errors import LayoutError
from ..layout.placements import TOKEN_ORDERS, Placement
from .machine.operand_checks import floats
from .machine.registry import case, op
from .machine.signature import letters


@functools.lru_cache(maxsize=64, typed=True)
def placed_tokens(placement, tokens, ranks, documents=()):
    """The `Placement` of a sequence that was permuted for so many ranks."""
    return Placement(placement, tokens, ranks, documents if placement == "per_document" else ())


def _check(operands, *, placement, ranks, documents, parts, **_):
    (x,) = operands
    if len(x.shape) < 3 or x.shape[-1] % 2 or floats(x):
        return f"x is {x.dtype} of shape {x.shape}", "Floats (b, s, ..., d), d even"
    try:
        placed_tokens(placement, x.shape[1] * parts, ranks, documents)
    except LayoutError as error:
        return str(error), "Tokens that divide as the placement needs"


def _labels(shapes, **_):
    names = letters(len(shapes[0]))
    return f"{names}->{names}"


@op(
    _labels,
    name="RotaryPositions",
    attrs={"base": number(0, above=True), "placement": choice(*TOKEN_ORDERS), "ranks": integer(1), "back": flag},
    check=_check,
    dtype=lambda dtypes, **_: promoted(dtypes),
    whole=lambda signature, **_: signature.ins[0][-1],
    offset=lambda signature: signature.ins[0][1],
    localize=lambda attrs, parts: {**attrs, "parts": parts.get(sorted(parts)[1], 1)},
    flops=6,
    example=(case((2, 8, 2, 4)), case((2, 8, 2, 2, 2), placement="zigzag", ranks=4, base=100.0)),
)
def rotary_positions(x, *, base=10000.0, placement="contiguous", ranks=1, documents=(), back=False, parts=1, offset=0):
    """x turned by its positions.  x: (b, s, ..., d), d even -> (b, s, ..., d).

    placement, ranks, documents   in which order the s tokens are given: `Placement` of `layout/placements.py`.
          Positions count from the begin of the sequence, or of each document
    back  turned the other way
    parts how often s of the whole is split; set by the compiler
    """
    (tokens, width), wide = (x.shape[1], x.shape[-1]), np.result_type(x, np.float32)
    order = placed_tokens(placement, tokens * parts, ranks, documents).order
    starts = np.repeat(np.cumsum((0, *documents[:-1])), documents) if documents else np.zeros(len(order), int)
    positions = (order - starts[order])[offset : offset + tokens]
    angles = positions[:, None] / base ** (np.arange(0, width, 2) / width) * (-1 if back else 1)
    shape = (tokens, *(1,) * (x.ndim - 3), width // 2)
    cos, sin = (turn(angles).reshape(shape).astype(wide) for turn in (np.cos, np.sin))
    first, second = x[..., : width // 2].astype(wide), x[..., width // 2 :].astype(wide)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


@rotary_positions.vjp
def _(g, out, x, *, back, **attrs):
    return (rotary_positions(g, back=not back, **attrs),)
