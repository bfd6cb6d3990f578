"""The source files, parsed: what the house tests look at."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "parallel_lab"
_SKIPPED = {"__pycache__", "_shipped", ".ipynb_checkpoints"}


def files(folder: Path, *suffixes: str) -> list[Path]:
    """Files under `folder` with one of the suffixes, sorted."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in suffixes and path.is_file() and not _SKIPPED.intersection(path.parts)
    )


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file. A million nodes are kept, none of them garbage: looking for it takes longer than parsing."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the parsed file: several tests ask for them, and to walk takes as long as to parse."""
    return tuple(ast.walk(tree(path)))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """`parallel_lab/ops/linalg.py` -> "parallel_lab.ops.linalg"; a package is named like its folder."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import_statements(node: ast.AST, at_import: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Import statements under `node`, with whether they run on import: not inside functions or under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_import
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):  # expressions hold no statement
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            )
            yield from _import_statements(child, at_import and not lazy)


@cache
def imports(path: Path, modules: frozenset[str]) -> list[tuple[str, int, bool]]:
    """(module of the package, line, whether it runs when the file is imported) for each import of another of `modules`.

    `from .shm import WorkerPool` counts as an import of `run.shm`, or of `run.shm.WorkerPool` if that is a module.
    """
    name, found = module_name(path), []
    package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
    for node, at_import in _import_statements(tree(path)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            inner = [f"{source}.{alias.name}" for alias in node.names]
            targets = [full if full in modules else source for full in inner]
        found += [
            (target, node.lineno, at_import)
            for target in dict.fromkeys(targets)
            if target.split(".")[0] == "parallel_lab" and target != name
        ]
    return found


def all_modules() -> dict[str, Path]:
    return {module_name(path): path for path in files(PACKAGE, ".py")}
