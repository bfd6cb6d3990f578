"""What all pools of ranks share: the queue of jobs, the supervising thread, messages, and the end.
`JobPool` does not know how ranks start or talk (`shm/pool.py` and `mpi/pool.py` do). A supervisor (`supervisor.py`)
decides what is done when; the pool does it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dill
import multiprocess

from ..base.checks import integer
from ..base.errors import ArgumentError, Interrupted, ParallelLabError, RankDied, WorkersClosed, WorldError, message
from ..base.system import require_processes
from . import outcome, supervisor
from .jobs import Job, packed

START_LIMIT_S = 60.0
INTERRUPT_S = 1.0  # in which an interrupt must end the cell
GRACES = {
    "start_s": START_LIMIT_S,
    "fault_s": 3.0,  # needed on a machine with other work only
    "loading_s": 10.0,  # a rank still imports what the function needs; 1 s was too little on a machine with other work
    "death_s": 0.25,  # the pool is lost anyway
    "trim_s": 5.0,  # while a learner reads, not between the parts of one training or one measurement
    # Ctrl-C: ranks stop where they agree to, then in any collective, then by force
    "polite_s": 0.25,
    "interrupt_s": 0.85,
}


class JobPool:
    """`world_size` ranks that run functions. After `warn_after_s` a warning names missing ranks, after `timeout_s` a
    collective raises CollectiveTimeout; `graces`: other values than GRACES. A derived class starts its ranks in
    `__init__`, then calls `_supervise_until_ready`. What its threads see (a rank is ready, has reported, has died) it
    notes in `_ready`, `_current._reports` and `_dead`, under `_lock`, and calls `_look`.
    """

    def __init__(self, world_size: int, timeout_s: float, warn_after_s: float, **graces: float) -> None:
        name = type(self).__name__
        require_processes(name)
        if multiprocess.current_process().daemon:
            what, hint = (
                "a worker cannot start workers of its own",
                "Start both pools in the notebook, one after the other",
            )
            raise WorldError(what, where=name, hint=hint)
        self.world_size = integer(1, kinds=int)(name, "world_size", world_size)
        supervisor.check_seconds(name, timeout_s=timeout_s, warn_after_s=warn_after_s, **graces)
        self.timeout_s, self.warn_after_s = timeout_s, warn_after_s
        self.kept: dict[str, Any] = {}  # of those who use it
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()
        limits = supervisor.Limits(timeout_s, warn_after_s, **{**GRACES, **graces})
        self._supervisor = supervisor.Supervisor(world_size, limits, takes_jobs=True)
        self._supervising = threading.Thread(target=self._supervise, daemon=True, name=f"{name} supervisor")
        self._receivers: list[threading.Thread] = []
        self._started = threading.Condition(self._lock)  # told when the state of the supervisor may have changed
        self._starting_since_s = time.monotonic()
        self._jobs: deque[Job] = deque()
        self._current: Job | None = None
        self._runs = 0
        self._pids: list[int] = []
        self._ready: set[int] = set()
        self._dead: dict[int, int | None] = {}  # exit codes, in the order in which the deaths were seen
        self._reason = ""
        self._closed = False
        self._callbacks: queue.SimpleQueue | None = None
        self._callback_thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "alive" if self.alive else "lost"
        return f"{type(self).__name__}({self.world_size} ranks, {state}{', busy' if self._current else ''})"

    # what derived classes bring; `_lock` is held except in `_wait_for_news`

    def _wait_for_news(self, limit_s: float | None) -> None:
        """Block the supervising thread until `_wake` is called or `limit_s` seconds are over (None: no limit)."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Let `_wait_for_news` return. Called with and without the lock."""
        raise NotImplementedError

    def _send_job(self, job: Job) -> None:
        """Hand the job, number `_runs`, to all ranks; must not wait for any of them."""
        raise NotImplementedError

    def _send_control(self, control: str) -> None:
        """Tell the ranks "run", "pause" or "stop"."""
        raise NotImplementedError

    def _seen(self) -> dict[str, Any]:
        """What only this transport sees of the run under way: `fault`, `loading`, `stall`."""
        raise NotImplementedError

    def _stop_run(self, action: supervisor.StopRun) -> None:
        """Let every collective of this run raise."""
        raise NotImplementedError

    def _record_death(self, rank: int) -> None:
        """Let every collective of this run raise that `rank` has died."""

    def _kill_ranks(self, ranks: tuple[int, ...]) -> None:
        """End these ranks by force, and see to it that they come to be in `_dead`."""
        raise NotImplementedError

    def _keeps_values(self) -> bool:
        """Whether idle ranks have values for jobs to come (`comm.state`), so that they must not end."""
        raise NotImplementedError

    def _trim(self) -> None:
        """Let ranks and this process give freed memory back to the system; all are idle."""
        raise NotImplementedError

    def _memory_of_run(self) -> outcome.Memory:
        """What is known of the calls of the run."""
        raise NotImplementedError

    def _end_ranks(self, idle: bool) -> None:
        """End all ranks and give back what they hold."""
        raise NotImplementedError

    def _released(self) -> None:
        """The ranks have ended because nobody needs them: give back what their starting again would use."""

    # start

    def _supervise_until_ready(self) -> None:
        """Start the supervising thread and wait for all ranks. Raises RankDied, TimeoutError."""
        self._supervising.start()
        with self._started:
            self._started.wait_for(lambda: self._supervisor.state != "starting")
            if self._dead:
                raise self._start_error()
            if len(self._ready) < self.world_size:
                what = f"ranks {self._not_ready()} did not start within {START_LIMIT_S:g} s"
                raise TimeoutError(message(what, where=type(self).__name__))

    def _not_ready(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in self._ready]

    def _start_error(self) -> RankDied:
        """What to raise when a rank has died before all were ready."""
        hint = "The notebook server's log may hold its last words"
        return RankDied(f"{self._death_text()} while the workers started", hint=hint)

    def _add_receivers(self, receive: Callable[[int], None]) -> None:
        """One thread per rank: one that is stopped in the middle of a message must not hold up the others."""
        for rank in range(self.world_size):
            thread = threading.Thread(target=receive, args=(rank,), daemon=True, name=f"receive rank {rank}")
            self._receivers.append(thread)
            thread.start()

    # running

    def run(self, fn: Callable, *args: object) -> list:
        """fn(comm, *args) on every rank; returns the results by rank. Ctrl-C ends the run within a second
        (`interrupt`); KeyboardInterrupt says whether the workers had to be ended for it.
        """
        return self._wait_for(Job(self, [self._packed(fn, args)] * self.world_size, None))

    def run_each(self, fn: Callable, args_per_rank: Sequence[tuple]) -> list:
        """fn(comm, *args_per_rank[rank]) on every rank; otherwise as `run`."""
        if len(args_per_rank) != self.world_size:
            what = f"{len(args_per_rank)} tuples of arguments for {self.world_size} ranks"
            raise ArgumentError(what, where="run_each", allowed="One for each rank")
        return self._wait_for(Job(self, [self._packed(fn, tuple(args)) for args in args_per_rank], None))

    def submit(
        self,
        fn: Callable,
        *args: object,
        on_message: Callable[[tuple[int, object]], object] | None = None,
        paused: bool = False,
    ) -> Job:
        """Start fn(comm, *args) on every rank and return at once; a busy pool runs it afterwards.

        on_message  called in a thread of the pool with each (rank, object) that `comm.report` sends
        paused      begin as after `Job.pause`
        """
        job = Job(self, [self._packed(fn, args)] * self.world_size, on_message)
        job._control = "pause" if paused else "run"
        return self._enqueue(job)

    def _packed(self, fn: Callable, args: tuple) -> Any:
        """A function and its arguments for the ranks, as `_send_job` hands them over."""
        return packed((fn, args))

    def _enqueue(self, job: Job) -> Job:
        self._check_owner()
        with self._lock:
            self._check_usable()
            self._jobs.append(job)
            if job._on_message is not None and self._callback_thread is None:
                self._callbacks = queue.SimpleQueue()
                self._callback_thread = threading.Thread(target=self._deliver, daemon=True, name="pool-callbacks")
                self._callback_thread.start()
        self._wake()
        return job

    def _wait_for(self, job: Job) -> list:
        try:
            self._enqueue(job)
            return job.result()
        except KeyboardInterrupt:
            raise Interrupted(f"the run was interrupted{self.interrupt(job)}") from None

    def interrupt(self, job: Job) -> str:
        """End a job within a second: at an agree point, in a collective, by force; a second Ctrl-C ends the workers.
        Returns what it cost, as the end of a sentence: "" if the workers are as usable as before.
        """
        try:
            self._interrupt(job)
            with job._changed:
                job._changed.wait_for(job.done, INTERRUPT_S)
            with self._lock:
                # on a busy machine force takes its time too; nobody is to go on with workers that are about to be ended
                if not job.done():
                    self.kill("an interrupted run that did not end in time")
        except KeyboardInterrupt:
            self.kill("a second interrupt")
        return f": {self._reason}; all workers were ended and their state is lost" if not self.alive else ""

    def _interrupt(self, job: Job) -> None:
        with self._lock:
            if job.done():
                return
            if job is not self._current:
                if job in self._jobs:
                    self._jobs.remove(job)
                job._finish(None, KeyboardInterrupt("interrupted before it started"))
                return
            job._interrupted, job._control = True, "stop"
            self._supervisor.interrupt(time.monotonic())
            self._send_control("stop")
        self._wake()

    def _control_changed(self, job: Job) -> None:
        with self._lock:
            if job is self._current:
                self._supervisor.resume(time.monotonic())
                self._send_control(job._control)
            elif job in self._jobs and job._control == "stop":
                self._jobs.remove(job)
                job._finish([None] * self.world_size, None)

    # supervising

    def _supervise(self) -> None:
        try:
            while not self._closed:
                with self._lock:
                    self._look()
                    look_s = self._supervisor.look_within_s(time.monotonic())
                self._wait_for_news(look_s)
        except Exception as defect:  # ours; without a supervisor a death would go unnoticed, so the pool ends here
            self.kill(f"the supervisor failed: {defect!r}")
        finally:
            self._release_supervising()

    def _release_supervising(self) -> None:
        """Give back what `_wait_for_news` waits on; last, so that no descriptor is used again while it waits."""

    def _look(self) -> None:
        """Let the supervisor judge what is seen, and do what it says. With `_lock` held, in any thread."""
        while actions := self._supervisor.tick(time.monotonic(), self._facts()):
            for action in actions:
                self._do(action)
        self._started.notify_all()

    def _facts(self) -> supervisor.Facts:
        job, own = self._current, {}
        if job is not None:
            own = self._seen()
        elif self._supervisor.state == "starting":
            own = {"stall": supervisor.Stall(tuple(self._not_ready()), "", time.monotonic() - self._starting_since_s)}
        elif self._supervisor.state == "idle":
            own = {"kept": self._keeps_values()}
        reported: Mapping | tuple = () if job is None else job._reports
        return supervisor.Facts(ready=self._ready, queued=bool(self._jobs), reported=reported, dead=self._dead, **own)

    def _do(self, action: supervisor.Action) -> None:
        job = self._current
        match action:
            case supervisor.StartJob():
                self._start_job(self._jobs.popleft())
            case supervisor.RefuseJobs():
                self._finish_jobs()
            case supervisor.Warn(text):
                job._warn(text)
            case supervisor.RecordDeath(rank) if job is not None:
                self._record_death(rank)
            case supervisor.StopRun() if job is not None:
                self._stop_run(action)
            case supervisor.Kill(ranks, reason):
                self._reason = self._reason or f"rank {', '.join(map(str, ranks))} {reason}"
                self._kill_ranks(ranks)
            case supervisor.Settle() if job is not None:
                self._settle_job(job)
            case supervisor.Trim():
                self._trim()
            case supervisor.Release():
                self._reason = f"nothing was asked of them for {self._supervisor.limits.idle_s:g} s"
                self._shut_down()
                self._released()

    def _start_job(self, job: Job) -> None:
        self._runs += 1
        self._current, job._state = job, "running"
        self._supervisor.begin_run(time.monotonic())
        self._send_job(job)
        job._notify()

    def _settle_job(self, job: Job) -> None:
        """All ranks have reported or are gone: say what became of the job, and end a pool that has lost a rank."""
        killed = self._supervisor.killed
        dead = {rank: code for rank, code in self._dead.items() if rank not in killed}
        try:
            results, error = outcome.settle(self._memory_of_run(), self._pids, job, dead, killed)
        except Exception as defect:  # ours, but the caller must not wait for ever for it
            results, error = None, ParallelLabError(f"the outcome of the job is unknown: {defect!r}")
        self._current = None
        if self._dead:
            self._reason = self._reason or self._death_text()
            self._shut_down()
        job._finish(results, error)
        self._wake()

    # what is known

    @property
    def alive(self) -> bool:
        """True while every worker lives."""
        return not self._closed and not self._dead

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def busy(self) -> bool:
        """True while a job runs or waits."""
        return self._current is not None or bool(self._jobs)

    @property
    def pids(self) -> list[int]:
        """Process id per rank."""
        return list(self._pids)

    def claim(self) -> bool:
        """Whether it can take jobs; it is not released now, however long it was idle."""
        with self._lock:
            if self.alive and self._owner_pid == os.getpid():
                self._supervisor.rest(time.monotonic())
                self._wake()
                return True
        return False

    def release(self) -> None:
        """Close it, unless it is busy or its ranks keep values for jobs to come."""
        with self._lock:
            if self.alive and not self.busy and not self._keeps_values():
                self._reason = "nobody used them"
                self._shut_down()
                self._released()

    def _death_text(self) -> str:
        """Which rank died first, and how."""
        rank, code = next(iter(self._dead.items()))
        return outcome.death_text(rank, self._pids[rank], code)

    def _check_owner(self) -> None:
        """A fork has copies of the pipes, and none of the threads that serve them."""
        if os.getpid() != self._owner_pid:
            what = f"these workers are those of process {self._owner_pid}, and this one (pid {os.getpid()}) is its fork"
            raise WorkersClosed(what, where=type(self).__name__, hint="A pool that is made here has workers of its own")

    def _check_usable(self) -> None:
        if self._closed:
            why = f": {self._reason}" if self._reason else ""
            raise WorkersClosed(f"these workers were closed{why}", hint="get_pool makes new ones")
        if self._dead:
            hint = "Its state is lost; close this pool, or let get_pool make a new one"
            raise RankDied(f"{self._death_text()} while idle", hint=hint)

    # messages of a job

    def _take_message(self, job: Job, rank: int, body: bytes) -> None:
        try:
            item = (rank, dill.loads(body))
        except Exception as error:  # what the notebook cannot rebuild is still shown
            item = (rank, ParallelLabError(f"a report of rank {rank} cannot be read here: {error!r}"))
        with job._changed:
            job.messages.append(item)
            if job._on_message is not None:
                job._undelivered += 1
                self._callbacks.put((job, item))
        job._notify()

    def _deliver(self) -> None:
        while True:
            entry = self._callbacks.get()
            if entry is None:
                return
            job, item = entry
            try:
                job._on_message(item)
            except Exception as error:  # a faulty display must not stop the training; the job keeps the error
                job.callback_errors.append(error)
                if len(job.callback_errors) == 1:
                    job.warnings.append(f"on_message raised {error!r}; see job.callback_errors")
            with job._changed:
                job._undelivered -= 1
                job._changed.notify_all()

    def _in_callback_thread(self) -> bool:
        return threading.current_thread() is self._callback_thread

    # end

    def kill(self, reason: str = "killed") -> None:
        """End all workers at once, whatever they are doing."""
        with self._lock:
            self._reason = self._reason or reason
            self._shut_down()

    def close(self) -> None:
        """End the workers, busy ones by force. Called again, or in a forked child, does nothing."""
        if os.getpid() != self._owner_pid:
            return
        with self._lock:
            self._shut_down()
        if self._supervising.ident is None:
            self._release_supervising()
        for thread in (self._supervising, *self._receivers):
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(1.0)

    def _shut_down(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._supervisor.close()
        atexit.unregister(self.close)
        self._end_ranks(self._current is None)
        self._finish_jobs()
        if self._callbacks is not None:
            self._callbacks.put(None)
        with contextlib.suppress(OSError):
            self._wake()
        self._started.notify_all()

    def _finish_jobs(self) -> None:
        """Jobs of workers that are gone fail."""
        error: ParallelLabError = WorkersClosed("these workers were lost before the job started.")
        try:
            self._check_usable()
        except ParallelLabError as known:
            error = known
        for job in (self._current, *self._jobs):
            if job is not None and not job.done():
                job._finish(None, KeyboardInterrupt("the run was interrupted") if job._interrupted else error)
        self._jobs.clear()
        self._current = None

    def __enter__(self) -> JobPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class PoolTable:
    """Live pools by size, made by `make(world_size)`; up to `kept` idle ones, the one used longest ago closed first."""

    def __init__(self, make: Callable[[int], JobPool], kept: int) -> None:
        self._make, self._kept = make, kept
        self._pools: dict[int, JobPool] = {}
        self._lock = threading.Lock()

    def get(self, world_size: int) -> Any:
        """The pool of this size of this process, a new one if it was lost."""
        with self._lock:
            pool = self._pools.pop(world_size, None)
            if pool is not None and not pool.claim():
                pool.close()
                pool = None
            if pool is None:
                idle = [size for size, other in self._pools.items() if not other.busy]
                for size in idle[: max(0, len(self._pools) + 1 - self._kept)]:
                    self._pools.pop(size).close()
                pool = self._make(world_size)
            self._pools[world_size] = pool
            return pool

    def release(self) -> None:
        """Close pools that nobody uses."""
        with self._lock:
            for pool in self._pools.values():
                pool.release()

    def close(self) -> None:
        """Close every pool."""
        with self._lock:
            while self._pools:
                self._pools.popitem()[1].close()
