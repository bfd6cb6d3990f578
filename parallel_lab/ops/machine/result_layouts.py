"""Where results lie once partial sums are combined: what follows from the inputs, or what an `out_strategy` asks for.

result_layouts(OPS["matmul"], rule, ((16, 32),), None)             sums are left with every rank: an all_reduce
result_layouts(OPS["matmul"], rule, ((16, 32),), ((8, 1),))        scattered along dim 0: a reduce_scatter
"""

from __future__ import annotations

import itertools
from typing import Any

from ...base.errors import StrategyError
from ...base.settings.compat import get_compat
from ...layout.named_layout import AnyStrategy, Layout, LayoutStrategy
from ...layout.tensor_layout import TensorLayout
from .opdef import OpDef
from .signature import Shape
from .split_labels import Axes, ShardingRule


def result_layouts(
    op: OpDef, rule: ShardingRule, shapes: tuple[Shape, ...], out_strategy: AnyStrategy | None, where: str = ""
) -> tuple[TensorLayout, ...]:
    """Layouts of the results once partial sums are combined: what inputs imply, or what `out_strategy` asks for.

    shapes  of the results

    Where sums are partial, dim 0 may be split further by the axes that hold the addends: a reduce_scatter instead of
    the all_reduce (MindSpore: MatMul and Gather, CheckOutputStrategy). Raises StrategyError for anything else.
    """
    allowed = [_result_layouts(op, rule, shape, i) for i, shape in enumerate(shapes)]
    if out_strategy is None:
        return tuple(layouts[-1 if _scatters(op, rule) else 0] for layouts in allowed)
    first = rule.strategy[0] if isinstance(rule.strategy, LayoutStrategy) else None

    def same(entry: Any, layout: TensorLayout) -> bool:
        return entry == layout.splits if first is None else _is_layout(entry, layout)

    pairs = zip(out_strategy, allowed, strict=False)
    chosen = [next((layout for layout in layouts if same(asked_for, layout)), None) for asked_for, layouts in pairs]
    legal = [layout for layout in chosen if layout is not None]
    if len(out_strategy) == len(shapes) and len(legal) == len(chosen):
        return tuple(legal)
    shown: list[AnyStrategy] = [
        tuple(a.splits for a in layouts_of)
        if first is None
        else LayoutStrategy(tuple(first.named(a.tensor_map) for a in layouts_of))
        for layouts_of in itertools.product(*allowed)
    ]
    last = shown[-1]
    hint = last.code if isinstance(last, LayoutStrategy) else str(last)
    what, text = f"out_strategy {out_strategy} with strategy {rule.strategy}", " or ".join(map(str, shown))
    where, its = where or op.class_name, "Its result may" if len(shapes) == 1 else f"Its {len(shapes)} results may"
    raise StrategyError(what, where=where, allowed=f"{its} be split {text}", hint=f"Try {hint}")


def _scatters(op: OpDef, rule: ShardingRule) -> bool:
    """Whether sums that no out_strategy places are scattered."""
    return op.scatters is not None and get_compat() == "2.10" and all(n == 1 for n in rule.ins[op.scatters].splits)


def _result_layouts(op: OpDef, rule: ShardingRule, shape: Shape, result: int) -> list[TensorLayout]:
    """The layouts that a result may have, the one that follows from the inputs first."""
    layout = rule.outs[result]
    whole = layout.whole()

    def scattered(dim: int, axes: Axes) -> TensorLayout:
        entries = tuple(a + axes if d == dim else a for d, a in enumerate(whole.tensor_map))
        return TensorLayout(whole.device_matrix, entries)

    if rule.scatter is not None:
        return [scattered(*rule.scatter)]
    if not (layout.is_partial and layout.reduce == "sum" and not op.mean and shape):
        return [whole]
    rows = scattered(0, rule.reduced_axes(result))
    return [whole, rows] if shape[0] % rows.splits[0] == 0 else [whole]


def _is_layout(named: Layout, layout: TensorLayout) -> bool:
    same = named.device_matrix == layout.device_matrix and len(named.axes) == layout.ndim
    return same and named.tensor_layout().same_placement(layout)
