"""Samples of pictures at given places (grid_sample): spatial transformers, deformed pictures.

    grid_sample((n, c, h, w), grid (n, i, j, 2), "bilinear", "zeros", False) -> (n, c, i, j)

A place is (x, y), from -1 at the left or upper border to 1 at the other. A bilinear sample is the mean of the four
elements around it, weighted by nearness. Pictures, channels and places may be split, heights and widths not (MindSpore,
GridSampler2D: pictures).
"""

from __future__ import annotations

import numpy as np

from ...base.checks import choice, flag
from ...ops.machine.operand_checks import floats
from ...ops.machine.registry import case, gradient, op
from ...ops.spellings import function


def _check_grid(operands, **_):
    x, grid = (each.shape for each in operands)
    if len(x) != 4 or 0 in x or len(grid) != 4 or grid[-1:] != (2,) or x[0] != grid[0]:
        return f"a tensor of shape {x} and a grid of shape {grid}", "(n, c, h, w) and (n, i, j, 2)"
    return floats(operands[0]) or floats(operands[1], "grid")


def _places(grid, shape, padding_mode, align_corners):
    """Columns and rows of the places, in elements, and how fast they change with the grid: two pairs of (n, i, j)."""
    made = []
    for at, size in ((0, shape[3]), (1, shape[2])):
        given, speed = np.asarray(grid[..., at], np.float64), (size - 1) / 2 if align_corners else size / 2
        places = (given + 1) * speed - (0 if align_corners else 0.5)
        speed = np.full(places.shape, speed)
        if padding_mode == "reflection":
            low, span = (0, size - 1) if align_corners else (-0.5, size)
            turns, rest = np.divmod(np.abs(places - low), max(span, 1))
            back = turns % 2 == 1
            speed = speed * np.where(back, -1, 1) * np.where(places < low, -1, 1) * (span > 0)
            places = np.where(back, span - rest, rest) * (span > 0) + low
        if padding_mode != "zeros":
            speed = speed * ((places >= 0) & (places <= size - 1))
            places = np.clip(places, 0, size - 1)
        made.append((places, speed))
    return made


def _corners(x, grid, interpolation_mode, padding_mode, align_corners):
    """The elements that samples are made of: (key of x, weight, its slope along columns, along rows) for each."""
    (columns, across), (rows, down) = _places(grid, x, padding_mode, align_corners)
    pictures = np.arange(x[0])[:, None, None]
    near = interpolation_mode == "nearest"
    for far_row, far_column in ((0, 0),) if near else ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = (
            (np.rint(p) if near else np.floor(p) + far).astype(np.int64)
            for p, far in ((rows, far_row), (columns, far_column))
        )
        inside = (row >= 0) & (row < x[2]) & (column >= 0) & (column < x[3])
        key = (pictures, slice(None), np.clip(row, 0, x[2] - 1), np.clip(column, 0, x[3] - 1))
        if near:
            yield key, inside * 1.0, 0.0, 0.0
            continue
        by_row, by_column = 1 - np.abs(rows - row), 1 - np.abs(columns - column)
        slopes = (across * by_row * (2 * far_column - 1), down * by_column * (2 * far_row - 1))
        yield key, by_row * by_column * inside, *(slope * inside for slope in slopes)


@op(
    "nchw,nijz->ncij",
    name="GridSampler2D",
    attrs={
        "interpolation_mode": choice("bilinear", "nearest"),
        "padding_mode": choice("zeros", "border", "reflection"),
    },
    check=_check_grid,
    axes="ncij",
    whole="hwz",
    dtype=0,
    flops=lambda s: 16 * s.n * s.c * s.i * s.j,
    example=(
        case((4, 2, 5, 6), (4, 3, 2, 2), low=-1.3, high=1.3),
        case((2, 2, 4, 4), (2, 4, 2, 2), low=-1.7, high=1.7, padding_mode="border", align_corners=True),
        case((2, 4, 4, 3), (2, 2, 2, 2), low=-1.7, high=1.7, padding_mode="reflection"),
        case((2, 2, 4, 4), (2, 2, 4, 2), low=-1.2, high=1.2, interpolation_mode="nearest"),
    ),
)
def grid_sampler_2d(input_x, grid, *, interpolation_mode="bilinear", padding_mode="zeros", align_corners=False):
    """Pictures at places.  input_x: (n, c, h, w), grid: (n, i, j, 2), x and y from -1 to 1 -> (n, c, i, j).

    padding_mode   what lies outside: zeros, the nearest element, or the picture reflected at its border
    align_corners  -1 and 1 are the middles of the first and last elements, not their outer borders
    """
    made = np.zeros((*grid.shape[:3], input_x.shape[1]))
    for key, weight, _, _ in _corners(input_x.shape, grid, interpolation_mode, padding_mode, align_corners):
        made += input_x[key] * weight[..., None]
    return np.array(np.moveaxis(made, -1, 1), dtype=input_x.dtype, order="C")


@gradient(grid_sampler_2d)
def grid_sampler_2d_grad(g, grid, *, shape, interpolation_mode, padding_mode, align_corners):
    """Gradient of grid_sampler_2d for the pictures.  g: (n, c, i, j), grid: (n, i, j, 2) -> (n, c, h, w)."""
    grad, given = np.zeros(shape, g.dtype), np.moveaxis(g, 1, -1)
    for key, weight, _, _ in _corners(shape, grid, interpolation_mode, padding_mode, align_corners):
        np.add.at(grad, key, (given * weight[..., None]).astype(g.dtype))
    return grad


@gradient(grid_sampler_2d, "grid", shown="GridSampler2DGrad")
def grid_sampler_2d_grid_grad(g, input_x, grid, *, interpolation_mode, padding_mode, align_corners):
    """Gradient of grid_sampler_2d for the places.  g: (n, c, i, j), input_x: (n, c, h, w) -> (n, i, j, 2)."""
    grad, given = np.zeros(grid.shape), np.moveaxis(g, 1, -1)
    for key, _, *slopes in _corners(input_x.shape, grid, interpolation_mode, padding_mode, align_corners):
        along = (given * input_x[key]).sum(axis=-1)
        grad += np.stack([along * slope for slope in slopes], axis=-1)
    return grad.astype(g.dtype)


@function(mint="functional.grid_sample")
def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners: bool | None = False):
    """Pictures at places.  input: (n, c, h, w), grid: (n, i, j, 2) -> (n, c, i, j). See `grid_sampler_2d`.

    Form: mindspore.ops.grid_sample.
    """
    how = {"interpolation_mode": mode, "padding_mode": padding_mode}
    corners = (flag | None)("grid_sample", "align_corners", align_corners)
    return grid_sampler_2d(input, grid, **how, align_corners=bool(corners))
