"""Pipeline stages at once: Cells on ranks of their own, micro-batches between them, in the order of a schedule.

    stages = [PipelineStage(cell, at, 2) for at, cell in enumerate((first, second))]
    losses = []
    Schedule1F1B(stages, 4, loss_fn=nn.MSELoss()).step(x, target=y, losses=losses)
    update(first.trainable_params() + second.trainable_params(), lambda p, g: p - 0.1 * g)

In a notebook one process plays the ranks of all stages; under `parallel-lab run` a rank has its own, and what others
need is sent to them. A stage's Parameters are DTensors on its rank, `grad` is the mean over micro-batches. Names and
arguments: PyTorch 2.14, torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.checks import fitting_class
from ..base.dtypes import kind_of
from ..base.errors import ArgumentError, ArgumentTypeError, ShapeError, shorten
from ..base.hooks import current_world, from_above
from ..layout.device_mesh import DeviceMesh
from ..layout.mesh_layout import Replicate
from .cell import Cell
from .tensor.dtensor import DTensor
from .tensor.dtensor_parameter import distribute_parameter
from .tensor.dtensor_parts import as_part, implicit_replication, note

COPIES = (Replicate(),)


@fitting_class
class PipelineStage:
    """A part of a network, and the micro-batches that it keeps between forward and backward.

    submodule                a Cell; its first argument is the batch, or what the stage before gives
    stage_index, num_stages  its number, and of how many
    device, group            accepted: stage i lies on rank i, with k stages per rank on rank i modulo their number
    """

    def __init__(
        self, submodule: Cell, stage_index: int, num_stages: int, device: Any = None, *, group: Any = None
    ) -> None:
        if not isinstance(submodule, Cell):
            raise ArgumentTypeError(shorten(submodule), where="PipelineStage", allowed="A Cell")
        if not 0 <= stage_index < num_stages:
            given = f"stage_index={stage_index} of {num_stages}"
            raise ArgumentError(given, where="PipelineStage", allowed=f"0 to {num_stages - 1}")
        self.submodule, self.stage_index, self.num_stages = submodule, stage_index, num_stages
        self.rank = -1
        self._kept: dict[int, tuple[tuple[DTensor, ...], Any]] = {}

    is_first = property(lambda self: self.stage_index == 0, doc="Whether it is given the batch.")
    is_last = property(lambda self: self.stage_index == self.num_stages - 1, doc="Whether it gives the result.")

    def lie_on(self, rank: int) -> None:
        """Put the Parameters on a rank."""
        if rank != self.rank:
            self.rank, self.mesh = rank, DeviceMesh((1,), ("stage",), (rank,))
            for _, cell in self.submodule.cells_and_names():
                for name in list(cell._params):
                    distribute_parameter(cell, name, self.mesh, COPIES)

    def forward_one_chunk(self, number: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The outputs for a micro-batch."""
        inputs = tuple(map(self._here, args))
        for x in inputs:
            x.requires_grad_(not self.is_first and kind_of(x.dtype) == "f")
        with implicit_replication():
            output = self.submodule(*inputs, **kwargs)
        self._kept[number] = inputs, output
        return output

    def backward_one_chunk(self, number: int, gradients: Sequence[Any] = (), loss: Any = None) -> tuple[Any, ...]:
        """Gradients of a micro-batch's inputs.  gradients: of the outputs;  loss: made of them, on the last stage"""
        inputs, output = self._kept.pop(number)
        if loss is None:
            outputs = output if isinstance(output, tuple) else (output,)
            loss = sum((x * self._here(g)).sum() for x, g in zip(outputs, gradients, strict=True) if x.requires_grad)
        loss.backward()
        return tuple(None if x.grad is None else x.grad.local(self.rank) for x in inputs)

    def _here(self, value: Any) -> DTensor:
        return DTensor.from_local(as_part(value), self.mesh, COPIES)


@fitting_class
class PipelineSchedule:
    """Stages, and the order in which their ranks run micro-batches.

    stages           those of this process: all, or a rank's own (one, or a list)
    n_microbatches   parts of the batch, along its first dim
    loss_fn          (output, target) -> loss of a micro-batch; None: forward alone
    scale_grads      divide gradients by the number of micro-batches: the mean loss's

    Raises ArgumentError: stages that are not all there, or not a multiple of the ranks.
    """

    name = ""

    def __init__(
        self, stages: Any, n_microbatches: int, loss_fn: Callable[..., Any] | None = None, *, scale_grads: bool = True
    ) -> None:
        self.stages = {stage.stage_index: stage for stage in (stages if isinstance(stages, list) else [stages])}
        self.n_microbatches, self.loss_fn, self.scale_grads = n_microbatches, loss_fn, scale_grads
        self.num_stages = next(iter(self.stages.values())).num_stages
        self.order = from_above("schedule_maker")(self.name, *self._shape())
        world = current_world()
        held = [s for rank, held in enumerate(self.order.holds) if world is None or rank == world.rank for s in held]
        if any(stage not in self.stages for stage in held):
            given = f"stages {sorted(self.stages)} of {self.num_stages}"
            where = type(self).__name__
            raise ArgumentError(given, where=where, allowed="All of them; on a rank its own")
        for index, stage in self.stages.items():
            stage.lie_on(self.rank_of(index))

    def _shape(self) -> tuple[int, int, int]:
        """Ranks, micro-batches, stages per rank."""
        return self.num_stages, self.n_microbatches, 1

    def step(self, *args: Any, target: Any = None, losses: list[Any] | None = None, **kwargs: Any) -> Any:
        """Run all micro-batches forward, and backward if there is a loss. Every rank of the pipeline calls it.

        args, kwargs  of the first stage: split along dim 0, if arrays or Tensors
        target        of the last stage;  losses: is given the micro-batches' losses

        Returns the last stage's outputs, joined; None on other ranks.
        """
        parts, count = [micro_batches(x, self.n_microbatches) for x in args], range(self.n_microbatches)
        named = {name: micro_batches(x, self.n_microbatches) for name, x in kwargs.items()}
        each = [[x[n] for x in parts] for n in count], [{name: x[n] for name, x in named.items()} for n in count]
        run = Step(self, *each, micro_batches(target, len(count)), None if target is None else self.loss_fn)
        run.run()
        if losses is not None:
            losses.extend(run.losses[number] for number in sorted(run.losses))
        return run.joined(0)

    def rank_of(self, stage: int) -> int:
        """Where a stage lies."""
        return next(rank for rank, held in enumerate(self.order.holds) if stage in held)


def micro_batches(value: Any, count: int, dim: int = 0) -> list[Any]:
    """A value for each micro-batch, split along a dim, if it has dims. Raises ShapeError: too few rows"""
    if not getattr(value, "shape", ()):
        return [value] * count
    array = as_part(value)
    if array.shape[dim] < count:
        what = f"a batch of {array.shape[dim]} in {count} micro-batches"
        raise ShapeError(what, where="pipeline", allowed="A row for each, or more")
    return np.array_split(array, count, dim)


class Step:
    """One run of a schedule.

    args, kwargs, targets  of each micro-batch;  loss_fn  None: forward alone
    outputs, losses        micro-batch -> arrays of the last stage, loss
    """

    def __init__(
        self,
        schedule: PipelineSchedule,
        args: list[list[Any]],
        kwargs: list[dict[str, Any]],
        targets: list[Any],
        loss_fn: Callable[..., Any] | None,
    ) -> None:
        self.schedule, self.args, self.kwargs, self.targets, self.loss_fn = schedule, args, kwargs, targets, loss_fn
        self.outputs: dict[int, list[np.ndarray]] = {}
        self.losses: dict[int, Any] = {}
        self._arrived: dict[tuple[str, int, int], tuple[Any, ...]] = {}
        self._world = current_world()

    def run(self) -> None:
        """Every rank's actions in their order; those of one process as soon as what they need is there."""
        lanes = [
            [action for cell in lane for action in (cell if isinstance(cell, tuple) else (cell,))]
            for rank, lane in enumerate(self.schedule.order)
            if self._world is None or rank == self._world.rank
        ]
        while any(lanes):
            ready = [lane for lane in lanes if lane and self._ran(lane[0])]
            assert ready, "a schedule whose actions wait for each other"
            for lane in ready:
                lane.pop(0)

    def _ran(self, action: Any) -> bool:
        """Run an action. False if what it needs has not come yet."""
        stage, number = self.schedule.stages[action.stage], action.micro_batch
        if action.kind == "F":
            given = self._given("forward", stage, -1, number, self.args[number])
            if given is not None:
                self._forward(stage, number, given)
            return given is not None
        given = self._given("backward", stage, 1, number, ()) if self.loss_fn is not None else ()
        if given is not None and self.loss_fn is not None:
            loss = self.losses.get(number) if stage.is_last else None
            if loss is not None and self.schedule.scale_grads:
                loss = loss * (1 / self.schedule.n_microbatches)
            self._send("backward", stage, -1, number, stage.backward_one_chunk(number, given, loss))
        return given is not None

    def _forward(self, stage: PipelineStage, number: int, given: Sequence[Any]) -> None:
        output = stage.forward_one_chunk(number, given, self.kwargs[number] if stage.is_first else {})
        arrays = [x.local(stage.rank) for x in (output if isinstance(output, tuple) else (output,))]
        self._send("forward", stage, 1, number, arrays)
        if stage.is_last:
            self.outputs[number] = arrays
            if self.loss_fn is not None:
                with implicit_replication():
                    self.losses[number] = self.loss_fn(output, self.targets[number])

    def _send(self, kind: str, stage: PipelineStage, way: int, number: int, values: Sequence[Any]) -> None:
        """Hand values to the stage after (way 1) or before (-1), if there is one."""
        to = stage.stage_index + way
        if not 0 <= to < stage.num_stages:
            return
        for value in values:
            note("send", f"stage {stage.stage_index} -> {to}", "", value, f"{kind} of micro-batch {number}")
        rank = self.schedule.rank_of(to)
        if self._world is None or rank == self._world.rank:
            self._arrived[kind, to, number] = tuple(values)
            return
        for value in (np.array([len(values)]), *values):
            self._world.comm.send(value, rank)

    def _given(
        self, kind: str, stage: PipelineStage, way: int, number: int, own: Sequence[Any]
    ) -> Sequence[Any] | None:
        """What a stage computes with: its neighbour's values, None if they have not come; its own at the border."""
        source = stage.stage_index + way
        if not 0 <= source < stage.num_stages:
            return own
        rank = self.schedule.rank_of(source)
        if self._world is None or rank == self._world.rank:
            return self._arrived.pop((kind, stage.stage_index, number), None)
        return [self._world.comm.recv(rank) for _ in range(int(self._world.comm.recv(rank)[0]))]

    def joined(self, dim: int | None) -> Any:
        """The outputs of all micro-batches: one, or a tuple; numbers in a row. None where another rank has them."""
        columns = list(zip(*(self.outputs[number] for number in sorted(self.outputs)), strict=True))
        made = [np.concatenate(each, dim) if each[0].ndim and dim is not None else np.stack(each) for each in columns]
        return None if not made else made[0] if len(made) == 1 else tuple(made)


@fitting_class
class ScheduleGPipe(PipelineSchedule):
    """All micro-batches forward, then all backward."""

    name = "gpipe"


@fitting_class
class Schedule1F1B(PipelineSchedule):
    """One forward, one backward: a rank keeps no more micro-batches than there are stages after it."""

    name = "1f1b"


@fitting_class
class ScheduleInterleaved1F1B(PipelineSchedule):
    """The same with several stages on each rank: rank r of n has the stages r, n + r, ...

    ranks  n; None: half of the stages where one process plays all, else as many as the world has
    """

    name = "interleaved"

    def __init__(
        self, stages: list[PipelineStage], n_microbatches: int, *args: Any, ranks: int | None = None, **more: Any
    ) -> None:
        self.ranks = ranks
        super().__init__(stages, n_microbatches, *args, **more)

    def _shape(self) -> tuple[int, int, int]:
        world = current_world()
        ranks = self.ranks or (world.world_size if world is not None else max(1, self.num_stages // 2))
        if self.num_stages % ranks:
            given = f"{self.num_stages} stages on {ranks} ranks"
            raise ArgumentError(given, where="ScheduleInterleaved1F1B", allowed="As many on each")
        return ranks, self.n_microbatches, self.num_stages // ranks
