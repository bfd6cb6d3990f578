"""Learning rates that change: schedules, and lists with one rate per step.

    optimizer = nn.Momentum(net.trainable_params(), nn.CosineDecayLR(0.01, 0.1, decay_steps=100), 0.9)
    rates = nn.cosine_decay_lr(0.01, 0.1, total_step=100, step_per_epoch=10, decay_epoch=10)
    optimizer = nn.Momentum(net.trainable_params(), rates, 0.9)

A schedule is called with the number of the step, from 0, and returns the rate. It runs on the host: a compiled program
receives each step's rate as a value, so another schedule needs no other plan. Formulas: MindSpore's documentation,
nn.ExponentialDecayLR and following, nn.exponential_decay_lr and following.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType
from typing import Any

import numpy as np

from ...base.checks import INT_LIMIT, checked, fitting, flag, floating, integer, kept, number
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...base.hooks import cells_at_once
from ...ops.spellings import tensor_operand
from ..cell import Cell
from ..tensor.tensor import Tensor

# of a list, one rate per step: more takes minutes to write down, and GBs; a longer one is taken for an endless iterator
MOST_RATES = 50_000_000
RATE, FROM_0, COUNT = floating(0, above=True), floating(0), integer(1)


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

_at_step = checked(step=integer(0, INT_LIMIT))


class _Formula(LearningRateSchedule):
    """A schedule that says `at(step)`: the rate of a step."""

    def construct(self, global_step: Any) -> float:
        value = np.asarray(tensor_operand(type(self).__name__, "global_step", global_step, number=True))
        if value.size != 1:
            what = f"global_step of shape {value.shape}"
            raise ArgumentError(what, where=type(self).__name__, allowed="The number of a step")
        return self.at(int(value.reshape(())))

    def per_epoch(self, total_step: int, step_per_epoch: int) -> list[float]:
        """One rate per step, where this schedule counts epochs."""
        return [self.at(step // step_per_epoch) for step in range(total_step)]


class _Decay(_Formula):
    """What the three decays share: their settings, and p = step / decay_steps, rounded down if is_stair."""

    @kept(learning_rate=RATE, decay_rate=RATE, decay_steps=COUNT, is_stair=flag)
    def __init__(self, learning_rate: float, decay_rate: float, decay_steps: int, is_stair: bool = False) -> None:
        super().__init__()

    def p(self, step: int) -> float:
        return step // self.decay_steps if self.is_stair else step / self.decay_steps


class ExponentialDecayLR(_Decay):
    """learning_rate * decay_rate ** p with p = step / decay_steps, rounded down if is_stair.

    A rate that grows beyond all floats is infinite, as MindSpore's, and an optimizer refuses it.
    """

    @_at_step
    def at(self, step: int) -> float:
        """The rate at a step, counted from 0."""
        try:
            return self.learning_rate * float(self.decay_rate) ** self.p(step)
        except OverflowError:
            return math.inf


class NaturalExpDecayLR(_Decay):
    """learning_rate * exp(-decay_rate * p) with p = step / decay_steps, rounded down if is_stair.

    So MindSpore documents it; its code takes p = step (if is_stair, in multiples), as `natural_exp_decay_lr` does.
    """

    @_at_step
    def at(self, step: int) -> float:
        """The rate at a step, counted from 0."""
        return self.learning_rate * math.exp(-self.decay_rate * self.p(step))


class InverseDecayLR(_Decay):
    """learning_rate / (1 + decay_rate * p) with p = step / decay_steps, rounded down if is_stair."""

    @_at_step
    def at(self, step: int) -> float:
        """The rate at a step, counted from 0."""
        return self.learning_rate / (1 + self.decay_rate * self.p(step))


class CosineDecayLR(_Formula):
    """min_lr + (max_lr - min_lr) / 2 * (1 + cos(pi * step / decay_steps)); from decay_steps on min_lr."""

    @kept(min_lr=FROM_0, max_lr=RATE, decay_steps=COUNT)
    def __init__(self, min_lr: float, max_lr: float, decay_steps: int) -> None:
        super().__init__()
        _check_bounds("CosineDecayLR", min_lr, max_lr)

    @_at_step
    def at(self, step: int) -> float:
        """The rate at a step, counted from 0."""
        share = min(step / self.decay_steps, 1)
        return self.min_lr + 0.5 * (self.max_lr - self.min_lr) * (1 + math.cos(math.pi * share))


class PolynomialDecayLR(_Formula):
    """(learning_rate - end_learning_rate) * (1 - step / decay_steps) ** power + end_learning_rate until decay_steps.

    update_decay_steps  instead of ending, go on with the next multiple of decay_steps
    """

    @kept(learning_rate=RATE, end_learning_rate=FROM_0, decay_steps=COUNT, power=RATE, update_decay_steps=flag)
    def __init__(
        self,
        learning_rate: float,
        end_learning_rate: float,
        decay_steps: int,
        power: float,
        update_decay_steps: bool = False,
    ) -> None:
        super().__init__()

    @_at_step
    def at(self, step: int) -> float:
        """The rate at a step, counted from 0."""
        span = self.decay_steps * (max(math.ceil(step / self.decay_steps), 1) if self.update_decay_steps else 1)
        left = (1 - min(step, span) / span) ** self.power
        return (self.learning_rate - self.end_learning_rate) * left + self.end_learning_rate


class WarmUpLR(_Formula):
    """learning_rate * step / warmup_steps; from warmup_steps on learning_rate. The first step has rate 0."""

    @kept(learning_rate=FROM_0, warmup_steps=COUNT)
    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        super().__init__()

    @_at_step
    def at(self, step: int) -> float:
        """The rate at a step, counted from 0."""
        return self.learning_rate * min(step / self.warmup_steps, 1)


class _Listed(_Formula):
    """The i-th step takes the i-th of a list of rates."""

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__()
        self.rates = tuple(rates)

    @_at_step
    def at(self, step: int) -> float:
        """The rate at a step, counted from 0."""
        if step >= len(self.rates):
            given = f"step {step} of a list with {len(self.rates)} rates"
            hint = "Give a longer list, or train fewer steps"
            raise ArgumentError(given, where="learning_rate", allowed="One rate per step", hint=hint)
        return self.rates[step]

    def extend_repr(self) -> str:
        return f"{len(self.rates)} rates: {shorten(list(self.rates[:4]))}"


# ---- lists: one rate per step, that of its epoch: step // step_per_epoch ----


def piecewise_constant_lr(milestone: Sequence[int], learning_rates: Sequence[float]) -> list[float]:
    """learning_rates[t] for the steps from milestone[t - 1] to milestone[t] - 1; milestone[-1] rates.

    >>> piecewise_constant_lr([2, 5], [0.1, 0.05])
    [0.1, 0.1, 0.05, 0.05, 0.05]
    """
    where = "piecewise_constant_lr"
    for name, value in (("milestone", milestone), ("learning_rates", learning_rates)):
        if not isinstance(value, (list, tuple)):
            raise ArgumentTypeError(f"{name}={shorten(value)}", where=where, allowed="A list or tuple")
    if len(milestone) != len(learning_rates):
        given = f"{len(milestone)} milestones and {len(learning_rates)} learning rates"
        raise ArgumentError(given, where=where, allowed="As many rates as milestones")
    rates: list[float] = []
    for i, (end, rate) in enumerate(zip(milestone, learning_rates, strict=True)):
        if integer(1, MOST_RATES)(where, f"milestone[{i}]", end) < len(rates):
            given = f"milestone[{i}]={end} after {milestone[i - 1]}"
            raise ArgumentError(given, where=where, allowed="Milestones that grow")
        rates += [FROM_0(where, f"learning_rates[{i}]", rate)] * (end - len(rates))
    return rates


STEPS = {"total_step": integer(1, MOST_RATES), "step_per_epoch": COUNT}
DECAY = {"learning_rate": RATE, "decay_rate": RATE, **STEPS, "decay_epoch": COUNT, "is_stair": flag}


@checked(**DECAY)
def exponential_decay_lr(learning_rate, decay_rate, total_step, step_per_epoch, decay_epoch, is_stair=False):
    """learning_rate * decay_rate ** p per step, with p = epoch / decay_epoch, rounded down if is_stair."""
    schedule = ExponentialDecayLR(learning_rate, decay_rate, decay_epoch, is_stair)
    return schedule.per_epoch(total_step, step_per_epoch)


@checked(**DECAY)
def natural_exp_decay_lr(learning_rate, decay_rate, total_step, step_per_epoch, decay_epoch, is_stair=False):
    """learning_rate * exp(-decay_rate * epoch); if is_stair, with the last multiple of decay_epoch up to it."""
    unit = decay_epoch if is_stair else 1
    schedule = NaturalExpDecayLR(learning_rate, decay_rate * unit, unit, is_stair=True)
    return schedule.per_epoch(total_step, step_per_epoch)


@checked(**DECAY)
def inverse_decay_lr(learning_rate, decay_rate, total_step, step_per_epoch, decay_epoch, is_stair=False):
    """learning_rate / (1 + decay_rate * p) per step, with p = epoch / decay_epoch, rounded down if is_stair."""
    schedule = InverseDecayLR(learning_rate, decay_rate, decay_epoch, is_stair)
    return schedule.per_epoch(total_step, step_per_epoch)


@checked(min_lr=FROM_0, max_lr=RATE, **STEPS, decay_epoch=COUNT)
def cosine_decay_lr(min_lr, max_lr, total_step, step_per_epoch, decay_epoch):
    """min_lr + (max_lr - min_lr) / 2 * (1 + cos(pi * epoch / decay_epoch)) per step; from decay_epoch on min_lr."""
    _check_bounds("cosine_decay_lr", min_lr, max_lr)
    return CosineDecayLR(min_lr, max_lr, decay_epoch).per_epoch(total_step, step_per_epoch)


@checked(learning_rate=RATE, end_learning_rate=FROM_0, **STEPS, decay_epoch=COUNT, power=RATE, update_decay_epoch=flag)
def polynomial_decay_lr(
    learning_rate, end_learning_rate, total_step, step_per_epoch, decay_epoch, power, update_decay_epoch=False
):
    """(learning_rate - end_learning_rate) * (1 - epoch / decay_epoch) ** power + end_learning_rate per step.

    update_decay_epoch  instead of ending at decay_epoch, go on with its next multiple
    """
    schedule = PolynomialDecayLR(learning_rate, end_learning_rate, decay_epoch, power, update_decay_epoch)
    return schedule.per_epoch(total_step, step_per_epoch)


@checked(learning_rate=FROM_0, **STEPS, warmup_epoch=COUNT)
def warmup_lr(learning_rate, total_step, step_per_epoch, warmup_epoch):
    """learning_rate * epoch / warmup_epoch per step; from warmup_epoch on learning_rate."""
    return WarmUpLR(learning_rate, warmup_epoch).per_epoch(total_step, step_per_epoch)


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
        return _Listed([number(0)(where, f"{name}[{i}]", rate) for i, rate in enumerate(rates)])
    return number(0)(where, name, value)


def rate_at(rate: float | Callable[[int], Any], step: int, where: str, what: str = "learning rate") -> float:
    """The learning rate (or what it is) of one step, checked. ArgumentTypeError, ArgumentError: it is invalid."""
    if isinstance(rate, float):
        return rate
    found = rate(step)
    found = found.asnumpy() if isinstance(found, Tensor) else found
    if isinstance(found, np.ndarray) and found.size == 1:
        found = found.item()
    return number(0)(where, f"the {what} of step {step}", found)


# ---- checks ----


def _check_bounds(where: str, min_lr: float, max_lr: float) -> None:
    if min_lr >= max_lr:
        raise ArgumentError(f"min_lr={min_lr} and max_lr={max_lr}", where=where, allowed="max_lr above min_lr")
