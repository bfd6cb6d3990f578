"""The checkpoint file: one safetensors file that can tell whether it is what was written.

    write_checkpoint("x.ckpt", {"fc.weight": TensorRecord(array)}, meta={"epoch": 3})
    found = read_checkpoint("x.ckpt")
    found.tensors["fc.weight"].array

Any safetensors reader can open it:

    8 bytes        length N of the header, little-endian
    N bytes        JSON: per tensor dtype, shape and data_offsets; "__metadata__" holds texts only
    the rest       the elements, little-endian, row-major, one tensor after the other without gaps

The format has no checksums, so ours stand in the metadata: "tensors" (JSON: crc32 of the elements, global shape, layout
and rank of every tensor), "meta" (JSON: what the caller adds), and "sha256" of the header itself, in which the 64
characters of that sum count as zeros. Reading checks all of it before it gives anything away: a changed byte anywhere
is a CheckpointCorrupt that names file and tensor or field. Sizes are checked before memory is taken; nothing is run.

A new file is written next to the old one, then renamed (base/files.py): a killed writer leaves the old file whole.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...base.dtypes import BFLOAT16, as_dtype
from ...base.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointFolderError,
    CheckpointWriteError,
    DataFileError,
    shorten,
)
from ...base.files import open_regular, write_whole
from ...base.plain_json import MAX_BYTES, dump_json, parse_json
from .records import (
    CHECKPOINT,
    FILE,
    RESERVED,
    TensorInfo,
    TensorRecord,
    check_name,
    layout_from_plain,
    layout_to_plain,
)

FORMAT = "parallel_lab-checkpoint"
VERSION = "1"
MAX_HEADER_BYTES = MAX_BYTES  # about 25,000 tensors; safetensors itself stops at 100 MB
ALIGNMENT = 8  # elements begin at a multiple, so that a reader can map them into memory

# safetensors' name -> numpy's, in the byte order of the file
DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": BFLOAT16, "BOOL": "|b1"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
}
CODES = {text if text == BFLOAT16 else np.dtype(text).name: code for code, text in DTYPES.items()}


@dataclass(frozen=True)
class CheckpointInfo:
    """A file's header: {name: TensorInfo} in order, the writer's `meta`, and its sha256, over all crc32s too; `sums`:
    {name: crc32 of its elements}.
    """

    path: Path
    size_bytes: int
    tensors: dict[str, TensorInfo]
    meta: dict[str, Any]
    sha256: str
    sums: dict[str, int]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file that was read and found whole.  tensors: {name: TensorRecord};  meta: what the writer added."""

    path: Path
    tensors: dict[str, TensorRecord]
    meta: dict[str, Any]
    sha256: str


# ---- writing ----


def write_checkpoint(
    path: str | os.PathLike[str], tensors: Mapping[str, TensorRecord], *, meta: Mapping[str, Any] | None = None
) -> Path:
    """Write one checkpoint file, atomically, and return its path.  meta: anything JSON has a form for.

    Raises CheckpointError for names, dtypes or values that cannot be stored, and CheckpointWriteError (an OSError) if
    the file cannot be written: the file that was there before is whole then.
    """
    where = str(path)
    arrays, entries, extra, offset = [], {}, {}, 0
    for name, record in tensors.items():
        check_name(name, where)
        array = _as_stored(record.array, f"{where}, tensor {name!r}")
        arrays.append(array)
        offsets = [offset, offset + array.nbytes]
        entries[name] = {"dtype": CODES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        placed = {"global_shape": list(record.global_shape), "layout": layout_to_plain(record.layout)}
        extra[name] = {"crc32": zlib.crc32(_bytes_of(array)), **placed, "rank": record.rank}
        offset = offsets[1]
    header = _header(entries, extra, meta or {}, where)
    try:
        return write_whole(path, _pieces(header, arrays), hint="Name a file in an existing folder that has room")
    except DataFileError as error:
        raise CheckpointWriteError(str(error)) from error


def _as_stored(array: np.ndarray, where: str) -> np.ndarray:
    code = CODES.get(array.dtype.name)
    if code is None:
        raise CheckpointError(f"dtype {array.dtype}", where=where, allowed=f"One of {', '.join(CODES)}")
    return np.asarray(array, DTYPES[code], order="C")


def _bytes_of(array: np.ndarray) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _pieces(header: bytes, arrays: list[np.ndarray]) -> Iterator[bytes | memoryview]:
    yield len(header).to_bytes(8, "little")
    yield header
    for array in arrays:
        yield _bytes_of(array)


def _header(entries: dict[str, Any], extra: dict[str, Any], meta: Mapping[str, Any], where: str) -> bytes:
    try:
        texts = {"format": FORMAT, "version": VERSION, "sha256": NO_SUM.decode()}
        texts |= {"tensors": dump_json(extra), "meta": dump_json(dict(meta))}
    except (TypeError, ValueError) as error:
        what = f"meta cannot be stored: {error}"
        raise CheckpointError(what, where=where, allowed="Values that JSON has a form for") from None
    data = dump_json({RESERVED: texts, **entries}).encode()
    data += b" " * (-len(data) % ALIGNMENT)
    parse_json(texts["meta"].encode(), f"{where}, meta", CheckpointError)  # what could not be read again is not written
    parse_json(data, where, CheckpointError)
    return with_sum(data)


# ---- reading ----


def describe_checkpoint(path: str | os.PathLike[str]) -> CheckpointInfo:
    """What a checkpoint file holds; elements are neither read nor checked. Raises as `read_checkpoint`."""
    path = Path(FILE("describe_checkpoint", "path", path, CHECKPOINT))
    with _opened(path) as file:
        return _read_header(file, path)[0]


def read_checkpoint(path: str | os.PathLike[str], names: Collection[str] | None = None) -> Checkpoint:
    """Read and check a file, or the tensors `names`. CheckpointError: missing; CheckpointCorrupt: a changed byte."""
    path = Path(FILE("read_checkpoint", "path", path, CHECKPOINT))
    with _opened(path) as file:
        info, places, sums = _read_header(file, path)
        missing = sorted(set(names or ()) - info.tensors.keys())
        if missing:
            what = f"there is no tensor {missing[0]!r}"
            raise CheckpointError(what, where=str(path), allowed=f"It holds {shorten(sorted(info.tensors))}")
        found = {}
        for name, known in info.tensors.items():
            if names is None or name in names:
                array = _read_array(file, places[name], known, f"{path}, tensor {name!r}", sums[name])
                found[name] = TensorRecord(array, known.global_shape, known.layout, known.rank)
    return Checkpoint(path, found, info.meta, info.sha256)


def _opened(path: str | os.PathLike[str]) -> io.FileIO:
    try:
        return open_regular(path)
    except IsADirectoryError:
        raise CheckpointFolderError("it is a folder", where=str(path), allowed="A checkpoint file") from None
    except FileNotFoundError:
        raise CheckpointError("there is no such file", where=str(path), allowed="An existing checkpoint file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(f"it cannot be read: {reason}", where=str(path)) from error


def _exactly(file: io.FileIO, into: bytearray, where: str) -> bytearray:
    view, done = memoryview(into), 0
    while done < len(into):
        got = file.readinto(view[done:])
        if not got:
            raise CheckpointCorrupt(f"the file ends {len(into) - done} bytes early", where=where)
        done += got
    return into


def _read_header(file: io.FileIO, path: Path) -> tuple[CheckpointInfo, dict[str, int], dict[str, int]]:
    """The header; per tensor the place of its first byte in the file, and the crc32 of its elements."""
    where, size = str(path), os.fstat(file.fileno()).st_size
    if size < 8:
        what = f"the file has {size} bytes"
        raise CheckpointCorrupt(what, where=where, allowed="At least the 8 of the header's length")
    length = int.from_bytes(_exactly(file, bytearray(8), where), "little")
    if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        allowed = f"2 to {min(size - 8, MAX_HEADER_BYTES)}, in a file of {size} bytes"
        raise CheckpointCorrupt(f"header length {length}", where=where, allowed=allowed)
    data = bytes(_exactly(file, bytearray(length), where))
    header = parse_json(data, f"{where}, header", CheckpointCorrupt)
    texts = header.pop(RESERVED, None) if isinstance(header, dict) else None
    is_ours = isinstance(texts, dict) and set(texts) == {"format", "version", "sha256", "tensors", "meta"}
    if not is_ours or texts["format"] != FORMAT:
        what = "it has no checksums of ours: it is damaged, or another program wrote it"
        hint = "A safetensors file from elsewhere is read with load_checkpoint(..., format='safetensors')"
        raise CheckpointCorrupt(what, where=f"{where}, header", hint=hint)
    if not all(isinstance(text, str) for text in texts.values()) or not sum_fits(data, texts["sha256"]):
        raise CheckpointCorrupt("the header's sha256 does not fit its content", where=f"{where}, header")
    if texts["version"] != VERSION:
        hint = "Read it with the version of parallel_lab that wrote it, or a newer one"
        what = f"version {shorten(texts['version'])}"
        raise CheckpointError(what, where=where, allowed=f"Version {VERSION}", hint=hint)
    # a text may hold half a pair of surrogates, which is no UTF-8
    extra, meta = (
        parse_json(texts[name].encode(errors="surrogatepass"), f"{where}, {what}", CheckpointCorrupt)
        for name, what in (("tensors", "table of tensors"), ("meta", "meta"))
    )
    if not isinstance(extra, dict) or not isinstance(meta, dict) or extra.keys() != header.keys():
        raise CheckpointCorrupt("the two tables of tensors name different ones", where=f"{where}, header")
    tensors, places, sums, end = {}, {}, {}, 0
    for name, entry in sorted(header.items(), key=lambda item: _begin(item, where)):
        at = f"{where}, tensor {shorten(name)}"
        check_name(name, where, CheckpointCorrupt)
        tensors[name], sums[name] = _known(entry, extra[name], at)
        begin, stop = entry["data_offsets"]
        if begin != end or stop - begin != math.prod(tensors[name].shape) * as_dtype(tensors[name].dtype).itemsize:
            what = f"data_offsets {[begin, stop]}"
            raise CheckpointCorrupt(what, where=at, allowed=f"From {end}, as many bytes as shape and dtype need")
        places[name], end = 8 + length + begin, stop
    if 8 + length + end != size:
        raise CheckpointCorrupt(f"the file has {size} bytes", where=where, allowed=f"{8 + length + end}, by its header")
    return CheckpointInfo(path, size, tensors, meta, texts["sha256"], sums), places, sums


def _begin(item: tuple[str, Any], where: str) -> tuple[int, int]:
    """Where a tensor's elements begin and end: one without elements comes before one that begins at the same byte."""
    name, entry = item
    is_entry = isinstance(entry, dict) and set(entry) == {"dtype", "shape", "data_offsets"}
    offsets = entry["data_offsets"] if is_entry else None
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(n) is not int or n < 0 for n in offsets):
        allowed = "dtype, shape and data_offsets of two ints"
        raise CheckpointCorrupt(f"entry {shorten(entry)}", where=f"{where}, tensor {shorten(name)}", allowed=allowed)
    return offsets[0], offsets[1]


def _known(entry: dict[str, Any], extra: Any, where: str) -> tuple[TensorInfo, int]:
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise CheckpointCorrupt(f"dtype {shorten(entry['dtype'])}", where=where, allowed=f"One of {', '.join(DTYPES)}")
    if not isinstance(extra, dict) or set(extra) != {"crc32", "global_shape", "layout", "rank"}:
        what = f"table entry {shorten(extra)}"
        raise CheckpointCorrupt(what, where=where, allowed="crc32, global_shape, layout and rank")
    are_lists = isinstance(entry["shape"], list) and isinstance(extra["global_shape"], list)
    if not are_lists or type(extra["crc32"]) is not int:
        what = f"entry {shorten(entry)}, {shorten(extra)}"
        raise CheckpointCorrupt(what, where=where, allowed="Shapes as lists, crc32 as an int")
    dtype, layout = as_dtype(DTYPES[entry["dtype"]]).name, layout_from_plain(extra["layout"], where)
    info = TensorInfo(dtype, tuple(entry["shape"]), tuple(extra["global_shape"]), layout, extra["rank"])
    info.check(where, CheckpointCorrupt)
    return info, extra["crc32"]


def _read_array(file: io.FileIO, place: int, known: TensorInfo, where: str, crc32: int) -> np.ndarray:
    file.seek(place)
    dtype = as_dtype(known.dtype)
    data = _exactly(file, bytearray(math.prod(known.shape) * dtype.itemsize), where)
    if zlib.crc32(data) != crc32:
        raise CheckpointCorrupt(f"the crc32 of its {len(data)} bytes is not {crc32}, as the header says", where=where)
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(known.shape)


# ---- a text that carries its own sha256: the 64 digits stand in the text, and count as zeros in the sum ----

NO_SUM = b"0" * 64  # what a writer puts where the sum will be; the first such run in the text


def with_sum(data: bytes) -> bytes:
    """`data` with its sum instead of `NO_SUM`.

    >>> data = with_sum(b'{"sha256":"' + NO_SUM + b'","x":1}')
    >>> sum_fits(data, data[11:75].decode()), sum_fits(data.replace(b"1}", b"2}"), data[11:75].decode())
    (True, False)
    """
    return data.replace(NO_SUM, hashlib.sha256(data).hexdigest().encode(), 1)


def sum_fits(data: bytes, given: Any) -> bool:
    """Whether `given`, which was read out of `data`, is the sum of the rest."""
    is_sum = isinstance(given, str) and len(given) == len(NO_SUM) and given.isascii()
    if not is_sum or data.count(given.encode()) != 1:
        return False
    return hashlib.sha256(data.replace(given.encode(), NO_SUM)).hexdigest() == given
