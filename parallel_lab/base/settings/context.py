"""Settings, validated when they are set and frozen when they are used; and the hooks to tracer and world.

    >>> set_auto_parallel_context(device_num=8, parallel_mode="semi_auto_parallel")
    >>> get_auto_parallel_context("device_num")
    8
    >>> reset_auto_parallel_context()

Passes never read this module: `frozen()` gives them an immutable `ParallelConfig`. Keys, ranges and classes of errors
are those that MindSpore documents for set_auto_parallel_context, set_algo_parameters, set_context and
set_cost_model_context; where it accepts silently what its documents exclude, the value is refused here. A call that is
refused changes nothing, however many keys it had. `tables.py` lists the keys.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..checks import nearest, text
from ..errors import ContextConflictError, ContextError, ContextPathError, ContextTypeError, shorten
from ..hooks import current_world
from .checks import PARALLEL_MODES, SETTING, SETTINGS, refuse
from .compat import get_compat, set_compat  # noqa: F401 - set_compat is found among the other settings
from .config import Fusion, ParallelConfig, resolved_fusion
from .tables import (
    ALGORITHM,
    CHECKS_OF_2_10,
    COST_MODEL,
    DEFAULTS_OF_2_10,
    DP_ALGO,
    EXECUTION,
    GRAPH_MODE,
    KEYS,
    OFFLOAD,
    PARALLEL,
    PARTS,
    PYNATIVE_MODE,
    RANGES_OF_2_10,
)


class ParallelMode:
    """The five values of `parallel_mode`, under MindSpore's names. They are plain texts."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    HYBRID_PARALLEL = "hybrid_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"
    MODE_LIST = PARALLEL_MODES


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


def _checks_of(function: str, key: str) -> dict[str, Callable[..., Any]]:
    """The keys of a function; with those that are only kept, if `key` is not one that is read."""
    own = KEYS[function]
    return own if key in own else own | {kept: check for kept, (_, check) in _kept_tables().get(function, {}).items()}


def _present(function: str, key: str, own: dict[str, tuple[Any, Any]]) -> Any:
    """What was set for a key, or its default. A dict that the caller changes is the caller's."""
    if key in _set[function]:
        return copy.deepcopy(_set[function][key])
    default = (own if key in own else _kept_tables()[function])[key][0]
    return default() if callable(default) else copy.deepcopy(default)


def _default(key: str) -> Any:
    return DEFAULTS_OF_2_10[key] if get_compat() == "2.10" and key in DEFAULTS_OF_2_10 else _DEFAULTS[key]


def _value(key: str) -> Any:
    """The present value of a field of ParallelConfig; a Fusion for comm_fusion."""
    was_set = _set["algo_parameters" if key in ALGORITHM else "auto_parallel_context"]
    return was_set[key] if key in was_set else _default(key)


# ---- set_auto_parallel_context ----


def set_auto_parallel_context(**settings: Any) -> None:
    """Change parallel settings; their meaning is explained at `ParallelConfig`, their ranges in `tables.py`; what
    nothing reads is kept and returned (`mindspore/_settings.py`).

    Besides the fields of ParallelConfig there are keys that stand for others: full_batch (dataset_strategy "full_batch"
    or not; True: all ranks have to feed the same batch, which is not compared), sharding_propagation and
    auto_parallel_search_mode (search_mode), all_reduce_fusion_config (comm_fusion, allreduce by index), and the dicts
    parallel_optimizer_config, strategy_ckpt_config and pipeline_config. The folder of a strategy_ckpt_save_file or
    group_ckpt_save_file is made if it is missing.

    Raises ContextError (a ValueError) for an unknown key and a value out of range, ContextTypeError (also a TypeError)
    for a wrong type, ContextKeyError (also a KeyError) for a wrong key in a dict, ContextStrategyError (also a
    RuntimeError) for counts of a dataset_strategy below 1, ContextConflictError (also a RuntimeError) for keys of one
    call that contradict each other. Nothing changes then.
    """
    where, before = "set_auto_parallel_context", _set["auto_parallel_context"]
    checked = _checked(settings, where)
    state = {**before, **_combined(checked, where)}
    mode = _set["context"].get("mode", GRAPH_MODE)
    _check_pynative(mode, state.get("parallel_mode", "stand_alone"), state.get("dataset_strategy"), where)
    if {
        "device_num",
        "global_rank",
    } <= checked.keys() and get_compat() == "seeds":  # 2.10 compares them when it compiles
        _check_rank(checked["global_rank"], checked["device_num"], where)
    for key in ("strategy_ckpt_save_file", "group_ckpt_save_file"):
        if state.get(key) and state.get(key) != before.get(key):
            _make_folder(key, state[key], where)
    _set["auto_parallel_context"] = state


def get_auto_parallel_context(attr_key: str) -> Any:
    """The present value of a key, in the form it was set in: all_reduce_fusion_config as a list.

    device_num and global_rank read 1 and 0 until they are set (`is_set` tells). comm_fusion holds every kind of
    message. With compat "2.10" a dataset_strategy of tuples reads as nested lists. Raises ContextError for an unknown
    key, ContextTypeError for a key that is not a text.
    """
    key = _known_key("get_auto_parallel_context", attr_key)
    if key in _READ:
        return _READ[key]()
    if key in PARTS:
        return {name: _value(kept) for name, (kept, _) in PARTS[key].items()}
    return _value(key) if key in _DEFAULTS else _present("auto_parallel_context", key, {})


def _read_dataset_strategy() -> Any:
    strategy = _value("dataset_strategy")
    if get_compat() == "2.10" and isinstance(strategy, tuple):
        return [list(cuts) if isinstance(cuts, tuple) else cuts for cuts in strategy]
    return strategy


_READ: dict[str, Callable[[], Any]] = {  # keys that read otherwise than they are kept
    "full_batch": lambda: _value("dataset_strategy") == "full_batch",
    "auto_parallel_search_mode": lambda: _value("search_mode"),
    "sharding_propagation": lambda: _value("search_mode") == "sharding_propagation",
    "all_reduce_fusion_config": lambda: _value("comm_fusion").indices(),
    "comm_fusion": lambda: _value("comm_fusion").as_dict(),
    "dataset_strategy": _read_dataset_strategy,
}


def reset_auto_parallel_context() -> None:
    """Every key of `set_auto_parallel_context` back to its default. Other settings keep their values."""
    _set["auto_parallel_context"] = {}


def is_set(key: str) -> bool:
    """Whether a field of ParallelConfig was set since the last reset. Raises ContextError for another key."""
    return _known_key("is_set", key, _DEFAULTS) in {**_set["auto_parallel_context"], **_set["algo_parameters"]}


def _combined(checked: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields that a call's keys stand for. ContextConflictError if two keys give one field different values."""
    fields: dict[str, Any] = {}
    source: dict[str, str] = {}
    for key, value in checked.items():
        for field, part in _stands_for(key, value, checked).items():
            if field in fields and fields[field] != part:
                both = f"{shorten(fields[field], 60)} and {shorten(part, 60)}"
                what = f"{source[field]} and {key} give {field} two values, {both}"
                raise ContextConflictError(what, where=where, allowed="Give one of them")
            fields[field], source[field] = part, key
    fusion = {field.removeprefix(_FUSION): fields.pop(field) for field in list(fields) if field.startswith(_FUSION)}
    if fusion:
        fields["comm_fusion"] = _value("comm_fusion").after(fusion, off_is_final=get_compat() == "seeds")
    return fields


_FUSION = "comm_fusion."


def _stands_for(key: str, value: Any, checked: dict[str, Any]) -> dict[str, Any]:
    """The fields that one key of a call gives, comm_fusion's one by one, prefixed. checked: all keys of the call."""
    if key in PARTS:
        return {PARTS[key][name][0]: part for name, part in value.items()}
    if key == "comm_fusion":
        return {_FUSION + kind: part for kind, part in value.items()}
    if key == "all_reduce_fusion_config":
        return {_FUSION + "allreduce": {"mode": "index", "config": value}}
    if key == "full_batch":  # False says only that inputs are not global: counts of the inputs stay
        others = checked.get("dataset_strategy", _value("dataset_strategy"))
        if get_compat() == "2.10" and isinstance(
            others, tuple
        ):  # there a strategy per input counts, whatever this says
            return {"dataset_strategy": others}
        return {"dataset_strategy": "full_batch" if value else "data_parallel" if others == "full_batch" else others}
    if key == "sharding_propagation":  # False says only that it is not this search
        others = checked.get("search_mode", checked.get("auto_parallel_search_mode", _value("search_mode")))
        return {"search_mode": key if value else _default("search_mode") if others == key else others}
    return {"search_mode" if key == "auto_parallel_search_mode" else key: value}


def _check_pynative(mode: int, parallel_mode: str, dataset_strategy: Any, where: str) -> None:
    """Raise ContextError for settings that PyNative mode cannot run."""
    if mode != PYNATIVE_MODE:
        return
    hint = "Set mode=GRAPH_MODE first, with set_context"
    if parallel_mode in ("hybrid_parallel", "semi_auto_parallel"):
        allowed = "In PyNative mode: 'stand_alone', 'data_parallel' or 'auto_parallel'"
        raise refuse(ContextError, where, "parallel_mode", parallel_mode, allowed, hint)
    if isinstance(dataset_strategy, tuple):
        allowed = "In PyNative mode: 'full_batch' or 'data_parallel'"
        raise refuse(ContextError, where, "dataset_strategy", dataset_strategy, allowed, hint)


def _check_rank(global_rank: int, device_num: int, where: str) -> None:
    if global_rank >= device_num:
        allowed = f"Below device_num, which is {device_num}"
        raise refuse(ContextConflictError, where, "global_rank", global_rank, allowed)


def _make_folder(key: str, file: str, where: str) -> None:
    folder = os.path.dirname(file)
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        allowed = "A file in a folder that exists or can be made"
        raise refuse(ContextPathError, where, key, file, allowed, error.strerror or "") from error


def _known_key(where: str, key: object, known: Iterable[str] = ()) -> str:
    """`key` as plain text, if it is among `known` or a key of the function `where`. Raises ContextTypeError if it is no
    text; ContextError, with the nearest key or the function that has it, if it is not known.
    """
    plain = text(where, "key", key, SETTINGS)
    verb, _, function = where.partition("_")
    known = known or _checks_of(function, plain)
    if plain in known:
        return plain
    others = [f"{verb}_{name} knows it" for name in KEYS if function in KEYS and plain in _checks_of(name, plain)]
    inside = [f"It stands inside the dict {key}" for key, parts in PARTS.items() if plain in parts]
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
    fields = {key: _value(key) for key in _DEFAULTS}
    fields |= {"comm_fusion": _value("comm_fusion").resolved(), "cost_model_fusion": _cost_model_fusion()}
    if get_context("memory_offload") == "ON":
        fields |= {"memory_offload": True, "offload_param": _present("offload_context", "offload_param", OFFLOAD)}
    config = dataclasses.replace(ParallelConfig(**fields), **overrides)
    for key in overrides.keys() & RANGES_OF_2_10.keys() if get_compat() == "seeds" else ():
        PARALLEL[key](SETTING, key, getattr(config, key), SETTINGS)
    if {"device_num", "global_rank"} <= was_set.keys() - overrides.keys():
        _check_rank(config.global_rank, config.device_num, "compile")
    if "device_num" in {**was_set, **overrides} and config.device_num % config.pipeline_stages:
        allowed = f"A divisor of device_num, which is {config.device_num}"
        raise refuse(ContextConflictError, "compile", "pipeline_stages", config.pipeline_stages, allowed)
    return config


def fusion_is_switched_off() -> bool:
    """Whether comm_fusion came with openstate False since the reset: only what is set later may be fused."""
    return _value("comm_fusion").switched_off


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
    _check_rank(rank, world.world_size, "run")
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


# ---- set_algo_parameters ----


def set_algo_parameters(**settings: Any) -> None:
    """Change how strategies are searched: fully_use_devices, elementwise_op_strategy_follow, enable_algo_approxi,
    algo_approxi_epsilon (above 0, at most 1), tensor_slice_align_enable, tensor_slice_align_size (1 to 1024). Raises
    ContextError or ContextTypeError, and changes nothing then.
    """
    _add("algo_parameters", _checked(settings, "set_algo_parameters"))


def get_algo_parameters(attr_key: str) -> Any:
    """The present value of a key of `set_algo_parameters`. Raises ContextError for another key."""
    return _value(_known_key("get_algo_parameters", attr_key))


def reset_algo_parameters() -> None:
    """Every key of `set_algo_parameters` back to its default."""
    _set["algo_parameters"] = {}


def _add(function: str, checked: dict[str, Any]) -> None:
    _set[function] = {**_set[function], **checked}


def _checked(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """All values of a call of the function `where`, checked. Raises ContextError or a subclass."""
    checked = {}
    for given, value in settings.items():
        key = _known_key(where, given)
        known = _checks_of(where.removeprefix("set_"), key)
        wide = CHECKS_OF_2_10 if get_compat() == "2.10" else known
        checked[key] = wide.get(key, known[key])(where, key, value, SETTINGS)
    return checked


# ---- set_cost_model_context ----


def set_cost_model_context(**settings: Any) -> None:
    """Change constants of the cost model. The keys of its fusion of messages are read (`tables.COST_MODEL`), the others
    kept and returned; dp_algo_enable_approxi and dp_algo_approxi_epsilon are other names of enable_algo_approxi and
    algo_approxi_epsilon.

    Raises ContextError or ContextTypeError, and changes nothing then.
    """
    checked = _checked(settings, "set_cost_model_context")
    _add("algo_parameters", {DP_ALGO[key]: checked.pop(key) for key in list(checked) if key in DP_ALGO})
    _add("cost_model_context", checked)


def get_cost_model_context(attr_key: str) -> Any:
    """A key of `set_cost_model_context`, now; costmodel_beta unset is 50 for device_target "GPU", else 400."""
    key = _known_key("get_cost_model_context", attr_key)
    return _value(DP_ALGO[key]) if key in DP_ALGO else _present("cost_model_context", key, COST_MODEL)


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


def reset_cost_model_context() -> None:
    """Reset every key of `set_cost_model_context`, the two shared with `set_algo_parameters` too."""
    shared = DP_ALGO.values()
    _set["cost_model_context"] = {}
    _set["algo_parameters"] = {k: value for k, value in _set["algo_parameters"].items() if k not in shared}


# ---- set_context ----


def set_context(**settings: Any) -> None:
    """Change how things run. Read by this package:

    mode              GRAPH_MODE (0), the default: what a parallel mode compiles is compiled; or PYNATIVE_MODE (1):
                      everything runs operator by operator on each rank, in parallel_mode stand_alone, data_parallel or
                      auto_parallel
    device_target     "CPU", "GPU" or "Ascend": every one of them runs on the CPU here, the name is kept for scripts
    device_id         0 to 4095, kept like device_target
    save_graphs       False or 0, True or 2, 1, 3: whether compilations write their graphs, into save_graphs_path
    memory_offload    "ON": what backward needs of forward waits for it in the host's memory (`graph/copies.py`)

    The other keys of MindSpore (`mindspore/_settings.py`) are checked, kept and returned.
    Raises ContextError or a subclass for an unknown key or a value that is not allowed; nothing changes then.
    """
    checked = _checked(settings, "set_context")
    mode = {**_set["context"], **checked}.get("mode", GRAPH_MODE)
    _check_pynative(mode, _value("parallel_mode"), _value("dataset_strategy"), "set_context")
    _add("context", checked)


def get_context(attr_key: str) -> Any:
    """The present value of a key of `set_context`; save_graphs as a number. Raises ContextError for another key."""
    return _present("context", _known_key("get_context", attr_key), EXECUTION)


def reset_context() -> None:
    """Every key of `set_context` back to its default."""
    _set["context"] = {}


def set_offload_context(offload_config: dict[str, Any]) -> None:
    """Say what `set_context(memory_offload="ON")` does. offload_param "cpu": Parameters live on the host; "disk" is
    refused when something is compiled. The other keys of MindSpore are checked, kept and returned. Raises ContextError
    or ContextTypeError, and changes nothing then.
    """
    where = "set_offload_context"
    if not isinstance(offload_config, dict):
        raise refuse(ContextTypeError, where, "offload_config", offload_config, "A dict of settings")
    _add("offload_context", _checked(offload_config, where))


def get_offload_context() -> dict[str, Any]:
    """Every key of `set_offload_context`, as it is now."""
    keys = {**OFFLOAD, **_kept_tables().get("offload_context", {})}
    return {key: _present("offload_context", key, OFFLOAD) for key in keys}
