"""The source files, parsed: what the house tests look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "parallel_lab"
_SKIPPED = {"__pycache__", "_shipped", ".ipynb_checkpoints"}


def files(folder: Path, *suffixes: str) -> list[Path]:
    """Files under `folder` with one of the suffixes, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file() and not _SKIPPED.intersection(path.parts))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """`parallel_lab/ops/linalg.py` -> "parallel_lab.ops.linalg"; a package is named like its folder."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: frozenset[str]) -> Iterator[tuple[str, int, bool]]:
    """(module of the package, line, whether it runs when the file is imported) for each import of another of `modules`.

    `from .shm import WorkerPool` counts as an import of `run.shm`, or of `run.shm.WorkerPool` if that is a module.
    """
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    lazy = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(node)
    }
    lazy |= {
        id(inner) for node in ast.walk(tree(path)) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) for inner in ast.walk(node)
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            inner = [f"{source}.{alias.name}" for alias in node.names]
            targets = [full if full in modules else source for full in inner]
        else:
            continue
        for target in dict.fromkeys(targets):
            if target.split(".")[0] == "parallel_lab" and target != name:
                yield target, node.lineno, id(node) not in lazy


def all_modules() -> dict[str, Path]:
    return {module_name(path): path for path in files(PACKAGE, ".py")}
