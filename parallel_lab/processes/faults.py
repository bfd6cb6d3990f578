"""Errors that end a rank or a run: the texts for peers and for the notebook, and what is printed.
The rank that raised first prints a traceback; a rank that was only stopped by that prints one line.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
import traceback
from types import TracebackType

import dill

from ..base import errors
from ..base.errors import TRACEBACK_VARIABLE
from ..base.origin import PACKAGE, is_learners, short_file
from ..run import calls
from . import checked_calls, started
from .flight import FlightEntry

_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SYSTEM = (PACKAGE, "<frozen", "<string>", runpy.__file__)  # "<string>": what dataclasses generate
TEXT_LIMIT = 20_000  # characters of an exception's own text that are carried on
CAUSE_BYTES = 8 << 20  # a larger exception object is reported by its text only
SAME_CALLS = "All members of a group must make the same calls in the same order"


class RunInterrupted(KeyboardInterrupt):
    """The run was interrupted. `except Exception` in user code does not swallow a KeyboardInterrupt."""

    raised_here = False  # in the main thread of this process, the one that a signal would interrupt once more

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        if threading.current_thread() is threading.main_thread():
            RunInterrupted.raised_here = True


_FAULTS = ("RankDied", "RankRaised", "CollectiveMismatch", "CollectiveTimeout", "DeadlockError")
FAULT_ERRORS: dict[str, type[BaseException]] = {name: getattr(errors, name) for name in _FAULTS}
FAULT_ERRORS["Interrupted"] = RunInterrupted


def follows_fault(error: BaseException) -> bool:
    """True for an exception raised while one of ours was handled: a consequence of what stopped the run."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if getattr(error, "secondary", False):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def text_of(error: BaseException) -> str:
    """The error's text, at most TEXT_LIMIT characters, also where its `__str__` raises."""
    try:
        text = str(error)
    except Exception as inner:  # an exception whose __str__ raises is still an exception to report
        text = f"<str() of it raised {type(inner).__name__}>"
    return limited(text, TEXT_LIMIT)


def exit_code(given: object) -> int:
    """The exit code of sys.exit(given)."""
    if given is None:
        return 0
    return (given & 0xFF or (1 if given else 0)) if isinstance(given, int) else 1


def limited(text: str, characters: int) -> str:
    """The text, at most so many characters of it."""
    return text if len(text) <= characters else f"{text[:characters]}... ({len(text)} characters)"


def last_place(error: BaseException) -> str:
    """file:line of the innermost frame that is the user's, "" without one."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{short_file(f.filename)}:{f.lineno}" for f in frames if is_learners(f.filename)]
    return places[-1] if places else ""


def print_error(error: BaseException, trace: TracebackType | None, follows: bool) -> None:
    """To stderr: the traceback; one line for an error that follows from another rank's."""
    if not follows:
        print(traceback_text(error, trace), end="", file=sys.stderr, flush=True)
    elif not isinstance(error, KeyboardInterrupt):
        stopped, in_cell = getattr(error, "stopped", ""), '"%%ranks"' in os.environ.get("PARALLEL_LAB_WORLD", "")
        # a cell ends with the reason, in red; the log file of a rank has to hold it itself
        said = f", see below: {stopped}" if stopped and in_cell else f": {text_of(error)}"
        print(f"{type(error).__name__}{said}", file=sys.stderr, flush=True)


def traceback_text(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback as Python writes it, without the package's own lines in a ParallelLabError or a user's error;
    a last line says how many were left out, and how to see them.
    """
    shown = traceback.TracebackException(type(error), error, trace)
    left_out = 0
    one: traceback.TracebackException | None = shown
    while one is not None and os.environ.get(TRACEBACK_VARIABLE) != "full":
        kept = [frame for frame in one.stack if not frame.filename.startswith(_SYSTEM)]
        if kept and (isinstance(error, errors.ParallelLabError) or one.stack[-1] is kept[-1]):
            left_out += len(one.stack) - len(kept)
            one.stack = traceback.StackSummary.from_list(kept)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    text = "".join(shown.format())
    if left_out:
        text += f"{errors.left_out_text(left_out)}\n"
    return text


def error_report(error: BaseException) -> bytes:
    """The notebook's report of an exception that ended a rank's function, for `outcome.load_report`."""
    own_fault = getattr(error, "secondary", None)
    return dill.dumps(
        {
            "kind": "raised" if own_fault is None else type(error).__name__,
            "secondary": bool(follows_fault(error) if own_fault is None else own_fault),
            "type": type(error).__name__,
            "text": text_of(error),
            "time_s": time.monotonic(),
            "frames": [(f.filename, f.lineno, f.name, f.line or "") for f in _user_frames(error)],
            "cause": _carried(error) if own_fault is None else None,
        }
    )


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames from the user's function down to the first one of the communicator."""
    modules = (checked_calls, started, calls)
    ours = tuple(_FOLDER + os.path.join(room, "") for room in ("shm", "mpi"))
    ours += tuple(os.path.abspath(module.__file__) for module in modules)
    frames = list(traceback.extract_tb(error.__traceback__))
    own = [os.path.abspath(f.filename).startswith(ours) for f in frames]
    start = next((i for i, inside in enumerate(own) if not inside), len(frames))
    stop = next((i for i in range(start, len(frames)) if own[i]), len(frames))
    return frames[start:stop]


def _carried(error: BaseException) -> bytes | None:
    """The exception as bytes that are known to load again, or None."""
    try:
        body = dill.dumps(error, recurse=True)
        if len(body) > CAUSE_BYTES or not isinstance(dill.loads(body), BaseException):
            return None
        return body
    except Exception:  # unpicklable for whatever reason: its text goes instead
        return None


def unread_text(source: int, to: int, sent: int, received: int) -> str:
    """What is wrong with a run that has ended before all messages of one rank to another were received."""
    what = f"rank {source} sent {sent} message{'s' if sent != 1 else ''} to rank {to}, which received {received}"
    return errors.message(what, allowed="Every send needs its recv")


def difference(one: FlightEntry, other: FlightEntry) -> str:
    """What is wrong with two calls that should have been one."""
    first, second = sorted((one, other), key=lambda entry: entry.rank)
    names = ("kind", "group", "number", "dtype", "shape", "detail", "origin")
    differing = [n for n in names if getattr(first, n) != getattr(second, n)]
    if first.kind == second.kind and "number" in differing and len(differing) > 1:
        differing.remove("number")
    different = ", ".join(differing) or "the number of calls"
    what = f"rank {first.rank} called {first} and rank {second.rank} called {second}; they differ in {different}"
    hint = calls.TWO_LINES if what.endswith("differ in origin") else ""
    return errors.message(what, allowed=SAME_CALLS, hint=hint)
