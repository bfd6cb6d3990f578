"""Collectives of shared memory that are started and waited for later (`started.py`).

Each rank has one queue. The collective at its head meets the other members and moves data whenever the rank makes
progress; the next one follows when it is complete. Started collectives meet over words of their own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ...run.communicator import Request
from .. import started as base
from .barrier import Bell, Condition, Missing, WaitLoop
from .collectives import Program
from .groups import Group


class Started(base.Started):
    """One started collective of this rank: `call`, its flight record's index + 1, number and text slot; `program`,
    which answers it at the head of the queue; `waits`: what it waits for.
    """

    def __init__(
        self, lane: Lane, request: Request, call: tuple[int, int, int], group: Group, program: Program
    ) -> None:
        super().__init__(lane, request, call[0])
        self.call, self._group, self._program = call, group, program
        self.start_s = time.perf_counter()
        self.waits: Condition | None = None

    def _go_on(self) -> None:
        if self.waits is None:
            self._group.call = self.call
            self.waits = next(self._program)
        while self.waits.test():
            self.waits = next(self._program)


class Lane(base.Lane):
    """The queue of one rank.  ended: called with each collective that is complete."""

    def __init__(self, loop: WaitLoop, ended: Callable[[Started], None]) -> None:
        super().__init__(loop)
        self._loop, self._ended = loop, ended
        self.begin_run()

    def begin_run(self) -> None:
        """Forget what a run that has ended left."""
        self.queue: deque[Started] = deque()
        self.kept = {}
        self._moving = False

    def add(self, started: Started) -> None:
        """Put it at the end of the queue, and go on."""
        self.queue.append(started)
        self.kept[started.order] = started
        self.progress()

    def progress(self) -> bool:
        """Do what can be done now; returns whether something is left in the queue."""
        if self._moving:  # asked from within: a step that waits
            return True
        self._moving = True
        try:
            while self.queue and self.queue[0].advance():
                self._ended(self.queue.popleft())
        finally:
            self._moving = False
        return bool(self.queue)

    def waits(self) -> Condition | None:
        """What the head of the queue waits for."""
        return self.queue[0].waits if self.queue else None

    def missing(self) -> Missing | None:
        """Who has to do what before the head of the queue goes on."""
        waits = self.waits()
        return None if waits is None else waits.missing()

    def look(self, started: Started) -> bool:
        self._loop.check_abort()
        if self.progress():
            self.waits().examine()
            missing = self.missing()
            if missing is not None:
                self._for_head(self._loop.check_left, missing)
        return started.end_s is not None

    def complete(self, started: Started) -> None:
        self._loop.check_abort()
        while started.end_s is None:
            self.progress()
            if started.end_s is None:
                self._for_head(self._loop.wait, _Head(self, started))

    def _for_head(self, wait: Callable, what: object) -> None:
        """wait(what), told as a wait for the head of the queue."""
        self._loop.entry = self.queue[0].call[0]
        try:
            wait(what)
        finally:
            self._loop.entry = 0


class _Head(Condition):
    """Waiting until one started collective is complete, and those before it."""

    def __init__(self, lane: Lane, started: Started) -> None:
        self._lane, self._started = lane, started

    @property
    def bell(self) -> Bell | None:
        waits = self._lane.waits()
        return None if waits is None else waits.bell

    def test(self) -> bool:
        self._lane.progress()
        return self._started.end_s is not None

    def examine(self) -> None:
        waits = self._lane.waits()
        if waits is not None:
            waits.examine()

    def missing(self) -> Missing | None:
        return self._lane.missing()
