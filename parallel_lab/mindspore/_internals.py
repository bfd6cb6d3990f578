"""Cells, operators and functions with an underscore that scripts import from MindSpore's own modules.

from mindspore.common.api import _cell_graph_executor       # _executor.py
from mindspore.parallel._utils import _get_device_num       # _context.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..base.checks import checked, flag, instance, integer, kept
from ..base.errors import ArgumentError, ArgumentTypeError, shorten
from ..catalog.nn.recurrent import _Recurrent
from ..catalog.nn.wrap import TrainOneStepWithLossScaleCell
from ..layout.tensor_layout import TensorLayout
from ..nn.cell import Cell
from ..nn.tensor.initial_slices import FORM
from ..nn.tensor.tensor import Tensor
from ..nn.wrap import TrainOneStepCell
from ._context import _get_global_rank

_CELL = instance(Cell, "A Cell")
_LIST = instance((list, tuple), "A list of ints, such as [2, 4] or [0, -1]")


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
# one class here, whatever it trains: a PipelineCell, a GradAccumulationCell or a network
_TrainPipelineAccuStepCell = _TrainGradAccuStepCell = TrainOneStepCell
_TrainPipelineWithLossScaleCell = _TrainGradAccuWithLossScaleCell = TrainOneStepWithLossScaleCell


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


# ---- slices ----


@checked(dev_mat=_LIST, tensor_map=_LIST)
def _get_tensor_strategy(dev_mat: list[int], tensor_map: list[int]) -> list[int]:
    """Into how many parts each dim is split.  [2, 4], [0, -1] -> [4, 1]."""
    return list(_layout(dev_mat, tensor_map).splits)


@checked(device_arrangement=_LIST, tensor_strategy=_LIST, tensor_map=_LIST, rank_index=integer(0))
def _get_tensor_slice_index(
    device_arrangement: list[int], tensor_strategy: list[int], tensor_map: list[int], rank_index: int
) -> int:
    """Which slice a rank holds, row by row.  tensor_strategy: as `_get_tensor_strategy` gives it."""
    layout = _layout(device_arrangement, tensor_map)
    if tuple(tensor_strategy) != layout.splits:
        what = f"tensor_strategy={shorten(tensor_strategy)}"
        raise ArgumentError(what, where="_get_tensor_slice_index", allowed=f"That of the map: {list(layout.splits)}")
    return int(np.ravel_multi_index(layout.slice_numbers(rank_index), tensor_strategy)) if tensor_strategy else 0


def _get_slice_index(dev_mat: list[int], tensor_map: list[int], opt_shard_group: str | None = None) -> int:
    """Which slice this rank holds; opt_shard_group: accepted, as its parts lie within a slice."""
    return _get_tensor_slice_index(dev_mat, _get_tensor_strategy(dev_mat, tensor_map), tensor_map, _get_global_rank())


@checked(dev_mat=_LIST, tensor_map=_LIST, full_shape=_LIST | None, rank_id=integer(-1))
def _load_tensor(
    tensor: Any, dev_mat: list[int], tensor_map: list[int], full_shape: Any = None, rank_id: int = -1
) -> Tensor:
    """A rank's slice of a whole tensor.  rank_id: -1 for this rank.  full_shape: reshape it so before."""
    layout, whole = _layout(dev_mat, tensor_map), (tensor if isinstance(tensor, Tensor) else Tensor(tensor)).asnumpy()
    whole = whole if not full_shape else whole.reshape(full_shape)
    return Tensor(whole[layout.slice_index(whole.shape, _get_global_rank() if rank_id == -1 else rank_id)])


@checked(rank_id=integer(-1))
def _load_tensor_by_layout(tensor: Any, layout: Any, rank_id: int = -1) -> Tensor:
    """A rank's slice of a whole tensor by a layout as `parameter_layout_dict` has it. Raises ArgumentTypeError."""
    if not isinstance(layout, (tuple, list)) or len(layout) < 2:
        raise ArgumentTypeError(f"layout={shorten(layout)}", where="_load_tensor_by_layout", allowed=FORM)
    return _load_tensor(tensor, *layout[:2], rank_id=rank_id)


def _layout(matrix: list[int], entries: list[Any]) -> TensorLayout:
    return TensorLayout(tuple(matrix), tuple(tuple(e) if isinstance(e, list) else e for e in entries))
