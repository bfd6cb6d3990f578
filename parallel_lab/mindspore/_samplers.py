"""MindSpore's samplers that no dataset makes itself: in order from a number on, drawn, by weights, by classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.checks import checked, choice, flag, integer, number, sequence_of, text
from ..base.errors import ArgumentError, NotBuiltYet
from ..train.dataset.checks import at_least
from ..train.dataset.samplers import BuiltinSampler, Epoch, SubsetSampler

__all__ = ["PKSampler", "RandomSampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler"]

WEIGHTS = sequence_of(number(0), "Numbers, each at least 0")


class SequentialSampler(BuiltinSampler):
    """Samples in order, from number `start_index` on (None: 0)."""

    @checked(start_index=integer(0) | None)
    def __init__(self, start_index: int | None = None, num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        self.start_index = start_index

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        start = integer(0, count - 1)("SequentialSampler", "start_index", self.start_index or 0)
        return range(start, count)


class RandomSampler(BuiltinSampler):
    """Samples in an order of each epoch's own.  replacement: each is drawn from all, so some come twice."""

    shuffle = True

    @checked(replacement=flag)
    def __init__(self, replacement: bool = False, num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        self.replacement = replacement

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        if self.replacement:
            return generator.integers(count, size=self.num_samples or count).tolist()
        return generator.permutation(count).tolist()


class SubsetRandomSampler(SubsetSampler):
    """The samples with these numbers, in an order of each epoch's own."""

    shuffle = True

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        return [self.indices[at] for at in generator.permutation(len(self.indices))]


class WeightedRandomSampler(BuiltinSampler):
    """Samples drawn by these weights, one for each, not all 0.  replacement=False: none comes twice."""

    shuffle = True

    @checked(weights=WEIGHTS, replacement=flag)
    def __init__(self, weights: Any, num_samples: int | None = None, replacement: bool = True) -> None:
        super().__init__(num_samples)
        self.weights, self.replacement = list(weights), replacement
        if not any(self.weights):
            raise ArgumentError("weights are all 0", where="WeightedRandomSampler", allowed="At least one above 0")

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        wanted, possible = self.num_samples or count, sum(weight > 0 for weight in self.weights)
        if len(self.weights) > count or (not self.replacement and wanted > possible):
            given = f"{len(self.weights)} weights, {possible} above 0, for {wanted} of {count} samples"
            hint = "A weight for each sample; without replacement at least as many above 0 as are drawn"
            raise ArgumentError(given, where="WeightedRandomSampler", hint=hint)
        shares = np.array(self.weights) / sum(self.weights)
        return generator.choice(len(shares), wanted, self.replacement, shares).tolist()


class PKSampler(BuiltinSampler):
    """`num_val` samples of each class, drawn anew each epoch, so some may come twice.

    num_class     None: all classes;  shuffle  the classes in an order of each epoch's own, otherwise by label
    class_column  the column that holds the class
    """

    @checked(num_val=at_least(1), num_class=choice(None), shuffle=flag, class_column=text)
    def __init__(
        self,
        num_val: int,
        num_class: None = None,
        shuffle: bool = False,
        class_column: str = "label",
        num_samples: int | None = None,
    ) -> None:
        super().__init__(num_samples)
        self.num_val, self.shuffle, self.class_column = num_val, shuffle, class_column

    def _picked(self, count: int, generator: np.random.Generator, epoch: Epoch) -> Any:
        if self.child_sampler is not None:
            raise NotBuiltYet("a child sampler", where="PKSampler", allowed="All samples of the dataset")
        labels = epoch.labels(self.class_column)
        classes = np.unique(labels)
        order = generator.permutation(classes) if self.shuffle else classes
        return [int(n) for one in order for n in generator.choice(np.flatnonzero(labels == one), self.num_val)]
