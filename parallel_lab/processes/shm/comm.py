"""What a rank's function receives: the communicator of one worker.

    def step(comm, x):                       # runs on every rank
        total = comm.all_reduce(x)           # or comm.answer(Request("all_reduce", (0, 1, 2, 3), x))
        comm.report(float(total[0]))         # to the notebook, while running
        return total

    pool.run(step, np.ones(4))

`answer` is the contract of `run/communicator.py`; the named methods write a Request with the caller's source line.
Lines that call again and again have a shorter way (`fast/call_sites.py`).
"""

from __future__ import annotations

import gc
import threading
from _thread import get_ident
from dataclasses import dataclass
from time import perf_counter

import dill
import numpy as np

from ...base.errors import message
from ...ops.kernels.threads import trim_memory
from ...run.communicator import Request, answer, delivered
from ...run.mail import expected
from ..checked_calls import CheckedCalls, root_position
from ..flight import FLIGHT_HEAD, FLIGHT_RECORDS
from ..started import at_once
from .arena import ABORT, CONTROL, REQUESTS, Arena
from .arrays import SharedArrays
from .barrier import Missing, WaitLoop
from .channels import Channels
from .collectives import Collectives, Prepared, Program
from .groups import Check, Group, Register
from .messages import MessageLane, StartedMessage
from .nonblocking import Lane, Started
from .shared_memory import NEEDS_FENCE, fence

CONTROLS = ("run", "pause", "stop")
NOTE = FLIGHT_HEAD.pack_into
_END_OFFSET = 24  # of end_s in FLIGHT_HEAD


@dataclass(slots=True)
class KnownCall:
    """What is known of a rank's call after the first: `slot` of its text in the flight recorder; `prepared`: a shorter
    way (None: the plain one); `started_group`, `started_prepared`: the same when it is started.
    """

    check: Check
    slot: int
    group: Group
    started_group: Group | None = None
    prepared: Prepared | None = None
    started_prepared: Prepared | None = None


class Communicator(CheckedCalls):
    """One rank's side of the pool: `rank`, `world_size`. One thread makes all calls of a run, `report` excepted.
    `state`: a dict that lives as long as the worker, kept between runs; `recording`: True appends a `MessageRecord` per
    request to `records`.
    """

    def __init__(self, arena: Arena, rank: int, pipe) -> None:
        super().__init__(rank, arena.map.world_size)
        self._arena, self._pipe, self._pipe_lock = arena, pipe, threading.Lock()
        self._words, self._bytes = arena.words, arena.bytes
        self._loop = self.caller = WaitLoop(arena, rank)
        self._loop.behind = self._behind
        self._loop.warn = lambda text: self._send(b"W", text.encode())
        self._arrays = SharedArrays(arena, rank)
        self._channels = self._make_channels()
        self._collectives, self._started_collectives = self._make_collectives()
        self._lane = Lane(self._loop, self._note_started_end)
        self._message_lane = MessageLane(self._loop, self._channels, self._note_started_end, self._check_received)
        self._requests_word = arena.map.slot(rank) + REQUESTS
        self._records_at = [arena.flight_offset(rank, index) for index in range(FLIGHT_RECORDS)]
        first, last = self._records_at[0], self._records_at[-1] + FLIGHT_HEAD.size
        self._ends = arena.bytes[first:last].cast("d")
        self._ends_at = [(at - first + _END_OFFSET) // 8 for at in self._records_at]
        self._begin_run()

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, world_size={self.world_size})"

    def _make_channels(self) -> Channels:
        return Channels(self._arena, self._loop)

    def _make_collectives(self) -> tuple[Collectives, Collectives]:
        """Those that are waited for at once, and those that are started."""
        return Collectives(self._arena, self._loop), Collectives(self._arena, self._loop, started=True)

    # the contract

    def empty(self, shape: int | tuple[int, ...], dtype="float32") -> np.ndarray:
        """A new array, contents arbitrary, where other ranks can read it too: a collective copies nothing in. An
        ordinary one where that memory is used up. Raises SharedMemoryTooSmall when the system has nothing left.
        """
        if self._loop.forked:
            self._loop.check_caller()
        return self._arrays.empty(shape, dtype)

    @property
    def keeps_values(self) -> bool:
        """Whether there are values for jobs to come: in `state`, or arrays of `empty`."""
        return bool(self.state) or self._arrays.in_use

    def trim(self) -> None:
        """Give memory of arrays that are gone back to the system."""
        gc.collect()
        self._arrays.trim()
        trim_memory()

    def _answer(self, request: Request, explicit: bool, *, quiet: bool = False) -> np.ndarray | None:
        if get_ident() != self._loop.thread:
            self._loop.check_caller()
        request = self._complete(request)
        self._loop.check_abort()
        known = self._call(request, explicit)
        kind, group = request.kind, known.group
        check, number = self._numbered_check(request, known, group)
        start_s, index = perf_counter(), self._note_start(number, known.slot)
        if self._loop.progress is not None:
            self._move_on()
        if kind == "send":
            self._channels.hand_over(request.value, group.members[1], request.sr_tag)
            if self._channels.pending:
                self._loop.progress = self._move_on
            reply = None
        elif kind == "recv":
            reply = self._channels.recv(group.members[0], request.out, request.sr_tag)
            self._check_received(request, reply)
            reply = delivered(reply, request)
        elif group.n == 1 and kind != "barrier":
            reply = answer([request])[0]
        else:  # also a rank that meets itself, which then costs what checking a call costs
            if known.prepared is None:
                known.prepared = self._collectives.prepared(group, request)
            reply = self._drive(self._collectives.program(group, request, check, known.prepared))
        end_s = perf_counter()
        self._ends[self._ends_at[index % FLIGHT_RECORDS]] = end_s
        if self.recording and not quiet:
            self._record(index, request, group.members, start_s, end_s)
        return reply

    def _numbered_check(self, request: Request, known: KnownCall, group: Group) -> tuple[Check, int]:
        """(what the members must agree on, number of the request in its group); one that has a number is held to it."""
        number = group.number if request.number is None else request.number
        group.number = number + 1
        if request.number is None:
            return known.check, number
        known = known.check
        return Check(self._numbered(known.digest, number), group.n, known.loose, known.root), number

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

    def _begin(self, request: Request, explicit: bool) -> Started | StartedMessage:
        if get_ident() != self._loop.thread:
            self._loop.check_caller()
        request = self._complete(request)
        self._loop.check_abort()
        known = self._call(request, explicit)
        if request.kind in ("send", "recv"):
            number = self._numbered_check(request, known, known.group)[1]
            self._loop.progress = self._move_on
            return self._message_lane.begin(request, self._note_start(number, known.slot) + 1)
        group = known.started_group
        if group is None:
            group = known.started_group = self._group(request.group, started=True)
        check, number = self._numbered_check(request, known, group)
        call = (self._note_start(number, known.slot) + 1, number, known.slot)
        if group.n == 1:
            program = at_once(request)
        else:
            if known.started_prepared is None:
                known.started_prepared = self._started_collectives.prepared(group, request)
            near = self._startable(request)
            program = self._started_collectives.program(group, near, check, known.started_prepared)
        started = Started(self._lane, request, call, group, program)
        self._loop.progress = self._move_on
        self._lane.add(started)
        self._move_on()
        return started

    def _startable(self, request: Request) -> Request:
        """The request as it is started."""
        return request

    def progress(self) -> None:
        """Go on with what was started, without waiting. Raises what stopped the run."""
        if get_ident() != self._loop.thread:
            self._loop.check_caller()
        self._loop.check_abort()
        if self._loop.progress is not None:
            self._move_on()

    def _move_on(self) -> bool:
        """Push messages that did not fit their channel, go on with what was started; returns whether more is left."""
        channels = self._channels
        more = bool(channels.pending) and channels.push()
        if channels.asking:
            more = channels.pull_all() or more
        if self._message_lane.open:
            more = self._message_lane.progress() or more
        if self._lane.queue:
            more = self._lane.progress() or more
        if not more:
            self._loop.progress = None
        return more

    def _behind(self) -> tuple[Missing | None, int] | None:
        queue = self._lane.queue
        return (self._lane.missing(), queue[0].call[0]) if queue else None

    def _note_started_end(self, started: Started | StartedMessage) -> None:
        """Write when it was complete, if its record is still kept."""
        index, request = started.call[0] - 1, started.request
        if self._index - index <= FLIGHT_RECORDS:
            self._ends[self._ends_at[index % FLIGHT_RECORDS]] = started.end_s
        if self.recording:
            self._record(index, request, request.group, started.start_s, started.end_s)

    # what is known of calls

    def _examined(self, request: Request, check: int, loose: tuple[int, int] | None, text: bytes) -> KnownCall:
        slot, self._texts = self._texts, self._texts + 1
        self._arena.write_text(self.rank, slot, text)
        root = root_position(request)
        return KnownCall(Check(check, len(request.group), loose or (0, 0), root), slot, self._group(request.group))

    def _group(self, members: tuple[int, ...], *, started: bool = False) -> Group:
        key = (members, started)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(self._arena, self._loop, self._register, members, started=started)
        return group

    def _check_received(self, request: Request, came: np.ndarray) -> None:
        source, dtype, shape = request.group[0], came.dtype, came.shape
        wanted = expected(request, shape, dtype)
        if wanted != (shape, dtype):
            what = f"rank {self.rank} expects {wanted[1]} {wanted[0]} from rank {source}, which sent {dtype} {shape}"
            hint = f"The last call of rank {source} was {self._arena.last_entry(source)}"
            self._loop.mismatch(message(what, where=request.origin, hint=hint), self.rank, source)

    def _note_start(self, number: int, slot: int) -> int:
        """Write the flight record of a request that starts; returns its index."""
        index = self._index
        self._index = index + 1
        NOTE(self._bytes, self._records_at[index % FLIGHT_RECORDS], index, number, perf_counter(), 0.0, slot)
        if NEEDS_FENCE:
            fence()
        self._words[self._requests_word] = index + 1
        return index

    # control

    @property
    def control(self) -> str:
        """What the session asks of this rank: to go on, to pause or to stop."""
        return CONTROLS[self._words[CONTROL]]

    def report(self, obj: object) -> None:
        """Send a small object to the notebook while the run goes on (`Job.messages`, `on_message`)."""
        if self._loop.forked:
            self._loop.check_caller()
        self._send(b"M", dill.dumps(obj, recurse=True))

    # for worker_main

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        with self._pipe_lock:
            self._pipe.send_bytes(kind + payload)

    def _begin_run(self) -> None:
        self._loop.begin_run()
        self._channels.begin_run()
        self._lane.begin_run()
        self._message_lane.begin_run()
        self._collectives.begin_run()
        self._started_collectives.begin_run()
        self._register = Register(self._arena, self.rank)
        self._groups: dict[tuple, Group] = {}
        self._calls.clear()
        self._texts = 0
        self._index = self.step = 0
        self.records = []

    def _end_run(self) -> None:
        """The program has returned: hand over what it sent. Raises CollectiveMismatch for a handle never waited for."""
        if not self._words[ABORT] and not self.stop_requested:  # a rank that stops may leave a message, and a handle
            self._lane.check_waited()
            self._message_lane.check_waited()
            self._channels.flush()
