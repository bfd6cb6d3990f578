"""Functions made of operators against numpy: results, gradients, behind a split operator; what they refuse."""

from __future__ import annotations

from itertools import groupby, product

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, ops
from parallel_lab.graph.trace import trace_network
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.compiled import behind, results
from tests.ops.in_numpy import sigmoid
from tests.refusals import refused

X = np.random.default_rng(5).normal(size=(4, 6))
Y = np.random.default_rng(6).normal(size=(2, 6))
V, NUMBERS = np.array([0.5, -1.0, 2.0]), np.array([3, 0], np.int32)
CUBE = np.random.default_rng(7).normal(size=(2, 3, 4))
ROWS = np.sort(np.random.default_rng(8).normal(size=(4, 5)))
MATRIX = np.random.default_rng(9).normal(size=(4, 3, 3)) + 4 * np.eye(3)
S, O = np.random.default_rng(10).normal(size=(2, 4, 2, 6))
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
    "adjoint": (lambda x: ops.MatrixInverse(adjoint=True)(x), MATRIX, np.linalg.inv(MATRIX).swapaxes(1, 2)),
    "logdet": (lambda x: ops.logdet(x), MATRIX, np.log(np.linalg.det(MATRIX))),
    "slogdet": (lambda x: ops.slogdet(-x)[1], MATRIX, np.log(np.linalg.det(MATRIX))),
    **{
        f"matrix_power {n}": (lambda x, n=n: ops.matrix_power(x, n), MATRIX, np.linalg.matrix_power(MATRIX, n))
        for n in (-2, 0, 1, 5)
    },
    "moveaxis": (lambda x: ops.moveaxis(x, 0, -1), S, np.moveaxis(S, 0, -1)),
    "moveaxis of two": (lambda x: ops.movedim(x, (0, 1), (2, 0)), S, np.moveaxis(S, (0, 1), (2, 0))),
    "swapdims": (lambda x: ops.swapdims(x, 0, 2), S, np.swapaxes(S, 0, 2)),
    "ravel": (lambda x: ops.ravel(x), S, S.ravel()),
    "fliplr": (lambda x: ops.fliplr(x), S, np.fliplr(S)),
    "flipud": (lambda x: ops.flipud(x), S, np.flipud(S)),
    "hstack": (lambda x: ops.hstack([x, x]), S, np.hstack([S, S])),
    "vstack": (lambda x: ops.vstack((x, x)), S, np.vstack([S, S])),
    "dstack": (lambda x: ops.dstack((x, x)), S, np.dstack([S, S])),
    "column_stack": (lambda x: ops.column_stack((x, x)), S, np.column_stack([S, S])),
    "diff": (lambda x: ops.diff(x, 2), S, np.diff(S, 2)),
    "diff of rows": (lambda x: ops.diff(x, axis=0), S, np.diff(S, axis=0)),
    "softmin": (lambda x: ops.softmin(x, 1), S, np.exp(-S) / np.exp(-S).sum(1, keepdims=True)),
    "tanhshrink": (lambda x: ops.tanhshrink(x), S, S - np.tanh(S)),
    "glu": (lambda x: ops.glu(x), S, S[..., :3] * sigmoid(S[..., 3:])),
    "count_nonzero": (lambda x: ops.count_nonzero(x > 0, dim=1), S, np.count_nonzero(S > 0, axis=1)),
    "std_mean": (lambda x: ops.std_mean(x, 1, 1)[0], S, S.std(1, ddof=1)),
    "var_mean": (lambda x: ops.var_mean(x, 0)[0], S, S.var(0)),
    "mean of it": (lambda x: ops.var_mean(x, 0)[1], S, S.mean(0)),
    "cosine": (
        lambda x: ops.cosine_similarity(x, Tensor(O), dim=2),
        S,
        (S * O).sum(2) / np.linalg.norm(S, axis=2) / np.linalg.norm(O, axis=2),
    ),
    "normalize": (lambda x: ops.normalize(x, dim=-1), S, S / np.linalg.norm(S, axis=-1, keepdims=True)),
    "float_power": (lambda x: ops.float_power(x, 2), S, S**2),
    "view_as": (lambda x: ops.view_as(x, Tensor(np.ones((8, 6)))), S, S.reshape(8, 6)),
    "addbmm": (
        lambda x: ops.addbmm(x[:2, :, 0], x, ops.swapaxes(x, 1, 2), beta=2, alpha=0.5),
        S,
        2 * S[:2, :, 0] + (S @ S.swapaxes(1, 2)).sum(0) / 2,
    ),
    "addr": (lambda x: ops.addr(x[0], x[1, :, 0], x[0, 1]), S, S[0] + np.outer(S[1, :, 0], S[0, 1])),
    "tensordot": (lambda x: ops.tensordot(x, Tensor(O), ((0, 2), (0, 2))), S, np.tensordot(S, O, ((0, 2), (0, 2)))),
    "tensordot of last dims": (lambda x: ops.tensordot(x, Tensor(O[0].T), 1), S, np.tensordot(S, O[0].T, 1)),
    "trace": (lambda x: ops.trace(x[:, 1]), S, np.trace(S[:, 1])),
    "EuclideanNorm": (
        lambda x: ops.EuclideanNorm(keep_dims=True)(x, (0, 2)),
        S,
        np.sqrt((S**2).sum((0, 2), keepdims=True)),
    ),
    "Expand": (lambda x: ops.Expand()(x[:, :1], (-1, 3, -1)), S, np.broadcast_to(S[:, :1], (4, 3, 6))),
    "Swiglu": (lambda x: ops.Swiglu()(x, 1), S, S[:, :1] * sigmoid(S[:, :1]) * S[:, 1:]),
    "sum in float64": (lambda x: ops.sum(x, dim=0, dtype="float64"), S, S.sum(0)),
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


@pytest.mark.quick(24)
@pytest.mark.parametrize("name", CASES)
def test_values_are_numpys_and_gradients_finite_differences(name, rng):
    call, x, expected = CASES[name]
    p = Parameter(Tensor(x), "x")
    out = call(p)
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-12, atol=1e-12)
    if out.dtype.kind != "f":
        return
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


def after_neg(call, splits):
    """A function behind an operator with a strategy."""
    return cell(lambda net, x: call(net.neg(x)), neg=ops.Neg().shard((splits,)))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "name", [n for n in CASES if "masked" not in n and n not in ("diag of a vector", "diag above", "diag below")]
)
def test_behind_a_split_operator_they_are_those_of_one_device(name):
    call, x, expected = CASES[name]
    splits = (2, *(1 for _ in x.shape[1:])) if name != "diagonal, two dims of three" else (1, 1, 4)
    for found in results(after_neg(call, splits), -x, device_num=4):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:invalid value")  # logarithms of what is below 0
def test_a_sum_leaves_out_nan():
    expected = np.log(np.where(X > 0, X, 1)).sum(-1)
    np.testing.assert_allclose(ops.nansum(ops.log(Tensor(X)), -1).asnumpy(), expected, rtol=1e-12)


def test_matrices_and_counts():
    assert ops.t(S[0]).shape == (6, 2) and ops.t(S[0, 0]).shape == (6,) and ops.numel(Tensor(S)) == 48
    np.testing.assert_array_equal(ops.OneHotExt()(np.array([1, 0]), 3, 1, 0, -1), [[0, 1, 0], [1, 0, 0]])
    assert ops.TransposeExt()(S, 0, -1).shape == (6, 2, 4) and ops.ExpandAs()(S[:1], S).shape == S.shape


# ---- order, truth, different elements ----


def test_logic_takes_numbers_as_truth():
    a, b = np.array([0, 1, 0, 2]), np.array([0, 0, 3, 3])
    np.testing.assert_array_equal(ops.logical_and(a, b), [False, False, False, True])
    np.testing.assert_array_equal(ops.logical_or(a, b), [False, True, True, True])
    np.testing.assert_array_equal(ops.logical_xor(a, b), [False, True, True, False])
    np.testing.assert_array_equal(ops.logical_not(a), [True, False, True, False])


def test_the_earlier_of_equal_elements_comes_first():
    x = np.array([[3, 1, 3, 1, 2]], np.float32)
    top, where = ops.top_k(x, 3)
    assert (top.tolist(), where.tolist(), where.dtype) == ([[3, 3, 2]], [[0, 2, 4]], np.int32)
    assert ops.sort(x)[1].tolist() == [[1, 3, 4, 0, 2]] and ops.argsort(x, descending=True).tolist() == [
        [0, 2, 4, 1, 3]
    ]
    assert (ops.argmax(x).tolist(), ops.argmin(x).tolist()) == ([0], [1])
    p = Parameter(Tensor(x))
    assert gradients(ops.top_k(p, 3)[0], [p], np.ones((1, 3), np.float32))[0].tolist() == [[1, 0, 1, 0, 1]]


@each_of(("prim", "given"), (ops.TopK(), (3,)), (ops.Sort(descending=True), ()), ids=["top-k", "sort"])
def test_values_and_numbers_of_cut_rows_belong_together(prim, given):
    x = np.abs(np.random.default_rng(0).normal(size=(8, 6)))
    elements, numbers = results(behind(prim, ((4, 1),), *given), x)
    np.testing.assert_array_equal(elements, -np.sort(-x, axis=1)[:, : elements.shape[1]])
    np.testing.assert_array_equal(np.take_along_axis(x, numbers, 1), elements)


def test_unsigned_numbers_sort_downwards():
    x = np.array([0, 200, 7], np.uint8)
    assert np.asarray(ops.sort(x, descending=True)[0]).tolist() == [200, 7, 0]


def test_truth_of_numbers():
    x = np.array([[0.0, 3.0, -4.0], [1.0, 2.0, 2.0]])
    assert (ops.reduce_any(x, 1).tolist(), ops.reduce_all(x, 1).tolist()) == ([True, True], [False, True])
    assert ops.reduce_all(x).dtype == bool


def test_different_elements_come_in_the_order_of_their_first():
    values, numbers = ops.unique(np.array([5, 1, 5, 2, 1]))
    assert values.tolist() == [5, 1, 2] and numbers.tolist() == [0, 1, 0, 2, 1]
    values, numbers = ops.unique_with_pad(np.array([5, 1, 5]), 9)
    assert values.tolist() == [5, 1, 9] and numbers.tolist() == [0, 1, 0]


def look_up(table, rows):
    different, numbers = ops.unique(rows)
    return ops.gather(ops.gather(table, different, 0), numbers, 0)


def test_rows_looked_up_once_each_and_dealt_out_are_the_rows(rng):
    table, rows = rng.normal(size=(8, 4)), np.array([3, 1, 3, 7, 1, 1, 0, 3])
    (found,) = results(look_up, table, rows)
    np.testing.assert_array_equal(found, table[rows])


def test_products_grids_and_repeated_elements_are_numpys(rng):
    x, y = rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4))
    np.testing.assert_allclose(ops.inner(x, y), np.inner(x, y))
    np.testing.assert_allclose(ops.vecdot(x, x[:1]), (x * x[:1]).sum(-1))
    for indexing in ("xy", "ij"):
        found = ops.meshgrid(np.arange(3), np.arange(4), np.arange(2), indexing=indexing)
        wanted = np.meshgrid(np.arange(3), np.arange(4), np.arange(2), indexing=indexing)
        assert all((a == b).all() for a, b in zip(found, wanted, strict=True))
    assert ops.repeat_elements(np.array([[0, 1, 2]]), 2, 1).tolist() == [[0, 0, 1, 1, 2, 2]]


def test_vector_products_are_numpys_and_choose_the_first_dim_of_three(rng):
    x, y = rng.normal(size=(2, 4, 3, 3))
    np.testing.assert_allclose(ops.cross(x, y), np.cross(x, y, axis=1))
    np.testing.assert_allclose(ops.cross(x, y[:1], 2), np.cross(x, y[:1], axis=2))


def test_whole_channels_are_dropped_by_the_functions():
    kept = ops.dropout2d(np.ones((16, 8, 2, 3)), 0.5)
    assert (kept == kept[:, :, :1, :1]).all() and set(np.unique(kept)) == {0, 2}
    with pytest.raises(ShapeError, match="5 dims"):
        ops.dropout3d(np.ones((2, 2)))


def test_weighted_means_and_products_take_numbers_and_tensors():
    (start, end), weight = X[:2, :4], np.array([0.0, 0.5, 1.0, 2.0])
    np.testing.assert_allclose(ops.lerp(start, end, 0.25), 0.75 * start + 0.25 * end)
    np.testing.assert_allclose(ops.Lerp()(start, end, weight), (1 - weight) * start + weight * end)
    np.testing.assert_allclose(ops.addcmul(start, end, weight, 3), start + 3 * end * weight)
    np.testing.assert_allclose(ops.AddcdivExt()(start, end, end), start + 1)
    np.testing.assert_allclose(ops.AddExt()(start, end, 2), start + 2 * end)
    np.testing.assert_allclose(ops.SubExt()(start, end, 2), start - 2 * end)


def test_softmax_of_several_dims_adds_up_to_one_over_them_together():
    x = np.random.default_rng(2).normal(size=(3, 4, 5))
    np.testing.assert_allclose(ops.Softmax(axis=(0, 2))(x), np.exp(x) / np.exp(x).sum((0, 2), keepdims=True))


def test_bits_of_floats_are_refused_with_their_place_in_a_network():
    with pytest.raises(ShapeError, match=r"BitwiseAnd 'bitwise_and' \(test_functions.py:\d+\): .*Ints or bools"):
        trace_network(lambda x: x & 2, [("x", (4,), "float32")])


# ---- refusals ----


test_wrong_operands_are_refused = refused(
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


TEXTS = (
    np.random.default_rng(11).normal(size=(5, 3, 4)),
    np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]),
    np.array([1, 1, 0, 2, 2, 1]),
    np.array([5, 4, 2]),
)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("collapse", [True, False])
def test_ctc_is_the_sum_over_all_alignments(merge, collapse):
    def joined(classes):
        return [k for k, _ in groupby(classes)]

    def loss(x, labels):
        paths = np.array(list(product(range(4), repeat=len(x))))
        fits = [[k for k in (joined(p) if merge else p) if k != 3] == labels for p in paths.tolist()]
        logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
        return -np.log(np.exp(logs[np.arange(len(x)), paths[fits]].sum(-1)).sum())

    x, indices, values, steps = TEXTS
    options = {"preprocess_collapse_repeated": collapse, "ctc_merge_repeated": merge}
    texts = [(x[: steps[i], i], values[2 * i : 2 * i + 2].tolist()) for i in range(3)]
    texts = [(x, joined(labels) if collapse else labels) for x, labels in texts]
    given = Parameter(Tensor(x))
    found, slopes = ops.CTCLoss(**options)(given, indices, values, steps)
    np.testing.assert_allclose(found, [loss(*text) for text in texts], rtol=1e-10)
    direction = np.random.default_rng(12).normal(size=x.shape)
    sides = [
        [loss(y + sign * 1e-5 * direction[: len(y), i], labels) for sign in (1, -1)]
        for i, (y, labels) in enumerate(texts)
    ]
    np.testing.assert_allclose((slopes * direction).sum((0, 2)), np.subtract(*np.transpose(sides)) / 2e-5, rtol=1e-7)
    (gradient,) = gradients(found, [given], np.array([1.0, 2, 3]))
    np.testing.assert_allclose(gradient, np.asarray(slopes) * [[[1], [2], [3]]])


WRONG = {
    "t": (lambda: ops.t(S), r"t: a tensor of shape \(4, 2, 6\). At most 2 dims"),
    "moveaxis": (lambda: ops.moveaxis(S, (0, 1), 2), "As many dims in both"),
    "diff": (lambda: ops.diff(S, 6), "diff: n=6. An int from 0 to 5"),
    "stack": (lambda: ops.hstack(S), "hstack: tensors="),
    "axes": (lambda: ops.tensordot(S, O, ((0,), (0, 1))), r"tensordot: axes=.*An int from 0 to 3"),
    "odd": (lambda: ops.Swiglu()(S[..., :3]), "Swiglu: dim -1 of shape .*An even number"),
    "halves": (lambda: ops.glu(S[..., :3]), "A count that divides 3"),
    "condition": (lambda: ops.select(X, X, X), "Select: the condition is float64.*must be bools"),
    "mask": (lambda: ops.masked_fill(X, X, 0.0), "MaskedFill: the mask is float64"),
    "fill value": (lambda: ops.masked_fill(X, X > 0, X), "MaskedFill: value has shape"),
    "steps of a text": (
        lambda: ops.CTCLoss()(*TEXTS[:3], np.array([5, 4, 1])),
        "CTCLoss: .*1 steps of sample 2.*2 to 5",
    ),
    "blank": (lambda: ops.CTCLoss()(TEXTS[0], TEXTS[1], np.full(6, 3), TEXTS[3]), "CTCLoss: labels.*0 to 2 and"),
    "prelu": (lambda: ops.prelu(X, V), r"PReLU: weight has shape \(3,\).*\(6,\), one number per channel"),
    "top-k": (lambda: ops.top_k(X, 7), "TopK: k=7.*An int from 0 to 6"),
    "argmax of nothing": (lambda: ops.argmax(np.zeros((2, 0))), "A dim with elements"),
    "ddof": (lambda: ops.var(X, 0, ddof=4), "ddof=4.*below 4"),
    "bits": (lambda: ops.bitwise_and(X, 1), "BitwiseAnd: the operands are float64 and int64. Ints or bools"),
    "rounding": (lambda: ops.div(X, X, rounding_mode="up"), "div: rounding_mode='up'. One of None, 'floor', 'trunc'"),
    "bounds": (lambda: ops.hardtanh(X, min_val=1.0), "HardTanh: min_val=1.0 and max_val=1.0"),
    "celu": (lambda: ops.CeLU(0.0)(X), "CeLU: alpha=0.0. A number other than 0"),
    "softmax": (lambda: ops.Softmax(()), r"Softmax: axis=\(\)"),
    "arguments": (lambda: ops.DivMod()(X), r"DivMod: got 1 arguments. DivMod\(\)\(input, other, rounding_mode\)"),
    "rows": (lambda: ops.unique(X), "Unique: .*with elements"),
    "permutation": (lambda: ops.OPS["invert_permutation"](np.array([0, 2])), "Each number from 0 to 1 once"),
    "three": (lambda: ops.cross(np.ones((2, 2)), np.ones((2, 2))), "A dim with 3 elements"),
    "pairs": (lambda: ops.rotary_position_embedding(*[np.ones((2, 3))] * 3), "even"),
    "channels": (lambda: ops.relu_v2(np.ones((2, 2))), r"\(n, c, h, w\)"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_done_is_refused(how):
    call, words = WRONG[how]
    with pytest.raises(ShapeError, match=words):
        call()
