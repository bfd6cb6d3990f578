"""Dropout whose mask is a function of the element's place, not of who computes it.

Whether an element is kept depends on (key, step, global index of the element): a hash of the three, compared with the
probability. A rank evaluates it for its own slice, so the mask is the same bit for bit on one device and under every
strategy, in every step, and no mask is stored or sent: the gradient evaluates it again.

The hash is a counter-based generator as in Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2, 3"), with the
mixing of a 32-bit integer hash (multiply, xor with a shift; constants of C. Wellons' "lowbias32"), keyed twice:

    a, b = two words made from (key, step)
    v = index + a;  v ^= v >> 16;  v *= 0x7feb352d;  v ^= v >> 15;  v ^= b;  v *= 0x846ca68b;  v ^= v >> 16
    kept where v < (1 - p) 2^32

Indices count elements in row-major order, modulo 2^32: a tensor of more elements (16 GB of float32) would repeat its
mask.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ..base.checks import integer, probability
from .machine.operand_checks import floats
from .machine.registry import case, op
from .spellings import function

CHUNK = 1 << 14  # elements hashed at a time: the words stay in the cache (64 kB each)
_MULTIPLIERS = (np.uint32(0x7FEB352D), np.uint32(0x846CA68B))
_MASK64 = (1 << 64) - 1
KEY = integer(0, _MASK64)


@function()
def dropout_key(*parts: object) -> int:
    """A 64-bit key made from names and numbers: the same for equal parts, unrelated for different ones.

    >>> dropout_key(1, "blocks.0.dropout") == dropout_key(1, "blocks.1.dropout")
    False
    """
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _words(key: int, step: int) -> tuple[np.uint32, np.uint32]:
    """Two words in which every bit differs with probability 1/2 (splitmix64, Steele et al. 2014)."""
    z = (key + 0x9E3779B97F4A7C15 * (step + 1)) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    z ^= z >> 31
    return np.uint32(z & 0xFFFFFFFF), np.uint32(z >> 32)


def _row_starts(shape: tuple[int, ...], part: tuple[int, ...], offset: tuple[int, ...], dims: int) -> np.ndarray:
    """Indices modulo 2^32 of the first element of every row of a slice: `part` elements from `offset` on.

    dims  how many leading dims have indices of their own; elements that differ in the others alone share one
    """
    starts = np.zeros((), np.uint32)
    stride = 1
    for dim in reversed(range(len(shape))):
        if dim >= dims:
            continue
        if dim < len(shape) - 1:
            places = np.arange(part[dim], dtype=np.uint64) + np.uint64(offset[dim])
            along = (places * np.uint64(stride)).astype(np.uint32)
            starts = along.reshape(-1, *(1,) * starts.ndim) + starts
        stride *= shape[dim]
    return np.broadcast_to(starts.reshape(starts.shape + (1,) * (len(shape) - 1 - starts.ndim)), part[:-1]).reshape(-1)


def _hash(words: np.ndarray, scratch: np.ndarray, a: np.uint32, b: np.uint32) -> None:
    """Hash `words` in place; `scratch` has their shape."""
    np.add(words, a, out=words)
    np.right_shift(words, 16, out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, _MULTIPLIERS[0], out=words)
    np.right_shift(words, 15, out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.bitwise_xor(words, b, out=words)
    np.multiply(words, _MULTIPLIERS[1], out=words)
    np.right_shift(words, 16, out=scratch)
    np.bitwise_xor(words, scratch, out=words)


def hashed(part, parts, offset, key, step):
    """A word for every element of a slice: `part` elements from `offset` on, of a tensor that is split in `parts`.

    part: (n, ...) ints -> (n, ...) uint32, that of an element being a function of (key, step, its place in the whole)
    """
    shape = tuple(n * count for n, count in zip(part, parts or (1,) * len(part), strict=True))
    offsets = offset if isinstance(offset, tuple) else (offset,) * len(part)
    if not part:
        return hashed((1,), (1,), 0, key, step).reshape(())
    words = _row_starts(shape, part, offsets, len(part))[:, None] + np.arange(part[-1], dtype=np.uint32)
    words += np.uint32(offsets[-1] & 0xFFFFFFFF)
    _hash(words, np.empty_like(words), *_words(key, int(step)))
    return words.reshape(part)


def kept_at(places, step, p, key):
    """Whether elements are kept, by their places in the whole.  places: (...) uint32, modulo 2^32 -> (...) bool."""
    words = np.array(places)
    _hash(words, np.empty_like(words), *_words(key, int(step)))
    return words < round((1 - p) * 2**32)


def dropped(x, step, p, key, dims, parts, offset):
    """x with the mask applied, and scaled."""
    shape = tuple(n * count for n, count in zip(x.shape, parts or (1,) * x.ndim, strict=True))
    offsets = offset if isinstance(offset, tuple) else (offset,) * x.ndim if x.ndim == 1 or not offset else (offset,)
    dims = x.ndim if dims is None else dims
    if x.ndim == 0:
        return dropped(x.reshape(1), step, p, key, 1, (1,), 0).reshape(())
    a, b = _words(key, int(step))
    # an element is kept with probability limit / 2^32, which is 1 - p to 2^-32
    limit = round((1 - p) * 2**32)
    scale = np.asarray(1 / (1 - p), x.dtype)
    rows, width = x.reshape(-1, x.shape[-1]), x.shape[-1]
    starts = _row_starts(shape, x.shape, offsets, dims)
    last = dims == x.ndim
    columns = (
        np.arange(width, dtype=np.uint32) + np.uint32(offsets[-1] & 0xFFFFFFFF) if last else np.zeros(1, np.uint32)
    )
    out = np.empty_like(rows)
    step_rows = max(1, CHUNK // max(1, len(columns)))
    words = np.empty((step_rows, len(columns)), np.uint32)
    scratch = np.empty_like(words)
    for first in range(0, len(rows), step_rows):
        chunk = slice(first, first + step_rows)
        count = len(starts[chunk])
        np.add(starts[chunk, None], columns, out=words[:count])
        _hash(words[:count], scratch[:count], a, b)
        # the mask as 0 and 1 in x's dtype: multiplying bools converts them in small pieces, three times as slow
        kept = (words[:count] < limit if limit < 2**32 else np.ones((count, 1), bool)).view(np.uint8).astype(x.dtype)
        kept *= scale
        np.multiply(rows[chunk], kept, out=out[chunk])
    return out.reshape(x.shape)


def _check(operands, *, p, key, dims, parts):
    x, step = operands
    if step.shape or step.dtype.kind not in "iu":
        return f"step is {step.dtype} of shape {step.shape}", "One int: how many steps were taken before"
    if dims is not None and dims > len(x.shape):
        return f"dims={dims} for x of shape {x.shape}", "How many leading dims, or None for all"
    return floats(x)


@op(
    "...,->...",
    name="Dropout",
    attrs={"p": probability, "key": KEY, "dims": integer(1) | None},
    check=_check,
    strategy_labels=lambda signature: (signature.ins[0],),
    offset=lambda signature: signature.ins[0],
    localize=lambda attrs, parts: {**attrs, "parts": tuple(parts[c] for c in sorted(parts))},
    dtype=0,
    flops=12,
    example=(
        case((16, 8), (), ints={1: 50}, p=0.4, key=7),
        case((4, 8, 2), (), ints={1: 50}, p=0.5, key=8),
        case((4, 8, 2, 2), (), ints={1: 50}, p=0.5, key=9, dims=2),
        case((32,), (), ints={1: 50}, p=0.25, key=10),
    ),
)
def dropout_at(x, step, *, p=0.5, key=0, dims=None, parts=None, offset=0):
    """x with a share p of its elements set to 0 and the others divided by 1 - p.  x: (...), step: () int -> (...).

    step    number of the step: every step has a mask of its own
    key     64 bits that name this dropout (`dropout_key`)
    dims    how many leading dims have elements of their own; those that differ in the others alone are kept or dropped
            together (2: channels)
    parts   in how many slices each dim of the whole tensor is split, x being one of them; set by the compiler

    Any dim may be split; the mask is that of the whole tensor. The strategy has one tuple, for x.
    """
    return dropped(x, step, p, key, dims, parts, offset)


@dropout_at.vjp
def _(g, out, x, step, *, p, key, dims, parts):
    return dropout_at(g, step, p=p, key=key, dims=dims, parts=parts), None
