"""Redistribution: the steps that bring a tensor from one layout to another.

A producer leaves its output in one layout, a consumer wants another; the planner finds what every rank must do in
between. Four ranks, a (16, 16) tensor split in rows, wanted in columns:

    >>> rows, columns = TensorLayout((4,), (0, -1)), TensorLayout((4,), (-1, 0))
    >>> for step in plan_redistribution(rows, columns, (16, 16)):
    ...     print(step)
    all_gather dim 0 over axes (0,) of (4,): (4, 16) -> (16, 16)
    slice dim 1 over axes (0,) of (4,): (16, 16) -> (16, 4)
    >>> print(*plan_redistribution(rows, columns, (16, 16), alltoall=True))
    all_to_all split_dim 1 concat_dim 0 over axes (0,) of (4,): (4, 16) -> (16, 4)

`apply(step, layout)` is the specification of a step: folded over a plan it leads from the source to the target
placement. `move` does the same with arrays. `operators` shows the plan as MindSpore's operators; order and merging
follow MindSpore 2.10, whose lists are recorded in tests/recorded/redistribution.json.

A pending reduction is finished first, by all_reduce, while the slices are small. With `alltoall=True` an axis that is
pending in the source and splits a still whole (part of a) dim in the target is finished by a reduce_scatter, in place
of all_reduce and slice. What is pending in both layouts stays so: addends (or candidates of max/min) move like others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..base.checks import fitting
from ..base.errors import LayoutError
from .redistribution_steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    ReduceScatter,
    Reshape,
    Slice,
    Step,
    gathered,
    narrowed,
    reduced,
    sliced,
    with_entry,
)
from .refinement import Refinement, common_factors, common_refinement, flat_placement, join_axes, on_device_matrix
from .tensor_layout import Shape, TensorLayout


@fitting
def plan_redistribution(
    src: TensorLayout,
    dst: TensorLayout,
    shape: Iterable[int],
    *,
    dst_shape: Iterable[int] | None = None,
    alltoall: bool = False,
    exact: bool = False,
) -> tuple[Step, ...]:
    """Steps from layout `src` to layout `dst`; () if both place the tensor equally.

    src, dst   layouts over the same ranks; their device matrices may differ
    shape      global shape under `src`
    dst_shape  global shape under `dst`, if a Reshape operator lies between producer and consumer
    alltoall   False: gather what is in the way, then slice (MindSpore's default)
               True: all_to_all and reduce_scatter where they fit, which sends less
    exact      True: one exchange, in which no rank receives what it has or does not need: the least there is. Where a
               sum is pending, and through a Reshape without common ground, as `alltoall` says

    Raises LayoutError if the ranks or the elements differ in number, if a layout does not divide its shape, or if `dst`
    has a reduction pending that is not pending in `src`: addends cannot be made from values that are complete.
    """
    shape = tuple(shape)
    return _plan(src, dst, shape, shape if dst_shape is None else tuple(dst_shape), alltoall, exact)


@lru_cache(maxsize=16384)
def _plan(
    src: TensorLayout, dst: TensorLayout, shape: Shape, dst_shape: Shape, alltoall: bool, exact: bool
) -> tuple[Step, ...]:
    _check(src, dst, shape, dst_shape)
    if shape == dst_shape and src.same_placement(dst):
        return ()
    common, stays = common_refinement(src, dst, shape, dst_shape), False
    if 0 not in shape:
        stays = flat_placement(src, shape) == flat_placement(dst, dst_shape)
    if common is None:
        device_matrix = common_factors(src.canonical().device_matrix, dst.canonical().device_matrix)
    else:
        device_matrix = common.device_matrix
    if device_matrix is not None:
        src, dst = on_device_matrix(src, device_matrix), on_device_matrix(dst, device_matrix)
    else:
        src, dst = src.canonical(), dst.canonical()
    pending = _pending(src, dst)
    steps = _Steps(src, shape)
    if stays:
        steps.reshape(dst, dst_shape)
    elif exact and steps.exchange(dst, dst_shape, common):
        pass
    elif common is None:
        steps.all_reduce(pending)
        _gather_and_slice(steps, dst, dst_shape)
    else:
        _refined(steps, dst, dst_shape, common, pending, alltoall or exact)
    return tuple(steps.done)


def _check(src: TensorLayout, dst: TensorLayout, shape: Shape, dst_shape: Shape) -> None:
    if src.device_num != dst.device_num:
        what = f"source layout has {src.device_num} ranks, target layout has {dst.device_num}"
        raise LayoutError(what, where="redistribution")
    if math.prod(shape) != math.prod(dst_shape):
        allowed = "Both must have equally many elements"
        raise LayoutError(f"shape {shape} cannot become {dst_shape}", where="redistribution", allowed=allowed)
    src.check_shape(shape, where="redistribution, source layout")
    dst.check_shape(dst_shape, where="redistribution, target layout")


def _pending(src: TensorLayout, dst: TensorLayout) -> tuple[int, ...]:
    """Axes (of `src`) whose reduction must be finished on the way."""
    if not dst.is_partial:
        return tuple(a for a in src.partial if src.axis_size(a) > 1)
    if src.device_matrix == dst.device_matrix:
        kept = set(dst.partial) <= set(src.partial)
    else:
        after = TensorLayout(dst.device_matrix, (), dst.partial)
        kept = TensorLayout(src.device_matrix, (), src.partial).same_placement(after)
    if not kept or src.reduce != dst.reduce:
        what = f"target layout ({dst}) has a {dst.reduce} pending that the source layout ({src}) has not"
        allowed = "A reduction can stay pending, over the same ranks and of the same kind, or end; it cannot be undone"
        hint = "Give the target layout without partial axes: TensorLayout.whole()"
        raise LayoutError(what, where="redistribution", allowed=allowed, hint=hint)
    return tuple(a for a in src.partial if a not in dst.partial) if src.device_matrix == dst.device_matrix else ()


class _Steps:
    """A plan while it grows: the steps so far, the layout and global shape they lead to, and a rank's part of it."""

    def __init__(self, layout: TensorLayout, shape: Shape) -> None:
        self.done: list[Step] = []
        self.layout, self.shape, self.part = layout, shape, layout.slice_shape(shape)
        self._before_reshape = (layout, shape, self.part)

    def _add(self, kind: type[Step], layout: TensorLayout, part: Shape | None = None, **arguments: Any) -> None:
        before, self.part = self.part, layout.slice_shape(self.shape) if part is None or layout.rows else part
        self.done.append(kind(self.layout.device_matrix, before, self.part, **arguments))
        self.layout = layout

    def reshape(self, layout: TensorLayout, shape: Shape, part: Shape | None = None) -> None:
        """Describe the same slices on another global shape. Neighbouring Reshapes merge; idle ones disappear. part: of
        a rank, where it is known.
        """
        if self.done and self.done[-1].kind == "reshape":
            self.done.pop()
            self.layout, self.shape, self.part = self._before_reshape
        self._before_reshape = (self.layout, self.shape, self.part)
        if self.shape != shape or not self.layout.same_placement(layout):
            before, self.part = self.part, part or layout.slice_shape(shape)
            self.done.append(Reshape(self.layout.device_matrix, before, self.part, layout=layout))
        self.layout, self.shape = layout, shape

    def all_gather(self, dim: int, axes: tuple[int, ...]) -> None:
        """Gather `axes`, the innermost of `dim`. Groups are joined ascending, so axes out of order go one by one."""
        while axes:
            first = len(axes) - 1
            while first and axes[first - 1] > axes[first]:
                first -= 1
            layout = gathered(self.layout, dim, axes[first:])
            self._add(AllGather, layout, self._part(dim, axes[first:], whole=True), axes=axes[first:], dim=dim)
            axes = axes[:first]

    def slice(self, dim: int, axes: tuple[int, ...]) -> None:
        if axes:
            layout = with_entry(self.layout, dim, self.layout.tensor_map[dim] + axes)
            self._add(Slice, layout, self._part(dim, axes), axes=axes, dim=dim)

    def _part(self, dim: int, axes: tuple[int, ...], *, whole: bool = False) -> Shape:
        """The rank's part with `dim` split by `axes`, or (whole) no longer split by them."""
        count = math.prod([self.layout.device_matrix[-1 - a] for a in axes])
        size = self.part[dim] * count if whole else self.part[dim] // count
        return (*self.part[:dim], size, *self.part[dim + 1 :])

    def all_to_all(self, split_dim: int, concat_dim: int, axis: int) -> None:
        layout = sliced(gathered(self.layout, concat_dim, (axis,)), split_dim, (axis,))
        self._add(AllToAll, layout, axes=(axis,), split_dim=split_dim, concat_dim=concat_dim)

    def exchange(self, dst: TensorLayout, dst_shape: Shape, common: Refinement | None) -> bool:
        """The exact pieces to `dst`, through the common shape if a Reshape lies between; False: none are to be sent, or
        that cannot be determined.
        """
        src, shape, target = self.layout, self.shape, dst
        if shape != dst_shape and common is not None:
            src, target = common.layouts
            shape = common.shape
        elif shape != dst_shape:
            return False
        if self.layout.is_partial or dst.is_partial:
            return False
        axes, way = narrowed(src, target, shape)
        if not any(map(way.received, range(way.src.device_num))):
            return False
        self.reshape(src, shape)
        self._add(Exchange, target, axes=axes, to=target, way=way)
        self.reshape(dst, dst_shape)
        return True

    def all_reduce(self, axes: Iterable[int]) -> None:
        axes = tuple(sorted(axes, reverse=True))
        if axes:
            self._add(AllReduce, reduced(self.layout, axes), axes=axes, reduce=self.layout.reduce)

    def reduce_scatter(self, dim: int, axis: int) -> None:
        layout = sliced(reduced(self.layout, (axis,)), dim, (axis,))
        self._add(ReduceScatter, layout, axes=(axis,), dim=dim, reduce=self.layout.reduce)


def _gather_and_slice(steps: _Steps, dst: TensorLayout, dst_shape: Shape) -> None:
    """Without common ground: every rank gets everything, then keeps its part."""
    for dim in reversed(range(steps.layout.ndim)):
        steps.all_gather(dim, steps.layout.tensor_map[dim])
    whole = TensorLayout(dst.device_matrix, ((),) * dst.ndim, dst.partial, dst.reduce)
    if steps.shape != dst_shape:
        steps.reshape(whole, dst_shape)
    steps.layout = whole  # the same placement over the target's device matrix
    for dim, axes in enumerate(dst.tensor_map):
        steps.slice(dim, axes)


def _refined(
    steps: _Steps, dst: TensorLayout, dst_shape: Shape, common: Refinement, pending: tuple[int, ...], alltoall: bool
) -> None:
    """Plan on common ground: `steps` holds the source over the common device matrix, `dst` is written over it too."""
    start, shape = list(common.src_map), common.shape

    def refined() -> None:
        if steps.shape == shape and list(steps.layout.tensor_map) == [() if a == -1 else (a,) for a in start]:
            return
        entries, matrix = tuple([() if a == -1 else (a,) for a in start]), common.device_matrix
        part = tuple([n if a == -1 else n // matrix[-1 - a] for n, a in zip(shape, start, strict=True)])
        steps.reshape(TensorLayout.known(matrix, entries, steps.layout.partial, steps.layout.reduce), shape, part)

    if alltoall:
        for dim, (here, there) in enumerate(zip(start, common.dst_map, strict=True)):
            if here == -1 and there in pending:
                refined()
                steps.reduce_scatter(_to_front(steps, dim, scatter=True), there)
                start[dim] = there
                pending = tuple(a for a in pending if a != there)
    steps.all_reduce(pending)
    moves = redistribution_moves(start, common.dst_map, alltoall)
    # MindSpore rewrites a list (to gather and slice along dim 0, several dims at once) only if it has no AllToAll
    rewritten = all(kind != "permute" for kind, *_ in moves)
    last = len(moves)
    while rewritten and last and moves[last - 1][0] == "split":
        last -= 1
    position = 0
    while position < last:
        kind, dim, axis, other = moves[position]
        position += 1
        refined()
        if kind == "split":
            steps.slice(dim, (axis,))
            start[dim] = axis
        elif kind == "permute":
            steps.all_to_all(dim, other, axis)
            start[other], start[dim] = -1, axis
        else:
            axes, lowest = (axis,), dim
            # Gathers of neighbouring dims behind dims of length 1 are one, of a contiguous block, if their ranks lie
            # one block apart (MindSpore 2.10).
            while rewritten and _leads(steps, dim) and position < last:
                kind, following, axis, _ = moves[position]
                if (kind, following, axis) != ("concat", lowest - 1, axes[0] + 1) or not following:
                    break
                axes, lowest = (axis, *axes), following
                position += 1
            steps.all_gather(_to_front(steps, dim) if rewritten else dim, axes)
            start[lowest : dim + 1] = [-1] * (dim + 1 - lowest)
    cuts = moves[last:]
    target = _one_slice(cuts, start, dst, dst_shape, common)
    if target is not None:
        before, dim = target
        steps.reshape(replace(before, partial=steps.layout.partial, reduce=steps.layout.reduce), dst_shape)
        steps.slice(dim, tuple(axis for _, _, axis, _ in sorted(cuts, key=lambda move: move[1])))
    elif cuts:
        refined()
        for _, dim, axis, _ in cuts:
            steps.slice(dim, (axis,))
    steps.reshape(dst, dst_shape)


Move = tuple[str, int, int, int]  # kind, dim, axis, and for a permute the dim that loses the axis (else -1)

# The order in which 2.10 looks at the dims of a common shape: that of a robin_hood map (3.11.5) with these keys. Up to
# three dims ascend; beyond eight nothing is known, and they ascend too.
_ORDERS = {4: (0, 1, 3, 2), 5: (0, 1, 4, 3, 2), 6: (0, 1, 4, 5, 3, 2)}
_ORDERS |= {7: (0, 4, 3, 1, 5, 6, 2), 8: (0, 4, 3, 1, 5, 6, 7, 2)}


def redistribution_moves(start: Iterable[int], target: Iterable[int], alltoall: bool) -> list[Move]:
    """The moves from one map to another, per dim the axis that splits it or -1, in MindSpore 2.10's order.

    Split what can be split, permute axes that another dim wants, gather what nothing wants. Without `alltoall` a
    permute is a gather and a split. A list without a permute is sorted: gathers first, highest dim first, then splits,
    lowest first. (MindSpore: redistribution_operator_infer; tensor_transform, its last function.)
    """
    moves = _moves_found(list(start), tuple(target)) if alltoall else []
    if any(kind == "permute" for kind, *_ in moves):
        return moves
    changed = [(dim, here, there) for dim, (here, there) in enumerate(zip(start, target, strict=True)) if here != there]
    gathers: list[Move] = [("concat", dim, here, -1) for dim, here, _ in reversed(changed) if here != -1]
    return gathers + [("split", dim, there, -1) for dim, _, there in changed if there != -1]


def _moves_found(here: list[int], there: tuple[int, ...]) -> list[Move]:
    """The moves in the order in which they are found."""
    moves: list[Move] = []
    still = [dim for dim in _ORDERS.get(len(there), range(len(there))) if here[dim] != there[dim]]

    def close() -> None:
        still[:] = [dim for dim in still if here[dim] != there[dim]]

    def permute() -> bool:
        count = len(moves)
        for dim in still:
            holder = next((j for j in still if here[j] == there[dim] != -1), dim)
            if here[dim] == -1 and holder != dim:
                moves.append(("permute", dim, there[dim], holder))
                here[holder], here[dim] = -1, there[dim]
        close()
        return len(moves) > count

    while still:
        count = before = len(moves)
        while True:
            for dim in still:
                if here[dim] == -1 and all(here[j] != there[dim] for j in still):
                    moves.append(("split", dim, there[dim], -1))
                    here[dim] = there[dim]
            close()
            while permute():
                pass
            if len(moves) == before:
                break
            before = len(moves)
        unwanted = [dim for dim in still if here[dim] != -1 and all(there[j] != here[dim] for j in still)]
        if not unwanted and len(moves) == count:
            unwanted = still[:1]  # axes in a circle
        for dim in unwanted:
            moves.append(("concat", dim, here[dim], -1))
            here[dim] = -1
        close()
    return moves


def _leads(steps: _Steps, dim: int) -> bool:
    return dim > 0 and math.prod(steps.part[:dim]) == 1


def _to_front(steps: _Steps, dim: int, *, scatter: bool = False) -> int:
    """The dim on which to gather or scatter `dim`: 0, without Split and Concat, after dims of local length 1 only."""
    if not _leads(steps, dim):
        return dim
    layout, shape = steps.layout, steps.shape
    cuts, part = layout.splits, layout.slice_shape(shape)
    joined = tuple(a for axes in layout.tensor_map[: dim + 1] for a in axes)
    behind = layout.tensor_map[dim + 1 :]
    if scatter or (steps.done and steps.done[-1].kind == "reshape" and steps.done[-1].in_shape == part[dim:]):
        # without the leading 1s; a Reshape that only added them disappears
        steps.reshape(replace(layout, tensor_map=(joined, *behind)), (math.prod(shape[: dim + 1]), *shape[dim + 1 :]))
    else:
        # the same slice, its leading 1 read as split by all these axes: no operator
        view = (math.prod(cuts[: dim + 1]), *(1,) * (dim - 1), *part[dim : dim + 1], *shape[dim + 1 :])
        steps.reshape(replace(layout, tensor_map=(joined, *((),) * dim, *behind)), view)
    return 0


def _one_slice(
    cuts: list[Move], start: list[int], dst: TensorLayout, dst_shape: Shape, common: Refinement
) -> tuple[TensorLayout, int] | None:
    """(layout on `dst_shape` before one slice, dim) if the final splits leave one block within a dim of the target.

    MindSpore 2.10 then reshapes first and slices once; otherwise it slices dim by dim.
    """
    if not cuts:
        return None
    last = max(dim for _, dim, _, _ in cuts)
    sizes = [dst.device_matrix[-1 - axis] if axis != -1 else 1 for axis in common.dst_map]
    if any(common.shape[dim] != sizes[dim] for dim in range(last)):
        return None
    entries: list[tuple[int, ...]] = []
    position, dims = 0, {dim for _, dim, _, _ in cuts}
    sliced_dim = -1
    for dim, size in enumerate(dst_shape):
        parts, first = [], position
        while size > 1:
            axis = start[position]
            split = ((axis,), dst.axis_size(axis)) if axis != -1 else ((), 1)
            parts.append((common.shape[position], *split))
            size //= common.shape[position]
            position += 1
        if dims & set(range(first, position)):
            if not dims <= set(range(first, position)):
                return None
            sliced_dim = dim
        axes = join_axes(parts)
        if axes is None:
            return None
        entries.append(axes)
    return TensorLayout(dst.device_matrix, tuple(entries)), sliced_dim
