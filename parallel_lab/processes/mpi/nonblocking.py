"""Collectives that are started and waited for later, so that a rank works while its data travels.

    handle = comm.start("all_reduce", gradients)         # tells the others, at once, and returns
    ...                                                   # computing; comm.progress() now and then
    total = handle.wait()

A start posts the rank's arrival; the arrivals of the others are compared with it as they come (`handshake.py`), apart
from those of blocking calls, so that it does not matter what a rank asks for in between. When all have come the data
moves, step after step (`movement.py`), over a communicator of its own. There is no helper thread: all this is done in
`progress`, in `done`, in `begin`, and in every wait of the rank, whatever it waits for.

Replies are handed out in the order of the starts: a handle is done when those before it are. The data of all of them is
under way at the same time, each message under a tag of its own, so a late member of one group does not hold up another
group.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.errors import PlanError
from ...run.calls import Handle, not_waited_for
from ...run.communicator import Request, answer, delivered
from .handshake import SLOWEST_BYTES_PER_S, STARTED, Arrival, Handshake, died, entry_of
from .movement import Movement, Step, Steps

STEPS = 2  # steps with messages that a collective has at most
TAGS = 32_000  # below 32767, the largest tag that every MPI has; far more than messages are under way between two ranks


class Started:
    """One started collective of this rank.

    notes    what its communicator wants to know when it is complete
    absent   ranks that have not started it yet
    reply    what the handle gives;  failure: what it raises instead
    end_s    when one of the two was there: time.perf_counter(); None before
    """

    def __init__(
        self,
        request: Request,
        order: int,
        run: int,
        check: int,
        loose: tuple[int, int] | None,
        number: int,
        text: bytes,
        notes: Any,
    ) -> None:
        self.request, self.order, self.run, self.notes = request, order, run, notes
        self.check, self.loose, self.number, self.text = check, loose, number, text
        self.absent: set[int] = set()
        self.found: dict[int, Arrival] = {}
        self.turns: dict[int, int] = {}  # how many this rank and that one have started together before
        self.steps: Steps | None = None
        self.step: Step | None = None
        self.moved_bytes = 0
        self.reply: np.ndarray | None = None
        self.failure: Exception | None = None
        self.end_s: float | None = None
        self.polled_s: float | None = None


class StartedHandle(Handle):
    """A collective of an MPI rank that was started."""

    def __init__(self, lane: Lane, started: Started) -> None:
        self._lane, self._started = lane, started

    @property
    def end_s(self) -> float | None:
        """When the reply was complete on this rank, as far as it was noticed: time.perf_counter() seconds; None
        before.
        """
        return self._started.end_s

    def __repr__(self) -> str:
        """What was started, and how far it is."""
        state = "under way" if self.end_s is None else "complete"
        return f"<{state}: {entry_of(self._lane.rank, 0, self._started.number, self._started.text)}>"

    def wait(self) -> np.ndarray | None:
        """Wait until the group has answered; the reply. Raises what `answer` raises, and PlanError when called a second
        time.
        """
        return self._lane.wait(self._started)

    def done(self) -> bool:
        """Whether `wait` would return at once. Makes progress.

        Raises what stopped the run; a loop that asks for ever ends as a wait does: CollectiveTimeout, counted from the
        first time it was asked.
        """
        return self._lane.done(self._started)


class Lane:
    """The started collectives of one rank in a run.

    awaits   called with the collective that this rank waits for, and with None when that has ended well
    ended    called with one that is complete
    """

    def __init__(
        self, mpi: Any, handshake: Handshake, awaits: Callable[[Started | None], None], ended: Callable[[Started], None]
    ) -> None:
        self._mpi, self._handshake, self._awaits, self._ended = mpi, handshake, awaits, ended
        self.rank = handshake.rank
        self._movement: Movement | None = None
        handshake.in_flight = self._in_flight

    def begin_run(self, movement: Movement) -> None:
        """Forget everything; data moves over `movement` from now on."""
        self._movement = movement
        self._order = itertools.count()
        self._open: list[Started] = []  # not complete, oldest first
        self._kept: dict[int, Started] = {}  # not waited for yet, by order
        self._awaited: list[deque[Started]] = [
            deque() for _ in range(self._handshake.world_size)
        ]  # by rank: those it has not started yet
        self._turns = [0] * self._handshake.world_size
        self._handshake.progress = None

    def _in_flight(self) -> list:
        return [request for started in self._open if started.step is not None for request in started.step.requests]

    # starting

    def begin(
        self, request: Request, check: int, loose: tuple[int, int] | None, number: int, text: bytes, notes: Any
    ) -> Started:
        """Tell the other members, and return."""
        handshake, members = self._handshake, request.group
        started = Started(request, next(self._order), handshake.run, check, loose, number, text, notes)
        self._kept[started.order] = started
        self._open.append(started)
        if len(members) > 1:
            data = self._movement.arrival(STARTED, request, check, loose, number, text)
            for peer in members:
                if peer != self.rank:
                    handshake.post(data, peer)
                    started.absent.add(peer)
                    self._awaited[peer].append(started)
                    started.turns[peer] = self._turns[peer]
                    self._turns[peer] += 1
        handshake.progress = self.progress
        handshake.attend()
        return started

    # moving on

    def progress(self) -> None:
        """Compare the arrivals that have come, and move the data of those that are complete. Raises
        CollectiveMismatch.
        """
        for peer, awaited in enumerate(self._awaited):
            arrivals = self._handshake.started[peer]
            while awaited and arrivals:
                started, arrival = awaited.popleft(), arrivals.popleft()
                started.found[peer] = arrival
                started.absent.discard(peer)
                self._handshake.compare(peer, arrival, started.check, started.loose, started.number, started.text)
        # in the order of their starts: where the library moves data for the whole world, all ranks must ask it in one
        # order
        for started in self._open:
            if not started.absent:
                self._move(started)
        self._open = [started for started in self._open if started.end_s is None]
        if not self._open:
            self._handshake.progress = None

    def _move(self, started: Started) -> None:
        try:
            if len(started.request.group) == 1:
                reply = answer([started.request])[0]
            else:
                if started.steps is None:
                    started.steps = self._movement.steps(
                        started.request, started.found, lambda rank, step: self._tag(started, rank, step)
                    )
                while started.step is None or self._mpi.Request.Testall(started.step.requests):
                    started.step = next(started.steps)
                    started.moved_bytes += started.step.size_bytes
                return
        except StopIteration as end:
            reply = end.value
        except self._mpi.Exception as error:
            reply, started.failure = None, died(error, self.rank, started.request)
        except Exception as error:
            if getattr(error, "secondary", None) is not None:  # a fault of the run: every rank raises it, here and now
                raise
            started.failure, reply = error, None
        started.step = None
        if started.failure is None:
            try:
                started.reply = delivered(reply, started.request)
            except Exception as error:  # it does not fit `out`: `wait` raises it
                started.failure = error
        started.end_s = time.perf_counter()
        started.steps = None
        started.found.clear()
        self._ended(started)

    @staticmethod
    def _tag(started: Started, rank: int, step: int) -> int:
        """Both ends number what they have started together alike, so the tag says which collective and which step a
        message belongs to.
        """
        return (STEPS * started.turns[rank] + step) % TAGS

    # waiting

    def done(self, started: Started) -> bool:
        """See `StartedHandle.done`."""
        handshake = self._handshake
        self._refuse_taken(started)
        try:
            handshake.attend()
        except self._mpi.Exception as error:
            raise died(error, self.rank, started.request) from error
        handshake.check()
        if self._answered(started):
            return True
        now = time.monotonic()
        if started.polled_s is None or handshake.paused():
            started.polled_s = now
        self._awaits(started)
        handshake.check_wait(now - started.polled_s, self._missing(started), self._lost, self._extra_s(started))
        self._awaits(None)
        return False

    def wait(self, started: Started) -> np.ndarray | None:
        """See `StartedHandle.wait`."""
        handshake = self._handshake
        self._refuse_taken(started)
        handshake.check()
        if not self._answered(started):
            self._awaits(started)
            try:
                handshake.until(
                    lambda: self._answered(started),
                    lambda: self._missing(started),
                    lost=self._lost,
                    moving=lambda: not any(s.absent for s in self._before(started)),
                    extra_s=lambda: self._extra_s(started),
                )
            except self._mpi.Exception as error:
                raise died(error, self.rank, started.request) from error
            self._awaits(None)
        del self._kept[started.order]
        if started.failure is not None:
            raise started.failure
        return started.reply

    def _refuse_taken(self, started: Started) -> None:
        if started.run != self._handshake.run or self._kept.get(started.order) is not started:
            what = (
                f"{entry_of(self.rank, 0, started.number, started.text)} has been waited for, or belongs to a run "
                "that is over"
            )
            raise PlanError(what, where=f"rank {self.rank}", allowed="A handle is waited for once")

    def _answered(self, started: Started) -> bool:
        return started.end_s is not None and (not self._open or self._open[0].order > started.order)

    def _before(self, started: Started) -> list[Started]:
        """What must be complete before `started` is answered, itself included."""
        return [s for s in self._open if s.order <= started.order]

    def _missing(self, started: Started) -> list[int]:
        """The ranks that have not started what must come first; when all have, those whose data is under way."""
        before = self._before(started)
        absent = set().union(*(s.absent for s in before))
        return sorted(
            absent or {rank for s in before if s.step is not None for rank in s.step.ranks if rank != self.rank}
        )

    def _lost(self, rank: int) -> bool:
        return bool(self._awaited[rank]) and not self._handshake.started[rank]

    def _extra_s(self, started: Started) -> float:
        return sum(s.moved_bytes for s in self._before(started)) / SLOWEST_BYTES_PER_S

    # the end of a run

    def check_waited(self) -> None:
        """Raise CollectiveMismatch, on every rank, when something was started here and never waited for."""
        if self._kept:
            oldest = self._kept[min(self._kept)]
            self._handshake.raise_fault(
                "CollectiveMismatch", not_waited_for(self.rank, oldest.request), ranks=[self.rank]
            )

    def settled(self) -> bool:
        """Whether nothing moves any more. Asked when all ranks have returned: what has not been started by all of its
        members never will be.
        """
        return not any(started.step is not None for started in self._open)
