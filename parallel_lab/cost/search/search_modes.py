"""The three search modes of auto_parallel, as one function of a traced network.

`set_algo_parameters` narrows what is looked at: fully_use_devices and tensor_slice_align_* the candidates,
elementwise_op_strategy_follow what stands behind an operator, enable_algo_approxi how many partial plans are kept.
`set_cost_model_context` weighs the terms, and device_memory_capacity limits what a device holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from ...base.settings.config import ParallelConfig
from ...base.settings.current import get_cost_model_context
from ...graph.ir import Graph
from ...layout.named_layout import AnyStrategy, Strategy
from .eliminate import Solution, eliminate
from .mindspore_model import mindspore_problem
from .places import Places
from .problem import Problem
from .propagation import propagate_strategies
from .recursive import Halving, recursive_search, rows_scattered


def search_strategies(graph: Graph, config: ParallelConfig) -> Graph:
    """The graph with a strategy and a reason for every forward operator; those that were given one keep it, but for
    recursive_programming, which looks at none. Raises StrategyError where no choice fits.
    """
    if config.search_mode == "sharding_propagation":
        return propagate_strategies(graph, config)
    if config.search_mode == "recursive_programming":
        strategies, steps = recursive_search(graph, config)
        found = with_strategies(graph, config, strategies, recursive_reasons(strategies, steps), given_too=True)
        outs = {n.name: rows_scattered(n, cast(Strategy, n.strategy), config) for n in found.nodes if n.strategy}
        return replace(
            found, nodes=tuple(replace(n, out_strategy=outs.get(n.name) or n.out_strategy) for n in found.nodes)
        )
    problem = mindspore_problem(graph, config)
    kept = config.algo_approxi_epsilon if config.enable_algo_approxi else 0.0
    solution = eliminate(problem, int(get_cost_model_context("device_memory_capacity")), approximate=kept)
    return with_strategies(graph, config, problem.strategies(solution.chosen), reasons(problem, solution))


def with_strategies(
    graph: Graph,
    config: ParallelConfig,
    strategies: Mapping[str, AnyStrategy],
    why: Mapping[str, str],
    *,
    given_too: bool = False,
) -> Graph:
    """The graph with these strategies for its operators. given_too: instead of those that the learner gave, too."""
    places = Places(graph, config)
    nodes = []
    for node in graph.nodes:
        if given_too and node.name in strategies:
            node = replace(node, strategy=None, out_strategy=None)
        strategy = strategies.get(node.name)
        nodes.append(places.finished(node, strategy, "searched", why.get(node.name, "")))
    return replace(graph, nodes=tuple(nodes))


def reasons(problem: Problem, found: Solution) -> dict[str, str]:
    """{operator: what its candidate costs, of how many}."""
    around = [choice.costs[chosen].copy() for choice, chosen in zip(problem.choices, found.chosen, strict=True)]
    for pair in problem.pairs:
        around[pair.target] += pair.costs[found.chosen[pair.source], found.chosen[pair.target]]
    texts = {}
    for choice, amounts in zip(problem.choices, around, strict=True):
        terms = zip(problem.terms, amounts, strict=True)
        parts = ", ".join(f"{term.text(amount)} of {term.name}" for term, amount in terms if amount)
        of = f"of {len(choice.candidates)} candidates" if len(choice.candidates) > 1 else "the only candidate"
        costs = f"{parts or 'it costs nothing'}, with what brings its inputs"
        texts[choice.name] = f"in the plan of least cost, {of}: {costs}"
    return texts


def recursive_reasons(strategies: Mapping[str, AnyStrategy], steps: tuple[Halving, ...]) -> dict[str, str]:
    """{operator: which cuts it took}."""
    cuts: dict[str, list[str]] = {}
    for step in steps:
        if step.label is not None:
            cuts.setdefault(step.operator, []).append(step.kind)
    texts = {name: f"halved {len(kinds)} times: {', then '.join(kinds)}" for name, kinds in cuts.items()}
    return {name: texts.get(name, "split as its neighbours are") for name in strategies}
