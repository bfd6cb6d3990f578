"""Communication by hand: results against numpy on all ranks' values, gradients against finite differences over all."""

from __future__ import annotations

import time

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, ops, value_and_grad
from parallel_lab.base import errors
from parallel_lab.lab.shared.networks import operator_primitives
from parallel_lab.nn.models.strategies import data_parallel
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(60)

N = 4
GROUP = (1, 3)  # a group that does not begin with rank 0, so that places and ranks differ


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(N) as pool:
        yield pool


def rows(x, n):
    return np.split(x, n, axis=0)


# ---- a layer that communicates ----


def normalizing(world, x, groups):
    """(result, gradient of its weighted sum for x, moving mean) of a batch norm that runs at once."""
    layer = nn.SyncBatchNorm(3, dtype=np.float64, process_groups=groups).set_train()
    mine = Parameter(x[world.rank])
    out = layer(mine)
    (grad,) = gradients(ops.reduce_sum(out * Tensor(np.arange(out.size).reshape(out.shape) ** 2.0)), [mine])
    return out.asnumpy(), grad, layer.moving_mean.asnumpy()


@pytest.mark.quick(1)
@each_of("groups, together", (None, [(0, 1, 2, 3)]), ([[0, 2], [3]], [(0, 2), (1,), (3,)]))
def test_ranks_that_run_at_once_share_the_statistics_of_their_group(pool, rng, groups, together):
    x = rng.normal(size=(N, 2, 3))
    found = on_ranks(pool, normalizing, x, groups)
    for members in together:
        alone = nn.BatchNorm1d(3, dtype=np.float64).set_train()
        rows_of_all = Parameter(np.concatenate([x[rank] for rank in members]))
        out = alone(rows_of_all)
        weights = np.concatenate([np.arange(6).reshape(2, 3) ** 2.0] * len(members))
        (grad,) = gradients(ops.reduce_sum(out * Tensor(weights)), [rows_of_all])
        for place, rank in enumerate(members):
            mine = slice(2 * place, 2 * place + 2)
            np.testing.assert_allclose(found[rank][0], out.asnumpy()[mine], rtol=1e-10)
            np.testing.assert_allclose(found[rank][1], grad[mine], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(found[rank][2], alone.moving_mean.asnumpy(), rtol=1e-10)


# ---- what each operator gives, written down for all ranks at once: [x of every rank] -> [result of every rank] ----


def everywhere(value, n):
    return [value] * n


def only_at(place, value, n):
    return [value if i == place else np.zeros(1) for i in range(n)]


WHOLE = {
    "AllReduce": (lambda: ops.AllReduce(), lambda xs: everywhere(sum(xs), len(xs))),
    "AllReduce max": (lambda: ops.AllReduce(ops.ReduceOp.MAX), lambda xs: everywhere(np.max(xs, axis=0), len(xs))),
    "AllReduce min": (lambda: ops.AllReduce("min"), lambda xs: everywhere(np.min(xs, axis=0), len(xs))),
    "AllReduce prod": (lambda: ops.AllReduce(op="prod"), lambda xs: everywhere(np.prod(xs, axis=0), len(xs))),
    "AllGather": (lambda: ops.AllGather(), lambda xs: everywhere(np.concatenate(xs), len(xs))),
    "ReduceScatter": (lambda: ops.ReduceScatter(), lambda xs: rows(sum(xs), len(xs))),
    "AlltoAll": (
        lambda: ops.AlltoAll(split_count=N, split_dim=0, concat_dim=1),
        lambda xs: [np.concatenate([rows(x, len(xs))[i] for x in xs], axis=1) for i in range(len(xs))],
    ),
    "AlltoAll from the end": (
        lambda: ops.AlltoAll(N, -2, -1),
        lambda xs: [np.concatenate([rows(x, len(xs))[i] for x in xs], axis=1) for i in range(len(xs))],
    ),
    "Broadcast": (lambda: ops.Broadcast(2), lambda xs: everywhere(xs[2], len(xs))),
    "Reduce": (lambda: ops.Reduce(1), lambda xs: only_at(1, sum(xs), len(xs))),
    "CollectiveGather": (lambda: ops.CollectiveGather(3), lambda xs: only_at(3, np.concatenate(xs), len(xs))),
    "CollectiveScatter": (lambda: ops.CollectiveScatter(2), lambda xs: rows(xs[2], len(xs))),
}
GROUPED = {
    "AllReduce": (lambda group: ops.AllReduce(group=group), WHOLE["AllReduce"][1]),
    "AllGather": (lambda group: ops.AllGather(group), WHOLE["AllGather"][1]),
    "ReduceScatter": (lambda group: ops.ReduceScatter("sum", group), WHOLE["ReduceScatter"][1]),
    "AlltoAll": (lambda group: ops.AlltoAll(2, 0, 1, group), WHOLE["AlltoAll"][1]),
    "Broadcast from rank 3": (lambda group: ops.Broadcast(3, group), lambda xs: everywhere(xs[1], 2)),
    "Reduce to place 1": (lambda group: ops.Reduce(1, group=group), lambda xs: only_at(1, sum(xs), 2)),
    "CollectiveGather on rank 1": (
        lambda group: ops.CollectiveGather(1, group),
        lambda xs: only_at(0, np.concatenate(xs), 2),
    ),
    "CollectiveScatter from rank 3": (lambda group: ops.CollectiveScatter(3, group), lambda xs: rows(xs[1], 2)),
}


def finite_differences(function, xs, weights, h=1e-5):
    """Gradient of sum over ranks of sum(weights * result) for every rank's x."""

    def loss(values):
        return sum(float((w * r).sum()) for w, r in zip(weights, function(values), strict=True))

    found = []
    for i, x in enumerate(xs):
        gradient = np.zeros_like(x)
        for at in np.ndindex(x.shape):
            sides = []
            for step in (h, -h):
                moved = [v.copy() for v in xs]
                moved[i][at] += step
                sides.append(loss(moved))
            gradient[at] = (sides[0] - sides[1]) / (2 * h)
        found.append(gradient)
    return found


def result_and_gradient(world, name, xs, weights, members):
    """On one rank: the operator's result, and the gradient of sum(weights * result) for its x."""
    if world.rank not in members:
        return None
    place = members.index(world.rank)
    world.groups["some"] = tuple(members)
    x = Parameter(Tensor(xs[place]))
    operator = WHOLE[name][0]() if len(members) == N else GROUPED[name][0]("some")
    out = operator(x)
    return out.asnumpy(), gradients(out, [x], weights[place])[0]


def check_against_numpy(pool, rng, name, members, xs):
    function = (WHOLE if len(members) == N else GROUPED)[name][1]
    expected = function(xs)
    # what a rank gets that is not the destination means nothing, and neither does a gradient for it
    weights = [np.zeros(1) if e.shape == (1,) else rng.standard_normal(e.shape) for e in expected]
    got = [each for each in on_ranks(pool, result_and_gradient, name, xs, weights, members) if each is not None]
    for (out, _), e in zip(got, expected, strict=True):
        np.testing.assert_allclose(out, e, rtol=1e-12, atol=1e-12)
    for (_, gradient), numeric in zip(got, finite_differences(function, xs, weights), strict=True):
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", WHOLE)
def test_result_and_gradient_over_all_ranks(pool, rng, name):
    check_against_numpy(pool, rng, name, list(range(N)), [rng.uniform(0.5, 2, (8, 3)) for _ in range(N)])


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", GROUPED)
def test_result_and_gradient_in_a_group(pool, rng, name):
    check_against_numpy(pool, rng, name, list(GROUP), [rng.uniform(0.5, 2, (6, 2)) for _ in GROUP])


def test_the_gradient_of_a_product_with_a_zero_is_exact(pool, rng):
    """Wrong before: product / x, which is 0 / 0 on the rank that holds the zero."""
    xs = [rng.uniform(0.5, 2, (3,)) for _ in range(N)]
    xs[1][0] = xs[2][1] = xs[3][1] = 0.0
    check_against_numpy(pool, rng, "AllReduce prod", list(range(N)), xs)


def gradient_of_extremes(world):
    x = Parameter(Tensor(np.array([1.0, float(world.rank)])))
    return gradients(ops.AllReduce("max")(x), [x], np.array([3.0, 5.0]))[0]


def test_equal_extremes_on_several_ranks_share_the_gradient(pool):
    got = on_ranks(pool, gradient_of_extremes)
    # element 0 is 1.0 on all four: each has a quarter of 4 * 3; element 1 is largest on rank 3
    np.testing.assert_allclose(got, [[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [3.0, 20.0]])


def broadcast_two(world):
    first, second = ops.Broadcast(1)(
        (Tensor(np.full((2,), float(world.rank))), Tensor(np.full((1, 3), world.rank + 10)))
    )
    return first.asnumpy(), second.asnumpy()


def test_broadcast_takes_a_tuple_of_tensors(pool):
    for first, second in on_ranks(pool, broadcast_two):
        np.testing.assert_array_equal(first, [1.0, 1.0])
        np.testing.assert_array_equal(second, [[11, 11, 11]])


def send_or_receive(world):
    world.groups["some"] = GROUP
    if world.rank == 1:
        ops.Send(sr_tag=0, dest_rank=1, group="some")(Tensor(np.arange(6.0).reshape(2, 3)))
    elif world.rank == 3:
        return ops.Receive(sr_tag=0, src_rank=0, shape=[2, 3], dtype=np.float64, group="some")()
    return None


def test_send_and_receive_between_places_of_a_group(pool):
    np.testing.assert_array_equal(on_ranks(pool, send_or_receive)[3], np.arange(6.0).reshape(2, 3))


def exchange_with_neighbours(world):
    left, right = (world.rank - 1) % 4, (world.rank + 1) % 4
    exchange = ops.NeighborExchange([left, right], [left, right], [(2,), (1, 2)], [(1, 2), (2,)], np.float32)
    sent = (Tensor(np.full((1, 2), world.rank, np.float32)), Tensor(np.full((2,), world.rank + 0.5, np.float32)))
    return exchange(sent)


def test_neighbor_exchange_around_the_ring(pool):
    for rank, (from_left, from_right) in enumerate(on_ranks(pool, exchange_with_neighbours)):
        np.testing.assert_array_equal(from_left, np.full((2,), (rank - 1) % 4 + 0.5))
        np.testing.assert_array_equal(from_right, np.full((1, 2), (rank + 1) % 4))


def exchange_of_borders(world):
    x = np.arange(4.0).reshape(1, 1, 2, 2) + 10 * world.rank
    if world.rank < 2:  # rank 0 lies above rank 1
        ids, lens = [-1] * 8, [0, 1, 0, 0] if world.rank == 0 else [1, 0, 0, 0]
        ids[4 if world.rank == 0 else 0] = 1 - world.rank
        return ops.NeighborExchangeV2(ids, lens, ids, lens, "NCHW")(Tensor(x))
    return None


def test_neighbor_exchange_of_borders(pool):
    above, below, *_ = on_ranks(pool, exchange_of_borders)
    np.testing.assert_array_equal(above[0, 0], [[0, 1], [2, 3], [10, 11]])
    np.testing.assert_array_equal(below[0, 0], [[2, 3], [10, 11], [12, 13]])


NOBODY = [-1] * 8


@each_of(
    "given",
    ([-1] * 7, [0] * 4, NOBODY, [0] * 4, "NCHW"),
    ([1, 1, *[-1] * 6], [1] * 4, NOBODY, [0] * 4, "NCHW"),
    (NOBODY, [0] * 3, NOBODY, [0] * 4, "NCHW"),
    (NOBODY, [0] * 4, NOBODY, [0, 0, -1, 0], "NCHW"),
    (NOBODY, [0] * 4, NOBODY, 0, "NCHW"),
    (NOBODY, [0] * 4, NOBODY, [0] * 4, "NHWC"),
)
def test_borders_that_cannot_be_are_refused(given):
    with pytest.raises(errors.ArgumentError, match=r"NeighborExchangeV2: \w+=.*\. (8 ints|4 ints|One of 'NCHW')"):
        ops.NeighborExchangeV2(*given)


def late_at_the_barrier(world):
    if world.rank == 2:
        time.sleep(0.2)
    came = time.perf_counter()
    ops.Barrier()()
    return came, time.perf_counter()


def test_barrier_waits_for_the_others(pool):
    times = on_ranks(pool, late_at_the_barrier)
    assert min(left for _, left in times) >= max(came for came, _ in times)


def mean_over_ranks(w):
    """The loss of this rank's rows, averaged over the ranks inside the network."""
    return cell(
        lambda net, data, label: net.all_reduce(net.loss(ops.matmul(data, net.weight), label)) / N,
        weight=Parameter(Tensor(w), "w"),
        all_reduce=ops.AllReduce(),
        loss=nn.MSELoss(),
    )


def loss_and_gradient_of_my_rows(world, x, y, w):
    net = mean_over_ranks(w)
    mine = slice(2 * world.rank, 2 * world.rank + 2)
    loss, (gradient,) = value_and_grad(net, None, net.trainable_params())(Tensor(x[mine]), Tensor(y[mine]))
    return loss.item(), gradient.asnumpy()


def test_a_cell_with_a_collective_trains_like_one_device(pool, rng):
    x, y, w = rng.standard_normal((8, 3)), rng.standard_normal((8, 2)), rng.standard_normal((3, 2))
    got = on_ranks(pool, loss_and_gradient_of_my_rows, x, y, w)
    for loss, _ in got:
        assert loss == pytest.approx(np.mean((x @ w - y) ** 2), rel=1e-12)
    # every rank holds its addend of N times the gradient, because each of the N losses is the same mean
    np.testing.assert_allclose(sum(g for _, g in got) / N, 2 * x.T @ (x @ w - y) / y.size, rtol=1e-12)


# ---- refusals ----


def test_without_a_world_it_says_how_to_get_one():
    with pytest.raises(RuntimeError, match=r"AllReduce: .*not a rank of a world.*init\(\).*parallel-lab run") as caught:
        ops.AllReduce()(Tensor([1.0]))
    assert isinstance(caught.value, errors.WorldError)


def disagree(world):
    x = Tensor([1.0])
    if world.rank == 0:
        return ops.AllReduce()(x)
    return ops.AllReduce("max")(x)


def test_two_ranks_on_different_lines_hear_of_both(pool):
    with pytest.raises(errors.ParallelLabError, match="all_reduce") as caught:
        on_ranks(pool, disagree)
    assert "test_collectives.py" in str(caught.value)


def call_for_others(world):
    world.groups["some"] = GROUP
    if world.rank == 0:
        ops.AllReduce(group="some")(Tensor([1.0]))


def test_a_rank_outside_a_group_cannot_call_for_it(pool):
    with pytest.raises(errors.RankRaised, match=r"rank 0 is not in group 'some' \(1, 3\)"):
        on_ranks(pool, call_for_others)


@each_of(
    ("make", "kind"),
    (lambda: ops.AllReduce(group=3), TypeError),
    (lambda: ops.AllGather(group=b"x"), TypeError),
    (lambda: ops.Receive(0, 1, 3, np.float32), TypeError),
    (lambda: ops.AllReduce().add_prim_attr("fusion", -1), ValueError),
    (lambda: ops.AllReduce().add_prim_attr("fusion", 1.0), TypeError),
    (lambda: ops.AllGather().add_prim_attr("fusion", True), TypeError),
    (lambda: ops.AllReduce().add_prim_attr("fusion", "1"), TypeError),
    (lambda: ops.AllReduce()(Tensor([True])), TypeError),
    (lambda: ops.AllReduce()((Tensor([1.0]), Tensor([2.0]))), TypeError),
    (lambda: ops.NeighborExchange([0], [1, 2], [(1,)], [(1,)], np.float32), ValueError),
)
def test_wrong_arguments_are_refused_by_the_documented_class(make, kind):
    with pytest.raises(kind) as caught:
        make()
    assert isinstance(caught.value, (errors.ArgumentError, errors.ArgumentTypeError, errors.WorldTypeError))


MISFITS = {
    "group": (lambda world: ops.AllReduce(group="no such")(Tensor([1.0])), "no such"),
    "rows": (lambda world: ops.ReduceScatter()(Tensor(np.ones((6, 2)))), "first dim that divides by 4"),
    "split_count": (lambda world: ops.AlltoAll(2, 0, 0)(Tensor(np.ones((4, 2)))), "split_count=2"),
    "root": (lambda world: ops.Broadcast(4)(Tensor([1.0])), "root_rank=4"),
    "dest": (lambda world: ops.Reduce(4)(Tensor([1.0])), "dest_rank=4"),
    "itself": (lambda world: ops.Send(0, world.rank)(Tensor([1.0])), "place of another rank"),
    "a gradient": (lambda world: ops.Send(0, (world.rank + 1) % 4)(Parameter(Tensor([1.0]), "w")), "stop_gradient"),
}


def error_of(world, name):
    try:
        MISFITS[name][0](world)
    except errors.ParallelLabError as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error)
    return None


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_the_world_is_refused_on_every_rank(pool, name):
    for kinds, text in on_ranks(pool, error_of, name):
        assert MISFITS[name][1] in text
        assert "ValueError" in kinds or "TypeError" in kinds


EXCHANGE = {
    "send_rank_ids": (1,),
    "recv_rank_ids": [1],
    "recv_shapes": ((2, 3),),
    "send_shapes": [[2, 3]],
    "recv_type": np.float32,
}


@each_of(
    "wrong",
    {"send_rank_ids": 0},  # what (0) is, written for (0,)
    {"recv_rank_ids": "1"},
    {"send_rank_ids": (-1,)},
    {"recv_shapes": (2, 3)},
    {"send_shapes": 2},
    {"send_shapes": ((2, 3.0),)},
    {"recv_type": None},
    {"recv_type": "floaty"},
    {"recv_type": np.dtype("U3")},
    {"group": 3},
)
def test_neighbor_exchange_says_which_argument_is_wrong(wrong):
    (name,) = wrong
    with pytest.raises(errors.ParallelLabError, match=rf"NeighborExchange: {name}=.*\. [A-Z]"):
        ops.NeighborExchange(**{**EXCHANGE, **wrong})


@each_of("call", lambda: ops.Receive(0, 1, 3, "float32"), lambda: ops.Receive(0, 1, (3,), object))
def test_receive_says_which_argument_is_wrong(call):
    with pytest.raises(errors.ArgumentTypeError, match=r"Receive: (shape=3|dtype=.*object)"):
        call()


@each_of(
    "call",
    lambda: ops.AllReduce()(),
    lambda: ops.AllGather()(1, 2),
    lambda: ops.Barrier()(1),
    lambda: ops.Send(0, 1)(),
    lambda: ops.NeighborExchange(**EXCHANGE)(),
)
def test_a_call_with_another_number_of_inputs_says_how_many_it_takes(call):
    with pytest.raises(errors.ArgumentTypeError, match=r"called with \d arguments\. [01] inputs"):
        call()


def test_communication_takes_no_strategy():
    with pytest.raises(errors.StrategyError, match=r"AllReduce.*takes this rank's value as it is"):
        ops.AllReduce().shard(((2, 1),))


def test_the_fusion_number_is_kept_and_shown():
    first = ops.AllReduce().add_prim_attr("fusion", 1)
    assert first.prim_attrs["fusion"] == 1
    assert "fusion=1" in repr(first)
    assert ops.AllGather().prim_attrs["fusion"] == 0


UNCUT = {
    "AllReduce": ops.AllReduce,
    "Barrier": ops.Barrier,
    "Send": lambda: ops.Send(0, 1),
    "NeighborExchange": lambda: ops.NeighborExchange([1], [1], [(2,)], [(2,)], "float32"),
    "Print": ops.Print,
}


@pytest.mark.parametrize("make", UNCUT.values(), ids=UNCUT)
def test_networks_that_print_or_communicate_can_be_looked_at_and_sharded(make):
    """Whatever lists operators once asked these for a definition that they do not have, or gave each a strategy."""

    def make_net():
        return cell(lambda net, x: net.matmul(x, x), uncut=make(), matmul=ops.MatMul())

    assert list(operator_primitives(make_net())) == ["matmul"]
    data_parallel(make_net())  # takes strategies away, those that are not there too
    with pytest.raises(ValueError, match=r"For an operator inside \(matmul\)"):
        nn.shard(make_net(), ((1, 1), (1, 1)))
    with pytest.raises(errors.StrategyError):
        make().shard(((2, 1),))
