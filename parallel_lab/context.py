"""Parallel settings, validated when they are set and frozen when they are used; and the ContextVar of the running trace.

    >>> set_auto_parallel_context(device_num=8, parallel_mode="semi_auto_parallel")
    >>> get_auto_parallel_context("device_num")
    8
    >>> reset_auto_parallel_context()

Passes never read this module: `frozen()` gives them an immutable `ParallelConfig`. Keys and their checks: MindSpore, set_auto_parallel_context.
"""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .errors import ContextError, ParallelLabError, message, shorten

__all__ = [
    "PARALLEL_MODES",
    "ParallelConfig",
    "current_tracer",
    "frozen",
    "get_auto_parallel_context",
    "get_seed",
    "reset_auto_parallel_context",
    "set_auto_parallel_context",
    "set_seed",
]

PARALLEL_MODES = ("stand_alone", "data_parallel", "hybrid_parallel", "semi_auto_parallel", "auto_parallel")

# The recorder that operators write to while a Cell is traced; None = operators run at once. The only hook through which an operator (floor 1) or a
# Tensor (floor 2) reaches the tracer (floor 3).
current_tracer: ContextVar[Any] = ContextVar("parallel_lab_tracer", default=None)


class ContextTypeError(ContextError, TypeError):
    """A setting of the wrong Python type."""


@dataclass(frozen=True)
class ParallelConfig:
    """The settings one compilation sees.

    device_num          ranks of the program (1, 2, 4 or a multiple of 8)
    parallel_mode       one of PARALLEL_MODES
    dataset_strategy    "full_batch": inputs are global; "data_parallel": inputs are one rank's rows; tuple of tuples: cuts per input
    gradients_mean      multiply each synchronised gradient by 1 / (ranks that were summed)
    loss_repeated_mean  divide the seed gradient by the number of ranks that hold the same loss
    enable_alltoall     use AllToAll in redistributions
    """

    device_num: int = 1
    global_rank: int = 0
    parallel_mode: str = "stand_alone"
    dataset_strategy: str | tuple[tuple[int, ...], ...] = "data_parallel"
    gradients_mean: bool = False
    loss_repeated_mean: bool = True
    enable_alltoall: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _CHECKS[field.name](field.name, getattr(self, field.name))


def _refuse(kind: type[ParallelLabError], key: str, value: object, allowed: str) -> ParallelLabError:
    return kind(message(f"{key}={shorten(value)}", where="parallel setting", allowed=allowed))


def _check_bool(key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refuse(ContextTypeError, key, value, f"{key} is True or False")


def _check_range(low: int, high: int):
    def check(key: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refuse(ContextTypeError, key, value, f"{key} is an int from {low} to {high}")
        if not low <= value <= high:
            raise _refuse(ContextError, key, value, f"{key} is an int from {low} to {high}")

    return check


def _check_mode(key: str, value: object) -> None:
    if value not in PARALLEL_MODES:
        raise _refuse(ContextError, key, value, f"One of {PARALLEL_MODES}")


def _check_dataset(key: str, value: object) -> None:
    allowed = "'full_batch', 'data_parallel', or one tuple of ints per input such as ((8, 1), (8, 1))"
    if isinstance(value, str):
        if value not in ("full_batch", "data_parallel"):
            raise _refuse(ContextError, key, value, allowed)
        return
    if not isinstance(value, tuple) or not all(isinstance(cuts, tuple) for cuts in value):
        raise _refuse(ContextTypeError, key, value, allowed)
    if any(isinstance(n, bool) or not isinstance(n, int) for cuts in value for n in cuts):
        raise _refuse(ContextTypeError, key, value, allowed)
    if any(n < 1 or n & (n - 1) for cuts in value for n in cuts):
        raise _refuse(ContextError, key, value, "Every count is a power of two, at least 1")


_CHECKS = {
    "device_num": _check_range(1, 4096),
    "global_rank": _check_range(0, 4095),
    "parallel_mode": _check_mode,
    "dataset_strategy": _check_dataset,
    "gradients_mean": _check_bool,
    "loss_repeated_mean": _check_bool,
    "enable_alltoall": _check_bool,
}

_state = ParallelConfig()


def set_auto_parallel_context(**settings: Any) -> None:
    """Change parallel settings. Unknown keys and values out of range raise ContextError (a ValueError), wrong types also TypeError."""
    global _state
    if "full_batch" in settings:
        full = settings.pop("full_batch")
        _check_bool("full_batch", full)
        settings.setdefault("dataset_strategy", "full_batch" if full else "data_parallel")
    unknown = sorted(set(settings) - set(_CHECKS))
    if unknown:
        raise ContextError(
            message(f"key {unknown[0]!r} is not known", where="set_auto_parallel_context", allowed=f"Keys: {', '.join(sorted(_CHECKS))}")
        )
    _state = dataclasses.replace(_state, **settings)


def get_auto_parallel_context(key: str) -> Any:
    """The present value of a setting. Unknown keys raise ContextError."""
    if key == "full_batch":
        return _state.dataset_strategy == "full_batch"
    if key not in _CHECKS:
        raise ContextError(message(f"key {key!r} is not known", where="get_auto_parallel_context", allowed=f"Keys: {', '.join(sorted(_CHECKS))}"))
    return getattr(_state, key)


def reset_auto_parallel_context() -> None:
    """Back to the defaults."""
    global _state
    _state = ParallelConfig()


def frozen(**overrides: Any) -> ParallelConfig:
    """The settings now, with `overrides`, as the immutable value that passes receive."""
    return dataclasses.replace(_state, **overrides)


_seed = 1


def set_seed(seed: int) -> None:
    """Seed of every random draw of the package. Parameters that were already drawn keep their values."""
    global _seed
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ContextError(message(f"seed={shorten(seed)}", where="set_seed", allowed="A non-negative int"))
    _seed = seed


def get_seed() -> int:
    """The present global seed."""
    return _seed
