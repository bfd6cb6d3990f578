"""all_reduce and reduce of small values: one barrier.

Everybody writes its value to its buffer and comes to the barrier. The last one to come adds all of them in group order,
and announces where the sum lies; the others read it there. Two that come at the same moment may both find that
everybody is there: both add, each into its own memory, and the bits are the same; whichever announces last is read.
"""

from __future__ import annotations

import numpy as np

from ....run.communicator import Request
from ..barrier import Bell, Condition, Missing
from ..collectives import Short, combine_into, copied
from ..groups import Group

LOOKS = 16  # every so many looks a rank that waits for the sum sees for itself whether all are there


class SmallSum(Short):
    """Views for a small sum in one group: starts[member][parity], where a buffer starts; `half`, where its sums lie."""

    is_sum = True

    def __init__(self, group: Group, request: Request, starts: list[list[int]], half: int) -> None:
        value, self.reduce = request.value, request.reduce
        self.wanted = request.root is None or request.root == group.rank
        arena, dtype, shape, count = group.arena, value.dtype, value.shape, value.size

        def views(offset: int, parity: int) -> list[np.ndarray]:
            at = [starts[member][parity] + offset for member in group.members]
            return [np.frombuffer(arena.bytes, dtype, count, start) for start in at]

        self.rows, sums = ([views(offset, parity) for parity in (0, 1)] for offset in (0, half))
        self.mine = [rows[group.me].reshape(shape) for rows in self.rows]
        self.total = [totals[group.me] for totals in sums]
        self.sums = [[view.reshape(shape) for view in totals] for totals in sums]
        self.waits = Summed(group, self)

    def give(self, value: np.ndarray, turn: int) -> None:
        self.waits.looks = 0
        self.mine[turn][...] = value

    def last(self, group: Group) -> None:
        """Add everybody's values, and tell where the sum lies."""
        turn = (group.seq + group.shift) & 1
        combine_into(self.rows[turn], self.reduce, self.total[turn])
        group.announce(group.me)

    def take(self, group: Group, value: np.ndarray, out: np.ndarray | None, turn: int) -> np.ndarray | None:
        """The sum, from the memory of the member that added."""
        return copied(self.sums[turn][group.announced()], out) if self.wanted else None


class Summed(Condition):
    """Waiting for the sum."""

    def __init__(self, group: Group, small: SmallSum) -> None:
        self.group, self.small, self.looks = group, small, 0

    @property
    def bell(self) -> Bell:
        return self.group.bell()

    def test(self) -> bool:
        """Whether the sum is ready; a rank that finds all others arrived, and nobody adding, adds."""
        group = self.group
        if group.words[group.results[group.seq & 1]] >> 16 >= group.seq:
            return True
        self.looks += 1
        # the first look sees also those that came at the same moment as this rank and did not see it
        if self.looks % LOOKS == 1 and group.row == group.expected:
            self.small.last(group)
            return True
        return False

    def examine(self) -> None:
        self.group.examine()

    def missing(self) -> Missing | None:
        """Who has not arrived; once all have, who is adding."""
        group = self.group
        found = group.missing()
        if found is None and not self.test():
            peer = group.members[(group.me + 1) % group.n]  # one of them is adding
            return peer, group.results[group.seq & 1], group.seq << 16, group.started
        return found
