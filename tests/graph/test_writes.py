"""Parameters that get values inside `construct`: order of reads and writes, gradients, slices, all equal one device."""

import contextlib

import numpy as np
import pytest

from parallel_lab import ParallelLabError, Tensor, TraceError, compile, nn, ops, value_and_grad
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import Session
from tests.crossed import each_of
from tests.nets import cell

RATE = 0.1


def reads_and_writes(net, x):
    """y reads w before it is written, z after, and the result after it was written again; count counts calls."""
    y = net.mul(x, net.w)
    net.assign(net.w, ops.reduce_mean(y, 0) * 0.5)
    ops.assign_add(net.count, 1)
    z = x + net.w * net.w
    net.subtract(net.w, ops.reduce_mean(z, 0) * 0.25)
    return y * z + net.w * net.count


def writing_net(strategy=None):
    ours = {"mul": ops.Mul(), "assign": ops.Assign(), "subtract": ops.AssignSub()}
    if strategy is not None:
        ours["mul"].shard(strategy)
    if strategy is not None and 1 in strategy[0]:  # split both ways w lies along the inner axis, as no (2,) says
        ours["assign"].shard((strategy[1],) * 2)
        ours["subtract"].shard((strategy[1],) * 2)
    w = Parameter(Tensor(np.random.default_rng(0).normal(size=8)), name="w")
    count = Parameter(Tensor(np.zeros(())), name="count", requires_grad=False)
    return cell(reads_and_writes, w=w, count=count, **ours)


def by_hand(w, x, steps):
    """(losses, w, count) after these steps of gradient descent on the mean of squares; the gradient by hand: that of
    every read is w's, whichever value it read, and none flows to what is written.
    """
    losses, count = [], 0.0
    for _ in range(steps):
        y = x * w
        first, count = y.mean(axis=0) * 0.5, count + 1
        z = x + first * first
        second = first - z.mean(axis=0) * 0.25
        out = y * z + second * count
        losses.append((out**2).mean())
        g = 2 * out / out.size
        w = second - RATE * (g * (z * x + y * 2 * first + count)).sum(axis=0)
    return losses, w, count


@contextlib.contextmanager
def on(executor, plan, net, optimizer):
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(WorkerPool(plan.device_num)) if executor == "processes" else None
        yield stack.enter_context(Session(plan, net, optimizer, executor=executor, pool=pool))


@pytest.mark.quick(1)
@pytest.mark.parametrize("strategy", [((2, 2), (2,)), None, ((4, 1), (1,)), ((1, 2), (2,)), ((1, 4), (4,))])
@pytest.mark.parametrize("executor", ["simulator", "processes"])
@pytest.mark.parametrize("sharded_states", [False, True])
def test_reads_and_writes_of_a_trained_parameter_count_in_their_order(executor, strategy, sharded_states, rng):
    x, label = rng.normal(size=(16, 8)), np.zeros((16, 8))
    net = writing_net(strategy)
    optimizer = nn.SGD(net.trainable_params(), RATE)
    losses, w, count = by_hand(net.w.asnumpy(), x, 3)
    states = {"enable_parallel_optimizer": sharded_states, "parallel_optimizer_threshold": 0}
    options = {"device_num": 4, "dataset_strategy": "full_batch", **states}
    plan = compile(net, x, label, loss=nn.MSELoss(), optimizer=optimizer, **options)
    with on(executor, plan, net, optimizer) as session:
        assert session.train([(x, label)], 3) == pytest.approx(losses, rel=1e-10)
        found = session.parameters()
    np.testing.assert_allclose(found["w"], w, rtol=1e-10)
    assert found["count"] == count


def test_outside_a_trace_they_count_alike(rng):
    x = rng.normal(size=(16, 8))
    net = writing_net()
    optimizer, found = nn.SGD(net.trainable_params(), RATE), []
    losses, w, count = by_hand(net.w.asnumpy(), x, 3)
    step = value_and_grad(lambda x: ops.reduce_mean(ops.square(net(x))), None, net.trainable_params())
    for _ in range(3):
        loss, gradients = step(Tensor(x))
        optimizer(gradients)
        found.append(loss.item())
    assert found == pytest.approx(losses, rel=1e-10)
    np.testing.assert_allclose(net.w.asnumpy(), w, rtol=1e-10)
    assert net.count.item() == count


@pytest.mark.parametrize("search", [False, True], ids=["semi_auto", "auto"])
def test_a_write_without_a_strategy_lies_as_its_parameter_does(search):
    def construct(net, x):
        before = ops.assign(net.w, x)
        return net.add(before, net.mul(x, net.w))

    both = {"mul": ops.Mul().shard(((2, 4), (2, 4))), "add": ops.Add().shard(((2, 4), (2, 4)))}
    net = cell(construct, w=Parameter(Tensor(np.ones((8, 8))), name="w"), **both)
    modes = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"} if search else {}
    plan = compile(net, np.ones((8, 8)), device_num=8, dataset_strategy="full_batch", **modes)
    assert plan.value("w").slice_shape == (4, 2)
    assert not [i for _, i in plan.instructions() if i.is_communication]


@pytest.mark.parametrize("first", [False, True])
def test_averages_of_weights_lie_as_the_weights_do(first):
    """Wrong was the batch default for e * 0.9 and w * 0.1: two layouts for w, refused. Another w of that shape lies
    the other way.
    """

    def construct(net, x):
        y = None if first else net.second(net.first(x, net.w), net.v)
        ops.assign(net.e, net.e * 0.9 + net.w * 0.1)
        ops.assign(net.f, net.f * 0.9 + net.v * 0.1)
        return net.second(net.first(x, net.w), net.v) if y is None else y

    rng = np.random.default_rng(0)
    held = {n: Parameter(Tensor(rng.normal(size=(8, 8))), name=n, requires_grad=n in "wv") for n in "wvef"}
    old = {n: p.asnumpy().copy() for n, p in held.items()}
    products = {"first": ops.MatMul().shard(((2, 1), (1, 4))), "second": ops.MatMul().shard(((2, 4), (4, 1)))}
    net, x = cell(construct, **held, **products), rng.normal(size=(4, 8))
    optimizer = nn.SGD(net.trainable_params(), RATE)
    plan = compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, device_num=8, dataset_strategy="full_batch")
    assert [plan.value(n).slice_shape for n in "wevf"] == [(8, 2), (8, 2), (2, 8), (2, 8)]
    with on("simulator", plan, net, optimizer) as session:
        assert session.train([(x, x)], 1) == pytest.approx([((x @ old["w"] @ old["v"] - x) ** 2).mean()])
        after = session.parameters()
    np.testing.assert_allclose(after["e"], 0.9 * old["e"] + 0.1 * old["w"])
    np.testing.assert_allclose(after["f"], 0.9 * old["f"] + 0.1 * old["v"])


def test_a_value_made_from_a_gradient_is_not_also_an_optimizers():
    w = Parameter(Tensor(np.ones(8)), name="w")
    optimizer = nn.SGD([w], RATE)
    gradient = value_and_grad(lambda x: ops.reduce_mean(x * w), None, [w])

    def made_from_gradient(x):
        loss, (g,) = gradient(x)
        ops.assign(w, g)
        optimizer((g,))
        return loss

    def before_and_after_the_step(x):
        ops.assign(w, ops.reduce_mean(x, 0))
        loss, grads = gradient(x)
        optimizer(grads)
        ops.assign(w, w * 0.5)
        return loss

    for step, words in ((made_from_gradient, "made from gradients"), (before_and_after_the_step, "before and after")):
        with pytest.raises(TraceError, match=rf"test_writes.py:\d+: .*'w'.*{words}"):
            compile(step, np.ones((4, 8)), device_num=2, dataset_strategy="full_batch")


@pytest.mark.parametrize("compiled", [False, True])
@each_of(
    ("target", "value", "words"),
    ("x", 1.0, "(?s)Assign.*A Parameter"),
    ("w", np.ones((2, 8)), r"\(2, 8\).*\(8,\).*The variable's shape, or a number"),
    ("w", np.ones(1), r"\(1,\).*\(8,\)"),
)
def test_what_cannot_be_written_is_refused(compiled, target, value, words):
    def construct(net, x):
        return ops.assign(net.w if target == "w" else x * 2, value) + x

    net, x = cell(construct, w=Parameter(Tensor(np.ones(8)), name="w")), Tensor(np.ones((4, 8)))
    with pytest.raises(ParallelLabError, match=words):
        compile(net, x, device_num=2, dataset_strategy="full_batch") if compiled else net(x)


def test_a_written_value_takes_the_parameters_dtype():
    count = Parameter(Tensor(np.zeros(4, np.int32)), name="count", requires_grad=False)
    assert ops.AssignAdd()(count, 2) is count
    assert (count.dtype, count.asnumpy().tolist()) == (np.int32, [2, 2, 2, 2])
