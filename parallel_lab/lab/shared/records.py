"""Results of runs in a lab's file: frozen dataclasses, whose fields say how they are written and what may be read.

    written(result)                    {"source": "measured", "step_s": 0.012, "lanes": [[["0F0", 0.0, 0.5, 0.5], ...]]}
    taken(RunResult, record, "run")    the result again. Raises ArgumentError that names the field

A dataclass is an object; one of several in a tuple is a row, its fields in order. A dict is a list of pairs. A number
that is not finite is null, and is read where it may be missing (`GAPS`). All numbers are 0 or more: times, bytes,
counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from ...base.errors import ArgumentError, shorten
from ...base.events import Event

GAPS = ("largest_difference", "bound")  # of tensors that have overflown
LONGEST = 1000  # characters of a text
LARGEST = 2**62  # of a number
MOST_LOSSES = 100_000  # steps of a run
MOST_EVENTS = 50_000  # of a step, on all ranks
EVENTS = ("what", "groups", "rows")
Plain = object  # the type of what `taken` hands on as it is
LARGEST_LOSS = float(np.finfo(np.float32).max)


def written(value: Any, row: bool = False) -> Any:
    """A result as plain data."""
    if is_dataclass(value):
        parts = {f.name: written(getattr(value, f.name)) for f in fields(value)}
        return list(parts.values()) if row else parts
    if isinstance(value, Mapping):
        return [[written(key), written(of)] for key, of in value.items()]
    if isinstance(value, tuple | list):
        return [written(one, row=True) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def taken(kind: Any, value: Any, where: str) -> Any:
    """What `written` has made of a `kind`: a dataclass, or the type of a field. Raises ArgumentError."""
    origin, of = get_origin(kind), get_args(kind)
    if kind is Plain:
        return value
    if is_dataclass(kind):
        return _object(kind, value, where)
    if origin is tuple and of[1:] == (...,):
        return tuple(taken(of[0], one, f"{where}[{n}]") for n, one in enumerate(_list(value, where)))
    if origin is tuple:
        return tuple(taken(*pair, where) for pair in zip(of, _list(value, where, len(of)), strict=True))
    if origin is dict:
        pairs = [_list(pair, where, 2) for pair in _list(value, where)]
        mapping = {taken(of[0], key, where): taken(of[1], one, where) for key, one in pairs}
        return mapping if len(mapping) == len(pairs) else _refuse(value, where, "Each key once")
    if NoneType in of:
        return None if value is None else taken(of[0], value, where)
    if kind is float:
        if value is None and where.rpartition(".")[2] in GAPS:
            return math.nan
        return float(_number(value, where, (int, float)))
    if kind is int:
        return _number(value, where, (int,))
    fits = type(value) is kind and (kind is not str or len(value) <= LONGEST)
    return (
        value if fits else _refuse(value, where, {str: f"A text of at most {LONGEST} characters"}.get(kind, "A flag"))
    )


def _object(kind: Any, value: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)]
    if isinstance(value, Mapping):
        parts = dict(value) if set(value) == set(names) else _refuse(list(value), where, f"Fields {', '.join(names)}")
    else:
        parts = dict(zip(names, _list(value, where, len(names)), strict=True))
    return kind(**{name: taken(hints[name], parts[name], f"{where}.{name}") for name in names})


def _list(value: Any, where: str, count: int | None = None) -> list[Any]:
    fits = isinstance(value, list) and count in (None, len(value))
    return value if fits else _refuse(value, where, "A list" if count is None else f"A list of {count}")


def _number(value: Any, where: str, types: tuple[type, ...]) -> Any:
    fits = isinstance(value, types) and not isinstance(value, bool) and 0 <= value < LARGEST
    return value if fits else _refuse(value, where, f"A {'whole' if types == (int,) else 'finite'} number from 0")


def _refuse(value: Any, where: str, allowed: str) -> Any:
    raise ArgumentError(shorten(value), where=where, allowed=allowed)


def require(where: str, *facts: tuple[Any, str, str]) -> None:
    """Raise ArgumentError for the first fact that does not hold.  facts: whether it holds, what it is about, allowed"""
    for holds, what, allowed in facts:
        if not holds:
            raise ArgumentError(what, where=where, allowed=allowed)


# ---- parts of records that are no dataclass ----


def part_of(record: Any, where: str, *names: str, **usual: Any) -> list[Any]:
    """The parts of an object that has these and no others.  usual: what those are that may be left out"""
    if not isinstance(record, Mapping) or not set(names) <= set(record) <= {*names, *usual}:
        _refuse(record, where, f"An object with {', '.join(names)}")
    return [(usual | dict(record))[name] for name in (*names, *usual)]


def losses_written(losses: Iterable[float]) -> list[float | None]:
    """A curve of float32, which nine digits name; null where it is not finite."""
    return [float(f"{y:.9g}") if math.isfinite(y) else None for y in losses]


def losses_taken(value: Any, where: str, most: int = MOST_LOSSES) -> list[float]:
    """The curve again."""
    if not isinstance(value, list) or len(value) > most:
        _refuse(value, where, f"A list of at most {most} numbers")
    for number, y in enumerate(value):
        if y is not None and not (isinstance(y, int | float) and not isinstance(y, bool) and abs(y) <= LARGEST_LOSS):
            _refuse(y, f"{where}[{number}]", "A float32 that is finite, or null")
    return [math.nan if y is None else float(np.float32(y)) for y in value]


def events_written(events: Iterable[Event]) -> dict[str, Any]:
    """What was measured in one step: "what" was done (phase, kind, name, op, overlapped) and the "groups" once each;
    "rows" of rank, number in "what", start and end in us since the first start, number in "groups", bytes. With their
    "source" where ranks were simulated.
    """
    ordered = list(events)
    first_s = min((e.start_s for e in ordered), default=0.0)
    what: dict[tuple[Any, ...], int] = {}
    groups: dict[tuple[int, ...], int] = {}
    rows = []
    for e in ordered:
        numbers = (
            what.setdefault((e.phase, e.kind, e.name, e.op, e.overlapped), len(what)),
            groups.setdefault(e.group, len(groups)),
        )
        start_us, end_us = (round((t - first_s) * 1e6, 1) for t in (e.start_s, e.end_s))
        rows.append([e.rank, numbers[0], start_us, end_us, numbers[1], e.bytes])
    simulated = {"source": "simulated"} if any(e.source == "simulated" for e in ordered) else {}
    return {"what": [list(one) for one in what], "groups": [list(one) for one in groups], "rows": rows, **simulated}


def events_taken(record: Any, where: str, devices: int) -> tuple[Event, ...]:
    """The events of a step of so many ranks again. Raises ArgumentError, also where a rank has no event."""
    what, groups, rows, source = part_of(record, where, *EVENTS, source="measured")
    if source not in ("simulated", "measured"):
        _refuse(source, f"{where}.source", "simulated, or measured")
    if len(_list(rows, f"{where}.rows")) > MOST_EVENTS:
        _refuse(len(rows), f"{where}.rows", f"At most {MOST_EVENTS}")
    what = taken(tuple[tuple[str, str, str, str, bool], ...], what, f"{where}.what")
    groups = taken(tuple[tuple[int, ...], ...], groups, f"{where}.groups")
    events = []
    for n, row in enumerate(taken(tuple[tuple[int, int, float, float, int, int], ...], rows, f"{where}.rows")):
        rank, of, start_us, end_us, group, size_bytes = row
        fits = rank < devices and of < len(what) and group < len(groups) and start_us <= end_us
        if not fits or not all(member < devices for member in groups[group]):
            _refuse(list(row), f"{where}.rows[{n}]", f"An event of one of {devices} ranks")
        phase, kind, name, op, overlapped = what[of]
        times = {"start_s": start_us * 1e-6, "end_s": end_us * 1e-6}
        more = {"group": groups[group], "bytes": size_bytes, "overlapped": overlapped, "source": source}
        events.append(Event(rank=rank, step=0, phase=phase, kind=kind, name=name, op=op, **times, **more))
    if {e.rank for e in events} != set(range(devices)):
        _refuse(len(events), f"{where}.rows", f"Events of each of {devices} ranks")
    return tuple(events)
