"""Functions of elements, choice, order, statistics against formulas, math and numpy; ends of ranges; refusals."""

import math

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, compile, ops
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from tests.crossed import each_of
from tests.ops.compiled import Behind, results

LINE = np.linspace(-8, 8, 401)


def values(result):
    return np.asarray(result)


def gradient(fn, x):
    p = Parameter(Tensor(np.asarray(x)))
    out = fn(p)
    return gradients(out, [p], np.ones(out.shape, out.dtype))[0]


# ---- functions ----


def test_erf_is_that_of_math_to_the_last_digits():
    x = np.concatenate([LINE, np.logspace(-300, 1, 500), -np.logspace(-8, 0.9, 200)])
    expected = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(values(ops.erf(x)), expected, rtol=1e-15, atol=0)
    found = values(ops.erf(x.astype(np.float32)))
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-6, atol=1e-37)
    found = values(ops.erf(LINE.astype(np.float16)))
    np.testing.assert_allclose(found, [math.erf(v) for v in LINE.astype(np.float16)], atol=1e-3)
    np.testing.assert_array_equal(values(ops.erf(np.array([-np.inf, np.inf, np.nan]))), [-1, 1, np.nan])


SIGMOID, ERF = 1 / (1 + np.exp(-LINE)), np.array([math.erf(v / math.sqrt(2)) for v in LINE])
FORMULAS = {
    "gelu": (lambda x: ops.gelu(x, approximate="none"), LINE * 0.5 * (1 + ERF)),
    "gelu tanh": (ops.gelu, 0.5 * LINE * (1 + np.tanh(np.sqrt(2 / np.pi) * (LINE + 0.044715 * LINE**3)))),
    "silu": (ops.silu, LINE * SIGMOID),
    "softplus": (ops.softplus, np.log1p(np.exp(LINE))),
    "log sigmoid": (ops.log_sigmoid, np.log(SIGMOID)),
    "elu": (lambda x: ops.elu(x, alpha=2.0), np.where(LINE > 0, LINE, 2 * (np.exp(LINE) - 1))),
    "leaky relu": (lambda x: ops.leaky_relu(x, 0.1), np.where(LINE > 0, LINE, 0.1 * LINE)),
    "relu6": (ops.relu6, np.minimum(np.maximum(LINE, 0), 6)),
    "hsigmoid": (ops.hsigmoid, np.minimum(np.maximum(LINE + 3, 0), 6) / 6),
    "hswish": (ops.hswish, LINE * np.minimum(np.maximum(LINE + 3, 0), 6) / 6),
    "log1p": (lambda x: ops.log1p(x + 9), np.log(LINE + 10)),
    "expm1": (ops.expm1, np.exp(LINE) - 1),
    "rsqrt": (lambda x: ops.rsqrt(x + 9), (LINE + 9) ** -0.5),
    "reciprocal": (lambda x: ops.reciprocal(x + 9), 1 / (LINE + 9)),
    "mod": (lambda x: ops.mod(x, 1.5), LINE - 1.5 * np.floor(LINE / 1.5)),
    "round": (ops.round_, np.array([round(v) for v in LINE], float)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_are_those_of_the_formula(name):
    fn, expected = FORMULAS[name]
    np.testing.assert_allclose(values(fn(LINE)), expected, rtol=1e-12, atol=1e-14)
    assert values(fn(Tensor(LINE.astype(np.float32)))).dtype == np.float32


@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "tanh", "erf", "silu", "softplus", "gelu", "reciprocal", "leaky_relu", "log_softmax"]
)
def test_integers_give_float32(name):
    fn = getattr(ops, name)
    got = values(fn(np.array([1, 2], np.int32)))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, fn(np.array([1.0, 2.0])), rtol=1e-6)


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "gelu", "elu", "log_sigmoid", "hswish", "tanh"])
def test_large_arguments_stay_finite_with_their_gradients(name):
    for dtype in (np.float16, np.float32, np.float64):
        x = np.array([-60, -30, 30, 60], dtype)
        got, slope = values(getattr(ops, name)(x)), gradient(getattr(ops, name), x)
        assert got.dtype == slope.dtype == dtype
        assert np.isfinite(got).all() and np.isfinite(slope).all()


def test_clip_changes_what_is_outside_and_stops_its_gradient():
    x = np.array([-2.0, -0.5, 0.25, 0.5, 2.0])
    for fn in (ops.clip, ops.clamp, ops.clip_by_value):
        np.testing.assert_array_equal(values(fn(x, -0.5, 0.5)), np.clip(x, -0.5, 0.5))
        np.testing.assert_array_equal(gradient(lambda p, fn=fn: fn(p, -0.5, 0.5), x), [0, 1, 1, 1, 0])
    np.testing.assert_array_equal(values(ops.clip(x, min=0.0)), np.maximum(x, 0))
    found = [values(v) for v in ops.clip_by_value([x, -x], clip_value_max=0.0)]
    np.testing.assert_array_equal(found, [np.minimum(x, 0), np.minimum(-x, 0)])
    with pytest.raises(ShapeError, match="no bound is given"):
        ops.clamp(x)


def test_stop_gradient_passes_values_only():
    np.testing.assert_array_equal(gradient(lambda p: ops.mul(p, ops.stop_gradient(p)), np.array([2.0, 3.0])), [2, 3])


def test_addn_sums_any_number_of_tensors():
    np.testing.assert_array_equal(values(ops.addn([LINE, LINE, LINE])), 3 * LINE)
    np.testing.assert_array_equal(values(ops.AddN()(LINE, LINE)), 2 * LINE)


@each_of("fn", lambda x: ops.sub(x, x), ops.neg, ops.sign, ops.square, ids=["sub", "neg", "sign", "square"])
def test_a_plan_has_no_arithmetic_of_bools(fn):
    """Wrong would be a plan that says bool and fails on the ranks, or gives int8."""
    with pytest.raises(ShapeError, match="the operands are bool"):
        compile(lambda x: fn(ops.greater(x, 0.0)), ROWS, device_num=2, dataset_strategy="full_batch")


# ---- choice ----


def test_the_branch_that_is_not_taken_gives_no_gradient():
    """Wrong would be nan: 0 times an infinite gradient."""
    x, y = Parameter(Tensor(np.ones(2))), Parameter(Tensor(np.zeros(2)))
    got = gradients(ops.select(np.array([True, False]), x, y), [x, y], np.array([np.inf, -np.inf]))
    np.testing.assert_array_equal(got, [[np.inf, 0], [0, -np.inf]])


def test_select_and_masked_fill_follow_numpy():
    mask = np.array([[True], [False]])
    x, y = np.arange(6.0).reshape(2, 3), np.array([9.0, 8.0, 7.0])
    np.testing.assert_array_equal(values(ops.where(mask, x, y)), np.where(mask, x, y))
    np.testing.assert_array_equal(values(ops.masked_fill(x.astype(np.float32), mask, -1.0)), [[-1, -1, -1], [3, 4, 5]])
    assert values(ops.masked_fill(x.astype(np.float32), mask, -1.0)).dtype == np.float32


def test_logic_takes_numbers_as_truth():
    a, b = np.array([0, 1, 0, 2]), np.array([0, 0, 3, 3])
    np.testing.assert_array_equal(values(ops.logical_and(a, b)), [False, False, False, True])
    np.testing.assert_array_equal(values(ops.logical_or(a, b)), [False, True, True, True])
    np.testing.assert_array_equal(values(ops.logical_xor(a, b)), [False, True, True, False])
    np.testing.assert_array_equal(values(ops.logical_not(a)), [True, False, True, False])


def test_nan_and_infinity_are_found():
    x = np.array([1.0, np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(values(ops.isnan(x)), [False, True, False, False])
    np.testing.assert_array_equal(values(ops.isinf(x)), [False, False, True, True])
    np.testing.assert_array_equal(values(ops.isfinite(x)), [True, False, False, False])


# ---- order ----


def test_the_earlier_of_equal_elements_comes_first():
    x = np.array([[3, 1, 3, 1, 2]], np.float32)
    top, where = ops.top_k(x, 3)
    assert (values(top).tolist(), values(where).tolist(), values(where).dtype) == ([[3, 3, 2]], [[0, 2, 4]], np.int32)
    assert values(ops.sort(x)[1]).tolist() == [[1, 3, 4, 0, 2]]
    assert values(ops.argsort(x, descending=True)).tolist() == [[0, 2, 4, 1, 3]]
    assert (values(ops.argmax(x)).tolist(), values(ops.argmin(x)).tolist()) == ([0], [1])
    assert gradient(lambda p: ops.top_k(p, 3)[0], x).tolist() == [[1, 0, 1, 0, 1]]


@each_of(("prim", "given"), (ops.TopK(), (3,)), (ops.Sort(descending=True), ()), ids=["top-k", "sort"])
def test_values_and_numbers_of_cut_rows_belong_together(prim, given):
    x = np.abs(np.random.default_rng(0).normal(size=(8, 6)))
    elements, numbers = results(Behind(prim, ((4, 1),), *given), x)
    np.testing.assert_array_equal(elements, -np.sort(-x, axis=1)[:, : elements.shape[1]])
    np.testing.assert_array_equal(np.take_along_axis(x, numbers, 1), elements)


def test_unsigned_numbers_sort_downwards():
    x = np.array([0, 200, 7], np.uint8)
    assert values(ops.sort(x, descending=True)[0]).tolist() == [200, 7, 0]


@each_of("exclusive, reverse, expected", (0, 0, [1, 3, 6]), (1, 0, [0, 1, 3]), (0, 1, [6, 5, 3]), (1, 1, [5, 3, 0]))
def test_running_sums(exclusive, reverse, expected):
    got = ops.CumSum(exclusive=bool(exclusive), reverse=bool(reverse))(np.array([1, 2, 3]), 0)
    assert values(got).tolist() == expected


def test_arguments_of_extremes_have_the_type_asked_for():
    x = np.array([[1.0, 5.0], [7.0, 2.0]])
    got = ops.Argmax(axis=0, output_type="int64", keep_dims=True)(x)
    assert (values(got).tolist(), values(got).dtype) == ([[1, 0]], np.int64)


# ---- reductions ----

ROWS = np.array([[0.0, 3.0, -4.0], [1.0, 2.0, 2.0]])


@each_of(
    ("p", "expected"),
    *[(2, [5, 3]), (1, [7, 5]), (math.inf, [4, 2]), (-math.inf, [0, 1]), (0, [2, 3])],
    (3, [91 ** (1 / 3), 17 ** (1 / 3)]),
)
def test_norms(p, expected):
    np.testing.assert_allclose(values(ops.norm(ROWS, p, 1)), expected, rtol=1e-14)
    found = values(ops.LpNorm(p=p, axis=1, keep_dims=True)(ROWS))
    np.testing.assert_allclose(found, np.array(expected)[:, None], rtol=1e-14)


def test_norm_and_deviation_of_zeros_have_gradient_zero():
    """Wrong would be nan: the root has no slope at 0."""
    zeros = np.zeros((2, 3))
    for fn in (ops.norm, lambda p: ops.norm(p, 3), ops.std):
        assert values(fn(zeros)) == 0
        np.testing.assert_array_equal(gradient(fn, zeros), zeros)


def test_logsumexp_neither_overflows_nor_loses_rows_of_infinities():
    x = np.array([[1000.0, 1000.0], [-1000.0, -1000.0], [-np.inf, -np.inf], [np.inf, 0.0]])
    with np.errstate(divide="ignore"):
        got = values(ops.logsumexp(x, 1))
    np.testing.assert_allclose(got, [1000 + math.log(2), -1000 + math.log(2), -np.inf, np.inf])


@pytest.mark.parametrize("ddof", [0, 1])
def test_variance_and_deviation_follow_numpy(ddof):
    for axis in (None, 0, 1, (0, 1)):
        np.testing.assert_allclose(values(ops.var(ROWS, axis, ddof=ddof)), ROWS.var(axis=axis, ddof=ddof), rtol=1e-14)
        np.testing.assert_allclose(values(ops.std(ROWS, axis, ddof=ddof)), ROWS.std(axis=axis, ddof=ddof), rtol=1e-14)


def test_truth_of_numbers():
    assert values(ops.reduce_any(ROWS, 1)).tolist() == [True, True]
    assert values(ops.reduce_all(ROWS, 1)).tolist() == [False, True]
    assert values(ops.reduce_all(ROWS)).dtype == bool


def test_product_of_integers_stays_whole():
    got = values(ops.reduce_prod(np.array([[2, 3], [4, 5]], np.int32), 1))
    assert (got.tolist(), got.dtype) == ([6, 20], np.int32)


WRONG = {
    "gelu": (lambda: ops.GeLU(approximate="erf")(ROWS), "GeLU: approximate='erf'"),
    "condition": (lambda: ops.select(ROWS, ROWS, ROWS), "Select: the condition is float64.*must be bools"),
    "mask": (lambda: ops.masked_fill(ROWS, ROWS, 0.0), "MaskedFill: the mask is float64"),
    "fill value": (lambda: ops.masked_fill(ROWS, ROWS > 0, ROWS), "MaskedFill: value has shape"),
    "prelu": (lambda: ops.prelu(ROWS, np.ones(2)), r"PReLU: weight has shape \(2,\).*\(3,\), one number per channel"),
    "top-k": (lambda: ops.top_k(ROWS, 4), "TopK: k=4.*An int from 0 to 3"),
    "argmax type": (lambda: ops.argmax(ROWS, output_type="float32"), "output_type='float32'"),
    "argmax of nothing": (lambda: ops.argmax(np.zeros((2, 0))), "A dim with elements"),
    "cumsum": (lambda: ops.cumsum(ROWS, 2), "CumSum: axis=2"),
    "norm": (lambda: ops.norm(ROWS, -1), "LpNorm: p=-1"),
    "var": (lambda: ops.var(ROWS, 0, ddof=2), "ddof=2.*below 2"),
    "log softmax": (lambda: ops.log_softmax(ROWS, 2), "LogSoftmax: axis=2"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_computed_is_refused(how):
    call, words = WRONG[how]
    with pytest.raises(ShapeError, match=words):
        call()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_number_before_a_tensor_takes_its_dtype(dtype):
    """2.0 / x was float64: the number became an array before anybody looked at x."""
    assert ops.div(2.0, Tensor(np.ones(3, dtype))).dtype == dtype
