"""Lesson 12, compose: the capstone. A layout under a memory and a traffic budget, its trace and its equality report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from ...base.events import Event
from ...base.units import bytes_text
from ..shared.equality import Equality
from .book import Exercise
from .composed import Composed, Work, _least_memory, messages_in
from .ideas import Idea
from .reading import another_form, reading, refusals
from .verdict import Note, Part, Wrong, judged

CAP, BUDGET = 530_000, 305_000  # bytes: at a rank's fullest moment; sent by a rank in a step
MOST_EVENTS = 100_000
FORM = 'work = train({"dp": 8, "tp": 1, "level": "off"}), or a dict with layout, trace and report'


def _parts(answer: Any) -> tuple[Any, Any, Any]:
    if isinstance(answer, Work):
        return answer.layout, answer.trace, answer.report
    if isinstance(answer, Mapping) and "layout" in answer:
        return answer["layout"], answer.get("trace"), answer.get("report")
    raise another_form(answer, FORM, "nothing yet")


def _capstone(answer: Any) -> Iterator[Part]:
    layout, trace, report = _parts(answer)
    with reading(layout, FORM), refusals("a layout that compiles on 8 ranks"):
        composed = Composed.of(layout)
        _ = composed.predicted
    yield Part("layout", True, f"{composed.layout}")
    memory, traffic = judged("memory", _memory, composed), judged("traffic", _traffic, composed)
    yield memory
    yield traffic
    yield judged("trace", _trace, composed, trace)
    yield judged("equality", _equality, composed, report)
    if memory.passed and traffic.passed:
        yield judged("par", _par, composed)


def _memory(composed: Composed) -> str:
    held = composed.memory_bytes
    if held > CAP:
        raise Wrong(f"{held:,} bytes at the fullest moment, counted", f"at most {CAP:,}", _memory_note(composed))
    return f"{held:,} of {CAP:,} bytes at the fullest moment of a rank, counted on 8 simulated ranks"


def _memory_note(composed: Composed) -> str:
    fullest = max(composed.counted, key=lambda count: count.peak_bytes)
    kinds = fullest.at("peak")
    most = max(kinds, key=kinds.__getitem__)
    text = f"Most of it: {most}, {bytes_text(kinds[most])}."
    layout = composed.layout
    if layout.level != "off" and most not in ("params", "grads", "optimizer"):
        return Note(f"{text} {SHARDED.note}", SHARDED.name)
    if layout.dp > 1 and layout.level == "off":
        return f"{text} {layout.dp} ranks hold the same optimizer states."
    return text


SHARDED = Idea(
    "ZeRO cuts all memory",
    "Optimizer parallel shards what belongs to a parameter, and not that.",
    {"layout": {"dp": 1, "tp": 8, "level": "level3"}},
    "memory",
)


def _traffic(composed: Composed) -> str:
    sent = composed.sent_bytes
    if sent > BUDGET:
        layout = composed.layout
        note = f"Activations are added up among {layout.tp} ranks, in every layer."
        if layout.dp > layout.tp:
            note = f"Gradients of the weights are added up among {layout.dp} ranks."
        raise Wrong(f"{sent:,} bytes sent by a rank in a step, counted", f"at most {BUDGET:,}", note)
    return f"{sent:,} of {BUDGET:,} bytes sent by a rank in a step, counted"


def _trace(composed: Composed, trace: Any) -> str:
    with reading(trace, "the events of a recorded step: work.trace"):
        events = [event for event in islice(trace, MOST_EVENTS) if isinstance(event, Event)]
    planned, traced = messages_in(composed.trained(steps=1)[1]), messages_in(events)
    if traced != planned:
        strange, missing = list(traced - planned), list(planned - traced)
        if not traced:
            raise Wrong("no message in the trace", "every message of every rank")
        if strange:
            rank, _, name, op, group, size = strange[0]
            text = f"{len(strange)} messages that this layout does not send; the first: {op} of {name}, {size} bytes"
            rule, note = "the messages of this layout's plan", "Is it the trace of another run?"
            raise Wrong(text, rule, note, rank, f"among {group}")
        rank, _, name, op, *_ = missing[0]
        text = f"{len(missing)} messages are missing; the first: {op} of {name}"
        raise Wrong(text, f"{sum(planned.values())} messages of 8 ranks", "The trace is not that of all ranks.", rank)
    if {event.source for event in events} != {"measured"}:
        note = "Train on processes: what the simulator saw does not prove a run."
        raise Wrong("events that were not measured", "a run on real processes", note)
    return f"{sum(traced.values())} messages of 8 ranks, each as the plan says, measured"


def _equality(composed: Composed, report: Any) -> str:
    if not isinstance(report, Equality):
        raise another_form(report, "the equality report: work.report", "no report")
    mine = composed.report()
    if report.rows != mine.rows:
        wrong = next(
            (a.tensor for a, b in zip(report.rows, mine.rows, strict=False) if a != b), "the number of tensors"
        )
        note = "Processes and simulator agree bit for bit, so the same layout has the same report."
        raise Wrong(f"another result than that of this layout, at {wrong}", mine.verdict, note)
    if not mine.equal:
        raise Wrong(mine.verdict, "every tensor equal to one device's, to rounding")
    return f"{mine.verdict}, computed again on simulated ranks"


def _par(composed: Composed) -> str:
    least, _ = _least_memory(BUDGET)
    held = composed.memory_bytes
    text = f"{held:,} bytes at the fullest moment, {held / least:.3f} x par"
    if held > least:
        rule = f"{least:,}: no layout within the traffic budget needs less, all were tried"
        raise Wrong(text, rule, "There is traffic left to spend." if composed.sent_bytes < BUDGET - 10_000 else "")
    return text


def _par_text() -> str:
    least, layout = _least_memory(BUDGET)
    return f"{layout}: {least:,} bytes"


EXERCISES = (
    Exercise(
        "12.1",
        "the capstone",
        (("layout", 1), ("memory", 3), ("traffic", 3), ("trace", 2), ("equality", 2), ("par", 2)),
        (
            "Which of the two budgets does pure data parallel break, and which one pure tensor parallel?",
            "Put the layouts side by side. Which counts send least? What is most of their memory?",
            "dp 4 with tp 2 sends least. Its memory is too large while all four replicas keep all optimizer states.",
            "dp 4, tp 2 with the optimizer parallel meets both budgets. Level 3 gathers parameters once more in the "
            "backward pass: more traffic, but within the budget, and the least memory.",
        ),
        _capstone,
        _par_text,
        "par",
        ideas=(SHARDED,),
        start="""\
layout = {"dp": 8, "tp": 1, "level": "off", "recompute": False}
work = {"layout": layout, "trace": None, "report": None}  # when it fits: work = train(layout)

check("12.1", work)
""",
    ),
)
