"""Files next to the learner's script or notebook: ranks of a pool find them behind the standard library and what is
installed, so that a `random.py` or `numpy.py` there is not taken for the package; and which of them hide one.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

from multiprocess import process

SAFE_PATH = "PYTHONSAFEPATH"  # in the environment: Python does not look in the current folder first
NOT_FOUND = ("ImportError", "ModuleNotFoundError", "AttributeError")
OURS = "set by parallel_lab"  # its value, which programs that a rank starts are not to find


def learners_folders() -> set[Path]:
    """Where Python and a notebook look for modules first: the current folder, and that of the script that runs here."""
    main = sys.modules.get("__main__")
    file = None if getattr(main, "__spec__", None) else getattr(main, "__file__", None)
    return {Path().resolve(), Path(file or "x").resolve().parent}


def learners_last(path: list[str]) -> list[str]:
    """The entries of a sys.path, those of the learner's folders behind all others."""
    last = learners_folders() | {Path(process.ORIGINAL_DIR or "").resolve()}  # where Python was started
    return sorted(path, key=lambda entry: Path(entry).resolve() in last)


def same_names(folder: Path, said: str, *, first: bool) -> list[str]:
    """Lines about files in `folder` that have the name of a package: the usual first accident, `numpy.py`. said: what a
    rank raised, where an import or attribute error names the package, or how it ended; first: ranks import such a file.
    """
    why = "hides the package {!r} from import" if first else "has the name of {!r}, which ranks import instead"
    known = {*packages(), *sys.stdlib_module_names}
    found = []
    for path in modules_in(folder):
        named = re.search(rf"({'|'.join(NOT_FOUND)}).*\b{path.stem}\b", said)
        if path.stem in known and (named or (first and " raised " not in said)):
            found.append(f"{path.name} next to the script {why.format(path.stem)}: rename it")
    return found


def modules_in(folder: Path) -> list[Path]:
    """Files and folders of `folder` that `import` would find there."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in found if path.suffix == ".py" or (path / "__init__.py").is_file()]


def packages() -> set[str]:
    """Names that a rank imports, but those of the standard library."""
    try:
        needed = [re.split(r"[^\w-]", text)[0].replace("-", "_") for text in metadata.requires("parallel-lab") or ()]
    except metadata.PackageNotFoundError:
        needed = ["numpy"]
    return {"mindspore", "parallel_lab", "dill", *needed}
