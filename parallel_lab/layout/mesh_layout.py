"""`MeshLayout`: where a tensor lies, said by what each axis of a device mesh does. Every notation is read into it.

    mesh = DeviceMesh((2, 4), ("dp", "tp"))            rank = 4 dp + tp
    x = MeshLayout(mesh, (Shard(0), Replicate()))      dp splits the rows, ranks along tp hold copies

Strategies, `Layout`s, partition specs say which axes split a dim; PyTorch says what an axis does. Both say the same but
for the order in which several axes split one dim, which the second form always takes from the mesh: left is outer.
`StridedShard(0, 4)` says that four pieces were cut before, by axes to its right:

    >>> mesh = DeviceMesh((2, 4), ("dp", "tp"))
    >>> MeshLayout.from_dims(mesh, (("dp", "tp"), ())).code
    'S0 S0'
    >>> MeshLayout.from_dims(mesh, (("tp", "dp"), ())).code
    'SS0:4 S0'

`indices` is the specification: from left to right, each axis cuts what its left neighbours have left of a dim (sizes of
torch.chunk: equal pieces rounded up, then smaller ones, then empty ones). Rules: PyTorch 2.14, DTensor placements;
JAX 0.10, PartitionSpec. A `TensorLayout` is the same without names, for even slices and one kind of reduction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..base.checks import INT_LIMIT, Errors, fitting_class, integer
from ..base.errors import LayoutError, LayoutTypeError, shorten
from .device_mesh import DeviceMesh
from .tensor_layout import Shape, TensorLayout, ranks_along

REDUCE_OPS = ("sum", "avg", "max", "min", "product", "band", "bor", "bxor")
_ERRORS = Errors(LayoutTypeError, LayoutError)
_DIM = integer(-INT_LIMIT, INT_LIMIT)
_FACTOR = integer(1, INT_LIMIT)


# ---- what one axis does ----


@fitting_class
@dataclass(frozen=True)
class Replicate:
    """The ranks along the axis hold copies."""

    code = "R"

    def __str__(self) -> str:
        return "Replicate()"


@fitting_class
@dataclass(frozen=True)
class Shard:
    """The ranks along the axis hold pieces of a dim; a negative dim counts from the right."""

    dim: int

    def __post_init__(self) -> None:
        _DIM("Shard", "dim", self.dim, _ERRORS)

    split_factor = 1

    @property
    def code(self) -> str:
        """S0 for dim 0."""
        return f"S{self.dim}"

    def __str__(self) -> str:
        return f"Shard({self.dim})"


@fitting_class
@dataclass(frozen=True)
class StridedShard:
    """The same after `split_factor` pieces of the dim were cut by axes to the right: of each of them a piece."""

    dim: int
    split_factor: int

    def __post_init__(self) -> None:
        _DIM("StridedShard", "dim", self.dim, _ERRORS)
        _FACTOR("StridedShard", "split_factor", self.split_factor, _ERRORS)

    @property
    def code(self) -> str:
        """SS0:4 for dim 0 after four pieces."""
        return f"SS{self.dim}:{self.split_factor}"

    def __str__(self) -> str:
        return f"_StridedShard({self.dim}, split_factor={self.split_factor})"


@fitting_class
@dataclass(frozen=True)
class Partial:
    """The ranks along the axis hold addends of the value (sum, avg: of their mean), or candidates of max, min, ...."""

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op not in REDUCE_OPS:
            given = f"reduce_op={shorten(self.reduce_op)}"
            raise LayoutError(given, where="Partial", allowed=f"One of {REDUCE_OPS}")

    @property
    def code(self) -> str:
        """P for a sum, Pavg, Pmax, ...."""
        return "P" if self.reduce_op == "sum" else f"P{self.reduce_op}"

    def __str__(self) -> str:
        return f"Partial({self.reduce_op!r})"


AxisPlacement = Replicate | Shard | StridedShard | Partial
_CODE = re.compile(r"R|P(?P<op>[a-z]*)|S(?P<dim>-?\d{1,9})|SS(?P<strided>-?\d{1,9}):(?P<factor>\d{1,9})")


def placement_of(code: str) -> AxisPlacement:
    """What an axis does, from its short form. Raises LayoutError.

    >>> placement_of("SS0:4"), placement_of("Pmax"), placement_of("R")
    (StridedShard(dim=0, split_factor=4), Partial(reduce_op='max'), Replicate())
    """
    found = _CODE.fullmatch(code) if isinstance(code, str) else None
    if found is None:
        raise LayoutError(f"placement {shorten(code)}", allowed="R, S0, SS0:4, P, Pavg, Pmax, ... with a dim's number")
    if found["dim"]:
        return Shard(int(found["dim"]))
    if found["strided"]:
        return StridedShard(int(found["strided"]), int(found["factor"]))
    return Replicate() if code == "R" else Partial(found["op"] or "sum")


# ---- what all axes do ----


@fitting_class
@dataclass(frozen=True)
class MeshLayout:
    """Where a tensor lies over a mesh.

    mesh        the ranks
    placements  what each axis does, from the left

    Raises LayoutError for another number of placements, or two kinds of pending reductions other than sum with avg.
    """

    mesh: DeviceMesh
    placements: tuple[AxisPlacement, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "placements", tuple(self.placements))
        if len(self.placements) != self.mesh.ndim:
            given = f"{len(self.placements)} placements on a mesh of {self.mesh.ndim} axes"
            raise LayoutError(given, where="MeshLayout", allowed="One per axis, from the left")
        for placement in self.placements:
            if not isinstance(placement, AxisPlacement):
                allowed = "Shard(dim), Replicate(), Partial(reduce_op)"
                raise LayoutTypeError(f"placement {shorten(placement)}", where="MeshLayout", allowed=allowed)
        kinds = set(self.pending.values())
        if len(kinds) > 1 and kinds != {"sum", "avg"}:
            given = f"pending reductions {sorted(kinds)} of one tensor"
            raise LayoutError(given, where="MeshLayout", allowed="One kind, or sum and avg, which are both linear")

    @classmethod
    def coded(cls, mesh: DeviceMesh, codes: str | Sequence[str]) -> MeshLayout:
        """A layout by the short forms of its placements.

        >>> print(MeshLayout.coded(DeviceMesh((2, 4), ("dp", "tp")), "S0 P"))
        [Shard(0), Partial('sum')]
        """
        return cls(mesh, tuple(map(placement_of, codes.split() if isinstance(codes, str) else codes)))

    @classmethod
    def from_dims(
        cls, mesh: DeviceMesh, dims: Sequence[Sequence[str]], pending: Mapping[str, str] | None = None
    ) -> MeshLayout:
        """A layout by the names of the axes that split each dim, outer first.

        pending  {axis: how what lies along it is still to be reduced}

        An axis that axes to its right precede in a dim becomes a StridedShard; its factor is the product of theirs.
        """
        placements: dict[int, AxisPlacement] = {mesh.axis(name): Partial(op) for name, op in (pending or {}).items()}
        for dim, names in enumerate(dims):
            axes = [mesh.axis(name) for name in names]
            for place, axis in enumerate(axes):
                if axis in placements:
                    given = f"axis {mesh.names[axis]!r} is used twice"
                    raise LayoutError(given, where="MeshLayout", allowed="An axis splits one dim, once, or is pending")
                factor = math.prod(mesh.shape[before] for before in axes[:place] if before > axis)
                placements[axis] = StridedShard(dim, factor) if factor > 1 else Shard(dim)
        return cls(mesh, tuple(placements.get(axis, Replicate()) for axis in range(mesh.ndim)))

    @classmethod
    def of(cls, layout: TensorLayout, names: Sequence[str] = ()) -> MeshLayout:
        """The layout of a TensorLayout, whose axes get these names, from the left. Raises LayoutError: uneven rows."""
        if layout.rows:
            raise LayoutError(f"parts of {layout.rows} rows", where="MeshLayout", allowed="torch.chunk's sizes")
        mesh = DeviceMesh(layout.device_matrix, tuple(names))
        dims = tuple(tuple(mesh.names[-1 - axis] for axis in axes) for axes in layout.tensor_map)
        reduce = "product" if layout.reduce == "prod" else layout.reduce
        return cls.from_dims(mesh, dims, {mesh.names[-1 - axis]: reduce for axis in layout.partial})

    @property
    def code(self) -> str:
        """The short forms of its placements: "S0 R"."""
        return " ".join(placement.code for placement in self.placements)

    @property
    def pending(self) -> dict[str, str]:
        """{axis: reduction} of the axes along which the value is still to be reduced."""
        pairs = zip(self.mesh.names, self.placements, strict=True)
        return {name: placement.reduce_op for name, placement in pairs if isinstance(placement, Partial)}

    def on(self, ndim: int) -> MeshLayout:
        """The same for a tensor of `ndim` dims: negative dims are counted. Raises LayoutError."""
        return MeshLayout(self.mesh, tuple(_counted(placement, ndim) for placement in self.placements))

    # ---- slices ----

    def indices(self, shape: Shape, rank: int) -> tuple[np.ndarray, ...]:
        """Per dim the positions that a rank holds, in its order: int64, empty where there are fewer pieces than ranks.

        >>> mesh = DeviceMesh((4,), ("dp",))
        >>> [MeshLayout(mesh, (Shard(0),)).indices((5,), rank)[0].tolist() for rank in range(4)]
        [[0, 1], [2, 3], [4], []]
        """
        return tuple(held for held, _ in self._held(shape, rank))

    def _held(self, shape: Shape, rank: int) -> list[tuple[np.ndarray, int]]:
        """Per dim the positions that a rank holds, and where they end: an empty piece ends where its whole did."""
        parts = [(np.arange(size), size) for size in shape]
        places = zip(self.on(len(shape)).placements, self.mesh.shape, self.mesh.coordinates(rank), strict=True)
        for placement, ranks, place in places:
            if isinstance(placement, (Shard, StridedShard)):
                held, end = parts[placement.dim]
                held = _piece(held, ranks, place, placement.split_factor)
                parts[placement.dim] = held, int(held[-1]) + 1 if len(held) else end
        return parts

    def slices(self, shape: Shape, rank: int) -> tuple[tuple[int, int], ...]:
        """Per dim (start, stop) of what a rank holds. LayoutError where positions are no run."""
        parts = []
        for held, end in self._held(shape, rank):
            if len(held) and held[-1] - held[0] != len(held) - 1:
                given = f"rank {rank} holds {shorten(held.tolist())} of a dim"
                raise LayoutError(given, where=f"[{self.code}]", allowed="Positions without a gap", hint="Use indices")
            parts.append((end - len(held), end))
        return tuple(parts)

    def local_shape(self, shape: Shape, rank: int) -> Shape:
        """Shape of what a rank holds."""
        return tuple(map(len, self.indices(shape, rank)))

    def full_shape(self, part: Shape) -> Shape:
        """Shape of the tensor, where every rank holds a part of this shape."""
        shape = list(part)
        for placement, ranks in zip(self.on(len(part)).placements, self.mesh.shape, strict=True):
            if isinstance(placement, (Shard, StridedShard)):
                shape[placement.dim] *= ranks
        return tuple(shape)

    def same_placement(self, other: MeshLayout, shape: Shape) -> bool:
        """Whether every rank holds the same part, in the same order, and the same ranks are to be reduced alike."""
        if set(self.mesh.ranks) != set(other.mesh.ranks):
            return False
        return all(
            all(map(np.array_equal, self.indices(shape, rank), other.indices(shape, rank)))
            and self.addends_with(rank) == other.addends_with(rank)
            for rank in self.mesh.ranks
        )

    def addends_with(self, rank: int) -> dict[str, frozenset[int]]:
        """{reduction: the ranks whose values, reduced, make the value at `rank`}; {} where nothing is pending."""
        groups: dict[str, set[int]] = {}
        for op in set(self.pending.values()):
            names = [name for name, of_axis in self.pending.items() if of_axis == op and self.mesh.axis_size(name) > 1]
            axes = [self.mesh.ndim - 1 - self.mesh.axis(name) for name in names]
            if axes:
                places = ranks_along(self.mesh.shape, axes, self.mesh.place(rank))
                groups[op] = {self.mesh.ranks[place] for place in places}
        return {op: frozenset(ranks) for op, ranks in groups.items()}

    # ---- forms ----

    def dims(self, ndim: int) -> tuple[tuple[str, ...], ...]:
        """Per dim the names of the axes that split it, outer first. Raises LayoutError where it has no such form: a
        StridedShard whose factor no axes to its right make.
        """
        axes: list[list[int]] = [[] for _ in range(ndim)]
        for axis in range(self.mesh.ndim - 1, -1, -1):  # from the right: what a StridedShard comes after is there
            placement = self.on(ndim).placements[axis]
            if isinstance(placement, (Shard, StridedShard)):
                order, product, place = axes[placement.dim], 1, 0
                while product < placement.split_factor and place < len(order):
                    product *= self.mesh.shape[order[place]]
                    place += 1
                if product != placement.split_factor:
                    given = f"{placement} on axis {self.mesh.names[axis]!r} of {self.mesh}"
                    allowed = "A split_factor that is the product of the outer axes to its right"
                    hint = "Its positions are in indices(shape, rank)"
                    raise LayoutError(given, where="MeshLayout", allowed=allowed, hint=hint)
                order.insert(place, axis)
        return tuple(tuple(self.mesh.names[axis] for axis in order) for order in axes)

    def tensor_layout(self, ndim: int, shape: Shape | None = None) -> TensorLayout:
        """The same without names.

        shape  of the tensor, if equal slices are to be checked

        Raises LayoutError: no dims form, ranks in another order, two kinds of reductions, one that TensorLayout lacks.
        """
        where = f"[{self.code}]"
        if not self.mesh.in_order:
            raise LayoutError(f"ranks {shorten(self.mesh.ranks)}", where=where, allowed="Ranks in row-major order")
        kinds = {"prod" if op == "product" else op for op in self.pending.values()}
        if len(kinds) > 1 or not kinds <= {"sum", "max", "min", "prod"}:
            raise LayoutError(f"pending {sorted(kinds)}", where=where, allowed="One of sum, max, min, product")
        number = {name: self.mesh.ndim - 1 - axis for axis, name in enumerate(self.mesh.names)}
        entries = tuple(tuple(number[name] for name in names) for names in self.dims(ndim))
        partial = tuple(number[name] for name in self.pending)
        layout = TensorLayout(self.mesh.shape, entries, partial, kinds.pop() if kinds else "sum")
        if shape is not None:
            layout.check_shape(shape, where)
        return layout

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.placements))}]"


def _counted(placement: AxisPlacement, ndim: int) -> AxisPlacement:
    """The placement with its dim counted from the left."""
    if not isinstance(placement, (Shard, StridedShard)) or 0 <= placement.dim < ndim:
        return placement
    if not -ndim <= placement.dim < ndim:
        allowed = f"A dim from {-ndim} to {ndim - 1}" if ndim else "Replicate() or Partial(): a number has no dims"
        raise LayoutError(f"{placement} of a tensor of {ndim} dims", where="MeshLayout", allowed=allowed)
    dim = placement.dim + ndim
    return Shard(dim) if isinstance(placement, Shard) else StridedShard(dim, placement.split_factor)


def _piece(held: np.ndarray, ranks: int, place: int, factor: int) -> np.ndarray:
    """What the rank at `place` gets of these positions: of each of `factor` pieces one of `ranks` (torch.chunk)."""
    return np.concatenate([_chunk(_chunk(held, factor, piece), ranks, place) for piece in range(factor)])


def _chunk(held: np.ndarray, pieces: int, place: int) -> np.ndarray:
    size = -(-len(held) // pieces)
    return held[place * size : (place + 1) * size]
