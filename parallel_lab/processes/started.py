"""Collectives that are started and waited for later, while a rank works: what shared memory and MPI share.

    handle = comm.start("all_reduce", gradients)         # says where the data lies, and returns
    ...                                                   # computing; comm.progress() now and then
    total = handle.wait()

No helper thread is used. What was started goes on in `progress`, in `done`, in `begin`, and in every wait of the rank,
whatever it waits for. Started collectives meet apart from the others, so it does not matter what a rank asks for in
between. Replies are handed out in the order of the starts.
"""

from __future__ import annotations

import time
from _thread import get_ident
from collections.abc import Generator

import numpy as np

from ..base.errors import PlanError
from ..run.communicator import Handle, Request, answer, delivered, describe, not_waited_for
from .one_caller import OneCaller


class Started(Handle):
    """One started collective of this rank: `order` of its start; its `reply`, or the `failure` it raises."""

    def __init__(self, lane: Lane, request: Request, order: int) -> None:
        self._lane, self.request, self.order = lane, request, order
        self.reply: np.ndarray | None = None
        self.failure: Exception | None = None
        self.end_s: float | None = None
        self._polled_s: float | None = None

    def __repr__(self) -> str:
        return f"<{'under way' if self.end_s is None else 'complete'}: {self}>"

    def __str__(self) -> str:
        return describe(self.request)

    def wait(self) -> np.ndarray | None:
        """The reply, once the group has answered. Raises what `answer` raises; PlanError when called a second time."""
        self._lane.check_kept(self)
        self._lane.complete(self)
        del self._lane.kept[self.order]
        if self.failure is not None:
            raise self.failure
        reply, self.reply = self.reply, None
        return reply

    def done(self) -> bool:
        """Whether `wait` would return at once. Makes progress; raises what stopped the run or makes this impossible."""
        self._lane.check_kept(self)
        return self._lane.look(self)

    def polled_for(self, *, restart: bool = False) -> float:
        """Seconds since the program first looked at it; restart: it counts from now."""
        now = time.monotonic()
        if self._polled_s is None or restart:
            self._polled_s = now
        return now - self._polled_s

    def advance(self) -> bool:
        """Go on as far as possible without waiting; returns whether it is complete. Raises what stopped the run."""
        reply = None
        try:
            self._go_on()
            return False
        except StopIteration as end:
            reply = end.value
        except Exception as error:
            if getattr(error, "secondary", None) is not None:  # a fault of the run: every rank raises it, here and now
                raise
            self.failure = error
        if self.failure is None:
            try:
                self.reply = delivered(reply, self.request)
            except Exception as error:  # it does not fit `out`: `wait` raises it
                self.failure = error
        self.end_s = time.perf_counter()
        return True

    def _go_on(self) -> None:
        """Advance until there is something to wait for; StopIteration(reply) at the end."""
        raise NotImplementedError


class Lane:
    """The started collectives of one rank in a run.  kept: those not waited for yet, oldest first."""

    def __init__(self, caller: OneCaller) -> None:
        self.rank, self._caller = caller.rank, caller
        self.kept: dict[int, Started] = {}

    def look(self, started: Started) -> bool:
        """Progress; returns whether the reply of `started` can be handed out."""
        raise NotImplementedError

    def complete(self, started: Started) -> None:
        """Wait until the reply of `started` can be handed out."""
        raise NotImplementedError

    def check_kept(self, started: Started) -> None:
        """Raise PlanError for one that has been waited for, and what `check_caller` raises."""
        if get_ident() != self._caller.thread:
            self._caller.check_caller()
        if self.kept.get(started.order) is not started:
            what = f"{started} has been waited for, or belongs to a run that is over"
            raise PlanError(what, where=f"Handle.wait, rank {self.rank}", allowed="A handle is waited for once")

    def check_waited(self) -> None:
        """Raise CollectiveMismatch, on every rank, when something was started here and never waited for."""
        if self.kept:
            oldest = next(iter(self.kept.values()))
            self._caller.raise_fault("CollectiveMismatch", not_waited_for(self.rank, oldest.request), ranks=[self.rank])


def at_once(request: Request) -> Generator:
    """The way to the reply of a collective of one rank alone."""
    yield from ()
    return answer([request])[0]
