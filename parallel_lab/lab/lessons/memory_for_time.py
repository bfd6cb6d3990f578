"""Lesson 10: memory for time."""

from functools import cache
from typing import Any

from ...base.cluster import Link, get_cluster
from ...cost.memory import predict_memory
from ...cost.recompute import best_segments, choose_recompute, predict_choice
from ...cost.schedules import make_schedule
from ...cost.timeline import predict_timeline
from ...train.session import initial_values
from ..exercises import check, hint, par
from ..memory.count import simulated_ranks
from ..pictures.charts import HUES, Chart, Trace
from ..pictures.plotted import Plotted, plotted
from ..pipeline.subjects import get_subject
from ..recompute.chain import LAYERS, RESULT_BYTES, compiled, count
from ..shared.jobs import ChainNet
from ..shared.prediction import Comparison
from .predictions import Answers

KEEP = (False,) * len(LAYERS)
AGAIN = (True,) * len(LAYERS)


def kept_over_a_step() -> Plotted:
    """How many results are in memory at each instruction of forward and backward, if the chain keeps them all."""
    step = [point for point in predict_memory(compiled(KEEP)[0]).timeline if point.phase != "update"]
    kept = tuple(point.by_kind["activations"] // RESULT_BYTES for point in step)
    said = tuple(f"{point.phase}, {point.name}: {n}" for point, n in zip(step, kept, strict=True))
    area = Trace("results that backward will read", "area", tuple(range(len(step))), kept, HUES[2], said)
    title, forward = "Results in memory over one step", sum(point.phase == "forward" for point in step)
    alt = f"{title}, predicted: at most {max(kept)} of them, when forward ends at instruction {forward} of {len(step)}."
    return plotted(
        Chart(title, "predicted", f"instruction: {forward} of forward, then backward", "results", (area,), alt)
    )


@cache
def activations_mib(schedule: str, again: tuple[int, ...] = ()) -> list[float]:
    """MiB of activations on each of four stages with eight micro-batches, counted.  again: stages that recompute."""
    job = get_subject("stack").job(4, 8)
    plan, net, optimizer = job.compile(make_schedule(schedule, 4, 8), recompute=again)
    counts = simulated_ranks(plan, initial_values(plan, net, optimizer), job.batches[0])
    return [found.most("activations") / 2**20 for found in counts]


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to formulas, and next to what is counted on simulated ranks."""
    forward = sum(layer.forward_s for layer in LAYERS)
    found = [predict_choice(LAYERS, choice).peak_bytes for choice in (KEEP, AGAIN)]

    def ratio(rank: int) -> float:
        return activations_mib("gpipe")[rank] / activations_mib("1f1b")[rank]

    def numbers() -> str:
        return "same" if count(KEEP).equal and count(AGAIN).equal else "different"

    return Answers("10", prediction, show).next_to(
        keep_all=(found[0], lambda: count(KEEP).peak, "4 + 4 + 6 + 6 + ... + 4: everything, when forward ends"),
        recompute_all=(found[1], lambda: count(AGAIN).peak, "8 inputs and the 7 others of layer 7"),
        more_work=(33, lambda: round(100 * count(AGAIN).extra / (3 * forward)), "a forward is a third of a step"),
        segments=(best_segments(64)[1], None, "8 inputs and 8 results: 2 times the root of 64"),
        pipeline=(2.0, lambda: ratio(0), "8 micro-batches, and 4"),
        last=(8.0, lambda: ratio(3), "8 micro-batches, and 1"),
        numbers=("same", numbers, "the same work on the same input"),
    )
