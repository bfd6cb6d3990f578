"""Mixed precision for `Model`: which parts of a network compute in float16, and how the loss is scaled.

| amp_level | network                                   | loss scale, if no loss_scale_manager is given |
|-----------|-------------------------------------------|-----------------------------------------------|
| O0        | as it is                                  | none                                          |
| O2        | float16, batch normalisation in float32   | dynamic, from 2^24 on                         |
| O3        | float16                                   | none                                          |
| auto      | as O0: MindSpore's choice is for its accelerators, and numpy computes float16 no faster than float32  |

Parameters, gradients, updates and the loss's operands are float32. Levels: MindSpore, Model(amp_level=).
"""

from __future__ import annotations

from typing import Any

from .. import ops
from ..base.checks import checked, flag, instance
from ..base.dtypes import HALF
from ..base.errors import ArgumentError, NotBuiltYet
from ..nn.cell import Cell
from ..nn.layers.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d
from ..nn.optim.amp import DynamicLossScaleManager, LossScaler

AMP_LEVELS = ("O0", "O1", "O2", "O3", "auto")
_BATCH_NORM = (BatchNorm1d, BatchNorm2d, BatchNorm3d)


MANAGER = instance(LossScaler, "A FixedLossScaleManager or DynamicLossScaleManager")


def check_amp_level(level: str) -> str:
    """The level; "auto" becomes "O0". Raises NotBuiltYet."""
    if level == "O1":
        what = "amp_level='O1', which casts operator by operator, is not available yet"
        raise NotBuiltYet(what, where="Model", hint="Use 'O2', or net.to_float(float16) on the layers you choose")
    return "O0" if level == "auto" else level


class Float32Outputs(Cell):
    """A network whose float16 results are cast to float32, before they meet a loss. Parameters keep their names."""

    def __init__(self, network: Cell) -> None:
        super().__init__(auto_prefix=False)
        self._network = network

    def construct(self, *inputs: Any) -> Any:
        outputs = self._network(*inputs)
        return tuple(map(_in_float32, outputs)) if isinstance(outputs, (list, tuple)) else _in_float32(outputs)


def _in_float32(value: Any) -> Any:
    return ops.cast(value, "float32") if str(getattr(value, "dtype", "")) in HALF else value


@checked("Model", keep_batchnorm_fp32=flag | None)
def in_float16(network: Cell, level: str, keep_batchnorm_fp32: bool | None) -> Cell:
    """The network for a level: set to float16 in place (O2, O3) and with float32 results, or as it is."""
    if level == "O0":
        return network
    network.to_float("float16")
    keep = level == "O2" if keep_batchnorm_fp32 is None else keep_batchnorm_fp32
    if keep:
        for _, cell in network.cells_and_names():
            if isinstance(cell, _BATCH_NORM):
                cell.to_float("float32")
    return Float32Outputs(network)


def with_loss_scale(optimizer: Any, manager: Any, level: str) -> None:
    """Give the optimizer the loss scale manager, or for O2 without one a dynamic one.

    manager  a LossScaler such as FixedLossScaleManager; None: none

    A FixedLossScaleManager(scale, drop_overflow_update=False) wants an optimizer with that loss_scale (MindSpore's
    rule); others divide gradients and want loss_scale=1. Raises ArgumentTypeError, ArgumentError.
    """
    (MANAGER | None)("Model", "loss_scale_manager", manager)
    if manager is None and level == "O2":
        manager = optimizer.loss_scaler or DynamicLossScaleManager()
    if manager is None or manager is optimizer.loss_scaler:
        return
    if optimizer.loss_scaler is not None:
        what = f"loss_scale_manager={manager!r}, but the optimizer has {optimizer.loss_scaler!r}"
        raise ArgumentError(what, where="Model", allowed="One of the two")
    if manager.drop_overflow_update:
        wanted, hint = 1.0, "The manager divides the gradients: omit the optimizer's loss_scale"
    else:
        wanted, hint = manager.scale_value, "Give the optimizer loss_scale= the scale of the manager"
    if optimizer.loss_scale != wanted:
        what = f"the optimizer has loss_scale={optimizer.loss_scale:g}, with {manager!r}"
        raise ArgumentError(what, where="Model", allowed=f"loss_scale={wanted:g}", hint=hint)
    optimizer.loss_scale = 1.0  # from here on the scaler divides; twice would be once too often
    optimizer.loss_scaler = manager
