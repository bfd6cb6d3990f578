"""Labs that run something: one thing at a time in a helper thread, while the notebook goes on.

    class FusionLab(ComparesRuns):
        against, steps, result_type = ("with this fusion", "without"), 8, RunResult

A run that has ended with other settings stays as an earlier one (earlier.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from ...base.checks import integer
from ...base.driver import DRIVER
from ...base.errors import ArgumentError, Interrupted, ParallelLabError, shorten
from ...base.progress import Progress, bar_of, follow
from ...base.system import require_processes, without_processes
from ...graph.plan import Plan
from ...ops.kernels.threads import trim_memory
from .earlier import COLUMNS, EarlierRun, earlier_taken, earlier_written, newest
from .lab import Lab, LabRun
from .recording import Recording
from .records import taken, written
from .sections import Section
from .settings import Choice, setting

PAGE_S = 15.0  # that a page waits for a run at most
LISTEN_S = 0.1  # how long wait() may not hear an interrupt
EXECUTORS = {"simulated": "simulator", "measured": "processes"}  # of a Session, by the source of a run


def possible(source: str) -> tuple[str, str]:
    """The source that a run has, and what a lab says of it: what cannot be measured is simulated, and why."""
    why = without_processes() if source == "measured" else ""
    return ("simulated", f"; {why}") if why else (source, "")


def executor_of(source: str) -> str:
    """The executor of a Session."""
    return EXECUTORS[possible(source)[0]]


class Found(dict[str, Any]):
    """Results by source. NoProcesses for measured ones where nothing can be measured."""

    def __missing__(self, source: str) -> Any:
        if source == "measured":
            require_processes("results")
        raise KeyError(source)


class Stopped(Exception):
    """Raised in a run, and never out of it: its result is no longer wanted."""


class RunsOneThing(Lab):
    """Runs one thing at a time in a helper thread, and says how it went.

    earlier_columns   of the table of earlier runs: the settings, and what a run has found
    runs              the command that runs the settings, on worker processes where there are any
    """

    earlier_columns: ClassVar[Mapping[str, str]] = COLUMNS
    runs: ClassVar[str] = "run_measured"

    def __init__(self, **shown: Any) -> None:
        super().__init__(**shown)
        self._run = LabRun()  # the present or last one
        self._earlier: list[EarlierRun] = []

    @property
    def earlier(self) -> list[EarlierRun]:
        """What was run with other settings, the newest last."""
        return list(self._earlier)

    @property
    def recording(self) -> Recording | None:
        """The last run, step by step and rank by rank, as far as it was recorded with the present settings."""
        return self._run.recording

    def shown_recording(self) -> dict[str, Any] | None:
        """The snapshot's "recording", of a run that does not go on, or is paused; None: there is nothing to show."""
        run = self._run
        return None if run.recording is None or (run.goes_on and run.state != "paused") else run.recording.shown

    def recorded_sections(self) -> dict[str, Section]:
        """What the recording says of its steps; {} without one."""
        return {"recorded": self.recording.section()} if self.shown_recording() else {}

    def earlier_record(self) -> list[Any]:
        return earlier_written(self._earlier)

    def take_earlier(self, record: Any) -> None:
        self._earlier = earlier_taken(record, self.earlier_columns)
        self._changed("picture")

    def recorded_plan(self) -> Plan | None:
        """What a recording in a file must be of; None: such a lab records nothing."""
        return None

    def kept_recording(self) -> dict[str, Any] | None:
        recording = self.recording
        if recording is None or self.record() is None or not self.shown_recording():
            return None
        with suppress(ArgumentError):  # of a run that could not go on with the settings, or of settings that cannot run
            if plan := self.recorded_plan():
                recording.check_is_of(plan)
                return recording.packed
        return None

    def take_recording(self, packed: Any) -> None:
        if packed is None:
            return
        where, plan = f"{type(self).__name__}.recording", self.recorded_plan()
        if plan is None or self._run.state != "recorded":
            raise ArgumentError("a recording", where=where, allowed="One of a run that is in the file, too")
        recording = Recording.of_packed(packed, where)
        recording.check_is_of(plan, where)
        with self._lock:
            self._run.recording = recording
        self._changed("picture")

    def _keep_earlier(self, *runs: EarlierRun) -> None:
        """These are earlier runs from now on; the oldest ones are forgotten."""
        self._earlier = newest([*self._earlier, *runs])

    def run_shown(self) -> dict[str, Any]:
        return self._run.to_dict()

    def idle_run(self) -> LabRun:
        """As there is before anything has run."""
        return LabRun()

    def branch(self) -> Self:
        other = super().branch()
        if other._run.goes_on:
            other._run = other.idle_run()
        return other

    def trained(self) -> Self:
        """The lab once it has run: a copy that has, or itself where something has run or the settings cannot."""
        if self._run.state != "idle" or self._earlier:
            return self
        other = self.branch()
        other.is_branch = False
        with suppress(ParallelLabError):
            getattr(other, self.runs)()
            if not other.wait(PAGE_S):
                other.stop()  # a training has then taken fewer steps
                other.wait()
        return other if other._run.state == "done" else self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run goes on; whether that is so. Not for widgets, nor for listeners in the run's own thread.
        Ctrl-C ends the waiting (Interrupted), not the run. A bar appears where that takes more than a second.
        """
        return wait_for(lambda: self._run, timeout)

    def stop(self) -> None:
        """Ask the run, if any, to end: a training does after its present step. Returns at once; `wait()` waits."""
        self._run.stop.set()

    def close(self) -> None:
        """Forget the listeners, stop a run that goes on and wait for its end, and let workers go that nobody uses."""
        super().close()
        self.stop()
        self.wait()
        if self._run.thread is not None:
            from ...processes.shm import release_pools  # what has never run needs no processes

            release_pools()

    def _run_is_stopped(self) -> bool:
        """Whether the result of the present run is no longer wanted."""
        return self._run.stop.is_set()

    def _count(self, done: float, total: float) -> None:
        """So much of the present run is done."""
        progress = self._run.progress
        if total != progress.total:
            progress.begin(total, "running")
        progress.step(done - progress.done)

    def _go_on(self) -> None:
        """Raise Stopped if it is not."""
        if self._run_is_stopped():
            raise Stopped

    def _start(
        self, text: str, work: Callable[[], str | None], failed: str = "the run failed", run: LabRun | None = None
    ) -> None:
        """Do `work` in a helper thread; it returns what to say of it, `failed` is said of an error. Nothing happens
        while a run goes on.

        run   one that knows more than a LabRun does
        """
        with self._lock:
            if self._run.goes_on:
                return
            run = self._run = LabRun("running", recording=self._run.recording) if run is None else run
            run.text, run.progress = text, Progress(heard=lambda: self._tell(run, "progress"))
            run.thread = DRIVER.start(partial(self._work, run, work, failed), type(self).__name__)
        self._changed("run")

    def _work(self, run: LabRun, work: Callable[[], str | None], failed: str) -> None:
        end: tuple[str, str, str | None] = ("done", "", None)
        try:
            end = ("done", work() or "", None)
        except Stopped:
            end, run.recording = ("stopped", "stopped; nothing was kept of it", None), None
        except ParallelLabError as error:
            end = ("failed", failed, str(error))
        except BaseException as error:
            # a defect: the views must not say "running" for ever; whatever watches threads gets it too
            end = ("failed", failed, f"{type(error).__name__}: {error}")
            raise
        finally:
            trim_memory()  # of the computation on one device, too
            with self._lock:
                run.state, run.text, run.error = end
            try:
                self._tell(run, "run")
                self._tell(run, "picture")
            finally:
                run.ended.set()

    def _tell(self, run: LabRun, what: str) -> None:
        """What has changed, if the run is still the one that is shown."""
        if run is self._run:
            self._changed(what)


def wait_for(shown: Callable[[], LabRun], timeout: float | None = None) -> bool:
    """Wait until the run that is shown, which may be another one by then, has ended; as `RunsOneThing.wait` says."""
    bar, end = None, None if timeout is None else time.monotonic() + timeout
    try:
        bar = bar_of(Progress("waiting")) if shown().goes_on and timeout != 0 else None
        # Not thread.join: Python up to 3.12 takes a thread for dead once an interrupt fell into a join (bpo-46726). And
        # in short waits: a busy thread may take the interrupt's signal, and then it does not wake a main thread that
        # waits without limit; the notebook's interrupt went unheard.
        while (
            (run := shown()).thread is not None
            and not run.thread.is_here()
            and not run.ended.is_set()
            and (end is None or time.monotonic() < end)
        ):
            DRIVER.wait(run.ended, LISTEN_S if end is None else max(0.0, min(LISTEN_S, end - time.monotonic())))
            if bar is not None:
                follow(bar, run.progress)
        return not shown().goes_on
    except KeyboardInterrupt:
        raise Interrupted("the waiting has ended, the run goes on; stop() ends it") from None
    finally:
        if bar is not None:
            bar.close()


@dataclass(frozen=True)
class RanOnRanks:
    """What a training on ranks has found.

    source          "simulated" or "measured"
    losses, single  of each step, on ranks and on one device
    ulps            how many units in the last place of float32 rounding may make of their difference
    """

    source: str
    losses: tuple[float, ...]
    single: tuple[float, ...]
    ulps: ClassVar[int] = 100

    @property
    def apart(self) -> float:
        """The largest difference of two losses, as a share."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.losses, self.single, strict=True))

    @property
    def bound(self) -> float:
        """What rounding may make of it."""
        return self.ulps * 2.0**-23

    @property
    def verdict(self) -> list[Any]:
        """Whether the losses are those of one device."""
        return ["EQUAL to rounding", True] if self.apart <= self.bound else ["DIFFERENT", False]

    def rows(self, *steps: int) -> list[list[Any]]:
        """Losses of these steps next to one device's, and how far all of them are apart at most."""
        losses = [(step, self.losses[step - 1], self.single[step - 1]) for step in steps]
        rows: list[list[Any]] = [[f"loss of step {n}", f"{a:.7g}", f"{b:.7g} on one device", ""] for n, a, b in losses]
        return [*rows, ["largest difference", f"{self.apart:.1e}", f"at most {self.bound:.1e}", self.verdict]]


class RunsOnRanks(RunsOneThing):
    """Trains with its settings on ranks, and on one device.

    train   (settings, executor, source, go_on) -> a RanOnRanks; go_on raises once nobody wants it any longer
    """

    train: ClassVar[Callable[[Any, str, str, Callable[[], None]], RanOnRanks]]

    def __init__(self, **shown: Any) -> None:
        super().__init__(**shown)
        self._ran: dict[Any, Any] = {}

    @property
    def key(self) -> Any:
        """What a run is about."""
        raise NotImplementedError

    @property
    def ran(self) -> Any:
        """What the last run of these settings has found; None: nothing has run."""
        return self._ran.get(self.key)

    def run_simulated(self) -> None:
        """Train on simulated ranks, and on one device. Returns at once; `wait()` waits."""
        self._run_as("simulated")

    def run_measured(self) -> None:
        """The same on worker processes, one per rank."""
        self._run_as("measured")

    def _run_as(self, source: str) -> None:
        (source, note), key = possible(source), self.key

        def work() -> str:
            self._count(0, 2)
            ran = type(self).train(key, executor_of(source), source, self._half_done)
            with self._lock:
                self._ran[key] = ran
            return f"{source}: {self._done_of(ran)}{note}"

        self._start(f"{source}: {self._in_words()}", work)

    def _half_done(self) -> None:
        """On ranks; one device comes next, if anybody wants the result."""
        self._go_on()
        self._count(1, 2)

    def _in_words(self) -> str:
        """What is run."""
        raise NotImplementedError

    def _done_of(self, ran: Any) -> str:
        """What is said of a run that has ended."""
        raise NotImplementedError


class ComparesRuns(RunsOneThing):
    """Its settings can be run, along with a run without its subject. `_source`: "predicted", or the shown run."""

    against: ClassVar[tuple[str, str]]  # what is compared: "with this fusion", "without"
    steps: ClassVar[int]  # of a run, unless told otherwise
    result_type: ClassVar[type]  # a frozen dataclass with a `source`

    def __init__(self, **shown: Any) -> None:
        super().__init__(**shown)
        self._results: dict[str, Any] = {}
        self._ran_as = ""  # settings of the results, in words
        self._recorded: set[str] = set()  # sources whose results were read from a file
        self._source = "predicted"

    @property
    def results(self) -> dict[str, Any]:
        """What was run with the present settings: "simulated", "measured"."""
        return Found(self._results)

    @property
    def plan(self) -> Plan | None:
        """The compiled plan; None: nothing can run."""
        raise NotImplementedError

    def recorded_plan(self) -> Plan | None:
        return self.plan

    def sources(self) -> Choice:
        """The sources whose numbers can be shown."""
        names = ("predicted", *self._results)
        return Choice("source", self._source, {n: self.said(n) for n in names} if self._recorded else names)

    def said(self, source: str) -> str:
        """A source as it is shown: what was read from a file was not measured here and now."""
        return f"{source} (recorded)" if source in self._recorded else source

    @setting("source", lambda lab: lab.sources().known, look=True)
    def show_source(self, source: str) -> None:
        """The source whose numbers are shown: "predicted", or "simulated" or "measured" once that was run."""

    def run_simulated(self, steps: int | None = None) -> None:
        """Simulate the settings, and the network without what the lab is about. Returns at once; `wait()` waits."""
        self._start_run("simulated", steps)

    def run_measured(self, steps: int | None = None) -> None:
        """The same on worker processes, one per rank."""
        self._start_run("measured", steps)

    def record(self) -> Any:
        """The results by source; None: nothing has run."""
        return {source: written(result) for source, result in self._results.items()} or None

    def take_record(self, record: Any) -> None:
        """Show these results, as recorded ones. Raises ArgumentError for others than such a lab has."""
        if record is None:
            return
        where, results = type(self).__name__, {}
        if not isinstance(record, Mapping) or not record or not set(record) <= EXECUTORS.keys():
            raise ArgumentError("the record", where=where, allowed=f"Results of {' and '.join(EXECUTORS)}")
        with self._lock:
            for source in record:
                results[source] = taken(self.result_type, record[source], source)
                if results[source].source != source:
                    raise ArgumentError(f"a result of {shorten(results[source].source)}", where=source)
                self._check_result(results[source])
            self._results, self._recorded, self._ran_as = results, set(results), self._in_words()
            self._run = LabRun("recorded", f"recorded: {' and '.join(results)} numbers are of an earlier run")
        self._changed("picture")

    def _check_result(self, result: Any) -> None:
        """Raise ArgumentError for a result that cannot be of the present settings."""
        raise NotImplementedError

    def _forget_runs(self) -> None:
        """What was run before is not about the present settings: it is an earlier run from now on."""
        for recorded in (True, False):
            results = {name: result for name, result in self._results.items() if (name in self._recorded) is recorded}
            rows = tuple((name, self._told(result)) for name, result in results.items())
            self._keep_earlier(*([EarlierRun(self._ran_as, rows, recorded=recorded)] if rows else []))
        self._results, self._recorded, self._source = {}, set(), "predicted"
        if not self._run.goes_on:
            self._run = LabRun()

    def _keep_recording(self, recording: Recording | None) -> None:
        """What the present run has recorded."""
        self._run.recording = recording

    def _in_words(self) -> str:
        """The present settings, as an earlier run is called."""
        raise NotImplementedError

    def _told(self, result: Any) -> str:
        """What a run has found, in words."""
        raise NotImplementedError

    def _work_of(self, source: str, steps: int) -> Callable[[], Any]:
        """What runs the present settings, and gives the result."""
        raise NotImplementedError

    def _settings_now(self) -> Any:
        """What a result is about; another one when it comes makes the result worthless."""
        raise NotImplementedError

    def _done(self, source: str, steps: int) -> str:
        """What is said of a run that has ended."""
        raise NotImplementedError

    def _start_run(self, source: str, steps: int | None) -> None:
        steps = self.steps if steps is None else integer(1)(f"{type(self).__name__}.run_{source}", "steps", steps)
        source, note = possible(source)
        with self._lock:
            settings, work, words = self._settings_now(), self._work_of(source, steps), self._in_words()

        def run() -> str:
            result = work()
            with self._lock:
                if settings != self._settings_now():  # the lab shows something else by now
                    self._keep_recording(None)
                    return f"{source}: the settings have changed since"
                self._results[source], self._ran_as = result, words
                self._recorded.discard(source)
            return self._done(source, steps) + note

        this, other = self.against
        self._start(f"{source}: {steps} steps {this} and {steps} {other}{note}", run, f"{source} failed")
