"""The hooks by which a low room reaches a higher one: what runs now. Few, and all of them here.

Operators, Tensors and Cells reach tracer, programs and communicator without imports: the higher room sets a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# The recorder that operators write to while a Cell is traced; None = operators run at once.
current_tracer: ContextVar[Any] = ContextVar("parallel_lab_tracer", default=None)


# The step taken outside a trace, an object with a `number`; None where nobody counts. Random masks depend on it.
current_step: ContextVar[Any] = ContextVar("parallel_lab_step", default=None)


# The messages of operators with a `fusion` number that the Cell running now has not sent yet, {what they have in
# common: message}; None outside of the outermost Cell. The hook between a Cell that ends and the operators it called.
held_messages: ContextVar[dict[tuple[Any, ...], Any] | None] = ContextVar("parallel_lab_held_messages", default=None)


# The rank that this process is (`processes.world.World`), once `communication.init` has connected it, or None.
# A plain name, not a ContextVar: it holds for all threads of the process.
_world: Any = None


def current_world() -> Any:
    """The world this process is a rank of, or None."""
    return _world


def set_world(world: Any) -> None:
    """Make `world` the one that operators use; None: this process is not a rank any more."""
    global _world
    _world = world


def _at_once(cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return NotImplemented


# What runs a Cell that is called outside any trace: how a Cell reaches compiled programs. It returns
# NotImplemented where the Cell runs at once. Installed with the world.
_cell_runner: Any = _at_once


def cell_runner() -> Any:
    """The function of (cell, args, kwargs) that a Cell called outside any trace asks first."""
    return _cell_runner


def set_cell_runner(runner: Any) -> None:
    """Let `runner` decide how Cells run; None: at once."""
    global _cell_runner
    _cell_runner = _at_once if runner is None else runner


@contextmanager
def cells_at_once() -> Iterator[None]:
    """Inside, Cells run at once in every parallel mode: their result (a rate, say) is not a tensor of a network."""
    global _cell_runner
    runner, _cell_runner = _cell_runner, _at_once
    try:
        yield
    finally:
        _cell_runner = runner


_executor: Any = None


def cell_executor() -> Any:
    """What `Cell.compile` asks (`mindspore/_executor.py`)."""
    return _executor()


def set_cell_executor(found: Any) -> None:
    """Let `found()` be what compiles Cells without running them: it is loaded when the first one asks."""
    global _executor
    _executor = found


# Whether a function runs on the tape for its gradient: a Cell that would run compiled leaves no trace there.
# 2: a gradient is made that is differentiated itself, and nothing that it is made of may lose its own.
on_tape: ContextVar[int] = ContextVar("parallel_lab_on_tape", default=False)


_cloner: Any = None


def cloner() -> Any:
    """The function of (parameter, name, init) that makes a Parameter after another, for `Parameter.clone`."""
    return _cloner


def set_cloner(clone: Any) -> None:
    """Let `clone` make Parameters after others (`nn/initializer.py` installs it)."""
    global _cloner
    _cloner = clone


def _no_catalog() -> None:
    """Nothing: while the package is imported, no name is looked up in the catalogue."""


_catalog: Callable[[], Any] = _no_catalog


def open_catalog() -> None:
    """Load the catalogue (`parallel_lab/catalog`), which adds its operators and layers to the tables and faces of the
    taught ones. Called when a name is not found among those, or when all names are listed; loaded once.
    """
    _catalog()


def set_catalog(load: Callable[[], Any]) -> None:
    """Let `load` load the catalogue, which lies above `ops` and `nn`; the package installs it."""
    global _catalog
    _catalog = load


def _no_schedules(name: str, stages: int, micro_batches: int, chunks: int) -> Any:
    raise RuntimeError("no schedules are installed: import parallel_lab")


# What makes the schedule of a pipeline: (name, stages, micro-batches, chunks) -> actions per stage; and the names.
# Generators of schedules (`cost/schedules`) know costs, which lie above the compiler; the package installs them.
_schedule_maker: Any = _no_schedules
_schedule_names: Any = tuple


def schedule_maker() -> Any:
    """The function that makes schedules."""
    return _schedule_maker


def schedule_names() -> tuple[str, ...]:
    """The names that it knows."""
    return _schedule_names()


def set_schedule_maker(maker: Any, names: Any = None) -> None:
    """Let `maker` make schedules, of those `names()`; None: of the same ones as before."""
    global _schedule_maker, _schedule_names
    _schedule_maker, _schedule_names = maker, names or _schedule_names


_strategy_reader: Any = None


def strategy_reader() -> Any:
    """What reads a strategy file for the compiler: path -> its content (`train/checkpoint/strategy_file.py`)."""
    return _strategy_reader


def set_strategy_reader(reader: Any) -> None:
    """Let `reader` read strategy files."""
    global _strategy_reader
    _strategy_reader = reader


_strategy_searcher: Any = None


def strategy_searcher() -> Any:
    """What chooses strategies in auto_parallel mode: (graph, config) -> graph (`cost/search`, which knows costs)."""
    return _strategy_searcher


def set_strategy_searcher(search: Any) -> None:
    """Let `search` choose strategies."""
    global _strategy_searcher
    _strategy_searcher = search
