"""Checks of arguments shared by datasets and transforms: each raises ArgumentTypeError (a TypeError) or ArgumentError (a ValueError)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, message, shorten

__all__ = ["INT32_MAX", "as_bool", "as_choice", "as_dtype", "as_int", "as_names", "as_number"]

INT32_MAX = 2**31 - 1  # the largest count MindSpore's datasets take

Choice = TypeVar("Choice", bound=Enum)


def as_int(where: str, name: str, value: Any, low: int, high: int = INT32_MAX) -> int:
    """`value` as a Python int from `low` to `high`."""
    allowed = f"An int from {low} to {high}" if high != INT32_MAX else f"An int, at least {low}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed=allowed))
    if not low <= value <= high:
        raise ArgumentError(message(f"{name}={value}", where=where, allowed=allowed))
    return int(value)


def as_number(where: str, name: str, value: Any, low: float = -np.inf, high: float = np.inf) -> float:
    """`value` as a finite float from `low` to `high`."""
    allowed = "A finite number" if low == -np.inf else f"A number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed=allowed))
    if not (np.isfinite(value) and low <= value <= high):
        raise ArgumentError(message(f"{name}={value}", where=where, allowed=allowed))
    return float(value)


def as_bool(where: str, name: str, value: Any) -> bool:
    """`value`, which must be True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed="True or False"))
    return bool(value)


def as_names(where: str, name: str, value: Any) -> tuple[str, ...]:
    """One column name or a sequence of them, as a tuple of different, non-empty names."""
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, Sequence) else None
    if names is None or not all(isinstance(column, str) for column in names):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed="A column name or a list of column names"))
    if not names or not all(names) or len(set(names)) < len(names):
        raise ArgumentError(message(f"{name}={shorten(value)}", where=where, allowed="At least one name, none empty, none twice"))
    return tuple(names)


def as_dtype(where: str, name: str, value: Any) -> np.dtype:
    """A numpy dtype from a dtype or its name ("int32", np.float32, mstype.int32)."""
    if value is not None:  # numpy takes None for float64; nobody who passes None means that
        with contextlib.suppress(TypeError):
            return np.dtype(value)
    raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed="A dtype or its name, such as 'int32'"))


def as_choice(where: str, name: str, value: Any, choices: type[Choice]) -> Choice:
    """A member of the enum `choices`, or the member of that name in any case."""
    if isinstance(value, choices):
        return value
    if isinstance(value, str) and value.upper() in choices.__members__:
        return choices[value.upper()]
    allowed = f"One of {', '.join(f'{choices.__name__}.{member}' for member in choices.__members__)}"
    kind = ArgumentError if isinstance(value, str) else ArgumentTypeError
    raise kind(message(f"{name}={shorten(value)}", where=where, allowed=allowed))
