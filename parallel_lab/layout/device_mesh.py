"""`DeviceMesh`: ranks as a matrix whose axes have names, what PyTorch, JAX and HyperParallel call a mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..base.checks import fitting, fitting_class
from ..base.errors import LayoutError, LayoutTypeError, shorten
from .tensor_layout import ranks_along

EXECUTORS = ("simulator", "processes", "mpi")


@fitting_class
@dataclass(frozen=True)
class DeviceMesh:
    """Ranks as a matrix whose axes have names.

    shape  ranks along each axis
    names  of the axes, each its own; (): axis0, axis1, ...
    ranks  in row-major order of the mesh; (): 0, 1, 2, ...
    executor  where DTensors lie in a process that is not a rank, as of a Session: "simulator": all parts in this
              process; "processes": a worker process per rank; "mpi": a rank of MPI each

    Raises LayoutError (a ValueError), LayoutTypeError (a TypeError).

    >>> mesh = DeviceMesh((2, 4), ("dp", "tp"))
    >>> mesh.coordinates(5), mesh.group("dp", 5), mesh.group("tp", 5)
    ((1, 1), (1, 5), (4, 5, 6, 7))
    """

    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    executor: str = "simulator"

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            given = f"executor={shorten(self.executor)}"
            raise LayoutError(given, where="DeviceMesh", allowed=f"One of {EXECUTORS}")
        shape = self._given("shape", self.shape, int)
        names = self._given("names", self.names or tuple(f"axis{n}" for n in range(len(shape))), str)
        if not shape or min(shape) < 1 or len(shape) > 64:
            raise LayoutError(f"shape {shorten(shape)}", where="DeviceMesh", allowed="1 to 64 axes of 1 rank or more")
        if len(names) != len(shape) or len(set(names)) < len(names) or "" in names:
            allowed = f"{len(shape)} names, each its own"
            raise LayoutError(f"names {shorten(names)} for {len(shape)} axes", where="DeviceMesh", allowed=allowed)
        size = math.prod(shape)
        ranks = self._given("ranks", self.ranks, int) or tuple(range(size))
        if len(ranks) != size or len(set(ranks)) < size or min(ranks) < 0:
            raise LayoutError(f"ranks {shorten(ranks)}", where="DeviceMesh", allowed=f"{size} different ranks")
        for name, value in {"shape": shape, "names": names, "ranks": ranks}.items():
            object.__setattr__(self, name, value)

    def _given(self, name: str, values: Sequence[Any], kind: type) -> tuple[Any, ...]:
        if not isinstance(values, (tuple, list)) or any(type(v) is not kind for v in values):
            allowed = f"A tuple of {'ints' if kind is int else 'names'}"
            raise LayoutTypeError(f"{name}={shorten(values)}", where="DeviceMesh", allowed=allowed)
        return tuple(values)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def in_order(self) -> bool:
        """Whether the ranks are 0, 1, 2, ... in row-major order."""
        return self.ranks == tuple(range(self.size))

    @property
    def members(self) -> tuple[int, ...]:
        """All ranks that take part: of a mesh its own, of one over some of its axes those of the whole mesh."""
        return self.ranks

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The mesh over some of the axes, in their order: mesh["tp"]. Raises LayoutError for an unknown name.

        What is laid out over it is a tensor for each place along the other axes: its ranks do the same in their group.
        """
        names = (names,) if isinstance(names, str) else tuple(names)
        axes = [self.axis(name) for name in names]
        if not axes or axes != sorted(set(axes)):
            given, allowed = f"axes {shorten(names)}", f"Some of {self.names}, in this order"
            raise LayoutError(given, where="DeviceMesh", allowed=allowed)
        if len(axes) == self.ndim:
            return self
        index = tuple(slice(None) if axis in axes else 0 for axis in range(self.ndim))
        ranks = np.reshape(self.ranks, self.shape)[index].ravel().tolist()
        return SubMesh(tuple(self.shape[axis] for axis in axes), names, tuple(ranks), self.executor, self)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.ranks)}

    def axis(self, name: str) -> int:
        """Number of an axis, from the left. Raises LayoutError for an unknown name."""
        if name not in self.names:
            raise LayoutError(f"no axis {shorten(name)}", where="DeviceMesh", allowed=f"One of {self.names}")
        return self.names.index(name)

    def axis_size(self, name: str) -> int:
        """Ranks along an axis."""
        return self.shape[self.axis(name)]

    def place(self, rank: int) -> int:
        """Where a rank stands in row-major order. Raises LayoutError for one that is not in the mesh."""
        if rank not in self._places:
            raise LayoutError(f"rank {shorten(rank)} is not in the mesh", allowed=f"One of {shorten(self.ranks)}")
        return self._places[rank]

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Position of a rank along each axis, from the left."""
        return tuple(int(n) for n in np.unravel_index(self.place(rank), self.shape))

    def group(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks that differ from `rank` along this axis alone, in the order of the mesh."""
        counted_from_right = self.ndim - 1 - self.axis(name)
        return tuple(self.ranks[place] for place in ranks_along(self.shape, (counted_from_right,), self.place(rank)))

    def __str__(self) -> str:
        text = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True))
        return f"mesh ({text})" if self.in_order else f"mesh ({text}) of ranks {self.ranks}"


@fitting_class
@dataclass(frozen=True)
class SubMesh(DeviceMesh):
    """Some axes of a mesh: `mesh["tp"]`.

    whole  the mesh; `ranks` are those of its first group, `members` all of it
    """

    whole: DeviceMesh = None  # type: ignore[assignment]

    members = property(lambda self: self.whole.members, doc="The ranks of the whole mesh.")

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        for name in (names,) if isinstance(names, str) else names:
            self.axis(name)
        return self.whole[names]

    def place(self, rank: int) -> int:
        whole = self.whole.coordinates(rank)
        return int(np.ravel_multi_index([whole[self.whole.axis(name)] for name in self.names], self.shape))

    def group(self, name: str, rank: int) -> tuple[int, ...]:
        self.axis(name)
        return self.whole.group(name, rank)


@fitting
def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
    executor: str = "simulator",
) -> DeviceMesh:
    """A DeviceMesh of the ranks 0, 1, 2, ..., as PyTorch and HyperParallel make it.

    device_type  "cpu", "cuda", "npu", ...: taken, without effect;  mesh_dim_names  None: axis0, axis1, ...
    executor     in a notebook: "simulator", "processes" (a worker process per rank) or "mpi"

    Raises LayoutError, LayoutTypeError.
    """
    if not isinstance(device_type, str):
        raise LayoutTypeError(f"device_type={shorten(device_type)}", where="init_device_mesh", allowed='"cpu", "npu"')
    return DeviceMesh(mesh_shape, () if mesh_dim_names is None else mesh_dim_names, executor=executor)
