"""Which source lines have met in calls that have a root: swapped calls are seen in them, as far as they can be.

The root of a broadcast often stands on a line of its own (`if comm.rank == 0: ... else: ...`), so lines that differ are
no fault yet. The others share a line. And a root's line meets the same line of theirs again and again:

    root    others
    8       11        the first time: nothing is known of these lines
    9       12
    8       12        both have met other lines, and never each other: the calls are in another order

A root that loops over one line while the others have a line for each call is not a fault: their lines meet no other
one. What cannot be seen is shown by a tag: equal tags are meant to meet, and others are not.

Where the first meetings cross (a later line of the root with an earlier one of the others, both new; or one line of
both meets another line on either side), the calls are probably swapped, and may be right: that is worth a warning.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

LINE = 1 << 31  # in the digest of an origin: it is a source line, no tag
KEPT_LINES = 1 << 14
_NUMBER = 0xFFFF  # the bits of the line's number; above them 15 bits of its file
_COMPARED = 256  # pairs; where more have met, they are no branches that somebody has written


def line_digest(origin: str) -> int:
    """32 bits of a source line "file:number", of which the number can be read; LINE is set.

    >>> line_digest("train.py:12") & 0xFFFF
    12
    """
    file, _, number = origin.rpartition(":")
    if not (number.isascii() and number.isdigit()):
        return LINE | (zlib.crc32(origin.encode()) & ~LINE)
    return LINE | (zlib.crc32(file.encode()) & 0x7FFF) << 16 | (int(number) & _NUMBER)


def crossing_text(crossing: tuple[tuple[int, int], tuple[int, int]], origin: str) -> str:
    """The warning of `Lines.crossing`.  origin: of one of its calls, "file:line" """
    (root, others), (root_before, others_before) = ((a & _NUMBER, b & _NUMBER) for a, b in crossing)
    where = origin.rpartition(":")[0]
    first = f"{where}: line {root_before} of the root has met line {others_before} of the others"
    told = f"{first}, and then line {root} met line {others}: the order of the two calls is crossed"
    return f"{told}. If they are meant so, or to be safe, name each call on all ranks: tag='weights'"


class Lines:
    """What one rank knows of the lines that have met in one group."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], int | None] = {}  # (line of the root, line of the others): position of it
        self._roots: set[int] = set()
        self._others: set[int] = set()
        self._crossing: tuple[tuple[int, int], tuple[int, int]] | None = None
        self._has_told = False

    def differing(self, origins: Sequence[int], root: int | None) -> tuple[int, int] | None:
        """Two members whose calls are not one call, or None.

        origins   per member a digest of its tag, or LINE and one of its line; 0: it gave none
        root      position of the root; None: lines are not compared
        """
        first = origins[0]
        if origins.count(first) == len(origins):
            if first & LINE and root is not None and (first, first) not in self._pairs:
                self._remember(first, first, root)
            return None
        tagged = [member for member, origin in enumerate(origins) if origin and not origin & LINE]
        for member in tagged:
            if origins[member] != origins[tagged[0]]:
                return tagged[0], member
        if root is None:
            return None
        others = [member for member, origin in enumerate(origins) if origin & LINE and member != root]
        for member in others:
            if origins[member] != origins[others[0]]:
                return others[0], member
        if not others or not origins[root] & LINE:
            return None
        line, theirs = origins[root], origins[others[0]]
        if (line, theirs) not in self._pairs:
            crossed = line != theirs and (theirs, line) in self._pairs
            if crossed or (line in self._roots and theirs in self._others):
                return root, others[0]
            self._crossing = self._crossing or self._crossed(line, theirs, root)
            self._remember(line, theirs, root)
        return None

    def crossing(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Two pairs (line of the root, of the others) that have met in crossed order, the later first: told once."""
        if self._crossing is None or self._has_told:
            return None
        self._has_told = True
        return self._crossing

    def _crossed(self, line: int, theirs: int, root: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """This pair and one with the same root, of which one line is before and one behind its own, in the same part of
        one file: where the root's calls stand in a function of their own, the order of functions says nothing.
        """
        if line in self._roots or theirs in self._others or len(self._pairs) > _COMPARED:
            return None
        for (known, their_known), its_root in self._pairs.items():
            if root != its_root or len({one & ~_NUMBER for one in (line, theirs, known, their_known)}) > 1:
                continue
            begin = max(min(line, known), min(theirs, their_known))
            end = min(max(line, known), max(theirs, their_known))
            shifted = line == their_known or theirs == known  # one side passes a line that the other has passed before
            if shifted or ((line - known) * (theirs - their_known) < 0 and begin < end):
                return (line, theirs), (known, their_known)
        return None

    def _remember(self, line: int, theirs: int, root: int | None) -> None:
        if len(self._pairs) >= KEPT_LINES:  # lines of cells that are run again and again
            self._pairs.clear()
            self._roots.clear()
            self._others.clear()
        self._pairs[line, theirs] = root
        self._roots.add(line)
        self._others.add(theirs)
