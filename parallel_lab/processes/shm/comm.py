"""What a rank's function receives: the communicator of one worker.

    def step(comm, x):                       # runs on every rank
        total = comm.all_reduce(x)           # or comm.answer(Request("all_reduce", (0, 1, 2, 3), x))
        comm.report(float(total[0]))         # to the notebook, while running
        return total

    pool.run(step, np.ones(4))

`answer` is the contract of `run/communicator.py`; the named methods fill in a Request and the caller's source line.
Lines that call again and again have a shorter way (`fast/call_sites.py`).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from time import perf_counter

import dill
import numpy as np

from ...base.errors import message
from ...run.calls import caller, check_startable
from ...run.communicator import Request, answer, delivered
from ..checked_calls import CheckedCalls
from ..flight import FLIGHT_HEAD, FLIGHT_RECORDS
from .arena import ABORT, CONTROL, REQUESTS, Arena
from .arrays import SharedArrays
from .barrier import Missing, WaitLoop
from .channels import Channels
from .collectives import NOTHING, Collectives, Prepared, Program
from .groups import Check, Group, Register
from .nonblocking import Lane, Started
from .shared_memory import NEEDS_FENCE, fence

CONTROLS = ("run", "pause", "stop")
PAUSE_LOOK_S = 2e-3  # how often a paused rank looks whether it may go on
_NOTE = FLIGHT_HEAD.pack_into
_END_OFFSET = 24  # of end_s in FLIGHT_HEAD


class KnownCall:
    """What is known of one call of a rank, found out the first time it is made.

    loose   digests compared only with members that give them too
    slot    of its text in the flight recorder
    prepared, started_prepared   a shorter way for it, and for the same when it is started; None: the plain one
    """

    __slots__ = (
        "check",
        "digest",
        "group",
        "loose",
        "members",
        "prepared",
        "single",
        "slot",
        "started",
        "started_prepared",
    )

    def __init__(self, request: Request, digest: int, loose: tuple[int, int] | None, slot: int, group: Group) -> None:
        self.members, self.digest, self.loose, self.slot = request.group, digest, loose or NOTHING, slot
        self.single = len(request.group) == 1
        self.check = Check(digest, len(request.group))
        self.group = group
        self.started: Group | None = None
        self.prepared: Prepared | None = None
        self.started_prepared: Prepared | None = None


class Communicator(CheckedCalls):
    """One rank's side of the pool. For one thread at a time, `report` excepted.

    rank, world_size
    state       a dict that lives as long as the worker: parameters and the like, kept between runs
    recording   when True, every request appends a `MessageRecord` to `records`
    """

    def __init__(self, arena: Arena, rank: int, world_size: int, pipe) -> None:
        super().__init__(rank, world_size)
        self._arena, self._pipe, self._pipe_lock = arena, pipe, threading.Lock()
        self._words, self._bytes = arena.words, arena.bytes
        self._loop = WaitLoop(arena, rank)
        self._loop.behind = self._behind
        self._channels = Channels(arena, self._loop)
        self._arrays = SharedArrays(arena, rank)
        self._collectives, self._started_collectives = self._make_collectives()
        self._lane = Lane(self._loop, self._note_started_end)
        self._requests_word = arena.map.slot(rank) + REQUESTS
        self._records_at = [arena.flight_offset(rank, index) for index in range(FLIGHT_RECORDS)]
        first, last = self._records_at[0], self._records_at[-1] + FLIGHT_HEAD.size
        self._ends = arena.bytes[first:last].cast("d")
        self._ends_at = [(at - first + _END_OFFSET) // 8 for at in self._records_at]
        self._begin_run()

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, world_size={self.world_size})"

    def _make_collectives(self) -> tuple[Collectives, Collectives]:
        """Those that are waited for at once, and those that are started."""
        return Collectives(self._arena, self._loop), Collectives(self._arena, self._loop, started=True)

    # the contract

    def answer(self, request: Request) -> np.ndarray | None:
        """This rank's reply to `request`; blocks until the group has answered.

        Bit-identical to `communicator.answer`. The reply is C-contiguous, in memory of its own or in `out`; None for
        barrier, send, and off the root of reduce and gather. A send returns when the value is copied; a recv waits for
        it.

        Raises CollectiveMismatch, CollectiveTimeout, DeadlockError, RankDied, RankRaised on every member, never waits
        for ever.
        """
        return self._answer(request, bool(request.origin))

    def empty(self, shape: int | tuple[int, ...], dtype="float32") -> np.ndarray:
        """A new array, contents arbitrary, in memory that the other ranks can read too: a collective on it copies
        nothing in.

        An ordinary array where that memory is used up. Raises SharedMemoryTooSmall when the system has none left.
        """
        return self._arrays.empty(shape, dtype)

    def _answer(self, request: Request, explicit: bool, *, quiet: bool = False) -> np.ndarray | None:
        value = request.value
        if not request.origin or (
            value is not None and not (isinstance(value, np.ndarray) and value.flags.c_contiguous)
        ):
            value = None if value is None else np.asarray(value, order="C")
            request = dataclasses.replace(request, value=value, origin=request.origin or caller(2))
        if self._words[ABORT]:
            raise self._loop.fault_error()
        known = self._call(request, explicit)
        kind, group = request.kind, known.group
        number = group.number if request.number is None else request.number
        group.number = number + 1
        start_s, index = perf_counter(), self._note_start(number, known.slot)
        if self._loop.progress is not None:
            self._move_on()
        if kind == "send":
            self._channels.send(value, known.members[1])
            if self._channels.pending:
                self._loop.progress = self._move_on
            reply = None
        elif kind == "recv":
            reply = delivered(self._received(request), request)
        elif known.single and kind != "barrier":
            reply = answer([request])[0]
        else:  # also a rank that meets itself, which then costs what checking a call costs
            check = known.check if request.number is None else Check(self._numbered(known.digest, number), group.n)
            if known.prepared is None:
                known.prepared = self._collectives.prepared(group, request)
            reply = self._drive(self._collectives.program(group, request, check, known.loose, known.prepared))
        end_s = perf_counter()
        self._ends[self._ends_at[index % FLIGHT_RECORDS]] = end_s
        if self.recording and not quiet:
            self._record(index, request, known.members, start_s, end_s)
        return reply

    def _drive(self, program: Program) -> np.ndarray | None:
        """The reply of a collective, waiting wherever it has to."""
        wait = self._loop.wait
        try:
            while True:
                condition = next(program)
                if not condition.test():
                    wait(condition)
        except StopIteration as end:
            return end.value

    # working while a message travels

    def _begin(self, request: Request, explicit: bool) -> Started:
        value = request.value
        if not request.origin or (
            value is not None and not (isinstance(value, np.ndarray) and value.flags.c_contiguous)
        ):
            value = None if value is None else np.asarray(value, order="C")
            request = dataclasses.replace(request, value=value, origin=request.origin or caller(2))
        check_startable(request)
        self._loop.check_abort()
        known = self._call(request, explicit)
        group = known.started
        if group is None:
            group = known.started = self._group(known.members, started=True)
        number = group.number if request.number is None else request.number
        group.number = number + 1
        index = self._note_start(number, known.slot)
        call = (index + 1, number, known.slot)
        if known.single:
            started = Started(self._lane, request, call, None, lambda: _at_once(request))
        else:
            check = known.check if request.number is None else Check(self._numbered(known.digest, number), group.n)
            near = self._startable(request)
            if known.started_prepared is None:
                known.started_prepared = self._started_collectives.prepared(group, request)
            total = known.started_prepared

            def program() -> Program:
                return self._started_collectives.program(group, near, check, known.loose, total)

            started = Started(self._lane, request, call, group, program)
        self._loop.progress = self._move_on
        self._lane.add(started)
        self._move_on()
        return started

    def _startable(self, request: Request) -> Request:
        """The request as it is started."""
        return request

    def progress(self) -> None:
        """Do what can be done now, without waiting, for the collectives that were started. Raises what stopped the
        run.
        """
        if self._loop.progress is not None:
            self._loop.check_abort()
            self._move_on()

    def _move_on(self) -> bool:
        """Push messages that did not fit their channel, and go on with what was started; returns whether there is more
        to do.
        """
        more = bool(self._channels.pending) and self._channels.push()
        if self._lane.queue:
            more = self._lane.progress() or more
        if not more:
            self._loop.progress = None
        return more

    def _behind(self) -> tuple[Missing | None, int] | None:
        queue = self._lane.queue
        return (self._lane.missing(), queue[0].call[0]) if queue else None

    def _note_started_end(self, started: Started) -> None:
        """Write when it was complete, if its record is still kept."""
        index, request = started.call[0] - 1, started.request
        if self._index - index <= FLIGHT_RECORDS:
            self._ends[self._ends_at[index % FLIGHT_RECORDS]] = started.end_s
        if self.recording:
            self._record(index, request, request.group, started.start_s, started.end_s)

    # what is known of calls

    def _examined(self, request: Request, check: int, loose: tuple[int, int] | None, text: bytes) -> KnownCall:
        self._arena.write_text(self.rank, self._texts, text)
        known = KnownCall(request, check, loose, self._texts, self._group(request.group))
        self._texts += 1
        return known

    def _group(self, members: tuple[int, ...], *, started: bool = False) -> Group:
        key = (members, started)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(self._arena, self._loop, self._register, members, started=started)
        return group

    def _received(self, request: Request) -> np.ndarray:
        source = request.group[0]
        out, dtype, shape = self._channels.recv(source, request.out)
        wanted_shape = shape if request.shape is None else tuple(request.shape)
        wanted_dtype = dtype if request.dtype is None else np.dtype(request.dtype)
        if (wanted_shape, wanted_dtype) != (shape, dtype):
            what = (
                f"rank {self.rank} expects {wanted_dtype} {wanted_shape} from rank {source}, which sent {dtype} {shape}"
            )
            text = message(
                what, where=request.origin, hint=f"The last call of rank {source} was {self._arena.last_entry(source)}"
            )
            self._loop.raise_fault("CollectiveMismatch", text, ranks=[self.rank, source])
        return out

    def _note_start(self, number: int, slot: int) -> int:
        """Write the flight record of a request that starts; returns its index."""
        index = self._index
        self._index = index + 1
        _NOTE(self._bytes, self._records_at[index % FLIGHT_RECORDS], index, number, perf_counter(), 0.0, slot)
        if NEEDS_FENCE:
            fence()
        self._words[self._requests_word] = index + 1
        return index

    # control

    @property
    def control(self) -> str:
        """What the notebook asks for: "run", "pause" or "stop"."""
        return CONTROLS[self._words[CONTROL]]

    @property
    def stop_requested(self) -> bool:
        """True once the notebook has asked for a stop. Ranks may see it at different steps: use `agree_to_continue` to
        leave a loop.
        """
        return self._words[CONTROL] == 2

    def wait_if_paused(self) -> None:
        """Return when the notebook does not ask for a pause. Raises what stopped the run meanwhile."""
        while self._words[CONTROL] == 1:
            self._loop.check_abort()
            self._move_on()
            time.sleep(PAUSE_LOOK_S)
        self._loop.check_abort()

    def report(self, obj: object) -> None:
        """Send a small object to the notebook while the run goes on (`Job.messages`, `on_message`)."""
        self._send(b"M", dill.dumps(obj, recurse=True))

    # for worker_main

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        with self._pipe_lock:
            self._pipe.send_bytes(kind + payload)

    def _begin_run(self) -> None:
        self._loop.begin_run()
        self._channels.begin_run()
        self._lane.begin_run()
        self._collectives.begin_run()
        self._started_collectives.begin_run()
        self._register = Register(self._arena, self.rank)
        self._groups: dict[tuple, Group] = {}
        self._calls.clear()
        self._texts = 0
        self._index = self.step = 0
        self.records = []

    def _end_run(self) -> None:
        """This rank's program has returned: hand over what it sent. Raises CollectiveMismatch for a collective that was
        not waited for.
        """
        if not self._words[ABORT]:
            self._lane.check_waited(self.rank)
            if not self.stop_requested:
                self._channels.flush()


def _at_once(request: Request) -> Program:
    """A collective of one rank alone."""
    yield from ()
    return answer([request])[0]
