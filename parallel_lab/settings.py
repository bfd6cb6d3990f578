"""Validators of settings: each takes a key and a value, returns the value in plain Python types, or refuses it in words.

    >>> check_pipeline(stages=4)
    {'stages': 4, 'output_broadcast': False, 'interleave': False, 'scheduler': '1f1b'}
    >>> check_pipeline(stages=0)
    Traceback (most recent call last):
    parallel_lab.errors.ContextError: AutoParallel.pipeline: stages=0. stages is an int from 1 to 4096.

A refusal names the key, the value (at most 80 characters of it) and what is allowed. Its class is the one that MindSpore documents for that key,
and always a `ContextError` (a ValueError): TypeError for a wrong type, KeyError for a wrong key inside a dict, RuntimeError for what MindSpore
refuses when it compiles. A bool is no int here, and an int is no float. Nothing of the value is called but its repr for the message: a subclass
of int, float, str, list, tuple or dict is read through the base class, so that what is stored is plain.

`context.py` uses these for its functions, the class `AutoParallel` for its methods: both refuse the same values with the same words.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from .errors import ContextError, ContextKeyError, ContextStrategyError, ContextTypeError, message, shorten
from .named_layout import Layout

__all__ = [
    "FUSED_MESSAGES",
    "FUSION_WORDINGS",
    "INT_LIMIT",
    "LOCAL_MODES",
    "MAX_DEVICES",
    "OPTIMIZER_LEVELS",
    "PARALLEL_MODES",
    "SCHEDULERS",
    "SEARCH_MODES",
    "SETTING",
    "SHARDED_MODES",
    "Check",
    "boolean",
    "check_comm_fusion",
    "check_dataset_strategy",
    "check_fusion_indices",
    "check_hsdp",
    "check_operator_strategy_file",
    "check_param_strategy_file",
    "check_pipeline",
    "choice",
    "integer",
    "mapping",
    "nearest",
    "number",
    "path",
    "refuse",
    "shard_size",
    "text",
]

Check = Callable[[str, object, str], Any]  # (key, value, where) -> the value in plain types; raises ContextError

PARALLEL_MODES = ("stand_alone", "data_parallel", "hybrid_parallel", "semi_auto_parallel", "auto_parallel")
LOCAL_MODES = ("data_parallel", "hybrid_parallel")  # every rank runs the whole network on its own part of the batch
SHARDED_MODES = ("semi_auto_parallel", "auto_parallel")  # operators are cut among the ranks
SEARCH_MODES = ("dynamic_programming", "recursive_programming", "sharding_propagation")
OPTIMIZER_LEVELS = ("level1", "level2", "level3")
SCHEDULERS = ("1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v")
FUSED_MESSAGES = {"allreduce": ("auto", "size", "index"), "allgather": ("auto", "size"), "reducescatter": ("auto", "size")}
FUSION_WORDINGS = ("inclusive", "first_n")  # how positions are counted: each index ends a message; or so many messages come first
MAX_DEVICES = 4096
INT_LIMIT = 2**31 - 1  # of sizes (KB, MB), counts and indices, which MindSpore bounds on one side only: more is a slip
SETTING = "parallel setting"  # what `where` says when the caller is ParallelConfig or the context


def refuse(kind: type[ContextError], key: str, value: object, allowed: str, where: str, hint: str = "") -> ContextError:
    """The error to raise for `key=value`."""
    return kind(message(f"{key}={shorten(value)}", where=where, allowed=allowed, hint=hint))


def nearest(key: str, known: Iterable[str]) -> str:
    """A hint that names the known key most like `key`, or ""."""
    found = difflib.get_close_matches(key[:60], list(known), n=1, cutoff=0.5)
    return f"The nearest is {found[0]!r}" if found else ""


# ---- one value ----


def boolean(key: str, value: object, where: str = SETTING) -> bool:
    """True or False."""
    if value is True or value is False:
        return value
    raise refuse(ContextTypeError, key, value, f"{key} is True or False", where)


def integer(low: int, high: int = INT_LIMIT, also: tuple[int, ...] = ()) -> Check:
    """A validator of ints from `low` to `high`, and of those in `also`."""
    span = f"an int from {low} to {high}" if high != INT_LIMIT else f"an int, at least {low}"
    span = "".join(f"{n}, or " for n in also) + span

    def check(key: str, value: object, where: str = SETTING) -> int:
        if type(value) is bool or not issubclass(type(value), int):
            raise refuse(ContextTypeError, key, value, f"{key} is {span}", where)
        plain = int.__index__(value)
        if not (low <= plain <= high or plain in also):
            hint = f"More than {INT_LIMIT} is taken for a slip" if high == INT_LIMIT and plain > high else ""
            raise refuse(ContextError, key, value, f"{key} is {span}", where, hint)
        return plain

    return check


def number(low: float, high: float = math.inf, *, above: bool = False, below: bool = False) -> Check:
    """A validator of finite floats from `low` to `high`; `above` and `below` leave the ends themselves out."""
    span = f"a float, {'above' if above else 'at least'} {low:g}" + (f" and {'below' if below else 'at most'} {high:g}" if high < math.inf else "")

    def check(key: str, value: object, where: str = SETTING) -> float:
        if not issubclass(type(value), float):
            whole = type(value) is not bool and issubclass(type(value), int)
            raise refuse(ContextTypeError, key, value, f"{key} is {span}", where, "Write it with a decimal point" if whole else "")
        plain = float.__float__(value)
        inside = (plain > low if above else plain >= low) and (plain < high if below else plain <= high)
        if not math.isfinite(plain) or not inside:
            raise refuse(ContextError, key, value, f"{key} is {span}", where)
        return plain

    return check


def choice(*known: str) -> Check:
    """A validator of one of the given texts."""

    def check(key: str, value: object, where: str = SETTING) -> str:
        if not issubclass(type(value), str):
            raise refuse(ContextTypeError, key, value, f"{key} is one of {known}", where)
        plain = str.__str__(value)
        if plain not in known:
            raise refuse(ContextError, key, value, f"{key} is one of {known}", where, nearest(plain, known))
        return plain

    return check


def text(key: str, value: object, where: str = SETTING) -> str:
    """Any text."""
    if not issubclass(type(value), str):
        raise refuse(ContextTypeError, key, value, f"{key} is a text (str)", where)
    return str.__str__(value)


def path(key: str, value: object, where: str = SETTING) -> str:
    """A text that the operating system can take for a path; "" for none. It need not exist."""
    allowed = f"{key} is the path of a file or folder as text (str), without a null character"
    if not issubclass(type(value), str):
        raise refuse(ContextTypeError, key, value, allowed, where)
    plain = str.__str__(value)
    try:
        usable = b"\0" not in os.fsencode(plain)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise refuse(ContextError, key, value, allowed, where)
    if name := uncalled_function(plain):
        raise refuse(ContextError, key, value, f"It holds the text of the function {name}, not what it returns: write {name}()", where)
    return plain


def uncalled_function(text: str) -> str:
    """The function whose own text went into a path, as in "rank_{}".format(get_rank); "" where there is none.

    >>> uncalled_function(f"rank_{uncalled_function}/strategy.ckpt")
    'uncalled_function'
    """
    found = re.search(r"<(?:built-in |bound )?(?:function|method) ([\w.]+)", text)
    return found.group(1) if found else ""


def shard_size(least: int) -> Check:
    """A validator of an optimizer shard size: -1 (all ranks that hold the same slice), or a count of ranks, at least `least`."""
    return integer(least, MAX_DEVICES, also=(-1,))


def mapping(**checks: Check) -> Check:
    """A validator of dicts with some of the given keys. An unknown key is a ContextKeyError, as MindSpore's KeyError and ValueError in one."""
    keys = ", ".join(repr(k) for k in checks)

    def check(key: str, value: object, where: str = SETTING) -> dict[str, Any]:
        if not issubclass(type(value), dict):
            raise refuse(ContextTypeError, key, value, f"{key} is a dict with some of the keys {keys}", where)
        plain = {}
        for name, part in dict.items(value):
            if not issubclass(type(name), str) or str.__str__(name) not in checks:
                raise _unknown_part(key, name, checks, where)
            name = str.__str__(name)
            plain[name] = checks[name](f"{key}[{name!r}]", part, where)
        return plain

    return check


def _unknown_part(key: str, name: object, known: Iterable[str], where: str) -> ContextKeyError:
    near = nearest(str.__str__(name), known) if issubclass(type(name), str) else ""
    what = f"{key} has the key {shorten(name)}"
    return ContextKeyError(message(what, where=where, allowed=f"Keys: {', '.join(repr(k) for k in known)}", hint=near))


# ---- communication fusion ----


def check_fusion_indices(key: str, value: object, where: str = SETTING) -> list[int]:
    """Positions of parameters after which a fused message ends: a list of rising, non-negative ints, at least one.

    A negative index is a ContextTypeError: MindSpore's TypeError comes from an unsigned number of the layer below.
    """
    allowed = f"{key} is a list of rising ints, none negative, such as [20, 35]"
    if not issubclass(type(value), list):
        raise refuse(ContextTypeError, key, value, allowed, where)
    parts = list(list.__iter__(value))
    if not parts:
        raise refuse(ContextError, key, value, allowed, where)
    for part in parts:
        if type(part) is bool or not issubclass(type(part), int) or int.__index__(part) < 0:
            raise refuse(ContextTypeError, key, value, f"{allowed}; {shorten(part, 40)} is not", where)
    plain = [int.__index__(part) for part in parts]
    for before, after in pairwise(plain):
        if before >= after:
            fault = "comes twice" if before == after else f"comes after {shorten(before, 40)}"
            raise refuse(ContextError, key, value, f"{allowed}; {shorten(after, 40)} {fault}", where)
    if plain[-1] > INT_LIMIT:
        raise refuse(ContextError, key, value, f"{allowed}, each at most {INT_LIMIT}", where)
    return plain


def check_comm_fusion(value: object, where: str = "AutoParallel.comm_fusion", key: str = "comm_fusion") -> dict[str, Any]:
    """A fusion setting such as {"openstate": True, "allreduce": {"mode": "size", "config": 32}}, as a new dict in the order given.

    "allreduce" knows the modes auto (config None), size (config MB) and index (config as `check_fusion_indices`); "allgather" and "reducescatter"
    know auto and size. Raises ContextTypeError for a part of the wrong type, ContextKeyError for a wrong or missing key and for an unknown mode,
    ContextError for a size below 0. MindSpore ignores a config beside mode "auto", and keys beside "mode" and "config": here they are refused.
    """
    known = ("openstate", *FUSED_MESSAGES)
    if not issubclass(type(value), dict):
        raise refuse(ContextTypeError, key, value, f"{key} is a dict such as {{'allreduce': {{'mode': 'auto', 'config': None}}}}", where)
    plain: dict[str, Any] = {}
    for name, part in dict.items(value):
        if not issubclass(type(name), str) or str.__str__(name) not in known:
            raise _unknown_part(key, name, known, where)
        name = str.__str__(name)
        place = f"{key}[{name!r}]"
        plain[name] = boolean(place, part, where) if name == "openstate" else _fusion(place, part, FUSED_MESSAGES[name], where)
    return plain


def _fusion(place: str, value: object, modes: tuple[str, ...], where: str) -> dict[str, Any]:
    """The mode and config of one kind of message."""
    if not issubclass(type(value), dict):
        raise refuse(ContextTypeError, place, value, "It is a dict with the keys 'mode' and 'config'", where)
    given: dict[str, object] = {}
    for name, part in dict.items(value):
        if not issubclass(type(name), str) or str.__str__(name) not in ("mode", "config"):
            raise _unknown_part(place, name, ("mode", "config"), where)
        given[str.__str__(name)] = part
    missing = [name for name in ("mode", "config") if name not in given]
    if missing:
        raise refuse(ContextKeyError, place, value, f"The key {missing[0]!r} is missing; both 'mode' and 'config' are needed", where)
    mode, config = given["mode"], given["config"]
    if not issubclass(type(mode), str) or str.__str__(mode) not in modes:
        raise refuse(ContextKeyError, f"{place}['mode']", mode, f"mode is one of {modes}", where)
    mode = str.__str__(mode)
    if mode == "size":
        return {"mode": mode, "config": integer(0)(f"{place}['config']", config, where)}
    if mode == "index":
        return {"mode": mode, "config": check_fusion_indices(f"{place}['config']", config, where)}
    if config is not None:
        raise refuse(
            ContextTypeError, f"{place}['config']", config, "With mode 'auto', config is None", where, "With mode 'size' it is the threshold in MB"
        )
    return {"mode": mode, "config": None}


# ---- how batches are fed ----


def check_dataset_strategy(value: object, where: str = "AutoParallel.dataset_strategy", key: str = "dataset_strategy") -> str | tuple[Any, ...]:
    """How the ranks are fed: "full_batch", "data_parallel", or per input a tuple of cuts (one per dim) or a `Layout`.

    Raises ContextTypeError for another type, ContextError for another text or no input at all, ContextStrategyError (also a RuntimeError: MindSpore
    finds it when it compiles) for a count that is no power of two from 1 to 4096.
    """
    allowed = f"{key} is 'full_batch', 'data_parallel', or one tuple of ints per input such as ((8, 1), (8, 1)), or one Layout per input"
    if issubclass(type(value), str):
        plain = str.__str__(value)
        if plain not in ("full_batch", "data_parallel"):
            raise refuse(ContextError, key, value, allowed, where, nearest(plain, ("full_batch", "data_parallel")))
        return plain
    if not issubclass(type(value), tuple):
        raise refuse(ContextTypeError, key, value, allowed, where)
    parts = list(tuple.__iter__(value))
    if not parts:
        raise refuse(ContextError, key, value, allowed, where)
    layouts = [part for part in parts if type(part) is Layout]
    if layouts and len(layouts) < len(parts):
        raise refuse(ContextTypeError, key, value, f"{allowed}; not both kinds in one", where)
    if any(layout.dims is None for layout in layouts):
        raise refuse(ContextError, key, value, "A Layout that was called with one entry per dim, such as layout('dp', 'None')", where)
    if layouts:
        return tuple(layouts)
    return tuple(_cuts(key, part, value, allowed, where) for part in parts)


def _cuts(key: str, cuts: object, value: object, allowed: str, where: str) -> tuple[int, ...]:
    """The cuts of one input; `value` is the whole strategy, for the message."""
    if not issubclass(type(cuts), tuple):
        raise refuse(ContextTypeError, key, value, allowed, where, f"{shorten(cuts, 40)} is no tuple")
    plain = []
    for n in tuple.__iter__(cuts):
        if type(n) is bool or not issubclass(type(n), int):
            raise refuse(ContextTypeError, key, value, allowed, where, f"{shorten(n, 40)} is no int")
        count = int.__index__(n)
        if not 1 <= count <= MAX_DEVICES or count & (count - 1):
            powers = f"Every count is a power of two from 1 to {MAX_DEVICES}"
            raise refuse(ContextStrategyError, key, value, powers, where, f"{shorten(n, 40)} is not")
        plain.append(count)
    return tuple(plain)


# ---- methods of AutoParallel ----


def check_hsdp(
    shard_size: object = -1, threshold: object = 64, optimizer_level: object = "level1", where: str = "AutoParallel.hsdp"
) -> dict[str, Any]:
    """Optimizer parallel: ranks that share a shard (-1: all that hold the same slice), least size in KB of what is cut, level."""
    return {
        "shard_size": _HSDP_SIZE("shard_size", shard_size, where),
        "threshold": integer(0)("threshold", threshold, where),
        "optimizer_level": choice(*OPTIMIZER_LEVELS)("optimizer_level", optimizer_level, where),
    }


_HSDP_SIZE = shard_size(1)  # MindSpore: a positive int or -1; 1 shares with nobody


def check_pipeline(
    stages: object = 1,
    output_broadcast: object = False,
    interleave: object = False,
    scheduler: object = "1f1b",
    where: str = "AutoParallel.pipeline",
) -> dict[str, Any]:
    """Pipeline settings. Raises ContextError for a count below 1 or an unknown scheduler, ContextTypeError for wrong types."""
    return {
        "stages": integer(1, MAX_DEVICES)("stages", stages, where),
        "output_broadcast": boolean("output_broadcast", output_broadcast, where),
        "interleave": boolean("interleave", interleave, where),
        "scheduler": choice(*SCHEDULERS)("scheduler", scheduler, where),
    }


def check_param_strategy_file(file_path: object, where: str = "AutoParallel.save_param_strategy_file") -> str:
    """The path of a parameter strategy file. Raises ContextTypeError for what is no text."""
    return path("file_path", file_path, where)


def check_operator_strategy_file(file_path: object, where: str = "AutoParallel.save_operator_strategy_file") -> str:
    """The path of an operator strategy file. Raises ContextTypeError for what is no text, ContextKeyError unless it is absolute and ends in .json."""
    plain = path("file_path", file_path, where)
    if not os.path.isabs(plain) or os.path.splitext(plain)[1] != ".json":
        raise refuse(ContextKeyError, "file_path", plain, "file_path is an absolute path that ends in .json, such as '/tmp/strategy.json'", where)
    return plain
