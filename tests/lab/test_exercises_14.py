"""Lesson 14's exercises: right answers pass, wrong ones hear what they are; what is counted equals the formulas."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.cost.planner import sequence_parallel_messages
from parallel_lab.lab.exercises import get_exercise, judge_drawn, lesson_14
from parallel_lab.lab.lessons import sequence_parallel
from parallel_lab.processes.shm import close_all
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, told

RIGHT = {f"norm{n}.{name}" for n in (1, 2) for name in ("gamma", "beta")} | {"attention.out.bias", "mlp.fc2.bias"}


@each_of(
    ("form", "sent", "messages"), ("tensor", 4 * 1536, 4), ("sequence", 8 * 768, 8), ("gathered again", 10 * 768, 10)
)
def test_the_plan_of_a_block_sends_what_the_paper_says(form, sent, messages):
    """M = 2 x 8 x 16 x 4 bytes: an all_reduce on 4 ranks sends 2 x 3/4 of it, its halves 3/4 each."""
    found = lesson_14.layer_messages(form)
    assert (sum(size for *_, size in found), len(found)) == (sent, messages)


def test_the_parts_of_the_ranks_are_one_devices_gradient():
    """What the grader compares with: of a norm they add up to it, of a product they stand side by side."""
    parts, right = lesson_14._parts()
    one = lesson_14.trained("one device").gradients
    assert right == RIGHT
    for name, dim in {"norm1.gamma": None, "mlp.fc2.bias": None, "mlp.fc1.weight": 0, "mlp.fc2.weight": 1}.items():
        mine = sum(parts[name]) if dim is None else np.concatenate(parts[name], dim)
        np.testing.assert_allclose(mine, one[f"blocks.0.{name}"], atol=1e-5)  # read from weights of 1 in float32


@each_of(
    ("number", "answer", "part", "words"),
    ("14.1", lambda b, s, h, t, e, i, r: (i + r) * 2 * b * s * h * e * (t - 1) / t, "bytes", "6144"),
    ("14.1", lambda b, s, h, t, e, i, r: (i + r) * 2 * b * s * h * e * (t - 1) / t, "bytes", "gathered once is enough"),
    ("14.1", lambda b, s, h, t, e, i, r: (i + r) * b * s * h * e * (t - 1) / t, "bytes", "forward pass alone"),
    ("14.1", lambda b, s, h, t, e, i, r: (3 * i + 2 * r) * b * s * h * e, "bytes", "keeps its own part"),
    ("14.1", lambda b, s, h, t, e, i, r: (2 * i + 3 * r) * b * s * h * e * (t - 1) / t, "bytes", "exchanged with"),
    ("14.1", lambda *sizes: sequence_parallel_messages(*sizes[:5]).sent_bytes, "bytes", "the lesson's block"),
    ("14.1", lambda b, s, h, t, e, i, r: "many", "bytes", "many"),
    ("14.2", lambda b, s, h, t, e: 2 * b * s * h * e, "bytes", "Not split"),
    ("14.2", lambda b, s, h, t, e: 2 * b * s * h * e / t**2, "bytes", "128"),
    ("14.3", [], "norms", "replicated value, replicated gradient"),
    ("14.3", sorted(RIGHT - {"norm2.beta"}), "norms", "norm2.beta is not added up: a rank's gradient is off by"),
    ("14.3", sorted(RIGHT - {"mlp.fc2.bias"}), "behind products", "reduce_scatter leaves"),
    ("14.3", [*RIGHT, "blocks.0.mlp.fc1.weight"], "norms", "slices of different columns"),
    ("14.3", "norm1.gamma", "norms", "A list of names"),
    ("14.3", [None], "norms", "A list of names"),
    ("14.3", ["norm9"], "norms", "A list of names"),
)
def test_a_wrong_answer_hears_what_it_is(number, answer, part, words):
    assert words in f"{told(number, answer, part)} {failed(check(number, answer))[part].idea}"


def test_a_function_of_an_earlier_edition_is_graded():
    """The lesson's block alone; known by its name."""

    def sent(b, s, h, t, e):
        return 10 * b * s * h * e * (t - 1) / t

    assert judge_drawn(get_exercise("14.1"), sent, {}, seed=1).points == 3
    assert not check("14.1", lambda *sizes: sent(*sizes)).passed


def test_all_names_earn_nothing():
    assert check("14.3", list(lesson_14._parts()[0])).points == 0 and passes(check("14.3", sorted(RIGHT)), 4)


@pytest.mark.exhaustive
def test_real_ranks_refuse_copies_that_have_drifted_apart():
    try:
        with pytest.raises(ParallelLabError, match="has other values on rank 1 than on rank 0"):
            lesson_14.trained("sequence", lesson_14.unsummed, executor="processes", steps=3)
    finally:
        close_all()


def test_predictions_are_compared_with_counts():
    rows = sequence_parallel.compare({"sent": 3072, "smaller": "the queries", "partial": "norms"})._cells()
    assert [row[2:5] for row in rows] == [
        ("7680", "7680", "not yet"),
        ("the result of a norm", "the result of a norm", "not yet"),
        ("norms", "norms", "right"),
    ]
