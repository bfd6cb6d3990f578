"""What the teacher's page says is so: commands, exercises, misconceptions."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from parallel_lab.cli import main as cli
from parallel_lab.lab.exercises import MISCONCEPTIONS, all_exercises

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "notebooks" / "teachers.md").read_text(encoding="utf-8")
COMMANDS = sorted({text.strip() for text in re.findall(r"(?m)(?:^    |`)(parallel-lab(?: [^`#\n]*)?)", TEXT)})
ROWS = re.findall(r"(?m)^\| (\d\d) \| (.*?) ?\| (.*?) ?\|$", TEXT)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_named_exists(command):
    assert callable(cli._parser().parse_args(shlex.split(command)[1:]).run)


def test_exercises_with_drawn_inputs_are_named():
    named = re.findall(r"\d\d\.\d+", TEXT.partition("shows its inputs\n  (")[2].partition(")")[0])
    assert named == [exercise.number for exercise in all_exercises() if exercise.drawn]


def test_exercises_with_numbers_of_each_students_own_are_named():
    named = re.findall(r"\d\d\.\d+", TEXT.partition("is a number or a choice (")[2].partition(")")[0])
    assert named == [exercise.number for exercise in all_exercises() if exercise.own is not None]


def test_it_is_said_why_the_others_have_neither():
    rows = re.findall(r"(?m)^\| (\d\d\.\d[\d., ]*) \|", TEXT.partition("have neither drawn inputs")[2])
    named = {number for row in rows for number in row.split(", ")}
    assert named == {exercise.number for exercise in all_exercises() if not exercise.drawn and exercise.own is None}


def test_misconceptions_have_their_names_and_those_that_are_counted_are_in_the_exercises():
    assert len(ROWS) >= 10
    for lesson, counted, others in ROWS:
        assert {idea for cell in (counted, others) for idea in filter(None, cell.split("; "))} <= MISCONCEPTIONS.keys()
        module = importlib.import_module(f"parallel_lab.lab.exercises.lesson_{lesson}")
        named = [text for text in vars(module).values() if isinstance(text, str)]  # one said in another lesson's file
        named += re.findall(r'"([^"\n]+)"', Path(str(module.__file__)).read_text(encoding="utf-8"))
        assert set(filter(None, counted.split("; "))) <= set(named)
