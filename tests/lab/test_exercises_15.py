"""Lesson 15's exercises: right answers by the engine, wrong ones hear what they are, par is the least of all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.exercises import get_exercise, judge_drawn, lesson_15
from parallel_lab.lab.lessons import context_parallel
from parallel_lab.layout.placements import Placement
from parallel_lab.ops.kernels.attention_blocks import View, attend
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, told

ALL = {"a list", "fits", "beats striped", "par"}


def test_merged_blocks_are_the_attention_to_all_their_keys():
    q, k, v = (np.random.default_rng(1).normal(size=s) for s in ((1, 6, 1, 1, 4), (1, 8, 1, 4), (1, 8, 1, 4)))
    stop = np.array([0, 2, 4, 5, 7, 8])  # the first row sees no key, the next two none of the second block

    def seen(keys):
        out, lse = attend(q, k[:, keys], v[:, keys], View(np.zeros(6, int), stop, keys, np.arange(6)), 0.5)
        return out[0, :, 0, 0], lse[0, :, 0, 0]

    merged = lesson_15.merge(*seen(np.arange(4)), *seen(np.arange(4, 8)))
    for found, wanted in zip(merged, seen(np.arange(8)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def of_equation(rate, link, start_s, heads, kv_heads, d, size):
    """2 c^2 n d / F = a + 2 c kv d e / B, solved for c."""
    return max(np.roots([2 * heads * d / rate, -2 * kv_heads * d * size / link, -start_s]))


@each_of(
    ("number", "answer", "part", "words"),
    # the pairs of the busiest of 4 ranks with 8 of 32 tokens: 3 x 64 + 36; 36 + 3 x 36; 2 x 64 + 4
    ("15.1", lambda n, v, r: range(r * n // len(v), (r + 1) * n // len(v)), "equally fast", "228 of the pairs"),
    ("15.1", lambda n, v, r: range(r, n, len(v)), "equally fast", "144 of the pairs of 32 tokens, in zigzag 132"),
    (
        "15.1",
        lambda n, v, r: Placement("zigzag", n, len(v)).positions(r),
        "other speeds",
        "as if all ranks were equally",
    ),
    (
        "15.1",
        lambda n, v, r: range(n * sum(v[:r]) // sum(v), n * sum(v[: r + 1]) // sum(v)),
        "other speeds",
        "Slices in order",
    ),
    ("15.1", lambda n, v, r: np.zeros((2, 2)), "equally fast", ""),
    ("15.2", lambda o1, l1, o2, l2: ((o1 + o2) / 2, np.logaddexp(l1, l2)), "two blocks", "blocks count alike"),
    ("15.2", lambda o1, l1, o2, l2: (o1 + o2, np.logaddexp(l1, l2)), "two blocks", "divided by its own sum"),
    ("15.2", lambda o1, l1, o2, l2: (o1 * np.nan, l1), "rows that see no key", ""),
    ("15.3", lambda f, b, a, n, kv, d, e: of_equation(f / 2, b, a, n, n, d, e), "tokens", "without zigzag"),
    ("15.3", lambda f, b, a, n, kv, d, e: of_equation(f, b, a, 2 * n, kv, d, e), "tokens", "contiguous ring's"),
    ("15.3", lambda f, b, a, n, kv, d, e: of_equation(f, b, a, n, kv, d, e / 2), "tokens", "values, too"),
    ("15.3", lambda f, b, a, n, kv, d, e: of_equation(f, b, a, n, n, d, e), "tokens", "each query head had keys"),
    ("15.3", lambda f, b, a, n, kv, d, e: e * kv / n * f / b, "tokens", "needs to start"),
    ("15.3", lambda f, b, a, n, kv, d, e: float("nan"), "tokens", "nan"),
)
def test_a_wrong_answer_hears_what_it_is(number, answer, part, words):
    found = failed(check(number, answer))[part]
    assert words in f"{told(number, answer, part)} {found.idea}"


def test_functions_of_an_earlier_edition_are_graded():
    """Equally fast ranks, and messages that start at once; known by their names."""

    def positions(n, ranks, rank):
        late = n - (rank + 1) * (half := n // (2 * ranks))
        return [*range(rank * half, (rank + 1) * half), *range(late, late + half)]

    def least_tokens(flops_per_s, bytes_per_s, heads, kv_heads, number_bytes):
        return number_bytes * kv_heads / heads * flops_per_s / bytes_per_s

    for number, answer, points in (("15.1", positions, 4), ("15.3", least_tokens, 3)):
        assert judge_drawn(get_exercise(number), answer, {}, seed=1).points == points


def test_the_rule_for_unequal_ranks_shares_out_pairs_by_speed():
    """Pairs of each rank, counted: 16 tokens see 1 to 16 keys, 136 in all, and a rank that is three times as fast
    computes three times as many.
    """
    pairs = [sum(q + 1 for q in lesson_15.shared_out(16, (3, 1), rank)) for rank in range(2)]
    assert pairs == [102, 34]


@each_of(
    ("owners", "parts", "words"),
    ([0] * 12, ALL - {"a list"}, "24 of 9 chunks"),
    ([chunk // 3 for chunk in range(12)], {"beats striped", "par"}, "exposed 2240"),
    ([chunk % 4 for chunk in range(12)], {"beats striped", "par"}, "exposed 704"),
    # rank 1 sees chunk 0 from 1, 0 and 4 from 5, 8 from 9 in the second step: 4 x 256 pairs; a message is 3 x 192
    (
        [chunk % 4 for chunk in range(12)],
        {"beats striped", "par"},
        "Step 2 lasts longest: pairs of the longest rank 1024, message 576",
    ),
    ([2, 1, 0, 3, 0, 1, 2, 1, 3, 3, 2, 0], {"par"}, "exposed 512"),
    ([0.0] * 12, ALL, "A list of 12 ranks"),
    ([4] * 12, ALL, "A list of 12 ranks"),
    ([True] * 12, ALL, "A list of 12 ranks"),
)
def test_owners_of_chunks_are_scored(owners, parts, words):
    wrong = failed(check("15.4", owners))
    assert set(wrong) == parts and any(words in f"{part.found} {part.form} {part.note}" for part in wrong.values())


def test_a_ring_in_words_has_every_step_and_refuses_other_owners():
    """Striped: 136 pairs in each of three chunks, 256 for each two that meet; a message of 3 x 192."""
    lines = str(lesson_15.packed_ring([chunk % 4 for chunk in range(12)])).splitlines()
    assert lines[2].split() == ["2", "512", "1024", "768", "512", "576", "1024"]
    assert lines[-1] == "2712 in all, 2008 for an average rank: 704 exposed; a rank holds 9 chunks at most"
    for wrong in ([4] * 12, [0.5] * 12, None):
        with pytest.raises(ArgumentError, match="A list of 12 ranks, 0 to 3"):
            lesson_15.packed_ring(wrong)


def lists_of_owners():
    """Every one with three chunks on each of four ranks, the first on rank 0: a ring looks alike from every rank."""
    kept = [()]
    for _ in range(12):
        kept = [(*own, rank) for own in kept for rank in (range(4) if own else (0,)) if own.count(rank) < 3]
    return np.array(kept)


def test_nine_chunks_at_once_leave_three_for_each_rank():
    """Own chunks, those at work and those that arrive, for every way to divide twelve."""
    ways = [way for way in itertools.product(range(13), repeat=4) if sum(way) == 12]
    fit = [
        way
        for way in ways
        if max(way[r] + way[r - i] + way[r - i - 1] * (i < 3) for r in range(4) for i in range(4)) <= 9
    ]
    assert fit == [(3, 3, 3, 3)] and lesson_15.CAP == 9


PUZZLES = [(documents, message) for documents, pars in lesson_15.PARS.items() for message in pars]
PATTERNS = {
    "in order": [chunk // 3 for chunk in range(12)],
    "striped": [chunk % 4 for chunk in range(12)],
    "there and back": [0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3],
    "back at last": [0, 1, 2, 3, 0, 1, 2, 3, 3, 2, 1, 0],
}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("documents", "message"), PUZZLES, ids=str)
def test_no_way_to_give_chunks_to_ranks_exposes_less_than_par(documents, message):
    """All 92,400 lists, by blocks of 16 x 16 pairs: no pattern is at par, and a list at par passes."""
    document = np.repeat(np.arange(len(documents)), documents)
    pairs = np.where(document[:, None] == document, np.tri(12) * 256 - np.eye(12) * 120, 0).astype(np.float32)
    owners, ranks, puzzle = lists_of_owners(), np.arange(4), lesson_15.Packed(documents, message)
    has = (owners[:, None] == ranks[:, None]).astype(np.float32)
    work = has @ pairs @ has.swapaxes(1, 2)
    *steps, last = (work[:, ranks, (ranks - i) % 4].max(1) for i in ranks)
    exposed = sum(np.maximum(step, 3 * message) for step in steps) + last - pairs.sum() / 4
    assert len(owners) == 92_400 and exposed.min() == puzzle.par
    assert min(puzzle.ring(own).exposed for own in PATTERNS.values()) > puzzle.par
    assert puzzle.ring(owners[exposed.argmin()].tolist()).exposed == puzzle.par


def test_predictions_are_compared_with_counts():
    rows = context_parallel.compare({"share": 50, "waits": 0, "two": "a ring", "four": "a ring"})._cells()
    assert [row[2:5] for row in rows] == [
        ("57.9", "57.9", "not yet"),
        ("0", "0", "right"),
        ("a ring", "a ring", "right"),
        ("Ulysses", "Ulysses", "not yet"),
    ]
