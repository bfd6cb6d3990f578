"""`MemoryLab`: the headless model behind the Memory Lab widget, and the puzzle "largest model under the cap".

    lab = MemoryLab("stack", devices=8)
    lab.set_level("level3")
    lab.run_simulated(); lab.run_measured(); lab.wait()
    print(lab.to_text())                # bytes per rank and kind, messages, what is split and why, equality, ZeRO table

State, commands, `snapshot()`; every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing. What is shown is predicted from the compiled plan, or counted on
simulated ranks and on worker processes, and says which.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ...base.checks import Check, flag, size_or_none
from ...base.errors import ArgumentError, ParallelLabError
from ...base.settings.checks import SETTINGS, integer
from ...base.units import bytes_text
from ...graph.plan import Plan
from ..code.lab_code import WritesCode
from ..pictures.charts import Chart, memory_chart, zero_chart
from ..shared.lab import setting
from ..shared.questions import COMMANDS, Question
from ..shared.running import ComparesRuns
from ..shared.what_if import WeighsChoices, Weight
from .code import codes_of, settings_in
from .compiled import compiled, every_level, every_split, job_of, ranks_of
from .count import MOMENTS, Count
from .facts import ParameterFact, parameter_facts
from .puzzle import Par, Score, find_par, fullest
from .run import RunResult, check_result, counted
from .sections import KINDS, busiest, fit_text, memory_sections, notes, status_text, steps_of
from .splits import Block, splits_of
from .subjects import (
    ACCUMULATIONS,
    DEVICES,
    LEVELS,
    OPTIMIZERS,
    SHARD_SIZES,
    SUBJECTS,
    WIDTHS,
    Job,
    Settings,
    Subject,
    get_subject,
)
from .zero import parse_count, zero_table

_Key = tuple[str, int, Settings]


class MemoryLab(WeighsChoices, ComparesRuns, WritesCode):
    """One training step of a network, and what every rank holds of it.

    subject        one of SUBJECTS: "stack", "dense", "convnet", "transformer", "experts", "embedding"
    devices        2, 4 or 8 ranks
    optimizer      "SGD", "Momentum", "Adam", "AdamWeightDecay" or "Lamb"
    parallel_mode  "data_parallel" or "semi_auto_parallel": the optimizer parallel is something else in each
    level          of the mode: "off", "grouping" (data_parallel), "level1", "level2", "level3" (semi_auto_parallel)

    `close()` forgets all listeners.
    """

    title = "Memory Lab"
    scripts = ("shared/scrub.js", "memory/memory_bars.js", "memory/story.js", "memory/memory_lab.js")
    styles = ("memory/memory_lab.css",)
    commands = ("set_zero", "run_simulated", "run_measured", "stop", "find_par", "show_best", "set_code", *COMMANDS)
    looks: ClassVar[dict[str, str]] = {"select_rank": "rank", "show_moment": "moment", "show_source": "source"}
    paste_example = 'net.hsdp(optimizer_level="level2")'
    replayed = ("level", "split", "optimizer", "devices", "accumulation", "parallel_mode", "shard_size", "subject")
    also_kept, weighed = ("set_zero",), ("set_level",)
    against, apart = ("with these settings", "without optimizer parallel"), ("recording",)
    steps, result_type = 20, RunResult

    def __init__(
        self,
        subject: str = "stack",
        devices: int = 8,
        optimizer: str = "Adam",
        parallel_mode: str = "semi_auto_parallel",
        level: str | None = None,
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._subject = get_subject(subject).name
        self._width, self._capacity = self.subject.width, self.subject.capacity_bytes
        levels = LEVELS[self.one_of(parallel_mode, LEVELS, "parallel_mode")]
        level = ("level1" if "level1" in levels else "off") if level is None else level
        self._settings = Settings()
        self._begin(devices=devices, parallel_mode=parallel_mode, optimizer=optimizer, level=level)
        self._pars: dict[tuple[int, str, int], Par | None] = {}
        self._rank, self._moment = 0, "states"
        self._zero = zero_table(7.5e9, 64, 12)
        self._update()

    # ---- choosing what is looked at ----

    @setting("network", SUBJECTS, only_new=True)
    def set_subject(self, name: str) -> dict[str, Any]:
        """Another network, with the width and the capacity line that go with it."""
        return {"width": SUBJECTS[name].width, "capacity": SUBJECTS[name].capacity_bytes, "split": "batch"}

    @setting(typed=True, value=lambda lab: lab._width or None)
    def set_width(self, width: int | float | str) -> dict[str, Any]:
        """Another width of the stack: a multiple of 16 up to 1024. Raises ArgumentError for another network."""
        if not self.subject.width:
            what = f"{self.subject.label} has no width"
            raise ArgumentError(what, where="MemoryLab.set_width", hint="Take the subject 'stack'")
        return {"width": Check(_MULTIPLES, _read_width)("MemoryLab.set_width", "width", width)}

    @setting("ranks", DEVICES)
    def set_devices(self, n: int) -> dict[str, Any]:
        """Another number of ranks: 2, 4 or 8. A shard size that is then too large becomes -1."""
        size = self._settings.shard_size
        return {"shard_size": size if size <= n else -1}

    @setting("mode", tuple(LEVELS))
    def set_parallel_mode(self, mode: str) -> dict[str, Any]:
        """ "data_parallel" or "semi_auto_parallel". A level or a split that it does not have becomes "off", "batch"."""
        level, known = self._settings.level, splits_of(self.job.net, mode)
        return {
            "level": level if level in LEVELS[mode] else "off",
            "split": self._settings.split if self._settings.split in known else "batch",
        }

    @setting("split", lambda lab: splits_of(lab.job.net, lab.settings.parallel_mode))
    def set_split(self, how: str) -> None:
        """How the GPT is split: "batch", "tensor", "sequence", or "again" (and gathered again for backward)."""

    @setting("optimizer", tuple(OPTIMIZERS))
    def set_optimizer(self, name: str) -> None:
        """ "SGD" (no states), "Momentum" (one), "Adam", "AdamWeightDecay", "Lamb" (two)."""

    @setting("optimizer parallel", lambda lab: LEVELS[lab.settings.parallel_mode])
    def set_level(self, level: str) -> None:
        """A level that the mode has. Raises what compiling raises where it cannot work (weight grouping with Adam)."""

    @setting("shared by", lambda lab: [n for n in SHARD_SIZES if n <= lab.settings.devices], typed=True)
    def set_shard_size(self, ranks: int) -> dict[str, Any]:
        """optimizer_weight_shard_size: how many ranks share a slice; -1: all that hold the same one."""
        return {"shard_size": self.one_of(ranks, SHARD_SIZES, "shard_size")}

    @setting("micro-batches", ACCUMULATIONS)
    def set_accumulation(self, parts: int) -> None:
        """grad_accumulation_step: micro-batches per step, 1, 2 or 4."""

    @setting("moment", MOMENTS, look=True)
    def show_moment(self, moment: str) -> None:
        """When: "states" (model states, each at its most), "peak" (of the step), "training" (peak of forward and
        backward), "resident" (between steps).
        """

    show_source = ComparesRuns.show_source

    @setting("rank", lambda lab: range(lab.settings.devices), look=True)
    def select_rank(self, rank: int) -> None:
        """The rank whose step and traffic are shown."""

    @setting(typed=True, value=lambda lab: lab.settings.threshold_kb)
    def set_threshold(self, threshold_kb: int | float | str) -> dict[str, Any]:
        """parallel_optimizer_threshold, in KB: smaller parameters stay whole."""
        return {"threshold_kb": integer(0)("MemoryLab.set_threshold", "threshold_kb", threshold_kb, SETTINGS)}

    @setting(typed=True)
    def set_accumulation_shard(self, on: bool) -> dict[str, Any]:
        """gradient_accumulation_shard: keep level1's accumulated gradients in slices (sent per micro-batch)."""
        return {"accumulation_shard": flag("MemoryLab", "accumulation_shard", on)}

    @setting(typed=True, by_itself=True, value=lambda lab: str(lab.capacity_bytes))
    def set_capacity(self, capacity: int | str | None) -> None:
        """A device's memory, a line across the bars: bytes, or a text such as "4 MiB"; None, 0 or blank: no line."""
        self._capacity = size_or_none("MemoryLab", "capacity", capacity)
        self._changed("picture")

    def set_zero(self, parameters: float | str, degree: float | str, optimizer_bytes: float | str = 12) -> None:
        """The ZeRO paper's table: parameters (7.5e9 or "7.5B"), ranks, bytes of optimizer state per parameter (K)."""
        self._zero = zero_table(parse_count(parameters), degree, optimizer_bytes)
        self._changed("picture")

    def calls(self) -> list[list[Any]]:
        """Those of the settings, and the ZeRO paper's table."""
        with self._lock:
            zero = self._zero
            return [*super().calls(), ["set_zero", zero["parameters"], zero["degree"], zero["optimizer_bytes"]]]

    def set_code(self, text: str) -> None:
        """Mode, optimizer and optimizer parallel from lines of MindSpore: `set_auto_parallel_context(...)`,
        `hsdp(...)`, `nn.Adam(...)`, `nn.GradAccumulation(net, 2)`; read, not executed. Raises ArgumentError and changes
        nothing.
        """
        self._change(**settings_in(text, self._settings))

    # ---- what there is ----

    @property
    def subject(self) -> Subject:
        """The network that is looked at."""
        return SUBJECTS[self._subject]

    @property
    def settings(self) -> Settings:
        """How the network is compiled now."""
        return self._settings

    @property
    def width(self) -> int:
        """The width of the stack; 0 for another network."""
        return self._width

    @property
    def capacity_bytes(self) -> int:
        """The line across the bars; 0: none."""
        return self._capacity

    @property
    def plan(self) -> Plan:
        """The compiled plan."""
        return compiled(*self._key())[0]

    @property
    def off(self) -> Plan:
        """The plan of the same settings without optimizer parallel."""
        return compiled(*self._key(self._settings.without()))[0]

    @property
    def facts(self) -> tuple[ParameterFact, ...]:
        """What happens to each parameter."""
        return parameter_facts(self.plan, self.off)

    @property
    def zero(self) -> dict[str, Any]:
        """The ZeRO paper's table for the model that was given (`zero_table`)."""
        return self._zero

    @property
    def job(self) -> Job:
        """The network and its data."""
        return job_of(self._subject, self._width)

    @property
    def parameter_count(self) -> int:
        """Elements of all trainable parameters."""
        return job_of(self._subject, self._width).parameter_count

    def ranks(self, source: str = "predicted") -> tuple[Count, ...]:
        """What every rank holds and sends. Raises ArgumentError for a source that was not run."""
        if source != "predicted":
            return self._results[self.one_of(source, tuple(self._results), "source")].ranks
        return ranks_of(*self._key())

    def ranks_without(self) -> tuple[Count, ...]:
        """As predicted `ranks`, without optimizer parallel."""
        return ranks_of(*self._key(self._settings.without()))

    def splits(self) -> dict[str, Block]:
        """Per split of a GPT what its block keeps for backward and sends, predicted; empty for another network."""
        return every_split(*self._key())

    def levels(self) -> dict[str, tuple[Count, ...] | ParallelLabError]:
        """Per level of the mode what every rank would hold and send; for an impossible level, the reason."""
        return every_level(*self._key())

    def weight(self) -> Weight:
        """The fullest rank between steps and at its fullest moment, and what the busiest one sends per step."""
        ranks = self.ranks()
        resident, peak = sum(fullest(ranks).at("resident").values()), fullest(ranks).peak_bytes
        held: Weight = {"between steps": (resident, "bytes"), "fullest moment": (peak, "bytes")}
        return held | {"sent": (busiest(ranks).sent_bytes, "bytes")}

    @property
    def score(self) -> Score:
        """The puzzle's score: (parameters, whether they fit). Raises ArgumentError for another network or no line."""
        with self._lock:
            if not self.subject.width or not self._capacity:
                hint = "Take the network 'stack', and give a device a memory such as 4 MiB"
                raise ArgumentError("there is nothing to score", where="MemoryLab.score", hint=hint)
            source = next((s for s in ("measured", "simulated") if s in self._results), "predicted")
            peak_bytes = fullest(self.ranks(source)).peak_bytes
            return Score(
                self.parameter_count, peak_bytes <= self._capacity, peak_bytes, source, self._pars.get(self._par_key())
            )

    # ---- running ----

    def _in_words(self) -> str:
        s, width = self._settings, f" of width {self._width}" if self.subject.width else ""
        return f"{self.subject.label}{width}, {s.devices} ranks, {s.optimizer}, {s.level}"

    def _told(self, result: RunResult) -> str:
        return f"{bytes_text(fullest(result.ranks).peak_bytes)} on the fullest rank, at its fullest moment"

    def _work_of(self, source: str, steps: int) -> partial:
        job = job_of(self._subject, self._width)
        how = self._run_is_stopped, self._count, self._keep_recording
        return partial(counted, source, job, self._settings, self.plan, self.off, steps, *how)

    def _settings_now(self) -> _Key:
        return self._key()

    def _check_result(self, result: RunResult) -> None:
        check_result(result, self._settings.devices)

    def _done(self, source: str, steps: int) -> str:
        self._source = source
        return f"{source}: one step counted, {steps} compared"

    def find_par(self) -> None:
        """Search the largest stack under the line with this optimizer and devices. Returns at once; `wait()` waits.

        Raises ArgumentError without a puzzle, and unless a stack of one's own is under the line now, with
        optimizer parallel.
        """
        if not self.score.fits or self._settings.level == "off":
            hint = "Choose a level, and a width with which the fullest rank stays under the line; then ask for par"
            what = "there is no stack of your own under the line, with optimizer parallel"
            raise ArgumentError(what, where="MemoryLab.find_par", hint=hint)
        settings, capacity, key = self._settings, self._capacity, self._par_key()

        def search() -> str:
            par = find_par(settings, capacity, self._run_is_stopped, self._count)
            self._go_on()
            with self._lock:
                self._pars[key] = par
            if par is None:
                return "no stack fits under the line"
            return f"par: width {par.width}, {par.settings.level} ({par.tried} plans tried)"

        self._start("searching for par", search)

    def show_best(self) -> None:
        """Take the solution that `find_par` has found. Raises ArgumentError before."""
        par = self._pars.get(self._par_key())
        if par is None:
            hint = "Find it first, with a stack of your own"
            raise ArgumentError("par is not known", where="MemoryLab.show_best", hint=hint)
        self._change(width=par.width, settings=par.settings)

    # ---- forms ----

    def page_snapshot(self) -> dict[str, Any]:
        """The snapshot, and its lead at every moment of every source."""
        pairs = itertools.product(MOMENTS, self.sources().known)
        leads = {f"{moment}|{source}": self._lead(moment, source) for moment, source in pairs}
        return {**self.snapshot(), "looks": {"moment|source": leads}}

    def _lead(self, moment: str, source: str) -> dict[str, str]:
        return {"status": status_text(self, moment, source), "selected": fit_text(self, source)}

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        width = {"value": self._width, "least": WIDTHS[0], "most": WIDTHS[-1], "step": WIDTHS.step}
        run = self._run.to_dict()
        counts = {"predicted": self.ranks(), **{name: result.ranks for name, result in self._results.items()}}
        return {
            **self._lead(self._moment, self._source),
            "notes": notes(self, self.subject.note),
            "width": width if self.subject.width else None,
            "threshold_kb": self._settings.threshold_kb,
            "accumulation_shard": self._settings.accumulation_shard,
            "capacity": {"bytes": self._capacity, "text": bytes_text(self._capacity) if self._capacity else ""},
            "rank": self._rank,
            "steps_of": {name: steps_of(found) for name, found in counts.items()},
            "zero": self._zero,
            "par": self.subject.width and self._pars.get(self._par_key()) is not None,
            "weight": {name: list(found) for name, found in self.weight().items()},
            "sections": {**memory_sections(self), **self.recorded_sections(), **self.code_sections()},
            "recording": self.shown_recording(),
            "run": {**run, "can": run["state"] != "running"},
        }

    def questions(self) -> list[Question]:
        """What the fullest rank holds at its fullest moment."""
        settings, most = self._settings, fullest(self.ranks())
        parts = ", ".join(f"{KINDS[kind][0]} {bytes_text(size)}" for kind, size in most.at("peak").items() if size)
        text = f"How many KiB does the fullest rank hold at its fullest moment (optimizer parallel: {settings.level})?"
        right = (float(f"{most.peak_bytes / 1024:.4g}"),)
        key = f"peak of {self._subject}, {self._width}, {settings}"
        hides = ("memory", "tables")
        return [Question(key, text, right, f"{parts}, predicted", unit="KiB", within=0.1, hides=hides)]

    def charts(self) -> dict[str, Callable[[], Chart]]:
        """ "memory": of the chosen rank, instruction by instruction; "zero": the ZeRO paper's table as lines."""

        def memory() -> Chart:
            steps = steps_of(self.ranks(self._source))
            kinds = [{"name": name, "label": label} for name, (label, _) in KINDS.items()]
            return memory_chart(steps["steps"][steps["of"][self._rank]], kinds, self._rank, self._source)

        return {"memory": memory, "zero": lambda: zero_chart(self._zero)}

    # ---- inside ----

    def _code_key(self) -> _Key:
        return self._key()

    def _codes(self) -> dict[str, str]:
        return codes_of(*self._key())

    def _update(self) -> None:
        """Plans of the present settings."""
        ranks_of(*self._key(self._settings.without()))
        ranks_of(*self._key())
        self._forget_runs()
        self._rank = min(self._rank, self._settings.devices - 1)

    def _key(self, settings: Settings | None = None) -> _Key:
        return self._subject, self._width, self._settings if settings is None else settings

    def _par_key(self) -> tuple[int, str, int]:
        return self._settings.devices, self._settings.optimizer, self._capacity


_MULTIPLES = f"A multiple of {WIDTHS.step} from {WIDTHS[0]} to {WIDTHS[-1]}"


def _read_width(given: Any) -> int:
    width = integer(WIDTHS[0]).read(given)
    if width not in WIDTHS:
        raise ValueError
    return width
