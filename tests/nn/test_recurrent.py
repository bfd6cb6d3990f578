"""Recurrent cells and layers: formulas sample by sample, gradients by differences, training on 8 ranks."""

import numpy as np
import pytest

from parallel_lab import ShapeError, nn, ops
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.tensor import Tensor
from tests.nets import cell
from tests.nn.one_device import check_equals_one_device, messages
from tests.refusals import refused

N, L, COLUMNS, H = 8, 3, 2, 4
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, L, COLUMNS))
LENGTHS = np.array([3, 1, 2, 3, 1, 2, 3, 0])
LAYERS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
CELLS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def next_state(kind, layer, suffix, x, state):
    """One step of one sample, gate by gate.  x: (columns,), state: each (H,)."""
    value = {name: getattr(layer, name + suffix).asnumpy() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    gates = len(value["bias_ih"]) // H
    a = [value["weight_ih"][g * H : (g + 1) * H] @ x + value["bias_ih"][g * H : (g + 1) * H] for g in range(gates)]
    b = [
        value["weight_hh"][g * H : (g + 1) * H] @ state[0] + value["bias_hh"][g * H : (g + 1) * H] for g in range(gates)
    ]
    if kind == "rnn":
        return (np.tanh(a[0] + b[0]),)
    if kind == "gru":
        new = np.tanh(a[2] + sigmoid(a[0] + b[0]) * b[2])
        update = sigmoid(a[1] + b[1])
        return ((1 - update) * new + update * state[0],)
    memory = sigmoid(a[1] + b[1]) * state[1] + sigmoid(a[0] + b[0]) * np.tanh(a[2] + b[2])
    return sigmoid(a[3] + b[3]) * np.tanh(memory), memory


def sequences(kind, layer, x, begin, layers, ways, lengths):
    """Results (n, l, ways * H) and last states (layers * ways, n, H), sample by sample."""
    last = [np.zeros((layers * len(ways), len(x), H)) for _ in begin]
    for at in range(layers):
        out = np.zeros((len(x), x.shape[1], len(ways) * H))
        for w, way in enumerate(ways):
            for n in range(len(x)):
                state = [each[at * len(ways) + w, n] for each in begin]
                steps = range(lengths[n])
                for t in reversed(steps) if way else steps:
                    state = next_state(kind, layer, f"_l{at}{way}", x[n, t], state)
                    out[n, t, w * H : (w + 1) * H] = state[0]
                for each, value in zip(last, state, strict=True):
                    each[at * len(ways) + w, n] = value
        x = out
    return x, last


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("counted", [False, True], ids=["all steps", "lengths"])
def test_a_layer_is_the_formula_step_by_step(kind, counted):
    layer = LAYERS[kind](COLUMNS, H, num_layers=2, bidirectional=True, batch_first=True, dtype=np.float64)
    begin = [RNG.normal(size=(4, N, H)) for _ in range(layer.parts)]
    hx = tuple(map(Tensor, begin)) if kind == "lstm" else Tensor(begin[0])
    out, state = layer(Tensor(X), hx, Tensor(LENGTHS) if counted else None)
    lengths = LENGTHS if counted else np.full(N, L)
    wanted, last = sequences(kind, layer, X, begin, 2, ("", "_reverse"), lengths)
    np.testing.assert_allclose(out.asnumpy(), wanted, atol=1e-13)
    for found, want in zip(state if kind == "lstm" else (state,), last, strict=True):
        np.testing.assert_allclose(found.asnumpy(), want, atol=1e-13)


@pytest.mark.parametrize("kind", LAYERS)
def test_steps_come_first_by_default_and_states_begin_with_zeros(kind):
    layer = LAYERS[kind](COLUMNS, H, dtype=np.float64)
    out, _ = layer(Tensor(X.transpose(1, 0, 2)))
    zeros = [np.zeros((1, N, H))] * layer.parts
    wanted, _ = sequences(kind, layer, X, zeros, 1, ("",), np.full(N, L))
    np.testing.assert_allclose(out.asnumpy(), wanted.transpose(1, 0, 2), atol=1e-13)


@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_is_one_step(kind):
    cell = CELLS[kind](COLUMNS, H, dtype=np.float64)
    begin = [RNG.normal(size=(N, H)) for _ in range(cell.parts)]
    found = cell(Tensor(X[:, 0]), tuple(map(Tensor, begin)) if kind == "lstm" else Tensor(begin[0]))
    for n in range(N):
        wanted = next_state(kind, cell, "", X[n, 0], [each[n] for each in begin])
        for each, want in zip(found if kind == "lstm" else (found,), wanted, strict=True):
            np.testing.assert_allclose(each.asnumpy()[n], want, atol=1e-13)


def test_other_activations_and_no_biases():
    cell = nn.RNNCell(COLUMNS, H, has_bias=False, nonlinearity="relu", dtype=np.float64)
    assert [p.name for p in cell.get_parameters()] == ["weight_ih", "weight_hh"]
    h = RNG.normal(size=(N, H))
    sums = X[:, 0] @ cell.weight_ih.asnumpy().T + h @ cell.weight_hh.asnumpy().T
    np.testing.assert_allclose(cell(Tensor(X[:, 0]), Tensor(h)).asnumpy(), np.maximum(sums, 0), atol=1e-14)
    layer = nn.RNN(COLUMNS, H, 2, "relu", bidirectional=True)
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_ih_l0_reverse"]
    assert [p.name for p in layer.get_parameters()][:5] == names and layer.activation == "relu"


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_differences(kind):
    """Of all parameters, and of the input, along one random direction."""
    layer, step = LAYERS[kind](COLUMNS, H, bidirectional=True, batch_first=True, dtype=np.float64), 1e-6
    x = nn.Parameter(Tensor(X), name="x")
    asked = [x, *layer.get_parameters()]

    def loss():
        out, state = layer(x, None, Tensor(LENGTHS))
        return ops.reduce_sum(out * out) + ops.reduce_sum(ops.sin(state[-1]))

    start, ways = [p.asnumpy().copy() for p in asked], [RNG.normal(size=p.shape) for p in asked]
    along = sum((g * way).sum() for g, way in zip(gradients(loss(), asked), ways, strict=True))
    ends = []
    for sign in (1, -1):
        for p, values, way in zip(asked, start, ways, strict=True):
            p.set_data(Tensor(values + sign * step * way))
        ends.append(loss().item())
    assert along == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def classifier(kind):
    layer = LAYERS[kind](COLUMNS, H, num_layers=2, batch_first=True, dtype=np.float64)
    return cell(lambda net, x: net.head(net.layer(x)[0][:, -1]), layer=layer, head=nn.Dense(H, 3, dtype=np.float64))


@pytest.mark.parametrize("kind", ["lstm", *(pytest.param(k, marks=pytest.mark.exhaustive) for k in ("rnn", "gru"))])
def test_training_on_8_ranks_equals_one_device(kind):
    """The batch is split, and nothing moves before the loss."""
    given = X, RNG.normal(size=(N, 3))
    plan = check_equals_one_device(lambda: classifier(kind), nn.MSELoss(), given, lambda net: None)
    assert [i.kind for i in messages(plan)] == ["all_reduce"]


@pytest.mark.exhaustive
def test_products_may_be_split_by_hand():
    def shard(net):
        net.layer.matmul.shard(((2, 1), (4, 1)))

    check_equals_one_device(lambda: classifier("gru"), nn.MSELoss(), (X, RNG.normal(size=(N, 3))), shard)


test_other_forms_are_refused = refused(
    (lambda: nn.LSTM(2, 4)(Tensor(X[0])), ShapeError, r"LSTM.*x of shape \(3, 2\).*\(l, n, 2\)"),
    (lambda: nn.GRU(2, 4, batch_first=True)(Tensor(X[:, :, :1])), ShapeError, r"GRU.*\(8, 3, 1\).*\(n, l, 2\)"),
    (lambda: nn.LSTM(2, 4)(Tensor(X), Tensor(X)), ShapeError, r"LSTM.*hx of shapes.*\(h, c\).*\(1, 3, 4\)"),
    (lambda: nn.RNN(2, 4)(Tensor(X), None, Tensor([1, 2])), ShapeError, r"RNN.*seq_length.*\(3,\)"),
    (lambda: nn.GRUCell(3, 4)(Tensor(X[:, 0])), ShapeError, r"GRUCell.*x of shape \(8, 2\).*\(n, 3\)"),
)
