"""When a rank stops yielding and sleeps: what it loses to other programs, and in which time. Where it begins."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest

from parallel_lab.processes.shm import barrier
from parallel_lab.processes.shm.arena import PID, Arena, ArenaMap
from parallel_lab.processes.shm.barrier import FIRST_CALM_S, MAX_CALM_S, MAX_LOST, MIN_LOST_S, WaitLoop
from parallel_lab.processes.shm.pool import WorkerPool
from parallel_lab.processes.shm.shared_memory import SharedBlock
from parallel_lab.processes.shm.slices import TURN_BYTES, copy_in_turns
from tests.crossed import each_of


@pytest.fixture
def loop():
    layout = ArenaMap.for_budget(2, 1 << 22)
    arena = Arena(SharedBlock(layout.size_bytes), layout)
    found = WaitLoop(arena, 0)
    found._yielding_since = 100.0  # the clock of these tests
    found._others_compute = lambda: True
    yield found
    del found.words
    arena.close()


def test_one_wait_for_a_rank_that_is_still_starting_does_not_count(loop):
    loop.lost_time(100.0 + 0.9 * MIN_LOST_S, 0.9 * MIN_LOST_S)
    assert loop.calm_until < 100


def test_each_time_the_cores_are_still_taken_the_rank_sleeps_twice_as_long(loop):
    now, calm_s = 100.0, FIRST_CALM_S
    for _ in range(20):
        now += MIN_LOST_S
        loop.lost_time(now, MIN_LOST_S)
        assert loop.calm_until == pytest.approx(now + calm_s)
        now, calm_s = loop.calm_until, min(2 * calm_s, MAX_CALM_S)
    assert calm_s == MAX_CALM_S


def test_a_little_loss_in_a_long_time_halves_the_sleep(loop):
    now = 100.0
    for _ in range(4):
        now += MIN_LOST_S
        loop.lost_time(now, MIN_LOST_S)
        now = loop.calm_until
    before = loop._calm_s
    assert before == 16 * FIRST_CALM_S
    for n in range(1, 8):
        now += 1.01 * MIN_LOST_S / MAX_LOST
        loop.lost_time(now, MIN_LOST_S)
        assert loop.calm_until < now and loop._calm_s == max(before / 2**n, FIRST_CALM_S)


def test_losses_too_small_to_be_judged_alone_add_up(loop):
    for n in range(1, 4):
        loop.lost_time(100.0 + n * MIN_LOST_S / 4, MIN_LOST_S / 4)
        assert loop.calm_until < 100
    loop.lost_time(100.0 + MIN_LOST_S, MIN_LOST_S / 4)
    assert loop.calm_until > 100


def test_what_ranks_of_the_same_world_compute_is_not_lost(loop):
    loop._others_compute = lambda: False
    loop.lost_time(100.0 + MIN_LOST_S, MIN_LOST_S)
    assert loop.calm_until < 100
    loop._others_compute = lambda: pytest.fail("looked again at once")
    for n in range(20):
        loop.lost_time(100.0 + MIN_LOST_S + n * barrier.TRUST_S / 20, MIN_LOST_S)
    loop._others_compute = lambda: True
    now = 100.0 + 2 * MIN_LOST_S + barrier.TRUST_S
    loop.lost_time(now, MIN_LOST_S)
    assert loop.calm_until == pytest.approx(now + FIRST_CALM_S)


def test_what_one_rank_has_seen_the_others_take_from_it(loop):
    other = WaitLoop(loop.arena, 1)
    other._yielding_since, now = 100.0, 100.0 + MIN_LOST_S
    loop._others_compute, other._others_compute = lambda: False, lambda: pytest.fail("looked for itself")
    loop.lost_time(now, MIN_LOST_S)
    other.lost_time(now + 0.9 * barrier.TRUST_S, barrier.TRUST_S)
    assert other.calm_until < 100
    other._others_compute = lambda: True
    now += barrier.TRUST_S
    other.lost_time(now + MIN_LOST_S, MIN_LOST_S)
    assert other.calm_until == pytest.approx(now + MIN_LOST_S + FIRST_CALM_S)
    del other.words


@each_of(
    ("loadavg", "states", "others"),
    ("0.5 0.4 0.3 2/310 99", "RR", False),  # the two ranks
    ("0.5 0.4 0.3 3/310 99", "RR", True),
    ("0.5 0.4 0.3 2/310 99", "RS", True),
    ("0.5 0.4 0.3 1/310 99", "R-", False),  # one has ended
    ("", "RR", True),  # a system that does not tell
    ("0 0 0 0/0 0", "RR", True),
)
def test_others_compute_when_more_processes_run_than_ranks(loop, monkeypatch, loadavg, states, others):
    files = {"/proc/loadavg": loadavg.encode()}
    for rank, state in enumerate(states):
        loop.words[loop.arena.map.slot(rank) + PID] = 500 + rank
        if state != "-":
            files[f"/proc/{500 + rank}/stat"] = f"{500 + rank} (a (program) x) {state} 1 2 3".encode()

    def opened(path, mode):
        if path not in files:
            raise FileNotFoundError(path)
        return io.BytesIO(files[path])

    monkeypatch.setattr(barrier, "open", opened, raising=False)
    assert WaitLoop._others_compute(loop) == others


# ---- cores ----


@each_of(
    "rank, cores, gone_to",
    *((0, {3, 5}, [{3}, {3, 5}]), (1, {3, 5}, [{5}, {3, 5}]), (2, {3, 5}, [{5}, {3, 5}]), (3, {3, 5}, [{3}, {3, 5}])),
    *((1, {3}, []), (1, {1, 3, 5}, [])),
)
def test_a_run_begins_on_a_core_of_the_ranks_number_and_the_rank_stays_free(loop, monkeypatch, rank, cores, gone_to):
    """On two cores the first two ranks have one each, the next two the other way round. With four, the even ranks,
    which often do the same at a time, are on both. With one core there is no choice, with three the system finds idle
    ones.
    """
    gone = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, to: gone.append(to))
    loop.rank = rank
    loop.begin_run()
    assert gone == gone_to


def test_where_the_system_does_not_allow_it_nothing_is_tried_again(loop, monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", refused)
    loop.begin_run()
    assert loop._settling == 0


def test_workers_may_run_where_the_notebook_may():
    def allowed(comm) -> set[int]:
        comm.barrier()
        return os.sched_getaffinity(0)

    with WorkerPool(4) as pool:
        assert pool.run(allowed) == pool.run(allowed) == [os.sched_getaffinity(0)] * 4


# ---- in the middle of long work ----


@pytest.mark.parametrize("calm", [False, True])
def test_a_core_is_lent_in_the_middle_of_work_unless_others_want_it(loop, monkeypatch, calm):
    lent = []
    monkeypatch.setattr(barrier, "yield_core", lambda: lent.append(1))
    loop.calm_until = float("inf") if calm else 0.0
    loop.let_others_run()
    assert lent == ([] if calm else [1])


@each_of(("size_bytes", "pauses"), (TURN_BYTES - 8, 0), (TURN_BYTES, 1), (TURN_BYTES + 8, 2), (3 * TURN_BYTES, 3))
def test_a_copy_pauses_after_every_turn(size_bytes, pauses):
    source, made = np.arange(size_bytes // 8, dtype="i8"), []
    target = np.zeros_like(source)
    copy_in_turns(target, source, lambda: made.append(int((target == source).sum())))
    assert np.array_equal(target, source)
    assert made == [min((n + 1) * TURN_BYTES // 8, source.size) for n in range(pauses)]
