"""send and recv of places that call again (`processes/shm/fast/messages.py`): the values given each time, whatever
comes between; what does not fit, a rank that dies and one that has returned are reported as at a new place."""

import os
import signal

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, RankDied, RankRaised
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import each_of
from tests.processes.pools import assert_usable, noted

# mostly like the last one; rings of 64 KiB are gone over, or too small: then values are read where they lie
SIZES = ((1, 1000, 1000, 1000, 70_000), (1000, 70_000, 70_000, 70_000, 70_001))


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2, timeout_s=20, arena_bytes=512 << 10) as pool:
        yield pool


def drawn(seed, count=300):
    """Messages of rank 0 and of rank 1: (size, first value), drawn alike everywhere; of odd seeds mostly large."""
    rng = np.random.default_rng(20261123 + seed)
    return [[(int(rng.choice(SIZES[seed % 2])), float(k + 1000 * r)) for k in range(count)] for r in (0, 1)]


def exchange(comm, seed, kind):
    """Both ranks send and receive at one place each; rank 1 receives first. Returns what differs from what was sent."""
    from tests.processes.test_known_messages import drawn

    mine, theirs = drawn(seed)[comm.rank], drawn(seed)[1 - comm.rank]
    other, wrong = 1 - comm.rank, []

    def take(number):
        size, first = theirs[number]
        want, out = np.arange(size) + first, None
        if kind == "out":
            out = np.full(size, -1.0)
        got = comm.recv(other, (size,), "float64") if kind == "told" else comm.recv(other, out=out)
        if (got is not out and out is not None) or got.dtype != want.dtype or not np.array_equal(got, want):
            wrong.append(number)

    started = []
    for number, (size, first) in enumerate(mine):
        x = (comm.empty if number % 3 else np.empty)(size, np.float64)
        x[...] = np.arange(size) + first
        if comm.rank:
            take(number)
        if kind == "started" and number % 7 == 3:
            started.append((comm.start("send", x, (comm.rank, other)), x))
        else:
            comm.send(x, other)
            x[...] = -2  # it is copied
        if not comm.rank:
            take(number)
    for handle, _ in started:
        handle.wait()
    return wrong


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["new", "out", "told", "started"])
@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_given_each_time(pool, seed, kind):
    assert pool.run(exchange, seed, kind) == [[], []], f"seed {seed}"


def test_tags_are_received_in_any_order_at_known_places(pool):
    def program(comm):
        got = []
        for turn in range(20):
            if comm.rank == 0:
                for tag in (1, 2, 1):
                    comm.send(np.full(50, 100.0 * turn + tag), 1, sr_tag=tag)
                comm.barrier()
            else:
                comm.barrier()
                for tag in (2, 1, 1):
                    got.append(float(comm.recv(0, sr_tag=tag)[7]) == 100.0 * turn + tag)
        return all(got)

    assert pool.run(program) == [True, True]


def test_each_is_in_the_flight_recorder_with_its_number(pool):
    def program(comm):
        x = np.ones(10)
        for _ in range(5):
            (comm.send(x, 1) if comm.rank == 0 else comm.recv(0))
        return [(e.kind, e.number, e.end_s is not None) for e in comm._arena.flight(comm.rank)]

    for rank, kind in enumerate(("send", "recv")):
        assert pool.run(program)[rank] == [(kind, number, True) for number in range(5)]


@pytest.mark.quick(3)
@pytest.mark.parametrize("count", [4, 200_000])
@each_of(
    ("last", "error", "words"),
    ("shape", CollectiveMismatch, r"expects float64 \({0},\) from rank 0, which sent float64 \({1},\)"),
    ("dtype", CollectiveMismatch, r"expects float64 \({0},\) from rank 0, which sent float32 \({0},\)"),
    ("return", CollectiveMismatch, "rank 0 has returned while rank 1 waits for it in recv"),
    ("raise", RankRaised, "rank 0 .*raised ValueError: enough"),
    ("die", RankDied, "rank 0"),
)
def test_the_end_of_a_known_place_is_reported(last, error, words, count):
    def program(comm, last, count):
        for turn in range(6):
            if comm.rank == 1:
                comm.recv(0, (count,), "float64")
            elif turn < 5 or last in ("shape", "dtype"):
                size, dtype = (count + 1 if last == "shape" and turn == 5 else count), "f8"
                comm.send(np.ones(size, "f4" if last == "dtype" and turn == 5 else dtype), 1)
            elif last == "raise":
                raise ValueError("enough")
            elif last == "die":
                os.kill(os.getpid(), signal.SIGKILL)

    with WorkerPool(2, timeout_s=20) as pool:
        noted(pool)
        with pytest.raises(error, match=words.format(count, count + 1)):
            pool.run(program, last, count)
        if last != "die":
            assert_usable(pool)


def test_messages_that_nobody_receives_are_reported(pool):
    def program(comm):
        for _ in range(5):
            if comm.rank == 0:
                comm.send(np.ones(3), 1)
        for _ in range(4):
            if comm.rank == 1:
                comm.recv(0)

    with pytest.raises(CollectiveMismatch, match="rank 0 sent 5 messages to rank 1, which received 4"):
        pool.run(program)
