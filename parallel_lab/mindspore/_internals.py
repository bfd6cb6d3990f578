"""Cells and operators with an underscore that scripts import from MindSpore's own modules.

from mindspore.common.api import _cell_graph_executor       # _executor.py
from mindspore.parallel._utils import _get_device_num       # _context.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ops
from ..base.checks import checked, instance
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


def _get_cache_prim(cls_prim: type) -> Callable:
    """The class itself: `_get_cache_prim(ops.Add)()` is `ops.Add()`."""
    return cls_prim
