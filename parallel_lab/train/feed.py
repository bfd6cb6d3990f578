"""Rows of a dataset for a training loop: epoch by epoch, or so many steps at a time without regard to epochs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ..base.checks import integer
from ..base.errors import ArgumentTypeError, DatasetError, shorten
from .dataset import Dataset

Columns = tuple[Any, ...]


def check_dataset(where: str, name: str, dataset: Any) -> Any:
    """A dataset with rows: a Dataset, or what goes for one (`OtherDataset`). Raises ArgumentTypeError (a TypeError),
    DatasetError (a ValueError and RuntimeError).
    """
    if not isinstance(dataset, Dataset):
        dataset = OtherDataset(where, name, dataset)
    if dataset.get_dataset_size() == 0:
        hint = "With drop_remainder=True a batch larger than the data leaves no row"
        raise DatasetError(f"{name} has no rows: {dataset!r}", where=where, hint=hint)
    return dataset


class OtherDataset:
    """An object of the learner's own as a dataset: it says its size and is iterated over.

    It has `get_dataset_size()` and one of create_tuple_iterator, __iter__ and create_dict_iterator; perhaps
    get_repeat_count, and `reset()`, which is called when its rows have been read. A row is a tuple, a list, a dict, or
    one tensor. An epoch ends with the iterator, however many rows the size promised.
    """

    def __init__(self, where: str, name: str, dataset: Any) -> None:
        self._dataset = dataset
        ways = ("create_tuple_iterator", "__iter__", "create_dict_iterator")
        self._way = next((way for way in ways if callable(getattr(dataset, way, None))), None)
        if isinstance(dataset, type) or self._way is None or not callable(getattr(dataset, "get_dataset_size", None)):
            made = "GeneratorDataset(source, ['data', 'label']), NumpySlicesDataset((x, y), ['data', 'label'])"
            hint = f"Wrap a generator or arrays: {made}"
            allowed = "A dataset of parallel_lab.train.dataset, or an object with get_dataset_size() and an iterator"
            raise ArgumentTypeError(f"{name}={shorten(dataset)}", where=where, allowed=allowed, hint=hint)
        self._size = integer(0)(where, f"the size of {name}", dataset.get_dataset_size())

    def get_dataset_size(self) -> int:
        """Rows of an epoch, as the object says."""
        return self._size

    def get_repeat_count(self) -> int:
        """Always 1: an epoch ends where the object's iterator does."""
        return 1

    def set_epoch(self, epoch: int) -> None:
        """Without effect: the object decides in which order its rows come."""

    def create_tuple_iterator(self, num_epochs: int = -1) -> Iterator[Columns]:
        """The rows of an epoch; asked again after them, those of the next."""
        return _Rows(self._epoch)

    def _epoch(self) -> Iterator[Columns]:
        for row in _called(getattr(self._dataset, self._way), num_epochs=1, do_copy=True):
            if isinstance(row, dict):
                yield tuple(row.values())
            else:
                yield tuple(row) if isinstance(row, (tuple, list)) else (row,)
        self.reset()

    def reset(self) -> None:
        """Begin again with the first row, if the object knows how."""
        if callable(reset := getattr(self._dataset, "reset", None)):
            reset()

    def __repr__(self) -> str:
        return repr(self._dataset)


class _Rows:
    """An iterator that begins again after its end."""

    def __init__(self, epoch: Callable[[], Iterator[Columns]]) -> None:
        self._epoch, self._rows = epoch, epoch()

    def __iter__(self) -> Iterator[Columns]:
        return self

    def __next__(self) -> Columns:
        for row in self._rows:
            return row
        self._rows = self._epoch()
        raise StopIteration


def _called(function: Callable, **options: Any) -> Any:
    """function(...) with those of the options that it takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function()
    taken = {p.name for p in parameters}
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return function(**{name: value for name, value in options.items() if every or name in taken})


def first_row(dataset: Any) -> Columns:
    """The first row; the next that is asked for is the first again."""
    row = next(iter(dataset.create_tuple_iterator(num_epochs=1)))
    if isinstance(dataset, OtherDataset):
        dataset.reset()
    return row


class Feed:
    """One iterator over a dataset that repeats for ever, after `skip` rows: whole epochs are skipped by number."""

    def __init__(self, dataset: Any, skip: int = 0) -> None:
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
