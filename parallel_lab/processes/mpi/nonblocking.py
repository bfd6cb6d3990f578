"""Collectives of MPI that are started and waited for later (`started.py`). A start posts the rank's arrival, which the
others compare (`handshake.py`). When all have come the data moves, step after step (`movement.py`), over a communicator
of its own. A handle is done when those before it are, but all their data travels at once, each message under its own
tag: a late member of one group does not hold up another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ...run.communicator import Request
from .. import started as base
from ..checked_calls import root_position
from .handshake import SLOWEST_BYTES_PER_S, STARTED, Arrival, Asked, Handshake, died
from .movement import Movement, Step, Steps

STEPS = 2  # steps with messages that a collective has at most
TAGS = 32_000  # below 32767, the largest tag that every MPI has; far more than messages are under way between two ranks


class Started(base.Started):
    """One started collective: its `flight` record, whether it is `recorded`, and the ranks still `absent`."""

    def __init__(self, lane: Lane, request: Request, asked: Asked, flight: list, recorded: bool) -> None:
        super().__init__(lane, request, flight[0])
        self.asked, self.flight, self.recorded = asked, flight, recorded
        self.absent: set[int] = set()
        self.found: dict[int, Arrival] = {}
        self.turns: dict[int, int] = {}  # how many this rank and that one have started together before
        self.steps: Steps = base.at_once(request)
        self.step: Step | None = None
        self.moved_bytes = 0

    def __str__(self) -> str:
        return str(self.asked.entry(self._lane.rank))

    def tag(self, rank: int, step: int) -> int:
        """Which collective and step a message belongs to: both ends number what they have started together alike."""
        return (STEPS * self.turns[rank] + step) % TAGS

    def _go_on(self) -> None:
        mpi = self._lane.mpi
        try:
            while self.step is None or mpi.Request.Testall(self.step.requests):
                self.step = next(self.steps)
                self.moved_bytes += self.step.size_bytes
        except mpi.Exception as error:
            raise died(error, self._lane.rank, self.request) from error


class Lane(base.Lane):
    """One rank's started collectives in a run. `awaits(collective)`: this rank waits for it, None when that ended well;
    `ended`: called with one that is complete.
    """

    def __init__(
        self, mpi: Any, handshake: Handshake, awaits: Callable[[Started | None], None], ended: Callable[[Started], None]
    ) -> None:
        super().__init__(handshake)
        self.mpi, self._handshake, self._awaits, self._ended = mpi, handshake, awaits, ended
        self._movement: Movement | None = None
        handshake.in_flight = self._in_flight

    def begin_run(self, movement: Movement) -> None:
        """Forget everything; data moves over `movement` from now on."""
        self._movement = movement
        self.kept = {}
        self._open: list[Started] = []  # not complete, oldest first
        # by rank: those it has not started yet
        self._awaited: list[deque[Started]] = [deque() for _ in range(self._handshake.world_size)]
        self._turns = [0] * self._handshake.world_size
        self._handshake.progress = None

    def _in_flight(self) -> list:
        return [request for started in self._open if started.step is not None for request in started.step.requests]

    # starting

    def begin(self, started: Started) -> None:
        """Tell the other members, and return."""
        handshake, request = self._handshake, started.request
        self.kept[started.order] = started
        self._open.append(started)
        if len(request.group) > 1:
            data = self._movement.arrival(STARTED, request, started.asked)
            for peer in request.group:
                if peer != self.rank:
                    handshake.post(data, peer)
                    started.absent.add(peer)
                    self._awaited[peer].append(started)
                    started.turns[peer] = self._turns[peer]
                    self._turns[peer] += 1
            started.steps = self._movement.steps(request, started.found, started.tag)
        handshake.progress = self.progress
        handshake.attend()

    # moving on

    def progress(self) -> None:
        """Compare the arrivals that have come, and move complete collectives on. Raises CollectiveMismatch."""
        handshake = self._handshake
        for peer, awaited in enumerate(self._awaited):
            arrivals = handshake.started[peer]
            while awaited and arrivals:
                started, arrival = awaited.popleft(), arrivals.popleft()
                started.found[peer] = arrival
                started.absent.discard(peer)
                handshake.compare(peer, arrival.asked, started.asked)
                if not started.absent:
                    request, found = started.request, started.found
                    root = root_position(request)
                    handshake.compare_lines(handshake.started_lines, request.group, found, started.asked, root)
        # in the order of their starts: for the whole world the library moves the data, and must be asked in one order
        for started in self._open:
            if not started.absent and started.advance():
                started.step = None
                started.found.clear()
                self._ended(started)
        self._open = [started for started in self._open if started.end_s is None]
        if not self._open:
            self._handshake.progress = None

    # waiting

    def look(self, started: Started) -> bool:
        """A loop that asks for ever ends as a wait does: CollectiveTimeout, counted from the first look."""
        handshake = self._handshake
        try:
            handshake.attend()
        except self.mpi.Exception as error:
            raise died(error, self.rank, started.request) from error
        handshake.check()
        if self._answered(started):
            return True
        self._awaits(started)
        waited_s = started.polled_for(restart=handshake.paused())
        handshake.check_wait(waited_s, self._missing(started), self._lost, self._extra_s(started))
        self._awaits(None)
        return False

    def complete(self, started: Started) -> None:
        handshake = self._handshake
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
            except self.mpi.Exception as error:
                raise died(error, self.rank, started.request) from error
            self._awaits(None)

    def _answered(self, started: Started) -> bool:
        return started.end_s is not None and (not self._open or self._open[0].order > started.order)

    def _before(self, started: Started) -> list[Started]:
        """What must be complete before `started` is answered, itself included."""
        return [s for s in self._open if s.order <= started.order]

    def _missing(self, started: Started) -> list[int]:
        """The ranks that have not started what must come first; when all have, those whose data is under way."""
        before = self._before(started)
        absent = set().union(*(s.absent for s in before))
        moving = {rank for s in before if s.step is not None for rank in s.step.ranks}
        return sorted(absent or moving - {self.rank})

    def _lost(self, rank: int) -> bool:
        return bool(self._awaited[rank]) and not self._handshake.started[rank]

    def _extra_s(self, started: Started) -> float:
        return sum(s.moved_bytes for s in self._before(started)) / SLOWEST_BYTES_PER_S

    def settled(self) -> bool:
        """Whether nothing moves any more, when all have returned: what a member has not started never will be."""
        return not any(started.step is not None for started in self._open)
