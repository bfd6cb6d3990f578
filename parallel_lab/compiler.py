"""`compile`: from a network, example inputs and settings to a verified `Plan`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .context import ParallelConfig, frozen, get_auto_parallel_context
from .errors import NotBuiltYet, ShapeError, StrategyError, TraceError, message, shorten
from .graph.ir import LOCAL_MODES, Draft, Graph
from .graph.passes import (
    DATA_PARALLEL_PASSES,
    PASSES,
    Pass,
    follow_gradients,
    group_updates,
    run_passes,
    scale_loss,
    update_parameters,
    with_optimizer_shard,
)
from .graph.passes.parallelize import dataset_cuts
from .graph.passes.strategies import check_device_num
from .graph.trace import Slot, check_input, input_names, trace_network
from .nn.cell import Cell
from .nn.loss import WithLossCell
from .nn.optim import Optimizer
from .nn.weight_groups import check_grouping, update_owners
from .nn.wrap import GradAccumulation
from .ops.registry import Primitive
from .plan import Plan, freeze
from .tensor import Parameter

__all__ = ["Compiled", "check_built", "compile_network", "compile_program", "compile_steps"]


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
    loss              a loss Cell called as loss(network(*inputs[:-1]), inputs[-1]); None: the network's outputs are the result, and nothing is
                      differentiated
    optimizer         an `nn.Optimizer` over the network's parameters; None: gradients only
    device_num        1, 2, 4 or a multiple of 8; default: the parallel context's
    dataset_strategy  "full_batch": shapes are global; "data_parallel" or a tuple: shapes are one rank's, and the global ones are shape x cuts
    passes            another list of passes than `graph.passes.PASSES`
    settings          further fields of `context.ParallelConfig`: gradients_mean (gradients are summed over the ranks that hold the same slice; True:
                      their mean), loss_repeated_mean, enable_alltoall, parallel_mode; with
                      parallel_mode="stand_alone" the plan is that of one device, whatever strategies the network carries; with "data_parallel" every
                      rank runs the whole network on its own rows (see `graph.passes.replicate`); enable_parallel_optimizer and what goes with it (see
                      `graph.passes.optimizer_shard`, in data_parallel mode `graph.passes.optimizer_group`)

    Raises StrategyError, ShapeError, TraceError or ContextError, each with operator and source line, before anything runs.
    """
    steps = compile_steps(
        network, *inputs, loss=loss, optimizer=optimizer, device_num=device_num, dataset_strategy=dataset_strategy, passes=passes, **settings
    )
    return steps[-1][1]


def compile_steps(network: Callable, *inputs: Any, **options: Any) -> tuple[tuple[str, Draft | Plan], ...]:
    """As `compile_network`, but returns what every pass made: ("trace", Draft), ("strategies", Draft), ..., ("plan", Plan)."""
    made = compile_program(network, *inputs, one_loss=True, **options)
    static = next((part for part in _leaves(made.form) if not isinstance(part, Slot)), made)
    if static is not made:
        raise TraceError(message(f"the network returned {shorten(static)}", where="compile", allowed="Tensors that it computed from its inputs"))
    return made.steps


def _order(network: Callable, optimizer: Any, parameters: dict[str, Parameter]) -> tuple[str, ...]:
    """Names of the program's parameters as the optimizer has them; without one as the network has them, or as they were used."""
    names = {id(p): name for name, p in parameters.items()}
    owner = network if optimizer is None else optimizer
    known = owner.get_parameters() if isinstance(owner, Cell) else getattr(owner, "parameters", ())
    listed = tuple(names[id(p)] for p in known if id(p) in names)
    return (*listed, *(name for name in parameters if name not in listed))


def _leaves(form: Any) -> list[Any]:
    if isinstance(form, (list, tuple)) and not isinstance(form, Slot):
        return [leaf for part in form for leaf in _leaves(part)]
    return [leaf for part in form.values() for leaf in _leaves(part)] if isinstance(form, dict) else [form]


@dataclass(frozen=True)
class Compiled:
    """A compiled network, or training step, with the objects it was made from.

    steps       what every pass made; the last is the plan
    parameters  the Parameters by name
    optimizer   the one whose rule the plan's update is, or None
    scaler      (the loss scaler that the function multiplies by itself, the plan's input for the scale), or None
    form        what the function returned, with a `graph.trace.Slot` in the place of each of the plan's outputs
    cells       (Cell, whether it was in training mode) of every Cell that was called: another mode makes another program
    primitives  (Primitive, its strategies) of every operator object that was called: so does another strategy
    """

    steps: tuple[tuple[str, Draft | Plan], ...]
    parameters: dict[str, Parameter]
    optimizer: Any
    scaler: tuple[Any, str] | None
    form: Any
    cells: tuple[tuple[Cell, bool], ...]
    primitives: tuple[tuple[Primitive, tuple[Any, Any]], ...]

    @property
    def plan(self) -> Plan:
        return self.steps[-1][1]

    @property
    def traced(self) -> Graph:
        """The network as it was before any pass."""
        return self.steps[0][1].graph


def compile_program(network: Callable, *inputs: Any, **options: Any) -> Compiled:
    """As `compile_network`, with everything that running the plan on the learner's own objects needs.

    A function may be a whole training step: it asks for gradients with `value_and_grad` and gives them, or what it makes of them, to an optimizer.
    A loss of several elements is differentiated as their sum, as MindSpore's Model does it; one_loss=True: it is refused.
    """
    loss, optimizer, passes = options.pop("loss", None), options.pop("optimizer", None), options.pop("passes", None)
    one_loss = options.pop("one_loss", False)
    config = _config(options)
    if not inputs:
        raise ShapeError(
            message("no inputs were given", where="compile", hint="Give one Tensor or array per input, e.g. compile(net, x, label, loss=...)")
        )
    _check_objects(network, loss, optimizer)
    if optimizer is not None and loss is None:
        raise TraceError(message("an optimizer is given without a loss", where="compile", hint="Give loss=... too"))
    check_device_num(config.device_num)
    check_built(config, network)
    _check_count(network, len(inputs) - (loss is not None), loss is not None)
    names = input_names(getattr(network, "construct", network), len(inputs) - (loss is not None)) + (["label"] if loss is not None else [])
    specs = [check_input(i, name, value) for i, (name, value) in enumerate(zip(names, inputs, strict=True))]
    for name, _, dtype in specs:
        if np.dtype(dtype).kind not in "fiub":
            raise ShapeError(message(f"input {name!r} has dtype {dtype}", where="compile", allowed="Floats, integers or bools"))
    cuts = dataset_cuts(config, tuple(shape for _, shape, _ in specs))
    local = config.parallel_mode in LOCAL_MODES  # every rank runs the network on its own part: it is traced on that part's shapes
    if not local:
        specs = [(name, tuple(n * c for n, c in zip(shape, cut, strict=True)), dtype) for (name, shape, dtype), cut in zip(specs, cuts, strict=True)]
    traced = WithLossCell(network, loss) if loss is not None else network
    if loss is not None:
        traced.cell_name = "network"
        if config.grad_accumulation_step > 1:
            traced = GradAccumulation(traced, config.grad_accumulation_step)
    name, trained = getattr(network, "__name__", type(network).__name__), () if optimizer is None else optimizer.parameters
    found = trace_network(traced, specs, name, trained, parallel_mode=config.parallel_mode)
    _check_recomputed((cell.cell_name, cell) for cell, _ in found.cells)  # those of a function are known only now
    graph, parameters = found.graph, found.parameters
    result = graph.shapes()[graph.outputs[0]] if graph.outputs else ()
    if loss is not None and (len(graph.outputs) > 1 or (result and one_loss)):
        what = f"returns a tensor of shape {result}" if result else f"returns {len(graph.outputs)} values"
        raise ShapeError(message(f"the loss {what}", where="compile", allowed="One number", hint="Use reduction='mean' or 'sum', or ops.reduce_mean"))
    dtypes = {part.name: part.dtype for part in (*graph.inputs, *graph.nodes)}
    if loss is not None and graph.outputs and np.dtype(dtypes[graph.outputs[0]]).kind != "f":
        what, hint = f"the loss is of dtype {dtypes[graph.outputs[0]]}", "Comparisons, argmax and counts belong to metrics"
        raise ShapeError(message(what, where="compile", allowed="A float: the gradient of others is nothing", hint=hint))
    if graph.seeds and config.grad_accumulation_step > 1 and not any(node.micro_batch for node in graph.nodes):
        hint = f"Differentiate nn.GradAccumulation(net, {config.grad_accumulation_step}) in its place"
        raise _not_built(f"grad_accumulation_step={config.grad_accumulation_step} of a function that asks for gradients itself", hint)
    if loss is not None and graph.seeds:
        raise TraceError(message("the network asks for gradients itself", where="compile", hint="Give it without a loss: it is a training step"))
    order = _order(network, optimizer or found.optimizer, parameters)
    draft = Draft(graph, config, order=order).noted("trace", f"{len(graph.nodes)} operators, {len(parameters)} parameters")
    if config.strategy_ckpt_load_file and not local and config.parallel_mode != "stand_alone":
        draft = with_saved_strategies(draft, config.strategy_ckpt_load_file)
    steps: list[tuple[str, Draft | Plan]] = [("trace", draft)]
    default = DATA_PARALLEL_PASSES if local else PASSES
    trained = loss is not None or bool(graph.seeds)
    chosen = tuple(p for p in default if trained or p[0] != "differentiate") if passes is None else tuple(passes)
    parallel_optimizer = config.enable_parallel_optimizer and trained and passes is None
    if parallel_optimizer and not local:
        chosen = with_optimizer_shard(chosen, level=config.optimizer_level)
    if graph.seeds:
        optimizer = found.optimizer
        chosen = (*chosen, ("follow", follow_gradients))
    if optimizer is not None:
        if optimizer.loss_scaler is not None:
            by_hand = found.scaler[1] if found.scaler is not None and found.scaler[0] is optimizer.loss_scaler else ""
            at = next((i for i, (name, _) in enumerate(chosen) if name == "differentiate"), len(chosen))
            chosen = (*chosen[:at], ("loss_scale", lambda d: scale_loss(d, optimizer.loss_scaler, by_hand)), *chosen[at:])
        chosen = (*chosen, ("update", lambda d: update_parameters(d, optimizer, parameters)))
        if parallel_optimizer:
            check_grouping(config.parallel_mode, optimizer, config.device_num, "compile")
            owners = update_owners(optimizer.parameters, config.device_num)
            chosen = (*chosen, ("optimizer_group", lambda d: group_updates(d, owners))) if local else chosen
    steps += run_passes(draft, chosen)
    steps.append(("plan", freeze(steps[-1][1], found.constants)))
    return Compiled(tuple(steps), parameters, optimizer, found.scaler, found.form, found.cells, found.primitives)


def with_saved_strategies(draft: Draft, path: str) -> Draft:
    """The draft with the strategies of a strategy file for operators that the learner gave none.

    Raises StrategyError for a file made for another number of devices, and what `strategy_file.load_strategy` raises.
    """
    from .strategy_file import load_strategy  # few compilations read one

    file = load_strategy(path)
    if file.device_num != draft.config.device_num:
        what = f"strategy_ckpt_load_file={path!r} was made for {file.device_num} devices"
        raise StrategyError(message(what, where="compile", allowed=f"A file made for {draft.config.device_num}, as many as compile now"))
    saved = {operator.name: operator for operator in file.operators if operator.strategy is not None}
    nodes = tuple(
        replace(node, strategy=saved[node.name].strategy, out_strategy=saved[node.name].out_strategy, strategy_source="file")
        if node.strategy is None and node.phase == "forward" and node.name in saved and saved[node.name].op == node.op_class
        else node
        for node in draft.graph.nodes
    )
    taken = sum(node.strategy_source == "file" for node in nodes)
    return replace(draft, graph=replace(draft.graph, nodes=nodes)).noted("strategy file", f"{taken} strategies from {path}")


def check_built(config: ParallelConfig, network: Callable) -> None:
    """Raise NotBuiltYet for what is known and kept as a setting, and cannot be run by this version."""
    if config.parallel_mode == "auto_parallel" and config.search_mode != "sharding_propagation":
        what = f"search_mode={config.search_mode!r} in auto_parallel mode"
        hint = "Set search_mode='sharding_propagation' and give the operators that matter a strategy, or use semi_auto_parallel"
    elif config.pipeline_stages > 1:
        what, hint = f"pipeline_stages={config.pipeline_stages}", "Leave pipeline_stages at 1"
    else:
        _check_recomputed(network.cells_and_names() if isinstance(network, Cell) else ())
        return
    raise _not_built(what, hint)


def _check_recomputed(cells: Iterable[tuple[str, Cell]]) -> None:
    """Raise NotBuiltYet if `recompute()` was called on one of the Cells, given with their paths, or on one of its operators."""
    for path, cell in cells:
        if cell.recompute_options is not None or any(p.prim_attrs.get("recompute") for p in vars(cell)["_primitives"].values()):
            hint = "Leave the call away: results are the same, activations are kept in memory"
            raise _not_built(f"recompute() of {(path or type(cell).__name__)!r}", hint)


def _not_built(what: str, hint: str) -> NotBuiltYet:
    return NotBuiltYet(message(f"{what} cannot be run yet", where="compile", allowed="The setting is checked and kept", hint=hint))


def _check_objects(network: Any, loss: Any, optimizer: Any) -> None:
    """Raise TraceError for a class where an object is needed, and for things that cannot be called."""
    for name, value, example in (("network", network, "Net()"), ("loss", loss, "nn.MSELoss()")):
        if value is None and name == "loss":
            continue
        if inspect.isclass(value) or not callable(value):
            hint = f"Make an object of it: {value.__name__}()" if inspect.isclass(value) else f"For example {example}"
            raise TraceError(message(f"{name} is {shorten(value)}", where="compile", allowed="A Cell, or a function of Tensors", hint=hint))
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TraceError(
            message(
                f"optimizer is {shorten(optimizer)}",
                where="compile",
                allowed="An nn.Optimizer",
                hint="For example nn.Adam(net.trainable_params(), 0.01)",
            )
        )


def _check_count(network: Callable, count: int, with_loss: bool) -> None:
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
        raise ShapeError(
            message(
                f"{count} input{'s' if count != 1 else ''} for construct{signature}"
                if isinstance(network, Cell)
                else f"{count} inputs for {signature}",
                where="compile",
                allowed=f"One example input per parameter{labels}",
            )
        ) from None


def _config(options: dict[str, Any]) -> ParallelConfig:
    given = {k: v for k, v in options.items() if v is not None}
    if given.get("parallel_mode") == "stand_alone":
        given["device_num"] = 1
        given.setdefault("enable_parallel_optimizer", False)  # the context's is for the ranks that this is compared with
    if get_auto_parallel_context("parallel_mode") == "stand_alone":
        given.setdefault("parallel_mode", "semi_auto_parallel")
    try:
        return frozen(**given)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise TraceError(
            message(
                str(error).rpartition("got an ")[2],
                where="compile",
                allowed="loss, optimizer, device_num, dataset_strategy, passes and fields of ParallelConfig",
            )
        ) from error
