"""The number of the training step, and the calls of a dropout in it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...base.hooks import current_step, current_tracer
from ...base.seeds import drawn


def training_step() -> Any:
    """Steps taken before this one: () int64, in a trace a value of the network; None where none is counted."""
    tracer, running = current_tracer.get(), _counted()
    if tracer is not None:
        return tracer.step()
    return None if running is None else np.asarray(running.number, np.int64)


def step_total(x: Any, of: Any) -> Any:
    """x of the Cell `of`, added up over the micro-batches of a step; what is made of the sum is made once. None: other
    micro-batches come, which run at once.
    """
    tracer = current_tracer.get()
    return drawn(lambda: _total_so_far(x, id(of))) if tracer is None else tracer.step_total(x)


def _total_so_far(x: Any, of: int) -> Any:
    step = current_step.get()
    if step is None or step.totals is None:
        return x
    key = of, step.calls[of]  # a Cell may be called several times
    step.calls[of] += 1
    step.totals[key] = step.totals[key] + x if key in step.totals else x
    return step.totals[key] if step.last else None


class StepNumber:
    """A step that is taken at once.

    number   steps taken before it, those before a checkpoint included; None: nobody counts
    totals   what its micro-batches have added up so far, where it is one of them;  last: whether it is the last one
    """

    def __init__(self, number: int | None, totals: dict[Any, Any] | None = None, last: bool = True) -> None:
        self.number, self.totals, self.last = number, totals, last
        self.calls: Counter[int] = Counter()


def _counted() -> Any:
    """The step that is taken at once, if steps are counted."""
    running = current_step.get()
    return None if running is None or running.number is None else running


@contextmanager
def step_of_micro_batch(number: int, count: int, totals: dict[Any, Any]) -> Iterator[None]:
    """What runs at once is micro-batch `number` of `count`: for random masks a step of its own, as in a plan."""
    running, around = _counted(), current_step.get()
    within = around is not None and around.totals is not None  # parts of parts: the last of the last one ends the step
    last = number == count - 1 and (not within or around.last)
    step = None if running is None else running.number * count + number
    token = current_step.set(StepNumber(step, around.totals if within else totals, last))
    try:
        yield
    finally:
        current_step.reset(token)


class StepCalls:
    """Tells one dropout's calls apart, each with a mask of its own. calls: how many were outside of training steps."""

    def __init__(self) -> None:
        self.calls = 0
        self._last: tuple[Any, int] = (lambda: None, 0)

    def next(self) -> tuple[Any, int]:
        """(number of the step, () int64; how often this was asked before in this trace or in this training step)."""
        return drawn(self._next)

    def _next(self) -> tuple[Any, int]:
        counted = current_tracer.get() or _counted()
        if counted is None:
            self.calls += 1
            return np.asarray(self.calls - 1, np.int64), 0
        last, count = self._last
        count = count + 1 if last() is counted else 0
        self._last = (weakref.ref(counted), count)
        return training_step(), count
