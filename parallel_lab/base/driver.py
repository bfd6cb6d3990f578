"""Who runs what goes on in the background, so that controls answer meanwhile: one `Driver`, in three forms.

    form         where ranks are                who looks on
    processes    a process each                 a thread of this one
    thread       simulated, in a thread         the notebook, or nobody
    loop         simulated, in turns of the     the same stack: it sleeps, and the loop goes on
                 event loop of a page

A page has no threads. What runs there gives the event loop a turn after SLICE_S (`breathe`): at the borders of
instructions and, of what runs in the background, between passes, tensors and ranks (`hooks.breathe`). A command is not
interrupted: its work is half done until it ends. The browser then takes this stack aside (WebAssembly's promises,
pyodide.ffi.run_sync) and looks at the controls. Where a browser cannot do that, a run goes on in one piece once it is
waited for or the page is idle, and controls answer when it has ended.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from . import hooks
from .errors import NoProcesses
from .system import IN_BROWSER, SYSTEM

SLICE_S = 0.025  # of a turn: with an instruction of 20 ms it stays below 50 ms, what a person takes for at once
LOOK_S = 0.01  # how often a stack that sleeps looks whether what it waits for is so


class Work(Protocol):
    """What was started."""

    def is_here(self) -> bool:
        """Whether it is what runs now, and asks."""


class Driver:
    """Threads of this process."""

    @property
    def form(self) -> str:
        """ "processes" where ranks can be processes, else "thread" or "loop"."""
        return "processes" if SYSTEM.processes else "thread"

    def start(self, work: Callable[[], object], name: str) -> Work:
        """Run it in the background."""
        thread = _Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def later(self, seconds: float, call: Callable[[], object]) -> Any:
        """Call it after so many seconds; `cancel()` of what is returned forgets it."""
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        timer.start()
        return timer

    def wait(self, event: threading.Event | threading.Condition, seconds: float | None = None) -> bool:
        """Wait for an event, or for a change of a condition that is held; whether it came in time."""
        return event.wait(seconds)

    def rest(self, event: threading.Event, seconds: float) -> None:
        """Do nothing for so long, unless the event comes; nothing at all where others would have to wait, too."""
        event.wait(seconds)

    def breathe(self) -> None:
        """Between two instructions: nothing, threads take turns by themselves."""


class _Thread(threading.Thread):
    def is_here(self) -> bool:
        return self is threading.current_thread()


class _Turn:
    """What runs on the event loop, or on the stack of what waits for it."""

    def __init__(self, driver: LoopDriver, work: Callable[[], object]) -> None:
        self._driver, self._work = driver, work

    def is_here(self) -> bool:
        return self._driver.turn is self

    def run(self) -> None:
        """Run it, unless it has begun already."""
        if self in self._driver.ready:
            self._driver.ready.remove(self)
            before, self._driver.turn = self._driver.turn, self
            try:
                self._work()
            finally:
                self._driver.turn = before


class LoopDriver(Driver):
    """Turns of an event loop.  ready: what has not begun;  turn: what runs now"""

    def __init__(self) -> None:
        # a page has loaded it; elsewhere an interrupt of its import would leave half of it for ever
        self._asyncio = importlib.import_module("asyncio")
        self.ready: deque[_Turn] = deque()
        self.turn: _Turn | None = None
        self._since_s = 0.0

    form = "loop"

    def start(self, work: Callable[[], object], name: str) -> Work:
        turn = _Turn(self, work)
        self.ready.append(turn)
        self._asyncio.get_event_loop().call_soon(turn.run)
        return turn

    def later(self, seconds: float, call: Callable[[], object]) -> Any:
        return self._asyncio.get_event_loop().call_later(seconds, call)

    def wait(self, event: threading.Event | threading.Condition, seconds: float | None = None) -> bool:
        """Let others have turns until it is so. A condition is looked at once: what it is about may have changed.

        Raises NoProcesses where nothing goes on that could make it so, as this browser cannot take a stack aside.
        """
        end_s = None if seconds is None else time.monotonic() + seconds
        while not (isinstance(event, threading.Event) and event.is_set()):
            if end_s is not None and time.monotonic() >= end_s:
                return False
            if not self.sleeps(LOOK_S):
                if not self.ready:
                    what = "a run is paused, and this browser cannot wait for a control"
                    raise NoProcesses(what, where="wait", hint="resume() or stop() it first")
                self.ready[0].run()
            if isinstance(event, threading.Condition):
                return True
        return True

    def rest(self, event: threading.Event, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while not event.is_set() and (left_s := end_s - time.monotonic()) > 0 and self.sleeps(min(left_s, LOOK_S)):
            pass

    def breathe(self) -> None:
        """Give the event loop a turn, if this one has lasted for SLICE_S."""
        if time.perf_counter() - self._since_s >= SLICE_S:
            self.sleeps(0)

    def breathe_in_turn(self) -> None:
        """The same in the background; nothing while a command or a notebook's cell runs."""
        if self.turn is not None:
            self.breathe()

    @property
    def can_sleep(self) -> bool:
        """Whether the browser can take this stack aside: it is one of a turn, or of a notebook's cell."""
        return importlib.import_module("pyodide.ffi").can_run_sync()

    def sleeps(self, seconds: float) -> bool:
        """Let this stack sleep, and others have their turns; False where it cannot."""
        if not self.can_sleep:
            return False
        turn, self.turn = self.turn, None
        importlib.import_module("pyodide.ffi").run_sync(self._asyncio.sleep(seconds))
        self.turn, self._since_s = turn, time.perf_counter()
        return True


DRIVER = LoopDriver() if IN_BROWSER else Driver()
if isinstance(DRIVER, LoopDriver):
    hooks.set_from_above(turns=DRIVER.breathe_in_turn)


def breathing(observe: Callable[..., object] | None) -> Callable[..., object] | None:
    """What an interpreter is to call after an instruction, so that a page has its turns; threads need nothing more."""
    if DRIVER.form != "loop":
        return observe

    def call(*what: object) -> None:
        if observe is not None:
            observe(*what)
        DRIVER.breathe()

    return call
