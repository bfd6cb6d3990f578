"""The graph that strategies are searched for: operators as places, and which one reads which.

A reshape is a place (reshapes in a row are one), so is a parameter that several operators read, and the dataset, which
is all inputs that are fed. Constants have no place, nor has a parameter with one reader.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...base.settings.config import ParallelConfig
from ...graph.ir import Graph, Node
from ...graph.passes.candidates import Operator, candidate_strategies
from ...graph.passes.dataset_strategy import dataset_layouts
from ...layout.named_layout import AnyStrategy
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.primitive import Strategy
from ...ops.machine.result_layouts import result_layouts
from ...ops.machine.sharding import default_strategy
from ...ops.machine.split_labels import ShardingRule

DATASET = ""  # the place of all data inputs among the operators


def configured(node: Node) -> bool:
    """Whether a strategy was given that counts: a Cast goes with its neighbours."""
    return node.strategy is not None and node.op != "cast"


class Link(NamedTuple):
    """`target` reads the tensor `tensor` of `source` as operand `position`."""

    source: str
    target: str
    position: int
    tensor: str


class Places:
    """The places of one graph, with the links between them in the order of the network."""

    def __init__(self, graph: Graph, config: ParallelConfig) -> None:
        nodes = [n for n in graph.of_phase("forward") if not n.follows]
        self.graph, self.config, self.device_num = graph, config, config.device_num
        self.shapes = graph.shapes()
        self.itemsizes = {name: np.dtype(dtype).itemsize for name, dtype in graph.dtypes().items()}
        self.inputs = {i.name: i for i in graph.inputs}
        forward = graph.of_phase("forward")
        self.views = {n.name: n for n in forward if n.opdef.view}
        # a parameter that is read in another dtype (the cast is made where it is used, in the layout wanted there), or
        # as the new value that it was given
        self.copies: dict[str, Node] = {}
        for node in forward:
            copy = node.op == "cast" or (node.opdef.writes and node.follows)
            if copy and self.parameter(node.ins[0]) is not None:
                self.copies[node.name] = node
        self.nodes = {n.name: n for n in nodes if n.name not in self.copies}
        self.order = {name: place for place, name in enumerate(self.nodes)}
        self.given = [n for n in self.nodes.values() if configured(n)]
        self.data = self.data_layouts()
        self.after: dict[str, list[Link]] = defaultdict(list)
        self.before: dict[str, list[Link]] = defaultdict(list)
        self.connect()

    def parameter(self, name: str) -> str | None:
        """The parameter that `name` is, or is a copy of."""
        while name in self.copies:
            name = self.copies[name].ins[0]
        value = self.inputs.get(name)
        return name if value is not None and value.role == "parameter" else None

    def data_layouts(self) -> dict[str, TensorLayout]:
        """Layouts of the inputs that are fed."""
        batch = [i for i in self.graph.inputs if i.role == "data"]
        layouts = dataset_layouts(self.config, tuple(i.shape for i in batch))
        return {i.name: layout for i, layout in zip(batch, layouts, strict=True)}

    def connect(self) -> None:
        """Make the links, in the order of the network; reshapes in a row are one."""
        links: dict[tuple[str, int], Link] = {}

        def read(name: str, target: str, position: int) -> None:
            tensor = self.parameter(name) or name
            source = DATASET if name in self.data else self.graph.maker(tensor)
            links.setdefault((target, position), Link(source, target, position, tensor))

        for node in self.nodes.values():
            for position, name in enumerate(node.ins):
                source = name
                while source in self.views:
                    source = self.views[source].ins[0]
                if name in self.views:
                    read(source, name, 0)
                read(name, node.name, position)
        reads = Counter(link.source for link in links.values())
        for link in links.values():
            # constants have no place, nor a parameter with one reader, nor a reshape of these
            shared = self.parameter(link.source) is not None and reads[link.source] > 1
            if shared or link.source == DATASET or link.source in self.nodes or self.before.get(link.source):
                self.after[link.source].append(link)
                self.before[link.target].append(link)

    def tensors(self, node: Node) -> int:
        """How many operands are tensors, not numbers."""
        return sum(name not in self.inputs or not self.inputs[name].is_number for name in node.ins)

    def operator(self, node: Node) -> Operator:
        shapes, itemsize = self.graph.operand_shapes(node), self.itemsizes[node.outs[0]]
        parameters = tuple(i for i, name in enumerate(node.ins) if self.parameter(name) is not None)
        return Operator(node.opdef, shapes, node.attrs, node.shapes, self.device_num, itemsize, parameters)

    def candidates(self, node: Node) -> tuple[Strategy, ...]:
        shapes = self.graph.operand_shapes(node)
        return candidate_strategies(node.opdef, shapes, dict(node.attrs), self.device_num, self.config)

    def there(self, link: Link) -> tuple[int, ...]:
        """The shape that the target reads."""
        if link.target in self.views:
            return self.shapes[link.tensor]
        return self.shapes[self.nodes[link.target].ins[link.position]]

    def number(self, link: Link) -> int:
        """Which result of its source a link reads."""
        return self.nodes[link.source].outs.index(link.tensor)

    def results(self, node: Node, rule: ShardingRule) -> dict[str, TensorLayout]:
        """Layouts of what an operator makes under `rule`, by name."""
        out_strategy = node.out_strategy if configured(node) else None
        results = result_layouts(node.opdef, rule, node.shapes, out_strategy, node.where)
        if replace(node, strategy=rule.strategy).keeps_own_part(self.device_num):
            results = tuple(layout.whole() for layout in rule.outs)
        return dict(zip(node.outs, results, strict=True))

    def finished(self, node: Node, strategy: AnyStrategy | None, source: str, reason: str) -> Node:
        """The node with what was found for it; copies of parameters lie as these do."""
        if strategy is not None and not configured(node):
            attributes: dict[str, Any] = {"strategy": strategy, "strategy_source": source, "strategy_reason": reason}
            return replace(node, **attributes, out_strategy=None)
        if node.name in self.copies and not node.follows:
            shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
            own = default_strategy(node.opdef, shapes, attrs, self.device_num)
            return replace(node, strategy=own, strategy_source="default")
        return node
