"""Lesson 07's exercises: duals are tested with numbers, right answers pass, wrong ones hear what gives them."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.lab.exercises import lesson_07
from parallel_lab.lab.exercises.lesson_07 import CLOSE, COPY, KINDS, block, clipped, dual, gap
from parallel_lab.lab.lessons import gradients
from parallel_lab.ops.collectives.definitions import MESSAGES
from parallel_lab.run.communicator import Request
from tests.crossed import each_of
from tests.lab.verdicts import check, passes, told

DUALS = {kind: dual(kind) for kind in (*KINDS, COPY)}

# ---- 07.1 ----


@pytest.mark.parametrize("kind", KINDS)
def test_the_dual_is_the_engines_own_and_the_only_one_that_fits(kind):
    """As MESSAGES says: what the passes insert backward. No other message brings the gradients back."""
    assert dual(kind) == MESSAGES[kind].adjoint and gap(kind, dual(kind), 3) < CLOSE
    for other in {*KINDS, "nothing"} - {dual(kind)}:
        try:
            assert gap(kind, other) > 0.01, other
        except (ParallelLabError, ValueError):
            continue


def test_a_value_that_all_hold_has_its_gradient_added_up():
    assert gap(COPY, "all_reduce") < CLOSE < gap(COPY, "nothing")
    assert gap(COPY, "reduce") > 0.5  # only the root would have it


def test_the_duals_pass():
    assert passes(check("07.1", DUALS), 5)


@each_of(
    ("changed", "part", "words"),
    ({"copy": "nothing"}, "a copy", "used the value in its own way"),
    ({"all_reduce": "nothing"}, "the same way", "has its own gradient of it"),
    ({"all_gather": "scatter"}, "slices", "Who adds them up"),
    ({"reduce_scatter": "reduce_scatter"}, "slices", "in the same direction once more"),
    ({"broadcast": "gather"}, "one root", "the sum of the gradients, not all of them"),
    ({"broadcast": "all_reduce"}, "one root", "ranks that gave nothing"),
    ({"gather": "allgather"}, "one root", "nothing"),
    ({"gather": ...}, "one root", "still open"),
)
def test_a_wrong_dual_hears_what_is_wrong(changed, part, words):
    verdict = check("07.1", {**DUALS, **changed})
    (wrong,) = [each for each in verdict.parts if not each.passed]
    assert wrong.name == part and words in f"{wrong.found} {wrong.note} {wrong.form}"


# ---- 07.2 ----


def parts(rank, ranks, kept):
    """Without a message: of x and gamma a rank's part."""
    x, gamma, w1, w2, hidden, dz = kept
    dhidden = (dz @ w2.T) * (hidden > 0)
    dscaled = dhidden @ w1.T
    return hidden.T @ dz, (gamma * x).T @ dhidden, (dscaled * x).sum(axis=0), dscaled * gamma


def added(*names, reduce="sum"):
    """Each of these gradients added up by a message of its own."""

    def backward(rank, ranks, kept):
        found = dict(zip(lesson_07.NAMES, parts(rank, ranks, kept), strict=True))
        for name in names:
            found[name] = yield Request("all_reduce", tuple(range(ranks)), found[name], reduce=reduce)
        return tuple(found.values())

    return backward


def once(rank, ranks, kept):
    x, gamma, *_ = kept
    dw2, dw1, _, dx = parts(rank, ranks, kept)
    dscaled = (yield Request("all_reduce", tuple(range(ranks)), dx)) / gamma
    return [dw2, dw1, (dscaled * x).sum(axis=0), dscaled * gamma]


def test_the_block_is_the_derivative_of_its_formula():
    """Against finite differences of sum(z dz), z = relu((gamma x) w1) w2."""
    right, kept = block(1)
    x, gamma, w1, w2, _, dz = kept[0]

    def value(x, gamma, w1, w2):
        return float((np.maximum(gamma * x @ w1, 0) @ w2 * dz).sum())

    given = {"x": x, "gamma": gamma, "w1": w1, "w2": w2}
    for name, array in given.items():
        step = np.zeros_like(array)
        step.flat[3] = 1e-6
        ahead, behind = ({**given, name: array + sign * step} for sign in (1, -1))
        assert (value(**ahead) - value(**behind)) / 2e-6 == pytest.approx(right[name].flat[3], rel=1e-6)


def test_one_message_repairs_both_gradients():
    assert passes(check("07.2", once), 5)
    assert check("07.2", added("x", "gamma")).points == 4  # right, with two messages


@each_of(
    ("answer", "part", "words"),
    (lambda rank, ranks, kept: (*parts(rank, ranks, kept)[:3], 0 * kept[0]), "gamma", "their sum is right"),
    (added("gamma"), "x", "their sum is right"),
    (added("x", "gamma", reduce="mean"), "x", "the parts of a sum are added up"),
    (added("x", "gamma"), "one message", "can be computed from"),
    (lambda rank, ranks, kept: None, "w1 and w2", "four arrays"),
)
def test_a_wrong_backward_hears_what_is_missing(answer, part, words):
    (wrong,) = [each for each in check("07.2", answer).parts if each.name == part]
    assert not wrong.passed and words in f"{wrong.found} {wrong.note} {wrong.form}"


# ---- 07.3 ----


def clip(scale):
    """A rank program that scales by what `scale(sum of the slices' squares, the copy's, ranks)` gives."""

    def program(rank, ranks, gradients):
        mine, copied = gradients
        squares = yield Request("all_reduce", tuple(range(ranks)), (mine**2).sum(keepdims=True))
        by = scale(squares[0], (copied**2).sum(), ranks)
        return mine * by, copied * by

    return program


def test_clipping_on_one_device_leaves_a_norm_of_one():
    found = clipped([np.array([3.0, 0.0]), np.array([4.0])])
    assert found[0][0] == pytest.approx(0.6) and found[1][0] == pytest.approx(0.8)
    assert clipped([np.array([0.3])])[0][0] == 0.3


def test_the_norm_of_all_passes():
    assert passes(check("07.3", clip(lambda mine, copy, ranks: min(1, (mine + copy) ** -0.5))), 5)


@each_of(
    ("scale", "part", "words"),
    (lambda mine, copy, ranks: min(1, (mine + ranks * copy) ** -0.5), "copies count once", "counted on every rank"),
    (lambda mine, copy, ranks: min(1, mine**-0.5), "copies count once", "The copy is missing"),
    (lambda mine, copy, ranks: min(1, 1 / (mine + copy)), "slices", "The root is missing"),
    (lambda mine, copy, ranks: (mine + copy) ** -0.5, "small gradients stay", "at most 1"),
    (lambda mine, copy, ranks: 1, "slices", "Nothing was clipped"),
)
def test_a_wrong_norm_is_explained(scale, part, words):
    assert words in told("07.3", clip(scale), part)


@each_of(("added", "words"), (True, "The norms were added up"), (False, "by its own norm"))
def test_a_norm_of_each_rank_is_explained(added, words):
    def program(rank, ranks, gradients):
        mine, copied = gradients
        norm = np.array([np.sqrt((mine**2).sum() + (copied**2).sum())])
        if added:
            norm = yield Request("all_reduce", tuple(range(ranks)), norm)
        return mine * min(1, 1 / norm[0]), copied * min(1, 1 / norm[0])

    assert words in told("07.3", program, "slices")


# ---- the notebook's own calls ----


def test_compare_and_drift_say_what_the_lesson_says():
    rows = gradients.compare({"gather": "scatter", "weight": (1, 5), "missing": "runs on"}).rows
    assert [row[2] for row in rows] == ["reduce_scatter", (1, 5), "runs on"]
    assert [row[3] for row in rows] == ["reduce_scatter", (1, 5), "runs on"]
    together, alone = (float(line.rpartition(" ")[2]) for line in gradients.drift().splitlines())
    assert together == 0 < alone
    assert "AllGather" in gradients.twins()
