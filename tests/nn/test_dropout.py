"""Dropout: the mask's statistics, and that it is the same wherever it is computed."""

import numpy as np
import pytest

from parallel_lab import Session, ShapeError, compile, nn, ops, set_seed
from parallel_lab.nn.tensor.autograd import value_and_grad
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.processes.shm import close_all
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.nn.one_device import check_equals_one_device
from tests.refusals import refused

SHAPE = (256, 1024)


def mask(key=1, step=0, p=0.5, shape=SHAPE, **options):
    """True where an element is kept."""
    return ops.dropout_at(np.ones(shape, np.float32), np.int64(step), p=p, key=key, **options) != 0


def correlation(a, b):
    return np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1]


# 262144 draws: the mean of independent ones deviates by 0.5 / 512, a correlation by 1 / 512. Six times that is missed
# once in 10^9.
LIMIT = 6 / 512


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_p_is_dropped_and_the_others_are_scaled_to_keep_the_mean(p):
    out = ops.dropout_at(np.full(SHAPE, 2.0, np.float32), np.int64(3), p=p, key=5)
    assert abs((out == 0).mean() - p) < LIMIT
    np.testing.assert_allclose(np.unique(out), [0, 2 / (1 - p)], rtol=1e-6)


@pytest.mark.parametrize("shift", [(0, 1), (0, 2), (0, 32), (1, 0), (1, 1), (2, 3), (64, 0)])
def test_neighbours_are_independent(shift):
    kept = mask()
    rows, columns = shift
    assert abs(correlation(kept[rows:, columns:], kept[: 256 - rows, : 1024 - columns])) < 1.5 * LIMIT


@each_of("other", {"step": 1}, {"step": 2}, {"step": 1000}, {"key": 2}, {"key": 1 << 40}, {"key": (1 << 64) - 1})
def test_steps_and_keys_are_independent(other):
    kept, others = mask(), mask(**other)
    assert abs(correlation(kept, others)) < LIMIT
    for lag in (1, 7, 1024):  # also along the element number: no mask is another one moved along
        assert abs(correlation(kept.reshape(-1)[lag:], others.reshape(-1)[:-lag])) < LIMIT


def test_rows_columns_and_blocks_have_the_spread_of_independent_draws():
    kept = mask(p=0.5)
    for part in (kept.mean(0), kept.mean(1), kept.reshape(64, 4, 64, 16).mean((1, 3)).reshape(-1)):
        draws = kept.size / part.size
        expected = 0.25 / draws
        assert abs(part.var() / expected - 1) < 6 * np.sqrt(2 / part.size)


def test_bits_of_the_whole_mask_do_not_depend_on_how_it_is_cut():
    whole = mask(shape=(6, 8, 10), key=9)
    for i in range(2):
        for j in range(4):
            place = {"parts": (2, 4, 1), "offset": (3 * i, 2 * j, 0)}
            ones, options = np.ones((3, 2, 10), np.float32), {"p": 0.5, "key": 9, "dims": None}
            part = ops.OPS["dropout_at"].compute(ones, np.int64(0), **options, **place)
            np.testing.assert_array_equal(part != 0, whole[3 * i : 3 * i + 3, 2 * j : 2 * j + 2])


def test_dims_share_one_draw_over_the_rest():
    kept = mask(shape=(64, 32, 5, 3), dims=2)
    np.testing.assert_array_equal(kept.all((2, 3)), kept.any((2, 3)))
    assert 0.4 < kept.mean() < 0.6


def test_a_scalar_and_a_vector_are_dropped_too():
    assert ops.dropout_at(np.float32(1.0), np.int64(0), p=0.5, key=4).shape == ()
    assert 300 < mask(shape=(1000,)).sum() < 700


# ---- the layer ----


class Net(nn.Cell):
    """Two dropouts between dense layers, so that names matter."""

    def __init__(self, p=0.5):
        super().__init__()
        self.fc1, self.fc2 = nn.Dense(8, 16, dtype=np.float64), nn.Dense(16, 8, dtype=np.float64)
        self.drop1, self.drop2 = nn.Dropout(p=p), nn.Dropout(p=p)

    def construct(self, x):
        return self.fc2(self.drop2(self.drop1(self.fc1(x))))


X = np.random.default_rng(2).normal(size=(16, 8))
Y = np.random.default_rng(3).normal(size=(16, 8))


def test_outside_training_nothing_is_dropped():
    layer, x = nn.Dropout(p=0.9), Tensor(np.ones(SHAPE))
    assert layer(x) is x


def test_two_dropouts_of_one_network_differ_and_the_seed_changes_both():
    def masks():
        net = Net()
        net.set_train()
        x = Tensor(np.ones(SHAPE))
        return net.drop1(x).asnumpy(), net.drop2(x).asnumpy()

    first, second = masks()
    assert abs(correlation(first, second)) < LIMIT
    np.testing.assert_array_equal(masks()[0], first)
    set_seed(2)
    try:
        assert abs(correlation(masks()[0], first)) < LIMIT
    finally:
        set_seed(1)


def test_every_eager_call_is_a_step_of_its_own():
    layer, x = nn.Dropout(p=0.5), Tensor(np.ones(SHAPE))
    layer.set_train()
    first, second = layer(x).asnumpy(), layer(x).asnumpy()
    assert abs(correlation(first, second)) < LIMIT
    assert layer.calls == 2


def eager_losses(steps):
    """Losses of so many steps of SGD, one operator at a time."""
    net = Net()
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = value_and_grad(nn.WithLossCell(net, nn.MSELoss()), None, optimizer.parameters)
    losses = []
    for _ in range(steps):
        loss, grads = step(Tensor(X), Tensor(Y))
        optimizer(grads)
        losses.append(loss.item())
    return losses


STRATEGIES = {
    "batch": lambda net: [d.dropout.shard(((8, 1),)) for d in (net.drop1, net.drop2)],
    "columns": lambda net: [net.drop1.dropout.shard(((1, 8),)), net.drop2.dropout.shard(((1, 4),))],
    "both": lambda net: [net.drop1.dropout.shard(((2, 4),)), net.drop2.dropout.shard(((4, 2),))],
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", STRATEGIES)
def test_every_step_drops_the_same_elements_eagerly_on_one_device_and_under_strategies(how):
    net = Net()
    net.set_train()
    STRATEGIES[how](net)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    plan = compile(net, X, Y, loss=nn.MSELoss(), optimizer=optimizer, device_num=8, dataset_strategy="full_batch")
    with Session(plan, net, optimizer) as session:
        losses = session.train([(X, Y)], 4)
    np.testing.assert_allclose(losses, eager_losses(4), rtol=1e-10)
    check_equals_one_device(Net, nn.MSELoss(), (X, Y), STRATEGIES[how])


@pytest.mark.exhaustive
def test_processes_drop_the_same_elements():
    net = Net()
    net.set_train()
    STRATEGIES["both"](net)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    plan = compile(net, X, Y, loss=nn.MSELoss(), optimizer=optimizer, device_num=8, dataset_strategy="full_batch")
    losses = {}
    try:
        for executor in ("simulator", "processes"):
            with Session(plan, net, optimizer, executor=executor) as session:
                losses[executor] = session.train([(X, Y)], 3)
    finally:
        close_all()
    assert losses["processes"] == losses["simulator"]


class Twice(nn.Cell):
    """One dropout called twice."""

    def __init__(self):
        super().__init__()
        self.drop, self.mul, self.sum = nn.Dropout(p=0.5), ops.Mul(), ops.ReduceSum()
        self.w = nn.Parameter(np.ones((), np.float32), name="w")

    def construct(self, x):
        return self.sum(self.mul(self.drop(x), self.drop(x))) * self.w


def test_two_calls_of_one_dropout_in_a_step_differ():
    net, x = Twice(), np.ones(SHAPE, np.float32)
    net.set_train()
    plan = compile(net, x, device_num=8, dataset_strategy="full_batch")
    with Session(plan, net) as session:
        kept = session.outputs(x)[0] / 4 / x.size  # both kept: each element is 2 * 2
    assert abs(kept - 0.25) < LIMIT


def test_channel_dropout_drops_whole_channels():
    layer, x = nn.Dropout2d(p=0.5), Tensor(np.ones((64, 32, 3, 3)))
    layer.set_train()
    kept = layer(x).asnumpy() != 0
    np.testing.assert_array_equal(kept.all((2, 3)), kept.any((2, 3)))
    assert 0.4 < kept.mean() < 0.6


def test_the_functional_form_needs_a_step_outside_a_network():
    x = np.ones(SHAPE, np.float32)
    a, b = ops.dropout(x, 0.5, seed=3, step=0), ops.dropout(x, 0.5, seed=3, step=1)
    assert abs(correlation(a, b)) < LIMIT
    assert ops.dropout(x, 0.5, training=False) is x
    with pytest.raises(ShapeError, match=r"no step is given.*nn\.Dropout counts"):
        ops.dropout(x, 0.5)


test_what_dropout_refuses = refused(
    (lambda: nn.Dropout(keep_prob=0), ValueError, "keep_prob=0.*above 0"),
    (lambda: nn.Dropout(0.5, 0.5), ValueError, "One of the two"),
    (lambda: ops.dropout_at(X, 0.5, p=0.1, key=1), ShapeError, "step is float"),
    (lambda: ops.dropout_at(np.arange(3), 0, p=0.1, key=1), ShapeError, "x is int64"),
    (lambda: nn.Dropout2d(p=0.5).set_train()(Tensor(X)), ShapeError, r"an input of shape \(16, 8\). 4 dims"),
)


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("channels", [False, True])
def test_in_data_parallel_mode_every_rank_has_the_mask_of_its_own_rows(devices, channels, rng):
    """All ranks had the mask of the first rows, so that training was not that of one device."""
    x = rng.normal(size=(16, 3, 5))

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout1d(p=0.4) if channels else nn.Dropout(p=0.4)

        def construct(self, x):
            return self.dropout(x)

    whole, net = Net(), Net()
    whole.set_train(), net.set_train()
    part = 16 // devices
    plan = compile(net, x[:part], device_num=devices, parallel_mode="data_parallel")
    sim = Simulator(plan, {})
    sim.run_step(x)
    got = [sim.value(plan.outputs[0], rank) for rank in range(devices)]
    np.testing.assert_array_equal(np.concatenate(got), whole(Tensor(x)).asnumpy())
