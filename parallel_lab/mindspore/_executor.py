"""`_cell_graph_executor`: compiles Cells without running them, and tells what was compiled.

    phase, _ = cell_graph_executor.compile(net, x, label)      # refuses what a run would refuse
    net.parameter_layout_dict["w"]                             # MindSpore's form of a layout
    cell_graph_executor._graph_executor.get_parallel_graph_info(phase)
    net.compiled.plan                                          # this package's own: the plan

`Cell.compile` and `Cell.compile_and_run` come here too. Forms: `_compiled_forms.py`; names: MindSpore, common.api.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.checks import checked, fitting, instance, text
from ..base.errors import ArgumentError, ArgumentTypeError, TracedCommunication, WorldArgumentError, shorten
from ..base.hooks import current_world
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.current import frozen, frozen_for_run, get_auto_parallel_context
from ..graph.compiler import Compiled, compile_program
from ..graph.draft import Draft
from ..graph.forms import input_names, of_tensors, tensors_of
from ..graph.passes import PASSES
from ..graph.passes.optimizer_shard import shard_parameters
from ..graph.plan import Plan
from ..graph.virtual_output import FORWARD_PASSES, compile_forward
from ..layout.tensor_layout import TensorLayout
from ..nn.cell import Cell
from ..nn.tensor.dynamic_shapes import sized
from ..train.auto_parallel import AutoParallel
from ..train.compiled import in_training
from ..train.compiled_program import still_holds
from ..train.engine import check_full_batch
from ..train.first_step import begin
from ._compiled_forms import LayoutForm, full_names, graph_info, parameter_forms, shard_strategies, virtual_outputs
from ._ir_files import write_graph_files
from ._unknown_sizes import compiled_for_sizes

_CELL = instance(Cell, "A Cell")
# arguments of MindSpore's own `compile` in its versions; none has an effect here
OPTIONS = ("do_convert", "auto_parallel_mode", "jit_config_dict", "enable_compile_cache")


@dataclass(frozen=True)
class PhaseRecord:
    """A program and the forms in which scripts inspect it: full names of operators, layouts, virtual outputs.

    has_unknown_sizes  whether sizes of its inputs were unknown, and chosen
    """

    compiled: Compiled
    names: dict[str, str]
    forms: dict[str, LayoutForm]
    returned: dict[str, list[list[int]]]
    has_unknown_sizes: bool = False

    def strategies(self) -> dict[str, list[list[int]]]:
        return {**self.returned, **shard_strategies(self.compiled.plan, self.names)}


class CellGraphExecutor:
    """Compiles Cells by the settings of the parallel context, for as many ranks as they name, without running them."""

    def __init__(self) -> None:
        self._ids: Iterator[int] = itertools.count()
        self._phases: weakref.WeakValueDictionary[str, Cell] = weakref.WeakValueDictionary()

    @checked("_cell_graph_executor.compile", obj=_CELL, phase=text)
    def compile(self, obj: Cell, *args: Any, phase: str = "predict", **kwargs: Any) -> tuple[str, bool]:
        """Compile `obj` for these inputs: (phase, whether it was not known yet). `obj.compiled` is the result. An
        AutoParallel is compiled by its own settings.

        args, kwargs  inputs of the Cell, tensors also in tuples, lists and dicts; where operators are split, one rank's
                      slices, with "full_batch" whole ones. Other values are part of the program. Without any: those of
                      `set_inputs`
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
        check_full_batch(config, "_cell_graph_executor.compile")
        described, (tensors, note) = tensors, sized(tensors, config.device_num // config.pipeline_stages)
        options = {**own, "global_rank": config.global_rank, "device_num": config.device_num}
        if not tensors:
            options["dataset_strategy"] = "full_batch"
        facts = tuple((t.shape, str(t.dtype)) for t in tensors), repr(form), frozen(**options)
        key = f"{phase}.{id(obj)}.{hash(facts) & 0xFFFFFFFF}"
        record = obj.__dict__.setdefault("_phase_records", {}).get(key)
        is_new = record is None or not still_holds(record.compiled)
        if is_new:
            build = compile_program if in_training(inner) else compile_forward
            make = functools.partial(_program, build, network, options=options)
            compiled = compiled_for_sizes(make, described, tensors, note, config)
            begin(compiled, None, compiled.plan.config)
            forms = parameter_forms(compiled) if config.parallel_mode in SHARDED_MODES else {}
            returned = virtual_outputs(compiled) if build is compile_forward else {}
            names = full_names(compiled.plan.graph, self._ids, obj)
            record = PhaseRecord(compiled, names, forms, returned, has_unknown_sizes=bool(note))
            self._phases[key], obj.__dict__["_phase_records"][key] = obj, record
        _show(obj, record, key)
        return key, is_new

    def adopt(self, obj: Cell, compiled: Compiled) -> Cell:
        """Let `obj` tell of a program that a Model made of it, in a mode that splits operators. Returns `obj`."""
        if obj.__dict__.get("compiled") is not compiled:
            names = full_names(compiled.plan.graph, self._ids, obj)
            record, key = PhaseRecord(compiled, names, parameter_forms(compiled), {}), f"train.{id(obj)}"
            self._phases[key], obj.__dict__.setdefault("_phase_records", {})[key] = obj, record
            _show(obj, record, key)
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
        return _record_of(obj).strategies()

    @checked("_cell_graph_executor", obj=_CELL)
    def _get_num_parallel_ops(self, obj: Cell) -> int:
        """How many operators of a Cell that was compiled have a strategy."""
        record = _record_of(obj)
        return len(record.strategies()) - len(record.returned)

    @checked("_cell_graph_executor", obj=_CELL)
    def _get_allreduce_fusion(self, obj: Cell) -> dict[str, int]:
        """{parameter: fusion number of the all_reduce of its gradient} of a Cell that was compiled: its comm_fusion, or
        what the cost model numbers (costmodel_allreduce_fusion_algorithm).
        """
        plan = _record_of(obj).compiled.plan
        sent = (i for stage in plan.stages for _, program in stage.programs for i in program)
        return {name: i.attr("fusion") for i in sent if i.message == "all_reduce" for name in i.carried}

    @checked("_cell_graph_executor", obj=_CELL)
    def _get_parameter_layout(self, obj: Cell) -> dict[str, LayoutForm]:
        """`parameter_layout_dict` of a Cell that was compiled."""
        return _record_of(obj).forms

    @checked("_cell_graph_executor", obj=_CELL)
    def get_layouts(self, obj: Cell) -> dict[str, TensorLayout]:
        """{parameter: its TensorLayout}, this package's own form, of a Cell that was compiled."""
        plan = _record_of(obj).compiled.plan
        return {one.name: plan.value(one.name).layout for one in plan.parameters}

    def get_strategy(self, phase: str) -> dict[str, list[list[int]]]:
        """`_get_shard_strategy` of what was compiled under this phase."""
        return self.record_of(phase).strategies()

    def get_num_parallel_ops(self, phase: str) -> int:
        """`_get_num_parallel_ops` of what was compiled under this phase."""
        record = self.record_of(phase)
        return len(record.strategies()) - len(record.returned)

    def get_parameter_layout(self, phase: str) -> dict[str, LayoutForm]:
        """`parameter_layout_dict` of what was compiled under this phase."""
        return self.record_of(phase).forms

    def get_parallel_parameter_name_list(self, phase: str) -> list[str]:
        """Names of the parameters of what was compiled under this phase."""
        return [one.name for one in self.record_of(phase).compiled.plan.parameters]

    def get_parallel_graph_info(self, phase: str) -> dict[str, dict[str, dict[str, Any]]]:
        """Nodes of what was compiled under this phase, as global_rank runs them: see `graph_info`."""
        plan = self.record_of(phase).compiled.plan
        return graph_info(plan, plan.config.global_rank)

    def record_of(self, phase: str) -> PhaseRecord:
        """What was compiled under a phase. Raises ArgumentError."""
        cell = self._phases.get(phase) if isinstance(phase, str) else None
        if cell is None:
            allowed = "What compile returned, while its Cell exists"
            raise ArgumentError(f"phase={shorten(phase)}", where="_cell_graph_executor", allowed=allowed)
        return cell.__dict__["_phase_records"][phase]


def _show(cell: Cell, record: PhaseRecord, phase: str) -> None:
    """Let a Cell have what was compiled of it."""
    cell.__dict__.update(compiled=record.compiled, _phase_record=record, _compiled_phase=phase)
    cell.parameter_layout_dict = record.forms
    cell.__dict__["_elsewhere"] = _elsewhere(record.compiled.plan)


def _elsewhere(plan: Plan) -> frozenset[str]:
    """Names of the parameters that only other stages hold than that of the rank compiled for, where nothing is run: the
    Cell does not list them, as in MindSpore (remove_redundant_parameters).
    """
    if len(plan.stages) == 1 or current_world() is not None:
        return frozenset()
    return frozenset(one.name for one in plan.parameters if not plan.held_by(one.name, plan.config.global_rank))


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


def _program(build: Callable, network: Callable, inputs: list[Any], options: dict[str, Any], note: str) -> Compiled:
    """The program; in stand_alone mode that of one device, whatever strategies there are, but for messages by hand."""
    options = {**options, "without_inputs": not inputs, "note": note}
    if options.get("parallel_mode", get_auto_parallel_context("parallel_mode")) == "stand_alone":
        with suppress(TracedCommunication, WorldArgumentError):
            return compile_program(network, *inputs, **options, parallel_mode="stand_alone")
        options["parallel_mode"] = "data_parallel"  # with strategies without effect
    if options.get("enable_parallel_optimizer", get_auto_parallel_context("enable_parallel_optimizer")):
        # MindSpore divides parameters though nothing trains them (step_parallel.cc, ApplyParallelOptOnParam)
        listed = PASSES if build is compile_program else FORWARD_PASSES
        always = (one._replace(when="operators are split") if one.run is shard_parameters else one for one in listed)
        return compile_forward(network, *inputs, passes=tuple(always), **options)
    return build(network, *inputs, **options)


def _record_of(cell: Cell) -> PhaseRecord:
    record = cell.__dict__.get("_phase_record")
    if record is None:
        what, hint = f"{type(cell).__name__} was not compiled", "_cell_graph_executor.compile(net, x) first"
        raise ArgumentTypeError(what, where="_cell_graph_executor", hint=hint)
    return record


cell_graph_executor = CellGraphExecutor()
