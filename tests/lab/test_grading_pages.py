"""`parallel-lab grade` on files that pages write: their cells are run again, and nothing else in them counts."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

from parallel_lab.lab.classroom.roll import read_class
from parallel_lab.lab.exercises import progress
from parallel_lab.lab.exercises.book import RESULTS_FORMAT, Desk
from parallel_lab.lab.grading.confine import Limits
from parallel_lab.lab.grading.marks import grade_folder
from parallel_lab.lab.grading.submissions import LARGEST_BYTES, find_submissions, read_cells
from tests.crossed import each_of
from tests.lab.test_grading import OWN

SHORT = Limits(time_s=60.0, cell_s=2.0, memory_bytes=1 << 30)
IMPORTS = "from parallel_lab.lab.exercises import check"
RIGHT, CHECK = "def twice(n):\n    return 2 * n", 'check("my.1", twice)'
HALF = RIGHT.replace("2 * n", "n / 2")
FULL = {"exercise": "my.1", "title": "twice", "tried": True, "hints": 0, "points": 4, "max_points": 4, "attempts": 1}
FULL |= {"parts": [{"name": "twice", "passed": True, "points": 4, "earned": 4, "idea": "", "note": ""}]}


def record(*cells: str, **changed: Any) -> dict[str, Any]:
    """What a page writes, in which these cells were run; its verdict says that all is right."""
    told = {"format": RESULTS_FORMAT, "version": 1, "learner": "", "checks": [FULL]}
    return {**told, "cells": {"my": [IMPORTS, *cells]}, **changed}


def hand_in(folder: Path, student: str, told: Any) -> Path:
    path = folder / student / "checks.json"
    path.parent.mkdir(parents=True)
    path.write_text(told if isinstance(told, str) else json.dumps(told), encoding="utf-8")
    return path


def deep(levels: int) -> str:
    return json.dumps(record(RIGHT, CHECK)).replace("{", '{"hints": ' + "[" * levels + "]" * levels + ", ", 1)


# what is handed in, and (points, or None; what the row says)
FILES: dict[str, tuple[Any, int | None, str]] = {
    "ada": (record(RIGHT, CHECK, learner="Ada"), 4, "passed"),
    "edited": (record(HALF, CHECK), 1, "not yet"),  # the verdict in it says 4 of 4; 0 / 2 is 0
    "corrected": (record(HALF, CHECK, RIGHT, CHECK), 4, "passed"),
    "unchecked": (record(RIGHT, CHECK.replace("my.1", "my.2")), None, "no exercise with this number"),
    "judge": (record("def check(*a, **k):\n    return 4", HALF, CHECK), 1, "not yet"),
    "verdicts": ({k: v for k, v in record().items() if k != "cells"}, None, "no cells that could be run again"),
    "copy": (record(RIGHT, CHECK, learner=" ada"), None, "so does a file of ada: one of them is a copy"),
    "twice": (json.dumps(record(RIGHT, CHECK)).replace('"learner"', '"learner": "Bo", "learner"', 1), None, "twice"),
    "deep": (deep(100), None, "nested deeper"),
    "deeper": (deep(100_000), None, "nested deeper"),
    "huge": (json.dumps(record("#" * LARGEST_BYTES)), None, "bytes"),
    "nul": (json.dumps(record()).replace('"title"', '"\0title"'), None, "invalid JSON"),
    "nul in a cell": (record(RIGHT + "\0", CHECK), 0, "no answer"),
    "no list": (record(cells={"my": "x = 1"}), None, "another form"),
    "no lesson": (record(cells={"../../etc/passwd": ["x = 1"]}), None, "another form"),
    "many": (record(cells={"my": [""] * 5001}), None, "another form"),
    "version": (record(RIGHT, CHECK, version=2), None, "version 1"),
}


RUN = ("ada", "edited", "copy")
MORE = ("corrected", "unchecked", "judge", "nul in a cell")


@each_of(
    "students",
    pytest.param(RUN, id="run"),
    pytest.param([student for student in FILES if student not in RUN + MORE], id="refused"),
    pytest.param(MORE, id="more", marks=pytest.mark.exhaustive),
)
def test_marks_come_from_cells_and_a_file_that_cannot_be_run_again_is_refused_with_the_reason(students, tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    for student in students:
        hand_in(tmp_path / "class", student, FILES[student][0])
    table = grade_folder(tmp_path / "class", exercises=tmp_path / "own.py", limits=SHORT)
    assert {mark.student for mark in table.marks} == set(students)
    for student in students:
        _, points, said = FILES[student]
        mine = [mark for mark in table.marks if mark.student == student]
        without = [mark for mark in mine if mark.points is None]
        assert bool(without) == (points is None), (student, mine)
        assert points is None or sum(mark.points for mark in mine) == points, (student, mine)
        assert any(said in f"{mark.status} {mark.note}" for mark in mine), (student, mine)


def test_a_copy_counts_for_nobody_where_no_student_has_its_name(tmp_path):
    for student in ("s1", "s2"):
        hand_in(tmp_path, student, record(RIGHT, CHECK, learner="Ada"))
    assert [bool(one.fault) for one in find_submissions(tmp_path)] == [True, True]


def test_next_to_a_notebook_a_file_of_json_is_left_out_with_the_reason(tmp_path):
    hand_in(tmp_path, "ada", "[1]")
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "ada" / "mine.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    (tmp_path / "ada" / "link.json").symlink_to("checks.json")
    said: list[str] = []
    assert [one.path.name for one in find_submissions(tmp_path, said.append)] == ["mine.ipynb"]
    assert any("link.json: it is a link" in line for line in said) and any(
        "does not hold results" in line for line in said
    )


def test_a_pages_file_is_a_notebook_per_lesson(tmp_path):
    told = record(cells={"02": ["a = 1", "b = 2"], "03": ["c = 3"]})
    path = hand_in(tmp_path, "ada", told)
    path = path.rename(tmp_path / "checks_bo.json")
    assert [(one.student, one.lesson) for one in find_submissions(tmp_path)] == [("bo", "02"), ("bo", "03")]
    assert [cell.source for cell in read_cells(path, "02")] == ["a = 1", "b = 2"]


def test_a_desk_keeps_the_cells_of_earlier_kernels_and_of_equal_ones_the_first_and_the_last(monkeypatch):
    desk, ran = Desk(), ["", "a = 1", "b = a", "a = 1", "a = 1", " "]
    shell = types.SimpleNamespace(history_manager=types.SimpleNamespace(input_hist_raw=ran))
    monkeypatch.setitem(progress.sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    desk.cells = {"01": ["old"], "02": ["b = a", "kept"]}
    assert progress.cells_of(desk) == desk.cells  # nothing was checked since
    desk.results["02.1"] = None, 1
    assert progress.cells_of(desk) == {"01": ["old"], "02": ["b = a", "kept", "a = 1", "b = a", "a = 1"]}


@pytest.mark.parametrize("cells", [{}, {"my": [RIGHT]}])
def test_the_wall_reads_the_same_file(tmp_path, cells):
    hand_in(tmp_path, "ada", record(cells=cells, learner="Ada"))
    roll = read_class(tmp_path)
    assert roll.learners == ("Ada",) and not roll.refused and roll.points == {"my.1": {"Ada": (4, 4)}}
