"""Lesson 01: eight ranks, one network."""

from __future__ import annotations

from ...graph.plan import Plan
from ..exercises import check, hint
from ..quickstart.prediction import Prediction, ask, compare
from ..shared.equality import Equality, prove_equal
from ..shared.networks import NETWORKS, QuickNet, apply_strategies
from ..shared.problems import get_problem

__all__ = ["Prediction", "QuickNet", "ask", "check", "compare", "forward_messages", "hint", "prove"]


def forward_messages(plan: Plan, rank: int) -> str:
    """The messages of a rank in the forward pass, each with its group and the reason why it is there."""
    lines = []
    for _, instr in plan.instructions("forward"):
        if instr.is_communication:
            group = " ".join(map(str, instr.group(rank)))
            lines.append(f"{instr.kind} of {instr.ins[0]}, ranks {group}\n    {instr.reason}")
    return "\n".join(lines)


def prove() -> Equality:
    """The quickstart with its strategies, 20 steps on eight processes, next to one device."""
    problem, quickstart = get_problem("seed"), NETWORKS["quickstart"]
    net = apply_strategies(quickstart.factory(problem), quickstart.preset(8))
    how = {"loss": problem.loss(), "optimizer": problem.optimizer(net.trainable_params())}
    return prove_equal(net, problem.batches, **how, device_num=8, steps=20)
