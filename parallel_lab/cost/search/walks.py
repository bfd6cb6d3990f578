"""The two modes that make no sum least: sharding_propagation and recursive_programming walk through the network.

What propagation compared when it settled an operator is shown term by term, in the order in which terms count: the
first in which two candidates differ decides between them, whatever comes behind.

    matmul2: settled behind relu
      ((1, 4), (4, 1))  chosen
      ((1, 1), (1, 4))  3,072 bytes more of redistribution; taken if relu is given ((1, 1),)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...base.settings.config import ParallelConfig
from ...graph.ir import Graph
from ...graph.passes.candidates import computation_first, edge_cost, pieces_first
from ...layout.named_layout import AnyStrategy
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.primitive import Strategy
from .places import Places, configured
from .propagation import Settled, walk_strategies
from .recursive import recursive_search

WALKS = ("sharding_propagation", "recursive_programming")
_EDGES = ("bytes more of redistribution", "bytes more touched by redistribution")
_TERMS = {
    "neighbour": (*_EDGES, "bytes more of partial sums", "fewer devices", ""),
    "neighbours": (*_EDGES, "bytes more computed on", "bytes more of partial sums", ""),
    "layout": ("", ""),
    "list": ("",),
}
_EQUAL = {"neighbour": "as good, and splits later dims", "layout": "has other slices than the neighbour"}


def walk(
    graph: Graph, config: ParallelConfig, method: str, given: Mapping[str, AnyStrategy]
) -> tuple[dict[str, AnyStrategy], tuple[Any, ...]]:
    """({operator: strategy}, steps) of one of `WALKS`.

    given   strategies of operators besides those that the network gives; recursive_programming looks at neither, and
            they take the place of what it found

    Raises StrategyError where propagation is given none at all; see `recursive_search`.
    """
    graph = with_given(graph, given)
    if method == "recursive_programming":
        found, steps = recursive_search(graph, config)
        return {**found, **given}, steps
    done, settled = walk_strategies(graph, config)
    return {n.name: n.strategy for n in done.nodes if n.strategy is not None}, settled


def with_given(graph: Graph, given: Mapping[str, AnyStrategy]) -> Graph:
    """The graph with these strategies as if its author had given them."""
    nodes = (
        replace(n, strategy=given[n.name], strategy_source="user", out_strategy=None) if n.name in given else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True)
class Compared:
    """A strategy that propagation looked at for an operator.

    numbers  what was compared, in this order: less is better
    reason   "chosen", or the first term in which the chosen one is better;  amount: by how much
    """

    strategy: AnyStrategy
    numbers: tuple[Any, ...]
    reason: str
    amount: float = 0.0

    @property
    def chosen(self) -> bool:
        """Whether this is the candidate that won."""
        return self.reason == "chosen"


def compared(settled: Settled) -> list[Compared]:
    """What was compared for an operator, the chosen one first; of a given one nothing else was."""
    if not settled.options:
        return [Compared(settled.strategy, (), "chosen")]
    rows = [(_numbers(settled, strategy, at), strategy) for at, strategy in enumerate(settled.options)]
    mine = next(numbers for numbers, strategy in rows if strategy == settled.strategy)
    found = []
    for numbers, strategy in sorted(rows, key=lambda row: row[0]):
        reason, amount = _decided(settled, mine, numbers)
        found.append(Compared(strategy, numbers, "chosen" if strategy == settled.strategy else reason, amount))
    return found


def _numbers(settled: Settled, strategy: Strategy, at: int) -> tuple[Any, ...]:
    if settled.by == "layout":
        return (not any(_lies(settled, strategy, edge.layout) for edge in settled.edges), at)
    if settled.by == "list":
        return (at,)
    edges = edge_cost(settled.facts, strategy, settled.edges)
    if settled.by == "neighbour":
        return (*edges, *pieces_first(settled.facts, strategy))
    return (*edges, *computation_first(settled.facts, strategy), at)


def _lies(settled: Settled, strategy: Strategy, layout: TensorLayout) -> bool:
    (edge,), rule = settled.edges, settled.facts.rule(strategy)
    here = rule.outs[edge.result].whole() if edge.position is None else rule.operand_layouts[edge.position]
    return here.same_placement(layout)


def _decided(settled: Settled, mine: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[str, float]:
    for term, a, b in zip(_TERMS[settled.by], mine, other, strict=True):
        if a != b:
            if not term:
                break
            return f"{b - a:,.0f} {term}", float(b - a)
    else:
        return "as good", 0.0
    equal = "as good, and later in the list"
    return (_EQUAL.get(settled.by, equal) if settled.by != "layout" or other[0] else equal), 0.0


def flip(
    graph: Graph, config: ParallelConfig, settled: Settled, strategy: AnyStrategy, given: Mapping[str, AnyStrategy]
) -> tuple[str, AnyStrategy] | None:
    """(a neighbour, a strategy of it) with which propagation gives the operator `strategy`; None: not one does.

    A neighbour's strategies that leave the tensor as the operator would want it, each tried by a walk of its own.
    """
    nodes = {n.name: n for n in graph.nodes}
    rule = settled.facts.rule(strategy)
    for link, edge in zip(settled.links, settled.edges, strict=True):
        name = link.source if link.target == settled.operator else link.target
        if name not in nodes or nodes[name].opdef.view or configured(nodes[name]) or name in given:
            continue
        places = Places(graph, config)
        for other in places.candidates(nodes[name]):
            theirs = places.operator(nodes[name]).rule(other)
            if link.source == name:
                fits = places.results(nodes[name], theirs)[link.tensor].same_placement(
                    rule.operand_layouts[link.position]
                )
            else:
                fits = theirs.operand_layouts[link.position].same_placement(edge.here(rule))
            if fits and walk(graph, config, WALKS[0], {**given, name: other})[0].get(settled.operator) == strategy:
                return name, other
    return None
