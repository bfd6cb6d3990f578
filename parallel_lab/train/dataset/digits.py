"""The handwritten digits that come with the package: 1,797 images of 28x28 (`data/digits/SOURCE.md` says where from);
and the random batch of the automatic-parallel quickstart.

>>> images, labels = load_digits()
>>> images.shape, images.dtype.name, labels.shape, labels.dtype.name
((1440, 784), 'float32', (1440,), 'int32')
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ...base.checks import INT_LIMIT, Errors, choice, integer, sequence_of
from ...base.errors import DataFileError, OutOfMemory, ShapeError
from ...base.files import shipped_folder
from .idx import read_idx

SHAPE = sequence_of(integer(), "A tuple of ints", one=True)
_FILES = {"train": "train", "test": "t10k"}  # split -> MNIST's file prefix


def read_digit_files(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) uint8 and labels (n,) uint8 of a split, from files named as MNIST's, gzipped or plain.

    Real MNIST files work too. Raises DataFileError if files are missing, damaged, or do not belong together.
    """
    choice(*_FILES)("digits", "split", split, Errors(DataFileError, DataFileError))
    arrays = []
    for kind, ndim in (("images-idx3", 3), ("labels-idx1", 1)):
        path = Path(folder) / f"{_FILES[split]}-{kind}-ubyte.gz"
        if not path.exists() and path.with_suffix("").exists():
            path = path.with_suffix("")
        array = read_idx(path)
        if array.ndim != ndim or array.dtype != np.uint8:
            what = f"holds {array.dtype} of shape {array.shape}"
            raise DataFileError(what, where=str(path), allowed=f"Expected uint8 with {ndim} dims")
        arrays.append(array)
    images, labels = arrays
    if len(images) != len(labels):
        raise DataFileError(f"{len(images)} images but {len(labels)} labels in split {split!r}", where=str(folder))
    return images, labels


def load_digits(split: str = "train", *, image_shape: tuple[int, ...] = (784,)) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, *image_shape) float32 from 0 (paper) to 1 (ink), and labels (n,) int32 from 0 to 9.

    split        "train" (n = 1440) or "test" (n = 357)
    image_shape  shape of one image: (784,) for dense networks, (1, 28, 28) for convolutions, (28, 28) for looking at

    Raises DataFileError for an unknown split or damaged files, ShapeError unless image_shape has 784 pixels.
    """
    images, labels = read_digit_files(shipped_folder("data") / "digits", split)
    pixels = math.prod(images.shape[1:])
    image_shape = SHAPE("load_digits", "image_shape", image_shape)
    if math.prod(image_shape) != pixels or any(size < 1 for size in image_shape):
        what = f"image_shape {image_shape} does not hold {pixels} pixels"
        raise ShapeError(what, allowed="For instance (784,), (1, 28, 28) or (28, 28)")
    return images.reshape(len(images), *image_shape).astype(np.float32) / np.float32(255), labels.astype(np.int32)


def seed_batch(batch_size: int = 16, in_dim: int = 32, out_dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Input (batch_size, in_dim) and label (batch_size, out_dim), float32, uniform in [0, 1): the same numbers on every
    call and rank: the batch of the automatic-parallel quickstart (seed 003, `get_dataset`).

    >>> x, y = seed_batch()
    >>> x.shape, y.shape, round(float(x[0, 0]), 6)
    ((16, 32), (16, 16), 0.417022)

    The quickstart calls `np.random.seed(1)` and draws input, then label. The legacy generator is used here because its
    stream is part of that text; a private one with the same seed gives the same numbers.
    """
    for name, value in {"batch_size": batch_size, "in_dim": in_dim, "out_dim": out_dim}.items():
        integer(1, INT_LIMIT)("seed_batch", name, value)
    draw = np.random.RandomState(1)
    try:
        return draw.rand(batch_size, in_dim).astype(np.float32), draw.rand(batch_size, out_dim).astype(np.float32)
    except MemoryError as error:
        raise OutOfMemory(str(error), where="seed_batch") from None
