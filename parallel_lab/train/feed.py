"""Rows of a dataset for a training loop: epoch by epoch, or so many steps at a time without regard to epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..base.errors import ArgumentTypeError, DatasetError, shorten
from .dataset import Dataset

Columns = tuple[Any, ...]


def check_dataset(where: str, name: str, dataset: Any) -> Any:
    """A Dataset with rows. Raises ArgumentTypeError (a TypeError), DatasetError (a ValueError and RuntimeError)."""
    if not isinstance(dataset, Dataset):
        made = "GeneratorDataset(source, ['data', 'label']), NumpySlicesDataset((x, y), ['data', 'label'])"
        hint = f"Wrap a generator or arrays: {made}"
        what = f"{name}={shorten(dataset)}"
        raise ArgumentTypeError(what, where=where, allowed="A dataset of parallel_lab.train.dataset", hint=hint)
    if dataset.get_dataset_size() == 0:
        hint = "With drop_remainder=True a batch larger than the data leaves no row"
        raise DatasetError(f"{name} has no rows: {dataset!r}", where=where, hint=hint)
    return dataset


class Feed:
    """One iterator over a dataset that repeats for ever, after `skip` rows: whole epochs are skipped by number."""

    def __init__(self, dataset: Dataset, skip: int = 0) -> None:
        self.size = dataset.get_dataset_size()
        self._endless = dataset.get_repeat_count() == -1
        self._dataset = dataset
        epochs, rest = (0, skip) if self._endless else divmod(skip, self.size)
        if skip:
            dataset.set_epoch(epochs)
        self._rows = dataset.create_tuple_iterator(num_epochs=-1)
        for _ in range(rest):
            self._next()

    def _next(self) -> Columns:
        """The next row; at the end of an epoch the first of the next one."""
        for _ in range(2):
            try:
                return next(self._rows)
            except StopIteration:
                continue
        raise DatasetError(f"an epoch without rows: {self._dataset!r}", where="training")

    def epoch(self) -> Iterator[Columns]:
        """The rows up to the end of the epoch."""
        return self.take(self.size) if self._endless else iter(self._rows)

    def take(self, count: int) -> Iterator[Columns]:
        """The next `count` rows."""
        for _ in range(count):
            yield self._next()
