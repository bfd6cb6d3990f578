"""The quickstart without a notebook: compile a small network for several ranks, train it, count what moved, and compare with one device.

    job = Quickstart(devices=8, data="seed", net="quickstart", strategies={"matmul": ((2, 4), (4, 1))})
    print(job.text())                # before anything runs: operators, strategies, slices
    result = job.run()
    print(result.text())             # training log, messages, equality
    result.equal                     # True if every tensor equals one device's to rounding

`report_page(result)` (`report.py`) makes a page of it.
"""

from __future__ import annotations

import ast
import math
import os
import platform
import statistics
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cluster import get_cluster
from ..compiler import compile_network
from ..context import default_settings
from ..errors import ArgumentError, message, shorten
from ..events import Event
from ..layout import slice_text
from ..ops.registry import Strategy
from ..ops.sharding import default_strategy
from ..plan import Plan
from ..run.session import Session
from ..units import bytes_text, time_text
from .equality import Equality, EqualityRow, additions_behind, nudge, rounding_bound
from .networks import NETWORKS, PROBLEMS, Network, Problem, apply_strategies, get_problem, operator_primitives, problems_of
from .picture import LOSS, message_table

__all__ = ["DEFAULT_EPOCHS", "Message", "Quickstart", "QuickstartResult", "parse_strategy"]

DEVICES = (1, 2, 4, 8)
# 5: the quickstart's epoch_size; of the others as many as are enough to see the loss fall, some 80 or 90 steps
DEFAULT_EPOCHS = {"seed": 5, "digits": 2, "pictures": 2, "text": 20, "clicks": 10}
CLUSTER = "laptop"
RECORDED_STEPS = 5  # at the end of the training: their median hides a rank that had to wait for a core once
CHUNK_STEPS = 10  # steps of the simulator between two reports of progress
LOG_LINES = 40  # longer logs are thinned out, unless all of it is asked for
LARGEST_TEXT = 200  # characters of a strategy

Progress = Callable[[int, int], None]


def parse_strategy(text: str) -> tuple[str, Strategy]:
    """An operator and its strategy from one word of the command line. Raises ArgumentError; what a strategy may be is the operator's business.

    >>> parse_strategy("matmul=((2,4),(4,1))")
    ('matmul', ((2, 4), (4, 1)))
    """
    example = 'For example --strategy "matmul=((2,4),(4,1))"'
    name, sign, value = text.partition("=")
    if not sign or not name.strip() or not value.strip():
        raise ArgumentError(message(f"{shorten(text)} is not OPERATOR=STRATEGY", where="--strategy", hint=example))
    if len(value) > LARGEST_TEXT:
        what = f"{len(value)} characters for {name.strip()!r}"
        raise ArgumentError(message(what, where="--strategy", allowed=f"At most {LARGEST_TEXT}", hint=example))
    try:
        return name.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        what, allowed = f"{shorten(value)} cannot be read", "A tuple with one tuple of counts per input"
        raise ArgumentError(message(what, where=f"--strategy {name.strip()}", allowed=allowed, hint=example)) from error


# ---- what comes out ----


@dataclass(frozen=True)
class Message:
    """One communication instruction, or inserted slice, of the step.

    group, groups     rank 0's group, and all groups that run it side by side; both empty for a slice, which moves nothing
    bytes_predicted, bytes_counted      operand that one rank hands over: from the plan's shapes, and from the arrays in the run
    time_predicted_s, time_measured_s   cost model; median over ranks and the recorded steps, waiting for the others included
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
        ranks = ranks_text(self.plan.device_num)
        if self.equal:
            count = len(self.equality.rows)
            return f"{ranks} computed what one device computes: {count} of {count} tensors are equal to rounding."
        bad = [row.tensor for row in self.equality.rows if not row.equal]
        return f"{ranks} did NOT compute what one device computes: {', '.join(bad)} beyond rounding."

    def text(self, *, full: bool = False) -> str:
        """Training log, messages and equality. full: every step of a long log, and the plan's program for rank 0."""
        parts = [self._log(full), self._messages(), self._equality()]
        if full:
            parts.append("THE PROGRAM OF RANK 0\n" + self.plan.text(rank=0))
        return "\n\n".join(parts)

    def _log(self, full: bool) -> str:
        per_epoch, n = self.problem.steps_per_epoch, len(self.losses)
        every = 1 if full else math.ceil(n / LOG_LINES)
        shown = [i for i in range(n) if i % every == 0 or i == n - 1]
        lines = ["TRAINING" + (f" (one step in {every} is shown; --full-text prints all)" if every > 1 else "")]
        lines += [f"epoch: {i // per_epoch + 1} step: {i % per_epoch + 1}, loss is {self.losses[i]}" for i in shown]
        rate = f"; then {n - 1} steps in {time_text(self.train_s)}, {self.steps_per_s:.0f} steps/s" if n > 1 else ""
        how = "wall time" if self.executor != "simulator" else "wall time of this one process, which plays all ranks"
        lines.append(f"Start and first step took {time_text(self.start_s)}{rate} ({how}).")
        return "\n".join(lines)

    def _messages(self) -> str:
        lines = ["MESSAGES AND SLICES OF ONE STEP (bytes and times per rank)"]
        if not self.messages:
            return "\n".join([*lines, "  none: every rank already holds what it needs"])
        head = ("#", "phase", "operator", "collective", "groups", "bytes predicted", "counted", "time predicted", self.source)
        rows = [
            (
                f"#{m.number}",
                m.phase,
                m.operator,
                m.collective,
                groups_text(m.groups),
                bytes_text(m.bytes_predicted if m.groups else None),
                bytes_text(m.bytes_counted if m.groups else None),
                time_text(m.time_predicted_s),
                time_text(m.time_measured_s),
            )
            for m in self.messages
        ]
        lines += table(head, rows, right=(5, 6, 7, 8))
        lines += [f"  {self.counts_text}.", f"  {self.times_text}"]
        lines += [f"  #{m.number} {m.reason}" + (f" ({m.origin})" if m.origin else "") for m in self.messages]
        return "\n".join(lines)

    def _equality(self) -> str:
        lines = ["EQUALITY WITH ONE DEVICE (same network, same data, same start)"]
        rows = [
            (r.tensor, f"{r.largest_difference:.2g}", f"{r.bound:.2g}", r.verdict.upper() if not r.equal else r.verdict) for r in self.equality.rows
        ]
        lines += table(("tensor", "largest difference", "rounding bound", "verdict"), rows, right=(1, 2))
        lines += [*textwrap.wrap(self.bound_text, 118, initial_indent="  ", subsequent_indent="  "), self.verdict]
        return "\n".join(lines)

    @property
    def counts_text(self) -> str:
        """How many of the numbered rows are messages: "7 messages, 5 slices that send nothing"."""
        sent = sum(bool(m.groups) for m in self.messages)
        local = len(self.messages) - sent
        slices = f", {local} slices that send nothing" if local > 1 else ", 1 slice that sends nothing" if local else ""
        return f"{sent} message{'' if sent == 1 else 's'}{slices}"

    @property
    def times_text(self) -> str:
        """Where the times of the messages come from, in a sentence."""
        if self.executor != "simulator":
            found = f"measured: median over ranks and the last {self._recorded} steps, waiting for the others and for a core included"
        else:
            found = f"simulated: median over ranks and the last {self._recorded} steps on a clock where every rank has a core of its own"
        return f"Times are predicted for the {CLUSTER!r} profile (eight ranks that are always ready) and {found}."

    @property
    def typical_step(self) -> tuple[Event, ...]:
        """Events of the recorded step of middle length: a single step may be the one in which a rank had to wait for a core."""
        spans: dict[int, tuple[float, float]] = {}
        for e in self.events:
            start, end = spans.get(e.step, (e.start_s, e.end_s))
            spans[e.step] = min(start, e.start_s), max(end, e.end_s)
        ordered = sorted(spans, key=lambda step: spans[step][1] - spans[step][0])
        return tuple(e for e in self.events if e.step == ordered[len(ordered) // 2]) if ordered else ()

    @property
    def _recorded(self) -> int:
        return len({e.step for e in self.events})

    @property
    def bound_text(self) -> str:
        """Where the rounding bounds come from, in a sentence."""
        n = additions_behind(self.single_plan)
        moved = "; to it is added twice what a start moved by as much does to one device" if self.problem.sensitive else ""
        return (
            f"Bound: 4 x sqrt({n:,}) x float32 eps x steps x largest element; {n:,} is the number of additions behind one element, counted over one "
            f"step, and rounding errors of a sum behave like a random walk (Higham and Mary 2019, theorem 2.4){moved}."
        )


# ---- the job ----


class Quickstart:
    """A quickstart, compiled and ready to run.

    devices     ranks: 1, 2, 4 or 8
    net, data   names of a network and of a problem it takes (`networks.py`, `problems.py`); data: default the network's first
    epochs      default: DEFAULT_EPOCHS[data]
    strategies  {operator: strategy}, over the network's preset; operators of the loss too, by the names of the table ("loss_fn.sub")
    executor    "processes", "simulator" or "mpi"

    Raises ArgumentError for unknown names and numbers out of range, StrategyError for a strategy that cannot be; nothing has run then.
    """

    def __init__(
        self,
        *,
        devices: int = 8,
        data: str | None = None,
        net: str = "quickstart",
        epochs: int | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        executor: str = "processes",
    ) -> None:
        if net not in NETWORKS:
            raise ArgumentError(message(f"network {shorten(net)} is not known", where="quickstart", allowed=f"One of {', '.join(NETWORKS)}"))
        if devices not in DEVICES:
            raise ArgumentError(message(f"{shorten(devices)} devices", where="quickstart", allowed=f"One of {', '.join(map(str, DEVICES))}"))
        known = problems_of(NETWORKS[net].kind)
        data = known[0] if data is None else data
        if data not in PROBLEMS:
            raise ArgumentError(message(f"data {shorten(data)} is not known", where="quickstart", allowed=f"One of {', '.join(PROBLEMS)}"))
        if data not in known:
            raise ArgumentError(message(f"data {data!r} for the network {net!r}", where="quickstart", allowed=f"One of {', '.join(known)}"))
        self.problem: Problem = get_problem(data)
        self.epochs = DEFAULT_EPOCHS[data] if epochs is None else epochs
        if isinstance(self.epochs, bool) or not isinstance(self.epochs, int) or self.epochs < 1:
            raise ArgumentError(message(f"{shorten(epochs)} epochs", where="quickstart", allowed="An int, at least 1"))
        self.devices, self.executor, self.net = devices, executor, net
        self.network: Network = NETWORKS[net]
        preset = self.network.preset(devices)
        self.strategies = {**preset, **(strategies or {})}
        # what runs without the given strategies: the operators there are, and a strategy that each one takes
        usual = self._usual(preset) if strategies else None
        self.plan, self._parts = self._compile(devices, self.strategies, usual)
        self.single_plan, self._single_parts = self._compile(1, {})

    def _usual(self, preset: Mapping[str, Strategy]) -> dict[str, Strategy]:
        plan, (net, _) = self._compile(self.devices, preset)
        usual = {n.name: n.strategy for n in plan.graph.nodes if n.strategy is not None}
        for name, primitive in operator_primitives(net).items():
            if primitive.called_with is not None:  # made of others, which are what runs
                usual[name] = primitive.in_strategy or default_strategy(primitive.op, *primitive.called_with, self.devices)
            elif f"{name}.0" in usual:  # of several results, the first
                usual[name] = usual[f"{name}.0"]
        return usual

    def _compile(
        self, devices: int, strategies: Mapping[str, Strategy], examples: Mapping[str, Strategy] | None = None
    ) -> tuple[Plan, tuple[Any, Any]]:
        loss = self.problem.loss()
        with default_settings():
            net = apply_strategies(self.network.factory(self.problem), strategies, loss=loss, examples=examples)
            optimizer = self.problem.optimizer(net.trainable_params())
            plan = compile_network(net, *self.problem.batches[0], loss=loss, optimizer=optimizer, device_num=devices, dataset_strategy="full_batch")
        return plan, (net, optimizer)

    @property
    def steps(self) -> int:
        return self.epochs * self.problem.steps_per_epoch

    def text(self) -> str:
        """What will run: operators with strategies and shapes, and the slices of every parameter."""
        p = self.problem
        sizes = f" ({p.in_dim} -> {p.hidden_dim} -> {p.out_dim})" if p.kind == "rows" else ""
        where = "real processes on this machine" if self.executor != "simulator" else "simulated ranks in this process"
        head = (
            f"The network {self.network.label!r}{sizes} on {ranks_text(self.devices)}, {where}.\n"
            f"Data: {p.label} ({p.note}).\n"
            f"Training: {self.steps} steps, {self.epochs} epoch{'s' if self.epochs > 1 else ''} of {p.steps_per_epoch}; "
            f"global batch of {len(p.batches[0][0])}; {type(self._parts[1]).__name__}."
        )
        return "\n\n".join([head, operators_text(self.plan), slices_text(self.plan)])

    def _alone(self, start: Any) -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Losses, gradients of the first step and parameters after the last of one device that begins with `start` (a network, or parameters)."""
        with Session(self.single_plan, start, self._single_parts[1]) as single:
            losses = single.train(self.problem.batches, 1)
            gradients = single.gradients()
            losses += _train(single, self.problem.batches, self.steps - 1, lambda done, total: None, record=0)
            return losses, gradients, single.parameters()

    def run(self, on_progress: Progress | None = None) -> QuickstartResult:
        """Train on the ranks and on one device. on_progress is called with (steps done, steps), possibly from a helper thread."""
        progress = on_progress or (lambda done, total: None)
        batches, began = self.problem.batches, time.perf_counter()
        with Session(self.plan, *self._parts, executor=self.executor) as session:
            # the first step on its own: its gradients are compared, and it carries the start of the workers
            losses = session.train(batches, 1, record=1)
            start_s = time.perf_counter() - began
            gradients, began = session.gradients(), time.perf_counter()
            losses += _train(session, batches, self.steps - 1, progress)
            train_s = time.perf_counter() - began
            parameters, events = session.parameters(), tuple(session.events)
        single_losses, single_gradients, single_parameters = self._alone(self._single_parts[0])
        near: tuple[Any, ...] = (single_losses, single_gradients, single_parameters)
        if self.problem.sensitive:
            near = self._alone(nudge(self.single_plan, {name: p.asnumpy() for name, p in self._single_parts[0].parameters_dict().items()}))
        n = self.steps
        pairs = [("loss, every step", np.array(losses, np.float32), np.array(single_losses, np.float32), n, np.array(near[0], np.float32))]
        pairs += [(f"gradient of {name}, step 1", g, single_gradients[name], 1, near[1][name]) for name, g in gradients.items()]
        pairs += [(f"{name} after step {n}", v, single_parameters[name], n, near[2][name]) for name, v in parameters.items()]
        rows = tuple(_row(self.single_plan, *pair) for pair in pairs)
        return QuickstartResult(
            problem=self.problem,
            net=self.network.label,
            plan=self.plan,
            single_plan=self.single_plan,
            executor=self.executor,
            epochs=self.epochs,
            losses=tuple(losses),
            single_losses=tuple(single_losses),
            start_s=start_s,
            train_s=train_s,
            events=events,
            messages=messages_of(self.plan, events),
            equality=Equality(f"{ranks_text(self.devices)} against one device", rows),
            environment=environment(),
        )


def _train(session: Session, batches: Sequence[Any], steps: int, progress: Progress, record: int = RECORDED_STEPS) -> list[float]:
    """The remaining steps, in one piece on processes, in pieces in the simulator, which cannot report while it runs."""
    if steps < 1:
        return []
    if session.executor != "simulator":
        run = session.start(batches, steps, record=record, on_losses=lambda first, losses: progress(first + len(losses), steps + 1))
        try:
            return run.result()
        except KeyboardInterrupt:
            run.stop()
            raise
    losses: list[float] = []
    while len(losses) < steps:
        piece = (steps - len(losses)) % CHUNK_STEPS or CHUNK_STEPS  # the odd piece first: events are kept of the last one
        losses += session.train(batches, piece, record=record)
        progress(session.step, steps + 1)
    return losses


def _row(plan: Plan, name: str, found: np.ndarray, wanted: np.ndarray, steps: int, near: np.ndarray | None = None) -> EqualityRow:
    """near: the same of a run whose start was moved by rounding; twice what that does is added to the bound (as `compare_sessions` does)."""
    difference = np.abs(np.subtract(found, wanted, dtype=np.float64))
    moved = np.abs(np.subtract(wanted if near is None else near, wanted, dtype=np.float64))
    # what is no number on both sides has not been compared: it counts as different
    largest = float(difference.max()) if np.isfinite(difference).all() else math.inf
    return EqualityRow(name, largest, rounding_bound(plan, wanted, steps) + (2 * float(moved.max()) if np.isfinite(moved).all() else 0.0))


def messages_of(plan: Plan, events: Iterable[Event]) -> tuple[Message, ...]:
    """The plan's messages as rank 0 sees them, with what the events say of them."""
    events = tuple(events)
    times: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.kind == "wait":  # for a message that bears the same name
            continue
        times.setdefault((event.phase, event.name), []).append(event.duration_s)
    moves = [(phase, i) for phase, i in plan.instructions() if i.is_communication or i.kind == "slice"]
    found = []
    for row, (phase, instr) in zip(message_table(plan, 0, events, CLUSTER), moves, strict=True):
        groups = tuple(dict.fromkeys(instr.group(rank) for rank in range(plan.device_num))) if instr.is_communication else ()
        seconds = times.get((phase, instr.out))
        found.append(
            Message(
                number=row["number"],
                phase=phase,
                operator=instr.name,
                collective=row["collective"],
                group=tuple(row["group"]),
                groups=groups,
                bytes_predicted=row["bytes_predicted"],
                bytes_counted=row["bytes_counted"],
                time_predicted_s=row["time_predicted_s"],
                time_measured_s=statistics.median(seconds) if seconds else None,
                reason=instr.reason,
                origin="" if instr.name.startswith(LOSS) else instr.origin.place,  # the loss function has no line of the network
            )
        )
    return tuple(found)


def environment() -> tuple[tuple[str, str], ...]:
    """What the run ran on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (
        ("Python", platform.python_version()),
        ("numpy", np.__version__),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("usable cores", str(cores)),
        ("profile of predicted times", get_cluster(CLUSTER).name),
    )


# ---- text ----


def operators_text(plan: Plan) -> str:
    """The table of operators: strategy, and who chose it, global shapes and slice shapes."""
    chosen = {n.name: {"user": "given"}.get(n.strategy_source, n.strategy_source) for n in plan.graph.nodes}
    rows = []
    for op in plan.to_dict(rank=0)["ops"]:
        if op["phase"] == "forward":
            strategy = "-" if op["strategy"] is None else str(tuple(map(tuple, op["strategy"])))
            in_global, in_slice = (" x ".join(str(tuple(s)) for s in op[key] or ()) or "-" for key in ("in_global", "in_slice"))
            rows.append((op["name"], op["op"], strategy, chosen.get(op["name"], "") or "-", f"{in_global} -> {tuple(op['out_global'][0])}", in_slice))
    title = "OPERATORS (a strategy says in how many slices each dim of each input is cut)"
    return "\n".join([title, *table(("operator", "type", "strategy", "set by", "global shapes", "input slices of one rank"), rows)])


def slices_text(plan: Plan) -> str:
    """Which slice of which parameter lies on which rank."""
    rows = []
    for given in plan.parameters:
        layout = plan.value(given.name).layout
        held: dict[str, list[int]] = {}
        for rank in range(plan.device_num):
            held.setdefault(slice_text(layout.slice_index(given.shape, rank), given.shape), []).append(rank)
        for i, (index, ranks) in enumerate(held.items()):
            shape = str(layout.slice_shape(given.shape))
            rows.append((given.name if not i else "", str(given.shape) if not i else "", index, shape, " ".join(map(str, ranks))))
    return "\n".join(["SLICES OF THE PARAMETERS", *table(("parameter", "shape", "slice", "slice shape", "held by ranks"), rows)])


def ranks_text(devices: int) -> str:
    """ "1 rank", "8 ranks"."""
    return f"{devices} rank{'s' if devices > 1 else ''}"


def groups_text(groups: Sequence[Sequence[int]]) -> str:
    """Groups with rank 0's first: "0-1-2-3 | 4-5-6-7"; a slice needs none.

    >>> groups_text(((0, 4), (1, 5)))
    '0-4 | 1-5'
    """
    return " | ".join("-".join(map(str, group)) for group in groups) or "none (local)"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines of a table with aligned columns; columns in `right` end at the same place."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines
