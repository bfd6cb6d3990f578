"""MindSpore's samplers: which numbers each gives, alone, with a child, and through a dataset."""

import numpy as np
import pytest

from parallel_lab import ParallelLabError, dataset as ds, set_seed
from tests.crossed import each_of

ROWS = np.arange(10)


def read(sampler, **options):
    data = ds.NumpySlicesDataset(ROWS, ["x"], sampler=sampler, **options)
    rows = [int(x) for (x,) in data]
    assert len(rows) == data.get_dataset_size()
    return rows


@each_of(
    ("sampler", "wanted"),
    (ds.DistributedSampler(4, 2, shuffle=False), [2, 6, 0]),  # 10 over 4: the last wrap round
    (ds.DistributedSampler(4, 3, False, num_samples=2), [3, 7]),
    (ds.SequentialSampler(2, 3), [2, 3, 4]),
    (ds.SequentialSampler(8), [8, 9]),
    (ds.SubsetSampler([5, 1, 5]), [5, 1, 5]),
    (ds.SubsetSampler(range(4, 8), 2), [4, 5]),
    (7, [7]),
    ([3, 2], [3, 2]),
    (ds.IterSampler([9, 0, 4], 2), [9, 0]),
    ids=lambda value: type(value).__name__ if " object at " in str(value) else str(value),
)
def test_numbers_in_a_fixed_order(sampler, wanted):
    assert read(sampler) == wanted


def test_drawn_orders_hold_what_they_promise_and_change_by_epoch():
    set_seed(3)
    assert sorted(read(ds.RandomSampler())) == list(range(10)) != read(ds.RandomSampler())
    assert sorted(read(ds.SubsetRandomSampler([1, 3, 5]))) == [1, 3, 5]
    data = ds.NumpySlicesDataset(ROWS, ["x"], sampler=ds.RandomSampler())
    assert [int(x) for (x,) in data] != [int(x) for (x,) in data]
    shards = [read(ds.DistributedSampler(5, r)) for r in range(5)]
    assert sorted(x for shard in shards for x in shard) == list(range(10))
    by_arguments = [int(x) for (x,) in ds.NumpySlicesDataset(ROWS, ["x"], num_shards=5, shard_id=1)]
    assert by_arguments == shards[1]
    often = read(ds.WeightedRandomSampler([0, 0, 0, 1, 3], 4000))
    assert set(often) == {3, 4} and abs(often.count(4) - 3000) < 5 * np.sqrt(4000 * 0.75 * 0.25)
    assert sorted(read(ds.WeightedRandomSampler([1, 0, 1, 5], 3, replacement=False))) == [0, 2, 3]
    assert len(set(read(ds.RandomSampler(replacement=True, num_samples=100)))) > 5


def test_pk_takes_as_many_of_each_class():
    labels = np.array([4, 7, 4, 7, 7, 9])
    data = ds.NumpySlicesDataset((np.arange(6), labels), ["x", "label"], sampler=ds.PKSampler(2))
    assert [int(label) for _, label in data] == [4, 4, 7, 7, 9, 9] and data.get_dataset_size() == 6


def test_a_sampler_takes_the_samples_of_its_child():
    sampler = ds.DistributedSampler(2, 1, shuffle=False)
    sampler.add_child(ds.SubsetSampler([9, 7, 5, 3]))
    assert read(sampler) == [7, 3] and sampler.get_child().indices == [9, 7, 5, 3]
    data = ds.NumpySlicesDataset(ROWS, ["x"], shuffle=False, num_shards=2, shard_id=1)  # 1 3 5 7 9
    data.add_sampler(ds.SequentialSampler(1, 2))
    assert [int(x) for (x,) in data] == [3, 5]
    data.use_sampler(ds.SubsetSampler([0, 4]))  # the child stays
    assert [int(x) for (x,) in data] == [1, 9]


def test_a_sampler_of_ones_own_knows_how_many_samples_there_are():
    class Reverse(ds.Sampler):
        def __iter__(self):
            return iter(range(self.dataset_size - 1, -1, -1))

    assert read(Reverse()) == list(range(9, -1, -1)) and read(Reverse(3)) == [9, 8, 7]


@each_of(
    ("make", "error"),
    (lambda: ds.DistributedSampler(4, 4), ValueError),
    (lambda: ds.DistributedSampler(4, 0, offset=2), NotImplementedError),
    (lambda: ds.SequentialSampler(-1), ValueError),
    (lambda: read(ds.SequentialSampler(10)), ValueError),
    (lambda: read(ds.SubsetSampler([10])), ValueError),
    (lambda: ds.SubsetSampler(["a"]), TypeError),
    (lambda: ds.WeightedRandomSampler([0.0, 0.0]), ValueError),
    (lambda: read(ds.WeightedRandomSampler([1, 1], 3, replacement=False)), ValueError),
    (lambda: ds.PKSampler(2, num_class=3), ValueError),
    (lambda: read(ds.PKSampler(2)), ValueError),  # no column 'label'
    (lambda: read(ds.RandomSampler(), num_samples=2), ValueError),
    (lambda: read(ds.RandomSampler(), shuffle=True), ValueError),
    (lambda: read("abc"), TypeError),
)
def test_what_does_not_fit_is_refused(make, error):
    with pytest.raises(error) as raised:
        make()
    assert isinstance(raised.value, ParallelLabError)
