"""Which source lines have met in calls that have a root: swapped calls are seen in them, as far as they can be.

The root of a broadcast often stands on a line of its own (`if comm.rank == 0: ... else: ...`), so lines that differ are
no fault yet. The others share a line. And a root's line meets the same line of theirs again and again:

    root    others
    8       11        the first time: nothing is known of these lines
    9       12
    8       12        both have met other lines, and never each other: the calls are in another order

A root that loops over one line while the others have a line for each call is not a fault: their lines meet no other
one. What cannot be seen is shown by a tag: equal tags are meant to meet, and others are not.
"""

from __future__ import annotations

from collections.abc import Sequence

LINE = 1 << 31  # in the digest of an origin: it is a source line, no tag
KEPT_LINES = 1 << 14


class Lines:
    """What one rank knows of the lines that have met in one group."""

    def __init__(self) -> None:
        self._pairs: set[tuple[int, int]] = set()  # (line of the root, line of the others)
        self._roots: set[int] = set()
        self._others: set[int] = set()

    def differing(self, origins: Sequence[int], root: int | None) -> tuple[int, int] | None:
        """Two members whose calls are not one call, or None.

        origins   per member a digest of its tag, or LINE and one of its line; 0: it gave none
        root      position of the root; None: lines are not compared
        """
        first = origins[0]
        if origins.count(first) == len(origins):
            if first & LINE and root is not None and (first, first) not in self._pairs:
                self._remember(first, first)
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
            self._remember(line, theirs)
        return None

    def _remember(self, line: int, theirs: int) -> None:
        if len(self._pairs) >= KEPT_LINES:  # lines of cells that are run again and again
            for known in (self._pairs, self._roots, self._others):
                known.clear()
        self._pairs.add((line, theirs))
        self._roots.add(line)
        self._others.add(theirs)
