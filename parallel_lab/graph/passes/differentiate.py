"""Pass `differentiate`: the backward program, from the forward program of slices.

Convention (MindSpore's): the gradient of a tensor that several ranks hold is kept as partial sums over its replicas;
their sum is the true gradient. Every vjp rule is used as it stands, on slices; messages have counterparts:

    all_reduce sum   <->  all_reduce sum          slice       <->  zero padding
    all_gather       <->  reduce_scatter          reshape     <->  reshape
    halo_exchange    <->  halo_reduce
    all_to_all       <->  all_to_all              parameter   ->   all_reduce over equal slices ("mirror")

The chain starts with 1 / (ranks that hold the same loss), MindSpore's VirtualDiv, times the loss scale if there is one.
Gradients that are one number stay numbers while operators allow: a constant seed's all_reduce is never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...base.dtypes import HALF, LOSS_SCALE, kind_of, scalar_operand
from ...base.errors import PlanError, TraceError
from ...base.hooks import current_tracer
from ...base.origin import Origin
from ...layout.tensor_layout import TensorLayout
from ...ops.collectives.definitions import MESSAGES, without_gradient
from ...ops.machine.opdef import OpDef, dtype_name
from ...ops.machine.registry import OPS
from ..ir import Draft, Instr, Value, attr_pairs, counted, fresh_name, result_names
from ..kinds import KINDS, class_name
from ..traced_value import TracedValue
from .optimizer_shard import accumulates_slices, is_parameter_gather


@dataclass(frozen=True)
class _Uniform:
    """A gradient that is the same number everywhere, on every rank; with a loss scaler, times the loss scale."""

    number: float
    shape: tuple[int, ...]
    dtype: str


class LocalRecorder:
    """Records operators on slices, in place of the tracer, while vjp rules and optimizers become instructions."""

    def __init__(self, values: dict[str, Value], scalars: dict[str, Any]) -> None:
        self.values, self.scalars = values, scalars
        self.instrs: list[Instr] = []
        self.name, self.origin = "", Origin()
        self.suffix = ".grad"
        # where the slices of the forward instruction lie, for gradient operators that ask for it
        self.place: dict[str, Any] = {}
        self.once, self.stage = "", 0

    def __enter__(self) -> LocalRecorder:
        self._token = current_tracer.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        current_tracer.reset(self._token)

    def enter(self, cell: Any = None) -> None:
        """Cells that a function of the user's own calls have no place in the network."""

    leave = enter

    def where(self, op_class: str, primitive: Any) -> str:
        """The start of an error about an operator of a rule."""
        return f"{op_class} of {self.name!r}"

    def value(self, name: str) -> TracedValue:
        """A value of the program, as rules see it: with the shape of one rank's slice."""
        made = self.values[name]
        return TracedValue(name, made.slice_shape, made.dtype, self)

    def record(self, op: OpDef, operands: Any, attrs: dict[str, Any], primitive: Any = None) -> Any:
        """One operator on slices: its result, or the tuple of its results."""
        traced = [x if isinstance(x, TracedValue) else self._number(x, operands) for x in operands]
        shapes, dtypes = tuple(t.shape for t in traced), tuple([dtype_name(t.dtype) for t in traced])
        made = op.infer(shapes, dtypes, attrs, self.name)
        fields = {"op": op.name, "op_class": op.class_name}
        fields["attrs"] = attr_pairs({**attrs, "shape": made.shapes[0]} if op.view else attrs)
        place = self.place if op.offset is not None or op.part_size is not None else {}
        ins = tuple([t.name for t in traced])
        if not made.several:
            return self.emit("compute", Value(made.shapes[0], made.dtypes[0], None), ins, **fields, **place)
        name = fresh_name(f"{self.name}{self.suffix}", self.values)
        outs = tuple(fresh_name(out, self.values) for out in result_names(name, made))
        self.append("compute", outs, ins, **fields, **place)
        for out, shape, dtype in zip(outs, made.shapes, made.dtypes, strict=True):
            self.values[out] = Value(shape, dtype, None)
        return tuple(map(self.value, outs))

    def _number(self, x: Any, operands: Any) -> TracedValue:
        number = isinstance(x, (bool, int, float))
        if not number and not (isinstance(x, (np.generic, np.ndarray)) and x.ndim == 0):
            raise TraceError(f"operand {x!r}", where=self.name, allowed="Values of the program and numbers")
        array = scalar_operand(x, operands) if number else np.asarray(x)  # an array has its dtype
        dtype = dtype_name(array.dtype)
        name = f"{array.item()!r}:{dtype}"
        self.scalars[name] = array.item()
        self.values.setdefault(name, Value((), dtype, None))
        return TracedValue(name, (), dtype, self)

    def emit(self, kind: str, value: Value, ins: tuple[str, ...], out: str = "", **fields: Any) -> TracedValue:
        """Append an instruction that makes `value`; `fields` are further fields of Instr. Returns its result."""
        out = fresh_name(out or f"{self.name}{self.suffix}", self.values)
        self.append(kind, (out,), ins, **fields)
        self.values[out] = value
        return TracedValue(out, value.slice_shape, value.dtype, self)

    def append(self, kind: str, outs: tuple[str, ...], ins: tuple[str, ...], **fields: Any) -> None:
        """Append an instruction that makes these values."""
        fields = {"name": self.name, "origin": self.origin, "once": self.once, "stage": self.stage, **fields}
        self.instrs.append(Instr(kind, outs, ins, **fields))


def one_sided(instr: Instr) -> bool:
    """Whether the network itself calls a message in which ranks play different parts."""
    return bool(instr.by_hand) and not MESSAGES[instr.kind].symmetric


@lru_cache(maxsize=4096)
def gradient_layout(layout: TensorLayout) -> TensorLayout:
    """Layout of the gradient of a value: split as the value is, partial sums over its replicas."""
    return TensorLayout(layout.device_matrix, layout.tensor_map, layout.replica_axes, rows=layout.rows)


class _Backward:
    """The way back from the seed of this number, or from the outputs."""

    def __init__(self, draft: Draft, rec: LocalRecorder, number: int) -> None:
        self.draft, self.rec, self.values = draft, rec, rec.values
        self.forward = draft.program("forward")
        # a function that asks for gradients multiplies its loss itself
        self.loss_scale = None if draft.graph.seeds else loss_scale_name(draft)
        self.grads: dict[str, list[TracedValue | _Uniform]] = {}
        self.taken: dict[str, str] = {}
        self.combined = {i.ins[0]: i for i in self.forward if i.kind == "all_reduce" and not i.by_hand}
        # parameters that the optimizer parallel has sharded: their gathers, and scattered addends of their gradients
        self.gathers = {i.out: i for i in self.forward if is_parameter_gather(i)}
        self.shares = {i.attr("parameter"): i.group_size for i in reversed(self.gathers.values())}
        self.first_reader = {name: i for i in reversed(self.forward) for name in i.ins}
        self.scattered: dict[str, TracedValue] = {}
        self.wide: set[str] = set()  # values whose gradient stays in the wider dtype in which it was summed
        graph, bridges = draft.graph, dict(draft.bridges)
        self.seeds = tuple(bridges[name] for name in graph.seeds[number : number + 1]) or draft.outputs
        asked = {target for _, target, seed in graph.gradients if seed == number}
        self.live = asked or {i.name for i in graph.inputs if i.role == "parameter" and i.trainable}
        for instr in self.forward:
            if self.live.intersection(instr.ins) or one_sided(instr):
                self.live.update(instr.outs)
        self.sent: set[str] = set()  # messages that another rank waits for, needed here or not

    # ---- gradients of values ----

    def give(self, name: str, gradient: TracedValue | _Uniform | None) -> None:
        if gradient is not None and name in self.live:
            self.grads.setdefault(name, []).append(gradient)

    def take(self, name: str, *, array: bool = False) -> TracedValue | _Uniform | None:
        """The gradient of `name`: the sum of what its users gave."""
        parts = self.grads.pop(name, None)
        if not parts:
            return None
        if len(parts) == 1 and isinstance(parts[0], _Uniform) and not array:
            return parts[0]
        total = self.array(parts[0])
        for part in parts[1:]:
            total = total + self.array(part)
        made = self.values[name]
        if dtype_name(total.dtype) != made.dtype and name not in self.wide:
            # float32 beside float64: the rule computed in the wider one, the gradient has the value's own
            total = OPS["cast"](total, dtype=made.dtype)
        if made.layout is not None:
            wanted, known = self.gradient_value(name), self.values[total.name]
            alike = known.layout is None or known.shape == wanted.shape and known.layout.same_placement(wanted.layout)
            if not alike:
                # A rule passed one array on as the gradient of two values that are laid out differently: x + b, where b
                # is broadcast, but a rank's slice of x happens to have b's shape. Each needs a name and a layout.
                total = OPS["sum_to"](total, shape=wanted.slice_shape)
            self.values[total.name] = replace(wanted, dtype=dtype_name(total.dtype))
        self.taken[name] = total.name
        return total

    def array(self, gradient: TracedValue | _Uniform) -> TracedValue:
        if isinstance(gradient, TracedValue):
            return gradient
        filled = OPS["fill"](shape=gradient.shape, value=gradient.number, dtype=gradient.dtype)
        if self.loss_scale is None:
            return filled
        scale = self.rec.value(self.loss_scale)
        if gradient.dtype != dtype_name(scale.dtype):
            scale = OPS["cast"](scale, dtype=gradient.dtype)
        return filled * scale

    # ---- instructions ----

    def run(self) -> dict[str, str]:
        """{what is differentiated for: its gradient}, where there is one."""
        for name in self.seeds:
            made = self.values[name]
            # in data_parallel mode every rank differentiates a loss of its own, which has no layout
            repeated = made.layout is not None and self.draft.config.loss_repeated_mean
            divisor = made.layout.replica_count if repeated else 1
            self.give(name, _Uniform(1.0 / divisor, made.slice_shape, made.dtype))
        if self.draft.graph.micro_batches == 1:
            self.run_part(self.forward)
        else:
            self.run_micro_batches()
        # sorted from the order of use, which is the same in every process; a set's is not
        used = sorted((i.name for i in self.draft.graph.inputs if i.name in self.live), key=_order(self.draft))
        return {name: value for name in used if (value := self.mirror(name)) is not None}

    def run_micro_batches(self) -> None:
        """What comes behind them in forward, then each of them, then what comes before them, with their sums."""
        self.rec.once = "first"  # of the backward program: before any micro-batch's
        self.run_part([i for i in self.forward if i.once == "last"])
        inside = {name for i in self.forward if not i.once for name in i.outs}
        before = {name: self.grads.pop(name) for name in list(self.grads) if name not in inside}
        self.rec.once = ""
        self.run_part([i for i in self.forward if not i.once])
        for name in list(self.grads):
            self.add_up(name)
        for name, parts in before.items():
            self.grads.setdefault(name, []).extend(parts)
        self.rec.once = "last"
        self.run_part([i for i in self.forward if i.once == "first"])

    def add_up(self, name: str) -> None:
        """Sum over micro-batches the gradient of what all of them read: a parameter, or one gathered from shards."""
        user = self.first_reader[name]
        self.rec.name, self.rec.stage = name, user.attr("source", user.stage)
        total, sharded = self.take(name, array=True), name in self.gathers and accumulates_slices(self.draft.config)
        if sharded:
            total = self.scatter(self.gathers[name], total)
        fields = {"op": "accumulate", "op_class": OPS["accumulate"].class_name}
        made = self.rec.emit("accumulate", self.values[total.name], (total.name,), f"{total.name}.sum", **fields)
        if sharded:
            self.scattered[name] = made
        else:
            self.grads[name] = [made]

    def run_part(self, instrs: Sequence[Instr]) -> None:
        """Backward through a part of the forward program, from its end."""
        for instr in reversed(instrs):
            if instr.out not in self.live:
                continue
            self.rec.name, self.rec.origin = instr.name, instr.origin.made("differentiate")
            self.rec.stage = instr.stage
            if one_sided(instr):
                self.one_sided_back(instr)
                continue
            found = [self.take(name) for name in instr.outs]
            if any(g is not None for g in found):
                back = KINDS[instr.kind].vjp
                if back is None:
                    raise PlanError(f"no gradient flows through {instr.kind!r}", where=f"instruction {instr.out!r}")
                back(self, instr, found)
            if instr.out in self.scattered:
                self.give(instr.ins[0], self.scattered[instr.out])

    def operator_back(self, instr: Instr, gradients: Sequence[TracedValue | _Uniform | None]) -> None:
        """Through an operator, by its vjp rule, once for all results. Numbers stay numbers through a mean and a sum."""
        op, gradient = instr.opdef, gradients[0]
        uniform = isinstance(gradient, _Uniform)
        if instr.op == "divide_by":
            n = instr.attr("count")
            self.give(instr.ins[0], replace(gradient, number=gradient.number / n) if uniform else op(gradient, count=n))
            return
        if instr.op == "add" and uniform and all(self.alike(name, instr.out) for name in instr.ins):
            for name in instr.ins:
                self.give(name, gradient)
            return
        if op.vjp_fn is None:
            return
        attrs, operands = dict(instr.attrs), [self.rec.value(name) for name in instr.ins]
        shapes, dtypes = tuple([x.shape for x in operands]), tuple([dtype_name(x.dtype) for x in operands])
        form = op.infer(shapes, dtypes, attrs, instr.name).form
        given = form([None if g is None else self.array(g) for g in gradients])
        combined = self.combined.get(instr.outs[0])
        extra = {"across": lambda v, reduce="sum": self.across(v, combined, reduce)} if op.vjp_across else {}
        if op.vjp_total:
            extra["total"] = self.total
        if op.vjp_needs:
            extra["needs"] = tuple(name in self.live for name in instr.ins)
        place = {"offset_axes": instr.offset_axes, "device_matrix": instr.device_matrix}
        self.rec.place = place if instr.offset_axes else {}
        grads = op.vjp_fn(given, form([self.result(name) for name in instr.outs]), *operands, **attrs, **extra)
        self.rec.place = {}
        for name, grad in zip(instr.ins, grads, strict=True):
            self.give(name, grad)

    def result(self, name: str) -> TracedValue:
        """A result as rules read it: extremes and products combined, a sum with a rank's own addend."""
        combined = self.combined.get(name)
        return self.rec.value(combined.out if combined is not None and combined.attr("reduce") != "sum" else name)

    def alike(self, one: str, other: str) -> bool:
        """Whether two values have the same shape, dtype and placement."""
        a, b = self.values[one], self.values[other]
        placed = a.layout is b.layout or (None not in (a.layout, b.layout) and a.layout.same_placement(b.layout))
        return (a.shape, a.dtype) == (b.shape, b.dtype) and placed

    def across(self, value: TracedValue, combined: Instr | None, reduce: str) -> TracedValue:
        """A vjp rule's helper value combined over the ranks its reduction was split among."""
        if combined is None:
            return value
        what, why = "sum", "how many elements are equal extremes, or are 0 in a product"
        if reduce == "prod":
            what, why = "product", "the factors that are not 0"
        reason = f"the gradient of {combined.name!r} needs the {what} of this over all its ranks: {why}"
        attrs = {"reduce": reduce, "fusion": 0}
        return self.message("all_reduce", combined, value, self.values[value.name], reason, attrs)

    def total(self, gradient: TracedValue) -> tuple[TracedValue, int]:
        """(The sum of all ranks' addends of a gradient, how many ranks): for a rule that need not be linear in it."""
        made, count = self.values[gradient.name], self.draft.config.device_num
        if count == 1 or self.draft.config.local:
            return gradient, 1
        layout = gradient_layout(TensorLayout.replicated(count, len(made.shape)))
        value, axes = Value(made.shape, made.dtype, None), tuple(sorted(layout.partial, reverse=True))
        about = "the function that is given it need not be linear", {"reduce": "sum", "fusion": 0}, "gradient.total"
        return self.message("all_reduce", layout, gradient, value, *about, axes=axes), count

    def message(
        self,
        kind: str,
        over: Instr | TensorLayout,
        gradient: TracedValue,
        value: Value,
        reason: str,
        attrs: dict[str, Any],
        out: str = "",
        **fields: Any,
    ) -> TracedValue:
        """A message that makes `value` of `gradient`, over the ranks of message `over` or the `axes` of a layout."""
        fields = {"axes": getattr(over, "axes", ()), "device_matrix": over.device_matrix, **fields}
        out = out or f"{over.out}.grad.{kind}"
        return self.rec.emit(kind, value, (gradient.name,), out, attrs=attr_pairs(attrs), reason=reason, **fields)

    def gradient_value(self, name: str) -> Value:
        made = self.values[name]
        return Value(made.shape, made.dtype, gradient_layout(made.layout))

    def one_sided_back(self, instr: Instr) -> None:
        """Through a message whose ranks do different things, so that each must play its part in backward whether or
        not it needs the gradient: a send receives it, a recv sends it (zeros, if nothing used the value), and so on.
        """
        definition, made = MESSAGES[instr.kind], self.values[instr.ins[0]]
        if not definition.adjoint or kind_of(self.values[instr.out].dtype) != "f":
            return
        gradient = self.take(instr.out, array=True)
        if instr.kind == "send":
            gradient = self.rec._number(0, [])
        elif gradient is None:
            received = self.values[instr.out]
            gradient = OPS["fill"](shape=received.slice_shape, value=0.0, dtype=received.dtype)
        if instr.kind == "recv":
            made = self.values[instr.out]
        attrs = {"shape": made.slice_shape, "dtype": made.dtype, **dict(instr.attrs)}
        attrs = {**definition.adjoint_attrs(attrs), "fusion": 0, "group": self.group_back(instr)}
        reason = definition.why.format(name=instr.name, n=instr.group_size)
        value = Value(made.slice_shape, made.dtype, None)
        back = self.message(definition.adjoint, instr, gradient, value, reason, attrs)
        self.sent.add(back.name)
        if instr.kind != "recv":
            self.give(instr.ins[0], back)

    @staticmethod
    def group_back(instr: Instr) -> tuple[int, ...]:
        """The ranks of the gradient's message: of a send and a recv, the other way."""
        return instr.by_hand if MESSAGES[instr.kind].is_collective else instr.by_hand[::-1]

    def extreme_back(self, instr: Instr, gradient: TracedValue) -> None:
        """Through an all_reduce of the network itself that takes the extreme: equal ones share its gradient equally."""
        if instr.attr("reduce") not in ("max", "min"):
            raise without_gradient(class_name(instr), instr.attr("reduce"))
        source, made = instr.ins[0], Value(*(self.values[instr.out].slice_shape, gradient.dtype.name), None)
        attrs = {"reduce": "sum", "fusion": 0, "group": instr.by_hand}
        why = "backward of an extreme: its gradient is the sum of all ranks', shared by those whose element it is"
        mask = OPS["cast"](OPS["equal"](self.rec.value(source), self.rec.value(instr.out)), dtype=made.dtype)
        count = self.message("all_reduce", instr, mask, made, why, attrs, f"{instr.out}.grad.holders")
        total = self.message("all_reduce", instr, gradient, made, why, attrs)
        self.give(source, mask * (total / count))

    def message_back(self, instr: Instr, gradients: Sequence[TracedValue | _Uniform]) -> None:
        """Through a message: its adjoint, on the gradient of what it brought."""
        (gradient,) = gradients
        definition, source = MESSAGES[instr.message], instr.ins[0]
        if instr.attr("shift") is not None:
            self.border_back(instr, gradient)
            return
        if instr.by_hand and instr.attr("reduce", "sum") != "sum":
            if instr.kind != "all_reduce":
                raise without_gradient(class_name(instr), instr.attr("reduce"))
            self.extreme_back(instr, self.array(gradient))
            return
        if isinstance(gradient, _Uniform) and instr.kind == "all_reduce" and not instr.by_hand:
            self.give(source, replace(gradient, number=gradient.number * instr.group_size))
            return
        if instr.out in self.gathers:
            self.give(source, self.scatter(instr, self.array(gradient)))
            return
        made = self.values[source]
        if instr.kind == "all_reduce":
            made = self.values[instr.out]
            if made.layout is not None:
                layout = gradient_layout(made.layout)
                left = tuple(a for a in layout.partial if a not in instr.axes)
                made = Value(made.shape, made.dtype, TensorLayout(layout.device_matrix, layout.tensor_map, left))
        elif made.layout is None or definition.reducing:
            # a windowed value, some of whose elements neighbours hold too; or whole again, where addends were
            made = Value(made.slice_shape, made.dtype, None)
        else:
            made = self.gradient_value(source)
        reason = definition.why.format(name=instr.name, n=instr.group_size)
        attrs = {**definition.adjoint_attrs(dict(instr.attrs)), "fusion": 0}
        attrs |= {"group": instr.by_hand} if instr.by_hand else {}
        self.give(source, self.message(definition.adjoint, instr, self.array(gradient), made, reason, attrs))

    def border_back(self, instr: Instr, gradient: TracedValue | _Uniform) -> None:
        """The gradient of what came from another part of a pipeline goes back to it."""
        if isinstance(gradient, _Uniform):
            self.give(instr.ins[0], gradient)
            return
        attrs = {**dict(instr.attrs), "source": instr.stage, "shift": -instr.attr("shift")}
        attrs |= {"sr_tag": instr.attr("sr_tag") + 1, "shape": gradient.shape, "dtype": dtype_name(gradient.dtype)}
        made = self.values[gradient.name]
        reason = f"the gradient of {instr.ins[0]!r} goes back to the stage that has made it"
        fields = {"attrs": attr_pairs(attrs), "reason": reason, "device_matrix": instr.device_matrix}
        fields["stage"] = instr.attr("source")
        self.give(instr.ins[0], self.rec.emit("recv", made, (gradient.name,), f"{instr.ins[0]}.grad.back", **fields))

    # ---- parameters ----

    def sum_dtype(self, dtype: str) -> str:
        """The dtype in which ranks sum gradients: float32 for half precision (MindSpore's gradient_fp32_sync)."""
        config = self.draft.config
        return "float32" if dtype in HALF and config.gradient_fp32_sync and not config.local else dtype

    def scatter(self, gather: Instr, gradient: TracedValue) -> TracedValue:
        """A rank's part of the sum of all gradients of a parameter that was gathered by `gather`."""
        source, parameter = gather.ins[0], gather.attr("parameter")
        given, sent = dtype_name(gradient.dtype), self.sum_dtype(dtype_name(gradient.dtype))
        if sent != given:
            gradient = self.widened(gradient, sent)
            self.wide.add(source)
        made = self.gradient_value(source)
        attrs = {"dim": gather.attr("dim"), "reduce": "sum", "fusion": gather.attr("fusion"), "parameter": parameter}
        has = f"each of {gather.group_size} ranks has a partial sum of the gradient of {parameter!r}"
        reason = f"optimizer parallel: {has}, and needs the sum of the part it keeps"
        value, out = Value(made.shape, sent, made.layout), f"{parameter}.grad.scattered"
        return self.message("reduce_scatter", gather, gradient, value, reason, attrs, out, name=parameter)

    def widened(self, gradient: TracedValue, dtype: str) -> TracedValue:
        """The addends of a gradient in a wider dtype."""
        made = self.values[gradient.name]
        wide = OPS["cast"](gradient, dtype=dtype)
        self.values[wide.name] = Value(made.shape, dtype, made.layout)
        return wide

    def mirror(self, name: str) -> str | None:
        """Synchronise the gradient of a parameter, or of an input, over the ranks that hold the same slice."""
        given, config = self.draft.graph.input(name), self.draft.config
        user = self.first_reader.get(name)
        if user is None:
            return None
        self.rec.name, self.rec.origin = name, user.origin.made("differentiate")
        self.rec.stage = user.attr("source", user.stage)
        gradient = self.take(name, array=True)
        if gradient is None:
            return None
        layout, shape = self.values[name].layout, self.values[name].shape
        axes = tuple(sorted(layout.replica_axes, reverse=True))
        own = config.local and (given.layerwise or given.role == "data")  # stays each rank's own
        shared = self.shares.get(name, 1)
        if axes and not own:
            why = "each has a partial sum of it, from its own samples or from its own part of the network"
            same = f"{layout.replica_count} ranks hold the same slice of {name!r} and must apply the same gradient"
            reason = f"{same}: {why}"
            sent = self.sum_dtype(given.dtype)
            if sent != dtype_name(gradient.dtype):
                gradient = self.widened(gradient, sent)
            attrs = {"reduce": "sum", "fusion": given.comm_fusion, "parameter": name}
            value, out = Value(shape, sent, layout), f"{name}.grad.mirror"
            gradient = self.message("all_reduce", layout, gradient, value, reason, attrs, out, axes=axes)
        as_sent = self.values[gradient.name] = Value(shape, dtype_name(gradient.dtype), layout)
        if config.gradients_mean and (axes or shared > 1) and not own:
            count = attr_pairs({"count": layout.replica_count * shared})
            fields = {"op": "divide_by", "op_class": "Mul", "attrs": count}
            gradient = self.rec.emit("compute", as_sent, (gradient.name,), f"{name}.grad.mean", **fields)
        if as_sent.dtype != given.dtype:  # after the division: a mean can be had in float16 where the sum cannot
            gradient = OPS["cast"](gradient, dtype=given.dtype)
            self.values[gradient.name] = Value(shape, given.dtype, layout)
        return gradient.name


def differentiate(draft: Draft) -> Draft:
    """Add the gradients of the outputs' sum for every trainable parameter used, or those the function asks for."""
    graph, rec = draft.graph, LocalRecorder(draft.value_table(), {})
    backs = [_Backward(draft, rec, number) for number in range(len(graph.seeds) or 1)]
    if not graph.seeds and not backs[0].live.intersection(backs[0].seeds):
        hint = "A parameter needs requires_grad=True and a place in construct"
        raise TraceError("no trainable parameter was used", where="differentiate", hint=hint)
    with rec:
        found = [back.run() for back in backs]
    gradients = tuple(pair for pairs in found for pair in pairs.items())
    instrs = _needed(rec.instrs, {value for _, value in gradients}.union(*(back.sent for back in backs)))
    made = {name for i in instrs for name in i.outs}
    asked = ((name, found[seed][target]) for name, target, seed in graph.gradients if target in found[seed])
    of_values = {v: g for back in reversed(backs) for v, g in back.taken.items() if g in made}
    changes = {"value_gradients": tuple(sorted(of_values.items())), "bridges": (*draft.bridges, *asked)}
    done = draft.with_program("backward", instrs, rec.values, gradients=gradients, **changes)
    return done.noted("differentiate", f"{counted(instrs)}, {len(gradients)} gradients")


def loss_scale_name(draft: Draft) -> str | None:
    """Name of the value that scales the loss (pass `loss_scale`, `update.py`); None without a loss scaler."""
    return next((name for name, _, kind in draft.states if kind == LOSS_SCALE), None)


def _needed(instrs: list[Instr], wanted: set[str]) -> tuple[Instr, ...]:
    """Instructions that the wanted values depend on: rules make gradients of data too, which nobody wants."""
    wanted, kept = set(wanted), []
    for instr in reversed(instrs):
        if wanted.intersection(instr.outs):
            wanted.update(instr.ins)
            kept.append(instr)
    return tuple(reversed(kept))


def _order(draft: Draft) -> Any:
    """Backward order: the parameter used last comes first."""
    last = {name: position for position, instr in enumerate(draft.program("forward")) for name in instr.ins}
    return lambda name: -last.get(name, -1)
