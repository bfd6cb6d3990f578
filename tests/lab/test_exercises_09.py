"""Lesson 09's exercises: pars are proved, right answers pass, wrong ones fail where they are wrong and hear why."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.schedules import Schedule, make_schedule
from parallel_lab.lab.exercises import get_exercise, lesson_09
from parallel_lab.lab.exercises.book import Desk
from parallel_lab.lab.pipeline.model import PipelineLab
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, told, words_of

# ---- 09.1: the bubble's formula ----


def idle(p, m, v=1):
    return (p - 1) / (v * m + p - 1)  # theory.md 5.1: (p - 1)(F + B)/v idle, next to m(F + B) of work


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


def test_the_pars_are_proved_and_those_of_the_course():
    """teaching.md, P5 and P6; ZB's 27 is also the floor p - 1 + 3m, and VPP's 38 is 2 (2m + p - 1)."""
    sizes = lesson_09.SIZES_BY_HAND
    assert (sizes.cap, sizes.wide_cap, sizes.two_parts, sizes.two_parts_cap) == (4, 8, sizes, 11)
    pars = [lesson_09.par_of(sizes, *of) for of in ((4,), (11, 2))]
    assert [par.makespan for par in pars] == [2 * (8 + 3), 2 * (2 * 8 + 3)]
    pars.append(lesson_09.par_of(sizes, 4, split=True))
    assert pars[-1].makespan == 3 + 3 * 8
    assert lesson_09._fused_makespan(sizes) == 33
    assert all(par.proved for par in pars)


@pytest.mark.quick(2)
@pytest.mark.parametrize("form", [lambda s: s, Schedule.text, lambda s: s.text().splitlines(), list], ids=range(4))
def test_1f1b_passes_in_every_form(form):
    two = form(make_schedule("interleaved", 4, 8, 2))
    assert passes(check("09.2", form(make_schedule("1f1b", 4, 8)), two_parts=two), 8)


def test_a_lab_is_taken_for_what_is_drawn_in_it():
    two = PipelineLab(stages=4, micro_batches=8, schedule="interleaved")
    assert passes(check("09.2", PipelineLab(stages=4, micro_batches=8), two_parts=two), 8)
    drawn = PipelineLab(stages=4, micro_batches=8)
    drawn.remove(3, 0)
    assert "3F0 is never done" in words_of(failed(check("09.2", drawn))["legal"])


GPIPE = make_schedule("gpipe", 4, 8).text()
SCORED = {"shorter than one by one", "par", "two parts on each rank"}
ALL = {"legal", "fits", "same bits", *SCORED}


@pytest.mark.quick(4)
@each_of(
    ("answer", "parts", "words"),
    (one_by_one("FB"), SCORED, "2.909 x par"),
    (one_by_one("FB"), SCORED, "rank 0 does nothing for 6 before 0B7; it waits for 1B7"),
    (GPIPE, {"fits", *SCORED}, "no memory for 0F4"),
    (one_by_one("BF"), ALL, "0B0 needs 0F0"),
    (one_by_one("FBW"), ALL, "there is no W"),
    (one_by_one("F"), ALL, "is never done"),
    ("\n".join([*GPIPE.splitlines()[:3], " ".join(GPIPE.splitlines()[3].split()[::-1])]), ALL, "needs"),
    (changed("1f1b", "0F7", "0F6"), ALL, "a second time"),
    (changed("1f1b", "0F7", "0F8"), ALL, "micro-batch 8"),
    (changed("1f1b", "3F0 ", ""), ALL, "3F0 is never done"),
    ("0F0 0B0", ALL, "1 ranks"),
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


@each_of(
    ("two_parts", "words"),
    (make_schedule("gpipe", 4, 8, 2), "no memory"),
    (make_schedule("1f1b", 4, 8), "never done"),
    ([[f"{r + 4 * k}{w}" for w in ()] for r in range(4) for k in (0,)], "the text has no actions"),
)
def test_two_parts_are_judged_by_themselves(two_parts, words):
    verdict = check("09.2", make_schedule("1f1b", 4, 8), two_parts=two_parts)
    assert set(failed(verdict)) == {"two parts on each rank"} and words in words_of(verdict.parts[-1])


# ---- 09.3: backward in two halves ----


def test_zero_bubble_passes():
    assert passes(check("09.3", {4: make_schedule("zb_h1", 4, 8), 8: make_schedule("zb_h2", 4, 8)}), 8)


def test_1f1b_with_a_w_behind_each_b_is_not_yet_at_par():
    lanes = [
        [w for a in lane for w in (f"{a}", f"{a}".replace("B", "W"))[: 1 + (a.kind == "B")]]
        for lane in make_schedule("1f1b", 4, 8)
    ]
    wrong = failed(check("09.3", {4: lanes, 8: make_schedule("zb_h2", 4, 8)}))
    assert set(wrong) == {"par"} and "x par" in wrong["par"].found


@each_of(
    ("answer", "parts", "words"),
    ({4: make_schedule("zb_h2", 4, 8), 8: None}, {"fits", "shorter than fused", "par", "no bubble inside"}, "0F4"),
    ({4: make_schedule("zb_h1", 4, 8), 8: make_schedule("zb_h1", 4, 8)}, {"no bubble inside"}, "idle for 3"),
    ({4: make_schedule("zb_h1", 4, 8)}, {"no bubble inside"}, "no schedule for the cap 8"),
    ({4: make_schedule("1f1b", 4, 8)}, None, "W, those of the weights, is an action of its own"),
    ([1], None, "a schedule for each cap"),
)
def test_a_wrong_division_hears_the_reason(answer, parts, words):
    wrong = failed(check("09.3", answer))
    assert set(wrong) == (parts or {name for name, _ in get_exercise("09.3").parts})
    assert any(words in words_of(part) for part in wrong.values())


# ---- par ----


def test_par_asks_for_an_own_attempt_that_has_a_score():
    desk = Desk()
    with pytest.raises(ArgumentError, match="no attempt of your own passes"):
        desk.par("09.2")
    desk.check("09.2", GPIPE)  # does not fit
    desk.check("09.2", one_by_one("FB"))  # what the exercise begins with
    with pytest.raises(ArgumentError, match="own passes 'shorter than one by one'"):
        desk.par("09.2")
    two_at_a_time = [[f"{r}{kind}{n + i}" for n in range(0, 8, 2) for kind in "FB" for i in (0, 1)] for r in range(4)]
    desk.check("09.2", two_at_a_time)
    found = desk.par("09.2")
    assert found.yours == "a step of 40, recomputed: 1.818 x par" in str(found)  # 4 times 2 (2 + 4 - 1)
    shown = found.text.splitlines()
    assert passes(check("09.2", shown[1:5], two_parts=shown[7:11]), 8)


def test_the_pars_of_the_division_pass():
    desk = Desk()
    desk.check("09.3", {4: one_by_one("FBW")})
    with pytest.raises(ArgumentError, match="own passes 'shorter than fused'"):
        desk.par("09.3")
    desk.check("09.3", {4: make_schedule("zb_h1", 4, 8)})
    shown = desk.par("09.3").text.splitlines()
    assert passes(check("09.3", {4: shown[1:5], 8: shown[7:11]}), 8)


@pytest.mark.parametrize("number", ["09.1", "02.1"])
def test_an_exercise_without_par_says_so(number):
    with pytest.raises(ArgumentError, match=r"is not a puzzle. One of .*09.2, 09.3, 10.1"):
        Desk().par(number)
