"""Sources: what a sample may be, which samples a shard gets, and that the number of ranks changes nothing else."""

import numpy as np
import pytest

from parallel_lab import dataset as datasets
from parallel_lab.base.errors import ArgumentError, DatasetError, ParallelLabError
from parallel_lab.base.seeds import set_seed
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train.dataset.transforms import TypeCast
from tests.crossed import each_of


def rows(dataset):
    """One pass, as lists."""
    return [[value.tolist() for value in row] for row in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)]


class Squares:
    """A source with numbered samples."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index, np.array([index * index], np.float32)


class Restarting:
    """An iterator object that begins again with each iter()."""

    def __iter__(self):
        self.left = 3
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return (np.array(self.left),)


# ---- GeneratorDataset ----


def test_a_generator_function_is_called_once_per_epoch():
    calls = []

    def source():
        calls.append(0)
        yield from ((i, 2 * i) for i in range(3))

    dataset = datasets.GeneratorDataset(source, ["a", "b"])
    assert calls == []
    assert rows(dataset) == rows(dataset) == [[0, 0], [1, 2], [2, 4]]
    assert len(calls) == 2


def test_the_dataset_of_the_quickstart():
    """Seed 003: a generator function of whole batches, named input and label."""
    x, y = datasets.seed_batch()

    def generate():
        for _ in range(4):
            yield x, y

    steps = list(datasets.GeneratorDataset(generate, ["input", "label"]).create_dict_iterator(num_epochs=1))
    assert len(steps) == 4
    np.testing.assert_array_equal(steps[3]["input"].asnumpy(), x)
    np.testing.assert_array_equal(steps[0]["label"].asnumpy(), y)


def test_numbered_samples_are_shuffled_unless_told_otherwise():
    shuffled = datasets.GeneratorDataset(Squares(30), ["i", "square"])
    ordered = datasets.GeneratorDataset(Squares(30), ["i", "square"], shuffle=False)
    assert rows(ordered) == [[i, [float(i * i)]] for i in range(30)]
    first = rows(shuffled)
    assert first != rows(ordered)
    assert sorted(first) == rows(ordered)


@pytest.mark.parametrize("source", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), Tensor([1, 2, 3]), {0: 1, 1: 2, 2: 3}])
def test_sequences_are_numbered_samples(source):
    assert rows(datasets.GeneratorDataset(source, "x", shuffle=False)) == [[1], [2], [3]]


def test_an_iterable_is_iterated_each_epoch():
    dataset = datasets.GeneratorDataset(Restarting(), ["x"])
    assert rows(dataset) == rows(dataset) == [[2], [1], [0]]
    assert rows(datasets.GeneratorDataset({4}, "x")) == [[4]]


def test_a_zip_becomes_a_list():
    dataset = datasets.GeneratorDataset(zip([1, 2], [3, 4], strict=True), ["a", "b"], shuffle=False)
    assert rows(dataset) == rows(dataset) == [[1, 3], [2, 4]]
    assert dataset.get_dataset_size() == 2


def test_a_generator_object_can_be_read_once_and_says_so():
    """Wrong before: a second epoch without any rows."""
    dataset = datasets.GeneratorDataset((i for i in range(3)), "x")
    assert rows(dataset) == [[0], [1], [2]]
    with pytest.raises(DatasetError, match="can be read once, and was"):
        rows(dataset)
    with pytest.raises(DatasetError, match="cannot be counted"):
        datasets.GeneratorDataset((i for i in range(3)), "x").get_dataset_size()


def test_a_stream_is_counted_once_and_not_by_list():
    calls = []

    def source():
        calls.append(0)
        yield from range(5)

    dataset = datasets.GeneratorDataset(source, "x").batch(2)
    assert len(list(dataset)) == 3
    assert len(calls) == 1
    assert [dataset.get_dataset_size(), dataset.repeat().batch(2).get_dataset_size()] == [3, 2]
    assert len(calls) == 2
    with pytest.raises(TypeError, match="get_dataset_size"):
        len(dataset)


def test_num_samples_limits_every_kind_of_source():
    assert len(rows(datasets.GeneratorDataset(lambda: iter(range(9)), "x", num_samples=4))) == 4
    assert rows(datasets.GeneratorDataset(range(9), "x", num_samples=4, shuffle=False)) == [[0], [1], [2], [3]]
    assert len(rows(datasets.GeneratorDataset(range(9), "x", num_samples=0))) == 9
    sources = range(9), range(3), lambda: iter(range(9))
    assert [datasets.GeneratorDataset(one, "x", num_samples=4).get_dataset_size() for one in sources] == [4, 3, 4]


def test_a_source_may_use_its_array_again():
    def source():
        buffer = np.zeros(2)
        for i in range(3):
            buffer[:] = i
            yield (buffer,)

    assert rows(datasets.GeneratorDataset(source, "x").batch(3)) == [[[[0, 0], [1, 1], [2, 2]]]]


def test_column_types_are_compared_with_what_comes():
    assert len(rows(datasets.GeneratorDataset(Squares(2), ["i", "square"], ["int64", np.float32]))) == 2
    with pytest.raises(DatasetError, match="column 'square' is float32, column_types says float64"):
        rows(datasets.GeneratorDataset(Squares(2), ["i", "square"], ["int64", "float64"]))
    with pytest.raises(ArgumentError, match="A dtype for each of i, square"):
        datasets.GeneratorDataset(Squares(2), ["i", "square"], ["int64"])


def test_a_sample_with_another_number_of_values_is_refused():
    with pytest.raises(RuntimeError, match=r"sample 0: 2 values for 1 columns \(x\)"):
        rows(datasets.GeneratorDataset(Squares(2), "x", shuffle=False))


@pytest.mark.parametrize("sample", [{"a": 1}, object(), None, [[1], [2, 3]]])
def test_a_sample_that_is_not_an_array_is_refused(sample):
    with pytest.raises(DatasetError, match="Numbers, text, arrays or Tensors"):
        rows(datasets.GeneratorDataset(lambda: iter([(sample,)]), "x"))


@pytest.mark.parametrize("source", [3, None, object()])
def test_a_source_that_cannot_be_read_is_refused(source):
    with pytest.raises(TypeError, match="An object with __getitem__ and __len__"):
        datasets.GeneratorDataset(source, "x")


def test_a_function_that_returns_no_iterator_is_refused():
    with pytest.raises(TypeError, match="a function with yield"):
        rows(datasets.GeneratorDataset(lambda: 3, "x"))


def test_numbered_samples_need_a_length():
    class NoLength:
        def __getitem__(self, index):
            return index

    with pytest.raises(RuntimeError, match="Add __len__"):
        datasets.GeneratorDataset(NoLength(), "x")


@pytest.mark.parametrize("settings", [{"shuffle": True}, {"num_shards": 2, "shard_id": 0}])
def test_a_stream_cannot_be_shuffled_or_sharded(settings):
    with pytest.raises(RuntimeError, match="have no numbers"):
        datasets.GeneratorDataset(lambda: iter([1]), "x", **settings)


@pytest.mark.parametrize("names", [None, [], ["a", "a"], [""]])
def test_columns_need_names(names):
    with pytest.raises(ValueError, match="column_names"):
        datasets.GeneratorDataset([1], names)


def test_an_empty_source_is_refused():
    with pytest.raises(DatasetError, match="no samples"):
        datasets.GeneratorDataset([], "x")


# ---- NumpySlicesDataset ----


@each_of(
    ("data", "names"),
    ([[1, 2], [3, 4]], ["column_0"]),
    (np.arange(4).reshape(2, 2), ["column_0"]),
    (([1, 2], [3, 4]), ["column_0", "column_1"]),
    ({"a": [1, 2], "b": [3.0, 4.0]}, ["a", "b"]),
)
def test_arrays_are_cut_along_the_first_dim(data, names):
    dataset = datasets.NumpySlicesDataset(data, shuffle=False)
    parts = list(data.values()) if isinstance(data, dict) else list(data) if isinstance(data, tuple) else [data]
    assert dataset.get_col_names() == names
    assert rows(dataset) == [[np.asarray(part)[i].tolist() for part in parts] for i in range(2)]


def test_changing_the_array_afterwards_does_not_change_the_dataset():
    data = np.arange(3)
    dataset = datasets.NumpySlicesDataset(data, shuffle=False)
    data[:] = 9
    assert rows(dataset) == [[0], [1], [2]]


@each_of(
    ("arguments", "match"),
    ((([1, 2], [3]),), "'column_1' has shape"),
    ((5,), "'column_0' has shape"),
    (((1, 2),), "'column_0' has shape"),
    (([1, 2], ["a", "b"]), "1 columns but 2 names"),
    (((),), "no columns"),
    (([],), "no samples"),
    (([[1], [2, 3]],), "rectangular"),
)
def test_columns_that_do_not_fit_are_refused(arguments, match):
    with pytest.raises(DatasetError, match=match):
        datasets.NumpySlicesDataset(*arguments)


# ---- shards ----


def shard(n, r, samples=10, **settings):
    settings = {"shuffle": False, "num_shards": n, "shard_id": r, **settings}
    return [row[0] for row in rows(datasets.NumpySlicesDataset(np.arange(samples), "x", **settings))]


def test_a_shard_is_every_nth_sample_and_the_last_ones_begin_again():
    assert [shard(4, r) for r in range(4)] == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("samples", "n"), [(1, 3), (7, 2), (8, 4), (10, 8), (23, 5)])
def test_shards_are_equally_long_and_hold_everything(samples, n, shuffle):
    shards = [shard(n, r, samples, shuffle=shuffle) for r in range(n)]
    length = -(-samples // n)
    assert [len(part) for part in shards] == [length] * n
    counts = np.bincount(np.concatenate(shards), minlength=samples)
    assert counts.sum() == length * n
    assert 1 <= counts.min() <= counts.max() <= 1 + -(-(length * n - samples) // samples)


def test_shards_of_shuffled_data_are_cut_from_the_order_one_rank_sees():
    order = shard(1, 0, 12, shuffle=True)
    assert order != sorted(order)
    assert [shard(3, r, 12, shuffle=True) for r in range(3)] == [order[r::3] for r in range(3)]


def test_num_samples_limits_each_shard():
    assert [shard(4, r, num_samples=2) for r in range(4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("settings", [{"num_shards": 2}, {"shard_id": 0}])
@each_of(
    "make",
    lambda **s: datasets.NumpySlicesDataset([1, 2], **s),
    lambda **s: datasets.Cifar10Dataset(datasets.digits_cifar_folder(), **s),
)
def test_one_of_the_two_shard_arguments_alone_is_a_runtime_error(make, settings):
    with pytest.raises(RuntimeError, match="is given without") as caught:
        make(**settings)
    assert isinstance(caught.value, ParallelLabError)


@pytest.mark.parametrize(("n", "r", "match"), [(2, 2, "shard_id=2"), (2, -1, "shard_id=-1"), (0, 0, "num_shards=0")])
def test_shards_out_of_range_are_value_errors(n, r, match):
    with pytest.raises(ValueError, match=match) as caught:
        shard(n, r)
    assert isinstance(caught.value, ParallelLabError)


@pytest.mark.parametrize("settings", [{"num_shards": 2.0, "shard_id": 0}, {"num_shards": 2, "shard_id": True}])
def test_shard_arguments_of_the_wrong_type_are_type_errors(settings):
    with pytest.raises(TypeError):
        datasets.NumpySlicesDataset([1, 2], **settings)


def test_more_samples_than_there_are_is_all_of_them():
    assert len(shard(2, 0, 10, num_samples=99)) == 5


# ---- the number of ranks changes nothing ----

GLOBAL_BATCH, STEPS, EPOCHS = 48, 3, 2


def pictures(n, r, seed):
    """Seed 002's pipeline without its shuffle buffer, on 144 pictures: this rank's batches of two epochs."""
    set_seed(seed)
    source = np.random.default_rng(seed).integers(0, 256, (GLOBAL_BATCH * STEPS, 12, 12, 3)).astype(np.uint8)
    data = {"image": source, "label": np.arange(len(source), dtype=np.uint32)}
    dataset = datasets.NumpySlicesDataset(data, num_shards=n, shard_id=r).map(TypeCast("int32"), "label")
    operations = [datasets.vision.RandomCrop((12, 12), (4, 4, 4, 4)), datasets.vision.RandomHorizontalFlip()]
    operations += [datasets.vision.Rescale(1 / 255, 0), datasets.vision.HWC2CHW()]
    dataset = dataset.map(operations, "image").batch(GLOBAL_BATCH // n, drop_remainder=True)
    return [list(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)) for _ in range(EPOCHS)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", [1, 9])
def test_a_global_batch_is_the_same_set_of_augmented_samples_on_1_2_4_and_8_ranks(seed):
    def global_batches(n):
        ranks = [pictures(n, r, seed) for r in range(n)]
        return [
            {(int(label), image.tobytes()) for rank in ranks for image, label in zip(*rank[epoch][step], strict=True)}
            for epoch in range(EPOCHS)
            for step in range(STEPS)
        ]

    alone = global_batches(1)
    assert [len(batch) for batch in alone] == [GLOBAL_BATCH] * (STEPS * EPOCHS)
    # every epoch crops and flips anew: of 9 * 9 * 2 ways a sample gets the same twice by chance (0.9 of the 144
    # expected, more than 10 never)
    assert len({sample for batch in alone for sample in batch}) >= GLOBAL_BATCH * STEPS * EPOCHS - 10
    for n in (2, 4, 8):
        assert global_batches(n) == alone, f"{n} ranks, seed {seed}"


def test_every_rank_that_reads_everything_reads_the_same():
    """Without shards (full_batch) the ranks agree to the bit, buffer and augmentation included."""
    runs = []
    for _ in range(2):
        dataset = datasets.NumpySlicesDataset(np.zeros((20, 9, 9), np.uint8), "image").map(
            [lambda x: x, datasets.vision.RandomCrop(5, 2, fill_value=3)], "image"
        )
        runs.append(rows(dataset.shuffle(4).batch(5).repeat(2)))
    assert runs[0] == runs[1]


def test_another_seed_gives_another_augmentation():
    assert pictures(1, 0, 1)[0][0][0].tobytes() != pictures(1, 0, 2)[0][0][0].tobytes()
