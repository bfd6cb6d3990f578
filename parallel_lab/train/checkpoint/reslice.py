"""From one layout to another, through files: which ranks' parts are needed, and which of their elements go where.

    needed_ranks(src, dst, (16, 32), rank=1)          the source ranks that rank 1 of `dst` must read
    reslice(parts, src, dst, (16, 32), rank=1)        what rank 1 of `dst` holds, from those parts
    whole_array(records)                              the full array, from the records of any ranks that hold all slices

Source and target may have any device matrices and numbers of ranks, 6 and 4 too: per dim a target slice overlaps a run
of source slices, and the elements in every combination of overlaps are copied. Whole = one slice. A source slice that
several ranks hold is read from the target's own rank if possible: on an unchanged world only the own file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from ...base.errors import CheckpointError
from ...layout.slices import put, same_slices
from ...layout.tensor_layout import TensorLayout
from .records import TensorRecord

Index = tuple[slice, ...]


def whole(ndim: int) -> TensorLayout:
    """The layout of a tensor that is one slice on one rank."""
    return TensorLayout((1,), ((),) * ndim)


def holder(layout: TensorLayout, numbers: tuple[int, ...], prefer: int = 0) -> int:
    """A rank with the slice of these numbers: `prefer` if it does, else that with most coordinates in common.

    >>> rows = TensorLayout((2, 4), (1, -1))
    >>> holder(rows, (1, 0)), holder(rows, (1, 0), prefer=6)
    (4, 6)
    """
    prefer = prefer if prefer < layout.device_num else 0
    coordinates = list(layout.coordinates(prefer))
    for number, axes in zip(numbers, layout.tensor_map, strict=True):
        for axis in reversed(axes):
            number, coordinates[-1 - axis] = divmod(number, layout.axis_size(axis))
    rank = 0
    for size, coordinate in zip(layout.device_matrix, coordinates, strict=True):
        rank = rank * size + coordinate
    return rank


def _holder_among(layout: TensorLayout, numbers: tuple[int, ...], prefer: int, among: Collection[int]) -> int:
    """`holder`, if it is among these ranks or none of them has the slice; otherwise one of them."""
    found = holder(layout, numbers, prefer)
    if found in among or layout.replica_count == 1:
        return found
    others = (rank for rank in sorted(among) if rank < layout.device_num and layout.slice_numbers(rank) == numbers)
    return next(others, found)


def overlaps(
    src: TensorLayout, dst: TensorLayout | None, shape: tuple[int, ...], rank: int, among: Collection[int]
) -> Iterator[tuple[int, Index, Index]]:
    """(source rank, elements of its part, where they go in the target's part), each target element once."""
    part = src.slice_shape(shape)
    wanted = tuple(slice(0, n) for n in shape) if dst is None else dst.slice_index(shape, rank)
    runs = []
    for dim, (size, target) in enumerate(zip(part, wanted, strict=True)):
        run = []
        rows = src.rows if dim == 0 else ()
        numbers: Iterable[int] = range(len(rows))
        if not rows:
            numbers = range(target.start // size, -(-target.stop // size)) if target.stop > target.start else ()
        for number in numbers:
            first, length = (sum(rows[:number]), rows[number]) if rows else (number * size, size)
            begin, stop = max(target.start, first), min(target.stop, first + length)
            if begin >= stop:
                continue
            taken, placed = slice(begin - first, stop - first), slice(begin - target.start, stop - target.start)
            run.append((number, taken, placed))
        runs.append(run)
    for combination in itertools.product(*runs):
        numbers, taken, placed = (tuple(one[i] for one in combination) for i in range(3))
        yield _holder_among(src, numbers, rank, among), taken, placed


def needed_ranks(
    src: TensorLayout | None, dst: TensorLayout | None, shape: tuple[int, ...], rank: int, among: Collection[int] = ()
) -> tuple[int, ...]:
    """Ranks of `src` whose parts together hold what `rank` of `dst` holds, ascending. None: whole, on rank 0. Ranks
    with the same part are represented by one that is `among` these, if there is one; else the nearest to the own.

    >>> needed_ranks(TensorLayout((4,), (0,)), TensorLayout((2,), (0,)), (8,), 1)
    (2, 3)
    """
    src = src or whole(len(shape))
    found = {source for source, _, _ in overlaps(src, dst, shape, rank, among)}
    return tuple(sorted(found or {holder(src, (0,) * len(shape), rank)}))  # of an empty tensor any part will do


def reslice(
    parts: Mapping[int, np.ndarray],
    src: TensorLayout | None,
    dst: TensorLayout | None,
    shape: tuple[int, ...],
    rank: int,
) -> np.ndarray:
    """What `rank` of `dst` holds of a tensor of `shape`, C-contiguous and its own memory.

    parts  {source rank: its part} of `needed_ranks`. Raises CheckpointError (part missing, other shape), LayoutError.
    """
    src = src or whole(len(shape))
    moves = list(overlaps(src, dst, shape, rank, parts))
    expected = src.slice_shape(shape)
    for source in sorted({source for source, _, _ in moves}):
        if source not in parts:
            what = f"the part of rank {source} is missing"
            raise CheckpointError(what, where="reslice", allowed=f"Given: ranks {sorted(parts)}")
        if parts[source].shape != expected:
            what = f"the part of rank {source} has shape {parts[source].shape}"
            raise CheckpointError(what, where="reslice", allowed=f"{expected}")
    dtypes = {part.dtype for part in parts.values()}
    if len(dtypes) != 1:
        what = f"parts of dtypes {', '.join(sorted(map(str, dtypes)))}"
        raise CheckpointError(what, where="reslice", allowed="One dtype")
    made = np.zeros(shape if dst is None else dst.slice_shape(shape), dtypes.pop())
    for source, taken, placed in moves:
        made[placed] = parts[source][taken]
    return made


def whole_array(records: Iterable[TensorRecord], where: str = "whole_array") -> np.ndarray:
    """The full array; the last of equal slices counts. CheckpointError: slices of different tensors, or missing."""
    records = list(records)
    if not records:
        raise CheckpointError("there are no parts", where=where, allowed="At least one")
    first = records[0]
    shape, layout = first.global_shape, first.layout
    for record in records[1:]:
        is_same = (record.global_shape, record.array.dtype) == (shape, first.array.dtype)
        if not is_same or not same_slices(record.layout, layout):
            one, other = (f"{r.array.dtype} {r.global_shape} by {r.layout}" for r in (first, record))
            what = f"rank {first.rank} has {one}, rank {record.rank} {other}"
            raise CheckpointError(what, where=where, allowed="Parts of one tensor in one layout")
    if first.is_whole:
        return np.array(records[-1].array, order="C")
    parts = {layout.slice_numbers(record.rank): record.array for record in records}
    count = math.prod(layout.splits)
    if len(parts) < count:
        missing = next(numbers for numbers in layout.distinct_slices() if numbers not in parts)
        instance = f"for instance that of rank {holder(layout, missing)}"
        what = f"{count - len(parts)} of {count} slices are missing, {instance}"
        raise CheckpointError(what, where=where, allowed=f"{layout}; given: ranks {sorted(r.rank for r in records)}")
    full = np.empty(shape, first.array.dtype)
    for numbers, part in parts.items():
        put(part, numbers, full, layout)
    return full
