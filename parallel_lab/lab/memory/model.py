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

from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from ...base.errors import ArgumentError, ParallelLabError, shorten
from ...base.settings.checks import SETTINGS, integer
from ...graph.plan import Plan
from ..shared.lab import Commands, LabRun, RunsOneThing
from .count import MOMENTS, Count, predicted_ranks
from .facts import ParameterFact, parameter_facts
from .puzzle import ACCUMULATIONS, Par, Score, find_par, fullest
from .run import RunResult, counted
from .subjects import LEVELS, OPTIMIZERS, WIDTHS, Job, Settings, get_subject
from .views import lab_snapshot
from .words import memory_text
from .zero import parse_count, zero_table

DEVICES = (2, 4, 8)
SHARD_SIZES = (-1, 2, 4, 8)
STEPS = 20  # that a run compares
KEPT_JOBS = 4  # the widest holds some 40 MB
KEPT = 48  # plans; a lesson goes to and fro between few
LARGEST_TEXT = 40  # characters of a typed size
UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30}

_Key = tuple[str, int, Settings]


class MemoryLab(RunsOneThing):
    """One training step of a network, and what every rank holds of it.

    subject        one of memory_subjects.SUBJECTS: "stack", "dense", "convnet", "transformer", "embedding"
    devices        2, 4 or 8 ranks
    optimizer      "SGD", "Momentum", "Adam", "AdamWeightDecay" or "Lamb"
    parallel_mode  "data_parallel" or "semi_auto_parallel": the optimizer parallel is something else in each
    level          of the mode: "off", "grouping" (data_parallel), "level1", "level2", "level3" (semi_auto_parallel)

    `close()` forgets all listeners.
    """

    scripts, styles = ("memory/memory_bars.js", "memory/memory_lab.js"), ("memory/memory_lab.css",)
    commands: ClassVar[Commands] = {
        "set_subject": ((str,),),
        "set_width": ((int, float, str),),  # what was typed; the model says what it may be
        "set_devices": ((int,),),
        "set_parallel_mode": ((str,),),
        "set_optimizer": ((str,),),
        "set_level": ((str,),),
        "set_threshold": ((int, float, str),),
        "set_shard_size": ((int,),),
        "set_accumulation": ((int,),),
        "set_accumulation_shard": ((bool,),),
        "set_capacity": ((str,),),
        "select_rank": ((int,),),
        "show_moment": ((str,),),
        "show_source": ((str,),),
        "set_zero": ((str,), (int, float, str), (int, float, str)),
        "run_simulated": (),
        "run_measured": (),
        "stop": (),
        "find_par": (),
        "show_best": (),
    }
    words = staticmethod(memory_text)

    def __init__(
        self,
        subject: str = "stack",
        devices: int = 8,
        optimizer: str = "Adam",
        parallel_mode: str = "semi_auto_parallel",
        level: str | None = None,
    ) -> None:
        super().__init__()
        self._subject = get_subject(subject)
        self._width, self._capacity = self._subject.width, self._subject.capacity_bytes
        mode = self.one_of(parallel_mode, LEVELS, "parallel_mode")
        chosen = (
            ("level1" if "level1" in LEVELS[mode] else "off")
            if level is None
            else self.one_of(level, LEVELS[mode], "level")
        )
        self._settings = Settings(
            self.one_of(devices, DEVICES, "devices"), mode, self.one_of(optimizer, OPTIMIZERS, "optimizer"), chosen
        )
        self._pars: dict[tuple[int, str, int], Par | None] = {}
        self._rank, self._moment, self._source = 0, "peak", "predicted"
        self._zero = zero_table(7.5e9, 64, 12)
        self._results: dict[str, RunResult] = {}
        self._update()

    # ---- choosing what is looked at ----

    def set_subject(self, name: str) -> None:
        """Another network, with the width and the capacity line that go with it."""
        subject = get_subject(name)
        if subject is not self._subject:
            self._change(_subject=subject, _width=subject.width, _capacity=subject.capacity_bytes)

    def set_width(self, width: int) -> None:
        """Another width of the stack: a multiple of 16 up to 1024. Raises ArgumentError for another network."""
        if not self._subject.width:
            raise ArgumentError(
                f"{self._subject.label} has no width", where="MemoryLab.set_width", hint="Take the subject 'stack'"
            )
        if isinstance(width, bool) or not isinstance(width, int) or width not in WIDTHS:
            allowed = f"A multiple of {WIDTHS.step} from {WIDTHS[0]} to {WIDTHS[-1]}"
            raise ArgumentError(f"width {shorten(width)}", where="MemoryLab.set_width", allowed=allowed)
        self._change(_width=width)

    def set_devices(self, n: int) -> None:
        """Another number of ranks: 2, 4 or 8. A shard size that is then too large becomes -1."""
        n = self.one_of(n, DEVICES, "devices")
        size = self._settings.shard_size if self._settings.shard_size <= n else -1
        self._set(devices=n, shard_size=size)

    def set_parallel_mode(self, mode: str) -> None:
        """ "data_parallel" or "semi_auto_parallel". A level that the mode does not have becomes "off"."""
        mode = self.one_of(mode, LEVELS, "parallel_mode")
        level = self._settings.level
        self._set(parallel_mode=mode, level=level if level in LEVELS[mode] else "off")

    def set_optimizer(self, name: str) -> None:
        """ "SGD" (no states), "Momentum" (one), "Adam", "AdamWeightDecay", "Lamb" (two)."""
        self._set(optimizer=self.one_of(name, OPTIMIZERS, "optimizer"))

    def set_level(self, level: str) -> None:
        """A level of the optimizer parallel that the mode has. Raises what compiling raises where it cannot work
        (weight grouping with Adam).
        """
        self._set(level=self.one_of(level, LEVELS[self._settings.parallel_mode], "level"))

    def set_threshold(self, threshold_kb: int) -> None:
        """parallel_optimizer_threshold, in KB: smaller parameters stay whole."""
        self._set(threshold_kb=integer(0)("MemoryLab.set_threshold", "threshold_kb", threshold_kb, SETTINGS))

    def set_shard_size(self, ranks: int) -> None:
        """optimizer_weight_shard_size: how many ranks share a slice; -1: all that hold the same one."""
        self._set(shard_size=self.one_of(ranks, SHARD_SIZES, "shard_size"))

    def set_accumulation(self, parts: int) -> None:
        """grad_accumulation_step: micro-batches per step, 1, 2 or 4."""
        self._set(accumulation=self.one_of(parts, ACCUMULATIONS, "accumulation"))

    def set_accumulation_shard(self, on: bool) -> None:
        """gradient_accumulation_shard: at level1, whether accumulated gradients are kept in slices (sent for every
        micro-batch) or whole.
        """
        if not isinstance(on, bool):
            raise ArgumentError(f"accumulation_shard {shorten(on)}", where="MemoryLab", allowed="True or False")
        self._set(accumulation_shard=on)

    def set_capacity(self, capacity: int | str | None) -> None:
        """The memory of a device, as a line across the bars: bytes, or a text such as "4 MiB"; None, 0 or "": no
        line.
        """
        self._capacity = _bytes_of(capacity)
        self._changed("picture")

    def select_rank(self, rank: int) -> None:
        """The rank whose step and traffic are shown."""
        self._rank = self.one_of(rank, range(self._settings.devices), "rank")
        self._changed("picture")

    def show_moment(self, moment: str) -> None:
        """When the bars are: "peak" (the fullest instruction of the step), "training" (of forward and backward),
        "resident" (between steps).
        """
        self._moment = self.one_of(moment, MOMENTS, "moment")
        self._changed("picture")

    def show_source(self, source: str) -> None:
        """Whose numbers the bars are: "predicted", or "simulated" or "measured" once that was run."""
        with self._lock:
            self._source = self.one_of(source, ("predicted", *self._results), "source")
        self._changed("picture")

    def set_zero(self, parameters: float | str, degree: int, optimizer_bytes: float = 12) -> None:
        """The model of the ZeRO paper's table: parameters (7.5e9 or "7.5B"), ranks that share it, bytes of optimizer
        state per parameter (K).
        """
        self._zero = zero_table(parse_count(parameters), degree, optimizer_bytes)
        self._changed("picture")

    # ---- what there is ----

    @property
    def settings(self) -> Settings:
        """How the network is compiled now."""
        return self._settings

    @property
    def width(self) -> int:
        """Of the stack; 0 for another network."""
        return self._width

    @property
    def capacity_bytes(self) -> int:
        """The line across the bars; 0: none."""
        return self._capacity

    @property
    def plan(self) -> Plan:
        """The compiled plan."""
        return self._planned(self._settings)

    @property
    def off(self) -> Plan:
        """The plan of the same settings without optimizer parallel."""
        return self._planned(_off(self._settings))

    @property
    def facts(self) -> tuple[ParameterFact, ...]:
        """What happens to each parameter."""
        return parameter_facts(self.plan, self.off)

    @property
    def results(self) -> dict[str, RunResult]:
        """What was run with the present settings: "simulated", "measured"."""
        return dict(self._results)

    def ranks(self, source: str = "predicted") -> tuple[Count, ...]:
        """What every rank holds and sends. Raises ArgumentError for a source that was not run."""
        if source != "predicted":
            return self._results[self.one_of(source, tuple(self._results), "source")].ranks
        return self._counted(self._settings)

    def ranks_without(self) -> tuple[Count, ...]:
        """As predicted `ranks`, without optimizer parallel."""
        return self._counted(_off(self._settings))

    def levels(self) -> dict[str, tuple[Count, ...] | ParallelLabError]:
        """Per level of the mode what every rank would hold and send; of one that cannot be, the error that says why."""
        found: dict[str, tuple[Count, ...] | ParallelLabError] = {}
        for level in LEVELS[self._settings.parallel_mode]:
            try:
                found[level] = self._counted(replace(self._settings, level=level))
            except ParallelLabError as error:
                found[level] = error
        return found

    @property
    def score(self) -> Score:
        """The puzzle's score: parameters of the stack, and whether they fit under the capacity line. Counted ones go
        before predicted ones.

        Raises ArgumentError for another network, or without a line.
        """
        with self._lock:
            if not self._subject.width or not self._capacity:
                hint = "Take the subject 'stack', and set_capacity('4 MiB')"
                raise ArgumentError("there is nothing to score", where="MemoryLab.score", hint=hint)
            source = next((s for s in ("measured", "simulated") if s in self._results), "predicted")
            peak_bytes = fullest(self.ranks(source)).peak_bytes
            count = self._job().parameter_count
            return Score(count, peak_bytes <= self._capacity, peak_bytes, source, self._pars.get(self._par_key()))

    # ---- running ----

    def run_simulated(self, steps: int = STEPS) -> None:
        """Count one step on simulated ranks, and train with and without optimizer parallel. Returns at once; `wait()`
        waits.
        """
        self._start_run("simulated", steps)

    def run_measured(self, steps: int = STEPS) -> None:
        """The same on worker processes, one per rank."""
        self._start_run("measured", steps)

    def find_par(self) -> None:
        """Search for the largest stack under the line, with this optimizer on so many devices. Returns at once;
        `wait()` waits.
        """
        _ = self.score  # raises where there is no puzzle
        settings, capacity, key = self._settings, self._capacity, self._par_key()

        def search() -> str:
            par = find_par(settings, capacity, self._run.stop.is_set)
            self._go_on()
            with self._lock:
                self._pars[key] = par
            return (
                "no stack fits under the line"
                if par is None
                else f"par: width {par.width}, {par.settings.level} ({par.tried} plans tried)"
            )

        self._start("searching for par", search)

    def show_best(self) -> None:
        """Take the solution that `find_par` has found. Raises ArgumentError before."""
        par = self._pars.get(self._par_key())
        if par is None:
            raise ArgumentError("par is not known", where="MemoryLab.show_best", hint="find_par() searches for it")
        self._change(_width=par.width, _settings=par.settings)

    def _start_run(self, source: str, steps: int) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ArgumentError(
                f"steps={shorten(steps)}", where=f"MemoryLab.run_{source}", allowed="An int, at least 1"
            )
        with self._lock:
            key, job, plan, off = self._key(self._settings), self._job(), self.plan, self.off

        def run() -> str:
            result = counted(source, job, key[2], plan, off, steps, self._run.stop.is_set)
            with self._lock:
                if key != self._key(self._settings):  # the lab shows something else by now
                    return f"{source}: the settings have changed since"
                self._results[source], self._source = result, source
            return f"{source}: one step counted, {steps} compared"

        self._start(
            f"{source}: {steps} steps with these settings and {steps} without optimizer parallel",
            run,
            f"{source} failed",
        )

    # ---- forms ----

    def snapshot(self) -> dict[str, Any]:
        """Everything the views show, as plain data."""
        with self._lock:
            return lab_snapshot(
                self,
                subject=self._subject,
                rank=self._rank,
                moment=self._moment,
                source=self._source,
                zero=self._zero,
                run=self._run.to_dict(),
                devices=DEVICES,
                shard_sizes=[s for s in SHARD_SIZES if s <= self._settings.devices],
            )

    # ---- inside ----

    def _set(self, **fields: Any) -> None:
        self._change(_settings=replace(self._settings, **fields))

    def _change(self, **changes: Any) -> None:
        """Take the changes, or none of them if what they ask for is refused."""
        with self._lock:
            before = {name: getattr(self, name) for name in changes}
            try:
                for name, value in changes.items():
                    setattr(self, name, value)
                self._update()
            except ParallelLabError:
                for name, value in before.items():
                    setattr(self, name, value)
                raise
        self._changed("picture")

    def _update(self) -> None:
        """Plans of the present settings. What was run before is no longer about them."""
        self._counted(_off(self._settings))
        self._counted(self._settings)
        self._results, self._source = {}, "predicted"
        self._rank = min(self._rank, self._settings.devices - 1)
        if not self._run.goes_on:
            self._run = LabRun()

    def _job(self) -> Job:
        return _job_of(self._subject.name, self._width)

    def _key(self, settings: Settings) -> _Key:
        return self._subject.name, self._width, settings

    def _par_key(self) -> tuple[int, str, int]:
        return self._settings.devices, self._settings.optimizer, self._capacity

    def _planned(self, settings: Settings) -> Plan:
        return _compiled(*self._key(settings))[0]

    def _counted(self, settings: Settings) -> tuple[Count, ...]:
        return _compiled(*self._key(_off(settings) if settings.level == "off" else settings))[1]


@lru_cache(maxsize=KEPT_JOBS)
def _job_of(subject: str, width: int) -> Job:
    """The network and its data. Kept for all labs: training takes copies of its parameters."""
    return get_subject(subject).job(width)


@lru_cache(maxsize=KEPT)
def _compiled(subject: str, width: int, settings: Settings) -> tuple[Plan, tuple[Count, ...]]:
    """The plan, and what every rank holds and sends by it. Kept for all labs: nothing goes into it but what is given
    here.
    """
    plan = _job_of(subject, width).compile(settings)
    return plan, predicted_ranks(plan)


def _off(settings: Settings) -> Settings:
    """The same without optimizer parallel; what only matters with it as it is by default."""
    plain = Settings()
    return replace(
        settings,
        level="off",
        threshold_kb=plain.threshold_kb,
        shard_size=plain.shard_size,
        accumulation_shard=plain.accumulation_shard,
    )


def _bytes_of(given: Any) -> int:
    """A size in bytes: an int, or a text such as "4 MiB", "900 KB", "2G". 0 for None and an empty text. Raises
    ArgumentError.
    """
    fault = ArgumentError(
        f"capacity {shorten(given)}", where="MemoryLab", allowed="A size such as '4 MiB' or '900 KiB', or '' for none"
    )
    if given is None:
        return 0
    if isinstance(given, str):
        text = given.strip().upper()[:LARGEST_TEXT].removesuffix("IB").removesuffix("B").replace(",", ".")
        number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS and text else (text, "")
        try:
            given = int(float(number) * UNITS[unit]) if text else 0
        except (ValueError, OverflowError):
            raise fault from None
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**60:
        raise fault
    return given
