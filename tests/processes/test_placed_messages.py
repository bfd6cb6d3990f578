"""Large messages that are read where they lie (`processes/shm/fast/placed.py`): in the sender's shared array or its own
memory while it waits, or in a copy in its heap. The values given, with either side first, and when both act at once; a
sender that waits for a receiver that dies gets an error."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, RankDied
from parallel_lab.processes.shm import WorkerPool
from tests.processes.pools import assert_usable, noted
from tests.processes.processes import PROMISE_BOUND_S, state_of

COUNT = 200_000  # float64: 1.5 MiB


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2, timeout_s=20) as pool:
        yield noted(pool)


def filled(comm, size, where, first):
    x = comm.empty(size, "float64") if where == "shared" else np.empty(size)
    x[...] = np.arange(size) + first
    return x


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", ["receiver", "sender"])
@pytest.mark.parametrize("where", ["shared", "own"])
def test_a_value_arrives_as_given_with_either_rank_first(pool, where, first):
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


@pytest.mark.quick(1)
@pytest.mark.parametrize("allowed", [True, False])
def test_a_private_value_is_copied_once_to_a_waiting_rank_that_may_read_it(allowed):
    """Where the receiver may not read another process's memory, the sender copies the value to its heap."""

    def program(comm, allowed):
        from tests.processes.test_placed_messages import COUNT, filled

        if not allowed:
            comm._channels.peers._call = None
        for turn in range(3):
            comm.barrier()
            if comm.rank == 0:
                time.sleep(0.05)  # the receiver waits
                x = filled(comm, COUNT, "own", turn)
                comm.send(x, 1)
                x[...] = -1
            elif not np.array_equal(comm.recv(0), np.arange(COUNT) + turn):
                return None
        return comm._arrays.committed_bytes

    with WorkerPool(2, timeout_s=20) as mine:
        sender, receiver = mine.run(program, allowed)
        assert receiver == 0 and (sender == 0 if allowed else sender >= 8 * COUNT)
        assert mine.run(program, allowed)[1] == 0  # in another run as in the first


@pytest.mark.quick(1)
@pytest.mark.parametrize("turns", [100, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("where", ["shared", "own"])
def test_a_sender_may_give_up_at_any_moment_of_the_reading(where, allowed, turns):
    """It looks for the receiver, which comes when it wants, for a drawn time, and changes the value then."""

    def program(comm, where, allowed, turns):
        from tests.processes.test_placed_messages import COUNT, filled

        if not allowed:
            comm._channels.peers._call = None
        if comm.rank == 1:
            out, wrong, rng = np.empty(COUNT), 0, np.random.default_rng(17)
            for turn in range(turns):
                end_s = time.perf_counter() + rng.choice([0, 1e-4, 2e-4, 5e-4])
                while time.perf_counter() < end_s:
                    pass
                wrong += not (comm.recv(0, out=out) == turn).all()
                if turn % 7 == 0:
                    wrong += int(comm.recv(0, sr_tag=1)[0]) != turn
            return wrong
        rng, channels = np.random.default_rng(16), comm._channels
        looks, come = [0], channels.comes

        def comes(word, value, size_bytes):
            if word in (comm._arena.map.ring_read(0, 1), comm._arena.map.ring_waits(0, 1)):
                end_s = time.perf_counter() + rng.choice([0, 0, 1e-4, 3e-4, 1e-3])
                looks[0] += 1
                while comm._words[word] < value and time.perf_counter() < end_s:
                    os.sched_yield()
                return comm._words[word] >= value
            return come(word, value, size_bytes)

        channels.comes = comes
        x = filled(comm, COUNT, where, 0)
        for turn in range(turns):
            x[...] = turn
            comm.send(x, 1)
            x[...] = -1
            if turn % 7 == 0:
                comm.send(np.array([turn]), 1, sr_tag=1)
        return looks[0] > 0

    with WorkerPool(2, timeout_s=20) as mine:
        assert mine.run(program, where, allowed, turns) == [True, 0]


@pytest.mark.quick(1)
@pytest.mark.parametrize("turns", [1, 3])
def test_a_value_that_no_shared_memory_is_left_for_arrives_after_the_sender_has_returned(pool, turns):
    def program(comm, turns):
        from parallel_lab.base.errors import SharedMemoryTooSmall
        from tests.processes.test_placed_messages import COUNT

        comm.barrier()
        if comm.rank == 1:
            comm.recv(0)  # it can be read
            comm.barrier()
            time.sleep(0.2)
            return [comm.recv(0)[-1] for _ in range(turns)]
        comm.send(np.zeros(COUNT), 1)
        comm.barrier()

        def full(*args):
            raise SharedMemoryTooSmall("full")

        comm._arrays.empty = full
        try:
            for turn in range(turns):
                x = np.full(COUNT, float(turn))
                comm.send(x, 1)
                x[...] = -1
        finally:
            del comm._arrays.empty
        return None

    assert pool.run(program, turns) == [None, list(range(turns))]


@pytest.mark.faults("ranks at work")
def test_a_reader_of_the_memory_of_a_lost_sender_gets_an_error():
    """The receiver is stopped while it waits, and goes on when the sender has died in its send."""

    def program(comm):
        from tests.processes.test_placed_messages import COUNT

        pids = comm.all_gather(np.array([os.getpid()]))
        if comm.rank == 0:
            comm.recv(1)
            return
        time.sleep(0.3)
        os.kill(int(pids[0]), signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        comm.send(np.ones(COUNT), 0)

    with WorkerPool(2, timeout_s=20) as mine:
        job, seen, pids = mine.submit(program), [], mine.pids
        end = time.monotonic() + PROMISE_BOUND_S
        while len(seen) < 2 and time.monotonic() < end:  # stopped; then the other one gone
            wanted = ("T", "Z")[len(seen)]
            seen += [wanted] if state_of(pids[len(seen)]) == wanted else []
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):  # on a busy machine the pool may have ended it meanwhile
            os.kill(pids[0], signal.SIGCONT)
        with pytest.raises(RankDied, match=r"rank 1 .*SIGKILL"):
            job.result(PROMISE_BOUND_S)
        assert seen == ["T", "Z"]


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


def test_another_shape_is_reported(pool):
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


@pytest.mark.quick(1)
@pytest.mark.faults("ranks at work", cases=2)
@pytest.mark.parametrize("where", ["shared", "own"])
def test_a_receiver_that_dies_ends_the_sender_that_waits_for_it(where):
    """Stopped while it waits, then killed: the sender, whose value is not copied, waits for it till then."""

    def program(comm, where):
        from tests.processes.test_placed_messages import COUNT, filled

        pid = int(comm.all_gather(np.array([os.getpid()]))[1])
        if comm.rank == 1:
            comm.recv(0)
        else:
            time.sleep(0.3)
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
            comm.send(filled(comm, COUNT, where, 0), 1)
            comm.barrier()

    with WorkerPool(2, timeout_s=20) as mine:
        start = time.monotonic()
        with pytest.raises(RankDied, match=r"rank 1 .*SIGKILL"):
            mine.run(program, where)
        assert time.monotonic() - start < PROMISE_BOUND_S


@pytest.mark.exhaustive
@pytest.mark.parametrize("arena_bytes", [4 << 20, 64 << 20, 1 << 30])  # rings of all lengths
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_drawn_messages_of_all_lengths_arrive_as_given(ranks, arena_bytes):
    """In runs of equal ones, from own and shared arrays, into new, own and shared ones; a receiver is late at times."""

    def program(comm, seed):
        rng, mine = np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
        sizes = (1, 7, 1024, 16384, 32771, 131072, 262080, 262144, 262145, 400_000, 524_288)  # float32: to 2 MiB
        arrays = [{size: make(size, np.float32) for size in sizes} for make in (np.empty, comm.empty)]
        wrong = turn = 0
        while turn < 400:
            sender, to = map(int, rng.choice(comm.world_size, 2, replace=False))
            size = int(rng.choice(sizes))
            count, sr_tag, gives, takes = (int(rng.integers(n)) for n in (6, 3, 2, 3))
            if comm.rank == to and mine.random() < 0.3:
                time.sleep(mine.choice([1e-4, 1e-3, 3e-3]))
            for _ in range(count + 1):
                turn += 1
                if comm.rank == sender:
                    x = arrays[gives][size]
                    x[...] = turn
                    comm.send(x, to, sr_tag=sr_tag)
                    x[...] = -1
                elif comm.rank == to:
                    out = arrays[takes][size] if takes < 2 else None
                    wrong += not np.array_equal(comm.recv(sender, sr_tag=sr_tag, out=out), np.full(size, turn))
        return wrong

    with WorkerPool(ranks, timeout_s=60, arena_bytes=arena_bytes) as mine:
        for seed in (16, 17):
            print(f"seed {seed}")
            assert mine.run(program, seed) == [0] * ranks
