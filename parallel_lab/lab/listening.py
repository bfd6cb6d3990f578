"""Models that tell their views when they change, and that run one thing at a time in a helper thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import ParallelLabError

__all__ = ["Listened", "RunsOneThing", "Stopped"]

LISTEN_S = 0.1  # how long wait() may not hear an interrupt


class Listened:
    """Something with listeners. `__init__` must run before the first change."""

    def __init__(self) -> None:
        self._listeners: list[Callable[..., None]] = []

    def on_change(self, callback: Callable[..., None]) -> Callable[[], None]:
        """Call `callback` after every change, with a word for what has changed where the model tells kinds apart; returns a function that ends it.

        Calls may come from a helper thread.
        """
        self._listeners.append(callback)

        def unsubscribe() -> None:
            with suppress(ValueError):  # called twice, or after the model has forgotten all
                self._listeners.remove(callback)

        return unsubscribe

    def _changed(self, *what: str) -> None:
        for callback in list(self._listeners):
            callback(*what)


class Stopped(Exception):
    """Raised in a run, and never out of it: nobody wants its result any more."""


class RunsOneThing(Listened):
    """A model that runs one thing at a time beside the notebook, and says how it went. What has changed is "picture" or "run".

    _run    {"state": "idle" | "running" | "done" | "stopped" | "failed", "text": ..., "error": text of the error or None}
    _stop   set when nobody wants the result any more: the work then raises Stopped when it next looks
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._ended = threading.Event()  # of the latest run
        self._thread: threading.Thread | None = None
        self._forget_run()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run goes on; whether that is so. For scripts and tests; a widget never waits, nor does a listener in the run's own thread."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._thread not in (None, threading.current_thread()) and not self._ended.is_set() and (end is None or time.monotonic() < end):
            self._ended.wait(LISTEN_S if end is None else max(0.0, min(LISTEN_S, end - time.monotonic())))
        return self._run["state"] != "running"

    def stop(self) -> None:
        """Ask the run that goes on to end: a training does after its present step. Returns at once; `wait()` waits. Nothing happens without a run."""
        self._stop.set()

    def close(self) -> None:
        """Forget the listeners, stop a run that goes on, and wait for its end: its workers are shared."""
        self._listeners.clear()
        self.stop()
        self.wait()

    def _go_on(self) -> None:
        """Raise Stopped if nobody wants the result of the run any more."""
        if self._stop.is_set():
            raise Stopped

    def _forget_run(self) -> None:
        self._run: dict[str, Any] = {"state": "idle", "text": "", "error": None}

    def _start(self, text: str, work: Callable[[], str], failed: str = "the run failed") -> None:
        """Do `work` in a helper thread; it returns what to say of it, `failed` is said of an error. Nothing happens while a run goes on."""
        with self._lock:
            if self._run["state"] == "running":
                return
            self._run = {"state": "running", "text": text, "error": None}
            self._ended = ended = threading.Event()  # a listener may start the next run before this one's thread is over
            self._stop.clear()
            self._thread = threading.Thread(target=self._work, args=(work, failed, ended), name=type(self).__name__, daemon=True)
            self._thread.start()
        self._changed("run")

    def _work(self, work: Callable[[], str], failed: str, ended: threading.Event) -> None:
        done: dict[str, Any] = {"state": "done", "text": "", "error": None}
        try:
            done["text"] = work()
        except Stopped:
            done = {"state": "stopped", "text": "stopped; nothing was kept of it", "error": None}
        except ParallelLabError as error:
            done = {"state": "failed", "text": failed, "error": str(error)}
        except BaseException as error:  # a defect: the views must not say "running" for ever; whoever watches threads gets it too
            done = {"state": "failed", "text": failed, "error": f"{type(error).__name__}: {error}"}
            raise
        finally:
            with self._lock:
                self._run = done
            try:
                self._changed("run")
            finally:
                ended.set()  # after the listeners: who waits finds views that show it
