"""The exercises' frame, and what holds for all of them: verdicts, hints, misconceptions, and answers that are none."""

from __future__ import annotations

import json
import re
import textwrap
import time

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
from parallel_lab.lab.exercises.starts import handed_in, is_start
from tests.lab.verdicts import check as judged_here

NUMBERS = [exercise.number for exercise in all_exercises()]
HINTS = ("a?", "b", "c", "d")
PROMISED_S = 5.0  # of a verdict on any answer, on a busy machine too


def raising(*_):
    raise ZeroDivisionError("<b>mine</b>")


# ---- all exercises ----


@pytest.mark.parametrize("number", NUMBERS)
def test_an_exercise_is_complete(number):
    exercise = get_exercise(number)
    assert len(exercise.hints) == 4 and all(exercise.hints) and exercise.hints[0].endswith("?")
    assert not any(re.search(r"\bdef |\byield |[\[\]]|==", text) for text in exercise.hints), (
        "a hint is words, not code that could be pasted"
    )
    names = [name for name, _ in exercise.parts]
    assert len(set(names)) == len(names) and all(
        points > 0 or name.endswith("(bonus)") for name, points in exercise.parts
    )
    assert exercise.points == sum(points for _, points in exercise.parts)


def test_numbers_are_unique_and_belong_to_their_lesson():
    assert len(set(NUMBERS)) == len(NUMBERS)
    assert sorted(NUMBERS, key=lambda number: [int(part) for part in number.split(".")]) == NUMBERS


@pytest.mark.quick(5)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("answer", JUNK, ids=map(str, range(len(JUNK))))
def test_no_answer_makes_check_raise(number, answer):
    begin = time.monotonic()
    verdict = check(number, answer)
    assert not verdict.passed and time.monotonic() - begin < PROMISED_S
    exercise = get_exercise(number)
    assert len(verdict.parts) == len(exercise.asked_by(answer).parts)  # also that of an earlier form
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
    for old, new in (("2", "3"), ("2", "2.0"), ("/", "*"), ("n / 2", "n / parts"), ("halves)", "None, fit=halves)")):
        assert not judged_by(new.join(START.rsplit(old, 1))), new
    nothing = '\ndef sort(n):\n    n.sort()\n\ncheck("77.1", sort)\n'  # what it returns moves when it gets a docstring
    assert is_start(nothing, handed_in(nothing.replace("    n.", "    '''In place.'''\n    n."))[0], {})


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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


@pytest.mark.quick(4)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.filterwarnings("ignore:before step 1", "ignore:copies of ranks")  # one idea is that they differ
def test_each_modelled_misconception_is_named_and_hears_its_own_note(number):
    """In its part, by its name and no other's. A note may be a function of the case."""
    ideas = get_exercise(number).ideas
    assert len({idea.note for idea in ideas}) == len(ideas)
    for idea in ideas:
        told = [part for part in judged_here(number, idea.answer).parts if part.name == idea.part or not idea.part]
        assert {part.idea for part in told} - {""} == {idea.name}
        notes = " ".join(" ".join(part.note.split()) for part in told)
        assert callable(idea.note) or " ".join(idea.note.split())[:40] in notes


def instead_of_functions(start, function):
    """An exercise's start with `function` instead of each of its functions."""
    if isinstance(start, dict):
        return {key: instead_of_functions(value, function) for key, value in start.items()}
    return function if callable(start) else start


OF_FUNCTIONS = [number for number in NUMBERS if callable(handed_in(get_exercise(number).start)[0])]


@pytest.mark.parametrize("number", OF_FUNCTIONS)
def test_a_function_that_raises_is_told_with_its_error_and_what_is_not_a_function_is_no_answer(number):
    first = judged_here(number, raising).first_failure
    assert first.found.startswith("ZeroDivisionError: <b>mine</b>")
    first = judged_here(number, None).first_failure
    assert first.form or "not a function" in first.found


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
