"""Promised and reached speed: ratios of medians of one run, never times. What was not measured says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from parallel_lab.base.units import bytes_text
from tests.bench.collectives import ARENA, BARE, FUTEX, GLOO, OURS, OUT, CollectivesReport, Timing
from tests.bench.page import percent_text, quotient, ratio_text

_MIB = 1 << 20
# all_reduce: (size, at most this times MPI, at most this times gloo)
ALL_REDUCE = (
    (4 << 10, 0.5, 1 / 50),
    (64 << 10, 0.5, 1 / 50),
    (_MIB, 1.1, 1 / 20),
    (16 * _MIB, 0.9, 1 / 4),
    (64 * _MIB, 0.6, 1 / 4),
)
# the others from 1 MiB: (at most this times MPI with any arrays, with arrays in the arena)
OTHERS = {"all_gather": (1.2, 1.2), "reduce_scatter": (1.2, 1.2), "broadcast": (1.8, 1.2), "all_to_all": (2.0, 1.2)}
# of messages: at most this times MPI, by size; with arrays in the arena at most this times the copy
MESSAGES = {"ping_pong": "there and back", "stream": "one after the other"}
MESSAGE_LIMITS = ((4 << 10, 1.0), (64 << 10, 1.0), (_MIB, 1.0), (16 * _MIB, 1.1), (64 * _MIB, 1.1))
MESSAGE_BOUND_LIMIT = 1.2
# open goals: 4 KiB at most this times MPI; a sum of 1 MiB in the arena at most this times the bound
SMALL, SMALL_LIMIT, SMALL_BOUND_LIMIT = ("all_gather", "broadcast", "all_to_all"), 1.0, 2.0
SHARES = ("the call", "one core", "the step", "all nets")  # what goals are shares of: shown in percent
BOUND_LIMIT, BARRIER_LIMIT, BUSY_LIMIT, CHECKS_LIMIT = 1.4, 0.8, 5.0, 0.05


@dataclass(frozen=True)
class Goal:
    """What, limit, value reached (None: not measured), remark; `beside`: the ratio where ours makes the result."""

    what: str
    against: str
    limit: float
    reached: float | None
    note: str = ""
    beside: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it holds; None where nothing was measured."""
        return None if self.reached is None else self.reached <= self.limit

    @property
    def verdict(self) -> str:
        """The same in words."""
        return {True: "met", False: "NOT MET", None: "not measured"}[self.met]

    def row(self) -> tuple[str, ...]:
        """The line as cells of a table, see `goal_rows`."""
        text = percent_text if self.against in SHARES else ratio_text
        beside = "" if self.beside is None else ratio_text(self.beside)
        return self.what, self.against, text(self.limit), text(self.reached), beside, self.verdict, self.note


def goal_rows(goals: Iterable[Goal]) -> list[tuple[str, ...]]:
    """The goals as a table with its head."""
    return [("goal", "against", "at most", "reached", "new array", "", ""), *(goal.row() for goal in goals)]


def goal_dicts(goals: Iterable[Goal]) -> list[dict[str, Any]]:
    """The goals as plain values for JSON, whether they are met among them."""
    return [{**dataclasses.asdict(goal), "met": goal.met} for goal in goals]


def collective_goals(report: CollectivesReport) -> tuple[Goal, ...]:
    """The goals that a run of `bench collectives` can judge. They were set for 8 ranks on 2 cores."""
    found = [*_barriers(report)]
    for size, mpi_limit, gloo_limit in ALL_REDUCE:
        timing = report.timing("all_reduce", size)
        mpi_s, gloo_s = (None, None) if timing is None else (timing.mpi_s(), timing.median_s(GLOO))
        found.append(_ratio("all_reduce", size, "MPI", mpi_limit, timing, mpi_s))
        found.append(_ratio("all_reduce", size, "gloo", gloo_limit, timing, gloo_s))
    for size in (16 * _MIB, 64 * _MIB):
        timing = report.timing("all_reduce", size)
        bound = None if timing is None else timing.bound_s(report.ranks)
        reached = quotient(None if timing is None else timing.median_s(ARENA), bound)
        what = f"all_reduce {bytes_text(size)}, arena"
        found.append(Goal(what, "memory bound p N / copy bandwidth", BOUND_LIMIT, reached))
    for op, (limit, arena_limit) in OTHERS.items():
        timings = [t for t in report.timings if t.op == op and t.size_bytes >= _MIB]
        found.append(_worst(f"{op} from 1 MiB", limit, timings, OUT))
        found.append(_worst(f"{op} from 1 MiB, arena", arena_limit, timings, ARENA))
    for op in SMALL:
        timing = report.timing(op, 4 << 10)
        goal = _ratio(op, 4 << 10, "MPI", SMALL_LIMIT, timing, None if timing is None else timing.mpi_s())
        found.append(dataclasses.replace(goal, note=f"open goal; {goal.note}".rstrip("; ")))
    timing = report.timing("all_reduce", _MIB)
    bound = None if timing is None else timing.bound_s(report.ranks)
    reached = quotient(None if timing is None else timing.median_s(ARENA), bound)
    what = f"all_reduce {bytes_text(_MIB)}, arena"
    found.append(Goal(what, "memory bound p N / copy bandwidth", SMALL_BOUND_LIMIT, reached, "open goal"))
    for op, way in MESSAGES.items():
        for size, limit in MESSAGE_LIMITS:
            timing = report.timing(op, size)
            mpi_s = None if timing is None else timing.mpi_s()
            found.append(_ratio(op, size, "MPI", limit, timing, mpi_s))
            if size >= _MIB:
                bound = None if timing is None else timing.bound_s(report.ranks)
                reached = quotient(None if timing is None else timing.median_s(ARENA), bound)
                what = f"{op} {bytes_text(size)}, arena"
                found.append(Goal(what, "a copy", MESSAGE_BOUND_LIMIT, reached, f"messages {way}"))
    share = None if report.checks is None else report.checks.share
    what, note = "checks in a 256 KiB all_reduce", "upper limit: with the call itself"
    found.append(Goal(what, "the call", CHECKS_LIMIT, share, note))
    return tuple(found)


def _barriers(report: CollectivesReport) -> Iterable[Goal]:
    quiet, busy = report.barrier_quiet, report.barrier_busy
    yield Goal("barrier, quiet", "MPI", BARRIER_LIMIT, quotient(quiet.median_s(OURS), quiet.mpi_s()))
    reached = None if busy is None else quotient(busy.median_s(OURS), busy.median_s(FUTEX))
    what = f"barrier, {report.busy or 2} foreign busy processes"
    yield Goal(what, "a plain futex barrier", BUSY_LIMIT, reached, "open goal")


def _ratio(op: str, size_bytes: int, against: str, limit: float, timing: Timing | None, theirs: float | None) -> Goal:
    names = (OUT, OURS, BARE)
    reached, beside, bare = (None if timing is None else quotient(timing.median_s(name), theirs) for name in names)
    note = "" if bare is None else f"{BARE} {ratio_text(bare)}"
    return Goal(f"{op} {bytes_text(size_bytes)}", against, limit, reached, note, beside)


def _worst(what: str, limit: float, timings: list[Timing], ours: str) -> Goal:
    """The goal of several sizes: the one with the largest ratio."""
    ratios = [(r, t) for t in timings if (r := quotient(t.median_s(ours), t.mpi_s())) is not None]
    if not ratios:
        return Goal(what, "MPI", limit, None)
    ratio, timing = max(ratios, key=lambda pair: pair[0])
    beside = quotient(timing.median_s(OURS), timing.mpi_s()) if ours == OUT else None
    return Goal(what, "MPI", limit, ratio, f"at {bytes_text(timing.size_bytes)}, the worst of {len(ratios)}", beside)
