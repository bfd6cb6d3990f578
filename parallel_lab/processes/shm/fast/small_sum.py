"""all_reduce and reduce of small values: one barrier.

Everybody writes its value to its buffer and comes to the barrier. The last one to come adds all of them in group order,
and announces where the sum lies; the others read it there. Two that come at the same moment may both find that
everybody is there: both add, each into its own memory, and the bits are the same; whichever announces last is read.
"""

from __future__ import annotations

import numpy as np

from ....run.communicator import Request
from ..barrier import Bell, Condition, Missing
from ..collectives import Program, combine_into
from ..groups import Check, Group

LOOKS = 16  # every so many looks a rank that waits for the sum sees for itself whether all are there


class SmallSum:
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

    def add(self, group: Group) -> None:
        """All are here: add their values and tell where the sum lies."""
        seq = group.seq
        parity = (seq + group.shift) & 1
        combine_into(self.rows[parity], self.reduce, self.total[parity])
        group.announce(group.me)

    def read(self, group: Group) -> np.ndarray:
        """The sum, in the memory of the member that added."""
        seq = group.seq
        return self.sums[(seq + group.shift) & 1][group.announced()]

    def begin(self, group: Group, value: np.ndarray, check: Check) -> Summed | None:
        """Write this rank's value, and come to the barrier; what to wait for, None where this rank has added."""
        self.mine[(group.seq + 1 + group.shift) & 1][...] = value
        if group.come(check, False):
            self.add(group)
            return None
        self.waits.looks = 0
        return self.waits

    def end(self, group: Group, out: np.ndarray | None) -> np.ndarray | None:
        """The reply, once what `begin` gave has come."""
        if not self.wanted:
            return None
        if out is None:
            return self.read(group).copy()
        out[...] = self.read(group)
        return out

    def program(self, group: Group, value: np.ndarray, out: np.ndarray | None, check: Check) -> Program:
        """The whole collective, for `Collectives.program`."""
        if group.started or check.told:
            group.tell(check)
        waits = self.begin(group, value, check)
        if waits is not None:
            yield waits
        if check.told:
            group.compare(check)
        return self.end(group, out)


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
            self.small.add(group)
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
