"""Labs where ranks cannot be processes (in a browser, on Windows): they simulate, and call nothing measured."""

from __future__ import annotations

import pytest

import parallel_lab as pl
from parallel_lab.base import system
from parallel_lab.base.system import read_system
from tests.lab.labs import LABS

RUN = {"fusion": "run_measured", "memory": "run_measured", "pipeline": "run_measured", "context": "run_measured"}
RUN |= {"experts": "run_measured", "search": "run", "strategy": "run"}


@pytest.fixture(autouse=True)
def no_processes(monkeypatch):
    monkeypatch.setattr(system, "SYSTEM", read_system("Windows", {}))


def ran(name):
    lab = LABS[name]()
    if name == "fusion":
        lab.set_subject("chain")
    getattr(lab, RUN[name])()
    assert lab.wait(100) and lab._run.error is None
    return lab


def called_measured(shown, where=""):
    """Texts of a snapshot that call a number measured, and cells with a value under such a head, or behind it."""
    if isinstance(shown, dict):
        if {"columns", "rows"} <= set(shown):
            heads = list(shown["columns"])
            for row in shown["rows"]:
                cells = [cell for head, cell in zip(heads, row, strict=False) if "measured" in head]
                cells += [cell for cell in row[1:] if row[0] == "measured" and not isinstance(cell, str)]
                yield from (f"{where}: {row}" for cell in cells if cell not in (None, "", "-"))
        for name, part in shown.items():
            yield from called_measured(part, f"{where}.{name}")
    elif isinstance(shown, list | tuple):
        for part in shown:
            yield from called_measured(part, where)
    elif isinstance(shown, str) and "measured" in shown and "nothing was measured" not in shown:
        yield f"{where}: {shown}"


def told(lab):
    """As `called_measured`, of all that is shown; a row's head alone says nothing of a number."""
    found = [*called_measured(lab.snapshot()), *called_measured(lab.parts())]
    return [one for one in found if not one.endswith(": measured")]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ["strategy", "search", *sorted(set(RUN) - {"strategy", "search"})])
def test_a_run_on_simulated_ranks_calls_nothing_measured_also_from_a_file(name, tmp_path):
    lab = ran(name)
    assert told(lab) == [] and lab.snapshot()["run"]["state"] == "done"
    again = pl.open_lab(lab.save(tmp_path / "lab.json"))
    assert told(again) == []
    for one in lab, again:
        for make in one.charts().values():
            assert "measured" not in make().source
