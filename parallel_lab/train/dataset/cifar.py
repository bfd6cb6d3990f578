"""CIFAR-10's binary files: `read_cifar10`, `write_cifar10`.

    record      1 byte      label, 0 to 9
                1024 bytes  red, row by row; then 1024 green, 1024 blue
    file        records one after the other, nothing else

Format: A. Krizhevsky, "The CIFAR-10 dataset", section "Binary version". The files lack a header; what can be checked is
checked: a whole number of records, and every label. A file may be gzipped (told from its first bytes).

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "test_batch.bin"
    >>> write_cifar10(path, np.zeros((2, 32, 32, 3), np.uint8), np.array([7, 1]))
    >>> images, labels = read_cifar10(path)
    >>> images.shape, labels.tolist()
    ((2, 32, 32, 3), [7, 1])
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...base.checks import checked, integer
from ...base.dtypes import plain_array
from ...base.errors import DataFileError, ShapeError
from .idx import FILE, LARGER, fault, most_bytes, opened, read_up_to, write_packed

CHANNELS, SIDE = 3, 32
RECORD_BYTES = 1 + CHANNELS * SIDE * SIDE  # 3073
CLASSES = 10
CHUNK_RECORDS = 400  # read at once: 1.2 MB
# usage -> files of the folder
BATCH_NAMES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}


@checked(max_size_bytes=integer(0) | None)
def read_cifar10(path: str | os.PathLike, *, max_size_bytes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3) uint8, channels last, and labels (n,) uint8 of one batch file, plain or gzipped.

    max_size_bytes  refuse files that hold (or unpack to) more than this; None: 2 GiB, and of a gzip file three times
                    its own size and 48 MiB

    Raises DataFileError, naming file, offset, what was expected and what was found: a missing or empty file, one split
    short or with extra bytes, a label above 9 (as other files have), damaged gzip data. Offsets in a gzipped file are
    those of its unpacked content, unless the text says else.
    """
    path = Path(FILE("read_cifar10", "path", path))
    with opened(path) as (_, packed):
        most = most_bytes(path, packed, max_size_bytes)
    # how much there is, before an array is made for it: one that grows takes twice its size now and then
    size = sum(records.nbytes for _, records in _pieces(path, most)) if packed else path.stat().st_size
    if size > most:
        raise _too_large(path, most)
    count = size // RECORD_BYTES
    images, labels = np.empty((count, SIDE, SIDE, CHANNELS), np.uint8), np.empty(count, np.uint8)
    end = 0
    for before, records in _pieces(path, size):
        end = before + len(records)
        labels[before:end] = records[:, 0]
        images[before:end] = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
    if not size:
        raise fault(path, 0, f"a record of {RECORD_BYTES:,} bytes", "an empty file")
    if end < count:
        raise fault(path, end * RECORD_BYTES, f"{size:,} bytes", "the end of the file, which was longer a moment ago")
    return images, labels


def _pieces(path: Path, most: int) -> Iterator[tuple[int, np.ndarray]]:
    """(how many records stand before, these records) of a file, piece by piece, at most `most` bytes."""
    before = 0
    with opened(path) as (stream, _):
        while content := read_up_to(stream, CHUNK_RECORDS * RECORD_BYTES):
            if before * RECORD_BYTES + len(content) > most:
                raise _too_large(path, most)
            records = _records(path, content, before)
            yield before, records
            before += len(records)


def _too_large(path: Path, most: int) -> DataFileError:
    return fault(path, most, f"at most {most:,} bytes", "more", LARGER)


def _records(path: Path, content: bytearray, before: int) -> np.ndarray:
    """(n, 3073): the records of a piece of a file, before which `before` records stand."""
    count, rest = divmod(len(content), RECORD_BYTES)
    records = np.frombuffer(content, np.uint8, count * RECORD_BYTES).reshape(count, RECORD_BYTES)
    wrong = np.flatnonzero(records[:, 0] >= CLASSES)
    if wrong.size:
        first = before + int(wrong[0])
        expected = f"a label from 0 to {CLASSES - 1} (record {first})"
        hint = "The file is damaged, or not one of CIFAR-10's"
        raise fault(path, first * RECORD_BYTES, expected, str(records[wrong[0], 0]), hint)
    if rest:
        found, hint = f"the end of the file after {rest:,} bytes", "The file is truncated, or not one of CIFAR-10's"
        raise fault(path, (before + count) * RECORD_BYTES, f"a record of {RECORD_BYTES:,} bytes", found, hint)
    return records


def write_cifar10(path: str | os.PathLike, images: np.ndarray, labels: np.ndarray) -> None:
    """Write (n, 32, 32, 3) uint8 and labels (n,) 0 to 9 as a batch file (`.gz`: gzipped), whole.

    Raises ShapeError for other arrays, DataFileError if the file cannot be written.
    """
    path, where = Path(FILE("write_cifar10", "path", path)), "write_cifar10"
    images, labels = plain_array(images, where=where), plain_array(labels, where=where)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (SIDE, SIDE, CHANNELS):
        what = f"images are {images.dtype} {images.shape}"
        raise ShapeError(what, where=str(path), allowed=f"uint8 (n, {SIDE}, {SIDE}, {CHANNELS})")
    fit = labels.shape == images.shape[:1] and labels.dtype.kind in "iu"
    if not fit or not np.isin(labels, range(CLASSES)).all():
        allowed = f"{len(images)} integers from 0 to {CLASSES - 1}"
        raise ShapeError(f"labels are {labels.dtype} {labels.shape}", where=str(path), allowed=allowed)
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    content = np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1).tobytes()
    write_packed(path, content)
