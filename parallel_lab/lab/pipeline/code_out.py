"""The present pipeline as code: in our own words, in MindSpore's, and for PyTorch's pipeline runtime.

print(our_code(settings)); print(mindspore_code(settings)); print(torch_code(settings))
"""

from __future__ import annotations

from ...base.errors import ParallelLabError
from .settings import DRAWN, Settings

# our names of schedules that the context of MindSpore 2.10 takes (pipeline_scheduler)
MINDSPORE = {"gpipe": "gpipe", "1f1b": "1f1b", "zero_bubble_v": "zero_bubble_v"}


def our_code(settings: Settings) -> str:
    """Lines for parallel_lab: the schedule, its clock, and the plan that runs it."""
    s = settings
    made = f'make_schedule("{s.named}", stages={s.stages}, micro_batches={s.micro_batches}, chunks={s.chunks})'
    if s.name == DRAWN:
        text = s.schedule.text()
        made = f'Schedule.from_text("""\n{text}\n""", parts={s.schedule.parts}, micro_batches={s.micro_batches}, '
        made += f"holds={s.schedule.holds})"
    forward, backward, weights = s.times
    times = f"forward={forward / s.shares:g}, backward={backward / s.shares:g}, weights={weights / s.shares:g}"
    lines = [
        "import parallel_lab as pl",
        "from parallel_lab.cost.schedules import Schedule, make_schedule",
        "",
        f"schedule = {made}",
        f"print(schedule.check({'' if s.cap is None else f'cap={s.cap}'}))     # []: it can run",
        f"print(schedule.clock({times}, latency={s.latency:g}).makespan)     # predicted",
        "",
        *_stages(s),
        "plan = pl.compile(net, x, y, loss=loss, optimizer=optimizer, schedule=schedule,",
        f"                  device_num={s.devices}, pipeline_stages={s.stages}, "
        f"grad_accumulation_step={s.micro_batches})",
    ]
    return "\n".join(lines)


def _stages(settings: Settings) -> list[str]:
    lines = ["for number, block in enumerate(net.blocks):"]
    parts, stages = settings.schedule.parts, settings.stages
    part = f"number * {parts} // len(net.blocks)"
    rank_of = [next(r for r, mine in enumerate(settings.schedule.holds) if k in mine) for k in range(parts)]
    if rank_of == [k % stages for k in range(parts)]:
        lines.append(f"    block.pipeline_stage = {part}" + ("" if parts == stages else f" % {stages}"))
    else:
        lines.append(f"    block.pipeline_stage = {tuple(rank_of)}[{part}]")
    if settings.recompute:
        lines += [f"    if block.pipeline_stage in {settings.recompute}:", "        block.recompute()"]
    return lines


def mindspore_code(settings: Settings) -> str:
    """The same for MindSpore, where it has the schedule; where it has not, what comes nearest."""
    s = settings
    known = MINDSPORE.get(s.named if s.name != DRAWN else "")
    interleave = s.named == "interleaved" or (s.named == "1f1b" and s.chunks > 1)
    if s.name != DRAWN and s.named == "interleaved":
        known = "1f1b"
    name = known or "1f1b"
    remark = f"# {name} is the nearest: MindSpore takes {', '.join(MINDSPORE)} and no schedule of one's own"
    lines = ["from mindspore import nn", "from mindspore.parallel.auto_parallel import AutoParallel", ""]
    lines += [] if known else [remark]
    interleaved = ", interleave=True" if interleave or s.chunks > 1 else ""
    lines += [
        *_stages(s),
        f"net = nn.PipelineCell(nn.WithLossCell(net, loss), micro_size={s.micro_batches})",
        'net = AutoParallel(net, parallel_mode="semi_auto")',
        f'net.pipeline(stages={s.stages}{interleaved}, scheduler="{name}")',
    ]
    return "\n".join(lines)


def torch_code(settings: Settings) -> str:
    """A CSV for PyTorch's pipeline runtime, or why it cannot hold this schedule."""
    try:
        return settings.schedule.to_csv()
    except ParallelLabError as error:
        return f"# {error}\n"
