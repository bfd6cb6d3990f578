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

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ...base.errors import StrategyError
from ...base.settings.context import get_compat
from ...layout.named_layout import Layout, LayoutStrategy, strategy_counts
from ...layout.tensor_layout import TensorLayout
from ..collectives.halo import Halo
from .layout_strategy import Axes, NamedCuts, dim_text, nd_splits, shared_splits
from .opdef import OpDef
from .primitive import Strategy
from .registry import OPS
from .signature import Fault, Shape, Signature

AnyStrategy = Strategy | LayoutStrategy
EQUAL_SLICES = "Every slice must have the same size"
POWERS_OF_TWO = "Counts are powers of two, as the number of devices is: 1, 2, 4, 8, ..."


@dataclass(frozen=True)
class ShardingRule:
    """What a strategy means for one operator.

    ins, outs     layouts of the operands and of the results where they are computed; results may be partial
    labels        label of each device-matrix axis from the left; "" is an axis of repeated calculation
    cuts            (label, parts) for every label
    axes          (label, axes that split it, counted from the right, outer split first)
    windows       (dim of operand 0, axes of the device matrix, window) where a slice does not suffice: the `window` of
                  a halo_exchange
    stored        layouts in which the operands are wanted first, where they are gathered into `ins` just before the
                  operator (enable_nd_tp)
    scatter       (dim of the result, axes): partial sums are scattered along it, not left with every rank
                  (enable_nd_tp)
    """

    strategy: AnyStrategy
    ins: tuple[TensorLayout, ...]
    outs: tuple[TensorLayout, ...]
    labels: tuple[str, ...]
    cuts: tuple[tuple[str, int], ...]
    axes: tuple[tuple[str, Axes], ...]
    windows: tuple[tuple[int, Axes, tuple[int, int, int, int]], ...] = ()
    stored: tuple[TensorLayout, ...] | None = None
    scatter: tuple[int, Axes] | None = None

    @property
    def out(self) -> TensorLayout:
        """Layout of the only result, or of the first."""
        return self.outs[0]

    def axes_of(self, label: str) -> Axes:
        """The axes that split `label`, outer split first; () for a label without any."""
        return dict(self.axes).get(label, ())

    @property
    def wanted(self) -> tuple[TensorLayout, ...]:
        """The layouts into which the operands are brought: where they are stored, if they are parameters."""
        return self.ins if self.stored is None else self.stored

    def reduced_axes(self, result: int = 0) -> Axes:
        """The axes along which a result is partial, in the order in which they split their labels."""
        return tuple(a for _, axes in self.axes for a in axes if a in self.outs[result].partial)


def strategy_operands(op: OpDef, signature: Signature) -> tuple[str, ...]:
    """Labels of each tuple of a strategy: the operands', unless the operator says otherwise (one-hot)."""
    return tuple(op.strategy_labels(signature)) if op.strategy_labels is not None else signature.ins


class _Facts:
    """What is known of an operator whose operands have these shapes, whatever the strategy.

    operands  labels of each entry of a strategy
    names     labels in the order of the device matrix
    sizes     extent of every label; out: in the result
    whole     labels that must not be split;  held: that only a given strategy splits, no search
    uneven    labels whose parts have sizes of their own;  tied: labels that are split with these
    """

    def __init__(self, op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> None:
        self.op, self.attrs = op, attrs
        self.signature = op.signature_for(shapes, attrs)
        self.operands = strategy_operands(op, self.signature)
        self.uneven = {} if op.uneven is None else op.uneven(self.signature, **attrs)
        self.tied = {other: label for label, (_, other) in self.uneven.items()}
        self.names = tuple(c for c in _axis_labels(op, self.signature) if c not in self.tied)
        self.sizes = op.label_sizes(self.signature, shapes, attrs)
        self.out = op.result_sizes(self.sizes, shapes, attrs)
        self.whole = op.whole_labels(self.signature, shapes, attrs)
        self.held = "" if op.held is None else op.held(self.signature, **attrs)

    def dims_fault(self, position: int, counts: tuple[int, ...], word: str, words: str) -> Fault | None:
        """Why an input cannot be split so, whatever the others are. word, words: what a strategy has per dim."""
        op, labels = self.op, self.operands[position]
        if len(labels) != len(counts):
            shape = tuple(1 if c == "1" else self.sizes[c] for c in labels)
            what = f"has {len(counts)} {words} for input {position}, which has {len(labels)} dims (shape {shape})"
            return what, f"One {word} per dim"
        for dim, (label, count) in enumerate(zip(labels, counts, strict=True)):
            what = f"splits {dim_text(position, dim, label, op.names_labels and label != '1')} {count} ways, but"
            if count > 1 and label == "1":
                return f"{what} that dim has 1 element and is broadcast", "A dim of size 1 is not split"
            if count > 1 and label in self.whole:
                that = f"'{label}'" if op.names_labels else "That dim"
                instead = f"; {op.instead} may split it" if op.instead else ""
                return f"{what} {op.class_name} works along that dim", f"{that} stays whole{instead}"
            if label != "1" and label not in self.uneven and self.sizes[label] % count:
                return f"{what} it has {self.sizes[label]} elements", EQUAL_SLICES
        return None

    def label_fault(self, cuts: dict[str, int]) -> Fault | None:
        """Why labels cannot be split like this: the result would have unequal slices, or the operator refuses."""
        for label in self.names:
            if label not in self.uneven and self.out[label] % cuts[label]:
                what = f"splits '{label}' {cuts[label]} ways, but the result has {self.out[label]} elements there"
                return what, EQUAL_SLICES
        return self.refused(cuts)

    def refused(self, cuts: dict[str, int]) -> Fault | None:
        """What the operator itself has against these splits of its labels."""
        restrict = self.op.restrict
        if restrict is not None and (fault := restrict(self.signature, cuts, self.sizes, **self.attrs)):
            return fault
        for label, window in self.windows(cuts).items():
            if fault := Halo(*window, members=cuts[label]).fault():
                allowed = f"'{label}' may be split so far that every rank finds what it needs with its neighbours"
                return f"splits '{label}' {cuts[label]} ways: {fault}", allowed
        return None

    def devices_fault(self, cuts: dict[str, int], device_num: int) -> Fault | None:
        """What the operator has against these splits on so many devices."""
        devices = self.op.devices
        return None if devices is None else devices(self.signature, cuts, device_num, **self.attrs)

    def windows(self, cuts: dict[str, int]) -> dict[str, tuple[int, int, int, int]]:
        """{split label of operand 0: (step, origin, length, part)} where a slice is not what a rank needs."""
        wanted = {} if self.op.window is None else self.op.window(self.sizes, cuts, **self.attrs)
        return {c: (*window, self.sizes[c] // cuts[c]) for c, window in wanted.items() if cuts[c] > 1}

    def rule(self, strategy: AnyStrategy, matrix: tuple[int, ...], axes: dict[str, Axes]) -> ShardingRule:
        """The rule of labels that these axes split."""
        signature, reduce = self.signature, self.op.reduce
        cuts = {c: math.prod(matrix[-1 - a] for a in axes[c]) for c in self.names}
        axes = axes | {other: axes[label] for other, label in self.tied.items()}

        def layout(labels: str, partial: Axes = ()) -> TensorLayout:
            rows = self.uneven[labels[0]][0] if labels[:1] in self.uneven and cuts[labels[0]] > 1 else ()
            entries = tuple(axes.get(c, ()) for c in labels)
            return TensorLayout(matrix, entries, partial, reduce if partial else "sum", rows)

        def made(labels: str) -> TensorLayout:
            missing = (c for c in signature.labels if c not in labels) if reduce != "same" else ()
            pending = (a for c in missing for a in axes.get(c, ()))
            if self.tied:  # a label that the result has is split with one that it has not
                pending = (a for a in pending if not any(a in axes.get(c, ()) for c in labels))
            return layout(labels, tuple(pending))

        by_axis = {a: c for c in self.names for a in axes[c]}
        return ShardingRule(
            strategy,
            tuple(layout(labels) for labels in signature.ins),
            tuple(made(labels) for labels in signature.outs),
            tuple(by_axis.get(len(matrix) - 1 - i, "") for i in range(len(matrix))),
            tuple(cuts.items()),
            tuple((c, axes[c]) for c in self.names),
            tuple((signature.ins[0].index(c), axes[c], window) for c, window in self.windows(cuts).items()),
        )


def _axis_labels(op: OpDef, signature: Signature) -> tuple[str, ...]:
    """Labels in the order of the device matrix: broadcast dims by their place in the result, then the others."""
    # `resolve` names broadcast dims A, B, ... from the left
    broadcast = tuple(sorted(c for c in signature.labels if c.isupper()))
    others = tuple(c for c in signature.labels if not c.isupper())
    if op.axes is not None:
        axes = op.axes(signature) if callable(op.axes) else op.axes
        others = tuple(c for c in axes if c in others)  # labels that are omitted have no axis
    return broadcast + others


def sharding_rule(
    op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: AnyStrategy, device_num: int, where: str = ""
) -> ShardingRule:
    """The rule for `strategy` on `device_num` ranks. Raises StrategyError naming operator, input, dim, label, and
    both numbers (or axes), with the nearest legal strategy.
    """
    key = tuple(sorted(attrs.items()))
    made = _rule(op.name, shapes, key, strategy, device_num)
    if isinstance(made, ShardingRule):
        return made
    what, allowed = made
    near = nearest_legal(op, shapes, attrs, strategy, device_num)
    hint = f"Try {near}" if near else ""
    raise StrategyError(f"strategy {strategy} {what}", where=where or op.class_name, allowed=allowed, hint=hint)


def completed(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: AnyStrategy) -> AnyStrategy:
    """`strategy` with its `()` filled in, as the same label elsewhere, or whole (MindSpore: GenerateStrategies).

    ((2, 4, 4), ()) of a sum with a (32, 48) operand is ((2, 4, 4), (4, 4)). Among layouts, `layout()` is filled in.
    The `()` of numbers that have no entry is not read. Counts of an operand alone, where the first of several entries
    is for the result (one-hot), leave the other dims whole. A strategy for some inputs but not for the first, such as
    ((), (4, 8, 1), ()) of a LayerNorm, and one for none are left as they are.
    """
    signature = op.signature_for(shapes, attrs)
    operands = strategy_operands(op, signature)
    named = isinstance(strategy, LayoutStrategy)
    if op.strategy_labels is not None and not named and len(strategy) == len(operands) > 1:
        strategy = tuple(map(_for_result, operands, signature.ins, strategy))
    if len(operands) < len(strategy) <= len(shapes) and not any(map(len, strategy_counts(strategy)[len(operands) :])):
        cut = len(operands)
        strategy = replace(strategy, layouts=strategy.layouts[:cut]) if named else strategy[:cut]
    entries = [layout.axes if layout.dims else () for layout in strategy] if named else strategy
    empty = [bool(labels) and not entry for labels, entry in zip(operands, entries, strict=False)]
    half = empty[:1] == [True] and any(entries[1:]) and any(empty[1:])
    none = not any(entries) and operands[:1] == signature.ins[:1]  # of a result (one-hot) MindSpore leaves all whole
    if len(strategy) != len(operands) or not any(empty) or half or none:
        return strategy
    whole = () if named else 1
    known: dict[str, Any] = {"1": whole}
    for labels, entry in zip(operands, entries, strict=True):
        for label, cut in zip(labels, entry, strict=False):
            known.setdefault(label, cut)
    filled = [tuple(known.get(c, whole) for c in labels) for labels in operands]
    if not named:
        return tuple(entry or full for entry, full in zip(strategy, filled, strict=True))
    layouts = (layout if layout.dims else layout.named(full) for layout, full in zip(strategy, filled, strict=True))
    return replace(strategy, layouts=tuple(layouts))


def _for_result(labels: str, operand: str, entry: tuple[int, ...]) -> tuple[int, ...]:
    """An entry with a count per label, where it has one per dim of the operand."""
    if len(entry) == len(labels) or len(entry) != len(operand) or not entry:
        return entry
    return tuple(dict(zip(operand, entry, strict=True)).get(c, 1) for c in labels)


def part_strategy(rule: ShardingRule, operands: Iterable[str]) -> tuple:
    """The strategy of an operator whose operands have these labels of `rule`'s, as `shard` takes it."""
    cuts = dict(rule.cuts)
    if isinstance(rule.strategy, LayoutStrategy):
        return tuple(rule.strategy[0].named(rule.axes_of(c) for c in labels) for labels in operands)
    return tuple(tuple(cuts.get(c, 1) for c in labels) for labels in operands)


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
    named = isinstance(rule.strategy, LayoutStrategy)

    def same(given: Any, layout: TensorLayout) -> bool:
        return _is_layout(given, layout) if named else given == layout.splits

    found = [
        next((layout for layout in layouts if same(given, layout)), None)
        for given, layouts in zip(out_strategy, allowed, strict=False)
    ]
    if len(out_strategy) == len(shapes) and None not in found:
        return tuple(found)
    shown = [
        LayoutStrategy(tuple(rule.strategy[0].named(a.tensor_map) for a in made))
        if named
        else tuple(a.splits for a in made)
        for made in itertools.product(*allowed)
    ]
    hint = shown[-1].code if named else str(shown[-1])
    what, text = f"out_strategy {out_strategy} with strategy {rule.strategy}", " or ".join(map(str, shown))
    where, its = where or op.class_name, "Its result may" if len(shapes) == 1 else f"Its {len(shapes)} results may"
    raise StrategyError(what, where=where, allowed=f"{its} be split {text}", hint=f"Try {hint}")


def _scatters(op: OpDef, rule: ShardingRule) -> bool:
    """Whether sums that no out_strategy places are scattered."""
    return op.scatters is not None and get_compat() == "2.10" and all(n == 1 for n in rule.ins[op.scatters].splits)


def _result_layouts(op: OpDef, rule: ShardingRule, shape: Shape, result: int) -> list[TensorLayout]:
    """The layouts that a result may have, the one that follows from the inputs first."""
    made = rule.outs[result]
    whole = made.whole()

    def scattered(dim: int, axes: Axes) -> TensorLayout:
        entries = tuple(a + axes if d == dim else a for d, a in enumerate(whole.tensor_map))
        return TensorLayout(whole.device_matrix, entries)

    if rule.scatter is not None:
        return [scattered(*rule.scatter)]
    if not (made.is_partial and made.reduce == "sum" and not op.mean and shape):
        return [whole]
    rows = scattered(0, rule.reduced_axes(result))
    return [whole, rows] if shape[0] % rows.splits[0] == 0 else [whole]


def _is_layout(given: Layout, layout: TensorLayout) -> bool:
    same = given.device_matrix == layout.device_matrix and len(given.axes) == layout.ndim
    return same and given.tensor_layout().same_placement(layout)


@lru_cache(maxsize=65536)
def _rule(
    op_name: str, shapes: tuple[Shape, ...], attrs: tuple, strategy: AnyStrategy, device_num: int
) -> ShardingRule | Fault:
    """The rule, or (what is wrong, what is allowed)."""
    op = OPS[op_name]
    facts = _Facts(op, shapes, dict(attrs))
    operands, names = facts.operands, facts.names
    named = isinstance(strategy, LayoutStrategy)
    if len(strategy) != len(operands):
        one = "layout" if named else "tuple"
        return f"has {len(strategy)} {one}s, but {op.class_name} has {len(operands)} inputs", f"One {one} per input"
    if named:
        return _named_rule(facts, strategy, device_num)
    cuts: dict[str, int] = {}
    seen: dict[str, tuple[int, int]] = {}
    powers = device_num & (device_num - 1) == 0  # with 24 devices any divisor will do (MindSpore, CheckStrategyValue)
    for position, counts in enumerate(strategy):
        for dim, count in enumerate(counts):
            if count < 1 or powers and count & (count - 1):
                return f"splits dim {dim} of input {position} {count} ways", POWERS_OF_TWO if powers else EQUAL_SLICES
    for position, (labels, counts) in enumerate(zip(operands, strategy, strict=True)):
        if fault := facts.dims_fault(position, counts, "count", "counts"):
            return fault
        for dim, (label, count) in enumerate(zip(labels, counts, strict=True)):
            if label != "1" and cuts.setdefault(label, count) != count:
                i, j = seen[label]
                contracted = label in facts.signature.reduced
                same = f"'{label}' (its dim {j})" if op.names_labels else f"its dim {j}, which goes with it,"
                spot = dim_text(position, dim, label, op.names_labels)
                what = f"splits {spot} {count} ways, but input {i} splits {same} {cuts[label]} ways"
                if contracted:
                    return what, "Both inputs must split the contracted dim equally"
                return what, "All inputs must split it equally"
            seen.setdefault(label, (position, dim))
    cuts = dict.fromkeys(names, 1) | cuts
    if fault := facts.label_fault(cuts):
        return fault
    used = math.prod(cuts[c] for c in names)
    if used > device_num or device_num % used:
        what = f"makes {used} slices, but there are {device_num} devices"
        return what, "The product of all counts must divide the number of devices"
    # of a composed operator the parts refuse: their number of devices is the true one
    if op.expand is None and (fault := facts.devices_fault(cuts, device_num)):
        return fault
    repeat = (device_num // used,) if used < device_num else ()
    matrix = tuple(cuts[c] for c in names) + repeat
    axes = {c: (len(matrix) - 1 - i,) if cuts[c] > 1 else () for i, c in enumerate(names)}
    return replace(facts.rule(strategy, matrix, axes), labels=names + (("",) if repeat else ()))


def _named_rule(facts: _Facts, strategy: LayoutStrategy, device_num: int) -> ShardingRule | Fault:
    """The rule for layouts, one per input."""
    op, signature, operands = facts.op, facts.signature, facts.operands
    matrix = strategy[0].device_matrix if len(strategy) else (device_num,)
    product = op.name == "matmul"
    if strategy.nd_tp and not product:
        what = f"has the attribute enable_nd_tp, but {op.class_name} is not a matrix product"
        return what, "MatMul and BatchMatMul gather and scatter by themselves"
    if facts.uneven:
        return "names axes, but the parts are not equal (manual_split)", "Counts: a tuple of ints per input"
    for position, layout in enumerate(strategy):
        if layout.device_matrix != matrix:
            what = f"has the device_matrix {layout.device_matrix} at input {position} and {matrix} at input 0"
            return what, "All layouts of one operator have the same device_matrix"
        if fault := facts.dims_fault(position, layout.splits, "entry", "entries"):
            return fault
    if math.prod(matrix) != device_num:
        what = f"is for {math.prod(matrix)} devices, but there are {device_num}"
        return what, "The product of a layout's device_matrix is the number of devices"
    if strategy.nd_tp:
        made = nd_splits(strategy, operands, signature)
    else:
        made = shared_splits(strategy, operands, signature, op.names_labels, product)
    if not isinstance(made, NamedCuts):
        return made
    axes = dict.fromkeys(facts.names, ()) | dict(made.axes)
    cuts = {c: math.prod(matrix[-1 - a] for a in axes[c]) for c in facts.names}
    if fault := facts.label_fault(cuts):
        return fault
    for label in "" if op.counted is None else op.counted(signature, facts.sizes, **facts.attrs):
        if cuts[label] > 1:
            what = f"splits {dim_text(0, operands[0].index(label), label, op.names_labels)} by a layout"
            return (
                what,
                f"A layout is the input's; what {op.class_name} does along that dim is split by a tuple of counts",
            )
    rule = facts.rule(strategy, matrix, axes)
    for dim, cutting, _ in rule.windows:
        if list(cutting) != sorted(cutting, reverse=True):
            listed = tuple(strategy[0].alias_name[-1 - a] for a in cutting)
            needs = "every rank needs elements of the slices beside its own"
            what = f"splits dim {dim} of input 0 by {listed}, and {needs}"
            allowed = "The ranks of a halo stand in ascending order: axes in the order in which the Layout names them"
            return what, allowed
    if made.stored is not None:
        rule = replace(rule, stored=tuple(TensorLayout(matrix, entries) for entries in made.stored))
    if made.scatter is not None:
        label, cutting = made.scatter
        parts, size = cuts[label] * math.prod(matrix[-1 - a] for a in cutting), facts.sizes[label]
        if size % parts:
            what = f"scatters its sums along '{label}', {parts} ways in all, but it has {size} elements"
            return what, EQUAL_SLICES
        rule = replace(rule, scatter=(signature.out.index(label), cutting))
    return rule


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
    (fully_use_devices) equals it. Of a power of two they are powers of two.

    searched  those that a search may choose: an operator may hold labels back
    """
    return _legal(op.name, shapes, tuple(sorted(attrs.items())), device_num, fully_use_devices, searched)


@lru_cache(maxsize=4096)
def _legal(
    op_name: str, shapes: tuple[Shape, ...], attrs: tuple, device_num: int, fully_use_devices: bool, searched: bool
) -> tuple[Strategy, ...]:
    op = OPS[op_name]
    if op.view:
        return ()
    facts, found = _Facts(op, shapes, dict(attrs)), []
    operands = facts.operands
    fixed = facts.whole + (facts.held if searched else "")
    free = [c for c in facts.names if c not in fixed and any(c in labels for labels in operands)]
    ones = dict.fromkeys(facts.names, 1)

    def counts(label: str) -> Iterable[int]:
        if label in facts.uneven:
            return (len(facts.uneven[label][0]),)
        return _counts(math.gcd(facts.sizes[label], facts.out[label]), device_num)

    for cuts in itertools.product(*map(counts, free)):
        product = math.prod(cuts)
        if device_num % product or (fully_use_devices and product != device_num):
            continue
        by_label = dict(zip(free, cuts, strict=True))
        by_label |= {other: by_label[label] for other, label in facts.tied.items()}
        tried = ones | by_label
        if facts.refused(tried) is None and facts.devices_fault(tried, device_num) is None:
            found.append(tuple(tuple(by_label.get(c, 1) for c in labels) for labels in operands))
    return tuple(found)


def _counts(size: int, device_num: int) -> Iterator[int]:
    """Numbers of equal slices of `size` elements that divide `device_num`, ascending."""
    return (n for n in range(1, max(1, min(size, device_num)) + 1) if device_num % n == 0 and size % n == 0)


def nearest_legal(
    op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: AnyStrategy, device_num: int
) -> AnyStrategy | str:
    """The legal strategy nearest by doublings, first in input 0; for layouts as text over the same devices, or ""."""
    if isinstance(strategy, LayoutStrategy):
        return _nearest_layouts(op, shapes, attrs, strategy, device_num)

    def distance(given: tuple[int, ...], candidate: tuple[int, ...]) -> float:
        # what was given counts, far or near in doublings; tuples and counts that are missing may be anything
        return sum(abs(math.log2(x) - math.log2(max(1, y))) for x, y in zip(candidate, given, strict=False))

    def key(candidate: Strategy) -> tuple[list[float], list[bool]]:
        far = [distance(given, cuts) for given, cuts in zip(strategy, candidate, strict=False)]
        return [*far[:1], sum(far)], [a != b for a, b in zip(candidate, strategy, strict=False)]

    return min(legal_strategies(op, shapes, attrs, device_num), key=key, default="")


def _nearest_layouts(
    op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: LayoutStrategy, device_num: int
) -> str:
    """Every label split as the first input says, where its axes are free and divide it; otherwise nothing."""
    first = strategy[0] if len(strategy) else None
    if first is None or first.device_num != device_num:
        return ""
    facts, key = _Facts(op, shapes, attrs), tuple(sorted(attrs.items()))
    sizes, out = facts.sizes, facts.out
    chosen: dict[str, Axes] = {"1": ()}
    for labels, layout in zip(facts.operands, strategy, strict=False):
        if layout.device_matrix != first.device_matrix:
            continue
        for label, axes in zip(labels, layout.axes, strict=False):
            if label in chosen or label in facts.whole:
                continue
            chosen[label], parts = (), 1
            for axis in axes:
                parts *= first.device_matrix[-1 - axis]
                if sizes[label] % parts or out[label] % parts or any(axis in others for others in chosen.values()):
                    break
                chosen[label] += (axis,)
    for cuts in (chosen, {}):
        near = LayoutStrategy(tuple(first.named(cuts.get(c, ()) for c in labels) for labels in facts.operands))
        if isinstance(_rule(op.name, shapes, key, near, device_num), ShardingRule):
            return near.code
    return ""


def default_strategy(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], device_num: int) -> Strategy:
    """Where none is given (MindSpore, semi_auto_parallel): all devices split the batch label, if that divides."""
    facts, key = _Facts(op, shapes, attrs), tuple(sorted(attrs.items()))
    batch = op.batch if op.batch is not None else facts.names[0] if facts.names else ""
    free = batch and batch not in facts.whole and batch not in facts.held
    cut = device_num if free and facts.sizes[batch] % device_num == 0 else 1
    chosen, ones = (tuple(tuple(n if c == batch else 1 for c in labels) for labels in facts.operands) for n in (cut, 1))
    return chosen if isinstance(_rule(op.name, shapes, key, chosen, device_num), ShardingRule) else ones
