"""Starting worker processes from a notebook kernel.

Never a fork of the kernel: it has threads, and a fork that meets one inside BLAS or holding a lock hangs. A fork server
is started once per process from a clean interpreter, with everything preloaded; each worker is then a cheap fork of
that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import multiprocess
from multiprocess import forkserver, resource_tracker, spawn

PRELOAD = "PARALLEL_LAB_PRELOAD"  # names of modules for `server_preload.py`
ABOVE = ("lab", "mindspore", "cli")  # rooms with nothing that most ranks use
BLAS_VARIABLES = tuple(f"{library}_NUM_THREADS" for library in ("OPENBLAS", "OMP", "MKL", "BLIS", "NUMEXPR"))
_starting = threading.Lock()  # guards the process-wide settings below while they are changed


def context():
    """The multiprocess context workers are started with."""
    return multiprocess.get_context("forkserver")


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """What the fork server finds when it starts; libraries read thread counts once. PYTHONPATH: CPython 3.11's server
    does not take over sys.path, and silently skips what it cannot preload (8 workers: 0.8 s instead of 0.1 s).
    """
    root = os.path.dirname(os.path.abspath(sys.modules[__package__.split(".")[0]].__file__))
    path = [p for p in (os.environ.get("PYTHONPATH"), os.path.dirname(root)) if p]
    values = {**dict.fromkeys(BLAS_VARIABLES, "1"), "PYTHONPATH": os.pathsep.join(path), PRELOAD: _loaded_for_ranks()}
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep workers from importing the user's script again: without a main guard it would start pools in its workers."""
    original = spawn.get_preparation_data

    def data(name: str) -> dict:
        return {k: v for k, v in original(name).items() if not k.startswith("init_main_from_")}

    spawn.get_preparation_data = data
    try:
        yield
    finally:
        spawn.get_preparation_data = original


@contextlib.contextmanager
def _without_tracker() -> Iterator[None]:
    """Keep the tracker of named semaphores and shared memory, which workers do not have, from being started: it ignores
    SIGTERM, so a kernel that shuts down would be killed waiting for it, before temporary folders are removed.
    """
    tracker = resource_tracker._resource_tracker
    if getattr(tracker, "_fd", 0) is not None:  # it runs already, or is made in another way
        yield
        return
    tracker._fd = os.open(os.devnull, os.O_WRONLY)
    try:
        yield
    finally:
        os.close(tracker._fd)
        tracker._fd = None


def _loaded_for_ranks() -> str:
    """Names of the modules of rooms below the labs that this process has loaded: its ranks will use them. Loaded in the
    server, a worker has them at once, and shares their memory: 13 MB of a worker are its own instead of 20.
    """
    package, *_ = __package__.split(".")
    rooms = [(name, name.split(".")[:2]) for name in sys.modules]
    return " ".join(name for name, room in rooms if room[0] == package and room[-1] not in ABOVE)


def end_server() -> None:
    """End the fork server, which holds what its workers shared, if it has no process left; the next start makes it
    again, in half a second. By force: a child that the notebook forked may hold a copy of what keeps it alive.
    """
    with _starting:
        server = forkserver._forkserver
        if server._forkserver_pid is not None and not multiprocess.active_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
            server._stop()


def start_processes(make_processes: Callable[[int], None]) -> None:
    """Call `make_processes(pid of the fork server)`, which starts workers, with everything arranged."""
    with _starting, _environment(), _without_main(), _without_tracker():
        context().set_forkserver_preload([f"{__package__}.server_preload"])
        forkserver.ensure_running()
        make_processes(forkserver._forkserver._forkserver_pid)
