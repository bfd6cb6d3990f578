"""Lesson 03's exercises and the small problems under them, against numpy and closed forms."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from parallel_lab import nn
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.exercises.descent import Line, LossCurves, TwoLayers, mixed_rows, prove, steady_rows, train
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, words_of
from tests.refusals import refused


def sgd(rate):
    return lambda parameters: nn.SGD(parameters, rate)


# ---- the problems ----


def test_steady_rows_have_curvature_one_in_every_direction():
    x, y = steady_rows()
    np.testing.assert_allclose(2 / len(x) * x.T @ x, np.eye(4), atol=1e-6)
    w = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(x @ w, y, atol=1e-5)  # the minimum is 0


@pytest.mark.quick(2)
@each_of(("ranks", "mean", "factor"), (1, False, 1), (2, False, 2), (4, False, 4), (4, True, 1), (8, False, 8))
def test_the_loss_of_a_line_follows_the_closed_form(ranks, mean, factor):
    """Each step multiplies the error by 1 - factor * rate, the loss by its square; the first loss is mean(y^2)."""
    rate, steps = 0.15, 6
    _, y = steady_rows()
    want = [float((y**2).mean()) * (1 - factor * rate) ** (2 * step) for step in range(steps)]
    got = train(Line, sgd(rate), steady_rows(), ranks=ranks, gradients_mean=mean, steps=steps).losses
    np.testing.assert_allclose(got, want, rtol=1e-3)


def test_summed_gradients_are_ranks_times_those_of_one_device_and_the_mean_is_equal():
    one = train(TwoLayers, sgd(0.1), mixed_rows(), ranks=1, steps=1)
    for mean, factor in ((False, 4), (True, 1)):
        four = train(TwoLayers, sgd(0.1), mixed_rows(), ranks=4, gradients_mean=mean, steps=1)
        for name, gradient in one.gradients.items():
            np.testing.assert_allclose(four.gradients[name], factor * gradient, rtol=1e-4, atol=1e-6)


def test_the_table_says_which_tensors_differ():
    one = train(TwoLayers, sgd(0.1), mixed_rows(), ranks=1, steps=3)
    proof = prove(train(TwoLayers, sgd(0.1), mixed_rows(), ranks=2, gradients_mean=True, steps=3), one)
    assert proof.equal and len(proof.rows) == 5 and proof.title == "2 ranks with data_parallel against one device"
    wrong = prove(train(TwoLayers, sgd(0.1), mixed_rows(), ranks=2, steps=3), one)
    assert not any(row.equal for row in wrong.rows)
    expected = ["w1 after step 3", "w2 after step 3", "mean loss, step 3"]
    assert [row.tensor for row in prove(one, one, gradients=False).rows] == expected


# ---- curves ----


def test_curves_have_a_text_and_a_picture_for_everybody():
    curves = LossCurves({"one <device>": [1.0, 0.1], "4 ranks": [1.0, math.inf, math.nan]}, "A & B")
    assert str(curves).splitlines()[0] == "A & B" and "nan" in str(curves) and str(curves).count("\n") == 4
    picture = curves._repr_html_()
    for text in ('role="img"', "one &lt;device&gt;: from 1 to 0.1 in 2 steps", "A &amp; B"):
        assert text in picture
    assert "nan" not in picture.partition(">")[2] and "http" not in picture  # what is not finite lies on the border
    assert len(set(re.findall('stroke-dasharray="(.*?)"', picture))) == 2  # told apart without colour


def test_names_of_curves_that_end_together_do_not_lie_on_each_other():
    picture = LossCurves({name: [1.0, 0.5] for name in "abcd"})._repr_html_()
    heights = [float(height) for height in re.findall(r'd="M\S+ (\S+)h22"', picture)]
    assert len(heights) == 4 and min(abs(a - b) for i, a in enumerate(heights) for b in heights[:i]) >= 15


test_no_curve_is_refused = refused({}, {"a": []}, by=LossCurves, error=ArgumentError, text="LossCurves")


# ---- 03.1 ----


def settings(sgd, momentum, adam):
    pairs = {"sgd": sgd, "momentum": momentum, "adam": adam}
    return {name: {"gradients_mean": mean, "learning_rate": rate} for name, (mean, rate) in pairs.items()}


RIGHT = ((False, 0.1 / 4), (True, 0.1), (False, 0.01))


def test_the_right_settings_pass():
    assert passes(check("03.1", settings(*RIGHT)), 3)


@pytest.mark.parametrize("answer", ["0.1", None, [0.1]])
def test_an_answer_without_settings_hears_what_has_them(answer):
    part = failed(check("03.1", answer))["sgd"]
    assert part.form.startswith("A dict") and part.found == repr(answer)


@pytest.mark.quick(6)
@each_of(
    ("name", "setting", "words"),
    ("sgd", (False, 0.1), "An all_reduce does not average"),
    ("sgd", (False, 0.4), "A rate 4 times as large"),
    ("sgd", (True, 0.1), "this row is about summed gradients"),
    ("momentum", (True, 0.025), "Divided twice"),
    ("momentum", (False, 0.025), "weight decay adds 0.1 w"),
    ("momentum", (None, 0.1), "True or False"),
    ("adam", (False, 0.0025), "a factor common to all gradients cancels out"),
    ("adam", (False, None), "A number"),
    ("adam", (False, math.nan), "From 0 to 100"),
    ("adam", (False, 1e6), "From 0 to 100"),
)
def test_wrong_settings_fail_in_their_row_and_are_explained(name, setting, words):
    answer = settings(*RIGHT) | {name: {"gradients_mean": setting[0], "learning_rate": setting[1]}}
    wrong = failed(check("03.1", answer))
    assert list(wrong) == [name]
    assert words in words_of(wrong[name])


def test_a_difference_names_the_first_tensor_and_its_bound():
    part = failed(check("03.1", settings((False, 0.1), *RIGHT[1:])))["sgd"]
    assert part.op == "w1 after step 20" and "rounding allows" in part.found


# ---- 03.2 ----


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda weights: np.array(weights, np.float32)])
def test_weights_by_rows_pass(form):
    assert passes(check("03.2", lambda rows: form([n / sum(rows) for n in rows])), 4)


@each_of(
    ("answer", "passed", "words"),
    (lambda rows: [1 / len(rows)] * len(rows), 1, "each row of a rank with 2 rows counts 2 times as much"),
    (lambda rows: [1.0] * len(rows), 0, "No weights"),
    (lambda rows: rows, 0, "The sum over all rows, not their mean: 14 times"),
    (lambda rows: [n / max(rows) for n in rows], 0, "do not add up to 1"),
    (lambda rows: [len(rows) * n / sum(rows) for n in rows], 0, "gradients_mean=True"),
    (lambda rows: [1 / sum(rows)] * len(rows), 0, "each row counts 1/14"),
    (lambda rows: rows[:2], 0, "4 numbers, one per rank"),
)
def test_wrong_weights_are_explained(answer, passed, words):
    verdict = check("03.2", answer)
    assert verdict.points == passed
    part = failed(verdict)["a short last rank"]
    assert words in words_of(part)


def test_the_mean_over_ranks_that_have_rows_is_a_misconception_of_its_own():
    part = failed(check("03.2", lambda rows: [(n > 0) / sum(n > 0 for n in rows) for n in rows]))["a rank without rows"]
    assert "each rank still counts the same" in part.note


def test_the_first_rank_with_a_wrong_weight_is_named():
    def almost(rows):
        return [n / sum(rows) * (1 if r < 2 else 1.5) for r, n in enumerate(rows)]

    assert failed(check("03.2", almost))["equal rows"].rank == 2


def test_a_function_that_fails_is_shown_once():
    verdict = check("03.2", lambda rows: 1 / 0)
    assert [part.passed for part in verdict.parts] == [False, None, None, None]
    assert "ZeroDivisionError" in verdict.parts[0].found


# ---- 03.3 ----


def first_above(growth, million=1e6):
    """Smallest t with growth^(t - 1) > million, by multiplying."""
    if growth <= 1:
        return None
    loss, step = 1.0, 1
    while loss <= million:
        loss, step = loss * growth, step + 1
    return step


@pytest.mark.exhaustive
def test_the_closed_form_is_what_is_counted():
    assert passes(check("03.3", lambda rate, ranks: first_above((1 - ranks * rate) ** 2)), 4)


@each_of(
    ("answer", "words"),
    (lambda rate, ranks: first_above(abs(1 - ranks * rate)), "grows by the square"),
    (lambda rate, ranks: first_above((1 - rate) ** 2), "times one device's gradient"),
    (lambda rate, ranks: first_above((1 + ranks * rate) ** 2), "A sign is wrong"),
    (lambda rate, ranks: (first_above((1 - ranks * rate) ** 2) or 0) - 1, "the loss before any update"),
    (lambda rate, ranks: (first_above((1 - ranks * rate) ** 2) or 0) + 1, "the loss before any update"),
    (lambda rate, ranks: "soon", ""),
)
def test_a_wrong_step_is_explained(answer, words):
    part = failed(check("03.3", answer))["4 ranks at 0.6"]
    assert words in part.note and "60 steps on 4 simulated ranks" in part.expected
    assert str(first_above(1.4**2)) not in part.expected  # four numbers could be written down instead of a rule


def test_never_is_the_answer_none():
    assert [p.name for p in check("03.3", lambda rate, ranks: None).parts if p.passed] == ["never"]
    assert "never" in failed(check("03.3", lambda rate, ranks: 0))
