"""`_cell_graph_executor`: compiles Cells without running them, and tells what was compiled.

    phase, _ = cell_graph_executor.compile(net, x, label)      # refuses what a run would refuse
    net.parameter_layout_dict["w"]                             # MindSpore's form of a layout
    cell_graph_executor._graph_executor.get_parallel_graph_info(phase)
    net.compiled.plan                                          # this package's own: the plan

`Cell.compile` and `Cell.compile_and_run` come here too. Forms: `_compiled_forms.py`; names: MindSpore, common.api.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.checks import checked, fitting, instance, text
from ..base.errors import ArgumentError, ArgumentTypeError, TracedCommunication, WorldArgumentError, shorten
from ..base.hooks import current_world
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.config import ParallelConfig
from ..base.settings.context import frozen, frozen_for_run, get_auto_parallel_context
from ..graph.compiler import Compiled, compile_program
from ..graph.forms import input_names, of_tensors, tensors_of
from ..graph.ir import Draft
from ..graph.passes.dataset_strategy import dataset_splits
from ..graph.plan import Plan
from ..layout.tensor_layout import TensorLayout
from ..nn.cell import Cell
from ..nn.tensor.dynamic_shapes import sized
from ..train.auto_parallel import AutoParallel
from ..train.compiled_program import still_holds
from ..train.first_step import begin
from ._compiled_forms import LayoutForm, full_names, graph_info, inputs_as_read, parameter_forms, shard_strategies
from ._ir_files import write_graph_files

_CELL = instance(Cell, "A Cell")
# arguments of MindSpore's own `compile` in its versions; none has an effect here
OPTIONS = ("do_convert", "auto_parallel_mode", "jit_config_dict", "enable_compile_cache")


class FeedsDataset(Cell):
    """A Cell whose inputs come from a dataset, as the parallel context says."""


@dataclass(frozen=True)
class PhaseRecord:
    """A program and the forms in which scripts inspect it.

    names    full names of operators;  forms: layouts
    network  what was compiled, if its inputs are to be fed as the first operators read them;  options: with these
    """

    compiled: Compiled
    names: dict[str, str]
    forms: dict[str, LayoutForm]
    network: Callable | None
    options: dict[str, Any] = field(default_factory=dict)


class CellGraphExecutor:
    """Compiles Cells by the settings of the parallel context, for as many ranks as they name, without running them."""

    def __init__(self) -> None:
        self._ids: Iterator[int] = itertools.count()
        self._phases: weakref.WeakValueDictionary[str, Cell] = weakref.WeakValueDictionary()

    @checked("_cell_graph_executor.compile", obj=_CELL, phase=text)
    def compile(self, obj: Cell, *args: Any, phase: str = "predict", **kwargs: Any) -> tuple[str, bool]:
        """Compile `obj` for these inputs: (phase, whether it was not known yet). `obj.compiled` is the result. An
        AutoParallel is compiled by its own settings.

        args, kwargs  inputs of the Cell, tensors also in tuples, lists and dicts; where operators are split, the whole
                      ones of all ranks. Other values are part of the program. Without any: those of `set_inputs`
        phase         "train" or "predict", without effect; so are keywords that are MindSpore's own (`OPTIONS`)
        """
        obj.__dict__.pop("_elsewhere", None)
        named_inputs = {name: value for name, value in kwargs.items() if name not in OPTIONS}
        if not args and not named_inputs:
            examples = obj.__dict__.get("_inputs", ())
            args, named_inputs = ((), examples) if isinstance(examples, dict) else (examples, {})
        inner, own = (obj.network, obj.settings()) if isinstance(obj, AutoParallel) else (obj, {})
        fn, all_inputs = _by_position(inner, args, named_inputs)
        if isinstance(inner, Cell):
            inner.check_inputs(args, named_inputs)
        form, tensors = tensors_of(all_inputs)
        network, config = of_tensors(fn, form), frozen(**own) if current_world() is None else frozen_for_run(**own)
        tensors, note = sized(tensors, config.device_num // config.pipeline_stages)
        inputs, how = _fed(tensors, replace(config, device_num=config.device_num // config.pipeline_stages))
        options = {**own, **how, "global_rank": config.global_rank, "device_num": config.device_num}
        facts = tuple((t.shape, str(t.dtype)) for t in inputs), repr(form), frozen(**options)
        key = f"{phase}.{id(obj)}.{hash(facts) & 0xFFFFFFFF}"
        record = obj.__dict__.setdefault("_phase_records", {}).get(key)
        is_new = record is None or not still_holds(record.compiled)
        if is_new:
            compiled = _program(network, inputs, {**options, "note": note})
            begin(compiled, None, compiled.plan.config)
            # without a dataset MindSpore gives every rank what the first operator wants
            splits = config.parallel_mode in SHARDED_MODES
            fed = config.dataset_strategy != "data_parallel" or _has_dataset(obj)
            forms = parameter_forms(compiled, as_read=not fed) if splits else {}
            again = network if splits and tensors and not fed else None
            record = PhaseRecord(compiled, full_names(compiled.plan.graph, self._ids, obj), forms, again, options)
            self._phases[key], obj.__dict__["_phase_records"][key] = obj, record
        _show(obj, record)
        return key, is_new

    def adopt(self, obj: Cell, compiled: Compiled) -> Cell:
        """Let `obj` tell of a program that a Model made of it, in a mode that splits operators. Returns `obj`."""
        if obj.__dict__.get("compiled") is not compiled:
            names = full_names(compiled.plan.graph, self._ids, obj)
            record = PhaseRecord(compiled, names, parameter_forms(compiled), None)
            _show(obj, record)
        return obj

    @fitting
    def __call__(self, obj: Cell, *args: Any, phase: str = "predict") -> Any:
        """Compile `obj` for these inputs, if need be, and run it on this rank."""
        self.compile(obj, *args, phase=phase)
        return obj(*args)

    run = __call__

    def reset_ids(self) -> None:
        """Let the numbers in full names of operators begin with 0 again."""
        self._ids = itertools.count()

    @property
    def _graph_executor(self) -> CellGraphExecutor:
        """MindSpore's compiler below this class; here there is one."""
        return self

    def has_compiled(self, phase: str = "predict") -> bool:
        """Whether `compile` has returned this phase, and its Cell still exists."""
        return phase in self._phases

    def write_graph_files(self, steps: Iterable[tuple[str, Draft | Plan]], folder: str, rank: int) -> list[Path]:
        """The IR files of a program that was compiled (`save_graphs`): see `_ir_files.py`."""
        return write_graph_files(steps, folder, rank)

    # ---- what was compiled ----

    @checked("_cell_graph_executor", obj=_CELL)
    def _get_shard_strategy(self, obj: Cell) -> dict[str, list[list[int]]]:
        """{"Default/network-Net/MatMul-op0": a list of counts per input} of a Cell that was compiled."""
        record = _record_of(obj)
        return shard_strategies(record.compiled.plan, record.names)

    @checked("_cell_graph_executor", obj=_CELL)
    def _get_num_parallel_ops(self, obj: Cell) -> int:
        """How many operators of a Cell that was compiled have a strategy."""
        return len(self._get_shard_strategy(obj))

    @checked("_cell_graph_executor", obj=_CELL)
    def _get_allreduce_fusion(self, obj: Cell) -> dict[str, int]:
        """{parameter: number of the message of its gradient} of a Cell that was compiled; {} unless the cost model
        numbers them (costmodel_allreduce_fusion_algorithm).
        """
        plan = _record_of(obj).compiled.plan
        if plan.config.cost_model_fusion is None:
            return {}
        sent = (i for stage in plan.stages for _, program in stage.programs for i in program)
        return {name: i.attr("fusion") for i in sent if i.message == "all_reduce" for name in i.carried}

    @checked("_cell_graph_executor", obj=_CELL)
    def get_layouts(self, obj: Cell) -> dict[str, TensorLayout]:
        """{parameter: its TensorLayout}, this package's own form, of a Cell that was compiled."""
        plan = _record_of(obj).compiled.plan
        return {one.name: plan.value(one.name).layout for one in plan.parameters}

    def get_strategy(self, phase: str) -> dict[str, list[list[int]]]:
        """`_get_shard_strategy` of what was compiled under this phase."""
        record = self._of(phase)
        return shard_strategies(record.compiled.plan, record.names)

    def get_num_parallel_ops(self, phase: str) -> int:
        """`_get_num_parallel_ops` of what was compiled under this phase."""
        return len(self.get_strategy(phase))

    def get_parameter_layout(self, phase: str) -> dict[str, LayoutForm]:
        """`parameter_layout_dict` of what was compiled under this phase."""
        return self._of(phase).forms

    def get_parallel_parameter_name_list(self, phase: str) -> list[str]:
        """Names of the parameters of what was compiled under this phase."""
        return [one.name for one in self._of(phase).compiled.plan.parameters]

    def get_parallel_graph_info(self, phase: str) -> dict[str, dict[str, dict[str, Any]]]:
        """Nodes of what was compiled under this phase, as global_rank runs them: see `graph_info`."""
        record = self._of(phase)
        plan, rank = record.compiled.plan, record.compiled.plan.config.global_rank
        if record.network is not None:
            layouts = inputs_as_read(record.compiled)
            shapes = [l.tensor_layout().slice_shape(i.shape) for i, l in zip(plan.data_inputs, layouts, strict=True)]
            parts = [np.broadcast_to(np.zeros((), i.dtype), n) for i, n in zip(plan.data_inputs, shapes, strict=True)]
            plan = compile_program(record.network, *parts, **{**record.options, "dataset_strategy": layouts}).plan
        return graph_info(plan, rank)

    def _of(self, phase: str) -> PhaseRecord:
        """What was compiled under a phase. Raises ArgumentError."""
        cell = self._phases.get(phase) if isinstance(phase, str) else None
        if cell is None:
            allowed = "What compile returned, while its Cell exists"
            raise ArgumentError(f"phase={shorten(phase)}", where="_cell_graph_executor", allowed=allowed)
        return cell.__dict__["_phase_records"][phase]


def _show(cell: Cell, record: PhaseRecord) -> None:
    """Let a Cell have what was compiled of it."""
    cell.__dict__.update(compiled=record.compiled, _phase_record=record)
    cell.parameter_layout_dict = record.forms
    cell.__dict__["_elsewhere"] = _elsewhere(record.compiled.plan)


def _elsewhere(plan: Plan) -> frozenset[str]:
    """Names of the parameters that only other stages hold than that of the rank compiled for, where nothing is run: the
    Cell does not list them, as in MindSpore (remove_redundant_parameters).
    """
    if len(plan.stages) == 1 or current_world() is not None:
        return frozenset()
    return frozenset(one.name for one in plan.parameters if not plan.held_by(one.name, plan.config.global_rank))


def _has_dataset(cell: Cell) -> bool:
    return any(isinstance(one, FeedsDataset) for _, one in cell.cells_and_names())


def _by_position(obj: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Callable, tuple[Any, ...]]:
    """(`obj`, its inputs by position), or a function of them that names those which construct takes by name alone."""
    construct, called = getattr(obj, "construct", obj), getattr(obj, "__name__", f"{type(obj).__name__}.construct")
    signature = inspect.signature(construct)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        fault = (
            f"{len(args) + len(kwargs)} inputs for {called}{'.construct' * isinstance(obj, Cell)}{signature}: {error}"
        )
        raise ArgumentTypeError(fault, where="_cell_graph_executor.compile", allowed="What construct names") from None
    count, names = len(bound.args), list(bound.kwargs)
    if not names:
        return obj, bound.args

    def named(*inputs: Any) -> Any:
        return obj(*inputs[:count], **dict(zip(names, inputs[count:], strict=True)))

    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    all_names = [*input_names(construct, count), *names]
    named.__signature__ = inspect.Signature([inspect.Parameter(name, place) for name in all_names])  # type: ignore
    named.__name__ = called.partition(".")[0]
    return named, (*bound.args, *bound.kwargs.values())


def _program(network: Callable, inputs: list[Any], options: dict[str, Any]) -> Compiled:
    """The program; in stand_alone mode that of one device, whatever strategies there are, but for messages by hand."""
    options["without_inputs"] = not inputs
    if options.get("parallel_mode", get_auto_parallel_context("parallel_mode")) == "stand_alone":
        with suppress(TracedCommunication, WorldArgumentError):
            return compile_program(network, *inputs, **options, parallel_mode="stand_alone")
        options["parallel_mode"] = "data_parallel"  # with strategies without effect
    return compile_program(network, *inputs, **options)


def _fed(tensors: list[Any], config: ParallelConfig) -> tuple[list[Any], dict[str, Any]]:
    """(what a rank feeds of these whole inputs, the dataset strategy): MindSpore splits rows by the count of ranks."""
    shapes = tuple(tuple(t.shape) for t in tensors)
    if config.parallel_mode not in SHARDED_MODES or config.dataset_strategy == "full_batch" or not tensors:
        return tensors, {} if tensors else {"dataset_strategy": "full_batch"}
    if config.dataset_strategy == "data_parallel":
        n = config.device_num
        most = max(map(len, shapes))
        if all(len(shape) < most or not shape or shape[0] % n for shape in shapes):
            return tensors, {"dataset_strategy": "full_batch"}  # one with fewer dims is not split more than those
        cuts = tuple(tuple(n if not i and size % n == 0 else 1 for i, size in enumerate(shape)) for shape in shapes)
        how = {"dataset_strategy": cuts}
    else:
        cuts, how = dataset_splits(config, shapes), {}
    parts = (
        tuple(size // n for size, n in zip(shape, cut, strict=True)) for shape, cut in zip(shapes, cuts, strict=True)
    )
    # their values do not matter: nothing runs
    return [np.broadcast_to(np.zeros((), t.dtype), part) for t, part in zip(tensors, parts, strict=True)], how


def _record_of(cell: Cell) -> PhaseRecord:
    record = cell.__dict__.get("_phase_record")
    if record is None:
        what, hint = f"{type(cell).__name__} was not compiled", "_cell_graph_executor.compile(net, x) first"
        raise ArgumentTypeError(what, where="_cell_graph_executor", hint=hint)
    return record


cell_graph_executor = CellGraphExecutor()
