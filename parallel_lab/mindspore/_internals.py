"""What scripts import from MindSpore's own modules: compiling without running, cells and settings with an underscore.

from mindspore.common.api import _cell_graph_executor
phase, _ = _cell_graph_executor.compile(net, x, label)     # refuses what a run would refuse
net.compiled.plan                                          # what it made
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.checks import checked, instance, text
from ..base.errors import ArgumentTypeError, MissingName, TracedCommunication, message, shorten
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.context import frozen, get_auto_parallel_context, set_auto_parallel_context
from ..graph.compiler import compile_program
from ..graph.passes.dataset_strategy import dataset_splits
from ..layout.tensor_layout import TensorLayout
from ..nn.cell import Cell
from ..train.compiled import after_compiling, of_tensors, tensors_of

_CELL = instance(Cell, "A Cell")


class CellGraphExecutor:
    """Compiles Cells by the settings of the parallel context, for as many ranks as they name, without running them."""

    @checked("_cell_graph_executor.compile", obj=_CELL, phase=text)
    def compile(self, obj: Cell, *args: Any, phase: str = "predict", **options: Any) -> tuple[str, bool]:
        """Compile `obj` for these inputs: (phase, True). The result is the Cell's attribute `compiled` afterwards.

        args     inputs of the Cell: where operators are split, the whole ones of all ranks
        options  do_convert, jit_config_dict, auto_parallel_mode and what else MindSpore takes: without effect
        """
        form, tensors = tensors_of(args)
        inputs, how = _fed(tensors)
        how |= {"global_rank": frozen().global_rank, "without_inputs": not inputs}
        try:
            alone = {"parallel_mode": "stand_alone"} if _get_parallel_mode() == "stand_alone" else {}
            made = compile_program(of_tensors(obj, form), *inputs, **how, **alone)
        except TracedCommunication:  # without a mode a network may communicate by hand, with strategies without effect
            if not alone:
                raise
            made = compile_program(of_tensors(obj, form), *inputs, **how, parallel_mode="data_parallel")
        after_compiling(made, None)
        obj.__dict__["compiled"] = made
        return f"{phase}.{id(obj)}", True

    __call__ = compile

    @checked("_cell_graph_executor", obj=_CELL)
    def _get_shard_strategy(self, obj: Cell) -> dict[str, list[list[int]]]:
        """{operator: a list of counts per input} of a Cell that was compiled."""
        nodes = _compiled(obj).plan.graph.nodes
        return {n.name: [list(counts) for counts in n.strategy] for n in nodes if n.strategy is not None}

    @checked("_cell_graph_executor", obj=_CELL)
    def get_parameter_layout(self, obj: Cell) -> dict[str, TensorLayout]:
        """{parameter: its layout} of a Cell that was compiled."""
        plan = _compiled(obj).plan
        return {one.name: plan.value(one.name).layout for one in plan.parameters}


def _fed(tensors: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """(what a rank feeds of these whole inputs, the dataset strategy): MindSpore splits rows by the count of ranks."""
    config, shapes = frozen(), tuple(tuple(t.shape) for t in tensors)
    if config.parallel_mode not in SHARDED_MODES or config.dataset_strategy == "full_batch":
        return tensors, {}
    if not tensors:
        return [], {"dataset_strategy": "full_batch"}
    if config.dataset_strategy == "data_parallel":
        n = config.device_num
        cuts = tuple(tuple(n if not i and size % n == 0 else 1 for i, size in enumerate(shape)) for shape in shapes)
        how = {"dataset_strategy": cuts}
    else:
        cuts, how = dataset_splits(config, shapes), {}
    parts = (
        tuple(size // n for size, n in zip(shape, cut, strict=True)) for shape, cut in zip(shapes, cuts, strict=True)
    )
    # their values do not matter: nothing runs
    return [np.broadcast_to(np.zeros((), t.dtype), part) for t, part in zip(tensors, parts, strict=True)], how


def _compiled(cell: Cell) -> Any:
    found = cell.__dict__.get("compiled")
    if found is None:
        what, hint = f"{type(cell).__name__} was not compiled", "_cell_graph_executor.compile(net, x) first"
        raise ArgumentTypeError(what, where="_cell_graph_executor", hint=hint)
    return found


cell_graph_executor = CellGraphExecutor()


# ---- cells ----


class _VirtualDatasetCell(Cell):
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
    """Without effect: operators are named by where they stand in the network, not by a count."""


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
