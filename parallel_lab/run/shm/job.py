"""A job: one function running on all ranks of a pool, watched from the notebook without blocking it."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .pool import WorkerPool

__all__ = ["Job"]

KEPT_MESSAGES = 10_000  # older messages of a job are dropped; a callback has seen them all
CALLBACK_WAIT_S = 5.0  # result() waits at most this long for callbacks that still run


class Job:
    """Made by `WorkerPool.submit`. All methods may be called from any thread.

    messages    the last (rank, object) pairs the ranks reported, oldest first
    warnings    texts about ranks that keep others waiting
    """

    def __init__(self, pool: WorkerPool, payloads: list[bytes], on_message: Callable[[tuple], object] | None) -> None:
        self.messages: deque[tuple[int, object]] = deque(maxlen=KEPT_MESSAGES)
        self.warnings: list[str] = []
        self.callback_errors: list[BaseException] = []
        self._pool, self._payloads, self._on_message = pool, payloads, on_message
        self._changed = threading.Condition()
        self._version = 0
        self._state = "queued"
        self._results: list | None = None
        self._error: BaseException | None = None
        self._control = "run"
        self._undelivered = 0
        # the pool's bookkeeping while the job runs
        self._reports: dict[int, tuple] = {}
        self._fault_at: float | None = None
        self._grace_s = 0.0
        self._interrupted_at: float | None = None
        self._resumed_at = time.monotonic()
        self._ended_by_force: list[int] = []

    def __repr__(self) -> str:
        return f"Job({self.state}, {len(self.messages)} messages)"

    @property
    def state(self) -> str:
        """ "queued", "running", "paused", "stopping", "done" or "failed"."""
        if self._state == "running" and self._control != "run":
            return {"pause": "paused", "stop": "stopping"}[self._control]
        return self._state

    def done(self) -> bool:
        """True when every rank has returned or the job has failed."""
        return self._state in ("done", "failed")

    def result(self, timeout: float | None = None) -> list:
        """What the function returned, per rank. Raises its error, or TimeoutError after `timeout` seconds (the job goes on)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        warned = 0
        while True:
            with self._changed:
                while not self.done() and warned == len(self.warnings):
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(f"the job is still {self.state} after {timeout} s")
                    self._changed.wait(0.5 if left is None else min(left, 0.5))
            for text in self.warnings[warned:]:
                warnings.warn(text, RuntimeWarning, stacklevel=3)
                warned += 1
            if self.done():
                break
        with self._changed:
            self._changed.wait_for(lambda: not self._undelivered or self._pool._in_callback_thread(), CALLBACK_WAIT_S)
        if self._error is not None:
            raise self._error
        return self._results

    def wait_for_change(self, timeout: float | None = None) -> bool:
        """Block until a message comes or the state changes; False when `timeout` seconds pass first."""
        with self._changed:
            seen = self._version
            return self._changed.wait_for(lambda: self._version != seen or self.done(), timeout)

    def pause(self) -> None:
        """Let the ranks wait at their next `wait_if_paused` or `agree_to_continue`. No time limit runs meanwhile."""
        self._ask("pause")

    def resume(self) -> None:
        """Go on after `pause`."""
        self._ask("run")

    def stop(self) -> None:
        """Ask the ranks to stop together: `agree_to_continue` answers False on all of them at the same step. A queued job does not start."""
        self._ask("stop")

    def _ask(self, control: str) -> None:
        with self._changed:
            if self.done() or self._control == "stop":
                return
            self._control = control
            self._resumed_at = time.monotonic()
        self._pool._apply_control(self)
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _finish(self, results: list | None, error: BaseException | None) -> None:
        with self._changed:
            self._results, self._error = results, error
            self._state = "failed" if error is not None else "done"
            self._payloads = []
        self._notify()
