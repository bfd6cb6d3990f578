"""What a strategy of layouts says about an operator's labels: which axes of the device matrix split each of them.

    layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
    MatMul, "mk,kn->mn", (layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None"))     m: mp    k: sp, dp    n: whole

Inputs that share a label must be split along it by the same axes in the same order, and an axis splits one label: then
every rank computes one block of the result, and axes that split nothing repeat the calculation.

Matrix products may go beyond that (`enable_nd_tp`, MindSpore's 2D and 3D tensor parallelism: matmul_info,
CheckNDTPInputLayout): their inputs are split by all ranks, and gathered just before the product:

    2D   layout("None", ("x", "y")) x layout("x", "y")
             k of the first is gathered over y; sums over x are scattered over the columns
    2D   layout("x", "y") x layout("y", "x")
             rows are gathered over x; sums over y are scattered over the rows
    3D   layout(("z", "y"), "x") x layout(("x", "z"), "y")
             rows are gathered over y, k of the second over z; sums over x are scattered over the rows
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...layout.named_layout import Layout, LayoutStrategy
from ...layout.tensor_layout import TensorLayout
from .signature import Fault, Signature
from .split_labels import EQUAL_SLICES, Axes, LabelSplits, ShardingRule, dim_text

ONE_MATRIX = "All layouts of one operator have the same device_matrix"
ND_TP = "add_prim_attr('enable_nd_tp', True)"


@dataclass(frozen=True)
class NamedCuts:
    """Axes per label, counted from the right, outer split first.

    axes      (label, axes that split it where the operator computes)
    stored    per input, per dim: the axes that split it before it is gathered; None where nothing is gathered
    scatter   (label of the result, axes): sums are scattered among the axes' ranks, along that label
    """

    axes: tuple[tuple[str, Axes], ...]
    stored: tuple[tuple[Axes, ...], ...] | None = None
    scatter: tuple[str, Axes] | None = None


def _names(layout: Layout, axes: Axes) -> str:
    names = [layout.alias_name[-1 - a] for a in axes]
    return repr(names[0]) if len(names) == 1 else f"({', '.join(map(repr, names))})" if names else "no axis"


def _without_ones(layout: Layout, axes: Axes) -> Axes:
    return tuple(a for a in axes if layout.device_matrix[-1 - a] > 1)


def shared_splits(
    strategy: LayoutStrategy, operands: tuple[str, ...], signature: Signature, named: bool, product: bool
) -> NamedCuts | Fault:
    """Axes per label where all inputs agree.

    operands  labels of each layout of the strategy;  named: whether labels are the operator's own words
    product   a matrix product, which could gather what its inputs split differently
    """
    axes: dict[str, Axes] = {}
    seen: dict[str, tuple[int, int]] = {}
    taken: dict[int, tuple[str, str]] = {}
    for position, (labels, layout) in enumerate(zip(operands, strategy, strict=True)):
        for dim, (label, all_axes) in enumerate(zip(labels, layout.axes, strict=True)):
            cutting, spot = _without_ones(layout, all_axes), dim_text(position, dim, label, named)
            if label == "1":
                continue
            if axes.setdefault(label, cutting) != cutting:
                i, j = seen[label]
                same = f"'{label}' (its dim {j})" if named else f"its dim {j}, which goes with it,"
                other = f"input {i} splits {same} by {_names(strategy[i], axes[label])}"
                what = f"splits {spot} by {_names(layout, cutting)}, but {other}"
                inputs = "Both inputs" if label in signature.reduced else "All inputs"
                allowed = f"{inputs} must split it by the same axes in the same order"
                gathers = "where a product gathers what one of them splits in addition"
                return what, allowed + (f", except with {ND_TP}, {gathers}" if product else "")
            seen.setdefault(label, (position, dim))
            for axis in cutting:
                first = taken.setdefault(axis, (label, spot))
                if first[0] != label:
                    what = f"splits {spot} by the axis {layout.alias_name[-1 - axis]!r}, which splits {first[1]} too"
                    blocks = "a rank could compute only those blocks in which both parts have the same number"
                    gathers = f"; with {ND_TP} a product gathers one of them" if product else ""
                    return what, f"An axis splits one dim of an operator: {blocks}{gathers}"
    return NamedCuts(tuple(axes.items()))


def nd_splits(strategy: LayoutStrategy, operands: tuple[str, ...], signature: Signature) -> NamedCuts | Fault:
    """Axes per label of a matrix product, "...mk,...kn->...mn", that gathers its inputs and scatters its sums.

    Contraction: what both inputs split, from the outside, stays split; the rest of each is gathered. Rows are gathered
    over the axes that split the columns too. What was gathered of the first input, rows or k, says where sums are
    scattered: along rows, or along columns.
    """
    one, two = strategy
    first, second = (dict(zip(labels, each.axes, strict=True)) for labels, each in zip(operands, strategy, strict=True))

    def differ(label: str) -> str:
        return f"by {_names(one, first[label])} in input 0 and by {_names(two, second[label])} in input 1"

    for label in signature.labels:
        if label not in "mkn" and label in first and label in second and first[label] != second[label]:
            allowed = "Both inputs must split a batch dim by the same axes in the same order"
            return f"splits '{label}' {differ(label)}", allowed
    kept = 0
    while kept < min(len(first["k"]), len(second["k"])) and first["k"][kept] == second["k"][kept]:
        kept += 1
    if not kept and first["k"] and second["k"]:
        inside = "what one of them splits further inside is gathered: 'x' and ('x', 'z')"
        return f"splits the contracted dim 'k' {differ('k')}", f"Both split it by the same outer axis; {inside}"
    contracted, rows, columns = first["k"][:kept], first["m"], second["n"]
    both = set(rows) & set(columns)
    still = tuple(a for a in rows if a not in both)
    if rows[: len(still)] != still:
        what = f"splits the rows 'm' by {_names(one, rows)}, and of these the columns 'n' too, but not the innermost"
        last = "Axes that split rows and columns come last in the rows, where they can be gathered"
        return what, f"{last}: (('z', 'y'), 'x') and (('x', 'z'), 'y')"
    scatter = "n" if not both and first["k"][kept:] else "m"
    axes = {**second, **first, "m": still, "k": contracted, "n": columns}
    axes = {label: cutting for label, cutting in axes.items() if label != "1"}
    for label, cutting in axes.items():
        for other, others in axes.items():
            shared = sorted(set(cutting) & set(others))
            if label < other and shared:
                what = f"splits '{label}' and '{other}' by the axis {one.alias_name[-1 - shared[0]]!r}"
                gathered = "rows may be gathered over axes that split the columns"
                return what, f"An axis splits one dim of a product, except that {gathered}"
    gathers = bool(both or first["k"][kept:] or second["k"][kept:])
    stored = tuple(layout.axes for layout in strategy) if gathers else None
    return NamedCuts(tuple(axes.items()), stored, (scatter, contracted) if contracted else None)


def own_rule(splits: LabelSplits, strategy: LayoutStrategy, results: LayoutStrategy) -> ShardingRule | Fault:
    """The operator computes on slices as it is; its results lie where the learner says (self_define_shard_info)."""
    op, signature, slices = splits.op, splits.signature, []
    if len(results) != len(signature.outs):
        return f"has {len(results)} layouts of results, but there are {len(signature.outs)}", "One layout per result"
    sides = ("input", splits.sizes, signature.ins, strategy), ("result", splits.out, signature.outs, results)
    for side, sizes, operands, layouts in sides:
        for at, (labels, layout) in enumerate(zip(operands, layouts, strict=True)):
            shape, cuts = tuple(sizes.get(c, 1) for c in labels), layout.splits
            if len(cuts) != len(shape) or any(n % cut for n, cut in zip(shape, cuts, strict=True)):
                return f"splits {side} {at} of shape {shape} {cuts} ways", f"An entry per dim. {EQUAL_SLICES}"
            if layout.device_matrix != layouts[0].device_matrix or layout.device_num != strategy[0].device_num:
                return f"has the device_matrix {layout.device_matrix} at {side} {at}", ONE_MATRIX
            slices.append(layout.tensor_layout().slice_shape(shape))
    given, told = slices[: len(strategy)], slices[len(strategy) :]
    local = LabelSplits(op, tuple(given), splits.attrs)
    made = [tuple(local.out.get(c, 1) for c in labels) for labels in local.signature.outs]
    if made != told:
        return f"gives slices {told}, but {op.class_name} of slices {given} gives {made}", "What its slices give"
    ins, outs = (tuple(layout.tensor_layout() for layout in layouts) for layouts in (strategy, results))
    return ShardingRule(strategy, ins, outs, ("",) * len(strategy[0].device_matrix), (), ())


def layouts_rule(splits: LabelSplits, strategy: LayoutStrategy, device_num: int) -> ShardingRule | Fault:
    """The rule for layouts, one per input."""
    op, signature, operands = splits.op, splits.signature, splits.operands
    matrix = strategy[0].device_matrix if len(strategy) else (device_num,)
    product = op.name == "matmul"
    if strategy.nd_tp and not product:
        what = f"has the attribute enable_nd_tp, but {op.class_name} is not a matrix product"
        return what, "MatMul and BatchMatMul gather and scatter by themselves"
    if splits.uneven:
        return "names axes, but the parts are not equal (manual_split)", "Counts: a tuple of ints per input"
    results = strategy.results
    for position, layout in enumerate(strategy):
        if layout.device_matrix != matrix:
            what = f"has the device_matrix {layout.device_matrix} at input {position} and {matrix} at input 0"
            return what, ONE_MATRIX
        if results is None and (fault := splits.dims_fault(position, layout.splits, "entry", "entries")):
            return fault
    if math.prod(matrix) != device_num:
        what = f"is for {math.prod(matrix)} devices, but there are {device_num}"
        return what, "The product of a layout's device_matrix is the number of devices"
    if results is not None:
        return own_rule(splits, strategy, results)
    if strategy.nd_tp:
        named_cuts = nd_splits(strategy, operands, signature)
    else:
        named_cuts = shared_splits(strategy, operands, signature, op.names_labels, product)
    if not isinstance(named_cuts, NamedCuts):
        return named_cuts
    axes = dict.fromkeys(splits.names, ()) | dict(named_cuts.axes)
    cuts = {c: math.prod(matrix[-1 - a] for a in axes[c]) for c in splits.names}
    if fault := splits.label_fault(cuts):
        return fault
    for label in "" if op.counted is None else op.counted(signature, splits.sizes, **splits.attrs):
        if cuts[label] > 1:
            what = f"splits {dim_text(0, operands[0].index(label), label, op.names_labels)} by a layout"
            does = f"what {op.class_name} does along that dim"
            return what, f"A layout is the input's; {does} is split by a tuple of counts"
    rule = splits.rule(strategy, matrix, axes)
    sent = [(dim, cutting, "a halo") for dim, cutting, _ in rule.windows]
    sent += [(signature.ins[0].index(c), axes[c], "an exchange") for c in op.exchanges]
    for dim, cutting, of in sent:
        if list(cutting) != sorted(cutting, reverse=True):
            listed = tuple(strategy[0].alias_name[-1 - a] for a in cutting)
            what = f"splits dim {dim} of input 0 by {listed}, and every rank needs elements of other slices"
            allowed = f"The ranks of {of} stand in ascending order: axes in the order in which the Layout names them"
            return what, allowed
    if named_cuts.stored is not None:
        rule = replace(rule, stored=tuple(TensorLayout(matrix, entries) for entries in named_cuts.stored))
    if named_cuts.scatter is not None:
        label, cutting = named_cuts.scatter
        parts, size = cuts[label] * math.prod(matrix[-1 - a] for a in cutting), splits.sizes[label]
        if size % parts:
            what = f"scatters its sums along '{label}', {parts} ways in all, but it has {size} elements"
            return what, EQUAL_SLICES
        rule = replace(rule, scatter=(signature.out.index(label), cutting))
    return rule
