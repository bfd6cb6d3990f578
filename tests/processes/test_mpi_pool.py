"""MPI from a notebook: shared memory's answers, errors, controls; nothing stays. Skipped without mpirun, mpi4py."""

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
from parallel_lab.base.errors import CollectiveMismatch, CollectiveTimeout, DeadlockError, RankDied, WorkersClosed
from parallel_lab.processes import mpi
from parallel_lab.processes.mpi import launch
from parallel_lab.processes.mpi.pool import MpiPool, close_mpi_pools, get_mpi_pool
from parallel_lab.processes.outcome import death_text
from tests.crossed import each_of
from tests.processes.pools import MPI, NEEDS_MPI, assert_usable, pool_of
from tests.processes.processes import PROMISE_BOUND_S, descendants, gone, state_of, stop

ROOT = str(Path(parallel_lab.__file__).parents[1])
# nothing hangs: a wait without end fails here, with all stacks
pytestmark = [pytest.mark.timeout(120), NEEDS_MPI]


pool = pool_of([MPI])


@pytest.mark.exhaustive
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


def test_deadlock_of_messages_is_reported(pool):
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


@pytest.mark.quick(1)
@pytest.mark.faults("ranks at work", cases=2)
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
@pytest.mark.faults("ranks at work")
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


@pytest.mark.faults("ranks at work")
@each_of(
    ("die", "text"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), r"rank 1 \(pid \d+\) was killed by SIGKILL \(signal 9\)"),
    pytest.param(lambda: os._exit(7), r"rank 1 \(pid \d+\) ended with exit code 7", marks=pytest.mark.exhaustive),
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


@each_of(
    ("lines", "rank"),
    (["mpirun noticed that process rank 2 with PID 0 on node here exited on signal 9 (Killed)."], 2),
    (["mpirun detected that one or more processes exited", "", "Process name: [[31290,1],1]", "Exit code:    7"], 1),
    (["   Process name: [prterun-here-7@1,2]", "   Exit code:    7"], 2),
    (["=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "=   RANK 1 PID 4242 RUNNING AT here"], 1),
    (["words that nobody knows"], 0),
    (["process rank 99 with PID 0"], 0),
    ids=["Open MPI 4, signal", "Open MPI 4, code", "Open MPI 5", "MPICH", "unknown", "no rank of ours"],
)
def test_the_rank_that_died_first_is_the_one_mpirun_names(pool, monkeypatch, lines, rank):
    """mpirun ends the others so quickly that their sockets may end first; lines as the launchers print them."""
    monkeypatch.setattr(pool, "_lines", lines)
    assert pool._named_by_mpirun(0) == rank


@pytest.mark.exhaustive
@pytest.mark.faults("ranks at work")
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


@pytest.mark.portable
@pytest.mark.quick(0)
@pytest.mark.faults("ranks at work", cases=1)
@each_of("how", "kill", "kill mpirun", *(pytest.param(how, marks=pytest.mark.exhaustive) for how in RARELY))
def test_nothing_stays_when_the_notebook_or_a_process_between_dies(how):
    """Guards against: ranks, mpirun and Open MPI's segments that outlive the notebook."""
    environment = {**launch.rank_environment(), "PYTHONPATH": ROOT}
    command, pipes = [sys.executable, "-c", NOTEBOOK], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    notebook = subprocess.Popen(command, env=environment, **pipes, text=True, start_new_session=True)
    pids = []
    try:
        told = notebook.stdout.readline()
        assert told, notebook.communicate()[1]
        ranks, keeper = json.loads(told)
        pids = [keeper, *descendants(keeper)]
        assert set(ranks) <= set(pids) and folders_of(notebook.pid)
        if how == "kill with a stopped rank":
            stop(ranks[1])
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


@pytest.mark.portable
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


def test_a_death_that_mpirun_has_not_reported_in_time_has_no_exit_code():
    assert death_text(1, 5, None) == "rank 1 (pid 5) ended"
