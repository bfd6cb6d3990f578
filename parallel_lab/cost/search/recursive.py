"""Recursive programming: halve the network between two halves of the devices, then each half again.

With 2^d devices there are d levels. On each of them every product (and convolution) takes the cut in two that costs
least, in elements of the tensors as they are by then:

    rows of a (m, k) x (k, n)      (k, n) is kept whole by both halves     k * n / 2 * 0.25
    columns                        (m, k) is kept whole                    m * k / 2
    the contraction                the result has to be summed             m * n / 2

More where a neighbour that was decided before it on this level is cut otherwise: 16 times the tensor between them. A
dim of odd size is not cut; a product whose columns were cut does not cut the contraction any more, nor the other way
round; rows win ties, then columns. The lightest product decides first: its dearest cut says how heavy it is. All other
operators are split as what they read is split, or else as their readers want it.

Strategies that the learner gave are not looked at, as in MindSpore 2.10. (MindSpore: rec_core, whose operators of other
kinds have costs of their own. Order and ties are those that its recorded strategies follow.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...base.errors import StrategyError
from ...base.settings.config import ParallelConfig
from ...graph.ir import Graph, Node
from ...layout.named_layout import AnyStrategy
from ...ops.machine.legal_strategies import legal_strategies
from ...ops.machine.primitive import Strategy
from ...ops.machine.sharding import default_strategy, sharding_rule
from ...ops.machine.split_labels import ShardingRule
from .places import Places

ROWS_SCALE = 0.25  # MindSpore scales this one only: batches are cheap to split
MOVED_SCALE = 16  # elements of a tensor that two operators cut differently
ROWS, COLUMNS, CONTRACTION, WINDOWS, BATCH = "rows", "columns", "contraction", "windows", "batch"


@dataclass
class Halved:
    """A product on its way: how often each label has been halved.

    operands, result   labels, one per dim;  kinds: what a cut of each label is
    latest             the label cut on this level, None where none can be
    """

    node: Node
    operands: tuple[str, ...]
    result: str
    sizes: dict[str, int]
    kinds: dict[str, str]
    convolution: bool
    counts: dict[str, int] = field(default_factory=dict)
    latest: str | None = None
    decided: bool = False

    def elements(self, labels: str) -> float:
        return math.prod(self.sizes.get(c, 1) / self.counts.get(c, 1) for c in labels)  # "1": a dim that is repeated

    def price(self, label: str) -> float:
        """Elements that a cut along `label` makes both halves keep, or sum."""
        x, w = self.operands[:2]
        kind = self.kinds[label]
        if kind == ROWS:
            return self.elements(w) / 2 * (1.0 if self.convolution else ROWS_SCALE)
        if kind == COLUMNS:
            return self.elements(x) / 2
        if kind == CONTRACTION:
            return self.elements(self.result) / 2
        return (self.elements(x) + self.elements(w)) / 2 if kind == WINDOWS else 0.0

    def possible(self, label: str) -> bool:
        """Whether it can be cut along `label` once more."""
        if self.sizes[label] // self.counts.get(label, 1) % 2:
            return False
        barred = {COLUMNS: CONTRACTION, CONTRACTION: COLUMNS}.get(self.kinds[label])
        return not any(self.kinds[c] == barred for c in self.counts)

    def dim(self, labels: str) -> int | None:
        """Which dim of a tensor this level cuts, counted from the right."""
        return None if self.latest is None or self.latest not in labels else len(labels) - labels.index(self.latest)


@dataclass(frozen=True)
class Halving:
    """One decision.  prices: elements of every cut that was possible, with what lies between decided neighbours."""

    level: int
    operator: str
    prices: tuple[tuple[str, float], ...]
    label: str | None
    kind: str

    def text(self) -> str:
        """In words."""
        if self.label is None:
            return f"level {self.level}: {self.operator!r} cannot be halved any more, both halves do all of it"
        others = ", ".join(f"{label!r} {price:,.0f}" for label, price in self.prices)
        return f"level {self.level}: {self.operator!r} halves its {self.kind}, {self.label!r} ({others} elements)"


def recursive_search(graph: Graph, config: ParallelConfig) -> tuple[dict[str, AnyStrategy], tuple[Halving, ...]]:
    """({operator: strategy}, what was decided on each level).

    Raises StrategyError for more devices than the setting recursive_most_devices (MindSpore: 1024), and for a count
    that is not a power of two: devices are halved until one is left.
    """
    if config.device_num & (config.device_num - 1):
        what, hint = f"{config.device_num} devices", "Use dynamic_programming"
        raise StrategyError(what, where="recursive_programming", allowed="A power of two", hint=hint)
    if config.device_num > config.recursive_most_devices:
        what, allowed = f"{config.device_num} devices", f"At most {config.recursive_most_devices}"
        hint = f"Use dynamic_programming, or set recursive_most_devices={config.device_num}"
        raise StrategyError(what, where="recursive_programming", allowed=allowed, hint=hint)
    search = _Recursive(graph, config)
    return search.run(), tuple(search.steps)


class _Recursive(Places):
    def __init__(self, graph: Graph, config: ParallelConfig) -> None:
        super().__init__(graph, config)
        self.products = {n.name: made for n in self.nodes.values() if (made := self.product(n)) is not None}
        self.steps: list[Halving] = []
        self.allowed: dict[tuple[Any, ...], set[Strategy]] = {}
        self.rules: dict[str, ShardingRule] = {}

    def product(self, node: Node) -> Halved | None:
        """An operator of two tensors that sums over a label both have."""
        op, shapes, attrs = node.opdef, self.graph.operand_shapes(node), dict(node.attrs)
        if op.result_shape is not None or node.by_batch or len(shapes) < 2 or callable(op.strategy_labels):
            return None
        signature = op.signature_for(shapes, attrs)
        (x, w, *_), out = signature.ins, signature.out
        if not (set(x) & set(w)) - set(out) or not shapes[0] or not shapes[1]:
            return None
        sizes, kinds = op.label_sizes(signature, shapes, attrs), {}
        for label in dict.fromkeys((x + w + out).replace("1", "")):
            in_x, in_w, in_out = label in x, label in w, label in out
            if in_x and in_w and in_out:
                kinds[label] = BATCH
            elif in_w and in_out:
                kinds[label] = COLUMNS
            elif in_x and in_w:
                kinds[label] = CONTRACTION
            else:
                kinds[label] = ROWS if in_x and in_out else WINDOWS
        return Halved(node, signature.ins, out, sizes, kinds, op.name not in ("matmul", "batch_matmul"))

    def run(self) -> dict[str, AnyStrategy]:
        order = sorted(self.products.values(), key=lambda one: self.order[one.node.name])
        neighbours = {name: self.neighbours(name) for name in self.products}
        for level in range(1, (self.device_num & -self.device_num).bit_length()):
            for one in order:
                one.decided = False
            for one in sorted(order, key=lambda one: max(map(one.price, one.kinds))):
                self.halve(one, level, neighbours[one.node.name])
        for one in order:
            self.rules[one.node.name] = self.rule(one.node, self.strategy(one))
        self.others()
        return {name: self.rules[name].strategy for name in self.nodes}

    # ---- products ----

    def halve(self, one: Halved, level: int, neighbours: list[tuple[Halved, str, str]]) -> None:
        """Take the cheapest cut in two. Labels in the order rows, columns, contraction, as ties are decided."""
        ranks = (BATCH, ROWS, COLUMNS, CONTRACTION, WINDOWS)
        prices: list[tuple[float, str]] = []
        for label in sorted(one.kinds, key=lambda c: ranks.index(one.kinds[c])):
            if one.possible(label) and self.legal(one, label):
                one.latest = label
                moved = sum(
                    MOVED_SCALE * one.elements(mine)
                    for other, mine, theirs in neighbours
                    if other.decided and one.dim(mine) != other.dim(theirs)
                )
                prices.append((one.price(label) + moved, label))
        one.latest = min(prices, key=lambda pair: pair[0])[1] if prices else None
        one.decided = True
        if one.latest is not None:
            one.counts[one.latest] = 2 * one.counts.get(one.latest, 1)
        kind = one.kinds[one.latest] if one.latest is not None else ""
        steps = tuple((label, price) for price, label in prices)
        self.steps.append(Halving(level, one.node.name, steps, one.latest, kind))

    def legal(self, one: Halved, label: str) -> bool:
        """Whether the operator may be split so: its own rule may hold a label whole."""
        counts = one.counts
        one.counts = {**counts, label: 2 * counts.get(label, 1)}
        strategy = self.strategy(one)
        one.counts = counts
        key = one.node.op, one.node.attrs, self.graph.operand_shapes(one.node)
        if key not in self.allowed:
            self.allowed[key] = set(legal_strategies(one.node.opdef, key[2], dict(key[1]), self.device_num))
        return strategy in self.allowed[key]

    def strategy(self, one: Halved) -> Strategy:
        return tuple(tuple(one.counts.get(c, 1) for c in labels) for labels in one.operands)

    def neighbours(self, name: str) -> list[tuple[Halved, str, str]]:
        """(product before or behind it, labels of the tensor here, labels there), through operators of other kinds."""
        one, others = self.products[name], []
        for link in self.before[name]:
            if self.parameter(link.source) is None:
                sources = self.reached(link.source, self.before, "source")
                others += [(other, one.operands[link.position], other.result) for other, _ in sources]
        for link in self.after[name]:
            targets = self.reached(link.target, self.after, "target", link.position)
            others += [(other, one.result, other.operands[position]) for other, position in targets]
        return others

    def reached(self, place: str, links: dict[str, Any], end: str, position: int = 0) -> Iterable[tuple[Halved, int]]:
        """The products that are met first on every way from `place`, and which operand is."""
        products, seen, queue = {}, {place}, [(place, position)]
        while queue:
            here, at = queue.pop(0)
            if here in self.products:
                products.setdefault((here, at), (self.products[here], at))
                continue
            for link in links[here]:
                there = getattr(link, end)
                if there not in seen and self.parameter(there) is None:
                    seen.add(there)
                    queue.append((there, link.position))
        return products.values()

    def rule(self, node: Node, strategy: Strategy) -> ShardingRule:
        shapes = self.graph.operand_shapes(node)
        return sharding_rule(node.opdef, shapes, dict(node.attrs), strategy, self.device_num, node.where)

    # ---- all others ----

    def others(self) -> None:
        """Operators of other kinds: first forward, by what they read, then backward, by their readers."""
        waiting = [node for node in self.nodes.values() if node.name not in self.rules]
        for backward in (False, True, False):
            for node in list(reversed(waiting) if backward else waiting):
                wants = self.wanted_by(node) if backward else self.given_to(node)
                if wants:
                    self.follow(node, wants, backward)
            waiting = [node for node in waiting if node.name not in self.rules]
        for node in waiting:
            self.follow(node, {}, False)

    def given_to(self, node: Node) -> dict[int, tuple[int, ...]]:
        """{operand: how it lies}, for operands whose maker is decided and whose dims are known."""
        inherited = {}
        for link in self.before[node.name]:
            rule, shape = self.rules.get(link.source), self.shapes[link.tensor]
            if rule is not None and self.shapes[node.ins[link.position]] == shape:
                inherited[link.position] = self.results(self.nodes[link.source], rule)[link.tensor].splits
        return inherited

    def wanted_by(self, node: Node) -> dict[int, tuple[int, ...]]:
        """{result: how it is wanted}."""
        votes = {}
        for link in self.after[node.name]:
            rule = self.rules.get(link.target)
            if rule is not None and self.there(link) == self.shapes[link.tensor]:
                votes.setdefault(self.number(link), rule.operand_layouts[link.position].splits)
        return votes

    def follow(self, node: Node, wants: dict[int, tuple[int, ...]], backward: bool) -> None:
        """Take the legal strategy nearest to what the neighbours have, in doublings; without any, split nothing."""
        shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
        if node.by_batch or node.opdef.result_shape is not None:
            self.rules[node.name] = self.rule(node, default_strategy(node.opdef, shapes, attrs, self.device_num))
            return
        options = self.candidates(node)
        if len(options) > 1:
            options = legal_strategies(node.opdef, shapes, attrs, self.device_num, searched=True)
        rules = [self.operator(node).rule(strategy) for strategy in options]
        self.rules[node.name] = min(rules, key=lambda rule: (_distance(rule, wants, backward), _pieces(rule)))


def _distance(rule: ShardingRule, wants: dict[int, tuple[int, ...]], backward: bool) -> float:
    layouts = [layout.whole() for layout in rule.outs] if backward else rule.operand_layouts
    pairs = (zip(layouts[at].splits, splits, strict=True) for at, splits in wants.items())
    return sum(abs(math.log2(mine) - math.log2(theirs)) for pair in pairs for mine, theirs in pair)


def _pieces(rule: ShardingRule) -> int:
    return math.prod(n for _, n in rule.cuts)
