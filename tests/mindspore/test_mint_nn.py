"""mindspore.mint.nn's convolutions, pools and normalisations: values against numpy, layers against functions."""

from __future__ import annotations

import numpy as np
import pytest
from parallel_lab.mindspore.mint import nn as mint_nn
from parallel_lab.mindspore.mint.nn import functional

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import NotBuiltYet
from parallel_lab.mindspore import mint, ops
from tests.refusals import refused

X = np.random.default_rng(3).normal(size=(2, 4, 6, 6)).astype(np.float32)
W = np.random.default_rng(4).normal(size=(8, 4, 3, 3)).astype(np.float32)


def normalized(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def convolved(x, padding):
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    return np.einsum("nihwab,oiab->nohw", windows, W)


def grouped(x):
    return normalized(x.reshape(2, 2, 2, 6, 6), (2, 3, 4)).reshape(x.shape)


def transposed(x, weight):
    """Stride 2, padding 1 and output_padding 1: what each element adds, then a border of 1 away and one row more."""
    full = np.zeros((2, 8, 14, 14), np.float32)
    for i, j in np.ndindex(6, 6):
        full[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += np.einsum("nc,cokl->nokl", x[:, :, i, j], weight)
    return full[:, :, 1:13, 1:13]


def given_weight(layer, weight):
    layer.weight.set_data(ms.Tensor(weight))
    return layer


BLOCKS = X.reshape(2, 4, 3, 2, 3, 2)
ROWS, VOLUMES = X[:, :, 0], X.reshape(2, 2, 2, 6, 6)
UNDER = np.lib.stride_tricks.sliding_window_view
WIDE = UNDER(np.pad(ROWS, ((0, 0), (0, 0), (1, 1))), 3, 2)  # (n, c, 6, 3)
CUBES = UNDER(VOLUMES, (2, 3, 3), (2, 3, 4))
CASES = {
    "layer_norm": (lambda x: functional.layer_norm(x, (6, 6)), normalized(X, (2, 3))),
    "layer_norm with factors": (
        lambda x: functional.layer_norm(x, 6, ms.ops.full((6,), 2.0), ms.ops.ones((6,))),
        normalized(X, (3,)) * 2 + 1,
    ),
    "LayerNorm": (lambda x: mint_nn.LayerNorm([6, 6])(x), normalized(X, (2, 3))),
    "group_norm": (lambda x: functional.group_norm(x, 2), grouped(X)),
    "batch_norm": (
        lambda x: functional.batch_norm(x, ms.ops.ones((4,)), ms.ops.full((4,), 3.0)),
        (X - 1) / np.sqrt(3 + 1e-5),
    ),
    "conv2d": (lambda x: functional.conv2d(x, ms.Tensor(W), padding=1), convolved(X, (1, 1))),
    "conv2d, uneven": (lambda x: functional.conv2d(x, ms.Tensor(W), padding=(0, 1)), convolved(X, (0, 1))),
    "conv2d, same": (lambda x: functional.conv2d(x, ms.Tensor(W), padding="same"), convolved(X, (1, 1))),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), BLOCKS.max((3, 5))),
    "MaxPool2d": (lambda x: mint_nn.MaxPool2d(2)(x), BLOCKS.max((3, 5))),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 2), BLOCKS.mean((3, 5))),
    "AvgPool2d": (lambda x: mint_nn.AvgPool2d(2)(x), BLOCKS.mean((3, 5))),
    "conv1d": (
        lambda x: functional.conv1d(x[:, :, 0], ms.Tensor(W[:, :, 0]), stride=(2,), padding=1),
        np.einsum("nilk,oik->nol", WIDE[:, :, ::2], W[:, :, 0]),
    ),
    "conv3d": (
        lambda x: functional.conv3d(x.reshape(VOLUMES.shape), ms.Tensor(W.reshape(4, 2, 4, 3, 3)[:, :, :2])),
        np.einsum("nidhwabc,oiabc->nodhw", CUBES, W.reshape(4, 2, 4, 3, 3)[:, :, :2]),
    ),
    "Conv3d": (
        lambda x: given_weight(mint_nn.Conv3d(2, 4, (2, 3, 3), bias=False), W.reshape(4, 2, 4, 3, 3)[:, :, :2])(
            x.reshape(VOLUMES.shape)
        ),
        np.einsum("nidhwabc,oiabc->nodhw", CUBES, W.reshape(4, 2, 4, 3, 3)[:, :, :2]),
    ),
    "ConvTranspose2d": (
        lambda x: given_weight(mint_nn.ConvTranspose2d(4, 8, 3, 2, 1, 1, bias=False), W.reshape(4, 8, 3, 3))(x),
        transposed(X, W.reshape(4, 8, 3, 3)),
    ),
    "avg_pool1d": (
        lambda x: functional.avg_pool1d(x[:, :, 0], 3, 2, 1, count_include_pad=True),
        WIDE[:, :, ::2].mean(-1),
    ),
    "avg_pool3d": (
        lambda x: functional.avg_pool3d(x.reshape(VOLUMES.shape), (2, 3, 3), divisor_override=7),
        CUBES[:, :, :, ::3, ::3].sum((5, 6, 7)) / 7,
    ),
    "AvgPool3d": (lambda x: mint_nn.AvgPool3d((2, 3, 3), 1)(x.reshape(VOLUMES.shape)), CUBES.mean((5, 6, 7))),
    "adaptive_avg_pool1d": (
        lambda x: functional.adaptive_avg_pool1d(x[:, :, 0], 4),
        np.stack([ROWS[..., a:b].mean(-1) for a, b in ((0, 2), (1, 3), (3, 5), (4, 6))], -1),
    ),
    "adaptive_max_pool1d": (lambda x: functional.adaptive_max_pool1d(x[0, :, 0], 2), ROWS[0].reshape(4, 2, 3).max(-1)),
    "AdaptiveMaxPool1d": (lambda x: mint_nn.AdaptiveMaxPool1d(3)(x[:, :, 0]), ROWS.reshape(2, 4, 3, 2).max(-1)),
    "adaptive_max_pool2d": (lambda x: functional.adaptive_max_pool2d(x, 3), BLOCKS.max((3, 5))),
    "AdaptiveAvgPool3d": (
        lambda x: mint_nn.AdaptiveAvgPool3d((1, None, 4))(x.reshape(VOLUMES.shape)),
        np.stack(
            [VOLUMES[..., a:b].mean((2, -1), keepdims=True)[..., 0] for a, b in ((0, 2), (1, 3), (3, 5), (4, 6))], -1
        ),
    ),
    "SyncBatchNorm": (lambda x: mint_nn.SyncBatchNorm(4)(x), X / np.sqrt(1 + 1e-5)),
    "BatchNorm1d of its batch": (
        lambda x: mint_nn.BatchNorm1d(6, track_running_stats=False)(x[:, 0, 0]),
        normalized(X[:, 0, 0], (0,)),
    ),
    "rms_norm": (
        lambda x: functional.rms_norm(x, (6,), ms.ops.full((6,), 2.0), 0.5),
        2 * X / np.sqrt((X**2).mean(-1, keepdims=True) + 0.5),
    ),
    "Flatten": (lambda x: mint_nn.Flatten(2)(x), X.reshape(2, 4, 36)),
    "ZeroPad1d": (lambda x: mint_nn.ZeroPad1d((1, 2))(x[0]), np.pad(X[0], ((0, 0), (0, 0), (1, 2)))),
    "ZeroPad3d": (lambda x: mint_nn.ZeroPad3d(1)(x), np.pad(X, ((0, 0), (1, 1), (1, 1), (1, 1)))),
    "Unfold": (
        lambda x: mint_nn.Unfold((3, 2), stride=(3, 1))(x),
        UNDER(X, (3, 2), (2, 3))[:, :, ::3].transpose(0, 1, 4, 5, 2, 3).reshape(2, 24, 10),
    ),
    "Fold": (lambda x: mint_nn.Fold((6, 6), 2, stride=2)(functional.unfold(x, 2, stride=2)), X),
    "KLDivLoss": (lambda x: mint_nn.KLDivLoss("sum", True)(x, x / 2), (np.exp(X / 2) * (X / 2 - X)).sum()),
    "ELU": (lambda x: mint_nn.ELU(2.0)(x), np.where(X > 0, X, 2 * np.expm1(X))),
    "GELU": (lambda x: mint_nn.GELU("tanh")(x), X / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))),
    "linalg.inv": (lambda x: mint.linalg.inv(x[0, 0]), np.linalg.inv(X[0, 0])),
    "linalg.det": (lambda x: mint.linalg.det(x[0]), np.linalg.det(X[0])),
    "linalg.norm": (lambda x: mint.linalg.norm(x[0, 0], 1), np.linalg.norm(X[0, 0], 1)),
    "linalg.vector_norm": (
        lambda x: mint.linalg.vector_norm(x, 3, keepdim=True),
        (abs(X) ** 3).sum().reshape(1, 1, 1, 1) ** (1 / 3),
    ),
    "linalg.vector_norm along": (lambda x: mint.linalg.vector_norm(x, float("inf"), 1), abs(X).max(1)),
    "linalg.matrix_norm": (lambda x: mint.linalg.matrix_norm(x), np.linalg.norm(X, axis=(-2, -1))),
    "special": (lambda x: mint.special.round(mint.special.expm1(x), decimals=2), np.expm1(X).round(2)),
    "special.log_softmax": (lambda x: mint.special.log_softmax(x, 1), X - np.log(np.exp(X).sum(1, keepdims=True))),
    "bincount": (
        lambda x: mint.bincount(ms.Tensor([1, 3, 1]), weights=ms.Tensor([1.0, 2, 3]), minlength=5),
        [0, 4, 0, 2, 0],
    ),
    "softplus": (lambda x: functional.softplus(x, beta=2), np.log1p(np.exp(2 * X)) / 2),
    "softplus, low": (lambda x: functional.softplus(x, threshold=0.5), np.where(X > 0.5, X, np.log1p(np.exp(X)))),
    "Softplus": (lambda x: mint_nn.Softplus(3)(x), np.log1p(np.exp(3 * X)) / 3),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_and_layers_in_pytorchs_words(name):
    call, expected = CASES[name]
    np.testing.assert_allclose(call(ms.Tensor(X)).asnumpy(), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("padding", "expected"), [(1, (1, 1)), ((0, 1), (0, 1)), ("same", (1, 1))])
def test_a_convolution_layer_takes_pytorchs_padding(padding, expected):
    layer = mint_nn.Conv2d(4, 8, 3, padding=padding, bias=False)
    layer.weight.set_data(ms.Tensor(W))
    np.testing.assert_allclose(layer(ms.Tensor(X)).asnumpy(), convolved(X, expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "x"), [("1d", X[..., 0, 0]), ("2d", X), ("3d", X[..., None])])
def test_a_batch_norms_momentum_is_the_share_of_the_new_batch(name, x):
    layer = getattr(mint_nn, f"BatchNorm{name}")(4, momentum=0.25)
    layer.set_train()
    layer(ms.Tensor(x))
    means = x.mean(tuple(d for d in range(x.ndim) if d != 1))
    np.testing.assert_allclose(layer.moving_mean.asnumpy(), 0.25 * means, rtol=1e-4, atol=1e-6)


test_what_layers_do_not_have_is_refused = refused(
    (lambda: mint_nn.Conv3d(2, 2, 3, padding_mode="reflect"), NotBuiltYet, "Conv3d: padding_mode='reflect'.*'zeros'"),
    (lambda: mint_nn.SyncBatchNorm(4, process_group="g"), NotBuiltYet, "SyncBatchNorm: process_group='g'"),
    (lambda: mint_nn.ReLU6(inplace=True), NotBuiltYet, "inplace=True"),
    (lambda: mint_nn.GELU("erf"), ValueError, "GELU.*approximate='erf'.*'none'.*'tanh'"),
    (lambda: mint_nn.Linear(2, 2, 2, 2, 2, 2, 2), TypeError, "Linear"),
    (lambda: mint_nn.Unfold(), TypeError, "Unfold.*kernel_size"),
    (lambda: functional.rms_norm(ms.Tensor(X), (6,), ms.Tensor([1.0])), ValueError, r"rms_norm.*\(1,\).*\(6,\)"),
    (lambda: ms.Tensor(X).norm(1), NotBuiltYet, "norm: ord=1 of 4 dims"),
    (lambda: ms.Tensor(X[0, 0]).norm(2), NotBuiltYet, "norm: ord=2 of 2 dims"),
    (lambda: ops.norm(ms.Tensor(X[0, 0]), 2), NotBuiltYet, "norm: ord=2 of 2 dims.*'fro', 1.*dim=-1"),
    (lambda: mint.linalg.vector_norm(ms.Tensor(X), 2, (0, 1)), NotBuiltYet, r"vector_norm: dim=\(0, 1\)"),
    (lambda: functional.adaptive_avg_pool3d(ms.Tensor(X), 2), ValueError, r"adaptive_avg_pool3d.*\(n, c, d, h, w\)"),
)


HELD = ((0, 0), (0, 0))
FORMS = {
    "argmax": (lambda x: ops.argmax(x), X.argmax()),
    "argmax along": (lambda x: ops.argmax(x, 1, True), X.argmax(1)[:, None]),
    "argmin, 1.x": (lambda x: ops.argmin(x, axis=-1), X.argmin(-1)),
    "flatten": (lambda x: ops.flatten(x), X.reshape(2, -1)),
    "flatten, some": (lambda x: ops.flatten(x, start_dim=2), X.reshape(2, 4, -1)),
    "flatten by columns": (lambda x: ops.flatten(x, order="F"), X.T.reshape(6, -1)),
    "flatten, method": (lambda x: x.flatten(order="C", start_dim=2), X.reshape(2, 4, -1)),
    "flatten by columns, method": (lambda x: x.flatten("F"), X.reshape(-1, order="F")),
    "flatten a row": (lambda x: ops.flatten(x[0, 0, 0]), X[0, 0, 0]),
    "one_hot": (lambda x: ops.one_hot(ops.argmax(x, 1), 4), np.eye(4)[X.argmax(1)]),
    "tensor_add": (lambda x: ops.functional.tensor_add(x, x), 2 * X),
    "vectors": (lambda x: ops.matmul(x, x[0, 0, 0]), X @ X[0, 0, 0]),
    "method": (lambda x: x.logical_not().eq(False).type_as(x), np.ones_like(X)),
    "pad": (lambda x: ops.pad(x, (1, 0, 0, 2), value=3), np.pad(X, (*HELD, (0, 2), (1, 0)), constant_values=3)),
    "pad, a tensor": (lambda x: ops.pad(x, ms.Tensor([1, 0])), np.pad(X, (*HELD, (0, 0), (1, 0)))),
    "pad, 1.x": (lambda x: ops.pad(x, ((0, 0), (1, 0), (0, 2), (0, 0))), np.pad(X, ((0, 0), (1, 0), (0, 2), (0, 0)))),
    "pad, 1.x by name": (lambda x: ops.pad(x, paddings=((0, 0),) * 3 + ((1, 1),)), np.pad(X, (*HELD, (0, 0), (1, 1)))),
    "linspace between tensors": (
        lambda x: ops.linspace(ms.Tensor(0.0), ms.Tensor([1.0]), ms.Tensor(5)),
        np.linspace(0, 1, 5),
    ),
    "arange to a tensor": (lambda x: ops.arange(ms.Tensor(1), ms.Tensor(9), 3), np.arange(1, 9, 3)),
    "arange of a tensor": (lambda x: ops.arange(ms.Tensor(1.5)), np.float32([0, 1])),
    "norm of columns": (lambda x: ops.norm(x[0, 0], 1), np.linalg.norm(X[0, 0], 1)),
    "norm of rows": (lambda x: ops.norm(x, float("inf"), (2, 3), True), np.linalg.norm(X, np.inf, (2, 3), True)),
    "least norm": (lambda x: ops.norm(x, -1, dim=(-1, 1)), np.linalg.norm(X, -1, (-1, 1))),
    "norm of a vector": (lambda x: ops.norm(x[0, 0, 0], 3), np.linalg.norm(X[0, 0, 0], 3)),
    **{
        f"Tensor.norm {ord}": (lambda x, ord=ord: x[0, 0].norm(ord=ord), np.linalg.norm(X[0, 0], ord))
        for ord in (None, "fro", 1, -1, np.inf, -np.inf)
    },
    "expand_as": (lambda x: x[:1].expand_as(x), np.broadcast_to(X[:1], X.shape)),
}


@pytest.mark.parametrize("name", FORMS)
def test_functions_in_mindspores_form(name):
    call, expected = FORMS[name]
    np.testing.assert_allclose(call(ms.Tensor(X)).asnumpy(), expected, rtol=1e-5)
