"""Channels dealt out to blocks of rows and columns, and back, and shuffled."""

from __future__ import annotations

import numpy as np

from ...base.checks import SHAPE_ERRORS, integer
from ...base.errors import ShapeError
from ...ops.machine.registry import case, op
from ...ops.shape import reshape, swapaxes, transpose
from ...ops.spellings import function
from .upsampling import _picture

# ---- channels as rows and columns ----


def _check_blocks(operands, *, block_size):
    shape, area = operands[0].shape, block_size**2
    if len(shape) != 4 or shape[1] % area:
        return f"a tensor of shape {shape}", f"(n, c, h, w), c a multiple of block_size squared ({area})"
    return None


def _check_rows(operands, *, block_size):
    shape = operands[0].shape
    if len(shape) != 4 or shape[2] % block_size or shape[3] % block_size:
        return f"a tensor of shape {shape}", f"(n, c, h, w), h and w multiples of block_size={block_size}"
    return None


_BLOCKS = {"attrs": {"block_size": integer(2)}, "whole": "c", "dtype": 0, "flops": 0}


@op(
    "nchw->nchw",
    name="DepthToSpace",
    check=_check_blocks,
    out_sizes=lambda shapes, *, block_size: {
        c: n * block_size if c in "hw" else n // block_size**2 for c, n in zip("chw", shapes[0][1:], strict=True)
    },
    example=case((4, 8, 2, 4), block_size=2),
    **_BLOCKS,
)
def depth_to_space(x, *, block_size):
    """Channels dealt out to blocks of elements: the first c / b^2 channels are the first elements of all blocks.

    x: (n, c, h, w) -> (n, c / b^2, h b, w b)
    """
    n, c, h, w = x.shape
    b = block_size
    blocks = x.reshape(n, b, b, c // b**2, h, w)
    return np.ascontiguousarray(blocks.transpose(0, 3, 4, 1, 5, 2)).reshape(n, c // b**2, h * b, w * b)


def _restrict_rows(signature, cuts, sizes, *, block_size):
    for label in "hw":
        if sizes[label] // cuts[label] % block_size:
            what = f"splits '{label}' of input 0 {cuts[label]} ways, which cuts blocks of {block_size} apart"
            return what, "Slices that are multiples of block_size"
    return None


@op(
    "nchw->nchw",
    name="SpaceToDepth",
    check=_check_rows,
    restrict=_restrict_rows,
    out_sizes=lambda shapes, *, block_size: {
        c: n // block_size if c in "hw" else n * block_size**2 for c, n in zip("chw", shapes[0][1:], strict=True)
    },
    example=case((4, 3, 4, 8), block_size=2),
    **_BLOCKS,
)
def space_to_depth(x, *, block_size):
    """Blocks of elements as channels: `depth_to_space` backwards.  x: (n, c, h, w) -> (n, c b^2, h / b, w / b)."""
    n, c, h, w = x.shape
    b = block_size
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    return np.ascontiguousarray(blocks.transpose(0, 3, 5, 1, 2, 4)).reshape(n, c * b**2, h // b, w // b)


@depth_to_space.vjp
def _(g, out, x, *, block_size):
    return (space_to_depth(g, block_size=block_size),)


@space_to_depth.vjp
def _(g, out, x, *, block_size):
    return (depth_to_space(g, block_size=block_size),)


@function()
def pixel_unshuffle(input, downscale_factor):
    """Blocks of r x r elements as channels.  input: (..., c, h r, w r) -> (..., c r^2, h, w)."""
    r = integer(1)("pixel_unshuffle", "downscale_factor", downscale_factor, SHAPE_ERRORS)
    wrong = "height and width multiples of the factor"
    *lead, c, h, w = _picture("pixel_unshuffle", input, lambda c, h, w: h % r or w % r, wrong)
    blocks = transpose(reshape(input, (-1, c, h // r, r, w // r, r)), (0, 1, 3, 5, 2, 4))
    return reshape(blocks, (*lead, c * r * r, h // r, w // r))


@function()
def channel_shuffle(x, groups):
    """The channels of `groups` equal groups in turns.  x: (n, c, ...) -> (n, c, ...)."""
    shape = tuple(x.shape)
    groups = integer(1)("channel_shuffle", "groups", groups, SHAPE_ERRORS)
    if len(shape) < 3 or shape[1] % groups:
        what = f"groups={groups} of a tensor of shape {shape}"
        raise ShapeError(what, where="channel_shuffle", allowed="(n, c, ...), c a multiple of groups")
    return reshape(swapaxes(reshape(x, (shape[0], groups, shape[1] // groups, -1)), 1, 2), shape)
