"""When every action of a schedule runs: a clock without arrays.

    start of an action = the later of   the end of the action before it on its rank
                                        the end of what it waits for (+ the link's latency, from another rank)

A message delays who waits for it and occupies no rank. Times are per part, so stages may be uneven. A backward that is
not divided takes backward + weights.

Ranks that share `cores` cores: at most so many actions run at a time, and the others wait in turn, first come, first
served (`cost/shared_cores.py`).

Rule of start times: Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...base.errors import ArgumentError, PlanError
from ...graph.actions import Action
from ..shared_cores import SharedCores
from .order import Key, Order, key_of

Times = float | Sequence[float]
Latency = float | Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Timing:
    """When the actions of a schedule ran.

    starts, ends  seconds (or the unit of the times given), per rank, per action
    work          time that each rank computes: on shared cores, who waits for one is idle
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
    where, lists = order.where, []
    for rank in range(len(order.ranks)):
        cells = []
        for cell in order.cells(rank):
            if len(cell) == 1:
                needs = order.needs(cell[0])
            else:
                inside = {key_of(a) for a in cell}
                needs = [key for a in cell for key in order.needs(a) if key not in inside]
            if pair is not None and cell[0].kind == "F" and len(cell) > 1:
                took = pair[cell[0].stage]
            else:
                took = sum(_time(order, a, times) for a in cell)
            early = ahead(cell[0]) if ahead else 0.0
            from_rank = [(key, where.get(key, rank)) for key in needs]
            delays = [(k, _delay(latency, r, rank) - (early if r != rank else 0.0)) for k, r in from_rank]
            cells.append((cell, took, delays))
        lists.append(cells)
    rest = [[math.fsum(map(after, cell)) if after else 0.0 for cell, _, _ in cells] for cells in lists]
    spans = _alone(order, lists, rest) if cores is None or cores >= len(lists) else _shared(order, lists, cores)
    sizes = [[len(cell) for cell, _, _ in cells] for cells in lists]
    starts, ends = (
        tuple(
            tuple(v[i] for v, k in zip(s, z, strict=True) for _ in range(k)) for s, z in zip(spans, sizes, strict=True)
        )
        for i in (0, 1)
    )
    work = (sum(took for _, took, _ in cells) + sum(more) for cells, more in zip(lists, rest, strict=True))
    return Timing(starts, ends, tuple(work))


_NAMES = ("forward", "backward", "weights")
_Cells = list[list[tuple[tuple[Action, ...], float, list[tuple[Key, float]]]]]
_Spans = list[list[tuple[float, float]]]


def _per_part(name: str, times: Times, parts: int) -> Sequence[float]:
    found = [times] * parts if isinstance(times, int | float) else list(times)
    if len(found) != parts or any(not t >= 0 for t in found):
        allowed = f"A number, or one for each of {parts} parts, none below 0"
        raise ArgumentError(f"{name}={times!r}", where="schedule clock", allowed=allowed)
    return found


def _delay(latency: Latency, source: int, target: int) -> float:
    if source == target:
        return 0.0
    return latency.get((source, target), 0.0) if isinstance(latency, Mapping) else latency


def _time(order: Order, action: Action, times: Sequence[Sequence[float]]) -> float:
    forward, backward, weights = (t[action.stage] for t in times)
    if action.kind == "B":
        return backward + weights if order.is_full(action) else backward
    return forward if action.kind == "F" else weights


def _stuck(order: Order, done: Sequence[int], lists: _Cells) -> PlanError:
    heads = [
        f"rank {r}: {cells[n][0][0]}" for r, (n, cells) in enumerate(zip(done, lists, strict=True)) if n < len(cells)
    ]
    what = f"no rank can go on: {', '.join(heads[:8])}"
    return PlanError(what, where=f"schedule {order.name!r}", hint="schedule.check() says what is missing")


def _alone(order: Order, lists: _Cells, rest: Sequence[Sequence[float]]) -> _Spans:
    """Every rank on a core of its own: each goes on as far as it can, then the rank that waited for it.  rest: seconds
    that an action takes when readers have its result; they belong to its span.
    """
    ended: dict[Key, float] = {}
    spans: _Spans = [[] for _ in lists]
    free = [0.0] * len(lists)
    waiting: dict[Key, list[int]] = {}
    ready = list(range(len(lists)))
    while ready:
        rank = ready.pop()
        cells, span = lists[rank], spans[rank]
        while len(span) < len(cells):
            cell, took, needs = cells[len(span)]
            start = free[rank]
            for key, delay in needs:
                if key not in ended:
                    waiting.setdefault(key, []).append(rank)
                    break
                start = max(start, ended[key] + delay)
            else:
                end = start + took
                free[rank] = end + rest[rank][len(span)]
                span.append((start, free[rank]))
                for action in cell:
                    key = key_of(action)
                    ended[key] = end
                    ready += waiting.pop(key, ())
                continue
            break
    if any(len(s) < len(c) for s, c in zip(spans, lists, strict=True)):
        raise _stuck(order, [len(s) for s in spans], lists)
    return spans


def _shared(order: Order, lists: _Cells, cores: int) -> _Spans:
    """Ranks that share cores (`cost/shared_cores.py`)."""
    spans: _Spans = [[] for _ in lists]
    arrived: dict[Key, float] = {}  # end of an action
    waiting: dict[Key, list[int]] = {}
    shared = SharedCores(cores)

    def look(rank: int) -> None:
        if len(spans[rank]) < len(lists[rank]):
            when = shared.now
            for key, delay in lists[rank][len(spans[rank])][2]:
                if key not in arrived:
                    waiting.setdefault(key, []).append(rank)
                    return
                when = max(when, arrived[key] + delay)
            shared.at(when, rank)  # from then on its next action can run

    for rank in range(len(lists)):
        look(rank)
    for rank, start in shared.turns():
        cell, took, _ = lists[rank][len(spans[rank])]
        if start is None:
            shared.work(rank, took, cell)
            continue
        spans[rank].append((start, shared.now))
        for action in cell:
            key = key_of(action)
            arrived[key] = shared.now
            for other in waiting.pop(key, ()):
                look(other)
        look(rank)
    if any(len(s) < len(c) for s, c in zip(spans, lists, strict=True)):
        raise _stuck(order, [len(s) for s in spans], lists)
    return spans
