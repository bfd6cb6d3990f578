"""Whether an answer is the one that an exercise begins with: a learner who has not tried yet is not told what is wrong.

The start is the text of a notebook's cell, its call of `check` included. It is run with a `check` that keeps what it is
given. Functions are the same if their compiled code is: comments, spaces and names of local variables do not matter.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
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
    if first.co_code != second.co_code or first.co_names != second.co_names:
        return False
    ours, theirs = (_constants(code) for code in (first, second))
    return len(ours) == len(theirs) and all(
        _same_code(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else type(a) is type(b) and a == b
        for a, b in zip(ours, theirs, strict=True)
    )


def _constants(code: CodeType) -> list[Any]:
    """What the code computes with. A docstring, which stands first, does not belong to it: it may be changed."""
    first, *rest = code.co_consts or (None,)
    return [None if isinstance(first, str) else first, *rest]
