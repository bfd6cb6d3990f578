"""Callbacks: what a training or an evaluation tells the learner's own code, and the callbacks that come with it.

    class Watch(Callback):
        def step_end(self, run_context):
            params = run_context.original_args()
            if params.cur_step_num == 100:
                run_context.request_stop()

    model.train(5, dataset, callbacks=[LossMonitor(), TimeMonitor(), Watch()])

Order of the calls: begin, then per epoch epoch_begin, per step step_begin and step_end, then epoch_end; at last end. In
sink mode the steps of one epoch are one `step_begin` and one `step_end`. `step_end` and its relatives are called in
training and in evaluation; `on_train_step_end` and `on_eval_step_end`, where a class defines them, are called instead.
Names, fields and printed lines: MindSpore, train.callback.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..base.checks import checked, fitting, flag, instance, integer, nearest
from ..base.errors import ArgumentTypeError, CellError, LossNotFinite, NotBuiltYet, shorten
from ..base.hooks import current_world
from ..nn.cell import Cell
from ..nn.tensor.tensor import Tensor

MOMENTS = ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end")
EVENTS = tuple(f"on_{phase}_{moment}" for phase in ("train", "eval") for moment in MOMENTS)


class CallbackParams(dict):
    """What a callback may read, as attributes or as items.

    always          mode ("train" or "eval"), network, loss_fn, parallel_mode, device_number, list_callback, batch_num
                    (steps per epoch), dataset_sink_mode, cur_step_num (steps taken so far), net_outputs
    in training     train_network, optimizer, train_dataset, train_dataset_element (the columns of the step), epoch_num,
                    cur_epoch_num (from 1), plan (None where nothing is compiled); in `fit` also valid_dataset,
                    eval_results and metrics (of the epoch's evaluation)
    in evaluation   eval_network, valid_dataset, valid_dataset_element, plan, metrics (at the end)
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            what = f"there is no {name!r} in this call"
            hint = nearest(name, self) or f"There are: {', '.join(sorted(self))}"
            raise CellError(what, where="callback parameters", hint=hint, name=name, obj=self) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class RunContext:
    """What callbacks get: `original_args` (CallbackParams, a dict about the run), and the way to end it."""

    @checked(original_args=instance(dict, "A dict"))
    def __init__(self, original_args: dict[str, Any]) -> None:
        self._original_args = original_args
        self._stop_requested = False

    def original_args(self) -> Any:
        """The parameters of the run: CallbackParams."""
        return self._original_args

    def request_stop(self) -> None:
        """End the run after this step, in sink mode after this epoch. All ranks must ask for it in the same step."""
        self._stop_requested = True

    def get_stop_requested(self) -> bool:
        """Whether `request_stop` was called."""
        return self._stop_requested


def params_of(run_context: Any) -> CallbackParams:
    """`run_context.original_args()`; ArgumentTypeError if a callback was given something else."""
    if isinstance(run_context, type) or not hasattr(run_context, "original_args"):
        raise ArgumentTypeError(f"run_context={shorten(run_context)}", where="Callback", allowed="A RunContext")
    return run_context.original_args()


class Callback:
    """Base of callbacks: override what is of interest. Also a context, entered before the run and left after it."""

    def __enter__(self) -> Callback:
        return self

    def __exit__(self, *error: Any) -> None:
        """Free what the callback holds."""

    # fmt: off
    def begin(self, run_context: RunContext) -> None: ...
    def epoch_begin(self, run_context: RunContext) -> None: ...
    def epoch_end(self, run_context: RunContext) -> None: ...
    def step_begin(self, run_context: RunContext) -> None: ...
    def step_end(self, run_context: RunContext) -> None: ...
    def end(self, run_context: RunContext) -> None: ...
    def on_train_begin(self, run_context: RunContext) -> None: self.begin(run_context)
    def on_train_epoch_begin(self, run_context: RunContext) -> None: self.epoch_begin(run_context)
    def on_train_epoch_end(self, run_context: RunContext) -> None: self.epoch_end(run_context)
    def on_train_step_begin(self, run_context: RunContext) -> None: self.step_begin(run_context)
    def on_train_step_end(self, run_context: RunContext) -> None: self.step_end(run_context)
    def on_train_end(self, run_context: RunContext) -> None: self.end(run_context)
    def on_eval_begin(self, run_context: RunContext) -> None: self.begin(run_context)
    def on_eval_epoch_begin(self, run_context: RunContext) -> None: self.epoch_begin(run_context)
    def on_eval_epoch_end(self, run_context: RunContext) -> None: self.epoch_end(run_context)
    def on_eval_step_begin(self, run_context: RunContext) -> None: self.step_begin(run_context)
    def on_eval_step_end(self, run_context: RunContext) -> None: self.step_end(run_context)
    def on_eval_end(self, run_context: RunContext) -> None: self.end(run_context)
    # fmt: on


def as_callbacks(callbacks: Any, where: str) -> list[Callback]:
    """None, a Callback, or a list or tuple of them, as a list. Raises ArgumentTypeError (a TypeError)."""
    if callbacks is None:
        return []
    several = isinstance(callbacks, (list, tuple))
    listed = list(callbacks) if several else [callbacks]
    for i, one in enumerate(listed):
        if not isinstance(one, Callback):
            what, hint = _told_instead(one)
            what = f"callbacks[{i}] is {what}" if several else f"callbacks={shorten(one)}"
            raise ArgumentTypeError(what, where=where, allowed="A Callback, or a list of Callbacks", hint=hint)
    return listed


def _told_instead(value: Any) -> tuple[str, str]:
    """(what it is, what to write) for a value that is not a Callback."""
    if isinstance(value, Cell):
        hint = "To see the loss, put LossMonitor() into the list; the loss itself belongs to Model(loss_fn=...)"
        return f"the {type(value).__name__} cell, not a callback", hint
    if isinstance(value, type) and issubclass(value, Callback):
        return f"the class {value.__name__}", f"Write {value.__name__}()"
    return shorten(value), ""


class CallbackList:
    """Several callbacks, called in turn; entered in order (`__enter__` may return a stand-in), left in reverse."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = list(callbacks)
        self._stack = ExitStack()

    def __enter__(self) -> CallbackList:
        for i, one in enumerate(self.callbacks):
            entered = self._stack.enter_context(one)
            self.callbacks[i] = entered if isinstance(entered, Callback) else one
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def call(self, event: str, run_context: RunContext) -> None:
        """Call the method `event` ("on_train_step_end", ...) of every callback."""
        for one in self.callbacks:
            getattr(one, event)(run_context)


# ---- what comes with it ----


def loss_value(outputs: Any) -> Any:
    """The loss in what a step returned: the first of several outputs, its mean as a float if it is a number."""
    if isinstance(outputs, (tuple, list)) and outputs:
        outputs = outputs[0]
    if isinstance(outputs, (Tensor, np.ndarray, np.generic)):
        array = outputs.asnumpy() if isinstance(outputs, Tensor) else np.asarray(outputs)
        return float(np.mean(array))
    return outputs


class LossMonitor(Callback):
    """Prints `epoch: E step: S, loss is L` every `per_print_times` steps (0: never); S counts from 1 in each epoch.

    per_print_times  int, at least 0. In sink mode only a sink's last step, if so many have passed

    In data_parallel every rank prints its own loss, in semi_auto and auto_parallel all print the same. In `Model.fit`
    the epoch's evaluation is printed too. LossNotFinite (a ValueError) names rank, epoch and step.
    """

    @checked(per_print_times=integer(0))
    def __init__(self, per_print_times: int = 1) -> None:
        self._per_print_times, self._last_print_time = per_print_times, 0

    def on_train_begin(self, run_context: RunContext) -> None:
        self._last_print_time = 0
        super().on_train_begin(run_context)

    def step_end(self, run_context: RunContext) -> None:
        params = params_of(run_context)
        if params.mode == "eval":
            return
        loss = loss_value(params.net_outputs)
        step = (params.cur_step_num - 1) % params.batch_num + 1
        if isinstance(loss, float) and not math.isfinite(loss):
            world, where = current_world(), f"epoch: {params.cur_epoch_num} step: {step}"
            if world is not None and world.world_size > 1:
                where = f"rank {world.rank}: {where}"
            hint = "Try a smaller learning rate, or clip the gradients; in float16 also a loss scale"
            raise LossNotFinite(f"the loss is {loss}, training ends here", where=where, hint=hint)
        if self._per_print_times and params.cur_step_num - self._last_print_time >= self._per_print_times:
            self._last_print_time = params.cur_step_num
            # one write with its end: lines of ranks that share a file or a terminal stay whole, also with
            # PYTHONUNBUFFERED
            print(f"epoch: {params.cur_epoch_num} step: {step}, loss is {loss}\n", end="", flush=True)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        super().on_train_epoch_end(run_context)
        params = params_of(run_context)
        if params.get("metrics"):
            print(f"Eval result: epoch {params.cur_epoch_num}, metrics: {params.metrics}", flush=True)


class TimeMonitor(Callback):
    """Prints `Train epoch time: X ms, per step time: Y ms` at the end of each epoch (`Eval ...` in an evaluation).

    data_size  steps to divide by; default: what the run says that an epoch has
    data_time  add ` (data time: Z ms)`: what a step waited for its data (not in sink mode)
    """

    @checked(data_time=flag, data_size=integer(1) | None)
    def __init__(self, data_size: int | None = None, data_time: bool = False) -> None:
        self.data_size, self.data_time = data_size, data_time
        self.epoch_time_s = 0.0  # of the last epoch
        self._waiting_since = 0.0
        # by mode: in `fit` an evaluation lies inside a training epoch
        self._starts: dict[str, float] = {}
        self._waited_s: dict[str, float] = {}

    def epoch_begin(self, run_context: RunContext) -> None:
        mode = params_of(run_context).mode
        self._starts[mode] = self._waiting_since = time.perf_counter()
        self._waited_s[mode] = 0.0

    def step_begin(self, run_context: RunContext) -> None:
        self._waited_s[params_of(run_context).mode] += time.perf_counter() - self._waiting_since

    def step_end(self, run_context: RunContext) -> None:
        self._waiting_since = time.perf_counter()

    def epoch_end(self, run_context: RunContext) -> None:
        params = params_of(run_context)
        self.epoch_time_s = time.perf_counter() - self._starts[params.mode]
        steps = params.get("batch_num") or self.data_size or 1
        epoch_ms, step_ms = self.epoch_time_s * 1e3, self.epoch_time_s * 1e3 / steps
        line = f"{params.mode.title()} epoch time: {epoch_ms:5.3f} ms, per step time: {step_ms:5.3f} ms"
        if self.data_time and not params.dataset_sink_mode:
            line += f" (data time: {self._waited_s[params.mode] * 1e3 / steps:5.3f} ms)"
        print(line, flush=True)


class LambdaCallback(Callback):
    """A callback of functions of the run_context: on_train_begin, ..., on_eval_end, named as Callback's."""

    @checked(**dict.fromkeys(EVENTS, instance(Callable, "A function of run_context") | None))
    def __init__(
        self,
        on_train_epoch_begin: Callable | None = None,
        on_train_epoch_end: Callable | None = None,
        on_train_step_begin: Callable | None = None,
        on_train_step_end: Callable | None = None,
        on_train_begin: Callable | None = None,
        on_train_end: Callable | None = None,
        on_eval_epoch_begin: Callable | None = None,
        on_eval_epoch_end: Callable | None = None,
        on_eval_step_begin: Callable | None = None,
        on_eval_step_end: Callable | None = None,
        on_eval_begin: Callable | None = None,
        on_eval_end: Callable | None = None,
    ) -> None:
        given = locals()
        for name in EVENTS:
            if given[name] is not None:
                setattr(self, name, given[name])


class History(Callback):
    """Each epoch's last loss: `epoch` {"epoch": [1, ...]}, `history` {"net_output": [losses], metric: [values]}."""

    @fitting
    def __init__(self) -> None:
        self.epoch: dict[str, list[int]] = {"epoch": []}
        self.history: dict[str, list[Any]] = {}

    def on_train_begin(self, run_context: RunContext) -> None:
        self.epoch, self.history = {"epoch": []}, {}

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        params = params_of(run_context)
        self.epoch["epoch"].append(params.cur_epoch_num)
        for name, value in {"net_output": loss_value(params.net_outputs), **(params.get("metrics") or {})}.items():
            self.history.setdefault(name, []).append(value)


class SummaryCollector(Callback):
    """MindInsight's collector, which is not part of this package: making one raises NotBuiltYet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        hint = "Use LossMonitor() or History() for losses, ProgressBar() to watch, the event log to see what ranks send"
        raise NotBuiltYet("summaries for MindInsight are not written here", where="SummaryCollector", hint=hint)
