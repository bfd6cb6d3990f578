"""One thread of one process makes a rank's calls: a forked child and a second thread are refused, whatever the call."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, WorldError
from parallel_lab.lab.collectives.algorithms.algorithm import run_algorithm
from tests.processes.pools import BACKENDS, assert_usable, pool_of

pytestmark = pytest.mark.timeout(60)
RANKS = 2
CALLS = {
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "all_gather": lambda comm, x: comm.all_gather(x),
    "broadcast": lambda comm, x: comm.broadcast(x),
    "reduce": lambda comm, x: comm.reduce(x),
    "barrier": lambda comm, x: comm.barrier(),
    "send and recv": lambda comm, x: (comm.send(x, 1 - comm.rank), comm.recv(1 - comm.rank)),
    "large send and recv": lambda comm, x: (comm.send(np.repeat(x, 1 << 17), 1 - comm.rank), comm.recv(1 - comm.rank)),
    "started": lambda comm, x: comm.start("all_reduce", x).wait(),
    "agree_to_continue": lambda comm, x: comm.agree_to_continue(),
    "algorithm": lambda comm, x: run_algorithm(comm, "all_reduce", "ring", x),
}


pool = pool_of(BACKENDS, RANKS)


def forked(comm, folder, call, odd, before):
    """The odd rank forks; its child makes the rank's next call, on its line, with a hundredfold value."""
    results, child = [], 0
    for i in range(before + 4):
        value = comm.rank + 1.0
        if i == before and comm.rank == odd:
            child = os.fork()
            value = value if child else 100.0
        try:
            got = CALLS[call](comm, np.full(3, value))
        except WorldError as error:
            Path(folder, "refused").write_text(str(error))
            os._exit(0)
        finally:
            if value == 100.0:
                os._exit(0)
        results.append(got if not isinstance(got, tuple) else got[1])
    if child:
        os.waitpid(child, 0)
    return results


@pytest.mark.exhaustive
@pytest.mark.parametrize("before", [0, 3], ids=["first_call", "known_line"])
@pytest.mark.parametrize("odd", range(RANKS))
@pytest.mark.parametrize("call", CALLS)
def test_forked_child_is_refused_and_its_rank_goes_on(pool, tmp_path, call, odd, before):
    found = pool.run(forked, str(tmp_path), call, odd, before)
    assert f"forked by rank {odd}" in (tmp_path / "refused").read_text()
    for results in found:
        for got in results:
            assert got is None or got is True or set(np.asarray(got).tolist()) <= {1.0, 2.0, 3.0}
    assert_usable(pool)


def child_that_comes_out(comm, way):
    """A child that leaves the function must not report for the rank, nor serve its next job."""
    if comm.rank == 0 and os.fork() == 0:
        if way == "raises":
            comm.barrier()
        return "the child"
    return comm.all_reduce(np.ones(1))[0]


@pytest.mark.exhaustive
@pytest.mark.portable
@pytest.mark.parametrize("way", ["raises", "returns"])
def test_forked_child_does_not_answer_for_its_rank(pool, way):
    assert pool.run(child_that_comes_out, way) == [RANKS, RANKS]
    assert_usable(pool)


def in_two_threads(comm, call):
    """Both threads make the same calls."""
    results, failed = [], []

    def work(value):
        try:
            for _ in range(20):
                results.append(CALLS[call](comm, np.full(3, value)))
        except CollectiveMismatch as error:
            failed.append(str(error))

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 10.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


@pytest.mark.quick(4)
@pytest.mark.parametrize("call", CALLS)
def test_second_thread_is_refused_on_every_rank(pool, call):
    with pytest.raises(CollectiveMismatch, match="calls from thread"):
        pool.run(in_two_threads, call)
    assert_usable(pool)


def in_one_other_thread(comm):
    found = []
    thread = threading.Thread(target=lambda: found.extend(comm.all_reduce(np.ones(1))[0] for _ in range(5)))
    thread.start()
    thread.join()
    return found


def test_one_thread_may_make_all_calls_of_a_run(pool):
    assert pool.run(in_one_other_thread) == [[2.0] * 5] * RANKS
    assert_usable(pool)


def in_threads_one_after_the_other(comm, call, known):
    """The second thread has the number of the first, which has ended."""
    numbers, failed = [], []

    def work():
        numbers.append(threading.get_ident())
        try:
            for _ in range(known if len(numbers) == 1 else 1):
                CALLS[call](comm, np.full(3, 1.0))
        except CollectiveMismatch as error:
            failed.append(str(error))

    def run_in_thread(target):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    run_in_thread(work)
    for left in reversed(range(100)):  # until the system gives the number again
        run_in_thread(lambda left=left: None if left and threading.get_ident() != numbers[0] else work())
        if len(numbers) == 2:
            break
    return failed


@pytest.mark.quick(2)
@pytest.mark.parametrize("known", [1, 3])
@pytest.mark.parametrize("call", CALLS)
def test_a_thread_with_the_number_of_one_that_has_ended_is_another(pool, call, known):
    with pytest.raises(CollectiveMismatch, match="has called from thread 'that has ended' before"):
        pool.run(in_threads_one_after_the_other, call, known)
    assert_usable(pool)


def reports_in_a_child(comm, folder):
    """A child that writes to its parent's end of the notebook's pipe would leave its messages in pieces there."""
    child = os.fork() if comm.rank == 0 else -1
    try:
        for turn in range(20):
            comm.report((child == 0, turn, bytes(200_000)))
    except WorldError as error:
        Path(folder, "refused").write_text(str(error))
    finally:
        if child == 0:
            os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return comm.all_reduce(np.ones(1))[0]


def test_forked_child_reports_nothing_for_its_rank(pool, tmp_path):
    job = pool.submit(reports_in_a_child, str(tmp_path))
    assert job.result(40) == [RANKS] * RANKS
    assert "forked by rank 0" in (tmp_path / "refused").read_text()
    assert {(rank, turn) for rank, (_, turn, _) in job.messages} == {
        (rank, n) for rank in range(RANKS) for n in range(20)
    }
    assert not any(child for _, (child, *_) in job.messages)
    assert_usable(pool)
