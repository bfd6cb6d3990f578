"""`compile`: from a network, example inputs and settings to a verified `Plan`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .context import PARALLEL_MODES, ParallelConfig, frozen, get_auto_parallel_context
from .errors import ContextError, ShapeError, TraceError, message, shorten
from .graph.ir import Draft
from .graph.passes import DATA_PARALLEL_PASSES, PASSES, Pass, run_passes, scale_loss, update_parameters
from .graph.passes.parallelize import dataset_cuts
from .graph.passes.strategies import check_device_num
from .graph.trace import check_input, input_names, trace_network
from .nn.cell import Cell
from .nn.loss import WithLossCell
from .nn.optim import Optimizer
from .plan import Plan, freeze

__all__ = ["COMPILED_MODES", "compile_network", "compile_steps"]

COMPILED_MODES = ("stand_alone", "data_parallel", "semi_auto_parallel")


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
                      rank runs the whole network on its own rows (see `graph.passes.replicate`)

    Raises StrategyError, ShapeError, TraceError or ContextError, each with operator and source line, before anything runs.
    """
    steps = compile_steps(
        network, *inputs, loss=loss, optimizer=optimizer, device_num=device_num, dataset_strategy=dataset_strategy, passes=passes, **settings
    )
    return steps[-1][1]


def compile_steps(network: Callable, *inputs: Any, **options: Any) -> tuple[tuple[str, Draft | Plan], ...]:
    """As `compile_network`, but returns what every pass made: ("trace", Draft), ("strategies", Draft), ..., ("plan", Plan)."""
    loss, optimizer, passes = options.pop("loss", None), options.pop("optimizer", None), options.pop("passes", None)
    config = _config(options)
    if not inputs:
        raise ShapeError(
            message("no inputs were given", where="compile", hint="Give one Tensor or array per input, e.g. compile(net, x, label, loss=...)")
        )
    _check_objects(network, loss, optimizer)
    if optimizer is not None and loss is None:
        raise TraceError(message("an optimizer is given without a loss", where="compile", hint="Give loss=... too"))
    check_device_num(config.device_num)
    _check_count(network, len(inputs) - (loss is not None), loss is not None)
    names = input_names(getattr(network, "construct", network), len(inputs) - (loss is not None)) + (["label"] if loss is not None else [])
    specs = [check_input(i, name, value) for i, (name, value) in enumerate(zip(names, inputs, strict=True))]
    for name, _, dtype in specs:
        if np.dtype(dtype).kind not in "fiub":
            raise ShapeError(message(f"input {name!r} has dtype {dtype}", where="compile", allowed="Floats, integers or bools"))
    cuts = dataset_cuts(config, tuple(shape for _, shape, _ in specs))
    local = config.parallel_mode == "data_parallel"  # every rank runs the network on its own part: it is traced on that part's shapes
    if not local:
        specs = [(name, tuple(n * c for n, c in zip(shape, cut, strict=True)), dtype) for (name, shape, dtype), cut in zip(specs, cuts, strict=True)]
    traced = WithLossCell(network, loss) if loss is not None else network
    if loss is not None:
        traced.cell_name = "network"
    graph, parameters, constants = trace_network(traced, specs, getattr(network, "__name__", type(network).__name__))
    result = graph.shapes()[graph.outputs[0]]
    if loss is not None and (result or len(graph.outputs) > 1):
        what = f"returns a tensor of shape {result}" if result else f"returns {len(graph.outputs)} values"
        raise ShapeError(message(f"the loss {what}", where="compile", allowed="One number", hint="Use reduction='mean' or 'sum', or ops.reduce_mean"))
    draft = Draft(graph, config).noted("trace", f"{len(graph.nodes)} operators, {len(parameters)} parameters")
    steps: list[tuple[str, Draft | Plan]] = [("trace", draft)]
    default = DATA_PARALLEL_PASSES if local else PASSES
    chosen = tuple(p for p in default if loss is not None or p[0] != "differentiate") if passes is None else tuple(passes)
    if optimizer is not None:
        if optimizer.loss_scaler is not None:
            at = next((i for i, (name, _) in enumerate(chosen) if name == "differentiate"), len(chosen))
            chosen = (*chosen[:at], ("loss_scale", lambda d: scale_loss(d, optimizer.loss_scaler)), *chosen[at:])
        chosen = (*chosen, ("update", lambda d: update_parameters(d, optimizer, parameters)))
    steps += run_passes(draft, chosen)
    steps.append(("plan", freeze(steps[-1][1], constants)))
    return tuple(steps)


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
    if get_auto_parallel_context("parallel_mode") == "stand_alone":
        given.setdefault("parallel_mode", "semi_auto_parallel")
    mode = given.get("parallel_mode", get_auto_parallel_context("parallel_mode"))
    if mode in PARALLEL_MODES and mode not in COMPILED_MODES:
        raise ContextError(
            message(
                f"parallel_mode={mode!r}",
                where="compile",
                allowed=f"This version compiles {' and '.join(COMPILED_MODES)}",
                hint="Leave parallel_mode away to compile with the strategies given by shard()",
            )
        )
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
