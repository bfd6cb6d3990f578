"""Parts of pictures in another size: crops and pooled regions.

    crop_and_resize((n, h, w, d), boxes (m, 4), numbers (m,), crop_size=(r, c)) -> (m, r, c, d)
    roi_align((n, c, h, w), regions (m, 5), ...) -> (m, c, r, s)

An element between four others is their mean, weighted by nearness along rows and columns. Pictures may be split by
number: the rank that has a picture of a box computes its crop, the others give zeros, and the sum over the ranks is the
result (MindSpore: CropAndResize, ROIAlign). Heights and widths stay whole.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import choice, integer, number
from ...ops.elementwise import float_result
from ...ops.machine.operand_checks import ints
from ...ops.machine.registry import case, gradient, op
from .upsampling import SIZE, between


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
        weights, slopes = between(np.floor(places + 0.5) if method == "nearest" else places, shape[dim])
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
        made[at] = (between(np.maximum(places, 0), size)[0] * inside[..., None]).mean(axis=1)
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
    """Gradient of roi_align for the features, not for the regions.  g: (m, c, r, s), rois: (m, 5) -> `shape`."""
    inside, numbers = _mine(rois[:, 0], shape[0], offset)
    rows, columns = _regions(rois, shape, pooled_height, pooled_width, spatial_scale, sample_num, roi_end_mode)
    each = np.einsum("mrh,mcrs,msw->mchw", rows, g * inside[:, None, None, None], columns, optimize=True)
    grad = np.zeros(shape, g.dtype)
    np.add.at(grad, numbers, each.astype(g.dtype))
    return grad
