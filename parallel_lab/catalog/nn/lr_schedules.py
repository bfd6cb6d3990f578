"""Learning rates that change by a formula: schedules, and lists with one rate per step.

    optimizer = nn.Momentum(net.trainable_params(), nn.CosineDecayLR(0.01, 0.1, decay_steps=100), 0.9)
    rates = nn.cosine_decay_lr(0.01, 0.1, total_step=100, step_per_epoch=10, decay_epoch=10)

Formulas: MindSpore's documentation, nn.ExponentialDecayLR and following, nn.exponential_decay_lr and following.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...base.checks import checked, flag, floating, integer, kept
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...nn.optim.lr_schedule import MOST_RATES, FormulaSchedule

RATE, FROM_0, COUNT = floating(0, above=True), floating(0), integer(1)


class _Decay(FormulaSchedule):
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

    def _rate(self, step: int) -> float:
        try:
            return self.learning_rate * float(self.decay_rate) ** self.p(step)
        except OverflowError:
            return math.inf


class NaturalExpDecayLR(_Decay):
    """learning_rate * exp(-decay_rate * p) with p = step / decay_steps, rounded down if is_stair.

    So MindSpore documents it; its code takes p = step (if is_stair, in multiples), as `natural_exp_decay_lr` does.
    """

    def _rate(self, step: int) -> float:
        return self.learning_rate * math.exp(-self.decay_rate * self.p(step))


class InverseDecayLR(_Decay):
    """learning_rate / (1 + decay_rate * p) with p = step / decay_steps, rounded down if is_stair."""

    def _rate(self, step: int) -> float:
        return self.learning_rate / (1 + self.decay_rate * self.p(step))


class CosineDecayLR(FormulaSchedule):
    """min_lr + (max_lr - min_lr) / 2 * (1 + cos(pi * step / decay_steps)); from decay_steps on min_lr."""

    @kept(min_lr=FROM_0, max_lr=RATE, decay_steps=COUNT)
    def __init__(self, min_lr: float, max_lr: float, decay_steps: int) -> None:
        super().__init__()
        _check_bounds("CosineDecayLR", min_lr, max_lr)

    def _rate(self, step: int) -> float:
        share = min(step / self.decay_steps, 1)
        return self.min_lr + 0.5 * (self.max_lr - self.min_lr) * (1 + math.cos(math.pi * share))


class PolynomialDecayLR(FormulaSchedule):
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

    def _rate(self, step: int) -> float:
        span = self.decay_steps * (max(math.ceil(step / self.decay_steps), 1) if self.update_decay_steps else 1)
        left = (1 - min(step, span) / span) ** self.power
        return (self.learning_rate - self.end_learning_rate) * left + self.end_learning_rate


class WarmUpLR(FormulaSchedule):
    """learning_rate * step / warmup_steps; from warmup_steps on learning_rate. The first step has rate 0."""

    @kept(learning_rate=FROM_0, warmup_steps=COUNT)
    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        super().__init__()

    def _rate(self, step: int) -> float:
        return self.learning_rate * min(step / self.warmup_steps, 1)


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


def _check_bounds(where: str, min_lr: float, max_lr: float) -> None:
    if min_lr >= max_lr:
        raise ArgumentError(f"min_lr={min_lr} and max_lr={max_lr}", where=where, allowed="max_lr above min_lr")
