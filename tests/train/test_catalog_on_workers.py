"""Operators of the catalogue in a compiled network, on real workers, which load the catalogue themselves."""

import sys

import numpy as np
import pytest

import parallel_lab as pl

RANKS = 4
X = np.random.default_rng(1).uniform(-1, 1, (8, 8)).astype(np.float32)
Y = np.ones((8, 4), np.float32)

pytestmark = pytest.mark.timeout(60)


class Rare(pl.nn.Cell):
    """A product, and two operators of the catalogue with strategies."""

    def __init__(self, split):
        super().__init__()
        rng = np.random.default_rng(0)
        self.weight = pl.Parameter(rng.uniform(0.5, 1.5, (8, 4)).astype(np.float32), name="weight")
        self.matmul, self.add, self.lead = pl.ops.MatMul(), pl.ops.LogAddExp2(), pl.ops.CumProd()
        if split:
            self.matmul.shard(((2, 2), (2, 1)))
            self.add.shard(((4, 1), (4, 1)))
            self.lead.shard(((4, 1),))

    def construct(self, x):
        product = self.matmul(x, self.weight)
        return self.lead(self.add(product, product * product), 1)


def trained(devices, executor, pool=None):
    net = Rare(split=devices > 1)
    optimizer = pl.nn.SGD(net.trainable_params(), 1e-4)
    loss = pl.nn.MSELoss()
    plan = pl.compile(net, X, Y, loss=loss, optimizer=optimizer, device_num=devices, dataset_strategy="full_batch")
    plan = pl.Plan.from_dict(plan.to_dict())
    with pl.Session(plan, net, optimizer, executor=executor, pool=pool) as session:
        return session.train([(X, Y)], steps=3), session.parameters()["weight"]


def test_a_network_with_them_equals_one_device():
    with pl.WorkerPool(RANKS) as pool:  # of its own: the shared one may have loaded it
        losses, weight = trained(RANKS, "processes", pool)
        assert all(pool.run(lambda comm: "parallel_lab.catalog" in sys.modules))
    simulated, same_weight = trained(RANKS, "simulator")
    expected, expected_weight = trained(1, "simulator")
    assert losses == simulated and len(set(losses)) == 3
    np.testing.assert_array_equal(weight, same_weight)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(weight, expected_weight, rtol=1e-5, atol=2e-6)  # float32, of weights up to 1.5
