"""The Run Lab: published training runs, each predicted next to what was printed; the learner may change one thing.

    lab = RunLab("titan-405b-cp1", change="cp 2", links="0.5")
    print(lab.to_text())
    lab.report.seconds, lab.changed.seconds         predicted, of the run and with the change

Where a step goes stands as a waterfall: each term begins where the one above it ends, and the last ends at the step. A
term that is off is named, and how far. All seconds but the printed ones are predicted (`cost/planner/run_reports.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...base.errors import ParallelLabError
from ...base.units import bytes_text, time_text
from ...cost.planner.decoder_point import decoder_misfit
from ...cost.planner.published import Run, published_run
from ...cost.planner.run_reports import DOUBTS, RunReport, changed_run, report_run, reports
from ..shared.lab import Lab, offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.sections import code, table

AS_IT_IS = "nothing"
LINKS = {"0.5": "half as fast", "1": "as they are", "2": "twice as fast"}
WIDE = 24  # columns of the waterfall
TERMS = tuple(name.removesuffix("_s") for name in DOUBTS)
# change in words: what `changed_run` takes
CHANGES: dict[str, dict[str, Any]] = {
    AS_IT_IS: {},
    **{f"tp {n}": {"tensor": n, "sequence_parallel": True} for n in (1, 2, 4, 8)},
    **{f"cp {n}": {"context": n} for n in (1, 2, 4, 8)},
    "cp by Ulysses": {"way": "ulysses"},
    "cp with gathered keys": {"way": "gathered"},
    **{f"pp {n}": {"stages": n, "chunks": 1, "schedule": "1f1b"} for n in (1, 2, 4, 8, 16)},
    "zero bubble (zb_h1)": {"schedule": "zb_h1", "chunks": 1},
    **{f"ep {n}": {"expert": n} for n in (1, 4, 8, 32)},
    **{f"micro-batches of {n}": {"micro_batch": n} for n in (1, 2, 4)},
    "optimizer level 1": {"level": 1},
    "optimizer level 3": {"level": 3},
    "nothing computed again": {"recompute": "none"},
    "layers computed again": {"recompute": "full"},
    "products in bf16": {"numbers": "bf16"},
    "products in fp8": {"numbers": "fp8"},
    "flash attention": {"flash": True},
    "gradients not hidden": {"overlap": False},
    "sums of layers hidden": {"tensor_overlap": True},
}


@lru_cache(maxsize=1024)
def changed_report(name: str, change: str, links: str = "1") -> RunReport | None:
    """The report of a run with a change, on links so many times as fast; None: that cannot be, or changes nothing."""
    run, pace = published_run(name), float(links)
    assert run.decoder is not None and run.machine is not None and run.point is not None
    try:
        now = changed_run(run, inside=pace, between=pace, **CHANGES[change])
        if change != AS_IT_IS and now.point == run.point:
            return None
        if now.point.batch != run.point.batch or now.point.devices != run.point.devices:
            return None
        if decoder_misfit(run.decoder, now.point, now.machine.cluster):
            return None
        found = report_run(now)
        before = report_run(changed_run(run, inside=pace, between=pace))
        return None if change != AS_IT_IS and found.seconds == before.seconds else found
    except ParallelLabError:
        return None


def run_names() -> tuple[str, ...]:
    """Runs whose step can be predicted, in the order of the file."""
    return tuple(name for name, report in reports().items() if report.prediction is not None)


class RunLab(Lab):
    """A published run, and what it would be with one change.

    run      an id of the file, such as "llama3-405b-16k"
    change   one of CHANGES that the run admits; "nothing": as it was
    links    "0.5", "1" or "2" times as many bytes per second, in nodes and between them
    term     what is explained

    Raises ArgumentError for others.
    """

    title = "Run Lab"
    scripts = ("runs/story.js", "shared/plain_lab.js")
    commands = COMMANDS
    replayed = ("links", "change", "run_id")
    free = ("links", "change")
    frame_height_px = 780

    def __init__(
        self,
        run: str = "llama3-405b-16k",
        change: str = AS_IT_IS,
        links: str = "1",
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._run_id, self._change, self._links, self._term = run, AS_IT_IS, "1", TERMS[0]
        self._begin(run_id=run, links=links, change=change)

    @setting("run", lambda lab: run_names(), only_new=True)
    def set_run_id(self, name: str) -> dict[str, Any]:
        """Another run, as it was."""
        return {"change": AS_IT_IS, "links": "1"}

    set_links = offered("links", LINKS, 'Links that carry "0.5", "1" or "2" times as many bytes per second.', links=str)

    @setting("change one thing", lambda lab: lab.changes)
    def set_change(self, change: str) -> None:
        """One change of the run: a degree, a schedule, what is computed again, ..."""

    set_term = offered("explain", TERMS, "The term that is explained.", look=True, term=str)

    # ---- what there is ----

    @property
    def changes(self) -> tuple[str, ...]:
        """Changes that this run admits."""
        return tuple(change for change in CHANGES if changed_report(self._run_id, change, self._links))

    @property
    def change_text(self) -> str:
        """What is changed."""
        links = "" if self._links == "1" else f"links {LINKS[self._links]}"
        change = "" if self._change == AS_IT_IS else self._change
        return " and ".join(filter(None, (links, change))) or "nothing changed"

    @property
    def report(self) -> RunReport:
        """The run as it was."""
        return reports()[self._run_id]

    @property
    def changed(self) -> RunReport:
        """With the change."""
        found = changed_report(self._run_id, self._change, self._links)
        assert found is not None  # only such are offered
        return found

    # ---- what is shown ----

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        report, changed = self.report, self.changed
        return {
            "status": self._status(report, changed),
            "notes": [],
            "sections": {
                "printed": self._printed(report.run, report),
                "waterfall": self._waterfall(report, changed),
                "term": self._explained(report, changed),
                "changes": self._changes(report),
                "memory": self._memory(report, changed),
                "numbers": self._numbers(changed),
                "python": code("In Python", self._python(), tab=True),
            },
        }

    def questions(self) -> list[Question]:
        """What a step takes, and which term takes most of it; with a change, which term decides."""
        report, about, hides = self.report, self._run_id, ("sections",)
        seconds, row = float(f"{report.seconds:.3g}"), report.run.row
        terms = sorted(report.waterfall(), key=lambda term: -term[1])
        text = f"{row['model']} on {row['devices']} x {row['hardware']}: how many seconds does the planner predict?"
        why = f"{report.error_bar_text}; printed: {_printed_text(report)}"
        asks = [Question(f"step of {about}", text, (seconds,), why, unit="s", within=0.25, hides=hides)]
        names = tuple(name for name, _, _ in terms)
        if len(names) > 2:
            second, share = names[1], terms[1][1] / seconds
            text = f"{names[0]} takes most of the step. Which term comes second?"
            asks.append(
                Question(
                    f"second of {about}", text, (second,), f"{share:.0%} of the step", hides=hides, choices=names[1:]
                )
            )
        return asks

    def _status(self, report: RunReport, changed: RunReport) -> str:
        own = f"{report.run.name}: {time_text(report.seconds)} a step predicted, {_printed_text(report)}"
        if self._change == AS_IT_IS and self._links == "1":
            off = f" Most likely off: {report.off_text}." if report.off_text else ""
            return f"{own}.{off}"
        name, more = _deciding(report, changed)
        ratio = changed.seconds / report.seconds - 1
        text = f"{own}. With {self.change_text}: {time_text(changed.seconds)}, {ratio:+.1%}"
        return f"{text}, decided by {name} ({more:+.3g} s)." if name else f"{text}."

    def _printed(self, run: Run, report: RunReport) -> dict[str, Any]:
        rows = [[name, value] for name, value in report.facts()]
        rows += [["source", f"{run.row['source']} ({run.row['confidence']})"]]
        return table("Printed and predicted", {"": "name", " ": "why"}, rows, small=report.error_bar_text, tab=True)

    def _waterfall(self, report: RunReport, changed: RunReport) -> dict[str, Any]:
        columns = {"term": "name", "one upon the other": "text", "seconds": "time", "up to": "time"}
        columns |= {"of the step": "text", "as it was": "time"}
        before = {name: seconds for name, seconds, _ in report.waterfall()}
        rows = []
        for name, seconds, begin in changed.waterfall():
            share = f"{seconds / changed.seconds:.1%}"
            first, last = (round(at / changed.seconds * WIDE) for at in (begin, begin + seconds))
            drawn = f"{'░' * first}{'█' * (last - first)}{'░' * (WIDE - last)}"
            rows.append([name, drawn, seconds, begin + seconds, share, before.get(name, 0.0)])
        notes = [f"A step: {time_text(changed.seconds)} predicted, {_printed_text(report)} of the run as it was."]
        return table("Where a step goes", columns, rows, small=f"predicted, with {self.change_text}", notes=notes)

    def _explained(self, report: RunReport, changed: RunReport) -> dict[str, Any]:
        """A term at a time: how it is made, and how far it may be off."""
        assert changed.prediction is not None and report.prediction is not None
        made = {name.strip(): how for name, _, how in changed.prediction.rows()}
        of = {}
        for term in TERMS:
            now, was = (getattr(found, f"{term}_s") for found in (changed.prediction, report.prediction))
            rows = [["it is", time_text(now)], ["as it was", time_text(was)], ["made of", made[term]]]
            rows.append(["in doubt by", f"{DOUBTS[f'{term}_s']:.0%}: {time_text(now * DOUBTS[f'{term}_s'])}"])
            of[term] = {"rows": rows, "small": term}
        return table("One term", {"": "name", " ": "why"}, by=["term"], of=of)

    def _changes(self, report: RunReport) -> dict[str, Any]:
        rows = []
        for change in self.changes[1:]:
            other = changed_report(self._run_id, change, self._links)
            assert other is not None and other.prediction is not None
            name, more = _deciding(report, other)
            fits = "" if other.prediction.fits else "does not fit"
            ratio = other.seconds / report.seconds - 1
            rows.append([change, other.seconds, f"{ratio:+.1%}", f"{name} {more:+.3g} s" if name else "", fits])
        columns = {
            "change": "name",
            "step": "time bar",
            "against the run": "text",
            "decided by": "why",
            "memory": "why",
        }
        small = "each alone, predicted; devices and batch stay"
        return table("If one thing were different", columns, rows, small=small, on=self._change, tab=True)

    def _memory(self, report: RunReport, changed: RunReport) -> dict[str, Any]:
        assert changed.prediction is not None and changed.run.machine is not None
        rows = [[kind, int(size)] for kind, size in changed.prediction.memory.items()]
        capacity = changed.run.machine.cluster.device.memory_bytes
        printed = report.run.measured.get("memory_gib")
        notes = [f"together {bytes_text(changed.prediction.memory_bytes)} of {bytes_text(capacity)}"]
        notes += [f"printed: {printed} GiB, which is what an allocator has reserved"] if printed else []
        return table("The fullest rank", {"what": "name", "memory": "bytes bar"}, rows, notes=notes, tab=True)

    def _numbers(self, changed: RunReport) -> dict[str, Any]:
        assert changed.prediction is not None
        return code("Number by number", changed.prediction.explain(), tab=True)

    def _python(self) -> str:
        change = ", ".join(f"{name}={value!r}" for name, value in CHANGES[self._change].items())
        lines = ["from parallel_lab.cost.planner import changed_run, published_run, report_run", ""]
        lines += [f"run = published_run({self._run_id!r})"]
        pace = "" if self._links == "1" else f"inside={self._links}, between={self._links}"
        both = ", ".join(filter(None, (pace, change)))
        lines += [f"run = changed_run(run, {both})"] if both else []
        return "\n".join([*lines, "print(report_run(run).text())"])


def _printed_text(report: RunReport) -> str:
    measured = report.run.step_s
    if measured is None or report.error is None:
        return "no rate printed"
    return f"{time_text(measured)} printed ({report.error:+.1%})"


def _deciding(report: RunReport, other: RunReport) -> tuple[str, float]:
    """The term that changes most in the direction of the step, and by how many seconds; "" where nothing changes."""
    assert report.prediction is not None and other.prediction is not None
    more = {name: getattr(other.prediction, name) - getattr(report.prediction, name) for name in other.prediction.terms}
    sign = 1 if more.pop("step_s") >= 0 else -1
    name = max(more, key=lambda term: sign * more[term])
    return (name.removesuffix("_s"), more[name]) if more[name] else ("", 0.0)
