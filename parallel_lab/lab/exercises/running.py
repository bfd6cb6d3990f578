"""Running what a learner wrote: never for ever, never with an exception, and with a log that the engine keeps.

    called = attempt(weights, (4, 4, 2))             # called.value, or called.fault with file:line
    value = ask("n numbers", weights, (4, 4, 2))     # the value, or Wrong with the fault
    run = run_programs(ring, ranks=4, values=...)    # generators that yield Requests, on simulated ranks
    run.results, run.messages, run.steps             # or run.fault; `ask_programs` raises Wrong with that

A call is stopped after `seconds` where the function runs in another process (`own_process.py`), as those of an answer
do in `check`; in a page, which has no other one, at the next line of the learner's.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from inspect import unwrap
from itertools import islice
from types import GeneratorType
from typing import Any

import numpy as np

from ...base.errors import ParallelLabError, shorten
from ...base.origin import PACKAGE, is_learners, short_file
from ...base.system import IN_BROWSER
from ...ops.collectives.definitions import MESSAGES
from ...run.communicator import Request, Start
from ...run.simulator import simulate
from .verdict import Wrong

SECONDS = 4.0  # of one call of a learner's function; right answers take milliseconds
STOPPED = "stopped: still running after"
MOST_REQUESTS = 5_000  # of one run of rank programs; an algorithm of 8 ranks needs a few hundred
MOST_ITEMS = 100_000  # of a list that is an answer
_LIMIT: ContextVar[tuple[float, float] | None] = ContextVar("limit", default=None)  # when time is over; its seconds


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Calls into another process, made inside, have `seconds` together; within another deadline, no more than that."""
    limit, outer = (time.monotonic() + seconds, seconds), _LIMIT.get()
    token = _LIMIT.set(limit if outer is None or limit < outer else outer)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def time_left() -> tuple[float, float]:
    """Seconds that a call has, and of how many: of the deadline around it, or SECONDS."""
    limit = _LIMIT.get()
    return (SECONDS, SECONDS) if limit is None else (limit[0] - time.monotonic(), limit[1])


# ---- what went wrong ----


@dataclass(frozen=True)
class Fault:
    """Why a learner's code gave no result: the error in a line, `file:line` of the learner's innermost line ("cell": a
    notebook's) and its code, and of a rank program the rank.
    """

    text: str
    place: str = ""
    code: str = ""
    rank: int | None = None

    def wrong(self, expected: str = "", note: str = "") -> Wrong:
        """What a grader raises for it."""
        line = f"\n{self.place}: {self.code}" if self.code else ""
        return Wrong(f"{self.text}{line}", expected, note, self.rank, f"at {self.place}" if self.place else "")


class Told(Exception):
    """Carries the fault of a learner's code that ran in another process.  returned: the line that its function left"""

    def __init__(self, fault: Fault, returned: str = "") -> None:
        super().__init__(fault.text)
        self.fault, self.returned = fault, returned


def fault_of(error: BaseException, rank: int | None = None, *, frames: Sequence[Any] | None = None) -> Fault:
    """An exception from a learner's code as a Fault.  frames: where it was, if not where the exception says"""
    if isinstance(error, Told):
        return replace(error.fault, rank=rank)
    own = _learners(traceback.extract_tb(error.__traceback__) if frames is None else frames)
    place = f"{short_file(own.filename)}:{own.lineno}" if own else ""
    text = str(error)
    if not isinstance(error, ParallelLabError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return Fault(text, place, (own.line or "").strip() if own else "", rank)


def _learners(frames: Sequence[Any]) -> Any:
    """The innermost frame of a learner's file. numpy's and Python's own files are no place to look at, unless there is
    nothing else.
    """
    outside = [frame for frame in frames if not frame.filename.startswith(PACKAGE)]
    return next((frame for frame in reversed(outside) if is_learners(frame.filename)), outside[-1] if outside else None)


def place_in(frames: Sequence[Any]) -> tuple[str, int] | None:
    """(file, line) of the innermost frame of a learner's file."""
    own = _learners(frames)
    return (own.filename, own.lineno) if own else None


def is_machine_fault(error: BaseException, grader: Any) -> bool:
    """Whether what ended a grader is the machine's fault: no line of a learner's is among those that led to it."""
    if not isinstance(error, ImportError | OSError):
        return False
    own = getattr(getattr(grader, "__code__", None), "co_filename", "")
    return all(f.filename == own or not is_learners(f.filename) for f in traceback.extract_tb(error.__traceback__))


# ---- a function ----


def _stop_late(frame: Any, event: str, _: Any) -> Any:
    """A trace function: stops a learner's code in this process at its next line, once its time is over. A page has no
    other process; compiled code, one long product, is not stopped there.
    """
    if not is_learners(frame.f_code.co_filename):
        return None
    left_s, limit_s = time_left()
    if event == "line" and left_s <= 0:
        file, line = frame.f_code.co_filename, frame.f_lineno
        text, code = f"{STOPPED} {limit_s:g} s", linecache.getline(file, line).strip()
        raise Told(Fault(text, f"{short_file(file)}:{line}", code))
    return _stop_late


def _next_of(program: Generator[Any, Any, Any], reply: Any) -> Any:
    """The next request of a rank program; in a page, within its time."""
    if not IN_BROWSER or sys.gettrace() is not None:
        return program.send(reply)
    sys.settrace(_stop_late)
    try:
        return program.send(reply)
    finally:
        sys.settrace(None)


class Followed:
    """A learner's function, called as it is; remembers the line from which it last returned."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.place = function, ""

    def __call__(self, *args: Any) -> Any:
        code = getattr(unwrap(self.function), "__code__", None)
        if code is None or sys.gettrace() is not None:  # a debugger's
            return self.function(*args)

        def returned(frame: Any, event: str, arg: Any) -> Any:
            if event == "return":
                self.place = f"{short_file(code.co_filename)}:{frame.f_lineno}"
            elif IN_BROWSER:
                _stop_late(frame, event, arg)
            return returned

        def entered(frame: Any, event: str, arg: Any) -> Any:
            if frame.f_code is not code:
                return _stop_late(frame, event, arg) if IN_BROWSER else None
            frame.f_trace_lines = IN_BROWSER
            return returned

        sys.settrace(entered)
        try:
            return self.function(*args)
        finally:
            sys.settrace(None)

    def __repr__(self) -> str:
        return repr(self.function)


def place_of(answer: Any) -> str:
    """`in bubble, cell:3`: the line of a followed function that gave its last value; "" for another answer."""
    if not isinstance(answer, Followed) or not answer.place:
        return ""
    return f"in {answer.function.__name__}, {answer.place}"


@dataclass(frozen=True)
class Called:
    """What a call gave: `value`, or `fault` if it gave none."""

    value: Any = None
    fault: Fault | None = None


def attempt(function: Any, *args: Any, seconds: float = SECONDS) -> Called:
    """Call a learner's function; whatever it raises, and that it does not end, is in `fault`."""
    if not callable(function):
        return Called(fault=Fault(f"{shorten(function)} is not a function"))
    try:
        with deadline(seconds):
            return Called(function(*args))
    except KeyboardInterrupt:  # the learner's own
        raise
    except BaseException as error:  # SystemExit of an exit() too: it must not end the kernel
        return Called(fault=fault_of(error))


def ask(expected: str, function: Any, *args: Any) -> Any:
    """What a learner's function returns. Raises Wrong if it raises or does not end; expected: what it should give."""
    called = attempt(function, *args)
    if called.fault is not None:
        raise called.fault.wrong(expected)
    return called.value


def read_number(value: Any) -> float | None:
    """A number that a learner gave, as a float; None for anything else (None, text, arrays of several)."""
    if value is None or isinstance(value, str | bytes | bool):
        return None
    try:
        return float(value)
    except Exception:  # the value's own code may raise anything
        return None


def listed(value: Any, most: int = MOST_ITEMS) -> list[Any]:
    """The items of what a learner gave. Raises ValueError for more than `most`: an iterator may have no end."""
    items = list(islice(value, most + 1))
    if len(items) > most:
        raise ValueError(f"more than {most} items")
    return items


# ---- rank programs ----


@dataclass(frozen=True)
class Asked:
    """A request of a rank, as the log has it.

    size_bytes   that it makes the rank send
    origin       the learner's file:line
    destination  of a send
    step         of a send, its place in time, from 1: a rank sends one message after the other, and what depends on a
                 message comes after it
    held_bytes   what it hands over and what it is answered, together
    """

    rank: int
    kind: str
    size_bytes: int
    origin: str
    destination: int | None = None
    step: int = 0
    held_bytes: int = 0

    @property
    def op(self) -> str:
        """`send 2 -> 3 at cell:7`, `all_gather at cell:7`"""
        way = "" if self.destination is None else f" {self.rank} -> {self.destination}"
        return f"{self.kind}{way}" + (f" at {self.origin}" if self.origin else "")


@dataclass(frozen=True)
class ProgramRun:
    """What rank programs did.  results: what each returned, () with a fault;  asked: every request, in order."""

    ranks: int
    results: tuple[Any, ...] = ()
    asked: tuple[Asked, ...] = ()
    fault: Fault | None = None

    @property
    def messages(self) -> tuple[Asked, ...]:
        """Every send."""
        return tuple(a for a in self.asked if a.step)

    @property
    def steps(self) -> int:
        """Length of the longest chain of messages, each waiting for the one before: 0 without a message."""
        return max((a.step for a in self.asked), default=0)

    def asked_by(self, rank: int) -> tuple[Asked, ...]:
        """A rank's requests in order."""
        return tuple(a for a in self.asked if a.rank == rank)

    def sent_bytes(self, rank: int) -> int:
        """Bytes that a rank sent."""
        return sum(a.size_bytes for a in self.asked_by(rank))


class _Log:
    """The engine's record of a run; the programs never see it."""

    def __init__(self, ranks: int) -> None:
        self.asked: list[Asked] = []
        self.last = [-1] * ranks  # per rank, the place of its last request
        self.clock = [0] * ranks  # per rank, the step of the last message that it sent or received
        self.on_the_way: dict[tuple[int, ...], deque[int]] = {}

    def ask(self, rank: int, request: Request, origin: str) -> None:
        if len(self.asked) >= MOST_REQUESTS:
            raise RuntimeError(f"still communicating after {MOST_REQUESTS} requests, at {origin}")
        step, destination = 0, None
        is_send = request.kind == "send" and request.value is not None
        if is_send and isinstance(request.group, tuple) and len(request.group) == 2:
            self.clock[rank] += 1
            step, destination = self.clock[rank], request.group[1]
            self.on_the_way.setdefault(request.group, deque()).append(step)
        self.last[rank] = len(self.asked)
        self.asked.append(Asked(rank, str(request.kind), _must_send(request, rank), origin, destination, step))

    def answered(self, rank: int, request: Any, reply: Any) -> None:
        if isinstance(request, Request):
            place = self.last[rank]
            held = sum(array.nbytes for array in (request.value, reply) if isinstance(array, np.ndarray))
            self.asked[place] = replace(self.asked[place], held_bytes=held)
        if isinstance(request, Request) and request.kind == "recv" and self.on_the_way.get(request.group):
            self.clock[rank] = max(self.clock[rank], self.on_the_way[request.group].popleft())


def _must_send(request: Request, rank: int) -> int:
    try:
        size_bytes = 0 if request.value is None else request.value.nbytes
        position, how = request.group.index(rank), request.window or request.route
        return MESSAGES[request.kind].payload_bytes(size_bytes, len(request.group), how, position)
    except Exception:  # the simulator says what is wrong with the request
        return 0


class _Raised(BaseException):
    """Carries an exception of one rank's program through the simulator."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def line_of(program: Any) -> str:
    """Where a generator stands now, `file:line`."""
    inner = program
    if not isinstance(inner, GeneratorType):  # of another process, which knows it
        return str(getattr(inner, "place", ""))
    while isinstance(inner.gi_yieldfrom, GeneratorType):
        inner = inner.gi_yieldfrom
    frame = inner.gi_frame
    return f"{short_file(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def _watched(rank: int, make: Callable[[], Any], log: _Log) -> Generator[Any, Any, Any]:
    """A learner's program, passed on request by request and written down."""
    reply = None
    try:
        program = make()
        if not isinstance(program, Generator):
            return program  # without a yield it is a function: a rank that sends nothing
        while True:
            try:
                item = _next_of(program, reply)
            except StopIteration as end:
                return end.value
            request = item.request if isinstance(item, Start) else item
            if isinstance(request, Request):
                origin = line_of(program)
                log.ask(rank, request, origin)
                request = replace(request, origin=request.origin or origin)  # the learner's line, and not the next one
                item = Start(request) if isinstance(item, Start) else request
            reply = yield item
            log.answered(rank, item, reply)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise _Raised(fault_of(error, rank)) from error


def run_programs(program: Any, ranks: int, values: Sequence[Any], *, seconds: float = SECONDS) -> ProgramRun:
    """Run `program(rank, ranks, value)`, a generator function that yields Requests, on every simulated rank.
    It may write into `values`: give each call copies. Deadlocks, misfits, exceptions and endless programs: `fault`.
    """
    if not callable(program):
        return ProgramRun(ranks, fault=Fault(f"{shorten(program)} is not a function"))
    log, fault, results = _Log(ranks), None, ()
    try:
        with deadline(seconds):
            results = tuple(
                simulate([_watched(r, lambda r=r: program(r, ranks, values[r]), log) for r in range(ranks)])
            )
    except _Raised as raised:
        fault = raised.fault
    except ParallelLabError as error:  # of the simulator: a deadlock, requests that do not fit
        fault = Fault(str(error))
    return ProgramRun(ranks, results, tuple(log.asked), fault)


def ask_programs(expected: str, program: Any, ranks: int, values: Sequence[Any], note_for_wait: str = "") -> ProgramRun:
    """A run of rank programs that has ended. Raises Wrong if it does not; expected: what it should give.

    note_for_wait  the note where ranks wait for ever
    """
    run = run_programs(program, ranks, values)
    if run.fault is not None:
        raise run.fault.wrong(expected, note_for_wait if "waits in its call" in run.fault.text else "")
    return run
