"""Data pipelines: a `Dataset` gives samples; each method makes a longer pipeline; iterating reads.

    dataset = Cifar10Dataset(folder, num_shards=8, shard_id=rank)
    dataset = dataset.map(TypeCast("int32"), "label").map([RandomCrop(32, 4), Rescale(1 / 255, 0), HWC2CHW()], "image")
    for image, label in dataset.batch(32, drop_remainder=True):     # one pass over the data, as Tensors
        ...

**Which numbers are drawn.** Augmentations depend on (global seed, place among the random operations, epoch, sample
index), orders on (global seed, place among the shuffles, epoch), and on nothing else: not on the rank, not on the
number of ranks, not on what was drawn before. So all ranks see one order and each takes its share, and sample 17 is
cropped the same way wherever it is read. The sample index counts in the whole data, before shuffling and sharding.

**Which epoch it is.** A dataset counts the passes that ran to their end; the next pass is the next epoch, with another
order. A pass that is left early does not count: looking at one batch changes nothing, and on one rank only it does no
harm. To go on in the middle of an epoch keep one iterator (`create_tuple_iterator`). Another seed starts at epoch 0
again, as does `set_epoch(0)`. The count lies in the object that is iterated:
every rank builds its own pipeline.

Names and defaults are MindSpore's (mindspore.dataset). Arguments for its worker threads and processes are taken and
have no effect: rows are made in the calling process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...base.checks import checked, flag
from ...base.errors import ArgumentError, ArgumentTypeError, DatasetError, shorten
from ...base.seeds import get_dataset_seed as get_seed
from ...nn.tensor.tensor import Tensor
from .checks import NAMES, WORKERS, as_value, at_least, split_counts
from .iterators import DatasetIterator, Row
from .transforms import RandomTransform, Transform, apply_operations, keyed_generator, operation_name, operations_of


class Dataset:
    """A pipeline that can be iterated. Sources are in `sources.py` and `images.py`; every method gives a longer one."""

    _parent: Dataset | None = None
    _epoch = 0  # passes of this object that ran to their end
    _epoch_seed: int | None = None  # the global seed they were drawn with
    _names: tuple[str, ...] = ()  # of the columns, where they are others than the parent's
    _text = ""  # the call that made this node

    # ---- what a node is ----

    def _columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._names or self._parent._columns()

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        """The rows of one epoch."""
        raise NotImplementedError

    def _size(self) -> int:
        """Rows of one epoch."""
        return self._parent._size()

    def _sized(self) -> bool:
        """Whether the source tells its length without being read."""
        return self._parent._sized()

    def _describe(self) -> str:
        return self._text or type(self).__name__

    def _count_nodes(self, kind: Callable[[Dataset], bool]) -> int:
        """Nodes of one kind before here, the place of a random map or shuffle: other kinds do not change its draws."""
        return kind(self) + (0 if self._parent is None else self._parent._count_nodes(kind))

    # ---- longer pipelines ----

    @checked("map", python_multiprocessing=flag, num_parallel_workers=WORKERS)
    def map(
        self,
        operations: Callable | Sequence[Callable],
        input_columns: str | Sequence[str] | None = None,
        output_columns: str | Sequence[str] | None = None,
        column_order: str | Sequence[str] | None = None,
        num_parallel_workers: int | None = None,
        *,
        python_multiprocessing: bool = False,
    ) -> Dataset:
        """Every row with some columns replaced by what `operations` make of them.

        operations      a callable or a list, each given what the one before returned; a tuple is several columns
        input_columns   what the first operation gets, one argument each; default: the first column
        output_columns  names of the results; default: those of the inputs
        column_order    the columns to go on with, in this order; default: all. As many results as inputs take their
                        places; otherwise the results come first and the columns left over after them

        Raises DatasetError for an unknown column, and while running for a wrong number of results.
        """
        node = _Map(self, operations, input_columns, output_columns)
        return node if column_order is None else node.project(column_order)

    @checked("batch", num_parallel_workers=WORKERS)
    def batch(self, batch_size: int, drop_remainder: bool = False, num_parallel_workers: int | None = None) -> Dataset:
        """`batch_size` rows stacked in a new first dim; the last may be smaller, or is dropped (`drop_remainder`).

        Raises DatasetError while running when rows differ in shape or dtype.
        """
        return _Batch(self, batch_size, drop_remainder)

    @checked("filter", num_parallel_workers=WORKERS)
    def filter(
        self,
        predicate: Callable[..., Any],
        input_columns: str | Sequence[str] | None = None,
        num_parallel_workers: int | None = None,
    ) -> Dataset:
        """The rows for which `predicate(*columns)` is true; it gets `input_columns` (default: all) as arrays.

        The length is known only after one pass: `len` refuses, `get_dataset_size()` reads. Raises DatasetError for an
        unknown column, and while running where the answer is not one truth value.
        """
        return _Filter(self, predicate, input_columns)

    def zip(self, datasets: Dataset | Sequence[Dataset]) -> Dataset:
        """Rows side by side: the columns of this dataset and those of `datasets`, as long as the shortest.

        Raises DatasetError for a column name that two of them have.
        """
        return _Zip([self, *_datasets("zip", datasets)])

    def concat(self, datasets: Dataset | Sequence[Dataset]) -> Dataset:
        """The rows of this dataset, then those of `datasets`; `a + b` is `a.concat(b)`.

        Raises DatasetError where their columns have different names.
        """
        return _Concat([self, *_datasets("concat", datasets)])

    def __add__(self, other: Dataset) -> Dataset:
        return self.concat(other)

    @checked("split", randomize=flag)
    def split(self, sizes: Sequence[int] | Sequence[float], randomize: bool = True) -> tuple[Dataset, ...]:
        """Disjoint parts, such as training and validation data.

        sizes      rows of each part (ints; their sum is the dataset's size), or shares (floats, sum 1): a part gets
                   round(share * size) rows, and what is then too few or too many goes to the first part that stays
                   above 0
        randomize  draw by the global seed which sample is in which part; else the parts are cut in order

        A sample stays in its part in every epoch, however the data are shuffled. Raises ArgumentError for sizes that do
        not add up or leave a part without rows, DatasetError for batches and repeated data.
        """
        where, keys = repr(self), [row.key for row in self._rows(get_seed(), 0)]
        samples = np.array([key[1] for key in keys])
        if len({*samples.tolist()}) < len(keys) or any(len(key) > 2 for key in keys):
            raise DatasetError("rows are not single samples", where=where, hint="split() before batch() and repeat()")
        counts = split_counts(sizes, len(keys))
        if randomize:
            samples = keyed_generator(get_seed(), "split").permutation(np.sort(samples))
        part_of = dict(zip(samples.tolist(), np.repeat(np.arange(len(counts)), counts).tolist(), strict=True))
        return tuple(_Part(self, part_of, part, count) for part, count in enumerate(counts))

    def apply(self, function: Callable[[Dataset], Dataset]) -> Dataset:
        """`function(self)`: part of a pipeline with a name. Raises ArgumentTypeError where it gives no dataset."""
        (made,) = _datasets("apply", function(self))
        return made

    def shuffle(self, buffer_size: int) -> Dataset:
        """Random order, each row drawn from the next `buffer_size` (at least 2); the data's length shuffles fully.

        Every rank draws the same numbers, so shards of equal length are shuffled alike, and which samples share a step
        depends on the number of ranks; not so `shuffle=` of a source, which shuffles before sharding.
        """
        return _Shuffle(self, buffer_size)

    def repeat(self, count: int | None = None) -> Dataset:
        """The data `count` times (None or -1: endless, of the size of once), each time as the next epoch."""
        return _Repeat(self, count)

    def take(self, count: int = -1) -> Dataset:
        """The first `count` rows (-1: all)."""
        return _Take(self, count)

    def skip(self, count: int) -> Dataset:
        """All but the first `count` rows."""
        return _Skip(self, count)

    @checked("project", columns=NAMES)
    def project(self, columns: str | Sequence[str]) -> Dataset:
        """Only these columns, in this order. Raises DatasetError for an unknown one."""
        return _Project(self, columns)

    def rename(self, input_columns: str | Sequence[str], output_columns: str | Sequence[str]) -> Dataset:
        """Other names for some columns. Raises DatasetError for an unknown one or a name that exists already."""
        return _Rename(self, input_columns, output_columns)

    def reset(self) -> None:
        """Accepted for scripts that call it between epochs: every iteration over a dataset starts over."""

    # ---- what it holds ----

    def get_dataset_size(self) -> int:
        """Rows (after `batch`: steps) of one epoch. A source without a length is counted by reading it once."""
        return self._size()

    def get_batch_size(self) -> int:
        """The `batch_size` of the last `batch`; 1 without one."""
        return 1 if self._parent is None else self._parent.get_batch_size()

    def get_repeat_count(self) -> int:
        """How often the data are repeated in one epoch; -1: without end."""
        return 1 if self._parent is None else self._parent.get_repeat_count()

    def get_col_names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self._columns())

    def output_shapes(self) -> list[list[int]]:
        """The shape of each column in the first row (which is read for it)."""
        return [list(value.shape) for value in self._first().values]

    def output_types(self) -> list[np.dtype]:
        """The dtype of each column in the first row (which is read for it)."""
        return [value.dtype for value in self._first().values]

    def _first(self) -> Row:
        for row in self._rows(get_seed(), 0):
            return row
        raise DatasetError("there are no rows", where=repr(self))

    def __len__(self) -> int:
        # list(dataset) asks for a length first: with a TypeError it goes on without, and a stream is not read twice
        if not self._sized():
            what = "the source has no length"
            raise ArgumentTypeError(what, where=repr(self), hint="get_dataset_size() reads it once to count")
        return self._size()

    def __bool__(self) -> bool:
        return True  # without it, `if dataset:` would read the data to count them

    def __repr__(self) -> str:
        return self._describe() if self._parent is None else f"{self._parent!r}.{self._describe()}"

    # ---- iteration ----

    def create_dict_iterator(self, num_epochs: int = -1, output_numpy: bool = False) -> DatasetIterator:
        """An iterator over {column: value}; see DatasetIterator."""
        return DatasetIterator(self, self._columns(), num_epochs, output_numpy, as_dict=True)

    @checked("create_tuple_iterator", columns=NAMES | None)
    def create_tuple_iterator(
        self, columns: str | Sequence[str] | None = None, num_epochs: int = -1, output_numpy: bool = False
    ) -> DatasetIterator:
        """An iterator over tuples of `columns` (default: all); see DatasetIterator."""
        columns = self._columns() if columns is None else columns
        return DatasetIterator(self, columns, num_epochs, output_numpy, as_dict=False)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """One epoch, as tuples of Tensors."""
        yield from self.create_tuple_iterator(num_epochs=1)

    @checked("set_epoch", epoch=at_least(0))
    def set_epoch(self, epoch: int) -> None:
        """The next pass has the order and augmentation of epoch `epoch` (from 0): after loading a checkpoint."""
        self._epoch, self._epoch_seed = epoch, get_seed()

    def _next_epoch(self, seed: int) -> int:
        if seed != self._epoch_seed:
            self._epoch, self._epoch_seed = 0, seed
        return self._epoch

    def _epoch_done(self, seed: int, epoch: int) -> None:
        if seed == self._epoch_seed:
            self._epoch = max(self._epoch, epoch + 1)

    def _indices(self, where: str, columns: Sequence[str]) -> tuple[int, ...]:
        """Positions of columns. Raises DatasetError for an unknown one."""
        have = self._columns()
        for name in columns:
            if name not in have:
                raise DatasetError(f"there is no column {name!r}", where=where, allowed=f"Columns: {', '.join(have)}")
        return tuple(have.index(name) for name in columns)


def zip_datasets(datasets: Sequence[Dataset]) -> Dataset:
    """`first.zip(the others)`, for a tuple of datasets."""
    first, *others = _datasets("zip", datasets)
    return first.zip(others) if others else first


def _datasets(where: str, given: Any) -> list[Dataset]:
    """One dataset or several, as a list. Raises ArgumentTypeError."""
    several = [given] if isinstance(given, Dataset) else list(given) if isinstance(given, Sequence) else []
    if not several or not all(isinstance(one, Dataset) for one in several):
        raise ArgumentTypeError(f"datasets={shorten(given)}", where=where, allowed="A dataset or a list of them")
    return several


# ---- nodes: what the methods of Dataset return ----


class _Map(Dataset):
    @checked("map", input_columns=NAMES | None, output_columns=NAMES | None)
    def __init__(self, parent: Dataset, operations: Any, input_columns: Any, output_columns: Any) -> None:
        self._parent = parent
        self._operations = operations_of("map", operations)
        self._text = f"map({', '.join(operation_name(operation) for operation in self._operations)})"
        have = parent._columns()
        inputs = have[:1] if input_columns is None else input_columns
        self._inputs = parent._indices("map", inputs)
        self._outputs = inputs if output_columns is None else output_columns
        kept = [i for i in range(len(have)) if i not in self._inputs]
        twice = sorted({have[i] for i in kept} & set(self._outputs))
        if twice:
            what, allowed = f"output column {twice[0]!r} already exists", f"Columns: {', '.join(have)}"
            raise DatasetError(what, where="map", allowed=allowed)
        # where each column of the result comes from: a result (>= 0) or a column that is kept (~i)
        if len(self._outputs) == len(inputs):
            place = {column: result for result, column in enumerate(self._inputs)}
            self._order = [place.get(i, ~i) for i in range(len(have))]
        else:
            self._order = [*range(len(self._outputs)), *(~i for i in kept)]
        self._names = tuple(self._outputs[i] if i >= 0 else have[~i] for i in self._order)
        self._random = [isinstance(operation, RandomTransform) for operation in self._operations]
        self._place = parent._count_nodes(lambda node: isinstance(node, _Map) and any(node._random))

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        for key, values in self._parent._rows(seed, epoch):
            try:
                results = apply_operations(
                    self._operations,
                    tuple(values[i] for i in self._inputs),
                    lambda i, key=key: keyed_generator(seed, "map", self._place, sum(self._random[:i]), *key),
                )
            except Exception as error:
                names = ", ".join(self._parent._columns()[i] for i in self._inputs)
                error.add_note(f"(in {self!r}, column {names}, sample {key[1]} of epoch {key[0]})")
                raise
            if len(results) != len(self._outputs):
                named = f"output_columns names {len(self._outputs)} ({', '.join(self._outputs)})"
                what = f"the operations returned {len(results)} columns, {named}"
                hint = "Give output_columns as many names as there are results"
                raise DatasetError(what, where=repr(self), hint=hint)
            arrays = [as_value(result, name, repr(self)) for result, name in zip(results, self._outputs, strict=True)]
            if not isinstance(self._operations[-1], Transform):
                # a function may return the same array each time, or part of a table
                arrays = [np.array(array) for array in arrays]
            yield Row(key, tuple(arrays[i] if i >= 0 else values[~i] for i in self._order))


class _Batch(Dataset):
    @checked("batch", batch_size=at_least(1), drop_remainder=flag)
    def __init__(self, parent: Dataset, batch_size: int, drop_remainder: bool) -> None:
        self._parent, self._batch_size, self._drop = parent, batch_size, drop_remainder
        self._text = f"batch({batch_size})"

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        waiting: list[Row] = []
        for row in self._parent._rows(seed, epoch):
            waiting.append(row)
            if len(waiting) == self._batch_size:
                yield self._stack(waiting)
                waiting = []
        if waiting and not self._drop:
            yield self._stack(waiting)

    def _stack(self, rows: list[Row]) -> Row:
        columns = []
        for i, name in enumerate(self._columns()):
            values = [row.values[i] for row in rows]
            first = values[0]
            for row, value in zip(rows, values, strict=True):
                if value.shape != first.shape or value.dtype != first.dtype and first.dtype.kind not in "US":
                    other = f"{value.dtype} {value.shape} in sample {row.key[1]}"
                    what = f"column {name!r} is {first.dtype} {first.shape} in sample {rows[0].key[1]}, but {other}"
                    allowed = "Rows of one batch have one shape and dtype"
                    raise DatasetError(what, where=repr(self), allowed=allowed, hint="map() them first")
            columns.append(np.stack(values))
        return Row(tuple(number for row in rows for number in row.key), tuple(columns))

    def _size(self) -> int:
        size = self._parent._size()
        return size // self._batch_size if self._drop else -(-size // self._batch_size)

    def get_batch_size(self) -> int:
        return self._batch_size


class _Filter(Dataset):
    @checked("filter", input_columns=NAMES | None)
    def __init__(self, parent: Dataset, predicate: Any, input_columns: Any) -> None:
        (self._predicate,) = operations_of("filter", [predicate])
        self._parent, self._text = parent, f"filter({operation_name(predicate)})"
        self._inputs = parent._indices("filter", parent._columns() if input_columns is None else input_columns)

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        for row in self._parent._rows(seed, epoch):
            try:
                answer = np.asarray(self._predicate(*(row.values[i] for i in self._inputs)))
            except Exception as error:
                error.add_note(f"(in {self!r}, sample {row.key[1]} of epoch {row.key[0]})")
                raise
            if answer.size != 1 or answer.dtype.kind not in "biuf":
                what = f"the predicate returned {shorten(answer)}"
                raise DatasetError(what, where=repr(self), allowed="True or False for a row")
            if answer.item():
                yield row

    def _size(self) -> int:
        return sum(1 for _ in self._rows(get_seed(), 0))

    def _sized(self) -> bool:
        return False


class _Joined(Dataset):
    """One pipeline of several. Each after the first draws with numbers of its own: equal samples of two parents are
    not cropped alike.
    """

    def __init__(self, parents: Sequence[Dataset]) -> None:
        self._parent, self._parents = parents[0], parents
        self._text = f"{type(self).__name__[1:].lower()}({', '.join(map(repr, parents[1:]))})"

    def _each(self, seed: int, epoch: int) -> list[Iterator[Row]]:
        own = [seed] + [int(keyed_generator(seed, "joined", i).integers(2**31)) for i in range(1, len(self._parents))]
        return [parent._rows(its, epoch) for parent, its in zip(self._parents, own, strict=True)]

    def _sized(self) -> bool:
        return all(parent._sized() for parent in self._parents)

    def _count_nodes(self, kind: Callable[[Dataset], bool]) -> int:
        return max(parent._count_nodes(kind) for parent in self._parents)


class _Zip(_Joined):
    def __init__(self, parents: Sequence[Dataset]) -> None:
        super().__init__(parents)
        self._names = tuple(name for parent in parents for name in parent._columns())
        twice = sorted({name for name in self._names if self._names.count(name) > 1})
        if twice:
            raise DatasetError(f"two datasets have a column {twice[0]!r}", where="zip", hint="rename() one of them")

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        for rows in zip(*self._each(seed, epoch), strict=False):
            yield Row(rows[0].key, tuple(value for row in rows for value in row.values))

    def _size(self) -> int:
        return min(parent._size() for parent in self._parents)


class _Concat(_Joined):
    def __init__(self, parents: Sequence[Dataset]) -> None:
        super().__init__(parents)
        for parent in parents[1:]:
            if parent._columns() != parents[0]._columns():
                what = f"columns {', '.join(parents[0]._columns())} and {', '.join(parent._columns())}"
                hint = "project() and rename() them first"
                raise DatasetError(what, where="concat", allowed="Datasets with columns of the same names", hint=hint)

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        return itertools.chain.from_iterable(self._each(seed, epoch))

    def _size(self) -> int:
        return sum(parent._size() for parent in self._parents)


class _Part(Dataset):
    def __init__(self, parent: Dataset, part_of: dict[int, int], part: int, count: int) -> None:
        self._parent, self._part_of, self._part, self._count = parent, part_of, part, count
        self._text = f"split({count} of {len(part_of)})"

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        for row in self._parent._rows(seed, epoch):
            if row.key[1] not in self._part_of:  # shuffled and then cut into shards
                what = f"sample {row.key[1]} of epoch {epoch} was not among the rows that were split"
                raise DatasetError(what, where=repr(self), hint="Split data that every rank reads whole")
            if self._part_of[row.key[1]] == self._part:
                yield row

    def _size(self) -> int:
        return self._count


class _Shuffle(Dataset):
    @checked("shuffle", buffer_size=at_least(2))
    def __init__(self, parent: Dataset, buffer_size: int) -> None:
        self._parent, self._buffer_size, self._text = parent, buffer_size, f"shuffle({buffer_size})"
        self._place = parent._count_nodes(lambda node: isinstance(node, _Shuffle))

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        rng = keyed_generator(seed, "shuffle", self._place, epoch)
        rows = self._parent._rows(seed, epoch)
        buffer = list(itertools.islice(rows, self._buffer_size))
        for row in rows:
            place = int(rng.integers(self._buffer_size))
            yield buffer[place]
            buffer[place] = row
        for place in rng.permutation(len(buffer)):
            yield buffer[place]


class _Repeat(Dataset):
    @checked("repeat", count=at_least(-1) | None)
    def __init__(self, parent: Dataset, count: int | None) -> None:
        self._parent, self._count = parent, -1 if count is None else count
        self._text = f"repeat({'' if self._count == -1 else count})"
        if count == 0:
            raise ArgumentError("count=0", where="repeat", allowed="At least 1, or -1 (None) for without end")

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        if self._count > 0:
            for inner in range(epoch * self._count, (epoch + 1) * self._count):
                yield from self._parent._rows(seed, inner)
            return
        for inner in itertools.count(epoch):
            empty = True
            for row in self._parent._rows(seed, inner):
                empty = False
                yield row
            if empty:
                raise DatasetError("there are no rows to repeat", where=repr(self))

    def _size(self) -> int:
        return self._parent._size() * max(self._count, 1)

    def get_repeat_count(self) -> int:
        inner = self._parent.get_repeat_count()
        return -1 if -1 in (inner, self._count) else inner * self._count


class _Take(Dataset):
    @checked("take", count=at_least(-1))
    def __init__(self, parent: Dataset, count: int) -> None:
        self._parent, self._count, self._text = parent, count, f"take({count})"
        if count == 0:
            raise ArgumentError("count=0", where="take", allowed="At least 1, or -1 for all")

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        return itertools.islice(self._parent._rows(seed, epoch), None if self._count == -1 else self._count)

    def _size(self) -> int:
        size = self._parent._size()
        return size if self._count == -1 else min(size, self._count)


class _Skip(Dataset):
    @checked("skip", count=at_least(0))
    def __init__(self, parent: Dataset, count: int) -> None:
        self._parent, self._count, self._text = parent, count, f"skip({count})"

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        return itertools.islice(self._parent._rows(seed, epoch), self._count, None)

    def _size(self) -> int:
        return max(0, self._parent._size() - self._count)


class _Project(Dataset):
    def __init__(self, parent: Dataset, columns: tuple[str, ...]) -> None:
        self._parent, self._names, self._text = parent, columns, f"project({', '.join(columns)})"
        self._taken = parent._indices("project", columns)

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        for key, values in self._parent._rows(seed, epoch):
            yield Row(key, tuple(values[i] for i in self._taken))


class _Rename(Dataset):
    @checked("rename", input_columns=NAMES, output_columns=NAMES)
    def __init__(self, parent: Dataset, input_columns: Any, output_columns: Any) -> None:
        self._parent = parent
        if len(input_columns) != len(output_columns):
            what = f"{len(input_columns)} columns but {len(output_columns)} new names"
            raise DatasetError(what, where="rename", allowed="One new name per column")
        parent._indices("rename", input_columns)
        names, have = dict(zip(input_columns, output_columns, strict=True)), parent._columns()
        self._names = tuple(names.get(name, name) for name in have)
        self._text = f"rename({', '.join(self._names)})"
        if len(set(self._names)) < len(have):
            what = f"new names {shorten(output_columns)} give a column twice"
            raise DatasetError(what, where="rename", allowed=f"Columns: {', '.join(have)}")

    def _rows(self, seed: int, epoch: int) -> Iterator[Row]:
        return self._parent._rows(seed, epoch)
