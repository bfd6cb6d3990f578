"""The exercises' frame: verdicts and hints, and a learner's code that runs for ever, raises, or is no code at all."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.exercises import Part, Verdict, all_exercises, check, get_exercise
from parallel_lab.lab.exercises.book import Desk, Exercise
from parallel_lab.lab.exercises.running import TimeUp, attempt, deadline, read_number, run_programs
from parallel_lab.run.communicator import Request

NUMBERS = [exercise.number for exercise in all_exercises()]
HINTS = ("a?", "b", "c", "d")
SOON_S = 0.2
PROMISED_S = 5.0  # a call that is stopped after SOON_S has ended by then, on a busy machine too


class Hostile:
    """An answer that raises whatever is done with it."""

    def __getattr__(self, name):
        raise RuntimeError("no attribute for you")

    def __iter__(self):
        raise RuntimeError("no iteration for you")

    def __float__(self):
        raise RuntimeError("no number for you")

    def __eq__(self, other):
        raise RuntimeError("no comparison for you")

    __hash__ = None

    def __repr__(self):
        raise RuntimeError("no text for you")


def raising(*_):
    raise ZeroDivisionError("<b>mine</b>")


def leaving(*_):
    sys.exit(3)


JUNK = [None, 3, -1.5, float("nan"), "text", b"", (), [None], {}, {"line": 3}, np.zeros((2, 2)), object(), Hostile()]
JUNK += [raising, leaving, lambda: None]


# ---- all exercises ----


@pytest.mark.parametrize("number", NUMBERS)
def test_an_exercise_is_complete(number):
    exercise = get_exercise(number)
    assert len(exercise.hints) == 4 and all(exercise.hints) and exercise.hints[0].endswith("?")
    assert not any(re.search(r"\bdef |\byield |[\[\]]|==", text) for text in exercise.hints), (
        "a hint is words, not code that could be pasted"
    )
    names = [name for name, _ in exercise.parts]
    assert len(set(names)) == len(names) and all(points > 0 for _, points in exercise.parts)
    assert exercise.points == sum(points for _, points in exercise.parts)


def test_numbers_are_unique_and_belong_to_their_lesson():
    assert len(set(NUMBERS)) == len(NUMBERS)
    assert sorted(NUMBERS) == NUMBERS


@pytest.mark.quick(60)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "answer",
    JUNK,
    ids=lambda a: type(a).__name__ if isinstance(a, Hostile) or type(a) is object else getattr(a, "__name__", repr(a)),
)
def test_no_answer_makes_check_raise(number, answer):
    verdict = check(number, answer)
    assert not verdict.passed
    assert len(verdict.parts) == len(get_exercise(number).parts)
    assert number in str(verdict) and "<b>mine" not in verdict._repr_html_()


@pytest.mark.parametrize("number", ["02", "2.1", "99.1", "02.9", "../02.1", 2.1, None])
def test_a_number_that_no_exercise_has_is_refused_with_those_there_are(number):
    with pytest.raises(ArgumentError, match=r"such as \d\d\.\d"):
        check(number, None)


# ---- an exercise that is judged ----


def exercise(grader, parts=(("one", 1), ("two", 3))) -> Exercise:
    return Exercise("77.1", "a test", parts, HINTS, grader)


def test_parts_come_in_their_order_with_their_points_and_what_is_not_yielded_is_not_judged():
    parts = exercise(lambda answer: [Part("two", True, points=1000)]).judge(None)
    assert [(p.name, p.passed, p.points) for p in parts] == [("one", None, 1), ("two", True, 3)]
    verdict = Verdict("77.1", "a test", parts)
    assert (verdict.points, verdict.max_points, verdict.passed) == (3, 4, False)


def test_what_a_grader_is_given_beside_the_answer_reaches_it():
    parts = exercise(lambda answer, fit: [Part("one", answer == fit), Part("two", True)]).judge(5, fit=5)
    assert all(p.passed for p in parts)


def test_a_grader_that_fails_is_a_failed_part_and_keeps_what_was_judged_before():
    def grader(answer):
        yield Part("one", True)
        raise KeyError("missing")

    one, two = exercise(grader).judge("my answer")
    assert one.passed and two.passed is False
    assert "KeyError" in two.found and "my answer" in two.note


def test_a_grader_cannot_make_up_parts():
    one, two = exercise(lambda answer: [Part("three", True)]).judge(None)
    assert one.passed is False and "'three'" in one.found and two.passed is None


# ---- verdicts ----

FAILED = Part("sums", False, "7 & <i>", "8: 2 (p - 1)", "Half of it", rank=2, op="send 2 -> 3 at cell:7", points=2)
VERDICT = Verdict(
    "02.1", "a <ring>", (Part("runs", True, "fine", "not shown"), FAILED, Part("bytes", None)), hints_seen=1
)


def test_a_verdict_says_everything_in_words():
    text = str(VERDICT)
    assert text.splitlines()[0] == "Exercise 02.1, a <ring>: 1 of 3 parts passed, 1 of 4 points"
    failed = "✗ sums: not yet (rank 2, send 2 -> 3 at cell:7)"
    for word in ("✓ runs: passed", failed, "8: 2 (p - 1)", "note: Half of it", "– bytes: not judged"):
        assert word in text
    assert 'hint("02.1") gives a place to look (1 of 4 hints seen)' in text
    assert VERDICT.first_failure is FAILED and not VERDICT
    assert "not shown" not in text  # what is expected of a part that passed is no news


def test_a_verdict_in_a_notebook_is_escaped_needs_no_network_and_fits_light_and_dark():
    html = VERDICT._repr_html_()
    assert "7 &amp; &lt;i&gt;" in html and "a &lt;ring&gt;" in html
    assert "http" not in html and "<script" not in html and "role='status'" in html
    # text takes the page's colour; the only colours are those of the bars beside it
    assert re.findall(r"(?<![-\w])color:[^;']*", html) == ["color:inherit"] and "background" not in html
    for word in ("runs</b>: passed", "sums</b>: not yet (rank 2", "bytes</b>: not judged"):
        assert word in html


def test_assert_passed_raises_the_verdict_and_only_if_something_is_missing():
    with pytest.raises(AssertionError, match="1 of 3 parts passed"):
        VERDICT.assert_passed()
    passed = Verdict("02.1", "a ring", (Part("runs", True),))
    assert passed.assert_passed() is None and passed and passed.offer == ""


# ---- hints ----


def test_hints_come_one_after_the_other_and_the_last_stays():
    desk, hints = Desk(), get_exercise("02.1").hints
    given = [desk.hint("02.1") for _ in range(5)]
    assert [(h.level, h.text) for h in given] == [*enumerate(hints), (3, hints[3])]
    assert "a question" in str(given[0]) and "gives a place to look" in str(given[0])
    assert 'hint("' not in str(given[3])
    assert [str(h).split(", ")[1].split(" (")[0] for h in given] == [f"hint {n} of 4" for n in (1, 2, 3, 4, 4)]
    assert desk.hint("02.2").level == 0  # each exercise has its own ladder


def test_a_verdict_offers_the_next_hint():
    desk = Desk()
    assert "gives a question (0 of 4" in desk.check("02.1").offer
    for seen in range(1, 4):
        desk.hint("02.1")
        assert f"({seen} of 4 hints seen)" in desk.check("02.1").offer
    desk.hint("02.1")
    assert "All hints were given" in desk.check("02.1").offer


def test_a_hint_can_be_seen_again_and_not_before_its_time():
    desk = Desk()
    with pytest.raises(ArgumentError, match="None so far"):
        desk.hint("02.1", 0)
    desk.hint("02.1")
    assert desk.hint("02.1", 0).level == 0 and desk.seen["02.1"] == 1
    for level in (1, -1, True, "0"):
        with pytest.raises(ArgumentError, match="0 to 0"):
            desk.hint("02.1", level)


def test_a_hint_is_escaped():
    desk = Desk()
    assert "<p style" in desk.hint("02.1")._repr_html_() and "&quot;02.1&quot;" in desk.hint("02.1")._repr_html_()


# ---- learner's functions ----


def test_a_call_gives_its_value():
    called = attempt(lambda a, b: a + b, 2, 3)
    assert called.value == 5 and called.fault is None


def test_what_a_function_raises_has_the_learners_line():
    fault = attempt(raising, 1).fault
    assert fault.text == "ZeroDivisionError: <b>mine</b>"
    assert fault.place == f"test_exercises.py:{raising.__code__.co_firstlineno + 1}"
    assert fault.code.startswith("raise ZeroDivisionError")


def test_an_exit_does_not_end_the_notebook():
    assert attempt(leaving).fault.text == "SystemExit: 3"


def test_what_numpy_raises_points_to_the_learners_line():
    def wrong():
        return np.concatenate([np.zeros((2, 2)), np.zeros(3)])

    assert attempt(wrong).fault.place == f"test_exercises.py:{wrong.__code__.co_firstlineno + 1}"


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


@pytest.mark.parametrize("function", [endless, asleep, DEAF, *STONE_DEAF], ids=lambda f: f.__name__)
def test_a_function_without_an_end_is_stopped(function):
    begin = time.monotonic()
    fault = attempt(function, seconds=SOON_S).fault
    assert fault.text == f"stopped: no end after {SOON_S:g} s" and fault.place.startswith("test_exercises.py:")
    assert time.monotonic() - begin < PROMISED_S


@pytest.mark.parametrize("function", [endless, DEAF], ids=lambda f: f.__name__)
def test_it_is_stopped_in_another_thread_too(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(attempt(function, seconds=SOON_S).fault), daemon=True)
    thread.start()
    thread.join(PROMISED_S)
    assert not thread.is_alive() and found[0].text.startswith("stopped")


def test_a_deadline_leaves_signals_and_timers_as_they_were():
    rang, runner = [], signal.getitimer(signal.ITIMER_REAL)
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    try:
        mine = signal.getsignal(signal.SIGALRM)
        signal.setitimer(signal.ITIMER_REAL, 30)
        attempt(endless, seconds=SOON_S)
        attempt(lambda: None)
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        assert signal.getsignal(signal.SIGALRM) is mine and 20 < left_s < 30 - SOON_S and not rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, *runner)
        signal.signal(signal.SIGALRM, before)


def test_of_two_deadlines_the_first_that_is_over_ends_it():
    begin = time.monotonic()
    runner_s = signal.getitimer(signal.ITIMER_REAL)[0]  # the test runner's own time limit, if it has one
    with pytest.raises(TimeUp), deadline(SOON_S), deadline(60):
        endless()
    with pytest.raises(TimeUp), deadline(60), deadline(SOON_S):
        endless()
    assert time.monotonic() - begin < 2 * PROMISED_S
    assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) == bool(runner_s)


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
        m.size_bytes == 3 * np.dtype(int).itemsize and m.origin.startswith("test_exercises.py:") for m in run.messages
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
    assert fault.place == f"test_exercises.py:{crash.__code__.co_firstlineno + 3}"


def test_ranks_that_wait_for_each_other_are_a_fault_at_once():
    def first(rank, ranks, value):
        yield Request("recv", ((rank - 1) % ranks, rank))

    fault = run_programs(first, 3, [None] * 3).fault
    assert "deadlock" in fault.text and "rank 2 waits in its call 1" in fault.text and "test_exercises.py" in fault.text


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
    fault = run_programs(spin, 2, [np.ones(1)] * 2, seconds=SOON_S).fault
    assert fault.text.startswith("stopped") and fault.rank == 0 and time.monotonic() - begin < PROMISED_S


WRONG_SENDS = [Request("send", (1, 0), np.ones(1)), Request("send", "01", np.ones(1))]


@pytest.mark.parametrize("asked", [7, "send", Request("no such kind", (0, 1)), *WRONG_SENDS])
def test_what_is_no_request_is_a_fault(asked):
    def wrong(rank, ranks, value):
        yield asked

    assert run_programs(wrong, 2, [None] * 2).fault is not None
