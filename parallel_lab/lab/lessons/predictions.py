"""What a learner expects before a lesson runs anything: a form in the notebook, its answers kept for `compare` and the
class.

    prediction = predict("02")              # last in a cell: the form; with no widgets it is text
    predict("02", rounds=6, small="ring")   # the same from a script
    compare(prediction, fit)                # what is right; from then on an answer stays as it is

Answers are kept in the file predictions.json of the folder: a notebook that is saved and run again has them.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...base.errors import ArgumentError, DataFileError, shorten
from ...base.files import write_whole
from ...base.plain_json import read_json
from ..shared.lab import Lab, LabRun
from ..shared.prediction import Comparison, Predicted, alike, keep_answer
from ..shared.sections import table

FILE, FORMAT = "predictions.json", "parallel_lab.predictions"
MOST_BYTES, MOST_TEXT = 1 << 18, 200
STATUS = "{} of {} answered. A guess will do, even a wrong one: nothing here is graded."


class Predictions(Lab, Predicted):
    """The questions of a lesson with what was answered: a mapping from their names, None is open.

    questions  {name: [what it is called where answers are compared, the question, choices if there are some ...]}
    folder     where the answers are kept. Raises DataFileError for a file of that name that is not one of answers
    """

    scripts, styles = ("lessons/predictions.js",), ("lessons/predictions.css",)
    commands = ("answer",)
    frame_height_px = 420
    __hash__ = object.__hash__

    def __init__(self, lesson: str, questions: Mapping[str, list[Any]], folder: str | Path = ".") -> None:
        super().__init__()
        self._lesson, self._questions, self._path = lesson, dict(questions), Path(folder).resolve() / FILE
        mine = self._file().get(lesson, {"answers": {}, "seen": []})
        self._given = {name: alike(given) for name, given in mine["answers"].items() if name in questions}
        self._seen = self._given.keys() & {*mine["seen"]}
        for name in self._given:
            self._told(name)

    def __getitem__(self, name: str) -> Any:
        return self._given.get(name) if name in self._questions else self._questions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._questions)

    def __len__(self) -> int:
        return len(self._questions)

    def answer(self, key: str, value: Any) -> None:
        """Answer a question, in its own form or as a text. Raises ArgumentError for another question or choice, for
        anything that cannot be an answer, and once it was compared with what is right.
        """
        where, read = f"Prediction {self.one_of(key, list(self._questions), 'question')!r}", _read(value)
        choices = [alike(one) for one in self._questions[key][2:]]
        if key in self._seen:
            raise ArgumentError("was compared already", where=where, allowed="The first answer counts")
        if choices and read not in choices:
            raise ArgumentError(shorten(value), where=where, allowed=f"One of {', '.join(map(str, choices))}")
        self._given[key] = read
        self._told(key)
        self._write()

    def compared(self, names: list[str]) -> None:
        if not self._seen.issuperset(names):
            self._seen |= set(names)
            self._write()

    def snapshot(self) -> dict[str, Any]:
        """The questions and answers."""
        rows = [
            {"name": name, "text": one[1], "choices": [str(alike(choice)) for choice in one[2:]]}
            | {"yours": str(self._given.get(name, "")), "seen": name in self._seen}
            for name, one in self._questions.items()
        ]
        status = STATUS.format(len(self._given), len(rows))
        columns = {"": "name", "question": "text", "you": "text"}
        form = table("Questions", columns, [[row["name"], row["text"], row["yours"]] for row in rows])
        shown = {"version": 1, "title": "Predict", "status": status, "rows": rows, "run": LabRun().to_dict()}
        return {**shown, "sections": {"form": form}}

    def __repr__(self) -> str:
        """The questions, with the way to answer."""
        names = ", ".join(f"{name}=..." for name in self)
        return f'{self.to_text()}\nTo answer: predict("{self._lesson}", {names})'

    def _told(self, name: str) -> None:
        text = f"Lesson {self._lesson}: {self._questions[name][0]}"
        keep_answer({"key": text, "text": text, "yours": str(self._given[name]), "right": []})

    def _file(self) -> dict[str, Any]:
        """The answers of all lessons in the folder."""
        if not os.path.lexists(self._path):  # a link that leads nowhere is a fault
            return {}
        told = read_json(self._path, DataFileError, max_bytes=MOST_BYTES, max_depth=12)
        lessons = told.get("lessons") if isinstance(told, dict) and told.get("format") == FORMAT else None
        form = {"answers": dict, "seen": list}
        known = lessons.values() if isinstance(lessons, dict) else [None]
        if not all(
            isinstance(one, dict)
            and {k: type(v) for k, v in one.items()} == form
            and all(type(name) is str for name in one["seen"])
            for one in known
        ):
            raise DataFileError(
                "is not a file of predictions", where=str(self._path), hint="Move it away, and run again"
            )
        return lessons

    def _write(self) -> None:
        mine = {"answers": self._given, "seen": sorted(self._seen)}
        told = {"format": FORMAT, "version": 1, "lessons": {**self._file(), self._lesson: mine}}
        write_whole(self._path, json.dumps(told, indent=1) + "\n")
        self._changed("picture")


@cache
def forms() -> dict[str, dict[str, list[Any]]]:
    """By lesson the questions of its form, as `Predictions` takes them."""
    return json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Answers:
    """What was answered to a lesson's form, or in a dict, as older notebooks have it.  show: as of `Comparison`

    Answers("02", prediction).next_to(rounds=(6, counted, "3 to add up, 3 to hand out"))
    """

    lesson: str
    given: Mapping[str, Any]
    show: bool = False

    def next_to(self, **rows: tuple[Any, ...]) -> Comparison:
        """Compared, by the name of a question, with what is right by formula, what was counted, and why: as of
        `Comparison.of`, and what it raises. A question is called what the form calls it.
        """
        form = forms()[self.lesson]
        named: dict[str, Any] = {name: (form[name][0], *row) for name, row in rows.items()}
        return Comparison.of(self.given, show=self.show, lesson=self.lesson, **named)


def predict(lesson: str, *, folder: str | Path = ".", **answers: Any) -> Predictions:
    """The form of a lesson, with the answers that the folder keeps, and these. Raises ArgumentError and DataFileError,
    as `Predictions` does; a question that was compared keeps its first answer.
    """
    known = forms()
    if lesson not in known:
        raise ArgumentError(shorten(lesson), where="predict", allowed=f"A lesson: {', '.join(known)}")
    form = Predictions(lesson, known[lesson], folder)
    for name, value in answers.items():
        if name not in form._seen:
            form.answer(name, value)
    return form


def _read(value: Any) -> Any:
    """An answer as it is kept: what a text writes down, if that is a number, a tuple or True, else the text."""
    if isinstance(value, str):
        text = value.strip()[:MOST_TEXT]
        several = re.fullmatch(r"-?\d+(?:[\sx,]+-?\d+)+", text)  # 8 x 16, 4 5 6 7
        try:
            value = ast.literal_eval(", ".join(re.findall(r"-?\d+", text)) if several else text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = text
    value = alike(value)
    try:
        return alike(json.loads(json.dumps(value)))
    except (TypeError, ValueError, RecursionError):
        allowed = "A number, several in a tuple, or a text"
        raise ArgumentError(shorten(value), where="predict", allowed=allowed) from None
