"""Arrays as bytes: pieces of a dim as flat ranges, and dtypes as text.

Collectives move flat ranges [a:b] of a value, so that any size passes through a buffer of fixed size. A piece of a
value along a dim is not flat in memory; as a 2-D view (rows before the dim, contiguous run from the dim on) its flat
range is a part of a row, whole rows, a part of a row.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator

import numpy as np

from ...base.dtypes import BFLOAT16, is_bfloat16, load_bfloat16
from ...base.errors import ShapeError

TURN_BYTES = 2 << 20  # several ranks' cores together have caches for this and for bytes written meanwhile


def positive_dim(dim: int, ndim: int, what: str) -> int:
    """`dim` counted from the front. Raises ShapeError when a value of `ndim` dims has no such dim."""
    if not -ndim <= dim < ndim:
        allowed = f"{-ndim} to {ndim - 1}" if ndim else "A value with dims"
        raise ShapeError(f"dim {dim} of a value with {ndim} dims", where=what, allowed=allowed)
    return dim % ndim


def as_pieces(value: np.ndarray, dim: int, parts: int, what: str) -> np.ndarray:
    """C-contiguous array as (rows, parts, run): [:, i, :] is piece i along `dim`. ShapeError: not divisible."""
    size = value.shape[dim]
    if size % parts:
        text = f"dim {dim} of size {size} cannot be split into {parts} equal parts"
        raise ShapeError(text, where=what, hint="Pad the value, or use another dim")
    return value.reshape(math.prod(value.shape[:dim]), parts, (size // parts) * math.prod(value.shape[dim + 1 :]))


def _parts(piece: np.ndarray, start: int, stop: int, flat: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The flat range [start:stop] of a view in pairs: a part of the view, and the part of `flat` for it."""
    if stop - start == piece.size:
        yield piece, flat[: piece.size].reshape(piece.shape)
        return
    run, at = math.prod(piece.shape[1:]), start
    while at < stop:
        row, inside = divmod(at, run)
        rows = 1 if inside else max((stop - at) // run, 1)
        end = min(stop, (row + rows) * run)
        if inside or end - at < run:
            yield from _parts(piece[row], inside, inside + end - at, flat[at - start :])
        else:
            part = piece[row : row + rows]
            yield part, flat[at - start : at - start + part.size].reshape(part.shape)
        at = end


def copy_in_turns(target: np.ndarray, source: np.ndarray, pause: Callable[[], None]) -> None:
    """target[...] = source, of the same shape, while the other ranks copy as much: with a pause after every TURN_BYTES,
    so that those of one core come forward together, and what one has read is still in the cache when another wants it.
    """
    if source.nbytes < TURN_BYTES:
        target[...] = source
    elif not (source.flags.c_contiguous and target.flags.c_contiguous):
        target[...] = source
        pause()
    else:
        flat, given, step = target.reshape(-1), source.reshape(-1), max(TURN_BYTES // source.itemsize, 1)
        for start in range(0, given.size, step):
            flat[start : start + step] = given[start : start + step]
            pause()


def copy_out(piece: np.ndarray, start: int, stop: int, flat: np.ndarray) -> None:
    """flat[:stop - start] = the flat range [start:stop] of a view of any shape; nothing if it is empty."""
    for part, place in _parts(piece, start, stop, flat):
        place[...] = part


def copy_in(piece: np.ndarray, start: int, stop: int, flat: np.ndarray) -> None:
    """The flat range [start:stop] of a view of any shape = flat[:stop - start]; nothing if it is empty."""
    for part, place in _parts(piece, start, stop, flat):
        part[...] = place


def blocks(shape: tuple[int, int], itemsize: int, size_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Index pairs that split a (rows, run) array into blocks of at most `size_bytes`, each a flat range of it."""
    rows, run = shape
    if not rows * run:
        return
    columns = min(run, max(size_bytes // itemsize, 1))
    height = max(size_bytes // (itemsize * columns), 1) if columns == run else 1
    for row in range(0, rows, height):
        for column in range(0, run, columns):
            yield slice(row, min(row + height, rows)), slice(column, min(column + columns, run))


def dtype_text(dtype: np.dtype) -> str:
    """A dtype as a literal that `dtype_from_text` reads. Raises ShapeError for dtypes that hold objects."""
    if dtype.hasobject:
        what = f"values of dtype {dtype} are Python objects"
        raise ShapeError(what, allowed="Numbers, booleans and other dtypes with a fixed size")
    return BFLOAT16 if is_bfloat16(dtype) else repr(np.lib.format.dtype_to_descr(dtype))


def dtype_from_text(text: str) -> np.dtype:
    """Inverse of `dtype_text`."""
    return load_bfloat16() if text == BFLOAT16 else np.lib.format.descr_to_dtype(ast.literal_eval(text))
