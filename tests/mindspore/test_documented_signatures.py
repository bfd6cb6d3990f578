"""Arguments by the names and in the order of MindSpore 2.10's signatures, for families that had others."""

import numpy as np
import pytest

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.mindspore import Tensor, nn, ops
from tests.crossed import each_of

X = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
ONES = np.ones(4, np.float32)
PICTURES = np.arange(50, dtype=np.float32).reshape(1, 2, 5, 5)


def tensor(array):
    return Tensor(np.asarray(array))


def by_windows(array, kernel, stride, how):
    """`how` of every window of the last two dims; the last ones may reach over the border."""
    height, width = array.shape[-2:]
    places = [range(0, n - kernel + stride, stride) for n in (height, width)]
    rows = [[how(array[..., i : i + kernel, j : j + kernel]) for j in places[1]] for i in places[0]]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


NAMED = {
    "ones_like": (lambda: ops.ones_like(input=tensor(X)), np.ones_like(X)),
    "ones": (lambda: ops.ones(shape=(2, 3)), np.ones((2, 3))),
    "eye": (lambda: ops.eye(2, 3, None), np.eye(2, 3)),
    "norm": (lambda: ops.norm(A=tensor(X)), np.linalg.norm(X)),
    "vstack": (lambda: ops.vstack(inputs=(tensor(X), tensor(X))), np.vstack([X, X])),
    "take": (lambda: ops.take(input=tensor(X), index=tensor([5, 0])), [6, 1]),
    "rank": (lambda: ops.rank(input_x=tensor(X)), 2),
    "size": (lambda: ops.size(input_x=tensor(X)), 12),
    "tensor": (lambda: ms.tensor(shape=(2,), dtype=ms.float32, init=ms.common.initializer.One()), [1, 1]),
    "diff": (lambda: ops.diff(tensor(X), 1, 0, tensor(X[:1]), tensor(X)), np.diff(X, axis=0, prepend=X[:1], append=X)),
    "baddbmm": (
        lambda: ops.baddbmm(tensor(np.ones((1, 3, 3), "f")), tensor(X[None]), tensor(X.T[None]), 2, 3),
        2 + 3 * (X @ X.T)[None],
    ),
    "layer_norm": (
        lambda: ops.layer_norm(input=tensor(X), normalized_shape=(4,), weight=tensor(2 * ONES), bias=tensor(ONES)),
        2 * (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5) + 1,
    ),
    "layer_norm alone": (
        lambda: ops.layer_norm(tensor(X), (4,)),
        (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5),
    ),
    "binary_cross_entropy_with_logits": (
        lambda: ops.binary_cross_entropy_with_logits(input=tensor(X), target=tensor(X / 13)),
        np.mean(np.logaddexp(0, X) - X * X / 13),
    ),
    "softmin": (
        lambda: ops.softmin(tensor(X), dtype=ms.float64),
        np.exp(-np.float64(X)) / np.exp(-np.float64(X)).sum(-1, keepdims=True),
    ),
    "searchsorted": (lambda: ops.searchsorted(tensor([1.0, 2.0]), tensor([2.0]), side="right"), [2]),
    "searchsorted sorter": (
        lambda: ops.searchsorted(tensor([3.0, 1.0, 2.0]), tensor([2.5]), sorter=tensor([1, 2, 0])),
        [2],
    ),
    "max_pool2d": (
        lambda: ops.max_pool2d(tensor(PICTURES), 2, 2, 0, 1, False, True),
        by_windows(PICTURES, 2, 2, lambda w: w.max((-1, -2))),
    ),
    "avg_pool2d": (
        lambda: ops.avg_pool2d(input_x=tensor(PICTURES), kernel_size=2, stride=2, ceil_mode=True, divisor_override=3),
        by_windows(PICTURES, 2, 2, lambda w: w.sum((-1, -2)) / 3),
    ),
    "nn.MaxPool2d": (
        lambda: nn.MaxPool2d(2, 1, "pad", 0, 1, False, False, "NCHW")(tensor(PICTURES)),
        by_windows(PICTURES, 2, 1, lambda w: w.max((-1, -2)))[..., :4, :4],
    ),
    "nn.AvgPool2d": (
        lambda: nn.AvgPool2d(2, 1, "pad", 0, False, True, None, "NCHW")(tensor(PICTURES)),
        by_windows(PICTURES, 2, 1, lambda w: w.mean((-1, -2)))[..., :4, :4],
    ),
    "nn.Flatten": (lambda: nn.Flatten(start_dim=0, end_dim=1)(tensor(PICTURES)), PICTURES.reshape(2, 5, 5)),
}


@pytest.mark.parametrize("name", NAMED)
def test_arguments_have_documented_names_and_places(name):
    call, expected = NAMED[name]
    found = call()
    np.testing.assert_allclose(found.asnumpy() if isinstance(found, Tensor) else found, expected, rtol=2e-6, atol=1e-6)


def test_inv_is_one_over_every_element():
    """It gave the inverse of matrices, which is `inverse`: a square matrix was computed wrongly without a word."""
    x = np.array([[0.25, 0.5], [2.0, 4.0]], np.float32)
    assert ops.inv(tensor(x)).asnumpy().tolist() == (1 / x).tolist() == tensor(x).inv().asnumpy().tolist()
    np.testing.assert_allclose(ops.inverse(tensor([[2.0, 0.0], [0.0, 4.0]])).asnumpy(), [[0.5, 0], [0, 0.25]])


@each_of("has_aux", False, True)
def test_the_gradient_of_a_result_can_be_given_last(has_aux):
    """d/dx sum(s * x^2) = 2 s x, and likewise for a weight."""
    weight = ms.Parameter(tensor(X), "w")
    fn = (lambda x: (x * x * weight, x)) if has_aux else (lambda x: x * x * weight)
    sens = tensor(np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4))
    value, (of_x, of_weight) = ms.value_and_grad(fn, 0, [weight], has_aux, sens_param=True)(tensor(X), sens)
    first = value[0] if has_aux else value
    np.testing.assert_allclose(first.asnumpy(), X**3)
    np.testing.assert_allclose(of_x.asnumpy(), 2 * sens.asnumpy() * X * X, rtol=1e-6)
    np.testing.assert_allclose(of_weight[0].asnumpy(), sens.asnumpy() * X * X, rtol=1e-6)
    alone = ms.grad(fn, 0, None, has_aux, sens_param=True)(tensor(X), sens)
    np.testing.assert_allclose((alone[0] if has_aux else alone).asnumpy(), of_x.asnumpy())
    with pytest.raises(ParallelLabError, match="gradient of shape"):
        ms.grad(fn, 0, None, has_aux, sens_param=True)(tensor(X), tensor(ONES[:2]))


@each_of(
    "call",
    lambda: nn.MaxPool2d(2, return_indices=True),
    lambda: nn.AvgPool2d(2, ceil_mode=True),
    lambda: nn.MultiheadAttention(8, 2, 0.0, True, True),
    lambda: ops.max_pool2d(tensor(PICTURES), 2, dilation=2),
    lambda: ops.adaptive_max_pool2d(tensor(PICTURES), 2, True),
    lambda: ops.searchsorted(tensor([1.0]), tensor([1.0]), right=True, side="left"),
    lambda: nn.Cell(True, 3),
)
def test_settings_that_are_not_available_are_refused(call):
    with pytest.raises(ParallelLabError):
        call()
