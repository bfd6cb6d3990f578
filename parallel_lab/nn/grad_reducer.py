"""Gradients of all ranks together, by hand: what a training loop calls between `value_and_grad` and the optimizer.

    reducer = nn.DistributedGradReducer(optimizer.parameters)
    loss, grads = grad_fn(x, label)
    optimizer(reducer(grads))

Rules: MindSpore, nn.DistributedGradReducer, nn.PipelineGradReducer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..context import current_tracer, current_world, get_auto_parallel_context
from ..errors import ArgumentError, ArgumentTypeError, NotBuiltYet, ShapeError, WorldTypeError, message, shorten
from ..settings import LOCAL_MODES
from ..tensor import Arithmetic, Parameter, ParameterTuple
from .cell import Cell

__all__ = ["DistributedGradReducer", "PipelineGradReducer", "no_stages_yet"]


def _parameters(where: str, parameters: Any) -> ParameterTuple:
    if isinstance(parameters, Arithmetic) or not isinstance(parameters, Iterable):
        raise ArgumentTypeError(message(f"parameters={shorten(parameters)}", where=where, allowed="A list of Parameters: optimizer.parameters"))
    found = list(parameters)
    for i, p in enumerate(found):
        if not isinstance(p, Parameter):
            raise ArgumentTypeError(message(f"parameters[{i}] is {shorten(p)}", where=where, allowed="Parameters: optimizer.parameters"))
    return ParameterTuple(found)


def _one_each(where: str, grads: Any, parameters: Sequence[Parameter]) -> Sequence[Any]:
    if isinstance(grads, (Arithmetic, np.ndarray)) or not isinstance(grads, (tuple, list)):
        raise ArgumentTypeError(message(f"gradients {shorten(grads)}", where=where, allowed="A tuple with one gradient per parameter"))
    if len(grads) != len(parameters):
        raise ShapeError(message(f"{len(grads)} gradients", where=where, allowed=f"{len(parameters)}, one per parameter"))
    return grads


class DistributedGradReducer(Cell):
    """Every rank's gradients, added up over the ranks: a tuple -> a tuple.

    parameters   those the gradients are of, in their order
    mean         multiply the sums by 1 / degree; None: as the context's gradients_mean says now
    degree       an int above 0; None: the number of ranks in the group
    fusion_type  the number of the message that carries them, where all parameters have the same `comm_fusion`: an int, at least 0. No result depends
                 on it, and messages travel one by one
    group        name of a group (`create_group`); None: all ranks

    Gradients of parameters with layerwise_parallel stay as they are. Gradients in float16 are added in float32, unless the context says
    gradient_fp32_sync=False. Without a world, or with one rank in it, everything stays as it is.

    Inside a network that the semi-automatic and automatic modes compile, it returns its gradients unchanged: there the compiler adds them up, over
    the ranks that hold the same slice. A data_parallel network that calls it runs operator by operator on each rank.
    """

    def __init__(
        self, parameters: Iterable[Parameter], mean: bool | None = None, degree: int | None = None, fusion_type: int = 1, group: str | None = None
    ) -> None:
        super().__init__(auto_prefix=False)
        where = "DistributedGradReducer"
        if mean is not None and not isinstance(mean, bool):
            raise ArgumentTypeError(message(f"mean={shorten(mean)}", where=where, allowed="True, False, or None: as gradients_mean says"))
        if degree is not None and (isinstance(degree, bool) or not isinstance(degree, int) or degree < 1):
            raise ArgumentError(
                message(f"degree={shorten(degree)}", where=where, allowed="An int above 0, or None: the number of ranks in the group")
            )
        if group is not None and not isinstance(group, str):
            raise WorldTypeError(message(f"group={shorten(group)}", where=where, allowed="The name of a group, or None: all ranks"))
        self.__dict__["parameters"] = _parameters(where, parameters)
        self.mean = get_auto_parallel_context("gradients_mean") if mean is None else mean
        self.degree, self.group = degree, group
        self.fusion_type = fusion_type
        self.all_reduce = ops.AllReduce(group=group)
        self.all_reduce.add_prim_attr("fusion", fusion_type)

    def construct(self, grads: Any) -> tuple[Any, ...]:
        grads = _one_each("DistributedGradReducer", grads, self.parameters)
        world, tracer = current_world(), current_tracer.get()
        if world is None or (tracer is not None and _compiler_reduces(tracer)):
            return tuple(grads)
        size = len(world.group(self.group))
        factor = 1 / (self.degree or size) if self.mean else 1.0
        wide = get_auto_parallel_context("gradient_fp32_sync")
        return tuple(g if p.layerwise_parallel else self._reduced(g, size, factor, wide) for p, g in zip(self.parameters, grads, strict=True))

    def _reduced(self, gradient: Any, size: int, factor: float, wide: bool) -> Any:
        if size > 1:
            if wide and str(gradient.dtype) == "float16":
                gradient = ops.cast(self.all_reduce(ops.cast(gradient, "float32")), "float16")
            else:
                gradient = self.all_reduce(gradient)
        return gradient if factor == 1 else ops.mul(gradient, factor)


def _compiler_reduces(tracer: Any) -> bool:
    """Whether the program being traced will be given its gradient messages by the compiler: in all modes but data and hybrid parallel."""
    mode = getattr(tracer, "parallel_mode", None) or get_auto_parallel_context("parallel_mode")
    return mode not in LOCAL_MODES


class PipelineGradReducer(Cell):
    """Gradients that a pipeline has accumulated, ready for the optimizer: a tuple -> a tuple.

    parameters   those the gradients are of, in their order
    scale_sense  gradients are divided by it
    opt_shard    whether the optimizer is cut among the ranks; None: as the context says

    With one stage the sum over the micro-batches is what `value_and_grad` gives, so gradients pass through. A run with pipeline_stages above 1 raises
    NotBuiltYet.
    """

    def __init__(self, parameters: Iterable[Parameter], scale_sense: float = 1.0, opt_shard: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        where = "PipelineGradReducer"
        if isinstance(scale_sense, bool) or not isinstance(scale_sense, (int, float, Arithmetic)):
            raise ArgumentTypeError(message(f"scale_sense={shorten(scale_sense)}", where=where, allowed="A number above 0"))
        if opt_shard is not None and not isinstance(opt_shard, bool):
            raise ArgumentTypeError(message(f"opt_shard={shorten(opt_shard)}", where=where, allowed="True, False, or None"))
        self.__dict__["accu_grads"] = _parameters(where, parameters)
        self.scale_sense, self.opt_shard = scale_sense, opt_shard

    def construct(self, grads: Any) -> tuple[Any, ...]:
        where = "PipelineGradReducer"
        grads = _one_each(where, grads, self.accu_grads)
        stages = get_auto_parallel_context("pipeline_stages")
        if stages > 1:
            raise no_stages_yet(where, stages)
        if isinstance(self.scale_sense, (int, float)) and self.scale_sense == 1:
            return tuple(grads)
        return tuple(ops.div(g, self.scale_sense) for g in grads)


def no_stages_yet(where: str, stages: int) -> NotBuiltYet:
    """The error to raise for a run in several pipeline stages."""
    hint = "With pipeline_stages=1 the same script runs, and gives the same sum over the micro-batches"
    return NotBuiltYet(message(f"a run in pipeline_stages={stages} stages is not built yet", where=where, hint=hint))
