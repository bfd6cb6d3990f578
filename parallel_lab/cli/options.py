"""Subcommands as tables of their options, and the types that options have.

subcommand(subparsers, "doctor", _doctor, (option("--json", action="store_true", help="..."),), help="...", ...)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

Option = tuple[tuple[str, ...], dict[str, Any]]
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20}


def option(*names: str, **settings: Any) -> Option:
    """One row of a table: what `add_argument` takes."""
    return names, settings


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Every row of the table becomes an option of the parser."""
    for names, settings in options:
        parser.add_argument(*names, **settings)


def subcommand(
    subparsers: Any, name: str, run: Callable[[argparse.Namespace], int], options: Iterable[Option], **texts: Any
) -> None:
    """Add a subcommand; `run` gets its arguments and returns the exit code.  texts: help, description, epilog, usage"""
    parser = subparsers.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    add_options(parser, options)
    parser.set_defaults(run=run, parser=parser)


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """A whole number from `low` to `high`."""

    def parse(text: str) -> int:
        digits = text[1:] if text[:1] == "-" else text
        if not (digits.isascii() and digits.isdigit()) or int(text) < low or (high is not None and int(text) > high):
            span = f"from {low} on" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {span}")
        return int(text)

    return parse


def true_or_false(text: str) -> bool:
    """True or False, as words."""
    if text not in ("True", "False", "true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def size_bytes(text: str) -> int:
    """A size such as 64K, in bytes."""
    digits = text.rstrip("KMIBkmib")
    unit = _UNITS.get(text[len(digits) :].upper())
    if not digits.isdigit() or unit is None or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 64K or 16M")
    return int(digits) * unit
