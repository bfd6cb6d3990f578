"""What a learner sets in the Pipeline Lab, and what follows from it without a network: the schedule and its clock.

settings = Settings(stages=4, micro_batches=8)
settings.schedule                  the schedule by name, or the one that was drawn
settings.timed()                   when its actions run, as far as they can
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...base.checks import Check, integer, number
from ...base.errors import ArgumentError, shorten
from ...base.units import plural
from ...cost.schedules import Schedule, Timing, make_schedule, schedule_names
from ...cost.schedules.naming import find
from ...cost.schedules.order import Key, key_of
from ..shared.lab import Lab
from .subjects import STRATEGIES, STRATEGY_LABELS

STAGES = (2, 3, 4, 6, 8)
MICRO_BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
CHUNKS = (1, 2, 3, 4)
TIME = Check("A number from 0 to 1,000,000", number(0, 1e6).read)
CHECKS = {"latency": TIME, "cap": Check("A whole number from 1, or none", (integer(1, 10_000) | None).read)}
DRAWN = "drawn"  # the name of a schedule that somebody has changed
# schedules for parts that go around: with one part on a rank they are 1F1B and GPipe
GO_AROUND = ("interleaved", "breadth_first")


@dataclass(frozen=True)
class Settings:
    """How a pipeline is set.

    net            name of a subject
    stages         ranks of the pipeline (with a strategy inside: groups of ranks)
    micro_batches  pieces of a batch
    named          name of the schedule to begin with;  chunks: parts on each rank
    times          time of F, B and W of a whole stage; a part on a rank with several takes its share, and a backward
                   that is not divided takes B + W
    latency        of a message between ranks: a number, or one for each border between stages
    cap            micro-batches x parts that a rank can keep activations of; None: any number
    recompute      ranks whose layers run forward again in backward
    strategy       inside a stage, by name
    cores          processor cores that simulated ranks share; 0: each has its own
    drawn          the schedule that is shown instead of the named one, once it was changed
    """

    net: str = "stack"
    stages: int = 4
    micro_batches: int = 8
    named: str = "1f1b"
    chunks: int = 1
    times: tuple[float, float, float] = (1.0, 1.0, 1.0)
    latency: float | tuple[float, ...] = 0.0
    cap: int | None = None
    recompute: tuple[int, ...] = ()
    strategy: str = "one"
    cores: int = 0
    drawn: Schedule | None = None

    @cached_property
    def schedule(self) -> Schedule:
        """Raises ArgumentError where the named one is not defined for these numbers."""
        if self.drawn is not None:
            return self.drawn
        return make_schedule(self.named, self.stages, self.micro_batches, self.chunks)

    @property
    def name(self) -> str:
        return self.named if self.drawn is None else DRAWN

    def with_name(self, name: str, chunks: int | None = None) -> Settings:
        """Another schedule, with as many parts on a rank as it has, if it says; else as asked for."""
        known = find(name).chunks
        if chunks is None:
            was_free = find(self.named).chunks is None
            chunks = known or max(self.chunks if was_free else 1, 2 if name in GO_AROUND else 1)
        return replace(self, named=name, chunks=chunks, drawn=None)

    def checked(self) -> Settings:
        """The same. Raises ArgumentError where their schedule is not defined."""
        assert self.schedule is not None
        if isinstance(self.latency, tuple) and len(self.latency) != self.stages - 1:
            what = f"latency of {plural(len(self.latency), 'border')}"
            raise ArgumentError(what, where="PipelineLab", allowed=f"One number, or {self.stages - 1} for the borders")
        return self

    @property
    def given(self) -> tuple[Any, ...]:
        """All but the network, what runs it, and the schedule."""
        return self.stages, self.micro_batches, self.chunks, self.times, self.latency, self.cap, self.recompute

    @property
    def known_schedules(self) -> dict[str, None]:
        """Names of schedules, the present one among them."""
        return dict.fromkeys([*schedule_names(), self.name])

    @property
    def known_chunks(self) -> tuple[int, ...]:
        """Parts on a rank that the schedule can have."""
        fixed = find(self.named).chunks
        parts = (fixed,) if fixed else CHUNKS
        return parts if self.chunks in parts else (*parts, self.chunks)

    def typed(self) -> dict[str, str]:
        """Times, latency and cap as they are typed: `typed_setting` reads them."""
        cap = "none" if self.cap is None else str(self.cap)
        each = self.latency if isinstance(self.latency, tuple) else (self.latency,)
        latency = ",".join(f"{t:g}" for t in each)
        return {"times": ":".join(f"{t:g}" for t in self.times), "latency": latency, "cap": cap}

    @property
    def label(self) -> str:
        """In words: what it is, and what differs from how the lab begins."""
        plain, each = Settings(), f"{self.chunks} parts each, " if self.chunks > 1 else ""
        words = [f"{self.name}, {self.net}, {self.stages} stages, {each}{self.micro_batches} micro-batches"]
        if self.strategy != plain.strategy:
            words.append(f"{STRATEGY_LABELS[self.strategy]} in a stage")
        if self.recompute:
            words.append(f"recompute on {', '.join(map(str, self.recompute))}")
        if self.cores:
            words.append(f"{self.cores} cores")
        return "; ".join(words)

    @property
    def devices(self) -> int:
        """Ranks in all: a stage may have several."""
        return self.stages * STRATEGIES[self.strategy]

    @property
    def shares(self) -> int:
        """Parts that the work of a stage is divided into; two copies of the network do not divide it."""
        return max(1, self.schedule.parts // self.stages)

    @cached_property
    def recomputed(self) -> tuple[int, ...]:
        """The parts that are recomputed: those of the chosen ranks; of two copies the first one's."""
        mine = {rank: parts[:1] if self.two_copies else parts for rank, parts in enumerate(self.schedule.holds)}
        return tuple(sorted({part for rank in self.recompute for part in mine[rank]}))

    @property
    def two_copies(self) -> bool:
        """Whether parts lie on two ranks."""
        return self.schedule.parts < sum(map(len, self.schedule.holds))

    @property
    def nominal(self) -> tuple[float, float, float]:
        """Times of F, B and W of a part that is not recomputed; of a backward that is not divided that of both."""
        forward, backward, weights = (t / self.shares for t in self.times)
        return forward, backward if self.schedule.splits_backward else backward + weights, weights

    @cached_property
    def named_span(self) -> float:
        """The makespan of the named schedule with these times: how long a lane is about to be."""
        return self.timed.timing.makespan if self.drawn is None else replace(self, drawn=None).timed.timing.makespan

    def clock_times(self) -> dict[str, Any]:
        """Times of every part, as `Schedule.clock` takes them."""
        forward, backward, weights = (t / self.shares for t in self.times)
        again = set(self.recomputed)
        backwards = [backward + (forward if k in again else 0.0) for k in range(self.schedule.parts)]
        return {"forward": forward, "backward": backwards, "weights": weights, "latency": delays(self.latency)}

    def delay(self, one: int, other: int) -> float:
        """How long a message takes between two ranks."""
        known = delays(self.latency)
        return 0.0 if one == other else known[one, other] if isinstance(known, dict) else known

    # ---- memory ----

    @cached_property
    def kept_share(self) -> float:
        """What a part that is recomputed keeps of a micro-batch: the inputs of its layers."""
        return KEPT_SHARES[self.net]

    def share_of(self, part: int) -> float:
        """What a part keeps of a micro-batch, as part of what it keeps when nothing is recomputed."""
        return self.kept_share if part in self.recomputed else 1.0

    @cached_property
    def caps(self) -> list[int] | None:
        """The cap as the check takes it: how many micro-batches x parts fit on each rank. What is recomputed takes its
        share, and the whole of one while its backward runs."""
        if self.cap is None:
            return None
        caps = []
        for parts in self.schedule.holds:
            share = max(map(self.share_of, parts), default=1.0)
            caps.append(self.cap if share == 1 else int((self.cap - 1) / share + 1e-9) + 1)
        return caps

    def kept(self, rank: int) -> list[tuple[float, float]]:
        """What a rank keeps over time: (from when on, micro-batches x parts). A forward's results are kept from its
        start to the end of its backward, which is W where the backward is divided."""
        schedule, changes = self.schedule, []
        cells = cells_of(schedule)[rank]
        for cell, (start, end) in zip(cells, self.timed.spans[rank], strict=False):
            for action in cell:
                share = self.share_of(action.stage)
                if action.kind == "F":
                    changes.append((start, 1, share))
                elif action.kind == "B":
                    changes.append((start, 1, 1 - share))
                if action.kind == "W" or schedule.is_full(action):
                    changes.append((end, 0, -1.0))
        points, now = [(0.0, 0.0)], 0.0
        for time, _, change in sorted(changes):  # at one time what ends goes before what begins
            now = round(now + change, 9)
            points = [*(points[:-1] if points[-1][0] == time else points), (time, now)]
        return points

    @cached_property
    def peaks(self) -> tuple[float, ...]:
        """The most that each rank keeps at a time, in micro-batches x parts."""
        return tuple(max(value for _, value in self.kept(rank)) for rank in range(self.stages))

    # ---- time ----

    @property
    def bubble(self) -> float:
        """The part of the step in which ranks do nothing, on average."""
        timing = self.timed.timing
        whole = timing.makespan * len(timing.work)
        return 1 - sum(timing.work) / whole if whole else 0.0

    @cached_property
    def timed(self) -> Timed:
        """When the actions run, as far as they can."""
        return Timed.of(self.schedule, self.clock_times())


def delays(latency: float | tuple[float, ...]) -> float | dict[tuple[int, int], float]:
    """The latency as the clock takes it: where borders have their own, a message waits for the slowest on its way."""
    if not isinstance(latency, tuple):
        return latency
    ranks = range(len(latency) + 1)
    return {(a, b): max(latency[min(a, b) : max(a, b)]) for a in ranks for b in ranks if a != b}


# What layers keep when they are recomputed, as part of what they keep otherwise (bytes of the values that backward
# reads: tests/lab/test_pipeline_lab.py compares them with the plan)
KEPT_SHARES = {"stack": 1 / 2, "gpt": 1 / 12}


@dataclass(frozen=True)
class Timed:
    """When the cells of a schedule run; a cell is an action, or several that run as one.

    schedule   all of it;  counts: the cells of each rank that can run, from its first on
    timing     of those, as `Schedule.clock` has it
    spans      (start, end) of each of those cells, per rank
    """

    schedule: Schedule
    counts: tuple[int, ...]
    timing: Timing
    spans: tuple[tuple[tuple[float, float], ...], ...]

    @staticmethod
    def of(schedule: Schedule, times: dict[str, Any]) -> Timed:
        """As far as its actions can run, on the clock with these times."""
        cells = cells_of(schedule)
        counts = runnable(schedule, cells)
        whole = all(n == len(mine) for n, mine in zip(counts, cells, strict=True))
        begun = schedule
        if not whole:
            kept = [mine[:n] for n, mine in zip(counts, cells, strict=True)]
            begun = with_cells(schedule, kept)
        if schedule.splits_backward and not begun.splits_backward:
            times = {**times, "weights": 0.0}  # its W stand among those that cannot run
        timing = begun.clock(**times)
        spans = []
        for rank, n in enumerate(counts):
            at, mine = 0, []
            for cell in cells[rank][:n]:
                mine.append((timing.starts[rank][at], timing.ends[rank][at]))
                at += len(cell)
            spans.append(tuple(mine))
        return Timed(schedule, counts, timing, tuple(spans))

    @property
    def complete(self) -> bool:
        """Whether every action of every micro-batch is there, and runs."""
        schedule = self.schedule
        kinds = 3 if schedule.splits_backward else 2
        done = sum(map(len, schedule.ranks))
        whole = all(n == len(list(schedule.cells(rank))) for rank, n in enumerate(self.counts))
        return whole and done == len(schedule.where) == kinds * schedule.parts * schedule.micro_batches


Cells = list[list[tuple[Any, ...]]]  # per rank its cells: tuples of actions that run as one


def cells_of(schedule: Schedule) -> Cells:
    """The cells of every rank."""
    return [list(schedule.cells(rank)) for rank in range(len(schedule))]


def with_cells(schedule: Schedule, cells: Sequence[Sequence[tuple[Any, ...]]]) -> Schedule:
    """A schedule of the same parts on the same ranks with other cells."""
    what = {"parts": schedule.parts, "micro_batches": schedule.micro_batches, "holds": schedule.holds}
    return Schedule.of(cells, name=DRAWN, **what)


def runnable(schedule: Schedule, cells: Cells) -> tuple[int, ...]:
    """How many cells of each rank can run, one after the other, whatever the time."""
    done: set[Key] = set()
    counts = [0] * len(cells)
    waiting: dict[Key, list[int]] = {}
    ready = list(range(len(cells)))
    while ready:
        rank = ready.pop()
        while counts[rank] < len(cells[rank]):
            cell = cells[rank][counts[rank]]
            inside = {key_of(action) for action in cell}
            missing = next((k for a in cell for k in schedule.needs(a) if k not in inside and k not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            counts[rank] += 1
            done |= inside
            for key in inside:
                ready += waiting.pop(key, ())
    return tuple(counts)


# ---- what is typed ----


TYPED = {
    "times": (3, "Three numbers, for F, B and W: 1:1:1"),
    "latency": (1, "A number, or one for each border: 0, 2, 0"),
    "cap": (1, "A whole number"),
}
NO_CAP = ([], ["none"], ["-"], ["–"])


def typed_setting(field: str, text: str) -> dict[str, Any]:
    """Times, latency or cap from a text: "1:1:1", "0.5", "4" ("" and "none": no cap). Raises ArgumentError."""
    words = text.replace(":", " ").replace(",", " ").split()[:9] if len(text) < 100 else ["?"]
    count, example = TYPED[Lab.one_of(field, tuple(TYPED), "field", "PipelineLab")]
    if field == "cap" and words in NO_CAP:
        return {"cap": None}
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if field == "latency" and len(numbers) > 1:
        return {"latency": checked("latency", numbers)}
    if len(numbers) != count:
        raise ArgumentError(f"{field} {shorten(text)}", where="PipelineLab", allowed=example)
    if field == "times":
        return {"times": checked_times(numbers)}
    only = numbers[0]
    if field == "cap":
        return {"cap": checked("cap", int(only) if only.is_integer() else only)}
    return {"latency": checked("latency", only)}


def checked(what: str, value: Any) -> Any:
    """A time, a latency or a cap in plain types. Raises ArgumentError."""
    check = CHECKS.get(what, TIME)
    if what == "latency" and isinstance(value, list | tuple):
        return tuple(checked("latency of a border", each) for each in value)
    try:
        return check.read(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} {shorten(value)}", where="PipelineLab", allowed=check.allowed) from None


def checked_times(times: Sequence[Any]) -> tuple[float, float, float]:
    """Times of F, B and W, one of them above 0."""
    forward, backward, weights = (checked(f"time of {kind}", t) for t, kind in zip(times, "FBW", strict=True))
    if not forward + backward + weights:
        raise ArgumentError("times 0, 0 and 0", where="PipelineLab", allowed="One of them above 0")
    return forward, backward, weights
