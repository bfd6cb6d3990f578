"""Started collectives of shared memory: the bits, order and errors of the simulator's."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, CollectiveTimeout
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.communicator import Request, Start, Wait
from parallel_lab.run.simulator import simulate
from tests.processes.drawn import assert_same, placed
from tests.processes.processes import PROMISE_BOUND_S

SEED = 20261121
ROOTED = ("broadcast", "reduce", "gather", "scatter")
UNROOTED = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "barrier")

pytestmark = pytest.mark.timeout(60)  # nothing hangs: a wait without end fails here, with all stacks


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(3, timeout_s=20) as pool:
        pool.pids_at_start = pool.pids
        yield pool


@pytest.fixture(scope="module")
def small_pool():
    with WorkerPool(4, arena_bytes=1 << 16) as pool:
        yield pool


# ---- replies ----


def draw_program(rng: np.random.Generator, world: int, length: int) -> list[tuple]:
    """For all ranks: ("ask", kind, group, shape, fields), ("start", ...), ("wait", which), ("work", seconds)."""
    program, open_starts, started = [], [], 0
    for _ in range(length):
        what = str(rng.choice(["ask", "start", "start", "wait", "work"]))
        if what == "wait" and open_starts:
            program.append(("wait", open_starts.pop(int(rng.integers(len(open_starts))))))
        elif what == "work":
            program.append(("work", float(rng.random() * 1e-3)))
        elif what in ("ask", "start"):
            size = int(rng.integers(1, world + 1))
            group = tuple(sorted(int(r) for r in rng.choice(world, size, replace=False)))
            kind = str(rng.choice([*ROOTED, *UNROOTED]))
            fields = {"root": group[int(rng.integers(size))]} if kind in ROOTED else {}
            shape = (12 * int(rng.choice([1, 30, 4000])), 3)
            if what == "start":
                open_starts.append((started, group))
                started += 1
            program.append((what, kind, group, shape, fields))
    return program + [("wait", s) for s in open_starts]


def requests_for(program: list[tuple], rank: int, seed: int) -> list[tuple]:
    """What of it `rank` does: ("ask", Request), ("start", number, Request), ("wait", number), ("work", seconds)."""
    rng, mine, started = np.random.default_rng([seed, rank]), [], 0
    for what, *rest in program:
        if what == "work":
            mine.append((what, rest[0] * (1 + rank % 3)))
        elif what == "wait":
            number, group = rest[0]
            if rank in group:
                mine.append((what, number))
        else:
            kind, group, shape, fields = rest
            value = rng.standard_normal(shape).astype("f4")
            silent = kind == "barrier" or (kind in ("broadcast", "scatter") and rank != fields["root"])
            expects = {}
            if silent and kind != "barrier":
                part = shape if kind == "broadcast" else (shape[0] // len(group), 3)
                expects = {"shape": part, "dtype": "float32"}
            request = Request(kind, group, None if silent else value, **fields, **expects)
            if rank in group:
                mine.append((what, started, request) if what == "start" else (what, request))
            started += what == "start"
    return mine


def simulated(actions: list[tuple]):
    """The program of one rank for the simulator; returns its replies."""
    handles, replies = {}, []
    for what, *rest in actions:
        if what == "ask":
            replies.append((yield rest[0]))
        elif what == "start":
            handles[rest[0]] = yield Start(rest[1])
        elif what == "wait":
            replies.append((yield Wait(handles[rest[0]])))
    return replies


def on_rank(comm, actions, near, seed):
    """The same on a worker, which makes progress or asks now and then.  near: values lie on the heap"""
    rng = np.random.default_rng([seed, comm.rank, 1])
    handles, replies = {}, []
    for what, *rest in actions:
        if what == "work":
            time.sleep(rest[0])
            comm.progress()
            continue
        if what == "wait":
            if rng.random() < 0.3:
                while not handles[rest[0]].done():
                    time.sleep(1e-4)
            replies.append(handles.pop(rest[0]).wait())
            continue
        request = rest[-1]
        if near and request.value is not None:
            request = replace(request, value=placed(comm, request.value, near))
        if what == "ask":
            replies.append(comm.answer(request))
        else:
            handles[rest[0]] = comm.begin(request)
    return [None if r is None else np.array(r) for r in replies]


@pytest.mark.exhaustive
@pytest.mark.parametrize("near", [False, True], ids=["private", "heap"])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_give_the_replies_of_the_simulator(pool, small_pool, seed, near):
    for current in (pool, small_pool):
        n = current.world_size
        program = draw_program(np.random.default_rng([SEED, seed, n]), n, 40)
        actions = [requests_for(program, rank, seed) for rank in range(n)]
        got = current.run_each(on_rank, [(mine, near, seed) for mine in actions])
        want = simulate([simulated(mine) for mine in actions])
        for rank in range(n):
            assert len(got[rank]) == len(want[rank])
            for a, b in zip(got[rank], want[rank], strict=True):
                assert_same(a, b)


@pytest.mark.exhaustive
def test_a_thousand_matched_calls_raise_no_false_alarm(pool):
    rng = np.random.default_rng([SEED, 1000])
    program = draw_program(rng, 3, 1700)
    calls = sum(what in ("ask", "start") for what, *_ in program)
    assert calls >= 1000
    actions = [requests_for(program, rank, 1) for rank in range(3)]
    actions = [[a for a in mine if a[0] != "work"] for mine in actions]
    replies = pool.run_each(on_rank, [(mine, rank == 1, 1) for rank, mine in enumerate(actions)])
    assert [len(r) for r in replies] == [sum(a[0] in ("ask", "wait") for a in mine) for mine in actions]


# ---- waiting otherwise ----


@pytest.mark.parametrize("how", ["asleep", "asleep without a futex"])
def test_ranks_that_sleep_at_once_get_the_same(how):
    """On a busy machine ranks do not yield but sleep until they are woken; without a futex they look now and then."""

    def program(comm, how):
        comm._loop.calm_until = float("inf")
        if how != "asleep":
            comm._loop.futex = None
        got = []
        big = comm.empty(100_000)
        for i in range(20):
            big[:] = i
            handle = comm.start("all_reduce", np.full(3000, i + comm.rank))
            got.append(float(comm.all_reduce(np.full(3, i))[0]))
            got.append(float(comm.all_reduce(big, out=big)[-1]))
            comm.barrier()
            got.append(float(handle.wait()[0]))
        return got

    with WorkerPool(4) as pool:
        want = [float(v) for i in range(20) for v in (4 * i, 4 * i, 4 * i + 6)]
        assert pool.run(program, how) == [want] * 4


def test_ranks_in_a_long_wait_use_hardly_any_processor_time(pool):
    def program(comm):
        if comm.rank == 2:
            time.sleep(0.4)
        handle = comm.start("all_reduce", np.ones(10))
        before = time.process_time()
        if comm.rank == 0:
            handle.wait()
        comm.barrier()
        used = time.process_time() - before
        if comm.rank != 0:
            handle.wait()
        return used

    used = pool.run(program)
    print(f"processor time in 0.4 s of waiting: {[round(u * 1e3, 1) for u in used]} ms")
    assert max(used[:2]) < 0.1


# ---- errors ----


def test_mismatch_is_reported_within_a_second(pool):
    def program(comm):
        comm.barrier()
        begin = time.perf_counter()
        try:
            comm.start("all_reduce", np.ones(4 if comm.rank else 5)).wait()
        except CollectiveMismatch:
            comm.report(time.perf_counter() - begin)
            raise

    taken = []
    for _ in range(5):
        job = pool.submit(program)
        with pytest.raises(CollectiveMismatch):
            job.result(timeout=60)
        taken += [seconds for _, seconds in job.messages]
    print(f"CollectiveMismatch after median {statistics.median(taken) * 1e3:.1f} ms, max {max(taken) * 1e3:.0f} ms")
    assert len(taken) == 15 and max(taken) < PROMISE_BOUND_S


def test_mismatch_names_the_started_call_and_not_what_was_asked_for_since(pool):
    def program(comm):
        handle = comm.start("all_reduce", np.ones((4, 7) if comm.rank == 2 else (4, 8)))
        for _ in range(100):  # more than the flight recorder keeps
            comm.barrier(group=(comm.rank,))
        handle.wait()

    with pytest.raises(
        CollectiveMismatch,
        match=r"all_reduce #0 float64 \(4, 8\).*rank 2 called all_reduce #0 float64 \(4, 7\).*differ in shape",
    ):
        pool.run(program)


@pytest.mark.exhaustive
def test_a_rank_whose_started_one_waits_for_a_slow_rank_is_not_deadlocked():
    """Rank 0 waits for rank 1, which is blocked by rank 0; what rank 1 has started waits for rank 2, which computes."""

    def program(comm):
        if comm.rank == 2:
            time.sleep(0.8)
        first = comm.start("all_reduce", np.ones(2), group=(1, 2)) if comm.rank else None
        second = comm.start("all_reduce", np.ones(2), group=(0, 1)) if comm.rank != 2 else None
        if comm.rank == 0:
            second.wait()
        comm.barrier()
        for handle in (first, second):
            if handle is not None and (handle is not second or comm.rank):
                handle.wait()
        return comm.rank

    with WorkerPool(3) as pool:
        assert pool.run(program) == [0, 1, 2]


@pytest.mark.exhaustive
def test_late_rank_is_named_with_the_started_call():
    def program(comm):
        if comm.rank == 1:
            while not comm.stop_requested:
                time.sleep(0.01)
                if time.monotonic() > comm.state.setdefault("end", time.monotonic() + 8):
                    break
        comm.start("all_reduce", np.ones(5)).wait()

    late = r"rank 1 .*no call yet\) keeps ranks 0, 2 waiting in all_reduce #0 float64 \(5,\)"
    with WorkerPool(3, timeout_s=1.0, warn_after_s=5) as pool, pytest.raises(CollectiveTimeout, match=late):
        pool.run(program)
