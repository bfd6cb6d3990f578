"""`Route`: which pieces of a tensor go from which rank to which, where each rank is sent just what it lacks.

Six ranks as (2, 3) hold the six elements of a vector in 2 parts (on 3 ranks each), and want them in 3 parts:

    >>> route = Route(TensorLayout((2, 3), (1,)), TensorLayout((2, 3), (0,)), (6,))
    >>> route.taken[1]                      # rank 1 needs [2:4]; it has [0:3], and rank 3 has [3:6]
    {1: (slice(0, 1, None),), 3: (slice(1, 2, None),)}
    >>> max(map(route.received, range(6)))  # gathering first would take 3
    2

What a rank needs and holds it keeps; the rest has to come, so no way needs less: `received` is the lower bound. A slice
that several ranks hold comes from each of them equally often, from the nearest first: ranks of one node have
consecutive numbers, so two ranks are the nearer, the smaller the aligned block of 2, 4, 8, ... ranks that holds both.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from .tensor_layout import Shape, TensorLayout

Box = tuple[slice, ...]  # a part of a tensor: an index for numpy
MIRROR = -1


@dataclass(frozen=True)
class Route:
    """From layout `src` to layout `dst` of a tensor of `shape`: layouts over the same ranks, nothing pending.

    shift    every rank takes what `dst` gives the one so many slices before it in a ring, or (MIRROR) its mirror image
    wrapped  only ranks take for which the ring begins anew between the other and them (True), or does not (False)
    """

    src: TensorLayout
    dst: TensorLayout
    shape: Shape
    shift: int = 0
    wrapped: bool | None = None

    @property
    def attr(self) -> tuple[Any, ...]:
        """The route in plain tuples, as an instruction and a request carry it; `route_of` turns them back."""
        attr = (self.src.device_matrix, self.src.tensor_map, self.dst.device_matrix, self.dst.tensor_map, self.shape)
        return (*attr, self.shift, self.wrapped) if self.shift else attr

    @cached_property
    def _slices(self) -> tuple[list[Box], list[Box]]:
        """Per rank where its old and where its new slice lies."""
        old, new = ([each.slice_index(self.shape, r) for r in range(each.device_num)] for each in (self.src, self.dst))
        ring = sorted(range(len(new)), key=lambda r: new[r][0].start) if self.shift > 0 else []
        places, nothing = [ring.index(r) - self.shift for r in range(len(ring))], (slice(0, 0),) * len(self.shape)
        turned = [new[ring[at]] if self.wrapped in (None, at < 0) else nothing for at in places]
        return old, turned or new[:: self.shift or 1]

    @cached_property
    def _boxes(self) -> list[dict[int, Box]]:
        """Per rank, from whom (itself included) it takes which part of the whole tensor."""
        old, new = self._slices
        part, boxes = self.src.slice_shape(self.shape), [dict[int, Box]() for _ in new]
        if 0 in self.shape:
            return boxes
        numbers = [self.src.slice_numbers(rank) for rank in range(len(old))]
        ranks: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}  # block: holders, ranks that ask for it
        for rank, block in enumerate(numbers):
            ranks.setdefault(block, ([], []))[0].append(rank)
        for rank, box in enumerate(new):
            crossed = (range(s.start // n, -(-s.stop // n)) for s, n in zip(box, part, strict=True))
            for block in itertools.product(*crossed):
                if block == numbers[rank]:
                    boxes[rank][rank] = _shared(box, old[rank])
                else:
                    ranks[block][1].append(rank)
        for holding, asking in ranks.values():
            left = dict.fromkeys(holding, -(-len(asking) // len(holding)))
            for rank in asking:
                giver = min((h for h, n in left.items() if n), key=lambda h: ((rank ^ h).bit_length(), h))
                left[giver] -= 1
                boxes[rank][giver] = _shared(new[rank], old[giver])
        return [dict(sorted(mine.items())) for mine in boxes]

    @cached_property
    def taken(self) -> list[dict[int, Box]]:
        """Per rank {who gives it a piece: where the piece lies in its new slice}; itself included, ascending."""
        pairs = zip(self._boxes, self._slices[1], strict=True)
        return [{g: _within(box, new) for g, box in mine.items()} for mine, new in pairs]

    @cached_property
    def given(self) -> list[dict[int, Box]]:
        """Per rank {who takes a piece of it: where the piece lies in its old slice}; itself included, ascending."""
        pieces: list[dict[int, Box]] = [{} for _ in self._boxes]
        for rank, mine in enumerate(self._boxes):
            for giver, box in mine.items():
                pieces[giver][rank] = _within(box, self._slices[0][giver])
        return pieces

    def received(self, rank: int) -> int:
        """Elements that `rank` is sent: those of its new slice that its old one has not."""
        return sum(box_size(box) for giver, box in self.taken[rank].items() if giver != rank)


@lru_cache(maxsize=1024)
def route_of(attr: tuple[Any, ...]) -> Route:
    """The route that `Route.attr` describes."""
    return Route(TensorLayout(*attr[:2]), TensorLayout(*attr[2:4]), *attr[4:])


def box_size(box: Box) -> int:
    """Elements in a part."""
    return math.prod(s.stop - s.start for s in box)


def _shared(one: Box, two: Box) -> Box:
    """The part that two parts share."""
    return tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, two, strict=True))


def _within(box: Box, outer: Box) -> Box:
    """Where a part lies in another that holds it."""
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, outer, strict=True))
