"""`parallel-lab bench dtensor`: an eager product next to its two calls by hand."""

import json

import pytest

from parallel_lab.base.system import cores
from parallel_lab.cli import main as cli
from tests.bench.dtensor import EagerCost, dtensor_goals


@pytest.mark.exhaustive
def test_the_command_prints_and_writes_what_was_measured(tmp_path, capsys):
    numbers = tmp_path / "dtensor.json"
    assert cli.main(["bench", "dtensor", "--quick", "--json", str(numbers)]) == 0
    printed, written = capsys.readouterr().out, json.loads(numbers.read_text())
    assert f"{cores()} cores" in printed and "by hand" in printed
    assert all(f["by_hand_s"] > 0 and f["eager_s"] > 0 and f["small_us"] > 0 for f in written["dtensor"])


def test_the_goal_is_the_ratio_of_the_medians():
    (goal,) = dtensor_goals([EagerCost(2, 1024, 0.010, 0.012, 50.0)])
    assert goal.met and goal.reached == pytest.approx(1.2)
