"""The training run of the Strategy Lab: real processes, and one device next to them step by step.

    training = Training(steps=100)
    training.work(plan, one_device_plan, net, optimizer, batches, sensitive=False, tell=print)

It goes on in parts of one or many steps: between two of them it keeps its pace, waits while it is paused, switches to
another plan if it is asked to, and tells what was measured. What the lab shows of it, `run_state` and `loss`, are pure
functions of what was measured so far.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from ...base.checks import integer
from ...base.driver import DRIVER
from ...base.errors import ArgumentError, PlanError
from ...base.events import Event
from ...base.system import without_processes
from ...base.units import bytes_text, plural, time_text
from ...graph.plan import Plan
from ...train.plan_switch import Switched, matched
from ...train.session import Run, Session
from ..shared.earlier import EarlierRun, thinned
from ..shared.equality import nudge, rounding_bound
from ..shared.lab import LabRun
from ..shared.recording import OFTEN, Keeper
from ..shared.records import (
    LONGEST,
    MOST_LOSSES,
    events_taken,
    events_written,
    losses_taken,
    losses_written,
    part_of,
    taken,
)
from ..shared.running import executor_of, possible

PACES = {"slow": 10.0, "medium": 40.0, "full": inf}  # steps a second, at most
CURVES = ("parallel", "single", "nudged")
RECORD = ("label", "steps", "step_s", "switches", "events", *CURVES)  # of a run in a file
BACK = {"fusion": "gradients summed one by one", "optimizer": "optimizer states whole"}
PART_S = 0.5  # how long a part takes at full speed: so often its last step is shown as measured


@dataclass
class Training(LabRun):
    """A training run.

    steps    that it takes; may change while it runs
    pace     steps a second, at most; may change while it runs
    settings   in words, by what they are of; those it has begun with are the label of its curve
    nudged   `single` with moved parameters, if rounding may grow;  since: (seconds, steps) now
    go       cleared while it is paused;  wake: set when there is something to do between two parts
    plan     that it trains with: its events are of this one;  wanted: (plan, what changed) to switch to
    switches   what it has switched to so far, for the snapshot
    recording  the steps with the present plan, as far as they were asked for
    """

    steps: int = 100
    pace: float = inf
    settings: dict[str, str] = field(default_factory=dict)
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
    wake: threading.Event = field(default_factory=threading.Event)
    plan: Plan | None = None
    wanted: tuple[Plan, list[str]] | None = None
    switches: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.label = self.label or ", ".join(self.settings.values())

    def ask_to_end(self) -> None:
        """End after the present step; also before the first one."""
        self.stop.set()
        self.end_part()
        self.wake.set()

    def ask_to_switch(self, plan: Plan, settings: dict[str, str]) -> None:
        """Go on with another plan after the present step, also while it is paused. Raises PlanError for a plan that
        does not train the same; nothing happens then.
        """
        if self.plan is not None:
            matched(self.plan, plan)
        before, self.settings = self.settings, settings
        dropped = [key for key in before if key not in settings and before.get("preset") == settings.get("preset")]
        changes = [value for key, value in settings.items() if before.get(key) != value]
        changes += [BACK.get(key, f"{key} as in the preset") for key in dropped]
        if self.wanted is not None:
            changes = [*self.wanted[1], *changes]
        self.wanted = plan, changes or ["the same settings"]
        self.end_part()
        self.wake.set()

    def events_of(self, plan: Plan) -> tuple[Event, ...]:
        """What was measured of a step with this plan, if that is the one it trains with."""
        return self.events if plan is self.plan else ()

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
        self.wake.set()

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
        """The run on processes, one device next to it step by step, then what was measured.

        sensitive   rounding may grow: train a nudged copy, too
        lock        held where the state changes;  tell: called with "run" or "loss" when it has
        """
        self.plan = plan
        with Session(plan, net, optimizer, executor=executor_of("measured"), check_finite=False) as session:
            singles = [(self.single, Session(one_device, net, optimizer, check_finite=False))]
            if sensitive:
                start = {name: p.asnumpy() for name, p in net.parameters_dict().items()}
                singles.append(
                    (self.nudged, Session(one_device, nudge(one_device, start), optimizer, check_finite=False))
                )
            follow, keeper = _follower(singles, batches), Keeper(session)

            def on_losses(first: int, losses: list[float]) -> None:
                self.parallel[first : first + len(losses)] = losses
                began_s, before = self.since
                if len(self.parallel) > before:
                    self.seconds_per_step = (time.perf_counter() - began_s) / (len(self.parallel) - before)
                follow(len(self.parallel))
                self.progress.total, self.progress.done = self.steps, len(self.parallel)
                tell("loss")

            with lock:
                if not self.stop.is_set():
                    self.state, self.since = "running", (time.perf_counter(), 0)
                    self.go.set()
            tell("run")
            shown_s = 0.0
            while (began_s := self._begin_part(session, keeper, batches, on_losses, lock, tell)) is not None:
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
                DRIVER.rest(self.stop, max(0.0, (session.step - first) / self.pace - (now_s - began_s)))

    def _begin_part(
        self,
        session: Session,
        keeper: Keeper,
        batches: list,
        on_losses: Callable[..., None],
        lock: threading.RLock,
        tell: Callable[[str], None],
    ) -> float | None:
        """Begin the next part once it may go on: when it began; None at the end of the run."""
        while True:
            self.recording = keeper.keep(OFTEN)
            with lock:
                left = self.steps - session.step
                if self.stop.is_set() or left <= 0:
                    break
                wanted, self.wanted = self.wanted, None
                if wanted is None and self.go.is_set():
                    count = 1 if self.pace < inf or not self.step_s else max(1, round(PART_S / self.step_s))
                    self.session_run = session.start(batches, min(left, count), record=1, on_losses=on_losses)
                    return time.perf_counter()
                self.wake.clear()
            self.recording = keeper.keep()
            if wanted is None:
                tell("picture")
                DRIVER.wait(self.wake)
                continue
            before = session.plan
            self._switch(session, *wanted, lock)
            keeper.watch(session.plan is before)
            tell("picture")
        self.recording = keeper.keep()
        return None

    def _switch(self, session: Session, plan: Plan, changes: list[str], lock: threading.RLock) -> None:
        """Go on with another plan. A refusal keeps the old one."""
        change = ", ".join(dict.fromkeys(changes))
        try:
            switched = session.switch(plan)
        except PlanError as error:
            entry = {"step": session.step, "change": change, "text": f"not switched: {error}"}
        else:
            entry = {"step": switched.step, "change": change, "text": _moved(switched), "bytes": switched.moved_bytes}
        with lock:
            self.recording = self.recording if session.plan is self.plan else None
            self.plan, self.events, self.step_s = session.plan, (), 0.0
            self.since = time.perf_counter(), len(self.parallel)
            self.switches = [*self.switches, entry]

    # ---- what is shown ----

    def run_state(self, devices: int) -> dict[str, Any]:
        """The snapshot's "run"."""
        step, state = len(self.parallel), self.state
        left, each = None, time_text(self.seconds_per_step) if self.seconds_per_step else ""
        if self.goes_on and self.seconds_per_step is not None:
            left = (self.steps - step) * self.seconds_per_step
        text = {
            "idle": f"not run yet, {self.steps} steps",
            "starting": f"starting {devices} {'simulated ranks' if without_processes() else 'processes'}",
            "failed": f"failed at step {step}",
            "recorded": f"recorded: step {step}/{self.steps}" + (f", {each} a step" if each else ""),
        }.get(state, f"step {step}/{self.steps}")
        if left is not None and state == "running":
            text += f", {left:.0f} s left" if left >= 1 else ", under 1 s left"
        if state in ("paused", "stopping"):
            text += f", {state}"
        if state not in ("idle", "recorded") and (why := without_processes()):
            text += f"; {why}"
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
        source, alone = ("recorded", "recorded") if self.state == "recorded" else (possible("measured")[0], "computed")
        ranks = plural(devices, "rank") if source == "simulated" else plural(devices, "process", "es")
        return {
            "steps": n,
            "parallel": self.parallel[:n],
            "single": self.single[:n],
            "largest_difference": float(difference.max()) if n else None,
            "at_step": int(difference.argmax()) + 1 if n else None,
            "bound": self._bound(plan, n) if plan is not None and n else None,
            "label_parallel": f"{ranks} ({source})",
            "label_single": f"one device ({alone})",
            "switches": list(self.switches),
        }

    def _bound(self, plan: Plan, steps: int) -> float:
        """How far rounding may part two runs; where it may grow, twice its effect on one device is added."""
        single, nudged = (np.asarray(losses[:steps], np.float32) for losses in (self.single, self.nudged))
        moved = float(np.abs(nudged - single[: len(nudged)]).max()) if len(nudged) else 0.0
        return rounding_bound(plan, single, steps) + 2 * moved

    def as_earlier(self, rows: tuple[tuple[str | None, ...], ...] = ()) -> EarlierRun:
        """What is kept of it once the settings are others: its losses, and rows of what else was found."""
        words = "; ".join([self.label, *(f"after step {one['step']} {one['change']}" for one in self.switches)])
        return EarlierRun(words, rows, len(self.parallel), thinned(self.parallel), self.state == "recorded")

    # ---- in a file ----

    def record(self, plan: Plan) -> dict[str, Any]:
        """Losses, the time of a step, what was changed on the way, and what was measured in the last step, if that was
        one of `plan`; of a run that has begun.
        """
        losses = {name: losses_written(getattr(self, name)) for name in CURVES}
        switches = [[one["step"], one["change"][:LONGEST], one["text"][:LONGEST]] for one in self.switches]
        how = {"label": self.label[:LONGEST], "steps": self.steps, "step_s": self.seconds_per_step}
        events = events_written(found) if (found := self.events_of(plan)) else None
        return {**how, "switches": switches, "events": events, **losses}

    @classmethod
    def of_record(cls, record: Any, plan: Plan) -> Training:
        """The run again, as a recorded one with this plan. Raises ArgumentError."""
        label, steps, step_s, switches, events, *losses = part_of(record, "run", *RECORD)
        training = cls(
            "recorded",
            steps=integer(1, MOST_LOSSES)("record", "steps", steps),
            label=taken(str, label, "run.label"),
            seconds_per_step=taken(float | None, step_s, "run.step_s"),
            plan=plan,
            events=() if events is None else events_taken(events, "run.events", plan.device_num),
            switches=[
                dict(zip(("step", "change", "text"), one, strict=True))
                for one in taken(tuple[tuple[int, str, str], ...], switches, "run.switches")
            ],
        )
        for name, curve in zip(CURVES, losses, strict=True):
            getattr(training, name).extend(losses_taken(curve, f"run.{name}"))
        counts = [len(training.parallel), len(training.single), len(training.nudged)]
        if not counts[0] or max(counts) > steps or counts[2] > counts[1]:
            what = f"losses of {counts[0]}, {counts[1]} and {counts[2]} steps"
            raise ArgumentError(what, where="run", allowed=f"At least 1 and at most {steps}")
        return training

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


def _moved(found: Switched) -> str:
    """What a switch has moved, in words; the numbers are counted."""
    before, after = found.devices
    several = "message" if found.messages == 1 else "messages"
    moved = f"{bytes_text(found.moved_bytes)} in {found.messages} {several}"
    if not found.same_workers:
        return f"parameters and optimizer states went from {before} to {after} ranks through this notebook: {moved}"
    if not found.messages:
        return "every rank had its parameters and optimizer states already: nothing moved"
    return f"parameters and optimizer states moved between the {after} ranks: {moved}"
