"""Running launchers in tests: bounded, tagged in the environment, and counted afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallel_lab.base.system import SYSTEM, VARIABLE

ROOT = Path(__file__).resolve().parents[2]
LAB = (sys.executable, "-m", "parallel_lab")
LIMIT_S = 60.0  # no test waits longer for a process
BEGINNING = 50  # milliseconds
PF_KTHREAD = 0x00200000  # linux/sched.h
# what a test run inside other ranks, or on a machine with settings of its own, must not inherit
_FOREIGN = ("RANK_", "DEVICE_ID", "MS_", "OMPI_", "PMI", "PARALLEL_LAB", "HCCL_", "PYTEST_", "COV_")

HEAD = """
import os, signal, sys, time
import numpy as np
from parallel_lab.base import hooks, seeds
from parallel_lab.mindspore._communication import *
"""


@dataclass
class Started:
    """A process and everything that bears its tag."""

    process: subprocess.Popen
    tag: str
    start_s: float = field(default_factory=time.monotonic)

    def wait(self, limit_s: float = LIMIT_S) -> tuple[int, str]:
        """(exit code, output). Kills everything and raises when it takes longer."""
        out, _ = self.process.communicate(timeout=limit_s)
        return self.process.returncode, out

    def family(self) -> list[int]:
        """Living processes that bear the tag, this one included: also those whose parents are gone."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.tag.encode() in environment_of(folder):
                    found.append(int(folder.name))
        return found

    def ranks(self) -> dict[int, int]:
        """{process: rank} as far as they are there."""
        found = {}
        for pid in self.family():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_text().split("\0")
                told = [int(word.removeprefix("RANK_ID=")) for word in words if word.startswith("RANK_ID=")]
                found.update((pid, rank) for rank in told)
        return found

    def gone_after(self, limit_s: float = 10.0) -> float | None:
        """Seconds until no tagged process lives; None if some still do after limit_s. One that is born while the others
        are read, by one that ends, is seen at the second look.
        """
        start = time.monotonic()
        while self.family() or self.family():
            if time.monotonic() - start > limit_s:
                return None
            time.sleep(0.01)
        return time.monotonic() - start

    def wait_for(self, *paths: Path, limit_s: float = LIMIT_S) -> None:
        """Until all the files are there (scripts make them to say how far they are; what is in them may come later)."""
        end = time.monotonic() + limit_s
        while not all(path.exists() for path in paths):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end, f"{[str(p) for p in paths if not p.exists()]} did not come"
            time.sleep(0.01)


def environment_of(folder: Path) -> bytes:
    """The environment of the living process whose folder of /proc this is, b"" for the system's own threads and for a
    process without one. A process that just begins another program lacks it for a moment: it is asked again.
    """
    for _ in range(BEGINNING):
        state, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
        found = (folder / "environ").read_bytes()
        if found or state in "ZX" or int(fields[5]) & PF_KTHREAD:
            return found
        time.sleep(1e-3)
    return b""


def environment(**extra: str) -> dict[str, str]:
    """The environment of a test's processes: this checkout on the path, nothing of other launchers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN) or name == VARIABLE}
    path = os.pathsep.join([*([str(ROOT / "tests" / "portable")] if SYSTEM.portable else []), str(ROOT)])
    return {**kept, "PYTHONPATH": path, "PYTHONWARNINGS": "error", **extra}


@contextlib.contextmanager
def started(*command: str, cwd: Path, stdout: Any = subprocess.PIPE, **extra: str) -> Iterator[Started]:
    """Start a command; at the end nothing of it is left, whatever happened."""
    tag = f"PARALLEL_LAB_TEST_TAG={uuid.uuid4().hex}"
    name, value = tag.split("=")
    streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.STDOUT}
    options = {"cwd": cwd, "env": environment(**extra, **{name: value}), "text": True, "start_new_session": True}
    process = subprocess.Popen([str(word) for word in command], **streams, **options)
    run = Started(process, tag)
    try:
        yield run
    finally:
        for pid in run.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def script(folder: Path, body: str, name: str = "train.py") -> Path:
    """A script of a rank in `folder`: the usual imports, then `body`."""
    path = folder / name
    path.write_text(HEAD + textwrap.dedent(body))
    return path


def run_ranks(
    folder: Path, count: int, body: str, *options: str, arguments: tuple[str, ...] = (), **extra: str
) -> tuple[int, str]:
    """`parallel-lab run -n count` of a script with `body`; (exit code, output). Nothing may be left of it."""
    script(folder, body)
    with started(*LAB, "run", "-n", str(count), *options, "train.py", *arguments, cwd=folder, **extra) as run:
        code, output = run.wait()
        assert run.gone_after(2.0) is not None, f"left: {run.family()}\n{output}"
    return code, output


def output_of(folder: Path, count: int, body: str, *options: str, code: int = 0, **given: Any) -> str:
    """The output of `run_ranks`, which must end with this exit code."""
    found, output = run_ranks(folder, count, body, *options, **given)
    assert found == code, output
    return output


def lines_of(output: str, rank: int) -> list[str]:
    """What `rank` printed, without its tag."""
    return [line[len(f"[{rank}] ") :] for line in output.splitlines() if line.startswith(f"[{rank}] ")]


def notes(output: str) -> list[str]:
    """What the launcher said."""
    return [line.removeprefix("parallel-lab: ") for line in output.splitlines() if line.startswith("parallel-lab: ")]
