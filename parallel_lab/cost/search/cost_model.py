"""From a traced network to a problem: candidates of every operator, and what a model of costs says of them.

A model is a `CostModel` with the names of its terms, the prices of an operator's candidates, and the price of bringing
a tensor from one layout to another. Reshapes lie on the way between two operators. A Parameter that several
operators read, candidates that split it differently cannot stand together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, StrategyError
from ...base.settings.config import ParallelConfig
from ...graph.ir import Graph, Node
from ...layout.named_layout import AnyStrategy
from ...layout.tensor_layout import Shape, TensorLayout
from ...ops.machine.sharding import default_strategy, sharding_rule
from ...ops.machine.split_labels import ShardingRule
from .places import DATASET, Link, Places, configured
from .problem import NEVER, Choice, Pair, Problem, Term


class CostModel(Places):
    """Places with the candidates of each, and what every model of costs needs to know of a pair of them.

    also  {operator: a strategy that is a candidate too, whatever the settings narrow}
    """

    def __init__(self, graph: Graph, config: ParallelConfig, also: Mapping[str, AnyStrategy] | None = None) -> None:
        super().__init__(graph, config)
        self.also = also or {}
        # equal layers: equal operators have one list of rules between them, which keys what is made of it
        self.alike: dict[tuple[Any, ...], list[ShardingRule]] = {}
        self.rules: dict[str, list[ShardingRule]] = {n.name: self.known_rules(n) for n in self.nodes.values()}
        self.layouts: dict[tuple[Any, ...], list[TensorLayout]] = {}
        self.tables: dict[tuple[Any, ...], np.ndarray] = {}
        self.priced: dict[tuple[Any, ...], tuple[np.ndarray, np.ndarray]] = {}
        self.live = self.with_gradients()

    def with_gradients(self) -> set[str]:
        """The tensors that have a gradient: parameters lead to them, and they lead to what is differentiated."""
        graph, through = self.graph, [node for node in self.graph.of_phase("forward") if gives_back(node)]
        led = {i.name for i in graph.inputs if i.role == "parameter" and i.trainable}
        leading = set(graph.seeds or graph.outputs)
        for node in through:
            if led.intersection(node.ins):
                led.update(node.outs)
        for node in reversed(through):
            if leading.intersection(node.outs):
                leading.update(node.ins)
        return led & leading

    def known_rules(self, node: Node) -> list[ShardingRule]:
        """`rules_of`, once for all operators that it says the same about."""
        parameters = [self.parameter(name) for name in node.ins]
        same = tuple(None if p is None else parameters.index(p) for p in parameters)
        shapes, own = self.graph.operand_shapes(node), (self.also.get(node.name), same)
        configured_strategy = (node.strategy, node.where) if configured(node) else (None, "")
        key = (node.op, shapes, node.attrs, node.by_batch, *configured_strategy, *own)
        if key not in self.alike:
            self.alike[key] = list(self.rules_of(node))
        return self.alike[key]

    def rules_of(self, node: Node) -> Iterator[ShardingRule]:
        """What each candidate of an operator means; if the operator was given a strategy, that alone."""
        shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
        strategies: tuple[AnyStrategy, ...] = () if node.strategy is None else (node.strategy,)
        if not configured(node):
            batch = node.by_batch or node.opdef.result_shape is not None
            strategies = (default_strategy(node.opdef, shapes, attrs, self.device_num),) if batch else ()
            strategies = strategies or self.candidates(node)
        if node.name in self.also and self.also[node.name] not in strategies:
            strategies = (*strategies, self.also[node.name])
        twice = [self.parameter(name) for name in node.ins]
        for strategy in strategies:
            rule = sharding_rule(node.opdef, shapes, attrs, strategy, self.device_num, node.where)
            reads = [(p, layout) for p, layout in zip(twice, rule.operand_layouts, strict=True) if p is not None]
            pairs = itertools.combinations(reads, 2)
            if all(p != q or mine.same_placement(other) for (p, mine), (q, other) in pairs):
                yield rule

    def sources(self) -> Iterator[tuple[Link, str, str]]:
        """(link to an operator, the operator or dataset its tensor comes from, the name it has there), by reshapes."""
        for links in self.before.values():
            for link in links:
                if link.target in self.views:
                    continue
                source, tensor = link.source, link.tensor
                while source in self.views:
                    (behind,) = self.before[source]
                    source, tensor = behind.source, behind.tensor
                yield link, source, tensor

    def shared(self) -> dict[str, list[Link]]:
        """{parameter: links to the operators that read it}, where several do: they must split it equally."""
        links: dict[str, list[Link]] = {}
        for link, source, _ in self.sources():
            if self.parameter(source) is not None:
                links.setdefault(source, []).append(link)
        return links

    def left(self, source: str, tensor: str) -> list[TensorLayout]:
        """The layouts in which the candidates of a place leave a tensor."""
        if source == DATASET:
            return self.layouts.setdefault((tensor,), [self.data[tensor]])
        node, rules = self.nodes[source], self.rules[source]
        out_strategy = node.out_strategy if configured(node) else None
        key = (id(rules), node.outs.index(tensor), node.shapes, out_strategy, node.cross_batch, len(node.ins))
        if key not in self.layouts:
            self.layouts[key] = self.one_list(self.results(node, rule)[tensor] for rule in rules)
        return self.layouts[key]

    def taken(self, link: Link) -> list[TensorLayout]:
        """The layouts in which the candidates of a link's target want its tensor."""
        rules = self.rules[link.target]
        key = (id(rules), link.position)
        if key not in self.layouts:
            self.layouts[key] = self.one_list(rule.operand_layouts[link.position] for rule in rules)
        return self.layouts[key]

    def one_list(self, layouts: Iterable[TensorLayout]) -> list[TensorLayout]:
        """These layouts as a list, the same object for equal lists."""
        listed = list(layouts)
        return self.layouts.setdefault(tuple(listed), listed)

    def problem(self) -> Problem:
        """The choices and pairs, priced by the model."""
        numbers = {DATASET: 0} | {name: n for n, name in enumerate(self.nodes, 1)}
        choices = [Choice(DATASET, "dataset", ((),), np.zeros((1, len(self.terms()))), np.zeros(1, np.int64))]
        for node in self.nodes.values():
            if not self.rules[node.name]:
                raise StrategyError("no strategy of it can be taken", where=node.where)
            costs, memory = self.prices(node, self.rules[node.name])
            check_finite(costs, node.where)
            strategies = tuple(rule.strategy for rule in self.rules[node.name])
            fixed = "given" if configured(node) else "batch parallel" if node.by_batch else ""
            fixed = fixed if len(strategies) == 1 else ""
            choices.append(Choice(node.name, node.op_class, strategies, costs, memory, node.where, fixed))
        tables: dict[tuple[int, int], np.ndarray] = {}
        for link, source, tensor in self.sources():
            if self.parameter(source) is None and self.looks_at(self.nodes[link.target]):
                table = self.table(source, tensor, link)
                pair = numbers[source], numbers[link.target]
                tables[pair] = tables[pair] + table if pair in tables else table
        for links in self.shared().values():
            first, *others = dict.fromkeys(links)
            for link in others:
                if link.target == first.target:
                    continue
                alike = [[a.same_placement(b) for b in self.taken(link)] for a in self.taken(first)]
                if not np.any(alike):
                    continue  # the pass parallelize says which two uses disagree, and where
                table = np.where(np.array(alike)[..., None], np.zeros(len(self.terms())), NEVER)
                pair = numbers[first.target], numbers[link.target]
                tables[pair] = tables[pair] + table if pair in tables else table
        pairs = tuple(Pair(*pair, table) for pair, table in tables.items())
        return Problem(self.name, self.device_num, self.terms(), tuple(choices), pairs)

    def table(self, source: str, tensor: str, link: Link) -> np.ndarray:
        """What lies between the candidates of two places: each pair of layouts is priced once."""
        befores, afters = self.left(source, tensor), self.taken(link)
        shapes = self.shapes[tensor], self.there(link)
        what = (*shapes, self.itemsizes[tensor], tensor in self.live and gives_back(self.nodes[link.target]))
        key = (id(befores), id(afters), *what)
        if key not in self.tables:
            own, theirs = dict.fromkeys(befores), dict.fromkeys(afters)  # layouts without their repetitions
            row = {layout: at for at, layout in enumerate(own)}
            column = {layout: at for at, layout in enumerate(theirs)}
            each = np.array([[self.between(a, b, *what) for b in theirs] for a in own])
            check_finite(each, self.nodes[link.target].where)
            self.tables[key] = each[np.ix_([row[a] for a in befores], [column[b] for b in afters])]
        return self.tables[key]

    # ---- what a model says ----

    name = ""

    def terms(self) -> tuple[Term, ...]:
        raise NotImplementedError

    def looks_at(self, node: Node) -> bool:
        """Whether what an operator asks of its operands counts."""
        return True

    def prices(self, node: Node, rules: list[ShardingRule]) -> tuple[np.ndarray, np.ndarray]:
        """(costs of an operator under each of `rules`, bytes of a device)."""
        raise NotImplementedError

    def between(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int, live: bool
    ) -> tuple[float, ...]:
        """Terms of bringing a tensor from one layout to another.  live: its gradient is brought back, too."""
        raise NotImplementedError


def gives_back(node: Node) -> bool:
    """Whether gradients flow through an operator: not through a comparison, say."""
    return node.opdef.view or node.opdef.vjp_fn is not None


def check_finite(costs: np.ndarray, where: str) -> None:
    """Raise ArgumentError unless costs can be added."""
    if not np.isfinite(costs).all():
        hint = "Give the cluster's links and rates, or the weights of the cost model, in other sizes"
        raise ArgumentError("a cost of it is no finite number", where=where, allowed="Costs that add up", hint=hint)
