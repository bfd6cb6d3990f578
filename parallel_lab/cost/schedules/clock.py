"""When every action of a schedule runs: a clock without arrays.

    start of an action = the later of   the end of the action before it on its rank
                                        the end of what it waits for (+ the link's latency, from another rank)

A message delays the action that needs it and occupies no rank. Times are per part, so stages may be uneven. A backward
that is not divided takes backward + weights. Where ranks share cores, at most so many actions run at a time, and the
others wait in turn (`cost/shared_cores.py`).

Rule of start times: Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...base.errors import ArgumentError, PlanError
from ...graph.actions import Action
from ..clock import Clock, Task
from ..shared_cores import SharedCores
from .order import Order

Times = float | Sequence[float]
Latency = float | Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Timing:
    """When the actions of a schedule ran.

    starts, ends  seconds (or the unit of the times given), per rank, per action
    work          time that each rank computes: on shared cores, a rank that waits for one is idle
    """

    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    work: tuple[float, ...]

    @cached_property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max((lane[-1] for lane in self.ends if lane), default=0.0)

    @cached_property
    def spans(self) -> tuple[float, ...]:
        """From a rank's own first start to its own last end."""
        return tuple(e[-1] - s[0] if s else 0.0 for s, e in zip(self.starts, self.ends, strict=True))

    @property
    def span(self) -> float:
        """The longest of the spans: what a step costs when no barrier separates it from the next."""
        return max(self.spans, default=0.0)

    @cached_property
    def bubbles(self) -> tuple[float, ...]:
        """Idle time of each rank within the makespan."""
        return tuple(self.makespan - work for work in self.work)

    @property
    def bubble(self) -> float:
        """The idle time of the rank that works most, as it is what the schedule adds to that rank's work."""
        return min(self.bubbles, default=0.0)

    def rate(self, cost: float | None = None) -> float:
        """Part of `cost` (the makespan, unless given: `span`) in which the rank that works most is idle."""
        cost = self.makespan if cost is None else cost
        return (cost - max(self.work, default=0.0)) / cost if cost else 0.0


def run_clock(
    order: Order,
    forward: Times = 1.0,
    backward: Times = 1.0,
    weights: Times = 1.0,
    latency: Latency = 0.0,
    *,
    together: Times | None = None,
    cores: int | None = None,
    ahead: Callable[[Action], float] | None = None,
    after: Callable[[Action], float] | None = None,
) -> Timing:
    """When each action runs.

    forward, backward, weights  times of F, of the input gradient, of the weight gradients: a number, or one per part
    latency   delay of a message between ranks: a number, or {(from, to): number} (links not named: none)
    together  time of a forward with a whole backward, run as one; None: as if one after the other
    cores     processor cores that all ranks share; None: each has its own
    ahead     of an action's time, what it does before it needs another rank's result
    after     what a rank goes on with after an action whose result is already on its way; not with `cores`

    Raises PlanError where no action can go on (`Schedule.check` says why), ArgumentError for times that do not fit.
    """
    times = [_per_part(name, t, order.parts) for name, t in zip(_NAMES, (forward, backward, weights), strict=True)]
    pair = None if together is None else _per_part("together", together, order.parts)
    if cores is not None and cores < 1:
        raise ArgumentError(f"cores={cores}", where="schedule clock", allowed="At least 1")
    if after and cores is not None:
        raise ArgumentError("after with cores", where="schedule clock", allowed="One of them")
    lists = [_tasks(order, rank, times, pair, latency, ahead, after) for rank in range(len(order.ranks))]
    starts: list[list[float]] = [[] for _ in lists]
    ends: list[list[float]] = [[] for _ in lists]

    def done(rank: int, task: Task, _came_s: float, start_s: float, end_s: float) -> None:
        for _ in task.owner:
            starts[rank].append(start_s)
            ends[rank].append(end_s)

    clock = Clock(lists, None if cores is None or cores >= len(lists) else SharedCores(cores))
    clock.run(done)
    if any(clock.tasks):
        raise _stuck(order, clock.tasks)
    work = (sum(task.work_s for task in tasks) + sum(task.rest_s for task in tasks) for tasks in lists)
    return Timing(tuple(map(tuple, starts)), tuple(map(tuple, ends)), tuple(work))


def _tasks(
    order: Order,
    rank: int,
    times: Sequence[Sequence[float]],
    together: Sequence[float] | None,
    latency: Latency,
    ahead: Callable[[Action], float] | None,
    after: Callable[[Action], float] | None,
) -> list[Task]:
    """What a rank does: actions that run as one are one task, which owns its core."""
    forward, backward, weights = times
    whole = [b + w for b, w in zip(backward, weights, strict=True)]
    of_kind = {"F": forward, "B": backward if order.splits_backward else whole, "W": weights}
    links = {at: 0.0 if at == rank else _delay(latency, at, rank) for at in range(len(order.ranks))}
    tasks = []
    for cell, keys, needs in order.waits[rank]:
        if together is not None and cell[0].kind == "F" and len(cell) > 1:
            work_s = together[cell[0].stage]
        else:
            work_s = 0.0
            for part, kind, _ in keys:
                work_s += of_kind[kind][part]
        early_s = ahead(cell[0]) if ahead else 0.0
        delays = [(key, 0.0 if at == rank else links[at] - early_s) for key, at in needs]
        rest_s = 0.0 if after is None else after(cell[0]) if len(cell) == 1 else math.fsum(map(after, cell))
        tasks.append(Task(work_s, delays, keys, rest_s, None, cell))
    return tasks


_NAMES = ("forward", "backward", "weights")


def _per_part(name: str, times: Times, parts: int) -> Sequence[float]:
    each = [times] * parts if isinstance(times, int | float) else list(times)
    if len(each) != parts or any(not t >= 0 for t in each):
        allowed = f"A number, or one for each of {parts} parts, none below 0"
        raise ArgumentError(f"{name}={times!r}", where="schedule clock", allowed=allowed)
    return each


def _delay(latency: Latency, source: int, target: int) -> float:
    return latency.get((source, target), 0.0) if isinstance(latency, Mapping) else latency


def _stuck(order: Order, tasks: Sequence[Task | None]) -> PlanError:
    heads = [f"rank {rank}: {task.owner[0]}" for rank, task in enumerate(tasks) if task is not None]
    what = f"no rank can go on: {', '.join(heads[:8])}"
    return PlanError(what, where=f"schedule {order.name!r}", hint="schedule.check() says what is missing")
