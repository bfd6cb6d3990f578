"""The methods of Dataset: what each makes of the rows, which epoch is which, and what is refused."""

from collections import Counter

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, DatasetError, ParallelLabError
from parallel_lab.base.seeds import get_seed, set_seed
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train.dataset import GeneratorDataset, NumpySlicesDataset, zip as zip_datasets
from parallel_lab.train.dataset.transforms import Compose, RandomTransform, TypeCast
from tests.crossed import each_of


def numbers(n=10, **settings):
    """Column x: 0 to n-1, in order."""
    return NumpySlicesDataset(np.arange(n), "x", **{"shuffle": False, **settings})


def pairs(n=4):
    """Columns x (0, 1, ...) and y (0, 10, ...), in order."""
    return NumpySlicesDataset({"x": np.arange(n), "y": 10 * np.arange(n)}, shuffle=False)


def read(dataset):
    """One pass over the first column, as a list."""
    return [row[0].tolist() for row in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)]


class Noise(RandomTransform):
    """Adds a number below 1 that tells which draw a sample got."""

    def apply(self, data, rng):
        return data + rng.random()


# ---- iteration ----


def test_a_plain_loop_gives_tuples_of_tensors():
    rows = list(pairs(3))
    assert all(isinstance(value, Tensor) for row in rows for value in row)
    assert [(int(x), int(y)) for x, y in rows] == [(0, 0), (1, 10), (2, 20)]


def test_a_dict_iterator_gives_columns_by_name():
    rows = list(pairs(2).create_dict_iterator(num_epochs=1, output_numpy=True))
    assert rows == [{"x": 0, "y": 0}, {"x": 1, "y": 10}]
    assert all(isinstance(value, np.ndarray) for row in rows for value in row.values())


def test_a_tuple_iterator_gives_the_named_columns_in_that_order():
    assert [(int(y), int(x)) for y, x in pairs(2).create_tuple_iterator(["y", "x"], num_epochs=1)] == [(0, 0), (10, 1)]


def test_an_iterator_goes_on_where_a_loop_was_left():
    it = numbers(4).create_tuple_iterator(num_epochs=2)
    assert int(next(it)[0]) == 0
    assert [int(x) for (x,) in it] == [1, 2, 3]
    assert [int(x) for (x,) in it] == [0, 1, 2, 3]


def test_an_iterator_refuses_to_read_beyond_its_epochs():
    it = numbers(2).create_dict_iterator(num_epochs=2)
    assert [len(list(it)), len(list(it))] == [2, 2]
    with pytest.raises(RuntimeError, match="all 2 epochs were read") as caught:
        next(it)
    assert isinstance(caught.value, ParallelLabError)


def test_an_iterator_without_a_number_of_epochs_has_no_end():
    it = numbers(2).create_tuple_iterator()
    assert [len(list(it)) for _ in range(5)] == [2] * 5


def test_an_iterator_of_no_epochs_is_refused():
    with pytest.raises(ArgumentError, match="num_epochs"):
        numbers().create_tuple_iterator(num_epochs=0)


def test_text_is_given_as_arrays_and_refused_as_tensors():
    words = NumpySlicesDataset({"word": ["left", "right"]}, shuffle=False)
    assert read(words) == ["left", "right"]
    with pytest.raises(DatasetError, match="column 'word' holds <U4, no numbers"):
        list(words)


# ---- epochs and seeds ----


def test_each_pass_is_another_shuffle_of_the_same_samples():
    dataset = numbers(50, shuffle=True)
    passes = [read(dataset) for _ in range(3)]
    assert all(sorted(one) == list(range(50)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3


@each_of("make", lambda: numbers(50, shuffle=True), lambda: numbers(50).shuffle(20), lambda: numbers(50).map(Noise()))
def test_the_same_seed_gives_the_same_passes_and_another_gives_others(make):
    runs = []
    for seed in (7, 7, 8):
        set_seed(seed)
        dataset = make()
        runs.append([read(dataset), read(dataset)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]
    assert all(one not in runs[0] for one in runs[2])


def test_going_back_to_a_seed_begins_its_epochs_again():
    dataset = numbers(50, shuffle=True)
    first = [read(dataset), read(dataset)]
    set_seed(5)
    assert read(dataset) not in first
    set_seed(1)
    assert [read(dataset), read(dataset)] == first


def test_numpys_global_generator_is_neither_used_nor_changed():
    dataset = numbers(50, shuffle=True).map(Noise()).shuffle(9)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = read(dataset)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    dataset.set_epoch(0)
    assert read(dataset) == first


def test_a_pass_left_early_does_not_count():
    """Looking at one batch, perhaps on one rank only, must not move that rank to another epoch."""
    looked_at, untouched = numbers(50, shuffle=True), numbers(50, shuffle=True)
    next(iter(looked_at))
    assert looked_at.output_shapes() == [[]]
    assert read(looked_at) == read(untouched)


def test_two_iterators_at_once_read_the_same_epoch():
    dataset = numbers(50, shuffle=True)
    assert all(int(a) == int(b) for (a,), (b,) in zip(dataset, dataset, strict=True))
    assert read(dataset) != read(numbers(50, shuffle=True))  # one epoch has gone by


def test_set_epoch_gives_the_order_of_that_epoch():
    dataset, resumed = numbers(50, shuffle=True), numbers(50, shuffle=True)
    orders = [read(dataset) for _ in range(4)]
    resumed.set_epoch(2)
    assert [read(resumed), read(resumed)] == orders[2:]
    with pytest.raises(ArgumentError, match="epoch=-1"):
        resumed.set_epoch(-1)


def test_columns_that_draw_nothing_may_be_added_without_changing_the_draws():
    plain = numbers(20).map(Noise())
    longer = numbers(20).rename("x", "z").map(lambda x: x).project("z").map(Noise())
    assert read(plain) == read(longer)


def test_a_shuffle_before_a_map_does_not_change_what_the_map_draws():
    plain, shuffled = read(numbers(20).map(Noise())), read(numbers(20, shuffle=True).shuffle(8).map(Noise()))
    assert plain != shuffled
    assert plain == sorted(shuffled)


def test_two_shuffles_draw_different_orders():
    once = read(numbers(40).shuffle(40))
    twice = read(numbers(40).shuffle(40).shuffle(40))
    assert twice != [once[i] for i in once]  # what the same order applied twice would give
    assert sorted(twice) == list(range(40))


def test_two_operations_draw_different_numbers():
    twice = numbers(20).map([Noise(), lambda x: np.array([x, 0.0]), Noise()])
    one = np.array(read(twice))
    assert not np.allclose(one[:, 0] - np.arange(20), 2 * one[:, 1])  # not the same draw added twice
    again = numbers(20).map(Noise()).map(lambda x: np.array([x, 0.0])).map(Noise())
    assert len({value for row in read(again) for value in row}) == 40


# ---- map ----


def test_map_works_on_the_first_column_unless_told_otherwise():
    assert [(int(x), int(y)) for x, y in pairs(3).map(lambda x: x + 1)] == [(1, 0), (2, 10), (3, 20)]
    assert [(int(x), int(y)) for x, y in pairs(3).map(lambda y: y + 1, input_columns="y")] == [(0, 1), (1, 11), (2, 21)]


def test_a_list_of_operations_runs_from_left_to_right():
    assert read(numbers(3).map([lambda x: x + 1, lambda x: x * 2])) == [2, 4, 6]
    assert read(numbers(3).map(Compose([lambda x: x + 1, Compose([lambda x: x * 2])]))) == [2, 4, 6]


def test_a_random_operation_draws_the_same_inside_a_compose():
    composed = Compose([TypeCast("float64"), Compose([Noise()])])
    assert read(numbers(9).map([TypeCast("float64"), Noise()])) == read(numbers(9).map(composed))


def test_several_columns_go_in_and_come_out():
    both = pairs(3).map(lambda x, y: (y - x, y + x), ["x", "y"])
    assert [(int(a), int(b)) for a, b in both] == [(0, 0), (9, 11), (18, 22)]
    assert both.get_col_names() == ["x", "y"]


def test_as_many_results_as_inputs_take_their_places():
    renamed = pairs(2).map(lambda y: -y, "y", "minus")
    assert renamed.get_col_names() == ["x", "minus"]


def test_another_number_of_results_comes_first():
    split = pairs(2).map(lambda y: (y, y + 1, y + 2), "y", ["a", "b", "c"])
    assert split.get_col_names() == ["a", "b", "c", "x"]
    assert [[int(v) for v in row] for row in split] == [[0, 1, 2, 0], [10, 11, 12, 1]]
    merged = pairs(2).map(lambda x, y: x + y, ["x", "y"], "sum")
    assert [[int(v) for v in row] for row in merged] == [[0], [11]]


def test_column_order_keeps_and_orders():
    split = pairs(2).map(lambda y: (y, y + 1), "y", ["a", "b"], column_order=["x", "b"])
    assert [[int(v) for v in row] for row in split] == [[0, 1], [1, 11]]


def test_an_operation_may_give_numbers_lists_and_tensors():
    results = iter([5, [1, 2], Tensor([3.0])])
    rows = numbers(3).map(lambda x: next(results)).create_tuple_iterator(num_epochs=1, output_numpy=True)
    assert [row[0].tolist() for row in rows] == [5, [1, 2], [3.0]]


def test_an_operation_that_writes_into_its_argument_does_not_change_the_data():
    def spoil(x):
        x += 100
        return x

    data = np.zeros((3, 2))
    dataset = NumpySlicesDataset(data, "x", shuffle=False)
    assert read(dataset.map(spoil)) == [[100.0, 100.0]] * 3
    assert read(dataset) == [[0.0, 0.0]] * 3


def test_an_operation_may_return_the_same_array_each_time():
    buffer = np.zeros(1)

    def fill(x):
        buffer[:] = x
        return buffer

    assert read(numbers(3).map(fill).batch(3)) == [[[0.0], [1.0], [2.0]]]


@each_of(
    ("arguments", "match"),
    ((lambda x: x, "z"), "no column 'z'. Columns: x, y"),
    ((lambda x: x, "x", "y"), "'y' already exists"),
    ((lambda x: x, ["x", "x"]), "none twice"),
    ((lambda x: x, "x", None, ["z"]), "no column 'z'"),
    (([],), "no operation"),
)
def test_a_map_that_does_not_fit_is_refused_when_it_is_made(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        pairs().map(*arguments)


@each_of(("operations", "match"), (3, "operation 3"), ([None], "operation None"), (TypeCast, "Make one"))
def test_what_cannot_be_called_is_refused(operations, match):
    with pytest.raises(TypeError, match=match):
        pairs().map(operations)


def test_a_wrong_number_of_results_says_both_numbers():
    with pytest.raises(DatasetError, match=r"returned 2 columns, output_columns names 1 \(x\)"):
        list(pairs().map(lambda x: (x, x)))


def test_an_error_in_an_operation_says_which_operation_sample_and_column():
    def fails(x):
        return 1 // (int(x) - 2)

    with pytest.raises(ZeroDivisionError) as caught:
        list(numbers(5).map([TypeCast("int32"), fails]))
    notes = " ".join(caught.value.__notes__)
    assert all(word in notes for word in ("operation 1 of 2, fails", "int32 ()", "column x", "sample 2 of epoch 0"))


def test_a_result_that_is_not_an_array_is_refused():
    with pytest.raises(DatasetError, match="column 'x' got"):
        list(numbers(2).map(lambda x: [[1], [2, 3]]))


# ---- batch, shuffle, repeat, take, skip, project, rename ----


def test_batch_stacks_rows_and_keeps_the_rest():
    dataset = numbers(5).batch(2)
    assert read(dataset) == [[0, 1], [2, 3], [4]]
    assert (dataset.get_dataset_size(), dataset.get_batch_size(), dataset.output_shapes()) == (3, 2, [[2]])


def test_batch_can_drop_the_rest():
    dataset = numbers(5).batch(2, drop_remainder=True)
    assert read(dataset) == [[0, 1], [2, 3]]
    assert dataset.get_dataset_size() == 2


def test_rows_of_different_shape_or_dtype_do_not_make_a_batch():
    with pytest.raises(DatasetError, match=r"float32 \(1,\) in sample 0, but float32 \(2,\) in sample 1"):
        list(GeneratorDataset([np.zeros(1, "f4"), np.zeros(2, "f4")], "x", shuffle=False).batch(2))
    with pytest.raises(DatasetError, match=r"int64 \(\) in sample 0, but float64 \(\) in sample 1"):
        list(GeneratorDataset([np.int64(1), 1.5], "x", shuffle=False).batch(2))


def test_words_of_different_length_make_a_batch():
    assert read(GeneratorDataset(["a", "bcd"], "x", shuffle=False).batch(2)) == [["a", "bcd"]]


@pytest.mark.parametrize("buffer_size", [2, 7, 100])
def test_a_shuffled_row_is_drawn_from_the_buffer(buffer_size):
    """The k-th row that leaves a buffer of b is one of the first k + b."""
    order = read(numbers(40).shuffle(buffer_size))
    assert sorted(order) == list(range(40))
    assert order != list(range(40))
    assert all(value < place + buffer_size for place, value in enumerate(order))


def test_a_buffer_of_the_whole_data_puts_any_row_anywhere():
    """3 rows have 6 orders; each should come about 100 times in 600 epochs (30 is 7.7 standard deviations away)."""
    dataset = numbers(3).shuffle(3)
    counts = Counter(tuple(read(dataset)) for _ in range(600))
    assert len(counts) == 6
    assert all(70 <= count <= 130 for count in counts.values())


def test_repeat_is_one_epoch_after_another():
    repeated, single = numbers(20, shuffle=True).map(Noise()).repeat(3), numbers(20, shuffle=True).map(Noise())
    assert (repeated.get_dataset_size(), repeated.get_repeat_count()) == (60, 3)
    assert read(repeated) == [value for _ in range(3) for value in read(single)]
    assert read(repeated) == [value for _ in range(3) for value in read(single)]


@pytest.mark.parametrize("arguments", [(), (None,), (-1,)])
def test_repeat_without_a_count_has_no_end(arguments):
    endless = numbers(2).repeat(*arguments)
    assert (endless.get_dataset_size(), endless.get_repeat_count()) == (2, -1)
    assert read(endless.take(7)) == [0, 1, 0, 1, 0, 1, 0]
    assert endless.batch(2).get_dataset_size() == 1


def test_repeating_nothing_is_an_error_and_no_endless_loop():
    with pytest.raises(DatasetError, match="no rows to repeat"):
        list(numbers(2).skip(5).repeat())


def test_take_and_skip_cut_the_rows():
    assert read(numbers(5).take(2)) == [0, 1]
    assert read(numbers(5).take()) == [0, 1, 2, 3, 4]
    assert read(numbers(5).skip(3)) == [3, 4]
    parts = numbers(5).take(2), numbers(5).take(9), numbers(5).skip(3), numbers(5).skip(9)
    assert [part.get_dataset_size() for part in parts] == [2, 5, 2, 0]


def test_take_and_skip_together_are_the_whole():
    dataset = numbers(30, shuffle=True)
    whole = read(dataset)
    dataset.set_epoch(0)
    assert read(dataset.take(12)) + read(dataset.skip(12)) == whole


def test_project_and_rename_change_columns():
    dataset = pairs(2).project(["y", "x"]).rename("x", "z")
    assert dataset.get_col_names() == ["y", "z"]
    assert [[int(v) for v in row] for row in dataset] == [[0, 0], [10, 1]]


@each_of(
    ("call", "match"),
    (lambda d: d.repeat(0), "count=0"),
    (lambda d: d.take(0), "count=0"),
    (lambda d: d.project("z"), "no column 'z'"),
    (lambda d: d.rename("z", "w"), "no column 'z'"),
    (lambda d: d.rename("x", "y"), "a column twice"),
    (lambda d: d.rename(["x", "y"], ["z"]), "2 columns but 1 new"),
)
def test_values_out_of_range_are_value_errors(call, match):
    with pytest.raises(ValueError, match=match) as caught:
        call(pairs())
    assert isinstance(caught.value, ParallelLabError)


@each_of("call", lambda d: d.project(3), lambda d: d.map(abs, 3))
def test_values_of_the_wrong_type_are_type_errors(call):
    with pytest.raises(ArgumentTypeError):
        call(pairs())


# ---- what a dataset says of itself ----


def test_shapes_types_length_and_text_of_a_pipeline():
    dataset = NumpySlicesDataset((np.zeros((6, 3), "f4"), np.arange(6, dtype="u4")), ["a", "b"])
    dataset = dataset.map(TypeCast("int32"), "b").batch(4)
    assert dataset.output_shapes() == [[4, 3], [4]]
    assert dataset.output_types() == [np.float32, np.int32]
    assert len(dataset) == 2
    assert repr(dataset) == "NumpySlicesDataset(6 samples).map(TypeCast).batch(4)"
    with pytest.raises(DatasetError, match="no rows"):
        dataset.skip(5).output_shapes()


def test_looking_leaves_the_seed_alone():
    list(numbers(5, shuffle=True).map(Noise()))
    assert get_seed() == 1


# ---- several datasets ----


def test_filter_keeps_the_rows_that_the_predicate_takes():
    even = pairs(6).filter(lambda y: y % 20 == 0, input_columns="y")
    assert read(even) == [0, 2, 4]
    assert read(pairs(6).filter(lambda x, y: x + y > 33)) == [4, 5]
    assert even.get_dataset_size() == 3 and len(list(even.batch(2))) == 2
    assert even.batch(2, drop_remainder=True).get_dataset_size() == 1
    with pytest.raises(TypeError):
        len(even)


def test_a_predicate_answers_with_one_truth_value():
    with pytest.raises(DatasetError, match="True or False for a row"):
        read(numbers(2).filter(lambda x: np.array([True, False])))
    with pytest.raises(DatasetError, match="no column 'z'"):
        numbers().filter(bool, "z")


def test_zip_sets_columns_side_by_side_up_to_the_shortest():
    both = pairs(4).zip(numbers(3).rename("x", "z"))
    assert both.get_col_names() == ["x", "y", "z"] and len(both) == 3
    rows = [tuple(int(value) for value in row) for row in both]
    assert rows == [(0, 0, 0), (1, 10, 1), (2, 20, 2)]
    assert [tuple(map(int, row)) for row in zip_datasets((pairs(4), numbers(3).rename("x", "z")))] == rows
    with pytest.raises(DatasetError, match="two datasets have a column 'x'"):
        pairs().zip(numbers())


def test_concat_reads_one_dataset_after_the_other():
    assert read(numbers(3) + numbers(2)) == [0, 1, 2, 0, 1]
    assert read(numbers(1).concat([numbers(2), numbers(3)]).batch(4)) == [[0, 0, 1, 0], [1, 2]]
    assert len(numbers(3) + numbers(2)) == 5
    with pytest.raises(DatasetError, match="columns x and x, y"):
        numbers().concat(pairs())
    with pytest.raises(TypeError):
        numbers().concat([1, 2])


def test_equal_samples_of_two_joined_datasets_draw_for_themselves():
    one, other = (numbers(4).map(TypeCast("float64")).map(Noise()) for _ in range(2))
    drawn = read(one + other)
    assert drawn[:4] == read(one) and not {*drawn[:4]} & {*drawn[4:]}


@pytest.mark.parametrize("sizes, counts", [([7, 3], [7, 3]), ([0.7, 0.3], [7, 3]), ([0.25, 0.25, 0.5], [3, 2, 5])])
def test_split_gives_disjoint_parts_that_last(sizes, counts):
    # 0.25 of 10: round(2.5) is 2 twice and 5, and the first part takes the row that is left
    whole = numbers(10, shuffle=True)
    parts = whole.split(sizes)
    assert [len(part) for part in parts] == counts
    first, second = ([{*read(part)} for part in parts] for _ in range(2))
    assert first == second and sum(map(len, first)) == 10 and set.union(*first) == {*range(10)}
    assert [read(part) for part in numbers(10).split(sizes, randomize=False)] == [
        part.tolist() for part in np.split(np.arange(10), np.cumsum(counts)[:-1])
    ]


def test_splits_that_cannot_be_are_refused():
    for sizes in ([5, 6], [0.5, 0.6], [10, 0], [0.97, 0.03]):
        with pytest.raises(ArgumentError, match="add up"):
            numbers(10).split(sizes)
    for sizes in ([], "73", [0.5, 5], 3):
        with pytest.raises(ArgumentTypeError, match="add up"):
            numbers(10).split(sizes)
    for rows in (numbers(10).batch(2), numbers(5).repeat(2)):
        with pytest.raises(DatasetError, match="before batch"):
            rows.split([0.5, 0.5])


def test_split_of_shards_that_change_is_refused():
    shard, _ = numbers(8, shuffle=True, num_shards=2, shard_id=0).split([2, 2])
    with pytest.raises(DatasetError, match="was not among the rows"):
        for _ in range(20):
            read(shard)


def test_apply_takes_a_function_of_the_dataset():
    assert read(numbers(4).apply(lambda data: data.skip(1).batch(2))) == [[1, 2], [3]]
    with pytest.raises(ArgumentTypeError, match="A dataset"):
        numbers(4).apply(lambda data: None)
