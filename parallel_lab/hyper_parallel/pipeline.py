"""HyperParallel's pipelines: this package's stages and schedules (`nn/pipeline_stage.py`) in its forms.

schedule = Schedule1F1B([PipelineStage(cell, at, 2) for at, cell in enumerate(cells)], 4)
outputs = schedule.run(x)                  the last stage gives the loss: forward and backward of all micro-batches
print(*schedule.exec_order[0], sep="\\n")   what rank 0 runs: MetaStep by MetaStep
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np

from ..base.checks import fitting_class, integer
from ..base.errors import ArgumentError, LayoutTypeError, shorten
from ..nn import pipeline_stage as ours
from ..nn.pipeline_stage import PipelineStage as PipelineStage
from ..nn.tensor.tensor import Tensor
from .tensors import DTensor

check_count = integer(1)


class MetaStepType(Enum):
    """What a rank does with a micro-batch."""

    FWD = auto()
    BWD = auto()
    FWD_RECV = auto()
    FWD_SEND = auto()
    BWD_RECV = auto()
    BWD_SEND = auto()


@fitting_class
@dataclass(frozen=True)
class MetaStep:
    """An entry of a schedule: micro-batch, what is done with it, stage.

    >>> print(MetaStep(2, MetaStepType.BWD_SEND, 1))
    MetaStep(type=MetaStepType.BWD_SEND, micro_index=2, stage_index=1)
    """

    micro_index: int
    type: MetaStepType
    stage_index: int

    def __str__(self) -> str:
        return f"MetaStep(type={self.type}, micro_index={self.micro_index}, stage_index={self.stage_index})"

    __repr__ = __str__


@fitting_class
@dataclass(frozen=True)
class BatchDimSpec:
    """The dim along which an argument is split into micro-batches. Raises LayoutTypeError unless it is an int."""

    batch_dim: int

    def __post_init__(self) -> None:
        if type(self.batch_dim) is not int:
            given = f"batch_dim={shorten(self.batch_dim)}"
            raise LayoutTypeError(given, where="BatchDimSpec", allowed="An int")

    @staticmethod
    def from_tuple(batch_dims: Sequence[int]) -> tuple[BatchDimSpec, ...]:
        """One for each of several arguments."""
        return tuple(map(BatchDimSpec, batch_dims))

    @staticmethod
    def from_dict(batch_dims: dict[str, int]) -> dict[str, BatchDimSpec]:
        """One for each of several named arguments."""
        return {name: BatchDimSpec(dim) for name, dim in batch_dims.items()}


class _MicroBatch:
    """Splits arguments into micro-batches.

    micro_batch_num  how many;  args_batch_dim, kwargs_batch_dim  a BatchDimSpec per argument; None or missing: dim 0

    Each rank splits its part of a DTensor, which keeps its layout. A value without dims goes to every micro-batch.

    Called with (args, kwargs): a list of arguments, and a dict of named ones, for each micro-batch. Raises
    ArgumentError: another number of BatchDimSpecs than of arguments.
    """

    def __init__(
        self,
        micro_batch_num: int,
        args_batch_dim: Sequence[BatchDimSpec | None] | None = None,
        kwargs_batch_dim: dict[str, BatchDimSpec | None] | None = None,
    ) -> None:
        self.count = check_count("micro batches", "micro_batch_num", micro_batch_num)
        self.args_batch_dim, self.kwargs_batch_dim = args_batch_dim, kwargs_batch_dim

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[list[Any]], list[dict[str, Any]]]:
        dims, names = list(self.args_batch_dim or [None] * len(args)), self.kwargs_batch_dim or {}
        if len(dims) != len(args):
            given = f"{len(dims)} args_batch_dim for {len(args)} arguments"
            raise ArgumentError(given, where="micro batches", allowed="One per argument")
        parts = [self._parts(x, spec) for x, spec in zip(args, dims, strict=True)]
        named = {name: self._parts(x, names.get(name)) for name, x in kwargs.items()}
        each = range(self.count)
        return [[x[n] for x in parts] for n in each], [{name: x[n] for name, x in named.items()} for n in each]

    def _parts(self, value: Any, spec: BatchDimSpec | None) -> list[Any]:
        dim = 0 if spec is None else spec.batch_dim
        if isinstance(value, DTensor):
            own = {rank: ours.micro_batches(value.local(rank), self.count, dim) for rank in value._locals}
            locals_of = [{rank: parts[n] for rank, parts in own.items()} for n in range(self.count)]
            return [DTensor.from_local(each, value.mesh, value.layout) for each in locals_of]
        parts = ours.micro_batches(value, self.count, dim)
        return [Tensor(x) if isinstance(x, np.ndarray) else x for x in parts]


class _Pipeline(ours.PipelineSchedule):
    """output_concat_dim  None: results are stacked;  the others: see `_MicroBatch`"""

    def __init__(
        self,
        stages: Any,
        micro_batch_num: int,
        args_batch_dim: Sequence[BatchDimSpec | None] | None = None,
        kwargs_batch_dim: dict[str, BatchDimSpec | None] | None = None,
        output_concat_dim: int | None = 0,
        **more: Any,
    ) -> None:
        super().__init__(stages, micro_batch_num, lambda output, target: output.sum(), scale_grads=False, **more)
        self.micro_batch_num, self._concat = micro_batch_num, output_concat_dim
        self._split = _MicroBatch(micro_batch_num, args_batch_dim, kwargs_batch_dim)

    @property
    def exec_order(self) -> dict[int, list[MetaStep]]:
        """What each rank runs, with what it receives before and sends after."""
        last, found = self.num_stages - 1, {}
        for rank, lane in enumerate(self.order):
            found[rank] = steps = list[MetaStep]()
            for action in (a for cell in lane for a in (cell if isinstance(cell, tuple) else (cell,))):
                forward, stage = action.kind == "F", action.stage
                first, end = (0, last) if forward else (last, 0)
                kind = "FWD" if forward else "BWD"
                names = [f"{kind}_RECV"] * (stage != first) + [kind] + [f"{kind}_SEND"] * (stage != end)
                steps += [MetaStep(action.micro_batch, MetaStepType[name], stage) for name in names]
        return found

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward of all micro-batches; the gradient of each result is 1. Returns the last stage's
        results on its rank.
        """
        step = ours.Step(self, *self._split(args, kwargs), [None] * self.n_microbatches, self.loss_fn)
        step.run()
        return step.joined(self._concat)


@fitting_class
class ScheduleGPipe(_Pipeline, ours.ScheduleGPipe):
    """All micro-batches forward, then all backward."""


@fitting_class
class Schedule1F1B(_Pipeline, ours.Schedule1F1B):
    """One forward, one backward."""


@fitting_class
class ScheduleInterleaved1F1B(_Pipeline, ours.ScheduleInterleaved1F1B):
    """The same with several stages on each rank."""
