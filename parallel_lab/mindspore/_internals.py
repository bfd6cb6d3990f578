"""Cells and operators with an underscore that scripts import from MindSpore's own modules.

from mindspore.common.api import _cell_graph_executor       # _executor.py
from mindspore.parallel._utils import _get_device_num       # _context.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..base.checks import checked, flag, instance, integer, kept
from ..catalog.nn.recurrent import _Recurrent
from ..nn.cell import Cell

_CELL = instance(Cell, "A Cell")


class _VirtualDatasetCell(Cell):
    """Its network: that inputs come from a dataset, and how they are split, the parallel context says."""

    @checked(backbone=_CELL)
    def __init__(self, backbone: Cell) -> None:
        super().__init__(auto_prefix=False)
        self._backbone = backbone
        self._virtual_dataset = _VirtualDataset()

    def construct(self, *inputs: Any) -> Any:
        given = self._virtual_dataset(*inputs)
        return self._backbone(*given) if len(inputs) != 1 else self._backbone(given)


_VirtualDatasetCellTriple = _VirtualDatasetCell


class _VirtualDataset(ops.Identity):
    """Its operands, as they are: that they come from a dataset, and how they are split, the parallel context says,
    whatever strategy it is given.
    """

    def shard(self, *strategies: Any, **named: Any) -> _VirtualDataset:
        return self

    def __call__(self, *inputs: Any) -> Any:
        return inputs[0] if len(inputs) == 1 else inputs


class RNNCellBase(_Recurrent):
    """The weights of a recurrent cell: weight_ih, weight_hh, bias_ih, bias_hh, each of `num_chunks` gates."""

    @kept(input_size=integer(1), hidden_size=integer(1), has_bias=flag, num_chunks=integer(1))
    def __init__(
        self, input_size: int, hidden_size: int, has_bias: bool, num_chunks: int, dtype: Any = np.float32
    ) -> None:
        super().__init__()
        self.gates = num_chunks
        self._weights("", input_size, dtype)


def _get_cache_prim(cls_prim: type) -> Callable:
    """The class itself: `_get_cache_prim(ops.Add)()` is `ops.Add()`."""
    return cls_prim
