"""The steps that `Model` takes: an object each for training, evaluation and prediction, in any parallel mode.

    step = make_train_step(net, nn.MSELoss(), optimizer)
    loss = step(x, y)

How a step runs follows from the parallel mode and from whether this process is a rank of a world:

    stand_alone                     at once, with the tape
    data_parallel, hybrid_parallel  every rank its own part of the batch: compiled, gradients summed by the plan; a step
                                    that adds up gradients itself runs at once, or with a DistributedGradReducer
    semi_auto_parallel, auto_parallel   compiled, operators split by their strategies

A process that is not a rank, with a device_num above 1: compiled for so many and not run (`Rehearsal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.dtypes import plain_array
from ..base.errors import ContextConflictError, TracedCommunication, shorten
from ..base.hooks import current_step, current_world
from ..base.settings.checks import LOCAL_MODES, SHARDED_MODES
from ..base.settings.config import ParallelConfig
from ..base.settings.current import frozen, frozen_for_run
from ..base.settings.run_checks import run_checks
from ..graph.compile_task import check_built
from ..graph.compiler import Compiled
from ..graph.plan import Plan
from ..layout.slices import gather_full
from ..layout.tensor_layout import TensorLayout
from ..nn.cell import Cell
from ..nn.feeding import GradAccumulation, WithLossCell, check_outputs
from ..nn.optim.grad_reducer import DistributedGradReducer
from ..nn.optim.optimizer import check_grouping_in_context
from ..nn.tensor.autograd import value_and_grad
from ..nn.tensor.initial_slices import is_on_another_stage
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import RankTensor, Tensor
from ..nn.wrap import TrainOneStepCell
from ..ops.machine.state import StepNumber
from . import finite
from .agreement import agree_on_start, broadcast_parameters, warn_of_other_starts
from .auto_parallel import AutoParallel
from .compiled import CompiledFunction


def _unwrapped(network: Callable) -> tuple[Callable, dict[str, Any], str]:
    """(network, options of the compiler, parallel mode): those of an AutoParallel, else the context's."""
    if isinstance(network, AutoParallel):
        settings = network.settings()
        return network.network, settings, settings["parallel_mode"]
    return network, {}, frozen().parallel_mode


def _check_world(mode: str, what: str) -> Any:
    """The world, or None for one device. ContextError: a device_num in stand_alone; ContextConflictError (also a
    RuntimeError): a full batch in a mode that splits no inputs.
    """
    world, config = current_world(), frozen()
    if mode == "stand_alone":
        frozen_for_run()
    check_full_batch(replace(config, parallel_mode=mode), what)
    return world


def check_full_batch(config: ParallelConfig, where: str) -> None:
    """Raise ContextConflictError for a full batch in a mode that splits no inputs (MindSpore, _check_full_batch)."""
    if config.parallel_mode not in SHARDED_MODES and config.dataset_strategy == "full_batch":
        setting = f"full_batch=True (dataset_strategy='full_batch') with parallel_mode={config.parallel_mode!r}"
        allowed = f"One of {', '.join(map(repr, SHARDED_MODES))}: elsewhere every rank feeds its own rows"
        raise ContextConflictError(setting, where=where, allowed=allowed)


def _rehearses(mode: str) -> bool:
    """Whether steps are for several devices, and this process is not one of their ranks."""
    return current_world() is None and mode != "stand_alone" and frozen().device_num > 1


def _splits(mode: str, what: str) -> bool:
    """Whether `what` is compiled: for ranks, in a mode that splits operators. Errors of `_check_world`."""
    world = _check_world(mode, what)
    return (world is not None or _rehearses(mode)) and mode in SHARDED_MODES


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [value if isinstance(value, Tensor) else Tensor(value) for value in values]


def _as_tuple(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


class _Step:
    """What training, evaluation and prediction have in common."""

    network: Callable
    _compiled: CompiledFunction | None = None

    def prepare(self, *inputs: Any) -> Plan | None:
        """Compile for inputs of this shape without running; the plan, or None where steps run at once."""
        if self._compiled is not None:
            self._compiled.prepare(*inputs)
        return self.plan

    @property
    def plan(self) -> Plan | None:
        """The plan that ran last, or None if nothing was compiled."""
        return self._compiled.plan if self._compiled is not None else None

    @property
    def compiled(self) -> Compiled | None:
        """Plan, passes and objects of the last program."""
        return self._compiled.last.compiled if self._compiled is not None and self._compiled.last is not None else None


def _in_parts(network: Any, loss_fn: Any, optimizer: Any, parts: int) -> Cell:
    """The network with its loss, accumulating gradients over `parts` parts of the batch (grad_accumulation_step)."""
    if isinstance(network, (GradAccumulation, TrainOneStepCell)) or optimizer is None or not isinstance(network, Cell):
        what = f"grad_accumulation_step={parts} with {shorten(network)}"
        hint = f"Set it to 1, and differentiate nn.GradAccumulation(net, {parts}) in the step itself"
        allowed = "A network, a loss and an optimizer given to Model"
        raise ContextConflictError(what, where="training", allowed=allowed, hint=hint)
    return GradAccumulation(network if loss_fn is None else WithLossCell(network, loss_fn), parts)


class TrainStep(_Step):
    """A training step on a batch's columns: forward, gradients, their sum over ranks, update; the loss shown.

    network, loss_fn, optimizer   of `Model`; without loss_fn the network gives the loss, without optimizer it is a step
    """

    def __init__(self, network: Callable, loss_fn: Callable | None = None, optimizer: Any = None) -> None:
        self.network, settings, self.mode = _unwrapped(network)
        self.loss_fn, self.optimizer = loss_fn, optimizer
        self.world = _check_world(self.mode, "training")
        parts = settings.get("grad_accumulation_step", frozen().grad_accumulation_step)
        if parts > 1:
            self.network, self.loss_fn = _in_parts(self.network, loss_fn, optimizer, parts), None
            network, loss_fn = self.network, None
        self._first = True
        self._scales: bool | None = None  # whether the network looks for overflow itself
        self._at_once: Callable | None = None
        alone = self.mode == "stand_alone" or (self.world is None and self.mode not in SHARDED_MODES)
        if alone and not _rehearses(self.mode):
            check_built(frozen(), self.network)
            if (stages := frozen().pipeline_stages) > 1:
                what = f"pipeline_stages={stages} with parallel_mode={self.mode!r}"
                raise ContextConflictError(
                    what, where="training", allowed="semi_auto_parallel, on ranks that are started"
                )
            if optimizer is not None:
                check_grouping_in_context(optimizer)
            self._at_once = self._eager_step(reduce=False)
            return
        if optimizer is None:
            whole: Callable = self.network
        elif loss_fn is None or getattr(optimizer, "has_own_step", False):
            self.network = self.network if loss_fn is None else WithLossCell(self.network, loss_fn)
            is_step = isinstance(self.network, TrainOneStepCell)
            whole = self.network if is_step else TrainOneStepCell(self.network, optimizer)
        else:
            whole, settings = self.network, {**settings, "loss": loss_fn, "optimizer": optimizer}
        self._compiled = CompiledFunction(whole, settings, rehearses=_rehearses(self.mode))

    def __call__(self, *columns: Any) -> Any:
        if self._first:
            self._before_first_step()
        if self._at_once is not None:
            return self._run_at_once(*columns)
        if not self._first:
            return self._compiled(*columns)
        self._first = False
        try:
            return self._compiled(*columns)
        except TracedCommunication:
            if self.mode in SHARDED_MODES:
                raise
            # gradients that the learner adds up by hand are not those of a plan: each rank runs what was written
            self._compiled, self._at_once = None, self._eager_step(reduce=True)
            return self._run_at_once(*columns)

    def _run_at_once(self, *columns: Any) -> Any:
        """A step that is not compiled; what goes in and comes out is looked at, where that is wanted (`finite.py`)."""
        optimizer = self.optimizer or getattr(self.network, "optimizer", None)
        if optimizer is None or not finite.wanted(optimizer):
            return self._at_once(*columns)
        if self._scales is None:
            self._scales = finite.scales_its_loss(self.network)
        if self._scales:
            return self._at_once(*columns)
        step = optimizer.steps_taken
        for number, column in enumerate(columns):
            finite.check(f"input {number}", column, step)
        loss = self._at_once(*columns)
        if isinstance(loss, Tensor):
            finite.check("the loss", loss, step)
        finite.check_all("parameter", ((p.name, p) for p in optimizer.parameters if not is_on_another_stage(p)), step)
        return loss

    def _before_first_step(self) -> None:
        """With parameter_broadcast all ranks start with rank 0's parameters; else they must be equal."""
        world = self.world
        if world is None or world.world_size == 1 or self.mode == "stand_alone":
            return
        if frozen().parameter_broadcast:
            broadcast_parameters(self._parameters(), world)
        elif self.mode in LOCAL_MODES and (how := run_checks().on_difference) != "off":
            if how == "warning":
                warn_of_other_starts(self._parameters(), world)
            else:
                # what is trained is compared with the settings that change it, in `replicas.py`
                frozen_ones = [p for p in self._parameters() if not (p.requires_grad or p.layerwise_parallel)]
                agree_on_start(frozen_ones, world, broadcast=False)

    def _parameters(self) -> list[Parameter]:
        cells = [c for c in (self.network, self.loss_fn) if isinstance(c, Cell)]
        return list({id(p): p for c in cells for p in c.get_parameters()}.values())

    def _eager_step(self, *, reduce: bool) -> Callable:
        network, loss_fn, optimizer = self.network, self.loss_fn, self.optimizer
        if optimizer is None:
            return network
        if loss_fn is None and isinstance(network, TrainOneStepCell):
            return network
        reducer = DistributedGradReducer(optimizer.parameters) if reduce else (lambda grads: grads)
        scaler = optimizer.loss_scaler

        def forward(*columns: Any) -> tuple[Any, Any]:
            loss = network(*columns) if loss_fn is None else loss_fn(check_outputs(network(*columns[:-1])), columns[-1])
            return (loss if scaler is None else scaler.scale(loss)), loss

        gradient = value_and_grad(forward, None, optimizer.parameters, has_aux=True)

        def step(*columns: Any) -> Any:
            # with a loss scale an overflow is what the scaler looks for, not a surprise
            with nullcontext() if scaler is None else np.errstate(over="ignore", invalid="ignore"):
                token = current_step.set(StepNumber(optimizer.steps_taken))
                try:
                    (_, loss), grads = gradient(*_tensors(columns))
                finally:
                    current_step.reset(token)
            optimizer(reducer(grads))
            return loss

        return step


class EvalStep(_Step):
    """(loss, outputs, label) of one batch: of this rank's rows, in modes that split operators of the whole."""

    def __init__(self, network: Callable, loss_fn: Callable | None = None) -> None:
        self.network, settings, self.mode = _unwrapped(network)
        self.loss_fn = loss_fn
        if _splits(self.mode, "evaluation"):
            # metrics are every rank's: the last pipeline stage tells all others what it predicts
            self._settings = {**settings, "pipeline_result_broadcast": True}
            self._compiled = CompiledFunction(self._evaluate, self._settings, rehearses=_rehearses(self.mode))

    def _evaluate(self, *columns: Any) -> tuple[Any, tuple[Any, ...]]:
        out = self.network(*columns[:-1])
        return (None if self.loss_fn is None else self.loss_fn(out, columns[-1])), _as_tuple(out)

    def __call__(self, *columns: Any) -> tuple[Any, tuple[Any, ...], Any]:
        label = columns[-1]
        if self._compiled is None:
            return *self._evaluate(*_tensors(columns)), label
        if self.loss_fn is None:
            # a program does not take a label that nothing reads
            loss, outputs = None, self._predict(*columns[:-1])
        else:
            loss, outputs = self._compiled(*columns)
        labels = plain_array(label.asnumpy() if isinstance(label, Tensor) else label, where="label")
        return loss, tuple(o.full() for o in outputs), Tensor(self._whole(labels))

    def _predict(self, *inputs: Any) -> tuple[Any, ...]:
        if not hasattr(self, "_forward"):
            self._forward = CompiledFunction(self.network, self._settings, rehearses=_rehearses(self.mode))
        return _as_tuple(self._forward(*inputs))

    def _whole(self, label: np.ndarray) -> np.ndarray:
        """The labels of the whole batch, from this rank's; zeros as the other results are, if nothing was run."""
        plan, world = self._compiled.plan, current_world()
        if self.loss_fn is not None and plan is not None:
            value = plan.value(plan.data_inputs[-1].name)
            if world is None and label.shape != value.shape:
                return np.zeros(value.shape, label.dtype)
            return label if label.shape == value.shape else gather_full(label, value.shape, value.layout, tag="labels")
        strategy = frozen().dataset_strategy
        if strategy == "full_batch":
            return label
        if world is None:
            return np.zeros((len(label) * frozen().device_num, *label.shape[1:]), label.dtype)
        return np.asarray(world.comm.all_gather(label, dim=0, tag="labels"))


class PredictStep(_Step):
    """The network's outputs, whole on every rank in modes that split operators."""

    def __init__(self, network: Callable) -> None:
        self.network, settings, self.mode = _unwrapped(network)
        if _splits(self.mode, "prediction"):
            self._compiled = CompiledFunction(self.network, settings, rehearses=_rehearses(self.mode))

    def __call__(self, *inputs: Any) -> Any:
        if self._compiled is None:
            return self.network(*_tensors(inputs))
        return _full(self._compiled(*inputs))


def _full(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(_full(f) for f in result)
    return result.full() if isinstance(result, RankTensor) else result


def layouts(step: _Step) -> dict[str, TensorLayout]:
    """{parameter: its layout} in the program that a step ran or prepared last; empty where nothing was compiled."""
    plan = step.plan
    world = current_world()
    held = plan is not None and (
        plan.parameters if world is None else [p for p in plan.parameters if plan.held_by(p.name, world.rank)]
    )
    return {parameter.name: plan.value(parameter.name).layout for parameter in held or ()}


make_train_step, make_eval_step, make_predict_step = TrainStep, EvalStep, PredictStep
