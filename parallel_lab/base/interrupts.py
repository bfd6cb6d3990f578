"""Ctrl-C where nothing may be cut off: held back, and raised a moment later.

    with held():                     # what takes a second at most: imports, the start of a process
        import dill
        with let_through():          # a wait of any length within
            wait()

An import that is cut off leaves half a package in `sys.modules`, which for some can be neither used nor completed until
Python is started again; a process that is started and not yet noted would be nobody's.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

AFTER_IMPORT_S = 0.05


class _Hold:
    """The handler of SIGINT while it is held back: it notes that the signal came."""

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self.before, self.came = before, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True

    def end(self, again_s: float | None) -> None:
        """As before; what has come meanwhile comes now, or once more in `again_s`."""
        signal.signal(signal.SIGINT, self.before)
        if self.came:
            self.came = False
            if again_s is None:
                self.before(signal.SIGINT, None)
            else:
                sender = threading.Timer(again_s, _send)
                sender.daemon = True
                sender.start()


def _send() -> None:
    """SIGINT to this process, as from a terminal."""
    if os.name == "posix":  # elsewhere the call would end the process
        os.kill(os.getpid(), signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextlib.contextmanager
def held(again_s: float | None = None) -> Iterator[None]:
    """Hold Ctrl-C back; at the end it is raised, if it came. Without effect outside the main thread, and where SIGINT
    is ignored or not Python's.

    again_s  for an `__init__.py`: raise it not at the end, but so many seconds later, when the import is over. A
             package that fails at its end is forgotten and its modules are not: made again it would not find them
    """
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(before):  # SIG_IGN, SIG_DFL, a handler in C
        yield
        return
    hold = _Hold(before)
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        hold.end(again_s)


@contextlib.contextmanager
def let_through() -> Iterator[None]:
    """Within `held`: Ctrl-C is raised at once, also one that has come before."""
    hold = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not isinstance(hold, _Hold):
        yield
        return
    try:
        hold.end(None)
        yield
    finally:
        signal.signal(signal.SIGINT, hold)


@contextlib.contextmanager
def blocked_at_birth() -> Iterator[None]:
    """Processes that this thread starts within begin with SIGINT blocked: it waits until they are ready for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """In a process that was born with SIGINT blocked: what has come meanwhile comes now."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def import_whole(*names: str) -> None:
    """Import packages that cannot be completed once they were cut off: all of each, or nothing of it."""
    for name in names:
        try:
            with held():
                importlib.import_module(name)
        except BaseException as error:
            for module in [one for one in tuple(sys.modules) if one == name or one.startswith(f"{name}.")]:
                del sys.modules[module]
            if not isinstance(error, ModuleNotFoundError):  # a missing package has an error of its own
                raise
