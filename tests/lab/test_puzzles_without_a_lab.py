"""Puzzles that no lab is set to: nothing public near them, and no par, names an answer at par.

What a learner might call or look at once: every function of the modules that the lesson and its grader are made of,
with the puzzle's own numbers; every attribute of the puzzle; the constants of the grader; what `par`, `numbers` and the
first three hints say. Whatever in it has the form of an answer is handed in. A list of many, such as the 276 runs that
a planner has priced, does not count.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pytest

from parallel_lab.cost.planner.clusters import get_machine
from parallel_lab.lab.exercises import full_memory, get_exercise, lesson_15, lesson_16
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import MeshLayout
from tests.lab.recorded_puzzles import fewest_bytes, replies
from tests.lab.test_exercises_16 import packing
from tests.lab.test_own_numbers import by_exchanges, fastest
from tests.lab.verdicts import check

RUNS = ("train", "prove", "exchanged", "compiled", "routings", "factors")  # functions that train, on processes or not
MANY = 4  # answers in a row: more are a list among which it would have to be found
RING, LOAD, MOVE = lesson_15.Packed((7, 3, 2), 192), next(iter(lesson_16.LOADS)), full_memory.PUZZLES[0]
MESH = DeviceMesh(tuple(MOVE.sizes.values()), tuple(MOVE.sizes))
LAYOUTS = [MeshLayout.from_dims(MESH, dims) for dims in (MOVE.source, MOVE.target)]
PUZZLES = {  # number: the modules near it, its own numbers, an answer at par
    "15.4": (
        ("lab.exercises.lesson_15", "lab.lessons.context_parallel", "lab.context", "layout.placements"),
        (RING, RING.documents, RING.message, 12, 4),
        lambda: by_exchanges(RING),
    ),
    "16.4": (
        ("lab.exercises.lesson_16", "lab.lessons.expert_parallel", "lab.experts", "cost.expert_placement"),
        (LOAD, 12, 4, 3, np.array(LOAD)),
        lambda: packing(LOAD, lesson_16.LOADS[LOAD] + 1e-9),
    ),
    "16.5": (
        ("lab.exercises.lesson_16", "cost.planner"),
        (lesson_16.COMMON, lesson_16.MODEL, get_machine("dgx_h100", 64), 64, 78e9),
        lambda: fastest(lesson_16.COMMON),
    ),
    "17.5": (
        (
            *("lab.exercises.full_memory", "lab.exercises.lesson_17", "lab.lessons.from_shard_to_dtensor"),
            *("layout.mesh_redistribution", "layout.mesh_layout", "lab.rosetta"),
        ),
        (MOVE, *LAYOUTS, MOVE.shape, MESH, MOVE.source, MOVE.target),
        lambda: fewest_bytes(MOVE),
    ),
}


def modules(names):
    """These of the package, and those that lie in them."""
    for name in names:
        found = importlib.import_module(f"parallel_lab.{name}")
        yield found
        for inside in pkgutil.iter_modules(getattr(found, "__path__", ()), f"{found.__name__}."):
            yield importlib.import_module(inside.name)


def called(number):
    """What each public function gives for any of the puzzle's numbers."""
    names, given, _ = PUZZLES[number]
    for module in modules(names):
        for name, make in vars(module).items():
            ours = inspect.isfunction(make) and make.__module__.startswith("parallel_lab")
            if not ours or name.startswith(("_", *RUNS)):
                continue
            required = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
            count = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in required)
            yield from replies(make, given, [count] if 0 < count <= 3 else [])


def looked_at(number):
    """Constants of the grader's module, and what is said without an attempt."""
    for name, value in vars(next(modules(PUZZLES[number][0]))).items():
        if not name.startswith("_") and not inspect.ismodule(value):
            yield name, value
    exercise = get_exercise(number)
    for name, text in (("par", exercise.par()), ("numbers", exercise.numbers), *enumerate(exercise.hints[:3])):
        yield name, text
    yield "the puzzle", PUZZLES[number][1][0]


def public(value):
    """An object's own attributes and properties."""
    names = [field.name for field in dataclasses.fields(value)]
    names += [name for name, of in inspect.getmembers(type(value)) if isinstance(of, property | cached_property)]
    for name in names:
        if not name.startswith("_"):
            try:
                yield getattr(value, name)
            except Exception:  # not of this one
                continue


def answers_in(number, value, deep=4):
    """Whatever of a value has the form of an answer."""
    if deep == 0:
        return
    if isinstance(value, str):
        for piece in re.findall(r"[\[{(].*[\]})]", value):
            try:
                yield from answers_in(number, ast.literal_eval(piece), deep - 1)
            except (ValueError, SyntaxError):
                continue
    elif isinstance(value, np.ndarray):
        yield value.tolist()
    elif isinstance(value, Mapping):
        yield dict(value)
        for one in itertools.chain(*itertools.islice(value.items(), MANY)):
            yield from answers_in(number, one, deep - 1)
    elif isinstance(value, list | tuple):
        yield value
        if number == "17.5" and value and all(hasattr(one, "axis") and hasattr(one, "to") for one in value):
            yield [(MOVE.mesh[one.axis][0], getattr(one.to, "dim", None)) for one in value]
        for one in value[:MANY] if len(value) <= MANY else ():
            yield from answers_in(number, one, deep - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        if all(hasattr(value, name) for name in lesson_16.LETTERS):
            yield {name: getattr(value, name) for name in lesson_16.LETTERS}
        for one in public(value):
            yield from answers_in(number, one, deep - 1)


def at_par(number, answer):
    """Whether an answer reaches the last points."""
    return any(part.name == "par" and part.passed for part in check(number, answer).parts)


@pytest.mark.quick(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", PUZZLES)
def test_nothing_public_near_a_puzzle_is_its_answer(number):
    """On the code before, Move.least and par were the answer to 17.5, Budgets.best and priced that to 16.5."""
    assert at_par(number, PUZZLES[number][2]())
    tried, solved = {}, []
    for where, value in itertools.chain(looked_at(number), called(number)):
        for answer in answers_in(number, value):
            letters = dict(zip(lesson_16.LETTERS, answer, strict=False)) if number == "16.5" else {}
            for one in (answer, letters) if len(letters) == len(lesson_16.LETTERS) else (answer,):
                if repr(one) not in tried:
                    tried[repr(one)] = where
                    solved += [where] if at_par(number, one) else []
    assert len(tried) > 20 and not solved
