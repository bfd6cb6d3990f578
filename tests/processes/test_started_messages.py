"""send and recv that are started: random programs give the simulator's replies on shared memory and over MPI; what
nobody receives or sends, what disagrees, and a rank that dies, are errors on every rank."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveMismatch, PlanError, RankDied
from parallel_lab.run.communicator import Request, Start, Wait
from parallel_lab.run.simulator import simulate
from tests.crossed import each_of
from tests.processes.pools import BACKENDS, RARELY_OVER_MPI, assert_usable, pool_of
from tests.processes.processes import PROMISE_BOUND_S

SEED, N, TAGS = 20261123, 3, 3
SIZES = (0, 3, 1000, 300_000, 1_500_000)  # in one piece of a ring, in several, more than a ring

pytestmark = pytest.mark.timeout(120)


pool = pool_of(BACKENDS, N)


def drawn_program(seed):
    """Per rank steps ("send"|"recv"|"wait"|"sum", ...): every message is sent before anybody must have it, in an order
    of its own, and each rank starts some and calls others, and waits for its handles in any order."""
    rng = np.random.default_rng(SEED + seed)
    steps = [[] for _ in range(N)]
    for _ in range(3):
        late = [[] for _ in range(N)]
        for number in range(int(rng.integers(1, 8))):
            source, to = (int(r) for r in rng.permutation(N)[:2])
            what = {"group": (source, to), "sr_tag": int(rng.integers(TAGS))}
            size = int(rng.choice(SIZES, p=(0.1, 0.3, 0.3, 0.2, 0.1)))
            given = {**what, "value": rng.standard_normal(size), "dtype": str(rng.choice(["float64", "int32"]))}
            label = f"{source}>{to} {number}"
            steps[source].append(("start" if rng.random() < 0.5 else "call", "send", label, given))
            if rng.random() < 0.5:
                steps[to].append(("start", "recv", label, what))
                late[to].append(("wait", "", label, {}))
            else:
                late[to].append(("call", "recv", label, what))
            if steps[source][-1][0] == "start":
                late[source].append(("wait", "", label, {}))
        calls = [[s for s in mine if s[0] == "call"] for mine in late]
        for rank in range(N):
            waits = [s for s in late[rank] if s[0] == "wait"]
            steps[rank] += calls[rank] + [waits[i] for i in rng.permutation(len(waits))]
            steps[rank].append(("call", "all_reduce", "sum", {"group": tuple(range(N)), "value": np.ones(2)}))
    return steps


def made(kind, given):
    fields = dict(given)
    if kind == "send":
        fields["value"] = (1000 * fields["value"]).astype(fields.pop("dtype"))
    return Request(kind, **fields, origin="drawn")


def simulated(steps):
    handles, got = {}, []
    for how, kind, label, given in steps:
        if how == "start":
            handles[label, kind] = yield Start(made(kind, given))
            handles[label] = handles[label, kind]
        elif how == "wait":
            got.append((label, (yield Wait(handles[label]))))
        else:
            got.append((label, (yield made(kind, given))))
    return got


def run_steps(comm, steps):
    from tests.processes.test_started_messages import made

    handles, got = {}, []
    for how, kind, label, given in steps[comm.rank]:
        if how == "start":
            request = made(kind, given)
            handles[label] = comm.begin(request), request
        elif how == "wait":
            handle, request = handles[label]
            got.append((label, handle.wait()))
            if request.value is not None:
                request.value[...] = 0  # it may be reused now
        else:
            request = made(kind, given)
            got.append((label, comm.answer(request)))
            if request.value is not None:
                request.value[...] = 0
    return got


@pytest.mark.quick(0)
@pytest.mark.parametrize("seed", range(30))
def test_random_programs_give_the_replies_of_the_simulator(pool, seed):
    steps = drawn_program(seed)
    want = simulate([simulated(mine) for mine in steps])
    for rank, found in enumerate(pool.run(run_steps, steps)):
        assert [label for label, _ in found] == [label for label, _ in want[rank]], f"seed {SEED + seed}"
        for (label, a), (_, b) in zip(found, want[rank], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {SEED + seed}, {label}")


@pytest.mark.exhaustive
def test_what_is_large_travels_both_ways_at_once_and_into_out(pool):
    """Neither rank receives before both have sent; the value may be reused after the wait."""

    def program(comm):
        if comm.rank == 2:
            return True
        other, x, out = 1 - comm.rank, np.full(2_000_000, comm.rank + 1.0), np.empty(2_000_000)
        coming = comm.start("recv", group=(other, comm.rank), out=out)
        going = comm.start("send", x, (comm.rank, other))
        going.wait()
        x[...] = -1
        return coming.wait() is out and set(out) == {other + 1.0}

    assert pool.run(program) == [True] * N


def test_a_recv_that_is_started_takes_the_message_before_one_that_is_called_later(pool):
    def program(comm):
        if comm.rank == 0:
            for k in range(3):
                comm.send(np.full(2, k), 1)
        if comm.rank == 1:
            first = comm.start("recv", group=(0, 1))
            second = comm.start("recv", group=(0, 1))
            return [int(comm.recv(0)[0]), int(second.wait()[0]), int(first.wait()[0])]

    assert pool.run(program)[1] == [2, 1, 0]


def test_what_was_started_moves_on_in_a_collective_and_done_tells(pool):
    def program(comm):
        if comm.rank == 0:
            going = comm.start("send", np.arange(600_000.0), (0, 1))
            comm.barrier()
            while not going.done():  # rank 1 takes it
                pass
            return going.wait() is None
        if comm.rank == 1:
            coming = comm.start("recv", group=(0, 1))
            comm.barrier()
            while not coming.done():
                pass
            return coming.wait().sum() == 599_999 * 300_000
        comm.barrier()
        return True

    assert pool.run(program) == [True] * N


def test_a_handle_is_waited_for_once(pool):
    def program(comm):
        if comm.rank < 2:
            kind = ("send", "recv")[comm.rank]
            handle = comm.start(kind, np.ones(2) if comm.rank == 0 else None, (0, 1))
            handle.wait()
            try:
                handle.wait()
            except PlanError as error:
                return str(error)

    for rank, text in enumerate(pool.run(program)[:2]):
        assert f"rank {rank}" in text and "has been waited for" in text


def never_waited(comm):
    if comm.rank < 2:
        handle = comm.start(("send", "recv")[comm.rank], np.ones(2) if comm.rank == 0 else None, (0, 1))
        if comm.rank == 0:
            handle.wait()


def never_received(comm):
    if comm.rank == 0:
        comm.start("send", np.ones(400_000), (0, 1)).wait()


def never_sent(comm):
    if comm.rank == 1:
        comm.start("recv", group=(0, 1)).wait()
    if comm.rank == 0:
        comm.send(np.ones(1), 1, sr_tag=7)


def other_shape(comm):
    if comm.rank == 0:
        comm.start("send", np.ones(3), (0, 1)).wait()
    if comm.rank == 1:
        comm.start("recv", group=(0, 1), shape=(4,), dtype="float64").wait()
    comm.barrier()


LINE = r"test_started_messages.py:\d+"


@pytest.mark.quick(5)
@each_of(
    ("program", "words"),
    (never_waited, rf"rank 1 has started recv.* at {LINE} and never waited for it"),
    (never_received, rf"rank 0 sent 1 message to rank 1, which received 0|rank 1 has returned.*{LINE}"),
    (never_sent, rf"rank 0 has returned while rank 1 waits for it in recv.*{LINE}.*last call was send.*{LINE}"),
    (other_shape, r"rank 1 expects float64 \(4,\) from rank 0, which sent float64 \(3,\)"),
)
def test_messages_without_a_partner_and_of_another_shape_are_reported(pool, program, words):
    start = time.monotonic()
    with pytest.raises(CollectiveMismatch, match=words):
        pool.run(program)
    assert time.monotonic() - start < PROMISE_BOUND_S
    assert_usable(pool)


@pytest.mark.faults("ranks at work")
@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", RARELY_OVER_MPI)
@pytest.mark.parametrize("victim", range(N))
def test_a_rank_that_dies_ends_those_with_messages_under_way(backend, victim):
    """Stages in a row, each with a recv posted and a large send under way: whichever dies, all hear of it."""

    def program(comm, victim):
        comm.barrier()
        for _ in range(3):
            coming = comm.start("recv", group=(comm.rank - 1, comm.rank)) if comm.rank else None
            x = np.ones(500_000) if coming is None else coming.wait()
            if comm.rank == victim:
                time.sleep(0.2)
                os.kill(os.getpid(), signal.SIGKILL)
            if comm.rank < comm.world_size - 1:
                comm.start("send", x, (comm.rank, comm.rank + 1)).wait()
        comm.barrier()

    with backend(N) as mine:
        start = time.monotonic()
        with pytest.raises(RankDied, match=rf"rank {victim} .*SIGKILL"):
            mine.run(program, victim)
        print(f"death told after {time.monotonic() - start:.2f} s")
        assert time.monotonic() - start < PROMISE_BOUND_S
