"""`parallel-lab bench collectives`: right results, complete tables, goals by arithmetic. No test asserts a speed."""

import dataclasses
import doctest
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cli import main as cli
from parallel_lab.cli.results import SCHEMA, installed_version, machine_facts, results_json
from parallel_lab.processes.mpi.launch import find_mpirun
from tests.bench import page
from tests.bench.cases import OPS, POINT_TO_POINT, Case, WrongResult, check_results, expected, given
from tests.bench.checks import CheckCost
from tests.bench.collectives import (
    ARENA,
    COPY,
    FUTEX,
    GLOO,
    OURS,
    OUT,
    CollectivesReport,
    Timing,
    measure_collectives,
    mpi_configurations,
)
from tests.bench.collectives_text import collectives_dict, collectives_page, collectives_text
from tests.bench.goals import collective_goals
from tests.crossed import each_of

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_expected_results_are_those_of_the_undivided_computation(op, ranks):
    cases = Case(op, 4 * 24 * 1001, ranks)
    gave = [given(cases, r) for r in range(ranks)]
    pieces = [np.split(x, ranks) for x in gave] if op != "all_gather" else []
    whole = {
        "all_reduce": lambda r: np.sum(gave, axis=0),
        "reduce_scatter": lambda r: np.sum([p[r] for p in pieces], axis=0),
        "all_gather": lambda r: np.concatenate(gave),
        "all_to_all": lambda r: np.concatenate([p[r] for p in pieces]),
        "broadcast": lambda r: gave[0],
        # pairs 0 1, 2 3, ...: each has the other's; of a stream the lower one only sends; of three ranks one is idle
        "ping_pong": lambda r: gave[[1, 0, 3, 2, 5, 4, 7, 6][r] if r // 2 * 2 + 1 < ranks else r],
        "stream": lambda r: gave[r // 2 * 2 if r // 2 * 2 + 1 < ranks else r],
    }[op]
    for rank in range(ranks):
        assert np.array_equal(expected(cases, rank), whole(rank)) and expected(cases, rank).dtype == np.float32
        check_results(cases, rank, whole(rank))


def test_one_wrong_element_is_seen():
    case = Case("all_reduce", 4096, 2)
    result = expected(case, 1)
    result[17] += 1
    with pytest.raises(WrongResult, match="rank 1 got 1 wrong elements of 1024"):
        check_results(case, 1, result)


@each_of("op, size, ranks", ("gather", 4096, 2), ("all_reduce", 4096, 1), ("all_reduce", 4098, 2), ("all_to_all", 8, 4))
def test_cases_that_cannot_be_are_refused(op, size, ranks):
    with pytest.raises(ArgumentError, match="bench collectives"):
        Case(op, size, ranks)


@pytest.fixture(scope="module")
def alone():
    """Our own workers with the futex barrier and the copy, each op once."""
    return measure_collectives(2, OPS, (4 * KIB, MIB), 1, busy=1, batch_s=0.001, peers=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [4 * KIB, MIB])
def test_ours_is_timed_in_all_three_forms(alone, op, size):
    timing = alone.timing(op, size)
    names = {OURS, OUT, ARENA} | ({COPY} if op in ("all_reduce", *POINT_TO_POINT) and size == MIB else set())
    assert timing.failed == () and {name for name, _ in timing.seconds} == names
    assert all(len(times) == 1 and 0 < times[0] < 60 for _, times in timing.seconds)


def test_barriers_and_checks_are_timed(alone):
    for timing in (alone.barrier_quiet, alone.barrier_busy):
        assert {name for name, _ in timing.seconds} == {OURS, FUTEX} and timing.failed == ()
    assert 0 < alone.checks.checks_s < 1 and 0 < alone.checks.share < math.inf


def test_the_report_is_complete_as_text_page_and_json(alone):
    text, page = collectives_text(alone), collectives_page(alone, machine_facts())
    assert all(text.count(f"\n{op} ") >= 2 for op in OPS) and "NaN" not in text
    assert "<script" not in page and page.count("<svg") == len(OPS)
    # the name of SVG; nothing is fetched
    assert set(re.findall(r"[a-z]+://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}
    found = json.loads(results_json("collectives", machine_facts(), collectives_dict(alone)))
    machine = found["machine"]
    assert found["schema"] == SCHEMA and machine["cores"] >= 1 and machine["python"] and machine["versions"]["numpy"]
    assert len(found["timings"]) == 2 * len(OPS) and len(found["goals"]) == len(collective_goals(alone))
    assert all(math.isfinite(m) for t in found["timings"] for m in t["median_s"].values())


@pytest.mark.exhaustive
def test_other_libraries_give_right_results_or_a_line_that_says_why_not():
    report = measure_collectives(2, ("reduce_scatter", "ping_pong", "stream"), (64 * KIB,), 1, busy=0, batch_s=0.001)
    missing = dict(report.missing)
    assert (GLOO in missing) == (installed_version("torch") is None)
    for timing in (*report.timings, report.barrier_quiet):
        assert timing.failed == ()
        assert (timing.median_s(GLOO) is None) == (GLOO in missing)
        assert (timing.mpi_s() is None) == any(name.startswith(("MPI", "Open MPI")) for name in missing)
    text = collectives_text(report)
    assert report.barrier_busy is None and all(f"{name} is missing: {why}" in text for name, why in missing.items())


@each_of(
    "text, names",
    ("mpirun (Open MPI) 5.0.11", ["Open MPI 5.0.11", "Open MPI 5.0.11 ob1"]),
    ("HYDRA build details:\n    Version:   5.0.2", ["MPICH 5.0.2"]),
    ("Intel(R) MPI Library, Version 2021.18.1 Build 1", ["Intel MPI 2021.18.1", "Intel MPI 2021.18.1 asleep"]),
    ("another launcher", ["MPI"]),
)
def test_an_mpi_is_named_by_what_its_mpirun_says(tmp_path, text, names):
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\necho '{text}'\n", encoding="utf-8")
    (tmp_path / "mpirun").chmod(0o755)
    assert list(mpi_configurations(str(tmp_path))) == names


@pytest.mark.exhaustive
@pytest.mark.skipif(not (find_mpirun() and installed_version("mpi4py")), reason="mpirun or mpi4py not found")
def test_several_mpis_are_timed_in_one_run_and_the_best_counts(tmp_path):
    """The second is the first under another name, by its own mpirun."""
    script = f'#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 4.9.9" || exec {find_mpirun()} "$@"\n'
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").write_text(script, encoding="utf-8")
    (tmp_path / "bin" / "mpirun").chmod(0o755)
    report = measure_collectives(2, ("stream",), (4 * KIB,), 1, busy=0, batch_s=0.001, mpis=("", str(tmp_path)))
    (timing,) = report.timings
    timed = {name: times[0] for name, times in timing.seconds if "MPI" in name}
    assert report.missing == () or [name for name, _ in report.missing] == [GLOO]
    assert {"Open MPI 4.9.9", *mpi_configurations()} <= {*timed} and timing.mpi_s() == min(timed.values())


# ---- goals, from made-up times ----


def timing(op, size, **seconds):
    names = {"ours": OURS, "out": OUT, "arena": ARENA, "gloo": GLOO, "copy": COPY, "futex": FUTEX}
    names |= {"mpi": "Open MPI", "ob1": "Open MPI ob1"}
    return Timing(op, size, tuple((names[k], (v,)) for k, v in seconds.items()))


MADE_UP = CollectivesReport(
    ranks=8,
    cores=2,
    rounds=1,
    competitors=(("ours", "x"),),
    missing=(("torch gloo", "not there"),),
    timings=(
        timing("all_reduce", 4 * KIB, ours=30e-6, out=20e-6, arena=40e-6, gloo=2e-3, mpi=60e-6, ob1=50e-6),
        timing("all_reduce", 16 * MIB, ours=30e-3, out=20e-3, arena=12e-3, gloo=70e-3, mpi=20e-3, ob1=25e-3, copy=2e-3),
        timing("broadcast", MIB, out=3e-3, arena=1e-3, mpi=2e-3),
        timing("broadcast", 16 * MIB, out=40e-3, arena=30e-3, mpi=20e-3),
        timing("broadcast", 4 * KIB, out=1.0, arena=1.0, mpi=1e-6),
        timing("stream", MIB, out=3e-3, arena=1e-3, mpi=2e-3, copy=1e-3),
        timing("ping_pong", MIB, out=3e-3, arena=8e-3, mpi=6e-3, copy=1e-3),
    ),
    barrier_quiet=timing("barrier", 0, ours=8e-6, mpi=16e-6, futex=40e-6),
    barrier_busy=timing("barrier", 0, ours=400e-6, mpi=1.0, futex=50e-6),
    busy=2,
    checks=CheckCost(400e-6, 10e-6),
    skipped=(("all_reduce", 64 * MIB, "needs 9 GiB"),),
    load_before=0.5,
    load_after=1.5,
)


@each_of(
    "what, against, reached, met",
    ("barrier, quiet", "MPI", 0.5, True),
    ("barrier, 2 foreign busy processes", "a plain futex barrier", 8.0, False),
    ("all_reduce 4 KiB", "MPI", 0.4, True),  # 20 over the better of 60 and 50
    ("all_reduce 4 KiB", "gloo", 1 / 100, True),
    ("all_reduce 64 KiB", "MPI", None, None),
    ("all_reduce 16 MiB", "MPI", 1.0, False),
    ("all_reduce 16 MiB", "gloo", 2 / 7, False),
    ("all_reduce 16 MiB, arena", "memory bound p N / copy bandwidth", 1.5, False),  # 12 ms over 8 * 2 ms / 2
    ("all_reduce 64 MiB, arena", "memory bound p N / copy bandwidth", None, None),
    ("broadcast from 1 MiB", "MPI", 2.0, False),  # the worse of 1.5 and 2; 4 KiB does not count
    ("broadcast from 1 MiB, arena", "MPI", 1.5, False),
    ("all_to_all from 1 MiB", "MPI", None, None),
    ("broadcast 4 KiB", "MPI", 1e6, False),
    ("stream 1 MiB", "MPI", 1.5, False),
    ("stream 1 MiB, arena", "a copy", 0.5, True),  # 4 pairs on 2 cores: 2 copies
    ("ping_pong 1 MiB, arena", "a copy", 2.0, False),  # and as many back
    ("checks in a 256 KiB all_reduce", "the call", 0.025, True),
)
def test_goals_are_quotients_of_medians(what, against, reached, met):
    (goal,) = [g for g in collective_goals(MADE_UP) if (g.what, g.against) == (what, against)]
    assert (goal.reached, goal.met) == (reached if reached is None else pytest.approx(reached), met)


def test_the_text_tells_what_was_left_out_and_what_is_missing():
    text = collectives_text(MADE_UP)
    assert "all_reduce of 64 MiB was left out: needs 9 GiB" in text and "torch gloo is missing: not there" in text
    assert "load 0.5 before, 1.5 after" in text
    quiet = dataclasses.replace(MADE_UP.barrier_quiet, failed=(("torch gloo", "it broke"),))
    failed = dataclasses.replace(MADE_UP, barrier_quiet=quiet)
    assert "torch gloo failed in barrier" in collectives_text(failed)


# ---- the command ----


@pytest.mark.exhaustive
def test_the_command_writes_what_it_shows(tmp_path, capsys):
    json_file, page = tmp_path / "speed.json", tmp_path / "speed.html"
    options = ["--quick", "--alone", "--ranks", "2", "--ops", "all_gather", "--sizes", "4K", "--busy", "0"]
    assert cli.main(["bench", "collectives", *options, "--json", str(json_file), "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    found = json.loads(json_file.read_text())
    assert [(t["op"], t["size_bytes"]) for t in found["timings"]] == [("all_gather", 4096)]
    assert found["barrier_busy"] is None
    assert "all_gather" in shown and "not measured" in shown and "all_gather, 2 ranks" in page.read_text()


WRONG = "--ranks 1", "--ranks x", "--sizes 4G", "--sizes K", "--ops gather", "--busy -1", "--json /", "--html /"


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_before_anything_starts(wrong, capsys):
    try:
        code = cli.main(["bench", "collectives", "--alone", *wrong.split()])
    except SystemExit as end:
        code = end.code
    assert code == 2 and capsys.readouterr().err


@pytest.mark.quick(0)
@pytest.mark.faults("ranks at work", cases=1)
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_leaves_nothing(tmp_path, number, code):
    """The processes are looked for by the check that every test gets, the files here."""
    words = ["bench", "collectives", "--alone", "--ranks", "2", "--rounds", "100000", "--sizes", "64K"]
    command = [sys.executable, "-m", "parallel_lab", *words]
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        end = time.monotonic() + 60
        while not list(tmp_path.glob("parallel-lab-bench-*")) and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(1.5)  # in the middle of the rounds, or of the start on a busy machine: both must end
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(60) == code
        words = process.stderr.read().decode()
    assert "Traceback" not in words
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("parallel-lab")] == []


def test_the_examples_of_tables_hold():
    """pytest looks for doctests in the package alone."""
    failed, attempted = doctest.testmod(page)
    assert attempted == 3 and failed == 0
