"""Types of the values of a plan: replicated, varying, partial, along every axis of the ranks; checked before it runs.

    types = infer_types(plan)
    types["fc1.matmul.partial"], types.of_gradient("fc1.weight")      "P" along the axis that splits k;  "R" in the end
    check_types(plan)                    TypesError: the operator, its line, and the message that would mend it

Types start at parameters and data, which lie as their layouts say, and are followed through every instruction by the
tables of `type_rules.py`; where the value table says how a value is laid out, what was inferred must agree. So a sum
that is not taken, is taken twice or over other ranks is found where its result is first used as something else. A
gradient has the dual type of its value (replicated: partial) until a message adds it up.

What types cannot see are wrong numbers of the right type: divisors, seeds, positions, labels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, product
from typing import Any

from ..base.checks import fitting
from ..base.errors import PlanError
from ..layout.tensor_layout import TensorLayout
from ..ops.context_attention import SETTINGS, last_turn
from ..ops.machine.opdef import OPS
from .instr import Instr, Value
from .kinds import class_name
from .ring_types import BLOCKS, ROUND, ring_shift, through_ring, turned
from .type_rules import MESSAGE_RULES, WORDS, Refused, dual, through_operator, through_reshape

Types = tuple[str, ...]  # one per axis, the innermost first


class TypesError(PlanError):
    """A plan in which a sum is not taken, is taken twice or over the wrong ranks."""


@dataclass(frozen=True)
class TypeFault:
    """What is wrong with one use of a value.

    instr, phase   where it shows;  value: what is used wrongly;  axis: number of the axis
    maker          the instruction that made the addends, or the first that added them up
    kind           "missing" or "doubled"
    what, mend     in words: what happens, and the message that would mend it
    ranks          the group of rank 0 along the axis
    """

    phase: str
    instr: Instr | None
    value: str
    axis: int
    maker: Instr | None
    kind: str
    what: str
    mend: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.what}. {self.mend}"


def named(instr: Instr | None) -> str:
    """An instruction in words: MatMul 'fc1.matmul' (net.py:14)."""
    if instr is None:
        return "the plan"
    place = f" ({instr.origin.place})" if instr.origin.place else ""
    return f"{class_name(instr)} {instr.name or instr.out!r}{place}"


class Axes:
    """The finest axes that all device matrices of a plan are made of, as strides: 1, 2, 8 of (4, 2) are two axes."""

    def __init__(self, matrices: Iterable[tuple[int, ...]], count: int) -> None:
        strides = {1, count}
        for matrix in dict.fromkeys(matrices):
            found = {math.prod(matrix[len(matrix) - n :]) for n in range(len(matrix) + 1)}
            both = sorted(strides | found)
            if all(b % a == 0 for a, b in pairwise(both)):
                strides |= found
        self.strides = tuple(sorted(strides))

    def __len__(self) -> int:
        return len(self.strides) - 1

    def of(self, matrix: Sequence[int], axis: int) -> tuple[int, ...] | None:
        """Numbers of the finest axes that make up one of a matrix; None: it is not made of them."""
        low = math.prod(matrix[len(matrix) - axis :])
        high = low * matrix[-1 - axis]
        if low not in self.strides or high not in self.strides:
            return None
        return tuple(range(self.strides.index(low), self.strides.index(high)))

    def ranks(self, axis: int) -> tuple[int, ...]:
        """The ranks along an axis that begin with rank 0."""
        return tuple(range(0, self.strides[axis + 1], self.strides[axis]))


class ValueTypes(dict[str, Types]):
    """Types by value name.  axes: what they are along;  faults: what is wrong, in the order in which it was found;
    unchecked: operators that were not checked."""

    def __init__(self, plan: Any, axes: Axes, unchecked: Collection[str]) -> None:
        super().__init__()
        self.plan, self.axes, self.unchecked = plan, axes, tuple(unchecked)
        self.faults: list[TypeFault] = []

    @cached_property
    def _gradients(self) -> dict[str, str]:
        return {**dict(self.plan.value_gradients), **dict(self.plan.gradients)}

    def of_gradient(self, name: str) -> Types | None:
        """The types of the gradient of a value; of a parameter of the one that is applied. None: it has no gradient."""
        return self.get(self._gradients.get(name, ""))

    def word(self, name: str, axis: int) -> str:
        """replicated, invariant (so is its gradient), varying, partial."""
        code, gradient = self[name][axis], self.of_gradient(name)
        return "invariant" if code == "R" and gradient and gradient[axis] == "R" else WORDS[code[:1]]

    def __repr__(self) -> str:
        """A cell that ends with it shows its text."""
        return self.text()

    def text(self) -> str:
        """A line per value that has a name of the network's: its types, its gradient's types."""
        sizes = " x ".join(f"{b // a}" for a, b in pairwise(self.axes.strides))
        lines = [f"axes, the innermost first: {sizes}"]
        for name, types in self.items():
            gradient = self.of_gradient(name)
            lines.append(f"{name:32} {' '.join(types):12} gradient {' '.join(gradient) if gradient else '-'}")
        lines += [f"not checked: {name}" for name in self.unchecked]
        return "\n".join([*lines, *(f"wrong: {fault}" for fault in self.faults)])


@fitting
def infer_types(plan: Any, *, unchecked: Collection[str] = ()) -> ValueTypes:
    """The types of all values of a plan, and what is wrong with them.

    unchecked  names of operators that may do as they like: their results have the types that the plan says. Those with
               the attribute "cross_batch", which leaves a sum out on purpose, are always among them
    """
    of_own = [node.name for node in plan.graph.nodes if node.cross_batch]
    return _Inference(plan, (*unchecked, *of_own)).run()


@fitting
def check_types(plan: Any, *, unchecked: Collection[str] = ()) -> ValueTypes:
    """The types of a plan in which every sum is taken once. Raises TypesError, at the first fault."""
    types = infer_types(plan, unchecked=unchecked)
    if types.faults:
        first, more = types.faults[0], len(types.faults) - 1
        hint = first.mend + (f" ({more} more uses follow from it)" if more else "")
        raise TypesError(first.what, where=f"types, {first.phase}", hint=hint)
    return types


def types_of_layout(layout: TensorLayout, axes: Axes) -> Types | None:
    """The types of a value that lies as a layout says; None: on axes that do not fit the others."""
    found = ["R"] * len(axes)
    pending = "P" if layout.reduce == "sum" else f"P{layout.reduce}"
    entries = [(axis, f"S{dim}") for dim, entry in enumerate(layout.tensor_map) for axis in entry]
    for axis, code in (*entries, *((axis, pending) for axis in layout.partial)):
        numbers = axes.of(layout.device_matrix, axis)
        if numbers is None:
            return None
        for number in numbers:
            found[number] = code
    return tuple(found)


def types_of_dtensor(tensor: Any) -> tuple[tuple[str, str], ...]:
    """(type, its gradient's) of an eager DTensor, or of a layout, along each axis of its mesh, the outermost first."""
    codes = [placement.code.replace("SS", "S").split(":")[0] for placement in tensor.placements]
    return tuple((code, dual(code)) for code in codes)


class _Inference:
    def __init__(self, plan: Any, unchecked: Collection[str]) -> None:
        self.plan, self.unchecked = plan, frozenset(unchecked)
        instrs = [i for stage in plan.stages for _, program in stage.programs for i in program]
        layouts = [value.layout for _, value in plan.values if value.layout is not None]
        matrices = [i.device_matrix for i in instrs if i.device_matrix and not i.by_hand]
        self.count = plan.stages[0].count
        fitting = (m for m in (*(x.device_matrix for x in layouts), *matrices) if math.prod(m) == self.count)
        self.axes = Axes(fitting, self.count)
        self.types = ValueTypes(plan, self.axes, unchecked)
        self.makers: dict[str, Instr] = {}
        self.first: dict[tuple[str, int], Instr] = {}  # (a value, an axis): what made its addends, or added them up
        self.sent: dict[int, str] = {}  # what is sent under a tag
        alone = {i.name for i in plan.graph.inputs if i.layerwise or i.role == "data"} if plan.config.local else set()
        self.by_hand = any(i.attr("of_slices") for stage in plan.stages for i in stage.program("update"))
        self.totals = any(i.out.startswith("gradient.total") for i in instrs)  # rules that need not be linear
        self.own = {gradient for name, gradient in plan.gradients if name in alone}
        self.declared = lru_cache(maxsize=None)(self._declared)

    # ---- what the plan says ----

    def _declared(self, layout: TensorLayout | None) -> Types | None:
        fits = layout is not None and layout.device_num == self.count
        return types_of_layout(layout, self.axes) if fits and layout is not None else None

    def said(self, name: str) -> Types | None:
        """The types of a value by the value table; None where it has no layout, and of what is a rank's own."""
        return None if name in self.own else self.declared(self.plan.value(name).layout)

    def run(self) -> ValueTypes:
        plan, local = self.plan, self.plan.config.local
        data = {i.name for i in plan.data_inputs}
        names = [i.name for i in plan.graph.inputs] + [s.name for s in plan.states] + list(plan.scalars)
        for name in names:
            value = plan.value_table.get(name)
            own = local and name in data
            said = None if value is None or own else self.declared(value.layout)
            rows = "S0" if value is not None and value.shape else "V"
            self.types[name] = said or ((rows if own else "R"),) * len(self.axes)
        waiting = [(phase, i) for stage in plan.stages for phase, program in stage.programs for i in program]
        for instr in (i for _, i in waiting):
            if instr.attr("message", instr.kind) == "send" and not instr.by_hand and instr.attr("sr_tag") is not None:
                self.sent[instr.attr("sr_tag")] = instr.ins[0]
        while waiting:
            left = [(phase, instr) for phase, instr in waiting if not self.step(phase, instr)]
            if len(left) == len(waiting):  # a turn of a loop reads what the turn before has made
                for name in left[0][1].reads:
                    if name not in self.types:
                        self.types[name] = (plan.value_table.get(name) and self.said(name)) or self.unknown
            waiting = left
        self.ends()
        return self.types

    @property
    def unknown(self) -> Types:
        return ("?",) * len(self.axes)

    # ---- one instruction ----

    def step(self, phase: str, instr: Instr) -> bool:
        """Follow the types through an instruction, if those of its operands are known."""
        recv = instr.message == "recv" and not instr.by_hand and instr.attr("shift") is not None
        ins = (self.sent.get(instr.attr("sr_tag"), ""),) if recv else instr.ins
        if instr.kind == "wait" and recv:
            ins = instr.ins
        if any(name not in self.types for name in ins):
            return False
        outs = instr.kept
        found = [list(self.unknown) for _ in outs]
        for axis in range(len(self.axes)):
            codes = tuple(self.types[name][axis] for name in ins)
            said = [None if (t := self.said(name)) is None else t[axis] for name in outs]
            if self.unchecked and instr.name in self.unchecked:
                made: Sequence[str] = [code or "?" for code in said]
            else:
                try:
                    made = self.through(phase, instr, ins, codes, axis)
                    made = [self.settle(instr, code, says) for code, says in zip(made, said, strict=True)]
                except Refused as wrong:
                    if self.by_hand and phase == "update":  # the step itself adds up what each rank has, whatever it is
                        made = ["?"] * len(outs)
                    else:
                        self.fault(phase, instr, ins, codes, axis, wrong)
                        made = [code or "?" for code in said]
            if phase == "forward" and self.plan.config.local:  # what a rank sums over its own samples is its own
                made = ["V" if code.startswith("P") else code for code in made]
            for at, (name, code) in enumerate(zip(outs, made, strict=True)):
                found[at][axis] = "V" if name in self.own else code
                self.trace(instr, name, ins, codes, axis, code)
        for name, types in zip(outs, found, strict=True):
            before = self.types.get(name) or tuple(types)  # copies of a part on two stages: what one leaves pending is
            both = zip(before, types, strict=True)
            self.types[name] = tuple(now if now.startswith("P") and was == "R" else was for was, now in both)
            self.makers.setdefault(name, instr)
        return True

    def trace(self, instr: Instr, name: str, ins: Sequence[str], codes: Sequence[str], axis: int, code: str) -> None:
        """Keep where the addends of a value come from, or who has added them up."""
        pairs = [(c, f) for n, c in zip(ins, codes, strict=True) if (f := self.first.get((n, axis))) is not None]
        alike = [(c == code, bool(f.message), f) for c, f in pairs if c[:1] == code[:1]]  # a sum says more than a copy
        before = max(alike, key=lambda each: each[:2], default=(False, False, instr))
        self.first.setdefault((name, axis), before[2])

    def through(
        self, phase: str, instr: Instr, ins: tuple[str, ...], codes: tuple[str, ...], axis: int
    ) -> Sequence[str]:
        """The types that an instruction makes along an axis. Raises Refused."""
        if instr.owner is not None:
            return ["V"] * len(instr.kept)
        if instr.kind == "split":  # of a bucket: what the part's own message would have brought
            return [self.of_bucket(instr, axis)]
        if instr.message or instr.kind == "slice":
            return [self.by_message(instr, codes[0], axis)]
        if instr.kind in ("compute", "branch", "loop"):
            return self.by_operator(phase, instr, ins, codes, axis)
        if instr.kind == "reshape":
            value, out = self.plan.value(ins[0]), self.plan.value(instr.out)
            return [through_reshape(value.slice_shape, out.slice_shape, codes[0])]
        if instr.kind == "concat":
            return ["?"]
        if instr.kind == "restore":
            return ["R"]
        return [codes[0]]

    def of_bucket(self, instr: Instr, axis: int) -> str:
        wait = self.makers[instr.ins[0]]
        start = self.makers[wait.ins[0]]
        member = self.makers[start.ins[0]].ins[instr.attr("member")]
        return self.by_message(replace(start, kind=start.message, attrs=start.attrs), self.types[member][axis], axis)

    def by_message(self, instr: Instr, code: str, axis: int) -> str:
        kind = instr.message or instr.kind
        rule = MESSAGE_RULES.get(kind)
        if code == "?" and instr.attr("members") is not None:
            return code
        if rule is None:  # send, recv, barrier
            return code
        mine = [self.axes.of(instr.device_matrix, a) for a in instr.axes]
        shift = ring_shift(dict(instr.attrs)) if not instr.by_hand else None
        if shift is not None:  # along other axes nothing happens
            along = [n for numbers in mine for n in numbers or (axis,)]
            return code if axis not in along else turned(code, shift, self.size(axis)) if along == [axis] else "?"
        if instr.by_hand or instr.attr("of_slices"):
            whole = kind == "all_reduce" and len(instr.by_hand or ()) == self.count
            return "R" if whole else "?"
        if any(numbers is None for numbers in mine):
            return "?"
        if not any(numbers is not None and axis in numbers for numbers in mine):
            return code
        if code == "?":
            return "R" if kind in ("all_reduce", "all_gather", "broadcast") else "?"
        return rule(code, dict(instr.attrs))

    def by_operator(
        self, phase: str, instr: Instr, ins: tuple[str, ...], codes: tuple[str, ...], axis: int
    ) -> Sequence[str]:
        if instr.kind in ("branch", "loop"):
            sides = {code for code in codes[1:] if code != "C"} or {"C"}
            return [sides.pop() if len(sides) == 1 else "V"]
        values = [self.plan.value(name) for name in ins]
        if instr.op == "fill":
            return ["C"]
        own_rule = self.totals and phase == "backward" and instr.op == "div" and set(codes) == {"R"}
        if own_rule and self.plan.scalars.get(ins[1]) == self.count:  # each rank takes its share of what it gives
            return ["C"]
        here = [n for axes in instr.offset_axes for a in axes for n in self.axes.of(instr.device_matrix, a) or ()]
        if instr.op == "strided_slice_grad" and axis in here:
            return ["P"]  # each rank fills up its own slice with zeros
        if axis in here and not set(codes) - {"R", "C"}:
            return ["V"] * len(instr.kept)  # it depends on where the rank is
        shapes = tuple(value.slice_shape for value in values)
        made = self.through_ring(instr, values, codes, axis)
        if made is not None:
            return [code for name, code in zip(instr.outs, made, strict=True) if name or len(instr.outs) == 1]
        if any(code[0] in "AB" for code in codes):
            raise Refused("reads a sum that is on its way round the ring", mend=ROUND)
        codes = tuple("V" if code[0] == "T" else code for code in codes)
        outs = tuple(self.plan.value(name).slice_shape for name in instr.outs if name) or ((),)
        if OPS[instr.op].view:
            return [through_reshape(shapes[0], outs[0], codes[0])]
        of_rule = phase in ("backward", "weights")
        every = through_operator(instr.op, shapes, self.all_outs(instr, outs), instr.attrs, codes, of_rule)
        return [code for name, code in zip(instr.outs, every, strict=True) if name or len(instr.outs) == 1]

    def through_ring(
        self, instr: Instr, values: Sequence[Value], codes: tuple[str, ...], axis: int
    ) -> tuple[str, ...] | None:
        """What an operator of a ring makes; None: it is another."""
        last = 0
        if instr.op in BLOCKS:
            if instr.attr("turn") is None:
                return None
            last = last_turn(values[BLOCKS[instr.op][0] - 1].slice_shape[1], {**SETTINGS, **dict(instr.attrs)})
        return through_ring(instr.op, codes, self.size(axis), last)

    def size(self, axis: int) -> int:
        """Ranks along an axis."""
        return self.axes.strides[axis + 1] // self.axes.strides[axis]

    def all_outs(self, instr: Instr, kept: tuple[Any, ...]) -> tuple[Any, ...]:
        """Shapes of all results, of those that nothing reads ()."""
        left = iter(kept)
        return tuple(next(left) if name or len(instr.outs) == 1 else () for name in instr.outs)

    def settle(self, instr: Instr, code: str, says: str | None) -> str:
        """What was inferred, next to what the value table says. Raises Refused where they do not go together."""
        if says is None or code == says:
            return code
        if code[0] in "AB":
            raise Refused("makes a sum that is still on its way round the ring", of_result=True, mend=ROUND)
        if code in ("?", "C", "V") or code[0] == "T":
            return code if code == "V" and says == "R" else says
        if code.startswith("P"):
            if {code, says} == {"P", "Pavg"}:  # a mean of means, as a sum that is divided, or by its name
                return says
            raise Refused("makes addends that are used as if they were the sum", of_result=True)
        if says.startswith("P") and code == "R" and not self.shares_out(instr):
            raise Refused("takes copies for addends", doubled=True)
        return says

    def shares_out(self, instr: Instr) -> bool:
        """Whether copies become addends: each rank takes its share, one of as many as hold addends of the result."""
        if instr.kind != "compute" or instr.op not in ("div", "divide_by"):
            return False
        says = self.said(instr.out) or ()
        pairs = zip(pairwise(self.axes.strides), says, self.types[instr.ins[0]], strict=True)
        count = math.prod(high // low for (low, high), to, code in pairs if to.startswith("P") and code == "R")
        number = instr.attr("count") if len(instr.ins) == 1 else self.plan.scalars.get(instr.ins[1])
        return number is not None and float(number) == count

    # ---- faults ----

    def fault(
        self, phase: str, instr: Instr, ins: Sequence[str], codes: Sequence[str], axis: int, wrong: Refused
    ) -> None:
        twice = wrong.doubled and not wrong.mend
        sort = ("R", "C", "S") if twice else ("P", "A", "B", "V", "S")
        value = next(
            (n for s in sort for n, c in zip(ins, codes, strict=True) if c.startswith(s)), (*ins, instr.out)[0]
        )
        maker = self.first.get((value, axis)) or self.makers.get(value)
        if wrong.of_result and not any(code.startswith("P") for code in codes):  # its operands are whole, or slices
            value, maker = instr.out, instr
        ranks = self.axes.ranks(axis)
        if twice:
            code = dict(zip(ins, codes, strict=True)).get(value, "")
            has = "is whole already" if code[:1] in "RC" and code else "is not a pending sum"
            before = f"%{value} {has}" + (f" ({named(maker)})" if maker is not None else "")
            what = f"{named(instr)} {wrong.what}: {before}, on ranks {ranks} and their like"
            mend = self.narrower(instr, value, axis)
        else:
            from_where = named(maker or instr)
            what = f"{named(instr)} {wrong.what}: %{value} is a pending sum over ranks {ranks}, made by {from_where}"
            among = self.addends(instr, value, axis)
            mend = wrong.mend or f"all_reduce (sum) of %{value} over ranks {among} and their like, before it is read"
        kind = "doubled" if wrong.doubled else "missing"
        self.types.faults.append(TypeFault(phase, instr, value, axis, maker, kind, what, mend, ranks))

    def addends(self, instr: Instr, value: str, axis: int) -> tuple[int, ...]:
        """The ranks whose addends of a value are still to be added up, with rank 0: along all axes that nobody adds."""
        types, says = self.types.get(value, self.unknown), self.said(instr.out) or self.unknown
        added = {n for a in instr.axes if instr.message for n in self.axes.of(instr.device_matrix, a) or ()}
        missing = {n for n, code in enumerate(types) if code == "P" and says[n][:1] in "RS" and n not in added}
        return self.together({axis, *missing})

    def together(self, axes: Iterable[int]) -> tuple[int, ...]:
        """The ranks along these axes that begin with rank 0."""
        strides = [range(0, self.axes.strides[n + 1], self.axes.strides[n]) for n in axes]
        return tuple(sorted(map(sum, product(*strides))))

    def narrower(self, instr: Instr, value: str, axis: int) -> str:
        """What mends a sum over too many ranks: the axes along which there are addends; without any, no sum."""
        sent = self.makers[self.makers[instr.ins[0]].ins[0]] if instr.kind == "split" else instr  # a part of a bucket
        kind, types = sent.message or sent.kind, self.types.get(value, self.unknown)
        group = {n for a in sent.axes for n in self.axes.of(sent.device_matrix, a) or ()} - {axis}
        says = self.said(instr.out) or self.unknown
        partial = [n for n in range(len(self.axes)) if n != axis and types[n][:1] == "P"]
        pending = [n for n in partial if n in group or says[n][:1] in "RS"]
        if not sent.message or not pending:
            return f"Take away the {kind} that makes %{instr.out}"
        ranks = self.together(pending)
        return f"{kind} (sum) of %{value} over ranks {ranks} and their like, and no more"

    def ends(self) -> None:
        """What parameters, states and the caller get must be as they are laid out."""
        plan, local = self.plan, self.plan.config.local
        alone = {n for n, g in plan.gradients if g in self.own}
        alone |= {state.name for state in plan.states if state.parameter in alone}
        ends = [("backward", n, g, f"the gradient of {n!r}") for n, g in plan.gradients if g not in self.own]
        late = [] if local else list(plan.forward_assignments)
        late += [(n, s) for n, s in plan.assignments if plan.owner_of(n) is None]
        ends += [("update", n, s, f"the new value of {n!r}") for n, s in late if n not in alone]
        ends += [("forward", n, n, f"the result {n!r}") for n in plan.outputs if not local]
        for phase, target, name, what in ends:
            said = self.said(target)
            for axis, code in enumerate(self.types.get(name, ())):
                whole = said is not None and said[axis] == "R"
                if (code.startswith("P") and target != name) or (whole and code[:1] in "PVS"):
                    self.end_fault(phase, name, axis, what, code)

    def end_fault(self, phase: str, name: str, axis: int, what: str, code: str) -> None:
        maker, ranks = self.first.get((name, axis)) or self.makers.get(name), self.axes.ranks(axis)
        held = "a pending sum" if code.startswith("P") else "different"
        text = f"{what} is {held} over ranks {ranks}, made by {named(maker)}"
        mend = f"all_reduce (sum) of %{name} over ranks {ranks} and their like"
        self.types.faults.append(
            TypeFault(phase, self.makers.get(name), name, axis, maker, "missing", text, mend, ranks)
        )
