"""What `check`, `hint` and `par` answer, as text and HTML: verdicts part by part, one step of a ladder of hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...base.errors import escape
from ...base.units import plural

LADDER = ("a question", "a place to look", "a part of the answer", "the answer in words")  # hint levels 0 to 3
# bars next to the text, never the only sign; of middle lightness, so that they stand out on white and on near-black
_BARS = {True: "#2f9e63", False: "#d0493f", None: "#8a929b"}
_MARKS = {True: ("✓", "passed"), False: ("✗", "not yet"), None: ("–", "not judged")}


class Note(str):
    """What the learner reads about a wrong answer, and the name of the misconception it comes from (`ideas.py`)."""

    idea: str

    def __new__(cls, text: str, idea: str = "") -> Note:
        note = super().__new__(cls, text)
        note.idea = idea
        return note


@dataclass(frozen=True)
class Part:
    """The verdict on one part of an answer.

    name      of the exercise's parts, or words for what went wrong
    passed    True or False; None: it could not be judged, because an earlier part failed
    found     what the answer gave, counted or computed by the engine
    expected  what it should be, with the formula or rule that says so: shown once a hint was asked for
    note      what a wrong answer is an answer to, where that is known; a `Note` has the misconception's name, too
    rank      the first rank that is wrong, where that applies
    op        the first call or tensor that is wrong, such as `send 2 -> 3 at cell:7`
    points    what it is worth
    form      the form that an answer must have, if this one has another: always shown
    """

    name: str
    passed: bool | None
    found: str = ""
    expected: str = ""
    note: str = ""
    rank: int | None = None
    op: str = ""
    points: int = 1
    form: str = ""

    @property
    def idea(self) -> str:
        """The name of the misconception that the answer comes from; empty where none is recognised."""
        return getattr(self.note, "idea", "")

    @property
    def earned(self) -> int:
        """All of its points, or none."""
        return self.points if self.passed else 0

    @property
    def where(self) -> str:
        """`rank 2, send 2 -> 3`; empty where neither is known."""
        return ", ".join(filter(None, ("" if self.rank is None else f"rank {self.rank}", self.op)))


class Wrong(Exception):
    """Raised by a grader where it finds what is wrong; the arguments are those of the failed `Part`."""

    def __init__(
        self, found: str, expected: str = "", note: str = "", rank: int | None = None, op: str = "", *, form: str = ""
    ) -> None:
        super().__init__(found, expected, note, rank, op)
        self.form = form

    def part(self, name: str) -> Part:
        return Part(name, False, *self.args, form=self.form)


def judged(name: str, judge: Callable[..., str], *given: Any) -> Part:
    """The part `name`: passed, with what `judge(*given)` returns as found; failed if that raises Wrong."""
    try:
        return Part(name, True, judge(*given))
    except Wrong as wrong:
        return wrong.part(name)


def reached(name: str, passed: object, found: str, expected: str, note: str = "") -> Part:
    """The part `name`: whether a limit is reached; the note is for an answer that does not reach it."""
    return Part(name, bool(passed), found, expected, "" if passed else note)


@dataclass(frozen=True)
class Verdict:
    """The verdict on an answer: true when every part that is worth points passed.

    hints_seen  hints of it given in this session: from the first on, `expected` is shown
    tried       False for the answer that the exercise begins with: no part of it is judged
    """

    exercise: str
    title: str
    parts: tuple[Part, ...]
    hints_seen: int = 0
    tried: bool = True

    @property
    def passed(self) -> bool:
        """Whether every part passed that is worth points: the others are a bonus."""
        return all(part.passed or not part.points for part in self.parts)

    @property
    def points(self) -> int:
        """Points of the parts that passed."""
        return sum(part.earned for part in self.parts)

    @property
    def max_points(self) -> int:
        """Points of all parts."""
        return sum(part.points for part in self.parts)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def first_failure(self) -> Part | None:
        """The first part that did not pass."""
        return next((part for part in self.parts if not part.passed), None)

    def assert_passed(self) -> None:
        """Raise AssertionError with the verdict as its text unless every part passed: what nbgrader needs."""
        if not self.passed:
            error = AssertionError(str(self))
            # a notebook shows one line of it, and none of this file: check(...) itself shows the parts
            error._render_traceback_ = lambda: [f"AssertionError: {self.headline}"]  # type: ignore[attr-defined]
            raise error

    # ---- words ----

    @property
    def headline(self) -> str:
        """One line: exercise, verdict, points."""
        if not self.tried:
            return f"Exercise {self.exercise}, {self.title}: not tried yet, {self.max_points} points to earn"
        some = f"{sum(bool(p.passed) for p in self.parts)} of {plural(len(self.parts), 'part')} passed"
        done = "passed" if self.passed else some
        return f"Exercise {self.exercise}, {self.title}: {done}, {self.points} of {self.max_points} points"

    @property
    def offer(self) -> str:
        """What to call for help; empty when nothing is missing."""
        if self.passed:
            return ""
        if not self.tried:
            text = "This is still the answer that the exercise begins with. Change it and run the cell again; "
            return text + f'hint("{self.exercise}") helps you begin.'
        seen = min(self.hints_seen, len(LADDER))
        if seen == len(LADDER):
            text = f'You have seen all hints; hint("{self.exercise}", level=0) shows the first again, '
            return text + f"level={len(LADDER) - 1} the last."
        after = "" if seen else " From then on a verdict also says what was expected."
        return f'hint("{self.exercise}") gives {LADDER[seen]} ({seen} of {len(LADDER)} hints seen).{after}'

    def __str__(self) -> str:
        lines = [self.headline]
        for part in self.parts if self.tried else ():
            mark, word = _MARKS[part.passed]
            rows = self._rows(part)
            where = f" ({part.where})" if part.where and not part.passed and rows else ""
            lines.append(f"  {mark} {part.name}: {word}{where}")
            lines += [f"      {title}: {text}".replace("\n", "\n      ") for title, text in rows]
        return "\n".join([*lines, *filter(None, (self.offer,))])

    __repr__ = __str__

    def _rows(self, part: Part) -> list[tuple[str, str]]:
        """One diagnosis at a time: that of the first wrong part. What was expected appears after the first hint."""
        rows = [("found", part.found), ("note", part.note)]
        if not part.passed:
            if part is not next((p for p in self.parts if p.passed is False), None):
                return []
            rows[1:1] = [("form", part.form), ("expected", part.expected if self.hints_seen else "")]
        return [(title, text) for title, text in rows if text]

    def to_dict(self) -> dict[str, Any]:
        """As plain data: what `save_results` writes of it (its form is in the package's docstring)."""
        parts = [
            {"name": p.name, "passed": p.passed, "points": p.points, "earned": p.earned, "idea": p.idea, "note": p.note}
            for p in self.parts
        ]
        record = {"exercise": self.exercise, "title": self.title, "tried": self.tried, "hints": self.hints_seen}
        return {**record, "points": self.points, "max_points": self.max_points, "parts": parts}

    def _repr_html_(self) -> str:
        if not self.tried:
            style = f"border-left:4px solid {_BARS[None]};padding-left:8px;margin:4px 0;max-width:100ch"
            return f"<p role='status' style='{style}'>{escape(self.headline)}. {escape(self.offer)}</p>"
        blocks = []
        for part in self.parts:
            mark, word = _MARKS[part.passed]
            rows_of = self._rows(part)
            where = f" ({escape(part.where)})" if part.where and not part.passed and rows_of else ""
            rows = "".join(
                f"<div style='margin-left:1.4em;white-space:pre-wrap;overflow-wrap:anywhere'>{escape(title)}: "
                f"{escape(text)}</div>"
                for title, text in rows_of
            )
            style = f"list-style:none;margin:4px 0;padding-left:8px;border-left:4px solid {_BARS[part.passed]}"
            blocks.append(f"<li style='{style}'><b>{mark} {escape(part.name)}</b>: {word}{where}{rows}</li>")
        offer = f"<p style='margin:4px 0'>{escape(self.offer)}</p>" if self.offer else ""
        body = f"<ul style='margin:4px 0;padding:0'>{''.join(blocks)}</ul>{offer}"
        head = f"<p style='margin:4px 0'><b>{escape(self.headline)}</b></p>"
        return f"<div role='status' style='color:inherit;max-width:100ch'>{head}{body}</div>"


@dataclass(frozen=True)
class Par:
    """An answer to a puzzle that is at par, as text, next to the best of the learner's own."""

    exercise: str
    yours: str
    text: str

    def __str__(self) -> str:
        return f"Exercise {self.exercise}, yours: {self.yours}\nAt par:\n{self.text}"

    __repr__ = __str__


@dataclass(frozen=True)
class Hint:
    """One step of the ladder.  level: 0 a question, 1 a place to look, 2 a part of the answer, 3 in words."""

    exercise: str
    level: int
    text: str

    def __str__(self) -> str:
        more = f' hint("{self.exercise}") gives {LADDER[self.level + 1]}.' if self.level + 1 < len(LADDER) else ""
        text = f"Exercise {self.exercise}, hint {self.level + 1} of {len(LADDER)} ({LADDER[self.level]}): "
        return text + f"{self.text}{more}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, _, rest = str(self).partition(": ")
        style = f"border-left:4px solid {_BARS[None]};padding-left:8px;max-width:100ch"
        return f"<p style='{style}'><b>{escape(head)}:</b> {escape(rest)}</p>"
