"""The present pipeline as code: read from lines of MindSpore, and written in our own words, as the CSV of PyTorch's
pipeline runtime, and as whole programs.

print(our_code(settings)); print(torch_csv(settings)); print(codes_of(settings)["mindspore"])
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from ...base.errors import ParallelLabError
from ...base.settings.current import default_settings
from ...cost.schedules import schedule_names
from ...graph.compiler import compile_network
from ...graph.passes import PASSES
from ...graph.plan import Plan
from ...nn.tensor.parameter import Parameter
from ..code.data import stack_of_pipeline, text_of_pipeline
from ..code.exports import NoForm, in_words
from ..code.pasted import read_code
from ..code.pipelines import code_of_pipeline, in_parts
from ..code.program import TARGETS, Program, program_of
from ..shared.lab import Lab
from .settings import DRAWN, MICRO_BATCHES, STAGES, Settings, delays
from .subjects import GPT_SEQUENCES, STACK_ROWS, STACK_WIDTH, STRATEGIES, SUBJECTS, get_subject, layers_of

one_of = partial(Lab.one_of, where="PipelineLab")


def settings_in(text: str, now: Settings) -> Settings:
    """The settings that these lines ask for. Raises ArgumentError, with the line, where they cannot be."""
    lines = read_code(text)
    config = lines.value("pipeline_config") or {}
    stages = lines.first("stages", "pipeline_stages")
    micro_batches = lines.value("PipelineCell")
    name = config.get("pipeline_scheduler", lines.value("scheduler"))
    interleave = config.get("pipeline_interleave", lines.value("interleave", False))
    if stages is None and micro_batches is None and name is None:
        raise lines.nothing_for("pipeline")
    name = "interleaved" if interleave and name in (None, "1f1b") else name or now.named
    checks = {"stages": (stages, STAGES, "stages"), "micro_batches": (micro_batches, MICRO_BATCHES, "micro_size")}
    fields = {field: one_of(*check) for field, check in checks.items() if check[0] is not None}
    fields["recompute"] = tuple(r for r in now.recompute if r < fields.get("stages", now.stages))
    return replace(now, drawn=None, **fields).with_name(one_of(name, schedule_names(), "scheduler"))


def our_code(settings: Settings) -> str:
    """Lines for parallel_lab: the schedule, its clock, and the plan that runs it."""
    s = settings
    schedule = f'make_schedule("{s.named}", stages={s.stages}, micro_batches={s.micro_batches}, chunks={s.chunks})'
    if s.name == DRAWN:
        text = s.schedule.text()
        schedule = f'Schedule.from_text("""\n{text}\n""", parts={s.schedule.parts}, micro_batches={s.micro_batches}, '
        schedule += f"holds={s.schedule.holds})"
    forward, backward, weights = s.times
    times = f"forward={forward / s.shares:g}, backward={backward / s.shares:g}, weights={weights / s.shares:g}"
    known = delays(s.latency)
    latency = known if isinstance(known, dict) else f"{known:g}"
    lines = [
        "import parallel_lab as pl",
        "from parallel_lab.cost.schedules import Schedule, make_schedule",
        "",
        f"schedule = {schedule}",
        f"print(schedule.check({'' if s.cap is None else f'cap={s.cap}'}))     # []: it can run",
        f"print(schedule.clock({times}, latency={latency}).makespan)     # predicted",
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


def torch_csv(settings: Settings) -> str:
    """A CSV for PyTorch's pipeline runtime, or why it cannot hold this schedule."""
    try:
        return settings.schedule.to_csv()
    except ParallelLabError as error:
        return f"# {error}\n"


def codes_of(settings: Settings) -> dict[str, str]:
    """Programs by target; of a schedule that cannot run as it is drawn, what is missing."""
    s = settings
    if not s.timed.complete:

        def unfinished() -> str:
            raise NoForm("a schedule with actions still to draw, or that cannot run", where="code")

        return {target: in_words(target, unfinished) for target in TARGETS}
    return code_of_pipeline(_program(s), s)


def _program(s: Settings) -> Program:
    """The network in parts, on several devices with their strategies; it leaves out which rank runs which part when."""
    parts, micro_batches, split = s.schedule.parts, s.micro_batches, s.strategy != "one"
    plan, parameters = _compiled(s.net, layers_of(parts), s.strategy)
    with default_settings():
        optimizer = get_subject(s.net).job(parts, micro_batches).optimizer(parameters)
    stack = stack_of_pipeline(micro_batches * STACK_ROWS, STACK_WIDTH)
    data = stack if s.net == "stack" else text_of_pipeline(micro_batches * GPT_SEQUENCES)
    title = f"{SUBJECTS[s.net].label} in {parts} parts, {micro_batches} micro-batches"
    title += f", {s.devices // s.stages} devices a stage" if split else ""
    return in_parts(program_of(plan, optimizer, data, title), layers_of(parts), parts, split=split)


@lru_cache(maxsize=16)
def _compiled(net: str, layers: int, strategy: str) -> tuple[Plan, list[Parameter]]:
    """The operators of one micro-batch on the devices of a stage, and the parameters: whatever the parts are."""
    job = get_subject(net).job(layers, 1)
    forward = [one for one in PASSES if one.name != "differentiate"]
    how = {"device_num": STRATEGIES[strategy], "dataset_strategy": "full_batch", "passes": forward}
    with default_settings():
        network = job.make(layers, strategy)
        return compile_network(network, *job.batches[0], loss=job.loss(), **how), network.trainable_params()
