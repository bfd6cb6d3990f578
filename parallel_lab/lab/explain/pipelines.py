"""Pipelines of PyTorch (`torch.distributed.pipelining`): what rank 0 sends and receives for each micro-batch.

Stages are the program's own layers; which rank runs what, in which order, is a schedule of ours, and forward and
backward of a micro-batch are read as those of any tensor. A message stands where PyTorch 2.14 begins it: what a rank
receives in front of what needs it, with several stages on a rank as soon as the other rank has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.hooks import from_above
from ...layout.device_mesh import DeviceMesh
from ...nn.cell import Cell
from ...nn.tensor.dtensor_parts import Parts
from .front import Front, Table, op
from .values import Instance, NotRead, needed
from .world import Message, part

SCHEDULES = {"ScheduleGPipe": "gpipe", "Schedule1F1B": "1f1b", "ScheduleInterleaved1F1B": "interleaved"}
LONGEST = 20_000  # actions of a schedule


def stage(
    front: Front, submodule: Any, stage_index: Any, num_stages: Any, device: Any = None, input_args: Any = None,
    output_args: Any = None, **kw: Any,
) -> Instance:  # fmt: skip
    """PipelineStage"""
    if type(stage_index) is not int or type(num_stages) is not int or not 0 <= stage_index < num_stages:
        raise NotRead(f"stage {stage_index} of {num_stages} is not read")
    if not isinstance(submodule, Cell):
        raise NotRead("the layers of this stage are not known")
    if any("marks" in vars(one) for _, one in submodule.cells_and_names()):
        raise NotRead("fully_shard inside a stage is not read")
    given = input_args if isinstance(input_args, (tuple, list)) else () if input_args is None else (input_args,)
    held = {"module": submodule, "index": stage_index, "stages": num_stages, "inputs": given, "group": kw.get("group")}
    return Instance(None, held, "pipeline stage")


def _schedule(name: str) -> Any:
    def make(front: Front, stages: Any, n_microbatches: Any, loss_fn: Any = None, **kw: Any) -> Instance:
        several = list(stages) if isinstance(stages, (list, tuple)) else [stages]
        if any(not isinstance(one, Instance) or one.kind != "pipeline stage" for one in several):
            raise NotRead("the stages are not known")
        if set(kw) - {"scale_grads"}:
            raise NotRead(f"{', '.join(sorted(kw))}: another way of splitting a batch is not read")
        total, count = several[0].names["stages"], needed(n_microbatches)
        ranks = total // len(several)
        if several[0].names["index"] or total == 1 or total % len(several) or not 0 < count * total <= LONGEST:
            raise NotRead(f"a schedule of {total} stages and {count} micro-batches is not read")
        if name == "1f1b" and count < total or name == "interleaved" and count % max(1, count // ranks):
            raise NotRead(f"refused: {count} micro-batches do not fit {ranks} ranks (PyTorch, {name})")
        lanes = from_above("schedule_maker")(name, ranks, count, len(several))
        order = [[a for cell in lane for a in (cell if isinstance(cell, tuple) else (cell,))] for lane in lanes]
        held = {one.names["index"]: one for one in several}
        if len(several) > 1:
            order[0] = list(_with_messages(order, total))
        made = {
            "stages": held,
            "order": order[0],
            "count": count,
            "loss": loss_fn is not None,
            "ahead": len(several) > 1,
        }
        return Instance(None, made, "pipeline schedule")

    return make


def _with_messages(order: list[list[Any]], stages: int) -> Iterator[Any]:
    """Rank 0's actions, and (kind, stage, micro-batch) of what arrives, as soon as its sender has made it.

    Ranks take turns; an action waits until its input arrives (PyTorch 2.14, _add_send_recv).
    """
    ranks, lanes = len(order), [list(lane) for lane in order]
    there: set[tuple[str, int, int]] = set()
    while any(lanes):
        before = len(there), sum(map(len, lanes))
        for rank, lane in enumerate(lanes):
            if not lane:
                continue
            action = lane[0]
            kind, at, number = action.kind, action.stage, action.micro_batch
            first, way = (0, 1) if kind == "F" else (stages - 1, -1)
            if at != first and (kind, at, number) not in there:
                continue
            lane.pop(0)
            to = at + way
            if rank == 0:
                yield action
            if 0 <= to < stages:
                there.add((kind, to, number))
                if to % ranks == 0:
                    yield kind, to, number
        if before == (len(there), sum(map(len, lanes))):
            raise NotRead("a schedule whose actions wait for each other")


class _Run:
    """One step of a schedule, on rank 0."""

    def __init__(self, front: Front, schedule: Instance, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool):
        self.front, self.of, self.trains = front, schedule.names, trains and schedule.names["loss"]
        self.line = front.reader.line
        self.args = [self._parts(x) for x in args]
        self.kwargs = {name: self._parts(x) for name, x in kwargs.items()}
        self.kept: dict[tuple[int, int], tuple[list[Any], list[Any]]] = {}
        self.shapes: dict[int, list[Any]] = {}

    def _parts(self, x: Any) -> list[Any]:
        """A value for each micro-batch: a tensor along dim 0, in parts that differ by a row at most."""
        count = self.of["count"]
        if not isinstance(x, Parts) or not x.shape:
            return [x] * count
        sizes = [len(part) for part in np.array_split(np.empty(x.shape[0], bool), count)]
        return list(op("split_parts")(x, axis=0, sizes=tuple(sizes)))

    def run(self) -> None:
        for action in self.of["order"]:
            self.front.world.at(self.line)
            if isinstance(action, tuple):
                self._arrives(*action)
            elif action.kind == "F":
                self._forward(action.stage, action.micro_batch)
            elif self.trains:
                self._backward(action.stage, action.micro_batch)

    def _sent(self, kind: str, x: Any, at: int, way: str, number: int, backward: bool) -> None:
        """Note a message with a neighbour."""
        group, held = self.of["stages"][at].names["group"], part(x)
        axis = group.names[0] if isinstance(group, DeviceMesh) and group.ndim == 1 else ""
        phase, what = ("backward", "the gradient of micro-batch") if backward else ("forward", "micro-batch")
        made = kind, axis, tuple(held.shape), "", str(held.dtype), phase, self.line, f"{way}: {what} {number}"
        self.front.world.events.append(Message(*made))

    def _arrives(self, kind: str, at: int, number: int) -> None:
        backward = kind != "F"
        if backward and not self.trains:
            return
        for x in self._gradients(at, number) if backward else self._inputs(at):
            way = f"stage {at + 1} -> {at}" if backward else f"stage {at - 1} -> {at}"
            self._sent("recv", x, at, way, number, backward)

    def _inputs(self, at: int) -> list[Any]:
        """What a stage that is not the first is given."""
        found = [x for x in self.of["stages"][at].names["inputs"] if isinstance(x, Parts)]
        if not found:
            raise NotRead(
                f"what stage {at - 1} gives stage {at} is not known: PipelineStage(..., input_args=...) says it"
            )
        world = self.front.world
        return [world.tensor(x.shape, x.dtype, requires_grad=x.requires_grad) for x in found]

    def _gradients(self, at: int, number: int) -> list[Any]:
        """The outputs of a micro-batch whose gradients come; of one that is still to be computed those of another."""
        outputs = self.kept[at, number][1] if (at, number) in self.kept else self.shapes.get(at)
        if outputs is None:
            raise NotRead(f"stage {at} is given a gradient before it has computed")
        return [x for x in outputs if x.requires_grad]

    def _forward(self, at: int, number: int) -> None:
        first = at == 0
        inputs = [x[number] for x in self.args] if first else self._inputs(at)
        named = {name: x[number] for name, x in self.kwargs.items()}
        out = needed(self.front.reader.call(self.of["stages"][at].names["module"], inputs, named))
        outputs = [x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, Parts)]
        self.kept[at, number], self.shapes[at] = (inputs, outputs), outputs
        for x in outputs if at + 1 < self.of["stages"][at].names["stages"] else ():
            self._sent("send", x, at, f"stage {at} -> {at + 1}", number, False)

    def _backward(self, at: int, number: int) -> None:
        if not self.of["ahead"]:
            self._arrives("B", at, number)
        inputs, outputs = self.kept.pop((at, number))
        for x in outputs:
            if x.requires_grad:
                x.backward(self.front.world.tensor(x.shape, x.dtype, x.layout if not x.alone else None))
        for x in inputs if at else ():
            if x.requires_grad:
                self._sent("send", x, at, f"stage {at} -> {at - 1}", number, True)


def run(front: Front, of: Instance, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
    """schedule.step(x), schedule.eval(x)"""
    own = ("target", "losses", "return_outputs", "loss_kwargs")
    _Run(front, of, args, {name: x for name, x in kwargs.items() if name not in own}, trains).run()


PIPELINES: Table = {"PipelineStage": stage, **{name: _schedule(ours) for name, ours in SCHEDULES.items()}}
