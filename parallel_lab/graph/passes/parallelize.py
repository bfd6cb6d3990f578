"""Pass `parallelize`: from operators on whole tensors to instructions on slices.

For each operator, in order: bring every operand into the layout the strategy wants (redistribution steps), compute on
the slices, and combine partial results. Each inserted instruction has its reason.

Inputs get the layout of `dataset_strategy`; a parameter gets the layout its first operator wants, and all its operators
must agree (MindSpore: "has multiple users, but the TensorInfo are different").
Sums that are read split along another dim than their rows are combined there if `forward_reduce_scatter` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from ...base.errors import StrategyError
from ...layout.named_layout import AnyStrategy
from ...layout.redistribution import plan_redistribution
from ...layout.redistribution_steps import Step, apply
from ...layout.refinement import common_factors
from ...layout.tensor_layout import TensorLayout
from ...ops.collectives.block_exchange import rows_route
from ...ops.collectives.definitions import MESSAGES
from ...ops.collectives.halo import Halo
from ...ops.machine.result_layouts import result_layouts
from ...ops.machine.sharding import sharding_rule
from ...ops.machine.split_labels import ShardingRule
from ..draft import Draft, counted, fresh_name
from ..instr import Instr, Pairs, Value, attr_pairs
from ..ir import GraphInput, Node
from .dataset_strategy import input_values
from .parameter_operators import follow_parameters, lies_elsewhere, ordered, parameter_operators


@dataclass(frozen=True)
class View:
    """A reshaped value that has no layout of its own yet: its consumer's decides."""

    source: str
    node: Node


class Builder:
    """The program and the value table while they grow."""

    def __init__(self, draft: Draft) -> None:
        self.config = draft.config
        self.graph = draft.graph
        self.instrs: list[Instr] = []
        self.values: dict[str, Value] = {}
        self.views: dict[str, View] = {}
        self.parameters: dict[str, Node] = {}
        self.moved: dict[tuple[Any, ...], str] = {}
        self.halos: dict[tuple[Any, ...], str] = {}
        # parameters read in another dtype: their slices are cast where they are used, in the layout wanted there
        self.casts: dict[str, Node] = {}
        self.when: Pairs = ()  # on which side of which `if` what is added runs

    def add(self, instr: Instr, *values: Value) -> str:
        self.instrs.append(replace(instr, when=self.when) if self.when else instr)
        self.values.update(zip(instr.outs, values, strict=True))
        return instr.out

    def insert(
        self, kind: str, out: str, source: str, node: Node, value: Value, reason: str = "", **fields: Any
    ) -> str:
        """Add an instruction on `source` for `node`; returns its result. In groups: `axes`, `device_matrix`."""
        place = {name: fields.pop(name) for name in ("axes", "device_matrix", "op", "op_class") if name in fields}
        place |= {"attrs": attr_pairs(fields), "reason": reason, "origin": node.origin.made("parallelize")}
        return self.add(Instr(kind, (out,), (source,), node.name, **place), value)

    # ---- operands ----

    def operand(self, name: str, want: TensorLayout, node: Node, position: int) -> str:
        """Name of the value that holds `name` in the layout `want`."""
        source = self.graph.input(name)
        if source is not None and source.is_number:
            return name
        if source is not None and source.role == "parameter":
            return self.parameter(source, want, node)
        if name in self.casts:
            return self.cast_parameter(name, want, node)
        have, shape = self.layout_and_shape(name)
        if name not in self.views and have.same_placement(want):
            return name
        key = (self.root(name), self.graph.shapes().get(name, shape), want.canonical())
        if (known := self.there(self.moved, key)) is None:
            known = self.moved[*key, self.when] = self.redistribute(name, have, shape, want, node, position)
        return known

    def there(self, made: dict[Any, str], key: tuple[Any, ...]) -> str | None:
        """What was made for `key` before, here or outside of the `if` that this is one side of."""
        sides = (self.when[:n] for n in range(len(self.when) + 1))
        return next((made[*key, side] for side in sides if (*key, side) in made), None)

    def operands(self, node: Node, layouts: Iterable[TensorLayout]) -> tuple[str, ...]:
        """Names of the values that hold an operator's operands in the layouts wanted."""
        names, outer = [], self.when
        for position, (name, want) in enumerate(zip(node.ins, layouts, strict=True)):
            if node.op == "branch" and position:  # on its own side
                self.when = (*outer, (node.ins[0], position == 1))
            names.append(self.operand(name, want, node, position))
        self.when = outer
        return tuple(names)

    def root(self, name: str) -> str:
        """The value that reshapes without a layout of their own begin with."""
        while name in self.views:
            name = self.views[name].source
        return name

    def layout_and_shape(self, name: str) -> tuple[TensorLayout, tuple[int, ...]]:
        value = self.values[self.root(name)]
        return value.placed, value.shape

    def parameter(self, parameter: GraphInput, want: TensorLayout, node: Node) -> str:
        """Name of a parameter, laid out for its first operator. Raises StrategyError if another differs."""
        # a reshape takes the layout that an operator behind it gives the parameter: it is not the one to blame
        first = node if node.opdef.view else self.parameters.setdefault(parameter.name, node)
        if parameter.name not in self.values:
            self.values[parameter.name] = Value(parameter.shape, parameter.dtype, want)
        elif not self.values[parameter.name].placed.same_placement(want):
            uses = ", and by ".join(
                f"{user.where} with strategy {user.strategy}, which gives it slices "
                f"{layout.slice_shape(parameter.shape)} ({layout})"
                for user, layout in ((first, self.values[parameter.name].placed), (node, want))
            )
            where = f"Parameter {parameter.name!r}, shape {parameter.shape}, has two layouts"
            allowed = "A parameter has one layout: all operators that use it must split it equally"
            hint = f"Give {node.name!r} a strategy that splits it as {first.name!r} does"
            raise StrategyError(f"it is used by {uses}", where=where, allowed=allowed, hint=hint)
        return parameter.name

    def is_parameter(self, name: str) -> bool:
        source = self.graph.input(name)
        return source is not None and source.role == "parameter"

    def cast_parameter(self, name: str, want: TensorLayout, node: Node) -> str:
        """The parameter behind the cast `name`, in the layout `want` and the cast's dtype."""
        cast = self.casts[name]
        source = self.operand(cast.ins[0], want, node, 0)
        if name not in self.values:
            value, here = Value(cast.shape, cast.dtype, self.values[source].layout), self.when
            self.when = ()  # operators outside of the `if` may read it, too
            self.add(replace(cast, when=()).computed((source,), cast.attrs), value)
            self.when = here
        return name

    def redistribute(
        self, name: str, have: TensorLayout, shape: tuple[int, ...], want: TensorLayout, node: Node, position: int
    ) -> str:
        """Bring `name` of global `shape` from layout `have` to `want`, through reshapes. Returns the last value."""
        target = self.graph.shapes().get(name, shape)
        through, source = name in self.views, self.root(name)
        if through or not self.config.manner["exact"]:
            self.check_nested(source, have, want, node, position)
        manner = {**self.config.manner, "alltoall": self.config.manner["alltoall"] or have.is_partial}
        steps = plan_redistribution(have, want, shape, dst_shape=target, **manner)
        maker = f"{source!r} has slices {have.slice_shape(shape)}"
        slices = f"slices {want.slice_shape(target)} of {repr(name) if through else 'it'}"
        reader = f"{node.name!r} wants {slices} (strategy {node.strategy}, input {position})"
        folded: list[tuple[Step, TensorLayout]] = []
        layout = have
        for step in steps:
            layout = apply(step, layout)
            # a reshape of a slice to its own shape moves nothing; it only changes how the placement is described
            if step.kind != "reshape" or step.in_shape != step.out_shape:
                folded.append((step, layout))
        current = source
        for number, (step, layout) in enumerate(folded):
            last = number == len(folded) - 1
            label = fresh_name(f"{name}.for.{node.name}" if last else f"{name}.{step.kind}.{node.name}", self.values)
            final = want if last else layout
            value = Value(final.full_shape(step.out_shape), self.values[source].dtype, final)
            place = {"axes": step.axes, "device_matrix": step.device_matrix}
            why = f"{maker}; {reader}"
            current = self.insert(step.kind, label, current, node, value, why, **step_attrs(step), **place)
        if current == source:
            # only the way to describe the placement changed (or nothing did)
            return self.alias(source, want, target, name, node) if through or target != shape else source
        return current

    def check_nested(self, source: str, have: TensorLayout, want: TensorLayout, node: Node, position: int) -> None:
        """Raise StrategyError for splits such as 8 and 3 of 24 devices, between which MindSpore finds no way either."""
        here, there = have.canonical().device_matrix, want.canonical().device_matrix
        if common_factors(here, there) is None:
            what = f"input {position}, {source!r}, lies on device_matrix {here} and is wanted on {there}"
            allowed = "Two device matrices, one of which splits the ranks further: (3, 8) and (24,), (2, 12)"
            hint = "Split both operators by the same factors, in the same order"
            raise StrategyError(what, where=node.where, allowed=allowed, hint=hint)

    def alias(self, source: str, want: TensorLayout, shape: tuple[int, ...], name: str, node: Node) -> str:
        """The slices of `source` in another shape: nothing moves."""
        label = fresh_name(f"{name}.for.{node.name}", self.values)
        value = Value(shape, self.values[source].dtype, want)
        return self.insert("reshape", label, source, node, value, shape=value.slice_shape)

    def prints(self, names: Iterable[str]) -> None:
        """Instructions that print these values, where `construct` does."""
        printed = set(names)
        for name, origin in self.graph.prints:
            if name in printed:
                shown = output_value(self, name)
                label = fresh_name(f"{name}.print", self.values)
                self.add(Instr("print", (label,), (shown,), name, origin=origin), self.values[shown])

    def assigned(self, name: str, source: str) -> str:
        """The value that parameter `name` takes at the end of the forward program, laid out as the parameter is."""
        target = self.graph.source(name)
        have, shape = self.layout_and_shape(source)
        if target.name not in self.values:
            # no operator reads it: it is kept as its new value comes
            whole = TensorLayout.replicated(self.config.device_num, len(target.shape))
            self.parameter(target, whole if source in self.views else have.whole(), self.graph.operator(source))
        want = self.values[name].placed
        if source not in self.views and have.same_placement(want):
            return source
        return self.redistribute(source, have, shape, want, self.graph.operator(source), 0)

    # ---- operators ----

    def write(self, node: Node) -> None:
        """A new value for a parameter, without a strategy of its own: laid out as the parameter is or will be."""
        variable, value = node.ins
        value_now = self.values.get(variable)
        layout = self.first_layout(variable, value) if value_now is None else value_now.placed
        whole = TensorLayout.replicated(self.config.device_num, 0)
        shapes = self.graph.operand_shapes(node)
        ins = self.operands(node, (layout, layout if len(shapes[1]) == len(shapes[0]) else whole))
        self.add(node.computed(ins, node.attrs), Value(node.shape, node.dtype, layout))

    def go_on(self, node: Node) -> None:
        """A variable at the end of a `while`: laid out as it is at the begin, from one turn to the next."""
        condition, now, following = node.ins
        layout, here = self.values[now].placed, self.when
        self.when = (*here, (condition, True))
        following = self.operand(following, layout, node, 2)
        self.when = here
        value = Value(node.shape, node.dtype, layout)
        self.add(node.computed((condition, now, following), node.attrs), value)

    def first_layout(self, parameter: str, value: str = "") -> TensorLayout:
        """Layout of a parameter that nothing has read yet: its first reader's; without one that of its new value."""
        while parameter in self.casts:
            parameter = self.casts[parameter].ins[0]
        names = {parameter}
        for node in self.graph.of_phase("forward"):
            at = next((at for at, name in enumerate(node.ins) if name in names), None)
            if at == 0 and (node.follows or node.op == "cast") and not node.opdef.view:
                names.add(node.name)
            elif at is not None and node.strategy is not None:
                shapes, attrs = self.graph.operand_shapes(node), dict(node.attrs)
                rule = sharding_rule(node.opdef, shapes, attrs, node.strategy, self.config.device_num, node.where)
                return rule.operand_layouts[at]
        shape = self.graph.source(parameter).shape
        if value in self.values and self.values[value].shape == shape:
            return self.values[value].placed.whole()
        return TensorLayout.replicated(self.config.device_num, len(shape))

    def own_rows(self, node: Node) -> bool:
        """Take of a rank's rows the part that a slice takes of all rows; False if that is not even. Right where only
        their sum matters, as in gradient accumulation. (MindSpore, skip_redistribution.)
        """
        name, attrs = node.ins[0], dict(node.attrs)
        have = self.values.get(name)
        if have is None or have.layout is None or name in self.views:
            return False
        if node.op == "micro_batch_rows":
            if have.slice_shape[0] % attrs["count"] == 0:
                self.add(node.computed(node.ins, node.attrs), Value(node.shape, node.dtype, have.layout))
                return True
            return False
        plain = node.op == "strided_slice" and not any(v for key, v in attrs.items() if key.endswith("_mask"))
        if not plain or self.is_parameter(name) or any(s != 1 for s in attrs["strides"] or ()):
            return False
        total, rows = have.shape[0], have.slice_shape[0]
        begin, end = (attrs[key][0] * rows for key in ("begin", "end"))
        whole = (attrs["begin"][1:], attrs["end"][1:]) == ((0,) * (len(have.shape) - 1), tuple(have.shape[1:]))
        if not whole or begin % total or end % total:
            return False
        local = {**attrs, "begin": (begin // total, *attrs["begin"][1:]), "end": (end // total, *have.slice_shape[1:])}
        self.add(node.computed((name,), attr_pairs(local)), Value(node.shape, node.dtype, have.layout))
        return True

    def windowed(self, node: Node, rule: ShardingRule, name: str) -> str:
        """What operand 0's windows need: a halo_exchange per dim whose slices do not suffice, corners in two steps."""
        for dim, axes, window in rule.windows:
            key = (name, dim, axes, rule.out.device_matrix, window)
            if self.there(self.halos, key) is None:
                have = self.values[name]
                label = fresh_name(f"{name}.halo.{node.name}", self.values)
                shape = tuple(window[2] if d == dim else size for d, size in enumerate(have.slice_shape))
                matrix = rule.out.device_matrix
                members = math.prod(matrix[-1 - axis] for axis in axes)
                before, after = Halo(*window, members=members).reach()
                needs = f"needs up to {before} elements of the rank before and {after} of the rank after it"
                slides = f"{node.name!r} slides a window along dim {dim}, split {members} ways"
                reason = f"{slides}: besides its own slice a rank {needs}; outside the tensor are zeros"
                value, place = Value(shape, have.dtype, None), {"axes": axes, "device_matrix": matrix}
                attrs = {"dim": dim, "window": window, "fusion": 0}
                made = self.insert("halo_exchange", label, name, node, value, reason, **attrs, **place)
                self.halos[*key, self.when] = made
            name = self.there(self.halos, key) or ""
        return name

    def compute(self, node: Node, rule: ShardingRule, ins: tuple[str, ...]) -> None:
        """The operator itself, on slices, and what combines its partial result."""
        op = node.opdef
        if op.exchanges and rule.axes_of(op.exchanges):
            return self.exchange(node, rule, ins)
        if rule.windows:
            ins = (self.windowed(node, rule, ins[0]), *ins[1:])
        attrs, parts = dict(node.attrs), dict(rule.cuts)
        if op.localize is not None and not node.self_defined:
            attrs = op.localize(attrs, parts)
        places: tuple[tuple[int, ...], ...] = ()
        if op.offset is not None:
            labels = op.offset_labels(op.signature_for(self.graph.operand_shapes(node), dict(node.attrs)))
            if any(parts.get(c, 1) > 1 for c in labels):
                places = tuple(rule.axes_of(c) for c in labels)
        own = node.keeps_own_part(self.config.device_num)
        pending = [at for at, layout in enumerate(rule.outs) if layout.is_partial and not own]
        parts_of = [at for at in pending if not self.left_partial(node, rule, at)]
        outs = tuple(
            fresh_name(f"{name}.partial", self.values) if at in parts_of else name for at, name in enumerate(node.outs)
        )
        fields = {"device_matrix": rule.out.device_matrix, "offset_axes": places}
        fields |= {"strategy": node.strategy, "reason": node.strategy_reason}
        facts = zip(node.shapes, node.dtypes, rule.outs, strict=True)
        results = [Value(shape, dtype, layout.whole() if own else layout) for shape, dtype, layout in facts]
        self.add(node.computed(ins, attr_pairs(attrs), outs, **fields), *results)
        for at in parts_of:
            if len(outs) == 1 or node.outs[at] in self.graph.read:
                self.combine(node, rule, at, outs[at])

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        """The operators that read a value, once per operand; () if it is also a result or printed."""
        found: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for name in node.ins:
                found.setdefault(name, []).append(node)
        late = (*self.graph.read_late(), *(name for name, _ in self.graph.prints))
        return {**found, **{name: [] for name in late}}

    def left_partial(self, node: Node, rule: ShardingRule, at: int) -> bool:
        """Whether sums wait for their only reader, behind reshapes: it splits another dim by the axes that hold the
        addends. One reduce_scatter then brings what an all_reduce and a slice would, and its gradient an all_gather.
        """
        layout, name, reader = rule.outs[at], "", node
        if not node.scattered or layout.reduce != "sum" or node.opdef.mean or node.out_strategy is not None:
            return False
        while reader is node or reader.opdef.view:
            name = node.outs[at] if reader is node else reader.name
            if len(self.readers.get(name, ())) != 1:
                return False
            (reader,) = self.readers[name]
        target, strategy = self.graph.shapes()[name], cast(AnyStrategy, reader.strategy)
        if len(target) < max(layout.ndim, 3) or reader.follows or strategy is None or reader.stage != node.stage:
            return False
        given = self.graph.operand_shapes(reader), dict(reader.attrs), strategy, self.config.device_num
        want = sharding_rule(reader.opdef, *given).operand_layouts[reader.ins.index(name)]
        steps = plan_redistribution(layout, want, node.shapes[at], dst_shape=target, alltoall=True)
        scattered = [step.kind for step in steps if step.kind != "reshape"] == ["reduce_scatter"]
        return scattered and want.splits[0] == layout.splits[0]

    def exchange(self, node: Node, rule: ShardingRule, ins: tuple[str, ...]) -> None:
        """An operator that is a message where the label `exchanges` is split: rows go where its counts say."""
        axes, matrix = rule.axes_of(node.opdef.exchanges), rule.out.device_matrix
        n, given, taken = dict(rule.cuts)[node.opdef.exchanges], self.graph.operand_shapes(node)[0][2], node.shape[2]
        route = rows_route(given, taken, [[min(given, taken) // n] * n] * n, dict(node.attrs)["back"])  # all alike
        reason = f"{node.name!r} sends rows to the {n} ranks of their experts, as many as {ins[1]!r} says"
        place = {"axes": axes, "device_matrix": matrix, "attrs": attr_pairs({"route": route, "fusion": 0})}
        instr = Instr("all_to_all_v", node.outs, ins, node.name, reason=reason, **place)
        self.add(replace(instr, origin=node.origin.made("parallelize")), Value(node.shape, node.dtype, rule.out))

    def combine(self, node: Node, rule: ShardingRule, at: int, label: str) -> None:
        """all_reduce of the partial result number `at`, or reduce_scatter if asked for; a mean: of the parts' means,
        divided."""
        layout, result, kind = rule.outs[at], node.outs[at], (node.shapes[at], node.dtypes[at])
        final = result_layouts(node.opdef, rule, node.shapes, node.out_strategy, node.where)[at]
        cut = [label for label, axes in rule.axes if set(axes) & set(layout.partial)]
        # labels dealt out by position, not declared with the operator, mean nothing to a reader: name the dim instead
        dims = " and ".join(f"'{c}'" if node.opdef.names_labels else f"dim {ord(c) - ord('a')}" for c in cut)
        count = math.prod(layout.axis_size(a) for a in layout.partial)
        name = fresh_name(f"{result}.sum", self.values) if node.opdef.mean else result
        does, what = {
            "sum": ("averages" if node.opdef.mean else "sums", "partial sums"),
            "max": ("takes the maximum", "candidates"),
            "min": ("takes the minimum", "candidates"),
            "prod": ("multiplies", "factors"),
        }[layout.reduce]
        holds = f"each rank holds one of {count} {what} of the result"
        reason = f"{node.name!r} {does} over {dims}, split {count} ways: {holds}"
        if not final.same_placement(layout.whole()):
            self.scatter(node, layout, label, name, Value(*kind, final), reason)
        else:
            axes = tuple(sorted((a for a in layout.partial if layout.axis_size(a) > 1), reverse=True))
            place, value = {"axes": axes, "device_matrix": layout.device_matrix}, Value(*kind, final)
            self.insert("all_reduce", name, label, node, value, reason, reduce=layout.reduce, fusion=0, **place)
        if node.opdef.mean:
            value, operator = Value(*kind, final), {"op": "divide_by", "op_class": "RealDiv"}
            self.insert("compute", result, name, node, value, count=count, **operator)

    def scatter(self, node: Node, layout: TensorLayout, label: str, name: str, value: Value, reason: str) -> None:
        """reduce_scatter of partial sums into `value`; axes not in the device matrix's order are one message each."""
        final = value.placed
        maps = zip(layout.tensor_map, final.tensor_map, strict=True)
        dim, have, want = next((d, have, want) for d, (have, want) in enumerate(maps) if have != want)
        runs = descending_runs(tuple(a for a in want[len(have) :] if layout.axis_size(a) > 1))
        for number, axes in enumerate(runs):
            last = number == len(runs) - 1
            left = tuple(a for a in layout.partial if a not in axes)
            entries = tuple((*entry, *axes) if d == dim else entry for d, entry in enumerate(layout.tensor_map))
            layout = final if last else TensorLayout(layout.device_matrix, entries, left, layout.reduce)
            parts = math.prod(layout.axis_size(a) for a in axes)
            along = "rows" if dim == 0 else f"dim {dim}"
            chosen = node.out_strategy is not None
            source = f"out_strategy {node.out_strategy}" if chosen else "enable_nd_tp: its sums are scattered"
            why = f"{reason}, and keeps 1/{parts} of its {along} ({source})"
            attrs = {"reduce": layout.reduce, "fusion": 0, "dim": dim}
            scattered, place = replace(value, layout=layout), {"axes": axes, "device_matrix": layout.device_matrix}
            out = name if last else fresh_name(f"{name}.scatter", self.values)
            label = self.insert("reduce_scatter", out, label, node, scattered, why, **attrs, **place)

    def gathered(self, name: str, have: TensorLayout, want: TensorLayout, node: Node, position: int) -> str:
        """Operand `name` after its innermost splits were gathered for a product (enable_nd_tp): `have` to `want`."""
        key = (name, self.values[name].shape, want.canonical())
        known = self.there(self.moved, key)
        if have.same_placement(want) or known is not None:
            return known or name
        source, layout = self.values[name], have
        for dim, (cut, left) in enumerate(zip(have.tensor_map, want.tensor_map, strict=True)):
            runs = descending_runs(tuple(a for a in cut[len(left) :] if have.axis_size(a) > 1))
            for axes in reversed(runs):
                entries = list(layout.tensor_map)
                entries[dim] = tuple(a for a in entries[dim] if a not in axes)
                layout = TensorLayout(have.device_matrix, tuple(entries))
                count = math.prod(have.axis_size(a) for a in axes)
                gathered = f"dim {dim} of input {position}, which is split {count} ways more than its product is"
                reason = f"{node.name!r} gathers {gathered} (enable_nd_tp)"
                label = fresh_name(f"{node.ins[position]}.gathered.{node.name}", self.values)
                place = {"axes": axes, "device_matrix": have.device_matrix}
                value = Value(source.shape, source.dtype, layout)
                name = self.insert("all_gather", label, name, node, value, reason, dim=dim, fusion=0, **place)
        self.moved[*key, self.when] = name
        return name


def descending_runs(axes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """`axes` split into the longest pieces that descend: those whose ranks, ascending, hold parts in order.

    >>> descending_runs((2, 0, 1))
    [(2, 0), (1,)]
    """
    runs: list[tuple[int, ...]] = []
    for axis in axes:
        if runs and runs[-1][-1] > axis:
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return runs


def step_attrs(step: Step) -> dict[str, Any]:
    """Attributes of the instruction that does a redistribution step."""
    names = (name for name in ("dim", "split_dim", "concat_dim", "reduce", "route") if hasattr(step, name))
    attrs: dict[str, Any] = {name: getattr(step, name) for name in names}
    if step.kind in MESSAGES:
        reduce = {"reduce": "sum"} if MESSAGES[step.kind].reducing else {}
        return {**reduce, **attrs, "fusion": 0}
    return {**attrs, "shape": step.out_shape} if step.kind == "reshape" else attrs


def parallelize(draft: Draft) -> Draft:
    """Make the forward program. Raises StrategyError (parameters), ShapeError (inputs, dataset strategy)."""
    build, graph, config = Builder(draft), draft.graph, draft.config
    build.values = input_values(draft)
    follow, late, of_loss = parameter_operators(graph)
    behind = [n for n in graph.of_phase("forward") if n.name in late]
    for node in ordered(graph, late):
        shapes, first = graph.operand_shapes(node), (node.ins or ("",))[0]
        build.when = node.when
        of_parameter = build.is_parameter(first) or first in build.casts
        if node.op == "cast" and node.strategy_source == "default" and of_parameter:
            build.casts[node.name] = node
            continue
        if node.opdef.view:
            if of_parameter and first not in build.values:
                # a reshape wants no layout of its own: the parameter lies as another operator has it, or whole
                build.operand(first, build.first_layout(first), node, 0)
            build.views[node.name] = View(first, node)
        elif node.follows:
            (build.go_on if node.op == "loop" else build.write)(node)
        elif node.name in follow or lies_elsewhere(build, node, of_loss):
            follow_parameters(build, node, behind)
        elif not ((node.own_rows or node.op == "micro_batch_rows") and build.own_rows(node)):
            attrs, strategy = dict(node.attrs), cast(AnyStrategy, node.strategy)  # pass `strategies` chose it
            rule = sharding_rule(node.opdef, shapes, attrs, strategy, config.device_num, node.where)
            ins = build.operands(node, rule.operand_layouts)
            if rule.stored is not None:
                pairs = enumerate(zip(ins, rule.stored, rule.ins, strict=True))
                ins = tuple(build.gathered(name, have, want, node, at) for at, (name, have, want) in pairs)
            build.compute(node, rule, ins)
        build.prints(node.outs)
    build.when = ()
    later = {name for n in graph.of_phase("update", "after") for name in n.outs}
    assigned = tuple((name, build.assigned(name, value)) for name, value in graph.assigns if value not in later)
    build.prints(i.name for i in graph.inputs if i.name in build.values and not i.is_number)
    roles = {i.name: i.role for i in graph.inputs}
    # a parameter that only the update program reads gets its layout there; numbers need none
    names = {*build.values, *build.views, *build.casts}
    read = [
        n for n in graph.read_late() if n in names or n in graph.outputs or roles.get(n) not in ("parameter", "scalar")
    ]
    bridges = tuple((name, output_value(build, name)) for name in read)
    outputs = tuple(dict(bridges).get(name, name) for name in graph.outputs)
    done = draft.with_program("forward", graph.numbered(build.instrs), build.values, outputs=outputs, bridges=bridges)
    return replace(done, forward_assignments=assigned).noted("parallelize", counted(build.instrs))


def output_value(build: Builder, name: str) -> str:
    """The value of a graph output: of a reshaped one batch-parallel in its shape, or whole."""
    if name in build.casts and name not in build.values:
        node = source = build.casts[name]
        while source.ins[0] in build.casts:
            source = build.casts[source.ins[0]]
        value = build.values.get(source.ins[0])
        whole = TensorLayout.replicated(build.config.device_num, len(node.shape))
        return build.cast_parameter(name, value.placed if value else whole, node)
    if name not in build.views:
        target = build.graph.input(name)
        if target is not None and name not in build.values:  # a parameter that nothing but the caller reads
            build.values[name] = target.whole(build.config.device_num)
        return name
    shape, device_num = build.graph.shapes()[name], build.config.device_num
    cut = device_num if shape and shape[0] % device_num == 0 else 1
    want = TensorLayout.from_strategy((cut,) + (1,) * (len(shape) - 1) if shape else (), device_num)
    have, source_shape = build.layout_and_shape(name)
    return build.redistribute(name, have, source_shape, want, build.views[name].node, 0)
