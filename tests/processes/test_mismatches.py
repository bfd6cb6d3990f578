"""Ranks that disagree: every member hears of it, with both calls and both lines, and the workers stay usable. One body
for shared memory and MPI.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, DeadlockError
from parallel_lab.run.communicator import Request
from tests.processes.pools import BACKENDS, assert_usable

PROMISE_BOUND_S = 5.0

pytestmark = pytest.mark.timeout(120)  # nothing hangs: a wait without end fails here, with all stacks


@pytest.fixture(scope="module", params=BACKENDS)
def pool(request):
    """Three ranks, kept through all tests."""
    with request.param(3, timeout_s=20) as pool:
        pool.pids_at_start = pool.pids
        yield pool


N = (0, 1, 2)


def ask(kind, value=None, group=N, **fields):
    return lambda comm: comm.answer(Request(kind, group, value, **fields))


def swapped(comm):
    a, b = np.ones(3), np.zeros(3)
    names = [("a", a), ("b", b)]
    for name, x in names[::-1] if comm.rank == 1 else names:
        comm.all_reduce(x, tag=name)


def swapped_broadcasts(comm):
    for name in ("b", "a") if comm.rank == 1 else ("a", "b"):
        comm.answer(
            Request(
                "broadcast", N, np.ones(3) if comm.rank == 0 else None, root=0, shape=(3,), dtype="float64", origin=name
            )
        )


def two_lines(comm):
    if comm.rank == 1:
        comm.all_reduce(np.ones(3))
    else:
        comm.all_reduce(np.ones(3))


def leaves_early(comm):
    for _ in range(2 if comm.rank == 1 else 3):
        comm.all_reduce(np.ones(3))


MISMATCHES = {
    "kind": ("all_reduce", "all_gather", ask("all_reduce", np.ones(4)), ask("all_gather", np.ones(4))),
    "shape": ("(8,)", "(4,)", ask("all_reduce", np.ones(8)), ask("all_reduce", np.ones(4))),
    "large shape": ("(256000,)", "(128000,)", ask("all_reduce", np.ones(256_000)), ask("all_reduce", np.ones(128_000))),
    "dtype": ("float32", "float64", ask("all_reduce", np.ones(4, "f4")), ask("all_reduce", np.ones(4))),
    "dtype of equal size": (
        "float32",
        "int32",
        ask("all_reduce", np.ones(4, "f4")),
        ask("all_reduce", np.ones(4, "i4")),
    ),
    "reduce": ("sum", "max", ask("all_reduce", np.ones(4)), ask("all_reduce", np.ones(4), reduce="max")),
    "dim": ("dim 0", "dim 1", ask("all_gather", np.ones((2, 2))), ask("all_gather", np.ones((2, 2)), dim=1)),
    "root": ("root 0", "root 1", ask("reduce", np.ones(4), root=0), ask("reduce", np.ones(4), root=1)),
    "group": (
        "group (0, 1, 2)",
        "group (1, 2)",
        ask("all_reduce", np.ones(4)),
        ask("all_reduce", np.ones(4), group=(1, 2)),
    ),
    "step": ("step 4", "step 5", lambda comm: comm.agree_to_continue(4), lambda comm: comm.agree_to_continue(5)),
}


@pytest.mark.quick(7)
@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_is_raised_on_every_member_naming_both_calls_and_both_lines(pool, tmp_path, name):
    here, there, others, odd = MISMATCHES[name]

    def program(comm, folder):
        comm.barrier()  # a rank that has not begun when the others fail is not started at all
        try:
            (odd if comm.rank == 1 else others)(comm)
        except CollectiveMismatch as error:
            Path(folder, str(comm.rank)).write_text(str(error))
            raise

    start = time.monotonic()
    with pytest.raises(CollectiveMismatch) as caught:
        pool.run(program, str(tmp_path))
    assert time.monotonic() - start < PROMISE_BOUND_S
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2"]
    for text in [str(caught.value), *(p.read_text() for p in tmp_path.iterdir())]:
        assert here in text and there in text and "rank 1 called" in text, text
        assert text.count("test_mismatches.py:") >= 2 or name == "step", text
    assert_usable(pool)


@pytest.mark.quick(4)
@pytest.mark.parametrize("program", [swapped, swapped_broadcasts, two_lines])
def test_calls_in_swapped_order_or_from_different_lines_are_a_mismatch(pool, program):
    with pytest.raises(CollectiveMismatch, match="differ in origin"):
        pool.run(program)


def test_rank_that_returns_early_is_named(pool):
    with pytest.raises(
        CollectiveMismatch,
        match=r"rank 1 has returned while rank \d waits for it in all_reduce #2.*its last call was all_reduce #1",
    ):
        pool.run(leaves_early)
    assert_usable(pool)


# on MPI the order in which the two are named is not fixed: tests/processes/test_mpi_pool.py
@pytest.mark.parametrize("pool", BACKENDS[:1], indirect=True)
def test_broadcast_root_and_shape_mismatch(pool):
    def roots(comm):
        comm.broadcast(np.ones(4), root=1 if comm.rank == 1 else 0)

    def shapes(comm):
        comm.answer(
            Request(
                "broadcast",
                N,
                np.ones(8) if comm.rank == 0 else None,
                root=0,
                shape=(4,) if comm.rank == 1 else (8,),
                dtype="float64",
            )
        )

    with pytest.raises(CollectiveMismatch, match=r"root 0.*root 1"):
        pool.run(roots)
    with pytest.raises(CollectiveMismatch, match=r"\(8,\).*\(4,\)"):
        pool.run(shapes)


def test_matching_calls_from_different_lines_raise_no_false_alarm(pool):
    """The root of a broadcast, gather or reduce often stands on its own line; a tag lets two lines of an all_reduce
    meet.
    """

    def program(comm):
        if comm.rank == 0:
            comm.broadcast(np.ones(3))
            comm.gather(np.ones(3))
            comm.reduce(np.ones(3))
            comm.barrier()
            return comm.all_reduce(np.ones(1), tag="sum")[0]
        comm.broadcast()
        comm.gather(np.ones(3))
        comm.reduce(np.ones(3))
        comm.barrier()
        return comm.all_reduce(np.ones(1), tag="sum")[0]

    assert pool.run(program) == [3.0] * 3


def test_send_and_recv_that_disagree(pool):
    def shape(comm):
        if comm.rank == 0:
            comm.send(np.ones(3), 1)
        if comm.rank == 1:
            comm.recv(0, shape=(4,), dtype="float64")

    def unread(comm):
        if comm.rank == 0:
            comm.send(np.ones(3), 1)

    def unread_large(comm):
        if comm.rank == 0:
            comm.send(np.ones(3_000_000), 1)

    with pytest.raises(
        CollectiveMismatch, match=r"rank 1 expects float64 \(4,\) from rank 0, which sent float64 \(3,\)"
    ):
        pool.run(shape)
    with pytest.raises(CollectiveMismatch, match="rank 0 sent 1 message to rank 1, which received 0"):
        pool.run(unread)
    with pytest.raises(CollectiveMismatch, match=r"rank 1 has returned while rank 0|rank 0 sent 1 message"):
        pool.run(unread_large)


def circle_of_groups(comm):
    comm.barrier(group=[(0, 1), (1, 2), (0, 2)][comm.rank])


def circle_of_recvs(comm):
    comm.recv((comm.rank + 1) % 3)


def recv_against_collective(comm):
    if comm.rank == 0:
        comm.recv(1)
    comm.barrier()


# MPI finds it when the first warning of a wait is due: tests/processes/test_mpi_pool.py
@pytest.mark.parametrize("pool", BACKENDS[:1], indirect=True)
@pytest.mark.parametrize("program", [circle_of_groups, circle_of_recvs, recv_against_collective])
def test_ranks_that_wait_for_each_other_are_a_deadlock_long_before_the_time_limit(pool, program):
    start = time.monotonic()
    with pytest.raises(DeadlockError, match=r"rank \d waits for rank \d in"):
        pool.run(program)
    assert time.monotonic() - start < PROMISE_BOUND_S
    assert pool.run(lambda comm: comm.rank) == [0, 1, 2]
