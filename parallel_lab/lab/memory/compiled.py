"""The Memory Lab's plans and what every rank holds and sends by them, kept for all labs: only the settings matter."""

from __future__ import annotations

from functools import lru_cache

from ...base.errors import ParallelLabError
from ...graph.plan import Plan
from .count import Count, predicted_ranks
from .splits import Block, block_of, splits_of
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


@lru_cache(maxsize=KEPT)
def every_split(subject: str, width: int, settings: Settings) -> dict[str, Block]:
    """Per split of the network what its block keeps and sends, without optimizer parallel; empty for no GPT."""
    known = splits_of(job_of(subject, width).net, settings.parallel_mode)
    plain = settings.without()
    found = {name: compiled(subject, width, plain.replaced(split=name))[0] for name in known if len(known) > 1}
    return {name: block_of(plan) for name, plan in found.items()}


def every_level(subject: str, width: int, settings: Settings) -> dict[str, Counts | ParallelLabError]:
    """Per level of the mode what every rank would hold and send; where it is impossible, the error that says why."""
    levels: dict[str, Counts | ParallelLabError] = {}
    for level in LEVELS[settings.parallel_mode]:
        try:
            levels[level] = ranks_of(subject, width, settings.replaced(level=level))
        except ParallelLabError as error:
            levels[level] = error
    return levels
