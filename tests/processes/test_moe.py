"""Rows of experts on real ranks: all_to_all_v by hand, and a layer that trains, bit for bit as simulated."""

import os
import re
import signal
from itertools import count

import numpy as np
import pytest

from parallel_lab import Session, Tensor, compile, nn
from parallel_lab.base.errors import CollectiveMismatch, CollectiveTimeout, RankDied
from parallel_lab.graph.passes import PASSES
from parallel_lab.nn import models
from parallel_lab.ops.collectives.block_exchange import rows_route
from parallel_lab.processes.mpi.pool import MpiPool
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.communicator import Request
from parallel_lab.run.simulator import simulate
from tests.crossed import each_of
from tests.nn.test_moe_meshes import BATCHES, Case
from tests.nn.test_moe_ranks import SEED, Net
from tests.processes.pools import RARELY_OVER_MPI, assert_usable, lent
from tests.processes.processes import gone

RANKS, HIDDEN = 4, 3


@pytest.fixture(scope="module", params=RARELY_OVER_MPI)
def pool(request):
    with lent(request.param, RANKS) as pool:
        yield pool


def drawn_splits(rng):
    """Counts of rows, some ranks without any."""
    splits = rng.integers(0, 4, (RANKS, RANKS))
    splits[:, rng.integers(RANKS)] = 0
    splits[rng.integers(RANKS)] = 0
    return splits


@pytest.mark.parametrize("number", range(3))
def test_rows_come_in_the_order_of_the_members_and_only_those_are_counted(pool, number):
    rng = np.random.default_rng([SEED, number])
    splits = drawn_splits(rng)
    route = rows_route(int(splits.sum(1).max() + 1), int(splits.sum(0).max() + 2), splits)
    values = rng.normal(size=(RANKS, route[0], HIDDEN)).astype(np.float32)

    def program(comm, values, route):
        comm.records.clear()
        comm.recording = True
        reply = comm.all_to_all_v(values[comm.rank], route)
        comm.recording = False
        return reply, comm.records[-1].size_bytes

    def simulated(rank):
        return (yield Request("all_to_all_v", tuple(range(RANKS)), values[rank], route=route))

    ends, on_ranks = np.cumsum(splits, axis=1), pool.run(program, values, route)
    for me, ((reply, size_bytes), same) in enumerate(
        zip(on_ranks, simulate([simulated(r) for r in range(RANKS)]), strict=True)
    ):
        came = [values[i, ends[i, me] - splits[i, me] : ends[i, me]] for i in range(RANKS)]
        np.testing.assert_array_equal(reply[: splits[:, me].sum()], np.concatenate(came))
        assert not reply[splits[:, me].sum() :].any() and reply.shape == (route[1], HIDDEN)
        np.testing.assert_array_equal(reply, same)
        assert size_bytes == (splits[me].sum() - splits[me, me]) * HIDDEN * 4


def test_ranks_that_count_other_rows_get_an_error(pool):
    def program(comm, routes):
        comm.all_to_all_v(np.ones((4, 2)), routes[comm.rank == 3], tag="both")

    ones = np.ones((RANKS, RANKS), int)
    with pytest.raises(CollectiveMismatch, match="all_to_all_v"):
        pool.run(program, [rows_route(4, 4, ones), rows_route(4, 4, ones - np.eye(RANKS, dtype=int))])
    assert_usable(pool)


def exchanging(comm, route):
    for number in count():
        comm.all_to_all_v(np.ones((route[0], HIDDEN)), route)
        if not number:
            comm.report("at work")  # not before: a rank that is lost then has no last call


LOST = [
    ("SIGKILL", RankDied, r"rank 2 \(pid {pid}\) was killed by SIGKILL \(signal 9\) (in|after) all_to_all_v #\d+"),
    pytest.param(
        *("SIGSTOP", CollectiveTimeout),
        r"rank 2 \(pid {pid}, stopped by a signal; last call all_to_all_v #\d+ .*\) keeps ranks 0, 1, 3 waiting",
        marks=pytest.mark.exhaustive,
    ),
]


@pytest.mark.faults("ranks at work")
@pytest.mark.filterwarnings("ignore:.*keeps ranks:RuntimeWarning")
@pytest.mark.parametrize(("name", "error", "said"), LOST)
def test_a_rank_that_is_lost_in_the_middle_of_a_dispatch_is_named_and_nothing_stays(name, error, said):
    with WorkerPool(RANKS, timeout_s=1.5, warn_after_s=1) as pool:
        pids, route = pool.pids, rows_route(4, 4, np.ones((RANKS, RANKS), int))
        job = pool.submit(exchanging, route)
        while len(job.messages) < RANKS:
            job.wait_for_change(1)
        os.kill(pids[2], getattr(signal, name))
        with pytest.raises(error) as caught:
            job.result(timeout=60)
    assert re.search(said.format(pid=pids[2]), str(caught.value)), caught.value
    assert gone(pids, 5) is not None


@pytest.mark.exhaustive
@pytest.mark.faults("ranks at work")
@pytest.mark.parametrize("victim", [0, 3])
def test_a_rank_with_experts_that_dies_ends_the_training(victim):
    case = Case(dtype=np.float32)
    plan = case.plan({"dp": 2, "cp": 2, "ep": 4})
    with WorkerPool(RANKS) as pool:
        run, pids = (
            Session(plan, case.net, case.optimizer, executor="processes", pool=pool).start(BATCHES, 10**6),
            pool.pids,
        )
        while len(run.losses) < 2:
            run.wait_for_change(1)
        os.kill(pids[victim], signal.SIGKILL)
        with pytest.raises(RankDied, match=rf"rank {victim} \(pid {pids[victim]}\) was killed by SIGKILL"):
            run.result(5)
    assert gone(pids, 5) is not None


@each_of(
    "moe",
    {},
    pytest.param({"capacity_factor": 1.0, "drop_order": "weight"}, marks=pytest.mark.exhaustive),
    pytest.param({"router": "sigmoid_norm", "bias_rate": 0.1}, marks=pytest.mark.exhaustive),
)
def test_training_on_processes_gives_the_bits_of_the_simulator(pool, moe):
    case = Case("gpt", dtype=np.float32, layers=1, groups=4, **moe)
    plan, executor = case.plan({"dp": 4, "ep": 2}), "mpi" if isinstance(pool, MpiPool) else "processes"
    simulated, on_ranks = case.trained(plan, 3), case.trained(plan, 3, executor=executor, pool=pool)
    assert len(set(simulated["losses"])) == 3
    for name, value in simulated.items():
        np.testing.assert_array_equal(on_ranks[name], value, err_msg=name)


def test_events_have_the_bytes_of_the_rows_that_travel(pool):
    """They had those of a balanced router. A token goes to the expert of its one number, 8 numbers of 8 bytes."""
    experts = np.array([[3, 3, 1], [3, 3, 3], [0, 3, 3], [3, 2, 2]])  # of the tokens of each rank
    x, weight = np.eye(8)[experts], np.ones((4, 3, 8))
    net = Net(nn.MoE(8, 12, RANKS, expert_parallel=RANKS, dtype=np.float64))
    net.moe.gate.set_data(Tensor(np.eye(RANKS, 8)))
    models.expert_parallel(net, RANKS, RANKS)
    net.mul.shard(((RANKS, 1, 1), (RANKS, 1, 1)))
    net.move.shard(((RANKS, 1, 1), (1,)))
    net.sum.shard(((RANKS, 1, 1),))
    plan = compile(net, x, weight, device_num=RANKS, dataset_strategy="full_batch", passes=PASSES)
    rows = np.stack([np.bincount(own, minlength=RANKS) for own in experts])
    there, back = ((rows.sum(axis=axis) - np.diag(rows)) * 8 * 8 for axis in (1, 0))
    executor = "mpi" if isinstance(pool, MpiPool) else "processes"
    for how in ({}, {"executor": executor, "pool": pool}):
        with Session(plan, net, **how) as session:
            session.train([(x, weight)], 1, record=1)
            events = [e for e in session.events if e.op == "all_to_all_v" and e.phase == "forward"]
        for rank in range(RANKS):
            assert [e.bytes for e in events if e.rank == rank] == [there[rank], back[rank]]
