"""Lesson 09: pipelines."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from ...base.cluster import get_cluster
from ...cost.schedules import Schedule, make_schedule
from ...cost.timeline import predict_timeline
from ...train.session import initial_values
from ..exercises import check, hint, par, puzzle_lab
from ..exercises.verdict import Note
from ..memory.count import simulated_ranks
from ..pictures.charts import bar_chart
from ..pictures.plotted import plotted
from ..pipeline.subjects import get_subject
from ..shared.equality import Equality, bits_of
from ..shared.jobs import ChainNet
from ..shared.prediction import Comparison
from .predictions import Answers

SMALLER = "1F1B has a smaller bubble"  # of MISCONCEPTIONS
SAME_BUBBLE = "1F1B waits as long at the beginning and at the end, and only keeps fewer activations."


def lanes(schedule: Schedule, *times: float) -> str:
    """When every action runs, a line per rank and a column per unit of time; times of F, B and W, whole numbers.

    >>> print(lanes(make_schedule("gpipe", 2, 2), 1, 2, 0))
    rank 0  F0 F1  .  .  . B0 -- B1 --   bubble 1/3
    rank 1   . F0 F1 B0 -- B1 --  .  .   bubble 1/3
    """
    found, lines = schedule.clock(*times), []
    for rank, actions in enumerate(schedule.ranks):
        cells = [" ."] * round(found.makespan)
        for action, start, end in zip(actions, found.starts[rank], found.ends[rank], strict=True):
            cells[round(start) : round(end)] = ["--"] * round(end - start)
            cells[round(start)] = f"{action.kind}{action.micro_batch}"
        idle = Fraction(found.bubbles[rank] / found.makespan).limit_denominator(1000)
        lines.append(f"rank {rank}  {' '.join(cells)}   bubble {idle}")
    return "\n".join(lines)


def text_of(schedule: Sequence[Sequence[str]]) -> str:
    """A list of actions per rank as the text of a schedule."""
    return "\n".join(" ".join(lane) for lane in schedule)


def activations(name: str, micro_batches: int) -> list[int]:
    """Bytes of activations on each of four ranks at the fullest moment of a step, counted."""
    job = get_subject("stack").job(4, micro_batches)
    plan, net, optimizer = job.compile(make_schedule(name, 4, micro_batches))
    counts = simulated_ranks(plan, initial_values(plan, net, optimizer), job.batches[0])
    return [count.most("activations") for count in counts]


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to formulas, schedules, and activations that are counted on simulated ranks."""

    def step(name: str, micro_batches: int) -> int:
        return round(make_schedule(name, 4, micro_batches).clock(1, 1, 0).makespan)

    def kept(name: str) -> int:
        return activations(name, 8)[0] // (activations("gpipe", 4)[0] // 4)

    return Answers("09", prediction, show).next_to(
        gpipe_4=(2 * (4 + 3), lambda: step("gpipe", 4), "4 + 3 units forward, and as many backward"),
        gpipe_8=(2 * (8 + 3), lambda: step("gpipe", 8), "8 more units of work, the same bubble"),
        one_8=(
            *(2 * (8 + 3), lambda: step("1f1b", 8)),
            {
                # half of GPipe's bubble of 2 x 3, and none
                2 * 8 + 3: Note(f"Your {2 * 8 + 3} is half of GPipe's bubble: {SAME_BUBBLE}", SMALLER),
                2 * 8: Note(f"Your {2 * 8} is a step without a bubble: {SAME_BUBBLE}", SMALLER),
                None: "as long as GPipe: the bubble is the same",
            },
        ),
        kept_gpipe=(8, lambda: kept("gpipe"), "no B begins before the last F"),
        kept_one=(4, lambda: kept("1f1b"), "B of micro-batch 0 comes back after 4 F"),
    )


def compare_numbers(prediction: dict[str, Any], proofs: Iterable[Equality], *, show: bool = False) -> Comparison:
    """The answer on numbers next to the tensors of these proofs, bit for bit."""
    row = ("same", bits_of(proofs), "the same sums in the same order, only at other times")
    return Answers("09", prediction, show).next_to(numbers=row)
