"""What a class's answers say about the exercises, not about the learners: item analysis, and the table of a class.

    for item in analysed(roll):
        print(item.exercise, item.difficulty, item.discrimination)

Difficulty: the mean share of its points that those who tried it earned; 0.9 is easy, 0.2 hard (item difficulty p of
classical test theory; Crocker and Algina 1986, chapter 14). Discrimination: Pearson's correlation between that share
and the learner's share of the points of all *other* exercises that they tried (corrected item-total correlation,
Henrysson 1963; of an exercise worth one point it is the point-biserial one). Near 0 or below, an exercise is passed by
strong and weak learners alike: look at its wording first. Ebel (1965) calls 0.4 very good, and below 0.2 poor.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..grading.submissions import harmless
from .roll import Roll

FEWEST = 5  # learners: a correlation of fewer says nothing
HEAD = ("exercise", "tried by", "difficulty", "discrimination", "most frequent misconception")
COLUMNS = ("learner", "kind", "name", "value", "out of", "note")  # of the CSV


@dataclass(frozen=True)
class Item:
    """An exercise.  difficulty: 0 to 1, the mean share of its points; discrimination: -1 to 1, None where fewer than
    FEWEST learners have points in others, too, or all have the same;  idea: the misconception that most came upon, and
    how many
    """

    exercise: str
    learners: int
    difficulty: float
    discrimination: float | None
    idea: tuple[str, int] | None = None

    def cells(self) -> tuple[str, ...]:
        """As texts, by HEAD."""
        r = "-" if self.discrimination is None else f"{self.discrimination:.2f}"
        idea = f"{self.idea[0]} ({self.idea[1]})" if self.idea else "-"
        return self.exercise, str(self.learners), f"{self.difficulty:.2f}", r, idea


def analysed(roll: Roll) -> list[Item]:
    """Every exercise that somebody tried, in order."""
    found = []
    for number, row in sorted(roll.points.items()):
        shares = {who: got / most for who, (got, most) in row.items() if most}
        if not shares:
            continue
        pairs = [(share, rest) for who, share in shares.items() if (rest := _rest(roll, who, number)) is not None]
        ideas = ((idea, sum(number in numbers for numbers in who.values())) for idea, who in roll.ideas.items())
        idea = max((one for one in ideas if one[1]), key=lambda one: one[1], default=None)
        difficulty = sum(shares.values()) / len(shares)
        found.append(Item(number, len(shares), difficulty, _correlation(pairs), idea))
    return found


def _rest(roll: Roll, learner: str, number: str) -> float | None:
    """A learner's share of the points of all other exercises that they tried."""
    others = [row[learner] for other, row in roll.points.items() if other != number and learner in row]
    most = sum(most for _, most in others)
    return sum(got for got, _ in others) / most if most else None


def _correlation(pairs: list[tuple[float, float]]) -> float | None:
    if len(pairs) < FEWEST or any(np.ptp(one) < 1e-12 for one in zip(*pairs, strict=True)):
        return None
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


def class_csv(roll: Roll) -> str:
    """A row for each exercise and each prediction of each learner. Cells that a spreadsheet would take for a formula
    begin with '.
    """
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    writer.writerows(map(harmless, row) for row in _rows(roll))
    return file.getvalue()


def _rows(roll: Roll) -> Iterator[tuple[str | int, ...]]:
    for learner in roll.learners:
        for number, row in sorted(roll.points.items()):
            if learner in row:
                ideas = (idea for idea, who in roll.ideas.items() if number in who.get(learner, ()))
                yield learner, "exercise", number, *row[learner], "; ".join(ideas)
        for question, answers in roll.answers.items():
            if learner in answers:
                note = "right" if answers[learner] in roll.right[question] else ""
                yield learner, "prediction", question, answers[learner], "", note
