"""Jobs: functions running on all ranks of a pool, watched from the notebook without blocking it; and what all pools of ranks share.

`JobPool` is the notebook's side that does not depend on how ranks are started or talk: `shm/pool.py` derives from it for worker processes
with shared memory, `mpi/pool.py` for ranks under mpirun.
"""

from __future__ import annotations

import importlib
import io
import os
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import dill

from ..errors import ArgumentError, ParallelLabError, RankDied, WorkersClosed, message

__all__ = [
    "DEATH_GRACE_S",
    "GRACE_S",
    "INTERRUPT_GRACE_S",
    "INTERRUPT_KILL_S",
    "LOADING_GRACE_S",
    "LOOK_S",
    "POLITE_STOP_S",
    "Job",
    "JobPool",
    "PoolTable",
    "packed",
]

LOOK_S = 0.05  # how often a pool looks at a job that runs
GRACE_S = 3.0  # for ranks to come back after a fault before the pool is ended by force; they need that long only on a machine with other work
INTERRUPT_GRACE_S = 1.0  # the same after an interrupt, which must end the cell within a second
LOADING_GRACE_S = 10.0  # the same while a rank still imports what the function needs (1 s was too little on a machine with other work)
DEATH_GRACE_S = 0.25  # the same after a death, when the pool is lost anyway
POLITE_STOP_S, INTERRUPT_KILL_S = 0.25, 0.85  # Ctrl-C: stop at an agree point; after the first, at any collective; after the second, by force
_PACKAGE = __name__.partition(".")[0]
KEPT_MESSAGES = 10_000  # older messages of a job are dropped; a callback has seen them all
CALLBACK_WAIT_S = 5.0  # result() waits at most this long for callbacks that still run


class _Packer(dill.Pickler):
    """dill, but modules of this package go by name: in an editable install dill takes them for the user's own and would copy what is in them."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and obj.__name__.partition(".")[0] == _PACKAGE:
            return importlib.import_module, (obj.__name__,)
        return NotImplemented


def packed(obj: Any) -> bytes:
    """`obj` as bytes for a worker; a function goes with the notebook's globals that it uses, and no others."""
    out = io.BytesIO()
    _Packer(out, recurse=True).dump(obj)
    return out.getvalue()


class Job:
    """Made by `submit` of a pool. All methods may be called from any thread.

    messages    the last (rank, object) pairs the ranks reported, oldest first
    warnings    texts about ranks that keep others waiting
    """

    def __init__(self, pool: JobPool, payloads: list[bytes], on_message: Callable[[tuple], object] | None) -> None:
        self.messages: deque[tuple[int, object]] = deque(maxlen=KEPT_MESSAGES)
        self.warnings: list[str] = []
        self.callback_errors: list[BaseException] = []
        self._pool, self._payloads, self._on_message = pool, payloads, on_message
        self._changed = threading.Condition()
        self._version = 0
        self._state = "queued"
        self._results: list | None = None
        self._error: BaseException | None = None
        self._control = "run"
        self._undelivered = 0
        # the pool's bookkeeping while the job runs
        self._reports: dict[int, tuple] = {}
        self._fault_at: float | None = None
        self._grace_s = 0.0
        self._interrupted_at: float | None = None
        self._resumed_at = time.monotonic()
        self._ended_by_force: list[int] = []

    def __repr__(self) -> str:
        return f"Job({self.state}, {len(self.messages)} messages)"

    @property
    def state(self) -> str:
        """ "queued", "running", "paused", "stopping", "done" or "failed"."""
        if self._state == "running" and self._control != "run":
            return {"pause": "paused", "stop": "stopping"}[self._control]
        return self._state

    def done(self) -> bool:
        """True when every rank has returned or the job has failed."""
        return self._state in ("done", "failed")

    def result(self, timeout: float | None = None) -> list:
        """What the function returned, per rank. Raises its error, or TimeoutError after `timeout` seconds (the job goes on)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        warned = 0
        while True:
            with self._changed:
                while not self.done() and warned == len(self.warnings):
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(f"the job is still {self.state} after {timeout} s")
                    self._changed.wait(0.5 if left is None else min(left, 0.5))
            for text in self.warnings[warned:]:
                warnings.warn(text, RuntimeWarning, stacklevel=3)
                warned += 1
            if self.done():
                break
        with self._changed:
            self._changed.wait_for(lambda: not self._undelivered or self._pool._in_callback_thread(), CALLBACK_WAIT_S)
        if self._error is not None:
            raise self._error
        return self._results

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Block until a message comes or the state changes; False when `timeout` seconds pass first."""
        with self._changed:
            seen = self._version
            return self._changed.wait_for(lambda: self._version != seen or self.done(), timeout)

    def pause(self) -> None:
        """Let the ranks wait at their next `wait_if_paused` or `agree_to_continue`. No time limit runs meanwhile."""
        self._ask("pause")

    def resume(self) -> None:
        """Go on after `pause`."""
        self._ask("run")

    def stop(self) -> None:
        """Ask the ranks to stop together: `agree_to_continue` answers False on all of them at the same step. A queued job does not start."""
        self._ask("stop")

    def _ask(self, control: str) -> None:
        with self._changed:
            if self.done() or self._control == "stop":
                return
            self._control = control
            self._resumed_at = time.monotonic()
        self._pool._apply_control(self)
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _finish(self, results: list | None, error: BaseException | None) -> None:
        with self._changed:
            self._results, self._error = results, error
            self._state = "failed" if error is not None else "done"
            self._payloads = []
        self._notify()


class JobPool:
    """`world_size` ranks that run what they are given. Derived classes bring `_wake`, `_apply_control`, `_death_text`, `kill` and `close`.

    timeout_s     a collective that some rank does not reach in this time raises CollectiveTimeout
    warn_after_s  after this time a warning names the ranks that are missing
    """

    def __init__(self, world_size: int, timeout_s: float, warn_after_s: float) -> None:
        name = type(self).__name__
        if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
            raise ArgumentError(message(f"world_size={world_size!r}", where=name, allowed="An int of at least 1"))
        if not timeout_s > 0 or not warn_after_s > 0:
            raise ArgumentError(message(f"timeout_s={timeout_s!r}, warn_after_s={warn_after_s!r}", where=name, allowed="Seconds above 0"))
        self.world_size, self.timeout_s, self.warn_after_s = world_size, timeout_s, warn_after_s
        self._lock = threading.RLock()
        self._jobs: deque[Job] = deque()
        self._current: Job | None = None
        self._runs = 0
        self._pids: list[int] = []
        self._dead: dict[int, int | None] = {}
        self._reason = ""
        self._closed = False
        self._callbacks: queue.SimpleQueue | None = None
        self._callback_thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "alive" if self.alive else "lost"
        return f"{type(self).__name__}({self.world_size} ranks, {state}{', busy' if self._current else ''})"

    # what derived classes bring

    def _wake(self) -> None:
        """Let the supervising thread look at once."""
        raise NotImplementedError

    def _apply_control(self, job: Job) -> None:
        """Tell the ranks what is asked of `job`; a job that waits and is to stop is finished here."""
        raise NotImplementedError

    def _death_text(self) -> str:
        """Which rank died, and how."""
        raise NotImplementedError

    def kill(self, reason: str = "killed") -> None:
        """End all workers at once, whatever they are doing."""
        raise NotImplementedError

    def close(self) -> None:
        """End the workers: idle ones at once, busy ones by force."""
        raise NotImplementedError

    # running

    def run(self, fn: Callable, *args: object) -> list:
        """fn(comm, *args) on every rank; returns the results by rank.

        Ctrl-C (the notebook's interrupt button) asks the ranks to stop: at the next `agree_to_continue`, shortly after at any collective.
        KeyboardInterrupt follows within a second and the workers stay usable, unless one of them does not come back: then all are ended, and
        the error says so.
        """
        return self._attend(self._job([self._pack(fn, args)] * self.world_size, None))

    def run_each(self, fn: Callable, args_per_rank: Sequence[tuple]) -> list:
        """fn(comm, *args_per_rank[rank]) on every rank; otherwise as `run`."""
        if len(args_per_rank) != self.world_size:
            raise ValueError(message(f"{len(args_per_rank)} tuples of arguments for {self.world_size} ranks", where="run_each"))
        return self._attend(self._job([self._pack(fn, tuple(args)) for args in args_per_rank], None))

    def submit(self, fn: Callable, *args: object, on_message: Callable[[tuple[int, object]], object] | None = None) -> Job:
        """Start fn(comm, *args) on every rank and return at once; a busy pool runs it afterwards.

        on_message  called in a thread of the pool with each (rank, object) that `comm.report` sends
        """
        return self._enqueue(self._job([self._pack(fn, args)] * self.world_size, on_message))

    @staticmethod
    def _pack(fn: Callable, args: tuple) -> bytes:
        return packed((fn, args))

    def _job(self, payloads: list[bytes], on_message: Callable | None) -> Job:
        return Job(self, payloads, on_message)

    def _enqueue(self, job: Job) -> Job:
        with self._lock:
            self._check_usable()
            self._jobs.append(job)
            if job._on_message is not None and self._callback_thread is None:
                self._callbacks = queue.SimpleQueue()
                self._callback_thread = threading.Thread(target=self._deliver, daemon=True, name="pool-callbacks")
                self._callback_thread.start()
        self._wake()
        return job

    def _attend(self, job: Job) -> list:
        try:
            self._enqueue(job)
            return job.result()
        except KeyboardInterrupt:
            ended = self.interrupt(job)
        raise KeyboardInterrupt(f"the run was interrupted{ended}") from None

    def interrupt(self, job: Job) -> str:
        """End a job within a second: at an agree point, then in any collective, then by force. A second Ctrl-C in the meantime ends the workers.

        Returns what it cost, as the end of a sentence: "" if the workers are as usable as before.
        """
        self._interrupt(job)
        try:
            with job._changed:
                job._changed.wait_for(job.done, INTERRUPT_GRACE_S)
            with self._lock:
                if not job.done():  # on a busy machine force takes its time too; nobody is to go on with workers that are about to be ended
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
            job._interrupted_at = time.monotonic()
            job._control = "stop"
            self._apply_control(job)
        self._wake()

    def _check_usable(self) -> None:
        if self._closed:
            raise WorkersClosed(message(f"these workers were closed{': ' + self._reason if self._reason else ''}", hint="get_pool makes new ones"))
        if self._dead:
            raise RankDied(message(self._death_text() + " while idle", hint="Its state is lost; close this pool, or let get_pool make a new one"))

    def _unusable(self) -> ParallelLabError:
        try:
            self._check_usable()
        except ParallelLabError as error:
            return error
        return WorkersClosed(message("these workers were lost before the job started"))

    def _finish_jobs(self) -> None:
        """What those get who wait for jobs of workers that are no more."""
        error = self._unusable()
        for job in (self._current, *self._jobs):
            if job is not None and not job.done():
                job._finish(None, error if job._interrupted_at is None else KeyboardInterrupt("the run was interrupted"))
        self._jobs.clear()
        self._current = None

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

    def __enter__(self) -> JobPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class PoolTable:
    """Live pools of one kind by size. Idle ones of other sizes are kept up to `kept`; the one used longest ago is closed first.

    make  from a world size to a pool, which has `alive`, `busy`, `close()` and the process it belongs to, `_owner_pid`
    """

    def __init__(self, make: Callable[[int], Any], kept: int) -> None:
        self._make, self._kept = make, kept
        self._pools: dict[int, Any] = {}
        self._lock = threading.Lock()

    def get(self, world_size: int) -> Any:
        """The pool of this size of this process: made when first asked for, made anew when it was lost."""
        with self._lock:
            pool = self._pools.pop(world_size, None)
            if pool is not None and (not pool.alive or pool._owner_pid != os.getpid()):
                pool.close()
                pool = None
            if pool is None:
                idle = [size for size, other in self._pools.items() if not other.busy]
                for size in idle[: max(0, len(self._pools) + 1 - self._kept)]:
                    self._pools.pop(size).close()
                pool = self._make(world_size)
            self._pools[world_size] = pool
            return pool

    def close(self) -> None:
        """Close every pool."""
        with self._lock:
            while self._pools:
                self._pools.popitem()[1].close()
