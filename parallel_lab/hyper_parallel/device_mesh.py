"""HyperParallel's `DeviceMesh`: the mesh of `layout/device_mesh.py`, seen from one rank.

    mesh = init_device_mesh("npu", (2, 4), mesh_dim_names=("dp", "tp"))
    mesh["tp"].rank_list, mesh.get_rank_list_along_axis("dp")

In a process that plays all ranks, it is rank 0 that looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.checks import fitting, fitting_class
from ..base.errors import LayoutError, LayoutTypeError, ParallelLabError, WorldArgumentError, shorten
from ..base.hooks import current_world
from ..layout import device_mesh as ours
from ..train import communication
from ..train.checkpoint import load_checkpoint, save_checkpoint

Names = Sequence[str] | None
INTERLEAVED = "interleaved_parallel"


class AxisNameError(LayoutError, KeyError):
    """A name that no axis of a mesh has (HyperParallel raises KeyError)."""

    __str__ = Exception.__str__  # KeyError's own shows the text in quotes


class Platform:
    """What a mesh asks its surroundings; HyperParallel has one for PyTorch and one for MindSpore."""

    def get_rank(self) -> int:
        """This process's rank; 0 where it plays all."""
        world = current_world()
        return 0 if world is None else world.rank

    def get_world_size(self) -> int:
        """Number of ranks; 0 where nobody has said how many one process plays."""
        world = current_world()
        return 0 if world is None else world.world_size

    def save_checkpoint(self, cell: Any, file_path: str, ckpt_format: str = "ckpt") -> None:
        """A network, or a dict of tensors, as a file.  ckpt_format: "ckpt" or "safetensors" """
        save_checkpoint(cell, file_path, format=ckpt_format)

    def load_checkpoint(self, file_path: str, ckpt_format: str = "ckpt") -> dict[str, Any]:
        """{name: Parameter} of such a file."""
        return load_checkpoint(file_path, format=ckpt_format)


platform = Platform()


@fitting
def get_platform() -> Platform:
    """What this process knows of the ranks around it."""
    return platform


# ---- process groups: tuples of ranks ----


@fitting
def init_process_group(backend: str | None = None, **more: Any) -> None:
    """`communication.init`: the ranks meet as their launcher says; backends of accelerators are names here.

    backend  None, "hccl", "nccl", or "mpi";  more (init_method, timeout, world_size, ...): accepted
    """
    communication.init(None if backend in ("gloo", "npu:hccl") else backend)


@fitting
def destroy_process_group(group: Any = None) -> None:
    """Leave the world.  group: accepted; a group of some ranks holds nothing that could be given back."""
    if group is None and current_world() is not None:
        communication.release()


@fitting
def get_process_group_ranks(group: Any = None) -> list[int]:
    """The ranks of a group; None: of all."""
    return list(range(max(platform.get_world_size(), 1)) if group is None else group)


@fitting
def split_group(parent_pg: Any = None, split_ranks: Any = None, **more: Any) -> tuple[int, ...] | None:
    """The one among groups of ranks that this process's rank is in; None if in none.

    split_ranks  groups, each a list of ranks of parent_pg (None: the world);  more: accepted

    Raises LayoutError (a ValueError): no groups, a rank in two of them or outside of the parent.
    """
    groups = [tuple(sorted(map(int, ranks))) for ranks in split_ranks or ()]
    every = [rank for ranks in groups for rank in ranks]
    parent = get_process_group_ranks(parent_pg)
    outside = set(every) - set(parent) if parent_pg is not None or platform.get_world_size() else set()
    if not groups or len(set(every)) < len(every) or outside:
        allowed = f"Groups that share no rank, of {shorten(parent)}"
        raise LayoutError(f"split_ranks={shorten(split_ranks)}", where="split_group", allowed=allowed)
    return next((ranks for ranks in groups if platform.get_rank() in ranks), None)


@fitting_class
class DeviceMesh:
    """Ranks as a matrix whose axes have names.

    device_type     accepted, and not used: every rank computes on this machine's processors
    mesh            ranks as an array; None: all ranks of the world in a row
    mesh_dim_names  of its axes; None: without names, so that no alias can be used
    executor        as of this package's meshes: where DTensors of a notebook lie

    mesh_shape, rank_list, ndim, rank: this process's;  pivot: the same as a mesh of this package

    Raises LayoutError (ValueError): names that do not fit, a rank twice; LayoutTypeError (TypeError): another type.
    """

    def __init__(
        self,
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Names = None,
        executor: str = "simulator",
        _init_backend: bool = True,
    ) -> None:
        if mesh is None:
            mesh = range(max(platform.get_world_size(), 1))
        if not isinstance(mesh, (list, tuple, range, np.ndarray)) and not hasattr(mesh, "asnumpy"):
            allowed = "Tensor, list, tuple or array"
            raise LayoutTypeError(f"mesh={shorten(mesh)}", where="DeviceMesh", allowed=allowed)
        array = np.asarray(mesh.asnumpy() if hasattr(mesh, "asnumpy") else mesh)
        if not array.ndim:
            raise LayoutError(f"mesh={shorten(mesh)}", where="DeviceMesh", allowed="An array of one dim or more")
        names = tuple(mesh_dim_names or ())
        if INTERLEAVED in names[:-1]:
            raise LayoutError(f"{INTERLEAVED!r} in {names}", where="DeviceMesh", allowed="Only as the last name")
        if names and len(names) != array.ndim:
            given = f"{len(names)} mesh_dim_names for a mesh of {array.ndim} dims"
            raise LayoutError(given, where="DeviceMesh", allowed="One name per dim")
        self.device_type, self.mesh, self.mesh_dim_names = device_type, mesh, names or None
        self.rank_list = tuple(map(int, array.ravel()))  # in row-major order
        self.pivot = ours.DeviceMesh(array.shape, names, self.rank_list, executor)
        self.rank, self.root_mesh = platform.get_rank(), None
        self.sub_mesh: list[DeviceMesh] = []
        self._flat: dict[str, DeviceMesh] = {}

    mesh_shape = property(lambda self: self.pivot.shape, doc="Ranks along each axis.")
    shape = mesh_shape
    ndim = property(lambda self: self.pivot.ndim, doc="Number of axes.")

    def size(self, mesh_dim: int | None = None) -> int:
        """Number of ranks, of all or along an axis."""
        return self.pivot.size if mesh_dim is None else self.mesh_shape[mesh_dim]

    # ---- axes ----

    def axis_index(self, axis: str) -> int:
        """Number of an axis from the left. Raises LayoutError for an unknown one."""
        if self.mesh_dim_names is None:
            hint = "init_device_mesh(..., mesh_dim_names=(...))"
            raise WorldArgumentError(f"axis {axis!r} of a mesh without names", where="DeviceMesh", hint=hint)
        return self.pivot.axis(axis)

    def axis_id(self, axis: str) -> int:
        """Number of an axis from the right, as a tensor map has it; -1 for "None"."""
        return -1 if axis == "None" else self.ndim - 1 - self.axis_index(axis)

    def get_device_num_along_axis(self, axis: str) -> int:
        """Ranks along an axis."""
        return self.mesh_shape[self.axis_index(axis)]

    def _dim(self, mesh_dim: int | str | None, where: str) -> int:
        """An axis by its name, its number, or as the only one."""
        if mesh_dim is None:
            if self.ndim > 1:
                allowed = f"One of {self.mesh_dim_names}: the mesh has {self.ndim} axes"
                raise WorldArgumentError("no mesh_dim", where=where, allowed=allowed)
            return 0
        if isinstance(mesh_dim, str):
            return self.pivot.axis(mesh_dim if self.mesh_dim_names else "")
        if type(mesh_dim) is not int or not 0 <= mesh_dim < self.ndim:
            raise LayoutError(f"mesh_dim={shorten(mesh_dim)}", where=where, allowed=f"A name, or 0 to {self.ndim - 1}")
        return mesh_dim

    # ---- ranks ----

    def get_devices_for_axis(self, mesh_dim: int | str, rank: int) -> list[int]:
        """The ranks that differ from `rank` along an axis alone, in the order of the mesh."""
        return list(self.pivot.group(self.pivot.names[self._dim(mesh_dim, "get_devices_for_axis")], rank))

    def get_rank_list_along_axis(self, mesh_dim: str) -> list[int]:
        """The same for this process's rank."""
        return list(self.pivot.group(self.pivot.names[self.axis_index(mesh_dim)], self.rank))

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Where this process's rank stands; None if it is not in the mesh."""
        return self.pivot.coordinates(self.rank) if self.rank in self.rank_list else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """The same along one axis. Raises LayoutError if it is not in the mesh."""
        return self.pivot.coordinates(self.rank)[self._dim(mesh_dim, "get_local_rank")]

    def get_group(self, mesh_dim: int | str | None = None) -> tuple[int, ...]:
        """The group of this process's rank along an axis: its ranks, ascending, as a process group has them."""
        if isinstance(mesh_dim, str) and (flat := self._root._flat.get(mesh_dim)) is not None:
            return flat.get_group()
        return tuple(sorted(self.get_devices_for_axis(self._dim(mesh_dim, "get_group"), self.rank)))

    get_comm_group_by_axis = get_group

    def get_all_groups(self) -> list[tuple[int, ...]]:
        """`get_group` of every axis."""
        return [self.get_group(axis) for axis in range(self.ndim)]

    # ---- other meshes ----

    @property
    def _root(self) -> DeviceMesh:
        return self if self.root_mesh is None else self.root_mesh

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The part of the mesh along these axes, in their order, in which this process's rank lies.

        Raises AxisNameError (a KeyError): an unknown name; LayoutError: another order; LayoutTypeError.
        """
        where = f"{self!r}[{shorten(names)}]"
        if self.mesh_dim_names is None:
            raise WorldArgumentError("a mesh without names", where=where, allowed="mesh_dim_names of init_device_mesh")
        wanted = (names,) if isinstance(names, str) else names
        if not isinstance(wanted, tuple):
            raise LayoutTypeError(f"{shorten(names)}", where="DeviceMesh", allowed="A name, or a tuple of names")
        flat = self._root._flat
        if len(wanted) == 1 and wanted[0] in flat:
            return flat[wanted[0]]
        if unknown := [name for name in wanted if name not in (*self.mesh_dim_names, *flat)]:
            allowed = f"Some of {(*self.mesh_dim_names, *flat)}"
            raise AxisNameError(f"no axis {unknown[0]!r}", where="DeviceMesh", allowed=allowed)
        places = [self.mesh_dim_names.index(name) for name in wanted if name in self.mesh_dim_names]
        if not wanted or len(places) < len(wanted) or places != sorted(set(places)):
            allowed = f"Names in the order of {self.mesh_dim_names}; one flattened axis by itself"
            raise LayoutError(f"axes {shorten(wanted)}", where="DeviceMesh", allowed=allowed)
        if len(wanted) == self.ndim:
            return self
        for made in self.sub_mesh:
            if made.mesh_dim_names == wanted:
                return made
        here = self.get_coordinate() or (0,) * self.ndim
        ranks = np.reshape(self.rank_list, self.mesh_shape)
        part = ranks[tuple(slice(None) if axis in places else at for axis, at in enumerate(here))]
        made = self._made(part, wanted)
        made.pivot = self.pivot[wanted]  # the same axes, for every rank of the whole mesh
        return made

    def flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """The same ranks in a row.  mesh_dim_name: of its axis; None: the names, joined by "_".

        Raises LayoutError for a name that an axis, or another flattened mesh, has.
        """
        name = mesh_dim_name or "_".join(self.mesh_dim_names or ())
        if self.mesh_dim_names == (name,):
            return self
        root = self._root
        made = root._flat.get(name)
        if name in (root.mesh_dim_names or ()) or (made is not None and made.rank_list != self.rank_list):
            raise LayoutError(f"mesh_dim_name={name!r}", where="flatten", allowed="A name that nothing has")
        if made is None:
            made = root._flat[name] = root._made(np.array(self.rank_list), (name,))
        return made

    def _made(self, ranks: np.ndarray, names: tuple[str, ...]) -> DeviceMesh:
        made = DeviceMesh(self.device_type, ranks, mesh_dim_names=names, executor=self.pivot.executor)
        made.root_mesh, made.rank = self._root, self.rank
        self.sub_mesh.append(made)
        return made

    @staticmethod
    def from_group(group: Any, device_type: str, mesh: Any = None, mesh_dim_names: Names = None) -> DeviceMesh:
        """The mesh of a group, which is a tuple of ranks; of a list of groups, with their ranks as an array `mesh`."""
        if isinstance(group, list) and (mesh is None or not group or np.ndim(mesh) != len(group)):
            given = f"{len(group)} groups with mesh={shorten(mesh)}"
            raise LayoutError(given, where="from_group", allowed="A mesh of one dim per group")
        if not isinstance(group, list) and mesh is not None and list(mesh) != list(group):
            raise LayoutError(f"mesh={shorten(mesh)}", where="from_group", allowed=f"The group's ranks {group}")
        return DeviceMesh(device_type, list(group) if mesh is None else mesh, mesh_dim_names=mesh_dim_names)

    # ---- tensors ----

    def get_global_shape(self, slice_shape: Sequence[int], tensor_map: Sequence[Any] | None) -> tuple[int, ...]:
        """Shape of the tensor whose slices have this shape. Raises LayoutError: another number of dims."""
        if tensor_map is None or len(slice_shape) != len(tensor_map):
            given = f"slice_shape={tuple(slice_shape)} with tensor_map={tensor_map}"
            raise LayoutError(given, where="get_global_shape", allowed="An entry per dim")
        entries = [entry if isinstance(entry, tuple) else (entry,) for entry in tensor_map]
        splits = [math.prod(self.mesh_shape[-1 - axis] for axis in entry if axis >= 0) for entry in entries]
        return tuple(int(size * split) for size, split in zip(slice_shape, splits, strict=True))

    def to_hash(self) -> tuple[Any, ...]:
        """What makes two meshes equal: shape, names, ranks."""
        return self.mesh_shape, self.mesh_dim_names, self.rank_list

    def __repr__(self) -> str:
        shape, names, ranks = self.to_hash()
        kind = self.device_type
        return f"DeviceMesh(device_type={kind!r}, mesh_shape={shape}, mesh_dim_names={names}, rank_list={ranks})"


@lru_cache(maxsize=1024)
def _mesh(
    kind: str, shape: tuple[int, ...], names: tuple[str, ...] | None, ranks: tuple[int, ...], rank: int, executor: str
) -> DeviceMesh:
    return DeviceMesh(kind, np.reshape(ranks, shape), mesh_dim_names=names, executor=executor)


@fitting
def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: Names = None,
    rank_list: Sequence[int] | None = None,
    init_backend: bool = True,
    alias_name: Names = None,
    executor: str = "simulator",
) -> DeviceMesh:
    """A mesh by its shape; equal arguments give one object.

    rank_list   in row-major order; None: as many ranks as the mesh has, this process's among them
    alias_name  what mesh_dim_names were called at first

    Raises LayoutError: names or ranks that do not fit the shape; LayoutTypeError: a list as the shape.
    """
    names = mesh_dim_names or alias_name
    if not isinstance(mesh_shape, tuple) or any(type(n) is not int for n in mesh_shape):
        raise LayoutTypeError(f"mesh_shape={shorten(mesh_shape)}", where="init_device_mesh", allowed="A tuple of ints")
    if names is not None and (not isinstance(names, (tuple, list)) or any(not isinstance(n, str) for n in names)):
        raise LayoutTypeError(f"mesh_dim_names={shorten(names)}", where="init_device_mesh", allowed="A tuple of names")
    size = math.prod(mesh_shape)
    if rank_list is not None and len(rank_list) != size:
        raise LayoutError(f"{len(rank_list)} ranks in rank_list", where="init_device_mesh", allowed=f"{size}")
    rank = platform.get_rank()
    first = rank - rank % max(size, 1)
    ranks = tuple(range(first, first + size)) if rank_list is None else tuple(rank_list)
    try:
        return _mesh(device_type, mesh_shape, tuple(names) if names else None, ranks, rank, executor)
    except ParallelLabError:
        raise
    except ValueError as error:
        raise LayoutError(f"mesh_shape={mesh_shape}", where="init_device_mesh", allowed=str(error)) from None
