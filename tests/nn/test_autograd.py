"""Gradients over several operators: sharing, inputs, weights, aux."""

import numpy as np
import pytest

from parallel_lab import nn, ops
from parallel_lab.base.errors import ArgumentError, NotBuiltYet, TraceError
from parallel_lab.mindspore import get_grad
from parallel_lab.nn.tensor.autograd import grad, gradients, value_and_grad
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of

X = np.array([[1.0, -2.0], [3.0, 0.5]])


def test_a_value_used_twice_gets_the_sum_of_both_gradients():
    x = Parameter(Tensor(X))
    y = x * 3.0
    np.testing.assert_allclose(gradients(ops.reduce_sum(y * y + x), [x])[0], 18 * X + 1)


def test_tensors_the_output_does_not_depend_on_get_zeros():
    x, other = Parameter(Tensor(X)), Parameter(Tensor(np.ones(3)))
    np.testing.assert_array_equal(gradients(ops.reduce_sum(x), [other])[0], np.zeros(3))


def test_gradients_of_intermediate_values_can_be_asked_for():
    x = Parameter(Tensor(X))
    y = ops.square(x)
    of_y, of_x = gradients(ops.reduce_sum(y * 5.0), [y, x])
    np.testing.assert_allclose(of_y, np.full((2, 2), 5.0))
    np.testing.assert_allclose(of_x, 10 * X)


def test_a_frozen_parameter_takes_part_without_a_gradient():
    w, frozen = Parameter(Tensor(X)), Parameter(Tensor(X), requires_grad=False)
    of_w, of_frozen = gradients(ops.reduce_sum(w * frozen), [w, frozen])
    np.testing.assert_allclose(of_w, X)
    np.testing.assert_array_equal(of_frozen, np.zeros((2, 2)))


@pytest.mark.exhaustive
def test_a_chain_of_many_operators_does_not_overflow_the_stack():
    x = y = Parameter(Tensor(np.ones(2)))
    for _ in range(3000):
        y = y + 1.0
    np.testing.assert_array_equal(gradients(ops.reduce_sum(y), [x])[0], np.ones(2))


def test_value_and_grad_of_inputs_and_weights():
    w = Parameter(Tensor(np.array([2.0, 3.0])), "w")
    value, (of_x, (of_w,)) = value_and_grad(lambda x: ops.reduce_sum(x * x * w), 0, [w])(Tensor(X))
    assert value.item() == pytest.approx((X * X * [2, 3]).sum())
    np.testing.assert_allclose(of_x.asnumpy(), 2 * X * [2, 3])
    np.testing.assert_allclose(of_w.asnumpy(), (X * X).sum(0))


def test_several_positions_give_a_tuple():
    of_x, of_y = grad(lambda x, y: ops.reduce_sum(x * y), (0, 1))(Tensor(X), Tensor(2 * X))
    np.testing.assert_allclose(of_x.asnumpy(), 2 * X)
    np.testing.assert_allclose(of_y.asnumpy(), X)


def test_with_aux_only_the_loss_is_differentiated():
    (loss, logits), of_x = value_and_grad(lambda x: (ops.reduce_sum(x * 2.0), x * 100.0), 0, has_aux=True)(Tensor(X))
    assert loss.item() == pytest.approx(2 * X.sum())
    np.testing.assert_allclose(logits.asnumpy(), 100 * X)
    np.testing.assert_allclose(of_x.asnumpy(), np.full((2, 2), 2.0))


def test_asking_for_nothing_is_refused():
    with pytest.raises(TraceError, match="neither grad_position nor weights"):
        value_and_grad(lambda x: x, None)


def test_a_function_must_return_a_tensor():
    with pytest.raises(TraceError, match="A Tensor to differentiate"):
        value_and_grad(lambda x: 3.0)(Tensor(X))


@pytest.mark.parametrize(("reduce", "sign"), [(ops.reduce_max, 1), (ops.reduce_min, -1)], ids=["max", "min"])
def test_equal_extremes_share_the_gradient_equally(reduce, sign):
    x = Parameter(Tensor(sign * np.array([[2.0, 2.0, 1.0], [3.0, 0.0, 1.0], [4.0, 4.0, 4.0]])))
    of_x = gradients(ops.reduce_sum(reduce(x, -1)), [x])[0]
    np.testing.assert_allclose(of_x, [[1 / 2, 1 / 2, 0], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3]])


@each_of("choose, expected", (ops.maximum, [1.0, 1.0, 0.0]), (ops.minimum, [0.0, 1.0, 1.0]), ids=["maximum", "minimum"])
def test_the_first_of_two_equal_elements_gets_the_gradient(choose, expected):
    x, y = Parameter(Tensor(np.array([2.0, 1.0, 0.0]))), Parameter(Tensor(np.ones(3)))
    of_x, of_y = gradients(ops.reduce_sum(choose(x, y)), [x, y])
    np.testing.assert_array_equal(of_x, expected)
    np.testing.assert_array_equal(of_y, 1 - np.array(expected))


WRONG = {
    "position": ({"grad_position": 3}, r"grad_position=3 with 1 argument. .*from 0 to 0"),  # IndexError
    "negative": ({"grad_position": -1}, "grad_position=-1.*counted from 0"),  # gradient 0, in silence
    "text": ({"grad_position": "a"}, "grad_position='a'"),
    "bool": ({"grad_position": True}, "grad_position=True"),
    "twice": ({"grad_position": (0, 0)}, r"grad_position=\(0, 0\).*different ints"),
    "array": ({"weights": [X]}, r"weights\[0\] is array"),  # gradient 0, in silence
    "none": ({"weights": [None]}, r"weights\[0\] is None"),
    "function": ({"fn": None}, "fn is None"),
}


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("form", [value_and_grad, grad])
def test_what_cannot_be_differentiated_for_is_refused(form, how):
    given, words = WRONG[how]
    with pytest.raises(ArgumentError, match=words):
        form(**{"fn": lambda x: ops.reduce_sum(x), "grad_position": 0, **given})(Tensor(X))


def test_a_function_with_aux_gives_a_tuple():
    with pytest.raises(TraceError, match="With has_aux=True a tuple"):
        value_and_grad(lambda x: ops.reduce_sum(x), has_aux=True)(Tensor(X))


@pytest.mark.parametrize("of", [lambda x: ops.equal(x, 1.0), lambda x: ops.argmax(x)], ids=["bool", "int"])
def test_a_missing_gradient_is_refused_where_it_is_asked_for(of):
    """Zeros were the answer once: a training that goes nowhere, and says nothing."""
    with pytest.raises(TraceError, match=r"the function returned a Tensor of (bool|int32).*Floats"):
        value_and_grad(of, 0)(Tensor([1.0, 2.0]))


def test_gradients_with_their_ids_are_found_by_argument_and_parameter():
    x, y, w = Tensor(X), Tensor(X * 2), Parameter(Tensor(X * 3), "w")
    found = grad(lambda x, y: ops.reduce_sum(x * y * w), (0, 1), [w], return_ids=True)(x, y)
    assert [found[0][0][0], found[0][1][0], found[1][0][0]] == [0, 1, "w"]
    for asked, expected in ((0, 6 * X * X), (1, 3 * X * X), (w, 2 * X * X)):
        np.testing.assert_allclose(get_grad(found, asked).asnumpy(), expected)
    one = grad(lambda x: ops.reduce_sum(x * w), 0, return_ids=True)(x)
    np.testing.assert_allclose(get_grad(one, 0).asnumpy(), 3 * X)
    with pytest.raises(ArgumentError, match="no gradient for 2"):
        get_grad(found, 2)


POINT, ALONG, ROWS = (np.random.default_rng(n).uniform(0.3, 0.9, size=(3, 4)) for n in range(3))
TWICE = {
    "powers": lambda x: (x**3 - x * x).sum(),
    "a product": lambda x: ops.matmul(x, ops.transpose(x, (1, 0))).sum() ** 2,
    "tanh": lambda x: ops.tanh(x * 2.0).sum(),
    "a quotient": lambda x: (1 / x + ops.log(x) * ops.exp(x)).sum(),
    "a norm": lambda x: ops.sqrt((x * x).sum()),
    "rows": lambda x: (ops.reduce_max(x, 1) ** 2).sum() + (ops.relu(x - 0.5) ** 3).sum(),
    "joined": lambda x: (ops.concat((x, x * x), 0) ** 2).sum() + ops.abs(x).sum() ** 2,
}


@pytest.mark.parametrize("name", TWICE)
def test_a_gradient_is_differentiated(name):
    """Second derivatives were 0, without a word. Against differences of first ones."""
    first = grad(TWICE[name])
    found = grad(lambda x: (first(x) * Tensor(ALONG)).sum())(Tensor(POINT)).asnumpy()
    above, below = (first(Tensor(POINT + sign * 1e-5 * ALONG)).asnumpy() for sign in (1, -1))
    np.testing.assert_allclose(found, (above - below) / 2e-5, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "once", [lambda x: ops.softmax(x), lambda x: x[:2, 1:] ** 3, lambda x: nn.LayerNorm((4,), dtype="float64")(x)]
)
def test_a_gradient_without_a_second_one_is_refused(once):
    with pytest.raises(NotBuiltYet, match="differentiated once more"):
        grad(lambda x: (grad(lambda y: (once(y) ** 2).sum())(x) * Tensor(ROWS)).sum())(Tensor(POINT))
