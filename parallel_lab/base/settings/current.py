"""Settings as they are now: what was set, in the form it was set in, and frozen, as passes receive it.

    >>> get_auto_parallel_context("device_num"), frozen(device_num=8).device_num
    (1, 8)

Passes never read this module: `frozen()` gives them an immutable `ParallelConfig`. `context.py` sets; `tables.py` lists
the keys.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..checks import nearest, text
from ..errors import ContextConflictError, ContextError, shorten
from ..hooks import current_world
from .checks import SETTING, SETTINGS, refuse
from .compat import get_compat
from .config import Fusion, ParallelConfig, resolved_fusion
from .tables import (
    ALGORITHM,
    COST_MODEL,
    DEFAULTS_OF_2_10,
    DP_ALGO,
    EXECUTION,
    KEYS,
    OFFLOAD,
    PARALLEL,
    PARTS,
    RANGES_OF_2_10,
)

# ---- what was set: {what follows set_ and get_ in a function's name: {key: value}}, only keys that were set. A
# function's dict is replaced whole, never changed in place, so that a refused call leaves no trace ----

_set: dict[str, dict[str, Any]] = {
    "auto_parallel_context": {},  # keys of PARALLEL and of PARTS; "comm_fusion" a Fusion
    "algo_parameters": {},
    "cost_model_context": {},
    "context": {},
    "offload_context": {},
}

_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(ParallelConfig)} | {"comm_fusion": Fusion()}

# ---- keys that nothing here reads ----

Tables = dict[str, dict[str, tuple[Any, Callable[..., Any]]]]
_kept_tables: Callable[[], Tables] = dict


def keep_also(tables: Callable[[], Tables]) -> None:
    """Let the functions keep further keys, {function: {key: (default, check)}}; `tables` makes them when one is met."""
    global _kept_tables
    _kept_tables = tables


def checks_of(function: str, key: str) -> dict[str, Callable[..., Any]]:
    """The keys of a function; with those that are only kept, if `key` is not one that is read."""
    own = KEYS[function]
    return own if key in own else own | {kept: check for kept, (_, check) in _kept_tables().get(function, {}).items()}


def _present(function: str, key: str, own: dict[str, tuple[Any, Any]]) -> Any:
    """What was set for a key, or its default. A dict that the caller changes is the caller's."""
    if key in _set[function]:
        return copy.deepcopy(_set[function][key])
    default = (own if key in own else _kept_tables()[function])[key][0]
    return default() if callable(default) else copy.deepcopy(default)


def default_of(key: str) -> Any:
    """The default of a field of ParallelConfig, by the version that is followed."""
    return DEFAULTS_OF_2_10[key] if get_compat() == "2.10" and key in DEFAULTS_OF_2_10 else _DEFAULTS[key]


def value_now(key: str) -> Any:
    """The present value of a field of ParallelConfig; a Fusion for comm_fusion."""
    was_set = _set["algo_parameters" if key in ALGORITHM else "auto_parallel_context"]
    return was_set[key] if key in was_set else default_of(key)


# ---- reading ----


def get_auto_parallel_context(attr_key: str) -> Any:
    """The present value of a key, in the form it was set in: all_reduce_fusion_config as a list.

    device_num and global_rank read 1 and 0 until they are set (`is_set` tells). comm_fusion holds every kind of
    message; a part of a dict, as pipeline_scheduler, is read alone. With compat "2.10" a dataset_strategy of tuples
    reads as nested lists. Raises ContextError for an unknown key, ContextTypeError for a key that is not a text.
    """
    key = known_key("get_auto_parallel_context", attr_key)
    if key in _READ:
        return _READ[key]()
    if key in PARTS:
        return {name: value_now(kept) for name, (kept, _) in PARTS[key].items()}
    return value_now(key) if key in _DEFAULTS else _present("auto_parallel_context", key, {})


def _read_dataset_strategy() -> Any:
    strategy = value_now("dataset_strategy")
    if get_compat() == "2.10" and isinstance(strategy, tuple):
        return [list(cuts) if isinstance(cuts, tuple) else cuts for cuts in strategy]
    return strategy


_READ: dict[str, Callable[[], Any]] = {  # keys that read otherwise than they are kept
    "full_batch": lambda: value_now("dataset_strategy") == "full_batch",
    "auto_parallel_search_mode": lambda: value_now("search_mode"),
    "sharding_propagation": lambda: value_now("search_mode") == "sharding_propagation",
    "all_reduce_fusion_config": lambda: value_now("comm_fusion").indices(),
    "comm_fusion": lambda: value_now("comm_fusion").as_dict(),
    "dataset_strategy": _read_dataset_strategy,
}


def is_set(key: str) -> bool:
    """Whether a field of ParallelConfig was set since the last reset. Raises ContextError for another key."""
    return known_key("is_set", key, _DEFAULTS) in {**_set["auto_parallel_context"], **_set["algo_parameters"]}


def get_algo_parameters(attr_key: str) -> Any:
    """The present value of a key of `set_algo_parameters`. Raises ContextError for another key."""
    return value_now(known_key("get_algo_parameters", attr_key))


def get_cost_model_context(attr_key: str) -> Any:
    """A key of `set_cost_model_context`, now; costmodel_beta unset is 50 for device_target "GPU", else 400."""
    key = known_key("get_cost_model_context", attr_key)
    return value_now(DP_ALGO[key]) if key in DP_ALGO else _present("cost_model_context", key, COST_MODEL)


def get_context(attr_key: str) -> Any:
    """The present value of a key of `set_context`; save_graphs as a number. Raises ContextError for another key."""
    return _present("context", known_key("get_context", attr_key), EXECUTION)


def get_offload_context() -> dict[str, Any]:
    """Every key of `set_offload_context`, as it is now."""
    keys = {**OFFLOAD, **_kept_tables().get("offload_context", {})}
    return {key: _present("offload_context", key, OFFLOAD) for key in keys}


def known_key(where: str, key: object, known: Iterable[str] = ()) -> str:
    """`key` as plain text, if it is among `known` or a key of the function `where`. Raises ContextTypeError if it is no
    text; ContextError, with the nearest key or the function that has it, if it is not known.
    """
    plain = text(where, "key", key, SETTINGS)
    verb, _, function = where.partition("_")
    known = known or checks_of(function, plain)
    inside = [f"It stands inside the dict {key}" for key, parts in PARTS.items() if plain in parts]
    if plain in known or (inside and plain in _DEFAULTS and where == "get_auto_parallel_context"):
        return plain
    others = [f"{verb}_{name} knows it" for name in KEYS if function in KEYS and plain in checks_of(name, plain)]
    hint = [*others, *inside, nearest(plain, known)][0]
    # the hint comes first: behind all the keys nobody would find it
    what = f"key {shorten(plain)} is not known{f'. {hint}' if hint else ''}"
    raise ContextError(what, where=where, allowed=f"Keys: {', '.join(sorted(known))}")


# ---- what passes and runs receive ----


def frozen(**overrides: Any) -> ParallelConfig:
    """The settings now, with `overrides` of fields of ParallelConfig, as the immutable value that passes receive.

    Raises ContextError for an override out of range, ContextConflictError (also a RuntimeError, as MindSpore's) if
    global_rank and device_num were set and do not fit, or pipeline_stages does not divide a known device_num.
    """
    given, was_set = overrides.get("comm_fusion"), _set["auto_parallel_context"]
    if isinstance(given, dict):
        overrides["comm_fusion"] = resolved_fusion(SETTING, "comm_fusion", given, off_is_final=get_compat() == "seeds")
    fields = {key: value_now(key) for key in _DEFAULTS}
    fields |= {"comm_fusion": value_now("comm_fusion").resolved(), "cost_model_fusion": _cost_model_fusion()}
    if get_context("memory_offload") == "ON":
        fields |= {"memory_offload": True, "offload_param": _present("offload_context", "offload_param", OFFLOAD)}
    config = dataclasses.replace(ParallelConfig(**fields), **overrides)
    for key in overrides.keys() & RANGES_OF_2_10.keys() if get_compat() == "seeds" else ():
        PARALLEL[key](SETTING, key, getattr(config, key), SETTINGS)
    if {"device_num", "global_rank"} <= was_set.keys() - overrides.keys():
        check_rank(config.global_rank, config.device_num, "compile")
    if "device_num" in {**was_set, **overrides} and config.device_num % config.pipeline_stages:
        allowed = f"A divisor of device_num, which is {config.device_num}"
        raise refuse(ContextConflictError, "compile", "pipeline_stages", config.pipeline_stages, allowed)
    return config


def fusion_is_switched_off() -> bool:
    """Whether comm_fusion came with openstate False since the reset: only what is set later may be fused."""
    return value_now("comm_fusion").switched_off


def frozen_for_run(**overrides: Any) -> ParallelConfig:
    """`frozen()` for a run: device_num and global_rank, unless set, are those of its world, in stand_alone 1 and 0.

    Raises ContextError for a device_num above 1 in stand_alone, ContextConflictError for one that is not the world's.
    """
    config, world = frozen(**overrides), current_world()
    chosen = {"device_num", "global_rank"} & {**_set["auto_parallel_context"], **overrides}.keys()
    if config.parallel_mode == "stand_alone":
        if "device_num" in chosen and config.device_num != 1:
            hint = "Set parallel_mode too, for example 'data_parallel'"
            allowed = "1 in parallel_mode 'stand_alone'"
            raise refuse(ContextError, "run", "device_num", config.device_num, allowed, hint)
        return dataclasses.replace(config, device_num=1, global_rank=0)
    if world is None:
        return config
    if "device_num" in chosen and config.device_num != world.world_size:
        allowed = f"{world.world_size}, the number of ranks that were started"
        hint = "Omit device_num: it is taken from the process group"
        raise refuse(ContextConflictError, "run", "device_num", config.device_num, allowed, hint)
    rank = config.global_rank if "global_rank" in chosen else world.rank
    check_rank(rank, world.world_size, "run")
    return frozen(**{**overrides, "device_num": world.world_size, "global_rank": rank})


@contextmanager
def default_settings() -> Iterator[None]:
    """Inside, as a lab wants it, training, strategy search and cost model have defaults; changes are forgotten."""
    before = {function: was_set for function, was_set in _set.items() if function != "context"}
    _set.update({function: {} for function in before})
    try:
        yield
    finally:
        _set.update(before)


def check_rank(global_rank: int, device_num: int, where: str) -> None:
    """Raise ContextConflictError unless the rank is one of the devices."""
    if global_rank >= device_num:
        allowed = f"Below device_num, which is {device_num}"
        raise refuse(ContextConflictError, where, "global_rank", global_rank, allowed)


_FUSION_KEYS = "costmodel_allreduce_fusion_"  # what the keys of the cost model's fusion begin with


def _cost_model_fusion() -> tuple[Any, ...] | None:
    """`ParallelConfig.cost_model_fusion` of the keys costmodel_allreduce_fusion_*; None where MindSpore passes the
    fusion by: algorithm 0, fewer than two times, a time of 0, a tail that is not above what every message takes.
    """
    keys, given = [key for key in COST_MODEL if key.startswith(_FUSION_KEYS)], _set["cost_model_context"]
    now = {key.removeprefix(_FUSION_KEYS): given.get(key, COST_MODEL[key][0]) for key in keys}
    if now["algorithm"] == 1 and now["times"] >= 2:
        return "times", now["times"], now["tail_percent"]
    keys = ("tail_time", "allreduce_inherent_time", "allreduce_bandwidth", "computation_time_parameter")
    hiding = tuple(now[key] for key in keys)
    if now["algorithm"] == 2 and min(hiding) > 0 and hiding[0] > hiding[1]:
        return "hiding", *hiding
    return None
