"""What a verdict on an exercise says, for the tests of the lessons' exercises."""

from __future__ import annotations

from typing import Any

from parallel_lab.lab.exercises import Part, Verdict, get_exercise


def check(number: str, answer: Any = None, **given: Any) -> Verdict:
    """What the grader says, of the answer that the exercise begins with too: `check` calls that one not tried yet. The
    answer's functions run here; that the learner's run in a process of their own is tested for all exercises alike
    (test_exercises.py, test_own_process.py), and each takes many times as long.
    """
    exercise = get_exercise(number).asked_by(answer)
    return Verdict(number, exercise.title, exercise._judged(answer, given))


def failed(verdict: Verdict) -> dict[str, Part]:
    """The parts that did not pass, by name."""
    return {part.name: part for part in verdict.parts if not part.passed}


def words_of(part: Part) -> str:
    return f"{part.found} {part.form} {part.expected} {part.note} {part.op}"


def told(number: str, answer: object, part: str) -> str:
    """The words of a part in which this answer fails."""
    return words_of(failed(check(number, answer))[part])


def passes(verdict: Verdict, points: int) -> bool:
    """Whether every part passed, for as many points; shows the verdict if not."""
    assert verdict.passed, str(verdict)
    return verdict.points == points
