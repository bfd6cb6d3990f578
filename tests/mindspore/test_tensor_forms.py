"""Methods of Tensors and small layers in MindSpore's form: rows of a call and numpy's value, or the documented one."""

import numpy as np
import pytest

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, CellError, ParallelLabError
from parallel_lab.mindspore import Parameter, Tensor, nn, ops

X = np.array([[-2.25, 0.5, 1.75], [4.0, -3.5, 0.25]], np.float32)
I = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
MASK = np.array([[True, False, True], [False, True, True]])
EXP = np.exp(X - X.max(1, keepdims=True))

METHODS = {
    "cumsum dtype": (lambda x, i: Tensor([[True, False, True]]).cumsum(1, dtype=ms.float32), np.float32([[1, 1, 2]])),
    "cumsum of all": (lambda x, i: i.cumsum(dtype=ms.float16), I.cumsum(dtype=np.float16)),
    "sum": (lambda x, i: i.sum(0, ms.float32, True), I.sum(0, keepdims=True, dtype=np.float32)),
    "sum initial": (lambda x, i: x.sum(axis=1, initial=3), X.sum(1) + 3),
    "sum as PyTorch": (lambda x, i: x.sum(0, True), X.sum(0, keepdims=True)),
    "sum by names": (lambda x, i: x.sum(dim=1, keepdim=True), X.sum(1, keepdims=True)),
    "prod": (lambda x, i: i.prod(1, True, ms.float32), I.prod(1, keepdims=True).astype(np.float32)),
    "mean": (lambda x, i: i.mean(1, True, dtype=ms.float16), I.mean(1, keepdims=True).astype(np.float16)),
    "max": (
        lambda x, i: x.max(1, True, initial=1.0, where=Tensor(MASK)),
        X.max(1, keepdims=True, initial=1, where=MASK),
    ),
    "min": (lambda x, i: x.min(initial=-9), np.float32(-9)),
    "round": (lambda x, i: x.round(decimals=1), X.round(1)),
    "softmax": (lambda x, i: x.softmax(1, dtype=ms.float64), (EXP / EXP.sum(1, keepdims=True)).astype(np.float64)),
    "norm": (lambda x, i: x.norm(2, 1, dtype=ms.float64), np.linalg.norm(X.astype(np.float64), axis=1)),
    "take clips": (lambda x, i: x.take(Tensor([0, 9]), 1, mode="clip"), X[:, [0, 2]]),
    "take wraps": (lambda x, i: x.take(Tensor([1, 7]), None, "wrap"), X.ravel()[[1, 1]]),
    "index_add": (
        lambda x, i: x.index_add(1, Tensor([2, 0, 2]), x, alpha=2),
        np.stack([X[:, 0] + 2 * X[:, 1], X[:, 1], X[:, 2] + 2 * X[:, 0] + 2 * X[:, 2]], 1),
    ),
    "inplace_update": (lambda x, i: x.inplace_update(x[:1] + 1, (1,)), np.stack([X[0], X[0] + 1])),
    "choose from lists": (lambda x, i: Tensor([1, 0]).choose([[1, 2], [3, 4]]), np.array([3, 2])),
    "trace": (lambda x, i: i.trace(1, 0, 1, ms.float32), np.float32(I.trace(1))),
    "sub alpha": (lambda x, i: x.sub(x, alpha=2), -X),
    "std": (lambda x, i: x.std(1, 1, True), X.std(1, ddof=1, keepdims=True)),
    "var correction": (lambda x, i: x.var(1, correction=1), X.var(1, ddof=1)),
    "ptp": (lambda x, i: x.ptp(1), np.ptp(X, 1)),
    "resize": (
        lambda x, i: x.resize((4, 2)),
        np.resize(np.concatenate([X.ravel(), [0, 0]]), (4, 2)).astype(np.float32),
    ),
    "choose": (lambda x, i: Tensor([0, 1, 7]).choose([Tensor([1, 2, 3]), Tensor([4, 5, 6])]), np.array([1, 5, 6])),
    "hsplit": (lambda x, i: x.hsplit(3)[1], X[:, 1:2]),
    "fill_diagonal": (lambda x, i: x.fill_diagonal(9.0), np.array([[9, 0.5, 1.75], [4, 9, 0.25]], np.float32)),
    "reshape_as": (lambda x, i: x.reshape_as(Tensor(np.zeros((3, 2)))), X.reshape(3, 2)),
    "nonzero": (lambda x, i: ops.nonzero(Tensor([[0, 1], [2, 0]]), as_tuple=True)[1], np.array([1, 0])),
    "nonzero as rows": (lambda x, i: Tensor([[0, 1], [2, 0]]).nonzero(), np.array([[0, 1], [1, 0]])),
    "argwhere": (lambda x, i: ops.argwhere(Tensor([0, 3])), np.array([[1]])),
}


@pytest.mark.parametrize("row", METHODS)
def test_methods_take_what_mindspore_takes(row):
    call, expected = METHODS[row]
    found = call(Tensor(X), Tensor(I))
    assert isinstance(found, Tensor) and found.dtype == np.asarray(expected).dtype and found.shape == np.shape(expected)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)


# ---- layers ----

ROW = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
CLASSES = Tensor([[0.8, 1.4], [0.5, 0.9], [1.2, 0.9]], ms.float32), Tensor([[1], [1], [0]], ms.int32)
LAYERS = {
    "Unflatten": (lambda: nn.Unflatten(1, (5, -1))(Tensor(np.zeros((4, 10, 3)))).shape, (4, 5, 2, 3)),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2)(Tensor(ROW)), [[[1, 4]]]),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3)(Tensor(ROW[0])), [[1, 3, 5]]),
    "ChannelShuffle": (
        lambda: nn.ChannelShuffle(2)(Tensor(np.arange(16).reshape(1, 4, 2, 2)))[0, :, 0, 0],
        [0, 8, 4, 12],
    ),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(3)(Tensor(np.zeros((1, 1, 12, 12)))).shape, (1, 9, 4, 4)),
    "FocalLoss": (
        lambda: nn.FocalLoss(weight=Tensor([1.0, 2.0]), gamma=2.0)(*CLASSES),
        0.12516622,
    ),  # MindSpore's example
    "RReLU": (lambda: nn.RReLU(0.25, 0.25)(Tensor([-2.0, 3.0])), [-0.5, 3]),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_small_layers(layer):
    call, expected = LAYERS[layer]
    np.testing.assert_allclose(np.asarray(call()), expected, rtol=1e-6)


def test_a_dict_of_cells_is_the_networks():
    cells = nn.CellDict({"a": nn.Dense(2, 3), "b": nn.ReLU()})
    assert list(cells.keys()) == ["a", "b"] == list(cells) and len(cells) == 2 and "a" in cells
    assert [p.name for p in cells.trainable_params()] == ["a.weight", "a.bias"]
    cells.update([["c", nn.Dense(3, 1)]])
    relu = cells.pop("b")
    assert isinstance(relu, nn.ReLU) and [name for name, _ in cells.items()] == ["a", "c"]
    x = Tensor(np.ones((1, 2), np.float32))
    for cell in cells.values():
        x = cell(x)
    assert x.shape == (1, 1) and list(nn.CellDict(cells)) == ["a", "c"]
    with pytest.raises(KeyError, match="One of"):
        cells["missing"]
    for junk in ("update", "a.b", "", 3):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            cells[junk] = nn.ReLU()
    with pytest.raises(CellError, match="is not called"):
        cells(x)
    with pytest.raises(ParallelLabError):
        nn.CellDict(3)
    cells.clear()
    assert not list(cells.trainable_params()) and len(cells) == 0


def test_adadelta_by_its_formula():
    rate, rho, eps, decay = 0.5, 0.8, 1e-3, 0.1
    w, s, u = np.array([1.0, -2.0]), 0.0, 0.0
    parameter = Parameter(Tensor(w), "w")
    optimizer = nn.Adadelta([parameter], rate, rho, eps, weight_decay=decay)
    for gradient in ([0.5, 1.0], [-1.0, 2.0]):
        g = np.array(gradient) + decay * w
        s = rho * s + (1 - rho) * g**2
        d = np.sqrt(u + eps) / np.sqrt(s + eps) * g
        u = rho * u + (1 - rho) * d**2
        w = w - rate * d
        optimizer((Tensor(np.array(gradient)),))
        np.testing.assert_allclose(parameter.asnumpy(), w, rtol=1e-12)
    np.testing.assert_allclose(optimizer.accum_update[0].asnumpy(), u, rtol=1e-12)


def test_what_the_device_does_is_done_when_a_call_returns():
    assert ms.runtime.synchronize() is None
