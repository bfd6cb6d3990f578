"""IDX files, the format of MNIST: `read_idx`, `write_idx`.

    bytes 0-1   zero
    byte 2      element type (0x08 is uint8, ...)
    byte 3      number of dims
    then        one big-endian uint32 per dim, then the elements, row-major, big-endian

Format: Y. LeCun, C. Cortes, C. Burges, "The MNIST database", section "File formats". A file is checked before it is
believed: sizes are compared before memory is asked for, and `.gz` may not unpack to more than declared.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels-idx1-ubyte.gz"
    >>> write_idx(path, np.array([5, 0, 4], np.uint8))
    >>> read_idx(path)
    array([5, 0, 4], dtype=uint8)
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...base.checks import checked, integer, path_text
from ...base.dtypes import plain_array
from ...base.errors import DataFileError, ShapeError
from ...base.files import open_regular, write_whole

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CODES = {np.dtype(name).newbyteorder("="): code for code, name in _TYPES.items()}
_GZIP_MAGIC = b"\x1f\x8b"
_DEFLATE_RATIO = (
    1032  # most bytes that one of deflate can unpack to (zlib technical details, "Maximum Compression Factor")
)
_CHUNK_BYTES = 1 << 20
_MAX_DIMS = 32  # what every numpy can hold
FILE = path_text(kinds=(str, os.PathLike))
MAX_SIZE_BYTES = 1 << 31  # 2 GiB: forty times MNIST; more needs an explicit max_size_bytes
# of a gzip file three times its bytes and this: MNIST unpacks to 4.7 times (47 MB), EMNIST to three times, a file that
# was made to fill the memory to a thousand times
SPARE_BYTES = 48 << 20
LARGER = "If the file is right, pass a larger max_size_bytes"
TRUNCATED = "The file is truncated or damaged"


# ---- files of data, plain or gzipped ----


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """(unpacked file as a stream, whether it is gzipped by its first bytes). Raises DataFileError while read."""
    try:
        with open_regular(path) as plain:
            packed = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            if not packed:
                yield plain, False
                return
            with gzip.GzipFile(fileobj=plain, mode="rb") as stream:
                try:
                    yield stream, True
                except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                    what = f"at byte {plain.tell()} of the .gz file: expected whole gzip data, found: {error}"
                    raise DataFileError(what, where=str(path), hint=TRUNCATED) from error
    except OSError as error:
        raise DataFileError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def most_bytes(path: Path, packed: bool, max_size_bytes: int | None) -> int:
    """How many bytes of data are read from a file, if the caller names no number: what fits the memory rule."""
    if max_size_bytes is not None:
        return max_size_bytes
    return min(MAX_SIZE_BYTES, 3 * path.stat().st_size + SPARE_BYTES) if packed else MAX_SIZE_BYTES


def read_up_to(stream: BinaryIO, size_bytes: int) -> bytearray:
    """At most `size_bytes` bytes; the buffer grows with what really arrives, never with what was promised."""
    found = bytearray()
    while part := stream.read(min(_CHUNK_BYTES, size_bytes - len(found))):
        found += part
    return found


def read_into(stream: BinaryIO, target: np.ndarray) -> int:
    """Fill an array of bytes; returns how many came. An array that was never written takes no memory for the rest."""
    room, came = memoryview(target), 0
    while count := stream.readinto(room[came : came + _CHUNK_BYTES]):
        came += count
    return came


def write_packed(path: Path, content: bytes) -> None:
    """Write a file whole, gzipped if its name ends in `.gz`: the same content gives the same bytes."""
    write_whole(path, gzip.compress(content, compresslevel=9, mtime=0) if path.suffix == ".gz" else content)


def fault(path: Path, offset: int, expected: str, found: str, hint: str = "") -> DataFileError:
    """The error for a file that is not what its format says."""
    return DataFileError(f"at byte {offset}: expected {expected}, found {found}", where=str(path), hint=hint)


# ---- IDX ----


def _read_header(path: Path, stream: BinaryIO) -> tuple[np.dtype, tuple[int, ...], int]:
    """Element type, shape, and length of the header in bytes."""
    magic = read_up_to(stream, 4)
    if len(magic) < 4:
        found = f"the end of the file after {len(magic)} bytes"
        raise fault(path, len(magic), "the 4 bytes of an IDX magic number", found)
    if magic[:2] != b"\0\0":
        expected = "an IDX magic number (two zero bytes first)"
        raise fault(path, 0, expected, f"0x{magic.hex()}", "This is not an IDX file")
    if magic[2] not in _TYPES:
        raise fault(path, 2, f"an element type of {', '.join(f'0x{code:02x}' for code in _TYPES)}", f"0x{magic[2]:02x}")
    dims = magic[3]
    if not 1 <= dims <= _MAX_DIMS:
        raise fault(path, 3, f"1 to {_MAX_DIMS} dims", str(dims))
    sizes = read_up_to(stream, 4 * dims)
    if len(sizes) < 4 * dims:
        found = f"the end of the file after {len(sizes)} of {4 * dims} bytes"
        raise fault(path, 4 + len(sizes), f"{dims} sizes of 4 bytes", found)
    shape = tuple(int.from_bytes(sizes[4 * i : 4 * i + 4], "big") for i in range(dims))
    return np.dtype(_TYPES[magic[2]]), shape, 4 + 4 * dims


def _read(path: Path, stream: BinaryIO, packed: bool, max_size_bytes: int | None) -> np.ndarray:
    dtype, shape, header_bytes = _read_header(path, stream)
    most = most_bytes(path, packed, max_size_bytes)
    file_bytes, size_bytes = path.stat().st_size, math.prod(shape) * dtype.itemsize  # Python ints: cannot overflow
    declared = f"{size_bytes:,} bytes of data (shape {shape}, {dtype.name})"
    if packed and file_bytes * _DEFLATE_RATIO < size_bytes <= MAX_SIZE_BYTES:
        possible = f"cannot unpack to more than {file_bytes * _DEFLATE_RATIO:,}"
        raise fault(path, 4, declared, f"a gzip file of {file_bytes:,} bytes, which {possible}", TRUNCATED)
    if size_bytes > most:
        raise fault(path, 4, f"at most {most:,} bytes of data", declared, LARGER)
    # a plain file that is too short is refused before memory is taken
    if packed or size_bytes <= file_bytes - header_bytes:
        data = np.empty(size_bytes, np.uint8)
        have = read_into(stream, data)
    else:
        have = file_bytes - header_bytes
    if have < size_bytes:
        found = f"the end of the file after {have:,} bytes of data"
        raise fault(path, header_bytes + have, declared, found, "The file is truncated")
    if stream.read(1):
        expected, hint = f"the end of the file after {declared}", "The sizes in the header do not fit the file"
        raise fault(path, header_bytes + size_bytes, expected, "more bytes", hint)
    array = data.view(dtype).reshape(shape)
    native = dtype.newbyteorder("=")
    return array.astype(native, copy=False) if native == dtype else array.byteswap(inplace=True).view(native)


@checked(max_size_bytes=integer(0) | None)
def read_idx(path: str | os.PathLike, *, max_size_bytes: int | None = None) -> np.ndarray:
    """The array in an IDX file, plain or gzipped (told from its first bytes), in this machine's byte order.

    max_size_bytes  refuse files that declare more data than this; None: 2 GiB, and of a gzip file three times its own
                    size and 48 MiB

    Raises DataFileError, naming file, offset, what was expected and what was found: a missing file, a wrong magic
    number, a file cut short, extra bytes, damaged gzip data. Memory stays within the file's size.
    """
    path = Path(FILE("read_idx", "path", path))
    with opened(path) as (stream, packed):
        return _read(path, stream, packed, max_size_bytes)


def write_idx(path: str | os.PathLike, array: np.ndarray) -> None:
    """Write (uint8, int8, int16, int32, float32, float64; 1 or more dims) as IDX, gzipped if named `.gz`.

    Equal arrays give equal bytes: no time or name in the gzip header. A file that was there is replaced whole.
    Raises ShapeError where IDX cannot hold it, DataFileError if the file cannot be written.
    """
    path, array = Path(FILE("write_idx", "path", path)), plain_array(array, where="write_idx")
    code = _CODES.get(array.dtype.newbyteorder("="))
    if code is None:
        what = f"dtype {array.dtype} cannot be written as IDX"
        raise ShapeError(what, where=str(path), allowed=f"One of {', '.join(map(str, _CODES))}")
    if not 1 <= array.ndim <= _MAX_DIMS or max(array.shape) >= 1 << 32:
        what = f"shape {array.shape} cannot be written as IDX"
        raise ShapeError(what, where=str(path), allowed=f"1 to {_MAX_DIMS} dims of less than 2**32")
    header = bytes([0, 0, code, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    write_packed(path, header + array.astype(_TYPES[code]).tobytes())
