"""Incomplete gamma functions, zeta, running log-sums, vector products, turned pairs, different elements: known values.

Every legal strategy, and gradients against finite differences, are in the battery (test_battery.py, test_eager.py).
"""

import math

import numpy as np
import pytest

from parallel_lab import ShapeError, nn, ops
from tests.crossed import each_of
from tests.ops.compiled import results


def test_incomplete_gamma_functions_of_whole_numbers_are_sums_of_poisson_probabilities():
    """P(n, x) = 1 - the chance of fewer than n events where x are expected."""
    for n, x in ((1, 0.3), (4, 3.0), (9, 40.0), (30, 25.0)):
        rest = sum(x**k * math.exp(-x) / math.factorial(k) for k in range(n))
        assert ops.igamma(np.float64(n), np.float64(x)) == pytest.approx(1 - rest, rel=1e-12)
        assert ops.igammac(np.float64(n), np.float64(x)) == pytest.approx(rest, rel=1e-12, abs=1e-13)


def test_incomplete_gamma_functions_at_the_borders():
    assert ops.igamma(np.array([2.0, 2.0, -1.0]), np.array([0.0, 1e3, 1.0]))[:2].tolist() == pytest.approx([0, 1])
    assert np.isnan(ops.igamma(np.float64(-1), np.float64(1)))


def test_zeta_is_that_of_the_books():
    found = ops.zeta(np.array([2.0, 4, 3, 1, 0.5]), np.array([1.0, 1, 2, 1, 1]))
    apery = 1.2020569031595942
    np.testing.assert_allclose(found[:3], [math.pi**2 / 6, math.pi**4 / 90, apery - 1], rtol=1e-13)
    assert found[3] == math.inf and np.isnan(found[4])


def test_running_log_sums_without_the_element_itself_begin_with_the_lowest_number():
    """MindSpore, CumulativeLogsumexp(exclusive=True)."""
    found = ops.cumulative_logsumexp(np.array([1, 2, 3], np.float32), 0, exclusive=True)
    expected = [np.finfo(np.float32).min, 1, math.log(math.exp(1) + math.exp(2))]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isfinite(ops.logcumsumexp(np.array([1000.0, 1000]), 0)).all()


def test_vector_products_are_numpys_and_choose_the_first_dim_of_three(rng):
    x, y = rng.normal(size=(2, 4, 3, 3))
    np.testing.assert_allclose(ops.cross(x, y), np.cross(x, y, axis=1))
    np.testing.assert_allclose(ops.cross(x, y[:1], 2), np.cross(x, y[:1], axis=2))


@pytest.mark.parametrize("mode", [0, 1])
def test_pairs_are_turned_by_their_angle(mode, rng):
    """As complex numbers: times exp(i angle)."""
    x, angles = rng.normal(size=(2, 3, 4, 6)), rng.normal(size=(1, 1, 4, 3))
    pairs = (slice(None, 3), slice(3, None)) if mode == 0 else (slice(None, None, 2), slice(1, None, 2))
    both = np.concatenate([angles, angles], -1) if mode == 0 else np.repeat(angles, 2, axis=-1)
    found = ops.rotary_position_embedding(x, np.cos(both), np.sin(both), mode)
    turned = (x[..., pairs[0]] + 1j * x[..., pairs[1]]) * np.exp(1j * angles)
    np.testing.assert_allclose(found[..., pairs[0]], turned.real)
    np.testing.assert_allclose(found[..., pairs[1]], turned.imag)


def test_bits_say_where_a_rectified_element_is_positive(rng):
    x = rng.normal(size=(2, 18, 3, 2))
    out, bits = ops.relu_v2(x)
    assert out.tolist() == np.maximum(x, 0).tolist() and bits.shape == (2, 2, 3, 2, 2)
    channels = np.moveaxis(np.unpackbits(np.moveaxis(bits, -1, 2)[:, :, :, None], axis=3, bitorder="little"), 0, 0)
    assert (channels.reshape(2, 32, 3, 2)[:, :18] == (x > 0)).all()


def test_different_elements_come_in_the_order_of_their_first():
    values, numbers = ops.unique(np.array([5, 1, 5, 2, 1]))
    assert values.tolist() == [5, 1, 2] and numbers.tolist() == [0, 1, 0, 2, 1]
    values, numbers = ops.unique_with_pad(np.array([5, 1, 5]), 9)
    assert values.tolist() == [5, 1, 9] and numbers.tolist() == [0, 1, 0]


class LookUp(nn.Cell):
    def construct(self, table, rows):
        different, numbers = ops.unique(rows)
        return ops.gather(ops.gather(table, different, 0), numbers, 0)


def test_rows_looked_up_once_each_and_dealt_out_are_the_rows(rng):
    table, rows = rng.normal(size=(8, 4)), np.array([3, 1, 3, 7, 1, 1, 0, 3])
    (found,) = results(LookUp(), table, rows)
    np.testing.assert_array_equal(found, table[rows])


@each_of(
    ("call", "words"),
    (lambda: ops.unique(np.ones((2, 2))), "with elements"),
    (lambda: ops.OPS["invert_permutation"](np.array([0, 2])), "Each number from 0 to 1 once"),
    (lambda: ops.cross(np.ones((2, 2)), np.ones((2, 2))), "A dim with 3 elements"),
    (lambda: ops.rotary_position_embedding(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3))), "even"),
    (lambda: ops.relu_v2(np.ones((2, 2))), r"\(n, c, h, w\)"),
)
def test_what_does_not_fit_is_refused_in_words(call, words):
    with pytest.raises(ShapeError, match=words):
        call()


def test_products_grids_and_repeated_elements_are_numpys(rng):
    x, y = rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4))
    np.testing.assert_allclose(ops.inner(x, y), np.inner(x, y))
    np.testing.assert_allclose(ops.vecdot(x, x[:1]), (x * x[:1]).sum(-1))
    for indexing in ("xy", "ij"):
        found = ops.meshgrid(np.arange(3), np.arange(4), np.arange(2), indexing=indexing)
        wanted = np.meshgrid(np.arange(3), np.arange(4), np.arange(2), indexing=indexing)
        assert all((a == b).all() for a, b in zip(found, wanted, strict=True))
    assert ops.repeat_elements(np.array([[0, 1, 2]]), 2, 1).tolist() == [[0, 0, 1, 1, 2, 2]]


def test_whole_channels_are_dropped_by_the_functions():
    kept = ops.dropout2d(np.ones((16, 8, 2, 3)), 0.5)
    assert (kept == kept[:, :, :1, :1]).all() and set(np.unique(kept)) == {0, 2}
    with pytest.raises(ShapeError, match="5 dims"):
        ops.dropout3d(np.ones((2, 2)))
