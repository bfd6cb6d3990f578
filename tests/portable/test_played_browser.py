"""In a Python played as a browser's (played_browser.py): what can be imported, labs with their controls, exercises,
lessons, and bits.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from parallel_lab.base.driver import DRIVER, SLICE_S
from parallel_lab.lab.classroom.roll import read_class
from parallel_lab.lab.exercises import all_exercises
from parallel_lab.lab.grading.marks import grade_folder
from parallel_lab.run.computing import one_blas_thread
from tests.lab.labs import LABS
from tests.portable import played_browser

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(path.name for path in (ROOT / "notebooks").glob("[01]*.ipynb"))[:12]  # 13 is about processes
SIMULATED = "ranks cannot be processes in a browser, so they are simulated"
# modules for processes alone, whatever imports them; rooms can be imported without
OF_PROCESSES = (
    "parallel_lab.processes.",
    "parallel_lab.mindspore._mint_distributed",
    "parallel_lab.mindspore._tcp_store",
)
# cells that go on with what a cell before has measured, or written from processes
NEED = {
    "02": {"cell-15": "fit", "cell-19": "fit", "cell-21": "fit", "cell-37": "fit", "answered exercise-02-3": "fit"},
    "03": {"cell-31": "ranks_mean"},
    "04": {"cell-09": "events.json", "cell-22": "cluster"},
    "08": {"more-08-4-shown": "ml_dtypes"},  # Pyodide has it
    "09": {"cell-32": "proofs"},
    "10": {"cell-28": "stage.ckpt", "cell-33": "whole.txt"},
}
NEED["02"]["answered test-02-3"] = "fit"
NOT_HERE = {"02.3": "its times are those of real messages", "12.1": "its run must be measured"}
NOT_HERE |= {f"13.{place}": "the ranks of scripts are threads" for place in range(1, 11)}


def played(*words: str) -> Any:
    """What a function of played_browser.py finds, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return _played(folder, *words)


def _played(folder: str, *words: str) -> Any:
    command = [sys.executable, str(Path(played_browser.__file__)), *words]
    environment = {**os.environ, "MPLBACKEND": "agg", "IPYTHONDIR": folder, "TMPDIR": folder}
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, env=environment, cwd=folder)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0 and lines, done.stderr[-3000:]
    return json.loads(lines[-1].removeprefix("FOUND "))


def test_every_room_can_be_imported_and_what_cannot_is_for_processes():
    found = played("imports")
    others = [name for name in found["faults"] if not name.startswith(OF_PROCESSES)]
    assert found["count"] > 700 and others == []


def test_controls_pause_a_run_go_on_and_stop_it():
    found = played("stop_and_pause")
    (running, begun), (paused, at), (again, more), (done, last) = found["seen"]
    assert [running, paused, again, done] == ["running", "paused", "running", "done"]
    assert 3 <= begun <= at < at + 5 <= more <= last < 100_000 and found["while paused"] == 0
    assert found["form"] == "loop" and SIMULATED in found["words"]


def test_what_compiles_in_the_background_gives_turns_between_passes_and_tensors_and_a_command_does_not():
    found = played("turns_given")
    compiling, beginning, passes, slices = found["background"]
    assert compiling >= passes > 3 and beginning >= slices > 3
    assert found["command"][:2] == [0, 0]


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [[], ["in-one-piece"]], ids=["in turns", "in one piece"])
def test_labs_build_their_pages_run_on_simulated_ranks_and_say_so(how):
    """In one piece: in browsers that cannot take a stack aside."""
    found = played("run_labs", *how)
    assert set(found) == set(LABS)
    for name, lab in found.items():
        assert lab["page"] > 100_000 and lab["words"], name
        runs = {run: told for run, told in lab.items() if run.startswith("run")}
        assert all(told["state"] == "done" and not told["error"] for told in runs.values()), (name, runs)
        if name in ("fusion", "memory", "context", "experts"):
            assert SIMULATED in runs["run_measured"]["text"]
            assert how or runs["run_measured"]["turns"] > 3


@pytest.mark.exhaustive
def test_an_answer_that_does_not_end_is_stopped_at_its_line():
    found = played("endless")
    for number, lines in (("01.1", "[23]"), ("02.1", "[56]")):  # of its loop
        text, seconds = found[number]
        assert re.search(rf"at answer.py:{lines}\b", text) and "stopped: still running after 4 s" in text
        assert seconds < 60, text


def test_a_reload_keeps_hints_and_verdicts_and_the_file_is_what_a_teacher_reads(tmp_path):
    found = played("reload", str(tmp_path))
    tries = [["('a', ((1, 2), 3))", "('b', ())"]]
    assert found["first"] == {"seen": {"01.1": 1, "02.1": 1}, "attempts": [1], "tries": tries}
    assert found["second"] == {"seen": {"01.1": 2, "02.1": 1}, "attempts": [2], "tries": tries}
    assert found["damaged"] == {"03.1": 1} and found["aside"] == "[1]" and found["name"] == "Ada"
    (tmp_path / "class").mkdir()
    (tmp_path / "checks.json").rename(tmp_path / "class" / "ada.json")
    roll = read_class(tmp_path / "class")
    assert list(roll.learners) == ["Ada"] and not roll.refused


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_its_exercises_pass_and_cells_that_need_processes_say_so(name):
    found = played("run_lesson", name)
    need = NEED.get(name[:2], {})
    for cell, fault in found["faults"].items():
        if cell not in found["tagged"]:
            assert need[cell] in fault if cell in need else "cannot be processes in a browser" in fault, (cell, fault)
    for grade_id, (points, most) in found["points"].items():
        number = grade_id.removeprefix("test-").replace("-", ".")
        assert points == most or number in NOT_HERE, (grade_id, points, most)


@pytest.mark.exhaustive
def test_what_a_page_hands_in_is_graded_by_running_its_cells_again(tmp_path):
    found = played("run_lesson", LESSONS[0])
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "checks.json").write_text(found["handed in"], encoding="utf-8")
    marks = grade_folder(tmp_path).marks
    points = {grade_id.removeprefix("test-").replace("-", "."): most for grade_id, (_, most) in found["points"].items()}
    assert {number: sum(m.points for m in marks if m.exercise == number) for number in points} == points
    assert {m.status for m in marks} == {"passed"}


def test_nearly_all_exercises_can_be_solved_in_a_browser():
    numbers = [exercise.number for exercise in all_exercises()]
    assert set(NOT_HERE) <= set(numbers) and len(NOT_HERE) <= 0.2 * len(numbers)


PLANS = 100


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, PLANS, PLANS // 20))
def test_drawn_plans_train_to_the_same_bits(first):
    given = str(first), str(first + PLANS // 20)
    here, there = played("plans", *given), played("plans", "here", *given)
    assert {seed: there[seed] for seed, sums in here.items() if sums != "bfloat16"} == {
        seed: sums for seed, sums in here.items() if sums != "bfloat16"
    }
    assert set(here) == set(there) and "bfloat16" not in there.values()


# ---- threads ----


def test_on_a_computer_work_goes_on_in_a_thread():
    seen, begin, done = [], threading.Event(), threading.Event()

    def work() -> None:
        begin.wait(20)
        seen.append(given.is_here())
        done.set()

    given = DRIVER.start(work, "a test")
    begin.set()
    assert DRIVER.wait(done, 20) and seen == [True] and not given.is_here()
    assert DRIVER.form in ("processes", "thread") and 0 < SLICE_S < 0.05
    with one_blas_thread():
        DRIVER.breathe()
