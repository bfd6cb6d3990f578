"""Sharding propagation: from the operators that the learner gave a strategy to all others, neighbour by neighbour.

    strategies (parallel_mode="auto_parallel", search_mode="sharding_propagation")
        matmul   ((2, 4), (4, 1))    given
        relu     ((2, 4),)           follows matmul, whose result has slices (8, 16): a part of it, no message
        matmul2  ((2, 4), (4, 1))    waits for its second operand; then follows relu, as its slices (8, 4) lie

One walk starts from every given operator, in the order of the network, and a last one from the dataset; what a walk has
settled, later ones leave alone. A walk takes one operator after another, breadth first:

    its consumers of one tensor    are settled at once, by the layout in which they get it
    its consumers of several       wait until all operands are reached, or until nothing else is left: then the first of
                                   the network is settled, from the operands reached so far. If the next given operator
                                   comes before it, it is left to that one's walk
    its producers                  are settled at once, by the layout in which it wants their result
    a Reshape                      takes the layouts before and behind that need no message and least work; the next
                                   operator takes its first candidate with that layout
    a parameter of several         is a producer with several consumers; in the end all of them split it equally

Settled is what fits the neighbour (`candidates.py`); the time of a step is not looked at. An operator that no walk
reaches takes its first candidate. (MindSpore, graph_costmodel: StrategyPropagate, BFS; compared with 2.10.)

Common to all settings are the walks and the choice. `fully_use_devices` (False in 2.10, True in the seeds) narrows the
candidates: with False relu above is ((2, 1),) and matmul2 ((2, 1), (1, 4)); what seed 003 prints needs True. Where no
operator is given, everything grows from the dataset.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ...base.errors import StrategyError, message
from ...base.settings.config import ParallelConfig
from ...graph.ir import Graph, Node
from ...graph.passes.candidates import Edge, Operator, chosen, meeting
from ...layout.named_layout import AnyStrategy
from ...layout.redistribution_cost import redistribution_cost
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.legal_strategies import legal_strategies
from ...ops.machine.primitive import Strategy
from ...ops.machine.sharding import sharding_rule
from ...ops.machine.split_labels import ShardingRule
from .places import DATASET, Link, Places, configured


def propagate_strategies(graph: Graph, config: ParallelConfig) -> Graph:
    """The graph with strategies (and reasons) for all forward operators, spread from those that have one.

    Raises StrategyError if operators that read one parameter cannot split it equally.
    """
    return walk_strategies(graph, config)[0]


def walk_strategies(graph: Graph, config: ParallelConfig) -> tuple[Graph, tuple[Settled, ...]]:
    """The same, with what was compared for every operator, in the order in which they were settled."""
    search = _Propagation(graph, config)
    graph = search.run()
    return graph, tuple(search.settled.values())


@dataclass(frozen=True)
class Settled:
    """How an operator got its strategy.

    by       "given"; "layout": the first that has the neighbour's; "neighbour", "neighbours": least cost on the edges,
             equals told apart as `candidates.py` says of one edge, or of one that has waited; "list": its first
    options  the strategies that were looked at, in the order of the list
    edges    what was known on the other side, with the links there
    """

    operator: str
    strategy: AnyStrategy
    by: str
    reason: str
    facts: Operator
    options: tuple[Strategy, ...] = ()
    edges: tuple[Edge, ...] = ()
    links: tuple[Link, ...] = ()

    def text(self) -> str:
        """In words."""
        return f"{self.operator!r} {self.strategy}: {self.reason}"

    def neighbours(self) -> tuple[str, ...]:
        """The other ends of the links."""
        ends = (link.source if link.target == self.operator else link.target for link in self.links)
        return tuple(dict.fromkeys(ends))


def settling_order(graph: Graph, config: ParallelConfig) -> tuple[str, ...]:
    """Names of the operators in the order in which propagation first settles them. Raises StrategyError as it does."""
    search = _Propagation(graph, config)
    search.run()
    return tuple(search.decided)


@dataclass(frozen=True)
class _Decided:
    """A strategy that was settled.  results: layouts of what the operator makes, by name."""

    rule: ShardingRule
    results: dict[str, TensorLayout]
    reason: str


class _Propagation(Places):
    """The walks over one graph."""

    def __init__(self, graph: Graph, config: ParallelConfig) -> None:
        super().__init__(graph, config)
        self.decided: dict[str, _Decided] = {}
        self.settled: dict[str, Settled] = {}
        self.held: dict[str, tuple[TensorLayout, str]] = {}  # shared parameters: layout, and who wants it
        self.reshaped: dict[str, tuple[TensorLayout, TensorLayout] | None] = {}
        self.waiting: dict[str, list[Link]] = {}

    def known(self, link: Link) -> TensorLayout | None:
        """The layout in which the source of a link leaves the tensor, if that is settled."""
        if link.source == DATASET:
            return self.data[link.tensor]
        if link.source in self.views:
            both = self.reshaped.get(link.source)
            return both and both[1]
        if link.source in self.nodes:
            return self.decided[link.source].results[link.tensor] if link.source in self.decided else None
        return self.held[link.source][0] if link.source in self.held else None

    def wanted(self, link: Link) -> TensorLayout | None:
        """The layout in which the target of a link wants the tensor, if that is settled."""
        if link.target in self.views:
            both = self.reshaped.get(link.target)
            return both and both[0]
        return self.decided[link.target].rule.operand_layouts[link.position] if link.target in self.decided else None

    def edge(self, link: Link, *, backward: bool = False) -> Edge:
        """What the target of a link knows of its source; or (backward) the source of its target."""
        shape, position = self.there(link), None if backward else link.position
        # only edges are asked for whose other end is settled
        layout = cast(TensorLayout, self.wanted(link) if backward else self.known(link))
        itemsize, number = self.itemsizes[link.tensor], self.number(link) if backward else 0
        return Edge(layout, shape, shape, position, itemsize, any(self.config.manner.values()), number)

    # ---- the walks ----

    def run(self) -> Graph:
        for node in self.given:
            shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
            strategy = cast(AnyStrategy, node.strategy)  # it is given
            rule = sharding_rule(node.opdef, shapes, attrs, strategy, self.device_num, node.where)
            self.settle(node, rule, "given")
        starts = [n.name for n in self.given]
        for start, following in zip((*starts, DATASET), (*starts[1:], DATASET, DATASET), strict=False):
            self.walk(start, self.order.get(following, len(self.order)))
        for node in self.nodes.values():
            if node.name not in self.decided:
                options = self.agreeing(node, self.candidates(node)) or list(self.candidates(node))
                rule = self.operator(node).rule(options[0])
                self.settle(node, rule, "no neighbour is known: its first candidate", "list", options)
        self.agree()
        if self.config.elementwise_op_strategy_follow:
            self.follow_producers()
        return replace(self.graph, nodes=tuple(map(self.told, self.graph.nodes)))

    def walk(self, start: str, end: int) -> None:
        """Breadth first from one place. end: the place in the network of the next given operator."""
        queue = deque([start])
        while True:
            while queue:
                here = queue.popleft()
                queue += [link.target for link in self.after[here] if self.forward(link)]
                queue += [link.source for link in self.before[here] if self.backward(link)]
            ready = min(self.waiting, key=self.order.__getitem__, default=None)
            if ready is None or end < self.order[ready]:
                return
            self.choose(self.nodes[ready], self.waiting[ready], waited=True)
            queue.append(ready)

    def forward(self, link: Link) -> bool:
        """Settle the target of a link whose source is settled; whether that could be done now."""
        if link.target in self.decided or link.target in self.reshaped or self.known(link) is None:
            return False
        if link.target in self.views:
            self.choose_reshape(link.target, next(iter(self.after[link.target]), None))
            return True
        node, source = self.nodes[link.target], self.nodes.get(link.source)
        by_counts = source is not None and source.out_strategy is not None and configured(source)
        if link.source in self.views or by_counts:
            self.first(node, link, by_counts=by_counts)
        elif self.tensors(node) == 1:
            self.choose(node, [link])
        else:
            reached = self.waiting.setdefault(node.name, [])
            if link not in reached:
                reached.append(link)
            if len(reached) < self.tensors(node):
                return False
            self.choose(node, reached, waited=True)
        return True

    def backward(self, link: Link) -> bool:
        """Settle the source of a link whose target is settled; whether that could be done now."""
        settled = link.source in self.decided or link.source in self.reshaped or link.source in self.held
        layout = self.wanted(link)
        if settled or link.source == DATASET or layout is None:
            return False
        if link.source in self.views:
            self.choose_reshape(link.source, link)
        elif link.source not in self.nodes:
            self.held[link.source] = (layout, link.target)
        elif link.target in self.views:
            self.first(self.nodes[link.source], link)
        else:
            self.choose(self.nodes[link.source], [link])
        return True

    def choose_reshape(self, view: str, behind: Link | None) -> None:
        """Settle the layouts before and behind a reshape: no message forward and least work, or least communication.

        behind  the consumer that is asked. Before a Concat, or without a consumer, nothing is settled
        """
        (link,) = self.before[view]
        self.reshaped[view] = None
        if behind is None or (self.wanted(behind) is None and self.nodes[behind.target].op == "concat"):
            return
        before, after = self.known(link), self.wanted(behind)
        if before is not None:
            befores = [before]
        elif link.source not in self.nodes:  # a parameter that others read too: as they want it, or whole
            wanted = (self.wanted(one) for one in self.after[link.source])
            whole = TensorLayout.replicated(self.device_num, len(self.shapes[link.tensor]))
            befores = [layout for layout in wanted if layout is not None] or [whole]
        else:
            maker = self.nodes[link.source]
            number, operator = self.number(link), self.operator(maker)
            befores = [operator.rule(s).outs[number].whole() for s in self.candidates(maker)]
        if after is not None:
            afters = [after]
        else:
            reader = self.nodes[behind.target]
            afters = [self.operator(reader).rule(s).operand_layouts[behind.position] for s in self.candidates(reader)]

        def price(pair: tuple[TensorLayout, TensorLayout]) -> tuple[bool, float]:
            shapes = self.shapes[link.tensor], self.shapes[view]
            cost = redistribution_cost(*pair, *shapes, alltoall=any(self.config.manner.values()))
            return cost.forward > 0, cost.communication if cost.forward else cost.computation

        self.reshaped[view] = min(itertools.product(befores, afters), key=price)

    def told(self, node: Node) -> Node:
        """The node with what was settled for it."""
        made = self.decided.get(node.name)
        return self.finished(node, made.rule.strategy if made else None, "propagated", made.reason if made else "")

    # ---- one choice ----

    def choose(self, node: Node, links: list[Link], *, waited: bool = False) -> None:
        """Settle `node` by what is known at the other end of `links`."""
        self.waiting.pop(node.name, None)
        operator, attrs = self.operator(node), dict(node.attrs)
        edges = [self.edge(link, backward=link.source == node.name) for link in links]
        legal = legal_strategies(node.opdef, operator.shapes, attrs, self.device_num, searched=True)
        candidates = self.candidates(node)
        if self.config.elementwise_op_strategy_follow:
            candidates = self.following(operator, candidates, legal, edges, links)
        options = self.agreeing(node, candidates) or self.agreeing(node, legal)
        if not legal:
            operator.rule(tuple((1,) * len(shape) for shape in operator.shapes))  # says why it is refused even whole
        if not options:
            raise StrategyError(self.disagreement(node, legal[0]))
        best = chosen(operator, options, edges, waited=waited)
        reason = self.reason(operator, best, edges, links, options, legal)
        by = "neighbours" if waited else "neighbour"
        self.settle(node, operator.rule(best[0]), reason, by, options, edges, links)

    def first(self, node: Node, link: Link, *, by_counts: bool = False) -> None:
        """Settle `node` by its first candidate with the layout at the other end of `link`; by cost if none has it.

        by_counts  behind a given out_strategy counts are compared, not where slices lie; if none has them, the first
        """
        backward = link.source == node.name
        operator, candidates = self.operator(node), self.agreeing(node, self.candidates(node))
        layout = cast(TensorLayout, self.wanted(link) if backward else self.known(link))  # it is settled there
        for strategy in candidates:
            rule = operator.rule(strategy)
            here = rule.outs[self.number(link)].whole() if backward else rule.operand_layouts[link.position]
            if here.splits == layout.splits if by_counts else here.same_placement(layout):
                slices = layout.slice_shape(self.there(link))
                reason = f"the first candidate with slices {slices}, as {self.other_end(link, backward)}"
                break
        else:
            if not by_counts or not candidates:
                self.choose(node, [link])
                return
            rule, reason = operator.rule(candidates[0]), f"no candidate has the out_strategy of {link.source!r}"
        self.waiting.pop(node.name, None)
        self.settle(node, rule, reason, "layout", candidates, [self.edge(link, backward=backward)], [link])

    def following(
        self,
        operator: Operator,
        candidates: tuple[Strategy, ...],
        legal: tuple[Strategy, ...],
        edges: list[Edge],
        links: list[Link],
    ) -> Sequence[Strategy]:
        """Rule of `elementwise_op_strategy_follow`: split an element-wise operator as its producer, or that as it."""
        reads = [(e.position, e.layout.splits) for e in edges if e.position is not None]
        if operator.is_elementwise and reads:
            same = [s for s in legal if any(s[position] == splits for position, splits in reads)]
            return meeting(operator, same, edges) or same or candidates
        readers = [self.nodes[link.target] for link in links if link.target in self.nodes]
        if edges and not reads and any(self.operator(n).is_elementwise for n in readers):
            return meeting(operator, candidates, edges) or candidates
        return candidates

    def follow_producers(self) -> None:
        """Element-wise operators reached before their producer: split as it is in the end, if parameters allow."""
        for node in self.nodes.values():
            operator = self.operator(node)
            if configured(node) or not operator.is_elementwise:
                continue
            producers = [link for link in self.before[node.name] if link.source in self.nodes]
            whole = [link for link in producers if self.shapes[link.tensor] == node.shape]
            if not producers:
                continue
            link = (whole or producers)[0]
            edge = self.edge(link)
            if self.decided[node.name].rule.ins[link.position].splits == edge.layout.splits:
                continue
            legal = legal_strategies(node.opdef, operator.shapes, dict(node.attrs), self.device_num, searched=True)
            options = self.agreeing(node, self.following(operator, (), legal, [edge], [link]))
            if options:
                best, *_ = chosen(operator, options, [edge])
                reason = f"split as {link.source!r} is, which makes its operand (elementwise_op_strategy_follow)"
                self.settle(node, operator.rule(best), reason, "neighbour", options, [edge], [link])

    def agree(self) -> None:
        """Choose again for operators that split a shared parameter otherwise than a given one, or the first, does."""
        readers: dict[str, list[Link]] = {}
        for link in itertools.chain.from_iterable(self.before.values()):
            if link.target in self.nodes and self.parameter(link.source) is not None:
                readers.setdefault(link.source, []).append(link)
        for parameter, links in readers.items():
            fixed = next((link for link in links if configured(self.nodes[link.target])), None)
            link = fixed or next((i for i in links if i.target == self.held.get(parameter, ("", ""))[1]), links[0])
            self.held[parameter] = (cast(TensorLayout, self.wanted(link)), link.target)  # all are decided by now
        for parameter, links in readers.items():
            for link in links:
                node, (layout, _) = self.nodes[link.target], self.held[parameter]
                here = cast(TensorLayout, self.wanted(link))
                if not configured(node) and not here.same_placement(layout):
                    self.choose(node, [link])

    def agreeing(self, node: Node, strategies: Iterable[Strategy]) -> list[Strategy]:
        """Those under which the node splits a parameter it reads twice equally, and, in the end, as others do."""
        reads = [(i, self.parameter(name)) for i, name in enumerate(node.ins) if self.parameter(name) is not None]
        settled = len(self.decided) == len(self.nodes)
        held = [(i, self.held[p][0]) for i, p in reads if settled and p in self.held and self.held[p][1] != node.name]
        twice = [(i, j) for (i, p), (j, q) in itertools.combinations(reads, 2) if p == q]
        if not held and not twice:
            return list(strategies)
        operator, agreed = self.operator(node), []
        for strategy in strategies:
            ins = operator.rule(strategy).ins
            pairs = (*((ins[i], layout) for i, layout in held), *((ins[i], ins[j]) for i, j in twice))
            if all(mine.same_placement(other) for mine, other in pairs):
                agreed.append(strategy)
        return agreed

    def settle(
        self,
        node: Node,
        rule: ShardingRule,
        reason: str,
        by: str = "given",
        options: Sequence[Strategy] = (),
        edges: Sequence[Edge] = (),
        links: Sequence[Link] = (),
    ) -> None:
        self.decided[node.name] = _Decided(rule, self.results(node, rule), reason)
        self.settled.pop(node.name, None)
        facts, seen = self.operator(node), (tuple(options), tuple(edges), tuple(links))
        self.settled[node.name] = Settled(node.name, rule.strategy, by, reason, facts, *seen)

    # ---- what to tell the learner ----

    def reason(
        self,
        operator: Operator,
        best: tuple[Strategy, float, float],
        edges: list[Edge],
        links: list[Link],
        options: list[Strategy],
        legal: tuple[Strategy, ...],
    ) -> str:
        """Why this strategy, in a sentence or two."""
        strategy, communication, touched = best
        rule, edge, link = operator.rule(strategy), edges[0], links[0]
        if self.parameter(link.source) is not None and len(links) == 1 and link.source in self.held:
            shared = f"reads parameter {link.source!r}, which {self.held[link.source][1]!r} splits too"
            return f"{shared}: of {len(options)} candidates the one with least forward communication, then most pieces"
        there = edge.layout.slice_shape(edge.shape)
        here = edge.here(rule).slice_shape(edge.own_shape)
        if edge.position is None:
            subject, lies = f"feeds {link.target!r}, which wants slices {there}", "its result lies so"
            moved = f"its slices {here} are split further, without a message"
        else:
            subject, lies = f"follows {link.source!r}, whose result has slices {there}", "they are taken as they lie"
            moved = f"its slices {here} are taken out of them, without a message"
            if link.source == DATASET:
                subject = f"reads input {link.tensor!r}, slices {there}"
        others = [f"{i.tensor!r}" for i in links[1:]]
        subject += f", and reads {' and '.join(others)}" if others else ""
        if communication:
            moved = f"no candidate avoids a message here; slices {here} cost the least communication"
        text = f"{subject}: {moved if touched or communication else lies} ({len(options)} candidates)"
        return text + self.excluded(operator, strategy, edges, touched, legal)

    def other_end(self, link: Link, backward: bool) -> str:
        """The neighbour of a first candidate in words."""
        view = link.target if backward else link.source
        if view not in self.views:
            return f"the out_strategy of {view!r} leaves"
        other = self.after[view][0].target if backward else self.before[view][0].source
        end = f"{other!r}" if other else "the data"
        return f"the reshape {view!r} {'to' if backward else 'of'} {end} {'wants' if backward else 'leaves'} them"

    def excluded(
        self, operator: Operator, strategy: Strategy, edges: list[Edge], touched: float, legal: tuple[Strategy, ...]
    ) -> str:
        """What `fully_use_devices` had to do with it."""
        if not self.config.fully_use_devices:
            return ""
        nothing_moves = [s for s in meeting(operator, legal, edges) if s != strategy] if touched else []
        if nothing_moves:
            other, *_ = chosen(operator, nothing_moves, edges)
            uses = f"uses {operator.pieces(other)} of {self.device_num} devices"
            return f"; {other} would move nothing, but {uses}, and fully_use_devices is True"
        if 1 < operator.pieces(strategy) < self.device_num:
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
            used = f"parameter {shared[0]!r} of shape {shape} is used by operators with different sharding strategies"
            what = f"{used}: {settled}, and no strategy of this one does"
        hint = f"Configure these operators with consistent sharding strategies: .shard(...), for example {example}"
        allowed = "All operators that use a parameter must split it equally"
        return message(what, where=node.where, allowed=allowed, hint=hint)
