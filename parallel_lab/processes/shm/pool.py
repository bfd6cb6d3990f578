"""Worker processes from a notebook: start, run functions on all ranks, watch them, end them.

    pool = get_pool(4)
    pool.run(lambda comm, x: comm.all_reduce(x), np.ones(3))        # -> four times [4., 4., 4.]
    job = pool.submit(train, 100); job.pause(); job.resume(); job.stop(); job.result()

Three kinds of threads, all asleep while nothing happens: one that supervises (deaths, time limits, grace periods), one
receiver per worker, one for callbacks once there are any. Idle workers block on their pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import Any

from multiprocess import connection

from ...base.checks import integer
from ...base.errors import ArgumentError, shorten
from ...base.system import SYSTEM
from ...ops.kernels.threads import trim_memory
from .. import outcome
from ..flight import FlightEntry
from ..job_pool import JobPool, PoolTable
from ..jobs import Job, packed
from ..own_folder import OwnFolder
from ..supervisor import StopRun
from .arena import ABORT, ARENA_BYTES, CONTROL, KEEPS, STARTED, Arena, ArenaMap
from .comm import CONTROLS
from .launch import check_descriptors, context, end_server, start_processes
from .shared_memory import Parcel, SharedBlock
from .watch import Watch, halted
from .worker_main import PARCEL, TRIM, WorkerStart, worker_main

# fits the socket buffer of an idle worker, so that sending cannot block: a stopped worker does not read, and nobody
# must wait for it. What is larger goes as a parcel, once for all ranks
SMALL_PAYLOAD = 32 << 10
IDLE_S, IDLE_VARIABLE = 120.0, "PARALLEL_LAB_IDLE_S"
KEPT_POOLS = 3  # idle pools of different sizes that get_pool keeps


class WorkerPool(JobPool):
    """`world_size` worker processes, one per rank. After `warn_after_s` a warning names missing ranks, after
    `timeout_s` a collective raises CollectiveTimeout. `arena_bytes`: shared memory for data in transit, larger values
    pass in steps; `fast` False: the plain way, same bits; `idle_s`: workers end when nothing was asked of them for so
    long, unless they keep values in `comm.state`. Raises SharedMemoryTooSmall, LimitTooLow, RankDied,
    TimeoutError (both while starting).
    """

    def __init__(
        self,
        world_size: int,
        *,
        timeout_s: float = 30.0,
        warn_after_s: float = 2.0,
        arena_bytes: int = ARENA_BYTES,
        fast: bool = True,
        idle_s: float = math.inf,
    ) -> None:
        super().__init__(world_size, timeout_s, warn_after_s, idle_s=idle_s)
        check_descriptors(world_size)
        layout = ArenaMap.for_budget(world_size, integer(1)(type(self).__name__, "arena_bytes", arena_bytes))
        self._arena = Arena(SharedBlock(layout.size_bytes), layout)
        self._watch = Watch(self._arena)
        self._processes, self._pipes, self._fast = [], [], fast
        self._life_read, self._life_write = context().Pipe(duplex=False)
        self._wake_read, self._wake_write = context().Pipe(duplex=False)
        self._folder = None if SYSTEM.sent_descriptors else OwnFolder()  # of what is handed to running workers
        atexit.register(self.close)
        try:
            start_processes(self._start_workers)
            self._life_read.close()
            self._sentinels = {process.sentinel: rank for rank, process in enumerate(self._processes)}
            self._add_receivers(self._receive)
            self._supervise_until_ready()
        except BaseException:
            self.close()
            raise

    def _start_workers(self, parent_pid: int) -> None:
        block, layout, life = self._arena.block, self._arena.map, self._life_read
        folder = str(self._folder.path) if self._folder is not None else ""
        for pipe in self._pipes:  # of an attempt before, whose server died: its workers have died with it
            pipe.close()
        for made in (self._pipes, self._processes, self._pids):
            made.clear()
        for rank in range(self.world_size):
            here, there = context().Pipe()
            start = WorkerStart(rank, block, layout, life, there, os.getpid(), parent_pid, self._fast, folder)
            process = context().Process(target=worker_main, args=(start,), daemon=True, name=f"rank {rank}")
            self._pipes.append(here)
            process.start()
            there.close()
            self._processes.append(process)
            self._pids.append(process.pid)

    # what is seen

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile: there is nobody to wake
            self._wake_write.send_bytes(b"w")

    def _wait_for_news(self, limit_s: float | None) -> None:
        ended = connection.wait([*self._sentinels, self._wake_read], limit_s)
        if self._closed:
            return
        if self._wake_read in ended:
            self._wake_read.recv_bytes()
            ended.remove(self._wake_read)
        if not SYSTEM.fork_server:  # the other end of a sentinel is a rank's own, and what it forks has it too
            ended = [one for one, rank in self._sentinels.items() if self._processes[rank].exitcode is not None]
        for one in ended:
            with self._lock:
                rank = self._sentinels.pop(one)
                if not self._closed:
                    self._dead[rank] = self._processes[rank].exitcode

    def _release_supervising(self) -> None:
        with self._lock:
            self._wake_read.close()
            for process in self._processes:
                with contextlib.suppress(ValueError):  # not ended yet: closed when it is forgotten
                    process.close()

    def _receive(self, rank: int) -> None:
        pipe = self._pipes[rank]
        while True:
            try:
                body = pipe.recv_bytes()
            except (EOFError, OSError, TypeError):  # closed here, before or within the call
                return
            kind, body = body[:1], body[1:]
            job = self._current
            if kind == b"R":
                with self._lock:
                    self._ready.add(rank)
                    self._look()
            elif job is not None and kind == b"M":
                self._take_message(job, rank, body)
            elif job is not None and kind == b"W":
                job._warn(body.decode())
            elif job is not None:
                report = outcome.load_report(kind, body)
                with self._lock:
                    if job is self._current:
                        job._reports[rank] = report
                        if report[0] == "error" or len(job._reports) + len(self._dead) >= self.world_size:
                            self._look()

    def _seen(self) -> dict[str, Any]:
        words, job = self._arena.words, self._current
        if words[ABORT]:
            absent = [rank for rank in range(self.world_size) if rank not in job._reports and rank not in self._dead]
            loading = [rank for rank in absent if words[self._arena.map.slot(rank) + STARTED] != self._runs]
            return {"fault": True, "loading": loading, "halted": halted({r: self._pids[r] for r in absent})}
        if job._control == "pause" or len(job._reports) == self.world_size:
            return {}
        patience_s = min(self.warn_after_s, self.timeout_s)
        return {"stall": self._watch.stall(self._supervisor.counting_since_s, patience_s)}

    # what is done

    def _send_job(self, job: Job) -> None:
        self._arena.begin_run(self._runs)
        self._watch.begin_run()
        self._send_control(job._control)
        for pipe, payload in zip(self._pipes, job._payloads, strict=True):
            self._send(pipe, payload)

    def _packed(self, fn: Callable, args: tuple) -> bytearray | Parcel:
        kept = []  # the parcel, as `packed` fills its memory

        def room(size: int) -> Any:
            if size <= SMALL_PAYLOAD:
                return bytearray(size)
            kept.append(Parcel(size, lambda: self._folder))
            return kept[0].memory

        memory = packed((fn, args), room)
        return kept[0] if kept else memory

    @staticmethod
    def _send(pipe, payload: bytes | bytearray | Parcel) -> None:
        with contextlib.suppress(OSError):  # the worker is gone; its sentinel tells
            if isinstance(payload, Parcel):
                pipe.send_bytes(PARCEL)
                payload.send(pipe)
            else:
                pipe.send_bytes(payload)

    def _send_control(self, control: str) -> None:
        self._arena.words[CONTROL] = CONTROLS.index(control)

    def _stop_run(self, action: StopRun) -> None:
        self._arena.write_fault(self.world_size, action.kind, action.text, ranks=list(action.ranks))

    def _record_death(self, rank: int) -> None:
        text = outcome.death_text(rank, self._pids[rank], self._dead[rank], self._arena.last_entry(rank))
        self._arena.write_fault(self.world_size, "RankDied", text + ".", rank=rank)

    def _kill_ranks(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self._processes[rank].kill()  # its sentinel tells

    def _keeps_values(self) -> bool:
        words, slot = self._arena.words, self._arena.map.slot
        return any(words[slot(rank) + KEEPS] for rank in range(self.world_size))

    def _trim(self) -> None:
        for pipe in self._pipes:
            self._send(pipe, TRIM)
        self._arena.trim()
        trim_memory()

    def _memory_of_run(self) -> Arena:
        return self._arena

    def _released(self) -> None:
        end_server()

    def flight_record(self) -> dict[int, list[FlightEntry]]:
        """The last 64 requests of each rank in the current or last run, oldest first; also of ranks that died."""
        with self._lock:
            if self._closed:
                return self._last_flight
            return {rank: self._arena.flight(rank) for rank in range(self.world_size)}

    def _end_ranks(self, idle: bool) -> None:
        self._last_flight = {rank: self._arena.flight(rank) for rank in range(self.world_size)}
        for pipe in self._pipes if idle else ():
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
        self._arena.close()
        if self._folder is not None:
            self._folder.remove()


# The one table of live pools of this process: `get_pool` is asked by cells that know nothing of each other, and
# processes that are started again would have lost `comm.state`.
_pools = PoolTable(lambda world_size: WorkerPool(world_size, idle_s=idle_limit_s()), KEPT_POOLS)


def get_pool(world_size: int) -> WorkerPool:
    """The pool of this size of this process: made when first asked for, and again when it was lost. A few idle pools of
    other sizes are kept (they use no processor time); the one used longest ago is closed first. Workers that
    nothing was asked of for two minutes (PARALLEL_LAB_IDLE_S, in seconds) end, unless they keep values.
    """
    return _pools.get(world_size)


def idle_limit_s() -> float:
    """How long workers of `get_pool` wait for a job."""
    word = os.environ.get(IDLE_VARIABLE, "")
    try:
        seconds = float(word or IDLE_S)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        hint = f"Unset it for {IDLE_S:g} s; inf keeps workers for ever"
        raise ArgumentError(f"{IDLE_VARIABLE}={shorten(word)}", where="get_pool", allowed="Seconds above 0", hint=hint)
    return seconds


def release_pools() -> None:
    """Close the pools of `get_pool` that are idle and whose workers keep no values: another job starts new ones."""
    _pools.release()


def close_all() -> None:
    """Close every pool `get_pool` made."""
    _pools.close()
