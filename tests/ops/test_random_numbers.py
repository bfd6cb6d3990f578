"""Random operators: moments of the distributions, draws that no strategy changes, what differs and what repeats.

Every legal strategy is in the battery (test_battery.py).
"""

import math

import numpy as np
import pytest

from parallel_lab import ShapeError, ops
from parallel_lab.base import seeds
from parallel_lab.catalog.ops.random_numbers import Words, below_one
from tests.ops.compiled import simulated
from tests.refusals import refused

MANY = (300, 400)


def moments(x):
    return float(np.mean(x, dtype=np.float64)), float(np.var(x, dtype=np.float64))


# means and variances of the distributions, from their definitions
DRAWS = {
    "normal": (lambda: ops.normal(MANY, 3.0, 2.0, seed=1), 3, 4),
    "uniform": (lambda: ops.uniform(MANY, np.float32(1), np.float32(4), seed=1), 2.5, 9 / 12),
    "laplace": (lambda: ops.laplace(MANY, np.float32(1), np.float32(2), seed=1), 1, 8),
    "gamma": (lambda: ops.gamma(MANY, np.float32(2.5), np.float32(2), seed=1), 1.25, 0.625),
    "gamma below one": (lambda: ops.gamma(MANY, np.float32(0.3), np.float32(1), seed=1), 0.3, 0.3),
    "poisson": (lambda: ops.random_poisson(MANY, np.float32(7), seed=1), 7, 7),
    "poisson of ten": (lambda: ops.random_poisson(MANY, np.float32(10), seed=1), 10, 10),
    "poisson of many": (lambda: ops.random_poisson(MANY, np.float32(1e6), seed=1), 1e6, 1e6),
    "randint": (lambda: ops.randint(2, 6, MANY, seed=1), 3.5, 15 / 12),
    "rand": (lambda: ops.rand(*MANY, seed=1), 0.5, 1 / 12),
    "randn": (lambda: ops.randn(*MANY, seed=1), 0, 1),
    "bernoulli": (lambda: ops.bernoulli(np.zeros(MANY), 0.3, seed=1), 0.3, 0.21),
    # of a normal number between -2 and 2: 1 - 4 phi(2) / (2 Phi(2) - 1)
    "truncated": (lambda: ops.truncated_normal(np.int64(3), shape=MANY, key=5), 0, 1 - 0.21596 / 0.95450),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", DRAWS)
def test_moments_are_those_of_the_distribution(name):
    draw, mean, variance = DRAWS[name]
    found = moments(draw())
    assert found == pytest.approx((mean, variance), abs=6 * math.sqrt(10 * max(variance, 1) ** 2 / math.prod(MANY)))


def test_neighbours_and_further_words_of_an_element_are_not_correlated():
    words = Words(MANY, None, 0, 7, 3)
    first, second = words(), words()
    pairs = [
        (first[:, 1:], first[:, :-1]),
        (first[1:], first[:-1]),
        (first, second),
        (first, Words(MANY, None, 0, 7, 4)()),
    ]
    for a, b in pairs:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 6 / math.sqrt(math.prod(MANY))


def test_a_uniform_number_is_never_one():
    highest = below_one(np.array([1 - 2.0**-33, 0.5]))
    assert highest.dtype == np.float32 and highest.max() < 1


def test_classes_come_as_often_as_their_weights_say():
    drawn = ops.multinomial(np.array([1.0, 0, 2, 5, 0]), 40_000, seed=2)
    shares = np.bincount(drawn, minlength=5) / 40_000
    assert shares == pytest.approx([1 / 8, 0, 2 / 8, 5 / 8, 0], abs=0.015)


def test_classes_without_replacement_differ_and_follow_the_weights():
    drawn = ops.multinomial(np.tile([1.0, 0, 2, 5], (8000, 1)), 3, replacement=False, seed=2)
    assert (np.sort(drawn, axis=1) == [0, 2, 3]).all()
    assert (drawn[:, 0] == 3).mean() == pytest.approx(5 / 8, abs=0.03)


def test_an_order_holds_every_number_once_and_a_shuffle_every_row():
    assert np.sort(ops.randperm(50, seed=1, offset=3)).tolist() == list(range(3, 53))
    assert ops.randperm(50, seed=1).tolist() != list(range(50))
    rows = ops.shuffle(np.arange(12).reshape(6, 2), seed=1)
    assert np.sort(rows, axis=0).tolist() == np.arange(12).reshape(6, 2).tolist()


def test_places_are_chosen_where_the_mask_is_true_and_none_twice():
    mask = np.array([[True, False, True], [False, True, False]])
    places, real = ops.choice_with_mask(mask, count=5, seed=1)
    assert real.tolist() == [True, True, True, False, False] and (places[3:] == 0).all()
    assert {tuple(p) for p in places[:3].tolist()} == {(0, 0), (0, 2), (1, 1)}


def test_expected_counts_of_candidates_are_those_of_mindspores_example():
    """UniformCandidateSampler(1, 3, False, 4, 1): 0.75 everywhere."""
    classes = np.array([[1], [3], [4], [6], [3]])
    samples, true, drawn = ops.uniform_candidate_sampler(classes, 1, 3, False, 4, 1)
    assert samples.shape == (3,) and samples.min() >= 0 and samples.max() < 4
    assert (true == 0.75).all() and true.shape == (5, 1) and (drawn == 0.75).all()


def test_sampled_candidates_exclude_true_classes_if_asked():
    classes = np.array([[0, 1], [2, 0]])
    samples, _, _ = ops.uniform_candidate_sampler(classes, 2, 3, True, 6, 1, True)
    assert sorted(samples.tolist()) == [3, 4, 5]
    with pytest.raises(ShapeError, match="num_sampled=4 of 3 classes"):
        ops.uniform_candidate_sampler(classes, 2, 4, True, 6, 1, True)


def test_small_classes_are_likelier_log_uniform_candidates():
    samples, true, _ = ops.log_uniform_candidate_sampler(np.array([[0], [7]]), 1, 20_000, False, 8, 1)
    chances = np.log((np.arange(8) + 2) / (np.arange(8) + 1)) / np.log(9)
    assert np.bincount(samples) / 20_000 == pytest.approx(chances, abs=0.02)
    np.testing.assert_allclose(true[:, 0], chances[[0, 7]] * 20_000, rtol=1e-6)


def noisy(x):
    for _ in range(2):
        x = x + ops.normal((8, 4), 0.0, 1.0)
    return x + ops.randn(8, 4) * ops.gamma((8,), np.full(4, 2.0, np.float32), np.float32(1), seed=9)


def test_a_compiled_draw_is_that_of_one_device_and_another_in_every_step():
    """Two rounds of a loop draw differently, too: their sum would be twice the first otherwise."""
    x, found = np.zeros((8, 4), np.float32), {}
    for devices in (1, 2, 8):
        plan, sim = simulated(noisy, x, device_num=devices)
        first = sim.full(plan.outputs[0]).copy()
        sim.run_step(x)
        found[devices] = np.stack([first, sim.full(plan.outputs[0])])
    assert (found[1] == found[2]).all() and (found[1] == found[8]).all()
    assert (found[1][0] != found[1][1]).all()


def test_calls_outside_of_a_network_differ_and_repeat_with_the_seed():
    def pair():
        return [ops.standard_normal((4,), seed=3) for _ in range(2)]

    with seeds.temporary_seed(5):
        first, second = pair()
    with seeds.temporary_seed(5):
        again = pair()
    assert (first != second).all() and (np.stack([first, second]) == again).all()


test_what_cannot_be_drawn_is_refused_in_words = refused(
    (lambda: ops.rand(2, -1), "none below 0"),
    (lambda: ops.randint(3, 3, (2,)), "low below high"),
    (lambda: ops.bernoulli(np.zeros(2), 1.5), "From 0 to 1"),
    (lambda: ops.normal((2, 3), np.zeros(2), 1.0), "shape \\(2, 3\\) and parameters"),
    (lambda: ops.gamma_at(np.int64(0), np.ones(3), np.ones(()), shape=(2,)), "What broadcasts to it"),
    (lambda: ops.multinomial(np.ones(3), 4, replacement=False), "as many samples as there are classes"),
    (lambda: ops.multinomial(np.ones((2, 2, 2)), 4), "weights of shape"),
    (lambda: ops.choice_with_mask(np.ones(3)), "bool, with 1 to 5 dims"),
    (lambda: ops.uniform_candidate_sampler(np.zeros((2, 2), int), 1, 3, True, 5), "with num_true=1"),
    (lambda: ops.randn(2, seed=-1), "seed=-1"),
    error=ShapeError,
)
