"""Diagonals, orders, pieces added, windows, elements by value, square matrices: against numpy, gradients, ranks."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import Tensor, nn, ops
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from tests.crossed import each_of
from tests.ops.compiled import results

X = np.random.default_rng(5).normal(size=(4, 6))
Y = np.random.default_rng(6).normal(size=(2, 6))
V, NUMBERS = np.array([0.5, -1.0, 2.0]), np.array([3, 0], np.int32)
CUBE = np.random.default_rng(7).normal(size=(2, 3, 4))
ROWS = np.sort(np.random.default_rng(8).normal(size=(4, 5)))
MATRIX = np.random.default_rng(9).normal(size=(4, 3, 3)) + 4 * np.eye(3)
PLACES = np.array([0.0, 0.5, 2.0, 2.5, 4.0, 7.0])


def added(x, numbers, rows):
    x = x.copy()
    np.add.at(x, numbers, rows)
    return x


def put(x, places, values):
    x = x.copy()
    x[places] = values
    return x


def window(n, terms, steps):
    return sum(f * np.cos(2 * np.pi * k * np.arange(n) / steps) for k, f in enumerate(terms))


CASES = {
    "diagonal": (lambda x: ops.diagonal(x), X, X.diagonal()),
    "diagonal, two dims of three": (lambda x: ops.diagonal(x, -1, 2, 0), CUBE, np.diagonal(CUBE, -1, 2, 0)),
    "diag of a matrix": (lambda x: ops.diag(x, 2), X, np.diag(X, 2)),
    "diag of a vector": (lambda x: ops.diag(x), V, np.diag(V)),
    "diag above": (lambda x: ops.diag(x, 2), V, np.diag(V, 2)),
    "diag below": (lambda x: ops.diag(x, -1), V, np.diag(V, -1)),
    "block_diag": (lambda x: ops.block_diag(x, V), X, np.block([[X, np.zeros((4, 3))], [np.zeros((1, 6)), V[None]]])),
    "kron": (lambda x: ops.kron(x, V), X, np.kron(X, V)),
    "kron, more dims on the right": (lambda x: ops.kron(x, CUBE), X, np.kron(X, CUBE)),
    **{f"rot90 {k}": (lambda x, k=k: ops.rot90(x, k, (1, 0)), X, np.rot90(X, k, (1, 0))) for k in (-1, 0, 1, 2, 3)},
    "tensor_split": (lambda x: ops.tensor_split(x, 4, 1)[1], X, np.array_split(X, 4, 1)[1]),
    "tensor_split, last": (lambda x: ops.tensor_split(x, 4, 1)[3], X, np.array_split(X, 4, 1)[3]),
    "tensor_split at": (lambda x: ops.tensor_split(x, (1, -2), -1)[1], X, np.array_split(X, (1, -2), -1)[1]),
    "tensor_split, empty": (lambda x: ops.tensor_split(x, (3, 2))[1], X, np.array_split(X, (3, 2))[1]),
    "msort": (lambda x: ops.msort(x), X, np.sort(X, 0)),
    "index_put": (
        lambda x: ops.index_put(x, (Tensor([0, -1, 3]), Tensor([1])), 2.5),
        X,
        put(X, ([0, 3, 3], [1, 1, 1]), 2.5),
    ),
    "index_put, rows added": (
        lambda x: ops.index_put(x, (Tensor([[3, 0], [3, -3]]),), Y, True),
        X,
        added(X, np.array([[3, 0], [3, 1]]), np.broadcast_to(Y, (2, 2, 6))),
    ),
    "index_add": (lambda x: ops.index_add(x, NUMBERS, Y, 0), X, added(X, NUMBERS, Y)),
    "index_add, columns": (
        lambda x: ops.index_add(x, np.array([5, 5]), X[:, :2], 1),
        X,
        added(X.T, [5, 5], X[:, :2].T).T,
    ),
    "index_fill": (lambda x: ops.index_fill(x, -1, NUMBERS, 7.0), X, np.where(np.isin(range(6), NUMBERS), 7.0, X)),
    "trapz": (lambda x: ops.trapz(x, dx=0.5), X, (X[:, 1:] + X[:, :-1]).sum(1) / 4),
    "trapz at places": (lambda x: ops.trapz(x, PLACES), X, ((X[:, 1:] + X[:, :-1]) / 2 * np.diff(PLACES)).sum(1)),
    "trapz, first dim": (lambda x: ops.trapz(x, X, dim=0), X, ((X[1:] + X[:-1]) / 2 * np.diff(X, axis=0)).sum(0)),
    "dist": (lambda x: ops.dist(x, np.float64(2), 3), X, (np.abs(X - 2.0) ** 3).sum() ** (1 / 3)),
    "masked_select": (lambda x: ops.masked_select(x, X > 0.3), X, X[X > 0.3]),
    "masked_select, one row": (lambda x: ops.masked_select(x, X[0] > 0), X, X[:, X[0] > 0].ravel()),
    "inverse": (lambda x: ops.inverse(x), MATRIX, np.linalg.inv(MATRIX)),
    "adjoint": (lambda x: ops.MatrixInverse(adjoint=True)(x), MATRIX, np.linalg.inv(MATRIX).swapaxes(1, 2)),
    "det": (lambda x: ops.det(x), MATRIX, np.linalg.det(MATRIX)),
    "logdet": (lambda x: ops.logdet(x), MATRIX, np.log(np.linalg.det(MATRIX))),
    "slogdet": (lambda x: ops.slogdet(-x)[1], MATRIX, np.log(np.linalg.det(MATRIX))),
    **{
        f"matrix_power {n}": (lambda x, n=n: ops.matrix_power(x, n), MATRIX, np.linalg.matrix_power(MATRIX, n))
        for n in (-2, 0, 1, 5)
    },
}
INTS = {
    "searchsorted": (lambda: ops.searchsorted(V[[1, 0, 2]], X), np.searchsorted(V[[1, 0, 2]], X)),
    "searchsorted, right": (lambda: ops.searchsorted(np.array([1, 3, 3]), np.array([3.0, 0.0]), right=True), [3, 0]),
    "searchsorted, rows": (
        lambda: ops.searchsorted(ROWS, X[:, :3]),
        [np.searchsorted(*pair) for pair in zip(ROWS, X[:, :3], strict=True)],
    ),
    "bucketize": (lambda: ops.bucketize(X, np.array([-1.0, 0.0, 1.0])), np.digitize(X, [-1.0, 0.0, 1.0], True)),
    "nonzero": (lambda: ops.nonzero(X > 0), np.argwhere(X > 0)),
    "nonzero, apart": (lambda: ops.nonzero(X > 0, as_tuple=True)[1], np.nonzero(X > 0)[1]),
    "argwhere": (lambda: ops.argwhere(NUMBERS), [[0]]),
    "slogdet": (lambda: ops.slogdet(-MATRIX)[0], -np.ones(4)),
}


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", CASES)
def test_values_are_numpys_and_gradients_finite_differences(name, rng):
    call, x, expected = CASES[name]
    p = Parameter(Tensor(x), "x")
    out = call(p)
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-12, atol=1e-12)
    seed, way = rng.normal(size=out.shape), rng.normal(size=x.shape)
    found = (gradients(out, [p], seed)[0] * way).sum()
    up, down = (call(Tensor(x + step * way)).asnumpy() for step in (1e-6, -1e-6))
    assert found == pytest.approx(((up - down) / 2e-6 * seed).sum(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", INTS)
def test_numbers_are_numpys(name):
    call, expected = INTS[name]
    found = np.asarray(call())
    assert found.dtype == np.int64 or name == "slogdet"
    np.testing.assert_array_equal(found, expected)


def test_numbers_are_int32_where_asked_for():
    assert np.asarray(ops.searchsorted(V, X, out_int32=True)).dtype == np.int32


def test_numbers_that_are_not_finite_stay_in_their_place():
    np.testing.assert_array_equal(ops.diag(Tensor([np.inf, 1.0])).asnumpy(), [[np.inf, 0], [0, 1]])
    np.testing.assert_array_equal(ops.diag(Tensor([np.nan, 1.0]), 1).asnumpy(), np.diag([np.nan, 1], 1))
    for dtype, corner in (("float32", np.inf), ("int32", 2)):
        found = ops.matrix_power(Tensor(np.array([[corner, 1], [2, 3]], dtype)), 0).asnumpy()
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.eye(2))


@each_of(("periodic", "steps"), (True, 8), (False, 7))
def test_windows_have_their_formula(periodic, steps):
    np.testing.assert_allclose(np.asarray(ops.hann_window(8, periodic)), window(8, (0.5, -0.5), steps), atol=1e-7)
    expected = window(8, (0.42, -0.5, 0.08), steps)
    np.testing.assert_allclose(np.asarray(ops.blackman_window(8, periodic)), expected, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(ops.hann_window(1)), [1.0])


class Behind(nn.Cell):
    """A function behind an operator with a strategy."""

    def __init__(self, call, splits):
        super().__init__()
        self.call, self.neg = call, ops.Neg().shard((splits,))

    def construct(self, x):
        return self.call(self.neg(x))


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    "name", [n for n in CASES if "masked" not in n and n not in ("diag of a vector", "diag above", "diag below")]
)
def test_behind_a_split_operator_they_are_those_of_one_device(name):
    call, x, expected = CASES[name]
    splits = (2, *(1 for _ in x.shape[1:])) if name != "diagonal, two dims of three" else (1, 1, 4)
    for found in results(Behind(call, splits), -x, device_num=4):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@each_of(
    "call",
    lambda: ops.diag(np.ones((2, 2, 2))),
    lambda: ops.diag(V, 1.5),
    lambda: ops.diagonal(V),
    lambda: ops.diagonal(X, 0, 1, 1),
    lambda: ops.block_diag(),
    lambda: ops.block_diag(CUBE),
    lambda: ops.rot90(X, 1, (0, 0)),
    lambda: ops.rot90(X, 0.5, (0, 1)),
    lambda: ops.tensor_split(X, 0),
    lambda: ops.tensor_split(X, "2"),
    lambda: ops.searchsorted(ROWS, X[:2]),
    lambda: ops.bucketize(X, X),
    lambda: ops.index_add(X, X, Y, 0),
    lambda: ops.index_put(X, (), 1.0),
    lambda: ops.index_put(X, (NUMBERS, NUMBERS, NUMBERS), 1.0),
    lambda: ops.index_put(X, (NUMBERS, np.arange(3)), 1.0),
    lambda: ops.index_put(X, (V,), 1.0),
    lambda: ops.index_put(X, (NUMBERS,), Y[:, :4]),
    lambda: ops.inverse(X),
    lambda: ops.inverse(np.zeros((2, 2))),
    lambda: ops.matrix_power(MATRIX, 0.5),
    lambda: ops.matrix_power(V, 2),
    lambda: ops.hann_window(-1),
    lambda: ops.trapz(np.ones((0,))),
    lambda: ops.trapz(V, [1.0, 2.0]),
    lambda: ops.trapz(5),
    lambda: ops.index_fill(X, 0, NUMBERS, "a"),
    lambda: ops.masked_select(X, Y),
    lambda: ops.nonzero(1.0),
    lambda: ops.det(V),
)
def test_wrong_operands_are_refused(call):
    with pytest.raises(ParallelLabError):
        call()
