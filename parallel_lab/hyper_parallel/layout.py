"""HyperParallel's placements and `Layout`: a MeshLayout written as MindSpore writes it, or as PyTorch does.

    layout = Layout((2, 4), ("dp", "tp"))
    layout("dp", "None")                 per dim the axes that split it: tensor_map (1, -1)
    layout(Shard(0), Partial())          per axis what it does; which dims there are is said later
    x = layout("dp", "None"); x.set_partial_by_dev_axis("tp", "sum")

A layout can be changed; `mesh_layout` gives the fixed one that tensors of this package have.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

from ..base.checks import fitting, fitting_class
from ..base.errors import LayoutError, LayoutTypeError, shorten
from ..layout import mesh_layout as ours
from .device_mesh import INTERLEAVED, DeviceMesh, init_device_mesh, platform

PARTIAL_OPS = ("sum", "max", "min", "avg", "prod", "all")
_OURS = {"prod": "product", "all": "band"}
_THEIRS = {op: name for name, op in _OURS.items()}
Entry = str | tuple[str, ...]  # of a dim: an axis, several, or "None"


# ---- placements ----


class Placement:
    """What one axis of a mesh does."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether it splits a dim; this one."""
        return False

    def is_replicate(self) -> bool:
        """Whether its ranks hold copies."""
        return False

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether its ranks hold addends, or what is else to be reduced; in this way."""
        return False


@fitting_class
class Shard(Placement, ours.Shard):
    """Its ranks hold pieces of a dim."""

    def is_shard(self, dim: int | None = None) -> bool:
        return dim is None or self.dim == dim

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ours.Shard) and self.dim == other.dim

    __hash__ = ours.Shard.__hash__


@fitting_class
class Replicate(Placement, ours.Replicate):
    """Its ranks hold copies."""

    def is_replicate(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ours.Replicate)

    __hash__ = ours.Replicate.__hash__


@fitting_class
class Partial(Placement, ours.Partial):
    """Its ranks hold what is still to be reduced.  reduce_op: one of sum, max, min, avg, prod, all"""

    def __post_init__(self) -> None:
        if self.reduce_op not in PARTIAL_OPS:
            given = f"reduce_op={shorten(self.reduce_op)}"
            raise LayoutError(given, where="Partial", allowed=f"One of {PARTIAL_OPS}")

    def is_partial(self, reduce_op: str | None = None) -> bool:
        return reduce_op is None or self.reduce_op == reduce_op

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ours.Partial) and as_ours(self).reduce_op == as_ours(other).reduce_op

    __hash__ = ours.Partial.__hash__


@fitting_class
class RaggedShard(Placement):
    """Its ranks hold pieces of the first dims, read as one flat dim, in proportion to numbers of units.

    dims         0, 1, ..., n: the dims that are flattened, from the first on
    local_units  units of each rank along the axis, 0 or more; the whole is their sum

    One axis of a mesh may have it, the others Replicate(). Raises LayoutError, LayoutTypeError.

    >>> RaggedShard((0,), (1, 3, 0, 4)).pieces(16)
    ((0, 2), (2, 8), (8, 8), (8, 16))
    """

    def __init__(self, dims: Sequence[int], local_units: Sequence[int]) -> None:
        for name, values in (("dims", dims), ("local_units", local_units)):
            if not isinstance(values, (tuple, list)) or any(type(n) is not int for n in values):
                raise LayoutTypeError(f"{name}={shorten(values)}", where="RaggedShard", allowed="A tuple of ints")
        if tuple(dims) != tuple(range(len(dims))) or not dims:
            raise LayoutError(f"dims={tuple(dims)}", where="RaggedShard", allowed="0, 1, ..., from the first dim on")
        if not local_units or min(local_units) < 0 or not sum(local_units):
            given = f"local_units={tuple(local_units)}"
            raise LayoutError(given, where="RaggedShard", allowed="0 or more for each rank, some above")
        self.dims, self.local_units = tuple(dims), tuple(local_units)

    def is_shard(self, dim: int | None = None) -> bool:
        return dim is None or dim in self.dims

    def is_ragged_shard(self) -> bool:
        """True."""
        return True

    def pieces(self, size: int) -> tuple[tuple[int, int], ...]:
        """(start, stop) of each rank among so many elements. Raises LayoutError unless the units divide them."""
        if size % (units := sum(self.local_units)):
            raise LayoutError(f"{size} elements in {units} units", where="RaggedShard", allowed="A multiple")
        ends = list(itertools.accumulate(n * size // units for n in self.local_units))
        return tuple(zip([0, *ends[:-1]], ends, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RaggedShard) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.dims, self.local_units

    def __repr__(self) -> str:
        return f"RaggedShard(dims={self.dims}, local_units={self.local_units})"


def as_ours(placement: Any) -> ours.AxisPlacement:
    """A placement as this package has it: its own are left as they are."""
    if isinstance(placement, Shard):
        return ours.Shard(placement.dim)
    if isinstance(placement, Partial):
        return ours.Partial(_OURS.get(placement.reduce_op, placement.reduce_op))
    return ours.Replicate() if isinstance(placement, Replicate) else placement


# ---- layouts ----


@fitting_class
class Layout:
    """Where the slices of a tensor lie.

    mesh_shape, alias_name, rank_list  of the mesh;  init_backend: accepted

    tensor_map, alias_tensor_map  per dim the axes that split it, as numbers from the right (-1: whole) and as names;
                                  None until dims are known
    placements                    what each axis does;  partial: how its ranks are to be reduced, or None

    Raises LayoutError (ValueError): an unknown axis, one that is used twice; LayoutTypeError (TypeError).
    """

    def __init__(
        self,
        mesh_shape: tuple[int, ...],
        alias_name: tuple[str, ...],
        rank_list: Sequence[int] | None = None,
        init_backend: bool = True,
    ) -> None:
        if not isinstance(alias_name, (tuple, list)):
            raise LayoutTypeError(f"alias_name={shorten(alias_name)}", where="Layout", allowed="A tuple of names")
        if "None" in alias_name:
            raise LayoutError(f"alias_name={alias_name}", where="Layout", allowed='Names other than "None"')
        counted = isinstance(mesh_shape, tuple) and all(type(n) is int for n in mesh_shape)
        ranks = tuple(rank_list or range(math.prod(mesh_shape) if counted else 0))
        self._start(init_device_mesh("npu", mesh_shape, mesh_dim_names=tuple(alias_name), rank_list=ranks))

    def _start(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.tensor_map: tuple[Any, ...] | None = None
        self.alias_tensor_map: tuple[Entry, ...] | None = None
        self.placements: Sequence[Any] | None = None
        self.partial: list[str | None] = [None] * mesh.ndim

    @classmethod
    def from_device_mesh(cls, device_mesh: DeviceMesh) -> Layout:
        """A layout on a mesh that is there."""
        made = cls.__new__(cls)
        made._start(device_mesh)
        return made

    def __call__(self, *entries: Any) -> Layout:
        """This layout for a tensor: an alias, a tuple of aliases or "None" per dim; or a placement per axis."""
        made = copy.copy(self)
        made.partial = list(self.partial)
        if len(entries) == 1 and isinstance(entries[0], (tuple, list)) and _are_placements(entries[0]):
            entries = entries[0]  # ty: ignore
        if _are_placements(entries):
            if len(entries) != self.mesh.ndim:
                given = f"{len(entries)} placements on a mesh of {self.mesh.ndim} axes"
                raise LayoutError(given, where="Layout", allowed="One per axis, from the left")
            made.placements, made.tensor_map, made.alias_tensor_map = entries, None, None
            return made
        made.tensor_map, made.alias_tensor_map = self._numbered(entries), tuple(entries)
        made.tensor_map_to_placement()
        return made

    def _numbered(self, entries: Sequence[Entry]) -> tuple[Any, ...]:
        used: set[str] = set()

        def number(axis: Any) -> int:
            if axis == "None":
                return -1
            if axis not in (self.alias_name or ()):
                raise LayoutError(f"axis {shorten(axis)}", where="Layout", allowed=f"One of {self.alias_name}")
            if axis in used:
                given = f"axis {axis!r} has been set more than once"
                raise LayoutError(given, where="Layout", allowed="An axis splits one dim, once")
            used.add(axis)
            return self.mesh.axis_id(axis)

        return tuple(tuple(map(number, entry)) if isinstance(entry, tuple) else number(entry) for entry in entries)

    # ---- forms ----

    mesh_shape = property(lambda self: self.mesh.mesh_shape, doc="Ranks along each axis.")
    alias_name = property(lambda self: self.mesh.mesh_dim_names, doc="Names of the axes.")
    rank_list = property(lambda self: self.mesh.rank_list, doc="Ranks in row-major order.")

    def dims(self) -> tuple[tuple[str, ...], ...]:
        """Per dim the axes that split it, outer first. Raises LayoutError where nothing has said which dims there are.

        >>> Layout((2, 4), ("dp", "tp"))("None", ("dp", "tp")).dims()
        ((), ('dp', 'tp'))
        """
        if self.alias_tensor_map is None:
            raise LayoutError("The tensor_map is None", where="Layout", hint='Call the layout: layout("dp", "None")')
        entries = [entry if isinstance(entry, tuple) else (entry,) for entry in self.alias_tensor_map]
        return tuple(tuple(axis for axis in entry if axis != "None") for entry in entries)

    def mesh_layout(self, ndim: int | None = None) -> ours.MeshLayout:
        """The same as this package has it.  ndim: dims of the tensor, where placements alone are known"""
        pivot = self.mesh.pivot
        if self.alias_tensor_map is None:
            if ndim is None or self.placements is None:
                self.dims()
            return ours.MeshLayout(pivot, tuple(map(as_ours, self.placements or ()))).on(ndim or 0)
        pairs = zip(pivot.names, self.partial, strict=True)
        return ours.MeshLayout.from_dims(pivot, self.dims(), {name: _OURS.get(op, op) for name, op in pairs if op})

    def placement_to_tensor_map(self, dim: int) -> list[Any]:
        """Take the placements for those of a tensor of `dim` dims. Returns the tensor map.

        Raises LayoutError: a dim that it lacks, or that two axes split (write that with aliases: their order matters).
        """
        if dim < 0:
            raise LayoutError(f"dim={dim}", where="placement_to_tensor_map", allowed="0 or more")
        names, entries = self.mesh.pivot.names, ["None"] * dim
        for axis, placement in enumerate(self.placements or ()):
            kind = as_ours(placement)
            if isinstance(kind, ours.Partial):
                self.partial[axis] = placement.reduce_op.lower()
            elif isinstance(kind, ours.Shard):
                if not -dim <= kind.dim < dim:
                    raise LayoutError(
                        f"{placement} of a tensor of {dim} dims", where="Layout", allowed="One of its dims"
                    )
                if entries[kind.dim] != "None":
                    given = f"dim {kind.dim} is split by {entries[kind.dim]!r} and {names[axis]!r}"
                    hint = f'Say the order: layout(("{entries[kind.dim]}", "{names[axis]}"), ...)'
                    raise LayoutError(given, where="Layout", allowed="One axis per dim in placements", hint=hint)
                entries[kind.dim] = names[axis]
        self.alias_tensor_map = tuple(entries)
        self.tensor_map = tuple(-1 if e == "None" else self.mesh.ndim - 1 - names.index(e) for e in entries)
        return list(self.tensor_map)

    def tensor_map_to_placement(self) -> list[Placement]:
        """What each axis does, from the tensor map. Two axes of one dim lose their order here (the aliases keep it)."""
        placements: list[Placement] = [Replicate()] * self.mesh.ndim
        for dim, axes in enumerate(self.dims()):
            for axis in axes:
                placements[self.mesh.axis_index(axis)] = Shard(dim)
        for axis, op in enumerate(self.partial):
            if op is not None:
                placements[axis] = Partial(op)
        self.placements = placements
        return placements

    def set_tensor_map(self, tensor_map: Sequence[Any]) -> None:
        """Set the tensor map, and the aliases by it."""
        names = (*(self.alias_name or self.mesh.pivot.names)[::-1], "None")  # [-1] is "None"
        self.tensor_map = tuple(tensor_map)
        self.alias_tensor_map = tuple(
            tuple(names[axis] for axis in entry) if isinstance(entry, tuple) else names[entry] for entry in tensor_map
        )

    def set_alias_tensor_map(self, alias_tensor_map: Sequence[Entry]) -> None:
        """Set the aliases alone."""
        self.alias_tensor_map = tuple(alias_tensor_map)

    def set_placements(self, placements: Sequence[Any]) -> None:
        """Set the placements alone."""
        self.placements = placements

    # ---- what is pending ----

    def set_partial_by_dev_axis(self, axis: str, op: str | None) -> None:
        """Make the value pending along an axis. Raises LayoutError: an unknown reduction, an axis that splits a dim."""
        if op is not None and op not in PARTIAL_OPS:
            raise LayoutError(f"op={shorten(op)}", where="set_partial_by_dev_axis", allowed=f"One of {PARTIAL_OPS}")
        if self.is_dev_axis_apply_shard(axis):
            allowed = "Partial dim must be replicate: an axis that splits no dim"
            raise LayoutError(f"axis {axis!r} splits a dim", where="set_partial_by_dev_axis", allowed=allowed)
        self.partial[self.mesh.axis_index(axis)] = op
        self.tensor_map_to_placement()

    def get_partial_by_dev_id(self, axis: str) -> str | None:
        """How the value is pending along an axis."""
        return self.partial[self.mesh.axis_index(axis)]

    def is_partial(self) -> bool:
        """Whether it is pending along any axis."""
        return any(self.partial)

    def reset_partial(self) -> None:
        """Make nothing pending."""
        self.partial = [None] * self.mesh.ndim
        self.tensor_map_to_placement()

    def is_dev_axis_apply_shard(self, axis: str) -> bool:
        """Whether an axis splits a dim."""
        return self.get_dev_axis_apply_shard_axis(axis) is not None

    def get_dev_axis_apply_shard_axis(self, axis: str) -> int | None:
        """The dim that an axis splits, or None."""
        self.mesh.axis_index(axis)
        return next((dim for dim, axes in enumerate(self.dims()) if axis in axes), None)

    # ---- ranks and shapes ----

    def get_global_shape(self, slice_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the tensor whose slices have this shape."""
        return self.mesh.get_global_shape(slice_shape, self.tensor_map)

    def get_devices_for_axis(self, axis: str, rank: int) -> list[int]:
        """The ranks that differ from `rank` along an axis alone."""
        return self.mesh.get_devices_for_axis(axis, rank)

    def get_comm_group_by_axis(self, axis: str) -> tuple[int, ...]:
        """The group of this process's rank along an axis."""
        return self.mesh.get_group(axis)

    def repeat_num(self) -> int:
        """Ranks that hold each slice; -1 on a pipeline's stages before the last, which have no loss."""
        world_size = platform.get_world_size()
        split = math.prod(self.mesh.get_device_num_along_axis(axis) for axes in self.dims() for axis in axes)
        return -1 if world_size and self.rank_list[-1] != world_size - 1 else self.mesh.size() // split

    # ---- texts ----

    def to_dict(self) -> dict[str, Any]:
        """mesh_shape, tensor_map, interleaved_parallel, alias_name, rank_list. Raises LayoutError without dims."""
        if self.tensor_map is None:
            self.dims()
        return {
            "mesh_shape": self.mesh_shape,
            "tensor_map": self.tensor_map,
            "interleaved_parallel": INTERLEAVED in (self.alias_name or ()),
            "alias_name": self.alias_name,
            "rank_list": self.rank_list,
        }

    @property
    def compact_str(self) -> str:
        """What makes two layouts equal, as a text."""
        return str((self.tensor_map, self.partial, *self.mesh.to_hash()))

    def update_compact_str(self) -> None:
        """Nothing to do: the text is made when it is asked for."""

    def to_string(self) -> str:
        """A line per part."""
        given = {
            "Mesh shape": self.mesh_shape,
            "Alias Names": self.alias_name,
            "Partial": self.partial,
            "Tensor Map": "Not configured" if self.alias_tensor_map is None else self.alias_tensor_map,
            "Interleaved Parallel": "Yes" if INTERLEAVED in (self.alias_name or ()) else "No",
            "Rank List": self.rank_list,
        }
        return "\n".join(("Layout Configuration:", *(f"  {name}: {value}" for name, value in given.items())))

    __str__ = to_string

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return self.tensor_map, tuple(self.partial), self.mesh.to_hash()

    __hash__ = None  # ty: ignore

    def __repr__(self) -> str:
        return f"<Layout {self.alias_tensor_map} on {self.mesh.pivot}>"


@fitting_class
class DTensorLayout(ours.MeshLayout):
    """How a DTensor lies: a MeshLayout that also has what a `Layout` has, such as tensor_map and alias_tensor_map."""

    @classmethod
    def on_dims(cls, layout: ours.MeshLayout, ndim: int) -> DTensorLayout:
        """The layout of a tensor of so many dims."""
        made = cls(layout.mesh, layout.placements)
        object.__setattr__(made, "_ndim", ndim)
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.as_layout(), name)

    def as_layout(self) -> Layout:
        """The same as a `Layout`."""
        names, shape = self.mesh.names, self.mesh.shape
        made = Layout(shape, names, self.mesh.ranks)(
            *(axes[0] if len(axes) == 1 else axes or "None" for axes in ours.MeshLayout.dims(self, self._ndim))
        )
        for axis, op in self.pending.items():
            made.set_partial_by_dev_axis(axis, _THEIRS.get(op, op))
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ours.MeshLayout):
            return isinstance(other, Layout) and self.as_layout() == other
        return (self.mesh, self.placements) == (other.mesh, other.placements)

    __hash__ = ours.MeshLayout.__hash__


def _are_placements(entries: Any) -> bool:
    """Whether these are placements, not aliases. Raises LayoutError for some of both."""
    kinds = {isinstance(entry, ours.AxisPlacement) for entry in entries}
    if len(kinds) > 1:
        raise LayoutError(f"entries {shorten(entries)}", where="Layout", allowed="Placements alone, or aliases alone")
    return kinds == {True}


@fitting
def build_layout(device_mesh: DeviceMesh, placements: Sequence[Any], tensor_dim: int) -> Layout:
    """The layout of a tensor of `tensor_dim` dims, by placements or by aliases.

    Raises LayoutError: another number of aliases than dims, or of placements than axes.
    """
    made = Layout.from_device_mesh(device_mesh)
    if len(placements) and not _are_placements(placements):
        if len(placements) != tensor_dim:
            given = f"{len(placements)} aliases for a tensor of {tensor_dim} dims"
            raise LayoutError(given, where="Layout", allowed="One per dim")
        return made(*placements)
    made = made(placements)
    made.placement_to_tensor_map(tensor_dim)
    return made
