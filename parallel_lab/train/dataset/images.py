"""Pictures from files: `MnistDataset` (IDX files) and `Cifar10Dataset` (binary batches), plain or gzipped.

Both come with the package in small, made from real handwriting (`digits_folder()`, `digits_cifar_folder()`), under the
file names of the originals:
point `dataset_dir` at a downloaded MNIST or at `cifar-10-batches-bin` and the same program trains on that.

    >>> dataset = Cifar10Dataset(digits_cifar_folder(), "train", num_shards=8, shard_id=3)
    >>> dataset.get_dataset_size(), dataset.get_col_names(), dataset.output_shapes()
    (180, ['image', 'label'], [[32, 32, 3], []])
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...base.checks import Errors, checked, choice
from ...base.errors import ArgumentError, DataFileError, shorten
from ...base.files import shipped_folder
from .checks import CACHE, WORKERS
from .cifar import BATCH_NAMES, read_cifar10
from .digits import read_digit_files
from .sources import IndexedDataset, check_shards

MNIST_SIDE = 28


class ImageDataset(IndexedDataset):
    """Pictures in memory: `image` (height, width, channels) uint8, `label` () uint32. Subclasses write `load`."""

    @checked(num_parallel_workers=WORKERS, cache=CACHE)
    def __init__(
        self,
        dataset_dir: str | os.PathLike,
        usage: str | None = None,
        num_samples: int | None = None,
        num_parallel_workers: int | None = None,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        num_shards: int | None = None,
        shard_id: int | None = None,
        cache: None = None,
    ) -> None:
        where = type(self).__name__
        check_shards(where, num_shards, shard_id)  # before files are read
        if usage is not None and not (isinstance(usage, str) and usage in ("train", "test", "all")):
            raise ArgumentError(f"usage={shorten(usage)}", where=where, allowed="'train', 'test' or 'all'")
        folder = _folder(where, dataset_dir)
        images, labels = self.load(folder, usage or "all")
        labels = labels.astype(np.uint32)

        def read(index: int) -> tuple[np.ndarray, ...]:
            return images[index].copy(), np.array(labels[index])

        settings = {"num_samples": num_samples, "shuffle": shuffle, "num_shards": num_shards, "shard_id": shard_id}
        super().__init__(len(images), ("image", "label"), read, **settings, sampler=sampler)

    @staticmethod
    def load(folder: Path, usage: str) -> tuple[np.ndarray, np.ndarray]:
        """Images (n, height, width, channels) uint8 and labels (n,) of a folder."""
        raise NotImplementedError


class MnistDataset(ImageDataset):
    """Handwritten digits in MNIST's files: `image` (28, 28, 1) uint8, `label` () uint32.

    Files: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-..., t10k-labels-..., each plain or with .gz.
    "all" reads what exists, test files first (MindSpore goes by name).

    dataset_dir  the folder of the files
    usage        "train", "test", or "all" (None): both
    num_samples  at most so many pictures per epoch and shard (None or 0: all); of shuffled ones others each epoch
    num_parallel_workers  None, or at least 1: MindSpore's threads, without effect here
    shuffle      None or True: a new order each epoch; False: as in the files
    sampler      numbers of the pictures to read, in order, instead of shuffle and shards: a list, or an object that
                 can be iterated for every epoch
    num_shards, shard_id  read shard `shard_id` of `num_shards`, every num_shards-th picture; both or neither
    cache        None

    Raises DataFileError for files that are missing or not what they should be, ArgumentError for another usage and for
    numbers out of range, DatasetError for one of num_shards and shard_id without the other.
    """

    @staticmethod
    def load(folder: Path, usage: str) -> tuple[np.ndarray, np.ndarray]:
        splits = [usage]
        if usage == "all":
            names = {path.name for path in folder.iterdir()}
            prefixes = {"test": "t10k-", "train": "train-"}
            splits = [split for split, prefix in prefixes.items() if any(name.startswith(prefix) for name in names)]
            if not splits:
                what = "holds none of MNIST's files"
                raise DataFileError(what, where=str(folder), allowed="Such as train-images-idx3-ubyte, plain or .gz")
        parts = [read_digit_files(folder, split) for split in splits]
        for split, (images, _) in zip(splits, parts, strict=True):
            if images.shape[1:] != (MNIST_SIDE, MNIST_SIDE):
                wanted = f"expected {MNIST_SIDE} rows and {MNIST_SIDE} columns"
                what = f"at byte 8 of the {split} images: {wanted}, found {images.shape[1]} and {images.shape[2]}"
                raise DataFileError(what, where=str(folder))
        images, labels = map(np.concatenate, zip(*parts, strict=True))
        return images[..., None], labels


class Cifar10Dataset(ImageDataset):
    """Colour pictures in CIFAR-10's binary files: `image` (32, 32, 3) uint8, `label` () uint32.

    Files: data_batch_1.bin to data_batch_5.bin ("train") and test_batch.bin ("test"), each plain or with .gz, of any
    whole number of records. "all" is train, then test. As of MnistDataset are dataset_dir, usage, num_samples,
    num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache, and the errors.
    """

    @staticmethod
    def load(folder: Path, usage: str) -> tuple[np.ndarray, np.ndarray]:
        splits = ("train", "test") if usage == "all" else (usage,)
        parts = [read_cifar10(_packed_or_plain(folder / name)) for split in splits for name in BATCH_NAMES[split]]
        return tuple(map(np.concatenate, zip(*parts, strict=True)))


def digits_folder() -> Path:
    """The folder of the digits that come with the package, for MnistDataset. Raises DataFileError if it is missing."""
    return shipped_folder("data") / "digits"


def digits_cifar_folder() -> Path:
    """The folder of the shipped coloured digits, for Cifar10Dataset. Raises DataFileError if it is missing."""
    return shipped_folder("data") / "digits_cifar"


def load_digits_cifar(split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """The coloured digits: images (n, 3, 32, 32) float32 from 0 to 1, labels (n,) int32 from 0 to 9.

    split  "train" (n = 1440) or "test" (n = 357)

    Raises DataFileError for an unknown split or damaged files.

    >>> images, labels = load_digits_cifar("test")
    >>> images.shape, images.dtype.name, labels.dtype.name
    ((357, 3, 32, 32), 'float32', 'int32')
    """
    choice(*BATCH_NAMES)("load_digits_cifar", "split", split, Errors(DataFileError, DataFileError))
    images, labels = Cifar10Dataset.load(digits_cifar_folder(), split)
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.float32)
    return pixels / np.float32(255), labels.astype(np.int32)


def _folder(where: str, dataset_dir: Any) -> Path:
    if not isinstance(dataset_dir, (str, os.PathLike)):
        hint = "Is the environment variable set? os.getenv gives None if it is not" if dataset_dir is None else ""
        what = f"dataset_dir={shorten(dataset_dir)}"
        raise ArgumentError(what, where=where, allowed="The path of a folder", hint=hint)
    folder = Path(dataset_dir)
    try:
        found = folder.is_dir()
    except OSError as error:  # a name that the system cannot have
        raise ArgumentError(f"dataset_dir={shorten(dataset_dir)}: {error.strerror}", where=where) from None
    if not found:
        what = "is not a folder" if folder.exists() else "does not exist"
        hint = "" if folder.is_absolute() else f"The path is relative to {Path.cwd()}"
        raise DataFileError(what, where=str(folder), allowed=f"The folder of {where}'s files", hint=hint)
    return folder


def _packed_or_plain(path: Path) -> Path:
    """The file itself, or the one with .gz after its name if only that exists."""
    packed = path.with_name(path.name + ".gz")
    return packed if packed.exists() and not path.exists() else path
