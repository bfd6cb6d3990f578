"""A good schedule under a memory cap, fast: list scheduling with several tempers, and the best of them.

At every moment each rank does something that can run: a backward first, as others wait for it; a forward if there is
room; W in gaps, and to make room. Tempers differ in how much of a gap a W may overrun, in how long a rank waits for
something more urgent, and in whether a W comes before a forward. The schedules that have a name and fit the cap compete
too, so the result is at least as good as they are. (In the spirit of the automatic scheduler of Qi et al. 2024, "Zero
Bubble Pipeline Parallelism", appendix B.)
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...base.errors import ArgumentError
from .naming import all_named
from .order import Lane, do, loop, shape_v
from .schedule import Schedule


@dataclass(frozen=True)
class Work:
    """What there is to do: parts on ranks, how long they take, and how much a rank can hold.

    times    (forward, backward, weights) of each part
    latency  of a message between ranks
    caps     micro-batches x parts that each rank can keep activations of
    split    whether W is an action of its own; else B takes backward + weights
    """

    holds: tuple[tuple[int, ...], ...]
    micro_batches: int
    times: tuple[tuple[float, float, float], ...]
    latency: float
    caps: tuple[int, ...]
    split: bool = True

    @staticmethod
    def on(
        stages: int,
        micro_batches: int,
        cap: int | Sequence[int],
        *,
        chunks: int = 1,
        place: str = "loop",
        times: tuple[Any, Any, Any] = (1, 1, 1),
        latency: float = 0.0,
        split: bool = True,
    ) -> Work:
        """Work on parts that go around ("loop") or down and up ("v"); times as for `Schedule.clock`."""
        places = {"loop": loop, "v": shape_v}
        if place not in places:
            raise ArgumentError(f"place={place!r}", where="search", allowed=", ".join(places))
        parts = stages * chunks
        each = [[t] * parts if isinstance(t, int | float) else list(t) for t in times]
        caps = (cap,) * stages if isinstance(cap, int) else tuple(cap)
        if len(caps) != stages or any(len(t) != parts for t in each):
            what = f"{len(caps)} caps and times of {sorted({len(t) for t in each})} parts"
            raise ArgumentError(what, where="search", allowed=f"{stages} ranks, {parts} parts")
        if min(caps) < chunks:
            what = f"a cap of {min(caps)} with {chunks} parts on a rank"
            raise ArgumentError(what, where="search", allowed="Room for one micro-batch in each part of a rank")
        return Work(places[place](stages, chunks), micro_batches, tuple(zip(*each, strict=True)), latency, caps, split)

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """{part: the rank that holds it}."""
        return {part: rank for rank, parts in enumerate(self.holds) for part in parts}

    def took(self, part: int, kind: str) -> float:
        """Time of an action; a B that is not divided includes the weight gradients."""
        forward, backward, weights = self.times[part]
        if kind == "B":
            return backward if self.split else backward + weights
        return forward if kind == "F" else weights

    def per_kind(self) -> tuple[tuple[float, ...], ...]:
        """Times as `Schedule.clock` takes them."""
        return tuple(zip(*self.times, strict=True))


@dataclass(frozen=True)
class Temper:
    """How a rank chooses.

    overrun        part of a W that may go beyond a gap
    patience       part of a forward that it waits for a backward instead
    weights_first  W before a forward
    at_first       patience before the rank's first backward
    ahead          forwards of a part before their backwards: at most this and 2 for each part after it; None: any
    """

    overrun: float = 0.0
    patience: float = 0.0
    weights_first: bool = False
    at_first: float = 0.0
    ahead: int | None = None


TEMPERS = (
    *(Temper(*t) for t in itertools.product((0.0, 0.4, 1.0), (0.0, 0.5), (False, True), (0.0, 1.0))),
    *(Temper(*t) for t in itertools.product((0.0, 1.0), (0.0,), (False, True), (0.0, 1.0), (1, 2))),
)


def auto_schedule(work: Work, *, minimise: str = "makespan", tempers: Sequence[Temper] = TEMPERS) -> Schedule:
    """The best schedule that the tempers and the named schedules give.

    minimise  "makespan", or "span": the longest time from a rank's own first start to its last end

    Raises ArgumentError where none of them runs under the caps.
    """
    if minimise not in ("makespan", "span"):
        raise ArgumentError(f"minimise={minimise!r}", where="auto_schedule", allowed="makespan, span")
    forward, backward, weights = work.per_kind()
    best, cost = None, float("inf")
    for schedule in candidates(work, tempers):
        now = getattr(schedule.clock(forward, backward, weights, work.latency), minimise)
        if now < cost:
            best, cost = schedule, now
    if best is None:
        what = f"no schedule found under the caps {work.caps}"
        raise ArgumentError(what, where="auto_schedule", hint="Try larger caps, or best_schedule for a small case")
    return best


def candidates(work: Work, tempers: Sequence[Temper] = TEMPERS) -> Iterator[Schedule]:
    """Schedules of this work that keep its caps: those with a name, then those of the tempers."""
    stages, parts = len(work.holds), len(work.times)
    for name, one in sorted(all_named().items()):
        if one.allowed(stages, work.micro_batches, parts // stages) or one.chunks not in (None, parts // stages):
            continue
        order = one.order(stages, work.micro_batches, parts // stages)
        fits = order.holds == work.holds and order.splits_backward == work.split and not order.together
        if fits and all(peak <= cap for peak, cap in zip(order.peaks, work.caps, strict=True)):
            yield Schedule(name, order.parts, order.micro_batches, order.holds, order.ranks)
    drawn = set()
    for temper in tempers:
        if not work.split and (temper.overrun or temper.weights_first):
            continue
        lanes = list_schedule(work, temper)
        if lanes is not None and lanes not in drawn:
            drawn.add(lanes)
            yield Schedule("auto", parts, work.micro_batches, work.holds, lanes)


def list_schedule(work: Work, temper: Temper) -> tuple[Lane, ...] | None:
    """The actions of each rank, or None if they came to a halt: memory full of forwards that no backward ends."""
    ranks, parts, total = range(len(work.holds)), len(work.times), work.micro_batches
    rank_of, split = work.rank_of, work.split
    took = {(k, kind): work.took(k, kind) for k in range(parts) for kind in "FBW"}
    done = dict.fromkeys(took, 0)
    ended: dict[tuple[int, str, int], float] = {}
    free, held = [0.0 for _ in ranks], [0 for _ in ranks]
    lanes: list[list[Any]] = [[] for _ in ranks]
    late: list[list[tuple[int, int]]] = [[] for _ in ranks]
    begun = [False for _ in ranks]  # whether a backward has run
    # a forward that is not in the rank's last part leaves room for those after it
    most = [total if temper.ahead is None else temper.ahead + 2 * (parts - 1 - k) for k in range(parts)]
    spare = {k: sum(later > k for later in mine) for mine in work.holds for k in mine}

    def arrival(rank: int, part: int, kind: str, n: int) -> float | None:
        """When the input of an action is there; None: nobody knows yet."""
        source = part - 1 if kind == "F" else part + 1
        if kind == "B" and (part, "F", n) not in ended:
            return None
        if not 0 <= source < parts:
            return 0.0
        end = ended.get((source, kind, n))
        return None if end is None else end + (work.latency if rank_of[source] != rank else 0.0)

    def choice(rank: int) -> tuple[float, int, int, str] | None:
        """(start, urgency, part, kind) of what the rank does next."""
        now, ready = free[rank], []
        for part in work.holds[rank]:
            for kind in "BF":
                n = done[part, kind]
                if kind == "F" and n - done[part, "B"] >= most[part]:
                    continue
                if n < total and (kind == "B" or held[rank] < work.caps[rank] - spare[part]):
                    when = arrival(rank, part, kind, n)
                    if when is not None:
                        ready.append((max(when, now), kind == "F", -part, kind, part))
        best = None
        if ready:
            first = min(ready)
            patience = temper.patience if begun[rank] else temper.at_first
            wait = first[0] + (patience * took[first[4], "F"] if first[1] else 0.0)
            best = min((f for f in ready if f[0] <= wait), key=lambda f: (f[1], f[0], f[2]))
        if late[rank]:
            part = late[rank][0][0]
            gap = float("inf") if best is None else best[0] - now
            weights_first = temper.weights_first and best is not None and best[1]
            if gap > 0 and gap >= (1 - temper.overrun) * took[part, "W"] or weights_first:
                return now, 2, part, "W"
        return None if best is None else (best[0], int(best[1]), best[4], best[3])

    heap: list[tuple[Any, ...]] = []
    version = [0 for _ in ranks]

    def look(rank: int) -> None:
        version[rank] += 1
        if (ready := choice(rank)) is not None:
            heapq.heappush(heap, (*ready, rank, version[rank]))

    for rank in ranks:
        look(rank)
    left = parts * total * (3 if split else 2)
    while heap:
        start, _, part, kind, rank, number = heapq.heappop(heap)
        if number != version[rank]:
            continue
        if kind == "W":
            part, n = late[rank].pop(0)
        else:
            n = done[part, kind]
        done[part, kind] += 1
        free[rank] = ended[part, kind, n] = start + took[part, kind]
        held[rank] += (kind == "F") - (kind == ("W" if split else "B"))
        if kind == "B" and split:
            late[rank].append((part, n))
        begun[rank] = begun[rank] or kind == "B"
        lanes[rank].append(do(part, kind, n))
        left -= 1
        look(rank)
        reader = part + 1 if kind == "F" else part - 1
        if kind != "W" and 0 <= reader < parts and rank_of[reader] != rank:
            look(rank_of[reader])
    return None if left else tuple(map(tuple, lanes))
