"""The hooks by which a low room reaches a higher one: what runs now. Few, and all of them here.

Operators, Tensors and Cells reach tracer, programs and communicator without imports: the higher room sets a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

PART_BYTES = 1 << 20  # takes up to 5 ms, where the memory is fresh and the system has to clear it first

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


# Whether a function runs on the tape for its gradient: a Cell that would run compiled leaves no trace there. -1: what
# is computed is a constant to it; 2: a gradient is made that is differentiated itself, and all its parts keep theirs.
on_tape: ContextVar[int] = ContextVar("parallel_lab_on_tape", default=False)


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


_from_above: dict[str, Any] = {"turns": lambda: None, "schedule_names": tuple}


def from_above(name: str) -> Any:
    """What the package gives lower rooms under a name.

    cloner             (parameter, name, init) -> a Parameter after another, for `Parameter.clone` (`nn/initializer.py`)
    cell_executor      () -> what `Cell.compile` asks (`mindspore/_executor.py`), loaded when the first one asks
    schedule_maker     (name, stages, micro-batches, chunks) -> the actions of a pipeline's stages (`cost/schedules`)
    schedule_names     () -> the names that it knows
    strategy_reader    path -> the content of a strategy file (`train/checkpoint/strategy_file.py`)
    strategy_searcher  (graph, config) -> graph with strategies, in auto_parallel mode (`cost/search`: it knows costs)
    type_checker       (plan, unchecked) -> its types; raises TypesError (`graph/value_types.py`)
    dtensor_ranks      mesh -> the worker processes on which its DTensors lie (`processes/dtensor_ranks.py`)
    lab_widget         class of a lab -> the class of its widget (`lab/shared/lab_view.py`)
    mindspore_name     path -> what a MindSpore script finds there (`mindspore/_modules.py`)
    turns              () -> others have had their turn, if it is time; threads take theirs (`base/driver.py`)
    """
    return _from_above[name]


def set_from_above(**given: Any) -> None:
    """Let `from_above` give these."""
    _from_above.update(given)


def breathe() -> None:
    """Between two parts of long work: in a page, which has no threads, controls have their turn."""
    _from_above["turns"]()


def in_parts(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Arrays of one shape, or views of the same PART_BYTES of each, with a breath before each part: for work that is
    done element by element, and so gives the same bits in parts.
    """
    shape = arrays[0].shape
    dim = max(range(len(shape)), key=shape.__getitem__, default=0)
    rows = shape[dim] * PART_BYTES // arrays[0].nbytes if arrays[0].nbytes > PART_BYTES else 0
    for start in range(0, shape[dim], max(rows, 1)) if rows else (0,):
        breathe()
        part = (slice(None),) * dim + (slice(start, start + rows),)
        yield tuple(array[part] for array in arrays) if rows else arrays
