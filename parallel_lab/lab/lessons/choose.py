"""Lesson 11: choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ...base.cluster import get_cluster
from ...base.settings.current import default_settings
from ...base.units import bytes_text, table_lines, time_text
from ...cost.memory import predict_memory
from ...cost.planner import Found, PlanPoint, changed_run, published_run, report_run, search_plans
from ...cost.schedules import make_schedule
from ...cost.timeline import predict_timeline
from ...graph.compiler import compile_network
from ...ops.machine.primitive import Strategy
from ..exercises import check, hint, par
from ..exercises.lesson_11 import EXAMPLE, PLACED, step_of_ranks
from ..exercises.one_product import Product
from ..exercises.plan_points import MACHINE, MODEL, Game
from ..exercises.three_products import least, sent_bytes_of, spread
from ..pipeline.subjects import get_subject
from ..search.run import run_both
from ..search.subjects import SUBJECTS
from ..shared.networks import apply_strategies
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["PLACED", "Game", "check", "compare", "hint", "kept", "par", "pipelines", "propagated", "prove", "reveal"]
__all__ += ["searched", "training"]
STAGES, ROWS = 4, 2048
COUNTS = (4, 8, 16, 32, 64)


def propagated(pins: Mapping[str, Strategy] | None = None) -> str:
    """What propagation makes of the chain with these pins besides matmul1's, and what a rank sends in a step."""
    strategies = spread(pins or {})
    lines = [f"{name}  {strategy}" for name, strategy in strategies.items()]
    return "\n".join([*lines, f"{sent_bytes_of(strategies):,} bytes sent by a rank, counted in the plan's messages"])


def reveal(name: str, *, tensor: int, context: int, stages: int, chunks: int = 1) -> str:
    """Your degrees for a published run, next to its own and to the step that was printed; devices and batch stay.

    Raises ArgumentError for degrees that do not fit the model or the devices.
    """
    run = published_run(name)
    schedule = "interleaved" if chunks > 1 else "1f1b"
    yours = changed_run(run, tensor=tensor, context=context, stages=stages, chunks=chunks, schedule=schedule)
    rows = [("", "step", "waiting", "memory", "fits", "plan")]
    for whose, one in (("yours", yours), ("theirs", run)):
        found = report_run(one).prediction
        assert found is not None
        fits, size = "yes" if found.fits else "no", bytes_text(found.memory_bytes)
        rows.append((whose, time_text(found.step_s), f"{found.bubble:.0%}", size, fits, found.point.text()))
    theirs = report_run(run)
    lines = [f"{name}: {run.row['model']} on {run.row['devices']:,} x {run.row['hardware']}; predicted"]
    lines += table_lines(rows, right=[1, 2, 3])
    return "\n".join([*lines, f"printed: {time_text(run.step_s)}; {theirs.error_bar_text}"])


@cache
def searched(memory_gb: int) -> Found:
    """GPT-3 on 128 A100s that have so many GB of memory each, 128 sequences a step, one in a micro-batch: all plans."""
    how = {"devices": 128, "memory_bytes": 1e9 * memory_gb, "micro_batch": (1,), "chunks": (1,)}
    return search_plans("gpt3_175b", "dgx_a100", 128, **how)


@cache
def _pipeline(schedule: str, count: int, rows: int) -> tuple[float, int]:
    """(seconds of a step, bytes of activations on the rank that holds most): predicted for a laptop."""
    stack = get_subject("stack")
    job = replace(stack.job(STAGES, count), batches=stack.job(STAGES, rows // 128).batches)
    plan, _, _ = job.compile(make_schedule(schedule, STAGES, count))
    memory = predict_memory(plan)
    return predict_timeline(plan, get_cluster("laptop")).end_s, memory.activations_bytes


def pipelines(schedule: str = "1f1b") -> str:
    """2048 rows on four stages, in more and more micro-batches."""
    rows = [("micro-batches", "rows of each", "step (predicted)", "activations (predicted)")]
    for count in COUNTS:
        step_s, size = _pipeline(schedule, count, ROWS)
        rows.append((f"{count}", f"{ROWS // count}", time_text(step_s), bytes_text(size)))
    return "\n".join(table_lines(rows, right=range(4)))


def kept(schedule: str) -> str:
    """More and more micro-batches of 128 rows each on four stages: what they keep."""
    sizes = (f"{count}: {bytes_text(_pipeline(schedule, count, 128 * count)[1])}" for count in (4, 8, 16))
    return f"{schedule:5}  activations (predicted), by number of micro-batches:  {',  '.join(sizes)}"


def training(schedule: str, micro_batches: int) -> str:
    """The 30 B model on 64 devices, t8 p8, predicted. Raises ArgumentError where it needs more memory than there is."""
    point = PlanPoint(1, 8, 8, 1, micro_batches, schedule=schedule)
    found = search_plans(MODEL, MACHINE, micro_batches, points=[point]).winner
    return f"{point.text()}: {time_text(found.step_s)}, {bytes_text(found.memory_bytes)} of a rank, predicted"


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to the formulas, and next to plans that were compiled and searched."""
    times = sent_bytes_of(spread({})) / round(least().best.cost)
    speed = step_of_ranks(32, *EXAMPLE) / step_of_ranks(64, *EXAMPLE)
    steps = {count: _pipeline("1f1b", count, ROWS)[0] for count in (16, 64)}

    def gives_up() -> str:
        point = searched(40).winner.point
        both = {"recompute layers": point.recompute == "full", "divide parameters among copies": point.level == 3}
        return "both" if all(both.values()) else next((name for name, used in both.items() if used), "neither")

    return Answers("11", prediction, show).next_to(
        times=(
            *(25, lambda: 25 if 20 < times < 30 else round(times)),
            f"{times:.1f}: nothing moves between the products, but much within them",
        ),
        speed_up=(1, round(speed), f"{speed:.2f} times as fast: nearly all is the all_reduce"),
        micro_batches=(
            *(16, lambda: min(steps, key=steps.__getitem__)),
            "the bubble is smaller with 64, but every instruction starts four times as often",
        ),
        nodes=(
            *(2, lambda: len({r // 4 for r in Product(((1, 4), (4, 2))).group(0)})),
            "the device matrix is (1, 4, 2), so the ranks that split k are 0, 2, 4, 6",
        ),
        half=(
            *("recompute layers", gives_up),
            "a third more work; divided parameters are gathered for every micro-batch, which takes longer",
        ),
    )


def prove(pins: Mapping[str, Strategy]) -> str:
    """Propagation's plan and that of these pins, trained on worker processes, each next to one device."""
    plans = {}
    for name, given in (("propagation", {}), ("with the pin", pins)):
        with default_settings():
            job = SUBJECTS["gap"].job()
            net = apply_strategies(job.net, spread(given))
            how = {"loss": job.loss, "optimizer": job.optimizer, "device_num": 8, "dataset_strategy": "full_batch"}
            plans[name] = compile_network(net, *job.batches[0], redistribution="exact", **how)
    result, lines = run_both(job, plans, get_cluster("laptop")), []
    for one in result.plans:
        verdict = "equal to one device" if one.equality.equal else "DIFFERENT from one device"
        took = f"a step {time_text(one.predicted_s)} predicted, {time_text(one.measured_s)} {result.source}"
        lines.append(f"{one.name:12}  {verdict}, tensor by tensor; {took}")
    return "\n".join(lines)
