"""A problem with MindSpore's own numbers: bytes computed on and communicated, by which its searches choose.

    cost = alpha * computation + beta * (communication + gamma * communication_of_parameters)

An operator computes on its operands' slices and on partial sums, and once more on parameters whose gradients have to be
summed; it communicates partial sums, and these gradients, which are mostly hidden (gamma). An edge costs what bringing
the tensor from the producer's layout to the consumer's costs, forward and backward (`layout/redistribution_cost.py`).
Small messages cost as much as 3072 bytes, others 1024 more than they have. A batch split among all devices wins ties by
a byte. Bytes are a device's. alpha, beta, gamma: `set_cost_model_context`. (MindSpore: operator_costmodel, costmodel,
edge_costmodel.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from ...base.errors import StrategyError
from ...base.settings.config import ParallelConfig
from ...base.settings.context import get_cost_model_context
from ...graph.ir import Graph, Node
from ...graph.passes.candidates import Operator, operator_cost
from ...layout.redistribution_cost import practical, redistribution_cost
from ...layout.tensor_layout import Shape, TensorLayout
from ...ops.machine.primitive import Strategy
from ...ops.machine.sharding import ShardingRule, default_strategy, sharding_rule
from .places import DATASET, Link, Places, configured
from .problem import NEVER, Choice, Pair, Problem, Term


def mindspore_problem(graph: Graph, config: ParallelConfig) -> Problem:
    """The choices of a traced network, priced as MindSpore prices them."""
    return MindSporeModel(graph, config).problem()


class SearchPlaces(Places):
    """Places with the candidates of each, and what every model of costs needs to know of a pair of them."""

    def __init__(self, graph: Graph, config: ParallelConfig) -> None:
        super().__init__(graph, config)
        self.rules: dict[str, list[ShardingRule]] = {n.name: list(self.rules_of(n)) for n in self.nodes.values()}
        self.tables: dict[tuple, np.ndarray] = {}

    def rules_of(self, node: Node) -> Iterator[ShardingRule]:
        """What each candidate of an operator means; of one that was given a strategy, that alone."""
        shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
        strategies: tuple[Strategy, ...] = (node.strategy,)
        if not configured(node):
            batch = node.by_batch or node.opdef.result_shape is not None
            strategies = (default_strategy(node.opdef, shapes, attrs, self.device_num),) if batch else ()
            strategies = strategies or self.candidates(node)
        twice = [self.parameter(name) for name in node.ins]
        for strategy in strategies:
            rule = sharding_rule(node.opdef, shapes, attrs, strategy, self.device_num, node.where)
            reads = [(p, layout) for p, layout in zip(twice, rule.wanted, strict=True) if p is not None]
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
        """{parameter: links to the operators that read it}, of those with several: they must split it equally."""
        found: dict[str, list[Link]] = {}
        for link, source, _ in self.sources():
            if self.parameter(source) is not None:
                found.setdefault(source, []).append(link)
        return found

    def left(self, source: str, tensor: str) -> list[TensorLayout]:
        """The layouts in which the candidates of a place leave a tensor."""
        if source == DATASET:
            return [self.data[tensor]]
        return [self.results(self.nodes[source], rule)[tensor] for rule in self.rules[source]]

    def taken(self, link: Link) -> list[TensorLayout]:
        """The layouts in which the candidates of a link's target want its tensor."""
        return [rule.wanted[link.position] for rule in self.rules[link.target]]

    def problem(self) -> Problem:
        """The choices and pairs, priced by the model."""
        numbers = {DATASET: 0} | {name: n for n, name in enumerate(self.nodes, 1)}
        choices = [Choice(DATASET, "dataset", ((),), np.zeros((1, len(self.terms()))), np.zeros(1, np.int64))]
        for node in self.nodes.values():
            if not self.rules[node.name]:
                raise StrategyError("no strategy of it can be taken", where=node.where)
            costs, memory = self.prices(node, self.rules[node.name])
            strategies = tuple(rule.strategy for rule in self.rules[node.name])
            fixed = "given" if configured(node) else "batch parallel" if node.by_batch else ""
            choices.append(Choice(node.name, node.op_class, strategies, costs, memory, node.where, fixed))
        tables: dict[tuple[int, int], np.ndarray] = {}
        for link, source, tensor in self.sources():
            if self.parameter(source) is None:
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
        what = (*shapes, self.itemsizes[tensor])
        key = (tuple(befores), tuple(afters), *what)
        if key not in self.tables:  # equal layers ask for equal ones
            pairs = {pair: self.between(*pair, *what) for pair in dict.fromkeys(itertools.product(befores, afters))}
            self.tables[key] = np.array([[pairs[a, b] for b in afters] for a in befores])
        return self.tables[key]

    # ---- what a model says ----

    name = ""

    def terms(self) -> tuple[Term, ...]:
        raise NotImplementedError

    def prices(self, node: Node, rules: list[ShardingRule]) -> tuple[np.ndarray, np.ndarray]:
        """(costs of an operator under each of `rules`, bytes of a device)."""
        raise NotImplementedError

    def between(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int
    ) -> tuple[float, ...]:
        """Terms of bringing a tensor from one layout to another."""
        raise NotImplementedError


class MindSporeModel(SearchPlaces):
    """Bytes, as in the module's words."""

    name = "mindspore"

    def terms(self) -> tuple[Term, ...]:
        alpha, beta, gamma = (get_cost_model_context(f"costmodel_{name}") for name in ("alpha", "beta", "gamma"))
        sums = "slices of partial results; slices sent by redistributions, forward and backward; small ones as 3072 B"
        return (
            Term(
                "computation", "bytes", alpha, "slices of operands and partial sums; of parameters to be summed, twice"
            ),
            Term("communication", "bytes", beta, sums),
            Term("communication of parameters", "bytes", beta * gamma, "slices of parameters that several ranks hold"),
        )

    def prices(self, node: Node, rules: list[ShardingRule]) -> tuple[np.ndarray, np.ndarray]:
        operator = self.operator(node)
        memory = [held_bytes(operator, rule) for rule in rules]
        return np.array([operator_cost(operator, rule) for rule in rules]), np.array(memory, np.int64)

    def between(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int
    ) -> tuple[float, ...]:
        how = {"alltoall": self.config.enable_alltoall, "first_slice": True}
        cost = redistribution_cost(before, after, shape, shape_after, **how)
        sent = practical(cost.forward * itemsize) + practical(cost.backward * itemsize)
        return cost.computation * itemsize, sent, 0.0


def held_bytes(operator: Operator, rule: ShardingRule) -> int:
    """Bytes of a device for an operator's results and the parameters it reads."""
    made = sum(math.prod(x.slice_shape(s)) for x, s in zip(rule.outs, operator.out_shapes, strict=True))
    parameters = sum(math.prod(rule.ins[i].slice_shape(operator.shapes[i])) for i in operator.parameters)
    return (made + parameters) * operator.itemsize
