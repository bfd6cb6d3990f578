"""Work that shares processor cores, as an operating system deals out time among processes that all compute.

    of k pieces of work under way on `cores` cores each goes on at the speed min(1, cores / k)

Who waits needs no core, and going from one to another costs nothing (processor sharing: Kleinrock 1967, "Time-Shared
Systems: A Theoretical Treatment").
"""

from __future__ import annotations

import heapq
from math import inf


class SharedCores:
    """The work under way.  cores: how many all share; None: one for each

    `progress` is the work that a piece would have done had it run all the time: it grows at one speed for all.
    """

    def __init__(self, cores: int | None) -> None:
        self.cores = inf if cores is None else cores
        self.now = self.progress = 0.0
        self.running: list[tuple[float, int, float]] = []  # (progress at which it is done, who, start)

    @property
    def speed(self) -> float:
        return min(1.0, self.cores / len(self.running)) if self.running else 1.0

    @property
    def next_s(self) -> float:
        """When the next piece is done, if no other begins before."""
        return self.now + (self.running[0][0] - self.progress) / self.speed if self.running else inf

    def go_on(self, time_s: float) -> None:
        """Let all work go on until `time_s`, before which none is done."""
        self.progress, self.now = self.progress + (time_s - self.now) * self.speed, time_s

    def begin(self, who: int, work_s: float) -> None:
        """A piece of work of `who` begins now; it takes `work_s` on a core of its own."""
        heapq.heappush(self.running, (self.progress + work_s, who, self.now))

    def end(self) -> tuple[int, float, float]:
        """The next piece is done: (who, start, end)."""
        end_s = self.next_s
        self.progress, who, start_s = heapq.heappop(self.running)
        self.now = end_s
        return who, start_s, end_s
