"""The quickstart's net (MatMul, ReLU, MatMul) under every legal triple of strategies: loss and gradients are those of
one device, training too.

On 8 ranks these are 20 x 10 x 20 = 4000 plans, which the exhaustive run takes all, the quick one a sample of. float64
and a bound of 1e-10: a missing or doubled addend is off by a tenth at least.
"""

import numpy as np
import pytest

from parallel_lab import Session, Tensor, compile, nn, value_and_grad
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.registry import OPS
from parallel_lab.run.simulator import Simulator
from tests.recorded.nets import Quick

INPUTS, HIDDEN, OUTPUTS, BATCH = 32, 16, 16, 16
BOUND = 1e-10


def strategies(op, shapes, devices):
    attrs = {"transpose_a": False, "transpose_b": False} if op == "matmul" else {}
    return legal_strategies(OPS[op], shapes, attrs, devices)


def first(devices):
    return strategies("matmul", ((BATCH, INPUTS), (INPUTS, HIDDEN)), devices)


def middle(devices):
    return strategies("relu", ((BATCH, HIDDEN),), devices)


def last(devices):
    return strategies("matmul", ((BATCH, HIDDEN), (HIDDEN, OUTPUTS)), devices)


def data(dtype):
    rng = np.random.default_rng(20)
    shapes = (INPUTS, HIDDEN), (HIDDEN, OUTPUTS), (BATCH, INPUTS), (BATCH, OUTPUTS)
    w, w2, x, y = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    return x, y, {"w": w, "w2": w2}


def make_net(values, *triple):
    net = Quick(INPUTS, HIDDEN, OUTPUTS, *triple)
    for p in net.trainable_params():
        p._initial, p._data = None, values[p.name]  # set_data would keep the declared float32
    return net


def formula(x, y, values):
    """Loss and gradients in plain numpy: mean((relu(x w) w2 - y)^2)."""
    product = x @ values["w"]
    hidden = np.maximum(product, 0)
    error = hidden @ values["w2"] - y
    g = 2 * error / error.size
    return (error**2).mean(), {"w": x.T @ ((g @ values["w2"].T) * (product > 0)), "w2": hidden.T @ g}


@pytest.mark.parametrize(("devices", "number"), [(8, 4000), (4, 600), (2, 48), (1, 1)])
def test_number_of_legal_triples(devices, number):
    """Powers a, b, c of 2 for m, k, n, a + b + c <= log2(devices): C(3 + 3, 3) = 20 on 8; ReLU's two free dims: 10."""
    assert len(first(devices)) * len(middle(devices)) * len(last(devices)) == number


def differences(devices, triple):
    """How far loss and gradients are from the formula, relative to the largest element: three numbers."""
    x, y, values = data(np.float64)
    loss, gradients = formula(x, y, values)
    net, settings = make_net(values, *triple), {"device_num": devices, "dataset_strategy": "full_batch"}
    plan = compile(net, x, y, loss=nn.MSELoss(), **settings)
    sim = Simulator(plan, values)
    pairs = [(sim.run_step(x, y), loss), *((sim.full(g), gradients[name]) for name, g in plan.gradients)]
    return [np.abs(got - want).max() / np.abs(want).max() for got, want in pairs]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("devices", "s1"), [(d, s) for d in (1, 2, 4, 8) for s in first(d)])
def test_every_triple_equals_one_device(devices, s1):
    found = [((s1, sr, s2), differences(devices, (s1, sr, s2))) for sr in middle(devices) for s2 in last(devices)]
    faults = [(triple, far) for triple, far in found if len(far) != 3 or not max(far) <= BOUND]
    assert not faults, f"{len(faults)} triples differ, first: {faults[0]}"


def sample(devices, count, seed):
    """Random triples in which every strategy of every operator appears at least once."""
    rng = np.random.default_rng(seed)
    pools = [first(devices), middle(devices), last(devices)]
    length = max(count, *map(len, pools))

    def column(pool):
        rounds = -(-length // len(pool))
        return [pool[i] for i in np.concatenate([rng.permutation(len(pool)) for _ in range(rounds)])[:length]]

    return list(zip(*map(column, pools), strict=True))


@pytest.mark.quick(12)
@pytest.mark.parametrize(
    ("devices", "triple"), [(d, t) for d in (1, 2, 4, 8) for t in sample(d, 40 if d > 1 else 1, seed=22)]
)
def test_sampled_triples_equal_one_device(devices, triple):
    far = differences(devices, triple)
    assert len(far) == 3 and max(far) <= BOUND


@pytest.mark.quick(3)
@pytest.mark.parametrize("triple", sample(8, 40, seed=21))
def test_float32_stays_within_the_rounding_bound(triple):
    """Sums of n products differ between orders by at most about 2 n eps times the sum of absolute values (Higham,
    Accuracy and Stability, 3.1).

    Here n is the longest chain of sums: 32 + 16 products forward, 16 rows backward.
    """
    x, y, values = data(np.float32)
    exact = {k: v.astype(np.float64) for k, v in values.items()}
    loss, gradients = formula(x.astype(np.float64), y.astype(np.float64), exact)
    plan = compile(make_net(values, *triple), x, y, loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch")
    sim = Simulator(plan, values)
    got = sim.run_step(x, y)
    assert got.dtype == np.float32
    bound = 2 * (INPUTS + HIDDEN + BATCH) * np.finfo(np.float32).eps
    # one condition number stands for the cancellation in error = prediction - label: the sums of absolute values over
    # the sums
    hidden = np.maximum(x @ values["w"], 0)
    swell = (np.abs(hidden) @ np.abs(values["w2"])).max() / np.sqrt(loss)
    assert abs(float(got) - loss) <= bound * swell * loss
    for name, g in plan.gradients:
        full = sim.full(g)
        assert full.dtype == np.float32
        assert np.abs(full - gradients[name]).max() <= bound * swell * np.abs(gradients[name]).max()


OPTIMIZERS = {
    "SGD": lambda p: nn.SGD(p, 0.1, momentum=0.5, weight_decay=0.01),
    "Momentum": lambda p: nn.Momentum(p, 0.2, 0.9),
    "Adam": lambda p: nn.Adam(p, 0.01),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.02),
}
TRIPLES = {
    "seed": (((2, 4), (4, 1)), ((2, 4),), ((2, 4), (4, 1))),
    "half": (((2, 2), (2, 1)), ((4, 1),), ((4, 1), (1, 1))),
    "columns_rows": (((1, 1), (1, 8)), ((1, 8),), ((1, 8), (8, 1))),
    "batch": (None, None, None),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("triple", TRIPLES)
def test_five_steps_of_training_equal_the_eager_ones(triple, optimizer):
    x, y, values = data(np.float64)
    alone = make_net({k: v.copy() for k, v in values.items()})
    rule = OPTIMIZERS[optimizer](alone.trainable_params())
    step = value_and_grad(nn.WithLossCell(alone, nn.MSELoss()), None, rule.parameters)
    losses = []
    for _ in range(5):
        loss, grads = step(Tensor(x), Tensor(y))
        losses.append(float(loss))
        rule(grads)
    assert losses[0] != losses[-1]

    net = make_net(values, *TRIPLES[triple])
    parallel_rule = OPTIMIZERS[optimizer](net.trainable_params())
    plan = compile(net, x, y, loss=nn.MSELoss(), optimizer=parallel_rule, device_num=8, dataset_strategy="full_batch")
    with Session(plan, net, parallel_rule) as session:
        got = session.train([(x, y)], steps=5)
        np.testing.assert_allclose(got, losses, rtol=BOUND)
        for name, value in session.parameters().items():
            np.testing.assert_allclose(value, alone.parameters_dict()[name].asnumpy(), rtol=BOUND, atol=BOUND)
        names = [(s.name, s.parameter, s.kind) for s in plan.states if s.parameter]
        for name, parameter, kind in names:
            state = session.values([name])[name]
            np.testing.assert_allclose(state, rule.states[parameter][kind], rtol=BOUND, atol=BOUND)
        assert len(names) == sum(len(s) for s in rule.states.values())
