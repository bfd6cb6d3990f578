"""Running the tutorials' scripts in tests: under our launcher, under mpirun, by their shell scripts."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from parallel_lab.processes import mpi
from parallel_lab.processes.launch import as_mindspore_folder
from tests.processes.launched import LAB, ROOT, lines_of, started
from tests.processes.pools import NEEDS_MPI

SCRIPTS = Path(__file__).with_name("scripts")
DATA = ROOT / "data"
LIMIT_S = 280.0
PATIENT = (
    "error,ignore::RuntimeWarning"  # a rank that waits for two seconds says so; on a busy machine that is not a fault
)

NEEDS_BASH = pytest.mark.skipif(
    shutil.which("bash") is None or sys.platform != "linux", reason="shell scripts of Linux"
)

# as the seeds print them
MONITORED = re.compile(r"epoch: (\d+) step: (\d+), loss is (\d+\.\d+(?:e-\d+)?)")
COUNTED = re.compile(r"epoch: (\d+), step: (\d+), loss is (\d+\.\d+)")


def copied(folder: Path, *names: str) -> Path:
    """`folder` with copies of scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copy(SCRIPTS / name, folder / name)
    return folder


def by_launcher(folder: Path, ranks: int, *command: str, **extra: str) -> list[list[str]]:
    """The lines each rank printed under `parallel-lab run --as-mindspore`; nothing of the run may be left."""
    with started(
        *LAB, "run", "-n", str(ranks), "--as-mindspore", *command, cwd=folder, PYTHONWARNINGS=PATIENT, **extra
    ) as run:
        code, output = run.wait(LIMIT_S)
        assert run.gone_after() is not None, f"left: {run.family()}\n{output}"
    assert code == 0, output
    return [lines_of(output, rank) for rank in range(ranks)]


def by_mpirun(folder: Path, ranks: int, *command: str, **extra: str) -> list[list[str]]:
    """The same under mpirun, MindSpore by the folder on PYTHONPATH; the lines from mpirun's files per rank."""
    path = os.pathsep.join([str(as_mindspore_folder()), str(ROOT)])
    files = ["--output-filename", "log_output", "--merge-stderr-to-stdout"]
    launched = mpi.mpirun_command(ranks, [sys.executable, *command])
    settings = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "", "PYTHONWARNINGS": PATIENT}
    with started(launched[0], *files, *launched[1:], cwd=folder, **extra, **settings) as run:
        code, output = run.wait(LIMIT_S)
        assert run.gone_after() is not None, f"left: {run.family()}\n{output}"
    assert code == 0, output
    return [(folder / f"log_output/1/rank.{rank}/stdout").read_text().splitlines() for rank in range(ranks)]


WAYS = [
    pytest.param(by_launcher, id="launcher"),
    pytest.param(by_mpirun, id="mpirun", marks=[NEEDS_MPI, pytest.mark.exhaustive]),
]


def by_shell(folder: Path, script: str, *arguments: str, code: int = 0, **extra: str) -> str:
    """What a shell script printed that was started in `folder`, after everything it began has ended."""
    settings = {"PYTHON": sys.executable, "PYTHONUNBUFFERED": "", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": PATIENT}
    with started("bash", str(SCRIPTS / script), *arguments, cwd=folder, **settings | extra) as run:
        found, output = run.wait(LIMIT_S)
        assert run.gone_after(LIMIT_S) is not None, f"left: {run.family()}\n{output}"
    assert found == code, output
    return output


def losses(lines: list[str], form: re.Pattern[str]) -> list[tuple[int, int, float]]:
    """(epoch, step, loss) of the lines of a form, whole lines only."""
    found = [form.fullmatch(line) for line in lines]
    return [(int(m[1]), int(m[2]), float(m[3])) for m in found if m]
