"""Attributes of operators as objects: read, set, taken away, as MindSpore's scripts do."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from parallel_lab import Tensor, nn, ops
from parallel_lab.base.errors import MissingName, StrategyError
from parallel_lab.mindspore import ops as theirs
from tests.ops.compiled import results


def test_attributes_of_the_constructor_are_attributes_of_the_object():
    product = ops.MatMul(transpose_b=True)
    assert (product.transpose_a, product.transpose_b) == (False, True)
    assert product.attrs == product.get_attr_dict() == {"transpose_a": False, "transpose_b": True}
    assert ops.ReduceSum(True).keep_dims is True and ops.Softmax().axis == -1
    assert ops.PadV3().paddings_contiguous is True  # of a form with a call of its own


def test_what_is_attached_is_read_and_taken_away():
    add = ops.Add()
    assert add.add_prim_attr("note", 3) is add
    assert (add.note, add.attrs["note"]) == (3, 3)
    add.init_prim_io_names(inputs=["x", "y"], outputs=["z"])
    assert add.input_names == ["x", "y"] and add.set_stage(1).stage == 1
    assert add.del_prim_attr("note") is add and "note" not in add.attrs
    with pytest.raises(MissingName, match="Add has no 'note'"):
        _ = add.note
    assert not hasattr(add, "_note") and not hasattr(ops.Add.__new__(ops.Add), "note")


def test_a_copy_has_attributes_and_a_strategy_of_its_own():
    product = ops.MatMul(transpose_a=True).shard(((4, 2), (4, 1)))
    for made in (product.clone(), copy.deepcopy(product)):
        made.add_prim_attr("note", 1).shard(((1, 1), (1, 1)))
        assert made.transpose_a and "note" not in product.attrs
    assert product.in_strategy == ((4, 2), (4, 1))


@pytest.mark.parametrize("name", ["DType", "Depend", "Rank", "ScalarToTensor", "Shape", "Size", "OnesLike"])
def test_what_leaves_no_operator_in_a_graph_is_a_primitive_too(name):
    made = getattr(theirs, name)()
    assert isinstance(made, theirs.Primitive) and made.name == name
    assert made.shard(((2, 1),)).in_strategy == ((2, 1),) and made.add_prim_attr("note", 1).note == 1
    with pytest.raises(TypeError, match="shard"):
        made.shard([[2, 1]])


class Returning(nn.Cell):
    """A network that returns what its `answer` makes of its input, and computes something else."""

    def __init__(self, answer, used):
        super().__init__()
        self.answer, self.used = answer, used

    def construct(self, x):
        doubled = x * 2 if self.used else x
        return self.answer(doubled)


X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [(theirs.ZerosLike(), np.zeros_like(X)), (lambda x: (theirs.OnesLike()(x),), np.ones_like(X))],
)
def test_a_network_may_return_constants(answer, expected, used):
    (found,) = results(Returning(answer, used), X)
    np.testing.assert_array_equal(found, expected)


def test_the_gradient_of_truth_values_and_counts_is_zero():
    """MindSpore's GradOperation takes any result; value_and_grad refuses results without a gradient."""
    for fn in (lambda x: theirs.Greater()(x, 3.0), lambda x: theirs.Argmax()(x)):
        np.testing.assert_array_equal(theirs.GradOperation()(fn)(Tensor(X)).asnumpy(), np.zeros_like(X))


@pytest.mark.parametrize("strategy", [((16, 1),), ((1, 3),), ((2,),)])
def test_a_wrong_strategy_of_what_makes_a_constant_is_refused(strategy):
    with pytest.raises(StrategyError, match="ZerosLike"):
        results(Returning(theirs.ZerosLike().shard(strategy), True), X)


def test_an_operators_module_has_no_layers_and_no_optimizers():
    """`auto_generate.Dense` was nn.Dense, by which a script would make a layer without a size."""
    from parallel_lab.mindspore.ops import auto_generate, operations

    assert auto_generate.Dense is ops.Dense
    for name in ("Adam", "SGD", "GELU"):
        assert getattr(operations, name, None) is not getattr(nn, name)


NAMED = {
    "matmul": (lambda x: ops.matmul(input=x, other=x.T), X @ X.T),
    "sub": (lambda x: ops.sub(x, other=1), X - 1),
    "transpose": (lambda x: ops.transpose(input=x, input_perm=(1, 0)), X.T),
    "concat": (lambda x: ops.concat(tensors=(x, x), axis=1), np.concatenate([X, X], 1)),
    "select": (lambda x: ops.select(x > 3, input=x, other=x * 2), np.where(X > 3, X, X * 2)),
    "mean": (lambda x: ops.mean(x=x, dim=0), X.mean(0)),
    "a tensor of axes": (lambda x: ops.reduce_sum(x, Tensor(np.array([0, 1]))), X.sum()),
}


@pytest.mark.parametrize("name", NAMED)
def test_arguments_have_the_names_of_every_version(name):
    call, expected = NAMED[name]
    np.testing.assert_array_equal(call(Tensor(X)).asnumpy(), expected)


def test_a_name_that_nobody_has_is_refused_and_one_given_twice():
    with pytest.raises(ValueError, match="unknown argument 'colour'"):
        ops.sub(Tensor(X), colour=1)
    with pytest.raises(ValueError, match="unknown argument 'input'"):
        ops.sub(Tensor(X), 1, input=Tensor(X))
