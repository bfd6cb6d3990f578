"""reduce="prod": what every answerer gives, and the gradient of a product whose factors lie on several ranks."""

import numpy as np
import pytest

from parallel_lab import Tensor, compile, nn, ops
from parallel_lab.graph.passes import PASSES
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.communicator import Request, answer
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import Session

N = 4


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(N) as made:
        yield made


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (3, 8), (400, 300)])
def test_processes_multiply_in_rank_order(pool, dtype, shape):
    values = [np.asarray(np.random.default_rng(r).uniform(-2, 2, shape)).astype(dtype) for r in range(N)]
    expected = values[0].copy()
    for value in values[1:]:
        expected = np.asarray(expected * value)  # the contract: one member after the other
    group = tuple(range(N))
    assert answer([Request("all_reduce", group, v, reduce="prod") for v in values])[0].tobytes() == expected.tobytes()

    def program(comm, value):
        return comm.all_reduce(value, "prod"), comm.reduce(value, "prod", root=2)

    for rank, (everywhere, at_root) in enumerate(pool.run_each(program, [(v,) for v in values])):
        assert everywhere.tobytes() == expected.tobytes()
        assert at_root.tobytes() == expected.tobytes() if rank == 2 else at_root is None


def test_reduce_scatter_multiplies(pool):
    values = [np.arange(1.0, 9.0) + r for r in range(N)]
    whole = np.prod(values, axis=0)

    def program(comm, value):
        return comm.reduce_scatter(value, "prod")

    for rank, part in enumerate(pool.run_each(program, [(v,) for v in values])):
        np.testing.assert_array_equal(part, whole[2 * rank : 2 * rank + 2])


class Product(nn.Cell):
    """sum over columns of weight * (product of the column)."""

    def __init__(self, x, strategy, axis):
        super().__init__()
        self.x, self.axis = Parameter(Tensor(x), name="x"), axis
        self.prod = ops.ReduceProd().shard(strategy)

    def construct(self, weight):
        return ops.reduce_sum(ops.mul(self.prod(self.x, self.axis), weight))


def leave_one_out(x, axis):
    """Product of all other factors, by multiplying them."""
    moved = np.moveaxis(x, axis, 0)
    others = [np.prod(np.delete(moved, i, axis=0), axis=0) for i in range(len(moved))]
    return np.moveaxis(np.stack(others), 0, axis)


def factors():
    """Columns with no zero, one, two on one rank, two on two ranks."""
    x = np.random.default_rng(3).uniform(0.5, 1.5, (8, 4))
    x[2, 1] = 0
    x[4, 2] = x[5, 2] = 0
    x[0, 3] = x[7, 3] = 0
    return x


@pytest.mark.parametrize("strategy", [((1, 1),), ((2, 1),), ((4, 1),), ((2, 2),), ((1, 4),)])
def test_gradient_of_a_cut_product_is_right_where_factors_are_zero(strategy):
    x, weight = factors(), np.array([1.0, 2.0, 3.0, 4.0])
    net = Product(x, strategy, 0)
    plan = compile(net, weight, device_num=N, dataset_strategy="full_batch", passes=PASSES)
    simulator = Simulator(plan, {"x": x})
    assert float(simulator.run_step(weight)) == pytest.approx((x.prod(axis=0) * weight).sum(), rel=1e-12)
    got = simulator.full(dict(plan.gradients)["x"])
    np.testing.assert_allclose(got, leave_one_out(x, 0) * weight, rtol=1e-12)
    assert np.count_nonzero(got[:, 1]) == 1 and not got[:, 2:].any()


def test_a_cut_product_has_the_same_bits_on_processes(pool):
    x, weight = factors(), np.array([1.0, 2.0, 3.0, 4.0])
    net = Product(x, ((4, 1),), 0)
    plan = compile(net, weight, device_num=N, dataset_strategy="full_batch", passes=PASSES)
    results = []
    for executor in ("simulator", "processes"):
        with Session(plan, net, executor=executor, pool=pool if executor == "processes" else None) as session:
            losses = session.train([(weight,)], 1, phases=("forward", "backward"))
            results.append((losses, session.gradients()["x"].tobytes()))
    assert results[0] == results[1]


def test_the_plan_says_what_is_multiplied():
    plan = compile(Product(factors(), ((4, 1),), 0), np.ones(4), device_num=N, dataset_strategy="full_batch")
    messages = [i for i in plan.stages[0].program("forward") if i.kind == "all_reduce"]
    assert messages[0].attr("reduce") == "prod"
    assert "multiplies over dim 0, split 4 ways: each rank holds one of 4 factors" in messages[0].reason
