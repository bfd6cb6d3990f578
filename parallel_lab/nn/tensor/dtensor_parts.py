"""`Parts`: what ranks hold of a tensor over a mesh, moved and computed with. `DTensor` (`dtensor.py`) is made of it.

An operator chooses layouts for its operands (`ops/machine/axis_rules.py`), moves them there step by step
(`layout/mesh_redistribution.py`), and runs on each rank's part. In a notebook one process plays all ranks, and its
messages are answered as the simulator answers them; in a process that is a rank it plays that one, and its communicator
carries them: the same steps, the same bits. With worker processes the notebook has handles (`dtensor_calls.py`).
`dtensor_messages()` collects the messages, each with its reason.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np

from ...base.checks import fitting_class
from ...base.dtypes import plain_array, scalar_operand
from ...base.errors import LayoutError, LayoutTypeError, shorten
from ...base.hooks import current_world
from ...layout.device_mesh import DeviceMesh, SubMesh
from ...layout.mesh_layout import MeshLayout, Partial, Replicate, Shard, StridedShard
from ...layout.mesh_redistribution import MeshStep, redistribution
from ...layout.mesh_views import reshaped
from ...ops.collectives.definitions import MESSAGES, apart
from ...ops.kernels.threads import one_blas_thread
from ...ops.machine.axis_rules import Choice, choose, operands_in_order
from ...ops.machine.opdef import OPS, OpDef, dtype_name
from .dtensor_calls import Handle, on_ranks
from .dtensor_surroundings import (
    Hollow,
    Message as Message,
    Surroundings as Surroundings,
    TracedDTensor as TracedDTensor,
    dtensor_messages as dtensor_messages,
    dtensor_policy as dtensor_policy,
    hollow,
    hollow_var,
    implicit_replication as implicit_replication,
    implicit_var,
    node_var,
    note,
    place,
    planner_var,
    policy_var,
    recorder,
    recording_var,
    valueless,
    without_gradients as without_gradients,
    without_values as without_values,
)
from .tensor import Node, Tensor

Locals = dict[int, np.ndarray]  # rank -> its part
P = TypeVar("P", bound="Parts")


def played(mesh: DeviceMesh) -> tuple[int, ...]:
    """The ranks whose parts this process holds: its own, if it is one; else all."""
    world = current_world()
    if valueless() or recorder() is not None:
        return mesh.members[:1]
    if world is None:
        return mesh.members
    mesh.place(world.rank)  # LayoutError: not in this mesh
    return (world.rank,)


@fitting_class
class Parts(Tensor):
    """What the ranks that this process plays hold of a tensor.

    layout         MeshLayout: what each axis of the mesh does
    shape, dtype   of the whole tensor
    requires_grad  whether `backward` gives it a `grad`
    alone          whether each part is a rank's own, no part of one tensor
    """

    __slots__ = ("_dtype", "_grad", "_parts", "_shape", "_wanted", "layout")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        return object.__new__(cls)

    def __init__(self, parts: Locals, layout: MeshLayout, shape: Sequence[int], requires_grad: bool = False) -> None:
        if (tracer := recorder()) is not None:
            parts = tracer.declared(parts, None if self.alone else layout, tuple(shape))
        self._parts, self.layout, self._shape = parts, layout, tuple(shape)
        self._dtype = next(iter(parts.values())).dtype
        self.node: Node | None = None
        self._wanted, self._grad = requires_grad, None

    def contents(self) -> dict[str, Any]:
        """All that an operation in place, or `backward`, may change."""
        return {name: getattr(self, name) for name in ("_locals", "layout", "_dtype", "node", "_wanted", "_grad")}

    def set_contents(self, contents: dict[str, Any]) -> None:
        """Have what `contents` gave."""
        for name, value in contents.items():
            setattr(self, name, value)

    @on_ranks()
    def _gradient(self) -> Any:
        return self._grad

    @on_ranks(changes=True)
    def _set_gradient(self, value: Any) -> None:
        self._grad = value

    grad = property(_gradient, _set_gradient, doc="The gradient that `backward` gave it; None before.")

    def part_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the parts that this process, or its workers, hold."""
        parts = self._locals
        return list(parts.shapes.values()) if isinstance(parts, Handle) else [part.shape for part in parts.values()]

    @property
    def _locals(self) -> Locals:
        tracer = recorder()
        return self._parts if tracer is None else tracer.parts_of(self)

    @_locals.setter
    def _locals(self, parts: Locals) -> None:
        tracer = recorder()
        if tracer is None or not tracer.written(self, parts):
            self._parts = parts

    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self._dtype)
    requires_grad = property(lambda self: (self.node is not None or self._wanted) and recording_var.get())
    mesh = property(lambda self: self.layout.mesh, doc="The DeviceMesh.")
    device_mesh = mesh
    placements = property(lambda self: self.layout.placements, doc="What each axis of the mesh does, from the left.")

    alone = False
    answers = True

    def like(self, parts: Locals, layout: MeshLayout, shape: Sequence[int]) -> Self:
        """A tensor of the same class, of other parts."""
        return type(self)(parts, layout, shape)

    @property
    def array(self) -> np.ndarray:
        """Refused: ranks hold parts. Raises LayoutTypeError."""
        hint = "x.full_tensor() for all of it, x.to_local() for a rank's part; or distribute_tensor(the other one)"
        given = f"a DTensor {self.layout} where a Tensor is wanted"
        raise LayoutTypeError(given, where="DTensor", allowed="DTensors together, or Tensors together", hint=hint)

    _data = array  # type: ignore[assignment]

    @on_ranks()
    def full_tensor(self) -> Tensor:
        """The whole value, on every rank: pending parts are reduced, pieces gathered. A Tensor without a gradient."""
        whole = list(move(self, replicated(self.mesh), "full_tensor")._locals.values())
        if isinstance(self.mesh, SubMesh) and any(not np.array_equal(part, whole[0]) for part in whole):
            hint = "Along the other axes each group has its own value: x.local(rank)"
            raise LayoutTypeError(f"values that differ, over {self.mesh}", where="full_tensor", hint=hint)
        return Tensor(whole[0])

    def asnumpy(self) -> np.ndarray:
        """The whole value as an array: `full_tensor`."""
        return self.full_tensor().asnumpy()

    full = full_tensor

    @on_ranks(at=lambda self, rank: rank)
    def local(self, rank: int) -> np.ndarray:
        """The part of a rank that this process plays. Raises LayoutError for another."""
        if rank not in self._locals:
            raise LayoutError(f"rank {shorten(rank)}", where="DTensor", allowed=f"One of {shorten(list(self._locals))}")
        return self._locals[rank]

    @on_ranks()
    def detach(self) -> Self:
        """The same parts without a gradient."""
        return self.like(self._locals, self.layout, self.shape)

    @on_ranks(changes=True)
    def requires_grad_(self, wanted: bool = True) -> Self:
        """Ask `backward` for a `grad`, from now on. Returns self."""
        self._wanted = wanted
        return self

    def item(self) -> Any:
        return self.full_tensor().item()

    def tolist(self) -> Any:
        return self.full_tensor().tolist()

    def _single(self, what: str) -> Any:
        return self.full_tensor()._single(what)

    def __repr__(self) -> str:
        where = f"placements={self.layout}, {self.mesh}"
        return f"DTensor(shape={list(self.shape)}, dtype={self.dtype}, {where})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._locals, self.layout, self._shape)

    def __parallel_lab_plain__(self, op: OpDef, operands: tuple[Any, ...]) -> Any:
        return NotImplemented

    @on_ranks()
    def __parallel_lab_op__(self, op: OpDef, operands: list[Any], attrs: dict[str, Any]) -> Any:
        """Run `op` on the parts, and remember it if a gradient may be asked for."""
        tensors = [_operand(op, i, x, self.mesh, type(self)) for i, x in enumerate(operands)]
        results, chosen = run(op, tensors, attrs)
        if op.vjp_fn is not None and any(isinstance(x, Parts) and x.requires_grad for x in tensors):
            kept = tuple(x if isinstance(x, Parts) else Tensor(scalar_operand(x, tensors)) for x in tensors)
            node = Node(op, kept, attrs)
            node.arrays = [chosen]
            for number, result in enumerate(results):
                result.node = node if len(results) == 1 else sibling(node, results, number)
        return tuple(results) if op.infer(*types_of(tensors), attrs).several else results[0]


def replicated(mesh: DeviceMesh) -> MeshLayout:
    """Copies along every axis."""
    return MeshLayout(mesh, (Replicate(),) * mesh.ndim)


def dual(layout: MeshLayout) -> MeshLayout:
    """The layout of the gradient of what lies so: split alike, and copies where it is pending or copied."""
    placements = (Replicate() if isinstance(p, Partial) else p for p in layout.placements)
    return MeshLayout(layout.mesh, tuple(placements))


def homeward(layout: MeshLayout, gradient: MeshLayout) -> MeshLayout:
    """How the gradient of what was laid out otherwise lies: as it lay before; copies where only that was pending."""
    pairs = zip(layout.placements, dual(layout).placements, gradient.placements, strict=True)
    return MeshLayout(layout.mesh, tuple(mine if mine == its else plain for mine, plain, its in pairs))


def as_part(value: Any, others: Sequence[Any] = ()) -> np.ndarray:
    """A value as an array; a number in the dtype that it takes among `others`."""
    if isinstance(value, (bool, int, float)):
        return scalar_operand(value, others)
    if hasattr(value, "tracer") or isinstance(value, Hollow):  # which knows what it was made of
        return value
    return plain_array(value.asnumpy() if isinstance(value, Tensor) else value, where="DTensor")


def _operand(op: OpDef, position: int, value: Any, mesh: DeviceMesh, kind: Any) -> Any:
    """An operand as a DTensor, or a plain number. Raises LayoutTypeError for a Tensor among DTensors."""
    if getattr(value, "alone", False) and implicit_var.get():
        return kind.from_local(value, mesh)
    if getattr(value, "alone", False) and value.size > 1:
        hint = "DTensor.from_local(parts, mesh, placements)"
        raise LayoutTypeError(
            f"operand {position}: ranks' own parts", where=op.class_name, allowed="DTensors", hint=hint
        )
    if getattr(value, "alone", False):  # of one element: PyTorch takes it for a copy
        return kind(value._locals, replicated(mesh), value.shape)
    if isinstance(value, (Parts, bool, int, float)):
        return value
    if value is None:
        return None
    array = as_part(value)
    if array.size == 1 or implicit_var.get():  # PyTorch: tensors of one element are taken for copies
        return kind(dict.fromkeys(played(mesh), array), replicated(mesh), array.shape)
    what = f"operand {position} is a Tensor of shape {array.shape} among DTensors"
    hint = "distribute_tensor(value, mesh, placements), or `with implicit_replication():`"
    raise LayoutTypeError(what, where=op.class_name, allowed="DTensors", hint=hint)


def types_of(tensors: Sequence[Any]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Shapes and dtypes of operands, numbers among them."""
    kinds = [x if hasattr(x, "dtype") else scalar_operand(x, tensors) for x in tensors]
    return tuple([tuple(x.shape) for x in kinds]), tuple([dtype_name(x.dtype) for x in kinds])


def sibling(node: Node, results: Sequence[Parts], number: int) -> Node:
    """The node of one of several results."""
    own = copy.copy(node)
    own.siblings, own.hooks = (tuple(results), number), []
    return own


# ---- moving ----


@on_ranks()
def move(x: P, to: MeshLayout, reason: str, implicit: bool = True) -> P:
    """`x` in the layout `to`; x itself if it lies so.  implicit: for an operator, which may take copies for addends."""
    if x.layout == to:
        return x
    policy = policy_var.get()
    planner = planner_var.get() or (policy if policy in ("torch", "gspmd") else "cheapest")
    parts, where = x._locals, place() if current_world() is not None else ""
    for step in redistribution(x.layout, to, x.shape, planner, copies_as_addends=implicit):
        parts = take(step, x.shape, parts, reason, where)
    return x.like(parts, to, x.shape)


def take(step: MeshStep, shape: tuple[int, ...], parts: Locals, reason: str, where: str) -> Locals:
    """A step of a redistribution, on the parts of the ranks that this process plays."""
    if valueless():
        return {rank: _hollow_step(step, shape, rank, part, reason) for rank, part in parts.items()}
    if (tracer := recorder()) is not None:
        return tracer.take(step, shape, parts, reason)
    if not step.communicates:
        return {rank: step.received(shape, rank, part) for rank, part in parts.items()}
    sent = {rank: step.sent(shape, rank, part) for rank, part in parts.items()}
    note(
        step.kind, step.name, step.reduce, next(iter(sent.values())), f"{reason}: {step.source.code} -> {step.to.code}"
    )
    replies = exchanged(step.kind, sent, step.group, step.attrs(len(shape)), f"{reason} {where}")
    return {rank: step.received(shape, rank, reply) for rank, reply in replies.items()}


def _hollow_step(step: MeshStep, shape: tuple[int, ...], rank: int, part: np.ndarray, reason: str) -> Hollow:
    sent: tuple[Message, ...] = ()
    if step.communicates:
        given = hollow(step.sent_shape(shape, rank), part.dtype)
        sent = note(step.kind, step.name, step.reduce, given, f"{reason}: {step.source.code} -> {step.to.code}")
    return hollow(step.after.local_shape(shape, rank), part.dtype, (part,), sent)


def exchanged(
    kind: str, sent: Locals, group: Callable[[int], tuple[int, ...]], attrs: dict[str, Any], tag: str
) -> Locals:
    """The replies to what the ranks that this process plays have sent, each in its group."""
    world = current_world()
    if world is not None:
        return {r: world.comm.start(kind, x, group(r), tag=tag, **attrs).wait() for r, x in sent.items()}
    fields = {"reduce": "sum", "dim": 0, "split_dim": 0, "concat_dim": 0, **attrs}
    answer, replies = MESSAGES[kind].answer, Locals()
    assert answer is not None
    for rank in sent:  # as the simulator answers
        if rank not in replies:
            members = group(rank)
            found = answer([sent[member] for member in members], fields)
            replies.update(zip(members, apart(found, [None] * len(found)), strict=True))
    return replies


# ---- running ----


def run(op: OpDef, tensors: Sequence[Any], attrs: dict[str, Any]) -> tuple[list[Parts], Choice | None]:
    """(results, how it ran) of an operator on DTensors and numbers."""
    shapes, dtypes = types_of(tensors)
    inferred = op.infer(shapes, dtypes, attrs)
    if attrs.get("transpose_a") or attrs.get("transpose_b"):  # as PyTorch, whose products take transposed views
        names = ("a", "b", *tensors[2:]) if op.variadic else op.tensors
        turned = [_turned(x) if attrs.get(f"transpose_{name}") else x for name, x in zip(names, tensors, strict=True)]
        return run(op, turned, attrs | {name: False for name in attrs if name.startswith("transpose_")})
    if op.view:
        (x,) = tensors
        (new,) = inferred.shapes
        try:
            layout = reshaped(x.layout, x.shape, new, op.class_name)
        except LayoutError:
            if node_var.get() is None:
                raise
            x = move(x, replicated(x.mesh), f"operand 0 of {op.class_name}")  # nobody redistributes a gradient first
            layout = x.layout
        if policy_var.get() == "gspmd" and any(isinstance(p, StridedShard) for p in layout.placements):
            raise LayoutError(f"{x.layout} to {layout}", where=op.class_name, allowed="What XLA is known to do")
        parts = {rank: part.reshape(layout.local_shape(new, rank)) for rank, part in x._locals.items()}
        results = [x.like(parts, layout, new)]
        if (told := hollow_var.get()) is not None:
            told(op, [x], results)
        return results, None
    itemsizes = tuple(np.dtype(d).itemsize for d in dtypes)
    layouts = tuple(x.layout if isinstance(x, Parts) else None for x in tensors)
    chosen = choose(op, shapes, attrs, layouts, itemsizes, policy_var.get())
    moved = list(tensors)
    for i in operands_in_order(op, len(moved)):
        if (to := chosen.ins[i]) is not None:
            moved[i] = move(moved[i], to, f"operand {i} of {op.class_name}")
    if (told := hollow_var.get()) is None:
        results = computed(op, moved, attrs, chosen, shapes, inferred.shapes)
    else:
        first = next(x for x in moved if isinstance(x, Parts))
        results = [
            first.like(hollow_parts(moved, to.local_shape(shape, next(iter(first._locals))), dtype), to, shape)
            for shape, dtype, to in zip(inferred.shapes, inferred.dtypes, chosen.outs, strict=True)
        ]
        told(op, moved, results)
    if policy_var.get() in ("reduce_at_once", "gspmd"):
        results = [_reduced(x, chosen, f"result of {op.class_name}") for x in results]
    return results, chosen


def _reduced(x: Parts, chosen: Choice, reason: str) -> Parts:
    """What is pending is reduced at once; JAX's compiler sends a message for each label whose split left it so."""
    pairs = zip(x.placements, chosen.rules, strict=True)
    labels = dict.fromkeys(rule.label for p, rule in pairs if isinstance(p, Partial))
    if policy_var.get() == "gspmd" and len(labels) > 1:
        redistribution(x.layout, dual(x.layout), x.shape, "gspmd")  # LayoutError: not known
        token = planner_var.set("torch")
        try:
            for label in labels:
                pairs = zip(x.placements, chosen.rules, strict=True)
                to = [Replicate() if isinstance(p, Partial) and rule.label == label else p for p, rule in pairs]
                x = move(x, MeshLayout(x.mesh, tuple(to)), f"{reason}, label {label}")
        finally:
            planner_var.reset(token)
    return move(x, dual(x.layout), reason)


def hollow_parts(operands: Sequence[Any], shape: Sequence[int], dtype: Any) -> Locals:
    """The part of a result of these operands, without values."""
    parts = [part for x in operands if isinstance(x, Parts) for part in x._locals.values()]
    return {next(rank for x in operands if isinstance(x, Parts) for rank in x._locals): hollow(shape, dtype, parts)}


def _turned(x: P) -> P:
    """The last two dims of a DTensor exchanged, by the operator that a plan has there, too: equal bits."""
    if x.ndim < 2:
        return x
    last = {x.ndim - 1: x.ndim - 2, x.ndim - 2: x.ndim - 1}
    placements = [
        replace(p, dim=last.get(p.dim, p.dim)) if isinstance(p, (Shard, StridedShard)) else p for p in x.placements
    ]
    perm = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    parts = x._locals
    if valueless():
        parts = {rank: part.swapaxes(-1, -2) for rank, part in parts.items()}
    else:
        parts = {rank: on_part(OPS["transpose"], [part], {"perm": perm}) for rank, part in parts.items()}
    return x.like(parts, MeshLayout(x.mesh, tuple(placements)), (*x.shape[:-2], x.shape[-1], x.shape[-2]))


def computed(
    op: OpDef, moved: Sequence[Any], attrs: dict[str, Any], chosen: Choice, shapes: Any, result_shapes: Any
) -> list[Parts]:
    """The results of an operator on operands that lie as chosen."""
    local_attrs, place = local_call(op, attrs, chosen, shapes, result_shapes)
    parts: list[Locals] = [{} for _ in result_shapes]
    first = next(x for x in moved if isinstance(x, Parts))
    with as_a_rank(moved, result_shapes):
        for rank in first._locals:
            arrays = [x._locals[rank] if isinstance(x, Parts) else as_part(x, moved) for x in moved]
            made = on_part(op, arrays, {**local_attrs, **place(rank)})
            for kept, part in zip(parts, made if isinstance(made, tuple) else (made,), strict=True):
                kept[rank] = part
    return [first.like(p, layout, shape) for p, layout, shape in zip(parts, chosen.outs, result_shapes, strict=True)]


def as_a_rank(operands: Sequence[Any], result_shapes: Sequence[tuple[int, ...]]) -> Any:
    """Inside, this process computes as a rank does: see `one_blas_thread`. A rank does anyhow."""
    if current_world() is not None:
        return nullcontext()
    return one_blas_thread(*(math.prod(getattr(x, "shape", ())) for x in operands), *map(math.prod, result_shapes))


def on_part(op: OpDef, arrays: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """An operator on a rank's parts."""
    tracer = recorder()
    return op.attempt(arrays, attrs) if tracer is None else tracer.on_part(op, arrays, attrs)


def offset_needed(op: OpDef, attrs: dict[str, Any], chosen: Choice, shapes: Any) -> bool:
    """Whether a rank's computation needs to know where its part begins."""
    if op.offset is None or op.result_shape is not None:
        return False
    return any(chosen.axes_of(label) for label in op.offset_labels(op.signature_for(shapes, attrs)))


def begins(layout: MeshLayout, shape: tuple[int, ...], dim: int, rank: int) -> Any:
    """Where a rank's part of a dim begins; in a program that is compiled the mesh, and the axes that split it."""
    if recorder() is not None:
        return layout.mesh, layout.dims(len(shape))[dim]
    return int(layout.slices(shape, rank)[dim][0])


def local_call(
    op: OpDef, attrs: dict[str, Any], chosen: Choice, shapes: Any, result_shapes: Any
) -> tuple[dict[str, Any], Callable[[int], dict[str, Any]]]:
    """(attributes for one part, the offsets of a rank's part) where the computation needs them."""
    if op.result_shape is not None and "shape" in attrs:  # that of the result
        return attrs, lambda rank: {"shape": chosen.outs[0].local_shape(result_shapes[0], rank)}
    if op.result_shape is not None or not (op.localize or op.offset):
        return attrs, lambda rank: {}
    signature, mesh = op.signature_for(shapes, attrs), chosen.outs[0].mesh
    cuts = {c: int(np.prod([mesh.shape[a] for a in chosen.axes_of(c)])) for c in signature.labels}
    local = op.localize(attrs, cuts) if op.localize is not None else attrs
    if not offset_needed(op, attrs, chosen, shapes):
        return local, lambda rank: {}
    labels = op.offset_labels(signature)
    lies: list[tuple[MeshLayout, Any, int]] = []
    sides = [
        *zip(signature.ins, chosen.ins, shapes, strict=True),
        *zip(signature.outs, chosen.outs, result_shapes, strict=True),
    ]
    for label in labels:
        lies.append(next((to, shape, c.index(label)) for c, to, shape in sides if to is not None and label in c))

    def place(rank: int) -> dict[str, Any]:
        starts = tuple(begins(to, shape, dim, rank) for to, shape, dim in lies)
        return {"offset": starts if len(starts) > 1 else starts[0]}

    return local, place
