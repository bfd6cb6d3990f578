"""The learner's folder: which notebooks to open, and how copies of them are brought up to date without losing the
learner's work.

From a checkout the notebooks open where they are. Otherwise they are copied into a working folder, with a record of
what was copied:

    parallel_lab_notebooks/
        01_....ipynb
        .parallel_lab.json      {"format": 1, "files": {"01_....ipynb": "<sha256 of the copy as we wrote it>"}}

A file that still has the recorded checksum was never edited and may be replaced by a newer one; any other file is the
learner's and is kept.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import DataFileError
from ..base.files import write_whole

RECORD_NAME = ".parallel_lab.json"
_SKIPPED = {"__pycache__", ".ipynb_checkpoints"}
_ELSEWHERE = "Choose another folder with --folder"


@dataclass(frozen=True)
class Update:
    """What `update_notebooks` did; every name is a path within the folder, with forward slashes.

    new       copied, was not there
    updated   replaced by a newer version; the old one had not been edited
    same      already the newest
    kept      differs from both, so it is the learner's: left alone
    note      something the learner should know about the record, or ""
    """

    new: tuple[str, ...]
    updated: tuple[str, ...]
    same: tuple[str, ...]
    kept: tuple[str, ...]
    note: str = ""

    def text(self) -> str:
        """One line per group of files."""
        lines = [
            f"{len(self.new)} new, {len(self.updated)} updated, {len(self.same)} unchanged, {len(self.kept)} kept as "
            "you edited them"
        ]
        lines += [f"  new      {name}" for name in self.new]
        lines += [f"  updated  {name}" for name in self.updated]
        lines += [
            f"  kept     {name} (yours differs from the one in this version; to get that one, rename yours and "
            "start again)"
            for name in self.kept
        ]
        return "\n".join(lines + ([self.note] if self.note else []))


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_record(folder: Path) -> tuple[dict[str, str], str]:
    path = folder / RECORD_NAME
    if not path.exists():
        return {}, ""
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {str(name): str(checksum) for name, checksum in files.items()}, ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return (
            {},
            f"The record {path} could not be read; every file that differs was treated as yours and kept. The record "
            "is written anew.",
        )


def _shipped_files(source: Path) -> dict[str, bytes]:
    paths = (
        path
        for path in sorted(source.rglob("*"))
        if path.is_file() and not _SKIPPED.intersection(path.relative_to(source).parts)
    )
    return {path.relative_to(source).as_posix(): path.read_bytes() for path in paths if path.name != RECORD_NAME}


def update_notebooks(source: Path, folder: Path) -> Update:
    """Copy the files under `source` into `folder`, which is made if need be, and never write over a file the learner
    edited.

    Files of an earlier version that no longer ship stay. Raises DataFileError if `folder` cannot be written.
    """
    found: dict[str, list[str]] = {"new": [], "updated": [], "same": [], "kept": []}
    try:
        record, note = _read_record(folder)
        for name, content in _shipped_files(source).items():
            target, checksum = folder / name, _checksum(content)
            if target.is_symlink() or (target.exists() and not target.is_file()):
                found["kept"].append(name)
                continue
            present = _checksum(target.read_bytes()) if target.exists() else None
            if present == checksum:
                found["same"].append(name)
            elif present is None or present == record.get(name):
                found["new" if present is None else "updated"].append(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                write_whole(target, content, hint=_ELSEWHERE)
            else:
                found["kept"].append(name)
                continue  # the old checksum stays on record: undoing the edit makes the file replaceable again
            record[name] = checksum
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(
            folder / RECORD_NAME,
            json.dumps({"format": 1, "files": record}, indent=1, sort_keys=True) + "\n",
            hint=_ELSEWHERE,
        )
    except OSError as error:
        raise DataFileError(
            f"cannot be written: {error.strerror or error}", where=str(error.filename or folder), hint=_ELSEWHERE
        ) from error
    return Update(*(tuple(found[kind]) for kind in ("new", "updated", "same", "kept")), note)


def first_notebook(folder: Path) -> str | None:
    """The notebook to open first: the first one by name, or None if there is none."""
    names = sorted(path.name for path in folder.glob("*.ipynb"))
    return names[0] if names else None
