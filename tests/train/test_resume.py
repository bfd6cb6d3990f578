"""A training that is saved on 8 ranks and goes on under another strategy on 4, on 1, and on 8 again: losses as if
nothing had happened.

Bound: the run in float64 on one device, 1e-9 relative. Sums in another order move the last bits (2^-53 is 1.1e-16, a
few hundred terms per loss, twenty steps of Adam); a lost moment, learning rate, dropout mask or running statistic moves
losses by 1e-4 and more.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes.launched import LAB, started

SCRIPT = Path(__file__).parent / "scripts" / "resume.py"
LEGS = (  # ranks, strategy of both products
    (8, "((2, 4), (4, 1)), ((8, 1), (1, 1))"),
    (4, "((1, 2), (2, 2)), ((2, 2), (2, 1))"),
    (1, "alone"),
    (8, "((1, 1), (1, 8)), ((1, 8), (8, 1))"),
)
STEPS = 5


def run(ranks, *arguments, cwd):
    """The losses that a leg printed."""
    script = [str(SCRIPT), *map(str, arguments)]
    command = [sys.executable] if ranks == 1 else [*LAB, "run", "-n", str(ranks), "--no-tag"]
    with started(*command, *script, cwd=cwd, PYTHONWARNINGS="") as process:
        status, output = process.wait(120)
    assert status == 0, output
    line = next(line for line in output.splitlines() if line.startswith("{"))
    return json.loads(line)["losses"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("integrated", [True, False], ids=["whole tensors", "slices"])
def test_training_goes_on_under_other_strategies_and_numbers_of_ranks(integrated, tmp_path):
    undivided = run(1, 0, STEPS * len(LEGS), "alone", integrated, "-", "-", cwd=tmp_path)
    found, load = [], "-"
    for leg, (ranks, strategy) in enumerate(LEGS):
        save = tmp_path / f"leg{leg}"
        found += run(ranks, leg * STEPS, STEPS, strategy, integrated, load, save, cwd=tmp_path)
        load = save
    np.testing.assert_allclose(found, undivided, rtol=1e-9)
    # what the comparison would show if nothing were loaded
    forgotten = run(1, STEPS, STEPS, "alone", integrated, "-", "-", cwd=tmp_path)
    assert np.abs(np.array(forgotten) / undivided[STEPS : 2 * STEPS] - 1).max() > 1e-4
