"""The quickstart without a notebook: compile a small network for several ranks, train it, count what moved, and compare
with one device.

    job = Quickstart(devices=8, data="seed", net="quickstart", strategies={"matmul": ((2, 4), (4, 1))})
    print(job.text())                # before anything runs: operators, strategies, slices
    result = job.run()
    print(result.text())             # training log, messages, equality
    result.equal                     # True if every tensor equals one device's to rounding

The outcome and its texts are in `result.py`; `report_page(result)` (`report.py`) makes a page of it.
"""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, shorten
from ...base.settings.context import default_settings
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...ops.machine.primitive import Strategy
from ...ops.machine.sharding import default_strategy
from ...train.session import Session
from ..shared.equality import Equality, EqualityRow, nudge, rounding_bound
from ..shared.networks import NETWORKS, Network, apply_strategies, operator_primitives
from ..shared.problems import PROBLEMS, Problem, get_problem, problems_of
from .result import QuickstartResult, environment, messages_of, operators_text, ranks_text, slices_text

DEVICES = (1, 2, 4, 8)
# 5: the quickstart's epoch_size; of the others as many as are enough to see the loss fall, some 80 or 90 steps
DEFAULT_EPOCHS = {"seed": 5, "digits": 2, "pictures": 2, "text": 20, "clicks": 10}
RECORDED_STEPS = 5  # at the end of the training: their median hides a rank that had to wait for a core once
CHUNK_STEPS = 10  # steps of the simulator between two reports of progress
LARGEST_TEXT = 200  # characters of a strategy

Progress = Callable[[int, int], None]


def parse_strategy(text: str) -> tuple[str, Strategy]:
    """An operator and its strategy from one word of the command line. Raises ArgumentError; what a strategy may be is
    the operator's business.

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
    net, data   names of a network and of a problem it takes (`shared/networks.py`, `shared/problems.py`); data: default
                the network's first
    epochs      default: DEFAULT_EPOCHS[data]
    strategies  {operator: strategy}, over the network's preset; operators of the loss too, by the names of the table
                ("loss_fn.sub")
    executor    "processes", "simulator" or "mpi"

    Raises ArgumentError for unknown names and numbers out of range, StrategyError for a strategy that cannot be;
    nothing has run then.
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
            raise ArgumentError(
                f"network {shorten(net)} is not known", where="quickstart", allowed=f"One of {', '.join(NETWORKS)}"
            )
        if devices not in DEVICES:
            raise ArgumentError(
                f"{shorten(devices)} devices", where="quickstart", allowed=f"One of {', '.join(map(str, DEVICES))}"
            )
        known = problems_of(NETWORKS[net].kind)
        data = known[0] if data is None else data
        if data not in PROBLEMS:
            raise ArgumentError(
                f"data {shorten(data)} is not known", where="quickstart", allowed=f"One of {', '.join(PROBLEMS)}"
            )
        if data not in known:
            raise ArgumentError(
                f"data {data!r} for the network {net!r}", where="quickstart", allowed=f"One of {', '.join(known)}"
            )
        self.problem: Problem = get_problem(data)
        self.epochs = DEFAULT_EPOCHS[data] if epochs is None else epochs
        if isinstance(self.epochs, bool) or not isinstance(self.epochs, int) or self.epochs < 1:
            raise ArgumentError(f"{shorten(epochs)} epochs", where="quickstart", allowed="An int, at least 1")
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
            plan = compile_network(
                net,
                *self.problem.batches[0],
                loss=loss,
                optimizer=optimizer,
                device_num=devices,
                dataset_strategy="full_batch",
            )
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
            f"Training: {self.steps} steps, {self.epochs} epoch{'s' if self.epochs > 1 else ''} of "
            f"{p.steps_per_epoch}; "
            f"global batch of {len(p.batches[0][0])}; {type(self._parts[1]).__name__}."
        )
        return "\n\n".join([head, operators_text(self.plan), slices_text(self.plan)])

    def _alone(self, start: Any) -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Losses, gradients of the first step and parameters after the last of one device that begins with `start` (a
        network, or parameters).
        """
        with Session(self.single_plan, start, self._single_parts[1]) as single:
            losses = single.train(self.problem.batches, 1)
            gradients = single.gradients()
            losses += _train(single, self.problem.batches, self.steps - 1, lambda done, total: None, record=0)
            return losses, gradients, single.parameters()

    def run(self, on_progress: Progress | None = None) -> QuickstartResult:
        """Train on the ranks and on one device. on_progress is called with (steps done, steps), possibly from a helper
        thread.
        """
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
            near = self._alone(
                nudge(
                    self.single_plan, {name: p.asnumpy() for name, p in self._single_parts[0].parameters_dict().items()}
                )
            )
        n = self.steps
        pairs = [
            (
                "loss, every step",
                np.array(losses, np.float32),
                np.array(single_losses, np.float32),
                n,
                np.array(near[0], np.float32),
            )
        ]
        pairs += [
            (f"gradient of {name}, step 1", g, single_gradients[name], 1, near[1][name])
            for name, g in gradients.items()
        ]
        pairs += [
            (f"{name} after step {n}", v, single_parameters[name], n, near[2][name]) for name, v in parameters.items()
        ]
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
        piece = (
            steps - len(losses)
        ) % CHUNK_STEPS or CHUNK_STEPS  # the odd piece first: events are kept of the last one
        losses += session.train(batches, piece, record=record)
        progress(session.step, steps + 1)
    return losses


def _row(
    plan: Plan, name: str, found: np.ndarray, wanted: np.ndarray, steps: int, near: np.ndarray | None = None
) -> EqualityRow:
    """near: the same of a run whose start was moved by rounding; twice what that does is added to the bound (as
    `compare_sessions` does).
    """
    difference = np.abs(np.subtract(found, wanted, dtype=np.float64))
    moved = np.abs(np.subtract(wanted if near is None else near, wanted, dtype=np.float64))
    # what is no number on both sides has not been compared: it counts as different
    largest = float(difference.max()) if np.isfinite(difference).all() else math.inf
    return EqualityRow(
        name,
        largest,
        rounding_bound(plan, wanted, steps) + (2 * float(moved.max()) if np.isfinite(moved).all() else 0.0),
    )
