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
from .text import beginning, block, initial_lines

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
    """The program with the part of each step: of equal numbers of blocks; what is no block goes with its neighbour.

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
    found: list[tuple[list[Step], str]] = []
    for part in range(program.steps[-1].stage + 1):
        steps = [s for s in program.steps if s.stage == part]
        made = {s.out for s in steps}
        known = {*program.inputs, *(p.name for p in program.parameters)}
        ins = dict.fromkeys(v for s in steps for v in s.ins if v not in made | known and ":" not in v)
        if len(ins) > 1:
            raise NoForm(f"part {part} reads {len(ins)} values of others", where="code of a pipeline")
        found.append((steps, next(iter(ins), program.inputs[0])))
    return found


def code_of_pipeline(program: Program, settings: Any) -> Codes:
    """All three; settings: the lab's `Settings`, whose schedule is complete."""
    makers = {"mindspore": lambda: _mindspore(program, settings), "torch": lambda: _torch(program, settings)}

    def jax() -> str:
        allowed = "shard_map with ppermute, a schedule written by hand"
        raise NoForm("a schedule of stages", where="JAX has none of its own", allowed=allowed)

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
    cells, made, run = [], [], []
    for part, (steps, value) in enumerate(parts):
        last = part == len(parts) - 1
        names = [value, label] if last else [value]
        cells += [*ms.cell(program, f"Part{part}", steps, names), "", ""]
        made += [f"self.part{part} = Part{part}()", f"self.part{part}.pipeline_stage = {ranks[part]}"]
        made += [f"self.part{part}.recompute()"] if part in s.recomputed else []
        given = f"self.part{part}(x, label)" if last else f"self.part{part}(x)"
        run.append(f"return {given}" if last else f"x = {given}")
    net = [
        "class Net(nn.Cell):",
        *block(["def __init__(self):", *block(["super().__init__()", *made])]),
        "",
        *block(["def construct(self, x, label):", *block(run)]),
    ]
    interleaved = ", interleave=True" if s.schedule.parts > s.stages else ""
    cell = f"nn.PipelineCell(net, micro_size={s.micro_batches})"
    wrapped = [
        f'train = AutoParallel(nn.TrainOneStepCell({cell}, optimizer), parallel_mode="semi_auto")',
        'train.dataset_strategy("full_batch")',
        f'train.pipeline(stages={s.stages}{interleaved}, scheduler="{name}")',
    ]
    lines = [*cells, *net]
    return ms.mindspore_code(replace(program, devices=s.devices), STEPS, [], wrapped, net=lines)


# ---- PyTorch ----


MINE = """\
def mine_of(values, dim):  # of every micro-batch what this device of the stage has
    inside = mesh.get_local_rank()
    return torch.cat([part.chunk({devices}, dim)[inside] for part in values.chunk({micro_batches})])


"""


def _torch(program: Program, s: Any) -> str:
    if s.two_copies:
        raise NoForm("a part that lies on two ranks", where="torch.distributed.pipelining")
    split, schedule, label = s.strategy != "one", s.schedule, program.inputs[-1]
    loss = [step for step in program.steps if step.name.startswith("loss_fn.")]
    parts = [([step for step in steps if step not in loss], value) for steps, value in flows(program)]
    scores = next(v for step in loss for v in step.ins if v not in {x.out for x in loss} and v != label)
    made = [replace(program, steps=tuple(steps), inputs=(value,)) for steps, value in parts]
    made.append(replace(program, steps=tuple(loss), inputs=(scores, label)))
    start = [one.placements()[0] for one in made] if split else []
    borders = [start[n + 1][one.inputs[0]] for n, one in enumerate(made[1:])] if split else [None] * len(parts)
    cells = []
    for part, one in enumerate(made[:-1]):
        names = (one if split else program).names
        how = ("placed(initial[{}]", True) if split else (pt.FROM_ARRAY, False)
        body = pt.module(one if split else program, f"Part{part}", one.steps, one.inputs, *how)
        if split:
            body = _on_devices(body, one, start[part], borders[part])
        if part in s.recomputed:
            at = next(n for n, line in enumerate(body) if "def forward" in line)
            body[at] = body[at].replace("def forward", "def computed")
            name = names[one.inputs[0]]
            body += [
                "",
                f"    def forward(self, {name}):",
                f"        return checkpoint(self.computed, {name}, use_reentrant=False)",
            ]
        cells += [*body, "", ""]
    function = pt.function(made[-1], "loss_of", split)
    if split:
        function = _on_devices(function, made[-1], start[-1], None)
    held = [list(mine) for mine in schedule.holds]
    known, several = SCHEDULES.get(s.name, ("_PipelineScheduleRuntime", True))
    given = "stages" if several else "stages[0]"
    rank, more, group, placing, feed = "dist.get_rank()", [], "", [], []
    first = "last"
    if split:
        rank, group, first = (
            'ranks.get_local_rank("stage")',
            ', group=ranks["stage"].get_group()',
            "last and not mesh.get_local_rank()",
        )
        placing = [
            f'ranks = init_device_mesh("cpu", {s.stages, s.devices // s.stages}, mesh_dim_names=("stage", "inside"))',
            'mesh = ranks["inside"]  # the devices of this stage',
            "",
            "",
            "def placed(values, where):",
            *block(["return distribute_tensor(torch.from_numpy(values), mesh, where)"]),
            "",
            "",
            *MINE.format(devices=s.devices // s.stages, micro_batches=s.micro_batches).splitlines(),
        ]
        fed = {"x": start[0][made[0].inputs[0]], "label": start[-1][label]}
        feed = [f"{name} = mine_of({name}, {dim})" for name, at in fed.items() if (dim := _split_dim(at)) is not None]
        more = ["from torch.distributed.device_mesh import init_device_mesh"]
    lines = [
        *initial_lines(program),
        "",
        *pt.BEGIN,
        *placing,
        *([] if split else ["", ""]),
        *pt.helpers(program, split=split),
        *cells,
        *function,
        "",
        "",
        f"PARTS = [{', '.join(f'Part{n}' for n in range(len(parts)))}]",
        f"mine = {held}[{rank}]  # parts of each {'stage' if split else 'rank'}",
        "net = torch.nn.ModuleList(PARTS[part]() for part in mine)",
        "stages = [",
        f'    PipelineStage(part, number, {schedule.parts}, torch.device("cpu"){group}) for part, number in '
        "zip(net, mine)",
        "]",
        "# gradients of micro-batches are added up, as MindSpore does",
        f"schedule = {known}({given}, {s.micro_batches}, loss_fn=loss_of, scale_grads=False)",
        *(_csv(schedule) if s.name not in SCHEDULES else []),
        pt.optimizer_line(program),
        f"for number in range({STEPS}):",
        *block(
            [
                "x, label = (torch.from_numpy(part) for part in batches[number % len(batches)])",
                *feed,
                "optimizer.zero_grad()",
                "losses = []",
                f"last = {schedule.parts - 1} in mine",
                'schedule.step(*([x] if 0 in mine else []), **({"target": label, "losses": losses} if last else {}))',
                "optimizer.step()",
                f"if {first}:",
                '    print(f"step {number + 1}: loss {sum(losses).item():.8g}", flush=True)',
            ]
        ),
        *pt.END,
    ]
    where = "torch.distributed.pipelining.schedules" if s.name not in SCHEDULES else "torch.distributed.pipelining"
    if where == "torch.distributed.pipelining":
        more.append(f"from torch.distributed.pipelining import PipelineStage, {known}")
    else:
        more += ["from torch.distributed.pipelining import PipelineStage", f"from {where} import {known}"]
    if split:
        words = [word for word in ("DTensor", "Replicate", "Shard") if any(f"{word}" in line for line in lines)]
        more.append(f"from torch.distributed.tensor import {', '.join([*words, 'distribute_tensor'])}")
    if s.recomputed:
        more.append("from torch.utils.checkpoint import checkpoint")
    imports = pt.imports(program, *more)
    return beginning(program, pt.how(replace(program, devices=s.devices)), imports) + "\n".join(lines)


def _on_devices(body: list[str], program: Program, start: Any, border: Any) -> list[str]:
    """A part that computes on the devices of its stage: what it is given and what it gives are a device's own.

    start   layouts of what it is given;  border: layout in which it is sent, None: a loss, complete on each device
    """
    at = next(n for n, line in enumerate(body) if line.lstrip().startswith(("def forward", "def loss_of")))
    step = " " * (len(body[at]) - len(body[at].lstrip()) + 4)
    taken = [
        f"{step}{program.names[v]} = DTensor.from_local({program.names[v]}, mesh, {pt.placements(start[v])})"
        for v in program.inputs
    ]
    made = body[-1].strip().removeprefix("return ")
    # a copy: a schedule that divides the backward detaches what a part has given, and no view can be detached
    sent = ".full_tensor().clone()"
    if border is not None:
        sent = f".redistribute(mesh, {pt.placements(border)}).to_local().clone(memory_format=torch.contiguous_format)"
    return [*body[: at + 1], *taken, *body[at + 1 : -1], f"{step}out = {made}", f"{step}return out{sent}"]


def _split_dim(layout: Any) -> int | None:
    """The dim that the devices of a stage split."""
    return next((dim for dim, ways in enumerate(layout.splits) if ways > 1), None)


def _csv(schedule: Any) -> list[str]:
    """A schedule that PyTorch does not know by name: its actions, from a file."""
    try:
        text = schedule.to_csv()
    except ParallelLabError as error:
        raise NoForm(str(error), where="torch.distributed.pipelining") from None
    return [
        "if dist.get_rank() == 0:",
        *block(['with open("schedule.csv", "w") as file:', f"    file.write({text!r})"]),
        "dist.barrier()",
        'schedule._load_csv("schedule.csv")',
    ]
