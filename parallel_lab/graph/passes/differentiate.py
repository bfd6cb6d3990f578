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

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...base.dtypes import LOSS_SCALE
from ...base.errors import PlanError, TraceError
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.opdef import OPS, dtype_name
from ...ops.machine.operand_checks import one_per_input
from ..draft import Draft, counted, needed
from ..instr import Instr, Pairs, Value, attr_pairs
from ..kinds import KINDS
from ..traced_value import TracedValue
from .local_recorder import LocalRecorder, Uniform, gradient_layout
from .loop_gradients import loop_back
from .message_gradients import message_back, one_sided, one_sided_back
from .optimizer_shard import accumulates_slices, is_parameter_gather
from .parameter_gradients import mirror, scatter


class Backward:
    """The way back from the seed of this number, or from the outputs.

    grads       a forward value -> what its users gave so far;  taken: a forward value -> its gradient's name
    live        values that gradients are needed for
    combined    a partial value -> the all_reduce that combines it
    gathers     results of gathers of sharded parameters -> the gather;  shares: a parameter -> ranks that share it
    scattered   results of gathers -> the shard's gradient, summed over micro-batches;  sent: messages that other ranks
                wait for, needed here or not
    """

    def __init__(self, draft: Draft, rec: LocalRecorder, number: int) -> None:
        self.draft, self.rec, self.values = draft, rec, rec.values
        self.forward = draft.program("forward")
        # a function that asks for gradients multiplies its loss itself
        self.loss_scale = None if draft.graph.seeds else loss_scale_name(draft)
        self.grads: dict[str, list[TracedValue | Uniform]] = {}
        self.taken: dict[str, str] = {}
        self.combined = {i.ins[0]: i for i in self.forward if i.kind == "all_reduce" and not i.by_hand}
        self.gathers = {i.out: i for i in self.forward if is_parameter_gather(i)}
        self.shares = {i.attr("parameter"): i.group_size for i in reversed(self.gathers.values())}
        self.first_reader = {name: i for i in reversed(self.forward) for name in i.ins}
        self.made_when = {name: i.made_when for i in self.forward if i.when for name in i.outs}
        self.translated: dict[tuple[str, Any], tuple[str, Any]] = {}  # a side of the forward program: of this one
        self.scattered: dict[str, TracedValue] = {}
        self.wide: set[str] = set()  # values whose gradient stays in the wider dtype in which it was summed
        graph, bridges = draft.graph, dict(draft.bridges)
        self.seeds = tuple(bridges[name] for name in graph.seeds[number : number + 1]) or draft.outputs
        targets = {target for _, target, seed in graph.gradients if seed == number}
        self.live = targets or {i.name for i in graph.inputs if i.role == "parameter" and i.trainable}
        count = -1
        while count < (count := len(self.live)):  # what a turn of a loop reads is the result of the turn before
            for instr in self.forward:
                if self.live.intersection(instr.ins) or one_sided(instr):
                    self.live.update((*instr.outs, instr.ins[1]) if instr.loop else instr.outs)
        self.sent: set[str] = set()

    # ---- gradients of values ----

    def give(self, name: str, gradient: TracedValue | Uniform | None) -> None:
        """One user's share of the gradient of `name`; zeros if the user is on a side of an `if` that is not taken."""
        if gradient is not None and name in self.live:
            made_when, here = self.sides(self.made_when.get(name, ())), self.rec.when
            while len(self.rec.when) > len(made_when):
                gradient = self.or_zeros(self.array(gradient))
            self.grads.setdefault(name, []).append(gradient)
            self.rec.when = here

    def sides(self, when: Pairs) -> Pairs:
        """The conditions of an instruction of the forward program, here."""
        return tuple(self.translated.get(side, side) for side in when) if self.translated else when

    def or_zeros(self, gradient: TracedValue) -> TracedValue:
        """A gradient that one side of an `if` makes, and zeros if that is not taken. What follows is outside."""
        *outer, (condition, side) = self.rec.when
        self.rec.when = tuple(outer)
        value = self.values[gradient.name]
        zeros = OPS["fill"](shape=gradient.shape, value=0.0, dtype=value.dtype)
        sides = (gradient.name, zeros.name) if side else (zeros.name, gradient.name)
        fields = {"op": "branch", "op_class": KINDS["branch"].class_name}
        return self.rec.emit("branch", value, (condition, *sides), **fields)

    def branch_back(self, instr: Instr, gradient: TracedValue | Uniform) -> None:
        """Each side goes on with the whole gradient: backward of a side runs only where the side has run."""
        condition, *sides = instr.ins
        for side, name in zip((True, False), sides, strict=True):
            self.rec.when = (*self.sides(instr.when), (condition, side))
            self.give(name, gradient)

    def take(self, name: str) -> TracedValue | Uniform | None:
        """The gradient of `name`: the sum of what its users gave."""
        parts = self.grads.get(name, ())
        if len(parts) == 1 and isinstance(parts[0], Uniform):
            return self.grads.pop(name)[0]
        return self.take_array(name)

    def take_array(self, name: str) -> TracedValue | None:
        """The same as an array, also where it is one number."""
        parts = self.grads.pop(name, None)
        if not parts:
            return None
        total: Any = self.array(parts[0])
        for part in parts[1:]:
            total = total + self.array(part)
        value = self.values[name]
        if dtype_name(total.dtype) != value.dtype and name not in self.wide:
            # float32 with float64: the rule computed in the wider one, the gradient has the value's own
            total = OPS["cast"](total, dtype=value.dtype)
        if value.layout is not None:
            gradient, has = self.gradient_value(name), self.values[total.name]
            fits = has.layout is None or has.shape == gradient.shape and has.layout.same_placement(gradient.placed)
            if not fits:
                # A rule passed one array on as the gradient of two values that are laid out differently: x + b, where b
                # is broadcast, but a rank's slice of x happens to have b's shape. Each needs a name and a layout.
                total = OPS["sum_to"](total, shape=gradient.slice_shape)
            self.values[total.name] = replace(gradient, dtype=dtype_name(total.dtype))
        self.taken[name] = total.name
        return total

    def array(self, gradient: TracedValue | Uniform) -> TracedValue:
        """A gradient as an array, if it is one number times the loss scale."""
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
            loss, self.rec.when = self.values[name], self.sides(self.made_when.get(name, ()))
            # in data_parallel mode every rank differentiates a loss of its own, which has no layout
            repeated = self.draft.config.loss_repeated_mean
            divisor = loss.layout.replica_count if loss.layout is not None and repeated else 1
            self.give(name, Uniform(1.0 / divisor, loss.slice_shape, loss.dtype))
        if self.draft.graph.micro_batches == 1:
            self.run_part(self.forward)
        else:
            self.run_micro_batches()
        # sorted from the order of use, which is the same in every process; a set's is not
        used = sorted((i.name for i in self.draft.graph.inputs if i.name in self.live), key=_order(self.draft))
        return {name: value for name in used if (value := mirror(self, name)) is not None}

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
        user, self.rec.when = self.first_reader[name], ()
        self.rec.name, self.rec.stage = name, user.attr("source", user.stage)
        total = self.take_array(name)
        if total is None:
            return
        sharded = name in self.gathers and accumulates_slices(self.draft.config)
        if sharded:
            total = scatter(self, self.gathers[name], total)
        fields = {"op": "accumulate", "op_class": OPS["accumulate"].class_name}
        added = self.rec.emit("accumulate", self.values[total.name], (total.name,), f"{total.name}.sum", **fields)
        if sharded:
            self.scattered[name] = added
        else:
            self.grads[name] = [added]

    def run_part(self, instrs: Sequence[Instr]) -> None:
        """Backward through a part of the forward program, from its end."""
        loops: set[str] = set()  # that are done
        for instr in reversed(instrs):
            if not loops.isdisjoint(name for name, _ in instr.when):
                continue
            if instr.out not in self.live and not instr.loop:
                continue
            self.rec.name, self.rec.origin = instr.name, instr.origin.made("differentiate")
            self.rec.stage, self.rec.when = instr.stage, self.sides(instr.made_when)
            if instr.loop:
                inside = [i for i in instrs if instr.when[-1] in i.when]
                ends = [i for i in inside if i.loop == instr.loop]
                loops.add(instr.loop)
                loop_back(self, ends, [i for i in inside if i not in ends])
                continue
            if one_sided(instr):
                one_sided_back(self, instr)
                continue
            gradients = [self.take(name) for name in instr.outs]
            if any(gradient is not None for gradient in gradients):
                vjp = KINDS[instr.kind].vjp
                if vjp is None:
                    raise PlanError(f"no gradient flows through {instr.kind!r}", where=f"instruction {instr.out!r}")
                vjp(self, instr, gradients)
            if instr.out in self.scattered:
                self.give(instr.ins[0], self.scattered[instr.out])

    def operator_back(self, instr: Instr, gradients: Sequence[TracedValue | Uniform | None]) -> None:
        """Through an operator, by its vjp rule, once for all results. Numbers stay numbers through a mean and a sum."""
        op, gradient = instr.opdef, gradients[0]
        uniform = isinstance(gradient, Uniform)
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
        of_results = form([None if g is None else self.array(g) for g in gradients])
        combined = self.combined.get(instr.outs[0])

        def across(value: TracedValue, reduce: str = "sum") -> TracedValue:
            return self.across(value, combined, reduce)

        extra: dict[str, Any] = {"across": across} if op.vjp_across else {}
        if op.vjp_total:
            extra["total"] = self.total
        if op.vjp_needs:
            extra["needs"] = tuple(name in self.live for name in instr.ins)
        place = {"offset_axes": instr.offset_axes, "device_matrix": instr.device_matrix}
        self.rec.place = place if instr.offset_axes else {}
        results = form([self.result(name) for name in instr.outs])
        grads = op.vjp_fn(of_results, results, *operands, **attrs, **extra)
        self.rec.place = {}
        for name, grad in zip(instr.ins, one_per_input(grads, instr.ins, op), strict=True):
            self.give(name, grad)

    def result(self, name: str) -> TracedValue:
        """A result as rules read it: extremes and products combined, a sum with a rank's own addend."""
        combined = self.combined.get(name)
        return self.rec.value(combined.out if combined is not None and combined.attr("reduce") != "sum" else name)

    def alike(self, one: str, other: str) -> bool:
        """Whether two values have the same shape, dtype and placement."""
        a, b = self.values[one], self.values[other]
        placed = a.layout is b.layout or (
            a.layout is not None and b.layout is not None and a.layout.same_placement(b.layout)
        )
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
        addend, count = self.values[gradient.name], self.draft.config.device_num
        if count == 1 or self.draft.config.local:
            return gradient, 1
        layout = gradient_layout(TensorLayout.replicated(count, len(addend.shape)))
        value, axes = Value(addend.shape, addend.dtype, None), tuple(sorted(layout.partial, reverse=True))
        reason, attrs = "the function that is given it need not be linear", {"reduce": "sum", "fusion": 0}
        total = self.message("all_reduce", layout, gradient, value, reason, attrs, "gradient.total", axes=axes)
        return total, count

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
        axes, sent, counts = (over.axes, over.out, over.ins[1:]) if isinstance(over, Instr) else ((), "", ())
        fields = {"axes": axes, "device_matrix": over.device_matrix, "attrs": attr_pairs(attrs), **fields}
        ins, out = (gradient.name, *counts), out or f"{sent}.grad.{kind}"
        return self.rec.emit(kind, value, ins, out, reason=reason, **fields)

    def message_back(self, instr: Instr, gradients: Sequence[TracedValue | Uniform]) -> None:
        """Through a message: see `message_gradients.py`."""
        message_back(self, instr, gradients)

    def gradient_value(self, name: str) -> Value:
        """Shape, dtype and layout of the gradient of a value."""
        value = self.values[name]
        return Value(value.shape, value.dtype, gradient_layout(value.layout))


def differentiate(draft: Draft) -> Draft:
    """Add the gradients of the outputs' sum for every trainable parameter used, or those the function asks for."""
    graph, rec = draft.graph, LocalRecorder(draft.value_table(), {})
    backs = [Backward(draft, rec, number) for number in range(len(graph.seeds) or 1)]
    if not graph.seeds and not backs[0].live.intersection(backs[0].seeds):
        hint = "A parameter needs requires_grad=True and a place in construct"
        raise TraceError("no trainable parameter was used", where="differentiate", hint=hint)
    with rec:
        of_seeds = [back.run() for back in backs]
    gradients = tuple(pair for pairs in of_seeds for pair in pairs.items())
    # rules make gradients of data too, which nobody reads
    instrs = needed(rec.instrs, {value for _, value in gradients}.union(*(back.sent for back in backs)))
    outs = {name for i in instrs for name in i.outs}
    named = ((name, of_seeds[seed][target]) for name, target, seed in graph.gradients if target in of_seeds[seed])
    of_values = {v: g for back in reversed(backs) for v, g in back.taken.items() if g in outs}
    changes = {"value_gradients": tuple(sorted(of_values.items())), "bridges": (*draft.bridges, *named)}
    done = draft.with_program("backward", instrs, rec.values, gradients=gradients, **changes)
    return done.noted("differentiate", f"{counted(instrs)}, {len(gradients)} gradients")


def loss_scale_name(draft: Draft) -> str | None:
    """Name of the value that scales the loss (pass `loss_scale`, `update.py`); None without a loss scaler."""
    return next((name for name, _, kind in draft.states if kind == LOSS_SCALE), None)


def _order(draft: Draft) -> Callable[[str], int]:
    """Backward order: the parameter used last comes first."""
    last = {name: position for position, instr in enumerate(draft.program("forward")) for name in instr.ins}

    def place(name: str) -> int:
        return -last.get(name, -1)

    return place
