"""What a redistribution costs, in elements: the numbers by which strategies are compared before anything is compiled.

Eight ranks; a (16, 16) tensor split in 2 row blocks, each on 4 ranks, is wanted in 2 x 4 blocks: every rank splits its
part out of what it has. The other way round the columns must be gathered:

    >>> rows, blocks = TensorLayout((2, 4), (1, -1)), TensorLayout((2, 4), (1, 0))
    >>> redistribution_cost(rows, blocks, (16, 16))
    RedistributionCost(forward=0.0, backward=0.0, computation=128.0)
    >>> redistribution_cost(blocks, rows, (16, 16))
    RedistributionCost(forward=64.0, backward=16.0, computation=320.0)

The prices are MindSpore's (tensor_redistribution: ComputeCost), of the moves between two layouts written over common
ground, in the order in which they are planned and with the sizes that slices have by then; a Reshape before or behind
costs once, by the first slice. They say which of two strategies MindSpore prefers. (`first_slice`: every move is priced
with the first slice, as in its sources. What 2.10's propagation chose for a cross-entropy behind a product split by
columns follows from growing slices only; what its dynamic programming chose for three layers of 512 from the first.)
Seconds and bytes of a compiled plan are counted elsewhere, from its instructions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from .redistribution import redistribution_moves
from .refinement import common_refinement
from .tensor_layout import Shape, TensorLayout

GATHER_SCALE = 0.5  # MindSpore: ALLGATHER_REDUCESCATTER_SCALE_FACTOR
ALL_TO_ALL_SCALE = 2.0  # MindSpore: ALLTOALL_SCALE_FACTOR
RESHAPE_PASSES = 2  # a Reshape reads and writes its slice
THRESHOLD_BYTES, SMALL_BYTES, BIAS_BYTES = 2048, 3072, 1024  # MindSpore: costmodel_communi_threshold, _const, _bias


@dataclass(frozen=True)
class RedistributionCost:
    """Elements that one rank sends (forward, and backward for the gradient) and touches (computation) on the way."""

    forward: float = 0.0
    backward: float = 0.0
    computation: float = 0.0

    @property
    def communication(self) -> float:
        return self.forward + self.backward


def practical(size_bytes: float) -> float:
    """Bytes of communication with the start of a message: small ones cost alike, large ones a little more.

    >>> practical(0), practical(16), practical(4096)
    (0.0, 3072.0, 5120.0)

    MindSpore, RefineForPracticalCost.
    """
    if size_bytes <= 0:
        return 0.0
    return float(SMALL_BYTES if size_bytes <= THRESHOLD_BYTES else size_bytes + BIAS_BYTES)


def redistribution_cost(
    src: TensorLayout,
    dst: TensorLayout,
    shape: Iterable[int],
    dst_shape: Iterable[int] | None = None,
    *,
    alltoall: bool = False,
    first_slice: bool = False,
) -> RedistributionCost:
    """Cost from `src` to `dst`, layouts over the same ranks, nothing pending. dst_shape: after a Reshape between."""
    shape = tuple(shape)
    return _cost(src, dst, shape, shape if dst_shape is None else tuple(dst_shape), alltoall, first_slice)


@lru_cache(maxsize=65536)
def _cost(
    src: TensorLayout, dst: TensorLayout, shape: Shape, dst_shape: Shape, alltoall: bool, first_slice: bool
) -> RedistributionCost:
    if shape == dst_shape and src.same_placement(dst):
        return RedistributionCost()
    counter = _Counter(float(math.prod(src.slice_shape(shape))), first_slice)
    common = common_refinement(src, dst, shape, dst_shape)
    if common is None:  # no common ground: every rank gets everything, then keeps its part
        if shape != dst_shape:
            counter.reshape()
        for dim in reversed(range(src.ndim)):
            for axis in reversed(src.tensor_map[dim]):
                counter.gather(dim, src.axis_size(axis))
        for axes in dst.tensor_map:
            for axis in axes:
                counter.cut(dst.axis_size(axis))
        return counter.total()
    moves = redistribution_moves(common.src_map, common.dst_map, alltoall)
    before, after = (layout.slice_shape(common.shape) for layout in common.layouts)
    written = src.slice_shape(shape), dst.slice_shape(dst_shape)
    if written != (before, after) if moves else written[0] != written[1]:
        counter.reshape()
    for kind, dim, axis, other in moves:
        count = common.device_matrix[-1 - axis]
        if kind == "split":
            counter.cut(count)
        elif kind == "permute":
            counter.exchange(other, count)
        else:
            counter.gather(dim, count)
    return counter.total()


class _Counter:
    """Adds up moves. `held` is the number of elements a rank has at this point."""

    def __init__(self, held: float, first_slice: bool) -> None:
        self.first_slice = first_slice
        self.held, self.forward, self.backward, self.computation = held, 0.0, 0.0, 0.0

    def total(self) -> RedistributionCost:
        return RedistributionCost(self.forward, self.backward, self.computation)

    def reshape(self) -> None:
        self.computation += RESHAPE_PASSES * self.held

    def cut(self, count: int) -> None:
        self.computation += self.held
        self.held /= 1 if self.first_slice else count

    def gather(self, dim: int, count: int) -> None:
        """all_gather; not along dim 0, Split and Concat follow. The last `held`: for every kind of move."""
        self.forward += self.held * count * GATHER_SCALE
        self.backward += self.held * GATHER_SCALE
        self._along(dim, count)
        self.held *= 1 if self.first_slice else count

    def _along(self, dim: int, count: int) -> None:
        self.computation += (self.held if dim == 0 else self.held + 2 * self.held * count) + self.held

    def exchange(self, concat_dim: int, count: int) -> None:
        """all_to_all: what is gathered along `concat_dim` is split along another."""
        self.forward += self.held * ALL_TO_ALL_SCALE
        self.backward += self.held * ALL_TO_ALL_SCALE
        self._along(concat_dim, count)
