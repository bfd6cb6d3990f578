"""Ranks that share processor cores: who computes when.

    At most `cores` actions run at a time. Who wants to compute while no core is free waits in turn: first come, first
    served; of those that come at once the lower rank first.

An action keeps its core until it has ended or waits for a message; then the core goes to who has waited longest, also
where the rank could go on with its next action. Who waits, for a message or for a core, needs no core, and is idle.
Going from one to another costs nothing. (First come, first served, not preempted: Kleinrock 1975, "Queueing Systems",
volume 1.) A real system takes a core away every few milliseconds, which is about as long as an action of ours, so ranks
get their cores for whole actions or a large part of them; `EventLog.bubbles` counts time on a core there too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from typing import Any


class SharedCores:
    """Who goes on when.  cores: how many all share; None: one for each

    now        time at which everything is
    events     (time, who) that goes on then
    waiting    (since, who, work, action) for a core;  running: (end, who, start, action) on a core
    finished   (who, action) of the work that has just ended: the core is still theirs
    """

    def __init__(self, cores: int | None) -> None:
        self.free = inf if cores is None else cores
        self.now = 0.0
        self.events: list[tuple[float, int]] = []
        self.waiting: list[tuple[float, int, float, Any]] = []
        self.running: list[tuple[float, int, float, Any]] = []
        self.finished: tuple[int, Any] | None = None

    def at(self, time_s: float, who: int) -> None:
        """`who` has its turn at `time_s`."""
        heapq.heappush(self.events, (time_s, who))

    def work(self, who: int, work_s: float, action: Any) -> None:
        """`who` wants to compute for `work_s` from now on: for the action that has a core, there; else in turn."""
        if self.finished == (who, action):
            self.finished = None
            heapq.heappush(self.running, (self.now + work_s, who, self.now, action))
        else:
            heapq.heappush(self.waiting, (self.now, who, work_s, action))

    def turns(self) -> Iterator[tuple[int, float | None]]:
        """(who, when the work began that has ended now, or None), in order of time, until nobody is left."""
        while True:
            if self.events and self.events[0][0] <= self.now:
                yield heapq.heappop(self.events)[1], None
            elif self.running and self.running[0][0] <= self.now:
                _, who, start_s, action = heapq.heappop(self.running)
                self.finished = who, action
                yield who, start_s
                if self.finished is not None:
                    self.free, self.finished = self.free + 1, None
            elif self.waiting and self.free:
                _, who, work_s, action = heapq.heappop(self.waiting)
                self.free -= 1
                heapq.heappush(self.running, (self.now + work_s, who, self.now, action))
            elif self.events or self.running:
                self.now = min(found[0][0] for found in (self.events, self.running) if found)
            else:
                return
