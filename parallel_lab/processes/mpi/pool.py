"""A world on MPI from a notebook: ranks under mpirun that run functions, with the methods of `WorkerPool`.

    pool = get_mpi_pool(4)
    pool.run(lambda comm, x: comm.all_reduce(x), np.ones(3))        # -> four times [4., 4., 4.]
    Session(plan, net, optimizer, executor="mpi")                   # asks for the pool itself

The ranks are mpirun's (`worker.py`), mpirun belongs to a keeper process (`keeper.py`), and each rank holds a socket to
this process. Why not ipyparallel's MPI engines: measured, a rank that dies hangs its peers, and an interrupted or
killed notebook leaves up to 17 processes; here nothing stays, whichever process is killed. The sockets meet on an
abstract address, or in the world's folder, and prove that they know a random key.

One machine, by design: ranks reach the notebook through a local socket. On several machines: mpirun from a shell.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections import deque
from multiprocessing import connection
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired
from typing import Any

from ...base.errors import RankDied, message
from ...base.system import SYSTEM
from ...ops.kernels.threads import trim_memory
from .. import outcome
from ..flight import FlightEntry, entry_from_text
from ..job_pool import JobPool, PoolTable
from ..jobs import Job
from ..learners_files import learners_last
from ..shm.watch import halted
from ..supervisor import StopRun
from ..without import BLAS_VARIABLES
from .launch import ADDRESS_VARIABLE, KeptMpirun

DEATH_LIMIT_S = 2.0  # for mpirun to say how a rank ended; measured: 0.3 s
LAST_LINES_S = 0.5  # for its last lines to arrive after that
# Open MPI 4 and 5: "process rank 1 with PID 0 on node ... exited on signal 9", "Process name: [[31290,1],1] Exit code:
# 7"; MPICH: "RANK 1 PID ..."
_ENDED = re.compile(r"process rank (\d+) with PID|Process name: \[\S*,(\d+)\]|\bRANK (\d+) PID")
KEPT_POOLS = 2  # idle pools of different sizes that get_mpi_pool keeps; a rank under MPI takes 60 MB
KEPT_LINES = 40  # of what mpirun and the ranks write to stderr, for the error of a world that did not start
PREFIX = "parallel-lab-mpi-"


class _Told:
    """What the ranks have told about a run; asked by `outcome.settle` as it asks an arena."""

    def __init__(self) -> None:
        self.flights: dict[int, list[FlightEntry]] = {}
        self.faults: dict[int, tuple[int, dict]] = {}

    def last_entry(self, rank: int) -> FlightEntry | None:
        entries = self.flights.get(rank)
        return entries[-1] if entries else None

    def read_fault(self) -> tuple[int, dict] | None:
        """The fault that stopped the run: the one that most ranks saw first."""
        found = [note for _, note in sorted(self.faults.items())]
        return max(found, key=lambda note: sum(other == note for other in found)) if found else None

    def unread(self) -> str:
        return ""  # the ranks compare their counts themselves, at the end of a run


class MpiPool(JobPool):
    """`world_size` ranks under mpirun on this machine. After `warn_after_s` a warning names missing ranks, after
    `timeout_s` a collective raises CollectiveTimeout. `reproducible`: sums in group order, bit for bit the simulator's;
    False: the MPI library's own. Raises MissingPackage (mpirun, mpi4py), RankDied, TimeoutError (both while starting).
    """

    def __init__(
        self, world_size: int, *, timeout_s: float = 30.0, warn_after_s: float = 2.0, reproducible: bool = True
    ) -> None:
        # a death is over when mpirun has told how; the limit is for an mpirun that does not
        super().__init__(world_size, timeout_s, warn_after_s, death_s=DEATH_LIMIT_S + 2 * LAST_LINES_S)
        self._reproducible = reproducible
        self._told = _Told()
        self._begun: set[int] = set()
        self._died_first: dict[int, int | None] = {}  # the one rank that ended by itself; mpirun ends the others
        self._faulty = self._fresh = False
        self._pids = [0] * world_size
        self._pipes: dict[int, connection.Connection] = {}
        self._sending = [threading.Lock() for _ in range(world_size)]
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._woken = threading.Event()
        self._keeper: Popen | None = None
        _remove_stale_folders()
        self._mpirun = KeptMpirun(PREFIX)
        atexit.register(self.close)
        try:
            self._start_world()
            self._add_receivers(self._receive)
        except BaseException:
            self.close()
            raise

    # start

    def _start_world(self) -> None:
        key, folder = secrets.token_bytes(32), self._mpirun.folder
        address = f"\0{folder.name}" if SYSTEM.abstract_sockets else str(folder / "socket")
        told = {"address": address, "key": key.hex(), "timeout_s": self.timeout_s}
        told |= {"warn_after_s": self.warn_after_s, "reproducible": self._reproducible}
        environment = {
            **os.environ,
            **dict.fromkeys(BLAS_VARIABLES, "1"),
            "PYTHONPATH": os.pathsep.join(learners_last([entry or os.getcwd() for entry in sys.path])),
            "TMPDIR": str(folder),
            # after a death the others are ended at once, not after a second: 0.1 s instead of 1.1 s
            "OMPI_MCA_odls_base_sigkill_timeout": "0",
            "PRTE_MCA_odls_base_sigkill_timeout": "0",
            ADDRESS_VARIABLE: json.dumps(told),
        }
        command = [sys.executable, "-P", "-m", "parallel_lab.processes.mpi.worker"]
        listener = connection.Listener(address, "AF_UNIX", backlog=self.world_size, authkey=key)
        try:
            self._keeper = self._mpirun.start(self.world_size, command, environment, stdout=PIPE, stderr=STDOUT)
            self._reader = threading.Thread(target=self._read_lines, daemon=True, name="mpirun says")
            self._reader.start()
            threading.Thread(target=self._accept, args=(listener,), daemon=True, name="accept ranks").start()
            self._supervise_until_ready()
        finally:
            with contextlib.suppress(FileNotFoundError):  # a keeper that has ended has removed its folder
                listener.close()

    def _accept(self, listener: connection.Listener) -> None:
        """Take a socket from every rank, in a thread: a stranger who says nothing must not hold the notebook."""
        while len(self._pipes) < self.world_size:
            try:
                pipe = listener.accept()
                _, rank, pid = pipe.recv()
            except (connection.AuthenticationError, EOFError, ConnectionError):  # a stranger, or a rank that died
                continue
            except OSError:  # closed: the wait is over
                return
            with self._lock:
                self._pids[rank], self._pipes[rank] = pid, pipe
                self._ready.add(rank)
                self._look()

    def _start_error(self) -> RankDied:
        self._reader.join(LAST_LINES_S)
        last = " | ".join(line for line in self._lines if line.strip(" -"))[-1500:] or "it said nothing"
        code = self._keeper.returncode
        return RankDied(message(f"mpirun ended with exit code {code} while the ranks started: {last}"))

    def _read_lines(self) -> None:
        """What mpirun and ranks write goes on to our stderr; the last lines are kept. Open MPI 5 refuses on stdout."""
        for line in self._keeper.stdout:
            text = line.decode(errors="replace")
            self._lines.append(text.strip())
            with contextlib.suppress(OSError, ValueError, AttributeError):  # a notebook may have closed it
                os.write(sys.__stderr__.fileno(), line)
        self._keeper.stdout.close()

    # what is done

    def _send_control(self, control: str) -> None:
        self._ask_all("control", self._runs, control)

    def _stop_run(self, action: StopRun) -> None:
        self._ask_all("interrupt", self._runs)

    def _kill_ranks(self, ranks: tuple[int, ...]) -> None:
        """MPI cannot go on without one of its ranks: all of them end with the pool."""
        for rank in ranks:
            self._dead.setdefault(rank, -signal.SIGKILL)

    def _keeps_values(self) -> bool:
        return True  # starting a world again takes seconds

    def _trim(self) -> None:
        self._ask_all("trim", self._runs)
        trim_memory()

    def _memory_of_run(self) -> _Told:
        return self._told

    def _send_job(self, job: Job) -> None:
        self._told, self._begun, self._faulty = _Told(), set(), False
        for rank, payload in enumerate(job._payloads):
            # a stopped rank does not read: nobody but this thread waits for it
            message = "job", self._runs, self._fresh, job._control, payload
            threading.Thread(target=self._send, args=(rank, message), daemon=True, name="send job").start()
        self._fresh = True  # until it has ended well

    def _settle_job(self, job: Job) -> None:
        self._dead = self._died_first or self._dead
        super()._settle_job(job)
        self._fresh = job._error is not None or any(kind == "stopped" for kind, _ in job._reports.values())

    def _ask_all(self, *message: Any) -> None:
        for rank in range(self.world_size):
            if self._sending[rank].acquire(blocking=False):  # held: a large job goes to a rank that does not read
                self._sending[rank].release()
                self._send(rank, message)
            else:
                threading.Thread(target=self._send, args=(rank, message), daemon=True, name="send").start()

    def _send(self, rank: int, message: tuple) -> None:
        with self._sending[rank], contextlib.suppress(OSError):  # the rank is gone; its receiver tells
            self._pipes[rank].send(message)

    # what is seen

    def _wake(self) -> None:
        self._woken.set()

    def _wait_for_news(self, limit_s: float | None) -> None:
        self._woken.wait(limit_s)
        self._woken.clear()
        code = self._keeper.poll()
        if self._supervisor.state == "starting" and code is not None:
            with self._lock:
                self._dead[0] = code
        elif code == -signal.SIGKILL and not SYSTEM.parent_signal:  # mpirun has not noticed
            self._kill_all()

    def _seen(self) -> dict[str, Any]:
        absent = [r for r in range(self.world_size) if r not in self._dead and r not in self._current._reports]
        stopped = halted({r: self._pids[r] for r in absent}) if self._faulty else []
        return {"fault": self._faulty, "loading": set(range(self.world_size)) - self._begun, "halted": stopped}

    def _receive(self, rank: int) -> None:
        pipe = self._pipes[rank]
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                self._rank_ended(rank)
                return
            job = self._current
            if job is None:
                continue
            match message:
                case "message", body:
                    self._take_message(job, rank, body)
                case ("begun",):
                    self._begun.add(rank)
                case "warning", text:
                    job._warn(text)
                case "report", *parts:
                    self._take_report(job, rank, *parts)

    def _take_report(self, job: Job, rank: int, run: int, flight: list, fault: tuple, kind: bytes, body: bytes) -> None:
        report = outcome.load_report(kind, body)
        with self._lock:
            if job is not self._current or run != self._runs:
                return
            job._reports[rank] = report
            self._told.flights[rank] = [entry_from_text(rank, *record) for record in flight]
            if fault is not None:
                self._told.faults[rank] = fault
            self._faulty = self._faulty or report[0] == "error"
            self._look()

    def _rank_ended(self, rank: int) -> None:
        """A rank's socket has ended. Its last lines and its exit code tell whether it died first, by itself."""
        with self._lock:
            if self._closed or self._dead:
                return
            self._dead[rank] = None
        with contextlib.suppress(TimeoutExpired):
            self._keeper.wait(DEATH_LIMIT_S)
            self._reader.join(LAST_LINES_S)
        with self._lock:
            if not self._closed:
                code = self._keeper.returncode
                first = self._named_by_mpirun(rank)
                self._died_first = {first: None if code is None else code if code <= 128 else 128 - code}
                self._dead = {**self._died_first, **{r: None for r in range(self.world_size) if r != first}}
                self._look()

    def _named_by_mpirun(self, seen: int) -> int:
        """The rank that ended first, as mpirun says; else `seen`, whose socket ended first."""
        found = _ENDED.search(" ".join(self._lines))
        rank = int(next(filter(None, found.groups()))) if found else seen
        return rank if rank < self.world_size else seen

    # what is known

    def flight_record(self) -> dict[int, list[FlightEntry]]:
        """The last 64 requests of each rank in the last run, oldest first; of a rank that died nothing is known."""
        with self._lock:
            return {rank: list(self._told.flights.get(rank, ())) for rank in range(self.world_size)}

    # end

    def _end_ranks(self, idle: bool) -> None:
        self._mpirun.end()
        for pipe in self._pipes.values():
            with contextlib.suppress(OSError):
                pipe.close()
        if self._keeper is not None and self._keeper.returncode == -signal.SIGKILL:
            self._kill_all()

    def _kill_all(self) -> None:
        """What the keeper would have done, had not somebody killed it."""
        for rank in self._pipes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGKILL)


def _remove_stale_folders() -> None:
    """Remove what worlds have left whose notebook and keeper were both killed."""
    for place in {tempfile.gettempdir(), *(("/dev/shm",) if SYSTEM.memory_files else ())}:
        for folder in Path(place).glob(f"{PREFIX}*-*") if Path(place).is_dir() else ():
            owner = folder.name.removeprefix(PREFIX).partition("-")[0]
            try:
                os.kill(int(owner), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
            except (ValueError, PermissionError):  # not ours
                continue


# the one table of live worlds of this process, as in processes/shm/pool.py
_pools = PoolTable(MpiPool, KEPT_POOLS)


def get_mpi_pool(world_size: int) -> MpiPool:
    """The world on MPI of this size of this process, a new one if it was lost. Raises what `MpiPool` raises."""
    return _pools.get(world_size)


def close_mpi_pools() -> None:
    """Close every pool `get_mpi_pool` made."""
    _pools.close()
