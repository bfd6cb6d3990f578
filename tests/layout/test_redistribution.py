"""Redistribution: plans lead there (layouts, arrays, random pairs) and, where known, send no more than needed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from parallel_lab.base.errors import LayoutError
from parallel_lab.layout import redistribution_steps
from parallel_lab.layout.redistribution import plan_redistribution
from parallel_lab.layout.refinement import common_refinement
from parallel_lab.layout.tensor_layout import TensorLayout
from tests.crossed import each_of
from tests.layout.drawn_layouts import random_layout, shape_for
from tests.layout.folding import BOTH, check, lower_bound_elements, strategy
from tests.refusals import refused

# ---- random pairs ----


@pytest.mark.quick(14)
@BOTH
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("ranks", [1, 2, 4, 6, 8, 12, 16])
def test_steps_lead_from_any_layout_to_any_other(ranks, seed, alltoall):
    rng = np.random.default_rng([ranks, seed])
    ndim = int(rng.integers(1, 5))
    src, dst = random_layout(rng, ranks, ndim), random_layout(rng, ranks, ndim)
    shape = shape_for(rng, src, dst)
    steps = check(src, dst, shape, alltoall=alltoall)
    assert redistribution_steps.received_elements(steps) >= lower_bound_elements(src, dst, shape)
    assert (steps == ()) == src.same_placement(dst)


@pytest.mark.quick(24)
@BOTH
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("ranks", [4, 6, 8, 16])
def test_a_reshape_between_producer_and_consumer_is_planned_through(ranks, seed, alltoall):
    rng = np.random.default_rng([ranks, seed, 1])
    src, dst = random_layout(rng, ranks, int(rng.integers(1, 4))), random_layout(rng, ranks, int(rng.integers(1, 4)))
    shape, dst_shape = list(shape_for(rng, src)), list(shape_for(rng, dst))
    total = math.lcm(math.prod(shape), math.prod(dst_shape))
    shape[rng.integers(len(shape))] *= total // math.prod(shape)
    dst_shape[rng.integers(len(dst_shape))] *= total // math.prod(dst_shape)
    steps = check(src, dst, tuple(shape), tuple(dst_shape), alltoall=alltoall)
    assert redistribution_steps.received_elements(steps) >= lower_bound_elements(src, dst, shape, dst_shape=dst_shape)


@pytest.mark.quick(14)
@BOTH
@pytest.mark.parametrize("reduce", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ranks", [2, 6, 8, 16])
def test_pending_reductions_are_finished_on_the_way(ranks, seed, reduce, alltoall):
    rng = np.random.default_rng([ranks, seed, 2])
    ndim = int(rng.integers(1, 4))
    src, dst = random_layout(rng, ranks, ndim, partial=True, reduce=reduce), random_layout(rng, ranks, ndim)
    shape = shape_for(rng, src, dst)
    steps = check(src, dst, shape, alltoall=alltoall)
    assert redistribution_steps.received_elements(steps) >= lower_bound_elements(src, dst, shape)


@pytest.mark.quick(14)
@BOTH
@pytest.mark.parametrize("seed", range(20))
def test_what_is_pending_on_both_sides_is_moved_unreduced(seed, alltoall):
    rng = np.random.default_rng([seed, 3])
    src = random_layout(rng, 16, 2, partial=True)
    free = [a for a in range(len(src.device_matrix)) if a not in src.partial]
    roles = rng.integers(-1, 2, len(free))
    dst = TensorLayout(
        src.device_matrix,
        tuple(tuple(a for a, r in zip(free, roles, strict=True) if r == dim) for dim in range(2)),
        src.partial,
    )
    steps = check(src, dst, shape_for(rng, src, dst), alltoall=alltoall)
    assert not any(step.kind in ("all_reduce", "reduce_scatter") for step in steps)


@BOTH
def test_one_of_two_pending_axes_can_be_finished(alltoall):
    src, dst = TensorLayout((2, 2, 2), (2, -1), partial=(0, 1)), TensorLayout((2, 2, 2), (-1, 1), partial=(0,))
    kinds = [step.kind for step in check(src, dst, (4, 6), alltoall=alltoall)]
    assert kinds == (["reduce_scatter", "all_gather"] if alltoall else ["all_reduce", "all_gather", "slice"])


# ---- the choice of steps ----


@pytest.mark.quick(30)
@BOTH
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_no_message_where_every_rank_holds_its_target_already(ranks, seed, alltoall):
    rng = np.random.default_rng([ranks, seed, 4])
    fine = random_layout(rng, ranks, 2)
    # drop inner axes: each coarse part contains the fine one
    coarse = TensorLayout(fine.device_matrix, tuple(axes[: rng.integers(0, len(axes) + 1)] for axes in fine.tensor_map))
    shape = shape_for(rng, fine)
    assert lower_bound_elements(coarse, fine, shape) == 0
    assert {step.kind for step in check(coarse, fine, shape, alltoall=alltoall)} <= {"slice", "reshape"}


PENDING, ROWS, COLUMNS, WHOLE = (
    *(TensorLayout((4,), (-1, -1), partial=(0,)), TensorLayout((4,), (0, -1)), TensorLayout((4,), (-1, 0))),
    TensorLayout((4,), (-1, -1)),
)
GRID_ROWS = TensorLayout((2, 2), (1, -1))


@each_of(
    ("src", "dst", "gather", "alltoall"),
    (PENDING, WHOLE, "all_reduce", "all_reduce"),
    (PENDING, ROWS, "all_reduce slice", "reduce_scatter"),
    (PENDING, COLUMNS, "all_reduce slice", "reduce_scatter"),
    (*(TensorLayout((2, 2), (-1, -1), partial=(0, 1)), GRID_ROWS), *("all_reduce slice", "reduce_scatter all_reduce")),
    # dim 0 is split by another axis now: it must be gathered, so the reduction is finished first
    (
        *(TensorLayout((2, 2), (1, -1), partial=(0,)), TensorLayout((2, 2), (0, -1))),
        *["all_reduce all_gather slice"] * 2,
    ),
)
def test_reduce_scatter_replaces_all_reduce_and_slice_with_alltoall(src, dst, gather, alltoall):
    assert [step.kind for step in check(src, dst, (8, 12), alltoall=False)] == gather.split()
    assert [step.kind for step in check(src, dst, (8, 12), alltoall=True)] == alltoall.split()


@each_of(
    ("src", "dst", "received"),
    (ROWS, WHOLE, 3 * 96 // 4),  # split -> whole: (p - 1) / p N
    (WHOLE, ROWS, 0),
    (ROWS, COLUMNS, 3 * 96 // 16),  # split i -> split j: (p - 1) / p^2 N
    (PENDING, WHOLE, 2 * 3 * 96 // 4),  # pending -> whole: 2 (p - 1) / p N
    (PENDING, ROWS, 3 * 96 // 4),  # pending -> split: (p - 1) / p N
)
def test_one_axis_costs_what_the_formula_says_and_that_is_the_bound(src, dst, received):
    assert redistribution_steps.received_elements(plan_redistribution(src, dst, (8, 12), alltoall=True)) == received
    assert lower_bound_elements(src, dst, (8, 12)) == received


@each_of(
    ("src", "dst", "shape", "gather", "alltoall", "bound"),
    (strategy(1, 8), strategy(2, 4), (16, 16), 224, 48, 32),
    # where one axis after the other sends more than the bound
    (TensorLayout((2, 2), (1, 0)), TensorLayout((2, 2), (0, 1)), (8, 8), None, 32, 16),
    (TensorLayout((2, 4), (1, -1)), TensorLayout((2, 4), (-1, 1)), (8, 8), None, 16, 16),
)
def test_elements_received_against_the_bound(src, dst, shape, gather, alltoall, bound):
    if gather is not None:
        assert redistribution_steps.received_elements(plan_redistribution(src, dst, shape)) == gather
    assert redistribution_steps.received_elements(plan_redistribution(src, dst, shape, alltoall=True)) == alltoall
    assert lower_bound_elements(src, dst, shape) == bound


@pytest.mark.quick(10)
@pytest.mark.parametrize("seed", range(30))
def test_the_bound_is_what_counting_elements_says(seed):
    rng = np.random.default_rng([seed, 5])
    src, dst = random_layout(rng, 8, 2), random_layout(rng, 8, 3)
    shape, dst_shape = list(shape_for(rng, src)), list(shape_for(rng, dst))
    total = math.lcm(math.prod(shape), math.prod(dst_shape))
    shape[1] *= total // math.prod(shape)
    dst_shape[2] *= total // math.prod(dst_shape)
    flat = np.arange(total)
    held = [set(flat.reshape(shape)[src.slice_index(shape, r)].ravel()) for r in range(8)]
    wanted = [set(flat.reshape(dst_shape)[dst.slice_index(dst_shape, r)].ravel()) for r in range(8)]
    missing = [len(target - here) for target, here in zip(wanted, held, strict=True)]
    assert lower_bound_elements(src, dst, shape, dst_shape=dst_shape) == max(missing)


def test_without_common_ground_everything_is_gathered_then_cut():
    src, dst = TensorLayout((2, 3), (1, 0)), TensorLayout((3, 2), (1, 0))
    assert common_refinement(src, dst, (6, 6), (6, 6)) is None
    assert [step.kind for step in check(src, dst, (6, 6), alltoall=True)] == ["all_gather"] * 2 + ["slice"] * 2


@pytest.mark.parametrize(("cuts", "gathers"), [((2, 1, 0), [(1, 0)]), ((2, 0, 1), [(1,), (0,)])])
def test_neighbouring_gathers_are_one_message_if_their_axes_are_in_order(cuts, gathers):
    """The rows stay split by axis 2; columns are split to make the two inner axes separate ones."""
    src, dst = TensorLayout((2, 2, 2), (cuts, ())), TensorLayout((2, 2, 2), ((2,), (1,)))
    steps = check(src, dst, (16, 6), alltoall=False)
    assert [step.axes for step in steps if step.kind == "all_gather"] == gathers


def test_axes_out_of_order_are_gathered_one_by_one():
    """Groups join pieces in rank order: one all_gather over axes (0, 1) of a dim split by (0, 1) would mix them up."""
    steps = check(TensorLayout((2, 3), ((0, 1),)), TensorLayout((6,), ((),)), (12,), alltoall=False)
    assert [step.axes for step in steps if step.kind == "all_gather"] == [(1,), (0,)]


def test_shapes_that_lie_equally_need_no_message_though_they_have_no_common_refinement():
    steps = check(TensorLayout((2,), (0, -1)), TensorLayout((2,), (0, -1)), (4, 6), (6, 4), alltoall=False)
    assert [step.kind for step in steps] == ["reshape"]


@BOTH
def test_tensors_without_elements_are_redistributed_too(alltoall):
    check(strategy(8, 1), strategy(2, 4), (0, 16), alltoall=alltoall)


# ---- refusals ----


@each_of(
    ("src", "dst", "shape", "dst_shape", "text"),
    (strategy(8, 1), strategy(4, 1, ranks=4), (16, 16), None, "source layout has 8 ranks, target layout has 4"),
    (strategy(8, 1), strategy(1, 8), (16, 16), (16, 8), "(16, 16) cannot become (16, 8)"),
    (
        *(strategy(8, 1), strategy(1, 8), (16, 12), None),
        "target layout: dim 1 of shape (16, 12) has 12 elements and cannot be split 8 ways",
    ),
    (WHOLE, PENDING, (16, 16), None, "it cannot be undone"),
    (
        *(TensorLayout((2, 4), (-1, -1), partial=(1,)), TensorLayout((2, 4), (-1, -1), partial=(0,))),
        *((16, 16), None, "it cannot be undone"),
    ),
    (PENDING, replace(PENDING, reduce="max"), (16, 16), None, "it cannot be undone"),
    (
        *(TensorLayout((2, 3), (-1, -1), partial=(1,)), TensorLayout((3, 2), (-1, -1), partial=(1,))),
        *((6, 6), None, "it cannot be undone"),
    ),
)
def test_what_cannot_be_redistributed_is_refused_with_the_reason(src, dst, shape, dst_shape, text):
    with pytest.raises(LayoutError, match="redistribution") as caught:
        plan_redistribution(src, dst, shape, dst_shape=dst_shape)
    assert text in str(caught.value)
    with pytest.raises(LayoutError):
        lower_bound_elements(src, dst, shape, dst_shape=dst_shape)


GRID_COLUMNS = TensorLayout((2, 4), (-1, 0))


test_a_step_that_does_not_fit_the_layout_is_refused = refused(
    (
        redistribution_steps.AllGather((2, 4), (16, 4), (64, 4), axes=(0,), dim=0),
        GRID_COLUMNS,
    ),  # columns are split, not rows
    (redistribution_steps.AllGather((2, 4), (16, 4), (16, 16), axes=(1,), dim=1), GRID_COLUMNS),  # by axis 0, not 1
    (redistribution_steps.Slice((2, 4), (16, 4), (4, 4), axes=(0,), dim=0), GRID_COLUMNS),  # axis 0 is in use
    (redistribution_steps.AllToAll((2, 4), (16, 4), (64, 1), axes=(0,), split_dim=1, concat_dim=0), GRID_COLUMNS),
    (redistribution_steps.ReduceScatter((2, 4), (16, 4), (8, 4), axes=(1,), dim=0), GRID_COLUMNS),  # nothing is pending
    (
        redistribution_steps.ReduceScatter((2, 4), (16, 4), (8, 4), axes=(1,), dim=0, reduce="max"),
        TensorLayout((2, 4), (-1, 0), partial=(1,)),
    ),
    (
        redistribution_steps.Reshape((2, 4), (16, 4), (64,), layout=TensorLayout((2, 4), (0,))),
        GRID_COLUMNS,
    ),  # columns of 4 are no block of 64
    (redistribution_steps.AllGather((4, 2), (16, 4), (16, 8), axes=(0,), dim=1), GRID_COLUMNS),  # other device matrix
    by=lambda step, layout: redistribution_steps.apply(step, layout),
    error=LayoutError,
)


def test_arrays_that_do_not_fit_the_step_are_refused():
    step = redistribution_steps.AllGather((2,), (4, 8), (8, 8), axes=(0,), dim=0)
    with pytest.raises(LayoutError, match=r"1 arrays for 2 ranks"):
        redistribution_steps.move(step, [np.zeros((4, 8))])
    with pytest.raises(LayoutError, match=r"rank 1 holds \(2, 8\)"):
        redistribution_steps.move(step, [np.zeros((4, 8)), np.zeros((2, 8))])
