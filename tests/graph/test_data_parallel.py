"""data_parallel mode: every rank runs the whole network on its own rows, and only gradients travel."""

import contextlib

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, compile, nn, ops, value_and_grad
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import Session
from tests.crossed import each_of
from tests.nets import cell

RANKS, ROWS = 4, 6


@contextlib.contextmanager
def session_on(executor, plan, net, optimizer):
    """A session whose workers end with it."""
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(WorkerPool(plan.device_num)) if executor == "processes" else None
        yield stack.enter_context(Session(plan, net, optimizer, executor=executor, pool=pool))


class Net(nn.Cell):
    def __init__(self, sync=False, cross_batch=False):
        super().__init__()
        rng = np.random.default_rng(0)
        self.w = Parameter(Tensor(rng.normal(size=(5, 3))), name="w")
        self.matmul = ops.MatMul().shard(((1, 1), (1, 1)))
        self.mean = ops.ReduceMean(keep_dims=True)
        self.sub = ops.Sub()
        if sync:
            self.mean.add_prim_attr("sync", True)

    def construct(self, x):
        """Centred over the batch: looks across samples, as batch norm does."""
        y = self.matmul(x, self.w)
        return self.sub(y, self.mean(y, 0))


def batch(rng):
    return rng.normal(size=(RANKS * ROWS, 5)) + np.arange(RANKS * ROWS)[:, None], rng.normal(size=(RANKS * ROWS, 3))


def compiled(net, x=np.zeros((ROWS, 5)), y=np.zeros((ROWS, 3)), **settings):  # noqa: B008
    return compile(net, x, y, loss=nn.MSELoss(), device_num=RANKS, parallel_mode="data_parallel", **settings)


def expected(x, y, w, parts):
    """Loss and gradient per part in numpy: loss = mean((xw - mean(xw) - y)^2)."""
    losses, grads = [], []
    for xs, ys in zip(np.split(x, parts), np.split(y, parts), strict=True):
        centred = xs - xs.mean(axis=0)
        rest = centred @ w - ys
        losses.append((rest**2).mean())
        grads.append(2 * centred.T @ rest / rest.size)
    return losses, grads


@pytest.mark.parametrize("mean", [False, True])
def test_each_rank_has_its_own_loss_and_all_have_the_sum_of_gradients(rng, mean):
    net, (x, y) = Net(), batch(rng)
    plan = compiled(net, gradients_mean=mean)
    assert [i.kind for _, i in plan.instructions() if i.is_communication] == ["all_reduce"]
    sim = Simulator(plan, {"w": net.w.asnumpy()})
    sim.run_step(x, y)
    losses, grads = expected(x, y, net.w.asnumpy(), RANKS)
    assert [float(sim.value(plan.outputs[0], r)) for r in range(RANKS)] == pytest.approx(losses, rel=1e-12)
    np.testing.assert_allclose(sim.full(dict(plan.gradients)["w"]), sum(grads) / (RANKS if mean else 1), rtol=1e-12)


def test_what_looks_across_samples_differs_from_one_device_unless_it_is_synchronised(rng):
    x, y = batch(rng)
    net, synced = Net(), Net(sync=True)
    whole_loss, whole_grad = (v[0] for v in expected(x, y, net.w.asnumpy(), 1))
    for one, equal in ((net, False), (synced, True)):
        plan = compiled(one, gradients_mean=True)
        sim = Simulator(plan, {"w": one.w.asnumpy()})
        sim.run_step(x, y)
        got = np.mean([sim.value(plan.outputs[0], r) for r in range(RANKS)])
        assert (abs(got - whole_loss) < 1e-10) == equal
        assert np.allclose(sim.full(dict(plan.gradients)["w"]), whole_grad, rtol=1e-10) == equal


def test_strategies_are_ignored_and_noted(rng):
    net = Net()
    net.matmul.shard(((2, 1), (1, 1)))
    plan = compiled(net)
    assert all(n.strategy is None for n in plan.graph.nodes)
    assert dict(plan.notes)["strategies"] == "none in data_parallel mode; 1 given ones ignored"


def test_a_strategy_of_an_operator_made_of_several_is_ignored_too():
    """It was checked: 8 slices of the 4 rows of a rank were refused."""
    norm = nn.BatchNorm2d(3)
    norm.bn_train.shard(((8, 1, 1, 1), (1,), (1,), (1,), (1,)))
    for mode in ("data_parallel", "hybrid_parallel", "stand_alone"):
        plan = compile(norm.set_train(), np.ones((4, 3, 2, 2), np.float32), device_num=8, parallel_mode=mode)
        assert all(n.strategy is None or mode == "stand_alone" for n in plan.graph.nodes)


def test_plan_round_trip_and_training_on_processes_equals_the_simulator(rng):
    x, y = (a.astype(np.float32) for a in batch(rng))
    net = Net(sync=True)
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    plan = compiled(net, x[:ROWS], y[:ROWS], optimizer=optimizer)
    assert type(plan).from_dict(plan.to_dict()) == plan
    found = []
    for executor in ("simulator", "processes"):
        with session_on(executor, plan, net, optimizer) as session:
            found.append((session.train([(x, y)], 5), session.parameters()["w"]))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


# ---- cross_batch: a reduction in semi_auto_parallel that is left as data parallel has it ----


def reduced(reduction, strategy, cross_batch):
    w = Parameter(Tensor(np.random.default_rng(0).normal(size=(5,))), name="w")
    parts = {"w": w, "mul": ops.Mul().shard((strategy, (strategy[1],)))}
    parts["reduction"] = reduction.shard((strategy,)).add_prim_attr("cross_batch", cross_batch)
    return cell(lambda net, x: net.reduction(net.mul(x, net.w)), **parts)


@each_of(
    ("reduction", "strategy", "kept"),
    (ops.ReduceMean, (8, 1), True),
    (ops.ReduceMean, (4, 1), False),
    *((ops.ReduceSum, (rows, 1), True) for rows in (4, 8)),
)
def test_cross_batch_leaves_out_the_forward_message_where_the_real_system_does(reduction, strategy, kept, rng):
    x = rng.normal(size=(16, 5))
    for flag in (False, True):
        net = reduced(reduction(), strategy, flag)
        plan = compile(net, x, device_num=8, dataset_strategy="full_batch")
        sums = [i for _, i in plan.instructions("forward") if i.kind == "all_reduce"]
        assert bool(sums) == (not (flag and kept))
        sim = Simulator(plan, {"w": net.w.asnumpy()})
        sim.run_step(x)
        if flag and kept:
            parts = np.split(x * net.w.asnumpy(), strategy[0])
            want = [p.mean() if reduction is ops.ReduceMean else p.sum() for p in parts]
            got = [float(sim.value(plan.outputs[0], r)) for r in range(0, 8, 8 // strategy[0])]
            assert got == pytest.approx(want, rel=1e-12)


def test_with_cross_batch_the_gradient_of_a_mean_is_still_that_of_the_whole_batch(rng):
    x, y = rng.normal(size=(16, 5)), np.zeros((16, 5))
    net = reduced(ops.ReduceMean(), (8, 1), True)

    plan = compile(net, x, y, loss=lambda value, label: value, device_num=8, dataset_strategy="full_batch")
    sim = Simulator(plan, {"w": net.w.asnumpy()})
    sim.run_step(x, y)
    np.testing.assert_allclose(sim.full(dict(plan.gradients)["w"]), x.mean(axis=0) / 5, rtol=1e-12)


def test_only_reductions_read_cross_batch(rng):
    x, w = Tensor(rng.normal(size=(8, 16))), Tensor(rng.normal(size=(16, 4)))
    matmul = ops.MatMul().shard(((1, 8), (8, 1))).add_prim_attr("cross_batch", True)
    net = cell(lambda net, x: net.matmul(x, net.w), w=Parameter(w, name="w"), matmul=matmul)
    plan = compile(net, x, device_num=8, dataset_strategy="full_batch")
    sim = Simulator(plan, {"w": net.w.asnumpy()})
    np.testing.assert_allclose(sim.run_step(x), x.asnumpy() @ w.asnumpy(), rtol=1e-12)


# ---- running values ----


class Running(nn.Cell):
    """Keeps the running mean of what it sees."""

    def __init__(self, strategy):
        super().__init__()
        self.w = Parameter(Tensor(np.ones(4)), name="w")
        self.mean = Parameter(Tensor(np.zeros(4)), name="mean", requires_grad=False)
        self.mul = ops.Mul().shard(strategy)
        self.reduce = ops.ReduceMean().shard((strategy[0],))

    def construct(self, x):
        y = self.mul(x, self.w)
        old = self.mean
        ops.assign(self.mean, 0.9 * old + 0.1 * self.reduce(y, 0))
        return y - self.mean  # reads the new value, which has no gradient


@pytest.mark.quick(2)
@pytest.mark.parametrize("strategy", [((8, 1), (1,)), ((2, 4), (4,)), ((1, 1), (1,))])
@pytest.mark.parametrize("executor", ["simulator", "processes"])
def test_assigned_parameters_are_read_anew_and_keep_their_value_for_the_next_step(strategy, executor, rng):
    x, label = rng.normal(size=(16, 4)), np.zeros((16, 4))
    net = Running(strategy)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    plan = compile(net, x, label, loss=nn.MSELoss(), optimizer=optimizer, device_num=8, dataset_strategy="full_batch")
    w, mean, losses = np.ones(4), np.zeros(4), []
    for _ in range(3):
        mean = 0.9 * mean + 0.1 * (x * w).mean(axis=0)
        rest = x * w - mean
        losses.append((rest**2).mean())
        w = w - 0.1 * (2 * rest * x / rest.size).sum(axis=0)
    with session_on(executor, plan, net, optimizer) as session:
        assert session.train([(x, label)], 3) == pytest.approx(losses, rel=1e-10)
        np.testing.assert_allclose(session.parameters()["mean"], mean, rtol=1e-10)


def test_outside_a_trace_assign_acts_at_once_and_the_step_is_unknown():
    p = Parameter(Tensor(np.zeros(3)), name="p", requires_grad=False)
    assert ops.assign(p, np.ones(3)) is p
    np.testing.assert_array_equal(p.asnumpy(), np.ones(3))
    assert ops.training_step() is None


@pytest.mark.parametrize("sync", [False, True])
def test_batch_norm_says_whose_samples_its_statistics_are_of_and_sync_gives_one_devices(sync, rng):
    """Per device without sync, as really: mean of the ranks' losses and running statistics are not one device's."""
    net = cell(lambda net, x: net.norm(x), norm=nn.BatchNorm1d(5, momentum=0.5, sync=sync)).set_train()
    x, y = (rng.normal(size=(RANKS * ROWS, 5)).astype(np.float32) for _ in range(2))
    x += np.arange(RANKS * ROWS)[:, None]
    how = {"device_num": RANKS, "parallel_mode": "data_parallel", "gradients_mean": True}
    plan = compile(net, x[:ROWS], y[:ROWS], loss=nn.MSELoss(), **how)
    assert ("statistics of this rank's own samples, 1/4 of the batch" in plan.text()) == (not sync)
    assert ("all ranks use the statistics of the whole batch" in plan.text()) == sync
    sim = Simulator(plan, {p.name: p.asnumpy() for p in net.get_parameters()})
    sim.run_step(x, y)
    one_device = ((x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + net.norm.eps) - y) ** 2
    mean_of_losses = np.mean([sim.value(plan.outputs[0], r) for r in range(RANKS)])
    assert (abs(mean_of_losses - one_device.mean()) < 1e-5) == sync
    moving = [sim.value("norm.moving_mean", r) for r in range(RANKS)]
    own = [part.mean(axis=0) / 2 for part in np.split(x, RANKS)]
    np.testing.assert_allclose(moving, [x.mean(axis=0) / 2] * RANKS if sync else own, rtol=1e-5)


# ---- what a network itself calls ----


class Averaging(nn.Cell):
    """Three sums over the ranks with one number: the last one needs the first."""

    def __init__(self):
        super().__init__()
        self.sums = [ops.AllReduce().add_prim_attr("fusion", 3) for _ in range(3)]

    def construct(self, x):
        first, second = self.sums[0](x), self.sums[1](ops.square(x))
        return self.sums[2](first) + second


def test_calls_with_one_number_share_a_message_unless_one_needs_the_other():
    plan = compile(Averaging(), np.ones((4, 2), np.float32), device_num=RANKS, parallel_mode="data_parallel")
    messages = [i for _, i in plan.instructions() if i.is_communication]
    assert [(i.message, len(i.attr("members", (0,)))) for i in messages] == [("all_reduce", 2), ("all_reduce", 1)]
    # ranks 0 to 3 have x = 1 + rank: sum 10, of squares 30, sum of the sums 40
    simulator = Simulator(plan, {})
    simulator.run_step(np.repeat(np.arange(1, 5, dtype=np.float32), 4)[:, None] * np.ones(2, np.float32))
    assert {float(v) for rank in range(RANKS) for v in simulator.value(plan.outputs[0], rank).flat} == {70.0}


def test_the_gradient_of_an_input_is_each_ranks_own(rng):
    """The plan was refused as wrong: the gradient had the shape of a part where the whole was meant."""
    w, x = Parameter(Tensor(rng.normal(size=(5, 3))), "w"), rng.normal(size=(8, 5))

    def loss(x):
        return ops.reduce_sum(ops.square(x @ w))

    asked = value_and_grad(loss, 0, [w])
    _, (of_x, (of_w,)) = asked(Tensor(x))
    plan = compile(asked, x[:2], device_num=4, parallel_mode="data_parallel")
    simulator = Simulator(plan, {"w": w.asnumpy()})
    simulator.run_step(x)
    np.testing.assert_allclose(simulator.full(plan.outputs[1]), of_x.asnumpy())
    np.testing.assert_allclose(simulator.full(plan.outputs[2]), of_w.asnumpy())
