"""Mixed precision: which parts of a network compute in float16, and how the loss is scaled.

| amp_level | network                                          | loss scale of a Model without a loss_scale_manager |
|-----------|--------------------------------------------------|----------------------------------------------------|
| O0        | as it is                                         | none                                               |
| O1        | float16 inside `get_white_list()`: products      | none                                               |
| O2        | float16 but for `get_black_list()`: norms        | dynamic, from 2^24 on                              |
| O3        | float16                                          | none                                               |
| auto      | as O0: MindSpore's choice is for its accelerators, and numpy computes float16 no faster           |

Parameters, gradients, updates and the loss's operands are float32. Networks are changed in place, and their Parameters
keep their names. Levels and lists: MindSpore, amp (auto_mixed_precision); more of it is in `mindspore/_amp.py`.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from .. import nn
from ..base.checks import Check, checked, choice, flag, instance
from ..base.dtypes import BFLOAT16, HALF, as_dtype
from ..base.errors import ArgumentError
from ..nn.cell import Cell
from ..nn.optim.amp import DynamicLossScaleManager, LossScaler
from ..ops import elementwise
from ..ops.machine.primitive import Primitive
from ..ops.machine.registry import PRIMITIVES
from . import arguments

AMP_LEVELS = ("O0", "O1", "O2", "O3", "auto")
# MindSpore's lists: names of nn and of operators, most of them in the catalogue, which opens when a list is asked for
WHITE = "Conv1d Conv2d Conv3d Conv1dTranspose Conv2dTranspose Dense"
WHITE_OPERATORS = "Conv2D Conv3D Conv2DTranspose MatMul BatchMatMul PReLU ReLU"
BLACK = "BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm"


def get_white_list() -> list[type]:
    """Cells and operators that compute in float16 with "O1"."""
    return [*(getattr(nn, name) for name in WHITE.split()), *(PRIMITIVES[name] for name in WHITE_OPERATORS.split())]


def get_black_list() -> list[type]:
    """Cells that compute in float32 with "O2"."""
    return [getattr(nn, name) for name in BLACK.split()]


MANAGER = instance(LossScaler, "A FixedLossScaleManager or DynamicLossScaleManager")


class Float32Outputs(Cell):
    """A network whose float16 results are cast to float32, before they meet a loss. Parameters keep their names."""

    def __init__(self, network: Cell) -> None:
        super().__init__(auto_prefix=False)
        self._network = network

    def construct(self, *inputs: Any) -> Any:
        outputs = self._network(*inputs)
        return tuple(map(_in_float32, outputs)) if isinstance(outputs, (list, tuple)) else _in_float32(outputs)


def _in_float32(value: Any) -> Any:
    return elementwise.cast(value, "float32") if str(getattr(value, "dtype", "")) in HALF else value


@checked("Model", keep_batchnorm_fp32=flag | None)
def in_float16(network: Cell, level: str, keep_batchnorm_fp32: bool | None) -> Cell:
    """The network for a level, set to float16 in place; keep_batchnorm_fp32 makes O2 of O3, or O3 of O2."""
    if level in ("O2", "O3") and keep_batchnorm_fp32 is not None:
        level = "O2" if keep_batchnorm_fp32 else "O3"
    return auto_mixed_precision(network, level)


# ---- a network in two precisions ----


def _read_half(value: Any) -> str:
    dtype = str(as_dtype(value))
    if dtype not in ("float16", BFLOAT16):
        raise ValueError
    return dtype


A_HALF = Check("float16 or bfloat16", _read_half)


@checked(network=arguments.NETWORK, amp_level=choice(*AMP_LEVELS), dtype=A_HALF)
def auto_mixed_precision(network: Cell, amp_level: str = "O0", dtype: Any = "float16") -> Cell:
    """The network for a level of the table above, in float16 or bfloat16. Raises ArgumentError, ArgumentTypeError."""
    if amp_level == "O1":
        halve(network, tuple(get_white_list()), dtype)
    elif amp_level in ("O2", "O3"):
        return all_but(network, tuple(get_black_list()) if amp_level == "O2" else (), dtype)
    return network


def halve(cell: Cell, classes: tuple[type, ...], dtype: str) -> None:
    """Compute in `dtype` inside Cells and operators of these classes, and give float32 on."""
    if isinstance(cell, classes):
        cell.to_float(dtype)
        _give(cell, "float32")
        return
    for name, primitive in cell._primitives.items():
        if isinstance(primitive, classes):
            cell.__dict__[name] = InDtype(primitive, dtype, "float32")
    for child in cell._cells.values():
        if child is not None:
            halve(child, classes, dtype)


def all_but(network: Cell, classes: tuple[type, ...], dtype: str) -> Cell:
    """Compute in `dtype` but for Cells and operators of these classes, which compute in float32."""
    network.to_float(dtype)
    for _, cell in network.cells_and_names():
        if isinstance(cell, classes):
            cell.to_float("float32")
            _give(cell, dtype)
        for name, primitive in cell._primitives.items():
            if isinstance(primitive, classes):
                cell.__dict__[name] = InDtype(primitive, "float32", dtype)
    return Float32Outputs(network)


def _give(cell: Cell, dtype: str) -> None:
    """From now on the Cell's float results are cast."""
    construct = type(cell).construct

    @functools.wraps(construct)
    def cast(*args: Any, **kwargs: Any) -> Any:
        return _in_dtype(construct(cell, *args, **kwargs), dtype)

    cell.__dict__["construct"] = cast


class InDtype:
    """An operator of a Cell whose operands and results are cast; for the rest it is the operator."""

    def __init__(self, primitive: Primitive, dtype: str, result: str) -> None:
        self.primitive, self.dtype, self.result = primitive, dtype, result

    def __call__(self, *args: Any) -> Any:
        return _in_dtype(self.primitive(*(_in_dtype(x, self.dtype) for x in args)), self.result)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.primitive, name)

    def __repr__(self) -> str:
        return repr(self.primitive)


def _in_dtype(value: Any, dtype: str) -> Any:
    """Float tensors, also inside lists and tuples, cast; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(_in_dtype(one, dtype) for one in value)
    own = str(getattr(value, "dtype", ""))
    return elementwise.cast(value, dtype) if own != dtype and own in (*HALF, "float32", "float64") else value


# ---- the loss scale of a Model ----


def with_loss_scale(optimizer: Any, manager: Any, level: str) -> None:
    """Give the optimizer the loss scale manager, or for O2 without one a dynamic one.

    manager  a LossScaler such as FixedLossScaleManager; None: none

    The optimizer divides gradients by its own loss_scale, and a manager that drops updates divides them too; other
    factors than 1 are logged (MindSpore, amp.build_train_network). Raises ArgumentTypeError, ArgumentError.
    """
    (MANAGER | None)("Model", "loss_scale_manager", manager)
    if manager is None and level == "O2":
        manager = optimizer.loss_scaler or DynamicLossScaleManager()
    if manager is None or manager is optimizer.loss_scaler:
        return
    if optimizer.loss_scaler is not None:
        what = f"loss_scale_manager={manager!r}, but the optimizer has {optimizer.loss_scaler!r}"
        raise ArgumentError(what, where="Model", allowed="One of the two")
    # from here on the scaler divides by its scale
    optimizer.loss_scale /= 1 if manager.drop_overflow_update else manager.scale_value
    if (scale := optimizer.loss_scale) != 1:
        text = "gradients are multiplied by %g: with %r the optimizer wants loss_scale=%g"
        wanted = 1 if manager.drop_overflow_update else manager.scale_value
        logging.getLogger("parallel_lab").warning(text, 1 / scale, manager, wanted)
    optimizer.loss_scaler = manager
