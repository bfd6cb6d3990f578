"""The number of the training step, and the calls of a dropout in it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...base.hooks import current_step, current_tracer
from ...base.seeds import drawn


def training_step() -> Any:
    """Steps taken before this one: () int64, in a trace a value of the network; None where none is counted."""
    tracer, running = current_tracer.get(), current_step.get()
    if tracer is not None:
        return tracer.step()
    return None if running is None else np.asarray(running.number, np.int64)


def step_total(x: Any) -> Any:
    """x, added up over the micro-batches of a step that is compiled; what is made of the sum is made once."""
    tracer = current_tracer.get()
    return x if tracer is None else tracer.step_total(x)


class StepNumber:
    """A step that is taken at once; `number` steps were taken before it, those before a checkpoint included."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def step_of_micro_batch(number: int, count: int) -> Iterator[None]:
    """What runs at once is micro-batch `number` of `count`: for random masks a step of its own, as in a plan."""
    running = current_step.get()
    token = current_step.set(None if running is None else StepNumber(running.number * count + number))
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
        counted = current_tracer.get() or current_step.get()
        if counted is None:
            self.calls += 1
            return np.asarray(self.calls - 1, np.int64), 0
        last, count = self._last
        count = count + 1 if last() is counted else 0
        self._last = (weakref.ref(counted), count)
        return training_step(), count
