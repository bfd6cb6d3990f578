"""`fully_shard`: data parallelism in which a rank keeps a part of each Parameter, and gathers the whole for its use.

    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("dp",))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)      a group of Parameters: one message
    fully_shard(net, mesh=mesh)            the rest
    net(each rank's own batch)

Forward, a group is gathered when its Cell begins and given up when it ends. Backward, it is gathered again, and the
group before it at the same time; its gradients, whole on every rank, are reduced and scattered: `grad` lies as the
Parameter does, and is the mean over ranks. On a mesh of two axes ranks along the first hold copies (HSDP); there the
scattered gradients are reduced once more. Order and sizes of messages: PyTorch 2.14, torch.distributed.fsdp.

A step that is compiled sends the same and gives the same bits; it takes equal parts. On workers of a notebook only
such a step runs: hooks, which send messages while a gradient passes, are the notebook's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.checks import fitting, fitting_class
from ..base.dtypes import as_dtype, kind_of
from ..base.errors import ArgumentError, ArgumentTypeError, LayoutError, NotBuiltYet, shorten
from ..base.hooks import current_world
from ..layout.device_mesh import DeviceMesh, SubMesh
from ..layout.mesh_layout import AxisPlacement, MeshLayout, Replicate, Shard, StridedShard
from ..ops.elementwise import cast
from ..ops.machine.opdef import OPS
from .cell import Cell
from .tensor.dtensor import DTensor, Moved, RankTensors
from .tensor.dtensor_gradients import after_backward
from .tensor.dtensor_parameter import DTensorParameter, cut_parameter, hold
from .tensor.dtensor_parts import Locals, as_part, exchanged, hollow, move, note, on_part, played, recorder, valueless
from .tensor.tensor import Node, Tensor


@fitting_class
@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of `fully_shard`; None: those of the Parameters.

    param_dtype   of gathers and of what is computed;  reduce_dtype  of the gradients' messages, None: param_dtype
    output_dtype  of what the Cell gives;  cast_forward_inputs  give the Cell its inputs in param_dtype
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True


class Held:
    """A Parameter of a group.

    places   (Cell, attribute) that hold it;  parameter  the parts that ranks keep, cut along `dim`
    layout   over the mesh of parallelize_module, if that has cut it before; else None
    whole    what was gathered, by rank;  total  whole gradients that were not reduced yet
    """

    def __init__(self, places: list[tuple[Cell, str]], group: Group, dim: int) -> None:
        self.places, self.dim = places, dim
        cell, attribute = places[0]
        old = cell._params[attribute]
        before = old if isinstance(old, DTensorParameter) else None
        self.layout = None if before is None else before.layout
        self.shape = tuple(old.full_shape)
        layout = self._layout(group)
        count = group.mesh.axis_size(group.axis)
        self.whole: Locals | None = None
        self.kept: Locals = {}
        self.total: Any = None
        if group.away():
            if before is not None:
                raise NotBuiltYet("a Parameter of parallelize_module", where="fully_shard", allowed="Others on workers")
            about = layout.placements, old.name, old.requires_grad
            self.parameter = cut_parameter(old.asnumpy(), group.mesh, *about)
            self.conceal()
            return
        parts = {}
        for rank in played(group.mesh):
            local = as_part(old) if before is None else before.local(rank)
            rows = _rows(local.shape[dim], count)
            place = group.members(rank).index(rank)
            part = np.moveaxis(local, dim, 0)[place * rows : (place + 1) * rows]
            parts[rank] = np.moveaxis(part, 0, dim) if valueless() else np.ascontiguousarray(np.moveaxis(part, 0, dim))
        self.parameter = DTensorParameter(parts, layout, self.shape, old.name, old.requires_grad)
        self.conceal()

    def _layout(self, group: Group) -> MeshLayout:
        mesh, others = group.mesh, self.layout
        if others is None:
            cut: list[AxisPlacement] = [Shard(self.dim)]
            return MeshLayout(mesh, tuple([Replicate()] * (mesh.ndim - 1) + cut))
        if not (isinstance(mesh, SubMesh) and isinstance(others.mesh, SubMesh) and mesh.whole == others.mesh.whole):
            hint = 'mesh["dp"] here, mesh["tp"] there'
            raise LayoutError(f"{mesh} and {others.mesh}", where="fully_shard", allowed="Axes of one mesh", hint=hint)
        whole = mesh.whole[tuple(n for n in mesh.whole.names if n in (*mesh.names, *others.mesh.names))]
        theirs = dict(zip(others.mesh.names, others.placements, strict=True))
        cuts = math.prod(
            others.mesh.axis_size(n) for n, p in theirs.items() if isinstance(p, Shard) and p.dim == self.dim
        )
        mine = {name: Replicate() for name in mesh.names}
        mine |= {group.axis: StridedShard(self.dim, cuts) if cuts > 1 else Shard(self.dim)}
        return MeshLayout(whole, tuple(theirs.get(name) or mine[name] for name in whole.names))

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """What a rank's group gathers for it, with the dim that is cut first."""
        shape = list(self.shape if self.layout is None else self.layout.local_shape(self.shape, rank))
        return (shape.pop(self.dim), *shape)

    def expose(self, mesh: DeviceMesh) -> None:
        """Let the Cells compute with the whole."""
        assert self.whole is not None
        tensor = RankTensors(self.whole, mesh) if self.layout is None else DTensor(self.whole, self.layout, self.shape)
        if self.parameter.requires_grad:
            tensor.node = Node(Moved("gather", self.collect), (self.parameter,), {})
        for cell, attribute in self.places:
            cell.__dict__[attribute] = tensor

    def conceal(self) -> None:
        """Let the Cells hold the parts."""
        for cell, attribute in self.places:
            hold(cell, attribute, self.parameter)

    def collect(self, gradient: Any) -> None:
        self.total = gradient if self.total is None else self.total + gradient


class Run:
    """The groups of a network: the one whose Cell is called from outside, and those below, in order of Cells."""

    def __init__(self, root: Group) -> None:
        self.root, self.groups, self.order = root, [root], list[Group]()
        for cell in root.cells:
            for _, below in cell.cells_and_names():
                group = below.__dict__.get("_group")
                if group is not None and group not in self.groups:
                    self.groups.append(group)
        for group in self.groups:
            group.run = self
        self.backward = False

    def finish(self) -> None:
        """At the end of backward: reduce what no gradient of an input has set off."""
        for group in self.groups[::-1] if self.root.first_last else self.groups:
            group.end_backward()
            group.give_up()
            group.among = None
            group.positions.clear()
        self.order.clear()
        self.backward = False


class Group:
    """Parameters that travel in one message.

    ahead       backward gathers the group that comes next in advance
    first_last  at the end of backward, what is left is reduced from the last group to the first
    """

    ahead, first_last = True, False

    def __init__(self, cells: list[Cell], mesh: DeviceMesh, reshard: bool | int | None, policy: Any) -> None:
        self.cells, self.mesh, self.reshard, self.policy = cells, mesh, reshard, policy
        self.axis, self.copies = mesh.names[-1], mesh.names[0] if mesh.ndim == 2 else None
        self.held: list[Held] = []
        self.sync = self.sync_copies = self.mean = True  # mean: of the ranks' gradients, else their sum
        self.run: Run | None = None
        self.running: list[Cell] = []  # Cells that forward still has to pass
        self.gathered = self.in_backward = False
        self.by: Any = None  # who writes down the program in which they were gathered
        self.among: int | None = None  # ranks that hold the whole together after forward, where that is not all
        self.positions: list[int] = []  # where forward ended it, among all groups
        self.scattered: Locals = {}  # gradients that are not reduced among copies yet
        self.name = cells[0].param_prefix or "the network"

    def away(self) -> bool:
        """Whether the parts lie on workers of this notebook."""
        return self.mesh.executor != "simulator" and current_world() is None

    def members(self, rank: int) -> tuple[int, ...]:
        """The ranks that gather together."""
        group = tuple(sorted(self.mesh.group(self.axis, rank)))
        if self.among is None:
            return group
        first = group.index(rank) // self.among * self.among
        return group[first : first + self.among]

    # ---- messages ----

    def gather(self, when: str) -> None:
        """Make the Parameters whole, unless they are."""
        if self.gathered and self.by is not recorder():  # what was written down for a plan has no values, and none here
            self.give_up()
        if self.gathered or not self.held:
            return
        self.by = recorder()
        count, sent = self.among or self.mesh.axis_size(self.axis), {}
        if valueless():
            self._tell("all_gather", self.axis, self.held, 1, self.policy.param_dtype, f"gather {self.name} {when}")
            for each in self.held:
                (rank,), dtype = played(self.mesh), self.policy.param_dtype or each.parameter.dtype
                each.whole = {rank: np.moveaxis(hollow(each.local_shape(rank), as_dtype(str(dtype))), 0, each.dim)}
            self.gathered = True
            return
        for rank in played(self.mesh):
            blocks = []
            for each in self.held:
                part = _first(each.parameter.local(rank), each.dim) if self.among is None else each.kept[rank]
                blocks.append(_filled(part, _rows(each.local_shape(rank)[0], count)).reshape(-1))
            sent[rank] = _in_dtype(_joined(blocks), self.policy.param_dtype)
        replies = self._message("all_gather", self.axis, sent, self.members, f"gather {self.name} {when}")
        for each in self.held:
            each.whole = {}
        for rank, reply in replies.items():
            columns, at = reply.reshape(count, -1), 0
            for each in self.held:
                assert each.whole is not None
                length, *others = each.local_shape(rank)
                width = _rows(length, count) * math.prod(others)
                joined = columns[:, at : at + width].reshape(-1, *others)[:length]
                each.whole[rank], at = _back(joined, each.dim), at + width
        self.gathered = True

    def give_up(self, keep: int | None = None) -> None:
        """Forget what was gathered.  keep: all but a part, so that so many ranks together have the whole."""
        if not self.gathered:
            return
        self.among = keep
        for each in self.held:
            each.conceal()
            if keep is not None:
                assert each.whole is not None
                for rank, value in each.whole.items():
                    rows, place = _rows(value.shape[each.dim], keep), self.members(rank).index(rank)
                    each.kept[rank] = np.moveaxis(value, each.dim, 0)[place * rows : (place + 1) * rows]
            each.whole = None
        self.gathered = False

    def reduce(self) -> None:
        """Reduce and scatter the whole gradients: `grad` of the Parameters is their mean."""
        found = [each for each in self.held if each.total is not None]
        if not found:
            return
        count, reason, sent = self.mesh.axis_size(self.axis), f"gradients of {self.name}", {}
        totals = [
            each.total if each.layout is None else move(each.total, each.layout, f"gradient of {each.parameter.name}")
            for each in found
        ]
        dtype = self.policy.reduce_dtype or self.policy.param_dtype
        if valueless():
            self._reduce_hollow(found, dtype, reason)
            return
        for rank in played(self.mesh):
            blocks = []
            for each, total in zip(found, totals, strict=True):
                value = _first(total.local(rank), each.dim)
                blocks.append(_filled(value, count * _rows(value.shape[0], count)).reshape(count, -1))
            sent[rank] = _in_dtype(_joined(blocks, 1).reshape(-1), dtype)
        for each in found:
            each.total = None
        parts = self._message("reduce_scatter", self.axis, sent, self.members, reason)
        if self.copies is not None:
            parts = {rank: part + self.scattered.get(rank, 0) for rank, part in parts.items()}
            self.scattered = {} if self.sync_copies else parts
            if not self.sync_copies:
                return

            def group(rank: int) -> tuple[int, ...]:
                return tuple(sorted(self.mesh.group(self.copies, rank)))

            parts = self._message("all_reduce", self.copies, parts, group, f"{reason}, among copies")
        at = 0
        for each in found:
            grads, parameter, width = {}, each.parameter, 0
            for rank, part in parts.items():
                length, *others = each.local_shape(rank)
                width = _rows(length, count) * math.prod(others)
                mine = part[at : at + width].reshape(-1, *others)[: parameter.local(rank).shape[each.dim]]
                mean = mine.astype(parameter.dtype) / (self.mesh.size if self.mean else 1)
                grads[rank] = _back(mean.astype(parameter.dtype), each.dim)
            at += width
            _accumulate(parameter, grads)

    def _reduce_hollow(self, found: list[Held], dtype: Any, reason: str) -> None:
        """The messages of `reduce`, and gradients without values."""
        self._tell("reduce_scatter", self.axis, found, self.mesh.axis_size(self.axis), dtype, reason)
        if self.copies is not None and self.sync_copies:
            self._tell("all_reduce", self.copies, found, 1, dtype, f"{reason}, among copies")
        for each in found:
            parameter, each.total = each.parameter, None
            if self.copies is None or self.sync_copies:
                _accumulate(parameter, parameter._locals)

    def _tell(self, kind: str, axis: str, held: list[Held], pieces: int, dtype: Any, reason: str) -> None:
        """Note a message of so many pieces of Parameters, without values."""
        (rank,), count = played(self.mesh), self.among or self.mesh.axis_size(self.axis)
        shapes = [(pieces * _rows(length, count), *others) for length, *others in (x.local_shape(rank) for x in held)]
        if held:
            reduce, dtype = "" if kind == "all_gather" else "sum", dtype or held[0].parameter.dtype
            for shape in self._messages_of(shapes):
                note(kind, axis, reduce, hollow(shape, dtype), reason)

    def _messages_of(self, shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The shapes of the messages of Parameters' parts: all in one."""
        return [(sum(map(math.prod, shapes)),)]

    def _message(self, kind: str, axis: str, sent: Locals, group: Callable[[int], Any], reason: str) -> Locals:
        reduce = "" if kind == "all_gather" else "sum"
        if (tracer := recorder()) is not None:
            return {rank: tracer.message(kind, part, self.mesh, axis, reduce, reason) for rank, part in sent.items()}
        note(kind, axis, reduce, next(iter(sent.values())), reason)
        return exchanged(kind, sent, group, {"reduce": reduce} if reduce else {}, reason)

    # ---- hooks ----

    def before_forward(self, cell: Cell, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Hook: the Parameters are gathered when the first Cell of the group begins."""
        if recorder() is None and self.away():
            hint = "step = pl.jit(step), a function with forward and backward; or a script under `parallel-lab run`"
            what = f"fully_shard on {self.mesh.executor} of a notebook, one call per line"
            raise NotBuiltYet(what, allowed="A step that is compiled", hint=hint)
        if recorder() is not None and type(self.reshard) is int:
            raise NotBuiltYet("reshard_after_forward=int in a program that is compiled", allowed="A bool, or at once")
        if self.running and len(self.cells) > 1:
            return None
        if self.run is None:
            Run(self)
        self.running = list(self.cells)
        if self.policy.param_dtype is not None and self.policy.cast_forward_inputs:
            inputs = tuple(_cast(x, self.policy.param_dtype) for x in inputs)
        inputs = _passed(inputs, "backward ends", self.end_backward)
        self.gather("for forward")
        for each in self.held:
            each.expose(self.mesh)
        return inputs

    def after_forward(self, cell: Cell, inputs: Any, output: Any) -> Any:
        """Hook: they are given up when the last Cell of the group has ended."""
        if cell in self.running:
            self.running.remove(cell)
        if self.running:
            return None
        run = self.run
        assert run is not None
        if self.policy.output_dtype is not None:
            output = _cast(output, self.policy.output_dtype)
        if self.held:
            run.order.append(self)
            self.positions.append(len(run.order) - 1)
        reshard = self is not run.root if self.reshard is None else self.reshard
        if reshard is not False:
            fewer = type(reshard) is int and reshard < self.mesh.axis_size(self.axis)
            self.give_up(keep=int(reshard) if fewer else None)
        for each in self.held:
            each.conceal()
        several = isinstance(output, tuple)
        passed = _passed(output if several else (output,), "backward begins", self.begin_backward)
        return passed if several else passed[0]

    def begin_backward(self) -> None:
        """The gradient of an output has come: the Parameters are needed, and soon those of the group before."""
        run = self.run
        assert run is not None
        if self.in_backward:
            return
        if not run.backward:
            run.backward = True
            after_backward(run.finish)
        self.in_backward = True
        self.gather("for backward")
        if self.positions and (at := self.positions.pop()) and self.ahead:
            run.order[at - 1].gather("for backward, one ahead")

    def end_backward(self) -> None:
        """All gradients of the Parameters are there: the input's, which is the last, has come."""
        if not self.in_backward:
            return
        self.in_backward = False
        self.give_up()
        self.among = None
        if self.sync:
            self.reduce()


def _accumulate(parameter: DTensorParameter, parts: Locals) -> None:
    """Add to the gradient that a Parameter has, each rank to its part, however few rows it has."""
    if (before := parameter.grad) is not None and not valueless():
        held = before.redistribute(parameter.layout)._locals
        parts = {rank: on_part(OPS["add"], [held[rank], part], {}) for rank, part in parts.items()}
    parameter.grad = DTensor(parts, parameter.layout, parameter.shape)


@fitting_class
class FullyShardedCell(Cell):
    """What `fully_shard` makes of a Cell: it stays what it was, and has these methods."""

    def _groups(self, recurse: bool) -> list[Group]:
        cells = [cell for _, cell in self.cells_and_names()] if recurse else [self]
        return list(dict.fromkeys(c.__dict__["_group"] for c in cells if "_group" in c.__dict__))

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: `backward` keeps whole gradients on every rank and sends none, until it is True again."""
        for group in self._groups(recurse):
            group.sync = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """False: on a mesh of two axes gradients are scattered, and not reduced among copies, until it is True."""
        for group in self._groups(recurse):
            group.sync_copies = requires_all_reduce

    def set_reshard_after_forward(self, reshard_after_forward: bool, *, recurse: bool = True) -> None:
        """Whether Parameters are given up after forward."""
        for group in self._groups(recurse):
            group.reshard = reshard_after_forward

    def unshard(self) -> None:
        """Gather the Parameters of this Cell's group now."""
        self.__dict__["_group"].gather("on request")
        for each in self.__dict__["_group"].held:
            each.expose(self.__dict__["_group"].mesh)

    def reshard(self) -> None:
        """Give up what was gathered."""
        self.__dict__["_group"].give_up()


@fitting
def fully_shard(
    module: Any,
    *,
    mesh: DeviceMesh,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[Any], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
) -> Any:
    """Make the Parameters of a Cell, but those of Cells below that have been made so before, one group of parts.

    module                 a Cell, or a list of Cells whose Parameters share a group
    mesh                   of one axis, or of two: copies along the first
    reshard_after_forward  give up whole Parameters after forward; an int: keep them among so many ranks; None: True,
                           but False for the Cell that is called from outside
    shard_placement_fn     the dim along which a Parameter is cut; None: 0. Other dims must divide

    Returns the Cell or Cells, which have the methods of `FullyShardedCell` now. Raises LayoutError, ArgumentError.
    """
    cells = list(module) if isinstance(module, (list, tuple)) else [module]
    if not cells or any(not isinstance(cell, Cell) for cell in cells):
        raise ArgumentTypeError(shorten(module), where="fully_shard", allowed="A Cell, or a list of Cells")
    if mesh.ndim > 2:
        raise LayoutError(f"{mesh}", where="fully_shard", allowed="One axis, or two", hint=f'mesh["{mesh.names[0]}"]')
    ranks = mesh.axis_size(mesh.names[-1])
    if type(reshard_after_forward) is int and (reshard_after_forward < 1 or ranks % reshard_after_forward):
        given = f"reshard_after_forward={reshard_after_forward}"
        raise ArgumentError(given, where="fully_shard", allowed=f"A bool, or an int that divides {ranks}")
    if any("_group" in cell.__dict__ for cell in cells):
        raise ArgumentError(f"{shorten(module)} again", where="fully_shard", allowed="A Cell once")
    group = Group(cells, mesh, reshard_after_forward, mp_policy or MixedPrecisionPolicy())
    places: dict[int, list[tuple[Cell, str]]] = {}
    for cell in cells:
        for _, below in cell.cells_and_names():
            for name, parameter in below._registry("_params").items():
                if not below.__dict__.get("_grouped"):
                    places.setdefault(id(parameter), []).append((below, name))  # type: ignore[arg-type]
    for held in places.values():
        parameter = held[0][0]._params[held[0][1]]
        chosen = shard_placement_fn(parameter) if shard_placement_fn is not None else None
        dim = 0 if chosen is None else chosen.dim % len(parameter.full_shape)
        if dim and parameter.full_shape[dim] % ranks:
            given = f"Shard({dim}) of {parameter.name!r}, shape {parameter.full_shape}, over {ranks} ranks"
            raise LayoutError(given, where="fully_shard", allowed="A dim that the ranks divide, or dim 0")
        group.held.append(Held(held, group, dim))
        for cell, _ in held:
            cell.__dict__["_grouped"] = True
    for cell in cells:
        cell.__dict__["_group"] = group
        cell.register_forward_pre_hook(group.before_forward)
        cell.register_forward_hook(group.after_forward)
        kind = type(cell)
        cell.__class__ = type(f"FullySharded{kind.__name__}", (FullyShardedCell, kind), {"__module__": kind.__module__})
    return module


def _rows(length: int, count: int) -> int:
    """Rows of the first of so many pieces, the largest (torch.chunk)."""
    return -(-length // count)


# of arrays, and of the parts of a program that is compiled, which are equal and are written down


def _first(part: Any, dim: int) -> Any:
    """With this dim as the first."""
    return part.transpose(dim, *(n for n in range(len(part.shape)) if n != dim)) if dim else part


def _back(part: Any, dim: int) -> Any:
    """The other way round."""
    if dim:
        part = part.transpose(*(n + 1 for n in range(dim)), 0, *range(dim + 1, len(part.shape)))
    return np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part


def _joined(parts: list[Any], axis: int = 0) -> Any:
    tracer = recorder()
    if tracer is None:
        return np.concatenate(parts, axis)
    return tracer.on_part(OPS["concat"], parts, {"axis": axis}) if len(parts) > 1 else parts[0]


def _filled(part: Any, rows: int) -> Any:
    """With zeros up to so many rows."""
    more = rows - part.shape[0]
    return np.concatenate([part, np.zeros((more, *part.shape[1:]), part.dtype)]) if more else part


def _in_dtype(value: np.ndarray, dtype: Any) -> np.ndarray:
    return value if dtype is None else value.astype(as_dtype(dtype))


def _cast(value: Any, dtype: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_cast(each, dtype) for each in value)
    return cast(value, dtype=dtype) if isinstance(value, Tensor) and kind_of(value.dtype) == "f" else value


def _passed(values: Sequence[Any], name: str, function: Callable[[], None]) -> tuple[Any, ...]:
    """The same tensors; `function` is called when the gradient of the first that wants one has come."""

    def through(gradient: Any) -> Any:
        function()
        return gradient

    passed, first = [], True
    for value in values:
        if isinstance(value, DTensor) and value.requires_grad:
            before = value
            value = before.like(before._locals, before.layout, before.shape)
            what = through if first or name == "backward begins" else lambda gradient: gradient
            value.node, first = Node(Moved(name, what), (before,), {}), False
        passed.append(value)
    return tuple(passed)
