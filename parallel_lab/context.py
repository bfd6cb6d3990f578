"""Settings, validated when they are set and frozen when they are used; and the two hooks to what runs now: the tracer and the world.

    >>> set_auto_parallel_context(device_num=8, parallel_mode="semi_auto_parallel")
    >>> get_auto_parallel_context("device_num")
    8
    >>> reset_auto_parallel_context()

Passes never read this module: `frozen()` gives them an immutable `ParallelConfig`. Keys, ranges and classes of errors are those that MindSpore
documents for set_auto_parallel_context, set_algo_parameters, set_context and set_cost_model_context; where it accepts silently what its documents
exclude, the value is refused here. A call that is refused changes nothing, however many keys it had. `context_tables.py` lists the keys.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .context_tables import ALGORITHM, COMPOSED, COST_MODEL, DEFAULTS_OF_2_10, EXECUTION, GRAPH_MODE, PARALLEL, PARTS, PYNATIVE_MODE, Checks, Table
from .errors import ContextConflictError, ContextError, ContextPathError, ContextTypeError, message, shorten
from .parallel_config import Fusion, ParallelConfig, resolved_fusion
from .settings import PARALLEL_MODES, SETTING, choice, integer, nearest, refuse

__all__ = [
    "GRAPH_MODE",
    "PARALLEL_MODES",
    "PYNATIVE_MODE",
    "ParallelConfig",
    "ParallelMode",
    "cell_runner",
    "cells_at_once",
    "current_step",
    "current_tracer",
    "current_world",
    "default_settings",
    "frozen",
    "frozen_for_run",
    "fusion_is_switched_off",
    "get_algo_parameters",
    "get_auto_parallel_context",
    "get_compat",
    "get_context",
    "get_cost_model_context",
    "get_dataset_seed",
    "get_seed",
    "held_messages",
    "is_set",
    "next_draw",
    "on_tape",
    "reset_algo_parameters",
    "reset_auto_parallel_context",
    "reset_context",
    "reset_cost_model_context",
    "set_algo_parameters",
    "set_auto_parallel_context",
    "set_compat",
    "set_context",
    "set_cost_model_context",
    "set_seed",
    "set_cell_runner",
    "set_dataset_seed",
    "set_world",
    "temporary_seed",
]

# The recorder that operators write to while a Cell is traced; None = operators run at once. The only hook through which an operator (floor 1) or a
# Tensor (floor 2) reaches the tracer (floor 3).
current_tracer: ContextVar[Any] = ContextVar("parallel_lab_tracer", default=None)

# The training step that is being taken outside a trace, an object with a `number`; None where nobody counts. Random masks depend on it.
current_step: ContextVar[Any] = ContextVar("parallel_lab_step", default=None)

# The messages of operators with a `fusion` number that the Cell running now has not sent yet, {what they have in common: message}; None outside of
# the outermost Cell. The hook between a Cell (floor 2) that ends and the operators (floor 1) it called.
held_messages: ContextVar[dict[tuple[Any, ...], Any] | None] = ContextVar("parallel_lab_held_messages", default=None)


# The rank that this process is (`run.world.World`), once `communication.init` has connected it; None in a process that is no rank: the hook through
# which operators and layers (floors 1, 2) reach the communicator (floor 5). A plain name, not a ContextVar: it holds for all threads of the process.
_world: Any = None


def current_world() -> Any:
    """The world this process is a rank of, or None."""
    return _world


def set_world(world: Any) -> None:
    """Make `world` the one that operators use; None: this process is no rank any more."""
    global _world
    _world = world


def _at_once(cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return NotImplemented


# What runs a Cell that is called outside any trace: the hook through which a Cell (floor 2) reaches compiled programs (floor 5). It returns
# NotImplemented where the Cell runs at once. Installed with the world.
_cell_runner: Any = _at_once


def cell_runner() -> Any:
    """The function of (cell, args, kwargs) that a Cell called outside any trace asks first."""
    return _cell_runner


def set_cell_runner(runner: Any) -> None:
    """Let `runner` decide how Cells run; None: at once."""
    global _cell_runner
    _cell_runner = _at_once if runner is None else runner


@contextmanager
def cells_at_once() -> Iterator[None]:
    """Inside, Cells run at once whatever the parallel mode is: what they compute is no tensor of a network, such as a learning rate."""
    global _cell_runner
    runner, _cell_runner = _cell_runner, _at_once
    try:
        yield
    finally:
        _cell_runner = runner


# Whether a function runs on the tape because its gradient was asked for: a Cell that would run compiled now has to say that it leaves no trace there.
on_tape: ContextVar[bool] = ContextVar("parallel_lab_on_tape", default=False)


class ParallelMode:
    """The five values of `parallel_mode`, under MindSpore's names. They are plain texts."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    HYBRID_PARALLEL = "hybrid_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"
    MODE_LIST = PARALLEL_MODES


# ---- what was set: key -> value, only keys that were set. Replaced whole, never changed in place, so that a refused call leaves no trace ----

_parallel: dict[str, Any] = {}  # keys of PARALLEL and of PARTS; "comm_fusion" a Fusion
_algorithm: dict[str, Any] = {}
_cost_model: dict[str, Any] = {}
_execution: dict[str, Any] = {}
_compat = "seeds"
_seed = 1

_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(ParallelConfig)} | {"comm_fusion": Fusion()}
_PARALLEL_KEYS: Checks = {**PARALLEL, **COMPOSED}
_FUNCTIONS: dict[str, Any] = {  # what follows set_ and get_ in their names: their keys
    "auto_parallel_context": _PARALLEL_KEYS,
    "algo_parameters": ALGORITHM,
    "context": EXECUTION,
    "cost_model_context": COST_MODEL,
}


def _default(key: str) -> Any:
    return DEFAULTS_OF_2_10[key] if _compat == "2.10" and key in DEFAULTS_OF_2_10 else _DEFAULTS[key]


def _kept(key: str) -> Any:
    """The present value of a field of ParallelConfig; a Fusion for comm_fusion."""
    store = _algorithm if key in ALGORITHM else _parallel
    return store[key] if key in store else _default(key)


# ---- set_auto_parallel_context ----


def set_auto_parallel_context(**settings: Any) -> None:
    """Change parallel settings; their meaning is told at `ParallelConfig`, their ranges in `context_tables.py`.

    Beside the fields of ParallelConfig there are keys that stand for others: full_batch (dataset_strategy "full_batch" or not), sharding_propagation
    and auto_parallel_search_mode (search_mode), all_reduce_fusion_config (comm_fusion, allreduce by index), and the dicts parallel_optimizer_config,
    strategy_ckpt_config and pipeline_config. The folder of a strategy_ckpt_save_file or group_ckpt_save_file is made if it is missing.

    Raises ContextError (a ValueError) for an unknown key and a value out of range, ContextTypeError (also a TypeError) for a wrong type,
    ContextKeyError (also a KeyError) for a wrong key in a dict, ContextStrategyError (also a RuntimeError) for cuts of a dataset_strategy that are no
    power of two, ContextConflictError (also a RuntimeError) for keys of one call that contradict each other. Nothing changes then.
    """
    global _parallel
    where = "set_auto_parallel_context"
    checked = _checked(settings, _PARALLEL_KEYS, where)
    state = {**_parallel, **_combined(checked, where)}
    mode = _execution.get("mode", GRAPH_MODE)
    _check_pynative(mode, state.get("parallel_mode", "stand_alone"), state.get("dataset_strategy"), where)
    if "device_num" in checked and "global_rank" in checked:
        _check_rank(checked["global_rank"], checked["device_num"], where)
    for key in ("strategy_ckpt_save_file", "group_ckpt_save_file"):
        if state.get(key) and state.get(key) != _parallel.get(key):
            _make_folder(key, state[key], where)
    _parallel = state


def get_auto_parallel_context(attr_key: str) -> Any:
    """The present value of a key, in the form it was set in: dicts for the dict keys, a list for all_reduce_fusion_config.

    device_num and global_rank read 1 and 0 until they are set (`is_set` tells). comm_fusion holds every kind of message. With compat "2.10" a
    dataset_strategy of tuples reads as nested lists. Raises ContextError for an unknown key, ContextTypeError for a key that is no text.
    """
    where = "get_auto_parallel_context"
    key = _known_key(where, attr_key, _PARALLEL_KEYS)
    if key == "full_batch":
        return _kept("dataset_strategy") == "full_batch"
    if key == "auto_parallel_search_mode":
        return _kept("search_mode")
    if key == "sharding_propagation":
        return _kept("search_mode") == "sharding_propagation"
    if key == "all_reduce_fusion_config":
        return _kept("comm_fusion").indices()
    if key == "comm_fusion":
        return _kept("comm_fusion").as_dict()
    if key in PARTS:
        return {name: _kept(kept) for name, (kept, _) in PARTS[key].items()}
    value = _kept(key)
    if key == "dataset_strategy" and _compat == "2.10" and isinstance(value, tuple):
        return [list(cuts) if isinstance(cuts, tuple) else cuts for cuts in value]
    return value


def reset_auto_parallel_context() -> None:
    """Every key of `set_auto_parallel_context` back to its default. Other settings keep their values."""
    global _parallel
    _parallel = {}


def is_set(key: str) -> bool:
    """Whether a field of ParallelConfig was set since the last reset: a device_num that was not is asked of the process group.

    Raises ContextError for another key.
    """
    return _known_key("is_set", key, tuple(_DEFAULTS)) in {**_parallel, **_algorithm}


def _combined(checked: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields that a call's keys stand for. Raises ContextConflictError if two keys of the call give one field different values."""
    fields: dict[str, Any] = {}
    source: dict[str, str] = {}
    for key, value in checked.items():
        for field, part in _stands_for(key, value, checked).items():
            if field in fields and fields[field] != part:
                what = f"{source[field]} and {key} give {field} two values, {shorten(fields[field], 60)} and {shorten(part, 60)}"
                raise ContextConflictError(message(what, where=where, allowed="Give one of them"))
            fields[field], source[field] = part, key
    fusion = {field.removeprefix(_FUSION): fields.pop(field) for field in list(fields) if field.startswith(_FUSION)}
    if fusion:
        fields["comm_fusion"] = _kept("comm_fusion").after(fusion, off_is_final=_compat == "seeds")
    return fields


_FUSION = "comm_fusion."


def _stands_for(key: str, value: Any, checked: dict[str, Any]) -> dict[str, Any]:
    """The fields that one key of a call gives; those of comm_fusion one by one, each with a prefix. `checked`: all keys of the call."""
    if key in PARTS:
        return {PARTS[key][name][0]: part for name, part in value.items()}
    if key == "comm_fusion":
        return {_FUSION + kind: part for kind, part in value.items()}
    if key == "all_reduce_fusion_config":
        return {_FUSION + "allreduce": {"mode": "index", "config": value}}
    if key == "full_batch":  # False says only that inputs are not global: cuts of the inputs stay
        others = checked.get("dataset_strategy", _kept("dataset_strategy"))
        return {"dataset_strategy": "full_batch" if value else "data_parallel" if others == "full_batch" else others}
    if key == "sharding_propagation":  # False says only that it is not this search
        others = checked.get("search_mode", checked.get("auto_parallel_search_mode", _kept("search_mode")))
        return {"search_mode": key if value else _default("search_mode") if others == key else others}
    return {"search_mode" if key == "auto_parallel_search_mode" else key: value}


def _check_pynative(mode: int, parallel_mode: str, dataset_strategy: Any, where: str) -> None:
    """Raise ContextError for what PyNative mode cannot run."""
    if mode != PYNATIVE_MODE:
        return
    hint = "Set mode=GRAPH_MODE first, with set_context"
    if parallel_mode in ("hybrid_parallel", "semi_auto_parallel"):
        allowed = "In PyNative mode: 'stand_alone', 'data_parallel' or 'auto_parallel'"
        raise refuse(ContextError, "parallel_mode", parallel_mode, allowed, where, hint)
    if isinstance(dataset_strategy, tuple):
        allowed = "In PyNative mode: 'full_batch' or 'data_parallel'"
        raise refuse(ContextError, "dataset_strategy", dataset_strategy, allowed, where, hint)


def _check_rank(global_rank: int, device_num: int, where: str) -> None:
    if global_rank >= device_num:
        allowed = f"Below device_num, which is {device_num}"
        raise refuse(ContextConflictError, "global_rank", global_rank, allowed, where)


def _make_folder(key: str, file: str, where: str) -> None:
    folder = os.path.dirname(file)
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise refuse(ContextPathError, key, file, "A file in a folder that is there or can be made", where, error.strerror or "") from error


def _known_key(where: str, key: object, known: Iterable[str]) -> str:
    """`key` as plain text. Raises ContextTypeError if it is none, ContextError, with the nearest key or the function that has it, if not known."""
    if not issubclass(type(key), str):
        raise refuse(ContextTypeError, "key", key, "The key is a text (str)", where)
    plain = str.__str__(key)
    if plain in known:
        return plain
    verb, _, function = where.partition("_")
    others = [f"{verb}_{name}" for name, keys in _FUNCTIONS.items() if plain in keys and name != function and function in _FUNCTIONS]
    inside = [dict_key for dict_key, parts in PARTS.items() if plain in parts]
    hint = f"{others[0]} knows it" if others else f"It stands inside the dict {inside[0]}" if inside else nearest(plain, known)
    # the hint comes first: behind all the keys nobody would find it
    what = f"key {shorten(plain)} is not known{f'. {hint}' if hint else ''}"
    raise ContextError(message(what, where=where, allowed=f"Keys: {', '.join(sorted(known))}"))


# ---- what passes and runs receive ----


def frozen(**overrides: Any) -> ParallelConfig:
    """The settings now, with `overrides` of fields of ParallelConfig, as the immutable value that passes receive.

    Raises ContextError for an override out of range; ContextConflictError (also a RuntimeError), as MindSpore when it compiles, if global_rank and
    device_num were both set and do not fit, or if device_num is known and pipeline_stages does not divide it.
    """
    fusion = _kept("comm_fusion")
    if isinstance(overrides.get("comm_fusion"), dict):
        overrides["comm_fusion"] = resolved_fusion(overrides["comm_fusion"], SETTING, "comm_fusion", off_is_final=_compat == "seeds")
    kept = {key: value for key, value in {**_parallel, **_algorithm}.items() if key != "comm_fusion"}
    if _compat == "2.10":
        kept = {**DEFAULTS_OF_2_10, **kept}
    kept["cost_model_fusion"] = _cost_model_fusion()
    config = dataclasses.replace(ParallelConfig(comm_fusion=fusion.resolved(), **kept), **overrides)
    if "global_rank" in _parallel and "device_num" in _parallel and "device_num" not in overrides and "global_rank" not in overrides:
        _check_rank(config.global_rank, config.device_num, "compile")
    if ("device_num" in _parallel or "device_num" in overrides) and config.device_num % config.pipeline_stages:
        allowed = f"A divisor of device_num, which is {config.device_num}"
        raise refuse(ContextConflictError, "pipeline_stages", config.pipeline_stages, allowed, "compile")
    return config


def fusion_is_switched_off() -> bool:
    """Whether a comm_fusion with openstate False has come since the reset: what is set later may be fused, and nothing else."""
    return _kept("comm_fusion").switched_off


def frozen_for_run(**overrides: Any) -> ParallelConfig:
    """`frozen()` for a run of this process: device_num and global_rank that were not set are those of its world, 1 and 0 in stand_alone.

    Raises ContextError if device_num was set to more than 1 in stand_alone, ContextConflictError if it was set and is not the number of ranks.
    """
    config, world = frozen(**overrides), current_world()
    chosen = {"device_num", "global_rank"} & (set(_parallel) | set(overrides))
    if config.parallel_mode == "stand_alone":
        if "device_num" in chosen and config.device_num != 1:
            hint = "Set parallel_mode too, for example 'data_parallel'"
            raise refuse(ContextError, "device_num", config.device_num, "1 in parallel_mode 'stand_alone'", "run", hint)
        return dataclasses.replace(config, device_num=1, global_rank=0)
    if world is None:
        return config
    if "device_num" in chosen and config.device_num != world.world_size:
        allowed = f"{world.world_size}, the number of ranks that were started"
        raise refuse(ContextConflictError, "device_num", config.device_num, allowed, "run", "Leave device_num away: it is asked of the process group")
    rank = config.global_rank if "global_rank" in chosen else world.rank
    _check_rank(rank, world.world_size, "run")
    return frozen(**{**overrides, "device_num": world.world_size, "global_rank": rank})


@contextmanager
def default_settings() -> Iterator[None]:
    """Inside, the settings of parallel training, of strategy searches and of the cost model are their defaults; what is set inside is forgotten.

    For a lab: it shows what its own controls say, whatever the notebook has set beside it.
    """
    global _parallel, _algorithm, _cost_model
    before = _parallel, _algorithm, _cost_model
    _parallel, _algorithm, _cost_model = {}, {}, {}
    try:
        yield
    finally:
        _parallel, _algorithm, _cost_model = before


# ---- set_algo_parameters ----


def set_algo_parameters(**settings: Any) -> None:
    """Change how strategies are searched: fully_use_devices, elementwise_op_strategy_follow, enable_algo_approxi, algo_approxi_epsilon (above 0, at
    most 1), tensor_slice_align_enable, tensor_slice_align_size (1 to 1024). Raises ContextError or ContextTypeError, and changes nothing then."""
    global _algorithm
    _algorithm = {**_algorithm, **_checked(settings, ALGORITHM, "set_algo_parameters")}


def get_algo_parameters(attr_key: str) -> Any:
    """The present value of a key of `set_algo_parameters`. Raises ContextError for another key."""
    return _kept(_known_key("get_algo_parameters", attr_key, ALGORITHM))


def reset_algo_parameters() -> None:
    """Every key of `set_algo_parameters` back to its default."""
    global _algorithm
    _algorithm = {}


def _checked(settings: dict[str, Any], checks: Checks, where: str) -> dict[str, Any]:
    """All values of a call, checked. Raises ContextError or a subclass."""
    return {(key := _known_key(where, given, checks)): checks[key](key, value, where) for given, value in settings.items()}


def _checks(table: Table) -> Checks:
    return {key: check for key, (_, check) in table.items()}


# ---- set_cost_model_context ----


def set_cost_model_context(**settings: Any) -> None:
    """Change constants of the cost model that searches use; they are kept until a search reads them. Keys: `context_tables.COST_MODEL`, and
    dp_algo_enable_approxi and dp_algo_approxi_epsilon, other names of enable_algo_approxi and algo_approxi_epsilon.

    Raises ContextError or ContextTypeError, and changes nothing then.
    """
    global _cost_model, _algorithm
    checks = {**_checks(COST_MODEL), **{key: ALGORITHM[kept] for key, kept in _DP_ALGO.items()}}
    checked = _checked(settings, checks, "set_cost_model_context")
    _algorithm = {**_algorithm, **{_DP_ALGO[key]: value for key, value in checked.items() if key in _DP_ALGO}}
    _cost_model = {**_cost_model, **{key: value for key, value in checked.items() if key not in _DP_ALGO}}


_DP_ALGO = {"dp_algo_enable_approxi": "enable_algo_approxi", "dp_algo_approxi_epsilon": "algo_approxi_epsilon"}


def get_cost_model_context(attr_key: str) -> Any:
    """The present value of a key of `set_cost_model_context`; costmodel_beta is 50 with device_target "GPU" until it is set, else 400."""
    key = _known_key("get_cost_model_context", attr_key, (*COST_MODEL, *_DP_ALGO))
    if key in _DP_ALGO:
        return _kept(_DP_ALGO[key])
    if key == "costmodel_beta" and key not in _cost_model:
        return 50.0 if get_context("device_target") == "GPU" else COST_MODEL[key][0]
    return _cost_model.get(key, COST_MODEL[key][0])


_FUSION_KEYS = "costmodel_allreduce_fusion_"  # what the keys of the cost model's fusion begin with


def _cost_model_fusion() -> tuple[Any, ...] | None:
    """`ParallelConfig.cost_model_fusion` of the keys costmodel_allreduce_fusion_*; None where MindSpore passes the fusion by: algorithm 0, fewer than
    two times, a time of 0, a tail that is not above what every message takes."""
    now = {key.removeprefix(_FUSION_KEYS): _cost_model.get(key, default) for key, (default, _) in COST_MODEL.items() if key.startswith(_FUSION_KEYS)}
    if now["algorithm"] == 1 and now["times"] >= 2:
        return "times", now["times"], now["tail_percent"]
    hiding = (now["tail_time"], now["allreduce_inherent_time"], now["allreduce_bandwidth"], now["computation_time_parameter"])
    if now["algorithm"] == 2 and min(hiding) > 0 and hiding[0] > hiding[1]:
        return "hiding", *hiding
    return None


def reset_cost_model_context() -> None:
    """Every key of `set_cost_model_context` back to its default, the two that are shared with `set_algo_parameters` too."""
    global _cost_model, _algorithm
    _cost_model = {}
    _algorithm = {key: value for key, value in _algorithm.items() if key not in _DP_ALGO.values()}


# ---- set_context ----


def set_context(**settings: Any) -> None:
    """Change how things run. Read by this package:

    mode              GRAPH_MODE (0), the default: what a parallel mode compiles is compiled; or PYNATIVE_MODE (1): everything runs operator by
                      operator on each rank, in parallel_mode stand_alone, data_parallel or auto_parallel
    device_target     "CPU", "GPU" or "Ascend": every one of them runs on the CPU here, the name is kept for scripts
    device_id         0 to 4095, kept like device_target
    save_graphs       False or 0, True or 2, 1, 3: whether compilations write their graphs, into save_graphs_path

    The other keys of MindSpore (`context_tables.EXECUTION`) are checked, kept and returned.
    Raises ContextError or a subclass for an unknown key or a value that is not allowed; nothing changes then.
    """
    global _execution
    state = {**_execution, **_checked(settings, _checks(EXECUTION), "set_context")}
    _check_pynative(state.get("mode", GRAPH_MODE), _kept("parallel_mode"), _kept("dataset_strategy"), "set_context")
    _execution = state


def get_context(attr_key: str) -> Any:
    """The present value of a key of `set_context`; save_graphs as a number. Raises ContextError for another key."""
    key = _known_key("get_context", attr_key, EXECUTION)
    return copy.deepcopy(_execution.get(key, EXECUTION[key][0]))  # a dict that the caller changes is the caller's


def reset_context() -> None:
    """Every key of `set_context` back to its default."""
    global _execution
    _execution = {}


# ---- which MindSpore, and the seed ----


def set_compat(version: str) -> None:
    """Choose where the seeds' documents and MindSpore 2.10 differ: "seeds" (the default) or "2.10". Settings that were set keep their values.

    With "2.10", search_mode is recursive_programming, fully_use_devices and gradient_accumulation_shard are False by default; a kind of message set
    after comm_fusion's openstate False is fused again; a dataset_strategy of tuples reads as lists. Raises ContextError for another version.
    """
    global _compat
    _compat = choice("seeds", "2.10")("compat", version, "set_compat")


def get_compat() -> str:
    """ "seeds" or "2.10"."""
    return _compat


def set_seed(seed: int) -> None:
    """Seed of every random draw of the package. Parameters that were already drawn keep their values.

    seed  an int from 0 to 2^64 - 1. Raises ContextTypeError (a TypeError), ContextError (a ValueError).
    """
    global _seed, _draws
    _seed, _draws = _check_seed("seed", seed, "set_seed"), 0


_check_seed = integer(0, 2**64 - 1)  # `World.agree` sends it as a uint64


def get_seed() -> int:
    """The present global seed."""
    return _seed


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Draw with `seed` within the block, as a fresh process would after `set_seed(seed)`; afterwards everything is as before.

    A Parameter draws when it is first read: read in the block what is to be drawn there. Datasets that were given a seed of their own keep it.
    """
    global _seed, _draws
    before = _seed, _draws
    set_seed(seed)
    try:
        yield
    finally:
        _seed, _draws = before


_draws = 0


def next_draw() -> int:
    """How often this was asked since the last `set_seed`: tells things apart that draw and have no name, such as operators made without a network.

    The same on all ranks, if they make the same things in the same order.
    """
    global _draws
    _draws += 1
    return _draws - 1


_dataset_seed: int | None = None


def set_dataset_seed(seed: int | None) -> None:
    """Seed of the datasets' orders and augmentations alone; None: the global seed (the default). Errors as `set_seed`."""
    global _dataset_seed
    _dataset_seed = None if seed is None else _check_seed("seed", seed, "set_dataset_seed")


def get_dataset_seed() -> int:
    """What datasets draw with: their own seed if they were given one, else the global one."""
    return _seed if _dataset_seed is None else _dataset_seed
