"""`reshard`: another layout for the same values, in compiled networks and between ranks at once."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from parallel_lab import (
    Layout,
    ParallelLabError,
    Parameter,
    Tensor,
    compile,
    nn,
    ops,
    reshard,
    set_auto_parallel_context,
)
from parallel_lab.base.errors import ArgumentTypeError, StrategyError
from parallel_lab.layout.route import Route
from parallel_lab.nn.tensor.autograd import gradients, value_and_grad
from parallel_lab.nn.tensor.tensor import RankTensor
from parallel_lab.run.simulator import Simulator
from tests.nets import cell
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(60)

N = 4
GRID = Layout((2, 2), ("dp", "mp"))
LAYOUTS = {
    "rows and columns": GRID("dp", "mp"),
    "columns": GRID("None", ("dp", "mp")),
    "rows": GRID(("mp", "dp"), "None"),
    "whole": GRID("None", "None"),
    "copies": GRID("mp", "None"),
}
X = np.random.default_rng(0).normal(size=(8, 12))
W = np.random.default_rng(1).normal(size=(12, 4))


def moving(layout):
    """Two products with a layout between them that neither has."""

    def construct(net, x):
        return net.out(net.product(reshard(net.product(x, net.w), layout), net.v), 0.5)

    v = Parameter(Tensor(np.random.default_rng(2).normal(size=(4, 12))), name="v")
    shared = {"product": ops.MatMul(), "out": ops.Mul()}
    return cell(construct, w=Parameter(Tensor(W), name="w"), v=v, **shared)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_in_a_network_it_is_an_operator_with_this_layout(name):
    net = moving(LAYOUTS[name])
    options = {"loss": nn.MSELoss(), "device_num": N, "dataset_strategy": "full_batch"}
    plan = compile(net, X, np.zeros((8, 12)), **options)
    moved = plan.value("reshard").layout
    assert moved.same_placement(LAYOUTS[name].tensor_layout())
    loss = nn.MSELoss()(net(Tensor(X)), Tensor(np.zeros((8, 12))))  # here there is one device, and nothing moves
    wanted = gradients(loss, net.trainable_params())
    sim = Simulator(plan, {p.name: p.asnumpy() for p in net.trainable_params()})
    assert float(sim.run_step(X, np.zeros((8, 12)))) == pytest.approx(loss.item(), rel=1e-12)
    for parameter, gradient in zip(net.trainable_params(), wanted, strict=True):
        np.testing.assert_allclose(sim.full(dict(plan.gradients)[parameter.name]), gradient, rtol=1e-10)


def test_a_search_starts_from_it():
    net = cell(lambda net, x: ops.relu(reshard(ops.relu(x), GRID("dp", "mp"))) * 2.0)
    options = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation", "device_num": N}
    plan = compile(net, X, dataset_strategy="full_batch", **options)
    assert [n.strategy_source for n in plan.graph.nodes].count("user") == 1
    slices = {plan.value(name).slice_shape for name in ("relu", "reshard", "relu_1", "mul")}
    assert slices == {(4, 6)}


def test_the_layout_may_be_an_argument():
    net = cell(lambda net, x, layout: reshard(x, layout) * 2.0)
    plan = compile(lambda x: net(x, LAYOUTS["columns"]), X, device_num=N, dataset_strategy="full_batch")
    assert plan.value("reshard").slice_shape == (8, 3)


# ---- at once ----


def through(world, names, manner):
    """The slices on this rank of X, brought from one layout to the next, and how many bytes were sent for each."""
    set_auto_parallel_context(redistribution=manner)
    world.comm.recording = True
    found, x = [], Tensor(X)
    for name in names:
        world.comm.records.clear()
        x = reshard(x, LAYOUTS[name])
        assert isinstance(x, RankTensor) and x.full_shape == X.shape
        found.append((x.asnumpy(), sum(m.size_bytes for m in world.comm.records)))
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("manner", ["allgather", "alltoall", "exact"])
def test_between_ranks_every_layout_leads_to_every_other(pools, manner):
    names = list(LAYOUTS)
    order = [name for i, one in enumerate(names) for other in names[i + 1 :] for name in (one, other)]
    done = on_ranks(pools[N], through, order, manner)
    for rank, found in enumerate(done):
        assert found[0][1] == 0  # every rank had all of it
        for name, (array, _) in zip(order, found, strict=True):
            index = LAYOUTS[name].tensor_layout().slice_index(X.shape, rank)
            np.testing.assert_array_equal(array, X[index])
    if manner == "exact":
        for at, (before, name) in enumerate(itertools.pairwise(order), 1):
            route = Route(LAYOUTS[before].tensor_layout(), LAYOUTS[name].tensor_layout(), X.shape)
            sent = sum(found[at][1] for found in done)
            assert sent == X.itemsize * sum(map(route.received, range(N)))


def error_of(world, name):
    if name == "a gradient":
        w = Parameter(Tensor(W), name="w")
        call = value_and_grad(lambda x: ops.reduce_sum(reshard(ops.matmul(x, w), LAYOUTS["rows"])), None, [w])
        given = (Tensor(X),)
    else:
        call = reshard
        given = {
            "other devices": (Tensor(X), Layout((2, 4), ("a", "b"))("a", "b")),
            "other dims": (Tensor(X), GRID("dp")),
            "uneven": (Tensor(np.ones((7, 4))), GRID("dp", "None")),
            "its own": (RankTensor(X, X.shape, None), GRID("dp", "mp")),
        }[name]
    try:
        call(*given)
    except ParallelLabError as error:
        return type(error).__name__, str(error)
    return None


REFUSED = {
    "other devices": "on 8 devices.*on 4 devices",
    "other dims": r"places 1 dims.*The 2 dims of a tensor of shape \(8, 12\)",
    "uneven": "7",
    "its own": "every rank has for itself",
    "a gradient": "the gradient through reshard",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_on_every_rank(pools, name):
    for found in on_ranks(pools[N], error_of, name):
        assert found is not None and re.search(REFUSED[name], found[1]), found


def test_alone_it_returns_the_tensor_and_still_looks_at_its_arguments():
    x = Tensor(X)
    assert reshard(x, GRID("dp", "mp")) is x
    for given, error in (
        ((X, GRID("dp", "mp")), ArgumentTypeError),
        ((x, ("dp", "mp")), ArgumentTypeError),
        ((x, GRID), StrategyError),
    ):
        with pytest.raises(error, match="reshard"):
            reshard(*given)
    assert issubclass(ArgumentTypeError, TypeError)
