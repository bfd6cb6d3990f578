"""How an operator's labels may be split, and what a split of them means: `LabelSplits` and `ShardingRule`.

    splits = LabelSplits(OPS["matmul"], ((16, 32), (32, 16)), {})
    splits.names, splits.sizes      ("m", "k", "n"), {"m": 16, "k": 32, "n": 16}
    splits.rule(strategy, matrix=(2, 4, 1), axes={"m": (2,), "k": (1,), "n": ()})

`sharding.py` and `layout_strategy.py` say which axes split which label; here that becomes layouts, or a refusal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...layout.named_layout import AnyStrategy
from ...layout.tensor_layout import TensorLayout
from ..collectives.halo import Halo
from .opdef import OpDef
from .signature import Fault, Shape, Signature

Axes = tuple[int, ...]
EQUAL_SLICES = "Every slice must have the same size"


def dim_text(position: int, dim: int, label: str, named: bool) -> str:
    """A dim of an operand in words.  named: the label is the operator's own word, not a letter by position."""
    return f"dim {dim} of input {position}" + (f" ('{label}')" if named else "")


@dataclass(frozen=True)
class ShardingRule:
    """What a strategy means for one operator.

    ins, outs     layouts of the operands and of the results where they are computed; results may be partial
    labels        label of each device-matrix axis from the left; "" is an axis of repeated calculation
    cuts          (label, parts) for every label
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
    def operand_layouts(self) -> tuple[TensorLayout, ...]:
        """The layouts into which the operands are brought: where they are stored, if they are parameters."""
        return self.ins if self.stored is None else self.stored

    def reduced_axes(self, result: int = 0) -> Axes:
        """The axes along which a result is partial, in the order in which they split their labels."""
        return tuple(a for _, axes in self.axes for a in axes if a in self.outs[result].partial)


def strategy_operands(op: OpDef, signature: Signature) -> tuple[str, ...]:
    """Labels of each tuple of a strategy: the operands', unless the operator says otherwise (one-hot)."""
    return tuple(op.strategy_labels(signature)) if op.strategy_labels is not None else signature.ins


class LabelSplits:
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
            if narrow := Halo(*window, members=cuts[label]).fault():
                allowed = f"'{label}' may be split so far that every rank finds what it needs with its neighbours"
                return f"splits '{label}' {cuts[label]} ways: {narrow}", allowed
        return None

    def devices_fault(self, cuts: dict[str, int], device_num: int) -> Fault | None:
        """What the operator has against these splits on so many devices."""
        devices = self.op.devices
        return None if devices is None else devices(self.signature, cuts, device_num, **self.attrs)

    def windows(self, cuts: dict[str, int]) -> dict[str, tuple[int, int, int, int]]:
        """{split label of operand 0: (step, origin, length, part)} where a slice is not what a rank needs."""
        windows = {} if self.op.window is None else self.op.window(self.sizes, cuts, **self.attrs)
        return {c: (*window, self.sizes[c] // cuts[c]) for c, window in windows.items() if cuts[c] > 1}

    def rule(self, strategy: AnyStrategy, matrix: tuple[int, ...], axes: dict[str, Axes]) -> ShardingRule:
        """The rule of labels that these axes split."""
        signature, reduce = self.signature, self.op.reduce
        cuts = {c: math.prod(matrix[-1 - a] for a in axes[c]) for c in self.names}
        axes = axes | {other: axes[label] for other, label in self.tied.items()}

        def layout(labels: str, partial: Axes = ()) -> TensorLayout:
            rows = self.uneven[labels[0]][0] if labels[:1] in self.uneven and cuts[labels[0]] > 1 else ()
            entries = tuple(axes.get(c, ()) for c in labels)
            return TensorLayout(matrix, entries, partial, reduce if partial else "sum", rows)

        def result_layout(labels: str) -> TensorLayout:
            missing = (c for c in signature.labels if c not in labels) if reduce != "same" else ()
            pending = (a for c in missing for a in axes.get(c, ()))
            if self.tied:  # a label that the result has is split with one that it lacks
                pending = (a for a in pending if not any(a in axes.get(c, ()) for c in labels))
            return layout(labels, tuple(pending))

        by_axis = {a: c for c in self.names for a in axes[c]}
        return ShardingRule(
            strategy,
            tuple(layout(labels) for labels in signature.ins),
            tuple(result_layout(labels) for labels in signature.outs),
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
