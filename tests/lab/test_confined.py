"""A program of a stranger that is run for `explain(run=True)`: it reads, sends and outlives nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel_lab.base.errors import ArgumentError, WorldError
from parallel_lab.lab.explain import explanation
from parallel_lab.lab.grading import confined
from parallel_lab.lab.grading.confine import Limits, descendants
from tests.crossed import each_of

pytestmark = [pytest.mark.timeout(150), pytest.mark.skipif(sys.platform != "linux", reason="walls are Linux's")]
SMALL = Limits(time_s=20.0, memory_bytes=512 << 20)
PROMISE_S = 5.0  # that all is over when the notebook is; other work on the machine


def said(script, limits=SMALL, **files):
    return confined.run_confined(script, ["given"], files, limits, "test").split()


def test_it_has_its_own_folder_and_neither_files_of_others_nor_a_network(tmp_path):
    (tmp_path / "answers.txt").write_text("secret")
    script = f"""
import os, socket, sys
def tried(name, ask):
    try:
        ask()
        print(name, "done")
    except OSError:
        print(name, "refused")
print(sys.argv[1], open("own").read(), *sorted(os.listdir()))
tried("read", lambda: open({str(tmp_path / "answers.txt")!r}).read())
tried("write", lambda: open({str(tmp_path / "new")!r}, "w"))
tried("home", lambda: os.listdir({os.path.expanduser("~")!r} + "/.ssh"))
tried("connect", lambda: socket.create_connection(("127.0.0.1", 9), 2))
tried("signal", lambda: os.kill({os.getpid()}, 0))
print(open("made", "w").write("ab"))
"""
    told = said(script, own="mine")
    assert told[:4] == ["given", "mine", "own", "script.py"] and told[-1] == "2"
    tried = ("read", "write", "home", "connect", "signal")
    assert told[4:-1] == [word for name in tried for word in (name, "refused")]
    assert not (tmp_path / "new").exists()


@pytest.mark.exhaustive
@each_of(
    ("script", "reason"),
    ("while True: pass", "more than 3 s"),
    ("import os\nos.close(1)\nwhile True: pass", "more than 3 s"),
    ("import time\nheld = [bytearray(b'x' * (1 << 26)) for _ in range(7)]\ntime.sleep(60)", "MiB of memory"),
    ("import os\nfor n in range(9): open(f'f{n}', 'wb').write(b'x' * (1 << 26))\nwhile True: pass", "of files"),
)
def test_what_uses_too_much_is_ended_with_the_reason(script, reason):
    limits = Limits(time_s=3.0 if "3 s" in reason else 30.0, memory_bytes=256 << 20, file_bytes=128 << 20)
    with pytest.raises(WorldError, match=reason):
        said(script, limits)


@pytest.mark.exhaustive
def test_nothing_that_it_starts_stays_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(confined.tempfile, "tempdir", str(tmp_path))
    assert said("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('over')") == ["over"]
    assert not descendants(os.getpid()) or all(
        b"confined" not in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())
    )
    assert not list(tmp_path.iterdir())


NOTEBOOK = """
from parallel_lab.lab.grading.confined import run_confined
from parallel_lab.lab.grading.confine import Limits
run_confined("import time\\nopen('begun', 'w')\\ntime.sleep(600)", [], {}, Limits(time_s=100), "test")
"""


def test_it_dies_with_the_notebook(tmp_path):
    notebook = subprocess.Popen([sys.executable, "-c", NOTEBOOK], env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        end = time.monotonic() + 90
        while not list(tmp_path.glob("*/own/begun")) and time.monotonic() < end:
            time.sleep(0.1)
        started = descendants(notebook.pid)
        assert len(started) >= 2
    finally:
        os.kill(notebook.pid, signal.SIGKILL)
        notebook.wait()
    end = time.monotonic() + PROMISE_S
    while any(map(alive, started)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, started))


def alive(pid):
    """Whether it runs: one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_where_there_are_no_walls_nothing_runs(monkeypatch):
    monkeypatch.setattr(confined, "found_walls", lambda *_: {"namespaces": False, "landlock": 4, "seccomp": False})
    with pytest.raises(WorldError, match=r"INCOMPLETE.*paste its log"):
        said("print('ran')")


def test_what_the_child_says_is_data_and_other_programs_are_only_read(monkeypatch):
    monkeypatch.setattr(explanation, "find_spec", lambda name: True)
    for printed in ("", "no json", "[1, 2]", '{"error": "", "messages": 7}'):
        monkeypatch.setattr(explanation, "run_confined", lambda *_, printed=printed: printed)
        with pytest.raises(ArgumentError, match="no messages"):
            explanation.explain("import torch\n", run=True)
    with pytest.raises(ArgumentError, match="a program of JAX"):
        explanation.explain("import jax\n", run=True)
