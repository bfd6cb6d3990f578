"""`parallel-lab bench labs`: what labs predict on this machine and what they measure, as text and numbers."""

import json

import pytest

from parallel_lab.cli import main as cli
from tests.bench.labs import Case, labs_goals

LABS = {"Strategy", "Fusion", "Search", "Pipeline", "Stepper, lesson 02"}


@pytest.mark.exhaustive
def test_the_command_prints_and_writes_every_lab(tmp_path, capsys):
    numbers = tmp_path / "labs.json"
    assert cli.main(["bench", "labs", "--quick", "--ranks", "2", "--json", str(numbers)]) == 0
    told, written = capsys.readouterr().out, json.loads(numbers.read_text())
    assert {case["lab"] for case in written["cases"]} == LABS and all(lab in told for lab in LABS)
    assert all(min(case["predicted_s"], case["measured_s"]) > 0 for case in written["cases"])


def test_a_lab_is_judged_by_its_worst_case_in_either_direction():
    cases = [Case("A", "near", 2, 1.0, 1.5), Case("A", "far", 2, 1.0, 4.0), Case("B", "over", 2, 1.9, 1.0)]
    assert {(goal.note, goal.reached, goal.met) for goal in labs_goals(cases)} == {
        ("far", 4.0, False),
        ("over", 1.9, True),
    }
