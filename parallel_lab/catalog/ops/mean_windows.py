"""Pooling on arrays: the mean of every window, and windows that fit the result's size. As `ops/kernels/pool.py`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from ...ops.kernels.pool import axis_taps, by_tiles, with_extent
from ...ops.kernels.windows import Pair, Windows


def _counted(kernel: int, stride: int, before: int, after: int, size: int, count: int, count_pads: bool) -> np.ndarray:
    """How many elements of each window along one axis lie inside the picture, padded or not.  -> (count,)"""
    start = np.arange(count) * stride - before
    low, high = (-before, size + after) if count_pads else (0, size)
    return np.minimum(start + kernel, high) - np.maximum(start, low)


def _divisor(window: Windows, count_pads: bool, dtype: np.dtype) -> np.ndarray:
    """What the sum of each window is divided by.  -> (oh, ow), or () if it is the same for all."""
    if not window.ceil and (count_pads or not any(window.pads)):
        return np.asarray(math.prod(window.kernel), dtype)
    counts = []
    for d, count in enumerate(window.out_size):
        size, kernel, stride, _, before, after = window.along(d)
        counts.append(_counted(kernel, stride, before, after, size, count, count_pads))
    return functools.reduce(np.multiply.outer, counts).astype(dtype)


def _sums(x: np.ndarray, axis: int, kernel: int, stride: int, before: int, count: int) -> np.ndarray:
    # float16 is summed in float32
    total = np.zeros(with_extent(x.shape, axis, count), np.result_type(x.dtype, np.float32))
    for windows, elements in axis_taps(axis, kernel, stride, before, x.shape[axis], count):
        total[windows] += x[elements]
    return total


def avg_pool_forward(x: np.ndarray, window: Windows, count_pads: bool, divisor: int = 0) -> np.ndarray:
    """The mean of every window.  x: (n, c, h, w) -> (n, c, oh, ow); or (n, c, d, h, w).

    count_pads  pads count, as zeros;  divisor: divide by this number instead of how many there are, unless it is 0
    """
    out = np.empty((*x.shape[:2], *window.out_size), x.dtype)
    by = divisor or _divisor(window, count_pads, np.result_type(x.dtype, np.float32))

    def work(tile: slice) -> None:
        total = x[tile]
        for d in reversed(range(len(window.size))):
            total = _sums(total, d - len(window.size), *_pass(window, d), window.out_size[d])
        np.divide(total, by, out=out[tile])

    by_tiles(work, x)
    return out


def _pass(window: Windows, d: int) -> tuple[int, int, int]:
    """Kernel, stride and padding before, along dim d."""
    return window.kernel[d], window.stride[d], window.pads[2 * d]


def _spread(g: np.ndarray, axis: int, kernel: int, stride: int, before: int, into: np.ndarray) -> None:
    """Add each window's g to all its elements."""
    for windows, elements in axis_taps(axis, kernel, stride, before, into.shape[axis], g.shape[axis]):
        into[elements] += g[windows]


def avg_pool_grad(g: np.ndarray, window: Windows, count_pads: bool, divisor: int = 0) -> np.ndarray:
    """Gradient of avg_pool_forward.  g: (n, c, oh, ow) -> (n, c, h, w); or volumes."""
    grad = np.zeros((*g.shape[:2], *window.size), g.dtype)
    by = divisor or _divisor(window, count_pads, np.result_type(g.dtype, np.float32))

    def work(tile: slice) -> None:
        dims, passed = len(window.size), g[tile] / by
        for d in range(dims):
            shape = (*grad[tile].shape[:2], *window.size[: d + 1], *window.out_size[d + 1 :])
            into = grad[tile] if d == dims - 1 else np.zeros(shape, g.dtype)
            _spread(passed, d - dims, *_pass(window, d), into)
            passed = into

    by_tiles(work, grad)
    return grad


# ---- windows that fit the result's size ----


def _windows(size: int, count: int) -> Iterator[slice]:
    """Window i of `count` over `size` elements: floor(i size / count) to ceil((i + 1) size / count)."""
    return (slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count))


def adaptive_avg(x: np.ndarray, out_size: Pair) -> np.ndarray:
    """The mean of each of oh x ow windows.  x: (n, c, h, w) -> (n, c, oh, ow)."""
    dtype = np.result_type(x, np.float16)  # float64 for whole numbers, as the mean of an array
    rows = np.empty((*x.shape[:2], out_size[0], x.shape[3]), dtype)
    for i, window in enumerate(_windows(x.shape[2], out_size[0])):
        x[:, :, window].mean(axis=2, out=rows[:, :, i])
    means = np.empty((*x.shape[:2], *out_size), dtype)
    for i, window in enumerate(_windows(x.shape[3], out_size[1])):
        rows[..., window].mean(axis=3, out=means[..., i])
    return means


def adaptive_avg_grad(g: np.ndarray, size: Pair) -> np.ndarray:
    """Gradient of adaptive_avg.  g: (n, c, oh, ow), size: (h, w) of x -> (n, c, h, w)."""
    rows = np.zeros((*g.shape[:3], size[1]), g.dtype)
    for i, w in enumerate(_windows(size[1], g.shape[3])):
        rows[..., w] += g[..., i : i + 1] / (w.stop - w.start)
    grad = np.zeros((*g.shape[:2], *size), g.dtype)
    for i, w in enumerate(_windows(size[0], g.shape[2])):
        grad[:, :, w] += rows[:, :, i : i + 1] / (w.stop - w.start)
    return grad


def adaptive_max(x: np.ndarray, out_size: Pair) -> np.ndarray:
    """The largest element of each of oh x ow windows.  x: (n, c, h, w) -> (n, c, oh, ow)."""
    cols = np.empty((*x.shape[:3], out_size[1]), x.dtype)
    for i, window in enumerate(_windows(x.shape[3], out_size[1])):
        x[..., window].max(axis=3, out=cols[..., i])
    largest = np.empty((*x.shape[:2], *out_size), x.dtype)
    for i, window in enumerate(_windows(x.shape[2], out_size[0])):
        cols[:, :, window].max(axis=2, out=largest[:, :, i])
    return largest


def adaptive_max_grad(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Gradient of adaptive_max: to the first largest of each window.  g: (n, c, oh, ow), x: (n, c, h, w) -> like x."""
    windows = list(_windows(x.shape[3], g.shape[3]))
    cols = np.stack([x[..., w].max(axis=3) for w in windows], axis=3)
    between, grad = np.zeros(cols.shape, g.dtype), np.zeros(x.shape, g.dtype)
    for i, w in enumerate(_windows(x.shape[2], g.shape[2])):
        _add_at_first_largest(between[:, :, w], cols[:, :, w], g[:, :, i : i + 1], 2)
    for i, w in enumerate(windows):
        _add_at_first_largest(grad[..., w], x[..., w], between[..., i : i + 1], 3)
    return grad


def _add_at_first_largest(into: np.ndarray, x: np.ndarray, g: np.ndarray, axis: int) -> None:
    place = np.expand_dims(x.argmax(axis=axis), axis)
    np.put_along_axis(into, place, np.take_along_axis(into, place, axis) + g, axis)
