"""Worker processes from a notebook: start, run functions on all ranks, watch them, end them.

    pool = get_pool(4)
    pool.run(lambda comm, x: comm.all_reduce(x), np.ones(3))        # -> four times [4., 4., 4.]
    job = pool.submit(train, 100); job.pause(); job.resume(); job.stop(); job.result()

Three kinds of threads, all asleep while nothing happens: one supervisor (deaths, time limits, grace periods), one receiver per worker (a worker
stopped in the middle of a message must not stop the supervisor), one for callbacks once there are any. Idle workers block on their pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time

from multiprocess import connection

from ...errors import ParallelLabError, RankDied, message
from ..jobs import DEATH_GRACE_S, GRACE_S, INTERRUPT_KILL_S, LOADING_GRACE_S, LOOK_S, POLITE_STOP_S, Job, JobPool, PoolTable
from . import outcome
from .arena import ABORT, CONTROL, STARTED, Arena, ArenaMap, FlightEntry, SharedBlock
from .comm import CONTROLS
from .launch import context, start_processes
from .watch import Watch
from .worker_main import WorkerStart, worker_main

__all__ = ["WorkerPool", "close_all", "get_pool"]

DEFAULT_ARENA_BYTES = 64 << 20  # reserved as addresses; pages are taken when first written
START_LIMIT_S = 60.0
SMALL_PAYLOAD = 32 << 10  # fits the socket buffer of an idle worker, so that sending cannot block
KEPT_POOLS = 3  # idle pools of different sizes that get_pool keeps


class WorkerPool(JobPool):
    """`world_size` worker processes, one per rank.

    timeout_s     a collective that some rank does not reach in this time raises CollectiveTimeout
    warn_after_s  after this time a warning names the ranks that are missing
    arena_bytes   shared memory for data in transit; larger values pass through it in steps

    Raises SharedMemoryTooSmall, RankDied (a worker ended while starting), TimeoutError (start).
    """

    def __init__(self, world_size: int, *, timeout_s: float = 30.0, warn_after_s: float = 2.0, arena_bytes: int = DEFAULT_ARENA_BYTES) -> None:
        super().__init__(world_size, timeout_s, warn_after_s)
        self._owner_pid = os.getpid()
        layout = ArenaMap.for_budget(world_size, arena_bytes)
        self._arena = Arena(SharedBlock(layout.size_bytes), layout)
        self._watch = Watch(self._arena, timeout_s, warn_after_s)
        self._processes, self._pipes, self._receivers = [], [], []
        self._ready: set[int] = set()
        self._all_ready = threading.Condition(self._lock)
        self._life_read, self._life_write = context().Pipe(duplex=False)
        self._wake_read, self._wake_write = context().Pipe(duplex=False)
        self._supervisor = threading.Thread(target=self._supervise, daemon=True, name="pool-supervisor")
        atexit.register(self.close)
        try:
            start_processes(self._start_workers)
            self._life_read.close()
            self._supervisor.start()
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    # start

    def _start_workers(self, server_pid: int | None) -> None:
        for rank in range(self.world_size):
            here, there = context().Pipe()
            start = WorkerStart(rank, self.world_size, self._arena.block, self._arena.map, self._life_read, there, os.getpid(), server_pid)
            process = context().Process(target=worker_main, args=(start,), daemon=True, name=f"rank {rank}")
            self._pipes.append(here)
            process.start()
            there.close()
            self._processes.append(process)
            self._pids.append(process.pid)
        for rank in range(self.world_size):
            thread = threading.Thread(target=self._receive, args=(rank,), daemon=True, name=f"receive rank {rank}")
            self._receivers.append(thread)
            thread.start()

    def _wait_ready(self) -> None:
        with self._all_ready:
            self._all_ready.wait_for(lambda: len(self._ready) == self.world_size or self._dead, START_LIMIT_S)
            if self._dead:
                raise RankDied(message(f"{self._death_text()} while the workers started", hint="The notebook server's log may hold its last words"))
            if len(self._ready) < self.world_size:
                missing = sorted(set(range(self.world_size)) - self._ready)
                raise TimeoutError(message(f"ranks {missing} did not start within {START_LIMIT_S} s", where="WorkerPool"))

    # running

    def _apply_control(self, job: Job) -> None:
        with self._lock:
            if job is self._current:
                self._arena.words[CONTROL] = CONTROLS.index(job._control)
            elif job in self._jobs and job._control == "stop":
                self._jobs.remove(job)
                job._finish([None] * self.world_size, None)

    # what is known

    def flight_record(self) -> dict[int, list[FlightEntry]]:
        """The last 64 requests of each rank in the current or last run, oldest first; also of ranks that died."""
        with self._lock:
            if self._closed:
                return self._last_flight
            return {rank: self._arena.flight(rank) for rank in range(self.world_size)}

    def _death_text(self) -> str:
        rank, code = next(iter(self._dead.items()))
        return outcome.death_text(rank, self._pids[rank], code)

    # threads

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile: there is nobody to wake
            self._wake_write.send_bytes(b"w")

    def _supervise(self) -> None:
        try:
            self._supervise_until_closed()
        except Exception as defect:  # ours; without a supervisor a death would go unnoticed, so the pool ends here
            self.kill(f"the supervisor failed: {defect!r}")
        finally:
            self._release_processes()

    def _supervise_until_closed(self) -> None:
        sentinels = {process.sentinel: rank for rank, process in enumerate(self._processes)}
        while not self._closed:
            with self._lock:
                wait_s = self._tend()
            for ready in connection.wait([*sentinels, self._wake_read], wait_s):
                if self._closed:
                    return
                if ready is self._wake_read:
                    self._wake_read.recv_bytes()
                else:
                    self._note_death(sentinels.pop(ready))

    def _release_processes(self) -> None:
        """Give back the descriptors the supervisor waited on; last, so that none is used again while it waits."""
        with self._lock:
            self._wake_read.close()
            for process in self._processes:
                with contextlib.suppress(ValueError):  # not ended yet: closed when it is forgotten
                    process.close()

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
        if job._interrupted_at is not None:
            since = now - job._interrupted_at
            if since >= INTERRUPT_KILL_S:
                self._end_missing(job, "did not stop")
            elif since >= POLITE_STOP_S:
                self._arena.write_fault(self.world_size, "Interrupted", "The run was interrupted.")
            return LOOK_S
        if self._arena.words[ABORT] and job._fault_at is None:
            job._fault_at, job._grace_s = now, GRACE_S
        if job._fault_at is not None:
            grace_s = LOADING_GRACE_S if job._grace_s == GRACE_S and self._loading(job) else job._grace_s
            if now - job._fault_at >= grace_s:
                self._end_missing(job, f"did not stop within {job._grace_s:g} s")
            return LOOK_S / 2
        if job._control != "pause":
            waiting = self._watch.look(now, job._resumed_at)
            for text in waiting:
                job.warnings.append(text)
                job._notify()
        return LOOK_S

    def _loading(self, job: Job) -> bool:
        """True while a rank that is missing still loads the function: it is not stuck, and will see the fault before it starts."""
        missing = [rank for rank in range(self.world_size) if rank not in job._reports and rank not in self._dead]
        return any(self._arena.words[self._arena.map.slot(rank) + STARTED] != self._runs for rank in missing)

    def _start(self, job: Job) -> None:
        self._runs += 1
        self._arena.begin_run(self._runs)
        self._watch.begin_run()
        self._current, job._state = job, "running"
        job._resumed_at = time.monotonic()
        self._arena.words[CONTROL] = CONTROLS.index(job._control)
        for pipe, payload in zip(self._pipes, job._payloads, strict=True):
            if len(payload) <= SMALL_PAYLOAD:
                self._send(pipe, payload)
            else:  # a stopped worker does not read; the supervisor must not wait for it
                threading.Thread(target=self._send, args=(pipe, payload), daemon=True, name="send job").start()
        job._notify()

    @staticmethod
    def _send(pipe, payload: bytes) -> None:
        with contextlib.suppress(OSError):  # the worker is gone; its sentinel tells
            pipe.send_bytes(payload)

    def _receive(self, rank: int) -> None:
        pipe = self._pipes[rank]
        while True:
            try:
                body = pipe.recv_bytes()
            except (EOFError, OSError):
                return
            kind, body = body[:1], body[1:]
            if kind == b"R":
                with self._all_ready:
                    self._ready.add(rank)
                    self._all_ready.notify_all()
                continue
            job = self._current
            if job is None:
                continue
            if kind == b"M":
                self._take_message(job, rank, body)
                continue
            report = outcome.load_report(kind, body)
            with self._lock:
                if job is not self._current:
                    continue
                job._reports[rank] = report
                if len(job._reports) + len(set(self._dead) - set(job._reports)) == self.world_size:
                    self._complete(job)
                elif report[0] == "error":
                    self._wake()

    def _note_death(self, rank: int) -> None:
        with self._lock:
            if self._closed:
                return
            code = self._processes[rank].exitcode
            self._dead[rank] = code
            self._all_ready.notify_all()
            job = self._current
            if job is None or job._ended_by_force:
                if job is not None:
                    self._complete_if_over(job)
                return
            entry = self._arena.last_entry(rank)
            text = outcome.death_text(rank, self._pids[rank], code, entry)
            self._arena.write_fault(self.world_size, "RankDied", text + ".", rank=rank)
            job._fault_at, job._grace_s = time.monotonic(), DEATH_GRACE_S
            self._complete_if_over(job)

    def _complete_if_over(self, job: Job) -> None:
        if len(set(job._reports) | set(self._dead)) == self.world_size:
            self._complete(job)

    def _end_missing(self, job: Job, what: str) -> None:
        """Kill the ranks that have not reported; the job completes as their sentinels fire."""
        if job._ended_by_force:
            return
        job._ended_by_force = [r for r in range(self.world_size) if r not in job._reports and r not in self._dead]
        if not self._reason:
            self._reason = f"rank {', '.join(map(str, job._ended_by_force))} {what}"
        for rank in job._ended_by_force:
            self._processes[rank].kill()
        self._complete_if_over(job)

    def _complete(self, job: Job) -> None:
        """All ranks have reported or are gone: settle the job, and end a pool that has lost a rank."""
        dead = {rank: code for rank, code in self._dead.items() if rank not in job._ended_by_force}
        try:
            results, error = outcome.settle(self._arena, self.world_size, job, dead, dict(enumerate(self._pids)))
        except Exception as defect:  # ours, but the caller must not wait for ever for it
            results, error = None, ParallelLabError(f"the outcome of the job cannot be told: {defect!r}")
        self._current = None
        if self._dead:
            self._reason = self._reason or self._death_text()
            self._shut_down()
        job._finish(results, error)
        self._wake()

    # end

    def kill(self, reason: str = "killed") -> None:
        """End all workers at once, whatever they are doing."""
        with self._lock:
            self._reason = self._reason or reason
            self._shut_down()

    def close(self) -> None:
        """End the workers: idle ones at once, busy ones by force. Safe to call twice, and in a forked child, where it does nothing."""
        if os.getpid() != self._owner_pid:
            return
        with self._lock:
            self._shut_down()
        if self._supervisor.ident is None:
            self._release_processes()
        for thread in (self._supervisor, *self._receivers):
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(1.0)

    def _shut_down(self) -> None:
        if self._closed:
            return
        self._last_flight = {rank: self._arena.flight(rank) for rank in range(self.world_size)}
        self._closed = True
        atexit.unregister(self.close)
        idle = self._current is None
        for pipe in self._pipes:
            if idle:
                self._send(pipe, b"")
        self._life_write.close()
        self._wake()
        deadline = time.monotonic() + (0.5 if idle else 0.0)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join(1.0)
        for pipe in (*self._pipes, self._wake_write):
            pipe.close()
        self._finish_jobs()
        if self._callbacks is not None:
            self._callbacks.put(None)
        self._arena.close()


# The one table of live pools of this process: `get_pool` is asked from cells that know nothing of each other, and starting processes anew for each
# would lose `comm.state`.
_pools = PoolTable(WorkerPool, KEPT_POOLS)


def get_pool(world_size: int) -> WorkerPool:
    """The pool of this size of this process: made when first asked for, made anew when it was lost.

    Idle pools of other sizes are kept up to a small number (they use no processor time); the one used longest ago is closed first.
    """
    return _pools.get(world_size)


def close_all() -> None:
    """Close every pool `get_pool` made."""
    _pools.close()
