"""The Pipeline Lab's setting as programs: a Cell or a Module for every part of the network, and who runs it when.

    code_of_pipeline(program, settings, job)["torch"]

PyTorch runs every schedule of the lab: those it knows by name, others from the CSV of their actions.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...base.errors import ParallelLabError
from . import mindspore_code as ms, torch_code as pt
from .exports import STEPS, Codes, in_words
from .program import NoForm, Program, Step
from .text import render

# ours: the class in torch.distributed.pipelining, and whether it takes several parts a rank
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", False),
    "1f1b": ("Schedule1F1B", False),
    "interleaved": ("ScheduleInterleaved1F1B", True),
    "breadth_first": ("ScheduleLoopedBFS", True),
    "zb_h1": ("ScheduleInterleavedZeroBubble", True),
    "zero_bubble_v": ("ScheduleZBVZeroBubble", True),
    "dualpipe_v": ("ScheduleDualPipeV", True),
}
# ours: what MindSpore's context calls it
MINDSPORE = {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "1f1b", "zero_bubble_v": "zero_bubble_v"}
BLOCK = re.compile(r"blocks\.(\d+)\.")


def in_parts(program: Program, layers: int, parts: int, *, split: bool) -> Program:
    """The program with the part of each step: of equal numbers of blocks; steps outside blocks join their neighbours.

    split   the operators keep their strategies, over the devices of a stage
    """
    found, part = [], 0
    for step in program.steps:
        if match := BLOCK.match(step.name):
            part = int(match[1]) * parts // layers
        how = {} if split else {"strategy": None, "layouts": (), "left": None}
        found.append(replace(step, stage=part, **how))
    return replace(program, steps=tuple(found))


def flows(program: Program) -> list[tuple[list[Step], str]]:
    """Per part its steps and the one value it reads of the part before. Raises NoForm for several."""
    parts: list[tuple[list[Step], str]] = []
    for part in range(program.steps[-1].stage + 1):
        steps = [s for s in program.steps if s.stage == part]
        own = {s.out for s in steps}
        known = {*program.inputs, *(p.name for p in program.parameters)}
        ins = dict.fromkeys(v for s in steps for v in s.ins if v not in own | known and ":" not in v)
        if len(ins) > 1:
            raise NoForm(f"part {part} reads {len(ins)} values of others", where="code of a pipeline")
        parts.append((steps, next(iter(ins), program.inputs[0])))
    return parts


def code_of_pipeline(program: Program, settings: Any) -> Codes:
    """All three; settings: the lab's `Settings`, whose schedule is complete."""
    makers = {"mindspore": lambda: _mindspore(program, settings), "torch": lambda: _torch(program, settings)}

    def jax() -> str:
        allowed = "shard_map with ppermute, a schedule written by hand"
        raise NoForm("a schedule of stages", where="JAX lacks one of its own", allowed=allowed)

    return {target: in_words(target, make) for target, make in {**makers, "jax": jax}.items()}


def _rank_of(settings: Any) -> list[int]:
    holds = settings.schedule.holds
    return [next(rank for rank, mine in enumerate(holds) if part in mine) for part in range(settings.schedule.parts)]


# ---- MindSpore ----


def _mindspore(program: Program, s: Any) -> str:
    name = MINDSPORE.get(s.name)
    if name is None:
        hint = f"MindSpore takes {', '.join(MINDSPORE)}"
        raise NoForm(f"the schedule {s.name!r}", where="code for MindSpore", hint=hint)
    parts, ranks, label = flows(program), _rank_of(s), program.inputs[-1]
    cells, made, lines = [], [], []
    for part, (steps, value) in enumerate(parts):
        last = part == len(parts) - 1
        cells.append(ms.cell(program, f"Part{part}", steps, [value, label] if last else [value]))
        made += [f"self.part{part} = Part{part}()", f"self.part{part}.pipeline_stage = {ranks[part]}"]
        made += [f"self.part{part}.recompute()"] if part in s.recomputed else []
        lines += [] if last else [f"x = self.part{part}(x)"]
    net = ms.CellText("Net", made, ["x", "label"], lines, f"self.part{len(parts) - 1}(x, label)")
    interleaved = ", interleave=True" if s.schedule.parts > s.stages else ""
    step_cell = f"nn.PipelineCell(net, micro_size={s.micro_batches})"
    wrapped = [
        f'train = AutoParallel(nn.TrainOneStepCell({step_cell}, optimizer), parallel_mode="semi_auto")',
        'train.dataset_strategy("full_batch")',
        f'train.pipeline(stages={s.stages}{interleaved}, scheduler="{name}")',
    ]
    return ms.mindspore_code(replace(program, devices=s.devices), STEPS, [], wrapped, cells=[*cells, net])


# ---- PyTorch ----


def _torch(program: Program, s: Any) -> str:
    if s.two_copies:
        raise NoForm("a part that lies on two ranks", where="torch.distributed.pipelining")
    split, label = s.strategy != "one", program.inputs[-1]
    loss = [step for step in program.steps if step.name.startswith("loss_fn.")]
    parts = [([step for step in steps if step not in loss], value) for steps, value in flows(program)]
    scores = next(v for step in loss for v in step.ins if v not in {x.out for x in loss} and v != label)
    programs = [replace(program, steps=tuple(steps), inputs=(value,)) for steps, value in parts]
    programs.append(replace(program, steps=tuple(loss), inputs=(scores, label)))
    cells = [
        pt.part_of(one if split else program, f"Part{n}", one.steps, one.inputs, moved=split)
        for n, one in enumerate(programs[:-1])
    ]
    function, fed = pt.part_of(programs[-1], "loss_of", loss, programs[-1].inputs, moved=split), []
    if split:
        start = [one.placements()[0] for one in programs]
        borders = [start[n + 1][one.inputs[0]] for n, one in enumerate(programs[1:])]
        cells = [_on_devices(*one) for one in zip(cells, programs, start, borders, strict=False)]
        function = _on_devices(function, programs[-1], start[-1], None)
        layouts = {"x": start[0][programs[0].inputs[0]], "label": start[-1][label]}
        fed = [(name, dim) for name, layout in layouts.items() if (dim := _split_dim(layout)) is not None]
    cells = [replace(one, recomputed=n in s.recomputed) for n, one in enumerate(cells)]
    known, several = SCHEDULES.get(s.name, ("_PipelineScheduleRuntime", True))
    return render(
        "torch_pipeline",
        program,
        pt.how(replace(program, devices=s.devices)),
        pt.imports(program, *_torch_imports(s, known, split)),
        stages=s.stages,
        inside=s.devices // s.stages if split else 1,
        micro_batches=s.micro_batches,
        cells=cells,
        loss=function,
        held=[list(mine) for mine in s.schedule.holds],
        schedule=known,
        several=several,
        csv="" if s.name in SCHEDULES else _csv(s.schedule),
        optimizer=pt.optimizer_line(program),
        fed=fed,
        steps=STEPS,
    )


def _torch_imports(s: Any, schedule: str, split: bool) -> list[str]:
    lines = [pt.MESH] if split else []
    if s.name in SCHEDULES:
        lines.append(f"from torch.distributed.pipelining import PipelineStage, {schedule}")
    else:
        lines.append("from torch.distributed.pipelining import PipelineStage")
        lines.append(f"from torch.distributed.pipelining.schedules import {schedule}")
    if split:
        lines.append("from torch.distributed.tensor import {words}distribute_tensor")
    if s.recomputed:
        lines.append("from torch.utils.checkpoint import checkpoint")
    return lines


def _on_devices(part: pt.Part, program: Program, start: Any, border: Any) -> pt.Part:
    """A part that computes on the devices of its stage: it receives and returns a device's own slices.

    start   layouts of its inputs;  border: layout in which it is sent, None: a loss, complete on each device
    """
    taken = [
        f"{program.names[v]} = DTensor.from_local({program.names[v]}, mesh, {pt.placements(start[v])})"
        for v in program.inputs
    ]
    # a copy: a schedule that divides the backward detaches what a part returns, and no view can be detached
    sent = ".full_tensor().clone()"
    if border is not None:
        sent = f".redistribute(mesh, {pt.placements(border)}).to_local().clone(memory_format=torch.contiguous_format)"
    return replace(part, taken=taken, sent=sent)


def _split_dim(layout: Any) -> int | None:
    """The dim that the devices of a stage split."""
    return next((dim for dim, ways in enumerate(layout.splits) if ways > 1), None)


def _csv(schedule: Any) -> str:
    """A schedule that PyTorch does not know by name: its actions, as a literal of their text."""
    try:
        return repr(schedule.to_csv())
    except ParallelLabError as error:
        raise NoForm(str(error), where="torch.distributed.pipelining") from None
