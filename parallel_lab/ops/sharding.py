"""The sharding rule that follows from labels: strategy -> device matrix, one layout per operand, what is left to combine.

    rule = sharding_rule(OPS["matmul"], ((16, 32), (32, 16)), {}, ((2, 4), (4, 1)), 8)
    rule.ins[0]   device_matrix (2, 4, 1), tensor_map (2, 1)
    rule.out      device_matrix (2, 4, 1), tensor_map (2, -1), partial sum over axes (1,)

Equals MindSpore's rules for MatMul, the element-wise family, activations, reductions, one-hot and softmax (operator_info: CheckStrategy,
InferDevMatrixShape, InferTensorMap, InferForwardCommunication). Spare devices repeat the calculation on an axis appended on the right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import StrategyError, message
from ..halo import Halo
from ..layout import TensorLayout
from .registry import OPS, OpDef, Strategy
from .signature import Shape, Signature

__all__ = ["ShardingRule", "completed", "default_strategy", "legal_strategies", "result_layout", "sharding_rule", "strategy_operands"]


@dataclass(frozen=True)
class ShardingRule:
    """What a strategy means for one operator.

    ins, out      layouts of the operands and of the result; the result may be partial
    labels        label of each device-matrix axis from the left; "" is the axis of repeated calculation
    cuts          (label, parts) for every label
    windows       (dim of operand 0, axis of the device matrix, window) where a slice does not suffice: the `window` of a halo_exchange
    """

    strategy: Strategy
    ins: tuple[TensorLayout, ...]
    out: TensorLayout
    labels: tuple[str, ...]
    cuts: tuple[tuple[str, int], ...]
    windows: tuple[tuple[int, int, tuple[int, int, int, int]], ...] = ()


def strategy_operands(op: OpDef, signature: Signature) -> tuple[str, ...]:
    """Labels of each tuple of a strategy: the operands' labels unless the operator says otherwise (one-hot's first is the result's)."""
    return tuple(op.strategy_labels(signature)) if op.strategy_labels is not None else signature.ins


def _axis_labels(op: OpDef, signature: Signature) -> tuple[str, ...]:
    """Labels in the order of the device matrix: broadcast dims by their place in the result, whichever operand has them, then the others."""
    broadcast = tuple(sorted(c for c in signature.labels if c.isupper()))  # `resolve` names them A, B, ... from the left
    others = tuple(c for c in signature.labels if not c.isupper())
    if op.axes is not None:
        axes = op.axes(signature) if callable(op.axes) else op.axes
        others = tuple(c for c in axes if c in others)  # labels left out have no axis
    return broadcast + others


def _facts(op: OpDef, shapes: tuple[Shape, ...], attrs: tuple[tuple[str, Any], ...]) -> tuple[Signature, dict[str, int], str]:
    given = dict(attrs)
    signature = op.signature_for(shapes, given)
    return signature, op.label_sizes(signature, shapes, given), op.whole_labels(signature, shapes, given)


def sharding_rule(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: Strategy, device_num: int, where: str = "") -> ShardingRule:
    """The rule for `strategy` on `device_num` ranks.

    Raises StrategyError naming operator, input, dim, label and both numbers, with the nearest legal strategy.
    """
    key = tuple(sorted(attrs.items()))
    made = _rule(op.name, shapes, key, strategy, device_num)
    if isinstance(made, ShardingRule):
        return made
    what, allowed = made
    near = nearest_legal(op, shapes, attrs, strategy, device_num)
    raise StrategyError(message(f"strategy {strategy} {what}", where=where or op.class_name, allowed=allowed, hint=f"Try {near}"))


def completed(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: Strategy) -> Strategy:
    """`strategy` with the tuples that were left empty, `()`, filled in: dims are cut as those of the same label in the others, else stay whole.

    ((2, 4, 4), ()) of a sum with a (32, 48) operand is ((2, 4, 4), (4, 4)) (MindSpore: GenerateStrategies with a part of the strategy given).
    """
    operands = strategy_operands(op, op.signature_for(shapes, attrs))
    if len(strategy) != len(operands) or all(cuts or not labels for labels, cuts in zip(operands, strategy, strict=True)):
        return strategy
    known: dict[str, int] = {}
    for labels, cuts in zip(operands, strategy, strict=True):
        for label, count in zip(labels, cuts, strict=False):
            known.setdefault(label, count)
    return tuple(cuts or tuple(1 if c == "1" else known.get(c, 1) for c in labels) for labels, cuts in zip(operands, strategy, strict=True))


def result_layout(op: OpDef, rule: ShardingRule, shape: Shape, out_strategy: Strategy | None, where: str = "") -> TensorLayout:
    """Layout of the result once its partial sums are combined: the one that follows from the inputs, or the one that `out_strategy` asks for.

    shape  of the result

    Where sums are partial, dim 0 may be cut further by the axes that hold the addends: a reduce_scatter in place of the all_reduce (MindSpore: MatMul
    and Gather, CheckOutputStrategy). Raises StrategyError for anything else.
    """
    whole = rule.out.whole()
    if out_strategy is None or out_strategy == (whole.splits,):
        return whole
    allowed = [whole.splits]
    axes = tuple(sorted(rule.out.partial, reverse=True))
    if rule.out.is_partial and rule.out.reduce == "sum" and not op.mean and shape:
        scattered = TensorLayout(whole.device_matrix, (whole.tensor_map[0] + axes, *whole.tensor_map[1:]))
        if shape[0] % scattered.splits[0] == 0:
            allowed.append(scattered.splits)
            if out_strategy == (scattered.splits,):
                return scattered
    what = f"out_strategy {out_strategy} with strategy {rule.strategy}"
    raise StrategyError(
        message(
            what,
            where=where or op.class_name,
            allowed=f"Its result may be cut {' or '.join(str((a,)) for a in allowed)}",
            hint=f"Try {(allowed[-1],)}",
        )
    )


@lru_cache(maxsize=65536)
def _rule(op_name: str, shapes: tuple[Shape, ...], attrs: tuple, strategy: Strategy, device_num: int) -> ShardingRule | tuple[str, str]:
    """The rule, or (what is wrong, what is allowed)."""
    op = OPS[op_name]
    signature, sizes, whole = _facts(op, shapes, attrs)
    operands = strategy_operands(op, signature)
    if len(strategy) != len(operands):
        return f"has {len(strategy)} tuples, but {op.class_name} has {len(operands)} inputs", "One tuple per input"
    cuts: dict[str, int] = {}
    seen: dict[str, tuple[int, int]] = {}
    for position, (labels, counts) in enumerate(zip(operands, strategy, strict=True)):
        if len(labels) != len(counts):
            return (
                f"has {len(counts)} counts for input {position}, which has {len(labels)} dims (shape {_shape_text(labels, sizes)})",
                "One count per dim",
            )
        for dim, (label, count) in enumerate(zip(labels, counts, strict=True)):
            # a letter that was dealt out by position means nothing to a reader
            named = f" ('{label}')" if op.names_labels else ""
            spot = f"dim {dim} of input {position}{named}"
            if label == "1":
                if count != 1:
                    return (
                        f"cuts dim {dim} of input {position} {count} ways, but that dim has 1 element and is broadcast",
                        "A dim of size 1 is not cut",
                    )
                continue
            if count > 1 and label in whole:
                return (
                    f"cuts {spot} {count} ways, but {op.class_name} works along that dim",
                    (f"'{label}'" if named else "That dim") + " stays whole" + (f"; {op.instead} may cut it" if op.instead else ""),
                )
            if sizes[label] % count:
                return f"cuts {spot} {count} ways, but it has {sizes[label]} elements", "Every slice must have the same size"
            if cuts.setdefault(label, count) != count:
                i, j = seen[label]
                rule = "Both inputs must split the contracted dim equally" if label in signature.reduced else "All inputs must split it equally"
                same = f"'{label}' (its dim {j})" if named else f"its dim {j}, which goes with it,"
                return f"splits {spot} {count} ways, but input {i} splits {same} {cuts[label]} ways", rule
            seen.setdefault(label, (position, dim))
    names = _axis_labels(op, signature)
    for label in names:
        cuts.setdefault(label, 1)
    out = op.result_sizes(sizes, shapes, dict(attrs))
    uneven = next((c for c in names if out[c] % cuts[c]), None)
    if uneven is not None:
        return f"cuts '{uneven}' {cuts[uneven]} ways, but the result has {out[uneven]} elements there", "Every slice must have the same size"
    refused = _refused(op, signature, cuts, sizes, dict(attrs))
    if refused is not None:
        return refused
    used = math.prod(cuts[c] for c in names)
    if used > device_num or device_num % used:
        return f"makes {used} slices, but there are {device_num} devices", "The product of all cuts must divide the number of devices"
    repeat = (device_num // used,) if used < device_num else ()
    matrix = tuple(cuts[c] for c in names) + repeat
    axis = {c: len(matrix) - 1 - i for i, c in enumerate(names)}

    def layout(labels: str, partial: tuple[int, ...] = ()) -> TensorLayout:
        entries = tuple((axis[c],) if c != "1" and cuts[c] > 1 else () for c in labels)
        return TensorLayout(matrix, entries, partial, op.reduce if partial else "sum")

    partial = () if op.reduce == "same" else tuple(axis[c] for c in signature.reduced if cuts[c] > 1)
    return ShardingRule(
        strategy,
        tuple(layout(labels) for labels in signature.ins),
        layout(signature.out, partial),
        names + (("",) if repeat else ()),
        tuple((c, cuts[c]) for c in names),
        tuple((signature.ins[0].index(c), axis[c], window) for c, window in _windows(op, cuts, sizes, dict(attrs)).items()),
    )


def _windows(op: OpDef, cuts: dict[str, int], sizes: dict[str, int], attrs: dict[str, Any]) -> dict[str, tuple[int, int, int, int]]:
    """{cut label of operand 0: (step, origin, length, part)} where a rank needs more, or other elements than its slice."""
    wanted = {} if op.window is None else op.window(sizes, cuts, **attrs)
    return {c: (*window, sizes[c] // cuts[c]) for c, window in wanted.items() if cuts[c] > 1}


def _refused(op: OpDef, signature: Signature, cuts: dict[str, int], sizes: dict[str, int], attrs: dict[str, Any]) -> tuple[str, str] | None:
    """What the operator itself has against these cuts of its labels: (what is wrong, what is allowed), or None."""
    refused = op.restrict(signature, cuts, sizes, **attrs) if op.restrict is not None else None
    if refused is not None:
        return refused
    for label, window in _windows(op, cuts, sizes, attrs).items():
        fault = Halo(*window, members=cuts[label]).fault()
        if fault:
            return (
                f"cuts '{label}' {cuts[label]} ways: {fault}",
                f"'{label}' may be cut so far that every rank finds what it needs with its neighbours",
            )
    return None


def _shape_text(labels: str, sizes: dict[str, int]) -> str:
    shape = tuple(1 if c == "1" else sizes[c] for c in labels)
    return str(shape)


def legal_strategies(
    op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], device_num: int, *, fully_use_devices: bool = False
) -> tuple[Strategy, ...]:
    """Every legal strategy: powers of two that divide their dims, with a product that divides `device_num`.

    fully_use_devices  only those with a product of `device_num`
    """
    return _legal(op.name, shapes, tuple(sorted(attrs.items())), device_num, fully_use_devices)


@lru_cache(maxsize=4096)
def _legal(op_name: str, shapes: tuple[Shape, ...], attrs: tuple, device_num: int, fully_use_devices: bool) -> tuple[Strategy, ...]:
    op = OPS[op_name]
    if op.view:
        return ()
    signature, sizes, whole = _facts(op, shapes, attrs)
    operands = strategy_operands(op, signature)
    free = [c for c in _axis_labels(op, signature) if c not in whole and any(c in labels for labels in operands)]
    given, found = dict(attrs), []
    out, whole_too = op.result_sizes(sizes, shapes, given), dict.fromkeys(_axis_labels(op, signature), 1)
    for cuts in itertools.product(*(_powers(math.gcd(sizes[c], out[c]), device_num) for c in free)):
        product = math.prod(cuts)
        if device_num % product or (fully_use_devices and product != device_num):
            continue
        by_label = dict(zip(free, cuts, strict=True))
        if _refused(op, signature, whole_too | by_label, sizes, given) is not None:
            continue
        found.append(tuple(tuple(by_label.get(c, 1) for c in labels) for labels in operands))
    return tuple(found)


def _powers(size: int, limit: int) -> Iterator[int]:
    count = 1
    while count <= limit and size % count == 0 and (size or count == 1):
        yield count
        count *= 2


def nearest_legal(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], strategy: Strategy, device_num: int) -> Strategy:
    """The legal strategy that keeps the first input of a refused one as far as it can, and of the rest changes the fewest doublings."""

    def distance(given: tuple[int, ...], candidate: tuple[int, ...]) -> float:
        # what was given counts; tuples and counts that are missing may be anything
        return sum(abs(math.log2(x) - math.log2(max(1, y))) for x, y in zip(candidate, given, strict=False))

    def key(candidate: Strategy) -> tuple[list[float], list[bool]]:
        far = [distance(given, cuts) for given, cuts in zip(strategy, candidate, strict=False)]
        return [*far[:1], sum(far)], [a != b for a, b in zip(candidate, strategy, strict=False)]

    return min(legal_strategies(op, shapes, attrs, device_num), key=key)


def default_strategy(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], device_num: int) -> Strategy:
    """The strategy of an operator that was given none: its batch label is cut among all devices; nothing is cut if that does not divide.

    The batch label is the first axis of the device matrix: rows of the first input for most operators (MindSpore, semi_auto_parallel).
    """
    signature, sizes, whole = _facts(op, shapes, tuple(sorted(attrs.items())))
    operands = strategy_operands(op, signature)
    names = _axis_labels(op, signature)
    batch = names[0] if names else ""
    cut = device_num if batch and batch not in whole and sizes[batch] % device_num == 0 else 1
    chosen, ones = (tuple(tuple(n if c == batch else 1 for c in labels) for labels in operands) for n in (cut, 1))
    fits = isinstance(_rule(op.name, shapes, tuple(sorted(attrs.items())), chosen, device_num), ShardingRule)
    return chosen if fits else ones
