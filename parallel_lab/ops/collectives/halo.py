"""Halos: what a rank needs of its neighbours when an operator slides a window along a split dim.

A convolution whose height is split reads rows that other ranks hold. Slice i is the elements [part * i, part * (i + 1))
of a dim; the operator needs the window [step * i + origin, + length). What lies outside the tensor counts as zeros, so
every rank runs the same instruction.

    12 rows on 3 ranks, kernel 3, padding 1: Halo(step=4, origin=-1, length=6, part=4, members=3)

    slice     0 1 2 3 | 4 5 6 7 | 8 9 a b
    window 0  . 0 1 2 3 4                      "." is zero
    window 1        3 4 5 6 7 8
    window 2              7 8 9 a b .

Two messages follow: `halo_exchange` (slices to windows) and its adjoint `halo_reduce` (windows to slices, overlaps
added). Windows reach no further than the neighbouring slices.
"""

from __future__ import annotations

from dataclasses import dataclass

HALOS = ("halo_exchange", "halo_reduce")
_ADJOINT = dict(zip(HALOS, reversed(HALOS), strict=True))  # what one takes, the other gives

Interval = tuple[int, int]


@dataclass(frozen=True)
class Halo:
    """The windows of one group along one dim, in elements.

    step, origin, length   window i is [step * i + origin, + length)
    part                   extent of one slice; the four are the attribute `window` of both messages
    members                how many slices there are
    """

    step: int
    origin: int
    length: int
    part: int
    members: int

    def window(self, i: int) -> Interval:
        """Where window i starts and ends, in elements of the whole dim; it may lie partly outside.

        >>> Halo(4, -1, 6, 4, 3).window(2)
        (7, 13)
        """
        start = self.step * i + self.origin
        return start, start + self.length

    def overlap(self, i: int, j: int) -> Interval:
        """The elements of the whole dim that are in window i and in slice j; empty where start == stop."""
        (start, stop), low, high = self.window(i), self.part * j, self.part * (j + 1)
        first = min(max(start, low), high)
        return first, max(first, min(stop, high))

    def given(self, kind: str, i: int, j: int) -> Interval:
        """The range, within member i's operand, of what member j needs of it.

        >>> Halo(4, -1, 6, 4, 3).given("halo_exchange", 1, 0), Halo(4, -1, 6, 4, 3).given("halo_reduce", 1, 0)
        ((0, 1), (0, 1))
        """
        start, stop = self.overlap(j, i) if kind == "halo_exchange" else self.overlap(i, j)
        base = self.part * i if kind == "halo_exchange" else self.window(i)[0]
        return start - base, stop - base

    def taken(self, kind: str, i: int, j: int) -> Interval:
        """The range, within member i's result, where the part that member j gives it lies.

        >>> Halo(4, -1, 6, 4, 3).taken("halo_exchange", 1, 0), Halo(4, -1, 6, 4, 3).taken("halo_reduce", 1, 2)
        ((0, 1), (3, 4))
        """
        return self.given(_ADJOINT[kind], i, j)

    def neighbours(self, i: int) -> tuple[int, ...]:
        """The members before and after member i."""
        return tuple(j for j in (i - 1, i + 1) if 0 <= j < self.members)

    def extents(self, kind: str) -> tuple[int, int]:
        """Extent of the dim in the operand and in the result."""
        return (self.part, self.length) if kind == "halo_exchange" else (self.length, self.part)

    def reach(self) -> Interval:
        """The most elements that any window takes of the slice before, and of the slice after its own.

        >>> Halo(4, -1, 6, 4, 3).reach()
        (1, 1)
        """

        def most(side: int) -> int:
            pairs = (self.overlap(i, i + side) for i in range(self.members) if 0 <= i + side < self.members)
            return max(stop - start for start, stop in pairs)

        return (most(-1), most(1)) if self.members > 1 else (0, 0)

    def fault(self) -> str:
        """Why these windows cannot be filled by neighbours, or "".

        >>> Halo(2, -3, 8, 2, 4).fault()
        'slice 0 needs the elements [0, 5), but it and its neighbours hold [0, 4)'
        """
        if min(self.step, self.length, self.part, self.members) < 1:
            numbers = f"step {self.step}, length {self.length}, part {self.part} and {self.members} slices"
            return f"{numbers} are not all at least 1"
        total = self.part * self.members
        for i in range(self.members):
            start, stop = max(0, self.window(i)[0]), min(total, self.window(i)[1])
            low, high = max(0, self.part * (i - 1)), min(total, self.part * (i + 2))
            if start < stop and (start < low or stop > high):
                return f"slice {i} needs the elements [{start}, {stop}), but it and its neighbours hold [{low}, {high})"
        return ""
