"""send and recv over MPI, called or started: a message that says what comes, then the data, in the order of the sends.

A send copies its value, which MPI takes from there: the array may be reused at once, and nobody waits for a receiver.
What comes goes to the oldest recv of its tag, straight into its `out`; what comes before anybody asks for its tag is
kept. Nothing is taken from a source that nothing is asked of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.errors import message
from ...run.communicator import Request
from ...run.mail import Mail, expected
from .. import started as base
from ..shm.channels import HEAD_BYTES, head_tag, pack_head, unpack_head
from .handshake import MESSAGE_TAG, SLOWEST_BYTES_PER_S, Handshake, died
from .movement import Types


class StartedMessage(base.Started):
    """One send or recv: its `flight` record, whether it is `recorded`, and what `came`."""

    def __init__(self, lane: MessageLane, request: Request, flight: list, recorded: bool) -> None:
        super().__init__(lane, request, flight[0])
        self.flight, self.recorded = flight, recorded
        self.came: np.ndarray | None = None

    def __call__(self, array: np.ndarray) -> None:
        self._lane.take(self, array)

    def _go_on(self) -> None:
        if self.came is not None or self.request.kind == "send":
            raise StopIteration(self.came)


class _Coming:
    """The message of one source whose head was read: tag, array, MPI's request, and who takes it."""

    def __init__(self, sr_tag: int, array: np.ndarray, data: Any, taker: StartedMessage | None) -> None:
        self.sr_tag, self.array, self.data, self.taker = sr_tag, array, data, taker


class MessageLane(base.Lane):
    """All messages of one rank in a run: `sent` and `received`, per rank. `awaits`, `ended`: see `nonblocking.Lane`."""

    def __init__(
        self,
        mpi: Any,
        types: Types,
        handshake: Handshake,
        awaits: Callable[[Any], None],
        ended: Callable[[StartedMessage], None],
    ) -> None:
        super().__init__(handshake)
        self.mpi, self._types, self._handshake, self._awaits, self._ended = mpi, types, handshake, awaits, ended
        handshake.messages = self.progress
        handshake.messages_in_flight = lambda: [coming.data for coming in self._coming.values()]
        self.begin_run()

    def begin_run(self) -> None:
        """Forget what a run that has ended left."""
        self.kept = {}
        self._mail = Mail()
        self._coming: dict[int, _Coming] = {}
        self._asking: dict[int, int] = {}  # source -> how many recvs wait for it
        self.sent, self.received = [0] * self._handshake.world_size, [0] * self._handshake.world_size

    # sending, receiving

    def send(self, request: Request) -> None:
        """Hand a copy over."""
        value, to, handshake = request.value, request.group[1], self._handshake
        head, data = pack_head(value.dtype, value.shape, request.sr_tag), np.array(value, order="C")
        self.sent[to] += 1
        handshake.post(head, to, MESSAGE_TAG)
        handshake.outgoing.append(handshake.comm.Isend(self._types.buffer(data), dest=to, tag=MESSAGE_TAG))
        handshake.sent_all()
        handshake.attend()

    def begin(self, request: Request, flight: list, recorded: bool) -> StartedMessage:
        """Start one, and do what can be done at once."""
        started = StartedMessage(self, request, flight, recorded)
        self.kept[started.order] = started
        if request.kind == "send":
            self.send(request)
            self._advance(started)
        else:
            source = request.group[0]
            self._asking[source] = self._asking.get(source, 0) + 1
            self._mail.ask((source, request.sr_tag), started)
            self._handshake.attend()
        return started

    def recv(self, request: Request, flight: list) -> np.ndarray:
        """The reply to a recv that is called."""
        started = self.begin(request, flight, False)
        del self.kept[started.order]
        self._await(started)
        return started.came

    def take(self, started: StartedMessage, came: np.ndarray) -> None:
        """What a recv has asked for has come."""
        source = started.request.group[0]
        self.received[source] += 1
        self._asking[source] -= 1
        if not self._asking[source]:
            del self._asking[source]
        wanted = expected(started.request, came.shape, came.dtype)
        if wanted != (came.shape, came.dtype):
            sent = f"from rank {source}, which sent {came.dtype} {came.shape}"
            text = message(f"rank {self.rank} expects {wanted[1]} {wanted[0]} {sent}", where=started.request.origin)
            self._handshake.raise_fault("CollectiveMismatch", text, ranks=[self.rank, source])
        started.came = came
        if started.order in self.kept:
            self._advance(started)

    def _advance(self, started: StartedMessage) -> None:
        if started.advance():
            self._ended(started)

    def progress(self) -> None:
        """Take what has come from those of whom something is asked."""
        for source in tuple(self._asking):
            while source in self._asking:
                coming = self._coming.get(source)
                if coming is None:
                    coming = self._open(source)
                if coming is None or not coming.data.Test():
                    break
                del self._coming[source]
                if coming.taker is None:
                    self._mail.put((source, coming.sr_tag), coming.array)
                else:
                    coming.taker(coming.array)

    def _open(self, source: int) -> _Coming | None:
        """Read the next head, if it is there, and let its data come."""
        comm = self._handshake.comm
        here = comm.Improbe(source, MESSAGE_TAG)
        if here is None:
            return None
        head = bytearray(HEAD_BYTES)
        here.Recv([head, self.mpi.BYTE])
        (dtype, shape), sr_tag = unpack_head(bytes(head)), head_tag(bytes(head))
        taker = self._mail.taker((source, sr_tag))
        given = None if taker is None else taker.request.out
        array = given if given is not None and (given.shape, given.dtype) == (shape, dtype) else np.empty(shape, dtype)
        data = comm.Irecv(self._types.buffer(array), source=source, tag=MESSAGE_TAG)
        coming = self._coming[source] = _Coming(sr_tag, array, data, taker)
        return coming

    # waiting

    def look(self, started: StartedMessage) -> bool:
        """A loop that asks for ever ends as a wait does: CollectiveTimeout, counted from the first look."""
        handshake = self._handshake
        try:
            handshake.attend()
        except self.mpi.Exception as error:
            raise died(error, self.rank, started.request) from error
        handshake.check()
        if started.end_s is None:
            source = started.request.group[0]
            self._awaits(started)
            waited_s = started.polled_for(restart=handshake.paused() or source in self._coming)
            handshake.check_wait(waited_s, (source,), self._lost, 0.0)
            self._awaits(None)
        return started.end_s is not None

    def complete(self, started: StartedMessage) -> None:
        self._handshake.check()
        if started.end_s is None:
            self._awaits(started)
            try:
                self._await(started)
            except self.mpi.Exception as error:
                raise died(error, self.rank, started.request) from error
            self._awaits(None)

    def _await(self, started: StartedMessage) -> None:
        source = started.request.group[0]
        self._handshake.until(
            lambda: started.came is not None or started.end_s is not None,
            lambda: (source,),
            lost=self._lost,
            moving=lambda: source in self._coming,
            extra_s=lambda: self._coming[source].array.nbytes / SLOWEST_BYTES_PER_S if source in self._coming else 0.0,
        )

    def _lost(self, source: int) -> bool:
        """Whether all that a rank, which has returned, has sent was taken."""
        kept = sum(len(queue) for (sender, _), queue in self._mail.kept.items() if sender == source)
        return source not in self._coming and self._handshake.left[source][0] <= self.received[source] + kept
