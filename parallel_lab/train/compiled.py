"""Functions and Cells that run compiled on the ranks of a world.

    step = CompiledFunction(train_step, settings)     # traced, compiled and compared among the ranks at the first call
    loss = step(images, labels)                       # this rank's slices in, this rank's slices out

`jit` and AutoParallel make these; so does calling a Cell in semi_auto_parallel and auto_parallel mode (`run_cell`;
`communication.init` installs it). A program is kept per shape and dtype of the inputs; the learner's Parameters and
optimizer are the store of all of them (`runner.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..base.errors import ArgumentTypeError, ShapeError, shorten
from ..base.hooks import cell_executor, current_world
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.config import ParallelConfig
from ..base.settings.context import frozen, frozen_for_run, get_context
from ..base.settings.tables import GRAPH_MODE
from ..graph.compiler import Compiled, compile_program, targets_of
from ..graph.forms import of_tensors, tensors_of
from ..graph.passes.dataset_strategy import dataset_layouts
from ..graph.plan import Plan
from ..layout.slices import cut
from ..layout.tensor_layout import TensorLayout
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import RankTensor, Tensor
from .agreement import agree_on_start
from .checkpoint.distributed import save_group_info
from .checkpoint.strategy_file import save_strategy
from .runner import RankProgram, Rehearsal


def runs_compiled() -> bool:
    """Whether Cells and jitted functions called now run compiled: on ranks, in a mode that splits operators."""
    return current_world() is not None and frozen().parallel_mode in SHARDED_MODES and get_context("mode") == GRAPH_MODE


class CompiledFunction:
    """A function of tensors that runs compiled on the ranks of the present world.

    fn        a Cell or a function; it may be a whole training step (gradients asked for and an optimizer called inside)
    settings  options of `compile_program` (loss, optimizer, ParallelConfig's); or a function that returns them
    parameters  "slices", "whole" or "as they were": see `RankProgram`
    rehearses   compile for several devices also where this process is no rank, without running (`Rehearsal`)

    Arguments that are no tensors (numbers, strings, None) are part of the program; tuples, lists and dicts may hold
    tensors.
    """

    def __init__(
        self,
        fn: Callable,
        settings: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
        *,
        parameters: str = "slices",
        rehearses: bool = False,
    ) -> None:
        self.fn, self.parameters, self.rehearses = fn, parameters, rehearses
        self._settings = settings if callable(settings) else lambda: dict(settings or {})
        # several for one key: a Cell's training mode and what is trained make other programs too
        self._programs: dict[Any, list[RankProgram | Rehearsal]] = {}
        self.last: RankProgram | Rehearsal | None = None
        self.calls = 0

    @property
    def plan(self) -> Plan | None:
        """The plan that ran last; None before the first call."""
        return self.last.plan if self.last is not None else None

    def __call__(self, *args: Any) -> Any:
        program, tensors = self.prepare(*args)
        # a training step counts with its optimizer; what has none, calls of this function, whichever program they run
        self.calls += 1
        return program(*tensors, step=self.calls - 1)

    def prepare(self, *args: Any) -> tuple[RankProgram | Rehearsal, list[Any]]:
        """The program for these arguments, compiled if need be, and what to call it with."""
        world = current_world()
        rank = frozen().global_rank if world is None and self.rehearses else 0  # a plan is the same for all ranks
        options = {"global_rank": rank, **self._settings()}
        settings = {k: v for k, v in options.items() if k not in ("loss", "optimizer")}
        if world is not None:  # a number of devices that was set must be that of the ranks
            options["device_num"] = settings["device_num"] = frozen_for_run(**settings).device_num
        config = frozen(**settings)
        form, given = tensors_of(args)
        wanted = dataset_layouts(config, tuple(tuple(getattr(a, "full_shape", a.shape)) for a in given))
        tensors = [_own_part(a, layout, config) for a, layout in zip(given, wanted, strict=True)]
        key = (tuple((t.shape, str(t.dtype)) for t in tensors), repr(form), config, world)
        known = self._programs.setdefault(key, [])
        program = next((p for p in known if still_holds(p.compiled)), None)
        if program is None:
            program = self._compiled(tensors, form, options, config)
            known.append(program)
        self.last = program
        return program, tensors

    def _compiled(
        self, tensors: list[Any], form: tuple[Any, ...], options: dict[str, Any], config: ParallelConfig
    ) -> RankProgram | Rehearsal:
        world = current_world()
        made: Compiled = compile_program(of_tensors(self.fn, form), *tensors, **options)
        if world is None and self.rehearses and made.plan.device_num > 1:
            after_compiling(made, None)
            return Rehearsal(made)
        program = RankProgram(made, world, parameters=self.parameters)
        if config.parallel_mode in SHARDED_MODES:
            agree_on_start(made.parameters.values(), world, broadcast=config.parameter_broadcast)
        after_compiling(made, world)
        return program


def still_holds(made: Compiled) -> bool:
    """Whether Cells' modes, operators' strategies and targets, the optimizer's target, Parameters, their names and
    their messages are as when the program was made.
    """
    if targets_of(made.optimizer) != made.targets:
        return False
    trained = {given.name: given.trainable for given in made.plan.parameters}
    same = all(cell.training == training for cell, training in made.cells)
    same = same and all(p.said == said for p, said in made.primitives)
    same = same and all(p.name == name for name, p in made.parameters.items())
    same = same and all(p.requires_grad == trained[name] for name, p in made.parameters.items() if name in trained)
    for given in made.traced.inputs:
        if given.role == "parameter" and given.name in made.parameters:
            p = made.parameters[given.name]
            was = given.comm_fusion, given.fusion_given, given.layerwise, given.parallel_optimizer
            same = same and was == (p.comm_fusion, p.comm_fusion_given, p.layerwise_parallel, p.parallel_optimizer)
    return same


def _own_part(value: Any, wanted: TensorLayout, config: ParallelConfig) -> Any:
    """An input as the program takes it: results of compiled calls and sharded Parameters in the input's layout."""
    if isinstance(value, Parameter) and value.layout is not None:
        value = RankTensor(value.asnumpy(), value.full_shape, value.layout)
    if not isinstance(value, RankTensor) or value.layout is None:
        return value
    if config.dataset_strategy == "full_batch":
        return value.full()
    if value.layout.same_placement(wanted):
        return value
    if any(size % count for size, count in zip(value.full_shape, wanted.splits, strict=True)):
        said = f"as dataset_strategy {config.dataset_strategy!r} says"
        what = f"a tensor of shape {value.full_shape} is to be split {wanted.splits}, {said}"
        hint = 'Set dataset_strategy="full_batch", or put the call that made it into the function that is compiled'
        raise ShapeError(what, where="a compiled call", allowed="Counts that divide the dims", hint=hint)
    return Tensor(cut(value.full().asnumpy(), wanted, current_world().rank))


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


def after_compiling(compiled: Compiled, world: Any) -> None:
    """Write what settings ask for: the strategies (`strategy_ckpt_save_file`), the ranks with the same slices
    (`group_ckpt_save_file`) and the IR files (`save_graphs`).
    """
    config = compiled.plan.config
    if config.strategy_ckpt_save_file:
        save_strategy(compiled.plan, config.strategy_ckpt_save_file)
    if config.group_ckpt_save_file:
        save_group_info(compiled.plan, config.group_ckpt_save_file, config.global_rank if world is None else world.rank)
    if get_context("save_graphs"):
        rank = world.rank if world is not None else 0
        cell_executor().write_graph_files(compiled.steps, get_context("save_graphs_path"), rank)
