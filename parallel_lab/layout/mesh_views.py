"""Where the elements of a reshaped tensor lie, if nobody sends any: the layout of the same local elements.

    (8, 4, 12), [Shard(0), Shard(1)] on (2, 4)  ->  (32, 12), [Shard(0), StridedShard(0, 4)]

Dims that a reshape joins or splits form groups of equal size. A split of a group's first dim stays one of the first
dim of the result; a later dim, joined, lies in strides: the pieces of the dims before it come first. Where a dim is
split into two, the outer one keeps the split, if it divides. Rule: PyTorch 2.14, view operators of DTensor, which
raises, too, where a split would have to cross a border.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..base.errors import LayoutError
from .mesh_layout import AxisPlacement, MeshLayout, Shard, StridedShard
from .tensor_layout import Shape


def reshaped(layout: MeshLayout, shape: Shape, new_shape: Shape, where: str = "reshape") -> MeshLayout:
    """The layout of a tensor of `shape` after a reshape of every rank's part. Raises LayoutError where parts would
    have to be cut.

    >>> from .device_mesh import DeviceMesh
    >>> reshaped(MeshLayout.coded(DeviceMesh((2, 4)), "S0 S1"), (8, 4, 12), (32, 12)).code
    'S0 SS0:4'
    """
    layout = layout.on(len(shape))
    placements: list[AxisPlacement] = list(layout.placements)
    for old, new in _groups(shape, new_shape):
        local, made = {dim: shape[dim] for dim in old}, {dim: new_shape[dim] for dim in new}
        for axis, (placement, ranks) in enumerate(zip(layout.placements, layout.mesh.shape, strict=True)):
            if not isinstance(placement, (Shard, StridedShard)) or placement.dim not in local:
                continue
            if len(old) == len(new) == 1:  # the dim itself, however it is cut
                placements[axis] = replace(placement, dim=new[0])
                continue
            before = math.prod(local[dim] for dim in old if dim < placement.dim) * placement.split_factor
            found = _place(made, before, ranks)
            if found is None or local[placement.dim] % (ranks * placement.split_factor):
                given = f"{placement} of {ranks} ranks, of a tensor of shape {shape}, to shape {new_shape}"
                allowed = "A split of the first of the dims that are joined or split, into equal parts"
                hint = f"Redistribute it first: axis {layout.mesh.names[axis]!r} to Replicate()"
                raise LayoutError(given, where=where, allowed=allowed, hint=hint)
            dim, factor = found
            placements[axis] = StridedShard(dim, factor) if factor > 1 else Shard(dim)
            local[placement.dim] //= ranks
            made[dim] //= ranks
    return MeshLayout(layout.mesh, tuple(placements))


def _place(made: dict[int, int], before: int, ranks: int) -> tuple[int, int] | None:
    """(dim of the result, factor) of a split that comes after `before` pieces of a group."""
    passed = 1
    for dim, size in made.items():
        if before % passed == 0 and before < passed * size:
            factor = before // passed
            return (dim, factor) if size % (factor * ranks) == 0 else None
        passed *= size
    return None


def _groups(shape: Shape, new_shape: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Smallest runs of dims of both shapes with equal products, dims of 1 left out."""
    old = [(dim, n) for dim, n in enumerate(shape) if n != 1]
    new = [(dim, n) for dim, n in enumerate(new_shape) if n != 1]
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        while (a := math.prod(n for _, n in left)) != (b := math.prod(n for _, n in right)):
            if a < b and old:
                left.append(old.pop(0))
            elif b < a and new:
                right.append(new.pop(0))
            else:
                return
        yield [dim for dim, _ in left], [dim for dim, _ in right]
