"""Published runs predicted: seconds and bytes next to what was printed, the error bar, and the term that is off.

    report = report_run("titan-405b-cp8")            an id of the file, or a row of its form
    print(report.text())
    print(run_table())                               all rows with their errors

The error bar of a prediction is the median error of the bar rows of its chip on which nothing was fitted. A prediction
that misses by more than a tenth names the term that is most likely off: of all terms the one whose doubt, in seconds,
is largest (`DOUBTS`), and how many times as long it would have to take.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ...base.checks import number
from ...base.units import table_lines, time_text
from .clusters import MACHINES, Machine
from .decoder_point import DecoderPoint
from .decoder_pricing import DecoderPrediction, DecoderPricing, attention_alone
from .published import COUNTS, Run, published_rows, published_run, read_run

FEW_ROWS = 3  # a chip with fewer is reported, not counted
NEAR, FAR = 0.10, 0.25
MEMORY_NEAR = 0.15
GIB = 2**30  # bytes
# how far a term may be off, in parts of it: kernels are known best, what overlaps least
DOUBTS = {
    "compute_s": 0.1,
    "attention_s": 0.25,
    "moved_s": 0.5,
    "tensor_s": 0.5,
    "context_s": 0.5,
    "expert_s": 0.5,
    "copies_s": 0.5,
    "offload_s": 0.5,
    "update_s": 0.5,
    "waiting_s": 0.3,
}
# the same of bytes: states follow from the degrees, activations from what kernels keep; what is there besides is the
# framework's, and what is not printed of a plan (a micro-batch, what is recomputed) is guessed
MEMORY_DOUBTS = {"params": 0.05, "grads": 0.1, "optimizer": 0.05, "activations": 0.25, "workspace": 0.5}
GUESSED = 1.0  # of activations, where a micro-batch or the recompute is assumed
RESERVED = "printed is what the allocator has reserved, at most on any rank; predicted what one of them needs"


@dataclass(frozen=True)
class RunReport:
    """A run with its prediction; None where nothing can be predicted (`run.why`).

    seconds     predicted, of a step or of one attention
    share       of attention's kernel on one device, predicted; None: of a step
    """

    run: Run
    prediction: DecoderPrediction | None
    seconds: float | None
    share: float | None = None

    @property
    def chip(self) -> str:
        """Its machine's name."""
        return self.run.machine.cluster.name if self.run.machine else ""

    @property
    def error(self) -> float | None:
        """Predicted over measured seconds, less 1; None where one of them is missing."""
        measured = self.run.step_s
        return None if self.seconds is None or not measured else self.seconds / measured - 1

    @property
    def fitted(self) -> bool:
        """Whether the chip's constants were fitted on it."""
        reached = self.run.machine.reached if self.run.machine else None
        return reached is not None and self.run.name in reached.fitted

    @property
    def fitted_text(self) -> str:
        """On which runs the chip's constants were fitted, in words; "" where on none."""
        reached = self.run.machine.reached if self.run.machine else None
        if reached is None or not reached.fitted:
            return ""
        others = " and ".join(name for name in reached.fitted if name != self.run.name)
        if self.fitted:
            return f"fitted on this run{' and ' * bool(others)}{others}: its agreement proves nothing"
        return f"fitted on {others}, not on this run"

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured bytes of the fullest rank, less 1."""
        measured = self.run.measured.get("memory_gib")
        return None if self.prediction is None or not measured else self.prediction.memory_bytes / GIB / measured - 1

    @property
    def off(self) -> tuple[str, float] | None:
        """The term that is most likely off, and how many times as long it would have to take; None: within a tenth."""
        error, found = self.error, self.prediction
        if error is None or found is None or abs(error) <= NEAR or not self.run.step_s:
            return None
        seconds = {name: getattr(found, name) for name in DOUBTS}
        missing = self.run.step_s - found.step_s
        name = max(seconds, key=lambda term: DOUBTS[term] * seconds[term])
        return name.removesuffix("_s"), max(0.0, 1 + missing / seconds[name])

    @property
    def off_text(self) -> str:
        """The same in words; "" within a tenth."""
        if self.off is None:
            return ""
        return f"{self.off[0]}: {self.off[1]:.2g} times what is predicted would explain it"

    @property
    def memory_off(self) -> tuple[str, float] | None:
        """The kind of bytes that is most likely off, and how many times as many there would have to be; None: within
        15 %, or nothing is printed.
        """
        error, found = self.memory_error, self.prediction
        if error is None or found is None or abs(error) <= MEMORY_NEAR:
            return None
        guessed = any(word in text for text in self.run.assumed for word in ("micro-batches", "recompute"))
        doubts = MEMORY_DOUBTS | ({"activations": GUESSED} if guessed else {})
        name = max(doubts, key=lambda kind: doubts[kind] * found.memory[kind])
        missing = self.run.measured["memory_gib"] * GIB - found.memory_bytes
        return name, max(0.0, 1 + missing / found.memory[name])

    @property
    def memory_off_text(self) -> str:
        """The same in words, with what the two numbers count; "" within 15 %."""
        if self.memory_off is None:
            return ""
        kind, times = self.memory_off
        guessed = [text for text in self.run.assumed if kind == "activations" and not text.startswith("batch")]
        why = f" ({', '.join(guessed)}: assumed)" if guessed else ""
        return f"{kind}{why}: {times:.2g} times what is predicted would explain it; {self._alike_text}{RESERVED}"

    @property
    def _alike_text(self) -> str:
        """Which run of the model on the chip needs as many bytes, to 2 %, and printed a tenth less; or ""."""
        sizes = {
            name: (found.run.measured["memory_gib"], found.prediction.memory_bytes)
            for name, found in reports().items()
            if found.prediction and found.memory_error is not None
            if (found.run.row["model"], found.chip) == (self.run.row["model"], self.chip)
        }
        mine = self.run.measured["memory_gib"]
        needed = self.prediction.memory_bytes if self.prediction else 0
        alike = [(printed, name) for name, (printed, needs) in sizes.items() if abs(needs - needed) < 0.02 * needed]
        printed, name = min(alike, default=(mine, ""))
        if printed >= mine / 1.1:
            return ""
        more = f"{mine - printed:.1f} GiB follow from neither degrees nor schedule"
        return f"but {name} needs as many by the same rules and printed {printed}: {more}; "

    def waterfall(self) -> list[tuple[str, float, float]]:
        """(term, its seconds, where it begins) of a step, from 0 on, the terms that take time."""
        rows, at = [], 0.0
        for name in self.prediction.terms[1:] if self.prediction else ():
            seconds = getattr(self.prediction, name)
            if seconds > 0:
                rows.append((name.removesuffix("_s"), seconds, at))
            at += seconds
        return rows

    @property
    def error_bar_text(self) -> str:
        """The error bar of its chip, in words."""
        return error_bar_text(self.chip)

    def facts(self) -> list[tuple[str, str]]:
        """(what, value): plan, what is assumed, printed and predicted numbers, what is most likely off."""
        run = self.run
        if run.point is None or self.seconds is None:
            return [("not predicted", run.why)]
        rows = [("plan", run.point.text())]
        if run.assumed:
            rows.append(("not printed, assumed", ", ".join(run.assumed)))
        measured, what = run.step_s, "one attention" if run.of_attention else "step"
        printed = "no rate is printed" if measured is None else f"{time_text(measured)} printed"
        if measured is not None and self.error is not None:
            printed += f": {self.error:+.1%}" + (", fitted on it" if self.fitted else "")
        rows.append((what, f"{time_text(self.seconds)} predicted, {printed}"))
        if self.share is not None:
            measured_share = run.measured.get("share_of_flash_attention", 0)
            rows.append(("share of the kernel's speed", f"{self.share:.1%} predicted, {measured_share:.1%} printed"))
        if self.fitted_text:
            rows.append(("constants of the chip", self.fitted_text))
        if self.off_text:
            rows.append(("most likely off", self.off_text))
        if run.formula_error is not None:
            counted = f"{run.formula_error:+.2%}, counting {COUNTS[run.counts]}"
            rows.append(("TFLOP/s by the formula over those printed", counted))
        if self.prediction is not None and self.memory_error is not None:
            sizes = f"{self.prediction.memory_bytes / GIB:.1f} GiB predicted, {run.measured['memory_gib']} printed"
            rows.append(("memory", f"{sizes}: {self.memory_error:+.0%}"))
        if self.memory_off_text:
            rows.append(("most likely off in memory", self.memory_off_text))
        return rows

    def __repr__(self) -> str:
        """A cell that ends with it shows its text."""
        return self.text()

    def text(self) -> str:
        """Everything, as lines."""
        row = self.run.row
        head = f"{self.run.name}: {row['model']} on {row['devices']} x {row['hardware']}, {row.get('precision', '')}"
        lines = [head, f"source: {row.get('source', 'not given')} ({row.get('confidence', '')})"]
        lines += [f"{name}: {value}" for name, value in self.facts()]
        if self.seconds is not None:
            lines.append(self.error_bar_text)
        rows = table_lines(self.prediction.rows(), right=[1]) if self.prediction else []
        return "\n".join([*lines, *([""] if rows else []), *rows])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.prediction.to_dict() if self.prediction else None
        numbers = {"seconds": self.seconds, "share": self.share, "measured_s": self.run.step_s, "error": self.error}
        numbers |= {"fitted": self.fitted, "formula_error": self.run.formula_error, "memory_error": self.memory_error}
        words = {"error_bar": self.error_bar_text, "off": self.off_text, "why": self.run.why}
        words["memory_off"] = self.memory_off_text
        return {"row": dict(self.run.row), **numbers, **words, "prediction": found}


def report_run(run: str | Mapping[str, Any] | Run) -> RunReport:
    """The report of an id of the file, or of a row of the file's form. Raises ArgumentError for wrong ones."""
    if not isinstance(run, Run):
        run = published_run(run) if isinstance(run, str) else read_run(run)
    if run.decoder is None or run.machine is None or run.point is None:
        return RunReport(run, None, None)
    if run.of_attention:
        return RunReport(run, None, *attention_alone(run.decoder, run.machine, run.point, backward=run.both_passes))
    found = DecoderPricing(run.decoder, run.point, run.machine).predict()
    return RunReport(run, found, found.step_s)


@cache
def reports() -> dict[str, RunReport]:
    """{id: report} of every run of the file."""
    return {name: report_run(name) for name in published_rows()}


@cache
def chip_errors() -> dict[str, tuple[float, ...]]:
    """{chip: errors of its bar rows on which nothing was fitted}."""
    found: dict[str, list[float]] = {}
    for report in reports().values():
        if report.run.bar and report.error is not None and not report.fitted:
            found.setdefault(report.chip, []).append(report.error)
    return {chip: tuple(errors) for chip, errors in found.items()}


def error_bar(chip: str) -> tuple[float, int, str]:
    """The median error of a chip's rows, in parts, how many rows there are, and which: without any, those of chips with
    the same constants, or of all.
    """
    errors = chip_errors()
    constants = {machine.cluster.name: machine.reached for machine in MACHINES}
    alike = [name for name in errors if constants.get(chip) and constants.get(name) == constants[chip]]
    for chips, words in (([chip], chip), (alike, f"chips with {chip}'s constants"), (list(errors), "other chips")):
        found = [error for name in chips for error in errors.get(name, ())]
        if found:
            return statistics.median(map(abs, found)), len(found), words
    raise AssertionError("no row counts")


def error_bar_text(chip: str) -> str:
    """The error bar in words."""
    median, count, words = error_bar(chip)
    few = ", too few to count" if count < FEW_ROWS else ""
    return f"error bar: +-{median:.0%}, the median of {count} published runs of {words}{few}"


def run_table(rows: Iterable[RunReport] | None = None) -> str:
    """Rows with what was printed and predicted, as text. rows: None for all of the file"""
    found = list(reports().values() if rows is None else rows)
    lines = [
        ("run", "bar", "chip", "printed", "predicted", "error", "formula", "memory", "most likely off, or why not")
    ]
    for report in found:
        run, error = report.run, report.error
        share = report.share is not None and run.measured.get("share_of_flash_attention")
        printed, predicted = (time_text(s) if s else "-" for s in (run.step_s, report.seconds))
        apart = "-" if error is None else f"{error:+.1%}"
        if share:
            printed, predicted, apart = (
                f"{share:.1%}",
                f"{report.share:.1%}",
                f"{100 * (report.share - share):+.1f} points",
            )
        formula, memory = run.formula_error, report.memory_error
        last = run.why or ("fitted on it" if report.fitted else report.off_text)
        bar = "fit" if report.fitted else "bar" if run.bar else ""
        numbers = ("" if formula is None else f"{formula:+.2%}", "" if memory is None else f"{memory:+.0%}")
        lines.append((run.name, bar, report.chip, printed, predicted, apart, *numbers, last))
    return "\n".join([*table_lines(lines, right=[3, 4, 5, 6, 7]), "", *_summary(found)])


def _summary(found: list[RunReport]) -> Iterable[str]:
    counted: list[float] = []
    chips = sorted({report.chip for report in found if report.chip})
    for chip in chips:
        errors = [r.error for r in found if r.chip == chip and r.run.bar and not r.fitted and r.error is not None]
        fits = [r.run.name for r in found if r.chip == chip and r.fitted]
        if errors:
            enough = len(errors) + len(fits) >= FEW_ROWS
            counted += errors * enough
            median = statistics.median(map(abs, errors))
            few = "" if enough else ", too few to count"
            yield f"{chip}: median {median:.1%} of {len(errors)}{few}; fitted on {', '.join(fits) or 'runs of others'}"
    if counted:
        near, far = (sum(abs(error) <= limit for error in counted) for limit in (NEAR, FAR))
        median = statistics.median(map(abs, counted))
        yield f"{len(counted)} rows count: {near} within {NEAR:.0%}, {far} within {FAR:.0%}, median {median:.1%}"


# ---- what if ----


def with_links(machine: Machine, *, inside: float = 1.0, between: float = 1.0) -> Machine:
    """The machine with links that carry so many times as many bytes per second, in a node and between nodes."""
    cluster = machine.cluster
    for name, times in (("inside", inside), ("between", between)):
        number(0, 1e6, above=True)("with_links", name, times)
    link = replace(cluster.link, beta_s_per_byte=cluster.link.beta_s_per_byte / inside)
    node = cluster.node_link and replace(cluster.node_link, beta_s_per_byte=cluster.node_link.beta_s_per_byte / between)
    return replace(machine, cluster=replace(cluster, link=link, node_link=node))


def changed_run(run: Run, *, inside: float = 1.0, between: float = 1.0, **fields: Any) -> Run:
    """The run with other links, or with other fields of its plan (degrees, schedule, recompute, ...). Ranks of a larger
    or smaller degree come from the copies. Raises ArgumentError for a plan that cannot be.
    """
    assert run.machine is not None and run.point is not None
    point: DecoderPoint = run.point
    if fields:
        whole = point.devices
        now = replace(point, data=1, **{k: v for k, v in fields.items() if k != "data"})
        copies = fields.get("data") or max(1, whole // now.devices)
        batch = point.batch
        rows = max(1, batch // (copies * now.micro_batch))
        point = replace(now, data=copies, micro_batches=rows)
    return replace(run, machine=with_links(run.machine, inside=inside, between=between), point=point)
