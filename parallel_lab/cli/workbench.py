"""The learner's folder: which notebooks to open, and how copies are updated without losing work.

From a checkout notebooks open where they are; else they are copied into a folder, with a record:

    parallel_lab_notebooks/
        01_....ipynb
        .parallel_lab.json      {"format": 1, "files": {"01_....ipynb": "<sha256 of the copy as we wrote it>"}}

A file with the recorded checksum was never edited and may be replaced; any other is the learner's and is kept.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import DataFileError
from ..base.files import write_whole
from ..base.plain_json import MAX_BYTES, read_json

RECORD_NAME = ".parallel_lab.json"
_SKIPPED = {"__pycache__", ".ipynb_checkpoints"}
_ELSEWHERE = "Choose another folder with --folder"


@dataclass(frozen=True)
class Update:
    """What `update_notebooks` did, as paths within the folder (forward slashes): `new` (copied, was missing), `updated`
    (older, unedited), `same` (the newest), `kept` (differs from both: the learner's); a `note` on the record, or "".
    """

    new: tuple[str, ...]
    updated: tuple[str, ...]
    same: tuple[str, ...]
    kept: tuple[str, ...]
    note: str = ""

    def text(self) -> str:
        """One line per group of files."""
        new, updated, same, kept = map(len, (self.new, self.updated, self.same, self.kept))
        lines = [f"{new} new, {updated} updated, {same} unchanged, {kept} kept as you edited them"]
        lines += [f"  new      {name}" for name in self.new]
        lines += [f"  updated  {name}" for name in self.updated]
        advice = "yours differs from the one in this version; to get that one, rename yours and start again"
        lines += [f"  kept     {name} ({advice})" for name in self.kept]
        return "\n".join(lines + ([self.note] if self.note else []))


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_record(folder: Path) -> tuple[dict[str, str], str]:
    path = folder / RECORD_NAME
    if not path.exists():
        return {}, ""
    try:
        files = read_json(path, DataFileError)["files"]
        return {str(name): str(checksum) for name, checksum in files.items()}, ""
    except (DataFileError, KeyError, TypeError, AttributeError):
        note = f"The record {path} could not be read and is written anew; every file that differs is kept as yours."
        return {}, note


def _shipped_files(source: Path) -> dict[str, bytes]:
    files = {path.relative_to(source): path for path in sorted(source.rglob("*")) if path.is_file()}
    shipped = {name: path for name, path in files.items() if not {*_SKIPPED, RECORD_NAME}.intersection(name.parts)}
    return {name.as_posix(): path.read_bytes() for name, path in shipped.items()}


def update_notebooks(source: Path, folder: Path) -> Update:
    """Copy files under `source` to `folder`, but not over edited ones; old ones stay. Raises DataFileError."""
    names: dict[str, list[str]] = {"new": [], "updated": [], "same": [], "kept": []}
    try:
        record, note = _read_record(folder)
        for name, content in _shipped_files(source).items():
            target, checksum = folder / name, _checksum(content)
            is_theirs = target.exists() and not (target.is_file() and target.stat().st_size <= MAX_BYTES)
            if target.is_symlink() or is_theirs:
                names["kept"].append(name)
                continue
            present = _checksum(target.read_bytes()) if target.exists() else None
            if present == checksum:
                names["same"].append(name)
            elif present is None or present == record.get(name):
                names["new" if present is None else "updated"].append(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                write_whole(target, content, hint=_ELSEWHERE)
            else:
                names["kept"].append(name)
                continue  # the old checksum stays on record: undoing the edit makes the file replaceable again
            record[name] = checksum
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": 1, "files": record}, indent=1, sort_keys=True) + "\n"
        write_whole(folder / RECORD_NAME, text, hint=_ELSEWHERE)
    except OSError as error:
        what, where = f"cannot be written: {error.strerror or error}", str(error.filename or folder)
        raise DataFileError(what, where=where, hint=_ELSEWHERE) from error
    return Update(*(tuple(names[kind]) for kind in ("new", "updated", "same", "kept")), note)


def first_notebook(folder: Path) -> str | None:
    """The notebook to open first: the first one by name, or None."""
    return min((path.name for path in folder.glob("*.ipynb")), default=None)
