"""Collectives that are started on MPI and waited for later: compared before any value is returned, an end for every
rank, and nothing forgotten.

That replies have the bits of `communicator.answer` is shown in test_mpi.py, by random programs. Needs mpirun and
mpi4py, as test_mpi_pool.py.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.base.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DeadlockError,
    PlanError,
    RankDied,
    RankRaised,
    ShapeError,
)
from parallel_lab.processes.mpi.handshake import Handshake, _Waiting
from parallel_lab.processes.mpi.pool import MpiPool
from parallel_lab.run.communicator import Request
from tests.processes.pools import NEEDS_MPI
from tests.processes.processes import gone

PROMISE_BOUND_S = 5.0
N = (0, 1, 2)

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


def assert_usable(pool) -> None:
    """The same workers, and what was left under way is met by nobody."""
    assert pool.pids == pool.pids_at_start

    def program(comm):
        handles = [comm.start("all_reduce", np.full(size, comm.rank + 1.0)) for size in (1, 50_000)]
        return [set(handle.wait()) for handle in handles]

    assert pool.run(program) == [[{6.0}, {6.0}]] * 3


# ---- ranks that disagree ----


def starts(kind, value=None, group=N, **fields):
    return lambda comm: comm.start(kind, value, group, **fields)


MISMATCHES = {
    "kind": ("all_reduce", "all_gather", starts("all_reduce", np.ones(4)), starts("all_gather", np.ones(4))),
    "shape": ("(8,)", "(4,)", starts("all_reduce", np.ones(8)), starts("all_reduce", np.ones(4))),
    "large shape": (
        "(256000,)",
        "(128000,)",
        starts("all_reduce", np.ones(256_000)),
        starts("all_reduce", np.ones(128_000)),
    ),
    "dtype": ("float32", "float64", starts("all_reduce", np.ones(4, "f4")), starts("all_reduce", np.ones(4))),
    "dtype of equal size": (
        "float32",
        "int32",
        starts("all_reduce", np.ones(4, "f4")),
        starts("all_reduce", np.ones(4, "i4")),
    ),
    "reduce": (
        "sum",
        "max",
        starts("all_reduce", np.ones(40_000)),
        starts("all_reduce", np.ones(40_000), reduce="max"),
    ),
    "dim": ("dim 0", "dim 1", starts("all_gather", np.ones((2, 2))), starts("all_gather", np.ones((2, 2)), dim=1)),
    "root": ("root 0", "root 1", starts("reduce", np.ones(4), root=0), starts("reduce", np.ones(4), root=1)),
    "group": (
        "group (0, 1, 2)",
        "group (1, 2)",
        starts("all_reduce", np.ones(4)),
        starts("all_reduce", np.ones(4), group=(1, 2)),
    ),
    # the same two calls, in another order on rank 1
    "order": (
        "test_mpi_nonblocking.py",
        "differ in origin",
        lambda comm: [comm.start("all_reduce", np.ones(3)), comm.start("all_reduce", np.zeros(3))],
        lambda comm: [comm.start("all_reduce", np.zeros(3)), comm.start("all_reduce", np.ones(3))],
    ),
}


@pytest.mark.quick(6)
@pytest.mark.parametrize("waits", ["handle", "blocking"])
@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_is_raised_on_every_rank_before_any_value_is_returned(pool, tmp_path, name, waits):
    """`blocking`: in a blocking call after the start, which is waited for only later."""
    here, there, others, odd = MISMATCHES[name]

    def program(comm, folder):
        comm.barrier()
        handles = []
        try:
            comm.start("all_reduce", np.ones(3000), tag="a matched one before").wait()
            handles = (odd if comm.rank == 1 else others)(comm)
            if waits == "blocking":
                while True:
                    comm.barrier()
            handles = handles if isinstance(handles, list) else [handles]
            Path(folder, f"{comm.rank} got").write_text(str([handle.wait() for handle in handles]))
        except CollectiveMismatch as error:
            Path(folder, str(comm.rank)).write_text(str(error))
            raise

    start = time.monotonic()
    with pytest.raises(CollectiveMismatch) as caught:
        pool.run(program, str(tmp_path))
    took_s = time.monotonic() - start
    print(f"{name}: raised on every rank after {took_s:.2f} s")
    assert took_s < PROMISE_BOUND_S
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2"]
    for text in [str(caught.value), *(p.read_text() for p in tmp_path.iterdir())]:
        assert here in text and there in text and "rank 1 called" in text and "started of group" in text, text
        assert text.count("test_mpi_nonblocking.py:") >= 2, text
    assert_usable(pool)


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


def test_a_rank_that_returns_before_it_starts_its_own_is_named(pool):
    def program(comm):
        handles = [comm.start("all_reduce", np.ones(3)) for _ in range(2 if comm.rank == 1 else 3)]
        for handle in handles:
            handle.wait()

    with pytest.raises(
        CollectiveMismatch, match=r"rank 1 has returned while rank \d waits for it in all_reduce #2 .*started"
    ):
        pool.run(program)
    assert_usable(pool)


def test_rooted_ones_from_different_lines_and_blocking_calls_in_between_raise_no_false_alarm(pool):
    def program(comm):
        found = []
        for _ in range(20):
            if comm.rank == 0:
                handles = [comm.start("broadcast", np.ones(3000), root=0), comm.start("gather", np.ones(3), root=0)]
            else:
                handles = [comm.start("broadcast", root=0), comm.start("gather", np.ones(3), root=0)]
            comm.barrier()
            if comm.rank != 1:  # its own number of calls in another group
                comm.all_reduce(np.ones(1), group=(0, 2))
            if comm.rank:
                handles.append(comm.start("all_reduce", np.ones(1), tag="sum"))
            else:
                handles.append(comm.start("all_reduce", np.ones(1), tag="sum"))
            comm.barrier()
            found += [float(reply.sum()) for handle in handles if (reply := handle.wait()) is not None]
        return set(found)

    assert pool.run(program) == [{3000.0, 9.0, 3.0}, {3000.0, 3.0}, {3000.0, 3.0}]


# ---- what a handle promises ----


def test_a_handle_is_waited_for_once_and_belongs_to_its_run(pool):
    def program(comm):
        handle = comm.start("all_reduce", np.ones(2))
        handle.wait()
        comm.state["handle"] = handle
        try:
            handle.wait()
        except PlanError as error:
            return str(error)

    def later(comm):
        try:
            comm.state.pop("handle").done()
        except PlanError as error:
            return str(error)

    for texts in (pool.run(program), pool.run(later)):
        for rank, text in enumerate(texts):
            assert f"rank {rank}" in text and "all_reduce #0 float64 (2,) sum started" in text and "once" in text


@pytest.mark.parametrize("size", [3, 40_000], ids=["small", "large"])
def test_a_handle_never_waited_for_is_an_error_with_rank_and_line(pool, size):
    def program(comm):
        handle = comm.start("all_reduce", np.ones(size))
        comm.barrier()
        if comm.rank != 1:
            handle.wait()

    with pytest.raises(
        CollectiveMismatch, match=r"rank 1 has started all_reduce .*test_mpi_nonblocking.py:\d+ and never waited for it"
    ):
        pool.run(program)
    assert_usable(pool)


def test_send_cannot_be_started_nor_can_what_is_no_collective(pool):
    for call in (
        lambda comm: comm.begin(Request("send", (0, 1), np.ones(1))) if comm.rank == 0 else None,
        lambda comm: comm.start("sum", np.ones(1)),
    ):
        with pytest.raises(RankRaised) as caught:
            pool.run(call)
        assert isinstance(caught.value.__cause__, CollectiveMismatch)
        assert_usable(pool)


@pytest.mark.parametrize("kind", ["recv", "barrier", "handle", "done"])
def test_what_is_started_moves_on_while_its_rank_waits_for_something_else(pool, kind):
    """Guards against: data that moves in its own `handle.wait()` only: nothing overlaps. Rank 1 lets the others go when
    its reply is there.
    """

    def program(comm):
        handle = comm.start("all_reduce", np.ones(300_000))
        end = time.monotonic() + 20
        if comm.rank == 1:
            while handle.end_s is None and time.monotonic() < end:
                comm.progress()
            came = handle.end_s is not None
            for other in (0, 2) if kind == "recv" else ():
                comm.send(np.ones(1), other)
        elif kind == "recv":
            comm.recv(1)
        if kind == "barrier":
            comm.barrier()
        elif kind == "handle":
            comm.start("barrier").wait()
        while kind == "done" and not handle.done():
            continue
        reply = handle.wait()
        return set(reply) == {3.0} and (comm.rank != 1 or came)

    assert pool.run(program) == [True] * 3


def test_replies_come_in_the_order_of_the_starts(pool):
    """Rank 2 has the reply of its second start early; the handle is done when the first one is, which rank 1 starts
    late.
    """

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


def test_groups_that_share_ranks_do_not_take_each_others_data(pool):
    """Guards against: one tag for all. Rank 1 moves the second before rank 2 has started the first; rank 0, which looks
    later, sends it last.
    """

    def program(comm):
        time.sleep((0.0, 0.1, 0.2)[comm.rank])
        handles = [comm.start("all_reduce", np.full(4800, 1.0 + comm.rank), tag="first")]
        if comm.rank < 2:
            handles.append(comm.start("all_reduce", np.full(3200, 10.0 + comm.rank), (0, 1), tag="second"))
        if comm.rank == 0:
            time.sleep(0.4)
        return [set(handle.wait()) for handle in handles]  # parts of 1600 elements in both

    assert pool.run(program) == [[{6.0}, {21.0}], [{6.0}, {21.0}], [{6.0}]]


def test_the_value_may_be_the_place_of_the_reply_and_others_may_be_under_way(pool):
    def program(comm):
        values = [np.full(size, float(comm.rank + i)) for i, size in enumerate((10, 30_000, 7, 90_001))]
        handles = [comm.start("all_reduce", v, reduce="mean", out=v) for v in values]
        replies = [handle.wait() for handle in handles[::-1]][::-1]
        return [(reply is v, set(v)) for reply, v in zip(replies, values, strict=True)]

    assert pool.run(program) == [[(True, {1.0 + i}) for i in range(4)]] * 3


def test_an_out_that_does_not_fit_what_arrives_is_told_by_its_handle_alone(pool):
    """A broadcast off the root learns the shape when it arrives; the other members get their replies."""

    def program(comm):
        value = np.ones(1000) if comm.rank == 0 else None
        handle = comm.start("broadcast", value, root=0, out=np.empty(999) if comm.rank == 1 else np.empty(1000))
        comm.barrier()
        try:
            return handle.wait().sum()
        except ShapeError as error:
            return str(error)

    found = pool.run(program)
    assert found[0] == found[2] == 1000
    assert "(1000,) arrived, out is float64 (999,)" in found[1]


def test_records_and_flight_entries_of_what_was_started(pool):
    def program(comm):
        comm.recording = True
        handle = comm.start("all_reduce", np.ones(1000))
        comm.barrier()
        while not handle.done():
            continue
        handle.wait()
        comm.recording = False
        return comm.records, handle.end_s

    n = 3
    for records, end_s in pool.run(program):
        (record,) = [r for r in records if r[1] == "all_reduce"]
        assert (record[0], record[3], record[4], record[5]) == (0, end_s, 2 * (n - 1) * 8000 // n, N)
        assert record[2] < record[3] and "test_mpi_nonblocking.py:" in record[6]
        assert sorted(r[:2] for r in records) == [(0, "all_reduce"), (1, "barrier")]
    for entries in pool.flight_record().values():
        assert [(e.kind, e.index, e.number, e.detail) for e in entries] == [
            ("all_reduce", 0, 0, "sum started"),
            ("barrier", 1, 0, ""),
        ]
        assert all(e.end_s > e.start_s for e in entries)


# ---- waits that cannot end ----


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


@pytest.mark.parametrize("how", ["wait", "done"])
def test_a_time_limit_names_the_rank_that_never_starts(pool, how):
    def program(comm):
        limit_s, comm._handshake.timeout_s = comm._handshake.timeout_s, 0.3
        try:
            if comm.rank == 1:
                time.sleep(1.0)
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


@pytest.mark.quick(1)
@pytest.mark.faults
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


def test_a_rank_that_raises_ends_those_that_wait_for_a_handle(pool):
    def program(comm):
        handle = comm.start("all_reduce", np.ones(50_000))
        comm.barrier()
        if comm.rank == 1:
            raise ValueError("bad layer 7")
        handle.wait()
        comm.start("all_reduce", np.ones(50_000)).wait()

    text = (
        r"rank 1 \(pid \d+\) raised ValueError: bad layer 7. Ranks? 0.* stopped in (all_reduce #\d|barrier #0) "
        r"\(test_mpi_nonblocking.py:\d+\)"
    )
    with pytest.raises(RankRaised, match=text):
        pool.run(program)
    assert_usable(pool)


@pytest.mark.faults
def test_an_interrupt_and_a_stop_leave_nothing_that_a_later_run_meets(pool):
    def endless(comm):
        comm.report("begun")
        handle = comm.start("all_reduce", np.ones(300_000))
        for step in range(10_000_000):
            if not comm.agree_to_continue(step):
                return "stopped"
            following = comm.start("all_reduce", np.ones(300_000), tag="following")
            handle.wait()
            handle = following

    job = pool.submit(endless)
    while len(job.messages) < 3:
        job.wait_for_change(5)
    job.stop()
    assert job.result(timeout=10) == ["stopped"] * 3
    assert_usable(pool)
    timer = threading.Timer(0.4, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt, match="the run was interrupted"):
        pool.run(endless)
    timer.join()
    assert_usable(pool)
