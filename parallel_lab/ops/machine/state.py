"""What a network keeps between steps beside trained parameters: values written into Parameters, and the step number."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ...base.errors import ShapeError, shorten
from ...base.hooks import current_step, current_tracer

LOSS_SCALE = "loss_scale"  # the optimizer state that holds the scale of a loss scaler


def assign(parameter: Any, value: Any) -> Any:
    """Give a Parameter a new value, as running statistics need, and return it.  value: like the parameter.

    A compiled network writes it at the end: no trained parameter, unless from gradients. Raises TraceError, ShapeError.
    """
    tracer = current_tracer.get()
    if tracer is not None:
        tracer.assign(parameter, value)
    elif not hasattr(parameter, "set_data"):
        raise ShapeError(f"{shorten(parameter)} is given a value", where="assign", allowed="A Parameter")
    else:
        parameter.set_data(value)
    return parameter


def training_step() -> Any:
    """Steps taken before this one: () int64, in a trace a value of the network; None where none is counted."""
    tracer, running = current_tracer.get(), current_step.get()
    if tracer is not None:
        return tracer.step()
    return None if running is None else np.asarray(running.number, np.int64)


class StepCalls:
    """Tells one dropout's calls apart, each with a mask of its own. calls: how many were outside of training steps."""

    def __init__(self) -> None:
        self.calls = 0
        self._last: tuple[Any, int] = (lambda: None, 0)

    def next(self) -> tuple[Any, int]:
        """(number of the step, () int64; how often this was asked before in this trace or in this training step)."""
        counted = current_tracer.get() or current_step.get()
        if counted is None:
            self.calls += 1
            return np.asarray(self.calls - 1, np.int64), 0
        last, count = self._last
        count = count + 1 if last() is counted else 0
        self._last = (weakref.ref(counted), count)
        return training_step(), count
