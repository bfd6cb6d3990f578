"""`parallel-lab doctor train.py`: what a MindSpore script needs and this package lacks, found before it runs.

    >>> [need.name for need in needs("from mindspore import nn\\nx = nn.CTCLoss(3, 4)")]
    ['mindspore.nn.CTCLoss']

The script is parsed, never run: its imports of mindspore and the attributes it reads from them are looked up where an
import would look. A name that is imported and not used costs nothing and is not listed; what MindSpore never had is.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..base.errors import DataFileError, MissingImport, MissingModule, MissingName
from ..base.files import read_regular
from ..processes.learners_files import modules_in, packages

LARGEST_SCRIPT = 1 << 20  # bytes
FACADE, THEIRS = "parallel_lab.mindspore", "mindspore"


@dataclass(frozen=True)
class Need:
    """A name that a script uses and that is missing: its dotted name, the lines that use it, what to use instead."""

    name: str
    lines: tuple[int, ...]
    hint: str

    def text(self, file: str) -> str:
        """One line, which begins with the place of the first use."""
        rest = (
            f" (and line{'s' * (len(self.lines) > 2)} {', '.join(map(str, self.lines[1:]))})" if self.lines[1:] else ""
        )
        return f"{file}:{self.lines[0]}: {self.name}{rest}. {self.hint}"


def scripts_in(names: Iterable[str]) -> list[str]:
    """The files that these names stand for: of a folder all Python files below it, but in folders that are hidden."""
    found: list[str] = []
    for name in names:
        below = sorted(Path(name).rglob("*.py")) if os.path.isdir(name) else None
        if below is not None:
            below = [one for one in below if not any(p.startswith(".") for p in one.relative_to(name).parts)]
        found += [name] if not below else map(str, below)
    return list(dict.fromkeys(found))


def hiding(files: Iterable[str]) -> list[str]:
    """Files next to these scripts that are imported where they, or what they import, ask for a package."""
    known = {*packages(), *(name for name in sys.stdlib_module_names if name in sys.modules)}
    found = {}
    for folder in dict.fromkeys(Path(file).parent for file in files):
        inside = (folder / "__init__.py").is_file()  # a package's own modules are asked for by its name
        found |= {str(path): path.stem for path in modules_in(folder) if path.stem in known and not inside}
    return [f"{path} hides the package {name!r} from scripts next to it: rename it" for path, name in found.items()]


def script_needs(file: str) -> list[Need]:
    """`needs` of a file. Raises DataFileError where it cannot be read or parsed."""
    if file.endswith(".ipynb"):  # JSON parses as Python, and imports nothing
        hint = "Write its cells into a script first: jupyter nbconvert --to script NOTEBOOK"
        raise DataFileError(f"{file} is a notebook", where="doctor", allowed="A Python file", hint=hint)
    try:
        return needs(read_regular(file, LARGEST_SCRIPT).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataFileError(f"{file} cannot be read: {error}", where="doctor") from error
    except SyntaxError as error:
        raise DataFileError(f"{file} is no Python: {error.msg}, line {error.lineno}", where="doctor") from error
    except (ValueError, MemoryError, RecursionError) as error:
        raise DataFileError(f"{file} is no Python: {error}", where="doctor") from error


def needs(source: str) -> list[Need]:
    """What a script uses and this package lacks, in order of first use."""
    tree = ast.parse(source)
    found: dict[str, list[int]] = {}
    known: dict[str, str] = {}  # name in the script -> dotted name
    for line, dotted, name in _imports(tree):
        if name:
            known[name] = dotted
        if _never_was(dotted):
            found.setdefault(dotted, []).append(line)
    for node in ast.walk(tree):
        dotted = _dotted(node, known) if isinstance(node, (ast.Attribute, ast.Name)) else ""
        if dotted and (missing := _missing_part(dotted)):
            found.setdefault(missing, []).append(node.lineno)
    lines = {name: tuple(sorted(set(at))) for name, at in found.items()}
    return [Need(name, lines[name], _hint(name)) for name in sorted(lines, key=lines.__getitem__)]


def _imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, what is imported, the name it has in the script) of every import from mindspore or the facade."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (dotted := _theirs(alias.name)) is not None:
                    # `import mindspore.nn` binds mindspore
                    bound = alias.asname or alias.name.partition(".")[0]
                    yield node.lineno, dotted if alias.asname else THEIRS, bound if bound != "parallel_lab" else ""
                    yield node.lineno, dotted, ""
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            home = _theirs("parallel_lab.mindspore" if node.module == "parallel_lab" else node.module)
            for alias in node.names if home is not None else ():
                if node.module == "parallel_lab" and alias.name != "mindspore":
                    continue
                dotted = home if node.module == "parallel_lab" or alias.name == "*" else f"{home}.{alias.name}"
                yield node.lineno, dotted, "" if alias.name == "*" else alias.asname or alias.name


def _theirs(module: str) -> str | None:
    """A module as MindSpore calls it; None if it is another's."""
    module = module.replace(FACADE, THEIRS, 1) if module.startswith(FACADE) else module
    return module if module == THEIRS or module.startswith(f"{THEIRS}.") else None


def _dotted(node: ast.AST, known: dict[str, str]) -> str:
    """The dotted name that `ms.nn.Dense` stands for; "" if it does not begin with an import."""
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value, known)
        return f"{inner}.{node.attr}" if inner else ""
    return known.get(node.id, "") if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def _looked_up(dotted: str) -> tuple[Any, str]:
    """(what a dotted name leads to, the part of the name that got so far). Raises what the lookup raises."""
    from ..mindspore._missing import Missing

    value, reached = importlib.import_module(FACADE), THEIRS
    for part in dotted.split(".")[1:]:
        if not isinstance(value, ModuleType) or isinstance(value, Missing):
            break
        reached = f"{reached}.{part}"
        try:
            value = getattr(value, part)
        except (MissingName, MissingImport):
            value = importlib.import_module(reached.replace(THEIRS, FACADE, 1))  # a module that nobody asked for yet
    return value, reached


def _missing_part(dotted: str) -> str:
    """The part of a dotted name that is missing here, "" if nothing is."""
    from ..mindspore._missing import Missing

    try:
        value, reached = _looked_up(dotted)
    except MissingModule as error:
        return error.name or dotted
    return reached if isinstance(value, Missing) else ""


def _never_was(dotted: str) -> bool:
    """Whether an import of it fails."""
    try:
        _looked_up(dotted)
    except MissingModule:
        return True
    return False


def _hint(dotted: str) -> str:
    from ..mindspore._missing import hint_for

    path, _, name = dotted.removeprefix(f"{THEIRS}.").rpartition(".")
    return hint_for(path, name) + "."
