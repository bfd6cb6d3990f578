"""Which layers to recompute: the exact choices equal what trying everything finds, and the formulas that are known."""

import heapq
import itertools
import math

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.recompute import Layer, best_segments, choose_checkpoints, choose_recompute, predict_choice

SIZES, TIMES = (4, 4, 6, 6, 8, 8, 8, 8, 6, 6, 4, 4), (1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1)
PUZZLE = [Layer(time, 2 * time, size, 1) for size, time in zip(SIZES, TIMES, strict=True)]  # teaching.md, P7


def drawn(seed, count):
    rng = np.random.default_rng(seed)
    inputs = rng.integers(1, 5, count)
    return [Layer(*map(int, (rng.integers(1, 9), 2, n + rng.integers(0, 9), n))) for n in inputs]


@pytest.mark.parametrize(("cap", "work"), [(30, 17), (40, 13), (50, 9)])
def test_the_puzzles_par(cap, work):
    best = choose_recompute(PUZZLE, cap)
    assert (best.extra_s, best.peak_bytes <= cap) == (work, True)
    assert best == predict_choice(PUZZLE, best.recompute)
    assert best.time_s == 3 * sum(TIMES) + work


def test_the_puzzles_ends():
    assert predict_choice(PUZZLE, [True] * 12).extra_s == 24
    assert predict_choice(PUZZLE, [True] * 12).peak_bytes == 15
    assert predict_choice(PUZZLE, [False] * 12).peak_bytes == 72
    assert not any(choose_recompute(PUZZLE, 72).recompute)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_choice_of_layers_is_better(seed):
    layers = drawn(seed, 7)
    every = [predict_choice(layers, chosen) for chosen in itertools.product((False, True), repeat=7)]
    for cap in range(1, max(one.peak_bytes for one in every) + 1):
        fitting = [one.extra_s for one in every if one.peak_bytes <= cap]
        if fitting:
            assert choose_recompute(layers, cap).extra_s == min(fitting)
        else:
            with pytest.raises(ArgumentError, match=r"At least \d+"):
                choose_recompute(layers, cap)


@pytest.mark.parametrize("n", [1, 2, 10, 24, 64, 100, 1000])
def test_segments_of_equal_layers(n):
    cells, results = best_segments(n)
    assert results == cells + math.ceil(n / cells)
    assert 2 * math.sqrt(n) <= results < 2 * math.sqrt(n) + 1
    if math.isqrt(n) ** 2 == n:
        assert (cells, results) == (math.isqrt(n), 2 * math.isqrt(n))


WORKING = 4  # bytes of a layer's inside; its input is one of them, and no snapshot


def equal(count):
    """Layers of one second and an input of one byte."""
    return [Layer(1, 2, WORKING, 1)] * count


@pytest.mark.quick(1)
@pytest.mark.parametrize("snapshots", [1, 2, 3, 4])
def test_equal_layers_are_reversed_as_revolve_does(snapshots):
    """l steps with s snapshots: r l - C(s + r, s + 1) forwards besides their own (Griewank, Walther 2000, 2.3)."""
    for count in range(1, 25):
        repeats = next(r for r in range(count + 1) if math.comb(snapshots + r, r) >= count)
        found = choose_checkpoints(equal(count), snapshots + WORKING)
        assert found.forward_s - count == repeats * count - math.comb(snapshots + repeats, snapshots + 1)


@pytest.mark.parametrize(("snapshots", "repeats"), [(1, 3), (2, 2), (2, 3), (3, 2), (4, 1)])
def test_the_longest_chain_has_a_binomials_length(snapshots, repeats):
    """C(s + r, s) steps run at most r times forward besides their own; one step more does not."""

    def most(count):
        actions = choose_checkpoints(equal(count), snapshots + WORKING).actions
        return max(actions.count(("forward", n)) for n in range(count))

    longest = math.comb(snapshots + repeats, snapshots)
    assert most(longest) == repeats < most(longest + 1)


def cheapest(layers, cap):
    """The least forward work by a search through everything that can be in memory; what is kept stays until used."""
    n, inputs = len(layers), [layer.input_bytes for layer in layers]
    start = frozenset([0]), 0, n - 1
    queue, seen, number = [(0, 0, start)], set(), itertools.count(1)
    while queue:
        spent, _, state = heapq.heappop(queue)
        kept, at, todo = state
        if todo < 0:
            return spent
        if state in seen or sum(inputs[k] for k in kept) > cap:
            continue
        seen.add(state)
        others = sum(inputs[k] for k in kept - {at})
        ways = [(0, (kept, k, todo)) for k in kept] + [(0, (kept | {at}, at, todo))]
        if at == todo and others + layers[at].inside_bytes <= cap:
            left = kept - {at}
            ways.append((layers[at].forward_s, (left, max(left, default=0), todo - 1)))
        if at < todo and others + inputs[at] + (inputs[at + 1] if at + 1 not in kept else 0) <= cap:
            ways.append((layers[at].forward_s, (kept, at + 1, todo)))
        for extra, new in ways:
            heapq.heappush(queue, (spent + extra, next(number), new))
    return math.inf


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(12))
def test_no_other_use_of_memory_is_better(seed):
    layers = drawn(seed, 5)
    for cap in range(1, sum(layer.inside_bytes for layer in layers) + 1):
        want = cheapest(layers, cap)
        if want == math.inf:
            with pytest.raises(ArgumentError):
                choose_checkpoints(layers, cap)
        else:
            found = choose_checkpoints(layers, cap)
            assert found.forward_s == want
            ran = [layers[n].forward_s for kind, n in found.actions if kind in ("forward", "backward")]
            assert sum(ran) == want
