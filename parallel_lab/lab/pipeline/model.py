"""`PipelineLab`: the headless model behind the Pipeline Lab widget.

    lab = PipelineLab(stages=4, micro_batches=8, schedule="1f1b")
    lab.bubble                                   0.2727...: predicted, by the schedule's clock
    lab.set_cap(4); lab.clear()
    lab.put(0, "0F0"); lab.put_next(0, "F")      drawn by hand; refused with the schedule check's reason
    lab.why(3, 0)                                "Rank 3 waits 3, from 0 to 3, before 3F0, for 2F0 of rank 2 ..."
    lab.run_measured(); lab.wait()               that very schedule on worker processes
    lab.results["measured"].equality

State, commands, `snapshot()`; every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing. Lanes are the ranks of the pipeline (with a strategy inside a stage:
groups of ranks); a position in a lane counts its cells, an action each or several that run as one. Times are ticks of
the schedule's clock until something has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ...base.checks import integer, is_int
from ...base.errors import ArgumentError, shorten
from ...base.system import cores, without_processes
from ...cost.schedules import Fault, Schedule, schedule_names
from ...cost.schedules.auto import Work, auto_schedule
from ...cost.schedules.naming import find
from ...cost.schedules.order import loop, shape_v
from ...graph.plan import Plan
from ..code.lab_code import WritesCode
from ..code.pasted import read_code
from ..shared.lab import Choice, RunsOneThing
from . import drawing
from .code_out import codes_of
from .run import Given, PipelineRun, RunResult
from .sections import EARLIER_RUNS, found_rows, pipeline_sections, runs_view, schedule_view
from .settings import DRAWN, Settings
from .subjects import STRATEGIES, STRATEGY_LABELS, SUBJECTS, Job, get_subject
from .waits import why_waiting

STAGES = (2, 3, 4, 6, 8)
MICRO_BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
CHUNKS = (1, 2, 3, 4)
MOST_WORKERS = 16  # processes of one run
LARGEST_TEXT = 100_000  # characters of a schedule
HISTORY = 200  # settings that can be gone back to


class PipelineLab(RunsOneThing, WritesCode):
    """A pipeline's schedule: chosen or drawn, timed, checked, and run.

    net            one of SUBJECTS: "stack", "gpt"
    stages         ranks of the pipeline: 2, 3, 4, 6 or 8
    micro_batches  pieces of a batch: 1 to 32
    schedule       a name, see `parallel_lab.cost.schedules.schedule_names()`
    chunks         parts on each rank, for schedules that take any number
    times          of F, B and W of a whole stage;  latency: of a message;  cap: micro-batches x parts a rank can keep
    strategy       inside a stage: "one" device, or 2: "batch", "inner"

    Listeners (`on_change`) are told "picture", "run" or, at every step of a training, "loss".
    """

    scripts = ("pipeline/lanes.js", "pipeline/pipeline_lab.js")
    styles = ("pipeline/pipeline_lab.css",)
    commands = (
        *("set_net", "set_stages", "set_micro_batches", "set_schedule", "set_chunks", "set_strategy", "set_cores"),
        *(
            "set_typed",
            "toggle_recompute",
            "set_rank",
            "put",
            "put_next",
            "move",
            "move_onto",
            "remove",
            "clear_rank",
            "clear",
            "undo",
            "redo",
        ),
        *("load", "set_code", "search", "run_simulated", "run_measured", "stop"),
    )
    looks: ClassVar[dict[str, str]] = {"set_rank": "rank"}
    paste_example = "net = nn.PipelineCell(net, micro_size=8)"
    earlier_columns: ClassVar[dict[str, str]] = EARLIER_RUNS
    replayed = ("schedule", "stages", "micro_batches", "chunks")
    also_kept = ("set_typed", "toggle_recompute", "load")
    often = ("run", "loss")
    frame_height_px = 860
    steps = 20

    def __init__(
        self,
        net: str = "stack",
        stages: int = 4,
        micro_batches: int = 8,
        schedule: str = "1f1b",
        chunks: int | None = None,
        *,
        times: Sequence[float] = (1, 1, 1),
        latency: float = 0.0,
        cap: int | None = None,
        strategy: str = "one",
    ) -> None:
        super().__init__()
        self._settings = Settings()
        self._past: list[Settings] = []
        self._future: list[Settings] = []
        self._rank = 0
        self._job: tuple[Any, Job] | None = None
        self._run: PipelineRun = PipelineRun(steps=self.steps)
        self._said = ""  # of a run that a change has ended
        known = self.one_of(schedule, schedule_names(), "schedule")
        begin = Settings(
            get_subject(net).name,
            self.one_of(stages, STAGES, "stages"),
            self.one_of(micro_batches, MICRO_BATCHES, "micro_batches"),
            strategy=self.one_of(strategy, STRATEGIES, "strategy"),
        ).with_name(known, None if chunks is None else self.one_of(chunks, CHUNKS, "chunks"))
        begin = replace(begin, times=_times(times), latency=_time(latency, "latency"), cap=_cap(cap))
        self._settings = _checked(begin)

    # ---- what is chosen ----

    def choices(self) -> dict[str, Choice]:
        """What can be chosen now."""
        s = self._settings
        names = [*schedule_names(), *([s.name] if s.name not in schedule_names() else [])]
        fixed = find(s.named).chunks
        parts = (fixed,) if fixed else CHUNKS
        return {
            "net": Choice("network", s.net, SUBJECTS),
            "stages": Choice("stages", s.stages, STAGES),
            "micro_batches": Choice("micro-batches", s.micro_batches, MICRO_BATCHES),
            "schedule": Choice("schedule", s.name, dict.fromkeys(names)),
            "chunks": Choice("parts on a rank", s.chunks, parts if s.chunks in parts else (*parts, s.chunks)),
            "strategy": Choice("inside a stage", s.strategy, STRATEGY_LABELS),
            "cores": Choice("cores of simulated ranks", s.cores, {0: "own", cores(): f"{cores()} shared"}),
            "rank": Choice("rank", self._rank, range(s.stages)),
        }

    def calls(self) -> list[list[Any]]:
        """Those of the choices, what is typed, and the schedule that was drawn."""
        with self._lock:
            s, known = self._settings, {call[0]: call for call in super().calls()}
            known["set_schedule"] = ["set_schedule", s.named]
            typed = [["set_typed", name, text] for name, text in self._typed().items()]
            again = [["toggle_recompute", rank] for rank in s.recompute]
            drawn = [] if s.drawn is None else [["load", s.drawn.text()]]
            return [*known.values(), *typed, *again, *drawn]

    def set_net(self, net: str) -> None:
        """Another network."""
        self._to(replace(self._settings, **self._offered(net=net)))

    def set_stages(self, stages: int) -> None:
        """Another number of ranks, with the named schedule. Raises ArgumentError where it is not defined for them."""
        now = replace(self._settings, drawn=None, **self._offered(stages=stages))
        self._to(replace(now, recompute=tuple(r for r in now.recompute if r < stages)))

    def set_micro_batches(self, micro_batches: int) -> None:
        """Another number of pieces of a batch, with the named schedule."""
        self._to(replace(self._settings, drawn=None, **self._offered(micro_batches=micro_batches)))

    def set_schedule(self, schedule: str) -> None:
        """A schedule by name, for the present stages and micro-batches; what was drawn is left (`undo` brings it)."""
        if schedule == DRAWN and self._settings.drawn is not None:
            return
        self._to(self._settings.with_name(self.one_of(schedule, schedule_names(), "schedule")))

    def set_chunks(self, chunks: int) -> None:
        """Parts on each rank, for the named schedule."""
        given = self._offered(chunks=chunks)["chunks"]
        self._to(self._settings.with_name(self._settings.named, given))

    def set_code(self, text: str) -> None:
        """Stages, micro-batches and schedule from lines of MindSpore: AutoParallel's `pipeline(stages=...)`,
        `set_auto_parallel_context(pipeline_stages=...)`, `nn.PipelineCell(net, micro_size=...)`; read, not executed.
        Raises ArgumentError and changes nothing.
        """
        found, s = read_code(text), self._settings
        config = found.value("pipeline_config") or {}
        stages = found.first("stages", "pipeline_stages")
        micro_batches = found.value("PipelineCell")
        name = config.get("pipeline_scheduler", found.value("scheduler"))
        interleave = config.get("pipeline_interleave", found.value("interleave", False))
        if stages is None and micro_batches is None and name is None:
            raise found.nothing_for("pipeline")
        name = "interleaved" if interleave and name in (None, "1f1b") else name or s.named
        now = replace(
            s,
            stages=s.stages if stages is None else self.one_of(stages, STAGES, "stages"),
            micro_batches=s.micro_batches
            if micro_batches is None
            else self.one_of(micro_batches, MICRO_BATCHES, "micro_size"),
            drawn=None,
        )
        now = replace(now, recompute=tuple(r for r in now.recompute if r < now.stages))
        self._to(now.with_name(self.one_of(name, schedule_names(), "scheduler")))

    def set_strategy(self, strategy: str) -> None:
        """How the products of a stage are split: "one" device, or 2 that split "batch" or "inner" dim."""
        self._to(replace(self._settings, **self._offered(strategy=strategy)))

    def set_cores(self, cores: int) -> None:
        """Whether simulated ranks share this machine's cores, as worker processes do, or have one each (0)."""
        self._to(replace(self._settings, **self._offered(cores=cores)))

    def set_times(self, forward: float, backward: float, weights: float) -> None:
        """Times of F, B and W of a whole stage; a backward that is not divided takes B + W."""
        self._to(replace(self._settings, times=_times((forward, backward, weights))))

    def set_latency(self, latency: float) -> None:
        """Time from the end of an action to when its message is there."""
        self._to(replace(self._settings, latency=_time(latency, "latency")))

    def set_cap(self, cap: int | None = None) -> None:
        """Micro-batches x parts whose activations a rank can keep; None: any number. What does not fit is marked."""
        self._to(replace(self._settings, cap=_cap(cap)))

    def set_typed(self, field: str, text: str) -> None:
        """Times, latency or cap from what was typed: "1:1:1", "0.5", "4" ("" and "none": no cap)."""
        where = "PipelineLab"
        words = text.replace(":", " ").replace(",", " ").split()[:9] if len(text) < 100 else ["?"]
        count = {"times": 3, "latency": 1, "cap": 1}[self.one_of(field, ("times", "latency", "cap"), "field")]
        if field == "cap" and words in ([], ["none"], ["-"], ["–"]):
            self.set_cap()
            return
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = []
        if len(numbers) != count:
            examples = {"times": "Three numbers, for F, B and W: 1:1:1", "latency": "A number", "cap": "A whole number"}
            raise ArgumentError(f"{field} {shorten(text)}", where=where, allowed=examples[field])
        if field == "cap":
            cap = int(numbers[0]) if numbers[0].is_integer() else numbers[0]
            self._to(replace(self._settings, cap=_cap(cap)))
        elif field == "times":
            self.set_times(*numbers)
        else:
            self.set_latency(numbers[0])

    def set_recompute(self, ranks: Sequence[int]) -> None:
        """The ranks whose layers run forward again in backward, in place of keeping their results."""
        for rank in ranks:
            self._known_rank(rank, "set_recompute")
        self._to(replace(self._settings, recompute=tuple(sorted(set(ranks)))))

    def toggle_recompute(self, rank: int) -> None:
        """One rank more or less of them."""
        self._known_rank(rank, "toggle_recompute")
        self.set_recompute(tuple({*self._settings.recompute} ^ {rank}))

    def set_rank(self, rank: int) -> None:
        """The rank whose actions are listed."""
        self._look(rank=rank)

    # ---- drawing ----

    def put(self, rank: int, action: str, position: int = -1) -> None:
        """An action more ("0F4") in a rank's lane, before the cell at `position` (-1: at the end).

        Raises ArgumentError with the schedule check's reason where that makes a fault that was not there.
        """
        self._draw(drawing.put(self._settings, rank, action, position))

    def put_next(self, rank: int, kind: str, position: int = -1) -> None:
        """The next "F", "B" or "W" that the rank has left to do; of several parts the first that may run there."""
        self._draw(drawing.put_next(self._settings, rank, kind, position))

    def move(self, rank: int, position: int, to: int) -> None:
        """A cell to another place of its lane: `to` is its position afterwards. Raises as `put` does."""
        self._draw(drawing.moved(self._settings, rank, position, rank, to))

    def move_onto(self, rank: int, position: int, onto: int, to: int) -> None:
        """A cell to the lane of rank `onto`. Raises as `put` does: unless that rank holds the action's part too."""
        self._draw(drawing.moved(self._settings, rank, position, onto, to))

    def remove(self, rank: int, position: int) -> None:
        """A cell less; it is to do again."""
        self._draw(drawing.removed(self._settings, rank, position))

    def clear_rank(self, rank: int) -> None:
        """A lane without actions, to build it."""
        self._draw(drawing.cleared(self._settings, [rank]))

    def clear(self) -> None:
        """All lanes without actions."""
        self._draw(drawing.cleared(self._settings, range(self._settings.stages)))

    def load(self, text: str) -> None:
        """A schedule from its text, a line per rank ("0F0 0B0"), or from PyTorch's CSV (with commas). What cannot run
        is marked and not refused. Raises ArgumentError where it cannot be read or does not fit the stages.
        """
        where = "PipelineLab.load"
        if not isinstance(text, str) or len(text) > LARGEST_TEXT:
            what = f"a text of {len(text)} characters" if isinstance(text, str) else f"text {shorten(text)}"
            raise ArgumentError(what, where=where, allowed=f"A text of at most {LARGEST_TEXT} characters")
        s = self._settings
        read = Schedule.from_csv if "," in text else Schedule.from_text
        found = drawing.checked_text(s, read(text), where)
        same = all(set(mine) <= set(known) for mine, known in zip(found.holds, s.schedule.holds, strict=True))
        parts = s.schedule.parts if same else max(found.parts, s.stages)
        what = {"parts": parts, "micro_batches": s.micro_batches}
        if same:
            what["holds"] = s.schedule.holds
        self._draw(read(text, name=DRAWN, **what))

    def search(self) -> None:
        """A good schedule for the present times and cap, found fast; divided backwards where W takes time.

        Raises ArgumentError where nothing was found that fits the cap.
        """
        s = self._settings
        chunks, place = _place(s.schedule, s.stages)
        shares = [t / chunks for t in s.times]
        cap = s.cap if s.cap is not None else s.micro_batches * chunks
        work = Work.on(
            s.stages, s.micro_batches, cap, chunks=chunks, place=place, times=tuple(shares), latency=s.latency
        )
        found = auto_schedule(work)
        self._draw(drawing.with_cells(s.schedule, drawing.cells_of(found)))

    def undo(self) -> None:
        """Back to the settings before the last change, drawn schedules among them; nothing where there are none."""
        self._go(self._past, self._future)

    def redo(self) -> None:
        """What was undone."""
        self._go(self._future, self._past)

    # ---- what there is ----

    @property
    def settings(self) -> Settings:
        """Everything that is set."""
        return self._settings

    @property
    def schedule(self) -> Schedule:
        """The schedule that is shown."""
        return self._settings.schedule

    @property
    def complete(self) -> bool:
        """Whether every action is drawn, and can run."""
        return self._settings.timed.complete

    @property
    def faults(self) -> list[Fault]:
        """What is wrong with the schedule under the cap, apart from actions that are still to draw."""
        return drawing.faults_of(self._settings, self.schedule)

    @property
    def makespan(self) -> float:
        """Predicted: from the first start to the last end, in the unit of `times`; of what can run."""
        return self._settings.timed.timing.makespan

    @property
    def bubble(self) -> float:
        """Predicted: the part of the step in which ranks do nothing, on average."""
        return self._settings.bubble

    @property
    def peaks(self) -> tuple[float, ...]:
        """Predicted: the most micro-batches x parts that each rank keeps."""
        return self._settings.peaks

    @property
    def results(self) -> dict[str, RunResult]:
        """What was run with the present settings: "simulated", "measured"."""
        return dict(self._run.results)

    def left_to_do(self, rank: int) -> list[str]:
        """The next action of every kind that is still to draw in a rank's lane."""
        self._known_rank(rank, "left_to_do")
        return [f"{part}{kind}{number}" for part, kind, number in drawing.left_to_do(self.schedule, rank)]

    def why(self, rank: int, position: int) -> str:
        """Why a rank waits before the cell at `position` (the number of its cells: after the last): the chain of what
        it waits for. "" where it does not.
        """
        self._known_rank(rank, "why")
        found = why_waiting(self._settings, rank, position)
        return "" if found is None else found.text

    def compiled(self) -> Plan:
        """The plan that runs the schedule. Raises ArgumentError where it cannot run, or is not complete."""
        return self._given("PipelineLab.compiled").plan

    # ---- running ----

    def run_simulated(self, steps: int | None = None) -> None:
        """Simulate the schedule: the ranks' numpy work as timed here, on cores of their own. Returns at once."""
        self._start_run(("simulated",), "run_simulated", steps)

    def run_measured(self, steps: int | None = None) -> None:
        """Simulate the schedule, then train with it on worker processes, and on one device. Returns at once."""
        self._start_run(("simulated", "measured"), "run_measured", steps)

    def stop(self) -> None:
        """End a run after its present step; nothing of it is kept."""
        with self._lock:
            run = self._run
            if run.goes_on:
                run.ask_to_end()
                run.state = "stopping"
        self._changed("run")

    def _start_run(self, sources: tuple[str, ...], command: str, steps: int | None) -> None:
        where = f"PipelineLab.{command}"
        steps = self.steps if steps is None else integer(2)(where, "steps", steps)
        sources = ("simulated",) if without_processes() else sources
        with self._lock:
            if self._run.goes_on:
                return
            given, before = self._given(where), self._run
            run = PipelineRun("running", steps=steps, label=self._settings.label)
            if "measured" not in sources and before.state != "recorded":
                run.goes_on_from(before)
            elif before.parallel:
                self._keep_run()
            self._said = ""

        def work() -> str:
            run.steps_of(given, sources, lambda what: self._tell(run, what))
            return ""

        self._start(f"{sources[0]}: compiled", work, "the run failed", run)

    def _given(self, where: str) -> Given:
        s = self._settings
        if faults := self.faults:
            raise ArgumentError(f"this schedule cannot run: {faults[0].text}", where=where)
        if not self.complete:
            missing = drawing.still_missing(s.schedule)
            what = f"{missing} action{' is' if missing == 1 else 's are'} still to draw"
            left = [f"rank {rank}: {', '.join(names)}" for rank, names in drawing.next_missing(s.schedule).items()]
            raise ArgumentError(what, where=where, hint=f"Next of {left[0]}" if left else "")
        if s.devices > MOST_WORKERS:
            what = f"{s.stages} stages x {STRATEGIES[s.strategy]} devices are {s.devices} ranks"
            raise ArgumentError(what, where=where, allowed=f"At most {MOST_WORKERS}")
        job = get_subject(s.net).job(s.schedule.parts, s.micro_batches)
        plan, net, optimizer = job.compile(s.schedule, s.strategy, s.recomputed)
        exact = s.strategy == "one" and not s.two_copies
        return Given(plan, net, optimizer, job.compile(None), job.batches, exact, s.cores or None)

    # ---- forms ----

    def snapshot(self) -> dict[str, Any]:
        """Everything the views show, as plain data."""
        with self._lock:
            s, run = self._settings, self._run
            return {
                "version": 1,
                "title": "Pipeline Lab",
                **self.chosen(),
                "notes": [f"{SUBJECTS[s.net].label}: {SUBJECTS[s.net].note}."],
                "typed": self._typed(),
                "recompute": list(s.recompute),
                "can_undo": bool(self._past),
                "can_redo": bool(self._future),
                "ran": runs_view(s, run.results),
                "earlier": [one.curve() for one in self._earlier if one.losses],
                "said": self._said,
                **schedule_view(s),
                "sections": {
                    **pipeline_sections(s, run.results, self._earlier, run.state == "recorded"),
                    **self.code_sections(),
                },
                **self.progress(),
            }

    def _typed(self) -> dict[str, str]:
        s = self._settings
        times, cap = ":".join(f"{t:g}" for t in s.times), "none" if s.cap is None else str(s.cap)
        return {"times": times, "latency": f"{s.latency:g}", "cap": cap}

    def record(self) -> Any:
        return self._run.record()

    def take_record(self, record: Any) -> None:
        """Show what was run with this schedule, as a recorded run. Raises ArgumentError for what is none."""
        if record is not None:
            with self._lock:
                self._run = PipelineRun.of_record(record, self._settings.schedule)
            self._changed("picture")

    def idle_run(self) -> PipelineRun:
        return PipelineRun(steps=self.steps)

    def progress(self) -> dict[str, Any]:
        """The parts of the snapshot that change with every step: "run" and "loss"."""
        with self._lock:
            run, devices = self._run, self._settings.devices
            text = run.text if run.goes_on or run.state in ("failed", "stopped") else without_processes()
            text = "recorded: times, losses and bytes are of an earlier run" if run.state == "recorded" else text
            can = {"run": not run.goes_on, "stop": run.goes_on}
            return {"run": {**run.to_dict(), "text": text, "can": can}, "loss": run.loss_of(devices)}

    def loss_arrays(self, since: int = 0) -> dict[str, np.ndarray]:
        """Losses from step `since` on, as float32: "parallel" and "single"."""
        return self._run.loss_arrays(since)

    # ---- inside ----

    def _code_key(self) -> Settings:
        return self._settings

    def _codes(self) -> dict[str, str]:
        return codes_of(self._settings)

    def _to(self, settings: Settings) -> None:
        """Other settings, if they are possible; what was run is an earlier run then, and `undo` goes back."""
        with self._lock:
            if settings == self._settings:
                return
            settings = _checked(settings)
            self._past = [*self._past[-HISTORY + 1 :], self._settings]
            self._future = []
            self._show(settings)
        self._changed("picture")

    def _draw(self, drawn: Schedule) -> None:
        self._to(replace(self._settings, drawn=drawn))

    def _go(self, source: list[Settings], target: list[Settings]) -> None:
        with self._lock:
            if not source:
                return
            target.append(self._settings)
            self._show(source.pop())
        self._changed("picture")

    def _show(self, settings: Settings) -> None:
        self._keep_run()
        self._settings = settings
        self._rank = min(self._rank, settings.stages - 1)

    def _keep_run(self) -> None:
        """The present run is an earlier one from now on; one that goes on ends, and that is said."""
        run, self._run = self._run, self.idle_run()
        if run.goes_on:
            self._said = f"the run before ({run.label}) was ended by this change"
        if run.results or run.parallel:
            self._keep_earlier(run.as_earlier(found_rows(run.results, run.parallel)))
        run.ask_to_end()

    def _known_rank(self, rank: Any, command: str) -> None:
        if not is_int(rank, 0, self._settings.stages - 1):
            allowed = f"0 to {self._settings.stages - 1}"
            raise ArgumentError(f"rank {shorten(rank)}", where=f"PipelineLab.{command}", allowed=allowed)


def _checked(settings: Settings) -> Settings:
    """Settings whose schedule is defined. Raises ArgumentError."""
    assert settings.schedule is not None
    return settings


def _place(schedule: Schedule, stages: int) -> tuple[int, str]:
    """(parts on a rank, how they lie) of a schedule, as a search takes it. Raises ArgumentError for two copies."""
    chunks = max(1, schedule.parts // stages)
    for place, holds in (("loop", loop(stages, chunks)), ("v", shape_v(stages, chunks))):
        if schedule.holds == holds:
            return chunks, place
    what = "the parts of this schedule lie in an order of their own"
    raise ArgumentError(what, where="PipelineLab.search", allowed="Parts that go around, or down and up again")


def _time(given: Any, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1e6:
        raise ArgumentError(f"{what} {shorten(given)}", where="PipelineLab", allowed="A number from 0 to 1,000,000")
    return float(given)


def _times(given: Sequence[Any]) -> tuple[float, float, float]:
    forward, backward, weights = (_time(t, f"time of {kind}") for t, kind in zip(given, "FBW", strict=True))
    if not forward + backward + weights:
        raise ArgumentError("times 0, 0 and 0", where="PipelineLab", allowed="One of them above 0")
    return forward, backward, weights


def _cap(given: Any) -> int | None:
    if given is not None and not is_int(given, 1, 10_000):
        raise ArgumentError(f"cap {shorten(given)}", where="PipelineLab", allowed="A whole number from 1, or none")
    return given
