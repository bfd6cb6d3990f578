"""A distributed checkpoint: a folder with one file per rank, and a manifest that makes them one.

    save_distributed("ckpt", records, rank=r, world_size=8, barrier=world.comm.barrier)       on every rank
    load_distributed("ckpt", layouts, rank=r)                                  on any rank of any other world

    ckpt/rank_0-3.ckpt ... rank_7-3.ckpt      the third save: each rank's parts
    ckpt/manifest.json                        names them, with size and sha256; shape, dtype, layout of every tensor

The manifest is what counts: it is written last, by rank 0, when all files are on the disk, and replaced in one step.
Every save has file names of its own, so a save that is interrupted has touched nothing that the old manifest names.
Readers read what it names, and compare sums. Files of older and broken saves go after the next commit.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.checks import integer
from ...base.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointFolderError,
    CheckpointWriteError,
    DataFileError,
    shorten,
)
from ...base.files import read_regular, write_whole
from ...base.hooks import current_world
from ...base.plain_json import MAX_BYTES, dump_json, parse_json
from ...layout.slices import is_split
from ...layout.tensor_layout import TensorLayout
from . import format as file_format
from .records import CHECKPOINT, FOLDER, TensorInfo, TensorRecord, check_name, layout_from_plain, layout_to_plain
from .stored import StoredTensor, load_parts

MANIFEST = "manifest.json"
FORMAT = "parallel_lab-manifest"
VERSION = 1
NUMBER = integer(0)
_RANK_FILE = re.compile(r"rank_(\d{1,7})-(\d{1,9})\.ckpt")
_ATTEMPTS = 5  # how often a reader starts again because a writer has committed meanwhile


@dataclass(frozen=True)
class ManifestFile:
    """One rank's file.  sha256: of its header, which covers the crc32 of every tensor in it."""

    name: str
    rank: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A distributed checkpoint: number of the `save` (from 1), `files` by rank, `tensors` by name, writer's `meta`."""

    folder: Path
    save: int
    files: tuple[ManifestFile, ...]
    tensors: dict[str, StoredTensor]
    meta: dict[str, Any]

    @property
    def world_size(self) -> int:
        """Ranks that saved it: a file each."""
        return len(self.files)

    @property
    def where(self) -> str:
        """The folder, for messages."""
        return str(self.folder)

    def read(self, number: int, names: set[str]) -> file_format.Checkpoint:
        """Tensors of one of the files. Raises CheckpointCorrupt if it is not the file that the manifest names."""
        file = self.files[number]
        found = file_format.read_checkpoint(self.folder / file.name, names)
        if found.sha256 != file.sha256:
            what = "it is not the file that the manifest names: their sha256 differ"
            raise CheckpointCorrupt(what, where=str(found.path))
        return found

    def load(
        self, layouts: Mapping[str, TensorLayout | None], rank: int, names: Collection[str] | None = None
    ) -> dict[str, TensorRecord]:
        """{name: what `rank` holds under `layouts`}, from the files that are needed for it."""
        return load_parts(self.tensors, self.read, layouts, rank, names, self.where)


# ---- saving ----


def save_distributed(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, TensorRecord],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    barrier: Callable[[], Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Path:
    """Save this rank's tensors; called by every rank, with one folder. The manifest's path, when committed.

    rank, world_size, barrier  default: this process's world, or one rank;  meta: rank 0's goes to the manifest

    Raises CheckpointWriteError (an OSError) where the disk is full, CheckpointError where ranks hold the same part with
    other values (but for a TensorRecord with own=True): the save before is whole then. A rank that raises leaves its
    peers in `barrier`, whose own rule (a dead or raising rank ends the wait of all) lets them go.
    """
    world = current_world()
    rank = (world.rank if world else 0) if rank is None else rank
    world_size = (world.world_size if world else 1) if world_size is None else world_size
    barrier = barrier or (world.comm.barrier if world else None)
    if not 0 <= rank < world_size:
        raise CheckpointError(f"rank {rank} of {world_size}", where=str(folder), allowed=f"0 to {world_size - 1}")
    if barrier is None:
        if world_size > 1:
            hint = "Give barrier=a function that all ranks call"
            raise CheckpointError(f"{world_size} ranks and no barrier", where=str(folder), hint=hint)
        barrier = _nothing_to_wait_for
    folder = Path(folder)
    _make_folder(folder)
    # the folder exists for all, and nobody has written yet: all ranks see the same files, and count the same number
    barrier()
    save = 1 + max((int(found[2]) for found in map(_RANK_FILE.fullmatch, os.listdir(folder)) if found), default=0)
    barrier()
    if rank == 0:
        _remove_unfinished(folder)
    barrier()
    own = [name for name, record in tensors.items() if record.own]
    meta_of_file = {"rank": rank, "world_size": world_size, "save": save} | ({"own": own} if own else {})
    file_format.write_checkpoint(folder / _file_name(rank, save), tensors, meta=meta_of_file)
    barrier()  # every file is on the disk
    if rank == 0:
        _commit(folder, save, world_size, dict(meta or {}))
    barrier()  # nobody returns before the save counts, nor begins the next one while files are removed
    return folder / MANIFEST


def _remove_unfinished(folder: Path) -> None:
    """Remove what a save left that did not come to its end: on a full disk there would be no room for the next one."""
    try:
        named = {file.name for file in read_manifest(folder).files}
    except CheckpointCorrupt:  # they may be needed to repair it
        return
    except CheckpointError:
        if (folder / MANIFEST).exists():
            return
        named = set()  # no save was ever finished here
    _remove_others(folder, named)


def _remove_others(folder: Path, named: set[str]) -> None:
    for name in os.listdir(folder):
        if _RANK_FILE.fullmatch(name) and name not in named:
            with contextlib.suppress(OSError):  # it counts no more; the next save tries again
                os.unlink(folder / name)


def _nothing_to_wait_for() -> None:
    """The barrier of a single rank."""


def _file_name(rank: int, save: int) -> str:
    return f"rank_{rank}-{save}.ckpt"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        what = "it is a file"
        raise CheckpointFolderError(what, where=str(folder), allowed="A folder, or a name that is free") from None
    except (OSError, ValueError) as error:
        raise CheckpointWriteError(f"the folder cannot be made: {error}", where=str(folder)) from error


def _commit(folder: Path, save: int, world_size: int, meta: dict[str, Any]) -> None:
    files, tensors, copies = [], {}, {}
    for rank in range(world_size):
        info = file_format.describe_checkpoint(folder / _file_name(rank, save))
        files.append({"name": info.path.name, "rank": rank, "size_bytes": info.size_bytes, "sha256": info.sha256})
        for name, one in info.tensors.items():
            entry = {"dtype": one.dtype, "global_shape": list(one.global_shape), "layout": layout_to_plain(one.layout)}
            known = tensors.setdefault(name, {**entry, "holders": []})
            if {key: known[key] for key in entry} != entry:
                earlier = f"an earlier rank as {shorten(known, 200)}"
                what = f"rank {rank} has tensor {name!r} as {shorten(entry, 200)}, {earlier}"
                raise CheckpointError(what, where=str(folder), allowed="One dtype, shape and layout on all ranks")
            known["holders"].append([one.rank, rank])
            if name not in info.meta.get("own", ()):
                part = str(one.layout.slice_index(one.global_shape, one.rank)) if is_split(one.layout) else ""
                first, crc32 = copies.setdefault((name, part), (rank, info.sums[name]))
                if info.sums[name] != crc32:
                    what = f"tensor {name!r} has other values on rank {rank} than on rank {first}"
                    allowed = "Equal copies of what several ranks hold" + (f": here {part}" if part else "")
                    hint = "TensorRecord(..., own=True) for values that each rank has of its own: one of them is loaded"
                    raise CheckpointError(what, where=str(folder), allowed=allowed, hint=hint)
    for entry in tensors.values():
        if entry["holders"] == [[rank, rank] for rank in range(world_size)]:
            entry["holders"] = "all"  # as almost always; spelled out it would be most of the file
    content = {"format": FORMAT, "version": VERSION, "sha256": file_format.NO_SUM.decode(), "save": save}
    content |= {"files": files, "tensors": tensors, "meta": meta}
    try:
        data = (dump_json(content) + "\n").encode()
    except (TypeError, ValueError) as error:
        what = f"meta cannot be stored: {error}"
        raise CheckpointError(what, where=str(folder), allowed="Values that JSON has a form for") from None
    data = file_format.with_sum(data)
    parse_json(data, str(folder / MANIFEST), CheckpointError)  # what could not be read again is not written
    try:
        write_whole(folder / MANIFEST, data)
    except DataFileError as error:
        raise CheckpointWriteError(str(error)) from error
    _remove_others(folder, {file["name"] for file in files})


# ---- loading ----


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a distributed checkpoint. Raises CheckpointError if missing, CheckpointCorrupt if damaged."""
    folder = Path(FOLDER("read_manifest", "folder", folder, CHECKPOINT))
    path = folder / MANIFEST
    where = str(path)
    if not folder.is_dir():
        what = "it is not a folder"
        raise CheckpointFolderError(what, where=str(folder), allowed="The folder of a distributed checkpoint")
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        what = "there is no manifest: no save was ever finished here, or the folder was copied without it"
        raise CheckpointError(what, where=where, allowed="A folder that save_distributed wrote") from None
    except OSError as error:
        raise CheckpointError(f"it cannot be read: {error.strerror}", where=where) from error
    content = parse_json(data, where, CheckpointCorrupt)
    keys = {"format", "version", "sha256", "save", "files", "tensors", "meta"}
    if not isinstance(content, dict) or set(content) != keys or content["format"] != FORMAT:
        what = "it is not a manifest"
        raise CheckpointCorrupt(what, where=where, allowed=f"A JSON object with {', '.join(sorted(keys))}")
    if not file_format.sum_fits(data, content["sha256"]):
        raise CheckpointCorrupt("its sha256 does not fit its content", where=where)
    if content["version"] != VERSION:
        raise CheckpointError(f"version {shorten(content['version'])}", where=where, allowed=f"Version {VERSION}")
    try:
        files = tuple(ManifestFile(**one) for one in content["files"])
        _check_files(files)
        for name in content["tensors"]:
            check_name(name, where, CheckpointCorrupt)
        tensors = {name: _stored(one, len(files), where) for name, one in content["tensors"].items()}
        return Manifest(folder, NUMBER("manifest", "save", content["save"]), files, tensors, dict(content["meta"]))
    except CheckpointCorrupt:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointCorrupt(f"a field is not as it was written: {error}", where=where) from None


def _check_files(files: tuple[ManifestFile, ...]) -> None:
    if not files:
        raise ValueError("no files")
    for i, file in enumerate(files):
        # only names of this form: a manifest cannot lead out of its folder
        is_named = isinstance(file.name, str) and _RANK_FILE.fullmatch(file.name)
        if not is_named or NUMBER("file", "rank", file.rank) != i or NUMBER("file", "size_bytes", file.size_bytes) < 0:
            raise ValueError(f"file {shorten(file)}")


def _stored(one: dict[str, Any], count: int, where: str) -> StoredTensor:
    holders = [[rank, rank] for rank in range(count)] if one["holders"] == "all" else one["holders"]
    if set(one) != {"dtype", "global_shape", "layout", "holders"} or not all(
        len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair) and pair[1] < count for pair in holders
    ):
        raise ValueError(f"tensor {shorten(one)}")
    if one["dtype"] not in file_format.CODES:
        raise ValueError(f"dtype {shorten(one['dtype'])}")
    layout, shape = layout_from_plain(one["layout"], where), tuple(one["global_shape"])
    part = shape if layout is None else layout.slice_shape(shape)
    for rank, _ in holders:
        TensorInfo(one["dtype"], part, shape, layout, rank).check(where, CheckpointCorrupt)
    return StoredTensor(one["dtype"], shape, layout, tuple(map(tuple, holders)))


def load_distributed(
    folder: str | os.PathLike[str],
    layouts: Mapping[str, TensorLayout | None] | None = None,
    *,
    rank: int | None = None,
    names: Collection[str] | None = None,
) -> dict[str, TensorRecord]:
    """{name: what `rank` holds} of a distributed checkpoint, re-sliced for `layouts`.

    layouts  how each tensor is to be split, on any number of ranks; None, and a tensor that is not named: whole
    rank     default: that of the world this process belongs to, or 0
    names    load these tensors only

    Only the files with needed parts are read. Raises CheckpointError for a missing part, CheckpointCorrupt for a
    file that is not the one that the manifest names.
    """
    world = current_world()
    rank = (world.rank if world else 0) if rank is None else rank
    manifest = read_manifest(folder)
    for attempt in range(_ATTEMPTS):
        try:
            return manifest.load(layouts or {}, rank, names)
        except CheckpointError:
            newer = read_manifest(folder)
            if newer.save == manifest.save or attempt == _ATTEMPTS - 1:
                raise
            manifest = newer  # a writer has committed, and removed the files that we were reading
    raise AssertionError("the loop returns or raises")
