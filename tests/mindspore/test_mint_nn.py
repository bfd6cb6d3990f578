"""mindspore.mint.nn's convolutions, pools and normalisations: values against numpy, layers against functions."""

from __future__ import annotations

import numpy as np
import pytest
from parallel_lab.mindspore.mint import nn as mint_nn
from parallel_lab.mindspore.mint.nn import functional

import parallel_lab.mindspore as ms
from parallel_lab.mindspore import ops

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


BLOCKS = X.reshape(2, 4, 3, 2, 3, 2)
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


def test_a_batch_norms_momentum_is_the_share_of_the_new_batch():
    layer = mint_nn.BatchNorm2d(4, momentum=0.25)
    layer.set_train()
    layer(ms.Tensor(X))
    np.testing.assert_allclose(layer.moving_mean.asnumpy(), 0.25 * X.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)


HELD = ((0, 0), (0, 0))
FORMS = {
    "argmax": (lambda x: ops.argmax(x), X.argmax()),
    "argmax along": (lambda x: ops.argmax(x, 1, True), X.argmax(1)[:, None]),
    "argmin, 1.x": (lambda x: ops.argmin(x, axis=-1), X.argmin(-1)),
    "flatten": (lambda x: ops.flatten(x), X.reshape(2, -1)),
    "flatten, some": (lambda x: ops.flatten(x, start_dim=2), X.reshape(2, 4, -1)),
    "flatten by columns": (lambda x: ops.flatten(x, order="F"), X.T.reshape(6, -1)),
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
    "expand_as": (lambda x: x[:1].expand_as(x), np.broadcast_to(X[:1], X.shape)),
}


@pytest.mark.parametrize("name", FORMS)
def test_functions_in_mindspores_form(name):
    call, expected = FORMS[name]
    np.testing.assert_allclose(call(ms.Tensor(X)).asnumpy(), expected, rtol=1e-5)
