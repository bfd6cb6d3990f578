"""Pictures in another size: nearest neighbours, bilinear, channels that become rows and columns.

    resize_nearest_neighbor((n, c, h, w), size=(2h, 2w)) -> (n, c, 2h, 2w)
    resize_bilinear((n, c, h, w), size=(r, s)) -> (n, c, r, s)

A bilinear element between four others is their mean, weighted by nearness along rows and columns. So a result is
(weights of rows) @ picture @ (weights of columns)^T, and its gradient the same with the weights transposed. Heights
stay whole there; along the width ranks borrow columns from their neighbours (MindSpore: ResizeBilinear).
"""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import SHAPE_ERRORS, flag, integer, sequence_of, text
from ...base.errors import ShapeError, shorten
from ...ops.elementwise import float_result
from ...ops.machine.registry import case, gradient, op
from ...ops.shape import reshape, transpose
from ...ops.spellings import function

SIZE = sequence_of(integer(1), "(height, width)")


# ---- every element copied from the nearest one ----


def _nearest_rows(before, after, align_corners):
    """For every row of the result the row it is taken from."""
    places = np.arange(after)
    if align_corners and after > 1:
        return np.floor(places * ((before - 1) / (after - 1)) + 0.5).astype(np.int64)
    return np.minimum(places * before // after, before - 1)


def _check_nearest(operands, *, size, align_corners):
    shape = operands[0].shape
    if len(shape) != 4 or 0 in shape or len(size) != 2:
        return f"size {size} for a tensor of shape {shape}", "(height, width) for a tensor (n, c, h, w) with elements"


def _restrict_nearest(signature, cuts, sizes, *, size, align_corners):
    for label, after in zip("hw", size, strict=True):
        even = not align_corners and not (after % sizes[label] and sizes[label] % after)
        if cuts[label] > 1 and not even:
            what = f"splits '{label}' of input 0 {cuts[label]} ways, whose size goes from {sizes[label]} to {after}"
            return what, f"'{label}' stays whole unless one size is a multiple of the other, without align_corners"


@op(
    "nchw->nchw",
    name="ResizeNearestNeighbor",
    attrs={"size": sequence_of(integer(1), "(height, width)")},
    check=_check_nearest,
    out_sizes=lambda shapes, *, size, **_: {"h": size[0], "w": size[1]},
    restrict=_restrict_nearest,
    localize=lambda attrs, parts: {**attrs, "size": (attrs["size"][0] // parts["h"], attrs["size"][1] // parts["w"])},
    flops=0,
    example=(
        case((4, 2, 4, 2), size=(8, 2)),
        case((4, 2, 4, 4), size=(2, 6)),
        case((8, 4, 3, 2), size=(5, 4), align_corners=True),
    ),
)
def resize_nearest_neighbor(x, *, size, align_corners=False):
    """A picture of another size, every element copied from the nearest one.  x: (n, c, h, w) -> (n, c, *size).

    align_corners  the corners of both pictures are the same elements
    """
    rows, columns = (_nearest_rows(n, m, align_corners) for n, m in zip(x.shape[2:], size, strict=True))
    return np.array(x[:, :, rows[:, None], columns], order="C")


@gradient(resize_nearest_neighbor)
def resize_nearest_neighbor_grad(g, *, shape, size, align_corners):
    """Gradient of resize_nearest_neighbor: sums over the copies of an element.  g: (n, c, *size) -> (n, c, h, w)."""
    rows, columns = (_nearest_rows(n, m, align_corners) for n, m in zip(shape[2:], size, strict=True))
    grad = np.zeros(shape, g.dtype)
    np.add.at(grad, (slice(None), slice(None), rows[:, None], columns), g)
    return grad


# ---- means of four elements ----


def between(places, size, dtype=np.float64):
    """Weights of `size` elements for the values at `places`, and their slopes.  places: (...) -> two (..., size)."""
    low = np.clip(np.floor(places), 0, size - 1).astype(np.int64)
    high, share = np.minimum(low + 1, size - 1), np.clip(places - low, 0, 1)
    numbers = np.arange(size)
    at_low, at_high = ((numbers == each[..., None]).astype(dtype) for each in (low, high))
    return at_low * (1 - share)[..., None] + at_high * share[..., None], at_high - at_low


def _source(places, before, after, align_corners, half_pixel_centers):
    """Where in `before` elements those of `after` are taken from."""
    if half_pixel_centers:
        return np.maximum((places + 0.5) * (before / after) - 0.5, 0)
    if align_corners:
        return places * ((before - 1) / max(after - 1, 1))
    return places * (before / after)


def _check_resize(operands, *, size, align_corners, half_pixel_centers, width, parts):
    shape = operands[0].shape
    if len(shape) != 4 or 0 in shape or len(size) != 2:
        return f"size {size} for a tensor of shape {shape}", "(height, width) for a tensor (n, c, h, w) with elements"
    if align_corners and half_pixel_centers:
        return "align_corners and half_pixel_centers", "One of the two"
    return None if width in (None, shape[3]) else (f"width={width} of a tensor of shape {shape}", "Its last extent")


def _columns(width, size, parts, align_corners, half_pixel_centers):
    """The columns that ranks need: (first, count), counted from the beginning of their own slice; the same for all."""
    own, made = width // parts, size[1] // parts
    ends = made * np.arange(parts)[:, None] + np.array([0, made - 1])
    places = _source(ends, width, size[1], align_corners, half_pixel_centers) - own * np.arange(parts)[:, None]
    first = min(0, math.floor(places.min()))
    return first, max(own, math.floor(places.max()) + 2) - first


def _resize_window(sizes, cuts, *, size, width, parts, **how):
    if cuts["w"] == 1:
        return {}
    first, count = _columns(sizes["w"], size, cuts["w"], **how)
    return {"w": (sizes["w"] // cuts["w"], first, count)}


def _restrict_resize(signature, cuts, sizes, *, width, **_):
    if cuts["w"] > 1 and width is None:
        return f"splits 'w' of input 0 {cuts['w']} ways, but no width is given", "width, the tensor's last extent"
    return None


def _resize_weights(shape, size, align_corners, half_pixel_centers, width, parts, offset):
    """Weights of rows (size[0], h) and of this slice's columns (size[1], w)."""
    how = (align_corners, half_pixel_centers)
    rows = between(_source(np.arange(size[0]), shape[2], size[0], *how), shape[2])[0]
    before = shape[3] if parts == 1 else width
    columns = between(_source(offset + np.arange(size[1]), before, size[1] * parts, *how), before)[0]
    if parts == 1:
        return rows, columns
    first = offset // size[1] * (width // parts) + _columns(width, (size[0], size[1] * parts), parts, *how)[0]
    numbers = first + np.arange(shape[3])
    return rows, columns[:, np.clip(numbers, 0, width - 1)] * ((numbers >= 0) & (numbers < width))


@op(
    "nchw->nchw",
    name="ResizeBilinear",
    whole="h",
    attrs={"size": SIZE, "width": integer(1) | None},
    check=_check_resize,
    out_sizes=lambda shapes, *, size, **_: {"h": size[0], "w": size[1]},
    restrict=_restrict_resize,
    held=lambda signature, **_: "w",
    window=_resize_window,
    offset="w",
    part_size=lambda shapes, attrs: attrs["size"][1],
    localize=lambda attrs, parts: {
        **attrs,
        "size": (attrs["size"][0], attrs["size"][1] // parts["w"]),
        "parts": parts["w"],
    },
    dtype=float_result,
    flops=8,
    example=(
        case((4, 2, 4, 8), size=(6, 16), width=8),
        case((2, 2, 5, 8), size=(3, 4), width=8, half_pixel_centers=True),
        case((2, 2, 3, 8), size=(6, 12), width=8, align_corners=True),
        case((8, 4, 3, 2), size=(5, 4), align_corners=True),
    ),
)
def resize_bilinear(x, *, size, align_corners=False, half_pixel_centers=False, width=None, parts=1, offset=0):
    """Pictures in another size.  x: (n, c, h, w) -> (n, c, *size).

    align_corners       the corners of both pictures are the same elements
    half_pixel_centers  elements are counted by their middles
    width               extent of the last dim, which may be split only if it is given
    parts               in how many slices it is; set by the compiler
    """
    rows, columns = _resize_weights(x.shape, size, align_corners, half_pixel_centers, width, parts, offset)
    made = np.einsum("rh,nchw,sw->ncrs", rows, x, columns, optimize=True)
    return made.astype(float_result((x.dtype,)))


@gradient(resize_bilinear, part_size=lambda shapes, attrs: attrs["size"][1])
def resize_bilinear_grad(g, *, shape, size, align_corners, half_pixel_centers, width, parts=1, offset=0):
    """Gradient of resize_bilinear.  g: (n, c, *size) -> (n, c, h, w)."""
    rows, columns = _resize_weights(shape, size, align_corners, half_pixel_centers, width, parts, offset)
    return np.einsum("rh,ncrs,sw->nchw", rows, g, columns, optimize=True).astype(g.dtype)


@function(mint="functional.pixel_shuffle")
def pixel_shuffle(input, upscale_factor):
    """Channels dealt out to blocks of r x r elements, r^2 neighbouring channels to one.

    input: (..., c r^2, h, w) -> (..., c, h r, w r). Form: mindspore.ops.pixel_shuffle.
    """
    r = integer(1)("pixel_shuffle", "upscale_factor", upscale_factor, SHAPE_ERRORS)
    *lead, c, h, w = _picture("pixel_shuffle", input, lambda c, h, w: c % (r * r), f"channels a multiple of {r * r}")
    blocks = transpose(reshape(input, (-1, c // (r * r), r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(blocks, (*lead, c // (r * r), h * r, w * r))


def _picture(where, x, wrong, allowed):
    shape = tuple(x.shape)
    if len(shape) < 3 or wrong(*shape[-3:]):
        raise ShapeError(f"a tensor of shape {shape}", where=where, allowed=f"(..., c, h, w), {allowed}")
    return shape


@function(mint="functional.interpolate")
def interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None):
    """Pictures in another size, "bilinear" or "nearest".  input: (n, c, h, w) -> (n, c, *size).

    size or scale_factor  a pair, or one number for both dims
    align_corners         of "bilinear": the corners are the same elements; else elements are counted by their middles

    Form: mindspore.ops.interpolate, for tensors with 4 dims.
    """
    shape = tuple(input.shape)
    (flag | None)("interpolate", "align_corners", align_corners, SHAPE_ERRORS)
    (flag | None)("interpolate", "recompute_scale_factor", recompute_scale_factor, SHAPE_ERRORS)
    mode = text("interpolate", "mode", mode, SHAPE_ERRORS)
    if len(shape) != 4 or (size is None) == (scale_factor is None) or mode not in ("bilinear", "nearest"):
        what = f"size={size}, scale_factor={scale_factor} and mode={shorten(mode)} for a tensor of shape {shape}"
        allowed = '(n, c, h, w), one of size and scale_factor, "bilinear" or "nearest"'
        raise ShapeError(what, where="interpolate", allowed=allowed)
    if size is None:
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * 2
        size = tuple(int(n * factor) for n, factor in zip(shape[2:], factors, strict=False))
    size = size if isinstance(size, (tuple, list)) else (size,) * 2
    if mode == "nearest":
        return resize_nearest_neighbor(input, size=tuple(size))
    how = {"align_corners": bool(align_corners), "half_pixel_centers": not align_corners, "width": shape[3]}
    return resize_bilinear(input, size=tuple(size), **how)
