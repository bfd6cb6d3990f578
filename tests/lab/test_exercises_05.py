"""Lesson 05's exercises: right answers pass, wrong ones name the model that gives them, par is exhaustive."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from parallel_lab.base.errors import StrategyError
from parallel_lab.lab.exercises import get_exercise, lesson_05
from parallel_lab.lab.exercises.one_product import DEVICES, Product, arrays, counts, pair, side_by_side
from parallel_lab.lab.lessons import slicing
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, told, words_of

M, K, N = 16, 32, 16


def rule(m, k, n, strategy):
    (a, b), (_, c) = strategy
    return (m // a, k // b), (k // b, n // c), (m // a, n // c), b


# ---- what a product is ----


def test_a_product_is_sliced_and_sends_as_the_formula_says():
    for m, k, n in counts():
        found = Product(pair(m, k, n))
        assert (*found.slices, found.addends) == rule(M, K, N, pair(m, k, n))
        assert found.held_elements == M * K // (m * k) + K * N // (k * n) + M * N // (m * n)
        assert found.sent_elements == 2 * (k - 1) * M * N // (m * n * k)


@pytest.mark.exhaustive
def test_every_strategy_computes_the_product():
    x, w = arrays()
    for each in counts():
        assert np.array_equal(Product(pair(*each)).run(), x @ w)


def test_ranks_that_are_left_hold_copies_on_the_last_axis():
    assert Product(pair(1, 2, 1)).group(5) == (1, 5)
    assert Product(pair(2, 4, 1)).group(5) == (4, 5, 6, 7)


def test_a_refused_strategy_says_why_in_its_row():
    assert "refused" in str(side_by_side(((2, 4), (2, 1)))) and "splits" in str(side_by_side(((2, 4), (2, 1))))
    with pytest.raises(StrategyError):
        Product(((2, 4), (2, 1)))


# ---- 05.1 ----


def test_which_are_refused_is_what_the_rules_say():
    """k equally, at most 8 slices, 16 rows and 32 columns divided evenly into powers of two."""
    right = []
    for (a, b), (c, d) in lesson_05.STRATEGIES:
        valid = b == c and a * b * d <= DEVICES and M % a == K % b == N % d == 0
        right.append(b if valid else None)
    assert lesson_05.addends_of() == tuple(right)
    assert passes(check("05.1", right), 6) and passes(check("05.1", np.array(right, object)), 6)


VALID = [n for n, each in enumerate(lesson_05.addends_of()) if each is not None]


def modelled(model) -> list:
    return [None if n not in VALID else model(*a, *b) for n, (a, b) in enumerate(lesson_05.STRATEGIES)]


@each_of(
    ("answer", "words"),
    ([None] * 12, "This one is valid"),
    ([1] * 11, "11 entries"),
    ("refused", "12 entries in the order"),
    (modelled(lambda a, b, c, d: 1), "Shapes that fit do not make a product free"),
    (modelled(lambda a, b, c, d: a * b), "both splits of x, rows and columns"),
    (modelled(lambda a, b, c, d: a * b * d), "You counted every split"),
    (modelled(lambda a, b, c, d: 8 if b > 1 else 1), "Not all eight ranks add up"),
    (modelled(lambda a, b, c, d: None if a * b * d < 8 else b), "ranks that are left over hold copies"),
    ([b for (_, b), _ in lesson_05.STRATEGIES], "both must be split equally"),
    ([1, 8, 8, 4, None, 1, 2, None, 2, None, None, 4], "Is k split here at all?"),
    ([0, 8, 0, 4, None, 0, 2, None, 2, None, None, 4], "Write 1 where nothing is added up"),
    ([1, 8, 1, 4, None, 1, 4, None, 2, None, None, 4], "parts of the same sums?"),
    ([*[..., 8, 1, 4, None, 1, 2, None, 2, None, None, 4]], "still open"),
)
def test_a_wrong_table_hears_its_model(answer, words):
    assert any(words in words_of(part) for part in failed(check("05.1", answer)).values())


# ---- 05.2 ----


@pytest.mark.exhaustive
def test_the_rule_passes():
    assert passes(check("05.2", rule), 5)
    assert passes(check("05.2", lambda *given: [list(e) if isinstance(e, tuple) else e for e in rule(*given)]), 5)


@pytest.mark.quick(3)
@each_of(
    ("answer", "part", "words"),
    (lambda m, k, n, s: ((m, k), (k, n), (m, n), s[0][1]), "slices of x and w", "the whole tensor"),
    (lambda m, k, n, s: (*rule(m, k, n, s)[:3], 8), "addends", "Those are all ranks"),
    (lambda m, k, n, s: (*rule(m, k, n, s)[:3], s[0][0] * s[0][1]), "addends", "Only k leaves partial sums"),
    (
        lambda m, k, n, s: (*rule(m, k, n, s)[:2], (m // s[0][0] // s[0][1], n // s[1][1]), s[0][1]),
        "slice of the result",
        "the full size",
    ),
    (
        lambda m, k, n, s: ((m * s[0][0], k * s[0][1]), *rule(m, k, n, s)[1:]),
        "slices of x and w",
        "divide the size by it",
    ),
    (lambda m, k, n, s: ((m / s[0][0], k), (k, n), (m, n), 1), "slices of x and w", "Use // to divide"),
    (lambda m, k, n, s: (*rule(m, k, n, s)[:3], 1), "addends", "Who has the others?"),
    (lambda m, k, n, s: ((k // s[0][1], m // s[0][0]), *rule(m, k, n, s)[1:]), "slices of x and w", "are exchanged"),
    (lambda m, k, n, s: ((k // s[0][0], m // s[0][1]), *rule(m, k, n, s)[1:]), "slices of x and w", "are exchanged"),
    (lambda m, k, n, s: 5, "slices of x and w", "three shapes and a number"),
)
def test_a_wrong_rule_is_explained(answer, part, words):
    assert words in told("05.2", answer, part)


# ---- 05.3 ----


def test_par_is_the_least_that_the_formulas_allow():
    m, k, n = lesson_05.LARGE
    least = {}
    for a, b, c in itertools.product((1, 2, 4, 8), repeat=3):
        if a * b * c <= DEVICES and m * k // (a * b) + k * n // (b * c) + m * n // (a * c) <= lesson_05.CAP:
            least[pair(a, b, c)] = 2 * (b - 1) * m * n // (a * b * c)
    sent, best = lesson_05.par_sent()
    assert sent == min(least.values()) and set(best) == {s for s, each in least.items() if each == sent}
    for strategy in best:
        assert passes(check("05.3", strategy), 4) and passes(check("05.3", str(strategy)), 4)
    assert get_exercise("05.3").par().splitlines() == [str(strategy) for strategy in best]


@each_of(
    ("answer", "part", "words"),
    (((1, 4), (4, 2)), "par", "3.00 x par"),
    (((8, 1), (1, 1)), "fits", "Most of it is w: 65,536"),
    (((2, 2), (4, 1)), "valid", "splits 'k'"),
    (5, "valid", "such as ((8, 1), (1, 1))"),
)
def test_a_wrong_strategy_hears_why(answer, part, words):
    assert words in told("05.3", answer, part)


# ---- the notebook's own calls ----


def test_compare_counts_on_ranks_what_was_answered():
    prediction = {"x": (8, 8), "result": (2, 16), "group": None, "sent": 192}
    rows = slicing.compare(prediction).rows
    assert [row[2] for row in rows] == [(8, 8), (8, 16), (4, 5, 6, 7), 192]
    assert [row[3] for row in rows] == [(8, 8), (8, 16), None, 192]


@each_of(
    ("number", "answer", "said"),
    ("05.3", "abc", "'abc'"),
    ("05.3", "(8, 1)", "'(8, 1)'"),
    ("02.4", "abc", "'abc'"),
    ("06.2", object(), "an object of type object"),
    ("10.1", print, "a function"),
)
def test_an_answer_of_another_form_is_quoted_without_an_address(number, answer, said):
    first = check(number, answer).parts[0]
    assert not first.passed and first.found == said and first.form
