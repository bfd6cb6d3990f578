"""A world on MPI from a notebook: the answers, errors and controls of shared-memory workers, and nothing stays behind,
whoever dies.

Needs mpirun and mpi4py: skipped, with the reason, where they are missing; on the build machine a skip is a failure
(tests/conftest.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import parallel_lab
from parallel_lab.base.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DeadlockError,
    RankDied,
    RankRaised,
    ShapeError,
    WorkersClosed,
)
from parallel_lab.ops.collectives.definitions import COLLECTIVES
from parallel_lab.processes import mpi
from parallel_lab.processes.mpi import launch
from parallel_lab.processes.mpi.pool import MpiPool, close_mpi_pools, get_mpi_pool
from parallel_lab.run.communicator import Request
from tests.processes.drawn import DTYPES, assert_same_bits, cases
from tests.processes.pools import NEEDS_MPI, assert_usable
from tests.processes.processes import gone, state_of

ROOT = str(Path(parallel_lab.__file__).parents[1])
PROMISE_BOUND_S = 5.0
pytestmark = [
    pytest.mark.timeout(120),  # nothing hangs: a wait without end fails here, with all stacks
    NEEDS_MPI,
]


@pytest.fixture(scope="module")
def pool():
    """Three ranks; kept through all faults that must not cost the workers."""
    with MpiPool(3, timeout_s=20) as pool:
        pool.pids_at_start = pool.pids
        yield pool


@pytest.mark.quick(3)
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_every_kind_and_dtype_equals_answer(pool, kind):
    dtypes = DTYPES
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        # max and min of complex numbers are not defined in all numpy versions
        dtypes = tuple(d for d in DTYPES if d != "complex64")
    assert_same_bits(pool, cases(kind, 3, dtypes, big=False))


def test_named_methods_equal_the_formulas(pool):
    def program(comm):
        n, r = comm.world_size, comm.rank
        x = np.arange(2.0 * n) + 100 * r
        return (
            *(comm.all_reduce(x, "max"), comm.all_gather(x[:2]), comm.reduce_scatter(x), comm.all_to_all(x)),
            *(comm.reduce(x, root=1), comm.gather(x[:1], root=1), comm.barrier()),
        )

    n = 3
    x = np.arange(2.0 * n)
    for r, (top, gathered, piece, exchanged, reduced, collected, nothing) in enumerate(pool.run(program)):
        np.testing.assert_array_equal(top, x + 100 * (n - 1))
        np.testing.assert_array_equal(gathered, np.concatenate([[100 * i, 100 * i + 1] for i in range(n)]))
        np.testing.assert_array_equal(piece, (n * x + 100 * n * (n - 1) / 2)[2 * r : 2 * r + 2])
        np.testing.assert_array_equal(exchanged, np.concatenate([x[2 * r : 2 * r + 2] + 100 * i for i in range(n)]))
        assert nothing is None and (reduced is None) == (r != 1) and (collected is None) == (r != 1)
        if r == 1:
            np.testing.assert_array_equal(reduced, n * x + 100 * n * (n - 1) / 2)
            np.testing.assert_array_equal(collected, 100.0 * np.arange(n))


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (400_000,)])
def test_send_and_recv_carry_any_size_around_the_ring_when_all_send_first(pool, shape):
    def program(comm, x):
        mine = np.asarray(x + comm.rank)
        comm.send(mine, (comm.rank + 1) % comm.world_size)
        mine[...] = -1  # a send has copied
        source = (comm.rank - 1) % comm.world_size
        return comm.recv(source, shape=x.shape, dtype=x.dtype), source

    x = np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape)
    for got, source in pool.run(program, x):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, x + source)


def test_messages_arrive_in_order(pool):
    def program(comm):
        other = 1 - comm.rank
        if comm.rank > 1:
            return None
        for i in range(30):
            comm.send(np.full(i * 300, i), other)
        return [int(comm.recv(other).sum()) for i in range(30)]

    assert pool.run(program)[:2] == [[i * i * 300 for i in range(30)]] * 2


def test_records_hold_index_kind_times_bytes_group_and_line(pool):
    def program(comm):
        comm.recording = True
        comm.all_reduce(np.ones(1000))
        comm.all_gather(np.ones(10, "f4"), group=(0, 1, 2))
        comm.barrier()
        comm.recording = False
        return comm.records

    n = 3
    for records in pool.run(program):
        sent = [(0, "all_reduce", 2 * (n - 1) * 8000 // n), (1, "all_gather", (n - 1) * 40), (2, "barrier", 0)]
        assert [(r[0], r[1], r[4]) for r in records] == sent
        assert all(r[5] == (0, 1, 2) and "test_mpi_pool.py:" in r[6] for r in records)
        times = [t for r in records for t in r[2:4]]
        assert times == sorted(times)
    flight = pool.flight_record()
    assert [[entry.kind for entry in flight[rank]] for rank in range(3)] == [
        ["all_reduce", "all_gather", "barrier"]
    ] * 3


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (lambda comm: comm.all_gather(np.float32(1)), ShapeError),
        (lambda comm: comm.reduce_scatter(np.ones(2 * comm.world_size + 1)), ShapeError),
        (lambda comm: comm.all_reduce(np.array([object()])), ShapeError),
        (lambda comm: comm.all_reduce(np.ones(1), "average"), CollectiveMismatch),
        (lambda comm: comm.broadcast(np.ones(1), root=99), CollectiveMismatch),
        (lambda comm: comm.send(np.ones(1), comm.rank), CollectiveMismatch),
    ],
    ids=["0-d gather", "uneven pieces", "objects", "unknown reduce", "root outside", "send to itself"],
)
def test_call_that_cannot_work_is_refused_with_the_rank_named(pool, call, cause):
    with pytest.raises(RankRaised, match=r"rank \d \(pid \d+\) raised") as caught:
        pool.run(call)
    assert isinstance(caught.value.__cause__, cause)
    assert_usable(pool)


def test_a_mismatch_found_in_a_group_stops_ranks_of_other_groups(pool):
    """Ranks 0 and 1 disagree; rank 2 waits for a message from rank 0, which nobody will send."""

    def program(comm):
        if comm.rank == 2:
            comm.recv(0)
        comm.all_reduce(np.ones(2 + comm.rank), group=(0, 1))

    start = time.monotonic()
    with pytest.raises(CollectiveMismatch, match=r"Rank.* 2 stopped in recv"):
        pool.run(program)
    assert time.monotonic() - start < PROMISE_BOUND_S
    assert_usable(pool)


def test_roots_that_give_other_shapes_than_expected_and_unread_messages(pool):
    def shapes(comm):
        value = np.ones(8) if comm.rank == 0 else None
        comm.answer(
            Request("broadcast", (0, 1, 2), value, root=0, shape=(4,) if comm.rank == 1 else (8,), dtype="float64")
        )

    def unread(comm):
        if comm.rank == 0:
            comm.send(np.ones(300_000), 1)

    def other_shape(comm):
        if comm.rank == 0:
            comm.send(np.ones(3), 1)
        if comm.rank == 1:
            comm.recv(0, shape=(4,), dtype="float64")

    for program, text in (
        (shapes, r"\((8|4),\).*\((4|8),\).*differ in shape"),
        (unread, r"rank 0 sent 1 message to rank 1, which received 0"),
        (other_shape, r"expects .*\(4,\)"),
    ):
        with pytest.raises(CollectiveMismatch, match=text):
            pool.run(program)
        assert_usable(pool)


def test_an_exception_is_shown_with_the_users_frames_and_folds_the_others(pool):
    def program(comm):
        comm.all_reduce(np.ones(3))
        if comm.rank == 1:
            raise ValueError("bad layer 7")
        comm.all_reduce(np.ones(50_000))

    # a slow rank may be stopped while it still waits for an arrival of the call before
    text = (
        r"rank 1 \(pid \d+\) raised ValueError: bad layer 7. Ranks? 0.* stopped in all_reduce #\d "
        r"\(test_mpi_pool.py:\d+\)"
    )
    with pytest.raises(RankRaised, match=text) as caught:
        pool.run(program)
    assert isinstance(caught.value.__cause__, ValueError)
    assert [frame.name for frame in caught.value.frames] == ["program"]
    assert_usable(pool)


def test_deadlock_of_messages_is_told(pool):
    def program(comm):
        comm._handshake.warn_after_s = 0.2
        try:
            comm.recv((comm.rank + 1) % 3)
        finally:
            comm._handshake.warn_after_s = 2.0

    with (
        pytest.warns(RuntimeWarning, match="has waited 0.2 s for rank"),
        pytest.raises(DeadlockError, match="rank 0 waits for rank 1 in recv"),
    ):
        pool.run(program)
    assert_usable(pool)


def counting(comm):
    x = np.zeros(1)
    for step in range(1_000_000):
        if not comm.agree_to_continue(step):
            break
        x = comm.all_reduce(x + 1) / comm.world_size
        comm.report(step)
        time.sleep(0.002)
    return int(x[0])


def test_a_job_is_paused_resumed_and_stopped_at_one_step(pool):
    job = pool.submit(counting)
    while len(job.messages) < 9:
        job.wait_for_change(5)
    job.pause()
    time.sleep(0.3)
    seen = len(job.messages)
    time.sleep(0.3)
    assert job.state == "paused" and len(job.messages) == seen
    job.resume()
    while len(job.messages) <= seen:
        job.wait_for_change(5)
    job.stop()
    counts = job.result(timeout=10)
    assert len(set(counts)) == 1 and counts[0] > 2
    assert_usable(pool)


def interrupted(pool, fn, after_s=0.4):
    """Run fn and press Ctrl-C; (the KeyboardInterrupt, seconds it took)."""
    pressed = []

    def press():
        pressed.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    timer = threading.Timer(after_s, press)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            pool.run(fn)
        return str(caught.value), time.monotonic() - pressed[0]
    finally:
        timer.cancel()
        timer.join()


@pytest.mark.faults
@pytest.mark.parametrize("size", [4, 300_000], ids=["small", "large"])
def test_an_interrupt_keeps_the_workers(pool, size):
    def endless(comm):
        while True:
            comm.all_reduce(np.ones(size))

    text, took_s = interrupted(pool, endless)
    print(f"interrupt: {took_s:.2f} s")
    assert text == "the run was interrupted" and took_s < PROMISE_BOUND_S
    assert_usable(pool)
    assert pool.run(lambda comm: comm.broadcast(np.full(5000, comm.rank), root=2)[0]) == [2, 2, 2]


@pytest.mark.exhaustive
@pytest.mark.faults
def test_an_interrupt_ends_workers_that_do_not_come_back_and_says_so():
    def busy(comm):
        while comm.rank == 1:
            pass
        comm.barrier()

    with MpiPool(2) as mine:
        text, took_s = interrupted(mine, busy, after_s=1.0)
        assert "rank 1 did not stop; all workers were ended and their state is lost" in text, text
        assert took_s < PROMISE_BOUND_S
        assert gone(mine.pids, PROMISE_BOUND_S) is not None
        with pytest.raises(WorkersClosed, match="rank 1 did not stop"):
            mine.run(lambda comm: 1)


# ---- deaths: an error that names the cause, and nothing is left ----


def folders_of(pid: int) -> list[str]:
    """The names that worlds of the notebook process `pid` have made."""
    places = [Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp"))]
    return [str(f) for place in places if place.is_dir() for f in place.glob(f"parallel-lab-mpi-{pid}-*")]


def waiting(comm):
    comm.report("at work")
    while True:
        comm.all_reduce(np.ones(1000))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("die", "text"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"rank 1 \(pid \d+\) was killed by SIGKILL \(signal 9\)"),
        pytest.param(lambda: os._exit(7), r"rank 1 \(pid \d+\) ended with exit code 7", marks=pytest.mark.exhaustive),
    ],
    ids=["kill", "exit"],
)
def test_a_rank_that_dies_ends_the_job_with_its_name(die, text):
    def program(comm):
        comm.barrier()
        if comm.rank == 1:
            die()
        comm.barrier()

    before = folders_of(os.getpid())
    with MpiPool(3) as mine:
        assert len(folders_of(os.getpid())) > len(before)
        start = time.monotonic()
        with pytest.raises(RankDied, match=text):
            mine.run(program)
        took_s = time.monotonic() - start
        print(f"death told after {took_s:.2f} s")
        assert took_s < PROMISE_BOUND_S
        assert not mine.alive and gone(mine.pids, PROMISE_BOUND_S) is not None
        assert folders_of(os.getpid()) == before
        with pytest.raises(WorkersClosed):
            mine.run(lambda comm: 1)


@pytest.mark.parametrize(
    ("lines", "rank"),
    [
        (["mpirun noticed that process rank 2 with PID 0 on node here exited on signal 9 (Killed)."], 2),
        (
            ["mpirun detected that one or more processes exited", "", "Process name: [[31290,1],1]", "Exit code:    7"],
            1,
        ),
        (["   Process name: [prterun-here-7@1,2]", "   Exit code:    7"], 2),
        (["=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "=   RANK 1 PID 4242 RUNNING AT here"], 1),
        (["words that nobody knows"], 0),
        (["process rank 99 with PID 0"], 0),
    ],
    ids=["Open MPI 4, signal", "Open MPI 4, code", "Open MPI 5", "MPICH", "unknown", "no rank of ours"],
)
def test_the_rank_that_died_first_is_the_one_mpirun_names(pool, monkeypatch, lines, rank):
    """mpirun ends the others so quickly that their sockets may end first; lines as the launchers print them."""
    monkeypatch.setattr(pool, "_lines", lines)
    assert pool._named_by_mpirun(0) == rank


@pytest.mark.exhaustive
@pytest.mark.faults
def test_a_stopped_rank_is_named_by_the_time_limit_and_ended():
    with MpiPool(3, timeout_s=1.5, warn_after_s=0.5) as mine:
        job = mine.submit(waiting)
        while not job.messages:
            job.wait_for_change(5)
        os.kill(mine.pids[1], signal.SIGSTOP)
        refused = pytest.raises(CollectiveTimeout, match=r"rank 1 did not come within 1.5 s")
        with (
            pytest.warns(RuntimeWarning, match=r"for ranks? (0, )?1(, 2)? in"),
            refused,
        ):  # the others may be late on a busy machine
            job.result(timeout=30)
        assert gone(mine.pids, PROMISE_BOUND_S) is not None


NOTEBOOK = """
import json, sys, time
import numpy as np
from parallel_lab.processes.mpi.pool import MpiPool
from tests.processes.test_mpi_pool import waiting
pool = MpiPool(3)
job = pool.submit(waiting)
while not job.messages:
    job.wait_for_change(5)
print(json.dumps([pool.pids, pool._keeper.pid]), flush=True)
job.result()
"""


RARELY = ("kill with a stopped rank", "kill the group", "terminate", "kill the keeper")


def descendants(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found += [child, *descendants(child)]
    return found


@pytest.mark.quick(1)
@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are counted in /proc")
@pytest.mark.parametrize(
    "how", ["kill", "kill mpirun", *(pytest.param(how, marks=pytest.mark.exhaustive) for how in RARELY)]
)
def test_nothing_stays_when_the_notebook_or_a_process_between_dies(how):
    """Guards against: ranks, mpirun and Open MPI's segments that outlive the notebook."""
    environment = {**launch.rank_environment(), "PYTHONPATH": ROOT}
    notebook = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = []
    try:
        told = notebook.stdout.readline()
        assert told, notebook.communicate()[1]
        ranks, keeper = json.loads(told)
        pids = [keeper, *descendants(keeper)]
        assert set(ranks) <= set(pids) and folders_of(notebook.pid)
        if how == "kill with a stopped rank":
            os.kill(ranks[1], signal.SIGSTOP)
        start = time.monotonic()
        if how == "kill the keeper":
            os.kill(keeper, signal.SIGKILL)
        elif how == "kill mpirun":
            os.kill(descendants(keeper)[0], signal.SIGKILL)
        elif how == "terminate":
            notebook.terminate()
        elif how == "kill the group":
            os.killpg(notebook.pid, signal.SIGKILL)
        else:
            notebook.kill()
        _, errors = notebook.communicate(timeout=30)
        took_s = gone(pids, PROMISE_BOUND_S)
        assert took_s is not None, [pid for pid in pids if state_of(pid) != "Z"]
        end = time.monotonic() + PROMISE_BOUND_S
        while (left := folders_of(notebook.pid)) and time.monotonic() < end:
            time.sleep(0.01)
        assert left == []
        print(f"{how}: all gone after {time.monotonic() - start:.2f} s")
        if how in ("kill the keeper", "kill mpirun"):
            assert "RankDied" in errors, errors
    finally:
        for pid in [notebook.pid, *pids]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        notebook.communicate()


def test_a_world_that_cannot_start_says_why(monkeypatch):
    before = folders_of(os.getpid())
    monkeypatch.setattr(
        "parallel_lab.processes.mpi.launch.mpirun_command",
        lambda n, argv: [mpi.find_mpirun(), "--no-such-option", *argv],
    )
    with pytest.raises(RankDied, match=r"mpirun ended with exit code .*no-such-option"):
        MpiPool(2)
    assert folders_of(os.getpid()) == before


def test_folders_of_worlds_whose_processes_were_all_killed_are_removed_by_the_next_one(tmp_path, monkeypatch):
    from parallel_lab.processes.mpi import pool as module

    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    stale, own = tmp_path / f"{module.PREFIX}{child.pid}-ab12", tmp_path / f"{module.PREFIX}{os.getpid()}-ab12"
    stale.mkdir()
    own.mkdir()
    module._remove_stale_folders()
    assert not stale.exists() and own.exists()


@pytest.mark.exhaustive
def test_the_shared_pool_is_kept_and_made_anew_when_lost():
    try:
        first = get_mpi_pool(2)
        assert get_mpi_pool(2) is first
        first.kill("by the test")
        second = get_mpi_pool(2)
        assert second is not first and second.run(lambda comm: comm.rank) == [0, 1]
    finally:
        close_mpi_pools()
    assert second.closed
