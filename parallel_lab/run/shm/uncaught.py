"""An exception that ends a rank: told to its peers at once, printed once.

Used by workers, by scripts under a launcher and by processes that met without one. Who raised first prints a traceback; a rank that was only stopped
by that prints one line.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from types import TracebackType

from ...errors import ParallelLabError
from ...origin import short_file
from .arena import ABORT, Arena

__all__ = ["TRACEBACK_VARIABLE", "follows_fault", "leave_note", "print_error", "text_of", "traceback_text"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep  # parallel_lab/
_SYSTEM = (_PACKAGE, "<frozen", "<string>", runpy.__file__)  # "<string>": what dataclasses generate
TRACEBACK_VARIABLE = "PARALLEL_LAB_TRACEBACK"  # "full": tracebacks show the package's own lines too
TEXT_LIMIT = 20_000  # characters of an exception's own text that are carried on


def follows_fault(error: BaseException) -> bool:
    """True for an exception raised while one of ours was handled: a consequence of what stopped the run, whatever its type."""
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
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}... ({len(text)} characters)"


def leave_note(arena: Arena, rank: int, error: BaseException) -> bool:
    """Let every peer of `rank` know that it ends with `error`; returns whether the error only follows from another rank's."""
    if isinstance(error, KeyboardInterrupt) and arena.words[ABORT]:
        return True
    own_fault = getattr(error, "secondary", None)
    if own_fault is not None:
        return bool(own_fault)
    follows = follows_fault(error)
    place = last_place(error)
    where = f" ({place})" if place else ""
    text = ". ".join(part.rstrip(".") for part in (text_of(error), *getattr(error, "__notes__", ())))[:500]
    what = f"left by sys.exit({text})" if isinstance(error, SystemExit) else f"raised {type(error).__name__}: {text}"
    arena.write_fault(rank, "RankRaised", f"rank {rank} {what}{where}.", rank=rank)
    return follows


def last_place(error: BaseException) -> str:
    """file:line of the innermost frame that is the user's, "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{short_file(f.filename)}:{f.lineno}" for f in frames if not f.filename.startswith(_SYSTEM)]
    return places[-1] if places else ""


def print_error(error: BaseException, trace: TracebackType | None, follows: bool) -> None:
    """To stderr: the traceback; one line for an error that follows from another rank's."""
    if follows:
        if not isinstance(error, KeyboardInterrupt):
            stopped = getattr(error, "stopped", "")
            # a cell ends with the reason, in red; the log file of a rank has to hold it itself
            said = f", see below: {stopped}" if stopped and '"%%ranks"' in os.environ.get("PARALLEL_LAB_WORLD", "") else f": {text_of(error)}"
            print(f"{type(error).__name__}{said}", file=sys.stderr, flush=True)
        return
    print(traceback_text(error, trace), end="", file=sys.stderr, flush=True)


def traceback_text(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback as Python writes it, without lines that help nobody: of an error that the package raised for a reason (ParallelLabError), and of
    one raised by the user's own code, those inside the package are left out. A last line says how many, and how to see them.
    """
    shown = traceback.TracebackException(type(error), error, trace)
    left_out = 0
    one: traceback.TracebackException | None = shown
    while one is not None and os.environ.get(TRACEBACK_VARIABLE) != "full":
        kept = [frame for frame in one.stack if not frame.filename.startswith(_SYSTEM)]
        if kept and (isinstance(error, ParallelLabError) or one.stack[-1] is kept[-1]):
            left_out += len(one.stack) - len(kept)
            one.stack = traceback.StackSummary.from_list(kept)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    text = "".join(shown.format())
    if left_out:
        text += f"({left_out} line{'s' if left_out > 1 else ''} inside parallel_lab left out; {TRACEBACK_VARIABLE}=full shows all)\n"
    return text
