"""`compile`: from a network, example inputs and settings to a verified `Plan`, in three steps.

task = check(network, inputs, **options)      what was given fits together (`compile_task.py`)
traced = trace(task)                          the operators, on global shapes (`trace.py`)
compiled = finish(task, traced)               the passes (`passes/`), then the frozen plan
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from ..base.collector import without_collector
from ..base.dtypes import kind_of
from ..base.errors import ShapeError, TracedCommunication, TraceError, shorten
from ..base.settings.current import get_auto_parallel_context
from ..nn.cell import Cell
from ..nn.feeding import GradAccumulation, WithLossCell
from ..nn.optim.weight_groups import check_grouping
from ..nn.tensor.parameter import Parameter
from ..ops.machine.primitive import Primitive
from .compile_task import Task, check
from .draft import Draft, Training, at_compile
from .forms import Slot, leaves
from .freeze import freeze
from .ir import Graph
from .passes import Pass, run_passes
from .plan import Plan
from .trace import Traced, trace_network

Steps = tuple[tuple[str, Draft | Plan], ...]  # what every pass made, by its name: drafts, then the plan


def compile_network(
    network: Callable[..., Any],
    *inputs: Any,
    loss: Cell | None = None,
    optimizer: Any = None,
    device_num: int | None = None,
    dataset_strategy: str | tuple[tuple[int, ...], ...] | None = None,
    passes: Iterable[Pass] | None = None,
    **settings: Any,
) -> Plan:
    """Compile a network for `device_num` ranks. Outputs of the plan are a rank's slices, as the last operators leave
    them, with their layouts; a Cell that is called returns what MindSpore's virtual output does (`virtual_output.py`).

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
    trained: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "passes": passes}
    options = {"device_num": device_num, "dataset_strategy": dataset_strategy, **settings}
    return plan_of(compile_steps(network, *inputs, **trained, **options))


def compile_steps(network: Callable[..., Any], *inputs: Any, **options: Any) -> Steps:
    """As `compile_network`, but returns what every pass made: ("trace", Draft), ..., ("plan", Plan)."""
    compiled = compile_program(network, *inputs, one_loss=True, **options)
    static = [part for part in leaves(compiled.form) if not isinstance(part, Slot)]
    if static:
        what = f"the network returned {shorten(static[0])}"
        raise at_compile(TraceError, what, "Tensors that it computed from its inputs")
    return compiled.steps


def _order(network: Callable[..., Any], optimizer: Any, parameters: dict[str, Parameter]) -> tuple[str, ...]:
    """Parameter names as the optimizer has them; without one as the network has them, or in order of use."""
    names = {id(p): name for name, p in parameters.items()}
    of_network = network.get_parameters() if isinstance(network, Cell) else ()
    in_order = of_network if optimizer is None else optimizer.parameters
    listed = tuple(names[id(p)] for p in in_order if id(p) in names)
    return (*listed, *(name for name in parameters if name not in listed))


def plan_of(steps: Steps) -> Plan:
    """The plan, which is what the last step made."""
    return cast(Plan, steps[-1][1])  # a Draft stands in all others: `finish`


@dataclass(frozen=True)
class Compiled:
    """A compiled network, or training step, with the objects it was made from (the others are those of `trace.Traced`:
    another mode of a Cell, or another strategy of a Primitive, makes another program).

    steps       what every pass made; the last is the plan
    optimizer   the one whose rule the plan's update is (`SeveralOptimizers` where there are more), or None
    targets     where each of them was to run then
    """

    steps: Steps
    parameters: dict[str, Parameter]
    optimizer: Any
    scaler: tuple[Any, str] | None
    form: Any
    cells: tuple[tuple[Cell, bool], ...]
    primitives: tuple[tuple[Primitive, tuple[Any, ...]], ...]
    targets: tuple[str | None, ...] = ()

    @property
    def plan(self) -> Plan:
        return plan_of(self.steps)

    @property
    def traced(self) -> Graph:
        """The network as it was before any pass."""
        return self.steps[0][1].graph


@without_collector
def compile_program(network: Callable[..., Any], *inputs: Any, **options: Any) -> Compiled:
    """As `compile_network`, with everything that running the plan on the learner's own objects needs: check what was
    given, trace the network, run the passes.

    A function may be a whole training step: it asks for gradients with `value_and_grad` and gives them to an optimizer.
    A loss of several elements is differentiated as their sum, as by MindSpore's Model; one_loss=True: it is refused.
    A network that communicates by hand is compiled in data_parallel mode where nobody chose one.
    """
    task = check(network, inputs, **options)
    try:
        traced = trace(task)
    except TracedCommunication:
        if not task.mode_is_open:
            raise
        task = check(network, inputs, **(options | {"parallel_mode": "data_parallel"}))
        traced = trace(task)
        task = replace(task, note="")
    return finish(task, traced)


def trace(task: Task) -> Traced:
    """The operators of the network with its loss, on global shapes. Raises TraceError, ShapeError."""
    network: Any = task.network
    config = task.config
    if task.loss is not None:
        network = WithLossCell(network, task.loss)
        network.cell_name = "network"
        if config.grad_accumulation_step > 1:
            network = GradAccumulation(network, config.grad_accumulation_step)
    name = getattr(task.network, "__name__", type(task.network).__name__)
    trained = getattr(task.optimizer, "parameters", ())
    program = {"parallel_mode": config.parallel_mode, "device_num": task.device_num, "rank": config.global_rank}
    traced = trace_network(network, task.inputs, name, trained, **program)
    if traced.graph.seeds and traced.graph.micro_batches == 1 < config.grad_accumulation_step:
        # it asks for gradients itself, and makes no micro-batches of its own
        parts = config.grad_accumulation_step
        traced = trace_network(network, task.inputs, name, trained, **program, parts=parts)
    _check_sums(traced.graph)
    if task.loss is not None:
        _check_loss(traced.graph, one_number=task.one_loss)
    return traced


def finish(task: Task, traced: Traced) -> Compiled:
    """Run the passes on what was traced, and freeze what they make of it."""
    config, graph, parameters = task.config, traced.graph, traced.parameters
    if config.pipeline_stages == 1 and any(node.stage >= 0 for node in graph.nodes):
        graph = replace(graph, nodes=tuple(replace(node, stage=-1) for node in graph.nodes))
    traced_ones: Any = traced.optimizers or (None,)
    own_optimizer = traced_ones[0].together(traced_ones[1:]) if traced_ones[1:] else traced_ones[0]
    optimizer: Any = own_optimizer if graph.seeds or graph.updates else task.optimizer
    order = _order(task.network, task.optimizer or own_optimizer, parameters)
    draft = Draft(graph, config, order=order, schedule=task.schedule).noted("trace", _trace_note(task, traced))
    if config.enable_parallel_optimizer and optimizer is not None:
        for one in optimizer.members:
            check_grouping(config.parallel_mode, one, config.device_num, "compile")
    scaler, scale_input = traced.scaler or (None, "")
    scaled = scaler is not None and optimizer is not None and scaler is optimizer.loss_scaler
    differentiated = task.loss is not None or bool(graph.seeds) or task.differentiates
    training = Training(differentiated, optimizer, parameters, scale_input if scaled else "")
    drafts = (("trace", draft), *run_passes(replace(draft, training=training), task.passes))
    steps = (*drafts, ("plan", freeze(drafts[-1][1], traced.constants)))
    objects = (traced.scaler, traced.form, traced.cells, traced.primitives)
    return Compiled(steps, parameters, optimizer, *objects, targets_of(optimizer))


def _trace_note(task: Task, traced: Traced) -> str:
    """How large the network is, and which settings have no effect."""
    text = f"{len(traced.graph.nodes)} operators, {len(traced.parameters)} parameters"
    if task.config.parallel_mode == "stand_alone":
        device_num = max(task.asked_device_num, get_auto_parallel_context("device_num"))
        if device_num > 1:
            text += f"; for one device: parallel_mode is stand_alone, where device_num={device_num} has no effect"
    return f"{text}; {task.note}" if task.note else text


def targets_of(optimizer: Any) -> tuple[str | None, ...]:
    """Where an optimizer, or each of several, is to run."""
    return () if optimizer is None else tuple(one.target for one in optimizer.members)


def _check_sums(graph: Graph) -> None:
    """Raise TraceError where the result of one micro-batch is read outside of them: only their sum is left then."""
    if graph.micro_batches == 1:
        return
    each = {n for node in graph.nodes if not node.once and node.op != "accumulate" for n in node.outs}
    readers = [(node.where, node.ins) for node in graph.nodes if node.once]
    for where, names in (*readers, (graph.name, (*graph.outputs, *graph.seeds))):
        own = next((name for name in names if name in each), None)
        if own is not None:
            what = f"{own!r}, which every one of {graph.micro_batches} micro-batches makes, is read outside of them"
            hint = "Return the loss alone; under jit a whole training step may leave the rest unread"
            raise TraceError(what, where=where, allowed="What micro-batches give together: sums over them", hint=hint)


def _check_loss(graph: Graph, *, one_number: bool) -> None:
    """Raise unless the network's loss is one float, or (one_number=False) one tensor of them."""
    shape = graph.shapes()[graph.outputs[0]] if graph.outputs else ()
    if len(graph.outputs) > 1 or (shape and one_number):
        what = f"returns a tensor of shape {shape}" if shape else f"returns {len(graph.outputs)} values"
        hint = "Use reduction='mean' or 'sum', or ops.reduce_mean"
        raise at_compile(ShapeError, f"the loss {what}", "One number", hint)
    dtype = graph.dtypes()[graph.outputs[0]] if graph.outputs else "float32"
    if kind_of(dtype) != "f":
        what, allowed = f"the loss is of dtype {dtype}", "A float: the gradient of others is nothing"
        raise at_compile(ShapeError, what, allowed, "Comparisons, argmax and counts belong to metrics")
    if graph.seeds:
        hint = "Give it without a loss: it is a training step"
        raise at_compile(TraceError, "the network asks for gradients itself", hint=hint)
