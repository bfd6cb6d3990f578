"""How HyperParallel lays out networks: by names, by styles, and fully sharded; parts of this package in its forms.

net = shard_module(net, mesh, ShardingPlan({"fc.weight": ("tp", "None")}))
net = fully_shard(net, mesh["dp"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..base.checks import fitting, fitting_class
from ..base.errors import ArgumentError, LayoutError, shorten
from ..layout import mesh_layout
from ..nn import fully_shard as sharding, parallel_styles
from ..nn.tensor.dtensor_parameter import distribute_parameter
from ..nn.tensor.parameter import Parameter
from .device_mesh import DeviceMesh, init_device_mesh, platform
from .layout import Layout
from .tensors import DTensor, mesh_layout_of


@fitting_class
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


@fitting
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
        to = mesh_layout_of(device_mesh, placements, value.ndim)
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


@fitting
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

    return fitting(both, "parallelize_value_and_grad")


@fitting
def parallelize_module(module: Any, device_mesh: DeviceMesh, parallelize_plan: Any) -> Any:
    """`nn.parallel_styles.parallelize_module` on a mesh of one axis: mesh["tp"]."""
    return parallel_styles.parallelize_module(module, device_mesh.pivot, parallelize_plan)


@fitting_class
class HSDPModule(sharding.FullyShardedCell):
    """What `fully_shard` adds to a Cell, next to unshard, reshard and set_requires_gradient_sync."""

    def zero_grads(self) -> None:
        """Forget the gradients of its Parameters."""
        for group in self._groups(True):
            for held in group.held:
                held.parameter.grad = None

    def set_reduce_op_type(self, reduce_op_type: str, *, recurse: bool = True) -> None:
        """How gradients of ranks become one: "avg" or "sum". Raises ArgumentError for another."""
        kind = str(reduce_op_type).partition(":")[0]
        if kind not in ("avg", "sum"):
            given = f"reduce_op_type={shorten(reduce_op_type)}"
            raise ArgumentError(given, where="set_reduce_op_type", allowed='"avg" or "sum"')
        for group in self._groups(recurse):
            group.mean = kind == "avg"

    def set_modules_to_forward_prefetch(self, modules: Sequence[Any]) -> None:
        """Accepted: forward, a group is gathered when its Cell begins."""

    def set_modules_to_backward_prefetch(self, modules: Sequence[Any]) -> None:
        """Accepted: backward, the group before is gathered one ahead."""


@fitting
def fully_shard(
    module: Any,
    mesh: DeviceMesh,
    *,
    reshard_after_forward: Any = True,
    mixed_precision: Any = None,
    mp_policy: Any = None,
    shard_placement_fn: Any = None,
    offload_policy: Any = None,
    comm_fusion: bool = True,
    comm_fusion_zero_copy: Any = None,
    **older: Any,
) -> Any:
    """`nn.fully_shard.fully_shard` on one of this facade's meshes; the Cell is an `HSDPModule` too afterwards.

    mixed_precision, mp_policy  a MixedPrecisionPolicy;  older, offload_policy, comm_fusion...: accepted. The Parameters
    of a call are always fused, and stay in this machine's memory
    """
    policy = mixed_precision or mp_policy
    options = {"shard_placement_fn": shard_placement_fn, "mp_policy": policy}
    sharding.fully_shard(module, mesh=mesh.pivot, reshard_after_forward=reshard_after_forward, **options)
    for cell in module if isinstance(module, (list, tuple)) else [module]:
        kind = type(cell)
        cell.__class__ = type(kind.__name__, (HSDPModule, kind), {"__module__": kind.__module__})
    return module


@fitting
def hsdp(cell: Any, shard_size: int = 1, threshold: int = 64, optimizer_level: str = "level1", **older: Any) -> Any:
    """The interface before `fully_shard`: parts among `shard_size` ranks, copies among the others of the world.

    optimizer_level  "level3" gives Parameters up after forward; "level1", "level2" keep them until backward has ended
    threshold, older  accepted

    Raises ArgumentError: another level, a shard_size that does not divide the world.
    """
    count = max(platform.get_world_size(), 1)
    if optimizer_level not in ("level1", "level2", "level3") or shard_size < 1 or count % shard_size:
        given, allowed = (
            f"shard_size={shard_size}, {optimizer_level!r}",
            f"A divisor of {count}; level1, level2, level3",
        )
        raise ArgumentError(given, where="hsdp", allowed=allowed)
    mesh = init_device_mesh("npu", (count // shard_size, shard_size), mesh_dim_names=("replicate", "shard"))
    return fully_shard(cell, mesh, reshard_after_forward=optimizer_level == "level3")


@fitting
def hsdp_sync_stream() -> None:
    """Nothing to wait for: gradients are reduced when `backward` returns."""


@contextmanager
def init_empty_weights() -> Iterator[None]:
    """Networks built inside draw no values yet: `init_parameters` does, or the first read."""
    yield  # as everywhere here: a Parameter draws when it is first read


@fitting
def init_parameters(module: Any, stage_index: int = 0) -> Any:
    """Draw the initial values of a network now.  stage_index: accepted. Returns the network."""
    for parameter in module.get_parameters():
        if isinstance(parameter, Parameter):
            parameter.init_data()
    return module
