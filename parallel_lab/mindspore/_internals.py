"""What scripts import from MindSpore's own modules: cells and settings with an underscore.

from mindspore.common.api import _cell_graph_executor       # train/executor.py
from mindspore.parallel._utils import _get_device_num
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.checks import checked, instance
from ..base.errors import MissingName, message, shorten
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.context import get_auto_parallel_context, set_auto_parallel_context
from ..nn.cell import Cell
from ..train.executor import FeedsDataset, cell_graph_executor

_CELL = instance(Cell, "A Cell")


# ---- cells ----


class _VirtualDatasetCell(FeedsDataset):
    """Its network: that inputs come from a dataset, and how they are split, the parallel context says."""

    @checked(backbone=_CELL)
    def __init__(self, backbone: Cell) -> None:
        super().__init__(auto_prefix=False)
        self._backbone = backbone

    def construct(self, *inputs: Any) -> Any:
        return self._backbone(*inputs)


_VirtualDatasetCellTriple = _VirtualDatasetCell


def _get_cache_prim(cls_prim: type) -> Callable:
    """The class itself: `_get_cache_prim(ops.Add)()` is `ops.Add()`."""
    return cls_prim


# ---- settings ----


def _reading(key: str) -> Callable[[], Any]:
    def read() -> Any:
        return get_auto_parallel_context(key)

    read.__doc__ = f"{key} of the parallel context."
    return read


_get_device_num, _get_global_rank = _reading("device_num"), _reading("global_rank")
_get_full_batch, _get_gradients_mean = _reading("full_batch"), _reading("gradients_mean")
_get_loss_repeated_mean, _get_parallel_mode = _reading("loss_repeated_mean"), _reading("parallel_mode")
_get_pipeline_stages, _get_enable_parallel_optimizer = (
    _reading("pipeline_stages"),
    _reading("enable_parallel_optimizer"),
)


def _is_in_auto_parallel_mode() -> bool:
    """Whether operators are split."""
    return _get_parallel_mode() in SHARDED_MODES


def _is_in_data_parallel_mode() -> bool:
    """Whether every rank runs the whole network on its own rows."""
    return _get_parallel_mode() == "data_parallel"


def _is_in_hybrid_parallel_mode() -> bool:
    """Whether the network itself communicates."""
    return _get_parallel_mode() == "hybrid_parallel"


def _reset_op_id() -> None:
    """Let the numbers in full names of operators ("MatMul-op0") begin with 0 again."""
    cell_graph_executor.reset_ids()


class AutoParallelContext:
    """The parallel context as an object: `set_device_num(8)`, `get_device_num()`, for each of its keys."""

    def __getattr__(self, name: str) -> Any:
        kind, _, key = name.partition("_")
        key = "all_reduce_fusion_config" if key == "all_reduce_fusion_split_indices" else key
        if kind == "get":
            return lambda group="": get_auto_parallel_context(key)
        if kind == "set":
            return lambda value, group="": set_auto_parallel_context(**{key: value})
        allowed = "set_ or get_ and a key of set_auto_parallel_context"
        what = f"auto_parallel_context() has no {shorten(name)}"
        raise MissingName(message(what, allowed=allowed), name=name, obj=self)


_CONTEXT = AutoParallelContext()


def auto_parallel_context() -> AutoParallelContext:
    """The parallel context as an object."""
    return _CONTEXT
