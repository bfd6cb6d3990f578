"""Collectives that are started and waited for later, so that a rank works while its data travels.

    handle = comm.start("all_reduce", gradients)         # says where the data lies, and returns
    ...                                                   # computing; comm.progress() now and then
    total = handle.wait()

Each rank has one queue. The collective at its head meets the other members and moves data in `progress`, in `done`, in
`begin`, and in every wait of the rank, whatever it waits for; the next one follows when it is complete. There is no
helper thread. Started collectives meet over words of their own, so it does not matter what a rank asks for in between.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from ...base.errors import ParallelLabError, PlanError
from ...run.calls import Handle, not_waited_for
from ...run.communicator import Request, delivered, describe
from .barrier import Condition, Missing, WaitLoop
from .collectives import Program
from .groups import Group


class Started(Handle):
    """One started collective of this rank.

    request      as it was asked for
    index, number, start_s   its flight record
    begin        makes the generator that answers it, once it is at the head of the queue
    """

    def __init__(
        self,
        lane: Lane,
        request: Request,
        call: tuple[int, int, int],
        group: Group | None,
        begin: Callable[[], Program],
    ) -> None:
        self._lane, self.request, self.call, self._group, self._begin = lane, request, call, group, begin
        self.start_s = time.perf_counter()
        self.end_s: float | None = None
        self._program: Program | None = None
        self.waits: Condition | None = None
        self._reply: np.ndarray | None = None
        self._failure: Exception | None = None
        self.taken = False

    def __repr__(self) -> str:
        return f"<{'under way' if self.end_s is None else 'complete'}: {describe(self.request)}>"

    def wait(self) -> np.ndarray | None:
        """Wait until the group has answered; the reply. Raises what `answer` raises, and PlanError when called a second
        time.
        """
        self._lane.complete(self)
        if self._failure is not None:
            raise self._failure
        reply, self._reply = self._reply, None
        return reply

    def done(self) -> bool:
        """Whether `wait` would return at once. Makes progress."""
        self._lane.look(self)
        return self.end_s is not None

    def step(self) -> bool:
        """Go on as far as possible without waiting; returns whether it is complete."""
        try:
            if self._program is None:
                if self._group is not None:
                    self._group.call = self.call
                self._program = self._begin()
                self.waits = next(self._program)
            while self.waits.test():
                self.waits = next(self._program)
            return False
        except StopIteration as end:
            reply = end.value
        except ParallelLabError as error:
            if getattr(error, "secondary", None) is not None:  # a fault of the run: every rank raises it, here and now
                raise
            self._failure, reply = error, None
        if self._failure is None:
            try:
                self._reply = delivered(reply, self.request)
            except ParallelLabError as error:  # it does not fit `out`: `wait` raises it
                self._failure = error
        self.end_s = time.perf_counter()
        self._program = self.waits = None
        return True


class Lane:
    """The queue of one rank.

    ended   called with each collective that is complete
    """

    def __init__(self, loop: WaitLoop, ended: Callable[[Started], None]) -> None:
        self._loop, self._ended = loop, ended
        self.queue: deque[Started] = deque()
        self._kept: dict[int, Started] = {}  # by index: not waited for yet
        self._moving = False

    def begin_run(self) -> None:
        """Forget what a run that has ended left."""
        for started in (*self.queue, *self._kept.values()):
            started.taken = True
        self.queue.clear()
        self._kept.clear()
        self._moving = False

    def add(self, started: Started) -> None:
        """Put it at the end of the queue, and go on."""
        self.queue.append(started)
        self._kept[started.call[0]] = started
        self.progress()

    def progress(self) -> bool:
        """Do what can be done now; returns whether something is left in the queue."""
        if self._moving:  # asked from within: a step that waits
            return True
        self._moving = True
        try:
            while self.queue and self.queue[0].step():
                self._ended(self.queue.popleft())
        finally:
            self._moving = False
        return bool(self.queue)

    def missing(self) -> Missing | None:
        """Who has to do what before the head of the queue goes on."""
        if not self.queue or self.queue[0].waits is None:
            return None
        return self.queue[0].waits.missing()

    def look(self, started: Started) -> None:
        """Progress, for a rank that asks whether `started` is complete. Raises what stopped the run or makes it
        impossible.
        """
        self._refuse_taken(started)
        self._loop.check_abort()
        if self.progress():
            waits = self.queue[0].waits
            waits.examine()
            missing = waits.missing()
            if missing is not None:
                self._loop.entry = self.queue[0].call[0]
                try:
                    self._loop.check_left(missing)
                finally:
                    self._loop.entry = 0

    def complete(self, started: Started) -> None:
        """Wait until `started` is complete; it counts as waited for."""
        self._refuse_taken(started)
        self._loop.check_abort()
        while started.end_s is None:
            self.progress()
            if started.end_s is None:
                self._loop.entry = self.queue[0].call[0]
                try:
                    self._loop.wait(_Head(self, started))
                finally:
                    self._loop.entry = 0
        started.taken = True
        del self._kept[started.call[0]]

    @staticmethod
    def _refuse_taken(started: Started) -> None:
        if started.taken:
            what = f"{describe(started.request)} has been waited for, or belongs to a run that is over"
            raise PlanError(what, where="Handle.wait", allowed="A handle is waited for once")

    def check_waited(self, rank: int) -> None:
        """Raise CollectiveMismatch, on every rank, when something was started here and never waited for."""
        if self._kept:
            first = self._kept[min(self._kept)]
            self._loop.raise_fault("CollectiveMismatch", not_waited_for(rank, first.request), ranks=[rank])


class _Head:
    """Waiting until one started collective is complete, and those before it."""

    def __init__(self, lane: Lane, started: Started) -> None:
        self._lane, self._started = lane, started

    @property
    def bell(self) -> tuple[int, int, int] | None:
        head = self._lane.queue[0] if self._lane.queue else None
        return None if head is None or head.waits is None else head.waits.bell

    def test(self) -> bool:
        self._lane.progress()
        return self._started.end_s is not None

    def examine(self) -> None:
        if self._lane.queue and self._lane.queue[0].waits is not None:
            self._lane.queue[0].waits.examine()

    def missing(self) -> Missing | None:
        return self._lane.missing()
