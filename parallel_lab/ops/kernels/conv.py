"""Convolution on arrays: numpy alone, fast enough to train with, small in memory.

    out[n, o, y, x] = sum over c, i, j of
        w[o, c, i, j] * x[n, c, y * stride + i * dilation - top, x * stride + j * dilation - left]

All arrays are N C H W, weights O (C / group) kh kw, pads (top, bottom, left, right). Elements outside the picture count
as zeros. Volumes, N C D H W, are convolved picture by picture, once per element of the kernel's depth.

Scheme ("columns of a kernel row"). A tile of samples is copied once per kernel *column*: cols[c, j, row, x] = x[c, row,
x * stride + offset j]. Every kernel row i is then one matrix product with a contiguous stretch of it, because moving
down one output row is moving by whole rows of the copy:

    out[o, (y, x)] += w_i[o, (c, j)] @ cols[(c, j), (row of i + y, x)]            three products for a 3 x 3 kernel

The usual im2col copies the picture kh * kw times and multiplies once; this copies kw times, which was 5 to 25 % faster
for 3 x 3 kernels, and needs a third of the memory. The copies live for one tile only (about `TILE_BYTES`): backward
makes them again. With a stride, rows are kept apart by their remainder (`_Columns.phases`). Small pictures (4 x 4) are
laid side by side, so that the product has enough columns to be fast.

The gradient for x is a convolution again: of the output's gradient with the weight turned around, one for each
remainder of the stride. Nothing is added into overlapping places (col2im), which numpy does slowly. One channel per
group (depthwise) runs the same way, as many small products; adding shifted pictures instead took 4 times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .threads import THREAD_FLOPS, batch_ranges, spread_over_threads, thread_count
from .windows import Extents, Pads, Pair, inside, output_size, taps

# Measured with 1 MiB of L2 cache (3x3, 3 to 512 channels, 4x4 to 32x32): flat from 0.3 to 2 MB, slower outside.
TILE_BYTES = 1 << 20
# Products with fewer columns than this run well below the speed of large ones; smaller pictures are laid side by side.
FEW_POSITIONS = 192
WIDE_POSITIONS = 1024


def conv_forward(
    x: np.ndarray, w: np.ndarray, stride: Extents, dilation: Extents, pads: Pads, group: int = 1
) -> np.ndarray:
    """The convolution.  x: (n, c, h, w), w: (o, c / group, kh, kw) -> (n, o, oh, ow); or (n, c, d, h, w) and so on."""
    kernel = w.shape[2:]
    both = zip(x.shape[2:], kernel, stride, dilation, pads[::2], pads[1::2], strict=True)
    sizes = [output_size(*of_one_dim) for of_one_dim in both]
    out = np.empty((len(x), len(w), *sizes), np.result_type(x, w))
    if len(sizes) > 2:
        total = np.zeros(out.shape, _compute_dtype(out.dtype))
        for k, windows, elements in taps(kernel[0], stride[0], dilation[0], pads[0], x.shape[2], sizes[0]):
            planes = conv_forward(_pictures(x[:, :, elements]), w[:, :, k], stride[1:], dilation[1:], pads[2:], group)
            total[:, :, windows] += _volumes(planes, len(x))
        return total.astype(out.dtype, copy=False)
    rows, cols = (_forward_taps(kernel[d], dilation[d], pads[2 * d]) for d in (0, 1))
    _correlate(x, w, rows, cols, stride, group, out)
    return out


def conv_input_grad(
    g: np.ndarray, w: np.ndarray, size: Extents, stride: Extents, dilation: Extents, pads: Pads, group: int = 1
) -> np.ndarray:
    """Gradient for x.  g: (n, o, oh, ow), w: (o, c / group, kh, kw), size: (h, w) of x -> (n, c, h, w); or volumes."""
    if len(size) > 2:
        dtype = np.result_type(g, w)
        total = np.zeros((len(g), w.shape[1] * group, *size), _compute_dtype(dtype))
        for k, windows, elements in taps(w.shape[2], stride[0], dilation[0], pads[0], size[0], g.shape[2]):
            rest = (size[1:], stride[1:], dilation[1:], pads[2:], group)
            planes = conv_input_grad(_pictures(g[:, :, windows]), w[:, :, k], *rest)
            total[:, :, elements] += _volumes(planes, len(g))
        return total.astype(dtype, copy=False)
    turned = w.reshape(group, -1, *w.shape[1:]).swapaxes(1, 2)
    turned = turned.reshape(-1, *turned.shape[2:])  # (c, o / group, kh, kw)
    grad = np.empty((len(g), len(turned), *size), np.result_type(g, w))
    for top in range(stride[0]):
        for left in range(stride[1]):
            part = grad[:, :, top :: stride[0], left :: stride[1]]
            rows, from_rows = _backward_taps(w.shape[2], stride[0], dilation[0], pads[0], top)
            cols, from_cols = _backward_taps(w.shape[3], stride[1], dilation[1], pads[2], left)
            if rows and cols:
                some = turned if (len(rows), len(cols)) == w.shape[2:] else turned[:, :, rows][..., cols]
                _correlate(g, some, from_rows, from_cols, (1, 1), group, part)
            else:
                part[...] = 0  # no output element reads these (1x1 kernels with a stride)
    return grad


def conv_weight_grad(
    g: np.ndarray, x: np.ndarray, kernel: Extents, stride: Extents, dilation: Extents, pads: Pads, group: int = 1
) -> np.ndarray:
    """Gradient for w.  g: (n, o, oh, ow), x: (n, c, h, w), kernel: (kh, kw) -> (o, c / group, kh, kw); or volumes."""
    if len(kernel) > 2:
        total = np.zeros((g.shape[1], x.shape[1] // group, *kernel), np.result_type(g, x))
        for k, windows, elements in taps(kernel[0], stride[0], dilation[0], pads[0], x.shape[2], g.shape[2]):
            both = _pictures(g[:, :, windows]), _pictures(x[:, :, elements])
            total[:, :, k] = conv_weight_grad(*both, kernel[1:], stride[1:], dilation[1:], pads[2:], group)
        return total
    rows, cols = (_forward_taps(kernel[d], dilation[d], pads[2 * d]) for d in (0, 1))
    shape = (g.shape[1], x.shape[1] // group, *kernel)
    dtype = np.result_type(g, x)
    if not g.size or not x.size:
        return np.zeros(shape, dtype)
    geometry = _Geometry(rows, cols, stride, g.shape[2:], group, x.shape[1:], _compute_dtype(dtype))
    threads = thread_count() if 2 * g.size * geometry.depth * len(rows) >= THREAD_FLOPS else 1
    tile, _ = geometry.tile(len(x), threads, side_by_side=True)
    parts = batch_ranges(len(x), tile, threads)
    # one array per thread: they are added in order, so the result does not depend on which thread was faster
    sums = [np.zeros((len(rows), group, shape[0] // group, geometry.depth), geometry.dtype) for _ in parts]

    def work(number: int) -> None:
        total = sums[number]
        for start, columns in _tiles(geometry, parts[number], tile, side_by_side=True):
            stop = start + columns.samples
            columns.fill(x[start:stop])
            rows_of_g = columns.like_result(g[start:stop])
            for i in range(len(rows)):
                matrix = columns.of_row(i) if columns.side_by_side else columns.of_row(i)[0]
                total[i] += rows_of_g @ matrix.swapaxes(-1, -2)

    spread_over_threads(work, len(parts))
    for other in sums[1:]:
        sums[0] += other
    grad = sums[0].reshape(kernel[0], shape[0], shape[1], kernel[1]).transpose(1, 2, 0, 3)
    return np.array(grad, dtype, order="C")


def _pictures(volumes: np.ndarray) -> np.ndarray:
    """(n, c, d, ...) -> (n d, c, ...)."""
    by_depth = np.ascontiguousarray(np.moveaxis(volumes, 2, 1))
    return by_depth.reshape(-1, *by_depth.shape[2:])


def _volumes(pictures: np.ndarray, samples: int) -> np.ndarray:
    """(n d, c, ...) -> (n, c, d, ...)."""
    return np.moveaxis(pictures.reshape(samples, -1, *pictures.shape[1:]), 1, 2)


# ---- which input element a kernel element reads ----


def _forward_taps(kernel: int, dilation: int, before: int) -> tuple[int, ...]:
    """Per kernel element the offset: output y reads input y * stride + offset."""
    return tuple(k * dilation - before for k in range(kernel))


def _backward_taps(
    kernel: int, stride: int, dilation: int, before: int, first: int
) -> tuple[list[int], tuple[int, ...]]:
    """Kernel elements that reached the inputs first, first + stride, ..., and from which output (number + offset)."""
    steps = [(k, *divmod(first + before - k * dilation, stride)) for k in range(kernel)]
    reached = [(k, whole) for k, whole, rest in steps if rest == 0]
    return [k for k, _ in reached], tuple(offset for _, offset in reached)


def _compute_dtype(dtype: np.dtype) -> np.dtype:
    """float16 is multiplied and summed in float32, as matrix units do (and numpy has no fast product of float16)."""
    return np.dtype(np.float32) if dtype == np.float16 else np.dtype(dtype)


# ---- columns of a tile ----


@dataclass(frozen=True)
class _Geometry:
    """One correlation, apart from its data: output (y, x) reads input (y * step + rows[i], x * step + cols[j])."""

    rows: tuple[int, ...]
    cols: tuple[int, ...]
    step: Pair
    out_size: Pair
    group: int
    picture: tuple[int, int, int]  # channels, height, width of x
    dtype: np.dtype

    @property
    def depth(self) -> int:
        """Rows of the columns matrix of one group: channels per group times kernel columns."""
        return self.picture[0] // self.group * len(self.cols)

    @cached_property
    def phases(self) -> dict[int, Pair]:
        """{remainder: (first, count)}: the rows (first + r) * step + remainder that some kernel row reads."""
        phases: dict[int, Pair] = {}
        for remainder in sorted({a % self.step[0] for a in self.rows}):
            starts = [a // self.step[0] for a in self.rows if a % self.step[0] == remainder]
            phases[remainder] = (min(starts), max(starts) - min(starts) + self.out_size[0])
        return phases

    def tile(self, samples: int, threads: int, side_by_side: bool) -> tuple[int, bool]:
        """Equal tiles for all threads: (samples per tile, whether pictures lie side by side in one matrix)."""
        positions = self.out_size[0] * self.out_size[1]
        rows = sum(count for _, count in self.phases.values())
        one = self.depth * self.group * self.out_size[1] * rows * self.dtype.itemsize
        side_by_side = side_by_side or positions < FEW_POSITIONS
        limit = min(WIDE_POSITIONS // positions, 4 * TILE_BYTES // one) if side_by_side else TILE_BYTES // one
        count = -(-samples // max(1, limit))
        count = min(samples, -(-count // threads) * threads)
        return -(-samples // count), side_by_side


class _Columns:
    """The columns matrices of a tile, one per phase; made once, filled for each tile.

    side by side  (c, j, row, sample, x): one matrix for all samples
    otherwise     (sample, c, j, row, x): one matrix per sample, whose product is laid out as the result is
    """

    def __init__(self, geometry: _Geometry, samples: int, side_by_side: bool) -> None:
        self.geometry, self.samples, self.side_by_side = geometry, samples, side_by_side and samples > 1
        channels, _, width = geometry.picture[0], *geometry.picture[1:]
        out_width, taps = geometry.out_size[1], len(geometry.cols)
        self.parts: dict[int, np.ndarray] = {}
        # A kernel of one column without stride or padding: the picture itself is its columns.
        only_rows = geometry.cols == (0,) and geometry.step == (1, 1) and out_width == width and not self.side_by_side
        first, count = geometry.phases[0] if only_rows else (1, 0)
        self.as_it_is = only_rows and first >= 0 and first + count <= geometry.picture[1]
        self.given: np.ndarray | None = None
        if self.as_it_is:
            return
        for remainder, (_, count) in geometry.phases.items():
            # zeros: what lies outside the picture is never written
            if self.side_by_side:
                columns = np.zeros((channels, taps, count, samples, out_width), geometry.dtype)
                self.parts[remainder] = columns.transpose(3, 0, 1, 2, 4)
            else:
                self.parts[remainder] = np.zeros((samples, channels, taps, count, out_width), geometry.dtype)

    def fill(self, x: np.ndarray) -> None:
        """Copy the tile's pictures."""
        if self.as_it_is:
            self.given = np.ascontiguousarray(x, self.geometry.dtype)
            return
        (step, step_x), (height, width) = self.geometry.step, self.geometry.picture[1:]
        for remainder, (first, count) in self.geometry.phases.items():
            offset = first * step + remainder
            top, bottom = inside(offset, step, height, count)
            from_rows = slice(top * step + offset, max(0, (bottom - 1) * step + offset + 1), step)
            for j, b in enumerate(self.geometry.cols):
                left, right = inside(b, step_x, width, self.geometry.out_size[1])
                if top < bottom and left < right:
                    from_cols = slice(left * step_x + b, (right - 1) * step_x + b + 1, step_x)
                    self.parts[remainder][:, :, j, top:bottom, left:right] = x[:, :, from_rows, from_cols]

    def of_row(self, i: int) -> np.ndarray:
        """Columns matrix of kernel row i: (group, depth, positions), or (sample, group, depth, positions)."""
        geometry = self.geometry
        (height, width), step = geometry.out_size, geometry.step[0]
        remainder = geometry.rows[i] % step
        row = geometry.rows[i] // step
        if self.as_it_is:
            pictures = self.given.reshape(self.samples, geometry.group, geometry.depth, -1)
            return pictures[..., row * width : (row + height) * width]
        row -= geometry.phases[remainder][0]
        if self.side_by_side:
            matrix = self.parts[remainder].transpose(1, 2, 3, 0, 4).reshape(geometry.group, geometry.depth, -1)
            width *= self.samples
        else:
            matrix = self.parts[remainder].reshape(self.samples, geometry.group, geometry.depth, -1)
        return matrix[..., row * width : (row + height) * width]

    def like_result(self, g: np.ndarray) -> np.ndarray:
        """A tile of a gradient in the order of the products: ([samples,] group, channels, positions)."""
        if self.side_by_side:
            rows = np.array(g.transpose(1, 2, 0, 3), self.geometry.dtype, order="C")
            return rows.reshape(self.geometry.group, -1, g[:, 0].size)
        shape = (-1, self.geometry.group, g.shape[1] // self.geometry.group, g[0, 0].size)
        return np.ascontiguousarray(g, self.geometry.dtype).reshape(shape)[0]


def _tiles(geometry: _Geometry, samples: range, tile: int, side_by_side: bool) -> Iterator[tuple[int, _Columns]]:
    """(first sample, columns to fill) for every tile; equal tiles share their columns."""
    columns = None
    for start in range(samples.start, samples.stop, tile):
        count = min(tile, samples.stop - start)
        if columns is None or columns.samples != count:
            columns = _Columns(geometry, count, side_by_side)
        yield start, columns


def _correlate(
    x: np.ndarray, w: np.ndarray, rows: tuple[int, ...], cols: tuple[int, ...], step: Pair, group: int, out: np.ndarray
) -> None:
    """out[n, o, y, x] = sum of w[o, c, i, j] x[n, c, y step + rows[i], x step + cols[j]].  w: (o, c / group, i, j)."""
    if not out.size:
        return
    if not x.size:
        out[...] = 0
        return
    geometry = _Geometry(rows, cols, step, out.shape[2:], group, x.shape[1:], _compute_dtype(out.dtype))
    threads = thread_count() if 2 * out.size * geometry.depth * len(rows) >= THREAD_FLOPS else 1
    tile, side_by_side = geometry.tile(len(x), threads, side_by_side=False)
    parts = batch_ranges(len(x), tile, threads)
    # a 1x1 kernel is its own matrix, also transposed; others are copied, kernel row by kernel row
    order = "K" if w.shape[2:] == (1, 1) else "C"
    of_rows = [np.asarray(w[:, :, i], geometry.dtype, order=order) for i in range(len(rows))]
    of_rows = [weights.reshape(group, -1, geometry.depth) for weights in of_rows]
    in_place = not side_by_side and out.flags.c_contiguous and out.dtype == geometry.dtype

    def work(number: int) -> None:
        total = more = None
        for start, columns in _tiles(geometry, parts[number], tile, side_by_side):
            samples = columns.samples
            part = out[start : start + samples]
            columns.fill(x[start : start + samples])
            lead = () if columns.side_by_side else (samples,)
            positions = part[:, 0].size if columns.side_by_side else part[0, 0].size
            shape = (*lead, group, len(w) // group, positions)
            if total is None or total.shape != shape:
                total = np.empty(shape, geometry.dtype)
                more = np.empty(shape, geometry.dtype) if len(rows) > 1 else None
            into = part.reshape(shape) if in_place else total
            np.matmul(of_rows[0], columns.of_row(0), out=into)
            for i in range(1, len(rows)):
                np.matmul(of_rows[i], columns.of_row(i), out=more)
                into += more
            if columns.side_by_side:
                part[...] = into.reshape(len(w), part.shape[2], samples, part.shape[3]).transpose(2, 0, 1, 3)
            elif not in_place:
                part[...] = into.reshape(part.shape)

    spread_over_threads(work, len(parts))
