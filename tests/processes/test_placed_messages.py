"""Large messages that are read where they lie (`processes/shm/fast/placed.py`): in the sender's shared array while it
waits, or in a copy in its heap. The values given, whoever is first; who waits for a receiver that dies is told."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, RankDied
from parallel_lab.processes.shm import WorkerPool
from tests.processes.pools import assert_usable, noted

COUNT = 200_000  # float64: 1.5 MiB
PROMISE_BOUND_S = 5.0


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2, timeout_s=20) as pool:
        yield noted(pool)


def filled(comm, size, where, first):
    x = comm.empty(size, "float64") if where == "shared" else np.empty(size)
    x[...] = np.arange(size) + first
    return x


@pytest.mark.parametrize("first", ["receiver", "sender"])
@pytest.mark.parametrize("where", ["shared", "own"])
def test_a_value_arrives_as_given_whoever_comes_first(pool, where, first):
    def program(comm, where, first):
        from tests.processes.test_placed_messages import COUNT, filled

        late, wrong = (first == "sender") == (comm.rank == 1), []
        for turn in range(4):
            comm.barrier()
            if late:
                time.sleep(0.05)
            if comm.rank == 0:
                x = filled(comm, COUNT, where, turn)
                comm.send(x, 1)
                x[...] = -1  # it is copied
            else:
                out = None if turn % 2 else np.empty(COUNT)
                got = comm.recv(0, out=out)
                wrong += [turn] if not np.array_equal(got, np.arange(COUNT) + turn) else []
        return wrong

    assert pool.run(program, where, first) == [[], []]


def test_many_for_a_receiver_that_is_late_arrive_in_order_with_small_ones_between(pool):
    def program(comm):
        from tests.processes.test_placed_messages import COUNT, filled

        sizes = [COUNT, 3, COUNT // 2, COUNT, 1, COUNT] * 2
        if comm.rank == 0:
            x = comm.empty(COUNT, "float64")
            for turn, size in enumerate(sizes):
                x[...] = turn
                comm.send(x[:size] if turn % 2 else filled(comm, size, "own", turn), 1, sr_tag=turn % 2)
            x[...] = -1
            comm.barrier()
            return True
        comm.barrier()
        got = [(turn, comm.recv(0, sr_tag=turn % 2)) for turn in (*range(1, 12, 2), *range(0, 12, 2))]
        want = {turn: np.full(size, turn) if turn % 2 else np.arange(size) + turn for turn, size in enumerate(sizes)}
        return all(np.array_equal(array, want[turn]) for turn, array in got)

    assert pool.run(program) == [True, True]


def test_both_send_before_they_receive(pool):
    def program(comm):
        from tests.processes.test_placed_messages import COUNT

        x, other = comm.empty(COUNT, "float64"), 1 - comm.rank
        for turn in range(5):
            x[...] = 10 * turn + comm.rank
            comm.send(x, other)
            x[...] = -1
            if not (comm.recv(other) == 10 * turn + other).all():
                return False
        return True

    assert pool.run(program) == [True, True]


def test_another_shape_is_told(pool):
    def program(comm):
        from tests.processes.test_placed_messages import COUNT

        if comm.rank == 0:
            time.sleep(0.05)
            comm.send(comm.empty(COUNT, "float64"), 1)
        else:
            comm.recv(0, (COUNT + 1,), "float64")
        comm.barrier()

    words = rf"rank 1 expects float64 \({COUNT + 1},\) from rank 0, which sent float64 \({COUNT},\)"
    with pytest.raises(CollectiveMismatch, match=words):
        pool.run(program)
    assert_usable(pool)


@pytest.mark.faults
def test_a_receiver_that_dies_ends_the_sender_that_waits_for_it():
    """Stopped while it waits, then killed: the sender, whose value lies in a shared array, waits for it till then."""

    def program(comm):
        from tests.processes.test_placed_messages import COUNT

        pid = int(comm.all_gather(np.array([os.getpid()]))[1])
        if comm.rank == 1:
            comm.recv(0)
        else:
            time.sleep(0.3)
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
            comm.send(comm.empty(COUNT, "float64"), 1)
            comm.barrier()

    with WorkerPool(2, timeout_s=20) as mine:
        start = time.monotonic()
        with pytest.raises(RankDied, match=r"rank 1 .*SIGKILL"):
            mine.run(program)
        assert time.monotonic() - start < PROMISE_BOUND_S
