"""What `check`, `hint` and `par` answer, as text and HTML: verdicts part by part, one step of a ladder of hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...base.errors import escape

LADDER = ("a question", "a place to look", "a part of the answer", "the answer in words")  # hint levels 0 to 3
# bars beside the text, never the only sign; of middle lightness, so that they stand out on white and on near-black
_BARS = {True: "#2f9e63", False: "#d0493f", None: "#8a929b"}
_MARKS = {True: ("✓", "passed"), False: ("✗", "not yet"), None: ("–", "not judged")}


@dataclass(frozen=True)
class Part:
    """The verdict on one part of an answer.

    name      of the exercise's parts, or words for what went wrong
    passed    True or False; None: it could not be judged, because an earlier part failed
    found     what the answer gave, counted or computed by the engine
    expected  what it should be, with the formula or rule that says so
    note      what a wrong answer is an answer to, where that is known
    rank      the first rank that is wrong, where that applies
    op        the first call or tensor that is wrong, such as `send 2 -> 3 at cell:7`
    points    what it is worth
    """

    name: str
    passed: bool | None
    found: str = ""
    expected: str = ""
    note: str = ""
    rank: int | None = None
    op: str = ""
    points: int = 1

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

    def __init__(self, found: str, expected: str = "", note: str = "", rank: int | None = None, op: str = "") -> None:
        super().__init__(found, expected, note, rank, op)

    def part(self, name: str) -> Part:
        return Part(name, False, *self.args)


def judged(name: str, judge: Callable[..., str], *given: Any) -> Part:
    """The part `name`: passed, with what `judge(*given)` returns as found; failed if that raises Wrong."""
    try:
        return Part(name, True, judge(*given))
    except Wrong as wrong:
        return wrong.part(name)


@dataclass(frozen=True)
class Verdict:
    """The verdict on an answer: true when every part passed. `hints_seen`: hints of it given in this session."""

    exercise: str
    title: str
    parts: tuple[Part, ...]
    hints_seen: int = 0

    @property
    def passed(self) -> bool:
        """Whether every part passed."""
        return all(part.passed for part in self.parts)

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
        done = (
            "passed" if self.passed else f"{sum(bool(p.passed) for p in self.parts)} of {len(self.parts)} parts passed"
        )
        return f"Exercise {self.exercise}, {self.title}: {done}, {self.points} of {self.max_points} points"

    @property
    def offer(self) -> str:
        """What to call for help; empty when nothing is missing."""
        if self.passed:
            return ""
        seen = min(self.hints_seen, len(LADDER))
        if seen == len(LADDER):
            text = f'All hints were given; hint("{self.exercise}", level=0) shows the first again, '
            return text + f"level={len(LADDER) - 1} the last."
        return f'hint("{self.exercise}") gives {LADDER[seen]} ({seen} of {len(LADDER)} hints seen).'

    def __str__(self) -> str:
        lines = [self.headline]
        for part in self.parts:
            mark, word = _MARKS[part.passed]
            lines.append(
                f"  {mark} {part.name}: {word}" + (f" ({part.where})" if part.where and not part.passed else "")
            )
            lines += [f"      {title}: {text}".replace("\n", "\n      ") for title, text in self._rows(part)]
        return "\n".join([*lines, *filter(None, (self.offer,))])

    __repr__ = __str__

    @staticmethod
    def _rows(part: Part) -> list[tuple[str, str]]:
        rows = [("found", part.found), ("expected", "" if part.passed else part.expected), ("note", part.note)]
        return [(title, text) for title, text in rows if text]

    def _repr_html_(self) -> str:
        blocks = []
        for part in self.parts:
            mark, word = _MARKS[part.passed]
            where = f" ({escape(part.where)})" if part.where and not part.passed else ""
            rows = "".join(
                f"<div style='margin-left:1.4em;white-space:pre-wrap;overflow-wrap:anywhere'>{escape(title)}: "
                f"{escape(text)}</div>"
                for title, text in self._rows(part)
            )
            style = f"list-style:none;margin:4px 0;padding-left:8px;border-left:4px solid {_BARS[part.passed]}"
            blocks.append(f"<li style='{style}'><b>{mark} {escape(part.name)}</b>: {word}{where}{rows}</li>")
        offer = f"<p style='margin:4px 0'>{escape(self.offer)}</p>" if self.offer else ""
        body = f"<ul style='margin:4px 0;padding:0'>{''.join(blocks)}</ul>{offer}"
        head = f"<p style='margin:4px 0'><b>{escape(self.headline)}</b></p>"
        return f"<div role='status' style='color:inherit;max-width:100ch'>{head}{body}</div>"


@dataclass(frozen=True)
class Par:
    """An answer to a puzzle that is at par, as text, beside the best of the learner's own."""

    exercise: str
    yours: str
    text: str

    def __str__(self) -> str:
        return f"Exercise {self.exercise}, yours: {self.yours}\nAt par, one of several:\n{self.text}"

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
