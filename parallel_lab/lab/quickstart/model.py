"""The quickstart: compile a small network for several ranks, train it, count what moved, compare with one device.

    job = Quickstart(devices=8, data="seed", net="quickstart", strategies={"matmul": ((2, 4), (4, 1))})
    print(job.text())                # before anything runs: operators, strategies, slices
    result = job.run()
    print(result.text())             # training log, messages, equality
    result.equal                     # True if every tensor equals one device's to rounding
    result.to_html("report.html")    # all of it as a page that needs no network

The outcome and its texts are in `result.py`, the page in `report.py`.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.checks import is_int
from ...base.errors import ArgumentError, shorten
from ...base.settings.current import default_settings
from ...base.system import without_processes
from ...base.units import plural
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...ops.machine.primitive import Strategy
from ...ops.machine.sharding import default_strategy
from ...train.session import Session
from ..shared.equality import Equality, Values, equality_rows, nudge
from ..shared.networks import NETWORKS, Network, apply_strategies, operator_primitives
from ..shared.problems import PROBLEMS, Problem, get_problem, problems_of
from .report import QuickstartReport
from .result import environment, messages_of, operators_text, slices_text

DEVICES = (1, 2, 4, 8)
# 5: the quickstart's epoch_size; for the others as many as are enough to see the loss fall, some 80 or 90 steps
DEFAULT_EPOCHS = {"seed": 5, "digits": 2, "pictures": 2, "text": 20, "clicks": 10}
RECORDED_STEPS = 5  # at the end of the training: their median hides a rank that had to wait for a core once
CHUNK_STEPS = 10  # steps of the simulator between two reports of progress
LARGEST_TEXT = 200  # characters of a strategy

Progress = Callable[[int, int], None]


def parse_strategy(text: str) -> tuple[str, Strategy]:
    """An operator and its strategy, which is not checked yet, from a word of the command line. Raises ArgumentError.

    >>> parse_strategy("matmul=((2,4),(4,1))")
    ('matmul', ((2, 4), (4, 1)))
    """
    example = 'For example --strategy "matmul=((2,4),(4,1))"'
    name, sign, value = text.partition("=")
    if not sign or not name.strip() or not value.strip():
        raise ArgumentError(f"{shorten(text)} is not OPERATOR=STRATEGY", where="--strategy", hint=example)
    if len(value) > LARGEST_TEXT:
        what = f"{len(value)} characters for {name.strip()!r}"
        raise ArgumentError(what, where="--strategy", allowed=f"At most {LARGEST_TEXT}", hint=example)
    try:
        return name.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        what, allowed = f"{shorten(value)} cannot be read", "A tuple with one tuple of counts per input"
        raise ArgumentError(what, where=f"--strategy {name.strip()}", allowed=allowed, hint=example) from error


class Quickstart:
    """A quickstart, compiled and ready to run.

    devices     ranks: 1, 2, 4 or 8
    net, data   names of a network and of a problem it takes, by default its first (`networks.py`, `problems.py`)
    epochs      default: DEFAULT_EPOCHS[data]
    strategies  {operator: strategy}, over the network's preset; of the loss, too ("loss_fn.sub")
    executor    "processes", "simulator" or "mpi"

    Raises ArgumentError for unknown names and numbers out of range, StrategyError for an invalid strategy.
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
        _one_of(NETWORKS, net, f"network {shorten(net)} is not known")
        _one_of(DEVICES, devices, f"{shorten(devices)} devices")
        known = problems_of(NETWORKS[net].kind)
        data = known[0] if data is None else data
        _one_of(PROBLEMS, data, f"data {shorten(data)} is not known")
        _one_of(known, data, f"data {data!r} for the network {net!r}")
        self.problem: Problem = get_problem(data)
        self.epochs = DEFAULT_EPOCHS[data] if epochs is None else epochs
        if not is_int(self.epochs, 1):
            raise ArgumentError(f"{shorten(epochs)} epochs", where="quickstart", allowed="An int, at least 1")
        self.devices, self.net = devices, net
        self.executor = "simulator" if without_processes() else executor
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
                usual[name] = primitive.in_strategy or default_strategy(
                    primitive.op, *primitive.called_with, self.devices
                )
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
            how = {"loss": loss, "optimizer": optimizer, "device_num": devices, "dataset_strategy": "full_batch"}
            plan = compile_network(net, *self.problem.batches[0], **how)
        return plan, (net, optimizer)

    @property
    def steps(self) -> int:
        return self.epochs * self.problem.steps_per_epoch

    def text(self) -> str:
        """What will run: operators with strategies and shapes, and the slices of every parameter."""
        p = self.problem
        sizes = f" ({p.in_dim} -> {p.hidden_dim} -> {p.out_dim})" if p.kind == "rows" else ""
        where = "real processes on this machine" if self.executor != "simulator" else "simulated ranks in this process"
        where += f" ({why})" if (why := without_processes()) else ""
        epochs = f"{plural(self.epochs, 'epoch')} of {p.steps_per_epoch}"
        head = (
            f"The network {self.network.label!r}{sizes} on {plural(self.devices, 'rank')}, {where}.\n"
            f"Data: {p.label} ({p.note}).\n"
            f"Training: {self.steps} steps, {epochs}; global batch of {len(p.batches[0][0])}; "
            f"{type(self._parts[1]).__name__}."
        )
        return "\n\n".join([head, operators_text(self.plan), slices_text(self.plan)])

    def _alone(self, start: Any) -> tuple[list[float], Values]:
        """The losses, and what is compared, of one device that begins with `start` (a network, or parameters)."""
        with Session(self.single_plan, start, self._single_parts[1], check_finite=False) as single:
            losses = single.train(self.problem.batches, 1)
            gradients = single.gradients()
            losses += _train(single, self.problem.batches, self.steps - 1, lambda done, total: None, record=0)
            return losses, _compared(losses, gradients, single.parameters())

    def run(self, on_progress: Progress | None = None) -> QuickstartReport:
        """Train on the ranks and on one device. on_progress(steps done, steps) may be called from a helper thread."""
        progress = on_progress or (lambda done, total: None)
        batches, began = self.problem.batches, time.perf_counter()
        with Session(self.plan, *self._parts, executor=self.executor, check_finite=False) as session:
            # the first step on its own: its gradients are compared, and it carries the start of the workers
            losses = session.train(batches, 1, record=1)
            start_s = time.perf_counter() - began
            gradients, began = session.gradients(), time.perf_counter()
            losses += _train(session, batches, self.steps - 1, progress)
            train_s = time.perf_counter() - began
            parameters, events = session.parameters(), tuple(session.events)
        net = self._single_parts[0]
        single_losses, want = self._alone(net)
        near = None
        if self.problem.sensitive:
            start = {name: p.asnumpy() for name, p in net.parameters_dict().items()}
            _, near = self._alone(nudge(self.single_plan, start))
        rows = equality_rows(self.single_plan, _compared(losses, gradients, parameters), want, near)
        return QuickstartReport(
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
            equality=Equality(f"{plural(self.devices, 'rank')} against one device", rows),
            environment=environment(),
        )


def _one_of(known: Collection[Any], given: Any, what: str) -> None:
    if given not in known:
        raise ArgumentError(what, where="quickstart", allowed=f"One of {', '.join(map(str, known))}")


def _compared(losses: Sequence[float], gradients: Mapping[str, Any], parameters: Mapping[str, Any]) -> Values:
    """Losses, gradients of the first step and parameters after the last, by the names of their rows."""
    steps = len(losses)
    values = {"loss, every step": (np.array(losses, np.float32), steps)}
    values |= {f"gradient of {name}, step 1": (g, 1) for name, g in gradients.items()}
    return values | {f"{name} after step {steps}": (p, steps) for name, p in parameters.items()}


def _train(
    session: Session, batches: Sequence[Any], steps: int, progress: Progress, record: int = RECORDED_STEPS
) -> list[float]:
    """The remaining steps, in one piece on processes, in pieces in the simulator, which cannot report while it runs."""
    if steps < 1:
        return []
    if session.executor != "simulator":
        run = session.start(
            batches, steps, record=record, on_losses=lambda first, losses: progress(first + len(losses), steps + 1)
        )
        try:
            return run.result()
        except KeyboardInterrupt:
            run.stop()
            raise
    losses: list[float] = []
    while len(losses) < steps:
        # the odd piece first: events are kept of the last one
        piece = (steps - len(losses)) % CHUNK_STEPS or CHUNK_STEPS
        losses += session.train(batches, piece, record=record)
        progress(session.step, steps + 1)
    return losses
