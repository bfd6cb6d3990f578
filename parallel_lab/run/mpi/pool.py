"""A world on MPI from a notebook: ranks under mpirun that run functions, with the methods of `WorkerPool`.

    pool = get_mpi_pool(4)
    pool.run(lambda comm, x: comm.all_reduce(x), np.ones(3))        # -> four times [4., 4., 4.]
    Session(plan, net, optimizer, executor="mpi")                   # asks for the pool itself

The ranks are mpirun's (`worker.py`), mpirun belongs to a keeper process (`keeper.py`), and each rank holds a socket to this process. Why not
ipyparallel's MPI engines: measured, a rank that dies hangs its peers, and an interrupted or killed notebook leaves up to 17 processes; here nothing
stays, whoever is killed. The sockets meet on an abstract address (on Linux; elsewhere in a folder of our own) and prove that they know a random key.

One machine, by design: ranks reach the notebook through a local socket. Worlds on several machines are started by mpirun from a shell.
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
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from multiprocessing import connection
from pathlib import Path

import dill

from ...errors import ParallelLabError, RankDied, message
from ..jobs import GRACE_S, INTERRUPT_KILL_S, LOADING_GRACE_S, LOOK_S, POLITE_STOP_S, Job, JobPool, PoolTable
from ..shm import outcome
from ..shm.arena import FlightEntry
from ..shm.launch import BLAS_VARIABLES
from .launch import mpirun_command, rank_environment, require_mpi4py, session_folders
from .meeting import entry_of
from .worker import ADDRESS_VARIABLE, JOB_HEAD, REPORT_HEAD

__all__ = ["MpiPool", "close_mpi_pools", "get_mpi_pool"]

START_LIMIT_S = 60.0
END_LIMIT_S = 5.0  # for the keeper to end everything; measured: 0.1 s
DEATH_LIMIT_S = 2.0  # for mpirun to say how a rank ended; measured: 0.3 s
LAST_LINES_S = 0.5  # for its last lines to arrive after that
# Open MPI 4 and 5: "process rank 1 with PID 0 on node ... exited on signal 9", "Process name: [[31290,1],1] Exit code: 7"; MPICH: "RANK 1 PID ..."
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
    """`world_size` ranks under mpirun on this machine.

    timeout_s     a collective that some rank does not reach in this time raises CollectiveTimeout
    warn_after_s  after this time a warning names the ranks that are missing
    reproducible  sums in group order, bit for bit those of the simulator; False: the MPI library's own

    Raises MissingPackage (mpirun or mpi4py is not there), RankDied (the world ended while starting), TimeoutError (start).
    """

    def __init__(self, world_size: int, *, timeout_s: float = 30.0, warn_after_s: float = 2.0, reproducible: bool = True) -> None:
        super().__init__(world_size, timeout_s, warn_after_s)
        self._owner_pid = os.getpid()
        self._reproducible = reproducible
        self._told = _Told()
        self._begun: set[int] = set()
        self._fresh = False
        self._pids = [0] * world_size
        self._pipes: dict[int, connection.Connection] = {}
        self._sending = [threading.Lock() for _ in range(world_size)]
        self._receivers: list[threading.Thread] = []
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._woken = threading.Event()
        self._keeper: subprocess.Popen | None = None
        self._folders: list[str] = []
        self._supervisor = threading.Thread(target=self._supervise, daemon=True, name="mpi-pool-supervisor")
        command = mpirun_command(world_size, [sys.executable, "-m", "parallel_lab.run.mpi.worker"])
        require_mpi4py()
        _remove_stale_folders()
        atexit.register(self.close)
        try:
            self._start_world(command)
            self._supervisor.start()
        except BaseException:
            self.close()
            raise

    # start

    def _start_world(self, command: list[str]) -> None:
        # short, because paths of sockets are limited to 108 characters; named after this process, so that a later one can tell what nobody needs
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._folders = [str(Path(tempfile.gettempdir(), name))]
        segments = str(Path("/dev/shm", name)) if os.access("/dev/shm", os.W_OK) else self._folders[0]
        if segments not in self._folders:
            self._folders.append(segments)
        for folder in self._folders:
            os.mkdir(folder, 0o700)
        key = secrets.token_bytes(32)
        address = f"\0{name}" if sys.platform == "linux" else str(Path(self._folders[0], "notebook"))
        told = {"address": address.replace("\0", "@"), "key": key.hex(), "timeout_s": self.timeout_s}
        told |= {"warn_after_s": self.warn_after_s, "reproducible": self._reproducible}
        environment = {
            **rank_environment(),
            **dict.fromkeys(BLAS_VARIABLES, "1"),
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
            "TMPDIR": self._folders[0],
            **session_folders(self._folders[0], segments),
            "OMPI_MCA_odls_base_sigkill_timeout": "0",  # after a death the others are ended at once, not after a second: 0.1 s instead of 1.1 s
            "PRTE_MCA_odls_base_sigkill_timeout": "0",
            ADDRESS_VARIABLE: json.dumps(told),
        }
        order = json.dumps({"command": command, "folders": self._folders})
        with connection.Listener(address, "AF_UNIX", backlog=self.world_size, authkey=key) as listener:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "parallel_lab.run.mpi.keeper", order],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            self._reader = threading.Thread(target=self._read_lines, daemon=True, name="mpirun stderr")
            self._reader.start()
            threading.Thread(target=self._accept, args=(listener,), daemon=True, name="accept ranks").start()
            self._wait_for_ranks()
        for rank in range(self.world_size):
            thread = threading.Thread(target=self._receive, args=(rank,), daemon=True, name=f"receive rank {rank}")
            self._receivers.append(thread)
            thread.start()

    def _accept(self, listener: connection.Listener) -> None:
        """Take a socket from every rank. In a thread of its own: a stranger who connects and says nothing must not hold the notebook."""
        while len(self._pipes) < self.world_size:
            try:
                pipe = listener.accept()
                rank, pid = json.loads(pipe.recv_bytes()[1:])
            except (connection.AuthenticationError, EOFError, ConnectionError):  # a stranger, or a rank that died
                continue
            except OSError:  # closed: the wait is over
                return
            self._pids[rank] = pid
            self._pipes[rank] = pipe

    def _wait_for_ranks(self) -> None:
        """Wait until every rank has its socket, as long as mpirun lives."""
        end = time.monotonic() + START_LIMIT_S
        while len(self._pipes) < self.world_size:
            if self._keeper.poll() is not None:
                time.sleep(LOOK_S)  # for the last lines
                last = " | ".join(line for line in self._lines if line.strip(" -"))[-1500:]
                raise RankDied(message(f"mpirun ended with exit code {self._keeper.returncode} while the ranks started: {last or 'it said nothing'}"))
            if time.monotonic() > end:
                missing = sorted(set(range(self.world_size)) - self._pipes.keys())
                raise TimeoutError(message(f"ranks {missing} did not start within {START_LIMIT_S:g} s", where="MpiPool"))
            time.sleep(0.005)

    def _read_lines(self) -> None:
        """What mpirun and the ranks write to stderr goes on to ours; the last lines are kept."""
        for line in self._keeper.stderr:
            text = line.decode(errors="replace")
            self._lines.append(text.strip())
            with contextlib.suppress(OSError, ValueError, AttributeError):  # a notebook may have closed it
                os.write(sys.__stderr__.fileno(), line)
        self._keeper.stderr.close()

    # control

    def _wake(self) -> None:
        self._woken.set()

    def _apply_control(self, job: Job) -> None:
        with self._lock:
            if job is self._current:
                self._ask_all(b"C", job._control.encode())
            elif job in self._jobs and job._control == "stop":
                self._jobs.remove(job)
                job._finish([None] * self.world_size, None)

    def _ask_all(self, kind: bytes, body: bytes = b"") -> None:
        data = kind + struct.pack("<Q", self._runs) + body
        for rank in range(self.world_size):
            if self._sending[rank].acquire(blocking=False):  # held: a large job goes to a rank that does not read
                self._sending[rank].release()
                self._send(rank, data)
            else:
                threading.Thread(target=self._send, args=(rank, data), daemon=True, name="send").start()

    def _send(self, rank: int, data: bytes) -> None:
        with self._sending[rank], contextlib.suppress(OSError):  # the rank is gone; its receiver tells
            self._pipes[rank].send_bytes(data)

    # threads

    def _supervise(self) -> None:
        try:
            while not self._closed:
                self._woken.clear()
                with self._lock:
                    wait_s = self._tend()
                self._woken.wait(wait_s)
        except Exception as defect:  # ours; without a supervisor nothing would end, so the pool ends here
            self.kill(f"the supervisor failed: {defect!r}")

    def _tend(self) -> float | None:
        """Start a job, look at the running one, end what must end; returns how long to sleep (None: until something happens)."""
        job = self._current
        if job is None:
            if not self._jobs or not self.alive:
                for waiting in list(self._jobs):
                    self._jobs.remove(waiting)
                    waiting._finish(None, self._unusable())
                return None
            self._start(self._jobs.popleft())
            return LOOK_S
        now = time.monotonic()
        if self._dead:
            if now - job._fault_at >= DEATH_LIMIT_S:
                self._complete(job)
        elif job._interrupted_at is not None:
            since = now - job._interrupted_at
            if since >= INTERRUPT_KILL_S:
                self._end_missing(job, "did not stop")
            elif since >= POLITE_STOP_S:
                self._ask_all(b"I")
        elif job._fault_at is not None:
            missing = set(range(self.world_size)) - job._reports.keys()
            grace_s = GRACE_S if missing <= self._begun else LOADING_GRACE_S
            if now - job._fault_at >= grace_s:
                self._end_missing(job, f"did not stop within {grace_s:g} s")
        return LOOK_S

    def _start(self, job: Job) -> None:
        self._runs += 1
        self._told, self._begun = _Told(), set()
        self._current, job._state = job, "running"
        job._resumed_at = time.monotonic()
        head = b"J" + JOB_HEAD.pack(self._runs, self._fresh)
        self._fresh = True  # until it has ended well
        for rank, payload in enumerate(job._payloads):
            # a stopped rank does not read: nobody but this thread waits for it
            threading.Thread(target=self._send, args=(rank, head + payload), daemon=True, name="send job").start()
        if job._control != "run":
            self._ask_all(b"C", job._control.encode())
        job._notify()

    def _receive(self, rank: int) -> None:
        pipe = self._pipes[rank]
        while True:
            try:
                data = pipe.recv_bytes()
            except (EOFError, OSError):
                self._note_end(rank)
                return
            kind, body = data[:1], data[1:]
            job = self._current
            if job is None:
                continue
            if kind == b"M":
                self._take_message(job, rank, body)
            elif kind == b"B":
                self._begun.add(rank)
            elif kind == b"W":
                job.warnings.append(body.decode())
                job._notify()
            else:
                self._take_report(job, rank, kind, body)

    def _take_report(self, job: Job, rank: int, kind: bytes, body: bytes) -> None:
        run, size = REPORT_HEAD.unpack_from(body)
        flight, fault = dill.loads(body[REPORT_HEAD.size : REPORT_HEAD.size + size])
        report = outcome.load_report(kind, body[REPORT_HEAD.size + size :])
        with self._lock:
            if job is not self._current or run != self._runs:
                return
            job._reports[rank] = report
            self._told.flights[rank] = [entry_of(rank, index, number, text, start_s, end_s) for index, number, text, start_s, end_s in flight]
            if fault is not None:
                self._told.faults[rank] = fault
            if report[0] == "error" and job._fault_at is None:
                job._fault_at = time.monotonic()
            if len(job._reports) == self.world_size:
                self._complete(job)

    def _note_end(self, rank: int) -> None:
        """A rank's socket has ended: the rank is dead, and mpirun ends the others, so quickly that another socket may end before this is seen.

        Which one died by itself is told by mpirun's last lines, how it died by mpirun's exit code.
        """
        with self._lock:
            if self._closed or self._dead:
                return
            self._dead[rank] = None
            job = self._current
            if job is not None:
                job._fault_at = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(DEATH_LIMIT_S)
            self._reader.join(LAST_LINES_S)
        with self._lock:
            code = self._keeper.returncode
            self._dead = {self._named_by_mpirun(rank): None if code is None else code if code <= 128 else 128 - code}
            if job is not None and job is self._current:
                self._complete(job)
        self._wake()

    def _named_by_mpirun(self, seen: int) -> int:
        """The rank of which mpirun says that it ended first; `seen`, whose socket ended first, where it says nothing that is understood."""
        found = _ENDED.search(" ".join(self._lines))
        rank = int(next(filter(None, found.groups()))) if found else seen
        return rank if rank < self.world_size else seen

    def _death_text(self) -> str:
        rank, code = next(iter(self._dead.items()))
        return outcome.death_text(rank, self._pids[rank], code)

    def _end_missing(self, job: Job, what: str) -> None:
        """Ranks do not come back: end the whole world, because MPI cannot go on without one of them."""
        job._ended_by_force = [r for r in range(self.world_size) if r not in job._reports]
        if not self._reason:
            self._reason = f"rank {', '.join(map(str, job._ended_by_force))} {what}"
        for rank in job._ended_by_force:
            self._dead.setdefault(rank, -signal.SIGKILL)
        self._complete(job)

    def _complete(self, job: Job) -> None:
        """All ranks have reported or are gone: settle the job, and end a world that has lost a rank."""
        dead = {rank: code for rank, code in self._dead.items() if rank not in job._ended_by_force}
        try:
            results, error = outcome.settle(self._told, self.world_size, job, dead, dict(enumerate(self._pids)))
        except Exception as defect:  # ours, but the caller must not wait for ever for it
            results, error = None, ParallelLabError(f"the outcome of the job cannot be told: {defect!r}")
        self._current = None
        self._fresh = error is not None or any(kind == "stopped" for kind, _ in job._reports.values())
        if self._dead:
            self._reason = self._reason or self._death_text()
            self._shut_down()
        job._finish(results, error)
        self._wake()

    # what is known

    def flight_record(self) -> dict[int, list[FlightEntry]]:
        """The last 64 requests of each rank in the last run, oldest first; of a rank that died nothing is known."""
        with self._lock:
            return {rank: list(self._told.flights.get(rank, ())) for rank in range(self.world_size)}

    # end

    def kill(self, reason: str = "killed") -> None:
        """End all ranks at once, whatever they are doing."""
        with self._lock:
            self._reason = self._reason or reason
            self._shut_down()

    def close(self) -> None:
        """End the world. Safe to call twice, and in a forked child, where it does nothing."""
        if os.getpid() != self._owner_pid:
            return
        with self._lock:
            self._shut_down()
        for thread in (self._supervisor, *self._receivers):
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(1.0)

    def _shut_down(self) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if self._keeper is not None:
            self._keeper.stdin.close()  # the keeper ends mpirun and all ranks, and removes the folders
            try:
                self._keeper.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
        for rank, pipe in self._pipes.items():
            with contextlib.suppress(OSError):
                pipe.close()
            if self._keeper.returncode == -signal.SIGKILL:  # somebody killed the keeper: what it would have done
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pids[rank], signal.SIGKILL)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._finish_jobs()
        if self._callbacks is not None:
            self._callbacks.put(None)
        self._wake()


def _remove_stale_folders() -> None:
    """Remove what worlds have left whose notebook and keeper were both killed."""
    for place in {tempfile.gettempdir(), "/dev/shm"}:
        for folder in Path(place).glob(f"{PREFIX}*-*") if Path(place).is_dir() else ():
            owner = folder.name.removeprefix(PREFIX).partition("-")[0]
            try:
                os.kill(int(owner), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
            except (ValueError, PermissionError):  # not ours
                continue


# As in shm/pool.py: the one table of live pools of this process, because cells that ask for one know nothing of each other.
_pools = PoolTable(MpiPool, KEPT_POOLS)


def get_mpi_pool(world_size: int) -> MpiPool:
    """The world on MPI of this size of this process: made when first asked for, made anew when it was lost. Raises what `MpiPool` raises."""
    return _pools.get(world_size)


def close_mpi_pools() -> None:
    """Close every pool `get_mpi_pool` made."""
    _pools.close()
