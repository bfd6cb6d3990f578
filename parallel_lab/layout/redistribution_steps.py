"""The steps of a redistribution: what each does to a layout, to arrays, and as MindSpore's operators.

`redistribution.py` plans; this file says what the planned steps mean: a class per kind. `apply(step, layout)` is the
specification of a step, `move(step, arrays)` does it with the slices of all ranks, `operators(steps)` lists it as
MindSpore would run it.
Two ranks gather columns, which MindSpore's AllGather (always along dim 0) can only do with two more operators:

    >>> gather = AllGather((2,), (4, 8), (4, 16), axes=(0,), dim=1)
    >>> for operator in operators((gather,)):
    ...     print(operator)
    AllGather(group WORLD_GROUP): (4, 8) -> (8, 8)
    Split(axis=0, output_num=2): (8, 8) -> 2 x (4, 8)
    Concat(axis=1): 2 x (4, 8) -> (4, 16)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from ..base.errors import LayoutError
from .refinement import flat_placement, on_device_matrix
from .route import Route
from .slices import REDUCERS
from .tensor_layout import Shape, TensorLayout, ranks_along

WORLD_GROUP = "WORLD_GROUP"  # MindSpore's name of the group of all ranks


def narrowed(src: TensorLayout, dst: TensorLayout, shape: Shape) -> tuple[tuple[int, ...], Route]:
    """(axes of the groups within which pieces travel, the route within one of them).

    Axes that hold copies in both, or split the same dim in front of all others in both, separate groups that have
    nothing to give each other: what data parallel ranks do with their own rows concerns no other rows. Over two device
    matrices: all axes of the first.
    """
    if src.device_matrix != dst.device_matrix:
        return tuple(reversed(range(len(src.device_matrix)))), Route(src, dst, shape)
    entries = zip(src.tensor_map, dst.tensor_map, strict=True)
    # how many axes come first in both
    own = [sum(itertools.takewhile(bool, (a == b for a, b in zip(*both, strict=False)))) for both in entries]
    maps = [[entry[n:] for entry, n in zip(layout.tensor_map, own, strict=True)] for layout in (src, dst)]
    axes = sorted({a for entries in maps for entry in entries for a in entry}, reverse=True)
    matrix, number = tuple(map(src.axis_size, axes)), {a: len(axes) - 1 - at for at, a in enumerate(axes)}
    dims = zip(shape, src.tensor_map, own, strict=True)
    parts = tuple(size // math.prod(map(src.axis_size, entry[:n])) for size, entry, n in dims)
    old, new = (TensorLayout(matrix, tuple(tuple(number[a] for a in entry) for entry in entries)) for entries in maps)
    return tuple(axes), Route(old, new, parts)


# ---- what steps do to layouts ----


def _refuse(step: Step | str, layout: TensorLayout, why: str) -> LayoutError:
    return LayoutError(f"{step} does not fit {layout}: {why}", where="redistribution")


def with_entry(layout: TensorLayout, dim: int, axes: tuple[int, ...]) -> TensorLayout:
    """The layout with `dim` split by these axes, which are known to fit."""
    entries = (*layout.tensor_map[:dim], axes, *layout.tensor_map[dim + 1 :])
    if layout.rows:
        return TensorLayout(layout.device_matrix, entries, layout.partial, layout.reduce, layout.rows)
    return TensorLayout.known(layout.device_matrix, entries, layout.partial, layout.reduce)


def gathered(layout: TensorLayout, dim: int, axes: tuple[int, ...]) -> TensorLayout:
    """Layout in which `dim` is no longer split by `axes`, its innermost ones."""
    held = layout.tensor_map[dim]
    if held[len(held) - len(axes) :] != axes:
        why = f"they are not the innermost axes of the dim, {held}"
        raise _refuse(f"gathering dim {dim} over axes {axes}", layout, why)
    return with_entry(layout, dim, held[: len(held) - len(axes)])


def sliced(layout: TensorLayout, dim: int, axes: tuple[int, ...]) -> TensorLayout:
    """Layout in which `dim` is split further, by `axes`."""
    entries = (*layout.tensor_map[:dim], layout.tensor_map[dim] + axes, *layout.tensor_map[dim + 1 :])
    return replace(layout, tensor_map=entries)  # TensorLayout refuses an axis in use


def reduced(layout: TensorLayout, axes: tuple[int, ...]) -> TensorLayout:
    """Layout in which nothing is pending over `axes`."""
    if not set(axes) <= set(layout.partial):
        raise _refuse(f"reducing over axes {axes}", layout, f"pending are only {layout.partial}")
    rest = tuple(a for a in layout.partial if a not in axes)
    return replace(layout, partial=rest, reduce=layout.reduce if rest else "sum")


# ---- steps ----


@dataclass(frozen=True)
class Step:
    """What every rank does at one point of a redistribution.

    kind           "reshape", "all_gather", "slice", "all_to_all", "all_reduce", "reduce_scatter" or "exchange"
    device_matrix  ranks as a row-major matrix; `axes` refers to it
    in_shape       shape of one rank's slice before the step
    out_shape      and after it
    axes           axes of the group, counted from the right, outer (slower) one first; () if each rank is alone

    Each kind says what it does to a layout (`after`), to arrays (`on_rank`), and as MindSpore's operators (`lowered`).
    """

    kind: ClassVar[str] = ""
    device_matrix: tuple[int, ...]
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    axes: tuple[int, ...] = ()

    @property
    def group_size(self) -> int:
        return math.prod([self.device_matrix[-1 - a] for a in self.axes])

    @property
    def communicates(self) -> bool:
        """Whether the step sends messages (a Reshape or a Slice does not)."""
        return self.kind not in ("reshape", "slice")

    def group(self, rank: int) -> tuple[int, ...]:
        """Ranks that do this step together with `rank`, ascending; pieces are joined in this order."""
        return ranks_along(self.device_matrix, self.axes, rank)

    def after(self, layout: TensorLayout) -> TensorLayout:
        """Layout after the step. Raises LayoutError if it does not fit `layout`."""
        raise NotImplementedError

    def on_rank(self, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The slice of `rank` after the step, given those of all ranks before it."""
        raise NotImplementedError

    def lowered(self, rank: int) -> list[Operator]:
        """The step as operators of MindSpore on `rank`."""
        raise NotImplementedError

    def _message(self, name: str, rank: int, in_shape: Shape, out_shape: Shape, *args: tuple[str, object]) -> Operator:
        group = self.group(rank)
        everybody = len(group) == math.prod(self.device_matrix)
        return Operator(name, in_shape, out_shape, group, WORLD_GROUP if everybody else "-".join(map(str, group)), args)

    def _detail(self) -> str:
        return ""

    def __str__(self) -> str:
        over = f" over axes {self.axes} of {self.device_matrix}" if self.axes else ""
        return f"{self.kind}{self._detail()}{over}: {self.in_shape} -> {self.out_shape}"


@dataclass(frozen=True)
class Reshape(Step):
    """Another shape for every slice, and `layout` on the new global shape. Equal shapes: the same data redescribed."""

    kind: ClassVar[str] = "reshape"
    layout: TensorLayout = field(kw_only=True)

    def after(self, layout: TensorLayout) -> TensorLayout:
        before = tuple(n * cut for n, cut in zip(self.in_shape, layout.splits, strict=True))
        after = tuple(n * cut for n, cut in zip(self.out_shape, self.layout.splits, strict=True))
        if 0 not in before and flat_placement(layout, before) != flat_placement(self.layout, after):
            raise _refuse(self, layout, f"{self.layout} on {after} places other elements")
        return self.layout

    def on_rank(self, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.reshape(arrays[rank], self.out_shape)

    def lowered(self, rank: int) -> list[Operator]:
        reshaped = Operator("Reshape", self.in_shape, self.out_shape, args=(("shape", self.out_shape),))
        return [reshaped] if self.in_shape != self.out_shape else []


@dataclass(frozen=True)
class AllGather(Step):
    """Slices along `dim` are joined in the order of the group, which is that of the slices: `axes` descend."""

    kind: ClassVar[str] = "all_gather"
    dim: int = field(kw_only=True)

    def after(self, layout: TensorLayout) -> TensorLayout:
        return gathered(layout, self.dim, self.axes)

    def on_rank(self, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([arrays[member] for member in self.group(rank)], axis=self.dim)

    def lowered(self, rank: int) -> list[Operator]:
        n = self.group_size
        joined = (n * self.in_shape[0], *self.in_shape[1:])
        return [self._message("AllGather", rank, self.in_shape, joined), *_from_to(joined, 0, self.dim, n)]

    def _detail(self) -> str:
        return f" dim {self.dim}"


@dataclass(frozen=True)
class Slice(Step):
    """Every rank keeps its own part of `dim`, by its coordinates along `axes`: nothing is sent."""

    kind: ClassVar[str] = "slice"
    dim: int = field(kw_only=True)

    def index(self, rank: int) -> tuple[slice, ...]:
        """What `rank` keeps of its slice of `in_shape`: an index for numpy."""
        number = 0
        for a in self.axes:
            position = len(self.device_matrix) - 1 - a
            size, stride = self.device_matrix[position], math.prod(self.device_matrix[position + 1 :])
            number = number * size + rank // stride % size
        start = number * self.out_shape[self.dim]
        return tuple(slice(start, start + n) if d == self.dim else slice(0, n) for d, n in enumerate(self.out_shape))

    def after(self, layout: TensorLayout) -> TensorLayout:
        return sliced(layout, self.dim, self.axes)

    def on_rank(self, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return arrays[rank][self.index(rank)]

    def lowered(self, rank: int) -> list[Operator]:
        kept = self.index(rank)
        begin, end = tuple(s.start for s in kept), tuple(s.stop for s in kept)
        args = (("begin", begin), ("end", end), ("strides", (1,) * len(kept)))
        return [Operator("StridedSlice", self.in_shape, self.out_shape, args=args)]

    def _detail(self) -> str:
        return f" dim {self.dim}"


@dataclass(frozen=True)
class AllToAll(Step):
    """Every rank splits its slice along `split_dim`, a piece per member; joined along `concat_dim`. `axes` descend."""

    kind: ClassVar[str] = "all_to_all"
    split_dim: int = field(kw_only=True)
    concat_dim: int = field(kw_only=True)

    def after(self, layout: TensorLayout) -> TensorLayout:
        return sliced(gathered(layout, self.concat_dim, self.axes), self.split_dim, self.axes)

    def on_rank(self, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        group = self.group(rank)
        pieces = [np.split(arrays[m], len(group), axis=self.split_dim)[group.index(rank)] for m in group]
        return np.concatenate(pieces, axis=self.concat_dim)

    def lowered(self, rank: int) -> list[Operator]:
        dims = (("split_dim", self.split_dim), ("concat_dim", self.concat_dim))
        return [self._message("AlltoAll", rank, self.in_shape, self.out_shape, ("split_count", self.group_size), *dims)]

    def _detail(self) -> str:
        return f" split_dim {self.split_dim} concat_dim {self.concat_dim}"


@dataclass(frozen=True)
class Exchange(Step):
    """Every rank keeps what it has of its slice in layout `to`, and gets each other piece from one rank that has it: as
    `way` says for a group.
    """

    kind: ClassVar[str] = "exchange"
    to: TensorLayout = field(kw_only=True)
    way: Route = field(kw_only=True)

    @property
    def route(self) -> tuple[Any, ...]:
        """The attribute of the instruction."""
        return self.way.attr

    def after(self, layout: TensorLayout) -> TensorLayout:
        if narrowed(layout, self.to, layout.full_shape(self.in_shape)) != (self.axes, self.way):
            raise _refuse(self, layout, f"its pieces are those of {self.way.src} on {self.way.shape}")
        return self.to

    def on_rank(self, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        group, part = self.group(rank), np.empty(self.out_shape, arrays[rank].dtype)
        me = group.index(rank)
        for giver, box in self.way.taken[me].items():
            part[box] = arrays[group[giver]][self.way.given[giver][me]]
        return part

    def lowered(self, rank: int) -> list[Operator]:
        return [self._message("AlltoAllV", rank, self.in_shape, self.out_shape)]


@dataclass(frozen=True)
class AllReduce(Step):
    """Addends (or candidates of max/min) are combined, in rank order; every member of the group gets the result."""

    kind: ClassVar[str] = "all_reduce"
    reduce: str = field(default="sum", kw_only=True)

    def after(self, layout: TensorLayout) -> TensorLayout:
        if self.reduce != layout.reduce:
            raise _refuse(self, layout, f"a {layout.reduce} is pending")
        return reduced(layout, self.axes)

    def on_rank(self, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return functools.reduce(REDUCERS[self.reduce], [arrays[member] for member in self.group(rank)])

    def lowered(self, rank: int) -> list[Operator]:
        return [self._message("AllReduce", rank, self.in_shape, self.out_shape, ("op", self.reduce))]

    def _detail(self) -> str:
        return f" {self.reduce}"


@dataclass(frozen=True)
class ReduceScatter(AllReduce):
    """Addends are combined and the result is split along `dim`: member i of the group gets part i. `axes` descend."""

    kind: ClassVar[str] = "reduce_scatter"
    dim: int = field(kw_only=True)

    def after(self, layout: TensorLayout) -> TensorLayout:
        return sliced(super().after(layout), self.dim, self.axes)

    def on_rank(self, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
        group = self.group(rank)
        return np.split(super().on_rank(rank, arrays), len(group), axis=self.dim)[group.index(rank)]

    def lowered(self, rank: int) -> list[Operator]:
        n = self.group_size
        stacked = (n * self.out_shape[0], *self.out_shape[1:])
        scatter = self._message("ReduceScatter", rank, stacked, self.out_shape, ("op", self.reduce))
        return [*_from_to(self.in_shape, self.dim, 0, n), scatter]

    def _detail(self) -> str:
        return f" {self.reduce} dim {self.dim}"


def apply(step: Step, layout: TensorLayout) -> TensorLayout:
    """Layout after `step`, written over the step's device matrix. Raises LayoutError if the step does not fit `layout`.

    >>> columns = TensorLayout((4,), (-1, 0))
    >>> apply(AllGather((4,), (16, 4), (16, 16), axes=(0,), dim=1), columns)
    TensorLayout(device_matrix=(4,), tensor_map=((), ()), partial=(), reduce='sum')
    """
    layout = on_device_matrix(layout, step.device_matrix)
    if len(step.in_shape) != layout.ndim:
        raise _refuse(step, layout, f"a slice of {len(step.in_shape)} dims is expected")
    return step.after(layout)


def move(step: Step, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All ranks' slices after `step`, from those before it, in rank order. LayoutError for an unfit shape or number."""
    ranks = math.prod(step.device_matrix)
    if len(arrays) != ranks:
        raise LayoutError(f"{len(arrays)} arrays for {ranks} ranks", where=str(step))
    for rank, array in enumerate(arrays):
        if np.shape(array) != step.in_shape:
            allowed = f"A slice of shape {step.in_shape}"
            raise LayoutError(f"rank {rank} holds {np.shape(array)}", where=str(step), allowed=allowed)
    return [step.on_rank(rank, arrays) for rank in range(ranks)]


# ---- what a step costs ----


def received_elements(steps: Iterable[Step], rank: int | None = None) -> int | float:
    """Elements each rank receives in all `steps`: ring algorithms, direct exchange for all_to_all.

    With n ranks in the group and a slice of s elements before the step: all_gather (n - 1) s, reduce_scatter (n - 1) s
    / n, all_to_all (n - 1) s / n, all_reduce 2 (n - 1) s / n (Thakur et al. 2005); reshape and slice nothing; exchange
    the pieces that `rank` lacks, or (None) the rank that lacks most. A float only where a ring cannot split evenly.

    >>> received_elements([AllGather((8,), (2, 16), (16, 16), axes=(0,), dim=0)])
    224
    """
    total = Fraction(0)
    for step in steps:
        if isinstance(step, Exchange):
            members = range(step.group_size) if rank is None else [step.group(rank).index(rank)]
            total += max(map(step.way.received, members))
            continue
        n, size = step.group_size, math.prod(step.in_shape)
        times = {"all_gather": n, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2}.get(step.kind, 0)
        total += Fraction(times * (n - 1) * size, n)
    return int(total) if total.denominator == 1 else float(total)


# ---- as operators ----


@dataclass(frozen=True)
class Operator:
    """One operator of MindSpore, as one rank runs it.

    name       MindSpore's class name (its all_to_all is spelled "AlltoAll")
    in_shape   shape of the input; of each input for Concat
    out_shape  shape of the output; of each output for Split
    group      ranks that communicate, ascending; () for a local operator
    group_name "0-1-2-3", or "WORLD_GROUP" for all ranks; "" for a local operator
    args       (name, value) pairs of its attributes
    """

    name: str
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    group: tuple[int, ...] = ()
    group_name: str = ""
    args: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        args = dict(self.args)
        before = f"{args.pop('input_num')} x {self.in_shape}" if self.name == "Concat" else f"{self.in_shape}"
        after = f"{args['output_num']} x {self.out_shape}" if self.name == "Split" else f"{self.out_shape}"
        shown = [f"{name}={value}" for name, value in args.items()]
        shown += [f"group {self.group_name}"] * bool(self.group)
        return f"{self.name}({', '.join(shown)}): {before} -> {after}"


def operators(steps: Iterable[Step], rank: int = 0) -> list[Operator]:
    """`steps` as MindSpore runs them on `rank`: AllGather and ReduceScatter along dim 0, else with Split and Concat."""
    return [operator for step in steps for operator in step.lowered(rank)]


def _from_to(shape: tuple[int, ...], split_dim: int, concat_dim: int, n: int) -> list[Operator]:
    """Split into n pieces along one dim, Concat along another; nothing if they are the same dim."""
    if split_dim == concat_dim:
        return []
    piece = tuple(size // n if dim == split_dim else size for dim, size in enumerate(shape))
    joined = tuple(size * n if dim == concat_dim else size for dim, size in enumerate(piece))
    return [
        Operator("Split", shape, piece, args=(("axis", split_dim), ("output_num", n))),
        Operator("Concat", piece, joined, args=(("axis", concat_dim), ("input_num", n))),
    ]
