"""A learner's functions as exercises run them: values, faults with their line, no end in sight, rank programs."""

from __future__ import annotations

import signal
import sys
import threading
import time

import numpy as np
import pytest

from parallel_lab.lab.exercises.own_process import in_own_process
from parallel_lab.lab.exercises.running import Told, attempt, deadline, read_number, run_programs
from parallel_lab.run.communicator import Request

SOON_S = 0.2
PROMISED_S = 5.0  # a call that is stopped after SOON_S has ended by then, on a busy machine too


def raising(*_):
    raise ZeroDivisionError("<b>mine</b>")


def leaving(*_):
    sys.exit(3)


def test_a_call_gives_its_value():
    called = attempt(lambda a, b: a + b, 2, 3)
    assert called.value == 5 and called.fault is None


def test_what_a_function_raises_has_the_learners_line():
    fault = attempt(raising, 1).fault
    assert fault.text == "ZeroDivisionError: <b>mine</b>"
    assert fault.place == f"test_running.py:{raising.__code__.co_firstlineno + 1}"
    assert fault.code.startswith("raise ZeroDivisionError")


def attempt_apart(function, *args, seconds=SOON_S):
    """What a call of the function gives, made in a process of its own as `check` makes it."""
    with in_own_process(function, {}) as (stand_in, _):
        return attempt(stand_in, *args, seconds=seconds)


def test_an_exit_does_not_end_the_notebook():
    assert attempt_apart(leaving, seconds=PROMISED_S).fault.text == "SystemExit: 3"
    assert attempt(leaving).fault.text == "SystemExit: 3"


def test_what_numpy_raises_points_to_the_learners_line():
    def wrong():
        return np.concatenate([np.zeros((2, 2)), np.zeros(3)])

    assert attempt(wrong).fault.place == f"test_running.py:{wrong.__code__.co_firstlineno + 1}"


def endless():
    while True:
        pass


def asleep():
    time.sleep(60)


def deaf_to(errors, function):
    def deaf():
        while True:
            try:
                function()
            except errors:
                continue

    return deaf


DEAF = deaf_to(Exception, endless)
STONE_DEAF = [deaf_to(BaseException, lambda: time.sleep(0.01)), deaf_to(BaseException, asleep)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [endless, asleep, DEAF, *STONE_DEAF], ids=lambda f: f.__name__)
def test_a_function_without_an_end_is_stopped(function):
    begin = time.monotonic()
    fault = attempt_apart(function).fault
    assert fault.text == f"stopped: still running after {SOON_S:g} s" and fault.place.startswith("test_running.py:")
    assert time.monotonic() - begin < PROMISED_S


@pytest.mark.parametrize("function", [endless, DEAF], ids=lambda f: f.__name__)
def test_it_is_stopped_in_another_thread_too(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(attempt_apart(function).fault), daemon=True)
    thread.start()
    thread.join(PROMISED_S)
    assert not thread.is_alive() and found[0].text.startswith("stopped")


def test_a_deadline_leaves_signals_and_timers_as_they_were():
    rang, runner = [], signal.getitimer(signal.ITIMER_REAL)
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    try:
        mine = signal.getsignal(signal.SIGALRM)
        signal.setitimer(signal.ITIMER_REAL, 30)
        attempt_apart(endless)
        attempt_apart(lambda: None)
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        assert signal.getsignal(signal.SIGALRM) is mine and 20 < left_s < 30 - SOON_S and not rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, *runner)
        signal.signal(signal.SIGALRM, before)


def test_the_first_of_two_deadlines_ends_it():
    begin = time.monotonic()
    for outer, inner in ((SOON_S, 60), (60, SOON_S)):
        stopped = pytest.raises(Told, match=f"after {SOON_S:g} s")
        with in_own_process(endless, {}) as (stand_in, _), stopped, deadline(outer), deadline(inner):
            stand_in()
    assert time.monotonic() - begin < 2 * PROMISED_S


@pytest.mark.parametrize(
    ("value", "number"),
    [(3, 3.0), (np.float32(0.5), 0.5), (np.array([2]), None), ("3", None), (True, None), (None, None)],
)
def test_numbers_are_read_and_nothing_else(value, number):
    with np.errstate(all="ignore"):
        assert read_number(value) == number


# ---- rank programs ----


def around(rank, ranks, value):
    """Passes its value once around the ring; returns what came last."""
    for _ in range(ranks - 1):
        yield Request("send", (rank, (rank + 1) % ranks), value)
        value = yield Request("recv", ((rank - 1) % ranks, rank))
    return value


def chain(rank, ranks, value):
    """One message from rank 0 to the last, hop by hop."""
    if rank:
        value = yield Request("recv", (rank - 1, rank))
    if rank < ranks - 1:
        yield Request("send", (rank, rank + 1), value)
    return value


def star(rank, ranks, value):
    """Rank 0 sends to all the others, one after the other."""
    for other in range(1, ranks):
        if rank == 0:
            yield Request("send", (0, other), value)
    if rank:
        value = yield Request("recv", (0, rank))
    return value


@pytest.mark.parametrize(("program", "steps", "messages"), [(around, 4, 20), (chain, 4, 4), (star, 4, 4)])
def test_messages_and_the_longest_chain_of_them_are_counted(program, steps, messages):
    run = run_programs(program, 5, [np.full(3, r) for r in range(5)])
    assert run.fault is None and (run.steps, len(run.messages)) == (steps, messages)
    assert all(
        m.size_bytes == 3 * np.dtype(int).itemsize and m.origin.startswith("test_running.py:") for m in run.messages
    )
    assert [int(r[0]) for r in run.results] == {around: [1, 2, 3, 4, 0], chain: [0] * 5, star: [0] * 5}[program]
    assert run.sent_bytes(0) == sum(m.size_bytes for m in run.messages if m.rank == 0)


def test_a_program_without_a_yield_is_a_rank_that_sends_nothing():
    run = run_programs(lambda rank, ranks, value: value + 1, 2, [1, 2])
    assert run.results == (2, 3) and run.steps == 0 and run.messages == ()


def test_a_rank_that_raises_is_named_with_its_line():
    def crash(rank, ranks, value):
        yield Request("send", (rank, (rank + 1) % ranks), value)
        if rank == 1:
            raise IndexError("chunk 7")
        yield Request("recv", ((rank - 1) % ranks, rank))

    fault = run_programs(crash, 3, [np.ones(1)] * 3).fault
    assert fault.rank == 1 and fault.text == "IndexError: chunk 7"
    assert fault.place == f"test_running.py:{crash.__code__.co_firstlineno + 3}"


def test_ranks_that_wait_for_each_other_are_a_fault_at_once():
    def first(rank, ranks, value):
        yield Request("recv", ((rank - 1) % ranks, rank))

    fault = run_programs(first, 3, [None] * 3).fault
    assert "deadlock" in fault.text and "rank 2 waits in its call 1" in fault.text and "test_running.py" in fault.text


def test_a_message_that_nobody_receives_is_a_fault():
    def lost(rank, ranks, value):
        if rank == 0:
            yield Request("send", (0, 1), value)

    assert "which received 0" in run_programs(lost, 2, [np.ones(1)] * 2).fault.text


def test_a_program_that_never_stops_sending_is_stopped():
    def flood(rank, ranks, value):
        while True:
            yield Request("send", (rank, (rank + 1) % ranks), value)

    assert "still communicating after" in run_programs(flood, 2, [np.ones(1)] * 2).fault.text


def test_a_program_without_an_end_is_stopped():
    def spin(rank, ranks, value):
        yield Request("send", (rank, (rank + 1) % ranks), value)
        DEAF()

    begin = time.monotonic()
    with in_own_process(spin, {}) as (stand_in, _):
        fault = run_programs(stand_in, 2, [np.ones(1)] * 2, seconds=SOON_S).fault
    assert fault.text.startswith("stopped") and fault.rank == 0 and time.monotonic() - begin < PROMISED_S


WRONG_SENDS = [Request("send", (1, 0), np.ones(1)), Request("send", "01", np.ones(1))]


@pytest.mark.parametrize("asked", [7, "send", Request("no such kind", (0, 1)), *WRONG_SENDS])
def test_anything_but_a_request_is_a_fault(asked):
    def wrong(rank, ranks, value):
        yield asked

    assert run_programs(wrong, 2, [None] * 2).fault is not None
