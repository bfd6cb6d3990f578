"""Lesson 07: gradients travel backwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.units import table_lines
from ...graph.compiler import compile_network
from ...ops.collectives.definitions import MESSAGES
from ...run.communicator import Request
from ...run.simulator import simulate
from ..exercises import check, hint
from ..exercises.lesson_07 import gap
from ..exercises.two_products import Chain
from ..faults import FAULTS, inject, table
from ..pictures.duals import with_duals
from ..pictures.gradient_graph import GradientGraph, gradient_graph
from ..pictures.numbers import simulated_step
from ..pictures.picture import message_table
from ..shared.equality import prove_equal
from ..shared.networks import NETWORKS, apply_strategies
from ..shared.prediction import Comparison
from ..shared.problems import get_problem
from .predictions import Answers

__all__ = [
    "FAULTS",
    "Request",
    "check",
    "compare",
    "drift",
    "gap",
    "graph",
    "hint",
    "inject",
    "prove",
    "table",
    "twins",
]
GATHERING = {"matmul": ((2, 4), (4, 1)), "relu": ((2, 4),), "matmul2": ((1, 1), (1, 8))}


def twins(strategies: dict[str, Any] = GATHERING) -> str:
    """The messages of a step of two products on eight ranks, each with the one that brings its gradient back."""
    plan = Chain(strategies).plan
    rows = [("", "", "message", "ranks", "")]
    for row in with_duals(plan, message_table(plan, 5)):
        group = " ".join(map(str, row["group"]))
        rows.append((f"#{row['number']}", row["phase"], row["collective"], group, row["dual_text"]))
    return "\n".join(table_lines(rows))


def graph(rank: int = 5) -> GradientGraph:
    """The same network with its loss: forward and backward of one rank of eight, with the values of a first step."""
    problem = get_problem("seed")
    net = apply_strategies(NETWORKS["quickstart"].factory(problem), GATHERING)
    optimizer = problem.optimizer(net.trainable_params())
    how = {"loss": problem.loss(), "optimizer": optimizer, "device_num": 8, "dataset_strategy": "full_batch"}
    plan = compile_network(net, *problem.batches[0], **how)
    return gradient_graph(plan, rank, simulated_step(plan, net, optimizer, problem.batches[0]))


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to the plan, and next to the numbers of a run."""
    plan = Chain(GATHERING).plan
    back = [instr for _, instr in plan.instructions("backward") if instr.is_communication]
    mirror = next(instr for instr in back if instr.out.startswith("w.grad"))
    return Answers("07", prediction, show).next_to(
        gather=(
            *(MESSAGES["all_gather"].adjoint, lambda: next(i.kind for i in back if "all_gather" in i.out)),
            "all ranks have used what was gathered: the gradients are added up, and each slice goes back to its rank",
        ),
        weight=((1, 5), mirror.group(5), "ranks 1 and 5 hold the same slice of w, and have seen different rows"),
        missing=(
            *("runs on", lambda: "runs on" if drift(5) else "fails"),
            "no shape is wrong and nobody waits: the weights of the ranks drift apart",
        ),
    )


def _rank(rank: int, ranks: int, steps: int, adds: bool) -> Iterator[Any]:
    """Data parallel on a rank's own rows of a line with noise; adds: whether gradients are added up."""
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(8, 3))
    y, w, losses = x @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=8), np.zeros(3), []
    for _ in range(steps):
        losses.append(float(((x @ w - y) ** 2).mean()))
        gradient = 2 * x.T @ (x @ w - y) / 8 / ranks
        w = w - 0.2 * ((yield Request("all_reduce", tuple(range(ranks)), gradient)) if adds else ranks * gradient)
    return w, losses


def drift(steps: int = 20) -> str:
    """Four ranks train the same three weights, with and without the all_reduce of the gradient."""
    lines = []
    for name, adds in (("with all_reduce", True), ("without", False)):
        found = simulate([_rank(rank, 4, steps, adds) for rank in range(4)])
        apart = max(float(np.abs(w - found[0][0]).max()) for w, _ in found)
        losses = ", ".join(f"{losses[0]:.2f} -> {losses[-1]:.2f}" for _, losses in found)
        lines.append(f"{name:16} losses {losses}; weights differ by up to {apart:.3g}")
    return "\n".join(lines)


def prove() -> Any:
    """Every gradient of the quickstart's network on eight processes, next to one device."""
    problem = get_problem("seed")
    net = apply_strategies(NETWORKS["quickstart"].factory(problem), GATHERING)
    how = {"loss": problem.loss(), "optimizer": problem.optimizer(net.trainable_params())}
    return prove_equal(net, problem.batches, **how, device_num=8, steps=5)
