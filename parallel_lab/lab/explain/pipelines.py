"""Pipelines of PyTorch (`torch.distributed.pipelining`): what rank 0 sends and receives for each micro-batch.

Stages are the program's own layers; which rank runs what, in which order, is a schedule of ours, and forward and
backward of a micro-batch are read as those of any tensor. A message stands where PyTorch 2.14 begins it: what a rank
receives in front of what needs it, with several stages on a rank as soon as the other rank has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ...base.hooks import from_above
from ...layout.device_mesh import DeviceMesh
from ...nn import fully_shard as sharding
from ...nn.cell import Cell
from ...nn.tensor.dtensor_parts import Parts
from .data_parallel import no_sync
from .front import Front, Table, last, op
from .values import Instance, NotRead, needed
from .world import Message, part

SCHEDULES = {
    "ScheduleGPipe": "gpipe", "Schedule1F1B": "1f1b", "ScheduleInterleaved1F1B": "interleaved",
    "ScheduleLoopedBFS": "breadth_first", "ScheduleInterleavedZeroBubble": "zb_h1",
    "ScheduleZBVZeroBubble": "zero_bubble_v", "ScheduleDualPipeV": "dualpipe_v",
}  # fmt: skip
SINGLE = ("gpipe", "1f1b")  # one stage on a rank: a message stands at the action that needs it or gives it
ACTION = re.compile(r"(\d+)(F|B|I|W|SEND_F|SEND_B|RECV_F|RECV_B)(\d+)")  # as PyTorch writes them
LONGEST = 20_000  # actions of a schedule


def stage(
    front: Front,
    submodule: Any,
    stage_index: Any,
    num_stages: Any,
    device: Any = None,
    input_args: Any = None,
    output_args: Any = None,
    **kw: Any,
) -> Instance:
    """PipelineStage"""
    if type(stage_index) is not int or type(num_stages) is not int or not 0 <= stage_index < num_stages:
        raise NotRead(f"stage {stage_index} of {num_stages} is not read")
    if not isinstance(submodule, Cell):
        raise NotRead("the layers of this stage are not known")
    shards = submodule._groups(recurse=True) if isinstance(submodule, sharding.FullyShardedCell) else []
    marked = [one.names["_group"] for _, one in submodule.cells_and_names() if "marks" in vars(one)]
    if marked and (not shards or any(type(g) is not sharding.Group or g.reshard for g in marked)):
        raise NotRead("fully_shard of a stage is read of all of it, with reshard_after_forward=False below")
    for group in shards:
        group.__class__, group.reshard = Kept, False
    given = input_args if isinstance(input_args, (tuple, list)) else () if input_args is None else (input_args,)
    held = {
        "module": submodule, "submod": submodule, "index": stage_index, "stages": num_stages, "inputs": given,
        "group": kw.get("group"), "shards": shards,
    }  # fmt: skip
    held["tells"] = input_args is None and num_stages > 1
    return Instance(None, held, "pipeline stage")


class Kept(sharding.Group):
    """Parameters that stay whole from one micro-batch to the next."""

    def give_up(self, keep: int | None = None) -> None:
        """Forget what was gathered, once gradients are reduced."""
        if self.sync:
            super().give_up(keep)


def _schedule(name: str) -> Any:
    def make(front: Front, stages: Any, n_microbatches: Any, loss_fn: Any = None, **kw: Any) -> Instance:
        several = list(stages) if isinstance(stages, (list, tuple)) else [stages]
        if any(not isinstance(one, Instance) or one.kind != "pipeline stage" for one in several):
            raise NotRead("the stages are not known")
        if set(kw) - {"scale_grads"}:
            raise NotRead(f"{', '.join(sorted(kw))}: another way of splitting a batch is not read")
        total, count = several[0].names["stages"], needed(n_microbatches)
        data = any(one.names["shards"] or " ddp" in getattr(one.names["module"], "names", ()) for one in several)
        if data and name not in SINGLE:
            raise NotRead(f"fully_shard, or DistributedDataParallel, of stages of {name} is not read")
        ranks = total // len(several)
        if several[0].names["index"] or total == 1 or total % len(several) or not 0 < count * total <= LONGEST:
            raise NotRead(f"a schedule of {total} stages and {count} micro-batches is not read")
        if name == "1f1b" and count < total or name in ("interleaved", "zb_h1") and count % max(1, count // ranks):
            raise NotRead(f"refused: {count} micro-batches do not fit {ranks} ranks (PyTorch, {name})")
        made = from_above("schedule_maker")(name, ranks, count, len(several))
        held = {one.names["index"]: one for one in several}
        if tuple(held) != made.holds[0]:
            raise NotRead(f"refused: the stages {tuple(held)} on rank 0, which {name} gives {made.holds[0]}")
        row = made.to_csv(lowered=name not in SINGLE).splitlines()[0]
        order = [(what, int(at), int(number)) for at, what, number in ACTION.findall(row)]
        found = {"stages": held, "order": order, "count": count, "loss": loss_fn is not None, "single": name in SINGLE}
        return Instance(None, found, "pipeline schedule")

    return make


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
        single, divided = self.of["single"], any(kind == "I" for kind, *_ in self.of["order"])
        shards = [group for one in self.of["stages"].values() for group in one.names["shards"]]
        for group in shards:
            group.sync = False
        for kind, at, number in self.of["order"]:
            self.front.world.at(self.line)
            if kind == "F":
                self._forward(at, number)
                if single:
                    self._leaves("F", at, number)
            elif kind in ("SEND_F", "RECV_F"):
                (self._leaves if kind == "SEND_F" else self._arrives)("F", at, number)
            elif not self.trains or kind == "W":
                continue
            elif kind in ("SEND_B", "RECV_B"):
                (self._leaves if kind == "SEND_B" else self._arrives)("B", at, number)
            else:
                if single:
                    self._arrives("B", at, number)
                before = len(self.front.world.messages)
                self._backward(at, number)
                if divided and len(self.front.world.messages) > before:
                    raise NotRead("messages of a backward that is divided are not read")
                if single:
                    self._leaves("B", at, number)
        for group in shards:
            group.sync = True
            if self.trains:
                group.reduce()
                group.give_up()
        if any(one.names["tells"] for one in self.of["stages"].values()):
            why = "what stages tell each other of shapes first is not counted: PipelineStage(..., input_args=...)"
            self.front.reader.note(self.line, why)

    def _sent(self, kind: str, x: Any, at: int, way: str, number: int, backward: bool) -> None:
        """Note a message with a neighbour."""
        group, held = self.of["stages"][at].names["group"], part(x)
        axis = group.names[0] if isinstance(group, DeviceMesh) and group.ndim == 1 else ""
        phase, what = ("backward", "the gradient of micro-batch") if backward else ("forward", "micro-batch")
        made = kind, axis, tuple(held.shape), "", str(held.dtype), phase, self.line, f"{way}: {what} {number}"
        self.front.world.events.append(Message(*made))

    def _arrives(self, kind: str, at: int, number: int) -> None:
        backward = kind != "F"
        if at == (self.of["stages"][at].names["stages"] - 1 if backward else 0):
            return
        for x in self._gradients(at, number) if backward else self._inputs(at):
            way = f"stage {at + 1} -> {at}" if backward else f"stage {at - 1} -> {at}"
            self._sent("recv", x, at, way, number, backward)

    def _leaves(self, kind: str, at: int, number: int) -> None:
        backward, stages = kind != "F", self.of["stages"][at].names["stages"]
        to, values = at - 1 if backward else at + 1, self.kept[at, number][0 if backward else 1]
        for x in values if 0 <= to < stages else ():
            if x.requires_grad or not backward:
                self._sent("send", x, at, f"stage {at} -> {to}", number, backward)

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
        module = self.of["stages"][at].names["module"]
        last = self.of["count"] - 1 == number  # the copies of DistributedDataParallel add up gradients once
        with nullcontext() if last or " ddp" not in getattr(module, "names", ()) else no_sync(module):
            out = needed(self.front.reader.call(module, inputs, named))
        outputs = [x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, Parts)]
        self.kept[at, number], self.shapes[at] = (inputs, outputs), outputs
        if at + 1 == self.of["stages"][at].names["stages"] and not all(x.alone for x in outputs):
            raise NotRead("a loss of distributed tensors in a pipeline is not read")

    def _backward(self, at: int, number: int) -> None:
        for x in self.kept[at, number][1]:
            if x.requires_grad:
                x.backward(self.front.world.tensor(x.shape, x.dtype, x.layout if not x.alone else None))


def run(front: Front, of: Instance, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
    """schedule.step(x), schedule.eval(x)"""
    own = ("target", "losses", "return_outputs", "loss_kwargs")
    _Run(front, of, args, {name: x for name, x in kwargs.items() if name not in own}, trains).run()


# ---- pipeline(): a network that is cut at some of its layers ----


class Cut(Exception):
    """The first stage ends here.  values: what it gives"""

    def __init__(self, values: Sequence[Any]) -> None:
        super().__init__("a cut")
        self.values = values


def pipeline(
    front: Front,
    module: Any,
    mb_args: Any = (),
    mb_kwargs: Any = None,
    split_spec: Any = None,
    split_policy: Any = None,
) -> Instance:
    """A network, cut before or after some of its layers. Raises NotRead: more crosses a cut."""
    paths = dict(module.cells_and_names()) if isinstance(module, Cell) else {}
    marked = any("marks" in vars(one) for one in paths.values())
    if marked or split_policy is not None or not split_spec or not set(split_spec) <= set(paths):
        raise NotRead("where this is cut is not known")
    cuts = {id(paths[path]): last(point) for path, point in split_spec.items()}
    held = {id(x) for _, one in module.cells_and_names() for x in vars(one).values()}  # parameters, buffers
    before: dict[int, Any] = {id(x): x for x in (*mb_args, *(mb_kwargs or {}).values())}
    given, old, reader = set(before), {}, front.reader

    def watched(value: Any) -> None:
        if isinstance(value, Parts) and id(value) not in held:
            if id(value) in old:
                raise NotRead("a tensor that crosses a cut by another way is not read")
            before[id(value)] = value

    def cut(values: Any) -> Any:
        several = values if isinstance(values, tuple) else (values,)
        if any(isinstance(x, Parts) and (id(x) in given or id(x) in old or not x.alone) for x in several):
            raise NotRead("a stage that hands on what it was given, or what is distributed, is not read")
        old.update(before)
        fresh = [front.world.tensor(x.shape, x.dtype) if isinstance(x, Parts) else x for x in several]
        return tuple(fresh) if isinstance(values, tuple) else fresh[0]

    begun, unread, reader.watched = reader.watched, len(reader.unread), watched
    try:
        _run_cut(front, module, cuts, cut, mb_args, mb_kwargs or {})
    finally:
        reader.watched = begun
    if len(reader.unread) > unread:
        raise NotRead("a network that is not read in full is not cut")
    return Instance(None, {"module": module, "cuts": cuts, "num_stages": len(cuts) + 1}, "pipe")


def _run_cut(front: Front, module: Any, cuts: dict[int, str], cut: Any, args: Any, kwargs: Any) -> Any:
    """The network, with `cut` called where a stage ends."""
    held = []
    for _, one in module.cells_and_names():
        if cuts.get(id(one)) == "BEGINNING":
            held.append(one.register_forward_pre_hook(lambda of, given: cut(given)))
        elif id(one) in cuts:
            held.append(one.register_forward_hook(lambda of, given, out: cut(out)))
    try:
        return front.reader.call(module, list(args), dict(kwargs))
    finally:
        for each in held:
            each.remove()


def build_stage(front: Front, of: Instance, stage_index: Any, device: Any = None, group: Any = None) -> Instance:
    """pipe.build_stage(0, device)"""
    if of.kind != "pipe" or stage_index != 0:
        raise NotRead(f"stage {stage_index} of this is not read")

    def cut(values: Any) -> Any:
        raise Cut(values if isinstance(values, tuple) else (values,))

    def first(*args: Any, **kwargs: Any) -> Any:
        try:
            _run_cut(front, of.names["module"], of.names["cuts"], cut, args, kwargs)
        except Cut as found:
            return found.values
        raise NotRead("no layer at which this is cut is called")

    held = {"module": first, "index": 0, "stages": of.names["num_stages"], "inputs": (), "group": group}
    held |= {"tells": False, "shards": []}
    return Instance(None, held, "pipeline stage")


PIPELINES: Table = {
    "PipelineStage": stage,
    "pipelining.pipeline": pipeline,
    **{name: _schedule(ours) for name, ours in SCHEDULES.items()},
}
