"""Launchers and ranks that begin as forks of a process that has loaded the package: they are there in a hundredth of a
second. A start of Python and the imports take one.

    Forked([sys.executable, "-m", "parallel_lab", "run", "-n", "2", "train.py"], cwd=folder, env=..., stdout=PIPE)

is a `subprocess.Popen`, and the launcher starts its ranks in the same way. Arguments, environment, folder, streams,
signals, process group and descriptors are those of a new process; only the loaded modules are not. Tests about what a
process loads, or how Python begins, start a new one (`started(..., new=True)`). Linux only: see `show`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import io
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
ROOM = "PARALLEL_LAB_TEST_ROOM"
SHOWN = ("PARALLEL_LAB_TEST_TAG", "RANK_ID")  # variables that tests look for in /proc
PRELOADED = ("parallel_lab.cli.main", "parallel_lab.mindspore._communication", "parallel_lab.processes.launch")
STATUS_BYTES = 4
New = subprocess.Popen  # a test may put `Forked` there, and the server puts `ForkedHere`


def can_fork(command: Sequence[str], changed: Sequence[str] = ()) -> bool:
    """Whether it is Python with a module, a script or a text, and the `changed` variables do not change Python."""
    plain = command[0] == sys.executable and (command[1] in ("-m", "-c") or not command[1].startswith("-"))
    return plain and not any(name.startswith(("PYTHON", "LC_", "LANG")) for name in changed if name != "PYTHONWARNINGS")


# ---- in the tests ----


class Forked(New):
    """A process that the server has forked. Its exit code comes through a pipe."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest) -> None:
        self._told, theirs = os.pipe()
        request = pickle.dumps((list(args), os.fspath(cwd or os.getcwd()), dict(env)))
        socket.send_fds(_server(), [request], [*_streams(rest), theirs])
        os.close(theirs)
        self._close_pipe_fds(*rest[3:9])
        self.pid = int.from_bytes(os.read(self._told, STATUS_BYTES), "little")
        self._child_created = True

    def _internal_poll(self, **_: Any) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int.from_bytes(os.read(self._told, STATUS_BYTES), "little", signed=True)
            os.close(self._told)
        return self.returncode


def _streams(rest: Sequence[Any]) -> list[int]:
    """The three streams of a new process, of what `_execute_child` is given; our own where none are named."""
    return [fd if fd >= 0 else number for number, fd in enumerate((rest[3], rest[6], rest[8]))]


@functools.cache
def _server() -> socket.socket:
    """Our end of the line to the server; it ends when nobody holds that any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    environment = {**kept, **threads, ROOM: "x" * 300, "PYTHONPATH": str(ROOT)}
    with theirs:
        command = [sys.executable, "-m", "tests.processes.forkserver"]
        process = New(command, cwd=ROOT, stdin=theirs, env=environment, start_new_session=True)
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


# ---- in the server ----


def serve() -> tuple[list[str], dict[str, str]]:
    """Fork for each request until the tests have ended. Returns in the new processes: command and environment."""
    asked = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(asked, 1 << 20, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (pid := os.fork()) == 0:
                break
            os.write(fds[3], pid.to_bytes(STATUS_BYTES, "little"))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(fds[3], code.to_bytes(STATUS_BYTES, "little", signed=True))
            os._exit(0)
        for fd in fds:
            os.close(fd)
    os.setsid()
    command, folder, environment = pickle.loads(message)
    take(environment, fds[:3], ())
    asked.detach()
    os.chdir(folder)
    return command, environment


def take(environment: dict[str, str], streams: Sequence[int], kept: Sequence[int]) -> None:
    """The environment, streams and signals of a new process; of other descriptors only those to be kept."""
    for number, fd in enumerate([os.dup(fd) for fd in streams]):
        os.dup2(fd, number)
    below = 3
    for fd in sorted(kept):
        os.closerange(below, fd)
        below = fd + 1
    os.closerange(below, 1 << 16)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it has read TMPDIR
    show(environment)
    at_once = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = open(number, "wb", 0 if at_once else -1, closefd=False)  # noqa: SIM115
        how = {"errors": "backslashreplace" if number == 2 else None, "line_buffering": number == 2}
        stream = io.TextIOWrapper(raw, write_through=at_once, **how)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.warnoptions[:] = filter(None, environment.get("PYTHONWARNINGS", "").split(","))
    warnings._processoptions(sys.warnoptions)


def show(environment: dict[str, str]) -> None:
    """Write the variables that tests look for where the system shows the environment with which the server began."""
    with open("/proc/self/stat") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[47:49])  # proc(5): env_start, env_end
    begin = ctypes.string_at(start, end - start).find(b"PARALLEL_LAB_TEST_")
    text = "".join(f"{name}={environment[name]}\0" for name in SHOWN if name in environment)
    ctypes.memmove(start + begin, text.encode(), len(text))


def run(command: Sequence[str], environment: dict[str, str]) -> None:
    """What Python does for this command line."""
    before = [*os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = [path for path in sys.path[1:] if path not in (*before, *paths)]
    if command[1] == "-m":
        sys.path[:] = [os.getcwd(), *paths, *installed]
        sys.argv = list(command[2:])
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        return
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    if command[1] == "-c":
        sys.path[:] = ["", *paths, *installed]
        sys.argv = ["-c", *command[3:]]
        source, script = command[2].encode(), "<string>"
    else:
        script = module.__file__ = command[1]
        sys.path[:] = [os.path.dirname(os.path.abspath(script)), *paths, *installed]
        sys.argv = [script, *command[2:]]
        with open(script, "rb") as file:
            source = file.read()
    module.__builtins__ = __builtins__
    exec(compile(source, script, "exec", dont_inherit=True), module.__dict__)


class ForkedHere(New):
    """A rank, forked by its launcher."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest) -> None:
        if not can_fork(args):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        sys.stdout.flush()
        with warnings.catch_warnings(action="ignore"):  # Python 3.12 and threads; a launcher has no others
            self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            subprocess.Popen = New  # what a rank starts is new
            take(env, _streams(rest), pass_fds)
            end(lambda: run(args, env))
        with contextlib.suppress(PermissionError):  # the rank has gone on: it has done it
            os.setpgid(self.pid, self.pid)
        self._close_pipe_fds(*rest[3:9])
        self._child_created = True


def end(program: Any) -> NoReturn:
    """Run the program and end as Python does, without going back to the launcher's own lines."""
    code: Any = 1
    try:
        program()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    for name in PRELOADED:
        __import__(name)
    command, environment = serve()
    subprocess.Popen = ForkedHere
    run(command, environment)
