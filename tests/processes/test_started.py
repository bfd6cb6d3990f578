"""Collectives of real workers that are started and waited for later: what a handle promises, with shared memory and
over MPI.

That replies have the bits of the simulator's is shown by random programs in test_shm_nonblocking.py and test_mpi.py;
that ranks which disagree hear of it, in test_mismatches.py.
"""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, PlanError, RankRaised, ShapeError
from parallel_lab.run.communicator import Request, answer
from tests.crossed import each_of
from tests.processes.drawn import assert_same
from tests.processes.pools import BACKENDS, MPI, assert_usable, pool_of

SEED = 20261121
N = (0, 1, 2)

pytestmark = pytest.mark.timeout(120)  # nothing hangs: a wait without end fails here, with all stacks


pool = pool_of(BACKENDS)


def over_mpi(pool):
    return isinstance(pool, MPI.values[0])


# ---- handles ----


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

    call = "all_reduce #0 float64 (2,) sum started" if over_mpi(pool) else "all_reduce float64 (2,)"
    for texts in (pool.run(program), pool.run(later)):
        for rank, text in enumerate(texts):
            assert all(words in text for words in (f"rank {rank}", call, "has been waited for", "once")), text


@pytest.mark.quick(3)
@pytest.mark.parametrize("size", [3, 40_000], ids=["small", "large"])
@pytest.mark.parametrize("complete", [False, True])
def test_a_handle_never_waited_for_is_an_error_with_rank_and_line(pool, size, complete):
    def program(comm):
        handle = comm.start("all_reduce", np.ones(size))
        comm.barrier()
        while complete and not handle.done():
            pass
        if comm.rank != 1:
            handle.wait()

    text = rf"rank 1 has started all_reduce float64 \({size},\) sum at test_started.py:\d+ and never waited for it"
    with pytest.raises(CollectiveMismatch, match=text):
        pool.run(program)
    assert_usable(pool)


@each_of(
    "call",
    lambda comm: comm.start("send", np.ones(1)),
    lambda comm: comm.begin(Request("recv", (comm.rank, 1))),
    lambda comm: comm.start("sum", np.ones(1)),
)
def test_only_a_request_can_be_started(pool, call):
    with pytest.raises(RankRaised) as caught:
        pool.run(call)
    assert isinstance(caught.value.__cause__, CollectiveMismatch)
    assert_usable(pool)


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["recv", "barrier", "handle", "done"])
def test_what_is_started_moves_on_while_its_rank_waits_for_something_else(pool, kind):
    """Guards against: data that moves in its own `handle.wait()` only. Rank 1 lets the others go with its reply."""

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
            comm.progress()
        end_s = handle.end_s
        time.sleep(0.01)
        reply = handle.wait()
        return set(reply) == {3.0} and (comm.rank != 1 or came) and (kind != "done" or end_s == handle.end_s)

    assert pool.run(program) == [True] * 3


def test_a_rank_in_a_blocking_call_goes_on_with_what_it_started(pool):
    """Rank 1 sits in a barrier with rank 2 while rank 0 waits for the sum: rank 2 comes only when rank 0 has it."""

    def program(comm):
        handle = comm.start("all_reduce", np.ones(100_000))
        if comm.rank == 0:
            total = handle.wait()
            comm.send(total[:1], 2)
            return float(total[0])
        if comm.rank == 2:
            comm.recv(0)
        comm.barrier(group=(1, 2))
        return float(handle.wait()[0])

    assert pool.run(program) == [3.0] * 3


def test_started_ones_are_answered_in_the_order_of_their_starts_whatever_is_asked_for_between(pool):
    def program(comm):
        handles = [comm.start("all_reduce", np.full(50_000, i)) for i in range(8)]
        comm.barrier()
        values, ends = [float(h.wait()[0]) for h in reversed(handles)], [h.end_s for h in handles]
        return values, ends == sorted(ends)

    for values, in_order in pool.run(program):
        assert values == [3.0 * i for i in reversed(range(8))]
        assert in_order or over_mpi(pool)  # there the data of all is under way at the same time


def test_one_rank_alone_is_answered_at_once(pool):
    def program(comm):
        handle = comm.start("all_reduce", np.arange(3.0), group=(comm.rank,))
        return handle.done(), handle.wait().tolist()

    assert pool.run(program) == [(True, [0.0, 1.0, 2.0])] * 3


def test_records_and_flight_entries_of_what_was_started(pool):
    def program(comm):
        comm.recording = True
        handle = comm.start("all_reduce", np.ones(1000))
        comm.barrier()
        while not handle.done():
            time.sleep(0.001)
        time.sleep(0.02)
        handle.wait()
        comm.recording = False
        return comm.records, handle.end_s

    n = 3
    for records, end_s in pool.run(program):
        (record,) = [r for r in records if r.kind == "all_reduce"]
        assert (record.index, record.end_s, record.size_bytes, record.group) == (0, end_s, 2 * (n - 1) * 8000 // n, N)
        assert record.start_s < record.end_s and record.origin.startswith("test_started.py:")
        assert sorted(r[:2] for r in records) == [(0, "all_reduce"), (1, "barrier")]
    detail = "sum started" if over_mpi(pool) else "sum"
    for entries in pool.flight_record().values():
        found = [(e.kind, e.index, e.number, e.detail) for e in entries]
        assert found == [("all_reduce", 0, 0, detail), ("barrier", 1, 0, "")]
        assert all(e.end_s > e.start_s for e in entries)


# ---- replies ----


@pytest.mark.quick(1)
def test_groups_that_share_ranks_do_not_take_each_others_data(pool):
    """Guards against: one tag for all. Rank 1 moves the second before rank 2 starts the first; rank 0 sends it last."""

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


@pytest.mark.parametrize("near", [False, True], ids=["private", "heap"])
@pytest.mark.parametrize("size", [10, 5000, 300_000])
def test_out_of_a_start_takes_the_reply_in_place_or_not(pool, size, near):
    def program(comm, size, near):
        x = (comm.empty if near else np.empty)(size, "f4")
        x[:] = comm.rank + 1
        elsewhere = np.empty_like(x)
        first = comm.start("all_reduce", x, out=elsewhere, reduce="max")
        assert first.wait() is elsewhere and (x == comm.rank + 1).all()
        second = comm.start("all_reduce", x, out=x)
        assert second.wait() is x
        gathered = comm.start("all_gather", x[:5], out=np.empty(15, "f4")).wait()
        return float(elsewhere[-1]), float(x[-1]), gathered.tolist()

    assert pool.run(program, size, near) == [(3.0, 6.0, [6.0] * 15)] * 3


def test_an_out_that_does_not_fit_what_arrives_is_reported_by_its_handle_alone(pool):
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


def test_the_answer_is_that_of_the_specification_for_all_kinds_at_once(pool):
    """Eight different ones under way together."""
    x = [np.random.default_rng([SEED, r]).standard_normal((6, 3)) for r in range(3)]
    kinds = [("all_reduce", {}), ("all_gather", {"dim": 1}), ("reduce_scatter", {}), ("all_to_all", {})]
    kinds += [("reduce", {"root": 1}), ("gather", {"root": 2})]
    kinds += [("halo_exchange", {"window": (6, -1, 8, 6)}), ("barrier", {})]

    def asked(kind, value, fields):
        return Request(kind, N, None if kind == "barrier" else value, **fields)

    def program(comm, value):
        handles = [comm.begin(asked(kind, value, fields)) for kind, fields in kinds]
        return [handle.wait() for handle in handles]

    got = pool.run_each(program, [(v,) for v in x])
    for i, (kind, fields) in enumerate(kinds):
        for replies, want in zip(got, answer([asked(kind, v, fields) for v in x]), strict=True):
            assert_same(replies[i], want, kind)


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
        r"\(test_started.py:\d+\)"
    )
    with pytest.raises(RankRaised, match=text):
        pool.run(program)
    assert_usable(pool)


@pytest.mark.quick(1)
@pytest.mark.faults("ranks at work", cases=2)
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
    assert job.result(timeout=60) == ["stopped"] * 3
    assert_usable(pool)
    timer = threading.Timer(0.4, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt, match="the run was interrupted"):
        pool.run(endless)
    timer.join()
    assert_usable(pool)
