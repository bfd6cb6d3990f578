"""Testing an exercise: what its author, and the course's own tests, hand in to find its faults.

probe(exercise, [my_answer, my_other_answer])     # [] or what is wrong, a line each
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .book import Exercise, judge
from .starts import handed_in

KIND_S = 5.0  # within which any answer gets its verdict, besides the calls that are stopped


class Hostile:
    """An answer that raises whatever is done with it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute for you")

    def __iter__(self) -> Any:
        raise RuntimeError("no iteration for you")

    def __float__(self) -> float:
        raise RuntimeError("no number for you")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison for you")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no text for you")


def _raising(*_: Any) -> Any:
    raise ZeroDivisionError("<b>mine</b>")


def _leaving(*_: Any) -> Any:
    sys.exit(3)


def _endless(*_: Any) -> Any:
    while True:
        pass


def _asleep(*_: Any) -> Any:
    time.sleep(3600)


def _deaf(*_: Any) -> Any:
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            continue


def _deep(*_: Any) -> Any:
    return _deep()


def _huge(*_: Any) -> Any:
    return np.broadcast_to(np.float64(1), (1 << 20, 1 << 20))


def _yielding(*_: Any) -> Any:
    while True:
        yield "no request"


def _loop() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


def _of(value: Any) -> Callable[..., Any]:
    return lambda *_: value


_VALUES: tuple[Any, ...] = (
    *(3, 0, -1.5, 1e308, float("nan"), float("inf"), 10**400, 1j, True, "text", "", "0F0 0B0", b"bytes"),
    *((), [None], ["a", 3], [[]], {}, {"line": 3}, {None: None}, {"width": "x"}, set("ab"), range(3), _loop()),
    *(
        np.zeros((2, 2)),
        np.array([]),
        np.array(["a", None], object),
        np.broadcast_to(np.float64(1), (1 << 20, 1 << 20)),
    ),
    *(object(), Hostile(), int, print, sys, itertools.count()),
)
_FUNCTIONS = (_raising, _leaving, _deep, _huge, _yielding, lambda: None, lambda **_: 1)
_RETURNED = (None, "text", float("nan"), 10**400, [], [[None]], _loop(), Hostile(), itertools.count())
JUNK = (*_VALUES, *_FUNCTIONS, *map(_of, _RETURNED))  # answers to no question, by which no grader may be disturbed
ENDLESS = (_endless, _asleep, _deaf)  # functions that are stopped: each call of them takes its time limit


def probe(
    exercise: Exercise, right: Iterable[Any] = (), *, junk: Iterable[Any] | None = None, **given: Any
) -> list[str]:
    """What is wrong with an exercise, a line each; empty for a sound one.

    right  answers that must pass, better in different styles
    junk   answers to no question; None: those of JUNK
    given  what else `check` receives

    The start must count as not tried, right answers pass, each idea be recognised by its name and no other's, and junk
    get a verdict with words within KIND_S.
    """
    faults = []
    if exercise.start:
        answer, more = handed_in(exercise.start)
        if judge(exercise, answer, {**more, **given}).tried:
            faults.append("the start counts as an attempt")
    for number, answer in enumerate(right, 1):
        verdict = judge(exercise, answer, given)
        if not verdict.passed:
            faults.append(f"right answer {number} does not pass: {verdict}")
    for idea in exercise.ideas:
        parts = exercise.judge(idea.answer, **given)  # also of a start that is a wrong idea
        names = {part.idea for part in parts if part.name == idea.part or not idea.part}
        if names - {""} != {idea.name}:
            faults.append(f"idea {idea.name!r} is taken for {sorted(names)}")
    for number, answer in enumerate(JUNK if junk is None else junk):
        begin = time.monotonic()
        verdict = judge(exercise, answer, given)
        took_s, first = time.monotonic() - begin, verdict.first_failure
        if verdict.passed:
            faults.append(f"junk {number} passes")
        elif verdict.tried and (first is None or not (first.found or first.note)):
            faults.append(f"junk {number} gets no words")
        if took_s > KIND_S:
            faults.append(f"junk {number} takes {took_s:.1f} s")
    return faults
