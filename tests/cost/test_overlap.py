"""Backward and its messages: against brute force, closed forms, and the puzzle whose answer is known."""

import math
import random
from itertools import combinations, pairwise

import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError
from parallel_lab.base.settings.fusion_rules import index_groups, indices_of, size_groups_by_bytes
from parallel_lab.cost import message_time_s, overlap
from tests.crossed import each_of
from tests.refusals import refused

MB = 1024 * 1024
# the puzzle "fusion golf": ten gradients, 1 ms of backward each, a message of m MB takes 1 + 0.25 m ms
GOLF_MB = (8, 1, 1, 4, 2, 8, 16, 8, 16, 4)
GOLF = tuple(overlap.Gradient(f"g{n}", mb * MB, 1e-3) for n, mb in enumerate(GOLF_MB))
GOLF_LINK = Link(alpha_s=1e-3, beta_s_per_byte=0.25e-3 / MB)


def random_case(seed, most=9, work=False):
    """Whole seconds and bytes make sums exact; with `work`, gradients have work of their own after their message."""
    rng = random.Random(seed)
    after = [float(rng.randrange(0, 3)) if work else 0.0 for _ in range(most)]
    gradients = [
        overlap.Gradient(f"g{n}", rng.randrange(0, 20), float(rng.randrange(0, 12)), after[n])
        for n in range(rng.randrange(1, most + 1))
    ]
    return gradients, Link(float(rng.randrange(0, 9)), float(rng.randrange(0, 4)))


def end_of(cuts, gradients, link):
    """When the last message ends, for messages that begin at 0 and at each split."""
    clock = 0.0
    for start, stop in pairwise((0, *cuts, len(gradients))):
        ready = sum(g.compute_s for g in gradients[:stop])
        clock = (
            max(clock, ready) + link.alpha_s + link.beta_s_per_byte * sum(g.size_bytes for g in gradients[start:stop])
        )
    return clock


def all_cuts(count):
    return [cuts for number in range(count) for cuts in combinations(range(1, count), number)]


def groups_of(cuts, count):
    return [sum(cut <= position for cut in cuts) for position in range(count)]


# ---- fusion golf ----


@each_of(
    ("name", "groups", "milliseconds"),
    ("each alone", range(10), 28.0),
    ("all in one", [0] * 10, 28.0),
    ("index [0, 3, 5]", index_groups(10, [0, 3, 5]), 22.0),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_golf_has_the_published_numbers(name, groups, milliseconds):
    assert overlap.predict_overlap(GOLF, tuple(groups), GOLF_LINK).step_s * 1e3 == pytest.approx(milliseconds, abs=1e-9)


def test_golf_is_solved():
    groups = overlap.best_grouping(GOLF, GOLF_LINK)
    assert indices_of(groups) == (0, 3, 5)
    assert overlap.predict_overlap(GOLF, groups, GOLF_LINK).step_s * 1e3 == pytest.approx(22.0)


def test_no_threshold_reaches_par_in_golf():
    sizes = [g.size_bytes for g in GOLF]
    _, found = overlap.best_threshold(
        GOLF, GOLF_LINK, lambda mb: size_groups_by_bytes(sizes, mb), range(sum(GOLF_MB) + 1)
    )
    assert found.step_s * 1e3 == pytest.approx(24.75)


# ---- the search ----


@pytest.mark.quick(20)
@pytest.mark.parametrize("seed", range(60))
def test_the_best_grouping_is_the_best_of_all(seed):
    gradients, link = random_case(seed)
    cuts = all_cuts(len(gradients))
    assert len(cuts) == 2 ** (len(gradients) - 1)
    shortest = min(end_of(c, gradients, link) for c in cuts)
    fewest = min(len(c) for c in cuts if end_of(c, gradients, link) == shortest)
    found = overlap.best_grouping(gradients, link)
    starts = tuple(p for p in range(1, len(found)) if found[p] != found[p - 1])
    assert (end_of(starts, gradients, link), len(starts)) == (shortest, fewest), seed


@pytest.mark.quick(15)
@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("seed", range(15))
def test_the_number_of_messages_can_be_limited(seed, most):
    gradients, link = random_case(seed)
    shortest = min(end_of(c, gradients, link) for c in all_cuts(len(gradients)) if len(c) < most)
    found = overlap.best_grouping(gradients, link, max_messages=most)
    assert max(found) < most
    assert overlap.predict_overlap(gradients, found, link).buckets[-1].end_s == shortest


def test_without_a_start_up_time_every_gradient_may_travel_alone_and_nothing_is_better():
    gradients, _ = random_case(3)
    link = Link(0.0, 2.0)
    found = overlap.best_grouping(gradients, link)
    assert (
        overlap.predict_overlap(gradients, found, link).step_s
        == overlap.predict_overlap(gradients, range(len(gradients)), link).step_s
    )


def test_nothing_to_send_is_nothing_to_group():
    assert overlap.best_grouping([], GOLF_LINK) == ()
    assert overlap.predict_overlap([], [], GOLF_LINK, rest_s=2.0).step_s == 2.0


# ---- the model ----


@pytest.mark.quick(14)
@pytest.mark.parametrize("seed", range(40))
def test_the_line_carries_one_message_at_a_time_and_none_before_it_is_ready(seed):
    gradients, link = random_case(seed, most=12)
    rng = random.Random(seed)
    groups = [rng.randrange(4) for _ in gradients]  # not only neighbours
    found = overlap.predict_overlap(gradients, groups, link, rest_s=float(rng.randrange(4)))
    assert sorted(p for b in found.buckets for p in b.members) == list(range(len(gradients)))
    for bucket in found.buckets:
        assert len({groups[p] for p in bucket.members}) == 1
        assert bucket.ready_s == max(found.ready_s[p] for p in bucket.members)
        assert bucket.end_s - bucket.start_s == link.time_s(sum(gradients[p].size_bytes for p in bucket.members))
        assert bucket.hidden_s + bucket.exposed_s == bucket.end_s - bucket.start_s
        assert bucket.hidden_s == max(0.0, min(bucket.end_s, found.backward_s) - min(bucket.start_s, found.backward_s))
        assert bucket.waited_s >= 0
    for before, after in pairwise(found.buckets):
        assert before.ready_s <= after.ready_s
        assert after.start_s == max(before.end_s, after.ready_s)
    assert found.exposed_s == max(0.0, found.buckets[-1].end_s - found.backward_s)
    assert found.communication_s == found.hidden_s + sum(b.exposed_s for b in found.buckets)
    assert overlap.predict_overlap(gradients, found.groups, link).groups == found.groups


@pytest.mark.parametrize("seed", range(10))
def test_without_overlap_everything_is_exposed(seed):
    gradients, link = random_case(seed)
    found = overlap.predict_overlap(gradients, range(len(gradients)), link, rest_s=1.0, after_backward=True)
    sent = sum(link.time_s(g.size_bytes) for g in gradients)
    assert (found.hidden_s, found.exposed_s) == (0.0, sent)
    assert found.step_s == sum(g.compute_s for g in gradients) + 1.0 + sent


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_an_all_reduce_is_a_line(ranks):
    link, gamma = Link(3e-6, 2e-9), 5e-10
    line = overlap.all_reduce_line(ranks, link, gamma)
    for size in (0, 1, 4096, 10**7):
        assert line.time_s(size) == pytest.approx(message_time_s("all_reduce", size, ranks, link, gamma), rel=1e-12)


# ---- closed forms ----


@pytest.mark.parametrize("link", [Link(1.0, 0.5), Link(1.0, 8.0), Link(0.25, 3.0), Link(0.0, 1.0)], ids=str)
@pytest.mark.parametrize("buckets", [1, 2, 3, 4, 6, 8, 12, 24])
def test_equal_gradients_in_equal_buckets_follow_the_pipeline_formula(link, buckets):
    gradients = [overlap.Gradient(f"g{n}", 16, 4.0) for n in range(24)]
    groups = [n * buckets // 24 for n in range(24)]
    found = overlap.predict_overlap(gradients, groups, link).step_s
    assert found == pytest.approx(overlap.equal_buckets_step_s(96.0, 384, buckets, link), rel=1e-12)


@pytest.mark.parametrize(
    ("link", "analytic", "best"),
    [(Link(1.0, 200.0), math.sqrt(1000), 32), (Link(1.0, 50.0), 500.0, 500)],
    ids=["the messages take longer", "the computation takes longer"],
)
def test_the_best_number_of_buckets_is_near_the_analytic_one(link, analytic, best):
    """Tb = 1000, M = 10: communication 2000 or 500 against 1000 of computation (theory: 32 of 31.6; 500 exactly)."""
    assert overlap.best_bucket_count(1000.0, 10.0, link) == pytest.approx(analytic)
    steps = {k: overlap.equal_buckets_step_s(1000.0, 10.0, k, link) for k in range(1, 1001)}
    assert min(steps, key=steps.get) == best


@pytest.mark.parametrize("seed", range(20))
def test_no_number_of_buckets_beats_the_analytic_one(seed):
    rng = random.Random(seed)
    backward_s, size, link = rng.uniform(1, 100), rng.uniform(1, 100), Link(rng.uniform(0.01, 2), rng.uniform(0.01, 2))
    best = overlap.best_bucket_count(backward_s, size, link)
    around = min(
        overlap.equal_buckets_step_s(backward_s, size, max(1, k), link) for k in (math.floor(best), math.ceil(best))
    )
    assert around <= min(overlap.equal_buckets_step_s(backward_s, size, k, link) for k in range(1, 400)) * (1 + 1e-12)


def test_without_a_start_up_time_there_cannot_be_too_many():
    assert overlap.best_bucket_count(1.0, 1.0, Link(0.0, 1.0)) == math.inf


# ---- refusals ----


test_what_makes_no_sense_is_refused = refused(
    lambda: overlap.predict_overlap(GOLF, [0], GOLF_LINK),
    lambda: overlap.Gradient("g", -1, 0.0),
    lambda: overlap.Gradient("g", 1, math.nan),
    lambda: overlap.best_threshold(GOLF, GOLF_LINK, lambda mb: [0] * 10, []),
    error=ArgumentError,
)


# ---- packing ----


def random_packing(seed):
    rng = random.Random(1000 + seed)
    return overlap.Packing(
        Link(float(rng.randrange(0, 4)), float(rng.randrange(0, 2))), unpack_s=float(rng.randrange(0, 3))
    ), float(rng.randrange(0, 9))


def packed_step(cuts, gradients, link, packing, rest_s):
    """The rank's program, played: compute, pack, start; then wait and unpack, bucket by bucket."""
    clock = line = 0.0
    ends = []
    for start, stop in pairwise((0, *cuts, len(gradients))):
        size = sum(g.size_bytes for g in gradients[start:stop])
        clock += sum(g.compute_s for g in gradients[start:stop])
        if stop - start > 1:
            clock += packing.pack.alpha_s + packing.pack.beta_s_per_byte * size
        line = max(line, clock) + link.alpha_s + link.beta_s_per_byte * size
        ends.append((line, gradients[start:stop]))
    clock += rest_s
    for end, members in ends:
        clock = max(clock, end)
        for gradient in members:
            clock += gradient.after_s + (packing.unpack_s if len(members) > 1 else 0.0)
    return clock


@pytest.mark.quick(14)
@pytest.mark.parametrize("seed", range(40))
def test_with_packing_the_best_grouping_is_still_the_best_of_all(seed):
    gradients, link = random_case(seed, work=seed % 2 == 1)
    packing, rest_s = random_packing(seed)
    steps = {c: packed_step(c, gradients, link, packing, rest_s) for c in all_cuts(len(gradients))}
    shortest = min(steps.values())
    found = overlap.best_grouping(gradients, link, packing=packing, rest_s=rest_s)
    starts = tuple(p for p in range(1, len(found)) if found[p] != found[p - 1])
    assert steps[starts] == shortest and len(starts) == min(len(c) for c, step in steps.items() if step == shortest), (
        seed
    )
    for cuts, step in steps.items():
        groups = groups_of(cuts, len(gradients))
        assert overlap.predict_overlap(gradients, groups, link, rest_s=rest_s, packing=packing).step_s == step


@pytest.mark.parametrize("seed", range(5))
def test_packing_that_costs_nothing_changes_nothing(seed):
    gradients, link = random_case(seed)
    free = overlap.Packing(Link(0.0, 0.0))
    assert overlap.best_grouping(gradients, link, packing=free) == overlap.best_grouping(gradients, link) or (
        overlap.predict_overlap(gradients, overlap.best_grouping(gradients, link, packing=free), link).step_s
        == overlap.predict_overlap(gradients, overlap.best_grouping(gradients, link), link).step_s
    )
