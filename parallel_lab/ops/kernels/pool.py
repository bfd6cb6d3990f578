"""Pooling on arrays: the largest element of every window of a picture or a volume (means: `catalog/ops/`).

All arrays are N C H W, pads (top, bottom, left, right), or N C D H W. A window of kh x kw is taken in two passes, first
along the width, then along the height: kw + kh steps for kh * kw elements. If several elements are largest, the first
one in row-major order takes the gradient, as in PyTorch: the pass along the height finds the first row, the pass along
the width the first element in it. Passes run on tiles of samples that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .threads import batch_ranges, spread_over_threads, thread_count
from .windows import Extents, Pads, taps

TILE_BYTES = 1 << 19  # an input tile; two or three arrays of its size are in use at once
THREAD_ELEMENTS = 1 << 20  # about 3 ms of work; starting a thread costs 0.1 ms


def axis_taps(axis: int, kernel: int, stride: int, before: int, size: int, count: int) -> Iterator[tuple[tuple, tuple]]:
    """Per kernel element of one axis (-1: width, -2: height): (windows that have it inside, their elements)."""
    rest = (slice(None),) * (-1 - axis)
    for _, windows, elements in taps(kernel, stride, 1, before, size, count):
        yield (..., windows, *rest), (..., elements, *rest)


def with_extent(shape: tuple[int, ...], axis: int, count: int) -> tuple[int, ...]:
    """The shape with `count` elements along an axis."""
    return (*shape[:axis], count, *shape[axis:][1:])


def _largest(x: np.ndarray, axis: int, kernel: int, stride: int, before: int, count: int) -> np.ndarray:
    """The largest element of every window along one axis; pads are smaller than the kernel."""
    taps = list(axis_taps(axis, kernel, stride, before, x.shape[axis], count))
    full = [elements for windows, elements in taps if windows[1] == slice(0, count)]
    if len(full) > 1:
        largest = np.maximum(x[full[0]], x[full[1]])
    else:
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        largest = np.full(with_extent(x.shape, axis, count), least, x.dtype)
    for windows, elements in taps:
        if elements not in full[:2] or len(full) == 1:
            np.maximum(largest[windows], x[elements], out=largest[windows])
    return largest


def _to_first_largest(
    g: np.ndarray,
    largest: np.ndarray,
    x: np.ndarray,
    axis: int,
    kernel: int,
    stride: int,
    before: int,
    into: np.ndarray,
) -> None:
    """Write into `into` (zeros, like x): each window's g at its first element that equals `largest`."""
    left = g.copy()  # what no element has taken yet
    overlap = kernel > stride
    taps = list(axis_taps(axis, kernel, stride, before, x.shape[axis], g.shape[axis]))
    for windows, elements in taps:
        if elements is taps[-1][1] and windows[1] == slice(0, g.shape[axis]):
            taken = left  # the last element of a window takes what is left
        else:
            taken = (x[elements] == largest[windows]).astype(g.dtype)
            taken *= left[windows]
            left[windows] -= taken
        if overlap:
            into[elements] += taken
        else:
            into[elements] = taken


def by_tiles(work: Callable[[slice], None], x: np.ndarray) -> None:
    """Call work(samples) for tiles of the batch, in as many threads as the matrix library uses."""
    if not x.size:
        return
    tile = max(1, TILE_BYTES // x[0].nbytes)
    parts = batch_ranges(len(x), tile, thread_count() if x.size >= THREAD_ELEMENTS else 1)

    def run(number: int) -> None:
        for start in range(parts[number].start, parts[number].stop, tile):
            work(slice(start, min(start + tile, parts[number].stop)))

    spread_over_threads(run, len(parts))


def _passes(
    x: np.ndarray, kernel: Extents, stride: Extents, pads: Pads, out_size: Extents, last: int = 0
) -> list[np.ndarray]:
    """x, and what each pass makes of the one before: along the last dim first, until along dim `last`."""
    passes = [x]
    for d in reversed(range(last, len(kernel))):
        passes.append(_largest(passes[-1], d - len(kernel), kernel[d], stride[d], pads[2 * d], out_size[d]))
    return passes


def max_pool_forward(x: np.ndarray, kernel: Extents, stride: Extents, pads: Pads, out_size: Extents) -> np.ndarray:
    """The largest element of every window.  x: (n, c, h, w) -> (n, c, *out_size); or (n, c, d, h, w)."""
    out = np.empty((*x.shape[:2], *out_size), x.dtype)

    def work(tile: slice) -> None:
        out[tile] = _passes(x[tile], kernel, stride, pads, out_size)[-1]

    by_tiles(work, x)
    return out


def max_pool_grad(
    g: np.ndarray, out: np.ndarray, x: np.ndarray, kernel: Extents, stride: Extents, pads: Pads
) -> np.ndarray:
    """Gradient of max_pool_forward.  g, out: (n, c, oh, ow), x: (n, c, h, w) -> (n, c, h, w); or volumes."""
    grad = np.zeros(x.shape, g.dtype)

    def work(tile: slice) -> None:
        dims, passed = len(kernel), g[tile]
        values = [*_passes(x[tile], kernel, stride, pads, out.shape[2:], last=1), out[tile]]
        for d, largest, read in zip(range(dims), values[:0:-1], values[-2::-1], strict=True):
            into = grad[tile] if d == dims - 1 else np.zeros(read.shape, g.dtype)
            _to_first_largest(passed, largest, read, d - dims, kernel[d], stride[d], pads[2 * d], into)
            passed = into

    by_tiles(work, x)
    return grad
