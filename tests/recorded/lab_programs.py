"""The settings of labs whose exported programs are recorded (lab_programs.json): each a lab, made here.

lab = CASES["strategy megatron"]()
lab.code("torch")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parallel_lab.base.settings.context import default_settings
from parallel_lab.graph.compiler import compile_network
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.compiled import job_of as memory_job
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.pipeline.subjects import get_subject
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.strategy.plans import job_of
from parallel_lab.train.session import Session

STEPS = 8


def _strategy(net: str, devices: int, preset: str = "", data: str | None = None) -> Callable[[], Any]:
    def make() -> StrategyLab:
        lab = StrategyLab(net, devices, data)
        if preset:
            lab.set_preset(preset)
        return lab

    return make


def _fusion(subject: str, devices: int, mode: str = "auto", size: int = 0, of: str = "data_parallel") -> Any:
    def make() -> FusionLab:
        lab = FusionLab(subject, devices, of)
        if size:
            lab.set_size(size)
        else:
            lab.set_mode(mode)
        return lab

    return make


def _memory(subject: str, devices: int, optimizer: str, level: str, parts: int = 1, share: int = -1) -> Any:
    mode = "data_parallel" if level == "grouping" else "semi_auto_parallel"

    def make() -> MemoryLab:
        lab = MemoryLab(subject, devices, optimizer, mode, level)
        if subject == "stack":
            lab.set_width(32)
        lab.set_accumulation(parts)
        lab.set_shard_size(share)
        return lab

    return make


def _pipeline(
    net: str, stages: int, schedule: str, chunks: int | None = None, again: tuple[int, ...] = (), inside: str = "one"
) -> Any:
    def make() -> PipelineLab:
        lab = PipelineLab(net, stages, 4, schedule, chunks, strategy=inside)
        lab.set_recompute(again)
        return lab

    return make


CASES: dict[str, Callable[[], Any]] = {
    "strategy quickstart": _strategy("quickstart", 8),
    "strategy megatron": _strategy("megatron", 8),
    "strategy dense columns, rows": _strategy("dense", 4, "tensor parallel"),
    "strategy dense digits": _strategy("dense", 2, "tensor parallel", "digits"),
    "strategy convnet batch and height": _strategy("convnet", 4),
    "strategy convnet batch and channels": _strategy("convnet", 2, "batch and channels"),
    "strategy transformer": _strategy("transformer", 4),
    "strategy embedding rows": _strategy("embedding", 4),
    "strategy embedding columns": _strategy("embedding", 4, "tables by columns"),
    "fusion dense off": _fusion("dense", 2, "off"),
    "fusion dense each": _fusion("dense", 2, "each"),
    "fusion dense auto": _fusion("dense", 2),
    "fusion dense index": _fusion("dense", 2, "index"),
    "fusion dense ids": _fusion("dense", 2, "ids"),
    "fusion chain size": _fusion("chain", 2, size=2),
    "fusion transformer size, semi_auto": _fusion("transformer", 2, size=1, of="semi_auto_parallel"),
    "memory stack off, parts": _memory("stack", 2, "Adam", "off", 2),
    "memory stack level1, parts, shares of 2": _memory("stack", 4, "Momentum", "level1", 2, 2),
    "memory stack level2": _memory("stack", 2, "SGD", "level2"),
    "memory transformer level3": _memory("transformer", 2, "Adam", "level3"),
    "memory dense off, Lamb": _memory("dense", 2, "Lamb", "off"),
    "memory stack off, AdamWeightDecay": _memory("stack", 2, "AdamWeightDecay", "off"),
    "memory stack level3, Lamb": _memory("stack", 4, "Lamb", "level3"),
    "memory dense level1, AdamWeightDecay": _memory("dense", 2, "AdamWeightDecay", "level1"),
    "memory stack grouping, Lamb": _memory("stack", 2, "Lamb", "grouping"),
    "memory stack grouping, AdamWeightDecay, parts": _memory("stack", 2, "AdamWeightDecay", "grouping", 2),
    "memory experts off": _memory("experts", 4, "Adam", "off"),
    "memory experts level2": _memory("experts", 2, "Momentum", "level2"),
    "memory experts grouping, Lamb": _memory("experts", 2, "Lamb", "grouping"),
    "pipeline stack gpipe": _pipeline("stack", 2, "gpipe"),
    "pipeline stack 1f1b": _pipeline("stack", 4, "1f1b"),
    "pipeline stack 1f1b, recompute": _pipeline("stack", 2, "1f1b", again=(1,)),
    "pipeline stack interleaved": _pipeline("stack", 2, "interleaved", 2),
    "pipeline stack zb_h1": _pipeline("stack", 2, "zb_h1"),
    "pipeline stack zero_bubble_v": _pipeline("stack", 2, "zero_bubble_v"),
    "pipeline stack v_half": _pipeline("stack", 2, "v_half"),
    "pipeline gpt 1f1b": _pipeline("gpt", 2, "1f1b"),
    "pipeline stack 1f1b, batch split": _pipeline("stack", 2, "1f1b", inside="batch"),
    "pipeline stack interleaved, products split": _pipeline("stack", 2, "interleaved", 2, (1,), "inner"),
    "pipeline stack v_half, batch split": _pipeline("stack", 2, "v_half", inside="batch"),
    "pipeline gpt gpipe, batch split": _pipeline("gpt", 2, "gpipe", inside="batch"),
    "pipeline gpt 1f1b, products split": _pipeline("gpt", 2, "1f1b", inside="inner"),
}


def devices_of(lab: Any) -> int:
    """Ranks of a lab's setting."""
    if isinstance(lab, PipelineLab):
        return lab.settings.devices
    return lab.plan.device_num


def network_job(lab: FusionLab | MemoryLab) -> Any:
    """The network of the lab, with its data."""
    return lab._plans.job(lab._setup()) if isinstance(lab, FusionLab) else memory_job(lab.subject.name, lab.width)


def one_device_losses(lab: Any) -> list[float]:
    """The losses of the lab's network, data and optimizer on one device, undivided: what every program must give."""
    if isinstance(lab, PipelineLab):
        job = get_subject(lab.settings.net).job(lab.settings.schedule.parts, lab.settings.micro_batches)
        plan, net, optimizer = job.compile(None)
        batches = job.batches
    elif isinstance(lab, StrategyLab):
        net, optimizer, batches = job_of(lab._net, lab._data, {})
        plan = lab._compile({}, devices=1)
    else:
        job = network_job(lab)
        optimizer = job.optimizer if isinstance(lab, FusionLab) else job.optimizer(lab.settings.optimizer)
        how = {"device_num": 1, "dataset_strategy": "full_batch"}
        if isinstance(lab, MemoryLab):  # its network may have strategies by now
            how = {"parallel_mode": "stand_alone", "grad_accumulation_step": lab.settings.accumulation}
        net, batches = job.net, job.batches
        with default_settings():
            plan = compile_network(net, *batches[0], loss=job.loss, optimizer=optimizer, **how)
    with Session(plan, net, optimizer) as session:
        return [float(loss) for loss in np.asarray(session.train(batches, STEPS), np.float64)]
