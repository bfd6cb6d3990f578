"""The steps of a redistribution: what each does to a layout, to arrays, and as MindSpore's operators.

`redistribution.py` plans; this file says what the planned steps mean. `apply(step, layout)` is the specification of a
step, `move(step, arrays)` does it with the slices of all ranks, `operators(steps)` lists it as MindSpore would run it.
Two ranks gather columns, which MindSpore's AllGather (always along dim 0) can only do with two more operators:

    >>> gather = AllGather((2,), (4, 8), (4, 16), axes=(0,), dim=1)
    >>> for operator in operators((gather,)):
    ...     print(operator)
    AllGather(group WORLD_GROUP): (4, 8) -> (8, 8)
    Split(axis=0, output_num=2): (8, 8) -> 2 x (4, 8)
    Concat(axis=1): 2 x (4, 8) -> (4, 16)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from ..base.errors import LayoutError
from .refinement import flat_placement, on_device_matrix
from .tensor_layout import TensorLayout, ranks_along

WORLD_GROUP = "WORLD_GROUP"  # MindSpore's name of the group of all ranks


# ---- steps ----


@dataclass(frozen=True)
class Step:
    """What every rank does at one point of a redistribution.

    kind           "reshape", "all_gather", "slice", "all_to_all", "all_reduce" or "reduce_scatter"
    device_matrix  ranks as a row-major matrix; `axes` refers to it
    in_shape       shape of one rank's slice before the step
    out_shape      and after it
    axes           axes of the group, counted from the right, outer (slower) one first; () if no ranks take part
                   together
    """

    kind: ClassVar[str] = ""
    device_matrix: tuple[int, ...]
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    axes: tuple[int, ...] = ()

    @property
    def group_size(self) -> int:
        return math.prod(self.device_matrix[-1 - a] for a in self.axes)

    @property
    def communicates(self) -> bool:
        """Whether the step sends messages (a Reshape or a Slice does not)."""
        return self.kind not in ("reshape", "slice")

    def group(self, rank: int) -> tuple[int, ...]:
        """Ranks that do this step together with `rank`, ascending; pieces are joined in this order."""
        return ranks_along(self.device_matrix, self.axes, rank)

    def _detail(self) -> str:
        return ""

    def __str__(self) -> str:
        over = f" over axes {self.axes} of {self.device_matrix}" if self.axes else ""
        return f"{self.kind}{self._detail()}{over}: {self.in_shape} -> {self.out_shape}"


@dataclass(frozen=True)
class Reshape(Step):
    """Every rank gives its own slice another shape; `layout` is the layout afterwards, on the new global shape. In and
    out shape can be equal: then only the way to describe the same data changes.
    """

    kind: ClassVar[str] = "reshape"
    layout: TensorLayout = field(kw_only=True)


@dataclass(frozen=True)
class AllGather(Step):
    """Slices along `dim` are joined in the order of the group. `axes` descend, so that this order is the order of the
    slices.
    """

    kind: ClassVar[str] = "all_gather"
    dim: int = field(kw_only=True)

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

    def _detail(self) -> str:
        return f" dim {self.dim}"


@dataclass(frozen=True)
class AllToAll(Step):
    """Every rank cuts its slice along `split_dim`, sends piece i to member i of the group, and joins what it receives
    along `concat_dim`. `axes` descend.
    """

    kind: ClassVar[str] = "all_to_all"
    split_dim: int = field(kw_only=True)
    concat_dim: int = field(kw_only=True)

    def _detail(self) -> str:
        return f" split_dim {self.split_dim} concat_dim {self.concat_dim}"


@dataclass(frozen=True)
class AllReduce(Step):
    """Addends (or candidates of max/min) are combined; every member of the group gets the result."""

    kind: ClassVar[str] = "all_reduce"
    reduce: str = field(default="sum", kw_only=True)

    def _detail(self) -> str:
        return f" {self.reduce}"


@dataclass(frozen=True)
class ReduceScatter(Step):
    """Addends are combined and the result is cut along `dim`: member i of the group gets part i. `axes` descend."""

    kind: ClassVar[str] = "reduce_scatter"
    dim: int = field(kw_only=True)
    reduce: str = field(default="sum", kw_only=True)

    def _detail(self) -> str:
        return f" {self.reduce} dim {self.dim}"


# ---- what a step does to a layout ----


def _refuse(step: Step | str, layout: TensorLayout, why: str) -> LayoutError:
    return LayoutError(f"{step} does not fit {layout}: {why}", where="redistribution")


def _with_entry(layout: TensorLayout, dim: int, axes: tuple[int, ...]) -> TensorLayout:
    return replace(layout, tensor_map=(*layout.tensor_map[:dim], axes, *layout.tensor_map[dim + 1 :]))


def gathered(layout: TensorLayout, dim: int, axes: tuple[int, ...]) -> TensorLayout:
    """Layout in which `dim` is no longer split by `axes`, its innermost ones."""
    held = layout.tensor_map[dim]
    if held[len(held) - len(axes) :] != axes:
        raise _refuse(
            f"gathering dim {dim} over axes {axes}", layout, f"they are not the innermost axes of the dim, {held}"
        )
    return _with_entry(layout, dim, held[: len(held) - len(axes)])


def sliced(layout: TensorLayout, dim: int, axes: tuple[int, ...]) -> TensorLayout:
    """Layout in which `dim` is split further, by `axes`."""
    return _with_entry(layout, dim, layout.tensor_map[dim] + axes)  # TensorLayout refuses an axis in use


def reduced(layout: TensorLayout, axes: tuple[int, ...]) -> TensorLayout:
    """Layout in which nothing is pending over `axes`."""
    if not set(axes) <= set(layout.partial):
        raise _refuse(f"reducing over axes {axes}", layout, f"pending are only {layout.partial}")
    rest = tuple(a for a in layout.partial if a not in axes)
    return replace(layout, partial=rest, reduce=layout.reduce if rest else "sum")


def apply(step: Step, layout: TensorLayout) -> TensorLayout:
    """Layout after `step`, written over the step's device matrix. Raises LayoutError if the step does not fit `layout`.

    >>> columns = TensorLayout((4,), (-1, 0))
    >>> apply(AllGather((4,), (16, 4), (16, 16), axes=(0,), dim=1), columns)
    TensorLayout(device_matrix=(4,), tensor_map=((), ()), partial=(), reduce='sum')
    """
    layout = on_device_matrix(layout, step.device_matrix)
    if len(step.in_shape) != layout.ndim:
        raise _refuse(step, layout, f"a slice of {len(step.in_shape)} dims is expected")
    if isinstance(step, (AllReduce, ReduceScatter)) and step.reduce != layout.reduce:
        raise _refuse(step, layout, f"a {layout.reduce} is pending")
    if isinstance(step, Reshape):
        before = tuple(n * cut for n, cut in zip(step.in_shape, layout.splits, strict=True))
        after = tuple(n * cut for n, cut in zip(step.out_shape, step.layout.splits, strict=True))
        if 0 not in before and flat_placement(layout, before) != flat_placement(step.layout, after):
            raise _refuse(step, layout, f"{step.layout} on {after} places other elements")
        return step.layout
    if isinstance(step, AllGather):
        return gathered(layout, step.dim, step.axes)
    if isinstance(step, Slice):
        return sliced(layout, step.dim, step.axes)
    if isinstance(step, AllToAll):
        return sliced(gathered(layout, step.concat_dim, step.axes), step.split_dim, step.axes)
    if isinstance(step, AllReduce):
        return reduced(layout, step.axes)
    if isinstance(step, ReduceScatter):
        return sliced(reduced(layout, step.axes), step.dim, step.axes)
    raise TypeError(f"apply: {type(step).__name__} is not a redistribution step")


# ---- what a step does to arrays ----

_COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def move(step: Step, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The slices of all ranks after `step`, given those before it (in rank order). Reductions go in rank order.

    Raises LayoutError if the number or the shape of the arrays is not what the step was planned for.
    """
    ranks = math.prod(step.device_matrix)
    if len(arrays) != ranks:
        raise LayoutError(f"{len(arrays)} arrays for {ranks} ranks", where=str(step))
    for rank, array in enumerate(arrays):
        if np.shape(array) != step.in_shape:
            raise LayoutError(
                f"rank {rank} holds {np.shape(array)}", where=str(step), allowed=f"A slice of shape {step.in_shape}"
            )
    return [_on_rank(step, rank, arrays) for rank in range(ranks)]


def _on_rank(step: Step, rank: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
    if isinstance(step, Reshape):
        return np.reshape(arrays[rank], step.out_shape)
    if isinstance(step, Slice):
        return arrays[rank][step.index(rank)]
    group = step.group(rank)
    held = [arrays[member] for member in group]
    mine = group.index(rank)
    if isinstance(step, AllGather):
        return np.concatenate(held, axis=step.dim)
    if isinstance(step, AllToAll):
        return np.concatenate(
            [np.split(array, len(group), axis=step.split_dim)[mine] for array in held], axis=step.concat_dim
        )
    if isinstance(step, (AllReduce, ReduceScatter)):
        total = held[0]
        for array in held[1:]:
            total = _COMBINE[step.reduce](total, array)
        return total if isinstance(step, AllReduce) else np.split(total, len(group), axis=step.dim)[mine]
    raise TypeError(f"move: {type(step).__name__} is not a redistribution step")


# ---- what a step costs ----


def received_elements(steps: Iterable[Step]) -> int | float:
    """Elements each rank receives in all `steps`, the same on every rank: ring algorithms, direct exchange for
    all_to_all.

    With n ranks in the group and a slice of s elements before the step: all_gather (n - 1) s, reduce_scatter (n - 1) s
    / n, all_to_all (n - 1) s / n, all_reduce 2 (n - 1) s / n (Thakur et al. 2005); reshape and slice nothing. A float
    only where a ring cannot cut evenly.

    >>> received_elements([AllGather((8,), (2, 16), (16, 16), axes=(0,), dim=0)])
    224
    """
    total = Fraction(0)
    for step in steps:
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
        arguments = [f"{name}={value}" for name, value in self.args] + (
            [f"group {self.group_name}"] if self.group else []
        )
        count = dict(self.args).get("output_num", dict(self.args).get("input_num"))
        before = f"{count} x {self.in_shape}" if self.name == "Concat" else f"{self.in_shape}"
        after = f"{count} x {self.out_shape}" if self.name == "Split" else f"{self.out_shape}"
        shown = ", ".join(a for a in arguments if not a.startswith("input_num"))
        return f"{self.name}({shown}): {before} -> {after}"


def operators(steps: Iterable[Step], rank: int = 0) -> list[Operator]:
    """`steps` as the operators MindSpore runs on `rank`.

    AllGather and ReduceScatter work along dim 0 only: for another dim, Split and Concat bring the pieces to their
    place. A Reshape that keeps the slice's shape is no operator.
    """
    return [operator for step in steps for operator in _lowered(step, rank)]


def _lowered(step: Step, rank: int) -> list[Operator]:
    if isinstance(step, Reshape):
        return (
            [Operator("Reshape", step.in_shape, step.out_shape, args=(("shape", step.out_shape),))]
            if step.in_shape != step.out_shape
            else []
        )
    if isinstance(step, Slice):
        kept = step.index(rank)
        ends = (
            ("begin", tuple(s.start for s in kept)),
            ("end", tuple(s.stop for s in kept)),
            ("strides", (1,) * len(kept)),
        )
        return [Operator("StridedSlice", step.in_shape, step.out_shape, args=ends)]
    group = step.group(rank)
    n = len(group)
    name = WORLD_GROUP if n == math.prod(step.device_matrix) else "-".join(map(str, group))
    if isinstance(step, AllToAll):
        args = (("split_count", n), ("split_dim", step.split_dim), ("concat_dim", step.concat_dim))
        return [Operator("AlltoAll", step.in_shape, step.out_shape, group, name, args)]
    if isinstance(step, AllReduce):
        return [Operator("AllReduce", step.in_shape, step.out_shape, group, name, (("op", step.reduce),))]
    if isinstance(step, AllGather):
        joined = (n * step.in_shape[0], *step.in_shape[1:])
        return [Operator("AllGather", step.in_shape, joined, group, name), *_from_to(joined, 0, step.dim, n)]
    if isinstance(step, ReduceScatter):
        stacked = (n * step.out_shape[0], *step.out_shape[1:])
        scatter = Operator("ReduceScatter", stacked, step.out_shape, group, name, (("op", step.reduce),))
        return [*_from_to(step.in_shape, step.dim, 0, n), scatter]
    raise TypeError(f"operators: {type(step).__name__} is not a redistribution step")


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
