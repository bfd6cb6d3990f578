"""What `compile` is asked to do, checked before anything is traced: `Task`.

task = check(net, (x, label), loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch")
task.inputs      (("x", (16, 32), "float32"), ("label", (16, 16), "float32")): global shapes
task.config      the settings, frozen; its device_num is that of one pipeline stage
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.dtypes import kind_of
from ..base.errors import ContextConflictError, NotBuiltYet, ShapeError, StrategyError, TraceError, shorten
from ..base.settings.compat import get_compat
from ..base.settings.config import ParallelConfig
from ..base.settings.current import frozen, get_auto_parallel_context
from ..nn.cell import Cell
from ..nn.tensor.dynamic_shapes import sized
from .draft import at_compile
from .forms import input_names
from .instr import Shape
from .passes import PASSES, Pass
from .passes.dataset_strategy import dataset_splits
from .passes.strategies import check_device_num
from .placement import stages_of
from .traced_value import TracedValue

InputSpec = tuple[str, Shape, str]  # name, shape, dtype


@dataclass(frozen=True)
class Task:
    """One compilation, with everything that the learner gave checked.

    inputs        (name, shape, dtype): global shapes, in data_parallel and hybrid_parallel mode a rank's own
    config        the settings; device_num is that of one pipeline stage, `device_num` here that of all stages
    schedule      the Schedule object to follow, or None: the name in the settings
    passes        the list of passes;  differentiates: whether it is not the default one, which asks for gradients too
    one_loss      whether the loss must be one number
    mode_is_open  whether neither the learner nor the context chose a parallel mode
    note          for the plan's notes: what was asked of the inputs, sizes that were filled in, settings without effect
    """

    network: Callable[..., Any]
    loss: Cell | None
    optimizer: Any
    inputs: tuple[InputSpec, ...]
    config: ParallelConfig
    device_num: int
    schedule: Any
    passes: Iterable[Pass]
    differentiates: bool
    one_loss: bool
    mode_is_open: bool
    asked_device_num: int
    note: str


def check(
    network: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    loss: Cell | None = None,
    optimizer: Any = None,
    passes: Iterable[Pass] | None = None,
    schedule: Any = None,
    one_loss: bool = False,
    without_inputs: bool = False,
    note: str = "",
    **settings: Any,
) -> Task:
    """The task of a compilation. Arguments: see `compiler.compile_network`; errors likewise, before anything runs.

    without_inputs  a network that takes no inputs is allowed
    note            what to say of the inputs in the plan's notes
    """
    if isinstance(schedule, str):  # chunks are what the name is for, or the network says otherwise
        settings |= {"pipeline_scheduler": schedule, "pipeline_interleave": True}
        schedule = None
    elif schedule is not None:
        settings.setdefault("pipeline_stages", stages_of(schedule))
    config = _config(settings)
    if not inputs and not without_inputs:
        hint = "Give one Tensor or array per input, e.g. compile(net, x, label, loss=...)"
        raise at_compile(ShapeError, "no inputs were given", hint=hint)
    _check_objects(network, loss, optimizer)
    device_num = config.device_num
    config = _of_one_stage(config)
    check_built(config, network)
    inputs, unknown_sizes = sized(inputs, config.device_num)
    return Task(
        network,
        loss,
        optimizer,
        _input_specs(network, inputs, config, with_loss=loss is not None),
        config,
        device_num,
        None if config.parallel_mode == "stand_alone" else schedule,
        PASSES if passes is None else passes,
        passes is not None,
        one_loss,
        settings.get("parallel_mode") is None and get_auto_parallel_context("parallel_mode") == "stand_alone",
        settings.get("device_num") or 1,
        note or unknown_sizes,
    )


def _config(settings: dict[str, Any]) -> ParallelConfig:
    chosen = {key: value for key, value in settings.items() if value is not None}
    if chosen.get("parallel_mode") == "stand_alone":
        chosen |= {"device_num": 1, "pipeline_stages": 1}
        chosen.setdefault("enable_parallel_optimizer", False)  # the context's is for the ranks it is compared with
    if get_auto_parallel_context("parallel_mode") == "stand_alone":
        chosen.setdefault("parallel_mode", "semi_auto_parallel")
    try:
        return frozen(**chosen)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        allowed = "loss, optimizer, device_num, dataset_strategy, passes and fields of ParallelConfig"
        raise at_compile(TraceError, str(error).rpartition("got an ")[2], allowed) from None


def _check_objects(network: Any, loss: Any, optimizer: Any) -> None:
    """Raise TraceError for a class where an object is needed, for things that cannot be called, and for an optimizer
    without a loss.
    """
    for name, value, example in (("network", network, "Net()"), ("loss", loss, "nn.MSELoss()")):
        if value is None and name == "loss":
            continue
        if inspect.isclass(value) or not callable(value):
            hint = f"Make an object of it: {value.__name__}()" if inspect.isclass(value) else f"For example {example}"
            raise at_compile(TraceError, f"{name} is {shorten(value)}", "A Cell, or a function of Tensors", hint)
    if optimizer is not None and not hasattr(type(optimizer), "members"):  # a property of nn.Optimizer
        hint = "For example nn.Adam(net.trainable_params(), 0.01)"
        raise at_compile(TraceError, f"optimizer is {shorten(optimizer)}", "An nn.Optimizer", hint)
    if optimizer is not None and loss is None:
        raise at_compile(TraceError, "an optimizer is given without a loss", hint="Give loss=... too")


def _of_one_stage(config: ParallelConfig) -> ParallelConfig:
    """The settings for the devices of one stage, for which strategies are written. Raises StrategyError,
    ContextConflictError for numbers that do not fit.
    """
    devices, stages = config.device_num, config.pipeline_stages
    if stages == 1 or devices % stages:
        check_device_num(devices)
    if devices % stages:
        what, hint = f"pipeline_stages={stages} with {devices} devices", "Set device_num too"
        raise at_compile(ContextConflictError, what, f"A divisor of {devices}", hint if devices == 1 else "")
    if config.global_rank >= devices > 1:
        raise at_compile(ContextConflictError, f"global_rank={config.global_rank}", f"Below device_num, {devices}")
    check_device_num(devices // stages)
    return replace(config, device_num=devices // stages)


def check_built(config: ParallelConfig, network: Callable[..., Any]) -> None:
    """Raise NotBuiltYet for settings that are kept, and that this version cannot run; StrategyError for
    interleaved stages in which no Cell is inlined late, where MindSpore 2.10 is followed (pipeline_interleave).
    """
    if config.memory_offload and config.offload_param == "disk":
        what, hint = "offload_param='disk' cannot be run yet", "Set it to 'cpu': Parameters live in the host's memory"
        raise at_compile(NotBuiltYet, what, "The setting is checked and kept", hint)
    chunks = config.pipeline_stages > 1 and config.pipeline_interleave and get_compat() == "2.10"
    if chunks and isinstance(network, Cell) and not any(cell.inlined_late for _, cell in network.cells_and_names()):
        hint = "Decorate the __init__ of the network: @lazy_inline, from mindspore import lazy_inline"
        allowed = "With compat='2.10' interleaved stages need a Cell that is inlined late"
        raise at_compile(StrategyError, "pipeline_interleave=True", allowed, hint)


def _input_specs(
    network: Callable[..., Any], inputs: Sequence[Any], config: ParallelConfig, *, with_loss: bool
) -> tuple[InputSpec, ...]:
    """Names, shapes to trace on and dtypes of the inputs, the label last. Raises ShapeError, ContextError."""
    count = len(inputs) - with_loss
    _check_count(network, count, with_loss=with_loss)
    names = input_names(getattr(network, "construct", network), count) + ["label"] * with_loss
    specs = [_input_spec(i, name, value) for i, (name, value) in enumerate(zip(names, inputs, strict=True))]
    for name, _, dtype in specs:
        if kind_of(dtype) not in "fiub":
            raise at_compile(ShapeError, f"input {name!r} has dtype {dtype}", "Floats, integers or bools")
    splits = dataset_splits(config, tuple(shape for _, shape, _ in specs))
    if config.local:  # traced on the shapes of a rank's own part
        return tuple(specs)
    return tuple(
        (name, tuple(size * cut for size, cut in zip(shape, cuts, strict=True)), dtype)
        for (name, shape, dtype), cuts in zip(specs, splits, strict=True)
    )


def _check_count(network: Callable[..., Any], count: int, *, with_loss: bool) -> None:
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


def _input_spec(position: int, name: str, value: Any) -> InputSpec:
    """An example input of `compile` as (name, shape, dtype)."""
    if isinstance(value, TracedValue) or not hasattr(value, "shape") or not hasattr(value, "dtype"):
        allowed = "A Tensor or numpy array with the shape to compile for"
        raise at_compile(ShapeError, f"input {position} is {shorten(value)}", allowed)
    return name, tuple(int(n) for n in value.shape), str(np.dtype(str(value.dtype)))
