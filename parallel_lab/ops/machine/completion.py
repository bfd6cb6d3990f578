"""A strategy with its `()` filled in, and the strategy of a part of a composed operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...layout.named_layout import AnyStrategy, LayoutStrategy, strategy_counts
from .opdef import OpDef
from .signature import Shape
from .split_labels import ShardingRule, strategy_operands


def completed(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: AnyStrategy) -> AnyStrategy:
    """`strategy` with its `()` filled in, as the same label elsewhere, or whole (MindSpore: GenerateStrategies).

    ((2, 4, 4), ()) of a sum with a (32, 48) operand is ((2, 4, 4), (4, 4)). Among layouts, `layout()` is filled in.
    The `()` of numbers that have no entry is not read. Counts of an operand alone, where the first of several entries
    is for the result (one-hot), leave the other dims whole. A strategy for some inputs but not for the first, such as
    ((), (4, 8, 1), ()) of a LayerNorm or ((), (1, 2)) of a product, and one for none are left as they are.
    """
    signature = op.signature_for(shapes, attrs)
    operands = strategy_operands(op, signature)
    named = isinstance(strategy, LayoutStrategy)
    if (
        op.strategy_labels is not None
        and not isinstance(strategy, LayoutStrategy)
        and len(strategy) == len(operands) > 1
    ):
        strategy = tuple(map(_for_result, operands, signature.ins, strategy))
    if len(operands) < len(strategy) <= len(shapes) and not any(map(len, strategy_counts(strategy)[len(operands) :])):
        cut = len(operands)
        if isinstance(strategy, LayoutStrategy):
            strategy = replace(strategy, layouts=strategy.layouts[:cut])
        else:
            strategy = strategy[:cut]
    entries: Sequence[tuple[Any, ...]]
    if isinstance(strategy, LayoutStrategy):
        entries = [layout.axes if layout.dims else () for layout in strategy]
    else:
        entries = strategy
    empty = [bool(labels) and not entry for labels, entry in zip(operands, entries, strict=False)]
    half = empty[:1] == [True] and any(entries[1:]) and (any(empty[1:]) or op.class_name.endswith("MatMul"))
    none = not any(entries) and operands[:1] == signature.ins[:1]  # of a result (one-hot) MindSpore leaves all whole
    if len(strategy) != len(operands) or not any(empty) or half or none:
        return strategy
    whole = () if named else 1
    cut_of: dict[str, Any] = {"1": whole}
    for labels, entry in zip(operands, entries, strict=True):
        for label, cut in zip(labels, entry, strict=False):
            cut_of.setdefault(label, cut)
    filled = [tuple(cut_of.get(c, whole) for c in labels) for labels in operands]
    if not isinstance(strategy, LayoutStrategy):
        return tuple(entry or full for entry, full in zip(strategy, filled, strict=True))
    layouts = (layout if layout.dims else layout.named(full) for layout, full in zip(strategy, filled, strict=True))
    return replace(strategy, layouts=tuple(layouts))


def _for_result(labels: str, operand: str, entry: tuple[int, ...]) -> tuple[int, ...]:
    """An entry with a count per label, where it has one per dim of the operand."""
    if len(entry) == len(labels) or len(entry) != len(operand) or not entry:
        return entry
    return tuple(dict(zip(operand, entry, strict=True)).get(c, 1) for c in labels)


def part_strategy(rule: ShardingRule, operands: Iterable[str]) -> tuple[Any, ...]:
    """The strategy of an operator whose operands have these labels of `rule`'s, as `shard` takes it."""
    cuts = dict(rule.cuts)
    if isinstance(rule.strategy, LayoutStrategy):
        return tuple(rule.strategy[0].named(rule.axes_of(c) for c in labels) for labels in operands)
    return tuple(tuple(cuts.get(c, 1) for c in labels) for labels in operands)
