"""Parts of pictures in another size: crops, pooled regions, resized pictures, channels dealt out to blocks.

    crop_and_resize((n, h, w, d), boxes (m, 4), numbers (m,), crop_size=(r, c)) -> (m, r, c, d)
    roi_align((n, c, h, w), regions (m, 5), ...) -> (m, c, r, s)       resize_bilinear((n, c, h, w), size=(r, s))

All are bilinear: an element between four others is their mean, weighted by nearness along rows and columns. So a result
is (weights of rows) @ picture @ (weights of columns)^T, and its gradient the same with the weights transposed.

Pictures may be split by number: the rank that has a box's picture computes its crop, the others give zeros, and the sum
over the ranks is the result (MindSpore: CropAndResize, ROIAlign). Heights and widths stay whole, but of resize_bilinear
the width (ResizeBilinear), whose ranks borrow columns from their neighbours.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import choice, flag, integer, number, sequence_of, text
from ..base.errors import ShapeError, shorten
from .boxes import resize_nearest_neighbor
from .elementwise import float_result
from .machine.opdef import SHAPE_ERRORS
from .machine.operand_checks import ints
from .machine.registry import case, gradient, op
from .shape import reshape, swapaxes, transpose
from .spellings import function

SIZE = sequence_of(integer(1), "(height, width)")


def _between(places, size, dtype=np.float64):
    """Weights of `size` elements for the values at `places`, and their slopes.  places: (...) -> two (..., size)."""
    low = np.clip(np.floor(places), 0, size - 1).astype(np.int64)
    high, share = np.minimum(low + 1, size - 1), np.clip(places - low, 0, 1)
    numbers = np.arange(size)
    at_low, at_high = ((numbers == each[..., None]).astype(dtype) for each in (low, high))
    return at_low * (1 - share)[..., None] + at_high * share[..., None], at_high - at_low


def _mine(numbers, count, offset):
    """Which of the pictures are in this slice, and their numbers in it."""
    local = np.asarray(numbers).astype(np.int64) - offset
    inside = (local >= 0) & (local < count)
    return inside, np.where(inside, local, 0)


# ---- crops ----


def _check_crops(operands, *, crop_size, **_):
    x, boxes, numbers = operands
    if len(crop_size) != 2 or 0 in x.shape or len(boxes.shape) != 2 or boxes.shape[1] != 4:
        return f"crop_size {crop_size}, pictures {x.shape}, boxes {boxes.shape}", "(r, c), (n, h, w, d), (m, 4)"
    return ints(numbers, "box_index")


def _crop_places(low, high, count, size):
    """Places along one dim for `count` elements from the first to the last of each box; their shares of `high`."""
    share = np.arange(count) / (count - 1) if count > 1 else np.array([0.5])
    return (low[:, None] * (1 - share) + high[:, None] * share) * (size - 1), share


def _crop_weights(boxes, crop, shape, method):
    """Per dim, rows first: weights (m, crop, size), slopes, shares; zeros outside of the picture."""
    made = []
    for dim in (0, 1):
        places, share = _crop_places(np.asarray(boxes[:, dim], np.float64), boxes[:, dim + 2], crop[dim], shape[dim])
        inside = (places >= 0) & (places <= shape[dim] - 1)
        weights, slopes = _between(np.floor(places + 0.5) if method == "nearest" else places, shape[dim])
        slopes = slopes * (shape[dim] - 1) * (method != "nearest")
        made.append((weights * inside[..., None], slopes * inside[..., None], share, inside))
    return made


_CROPS = {"method": choice("bilinear", "nearest", "bilinear_v2"), "extrapolation_value": number(), "crop_size": SIZE}


@op(
    "nhwd,mz,m->mrcd",
    name="CropAndResize",
    static=("crop_size",),
    attrs=_CROPS,
    check=_check_crops,
    axes="ndm",
    whole="hwz",
    sizes=lambda shapes, *, crop_size, **_: {"r": crop_size[0], "c": crop_size[1]},
    offset="n",
    batch="m",
    dtype=lambda dtypes, **_: float_result(dtypes[:2]),
    flops=lambda s: 8 * s.m * s.r * s.c * s.d,
    example=(
        case((4, 5, 6, 2), (8, 4), (8,), low=0.05, high=0.95, ints={2: 4}, crop_size=(3, 2)),
        case((2, 4, 4, 4), (4, 4), (4,), low=-0.2, high=1.2, ints={2: 2}, crop_size=(1, 4), extrapolation_value=0.5),
        case((2, 4, 4, 4), (4, 4), (4,), low=0.1, high=0.9, ints={2: 2}, crop_size=(2, 2), method="nearest"),
    ),
)
def crop_and_resize(x, boxes, box_index, crop_size, *, method="bilinear", extrapolation_value=0.0, offset=0):
    """The parts of pictures in boxes, in one size.  x: (n, h, w, d), boxes: (m, 4) as (y0, x0, y1, x1) with 0 and 1 at
    the first and last row or column, box_index: (m,) int, the pictures -> (m, *crop_size, d).

    extrapolation_value  what stands outside of a picture
    """
    inside, numbers = _mine(box_index, x.shape[0], offset)
    (rows, _, _, in_rows), (columns, _, _, in_columns) = _crop_weights(boxes, crop_size, x.shape[1:3], method)
    made = np.einsum("mrh,mhwd,mcw->mrcd", rows, x[numbers], columns, optimize=True)
    outside = ~(in_rows[:, :, None] & in_columns[:, None, :])
    made += (outside * float(extrapolation_value))[..., None]
    return (made * inside[:, None, None, None]).astype(float_result((x.dtype, boxes.dtype)))


@gradient(crop_and_resize, part_size=lambda shapes, attrs: attrs["shape"][0], shown="CropAndResizeGradImage")
def crop_and_resize_grad(g, boxes, box_index, *, shape, crop_size, method, extrapolation_value, offset=0):
    """Gradient of crop_and_resize for the pictures.  g: (m, r, c, d), boxes: (m, 4), box_index: (m,) -> `shape`."""
    inside, numbers = _mine(box_index, shape[0], offset)
    (rows, *_), (columns, *_) = _crop_weights(boxes, crop_size, shape[1:3], method)
    each = np.einsum("mrh,mrcd,mcw->mhwd", rows, g * inside[:, None, None, None], columns, optimize=True)
    grad = np.zeros(shape, g.dtype)
    np.add.at(grad, numbers, each.astype(g.dtype))
    return grad


@gradient(crop_and_resize, "boxes", part_size=lambda shapes, attrs: shapes[1][0], shown="CropAndResizeGradBoxes")
def crop_and_resize_boxes_grad(g, x, boxes, box_index, *, crop_size, method, extrapolation_value, offset=0):
    """Gradient of crop_and_resize for the boxes.  g: (m, r, c, d), x: (n, h, w, d), box_index: (m,) -> (m, 4)."""
    inside, numbers = _mine(box_index, x.shape[0], offset)
    (rows, row_slopes, down, _), (columns, slopes, across, _) = _crop_weights(boxes, crop_size, x.shape[1:3], method)
    g = g * inside[:, None, None, None]
    of_rows = np.einsum("mrcd,mrh,mhwd,mcw->mr", g, row_slopes, x[numbers], columns, optimize=True)
    of_columns = np.einsum("mrcd,mrh,mhwd,mcw->mc", g, rows, x[numbers], slopes, optimize=True)
    each = (of_rows @ (1 - down), of_columns @ (1 - across), of_rows @ down, of_columns @ across)
    return np.stack(each, axis=1).astype(g.dtype)


# ---- regions ----


def _check_regions(operands, **_):
    features, rois = (each.shape for each in operands)
    if len(features) != 4 or 0 in features or len(rois) != 2 or rois[1] != 5:
        return f"features of shape {features} and rois of shape {rois}", "(n, c, h, w) and (m, 5)"
    return None


def _region_weights(first, last, pooled, size, sample_num, roi_end_mode):
    """Mean weights of the samples in each of `pooled` parts of every region along one dim: (m, pooled, size)."""
    length = last - first if roi_end_mode else np.maximum(last - first, 1)
    made = np.zeros((len(first), pooled, size))
    for at, (begin, part) in enumerate(zip(first, length / pooled, strict=True)):
        samples = sample_num or max(math.ceil(part), 1)
        places = begin + part * (np.arange(pooled)[:, None] + (np.arange(samples) + 0.5) / samples)
        inside = (places >= -1) & (places <= size)
        made[at] = (_between(np.maximum(places, 0), size)[0] * inside[..., None]).mean(axis=1)
    return made


def _regions(rois, shape, pooled_height, pooled_width, spatial_scale, sample_num, roi_end_mode):
    corners = np.asarray(rois, np.float64)[:, 1:] + np.array([0, 0, roi_end_mode, roi_end_mode])
    x0, y0, x1, y1 = (corners * spatial_scale).T
    rows = _region_weights(y0, y1, pooled_height, shape[2], sample_num, roi_end_mode)
    return rows, _region_weights(x0, x1, pooled_width, shape[3], sample_num, roi_end_mode)


@op(
    "nchw,mz->mcrs",
    name="ROIAlign",
    attrs={
        "pooled_height": integer(1),
        "pooled_width": integer(1),
        "spatial_scale": number(),
        "sample_num": integer(0),
        "roi_end_mode": integer(0, 1),
    },
    check=_check_regions,
    axes="ncm",
    whole="hwz",
    sizes=lambda shapes, *, pooled_height, pooled_width, **_: {"r": pooled_height, "s": pooled_width},
    offset="n",
    batch="m",
    dtype=0,
    flops=lambda s: 32 * s.m * s.c * s.r * s.s,
    example=(
        case((2, 4, 5, 6), (8, 5), ints={1: 2}, pooled_height=2, pooled_width=3, spatial_scale=2.0),
        case((2, 2, 4, 4), (4, 5), ints={1: 2}, pooled_height=2, pooled_width=1, spatial_scale=1.5, roi_end_mode=0),
        case((2, 2, 4, 4), (4, 5), ints={1: 2}, pooled_height=1, pooled_width=2, spatial_scale=3.0, sample_num=0),
    ),
)
def roi_align(features, rois, *, pooled_height, pooled_width, spatial_scale, sample_num=2, roi_end_mode=1, offset=0):
    """Means of samples in the parts of regions.  features: (n, c, h, w), rois: (m, 5) as (picture, x0, y0, x1, y1) ->
    (m, c, pooled_height, pooled_width).

    spatial_scale  size of a feature map over that of the picture in which regions are measured
    sample_num     samples per part and dim; 0: as many as it has elements
    roi_end_mode   1: x1, y1 are the last elements, 0: the ends; regions then have a length of 1 at least
    """
    inside, numbers = _mine(rois[:, 0], features.shape[0], offset)
    facts = (pooled_height, pooled_width, spatial_scale, sample_num, roi_end_mode)
    rows, columns = _regions(rois, features.shape, *facts)
    made = np.einsum("mrh,mchw,msw->mcrs", rows, features[numbers], columns, optimize=True)
    return (made * inside[:, None, None, None]).astype(features.dtype)


@gradient(roi_align, part_size=lambda shapes, attrs: attrs["shape"][0], shown="ROIAlignGrad")
def roi_align_grad(g, rois, *, shape, pooled_height, pooled_width, spatial_scale, sample_num, roi_end_mode, offset=0):
    """Gradient of roi_align for the features; regions have none.  g: (m, c, r, s), rois: (m, 5) -> `shape`."""
    inside, numbers = _mine(rois[:, 0], shape[0], offset)
    rows, columns = _regions(rois, shape, pooled_height, pooled_width, spatial_scale, sample_num, roi_end_mode)
    each = np.einsum("mrh,mcrs,msw->mchw", rows, g * inside[:, None, None, None], columns, optimize=True)
    grad = np.zeros(shape, g.dtype)
    np.add.at(grad, numbers, each.astype(g.dtype))
    return grad


# ---- whole pictures ----


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
    rows = _between(_source(np.arange(size[0]), shape[2], size[0], *how), shape[2])[0]
    before = shape[3] if parts == 1 else width
    columns = _between(_source(offset + np.arange(size[1]), before, size[1] * parts, *how), before)[0]
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


@function(mint="functional.pixel_shuffle")
def pixel_shuffle(input, upscale_factor):
    """Channels dealt out to blocks of r x r elements, r^2 neighbouring channels to one.

    input: (..., c r^2, h, w) -> (..., c, h r, w r). Form: mindspore.ops.pixel_shuffle.
    """
    r = integer(1)("pixel_shuffle", "upscale_factor", upscale_factor, SHAPE_ERRORS)
    *lead, c, h, w = _picture("pixel_shuffle", input, lambda c, h, w: c % (r * r), f"channels a multiple of {r * r}")
    blocks = transpose(reshape(input, (-1, c // (r * r), r, r, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(blocks, (*lead, c // (r * r), h * r, w * r))


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
