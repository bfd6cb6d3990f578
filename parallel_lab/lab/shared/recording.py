"""A recorded run: what every rank did and held at every step, in one small value that can be stepped through.

    with Session(plan, net, optimizer, executor="processes") as session:
        keeper = Keeper(session)
        keeper.train(batches, 100)
    recording = keeper.recording
    print(recording.text())
    recording.first_difference(3)        the first step at which a slice of rank 3 was no longer that of its copies
    recording.save("run.json")           Recording.load reads it again, within limits

All executors give the same numbers, times aside. It stays small: of a long run every second step is kept, or every
fourth, and so on, and the times of its messages and computations perhaps of fewer of them; `text()` says of how many.
First differences are found before a step is dropped: they are exact.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, DataFileError, shorten
from ...base.events import SOURCES, Event
from ...base.files import write_whole
from ...base.plain_json import read_json
from ...base.units import bytes_text, plural, table_lines, time_text
from ...cost.memory import MEMORY_KINDS, predict_memory
from ...cost.schedules.order import KINDS
from ...graph.plan import Plan
from ...train.recorder import RankSteps, Recorder, trained
from ...train.replicas import holders_of
from ...train.session import Session
from .records import require, taken, written
from .sections import Section, table

FORMAT, VERSION = "parallel_lab recording", 2
OFTEN = 200  # steps after which ranks are asked for their records, at the latest
MOST_STEPS = 1000  # kept of a run
MOST_TIMES = 600_000  # starts and ends: 2 MB of text
MOST_SUMS = 250_000  # checksums, of all slices: 2.5 MB of text with the sizes
MOST_BYTES = 5 << 20  # of a file
MOST_RANKS, MOST_TENSORS, MOST_LANE = 64, 2000, 20_000  # that a file may have; instructions of a rank
TICK_S = 1e-7  # the unit of times

FACTS = attrgetter("phase", "kind", "name", "op", "overlapped", "group", "bytes")  # of an event, in a `Ran`
GAPS = ("losses", "sizes")  # of values that have overflown: they need not be finite

# of S kept steps, R ranks, T tensors, D steps with times, N instructions of all ranks: dtype and shape
ARRAYS = {
    "steps": ("<u4", "S"),
    "losses": ("<f8", "SR"),
    "sent": ("<f8", "SR"),
    "held": ("<f8", "SR"),
    "sums": ("<u4", "SRT"),
    "sizes": ("<f4", "SRT"),
    "took": ("<f4", "S"),
    "timed": ("<u4", "D"),
    "times": ("<u4", "DN2"),
}


@dataclass(frozen=True)
class Ran:
    """An instruction of a rank: what an `Event` says of it at every step.

    message   its number among the messages of the plan, from 1; 0: it is not in that list
    live      bytes that the rank holds while it runs, by kind of memory, predicted from the plan; () where unknown
    action    of the schedule, "2F0": forward of part 2 with micro-batch 0; "": it belongs to no micro-batch
    """

    phase: str
    kind: str
    name: str
    op: str
    overlapped: bool
    group: tuple[int, ...]
    bytes: int
    message: int
    live: tuple[int, ...]
    action: str


@dataclass(frozen=True)
class Difference:
    """At `step` (from 1) the slice of `tensor` on `rank` was for the first time not what it is on ranks `others`, which
    hold the same part of it.
    """

    rank: int
    step: int
    tensor: str
    others: tuple[int, ...]

    @property
    def text(self) -> str:
        """In a sentence."""
        several = len(self.others) > 1
        than = f"rank{'s' * several} {', '.join(map(str, self.others))} hold{'s' * (not several)}"
        return (
            f"step {self.step} is the first at which rank {self.rank}'s part of {self.tensor} differs from what {than}"
        )


@dataclass(frozen=True, eq=False)
class Recording:
    """S steps of R ranks.

    source     "simulated" or "measured"
    taken      steps that it has seen: from `first` to `first + taken - 1`, counted from 1
    tensors    T parameters that are trained
    holders    of each tensor, for each rank the first one that holds the same part; -1: it holds none
    lanes      what each rank runs in a step, in order;  differs: the first difference of each rank that has one
    every, every_times   one of so many steps is kept, and one of so many of those with its times; the last one always
    steps      (S,) their numbers, from 1
    losses     (S, R) of each rank;  sent, held: (S, R) bytes, counted: handed over to messages, held after the step
    sums       (S, R, T) checksums of the bits of each slice after the step;  sizes: root mean squares of its values
    took       (S,) seconds from the first start on any rank to the last end on any
    timed      (D,) places in `steps` of those whose times are kept;  times: (D, N, 2) start and end of each instruction
               of rank 0, 1, ... in units of TICK_S since the step began

    All arrays are read-only.
    """

    source: str
    first: int
    taken: int
    tensors: tuple[str, ...]
    holders: tuple[tuple[int, ...], ...]
    lanes: tuple[tuple[Ran, ...], ...]
    differs: tuple[Difference, ...]
    every: int
    every_times: int
    steps: np.ndarray
    losses: np.ndarray
    sent: np.ndarray
    held: np.ndarray
    sums: np.ndarray
    sizes: np.ndarray
    took: np.ndarray
    timed: np.ndarray
    times: np.ndarray

    def __post_init__(self) -> None:
        for name, (dtype, _) in ARRAYS.items():
            array = np.ascontiguousarray(getattr(self, name), dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def ranks(self) -> int:
        return len(self.lanes)

    def first_difference(self, rank: int) -> Difference | None:
        """Where a slice of `rank` first differed from its copies; None if it never did."""
        if not 0 <= rank < self.ranks:
            raise ArgumentError(f"rank {shorten(rank)}", where="Recording", allowed=f"0 to {self.ranks - 1}")
        return next((one for one in self.differs if one.rank == rank), None)

    def followed_by(self, other: Recording) -> Recording:
        """Both, where `other` goes on with the same program; else `other` alone: another one has begun."""
        same = (self.lanes, self.tensors, self.holders) == (other.lanes, other.tensors, other.holders)
        if not same or other.first != self.first + self.taken:
            return other
        known = {one.rank for one in self.differs}
        differs = (*self.differs, *(one for one in other.differs if one.rank not in known))
        both = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in ARRAYS}
        both["timed"] = np.concatenate([self.timed, other.timed + len(self.steps)])
        return replace(self, taken=self.taken + other.taken, differs=differs, **both)._bounded()

    def _bounded(self) -> Recording:
        """With no more steps and times than fit: the even ones of those that are kept, and the last."""
        every, every_times, each = self.every, self.every_times, max(1, 2 * sum(map(len, self.lanes)))
        most = max(1, min(MOST_STEPS, MOST_SUMS // max(1, self.ranks * len(self.tensors))))
        while -(-self.taken // every) > most:
            every *= 2
        # what is said of each instruction stands in the same file
        times = MOST_TIMES - sum(len(json.dumps(written((one,)))) for one in set().union(*self.lanes)) // 4
        while -(-self.taken // (every * every_times)) * each > times and every * every_times < self.taken:
            every_times *= 2
        last = self.first + self.taken - 1
        kept = np.flatnonzero(((self.steps - self.first) % every == 0) | (self.steps == last))
        numbers = self.steps[self.timed]
        timed = ((numbers - self.first) % (every * every_times) == 0) | (numbers == last)
        timed &= np.isin(self.timed, kept)
        parts = {
            name: getattr(self, name)[kept] for name in ("steps", "losses", "sent", "held", "sums", "sizes", "took")
        }
        parts |= {"timed": np.searchsorted(kept, self.timed[timed]), "times": self.times[timed]}
        return replace(self, every=every, every_times=every_times, **parts)

    # ---- in words ----

    @property
    def said(self) -> str:
        """How much of the run it has, in a line."""
        last = self.first + self.taken - 1
        text = f"{self.source}: steps {self.first} to {last} of {plural(self.ranks, 'rank')}"
        kept = "all kept" if self.every == 1 else f"one in {self.every} kept"
        times = "all" if len(self.timed) == len(self.steps) else f"{len(self.timed)} of {len(self.steps)}"
        return f"{text}, {kept}, with the times of {times}"

    @property
    def verdict(self) -> str:
        """What differs, in words."""
        copies = any(mine.count(rank) > 1 for mine in self.holders for rank in set(mine) - {-1})
        if self.differs:
            return "; ".join(one.text for one in sorted(self.differs, key=lambda one: (one.step, one.rank)))
        return (
            "copies were equal at every step, bit for bit" if copies else "no rank holds a copy of what another holds"
        )

    def rows(self, rows: int = 6) -> list[tuple[str, ...]]:
        """Some of its steps, evenly, below their heads."""
        shown = sorted({round(at) for at in np.linspace(0, len(self.steps) - 1, rows)}) if len(self.steps) else []
        found = [("step", "loss", "step takes", "sent by a rank", "held by a rank")]
        for at in shown:
            losses = dict.fromkeys(f"{loss:.6g}" for loss in self.losses[at])
            ends = [(int(a[at].min()), int(a[at].max())) for a in (self.sent, self.held)]
            both = (" to ".join(dict.fromkeys(map(bytes_text, pair))) for pair in ends)
            found.append((str(self.steps[at]), ", ".join(losses), time_text(float(self.took[at])), *both))
        return found

    def text(self, rows: int = 6) -> str:
        """The run as a table of some of its steps, and what differs."""
        verdict = f"{self.verdict[:1].upper()}{self.verdict[1:]}."
        return "\n".join([f"Recording, {self.said}", *table_lines(self.rows(rows)), verdict])

    def section(self) -> Section:
        """The same as a section of a lab."""
        heads, *rows = self.rows()
        return table("Recorded run", dict.fromkeys(heads, "text"), rows, small=self.said, notes=[self.verdict])

    # ---- as data ----

    @cached_property
    def packed(self) -> dict[str, Any]:
        """As JSON has it, and a page: rows of the table of what runs, numbers of its rows for each rank, and arrays of
        little-endian numbers, deflated, in base64.
        """
        rows: dict[Ran, int] = {}
        lanes = [[rows.setdefault(one, len(rows)) for one in lane] for lane in self.lanes]
        arrays = {}
        for name in ARRAYS:
            array = getattr(self, name)
            arrays[name] = base64.b64encode(zlib.compress(array.tobytes(), 6)).decode()
        head = {"source": self.source, "first": self.first, "taken": self.taken, "every": self.every}
        holders = [[one + 1 for one in mine] for mine in self.holders]  # 0: none
        head |= {"every_times": self.every_times, "tensors": list(self.tensors), "holders": holders}
        head |= {"differs": written(self.differs), "rows": written(tuple(rows)), "lanes": lanes}
        counts = [len(self.steps), len(self.timed)]
        return {"format": FORMAT, "version": VERSION, **head, "counts": counts, "arrays": arrays}

    @cached_property
    def shown(self) -> dict[str, Any]:
        """For a snapshot: `packed`, and what is said of it."""
        return {**self.packed, "kinds": list(MEMORY_KINDS), "said": self.said, "verdict": self.verdict}

    @classmethod
    def of_packed(cls, data: Any, where: str = "recording") -> Recording:
        """The recording of `packed`. Raises ArgumentError where something is not as it must be."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT or data.get("version") not in (1, VERSION):
            raise ArgumentError(shorten(data), where=where, allowed=f"Version {VERSION} of {FORMAT!r}")
        if data["version"] == 1 and isinstance(data.get("rows"), list):  # without actions
            data = {**data, "rows": [[*row, ""] if isinstance(row, list) else row for row in data["rows"]]}
        kinds = {"source": str, "first": int, "taken": int, "every": int, "every_times": int, "rows": tuple[Ran, ...]}
        kinds |= {"tensors": tuple[str, ...], "holders": tuple[tuple[int, ...], ...], "counts": tuple[int, int]}
        kinds |= {"differs": tuple[Difference, ...], "lanes": tuple[tuple[int, ...], ...]}
        names = {"format", "version", "arrays", *kinds}
        require(where, (set(data) == names, shorten(sorted(set(data) ^ names)), f"Exactly {', '.join(sorted(names))}"))
        head = {name: taken(kind, data[name], f"{where}.{name}") for name, kind in kinds.items()}
        rows, lanes, (steps, timed) = head.pop("rows"), head.pop("lanes"), head.pop("counts")
        ranks, tensors, longest = len(lanes), len(head["tensors"]), max(map(len, lanes), default=0)
        fits = {"S": steps, "R": ranks, "T": tensors, "D": timed, "N": sum(map(len, lanes)), "2": 2}
        head["holders"] = tuple(tuple(one - 1 for one in mine) for mine in head["holders"])
        require(
            where,
            (0 < ranks <= MOST_RANKS and longest <= MOST_LANE, f"{ranks} ranks", f"At most {MOST_RANKS}"),
            (tensors <= MOST_TENSORS, f"{tensors} tensors", f"At most {MOST_TENSORS}"),
            ((steps - 1) * ranks * tensors <= MOST_SUMS, f"checksums of {steps} steps", f"At most {MOST_SUMS}"),
            (0 < timed <= steps <= MOST_STEPS + 1, f"{steps} steps", f"At most {MOST_STEPS + 1}, some with times"),
            ((timed - 1) * fits["N"] <= MOST_TIMES, f"{timed} steps with times", f"At most {MOST_TIMES} numbers"),
            (head["source"] in SOURCES, head["source"], f"One of {SOURCES}"),
            (all(n < len(rows) for lane in lanes for n in lane), "a lane", "Numbers of rows"),
            (len(head["holders"]) == tensors, "holders", "Those of each tensor"),
            (all(len(mine) == ranks for mine in head["holders"]), "holders", "One of each rank"),
            (all(one < ranks for mine in head["holders"] for one in mine), "holders", f"Ranks below {ranks}"),
            (all(g < ranks for row in rows for g in row.group), "a group", f"Ranks below {ranks}"),
            (all(d.rank < ranks for d in head["differs"]), "differs", f"Ranks below {ranks}"),
            (isinstance(data["arrays"], Mapping) and set(data["arrays"]) == set(ARRAYS), "arrays", ", ".join(ARRAYS)),
        )
        arrays = {
            name: _array(data["arrays"][name], dtype, [fits[c] for c in shape], f"{where}.arrays.{name}")
            for name, (dtype, shape) in ARRAYS.items()
        }
        places, numbers = arrays["timed"], arrays["steps"].astype(np.int64)
        last = head["first"] + head["taken"] - 1
        require(
            where,
            (bool(np.all(np.diff(numbers) > 0)), "steps", "Ascending numbers"),
            (head["first"] <= numbers[0] and numbers[-1] == last, "steps", f"From {head['first']} to {last}"),
            (bool(np.all(np.diff(places.astype(np.int64)) > 0)) and places[-1] < steps, "timed", "Ascending places"),
            (bool(np.all(arrays["times"][..., 0] <= arrays["times"][..., 1])), "times", "Each start before its end"),
        )
        return cls(**head, **arrays, lanes=tuple(tuple(rows[n] for n in mine) for mine in lanes))

    def check_is_of(self, plan: Plan, where: str = "recording") -> None:
        """Raise ArgumentError unless a run of the plan may have recorded this."""
        numbers, names = _message_numbers(plan), trained(plan)
        same = self.ranks == plan.device_num and (self.tensors, self.holders) == (names, _holders(plan, names))
        require(where, (same, f"{plural(self.ranks, 'rank')} with other parameters", "Those of the settings"))
        for rank, lane in enumerate(self.lanes):
            runs = {(point.phase, point.name) for point in predict_memory(plan, rank=rank).timeline}
            for one in lane:
                at = one.phase, one.name
                holds = at in runs and one.message == numbers.get(at, 0) and len(one.live) in (0, len(MEMORY_KINDS))
                require(where, (holds, f"{shorten(one.name)} on rank {rank}", "Instructions that the settings lead to"))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON and return `path`: the file is whole, or as it was. Raises DataFileError."""
        return write_whole(path, json.dumps(self.packed, separators=(",", ":"), allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """What `save` has written. Raises DataFileError for another file."""
        data = read_json(path, DataFileError, hint="recording.save(path) writes one", max_bytes=MOST_BYTES)
        try:
            return cls.of_packed(data, str(path))
        except ArgumentError as error:
            raise DataFileError(str(error)) from error


def recorded(plan: Plan, ranks: Sequence[RankSteps]) -> Recording | None:
    """What the ranks of a plan have kept as a recording; None: no step was taken."""
    if not len(ranks[0].steps):
        return None
    steps, names = ranks[0].steps + 1, trained(plan)
    holders = _holders(plan, names)
    times = np.concatenate([_ended(mine) for mine in ranks], axis=1)  # of the machine's one clock, or the simulated one
    began_s = np.nanmin(times[..., 0], axis=1, initial=np.inf)
    complete = np.flatnonzero(~np.isnan(times).any(axis=(1, 2)))
    ticks = np.rint((times[complete] - began_s[complete, None, None]) / TICK_S)
    sums = np.stack([mine.sums for mine in ranks], axis=1)
    columns = {
        name: np.stack([getattr(mine, name) for mine in ranks], 1) for name in ("losses", "sent", "held", "sizes")
    }
    return Recording(
        source=ranks[0].what[0].source,
        first=int(steps[0]),
        taken=len(steps),
        tensors=names,
        holders=holders,
        lanes=_lanes(plan, ranks),
        differs=_differences(names, holders, sums, steps),
        every=1,
        every_times=1,
        steps=steps,
        sums=sums,
        took=np.nanmax(times[..., 1], axis=1, initial=-np.inf) - began_s,
        timed=complete,
        times=ticks,
        **columns,
    )._bounded()


class Keeper:
    """Records a session from now on, a few steps at a time: what its ranks keep stays small.

    recording   the steps so far, as far as they were asked for;  events: of the last steps of `train`, as asked for
    """

    def __init__(self, session: Session) -> None:
        self._session, self._recorder, self._to = session, Recorder(session), session.step
        self.recording: Recording | None = None
        self.events: list[Event] = []

    def keep(self, least: int = 1) -> Recording | None:
        """Add the steps that are new to the recording, if those are `least` or more. Not while a run goes on."""
        session, known = self._session, self.recording
        if session.step - self._to >= least:
            more, self._to = recorded(session.plan, self._recorder.take()), session.step
            self.recording = known.followed_by(more) if known is not None and more is not None else more
        return self.recording

    def watch(self, goes_on: bool) -> None:
        """Watch the session's present plan.  goes_on: it is the one that was recorded so far"""
        self.recording = self.recording if goes_on else None
        self._recorder.watch()

    def train(
        self, batches: list, steps: int, *, record: int = 0, stopped: Callable[[], bool] | None = None
    ) -> list[float]:
        """As `Session.train`, and what was done is in the recording."""
        losses: list[float] = []
        self.events = []
        for count in parts_of(steps):
            left = steps - len(losses) - count
            wanted = max(0, min(count, record - left))
            more = self._session.train(batches, count, record=wanted, stopped=stopped)
            losses += more
            self.events += self._session.events if wanted else []
            self.keep()
            if len(more) < count:
                break
        return losses


def parts_of(steps: int) -> list[int]:
    """So many steps in parts of at most OFTEN, the last one the longest."""
    return [count for count in (steps % OFTEN, *[OFTEN] * (steps // OFTEN)) if count]


def _ended(mine: RankSteps) -> np.ndarray:
    """(S, E, 2) starts and ends; a started message ends when it has come."""
    times = mine.times[..., :2].copy()
    starts = {(e.micro_batch, e.name): n for n, e in enumerate(mine.what) if e.overlapped}
    for n, event in enumerate(mine.what):
        started = starts.get((event.micro_batch, event.name)) if event.kind == "wait" else None
        if started is not None:
            times[:, started, 1] = np.maximum(times[:, started, 0], mine.times[:, n, 2])
    return times


def _holders(plan: Plan, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """As a `Recording` has them, of these parameters."""
    return tuple(
        tuple(at if plan.held_by(name, rank) else -1 for rank, at in enumerate(holders_of(plan, name)))
        for name in names
    )


def _message_numbers(plan: Plan) -> dict[tuple[str, str], int]:
    """As the table of messages has them, from 1, by phase and name."""
    listed = [(phase, i.out) for phase, i in plan.instructions() if i.is_communication or i.kind == "slice"]
    return {key: n for n, key in enumerate(listed, 1)}


def _lanes(plan: Plan, ranks: Sequence[RankSteps]) -> tuple[tuple[Ran, ...], ...]:
    numbers, lanes, action_of = _message_numbers(plan), [], action_names(plan)
    for rank, mine in enumerate(ranks):
        points = predict_memory(plan, rank=rank).timeline
        live = [point.live for point in points] if len(points) == len(mine.what) else [()] * len(mine.what)
        both = zip(mine.what, live, strict=True)
        lanes.append(tuple(Ran(*FACTS(e), numbers.get((e.phase, e.name), 0), now, action_of(e)) for e, now in both))
    return tuple(lanes)


def action_names(plan: Plan) -> Callable[[Event], str]:
    """A function of an event: the action of the schedule that it belongs to, "2F0", or ""."""
    parts, letters = {}, {}
    for number, stage in enumerate(plan.stages):
        letters |= {a.program: a.kind for a in stage.actions if a.kind in KINDS}
        for phase, program in stage.programs:
            parts |= {(number, phase, name): instr.stage for instr in program for name in instr.kept}
    numbers = {rank: number for number, stage in enumerate(plan.stages) for rank in stage.ranks}

    def action_of(event: Event) -> str:
        part, letter = parts.get((numbers[event.rank], event.phase, event.name)), letters.get(event.phase)
        return "" if part is None or letter is None else f"{part}{letter}{event.micro_batch}"

    return action_of


def _differences(
    names: Sequence[str], holders: Sequence[Sequence[int]], sums: np.ndarray, steps: np.ndarray
) -> tuple[Difference, ...]:
    """The first difference of each rank whose slices are not what most of its copies are."""
    found: dict[int, Difference] = {}
    for tensor, mine in enumerate(holders):
        for owner in sorted(set(mine) - {-1}):
            alike = [rank for rank, one in enumerate(mine) if one == owner]
            values = sums[:, alike, tensor]
            for at in np.flatnonzero((values != values[:, :1]).any(axis=1)):
                counts = {value: values[at].tolist().count(value) for value in values[at].tolist()}
                for rank, value in zip(alike, values[at].tolist(), strict=True):
                    step, known = int(steps[at]), found.get(rank)
                    if 2 * counts[value] <= len(alike) and (known is None or step < known.step):
                        others = tuple(r for r, v in zip(alike, values[at].tolist(), strict=True) if v != value)
                        found[rank] = Difference(rank, step, names[tensor], others)
    return tuple(found[rank] for rank in sorted(found))


def _array(text: Any, dtype: str, shape: Sequence[int], where: str) -> np.ndarray:
    """An array of `packed`, if it has exactly so many numbers, finite where they must be."""
    size, data = int(np.prod(shape)) * np.dtype(dtype).itemsize, b""
    try:
        if isinstance(text, str):
            data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise ArgumentError("what is deflated there", where=where, allowed="Numbers in base64") from error
    array = np.frombuffer(data, dtype).reshape(shape) if len(data) == size else None
    if array is None or not (where.endswith(GAPS) or np.isfinite(array).all()):
        raise ArgumentError(f"{len(data)} bytes", where=where, allowed=f"{size} bytes of numbers")
    return array
