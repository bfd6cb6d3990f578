"""x[...] as operators: equal to numpy's for every kind of key, with gradients, and under strategies."""

import itertools

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, TraceError, compile, ops
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.indexing import TensorIndexError, getitem
from tests.nets import cell
from tests.ops.compiled import results

X = np.arange(3 * 4 * 5, dtype=float).reshape(3, 4, 5)
I = np.array([2, 0, 2])
KEYS = {
    "int": 1,
    "negative": (-1, 2),
    "all ints": (0, -4, 4),
    "numpy int": (np.int64(1), np.array(2)),
    "slice": slice(1, 3),
    "step": (slice(None), slice(None, None, 2)),
    "backwards": (slice(None, None, -1), slice(3, None, -2)),
    "beyond the end": (slice(1, 100), slice(-100, 2)),
    "empty": (slice(2, 1), slice(0, 0)),
    "backwards from before the start": slice(-9, -2, -1),
    "ellipsis": (..., 1),
    "only ellipsis": ...,
    "nothing": (),
    "none": (None, slice(None), None, 0),
    "list": [2, 0, 2],
    "array": I,
    "two dims of indices": (slice(None), np.array([[0, -1], [3, 1]])),
    "unsigned": I.astype(np.uint8),
    "empty list": [],
    "two arrays": (I, np.array([1, -1, 3])),
    "arrays that broadcast": (slice(None), np.array([[0], [3]]), np.array([1, -1, 3])),
    "arrays with an int between": (I, 1, I),
    "array, then int": (I, 1),
    "int, then array": (1, I, slice(1, 4)),
    "array, slice, int": (I, slice(None), 0),
    "array and none": (None, I, None),
    "mask": np.array([True, False, True]),
    "mask of nothing": np.array([False, False, False]),
    "mask of a later dim": (slice(None), np.array([True, False, True, True])),
    "mask of two dims": X[..., 0] % 3 == 0,
    "mask of all dims": X % 7 == 0,
}


@pytest.mark.quick(22)
@pytest.mark.parametrize("wrap", [Tensor, np.asarray], ids=["tensor", "array"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_elements_are_those_of_numpy(key, wrap):
    got = np.asarray(getitem(wrap(X), key))
    assert got.shape == X[key].shape
    np.testing.assert_array_equal(got, X[key])


def random_key(rng, shape):
    """A key of random kinds; as numpy takes it, it may be outside or have arrays that do not fit each other."""
    key = []
    for n in shape:
        kind = rng.integers(8)
        if rng.random() < 0.15:
            key.append(None)
        if kind < 2:
            key.append(int(rng.integers(-n - 1, n + 1)))
        elif kind < 4:
            bounds = [None if rng.random() < 0.3 else int(rng.integers(-n - 2, n + 3)) for _ in range(2)]
            key.append(slice(*bounds, [None, 1, 2, -1, -2][rng.integers(5)]))
        elif kind == 4:
            key.append(rng.integers(-n, n, [(3,), (1,), (2, 3)][rng.integers(3)]))
        elif kind == 5:
            key.append(rng.integers(0, 2, n).astype(bool))
        elif kind == 6:
            key.append(...)
            break
        else:
            key.append(slice(None))
    return tuple(key)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(8))
def test_random_keys_give_what_numpy_gives_or_say_what_stands_apart(seed):
    rng = np.random.default_rng([seed, 14])
    same = 0
    for _ in range(250):
        shape = tuple(rng.integers(1, 5, rng.integers(1, 5)))
        x, key = np.arange(np.prod(shape)).reshape(shape), random_key(rng, shape)
        try:
            expected = x[key]
        except IndexError:
            expected = None
        try:
            got = np.asarray(getitem(Tensor(x), key))
        except TensorIndexError as error:
            assert expected is None or "apart" in str(error), (seed, shape, key)
        else:
            assert expected is not None and got.shape == expected.shape, (seed, shape, key)
            np.testing.assert_array_equal(got, expected, err_msg=f"{seed} {shape} {key}")
            same += 1
    assert same > 150, "most random keys are legal"


@pytest.mark.quick(10)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_gradient_goes_where_the_elements_came_from(key):
    x = Parameter(Tensor(X))
    out = getitem(x, key)
    seed = np.arange(1.0, 1 + X[key].size).reshape(X[key].shape)
    expected = np.zeros_like(X)
    np.add.at(expected, key, seed)
    np.testing.assert_array_equal(gradients(out, [x], seed)[0], expected)


WRONG = {
    "int outside": (3, r"index 3 of a tensor of shape \(3, 4, 5\) is outside dim 0\. An int from -3 to 2"),
    "negative outside": ((0, -5), "is outside dim 1"),
    "array outside": ((0, [0, 4]), "has 4, which is outside dim 1"),
    "too many": ((0, 0, 0, 0), "takes 4 dims. At most 3 indices"),
    "two ellipses": ((..., ...), "more than one"),
    "float": (1.0, "has 1.0 in it"),
    "bool": (True, "has True in it"),
    "text": ("ab", "has 'ab' in it"),
    "float array": (np.ones(2), "array of float64"),
    # these three were numpy's TypeError and ValueError
    "slice to a float": (slice(0, 1.5), "a slice with a bound that is not an int"),
    "slice of text": ((0, slice("a", "b")), "a slice with a bound that is not an int"),
    "slice with step 0": (slice(0, 2, 0), "a slice with step 0"),
    "mask of another size": (np.array([True, False]), "a mask with 2 elements where dim 0 has 3"),
    "arrays apart": ((I, slice(None), I), "arrays that stand apart"),
    "arrays with a new dim between": ((I, None, I), "arrays that stand apart"),
    "int apart": ((0, slice(None), I), "an int apart from the array.*Index in two steps"),
    "int apart by an empty ellipsis": ((slice(None), 0, ..., I), "an int apart"),
    "shapes that do not fit": ((I, np.array([0, 1])), r"arrays of shapes \[\(3,\), \(2,\)\]"),
}


@pytest.mark.parametrize("how", WRONG)
def test_anything_but_an_index_is_refused(how):
    key, words = WRONG[how]
    with pytest.raises(TensorIndexError, match=words) as caught:
        getitem(Tensor(X), key)
    assert isinstance(caught.value, IndexError) and isinstance(caught.value, ShapeError)


def test_loops_by_number_end_at_the_last_element():
    x, seen = Tensor(np.arange(3)), []
    with pytest.raises(IndexError):
        for i in itertools.count():
            seen.append(int(getitem(x, i)))
    assert seen == [0, 1, 2]


def picking(x, key):
    """Elements of a parameter by a key; `extra` inputs are given to the key function."""
    return cell(lambda net, *extra: getitem(net.x, key(*extra)), x=Parameter(Tensor(x), name="x"))


BIG = np.arange(8 * 4 * 8, dtype=float).reshape(8, 4, 8)
COMPILED = {
    "slices": (slice(None), slice(1, 3), slice(None, None, -2)),
    "int": (slice(None), 2),
    "none": (slice(None), None, 0),
    "list": (slice(None), [3, 0, 3]),
    "two lists": ([0, 7, 3, 3], [0, 1, 2, 3]),
    "mask": np.arange(8) % 3 == 0,
}


@pytest.mark.parametrize("key", COMPILED.values(), ids=COMPILED)
def test_compiled_indexing_equals_numpy(key):
    (got,) = results(picking(BIG, lambda zero: key), np.zeros(1), device_num=4, x=BIG)
    np.testing.assert_array_equal(got, BIG[key])


def test_indices_that_a_trace_computes_count_from_the_end_too():
    rows, columns = np.array([0, -1, 3, -8]), np.array([1, -4, 3, 0])
    net = picking(BIG, lambda rows, columns: (rows, columns))
    np.testing.assert_array_equal(*results(net, rows, columns, device_num=4, x=BIG), BIG[rows, columns])


def test_a_mask_that_a_trace_computes_is_refused():
    words = r"a mask that is computed.*shape of the result must be known.*ops.select"
    with pytest.raises(TensorIndexError, match=words):
        compile(picking(BIG, lambda x: ops.greater(x, 0.0)), np.ones(8), device_num=4, dataset_strategy="full_batch")


def test_a_bound_that_a_trace_computes_is_refused():
    with pytest.raises(TraceError, match="use as an index"):
        compile(picking(BIG, lambda n: slice(0, n)), np.array(3), device_num=4, dataset_strategy="full_batch")


def test_take_without_axis_sees_one_row():
    found = np.asarray(ops.take(Tensor(X), np.array([[0, 59], [7, 7]])))
    np.testing.assert_array_equal(found, np.take(X, [[0, 59], [7, 7]]))
    np.testing.assert_array_equal(np.asarray(ops.take(Tensor(X), I, axis=1)), np.take(X, I, axis=1))
