"""Blocks of different sizes: of halos (`halo.py`), exchanges (`layout/route.py`) and rows, who hands whom which part.

    block_exchange("exchange", route.attr, 4).given[0]       {0: index into rank 0's value, 2: another}; itself included
    block_exchange("exchange_reduce", route.attr, 4)         the same the other way round: what was taken goes back
    block_exchange("all_to_all_v", rows_route(6, 8, [[3, 1], [2, 4]]), 2)     rank 1 gives 2 rows, then keeps 4

The reference answer, the costs and both ways of moving (shared memory, MPI) read this table. A piece is an index for
numpy, into the value of the one that gives it and into the reply of the one that takes it. Where pieces overlap in a
reply they are added, in group order, to zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from ...layout.route import Box, Route, box_size, route_of
from .halo import HALOS, Halo

EXCHANGES = ("exchange", "exchange_reduce", "all_to_all_v")
BLOCK_EXCHANGES = (*HALOS, *EXCHANGES)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BlockExchange:
    """The pieces of one message in a group.

    operand, reply   shapes of a member's value and of its reply
    given, taken     per member {other member: piece}, ascending, itself included
    adds             whether pieces are added up, or else each is stored where nothing else is
    """

    operand: Shape
    reply: Shape
    given: Sequence[dict[int, Box]]
    taken: Sequence[dict[int, Box]]
    adds: bool

    def sent(self, i: int) -> tuple[int, ...]:
        """Elements of each message that member i sends; what is empty is not sent."""
        return tuple(size for j, box in self.given[i].items() if j != i and (size := box_size(box)))

    def received(self, i: int) -> tuple[int, ...]:
        """Elements of each message that member i receives."""
        return tuple(size for j, box in self.taken[i].items() if j != i and (size := box_size(box)))

    def takers(self, i: int) -> list[int]:
        """Those to whom member i gives a piece, without itself."""
        return [j for j in self.given[i] if j != i]

    @cached_property
    def traffic(self) -> frozenset[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(sent, received) of the members, each different pair once."""
        return frozenset((self.sent(i), self.received(i)) for i in range(len(self.given)))

    @cached_property
    def longest(self) -> int:
        """Elements of the longest message."""
        return max((size for sent, _ in self.traffic for size in sent), default=0)

    @cached_property
    def most_takers(self) -> int:
        """How many messages a member sends at most."""
        return max(len(self.takers(i)) for i in range(len(self.given)))

    def answer(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The replies, in memory of their own."""
        replies = [np.zeros(self.reply, values[0].dtype.newbyteorder("=")) for _ in values]
        for i, reply in enumerate(replies):
            for j, box in self.taken[i].items():
                self.put(reply[box], values[j][self.given[j][i]])
        return replies

    def put(self, place: np.ndarray, piece: np.ndarray) -> None:
        """Store a piece in its place within a reply, or add it there."""
        if self.adds:
            np.add(place, piece, out=place)
        else:
            place[...] = piece


@lru_cache(maxsize=1024)
def block_exchange(kind: str, how: tuple[Any, ...], n: int, shape: Shape | None = None, dim: int = 0) -> BlockExchange:
    """The pieces of a message in a group of n.

    how        the window of a halo, the route of an exchange, or that of rows, which lie in the last dim but one
    shape, dim of halos: a member's value, and its dim that windows slide along; without: of nothing but this dim
    """
    if kind == "all_to_all_v":
        before, after = (shape[:-2], shape[-1:]) if shape else ((), ())
        first, last = (tuple(slice(0, size) for size in sizes) for sizes in (before, after))

        def pieces(counts: Sequence[int]) -> dict[int, Box]:
            ends = enumerate(accumulate(counts))
            return {j: (*first, slice(end - counts[j], end), *last) for j, end in ends if counts[j]}

        sizes = ((*before, rows, *after) for rows in how[:2])
        return BlockExchange(*sizes, *(list(map(pieces, t)) for t in (how[3], zip(*how[3], strict=True))), adds=False)
    if kind in EXCHANGES:
        route: Route = route_of(how)
        old, new = (layout.slice_shape(route.shape) for layout in (route.src, route.dst))
        if kind == "exchange":
            return BlockExchange(old, new, route.given, route.taken, adds=False)
        return BlockExchange(new, old, route.taken, route.given, adds=True)
    halo = Halo(*how, members=n)
    before, after = halo.extents(kind)
    shape = shape or (before,)
    dim %= len(shape)

    def strip(interval: tuple[int, int]) -> Box:
        return tuple(slice(*interval) if d == dim else slice(0, size) for d, size in enumerate(shape))

    near = [sorted((*halo.neighbours(i), i)) for i in range(n)]
    given, taken = ([{j: strip(of(kind, i, j)) for j in near[i]} for i in range(n)] for of in (halo.given, halo.taken))
    reply = tuple(after if d == dim else size for d, size in enumerate(shape))
    return BlockExchange(tuple(shape), reply, given, taken, adds=kind == "halo_reduce")


def rows_route(rows_in: int, rows_out: int, splits: Any, back: bool = False) -> tuple[Any, ...]:
    """The `route` of an all_to_all_v. rows_in, rows_out: of a member's value and of its reply, the most that can be;
    splits: (n, n), rows that each gives each, packed in group order; back: whether it takes back what another brought.
    """
    return rows_in, rows_out, back, tuple(tuple(int(count) for count in row) for row in splits)


def rows_fit(route: tuple[Any, ...], n: int) -> bool:
    """Whether the counts of a route are n x n and no member gives or gets more rows than it has room for."""
    counts = np.array(route[3])
    room = counts.sum(axis=1).max() <= route[0] and counts.sum(axis=0).max() <= route[1]
    return counts.shape == (n, n) and counts.min() >= 0 and bool(room)


def row_splits(counts: np.ndarray, back: bool = False) -> np.ndarray:
    """Rows that each of n members gives each, from the rows of each for every expert.  counts: (n, e) -> (n, n)."""
    splits = counts.reshape(len(counts), len(counts), -1).sum(axis=-1)
    return splits.T if back else splits
