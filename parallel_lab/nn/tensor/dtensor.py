"""`DTensor`: a tensor over a mesh of ranks that computes at once. It is one value; every rank holds a part.

    mesh = DeviceMesh((2, 4), ("dp", "tp"))
    x = distribute_tensor(array, mesh, [Shard(0), Replicate()])
    y = x @ w                                  rows split by dp; w's columns by tp
    y.placements, y.full_tensor()

How operators run, on which ranks, and with which messages: `dtensor_parts.py`; gradients: `dtensor_gradients.py`.

A part that is pending is never read as the whole: `float(y)` and `full_tensor()` reduce it. Words and rules: PyTorch
2.14, torch.distributed.tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...base.checks import fitting_class
from ...base.errors import ArgumentTypeError, LayoutError, LayoutTypeError, NotBuiltYet
from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import AxisPlacement, MeshLayout, Partial, Replicate, Shard, StridedShard
from ...ops.kernels.threads import one_blas_thread
from ...ops.machine.axis_rules import choose
from ...ops.machine.opdef import OPS, OpDef
from .dtensor_calls import on_ranks
from .dtensor_formulas import FLAT, MADE_OF, as_pytorch
from .dtensor_gradients import filled, gradients_of, run_backward
from .dtensor_parts import (
    Locals,
    Parts,
    as_part,
    dtensor_messages as dtensor_messages,
    dtensor_policy as dtensor_policy,
    dual,
    hollow,
    hollow_parts,
    homeward,
    implicit_replication as implicit_replication,
    move,
    on_part,
    played,
    recorder,
    replicated,
    sibling,
    types_of,
    valueless,
)
from .dtensor_surroundings import loss_var, policy_var
from .tensor import Node, Tensor


@fitting_class
class DTensor(Parts):
    """A tensor over a mesh; made by `distribute_tensor`, `DTensor.from_local`, and operators.

    layout         MeshLayout: what each axis of the mesh does
    shape, dtype   of the whole tensor
    requires_grad  whether `backward` gives it a `grad`
    """

    __slots__ = ()

    @staticmethod
    @on_ranks()
    def from_local(
        local: Any,
        mesh: DeviceMesh,
        placements: Sequence[AxisPlacement] | None = None,
        *,
        shape: Sequence[int] | None = None,
        grad_placements: Sequence[AxisPlacement] | None = None,
    ) -> DTensor:
        """A DTensor of the parts that ranks have.

        local       on a rank its part; where one process plays all, a function of the rank, {rank: part}, or one part
                    for all
        placements  None: copies, which must be equal
        shape       of the whole; None: as if all parts were as large as the first (PyTorch: as the rank's own)
        grad_placements  how the gradients of the parts come out; None: as they lie, copies where they are pending

        Raises LayoutError: parts that do not make up `shape`; in `backward`, gradients of another shape than theirs.
        """
        ranks = played(mesh)
        layout = MeshLayout(mesh, tuple(placements or replicated(mesh).placements))
        if isinstance(local, RankTensors):
            parts = dict(local._locals)
        else:
            if recorder() is not None and (callable(local) or isinstance(local, dict)):
                hint = "Make it before, and give it as an argument"
                raise LayoutTypeError("parts by rank", where="from_local, compiled", allowed="A part", hint=hint)
            given = local if callable(local) else (lambda rank: local[rank] if isinstance(local, dict) else local)
            parts = {rank: as_part(given(rank)) for rank in ranks}
        first = parts[ranks[0]]
        layout = layout.on(first.ndim)
        if shape is None:
            shape = layout.full_shape(first.shape)
        for rank in ranks:
            if parts[rank].shape != layout.local_shape(tuple(shape), rank):
                given_shape = f"rank {rank} gives {parts[rank].shape} for {layout} of a tensor of shape {tuple(shape)}"
                allowed = f"{layout.local_shape(tuple(shape), rank)}, or shape= of the whole"
                raise LayoutError(given_shape, where="DTensor.from_local", allowed=allowed)
        made = DTensor(parts, layout, shape)
        if isinstance(local, Tensor) and local.requires_grad:
            back = dual(layout) if grad_placements is None else MeshLayout(mesh, tuple(grad_placements)).on(first.ndim)

            def gradient(g: Any) -> RankTensors:
                found = move(g, back, "gradient of from_local")._locals
                for rank, part in found.items():
                    if part.shape != parts[rank].shape:
                        given = f"a gradient of shape {part.shape} for rank {rank}'s part of shape {parts[rank].shape}"
                        raise LayoutError(
                            given, where="from_local", allowed=f"grad_placements={list(layout.placements)}"
                        )
                return RankTensors(found, mesh)

            made.node = Node(Moved("from_local", gradient), (local,), {})
        return made

    @on_ranks()
    def to_local(self, *, grad_placements: Sequence[AxisPlacement] | None = None) -> Tensor:
        """This rank's part; where one process plays all ranks, the parts of all, on which operators run rank by rank.

        grad_placements  how the gradients of the parts make up the gradient of the whole; None: as this tensor lies,
                         copies where it is pending. PyTorch's trap: Partial() where every rank uses it alike
        """
        back = MeshLayout(self.mesh, tuple(grad_placements)) if grad_placements is not None else dual(self.layout)
        made = RankTensors(self._locals, self.mesh)

        def gradient(g: Any) -> DTensor:
            return DTensor.from_local(g, back.mesh, back.placements, shape=self.shape)

        if self.requires_grad:
            made.node = Node(Moved("to_local", gradient), (self,), {})
        return made

    @on_ranks()
    def full_tensor(self, *, grad_placements: Sequence[AxisPlacement] | None = None) -> Tensor:
        """The whole value, on every rank: pending parts are reduced, pieces gathered.

        grad_placements  how ranks' gradients of the whole make up its gradient: Replicate() for each axis, or Partial()
                         where ranks use it differently. None: a Tensor without a gradient
        """
        if grad_placements is None:
            return super().full_tensor()
        return self.redistribute(replicated(self.mesh), reason="full_tensor").to_local(grad_placements=grad_placements)

    @on_ranks()
    def __parallel_lab_op__(self, op: OpDef, operands: list[Any], attrs: dict[str, Any]) -> Any:
        """Run `op`, or what PyTorch makes it of."""
        pytorch = as_pytorch(operands[0])
        made = MADE_OF[op.name](*operands, **attrs) if op.name in MADE_OF and pytorch else None
        made = super().__parallel_lab_op__(op, operands, attrs) if made is None else made
        if op.name in FLAT and pytorch and operands[0].requires_grad:
            made.node = Node(Moved(op.name, lambda g: filled(g, 0)), (operands[0],), {})
        return made

    def _become(self, new: Any) -> None:
        """Hold what was computed in place. Raises LayoutError unless it lies as this tensor does."""
        if new.layout != self.layout or new.shape != self.shape:
            given = f"{self.layout} would become {new.layout}"
            hint = "Write x = x + y, or redistribute x first"
            raise LayoutError(given, where="DTensor, in place", allowed="The placements that it has", hint=hint)
        before = self.like(self._locals, self.layout, self.shape)
        before.node, before._wanted = self.node, self._wanted
        self._locals, self._dtype, self.node = new._locals, new._dtype, new.node
        if self.node is not None:
            self.node.before = before

    def _in_place(name: str, linear: bool) -> Callable[[Any, Any], Any]:  # type: ignore[misc]
        """`x += y`: y is laid out as x, whose placements stay. linear: addends of y are addends of the result."""

        def method(self: DTensor, other: Any) -> DTensor:
            if isinstance(other, DTensor) and not self.alone:
                to, why = self._beneath(other, linear), f"operand 1 of {name}"
                other = other._relaid(to, why, implicit=Replicate() in other.placements)
            self._become(getattr(Tensor, name)(self, other))
            return self

        return on_ranks(f"DTensor.{name.replace('__', '__i', 1)}", changes=True)(method)

    __iadd__ = add_ = _in_place("__add__", True)
    __isub__ = sub_ = _in_place("__sub__", True)
    __imul__ = mul_ = _in_place("__mul__", False)
    __itruediv__ = div_ = _in_place("__truediv__", False)
    del _in_place

    def _beneath(self, other: DTensor, linear: bool) -> MeshLayout:
        """How a tensor that is broadcast to this one lies when it meets its parts."""
        shift, placements = self.ndim - other.ndim, []
        for placement, its in zip(self.placements, other.placements, strict=True):
            if isinstance(placement, (Shard, StridedShard)):
                dim = placement.dim - shift
                meets = dim >= 0 and other.shape[dim] == self.shape[placement.dim]
                placements.append(replace(placement, dim=dim) if meets else Replicate())
            else:
                addends = placement == Partial() or placement == its == Partial("avg")
                placements.append(placement if linear and addends else Replicate())
        return MeshLayout(self.mesh, tuple(placements))

    def redistribute(
        self, placements: Sequence[AxisPlacement] | MeshLayout | None = None, *, reason: str = "redistribute"
    ) -> DTensor:
        """The same value laid out otherwise.  placements: one per axis.

        Raises LayoutError for a layout that no steps lead to, such as a pending maximum; ArgumentTypeError without one.
        """
        if placements is None:
            raise ArgumentTypeError("no placements", where="redistribute", allowed="One placement per axis of the mesh")
        to = placements if isinstance(placements, MeshLayout) else MeshLayout(self.mesh, tuple(placements))
        return self._relaid(to.on(self.ndim), reason, implicit=False)

    @on_ranks()
    def _relaid(self, to: MeshLayout, reason: str, implicit: bool) -> DTensor:
        moved = move(self, to, reason, implicit)
        if not self.requires_grad:
            return moved
        if moved is self:
            moved = self.like(self._locals, to, self.shape)

        def back(g: Parts) -> Parts:
            return move(g, homeward(self.layout, g.layout), "gradient of redistribute")

        moved.node = Node(Moved("redistribute", back), (self,), {})
        return moved

    def row_losses(self, labels: Any, plain: bool, reduction: str) -> DTensor | None:
        """The losses of rows of logits: inside `loss_parallel`, where classes are split; under the policy "torch" of
        the logarithms of softmax, which PyTorch copies for a mean. None where nothing is unusual.

        plain  there are no weights, ignored classes, smoothing or further dims. Raises NotBuiltYet where there are
        """
        losses = loss_var.get()
        if losses is None and plain and as_pytorch(self) and isinstance(labels, DTensor):
            logarithms, whole = OPS["log_softmax"](self), replicated(self.mesh)
            if reduction == "mean":
                reason = "mean of cross-entropy"
                logarithms, labels = (x.redistribute(whole, reason=reason) for x in (logarithms, labels))
            return OPS["sparse_cross_entropy"](logarithms, labels)  # of logarithms, which are their softmax's, too
        if losses is None or self.alone or Shard(1) not in self.placements:
            return None
        if not plain:
            allowed = "Logits (rows, classes) alone, with labels (rows,)"
            raise NotBuiltYet("weights or further dims in loss_parallel", where="cross_entropy", allowed=allowed)
        return losses(self, labels)

    @on_ranks()
    def as_one(self, op: OpDef, attrs: dict[str, Any]) -> Any:
        """A composed reduction as the one operator that PyTorch has: dims that it reduces are gathered, pending values
        reduced, once. None where nothing has to move. Raises LayoutError under "explicit".
        """
        if self.alone:
            return None
        chosen = choose(op, (self.shape,), attrs, (self.layout,), (self.dtype.itemsize,), policy_var.get())
        (to,) = chosen.ins
        if to is None or to == self.layout:
            return None
        made = op.call((move(self, to, f"operand 0 of {op.class_name}"),), attrs)
        results, node = made if isinstance(made, tuple) else (made,), Node(op, (self,), attrs)
        node.arrays = [chosen]
        for number, result in enumerate(results if self.requires_grad else ()):
            result.node = node if len(results) == 1 else sibling(node, results, number)
        return made

    @on_ranks(changes=True)
    def backward(self, gradient: DTensor | None = None) -> None:
        """Give every tensor that asked for it, and from which this one was made, its `grad` (added to the one there).

        gradient  of this tensor; None: ones, of a tensor with one element
        """
        run_backward(self, gradient)

    @on_ranks()
    def gradients(self, tensors: Sequence[DTensor]) -> list[DTensor]:
        """The gradients of the sum of its elements for these tensors, for `value_and_grad`."""
        return gradients_of(self, tensors)


class RankTensors(DTensor):
    """What each rank has of its own, where one process plays all ranks: operators run on each, and nothing is sent."""

    __slots__ = ()
    alone = True

    def __init__(self, parts: Locals, mesh: DeviceMesh) -> None:
        super().__init__(parts, replicated(mesh), next(iter(parts.values())).shape)

    def like(self, parts: Locals, layout: Any = None, shape: Any = None) -> RankTensors:
        """Other parts of the same ranks."""
        return RankTensors(parts, self.mesh)

    def full_tensor(self, *, grad_placements: Sequence[AxisPlacement] | None = None) -> Tensor:
        """Refused: no ranks' parts make up another's. Raises LayoutTypeError, unless one rank is played."""
        if len(self._locals) == 1:
            return Tensor(self.local(next(iter(self._locals))))
        hint = "DTensor.from_local(parts, mesh, placements) says how they make one; x.local(rank) is one of them"
        raise LayoutTypeError("parts of several ranks", where="to_local", allowed="A rank's part", hint=hint)

    full = full_tensor

    def __repr__(self) -> str:
        shapes = sorted(set(self.part_shapes()))
        return f"RankTensors({len(self._locals)} parts of shape {' or '.join(map(str, shapes))}, dtype={self.dtype})"

    __str__ = __repr__

    @on_ranks()
    def __parallel_lab_op__(self, op: OpDef, operands: list[Any], attrs: dict[str, Any]) -> Any:
        other = next((x for x in operands if isinstance(x, Parts) and not x.alone and x.size > 1), None)
        if other is not None:  # which refuses them, or takes them for copies
            return other.__parallel_lab_op__(op, operands, attrs)
        per_rank: dict[int, Any] = {}
        if valueless():
            found = op.infer(*types_of(operands), attrs)
            rank = next(iter(self._locals))
            made = [hollow_parts(operands, *kind)[rank] for kind in zip(found.shapes, found.dtypes, strict=True)]
            per_rank[rank] = found.form(made)
        with one_blas_thread():
            for rank in self._locals if not valueless() else ():
                arrays = [x._locals[rank] if isinstance(x, Parts) else as_part(x, operands) for x in operands]
                per_rank[rank] = on_part(op, arrays, attrs)
        several = isinstance(next(iter(per_rank.values())), tuple)
        columns = zip(*per_rank.values(), strict=True) if several else [tuple(per_rank.values())]
        results = [RankTensors(dict(zip(per_rank, parts, strict=True)), self.mesh) for parts in columns]
        if op.vjp_fn is not None and any(getattr(x, "requires_grad", False) for x in operands):
            kept = tuple(x if isinstance(x, Tensor) else Tensor(as_part(x, operands)) for x in operands)
            node = Node(op, kept, attrs)
            for number, result in enumerate(results):
                result.node = node if not several else sibling(node, results, number)
        return tuple(results) if several else results[0]


@dataclass(frozen=True)
class Moved:
    """In a node's place of an operator: a tensor laid out otherwise.  back: what becomes of its gradient."""

    name: str
    back: Callable[[Any], Any]
    vjp_fn: Any = None


@on_ranks()
def distribute_tensor(
    value: Any, mesh: DeviceMesh, placements: Sequence[AxisPlacement] | None = None, *, requires_grad: bool = False
) -> DTensor:
    """Cut a whole tensor into the parts of a layout. Each rank cuts its own from the value, which all must have: no
    message is sent (HyperParallel; PyTorch sends the value from rank 0 first).

    placements  None: copies

    Raises LayoutError: Partial, which no value comes as.
    """
    ranks, array = played(mesh), as_part(value)
    layout = MeshLayout(mesh, tuple(placements or replicated(mesh).placements)).on(array.ndim)
    if layout.pending:
        hint = "DTensor.from_local takes addends"
        raise LayoutError(f"{layout}", where="distribute_tensor", allowed="Shard and Replicate", hint=hint)
    if recorder() is not None:
        whole = DTensor({ranks[0]: array}, replicated(mesh), array.shape)
        return move(whole, layout, "distribute_tensor").detach().requires_grad_(requires_grad)
    if valueless():
        hollows = {r: hollow(layout.local_shape(array.shape, r), array.dtype, (array,)) for r in ranks}
        return DTensor(hollows, layout, array.shape, requires_grad)
    parts = {rank: np.ascontiguousarray(array[np.ix_(*layout.indices(array.shape, rank))]) for rank in ranks}
    if not array.ndim:
        parts = {rank: array.copy() for rank in parts}
    return DTensor(parts, layout, array.shape, requires_grad)
