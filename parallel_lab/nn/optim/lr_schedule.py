"""Learning rates that change: what an optimizer asks a schedule, or a list with one rate per step.

    optimizer = nn.Momentum(net.trainable_params(), nn.CosineDecayLR(0.01, 0.1, decay_steps=100), 0.9)

A schedule is called with the number of the step, from 0, and returns the rate. It runs on the host: a compiled program
receives each step's rate as a value, so another schedule needs no other plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType
from typing import Any

import numpy as np

from ...base.checks import INT_LIMIT, checked, fitting, integer, number
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...base.hooks import cells_at_once, current_tracer
from ...ops.spellings import tensor_operand
from ..cell import Cell
from ..tensor.tensor import Tensor

# of a list, one rate per step: more takes minutes to write down, and GBs; a longer one is taken for an endless iterator
MOST_RATES = 50_000_000


class LearningRateSchedule(Cell):
    """Base of schedules: override `construct(global_step)`, steps from 0, which returns the learning rate."""

    def construct(self, global_step: Any) -> Any:
        return super().construct(global_step)

    @fitting
    def __call__(self, global_step: Any) -> Any:
        with cells_at_once():  # a rate is a number of this process, however the network is split
            return super().__call__(global_step)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extend_repr()})"


# ---- schedules ----


def at(self: Any, step: int) -> float:
    """The rate at a step, counted from 0."""
    return self._rate(step)


class FormulaSchedule(LearningRateSchedule):
    """A schedule by a formula: `_rate(step)`, which subclasses write; `at(step)` checks the step before."""

    at: Callable[[int], float]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.at = checked(f"{cls.__name__}.at", step=integer(0, INT_LIMIT))(at)  # errors name the class

    def construct(self, global_step: Any) -> float | Tensor:
        value = np.asarray(tensor_operand(type(self).__name__, "global_step", global_step, number=True))
        if value.size != 1:
            what = f"global_step of shape {value.shape}"
            raise ArgumentError(what, where=type(self).__name__, allowed="The number of a step")
        rate = self.at(int(value.reshape(())))
        return Tensor(rate) if isinstance(global_step, Tensor) else rate  # a script's call: as MindSpore's

    def per_epoch(self, total_step: int, step_per_epoch: int) -> list[float]:
        """One rate per step, where this schedule counts epochs."""
        return [self.at(step // step_per_epoch) for step in range(total_step)]


class ConstantRate(FormulaSchedule):
    """Every step takes the same rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.constant = rate

    def _rate(self, step: int) -> float:
        return self.constant


class _RateList(FormulaSchedule):
    """The i-th step takes the i-th of a list of rates."""

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__()
        self.rates = tuple(rates)

    as_tensor = learning_rate = property(lambda self: Tensor(np.float32(self.rates)), doc="All rates.  (count,).")

    def _rate(self, step: int) -> float:
        if step >= len(self.rates):
            given = f"step {step} of a list with {len(self.rates)} rates"
            hint = "Give a longer list, or train fewer steps"
            raise ArgumentError(given, where="learning_rate", allowed="One rate per step", hint=hint)
        return self.rates[step]

    def extend_repr(self) -> str:
        return f"{len(self.rates)} rates: {shorten(list(self.rates[:4]))}"


# ---- what an optimizer is given ----


def as_schedule(value: Any, where: str, name: str = "learning_rate") -> float | Callable[[int], Any]:
    """A learning rate as an optimizer keeps it: a number, or something that gives the rate of a step.

    value  a number (or Tensor of one), schedule or function of the step; or an iterable with one rate per step
    Raises ArgumentTypeError, ArgumentError.
    """
    allowed = "A number, at least 0, a LearningRateSchedule, or one number per step"
    if isinstance(value, Tensor):
        value = value.asnumpy()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, np.ndarray) and value.ndim > 1:
        raise ArgumentError(f"{name} of shape {value.shape}", where=where, allowed=allowed)
    if isinstance(value, Cell) and not isinstance(value, LearningRateSchedule):
        raise ArgumentTypeError(f"{name}={shorten(value)}", where=where, allowed=allowed)
    if callable(value) and not isinstance(value, (type, BuiltinFunctionType)):
        return value
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict)):
        rates = list(itertools.islice(value, MOST_RATES + 1))
        if len(rates) > MOST_RATES or not rates:
            given = "no rates" if not rates else f"more than {MOST_RATES} rates"
            hint = "For endless rates use a schedule"
            raise ArgumentError(f"{name} with {given}", where=where, allowed="One rate per step", hint=hint)
        return _RateList([number(0)(where, f"{name}[{i}]", rate) for i, rate in enumerate(rates)])
    return number(0)(where, name, value)


class _Step(Tensor):
    """The number of a step, which may also index a list of rates."""

    def __index__(self) -> int:
        return int(self)


def rate_at(rate: float | Callable[[int], Any], step: int, where: str, what: str = "learning rate") -> float:
    """The learning rate (or what it is) of one step, checked. ArgumentTypeError, ArgumentError: it is invalid."""
    if isinstance(rate, float):
        return rate
    outside = current_tracer.set(None)  # also where a step that is compiled asks for it
    try:
        # a construct of a script's own is given what MindSpore gives it
        own = isinstance(rate, LearningRateSchedule) and not isinstance(rate, FormulaSchedule)
        rate_now = rate(_Step(step, np.int32) if own else step)
    finally:
        current_tracer.reset(outside)
    rate_now = rate_now.asnumpy() if isinstance(rate_now, Tensor) else rate_now
    if isinstance(rate_now, np.ndarray) and rate_now.size == 1:
        rate_now = rate_now.item()
    return number(0)(where, f"the {what} of step {step}", rate_now)
