"""The fewest points that surely find a bug: minimax over decision trees, exact for up to 16 suspects.

    tests = [Test(("probe", "w"), 1, ("equal", "equal", "0.25 times")), Test(("compare", 0, 1), 2, ("a", "b", "b"))]
    Solver(3, tests).par         3: the probe, and if it says "equal", the comparison

A test asks one question; what its answer leaves are the suspects that would have given it. The cost of a tree is that
of its longest way: V(S) = 0 for one suspect, else the least, over tests that split S, of the test's cost plus the
largest V of a part.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache

MOST = 16


@dataclass(frozen=True)
class Test:
    """A question.  name: what is asked;  cost: points;  answers: of each suspect, by number"""

    name: tuple[Hashable, ...]
    cost: int
    answers: tuple[Hashable, ...]

    def parts(self, suspects: Iterable[int]) -> dict[Hashable, frozenset[int]]:
        """{answer: those who would give it}."""
        found: dict[Hashable, set[int]] = {}
        for one in suspects:
            found.setdefault(self.answers[one], set()).add(one)
        return {answer: frozenset(some) for answer, some in found.items()}


def useful(tests: Iterable[Test], among: Iterable[int]) -> list[Test]:
    """The cheapest of tests that split these suspects alike, without those that a finer, no dearer one replaces."""
    among = sorted(among)
    alike: dict[tuple[int, ...], Test] = {}
    for test in sorted(tests, key=lambda t: t.cost):
        first: dict[Hashable, int] = {}
        alike.setdefault(tuple(first.setdefault(test.answers[n], len(first)) for n in among), test)
    kept: list[tuple[int, tuple[int, ...]]] = []
    for split, test in sorted(alike.items(), key=lambda pair: (pair[1].cost, -max(pair[0], default=0))):
        finer = (cost <= test.cost and _finer(other, split) for cost, other in kept)
        if max(split, default=0) > 0 and not any(finer):
            kept.append((test.cost, split))
    return [alike[split] for _, split in kept]


def _finer(split: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether suspects that one split leaves together are together in the other, too."""
    seen: dict[int, int] = {}
    return all(seen.setdefault(mine, its) == its for mine, its in zip(split, other, strict=True))


class Solver:
    """All tests on some suspects.

    among  the suspects to begin with; None: all

    The cost of a tree is a small whole number: whether one of a cost is there is asked for each cost in turn. Sets are
    bits of a number.
    """

    def __init__(self, count: int, tests: Iterable[Test], among: Iterable[int] | None = None) -> None:
        self.count, self.among = count, frozenset(range(count) if among is None else among)
        self.tests = useful(tests, self.among)
        self._parts = [tuple(map(_bits, test.parts(self.among).values())) for test in self.tests]
        self._first = lru_cache(maxsize=None)(self._first_within)

    def best(self, suspects: frozenset[int]) -> tuple[float, Test | None]:
        """(points in the worst case, the test to begin with); inf where nothing tells some of them apart."""
        left, points = _bits(suspects), 0
        if len(suspects) < 2:
            return 0, None
        if len({tuple(test.answers[one] for test in self.tests) for one in suspects}) < len(suspects):
            return math.inf, None
        while (first := self._first(left, points)) is None:
            points += 1
        return points, self.tests[first]

    def _first_within(self, left: int, points: int) -> int | None:
        """The number of a test that begins a tree of at most so many points; None: no tree does it."""
        count, ways = left.bit_count(), []
        for number, test in enumerate(self.tests):
            if test.cost <= points:
                parts = [part for every in self._parts[number] if (part := every & left)]
                largest = max(part.bit_count() for part in parts)
                if largest == 1:
                    return number
                if test.cost < points and largest < count:
                    ways.append((largest, number, parts))
        alike = set()
        for _, number, parts in sorted(ways):
            key = self.tests[number].cost, tuple(parts)
            if key in alike:
                continue
            alike.add(key)
            rest = points - self.tests[number].cost
            parts.sort(key=int.bit_count, reverse=True)
            if all(part & (part - 1) == 0 or self._first(part, rest) is not None for part in parts):
                return number
        return None

    @property
    def par(self) -> float:
        """Points that surely suffice."""
        return self.best(self.among)[0]


def _bits(suspects: Iterable[int]) -> int:
    return sum(1 << one for one in suspects)
