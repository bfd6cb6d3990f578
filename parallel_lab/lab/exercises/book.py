"""The exercises of all lessons by number, `check`, `hint` and `par`.

An exercise is one `Exercise` in the tuple `EXERCISES` of its lesson's file: "04.2" is looked for in `lesson_04.py`. Its
grader is a generator that yields a `Part` for each of the declared parts, in any order; what it does not yield is "not
judged". A `Wrong` that it raises fails the next part and ends the judging; a function that had to be stopped ends it,
too. A grader never looks at a verdict or score that came with the answer: it runs the learner's functions on inputs of
its own (`running.py`), counts in its own log, or computes from the learner's numbers.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import json
import os
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...base.checks import fitting, is_int
from ...base.errors import ArgumentError, DataFileError, ParallelLabError, shorten
from ...base.system import IN_BROWSER
from .ideas import Idea
from .own_process import in_own_process
from .progress import cells_of, keep, recall
from .running import STOPPED, deadline, is_machine_fault, place_of
from .starts import is_start
from .verdict import LADDER, Hint, Par, Part, Verdict, Wrong

LIMIT_S = 60.0  # for one check, whatever is in it; graders bound each call of the learner's functions far below
DRAWS = 5  # inputs of each part that has drawn ones
RESULTS_FORMAT = "parallel_lab.checks"
LEARNER = "PARALLEL_LAB_LEARNER"  # in the environment: who learns here, where `learner` is not called
FAULT_HINT = "Run `parallel-lab doctor`. The answer is not at fault: nobody should get 0 points for it"
_LESSONS = Path(__file__).parent


class GradingError(ParallelLabError, RuntimeError):
    """A check could not be made, and the answer is not to blame: no mark may come from it."""


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    number   lesson and place in it: "02.1"
    title    in a few words
    parts    (name, points) of each, in the order in which they are shown
    hints    four texts: a question, a place to look, a part of the answer, the answer in words, not in code
    grader   grader(answer, **given) yields Parts; `given` is what the exercise asks for besides the answer
    par      of a puzzle: an answer that is at par, as text; `par` tells it after an own attempt. The score of par is no
             secret: verdicts say how far from it one is
    attempt  the part that an own attempt passes, and the answer that the exercise begins with does not
    start    the cell that the exercise begins with, its call of check included: unchanged, it counts as not tried
    ideas    wrong models and the answers that follow from them (`ideas.py`); a test hands each of them in
    drawn    of parts whose inputs stand in every verdict: drawn(answer, rng) judges the answer on other ones, or
             raises Wrong; for graders (`judge_drawn`)
    numbers  of an exercise whose answer a class could share: the numbers that it gives, in words
    lab      of a puzzle that is solved in a lab: lab() makes it, without what would solve it
    runs     of a puzzle whose tries are counted: how many there are;  tries: tries(answer) names those of an answer
    own      own(rng) gives other fields of that exercise, `numbers` and `grader` among them: for one learner
    earlier  (whether an answer has the form that an earlier edition of the lesson asked for, the fields it had then)
    """

    number: str
    title: str
    parts: tuple[tuple[str, int], ...]
    hints: tuple[str, str, str, str]
    grader: Callable[..., Iterable[Part]]
    par: Callable[[], str] | None = None
    attempt: str = ""
    start: str = ""
    ideas: tuple[Idea, ...] = ()
    drawn: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    numbers: str = ""
    own: Callable[[np.random.Generator], Mapping[str, Any]] | None = None
    lab: Callable[..., Any] | None = None
    earlier: tuple[Callable[[Any], bool], Mapping[str, Any]] | None = None
    runs: int = 0
    tries: Callable[[Any], Iterable[Hashable]] | None = None

    @property
    def points(self) -> int:
        """Points of all parts: what the test cell's metadata must say."""
        return sum(points for _, points in self.parts)

    def of(self, learner: str) -> Exercise:
        """This exercise with a learner's own numbers, the same for the same name; itself without a name, and where all
        have the same numbers.
        """
        whole = unicodedata.normalize("NFC", learner)  # a folder's name on a Mac takes letters and accents apart
        name = " ".join(whole.split()).casefold()
        if self.own is None or not name:
            return self
        seed = hashlib.sha256(f"{self.number} {name}".encode(errors="surrogatepass")).digest()
        changed = dict(self.own(np.random.default_rng(list(seed))))
        first = changed["numbers"].partition("\n")[0]
        return replace(self, **changed, title=f"{self.title} ({first})", own=None)

    def asked_by(self, answer: Any) -> Exercise:
        """This exercise as the notebook asked it that the answer comes from."""
        if self.earlier is None or not self.earlier[0](answer):
            return self
        return replace(self, **self.earlier[1], earlier=None)

    def judge(self, answer: Any, **given: Any) -> tuple[Part, ...]:
        """A Part for each of `parts`, within LIMIT_S. What is wrong with an answer is in them, never raised.

        Raises GradingError where the fault is the machine's: a package that is missing, a disk that is full.
        """
        with in_own_process(answer, given) as (stand_in, stand_ins):
            return self._judged(stand_in, stand_ins)

    def _judged(self, answer: Any, given: Mapping[str, Any]) -> tuple[Part, ...]:
        worth, judged = dict(self.parts), {}
        try:
            with deadline(LIMIT_S):
                for part in self.grader(answer, **given):
                    if part.name not in worth:
                        what = f"part {part.name!r}"
                        raise ArgumentError(what, where=f"grader of {self.number}", allowed=f"One of {tuple(worth)}")
                    judged.setdefault(part.name, part)
                    if part.passed is False and part.found.startswith(STOPPED):
                        break  # it would take its whole time again in each part
        except Exception as error:  # an answer that nobody thought of must not end the lesson
            if is_machine_fault(error, self.grader):
                what = f"{type(error).__name__}: {error}"
                raise GradingError(what, where=f"grader of {self.number}", hint=FAULT_HINT) from error
            name = next((name for name in worth if name not in judged), None)
            if name is None:
                raise
            judged[name] = _failed(error, answer).part(name)
        parts = ((judged.get(name, Part(name, None)), points) for name, points in self.parts)
        return tuple(replace(_at_line(part, answer), points=points) for part, points in parts)

    def untouched(self, answer: Any, given: Mapping[str, Any]) -> bool:
        """Whether there is no answer yet, or only the one that the exercise begins with."""
        if answer is None and not any(value is not None for value in given.values()):
            return True
        start = self.asked_by(answer).start
        return bool(start) and is_start(start, answer, given)


def _at_line(part: Part, answer: Any) -> Part:
    """A wrong part with the line of the learner's function whose value was judged, where nothing nearer is known."""
    place = "" if part.passed is not False else place_of(answer)
    if not place or re.search(r":\d+", part.op):  # `send 2 -> 3 at cell:7`
        return part
    return replace(part, op=f"{part.op}, {place}" if part.op else place)


def _failed(error: BaseException, answer: Any) -> Wrong:
    """What ended a grader: what it says itself, or that it cannot judge this answer."""
    if isinstance(error, Wrong):
        return error
    return Wrong(f"{type(error).__name__}: {error}", "", f"This answer cannot be judged: {shorten(answer)}")


class Desk:
    """A learner's place at the exercises: which hints were given in this session, and what was tried in it."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.own: dict[str, str] = {}  # of puzzles: what the last own attempt's score was
        self.added: dict[str, Exercise] = {}
        self.results: dict[str, tuple[Verdict, int]] = {}  # the last verdict on each, and how many there were
        self.tried: dict[str, dict[Hashable, None]] = {}  # of puzzles that count them: the tries so far
        self.name = ""  # of the learner; empty: that of the environment
        self.before: dict[str, dict[str, Any]] | None = None  # in a page: what was said before its kernel was started
        self.cells: dict[str, list[str]] = {}  # what was run before, by lesson

    def learner(self, name: str) -> str:
        """Say who learns here: some exercises then have numbers that follow from the name.

        Returns which exercises have such numbers, as text.
        """
        self.name, self.own = str(name).strip(), {}
        if not self._name:
            return "No name: you have the numbers of the text."
        have = [e.number for e in all_exercises() if e.own is not None]
        return f'{self._name} has numbers of their own in {", ".join(have)}: print(numbers("{have[0]}"))'

    @property
    def _name(self) -> str:
        return self.name or os.environ.get(LEARNER, "").strip()

    @fitting
    def numbers(self, number: str) -> str:
        """What an exercise gives, the learner's own numbers where there are such. Print it.

        Raises ArgumentError for a number that no exercise has.
        """
        exercise = self.find(number, "numbers")
        return f"{number}: {exercise.numbers or 'all have the same numbers, those of the text'}"

    def add(self, *exercises: Exercise) -> None:
        """Make exercises of one's own known to `check`, `hint` and `par` of this session, by their numbers.

        Raises ArgumentError for a number of the course's, and for anything but an Exercise.
        """
        for exercise in exercises:
            number = exercise.number if isinstance(exercise, Exercise) else None
            if not isinstance(number, str) or not number or number in {e.number for e in all_exercises()}:
                allowed = 'An Exercise with a number of its own, such as Exercise("my.1", ...)'
                raise ArgumentError(shorten(exercise if number is None else number), where="add", allowed=allowed)
            self.added[number] = exercise

    def find(self, number: str, where: str) -> Exercise:
        """One's own exercise or one of the course's. Raises ArgumentError."""
        if IN_BROWSER and self.before is None:
            self.before = {}
            recall(self)
        added = self.added.get(number) if isinstance(number, str) else None
        return (added or get_exercise(number, where)).of(self._name)

    @fitting
    def check(self, number: str, answer: Any = None, **given: Any) -> Verdict:
        """The verdict on an answer, part by part.

            check("02.1", ring_reduce_scatter)
            check("02.3", {"ring": ring_s, "switch": switch_bytes, "half_size_bytes": 4096}, fit=fit)

        number  of the exercise
        answer  a function, a number or a dict of them, as the exercise says
        given   further things that the exercise asks for

        A wrong answer raises nothing: a function that raises is a failed part with its file and line, and one that
        does not end is stopped. `check(...).assert_passed()` raises AssertionError, for automatic graders.

        Raises ArgumentError for a number that no exercise has.
        """
        exercise = self.find(number, "check")
        verdict = self._beyond(exercise, answer)
        if verdict is None:
            verdict = judge(exercise, answer, given, self.seen.get(number, 0))
        self.results[number] = verdict, self.results.get(number, (None, 0))[1] + 1
        parts = {part.name: part for part in verdict.parts}
        if exercise.par is not None and parts[exercise.attempt].passed:
            scored = [part.found for name, part in parts.items() if name.startswith("par") and part.found]
            self.own[number] = "; ".join(scored)
        self._keep()
        return verdict

    def _keep(self) -> None:
        """In a page: a reload forgets the rest."""
        if IN_BROWSER:
            with contextlib.suppress(OSError, DataFileError):  # without a file it works, until the reload
                keep(self)

    def spend(self, number: str, tries: Iterable[Hashable]) -> int:
        """Count tries of a puzzle that counts them; one that was made before costs none. Returns how many are left.

        Raises ArgumentError, and counts none, where there are too many.
        """
        before, runs = self.tried.setdefault(number, {}), self.find(number, "spend").runs
        tried = dict.fromkeys([*before, *tries])
        if len(tried) > runs:
            allowed = f"{runs} different ones, looked at, checked or trained; {runs - len(before)} left"
            raise ArgumentError(f"{len(tried) - len(before)} more", where=f"runs of {number}", allowed=allowed)
        self.tried[number] = tried
        return runs - len(tried)

    def _beyond(self, exercise: Exercise, answer: Any) -> Verdict | None:
        """The verdict on an answer whose runs are more than are left, or None."""
        if exercise.tries is None or exercise.untouched(answer, {}):
            return None
        try:
            tries = tuple(exercise.tries(answer))
        except Exception:  # no answer: the grader says why
            return None
        try:
            self.spend(exercise.number, tries)
        except ArgumentError as error:
            parts = [Part(name, None, points=points) for name, points in exercise.parts]
            parts[0] = replace(parts[0], passed=False, found=str(error))
            return Verdict(exercise.number, exercise.title, tuple(parts), self.seen.get(exercise.number, 0))
        return None

    @fitting
    def par(self, number: str) -> Par:
        """An answer to a puzzle that is at par. It asks for an own attempt first: one that got a score.

        Raises ArgumentError for a number that no puzzle has, and before that attempt.
        """
        exercise = self.find(number, "par")
        if exercise.par is None:
            puzzles = [e.number for e in (*all_exercises(), *self.added.values()) if e.par is not None]
            what = f"exercise {shorten(number)} is not a puzzle"
            raise ArgumentError(what, where="par", allowed=f"One of {', '.join(puzzles)}")
        if number not in self.own:
            what = f"no attempt of your own passes {exercise.attempt!r} yet"
            raise ArgumentError(what, where=f'par("{number}")', hint=f'Hand one in with check("{number}", ...)')
        return Par(number, self.own[number], exercise.par())

    @fitting
    def puzzle_lab(self, number: str, cap: int | None = None) -> Any:
        """The lab of a puzzle, with the learner's own numbers. What would solve it is locked until its par is reached.

        cap  of a puzzle with several: memory for so many micro-batches; the least, unless given

        Raises ArgumentError for a number that no such puzzle has, and for another cap.
        """
        exercise = self.find(number, "puzzle_lab")
        if exercise.lab is None:
            known = ", ".join(e.number for e in all_exercises() if e.lab is not None)
            raise ArgumentError(f"exercise {shorten(number)} has no lab", where="puzzle_lab", allowed=f"One of {known}")
        return exercise.lab(cap)

    @fitting
    def hint(self, number: str, level: int | None = None) -> Hint:
        """The next hint in this session: a question, a place to look, a part of the answer, the answer in words.

        level  one that was given already, from 0 on: shows it again

        Raises ArgumentError for a number that no exercise has, and for a level that is still to come.
        """
        exercise = self.find(number, "hint")
        seen = self.seen.get(number, 0)
        if level is None:
            level = min(seen, len(LADDER) - 1)
            self.seen[number] = level + 1
            self._keep()
        elif not is_int(level, 0, seen - 1):
            none = f'None so far: hint("{number}") gives the first'
            allowed = f"0 to {seen - 1}, the ones you have seen" if seen else none
            raise ArgumentError(f"level={shorten(level)}", where=f'hint("{number}")', allowed=allowed)
        return Hint(number, level, exercise.hints[level])

    def said(self) -> list[dict[str, Any]]:
        """The last verdict on each exercise of this session, as plain data (`Verdict.to_dict` and "attempts")."""
        before = self.before or {}
        said = {}
        for number, (verdict, attempts) in list(self.results.items()):
            said[number] = {**verdict.to_dict(), "attempts": attempts + before.get(number, {}).get("attempts", 0)}
        return list({**before, **said}.values())

    def save_results(self, path: str | os.PathLike[str], learner: str = "") -> None:
        """Write what `check` has said in this session: the last verdict on each exercise, as JSON; in a page the cells
        that were run, too, which are what `parallel-lab grade` judges.

        learner  a name to show; by default the one that was given to `learner`

        Raises OSError where the file cannot be written.
        """
        record = {"format": RESULTS_FORMAT, "version": 1, "learner": learner or self.name, "checks": self.said()}
        record |= {"cells": cells_of(self)} if IN_BROWSER else {}
        Path(path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def judge(exercise: Exercise, answer: Any, given: Mapping[str, Any], hints_seen: int = 0) -> Verdict:
    """The verdict on an answer to this exercise. Raises GradingError, as `Exercise.judge` does."""
    exercise = exercise.asked_by(answer)
    if exercise.untouched(answer, given):
        parts = tuple(Part(name, None, points=points) for name, points in exercise.parts)
        return Verdict(exercise.number, exercise.title, parts, hints_seen, tried=False)
    return Verdict(exercise.number, exercise.title, exercise.judge(answer, **given), hints_seen)


def judge_drawn(exercise: Exercise, answer: Any, given: Mapping[str, Any], seed: int) -> Verdict:
    """`judge`, for marks: a part passes that also passes on drawn inputs, where the exercise has such.

    seed  of the inputs. Raises GradingError.
    """
    exercise = exercise.asked_by(answer)
    verdict = judge(exercise, answer, given)
    return replace(verdict, parts=tuple(_on_drawn(exercise, part, answer, given, seed) for part in verdict.parts))


def _on_drawn(exercise: Exercise, part: Part, answer: Any, given: Mapping[str, Any], seed: int) -> Part:
    drawn, rng = exercise.drawn.get(part.name), np.random.default_rng(seed)
    if not part.passed or drawn is None:
        return part
    try:
        with in_own_process(answer, given) as (stand_in, _), deadline(LIMIT_S):
            for _ in range(DRAWS):
                drawn(stand_in, rng)
    except Exception as error:
        if is_machine_fault(error, drawn):
            what = f"{type(error).__name__}: {error}"
            raise GradingError(what, where=f"grader of {exercise.number}", hint=FAULT_HINT) from error
        failed = _failed(error, answer).part(part.name)
        return replace(failed, points=part.points, note=f"Right for what check shows, but not for this. {failed.note}")
    return part


# State of the module, as the context is: a notebook has one learner, and check() and hint() are called by plain names
# in its cells.
_DESK = Desk()
check, hint, par, add, puzzle_lab = _DESK.check, _DESK.hint, _DESK.par, _DESK.add, _DESK.puzzle_lab
save_results, results = _DESK.save_results, _DESK.said
learner, numbers, spend = _DESK.learner, _DESK.numbers, _DESK.spend


def _lessons() -> Iterator[str]:
    for path in sorted(_LESSONS.glob("lesson_*.py")):
        yield path.stem.partition("_")[2]


def all_exercises() -> tuple[Exercise, ...]:
    """The exercises of all lessons, in order."""
    return tuple(e for lesson in _lessons() for e in _exercises_of(lesson))


def _exercises_of(lesson: str) -> tuple[Exercise, ...]:
    return importlib.import_module(f".lesson_{lesson}", __package__).EXERCISES


def get_exercise(number: str, where: str = "check") -> Exercise:
    """The exercise with this number. Raises ArgumentError, with the nearest numbers, for another one.

    where  the function that was called, for the error
    """
    lesson = number[:2] if isinstance(number, str) and re.fullmatch(r"\d\d\.\d+", number) else ""
    matching = [e for e in _exercises_of(lesson) if e.number == number] if lesson in _lessons() else []
    if not matching:
        known = [e.number for e in all_exercises()]
        near = difflib.get_close_matches(str(number), known, 3) or known
        what = f"exercise {shorten(number)}"
        raise ArgumentError(what, where=where, allowed=f"A number in quotation marks, such as {', '.join(near)}")
    return matching[0]
