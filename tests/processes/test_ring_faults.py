"""A ring of attention in whose middle something happens: every rank ends with the cause, and nothing stays."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, RankDied, RankRaised
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.rank_programs import ring_attention
from parallel_lab.run.simulator import simulate
from parallel_lab.train.program import drive
from tests.crossed import each_of
from tests.processes.pools import RARELY_OVER_MPI, assert_usable, pool_of
from tests.processes.processes import PROMISE_BOUND_S, gone

RANKS = 3
pytestmark = pytest.mark.timeout(90)
pool = pool_of(RARELY_OVER_MPI, RANKS)  # over MPI: mark.exhaustive


def operands(rank):
    """q, k, v of a rank: 4 tokens of each of 2 heads."""
    rng = np.random.default_rng(rank)
    return [rng.normal(size=(1, 4, 2, *more, 3)) for more in ((1,), (), ())]


def disturbed(comm, happens):
    """A ring in which it happens to rank 1 in the second pass, between the starts of k and of v."""

    def program():
        ring, reply = ring_attention(comm.rank, comm.world_size, *operands(comm.rank)), None
        for number in itertools.count():
            if (comm.rank, number) == (1, 5):  # two starts and two waits a pass
                comm.report(time.monotonic())
                happens(comm)
            try:
                reply = yield ring.send(reply)
            except StopIteration as end:
                return end.value

    return drive(program(), comm)


@pytest.mark.faults("ranks at work")
def test_a_rank_that_is_killed_in_a_ring_is_named_to_all():
    with WorkerPool(RANKS) as pool:
        pids, job = pool.pids, pool.submit(disturbed, lambda comm: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(RankDied, match=rf"rank 1 \(pid {pids[1]}\) was killed by SIGKILL") as caught:
            job.result(timeout=60)
        ((_, began),) = job.messages
        assert time.monotonic() - began < PROMISE_BOUND_S
    assert "in exchange #" in str(caught.value)
    assert gone(pids, 5) is not None


def fails(comm):
    raise ValueError("no more keys")


@each_of(
    ("happens", "error", "words"),
    (fails, RankRaised, r"rank 1 \(pid \d+\) raised ValueError: no more keys"),
    (lambda comm: comm.start("all_reduce", np.ones(2)), CollectiveMismatch, "rank 1 called all_reduce #3 "),
    ids=["raises", "mismatch"],
)
def test_ranks_of_a_ring_that_fails_can_be_used_again(pool, happens, error, words):
    with pytest.raises(error, match=words) as caught:
        pool.run(disturbed, happens)
    assert "exchange #" in str(caught.value)
    assert_usable(pool)
    found = pool.run(disturbed, lambda comm: None)
    for mine, other in zip(
        found, simulate([ring_attention(r, RANKS, *operands(r)) for r in range(RANKS)]), strict=True
    ):
        for x, y in zip(mine, other, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.faults("ranks at work", cases=2)
def test_a_stop_and_an_interrupt_in_rings_leave_workers_that_can_be_used(pool):
    def endless(comm, turn):
        comm.report("begun")
        for step in itertools.count():
            if not comm.agree_to_continue(step):
                return "stopped"
            drive(ring_attention(comm.rank, comm.world_size, *turn(comm.rank)), comm)

    job = pool.submit(endless, operands)
    while len(job.messages) < RANKS:
        job.wait_for_change(5)
    job.stop()
    assert job.result(timeout=60) == ["stopped"] * RANKS
    assert_usable(pool)
    timer = threading.Timer(0.4, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt, match="the run was interrupted"):
        pool.run(endless, operands)
    timer.join()
    assert_usable(pool)
