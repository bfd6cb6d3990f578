"""The sharding rule that follows from labels: strategy -> device matrix, one layout per operand, what is left to
combine.

    rule = sharding_rule(OPS["matmul"], ((16, 32), (32, 16)), {}, ((2, 4), (4, 1)), 8)
    rule.ins[0]   device_matrix (2, 4, 1), tensor_map (2, 1)
    rule.out      device_matrix (2, 4, 1), tensor_map (2, -1), partial sum over axes (1,)      of several: rule.outs

Equals MindSpore's rules for MatMul, the element-wise family, activations, reductions, one-hot and softmax
(operator_info: CheckStrategy, InferDevMatrixShape, InferTensorMap, InferForwardCommunication). Spare devices repeat the
calculation on an axis appended on the right.

A strategy is a tuple of counts per input, from which the device matrix follows, or a `LayoutStrategy`, which brings its
device matrix with it (`layout_strategy.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...base.errors import StrategyError
from ...layout.named_layout import AnyStrategy, LayoutStrategy, Strategy
from .layout_strategy import layouts_rule
from .legal_strategies import nearest_legal
from .opdef import OPS, OpDef
from .signature import Fault, Shape
from .split_labels import EQUAL_SLICES, Axes, LabelSplits, ShardingRule, dim_text

POWERS_OF_TWO = "Counts are powers of two, as the number of devices is: 1, 2, 4, 8, ..."


def sharding_rule(
    op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: AnyStrategy, device_num: int, where: str = ""
) -> ShardingRule:
    """The rule for `strategy` on `device_num` ranks. Raises StrategyError naming operator, input, dim, label, and
    both numbers (or axes), with the nearest legal strategy.
    """
    key = tuple(sorted(attrs.items()))
    rule = _rule(op.name, shapes, key, strategy, device_num)
    if isinstance(rule, ShardingRule):
        return rule
    what, allowed = rule

    def legal(layouts: LayoutStrategy) -> bool:
        return isinstance(_rule(op.name, shapes, key, layouts, device_num), ShardingRule)

    near = nearest_legal(op, shapes, attrs, strategy, device_num, legal)
    hint = f"Try {near}" if near else ""
    raise StrategyError(f"strategy {strategy} {what}", where=where or op.class_name, allowed=allowed, hint=hint)


@lru_cache(maxsize=65536)
def _rule(
    op_name: str, shapes: tuple[Shape, ...], attrs: tuple[Any, ...], strategy: AnyStrategy, device_num: int
) -> ShardingRule | Fault:
    """The rule, or (what is wrong, what is allowed)."""
    op = OPS[op_name]
    splits = LabelSplits(op, shapes, dict(attrs))
    operands, names = splits.operands, splits.names
    named = isinstance(strategy, LayoutStrategy)
    if len(strategy) != len(operands):
        one = "layout" if named else "tuple"
        return f"has {len(strategy)} {one}s, but {op.class_name} has {len(operands)} inputs", f"One {one} per input"
    if named:
        return layouts_rule(splits, strategy, device_num)
    cuts: dict[str, int] = {}
    seen: dict[str, tuple[int, int]] = {}
    powers = device_num & (device_num - 1) == 0  # with 24 devices any divisor will do (MindSpore, CheckStrategyValue)
    for position, counts in enumerate(strategy):
        for dim, count in enumerate(counts):
            if count < 1 or powers and count & (count - 1):
                return f"splits dim {dim} of input {position} {count} ways", POWERS_OF_TWO if powers else EQUAL_SLICES
    for position, (labels, counts) in enumerate(zip(operands, strategy, strict=True)):
        if fault := splits.dims_fault(position, counts, "count", "counts"):
            return fault
        for dim, (label, count) in enumerate(zip(labels, counts, strict=True)):
            if label != "1" and cuts.setdefault(label, count) != count:
                i, j = seen[label]
                contracted = label in splits.signature.reduced
                same = f"'{label}' (its dim {j})" if op.names_labels else f"its dim {j}, which goes with it,"
                spot = dim_text(position, dim, label, op.names_labels)
                what = f"splits {spot} {count} ways, but input {i} splits {same} {cuts[label]} ways"
                if contracted:
                    return what, "Both inputs must split the contracted dim equally"
                return what, "All inputs must split it equally"
            seen.setdefault(label, (position, dim))
    cuts = dict.fromkeys(names, 1) | cuts
    if fault := splits.label_fault(cuts):
        return fault
    used = math.prod(cuts[c] for c in names)
    if used > device_num or device_num % used:
        what = f"makes {used} slices, but there are {device_num} devices"
        return what, "The product of all counts must divide the number of devices"
    # of a composed operator the parts refuse: their number of devices is the true one
    if op.expand is None and (fault := splits.devices_fault(cuts, device_num)):
        return fault
    repeat = (device_num // used,) if used < device_num else ()
    matrix = tuple(cuts[c] for c in names) + repeat
    axes: dict[str, Axes] = {c: (len(matrix) - 1 - i,) if cuts[c] > 1 else () for i, c in enumerate(names)}
    return replace(splits.rule(strategy, matrix, axes), labels=names + (("",) if repeat else ()))


def default_strategy(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], device_num: int) -> Strategy:
    """Where none is given (MindSpore, semi_auto_parallel): all devices split the batch label, if that divides."""
    splits, key = LabelSplits(op, shapes, attrs), tuple(sorted(attrs.items()))
    batch = op.batch if op.batch is not None else splits.names[0] if splits.names else ""
    free = batch and batch not in splits.whole and batch not in splits.held
    cut = device_num if free and splits.sizes[batch] % device_num == 0 else 1
    counts = [tuple(tuple(n if c == batch else 1 for c in labels) for labels in splits.operands) for n in (cut, 1)]
    chosen, ones = counts
    return chosen if isinstance(_rule(op.name, shapes, key, chosen, device_num), ShardingRule) else ones
