"""Mixed precision by a script's own lists, and a training step as a Cell. The levels are in `train/mixed.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import nn, ops
from ..base.checks import Check, checked, choice
from ..base.errors import ArgumentError, shorten
from ..base.hooks import current_tracer
from ..nn.cell import Cell
from ..nn.feeding import WithLossCell
from ..nn.optim.amp import GOOD_STEPS, LOSS_SCALE, DynamicLossScaleManager, unscaled
from ..nn.optim.global_norm import in_dtype_of
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor
from ..nn.wrap import TrainOneStepCell
from ..ops.elementwise import a_dtype
from ..ops.machine.primitive import Primitive
from ..ops.spellings import tensor_operand
from ..train import arguments
from ..train.mixed import A_HALF, AMP_LEVELS, MANAGER, all_but, get_black_list, get_white_list, halve, in_float16

AMP_WHITE_LIST, AMP_BLACK_LIST = get_white_list(), get_black_list()


def _read_classes(value: Any) -> tuple[type, ...]:
    if not isinstance(value, list) or not all(isinstance(one, type) for one in value):
        raise TypeError
    if not all(issubclass(one, (Cell, Primitive)) for one in value):
        raise TypeError
    return tuple(value)


CLASSES = Check("A list of classes of Cells and operators, such as get_white_list()", _read_classes) | None


@checked(network=arguments.NETWORK, white_list=CLASSES, black_list=CLASSES, dtype=A_HALF)
def custom_mixed_precision(
    network: Cell, *, white_list: list[type] | None = None, black_list: list[type] | None = None, dtype: Any = "float16"
) -> Cell:
    """The network with float16 (or bfloat16) in the Cells and operators of one list, or in all but those of the other.

    Raises ArgumentError where both lists or none are given, ArgumentTypeError.
    """
    if (white_list is None) == (black_list is None):
        what = f"white_list={shorten(white_list)} and black_list={shorten(black_list)}"
        raise ArgumentError(what, where="custom_mixed_precision", allowed="One of the two")
    if white_list is None:
        return all_but(network, tuple(black_list), dtype)
    halve(network, tuple(white_list), dtype)
    return network


@checked(network=arguments.NETWORK, optimizer=arguments.OPTIMIZER, level=choice(*AMP_LEVELS))
def build_train_network(
    network: Cell,
    optimizer: Any,
    loss_fn: Callable | None = None,
    level: str = "O0",
    boost_level: str = "O0",
    **kwargs: Any,
) -> Cell:
    """A training step as a Cell: the network for a level, its loss, the optimizer, and a loss scale if one is wanted.

    loss_fn  a Cell or function of (outputs, label); None: the network gives the loss

    Keywords: loss_scale_manager (for O2 a dynamic one if none is given), keep_batchnorm_fp32, cast_model_type (float16
    or float32, instead of the level's). Raises ArgumentError (a ValueError) for others, ArgumentTypeError.
    """
    where = "build_train_network"
    arguments.check_boost(boost_level)
    accepted = ("loss_scale_manager", "keep_batchnorm_fp32", "cast_model_type")
    for name in kwargs:
        if name not in accepted:
            raise ArgumentError(f"keyword {name!r}", where=where, allowed=f"Keywords: {', '.join(accepted)}")
    (arguments.LOSS | None)(where, "loss_fn", loss_fn)
    manager = (MANAGER | None)(where, "loss_scale_manager", kwargs.get("loss_scale_manager"))
    if manager is None and level == "O2" and "loss_scale_manager" not in kwargs:
        manager = DynamicLossScaleManager()
    if kwargs.get("cast_model_type") is not None:
        dtype = str(a_dtype(where, "cast_model_type", kwargs["cast_model_type"]))
        level = "O0" if dtype == "float32" else "O2" if level == "O0" else level
    network = in_float16(network, level, kwargs.get("keep_batchnorm_fp32"))
    whole = network if loss_fn is None else WithLossCell(network, loss_fn)
    update = None if manager is None else manager.get_update_cell()
    if update is not None:
        return nn.TrainOneStepWithLossScaleCell(whole, optimizer, update).set_train()
    return TrainOneStepCell(whole, optimizer, 1.0 if manager is None else manager.get_loss_scale()).set_train()


class _Held(nn.LossScaler):
    """A loss scaler whose scale is a Parameter, scale_value: () float32."""

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self.scale_value = Parameter(Tensor(self.scale_value, "float32"), "scale_value", requires_grad=False)

    def scale(self, inputs: Any) -> Any:
        """The loss (or several tensors) times the scale."""
        if isinstance(inputs, (tuple, list)):
            return super().scale(inputs)
        return ops.mul(inputs, in_dtype_of(inputs, self.scale_value))

    def unscale(self, inputs: Any) -> Any:
        """Gradients (a tensor, or several as a tuple) divided by the scale."""
        if isinstance(inputs, (tuple, list)):
            return super().unscale(inputs)
        return unscaled(tensor_operand("unscale", "inputs", inputs), self.scale_value)

    def scalar_state(self) -> dict[str, float]:
        return {LOSS_SCALE: float(self.scale_value.asnumpy())}

    def take(self, states: dict[str, Any]) -> None:
        self.scale_value.set_data(float(states[LOSS_SCALE]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([f'scale_value={self.scale_value.asnumpy():g}', *self._settings()])})"


class StaticLossScaler(_Held, nn.StaticLossScaler):
    """`nn.StaticLossScaler` whose scale is a Parameter, scale_value: () float32."""

    def adjust(self, grads_finite: Any) -> bool:
        """False: the scale stays."""
        return False


class DynamicLossScaler(_Held, nn.DynamicLossScaler):
    """`nn.DynamicLossScaler` whose state are Parameters, scale_value: () float32, counter: () int32; in a function that
    is compiled they are values of the program.
    """

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self.counter = Parameter(Tensor(0, "int32"), "counter", requires_grad=False)

    def scalar_state(self) -> dict[str, float]:
        return {**_Held.scalar_state(self), GOOD_STEPS: float(self.counter.asnumpy())}

    def take(self, states: dict[str, Any]) -> None:
        _Held.take(self, states)
        self.counter.set_data(int(states[GOOD_STEPS]))

    def adjust(self, grads_finite: Any) -> bool:
        """Tell the scaler whether a step's gradients were finite. Returns True."""
        now = {LOSS_SCALE: self.scale_value * 1.0, GOOD_STEPS: ops.cast(self.counter, "float32")}
        finite = Tensor(grads_finite, "bool") if isinstance(grads_finite, (bool, np.bool_)) else grads_finite
        with np.errstate(over="ignore"):  # a scale that has reached the end of float32 is kept
            new = self.update_scalars(now, ops.cast(ops.reshape(finite, ()), "bool"))
        ops.assign(self.scale_value, new[LOSS_SCALE])
        ops.assign(self.counter, ops.cast(new[GOOD_STEPS], "int32"))
        return True


def all_finite(inputs: Any, status: Any = None) -> Any:
    """`nn.all_finite` as a Tensor, and in a network that is compiled an operator on gradients.  -> () bool."""
    if current_tracer.get() is None:
        return Tensor(nn.all_finite(inputs, status))
    given = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    return ops.logical_not(nn.TrainOneStepWithLossScaleCell.get_overflow_status(None, False, given))


def init_status() -> Tensor:
    """Zeros, (8,): overflow is looked for in the gradients themselves (`all_finite`), without a register."""
    return Tensor(np.zeros(8, np.float32))
