"""Checks of what layers are given: the value itself, or an error that names layer, argument, value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, message, shorten

__all__ = ["flag", "int_tuple", "number", "one_of", "probability", "whole_number"]


def whole_number(value: Any, where: str, name: str, least: int | None = None) -> int:
    """An int, at least `least`. Raises ArgumentTypeError, ArgumentError."""
    allowed = "An int" if least is None else f"An int, at least {least}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed=allowed))
    if least is not None and value < least:
        raise ArgumentError(message(f"{name}={value}", where=where, allowed=allowed))
    return int(value)


def int_tuple(value: Any, where: str, name: str, least: int = 1) -> tuple[int, ...]:
    """One int, or a tuple or list of ints, as a tuple of ints, each at least `least`. Raises ArgumentTypeError, ArgumentError."""
    if isinstance(value, (tuple, list)) and value:
        return tuple(whole_number(v, where, name, least) for v in value)
    return (whole_number(value, where, name, least),)


def flag(value: Any, where: str, name: str) -> bool:
    """True or False. Raises ArgumentTypeError."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed="True or False"))
    return value


def number(value: Any, where: str, name: str, least: float = -math.inf, most: float = math.inf, *, above: bool = False) -> float:
    """A finite number from `least` to `most`; above: greater than `least`. Raises ArgumentTypeError, ArgumentError."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (Real, np.floating, np.integer)):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed="A number"))
    if not math.isfinite(value) or not least <= value <= most or (above and value == least):
        bounds = [] if least == -math.inf else [f"{'above' if above else 'at least'} {least:g}"]
        bounds += [] if most == math.inf else [f"at most {most:g}"]
        raise ArgumentError(message(f"{name}={shorten(value)}", where=where, allowed=f"A finite number{', ' if bounds else ''}{', '.join(bounds)}"))
    return float(value)


def probability(value: Any, where: str, name: str) -> float:
    """A number from 0 on, below 1. Raises ArgumentTypeError, ArgumentError."""
    found = number(value, where, name)
    if not 0 <= found < 1:
        raise ArgumentError(message(f"{name}={shorten(value)}", where=where, allowed="A number from 0 on, below 1"))
    return found


def one_of(value: Any, where: str, name: str, choices: Iterable[Any]) -> Any:
    """One of `choices`. Raises ArgumentError."""
    choices = tuple(choices)
    if not any(value is c or (type(value) is type(c) and value == c) for c in choices):
        raise ArgumentError(message(f"{name}={shorten(value)}", where=where, allowed=f"One of {', '.join(map(repr, choices))}"))
    return value
