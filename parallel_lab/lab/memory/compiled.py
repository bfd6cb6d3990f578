"""The Memory Lab's plans and what every rank holds and sends by them, kept for all labs: only the settings matter."""

from __future__ import annotations

from functools import lru_cache

from ...base.errors import ParallelLabError
from ...graph.plan import Plan
from .count import Count, predicted_ranks
from .subjects import LEVELS, Job, Settings, get_subject

KEPT_JOBS = 4  # the widest holds some 40 MB
KEPT = 48  # plans; a lesson goes to and fro between few

Counts = tuple[Count, ...]


@lru_cache(maxsize=KEPT_JOBS)
def job_of(subject: str, width: int) -> Job:
    """The network and its data; training takes copies of its parameters."""
    return get_subject(subject).job(width)


@lru_cache(maxsize=KEPT)
def compiled(subject: str, width: int, settings: Settings) -> tuple[Plan, Counts]:
    """The plan, and what every rank holds and sends by it. Raises what compiling raises."""
    plan = job_of(subject, width).compile(settings)
    return plan, predicted_ranks(plan)


def ranks_of(subject: str, width: int, settings: Settings) -> Counts:
    """What every rank holds and sends."""
    return compiled(subject, width, settings.without() if settings.level == "off" else settings)[1]


def every_level(subject: str, width: int, settings: Settings) -> dict[str, Counts | ParallelLabError]:
    """Per level of the mode what every rank would hold and send; where it is impossible, the error that says why."""
    levels: dict[str, Counts | ParallelLabError] = {}
    for level in LEVELS[settings.parallel_mode]:
        try:
            levels[level] = ranks_of(subject, width, settings.replaced(level=level))
        except ParallelLabError as error:
            levels[level] = error
    return levels
