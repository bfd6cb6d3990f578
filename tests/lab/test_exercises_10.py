"""Lesson 10's exercises: pars are exact, right answers pass, wrong ones fail where they are wrong and hear why."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.exercises import get_exercise, lesson_10
from parallel_lab.lab.exercises.book import Desk
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, told, words_of

# ---- 10.1: a budget for recomputing ----


def test_the_pars_are_those_of_the_course():
    """teaching.md, P7."""
    assert [lesson_10.par_of(cap).extra_s for cap in (30, 40, 50)] == [17, 13, 9]


@pytest.mark.exhaustive
def test_the_best_choices_pass_whatever_holds_them():
    best = {cap: [n for n, on in enumerate(lesson_10.par_of(cap).recompute) if on] for cap in (30, 40, 50)}
    assert passes(check("10.1", best), 7)
    assert passes(check("10.1", {cap: np.array(layers[::-1]) for cap, layers in best.items()}), 7)


PARTS = {name for name, _ in get_exercise("10.1").parts}


@pytest.mark.quick(3)
@each_of(
    ("answer", "parts", "words"),
    ({30: [], 40: [], 50: []}, PARTS - {"layers", "same bits"}, "72 results at the fullest moment"),
    ({30: range(12), 40: range(12), 50: range(12)}, set(lesson_10.PARS), "24 products recomputed"),
    ({30: range(10), 40: range(8), 50: range(6)}, set(lesson_10.PARS), "free at the fullest moment"),
    (
        {30: [0, 1, 2, 3, 4, 5, 6, 8, 9], 40: [0, 1, 2, 3, 4, 8, 9], 50: [0, 1, 2, 3, 8, 10]},
        {lesson_10.PARS[0]},
        "x par",
    ),
    ({30: [12], 40: [], 50: []}, PARTS, "layer 12"),
    ({30: [True], 40: [], 50: []}, PARTS, "from 0 to 11"),
    ({30: "01", 40: [], 50: []}, PARTS, "from 0 to 11"),
    ({40: []}, PARTS, "for the cap 30"),
    (None, PARTS, "no layers yet"),
)
def test_a_wrong_choice_is_explained(answer, parts, words):
    wrong = failed(check("10.1", answer))
    assert set(wrong) == parts
    assert any(words in words_of(part) for part in wrong.values())


def test_par_comes_after_an_own_choice():
    desk = Desk()
    desk.check("10.1", {30: [], 40: [], 50: []})
    with pytest.raises(ArgumentError, match="own passes 'fits'"):
        desk.par("10.1")
    desk.check("10.1", {30: range(12), 40: range(12), 50: range(12)})
    found = desk.par("10.1")
    assert "24 products" in found.yours
    shown = {int(line[:2]): [int(n) for n in line[5 : line.index("]")].split(",")] for line in found.text.splitlines()}
    assert passes(check("10.1", shown), 7)


# ---- 10.2: where copying breaks even ----


def bandwidth(sizes, alpha_s, time_s):
    left = time_s - len(sizes) * alpha_s
    return sum(sizes) / left if left > 0 else None


@pytest.mark.quick(1)
@pytest.mark.parametrize("never", [None, math.inf])
def test_the_formula_passes(never):
    assert passes(check("10.2", lambda *given: bandwidth(*given) or never), 5)


@pytest.mark.quick(6)
@each_of(
    ("answer", "part", "words"),
    (lambda s, a, t: sum(s) / t, "one copy", "The start-ups are missing"),
    (lambda s, a, t: sum(s) / (t - a) if t > len(s) * a else None, "several copies", "once for every copy"),
    (lambda s, a, t: 1 / bandwidth(s, a, t), "one copy", "That is beta"),
    (lambda s, a, t: 8 * bandwidth(s, a, t), "one copy", "Those are bits"),
    (lambda s, a, t: sum(s) / (t + len(s) * a), "one copy", "uses up time"),
    (lambda s, a, t: sum(s) / abs(t - len(s) * a + 1e-30), "too little time", "The start-ups alone"),
    (lambda s, a, t: None, "one copy", "without a return"),
)
def test_a_wrong_bandwidth_is_explained(answer, part, words):
    assert words in told("10.2", answer, part)


@pytest.mark.exhaustive
def test_a_step_that_copies_at_this_bandwidth_is_as_long_as_one_that_recomputes():
    """The engine's clock: copies without overlap, 72 results down and up; the sum of alpha and bytes over bandwidth."""
    sizes, cluster, extra_s = lesson_10._offloaded()
    assert len(sizes) == 2 * 72 and len(set(sizes)) == 1
    verdict = check("10.2", bandwidth)
    assert "144 copies" in verdict.parts[-1].found
    given = bandwidth(sizes, cluster.known_host.link.alpha_s, extra_s)
    assert f"{given / 1e9:.3g} GB/s" in verdict.parts[-1].found


# ---- 10.3: from four devices to eight ----


def moved(labels):
    """On paper: the eighths that are taken by a device that does not hold them; device d < 4 holds 2 d and 2 d + 1."""
    return sum(d > 3 or part // 2 != d for d, part in enumerate(labels)) / 8


def test_par_is_the_best_of_all_40320_ways():
    assert min(map(moved, itertools.permutations(range(8)))) == 0.5 == lesson_10.fewest_moved()[0] / 8
    assert moved(lesson_10.fewest_moved()[1]) == 0.5


@pytest.mark.parametrize("seed", range(6))
def test_what_is_moved_is_counted_in_messages(seed):
    labels = np.random.default_rng(seed).permutation(8)
    parts = {part.name: part for part in check("10.3", labels).parts}
    assert parts["same tensor"].passed and parts["par"].found.startswith(f"{moved(labels.tolist()):g} of the tensor's")
    assert parts["fewer bytes"].passed == (moved(labels.tolist()) < 0.875) and parts["par"].passed == (
        moved(labels.tolist()) == 0.5
    )


@each_of("labels", [0, 2, 4, 6, 1, 3, 5, 7], (1, 3, 5, 7, 6, 4, 2, 0), np.array([1, 2, 5, 6, 0, 3, 4, 7]))
def test_every_list_at_par_passes(labels):
    assert passes(check("10.3", labels), 5)


@each_of(
    ("labels", "part", "words"),
    (list(range(8)), "par", "Your 0.875 is slice i on device i"),
    ([2, 0, 4, 6, 1, 3, 5, 7], "par", "Device 0 has the rows of slices 0 and 1"),
    ([0, 0, 1, 2, 3, 4, 5, 6], "every slice once", "two devices take slice 0"),
    ([0, 1, 2], "every slice once", "8 different numbers"),
    ([0.5] * 8, "every slice once", "8 different numbers"),
    (itertools.count(), "every slice once", "8 different numbers"),
    ("01234567", "every slice once", "8 different numbers"),
    (None, "every slice once", "no list yet"),
)
def test_wrong_lists_are_explained(labels, part, words):
    assert words in told("10.3", labels, part)
