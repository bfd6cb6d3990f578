"""Lesson 09's exercises: pars are proved, right answers pass, wrong ones fail where they are wrong and hear why."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.schedules import Schedule, make_schedule
from parallel_lab.lab.exercises import get_exercise, lesson_09, puzzle_lab
from parallel_lab.lab.exercises.book import Desk
from parallel_lab.lab.pipeline.model import PipelineLab
from tests.crossed import each_of
from tests.lab.recorded_puzzles import solution
from tests.lab.verdicts import check, failed, passes, told, words_of

# ---- 09.1: the bubble's formula ----


def idle(p, m, v=1):
    return (p - 1) / (v * m + p - 1)  # theory.md 5.1: (p - 1)(F + B)/v idle, next to m(F + B) of work


@pytest.mark.exhaustive
def test_the_formula_passes_in_single_precision_too():
    """Not "found: 0.428571, expected: 0.428571"."""
    assert passes(check("09.1", lambda p, m, v=1: np.float32(p - 1) / np.float32(v * m + p - 1)), 5)


def test_the_formula_passes():
    assert passes(check("09.1", idle), 5)


@each_of(
    ("answer", "part", "words"),
    (lambda p, m, v: (p - 1) / (v * m), "three runs", "idle time over work"),
    (lambda p, m, v: 100 * idle(p, m, v), "three runs", "per cent"),
    (lambda p, m, v: 1 - idle(p, m, v), "three runs", "in which the rank works"),
    (lambda p, m, v: p / (v * m + p), "three runs", "for p - 1 others"),
    (lambda p, m, v: (p - 1) / (v * m + p), "three runs", "one unit shorter"),
    (lambda p, m, v: (p - 1) / (2 * v * m + p - 1), "three runs", "Only the wait at the beginning"),
    (lambda p, m, v: 2 * (p - 1), "three runs", "the idle time itself"),
    (lambda p, m, v: 2 * (p - 1) / (m + p - 1), "three runs", "count both alike"),
    (lambda p, m, v: v * (p - 1) / (m + v * (p - 1)), "chunks", "not longer, but shorter"),
    (lambda p, m, v: (p * v - 1) / (m + p * v - 1), "chunks", "as many others as before"),
    (lambda p, m, v: "3/7", "three runs", "A number from 0 to 1"),
    (lambda p, m, v: idle(p, m), "chunks", "With one part on each stage that is right"),
    (lambda p, m, v: 3 / (m + 3), "other sizes", "gpipe: 1 stage, 1 micro-batch"),
    (lambda p, m, v: None, "three runs", "None"),
    (lambda p, m: idle(p, m), "three runs", "TypeError"),
)
def test_a_wrong_formula_is_explained(answer, part, words):
    assert words in told("09.1", answer, part)


# ---- 09.2: 1F1B under a cap ----


def one_by_one(kinds):
    return [[f"{r}{kind}{n}" for n in range(8) for kind in kinds] for r in range(4)]


def changed(name, old, new):
    text = make_schedule(name, 4, 8).text()
    assert old in text
    return text.replace(old, new)


LATE = {name: solution(name) for name in ("09.2 4x8 cap 4", "09.3 4x8 cap 4", "09.3 4x8 cap 8")}
RIGHT, SPLIT = LATE["09.2 4x8 cap 4"], {cap: LATE[f"09.3 4x8 cap {cap}"] for cap in (4, 8)}


def test_the_sizes_are_those_of_the_text():
    sizes = lesson_09.SIZES_BY_HAND
    assert (sizes.two_parts, sizes.two_parts_cap) == (sizes, 11)
    assert [(p.cap, p.borders) for p in sizes.puzzles("09.2")] == [(4, (0, 2, 0))]
    assert [(p.cap, p.borders) for p in sizes.puzzles("09.3")] == [(4, (0, 4, 0)), (8, (0, 4, 0))]


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", [lambda s: s, Schedule.text, lambda s: s.text().splitlines(), list], ids=range(4))
def test_what_is_at_par_passes_in_every_form(form):
    drawn = Schedule.from_text(RIGHT, holds="loop")
    assert passes(check("09.2", form(drawn)), 8)  # the schedule of two parts is a bonus
    verdict = check("09.2", form(drawn), two_parts=form(make_schedule("interleaved", 4, 8, 2)))
    assert passes(verdict, 8) and all(part.passed for part in verdict.parts)


@pytest.mark.exhaustive
def test_a_lab_is_taken_for_what_is_drawn_in_it():
    lab = puzzle_lab("09.2")
    assert "x par" in failed(check("09.2", lab))["par"].found
    lab.load(RIGHT)
    assert passes(check("09.2", lab, two_parts=PipelineLab(stages=4, micro_batches=8, schedule="interleaved")), 8)
    lab.remove(3, 0)
    assert "3F0 is never done" in words_of(failed(check("09.2", lab))["legal"])


@pytest.mark.exhaustive
def test_a_schedule_with_a_name_is_recognised_and_worth_half():
    """What was handed in before the border was slow: legal, within the memory, the same bits, not at par."""
    wrong = failed(verdict := check("09.2", make_schedule("1f1b", 4, 8)))
    assert verdict.points == 4 and set(wrong) == {"shorter than all with a name", "par", lesson_09.BONUS}
    assert "This is 1F1B (1f1b)." in wrong["par"].note and "1.267 x par" in wrong["par"].found  # 38 of 30
    assert "rank 0 does nothing for 7 before 0B0" in wrong["par"].note


GPIPE = make_schedule("gpipe", 4, 8).text()
SCORED = {"shorter than one by one", "shorter than all with a name", "par", lesson_09.BONUS}
ALL = {"legal", "fits", "same bits", *SCORED}


@pytest.mark.quick(4)
@each_of(
    ("answer", "parts", "words"),
    (one_by_one("FB"), SCORED, "3.200 x par"),
    (one_by_one("FB"), SCORED, "rank 0 does nothing for 10 before 0B7; it waits for 1B7"),
    (GPIPE, {"fits", *SCORED}, "no memory for 0F4"),
    (one_by_one("BF"), ALL, "0B0 needs 0F0"),
    (one_by_one("FBW"), ALL, "there is no W"),
    (one_by_one("F"), ALL, "is never done"),
    ("\n".join([*GPIPE.splitlines()[:3], " ".join(GPIPE.splitlines()[3].split()[::-1])]), ALL, "needs"),
    (changed("1f1b", "0F7", "0F6"), ALL, "a second time"),
    (changed("1f1b", "0F7", "0F8"), ALL, "micro-batch 8"),
    (changed("1f1b", "3F0 ", ""), ALL, "3F0 is never done"),
    ("0F0 0B0", ALL, "1 rank"),
    ("0F0 0X0", ALL, "of kind 'X'"),
    ([[1, 2], [3]], ALL, "A line of actions per rank"),
    (None, ALL, "no schedule yet"),
)
def test_a_wrong_schedule_hears_the_reason(answer, parts, words):
    wrong = failed(check("09.2", answer))
    assert set(wrong) == parts
    assert any(words in words_of(part) for part in wrong.values())


def test_a_deadlock_names_its_circle():
    answer = changed("1f1b", "3F0 3B0 3F1 3B1", "3F1 3B1 3F0 3B0").replace("2F0 2F1 2B0", "2F0 2B0 2F1")
    part = failed(check("09.2", answer))["legal"]
    assert part.found.startswith("deadlock: rank 2 waits") and "do first?" in part.note


@pytest.mark.quick(1)
@each_of(
    ("two_parts", "words"),
    (make_schedule("gpipe", 4, 8, 2), "no memory"),
    (make_schedule("1f1b", 4, 8), "never done"),
    ([[f"{r + 4 * k}{w}" for w in ()] for r in range(4) for k in (0,)], "the text has no actions"),
)
def test_two_parts_are_judged_by_themselves(two_parts, words):
    verdict = check("09.2", RIGHT, two_parts=two_parts)
    assert verdict.passed and set(failed(verdict)) == {lesson_09.BONUS} and words in words_of(verdict.parts[-1])


def test_a_lab_that_is_half_drawn_is_told_what_is_missing():
    """Empty lanes were lost in its text: "1 ranks", of four."""
    drawn = puzzle_lab("09.2")
    drawn.clear()
    drawn.put_next(0, "F")
    assert "nothing is drawn yet on ranks 1, 2, 3" in told("09.2", drawn, "legal")
    assert "nothing is drawn yet on rank 2" in told("09.2", [["0F0"], ["1F0"], [], ["3F0"]], "legal")
    assert "2 ranks" in told("09.2", "0F0\n1F0", "legal") and "both on rank" not in drawn.to_text()


# ---- 09.3: backward in two halves ----


@pytest.mark.exhaustive
def test_what_is_at_par_under_both_caps_passes():
    assert passes(check("09.3", SPLIT), 8)
    wrong = failed(check("09.3", {4: make_schedule("zb_h1", 4, 8), 8: make_schedule("zb_h2", 4, 8)}))
    assert set(wrong) == {"par", "par with more memory"} and "This is ZB-H2" in wrong["par with more memory"].note


@pytest.mark.quick(1)
@each_of(
    ("answer", "parts", "words"),
    ({4: make_schedule("zb_h2", 4, 8), 8: None}, {"fits", "shorter than fused", "par", "par with more memory"}, "0F4"),
    ({4: SPLIT[4], 8: make_schedule("zb_h1", 4, 8)}, {"par with more memory"}, "This is ZB-H1"),
    ({4: SPLIT[4]}, {"par with more memory"}, "no schedule for the cap 8"),
    ({4: make_schedule("1f1b", 4, 8)}, None, "W, those of the weights, is an action of its own"),
    ([1], None, "a schedule for each cap"),
)
def test_a_wrong_division_hears_the_reason(answer, parts, words):
    wrong = failed(check("09.3", answer))
    assert set(wrong) == (parts or {name for name, _ in get_exercise("09.3").parts})
    assert any(words in words_of(part) for part in wrong.values())


# ---- par ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("number", "answer"), [("09.2", RIGHT), ("09.3", SPLIT)])
def test_par_compares_with_names_and_shows_two_parts(number, answer):
    desk = Desk()
    with pytest.raises(ArgumentError, match="no attempt of your own passes"):
        desk.par(number)
    desk.check(number, answer)
    found = desk.par(number)
    assert "1.000 x par" in found.yours and "proved by exact search; with a name: " in found.text
    if number == "09.2":
        assert passes(check("09.2", RIGHT, two_parts=found.text.splitlines()[3:]), 8) and "1f1b 38" in found.text


@pytest.mark.parametrize("number", ["09.1", "02.1"])
def test_an_exercise_without_par_says_so(number):
    with pytest.raises(ArgumentError, match=r"is not a puzzle. One of .*09.2, 09.3, 10.1"):
        Desk().par(number)
