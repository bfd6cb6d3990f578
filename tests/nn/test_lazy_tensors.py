"""Tensors whose values are drawn later, and what a Tensor and a Parameter show of themselves."""

import copy
import pickle

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, ops, set_seed
from parallel_lab.nn.initializer import Normal, One, initializer
from parallel_lab.nn.tensor.autograd import grad, value_and_grad
from tests.crossed import each_of


def test_a_tensor_with_an_initializer_is_drawn_when_it_is_read():
    lazy = Tensor(shape=(2, 3), dtype=np.float32, init=One())
    assert isinstance(lazy, Tensor) and (lazy.shape, lazy.dtype, lazy.has_init) == ((2, 3), np.float32, True)
    np.testing.assert_array_equal(ops.add(lazy, 1.0).asnumpy(), np.full((2, 3), 2, np.float32))
    assert not lazy.has_init and lazy.init_data() is lazy
    assert Tensor(shape=4, dtype="int32", init=One()).asnumpy().tolist() == [1, 1, 1, 1]


def test_a_parameter_made_of_it_draws_by_its_own_name():
    """As one made of `initializer(...)`: equal names draw alike, different names differently."""
    set_seed(3)
    made = [Parameter(Tensor(shape=(5,), dtype="float32", init=Normal(1.0)), name) for name in ("a", "b")]
    other = [Parameter(initializer(Normal(1.0), (5,)), name) for name in ("a", "b")]
    assert made[0].has_init
    for a, b in zip(made, other, strict=True):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    assert not np.array_equal(made[0].asnumpy(), made[1].asnumpy()) and not made[0].has_init
    drawn = Tensor(shape=(5,), dtype="float32", init=Normal(1.0)).init_data()
    np.testing.assert_array_equal(Parameter(drawn, "c").asnumpy(), drawn.asnumpy())


def test_it_is_copied_drawn_or_not():
    lazy = Tensor(shape=(2,), dtype="float32", init=Normal(1.0))
    before = pickle.loads(pickle.dumps(lazy))
    assert before.has_init
    lazy.init_data()
    after = copy.deepcopy(lazy)
    np.testing.assert_array_equal(before.asnumpy(), lazy.asnumpy())
    np.testing.assert_array_equal(after.asnumpy(), lazy.asnumpy())


@each_of(
    "wrong",
    {"init": One()},
    {"init": One(), "shape": (2,)},
    {"init": One(), "shape": (2,), "dtype": "text"},
    {"init": 3, "shape": (2,), "dtype": "float32"},
    {"init": One(), "shape": (2.5,), "dtype": "float32"},
    {"init": One(), "shape": (2,), "dtype": "float32", "input_data": [1.0]},
)
def test_half_a_rule_is_refused(wrong):
    with pytest.raises(TypeError):
        Tensor(**wrong)


def test_data_is_the_tensor_itself():
    """It was the numpy array before."""
    p, x = Parameter(Tensor([1.0, 2.0]), "p"), Tensor([3.0])
    assert p.data is p and x.data is x and isinstance(p.data, Tensor)
    np.testing.assert_array_equal(p.array, [1, 2])


def test_facts_of_a_tensor():
    x = Tensor.from_numpy(np.zeros((2, 3), np.float16))
    assert (x.itemsize, x.nbytes, x.has_init) == (2, 12, False)
    with pytest.raises(TypeError, match="numpy array"):
        Tensor.from_numpy([1.0])


def test_one_weight_has_one_gradient_and_a_list_a_tuple():
    w = Parameter(Tensor([2.0, 3.0]), "w")

    def square(x):
        return ops.reduce_sum(x * w * w)

    x = Tensor([1.0, 10.0])
    np.testing.assert_array_equal(grad(square, None, w)(x).asnumpy(), [4, 60])
    (alone,) = grad(square, None, [w])(x)
    np.testing.assert_array_equal(alone.asnumpy(), [4, 60])
    _, (of_input, of_weight) = value_and_grad(square, 0, w)(x)
    np.testing.assert_array_equal([of_input.asnumpy(), of_weight.asnumpy()], [[4, 9], [4, 60]])


class Descent(nn.Optimizer):
    """MindSpore's form of an optimizer: rate and parameters in its base's order, a step of its own."""

    def __init__(self, params, rate, decay):
        super().__init__(rate, params, weight_decay=decay, loss_scale=4.0)
        self.steps = self.parameters.clone(prefix="steps", init="zeros")

    def construct(self, gradients):
        gradients = self.decay_weight(self.scale_grad(gradients))
        for p, n, g in zip(self.parameters, self.steps, gradients, strict=True):
            ops.assign(n, n + 1.0)
            ops.assign(p, p - g * self.get_lr())
        return True


def test_an_optimizer_with_a_construct_of_its_own():
    w, b = Parameter(Tensor([1.0, 2.0]), "w"), Parameter(Tensor([3.0]), "norm.beta")
    optimizer = Descent([w, b], 0.5, decay=0.1)
    assert isinstance(optimizer, nn.Cell) and optimizer.param_length == 2 and not optimizer.is_group
    assert optimizer.decay_flags == (True, False) and optimizer.get_lr_parameter([w, b]) == [0.5, 0.5]
    assert optimizer([Tensor([4.0, 8.0]), Tensor([4.0])]) is True
    np.testing.assert_allclose(w.asnumpy(), [1 - 0.5 * (1 + 0.1), 2 - 0.5 * (2 + 0.2)], rtol=1e-6)
    np.testing.assert_allclose(b.asnumpy(), [3 - 0.5], rtol=1e-6)
    assert [p.name for p in optimizer.get_parameters()] == ["steps.w", "steps.norm.beta"]
    assert [p.asnumpy().tolist() for p in optimizer.steps] == [[1.0, 1.0], [1.0]]


def test_what_cells_answer_to_scripts():
    net = nn.SequentialCell(nn.Dense(2, 3), nn.ReLU())
    assert net[0].param_prefix == "0" and net[1].cls_name == "ReLU"
    assert net.set_grad().requires_grad and not net.set_grad(False).requires_grad
    assert (net.check_names(), net.parameter_layout_dict) == (None, {})


def test_an_operator_is_named_and_forgets_its_device():
    relu = ops.ReLU().set_prim_instance_name("act").set_device("CPU")
    assert relu.instance_name == "act" and "primitive_target" in relu.prim_attrs
    assert "primitive_target" not in relu.set_device("").prim_attrs
    assert relu.add_prim_attr("a", 1).del_prim_attr("a").prim_attrs.get("a") is None
