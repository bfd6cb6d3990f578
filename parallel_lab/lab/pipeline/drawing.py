"""Changes of a schedule, one cell at a time; each is refused, in the words of the schedule check, if it makes a fault
that was not there.

    drawn = moved(settings, 0, 3, onto=0, to=5)            a Schedule, or an ArgumentError that says why not
    left_to_do(schedule, 0)                                "0F4", "0B1", "0W1": the next of every kind, per part

A position counts the cells of a rank; actions that run as one are one cell. An action that is missing is not a fault of
a schedule that somebody draws: it is still to do. But no action is drawn before one of its own rank that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...base.checks import is_int
from ...base.errors import ArgumentError, shorten
from ...base.units import plural
from ...cost.schedules import Fault, Schedule
from ...cost.schedules.auto import Work, auto_schedule
from ...cost.schedules.order import KINDS, loop, shape_v
from ...cost.schedules.text import read_action
from .settings import DRAWN, Cells, Settings, cells_of, with_cells

LARGEST_TEXT = 100_000  # characters of a schedule


def faults_of(settings: Settings, schedule: Schedule) -> list[Fault]:
    """What is wrong with a schedule, apart from actions that are missing."""
    return [fault for fault in schedule.check(settings.caps) if fault.kind != "never"]


def changed(settings: Settings, cells: Cells, where: str, about: Sequence[str] = (), hint: str = "") -> Schedule:
    """The schedule with these cells. Raises ArgumentError where they make a fault that was not there: of several one
    at an action of `about`, which is what was changed."""
    drawn = with_cells(settings.schedule, cells)
    before, after = ([*faults_of(settings, s), *_too_early(s)] for s in (settings.schedule, drawn))
    known = {_kind_of(fault) for fault in before}
    new = [fault for fault in after if _kind_of(fault) not in known]
    if new:  # what is in the wrong order fills the memory too: the order is the reason
        first = min(new, key=lambda fault: (fault.kind == "memory", fault.action not in about))
        raise ArgumentError(first.text, where=where, hint=hint)
    return drawn


def _too_early(schedule: Schedule) -> Iterator[Fault]:
    """Actions that need one which their own rank alone can do and has not drawn: it would have to come before them."""
    for rank, lane in enumerate(schedule.ranks):
        alone = {part for part in schedule.holds[rank] if sum(part in mine for mine in schedule.holds) == 1}
        for at, action in enumerate(lane):
            for part, kind, n in reversed(schedule.needs(action)):
                missing = (part, kind, n) not in schedule.where
                if missing and part in schedule.holds[rank] and (part == action.stage or part in alone):
                    name = f"{part}{kind}{n}"
                    text = f"action {at} of rank {rank}: {action} needs {name}, which rank {rank} has not done yet"
                    yield Fault("input", rank, at, str(action), f"{text}: {name} must come first")


def has_weights(settings: Settings) -> bool:
    """Whether weight gradients are actions of their own: they take time, or the schedule has some."""
    return settings.times[2] > 0 or settings.schedule.splits_backward


def _kind_of(fault: Fault) -> tuple[Any, ...]:
    """What makes two faults the same before and after a change. A full memory or a deadlock is reported at one action
    of many."""
    return (fault.kind, fault.rank) if fault.kind in ("memory", "deadlock") else (fault.kind, fault.rank, fault.action)


def put(settings: Settings, rank: int, action: str, position: int) -> Schedule:
    """An action more, before the cell at `position` (-1: at the end)."""
    where = "PipelineLab.put"
    cells = _ranks(settings, rank, where)
    mine = cells[rank]
    cell = tuple(read_action(word, where) for word in _text(action, where).split("+"))
    if not has_weights(settings) and any(a.kind == "W" for a in cell):
        what = f"{action}: W takes no time here, so B is the whole backward"
        raise ArgumentError(what, where=where, hint="Give W a time of its own, the third of F:B:W")
    at = len(mine) if position == -1 else _position(position, len(mine) + 1, "position", where)
    mine.insert(at, cell)
    return changed(settings, cells, where)


def put_next(settings: Settings, rank: int, kind: str, position: int) -> Schedule:
    """The next action of a kind, of the first part for which the schedule check has nothing against it."""
    where = "PipelineLab.put_next"
    _ranks(settings, rank, where)
    options = [action for action in left_to_do(settings, rank) if action[1] == kind]
    if kind not in KINDS or not options:
        what = f"rank {rank} has no {shorten(kind)} left to do"
        left = ", ".join(f"{p}{k}{n}" for p, k, n in left_to_do(settings, rank)) or "nothing"
        raise ArgumentError(what, where=where, allowed=f"It still has {left}")
    refused = None
    for part, _, number in sorted(options, key=lambda option: (option[2], option[0])):
        try:
            return put(settings, rank, f"{part}{kind}{number}", position)
        except ArgumentError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def moved(settings: Settings, rank: int, position: int, onto: int, to: int) -> Schedule:
    """A cell to another place in its lane, or in that of another rank `onto`: `to` is its position afterwards."""
    where = "PipelineLab.move" if onto == rank else "PipelineLab.move_onto"
    cells = _ranks(settings, rank, where)
    at = _position(position, len(cells[rank]), "position", where)
    if onto == rank:
        cells[rank].insert(_position(to, len(cells[rank]), "to", where), cells[rank].pop(at))
        return changed(settings, cells, where)
    _ranks(settings, onto, where)
    cell = cells[rank].pop(at)
    cells[onto].insert(_position(to, len(cells[onto]) + 1, "to", where), cell)
    fits = all(action.stage in settings.schedule.holds[onto] for action in cell)
    hint = "" if fits else "Where parts lie comes with the schedule: choose another, or load one as text"
    return changed(settings, cells, where, [str(action) for action in cell], hint)


def removed(settings: Settings, rank: int, position: int) -> Schedule:
    """A cell less. What needs it cannot run any more, which is not a fault: it is still to do."""
    where = "PipelineLab.remove"
    cells = _ranks(settings, rank, where)
    cells[rank].pop(_position(position, len(cells[rank]), "position", where))
    return with_cells(settings.schedule, cells)


def cleared(settings: Settings, ranks: Sequence[int]) -> Schedule:
    """Lanes without actions."""
    cells = cells_of(settings.schedule)
    for rank in ranks:
        _ranks(settings, rank, "PipelineLab.clear")
        cells[rank] = []
    return with_cells(settings.schedule, cells)


def left_to_do(settings: Settings, rank: int) -> list[tuple[int, str, int]]:
    """The next (part, kind, micro-batch) of every kind that is still to do in each part of a rank; weight gradients
    where they take time, and a backward is divided or some could still be."""
    schedule = settings.schedule
    done = schedule.where
    total = schedule.parts * schedule.micro_batches
    whole = not schedule.splits_backward and sum(1 for key in done if key[1] == "B") == total
    whole = whole or not has_weights(settings)
    left = []
    for part in schedule.holds[rank]:
        for kind in KINDS:
            number = next((n for n in range(schedule.micro_batches) if (part, kind, n) not in done), None)
            if number is not None and not (kind == "W" and whole):
                left.append((part, kind, number))
    return left


def next_missing(settings: Settings) -> dict[int, list[str]]:
    """For each rank whose lane is not complete: the next of every kind that it must still do. Weight gradients only
    where some backward is divided; elsewhere they may be drawn (`left_to_do`), and nothing waits for them."""
    missing = {}
    for rank in range(settings.stages):
        left = left_to_do(settings, rank)
        missing[rank] = [f"{p}{k}{n}" for p, k, n in left if k != "W" or settings.schedule.splits_backward]
    return {rank: names for rank, names in missing.items() if names}


def still_missing(schedule: Schedule) -> int:
    """How many actions are still to be drawn."""
    kinds = 3 if schedule.splits_backward else 2
    drawn = {key for key in schedule.where if key[1] != "W" or schedule.splits_backward}
    return kinds * schedule.parts * schedule.micro_batches - len(drawn)


def read_schedule(settings: Settings, text: str) -> Schedule:
    """A schedule from a text, a line per rank, or from PyTorch's CSV. Raises ArgumentError where it cannot be read or
    does not fit the stages.
    """
    where, s = "PipelineLab.load", settings
    if not isinstance(text, str) or len(text) > LARGEST_TEXT:
        what = f"a text of {len(text)} characters" if isinstance(text, str) else f"text {shorten(text)}"
        raise ArgumentError(what, where=where, allowed=f"A text of at most {LARGEST_TEXT} characters")
    read = Schedule.from_csv if "," in text else Schedule.from_text
    drawn = _on_ranks(s, read(text), where)
    same = all(set(mine) <= set(known) for mine, known in zip(drawn.holds, s.schedule.holds, strict=True))
    how = {"parts": s.schedule.parts if same else max(drawn.parts, s.stages), "micro_batches": s.micro_batches}
    if same:
        how["holds"] = s.schedule.holds
    return read(text, name=DRAWN, **how)


def _on_ranks(settings: Settings, drawn: Schedule, where: str) -> Schedule:
    """A schedule that was read from a text, on the lab's ranks. Raises ArgumentError where it does not fit them."""
    if len(drawn) != settings.stages:
        what = f"the schedule has {plural(len(drawn), 'rank')}"
        raise ArgumentError(what, where=where, allowed=f"{settings.stages}, a line for each stage")
    most = max((a.micro_batch for lane in drawn for a in lane), default=0)
    if most >= settings.micro_batches:
        what, allowed = f"there is a micro-batch {most}", f"0 to {settings.micro_batches - 1}: set micro-batches first"
        raise ArgumentError(what, where=where, allowed=allowed)
    return drawn


def found_schedule(settings: Settings) -> Schedule:
    """A good schedule for the present times and cap. Raises ArgumentError where nothing was found that fits the cap."""
    s = settings
    if isinstance(s.latency, tuple):
        what = "a latency for each border"
        raise ArgumentError(
            what, where="PipelineLab.search", allowed="One for all messages: the search knows no borders"
        )
    chunks, place = _place(s.schedule, s.stages)
    shares = tuple(t / chunks for t in s.times)
    cap = s.cap if s.cap is not None else s.micro_batches * chunks
    how = {"chunks": chunks, "place": place, "times": shares, "latency": s.latency, "split": s.times[2] > 0}
    work = Work.on(s.stages, s.micro_batches, cap, **how)
    return with_cells(s.schedule, cells_of(auto_schedule(work)))


def _place(schedule: Schedule, stages: int) -> tuple[int, str]:
    """(parts on a rank, how they lie) of a schedule, as a search takes it. Raises ArgumentError for two copies."""
    chunks = max(1, schedule.parts // stages)
    for place, holds in (("loop", loop(stages, chunks)), ("v", shape_v(stages, chunks))):
        if schedule.holds == holds:
            return chunks, place
    what = "the parts of this schedule lie in an order of their own"
    raise ArgumentError(what, where="PipelineLab.search", allowed="Parts that go around, or down and up again")


def checked_rank(settings: Settings, rank: Any, where: str) -> int:
    """One of the ranks. Raises ArgumentError."""
    if not is_int(rank, 0, settings.stages - 1):
        raise ArgumentError(f"rank {shorten(rank)}", where=where, allowed=f"0 to {settings.stages - 1}")
    return rank


def _ranks(settings: Settings, rank: Any, where: str) -> Cells:
    checked_rank(settings, rank, where)
    return cells_of(settings.schedule)


def _position(position: Any, count: int, what: str, where: str) -> int:
    if not is_int(position, 0, count - 1):
        allowed = f"0 to {count - 1}" if count else "None: the lane is empty"
        raise ArgumentError(f"{what} {shorten(position)}", where=where, allowed=allowed)
    return position


def _text(action: Any, where: str) -> str:
    if not isinstance(action, str):
        raise ArgumentError(f"action {shorten(action)}", where=where, allowed="A text such as '0F4'")
    return action
