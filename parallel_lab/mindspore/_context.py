"""The parallel settings as MindSpore's own modules read them, and what those make of the shapes of data.

from mindspore.parallel._utils import _to_full_shapes
from mindspore.parallel._auto_parallel_context import auto_parallel_context

auto_parallel_context().get_device_num()
_to_full_shapes([[4, 3]], 8)                    # [(32, 3)]: what 8 ranks feed together
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.checks import checked, choice, flag, integer, sequence_of
from ..base.errors import ArgumentError, ContextConflictError, MissingName, ShapeError, message, shorten
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.context import (
    get_auto_parallel_context,
    get_cost_model_context,
    is_set,
    reset_auto_parallel_context,
    reset_cost_model_context,
    set_auto_parallel_context,
    set_cost_model_context,
)
from ..nn.tensor.tensor import Tensor
from ._executor import cell_graph_executor


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
_get_parameter_broadcast, _get_dataset_strategy = _reading("parameter_broadcast"), _reading("dataset_strategy")


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


# ---- checks ----


def _get_stage_device_num() -> int:
    """How many devices a pipeline stage has."""
    return _get_device_num() // _get_pipeline_stages()


def _need_to_full() -> bool:
    """Whether a rank's data are a part of those of all ranks."""
    return _is_in_auto_parallel_mode() and not _get_full_batch()


def _check_full_batch() -> None:
    """Refuse full_batch in a mode that splits no inputs. Raises ContextConflictError (a RuntimeError)."""
    if _get_full_batch() and not _is_in_auto_parallel_mode():
        given = f"full_batch=True with parallel_mode={_get_parallel_mode()!r}"
        raise ContextConflictError(given, where="_check_full_batch", allowed=f"One of {', '.join(SHARDED_MODES)}")


def _device_number_check(parallel_mode: str, device_number: int) -> None:
    """Refuse several devices in stand_alone mode. Raises ArgumentError (a ValueError)."""
    if parallel_mode == "stand_alone" and device_number != 1:
        raise ArgumentError(
            f"device_number={device_number}", where="stand_alone", allowed="1, or another parallel_mode"
        )


def _parameter_broadcast_check(parallel_mode: str, parameter_broadcast: bool) -> None:
    """Refuse to broadcast parameters where no copies are trained. Raises ArgumentError (a ValueError)."""
    if parameter_broadcast and parallel_mode in ("stand_alone", *SHARDED_MODES):
        allowed = "data_parallel or hybrid_parallel, or parameter_broadcast=False"
        raise ArgumentError(f"parameter_broadcast=True in {parallel_mode}", where=parallel_mode, allowed=allowed)


# ---- what all ranks feed together ----


_SHAPE = sequence_of(integer(0), "A list or tuple of ints, none below 0", empty=True)


def _counts(shape: Sequence[int], number: int, column: int, columns: int) -> tuple[int, ...]:
    """In how many parts each dim of a column is fed: by the dataset_strategy, or its rows by all devices."""
    strategy = _get_dataset_strategy()
    if isinstance(strategy, str):
        return (number, *(1,) * (len(shape) - 1)) if shape else ()
    if len(strategy) != columns or len(strategy[column]) != len(shape):
        what = f"dataset_strategy {strategy} for {columns} columns; column {column} has shape {tuple(shape)}"
        raise ShapeError(what, where="_to_full_shapes", allowed="A tuple per column with a count per dim")
    return tuple(strategy[column])


def _to_full_shapes(shapes: Sequence[Sequence[int]], device_num: int) -> list[tuple[int, ...]]:
    """Shapes of what all ranks feed, from those of one rank's columns."""
    device_num = integer(1)("_to_full_shapes", "device_num", device_num)
    shapes = [_SHAPE("_to_full_shapes", "shapes", shape) for shape in shapes]
    cuts = (_counts(shape, device_num, i, len(shapes)) for i, shape in enumerate(shapes))
    return [tuple(n * cut for n, cut in zip(shape, cut, strict=True)) for shape, cut in zip(shapes, cuts, strict=True)]


def _to_full_tensor(
    elem: Any, global_device_num: int, global_rank: int, scaling_sens: float | None = None
) -> tuple[Tensor, ...]:
    """One rank's columns where they lie in those of all ranks, with zeros for the others'; scaling_sens behind them."""
    count = integer(1)("_to_full_tensor", "global_device_num", global_device_num)
    global_rank = integer(0, count - 1)("_to_full_tensor", "global_rank", global_rank)
    devices, found = count // _get_pipeline_stages(), []
    columns = elem if isinstance(elem, (tuple, list)) else [elem]
    for i, column in enumerate(columns):
        part = np.asarray(column.asnumpy() if isinstance(column, Tensor) else column)
        cuts = _counts(part.shape, devices, i, len(columns))
        full = np.zeros([n * cut for n, cut in zip(part.shape, cuts, strict=True)], part.dtype)
        begins = [global_rank % devices % cut * n for n, cut in zip(part.shape, cuts, strict=True)]
        full[tuple(slice(b, b + n) for b, n in zip(begins, part.shape, strict=True))] = part
        found.append(Tensor(full))
    return (*found, *([Tensor(np.float32(scaling_sens))] if scaling_sens else []))


# ---- the context as an object ----

OTHER_KEYS = {
    "all_reduce_fusion_split_indices": "all_reduce_fusion_config",
    "strategy_search_mode": "search_mode",
    "auto_parallel_search_mode": "search_mode",
}
INSIDE = {  # keys that stand inside a dict of settings
    "parallel_optimizer_threshold": ("parallel_optimizer_config", "parallel_optimizer_threshold"),
    "grad_accumulation_shard": ("parallel_optimizer_config", "gradient_accumulation_shard"),
}
MESSAGES = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


class AutoParallelContext:
    """The parallel context as an object: `set_device_num(8)`, `get_device_num()`, for each of its keys.

    Also `get_device_num_is_set()`, `reset()`, and of comm_fusion `allreduce_fusion_threshold_mb()` and
    `get_enable_all_reduce_fusion()`, each for the other messages too.
    """

    def __getattr__(self, name: str) -> Any:
        for kind, words in MESSAGES.items():
            if name == f"{kind}_fusion_threshold_mb":
                return lambda: _fusion(kind)["config"] if _fusion(kind)["mode"] == "size" else 64
            if name == f"get_enable_{words}_fusion":
                return lambda: is_set("comm_fusion") and _fusion(kind) is not None
            if name == f"set_enable_{words}_fusion":
                return lambda value: _switch_fusion(kind, flag("auto_parallel_context", name, value))
        how, _, key = name.partition("_")
        key = OTHER_KEYS.get(key, key)
        if how == "get" and key.endswith("_is_set"):
            key = key.removesuffix("_is_set")
            return lambda: is_set("dataset_strategy" if key == "full_batch" else key)
        if how == "get":
            if key in INSIDE:
                return lambda: get_auto_parallel_context(INSIDE[key][0])[INSIDE[key][1]]
            return lambda group="": get_auto_parallel_context(key)
        if how == "set":
            if key in INSIDE:
                return lambda value: set_auto_parallel_context(**{INSIDE[key][0]: {INSIDE[key][1]: value}})
            return lambda value, group="": set_auto_parallel_context(**{key: value})
        allowed = "set_ or get_ and a key of set_auto_parallel_context"
        what = f"auto_parallel_context() has no {shorten(name)}"
        raise MissingName(message(what, allowed=allowed), name=name, obj=self)

    def reset(self) -> None:
        """Every key back to its default."""
        reset_auto_parallel_context()


def _fusion(kind: str) -> Any:
    """What comm_fusion says of one kind of message; None: these are not fused."""
    fusion = get_auto_parallel_context("comm_fusion")
    return fusion[kind] if fusion["openstate"] else None


def _switch_fusion(kind: str, on: bool) -> None:
    """Fuse messages of one kind by MindSpore's own rule, or none of any kind."""
    set_auto_parallel_context(comm_fusion={kind: {"mode": "auto", "config": None}} if on else {"openstate": False})


class CostModelContext:
    """The constants of the cost model as an object: `set_costmodel_alpha(1.0)`, `get_costmodel_alpha()`."""

    def __getattr__(self, name: str) -> Any:
        how, _, key = name.partition("_")
        if how == "get":
            return lambda: get_cost_model_context(key)
        if how == "set":
            return lambda value: set_cost_model_context(**{key: value})
        what, allowed = (
            f"cost_model_context() has no {shorten(name)}",
            "set_ or get_ and a key of set_cost_model_context",
        )
        raise MissingName(message(what, allowed=allowed), name=name, obj=self)

    def reset_cost_model(self) -> None:
        """Every constant back to its default."""
        reset_cost_model_context()


_CONTEXT, _COST_MODEL = AutoParallelContext(), CostModelContext()


def _constant(key: str, default: Any) -> tuple[Callable, Callable]:
    """The two functions that MindSpore's modules have for one constant of the cost model: set and get."""

    def put(value: Any = default) -> None:
        set_cost_model_context(**{key: float(value) if type(value) is int else value})

    return put, functools.partial(get_cost_model_context, key)


def auto_parallel_context() -> AutoParallelContext:
    """The parallel context as an object."""
    return _CONTEXT


def cost_model_context() -> CostModelContext:
    """The constants of the cost model as an object."""
    return _COST_MODEL


_set_multi_subgraphs, _get_multi_subgraphs = _constant("multi_subgraphs", True)  # costs here count all graphs anyway
_set_algo_single_loop, _get_algo_single_loop = _constant("dp_algo_single_loop", True)
_set_rp_matmul_mem_coef, _get_rp_matmul_mem_coef = _constant("rp_matmul_mem_coef", 0.1)


class JitConfig:
    """Settings of MindSpore's graph compiler for one Cell (`cell.set_jit_config`): checked, and without effect here."""

    @checked(
        jit_level=choice("", "O0", "O1", "O2"),
        exc_mode=choice("auto", "sink", "no_sink"),
        jit_syntax_level=choice("", "STRICT", "LAX"),
        debug_level=choice("RELEASE", "DEBUG"),
        infer_boost=choice("on", "off"),
    )
    def __init__(
        self,
        jit_level: str = "",
        exc_mode: str = "auto",
        jit_syntax_level: str = "",
        debug_level: str = "RELEASE",
        infer_boost: str = "off",
        **options: Any,
    ) -> None:
        own = {"exc_mode": exc_mode, "debug_level": debug_level, "infer_boost": infer_boost}
        self.jit_config_dict = {"jit_level": jit_level, "jit_syntax_level": jit_syntax_level, **own, **options}
