"""Sharding propagation: from the operators that the learner gave a strategy to all others, neighbour by neighbour.

    strategies (parallel_mode="auto_parallel", search_mode="sharding_propagation")
        matmul   ((2, 4), (4, 1))    given
        relu     ((2, 4),)           follows matmul, whose result has slices (8, 16): a part of it, no message
        matmul2  ((2, 4), (4, 1))    follows relu, whose result has slices (8, 4): it is taken as it lies

From every given operator in turn, breadth first, consumers before producers. A neighbour without a strategy takes the
candidate that needs least communication on their edge (`candidates.py`). The time of a step is not looked at.

An operator between two given ones may have to be redistributed on one side. A parameter that several operators read is
a neighbour of all of them and must be split equally. Reshapes are passed through: the edge leads from the tensor before
to the one behind. Rules: MindSpore, graph_costmodel (StrategyPropagate, BFS).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import StrategyError, message
from ...base.settings.config import ParallelConfig
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.primitive import Strategy
from ...ops.machine.sharding import ShardingRule, default_strategy, legal_strategies, result_layout, sharding_rule
from ..ir import Graph, Node
from .candidates import Edge, Operator, Score, candidate_strategies, meeting, score
from .dataset_strategy import dataset_layouts


def propagate_strategies(graph: Graph, config: ParallelConfig, *, need_given: bool = True) -> Graph:
    """The graph with strategies (and reasons) for all forward operators, spread from those that have one.

    need_given  True: refuse a graph without given strategies. False (MindSpore 2.10): start from the inputs

    Raises StrategyError if nothing was given, or if operators that read one parameter cannot split it equally.
    """
    nodes = [n for n in graph.of_phase("forward") if not n.follows]
    if need_given and not any(n.strategy is not None for n in nodes):
        example = next((n.where for n in (*(n for n in nodes if n.op == "matmul"), *nodes)), "")
        what = f"there is no operator that is configured with a sharding strategy; {len(nodes)} operators"
        hint = "Give one: .shard(...) on an operator" + (f" such as {example}" if example else "")
        where, allowed = "compile, search_mode='sharding_propagation'", "At least one: the others follow from it"
        raise StrategyError(what, where=where, allowed=allowed, hint=hint)
    return _Propagation(graph, config, nodes).run()


@dataclass(frozen=True)
class _Decided:
    """A strategy that was settled."""

    rule: ShardingRule
    result: TensorLayout
    reason: str


class _Propagation:
    """The search over one graph: settled operators, held parameters, readers (operator, operand) of each tensor."""

    def __init__(self, graph: Graph, config: ParallelConfig, nodes: list[Node]) -> None:
        self.graph, self.config, self.device_num = graph, config, config.device_num
        self.shapes = graph.shapes()
        self.dtypes = {i.name: i.dtype for i in graph.inputs} | {n.name: n.dtype for n in graph.nodes}
        self.inputs = {i.name: i for i in graph.inputs}
        self.through = {n.name: n for n in graph.of_phase("forward") if n.follows}
        # a parameter that is read in another dtype: the cast is made where it is used, in the layout wanted there
        self.casts: dict[str, Node] = {}
        for node in nodes:
            if node.op == "cast" and node.strategy is None and self.parameter(node.ins[0]) is not None:
                self.casts[node.name] = node
        self.nodes = {n.name: n for n in nodes if n.name not in self.casts}
        self.decided: dict[str, _Decided] = {}
        self.held: dict[str, tuple[TensorLayout, str]] = {}
        self.readers: dict[str, list[tuple[str, int]]] = {}
        for node in self.nodes.values():
            for position, name in enumerate(node.ins):
                self.readers.setdefault(self.source(name), []).append((node.name, position))
        self.data = self.data_layouts()

    # ---- the graph as neighbours ----

    def parameter(self, name: str) -> str | None:
        """The parameter that `name` is, or is a cast of."""
        while name in self.casts:
            name = self.casts[name].ins[0]
        given = self.inputs.get(name)
        return name if given is not None and given.role == "parameter" else None

    def source(self, name: str) -> str:
        """The tensor behind reshapes (and, of a parameter, casts)."""
        while name in self.through:
            name = self.through[name].ins[0]
        return self.parameter(name) or name

    def data_layouts(self) -> dict[str, TensorLayout]:
        """Layouts of what the graph is given beside parameters and numbers."""
        given = [i for i in self.graph.inputs if i.role == "data"]
        layouts = dataset_layouts(self.config, tuple(i.shape for i in given))
        found = {i.name: layout for i, layout in zip(given, layouts, strict=True)}
        constants = (i for i in self.graph.inputs if i.role == "constant")
        return found | {i.name: TensorLayout.replicated(self.device_num, len(i.shape)) for i in constants}

    def operator(self, node: Node) -> Operator:
        shapes, itemsize = self.graph.operand_shapes(node), np.dtype(node.dtype).itemsize
        return Operator(node.opdef, shapes, node.attrs, node.shape, self.device_num, itemsize)

    def from_producer(self, source: str, layout: TensorLayout, reader: str) -> list[Edge]:
        """The edges by which operator `reader` reads the tensor `source`, laid out as `layout`."""
        shape, itemsize = self.shapes[source], np.dtype(self.dtypes[source]).itemsize
        return [Edge(layout, shape, own, position, itemsize) for position, own in self.reads(source, reader)]

    def from_consumer(self, producer: str, reader: str) -> list[Edge]:
        """The edges by which the decided operator `reader` reads the result of `producer`."""
        wanted, shape = self.decided[reader].rule.wanted, self.shapes[producer]
        itemsize = np.dtype(self.dtypes[producer]).itemsize
        return [Edge(wanted[at], there, shape, None, itemsize) for at, there in self.reads(producer, reader)]

    def reads(self, source: str, reader: str) -> list[tuple[int, tuple[int, ...]]]:
        """(operand, its global shape) by which `reader` reads the tensor `source`."""
        ins = self.nodes[reader].ins
        return [(at, self.shapes[ins[at]]) for who, at in self.readers.get(source, ()) if who == reader]

    # ---- the spread ----

    def run(self) -> Graph:
        for node in self.graph.of_phase("forward"):
            parameter = self.parameter(node.ins[0]) if node.opdef.view else None
            if parameter is not None:
                # a reshaped parameter has no layout of its own to pass on: every rank keeps all of it
                whole = TensorLayout.replicated(self.device_num, len(self.shapes[parameter]))
                self.held.setdefault(parameter, (whole, node.name))
        given = [n for n in self.nodes.values() if n.strategy is not None]
        for node in given:
            shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
            self.settle(
                node, sharding_rule(node.opdef, shapes, attrs, node.strategy, self.device_num, node.where), "given"
            )
        for node in given:
            self.spread(node.name)
        for node in self.nodes.values():
            if node.name not in self.decided:
                self.start(node)
                self.spread(node.name)
        if self.config.elementwise_op_strategy_follow:
            self.follow_producers()
        return replace(self.graph, nodes=tuple(self.finished(n) for n in self.graph.nodes))

    def spread(self, start: str) -> None:
        """Breadth first from one operator: its consumers, its producers, and parameters it shares with others."""
        waiting, parameters = deque([start]), set()
        while waiting:
            name = waiting.popleft()
            reached, producers = self.consumers(name), []
            if name in self.nodes:
                for operand in dict.fromkeys(self.source(i) for i in self.nodes[name].ins):
                    if operand in self.nodes:
                        producers.append(operand)
                    elif operand in self.held and operand not in parameters and len(self.consumers(operand)) > 1:
                        parameters.add(operand)
                        waiting.append(operand)
            for at, other in enumerate((*reached, *producers)):
                if other in self.decided:
                    continue
                edges: list[Edge] = []  # a parameter that both read says nothing of how the slices lie
                if at >= len(reached):
                    edges = self.from_consumer(other, name)
                elif name in self.nodes:
                    edges = self.from_producer(name, self.decided[name].result, other)
                self.choose(self.nodes[other], edges, name)
                waiting.append(other)

    def consumers(self, source: str) -> list[str]:
        return list(dict.fromkeys(reader for reader, _ in self.readers.get(source, ())))

    def start(self, node: Node) -> None:
        """Choose for an operator that no given one reaches: from the inputs that it reads."""
        known = [source for source in dict.fromkeys(self.source(i) for i in node.ins) if source in self.data]
        edges = [edge for source in known for edge in self.from_producer(source, self.data[source], node.name)]
        self.choose(node, edges, " and ".join(known))

    # ---- one choice ----

    def choose(self, node: Node, edges: list[Edge], neighbour: str) -> None:
        """Settle `node` by what is known of `neighbour`: an operator, a parameter, or inputs."""
        operator = self.operator(node)
        shapes, attrs = operator.shapes, dict(node.attrs)
        legal = legal_strategies(node.opdef, shapes, attrs, self.device_num, searched=True)
        candidates = candidate_strategies(node.opdef, shapes, attrs, self.device_num, self.config)
        if self.config.elementwise_op_strategy_follow:
            candidates = self.following(operator, candidates, legal, edges, neighbour)
        options = self.agreeing(node, candidates) or self.agreeing(node, legal)
        if not options:
            raise StrategyError(self.disagreement(node, legal[0]))
        best = min((score(operator, s, edges), s) for s in options)
        rule = operator.rule(best[1])
        self.settle(node, rule, self.reason(operator, best, edges, neighbour, options, legal))

    def following(
        self,
        operator: Operator,
        candidates: tuple[Strategy, ...],
        legal: tuple[Strategy, ...],
        edges: list[Edge],
        neighbour: str,
    ) -> Sequence[Strategy]:
        """Rule of `elementwise_op_strategy_follow`: split an element-wise operator as its producer, or that as it."""
        reads = [e for e in edges if e.position is not None]
        if operator.is_elementwise and reads:
            same = [s for s in legal if any(s[e.position] == e.layout.splits for e in reads if e.shape == e.own_shape)]
            return meeting(operator, same, edges) or same or candidates
        if edges and not reads and self.operator(self.nodes[neighbour]).is_elementwise:
            return meeting(operator, candidates, edges) or candidates
        return candidates

    def follow_producers(self) -> None:
        """Element-wise operators reached before their producer: split as it is in the end, if parameters allow."""
        for node in self.nodes.values():
            operator = self.operator(node)
            if node.strategy is not None or not operator.is_elementwise:
                continue
            producers = [i for i in node.ins if i in self.decided]
            whole = [i for i in producers if self.shapes[i] == node.shape]
            if not producers:
                continue
            producer = (whole or producers)[0]
            edges = self.from_producer(producer, self.decided[producer].result, node.name)
            if self.decided[node.name].rule.ins[edges[0].position].splits == edges[0].layout.splits:
                continue
            legal = legal_strategies(node.opdef, operator.shapes, dict(node.attrs), self.device_num, searched=True)
            options = self.agreeing(node, self.following(operator, (), legal, edges, producer))
            if options:
                chosen = min(options, key=lambda s, o=operator, e=edges: score(o, s, e))
                reason = f"split as {producer!r} is, which makes its operand (elementwise_op_strategy_follow)"
                self.settle(node, operator.rule(chosen), reason)

    def agreeing(self, node: Node, strategies: Iterable[Strategy]) -> list[Strategy]:
        """Those under which the node splits its parameters as their other operators do."""
        reads = [(i, self.parameter(name)) for i, name in enumerate(node.ins) if self.parameter(name) is not None]
        held = [(i, self.held[p][0]) for i, p in reads if p in self.held and self.held[p][1] != node.name]
        twice = [(i, j) for (i, p), (j, q) in itertools.combinations(reads, 2) if p == q]
        if not held and not twice:
            return list(strategies)
        operator, found = self.operator(node), []
        for strategy in strategies:
            ins = operator.rule(strategy).ins
            pairs = (*((ins[i], layout) for i, layout in held), *((ins[i], ins[j]) for i, j in twice))
            if all(mine.same_placement(other) for mine, other in pairs):
                found.append(strategy)
        return found

    def settle(self, node: Node, rule: ShardingRule, reason: str) -> None:
        result = result_layout(node.opdef, rule, node.shape, node.out_strategy, node.where)
        if replace(node, strategy=rule.strategy).keeps_own_part(self.device_num):
            result = rule.out.whole()
        self.decided[node.name] = _Decided(rule, result, reason)
        for position, name in enumerate(node.ins):
            parameter = self.parameter(name)
            if parameter is not None and self.held.get(parameter, (None, node.name))[1] == node.name:
                self.held[parameter] = (rule.wanted[position], node.name)

    # ---- what to tell the learner ----

    def reason(
        self,
        operator: Operator,
        best: tuple[Score, Strategy],
        edges: list[Edge],
        neighbour: str,
        options: list[Strategy],
        legal: tuple[Strategy, ...],
    ) -> str:
        """Why this strategy, in a sentence or two."""
        (communication, touched, *_), chosen = best
        rule = operator.rule(chosen)
        if not edges:
            shared = "no neighbour is known"
            if neighbour in self.held:
                shared = f"reads parameter {neighbour!r}, which {self.held[neighbour][1]!r} splits too"
            return f"{shared}: of {len(options)} candidates the one with least forward communication, then most pieces"
        edge = edges[0]
        there = edge.layout.slice_shape(edge.shape)
        here = (rule.out if edge.position is None else rule.ins[edge.position]).slice_shape(edge.own_shape)
        if edge.position is None:
            subject, lies = f"feeds {neighbour!r}, which wants slices {there}", "its result lies so"
            moved = f"its slices {here} are split further, without a message"
        else:
            subject, lies = f"follows {neighbour!r}, whose result has slices {there}", "they are taken as they lie"
            if neighbour in self.data:
                subject = f"reads input {neighbour!r}, slices {there}"
            moved = f"its slices {here} are taken out of them, without a message"
        if communication:
            moved = f"no candidate avoids a message here; slices {here} cost the least communication"
        text = f"{subject}: {moved if touched or communication else lies} ({len(options)} candidates)"
        return text + self.excluded(operator, chosen, edges, touched, legal)

    def excluded(
        self, operator: Operator, chosen: Strategy, edges: list[Edge], touched: float, legal: tuple[Strategy, ...]
    ) -> str:
        """What `fully_use_devices` had to do with it."""
        if not self.config.fully_use_devices:
            return ""
        nothing_moves = [s for s in meeting(operator, legal, edges) if s != chosen] if touched else []
        if nothing_moves:
            other = min(nothing_moves, key=lambda s: score(operator, s, edges))
            uses = f"uses {operator.pieces(other)} of {self.device_num} devices"
            return f"; {other} would move nothing, but {uses}, and fully_use_devices is True"
        if 1 < operator.pieces(chosen) < self.device_num:
            return f"; no strategy of it splits over all {self.device_num} devices"
        return ""

    def disagreement(self, node: Node, example: Strategy) -> str:
        """The text for an operator that cannot split a parameter as the others do."""
        shared = [p for p in map(self.parameter, node.ins) if p in self.held and self.held[p][1] != node.name]
        if not shared:
            name = next(p for p in map(self.parameter, node.ins) if p is not None)
            what = f"parameter {name!r} is read by it twice, and no strategy of it splits both equally"
        else:
            (layout, first), shape = self.held[shared[0]], self.shapes[shared[0]]
            settled = f"{first!r} splits it into slices {layout.slice_shape(shape)}"
            if first in self.through:
                settled = f"the reshape {first!r} of it keeps it whole on every rank"
            used = f"parameter {shared[0]!r} of shape {shape} is used by operators with different sharding strategies"
            what = f"{used}: {settled}, and no strategy of this one does"
        hint = f"Configure these operators with consistent sharding strategies: .shard(...), for example {example}"
        allowed = "All operators that use a parameter must split it equally"
        return message(what, where=node.where, allowed=allowed, hint=hint)

    def finished(self, node: Node) -> Node:
        """The node with what was settled for it."""
        if node.name in self.decided and node.strategy is None:
            made = self.decided[node.name]
            return replace(node, strategy=made.rule.strategy, strategy_source="propagated", strategy_reason=made.reason)
        if node.name in self.casts:
            shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
            strategy = default_strategy(node.opdef, shapes, attrs, self.device_num)
            return replace(node, strategy=strategy, strategy_source="default")
        return node
