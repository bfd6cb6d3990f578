"""Faults on purpose: which are reported, by which error, about which rank; the others are silent and still wrong."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.faults import FAULTS, Diagnosis, inject, table
from parallel_lab.lab.faults.clinic import RATE, STEPS, gradient_of, one_device, rows_of

TOLD = {
    "skipped step": "CollectiveMismatch",
    "other order": "CollectiveMismatch",
    "wrong reduce": "CollectiveMismatch",
    "hang": "CollectiveTimeout",
    "death": "RankDied",
}
SILENT = ("sum for mean", "own seed", "bit flip")
RANK = 1


def undivided(rate: float) -> np.ndarray:
    """Gradient descent on all rows: the normal equations' gradient, written once more."""
    x, y = np.concatenate([rows_of(r)[0] for r in range(4)]), np.concatenate([rows_of(r)[1] for r in range(4)])
    w = np.zeros(3)
    for _ in range(STEPS):
        w = w - rate * 2 / len(y) * (x.T @ x @ w - x.T @ y)
    return w


def test_every_fault_is_reported_silent_or_harmless():
    assert {*TOLD, *SILENT, "none", "straggler"} == set(FAULTS)


@pytest.mark.quick(2)
@pytest.mark.parametrize("fault", TOLD)
def test_a_reported_fault_names_the_rank_and_those_that_wait(fault):
    found = inject(fault, RANK)
    assert found.told == TOLD[fault] and RANK in found.blamed and not found.silent
    assert f"rank {RANK}" in found.text and "all_reduce #" in found.text and "clinic.py:" in found.text
    assert found.apart is None and found.waited_s == ()
    late = fault in ("hang", "death")
    assert found.waiting == (tuple(n for n in range(4) if n != RANK) if late else ())
    words = f"rank 0 waits for rank {RANK}" if late else "do not match"
    assert words in str(found)
    svg = ET.fromstring(found._repr_html_().split("<pre")[0])
    assert words in svg.attrib["aria-label"] and len(svg.findall("rect")) == 4


@pytest.mark.quick(1)
@pytest.mark.parametrize("fault", SILENT)
def test_a_silent_fault_runs_through_and_only_the_weights_tell(fault):
    found = inject(fault, RANK)
    assert found.silent and not found.told and len(found.waited_s) == 4 and "no error" in found.verdict
    if fault == "sum for mean":  # every rank does the same wrong thing: four times the rate
        assert found.apart == 0
        assert found.off == pytest.approx(np.abs(undivided(4 * RATE) - one_device()).max())
    else:
        assert found.apart > 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["none", "straggler"])
def test_a_harmless_one_has_the_weights_of_one_device_and_a_straggler_makes_the_others_wait(fault):
    found = inject(fault, RANK)
    assert not found.told and not found.silent and found.apart == 0 and found.off < 1e-12
    if fault == "straggler":
        assert min(found.waited_s) == found.waited_s[RANK]


def test_one_device_is_the_undivided_computation_and_a_gradient_its_finite_difference():
    assert one_device() == pytest.approx(undivided(RATE), abs=1e-12)
    (x, y), w, tiny = rows_of(0), np.array([0.3, -0.1, 0.2]), 1e-6
    loss = [((x @ (w + sign * tiny * np.eye(3)[1]) - y) ** 2).mean() for sign in (1, -1)]
    assert gradient_of(w, x, y)[1] == pytest.approx((loss[0] - loss[1]) / (2 * tiny), rel=1e-6)


def test_the_table_has_a_line_for_each_and_html_is_escaped():
    told = Diagnosis("hang", 2, "CollectiveTimeout", "<b>late</b>", 2.0, (2,), (0, 1, 3))
    quiet = Diagnosis("none", 2, "", "", 0.1, apart=0.0, off=0.0, waited_s=(0.1,) * 4)
    lines = table([told, quiet]).splitlines()
    assert len(lines) == 3 and "CollectiveTimeout on every rank after 2 s" in lines[1]
    assert "&lt;b&gt;late" in told._repr_html_() and "<svg" not in quiet._repr_html_()


@pytest.mark.parametrize("given", [("hangs", 0), ("hang", 4), ("hang", True)])
def test_an_unknown_fault_or_rank_is_refused(given):
    with pytest.raises(ArgumentError, match="inject"):
        inject(*given)
