"""The check of a redistribution: fold the layouts through its steps, and move real arrays."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.layout.redistribution import plan_redistribution
from parallel_lab.layout.redistribution_steps import (
    apply,
    move,
)
from parallel_lab.layout.tensor_layout import TensorLayout

RECORDED = json.loads((Path(__file__).parent.parent / "recorded" / "redistribution.json").read_text())
REDUCE = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}  # whole numbers wrap: products too are exact
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
    alltoall: bool,
) -> tuple:
    """Plan, fold, move; return the steps. Every addend is a different array of whole numbers, so sums are exact and no
    accident passes.
    """
    to = shape if dst_shape is None else dst_shape
    steps = plan_redistribution(src, dst, shape, dst_shape=dst_shape, alltoall=alltoall)
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
        still = [
            i for i, a in enumerate(src.partial) if a in dst.partial
        ]  # pairs with a pending target share the device matrix here
        finished = [key for key in keys if all(key[i] == mine[i] for i in still)]
        expected = reduce(REDUCE[src.reduce], [addends[key] for key in finished]).reshape(to)[dst.slice_index(to, rank)]
        np.testing.assert_array_equal(array, expected, err_msg=f"rank {rank}")
    return steps
