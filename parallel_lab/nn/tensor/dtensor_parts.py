"""`Parts`: what ranks hold of a tensor over a mesh, moved and computed with. `DTensor` (`dtensor.py`) is made of it.

An operator chooses layouts for its operands (`ops/machine/axis_rules.py`), moves them there step by step
(`layout/mesh_redistribution.py`), and runs on each rank's part. In a notebook one process plays all ranks, and its
messages are answered as the simulator answers them; in a process that is a rank it plays that one, and its communicator
carries them: the same steps, the same bits. `dtensor_messages()` collects the messages, each with its reason.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from ...base.checks import choice
from ...base.dtypes import plain_array, scalar_operand
from ...base.errors import LayoutError, LayoutTypeError, shorten
from ...base.hooks import current_world
from ...base.origin import caller
from ...layout.device_mesh import DeviceMesh, SubMesh
from ...layout.mesh_layout import MeshLayout, Partial, Replicate, Shard, StridedShard
from ...layout.mesh_redistribution import MeshStep, redistribution
from ...layout.mesh_views import reshaped
from ...ops.collectives.definitions import MESSAGES
from ...ops.machine.axis_rules import POLICIES, Choice, choose
from ...ops.machine.opdef import OpDef, dtype_name
from .tensor import Node, Tensor

Locals = dict[int, np.ndarray]  # rank -> its part
P = TypeVar("P", bound="Parts")
_policy: ContextVar[str] = ContextVar("parallel_lab_dtensor_policy", default="torch")
_implicit: ContextVar[bool] = ContextVar("parallel_lab_implicit_replication", default=False)
_log: ContextVar[list[Message] | None] = ContextVar("parallel_lab_dtensor_messages", default=None)


@dataclass(frozen=True)
class Message:
    """A message that every rank of the mesh took part in.

    kind        all_gather, all_to_all, all_reduce or reduce_scatter;  axis: of the mesh;  reduce: of the last two
    shape, dtype, size_bytes  of what a rank handed over
    reason      "operand 1 of MatMul: S0 -> R", "redistribute", "gradient of ..."
    where       the learner's line
    """

    kind: str
    axis: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    reduce: str
    reason: str
    where: str

    def __str__(self) -> str:
        reduce = f" ({self.reduce})" if self.reduce not in ("", "sum") else ""
        return f"{self.kind}{reduce} over {self.axis}: {self.shape}, {self.size_bytes} bytes; {self.reason}"


@contextmanager
def dtensor_messages() -> Iterator[list[Message]]:
    """Collect the messages of what runs inside.

    with dtensor_messages() as sent:
        y = x @ w
    print(*sent, sep="\\n")
    """
    noted: list[Message] = []
    token = _log.set(noted)
    try:
        yield noted
    finally:
        _log.reset(token)


@contextmanager
def dtensor_policy(name: str) -> Iterator[None]:
    """How operators inside choose layouts.

    "torch": by PyTorch's prices, its planner;  "cheapest": fewest bytes;  "explicit": no message that was not asked for
    (HyperParallel, JAX with explicit axes);  "reduce_at_once": as "cheapest", and no result stays pending (MindSpore)
    """
    token = _policy.set(choice(*POLICIES)("dtensor_policy", "name", name))
    try:
        yield
    finally:
        _policy.reset(token)


@contextmanager
def implicit_replication() -> Iterator[None]:
    """Inside, a Tensor or an array that meets a DTensor is taken for a copy that every rank holds."""
    token = _implicit.set(True)
    try:
        yield
    finally:
        _implicit.reset(token)


def played(mesh: DeviceMesh) -> tuple[int, ...]:
    """The ranks whose parts this process holds: its own, if it is one; else all."""
    world = current_world()
    if world is None:
        return mesh.members
    mesh.place(world.rank)  # LayoutError: not in this mesh
    return (world.rank,)


class Parts(Tensor):
    """What the ranks that this process plays hold of a tensor.

    layout         MeshLayout: what each axis of the mesh does
    shape, dtype   of the whole tensor
    requires_grad  whether `backward` gives it a `grad`
    alone          whether each part is a rank's own, no part of one tensor
    """

    __slots__ = ("_dtype", "_locals", "_shape", "_wanted", "grad", "layout")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        return object.__new__(cls)

    def __init__(self, parts: Locals, layout: MeshLayout, shape: Sequence[int], requires_grad: bool = False) -> None:
        self._locals, self.layout, self._shape = parts, layout, tuple(shape)
        self._dtype = next(iter(parts.values())).dtype
        self.node: Node | None = None
        self._wanted, self.grad = requires_grad, None

    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self._dtype)
    requires_grad = property(lambda self: self.node is not None or self._wanted)
    mesh = property(lambda self: self.layout.mesh, doc="The DeviceMesh.")
    device_mesh = mesh
    placements = property(lambda self: self.layout.placements, doc="What each axis of the mesh does, from the left.")

    alone = False

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

    def local(self, rank: int) -> np.ndarray:
        """The part of a rank that this process plays. Raises LayoutError for another."""
        if rank not in self._locals:
            raise LayoutError(f"rank {shorten(rank)}", where="DTensor", allowed=f"One of {shorten(list(self._locals))}")
        return self._locals[rank]

    def detach(self) -> Self:
        """The same parts without a gradient."""
        return self.like(self._locals, self.layout, self.shape)

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

    def __parallel_lab_op__(self, op: OpDef, operands: list[Any], attrs: dict[str, Any]) -> Any:
        """Run `op` on the parts, and remember it if a gradient may be asked for."""
        tensors = [_operand(op, i, x, self.mesh, type(self)) for i, x in enumerate(operands)]
        results, chosen = run(op, tensors, attrs)
        if op.vjp_fn is not None and any(isinstance(x, Parts) and x.requires_grad for x in tensors):
            kept = tuple(x if isinstance(x, Parts) else Tensor(scalar_operand(x, tensors)) for x in tensors)
            node = Node(op, kept, attrs)
            node.arrays = [chosen]  # type: ignore[list-item]
            for number, result in enumerate(results):
                result.node = node if len(results) == 1 else sibling(node, results, number)
        return tuple(results) if op.infer(*_types(tensors), attrs).several else results[0]


def replicated(mesh: DeviceMesh) -> MeshLayout:
    """Copies along every axis."""
    return MeshLayout(mesh, (Replicate(),) * mesh.ndim)


def dual(layout: MeshLayout) -> MeshLayout:
    """The layout of the gradient of what lies so: split alike, and copies where it is pending or copied."""
    placements = (Replicate() if isinstance(p, Partial) else p for p in layout.placements)
    return MeshLayout(layout.mesh, tuple(placements))


def as_part(value: Any, others: Sequence[Any] = ()) -> np.ndarray:
    """A value as an array; a number in the dtype that it takes among `others`."""
    if isinstance(value, (bool, int, float)):
        return scalar_operand(value, others)
    return plain_array(value.asnumpy() if isinstance(value, Tensor) else value, where="DTensor")


def _operand(op: OpDef, position: int, value: Any, mesh: DeviceMesh, kind: type[Parts]) -> Any:
    """An operand as a DTensor, or a plain number. Raises LayoutTypeError for a Tensor among DTensors."""
    if getattr(value, "alone", False):
        hint = "DTensor.from_local(parts, mesh, placements)"
        raise LayoutTypeError(
            f"operand {position}: ranks' own parts", where=op.class_name, allowed="DTensors", hint=hint
        )
    if isinstance(value, (Parts, bool, int, float)):
        return value
    if value is None:
        return None
    array = as_part(value)
    if array.size == 1 or _implicit.get():  # PyTorch: tensors of one element are taken for copies
        return kind(dict.fromkeys(played(mesh), array), replicated(mesh), array.shape)
    what = f"operand {position} is a Tensor of shape {array.shape} among DTensors"
    hint = "distribute_tensor(value, mesh, placements), or `with implicit_replication():`"
    raise LayoutTypeError(what, where=op.class_name, allowed="DTensors", hint=hint)


def _types(tensors: Sequence[Any]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    kinds = [x if isinstance(x, Parts) else scalar_operand(x, tensors) for x in tensors]
    return tuple([tuple(x.shape) for x in kinds]), tuple([dtype_name(x.dtype) for x in kinds])


def sibling(node: Node, results: Sequence[Parts], number: int) -> Node:
    """The node of one of several results."""
    own = copy.copy(node)
    own.siblings, own.hooks = (tuple(results), number), []  # type: ignore[assignment]
    return own


# ---- moving ----


def note(kind: str, axis: str, reduce: str, sent: np.ndarray, reason: str) -> None:
    """Enter a message into the log of the `messages()` around."""
    log = _log.get()
    if log is not None:
        log.append(Message(kind, axis, sent.shape, str(sent.dtype), sent.nbytes, reduce, reason, caller().place))


def messages_noted(keep: int | None = None) -> int:
    """How many messages the log has.  keep: forget those after so many, of an attempt that came to nothing."""
    log = _log.get()
    if log is None:
        return 0
    if keep is not None:
        del log[keep:]
    return len(log)


def move(x: P, to: MeshLayout, reason: str, implicit: bool = True) -> P:
    """`x` in the layout `to`; x itself if it lies so.  implicit: for an operator, which may take copies for addends."""
    if x.layout == to:
        return x
    planner = "torch" if _policy.get() == "torch" else "cheapest"
    parts, where = x._locals, caller().place if _log.get() is None else ""
    for step in redistribution(x.layout, to, x.shape, planner, copies_as_addends=implicit):
        parts = take(step, x.shape, parts, reason, where)
    return x.like(parts, to, x.shape)


def take(step: MeshStep, shape: tuple[int, ...], parts: Locals, reason: str, where: str) -> Locals:
    """A step of a redistribution, on the parts of the ranks that this process plays."""
    if not step.communicates:
        return {rank: step.received(shape, rank, part) for rank, part in parts.items()}
    sent = {rank: step.sent(shape, rank, part) for rank, part in parts.items()}
    note(
        step.kind, step.name, step.reduce, next(iter(sent.values())), f"{reason}: {step.source.code} -> {step.to.code}"
    )
    replies = exchanged(step.kind, sent, step.group, step.attrs(len(shape)), f"{reason} {where}")
    return {rank: step.received(shape, rank, reply) for rank, reply in replies.items()}


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
            replies.update(zip(members, answer([sent[member] for member in members], fields), strict=True))
    return replies


# ---- running ----


def run(op: OpDef, tensors: Sequence[Any], attrs: dict[str, Any]) -> tuple[list[Parts], Choice | None]:
    """(results, how it ran) of an operator on DTensors and numbers."""
    shapes, dtypes = _types(tensors)
    inferred = op.infer(shapes, dtypes, attrs)
    if attrs.get("transpose_a") or attrs.get("transpose_b"):  # as PyTorch, whose products take transposed views
        turned = [
            _turned(x) if attrs[name] else x for x, name in zip(tensors, ("transpose_a", "transpose_b"), strict=True)
        ]
        return run(op, turned, attrs | {"transpose_a": False, "transpose_b": False})
    if op.view:
        (x,) = tensors
        (new,) = inferred.shapes
        layout = reshaped(x.layout, x.shape, new, op.class_name)
        parts = {rank: part.reshape(layout.local_shape(new, rank)) for rank, part in x._locals.items()}
        return [x.like(parts, layout, new)], None
    itemsizes = tuple(np.dtype(d).itemsize for d in dtypes)
    layouts = tuple(x.layout if isinstance(x, Parts) else None for x in tensors)
    chosen = choose(op, shapes, attrs, layouts, itemsizes, _policy.get())
    moved = []
    for i, (x, to) in enumerate(zip(tensors, chosen.ins, strict=True)):
        moved.append(x if to is None else move(x, to, f"operand {i} of {op.class_name}"))
    results = computed(op, moved, attrs, chosen, shapes, inferred.shapes)
    if _policy.get() == "reduce_at_once":
        results = [move(x, dual(x.layout), f"result of {op.class_name}") for x in results]
    return results, chosen


def _turned(x: P) -> P:
    """The last two dims of a DTensor exchanged, as a view of every part."""
    if x.ndim < 2:
        return x
    last = {x.ndim - 1: x.ndim - 2, x.ndim - 2: x.ndim - 1}
    placements = [
        replace(p, dim=last.get(p.dim, p.dim)) if isinstance(p, (Shard, StridedShard)) else p for p in x.placements
    ]
    parts = {rank: part.swapaxes(-1, -2) for rank, part in x._locals.items()}
    return x.like(parts, MeshLayout(x.mesh, tuple(placements)), (*x.shape[:-2], x.shape[-1], x.shape[-2]))


def computed(
    op: OpDef, moved: Sequence[Any], attrs: dict[str, Any], chosen: Choice, shapes: Any, result_shapes: Any
) -> list[Parts]:
    """The results of an operator on operands that lie as chosen."""
    local_attrs, place = local_call(op, attrs, chosen, shapes, result_shapes)
    parts: list[Locals] = [{} for _ in result_shapes]
    first = next(x for x in moved if isinstance(x, Parts))
    for rank in first._locals:
        arrays = [x._locals[rank] if isinstance(x, Parts) else as_part(x, moved) for x in moved]
        made = op.attempt(arrays, {**local_attrs, **place(rank)})
        for kept, part in zip(parts, made if isinstance(made, tuple) else (made,), strict=True):
            kept[rank] = part
    return [first.like(p, layout, shape) for p, layout, shape in zip(parts, chosen.outs, result_shapes, strict=True)]


def offset_needed(op: OpDef, attrs: dict[str, Any], chosen: Choice, shapes: Any) -> bool:
    """Whether a rank's computation needs to know where its part begins."""
    if op.offset is None or op.result_shape is not None:
        return False
    return any(chosen.axes_of(label) for label in op.offset_labels(op.signature_for(shapes, attrs)))


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
        starts = tuple(int(to.slices(shape, rank)[dim][0]) for to, shape, dim in lies)
        return {"offset": starts if len(starts) > 1 else starts[0]}

    return local, place
