"""Trees of JAX arrays, and shardings that arrays are laid out by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout
from ...nn.tensor.dtensor import DTensor
from .values import Instance, NotRead


@dataclass(frozen=True)
class Spec:
    """PartitionSpec: per dim the axes that split it, outer first."""

    entries: tuple[Any, ...]

    def layout(self, mesh: DeviceMesh, ndim: int) -> MeshLayout:
        """As placements on a mesh."""
        if len(self.entries) > ndim:
            raise NotRead(f"refused: {len(self.entries)} entries for an array of {ndim} dims")
        dims = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in self.entries]
        return MeshLayout.from_dims(mesh, (*dims, *((),) * (ndim - len(dims))))

    def fits(self, mesh: DeviceMesh, shape: Sequence[int]) -> MeshLayout:
        """The same for an array of this shape, which it divides."""
        layout = self.layout(mesh, len(shape))
        for size, axes in zip(shape, layout.dims(len(shape)), strict=True):
            if size % math.prod(mesh.axis_size(axis) for axis in axes):
                raise NotRead(f"refused: {size} is not divisible by the ranks along {axes}")
        return layout


@dataclass(frozen=True)
class Sharding:
    """NamedSharding."""

    mesh: DeviceMesh
    spec: Spec


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(tree, Instance):  # of a class with fields
        tree = tree.names
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def mapped(change: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with its leaves changed; others: trees alike, or a leaf for all below."""
    if isinstance(tree, Instance):
        others = tuple(o.names if isinstance(o, Instance) else o for o in others)
        return Instance(tree.of, mapped(change, tree.names, *others), tree.kind)
    if isinstance(tree, dict):
        return {k: mapped(change, v, *(o[k] if isinstance(o, dict) else o for o in others)) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        made = [
            mapped(change, v, *(o[i] if isinstance(o, (list, tuple)) and len(o) == len(tree) else o for o in others))
            for i, v in enumerate(tree)
        ]
        return tuple(made) if isinstance(tree, tuple) else made
    return change(tree, *others)


def laid(front: Any, x: Any, how: Any) -> Any:
    """An array in a layout that is asked for; None: as it is."""
    if not isinstance(x, DTensor) or how is None:
        return x
    if isinstance(how, Spec):
        how = Sharding(front.known_mesh(), how)
    if not isinstance(how, Sharding):
        return x
    layout = how.spec.fits(how.mesh, x.shape)
    if x.alone:
        made = front.world.tensor(x.shape, x.dtype, layout, made_of=(x,))
        front.world.note("placed", layout.code, made)
        return front.world.through("placed", x, made, lambda g: g)
    begun = len(front.world.messages)
    made = x.redistribute(layout, reason="a sharding that is asked for")
    if id(x) in front.world.computed and any(m.kind == "all_gather" for m in front.world.messages[begun:]):
        raise NotRead("whether XLA gathers a result that is asked for whole, or what it is computed of, is not known")
    return made
