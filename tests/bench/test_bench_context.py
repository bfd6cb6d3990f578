"""`parallel-lab bench context`: useful shares of causal rings, counted and measured."""

import json

import pytest

from parallel_lab.base.system import cores
from parallel_lab.cli import main as cli
from tests.bench.context import HIDDEN, WAYS, UsefulShare, context_goals, counted_share

RANKS = [1 << n for n in range(1, 8) if 1 << n <= cores()]


@pytest.mark.exhaustive
def test_the_command_prints_and_writes_what_was_counted_and_measured(tmp_path, capsys):
    numbers = tmp_path / "context.json"
    assert cli.main(["bench", "context", "--quick", "--json", str(numbers)]) == 0
    told, written = capsys.readouterr().out, json.loads(numbers.read_text())
    assert f"{cores()} cores" in told and all(way in told for way in WAYS)
    assert [(f["ranks"], f["way"]) for f in written["context"]] == [(p, way) for p in RANKS for way in WAYS]


@pytest.mark.parametrize(
    ("way", "share"), [("contiguous", 9 / 13), ("zigzag", 1), ("striped", 9 / 10), (HIDDEN, 9 / 16)]
)
def test_counted_shares_are_the_formulas(way, share):
    """P = 2, c = 4: (Pc + 1) / ((2P - 1)c + 1), 1, (Pc + 1) / (P(c + 1)), (Pc + 1) / (2Pc)."""
    assert counted_share(2, 8, way) == pytest.approx(share)


def test_a_share_of_short_steps_is_not_measured():
    found = [UsefulShare(2, "zigzag", 64, 1.0, measured, step_s) for measured, step_s in ((0.8, 0.04), (0.8, 0.06))]
    assert [goal.met for goal in context_goals(found)] == [None, False]
