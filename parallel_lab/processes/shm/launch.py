"""Starting worker processes from a notebook kernel.

Never a fork of the kernel: it has threads, and a fork that meets one inside BLAS or holding a lock hangs. A fork server
is started once per process from a clean interpreter, with everything preloaded; each worker is then a cheap fork of
that. Without a fork server each worker is a clean interpreter itself, which takes it a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

try:
    import resource
except ImportError:  # Windows, whose processes have no such limit
    resource = None

import multiprocess
from multiprocess import forkserver, resource_tracker, spawn, util

from ...base.errors import LimitTooLow, WorldError, WorldTimeout
from ...base.interrupts import blocked_at_birth, held, let_through
from ...base.system import SYSTEM
from ..learners_files import OURS, SAFE_PATH, learners_last
from ..without import BLAS_VARIABLES

PRELOAD = "PARALLEL_LAB_PRELOAD"  # names of modules for `server_preload.py`
ABOVE = ("lab", "mindspore", "cli")  # rooms with nothing that most ranks use
START_LIMIT_S = 60.0
LONGEST_FOLDER = 103 - len("/pymp-12345678/listener-12345678")  # bytes
DESCRIPTORS_PER_RANK, SPARE_DESCRIPTORS = 3, 18  # of the notebook: job pipe, exit code, its other end; memory, pipes
_HOME = os.path.dirname(os.path.dirname(os.path.abspath(sys.modules[__package__.split(".")[0]].__file__)))
_owner: list[int] = []  # the process whose child the fork server is
_silent: list[int] = []  # the fork server's process, until it has started one
_starting = threading.Lock()  # guards the process-wide settings below while they are changed


def context():
    """The multiprocess context workers are started with."""
    return multiprocess.get_context("forkserver" if SYSTEM.fork_server else "spawn")


@contextlib.contextmanager
def _environment(*modules: str) -> Iterator[None]:
    """What the fork server finds when it starts; libraries read thread counts once. PYTHONPATH: CPython 3.11's server
    does not take over sys.path, and silently skips what it cannot preload (8 workers: 0.8 s instead of 0.1 s).
    """
    path = [p for p in (os.environ.get("PYTHONPATH"), _HOME) if p]
    values = {**dict.fromkeys(BLAS_VARIABLES, "1"), "PYTHONPATH": os.pathsep.join(path)}
    values |= {} if os.environ.get(SAFE_PATH) else {SAFE_PATH: OURS}
    if SYSTEM.fork_server:
        values[PRELOAD] = " ".join((_loaded_for_ranks(), *modules))
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
    """Let workers find the learner's files last, and keep them from importing the user's script again: without a main
    guard it would start pools in its workers.
    They need nothing of `__main__`, which lacks what multiprocess reads of it after IPython's %run, and in a console.
    """
    original = spawn.get_preparation_data

    def data(name: str) -> dict:
        main = sys.modules.get("__main__")
        sys.modules["__main__"] = plain = ModuleType("__main__")
        plain.__spec__ = None
        try:
            found = original(name)
        finally:
            del sys.modules["__main__"]
            if main is not None:
                sys.modules["__main__"] = main
        return found | {"sys_path": [*learners_last(found["sys_path"]), _HOME]}  # a pupil's has no checkout in it

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
    rooms = [(name, name.split(".")[:2]) for name in tuple(sys.modules)]
    return " ".join(name for name, room in rooms if room[0] == package and room[-1] not in ABOVE)


def end_server() -> None:
    """End the fork server, which holds what its workers shared, if it has no process left; the next start makes it
    again, in half a second. By force: a child that the notebook forked may hold a copy of what keeps it alive.
    """
    with _starting:
        server = forkserver._forkserver
        if server._forkserver_pid is not None and not multiprocess.active_children():
            _forget_server()


def start_server(*modules: str) -> None:
    """Let the fork server start and import, in the background, what this process has loaded for ranks, and `modules`:
    the first process that is needed then comes at once. Without effect where one runs, or there is no fork server.
    """
    if SYSTEM.fork_server:
        with held(), _starting, _environment(*modules), _without_main(), _without_tracker():
            _ensure_server()


def start_processes(make_processes: Callable[[int], None], *modules: str) -> None:
    """Call `make_processes(pid of their parent)`, which starts workers, with everything arranged. The parent is the
    fork server, or without one this process. A new server imports `modules`, too. A server that died is replaced
    once, and `make_processes` called again.

    Raises WorldError for a server that dies again, WorldTimeout for one that does not answer within START_LIMIT_S.
    """
    try:
        os.getcwd()
    except FileNotFoundError as error:
        hint = "Change to one that is there: os.chdir"
        raise WorldError("the current folder was removed", where="start of workers", hint=hint) from error
    with held(), _starting, _environment(*modules), _without_main(), _without_tracker():
        if not SYSTEM.fork_server:
            with blocked_at_birth():  # a worker that has come to its first line ignores Ctrl-C
                make_processes(os.getpid())
            return
        for attempt in range(2):
            _ensure_server()
            pid = forkserver._forkserver._forkserver_pid
            is_new = _silent == [pid]
            silent = threading.Event()
            limit = threading.Timer(START_LIMIT_S, lambda pid=pid, silent=silent: (silent.set(), _kill(pid)))
            limit.daemon = True
            limit.start()
            try:
                # the first answer of a new server waits for its imports; nobody else needs it yet if that is cut off
                with let_through() if is_new else contextlib.nullcontext():
                    make_processes(pid)
                if forkserver._forkserver._forkserver_pid != pid:  # it was dead; multiprocess started another
                    raise ConnectionResetError
                _silent.clear()
                return
            except (EOFError, ConnectionError, FileNotFoundError) as error:
                _forget_server()
                if silent.is_set():
                    what = f"the process that starts workers (pid {pid}) did not answer within {START_LIMIT_S:g} s"
                    raise WorldTimeout(what, where="start of workers", hint="Start again: it was ended") from error
                if attempt:
                    what = f"the process that starts workers (pid {pid}) has died, and the one before it as well"
                    hint = "Is the machine out of memory? The system's log says who ends processes"
                    raise WorldError(what, where="start of workers", hint=hint) from error
            except BaseException:
                if is_new:
                    _forget_server()
                raise
            finally:
                limit.cancel()


def check_descriptors(world_size: int) -> None:
    """Raise LimitTooLow if this process may not open what it needs for so many workers: looked at before, as the
    server, whose limit is the same, can only die of it.
    """
    if resource is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        opened = len(os.listdir("/dev/fd"))
    except FileNotFoundError:
        return
    except OSError:  # not one more can be opened
        opened = limit
    needed = opened + DESCRIPTORS_PER_RANK * world_size + SPARE_DESCRIPTORS
    if limit != resource.RLIM_INFINITY and needed > limit:
        what = f"{world_size} workers need {needed} open files, and this process may have {limit} (ulimit -n)"
        hint = f"Ask for fewer, or start the notebook after `ulimit -n {max(1024, needed)}`"
        raise LimitTooLow(what, where="start of workers", hint=hint)


def _ensure_server() -> None:
    """Let a fork server run; a new one is noted in `_silent`."""
    server = forkserver._forkserver
    if server._forkserver_pid is not None and _owner != [os.getpid()]:  # this process was forked from the one it serves
        os.close(server._forkserver_alive_fd)
        server._lock, server._forkserver_pid, server._forkserver_address = threading.Lock(), None, None
    before = server._forkserver_pid
    _make_temporary_folder()
    context().set_forkserver_preload([f"{__package__}.server_preload"])
    with blocked_at_birth():  # Ctrl-C in a terminal goes to the whole group, also to a server that still imports
        forkserver.ensure_running()
    _owner[:] = [os.getpid()]
    if server._forkserver_pid != before:
        _silent[:] = [server._forkserver_pid]


def _make_temporary_folder() -> None:
    """Let multiprocess make the folder of its sockets: below /tmp where that for temporary files has a long name, for
    the path of a socket has at most 103 bytes on macOS, 107 on Linux.
    """
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER and os.path.isdir("/tmp"):
        tempfile.tempdir = "/tmp"
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before


def _forget_server() -> None:
    """End the server, if it lives, so that the next start makes another; with `_starting` held."""
    server = forkserver._forkserver
    if server._forkserver_pid is not None:
        _kill(server._forkserver_pid)
        with contextlib.suppress(OSError):  # its socket, which it may have removed itself
            server._stop()
    server._forkserver_pid = server._forkserver_address = None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
