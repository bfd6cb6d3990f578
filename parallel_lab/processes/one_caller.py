"""One thread of one process makes a rank's calls. Two that call at once would each get what the other has asked for,
and a forked child would take its parent's place: wrong numbers on every rank, without a word.

    if get_ident() != loop.thread:      # at the beginning of each call: 30 ns
        loop.check_caller()
"""

from __future__ import annotations

import os
import threading
import weakref
from _thread import get_ident
from typing import NoReturn

from ..base.errors import WorldError, message

NOBODY, FORKED, ENDED = 0, -1, -2  # no thread's number


class _Mark:
    """Something that lives as long as a thread does."""


_of_thread = threading.local()


class OneCaller:
    """What takes a rank's calls.

    thread   number of the thread that calls in this run; NOBODY before its first call, ENDED when it has ended: the
             system gives numbers of threads that have ended to new ones
    """

    rank: int
    thread = NOBODY
    _mark: weakref.ref | None = None

    def watch_forks(self) -> None:
        """From now on a child that this process forks is refused. Called once."""
        if hasattr(os, "register_at_fork"):  # elsewhere nothing forks
            kept = weakref.ref(self)

            def in_child() -> None:
                found = kept()
                if found is not None:
                    found.thread = FORKED

            os.register_at_fork(after_in_child=in_child)

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the rank has forked."""
        return self.thread == FORKED

    def anybody_may_call(self) -> None:
        """A run begins: the thread that calls first is the one that calls."""
        if not self.forked:
            self.thread, self._mark = NOBODY, None

    def check_caller(self) -> None:
        """Take the present thread for the caller, if it is the first. Raises WorldError in a forked child, and
        CollectiveMismatch, on every rank, in a second thread.
        """
        if self.forked:
            what = f"this process was forked by rank {self.rank}, and is no rank itself"
            hint = "Let the rank call, and give the child what it needs; a started process (subprocess) is fine"
            raise WorldError(what, where="the communicator", allowed="The process that the launcher started", hint=hint)
        mine = get_ident()
        if self.thread == NOBODY:
            self.thread, self._mark = mine, self._until_it_ends()
        elif self.thread != mine:
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            first = names.get(self.thread, "that has ended")
            what = (
                f"rank {self.rank} calls from thread {names.get(mine)!r}, and has called from thread {first!r} before"
            )
            hint = "Let one thread make the calls; others hand it their values, in a queue for instance"
            text = message(what, allowed="One thread makes all calls of a rank in a run", hint=hint)
            self.raise_fault("CollectiveMismatch", text, ranks=[self.rank])

    def _until_it_ends(self) -> weakref.ref:
        """Told by the present thread, at its end: the thread that calls then is another one, whatever its number."""
        kept = weakref.ref(self)
        if not hasattr(_of_thread, "mark"):
            _of_thread.mark = _Mark()

        def ended(mark: weakref.ref) -> None:
            caller = kept()
            if caller is not None and caller._mark is mark and not caller.forked:
                caller.thread = ENDED

        return weakref.ref(_of_thread.mark, ended)

    def raise_fault(self, kind: str, text: str, **attributes: object) -> NoReturn:
        """Stop every rank, and raise the fault here."""
        raise NotImplementedError
