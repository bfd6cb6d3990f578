"""Each lesson shows the same in MindSpore, PyTorch and JAX. (.ci/run --oracle runs the last two.)"""

from __future__ import annotations

import ast

import pytest

from tests.recorded.lesson_programs import LESSONS, PROGRAMS, TARGETS, blocks


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_shows_the_same_in_three_systems_as_valid_python(lesson):
    found = blocks(lesson)
    assert tuple(found) == TARGETS
    for text in found.values():
        assert ast.parse(text).body


def test_every_pytorch_and_jax_text_has_a_program_that_runs_it():
    assert set(PROGRAMS) == {(lesson, target) for lesson in LESSONS for target in TARGETS[1:]}
