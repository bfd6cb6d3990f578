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

from ...base.checks import integer
from ...base.errors import ArgumentError, shorten
from ...base.system import cores, without_processes
from ...base.units import plural
from ...cost.schedules import Fault, Schedule, schedule_names
from ...graph.plan import Plan
from ..code.lab_code import WritesCode
from ..shared.lab import Choice, offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.running import Found
from ..shared.what_if import WeighsChoices, Weight
from ..strategy.training_lab import ShowsTraining
from . import drawing
from .code import codes_of, settings_in
from .puzzles import find_puzzle
from .run import PipelineRun, RunResult, Trial, prepared
from .sections import EARLIER_RUNS, found_rows, pipeline_sections, runs_view, schedule_view
from .settings import CHUNKS, DRAWN, MICRO_BATCHES, STAGES, Settings, checked, checked_times, typed_setting
from .subjects import STRATEGY_LABELS, SUBJECTS
from .waits import why_waiting

HISTORY = 200  # settings that can be gone back to


class PipelineLab(WeighsChoices, ShowsTraining, WritesCode):
    """A pipeline's schedule: chosen or drawn, timed, checked, and run.

    net            one of SUBJECTS: "stack", "gpt"
    stages         ranks of the pipeline: 2, 3, 4, 6 or 8
    micro_batches  pieces of a batch: 1 to 32
    schedule       a name, see `parallel_lab.cost.schedules.schedule_names()`
    chunks         parts on each rank, for schedules that take any number
    times          of F, B and W of a whole stage;  latency: of a message;  cap: micro-batches x parts a rank can keep
                   latency is a number, or one for each border between stages
    strategy       inside a stage: "one" device, or 2: "batch", "inner"
    puzzle         the name of one (puzzles.py), which gives everything above but net and strategy: until a schedule is
                   at par there are no named ones, no search, and no other numbers

    Listeners (`on_change`) receive "picture", "run" or, at every step of a training, "loss".
    """

    title = "Pipeline Lab"
    scripts = ("shared/scrub.js", *(f"pipeline/{name}.js" for name in ("lanes", "past", "story", "pipeline_lab")))
    styles = ("pipeline/pipeline_lab.css",)
    commands = (
        *("set_typed", "toggle_recompute", "put", "put_next", "move", "move_onto", "remove", "clear_rank", "clear"),
        *("undo", "redo", "load", "set_code", "search", "run_simulated", "run_measured", "stop", *COMMANDS),
    )
    paste_example = "net = nn.PipelineCell(net, micro_size=8)"
    earlier_columns: ClassVar[dict[str, str]] = EARLIER_RUNS
    replayed = ("schedule", "stages", "micro_batches", "chunks")
    also_kept = ("set_typed", "toggle_recompute", "load")
    often, apart, weighed = ("run", "loss"), ("recording",), ("set_schedule",)
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
        latency: float | Sequence[float] = 0.0,
        cap: int | None = None,
        strategy: str = "one",
        puzzle: str = "",
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._past: list[Settings] = []
        self._future: list[Settings] = []
        self._rank = 0
        self._run = PipelineRun(steps=self.steps)
        self._said = ""  # of a run that a change has ended
        self._settings = Settings()
        named = self.one_of(schedule, schedule_names(), "schedule")
        self._begin(net=net, stages=stages, micro_batches=micro_batches, strategy=strategy)
        now = self._settings.with_name(named, None if chunks is None else self.one_of(chunks, CHUNKS, "chunks"))
        how = {"times": checked_times(times), "latency": checked("latency", latency), "cap": checked("cap", cap)}
        self._settings = replace(now, **how).checked()
        self._puzzle, self._reached = find_puzzle(puzzle) if puzzle else None, False
        if self._puzzle is not None:
            if self._settings != Settings(net=net, strategy=strategy):
                allowed = "net and strategy: a puzzle gives the others"
                raise ArgumentError(f"more than puzzle {shorten(puzzle)}", where="PipelineLab", allowed=allowed)
            self._settings = replace(self._puzzle.settings, net=net, strategy=strategy)

    # ---- what is chosen ----

    set_net = offered("network", SUBJECTS, "Another network.", net=str)

    @setting("stages", STAGES)
    def set_stages(self, stages: int) -> dict[str, Any]:
        """Another number of ranks, with the named schedule. Raises ArgumentError where it is not defined for them."""
        return {"drawn": None, "recompute": tuple(r for r in self._settings.recompute if r < stages)}

    @setting("micro-batches", MICRO_BATCHES)
    def set_micro_batches(self, micro_batches: int) -> dict[str, Any]:
        """Another number of pieces of a batch, with the named schedule."""
        return {"drawn": None}

    @setting("schedule", lambda lab: lab.settings.known_schedules, value=lambda lab: lab.settings.name, by_itself=True)
    def set_schedule(self, schedule: str) -> None:
        """A schedule by name, for the present stages and micro-batches; what was drawn is left (`undo` brings it)."""
        if schedule == DRAWN and self._settings.drawn is not None:
            return
        self._to(self._settings.with_name(self.one_of(schedule, schedule_names(), "schedule")))

    @setting("parts on a rank", lambda lab: lab.settings.known_chunks)
    def set_chunks(self, chunks: int) -> dict[str, Any]:
        """Parts on each rank, for the named schedule."""
        return {"drawn": None}

    @setting("inside a stage", STRATEGY_LABELS)
    def set_strategy(self, strategy: str) -> None:
        """How the products of a stage are split: "one" device, or 2 that split "batch" or "inner" dim."""

    @setting("cores of simulated ranks", lambda lab: {0: "own", cores(): f"{cores()} shared"})
    def set_cores(self, cores: int) -> None:
        """Whether simulated ranks share this machine's cores, as worker processes do, or have one each (0)."""

    @setting("rank", lambda lab: range(lab.settings.stages), look=True)
    def set_rank(self, rank: int) -> None:
        """The rank whose actions are listed."""

    @property
    def locked(self) -> bool:
        """Whether it is a puzzle's lab whose par was not reached yet."""
        return self._puzzle is not None and not self._reached

    def choices(self) -> dict[str, Choice]:
        """In a puzzle that is not solved, what it gives cannot be chosen."""
        known = super().choices()
        if self.locked:
            fixed = ("stages", "micro_batches", "schedule", "chunks")
            known |= {name: known[name]._replace(known=(known[name].value,)) for name in fixed}
        return known

    def options(self) -> dict[str, Any]:
        """The puzzle, as long as its numbers are set and a schedule is drawn."""
        puzzle, s = self._puzzle, self._settings
        mine = puzzle is not None and s.given == puzzle.settings.given and s.drawn is not None
        return {"puzzle": puzzle.name if mine else ""}

    def calls(self) -> list[list[Any]]:
        """Those of the settings, what is typed, and the schedule that was drawn."""
        with self._lock:
            s, known = self._settings, {call[0]: call for call in super().calls()}
            if self.options()["puzzle"]:
                mine = ("set_net", "set_strategy", "set_cores", "set_rank")
                return [*(known[name] for name in mine if name in known), ["load", s.drawn.text()]]
            known["set_schedule"] = ["set_schedule", s.named]
            typed = [["set_typed", name, text] for name, text in s.typed().items()]
            again = [["toggle_recompute", rank] for rank in s.recompute]
            drawn = [] if s.drawn is None else [["load", s.drawn.text()]]
            return [*known.values(), *typed, *again, *drawn]

    def set_code(self, text: str) -> None:
        """Stages, micro-batches and schedule from lines of MindSpore: AutoParallel's `pipeline(stages=...)`,
        `set_auto_parallel_context(pipeline_stages=...)`, `nn.PipelineCell(net, micro_size=...)`; read, not executed.
        Raises ArgumentError and changes nothing.
        """
        self._to(settings_in(text, self._settings))

    def set_times(self, forward: float, backward: float, weights: float) -> None:
        """Times of F, B and W of a whole stage; a backward that is not divided takes B + W."""
        self._change(times=checked_times((forward, backward, weights)))

    def set_latency(self, latency: float | Sequence[float]) -> None:
        """Time from the end of an action to when its message is there: of all, or one for each border."""
        self._change(latency=checked("latency", latency))

    def set_cap(self, cap: int | None = None) -> None:
        """Micro-batches x parts whose activations a rank can keep; None: any number. What does not fit is marked."""
        self._change(cap=checked("cap", cap))

    def set_typed(self, field: str, text: str) -> None:
        """Times, latency or cap from what was typed: "1:1:1", "0.5", "4" ("" and "none": no cap)."""
        self._change(**typed_setting(field, text))

    def set_recompute(self, ranks: Sequence[int]) -> None:
        """The ranks whose layers run forward again in backward, instead of keeping their results."""
        for rank in ranks:
            drawing.checked_rank(self._settings, rank, "PipelineLab.set_recompute")
        self._change(recompute=tuple(sorted(set(ranks))))

    def toggle_recompute(self, rank: int) -> None:
        """One rank more or less of them."""
        drawing.checked_rank(self._settings, rank, "PipelineLab.toggle_recompute")
        self.set_recompute(tuple({*self._settings.recompute} ^ {rank}))

    # ---- drawing ----

    def put(self, rank: int, action: str, position: int = -1) -> None:
        """An action more ("0F4") in a rank's lane, before the cell at `position` (-1: at the end).

        Raises ArgumentError with the schedule check's reason where that makes a fault that was not there.
        """
        self._draw(drawing.put(self._settings, rank, action, position))

    def put_next(self, rank: int, kind: str, position: int = -1) -> None:
        """The next "F", "B" or "W" that the rank has left to do; from the first of its parts that may run."""
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
        self._draw(drawing.read_schedule(self._settings, text))

    def search(self) -> None:
        """A good schedule for the present times and cap, found fast; divided backwards where W takes time.

        Raises ArgumentError where nothing was found that fits the cap, and in a puzzle that is not solved.
        """
        self._unlocked("Search")
        self._draw(drawing.found_schedule(self._settings))

    def undo(self) -> None:
        """Back to the settings before the last change, drawn schedules among them; does nothing at the first ones."""
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
        """Predicted: from the first start to the last end, in the unit of `times`, for the actions that can run."""
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
        return Found(self._run.results)

    def left_to_do(self, rank: int) -> list[str]:
        """The next action of every kind that is still to draw in a rank's lane."""
        drawing.checked_rank(self._settings, rank, "PipelineLab.left_to_do")
        return [f"{part}{kind}{number}" for part, kind, number in drawing.left_to_do(self._settings, rank)]

    def why(self, rank: int, position: int) -> str:
        """Why a rank waits before the cell at `position` (the number of its cells: after the last): the chain of what
        it waits for. "" where it does not.
        """
        drawing.checked_rank(self._settings, rank, "PipelineLab.why")
        reason = why_waiting(self._settings, rank, position)
        return "" if reason is None else reason.text

    def compiled(self) -> Plan:
        """The plan that runs the schedule. Raises ArgumentError where it cannot run, or is not complete."""
        return self._prepared("PipelineLab.compiled").plan

    # ---- running ----

    def run_simulated(self, steps: int | None = None) -> None:
        """Simulate the schedule: the ranks' numpy work as timed here, on cores of their own. Returns at once."""
        self._start_run(("simulated",), "run_simulated", steps)

    def run_measured(self, steps: int | None = None) -> None:
        """Simulate the schedule, then train with it on worker processes, and on one device. Returns at once."""
        self._start_run(("simulated", "measured"), "run_measured", steps)

    def _start_run(self, sources: tuple[str, ...], command: str, steps: int | None) -> None:
        where = f"PipelineLab.{command}"
        steps = self.steps if steps is None else integer(2)(where, "steps", steps)
        sources = ("simulated",) if without_processes() else sources
        with self._lock:
            if self._run.goes_on:
                return
            trial, before = self._prepared(where), self._run
            run = PipelineRun("running", steps=steps, label=self._settings.label)
            if "measured" not in sources and before.state != "recorded":
                run.goes_on_from(before)
            elif before.parallel:
                self._keep_run()
            self._said = ""

        def work() -> str:
            run.steps_of(trial, sources, lambda what: self._tell(run, what))
            return ""

        self._start(f"{sources[0]}: compiled", work, "the run failed", run)

    def _prepared(self, where: str) -> Trial:
        return prepared(self._settings, self.faults, where)

    # ---- forms ----

    def weight(self) -> Weight:
        """The predicted step: its ticks, the percentage that ranks wait, the results that the fullest rank keeps."""
        s = self._settings
        found = {"ticks": s.timed.timing.makespan, "wait, %": 100 * s.bubble, "results kept": max(s.peaks)}
        return {name: (float(f"{value:.3g}"), "number") for name, value in found.items()}

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        s, run, puzzle = self._settings, self._run, self._puzzle_view()
        return {
            "puzzle": puzzle,
            "notes": [*([puzzle["text"]] if puzzle else []), f"{SUBJECTS[s.net].label}: {SUBJECTS[s.net].note}."],
            "typed": s.typed(),
            "recompute": list(s.recompute),
            "can_undo": bool(self._past),
            "can_redo": bool(self._future),
            "ran": runs_view(s, run.results),
            "earlier": [one.curve() for one in self._earlier if one.losses],
            "said": self._said,
            "weight": {name: list(found) for name, found in self.weight().items()},
            **schedule_view(s),
            "sections": {
                **pipeline_sections(s, run.results, self._earlier, run.state == "recorded"),
                **self.recorded_sections(),
                **self.code_sections(),
            },
            "recording": self.shown_recording(),
            **self.progress(),
        }

    def questions(self) -> list[Question]:
        """How long a step of a named schedule is, and how many activations the fullest rank keeps."""
        s, hides = self._settings, ("lanes", "caption", "tools", "below", "tables")
        if s.drawn is not None or self.locked or not s.timed.complete:
            return []
        waits, most = "no rank waits" if s.bubble < 1e-9 else f"ranks wait {s.bubble:.0%} of it", round(max(s.peaks))
        length = float(f"{s.timed.timing.makespan:.6g}")
        what = f"{s.named} with {s.stages} stages and {plural(s.micro_batches, 'micro-batch', 'es')}"
        f, b, w = (f"{time:g}" for time in s.times)
        text = f"How long is a step of {what}? F takes {f}, B {b}, W {w}."
        step = Question(f"step of {s}", text, (length,), waits, unit="ticks", hides=hides)
        text = f"{what}: of how many micro-batches does the fullest rank keep the activations?"
        why = f"{most} at once, from the first F to the first B that frees one"
        return [step, Question(f"kept of {s}", text, (most,), why, unit="at once", hides=hides)]

    def record(self) -> Any:
        return self._run.record()

    def take_record(self, record: Any) -> None:
        """Show what was run with this schedule, as a recorded run. Raises ArgumentError for anything else."""
        if record is not None:
            with self._lock:
                self._run = PipelineRun.of_record(record, self._settings.schedule)
            self._changed("picture")

    def recorded_plan(self) -> Plan:
        return self.compiled()

    def idle_run(self) -> PipelineRun:
        return PipelineRun(steps=self.steps)

    def progress(self) -> dict[str, Any]:
        """The parts of the snapshot that change with every step: "run" and "loss"."""
        with self._lock:
            run = self._run
            return {"run": run.view(), "loss": run.loss_of(self._settings.devices)}

    # ---- inside ----

    def _unlocked(self, what: str) -> None:
        """Raise ArgumentError in a puzzle that is not solved."""
        if self.locked:
            where, allowed = f"Puzzle {self._puzzle.number}", f"It opens at par, a step of {self._puzzle.par:g}"
            raise ArgumentError(f"{what} before par is reached", where=where, allowed=allowed)

    def _puzzle_view(self) -> dict[str, Any] | None:
        if self._puzzle is None:
            return None
        number, text = self._puzzle.number, f"{self._puzzle.rules} Par is {self._puzzle.par:g}."
        text = f"Puzzle {number}: {text} Named schedules, Search and all settings open there."
        solved = f"Puzzle {number} is solved: named schedules, Search and all settings are open."
        return {"number": number, "locked": self.locked, "text": text if self.locked else solved}

    def _code_key(self) -> Settings:
        return self._settings

    def _codes(self) -> dict[str, str]:
        return codes_of(self._settings)

    def _to(self, settings: Settings) -> None:
        """Other settings, if they are possible."""
        with self._lock:
            changed = self._adopt(settings)
        if changed:
            self._changed("picture")

    def _take(self, **changes: Any) -> bool:
        return self._adopt(replace(self._settings, **changes))

    def _adopt(self, settings: Settings) -> bool:
        """What was run is an earlier run then, and `undo` goes back; False: all is as it was."""
        if settings == self._settings:
            return False
        drawn = settings.drawn
        if self.locked and (settings.given != self._settings.given or drawn is None or drawn.parts != settings.stages):
            self._unlocked("a named schedule" if drawn is None else "other numbers than the puzzle's")
        settings = settings.checked()
        self._past = [*self._past[-HISTORY + 1 :], self._settings]
        self._future = []
        self._show(settings)
        return True

    def _draw(self, drawn: Schedule) -> None:
        self._change(drawn=drawn)

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
        self._reached = self._reached or (self._puzzle is not None and self._puzzle.solved(settings))
        self._rank = min(self._rank, settings.stages - 1)

    def _keep_run(self) -> None:
        """The present run is an earlier one from now on; one that goes on ends, and that is said."""
        run, self._run = self._run, self.idle_run()
        if run.goes_on:
            self._said = f"the run before ({run.label}) was ended by this change"
        if run.results or run.parallel:
            self._keep_earlier(run.as_earlier(found_rows(run.results, run.parallel)))
        run.ask_to_end()
