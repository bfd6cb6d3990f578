"""Predict first, in a view: a lab asks before it shows.

    lab = CollectiveStepper("all_reduce", "ring", 4)
    lab.set_predict(True)           # "How many rounds ...?", and what answers it is covered
    lab.answer(lab.question().key, 6)
    lab.predictions()               # what was answered, next to what is right and why

A lab says what it would ask now (`Lab.questions`); it asks one question at a time. One that was answered, or skipped,
is never asked again, and another one only when something else is looked at, or on demand (`ask`). Answers are kept
before anything is shown; the first one counts. Asking is a switch of each lab (`set_predict`), off at first;
PARALLEL_LAB_PREDICT=on or off sets it for all labs of a process.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...base.checks import flag, number
from ...base.errors import ArgumentError, shorten
from .prediction import Comparison, keep_answer
from .settings import ModelWithSettings

VARIABLE = "PARALLEL_LAB_PREDICT"
COMMANDS = ("set_predict", "answer", "skip", "ask")
Answer = int | float | str | None  # None: skipped


def asks_at_first() -> bool:
    """Whether labs that are made now ask first. Raises ArgumentError for a variable that is neither on nor off."""
    switch = os.environ.get(VARIABLE, "off").strip().lower()
    if switch not in ("on", "off"):
        raise ArgumentError(f"{VARIABLE}={switch!r}", where="predict first", allowed="on or off")
    return switch == "on"


@dataclass(frozen=True)
class Question:
    """What a lab asks.

    key      what it is about, in the present settings: the answer is kept under it
    text     the question, with the unit of its answer;  unit: after the field that it is typed into
    right    the answers that are right;  within: so far off, as a share, is right as well
    why      how one gets there
    by       "": it is typed; else the command of what is clicked: "select_rank" (a card), "select_tensor" (an edge)
    choices  what can be chosen, where nothing is typed or clicked in the picture
    listed   several whole numbers are typed, a shape or ranks; such an answer is kept as text, "(8, 16)"
    hides    parts of the view that show the answer
    names    what answers are called where they are shown: (a tensor, its name in the lab)
    about    what is said of a wrong answer instead of `why`
    """

    key: str
    text: str
    right: tuple[Any, ...]
    why: str
    by: str = ""
    unit: str = ""
    within: float = 0.0
    hides: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    choices: tuple[str, ...] = ()
    listed: bool = False
    about: Callable[[Answer], str] | None = None

    def named(self, answer: Answer) -> Answer:
        """The answer as it is shown."""
        return answer if answer is None else dict(self.names).get(str(answer), answer)

    def is_right(self, answer: Answer) -> bool:
        if answer is None or isinstance(answer, str) or self.by:
            return answer in self.right
        return any(math.isclose(answer, right, rel_tol=self.within, abs_tol=0.0) for right in self.right)

    def read(self, answer: Any, where: str) -> Answer:
        """An answer as it is kept. Raises ArgumentError if the value cannot be an answer."""
        if self.choices and answer not in self.choices:
            raise ArgumentError(shorten(answer), where=where, allowed=", ".join(self.choices))
        if self.listed:
            numbers = re.findall(r"-?\d+", shorten(answer))
            if not numbers:
                raise ArgumentError(shorten(answer), where=where, allowed="Whole numbers, such as 8, 16")
            return f"({', '.join(numbers)})"
        if isinstance(self.right[0], str):
            return str(answer)
        value = number()(where, "answer", answer)
        return int(value) if value == int(value) else value

    def shown(self, answers: Mapping[str, Answer]) -> dict[str, Any]:
        """For a snapshot; "yours" is there once it is answered or skipped."""
        facts = {"key": self.key, "text": self.text, "by": self.by, "unit": self.unit, "hides": list(self.hides)}
        facts |= {"right": list(self.right), "within": self.within, "why": self.why, "names": dict(self.names)}
        facts |= {"choices": list(self.choices), "listed": self.listed}
        if self.key in answers:
            yours, right = answers[self.key], self.is_right(answers[self.key])
            facts |= {"yours": yours, "verdict": "right" if right else Comparison.verdict(yours, None)}
            if self.about is not None and yours is not None and not right:
                facts["why"] = self.about(yours)
        return facts


class ModelWithQuestions(ModelWithSettings):
    """A model that can ask before it shows; off at first."""

    def __init__(self, **shown: Any) -> None:
        super().__init__(**shown)
        self._predict = asks_at_first()
        self._answers: dict[str, Answer] = {}
        self._asked: dict[str, Question] = {}
        self._quiet: list[str] = []  # the keys among which one was just answered
        self._first: tuple[Question, ...] = ()
        self._most = math.inf  # answers, until it asks no more by itself

    def questions(self) -> Iterable[Question]:
        """What could be asked now, the first first."""
        return ()

    def ask_first(self, questions: Iterable[Question] = (), most: int = 3) -> None:
        """Ask, and begin with a lesson's questions, one after the other.  most: so many; then only on demand (`ask`)"""
        self._first, self._most = tuple(questions), len(self._answers) + most
        self.set_predict(True)

    def _listed(self) -> list[Question]:
        return [*self._first, *self.questions()]

    def question(self) -> Question | None:
        """The one that is open: what it hides is not shown; None where nothing is asked."""
        return self._open(self._listed()) if self._predict else None

    def _open(self, questions: list[Question]) -> Question | None:
        only = self._first if [q.key for q in questions] == self._quiet else questions  # a lesson's follow at once
        waits = (q for q in questions if q.key not in self._answers and q in only)
        return next(waits, None) if len(self._answers) < self._most else None

    @property
    def answers(self) -> dict[str, Answer]:
        """What was answered so far, by key; None: skipped."""
        return dict(self._answers)

    def set_predict(self, on: bool) -> None:
        """Whether the lab asks before it shows. Answers stay."""
        self._predict = flag(type(self).__name__, "predict", on)
        self._changed("picture")

    def answer(self, key: str, value: int | float | str) -> None:
        """Answer the open question. Raises ArgumentError for another one (an answer that is kept stays), or if the
        value cannot be an answer.
        """
        self._keep(key, lambda question, where: question.read(value, where), "answer")

    def skip(self, key: str) -> None:
        """Show it without an answer."""
        self._keep(key, lambda question, where: None, "skip")

    def ask(self) -> None:
        """Ask the next question, if there is one."""
        self._quiet, self._most = [], max(self._most, len(self._answers) + 1)
        self._changed("picture")

    def _keep(self, key: str, read: Any, command: str) -> None:
        where = f"{type(self).__name__}.{command}"
        with self._lock:
            question = self.question()
            if question is None or question.key != key:
                allowed = "Nothing is asked" if question is None else f"The open one is {question.key!r}"
                raise ArgumentError(f"question {key!r} is not open", where=where, allowed=allowed)
            self._answers[key], self._asked[key] = read(question, where), question
            if not self.is_branch:
                keep_answer(self.answered()[-1])
            self._quiet = [q.key for q in self._listed()]
        self._changed("picture")

    def asked(self) -> dict[str, Any]:
        """For the snapshot: whether it asks, the open question, and the last answer about what is shown."""
        questions = self._listed() if self._predict else []
        opened, mine = self._open(questions), {q.key: q for q in questions}
        last = next((mine[key] for key in reversed(self._answers) if key in mine), None)
        shown = {"open": opened and opened.shown(self._answers), "last": last and last.shown(self._answers)}
        more = opened is None and not mine.keys() <= self._answers.keys()
        then = (
            opened in self._first and last in self._first
        )  # a lesson's next one: of the last it is said what is right
        return {"on": self._predict, **shown, "more": more, "then": then, "answers": dict(self._answers)}

    def answered(self) -> list[dict[str, Any]]:
        """The same as plain data: {"key", "text", "yours", "right"}, as they are shown; "yours" is None if skipped."""
        return [
            {"key": key, "text": q.text, "yours": q.named(self._answers[key]), "right": [*map(q.named, q.right)]}
            for key, q in self._asked.items()
        ]

    def predictions(self) -> Comparison:
        """All questions that were answered here, with what is right and why."""
        rows = []
        for key, question in self._asked.items():
            yours, right = self._answers[key], question.right[0]
            right = yours if question.is_right(yours) else right
            rows.append((question.text, question.named(yours), question.named(right), None, question.why))
        return Comparison(tuple(rows))
