"""`parallel-lab bench live`: what is behind a page answers, and its runs are counted in slices."""

from __future__ import annotations

import json

import pytest

from parallel_lab.cli import main as cli
from tests.bench.cases import LIVE_LABS
from tests.bench.live import Taken, live_goals, live_text
from tests.lab.labs import LABS


@pytest.mark.exhaustive
def test_the_command_writes_slices_of_a_lab_that_runs_and_none_of_one_that_does_not(tmp_path, capsys):
    numbers = tmp_path / "live.json"
    assert cli.main(["bench", "live", "--labs", "memory", "costs", "--json", str(numbers)]) == 0
    memory, costs = json.loads(numbers.read_text())["live"]
    assert memory["first_s"] > 0 and memory["slice_s"] > 0
    assert costs["first_s"] > 0 and costs["slice_s"] is None
    told = capsys.readouterr().out
    assert "longest slice" in told and "first interaction" in told


def test_every_lab_is_measured():
    assert tuple(LABS) == LIVE_LABS


def test_goals_are_about_the_lab_that_takes_longest():
    found = [Taken("quick", 2.0, None), Taken("slow", 3.3, 0.02), Taken("coarse", 1.0, 0.1)]
    assert [(goal.note, goal.reached, goal.met) for goal in live_goals(found)] == [
        ("slow", pytest.approx(1.1), False),
        ("coarse", pytest.approx(2.0), False),
    ]
    assert live_text(found).count("NOT MET") == 2
    first, nothing_runs = live_goals(found[:1])
    assert first.met and nothing_runs.met is None
