"""What a rank's function receives: the communicator of one worker.

    def step(comm, x):                       # runs on every rank
        total = comm.all_reduce(x)           # or comm.answer(Request("all_reduce", (0, 1, 2, 3), x))
        comm.report(float(total[0]))         # to the notebook, while running
        return total

    pool.run(step, np.ones(4))

`answer` is the contract of `run/communicator.py`; the named methods fill in a Request and the caller's source line.
"""

from __future__ import annotations

import dataclasses
import struct
import threading
import time

import dill
import numpy as np

from ...errors import message
from ..calls import caller
from ..communicator import Request, answer, delivered
from .arena import CONTROL, FLIGHT_HEAD, REQUESTS, Arena, fence
from .barrier import Meeting
from .channels import Channels
from .checked_calls import CheckedCalls
from .collectives import Collectives, Group

__all__ = ["CONTROLS", "Communicator"]

CONTROLS = ("run", "pause", "stop")
PAUSE_LOOK_S = 2e-3  # how often a paused rank looks whether it may go on
_END = struct.Struct("<d")
_END_OFFSET = 24  # of end_s in FLIGHT_HEAD


class Communicator(CheckedCalls):
    """One rank's side of the pool. For one thread at a time, `report` excepted.

    rank, world_size
    state       a dict that lives as long as the worker: parameters and the like, kept between runs
    recording   when True, every request appends (index, kind, start_s, end_s, bytes sent, group, origin) to `records`; times are
                time.perf_counter(), bytes those of `communicator.payload_bytes` for what this rank gives
    """

    def __init__(self, arena: Arena, rank: int, world_size: int, pipe) -> None:
        super().__init__(rank, world_size)
        self._arena, self._pipe, self._pipe_lock = arena, pipe, threading.Lock()
        self._meeting = Meeting(arena, rank)
        self._channels = Channels(arena, self._meeting)
        self._collectives = Collectives(arena, self._meeting)
        self._slot = arena.map.slot(rank)
        self._groups: dict[tuple[int, ...], Group] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._index = 0

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, world_size={self.world_size})"

    # the contract

    def answer(self, request: Request) -> np.ndarray | None:
        """This rank's reply to `request`; blocks until the group has answered.

        Bit-identical to `communicator.answer`. The reply is C-contiguous and owns its memory; None for barrier, send, and off the root of reduce
        and gather. A send returns when the value is copied; a recv waits for it.

        Raises CollectiveMismatch, CollectiveTimeout, DeadlockError, RankDied, RankRaised on every member, never waits for ever.
        """
        return self._answer(request, bool(request.origin))

    def _answer(self, request: Request, explicit: bool, *, quiet: bool = False) -> np.ndarray | None:
        value = request.value
        if not request.origin or (value is not None and not (isinstance(value, np.ndarray) and value.flags.c_contiguous)):
            value = None if value is None else np.asarray(value, order="C")
            request = dataclasses.replace(request, value=value, origin=request.origin or caller(2))
        self._meeting.check_abort()
        check, loose, text = self._call(request, explicit)
        kind, members = request.kind, request.group
        number = self._numbers.get(members, 0) if request.number is None else request.number
        self._numbers[members] = number + 1
        start_s, index, at = time.perf_counter(), self._index, self._note_start(number, text)
        if kind == "send":
            self._channels.send(value, members[1])
            reply = None
        elif kind == "recv":
            reply = self._received(request)
        elif len(members) == 1:
            reply = answer([request])[0]
        else:
            self._channels.push()
            group = self._groups.get(members)
            if group is None:
                group = self._groups[members] = Group(members, self.rank, self._collectives.buffers)
            group.number = number + 1
            reply = self._collectives.run(group, request, self._numbered(check, number), loose)
        reply = delivered(reply, request)
        end_s = time.perf_counter()
        _END.pack_into(self._arena.bytes, at + _END_OFFSET, end_s)
        if self.recording and not quiet:
            self.records.append((index, kind, start_s, end_s, self._bytes_sent(request), members, request.origin))
        return reply

    def _received(self, request: Request) -> np.ndarray:
        source = request.group[0]
        out, dtype, shape = self._channels.recv(source)
        wanted_shape = shape if request.shape is None else tuple(request.shape)
        wanted_dtype = dtype if request.dtype is None else np.dtype(request.dtype)
        if (wanted_shape, wanted_dtype) != (shape, dtype):
            what = f"rank {self.rank} expects {wanted_dtype} {wanted_shape} from rank {source}, which sent {dtype} {shape}"
            text = message(what, where=request.origin, hint=f"The last call of rank {source} was {self._arena.last_entry(source)}")
            self._meeting.raise_fault("CollectiveMismatch", text, ranks=[self.rank, source])
        return out

    def _note_start(self, number: int, text: bytes) -> int:
        """Write the flight record of a request that starts; returns where it lies."""
        index, arena = self._index, self._arena
        self._index = index + 1
        at = arena.flight_offset(self.rank, index)
        body = at + FLIGHT_HEAD.size
        arena.bytes[body : body + len(text)] = text
        FLIGHT_HEAD.pack_into(arena.bytes, at, index, number, time.perf_counter(), 0.0, len(text))
        fence()
        arena.words[self._slot + REQUESTS] = index + 1
        return at

    # control

    @property
    def control(self) -> str:
        """What the notebook asks for: "run", "pause" or "stop"."""
        return CONTROLS[self._arena.words[CONTROL]]

    @property
    def stop_requested(self) -> bool:
        """True once the notebook has asked for a stop. Ranks may see it at different steps: use `agree_to_continue` to leave a loop."""
        return self._arena.words[CONTROL] == 2

    def wait_if_paused(self) -> None:
        """Return when the notebook does not ask for a pause. Raises what stopped the run meanwhile."""
        while self._arena.words[CONTROL] == 1:
            self._meeting.check_abort()
            self._channels.push()
            time.sleep(PAUSE_LOOK_S)
        self._meeting.check_abort()

    def report(self, obj: object) -> None:
        """Send a small object to the notebook while the run goes on (`Job.messages`, `on_message`)."""
        self._send(b"M", dill.dumps(obj, recurse=True))

    # for worker_main

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        with self._pipe_lock:
            self._pipe.send_bytes(kind + payload)

    def _begin_run(self) -> None:
        self._meeting.begin_run()
        self._channels.begin_run()
        self._collectives.begin_run()
        self._groups.clear()
        self._numbers.clear()
        self._calls.clear()
        self._index = 0
        self.records = []
