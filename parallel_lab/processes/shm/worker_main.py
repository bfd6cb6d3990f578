"""The process of one rank: start, run what the notebook sends, report, and end with the notebook.

Importable on purpose: the fork server finds it by name; the user's function comes as bytes (`dill`, with its globals).

Ways to end: an empty message or end of file on the job pipe (idle), end of file on the life pipe or the death of the
notebook process (a thread watches both), and the parent-death signal, which also ends a stopped worker and one stuck in
C code. The worker's parent is the fork server, whose main thread lives as long as the server; the server ends
when the last copy of its alive descriptor is closed, so workers close theirs. Without a fork server the parent is the
notebook. Without that signal a stopped worker ends when it is continued, and one stuck in C code when that returns.
(POSIX continues and ends stopped processes whose group has lost its last parent, as a killed notebook's workers'.)
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from typing import NoReturn

import dill
import threadpoolctl
from multiprocess import connection, forkserver

from ...base.interrupts import unblock
from ...base.system import end_of_process, prctl
from ...ops.kernels.threads import keep_freed_memory
from ..faults import RunInterrupted, error_report, print_error, text_of
from ..jobs import unpacked
from ..learners_files import OURS, SAFE_PATH
from ..own_folder import remove_if_dead
from .arena import FINISHED, KEEPS, PID, RUN, STARTED, Arena, ArenaMap
from .comm import Communicator
from .shared_memory import Parcel, SharedBlock

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29  # linux/prctl.h
PARCEL, TRIM = b"P", b"T"  # not a job: one follows as a `Parcel`; give freed memory back
TIMER_SLACK_NS = 1_000  # sleeps of 20 us would otherwise take 70 (the default slack is 50 us)
LOOK_S = 0.5  # how often a worker looks whether its parent lives, besides the pipe that tells it


@dataclass
class WorkerStart:
    """What a worker needs to start. `life`: the read end of a pipe whose write end only the notebook holds;
    `parent_pid`: who starts it, the fork server or the notebook; `folder`: of the notebook, "" where it needs none.
    """

    rank: int
    block: SharedBlock
    layout: ArenaMap
    life: object
    pipe: object
    notebook_pid: int
    parent_pid: int
    fast: bool
    folder: str


def worker_main(start: WorkerStart) -> None:
    """Serve until the pool closes or the notebook is gone."""
    # Ctrl-C goes to the whole process group; the notebook decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unblock()
    end = _end_with(start)
    prepare_process()
    arena = Arena(start.block, start.layout)
    arena.words[arena.map.slot(start.rank) + PID] = os.getpid()
    comm = communicator_class(start.fast)(arena, start.rank, start.pipe)
    comm._send(b"R")
    while True:
        try:
            payload = start.pipe.recv_bytes()
        except (EOFError, OSError):
            end()
        if not payload:
            return
        if payload == TRIM:
            comm.trim()
            continue
        memory = Parcel.received(start.pipe, start.folder) if payload == PARCEL else bytearray(payload)
        del payload
        kind, body = _run(comm, arena, memory)
        if comm.caller.forked:  # by the program, and it has come out of it: no rank reports, nor serves, twice
            os._exit(0 if kind == b"D" else 1)
        del memory
        arena.words[arena.map.slot(comm.rank) + KEEPS] = comm.keeps_values
        try:
            comm._send(kind, body)
        except OSError:
            os._exit(0)


def communicator_class(fast: bool = True) -> type[Communicator]:
    """The class of a rank's communicator, equal on all ranks: the hook of `fast/`, which can be deleted with it."""
    if not fast:
        return Communicator
    from .fast.call_sites import FastCommunicator

    return FastCommunicator


def prepare_process() -> None:
    """Settings of every process of a rank: one thread for products, freed memory kept, short sleeps short."""
    if os.environ.get(SAFE_PATH) == OURS:  # of this process, which has its path by now
        del os.environ[SAFE_PATH]
    threadpoolctl.threadpool_limits(1)  # ranks share the cores, also where no launcher has set the environment
    keep_freed_memory()
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS)


def _end_with(start: WorkerStart) -> Callable[[], NoReturn]:
    """Arrange that this process does not outlive the notebook; returns what ends it then."""
    ending = threading.Lock()

    def end() -> NoReturn:
        with (
            ending
        ):  # two threads may see that the notebook is gone, and with it the process that would remove its folder
            if start.folder:
                remove_if_dead(start.folder)
            os._exit(0)

    os.setpgid(0, 0)  # signals to the notebook's group are not for us
    server = forkserver._forkserver
    if getattr(server, "_forkserver_alive_fd", None) is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != start.parent_pid:  # it died before the call: nobody will send the signal
        end()
    watched = [start.life]
    # a child that the notebook forked may hold copies of our pipes; the process itself cannot be copied
    try:
        ended = end_of_process(start.notebook_pid)
    except ProcessLookupError:
        end()
    if ended >= 0:
        watched.append(ended)

    def watch() -> None:
        # nothing is ever sent: readable means the end
        while not connection.wait(watched, None if ended >= 0 else LOOK_S) and os.getppid() == start.parent_pid:
            continue
        end()

    threading.Thread(target=watch, daemon=True, name="life-pipe").start()
    return end


def _run(comm: Communicator, arena: Arena, memory: bytearray | mmap) -> tuple[bytes, bytes]:
    """Run one job; returns (kind, body) of the report: b"D" result, b"S" stopped by an interrupt, b"E" error."""
    comm._begin_run()
    slot = arena.map.slot(comm.rank)
    try:
        function, args = unpacked(memory)
        arena.words[slot + STARTED] = arena.words[RUN]
        comm._loop.check_abort()  # loading may import much; the others may have failed meanwhile
        result = function(comm, *args)
        if comm.caller.forked:
            return b"D", b""
        comm._end_run()
        body = dill.dumps(result, recurse=True)
    except RunInterrupted:
        return b"S", b""
    except BaseException as error:  # everything is reported: SystemExit and KeyboardInterrupt of user code too
        if comm.caller.forked:
            print_error(error, error.__traceback__, False)
            return b"E", b""
        return b"E", _report_error(comm, arena, error)
    arena.words[slot + FINISHED] = arena.words[RUN]
    return b"D", body


def _report_error(comm: Communicator, arena: Arena, error: BaseException) -> bytes:
    if getattr(error, "secondary", None) is None:
        text = f"rank {comm.rank} raised {type(error).__name__}: {text_of(error)[:500]}."
        arena.write_fault(comm.rank, "RankRaised", text)
    return error_report(error)
