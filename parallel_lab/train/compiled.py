"""Functions and Cells that run compiled on the ranks of a world.

    step = CompiledFunction(train_step, settings)     # traced, compiled and compared among the ranks at the first call
    loss = step(images, labels)                       # this rank's slices in, this rank's slices out

`jit` and AutoParallel make these; so does calling a Cell in semi_auto_parallel and auto_parallel mode (`run_cell`;
`communication.init` installs it). A program is kept per shape and dtype of the inputs; the learner's Parameters and
optimizer are the store of all of them (`learner_values.py`).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..base.errors import ArgumentTypeError, ShapeError, StrategyError, shorten
from ..base.hooks import current_world
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.config import ParallelConfig
from ..base.settings.current import frozen, frozen_for_run, get_context
from ..base.settings.tables import GRAPH_MODE
from ..graph.compiler import compile_program
from ..graph.forms import of_tensors, tensors_of
from ..graph.passes.dataset_strategy import dataset_layouts
from ..graph.plan import Plan
from ..graph.virtual_output import compile_forward
from ..nn.cell import Cell
from .compiled_program import CompiledProgram, Rehearsal, own_part, still_holds
from .first_step import begin


def runs_compiled() -> bool:
    """Whether Cells and jitted functions called now run compiled: on ranks, in a mode that splits operators."""
    return current_world() is not None and frozen().parallel_mode in SHARDED_MODES and get_context("mode") == GRAPH_MODE


class CompiledFunction:
    """A function of tensors that runs compiled on the ranks of the present world: programs by the form of arguments.

    fn        a Cell or a function; it may be a whole training step (gradients asked for and an optimizer called inside)
    settings  options of `compile_program` (loss, optimizer, ParallelConfig's); or a function that returns them
    parameters  "slices", "whole" or "as they were": see `LearnerValues`
    returns     "slices", as the operators leave them; "as fed": outside training as MindSpore's virtual output returns
                results (`virtual_output.py`)
    rehearses   compile for several devices also where this process is not a rank, without running (`Rehearsal`)

    Arguments that are not tensors (numbers, strings, None) are part of the program; tuples, lists and dicts may hold
    tensors.
    """

    def __init__(
        self,
        fn: Callable,
        settings: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
        *,
        parameters: str = "slices",
        returns: str = "slices",
        rehearses: bool = False,
    ) -> None:
        self.fn, self.parameters, self.returns, self.rehearses = fn, parameters, returns, rehearses
        self._settings = settings if callable(settings) else lambda: dict(settings or {})
        # several for one key: a Cell's training mode and what is trained make other programs too
        self._programs: dict[Any, list[CompiledProgram | Rehearsal]] = {}
        self.last: CompiledProgram | Rehearsal | None = None
        self.calls = 0

    @property
    def plan(self) -> Plan | None:
        """The plan that ran last; None before the first call."""
        return self.last.plan if self.last is not None else None

    def __call__(self, *args: Any) -> Any:
        program, tensors = self.prepare(*args)
        # a training step counts with its optimizer; another program by the calls of this function, whichever it runs
        self.calls += 1
        return program(*tensors, step=self.calls - 1)

    def prepare(self, *args: Any) -> tuple[CompiledProgram | Rehearsal, list[Any]]:
        """The program for these arguments, compiled if need be, and what to call it with."""
        world = current_world()
        options, config = self._options(world)
        form, tensors = tensors_of(args)
        layouts = dataset_layouts(config, tuple(tuple(getattr(a, "full_shape", a.shape)) for a in tensors))
        tensors = [own_part(a, layout, config) for a, layout in zip(tensors, layouts, strict=True)]
        key = (tuple((t.shape, str(t.dtype)) for t in tensors), repr(form), config, world)
        programs = self._programs.setdefault(key, [])
        program = next((p for p in programs if still_holds(p.compiled)), None)
        if program is None:
            network = of_tensors(self.fn, form)
            returns_slices = self.returns == "slices" or in_training(self.fn)
            with parts_named(tensors, config):
                compiled = (compile_program if returns_slices else compile_forward)(network, *tensors, **options)
            if world is None and self.rehearses and compiled.plan.device_num > 1:
                program = Rehearsal(compiled)
            else:
                program = CompiledProgram(compiled, world, parameters=self.parameters)
            begin(compiled, world, config)
            programs.append(program)
        self.last = program
        return program, tensors

    def _options(self, world: Any) -> tuple[dict[str, Any], ParallelConfig]:
        """The options of a compilation now, and the settings among them, frozen."""
        rank = frozen().global_rank if world is None and self.rehearses else 0  # a plan is the same for all ranks
        options = {"global_rank": rank, **self._settings()}
        settings = {k: v for k, v in options.items() if k not in ("loss", "optimizer")}
        if world is not None:  # a number of devices that was set must be that of the ranks
            options["device_num"] = settings["device_num"] = frozen_for_run(**settings).device_num
        return options, frozen(**settings)


@contextmanager
def parts_named(tensors: Iterable[Any], config: ParallelConfig) -> Iterator[None]:
    """Errors about sizes that the ranks' parts of the inputs make together say how those came about."""
    try:
        yield
    except (ShapeError, StrategyError) as error:
        text = str(error)
        if config.local or "dataset_strategy" in text:
            raise
        config = replace(config, device_num=config.device_num // config.pipeline_stages)
        shapes = tuple(tuple(t.shape) for t in tensors)
        layouts = dataset_layouts(config, shapes)
        pairs = [(part, layout.full_shape(part)) for part, layout in zip(shapes, layouts, strict=True)]
        changed = {whole for part, full in pairs for n, whole in zip(part, full, strict=True) if n != whole}
        if changed.isdisjoint(map(int, re.findall(r"\d+", text))):
            raise
        parts = ", ".join(dict.fromkeys(f"{part} makes {full}" for part, full in pairs if part != full))
        how = f"dataset_strategy={config.dataset_strategy!r} takes inputs as parts of {config.device_num} ranks"
        whole = "With dataset_strategy='full_batch' every rank gives the whole"
        error.args = (f"{text} {how}: {parts}. {whole}.", *error.args[1:])
        raise


def in_training(fn: Callable) -> bool:
    """Whether a Cell, or one whose method `fn` is, was set to training."""
    owner = fn.args[0] if isinstance(fn, functools.partial) else fn
    return isinstance(owner, Cell) and owner.training


def positional(fn: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments by position; those named are put where the function has them."""
    if not kwargs:
        return args
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    only = {name: value for name, value in kwargs.items() if name in bound.kwargs or name not in bound.arguments}
    if only:
        what = f"keyword-only arguments {shorten(only)}"
        raise ArgumentTypeError(what, where="a compiled call", allowed="Arguments that can be given by position")
    return bound.args
