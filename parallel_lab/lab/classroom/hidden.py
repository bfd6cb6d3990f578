"""What a test cell does while it is graded, in the kernel of the student's notebook: `marks` in the hidden part of the
cell, `ready` in a cell before all others.

    check("03.2", weights_for).points
    ### BEGIN HIDDEN TESTS
    from parallel_lab.lab.classroom.hidden import marks
    marks("03.2", weights_for, seed=1234)
    ### END HIDDEN TESTS

A verdict tells the inputs of its parts and, after a hint, what was expected there: an answer that only looks them up
earns nothing for the parts that the exercise can judge on other inputs (`Exercise.drawn`), drawn by a seed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
from typing import Any

from ..exercises import GradingError, get_exercise, judge, judge_drawn
from ..exercises.book import LEARNER

HINT = "Run `parallel-lab doctor` with the Python of the notebooks' kernel"


def marks(number: str, answer: Any = None, *, seed: int, **given: Any) -> int:
    """Points of the parts that pass, on the inputs of `check` and, where there are such, on drawn ones.

    number, answer, given   as `check` takes them
    seed                    of the inputs

    If `ready` has received the student's name, their own numbers count, whatever name the notebook gives.
    Raises GradingError where the machine is at fault, ArgumentError for a number that no exercise has.
    """
    exercise = get_exercise(number, "marks").of(os.environ.get(LEARNER, ""))
    return judge_drawn(exercise, answer, given, seed).points


def packages() -> list[str]:
    """Names under which the packages that we need are imported, malt for diastatic-malt, this one first."""
    needed = [line for line in importlib.metadata.requires("parallel-lab") or () if "extra ==" not in line]
    held = {importlib.metadata.distribution(re.match(r"[\w-]+", line)[0]).name for line in needed}
    return ["parallel_lab", *(name for name, by in importlib.metadata.packages_distributions().items() if held & {*by})]


def ready(student: str = "") -> None:
    """Raise GradingError unless every package of ours can be imported and a right answer passes.

    student  whose own numbers count in this kernel, in a course where each student has such
    """
    os.environ[LEARNER] = student
    try:
        for name in packages():
            importlib.import_module(name)
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        raise GradingError(f"{type(error).__name__}: {error}", where="this kernel", hint=HINT) from error
    right = judge(get_exercise("03.2"), lambda rows: [n / sum(rows) for n in rows], {})
    if not all(part.passed for part in right.parts):
        raise GradingError("a right answer does not pass", where="this kernel", hint=HINT)
