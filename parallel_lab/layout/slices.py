"""Full arrays from all ranks' slices, and slices from full arrays; of some ranks: `train/checkpoint/reslice.py`.

split(full, layout, rank=3)                   what rank 3 holds
assemble(slices, shape, layout)               the full array, from every rank's slice
gather_full(mine, shape, layout)              the same on a running rank: every rank of the world calls it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from ..base.errors import WorldError
from ..base.hooks import current_world, in_parts
from .tensor_layout import Shape, TensorLayout

REDUCERS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def is_split(layout: TensorLayout | None) -> TypeGuard[TensorLayout]:
    """Whether a rank's slice under `layout` is less than the tensor, or an addend of it."""
    return layout is not None and (layout.is_partial or any(n > 1 for n in layout.splits))


def same_slices(one: TensorLayout | None, other: TensorLayout | None) -> bool:
    """Whether every rank holds the same part under both. None, and a layout that splits nothing: the whole."""
    if not is_split(one) or not is_split(other):
        return is_split(one) == is_split(other)
    return one.same_placement(other)


def copy_of(source: np.ndarray, target: np.ndarray | None = None) -> np.ndarray:
    """What `source` holds, in C-contiguous memory, or in `target`; others have their turn between its parts."""
    target = np.empty(source.shape, source.dtype) if target is None else target
    for there, here in in_parts(target, source):
        there[...] = here
    return target


def cut(full: np.ndarray, layout: TensorLayout | None, rank: int) -> np.ndarray:
    """Rank `rank`'s slice of a full array: a C-contiguous copy. Raises LayoutError if the shape does not divide."""
    if layout is None:
        return np.array(full, order="C")
    part = np.array(full[layout.slice_index(full.shape, rank)], order="C")
    if layout.rows:
        below = np.zeros((max(layout.rows) - len(part), *part.shape[1:]), part.dtype)
        part = np.concatenate([part, below])
    return part


def assemble(slices: Sequence[np.ndarray], shape: Shape, layout: TensorLayout | None) -> np.ndarray:
    """The full array of `shape` from all slices; pending ones are combined in rank order. No layout: rank 0's value."""
    if layout is None:
        return np.array(slices[0])
    reduce, is_mean = REDUCERS.get(layout.reduce, np.add), layout.reduce == "avg"
    full = np.empty(shape, slices[0].dtype)
    done: set[tuple[int, ...]] = set()
    for rank, part in enumerate(slices):
        numbers = layout.slice_numbers(rank)
        if numbers in done:
            continue
        done.add(numbers)
        total = np.array(part, copy=True)
        for other in layout.partial_group(rank)[1:] if layout.is_partial else ():
            reduce(total, slices[other], out=total)
        put(total / len(layout.partial_group(rank)) if is_mean else total, numbers, full, layout)
    return full


def put(part: np.ndarray, numbers: tuple[int, ...], full: np.ndarray, layout: TensorLayout) -> None:
    """Write the slice of these numbers where it lies in the full array, without what fills up uneven rows."""
    full[layout.index_of(numbers, full.shape)] = part[: layout.rows[numbers[0]]] if layout.rows else part


def gather_full(mine: np.ndarray, shape: Shape, layout: TensorLayout | None, *, tag: str = "full()") -> np.ndarray:
    """The full array from all ranks' slices: an all_gather, to be called by every rank. WorldError in another world."""
    if not is_split(layout):
        return np.array(mine)
    world = current_world()
    if world is None or world.world_size % layout.device_num:
        world_text = "this process is not a rank" if world is None else f"this world has {world.world_size} ranks"
        hint = "Call it in the run that holds the slices, before its world is closed"
        raise WorldError(f"{world_text}, and the tensor is split over {layout.device_num}", where=tag, hint=hint)
    first = world.rank // layout.device_num * layout.device_num  # of a pipeline's stage, whose ranks hold it
    group = tuple(range(first, first + layout.device_num)) if layout.device_num < world.world_size else None
    slices = world.comm.all_gather(np.ascontiguousarray(mine)[None], dim=0, tag=tag, group=group)
    return assemble(list(slices), shape, layout)
