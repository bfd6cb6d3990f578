"""The best schedule under a memory cap, for small cases: branch and bound, with a proof or the gap that is left.

Micro-batches are alike, so each part takes them in order: a state of the search is how many F, B and W every part has
done, and when. At each node the rank that could end an action first must begin one before that time, or its forward
waits for another action of the rank (it would take memory that the other needs): all that is branched on. (Giffler and
Thompson 1960; with a cap that couples the parts of a rank the waiting branch keeps the search complete.)

A node is abandoned if its bound (the work a rank has left, with the way there and back) is not better than the best,
or if another node with the same counts was never later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ...base.errors import ArgumentError
from .auto import Work, candidates
from .order import Lane, do
from .schedule import Schedule


@dataclass(frozen=True)
class Found:
    """What a search found: the schedule, its makespan, a bound that no schedule goes below, and how long it looked."""

    schedule: Schedule
    makespan: float
    bound: float
    nodes: int

    @property
    def proved(self) -> bool:
        """Whether nothing is better."""
        return self.makespan <= self.bound * (1 + 1e-12)

    @property
    def gap(self) -> float:
        """How much better another could be, as part of the makespan."""
        return max(0.0, 1 - self.bound / self.makespan)


def best_schedule(work: Work, *, most_nodes: int = 200_000, seconds: float = 10.0) -> Found:
    """The schedule with the smallest makespan. After `most_nodes` nodes or `seconds` the best so far, with its gap.

    Raises ArgumentError where a cap is so small that no schedule can run.
    """
    search = _Search(work, most_nodes, time.monotonic() + seconds)
    forward, backward, weights = work.per_kind()
    for schedule in candidates(work):
        search.offer(schedule.clock(forward, backward, weights, work.latency).makespan, schedule.ranks)
    root = search.bound(search.start)
    if search.best > root:
        search.go(search.start)
    if search.lanes is None:
        what = f"no schedule of {work.micro_batches} micro-batches under the caps {work.caps}"
        allowed = (
            "Room for one micro-batch in each part of a rank" if search.complete else "A longer search may find one"
        )
        raise ArgumentError(what, where="best_schedule", allowed=allowed)
    bound = search.best if search.complete else min(search.best, max(root, search.open_bound))
    schedule = Schedule("best", len(work.times), work.micro_batches, work.holds, search.lanes)
    return Found(schedule, search.best, bound, search.nodes)


@dataclass(frozen=True)
class _State:
    counts: tuple[tuple[int, int, int], ...]  # F, B and W done, per part
    free: tuple[float, ...]  # per rank
    forwards: tuple[tuple[float, ...], ...]  # per part: ends of those F that the next part has not taken
    backwards: tuple[tuple[float, ...], ...]  # per part: ends of those B that the part before has not taken
    waits: frozenset[int]  # parts whose forward waits for another action of the rank


_Option = tuple[float, float, int, int, str]  # of an action: end, start, rank, part, kind


class _Search:
    def __init__(self, work: Work, most_nodes: int, until: float) -> None:
        self.work, self.most_nodes, self.until = work, most_nodes, until
        self.best = float("inf")
        self.lanes: tuple[Lane, ...] | None = None
        self.nodes, self.complete, self.open_bound = 0, True, float("inf")
        self.rank_of = work.rank_of
        parts = len(work.times)
        self.start = _State(((0, 0, 0),) * parts, (0.0,) * len(work.holds), ((),) * parts, ((),) * parts, frozenset())
        self.seen: dict[tuple[Any, ...], list[tuple[float, ...]]] = {}
        self.path: list[tuple[int, int, str, int]] = []
        hops = [work.latency * (self.rank_of[k] != self.rank_of[k - 1]) for k in range(1, parts)] + [0.0]
        took = work.took
        self.to = [0.0]  # from the start to the first forward of a part
        for k in range(1, parts):
            self.to.append(self.to[-1] + took(k - 1, "F") + hops[k - 1])
        self.after = [took(0, "W") if work.split else 0.0]  # from the end of a part's last B to the end of all
        for k in range(1, parts):
            self.after.append(
                max(took(k, "W") if work.split else 0.0, hops[k - 1] + took(k - 1, "B") + self.after[k - 1])
            )
        self.turn = [0.0] * parts  # from the end of a part's last F to the end of its B
        self.turn[-1] = took(parts - 1, "B")
        for k in reversed(range(parts - 1)):
            self.turn[k] = 2 * hops[k] + took(k + 1, "F") + self.turn[k + 1] + took(k, "B")

    def offer(self, makespan: float, lanes: tuple[Lane, ...]) -> None:
        if makespan < self.best:
            self.best, self.lanes = makespan, lanes

    def bound(self, state: _State) -> float:
        """No schedule that goes on from here ends before."""
        work, total, lowest = self.work, self.work.micro_batches, 0.0
        for rank, parts in enumerate(work.holds):
            left = late = 0.0
            for k in parts:
                f, b, w = state.counts[k]
                left += (total - f) * work.took(k, "F") + (total - b) * work.took(k, "B")
                late += (total - w) * work.took(k, "W") if work.split else 0.0
                if f < total:
                    first = max(state.free[rank], self.to[k] if not f else 0.0)
                    lowest = max(lowest, first + (total - f) * work.took(k, "F") + self.turn[k] + self.after[k])
                if b < total:
                    lowest = max(lowest, state.free[rank] + (total - b) * work.took(k, "B") + self.after[k])
            if left or late:
                begun = any(state.counts[k][0] for k in parts)
                first = state.free[rank] if begun else max(state.free[rank], min(self.to[k] for k in parts))
                # the rank's last B is one of its lowest part (a micro-batch comes to the others before); its way to
                # part 0 follows, while the rank does at most the weight gradients that are left
                low = min(parts)
                tail = max(0.0, self.after[low] - late) if state.counts[low][1] < total else 0.0
                lowest = max(lowest, first + left + late + tail)
            else:
                lowest = max(lowest, state.free[rank])
        return lowest

    def options(self, state: _State) -> list[_Option]:
        """(end, start, rank, part, kind) of every action that can be next on its rank."""
        work, total, actions = self.work, self.work.micro_batches, []
        last = len(work.times) - 1
        for rank, parts in enumerate(work.holds):
            held = sum(state.counts[k][0] - state.counts[k][2 if work.split else 1] for k in parts)
            for k in parts:
                f, b, w = state.counts[k]
                if f < total and held < work.caps[rank] and k not in state.waits:
                    when = 0.0 if k == 0 else self._arrival(state.forwards[k - 1], k, k - 1)
                    if when is not None:
                        self._add(actions, state, when, rank, k, "F")
                if b < f:
                    when = 0.0 if k == last else self._arrival(state.backwards[k + 1], k, k + 1)
                    if when is not None:
                        self._add(actions, state, when, rank, k, "B")
                if work.split and w < b:
                    self._add(actions, state, 0.0, rank, k, "W")
        return actions

    def _arrival(self, ends: tuple[float, ...], part: int, source: int) -> float | None:
        if not ends:
            return None
        return ends[0] + self.work.latency * (self.rank_of[part] != self.rank_of[source])

    def _add(self, found: list[_Option], state: _State, when: float, rank: int, part: int, kind: str) -> None:
        start = max(when, state.free[rank])
        found.append((start + self.work.took(part, kind), start, rank, part, kind))

    def after_action(self, state: _State, option: _Option) -> _State:
        end, _, rank, part, kind = option
        counts, done = list(state.counts), [*state.counts[part]]
        done["FBW".index(kind)] += 1
        counts[part] = (done[0], done[1], done[2])
        forwards, backwards = list(state.forwards), list(state.backwards)
        if kind == "F":
            if part:
                forwards[part - 1] = forwards[part - 1][1:]
            if part + 1 < len(counts):
                forwards[part] += (end,)
        elif kind == "B":
            if part + 1 < len(counts):
                backwards[part + 1] = backwards[part + 1][1:]
            if part:
                backwards[part] += (end,)
        free = (*state.free[:rank], end, *state.free[rank + 1 :])
        waits = state.waits - set(self.work.holds[rank])
        return _State(tuple(counts), free, tuple(forwards), tuple(backwards), frozenset(waits))

    def go(self, state: _State) -> None:
        """Search from here, depth first. What is not looked at any more leaves its bound in `open_bound`."""
        self.nodes += 1
        lowest = self.bound(state)
        if lowest >= self.best:
            return
        if self.nodes > self.most_nodes or (self.nodes % 256 == 0 and time.monotonic() > self.until):
            self.most_nodes, self.complete = -1, False
            self.open_bound = min(self.open_bound, lowest)
            return
        times = (*state.free, *(t for ends in (*state.forwards, *state.backwards) for t in ends))
        visited = self.seen.setdefault((state.counts, state.waits), [])
        if any(all(a <= b for a, b in zip(one, times, strict=True)) for one in visited):
            return
        if len(visited) < 16:
            visited.append(times)
        options = self.options(state)
        if not options:
            if all(f == b == self.work.micro_batches for f, b, _ in state.counts) and max(state.free) < self.best:
                self.offer(max(state.free), self._lanes())
            return
        first = min(options)
        branches = [o for o in options if o[2] == first[2] and (o[1] < first[0] or o == first)]
        following = []
        for option in branches:
            child = self.after_action(state, option)
            following.append((self.bound(child), "FWB".index(option[4]), option[3], child, option))
        for _, _, _, child, option in sorted(following, key=lambda f: (f[0], -f[1], f[2])):
            self.path.append((option[2], option[3], option[4], state.counts[option[3]]["FBW".index(option[4])]))
            self.go(child)
            self.path.pop()
        if first[4] == "F" and len(self.work.holds[first[2]]) > 1:
            waits = state.waits | {first[3]}
            self.go(_State(state.counts, state.free, state.forwards, state.backwards, waits))

    def _lanes(self) -> tuple[Lane, ...]:
        lanes: list[list[Any]] = [[] for _ in self.work.holds]
        for rank, part, kind, n in self.path:
            lanes[rank].append(do(part, kind, n))
        return tuple(map(tuple, lanes))
