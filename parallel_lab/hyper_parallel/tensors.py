"""HyperParallel's `DTensor` and what lays out functions and networks: this package's, in HyperParallel's forms.

    x = DTensor.from_local(local, mesh, (Shard(0), Replicate()))      or aliases: (("dp", "tp"), "None")
    y = x.redistribute(mesh, ("None", "tp")).reduce_partial()

No operator sends a message that nobody asked for: operands that would have to move are a LayoutError, with the call
that moves them. Placements may also be a `Layout` that was called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import ArgumentTypeError, LayoutError, shorten
from ..layout import mesh_layout
from ..nn import fully_shard as sharding, parallel_styles
from ..nn.tensor import dtensor as ours
from ..nn.tensor.dtensor_parameter import distribute_parameter
from ..nn.tensor.tensor import Tensor
from .device_mesh import DeviceMesh
from .layout import Layout, as_ours, build_layout


def _mesh_layout(mesh: Any, placements: Any, ndim: int) -> mesh_layout.MeshLayout:
    """A mesh and placements, aliases or a Layout, as this package's layout of a tensor of `ndim` dims."""
    if isinstance(mesh, Layout):
        return mesh.mesh_layout(ndim)
    if isinstance(placements, Layout):
        return placements.mesh_layout(ndim)
    if isinstance(placements, mesh_layout.MeshLayout):
        return placements
    if len(placements) and not isinstance(placements[0], mesh_layout.AxisPlacement):
        return build_layout(mesh, placements, ndim).mesh_layout()
    return mesh_layout.MeshLayout(mesh.pivot, tuple(map(as_ours, placements))).on(ndim)


class DTensor(ours.DTensor):
    """A tensor over a mesh.  local_shape: of this rank's part; layout: a MeshLayout, what each axis of the mesh does"""

    __slots__ = ()

    @staticmethod
    def from_local(local_tensor: Any, device_mesh: Any, placements: Any = None, **more: Any) -> DTensor:
        """The tensor whose parts the ranks have.  local_tensor: a rank's part, or a function of the rank where one
        process plays all;  placements: what each axis does, or aliases per dim.
        """
        first = local_tensor
        if callable(local_tensor):
            first = local_tensor(device_mesh.rank_list[0])
        elif isinstance(local_tensor, dict):
            first = next(iter(local_tensor.values()))
        to = _mesh_layout(device_mesh, placements, first.ndim)
        return _theirs(ours.DTensor.from_local(local_tensor, to.mesh, to.placements, **more))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part."""
        return next(iter(self._locals.values())).shape

    def redistribute(self, device_mesh: Any = None, placements: Any = None, *, reason: str = "redistribute") -> Any:
        """The same value laid out otherwise, by a mesh with placements or aliases, or by a Layout."""
        return super().redistribute(_mesh_layout(device_mesh, placements, self.ndim), reason=reason)

    def reduce_partial(self) -> DTensor:
        """The same value, with nothing pending: reduced over each axis that is, which splits nothing afterwards."""
        copies = (mesh_layout.Replicate() if isinstance(p, mesh_layout.Partial) else p for p in self.placements)
        whole = mesh_layout.MeshLayout(self.mesh, tuple(copies))
        return super().redistribute(whole, reason="reduce_partial")  # ty: ignore

    def __parallel_lab_op__(self, op: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
        with ours.dtensor_policy("explicit"):
            return super().__parallel_lab_op__(op, operands, attrs)


def _theirs(made: ours.DTensor) -> DTensor:
    """A DTensor of this package as one that refuses messages nobody asked for, with its gradient."""
    strict = DTensor(made._locals, made.layout, made.shape, made._wanted)
    strict.node = made.node
    return strict


def distribute_tensor(tensor: Any, device_mesh: Any, placements: Any = None) -> DTensor:
    """Cut a whole tensor, which every rank has: no message is sent."""
    array = tensor.asnumpy() if isinstance(tensor, Tensor) else tensor
    to = _mesh_layout(device_mesh, placements, array.ndim)
    return _theirs(ours.distribute_tensor(tensor, to.mesh, to.placements))


def custom_shard(
    func: Callable[..., Any],
    device_mesh: DeviceMesh,
    out_placements: Sequence[Any],
    in_placements: Sequence[Any] | None = None,
    redistribute_inputs: bool = True,
) -> Callable[..., Any]:
    """A function of ranks' own parts as one of DTensors.

    in_placements, out_placements  per argument and result; None: no DTensor
    redistribute_inputs            move arguments that lie otherwise

    Raises LayoutError: another number of arguments or results; ArgumentTypeError: a DTensor where None stands, or the
    other way round.
    """
    where = f"custom_shard of {getattr(func, '__name__', 'a function')}"

    def check(kind: str, values: Sequence[Any], placements: Sequence[Any], tensors: type) -> None:
        if len(values) != len(placements):
            raise LayoutError(f"{len(values)} {kind}s", where=where, allowed=f"{len(placements)}, as placements say")
        for place, (value, wanted) in enumerate(zip(values, placements, strict=True)):
            if isinstance(value, tensors) == (wanted is None):
                given = f"{kind} {place} is {shorten(value)}, its placements {wanted}"
                raise ArgumentTypeError(given, where=where, allowed="Placements for each DTensor, None for the others")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        wanted = in_placements or [None] * len(args)
        check("argument", args, wanted, ours.DTensor)
        moved = [
            x if to is None or not redistribute_inputs else x.redistribute(device_mesh, to)
            for x, to in zip(args, wanted, strict=True)
        ]
        out = func(*(x.to_local() if isinstance(x, ours.DTensor) else x for x in moved), **kwargs)
        if not any(isinstance(x, ours.DTensor) for x in args):
            return out
        results = out if isinstance(out, tuple) else (out,)
        check("result", results, out_placements, Tensor)
        made = [
            x if to is None else DTensor.from_local(x, device_mesh, to)
            for x, to in zip(results, out_placements, strict=True)
        ]
        return tuple(made) if isinstance(out, tuple) else made[0]

    return wrapped


@dataclass
class ShardingPlan:
    """How the parts of a network lie: placements, or aliases, by name.

    plan                 of Parameters: {"mlp.weight": ("None", "tp")}
    input_plan           of a Cell's inputs: {"mlp.input": one, or one per input}; "input" for the network itself
    output_plan          of its results: {"mlp.output": ...}
    return_local_tensor  names of Cells that give ranks' own parts
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    input_plan: Mapping[str, Any] = field(default_factory=dict)
    output_plan: Mapping[str, Any] = field(default_factory=dict)
    return_local_tensor: Sequence[str] = ()


def shard_module(model: Any, device_mesh: DeviceMesh, sharding_plan: ShardingPlan) -> Any:
    """Lay out a network's Parameters, and the inputs and results of its Cells. Returns it.

    Raises LayoutError (a ValueError) for a name that the network lacks, or a key that ends in neither input nor output.
    """
    cells = dict(model.cells_and_names())
    for name, placements in (sharding_plan.plan or {}).items():
        path, _, attribute = name.rpartition(".")
        if path not in cells or attribute not in cells[path]._params:
            raise LayoutError(f"no Parameter {name!r}", where="shard_module", allowed=f"Names in {sorted(cells)}")
        value = cells[path]._params[attribute]
        to = _mesh_layout(device_mesh, placements, value.ndim)
        distribute_parameter(cells[path], attribute, to.mesh, to.placements)

    def moved(values: Any, wanted: Any) -> Any:
        each = values if isinstance(values, tuple) else (values,)
        several = [wanted] * len(each) if _is_one(wanted) else wanted
        made = tuple(
            x.redistribute(device_mesh, to) if isinstance(x, DTensor) and to is not None else x
            for x, to in zip(each, several, strict=True)
        )
        return made if isinstance(values, tuple) else made[0]

    for ending, plan in (("input", sharding_plan.input_plan), ("output", sharding_plan.output_plan)):
        for key, wanted in (plan or {}).items():
            path, _, last = key.rpartition(".")
            if last != ending or path not in cells:
                raise LayoutError(f"key {key!r}", where="shard_module", allowed=f"A Cell's name with .{ending}")
            if ending == "input":
                cells[path].register_forward_pre_hook(lambda cell, inputs, to=wanted: moved(inputs, to))
            else:
                cells[path].register_forward_hook(lambda cell, inputs, output, to=wanted: moved(output, to))
    for name in sharding_plan.return_local_tensor or ():
        if name not in cells:
            raise LayoutError(f"no Cell {name!r}", where="shard_module", allowed=f"One of {sorted(cells)}")
        cells[name].register_forward_hook(lambda cell, inputs, output: output.to_local())
    return model


def _is_one(wanted: Any) -> bool:
    """Whether this is the layout of one tensor, not a list of layouts."""
    return isinstance(wanted, Layout) or all(
        isinstance(e, (str, mesh_layout.AxisPlacement)) or (isinstance(e, tuple) and all(isinstance(n, str) for n in e))
        for e in wanted
    )


def parallelize_value_and_grad(
    fn: Callable[..., Any], weights: Sequence[Any], sens: Any = None
) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
    """(value, gradients of `weights`) of a function of DTensors.

    sens  the gradient of the value that backward begins with; None: 1, of the whole value. HyperParallel begins with
          1 / repeat_num on each rank and adds up over the ranks that hold copies: the same gradients
    """

    def both(*args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        for weight in weights:
            weight.grad = None
        value = fn(*args, **kwargs)
        value.backward(sens)
        return value, tuple(weight.grad for weight in weights)

    return both


def parallelize_module(module: Any, device_mesh: DeviceMesh, parallelize_plan: Any) -> Any:
    """`nn.parallel_styles.parallelize_module` on a mesh of one axis: mesh["tp"]."""
    return parallel_styles.parallelize_module(module, device_mesh.pivot, parallelize_plan)


def fully_shard(module: Any, mesh: DeviceMesh, reshard_after_forward: Any = True, mp_policy: Any = None) -> Any:
    """`nn.fully_shard.fully_shard` on one of this facade's meshes, which is given by position here."""
    return sharding.fully_shard(
        module, mesh=mesh.pivot, reshard_after_forward=reshard_after_forward, mp_policy=mp_policy
    )
