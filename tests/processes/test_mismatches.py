"""Ranks that disagree: every member hears of it, with both calls and both lines, and the workers stay usable. One body
for shared memory and MPI, for calls that block and for those that are started and waited for later.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, DeadlockError
from parallel_lab.run.communicator import Request
from tests.crossed import each_of
from tests.processes.drawn import placed
from tests.processes.pools import BACKENDS, MPI, SHARED_MEMORY, assert_usable, pool_of
from tests.processes.processes import PROMISE_BOUND_S

N = (0, 1, 2)

pytestmark = pytest.mark.timeout(120)  # nothing hangs: a wait without end fails here, with all stacks


pool = pool_of(BACKENDS)


def blocking(comm, request, handles):
    comm.answer(request)


def started(comm, request, handles):
    handles.append(comm.begin(request))


def blocking_on_heap(comm, request, handles):
    comm.answer(replace(request, value=placed(comm, request.value, True)))


def started_on_heap(comm, request, handles):
    handles.append(comm.begin(replace(request, value=placed(comm, request.value, True))))


def waiting_elsewhere(comm, request, handles):
    """Started; what is wrong shows in blocking calls, before the handle is waited for."""
    comm.begin(request)


WAYS = {
    SHARED_MEMORY.id: (blocking, started, blocking_on_heap, started_on_heap),
    MPI.id: (blocking, started, waiting_elsewhere),
}
PAIRS = [
    pytest.param(*backend.values, way, id=f"{backend.id} {way.__name__}", marks=backend.marks)
    for backend in BACKENDS
    for way in WAYS[backend.id]
]


def ask(kind, value=None, group=N, **fields):
    return lambda comm, go: go(Request(kind, group, value, **fields))


def tagged(*names):
    return lambda comm, go: [go(Request("all_reduce", N, np.ones(3), origin=name)) for name in names]


def step(number):
    return lambda comm, go: comm.agree_to_continue(number)


# what the error names of rank 1 and of the others, and their calls
MISMATCHES = {
    "kind": ("all_reduce", "all_gather", ask("all_reduce", np.ones(4)), ask("all_gather", np.ones(4))),
    "shape": ("(8,)", "(4,)", ask("all_reduce", np.ones(8)), ask("all_reduce", np.ones(4))),
    "large shape": ("(256000,)", "(128000,)", ask("all_reduce", np.ones(256_000)), ask("all_reduce", np.ones(128_000))),
    "dtype": ("float32", "float64", ask("all_reduce", np.ones(4, "f4")), ask("all_reduce", np.ones(4))),
    **{
        f"dtype of equal size, {n}": (
            *("float32", "int32"),
            *(ask("all_reduce", np.ones(n, "f4")), ask("all_reduce", np.ones(n, "i4"))),
        )
        for n in (4, 20_000)
    },
    **{
        f"reduce, {n}": ("sum", "max", ask("all_reduce", np.ones(n)), ask("all_reduce", np.ones(n), reduce="max"))
        for n in (4, 40_000)
    },
    "dim": ("dim 0", "dim 1", ask("all_gather", np.ones((2, 2))), ask("all_gather", np.ones((2, 2)), dim=1)),
    "root": ("root 0", "root 1", ask("reduce", np.ones(4), root=0), ask("reduce", np.ones(4), root=1)),
    "root of a broadcast": (
        *("root 0", "root 1"),
        *(ask("broadcast", np.ones(9000), root=0), ask("broadcast", np.ones(9000), root=1)),
    ),
    "order": ("differ in origin", "at b", tagged("a", "b"), tagged("b", "a")),
}
GROUPS = (
    *("group (0, 1, 2)", "group (1, 2)"),
    *(ask("all_reduce", np.ones(4)), ask("all_reduce", np.ones(4), group=(1, 2))),
)


def assert_told_by_all(pool, folder, here, there, others, odd, way):
    """Rank 1 makes the calls `odd`, the others `others`."""

    def program(comm, folder):
        comm.barrier()  # a rank that has not begun when the others fail is not started at all
        handles = []
        try:
            if way is not blocking:
                comm.start("all_reduce", np.ones(3000), tag="a matched one before").wait()
            (odd if comm.rank == 1 else others)(comm, lambda request: way(comm, request, handles))
            while way is waiting_elsewhere:
                comm.barrier()
            Path(folder, f"{comm.rank} got").write_text(str([handle.wait() for handle in handles]))
        except CollectiveMismatch as error:
            Path(folder, str(comm.rank)).write_text(str(error))
            raise

    start = time.monotonic()
    with pytest.raises(CollectiveMismatch) as caught:
        pool.run(program, str(folder))
    took_s = time.monotonic() - start
    print(f"raised on every rank after {took_s * 1e3:.0f} ms")
    assert took_s < PROMISE_BOUND_S
    assert sorted(p.name for p in folder.iterdir()) == ["0", "1", "2"]
    for text in [str(caught.value), *(p.read_text() for p in folder.iterdir())]:
        assert here in text and there in text and "rank 1 called" in text, text
        assert text.count("test_mismatches.py:") >= 2 or here in ("differ in origin", "step 4"), text
        assert type(pool) is SHARED_MEMORY.values[0] or way is blocking or "started of group" in text, text
    assert_usable(pool)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MISMATCHES)
@pytest.mark.parametrize(("pool", "way"), PAIRS, indirect=["pool"])
def test_mismatch_is_raised_on_every_member_naming_both_calls_and_both_lines(pool, tmp_path, way, name):
    assert_told_by_all(pool, tmp_path, *MISMATCHES[name], way)


# in shared memory started ones of different groups are a deadlock
@pytest.mark.quick(1)
@pytest.mark.parametrize(("pool", "way"), [PAIRS[0], *PAIRS[-3:]], indirect=["pool"])
def test_different_groups_are_a_mismatch_on_every_member(pool, tmp_path, way):
    assert_told_by_all(pool, tmp_path, *GROUPS, way)


@pytest.mark.portable
@pytest.mark.quick(1)
def test_different_steps_are_a_mismatch_on_every_member(pool, tmp_path):
    assert_told_by_all(pool, tmp_path, "step 4", "step 5", step(4), step(5), blocking)


def swapped_broadcasts(comm):
    for name in ("b", "a") if comm.rank == 1 else ("a", "b"):
        value = np.ones(3) if comm.rank == 0 else None
        comm.answer(Request("broadcast", N, value, root=0, shape=(3,), dtype="float64", origin=name))


def two_lines(comm):
    if comm.rank == 1:
        comm.all_reduce(np.ones(3))
    else:
        comm.all_reduce(np.ones(3))


@pytest.mark.quick(3)
@pytest.mark.parametrize("program", [swapped_broadcasts, two_lines])
def test_calls_in_swapped_order_or_from_different_lines_are_a_mismatch(pool, program):
    with pytest.raises(CollectiveMismatch, match="differ in origin"):
        pool.run(program)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("pool", "way"), [pair for pair in PAIRS if "elsewhere" not in pair.id], indirect=["pool"])
def test_rank_that_returns_early_is_named(pool, tmp_path, way):
    def program(comm, folder):
        handles = []
        for _ in range(2 if comm.rank == 1 else 3):
            way(comm, Request("all_reduce", N, np.ones(3)), handles)
        for handle in handles:
            handle.wait()
        Path(folder, str(comm.rank)).touch()

    last = r".*its last call was all_reduce #1" if way in (blocking, blocking_on_heap) else ""
    text = rf"rank 1 has returned while rank \d waits for it in all_reduce #2{last}"
    with pytest.raises(CollectiveMismatch, match=text):
        pool.run(program, str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
    assert_usable(pool)


@pytest.mark.portable
def test_broadcast_root_and_shape_mismatch(pool):
    def roots(comm):
        comm.broadcast(np.ones(4), root=1 if comm.rank == 1 else 0)

    def shapes(comm):
        value, shape = np.ones(8) if comm.rank == 0 else None, (4,) if comm.rank == 1 else (8,)
        comm.answer(Request("broadcast", N, value, root=0, shape=shape, dtype="float64"))

    ordered = isinstance(pool, SHARED_MEMORY.values[0])  # on MPI either of the two may be named first
    with pytest.raises(CollectiveMismatch, match=r"root 0.*root 1" if ordered else r"root [01].*root [01]"):
        pool.run(roots)
    text = r"\(8,\).*\(4,\)" if ordered else r"\((8|4),\).*\((4|8),\).*differ in shape"
    with pytest.raises(CollectiveMismatch, match=text):
        pool.run(shapes)
    assert_usable(pool)


@pytest.mark.portable
def test_matching_calls_from_different_lines_raise_no_false_alarm(pool):
    """Roots often stand on a line of their own; a tag lets two lines of an all_reduce meet."""

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


@pytest.mark.portable
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


def start_against_call(comm):
    x = np.ones(3)
    if comm.rank == 0:
        comm.start("all_reduce", x).wait()
    comm.all_reduce(x)


def circle_of_starts(comm):
    """Each waits for a start that the next makes only after its own wait."""
    pairs = [(0, 1), (1, 2), (0, 2)]
    for pair in (pairs[comm.rank], pairs[comm.rank - 1]):
        comm.start("all_reduce", np.ones(2), group=pair).wait()


# MPI finds it when the first warning of a wait is due: tests/processes/test_mpi_pool.py
@pytest.mark.quick(1)
@pytest.mark.portable
@pytest.mark.parametrize("pool", [SHARED_MEMORY], indirect=True)
@each_of(
    ("program", "kind"),
    (circle_of_groups, "barrier"),
    (circle_of_recvs, "recv"),
    (recv_against_collective, ""),
    (start_against_call, "all_reduce"),
    (circle_of_starts, "all_reduce"),
)
def test_ranks_that_wait_for_each_other_are_a_deadlock_long_before_the_time_limit(pool, program, kind):
    start = time.monotonic()
    with pytest.raises(DeadlockError, match=rf"rank \d waits for rank \d in {kind}"):
        pool.run(program)
    assert time.monotonic() - start < PROMISE_BOUND_S
    assert_usable(pool)
