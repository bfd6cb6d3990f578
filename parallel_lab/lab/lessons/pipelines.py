"""Lesson 09: pipelines."""

from collections.abc import Sequence
from fractions import Fraction

from ...base.cluster import get_cluster
from ...cost.schedules import Schedule, make_schedule
from ...cost.timeline import predict_timeline
from ...train.session import initial_values
from ..exercises import check, hint, par
from ..fusion.subjects import ChainNet
from ..memory.count import simulated_ranks
from ..pipeline.subjects import get_subject
from ..shared.prediction import Comparison


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
