"""The Search Lab's choices as code: strategies read from lines of MindSpore, and the winner as whole programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...graph.plan import Plan
from ..code.exports import code_of_strategies
from ..code.lab_code import shard_line
from ..code.pasted import named_strategies, read_code
from ..code.program import program_of
from .space import Space


def strategies_in(text: str, space: Space) -> dict[str, Any]:
    """Strategies by operator of these lines. Raises ArgumentError naming the line."""
    lines = read_code(text)
    if not lines.strategies:
        raise lines.nothing_for("strategy")
    named = named_strategies(lines, {c.name: c.op_class for c in space.operators})
    return {name: one.strategy for name, one in named.items()}


def example_line(space: Space) -> str:
    """The first operator that has a choice, with the last one of its candidates."""
    one = next((o for o in space.operators if len(o.candidates) > 1), space.operators[0])
    return shard_line(one.name, one.candidates[-1])


def codes_of(plan: Plan, space: Space, title: str) -> dict[str, str]:
    """Programs of a plan by target, with every strategy that was searched written out."""

    def written(node: Any) -> Any:
        searched = node.strategy_source == "searched" and not node.name.startswith("loss_fn.")
        return replace(node, strategy_source="user") if searched else node

    chosen = replace(plan, graph=replace(plan.graph, nodes=tuple(map(written, plan.graph.nodes))))
    return code_of_strategies(program_of(chosen, space.subject.kept.optimizer, space.subject.data, title))
