"""Lanes of a clock (`clock.py`) that share processor cores: which one computes when.

At most `count` tasks run at a time. A lane that wants to compute while no core is free waits in turn: first come, first
served; among those that come at once the lower lane first. A lane keeps its core until its owner (an action) has ended
or waits; then the core goes to the lane that has waited longest, also where the first could go on with its next action.
A lane that waits, for a message or for a core, needs no core and is idle. Going from one to another costs nothing.
(First come, first served, not preempted: Kleinrock 1975, "Queueing Systems", volume 1.) A real system takes a core away
every few milliseconds, which is about as long as an action of ours, so ranks get their cores for whole actions or a
large part of them; `EventLog.bubbles` counts time on a core there too.

Where all ranks run one program, the turns need no clock: with 8 ranks on 2 cores everything that needs a core takes
four times as long (`on_shared_cores`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..base.cluster import Cluster


@dataclass(frozen=True)
class SharedMachine(Cluster):
    """A computer whose ranks are processes that share its cores, as `fit_machine` measures it.

    device   what a rank has on a core of its own
    cores    processor cores that all ranks share
    call_s   seconds on a core that a message takes from each of its members, whatever its size: the call, falling
             asleep and being woken (the o of LogP: Culler et al. 1993)
    """

    cores: int = 1
    call_s: float = 0.0


def on_shared_cores(cluster: Cluster, ranks: int) -> Cluster:
    """The cluster as it is for each of `ranks` that work at once. A named profile, whose ranks are devices, stays as it
    is.

    >>> from parallel_lab.base.cluster import Device, Link
    >>> two = SharedMachine("two", Device(1e9, 1, 1e9, 1e-5), Link(0.0, 0.0), 8, cores=2, call_s=3e-5)
    >>> on_shared_cores(two, 8).device.overhead_s, on_shared_cores(two, 8).call_s, on_shared_cores(two, 2) is two
    (4e-05, 0.00012, True)
    """
    if not isinstance(cluster, SharedMachine) or ranks <= cluster.cores:
        return cluster
    share, own = ranks / cluster.cores, cluster.device
    rates = {"flops_per_s": own.flops_per_s / share, "overhead_s": own.overhead_s * share}
    rates["memory_bandwidth_bytes_per_s"] = own.memory_bandwidth_bytes_per_s / share
    return replace(cluster, device=replace(own, **rates), cores=ranks, call_s=cluster.call_s * share)


def call_time_s(cluster: Cluster) -> float:
    """Seconds that a message costs on the cores; 0 for a named profile."""
    return cluster.call_s if isinstance(cluster, SharedMachine) else 0.0


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
