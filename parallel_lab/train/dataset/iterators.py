"""`DatasetIterator`: goes through a dataset by epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...base.checks import checked, flag
from ...base.errors import ArgumentError, DatasetError
from ...base.seeds import get_dataset_seed as get_seed
from ...nn.tensor.tensor import Tensor
from .checks import at_least


class Row(NamedTuple):
    """A sample or batch: `key` (epoch, sample index), a batch's joined; `values`, one array per column."""

    key: tuple[int, ...]
    values: tuple[np.ndarray, ...]


class Rows(Protocol):
    """What an iterator needs of a Dataset."""

    def _columns(self) -> tuple[str, ...]: ...
    def _indices(self, where: str, columns: Sequence[str]) -> tuple[int, ...]: ...
    def _next_epoch(self, seed: int) -> int: ...
    def _rows(self, seed: int, epoch: int) -> Iterator[Row]: ...
    def _epoch_done(self, seed: int, epoch: int) -> None: ...


class DatasetIterator:
    """Goes through a dataset by epochs: each `for` loop is one (or the rest of one that was left early).

    num_epochs    how many epochs may be read; -1: any number
    output_numpy  numpy arrays instead of Tensors

    Raises DatasetError (a RuntimeError) for a row beyond `num_epochs`.
    """

    @checked("iterator", num_epochs=at_least(-1), output_numpy=flag)
    def __init__(
        self, dataset: Rows, columns: tuple[str, ...], num_epochs: int, output_numpy: bool, *, as_dict: bool
    ) -> None:
        if num_epochs == 0:
            raise ArgumentError("num_epochs=0", where="iterator", allowed="At least 1, or -1 for any number")
        self.num_epochs, self._output_numpy = num_epochs, output_numpy
        self._dataset, self._columns, self._as_dict = dataset, columns, as_dict
        self._indices = dataset._indices("iterator", columns)
        self._finished = 0
        self._rows: Iterator[Row] | None = None
        self._running = (0, 0)  # seed and epoch of the rows

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        if self._rows is None:
            if self._finished == self.num_epochs:
                what = f"all {self.num_epochs} epochs were read"
                hint = "Make a new iterator, or a larger num_epochs (-1: any number)"
                raise DatasetError(what, where="iterator", hint=hint)
            seed = get_seed()
            self._running = (seed, self._dataset._next_epoch(seed))
            self._rows = self._dataset._rows(*self._running)
        try:
            row = next(self._rows)
        except StopIteration:
            self._rows = None
            self._finished += 1
            self._dataset._epoch_done(*self._running)
            raise
        except BaseException:
            self._rows = None  # a generator that raised is at its end: asked again, the epoch is read again and raises
            raise
        values = [row.values[i] if self._output_numpy else self._tensor(i, row.values[i]) for i in self._indices]
        return dict(zip(self._columns, values, strict=True)) if self._as_dict else tuple(values)

    def _tensor(self, i: int, value: np.ndarray) -> Tensor:
        if value.dtype.kind not in "biuf":
            name = self._dataset._columns()[i]
            what = f"column {name!r} holds {value.dtype}, no numbers"
            raise DatasetError(what, where="iterator", hint="Use output_numpy=True, or project()")
        return Tensor(value)
