"""A live class: who has joined, what their notebooks have said, and what the teacher has revealed. It knows no network
(server.py brings the requests).

What counts of a message: exercises, points and misconceptions that this package knows; of predictions the first answer
to each question, unless it came after the reveal, each text as one printable line of at most MOST_TEXT characters.
Everything else is left out, or refused as a whole, and the size of all is bounded.

All of it is self-reported: a learner's process can say what it likes. Marks come from `parallel-lab grade`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ...base.checks import is_int
from ...base.errors import DataFileError, ParallelLabError
from ..exercises import MISCONCEPTIONS, all_exercises
from ..grading.submissions import printable
from .roll import FORMAT, LIST, MOST_TEXT, Collected, Roll, question_id, shorten_text, take

MOST_LEARNERS, MOST_NAME = 200, 40
MOST_ANSWERS, MOST_QUESTIONS, MOST_RIGHT = 100, 200, 4  # of a learner; of the class; right ones to a question
SILENT_S = 30.0  # notebooks are heard from every 10 s: one that was not may be joined again under its name
LETTERS = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"  # of a code: none is taken for another
FORMS = (ParallelLabError, KeyError, TypeError, ValueError, AttributeError)  # of what has another form


class NotJoined(ParallelLabError, PermissionError):
    """A code or a key that the class does not know."""


@dataclass
class _Place:
    """A learner.  number: of the last message;  answers: by question"""

    name: str
    address: str
    heard: float
    number: int = -1
    checks: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)


class LiveClass:
    """A class while it runs.  code: what learners join with;  token: the teacher's own;  version: grows with every
    change;  hide_names: whether `shown` has numbers instead of names
    """

    def __init__(self, *, hide_names: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.code = "".join(secrets.choice(LETTERS) for _ in range(8))
        self.token, self.version, self.hide_names = secrets.token_urlsafe(16), 0, hide_names
        self.revealed: set[str] = set()
        self._clock, self._places = clock, dict[str, _Place]()
        self._points = {e.number: e.points for e in all_exercises()}

    # ---- of learners ----

    def join(self, code: str, name: Any, address: str) -> tuple[str, str]:
        """A key to speak with from now on, and the name under which it is shown: another one where that is
        taken. A notebook of the same name and address that is gone is continued.

        Raises NotJoined for a wrong code, DataFileError where the class is full or the name is not a text.
        """
        if not secrets.compare_digest(code.upper().encode(), self.code.encode()):
            raise NotJoined("another code", where="join", hint="Ask your teacher for the code of this class")
        if not isinstance(name, str):
            raise DataFileError("a name that is not a text", where="join")
        name, now, key = _line(name)[:MOST_NAME] or "learner", self._clock(), secrets.token_urlsafe(16)
        taken = {one.name: old for old, one in self._places.items()}
        before = self._places.get(taken.get(name, ""))
        if before and before.address == address and now - before.heard > SILENT_S:
            place = self._places.pop(taken[name])
            place.heard, place.number = now, -1
        elif len(self._places) >= MOST_LEARNERS:
            raise DataFileError(f"{MOST_LEARNERS} learners", where="join", hint="The class is full")
        else:
            free = (f"{name} ({n})" if n > 1 else name for n in count(1))
            place = _Place(next(one for one in free if one not in taken), address, now)
        self._places[key] = place
        self.version += 1
        return key, place.name

    def knows(self, key: str) -> bool:
        """Whether somebody has joined with this key."""
        return key in self._places

    def say(self, key: str, told: Any) -> None:
        """Take what a notebook says: {"number", "checks", "predictions"}, all that it keeps; number: larger each time.

        Raises NotJoined, and DataFileError where something has another form: then nothing changes.
        """
        place = self._places.get(key)
        if place is None:
            raise NotJoined("another key", where="say", hint="Join again")
        try:
            if told.keys() != {"number", "checks", "predictions"} or not is_int(
                told["number"], place.number + 1, 2**53
            ):
                raise KeyError("number")  # also where it was there before
            asked = [_prediction(one) for one in LIST("say", "predictions", told["predictions"])[:MOST_ANSWERS]]
            checks = [_check(one) for one in LIST("say", "checks", told["checks"])]
            checks = [one for one in checks if self._points.get(one["exercise"]) == one["max_points"]]
            _take(place.name, checks, asked, Collected())
        except FORMS as error:
            raise DataFileError("another form", where="say", allowed="What parallel_lab sends") from error
        before = dict(place.answers), place.checks
        place.number, place.heard, place.checks = told["number"], self._clock(), checks
        questions = {one for other in self._places.values() for one in other.answers}
        for one in asked:
            name = question_id(one["text"], one["key"])
            known, is_late = place.answers.get(name), name in self.revealed
            is_room = len(place.answers) < MOST_ANSWERS and len(questions | {name}) <= MOST_QUESTIONS
            if known is None and is_room and not is_late:
                place.answers[name] = one
                questions.add(name)
            elif known is not None and not known["right"]:  # sent before the notebook compared it with what is right
                place.answers[name] = {**one, "yours": known["yours"]} if is_late else one
        self.version += before != (place.answers, place.checks)

    def leave(self, key: str) -> None:
        """A notebook ends: what it said stays."""
        self._places[key].heard = -SILENT_S

    # ---- of the teacher ----

    def teach(self, asked: Mapping[str, Any]) -> None:
        """What the teacher asks for: {"reveal" or "cover": the id of a question, "names": shown or not, "remove": the
        number of a learner, in the order of the names}. What is predicted after the reveal comes too late.
        """
        question = str(asked.get("reveal"))
        if any(question in place.answers for place in self._places.values()):
            self.revealed.add(question)
        self.revealed.discard(str(asked.get("cover")))
        self.hide_names = asked.get("names", not self.hide_names) is not True
        if is_int(asked.get("remove"), 1, len(self._places)):
            del self._places[sorted(self._places, key=lambda key: self._places[key].name)[asked["remove"] - 1]]
        self.version += bool(asked.keys() - {"since"})

    @property
    def here(self) -> int:
        """How many notebooks were heard from lately."""
        return sum(self._clock() - place.heard <= SILENT_S for place in self._places.values())

    def roll(self) -> Roll:
        """What was said so far, with the names."""
        found = Collected()
        for place in self._places.values():
            _take(place.name, place.checks, place.answers.values(), found)
        return found.roll()

    def shown(self) -> Roll:
        """The same, as the teacher has chosen."""
        return self.roll().nameless() if self.hide_names else self.roll()


def _take(name: str, checks: Any, predictions: Iterable[Any], found: Collected) -> None:
    told = {"format": FORMAT, "version": 1, "learner": name, "checks": checks, "predictions": list(predictions)}
    take(told, name, found)


def _line(value: Any) -> str:
    """Anything as one short line that is printable."""
    return " ".join(printable(shorten_text(value))[:MOST_TEXT].split())


def _prediction(one: Mapping[str, Any]) -> dict[str, Any]:
    right = [_line(value) for value in LIST("say", "right", one["right"])[:MOST_RIGHT]]
    yours = None if one["yours"] is None else _line(one["yours"])
    return {"key": _line(one["key"]), "text": _line(one["text"]), "yours": yours, "right": right}


def _check(check: Mapping[str, Any]) -> dict[str, Any]:
    """What counts of a verdict."""
    ideas = dict.fromkeys(p["idea"] for p in LIST("say", "parts", check["parts"]) if p["idea"] in MISCONCEPTIONS)
    kept = {name: check[name] for name in ("exercise", "points", "max_points")}
    return {**kept, "tried": check["tried"] is True, "parts": [{"idea": idea} for idea in ideas]}
