"""What names of HyperParallel mean, and of MindSpore's operators and cells that its programs use.

As in PyTorch but for: nothing is redistributed unasked (an operator on layouts that do not fit is refused), slices are
cut locally, `fully_shard` sends each parameter by itself, and a redistribution goes through the dims in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout
from ...nn.tensor.dtensor import DTensor
from ...nn.tensor.dtensor_parameter import distribute_parameter
from ...nn.tensor.dtensor_parts import Parts, dual
from .front import NUMPY_LIKE, Table, dtype_of, filled, from_list, shape_of
from .modules import ModuleFront, local_map, optimizer, under
from .torch_names import FUNCTIONAL, OPERATORS, PLACEMENTS, backward, factory, placed
from .values import Instance
from .world import part


@dataclass(frozen=True)
class HyperLayout:
    """Layout(mesh_shape, alias_name), called with an alias per dim or with placements."""

    mesh: DeviceMesh

    def __call__(self, *entries: Any) -> MeshLayout:
        if len(entries) == 1 and isinstance(entries[0], (tuple, list)) and isinstance(entries[0][0], PLACEMENTS):
            entries = tuple(entries[0])
        if entries and isinstance(entries[0], PLACEMENTS):
            return MeshLayout(self.mesh, entries)
        dims = [() if e == "None" else (e,) if isinstance(e, str) else tuple(e) for e in entries]
        return MeshLayout.from_dims(self.mesh, dims)


def layout(front: Any, mesh_shape: Any, alias_name: Any = (), rank_list: Any = None, **kw: Any) -> HyperLayout:
    """Layout(mesh_shape, alias_name)"""
    if isinstance(mesh_shape, DeviceMesh):
        return HyperLayout(mesh_shape)
    return HyperLayout(DeviceMesh(shape_of(mesh_shape), tuple(alias_name), tuple(rank_list or ())))


def reduce_partial(front: Any, x: Any) -> Any:
    """What is pending becomes whole."""
    return x.redistribute(dual(x.layout), reason="reduce_partial")


def value_and_grad(
    front: Any, fn: Any, grad_position: Any = 0, weights: Any = None, has_aux: bool = False, **kw: Any
) -> Any:
    """ms.value_and_grad: gradients of the weights."""

    def run(*args: Any) -> Any:
        out = front.reader.call(fn, list(args), {})
        backward(front, out[0] if has_aux else out)
        positions = (
            () if grad_position is None else grad_position if isinstance(grad_position, tuple) else (grad_position,)
        )
        of_inputs = tuple(args[i].grad for i in positions)
        of_weights = tuple(w.grad for w in front.reader.items(weights)) if weights is not None else ()
        both = (of_inputs, of_weights) if of_inputs and of_weights else of_weights or of_inputs
        return out, both

    return run


def shard_module(front: Any, model: Any, device_mesh: DeviceMesh, sharding_plan: Instance) -> Any:
    """Parameters, inputs and outputs of layers by paths that end in a parameter's name, input, output."""
    plan = sharding_plan.names

    def moved(x: Any, how: Any) -> Any:
        if not isinstance(x, DTensor) or how is None:
            return x
        to = placed(front, device_mesh, how)
        return DTensor.from_local(x, to.mesh, to.placements) if x.alone else x.redistribute(to, reason="shard_module")

    def found(key: str) -> Iterator[tuple[Any, str, Any]]:
        for path, how in (plan.get(key) or {}).items():
            parent, _, end = path.rpartition(".")
            yield under(front, model, parent), end, how

    for one, end, how in found("plan"):
        to = placed(front, device_mesh, how)
        front.world.note(
            f"{one.kind}.{end}", to.code, distribute_parameter(one, end, to.mesh, to.on(one.names[end].ndim).placements)
        )
    for one, _, how in found("input_plan"):
        each = how if isinstance(how[0], (tuple, list)) else (how,)
        one.register_forward_pre_hook(
            lambda of, args, each=each: tuple(moved(a, h) for a, h in zip(args, each, strict=True))
        )
    for one, _, how in found("output_plan"):
        one.register_forward_hook(lambda of, args, out, how=how: moved(out, how))
    for path in plan.get("return_local_tensor") or ():
        under(front, model, path).register_forward_hook(lambda of, args, out: out.to_local())
    return model


_FACTORIES = ("randn", "rand", "ones", "zeros", "empty")


class HyperFront(ModuleFront):
    """HyperParallel, on MindSpore or on PyTorch."""

    hyper = True
    calls: ClassVar[Table] = {
        **ModuleFront.calls,
        **{f"mint.{name}": entry for name, entry in OPERATORS.items()},
        **{f"ops.{name}": entry for name, entry in (OPERATORS | FUNCTIONAL).items()},
        **{f"ops.{ours}": OPERATORS[theirs] for ours, theirs in (("reduce_sum", "sum"), ("ReLU", "relu"))},
        **{f"{room}.{name}": factory for room in ("mint", "ops") for name in _FACTORIES},
        **NUMPY_LIKE,
        "mindspore.Tensor": lambda front, value=None, dtype=None, shape=None, **kw: (
            front.world.tensor(shape_of(shape), dtype_of(dtype)) if value is None else from_list(front, value, dtype)
        ),
        "Layout": layout,
        "custom_shard": lambda front, func, mesh, out_placements, in_placements=None, redistribute_inputs=False: (
            local_map(front, func, out_placements, in_placements, None, mesh, redistribute_inputs=redistribute_inputs)
        ),
        "initializer": lambda front, init, shape, dtype=None, **kw: filled(front, shape, dtype=dtype),
        "shard_module": shard_module,
        "ShardingPlan": lambda front, plan=None, **kw: Instance(None, {"plan": plan, **kw}),
        "mindspore.value_and_grad": value_and_grad,
        "parallelize_value_and_grad": lambda front, fn, weights, sens=None, **kw: value_and_grad(
            front, fn, None, weights
        ),
        **dict.fromkeys(("SkipDTensorDispatch", "hsdp_sync_stream"), lambda front, *args: None),
        **{f"nn.{n}": optimizer for n in ("SGD", "Adam", "AdamWeightDecay", "Momentum")},
    }
    methods: ClassVar[dict[type, Table]] = {
        **ModuleFront.methods,
        Parts: {**ModuleFront.methods[Parts], "reduce_partial": reduce_partial},
    }
    attributes: ClassVar[dict[type, Table]] = {
        **ModuleFront.attributes,
        MeshLayout: {"placements": lambda front, to: to.placements, "mesh": lambda front, to: to.mesh},
        Parts: {
            **ModuleFront.attributes[Parts],
            "layout": lambda front, x: x.layout,
            "local_shape": lambda front, x: part(x).shape,
        },
    }
