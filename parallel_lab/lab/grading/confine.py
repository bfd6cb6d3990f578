"""Keeping a submission's process in bounds: what it may use and write, and an end for it and all that it started.

`confine` is called by the process on itself, before it runs a line of the submission: limits of the system, and the
walls of `walls.py`.
`Watch` looks from outside: at processes, memory, and time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import walls

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
LOOK_S = 0.1
DEEPEST = 100  # folders in each other
LOOKS_FOR_SHARED = 3  # of so many looks one counts what processes share


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    time_s        seconds for all of it, from start to marks
    cell_s        of one cell
    memory_bytes  of all its processes together; a single one may reserve twice as many addresses
    file_bytes    of one file that it writes (memory that processes share counts as one), and of its scratch folder
    processes     at a time: a lesson starts up to ten
    """

    time_s: float = 300.0
    cell_s: float = 60.0
    memory_bytes: int = 2 << 30
    file_bytes: int = 1 << 30
    processes: int = 48

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for `Limits(**data)`."""
        return asdict(self)


def guard() -> None:
    """Make this process, a grader, the one that inherits what a submission leaves behind; no other may look into it."""
    if sys.platform == "linux":
        walls.prctl(PR_SET_CHILD_SUBREAPER, 1)
        walls.prctl(PR_SET_DUMPABLE, 0)


def confine(limits: Limits, scratch: str, found: Mapping[str, Any], files: Sequence[str]) -> None:
    """Bind this process and its children to the limits, and build the walls that were `found` on this machine. Raises
    OSError where one cannot be built after all.
    """
    with contextlib.suppress(ImportError):  # Windows has no limits of this kind: there the watch alone ends it
        import resource

        wanted = {
            resource.RLIMIT_AS: 2 * limits.memory_bytes,
            resource.RLIMIT_FSIZE: limits.file_bytes,
            resource.RLIMIT_CPU: int(limits.time_s) + 1,
            resource.RLIMIT_CORE: 0,
        }
        for kind, value in wanted.items():
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            with contextlib.suppress(ValueError, OSError):  # macOS has no limit of addresses
                resource.setrlimit(kind, (value, value))
    if sys.platform == "linux":
        walls.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        walls.close(found, scratch, files)


# ---- from outside ----


def descendants(parent: int) -> list[int]:
    """Processes that this one started, and those that they did; [] where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in _processes():
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(entry)
    pids, left = [], [parent]
    while left:
        born = children.get(left.pop(), [])
        pids += born
        left += born
    return pids


def _processes() -> Sequence[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _memory_bytes(processes: Sequence[int]) -> int:
    """Memory of their own: shared pages, such as the interpreter's, are left out."""
    pages = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            resident, shared = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1:3]
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _shared_bytes(processes: Sequence[int]) -> int:
    """Memory that they share: what is mapped, or what lies in files that they hold open and that have lost their name,
    as all files of memory have; the larger one.
    """
    mapped, held = 0, {}
    for process in processes:
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines():
                mapped += 1024 * int(line.split()[1]) if line.startswith("Pss_Shmem:") else 0
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).endswith(" (deleted)"):  # as all of memory are: "/memfd:x (deleted)"
                        state = os.stat(entry.path)
                        held[state.st_dev, state.st_ino] = state.st_blocks * 512
    return max(mapped, sum(held.values()))


def _disk_bytes(folder: Path) -> float:
    """All files in a folder; infinite where more than DEEPEST folders lie in each other."""
    total, left = 0, [(str(folder), 0)]
    while left:
        where, depth = left.pop()
        if depth > DEEPEST:
            return math.inf
        with contextlib.suppress(OSError):  # it has gone
            for entry in os.scandir(where):
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    left += [(entry.path, depth + 1)] if entry.is_dir(follow_symlinks=False) else []
    return total


def remove(folder: Path) -> None:
    """Remove a folder whose processes have ended, however deep it is and even if its own folders are closed to their
    owner. What lies in them is moved up: a path has a longest length, and a function its depth.
    """
    names = (f"{folder}/{secrets.token_hex(8)}" for _ in itertools.count())
    with contextlib.suppress(OSError):
        while inner := [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]:
            for path in inner:
                os.chmod(path, 0o700)
                for entry in list(os.scandir(path)):
                    if entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.path, 0o700)
                        os.rename(entry.path, next(names))
                    else:
                        os.unlink(entry.path)
                os.rmdir(path)
    shutil.rmtree(folder, ignore_errors=True)


def end_all(parent: int, seconds: float = 10.0) -> bool:
    """Kill what this process has started, however fast it multiplies; whether nothing is left."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        alive = descendants(parent)
        if not alive:
            return True
        for kind in (signal.SIGSTOP, signal.SIGKILL):
            for process in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, kind)
        _reap()
        time.sleep(0.005)
    return False


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


class Watch:
    """Looks at a submission's processes until it is closed; ends all of them when they use too much.

    reason  why it has ended them; "" so far
    """

    def __init__(self, limits: Limits, folder: Path) -> None:
        self.limits, self.reason, self.folder = limits, "", folder
        self._looks = self._shared = 0
        self.ending = threading.Lock()  # held while it looks and ends processes, and taken to start one
        self._begin, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @property
    def left_s(self) -> float:
        """Seconds that are left of the submission's time."""
        return self.limits.time_s - (time.monotonic() - self._begin)

    def close(self) -> None:
        """Look no longer."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            with self.ending:  # for the look too: what it found must not end a process that was started after it
                found = descendants(os.getpid())
                reason = self._too_much(found)
                if reason and found:
                    self.reason = reason
                    end_all(os.getpid())
                    self._shared = 0  # not that of the process that comes next

    def _too_much(self, found: Sequence[int]) -> str:
        limits = self.limits
        if self.left_s < 0:
            return f"stopped: more than {limits.time_s:g} s"
        if len(found) > limits.processes:
            return f"stopped: more than {limits.processes} processes"
        self._looks += 1
        if self._looks % LOOKS_FOR_SHARED == 0:
            self._shared = _shared_bytes(found)
        if _memory_bytes(found) + self._shared > limits.memory_bytes:
            return f"stopped: more than {limits.memory_bytes >> 20} MiB of memory"
        if _disk_bytes(self.folder) > limits.file_bytes:
            return f"stopped: more than {limits.file_bytes >> 20} MiB of files, or {DEEPEST} folders in each other"
        return ""
