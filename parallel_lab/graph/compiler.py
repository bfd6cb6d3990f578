"""`compile`: from a network, example inputs and settings to a verified `Plan`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.dtypes import kind_of
from ..base.errors import (
    ContextConflictError,
    NotBuiltYet,
    ShapeError,
    StrategyError,
    TracedCommunication,
    TraceError,
    shorten,
)
from ..base.settings.config import ParallelConfig
from ..base.settings.context import frozen, get_auto_parallel_context, get_compat
from ..nn.cell import Cell
from ..nn.layers.losses import WithLossCell
from ..nn.optim.optimizer import Optimizer
from ..nn.optim.weight_groups import check_grouping
from ..nn.tensor.described import sized
from ..nn.tensor.parameter import Parameter
from ..nn.wrap import GradAccumulation
from ..ops.kernels.threads import without_collector
from ..ops.machine.primitive import Primitive
from .forms import Slot, input_names, leaves
from .freeze import freeze
from .ir import Draft, Graph, Training, at_compile
from .passes import PASSES, Pass, run_passes
from .passes.dataset_strategy import dataset_splits
from .passes.strategies import check_device_num
from .placement import stages_of
from .plan import Plan
from .trace import trace_network
from .traced_value import TracedValue


def compile_network(
    network: Callable,
    *inputs: Any,
    loss: Cell | None = None,
    optimizer: Any = None,
    device_num: int | None = None,
    dataset_strategy: str | tuple[tuple[int, ...], ...] | None = None,
    passes: Iterable[Pass] | None = None,
    **settings: Any,
) -> Plan:
    """Compile a network for `device_num` ranks.

    network           a Cell, or a function of Tensors
    inputs            Tensors or arrays with the shapes to compile for; with a loss, the labels last
    loss              a loss Cell called as loss(network(*inputs[:-1]), inputs[-1]); None: its outputs, no gradients
    optimizer         an `nn.Optimizer` over the network's parameters; None: gradients only
    device_num        1, 2, 4 or a multiple of 8; default: the parallel context's
    dataset_strategy  "full_batch": shapes are global; "data_parallel" or a tuple: one rank's; global: shape x counts
    schedule          order of work of pipeline stages: a name out of `schedule_names()`, or a Schedule (made by hand,
                      from text, from CSV); default: the setting pipeline_scheduler
    passes            another list of passes than `graph.passes.PASSES`; with one that lists `differentiate`, gradients
                      are made without a loss too: of the outputs' sum
    settings          further fields of `context.ParallelConfig`: gradients_mean (gradients are summed over the ranks
                      that hold the same slice; True: their mean), loss_repeated_mean, enable_alltoall,
                      redistribution, parallel_mode; with parallel_mode="stand_alone" the plan is that of one device,
                      whatever strategies the network carries; with "data_parallel" every rank runs the whole network
                      on its own rows (see `graph.passes.replicate`), so does a network that communicates by hand where
                      no mode was set; enable_parallel_optimizer and what goes with it (see
                      `graph.passes.optimizer_shard`, in data_parallel mode `graph.passes.optimizer_group`)

    Raises StrategyError, ShapeError, TraceError or ContextError, with operator and source line; ArgumentError for a
    schedule that cannot run, with the action and why.
    """
    trained = {"loss": loss, "optimizer": optimizer, "passes": passes}
    options = {"device_num": device_num, "dataset_strategy": dataset_strategy, **settings}
    return compile_steps(network, *inputs, **trained, **options)[-1][1]


def compile_steps(network: Callable, *inputs: Any, **options: Any) -> tuple[tuple[str, Draft | Plan], ...]:
    """As `compile_network`, but returns what every pass made: ("trace", Draft), ..., ("plan", Plan)."""
    made = compile_program(network, *inputs, one_loss=True, **options)
    static = next((part for part in leaves(made.form) if not isinstance(part, Slot)), made)
    if static is not made:
        what = f"the network returned {shorten(static)}"
        raise at_compile(TraceError, what, "Tensors that it computed from its inputs")
    return made.steps


def _order(network: Callable, optimizer: Any, parameters: dict[str, Parameter]) -> tuple[str, ...]:
    """Parameter names as the optimizer has them; without one as the network has them, or in order of use."""
    names = {id(p): name for name, p in parameters.items()}
    own = network.get_parameters() if isinstance(network, Cell) else ()
    known = own if optimizer is None else optimizer.parameters
    listed = tuple(names[id(p)] for p in known if id(p) in names)
    return (*listed, *(name for name in parameters if name not in listed))


@dataclass(frozen=True)
class Compiled:
    """A compiled network, or training step, with the objects it was made from (the others are those of `trace.Traced`:
    another mode of a Cell, or another strategy of a Primitive, makes another program).

    steps       what every pass made; the last is the plan
    optimizer   the one whose rule the plan's update is (a `Together` of several), or None;  targets: where it, or each
                of them, was to run then
    """

    steps: tuple[tuple[str, Draft | Plan], ...]
    parameters: dict[str, Parameter]
    optimizer: Any
    scaler: tuple[Any, str] | None
    form: Any
    cells: tuple[tuple[Cell, bool], ...]
    primitives: tuple[tuple[Primitive, tuple[Any, ...]], ...]
    targets: tuple[str | None, ...] = ()

    @property
    def plan(self) -> Plan:
        return self.steps[-1][1]

    @property
    def traced(self) -> Graph:
        """The network as it was before any pass."""
        return self.steps[0][1].graph


@without_collector
def compile_program(network: Callable, *inputs: Any, **options: Any) -> Compiled:
    """As `compile_network`, with everything that running the plan on the learner's own objects needs.

    A function may be a whole training step: it asks for gradients with `value_and_grad` and gives them to an optimizer.
    A loss of several elements is differentiated as their sum, as by MindSpore's Model; one_loss=True: it is refused.
    """
    loss, optimizer, passes = options.pop("loss", None), options.pop("optimizer", None), options.pop("passes", None)
    one_loss, schedule = options.pop("one_loss", False), options.pop("schedule", None)
    if isinstance(schedule, str):  # chunks are what the name is for, or the network says otherwise
        options, schedule = {**options, "pipeline_scheduler": schedule, "pipeline_interleave": True}, None
    elif schedule is not None:
        options.setdefault("pipeline_stages", stages_of(schedule))
    needed, note = not options.pop("without_inputs", False), options.pop("note", "")
    config = _config(options)
    if not inputs and needed:
        hint = "Give one Tensor or array per input, e.g. compile(net, x, label, loss=...)"
        raise at_compile(ShapeError, "no inputs were given", hint=hint)
    _check_objects(network, loss, optimizer)
    if optimizer is not None and loss is None:
        raise at_compile(TraceError, "an optimizer is given without a loss", hint="Give loss=... too")
    devices = config.device_num
    if config.pipeline_stages == 1 or devices % config.pipeline_stages:
        check_device_num(devices)
    if devices % config.pipeline_stages:
        what, hint = f"pipeline_stages={config.pipeline_stages} with {devices} devices", "Set device_num too"
        raise at_compile(ContextConflictError, what, f"A divisor of {devices}", hint if devices == 1 else "")
    if config.global_rank >= devices > 1:
        raise at_compile(ContextConflictError, f"global_rank={config.global_rank}", f"Below device_num, {devices}")
    # strategies are written for the devices of one stage
    config = replace(config, device_num=devices // config.pipeline_stages)
    check_device_num(config.device_num)
    check_built(config, network)
    labels = [] if loss is None else ["label"]
    _check_count(network, len(inputs) - len(labels), with_loss=bool(labels))
    names = input_names(getattr(network, "construct", network), len(inputs) - len(labels)) + labels
    inputs, unknown = sized(inputs, config.device_num)
    specs = [_check_input(i, name, value) for i, (name, value) in enumerate(zip(names, inputs, strict=True))]
    for name, _, dtype in specs:
        if kind_of(dtype) not in "fiub":
            raise at_compile(ShapeError, f"input {name!r} has dtype {dtype}", "Floats, integers or bools")
    cuts = dataset_splits(config, tuple(shape for _, shape, _ in specs))
    if not config.local:  # otherwise it is traced on the shapes of a rank's own part
        for at, ((name, shape, dtype), cut) in enumerate(zip(specs, cuts, strict=True)):
            specs[at] = name, tuple(n * c for n, c in zip(shape, cut, strict=True)), dtype
    traced = WithLossCell(network, loss) if loss is not None else network
    if loss is not None:
        traced.cell_name = "network"
        if config.grad_accumulation_step > 1:
            traced = GradAccumulation(traced, config.grad_accumulation_step)
    name, trained = getattr(network, "__name__", type(network).__name__), getattr(optimizer, "parameters", ())
    program = {"parallel_mode": config.parallel_mode, "device_num": devices, "rank": config.global_rank}
    try:
        found = trace_network(traced, specs, name, trained, **program)
        if found.graph.seeds and found.graph.micro_batches == 1 < config.grad_accumulation_step:
            # it asks for gradients itself, and makes no micro-batches of its own
            found = trace_network(traced, specs, name, trained, **program, parts=config.grad_accumulation_step)
    except TracedCommunication:
        if options.get("parallel_mode") is not None or get_auto_parallel_context("parallel_mode") != "stand_alone":
            raise
        given = {"loss": loss, "optimizer": optimizer, "passes": passes, "one_loss": one_loss, "schedule": schedule}
        return compile_program(network, *inputs, **options, **given, parallel_mode="data_parallel")
    graph, parameters = found.graph, found.parameters
    _check_sums(graph)
    if config.pipeline_stages == 1 and any(node.stage >= 0 for node in graph.nodes):
        graph = replace(graph, nodes=tuple(replace(node, stage=-1) for node in graph.nodes))
    result = graph.shapes()[graph.outputs[0]] if graph.outputs else ()
    if loss is not None and (len(graph.outputs) > 1 or (result and one_loss)):
        what = f"returns a tensor of shape {result}" if result else f"returns {len(graph.outputs)} values"
        hint = "Use reduction='mean' or 'sum', or ops.reduce_mean"
        raise at_compile(ShapeError, f"the loss {what}", "One number", hint)
    dtypes = graph.dtypes()
    if loss is not None and graph.outputs and kind_of(dtypes[graph.outputs[0]]) != "f":
        what, allowed = f"the loss is of dtype {dtypes[graph.outputs[0]]}", "A float: the gradient of others is nothing"
        raise at_compile(ShapeError, what, allowed, "Comparisons, argmax and counts belong to metrics")
    if loss is not None and graph.seeds:
        hint = "Give it without a loss: it is a training step"
        raise at_compile(TraceError, "the network asks for gradients itself", hint=hint)
    schedule = None if config.parallel_mode == "stand_alone" else schedule
    draft = Draft(graph, config, order=_order(network, optimizer or found.optimizer, parameters), schedule=schedule)
    said, asked = f"{len(graph.nodes)} operators, {len(parameters)} parameters", options.get("device_num") or 1
    if config.parallel_mode == "stand_alone" and (asked := max(asked, get_auto_parallel_context("device_num"))) > 1:
        said += f"; for one device: parallel_mode is stand_alone, where device_num={asked} has no effect"
    draft = draft.noted("trace", "; ".join(filter(None, (said, note or unknown))))
    if graph.seeds or graph.updates:
        optimizer = found.optimizer
    if config.enable_parallel_optimizer and optimizer is not None:
        for one in optimizer.members:
            check_grouping(config.parallel_mode, one, config.device_num, "compile")
    scaled = found.scaler is not None and optimizer is not None and found.scaler[0] is optimizer.loss_scaler
    differentiated = loss is not None or bool(graph.seeds) or passes is not None
    training = Training(differentiated, optimizer, parameters, found.scaler[1] if scaled else "")
    steps: list[tuple[str, Draft | Plan]] = [("trace", draft)]
    steps += run_passes(replace(draft, training=training), PASSES if passes is None else passes)
    steps.append(("plan", freeze(steps[-1][1], found.constants)))
    objects = (found.scaler, found.form, found.cells, found.primitives)
    return Compiled(tuple(steps), parameters, optimizer, *objects, targets_of(optimizer))


def targets_of(optimizer: Any) -> tuple[str | None, ...]:
    """Where an optimizer, or each of several, is to run."""
    return () if optimizer is None else tuple(one.target for one in optimizer.members)


def check_built(config: ParallelConfig, network: Callable) -> None:
    """Raise NotBuiltYet for what is known and kept as a setting, and cannot be run by this version; StrategyError for
    interleaved stages in which no Cell is inlined late, where MindSpore 2.10 is followed (pipeline_interleave).
    """
    if config.memory_offload and config.offload_param == "disk":
        raise _not_built("offload_param='disk'", "Set it to 'cpu': Parameters live in the host's memory")
    chunks = config.pipeline_stages > 1 and config.pipeline_interleave and get_compat() == "2.10"
    if chunks and isinstance(network, Cell) and not any(cell.inlined_late for _, cell in network.cells_and_names()):
        hint = "Decorate the __init__ of the network: @lazy_inline, from mindspore import lazy_inline"
        allowed = "With compat='2.10' interleaved stages need a Cell that is inlined late"
        raise at_compile(StrategyError, "pipeline_interleave=True", allowed, hint)


def _not_built(what: str, hint: str) -> NotBuiltYet:
    return at_compile(NotBuiltYet, f"{what} cannot be run yet", "The setting is checked and kept", hint)


def _check_objects(network: Any, loss: Any, optimizer: Any) -> None:
    """Raise TraceError for a class where an object is needed, and for things that cannot be called."""
    for name, value, example in (("network", network, "Net()"), ("loss", loss, "nn.MSELoss()")):
        if value is None and name == "loss":
            continue
        if inspect.isclass(value) or not callable(value):
            hint = f"Make an object of it: {value.__name__}()" if inspect.isclass(value) else f"For example {example}"
            raise at_compile(TraceError, f"{name} is {shorten(value)}", "A Cell, or a function of Tensors", hint)
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        hint = "For example nn.Adam(net.trainable_params(), 0.01)"
        raise at_compile(TraceError, f"optimizer is {shorten(optimizer)}", "An nn.Optimizer", hint)


def _check_count(network: Callable, count: int, *, with_loss: bool) -> None:
    """Raise ShapeError unless the network can be called with `count` inputs."""
    construct = network.construct if isinstance(network, Cell) else network
    try:
        signature = inspect.signature(construct)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*range(count))
    except TypeError:
        labels = ", and the labels last because a loss is given" if with_loss else ""
        inputs, called = f"{count} input{'s' if count != 1 else ''}", "construct" if isinstance(network, Cell) else ""
        allowed = f"One example input per parameter{labels}"
        raise at_compile(ShapeError, f"{inputs} for {called}{signature}", allowed) from None


def _config(options: dict[str, Any]) -> ParallelConfig:
    given = {k: v for k, v in options.items() if v is not None}
    if given.get("parallel_mode") == "stand_alone":
        given |= {"device_num": 1, "pipeline_stages": 1}
        given.setdefault("enable_parallel_optimizer", False)  # the context's is for the ranks it is compared with
    if get_auto_parallel_context("parallel_mode") == "stand_alone":
        given.setdefault("parallel_mode", "semi_auto_parallel")
    try:
        return frozen(**given)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        allowed = "loss, optimizer, device_num, dataset_strategy, passes and fields of ParallelConfig"
        raise at_compile(TraceError, str(error).rpartition("got an ")[2], allowed) from error


def _check_sums(graph: Graph) -> None:
    """Raise TraceError where what one micro-batch gives is read beside them: afterwards there is their sum only."""
    if graph.micro_batches == 1:
        return
    each = {n for node in graph.nodes if not node.once and node.op != "accumulate" for n in node.outs}
    readers = [(node.where, node.ins) for node in graph.nodes if node.once]
    for where, names in (*readers, (graph.name, (*graph.outputs, *graph.seeds))):
        found = next((name for name in names if name in each), None)
        if found is not None:
            what = f"{found!r}, which every one of {graph.micro_batches} micro-batches makes, is read outside of them"
            hint = "Return the loss alone; under jit a whole training step may leave the rest unread"
            raise TraceError(what, where=where, allowed="What micro-batches give together: sums over them", hint=hint)


def _check_input(position: int, name: str, value: Any) -> tuple[str, tuple[int, ...], str]:
    """An example input of `compile` as (name, shape, dtype)."""
    if isinstance(value, TracedValue) or not hasattr(value, "shape") or not hasattr(value, "dtype"):
        allowed = "A Tensor or numpy array with the shape to compile for"
        raise at_compile(ShapeError, f"input {position} is {shorten(value)}", allowed)
    return name, tuple(int(n) for n in value.shape), str(np.dtype(str(value.dtype)))
