"""20 steps of training as MindSpore 2.10 ran them (`tests/recorded/train_*.npz`), and its recorded nets here."""

from pathlib import Path

import numpy as np
import pytest

from parallel_lab import nn
from parallel_lab.nn.tensor.autograd import value_and_grad
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.nets import cell
from tests.recorded import nets

RECORDED = Path(__file__).parents[1] / "recorded"


def dense3():
    """20-32-32-10."""
    parts = {"d1": nn.Dense(20, 32, activation="relu"), "d2": nn.Dense(32, 32, activation="relu")}
    return cell(lambda net, x: net.d3(net.d2(net.d1(x))), **parts, d3=nn.Dense(32, 10))


RUNS = {
    "quick_momentum": (lambda: nets.Quick(32, 16, 16), nn.MSELoss, lambda p: nn.Momentum(p, 0.2, 0.1)),
    "quick_sgd": (lambda: nets.Quick(32, 16, 16), nn.MSELoss, lambda p: nn.SGD(p, 0.1)),
    "dense3_ce_adam": (dense3, nn.CrossEntropyLoss, lambda p: nn.Adam(p, 0.01)),
}
# Largest difference over largest value: 50 float32 roundings (6e-8 each). Both sides sum the same numbers, in an order
# of their own that depends on # the BLAS; measured 6e-7 at most. Taking 1 - beta exactly where MindSpore rounds it is
# 1e-5 off.
BOUND = 3e-6


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    """(recorded, losses, gradients of step 0, final values) of one recorded training."""
    make_net, make_loss, make_optimizer = RUNS[request.param]
    with np.load(RECORDED / f"train_{request.param}.npz") as file:
        recorded = dict(file)
    net, loss = make_net(), make_loss()
    for name, parameter in net.parameters_dict().items():
        parameter.set_data(recorded[f"init_{name}"])
    optimizer = make_optimizer(net.trainable_params())
    step = value_and_grad(nn.WithLossCell(net, loss), None, optimizer.parameters)
    x, y = Tensor(recorded["x"]), Tensor(recorded["y"])
    losses, first = [], None
    for _ in range(20):
        value, grads = step(x, y)
        first = first or {p.name: g.asnumpy() for p, g in zip(optimizer.parameters, grads, strict=True)}
        losses.append(value.asnumpy())
        optimizer(grads)
    return recorded, np.array(losses), first, {name: p.asnumpy() for name, p in net.parameters_dict().items()}


def named(recorded, prefix):
    return {key.removeprefix(prefix): value for key, value in recorded.items() if key.startswith(prefix)}


def distance(ours, theirs):
    """Largest difference over largest value, per array."""
    return {name: float(np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()) for name in theirs}


def test_losses_are_the_recorded_ones(run):
    recorded, losses, _, _ = run
    assert losses.dtype == np.float32
    np.testing.assert_allclose(losses, recorded["loss"], rtol=2e-6)


def test_first_gradients_are_the_recorded_ones(run):
    recorded, _, first, _ = run
    assert max(distance(first, named(recorded, "grad_")).values()) < BOUND
    assert set(first) == set(named(recorded, "grad_"))


def test_parameters_end_where_the_recorded_ones_do(run):
    recorded, _, _, final = run
    assert max(distance(final, named(recorded, "final_")).values()) < BOUND
    assert set(final) == set(named(recorded, "final_"))


S = ((2, 4), (4, 1))


@each_of(
    ("make", "shape", "out"),
    (lambda: nets.Quick(32, 16, 16, S, ((2, 4),), S), (16, 32), (16, 16)),
    (lambda: nets.OpPar(True), (32, 1, 28, 28), (32, 10)),
    (lambda: nets.Chain([64, 32, 16], [((8, 1), (1, 1)), None]), (8, 64), (8, 16)),
    (lambda: nets.Mlp(12, 8, 4), (6, 12), (6, 4)),
    (lambda: nets.MegatronMlp(64, 256, 2, 4), (16, 64), (16, 64)),
    (
        lambda: nets.Layers(4, 16, ((4, 1), (1, 1)), stages=[0, 0, 1, 1], fusion=[0, 0, 1, 1], recompute=True),
        (8, 16),
        (8, 16),
    ),
    (lambda: nets.SharedWeight(16, ((1, 8), (8, 1)), ((8, 1), (1, 1))), (8, 16), (8, 16)),
    ids=["Quick", "OpPar", "Chain", "Mlp", "MegatronMlp", "Layers", "SharedWeight"],
)
def test_recorded_nets_run_and_have_gradients(make, shape, out, rng):
    net, loss = make(), nn.MSELoss()
    x, y = Tensor(rng.normal(size=shape).astype(np.float32)), Tensor(rng.normal(size=out).astype(np.float32))
    assert net(x).shape == out
    assert net(x).dtype == np.float32
    _, grads = value_and_grad(lambda x, y: loss(net(x), y), None, net.trainable_params())(x, y)
    assert [g.shape for g in grads] == [p.shape for p in net.trainable_params()]
    assert all(np.abs(g.asnumpy()).max() > 0 for g in grads)
