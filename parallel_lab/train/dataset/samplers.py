"""Which samples an epoch reads, and in which order: MindSpore's samplers, for `sampler=` of datasets with numbers.

    sampler = DistributedSampler(num_shards=4, shard_id=rank, shuffle=False)
    sampler.add_child(SubsetSampler([7, 3, 5, 1]))        # takes its part of these four instead of all

What is drawn depends on (global seed, epoch, place among the children), and so is the same on all ranks. Rarer ones are
in `mindspore/_samplers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ...base.checks import checked, flag, integer, sequence_of
from ...base.errors import ArgumentTypeError, DatasetError, NotBuiltYet, shorten
from .checks import at_least
from .transforms import keyed_generator

COUNT, NUMBERS = at_least(0) | None, sequence_of(integer(0), "Numbers of samples, each at least 0", one=True)


class Epoch(NamedTuple):
    """What a sampler reads from: seed and number of the epoch, samples of the dataset, their labels by column."""

    seed: int
    epoch: int
    length: int
    labels: Callable[[str], np.ndarray]


class BuiltinSampler:
    """The base of samplers.  num_samples: at most so many per epoch (None or 0: all that the sampler has)."""

    child_sampler: BuiltinSampler | None = None
    shuffle = False

    @checked(num_samples=COUNT)
    def __init__(self, num_samples: int | None = None) -> None:
        self.num_samples = num_samples

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        """Places among `count` samples, in order."""
        raise NotImplementedError

    def numbers(self, epoch: Epoch, level: int = 0) -> np.ndarray:
        """Numbers of the samples of one epoch: (n,) int64. Raises ArgumentError for one that the dataset has not."""
        given = None if self.child_sampler is None else self.child_sampler.numbers(epoch, level + 1)
        count = epoch.length if given is None else len(given)
        key = ("order", level, epoch.epoch) if level else ("order", epoch.epoch)
        picked = self._picked(count, keyed_generator(epoch.seed, *key), epoch)
        check, where = integer(0, count - 1), type(self).__name__
        places = np.array([check(where, "number of a sample", place) for place in picked], np.int64)
        places = places[: self.num_samples or None]
        return places if given is None else given[places]

    def add_child(self, sampler: Any) -> None:
        """Take samples from those of another sampler. DatasetError (a RuntimeError) if there is one already."""
        if self.child_sampler is not None:
            raise DatasetError("there is a child already", where=type(self).__name__)
        self.child_sampler = as_sampler(type(self).__name__, sampler)

    def get_child(self) -> BuiltinSampler | None:
        """The sampler whose samples this one takes."""
        return self.child_sampler

    def get_num_samples(self) -> int | None:
        """num_samples, or the child's if that is less or the only one."""
        counts = [self.num_samples, self.child_sampler.get_num_samples() if self.child_sampler else None]
        return min((count for count in counts if count is not None), default=None)

    def is_shuffled(self) -> bool:
        """Whether the order is drawn, by the innermost child."""
        return self.shuffle if self.child_sampler is None else self.child_sampler.is_shuffled()

    def is_sharded(self) -> bool:
        """Whether it takes a part of several, by the innermost child."""
        return getattr(self, "num_shards", 1) > 1 if self.child_sampler is None else self.child_sampler.is_sharded()


class DistributedSampler(BuiltinSampler):
    """Every `num_shards`-th sample, from place `shard_id` on, of all in order or shuffled: as num_shards, shard_id and
    shuffle of a dataset (see `sources.py`).  offset: -1.
    """

    @checked(num_shards=at_least(1), shuffle=flag, offset=integer(-1))
    def __init__(
        self, num_shards: int, shard_id: int, shuffle: bool = True, num_samples: int | None = None, offset: int = -1
    ) -> None:
        super().__init__(num_samples)
        if offset != -1:
            hint = "Others belong to datasets joined one behind the other, which are missing here"
            raise NotBuiltYet(f"offset={offset}", where="DistributedSampler", allowed="-1", hint=hint)
        self.num_shards, self.shuffle, self.offset = num_shards, shuffle, offset
        self.shard_id = integer(0, num_shards - 1)("DistributedSampler", "shard_id", shard_id)

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        places = (np.arange(-(-count // self.num_shards)) * self.num_shards + self.shard_id) % count
        return (generator.permutation(count)[places] if self.shuffle else places).tolist()


class SubsetSampler(BuiltinSampler):
    """The samples with these numbers, in this order."""

    @checked(num_samples=COUNT)
    def __init__(self, indices: Any, num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        listed = isinstance(indices, Iterable) and not isinstance(indices, (str, bytes))
        self.indices = list(NUMBERS(type(self).__name__, "indices", list(indices) if listed else indices))

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        return self.indices

    def get_num_samples(self) -> int:
        """As of other samplers, and at most as many as there are numbers."""
        return min(len(self.indices), super().get_num_samples() or len(self.indices))


class Sampler(BuiltinSampler):
    """The base of samplers of one's own: write `__iter__`, which gives numbers of samples and is called for every
    epoch. `dataset_size`, the samples there are, is set before.
    """

    dataset_size = 0

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def reset(self) -> None:
        """Called before every epoch; may be overridden."""

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        self.dataset_size = count
        self.reset()
        return self


class IterSampler(Sampler):
    """The numbers that an object gives when it is iterated."""

    def __init__(self, sampler: Iterable[int], num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler)


def as_sampler(where: str, given: Any) -> BuiltinSampler:
    """A sampler, or one of a number, a list of numbers or what can be iterated for every epoch."""
    if isinstance(given, BuiltinSampler):
        return given
    if isinstance(given, (list, tuple, np.ndarray, int)) and not isinstance(given, bool):
        return SubsetSampler(given)
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, dict, Iterator)):
        allowed = "A sampler, numbers of samples as a list, or an object whose __iter__ begins again for every epoch"
        raise ArgumentTypeError(f"sampler={shorten(given)}", where=where, allowed=allowed)
    return IterSampler(given)
