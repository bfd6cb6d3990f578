"""The environment of a rank's process."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

from ...base.errors import WorldError
from ..learners_files import same_names
from ..without import BLAS_VARIABLES
from ..world.world import EVENTS_VARIABLE

RANK_MAIN = str(Path(__file__).with_name("rank_main.py"))
_PACKAGE = Path(__file__).resolve().parents[2]


def as_mindspore_folder(name: str = "mindspore") -> Path:
    """The folder that, on PYTHONPATH, makes `import mindspore` find this package's facade. Raises WorldError.

    name  of the facade: mindspore, hyper_parallel
    """
    folder = _PACKAGE / name / "_path"
    if not (folder / name / "__init__.py").is_file():
        raise WorldError(f"the folder {folder} that stands for {name} is missing", hint="Install the package again")
    return folder


def rank_environment(*, facades: tuple[str, ...], events: str | None, extra: Mapping[str, str]) -> dict[str, str]:
    """What every rank finds besides its own numbers; lines are written at once, products run in one thread."""
    path = [str(as_mindspore_folder(name)) for name in facades]
    path += [p for p in (os.environ.get("PYTHONPATH"),) if p]
    home = str(_PACKAGE.parent)
    installed = [os.path.realpath(p) for p in (*site.getsitepackages(), site.getusersitepackages())]
    if os.path.realpath(home) not in installed:  # a checkout, which is perhaps not found from the script's folder
        path.append(home)
    values = {**os.environ, **dict.fromkeys(BLAS_VARIABLES, "1"), "PYTHONUNBUFFERED": "1"}
    if path:
        values["PYTHONPATH"] = os.pathsep.join(path)
    if events:
        values[EVENTS_VARIABLE] = events
    return {**values, **extra}


def python_command(argv: tuple[str, ...]) -> list[str]:
    """One rank's command. argv: a script, or "-m" and a module, with arguments; or "--cell", a name and a file."""
    return [sys.executable, RANK_MAIN, *argv]


def hidden_packages(argv: tuple[str, ...], said: str) -> list[str]:
    """Lines about files that have the name of a package (`same_names`), next to what ranks run by `argv`."""
    folder = Path() if argv[0] in ("-m", "--cell") else Path(argv[0]).parent
    return same_names(folder, said, first=argv[0] != "--cell")
