"""The exception family, the message builder, and the escaping of text shown in notebooks.

Every error a user can meet derives from `ParallelLabError` and also from the builtin they would expect, so both of
these catch a bad strategy:

    except parallel_lab.ParallelLabError: ...
    except ValueError: ...

A text says where (operator, file:line), what was given, what is allowed, and what to try. An error takes the four by
name, and `message()` puts them in that order:

    raise ShapeError(f"axis={axis}", where="softmax", allowed="-2 to 1", hint="Count from the end: axis=-1")
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from functools import wraps
from traceback import walk_tb
from types import TracebackType
from typing import Any, TypeVar, cast

from .origin import CALLED, PACKAGE, is_learners

Function = TypeVar("Function", bound=Callable[..., Any])
_LONGEST_PART = 3000  # characters
_COMPLEX = re.compile(r"complex(64|128)|(?<![\w.])\d[\d.]*j\b|\.j\b")  # in what was given, wherever that was
_OF_REAL = "Compute with x.real and x.imag, a Tensor each: complex numbers are not built"
TRACEBACK_VARIABLE = "PARALLEL_LAB_TRACEBACK"  # "full": tracebacks show the package's own lines too


class ParallelLabError(Exception):
    """Base of every error raised on purpose by parallel_lab.

    what                  the whole text; or what was given, with the other parts by name, see `message`
    where, allowed, hint  parts of the text
    named                 attributes that the builtin error takes by name: AttributeError's `name` and `obj`
    """

    def __init__(
        self, what: object = "", *more: object, where: str = "", allowed: str = "", hint: str = "", **named: Any
    ) -> None:
        told = message(str(what), where=where, allowed=allowed, hint=hint) if where or allowed or hint else what
        super().__init__(told, *more, **named)

    def _render_traceback_(self: BaseException) -> list[str]:
        """What a notebook shows of it (IPython asks for this): the learner's own lines, and the text."""
        from IPython import get_ipython

        own, left_out = _own_lines(self.__traceback__)
        every = own is None or os.environ.get(TRACEBACK_VARIABLE) == "full"
        trace, offset = (self.__traceback__, 1) if every else (own, 0)
        shown = get_ipython().InteractiveTB.structured_traceback(type(self), self, trace, tb_offset=offset)
        if left_out and not every:
            shown.insert(-1, left_out_text(left_out))
        return shown


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has ended a run, or the waiting for one. A notebook shows the learner's own lines and the text."""

    _render_traceback_ = ParallelLabError._render_traceback_


def _own_lines(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """A traceback without calls inside this package, Python's own files and packages; how many of ours it had."""
    calls: list[TracebackType] = []
    while trace is not None:
        calls.append(trace)
        trace = trace.tb_next
    own, left_out = None, 0
    for call in reversed(calls):
        file = call.tb_frame.f_code.co_filename
        if file.startswith(PACKAGE):
            left_out += 1
        elif is_learners(file):
            own = TracebackType(own, call.tb_frame, call.tb_lasti, call.tb_lineno)
    return own, left_out


def left_out_text(calls: int) -> str:
    """The line that stands for calls inside this package in a traceback."""
    lines = f"{calls} line{'' if calls == 1 else 's'}"
    return f"({lines} inside parallel_lab left out; {TRACEBACK_VARIABLE}=full shows all)"


class _KeyError(KeyError):
    __str__ = Exception.__str__  # a KeyError shows the repr of its text


class LayoutError(ParallelLabError, ValueError):
    """A tensor layout that does not describe a placement: wrong axis, axis used twice, dim that does not divide."""


class LayoutTypeError(LayoutError, TypeError):
    """A layout made with values of the wrong Python type (MindSpore raises TypeError in `Layout`)."""


class ShapeError(ParallelLabError, ValueError, TypeError):
    """Operands or attributes that an operator cannot take. MindSpore raises ValueError, for types TypeError: both."""


class StrategyError(ParallelLabError, ValueError, RuntimeError):
    """A sharding strategy that is refused. MindSpore raises RuntimeError, Python code expects ValueError: both."""


class StrategyTypeError(StrategyError, TypeError):
    """A sharding strategy of the wrong Python type (MindSpore raises TypeError in `shard`)."""


class ArgumentError(ParallelLabError, ValueError):
    """A value out of range given to a layer, initializer or optimizer; names that collide in a network."""


class ArgumentTypeError(ArgumentError, TypeError):
    """A value of the wrong Python type given to a Cell, layer, initializer or optimizer."""


class StageNameError(ArgumentError, _KeyError):
    """A Cell named in a pipeline's stage_config that the network does not have (MindSpore raises KeyError)."""


class DeviceError(ArgumentError, RuntimeError):
    """A device target that is not known (MindSpore raises RuntimeError)."""


class CellError(ParallelLabError, AttributeError, RuntimeError):
    """A Cell used before it is ready: no super().__init__(), no construct, an attribute that is not there."""


class ShardConditionError(ParallelLabError, AssertionError):
    """`shard` of a Cell or function in a parallel mode that cannot do it (MindSpore asserts it)."""


class TraceError(ParallelLabError, RuntimeError):
    """Something in `construct` that cannot be traced, such as reading the value of a tensor."""


class TracedCommunication(TraceError):
    """A communication operator called by hand in a compiled network that has no place for it."""


class ContextError(ParallelLabError, ValueError):
    """A parallel setting that is unknown or out of range."""


class ContextTypeError(ContextError, TypeError):
    """A setting of the wrong Python type."""


class ContextKeyError(ContextError, _KeyError):
    """A wrong or missing key inside a setting that is a dict (MindSpore raises KeyError)."""


class ContextStrategyError(ContextError, StrategyError):
    """Counts of the inputs that no layout can have. MindSpore raises RuntimeError at compile time: it is both."""


class ContextConflictError(ContextError, RuntimeError):
    """Settings that are legal one by one and cannot hold together (MindSpore raises RuntimeError when it compiles)."""


class OptimizerParallelError(ContextConflictError):
    """Optimizer parallel with a mode, optimizer or number of ranks that does not suit it (MindSpore: RuntimeError)."""


class ContextPathError(ContextError, OSError):
    """A setting that names a folder which cannot be made."""


class PlanError(ParallelLabError, RuntimeError):
    """A plan that breaks its own rules; always a defect of a pass, shown with the lines around it."""


class DeadlockError(ParallelLabError, RuntimeError):
    """Ranks that wait for each other and can never go on (the simulator sees it at once)."""


class CollectiveMismatch(ParallelLabError, RuntimeError):
    """Members of one group that called different collectives, or the same one with different arguments."""


class CollectiveTimeout(ParallelLabError, TimeoutError):
    """A collective that some rank did not reach in time."""


class RankDied(ParallelLabError, RuntimeError):
    """The process of a rank ended while its peers still needed it."""


class RankRaised(ParallelLabError, RuntimeError):
    """A rank's own code raised; the original exception is `__cause__` where it could be carried over."""


class WorkersClosed(ParallelLabError, RuntimeError):
    """A call on workers that were stopped or have died."""


class WorldError(ParallelLabError, RuntimeError):
    """A call that needs a world of ranks where no world exists, or the wrong one: no `init`, or a process alone."""


class NotLaunched(WorldError):
    """`init` in a process that no launcher started."""


class WorldArgumentError(WorldError, ValueError):
    """A backend, group name, rank list or rank table that does not describe a world."""


class WorldTypeError(WorldError, TypeError):
    """An argument of a communication function that has the wrong Python type."""


class WorldTimeout(WorldError, TimeoutError):
    """Ranks that did not come to the place where all of them meet."""


class OutOfMemory(ParallelLabError, MemoryError):
    """A tensor larger than this machine's memory."""


class NoProcesses(WorldError, NotImplementedError):
    """Ranks as processes on a system where they cannot run."""


class LimitTooLow(WorldError, OSError):
    """A limit of the system that is too low for so many ranks."""


class SharedMemoryTooSmall(ParallelLabError, OSError):
    """The machine cannot give the shared memory that was asked for."""


class DataFileError(ParallelLabError, ValueError):
    """A data file that is missing, cut short or not what it claims to be."""


class CheckpointError(DataFileError, RuntimeError):
    """A checkpoint or strategy file that is missing or does not fit. MindSpore: ValueError; for shapes RuntimeError."""


class CheckpointCorrupt(CheckpointError):
    """A checkpoint whose bytes are not those that were written, or that was never a checkpoint."""


class CheckpointTypeError(CheckpointError, TypeError):
    """An argument of the wrong Python type given to a function that saves, loads or transforms checkpoints."""


class CheckpointKeyError(CheckpointError, _KeyError):
    """A parameter for which a strategy or a checkpoint has no entry."""


class CheckpointFolderError(CheckpointError, NotADirectoryError, IsADirectoryError):
    """A folder where a file should be, or the other way round."""


class CheckpointWriteError(CheckpointError, OSError):
    """A checkpoint that could not be written; what was there before is still there."""


class DatasetError(ArgumentError, RuntimeError):
    """A data pipeline built or used wrongly. MindSpore raises RuntimeError, Python code expects ValueError: both."""


class LossNotFinite(ParallelLabError, ValueError):
    """A loss that became NaN or infinite: the training cannot recover (ValueError, as MindSpore's LossMonitor)."""


class NonFinite(LossNotFinite):
    """NaN or an infinity in a rank's inputs, gradients, parameters or loss."""


class MetricEmpty(ParallelLabError, RuntimeError):
    """A metric asked for its result before it was given a sample."""


class MetricKeyError(ArgumentError, _KeyError):
    """A metric's name that is not known (MindSpore raises KeyError)."""


class ModelError(ParallelLabError, RuntimeError):
    """A call on a Model that its settings do not allow."""


class NotBuiltYet(ParallelLabError, NotImplementedError):
    """A setting that is known and kept, and a run that needs it: this version cannot do it yet."""


class MissingPackage(ParallelLabError, ImportError):
    """An optional package that is needed now and is not installed."""


class MissingName(ParallelLabError, AttributeError):
    """A name that MindSpore has, or might have, and this package has not, asked for as an attribute."""


class MissingImport(ParallelLabError, ImportError):
    """The same, asked for by `from mindspore... import name`."""


class MissingModule(ParallelLabError, ModuleNotFoundError):
    """A module that MindSpore has, or might have, and this package has not."""


def message(what: str, *, where: str = "", allowed: str = "", hint: str = "") -> str:
    """One error text: `where: what. allowed. hint`, empty parts left out.

    >>> where = "ReLU 'act' (lesson.py:14)"
    >>> message("strategy ((3, 1),) has a 3", where=where, allowed="Counts are powers of two", hint="Try ((2, 1),)")
    "ReLU 'act' (lesson.py:14): strategy ((3, 1),) has a 3. Counts are powers of two. Try ((2, 1),)."
    """
    hint = _OF_REAL if _COMPLEX.search(what) else hint
    where, *parts = (_whole(part) for part in (where, what.strip(), allowed.strip(), hint.strip()))
    # one full stop after each part; the three dots of "1, 2, 4, ..." stay
    body = " ".join(part if part.endswith("...") else part.rstrip(".") + "." for part in parts if part)
    return f"{where}: {body}" if where else body


def _whole(part: str) -> str:
    """A part of a text; of one that quotes half a file, the beginning."""
    return part if len(part) <= _LONGEST_PART else part[: _LONGEST_PART - 3] + "..."


# what Python and numpy raise where values do not suit the lines that use them
STUMBLES = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


def stumbled(
    error: Exception, where: str, of_type: type = ArgumentTypeError, of_value: type = ArgumentError, given: str = ""
) -> ParallelLabError | None:
    """The error to raise for one of STUMBLES that came out of a public function: values that this package's lines do
    not take. None for one that is ours already, or that a learner's line raised. of_type, of_value: what it becomes.
    """
    frames = [(frame.f_code.co_filename, frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    files = [file for file, module in frames if module == "__main__" or not CALLED.match(file)]
    if isinstance(error, ParallelLabError) or not files or not files[-1].startswith(PACKAGE):
        return None
    kind, allowed = of_type if isinstance(error, (TypeError, AttributeError)) else of_value, "What its docstring says"
    kind, allowed = (OutOfMemory, "") if isinstance(error, MemoryError) else (kind, allowed)
    made = kind(f"{given}{str(error) or type(error).__name__}", where=where, allowed=allowed)
    made.__cause__ = error
    return made


def in_family(of_type: type, of_value: type) -> Callable[[Function], Function]:
    """A decorator of a method: what `stumbled` says of an error that it raises."""

    def decorate(function: Function) -> Function:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return function(self, *args, **kwargs)
            except STUMBLES as error:
                if fault := stumbled(error, type(self).__name__, of_type, of_value):
                    raise fault from error
                raise

        return cast(Function, wraps(function)(call))

    return decorate


def shorten(value: object, limit: int = 80) -> str:
    """`repr(value)` shortened to `limit` characters, for error texts that quote what was given."""
    try:
        text = str.__str__(repr(value))
    except Exception as error:  # the value's own code, or an int of more digits than Python prints
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def escape(text: object) -> str:
    """Text made safe for HTML: the one function through which names and messages reach a notebook page."""
    return html.escape(str(text), quote=True)
