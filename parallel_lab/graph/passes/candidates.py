"""The choice of a strategy for one operator, by what is known of its neighbours.

    candidate_strategies(op, shapes, attrs, 8, config)                 those that may be taken
    choose_from_inputs(op, shapes, attrs, input_layouts, 8, config)    the one that fits the inputs as they lie

An `Edge` is what is known on its other side: the layout in which a producer leaves its result, or a consumer wants its
operand. Of the candidates the one wins that needs least communication on the edges; equals are told apart by the bytes
touched there, then by the operator's own forward communication, then by the number of pieces, then from the first dim
on (MindSpore: edge_costmodel, Strategy::Compare).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...base.errors import StrategyError
from ...base.settings.config import ParallelConfig
from ...layout.redistribution_cost import practical, redistribution_cost
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.opdef import OpDef
from ...ops.machine.primitive import Strategy
from ...ops.machine.registry import OPS
from ...ops.machine.sharding import ShardingRule, default_strategy, legal_strategies, sharding_rule

Shape = tuple[int, ...]
Attrs = tuple[tuple[str, Any], ...]

# MindSpore 2.10 has no rule of their own for these: only their batch is split, among all devices (recorded)
BATCH_ONLY = ("flatten",)
ELEMENTWISE = ("...->...", "...,...->...", "...,...,...->...")


@dataclass(frozen=True)
class Edge:
    """What is known on the other side of an edge to the operator that is to be chosen for.

    layout, shape  of the tensor there;  own_shape: global shape here, behind a Reshape
    position       operand it is here; None: the result, `layout` a consumer's wish;  itemsize: bytes of an element
    """

    layout: TensorLayout
    shape: Shape
    own_shape: Shape
    position: int | None
    itemsize: int = 4

    def meets(self, rule: ShardingRule, result: TensorLayout) -> bool:
        """Whether nothing need be done on this edge under `rule`."""
        here = result if self.position is None else rule.ins[self.position]
        return self.shape == self.own_shape and here.same_placement(self.layout)

    def cost(self, rule: ShardingRule, result: TensorLayout) -> tuple[float, float]:
        """(bytes of communication with start-up included, bytes touched)."""
        if self.position is None:
            cost = redistribution_cost(result, self.layout, self.own_shape, self.shape)
        else:
            cost = redistribution_cost(self.layout, rule.ins[self.position], self.shape, self.own_shape)
        sent = sum(practical(elements * self.itemsize) for elements in (cost.forward, cost.backward))
        return sent, cost.computation * self.itemsize


@dataclass(frozen=True)
class Operator:
    """An operator with what its rules depend on."""

    op: OpDef
    shapes: tuple[Shape, ...]
    attrs: Attrs
    out_shape: Shape
    device_num: int
    itemsize: int = 4

    def rule(self, strategy: Strategy) -> ShardingRule:
        return sharding_rule(self.op, self.shapes, dict(self.attrs), strategy, self.device_num)

    def pieces(self, strategy: Strategy) -> int:
        """How many devices a strategy uses."""
        return math.prod(n for _, n in self.rule(strategy).cuts)

    @property
    def is_elementwise(self) -> bool:
        return self.op.signature in ELEMENTWISE


Score = tuple[float, float, float, int, tuple[tuple[int, ...], ...]]


def score(operator: Operator, strategy: Strategy, edges: Iterable[Edge]) -> Score:
    """Smaller is better: bytes on edges, touched there, communicated forward; then more pieces, of earlier dims."""
    rule = operator.rule(strategy)
    result = rule.out.whole()
    costs = [edge.cost(rule, result) for edge in edges]
    pieces = math.prod(itertools.chain.from_iterable(strategy))
    moved, touched = sum(c for c, _ in costs), sum(c for _, c in costs)
    earlier_dims = tuple(tuple(-n for n in splits) for splits in strategy)
    return moved, touched, practical(_forward_bytes(operator, rule)), -pieces, earlier_dims


def _forward_bytes(operator: Operator, rule: ShardingRule) -> float:
    """Bytes an operator communicates in its forward step: the slice of a partial result, its windows' strips."""
    total = 0.0
    if rule.out.is_partial:
        total += math.prod(rule.out.slice_shape(operator.out_shape))
    for _, _, (_, _, length, part) in rule.windows:
        total += math.prod(rule.ins[0].slice_shape(operator.shapes[0])) // part * max(0, length - part)
    return total * operator.itemsize


def candidate_strategies(
    op: OpDef, shapes: Sequence[Shape], attrs: dict[str, Any], device_num: int, config: ParallelConfig
) -> tuple[Strategy, ...]:
    """The strategies that a search may give an operator.

    fully_use_devices   those that use all devices, or, of operators other than MatMul, none of them (nothing is split).
                        If its dims allow neither: any legal strategy (MindSpore refuses the network)
    tensor_slice_align  MatMul's operands and result have slices whose last dim is a multiple of tensor_slice_align_size

    Raises StrategyError if no strategy leaves aligned slices.
    """
    shapes = tuple(tuple(s) for s in shapes)
    align = config.tensor_slice_align_size if config.tensor_slice_align_enable and op.name == "matmul" else 1
    return _candidates(op.name, shapes, tuple(sorted(attrs.items())), device_num, config.fully_use_devices, align)


@lru_cache(maxsize=4096)
def _candidates(
    op_name: str, shapes: tuple[Shape, ...], attrs: Attrs, device_num: int, fully: bool, align: int
) -> tuple[Strategy, ...]:
    op, given = OPS[op_name], dict(attrs)
    if op_name in BATCH_ONLY:
        return (default_strategy(op, shapes, given, device_num),)
    found = legal = legal_strategies(op, shapes, given, device_num, searched=True)
    if fully:
        ones = tuple(s for s in legal if all(n == 1 for cuts in s for n in cuts)) if op_name != "matmul" else ()
        full = legal_strategies(op, shapes, given, device_num, fully_use_devices=True, searched=True)
        found = tuple(dict.fromkeys((*full, *ones))) or legal
    if align > 1:
        out_shape = op.infer(shapes, ("float32",) * len(shapes), given)[0]

        def aligned(strategy: Strategy) -> bool:
            rule = sharding_rule(op, shapes, given, strategy, device_num)
            tensors = (*zip(rule.ins, shapes, strict=True), (rule.out, out_shape))
            return all(layout.slice_shape(shape)[-1] % align == 0 for layout, shape in tensors)

        found = tuple(filter(aligned, found))
        if not found:
            operands, size = " and ".join(map(str, shapes)), "tensor_slice_align_size"
            what = f"no strategy leaves slices of operands {operands} whose last dim is a multiple of {align}"
            allowed = f"With tensor_slice_align_enable the last dim of every slice of a MatMul is a multiple of {size}"
            hint = f"Give a smaller {size}, or switch tensor_slice_align_enable off"
            raise StrategyError(what, where=op.class_name, allowed=allowed, hint=hint)
    return found


def meeting(operator: Operator, strategies: Iterable[Strategy], edges: Sequence[Edge]) -> list[Strategy]:
    """Those under which every edge needs nothing."""
    op = operator.op
    # where tuples of a strategy are the operands' counts, most are told apart without their rule
    plain = op.strategy_labels is None
    reads = [e for e in edges if plain and e.position is not None and e.shape == e.own_shape]
    wanted = [(e.position, e.layout.splits) for e in reads]
    found = []
    for strategy in strategies:
        if any(strategy[position] != cuts for position, cuts in wanted):
            continue
        rule = operator.rule(strategy)
        if all(edge.meets(rule, rule.out.whole()) for edge in edges):
            found.append(strategy)
    return found


def choose_from_inputs(
    op: OpDef,
    shapes: Sequence[Shape],
    attrs: dict[str, Any],
    input_layouts: Sequence[TensorLayout | None],
    device_num: int,
    config: ParallelConfig,
) -> Strategy:
    """The strategy of one operator that fits its inputs as they lie.

    shapes         global shapes of the operands
    input_layouts  one per operand; None where it is not known or does not matter (numbers)

    A legal strategy that takes all of them as they lie, if there is one, whether or not it uses all devices; else the
    one of `candidate_strategies` whose redistributions communicate least. Raises StrategyError without sharding rule.
    """
    shapes = tuple(tuple(s) for s in shapes)
    if op.result_shape is not None or op.view:
        hint = "Compose it from operators that have a rule"
        raise StrategyError(f"{op.class_name} takes no strategy", where=op.class_name, hint=hint)
    out_shape = op.infer(shapes, ("float32",) * len(shapes), attrs)[0]
    operator = Operator(op, shapes, tuple(sorted(attrs.items())), out_shape, device_num)
    edges = [
        Edge(layout.whole(), shape, shape, position)
        for position, (layout, shape) in enumerate(zip(input_layouts, shapes, strict=True))
        if layout is not None and layout.ndim == len(shape)
    ]
    legal = legal_strategies(op, shapes, attrs, device_num, searched=True) if edges else ()
    fitting = meeting(operator, legal, edges)
    options = fitting or candidate_strategies(op, shapes, attrs, device_num, config)
    return min(options, key=lambda s: score(operator, s, edges))
