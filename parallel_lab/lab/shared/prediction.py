"""Predict first: what a learner expects, kept before the reveal, then compared with what a formula or a plan says and
what was counted.

    Comparison.of(prediction, rounds=("rounds in a ring", 6, counted, "3 to add up, 3 to hand out"))

A question that is still open keeps its answer covered (`show=True` uncovers it). A wrong answer that is a known
misconception is answered with the reason, not only with the right number. The first answer to each question of a lesson
is kept for the class (`first_answers`): it was given before the reveal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, escape, shorten
from ...base.units import table_lines
from .sections import html_table

COVERED = "?"  # what an open question shows


class Predicted(Mapping[str, Any]):
    """Answers that hear for which of them it is shown what is right."""

    @abstractmethod
    def compared(self, names: list[str]) -> None:
        """What is right is shown for these."""


@dataclass(frozen=True)
class Comparison:
    """Rows of (question, your answer, what the plan says, what was counted, why). Prints as a table.

    show  whether open questions, those whose answer is None, show what is right
    """

    rows: tuple[tuple[str, Any, Any, Any, str], ...]
    show: bool = True

    @classmethod
    def of(
        cls, answers: Mapping[str, Any], *, show: bool = False, lesson: str = "", **rows: tuple[str, Any, Any, str]
    ) -> Comparison:
        """Rows of (question, by formula, counted, why), each with the answer of its key; None was left open.

            Comparison.of(prediction, rounds=("rounds in a ring", 6, counted, "3 to add up, 3 to hand out"))

        lesson  its number, such as "02": the first answers are kept for `hand_in`; "" keeps none
        The last may be a dict: what is wrong with an answer, by the answer, and under None the text for any other.
        `counted` may be a function: it is called only where it is shown, so that an open question costs nothing.

        Raises ArgumentError for answers that are no dict, and for a key without an answer.
        """
        known = list(answers) if isinstance(answers, Mapping) else []
        missing = [key for key in rows if key not in known]
        if missing:
            what = f"no answer {missing[0]!r}" if known else f"prediction={shorten(answers)}"
            raise ArgumentError(what, where="compare", allowed=f"A dict with {', '.join(rows)}; None leaves one open")
        compared = []
        for key, (question, right, counted, why) in rows.items():
            shown = show or answers[key] is not None
            compared.append((question, answers[key], right, _counted(counted) if shown else None, why))
        if isinstance(answers, Predicted):
            answers.compared([key for key in rows if show or answers[key] is not None])
        return cls(tuple(compared), show).kept(lesson)

    def kept(self, lesson: str) -> Comparison:
        """The same; the answers that are new are kept for `hand_in`, unless the lesson is ""."""
        return _FIRST.keep(lesson, self)

    @staticmethod
    def verdict(yours: Any, right: Any) -> str:
        """ "no answer", "right" or "not yet"."""
        return "no answer" if yours is None else "right" if _same(yours, right) else "not yet"

    @property
    def open(self) -> int:
        """Questions without an answer, whose right answers are covered."""
        return 0 if self.show else sum(row[1] is None for row in self.rows)

    @property
    def ask(self) -> str:
        """What to do about open questions; empty where all are answered."""
        if not self.open:
            return ""
        count = "Predict first: no question" if self.open == len(self.rows) else f"{self.open} question"
        some = " has an answer yet" if self.open == len(self.rows) else f"{'s are' if self.open > 1 else ' is'} open"
        return f"{count}{some}. Answer above, and run this cell again; show=True uncovers the rest."

    def _cells(self) -> list[tuple[str, ...]]:
        cells = []
        for question, yours, plan_says, counted, why in self.rows:
            verdict = self.verdict(yours, plan_says)
            if yours is None and not self.show:
                cells.append((question, "-", COVERED, COVERED, "open", ""))
                continue
            why = "" if verdict == "right" else _about(yours, why)
            cells.append((question, _text(yours), _text(plan_says), _text(counted), verdict, why))
        return cells

    def __str__(self) -> str:
        lines = table_lines([("", "you", "plan (predicted)", "run (counted)", "verdict", ""), *self._cells()])
        return "\n".join([*lines, *filter(None, (self.ask,))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        titles = ("question", "you", "plan (predicted)", "run (counted)", "verdict", "why")
        # an answer such as (8, 16) stays in one line
        table = html_table(titles, self._cells(), ["", *[";white-space:nowrap"] * 4, ""])
        return table + (f"<p role='status'>{escape(self.ask)}</p>" if self.ask else "")


class FirstAnswers:
    """For each question of a lesson the answer that was compared first: every later one has seen what is right."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    def keep(self, lesson: str, comparison: Comparison) -> Comparison:
        """Keep the answers that are new, unless the lesson is ""; returns the comparison. An open question that is
        shown counts as skipped.
        """
        for question, yours, right, *_ in comparison.rows if lesson else ():
            if yours is not None or comparison.show:
                text = f"Lesson {lesson}: {question}"
                answer = None if yours is None else _said(right if _same(yours, right) else alike(yours))
                entry = {"key": f"{text} = {_said(right)}", "text": text, "yours": answer, "right": [_said(right)]}
                kept = self._kept.setdefault(text, entry)
                kept["right"] = kept["right"] or entry["right"]
        return comparison

    def add(self, entry: dict[str, Any]) -> None:
        """Keep what was answered in a view, in the form of `said`; where nothing is known yet of what is right, the
        last answer counts.
        """
        if not self._kept.get(entry["key"], {}).get("right"):
            self._kept[entry["key"]] = entry

    def said(self) -> list[dict[str, Any]]:
        """As plain data, as `Lab.answered` has those of a lab: {"key", "text", "yours", "right"}, answers as text."""
        return list(self._kept.values())


# State of the module, as the exercises' desk is: a notebook has one learner.
_FIRST = FirstAnswers()
first_answers, keep_answer = _FIRST.said, _FIRST.add


def alike(value: Any) -> Any:
    """An answer as it is counted: (8, 16) for [8, 16] or an array, 7 for 7.0; anything else as it is."""
    value = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(value, list | tuple):
        return tuple(map(alike, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _said(value: Any) -> str:
    """Any answer as a short text that every file can hold."""
    text = value if isinstance(value, str) else shorten(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _about(yours: Any, why: str | Mapping[Any, str]) -> str:
    """The text for a wrong answer: for this one, if it is that of a known wrong model, else for any."""
    if isinstance(why, str):
        return why
    known = (text for wrong, text in why.items() if wrong is not None and _same(yours, wrong))
    return next(known, why[None])


def _counted(counted: Any) -> Any:
    return counted() if isinstance(counted, Callable) else counted


def _same(yours: Any, right: Any) -> bool:
    """[8, 16] is as good as (8, 16), 7.0 as 7, and an array of one number as the number."""
    try:
        return bool(yours == right) or (not isinstance(yours, str) and tuple(yours) == right)
    except (TypeError, ValueError):
        return False


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
