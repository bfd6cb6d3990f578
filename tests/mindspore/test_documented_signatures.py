"""Arguments by the names and in the order of MindSpore 2.10's signatures, for families that had others.

Compared with the public files of its wheel, what still differs, and why:

- CrossEntropyLoss, NLLLoss and their functions: ignore_index is None, not -100; a label of -100 is refused where
  MindSpore leaves it out without a word, and a plan has no masks that nobody asked for
- generated classes (Std, Var, LogSumExp, Hardtanh, GroupNorm, FlashAttentionScore): some of what their calls take by
  name is an argument of the constructor here, or is given by place
- ResizeNearestNeighbor(half_pixel_centers), CommHandle(handle), Dataset(children): not available, and refused
- Optimizer takes (learning_rate, parameters) and (params, learning_rate); LpNorm(epsilon) adds nothing unless asked to
- nn.Dropout(keep_prob) of 1.x has no default: p has; arguments that are required there and have a default here
"""

import math

import numpy as np
import pytest

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.mindspore import Tensor, mint, nn, ops
from tests.crossed import each_of
from tests.refusals import refused

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


def softmax_of(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@np.vectorize
def ndtr(x):
    """The normal distribution."""
    return (1 + math.erf(x / math.sqrt(2))) / 2


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
    "nn.ResizeBilinear": (
        lambda: nn.ResizeBilinear()(tensor([[[[1.0, 2, 3, 4], [5, 6, 7, 8]]]]), size=(5, 5))[0, 0, ::2],
        [[1, 1.8, 2.6, 3.4, 4], [4.2, 5, 5.8, 6.6, 7.2], [5, 5.8, 6.6, 7.4, 8]],
    ),
    "nn.ResizeBilinear times": (
        lambda: nn.ResizeBilinear()(tensor(PICTURES), None, 2, True),
        np.linspace(0, 4, 10) + np.linspace(0, 20, 10)[:, None] + [[[[0]], [[25]]]],
    ),
    "amax": (lambda: ops.amax(tensor(X), 1, initial=6.5), [6.5, 8, 12]),
    "amin": (lambda: tensor(X).amin(axis=1, where=tensor(X % 2 == 0), initial=9), [2, 6, 9]),
    "index_fill": (lambda: ops.index_fill(tensor([True, True]), 0, tensor(np.array([1])), False), [True, False]),
    "gelu": (lambda: ops.gelu(tensor(X)), X * ndtr(X)),
    "gelu by tanh": (
        lambda: ops.gelu(tensor(X), "tanh"),
        X / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
    ),
    "leaky_relu": (lambda: ops.leaky_relu(tensor(-X)), -0.2 * X),
    "mint leaky_relu": (lambda: mint.nn.functional.leaky_relu(tensor(-X)), -0.01 * X),
    "softmax": (lambda: ops.softmax(tensor(X), 0, dtype=ms.float64), softmax_of(np.float64(X), 0)),
    "mint softmax of 3 dims": (lambda: mint.nn.functional.softmax(tensor(X[None])), softmax_of(X[None], 0)),
    "mint.nn.Softmax of 2 dims": (lambda: mint.nn.Softmax()(tensor(X)), softmax_of(X, 1)),
    "mint.nn.LogSoftmax": (lambda: mint.nn.LogSoftmax(dim=0)(tensor(X)), np.log(softmax_of(X, 0))),
    "softplus": (lambda: ops.softplus(tensor(X), 2, 30), np.log1p(np.exp(2 * X)) / 2),
    "norm dtype": (lambda: ops.norm(tensor(X), dtype=ms.float64), np.linalg.norm(np.float64(X))),
    "prod": (lambda: ops.prod(tensor(X), 1, True, ms.float64), np.float64(X).prod(1, keepdims=True)),
    "argmin": (lambda: ops.argmin(tensor(-X), axis=1, keepdims=True), [[3], [3], [3]]),
    "subtract": (lambda: ops.subtract(tensor(X), tensor(ONES), alpha=3), X - 3),
    "roll of all": (lambda: ops.roll(tensor(X), 2), np.roll(X, 2)),
    "scatter_nd": (lambda: ops.scatter_nd(tensor([[0], [2], [0]]), tensor([1, 2, 4.0]), (4,)), [5, 0, 2, 0]),
    "ScatterNd": (lambda: ops.ScatterNd()(tensor([[0], [2], [0]]), tensor([1, 2, 4.0]), (4,)), [5, 0, 2, 0]),
    "roll dims": (lambda: ops.roll(tensor(X), shifts=1, dims=0), np.roll(X, 1, 0)),
    "group_norm": (
        lambda: ops.group_norm(tensor(PICTURES), 2),
        (PICTURES - PICTURES.mean((2, 3), keepdims=True)) / np.sqrt(PICTURES.var((2, 3), keepdims=True) + 1e-5),
    ),
    "scalar_to_tensor": (lambda: ops.scalar_to_tensor(3) / 2, 1.5),
    "Cross": (lambda: ops.Cross()(tensor(X), tensor(X[::-1])), np.cross(X, X[::-1], axis=0)),
    "Round": (lambda: ops.Round()(tensor(X / 7), decimals=2), np.round(X / 7, 2)),
    "IsClose": (lambda: ops.IsClose()(tensor([np.nan]), tensor([np.nan])), [False]),
    "Fill": (lambda: ops.Fill()(type=ms.float32, dims=(2,), x=4), [4, 4]),
    "Roll": (lambda: ops.Roll(shifts=1, dims=1)(tensor(X)), np.roll(X, 1, 1)),
    "Transpose": (lambda: ops.Transpose()(tensor(X), dims=(1, 0)), X.T),
    "nll_loss": (
        lambda: ops.nll_loss(tensor(-X), tensor(np.array([1, 3, 0])), label_smoothing=0.25),
        0.75 * np.mean([2, 8, 9]) + 0.25 / 4 * X.sum(1).mean(),
    ),
    "nll_loss weight": (
        lambda: ops.nll_loss(tensor(-X), tensor(np.array([1, 3, 0])), tensor(X[0]), 0, "mean", 0.25),
        (0.75 * (2 * 2 + 8 * 4) + 0.25 / 4 * (X[:2] @ X[0]).sum()) / (2 + 4),
    ),
    "nn.BatchNorm3d": (
        lambda: nn.BatchNorm3d(2, 1e-5, 0.9, True, "ones", "zeros", "zeros", "ones", None, ms.float64).gamma,
        [1, 1],
    ),
    "nn.EmbeddingLookup": (
        lambda: nn.EmbeddingLookup(2, 2, "ones", "DEVICE", "batch_slice", None, None, False, ms.float64)(tensor([1])),
        [[1, 1]],
    ),
    "mint.nn.GroupNorm": (lambda: mint.nn.GroupNorm(2, 4, 1e-5, True, ms.float64).gamma, [1, 1, 1, 1]),
    "mint.nn.MaxPool2d": (
        lambda: mint.nn.MaxPool2d(2, 1, 0, 1, False, False)(tensor(PICTURES)),
        by_windows(PICTURES, 2, 1, lambda w: w.max((-1, -2)))[..., :4, :4],
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


test_settings_that_are_not_available_are_refused = refused(
    lambda: nn.MaxPool2d(2, return_indices=True),
    lambda: nn.AvgPool2d(2, ceil_mode=True),
    lambda: nn.MultiheadAttention(8, 2, 0.0, True, True),
    lambda: ops.max_pool2d(tensor(PICTURES), 2, dilation=2),
    lambda: ops.adaptive_max_pool2d(tensor(PICTURES), 2, True),
    lambda: ops.searchsorted(tensor([1.0]), tensor([1.0]), right=True, side="left"),
    lambda: nn.Cell(True, 3),
    lambda: ops.relu(tensor(X), inplace=True),
    lambda: ops.amax(tensor(X), where=tensor(X > 2)),
    lambda: mint.nn.functional.relu6(tensor(X), True),
    lambda: mint.nn.SiLU(inplace=True),
    lambda: mint.nn.Dropout(0.5, True),
    lambda: mint.nn.Conv2d(1, 1, 1, padding_mode="reflect"),
    lambda: ms.Parameter(tensor(X), storage_format="FRACTAL_NZ"),
    lambda: ms.Parameter(tensor(X), device="Ascend"),
    lambda: ms.Layout((2, 2), ("a", "b"), [0, 2, 1, 3]),
    lambda: ms.load_distributed_checkpoint(nn.Dense(1, 1), ["a.ckpt"], rank_id=0),
    lambda: ms.dataset.GeneratorDataset([1], "x", collate_fn=len),
)


def test_ranks_of_a_layout_in_their_own_order_may_be_written_out():
    assert ms.Layout((2, 2), ("a", "b"), rank_list=[0, 1, 2, 3])("a", "None") == ms.Layout((2, 2), ("a", "b"))(
        "a", "None"
    )
    with pytest.raises(TypeError):
        ms.Layout((2, 2), ("a", "b"), (0, 1, 2, 3))


def test_an_optimizer_of_ones_own_names_the_arguments_of_the_base():
    weight = ms.Parameter(tensor(X), "w")
    for made in (nn.Optimizer(0.5, [weight]), nn.Optimizer(learning_rate=0.5, parameters=[weight])):
        assert made.parameters[0] is weight and made.get_lr() == 0.5
    for wrong in ({"parameters": [weight]}, {"learning_rate": 0.5}, {"params": 0.1, "learning_rate": 0.5}):
        with pytest.raises(ParallelLabError):
            nn.Optimizer(**wrong, **({"parameters": [weight]} if "params" in wrong else {}))


def test_a_sampler_says_which_samples_are_read():
    """As a list, or as an object that is iterated anew for every epoch."""

    class Backwards:
        def __iter__(self):
            return iter((3, 1))

    for sampler in ([3, 1], Backwards()):
        data = ms.dataset.NumpySlicesDataset(np.arange(5), ["x"], None, 1, None, sampler)
        assert data.get_dataset_size() == 2
        assert [[int(row[0]) for row in data] for _ in range(2)] == [[3, 1], [3, 1]]
    with pytest.raises(ParallelLabError, match="number of a sample"):
        list(ms.dataset.GeneratorDataset([1, 2], "x", sampler=[2]))
    for wrong in (
        {"sampler": [0], "shuffle": True},
        {"sampler": [0], "num_shards": 2, "shard_id": 0},
        {"sampler": 2.5},
    ):
        with pytest.raises(ParallelLabError):
            ms.dataset.GeneratorDataset([1, 2], "x", **wrong)


@each_of(("n", "expected"), (4, []), (2, [-7, -7]), (0, [-7] * 4))
def test_a_permutation_is_filled_up(n, expected):
    found = ops.Randperm(4, -7, ms.int32)(tensor(np.array([n], np.int32))).asnumpy()
    assert found.dtype == np.int32 and sorted(found[:n]) == list(range(n)) and found[n:].tolist() == expected


@each_of("call", ops.inverse, ops.MatrixInverse(), ops.MatrixDeterminant())
def test_matrices_of_half_floats_are_refused_in_words(call):
    with pytest.raises(ParallelLabError, match=r"matrices of dtype float16\. float32 or float64: cast them first"):
        call(tensor(np.eye(2, dtype=np.float16)))
