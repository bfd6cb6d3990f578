"""A problem with Alpa's own numbers: operators on the axes of a mesh of devices, and the cost of its collectives.

    found = search(net, x, device_num=32, costs=Mesh((4, 8), beta=(1.0, 0.01)), method="integer_program")

Every axis of the mesh splits one label of an operator, or nothing; a product uses all axes. What is counted are
messages alone, each on the axis it runs over, by `alpa_cost`:

    partial sums     all_reduce of a result's slice over axes that split a label it lacks, and of an operand's gradient
    gradients        the same of a parameter's gradient
    redistribution   of an axis that splits a dim before and none after, all_gather; that splits another, all_to_all;
                     that is new, nothing: a slice. The gradient goes the other way

How inputs are fed is free. (Zheng et al. 2022, sections 4.1 and 4.2; the numbers of their tests are reproduced.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...base.checks import number
from ...base.errors import ArgumentError, StrategyError
from ...base.settings.config import ParallelConfig
from ...graph.ir import Graph, Node
from ...layout.named_layout import AnyStrategy, Layout, LayoutStrategy
from ...layout.tensor_layout import Shape, TensorLayout
from ...ops.machine.sharding import sharding_rule
from ...ops.machine.split_labels import ShardingRule, strategy_operands
from ..planner.alpa import alpa_cost
from .cost_model import CostModel
from .mindspore_model import held_bytes
from .places import DATASET, Link, configured
from .problem import Problem, Term

_NAMES = "xyzuvw"


@dataclass(frozen=True)
class Mesh:
    """Devices in rows and columns (or more axes): rank = its place in row-major order.

    alpha, beta   of a message over each axis: a start, and per byte. No seconds: Alpa's numbers are to be compared
    """

    shape: tuple[int, ...]
    alpha: tuple[float, ...] = ()
    beta: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        whole = isinstance(self.shape, tuple) and all(isinstance(n, int) and n >= 1 for n in self.shape)
        if not whole or not 1 <= len(self.shape) <= len(_NAMES):
            allowed = f"A tuple of 1 to {len(_NAMES)} whole numbers of at least 1"
            raise ArgumentError(f"shape={self.shape!r}", where="Mesh", allowed=allowed)
        for name in ("alpha", "beta"):
            values = getattr(self, name) or (1.0,) * len(self.shape)
            if not isinstance(values, tuple) or len(values) != len(self.shape):
                raise ArgumentError(f"{name}={values!r}", where="Mesh", allowed="One number per axis of shape")
            object.__setattr__(self, name, tuple(number(0)("Mesh", name, value) for value in values))

    @property
    def device_num(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.shape)

    def cost(self, kind: str, size_bytes: float, axis: int) -> float:
        """The cost of a collective on a value of so many bytes over one axis; nothing over an axis of one device."""
        n = self.shape[axis]
        return alpa_cost(kind, size_bytes, n, self.alpha[axis], self.beta[axis]) if n > 1 else 0.0

    def axes_of(self, layout: TensorLayout, axis: int) -> tuple[int, ...]:
        """The mesh's axes that an axis of a device matrix (counted from the right) runs over.

        Raises StrategyError where it runs over a part of one.
        """
        stride, size = math.prod(layout.device_matrix[len(layout.device_matrix) - axis :]), 0
        size = layout.device_matrix[-1 - axis]
        steps = [math.prod(self.shape[at + 1 :]) for at in range(len(self.shape))]
        axes = tuple(at for at, step in enumerate(steps) if self.shape[at] > 1 and stride <= step < stride * size)
        if math.prod(self.shape[at] for at in axes) != size or (axes and steps[axes[-1]] != stride):
            what = f"device matrix {layout.device_matrix} on a mesh of {self.shape}"
            raise StrategyError(what, where="Alpa's costs", allowed="Axes of the mesh, each of them whole")
        return axes

    def splits(self, layout: TensorLayout) -> dict[int, int]:
        """{axis of the mesh: the dim of a tensor that it splits}."""
        dims = enumerate(layout.tensor_map)
        return {at: dim for dim, axes in dims for axis in axes for at in self.axes_of(layout, axis)}


def alpa_problem(
    graph: Graph, config: ParallelConfig, mesh: Mesh, also: Mapping[str, AnyStrategy] | None = None
) -> Problem:
    """The choices of a traced network on a mesh. Raises ArgumentError for a mesh of another number of devices."""
    if mesh.device_num != config.device_num:
        allowed = f"A mesh of {config.device_num} devices"
        raise ArgumentError(f"a mesh of {mesh.shape}", where="Alpa's costs", allowed=allowed)
    return AlpaModel(graph, config, mesh, also).problem()


class AlpaModel(CostModel):
    """Numbers, as in the module's words."""

    name = "alpa"

    def __init__(
        self, graph: Graph, config: ParallelConfig, mesh: Mesh, also: Mapping[str, AnyStrategy] | None = None
    ) -> None:
        self.mesh = mesh
        super().__init__(graph, config, also)

    def terms(self) -> tuple[Term, ...]:
        formula = "int(alpha + 2 beta (n - 1) / n bytes) + 0.01"
        return (
            Term("partial sums", "", 1.0, f"all_reduce over an axis of the mesh: {formula}"),
            Term("gradients", "", 1.0, f"all_reduce of a parameter's gradient: {formula}"),
            Term("redistribution", "", 1.0, "all_gather and all_to_all over an axis, there and back"),
        )

    def rules_of(self, node: Node) -> Iterator[ShardingRule]:
        if configured(node):
            yield from super().rules_of(node)
            return
        shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
        signature = node.opdef.signature_for(shapes, attrs)
        operands = strategy_operands(node.opdef, signature)
        labels, result_labels = signature.labels, set("".join(signature.outs))
        summed = any(sum(c in word for word in operands) > 1 for c in labels if c not in result_labels)
        ways: Iterator[tuple[str, ...]] = itertools.product(
            *([*labels, ""] if n > 1 else [""] for n in self.mesh.shape)
        )
        rules = []
        for way in ways:
            if summed and any(not label and n > 1 for label, n in zip(way, self.mesh.shape, strict=True)):
                continue
            try:
                strategy = self.strategy(operands, way)
                rules.append(sharding_rule(node.opdef, shapes, attrs, strategy, self.device_num, node.where))
            except StrategyError:  # labels that must stay whole, sizes that do not divide
                continue
        parameters = [self.parameter(name) for name in node.ins]
        for rule in rules:
            reads = [(p, layout) for p, layout in zip(parameters, rule.operand_layouts, strict=True) if p is not None]
            pairs = itertools.combinations(reads, 2)
            if all(p != q or mine.same_placement(other) for (p, mine), (q, other) in pairs):
                yield rule
        if not rules:
            yield from super().rules_of(node)

    def strategy(self, operands: tuple[str, ...], way: tuple[str, ...]) -> LayoutStrategy:
        """The strategy under which axis n of the mesh splits the label way[n]."""
        names = tuple(_NAMES[: len(way)])
        empty = Layout(self.mesh.shape, names)
        dims = {label: tuple(n for n, at in zip(names, way, strict=True) if at == label) for label in way if label}
        entries = ([dims.get(c, ()) for c in word] for word in operands)
        layouts = (empty(*(d[0] if len(d) == 1 else d or "None" for d in word)) for word in entries)
        return LayoutStrategy(tuple(layouts))

    def prices(self, node: Node, rules: list[ShardingRule]) -> tuple[np.ndarray, np.ndarray]:
        operator = self.operator(node)
        costs = [self.price(node, rule) for rule in rules]
        return np.array(costs), np.array([held_bytes(operator, rule) for rule in rules], np.int64)

    def price(self, node: Node, rule: ShardingRule) -> tuple[float, ...]:
        sums, gradients = 0.0, 0.0
        for layout, shape, name in zip(rule.outs, node.shapes, node.outs, strict=True):
            size = math.prod(layout.slice_shape(shape)) * self.itemsizes[name]
            sums += sum(
                self.mesh.cost("all_reduce", size, at) for a in layout.partial for at in self.mesh.axes_of(layout, a)
            )
        used = {at for _, axes in rule.axes for a in axes for at in self.mesh.axes_of(rule.outs[0], a)}
        for layout, shape, name in zip(rule.ins, self.graph.operand_shapes(node), node.ins, strict=True):
            if name not in self.live:
                continue
            size = math.prod(layout.slice_shape(shape)) * self.itemsizes[name]
            over = used - set(self.mesh.splits(layout))
            cost = sum(self.mesh.cost("all_reduce", size, at) for at in sorted(over))
            if self.parameter(name) is not None:
                gradients += cost
            else:
                sums += cost
        return sums, gradients, 0.0

    def table(self, source: str, tensor: str, link: Link) -> np.ndarray:
        if source == DATASET:
            return np.zeros((1, len(self.rules[link.target]), len(self.terms())))
        return super().table(source, tensor, link)

    def between(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int, live: bool
    ) -> tuple[float, ...]:
        there = self.moved(before, after, shape, shape_after, itemsize)
        return 0.0, 0.0, there + (self.moved(after, before, shape_after, shape, itemsize) if live else 0.0)

    def moved(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int
    ) -> float:
        """Cost of one way. Over a reshape, axes that split the same share of the first dim stay."""
        had, needed = self.mesh.splits(before), self.mesh.splits(after)
        if shape != shape_after:
            had, needed = ({at: (dim if dim == 0 else ~dim) for at, dim in one.items()} for one in (had, needed))
        size, cost = math.prod(before.slice_shape(shape)) * itemsize, 0.0
        for at, dim in sorted(had.items(), reverse=True):
            if needed.get(at) == dim:
                continue
            size *= self.mesh.shape[at]  # whole along this axis
            cost += self.mesh.cost("all_to_all" if at in needed else "all_gather", size, at)
            size //= self.mesh.shape[at] if at in needed else 1
        return cost
