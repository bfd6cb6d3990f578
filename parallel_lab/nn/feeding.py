"""Cells that feed a network: its outputs and a label to a loss, a batch in micro-batches.

    accumulated = nn.GradAccumulation(nn.WithLossCell(net, loss), 4)      # 4 parts of the batch, added up

They run at once, and inside a function or network that is compiled. Parameters keep the names they have in the network.
Names, arguments and checks: MindSpore, nn.wrap and parallel.nn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..base.checks import checked, function, instance, integer, kept
from ..base.errors import ContextConflictError, ShapeError, StageNameError, StrategyError, shorten
from ..base.hooks import current_tracer
from ..base.settings.current import get_auto_parallel_context
from ..ops.elementwise import add
from ..ops.machine.state import step_of_micro_batch
from ..ops.slicing import strided_slice
from .cell import Cell
from .tensor.arithmetic import Arithmetic

NETWORK = function("A Cell or a function")


def check_outputs(outputs: Any) -> Any:
    """What a network returned, on its way to a loss. Raises ShapeError for bools, which have no gradient."""
    for out in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        if str(getattr(out, "dtype", "")) == "bool":
            nodes = getattr(getattr(out, "tracer", None), "nodes", ())
            node_of_output = next((node for node in nodes if node.name == out.name), None)
            by = (
                f", made by {node_of_output.op_class} {node_of_output.name!r} ({node_of_output.origin.place})"
                if node_of_output is not None
                else ""
            )
            what, allowed = f"the network returns truth values{by}", "Numbers: a comparison has no gradient"
            hint = "Return the numbers themselves: the loss compares them with the label. Comparisons belong to metrics"
            raise ShapeError(what, where="loss", allowed=allowed, hint=hint)
    return outputs


class WithLossCell(Cell):
    """A network and its loss: (data, ..., label) -> loss_fn(backbone(data, ...), label). Parameter names stay."""

    @checked(backbone=NETWORK, loss_fn=NETWORK)
    def __init__(self, backbone: Cell, loss_fn: Cell | Callable[[Any, Any], Any]) -> None:
        super().__init__(auto_prefix=False)
        self._backbone, self._loss_fn = backbone, loss_fn

    def construct(self, data: Any, label: Any, *more: Any) -> Any:
        *data, label = (data, label, *more)  # a backbone may take several inputs; the label is last
        return self._loss_fn(check_outputs(self._backbone(*data)), label)

    @property
    def backbone_network(self) -> Cell:
        """The network without its loss."""
        return self._backbone


# ---- micro-batches ----


class MicroBatches(Cell):
    """Runs a network per micro-batch and adds the results: i of M has rows [i B / M, (i + 1) B / M) of every input."""

    _one_by_one = False  # whether each runs forward and backward before the next, where they are compiled

    @checked(network=instance(Cell, "A Cell, such as nn.WithLossCell(net, loss)"))
    def __init__(self, network: Cell, count: int) -> None:
        super().__init__(auto_prefix=False)
        self.network, self._count = network, count
        # where the batch is split among ranks each takes a part of its own rows: nothing moves
        self._rows = strided_slice.primitive().add_prim_attr("skip_redistribution", True)

    def construct(self, *inputs: Any) -> Any:
        tracer, total = current_tracer.get(), None
        network, count = self._in_one() if tracer is not None else (self.network, self._count)
        for position, x in enumerate(inputs):
            shape = tuple(x.shape) if _is_batch(x) else (count,)
            if not shape or shape[0] % count:
                what = f"dim 0 of input {position} of shape {shape} cannot be split into {count} equal micro-batches"
                raise ShapeError(what, where=type(self).__name__, allowed=f"A batch that divides by {count}")
        if tracer is not None and self._one_by_one and count > 1:
            return tracer.micro_batched(network, inputs, count)
        totals: dict[Any, Any] = {}
        for i in range(self._count):
            each = (
                step_of_micro_batch(i, self._count, totals) if self._one_by_one and self._count > 1 else nullcontext()
            )
            with each:
                result = self.network(*(self._part(x, i) for x in inputs))
            total = result if total is None else _added(total, result)
        return total

    def _in_one(self) -> tuple[Cell, int]:
        """(network, micro-batches) as one level: parts of parts are rows in their order, sums of sums the sum."""
        self._check_feeding()
        if not (self._one_by_one and isinstance(self.network, MicroBatches) and self.network._one_by_one):
            return self.network, self._count
        network, count = self.network._in_one()
        return network, self._count * count

    def _check_feeding(self) -> None:
        """Raise the error of a network that cannot be fed so where it is compiled."""

    def _part(self, x: Any, i: int) -> Any:
        if not _is_batch(x):
            return x
        shape = tuple(x.shape)
        rows, rest = shape[0] // self._count, shape[1:]
        begin, end = (i * rows, *(0,) * len(rest)), ((i + 1) * rows, *rest)
        return self._rows(x, begin, end, (1,) * len(shape)) if self._count > 1 else x


def _is_batch(x: Any) -> bool:
    """Whether micro-batches share an input; a number is the same for all of them."""
    return isinstance(x, (Arithmetic, np.ndarray))


def _added(total: Any, result: Any) -> Any:
    if isinstance(total, (tuple, list)):
        return tuple(_added(a, b) for a, b in zip(total, result, strict=True))
    return add(total, result)


class GradAccumulation(MicroBatches):
    """A batch in `micro_size` parts, one after the other: (inputs) -> the sum of what the network returns for them.

    micro_size  how many parts (not how large they are)

    The gradient of the sum is the sum of the parts' gradients, without division, and the optimizer takes one step: with
    a mean loss, results and gradients are micro_size times those of the undivided batch. Directly around a
    PipelineCell, or in one, their micro-batches are one series: micro_size times as many. Raises ArgumentTypeError,
    ArgumentError; ShapeError when the batch does not divide.
    """

    @kept(micro_size=integer(1))
    def __init__(self, network: Cell, micro_size: int) -> None:
        super().__init__(network, micro_size)

    _one_by_one = True


class PipelineCell(MicroBatches):
    """A network in pipeline stages, fed with `micro_size` micro-batches: (inputs) -> the sum of what it returns for
    them.

    stage_config  {name of a Cell in the network: its stage}; sets their `pipeline_stage`
    segment_config  accepted: chunks of stages are those of the schedule

    In several stages (pipeline_stages) it has to be compiled: by Model, jit, `parallel_lab.compile`. Checks as
    GradAccumulation; an unknown name in stage_config raises StageNameError (a KeyError), fewer micro-batches than
    stages StrategyError, a call outside of a compiled step ContextConflictError.
    """

    _one_by_one = True

    @checked(stage_config=instance(dict, "A dict {name of a Cell: stage}") | None)
    @checked(segment_config=instance(dict, "A dict {name of a Cell: segment}") | None)
    @kept(micro_size=integer(1))
    def __init__(
        self,
        network: Cell,
        micro_size: int = 1,
        stage_config: dict[str, int] | None = None,
        segment_config: dict[str, int] | None = None,
    ) -> None:
        super().__init__(network, micro_size)
        self._set_stages(stage_config or {})

    def _set_stages(self, config: dict[str, int]) -> None:
        where, cells = type(self).__name__, dict(self.network.cells_and_names())
        for name, stage in config.items():
            if name not in cells:
                allowed = f"Cells of the network: {shorten(', '.join(filter(None, cells)), 200)}"
                hint = "Inside a WithLossCell names begin with '_backbone.'" if f"_backbone.{name}" in cells else ""
                raise StageNameError(f"stage_config names {name!r}", where=where, allowed=allowed, hint=hint)
            integer(0)(where, f"stage_config[{name!r}]", stage)
        for name, stage in config.items():
            cells[name].pipeline_stage = stage

    def _check_feeding(self) -> None:
        stages = get_auto_parallel_context("pipeline_stages")
        if self._count < stages:
            what = f"micro_size={self._count} with pipeline_stages={stages}"
            raise StrategyError(what, where=type(self).__name__, allowed="At least as many micro-batches as stages")

    def construct(self, *inputs: Any) -> Any:
        self._check_feeding()
        check_compiled(type(self).__name__)
        return super().construct(*inputs)


def check_compiled(where: str) -> None:
    """Raise ContextConflictError where a pipeline in several stages would run at once, operator by operator."""
    stages = get_auto_parallel_context("pipeline_stages")
    if stages > 1 and current_tracer.get() is None:
        hint = "Decorate the step with jit, or train with Model; parallel_mode has to be semi_auto_parallel"
        what, allowed = f"it runs at once, with pipeline_stages={stages}", "Pipeline stages run in compiled steps"
        raise ContextConflictError(what, where=where, allowed=allowed, hint=hint)
