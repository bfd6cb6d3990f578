"""Systems that lack what Linux has: what is read of them, and a Python like that of Windows."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_lab.base import system
from parallel_lab.base.errors import NoProcesses, SharedMemoryTooSmall
from parallel_lab.base.system import SYSTEM, TRIED, System, read_system, states_of
from parallel_lab.cli import doctor
from parallel_lab.processes.shm import WorkerPool, shared_memory
from tests.crossed import each_of

ROOT = Path(__file__).parents[2]
ABSENT_PID = 2**22 + 1  # Linux gives out numbers up to 2**22
only_once = pytest.mark.skipif(SYSTEM.portable, reason="the portable run has taken calls out of this Python")


@only_once
@each_of(
    ("name", "environment", "read", "missing", "processes"),
    ("Linux", {}, "Linux", False, True),
    ("Linux", {"PARALLEL_LAB_PORTABLE": "0"}, "Linux", False, True),
    ("Linux", {"PARALLEL_LAB_PORTABLE": "1"}, "Linux", True, True),
    ("Darwin", {}, "macOS", True, True),
    ("Windows", {}, "Windows", True, False),
    ids=["Linux", "off", "portable", "Mac", "Windows"],
)
def test_what_only_linux_has_is_missing_elsewhere_and_where_the_environment_says_so(
    name, environment, read, missing, processes
):
    found = read_system(name, environment)
    assert (found.name, found.processes, found.portable) == (read, processes, missing and name == "Linux")
    everything = set(System.__annotations__) - {"name", "portable", "processes"}
    assert set(found.missing) == (everything if missing else set())


@pytest.mark.portable
def test_a_portable_run_has_nothing_of_linux():
    portable = os.environ.get("PARALLEL_LAB_PORTABLE", "") not in ("", "0")
    assert SYSTEM.portable == portable and bool(SYSTEM.missing) == portable
    if portable:  # portable/sitecustomize.py has taken calls out, and sees what else the package asks for
        assert not hasattr(os, "pidfd_open")
        with pytest.raises(AssertionError, match="only Linux has /proc/self/stat"):
            system._letter("self")


@pytest.mark.portable
def test_states_of_processes_are_described_in_the_same_words():
    stopped = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        found = states_of([stopped.pid, os.getpid(), ABSENT_PID])
        assert found[stopped.pid] == "stopped by a signal" and found[ABSENT_PID] == "gone"
        assert found[os.getpid()] in ("running", "sleeping")
    finally:
        stopped.kill()
        stopped.wait()
    assert states_of([]) == {}


@only_once
def test_doctor_and_readme_say_of_each_system_what_was_run(monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE))
    assert {name: rows.get(name, "").replace("`", "") for name in TRIED} == TRIED
    for name in TRIED:
        monkeypatch.setattr(doctor, "SYSTEM", read_system({"macOS": "Darwin"}.get(name, name), {}))
        status, found, *mend = doctor.check_system()
        assert found.startswith(f"{name}: {TRIED[name]}")
        assert (status == "ok") == (not mend) == (name == "Linux")


def test_a_pool_is_refused_before_anything_is_made(monkeypatch):
    monkeypatch.setattr(system, "SYSTEM", read_system("Windows", {}))
    with pytest.raises(NoProcesses, match=r"WorkerPool: ranks cannot be processes on Windows.*simulator"):
        WorkerPool(2)


@only_once
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_on_windows_all_imports_labs_simulate_and_processes_are_refused_by_name(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("on_windows.py")), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    lines, why = done.stdout.splitlines(), "ranks cannot be processes on Windows"
    assert int(next(line for line in lines if line.startswith("modules")).split()[1]) > 400
    refused = [line for line in lines if line.startswith("refused")]
    assert len(refused) == 6 and all(f": {why}: " in line and "WSL 2" in line for line in refused), refused
    assert "same losses True simulator" in lines
    assert f"warned ['{why}, so they are simulated, with the same numbers']" in lines
    for lab in ("FusionLab", "MemoryLab", "PipelineLab", "StrategyLab"):
        told = next(line for line in lines if line.startswith(lab))
        assert "'state': 'done'" in told and f"{why}, so they are simulated" in told
    assert "Quickstart simulator True report.html" in lines
    assert f"files {['pipeline.html', 'report.html', 'strategy.json']}" in lines
    assert any(line.startswith("doctor warning  system     Windows: only designed") for line in lines)


# ---- a sandbox that refuses calls ----


def refusing(code):
    def refused(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    return refused


@only_once
@each_of(
    ("owner", "call", "lost"),
    (os, "memfd_create", {"memory_files"}),
    (socket.socket, "sendmsg", {"sent_descriptors", "fork_server"}),
    ids=["memfd_create", "sendmsg"],
)
def test_a_refused_call_is_missing_and_one_that_lacks_room_is_not(monkeypatch, owner, call, lost):
    for code, missing in ((errno.EPERM, lost), (errno.ENOSYS, lost), (errno.EMFILE, set()), (errno.ENOMEM, set())):
        monkeypatch.setattr(owner, call, refusing(code))
        assert set(read_system("Linux", {}).missing) == missing


@only_once
def test_refused_memory_files_and_reserved_pages_are_files_and_zeros(monkeypatch):
    """It was "give a smaller arena_bytes", and no size was small enough."""
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EPERM))
    monkeypatch.setattr(os, "posix_fallocate", refusing(errno.ENOSYS))
    block = shared_memory.SharedBlock(3 << 20)
    shared_memory.reserve(block.fd, 1 << 20, (1 << 20) + 5)
    assert os.fstat(block.fd).st_blocks * 512 >= 1 << 20 and not any(block.map[1 << 20 : 2 << 20])
    block.map[0] = 7
    assert os.pread(block.fd, 1, 0) == b"\x07"
    block.close()
    monkeypatch.setattr(shared_memory.tempfile, "TemporaryFile", refusing(errno.EROFS))
    with pytest.raises(SharedMemoryTooSmall, match=r"Allow memfd_create .* TMPDIR") as caught:
        shared_memory.SharedBlock(1 << 20)
    assert "arena_bytes" not in str(caught.value)
