"""Starting worker processes from a notebook kernel.

Never a fork of the kernel: it has threads, and a fork that meets one inside BLAS or holding a lock hangs. On POSIX a
fork server is started once per process from a clean interpreter, with everything preloaded; each worker is then a cheap
fork of that. On Windows workers are spawned.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import multiprocess
from multiprocess import spawn

METHOD = "spawn" if sys.platform == "win32" else "forkserver"
BLAS_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_starting = threading.Lock()  # guards the process-wide settings below while they are changed


def context():
    """The multiprocess context workers are started with."""
    return multiprocess.get_context(METHOD)


@contextmanager
def _environment() -> Iterator[None]:
    """What the fork server (or a spawned worker) finds when it starts; libraries read the thread counts once, when they
    are loaded.

    PYTHONPATH: the server of CPython 3.11 does not take over sys.path, and a preload that cannot be imported is skipped
    without a word: every worker would then import everything itself (8 workers: 0.8 s instead of 0.1 s).
    """
    root = os.path.dirname(os.path.abspath(sys.modules[__package__.split(".")[0]].__file__))
    path = [p for p in (os.environ.get("PYTHONPATH"), os.path.dirname(root)) if p]
    values = {**dict.fromkeys(BLAS_VARIABLES, "1"), "PYTHONPATH": os.pathsep.join(path)}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep workers from importing the user's script again.

    Functions come as bytes, and a script without a main guard would start pools in its workers.
    """
    original = spawn.get_preparation_data

    def data(name: str) -> dict:
        return {k: v for k, v in original(name).items() if not k.startswith("init_main_from_")}

    spawn.get_preparation_data = data
    try:
        yield
    finally:
        spawn.get_preparation_data = original


@contextmanager
def _without_tracker() -> Iterator[None]:
    """Keep the tracker of named semaphores and shared memory from being started: workers have neither, and it ignores
    SIGTERM.

    A notebook's kernel that shuts down asks its children to end, waits for those that do not, and is killed meanwhile:
    no temporary folder of the learner's would be removed. Code that needs a tracker later starts one.
    """
    from multiprocess import resource_tracker

    tracker = resource_tracker._resource_tracker
    if sys.platform == "win32" or getattr(tracker, "_fd", 0) is not None:  # it runs already, or is made in another way
        yield
        return
    tracker._fd = os.open(os.devnull, os.O_WRONLY)
    try:
        yield
    finally:
        os.close(tracker._fd)
        tracker._fd = None


def start_processes(make_processes) -> int | None:
    """Call `make_processes(server_pid)`, which starts workers, with everything arranged; returns the fork server's pid
    (None with spawn).
    """
    with _starting, _environment(), _without_main(), _without_tracker():
        server_pid = None
        if METHOD == "forkserver":
            from multiprocess import forkserver

            context().set_forkserver_preload([f"{__package__}.server_preload"])
            forkserver.ensure_running()
            server_pid = forkserver._forkserver._forkserver_pid
        make_processes(server_pid)
        return server_pid
