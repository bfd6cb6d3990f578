"""The choice of a strategy for one operator, by what is known of its neighbours.

    candidate_strategies(op, shapes, attrs, 8, config)                 those that may be taken
    choose_from_inputs(op, shapes, attrs, input_layouts, 8, config)    the one that fits the inputs as they lie

An `Edge` is what is known on its other side: the layout in which a producer leaves its result, or a consumer wants its
operand. The candidate that needs least communication on the edges wins, and among equals the one that touches
least there. Further equals are distinguished

    by one edge              least forward communication of the operator itself, more pieces, then from the first dim on
    of one that has waited   least computation of the operator, least forward communication, first of the list

(MindSpore: edge_costmodel; operator_info, GetStrategyByVisitedEdges; Strategy::Compare). The list: per dim 1, 2, 4,
..., the leftmost dim outermost.
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
from ...layout.named_layout import AnyStrategy, strategy_counts
from ...layout.redistribution_cost import practical, redistribution_cost
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.legal_strategies import legal_strategies
from ...ops.machine.opdef import OpDef
from ...ops.machine.primitive import Strategy
from ...ops.machine.registry import OPS
from ...ops.machine.sharding import default_strategy, sharding_rule
from ...ops.machine.split_labels import ShardingRule, strategy_operands

Shape = tuple[int, ...]
Attrs = tuple[tuple[str, Any], ...]

# MindSpore 2.10 has no rule of their own for these: only their batch is split, among all devices (recorded)
BATCH_ONLY = ("flatten",)
REPEATING = ("tile", "broadcast_to")
ELEMENTWISE = ("...->...", "...,...->...", "...,...,...->...")


@dataclass(frozen=True)
class Edge:
    """What is known on the other side of an edge to the operator that is to be chosen for.

    layout, shape  of the tensor there;  own_shape: global shape here, behind a Reshape
    position       operand it is here; None: a result, `layout` a consumer's wish;  itemsize: bytes of an element
    alltoall       whether a redistribution may use all_to_all;  result: which one, of several
    """

    layout: TensorLayout
    shape: Shape
    own_shape: Shape
    position: int | None
    itemsize: int = 4
    alltoall: bool = False
    result: int = 0

    def here(self, rule: ShardingRule) -> TensorLayout:
        """The layout at the operator's own end of the edge under `rule`."""
        return rule.outs[self.result].whole() if self.position is None else rule.ins[self.position]

    def meets(self, rule: ShardingRule) -> bool:
        """Whether nothing need be done on this edge under `rule`."""
        return self.shape == self.own_shape and self.here(rule).same_placement(self.layout)

    def cost(self, rule: ShardingRule) -> tuple[float, float]:
        """(bytes of communication with start-up included, bytes touched)."""
        sides = (self.here(rule), self.layout, self.own_shape, self.shape)
        if self.position is not None:
            sides = (self.layout, rule.operand_layouts[self.position], self.shape, self.own_shape)
        cost = redistribution_cost(*sides, alltoall=self.alltoall)
        sent = sum(practical(elements * self.itemsize) for elements in (cost.forward, cost.backward))
        return sent, cost.computation * self.itemsize


@dataclass(frozen=True)
class Operator:
    """An operator with what its rules depend on.  parameters: the operands that are parameters."""

    op: OpDef
    shapes: tuple[Shape, ...]
    attrs: Attrs
    out_shapes: tuple[Shape, ...]
    device_num: int
    itemsize: int = 4
    parameters: tuple[int, ...] = ()

    def rule(self, strategy: AnyStrategy) -> ShardingRule:
        return sharding_rule(self.op, self.shapes, dict(self.attrs), strategy, self.device_num)

    def pieces(self, strategy: Strategy) -> int:
        """How many devices a strategy uses."""
        return math.prod(n for _, n in self.rule(strategy).cuts)

    @property
    def is_elementwise(self) -> bool:
        return self.op.signature in ELEMENTWISE


def chosen(
    operator: Operator, strategies: Sequence[Strategy], edges: Sequence[Edge], *, waited: bool = False
) -> tuple[Strategy, float, float]:
    """(the best of `strategies`, bytes it communicates on the edges, bytes touched there), as the module says."""
    costs = [edge_cost(operator, strategy, edges) for strategy in strategies]
    least = min(costs)
    equal = [s for s, cost in zip(strategies, costs, strict=True) if cost == least]
    key = computation_first if waited else pieces_first
    return (min(equal, key=lambda s: key(operator, s)) if len(equal) > 1 else equal[0]), *least


def edge_cost(operator: Operator, strategy: Strategy, edges: Iterable[Edge]) -> tuple[float, float]:
    """(bytes communicated, bytes touched) on all edges under `strategy`."""
    rule = operator.rule(strategy)
    costs = [edge.cost(rule) for edge in edges]
    return sum(c for c, _ in costs), sum(c for _, c in costs)


def pieces_first(operator: Operator, strategy: Strategy) -> tuple[float, int, Strategy]:
    """What tells equals apart by one edge: bytes of its forward communication, fewer pieces, later dims."""
    pieces = math.prod(itertools.chain.from_iterable(strategy))
    earlier_dims = tuple(tuple(-n for n in splits) for splits in strategy)
    return practical(forward_bytes(operator, operator.rule(strategy))), -pieces, earlier_dims


def computation_first(operator: Operator, strategy: Strategy) -> tuple[float, float]:
    """Bytes computed on and communicated, forward. (MindSpore: operator_costmodel; SetCostUnderStrategyBase.)

    The operands' slices, or the result's of an operator that repeats its operand, and the result's where addends are
    combined, twice for a mean. A batch split among all devices wins ties by a byte.
    """
    return operator_cost(operator, operator.rule(strategy))[:2]


def operator_cost(operator: Operator, rule: ShardingRule) -> tuple[float, float, float]:
    """Bytes computed on, communicated forward, start-up included, and for the gradients of parameters."""
    slices = [math.prod(x.slice_shape(s)) for x, s in zip(rule.ins, operator.shapes, strict=True)]
    summed = sum(slices[i] for i in operator.parameters if rule.ins[i].replica_count > 1) * operator.itemsize
    if operator.op.name in REPEATING:
        slices = [math.prod(x.slice_shape(s)) for x, s in zip(rule.outs, operator.out_shapes, strict=True)]
    held = (sum(slices) + _addends(operator, rule) * (1 + operator.op.mean)) * operator.itemsize
    costs = float(held), practical(forward_bytes(operator, rule)), float(summed)
    strategy = strategy_counts(rule.strategy)
    if not strategy or strategy[0][:1] != (operator.device_num,):
        return costs
    computed, sent, summed_later = (cost - 1 if cost > 1 else cost for cost in costs)
    return computed, sent, summed_later


def _addends(operator: Operator, rule: ShardingRule) -> int:
    """Elements of the slices of partial results."""
    results = zip(rule.outs, operator.out_shapes, strict=True)
    return sum(math.prod(layout.slice_shape(shape)) for layout, shape in results if layout.is_partial)


def forward_bytes(operator: Operator, rule: ShardingRule) -> float:
    """Bytes an operator communicates in its forward step: the slices of partial results, its windows' strips."""
    total = float(_addends(operator, rule))
    for _, _, (_, _, length, part) in rule.windows:
        total += math.prod(rule.ins[0].slice_shape(operator.shapes[0])) // part * max(0, length - part)
    return total * operator.itemsize


def candidate_strategies(
    op: OpDef, shapes: Sequence[Shape], attrs: dict[str, Any], device_num: int, config: ParallelConfig
) -> tuple[Strategy, ...]:
    """The strategies that a search may give an operator.

    fully_use_devices   those that use all devices, or, of operators other than MatMul, none of them (nothing is split).
                        If its dims allow neither: any legal strategy (MindSpore refuses the network)
    number of devices   no power of two, as 24 = 8 * 3: those for 8, each with one dim split 3 times further
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
    op, attrs_by_name = OPS[op_name], dict(attrs)
    if op_name in BATCH_ONLY:
        return (default_strategy(op, shapes, attrs_by_name, device_num),)
    legal = legal_strategies(op, shapes, attrs_by_name, device_num, searched=True)
    strategies = _odd_once(op, shapes, attrs_by_name, legal, device_num)
    if fully:
        full = set(legal_strategies(op, shapes, attrs_by_name, device_num, fully_use_devices=True, searched=True))
        whole = op_name != "matmul"
        kept = (s for s in strategies if s in full or (whole and all(n == 1 for cuts in s for n in cuts)))
        strategies = tuple(kept) or strategies
    if align > 1:
        out_shape = op.infer(shapes, ("float32",) * len(shapes), attrs_by_name).shapes[0]

        def aligned(strategy: Strategy) -> bool:
            rule = sharding_rule(op, shapes, attrs_by_name, strategy, device_num)
            tensors = (*zip(rule.ins, shapes, strict=True), (rule.out, out_shape))
            return all(layout.slice_shape(shape)[-1] % align == 0 for layout, shape in tensors)

        strategies = tuple(filter(aligned, strategies))
        if not strategies:
            operands, size = " and ".join(map(str, shapes)), "tensor_slice_align_size"
            what = f"no strategy leaves slices of operands {operands} whose last dim is a multiple of {align}"
            allowed = f"With tensor_slice_align_enable the last dim of every slice of a MatMul is a multiple of {size}"
            hint = f"Give a smaller {size}, or switch tensor_slice_align_enable off"
            raise StrategyError(what, where=op.class_name, allowed=allowed, hint=hint)
    return strategies


def _odd_once(
    op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], legal: tuple[Strategy, ...], device_num: int
) -> tuple[Strategy, ...]:
    """Of 2^k * odd devices: strategies for 2^k with one dim split `odd` times further, and the one that splits nothing.

    MindSpore, operator_info.cc (strategies where the number of devices is not a power of two).
    """
    odd = device_num // (device_num & -device_num)
    if odd == 1:
        return legal
    labels = strategy_operands(op, op.signature_for(shapes, attrs))

    def looked_at(strategy: Strategy) -> bool:
        cuts = {c: n for word, tuple_ in zip(labels, strategy, strict=True) for c, n in zip(word, tuple_, strict=True)}
        others = [n for n in cuts.values() if n & (n - 1)]
        rest, left = divmod(others[0], odd) if len(others) == 1 else (0, 1)
        return not left and rest & (rest - 1) == 0 or all(n == 1 for n in cuts.values())

    return tuple(filter(looked_at, legal))


def meeting(operator: Operator, strategies: Iterable[Strategy], edges: Sequence[Edge]) -> list[Strategy]:
    """Those under which every edge needs nothing."""
    op = operator.op
    # where tuples of a strategy are the operands' counts, most differ without a look at their rules
    plain = op.strategy_labels is None
    splits_read = [
        (e.position, e.layout.splits) for e in edges if plain and e.position is not None and e.shape == e.own_shape
    ]
    candidates = []
    for strategy in strategies:
        if any(strategy[position] != cuts for position, cuts in splits_read):
            continue
        rule = operator.rule(strategy)
        if all(edge.meets(rule) for edge in edges):
            candidates.append(strategy)
    return candidates


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
    out_shapes = op.infer(shapes, ("float32",) * len(shapes), attrs).shapes
    operator = Operator(op, shapes, tuple(sorted(attrs.items())), out_shapes, device_num)
    edges = [
        Edge(layout.whole(), shape, shape, position, alltoall=any(config.manner.values()))
        for position, (layout, shape) in enumerate(zip(input_layouts, shapes, strict=True))
        if layout is not None and layout.ndim == len(shape)
    ]
    legal = legal_strategies(op, shapes, attrs, device_num, searched=True) if edges else ()
    fitting = meeting(operator, legal, edges)
    options = fitting or candidate_strategies(op, shapes, attrs, device_num, config)
    return chosen(operator, options, edges)[0]
