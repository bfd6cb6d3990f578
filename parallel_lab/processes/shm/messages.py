"""send and recv that are started and waited for later (`started.py`), over the channels.

A send that is started hands over what fits its ring, and the rest, from the array itself, whenever the rank makes
progress. A recv that is started takes its message as it comes. They do not queue behind started collectives, nor these
behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ...run.communicator import Request
from .. import started as base
from .barrier import WaitLoop
from .channels import Channels


class StartedMessage(base.Started):
    """One send or recv. `call`: its flight record's index + 1; `piece`, `came`: what it hands over, what has come."""

    def __init__(self, lane: MessageLane, request: Request, call: int) -> None:
        super().__init__(lane, request, call)
        self.call, self.start_s = (call,), time.perf_counter()
        self.piece: list | None = None
        self.came: np.ndarray | None = None

    def _go_on(self) -> None:
        over = self.came is not None if self.piece is None else not Channels.left(self.piece)
        if over:
            raise StopIteration(self.came)


class MessageLane(base.Lane):
    """Those of one rank in a run.  ended: called with each that is complete; check: (request, what came) raises"""

    def __init__(
        self,
        loop: WaitLoop,
        channels: Channels,
        ended: Callable[[StartedMessage], None],
        check: Callable[[Request, np.ndarray], None],
    ) -> None:
        super().__init__(loop)
        self._loop, self._channels, self._ended, self._check = loop, channels, ended, check
        self.begin_run()

    def begin_run(self) -> None:
        """Forget what a run that has ended left."""
        self.kept = {}
        self.open: dict[int, StartedMessage] = {}  # not complete

    def begin(self, request: Request, call: int) -> StartedMessage:
        """Start one, and do what can be done at once."""
        started = StartedMessage(self, request, call)
        self.kept[started.order] = self.open[started.order] = started

        def came(array: np.ndarray) -> None:
            self._check(request, array)
            started.came = array
            self._advance(started)

        if request.kind == "send":
            started.piece = self._channels.send(request.value, request.group[1], request.sr_tag)
            self._advance(started)
        else:
            self._channels.ask(request.group[0], request.out, request.sr_tag, came)
        return started

    def _advance(self, started: StartedMessage) -> None:
        if started.end_s is None and started.advance():
            self.open.pop(started.order, None)
            self._ended(started)

    def progress(self) -> bool:
        """Note what is complete; returns whether something is left."""
        for started in tuple(self.open.values()):
            self._advance(started)
        return bool(self.open)

    def _move(self) -> None:
        self._loop.check_abort()
        if self._loop.progress is not None:
            self._loop.progress()

    def look(self, started: StartedMessage) -> bool:
        self._move()
        if started.end_s is None and started.request.kind == "recv":
            missing = self._channels.more_of(started.request.group[0]).missing()
            if missing is not None:
                self._for(started, lambda: self._loop.check_left(missing))
        return started.end_s is not None

    def complete(self, started: StartedMessage) -> None:
        self._move()
        if started.end_s is None and started.piece is not None:
            self._channels.let_go(started.piece, started.request.group[1])
            started.piece = [np.empty(0), 0]  # what is left is in a copy
            self._advance(started)
        while started.end_s is None:
            self._for(started, lambda: self._channels.wait_for(started.request.group[0]))

    def _for(self, started: StartedMessage, wait: Callable[[], None]) -> None:
        """wait(), told as a wait for this one."""
        self._loop.entry = started.call[0]
        try:
            wait()
        finally:
            self._loop.entry = 0
