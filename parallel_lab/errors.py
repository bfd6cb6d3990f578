"""The exception family, the message builder, and the escaping of text shown in notebooks.

Every error a user can meet derives from `ParallelLabError` and also from the builtin they would expect, so both of these catch a bad
strategy:

    except parallel_lab.ParallelLabError: ...
    except ValueError: ...

A message says where (operator, file:line), what was given, what is allowed, and what to try; `message()` puts the four in that order.
"""

from __future__ import annotations

import html

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CellError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ContextError",
    "DataFileError",
    "DatasetError",
    "DeadlockError",
    "LayoutError",
    "MissingPackage",
    "ParallelLabError",
    "PlanError",
    "RankDied",
    "RankRaised",
    "ShapeError",
    "SharedMemoryTooSmall",
    "StrategyError",
    "StrategyTypeError",
    "TraceError",
    "WorkersClosed",
    "escape",
    "message",
    "shorten",
]


class ParallelLabError(Exception):
    """Base of every error raised on purpose by parallel_lab."""


class LayoutError(ParallelLabError, ValueError):
    """A tensor layout that does not describe a placement: wrong axis, axis used twice, dim that does not divide."""


class ShapeError(ParallelLabError, ValueError):
    """Operand shapes or dtypes that an operator cannot take."""


class StrategyError(ParallelLabError, ValueError, RuntimeError):
    """A sharding strategy that is refused. MindSpore raises RuntimeError at compile time, a Python user expects ValueError: it is both."""


class StrategyTypeError(StrategyError, TypeError):
    """A sharding strategy of the wrong Python type (MindSpore raises TypeError in `shard`)."""


class ArgumentError(ParallelLabError, ValueError):
    """A value out of range given to a layer, initializer or optimizer; names that collide in a network."""


class ArgumentTypeError(ArgumentError, TypeError):
    """A value of the wrong Python type given to a Cell, layer, initializer or optimizer."""


class CellError(ParallelLabError, AttributeError, RuntimeError):
    """A Cell used before it is ready: no super().__init__(), no construct, an attribute that is not there."""


class TraceError(ParallelLabError, RuntimeError):
    """Something in `construct` that cannot be traced, such as reading the value of a tensor."""


class ContextError(ParallelLabError, ValueError):
    """A parallel setting that is unknown or out of range."""


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


class SharedMemoryTooSmall(ParallelLabError, OSError):
    """The machine cannot give the shared memory that was asked for."""


class DataFileError(ParallelLabError, ValueError):
    """A data file that is missing, cut short or not what it claims to be."""


class DatasetError(ArgumentError, RuntimeError):
    """A data pipeline put together or used wrongly. MindSpore raises RuntimeError when it runs, a Python user expects ValueError: it is both."""


class MissingPackage(ParallelLabError, ImportError):
    """An optional package that is needed now and is not installed."""


def message(what: str, *, where: str = "", allowed: str = "", hint: str = "") -> str:
    """One error text: `where: what. allowed. hint`, empty parts left out.

    >>> message("strategy ((3, 1),) has a 3", where="ReLU 'act' (lesson.py:14)", allowed="Counts are powers of two", hint="Try ((2, 1),)")
    "ReLU 'act' (lesson.py:14): strategy ((3, 1),) has a 3. Counts are powers of two. Try ((2, 1),)."
    """
    parts = [part.strip() for part in (what, allowed, hint) if part]
    # one full stop after each part; the three dots of "1, 2, 4, ..." stay
    body = " ".join(part if part.endswith("...") else part.rstrip(".") + "." for part in parts)
    return f"{where}: {body}" if where else body


def shorten(value: object, limit: int = 80) -> str:
    """`repr(value)` cut to `limit` characters, for error texts that quote what was given."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def escape(text: object) -> str:
    """Text made safe for HTML: the one function through which names and messages reach a notebook page."""
    return html.escape(str(text), quote=True)
