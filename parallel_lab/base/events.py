"""The event log: what every rank did and when, in one form for every source.

    predicted   a formula (`cost/timeline.py`)      simulated   the simulator's clock     measured   the workers' clocks

Views, scores, timelines and exports read nothing else, and say which source they show.

    log = EventLog.load("run.json")                          what `parallel-lab run --events run.json` wrote
    log.filter(rank=0, kind="communication").totals()        one line per message: count, bytes, seconds
    save_chrome_trace(log, "step.json")                      open it in chrome://tracing or ui.perfetto.dev
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from .checks import Check, fitting_class, flag, integer, number, path_text, text
from .errors import ArgumentError, ArgumentTypeError, DataFileError, shorten
from .files import open_regular, write_whole
from .plain_json import entries_of

SOURCES = ("predicted", "simulated", "measured")


@fitting_class
@dataclass(frozen=True)
class Event:
    """One bar of a timeline.

    rank, step      who, and in which training step
    phase           program it belongs to: "forward", "backward", "update"
    kind            "compute", "communication", "wait" (for the other members of a group), or an executor's word
    name            value it makes, unique in its program: "matmul.partial"
    op              operator class or kind of message: "MatMul", "all_reduce"
    start_s, end_s  seconds on the source's clock
    group           ranks that communicate; () otherwise
    bytes           size of the operand this rank hands over; 0 otherwise
    source          one of SOURCES
    overlapped      a message that travels while the rank does other things, until it waits for it
    micro_batch     number of the micro-batch it belongs to
    busy_s          of measured work: seconds on a processor; None: all the time from start to end

    Raises ArgumentError for times that are not finite or run backwards, negative counts and unknown sources.
    """

    rank: int
    step: int
    phase: str
    kind: str
    name: str
    op: str
    start_s: float
    end_s: float
    group: tuple[int, ...] = ()
    bytes: int = 0
    source: str = "measured"
    overlapped: bool = False
    micro_batch: int = 0
    busy_s: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start_s) and math.isfinite(self.end_s) and self.start_s <= self.end_s):
            times = f"it runs from {self.start_s} s to {self.end_s} s"
            raise self._fault(times, "Times are finite, and an event ends no earlier than it starts")
        if self.rank < 0 or self.step < 0 or self.bytes < 0:
            raise self._fault(f"rank {self.rank}, step {self.step}, {self.bytes} bytes", "None of them is negative")
        if self.source not in SOURCES:
            raise self._fault(f"source {shorten(self.source)}", f"One of {SOURCES}")

    def _fault(self, what: str, allowed: str) -> ArgumentError:
        return ArgumentError(what, where=f"Event {shorten(self.name)}", allowed=allowed)

    @property
    def duration_s(self) -> float:
        """Seconds from its start to its end."""
        return self.end_s - self.start_s

    @property
    def work_s(self) -> float:
        """Seconds on a core."""
        return self.duration_s if self.busy_s is None else self.busy_s


@dataclass(frozen=True)
class MessageTotal:
    """All events of one message of the program, added up.

    count    events: ranks times steps, as far as the log has them
    bytes    sum of the operands handed over
    seconds  time in the message itself;  wait_s: time spent waiting for its other members
    """

    phase: str
    name: str
    op: str
    count: int
    bytes: int
    seconds: float
    wait_s: float


@fitting_class
@dataclass(frozen=True)
class EventLog:
    """Events in the order in which they were recorded. Iterates, has a length, adds up with `+`."""

    events: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        events = tuple(self.events) if isinstance(self.events, Iterable) else (None,)
        if not all(isinstance(event, Event) for event in events):
            raise ArgumentTypeError(f"events={shorten(self.events)}", where="EventLog", allowed="A list of Events")
        object.__setattr__(self, "events", events)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EventLog:
        """The events of all ranks that `parallel-lab run --events FILE` or `%%ranks --events FILE` wrote.

        Raises DataFileError for a file that is missing or has another format, ArgumentError for an invalid event.
        """
        path = path_text(kinds=(str, os.PathLike))("EventLog.load", "path", path)
        allowed = "A file that `parallel-lab run --events FILE` wrote"
        try:
            with open_regular(path) as file:
                return from_dicts(entries_of(file, "events", "EventLog.load", DataFileError))
        except DataFileError as error:
            raise DataFileError(f"{path!r} has no events", where="EventLog.load", allowed=allowed) from error
        except (OSError, ValueError) as error:
            if isinstance(error, ArgumentError | ArgumentTypeError):
                raise
            raise DataFileError(f"{path!r} cannot be read", where="EventLog.load", allowed=allowed) from error

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __add__(self, other: EventLog) -> EventLog:
        return EventLog(self.events + other.events) if isinstance(other, EventLog) else NotImplemented

    def filter(self, **wanted: Any) -> EventLog:
        """The events whose fields have the wanted values; a list, set or range of values matches any of them, a tuple
        matches itself (a group).

        >>> log = EventLog(tuple(Event(rank, 0, "forward", "compute", "a", "Add", 0.0, 1.0) for rank in (0, 1)))
        >>> len(log.filter(rank=[0, 2], kind="compute"))
        1

        Raises ArgumentError for a field that an Event does not have.
        """
        unknown = sorted(set(wanted) - set(_FIELDS))
        if unknown:
            what = f"field {unknown[0]!r} is not known"
            raise ArgumentError(what, where="EventLog.filter", allowed=f"Fields: {', '.join(_FIELDS)}")
        several = (list, set, frozenset, range)
        tests = [(name, value if isinstance(value, several) else (value,)) for name, value in wanted.items()]
        return EventLog(tuple(e for e in self.events if all(getattr(e, name) in values for name, values in tests)))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have events, ascending."""
        return tuple(sorted({e.rank for e in self.events}))

    @property
    def start_s(self) -> float:
        """Start of the earliest event; 0 for an empty log."""
        return min((e.start_s for e in self.events), default=0.0)

    @property
    def end_s(self) -> float:
        """End of the latest event; 0 for an empty log."""
        return max((e.end_s for e in self.events), default=0.0)

    def seconds(self, **wanted: Any) -> float:
        """Sum of the durations of the events that `filter(**wanted)` finds."""
        return math.fsum(e.duration_s for e in self.filter(**wanted))

    def steps(self) -> dict[int, EventLog]:
        """{training step: its events}, steps ascending."""
        by_step: dict[int, list[Event]] = {}
        for event in self.events:
            by_step.setdefault(event.step, []).append(event)
        return {step: EventLog(tuple(events)) for step, events in sorted(by_step.items())}

    def step_times_s(self) -> dict[int, float]:
        """{step: seconds from its first start on any rank to its last end on any}, steps ascending. Where ranks begin
        a step while others are still at the one before, it counts from the end of that: no time counts twice.
        """
        times, before = {}, EventLog()
        for step, log in self.steps().items():  # a simulated clock begins anew with each
            since_s = max(log.start_s, before.end_s) if log.start_s > before.start_s else log.start_s
            times[step], before = max(log.end_s - since_s, 0.0), log
        return times

    def bubbles(self) -> dict[int, float]:
        """{step: the part of it in which ranks do not compute, on average over the ranks}: of a pipeline, its bubble.

        A rank that waits for a message or for a core is idle: measured work counts while a core was at it
        (`Event.work_s`).

        >>> work = [Event(rank, 0, "forward", "compute", "a", "Add", rank + 0.0, rank + 3.0) for rank in (0, 1)]
        >>> EventLog(tuple(work)).bubbles()
        {0: 0.25}
        """
        shares, times_s = {}, self.step_times_s()
        for step, log in self.steps().items():
            work_s, whole_s = math.fsum(e.work_s for e in log if e.kind == "compute"), times_s[step] * len(log.ranks)
            shares[step] = max(0.0, 1.0 - work_s / whole_s) if whole_s else 0.0
        return shares

    def lanes(self) -> dict[int, tuple[Event, ...]]:
        """The events of each rank in order of time; ranks ascending."""
        by_rank: dict[int, list[Event]] = {rank: [] for rank in self.ranks}
        for event in self.events:
            by_rank[event.rank].append(event)
        return {rank: tuple(sorted(events, key=lambda e: (e.start_s, e.end_s))) for rank, events in by_rank.items()}

    def totals(self) -> tuple[MessageTotal, ...]:
        """Communication added up per message of the program, in order of first appearance."""
        groups: dict[tuple[str, str, str], list[Event]] = {}
        for event in self.events:
            if event.kind in ("communication", "wait"):
                groups.setdefault((event.phase, event.name, event.op), []).append(event)
        totals = []
        for (phase, name, op), events in groups.items():
            sent = [e for e in events if e.kind == "communication"]
            seconds, waits = (math.fsum(e.duration_s for e in events if e.kind == k) for k in ("communication", "wait"))
            totals.append(MessageTotal(phase, name, op, len(sent), sum(e.bytes for e in sent), seconds, waits))
        return tuple(totals)


_FIELDS = tuple(f.name for f in fields(Event))
_REQUIRED = {"rank", "step", "phase", "kind", "name", "op", "start_s", "end_s"}


def _ranks(value: Any) -> tuple[int, ...]:
    ranks = tuple(value)
    are_plain = {*map(type, ranks)} <= {int} and min(ranks, default=0) >= 0
    return ranks if are_plain else tuple(map(integer(0).read, ranks))


_CHECKS: dict[str, Check] = dict.fromkeys(("phase", "kind", "name", "op", "source"), text)
_CHECKS |= dict.fromkeys(("rank", "step", "bytes", "micro_batch"), integer(0))
_CHECKS |= {"start_s": number(), "end_s": number(), "group": Check("A list of ranks", _ranks)}
_CHECKS |= {"overlapped": flag, "busy_s": number(0) | None}
# a file has a million fields, nearly all of exactly these types: they need no check (times are those of Event)
_EXACT: dict[str, type] = dict.fromkeys(("phase", "kind", "name", "op", "source"), str)
_EXACT |= dict.fromkeys(("rank", "step", "bytes", "micro_batch"), int)
_EXACT |= {"start_s": float, "end_s": float, "overlapped": bool, "busy_s": type(None)}


# ---- plain data ----


def to_dicts(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events as plain data for JSON; `from_dicts` gives them back."""
    return [{**vars(e), "group": list(e.group)} for e in events]


def from_dicts(data: Iterable[Mapping[str, Any]]) -> EventLog:
    """The log that `to_dicts` wrote. Raises ArgumentError naming the entry and the missing, unknown or wrong field."""
    return EventLog(tuple(_event(position, entry) for position, entry in enumerate(data)))


def _event(position: int, entry: Mapping[str, Any]) -> Event:
    where = f"from_dicts, entry {position}"
    if not isinstance(entry, Mapping):
        raise ArgumentTypeError(f"it is a {type(entry).__name__}", where=where, allowed="A dict as to_dicts writes it")
    missing, unknown = sorted(_REQUIRED - set(entry)), sorted(set(entry) - set(_FIELDS), key=str)
    if missing or unknown:
        what = f"field {missing[0]!r} is missing" if missing else f"field {shorten(unknown[0])} is not known"
        raise ArgumentError(what, where=where, allowed=f"Fields: {', '.join(_FIELDS)}")
    return Event(**{name: _field(where, name, value) for name, value in entry.items()})


def _field(where: str, name: str, value: Any) -> Any:
    kind = type(value)
    is_plain = kind is _EXACT.get(name) and (kind is not int or value >= 0)
    return value if is_plain else _CHECKS[name](where, name, value)


# ---- Chrome trace ----

# number of the first thread for messages that travel while a rank computes: bars of one thread must not overlap
_MESSAGES = 1_000_000


def chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """The events in Chrome's trace-event format: one process per source, one thread per rank (and one for its
    overlapped messages, if there are any), complete events ("ph": "X") in microseconds.

    A message that was started is drawn from when the one before it was complete: they travel one after the other, as in
    the predicted timeline. The clocks of two sources have nothing in common, so each source starts at 0. Times are
    rounded to nanoseconds, the start and the end of a bar each for itself: bars that touch still touch. Format: "Trace
    Event Format", Google, sections on complete and metadata events.
    """
    events = one_after_the_other(events)
    origin = {source: EventLog(tuple(e for e in events if e.source == source)).start_s for source in SOURCES}
    bars = [_bar(e, origin[e.source]) for e in events]
    # of two bars of a rank that start together one has no length and comes first
    bars.sort(key=lambda bar: (bar["ts"], bar["pid"], bar["tid"], bar["dur"]))
    names: list[dict[str, Any]] = []
    for pid, source in enumerate(SOURCES):
        ranks = sorted({e.rank for e in events if e.source == source})
        sending = sorted({e.rank for e in events if e.source == source and e.overlapped})
        if ranks:
            names += _named("process", pid, 0, source, pid)
        for rank in ranks:
            names += _named("thread", pid, rank, f"rank {rank}", rank)
        for rank in sending:
            names += _named("thread", pid, _MESSAGES + rank, f"rank {rank}: messages meanwhile", rank)
    return {"traceEvents": names + bars, "displayTimeUnit": "ms"}


def one_after_the_other(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events as they are drawn: those of messages that were started begin when the rank's message before is over.

    Their own start is when they were handed over; behind others they then wait for the line.
    """
    found = list(events)
    free: dict[tuple[str, int], float] = {}  # when the line of a rank is
    started = [n for n, e in enumerate(found) if e.overlapped]
    for place in sorted(started, key=lambda n: found[n].start_s):  # stable: as they were started
        event = found[place]
        line = event.source, event.rank
        start_s = min(max(event.start_s, free.get(line, event.start_s)), max(event.end_s, event.start_s))
        found[place] = replace(event, start_s=start_s)
        free[line] = max(event.end_s, free.get(line, event.end_s))
    return tuple(found)


def _named(what: str, pid: int, tid: int, name: str, place: int) -> list[dict[str, Any]]:
    """The two entries that give a "process" or "thread" its name and its place among the others."""
    head = {"ph": "M", "ts": 0, "pid": pid, "tid": tid}
    order = {"name": f"{what}_sort_index", **head, "args": {"sort_index": place}}
    return [{"name": f"{what}_name", **head, "args": {"name": name}}, order]


def _bar(event: Event, origin_s: float) -> dict[str, Any]:
    start_us, end_us = (round((t - origin_s) * 1e6, 3) for t in (event.start_s, event.end_s))
    args: dict[str, Any] = {"step": event.step, "phase": event.phase, "op": event.op, "source": event.source}
    if event.group:
        args |= {"group": list(event.group), "bytes": event.bytes}
    return {
        "name": event.name,
        "cat": event.kind,
        "ph": "X",
        "ts": start_us,
        "dur": round(end_us - start_us, 3),
        "pid": SOURCES.index(event.source),
        "tid": _MESSAGES + event.rank if event.overlapped else event.rank,
        "args": args,
    }


def save_chrome_trace(events: Iterable[Event], path: str | os.PathLike[str]) -> Path:
    """Write `chrome_trace(events)` as JSON, symbolic links followed, and return the path; no reader sees a part of it.

    Raises DataFileError if it cannot be written, or is not a regular file.
    """
    return write_whole(path, json.dumps(chrome_trace(events), separators=(",", ":"), allow_nan=False) + "\n")
