"""What a run of the quickstart has found: losses, messages and equality with one device, as values and as text.

result = Quickstart().run()
print(result.text())
result.messages[0].bytes_counted
"""

from __future__ import annotations

import math
import platform
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...base.cluster import get_cluster
from ...base.events import Event
from ...base.system import cores
from ...base.units import bytes_text, plural, table_lines, time_text
from ...graph.plan import Plan
from ...layout.tensor_layout import slice_text
from ..pictures.picture import LOSS, message_table
from ..shared.equality import Equality, additions_behind
from ..shared.problems import Problem

CLUSTER = "laptop"
# what a Message takes as it is from the message table
IN_TABLE = ("number", "phase", "operator", "collective", "reason")
IN_TABLE += ("bytes_predicted", "bytes_counted", "time_predicted_s")
LOG_LINES = 40  # longer logs are thinned out, unless all of it is asked for
MESSAGE_HEAD = ("#", "phase", "operator", "collective", "groups", "bytes predicted", "counted", "time predicted")


@dataclass(frozen=True)
class Message:
    """One communication instruction, or inserted slice, of the step.

    group, groups     rank 0's group, and all groups that run it side by side; empty for a slice, which moves nothing
    bytes_predicted, bytes_counted      operand that one rank hands over: from the plan's shapes, and from the arrays
    time_predicted_s, time_measured_s   cost model; median over ranks and recorded steps, with waiting for the others
    """

    number: int
    phase: str
    operator: str
    collective: str
    group: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    bytes_predicted: int
    bytes_counted: int | None
    time_predicted_s: float
    time_measured_s: float | None
    reason: str
    origin: str


@dataclass(frozen=True, eq=False)
class QuickstartResult:
    """One finished run.

    losses, single_losses   one per step, of the parallel run and of one device
    train_s                 seconds of all steps but the first;  start_s: from nothing to the end of the first step
    events                  of the last steps, measured on processes, simulated in the simulator
    environment             (what, value) pairs: versions, cores
    """

    problem: Problem
    net: str
    plan: Plan
    single_plan: Plan
    executor: str
    epochs: int
    losses: tuple[float, ...]
    single_losses: tuple[float, ...]
    start_s: float
    train_s: float
    events: tuple[Event, ...]
    messages: tuple[Message, ...]
    equality: Equality
    environment: tuple[tuple[str, str], ...]

    @property
    def equal(self) -> bool:
        return self.equality.equal

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second after the first one; None if there was only one."""
        return (len(self.losses) - 1) / self.train_s if len(self.losses) > 1 else None

    @property
    def source(self) -> str:
        """Where the times of the events come from: "measured" or "simulated"."""
        return "measured" if self.executor != "simulator" else "simulated"

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        ranks = plural(self.plan.device_num, "rank")
        if self.equal:
            count = len(self.equality.rows)
            return f"{ranks} computed what one device computes: {count} of {count} tensors are equal to rounding."
        bad = [row.tensor for row in self.equality.rows if not row.equal]
        return f"{ranks} did NOT compute what one device computes: {', '.join(bad)} beyond rounding."

    def __repr__(self) -> str:
        """A cell that ends with it shows its text."""
        return self.text()

    def text(self, *, full: bool = False) -> str:
        """Training log, messages and equality. full: every step of a long log, and the plan's program for rank 0."""
        parts = [self._log(full), self._messages(), self._equality()]
        if full:
            parts.append("THE PROGRAM OF RANK 0\n" + self.plan.text(rank=0))
        return "\n\n".join(parts)

    @property
    def log_lines(self) -> list[str]:
        """A line per step, as LossMonitor writes it."""
        n = self.problem.steps_per_epoch
        return [f"epoch: {i // n + 1} step: {i % n + 1}, loss is {y}" for i, y in enumerate(self.losses)]

    def _log(self, full: bool) -> str:
        n = len(self.losses)
        every = 1 if full else math.ceil(n / LOG_LINES)
        lines = ["TRAINING" + (f" (one step in {every} is shown; --full-text prints all)" if every > 1 else "")]
        lines += [line for i, line in enumerate(self.log_lines) if i % every == 0 or i == n - 1]
        rate = f"; then {n - 1} steps in {time_text(self.train_s)}, {self.steps_per_s:.0f} steps/s" if n > 1 else ""
        how = "wall time" if self.executor != "simulator" else "wall time of this one process, which plays all ranks"
        lines.append(f"Start and first step took {time_text(self.start_s)}{rate} ({how}).")
        return "\n".join(lines)

    def _messages(self) -> str:
        lines = ["MESSAGES AND SLICES OF ONE STEP (bytes and times per rank)"]
        if not self.messages:
            return "\n".join([*lines, "  none: every rank already holds what it needs"])
        rows = [(*MESSAGE_HEAD, self.source)]
        for m in self.messages:
            sizes = (m.bytes_predicted, m.bytes_counted) if m.groups else (None, None)
            texts = f"#{m.number}", m.phase, m.operator, m.collective, groups_text(m.groups)
            times = map(time_text, (m.time_predicted_s, m.time_measured_s))
            rows.append((*texts, *map(bytes_text, sizes), *times))
        lines += table_lines(rows, right=(5, 6, 7, 8), indent="  ")
        lines += [f"  {self.counts_text}.", f"  {self.times_text}"]
        lines += [f"  #{m.number} {m.reason}" + (f" ({m.origin})" if m.origin else "") for m in self.messages]
        return "\n".join(lines)

    def _equality(self) -> str:
        lines = ["EQUALITY WITH ONE DEVICE (same network, same data, same start)"]
        rows = [("tensor", "largest difference", "rounding bound", "verdict")]
        for r in self.equality.rows:
            verdict = r.verdict if r.equal else r.verdict.upper()
            rows.append((r.tensor, f"{r.largest_difference:.2g}", f"{r.bound:.2g}", verdict))
        lines += table_lines(rows, right=(1, 2), indent="  ")
        lines += [*textwrap.wrap(self.bound_text, 118, initial_indent="  ", subsequent_indent="  "), self.verdict]
        return "\n".join(lines)

    @property
    def counts_text(self) -> str:
        """How many of the numbered rows are messages: "7 messages, 5 slices that send nothing"."""
        sent = sum(bool(m.groups) for m in self.messages)
        local = len(self.messages) - sent
        slices = f", {local} slices that send nothing" if local > 1 else ", 1 slice that sends nothing" if local else ""
        return f"{plural(sent, 'message')}{slices}"

    @property
    def times_text(self) -> str:
        """Where the times of the messages come from, in a sentence."""
        steps = len({e.step for e in self.events})
        how = ", waiting for the others and for a core included"
        if self.executor == "simulator":
            how = " on a clock where every rank has a core of its own"
        text = f"Times are predicted for the {CLUSTER!r} profile (eight ranks that are always ready) and "
        return text + f"{self.source}: median over ranks and the last {steps} steps{how}."

    @property
    def typical_step(self) -> tuple[Event, ...]:
        """Events of the recorded step of middle length: in a single one a rank may have had to wait for a core."""
        spans: dict[int, tuple[float, float]] = {}
        for e in self.events:
            start, end = spans.get(e.step, (e.start_s, e.end_s))
            spans[e.step] = min(start, e.start_s), max(end, e.end_s)
        ordered = sorted(spans, key=lambda step: spans[step][1] - spans[step][0])
        return tuple(e for e in self.events if e.step == ordered[len(ordered) // 2]) if ordered else ()

    @property
    def bound_text(self) -> str:
        """Where the rounding bounds come from, in a sentence."""
        n = additions_behind(self.single_plan)
        moved = (
            "; to it is added twice what a start moved by as much does to one device" if self.problem.sensitive else ""
        )
        return (
            f"Bound: 4 x sqrt({n:,}) x float32 eps x steps x largest element; {n:,} is the number of additions behind "
            "one element, counted over one step, and rounding errors of a sum behave like a random walk (Higham and "
            f"Mary 2019, theorem 2.4){moved}."
        )


def messages_of(plan: Plan, events: Iterable[Event]) -> tuple[Message, ...]:
    """The plan's messages as rank 0 sees them, with what the events say of them."""
    events = tuple(events)
    times: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.kind != "wait":  # for a message that bears the same name
            times.setdefault((event.phase, event.name), []).append(event.duration_s)
    moves = [(phase, i) for phase, i in plan.instructions() if i.is_communication or i.kind == "slice"]
    messages = []
    for row, (phase, instr) in zip(message_table(plan, 0, events, CLUSTER), moves, strict=True):
        of_ranks = [instr.group(rank) for rank in range(plan.device_num)] if instr.is_communication else []
        seconds = times.get((phase, instr.out))
        messages.append(
            Message(
                **{name: row[name] for name in IN_TABLE},
                group=tuple(row["group"]),
                groups=tuple(dict.fromkeys(of_ranks)),
                time_measured_s=statistics.median(seconds) if seconds else None,
                # the loss function has no line of the network
                origin="" if instr.name.startswith(LOSS) else instr.origin.place,
            )
        )
    return tuple(messages)


def environment() -> tuple[tuple[str, str], ...]:
    """What the run ran on."""
    return (
        ("Python", platform.python_version()),
        ("numpy", np.__version__),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("usable cores", str(cores())),
        ("profile of predicted times", get_cluster(CLUSTER).name),
    )


def operators_text(plan: Plan) -> str:
    """The table of operators: strategy, and who chose it, global shapes and slice shapes."""
    chosen = {n.name: {"user": "given"}.get(n.strategy_source, n.strategy_source) for n in plan.graph.nodes}
    rows = [("operator", "type", "strategy", "set by", "global shapes", "input slices of one rank")]
    for op in plan.to_dict(rank=0)["ops"]:
        if op["phase"] == "forward":
            strategy = "-" if op["strategy"] is None else str(tuple(map(tuple, op["strategy"])))
            in_global, in_slice = (
                " x ".join(str(tuple(s)) for s in op[key] or ()) or "-" for key in ("in_global", "in_slice")
            )
            shapes, set_by = f"{in_global} -> {tuple(op['out_global'][0])}", chosen.get(op["name"], "") or "-"
            rows.append((op["name"], op["op"], strategy, set_by, shapes, in_slice))
    title = "OPERATORS (a strategy says in how many slices each dim of each input is split)"
    return "\n".join([title, *table_lines(rows, indent="  ")])


def slices_text(plan: Plan) -> str:
    """Which slice of which parameter lies on which rank."""
    rows = [("parameter", "shape", "slice", "slice shape", "held by ranks")]
    for parameter in plan.parameters:
        layout = plan.value(parameter.name).layout
        held: dict[str, list[int]] = {}
        for rank in range(plan.device_num):
            held.setdefault(slice_text(layout.slice_index(parameter.shape, rank), parameter.shape), []).append(rank)
        for i, (index, ranks) in enumerate(held.items()):
            of = ("", "") if i else (parameter.name, str(parameter.shape))
            rows.append((*of, index, str(layout.slice_shape(parameter.shape)), " ".join(map(str, ranks))))
    return "\n".join(["SLICES OF THE PARAMETERS", *table_lines(rows, indent="  ")])


def groups_text(groups: Sequence[Sequence[int]]) -> str:
    """Groups with rank 0's first: "0-1-2-3 | 4-5-6-7"; a slice needs none.

    >>> groups_text(((0, 4), (1, 5)))
    '0-4 | 1-5'
    """
    return " | ".join("-".join(map(str, group)) for group in groups) or "none (local)"
