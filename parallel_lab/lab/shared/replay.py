"""What a page without a kernel can do: settings that are a few commands away, computed beforehand by the lab itself.

    replay = explore(lab, Limits(states=60))
    replay.states[0]                  what the page opens on
    replay.moves[0]                   {'["set_mode","size"]': 3, ...}: which state a command leads to
    pack(replay, kind, room)          the same as text for the page, in `room` characters

Breadth first: everything that is one command away from the lab as it stands, then what is two away, until a limit. The
commands (`Lab.replays`) are really done, on copies of the lab; a page looks their results up and computes nothing. One
that the lab refuses is refused on the page, with the same words.

What only chooses what is looked at (`Lab.looks`) makes no state: the parts of a snapshot that it changes lie next to
it, in "looks": {"tensor|phase": {"w|forward": {...}}}, and a section holds its own in "of" (sections.py). Where such a
part is itself something that is looked at, choosing the one brings the other along. "*" stands for all that is not
listed.

States have most of their parts in common. `pack` writes every different part once, those of one place side by
side, and a state as what differs from the state before it; then it deflates the text.
"""

from __future__ import annotations

import base64
import json
import math
import os
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...base.errors import ArgumentError, ParallelLabError
from ...base.progress import UNATTENDED, Progress

Call = Sequence[Any]  # a command and its arguments
CURVES = ("parallel", "single")  # the losses of a training, in the snapshot's "loss"
MANY = 100  # states
DEEP = 5  # levels of a snapshot whose parts are distinguished: sections, a section, its "of", one choice, its rows


class Limits(NamedTuple):
    """Where to end: so many states, or so many seconds of this thread's own time, whatever else the machine does."""

    states: int = 1000
    seconds: float = 2.0


WHOLE = Limits()
IN_A_CELL = Limits(40, 0.3)  # its page is made anew whenever the cell runs, and a learner waits


@dataclass
class Replay:
    """states: snapshots of pages, the first one the lab's own;  moves: of each state, commands as JSON -> number of the
    state they lead to, or why they are refused. Shorter than `states` where a limit was met: of the last ones nothing
    is known but the free choices.
    """

    states: list[dict[str, Any]] = field(default_factory=list)
    moves: list[dict[str, int | str]] = field(default_factory=list)


def limits_in_a_cell() -> Limits:
    """How much the page in the output of a cell replays."""
    return WHOLE if os.environ.get(UNATTENDED) else IN_A_CELL


def call_text(call: Call) -> str:
    """A command as JSON, as JSON.stringify writes it."""
    return json.dumps(list(call), separators=(",", ":"), ensure_ascii=False)


def settings_of(lab: Any) -> list[list[Any]]:
    """The calls that make the lab what it is, without those that only choose what is looked at."""
    return [call for call in lab.calls() if call[0] not in lab.looks]


def key_of(calls: Sequence[Call]) -> str:
    """Settings as text: two labs with the same one are in the same state."""
    return call_text(calls)


def replaced(calls: Sequence[Call], call: Call) -> list[Call]:
    """Settings after a free choice: nothing but its own call differs."""
    return [call if known[0] == call[0] else known for known in calls]


def explore(lab: Any, limits: Limits, progress: Progress | None = None) -> Replay:
    """The lab's state, and those that its `replays` lead to.  progress: in seconds of `limits`"""
    begun, progress = time.thread_time(), progress or Progress()
    end, done, free = begun + limits.seconds, progress.done, {lab.command_of(name) for name in lab.free}

    def state(of: Any, calls: Sequence[Call] | None) -> dict[str, Any]:
        form = ready if of is lab else _nine_digits  # the lab's own stands on the page as it is, others are packed
        return {**form(of.page_snapshot()), **of.how_shown(), "calls": calls}

    try:
        calls = settings_of(lab)
    except ArgumentError:  # it stands where no command leads: it can be looked at
        return Replay([state(lab, None)])
    found, numbers = Replay([state(lab, calls)]), {key_of(calls): 0}
    waiting = deque([(lab.branch(), calls)]) if limits.states > 1 else deque()
    while waiting:
        at, calls = waiting.popleft()
        moves: dict[str, int | str] = {}
        found.moves.append(moves)
        for call in at.replays():
            known = key_of(replaced(calls, call)) if call[0] in free else None
            if known in numbers:
                continue
            if len(numbers) >= limits.states or time.thread_time() > end:
                return found
            progress.step(done + time.thread_time() - begun - progress.done)
            other = at.branch()
            try:
                getattr(other, call[0])(*call[1:])
            except ParallelLabError as error:
                moves[call_text(call)] = str(error)
                continue
            then = settings_of(other)
            key = key_of(then)
            if key not in numbers:
                numbers[key] = len(found.states)
                found.states.append(state(other, then))
                waiting.append((other, then))
            if key != known:
                moves[call_text(call)] = numbers[key]
    return found


# ---- as text ----


def pack(found: Replay, kind: type[Any], room: int) -> str:
    """Deflated and in base64; as many states as have room in so many characters, or 5 in 100 fewer, but the first one
    in any case: what can be looked at lies in it. A few of very many tell how many that may be.
    """

    def text_of(count: int) -> str:
        text = _table(found, count, kind, *_placed(found.states[:count]))
        return base64.b64encode(zlib.compress(text.encode(), 9)).decode()

    every = len(found.states)
    best, low, high, before, size = "", 0, every + 1, 0, 0  # low fits, high does not
    count = every if every <= MANY else every // 4
    while low < count < high:
        packed = text_of(count)
        if len(packed) > room:
            high = count
        else:
            best, low = packed, count
            if len(packed) > 0.95 * room:
                break
        each = max(1.0, (len(packed) - size) / (count - before))
        before, size = count, len(packed)
        count = min(max(count + int((0.975 * room - size) / each), low + 1), high - 1)
    return best or text_of(1)


def _placed(states: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, ...]], list[list[str]], list[dict[int, int]]]:
    """Paths, of each its different parts as JSON, and of every state {path: number of its part}. Both are numbered as
    they come, so that fewer states have the first ones of them.
    """
    paths: dict[tuple[str, ...], int] = {}
    versions: list[dict[str, int]] = []
    placed: list[dict[int, int]] = []
    for state in states:
        mine = {}
        for path, part in _parts({**state, "recording": None}):  # which is large, and stands on the page itself
            place = paths.setdefault(path, len(paths))
            if place == len(versions):
                versions.append({})
            mine[place] = versions[place].setdefault(_text(part), len(versions[place]))
        placed.append(mine)
    return list(paths), [list(known) for known in versions], placed


def _table(
    found: Replay,
    count: int,
    kind: type[Any],
    paths: list[tuple[str, ...]],
    versions: list[list[str]],
    placed: list[dict[int, int]],
) -> str:
    """What the page reads (alone.js), as JSON: paths, parts, and of every state what differs from the one before."""
    used: dict[int, int] = {}  # of each path how many of its parts
    for mine in placed[:count]:
        for place, n in mine.items():
            used[place] = max(used.get(place, 0), n + 1)
    first, parts = [], []  # which are JSON already
    for place in range(len(used)):
        first.append(len(parts))
        parts += versions[place][: used[place]]
    before: dict[int, int] = {}
    states = []
    for mine in placed[:count]:
        gone = [[place, -1] for place in before if place not in mine]
        new = [[place, first[place] + n] for place, n in mine.items() if before.get(place) != n]
        states.append([x for pair in gone + new for x in pair])
        before = mine
    calls: dict[str, int] = {}
    moves = []
    for known in found.moves[:count]:
        kept = {call: to for call, to in known.items() if isinstance(to, str) or to < count}
        moves.append([x for call, to in kept.items() for x in (calls.setdefault(call, len(calls)), to)])
    names = {"kind": kind.__name__, "looks": dict(kind.looks), "free": [kind.command_of(name) for name in kind.free]}
    rest = _text({**names, "paths": paths[: len(used)], "states": states, "calls": list(calls), "moves": moves})
    return f'{{"parts":[{",".join(parts)}],{rest[1:]}'


def _parts(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, part in value.items():
        here = (*path, str(name))
        if isinstance(part, Mapping) and part and len(here) < DEEP:
            yield from _parts(part, here)
        else:
            yield here, part


def ready(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot for JSON: losses with nine digits (which name any float32), NaN and infinity as null (a gap)."""
    return _nine_digits(_finite(snapshot))


def _nine_digits(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(snapshot)
    if "loss" in shown:
        curves = {name: _finite(shown["loss"].get(name)) or [] for name in CURVES}
        curves = {name: [y if y is None else float(f"{y:.9g}") for y in curve] for name, curve in curves.items()}
        shown["loss"] = {**shown["loss"], **curves}
    return shown


def _text(part: Any) -> str:
    """A part of a state as JSON. Few have NaN in them, and to look for it takes longer than to write it."""
    try:
        return _JSON.encode(part)
    except ValueError:
        return _JSON.encode(_finite(part))


def _finite(value: Any) -> Any:
    """Plain data of the same form, without NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return _finite(value.tolist()) if hasattr(value, "tolist") else value


def plain(value: Any) -> Any:
    """numpy scalars and arrays, sets and the like, as JSON can carry them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a snapshot may hold plain values only, not {type(value).__name__}")


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=plain)
