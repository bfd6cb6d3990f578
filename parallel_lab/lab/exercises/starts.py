"""Whether an answer is the one that an exercise begins with: a learner who has not tried yet is not told what is wrong.

The start is the text of a notebook's cell, its call of `check` included. It is run with a `check` that keeps what it is
given. Functions are the same if their compiled code is: comments, spaces and names of local variables do not matter.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator, Mapping
from functools import lru_cache
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from ...run.communicator import Request
from .played_ranks import on_ranks

_MISSING = object()  # what the start takes from another cell, such as a measured fit


class _Names(dict[str, Any]):
    """Names of a cell: those that another cell defines are there, and are nothing."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return _MISSING


@lru_cache(maxsize=64)
def handed_in(start: str) -> tuple[Any, dict[str, Any]]:
    """(answer, given) of the start's call of check."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def check(number: str, answer: Any = None, **given: Any) -> None:
        calls.append((answer, given))

    names = _Names(check=check, np=np, Request=Request, on_ranks=on_ranks)
    exec(compile(start, "<start>", "exec"), {"np": np, "Request": Request}, names)
    answer, given = calls[-1]
    return answer, given


def is_start(start: str, answer: Any, given: Mapping[str, Any]) -> bool:
    """Whether `check(number, answer, **given)` hands in what this cell does."""
    first, more = handed_in(start)
    if not _same(first, answer):
        return False
    return all(_same(more.get(name), value) for name, value in given.items() if more.get(name) is not _MISSING)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, FunctionType):
        return isinstance(second, FunctionType) and _same_code(unwrap(first).__code__, unwrap(second).__code__)
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return first is None or first is ... or (isinstance(first, str | bool | int | float) and first == second)


def _same_code(first: CodeType, second: CodeType) -> bool:
    ours, theirs = list(_steps(first)), list(_steps(second))
    return first.co_names == second.co_names and len(ours) == len(theirs) and all(map(_same_step, ours, theirs))


def _same_step(first: tuple[str, Any], second: tuple[str, Any]) -> bool:
    (name, a), (other, b) = first, second
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return _same_code(a, b)
    return name == other and type(a) is type(b) and a == b


def _steps(code: CodeType) -> Iterator[tuple[str, Any]]:
    """What the code does: names of instructions, with constants by value, because a docstring moves their numbers, and
    local variables by number, because they may have other names.
    """
    for step in dis.get_instructions(code):
        yield step.opname, step.argval if step.opcode in dis.hasconst else step.arg
