"""An evening with the kernel (notebooks/20_inside.ipynb): the source of this package, part by part, as it is installed.

    show("ops/linalg.py", "matmul", "@matmul.vjp")

A part is written as it is looked up:

    "about"                   the file's docstring
    "matmul", "KINDS"         a function with its decorators, a class, a table
    "@matmul.vjp"             the gradient rule of an operator
    "Plan."                   a class without its methods: docstring and fields
    "Plan.value"              one of its methods
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

from ...base.errors import ArgumentError, shorten

__all__ = ["Source", "part_of", "show"]

PACKAGE = Path(__file__).resolve().parents[2]


class Source:
    """Lines of a file, with their numbers; in a notebook in colours.

    path    of the file in the package;  spans: first and last line of each part
    """

    def __init__(self, path: str, spans: list[tuple[int, int]]) -> None:
        self.path, self.spans = path, spans
        self._lines = (PACKAGE / path).read_text(encoding="utf-8").splitlines()

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.spans)

    def __repr__(self) -> str:
        parts = ("\n".join(f"{n:4}  {self._lines[n - 1]}" for n in range(a, b + 1)) for a, b in self.spans)
        return f"# parallel_lab/{self.path}, {len(self)} lines\n" + "\n  ...\n".join(parts)

    def _repr_html_(self) -> str:
        from pygments import highlight  # comes with JupyterLab
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        blocks = []
        for first, last in self.spans:
            look = HtmlFormatter(noclasses=True, nobackground=True, linenos="inline", linenostart=first)
            blocks.append(highlight("\n".join(self._lines[first - 1 : last]), PythonLexer(stripnl=False), look))
        return f"<p><code>parallel_lab/{self.path}</code>, {len(self)} lines</p>" + "<hr>".join(blocks)


def show(path: str, *parts: str) -> Source:
    """The parts of a file of the package, in the given order; none: the whole file.

    Raises ArgumentError for a file or a part that does not exist.
    """
    if not isinstance(path, str) or not (PACKAGE / path).is_file():
        hint = 'Paths are relative to the package: show("layout/tensor_layout.py")'
        raise ArgumentError(f"path={shorten(path)}", where="show", allowed="A file of parallel_lab", hint=hint)
    module = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    if not parts:
        return Source(path, [(1, module.body[-1].end_lineno or 1)])
    return Source(path, [part_of(module, path, part)[:2] for part in parts])


def part_of(module: ast.Module, path: str, part: str) -> tuple[int, int, list[ast.stmt]]:
    """(first line, last line, statements) of a part of a parsed file. Raises ArgumentError where it does not exist."""
    body = module.body
    if part == "about":
        return 1, body[0].end_lineno or 1, []
    name, dot, method = part.partition(".")
    if name.startswith("@"):
        chosen = [node for node in body if part[1:] in map(ast.unparse, getattr(node, "decorator_list", ()))]
    elif dot:
        owner = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)
        members = [] if owner is None else owner.body
        chosen = [node for node in members if isinstance(node, ast.FunctionDef) and node.name == method]
        if owner is not None and not method:
            chosen = list(itertools.takewhile(lambda node: not isinstance(node, ast.FunctionDef), members))
            return _first_line(owner), chosen[-1].end_lineno or 1, chosen
    else:
        chosen = [node for node in body if getattr(node, "name", "") == name or name in _assigned(node)]
    if len(chosen) != 1:
        raise ArgumentError(f"part {part!r}", where=f"show({path!r})", allowed="A name of this file")
    return _first_line(chosen[0]), chosen[0].end_lineno or 1, chosen


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", ()))])


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
