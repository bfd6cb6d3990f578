"""What the text of a program says by itself: its tree, decorators, generators, formats, what only prints."""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...base.errors import ArgumentError, shorten
from ...base.files import read_regular
from .values import LONGEST, Instance, Name, NotRead, Scopes

LIBRARIES = ("torch", "jax", "numpy", "mindspore", "hyper_parallel", "parallel_lab", "builtins")

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


class Files:
    """A program, and the files next to it that it imports: their lines are numbered on, each file's after a heading.

    folder  of the program, None: it has no file. What lies outside, or is led out of it by a link, is not read
    """

    def __init__(self, text: str, folder: Path | None) -> None:
        self.text, self.folder = text, folder
        self.read: dict[str, str] = {}  # path in the folder: text

    @property
    def lines(self) -> list[str]:
        """All lines, those of other files with their place."""
        more = [
            line
            for path, text in self.read.items()
            for line in (f"# {path}", *(f"{path}:{n}: {line}" for n, line in enumerate(text.splitlines(), 1)))
        ]
        return [*self.text.splitlines(), *more]

    def place(self, line: int) -> str:
        """Where a line of another file is, as "model.py:12: "; "" for one of the program's own."""
        own = len(self.text.splitlines())
        return self.lines[line - 1].partition(" ")[0] + " " if line > own else ""

    def find(self, module: str) -> tuple[ast.Module, bool] | None:
        """The tree of a module of this name, and whether it is a package. Raises NotRead: more than is read."""
        if self.folder is None:
            return None
        part = self.folder.joinpath(*module.split("."))  # maybe longer than a path can be: not for is_file of pathlib
        for path in (part / "__init__.py", part.with_name(f"{part.name}.py")):
            if os.path.isfile(path) and path.resolve().is_relative_to(self.folder.resolve()):
                try:
                    text = read_regular(path, 4 * LONGEST).decode("utf-8")
                    if len(text) + len(self.text) + sum(map(len, self.read.values())) > LONGEST:
                        raise NotRead(f"more than {LONGEST} characters with {path.name}")
                    tree, name = parsed(text), path.relative_to(self.folder).as_posix()
                except (OSError, ValueError) as error:
                    raise NotRead(f"{path.name}: {shorten(str(error))}") from None
                ast.increment_lineno(tree, len(self.lines) + 1)
                self.read[name] = text
                return tree, path.name == "__init__.py"
        known = module.partition(".")[0] in (*LIBRARIES, *sys.stdlib_module_names)
        return (ast.Module([], []), True) if os.path.isdir(part) and not known else None


class Imports:
    """What import statements of a program that is read do."""

    block: Callable[..., None]

    def __init__(self, files: Files) -> None:
        self.files = files
        self.modules: dict[str, Instance | None] = {}  # imported from files next to the program; None: from elsewhere
        self.stars: list[str] = []  # modules all of whose names are imported

    def _s_import(self, node: Any, scopes: Scopes) -> None:
        for one in node.names:
            root = one.name.partition(".")[0]
            found, path = self.imported(one.name), one.name if one.asname else root
            scopes[0][one.asname or root] = Name(path) if found is None else self.modules[path]

    def _s_importfrom(self, node: Any, scopes: Scopes) -> None:
        above = scopes[-1].get("__package__", "").split(".")[: 1 - node.level or None] if node.level else []
        path = ".".join(filter(None, (*above, node.module)))
        held = self.imported(path) if path else None
        for one in node.names:
            inner = f"{path}.{one.name}" if path else one.name
            if held is not None and one.name == "*":
                scopes[0] |= {name: value for name, value in held.names.items() if not name.startswith("_")}
            elif held is not None and one.name in held.names:
                scopes[0][one.asname or one.name] = held.names[one.name]
            else:
                self.stars += [path] if one.name == "*" else []
                below = self.imported(inner) if held is not None or node.level else None
                scopes[0][one.asname or one.name] = Name(f"{path}.{one.name}") if below is None else below

    def imported(self, path: str) -> Instance | None:
        """A module whose file lies next to the program, read as the program is; None: another one."""
        if path not in self.modules:
            parent, _, name = path.rpartition(".")
            above = self.imported(parent) if parent else None
            found = None if parent and above is None else self.files.find(path)
            self.modules[path] = found and Instance(None, {"__name__": path}, "file")
            if found and (made := self.modules[path]):
                made.names["__package__"] = path if found[1] else parent
                self.block(found[0].body, [made.names])
                if above is not None:
                    above.names[name] = made
        return self.modules[path]


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
