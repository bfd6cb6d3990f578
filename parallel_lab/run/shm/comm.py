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

from ...errors import ShapeError, message
from ..calls import Calls, caller, detail
from ..communicator import Request, answer, check_request
from .arena import CONTROL, FLIGHT_HEAD, REQUESTS, Arena, fence, flight_text
from .barrier import Meeting
from .channels import Channels
from .collectives import Collectives, Group, digests

__all__ = ["CONTROLS", "Communicator"]

CONTROLS = ("run", "pause", "stop")
KEPT_CALLS = 1024  # digests and texts kept per rank; a training step has a few dozen different calls
PAUSE_LOOK_S = 2e-3  # how often a paused rank looks whether it may go on
_END = struct.Struct("<d")
_END_OFFSET = 24  # of end_s in FLIGHT_HEAD
_MIX = 0x9E3779B1  # odd 32-bit constant (golden ratio): spreads the call number over the digest


class Communicator(Calls):
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
        self._calls: dict[tuple, tuple] = {}
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
            reply = self._collectives.run(group, request, ((check + number * _MIX) & 0xFFFFFFFF) or 1, loose)
        end_s = time.perf_counter()
        _END.pack_into(self._arena.bytes, at + _END_OFFSET, end_s)
        if self.recording and not quiet:
            self.records.append((index, kind, start_s, end_s, self._bytes_sent(request), members, request.origin))
        return reply

    def _call(self, request: Request, explicit: bool) -> tuple:
        """(check, loose, flight text) of a request, checked once per different call."""
        value = request.value
        signature = (value.dtype, value.shape) if isinstance(value, np.ndarray) else value is None
        key = (
            *(request.kind, request.group, signature, request.reduce, request.dim, request.split_dim, request.concat_dim),
            *(request.root, request.shape, request.dtype, request.window, request.origin, explicit),
        )
        known = self._calls.get(key)
        if known is None:
            if len(self._calls) >= KEPT_CALLS:
                self._calls.clear()
            known = self._calls[key] = self._examine(request, explicit)
        return known

    def _examine(self, request: Request, explicit: bool) -> tuple:
        kind, group = request.kind, request.group
        check_request(request, self.rank, range(self.world_size))
        if kind in ("send", "recv"):
            check, loose = 0, None
        else:
            try:
                check, loose = digests(request, explicit)
            except (IndexError, KeyError, TypeError) as error:
                raise ShapeError(message(f"{kind} does not fit its value ({error})", where=request.origin)) from error
        if isinstance(request.value, np.ndarray):
            dtype, shape = str(request.value.dtype), request.value.shape
        else:
            dtype, shape = request.dtype or "", request.shape or ()
        return check, loose, flight_text(kind, group, str(dtype), tuple(int(s) for s in shape), detail(request), request.origin)

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

    def agree_to_continue(self, step: int = 0) -> bool:
        """One answer on all ranks: True to go on with `step`, False to leave the loop here. Waits while the notebook asks for a pause.

            for step in range(steps):
                if not comm.agree_to_continue(step): break

        Rank 0 decides and its decision travels in a broadcast, so no rank leaves a step before its peers. Ranks at different steps raise
        CollectiveMismatch.
        """
        decision = None
        if self.rank == 0:
            self.wait_if_paused()
            decision = np.array([not self.stop_requested])
        request = Request("broadcast", self._world, decision, root=0, shape=(1,), dtype="bool", origin=f"agree_to_continue(step {step})")
        return bool(self._answer(request, True, quiet=True)[0])

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
