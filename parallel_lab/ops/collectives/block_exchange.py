"""Blocks of different sizes: of halos (`halo.py`) and exchanges (`layout/route.py`), who hands whom which part.

    block_exchange("exchange", route.attr, 4).given[0]       {0: index into rank 0's value, 2: another}; itself included
    block_exchange("exchange_reduce", route.attr, 4)         the same the other way round: what was taken goes back

The reference answer, the costs and both ways of moving (shared memory, MPI) read this table. A piece is an index for
numpy, into the value of the one that gives it and into the reply of the one that takes it. Where pieces overlap in a
reply they are added, in group order, to zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ...layout.route import Box, Route, box_size, route_of
from .halo import HALOS, Halo

EXCHANGES = ("exchange", "exchange_reduce")
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

    how        the window of a halo, or the route of an exchange
    shape, dim of halos: a member's value, and its dim that windows slide along; without: of nothing but this dim
    """
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
