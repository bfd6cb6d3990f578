"""A schedule on ranks: simulated and on worker processes, with the same micro-batches on one device next to it.

    run = PipelineRun("running", steps=20)
    run.work(trial, sources=("simulated", "measured"), tell=print)
    run.results["measured"].bubble, run.results["measured"].equality

A rank's lane is read off the events of one step: an action lasts from where its message has come (or from the first
thing that it computes) to the last thing that it computes; it is busy while it computes. The update behind the last
action is not part of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ... import nn
from ...base.errors import ArgumentError
from ...base.events import Event
from ...base.system import without_processes
from ...cost.schedules import Fault, Schedule
from ...graph.plan import Plan
from ...train.session import Session, initial_values
from ..memory.count import Count, measured_ranks, simulated_ranks
from ..shared.equality import Equality, compared, equality_rows, nudge
from ..shared.recording import Keeper, action_names, parts_of
from ..shared.records import losses_taken, losses_written, part_of, require, taken, written
from ..shared.running import EXECUTORS, Stopped
from ..strategy.training import Training
from .drawing import next_missing, still_missing
from .settings import Settings
from .subjects import STRATEGIES, get_subject

MOST_WORKERS = 16  # processes of one run
RECORDED = 5  # steps whose times count


@dataclass(frozen=True)
class Ran:
    """An action that ran on a rank, in seconds since the step began; busy_s: of that, spent computing."""

    name: str
    start_s: float
    end_s: float
    busy_s: float


Lanes = tuple[tuple[Ran, ...], ...]


@dataclass(frozen=True)
class RunResult:
    """One step of a schedule that ran.

    source     "simulated" or "measured"
    lanes      what each rank of the pipeline did (of a stage of several devices its first rank)
    step_s     from the first action's start to the last one's end, in the step that has the median of that
    steps      whose times were compared
    kept_bytes results of forward that backward reads, at the most, counted on each of those ranks
    equality   of a measured run with one device; None for a simulated one
    """

    source: str
    lanes: Lanes
    step_s: float
    steps: int
    kept_bytes: tuple[int, ...] = ()
    equality: Equality | None = None

    @property
    def bubble(self) -> float:
        """The part of the step in which ranks do not compute, on average."""
        busy = sum(ran.busy_s for lane in self.lanes for ran in lane)
        return 1 - busy / (self.step_s * len(self.lanes)) if self.step_s else 0.0

    @property
    def work_s(self) -> float:
        """Time that all ranks compute, together."""
        return sum(ran.busy_s for lane in self.lanes for ran in lane)


@dataclass(frozen=True)
class Trial:
    """What is run: the plan with its network and optimizer, and the same micro-batches on one device.

    exact   every number is to be equal bit for bit: nothing is added up in another order than on one device
    cores   that simulated ranks share; None: each has its own
    """

    plan: Plan
    net: nn.Cell
    optimizer: nn.Optimizer
    alone: tuple[Plan, nn.Cell, nn.Optimizer]
    batches: tuple[tuple[np.ndarray, ...], ...]
    exact: bool
    cores: int | None = None


def prepared(settings: Settings, faults: Sequence[Fault], where: str) -> Trial:
    """What a run of the settings needs. Raises ArgumentError where the schedule cannot run or is not complete."""
    s = settings
    if faults:
        raise ArgumentError(f"this schedule cannot run: {faults[0].text}", where=where)
    if not s.timed.complete:
        missing = still_missing(s.schedule)
        what = f"{missing} action{' is' if missing == 1 else 's are'} still to draw"
        left = [f"rank {rank}: {', '.join(names)}" for rank, names in next_missing(s).items()]
        raise ArgumentError(what, where=where, hint=f"Next of {left[0]}" if left else "")
    if s.devices > MOST_WORKERS:
        what = f"{s.stages} stages x {STRATEGIES[s.strategy]} devices are {s.devices} ranks"
        raise ArgumentError(what, where=where, allowed=f"At most {MOST_WORKERS}")
    job = get_subject(s.net).job(s.schedule.parts, s.micro_batches)
    plan, net, optimizer = job.compile(s.schedule, s.strategy, s.recomputed)
    exact = s.strategy == "one" and not s.two_copies
    return Trial(plan, net, optimizer, job.compile(None), job.batches, exact, s.cores or None)


@dataclass
class PipelineRun(Training):
    """A run of a schedule, and how it goes.

    trial   what is run;  results: by source, as they come
    bound   of a recorded run: how far rounding may have taken its curves apart
    """

    trial: Trial | None = None
    results: dict[str, RunResult] = field(default_factory=dict)
    bound: float | None = None

    def view(self) -> dict[str, Any]:
        """The snapshot's "run"."""
        text = self.text if self.goes_on or self.state in ("failed", "stopped") else without_processes()
        text = "recorded: times, losses and bytes are of an earlier run" if self.state == "recorded" else text
        told = self.to_dict()
        text = told["text"] if self.goes_on else text
        return {**told, "text": text, "can": {"run": not self.goes_on, "stop": self.goes_on}}

    def goes_on_from(self, other: PipelineRun) -> None:
        """Keep what ran before with the same settings: a simulation says nothing about the workers' losses."""
        self.trial, self.steps, self.results = other.trial, other.steps, dict(other.results)
        self.parallel, self.single, self.nudged = other.parallel, other.single, other.nudged

    def loss_of(self, devices: int) -> dict[str, Any]:
        """The snapshot's "loss": curves, largest difference and how far rounding may take them apart."""
        if self.trial is None:
            loss = self.loss(None, devices)
            return {**loss, "bound": self.bound if loss["steps"] else None}
        loss = self.loss(self.trial.alone[0], devices)
        return {**loss, "bound": 0.0} if self.trial.exact and loss["steps"] else loss

    def record(self) -> dict[str, Any] | None:
        """Results, and the losses of a measured run, as plain data; None: nothing has run to its end."""
        if not self.results:
            return None
        losses = {name: losses_written(getattr(self, name)) for name in ("parallel", "single")}
        return {"results": written(tuple(self.results.values())), **losses, "bound": self.loss_of(1)["bound"]}

    @classmethod
    def of_record(cls, record: Any, schedule: Schedule) -> PipelineRun:
        """The run again, as a recorded one of this schedule. Raises ArgumentError."""
        results, parallel, single, bound = part_of(record, "PipelineLab", "results", "parallel", "single", "bound")
        run = cls("recorded", bound=taken(float | None, bound, "bound"))
        for one in taken(tuple[RunResult, ...], results, "results"):
            check_result(one, schedule)
            run.results[one.source] = one
        run.parallel, run.single = losses_taken(parallel, "parallel"), losses_taken(single, "single")
        steps, sources = {len(run.parallel), len(run.single)}, list(run.results)
        known = (["simulated"], ["simulated", "measured"])
        if len(sources) != len(results) or sources not in known or (steps != {0}) != ("measured" in sources):
            raise ArgumentError(f"results of {sources}, losses of {steps} steps", where="PipelineLab")
        if len(steps) > 1:
            raise ArgumentError(f"losses of {steps} steps", where="PipelineLab", allowed="Both curves alike long")
        run.steps = max(1, *steps)
        return run

    def loss_arrays(self, since: int = 0) -> dict[str, np.ndarray]:
        """Losses from step `since` on, as float32: one device is ahead, its curve is there before the ranks'."""
        return {name: np.asarray(getattr(self, name)[since:], np.float32) for name in ("parallel", "single")}

    def steps_of(self, trial: Trial, sources: tuple[str, ...], tell: Callable[[str], None]) -> None:
        """Simulate, train on one device and on processes, whichever is asked for. Raises Stopped if told so."""
        self.trial = trial
        for source in sources:
            self.text = {"simulated": "simulating", "measured": "training on one device"}[source]
            tell("run")
            self.results[source] = self._simulated(trial) if source == "simulated" else self._measured(trial, tell)
            tell("picture")

    def _simulated(self, trial: Trial) -> RunResult:
        with Session(trial.plan, trial.net, trial.optimizer, cores=trial.cores, check_finite=False) as session:
            keeper = Keeper(session)
            keeper.train(trial.batches, 1 + RECORDED, record=RECORDED, stopped=self.stop.is_set)
            self._go_on()
            result, self.recording = result_of("simulated", trial.plan, keeper.events), keeper.recording
        return replace(result, kept_bytes=self._kept(trial, simulated_ranks))

    def _measured(self, trial: Trial, tell: Callable[[str], None]) -> RunResult:
        steps, batches = self.steps, trial.batches
        plan, net, optimizer = trial.alone
        start = {name: p.asnumpy() for name, p in net.parameters_dict().items()}
        runs: list[tuple[Any, list[float]]] = [(net, self.single)]
        if not trial.exact:
            runs.append((nudge(plan, start), self.nudged))
        alone = []
        self.progress.begin(steps * (len(runs) + 1))
        for parameters, losses in runs:
            with Session(plan, parameters, optimizer, check_finite=False) as session:
                losses += session.train(batches, 1, stopped=self.stop.is_set)
                gradients = session.gradients()
                while len(losses) < steps:
                    self._go_on()
                    losses += session.train(batches, 1, stopped=self.stop.is_set)
                    self.progress.step()
                    tell("loss")
                alone.append((losses, gradients, session.parameters()))
        with Session(
            trial.plan, trial.net, trial.optimizer, executor=EXECUTORS["measured"], check_finite=False
        ) as session:
            self.text = f"training on {trial.plan.device_num} worker processes"
            tell("run")
            keeper = Keeper(session)
            self.parallel += session.train(batches, 1, stopped=self.stop.is_set)
            self._go_on()
            gradients = session.gradients()

            def on_losses(first: int, losses: list[float]) -> None:
                self.parallel[first : first + len(losses)] = losses
                self.progress.step(steps * len(runs) + len(self.parallel) - self.progress.done)
                tell("loss")

            for count in parts_of(steps - 1):
                self.session_run = session.start(batches, count, record=RECORDED, on_losses=on_losses)
                if self.stop.is_set():
                    self.session_run.stop()
                losses = self.session_run.result()
                self.parallel[session.step - len(losses) :] = losses
                self._go_on()
                self.recording = keeper.keep()
            got = (self.parallel, gradients, session.parameters())
            result = result_of("measured", trial.plan, session.events)
        rows = equality_rows(plan, *(compared(plan, *one) for one in (got, *alone)))
        title = f"{trial.plan.device_num} worker processes against one device"
        return replace(result, kept_bytes=self._kept(trial, measured_ranks), equality=Equality(title, rows))

    def _kept(self, trial: Trial, count: Callable[..., tuple[Count, ...]]) -> tuple[int, ...]:
        """What the first rank of each stage keeps of forward, counted over a step of its own."""
        self._go_on()
        values = initial_values(trial.plan, trial.net, trial.optimizer)
        counts = count(trial.plan, values, trial.batches[0])
        return tuple(counts[stage.first].most("activations") for stage in trial.plan.stages)

    def _go_on(self) -> None:
        if self.stop.is_set():
            raise Stopped


def check_result(result: RunResult, schedule: Schedule) -> None:
    """Raise ArgumentError where a recorded result is not about the schedule."""
    ranks, steps = len(schedule), [str(action) for lane in schedule.ranks for action in lane]
    ran = [one for lane in result.lanes for one in lane]
    equality = result.equality
    require(
        result.source,
        (len(result.lanes) == len(result.kept_bytes) == ranks, "lanes", f"One for each of {ranks} ranks"),
        (sorted(one.name for one in ran) == sorted(steps), "actions", "Those of the schedule"),
        (all(one.start_s <= one.end_s <= 1e9 for one in ran), "times", "No end before its start"),
        (result.steps and result.step_s and result.work_s, "a step", "One that takes time"),
        ((equality is None) == (result.source == "simulated"), "a comparison", "That of the measured run"),
        (equality is None or equality.rows, "a comparison", "One of at least one tensor"),
    )


def result_of(source: str, plan: Plan, events: Iterable[Event]) -> RunResult:
    """The step that took the median time of those that were recorded."""
    steps: dict[int, list[Event]] = {}
    for event in events:
        steps.setdefault(event.step, []).append(event)
    candidates = [lanes_of(plan, mine) for mine in steps.values()]
    usual = statistics.median_low(map(length_of, candidates))
    lanes = next(one for one in candidates if length_of(one) == usual)
    return RunResult(source, lanes, usual, len(candidates))


def length_of(lanes: Lanes) -> float:
    """From the first start to the last end, in seconds."""
    return max((lane[-1].end_s for lane in lanes if lane), default=0.0)


def lanes_of(plan: Plan, events: Iterable[Event]) -> Lanes:
    """What the first rank of each stage did in the step that the events are of."""
    action_of, firsts = action_names(plan), {stage.first for stage in plan.stages}
    times: dict[tuple[int, str], list[tuple[float, float]]] = {}
    busy: dict[tuple[int, str], float] = {}
    came: dict[tuple[int, str], list[float]] = {}
    for e in events:
        action = action_of(e) if e.rank in firsts else ""
        if not action:
            continue
        key = (e.rank, action)
        if e.kind == "compute":
            times.setdefault(key, []).append((e.start_s, e.end_s))
            busy[key] = busy.get(key, 0.0) + e.work_s
        elif e.kind == "wait" and e.op == "recv":
            came.setdefault(key, []).append(e.end_s)
    began_s = min((start for spans in times.values() for start, _ in spans), default=0.0)
    lanes = []
    for stage in plan.stages:
        lane = []
        for action in stage.actions:
            key = stage.first, str(action)
            spans = times.get(key)
            if spans:
                end_s = max(e for _, e in spans)
                messages = [c for c in came.get(key, ()) if c < end_s]
                start_s = max([min(s for s, _ in spans), *messages])
                lane.append(Ran(str(action), start_s - began_s, end_s - began_s, busy[key]))
        lanes.append(tuple(sorted(lane, key=lambda ran: ran.start_s)))
    return tuple(lanes)
