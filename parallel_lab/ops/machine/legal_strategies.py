"""Which strategies an operator may have: all legal ones, and the one nearest to a strategy that is refused.

legal_strategies(OPS["relu"], ((8, 4),), {}, 2)        (((1, 1),), ((1, 2),), ((2, 1),))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from ...layout.named_layout import AnyStrategy, LayoutStrategy, Strategy
from .opdef import OPS, OpDef
from .signature import Shape
from .split_labels import Axes, LabelSplits


def legal_strategies(
    op: OpDef,
    shapes: tuple[Shape, ...],
    attrs: dict[str, Any],
    device_num: int,
    *,
    fully_use_devices: bool = False,
    searched: bool = False,
) -> tuple[Strategy, ...]:
    """Every legal strategy, the leftmost label's counts outermost: counts whose product divides `device_num`, or
    (fully_use_devices) equals it. Where that is a power of two, so are they.

    searched  those that a search may choose: an operator may hold labels back
    """
    return _legal(op.name, shapes, tuple(sorted(attrs.items())), device_num, fully_use_devices, searched)


@lru_cache(maxsize=4096)
def _legal(
    op_name: str,
    shapes: tuple[Shape, ...],
    attrs: tuple[Any, ...],
    device_num: int,
    fully_use_devices: bool,
    searched: bool,
) -> tuple[Strategy, ...]:
    op = OPS[op_name]
    if op.view:
        return ()
    splits = LabelSplits(op, shapes, dict(attrs))
    strategies: list[Strategy] = []
    operands = splits.operands
    fixed = splits.whole + (splits.held if searched else "")
    free = [c for c in splits.names if c not in fixed and any(c in labels for labels in operands)]
    ones = dict.fromkeys(splits.names, 1)

    def counts(label: str) -> Iterable[int]:
        if label in splits.uneven:
            return (len(splits.uneven[label][0]),)
        return _counts(math.gcd(splits.sizes[label], splits.out[label]), device_num)

    for cuts in itertools.product(*map(counts, free)):
        product = math.prod(cuts)
        if device_num % product or (fully_use_devices and product != device_num):
            continue
        by_label = dict(zip(free, cuts, strict=True))
        by_label |= {other: by_label[label] for other, label in splits.tied.items()}
        tried = ones | by_label
        if splits.refused(tried) is None and splits.devices_fault(tried, device_num) is None:
            strategies.append(tuple(tuple(by_label.get(c, 1) for c in labels) for labels in operands))
    return tuple(strategies)


def _counts(size: int, device_num: int) -> Iterator[int]:
    """Numbers of equal slices of `size` elements that divide `device_num`, ascending."""
    return (n for n in range(1, max(1, min(size, device_num)) + 1) if device_num % n == 0 and size % n == 0)


def nearest_legal(
    op: OpDef,
    shapes: tuple[Shape, ...],
    attrs: dict[str, Any],
    strategy: AnyStrategy,
    device_num: int,
    legal: Callable[[LayoutStrategy], bool],
) -> AnyStrategy | str:
    """The legal strategy nearest by doublings, first in input 0; for layouts as text over the same devices, or "".

    legal  whether a strategy of layouts is
    """
    if isinstance(strategy, LayoutStrategy):
        return _nearest_layouts(LabelSplits(op, shapes, attrs), strategy, device_num, legal)

    counts = strategy

    def distance(entry: tuple[int, ...], candidate: tuple[int, ...]) -> float:
        # what was given counts, far or near in doublings; tuples and counts that are missing may be anything
        return sum(abs(math.log2(x) - math.log2(max(1, y))) for x, y in zip(candidate, entry, strict=False))

    def key(candidate: Strategy) -> tuple[list[float], list[bool]]:
        far = [distance(entry, cuts) for entry, cuts in zip(counts, candidate, strict=False)]
        return [*far[:1], sum(far)], [a != b for a, b in zip(candidate, counts, strict=False)]

    return min(legal_strategies(op, shapes, attrs, device_num), key=key, default="")


def _nearest_layouts(
    splits: LabelSplits, strategy: LayoutStrategy, device_num: int, legal: Callable[[LayoutStrategy], bool]
) -> str:
    """Every label split as the first input says, where its axes are free and divide it; otherwise nothing."""
    first = strategy[0] if len(strategy) and strategy.results is None else None
    if first is None or first.device_num != device_num:
        return ""
    sizes, out = splits.sizes, splits.out
    chosen: dict[str, Axes] = {"1": ()}
    for labels, layout in zip(splits.operands, strategy, strict=False):
        if layout.device_matrix != first.device_matrix:
            continue
        for label, axes in zip(labels, layout.axes, strict=False):
            if label in chosen or label in splits.whole:
                continue
            chosen[label], parts = (), 1
            for axis in axes:
                parts *= first.device_matrix[-1 - axis]
                if sizes[label] % parts or out[label] % parts or any(axis in others for others in chosen.values()):
                    break
                chosen[label] += (axis,)
    for cuts in (chosen, {}):
        near = LayoutStrategy(tuple(first.named(cuts.get(c, ()) for c in labels) for labels in splits.operands))
        if legal(near):
            return near.code
    return ""
