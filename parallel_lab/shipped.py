"""Where the notebooks and the data lie: in the checkout, or inside the installed package.

A wheel carries the folders `notebooks/` and `data/` of the repository under `parallel_lab/_shipped/`. An editable install, or plain use from a
checkout, has no `_shipped` and uses the checkout's own folders, so that an edited notebook is the one that opens.
"""

from __future__ import annotations

from pathlib import Path

from .errors import DataFileError, message

__all__ = ["checkout_folder", "shipped_folder"]

_PACKAGE = Path(__file__).resolve().parent


def checkout_folder() -> Path | None:
    """The repository this package is run from, or None if it was installed from a wheel."""
    if (_PACKAGE / "_shipped").is_dir():
        return None
    folder = _PACKAGE.parent
    # site-packages may hold anything; only the project file says that the folder above is ours
    project = folder / "pyproject.toml"
    return folder if project.is_file() and 'name = "parallel-lab"' in project.read_text(encoding="utf-8") else None


def shipped_folder(name: str) -> Path:
    """The folder `name` ("notebooks" or "data") that came with the package.

    Raises DataFileError if it is not there.
    """
    checkout = checkout_folder()
    folder = (checkout or _PACKAGE / "_shipped") / name
    if not folder.is_dir():
        raise DataFileError(
            message(
                f"the folder {name}/ that comes with parallel_lab is missing: {folder}",
                hint="Install the package again (pip install --force-reinstall parallel-lab), or use a complete checkout",
            )
        )
    return folder
