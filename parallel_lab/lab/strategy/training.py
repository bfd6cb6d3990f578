"""The training run of the Strategy Lab: real processes, and one device beside them step by step.

    training = Training(steps=100)
    training.work(plan, one_device_plan, net, optimizer, batches, sensitive=False, tell=print)

What the lab shows of it, `run_state` and `loss`, are pure functions of what has been measured so far.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...base.events import Event
from ...graph.plan import Plan
from ...train.session import Run, Session
from ..shared.equality import nudge, rounding_bound
from ..shared.lab import LabRun


@dataclass
class Training(LabRun):
    """A training run. nudged: `single` with moved parameters, if rounding may grow; since: (seconds, steps) now."""

    steps: int = 100
    parallel: list[float] = field(default_factory=list)
    single: list[float] = field(default_factory=list)
    nudged: list[float] = field(default_factory=list)
    events: tuple[Event, ...] = ()
    session_run: Run | None = None
    seconds_per_step: float | None = None
    since: tuple[float, int] = (0.0, 0)

    def ask_to_end(self) -> None:
        """End after the present step; also before the first one."""
        self.stop.set()
        if self.session_run is not None:
            self.session_run.stop()

    def steer(self, what: str, state: str) -> None:
        """ "pause" or "resume" it."""
        getattr(self.session_run, what)()
        self.state, self.since = state, (time.perf_counter(), len(self.parallel))

    def work(
        self,
        plan: Plan,
        one_device: Plan,
        net: Any,
        optimizer: Any,
        batches: list,
        *,
        sensitive: bool,
        lock: threading.RLock,
        tell: Callable[[str], None],
    ) -> None:
        """The run on processes, one device beside it step by step, then what was measured.

        sensitive   rounding may grow: train a nudged copy, too
        lock        held where the state changes;  tell: called with "run" or "loss" when it has
        """
        with Session(plan, net, optimizer, executor="processes") as session:
            singles = [(self.single, Session(one_device, net, optimizer))]
            if sensitive:
                start = {name: p.asnumpy() for name, p in net.parameters_dict().items()}
                singles.append((self.nudged, Session(one_device, nudge(one_device, start), optimizer)))
            follow = _follower(singles, batches)

            def on_losses(first: int, losses: list[float]) -> None:
                self.parallel[first : first + len(losses)] = losses
                began_s, before = self.since
                if len(self.parallel) > before:
                    self.seconds_per_step = (time.perf_counter() - began_s) / (len(self.parallel) - before)
                follow(len(self.parallel))
                tell("loss")

            with lock:
                if not self.stop.is_set():
                    self.since = (time.perf_counter(), 0)
                    self.session_run = session.start(batches, self.steps, record=1, on_losses=on_losses)
                    self.state = "running"
            tell("run")
            if self.session_run is not None:
                losses = self.session_run.result()
                follow(len(losses))
                self.parallel[:] = losses
                self.events = tuple(session.events)

    # ---- what is shown ----

    def run_state(self, devices: int) -> dict[str, Any]:
        """The snapshot's "run"."""
        step, state = len(self.parallel), self.state
        left = None
        if self.goes_on and self.seconds_per_step is not None:
            left = (self.steps - step) * self.seconds_per_step
        text = {
            "idle": f"not run yet, {self.steps} steps",
            "starting": f"starting {devices} processes",
            "failed": f"ended badly at step {step}",
        }.get(state, f"step {step}/{self.steps}")
        if left is not None and state == "running":
            text += f", {left:.0f} s left" if left >= 1 else ", under 1 s left"
        if state in ("paused", "stopping"):
            text += f", {state}"
        return {
            "state": state,
            "step": step,
            "steps": self.steps,
            "seconds_left": left,
            "can": {
                "run": not self.goes_on,
                "pause": state in ("running", "paused"),
                "stop": state in ("starting", "running", "paused"),
                "reset": state != "idle",
            },
            "text": text,
            "error": self.error,
        }

    def loss(self, plan: Plan | None, devices: int) -> dict[str, Any]:
        """The snapshot's "loss": both curves, their largest difference, and how far rounding may take them apart.
        plan: None before the first run.
        """
        n = min(len(self.parallel), len(self.single))
        difference = np.abs(np.subtract(self.parallel[:n], self.single[:n], dtype=np.float64))
        return {
            "steps": n,
            "parallel": self.parallel[:n],
            "single": self.single[:n],
            "largest_difference": float(difference.max()) if n else None,
            "at_step": int(difference.argmax()) + 1 if n else None,
            "bound": self._bound(plan, n) if plan is not None and n else None,
            "label_parallel": f"{devices} process{'es' if devices > 1 else ''} (measured)",
            "label_single": "one device (computed here)",
        }

    def _bound(self, plan: Plan, steps: int) -> float:
        """How far rounding may part two runs; where it may grow, twice its effect on one device is added."""
        single, nudged = (np.asarray(losses[:steps], np.float32) for losses in (self.single, self.nudged))
        moved = float(np.abs(nudged - single[: len(nudged)]).max()) if len(nudged) else 0.0
        return rounding_bound(plan, single, steps) + 2 * moved

    def loss_arrays(self, since: int = 0) -> dict[str, np.ndarray]:
        """Losses from step `since` on, as float32: "parallel" and "single"."""
        n = min(len(self.parallel), len(self.single))
        return {name: np.asarray(getattr(self, name)[since:n], np.float32) for name in ("parallel", "single")}


def _follower(singles: list[tuple[list[float], Session]], batches: list) -> Callable[[int], None]:
    """A function that brings the one-device runs to a given step; reports' and helper thread may both call it."""
    turn = threading.Lock()

    def follow(steps: int) -> None:
        with turn:
            # the nudged run first: what is shown of the other one has its bound
            for losses, session in reversed(singles):
                missing = steps - len(losses)
                if missing > 0:
                    losses.extend(session.train(batches, missing))

    return follow
