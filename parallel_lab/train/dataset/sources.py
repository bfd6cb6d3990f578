"""Where a pipeline begins: data in memory or from a Python object, in order or shuffled, whole or one shard of it.

**Which samples a shard gets.** In each epoch the N samples stand in one global order, the same for every shard: 0 to
N-1, or shuffled. Shard r of n takes every n-th from place r on: its j-th sample is the one at place (n * j + r) mod N,
for j below ceil(N / n). All shards are equally long; where n does not divide N, the last ones begin again at place 0.
(MindSpore, DistributedSampler; `num_samples` limits each shard, not their sum.)

    N = 10, n = 4     shard 0: 0 4 8     shard 1: 1 5 9     shard 2: 2 6 0     shard 3: 3 7 1

So step k of all shards together, with batches of G / n, holds places k * G to (k + 1) * G - 1, whatever n is: training
on 8 ranks sees the same global batches as on one, with the same augmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...base.checks import checked, flag, integer, sequence_of
from ...base.errors import ArgumentError, ArgumentTypeError, DatasetError, shorten
from ...base.seeds import get_dataset_seed as get_seed
from .checks import DTYPE, NAMES, WORKERS, as_value, at_least, unavailable
from .pipeline import Dataset, Row
from .samplers import BuiltinSampler, DistributedSampler, Epoch, as_sampler
from .transforms import keyed_generator


class IndexedDataset(Dataset):
    """A source whose samples have numbers 0 to N-1: the base of those that can be shuffled and sharded.

    length       N
    column_names one per column
    read         read(i) -> one array per column
    num_samples  at most this many samples per epoch and shard (None or 0: all); of shuffled data another choice each
                 epoch
    shuffle      None or True: a new order each epoch; False: 0 to N-1
    num_shards, shard_id  read shard `shard_id` of `num_shards` (see the module); both or neither
    sampler      numbers of samples in the order in which an epoch reads them: what can be iterated again for every
                 epoch, such as a list or an object with __iter__. In place of shuffle and shards

    Raises DatasetError for one of the two without the other and for a sampler next to them, ArgumentError for numbers
    out of range.
    """

    @checked(num_samples=at_least(0) | None, shuffle=flag | None)
    def __init__(
        self,
        length: int,
        column_names: Sequence[str],
        read: Callable[[int], tuple[np.ndarray, ...]],
        *,
        num_samples: int | None = None,
        shuffle: bool | None = None,
        num_shards: int | None = None,
        shard_id: int | None = None,
        sampler: Iterable[int] | None = None,
    ) -> None:
        where = type(self).__name__
        self._sampler = _read_sampler(where, sampler, shuffle, num_shards, num_samples)
        self._length, self._names, self._read = length, tuple(column_names), read
        self._limit = 0 if num_samples is None else num_samples
        self._shuffle = True if shuffle is None else shuffle
        self._shards, self._shard = check_shards(where, num_shards, shard_id)
        if length < 1:
            raise DatasetError("there are no samples", where=where)

    def _size(self) -> int:
        if self._sampler is not None:
            return len(self.sample_indices(get_seed(), 0))
        share = -(-self._length // self._shards)
        return min(share, self._limit) if self._limit else share

    def _sized(self) -> bool:
        return True

    def sample_indices(self, seed: int, epoch: int) -> np.ndarray:
        """Numbers of the samples this shard reads in one epoch, in order: (get_dataset_size(),) int64."""
        if self._sampler is not None:
            numbers = self._sampler.numbers(Epoch(seed, epoch, self._length, self._column))
            return numbers[: self._limit or None]
        places = (np.arange(self._size(), dtype=np.int64) * self._shards + self._shard) % self._length
        return keyed_generator(seed, "order", epoch).permutation(self._length)[places] if self._shuffle else places

    def _column(self, name: str) -> np.ndarray:
        """The values of one column, by number of the sample."""
        (at,) = self._indices(type(self).__name__, [name])
        return np.array([self._read(number)[at] for number in range(self._length)])

    def use_sampler(self, new_sampler: Any) -> None:
        """Read by another sampler, which takes the samples of the old one's child, if that has one."""
        new = as_sampler("use_sampler", new_sampler)
        if self._sampler is not None and self._sampler.get_child() is not None:
            new.add_child(self._sampler.get_child())
        self._sampler, self._shards, self._shard, self._limit = new, 1, 0, 0

    def add_sampler(self, new_sampler: Any) -> None:
        """Read by another sampler, which takes the samples that were read until now."""
        old = self._sampler or DistributedSampler(self._shards, self._shard, self._shuffle, self._limit or None)
        new = as_sampler("add_sampler", new_sampler)
        new.add_child(old)
        self._sampler, self._shards, self._shard, self._limit = new, 1, 0, 0

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        for index in self.sample_indices(seed, epoch).tolist():
            yield Row((epoch, index), self._read(index))

    def _describe(self) -> str:
        shard = f", shard {self._shard} of {self._shards}" if self._shards > 1 else ""
        return f"{type(self).__name__}({self._length} samples{shard})"


class GeneratorDataset(IndexedDataset):
    """Samples from a Python object.

    source        one of: an object with __getitem__ and __len__ (a list, your own class), whose samples are numbered; a
                  function that returns an iterator, called once per epoch; an iterable, iterated once per epoch
    column_names  a sample is a tuple or list of as many arrays, numbers, texts or Tensors, or the one value
    column_types  None, or a dtype per column that is compared with what comes
    num_samples   at most this many samples per epoch and shard (None or 0: all); of shuffled data another choice each
                  epoch
    num_parallel_workers, python_multiprocessing, max_rowsize  MindSpore's, without effect here
    shuffle       None: a new order each epoch if samples are numbered; True: an error if not; False: as they come
    sampler       numbers of the samples to read, in order, instead of shuffle and shards: a list, or an object that
                  can be iterated for every epoch
    num_shards, shard_id  of every epoch read shard `shard_id` of `num_shards`, that is every num_shards-th sample; both
                          or neither
    schema, batch_sampler, collate_fn   stay None

    A function or iterable comes in its own order: `shuffle` and shards need numbered samples (`Dataset.shuffle` works
    on anything). A generator object can be read once, its function every epoch. A zip becomes a list.

    >>> squares = GeneratorDataset(lambda: ((i, i * i) for i in range(3)), ["i", "square"])
    >>> [(int(i), int(square)) for i, square in squares]
    [(0, 0), (1, 1), (2, 4)]

    Raises ArgumentTypeError for another source; DatasetError for shards or shuffle=True without
    numbered samples and, while running, for another number of columns or dtype than `column_types`.
    """

    @checked(
        schema=unavailable("Give column_types"),
        python_multiprocessing=flag,
        num_samples=at_least(0) | None,
        num_parallel_workers=WORKERS,
        max_rowsize=sequence_of(integer(-1), "An int, or a list of ints", one=True) | None,
        batch_sampler=unavailable("Use .batch(batch_size)"),
        collate_fn=unavailable("Use .map(function) before .batch(batch_size)"),
    )
    def __init__(
        self,
        source: Any,
        column_names: str | Sequence[str] | None = None,
        column_types: Sequence[Any] | None = None,
        schema: None = None,
        num_samples: int | None = None,
        num_parallel_workers: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        num_shards: int | None = None,
        shard_id: int | None = None,
        python_multiprocessing: bool = True,
        max_rowsize: Any = None,
        batch_sampler: None = None,
        collate_fn: None = None,
    ) -> None:
        where = type(self).__name__
        if column_names is None:
            what = "column_names is missing"
            raise ArgumentError(what, where=where, hint="Name the columns, for instance ['data', 'label']")
        self._names = NAMES(where, "column_names", column_names)
        self._types = None
        if column_types is not None:
            is_list = isinstance(column_types, Sequence) and not isinstance(column_types, str)
            if not is_list or len(column_types) != len(self._names):
                what = f"column_types={shorten(column_types)}"
                raise ArgumentError(what, where=where, allowed=f"A dtype for each of {', '.join(self._names)}")
            self._types = [DTYPE(where, "column_types", dtype) for dtype in column_types]
        if isinstance(source, zip):  # as MindSpore does
            source = list(source)
        self._source = source
        self._counted: int | None = None  # length of a stream, once known
        self._numbered = hasattr(source, "__getitem__") and not isinstance(source, type)
        if self._numbered:
            if not hasattr(source, "__len__"):
                what = f"source {type(source).__name__} has __getitem__ but no __len__"
                raise DatasetError(what, where=where, hint="Add __len__, the number of samples")
            settings = {"num_samples": num_samples, "shuffle": shuffle, "num_shards": num_shards, "shard_id": shard_id}
            super().__init__(len(source), self._names, self._read_source, **settings, sampler=sampler)
            return
        if not callable(source) and not isinstance(source, Iterable):
            allowed = "An object with __getitem__ and __len__, a function that returns an iterator, or an iterable"
            raise ArgumentTypeError(f"source={shorten(source)}", where=where, allowed=allowed)
        check_shards(where, num_shards, shard_id)
        if sampler is not None or num_shards is not None or (shuffle is not None and flag(where, "shuffle", shuffle)):
            wanted = "a sampler" if sampler is not None else "shards" if num_shards is not None else "shuffle=True"
            what = f"{wanted} of a source whose samples have no numbers ({shorten(source, 40)})"
            hint = "Give an object with __getitem__ and __len__, such as a list; or use .shuffle(buffer_size)"
            raise DatasetError(what, where=where, hint=hint)
        self._limit = 0 if num_samples is None else num_samples
        # a map or generator object is its own iterator and cannot begin again; a class with __iter__ and __next__ may
        self._once = isinstance(source, Iterator) and type(source).__module__ in ("builtins", "itertools")
        self._begun = False

    def _read_source(self, index: int) -> tuple[np.ndarray, ...]:
        return self._sample(self._source[index], index)

    def _sample(self, sample: Any, index: int) -> tuple[np.ndarray, ...]:
        where = f"{type(self).__name__}, sample {index}"
        values = tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)
        if len(values) != len(self._names):
            what = f"{len(values)} values for {len(self._names)} columns ({', '.join(self._names)})"
            raise DatasetError(what, where=where, hint="A sample is a tuple with one value per column")
        # copies: the source may use its array again, an operation may write into what it is given
        arrays = tuple(np.array(as_value(value, name, where)) for value, name in zip(values, self._names, strict=True))
        for array, name, dtype in zip(arrays, self._names, self._types or (), strict=False):
            if array.dtype != dtype:
                raise DatasetError(f"column {name!r} is {array.dtype}, column_types says {dtype}", where=where)
        return arrays

    def _size(self) -> int:
        if self._numbered:
            return super()._size()
        if self._counted is None:
            if self._once:
                what = f"a {type(self._source).__name__} object can be read once, so its samples cannot be counted"
                raise DatasetError(what, where=type(self).__name__, hint="Give the function that makes it, or a list")
            self._counted = len(self._source) if self._sized() else sum(1 for _ in self._stream())
        return min(self._counted, self._limit) if self._limit else self._counted

    def _sized(self) -> bool:
        return self._numbered or hasattr(self._source, "__len__")

    def _stream(self) -> Iterator[Any]:
        """The source from its beginning. Raises DatasetError if it cannot begin again."""
        name = shorten(self._source, 40)
        if self._once and self._begun:
            hint = "Give the function that makes it, without calling it, or a list"
            raise DatasetError(f"{name} can be read once, and was", where=type(self).__name__, hint=hint)
        self._begun = True
        # an iterable is iterated even if it can be called as well, as MindSpore does
        stream = iter(self._source) if isinstance(self._source, Iterable) else self._source()
        if not isinstance(stream, Iterable):
            what = f"{name} returned {shorten(stream)}"
            where = type(self).__name__
            raise ArgumentTypeError(what, where=where, allowed="An iterator: a function with yield returns one")
        return iter(stream)

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        if self._numbered:
            yield from super()._rows(seed, epoch)
            return
        for index, sample in enumerate(self._stream()):
            yield Row((epoch, index), self._sample(sample, index))
            if index + 1 == self._limit:
                return

    def _describe(self) -> str:
        return super()._describe() if self._numbered else f"{type(self).__name__}({shorten(self._source, 40)})"


class NumpySlicesDataset(IndexedDataset):
    """Arrays split along their first dim: sample i is (array[i] for each column).

    data          an array or list: one column; a tuple of arrays: several; a dict: several, with names
    column_names  default: the dict's keys, or column_0, column_1, ...
    num_parallel_workers  None, or at least 1: MindSpore's threads, without effect here
    shuffle       None or True: a new order each epoch; False: as in the arrays
    num_samples, sampler, num_shards, shard_id  as of GeneratorDataset

    The data are copied once.

    >>> pairs = NumpySlicesDataset({"x": [1.0, 2.0], "y": [3, 4]}, shuffle=False)
    >>> [(float(x), int(y)) for x, y in pairs]
    [(1.0, 3), (2.0, 4)]

    Raises DatasetError for columns of different length, a wrong number of names, and values that are not an array.
    """

    @checked(num_parallel_workers=WORKERS)
    def __init__(
        self,
        data: Any,
        column_names: str | Sequence[str] | None = None,
        num_samples: int | None = None,
        num_parallel_workers: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        num_shards: int | None = None,
        shard_id: int | None = None,
    ) -> None:
        where = type(self).__name__
        parts = list(data.values()) if isinstance(data, dict) else list(data) if isinstance(data, tuple) else [data]
        default = list(data) if isinstance(data, dict) else [f"column_{i}" for i in range(len(parts))]
        if not parts:
            what = "there are no columns"
            raise DatasetError(what, where=where, allowed="An array, a tuple of arrays, or a dict of arrays")
        names = NAMES(where, "column_names", default if column_names is None else column_names)
        if len(names) != len(parts):
            raise DatasetError(f"{len(parts)} columns but {len(names)} names ({', '.join(names)})", where=where)
        arrays = [np.array(as_value(part, name, where)) for part, name in zip(parts, names, strict=True)]
        for array, name in zip(arrays, names, strict=True):
            if array.ndim == 0 or len(array) != (len(arrays[0]) if arrays[0].ndim else -1):
                what = f"column {name!r} has shape {array.shape}, column {names[0]!r} has {arrays[0].shape}"
                allowed = "All columns have the same number of samples, along dim 0"
                raise DatasetError(what, where=where, allowed=allowed)

        def read(index: int) -> tuple[np.ndarray, ...]:
            return tuple(np.array(array[index]) for array in arrays)

        settings = {"num_samples": num_samples, "shuffle": shuffle, "num_shards": num_shards, "shard_id": shard_id}
        super().__init__(len(arrays[0]), names, read, **settings, sampler=sampler)


def _read_sampler(where: str, sampler: Any, shuffle: Any, num_shards: Any, num_samples: Any) -> BuiltinSampler | None:
    """`sampler`, if it can be iterated again and again and nothing else orders the samples. Raises DatasetError."""
    if sampler is None:
        return None
    read = as_sampler(where, sampler)
    of_its_own = num_samples if read is sampler else None  # a sampler has a num_samples itself
    for name, other in (("shuffle", shuffle), ("num_shards", num_shards), ("num_samples", of_its_own)):
        if other is not None:
            raise DatasetError(f"sampler and {name} are both given", where=where, allowed="One of them")
    return read


def check_shards(where: str, num_shards: Any, shard_id: Any) -> tuple[int, int]:
    """(number of shards, number of this one); (1, 0) if neither is given. Raises as IndexedDataset says."""
    if num_shards is None and shard_id is None:
        return 1, 0
    if num_shards is None or shard_id is None:
        given, missing = ("num_shards", "shard_id") if shard_id is None else ("shard_id", "num_shards")
        what = f"{given} is given without {missing}"
        raise DatasetError(what, where=where, hint="Give both: num_shards=get_group_size(), shard_id=get_rank()")
    shards = at_least(1)(where, "num_shards", num_shards)
    return shards, integer(0, shards - 1)(where, "shard_id", shard_id)
