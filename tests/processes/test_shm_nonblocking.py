"""Collectives of worker processes that are started and waited for later: the bits, order and errors of the
simulator's.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, CollectiveTimeout, DeadlockError, PlanError, RankRaised
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.communicator import Request, Start, Wait, answer
from parallel_lab.run.simulator import simulate

SEED = 20261121
PROMISE_BOUND_S = 5.0
N = (0, 1, 2)

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
    """One program for all ranks: ("ask", kind, group, shape, fields), ("start", ...), ("wait", which), ("work",
    seconds).
    """
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
            kind = str(
                rng.choice(
                    [
                        "all_reduce",
                        "all_gather",
                        "broadcast",
                        "all_to_all",
                        "reduce_scatter",
                        "reduce",
                        "gather",
                        "scatter",
                        "barrier",
                    ]
                )
            )
            fields = (
                {"root": group[int(rng.integers(size))]} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
            )
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
    """The same on a worker.  near: values lie on the heap; now and then the rank makes progress, or asks whether
    something is complete.
    """
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
            value = comm.empty(request.value.shape, request.value.dtype)
            value[...] = request.value
            request = Request(**{**vars(request), "value": value})
        if what == "ask":
            replies.append(comm.answer(request))
        else:
            handles[rest[0]] = comm.begin(request)
    return [None if r is None else np.array(r) for r in replies]


@pytest.mark.quick(1)
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
                assert (a is None) == (b is None) and (
                    a is None or (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
                )


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


def test_replies_come_while_a_rank_only_makes_progress(pool):
    def program(comm):
        handle = comm.start("all_reduce", np.full(200_000, 1.0))
        looks = 0
        while not handle.done():
            looks += 1
            comm.progress()
        end_s = handle.end_s
        time.sleep(0.01)
        return float(handle.wait()[0]), end_s is not None and handle.end_s == end_s

    assert pool.run(program) == [(3.0, True)] * 3


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
        ends = []
        handles = [comm.start("all_reduce", np.full(50_000, i)) for i in range(8)]
        comm.barrier()
        values = [float(h.wait()[0]) for h in reversed(handles)]
        ends = [h.end_s for h in handles]
        return values, ends == sorted(ends)

    assert pool.run(program) == [([3.0 * i for i in reversed(range(8))], True)] * 3


def test_one_rank_alone_is_answered_at_once(pool):
    def program(comm):
        handle = comm.start("all_reduce", np.arange(3.0), group=(comm.rank,))
        return handle.done(), handle.wait().tolist()

    assert pool.run(program) == [(True, [0.0, 1.0, 2.0])] * 3


def test_records_tell_when_a_started_one_was_complete(pool):
    def program(comm):
        comm.recording = True
        handle = comm.start("all_reduce", np.ones(1000))
        comm.barrier()
        time.sleep(0.02)
        handle.wait()
        comm.recording = False
        return comm.records, handle.end_s

    for records, end_s in pool.run(program):
        by_index = {r[0]: r for r in records}
        assert [by_index[i][1] for i in (0, 1)] == ["all_reduce", "barrier"]
        start, end = by_index[0][2:4]
        assert start < end == end_s and by_index[0][4] == 2 * 2 * 8000 // 3
        assert by_index[0][6].startswith("test_shm_nonblocking.py:")


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
    """On a busy machine ranks do not yield but sleep until they are woken; where there is no futex they look now and
    then.
    """

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
            time.sleep(1.0)
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
    print(f"processor time in 1 s of waiting: {[round(u * 1e3, 1) for u in used]} ms")
    assert max(used[:2]) < 0.25


# ---- errors ----


def ask(kind, value=None, group=N, **fields):
    return lambda comm, go: go(comm, Request(kind, group, value, **fields))


def swapped(order):
    def calls(comm, go):
        for name in order:
            go(comm, Request("all_reduce", N, np.ones(3), origin=name))

    return calls


def early(count):
    def calls(comm, go):
        for _ in range(count):
            go(comm, Request("all_reduce", N, np.ones(3)))

    return calls


MISMATCHES = {
    "kind": (ask("all_reduce", np.ones(4)), ask("all_gather", np.ones(4)), "all_gather"),
    "shape": (ask("all_reduce", np.ones(8)), ask("all_reduce", np.ones(4)), r"\(4,\)"),
    "large shape": (ask("all_reduce", np.ones(256_000)), ask("all_reduce", np.ones(128_000)), r"\(128000,\)"),
    "dtype": (ask("all_reduce", np.ones(4, "f4")), ask("all_reduce", np.ones(4)), "float64"),
    "dtype of equal size": (
        ask("all_reduce", np.ones(20_000, "f4")),
        ask("all_reduce", np.ones(20_000, "i4")),
        "int32",
    ),
    "reduce": (ask("all_reduce", np.ones(4)), ask("all_reduce", np.ones(4), reduce="max"), "max"),
    "root": (ask("broadcast", np.ones(9000), root=0), ask("broadcast", np.ones(9000), root=1), "root 1"),
    "order": (swapped("ab"), swapped("ba"), "at b"),
    "leaves early": (early(3), early(2), "has returned|never"),
}


def blocking(comm, request):
    comm.answer(request)


def on_heap(comm, request):
    value = comm.empty(request.value.shape, request.value.dtype)
    value[...] = request.value
    comm.answer(Request(**{**vars(request), "value": value}))


def started(comm, request):
    comm.state["handles"].append(comm.begin(request))


def started_on_heap(comm, request):
    value = comm.empty(request.value.shape, request.value.dtype)
    value[...] = request.value
    comm.state["handles"].append(comm.begin(Request(**{**vars(request), "value": value})))


@pytest.mark.quick(21)
@pytest.mark.parametrize("go", [blocking, on_heap, started, started_on_heap])
@pytest.mark.parametrize("name", MISMATCHES)
def test_nine_kinds_of_mismatch_raise_on_every_rank_and_give_no_reply(pool, name, go):
    others, odd, named = MISMATCHES[name]

    def program(comm, go):
        comm.state["handles"] = []
        comm.barrier()
        try:
            (odd if comm.rank == 1 else others)(comm, go)
            replies = [handle.wait() for handle in comm.state["handles"]]
        except CollectiveMismatch as error:
            comm.report((comm.rank, str(error)))
            raise
        comm.report((comm.rank, f"{len(replies)} replies"))

    start = time.monotonic()
    job = pool.submit(program, go)
    with pytest.raises(CollectiveMismatch, match=named) as caught:
        job.result(timeout=20)
    took = time.monotonic() - start
    print(f"{name}, {go.__name__}: {took * 1e3:.0f} ms")
    assert took < PROMISE_BOUND_S
    texts = dict(text for _, text in job.messages)
    assert "rank 1" in str(caught.value)
    if name == "leaves early":  # rank 1 made all its calls, and they were in order
        assert "replies" not in texts[0] and "replies" not in texts[2]
    else:
        assert sorted(texts) == [0, 1, 2] and not any("replies" in text for text in texts.values()), texts
        lines = 0 if name == "order" else 2
        assert all(text.count("test_shm_nonblocking.py:") >= lines for text in (*texts.values(), str(caught.value)))
    assert pool.pids == pool.pids_at_start and pool.run(lambda comm: comm.all_reduce(np.ones(1))[0]) == [3.0] * 3


def test_mismatch_is_told_within_a_second(pool):
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
            job.result(timeout=20)
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


def test_start_without_a_wait_is_told_with_rank_and_line(pool):
    def program(comm):
        handle = comm.start("all_reduce", np.ones(4))
        if comm.rank == 1:
            while not handle.done():
                pass
            return "forgotten"
        return handle.wait()

    with pytest.raises(
        CollectiveMismatch,
        match=r"rank 1 has started all_reduce float64 \(4,\) sum at test_shm_nonblocking.py:\d+ "
        "and never waited for it",
    ):
        pool.run(program)


def test_second_wait_and_wait_in_another_run_are_refused(pool):
    def twice(comm):
        handle = comm.state["handle"] = comm.start("barrier")
        handle.wait()
        comm.barrier()  # the first that raises stops the others: all have kept their handle by then
        handle.wait()

    for body in (twice, lambda comm: comm.state["handle"].wait()):
        with pytest.raises(RankRaised, match="has been waited for") as caught:
            pool.run(body)
        assert isinstance(caught.value.__cause__, PlanError)


@pytest.mark.parametrize(
    "call", [lambda comm: comm.start("send", np.ones(1)), lambda comm: comm.begin(Request("recv", (1, comm.rank)))]
)
def test_send_and_recv_cannot_be_started(pool, call):
    with pytest.raises((RankRaised, CollectiveMismatch), match=r"is started|group of send and recv"):
        pool.run(call)


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


@pytest.mark.parametrize("program", [start_against_call, circle_of_starts])
def test_ranks_that_wait_for_each_other_are_a_deadlock_long_before_the_time_limit(pool, program):
    start = time.monotonic()
    with pytest.raises(DeadlockError, match=r"rank \d waits for rank \d in all_reduce"):
        pool.run(program)
    assert time.monotonic() - start < PROMISE_BOUND_S


def test_a_rank_whose_started_one_waits_for_a_slow_rank_is_no_deadlock():
    """Rank 0 waits for rank 1's part, rank 1 is blocked by rank 0, and what rank 1 has started waits for rank 2, which
    computes.
    """

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


def test_the_answer_is_that_of_the_specification_for_all_kinds_at_once(pool):
    """Eight different ones under way together."""
    x = [np.random.default_rng([SEED, r]).standard_normal((6, 3)) for r in range(3)]
    kinds = [
        ("all_reduce", {}),
        ("all_gather", {"dim": 1}),
        ("reduce_scatter", {}),
        ("all_to_all", {}),
        ("reduce", {"root": 1}),
        ("gather", {"root": 2}),
        ("halo_exchange", {"window": (6, -1, 8, 6)}),
        ("barrier", {}),
    ]

    def program(comm, value):
        handles = [
            comm.begin(Request(kind, N, None if kind == "barrier" else value, **fields)) for kind, fields in kinds
        ]
        return [handle.wait() for handle in handles]

    got = pool.run_each(program, [(v,) for v in x])
    for i, (kind, fields) in enumerate(kinds):
        want = answer([Request(kind, N, None if kind == "barrier" else v, **fields) for v in x])
        for rank in N:
            reply = got[rank][i]
            assert (reply is None) == (want[rank] is None) and (
                reply is None or reply.tobytes() == want[rank].tobytes()
            ), kind
