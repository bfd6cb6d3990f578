"""The functions that set settings, validated: a call that is refused changes nothing, however many keys it had.

    >>> set_auto_parallel_context(device_num=8, parallel_mode="semi_auto_parallel")
    >>> get_auto_parallel_context("device_num")
    8
    >>> reset_auto_parallel_context()

Keys, ranges and classes of errors are those that MindSpore documents for set_auto_parallel_context,
set_algo_parameters, set_context and set_cost_model_context; where it accepts silently what its documents exclude, the
value is refused here. `tables.py` lists the keys, `current.py` holds the values, and hands them out frozen.
"""

from __future__ import annotations

import os
from typing import Any

from ..errors import ContextConflictError, ContextError, ContextPathError, ContextTypeError, shorten
from .checks import PARALLEL_MODES, SETTINGS, refuse
from .compat import get_compat, set_compat  # noqa: F401 - it sets, too
from .current import (  # noqa: F401 - what reads settings is found among what sets them
    _set,
    check_rank,
    checks_of,
    default_of,
    default_settings,
    frozen,
    frozen_for_run,
    fusion_is_switched_off,
    get_algo_parameters,
    get_auto_parallel_context,
    get_context,
    get_cost_model_context,
    get_offload_context,
    is_set,
    keep_also,
    known_key,
    value_now,
)
from .tables import CHECKS_OF_2_10, DP_ALGO, GRAPH_MODE, PARTS, PYNATIVE_MODE


class ParallelMode:
    """The five values of `parallel_mode`, under MindSpore's names. They are plain texts."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    HYBRID_PARALLEL = "hybrid_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"
    MODE_LIST = PARALLEL_MODES


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
        check_rank(checked["global_rank"], checked["device_num"], where)
    for key in ("strategy_ckpt_save_file", "group_ckpt_save_file"):
        if state.get(key) and state.get(key) != before.get(key):
            _make_folder(key, state[key], where)
    _set["auto_parallel_context"] = state


def reset_auto_parallel_context() -> None:
    """Every key of `set_auto_parallel_context` back to its default. Other settings keep their values."""
    _set["auto_parallel_context"] = {}


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
        fields["comm_fusion"] = value_now("comm_fusion").after(fusion, off_is_final=get_compat() == "seeds")
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
        others = checked.get("dataset_strategy", value_now("dataset_strategy"))
        if get_compat() == "2.10" and isinstance(
            others, tuple
        ):  # there a strategy per input counts, whatever this says
            return {"dataset_strategy": others}
        return {"dataset_strategy": "full_batch" if value else "data_parallel" if others == "full_batch" else others}
    if key == "sharding_propagation":  # False says only that it is not this search
        others = checked.get("search_mode", checked.get("auto_parallel_search_mode", value_now("search_mode")))
        return {"search_mode": key if value else default_of("search_mode") if others == key else others}
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


def _make_folder(key: str, file: str, where: str) -> None:
    folder = os.path.dirname(file)
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        allowed = "A file in a folder that exists or can be made"
        raise refuse(ContextPathError, where, key, file, allowed, error.strerror or "") from error


# ---- set_algo_parameters ----


def set_algo_parameters(**settings: Any) -> None:
    """Change how strategies are searched: fully_use_devices, elementwise_op_strategy_follow, enable_algo_approxi,
    algo_approxi_epsilon (above 0, at most 1), tensor_slice_align_enable, tensor_slice_align_size (1 to 1024). Raises
    ContextError or ContextTypeError, and changes nothing then.
    """
    _add("algo_parameters", _checked(settings, "set_algo_parameters"))


def reset_algo_parameters() -> None:
    """Every key of `set_algo_parameters` back to its default."""
    _set["algo_parameters"] = {}


def _add(function: str, checked: dict[str, Any]) -> None:
    _set[function] = {**_set[function], **checked}


def _checked(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """All values of a call of the function `where`, checked. Raises ContextError or a subclass."""
    checked = {}
    for given, value in settings.items():
        key = known_key(where, given)
        known = checks_of(where.removeprefix("set_"), key)
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
    _check_pynative(mode, value_now("parallel_mode"), value_now("dataset_strategy"), "set_context")
    _add("context", checked)


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
