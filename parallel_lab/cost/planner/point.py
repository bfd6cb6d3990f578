"""One way to train a model on a cluster, and its prediction: no device, and no plan for all of them, is needed.

    point = PlanPoint(data=8, tensor=8, stages=16, micro_batch=1, micro_batches=64)
    found = predict_point(get_transformer("gpt3_175b"), point, get_machine("dgx_a100", 1024))
    print(found.explain())                  seconds, bytes and their formulas

Rank (stage, copy, part of a layer) is stage * d * t + copy * t + part: the ranks that split a layer are neighbours.

    a part of a stage   its instructions from `block.py` at the rates of the device; messages at the pace of their link
    the step            the schedule's clock (`cost/schedules/clock.py`): each part's forward and backward, borders as
                        delays, messages between copies behind the last backward of a part, then the update
    a rank's bytes      states after ZeRO (`cost/zero.py`), what is kept per micro-batch times how many are on their way

At level 0 this is the clock of the compiled plan. Levels, mixed precision and overlap change terms of it, each as its
line says. All numbers are predicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from ...base.checks import choice, flag, integer
from ...base.cluster import Cluster
from ...base.errors import ArgumentError
from ...base.units import bytes_text, plural, table_lines, time_text
from ..schedules import Schedule, make_schedule, schedule_names
from .clusters import Machine
from .models import ADAM_MIXED, RECOMPUTE, Transformer

PRECISIONS = {  # bytes of a number in messages and activations; of a parameter, its gradient, its states
    "float32": (4, {"param_bytes": 4, "grad_bytes": 4, "optimizer_bytes": 8}),
    "mixed": (2, ADAM_MIXED),
}
MEMORY_PARTS = ("params", "grads", "optimizer", "inputs", "activations", "workspace")
_COUNT = integer(1, 10**7)
_OVERLAP = {False: ", behind the last backward", True: ", what the last backward does not hide"}


@dataclass(frozen=True)
class PlanPoint:
    """data x tensor x stages devices; every copy runs `micro_batches` of `micro_batch` sequences per step.

    chunks             parts of the network on a rank (interleaved schedules)
    schedule           a name out of `schedule_names()` whose parts lie in a loop: 1f1b, gpipe, interleaved, ...
    level              ZeRO: 0 nothing is divided among copies, 1 optimizer states, 2 gradients too, 3 parameters too
    recompute          "none", "attention", "full"
    sequence_parallel  norms, sums and what they keep are divided among the ranks of a layer, which gather the inputs
                       of products again for backward, while one runs: 10 (t - 1) / t b s h numbers a block for 8
    overlap            messages between copies travel during the last backward, one per block
    """

    data: int = 1
    tensor: int = 1
    stages: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    chunks: int = 1
    schedule: str = "1f1b"
    level: int = 0
    recompute: str = "none"
    sequence_parallel: bool = False
    overlap: bool = False

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "stages", "micro_batch", "micro_batches", "chunks"):
            _COUNT("PlanPoint", name, getattr(self, name))
        choice(*schedule_names())("PlanPoint", "schedule", self.schedule)
        choice(*RECOMPUTE)("PlanPoint", "recompute", self.recompute)
        integer(0, 3)("PlanPoint", "level", self.level)
        for name in ("sequence_parallel", "overlap"):
            flag("PlanPoint", name, getattr(self, name))

    @property
    def devices(self) -> int:
        """Devices that the plan uses."""
        return self.data * self.tensor * self.stages

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.data * self.micro_batch * self.micro_batches

    def in_words(self) -> str:
        """8 copies of 16 stages of 8 ranks; 64 micro-batches of 1 sequence, and what is not the default."""
        copies = "1 copy" if self.data == 1 else f"{self.data} copies"
        parts = f"{copies} of {plural(self.stages, 'stage')} of {plural(self.tensor, 'rank')}"
        words = [
            f"{parts}; {plural(self.micro_batches, 'micro-batch', 'es')} of {plural(self.micro_batch, 'sequence')}"
        ]
        words += [f"schedule {self.schedule}"] if self.stages > 1 else []
        words += [f"{plural(self.chunks, 'chunk')} a stage"] if self.chunks > 1 else []
        words += [f"ZeRO level {self.level}"] if self.level else []
        words += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        words += ["sequence parallel"] if self.sequence_parallel else []
        return ", ".join([*words, *(["gradients sent during backward"] if self.overlap else [])])

    def text(self) -> str:
        """d8 t8 p16 b1 m64, and what is not the default."""
        words = [f"d{self.data} t{self.tensor} p{self.stages} b{self.micro_batch} m{self.micro_batches}"]
        words += [f"v{self.chunks}"] if self.chunks > 1 else []
        words += [self.schedule] if self.stages > 1 else []
        words += [f"zero{self.level}"] if self.level else []
        words += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        words += ["sequence"] if self.sequence_parallel else []
        return " ".join([*words, *(["overlap"] if self.overlap else [])])


def misfit(model: Transformer, point: PlanPoint, cluster: Cluster) -> str:
    """Why a point cannot be: "" if it can."""
    parts = point.stages * point.chunks
    if point.devices > cluster.device_num:
        return f"{point.devices} devices of {cluster.device_num}"
    if point.tensor & (point.tensor - 1) or model.heads % point.tensor:
        return f"{model.heads} heads on {point.tensor} ranks: a power of two that divides them"
    if point.sequence_parallel and model.seq_length % point.tensor:
        return f"sequences of {model.seq_length} tokens on {point.tensor} ranks"
    if model.layers % parts:
        return f"{model.layers} layers in {parts} parts"
    if point.stages > point.micro_batches:
        return f"{point.micro_batches} micro-batches on {point.stages} stages: at least as many"
    if point.chunks > 1 and point.stages == 1:
        return f"{point.chunks} chunks on one stage"
    if point.stages == 1:
        return ""
    schedule = schedule_of(point)
    if isinstance(schedule, str):
        return schedule
    if schedule.splits_backward or schedule.together:
        return f"{point.schedule} divides backward, or runs two things at once: not predicted here"
    loops = tuple(tuple(range(rank, parts, point.stages)) for rank in range(point.stages))
    return "" if schedule.holds == loops else f"parts of {point.schedule} do not lie in a loop"


def schedule_of(point: PlanPoint) -> Schedule | str:
    """The schedule of a point, or why it cannot be made."""
    name = "1f1b" if point.stages == 1 else point.schedule
    return _schedule(name, point.stages, point.micro_batches, point.chunks)


@lru_cache(maxsize=64)
def _schedule(name: str, stages: int, micro_batches: int, chunks: int) -> Schedule | str:
    try:
        return make_schedule(name, stages, micro_batches, chunks)
    except ArgumentError as error:
        return str(error)


class Places:
    """Which groups reach over nodes: all do if one does, so where nodes cut groups unevenly the slower link counts."""

    def __init__(self, point: PlanPoint, cluster: Cluster) -> None:
        self.per_node, self.stage = cluster.devices_per_node, point.data * point.tensor
        one_node = point.devices <= self.per_node
        self.layer_spans = point.tensor > 1 and not one_node and self.per_node % point.tensor > 0
        self.copies_span = not one_node and self.per_node % self.stage > 0

    def border_spans(self, source: int, target: int) -> bool:
        """Whether a message from a stage to another leaves the node, for one of its ranks."""
        if self.stage >= self.per_node:
            return True
        first, second = source * self.stage, target * self.stage
        return any((first + r) // self.per_node != (second + r) // self.per_node for r in range(self.stage))


@dataclass(frozen=True)
class Prediction:
    """What a step takes and holds. All numbers are predicted.

    step_s        until the last rank is done
    compute_s, tensor_s, copies_s, update_s   of the rank that is done last, copies: exposed; with waiting_s the step
    waiting_s     of it: for other stages (the bubble) and their messages
    border_s      of waiting_s, what it is more than with borders that take no time; None: not looked at
    memory        bytes of the rank that holds most, by kind (MEMORY_PARTS)
    worst_stage   its stage
    sent_bytes    of a rank of the middle stage per step: {"in node": ..., "between nodes": ...}
    step_flops    the model's own;  mfu: over the peak of all devices
    """

    model: Transformer
    point: PlanPoint
    machine: Machine
    precision: str
    step_s: float
    compute_s: float
    tensor_s: float
    copies_s: float
    update_s: float
    waiting_s: float
    border_s: float | None
    memory: dict[str, float]
    worst_stage: int
    sent_bytes: dict[str, float]
    step_flops: float

    label = "predicted"
    terms: ClassVar[tuple[str, ...]] = ("step_s", "compute_s", "tensor_s", "copies_s", "update_s", "waiting_s")

    @property
    def memory_bytes(self) -> float:
        """Bytes of the fullest rank."""
        return math.fsum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether that is within a device's memory."""
        return self.memory_bytes <= self.machine.cluster.device.memory_bytes

    @property
    def mfu(self) -> float:
        """Share of the peak arithmetic that the model's own operations use."""
        return self.step_flops / (self.step_s * self.point.devices * self.machine.peak_flops_per_s)

    @property
    def bubble(self) -> float:
        """Part of the step in which the rank that is done last waits."""
        return self.waiting_s / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, of all devices."""
        return self.point.batch * self.model.seq_length / self.step_s

    def to_dict(self) -> dict[str, Any]:
        """For JSON; seconds, bytes, operations."""
        plain = (*self.terms, "border_s", "worst_stage")
        derived = ("memory", "sent_bytes", "step_flops", "memory_bytes", "fits", "mfu", "bubble", "tokens_per_s")
        numbers = {name: getattr(self, name) for name in (*plain, *derived, "precision", "label")}
        names = {"model": self.model.name, "cluster": self.machine.cluster.name}
        return {**names, "point": dict(vars(self.point)), **numbers}

    def explain(self) -> str:
        """Every number with its unit and formula, as lines."""
        where = f"{self.model.name} on {self.machine.cluster.name}, {self.point.devices} devices"
        head = f"{where}: {self.point.text()}, {self.precision}; all numbers predicted"
        return "\n".join([head, *table_lines(self.rows(), right=[1])])

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, number with its unit, formula); parts of a number follow it, indented."""
        p, m, device, peak = self.point, self.model, self.machine.cluster.device, self.machine.peak_flops_per_s
        kept, state = PRECISIONS[self.precision]
        border = "" if self.border_s is None else f", {time_text(self.border_s)} of it for messages between stages"
        mfu = f"{self.step_flops:.4g} / (step * {p.devices} * {peak:.4g})"
        rows = [
            ("step", time_text(self.step_s), f"the clock of {p.schedule if p.stages > 1 else 'one stage'}"),
            ("  compute", time_text(self.compute_s), "max(operations / rate, bytes / memory bandwidth) + start, added"),
            ("  within layers", time_text(self.tensor_s), f"messages of {p.tensor} ranks, link: {self._link()}"),
            ("  between copies", time_text(self.copies_s), f"gradients of {p.data} copies" + _OVERLAP[p.overlap]),
            ("  update", time_text(self.update_s), "Adam" + (" on 1 / d of the parameters" if p.level else "")),
            ("  waiting", time_text(self.waiting_s), f"{self.bubble:.1%} of the step{border}"),
            ("MFU", f"{self.mfu:.1%}", mfu),
            ("tokens per s", f"{self.tokens_per_s:,.0f}", f"{p.batch} * {m.seq_length} / step"),
            (
                "memory",
                bytes_text(self.memory_bytes),
                f"stage {self.worst_stage}, of {bytes_text(device.memory_bytes)}",
            ),
        ]
        texts = {
            "params": f"{state['param_bytes']} bytes each{' / d' if p.level == 3 else ''}",
            "grads": f"{state['grad_bytes']} bytes each{' / d' if p.level >= 2 else ''}",
            "optimizer": f"{state['optimizer_bytes']} bytes each{' / d' if p.level else ''}",
            "inputs": "tokens of the step",
            "activations": f"{kept} bytes a number, per micro-batch and part on its way",
            "workspace": "the most besides them: operands on their way, or new values next to the old",
        }
        rows += [(f"  {kind}", bytes_text(self.memory[kind]), texts[kind]) for kind in MEMORY_PARTS]
        rows += [(f"sent {where}", bytes_text(size), "by a rank per step") for where, size in self.sent_bytes.items()]
        return rows

    def _link(self) -> str:
        if self.point.tensor == 1:
            return "none"
        return "between nodes" if Places(self.point, self.machine.cluster).layer_spans else "in a node"
