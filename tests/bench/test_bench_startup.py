"""`parallel-lab bench startup`: complete, with what idle workers take, and nothing left. No test asserts a speed."""

import importlib.util
import json
import os

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cli import main as cli
from parallel_lab.processes.mpi.launch import find_mpirun
from tests.bench import startup


@pytest.mark.exhaustive
def test_ours_starts_cold_and_warm_and_is_idle():
    found = startup.measure_startup(2, 2, idle_s=0.3, peers=False)
    assert set(found["median_s"]) == {startup.COLD, startup.WARM}
    assert all(len(times) == 2 and min(times) > 0 for times in found["seconds"].values())
    assert found["whole"][startup.COLD][0] > found["seconds"][startup.COLD][0] > 0
    idle = found["idle"]
    assert idle["watched_s"] >= 0.3 and 0 <= idle["workers_s"] < 0.01  # they block: a promise, not a speed
    spawn, idle = startup.startup_goals(found)
    assert spawn.met is None and idle.met is not None
    assert "ours, cold" in startup.startup_text(found) and "not measured" in startup.startup_text(found)


@pytest.mark.exhaustive
def test_every_other_way_is_timed_or_missing_with_its_reason(monkeypatch):
    # torch takes seconds to start; its own test is the command's
    monkeypatch.setattr(startup, "without_torch", lambda: "no torch")
    found = startup.measure_startup(2, 1, idle_s=0.05)
    text = startup.startup_text(found)
    assert found["missing"][startup.TORCH_SPAWN] == found["missing"][startup.TORCH_FORK] == "no torch"
    has_mpi = find_mpirun() is not None and importlib.util.find_spec("mpi4py") is not None
    assert (startup.MPIRUN in found["median_s"], startup.MPIRUN in found["missing"]) == (has_mpi, not has_mpi)
    assert all(f"{name} is missing: {why}" in text for name, why in found["missing"].items())


@pytest.mark.exhaustive
def test_the_command_times_torch_where_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = tmp_path / "start.json"
    assert cli.main(["bench", "startup", "--quick", "--ranks", "2", "--json", str(file)]) == 0
    found = json.loads(file.read_text())["startup"]
    for name in (startup.TORCH_SPAWN, startup.TORCH_FORK):
        assert name in found["missing"] or found["whole"][name][0] >= found["median_s"][name] > 0
    assert "whole command" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["start.json"]


def test_goals_are_quotients():
    made_up = {
        "ranks": 8,
        "median_s": {startup.COLD: 0.5, startup.TORCH_SPAWN: 5.0},
        "idle": {"watched_s": 2.0, "workers_s": 0.01, "notebook_s": 0.0},
    }
    ready, idle = startup.startup_goals(made_up)
    assert (ready.reached, ready.met) == (pytest.approx(0.1), True)
    assert (idle.reached, idle.met) == (pytest.approx(0.005), False)


def test_a_competitor_that_fails_is_a_line(monkeypatch):
    monkeypatch.setattr(startup, "_start_torch", lambda how, _: startup._run(how, "-c", "raise SystemExit('no')"))
    monkeypatch.setattr(startup, "_start_mpi", lambda ranks: (1.0, 1.0))
    monkeypatch.setattr(startup, "without_torch", lambda: "")
    monkeypatch.setattr(startup, "_start_ours", lambda ranks, idle_s: (2.0, 3.0, 1.0, {}))
    found = startup.measure_startup(2, 2)
    assert found["missing"][startup.TORCH_SPAWN] == "bench startup: spawn ended with 1: no."
    assert set(found["median_s"]) == {startup.COLD, startup.WARM, startup.MPIRUN}
    assert "does not tell the processor time" in startup.startup_text(found)


def test_processor_time_of_a_process_grows_when_it_works():
    before = startup.cpu_seconds(os.getpid())
    sum(range(2_000_000))
    assert startup.cpu_seconds(os.getpid()) > before
    assert startup.cpu_seconds(2**22 + 1) is None  # above the largest process number


@pytest.mark.parametrize("options", [{"ranks": 1}, {"rounds": 0}, {"idle_s": 0.0}])
def test_what_cannot_be_timed_is_refused(options):
    with pytest.raises(ArgumentError, match="bench startup"):
        startup.measure_startup(**options)
