"""Cells around a network: one training step, also with a scaled loss. Micro-batches are in `feeding.py`.

    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)
    loss = step(x, label)                     # forward, backward, all ranks' gradients (data_parallel), update

They run at once, and inside a function or network that is compiled. Parameters keep the names they have in the network.
Names, arguments and checks: MindSpore, nn.wrap and parallel.nn; the reducer of gradients is in `optim/grad_reducer.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..base.checks import checked, flag, instance
from ..base.errors import ArgumentTypeError, ShapeError, shorten
from ..base.hooks import current_tracer
from ..base.settings.checks import LOCAL_MODES
from ..base.settings.current import get_auto_parallel_context
from ..ops.elementwise import add, cast, div
from ..ops.logic import greater, isfinite, logical_not
from ..ops.reduce import reduce_sum
from ..ops.unary import stop_gradient
from .cell import Cell
from .feeding import NETWORK
from .layers.basic import Identity
from .optim.amp import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell, LossScaler
from .optim.global_norm import all_finite, in_dtype_of
from .optim.grad_reducer import DistributedGradReducer
from .optim.optimizer import Optimizer
from .tensor.autograd import value_and_grad, weighted_sum
from .tensor.functional import GradOperation, HyperMap
from .tensor.parameter import Parameter, ParameterTuple
from .tensor.tensor import Tensor

# ---- one step ----


class TrainOneStepCell(Cell):
    """One training step: (inputs of the network) -> its loss, after the optimizer has changed the parameters.

    network      gives the loss: `WithLossCell(net, loss)`, or a Cell that computes it itself
    optimizer    its parameters are differentiated for
    sens         the gradient of the loss itself, 1 by default: gradients are multiplied by it (undo: an optimizer's
                 loss_scale)
    return_grad  return (loss, {parameter name: gradient}) instead

    In data_parallel and hybrid_parallel mode the gradients are added up over the ranks before the update
    (`grad_reducer`). The Cell has `network`, `optimizer`, `weights`, `grad` and `grad_reducer` for subclasses that
    write their own `construct`.
    """

    @checked(network=NETWORK, optimizer=instance(Optimizer, "An optimizer, such as nn.Momentum(...)"), return_grad=flag)
    def __init__(
        self, network: Cell, optimizer: Optimizer, sens: float | None = None, return_grad: bool = False
    ) -> None:
        super().__init__(auto_prefix=False)
        sens = 1.0 if sens is None else sens
        if isinstance(sens, bool) or not isinstance(sens, (int, float, Tensor)):
            raise ArgumentTypeError(f"sens={shorten(sens)}", where=type(self).__name__, allowed="A number")
        self.network, self.optimizer, self.sens = network, optimizer, sens
        self.return_grad = return_grad
        # not registered a second time under the optimizer's order: the network has them
        self.__dict__["weights"] = ParameterTuple(optimizer.parameters)
        self.weights.optimizer = optimizer
        self.grad = GradOperation(get_by_list=True, sens_param=True)
        reduces = get_auto_parallel_context("parallel_mode") in LOCAL_MODES
        self.reducer_flag = reduces
        self.grad_reducer = DistributedGradReducer(optimizer.parameters) if reduces else Identity()

    def construct(self, *inputs: Any) -> Any:
        scaler = self.optimizer.loss_scaler
        # with a loss scale an overflow is what the scaler looks for, not a surprise
        with nullcontext() if scaler is None else np.errstate(over="ignore", invalid="ignore"):
            loss, grads = loss_and_gradients(self.network, self.weights, inputs, self.sens, scaler)
            grads = self.grad_reducer(grads)
        self.optimizer(grads)
        if not self.return_grad:
            return loss
        return loss, {p.name: g for p, g in zip(self.weights, grads, strict=True)}


def loss_and_gradients(
    network: Callable, weights: Iterable[Parameter], inputs: Iterable[Any], sens: Any, scaler: LossScaler | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """(result, gradients of sens times the loss for the weights), all results counted. scaler: scales the loss."""

    def weighted(*args: Any) -> tuple[Any, Any]:
        result = network(*args)
        total = weighted_sum(result, sens)
        return (total if scaler is None else scaler.scale(total)), result

    (_, result), grads = value_and_grad(weighted, None, list(weights), has_aux=True)(*inputs)
    return result, grads


class TrainOneStepWithLossScaleCell(TrainOneStepCell):
    """One training step with a scaled loss, for networks in float16: (inputs) -> (loss, overflow, scale).

    scale_sense  a Tensor of shape () or (1,): the scale; or `DynamicLossScaleUpdateCell` / `FixedLossScaleUpdateCell`,
                 which adjusts it

    A step whose gradients are not finite changes no parameter but `scale_sense`, which holds the scale. A subclass may
    write its own `construct` with `start_overflow_check`, `get_overflow_status` and `process_loss_scale`, whose result
    may stand in `if not overflow:` before the optimizer, also where it is compiled: the optimizer looks at it then.
    """

    def __init__(self, network: Cell, optimizer: Optimizer, scale_sense: Any) -> None:
        super().__init__(network, optimizer)
        self.hyper_map = HyperMap()
        self.is_distributed = get_auto_parallel_context("parallel_mode") != "stand_alone"
        self.loss_scaling_manager: DynamicLossScaleUpdateCell | FixedLossScaleUpdateCell | None = None
        if isinstance(scale_sense, (DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell)):
            self.loss_scaling_manager = scale_sense
            scale_sense = Tensor(np.float32(scale_sense.get_loss_scale()))
        scale = Tensor(self._checked(scale_sense).astype(np.float32))
        self.scale_sense = Parameter(scale, "scale_sense", requires_grad=False)

    def set_sense_scale(self, sens: Tensor) -> None:
        """Use this scale from now on.  sens: () or (1,). Raises ArgumentTypeError, ShapeError."""
        self.scale_sense.set_data(np.broadcast_to(self._checked(sens), self.scale_sense.shape))

    def _checked(self, sens: Any) -> np.ndarray:
        where = type(self).__name__
        if not isinstance(sens, Tensor):
            allowed = "A Tensor of shape () or (1,), or an nn.DynamicLossScaleUpdateCell"
            raise ArgumentTypeError(f"scale_sense={shorten(sens)}", where=where, allowed=allowed)
        if sens.shape not in ((), (1,)):
            raise ShapeError(f"scale_sense of shape {sens.shape}", where=where, allowed="Shape () or (1,)")
        return sens.asnumpy().reshape(())

    def start_overflow_check(self, pre_cond: Any, compute_input: Any) -> tuple[bool, Any]:
        """(status, compute_input) for `get_overflow_status`: nothing has overflowed yet; for a Parameter its value."""
        return False, stop_gradient(compute_input) if isinstance(compute_input, Parameter) else compute_input

    def get_overflow_status(self, compute_input: Any, compute_output: Any) -> Any:
        """Whether a gradient in `compute_output` is infinite or not a number."""
        if current_tracer.get() is None:
            return Tensor(bool(compute_input) or not all_finite(compute_output))
        given = compute_output if isinstance(compute_output, (tuple, list)) else (compute_output,)
        bad = (reduce_sum(cast(logical_not(isfinite(g)), "float32")) for g in given)
        return greater(functools.reduce(add, bad), 0.0)

    def process_loss_scale(self, overflow: Any) -> Any:
        """Tell the scale what happened, and return it: a Tensor with a bool."""
        tracer = current_tracer.get()
        if self.loss_scaling_manager is not None:
            return self.loss_scaling_manager(self.scale_sense, overflow)
        return overflow if tracer is None else tracer.unless(overflow)

    def construct(self, *inputs: Any) -> tuple[Any, Any, Tensor]:
        status, scale = self.start_overflow_check(None, self.scale_sense)
        # an overflow is expected here: it lowers the scale
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            loss, grads = loss_and_gradients(self.network, self.weights, inputs, scale)
            # added up over the ranks first: what is not finite on one is so on all, and all skip the step
            grads = self.grad_reducer(grads)
        overflow = self.process_loss_scale(self.get_overflow_status(status, grads))
        if not overflow:
            self.optimizer(tuple(div(g, in_dtype_of(g, scale)) for g in grads))
        return loss, overflow, scale


# ---- gradients, evaluation ----
