"""x[...] = value: equal to numpy's for every kind of key, with gradients, on ranks and in compiled steps."""

import numpy as np
import pytest

from parallel_lab import Session, ShapeError, Tensor, compile, grad, nn, ops, value_and_grad
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import LaterTensor
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.compiled import results
from tests.ops.test_indexing import KEYS, X, random_key

V = np.random.default_rng(3).normal(size=(8, 16))
W = np.random.default_rng(4).normal(size=(8, 16))
ROWS, COLUMNS = np.array([3, -8, 3]), np.array([1, -4, 1])


def after(x, key, value):
    """A copy of an array, with other elements."""
    x = np.array(x)
    x[key] = value
    return x


@pytest.mark.quick(10)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_elements_become_those_of_numpy(key):
    value = np.arange(float(X[key].size)).reshape(X[key].shape)
    for given in (7.0, value):
        x = Tensor(X)
        x[key] = Tensor(given) if isinstance(given, np.ndarray) else given
        np.testing.assert_array_equal(x.asnumpy(), after(X, key, given))


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(4))
def test_random_keys_do_what_numpy_does(seed):
    rng, same = np.random.default_rng([seed, 15]), 0
    for _ in range(100):
        shape = tuple(rng.integers(1, 5, rng.integers(1, 5)))
        x, key = np.arange(np.prod(shape)).reshape(shape), random_key(rng, shape)
        try:
            value = rng.integers(100, 200, x[key].shape)
        except IndexError:
            value = np.zeros(())
        try:
            expected = after(x, key, value)
        except IndexError:
            continue
        got = Tensor(x)
        got[key] = Tensor(value)
        np.testing.assert_array_equal(got.asnumpy(), expected, err_msg=f"{seed} {shape} {key}")
        same += 1
    assert same > 50, "most random keys are legal"


@pytest.mark.parametrize("key", [0, (slice(None), [2, 0, 2]), (..., slice(3, None, -2)), X > 30], ids=str)
def test_gradients_go_to_the_value_where_it_was_taken_and_to_x_elsewhere(key):
    """If one element gets several values, only the last one, which stays, has a gradient."""
    x, value = Parameter(Tensor(X), "x"), Parameter(Tensor(np.zeros_like(X[key])), "v")
    out = x * 1.0
    out[key] = value * 2.0
    seed = np.arange(1.0, 61).reshape(X.shape)
    of_x, of_value = gradients(out, [x, value], seed)
    numbers = after(np.full(X.shape, -1), key, np.arange(X[key].size).reshape(X[key].shape))
    np.testing.assert_array_equal(of_x, np.where(numbers < 0, seed, 0))
    expected = np.zeros(X[key].size)
    expected[numbers[numbers >= 0]] = 2 * seed[numbers >= 0]
    np.testing.assert_array_equal(of_value.reshape(-1), expected)


def test_what_was_read_before_keeps_the_gradient_of_what_it_read():
    """z reads y before, u between, and the result after: gradients were those of the last elements for all of them."""
    w = Parameter(Tensor(W[:3]), "w")

    def loss(x):
        y = x * w
        z = y * 2.0
        y[1] = x[0] * 5.0
        u = y * 3.0
        y[1:] = 0.0
        return ops.reduce_sum(z + u + y)

    expected = 5 * W[:3]
    expected[0] += W[0] + 15
    expected[1] -= 3 * W[1]
    np.testing.assert_allclose(grad(loss)(Tensor(V[:3])).asnumpy(), expected, atol=1e-12)


def test_an_argument_that_is_changed_has_the_gradient_of_what_was_given():
    given = Tensor(V)

    def loss(x):
        x[0] = x[1] * 2.0
        return ops.reduce_sum(x * x)

    expected = 2 * V
    expected[0], expected[1] = 0, 10 * V[1]
    np.testing.assert_allclose(grad(loss)(given).asnumpy(), expected)
    np.testing.assert_array_equal(given.asnumpy(), V)


def put(x, key, value):
    x[key] = value
    return x


NETS = {
    "a number": lambda net, x: put(net.mul(x, net.w), (slice(1, 5), slice(None, None, 3)), 2.0),
    "rows": lambda net, x: put(net.mul(x, net.w), slice(0, 2), x[6:] * 3.0),
    "a column": lambda net, x: put(net.mul(x, net.w), (..., -1), x[:, 0]),
    "rows by number": lambda net, x: put(net.mul(x, net.w), [2, 0, 2], x[:3]),
    "a mask": lambda net, x: put(net.mul(x, net.w), x > 0, 0.5),
    "a mask of rows": lambda net, x: put(net.mul(x, net.w), x[:, 0] > 0, x[1]),
    "zeros, filled": lambda net, x: put(put(Tensor(np.zeros((8, 16))), 1, x[0]), slice(2, 4), net.mul(x, net.w)[:2]),
    "a copy": lambda net, x: (y := net.mul(x, net.w)) + put(y.copy(), 0, 1.0),
    "a parameter": lambda net, x: put(net.w, 0, x[1]) * x + net.mul(x, net.w),
}


def new_net(construct):
    return cell(construct, w=Parameter(Tensor(W), "w"), mul=ops.Mul().shard(((2, 4), (2, 4))))


@each_of("construct", *NETS.values(), ids=list(NETS))
def test_a_compiled_network_gives_what_one_device_gives(construct):
    (got,) = results(new_net(construct), V, w=W)
    np.testing.assert_allclose(got, new_net(construct)(Tensor(V)).asnumpy(), rtol=1e-12)


BY_NUMBER = {
    "rows": lambda rows, columns: rows,
    "columns": lambda rows, columns: (slice(None), columns),
    "elements": lambda rows, columns: (rows, columns),
    "an element": lambda rows, columns: (rows[0], 2),
}


@each_of("key", *BY_NUMBER.values(), ids=list(BY_NUMBER))
def test_places_that_a_trace_computes_are_taken_too(key):
    def construct(net, x, rows, columns):
        return put(net.mul(x, net.w), key(rows, columns), 3.0)

    (got,) = results(new_net(construct), V, ROWS, COLUMNS, w=W)
    np.testing.assert_allclose(got, after(V * W, key(ROWS, COLUMNS), 3.0), rtol=1e-12)


def test_a_training_step_on_ranks_learns_what_one_device_learns():
    def construct(net, x, label):
        h = net.mul(x, net.w)
        h[:4] = x[4:] * h[4:]
        h[h < 0] = 0.1
        return ops.reduce_mean(ops.square(h - label))

    net = new_net(construct)
    optimizer = nn.Momentum(net.trainable_params(), 0.5, 0.9)

    def step(x, label):
        loss, grads = value_and_grad(net, None, net.trainable_params())(x, label)
        optimizer(grads)
        return loss

    session = Session(compile(step, V, W, device_num=8, dataset_strategy="full_batch"), net, optimizer)
    ran = session.train([(V, W)] * 3, steps=3)
    alone = [float(step(Tensor(V), Tensor(W))) for _ in range(3)]
    np.testing.assert_allclose(ran, alone, rtol=1e-12)
    np.testing.assert_allclose(session.parameters()["w"], net.w.asnumpy(), rtol=1e-12)


def test_a_result_that_has_not_come_yet_is_read_first():
    class Result:
        shape, dtype, read = (3,), np.dtype("float64"), staticmethod(lambda: np.arange(3.0))

    x = LaterTensor(Result())
    x[1] = 7
    assert x.asnumpy().tolist() == [0.0, 7.0, 2.0] and x.shape == (3,)


def test_dims_of_size_1_before_the_others_are_left_out_of_a_value():
    x = Tensor(X)
    x[0, 1] = Tensor(np.ones((1, 1, 5)))
    np.testing.assert_array_equal(x.asnumpy(), after(X, (0, 1), 1.0))


def test_values_take_the_dtype_of_the_tensor():
    x = Tensor(np.array([1, 2, 3]))
    x[0], x[1:] = 2.7, Tensor([True, False])
    assert x.asnumpy().tolist() == [2, 1, 0] and x.dtype == np.int64


WRONG = {
    "outside": (3, 1.0, r"index 3 of a tensor of shape \(3, 4, 5\) is outside dim 0"),
    "a value too long": (0, np.zeros(4), r"a value of shape \(4,\) for elements of shape \(4, 5\)"),
    "a value with rows": (0, np.zeros((2, 4, 5)), r"a value of shape \(2, 4, 5\) for elements of shape \(4, 5\)"),
    "text": (0, "b", "the value 'b'. Numbers, or a Tensor"),
    "nothing": (0, None, "the value None. Numbers, or a Tensor"),
    "rows of different lengths": (0, [[1.0], [1.0, 2.0]], "the value"),
}


@each_of(("key", "value", "words"), *WRONG.values(), ids=list(WRONG))
def test_what_cannot_be_put_there_is_refused(key, value, words):
    with pytest.raises(ShapeError, match=words):
        put(Tensor(X), key, value)


def test_a_mask_of_another_shape_is_refused_at_compile_time():
    net = new_net(lambda net, x: put(net.mul(x, net.w), x[:4] > 0, 0.5))
    with pytest.raises(ShapeError, match=r"a mask of shape \(4, 16\) for a tensor of shape \(8, 16\)"):
        results(net, V, w=W)
