"""A lab that trains a network on worker processes, and on one device, while one looks at it: run, pause, resume, stop.

    class StrategyLab(WritesCode, TrainingLab):
        def _prepared(self): return plan, one_device_plan, net, optimizer, batches

How a training goes is in training.py; here are its commands, what is kept of it, and what a snapshot says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...base.checks import integer
from ...base.events import Event
from ...graph.plan import Plan
from ..pictures.charts import Chart, loss_chart
from ..shared.earlier import CURVE
from ..shared.lab import setting
from ..shared.records import Plain, taken
from ..shared.running import RunsOneThing, possible
from .training import PACES, Training

SPEEDS = {name: f"{pace:g} steps/s" if pace < math.inf else "full" for name, pace in PACES.items()}
MOST_STEPS = 100_000


class ShowsTraining(RunsOneThing):
    """A lab whose run is a `Training`: its curves are shown while it goes on, and it can be ended between two steps."""

    _run: Training

    def stop(self) -> None:
        """End the run after its present step."""
        with self._lock:
            if not self._run.goes_on:
                return
            self._run.ask_to_end()
            self._run.state = "stopping"
        self._changed("run")

    def loss_arrays(self, since: int = 0) -> dict[str, np.ndarray]:
        """Losses from step `since` on, as float32: "parallel" and "single"."""
        return self._run.loss_arrays(since)


class TrainingLab(ShowsTraining):
    """Trains the network that its settings describe; what was measured stays when it is stopped.

    steps   of a run;  speed: "slow", "medium" or "full"
    """

    runs = "run"

    def __init__(self, steps: int, speed: str, **shown: Any) -> None:
        super().__init__(**shown)
        self._steps, self._speed, self._said = steps, self.one_of(speed, PACES, "speed"), ""
        self._run = Training(steps=steps)

    # ---- what a lab says of its training ----

    @property
    def plan(self) -> Plan:
        """The plan that is trained with."""
        raise NotImplementedError

    @property
    def sensitive(self) -> bool:
        """Whether rounding may grow in this training."""
        return False

    def _prepared(self) -> tuple[Any, ...]:
        """(plan, plan for one device, network, optimizer, batches)."""
        raise NotImplementedError

    def _in_words(self) -> dict[str, str]:
        """The settings, by what they are of: those that a run has begun with are the label of its curve."""
        raise NotImplementedError

    # ---- commands ----

    def run(self) -> None:
        """Train from the initial parameters, one worker process per rank. Returns at once; nothing during a run."""
        with self._lock:
            if self._run.goes_on:
                return
            how = {"steps": self._steps, "pace": PACES[self._speed], "settings": self._in_words()}
            training, self._said = Training("starting", **how), ""
            # everything the thread needs is taken here: the lab may be set to another network while it works
            prepared, sensitive = self._prepared(), self.sensitive
            self._keep_curve()

        def work() -> None:
            training.work(*prepared, sensitive=sensitive, lock=self._lock, tell=lambda what: self._tell(training, what))

        self._start("", work, "", training)

    def pause(self) -> None:
        """Halt after the present step."""
        with self._lock:
            if self._run.state != "running":
                return
            self._run.pause()
        self._changed("run")

    def resume(self) -> None:
        """Go on after a pause."""
        with self._lock:
            if self._run.state != "paused":
                return
            self._run.resume()
        self._changed("run")

    @setting(by_itself=True)
    def set_steps(self, steps: int) -> None:
        """Steps of a run, 1 to 100,000; also of the one that goes on, if any."""
        steps = integer(1, MOST_STEPS)("StrategyLab.set_steps", "steps", steps)
        with self._lock:
            self._steps = steps
            if self._run.goes_on or self._run.state == "idle":
                self._run.steps = max(steps, len(self._run.parallel))
                self._run.end_part()
        self._changed("picture")

    def reset(self) -> None:
        """Forget the run and the earlier ones: curves, counts and times."""
        with self._lock:
            self._end_training()
            self._earlier, self._said = [], ""
        self._changed("run")
        self._changed("picture")

    def idle_run(self) -> Training:
        return Training(steps=self._steps)

    def _end_training(self) -> None:
        """Detach the present run, so that its thread changes nothing any more, and ask it to end. Its curve stays."""
        self._keep_curve()
        training, self._run = self._run, self.idle_run()
        if training.goes_on:
            at = len(training.parallel)
            stays = "; its curve stays" if at else ""
            self._said = f"the run before (of {training.label}) was ended after step {at} by this change{stays}"
        training.ask_to_end()

    def _keep_curve(self) -> None:
        """The present run is an earlier one from now on."""
        if self._run.parallel:
            self._keep_earlier(self._run.as_earlier())

    @setting("speed", SPEEDS, by_itself=True)
    def set_speed(self, name: str) -> None:
        """How many steps a second a run takes at most: "slow", "medium" or "full". Acts on a run that goes on, too."""
        with self._lock:
            self._set(**self._offered(speed=name))
            self._run.pace = PACES[name]
            self._run.end_part()
        self._changed("picture")

    # ---- what is shown ----

    @property
    def events(self) -> tuple[Event, ...]:
        """What was measured of the present plan in the last step that was looked at; empty before there was one."""
        return self._run.events_of(self.plan)

    def progress(self) -> dict[str, Any]:
        """The parts of the snapshot that change with every step: "run" and "loss"."""
        with self._lock:
            run, loss = self._run.run_state(self.plan.device_num), self._run.loss(self.plan, self.plan.device_num)
            run["can"]["reset"] |= bool(self._earlier)
            return {"run": run, "loss": loss}

    def charts(self) -> dict[str, Callable[[], Chart]]:
        """ "loss": this run, one device, and earlier runs."""

        def runs() -> Chart:
            loss = self._run.loss(None, self.plan.device_num)
            now = [(loss[f"label_{name}"], loss[name], 1) for name in ("parallel", "single") if loss[name]]
            before = [(run.label, run.losses, -(-run.steps // CURVE)) for run in self._earlier]
            return loss_chart([*now, *before], source=possible("measured")[0])

        return {"loss": runs}

    # ---- in a file ----

    def record(self) -> dict[str, Any] | None:
        """The run, if it has begun, with its last measured step."""
        with self._lock:
            return self._run.record(self.plan) if self._run.parallel else None

    def recorded_plan(self) -> Plan:
        return self.plan

    def take_record(self, record: Any) -> None:
        """Show this run, as a recorded one. Raises ArgumentError unless such a lab has run it."""
        if isinstance(record, Mapping) and set(record) == {"run", "earlier"}:  # as older files have it
            earlier = taken(tuple[tuple[Plain, Plain, Plain], ...], record["earlier"], "earlier")
            self.take_earlier([[settings, [], steps, losses] for settings, steps, losses in earlier])
            record = record["run"]
        if record is not None:
            with self._lock:
                self._run = Training.of_record(record, self.plan)
            self._changed("picture")
