"""Schedules that a learner hands in: read, in whatever form, and run by simulated ranks.

drawn = read_schedule([["0F0", "0B0"], ["1F0", "1B0"]], ranks=2, parts=2, micro_batches=1, rule="...")
losses, parameters = train_by(drawn, steps=2)       # by this very schedule
losses, parameters = train_alone(2, 1, steps=2)     # the same micro-batches on one device
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from ...base.errors import ParallelLabError, shorten
from ...base.units import plural
from ...cost.schedules import Schedule
from ...graph.actions import Action
from ...train.session import Session
from ..pipeline.model import PipelineLab
from ..pipeline.subjects import get_subject
from .verdict import Wrong

FORM = 'A line of actions per rank, "0F0 0F1 0B0": part, kind, micro-batch; or a list of lists of them'
MOST_ACTIONS = 10_000  # of a rank: far more than any puzzle has


def read_schedule(answer: Any, ranks: int, parts: int, micro_batches: int, rule: str) -> Schedule:
    """A learner's schedule: a Schedule, a Pipeline Lab that has one drawn, its text, a text or a list per rank. Raises
    Wrong where it cannot be read."""
    if answer is None:
        raise Wrong("no schedule yet", form=FORM)
    if isinstance(answer, PipelineLab):
        answer = answer.schedule
    try:
        text = _text_of(answer)
        drawn = Schedule.from_text(text, name="yours", parts=parts, micro_batches=micro_batches, holds="loop")
    except ParallelLabError as error:
        raise Wrong(str(error), form=FORM) from error
    except Exception as error:  # whatever a learner's object does
        raise Wrong(shorten(answer), form=FORM) from error
    if len(drawn.ranks) != ranks:
        idle = [str(r) for r, line in enumerate(text.split("\n")) if not line.strip()]
        if not isinstance(answer, str) and len(drawn.ranks) + len(idle) == ranks:
            raise Wrong(f"nothing is drawn yet on rank{'s' * (len(idle) > 1)} {', '.join(idle)}", rule)
        raise Wrong(plural(len(drawn.ranks), "rank"), form=f"{ranks}: a line for each, in order")
    return drawn


def _text_of(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, Schedule):
        return answer.text()
    return "\n".join(_line(lane) for lane in answer)


def _line(lane: Any) -> str:
    if isinstance(lane, str):
        return lane
    words = [word for word, _ in zip(_actions(lane), range(MOST_ACTIONS), strict=False)]
    return " ".join(words)


def _actions(lane: Iterable[Any]) -> Iterable[str]:
    for action in lane:
        if not isinstance(action, str | Action):
            raise TypeError
        yield str(action)


# ---- run ----

Trained = tuple[list[float], dict[str, np.ndarray]]


def train_by(drawn: Schedule, steps: int) -> Trained:
    """Losses and parameters of a stack of products, trained by this schedule on simulated ranks."""
    return _trained(drawn.parts, drawn.micro_batches, drawn, steps)


@lru_cache(maxsize=4)
def train_alone(parts: int, micro_batches: int, steps: int) -> Trained:
    """The same on one device, from the same start: micro-batch after micro-batch."""
    return _trained(parts, micro_batches, None, steps)


def _trained(parts: int, micro_batches: int, schedule: Schedule | None, steps: int) -> Trained:
    job = get_subject("stack").job(parts, micro_batches)
    plan, net, optimizer = job.compile(schedule)
    with Session(plan, net, optimizer, check_finite=False) as session:
        return session.train(job.batches, steps), session.parameters()
