"""The exact manner: every rank receives just what it lacks, and of those that have it all give equally often."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from parallel_lab.base.errors import LayoutError
from parallel_lab.layout.redistribution import plan_redistribution
from parallel_lab.layout.redistribution_steps import apply, received_elements
from parallel_lab.layout.route import Route, box_size
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.run.communicator import Request, answer
from parallel_lab.run.simulator import simulate
from tests.crossed import each_of
from tests.layout.drawn_layouts import drawn_pair, random_layout, shape_for
from tests.layout.folding import check, lower_bound_elements

SEED = 20261127
RANKS = (1, 2, 3, 4, 6, 8, 12, 16)


def held(layout: TensorLayout, shape: tuple[int, ...], rank: int) -> set[int]:
    """The numbers of the elements that a rank holds."""
    return set(np.arange(math.prod(shape)).reshape(shape)[layout.slice_index(shape, rank)].ravel().tolist())


def on_rank(rank, steps, value):
    """A rank's part in the steps, with requests: its slice before -> (its slice after, elements that came to it)."""
    came = 0
    for step in steps:
        if step.kind == "exchange":
            me = step.group(rank).index(rank)
            came += sum(box_size(box) for giver, box in step.way.taken[me].items() if giver != me)
            value = yield Request("exchange", step.group(rank), value, route=step.route)
        else:
            assert step.kind in ("slice", "reshape")
            value = value[step.index(rank)] if step.kind == "slice" else value.reshape(step.out_shape)
    return value, came


def compare(seed: int) -> None:
    """One drawn pair on simulated ranks: values, and per rank the elements received, by sets of elements."""
    rng = np.random.default_rng([SEED, seed])
    ranks = int(rng.choice(RANKS))
    src, dst, shape = drawn_pair(rng, ranks)
    print(f"seed {seed}, {ranks} ranks, shape {shape}: {src} -> {dst}")
    steps = plan_redistribution(src, dst, shape, exact=True)
    full = rng.standard_normal(shape)
    slices = [np.ascontiguousarray(full[src.slice_index(shape, rank)]) for rank in range(ranks)]
    done = simulate([on_rank(rank, steps, slices[rank]) for rank in range(ranks)])
    least = [len(held(dst, shape, rank) - held(src, shape, rank)) for rank in range(ranks)]
    assert [came for _, came in done] == least
    assert received_elements(steps) == max(least) == lower_bound_elements(src, dst, shape)
    for rank, (value, _) in enumerate(done):
        np.testing.assert_array_equal(value, full[dst.slice_index(shape, rank)], err_msg=f"rank {rank}")
    assert sum(step.communicates for step in steps) <= 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", range(4))
def test_every_rank_receives_what_it_lacks_and_no_more(block):
    for seed in range(60 * block, 60 * (block + 1)):
        compare(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", range(50))
def test_5000_pairs_are_at_the_bound(block):
    for seed in range(1000 + 100 * block, 1000 + 100 * (block + 1)):
        compare(seed)


@pytest.mark.quick(16)
@pytest.mark.parametrize("ranks", [4, 6, 8, 16])
@pytest.mark.parametrize("seed", range(12))
def test_folding_the_steps_leads_to_the_target(ranks, seed):
    src, dst, shape = drawn_pair(np.random.default_rng([SEED, ranks, seed, 1]), ranks)
    check(src, dst, shape, exact=True)


@pytest.mark.quick(16)
@pytest.mark.parametrize("ranks", [4, 6, 8, 16])
@pytest.mark.parametrize("seed", range(12))
def test_through_a_reshape_pieces_travel_on_common_ground(ranks, seed):
    rng = np.random.default_rng([SEED, ranks, seed, 2])
    src, dst = random_layout(rng, ranks, int(rng.integers(1, 4))), random_layout(rng, ranks, int(rng.integers(1, 4)))
    shape, dst_shape = list(shape_for(rng, src)), list(shape_for(rng, dst))
    total = math.lcm(math.prod(shape), math.prod(dst_shape))
    shape[rng.integers(len(shape))] *= total // math.prod(shape)
    dst_shape[rng.integers(len(dst_shape))] *= total // math.prod(dst_shape)
    steps = check(src, dst, tuple(shape), tuple(dst_shape), exact=True)
    if any(step.kind == "exchange" for step in steps):
        assert received_elements(steps) == lower_bound_elements(src, dst, shape, dst_shape=dst_shape)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(40))
def test_what_is_pending_is_finished_on_the_way(seed):
    rng = np.random.default_rng([SEED, seed, 3])
    src, dst = random_layout(rng, 8, 2, partial=True), random_layout(rng, 8, 2)
    shape = shape_for(rng, src, dst)
    steps = check(src, dst, shape, exact=True)
    assert src.is_partial or received_elements(steps) == lower_bound_elements(src, dst, shape)


# ---- known numbers ----


def grid(*sizes):
    return lambda *entries: TensorLayout(sizes, entries)


@each_of(
    ("src", "dst", "shape", "gather", "exact"),
    # transposed device matrix, nested splits, (S0, R) -> (R, S0): theory, where planners of one axis fail
    (grid(2, 2)(1, 0), grid(2, 2)(0, 1), (8, 8), 48, 16),
    (grid(2, 2)((1, 0), -1), grid(2, 2)(-1, (1, 0)), (8, 8), 48, 12),
    (grid(2, 4)(1, -1), grid(2, 4)(-1, 1), (8, 8), 32, 16),
    # Rink et al. 2021: [3{x}6] -> [2{y}6] on x=2, y=3
    (grid(2, 3)(1), grid(2, 3)(0), (6,), 3, 2),
)
def test_known_cases_are_at_the_bound(src, dst, shape, gather, exact):
    assert received_elements(plan_redistribution(src, dst, shape)) == gather
    assert received_elements(plan_redistribution(src, dst, shape, exact=True)) == exact


def test_mindspores_two_manners_and_the_exact_one():
    """(1, 8) -> (2, 4) on (16, 16): 224 and 48 elements in MindSpore 2.10, and a bound of 32 (theory)."""
    src, dst = (TensorLayout.from_strategy(cuts, 8) for cuts in ((1, 8), (2, 4)))
    found = [
        received_elements(plan_redistribution(src, dst, (16, 16), **how))
        for how in ({}, {"alltoall": True}, {"exact": True})
    ]
    assert found == [224, 48, 32]


# ---- who gives ----


@pytest.mark.quick(20)
@pytest.mark.parametrize("seed", range(60))
def test_holders_of_a_slice_share_the_giving(seed):
    """No holder of a slice gives more often than its share, rounded up."""
    rng = np.random.default_rng([SEED, seed, 4])
    ranks = int(rng.choice(RANKS[1:]))
    src, dst, shape = drawn_pair(rng, ranks)
    route = Route(src, dst, shape)
    given = Counter(giver for rank, mine in enumerate(route.taken) for giver in mine if giver != rank)
    asked = Counter()
    for rank, mine in enumerate(route.taken):
        asked.update(src.slice_numbers(giver) for giver in mine if giver != rank)
    for rank in range(ranks):
        assert given[rank] <= -(-asked[src.slice_numbers(rank)] // src.replica_count)


def test_a_piece_comes_from_the_own_node_if_it_is_there():
    """16 ranks in nodes of 8; both nodes hold the rows in 8 parts and want the columns: nothing leaves a node."""
    rows, columns = TensorLayout((2, 8), (0, -1)), TensorLayout((2, 8), (-1, 0))
    route = Route(rows, columns, (16, 16))
    assert all(giver // 8 == rank // 8 for rank, mine in enumerate(route.taken) for giver in mine)


def test_groups_that_have_nothing_to_give_each_other_stay_apart():
    """Data parallel in front: 2 groups of 4; copies in both layouts: likewise."""
    front = plan_redistribution(TensorLayout((2, 4), ((1, 0), -1)), TensorLayout((2, 4), (1, 0)), (8, 8), exact=True)
    copies = plan_redistribution(TensorLayout((2, 4), (0, -1)), TensorLayout((2, 4), (-1, 0)), (8, 8), exact=True)
    for (step,) in (front, copies):
        assert [step.group(rank) for rank in (0, 5)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    # so the route, and what it takes to find it, is that of 4 ranks however many groups there are
    many = TensorLayout((1024, 4), ((1, 0), -1)), TensorLayout((1024, 4), (1, 0))
    (step,) = plan_redistribution(*many, (4096, 8), exact=True)
    assert step.way == front[0].way


def test_simulated_ranks_hold_no_more_than_both_slices_and_a_piece():
    """Rows to columns on 4 ranks, 2 MB each."""
    route = Route(TensorLayout((4,), (0, -1)), TensorLayout((4,), (-1, 0)), (1024, 1024))
    requests = [Request("exchange", (0, 1, 2, 3), np.ones((256, 1024)), route=route.attr) for _ in range(4)]
    answer(requests)  # what is made once is not counted
    tracemalloc.start()
    try:
        replies = answer(requests)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(reply.nbytes for reply in replies) == 8 * 1024**2 <= peak <= 8 * (1024**2 + 256**2) + 100_000


def test_a_step_does_not_fit_another_layout():
    (step,) = plan_redistribution(TensorLayout((4,), (0, -1)), TensorLayout((4,), (-1, 0)), (8, 8), exact=True)
    with pytest.raises(LayoutError, match="does not fit"):
        apply(step, TensorLayout((4,), (-1, 0)))
