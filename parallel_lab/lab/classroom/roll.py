"""What a class has handed in, read from files: labs, predictions, results of checks.

    hand_in("ada.json", lab, learner="Ada")         # at the end of a learner's notebook
    roll = read_class("collected")                  # a folder of such files
    print(roll.to_text())                           # or wall_page(roll), `parallel-lab wall collected` (wall.py)

    {"format": "parallel_lab.class", "version": 1, "learner": "Ada", "labs": [state, ...], "checks": [...],
     "predictions": [{"key": "rounds ...", "text": "How many rounds ...?", "yours": 6, "right": [6]}, ...]}

`labs` are states as `lab.save` writes them (state.py), `checks` those of `save_results`; files of those two forms count
as well. Who it is of: "learner", or else the folder in which the file lies, or its name. A file that cannot be read is
named with the reason, and the others count.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...base.checks import Check, instance, text as plain_text
from ...base.cluster import cluster_for
from ...base.errors import ArgumentError, DataFileError, ParallelLabError, shorten
from ...base.files import write_whole
from ...base.plain_json import read_json
from ...base.units import bytes_text, table_lines, time_text
from ...cost.memory import predict_memory
from ...cost.time import step_time_s
from ...graph.plan import Plan
from ..exercises import results
from ..exercises.book import RESULTS_FORMAT
from ..grading.submissions import walked
from ..shared.lab import Lab
from ..shared.prediction import first_answers
from ..shared.state import FORMAT as LAB_FORMAT
from ..widgets import lab_of_state

LIST, TEXT = instance(list, "A list"), Check("A text (str)", lambda value: shorten_text(plain_text.read(value)))
FORMAT = "parallel_lab.class"
_KEYS = {"format", "version", "learner", "labs", "predictions", "checks"}
MOST_BYTES = 16 << 20  # of a file
MOST_FILES = 2000
MOST_TEXT = 200  # characters of a name, a question or an answer


def hand_in(path: str | os.PathLike[str], *labs: Lab, learner: str = "") -> Path:
    """Write labs, what was predicted in them and in cells of lessons, and the last verdict on each exercise of this
    session into one file; returns its path.

    learner  a name to show; none by default

    Raises ArgumentError for anything but a lab, DataFileError if the file cannot be written.
    """
    for lab in labs:
        if not isinstance(lab, Lab):
            raise ArgumentError(shorten(lab), where="hand_in", allowed="Labs, such as FusionLab()")
    text = json.dumps(this_session(*labs, learner=learner), ensure_ascii=False, allow_nan=False)
    return write_whole(path, text + "\n")


def this_session(*labs: Lab, learner: str = "") -> dict[str, Any]:
    """What a class is given of this session: these labs, every prediction that was kept, the last verdicts."""
    answered = {one["key"]: one for one in (*first_answers(), *(one for lab in labs for one in lab.answered()))}
    told = {"format": FORMAT, "version": 1, "learner": str(learner), "labs": [lab.state() for lab in labs]}
    return {**told, "predictions": list(answered.values()), "checks": results()}


@dataclass(frozen=True)
class Layout:
    """A lab that somebody handed in, and the step of its plan: predicted time of the slowest rank and peak memory of
    the fullest one; None where a lab has no plan of one stage.
    """

    learner: str
    lab: Lab
    title: str
    time_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Roll:
    """A class.  answers: {question: {learner: answer}}, right: {question: right answers};
    ideas: {misconception: {learner: exercises}};  points: {exercise: {learner: (points, most)}} of those who tried it;
    refused: (file, why) of files that could not be read;  ids: {question: what it is known by}
    """

    learners: tuple[str, ...]
    layouts: tuple[Layout, ...]
    answers: Mapping[str, Mapping[str, str]]
    right: Mapping[str, tuple[str, ...]]
    ideas: Mapping[str, Mapping[str, tuple[str, ...]]]
    points: Mapping[str, Mapping[str, tuple[int, int]]]
    refused: tuple[tuple[str, str], ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)

    def histogram(self, question: str) -> list[tuple[str, int]]:
        """(answer, how many gave it), the most frequent first."""
        return counted(self.answers[question].values())

    def nameless(self) -> Roll:
        """The same class as "learner 1", "learner 2", ..., in the order of the names."""
        hidden = {name: f"learner {n}" for n, name in enumerate(self.learners, 1)}

        def renamed(table: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
            return {key: {hidden[name]: value for name, value in row.items()} for key, row in table.items()}

        return replace(
            self,
            learners=tuple(hidden.values()),
            layouts=tuple(replace(layout, learner=hidden[layout.learner]) for layout in self.layouts),
            answers=renamed(self.answers),
            ideas=renamed(self.ideas),
            points=renamed(self.points),
            refused=tuple((f"file {n}", why) for n, (_, why) in enumerate(self.refused, 1)),
        )

    def to_text(self, *, reveal: bool = False) -> str:
        """Everything, in words.  reveal: says which answers are right"""
        lines = [
            f"{len(self.learners)} learners: {', '.join(self.learners)}",
            "",
            "Layouts: time and memory (predicted)",
        ]
        rows = [(at.learner, at.title, *amounts(at)) for at in self.layouts]
        lines += table_lines([("learner", "lab", "step", "fullest rank"), *rows])
        for question in self.answers:
            lines += ["", f"Prediction: {question}"]
            for answer, count in self.histogram(question):
                right = " (right)" if reveal and answer in self.right[question] else ""
                lines.append(f"  {'#' * count} {count}: {answer}{right}")
        lines += ["", "Misconceptions: learners whose answers come from it"]
        lines += [f"  {len(who)}: {idea} ({', '.join(who)})" for idea, who in by_count(self.ideas)]
        lines += ["", "Exercises: points"]
        for number, row in sorted(self.points.items()):
            lines.append(f"  {number}: " + ", ".join(f"{who} {got} of {most}" for who, (got, most) in row.items()))
        lines += [f"Not read: {path}: {why}" for path, why in self.refused]
        return "\n".join(lines)


def counted(values: Iterable[str]) -> list[tuple[str, int]]:
    """(value, how often), the most frequent first, equally frequent ones in order of their text."""
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def by_count(table: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Rows of a table, those with the most learners first."""
    return sorted(table.items(), key=lambda item: (-len(item[1]), item[0]))


def amounts(layout: Layout) -> tuple[str, str]:
    """Time and memory as text."""
    if layout.time_s is None:
        return "-", "-"
    return time_text(layout.time_s), bytes_text(layout.memory_bytes)


@dataclass
class Collected:
    """What was read so far."""

    layouts: list[Layout] = field(default_factory=list)
    answers: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    right: dict[tuple[str, str], list[tuple[str, ...]]] = field(default_factory=dict)
    ideas: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    points: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    learners: dict[str, None] = field(default_factory=dict)

    def roll(self, refused: Iterable[tuple[str, str]] = ()) -> Roll:
        """All of it. What is right is what most learners' notebooks say it is."""
        names = _questions(self.answers)
        answers = {name: self.answers[asked] for asked, name in names.items()}
        right = {
            name: max(Counter(self.right[asked]).most_common(), key=lambda one: bool(one[0]))[0]
            for asked, name in names.items()
        }
        ideas, points = (dict(sorted(table.items())) for table in (self.ideas, self.points))
        ids = {name: question_id(*asked) for asked, name in names.items()}
        learners = tuple(sorted(self.learners))
        return Roll(learners, tuple(self.layouts), answers, right, ideas, points, tuple(refused), ids)


def question_id(text: str, key: str) -> str:
    """What a question is known by: the same words may be about other settings."""
    return blake2b(f"{text}\n{key}".encode(errors="surrogatepass"), digest_size=8).hexdigest()


def read_class(folder: str | os.PathLike[str]) -> Roll:
    """Every .json file in a folder and the folders in it; no symbolic link is followed. Raises DataFileError if it is
    not a folder, holds no such file, or more than MOST_FILES.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataFileError("is not a folder", where=str(root), hint="Name the folder with the collected files")
    refused: list[tuple[str, str]] = []
    paths = sorted(path for path in _files(root, refused) if path.suffix == ".json")
    if not 0 < len(paths) <= MOST_FILES:
        hint = 'Learners write them with hand_in("name.json", lab, learner="Name")'
        raise DataFileError(f"{len(paths)} .json files", where=str(root), allowed=f"1 to {MOST_FILES}", hint=hint)
    found = Collected()
    for path in paths:
        inside = path.relative_to(root)
        try:
            if path.is_symlink():
                raise DataFileError("is a symbolic link", where=str(path), allowed="A file")
            told = read_json(path, DataFileError, max_bytes=MOST_BYTES, max_depth=16)
            take(told, inside.parts[0].removesuffix(".json"), found)
        except (ParallelLabError, KeyError, TypeError, ValueError, AttributeError) as error:
            why = str(error) if isinstance(error, ParallelLabError) else "the file is not in the right form"
            refused.append((str(inside), why))
    return found.roll(refused)


def _questions(asked: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Each (text, key) and how it is called: those of one text are numbered."""
    keys: dict[str, list[str]] = {}
    for text, key in sorted(asked):
        keys.setdefault(text, []).append(key)
    several = {text for text, found in keys.items() if len(found) > 1}
    names = {(text, key): (text, n) for text, found in keys.items() for n, key in enumerate(found, 1)}
    return {one: f"{text} (settings {n})" if text in several else text for one, (text, n) in names.items()}


def _files(root: Path, left_out: list[tuple[str, str]]) -> Iterator[Path]:
    for where, _, files in walked(root, lambda path, why: left_out.append((str(path.relative_to(root)), why))):
        yield from (Path(where) / name for name in files)


def take(told: Mapping[str, Any], default: str, found: Collected) -> None:
    """Add what a file says: all of it, or nothing. Raises ParallelLabError, or KeyError, TypeError, ValueError or
    AttributeError, where it has another form.

    default  the learner's name, where the file does not say it
    """
    known = {FORMAT: _KEYS, RESULTS_FORMAT: _KEYS - {"labs", "predictions"} | {"cells"}, LAB_FORMAT: set(told)}
    is_known = told.get("format") in known and told.get("version") == 1 and type(told["version"]) is int
    if not is_known or not known[told["format"]].issuperset(told):
        raise DataFileError("is not a file of a class", where=default, allowed=f"Version 1 of {', '.join(known)}")
    labs, predictions, checks = (LIST(default, name, told.get(name, [])) for name in ("labs", "predictions", "checks"))
    name = TEXT(default, "learner", told.get("learner") or default)
    states = [told] if told["format"] == LAB_FORMAT else labs
    layouts = [_layout(name, state) for state in states]
    answers, ideas, points = {}, {}, {}
    for one in predictions:
        right = tuple(shorten_text(value) for value in LIST(default, "right", one["right"]))
        # the same words may be about other settings
        asked = TEXT(default, "text", one["text"]), TEXT(default, "key", one["key"])
        answers[asked] = "(skipped)" if one["yours"] is None else shorten_text(one["yours"]), right
    for check in checks:
        number, earned = TEXT(default, "exercise", check["exercise"]), (check["points"], check["max_points"])
        if [*map(type, earned)] != [int, int] or not 0 <= earned[0] <= earned[1] or number in points:
            raise DataFileError(f"{number}: points {shorten(earned)}", where=default, allowed="0 to max_points, once")
        if check.get("tried") is False:
            continue
        points[number] = earned
        for idea in dict.fromkeys(part["idea"] for part in LIST(default, "parts", check["parts"]) if part["idea"]):
            ideas.setdefault(TEXT(default, "idea", idea), []).append(number)
    found.learners[name] = None
    found.layouts += layouts
    for question, (answer, right) in answers.items():
        found.answers.setdefault(question, {})[name] = answer
        found.right.setdefault(question, []).append(right)
    for idea, numbers in ideas.items():
        found.ideas.setdefault(idea, {})[name] = tuple(numbers)
    for number, earned in points.items():
        found.points.setdefault(number, {})[name] = earned


def shorten_text(value: Any) -> str:
    """A value from a file as a short text."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 4]} ..."


def _layout(learner: str, state: Mapping[str, Any]) -> Layout:
    lab = lab_of_state(state, learner)
    title = str(lab.snapshot()["title"])
    plan = getattr(lab, "plan", None)
    if not isinstance(plan, Plan) or len(plan.stages) != 1:
        return Layout(learner, lab, title)
    ranks: Sequence[int] = range(plan.device_num)
    time_s = max(step_time_s(plan, cluster_for(plan.device_num), rank=rank).total_s for rank in ranks)
    return Layout(learner, lab, title, time_s, max(predict_memory(plan, rank=rank).peak_bytes for rank in ranks))
