"""The training run of the Strategy Lab: real processes, and one device beside them step by step.

    training = Training(steps=100)
    training.work(plan, one_device_plan, net, optimizer, batches, sensitive=False, tell=print)

It goes on in parts of one or many steps: between two of them it keeps its pace, waits while it is paused, and tells
what was measured. What the lab shows of it, `run_state` and `loss`, are pure functions of what was measured so far.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from ...base.events import Event
from ...graph.plan import Plan
from ...train.session import Run, Session
from ..shared.equality import nudge, rounding_bound
from ..shared.lab import LabRun

PACES = {"slow": 10.0, "medium": 40.0, "full": inf}  # steps a second, at most
CURVE = 200  # points of an earlier run's curve
PART_S = 0.5  # how long a part takes at full speed: so often its last step is shown as measured


@dataclass
class Training(LabRun):
    """A training run.

    steps    that it takes; may change while it runs
    pace     steps a second, at most; may change while it runs
    label    of its curve, once it is an earlier one
    nudged   `single` with moved parameters, if rounding may grow;  since: (seconds, steps) now
    go       cleared while it is paused
    """

    steps: int = 100
    pace: float = inf
    label: str = ""
    parallel: list[float] = field(default_factory=list)
    single: list[float] = field(default_factory=list)
    nudged: list[float] = field(default_factory=list)
    events: tuple[Event, ...] = ()
    session_run: Run | None = None
    seconds_per_step: float | None = None
    step_s: float = 0.0  # of the last part, without what its pace adds
    since: tuple[float, int] = (0.0, 0)
    go: threading.Event = field(default_factory=threading.Event)

    def ask_to_end(self) -> None:
        """End after the present step; also before the first one."""
        self.stop.set()
        self.end_part()
        self.go.set()

    def end_part(self) -> None:
        """End the part under way after its present step; the next one begins with what is set by then."""
        if self.session_run is not None:
            self.session_run.stop()

    def pause(self) -> None:
        """Halt after the present step."""
        self.go.clear()
        self.end_part()
        self.state = "paused"

    def resume(self) -> None:
        """Go on after a pause."""
        self.state, self.since = "running", (time.perf_counter(), len(self.parallel))
        self.go.set()

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
                    self.state, self.since = "running", (time.perf_counter(), 0)
                    self.go.set()
            tell("run")
            shown_s = 0.0
            while (began_s := self._begin_part(session, batches, on_losses, lock)) is not None:
                first = session.step
                losses = self.session_run.result()
                self.parallel[session.step - len(losses) :] = losses
                follow(session.step)
                if losses:
                    self.events, taken_s = tuple(session.events), time.perf_counter() - began_s
                    self.step_s = taken_s / len(losses)
                now_s = time.perf_counter()
                tell("loss")
                if now_s - shown_s >= PART_S and session.step < self.steps:
                    shown_s = now_s
                    tell("picture")
                self.stop.wait(max(0.0, (session.step - first) / self.pace - (now_s - began_s)))

    def _begin_part(
        self, session: Session, batches: list, on_losses: Callable[..., None], lock: threading.RLock
    ) -> float | None:
        """Begin the next part once it may go on: when it began; None at the end of the run."""
        while True:
            self.go.wait()
            with lock:
                left = self.steps - session.step
                if self.stop.is_set() or left <= 0:
                    return None
                if not self.go.is_set():  # paused again meanwhile
                    continue
                count = 1 if self.pace < inf or not self.step_s else max(1, round(PART_S / self.step_s))
                self.session_run = session.start(batches, min(left, count), record=1, on_losses=on_losses)
                return time.perf_counter()

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

    def curve(self) -> dict[str, Any]:
        """An earlier run for the snapshot: label, steps, and its losses, thinned to at most CURVE of them."""
        losses, every = self.parallel, -(-len(self.parallel) // CURVE)
        return {"label": self.label, "steps": len(losses), "losses": losses[::every] if losses else []}

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
