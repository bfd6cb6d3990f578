"""Checks of settings: the kit of `checks.py` with the classes of the context, and the settings that have parts.

    >>> PIPELINE["stages"]("AutoParallel.pipeline", "stages", 0, SETTINGS)
    Traceback (most recent call last):
    parallel_lab.base.errors.ContextError: AutoParallel.pipeline: stages=0. An int from 1 to 4096.

A refusal names the key, the value (at most 80 characters of it) and what is allowed. Its class is the one that
MindSpore documents for that key, and always a `ContextError` (a ValueError): TypeError for a wrong type, KeyError for a
wrong key inside a dict, RuntimeError where MindSpore refuses a value when it compiles. numpy's numbers are refused, and
an int is not a float. What is stored is plain: subclasses of int, float, str, list, tuple or dict by the base class.

`context.py` uses these for its functions, the class `AutoParallel` for its methods: same refusals, same words.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from .. import checks
from ..checks import INT_LIMIT, Errors, choice, flag, is_int, nearest
from ..errors import (
    ContextError,
    ContextKeyError,
    ContextStrategyError,
    ContextTypeError,
    LayoutError,
    LayoutTypeError,
    shorten,
)
from ..hooks import from_above

SETTINGS = Errors(ContextTypeError, ContextError)
Check = Callable[..., Any]  # (where, key, value, errors) -> the value in plain types

PARALLEL_MODES = ("stand_alone", "data_parallel", "hybrid_parallel", "semi_auto_parallel", "auto_parallel")
LOCAL_MODES = ("data_parallel", "hybrid_parallel")  # every rank runs the whole network on its own part of the batch
SHARDED_MODES = ("semi_auto_parallel", "auto_parallel")  # operators are split among the ranks
SEARCH_MODES = ("dynamic_programming", "recursive_programming", "sharding_propagation")
OPTIMIZER_LEVELS = ("level1", "level2", "level3")
SCHEDULERS = ("1f1b", "gpipe", "zero_bubble_v")
MORE_SCHEDULERS = ("seqpipe", "seqvpp", "seqsmartvpp")  # MindSpore's, and not here
FUSED_MESSAGES = {
    "allreduce": ("auto", "size", "index"),
    "allgather": ("auto", "size"),
    "reducescatter": ("auto", "size"),
}
FUSION_WORDINGS = ("inclusive", "first_n")  # positions: each index ends a message; or so many messages come first
MAX_DEVICES = 4096
INTERLEAVED = "interleaved_parallel"  # name of an axis of a Layout: no ranks, parts of what one rank computes
SETTING = "parallel setting"  # what `where` says when the caller is ParallelConfig or the context


def refuse(kind: type[ContextError], where: str, key: str, value: Any, allowed: str, hint: str = "") -> ContextError:
    """The error to raise for `key=value`."""
    return kind(f"{key}={shorten(value)}", where=where, allowed=allowed, hint=hint)


# ---- one value, in Python's own types only ----

boolean = flag
path = checks.path_text()


def integer(low: int, high: int = INT_LIMIT, also: tuple[int, ...] = ()) -> checks.Check:
    """An int from `low` to `high`, or one of `also`."""
    return checks.integer(low, high, also=also, kinds=int)


def number(low: float, high: float = math.inf, *, above: bool = False, below: bool = False) -> checks.Check:
    """A finite float from `low` to `high`; above, below: without the ends themselves."""
    return checks.number(low, high, above=above, below=below, kinds=float)


def shard_size(least: int) -> Check:
    """An optimizer shard size: -1 (all ranks that hold the same slice), or a count of ranks, at least `least`."""
    return integer(least, MAX_DEVICES, also=(-1,))


def scheduler(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> str:
    """The name of a pipeline's schedule: MindSpore's, or one of ours."""
    plain = str.__str__(value) if issubclass(type(value), str) else ""
    if plain in MORE_SCHEDULERS:
        allowed = f"One of {', '.join(map(repr, SCHEDULERS))}: MindSpore's {plain!r} is not available here"
        raise refuse(ContextError, where, key, value, allowed)
    known = SCHEDULERS if plain in SCHEDULERS else from_above("schedule_names")()
    return choice(*dict.fromkeys((*SCHEDULERS, *known)))(where, key, value, errors)


# keywords of AutoParallel.hsdp and AutoParallel.pipeline
HSDP = {
    "shard_size": shard_size(1),  # MindSpore: a positive int or -1; 1 shares with nobody
    "threshold": integer(0),  # KB
    "optimizer_level": choice(*OPTIMIZER_LEVELS),
}
PIPELINE = {
    "stages": integer(1, MAX_DEVICES),
    "output_broadcast": boolean,
    "interleave": boolean,
    "scheduler": scheduler,
}


def json_path(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> str:
    """The path of an operator strategy file. Raises ContextKeyError unless it is absolute and ends in .json."""
    plain = path(where, key, value, errors)
    if not os.path.isabs(plain) or os.path.splitext(plain)[1] != ".json":
        allowed = "An absolute path that ends in .json, such as '/tmp/strategy.json'"
        raise refuse(ContextKeyError, where, key, plain, allowed)
    return plain


# ---- dicts ----


def mapping(**parts: Check) -> Check:
    """A dict with some of the given keys. Unknown keys: ContextKeyError, MindSpore's KeyError and ValueError in one."""

    def check(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> dict[str, Any]:
        known = _known_parts(where, key, value, parts)
        return {name: parts[name](where, f"{key}[{name!r}]", part, errors) for name, part in known}

    return check


def _known_parts(where: str, key: str, value: Any, known: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """(key, value) of a dict with keys among `known`. Raises ContextTypeError, ContextKeyError."""
    keys = ", ".join(map(repr, known))
    if not issubclass(type(value), dict):
        raise refuse(ContextTypeError, where, key, value, f"A dict with some of the keys {keys}")
    for name, part in dict.items(value):
        is_text = issubclass(type(name), str)
        if not is_text or str.__str__(name) not in known:
            hint = nearest(str.__str__(name), known) if is_text else ""
            raise ContextKeyError(f"{key} has the key {shorten(name)}", where=where, allowed=f"Keys: {keys}", hint=hint)
        yield str.__str__(name), part


def check_pipeline_config(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> dict[str, Any]:
    """pipeline_interleave and pipeline_scheduler. Without chunks the only scheduler of this dict is "1f1b" (MindSpore's
    rule and its TypeError; `AutoParallel.pipeline` takes the others).
    """
    plain = mapping(pipeline_interleave=boolean, pipeline_scheduler=scheduler)(where, key, value, errors)
    if not plain.get("pipeline_interleave") and plain.get("pipeline_scheduler", "1f1b") != "1f1b":
        allowed = "'1f1b' without pipeline_interleave; AutoParallel.pipeline(scheduler=...) takes others"
        raise refuse(ContextTypeError, where, f"{key}['pipeline_scheduler']", plain["pipeline_scheduler"], allowed)
    return plain


# ---- communication fusion ----


def check_fusion_indices(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> list[int]:
    """Positions of parameters after which a fused message ends: a list of rising, non-negative ints, at least one.

    A negative index is a ContextTypeError: MindSpore's TypeError comes from an unsigned number of the layer below.
    """
    allowed = f"{key} is a list of rising ints, none negative, such as [20, 35]"
    if not issubclass(type(value), list):
        raise refuse(ContextTypeError, where, key, value, allowed)
    parts = list(list.__iter__(value))
    if not parts:
        raise refuse(ContextError, where, key, value, allowed)
    for part in parts:
        if not is_int(part) or int.__index__(part) < 0:
            raise refuse(ContextTypeError, where, key, value, f"{allowed}; {shorten(part, 40)} is not")
    plain = [int.__index__(part) for part in parts]
    for before, after in pairwise(plain):
        if before >= after:
            fault = "comes twice" if before == after else f"comes after {shorten(before, 40)}"
            raise refuse(ContextError, where, key, value, f"{allowed}; {shorten(after, 40)} {fault}")
    if plain[-1] > INT_LIMIT:
        raise refuse(ContextError, where, key, value, f"{allowed}, each at most {INT_LIMIT}")
    return plain


def check_comm_fusion(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> dict[str, Any]:
    """A fusion setting such as {"openstate": True, "allreduce": {"mode": "size", "config": 32}}, as a new dict.

    "allreduce" knows the modes auto (config None), size (config MB) and index (config as `check_fusion_indices`);
    "allgather" and "reducescatter" know auto and size. Raises ContextTypeError for a part of the wrong type,
    ContextKeyError for a wrong or missing key and for an unknown mode, ContextError for a size below 0. MindSpore
    ignores a config next to mode "auto", and keys other than "mode" and "config": here they are refused.
    """
    plain: dict[str, Any] = {}
    for name, part in _known_parts(where, key, value, ("openstate", *FUSED_MESSAGES)):
        place = f"{key}[{name!r}]"
        if name == "openstate":
            plain[name] = boolean(where, place, part, SETTINGS)
        else:
            plain[name] = _fusion(where, place, part, FUSED_MESSAGES[name])
    return plain


def comm_fusion_of_2_10(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> dict[str, Any]:
    """`check_comm_fusion`, which takes no notice of a config next to mode "auto": so does MindSpore 2.10 (recorded)."""
    plain = value
    if type(value) is dict:
        plain = {name: {**part, "config": None} if _is_auto(part) else part for name, part in value.items()}
    return check_comm_fusion(where, key, plain, errors)


def _is_auto(part: object) -> bool:
    return type(part) is dict and "config" in part and type(part.get("mode")) is str and part["mode"] == "auto"


def _fusion(where: str, place: str, value: Any, modes: tuple[str, ...]) -> dict[str, Any]:
    """The mode and config of one kind of message."""
    given: dict[str, Any] = dict(_known_parts(where, place, value, ("mode", "config")))
    missing = [name for name in ("mode", "config") if name not in given]
    if missing:
        allowed = f"The key {missing[0]!r} is missing; both 'mode' and 'config' are needed"
        raise refuse(ContextKeyError, where, place, value, allowed)
    mode, config = given["mode"], given["config"]
    if not issubclass(type(mode), str) or str.__str__(mode) not in modes:
        raise refuse(ContextKeyError, where, f"{place}['mode']", mode, f"mode is one of {modes}")
    mode, place = str.__str__(mode), f"{place}['config']"
    if mode == "size":
        return {"mode": mode, "config": integer(0)(where, place, config, SETTINGS)}
    if mode == "index":
        return {"mode": mode, "config": check_fusion_indices(where, place, config)}
    if config is not None:
        hint = "With mode 'size' it is the threshold in MB"
        raise refuse(ContextTypeError, where, place, config, "With mode 'auto', config is None", hint)
    return {"mode": mode, "config": None}


# ---- how batches are fed ----


@runtime_checkable
class NamedLayout(Protocol):
    """What is needed of a `Layout` here, without importing the room that has it."""

    device_matrix: tuple[int, ...]
    alias_name: tuple[str, ...]
    dims: tuple[Any, ...] | None


def check_dataset_strategy(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> str | tuple[Any, ...]:
    """How the ranks are fed: "full_batch", "data_parallel", or per input a tuple of counts (one per dim) or a `Layout`.

    Raises ContextTypeError for another type, ContextError for another text, no input at all or a Layout with the axis
    "interleaved_parallel", ContextStrategyError (also a RuntimeError: MindSpore finds it when it compiles) for a count
    below 1. What depends on inputs and devices is checked when a network is compiled.
    """
    per_input = "one tuple of ints per input such as ((8, 1), (8, 1)), or one Layout per input"
    allowed = f"{key} is 'full_batch', 'data_parallel', or {per_input}"
    if issubclass(type(value), str):
        plain = str.__str__(value)
        if plain not in ("full_batch", "data_parallel"):
            raise refuse(ContextError, where, key, value, allowed, nearest(plain, ("full_batch", "data_parallel")))
        return plain
    if not issubclass(type(value), tuple):
        raise refuse(ContextTypeError, where, key, value, allowed)
    parts = list(tuple.__iter__(value))
    if not parts:
        raise refuse(ContextError, where, key, value, allowed)
    # a Layout is a dataclass; another value would be asked for its attributes, and run its own code
    layouts = [part for part in parts if is_dataclass(type(part)) and isinstance(part, NamedLayout)]
    if layouts and len(layouts) < len(parts):
        raise refuse(ContextTypeError, where, key, value, f"{allowed}; not both kinds in one")
    if any(layout.dims is None for layout in layouts):
        allowed = "A Layout that was called with one entry per dim, such as layout('dp', 'None')"
        raise refuse(ContextError, where, key, value, allowed)
    if any(INTERLEAVED in layout.alias_name for layout in layouts):
        allowed = f"A Layout without the axis {INTERLEAVED!r}: it splits what one rank computes, not what it is fed"
        raise refuse(ContextError, where, key, value, allowed)
    if layouts:
        return tuple(layouts)
    return tuple(_cuts(where, key, part, value, allowed) for part in parts)


def _cuts(where: str, key: str, cuts: Any, value: Any, allowed: str) -> tuple[int, ...]:
    """The counts of one input; `value` is the whole strategy, for the message."""
    if not issubclass(type(cuts), tuple):
        raise refuse(ContextTypeError, where, key, value, allowed, f"{shorten(cuts, 40)} is not a tuple")
    plain = []
    for n in tuple.__iter__(cuts):
        if not is_int(n):
            raise refuse(ContextTypeError, where, key, value, allowed, f"{shorten(n, 40)} is not an int")
        count = int.__index__(n)
        if count < 1:
            allowed = "Every count is at least 1, which leaves a dim whole"
            raise refuse(ContextStrategyError, where, key, value, allowed, f"{shorten(n, 40)} is not")
        plain.append(count)
    return tuple(plain)


def check_rank_list(rank_list: object, count: int, given: str) -> None:
    """The `rank_list` of a Layout of `count` ranks. Another order than the matrix's would be another placement."""
    if not isinstance(rank_list, list) or not all(is_int(rank) for rank in rank_list):
        raise LayoutTypeError(f"rank_list={shorten(rank_list)}", where=given, allowed="None, or a list of ints")
    first = rank_list[0] if rank_list else 0
    if rank_list != list(range(first, first + count)):
        hint = "Write the axes of device_matrix in the order in which ranks lie"
        allowed = f"{count} ranks one after another: slices lie on ranks row by row"
        raise LayoutError(f"rank_list={shorten(rank_list)}", where=given, allowed=allowed, hint=hint)


# `ParallelConfig.cost_model_fusion`: the name of an algorithm, and the numbers behind it
COST_MODEL_NUMBERS: dict[str, dict[str, Check]] = {
    "times": {"times": integer(2), "tail_percent": number(0.0, 1.0, below=True)},
    "hiding": dict.fromkeys(
        ("tail_time_s", "inherent_time_s", "time_s_per_element", "computation_s_per_unit"), number(0.0, above=True)
    ),
}


def cost_model_numbers(where: str, kind: str, numbers: Sequence[object], setting: str = "") -> tuple[int | float, ...]:
    """The numbers of a fusion by the cost model, checked.  setting: what they are parts of, for errors."""
    names, of = COST_MODEL_NUMBERS[kind], f" of {setting}" if setting else ""
    plain = tuple(names[name](where, f"{name}{of}", n, SETTINGS) for name, n in zip(names, numbers, strict=True))
    if kind == "hiding" and plain[0] <= plain[1]:
        what = f"tail_time_s{of}={plain[0]} with inherent_time_s={plain[1]}"
        raise ContextError(what, where=where, allowed="A tail longer than what every message takes")
    return plain
