"""The exercises' frame: verdicts and hints, and a learner's code that runs for ever, raises, or is no code at all."""

from __future__ import annotations

import json
import re
import signal
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab import exercises
from parallel_lab.lab.exercises import (
    JUNK,
    Exercise,
    GradingError,
    Part,
    Verdict,
    all_exercises,
    ask,
    book,
    check,
    compare_calls,
    get_exercise,
    judge,
    judged,
    probe,
)
from parallel_lab.lab.exercises.book import Desk
from parallel_lab.lab.exercises.own_process import in_own_process
from parallel_lab.lab.exercises.running import Told, attempt, deadline, read_number, run_programs
from parallel_lab.lab.exercises.starts import handed_in
from parallel_lab.run.communicator import Request

NUMBERS = [exercise.number for exercise in all_exercises()]
HINTS = ("a?", "b", "c", "d")
SOON_S = 0.2
PROMISED_S = 5.0  # a call that is stopped after SOON_S has ended by then, on a busy machine too


def raising(*_):
    raise ZeroDivisionError("<b>mine</b>")


def leaving(*_):
    sys.exit(3)


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


@pytest.mark.quick(20)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("answer", JUNK, ids=map(str, range(len(JUNK))))
def test_no_answer_makes_check_raise(number, answer):
    begin = time.monotonic()
    verdict = check(number, answer)
    assert not verdict.passed and time.monotonic() - begin < PROMISED_S
    assert len(verdict.parts) == len(get_exercise(number).parts)
    assert number in str(verdict) and "<b>mine" not in verdict._repr_html_()


@pytest.mark.parametrize("number", ["02", "2.1", "99.1", "02.9", "../02.1", 2.1, None])
def test_a_number_that_no_exercise_has_is_refused_with_those_there_are(number):
    with pytest.raises(ArgumentError, match=r"such as \d\d\.\d"):
        check(number, None)


# ---- an exercise that is judged ----


def exercise(grader, parts=(("one", 1), ("two", 3)), **more) -> Exercise:
    return Exercise("77.1", "a test", parts, HINTS, grader, **more)


def test_parts_come_in_their_order_with_their_points_and_what_is_not_yielded_is_not_judged():
    parts = exercise(lambda answer: [Part("two", True, points=1000)]).judge(None)
    assert [(p.name, p.passed, p.points) for p in parts] == [("one", None, 1), ("two", True, 3)]
    verdict = Verdict("77.1", "a test", parts)
    assert (verdict.points, verdict.max_points, verdict.passed) == (3, 4, False)


def test_what_a_grader_receives_besides_the_answer_reaches_it():
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
    assert "not shown" not in text  # what is expected of a part that passed is not shown


def test_a_verdict_in_a_notebook_is_escaped_needs_no_network_and_fits_light_and_dark():
    html = VERDICT._repr_html_()
    assert "7 &amp; &lt;i&gt;" in html and "a &lt;ring&gt;" in html
    assert "http" not in html and "<script" not in html and "role='status'" in html
    # text takes the page's colour; the only colours are those of the bars next to it
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
    assert "gives a question (0 of 4" in desk.check("02.1", 7).offer
    for seen in range(1, 4):
        desk.hint("02.1")
        assert f"({seen} of 4 hints seen)" in desk.check("02.1", 7).offer
    desk.hint("02.1")
    assert "You have seen all hints" in desk.check("02.1", 7).offer


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


# ---- not tried yet, one diagnosis at a time, expected after a hint ----


@pytest.mark.parametrize("number", NUMBERS)
def test_the_answer_that_an_exercise_begins_with_is_not_tried_yet(number):
    exercise = get_exercise(number)
    answer, given = handed_in(exercise.start)
    verdict = judge(exercise, answer, given)
    assert not verdict.tried and verdict.points == 0 and not verdict.passed
    assert "not tried yet" in str(verdict) and len(str(verdict).splitlines()) == 2
    assert "not tried yet" in verdict._repr_html_()


START = """
def halves(n, parts=2):
    return n / 2

check("77.1", halves)
"""


def test_only_code_is_an_attempt_not_comments_spaces_a_docstring_or_names_of_variables():
    def judged_by(text):
        return exercise(lambda answer: [Part("one", False)], start=START).untouched(*handed_in(text))

    assert judged_by(START)
    assert judged_by(
        START.replace("return", "'''Half of it.'''\n    # mine\n    return").replace("(n,", "(m,").replace("n /", "m /")
    )
    for old, new in (("2", "3"), ("/", "*"), ("n / 2", "n / parts"), ("halves)", "None, fit=halves)")):
        assert not judged_by(new.join(START.rsplit(old, 1))), new


def test_what_another_cell_gives_does_not_matter_for_the_start():
    one = exercise(lambda answer: [], start='line = None\ncheck("77.1", {"line": line}, fit=fit)')
    assert one.untouched({"line": None}, {"fit": object()})
    assert not one.untouched({"line": 3}, {"fit": object()})


def test_one_fault_is_shown_at_a_time():
    wrong = [
        Part("one", False, "first fault", "not told", "a note"),
        Part("two", False, "second fault", form="a number"),
    ]
    for text in (str(Verdict("77.1", "t", tuple(wrong))), Verdict("77.1", "t", tuple(wrong))._repr_html_()):
        assert "first fault" in text and "a note" in text and "second fault" not in text and "a number" not in text


def test_what_was_expected_is_shown_after_a_hint_and_the_form_of_an_answer_always():
    parts = (Part("one", False, "mine", "the right one", form="a number"),)
    before, after = (Verdict("77.1", "t", parts, hints_seen=seen) for seen in (0, 1))
    for text in (str, Verdict._repr_html_):
        assert "the right one" not in text(before) and "the right one" in text(after)
        assert "a number" in text(before) and "a number" in text(after)
    assert "From then on" in before.offer and "From then on" not in after.offer


def test_a_wrong_value_points_at_the_line_that_returned_it():
    def half(n):
        if n > 2:
            return n / 3
        return n / 2

    def grader(answer):
        yield judged("one", compare_calls, answer, [(2,), (4,)], lambda n: n / 2)

    one, _ = exercise(grader).judge(half)
    assert one.where == f"in half, test_exercises.py:{half.__code__.co_firstlineno + 2}"


def test_a_fault_of_the_machine_is_an_error_and_never_a_mark():
    def grader(answer):
        yield Part("one", True)
        import no_such_package_at_all  # noqa: F401

    with pytest.raises(GradingError, match="not at fault"):
        exercise(grader).judge(3)


def test_a_package_that_the_learner_wants_is_the_learners_fault():
    def mine(*_):
        import no_such_package_at_all  # noqa: F401

    one, _ = exercise(lambda answer: iter([judged("one", ask, "x", answer)])).judge(mine)
    assert one.passed is False and "no_such_package_at_all" in one.found


def test_results_are_saved_as_plain_data(tmp_path):
    desk = Desk()
    desk.check("03.1", {"sgd": {"gradients_mean": False, "learning_rate": 0.025}})
    desk.check("03.1", {"sgd": {"gradients_mean": False, "learning_rate": 0.1}})
    desk.save_results(tmp_path / "ada.json", learner="Ada")
    saved = json.loads((tmp_path / "ada.json").read_text(encoding="utf-8"))
    assert (saved["format"], saved["version"], saved["learner"]) == ("parallel_lab.checks", 1, "Ada")
    (check_,) = saved["checks"]
    assert (check_["exercise"], check_["attempts"], check_["points"], check_["max_points"]) == ("03.1", 2, 0, 3)
    assert check_["parts"][0]["idea"] == "all_reduce averages" and check_["parts"][0]["passed"] is False


# ---- one's own exercise ----


def test_the_exercise_in_the_packages_help_is_sound():
    """What `help(parallel_lab.lab.exercises)` shows works as it stands there."""
    text = exercises.__doc__.split("This is a whole exercise:\n")[1].split("\n`start` is")[0]
    names = {}
    exec(textwrap.dedent(text), names)
    own = book._DESK.added.pop("my.1")
    right = [names["right"], lambda p, s: 2 * s - 2 * s / p]
    assert probe(own, right) == []
    desk = Desk()
    desk.add(own)
    assert desk.check("my.1", names["right"]).points == 3 and desk.hint("my.1").level == 0
    assert not desk.check("my.1", *handed_in(own.start)[:1]).tried
    assert probe(own, [lambda p, s: 0]) != []


def test_the_puzzle_in_the_documentation_works_and_tells_its_par_after_an_attempt():
    text = exercises.__doc__.split("as fast as can be:\n")[1].split("\n`probe(exercise")[0]
    names = {}
    exec(textwrap.dedent(text), names)
    own = book._DESK.added.pop("my.2")
    # 5 | 7, 6 | 6, 7 | 5, 8 | 4 ms
    assert [names["slower_ms"](cut) for cut in range(1, 5)] == [7, 6, 7, 8]
    assert probe(own, [2]) == []
    desk = Desk()
    desk.add(own)
    with pytest.raises(ArgumentError, match="no attempt of your own"):
        desk.par("my.2")
    verdict = desk.check("my.2", 3)
    assert (verdict.points, verdict.first_failure.idea) == (1, "equally many layers")
    assert desk.par("my.2").text == "cut = 2" and desk.par("my.2").yours == "7 ms"
    assert desk.check("my.2", 2).points == 3


def test_an_added_exercise_has_a_number_of_its_own():
    for wrong in (get_exercise("02.1"), "my.1"):
        with pytest.raises(ArgumentError, match="number of its own"):
            Desk().add(wrong)


@pytest.mark.parametrize("number", NUMBERS)
def test_each_modelled_misconception_is_named(number):
    one = get_exercise(number)
    assert probe(one, junk=()) == []
    assert len({idea.note for idea in one.ideas}) == len(one.ideas)


# ---- learner's functions ----


def test_a_call_gives_its_value():
    called = attempt(lambda a, b: a + b, 2, 3)
    assert called.value == 5 and called.fault is None


def test_what_a_function_raises_has_the_learners_line():
    fault = attempt(raising, 1).fault
    assert fault.text == "ZeroDivisionError: <b>mine</b>"
    assert fault.place == f"test_exercises.py:{raising.__code__.co_firstlineno + 1}"
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
    fault = attempt_apart(function).fault
    assert fault.text == f"stopped: still running after {SOON_S:g} s" and fault.place.startswith("test_exercises.py:")
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
    with in_own_process(spin, {}) as (stand_in, _):
        fault = run_programs(stand_in, 2, [np.ones(1)] * 2, seconds=SOON_S).fault
    assert fault.text.startswith("stopped") and fault.rank == 0 and time.monotonic() - begin < PROMISED_S


WRONG_SENDS = [Request("send", (1, 0), np.ones(1)), Request("send", "01", np.ones(1))]


@pytest.mark.parametrize("asked", [7, "send", Request("no such kind", (0, 1)), *WRONG_SENDS])
def test_anything_but_a_request_is_a_fault(asked):
    def wrong(rank, ranks, value):
        yield asked

    assert run_programs(wrong, 2, [None] * 2).fault is not None


def instead_of_functions(start, function):
    """An exercise's start with `function` instead of each of its functions."""
    if isinstance(start, dict):
        return {key: instead_of_functions(value, function) for key, value in start.items()}
    return function if callable(start) else start


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", NUMBERS)
def test_answers_without_an_end_are_stopped_once_in_each_exercise(number, tmp_path):
    """A deaf loop for each function of the answer. A second call would take longer than was promised."""
    calls = tmp_path / "calls"
    calls.write_text("")

    def deaf(*_):
        with calls.open("a") as file:
            file.write("x")
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                continue

    exercise = get_exercise(number)
    start, given = handed_in(exercise.start)
    answer = instead_of_functions(start, deaf)
    given = {name: instead_of_functions(value, deaf) for name, value in given.items()}
    begin = time.monotonic()
    parts = exercise.judge(deaf if answer == start else answer, **given)
    assert time.monotonic() - begin < 2 * PROMISED_S  # on a busy machine
    assert len(calls.read_text()) <= (2 if number == "11.2" else 1)  # 11.2 tries whether it asks at all
    failed = [part for part in parts if part.passed is False]
    assert failed and any(part.found or part.note for part in failed)
