"""The check of a redistribution: fold the layouts through its steps, and move real arrays."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.layout.redistribution import _check, _pending, plan_redistribution
from parallel_lab.layout.redistribution_steps import apply, move
from parallel_lab.layout.refinement import common_factors, common_refinement, on_device_matrix
from parallel_lab.layout.slices import REDUCERS
from parallel_lab.layout.tensor_layout import TensorLayout

RECORDED = json.loads((Path(__file__).parent.parent / "recorded" / "redistribution.json").read_text())
BOTH = pytest.mark.parametrize("alltoall", [False, True], ids=["gather", "alltoall"])


def strategy(*cuts: int, ranks: int = 8) -> TensorLayout:
    return TensorLayout.from_strategy(cuts, ranks)


# ---- the one check: fold the layouts, move real arrays ----


def part_key(layout: TensorLayout, rank: int) -> tuple[int, ...]:
    """Which addend `rank` holds: its coordinates along the partial axes."""
    return tuple(layout.coordinates(rank)[-1 - a] for a in layout.partial)


def check(
    src: TensorLayout,
    dst: TensorLayout,
    shape: tuple[int, ...],
    dst_shape: tuple[int, ...] | None = None,
    *,
    alltoall: bool = False,
    exact: bool = False,
) -> tuple:
    """Plan, fold, move; return the steps. Addends are different whole numbers: sums are exact, no accident passes."""
    to = shape if dst_shape is None else dst_shape
    steps = plan_redistribution(src, dst, shape, dst_shape=dst_shape, alltoall=alltoall, exact=exact)
    rng = np.random.default_rng(7)
    keys = sorted({part_key(src, rank) for rank in range(src.device_num)})
    addends = {key: rng.integers(-1000, 1000, shape) * (1 + number) for number, key in enumerate(keys)}
    arrays = [addends[part_key(src, rank)][src.slice_index(shape, rank)] for rank in range(src.device_num)]

    assert not dst.is_partial or src.device_matrix == dst.device_matrix
    layout = src
    for step in steps:
        layout = apply(step, layout)
        arrays = move(step, arrays)
        assert {a.shape for a in arrays} == {step.out_shape}
        assert step.kind not in ("all_gather", "reduce_scatter", "all_to_all") or list(step.axes) == sorted(
            step.axes, reverse=True
        )
        assert step.group_size > 1 or step.kind == "reshape"
    assert layout.same_placement(dst)
    for rank, array in enumerate(arrays):
        mine = part_key(src, rank)
        # pairs with a pending target share the device matrix here
        still = [i for i, a in enumerate(src.partial) if a in dst.partial]
        finished = [key for key in keys if all(key[i] == mine[i] for i in still)]
        # whole numbers wrap: products too are exact
        full = reduce(REDUCERS[src.reduce], [addends[key] for key in finished]).reshape(to)
        expected = full[dst.slice_index(to, rank)]
        np.testing.assert_array_equal(array, expected, err_msg=f"rank {rank}")
    return steps


# ---- the bound ----


def lower_bound_elements(src, dst, shape, dst_shape=None):
    """Elements that some rank must receive whatever the steps are: the largest difference of target block and block
    held, over all ranks.

    With p addends pending and t ranks that want each element, each element costs p - 1 messages until it is complete
    somewhere and then t - 1 more; the bound is the average over the ranks, but at least the target block, no element of
    which is complete anywhere. Raises LayoutError as `plan_redistribution` does.
    """
    shape, to = tuple(shape), tuple(shape if dst_shape is None else dst_shape)
    _check(src, dst, shape, to)
    one, two = src.canonical(), dst.canonical()
    device_matrix = common_factors(one.device_matrix, two.device_matrix)
    if device_matrix is not None:
        one, two = on_device_matrix(one, device_matrix), on_device_matrix(two, device_matrix)
    if pending := _pending(one, two):
        addends = math.prod(one.axis_size(a) for a in pending)
        tensors = math.prod(two.axis_size(a) for a in two.partial)
        total = tensors * math.prod(shape) * (addends - 1 + two.replica_count - 1)
        return max(Fraction(total, two.device_num), Fraction(math.prod(two.slice_shape(to))))
    block = math.prod(dst.slice_shape(to))
    if shape != to and (common := common_refinement(src, dst, shape, to)) is not None:
        src, dst = (TensorLayout(common.device_matrix, entries) for entries in (common.src_map, common.dst_map))
        shape = to = common.shape
    return block - min(_held(src, dst, shape, to, rank) for rank in range(src.device_num))


def _held(src, dst, shape, dst_shape, rank):
    """Elements of its target block that `rank` holds already."""
    before, after = src.slice_index(shape, rank), dst.slice_index(dst_shape, rank)
    if shape == dst_shape:
        pairs = zip(before, after, strict=True)
        return math.prod(max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a, b in pairs)
    flat = np.arange(math.prod(shape))
    return len(np.intersect1d(flat.reshape(shape)[before], flat.reshape(dst_shape)[after], assume_unique=True))
