"""Second names, functional losses: values, gradients, traces, refusals. Against PyTorch: `test_recorded_torch.py`."""

import builtins

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, compile, nn, ops, value_and_grad
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.graph.trace import trace_network
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from tests.crossed import each_of
from tests.ops.compiled import results

X = np.array([[1.0, 4.0, 4.0], [-2.0, 0.5, -3.0]])
BATCH = np.random.default_rng(3).normal(size=(8, 6))
LABELS = np.array([0, 3, 5, 2, 1, 3, 4, 0], np.int32)


def values(result):
    return np.asarray(result)


def recorded(fn, *arrays):
    """Class names of the operators that a function is made of."""
    graph = trace_network(fn, [(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]).graph
    return [node.op_class for node in graph.nodes]


SECOND_NAMES = {
    **{"abs": "abs_", "absolute": "abs_", "round": "round_", "pow": "power", "gather_d": "gather_elements"},
    **{"eq": "equal", "ne": "not_equal", "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal"},
    **{"subtract": "sub", "negative": "neg", "floor_divide": "floor_div", "multiply": "mul"},
}


@pytest.mark.parametrize("name", SECOND_NAMES)
def test_a_second_name_is_the_same_operator(name):
    assert getattr(ops, name) is ops.OPS[SECOND_NAMES[name]]


REDUCTIONS = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "all": np.all, "any": np.any}
REDUCTIONS |= {"amax": np.max, "amin": np.min}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_take_every_spelling(name):
    fn, expected = getattr(ops, name), REDUCTIONS[name]
    np.testing.assert_allclose(values(fn(X)), expected(X))
    for spelled in ({"axis": 1, "keep_dims": True}, {"dim": 1, "keepdim": True}, {"axis": -1, "keepdims": True}):
        np.testing.assert_allclose(values(fn(X, **spelled)), expected(X, axis=1, keepdims=True))
    with pytest.raises(ShapeError, match=f"{name}: unknown argument 'axes'"):
        fn(X, axes=1)
    with pytest.raises(ShapeError, match=f"{name}: axis and dim are both given"):
        fn(X, 1, dim=1)


def test_the_gradient_of_a_tie_goes_to_the_element_whose_number_is_given():
    """Wrong would be halves, as reduce_max gives them: the number says that it is the first."""
    p = Parameter(X)
    np.testing.assert_array_equal(gradients(ops.max(p, 1)[0], [p], np.array([1.0, 1.0]))[0], [[0, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal(gradients(ops.amax(p, 1), [p], np.array([1.0, 1.0]))[0], [[0, 0.5, 0.5], [0, 1, 0]])


EQUATIONS = {
    **{"ij,jk->ik": ((2, 3), (3, 4)), "bqhd,bkhd->bhqk": ((2, 3, 2, 4), (2, 5, 2, 4)), "i,j->ji": ((3,), (4,))},
    **{"ij,ij->": ((2, 3), (2, 3)), "ij,ij->ji": ((2, 3), (2, 3)), "aij,jib->ba": ((2, 3, 4), (4, 3, 5))},
    **{"ija,jkb->ik": ((2, 3, 2), (3, 4, 5)), "bj,ib": ((2, 3), (4, 2)), "ijk->j": ((2, 3, 4),)},
    **{"ijk->kij": ((2, 3, 4),), "ba": ((2, 3),), " i j -> ": ((2, 3),), ",i->i": ((), (3,))},
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_is_numpys(equation):
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=shape) for shape in EQUATIONS[equation]]
    np.testing.assert_allclose(values(ops.einsum(equation, *arrays)), np.einsum(equation, *arrays), rtol=1e-12)


TRACED = {
    "sum": (lambda x: ops.sum(x, dim=1), lambda x: [x.sum(1)], ["ReduceSum"]),
    "max": (lambda x: ops.max(x, 1), lambda x: [x.max(1), x.argmax(1)], ["Argmax", "ElementAt"]),
    "max of all": (lambda x: ops.max(x), lambda x: [x.max(), x.argmax()], ["ReduceMax", "Reshape", "Argmax"]),
    "einsum": (lambda x: ops.einsum("ij,kj->ik", x, x), lambda x: [x @ x.T], ["Transpose", "MatMul"]),
    "smallest": (lambda x: ops.topk(x, 2, largest=False)[0], lambda x: [np.sort(x, 1)[:, :2]], ["TopK"]),
    "mse": (
        lambda x: ops.mse_loss(x, ops.mul(x, 3.0)),
        lambda x: [np.mean(4 * x * x)],
        ["Mul", "Sub", "Square", "ReduceMean"],
    ),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", TRACED)
def test_compiled_functions_are_made_of_operators_and_give_the_same(name):
    fn, expected, kinds = TRACED[name]
    assert recorded(fn, BATCH) == kinds
    for mine, theirs in zip(results(fn, BATCH, device_num=2), expected(BATCH), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


# ---- functional losses ----

WEIGHT = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 1.0])
LOG_PROBABILITIES = BATCH - np.log(np.exp(BATCH).sum(1, keepdims=True))
PROBABILITIES = np.exp(LOG_PROBABILITIES)
TARGETS = np.random.default_rng(4).dirichlet(np.ones(6), size=8)
OPTIONS, BINARY_LOGITS = {"weight": WEIGHT, "label_smoothing": 0.1}, ops.binary_cross_entropy_with_logits
LOSSES = {
    "cross entropy": (ops.cross_entropy, nn.CrossEntropyLoss, {}, BATCH, LABELS),
    "all options": (ops.cross_entropy, nn.CrossEntropyLoss, OPTIONS | {"ignore_index": 3}, BATCH, LABELS),
    "dense": (ops.cross_entropy, nn.CrossEntropyLoss, OPTIONS, BATCH, TARGETS),
    "nll": (ops.nll_loss, nn.NLLLoss, {"weight": WEIGHT, "ignore_index": 0}, LOG_PROBABILITIES, LABELS),
    "mse": (ops.mse_loss, nn.MSELoss, {}, BATCH, TARGETS),
    "l1": (ops.l1_loss, nn.L1Loss, {}, BATCH, TARGETS),
    "smooth l1": (ops.smooth_l1_loss, nn.SmoothL1Loss, {"beta": 0.5}, BATCH, TARGETS),
    "binary": (ops.binary_cross_entropy, nn.BCELoss, {"weight": WEIGHT}, PROBABILITIES, TARGETS),
    "binary logits": (BINARY_LOGITS, nn.BCEWithLogitsLoss, {"pos_weight": WEIGHT}, BATCH, TARGETS),
}


@pytest.mark.quick(9)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_functional_loss_is_that_of_the_cell_at_once_and_compiled(name, reduction):
    fn, cell, options, x, y = LOSSES[name]
    cell = cell(**options, reduction=reduction)
    expected = cell(Tensor(x), Tensor(y)).asnumpy()
    np.testing.assert_array_equal(values(fn(Tensor(x), Tensor(y), **options, reduction=reduction)), expected)

    def loss(x, y):
        return fn(x, y, **options, reduction=reduction)

    np.testing.assert_allclose(*results(loss, x, y, device_num=2), expected, rtol=1e-12)
    assert recorded(loss, x, y) == recorded(cell, x, y)


def test_default_reductions_are_mindspores():
    assert values(ops.smooth_l1_loss(BATCH, TARGETS)).shape == BATCH.shape
    assert values(ops.l1_loss(BATCH, TARGETS)).shape == ()


# ---- refusals ----

WRONG = {
    "bmm": (lambda: ops.bmm(X, X), r"bmm: shapes \(2, 3\) and \(2, 3\).*ops.matmul"),
    "bmm batches": (lambda: ops.bmm(np.ones((2, 3, 4)), np.ones((1, 4, 5))), "bmm: shapes"),
    "topk": (lambda: ops.topk(X, 3, 0), "TopK: k=3 for dim 0.*from 0 to 2"),
    "repeat": (lambda: ops.repeat_interleave(X, (2, 1), 0), "repeats=.*ops.tile"),
    "max dims": (lambda: ops.max(X, (0, 1)), "max: axis="),
    "three tensors": (lambda: ops.einsum("ij,jk,kl->il", X, X, X), "3 tensors.*two at a time"),
    "diagonal": (lambda: ops.einsum("ii->i", X), "One label per dim, each once"),
    "dots": (lambda: ops.einsum("...i->i", X), "Write out the dims"),
    "sizes": (lambda: ops.einsum("ij,ik->jk", X, X.T), "label 'i' is 2 and 3"),
    "result": (lambda: ops.einsum("ij->k", X), "the result's labels 'k'"),
    "dims": (lambda: ops.einsum("i->i", X), r"labels 'i' for a tensor of shape \(2, 3\)"),
    "equation": (lambda: ops.einsum(5, X), "the labels in 5"),
    "reduction": (lambda: ops.mse_loss(X, X, "average"), "mse_loss: reduction='average'"),
    "smoothing": (lambda: ops.cross_entropy(BATCH, LABELS, label_smoothing=2), "label_smoothing=2"),
    "ignored": (lambda: ops.cross_entropy(BATCH, LABELS, ignore_index=1.5), "ignore_index=1.5"),
    "weights": (lambda: ops.cross_entropy(BATCH, LABELS, weight=np.ones(2)), "weight has 2 numbers. One per class: 6"),
    "weight matrix": (lambda: ops.cross_entropy(BATCH, LABELS, weight=np.ones((6, 1))), r"weight has shape \(6, 1\)"),
    "labels": (lambda: ops.cross_entropy(BATCH, LABELS[:4]), "cross_entropy: logits of shape"),
    "one dim": (lambda: ops.nll_loss(BATCH[0], LABELS[:1]), r"Floats, \(n, c\)"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_computed_is_refused(how):
    call, words = WRONG[how]
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert isinstance(caught.value, ParallelLabError)


@each_of(
    "name, near", ("matmull", "matmul"), ("Relu", "relu"), ("layernorm", "layer_norm"), ("batchnorm", "batch_norm")
)
def test_an_unknown_operator_gets_names_that_are_near(name, near):
    with pytest.raises(AttributeError, match=f"no operator '{name}'. Did you mean .*'{near}'") as caught:
        getattr(ops, name)
    assert len(str(caught.value)) < 150
    assert caught.value.name == name


def test_an_operator_like_no_other_gets_no_guess():
    with pytest.raises(AttributeError, match=r"no operator 'qqqq'\. dir\(parallel_lab\.ops\)"):
        _ = ops.qqqq


def test_a_star_import_leaves_pythons_own_functions_alone():
    assert {"where", "topk", "mean", "cross_entropy", "einsum", "norm", "MatMul"} <= set(ops.__all__)
    assert {n for n in ops.__all__ if hasattr(builtins, n)} == set()
    assert all(hasattr(ops, n) for n in ops.__all__)


# MindSpore's names of operators that only gradients use, from its public list of gradient primitives (grad_ops)
IN_GRADIENTS = (
    (lambda x: ops.gelu(x), (8, 4), "GeLUGrad"),
    (lambda x: ops.silu(x), (8, 4), "SiLUGrad"),
    (lambda x: ops.hswish(x), (8, 4), "HSwishGrad"),
    (lambda x: ops.add(ops.ones((8, 4)), x), (4,), "ReduceSum"),
    (lambda x: ops.conv2d(x, ops.ones((4, 4, 3, 3))), (8, 4, 6, 6), "Conv2DBackpropInput"),
    (lambda x: ops.reduce_sum(x, 0), (8, 4), "BroadcastTo"),
    (lambda x: x[1:5], (8, 4), "StridedSliceGrad"),
    (lambda x: ops.gather_d(x, 0, np.zeros((2, 4), np.int32)), (8, 4), "GatherDGradV2"),
)


@each_of("fn, shape, name", *IN_GRADIENTS)
def test_operators_of_gradients_have_mindspores_names(fn, shape, name):
    net = value_and_grad(lambda x: ops.reduce_sum(ops.square(fn(x))), 0)
    plan = compile(lambda x: net(x)[1], np.ones(shape, np.float32), device_num=1)
    shown = {i.op_class for _, i in plan.instructions()}
    assert name in shown
    assert not {"ChannelSum", "GeluGrad", "ConvInputGrad", "Spread", "SumTo", "SliceGrad"} & shown
