"""What the text of a program says by itself: its tree, decorators, generators, formats, what only prints."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from ...base.errors import ArgumentError, shorten
from .values import LONGEST, NotRead

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
}  # fmt: skip
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
QUIET = (
    ast.Expr, ast.Assign, ast.Pass, ast.Raise, ast.Name, ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.Tuple,
    ast.keyword, ast.Load, ast.Store, ast.operator,
)  # fmt: skip  # what a branch may hold that is not read


def yields(node: Any) -> bool:
    """Whether a function is a generator."""
    waiting = list(node.body)
    while waiting:
        part = waiting.pop()
        if isinstance(part, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(part, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(part)
    return False


def formatted(text: str, values: Any) -> str:
    """text % values. Raises NotRead for a field of more than 99 columns."""
    if re.search(r"%[^a-zA-Z%]*(\d{3}|\*)", text):
        raise NotRead("a text of wide fields is not read")
    return text % values


def marks_of(found: Any) -> set[str]:
    """The names of a function's decorators."""
    return {getattr(d, "id", "") for d in getattr(getattr(found, "node", None), "decorator_list", ())}


def bounded(text: str) -> str:
    """The text. Raises ArgumentError unless it is one, and not too long."""
    if isinstance(text, str) and len(text) <= LONGEST:
        return text
    what = f"a text of {len(text)} characters" if isinstance(text, str) else shorten(text)
    raise ArgumentError(what, where="explain", allowed=f"A text of at most {LONGEST} characters, or a file of one")


def parsed(text: str) -> ast.Module:
    """The syntax tree of a program. Raises ArgumentError, with the line, unless it is Python, and not too long."""
    try:
        return ast.parse(bounded(text).replace("\r\n", "\n"))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        lines = text.splitlines()
        shown = shorten(lines[line - 1].strip()) if line <= len(lines) else ""
        raise ArgumentError(f"line {line}: {shown} is not Python", where="explain", allowed="A program") from None
