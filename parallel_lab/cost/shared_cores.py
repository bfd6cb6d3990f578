"""Lanes of a clock (`clock.py`) that share processor cores: which one computes when.

At most `count` tasks run at a time. A lane that wants to compute while no core is free waits in turn: first come, first
served; among those that come at once the lower lane first. A lane keeps its core until its owner (an action) has ended
or waits; then the core goes to the lane that has waited longest, also where the first could go on with its next action.
A lane that waits, for a message or for a core, needs no core and is idle. Going from one to another costs nothing.
(First come, first served, not preempted: Kleinrock 1975, "Queueing Systems", volume 1.) A real system takes a core away
every few milliseconds, which is about as long as an action of ours, so ranks get their cores for whole actions or a
large part of them; `EventLog.bubbles` counts time on a core there too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any


class SharedCores:
    """Which lane goes on when.  count: how many cores all share

    now        time at which everything is
    events     (time, lane) that goes on then
    waiting    (since, lane, work, owner) for a core;  running: (end, lane, start, owner) on a core
    finished   (lane, owner) of the work that has just ended: the core is still theirs
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self.now = 0.0
        self.events: list[tuple[float, int]] = []
        self.waiting: list[tuple[float, int, float, Any]] = []
        self.running: list[tuple[float, int, float, Any]] = []
        self.finished: tuple[int, Any] | None = None

    def at(self, time_s: float, lane: int) -> None:
        """`lane` has its turn at `time_s`."""
        heapq.heappush(self.events, (time_s, lane))

    def work(self, lane: int, work_s: float, owner: Any) -> None:
        """`lane` wants to compute for `work_s` from now on: on the core that its owner has, or else in turn."""
        if self.finished == (lane, owner):
            self.finished = None
            heapq.heappush(self.running, (self.now + work_s, lane, self.now, owner))
        else:
            heapq.heappush(self.waiting, (self.now, lane, work_s, owner))

    def turns(self) -> Iterator[tuple[int, float | None]]:
        """(lane, when the work began that has ended now, or None), in order of time, until all is done."""
        events, waiting, running = self.events, self.waiting, self.running
        while True:
            if events and events[0][0] <= self.now:
                yield heapq.heappop(events)[1], None
            elif running and running[0][0] <= self.now:
                _, lane, start_s, owner = heapq.heappop(running)
                self.finished = lane, owner
                yield lane, start_s
                if self.finished is not None:
                    self.free, self.finished = self.free + 1, None
            elif waiting and self.free:
                _, lane, work_s, owner = heapq.heappop(waiting)
                self.free -= 1
                heapq.heappush(running, (self.now + work_s, lane, self.now, owner))
            elif running and not (events and events[0] < running[0]):
                self.now = running[0][0]
            elif events:
                self.now = events[0][0]
            else:
                return
