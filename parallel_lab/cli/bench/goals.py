"""What the project promises of its speed, beside what was reached: ratios of medians of one run, never times.

A goal that could not be measured says why; none is met in silence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...base.units import bytes_text
from .collectives import ARENA, FUTEX, GLOO, OURS, OUT, CollectivesReport, Timing
from .page import quotient

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
BOUND_LIMIT, BARRIER_LIMIT, BUSY_LIMIT, CHECKS_LIMIT = 1.4, 0.8, 5.0, 0.05


@dataclass(frozen=True)
class Goal:
    """One line: what, the limit, what was reached (None: not measured), and a remark.

    beside  for "ours out=": the same ratio where ours makes the result array as well, which the others do not
    """

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

    def to_dict(self) -> dict[str, Any]:
        """The line as plain values for JSON, whether it is met among them."""
        return {**dataclasses.asdict(self), "met": self.met}


def collective_goals(report: CollectivesReport) -> tuple[Goal, ...]:
    """The goals that a run of `bench collectives` can judge. They were set for 8 ranks on 2 cores; other runs are
    judged by them too.
    """
    found = [*_barriers(report)]
    for size, mpi_limit, gloo_limit in ALL_REDUCE:
        timing = report.timing("all_reduce", size)
        found += [_ratio(f"all_reduce {bytes_text(size)}", "MPI", mpi_limit, timing, OUT, "mpi", beside=OURS)]
        found += [_ratio(f"all_reduce {bytes_text(size)}", "gloo", gloo_limit, timing, OUT, GLOO, beside=OURS)]
    for size in (16 * _MIB, 64 * _MIB):
        timing = report.timing("all_reduce", size)
        bound = None if timing is None else timing.bound_s(report.ranks)
        reached = quotient(None if timing is None else timing.median_s(ARENA), bound)
        found.append(
            Goal(f"all_reduce {bytes_text(size)}, arena", "memory bound p N / copy bandwidth", BOUND_LIMIT, reached)
        )
    for op, (limit, arena_limit) in OTHERS.items():
        timings = [t for t in report.timings if t.op == op and t.size_bytes >= _MIB]
        found.append(_worst(f"{op} from 1 MiB", limit, timings, OUT))
        found.append(_worst(f"{op} from 1 MiB, arena", arena_limit, timings, ARENA))
    checks = report.checks
    note = "upper limit: with the call itself"
    found.append(
        Goal("checks in a 256 KiB all_reduce", "the call", CHECKS_LIMIT, None if checks is None else checks.share, note)
    )
    return tuple(found)


def _barriers(report: CollectivesReport) -> Iterable[Goal]:
    quiet, busy = report.barrier_quiet, report.barrier_busy
    yield Goal("barrier, quiet", "MPI", BARRIER_LIMIT, quotient(quiet.median_s(OURS), quiet.mpi_s()))
    reached = None if busy is None else quotient(busy.median_s(OURS), busy.median_s(FUTEX))
    yield Goal(
        f"barrier, {report.busy or 2} foreign busy processes", "a plain futex barrier", BUSY_LIMIT, reached, "open goal"
    )


def _ratio(what: str, against: str, limit: float, timing: Timing | None, ours: str, other: str, beside: str) -> Goal:
    if timing is None:
        return Goal(what, against, limit, None)
    theirs = timing.mpi_s() if other == "mpi" else timing.median_s(other)
    return Goal(
        what, against, limit, quotient(timing.median_s(ours), theirs), beside=quotient(timing.median_s(beside), theirs)
    )


def _worst(what: str, limit: float, timings: list[Timing], ours: str) -> Goal:
    """Of several sizes the one with the largest ratio."""
    ratios = [(r, t) for t in timings if (r := quotient(t.median_s(ours), t.mpi_s())) is not None]
    if not ratios:
        return Goal(what, "MPI", limit, None)
    ratio, timing = max(ratios, key=lambda pair: pair[0])
    beside = quotient(timing.median_s(OURS), timing.mpi_s()) if ours == OUT else None
    return Goal(what, "MPI", limit, ratio, f"at {bytes_text(timing.size_bytes)}, the worst of {len(ratios)}", beside)
