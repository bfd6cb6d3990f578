"""Cells around a network: its gradients, its evaluation, a step with a scaled loss, interleaved micro-batches, reducers
and managers that scripts for MindSpore name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from ... import ops
from ...base.checks import checked, fitting, flag, instance, integer, kept
from ...base.dtypes import kind_of
from ...base.errors import ArgumentTypeError, ShapeError, shorten
from ...base.hooks import current_tracer
from ...base.settings.current import get_auto_parallel_context
from ...nn.cell import Cell
from ...nn.feeding import NETWORK, GradAccumulation, MicroBatches, PipelineCell, WithLossCell, check_compiled
from ...nn.optim.amp import DynamicLossScaleUpdateCell, LossScaleManager, LossScaler, UpdateCell, unscaled
from ...nn.optim.grad_reducer import parameter_tuple
from ...nn.optim.optimizer import Optimizer
from ...nn.optim.parameter_groups import one_gradient_each
from ...nn.tensor.arithmetic import Arithmetic
from ...nn.tensor.functional import GradOperation
from ...nn.tensor.parameter import Parameter, ParameterTuple
from ...nn.tensor.tensor import Tensor
from ...nn.wrap import TrainOneStepCell, loss_and_gradients
from ...ops.elementwise import add, cast, div
from ...ops.logic import greater, isfinite, logical_not
from ...ops.reduce import reduce_sum
from ...ops.unary import stop_gradient
from .clipping import all_finite
from .forms import HyperMap


class StaticLossScaler(LossScaler):
    """A scale that stays as it is; a step whose gradients are not finite is skipped."""


class FixedLossScaleUpdateCell(UpdateCell, StaticLossScaler):
    """Called with (loss_scale, overflow) after a step: returns overflow; the scale stays."""

    @fitting
    def __init__(self, loss_scale_value: float) -> None:
        super().__init__(self._scale("loss_scale_value", loss_scale_value))


class FixedLossScaleManager(LossScaleManager, StaticLossScaler):
    """A scale that stays. drop_overflow_update=False: update also with gradients that are not finite."""

    @kept(drop_overflow_update=flag)
    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        super().__init__(self._scale("loss_scale", loss_scale))

    def get_update_cell(self) -> FixedLossScaleUpdateCell | None:
        """What a training loop calls with (loss_scale, overflow); None if steps are never skipped."""
        return FixedLossScaleUpdateCell(self.scale_value) if self.drop_overflow_update else None


class PipelineGradReducer(Cell):
    """Gradients that a pipeline has accumulated, ready for the optimizer: a tuple -> a tuple.

    parameters   those the gradients are of, in their order
    scale_sense  gradients are divided by it
    opt_shard    whether the optimizer is split among the ranks; None: as the context says

    The sum over micro-batches and ranks is what `value_and_grad` gives, so gradients pass through. In stages
    (pipeline_stages above 1) it belongs into a compiled step: raises ContextConflictError outside of one.
    """

    @checked(opt_shard=flag | None)
    def __init__(
        self, parameters: Iterable[Parameter], scale_sense: float = 1.0, opt_shard: bool | None = None
    ) -> None:
        super().__init__(auto_prefix=False)
        where = "PipelineGradReducer"
        if isinstance(scale_sense, bool) or not isinstance(scale_sense, (int, float, Arithmetic)):
            raise ArgumentTypeError(f"scale_sense={shorten(scale_sense)}", where=where, allowed="A number above 0")
        self.__dict__["accu_grads"] = parameter_tuple(where, parameters)
        self.scale_sense, self.opt_shard = scale_sense, opt_shard

    def construct(self, grads: Any) -> tuple[Any, ...]:
        where = "PipelineGradReducer"
        grads = one_gradient_each(where, grads, self.accu_grads)
        check_compiled(where)
        if isinstance(self.scale_sense, (int, float)) and self.scale_sense == 1:
            return tuple(grads)
        return tuple(div(g, self.scale_sense) for g in grads)


def _weights_of(network: Any) -> tuple[Parameter, ...]:
    return tuple(network.trainable_params()) if hasattr(network, "trainable_params") else ()


class ParameterUpdate(Cell):
    """Gives a Parameter a new value when it is called.  x: shape and dtype of the parameter -> x."""

    @checked(param=instance(Parameter, "A Parameter"))
    def __init__(self, param: Parameter) -> None:
        super().__init__(auto_prefix=False)
        self._param = param

    def construct(self, x: Any) -> Any:
        ops.assign(self._param, x)
        return x


class WithGradCell(Cell):
    """Gradients of a network's trainable parameters: (inputs, label) -> a tuple; loss_fn None: the network is the loss.

    sens  a number or tensor: the gradient of the loss itself; None: 1
    """

    @checked(network=NETWORK, loss_fn=NETWORK | None)
    def __init__(self, network: Cell, loss_fn: Any = None, sens: Any = None) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss_fn, self.sens = network, loss_fn, sens
        self.network_with_loss = network if loss_fn is None else WithLossCell(network, loss_fn)
        self.__dict__["weights"] = ParameterTuple(_weights_of(network))

    def construct(self, *inputs: Any) -> tuple[Any, ...]:
        return loss_and_gradients(self.network_with_loss, self.weights, inputs, self.sens)[1]


class WithEvalCell(Cell):
    """For evaluation: (data, label) -> (loss, outputs, label). add_cast_fp32: loss in float32 of float16 outputs."""

    @checked(network=NETWORK, loss_fn=NETWORK, add_cast_fp32=flag)
    def __init__(self, network: Cell, loss_fn: Any, add_cast_fp32: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self._network, self._loss_fn, self.add_cast_fp32 = network, loss_fn, add_cast_fp32

    def construct(self, data: Any, label: Any) -> tuple[Any, Any, Any]:
        outputs = self._network(data)
        if self.add_cast_fp32:
            outputs = ops.cast(outputs, "float32")
            label = ops.cast(label, "float32") if kind_of(label.dtype) == "f" else label
        return self._loss_fn(outputs, label), outputs, label


class ForwardValueAndGrad(Cell):
    """A network's result and its gradients: (inputs[, sens]) -> (result, gradients).

    weights      Parameters to differentiate for (with get_by_list)
    get_all, get_by_list, sens_param  as in GradOperation
    """

    @checked(network=NETWORK)
    @kept(get_all=flag, get_by_list=flag, sens_param=flag)
    def __init__(
        self,
        network: Any,
        weights: Any = None,
        get_all: bool = False,
        get_by_list: bool = False,
        sens_param: bool = False,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        weights = _weights_of(network) if weights is None else weights
        self.__dict__["weights"] = ParameterTuple([weights] if isinstance(weights, Parameter) else weights)
        self.grad = GradOperation(get_all, get_by_list, sens_param)

    def construct(self, *inputs: Any) -> tuple[Any, Any]:
        return self.grad.with_value(self.network, list(self.weights) if self.get_by_list else None, inputs)


GradAccumulationCell = GradAccumulation


class MicroBatchInterleaved(MicroBatches):
    """The results of `interleave_num` parts of a batch, added: one part's messages can travel while another computes.

    Divide the loss by interleave_num where a mean is wanted. Checks as GradAccumulation.
    """

    @kept(interleave_num=integer(1))
    def __init__(self, network: Cell, interleave_num: int = 2) -> None:
        super().__init__(network, interleave_num)


Pipeline = PipelineCell


class _MicroBatch(Cell):
    """Its network's parts of a batch: (number, inputs) -> a tuple. `strided_slice` is the network's operator."""

    def __init__(self, feeding: MicroBatches) -> None:
        super().__init__(auto_prefix=False)
        self.micro_size, self.strided_slice, self.part = feeding._count, feeding._rows, feeding._part

    def construct(self, i: int, *inputs: Any) -> tuple[Any, ...]:
        return tuple(self.part(x, i) for x in inputs)


def _micro_inputs(cell: PipelineCell) -> tuple[Cell, ...]:
    """The Cells that take a micro-batch's part of the inputs, one each: (its number, inputs) -> the part."""
    return tuple(_MicroBatch(cell) for _ in range(cell._count))


PipelineCell.micro_inputs = property(_micro_inputs)


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
            self.optimizer(tuple(unscaled(g, scale) for g in grads))
        return loss, overflow, scale
