"""Attention of some queries to some keys, in tiles, with what merges it with attention to other keys.

    out, lse = attend(q, k1, v1, view1, scale)                 normalised by k1 alone; log of the sum of exponentials
    out, lse = attend(q, k2, v2, view2, scale, (out, lse))     by both: the same as attention to all at once

    q: (b, s, g, r, d), k: (b, t, g, d), v: (b, t, g, e), out: (b, s, g, r, e), lse: (b, s, g, r)
    b samples, g key heads that r query heads each read, s queries, t keys

Two results (o1, l1) and (o2, l2) merge to l = log(e^l1 + e^l2), o = e^(l1 - l) o1 + e^(l2 - l) o2 (Milakov and
Gimelshein 2018, Dao et al. 2022), here o1 + e^(l2 - l) (o2 - o1): only the share that is new is rounded. A row that
sees no key has lse -inf and out 0. Backward needs no merge: with the lse of all keys each block's weights
exp(score - lse) are right as they are, so a block adds its own part to the gradients (Liu et al. 2023).

Queries and keys may lie in any order: a `View` knows the position of each. Tiles that no query sees are skipped.
Results are float32, of float64 operands float64, and lse is float64 until all blocks are merged: where one key has
nearly all of the weight, what a block adds is less than the last digit of a float32, and a ring is many blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

TILE = 512  # queries, and keys, of a tile at most
SHORTEST = 16  # a run of consecutive positions shorter than this gets no tile of its own

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class View:
    """Which keys of a block its queries see.

    first, stop  (s,) per query: the positions that it sees, from first up to, and without, stop
    keys         (t,) position of each key;  queries: (s,) that of each query
    compute_all  compute hidden tiles, too, and throw them away
    drop         (weights of a tile, its rows, its columns) -> the weights after dropout; None: no dropout
    """

    first: Array
    stop: Array
    keys: Array
    queries: Array
    compute_all: bool = False
    drop: Callable[[Array, slice, slice], Array] | None = None

    def seen(self, rows: slice, columns: slice) -> Array | bool:
        """(rows, columns) bools of one tile; True or False where all are alike."""
        first, stop, keys = self.first[rows], self.stop[rows], self.keys[columns]
        if keys.max() < first.min() or keys.min() >= stop.max():
            return False
        if keys.min() >= first.max() and keys.max() < stop.min():
            return True
        found = (keys >= first[:, None]) & (keys < stop[:, None])
        return found if found.any() else False

    def tiles(self) -> Iterator[tuple[slice, list[tuple[slice, Array | bool]]]]:
        """Rows of queries, each with the columns of keys to compute, and what is seen of them."""
        for rows in _tiles(self.queries.tobytes()):
            every = ((columns, self.seen(rows, columns)) for columns in _tiles(self.keys.tobytes()))
            yield rows, [(columns, seen) for columns, seen in every if seen is not False or self.compute_all]


@lru_cache(maxsize=1024)
def _tiles(positions: bytes) -> tuple[slice, ...]:
    """Tiles of int64 positions: cut where a long run of consecutive ones ends, so that hidden halves can be skipped."""
    array = np.frombuffer(positions, np.int64)
    ends = [0, *(np.flatnonzero(np.diff(array) != 1) + 1).tolist(), len(array)]
    if len(array) < SHORTEST * (len(ends) - 1):
        ends = [0, len(array)]
    runs = pairwise(ends)
    return tuple(slice(i, min(i + TILE, end)) for start, end in runs for i in range(start, end, TILE))


def wide(*arrays: Array) -> np.dtype:
    """The dtype in which sums are made: float32, or float64 where an operand has it."""
    return np.result_type(np.float32, *arrays)


def _heads_first(x: Array, dtype: np.dtype) -> Array:
    """(b, s, g, r, d) -> (b, g, r, s, d), (b, t, g, d) -> (b, g, t, d), a view."""
    return np.moveaxis(x, 1, -2).astype(dtype, copy=False)


def _scores(q: Array, k: Array, scale: float, seen: Array | bool) -> Array:
    """(b, g, r, rows, columns), -inf where a key is hidden.  q: (b, g, r, rows, d), k: (b, g, columns, d)."""
    scores = np.matmul(q * q.dtype.type(scale), k[:, :, None].swapaxes(-1, -2))
    if seen is False:
        scores[...] = -np.inf
    elif seen is not True:
        np.copyto(scores, -np.inf, where=~seen)
    return scores


def attend(
    q: Array,
    k: Array,
    v: Array,
    view: View,
    scale: float,
    state: tuple[Array, Array] | None = None,
    *,
    over: bool = False,
) -> tuple[Array, Array]:
    """(out, lse) of attention to these keys and, with `state`, to those that have made it; over: in its memory."""
    dtype = wide(q, k, v)
    b, s, g, r, _ = q.shape
    if state is None:
        out, lse = np.zeros((b, s, g, r, v.shape[3]), dtype), np.full((b, s, g, r), -np.inf)
    else:
        out, lse = state if over else (np.array(state[0], dtype), np.array(state[1], np.float64))
    q, k, v = (_heads_first(x, dtype) for x in (q, k, v))
    outs, lses = np.moveaxis(out, 1, -2), np.moveaxis(lse, 1, -1)
    for rows, tiles in view.tiles():
        most = np.full(lses[..., rows].shape, -np.inf, dtype)
        total, sums = np.zeros_like(outs[..., rows, :]), np.zeros_like(most)
        for columns, seen in tiles:
            weights = _scores(q[..., rows, :], k[..., columns, :], scale, seen)
            larger = np.maximum(most, weights.max(axis=-1))
            base = np.where(larger > -np.inf, larger, dtype.type(0))  # of a row that has seen no key: e^-inf, not NaN
            weights -= base[..., None]
            np.exp(weights, out=weights)
            decay = np.exp(most - base)
            sums = sums * decay + weights.sum(axis=-1)
            if view.drop is not None:
                weights = view.drop(weights, rows, columns)
            total = total * decay[..., None] + np.matmul(weights, v[:, :, None, columns])
            most = larger
        total /= np.where(sums > 0, sums, dtype.type(1))[..., None]
        with np.errstate(divide="ignore"):
            new = most + np.log(sums, dtype=np.float64)
        lses[..., rows], share = merge(lses[..., rows], new)
        outs[..., rows, :] += (total - outs[..., rows, :]) * share.astype(dtype)[..., None]
    return out, lse


def merge(lse: Array, new: Array) -> tuple[Array, Array]:
    """(lse of both, the share of the new one): 0 where neither has seen a key.  All alike."""
    both = np.logaddexp(lse, new)
    return both, np.exp(new - np.where(both > -np.inf, both, 0))


def attend_back(
    g: Array,
    inner: Array,
    lse: Array,
    q: Array,
    k: Array,
    v: Array,
    view: View,
    scale: float,
    of_q: Array | None = None,
    *,
    over: bool = False,
) -> tuple[Array, Array, Array]:
    """The gradients of queries, keys and values that these keys and queries give each other.

    g      gradient of out;  inner: (b, s, g, r), the sum over columns of g * out;  lse: of all keys, not of these
    of_q   what other keys have given the queries, to which these add; over: in its memory

    weights = exp(score - lse), dv = weights' g, ds = weights * (g v' - inner), dq = scale ds k, dk = scale ds' q
    """
    dtype = wide(q, k, v)
    grads = [np.zeros(x.shape, dtype) for x in (k, v)]
    grads.insert(0, np.zeros(q.shape, dtype) if of_q is None else of_q if over else np.array(of_q, dtype))
    to_q, to_k, to_v = (np.moveaxis(x, 1, -2) for x in grads)
    q, k, v, g = (_heads_first(x, dtype) for x in (q, k, v, g))
    inners, lses = (np.moveaxis(x.astype(dtype, copy=False), 1, -1)[..., None] for x in (inner, lse))
    lses = np.where(lses > -np.inf, lses, np.inf)  # a row that sees no key has weights 0
    factor = dtype.type(scale)
    for rows, tiles in view.tiles():
        queries, to_out = q[..., rows, :], g[..., rows, :]
        for columns, seen in tiles:
            weights = _scores(queries, k[..., columns, :], scale, seen)
            weights -= lses[..., rows, :]
            np.exp(weights, out=weights)
            kept = weights if view.drop is None else view.drop(weights, rows, columns)
            to_v[..., columns, :] += np.matmul(kept.swapaxes(-1, -2), to_out).sum(axis=2)
            grad = np.matmul(to_out, v[:, :, None, columns].swapaxes(-1, -2))
            grad = grad if view.drop is None else view.drop(grad, rows, columns)
            grad -= inners[..., rows, :]
            grad *= weights
            grad *= factor
            to_q[..., rows, :] += np.matmul(grad, k[:, :, None, columns])
            to_k[..., columns, :] += np.matmul(grad.swapaxes(-1, -2), queries).sum(axis=2)
    return grads[0], grads[1], grads[2]
