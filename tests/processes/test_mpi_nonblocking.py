"""Collectives started on MPI, waited for later: an end for every rank. Both backends' handles: test_started.py."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveTimeout, DeadlockError, RankDied
from parallel_lab.processes.mpi.handshake import Handshake, _Waiting
from parallel_lab.processes.mpi.pool import MpiPool
from tests.processes.pools import MPI, NEEDS_MPI, assert_usable, pool_of
from tests.processes.processes import PROMISE_BOUND_S, gone

N = (0, 1, 2)

# nothing hangs: a wait without end fails here, with all stacks
pytestmark = [pytest.mark.timeout(120), NEEDS_MPI]


pool = pool_of([MPI])


# ---- waits that cannot end ----


def test_a_collective_that_one_rank_starts_and_another_calls_ends_on_every_rank(pool):
    def program(comm):
        comm._handshake.warn_after_s = 0.2
        try:
            if comm.rank == 1:
                comm.all_reduce(np.ones(3), group=(0, 1))
            elif comm.rank == 0:
                comm.start("all_reduce", np.ones(3), (0, 1)).wait()
        finally:
            comm._handshake.warn_after_s = 2.0

    start = time.monotonic()
    with (
        pytest.warns(RuntimeWarning, match="has waited 0.2 s for rank"),
        pytest.raises(DeadlockError, match=r"sum started of group \(0, 1\)") as caught,
    ):
        pool.run(program)
    assert str(caught.value).count("test_mpi_nonblocking.py:") >= 2
    assert time.monotonic() - start < PROMISE_BOUND_S
    assert_usable(pool)


def test_replies_come_in_the_order_of_the_starts(pool):
    """Rank 2 has its second reply early; the handle is done when the first one is, which rank 1 starts late."""

    def program(comm):
        if comm.rank == 0:
            comm.start("barrier", group=(0, 2)).wait()
        if comm.rank == 1:
            comm.recv(2)
            comm.start("barrier", group=(1, 2)).wait()
        if comm.rank < 2:
            return None
        first, second = comm.start("barrier", group=(1, 2)), comm.start("barrier", group=(0, 2))
        while second.end_s is None:
            comm.progress()
        before = first.done(), second.done()
        comm.send(np.ones(1), 1)
        second.wait()
        after = first.done()
        first.wait()
        return before, after

    assert pool.run(program)[2] == ((False, False), True)


@pytest.mark.exhaustive
def test_a_circle_through_a_handle_is_a_deadlock_on_every_rank(pool):
    def program(comm):
        comm._handshake.warn_after_s = 0.2
        try:
            if comm.rank == 0:
                comm.start("all_reduce", np.ones(9000), (0, 1)).wait()
                comm.send(np.ones(1), 1)
            elif comm.rank == 1:
                comm.recv(0)
                comm.start("all_reduce", np.ones(9000), (0, 1)).wait()
        finally:
            comm._handshake.warn_after_s = 2.0

    text = r"rank 0 waits for rank 1 in all_reduce #0 .*started.*; rank 1 waits for rank 0 in recv"
    with pytest.warns(RuntimeWarning, match="has waited 0.2 s for rank"), pytest.raises(DeadlockError, match=text):
        pool.run(program)
    assert_usable(pool)


def test_ranks_whose_data_is_on_its_way_wait_for_each_other_without_a_deadlock():
    """Guards against: a transfer of some seconds over a poor network, called a deadlock."""
    handshake = Handshake.__new__(Handshake)
    handshake.waiting = {0: _Waiting(1, (1,), "all_reduce", True), 1: _Waiting(1, (0,), "all_reduce", True)}
    assert handshake._circle(0) is None
    handshake.waiting = {rank: waiting._replace(moving=False) for rank, waiting in handshake.waiting.items()}
    assert handshake._circle(0) == [0, 1]


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", ["wait", "done"])
def test_a_time_limit_names_the_rank_that_never_starts(pool, how):
    def program(comm):
        limit_s, comm._handshake.timeout_s = comm._handshake.timeout_s, 0.3
        try:
            if comm.rank == 1:
                time.sleep(0.6)
            handle = comm.start("all_reduce", np.ones(3000))
            while how == "done" and not handle.done():
                time.sleep(0.01)
            return set(handle.wait())
        finally:
            comm._handshake.timeout_s = limit_s

    with pytest.raises(
        CollectiveTimeout, match=r"rank 1 did not come within 0.3 s; rank \d waits in all_reduce #0 .*started"
    ):
        pool.run(program)
    assert_usable(pool)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["wait", "done"])
def test_a_time_limit_names_the_rank_that_never_sends(pool, how):
    """Guards against: a loop over `done` of a recv that never ends."""

    def program(comm):
        limit_s, comm._handshake.timeout_s = comm._handshake.timeout_s, 0.3
        try:
            if comm.rank == 1:
                time.sleep(0.6)
                comm.send(np.ones(3), 0)
            if comm.rank == 0:
                handle = comm.start("recv", group=(1, 0))
                while how == "done" and not handle.done():
                    time.sleep(0.01)
                handle.wait()
        finally:
            comm._handshake.timeout_s = limit_s

    with pytest.raises(CollectiveTimeout, match=r"rank 1 did not come within 0.3 s; rank 0 waits in recv #0 "):
        pool.run(program)
    assert_usable(pool)


@pytest.mark.quick(0)
@pytest.mark.faults("ranks at work", cases=1)
@pytest.mark.parametrize("size", [3, 400_000], ids=["small", "large"])
def test_a_rank_that_dies_ends_those_that_wait_for_a_handle(size):
    def program(comm):
        comm.barrier()
        handle = comm.start("all_reduce", np.ones(size))
        if comm.rank == 1:
            time.sleep(0.2)  # the others wait by then, with what can have moved on its way
            os.kill(os.getpid(), signal.SIGKILL)
        handle.wait()
        comm.start("all_reduce", np.ones(size)).wait()

    with MpiPool(3) as mine:
        start = time.monotonic()
        with pytest.raises(RankDied, match=r"rank 1 \(pid \d+\) was killed by SIGKILL \(signal 9\)"):
            mine.run(program)
        took_s = time.monotonic() - start
        print(f"death told after {took_s:.2f} s")
        assert took_s < PROMISE_BOUND_S and not mine.alive and gone(mine.pids, PROMISE_BOUND_S) is not None


def test_a_stop_of_which_only_rank_0_has_heard_is_one_for_all_ranks(pool):
    def program(comm):
        comm.start("all_reduce", np.ones(3))
        if comm.rank == 0:
            comm.control = "stop"
        return comm.agree_to_continue()

    assert pool.run(program) == [False] * 3
    assert_usable(pool)
