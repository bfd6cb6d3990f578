"""Functions of numbers against formulas and math, at 0 and at the ends of their ranges; forms of other classes."""

import math

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, ops
from parallel_lab.graph.trace import trace_network
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from tests.crossed import each_of

X = np.array([-3.5, -2.0, -0.4, 0.0, 0.3, 1.0, 7.25])
Y = np.array([2.0, -3.0, 4.0, 0.5, -1.5, 3.0, 2.0])
INTS, OTHERS = np.array([-7, -6, 5, 6, 12]), np.array([3, -4, -2, 6, 5])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


FORMULAS = {
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1)),
    "celu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "softsign": lambda x: x / (1 + abs(x)),
    "fast_gelu": lambda x: x / (1 + np.exp(-1.702 * abs(x))) * np.exp(0.851 * (x - abs(x))),
    "hardshrink": lambda x: np.where(abs(x) > 0.5, x, 0),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(abs(x) - 0.5, 0),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardsigmoid": lambda x: np.clip((x + 3) / 6, 0, 1),
    "sinc": lambda x: np.array([math.sin(math.pi * v) / (math.pi * v) if v else 1 for v in x]),
    "erfc": lambda x: np.array([math.erfc(v) for v in x]),
    "trunc": lambda x: np.array([float(int(v)) for v in x]),
    "frac": lambda x: np.array([math.copysign(abs(v) % 1, v) for v in x]),
    **{name: getattr(np, name) for name in ("tan", "sinh", "cosh", "exp2")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("atan", "asinh")},
}
POSITIVE_FORMULAS = {
    **{name: getattr(np, name) for name in ("log2", "log10")},
    "acosh": lambda x: np.arccosh(x + 1),
    "lgamma": lambda x: np.array([math.lgamma(v) for v in x]),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_function_of_one_number_is_its_formula(name):
    np.testing.assert_allclose(getattr(ops, name)(X), FORMULAS[name](X), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", POSITIVE_FORMULAS)
def test_a_function_of_a_positive_number_is_its_formula(name):
    x = np.array([0.01, 0.7, 1.0, 3.5, 40.0])
    given = x + 1 if name == "acosh" else x
    np.testing.assert_allclose(getattr(ops, name)(given), POSITIVE_FORMULAS[name](x), rtol=1e-13, atol=1e-15)


def test_bessel_functions_without_their_factor():
    x = np.array([0.0, 0.3, -2.0, 12.0])
    np.testing.assert_allclose(ops.bessel_i0(x), np.i0(x), rtol=1e-12)
    np.testing.assert_allclose(ops.bessel_i1(x), ops.bessel_i1e(x) * np.exp(abs(x)), rtol=1e-12)


def test_logit_undoes_the_sigmoid_and_may_be_bounded():
    np.testing.assert_allclose(ops.logit(sigmoid(X)), X, atol=1e-12)
    bounded = np.log([0.25 / 0.75, 0.5 / 0.5, 0.75 / 0.25])
    np.testing.assert_allclose(ops.logit(np.array([0.0, 0.5, 1.0]), eps=0.25), bounded, atol=1e-15)


def test_inverse_functions_undo_theirs():
    x = np.array([-0.999999, -0.5, -1e-9, 0.0, 0.3, 0.95])
    pairs = [(ops.asin, ops.sin), (ops.atanh, ops.tanh), (ops.erfinv, ops.erf)]
    for inverse, function in pairs:
        np.testing.assert_allclose(function(inverse(x)), x, rtol=1e-9, atol=1e-17, err_msg=inverse.name)
    np.testing.assert_allclose(ops.acos(x), math.pi / 2 - ops.asin(x))
    np.testing.assert_array_equal(ops.erfinv(np.float32([-1.0, 1.0, 1.5])), np.float32([-np.inf, np.inf, np.nan]))


def test_digamma_has_its_known_values_and_poles():
    gamma = 0.57721566490153286
    found = ops.digamma(np.array([1.0, 2.0, 0.5, 10.0, -0.5]))
    half = -gamma - 2 * math.log(2)
    expected = [-gamma, 1 - gamma, half, sum(1 / k for k in range(1, 10)) - gamma, half + 2]
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert np.isnan(ops.digamma(np.array([0.0, -3.0]))).all()


def test_scaled_bessel_functions_near_and_far():
    x = np.array([0.0, 0.3, -2.0, 12.0, 39.9, 40.1, 300.0])
    np.testing.assert_allclose(ops.bessel_i0e(x), np.i0(x) * np.exp(-abs(x)), rtol=1e-12)
    step = 1e-5  # I1 is the derivative of I0
    slope = (np.i0(x + step) - np.i0(x - step)) / (2 * step) * np.exp(-abs(x))
    np.testing.assert_allclose(ops.bessel_i1e(x), slope, rtol=1e-7, atol=1e-12)
    p = Parameter(np.array([0.0, 40.0, -50.0]))
    scaled = gradients(ops.bessel_i1e(p), [p], np.ones(3))[0]
    i0, i1 = ops.bessel_i0e(p.asnumpy()), ops.bessel_i1e(p.asnumpy())
    np.testing.assert_allclose(scaled, [0.5, i0[1] - i1[1] * (1 + 1 / 40), i0[2] + i1[2] * (1 + 1 / 50)])


# ---- two numbers ----


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


@each_of(
    ("name", "expected"),
    ("squared_difference", (X - Y) ** 2),
    ("atan2", [math.atan2(a, b) for a, b in zip(X, Y, strict=True)]),
    ("logaddexp", np.log(np.exp(X) + np.exp(Y))),
    ("logaddexp2", np.log2(2**X + 2**Y)),
    ("heaviside", np.where(X > 0, 1, np.where(X < 0, 0, Y))),
    ids=["squared_difference", "atan2", "logaddexp", "logaddexp2", "heaviside"],
)
def test_a_function_of_two_numbers_is_its_formula(name, expected):
    np.testing.assert_allclose(getattr(ops, name)(X, Y), expected, rtol=1e-12)


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


def test_bits_of_ints():
    x, y = [6, -1, 12], [3, 5, 10]
    table = {"and": [a & b for a, b in zip(x, y, strict=True)], "or": [a | b for a, b in zip(x, y, strict=True)]}
    table["xor"] = [a ^ b for a, b in zip(x, y, strict=True)]
    for name, expected in table.items():
        assert getattr(ops, f"bitwise_{name}")(np.array(x), np.array(y)).tolist() == expected
    x = np.array(x)
    assert ops.left_shift(x, np.array([1, 2, 3])).tolist() == [12, -4, 96] and ops.Invert()(x).tolist() == [-7, 0, -13]
    assert (Tensor(x) & 4 | 1).tolist() == [5, 5, 5] and (5 ^ Tensor(x)).tolist() == [3, -6, 9]


def test_bits_of_floats_are_refused_with_their_place_in_a_network():
    with pytest.raises(ShapeError, match=r"BitwiseAnd 'bitwise_and' \(test_pointwise.py:\d+\): .*Ints or bools"):
        trace_network(lambda x: x & 2, [("x", (4,), "float32")])


def test_weighted_means_and_products_take_numbers_and_tensors():
    start, end, weight = X[:4], Y[:4], np.array([0.0, 0.5, 1.0, 2.0])
    np.testing.assert_allclose(ops.lerp(start, end, 0.25), 0.75 * start + 0.25 * end)
    np.testing.assert_allclose(ops.Lerp()(start, end, weight), (1 - weight) * start + weight * end)
    np.testing.assert_allclose(ops.addcmul(start, end, weight, 3), start + 3 * end * weight)
    np.testing.assert_allclose(ops.AddcdivExt()(start, end, end), start + 1)
    np.testing.assert_allclose(ops.AddExt()(start, end, 2), start + 2 * end)
    np.testing.assert_allclose(ops.SubExt()(start, end, 2), start - 2 * end)


def test_softmax_of_several_dims_adds_up_to_one_over_them_together():
    x = np.random.default_rng(2).normal(size=(3, 4, 5))
    np.testing.assert_allclose(ops.Softmax(axis=(0, 2))(x), np.exp(x) / np.exp(x).sum((0, 2), keepdims=True))


WRONG = {
    "bits": (lambda: ops.bitwise_and(X, 1), "BitwiseAnd: the operands are float64 and int64. Ints or bools"),
    "rounding": (lambda: ops.div(X, Y, rounding_mode="up"), "div: rounding_mode='up'. One of None, 'floor', 'trunc'"),
    "alpha": (lambda: ops.add_ext(X, Y, "a"), "AddExt: alpha='a'. A finite number"),
    "lambd": (lambda: ops.SoftShrink(-1.0)(X), "SoftShrink: lambd=-1.0"),
    "bounds": (lambda: ops.hardtanh(X, min_val=1.0), "HardTanh: min_val=1.0 and max_val=1.0"),
    "celu": (lambda: ops.CeLU(0.0)(X), "CeLU: alpha=0.0. A number other than 0"),
    "arguments": (lambda: ops.DivMod()(X), r"DivMod: got 1 arguments. DivMod\(\)\(input, other, rounding_mode\)"),
    "softmax": (lambda: ops.Softmax(()), r"Softmax: axis=\(\)"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_computed_is_refused(how):
    call, words = WRONG[how]
    with pytest.raises(ShapeError, match=words):
        call()
