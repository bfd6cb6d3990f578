"""mindspore.mint.optim: PyTorch's formulas, written here with numpy in float64, at once and compiled for 2 ranks."""

from __future__ import annotations

import numpy as np
import pytest
from parallel_lab.mindspore.mint import optim

from parallel_lab import Simulator, Tensor, compile, nn, ops
from parallel_lab.nn import Parameter
from tests.crossed import each_of
from tests.nets import cell

START = np.array([0.5, -1.5, 2.0, 0.25])
GRADIENTS = np.array([[0.3, -0.2, 1.0, 0.0], [-0.1, 0.4, 0.5, 2.0], [0.2, 0.2, -3.0, 0.1]])
LR = 0.1


def adam(decay=0.0, b1=0.9, b2=0.999, eps=1e-8, decoupled=False, amsgrad=False, sign=1.0):
    p, m, v, top = START.copy(), 0.0, 0.0, 0.0
    for t, g in enumerate(sign * GRADIENTS, 1):
        if decoupled:
            p = p * (1 - LR * decay)
        else:
            g = g + decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        top = np.maximum(top, v)
        p = p - LR * (m / (1 - b1**t)) / (np.sqrt((top if amsgrad else v) / (1 - b2**t)) + eps)
    return p


def sgd(momentum=0.0, dampening=0.0, decay=0.0, nesterov=False, sign=1.0):
    p, v = START.copy(), None
    for g in sign * GRADIENTS:
        g = g + decay * p
        v = g if v is None or not momentum else momentum * v + (1 - dampening) * g
        p = p - LR * (g + momentum * v if nesterov else v)
    return p


RULES = {
    "adam": (lambda p: optim.Adam(p, LR), adam()),
    "adam, all": (
        lambda p: optim.Adam(p, lr=LR, betas=(0.8, 0.9), eps=0.01, weight_decay=0.1, amsgrad=True, maximize=True),
        adam(0.1, 0.8, 0.9, 0.01, amsgrad=True, sign=-1.0),
    ),
    "adamw": (lambda p: optim.AdamW(p, LR), adam(0.01, decoupled=True)),
    "adamw, all": (
        lambda p: optim.AdamW(p, LR, [0.7, 0.9], 1e-3, 0.2, True, maximize=True),
        adam(0.2, 0.7, 0.9, 1e-3, decoupled=True, amsgrad=True, sign=-1.0),
    ),
    "sgd": (lambda p: optim.SGD(p, LR), sgd()),
    "sgd, momentum": (lambda p: optim.SGD(p, LR, 0.9, 0.5, 0.1, maximize=True), sgd(0.9, 0.5, 0.1, sign=-1.0)),
    "sgd, nesterov": (lambda p: optim.SGD(p, LR, momentum=0.9, nesterov=True), sgd(0.9, nesterov=True)),
}


def weighted(w):
    return cell(lambda net, x: net.mul(net.w, x).sum(), w=w, mul=ops.Mul().shard(((2,), (2,))))


@pytest.mark.parametrize("name", RULES)
def test_steps_are_those_of_the_formula(name):
    """The name has "beta" in it: nn.Adam would not decay it, PyTorch does. Matrices had no state exp_avg_sq, which
    AdaFactor's have not either.
    """
    make, expected = RULES[name]
    w = Parameter(Tensor(START.astype(np.float32).reshape(2, 2)), "beta")
    optimizer = make([w])
    for g in GRADIENTS:
        optimizer([Tensor(g.astype(np.float32).reshape(2, 2))])
    np.testing.assert_allclose(w.asnumpy().reshape(-1), expected, rtol=2e-5)


@pytest.mark.parametrize("name", RULES)
def test_compiled_steps_on_two_ranks_are_the_same(name):
    make, expected = RULES[name]
    net = weighted(Parameter(Tensor(START.astype(np.float32)), "beta"))
    steps = nn.TrainOneStepCell(net, optimizer := make(net.trainable_params()))
    x = GRADIENTS[0].astype(np.float32)
    plan = compile(steps, x, device_num=2, dataset_strategy="full_batch")
    assert plan.value("beta").layout.splits == (2,)
    given = {"beta": START.astype(np.float32)}
    given |= {f"{s}.beta": np.zeros(4, np.float32) for s in optimizer.state_names}
    given |= {f"{s}:float32": np.float32(at) for s, at in optimizer.scalar_state().items()}
    sim = Simulator(plan, given | {"learning_rate:float32": np.float32(LR)})
    for g in GRADIENTS:
        sim.run_step(g.astype(np.float32))
    np.testing.assert_allclose(sim.full("beta"), expected, rtol=2e-5)


@each_of(
    ("make", "words"),
    (lambda p: optim.Adam(p, betas=(0.9,)), r"betas=\(0.9,\)"),
    (lambda p: optim.AdamW(p, betas=(0.9, 1.0)), "betas"),
    (lambda p: optim.Adam(p, lr=-1.0), "-1"),
    (lambda p: optim.SGD(p, 0.1, nesterov=True), "nesterov"),
    (lambda p: optim.AdamW(p, weight_decay=-0.1), "weight_decay=-0.1"),
    (lambda p: optim.Adam(p, learning_rate=0.1), "unexpected argument 'learning_rate'"),
    (lambda p: optim.SGD(p), "lr"),
)
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make([Parameter(Tensor([1.0]), "w")])


def test_groups_have_rates_and_decay_of_their_own():
    a, b = (Parameter(Tensor([1.0, 2.0]), name) for name in "ab")
    optimizer = optim.AdamW([{"params": [a], "lr": 0.0}, {"params": [b], "weight_decay": 0.0}], lr=0.5)
    optimizer([Tensor([1.0, 1.0])] * 2)
    np.testing.assert_array_equal(a.asnumpy(), [1.0, 2.0])
    np.testing.assert_allclose(b.asnumpy(), [0.5, 1.5], rtol=1e-6)  # the first step of Adam is lr long
