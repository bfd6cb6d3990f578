"""Products in three dimensions, weights in bfloat16, copies that take turns: the grader's rules against a compiled
plan, another library's rounding, and a simulation event by event.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parallel_lab.lab.exercises import more_ways
from parallel_lab.lab.lessons.slicing import in_three_dims
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes


@each_of("case", *more_ways.PRODUCTS)
def test_bytes_in_three_dims_are_those_of_the_compiled_plan(case):
    *sizes, _ = case
    kinds = [kind for kind, group, _ in in_three_dims(*sizes)]
    assert kinds == ["all_gather", "all_gather", "reduce_scatter"][sizes[-1] == 1 :]
    assert sum(sent for *_, sent in in_three_dims(*sizes)) == more_ways.product_bytes(*sizes, 4)


@pytest.mark.parametrize("seed", range(3))
def test_bfloat16_rounds_as_another_library_does(seed):
    for weight, update in (*more_ways.UPDATES, *more_ways._draw_updates(np.random.default_rng(seed))):
        assert float(ml_dtypes.bfloat16(weight)) == weight
        assert float(ml_dtypes.bfloat16(np.float32(weight + update))) == more_ways.stored(weight, update)


def simulated(layers: int, copies: int, compute_s: float, send_s: float, start_s: float) -> float:
    """When the last message arrives: the rank computes one piece at a time, in order, and its line sends one."""
    rank_free = line_free = 0.0
    arrived = [0.0] * copies
    for _ in range(layers):
        for copy in range(copies):
            rank_free = max(rank_free, arrived[copy]) + compute_s / copies
            line_free = arrived[copy] = max(line_free, rank_free) + start_s + send_s / copies
    return line_free


@pytest.mark.parametrize("seed", range(5))
def test_seconds_of_copies_are_those_of_a_simulation(seed):
    rng = np.random.default_rng(seed)
    drawn = [case for _ in range(20) for case in more_ways._draw_layers(rng)]
    for case in (*more_ways.LAYERS, (4, 1, 3.0, 2.0, 0.25), *drawn):
        assert simulated(*case) == pytest.approx(more_ways.step_s(*case), rel=1e-12)


@each_of(
    ("number", "ideas"),
    ("05.5", more_ways.PRODUCT_IDEAS),
    ("08.4", more_ways.UPDATE_IDEAS),
    ("14.4", more_ways.COPY_IDEAS),
)
def test_each_wrong_model_hears_its_own_note(number, ideas):
    for idea in ideas:
        *_, last = failed(check(number, idea.answer)).values()
        assert last.note == idea.note


@each_of(
    ("answer", "words"),
    (lambda n, c, compute, send, start: n * (compute + send + c * start), "Nothing is hidden there"),
    (lambda n, c, compute, send, start: n * max(compute, send + c * start), "not hidden at the end"),
    (lambda n, c, *of: simulated(n, c, *of[:2], of[2] / c), "each of them takes its time to start"),
)
def test_a_step_of_copies_that_is_counted_otherwise_is_explained(answer, words):
    assert any(words in part.note for part in failed(check("14.4", answer)).values())


@each_of(
    ("number", "right", "points"),
    ("05.5", more_ways.product_bytes, 3),
    ("08.4", lambda w, u: float(ml_dtypes.bfloat16(np.float32(w + u))), 3),
    ("14.4", simulated, 4),
)
def test_right_answers_pass(number, right, points):
    assert passes(check(number, right), points)
