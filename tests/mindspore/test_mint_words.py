"""mindspore.mint in PyTorch's words: arguments by their names there, values of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from parallel_lab.mindspore.mint.nn import functional

from parallel_lab.mindspore import Tensor, mint
from tests.refusals import refused

N = np.arange(12, dtype=np.float32).reshape(3, 4) - 3.5
X, ROWS = Tensor(N), Tensor(np.array([2, 0]))
CASES = {
    "select": (lambda: mint.select(input=X, dim=1, index=-1), N[:, -1]),
    "permute": (lambda: mint.permute(input=X, dims=(1, 0)), N.T),
    "lerp": (lambda: mint.lerp(input=X, end=X * 3, weight=0.5), 2 * N),
    "mv": (lambda: mint.mv(input=X, vec=X[0]), N @ N[0]),
    "broadcast_to": (lambda: mint.broadcast_to(input=X, size=(2, -1, 4)), np.stack([N, N])),
    "expand_as": (lambda: mint.expand_as(input=X[0], other=X), np.stack([N[0]] * 3)),
    "take": (lambda: mint.take(input=X, index=ROWS), N.ravel()[[2, 0]]),
    "index_add": (
        lambda: mint.index_add(input=X, dim=0, index=ROWS, source=X[:2], alpha=2),
        N + 2 * N[[1, 0, 0]] * [[1], [0], [1]],
    ),
    "tensor_split": (lambda: mint.tensor_split(input=X, indices_or_sections=3, dim=1)[0], N[:, :2]),
    "empty": (lambda: mint.empty(2, 3).shape, (2, 3)),
    "empty of a tuple": (lambda: mint.empty((2, 3)).shape, (2, 3)),
    "empty_like": (lambda: mint.empty_like(input=X).shape, (3, 4)),
    "item": (lambda: mint.item(mint.max(input=X)), 7.5),
    "median": (lambda: mint.median(input=X), np.sort(N.ravel())[5]),
    "median along": (lambda: mint.median(input=X, dim=1, keepdim=True)[0], N[:, 1:2]),
    "median, its place": (lambda: mint.median(X, 0)[1], [1, 1, 1, 1]),
    "round": (lambda: mint.round(input=X * 0.11, decimals=1), np.round(N * np.float32(0.11), 1)),
    "unique": (lambda: mint.unique(mint.abs(input=X)), np.unique(np.abs(N))),
    "unique, counts": (lambda: mint.unique(mint.abs(X), return_counts=True)[1], [2, 2, 2, 2, 1, 1, 1, 1]),
    "unique, places": (
        lambda: mint.unique(mint.abs(X), return_inverse=True)[1],
        np.searchsorted(np.unique(np.abs(N)), np.abs(N)),
    ),
    "absolute": (lambda: mint.absolute(input=X), np.abs(N)),
    "subtract": (lambda: mint.subtract(input=X, other=X, alpha=3), -2 * N),
    "true_divide": (lambda: mint.true_divide(input=X, other=2), N / 2),
    "nonzero": (lambda: mint.nonzero(input=mint.clamp(X, 0, 1)), np.argwhere(N > 0)),
    "slogdet": (
        lambda: mint.slogdet(input=X[:, :3] + mint.eye(3) * 9)[1],
        np.linalg.slogdet(N[:, :3] + 9 * np.eye(3))[1],
    ),
    "pad": (
        lambda: functional.pad(input=X, pad=(1, 0), mode="constant", value=5),
        np.pad(N, ((0, 0), (1, 0)), constant_values=5),
    ),
    "dropout": (lambda: functional.dropout(input=X, p=0.5, training=False, inplace=False), N),
    "binary_cross_entropy": (
        lambda: functional.binary_cross_entropy(input=mint.sigmoid(X), target=mint.zeros_like(X), reduction="sum"),
        np.log1p(np.exp(N)).sum(),
    ),
    "avg_pool2d": (
        lambda: functional.avg_pool2d(X[None, None], kernel_size=(2, 2), ceil_mode=False, divisor_override=3),
        (N[0::2, 0::2] + N[0::2, 1::2])[:1] / 3 + (N[1:2, 0::2] + N[1:2, 1::2]) / 3,
    ),
    "max_pool2d": (
        lambda: functional.max_pool2d(X[None, None], kernel_size=2, dilation=1, ceil_mode=False),
        N[1:2, 1::2],
    ),
}


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", CASES)
def test_arguments_have_pytorchs_names_and_values_are_numpys(name):
    """mint.select was the choice by a condition, `ops.select`; most of the others did not know these names."""
    call, expected = CASES[name]
    found = call()
    found = found.asnumpy() if isinstance(found, Tensor) else np.asarray(found)
    np.testing.assert_allclose(found.reshape(np.shape(expected)), expected, rtol=1e-5, atol=1e-6)


test_what_is_wrong_or_not_there_is_refused = refused(
    lambda: mint.select(X, 2, 0),
    lambda: mint.select(X, 0, 3),
    lambda: mint.median(X, True),
    lambda: mint.median(X, 0, 1),
    lambda: mint.round(X, decimals=0.5),
    lambda: mint.unique(X, dim=2),
    lambda: functional.dropout(X, inplace=True),
    lambda: functional.max_pool2d(X[None, None], 2, return_indices=True),
    lambda: functional.avg_pool2d(X[None, None], 2, ceil_mode=3),
    lambda: functional.avg_pool2d(X[None, None], 2, divisor_override=0),
)
