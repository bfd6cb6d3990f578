"""Searches: the exact one proves what it says, the fast one is at least as good as the named schedules."""

import itertools

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.schedules import Schedule, Work, auto_schedule, best_schedule, make_schedule


def test_the_pars_of_the_course_are_proved():
    """P5: 1F1B under a cap of 4 is the best with F = B = 1, 38 with two unit chunks. P6: none ends before 27."""
    fused = best_schedule(Work.on(4, 8, 4, times=(1, 1, 0), split=False))
    assert (fused.makespan, fused.proved, fused.gap) == (22, True, 0)
    chunks = best_schedule(Work.on(4, 8, 11, chunks=2, times=(1, 1, 0), split=False))
    assert (chunks.makespan, chunks.proved) == (38, True)
    for cap in (4, 8):
        divided = best_schedule(Work.on(4, 8, cap))
        assert (divided.makespan, divided.proved) == (27, True)
        assert divided.schedule.check(cap) == []


def every_order(work):
    """The smallest makespan of all orders of all ranks: only for a handful of actions."""
    kinds = "FBW" if work.split else "FB"
    lanes = []
    for rank, parts in enumerate(work.holds):
        actions = [(k, kind, n) for k in parts for kind in kinds for n in range(work.micro_batches)]
        orders = []
        for order in itertools.permutations(actions):
            at = {key: i for i, key in enumerate(order)}
            in_turn = all(at[k, kind, n] < at[k, kind, n + 1] for k, kind, n in actions if n + 1 < work.micro_batches)
            after = all(
                at[k, a, n] < at[k, b, n] for k, kind, n in actions if kind == "F" for a, b in itertools.pairwise(kinds)
            )
            held = np.cumsum([{"F": 1, kinds[-1]: -1}.get(kind, 0) for _, kind, _ in order])
            if in_turn and after and held.max() <= work.caps[rank]:
                orders.append([("{}{}{}".format(*key)) for key in order])
        lanes.append(orders)
    best = float("inf")
    for order in itertools.product(*lanes):
        drawn = Schedule.from_text("\n".join(map(" ".join, order)), holds=work.holds)
        if not drawn.check():
            best = min(best, drawn.clock(*work.per_kind(), work.latency).makespan)
    return best


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.quick(1)
def test_the_exact_search_finds_what_trying_everything_finds(seed):
    rng = np.random.default_rng([16, seed])
    times = tuple(tuple(int(t) for t in rng.integers(1, 6, 2)) for _ in range(3))
    split, latency = bool(seed % 2), int(rng.integers(3))
    if seed % 3 == 0:
        work = Work.on(1, 2, 2, chunks=2, times=times, latency=latency, split=False)
    else:
        caps = tuple(int(c) for c in rng.integers(1, 3, 2))
        work = Work.on(2, 2, caps, times=times, latency=latency, split=split)
    found = best_schedule(work)
    assert found.proved and found.makespan == every_order(work)
    assert found.schedule.check(work.caps) == []


@pytest.mark.parametrize(("stages", "micro_batches", "cap"), [(2, 4, 1), (3, 5, 2), (3, 6, 3), (4, 4, 2)])
def test_a_small_cap_is_searched_to_the_end(stages, micro_batches, cap):
    found = best_schedule(Work.on(stages, micro_batches, cap, times=(2, 3, 1)), most_nodes=100_000)
    assert found.schedule.check(cap) == [] and found.makespan >= found.bound
    assert found.schedule.clock(2, 3, 1).makespan == found.makespan
    if cap == 1:  # one micro-batch at a time, and the next waits for its weight gradients on the first rank
        assert found.proved


def test_a_search_that_is_cut_short_says_its_gap():
    found = best_schedule(Work.on(4, 8, 2, times=(2, 3, 1)), most_nodes=20)
    assert not found.proved and 0 < found.gap < 1 and found.bound < found.makespan
    assert found.schedule.check(2) == []


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.quick(1)
def test_the_fast_search_is_at_least_as_good_as_h1_under_the_same_memory(seed):
    rng = np.random.default_rng([17, seed])
    stages = int(rng.integers(2, 9))
    micro_batches = int(rng.integers(1, 4 * stages + 1))
    f, b, w = (int(t) for t in rng.integers(1, 6, 3))
    c = int(rng.integers(0, 3))
    h1 = make_schedule("zb_h1", stages, micro_batches)
    for minimise in ("makespan", "span"):
        found = auto_schedule(Work.on(stages, micro_batches, h1.peaks, times=(f, b, w), latency=c), minimise=minimise)
        cost = getattr(found.clock(f, b, w, c), minimise)
        assert cost <= getattr(h1.clock(f, b, w, c), minimise)
        assert found.check(h1.peaks) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("p", "m", "f", "b", "w", "c"), [(4, 12, 10, 10, 10, 0), (8, 24, 10, 10, 10, 0), (4, 16, 9, 11, 10, 0)]
)
def test_twice_the_memory_leaves_less_than_a_hundredth_idle(p, m, f, b, w, c):
    """By span, where W is as long as half of F + B: then H2 leaves (p - 1)(F + B - 2W)."""
    found = auto_schedule(Work.on(p, m, 2 * p, times=(f, b, w), latency=c), minimise="span")
    timing = found.clock(f, b, w, c)
    assert timing.rate(timing.span) < 0.01 and max(found.peaks) <= 2 * p


def test_a_v_of_parts_is_searched_too():
    """4 ranks, 8 parts, room for 4 micro-batches x stages: as good as zero_bubble_v."""
    found = auto_schedule(Work.on(4, 8, 8, chunks=2, place="v"))
    assert found.clock().makespan <= make_schedule("zero_bubble_v", 4, 8, 2).clock().makespan
    assert found.check(8) == [] and found.holds == ((0, 7), (1, 6), (2, 5), (3, 4))


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ArgumentError, match="a cap of 1 with 2 parts on a rank"):
        Work.on(2, 4, 1, chunks=2)
    with pytest.raises(ArgumentError, match="2 ranks, 2 parts"):
        Work.on(2, 4, (2, 2, 2))
    with pytest.raises(ArgumentError, match="makespan, span"):
        auto_schedule(Work.on(2, 4, 2), minimise="memory")
