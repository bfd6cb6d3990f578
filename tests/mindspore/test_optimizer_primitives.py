"""Operators that take one step of an optimizer: against numpy, the optimizers of nn, and compiled on slices."""

import numpy as np
import pytest

from parallel_lab import nn, value_and_grad
from parallel_lab.graph.compiler import compile_program
from parallel_lab.mindspore import Parameter, Tensor, ops
from parallel_lab.mindspore._optimizer_primitives import NAMES
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import initial_values

P = ops.operations
W, A, B, G, C = np.random.default_rng(4).uniform(0.5, 1.5, size=(5, 3, 2))
G[0] -= 1.5
ROWS, AT = G[[0, 1, 0]] * [[1.0], [2.0], [3.0]], np.array([2, 0, 2])
SUMS = np.array([ROWS[1], 0 * ROWS[0], ROWS[0] + ROWS[2]])  # what the rows of the gradient add up to
sign, sqrt = np.sign, np.sqrt


def shrunk(x, by):
    return sign(x) * np.maximum(np.abs(x) - by, 0)


def adam(w, m, v, g, rate, lazy=None):
    m2, v2 = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - rate * m2 / (sqrt(v2) + 0.1), m2, v2


def ftrl(w, n, z, g, rate=0.1, l1=0.3, l2=0.2):
    n2 = n + g * g
    z2 = z + g - (sqrt(n2) - sqrt(n)) / rate * w
    return np.where(np.abs(z2) > l1, (sign(z2) * l1 - z2) / (sqrt(n2) / rate + 2 * l2), 0), n2, z2


def proximal_adagrad(w, n, g):
    return shrunk(w - 0.1 * g / sqrt(n + g * g), 0.3) / 1.02, n + g * g


def amsgrad(eps):
    m, v = 0.9 * A + 0.1 * G, 0.99 * B + 0.01 * G * G
    top = np.maximum(C, v)
    return W - RATE * m / (sqrt(top) + eps), m, v, top


def some_rows(new, old):
    met = SUMS.any(axis=1, keepdims=True)
    return tuple(np.where(met, a, b) for a, b in zip(new, old, strict=True))


POWERS = 0.9**2, 0.99**2
RATE = 0.1 * sqrt(1 - POWERS[1]) / (1 - POWERS[0])
NUMBERS = (*POWERS, 0.1, 0.9, 0.99, 0.1)
MEAN, MOVED, SQUARES, TOP = 0.9 * A + 0.1 * G, 0.9 * A + 2 * G, A + G * G, np.maximum(0.99 * B, abs(G))
SPREAD = 0.9 * A + 0.1 * G * G
CENTERED = 0.8 * C + 0.1 * G / sqrt(0.9 * B + 0.1 * G * G - MEAN * MEAN + 0.9)
RATIO = sqrt(B + 0.01) / sqrt(SPREAD + 0.01) * G
DOWN, TURN = 0.8 * B + 0.1 * G / sqrt(SPREAD + 0.01), sign(G) * sign(MEAN)
WIDE, NESTEROV = adam(W, A, B, G, 0.1), 0.9 * A - 0.1 * G
OLD, DECAYED = (W, A, B), G + 0.2 * W
# class, arguments, states behind var, what else is given (G: the gradient), the new values of var and its states
CASES = {
    "Adam": ((), (A, B), (*NUMBERS, G), adam(W, A, B, G, RATE)),
    "AdamWeightDecay": ((), (A, B), (0.1, 0.9, 0.99, 0.1, 0.3, G), (WIDE[0] - 0.03 * W, *WIDE[1:])),
    "ApplyAdamWithAmsgrad": ((0.9, 0.99, 0.1), (A, B, C), (*POWERS, 0.1, G), amsgrad(0.1)),
    "ApplyAdamWithAmsgradV2": ((), (A, B, C), (*NUMBERS, G), amsgrad(0.1)),
    "ApplyMomentum": ((True, False, 2.0), (A,), (0.1, G, 0.9), (W - 0.1 * (2 * G + 0.9 * MOVED), MOVED)),
    "ApplyKerasMomentum": ((), (A,), (0.1, G, 0.9), (W + NESTEROV, NESTEROV)),
    "ApplyAdagrad": ((), (A,), (0.1, G), (W - 0.1 * G / sqrt(SQUARES), SQUARES)),
    "ApplyAdagradV2": ((0.5, False), (A,), (0.1, G), (W - 0.1 * G / (sqrt(A) + 0.5), A)),
    "ApplyAdagradDA": (
        *((), (A, B), (G, 0.1, 0.2, 0.3, 4)),
        (-0.1 * shrunk(A + G, 0.8) / (0.12 + sqrt(B + G * G)), A + G, B + G * G),
    ),
    "ApplyAdadelta": (*((), (A, B), (0.1, 0.9, 0.01, G)), (W - 0.1 * RATIO, SPREAD, 0.9 * B + 0.1 * RATIO**2)),
    "ApplyAdaMax": ((), (A, B), (0.81, 0.1, 0.9, 0.99, 0.1, G), (W - 0.1 / 0.19 * MEAN / (TOP + 0.1), MEAN, TOP)),
    "ApplyAddSign": ((), (A,), (0.1, 2.0, 0.5, 0.9, G), (W - 0.1 * (2 + 0.5 * TURN) * G, MEAN)),
    "ApplyPowerSign": ((), (A,), (0.1, 2.0, 0.5, 0.9, G), (W - 0.1 * np.exp(TURN) * G, MEAN)),
    "ApplyGradientDescent": ((), (), (0.1, G), (W - 0.1 * G,)),
    "ApplyProximalGradientDescent": ((), (), (0.1, 3.0, 0.2, G), (shrunk(W - 0.1 * G, 0.3) / 1.02,)),
    "ApplyProximalAdagrad": ((), (A,), (0.1, 3.0, 0.2, G), proximal_adagrad(W, A, G)),
    "ApplyFtrl": ((), (A, B), (G, 0.1, 0.3, 0.2, -0.5), ftrl(W, A, B, G)),
    "ApplyRMSProp": ((), (A, B), (0.1, G, 0.9, 0.8, 0.01), (W - DOWN, SPREAD, DOWN)),
    "ApplyCenteredRMSProp": (
        *((), (A, B, C), (G, 0.1, 0.9, 0.8, 0.9)),
        (W - CENTERED, MEAN, 0.9 * B + 0.1 * G * G, CENTERED),
    ),
    "FusedSparseAdam": ((), (A, B), (*NUMBERS, ROWS, AT), adam(W, A, B, SUMS, RATE)),
    "FusedSparseLazyAdam": ((), (A, B), (*NUMBERS, ROWS, AT), some_rows(adam(W, A, B, SUMS, RATE), OLD)),
    "FusedSparseFtrl": ((0.1, 0.3, 0.2, -0.5), (A, B), (ROWS, AT), some_rows(ftrl(W, A, B, SUMS), OLD)),
    "FusedSparseProximalAdagrad": (
        *((), (A,), (0.1, 3.0, 0.2, ROWS, AT)),
        some_rows(proximal_adagrad(W, A, SUMS), (W, A)),
    ),
    "SparseApplyFtrl": ((0.1, 0.3, 0.2, -0.5), (A, B), (ROWS, AT), some_rows(ftrl(W, A, B, SUMS), OLD)),
    "SparseApplyProximalAdagrad": (
        *((), (A,), (0.1, 3.0, 0.2, ROWS, AT)),
        some_rows(proximal_adagrad(W, A, SUMS), (W, A)),
    ),
    "SparseApplyAdagradV2": (
        *((0.1, 0.5), (A,), (ROWS, AT)),
        some_rows((W - 0.1 * SUMS / (sqrt(A + SUMS**2) + 0.5), A + SUMS**2), (W, A)),
    ),
    "SparseApplyAdagrad": (
        *((0.1,), (A,), (ROWS, AT)),
        some_rows((W - 0.1 * SUMS / sqrt(A + SUMS**2), A + SUMS**2), (W, A)),
    ),
    "SGD of a first step": ((0.3, 0.2, True), "stat", 1.0, (W - 0.1 * 1.9 * DECAYED, DECAYED, 0 * W)),
    "SGD of a later step": (
        *((0.3, 0.2, False), "stat", 0.0),
        (W - 0.1 * (0.9 * A + 0.7 * DECAYED), 0.9 * A + 0.7 * DECAYED, 0 * W),
    ),
}


def parameters(*arrays):
    return [Parameter(Tensor(np.asarray(a, np.float64)), name=f"p{i}") for i, a in enumerate(arrays)]


@pytest.mark.parametrize("name", CASES)
def test_a_step_gives_its_parameters_what_the_formula_says(name):
    given, states, others, expected = CASES[name]
    operator = getattr(P, name.split()[0])(*given)
    if states == "stat":
        held = parameters(W, A, np.full_like(W, others))
        result = operator(held[0], Tensor(G), 0.1, held[1], Tensor(0.9), held[2])
    else:
        held = parameters(W, *states)
        result = operator(*held, *(Tensor(x) if isinstance(x, np.ndarray) else x for x in others))
    for one, value in zip(held, expected, strict=True):
        np.testing.assert_allclose(one.asnumpy(), value, rtol=1e-6, atol=1e-9)
    if "Fused" not in name:
        first = result[0] if isinstance(result, tuple) else result
        np.testing.assert_array_equal(first.asnumpy(), held[0].asnumpy())


def test_every_one_of_them_is_tested():
    tested = {name.split()[0] for name in CASES} | {"AdamNoUpdateParam", "LARSUpdate", "FusedWeightScaleApplyMomentum"}
    assert tested == set(NAMES)


def test_adam_without_its_parameter_says_what_to_add_to_it():
    m, v = parameters(A, B)
    change = P.AdamNoUpdateParam()(m, v, *NUMBERS, Tensor(G))
    for one, value in zip((change, m, v), adam(0 * W, A, B, G, RATE), strict=True):
        np.testing.assert_allclose(one.asnumpy(), value, rtol=1e-6)


def test_lars_and_the_fused_momentum():
    (w,) = parameters(W)
    scale = 0.01 * sqrt((W * W).sum()) / (sqrt((G * G).sum()) + 0.3 * sqrt((W * W).sum()) + 0.5)
    found = P.LARSUpdate(0.5, 0.01, False)(w, Tensor(G), Tensor((W * W).sum()), Tensor((G * G).sum()), 0.3, 0.1)
    np.testing.assert_allclose(found.asnumpy(), scale * (G + 0.3 * W), rtol=1e-6)
    w, a = parameters(W, A)
    P.FusedWeightScaleApplyMomentum()(0.2, 0.5, w, a, 0.1, Tensor(G), 0.9)
    np.testing.assert_allclose(w.asnumpy(), W - 0.1 * (0.9 * A + 0.5 * G + 0.2 * W), rtol=1e-6)


class ByHand(nn.Cell):
    """An optimizer's construct of a script's own."""

    def __init__(self, params):
        super().__init__(auto_prefix=False)
        self.params = nn.ParameterTuple(params)
        self.m, self.v = self.params.clone("m", "zeros"), self.params.clone("v", "zeros")
        self.opt = P.AdamWeightDecay()

    def construct(self, grads):
        for one in zip(self.params, self.m, self.v, grads, strict=True):
            self.opt(*one[:3], 0.1, 0.9, 0.999, 1e-6, 0.01, one[3])


def test_an_optimizer_of_such_operators_trains_slices_as_the_one_of_nn():
    x = np.random.default_rng(1).normal(size=(8, 3))
    found = []
    for by_hand in (True, False):
        w, product = Parameter(Tensor(W), name="w"), P.MatMul().shard(((2, 1), (1, 2)))
        gradient = value_and_grad(lambda x, w=w, product=product: (product(x, w) ** 2).mean(), None, [w])
        optimizer = ByHand([w]) if by_hand else nn.AdamWeightDecay([w], 0.1, weight_decay=0.01)

        def step(x, gradient=gradient, optimizer=optimizer):
            loss, grads = gradient(x)
            optimizer(grads)
            return loss

        made = compile_program(step, x, device_num=4, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
        simulator = Simulator(made.plan, initial_values(made.plan, made.parameters, None if by_hand else optimizer))
        for number in range(3):
            simulator.run_step(x, step=number)
        found.append(simulator.full("w"))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
