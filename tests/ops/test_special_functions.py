"""Special functions: known values, ends of their ranges, gradients there. Between: `in_numpy.py`, recordings."""

import math

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, compile, ops
from parallel_lab.base.errors import NotBuiltYet
from parallel_lab.catalog.ops.gamma_functions import igamma_slope
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from tests.crossed import each_of

LINE = np.linspace(-8, 8, 401)
ROWS = np.array([[0.0, 3.0, -4.0], [1.0, 2.0, 2.0]])
INTS, OTHERS = np.array([-7, -6, 5, 6, 12]), np.array([3, -4, -2, 6, 5])
X, Y = np.array([-3.5, -2.0, -0.4, 0.0, 0.3, 1.0, 7.25]), np.array([2.0, -3.0, 4.0, 0.5, -1.5, 3.0, 2.0])


def gradient(fn, x):
    p = Parameter(Tensor(np.asarray(x)))
    out = fn(p)
    return gradients(out, [p], np.ones(out.shape, out.dtype))[0]


# ---- known values ----


def test_erf_is_that_of_math_to_the_last_digits():
    x = np.concatenate([LINE, np.logspace(-300, 1, 500), -np.logspace(-8, 0.9, 200)])
    expected = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(np.asarray(ops.erf(x)), expected, rtol=1e-15, atol=0)
    found = np.asarray(ops.erf(x.astype(np.float32)))
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-6, atol=1e-37)
    found = np.asarray(ops.erf(LINE.astype(np.float16)))
    np.testing.assert_allclose(found, [math.erf(v) for v in LINE.astype(np.float16)], atol=1e-3)
    np.testing.assert_array_equal(np.asarray(ops.erf(np.array([-np.inf, np.inf, np.nan]))), [-1, 1, np.nan])


@each_of(
    ("function", "expected", "x"),
    (ops.lgamma, math.lgamma, (0.01, 0.7, 1.0, 3.5, 40.0)),
    (ops.erfc, math.erfc, (-3.5, -0.4, 0.0, 0.3, 1.0, 7.25)),
    (ops.sinc, lambda x: math.sin(math.pi * x) / (math.pi * x) if x else 1.0, (-3.5, 0.0, 0.3)),
    (ops.hardshrink, lambda x: x if abs(x) > 0.5 else 0.0, (-0.5, 0.0, 0.5)),
    (ops.softsign, lambda x: x / (1 + abs(x)), (-7.0, 0.0, 3.0)),
    ids=["lgamma", "erfc", "sinc", "hardshrink", "softsign"],
)
def test_far_and_at_0_they_are_the_formula(function, expected, x):
    np.testing.assert_allclose(function(np.array(x)), [expected(v) for v in x], rtol=1e-13, atol=1e-15)


def test_the_inverse_of_erf_undoes_it():
    x = np.array([-0.999999, -0.5, -1e-9, 0.0, 0.3, 0.95])
    np.testing.assert_allclose(ops.erf(ops.erfinv(x)), x, rtol=1e-9, atol=1e-17)
    np.testing.assert_array_equal(ops.erfinv(np.float32([-1.0, 1.0, 1.5])), np.float32([-np.inf, np.inf, np.nan]))


def test_digamma_has_its_known_values_and_poles():
    gamma = 0.57721566490153286
    found = ops.digamma(np.array([1.0, 2.0, 0.5, 10.0, -0.5]))
    half = -gamma - 2 * math.log(2)
    expected = [-gamma, 1 - gamma, half, sum(1 / k for k in range(1, 10)) - gamma, half + 2]
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert np.isnan(ops.digamma(np.array([0.0, -3.0]))).all()
    slope = gradient(ops.digamma, [1.0, 0.5, -0.5])
    np.testing.assert_allclose(slope, [math.pi**2 / 6, math.pi**2 / 2, math.pi**2 / 2 + 4], rtol=1e-14)
    with pytest.raises(NotBuiltYet, match="no gradient"):
        gradient(lambda q: ops.zeta(2.0, q), [1.0])


def test_bessel_functions_near_and_far():
    x = np.array([0.0, 0.3, -2.0, 12.0, 39.9, 40.1, 300.0])
    np.testing.assert_allclose(ops.bessel_i0e(x), np.i0(x) * np.exp(-abs(x)), rtol=1e-12)
    np.testing.assert_allclose(ops.bessel_i1(x[:4]), ops.bessel_i1e(x[:4]) * np.exp(abs(x[:4])), rtol=1e-12)
    step = 1e-5  # I1 is the derivative of I0
    slope = (np.i0(x + step) - np.i0(x - step)) / (2 * step) * np.exp(-abs(x))
    np.testing.assert_allclose(ops.bessel_i1e(x), slope, rtol=1e-7, atol=1e-12)
    p = Parameter(np.array([0.0, 40.0, -50.0]))
    scaled = gradients(ops.bessel_i1e(p), [p], np.ones(3))[0]
    i0, i1 = ops.bessel_i0e(p.asnumpy()), ops.bessel_i1e(p.asnumpy())
    np.testing.assert_allclose(scaled, [0.5, i0[1] - i1[1] * (1 + 1 / 40), i0[2] + i1[2] * (1 + 1 / 50)])


def test_incomplete_gamma_functions_of_whole_numbers_are_sums_of_poisson_probabilities():
    """P(n, x) = 1 - the chance of fewer than n events where x are expected."""
    for n, x in ((1, 0.3), (4, 3.0), (9, 40.0), (30, 25.0)):
        rest = sum(x**k * math.exp(-x) / math.factorial(k) for k in range(n))
        assert ops.igamma(np.float64(n), np.float64(x)) == pytest.approx(1 - rest, rel=1e-12)
        assert ops.igammac(np.float64(n), np.float64(x)) == pytest.approx(rest, rel=1e-12, abs=1e-13)


def test_incomplete_gamma_functions_at_the_borders():
    assert ops.igamma(np.array([2.0, 2.0, -1.0]), np.array([0.0, 1e3, 1.0]))[:2].tolist() == pytest.approx([0, 1])
    assert np.isnan(ops.igamma(np.float64(-1), np.float64(1)))


@pytest.mark.parametrize("a", [1e4, 9.9e6, 1e7, 1e12, 1e18])
def test_incomplete_gamma_functions_of_large_numbers_follow_stirlings_series(a):
    """P(a, a) = 1/2 + 1 / (3 sqrt(2 pi a)) + ..., and its slope along x is the density; terms in 1e18 never end."""
    half, step = 0.5 + 1 / (3 * math.sqrt(2 * math.pi * a)), 0.1 * math.sqrt(a)
    assert ops.igamma(np.float64(a), np.float64(a)) == pytest.approx(half, abs=1e-8)
    assert ops.igammac(np.float64(a), np.float64(a)) == pytest.approx(1 - half, abs=1e-8)
    more, less = (float(ops.igamma(np.float64(a), np.float64(a + way * step))) for way in (1, -1))
    assert (more - less) / 0.2 == pytest.approx(math.exp(-0.005 / 3) / math.sqrt(2 * math.pi), rel=1e-3)
    along_a = float(igamma_slope(np.float64(1), np.float64(a), np.float64(a), operand="a"))
    assert along_a * math.sqrt(a) == pytest.approx(-1 / math.sqrt(2 * math.pi), rel=1e-3)


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


# ---- ends of ranges ----


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "gelu", "elu", "log_sigmoid", "hswish", "tanh"])
def test_large_arguments_stay_finite_with_their_gradients(name):
    for dtype in (np.float16, np.float32, np.float64):
        x = np.array([-60, -30, 30, 60], dtype)
        got, slope = np.asarray(getattr(ops, name)(x)), gradient(getattr(ops, name), x)
        assert got.dtype == slope.dtype == dtype
        assert np.isfinite(got).all() and np.isfinite(slope).all()


def test_clip_changes_what_is_outside_and_stops_its_gradient():
    x = np.array([-2.0, -0.5, 0.25, 0.5, 2.0])
    for fn in (ops.clip, ops.clamp, ops.clip_by_value):
        np.testing.assert_array_equal(np.asarray(fn(x, -0.5, 0.5)), np.clip(x, -0.5, 0.5))
        np.testing.assert_array_equal(gradient(lambda p, fn=fn: fn(p, -0.5, 0.5), x), [0, 1, 1, 1, 0])
    np.testing.assert_array_equal(np.asarray(ops.clip(x, min=0.0)), np.maximum(x, 0))
    found = [np.asarray(v) for v in ops.clip_by_value([x, -x], clip_value_max=0.0)]
    np.testing.assert_array_equal(found, [np.minimum(x, 0), np.minimum(-x, 0)])
    with pytest.raises(ShapeError, match="no bound is given"):
        ops.clamp(x)


def test_the_branch_that_is_not_taken_gives_no_gradient():
    """Wrong would be nan: 0 times an infinite gradient."""
    x, y = Parameter(Tensor(np.ones(2))), Parameter(Tensor(np.zeros(2)))
    got = gradients(ops.select(np.array([True, False]), x, y), [x, y], np.array([np.inf, -np.inf]))
    np.testing.assert_array_equal(got, [[np.inf, 0], [0, -np.inf]])


def test_norm_and_deviation_of_zeros_have_gradient_zero():
    """Wrong would be nan: the root has no slope at 0."""
    zeros = np.zeros((2, 3))
    for fn in (ops.norm, lambda p: ops.norm(p, 3), ops.std):
        assert np.asarray(fn(zeros)) == 0
        np.testing.assert_array_equal(gradient(fn, zeros), zeros)


def test_logsumexp_neither_overflows_nor_loses_rows_of_infinities():
    x = np.array([[1000.0, 1000.0], [-1000.0, -1000.0], [-np.inf, -np.inf], [np.inf, 0.0]])
    with np.errstate(divide="ignore"):
        got = np.asarray(ops.logsumexp(x, 1))
    np.testing.assert_allclose(got, [1000 + math.log(2), -1000 + math.log(2), -np.inf, np.inf])


def test_remainders_have_the_sign_of_one_operand():
    """Mod had the sign of y, which is FloorMod's."""
    whole = np.array([math.trunc(a / b) for a, b in zip(INTS, OTHERS, strict=True)])
    for dtype in (np.int32, np.float64):
        x, y = INTS.astype(dtype), OTHERS.astype(dtype)
        np.testing.assert_array_equal(ops.TruncateDiv()(x, y), whole)
        np.testing.assert_array_equal(ops.TruncateMod()(x, y), INTS - OTHERS * whole)
        np.testing.assert_array_equal(ops.Mod()(x, y), INTS - OTHERS * whole)
        np.testing.assert_array_equal(ops.FloorMod()(x, y), INTS - OTHERS * (INTS // OTHERS))
        assert ops.TruncateDiv()(x, y).dtype == dtype


def test_a_quotient_may_be_rounded():
    expected = {None: X / Y, "floor": np.floor(X / Y), "trunc": np.trunc(X / Y)}
    for mode, want in expected.items():
        np.testing.assert_array_equal(ops.div(X, Y, rounding_mode=mode), want)
        np.testing.assert_array_equal(ops.DivMod()(X, Y, mode), want)
        np.testing.assert_array_equal(Tensor(X).div(Tensor(Y), rounding_mode=mode), want)
    assert ops.div(INTS, OTHERS, rounding_mode="floor").tolist() == (INTS // OTHERS).tolist()


def test_zero_wins_over_nan():
    some, nothing = np.array([0.0, 2.0, 0.0]), np.array([0.0, 0.0, np.inf])
    four = np.array([0.0, 4.0, np.inf])
    np.testing.assert_array_equal(ops.xdivy(some, four), [0, 0.5, 0])
    np.testing.assert_array_equal(ops.div_no_nan(nothing + 1, some), [0, 0.5, 0])
    np.testing.assert_array_equal(ops.mul_no_nan(nothing, some), [0, 0, 0])
    np.testing.assert_array_equal(ops.xlogy(some, np.array([0.0, math.e, np.nan])), [0, 2, 0])


@pytest.mark.parametrize("name", ["xdivy", "xlogy", "div_no_nan", "mul_no_nan"])
def test_gradients_are_numbers_where_zero_won(name):
    zeros = [Parameter(np.zeros(3), "x"), Parameter(np.zeros(3), "y")]
    for grad in gradients(getattr(ops, name)(*zeros), zeros, np.ones(3)):
        np.testing.assert_array_equal(grad, np.zeros(3))


def test_nearness():
    x, y = np.array([1.0, 1.0, np.nan]), np.array([1.001, 1.1, np.nan])
    assert ops.isclose(x, y, rtol=0.01, equal_nan=False).tolist() == [True, False, False]
    assert ops.IsClose(0.0, 0.2)(x, y).tolist() == [True, True, False]
    assert ops.IsClose(0.0, 0.2, equal_nan=True)(x, y).tolist() == [True, True, True]
    assert ops.ApproximateEqual(0.05)(x[:2], y[:2]).tolist() == [True, False]
    assert ops.allclose(x[:1], y[:1], rtol=0.01) and not ops.allclose(x, y, rtol=0.01)


def test_signs():
    x = np.array([-0.0, 3.0, -np.inf, np.inf])
    assert ops.signbit(x).tolist() == [True, False, True, False]
    assert (ops.isneginf(x) | ops.isposinf(x)).tolist() == [False, False, True, True]
    assert ops.copysign(x, -1.0).tolist() == [0, -3, -np.inf, -np.inf]
    assert ops.nan_to_num(np.array([np.nan, np.inf, 2]), 1.0, posinf=7.0).tolist() == [1, 7, 2]


def test_bits_say_where_a_rectified_element_is_positive(rng):
    x = rng.normal(size=(2, 18, 3, 2))
    out, bits = ops.relu_v2(x)
    assert out.tolist() == np.maximum(x, 0).tolist() and bits.shape == (2, 2, 3, 2, 2)
    channels = np.moveaxis(np.unpackbits(np.moveaxis(bits, -1, 2)[:, :, :, None], axis=3, bitorder="little"), 0, 0)
    assert (channels.reshape(2, 32, 3, 2)[:, :18] == (x > 0)).all()


# ---- dtypes ----


@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "tanh", "erf", "silu", "softplus", "gelu", "reciprocal", "leaky_relu", "log_softmax"]
)
def test_integers_give_float32(name):
    fn = getattr(ops, name)
    got = np.asarray(fn(np.array([1, 2], np.int32)))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, fn(np.array([1.0, 2.0])), rtol=1e-6)


def test_product_of_integers_stays_whole():
    got = np.asarray(ops.reduce_prod(np.array([[2, 3], [4, 5]], np.int32), 1))
    assert (got.tolist(), got.dtype) == ([6, 20], np.int32)


@each_of("fn", lambda x: ops.sub(x, x), ops.neg, ops.sign, ops.square, ids=["sub", "neg", "sign", "square"])
def test_a_plan_has_no_arithmetic_of_bools(fn):
    """Wrong would be a plan that says bool and fails on the ranks, or gives int8."""
    with pytest.raises(ShapeError, match="the operands are bool"):
        compile(lambda x: fn(ops.greater(x, 0.0)), ROWS, device_num=2, dataset_strategy="full_batch")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_number_before_a_tensor_takes_its_dtype(dtype):
    """2.0 / x was float64: the number became an array before anybody looked at x."""
    assert ops.div(2.0, Tensor(np.ones(3, dtype))).dtype == dtype
