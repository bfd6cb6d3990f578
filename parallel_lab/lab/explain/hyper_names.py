"""What names of HyperParallel mean, and of MindSpore's operators and cells that its programs use.

As in PyTorch but for: nothing is redistributed unasked (an operator on layouts that do not fit is refused), slices are
cut locally, `fully_shard` sends each parameter by itself, and a redistribution goes through the dims in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ...base.errors import LayoutError
from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout, Partial, Replicate, Shard
from ...layout.mesh_redistribution import MeshStep
from .front import NUMPY_LIKE, Table, dtype_of, filled, from_list, shape_of
from .modules import ModuleFront, optimizer, under
from .reading import Instance
from .symbolic import Sym
from .torch_names import FUNCTIONAL, OPERATORS, PLACEMENTS, factory, placed


def by_dims(src: MeshLayout, dst: MeshLayout, ndim: int) -> Iterator[MeshStep]:
    """The steps from one layout to another: what is pending first, then splits, exchanges and gathers, dim by dim."""
    now = src

    def tried(axis: int, to: Any) -> bool:
        try:
            return bool(MeshStep(now, axis, to).kind)
        except LayoutError:
            return False

    while now != dst:
        differ = [a for a in range(now.mesh.ndim) if now.placements[a] != dst.placements[a]]
        ways = [(a, Replicate()) for a in differ if isinstance(now.placements[a], Partial)]
        ways += [(a, dst.placements[a]) for a in differ if now.placements[a] == Replicate()]
        splits = [a for a in differ if isinstance(now.placements[a], Shard)]
        ways += [(a, dst.placements[a]) for a in splits if isinstance(dst.placements[a], Shard)]
        ways += sorted(((a, Replicate()) for a in splits), key=lambda way: now.placements[way[0]].dim)  # type: ignore[union-attr]
        axis, to = next(way for way in ways if tried(*way))
        yield (step := MeshStep(now, axis, to))
        now = step.after


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


def reduce_partial(front: Any, x: Sym) -> Sym:
    """What is pending becomes whole."""
    assert x.layout is not None
    whole = tuple(Replicate() if isinstance(p, Partial) else p for p in x.layout.placements)
    return front.world.redistribute(x, MeshLayout(x.layout.mesh, whole), "reduce_partial")


def value_and_grad(
    front: Any, fn: Any, grad_position: Any = 0, weights: Any = None, has_aux: bool = False, **kw: Any
) -> Any:
    """ms.value_and_grad: gradients of the weights."""

    def run(*args: Any) -> Any:
        out = front.reader.call(fn, list(args), {})
        front.world.backward(out[0] if has_aux else out)
        front.backward_ended()
        positions = (
            () if grad_position is None else grad_position if isinstance(grad_position, tuple) else (grad_position,)
        )
        of_inputs = tuple(args[i].grad for i in positions)
        of_weights = tuple(w.grad for w in front.reader.items(weights)) if weights is not None else ()
        both = (of_inputs, of_weights) if of_inputs and of_weights else of_weights or of_inputs
        return out, both

    return run


def shard_module(front: Any, model: Instance, device_mesh: DeviceMesh, sharding_plan: Instance) -> Instance:
    """Parameters, inputs and outputs of layers by paths that end in a parameter's name, input, output."""
    world, plan = front.world, sharding_plan.names

    def moved(x: Any, how: Any) -> Any:
        if not isinstance(x, Sym) or how is None:
            return x
        to = placed(front, device_mesh, how).on(len(x.shape))
        return world.from_local(x, to) if x.layout is None else world.redistribute(x, to, "shard_module")

    def found(key: str) -> Iterator[tuple[Instance, str, Any]]:
        for path, how in (plan.get(key) or {}).items():
            parent, _, end = path.rpartition(".")
            yield from ((one, end, how) for one in under(model, parent))

    for one, end, how in found("plan"):
        layout = placed(front, device_mesh, how)
        one.names[end] = world.placed(one.names[end].shape, one.names[end].dtype, layout, f"{one.kind}.{end}", True)
    for one, _, how in found("input_plan"):
        each = how if isinstance(how[0], (tuple, list)) else (how,)
        hook = lambda args, each=each: [moved(a, h) for a, h in zip(args, each, strict=True)]  # noqa: E731
        one.names.setdefault("before forward", []).append(hook)
    for one, _, how in found("output_plan"):
        one.names.setdefault("after forward", []).append(lambda out, how=how: moved(out, how))
    for path in plan.get("return_local_tensor") or ():
        for one in under(model, path):
            one.names.setdefault("after forward", []).append(world.to_local)
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
        "initializer": lambda front, init, shape, dtype=None, **kw: filled(front, shape, dtype=dtype),
        "shard_module": shard_module,
        "ShardingPlan": lambda front, plan=None, **kw: Instance(None, {"plan": plan, **kw}),
        "mindspore.value_and_grad": value_and_grad,
        "parallelize_value_and_grad": lambda front, fn, weights, sens=None, **kw: value_and_grad(
            front, fn, None, weights
        ),
        "SkipDTensorDispatch": lambda front, *args: None,
        **{f"nn.{n}": optimizer for n in ("SGD", "Adam", "AdamWeightDecay", "Momentum")},
    }
    methods: ClassVar[dict[type, Table]] = {
        **ModuleFront.methods,
        Sym: {**ModuleFront.methods[Sym], "reduce_partial": reduce_partial},
    }
    attributes: ClassVar[dict[type, Table]] = {
        **ModuleFront.attributes,
        MeshLayout: {"placements": lambda front, to: to.placements, "mesh": lambda front, to: to.mesh},
        Sym: {
            **ModuleFront.attributes[Sym],
            "layout": lambda front, x: x.layout,
            "local_shape": lambda front, x: x.local_shape,
        },
    }

    def __init__(self, world: Any, devices: int) -> None:
        super().__init__(world, devices)
        world.planner = lambda src, dst, shape: by_dims(src, dst, len(shape))
