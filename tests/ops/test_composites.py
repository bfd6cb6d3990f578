"""Functions made of operators against numpy, at once and compiled; what they refuse."""

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, ops
from tests.ops.compiled import results

X = np.random.default_rng(5).normal(size=(4, 2, 6))
Y = np.random.default_rng(6).normal(size=(4, 2, 6))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {
    "moveaxis": (lambda x: ops.moveaxis(x, 0, -1), np.moveaxis(X, 0, -1)),
    "moveaxis of two": (lambda x: ops.movedim(x, (0, 1), (2, 0)), np.moveaxis(X, (0, 1), (2, 0))),
    "swapdims": (lambda x: ops.swapdims(x, 0, 2), np.swapaxes(X, 0, 2)),
    "ravel": (lambda x: ops.ravel(x), X.ravel()),
    "fliplr": (lambda x: ops.fliplr(x), np.fliplr(X)),
    "flipud": (lambda x: ops.flipud(x), np.flipud(X)),
    "hstack": (lambda x: ops.hstack([x, x]), np.hstack([X, X])),
    "vstack": (lambda x: ops.vstack((x, x)), np.vstack([X, X])),
    "dstack": (lambda x: ops.dstack((x, x)), np.dstack([X, X])),
    "column_stack": (lambda x: ops.column_stack((x, x)), np.column_stack([X, X])),
    "diff": (lambda x: ops.diff(x, 2), np.diff(X, 2)),
    "diff of rows": (lambda x: ops.diff(x, axis=0), np.diff(X, axis=0)),
    "softmin": (lambda x: ops.softmin(x, 1), np.exp(-X) / np.exp(-X).sum(1, keepdims=True)),
    "tanhshrink": (lambda x: ops.tanhshrink(x), X - np.tanh(X)),
    "glu": (lambda x: ops.glu(x), X[..., :3] * sigmoid(X[..., 3:])),
    "count_nonzero": (lambda x: ops.count_nonzero(x > 0, dim=1), np.count_nonzero(X > 0, axis=1)),
    "nansum": (lambda x: ops.nansum(ops.log(x), -1), np.nansum(np.log(np.where(X > 0, X, 1)), -1)),
    "std_mean": (lambda x: ops.std_mean(x, 1, 1)[0], X.std(1, ddof=1)),
    "var_mean": (lambda x: ops.var_mean(x, 0)[0], X.var(0)),
    "mean of it": (lambda x: ops.var_mean(x, 0)[1], X.mean(0)),
    "cosine": (
        lambda x: ops.cosine_similarity(x, Tensor(Y), dim=2),
        (X * Y).sum(2) / np.linalg.norm(X, axis=2) / np.linalg.norm(Y, axis=2),
    ),
    "normalize": (lambda x: ops.normalize(x, dim=-1), X / np.linalg.norm(X, axis=-1, keepdims=True)),
    "float_power": (lambda x: ops.float_power(x, 2), X**2),
    "view_as": (lambda x: ops.view_as(x, Tensor(np.ones((8, 6)))), X.reshape(8, 6)),
    "addbmm": (
        lambda x: ops.addbmm(x[:2, :, 0], x, ops.swapaxes(x, 1, 2), beta=2, alpha=0.5),
        2 * X[:2, :, 0] + (X @ X.swapaxes(1, 2)).sum(0) / 2,
    ),
    "addr": (lambda x: ops.addr(x[0], x[1, :, 0], x[0, 1]), X[0] + np.outer(X[1, :, 0], X[0, 1])),
    "tensordot": (lambda x: ops.tensordot(x, Tensor(Y), ((0, 2), (0, 2))), np.tensordot(X, Y, ((0, 2), (0, 2)))),
    "tensordot of last dims": (lambda x: ops.tensordot(x, Tensor(Y[0].T), 1), np.tensordot(X, Y[0].T, 1)),
    "trace": (lambda x: ops.trace(x[:, 1]), np.trace(X[:, 1])),
    "EuclideanNorm": (
        lambda x: ops.EuclideanNorm(keep_dims=True)(x, (0, 2)),
        np.sqrt((X**2).sum((0, 2), keepdims=True)),
    ),
    "Expand": (lambda x: ops.Expand()(x[:, :1], (-1, 3, -1)), np.broadcast_to(X[:, :1], (4, 3, 6))),
    "Swiglu": (lambda x: ops.Swiglu()(x, 1), X[:, :1] * sigmoid(X[:, :1]) * X[:, 1:]),
    "sum in float64": (lambda x: ops.sum(x, dim=0, dtype="float64"), X.sum(0)),
}


@pytest.mark.filterwarnings("ignore:invalid value")  # logarithms of what is below 0, which nansum leaves out
@pytest.mark.quick(8)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_numpys_at_once_and_compiled(name):
    function, expected = FUNCTIONS[name]
    np.testing.assert_allclose(np.asarray(function(Tensor(X))), expected, rtol=1e-12)
    np.testing.assert_allclose(*results(function, X, device_num=2), expected, rtol=1e-12)


def test_matrices_and_counts():
    assert ops.t(X[0]).shape == (6, 2) and ops.t(X[0, 0]).shape == (6,) and ops.numel(Tensor(X)) == 48
    np.testing.assert_array_equal(ops.OneHotExt()(np.array([1, 0]), 3, 1, 0, -1), [[0, 1, 0], [1, 0, 0]])
    assert ops.TransposeExt()(X, 0, -1).shape == (6, 2, 4) and ops.ExpandAs()(X[:1], X).shape == X.shape


WRONG = {
    "t": (lambda: ops.t(X), r"t: a tensor of shape \(4, 2, 6\). At most 2 dims"),
    "moveaxis": (lambda: ops.moveaxis(X, (0, 1), 2), "As many dims in both"),
    "diff": (lambda: ops.diff(X, 6), "diff: n=6. An int from 0 to 5"),
    "stack": (lambda: ops.hstack(X), "hstack: tensors="),
    "axes": (lambda: ops.tensordot(X, Y, ((0,), (0, 1))), r"tensordot: axes=.*An int from 0 to 3"),
    "odd": (lambda: ops.Swiglu()(X[..., :3]), "Swiglu: dim -1 of shape .*An even number"),
    "halves": (lambda: ops.glu(X[..., :3]), "A count that divides 3"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_done_is_refused(how):
    call, words = WRONG[how]
    with pytest.raises(ShapeError, match=words):
        call()


# ---- boxes and pictures ----


def test_boxes_are_encoded_as_mindspores_documents_show():
    """The example of mindspore.ops.BoundingBoxEncode: a box from 2 to 2 has the size 1."""
    anchor, truth = np.array([[2.0, 2, 2, 3]] * 2), np.array([[1.0, 2, 1, 4]] * 2)
    np.testing.assert_allclose(ops.BoundingBoxEncode()(anchor, truth), [[-1, 0.25, 0, np.log(1.5)]] * 2)
    scaled = ops.BoundingBoxEncode(means=(1.0, 0.25, 0.0, 0.0), stds=(2.0, 1.0, 1.0, 0.5))(anchor, truth)
    np.testing.assert_allclose(scaled, [[-1, 0, 0, 2 * np.log(1.5)]] * 2)


def test_overlap_of_boxes():
    """3 x 3 pixels and 2 x 2 that share 4, 1 and none."""
    anchors = np.array([[1.0, 1, 2, 2], [2, 2, 3, 3], [7, 7, 8, 8]])
    np.testing.assert_allclose(ops.IOU()(anchors, np.array([[0.0, 0, 2, 2]])), [[4 / 9, 1 / 12, 0]])
    np.testing.assert_allclose(ops.IOU("iof")(anchors, np.array([[0.0, 0, 2, 2]])), [[4 / 9, 1 / 9, 0]])


def test_pictures_of_another_size():
    x = np.arange(6.0).reshape(1, 1, 2, 3)
    grown = ops.ResizeNearestNeighbor((4, 6))(x)
    np.testing.assert_array_equal(grown, x.repeat(2, 2).repeat(2, 3))
    corners = ops.ResizeNearestNeighbor((3, 2), align_corners=True)(x)
    np.testing.assert_array_equal(corners[0, 0], [[0, 2], [3, 5], [3, 5]])
    with pytest.raises(ShapeError, match=r"ResizeNearestNeighbor: size \(4,\)"):
        ops.ResizeNearestNeighbor((4,))(x)
