"""Callbacks that steer a training: learning rates by step; less of it, or an end, when a value stops improving.

    callbacks = [ReduceLROnPlateau("eval_loss", patience=3), EarlyStopping("acc", patience=8)]
    model.fit(50, train, valid, callbacks=callbacks)

The watched value is "loss" (the last step's), or of the evaluation in `Model.fit`: "eval_loss" or a metric's name.
Where ranks train together, it is their mean, so that all decide alike. Rules: MindSpore, train.callback.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.checks import checked, choice, flag, instance, integer, number
from ..base.errors import ArgumentError, shorten
from .agreement import mean_over_ranks
from .callbacks import Callback, RunContext, loss_value, params_of

# what is the better the smaller it is; of anything else more is better
SMALLER_IS_BETTER = (
    *("loss", "eval_loss", "mae", "mse", "perplexity"),
    *("hausdorff_distance", "mean_surface_distance", "root_mean_square_distance"),
)
MONITOR = instance(str, "A str: 'loss', 'eval_loss' or the name of a metric")


class Monitored(Callback):
    """A callback that watches one value and knows when it is better than the best so far.

    monitor    "loss", "eval_loss" or the name of a metric;  mode: "min", "max", or "auto": by the value's name
    min_delta  by how much a value must be better; its sign is left out
    """

    @checked(monitor=MONITOR, mode=choice("auto", "min", "max"), min_delta=number())
    def __init__(self, monitor: str, mode: str, min_delta: float) -> None:
        self.monitor, self.mode, self.min_delta = monitor, mode, abs(min_delta)
        self._less = mode == "min" or (mode == "auto" and monitor in SMALLER_IS_BETTER)
        self._begin()

    def _begin(self) -> None:
        self.best, self.wait = math.inf if self._less else -math.inf, 0

    def _watched(self, value: float, run_context: RunContext) -> None:
        """What follows from the value of an epoch."""
        raise NotImplementedError

    def _is_better(self, value: float, than: float) -> bool:
        return value < than - self.min_delta if self._less else value > than + self.min_delta

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        params = params_of(run_context)
        self._begin()
        if self.monitor != "loss" and params.get("valid_dataset") is None:
            hint = "Use Model.fit(epoch, train_dataset, valid_dataset), or monitor='loss'"
            what = f"monitor={self.monitor!r}, but this training evaluates nothing"
            raise ArgumentError(what, where=type(self).__name__, hint=hint)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        super().on_train_epoch_end(run_context)
        value = self._value(params_of(run_context))
        if value is not None:
            self._watched(value, run_context)

    def _value(self, params: Any) -> float | None:
        """The watched value, or None if the epoch had no evaluation. Collective where ranks train together."""
        if self.monitor == "loss":
            value = loss_value(params.net_outputs)
        else:
            results = params.get("eval_results")
            if not results:
                return None
            if self.monitor not in results:
                allowed = f"There are: loss, {', '.join(sorted(results))}"
                what = f"monitor={self.monitor!r} is not evaluated"
                raise ArgumentError(what, where=type(self).__name__, allowed=allowed)
            value = results[self.monitor]
        array = np.asarray(value)
        if array.shape != () or array.dtype.kind not in "biuf":
            what = f"{self.monitor} is {shorten(value)}"
            where = type(self).__name__
            raise ArgumentError(what, where=where, allowed="One number", hint="Watch a metric that gives one number")
        return mean_over_ranks(float(array), params.parallel_mode)


class EarlyStopping(Monitored):
    """Ends the training when a value has stopped improving.

    patience              so many epochs without improvement are waited for, at least one
    verbose               print in which epoch the training was ended
    baseline              the wait starts over only for values that are also better than this
    restore_best_weights  put the parameters back to what they were after the best epoch
    """

    @checked(patience=integer(0), verbose=flag, restore_best_weights=flag, baseline=number() | None)
    def __init__(
        self,
        monitor: str = "eval_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: bool = False,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience, self.verbose = patience, verbose
        self.baseline, self.restore_best_weights = baseline, restore_best_weights
        self.stopped_epoch = 0
        self._best_weights: dict[str, np.ndarray] | None = None

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        self.stopped_epoch, self._best_weights = 0, None

    def _watched(self, value: float, run_context: RunContext) -> None:
        params = params_of(run_context)
        self.wait += 1
        better = self._is_better(value, self.best)
        if better:
            self.best = value
            if self.baseline is None or self._is_better(value, self.baseline):
                self.wait = 0
        if self.restore_best_weights and (better or self._best_weights is None):
            self._best_weights = {p.name: np.array(p.asnumpy()) for p in params.network.get_parameters()}
        if self.wait and self.wait >= self.patience:
            self.stopped_epoch = params.cur_epoch_num
            run_context.request_stop()
            if self._best_weights is not None:
                for parameter in params.network.get_parameters():
                    parameter.set_data(self._best_weights[parameter.name])

    def on_train_end(self, run_context: RunContext) -> None:
        super().on_train_end(run_context)
        if self.stopped_epoch and self.verbose:
            print(f"Epoch {self.stopped_epoch:05d}: early stopping", flush=True)


class ReduceLROnPlateau(Monitored):
    """Multiplies the learning rate by `factor` when a value has stopped improving.

    factor    between 0 and 1
    patience  epochs without improvement
    cooldown  epochs that do not count after a change
    min_lr    the rate does not fall below this
    verbose   print every change

    ArgumentError (a ValueError) for an optimizer with a schedule, or groups with rates of their own.
    """

    @checked(
        factor=number(0, 1, above=True, below=True),
        patience=integer(0),
        verbose=flag,
        cooldown=integer(0),
        min_lr=number(0),
    )
    def __init__(
        self,
        monitor: str = "eval_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: bool = False,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.factor, self.patience, self.verbose = factor, patience, verbose
        self.cooldown, self.min_lr, self.cooldown_counter = cooldown, min_lr, 0

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        self.cooldown_counter = 0
        learning_rate("ReduceLROnPlateau", params_of(run_context).optimizer)

    def _watched(self, value: float, run_context: RunContext) -> None:
        params = params_of(run_context)
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            self.wait = 0
        if self._is_better(value, self.best):
            self.best, self.wait = value, 0
        elif not self.cooldown_counter:
            self.wait += 1
            if self.wait >= self.patience:
                old = learning_rate("ReduceLROnPlateau", params.optimizer)
                if old > self.min_lr:
                    params.optimizer.learning_rate = new = max(old * self.factor, self.min_lr)
                    if self.verbose:
                        said = f"ReduceLROnPlateau reducing learning rate to {new}."
                        print(f"Epoch {params.cur_epoch_num:05d}: {said}", flush=True)
                self.cooldown_counter, self.wait = self.cooldown, 0


class LearningRateScheduler(Callback):
    """Asks `learning_rate_function(rate, step from 1)` for the next rate, a number, after every step or sink."""

    @checked(learning_rate_function=instance(Callable, "A function of (learning_rate, step)"))
    def __init__(self, learning_rate_function: Callable[[float, int], float]) -> None:
        self.learning_rate_function = learning_rate_function

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        learning_rate("LearningRateScheduler", params_of(run_context).optimizer)

    def step_end(self, run_context: RunContext) -> None:
        params = params_of(run_context)
        if params.mode == "train":
            old = learning_rate("LearningRateScheduler", params.optimizer)
            params.optimizer.learning_rate = float(self.learning_rate_function(old, params.cur_step_num))


def learning_rate(where: str, optimizer: Any) -> float:
    """The optimizer's learning rate. Raises ArgumentError unless it is one number for all parameters."""
    allowed = "An optimizer with one learning rate, a number"
    if optimizer is None:
        raise ArgumentError("the Model has no optimizer", where=where, allowed=allowed)
    if optimizer.dynamic_lr:
        what = f"the learning rate is {shorten(optimizer.learning_rate)}"
        raise ArgumentError(what, where=where, allowed=allowed, hint="Leave the schedule to the optimizer")
    if optimizer.is_group_lr:
        raise ArgumentError("parameter groups have learning rates of their own", where=where, allowed=allowed)
    return optimizer.learning_rates(optimizer.steps_taken)["learning_rate"]
