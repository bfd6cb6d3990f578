"""One rank's communicator over MPI: the same requests, the same answers as the simulator and shared memory.

    comm = connect()                         # under mpirun; every rank
    total = comm.all_reduce(x)               # or comm.answer(Request("all_reduce", (0, 1, 2, 3), x))
    handle = comm.start("all_reduce", x)     # the same, to be waited for later: handle.wait()

The members of a group first compare what they ask for (`handshake.py`). Small values travel with that comparison, and
each member combines them by itself. Larger ones are moved by MPI (`movement.py`), also while the rank goes on working
(`nonblocking.py`). send and recv: `messages.py`.

`empty` gives ordinary memory: with memory of MPI's own (MPI_Alloc_mem, Open MPI 4.1) exchanges of 64 KiB and 1 MiB took
as long, and of 16 MiB 1.6 times as long (measured, 2 and 4 ranks).
"""

from __future__ import annotations

import functools
import json
import time
import zlib
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.errors import RankDied
from ...run.communicator import Request, answer, delivered
from ..checked_calls import CheckedCalls, root_position
from ..faults import unread_text
from ..flight import FLIGHT_RECORDS, FlightEntry, entry_from_text
from .handshake import ARRIVED, DATA_TAG, Asked, Handshake, died
from .messages import MessageLane, StartedMessage
from .movement import Movement, Types
from .nonblocking import Lane, Started

MAX_TAG = 32767  # the least that MPI promises


class MpiCommunicator(CheckedCalls):
    """One rank of an MPI world, over `mpi` (mpi4py.MPI). One thread makes all calls of a run, `report` excepted
    (default: it prints). `reproducible`: sums in group order, bit for bit the simulator's; False: the MPI library's
    own. After `warn_after_s` `warn` gets a text naming the missing ranks, after `timeout_s` a request raises
    CollectiveTimeout.
    """

    def __init__(
        self,
        mpi: Any,
        *,
        reproducible: bool = True,
        timeout_s: float = 30.0,
        warn_after_s: float = 2.0,
        warn: Callable[[str], object] = print,
        report: Callable[[object], object] | None = None,
    ) -> None:
        super().__init__(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size())
        self.reproducible = reproducible
        self.control = "run"
        self._mpi, self._report = mpi, report
        self._handshake = self.caller = Handshake(mpi, timeout_s, warn_after_s, warn)
        self._types = Types(mpi)
        self._lane = Lane(mpi, self._handshake, self._await_started, self._end_started)
        self._messages = MessageLane(mpi, self._types, self._handshake, self._await_started, self._end_started)
        self._begin_run(0, fresh=False)

    def __repr__(self) -> str:
        return f"MpiCommunicator(rank={self.rank}, world_size={self.world_size})"

    def _answer(self, request: Request, explicit: bool, *, quiet: bool = False) -> np.ndarray | None:
        request = self._complete(request)
        asked = self._asked(request, explicit, self._numbers)
        kind, members = request.kind, request.group
        flight = self._noted(asked)
        try:
            if kind == "send":
                self._messages.send(request)
                reply = None
            elif kind == "recv":
                reply = self._messages.recv(request, flight)
            elif len(members) == 1:
                reply = answer([request])[0]
            else:
                reply = self._together(request, asked)
            reply = delivered(reply, request)
        except self._mpi.Exception as error:
            raise died(error, self.rank, request) from error
        flight[4] = time.perf_counter()
        if self.recording and not quiet:
            self._record(flight[0], request, members, flight[3], flight[4])
        return reply

    def _asked(self, request: Request, explicit: bool, numbers: dict[tuple[int, ...], int]) -> Asked:
        """What the group compares.  numbers: of the next call, by group"""
        if get_ident() != self._handshake.thread:
            self._handshake.check_caller()
        self._handshake.check()
        check, loose, text = self._call(request, explicit)
        number = numbers.get(request.group, 0) if request.number is None else request.number
        numbers[request.group] = number + 1
        return Asked(self._numbered(check, number), *(loose or (0, 0)), number, text)

    def _noted(self, asked: Asked) -> list:
        """The flight record of a call that begins now: [index, number in its group, text, start_s, end_s]."""
        flight = [self._index, asked.number, asked.text, time.perf_counter(), None]
        self._index += 1
        self._flight.append(flight)
        self._waits_in = None
        return flight

    def _together(self, request: Request, asked: Asked) -> np.ndarray | None:
        """A collective of two members or more: meet, then go all the way to the reply."""
        handshake = self._handshake
        found = handshake.meet(
            request.group, self._movement.arrival(ARRIVED, request, asked), asked, root_position(request)
        )
        steps = self._movement.steps(request, found, lambda rank, step: DATA_TAG + step)
        while True:
            try:
                handshake.complete(*next(steps))
            except StopIteration as end:
                return end.value

    # working while a message travels

    def _begin(self, request: Request, explicit: bool) -> Started | StartedMessage:
        request = self._complete(request)
        asked = self._asked(request, explicit, self._started_numbers)
        asked = asked._replace(text=_as_started(asked.text))
        flight = self._noted(asked)
        try:
            if request.kind in ("send", "recv"):
                return self._messages.begin(request, flight, self.recording)
            started = Started(self._lane, request, asked, flight, self.recording)
            self._lane.begin(started)
        except self._mpi.Exception as error:
            raise died(error, self.rank, request) from error
        return started

    def _end_started(self, started: Started | StartedMessage) -> None:
        flight, request = started.flight, started.request
        flight[4] = started.end_s
        if started.recorded:
            self._record(flight[0], request, request.group, flight[3], flight[4])

    def _await_started(self, started: Started | StartedMessage | None) -> None:
        self._waits_in = None if started is None else started.flight

    def progress(self) -> None:
        """Move on what was started, without waiting. Raises what stopped the run."""
        if get_ident() != self._handshake.thread:
            self._handshake.check_caller()
        try:
            self._handshake.attend()
        except self._mpi.Exception as error:
            what = f"MPI failed in progress of rank {self.rank}: {error}"
            raise RankDied(what, hint="A process of this world has probably ended") from error
        self._handshake.check()

    # the library's communicators

    def _started_group(self, members: tuple[int, ...]) -> Any | None:
        """The world's communicator, for the world; making one for a group would wait for its members."""
        return self._handshake.started_comm if members == self._world else None

    def _group(self, members: tuple[int, ...]) -> Any:
        """The communicator of a group, made when its members first need it; all of them need it in the same call."""
        if members == self._world:
            return self._handshake.comm
        found = self._groups.get(members)
        if found is None:
            whole = self._handshake.comm.Get_group()
            part = whole.Incl(members)
            tag = zlib.crc32(repr(members).encode()) % MAX_TAG
            found = self._groups[members] = self._handshake.comm.Create_group(part, tag=tag)
            part.Free()
            whole.Free()
        return found

    # control

    def agree_to_continue(self, step: int = 0) -> bool:
        """As `CheckedCalls.agree_to_continue`."""
        going_on = super().agree_to_continue(step)
        if not going_on:  # rank 0's answer may arrive before the notebook's own word
            self.control = "stop"
        return going_on

    def report(self, obj: object) -> None:
        """Hand a small object to the notebook (`Job.messages`); without a notebook it is printed."""
        if self._handshake.forked:
            self._handshake.check_caller()
        if self._report is not None:
            self._report(obj)
        else:
            print(obj, flush=True)

    def flight(self) -> list[FlightEntry]:
        """The last 64 requests of this rank in the present run, oldest first."""
        return [entry_from_text(self.rank, *record) for record in self._past()]

    def _past(self) -> list[list]:
        """The flight records, oldest first; a started one in whose wait this rank was stopped comes last."""
        if self._waits_in is None:
            return list(self._flight)
        return [*(flight for flight in self._flight if flight is not self._waits_in), self._waits_in]

    def last_entry(self) -> FlightEntry | None:
        """The newest request of this rank, or the started one that it waits for; None before the first."""
        if not self._flight:
            return None
        return entry_from_text(self.rank, *(self._waits_in or self._flight[-1]))

    # one run after the other

    def _begin_run(self, run: int, *, fresh: bool) -> None:
        """All ranks together.  fresh: the last run was stopped, and what it left under way must not be met again."""
        if run:
            self._handshake.begin_run(run, fresh=fresh)
        self._handshake.entry = self.last_entry
        self._handshake.paused = lambda: self.control == "pause"
        if fresh or not run:
            self._groups: dict[tuple[int, ...], Any] = {}
            self._movement = self._movement_over(self._handshake.comm, self._group)
        self._lane.begin_run(self._movement_over(self._handshake.started_comm, self._started_group))
        self._numbers: dict[tuple[int, ...], int] = {}
        self._started_numbers: dict[tuple[int, ...], int] = {}
        self._waits_in: list | None = None
        self._flight: deque[list] = deque(maxlen=FLIGHT_RECORDS)
        self._messages.begin_run()
        self._index = 0
        self.control = "run"
        self.records = []

    def _movement_over(self, comm: Any, library: Callable[[tuple[int, ...]], Any | None]) -> Movement:
        return Movement(self._mpi, self._types, self._handshake, comm, reproducible=self.reproducible, library=library)

    def _end_run(self) -> None:
        """Tell the others that this rank has returned, and wait until all have. Raises what stops one of them."""
        handshake = self._handshake
        if not self.stop_requested:  # a rank that stops may leave a message lying, and a handle
            self._lane.check_waited()
            self._messages.check_waited()
        handshake.leave(self._messages.sent)
        handshake.until_settled(lambda: len(handshake.left) == len(handshake.others))
        handshake.until_settled(self._lane.settled)
        if not self.stop_requested:
            self._check_unread()
        handshake.until_settled(handshake.sent_all)

    def _check_unread(self) -> None:
        """Raise CollectiveMismatch when this rank has not received all that others say they have sent it."""
        for source, (sent, _) in sorted(self._handshake.left.items()):
            if sent != (received := self._messages.received[source]):
                text = unread_text(source, self.rank, sent, received)
                self._handshake.raise_fault("CollectiveMismatch", text, ranks=[source, self.rank])


@functools.lru_cache(maxsize=1024)
def _as_started(text: bytes) -> bytes:
    """The flight text of a call that is started: its details say so."""
    parts = json.loads(text)
    parts[5] = f"{parts[5]} started".lstrip()
    return json.dumps(parts, separators=(",", ":")).encode()
