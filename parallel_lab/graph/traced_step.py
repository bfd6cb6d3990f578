"""The part of a trace for functions that make a training step themselves: they ask for gradients, give them to
optimizers, and read Parameters that an optimizer has changed.

    loss, grads = gradient(x)            # grads: values of the update program, "w.gradient"
    optimizer(grads)                     # noted: w is updated with w.gradient; a second optimizer may follow
    ops.assign(mean, mean * 0.9 + w * 0.1)   # reads "w.updated", what the update has made of w

An operator belongs to the program of the latest value that it reads (`Node.phase`): "forward", then "update", what is
done with gradients, then "after", what is done with updated Parameters. All optimizers take their step between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..base.dtypes import LOSS_SCALE, kind_of
from ..base.errors import NotBuiltYet, ShapeError, TraceError, shorten
from ..base.origin import Origin, caller
from ..nn.tensor.parameter import Parameter
from ..ops.machine.opdef import OpDef
from ..ops.machine.registry import OPS
from .instr import Pairs
from .ir import SKIP, GraphInput, Node
from .traced_value import Overflow, TracedValue


class TracedStep:
    """What a `Tracer` notes of gradients, optimizers and values after their steps."""

    # what the `Tracer` itself holds and does, as far as it is used here
    nodes: list[Node]
    inputs: dict[str, GraphInput]
    parameters: dict[int, str]
    kept: list[Any]
    prints: list[tuple[str, Origin]]
    assigns: dict[str, str]
    pinned: dict[int, TracedValue]
    scope_text: Callable[[], str]
    when: Pairs
    made_when: dict[str, Pairs]
    loops: int
    micro_batches: int

    def __init__(self) -> None:
        # what is differentiated, and gradients by name
        self.seeds: tuple[str, ...] = ()
        self.targets: dict[str, tuple[str, int]] = {}
        # values that need gradients, and among them those that need what the optimizers have made of Parameters
        self.late: set[str] = set()
        self.after: set[str] = set()
        # the optimizers that were called, and with what; {a Parameter with a new value: its name in the trace, ""
        # before anything reads it}
        self.optimizers: tuple[Any, ...] = ()
        self.updates: tuple[tuple[str, str], ...] = ()
        self.updated: dict[str, str] = {}
        self.renewed: dict[str, str] = {}  # {that name: the Parameter}
        # sums over micro-batches, and what is made of them while these are fed
        self.totals: set[str] = set()
        # the loss scaler that was asked for its scale, and the input that holds it
        self.scaler: Any = None
        self.scale_name = ""
        # whether the next operator belongs to the update program whatever it reads; what skips the optimizer's step
        self.in_update, self.skip, self.overflows = False, "", False
        # how many functions run that are differentiated; the error for a message without any
        self.in_forward, self.refused_forward = 0, None

    # ---- of the `Tracer` ----

    def named(self, base: str) -> str:
        raise NotImplementedError

    def operand(self, value: Any, others: Sequence[Any]) -> TracedValue:
        raise NotImplementedError

    def record(self, op: OpDef, operands: Sequence[Any], attrs: dict[str, Any], primitive: Any) -> Any:
        raise NotImplementedError

    def _own_parameter(self, parameter: Parameter) -> str:
        raise NotImplementedError

    def differentiated(self, fn: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        raise NotImplementedError

    def twice(self, what: str, hint: str) -> NotBuiltYet:
        """The error to raise for a second time of what a compiled function may do once."""
        where, allowed = caller(self.scope_text()).place, "Once in a compiled function"
        return NotBuiltYet(what, where=where, allowed=allowed, hint=hint)

    # ---- what a Parameter holds ----

    def value_now(self, name: str) -> str:
        """The value of parameter `name` at this line: what an optimizer's step or an operator gave it last, or what it
        holds when the step begins. MindSpore adds up the gradients of micro-batches in Parameters "accu_grads.NAME".
        """
        if name not in self.updated:
            of = name.removeprefix("accu_grads.") if self.micro_batches > 1 and name not in self.assigns else name
            sums = (gradient for gradient, (source, _) in self.targets.items() if source == of != name)
            return next(sums, self.assigns.get(name, name))
        if not self.updated[name]:
            if self.overflows:
                what, where = f"{name!r} is read after an optimizer's step", caller(self.scope_text()).place
                allowed, hint = "Reads before a step that an overflow may skip", "Read the new value in the next call"
                raise NotBuiltYet(what, where=where, allowed=allowed, hint=hint)
            parameter, label = self.inputs[name], self.named(f"{name}.updated")
            self.updated[name], self.renewed[label] = label, name
            self.inputs[label] = GraphInput(label, "updated", parameter.shape, parameter.dtype)
            self.late.add(label)
            self.after.add(label)
        return self.updated[name]

    def variable(self, op_class: str, target: Any) -> Parameter:
        """The Parameter that an operator is to give a value: itself, or what an earlier one has returned for it."""
        names = {self.assigns.get(name): key for key, name in self.parameters.items()}
        key = names.get(target.name) if isinstance(target, TracedValue) else id(target)
        parameter = next((p for p in self.kept if id(p) == key), target)
        where = caller(self.scope_text()).place
        if not isinstance(parameter, Parameter):
            what = f"{op_class} is to give {shorten(target)} a value"
            raise TraceError(what, where=where, allowed="A Parameter", hint="Make it a Parameter of the Cell")
        name = self._own_parameter(parameter)
        if name in self.updated and name in self.assigns and self.assigns[name] != self.updated[name]:
            what = f"{name!r} is given a value before and after the optimizer's step"
            raise TraceError(what, where=where, allowed="One of both in a compiled function")
        return parameter

    def note(self, node: Node, variable: Parameter | None) -> None:
        """Which values an operator has made, and the Parameter that it gave a value."""
        if node.phase != "forward":
            self.late.update(node.outs)
        if node.once == "last":
            self.totals.update(node.outs)
        if node.phase == "after":
            self.after.update(node.outs)
        if node.when:
            self.made_when.update(dict.fromkeys(node.outs, node.made_when))
        if variable is not None:
            name = self._own_parameter(variable)
            self.assigns[name] = node.outs[0]
            if name in self.updated:
                self.updated[name] = node.outs[0]

    def phase_of(self, values: Sequence[TracedValue], variable: Parameter | None) -> str:
        """The program of an operator on these values: of the latest of them, or of what reads what it changes."""
        names = {*(v.name for v in values), *(name for name, _ in self.when)}
        readers = {n.phase for n in self.nodes if names.intersection(n.reads)} if variable is not None else ()
        if names & self.after or "after" in readers:
            return "after"
        return "update" if self.in_update or names & self.late or "update" in readers else "forward"

    def deferred(self, nodes: Sequence[Node], outputs: Sequence[str]) -> tuple[Node, ...]:
        """The operators, with those moved to "after" that read Parameters and numbers alone, and that only operators
        there read: `mean * 0.9` lies as `w.updated` does, with which it is added.
        """
        if not self.after:
            return tuple(nodes)
        written = {name for name, value in self.assigns.items() if value not in self.after}
        still = {i.name for i in self.inputs.values() if i.is_number or i.role == "parameter"} - written
        for node in nodes:
            if node.phase == "forward" and not node.when and still.issuperset(node.reads):
                still.update(node.outs)
        pairs = (*self.assigns.items(), *self.updates)
        early = {*outputs, *self.seeds, *(name for name, _ in self.prints), *(value for _, value in pairs)}
        moved = []
        for node in reversed(nodes):
            if node.phase == "forward" and still.issuperset(node.outs) and not early.intersection(node.outs):
                node = replace(node, phase="after")
            elif node.phase != "after":
                early.update(node.reads)
            moved.append(node)
        return tuple(reversed(moved))

    # ---- gradients and updates, called by autograd and optimizers ----

    def gradients(self, output: Any, sources: Sequence[Any]) -> list[TracedValue]:
        """Values that stand for the gradients of `output` (or its sum) for Parameters and inputs of the function."""
        where = caller(self.scope_text()).place
        if self.loops:
            raise self.twice(
                "gradients are asked for in a loop on a tensor", "Ask for them once, and loop over what is read"
            )
        value = self.operand(output, [])
        differentiable = any(value.name in n.outs for n in self.nodes) and value.name not in self.late
        if not differentiable or kind_of(value.dtype) != "f":
            allowed = "A float that operators have made, and not from gradients or after an optimizer's step"
            raise TraceError(f"{value.name!r} ({value.dtype}) is to be differentiated", where=where, allowed=allowed)
        gradients = []
        for x in sources:
            source = self._own_parameter(x) if isinstance(x, Parameter) else self.operand(x, []).name
            graph_input = self.inputs.get(source)
            if graph_input is None or graph_input.role not in ("parameter", "data"):
                allowed = "Parameters, and inputs of the compiled function"
                raise TraceError(f"the gradient for {source!r} is asked for", where=where, allowed=allowed)
            name = self.named(f"{source}.gradient")
            self.inputs[name] = GraphInput(name, "gradient", graph_input.shape, graph_input.dtype)
            self.targets[name] = source, len(self.seeds)
            self.late.add(name)
            gradients.append(TracedValue(name, graph_input.shape, graph_input.dtype, self))
        self.seeds = (*self.seeds, value.name)
        return gradients

    def forward_of(self, fn: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        """What a function that is differentiated returns."""
        self.in_forward += 1
        result = self.differentiated(fn, inputs)
        self.in_forward -= 1
        return result

    def update(self, optimizer: Any, gradients: Sequence[Any]) -> None:
        """The optimizer's step with these gradients, one per parameter, in the update program. All optimizers' steps
        are taken there together: each has Parameters of its own.
        """
        where, here = caller(self.scope_text()).place, self.when
        if self.loops:
            raise self.twice(
                "an optimizer's step in a loop on a tensor", "Take one step, and count the turns in Python"
            )
        if self.optimizers:
            self._check_another(optimizer)
        if here:
            gradients = self.only_here(optimizer, gradients)
        updates = []
        for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
            name, value = self._own_parameter(parameter), self.operand(gradient, [parameter])
            if value.name in (*self.parameters.values(), *self.assigns.values()):
                value = self._taken_late(value)  # a Parameter in which gradients of earlier steps are added up
            if value.name not in self.late or value.name in self.after:
                what, hint = f"{name!r} is updated with {value.name!r}", "Use value_and_grad in the same function"
                allowed = "A value made from gradients, or a Parameter, as they are before any optimizer's step"
                raise TraceError(what, where=where, allowed=allowed, hint=hint)
            if not parameter.requires_grad:
                continue  # frozen since the optimizer was made
            if value.shape != parameter.full_shape:
                allowed = f"Shape {parameter.full_shape}"
                raise ShapeError(f"the gradient of {name!r} has shape {value.shape}", where=where, allowed=allowed)
            if self.assigns.get(name) in self.late:
                what = f"{name!r} is trained, and given a value made from gradients"
                raise TraceError(what, where=where, allowed="One of both in a compiled function")
            updates.append((name, value.name))
            self.pinned.pop(id(parameter), None)
        if self.skip and not self.optimizers:
            updates.append((SKIP, self._taken_late(TracedValue(self.skip, (), "bool", self)).name))
        self.updates = (*self.updates, *updates)
        self.updated |= {name: "" for name, _ in updates if name != SKIP}
        self.optimizers, self.when = (*self.optimizers, optimizer), here

    def only_here(self, optimizer: Any, gradients: Sequence[Any]) -> list[TracedValue]:
        """Make of a step on one side of an `if` one outside, which is skipped where the side is not taken."""
        raise NotImplementedError

    def _check_another(self, optimizer: Any) -> None:
        """Raise NotBuiltYet for a second step of the same Parameters, and where only one of two may be skipped."""
        if self.when or (self.skip and not self.overflows):
            hint = "Give one optimizer groups of Parameters, with rates of their own"
            raise self.twice("a second optimizer's step, where one stands in an if", hint)
        if any(optimizer is one for one in self.optimizers):
            raise self.twice("a second step of the same optimizer", "Add up the gradients, and take one step")
        both = [p.name for p in optimizer.parameters if self._own_parameter(p) in self.updated]
        if both:
            hint = "Give each optimizer Parameters of its own"
            raise self.twice(f"a second optimizer's step for {both[0]!r}", hint)

    def _taken_late(self, value: TracedValue) -> TracedValue:
        """A value of the update program: of one of the forward program a copy."""
        return value if value.name in self.late else self.recorded_late(OPS["stop_gradient"], [value], {}, None)

    def recorded_late(self, op: OpDef, operands: Sequence[Any], attrs: dict[str, Any], primitive: Any) -> Any:
        """`record` in the update program, whatever is read."""
        self.in_update = True
        try:
            return self.record(op, operands, attrs, primitive)
        finally:
            self.in_update = False

    def unless(self, overflow: Any) -> Any:
        """The optimizer's step counts unless `overflow`, one number or bool, which is returned; before the step."""
        value = self.operand(overflow, [])
        value = OPS["reshape"](value, ()) if value.shape else value
        if self.optimizers:
            hint = "Look for an overflow in all gradients together"
            raise self.twice("what may skip an optimizer's step comes after one", hint)
        self.overflows = True
        self.skip = (value if value.dtype.kind == "b" else OPS["not_equal"](value, 0)).name
        return Overflow(value.name, (), str(value.dtype), self)

    def loss_scale(self, scaler: Any) -> TracedValue:
        """The scale of `scaler` in the step that runs, an input of the program: () float32."""
        if self.scaler is None:
            self.scaler, self.scale_name = scaler, self.named(LOSS_SCALE)
            scale = GraphInput(self.scale_name, "scalar", (), "float32", value=scaler.scale_value)
            self.inputs[self.scale_name] = scale
        elif self.scaler is not scaler:
            raise self.twice("a second loss scaler", "Scale with one, and give it to the optimizer")
        return TracedValue(self.scale_name, (), "float32", self)
