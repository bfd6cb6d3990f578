"""Tensors that know shape, dtype and layout and no numbers, and the messages that operators on them send.

    world = World()
    x = world.tensor((16, 32), layout=MeshLayout.coded(mesh, "S0 R"))
    w = world.tensor((32, 64), layout=MeshLayout.coded(mesh, "R S1"), requires_grad=True)
    world.backward(reduce_sum(matmul(x, w)))
    world.messages              what was sent, in order, each with the line that was read then and a reason

Operators are the declared ones: shapes from `infer`, what each operand must be like from the rules and the prices of
the policy, messages from the planner of redistributions, gradients from the operators' own rules, walked backwards. A
tensor without a layout lies on this rank alone (a rank's own slice, a batch): operators on it send nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.dtypes import as_dtype
from ...base.errors import LayoutError, ParallelLabError
from ...layout.mesh_layout import MeshLayout, Partial, Replicate, Shard, StridedShard
from ...layout.mesh_redistribution import MeshStep, redistribution
from ...layout.mesh_views import reshaped
from ...nn.tensor.arithmetic import Arithmetic
from ...nn.tensor.dtensor import dual
from ...ops.elementwise import add
from ...ops.machine.axis_rules import AxisRule, choose
from .reading import NotRead


@dataclass(frozen=True)
class Message:
    """What a rank sends.  axis: of the mesh; shape, dtype: of what rank 0 gives; line: of the program"""

    kind: str
    axis: str
    shape: tuple[int, ...]
    reduce: str
    dtype: str
    phase: str
    line: int
    reason: str

    @property
    def size_bytes(self) -> int:
        """Bytes that a rank gives."""
        return math.prod(self.shape) * as_dtype(self.dtype).itemsize

    def row(self) -> list[Any]:
        """[kind, axis, shape], and the reduction if it is not a sum, as recordings have it."""
        return [self.kind, self.axis, list(self.shape), *([self.reduce] if self.reduce not in ("", "sum") else [])]


@dataclass(frozen=True)
class Step:
    """Something that was computed or placed.  layouts: of operands and result; memory_bytes: of it, on rank 0"""

    what: str
    layouts: str
    memory_bytes: int
    phase: str
    line: int


class Sym(Arithmetic):
    """A tensor by shape, dtype and layout; `layout` None: a rank's own."""

    __slots__ = ("dtype", "grad", "layout", "line", "made_of", "node", "requires_grad", "sent", "shape", "world")

    def __init__(self, world: World, shape: Sequence[int], dtype: str, layout: MeshLayout | None) -> None:
        self.world, self.shape, self.dtype, self.layout = world, tuple(shape), np.dtype(as_dtype(dtype)), layout
        self.node: Any = None
        self.grad: Sym | None = None
        self.requires_grad, self.line = False, world.line
        self.made_of: tuple[Sym, ...] = ()
        self.sent: list[Message] = []

    def __parallel_lab_op__(self, op: Any, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        return self.world.apply(op, operands, attrs)

    def __bool__(self) -> bool:
        raise NotRead("a condition on a tensor's numbers")

    @property
    def local_shape(self) -> tuple[int, ...]:
        """What rank 0 holds of it."""
        return self.shape if self.layout is None else self.layout.local_shape(self.shape, self.layout.mesh.ranks[0])

    @property
    def size_bytes(self) -> int:
        """Bytes that rank 0 holds of it."""
        return math.prod(self.local_shape) * self.dtype.itemsize


@dataclass(eq=False)
class Node:
    """How a tensor was made.  rule: gradients of the results -> gradients of the operands"""

    name: str
    number: int
    operands: Sequence[Any]
    outs: list[Sym]
    rule: Callable[..., Sequence[Any]]
    line: int


class World:
    """What has happened so far in one program.

    policy      by which operators choose layouts (`axis_rules.POLICIES`)
    at_once     results are reduced at once, and a tensor that nobody placed lies wherever it is wanted (JAX's jit)
    """

    def __init__(self, policy: str = "torch", at_once: bool = False) -> None:
        self.policy, self.at_once, self.line, self.phase, self.reason = policy, at_once, 0, "forward", ""
        self.events: list[Message | Step] = []
        self.recording, self.count = True, 0
        self.planner: Callable[..., Iterable[MeshStep]] = redistribution

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        layout: MeshLayout | None = None,
        requires_grad: bool = False,
        made_of: Sequence[Sym] = (),
    ) -> Sym:
        """A tensor that no operator gave.  made_of: what must be there for it"""
        made = Sym(self, shape, dtype, layout if layout is None else layout.on(len(shape)))
        made.requires_grad, made.made_of = requires_grad, tuple(made_of)
        return made

    def placed(
        self, shape: Sequence[int], dtype: Any, layout: MeshLayout, what: str, requires_grad: bool = False
    ) -> Sym:
        """A tensor that the program puts somewhere, noted for the report."""
        return self.note(what, layout.code, self.tensor(shape, str(dtype), layout, requires_grad))

    def send(self, kind: str, axis: str, shape: Sequence[int], dtype: Any, reduce: str, reason: str) -> Message:
        """Note a message."""
        phase = self.phase
        message = Message(kind, axis, tuple(shape), reduce, str(dtype), phase, self.line, self.reason + reason)
        self.events.append(message)
        return message

    @property
    def messages(self) -> list[Message]:
        """What was sent, in order."""
        return [e for e in self.events if isinstance(e, Message)]

    def note(self, what: str, layouts: str, value: Sym) -> Sym:
        """Note what was computed or placed."""
        self.events.append(Step(what, layouts, value.size_bytes, self.phase, self.line))
        return value

    def moved(self, value: Sym, to: MeshLayout, reason: str) -> Sym:
        """The value in another layout, with the messages that this takes, outside the tape."""
        to = to.on(len(value.shape))
        assert value.layout is not None
        if value.layout == to:
            return value
        made = Sym(self, value.shape, str(value.dtype), to)
        made.made_of = (value,)
        pairs = zip(value.layout.placements, to.placements, strict=True)
        start = MeshLayout(to.mesh, tuple(q if p == Replicate() and q == Partial() else p for p, q in pairs))  # free
        for step in self.planner(start, to, value.shape):
            if step.communicates:
                shape = step.sent_shape(value.shape, to.mesh.ranks[0])
                made.sent.append(self.send(step.kind, step.name, shape, value.dtype, step.reduce, reason))
        return made

    def apply(self, op: Any, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """An operator on tensors and numbers: as on a DTensor, without its numbers."""
        syms = [x for x in operands if isinstance(x, Sym)]
        shapes = tuple([tuple(getattr(x, "shape", ())) for x in operands])
        dtypes = tuple([str(getattr(x, "dtype", syms[0].dtype)) for x in operands])
        results = op.infer(shapes, dtypes, attrs)
        laid = [x.layout for x in syms if x.layout is not None]
        outs: Sequence[MeshLayout | None] = [None] * len(results.shapes)
        sent: list[Message] = []
        chosen, moved = None, list(operands)
        if laid:
            if not self.at_once and any(x.layout is None and math.prod(x.shape) > 1 for x in syms):
                allowed, hint = "Distributed tensors together, or ranks' own ones", "distribute_tensor(...) first"
                raise LayoutError(
                    "a distributed and a rank's own tensor", where=op.class_name, allowed=allowed, hint=hint
                )
            whole = replicated(laid[0])
            layouts = tuple([x.layout or whole if isinstance(x, Sym) else None for x in operands])
            if op.view:
                outs = [reshaped(laid[0], syms[0].shape, results.shapes[0], op.class_name)]
            else:
                sizes = tuple([np.dtype(as_dtype(d)).itemsize for d in dtypes])
                chosen = choose(op, shapes, attrs, layouts, sizes, self.policy)
                outs = chosen.outs
                for i, (value, to) in enumerate(zip(operands, chosen.ins, strict=True)):
                    if isinstance(value, Sym) and value.layout is not None and to is not None:
                        moved[i] = self.moved(value, to, f"operand {i} of {op.name}")
                        sent += moved[i].sent if moved[i] is not value else []
        made = [
            Sym(self, shape, dtype, layout)
            for shape, dtype, layout in zip(results.shapes, results.dtypes, outs, strict=True)
        ]
        for each in made:
            each.made_of = tuple(x for x in moved if isinstance(x, Sym))
        if laid and self.phase == "forward":
            codes = ", ".join(x.layout.code for x in moved if isinstance(x, Sym) and x.layout is not None)
            self.note(op.name, f"{codes} -> {made[0].layout and made[0].layout.code}", made[0])
        if self.at_once:
            made = [x if x.layout is None else self.moved(x, dual(x.layout), f"result of {op.name}") for x in made]
        if op.vjp_fn is not None:
            self.keep(
                op.name, operands, made, lambda *grads: self._rule(op, grads, made, operands, attrs, chosen, results)
            )
        return results.form(made)

    def _rule(
        self,
        op: Any,
        grads: Sequence[Any],
        made: list[Sym],
        operands: Sequence[Any],
        attrs: Any,
        chosen: Any,
        results: Any,
    ) -> Sequence[Any]:
        """The gradients of an operator's operands: by its rule, or, where the rule needs numbers, as the axes say."""
        extra: dict[str, Any] = {"across": lambda value, reduce="sum": value} if op.vjp_across else {}
        extra |= {"total": lambda value: (value, 1)} if op.vjp_total else {}
        extra |= {"needs": tuple([getattr(x, "requires_grad", False) for x in operands])} if op.vjp_needs else {}
        g, out = (grads, tuple(made)) if results.several else (grads[0], made[0])
        noted = len(self.events)
        try:
            return op.vjp_fn(g, out, *operands, **({} if op.plain else attrs), **extra)
        except (TypeError, AttributeError, ValueError, NotRead, ParallelLabError):
            del self.events[noted:]
        sources = [x for x in (*grads, *operands) if isinstance(x, Sym)]
        if chosen is not None:
            pairs = zip(grads, chosen.outs, strict=True)
            sources += [self.moved(part, dual(to), "") for part, to in pairs if part is not None]
        found: list[Any] = [None] * len(operands)
        for i, x in enumerate(operands):
            if isinstance(x, Sym) and x.requires_grad:
                layout = None
                if chosen is not None:
                    sources.append(self.moved(x, chosen.ins[i], f"operand {i} of {op.name}"))
                    layout = MeshLayout(x.layout.mesh, tuple(_role(rule, i) for rule in chosen.rules))
                found[i] = self.tensor(x.shape, str(x.dtype), layout)
        for part in found:
            if part is not None:
                part.made_of = tuple(sources)
        return found

    def keep(self, name: str, operands: Sequence[Any], outs: list[Sym], rule: Callable[..., Sequence[Any]]) -> None:
        """Let the tape know how tensors were made, if a gradient may be asked for."""
        self.count += 1
        if self.recording and any(getattr(x, "requires_grad", False) for x in operands):
            node = Node(name, self.count, operands, outs, rule, self.line)
            for out in outs:
                if out.dtype.kind == "f" or str(out.dtype) == "bfloat16":
                    out.node, out.requires_grad = node, True

    def through(self, name: str, value: Sym, out: Sym, rule: Callable[[Sym], Sym | None]) -> Sym:
        """`out`, made of one value by something else than an operator, with its rule."""
        out.made_of = (value,)
        self.keep(name, [value], [out], lambda g: [rule(g)])
        return out

    @contextmanager
    def without_tape(self) -> Iterator[None]:
        """What is computed here has no gradient."""
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    # ---- what is asked for ----

    def redistribute(self, value: Sym, to: MeshLayout, reason: str = "asked for") -> Sym:
        """Another layout, with its gradient: back to the first one, what was pending being whole there."""
        if value.layout is None:
            raise LayoutError("a rank's own tensor", where="redistribute", allowed="A distributed tensor")
        before = value.layout
        out = self.moved(value, to, reason)
        if out is value:
            return value
        return self.through("redistribute", value, out, lambda g: self.moved(g, back(g, before), "of a redistribution"))

    def from_local(self, local: Sym, layout: MeshLayout, shape: Sequence[int] | None = None) -> Sym:
        """A distributed tensor of slices that ranks have."""
        layout = layout.on(len(local.shape))
        if shape is None:
            shape = list(local.shape)
            for size, placement in zip(layout.mesh.shape, layout.placements, strict=True):
                if hasattr(placement, "dim"):
                    shape[placement.dim] *= size
        out = self.tensor(shape, str(local.dtype), layout)
        return self.through(
            "from_local", local, out, lambda g: self.own(self.moved(g, back(g, layout, whole=True), "of from_local"))
        )

    def own(self, value: Sym) -> Sym:
        """This rank's slice, outside the tape."""
        if value.layout is None:
            return value
        made = self.tensor(value.local_shape, str(value.dtype))
        made.made_of = (value,)
        return made

    def to_local(self, value: Sym, grad_layout: MeshLayout | None = None) -> Sym:
        """This rank's slice, with its gradient."""
        if value.layout is None:
            return value
        before, shape = value.layout, value.shape

        def rule(g: Sym) -> Sym:
            return self.tensor(shape, str(g.dtype), grad_layout or back(g, before, whole=True))

        return self.through("to_local", value, self.own(value), rule)

    def full(self, value: Sym) -> Sym:
        """The whole tensor on every rank."""
        assert value.layout is not None
        return self.to_local(self.redistribute(value, replicated(value.layout), "the whole tensor is asked for"))

    # ---- gradients ----

    def backward(self, root: Sym, seed: Sym | None = None, wrt: Sequence[Sym] = ()) -> list[Sym | None]:
        """Walk the tape back from a tensor: leaves keep their gradients, those of `wrt` are returned."""
        if root.node is None:
            raise NotRead("a gradient of what depends on nothing that needs one")
        outer = (self.phase, self.line, self.reason)
        self.phase = "backward"
        if seed is None:
            seed = self.tensor(root.shape, str(root.dtype), root.layout and replicated(root.layout))
        totals: dict[int, Sym] = {id(root): seed}
        waiting: dict[int, Node] = {root.node.number: root.node}
        wanted = {id(w) for w in wrt}
        try:
            with self.without_tape():
                while waiting:
                    node = waiting.pop(max(waiting))
                    grads = [
                        totals.get(id(out)) if id(out) in wanted else totals.pop(id(out), None) for out in node.outs
                    ]
                    self.line, self.reason = node.line, f"gradient of {node.name}, "
                    if all(g is None for g in grads):
                        continue
                    for operand, part in zip(node.operands, node.rule(*grads), strict=False):
                        if part is None or not getattr(operand, "requires_grad", False):
                            continue
                        held = totals.get(id(operand))
                        totals[id(operand)] = part if held is None else add(held, part)
                        if operand.node is not None:
                            waiting[operand.node.number] = operand.node
                        elif id(operand) not in wanted and not wrt:
                            self.arrived(operand, totals.pop(id(operand)))
        finally:
            self.phase, self.line, self.reason = outer
        return [totals.get(id(w)) for w in wrt]

    def arrived(self, leaf: Sym, g: Sym) -> None:
        """A part of a leaf's gradient is there."""
        leaf.grad = g if leaf.grad is None else add(leaf.grad, g)


def replicated(layout: MeshLayout) -> MeshLayout:
    """Copies everywhere."""
    return MeshLayout(layout.mesh, (Replicate(),) * layout.mesh.ndim)


def back(g: Sym, before: MeshLayout, *, whole: bool = False) -> MeshLayout:
    """The layout that a gradient takes where the value had `before`: what was pending is whole, unless the gradient is
    pending along that axis too.
    """
    assert whole or g.layout is not None
    now = before.placements if whole or g.layout is None else g.layout.placements
    return MeshLayout(
        before.mesh,
        tuple(
            Replicate() if isinstance(p, Partial) and (whole or not isinstance(n, Partial)) else p
            for p, n in zip(before.placements, now, strict=True)
        ),
    )


def _role(rule: AxisRule, operand: int) -> Any:
    """What an axis does to the gradient of an operand: split alike, pending if a copy met what is split."""
    mine = rule.ins[operand]
    if isinstance(mine, (Shard, StridedShard)):
        return mine
    shared = any(not isinstance(p, Replicate) for p in (*rule.ins, *rule.outs) if p is not None)
    return Partial() if shared and not isinstance(mine, Partial) else Replicate()
