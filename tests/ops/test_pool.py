"""Pooling: windows written out, ties, what a mean counts, adaptive windows, refusals, the sharding rule.

Every legal strategy, and gradients against finite differences, are in the battery (test_battery.py, test_eager.py).
"""

import itertools
import math

import numpy as np
import pytest

from parallel_lab import ShapeError, StrategyError, ops
from parallel_lab.catalog.ops.mean_windows import avg_pool_forward, avg_pool_grad
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops import OPS
from parallel_lab.ops.kernels import pool as pool_kernels
from parallel_lab.ops.kernels.pool import max_pool_forward, max_pool_grad
from parallel_lab.ops.kernels.windows import Windows
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.sharding import sharding_rule
from tests.refusals import refused

# size, kernel, stride, pads (two per dim)
SETTINGS = {
    "halves": ((6, 8), (2, 2), (2, 2), (0, 0, 0, 0)),
    "a row left over": ((7, 5), (2, 2), (2, 2), (0, 0, 0, 0)),
    "overlapping": ((6, 7), (3, 3), (2, 2), (1, 1, 1, 1)),
    "dense": ((5, 4), (3, 2), (1, 1), (1, 0, 0, 1)),
    "gaps": ((8, 9), (2, 1), (3, 4), (0, 0, 0, 0)),
    "four pads": ((5, 6), (3, 4), (2, 3), (2, 1, 3, 2)),
    "one window": ((4, 3), (4, 3), (1, 1), (0, 0, 0, 0)),
    "one element": ((3, 4), (1, 1), (1, 1), (0, 0, 0, 0)),
    "a volume": ((4, 3, 5), (2, 3, 2), (2, 1, 3), (1, 0, 1, 1, 0, 1)),
    "a volume in blocks": ((4, 2, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0, 0, 0, 0)),
}
each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())


def windows(made):
    """(place, elements of the window that lie in the picture, in row-major order) for every window; as indices."""
    all_of = (slice(None), slice(None))  # samples, channels
    for place in itertools.product(*map(range, made.out_size)):
        along = []
        for d, y in enumerate(place):
            size, kernel, stride, _, before, _ = made.along(d)
            along.append([e for e in range(y * stride - before, y * stride - before + kernel) if 0 <= e < size])
        yield (*all_of, *place), [(*all_of, *element) for element in itertools.product(*along)]


def window_of(size, kernel, stride, pads, ceil=False):
    return Windows(size, kernel, stride, (1,) * len(size), pads, ceil)


def with_ties(rng, size):
    return rng.integers(0, 3, (3, 2, *size)).astype(float)


@each_setting
def test_max_is_the_largest_real_element(setting, rng):
    size, *rest = setting
    x = -1 - with_ties(rng, size)  # below 0, so that a padded zero would be seen
    out = max_pool_forward(x, *rest, window_of(*setting).out_size)
    for place, inside in windows(window_of(*setting)):
        np.testing.assert_array_equal(out[place], np.max([x[e] for e in inside], axis=0))


@each_setting
def test_the_first_of_the_largest_in_row_major_order_takes_the_gradient(setting, rng):
    size, *rest = setting
    x = with_ties(rng, size)
    out = max_pool_forward(x, *rest, window_of(*setting).out_size)
    g = rng.normal(size=out.shape)
    expected = np.zeros(x.shape)
    for place, inside in windows(window_of(*setting)):
        for one in np.ndindex(x.shape[:2]):
            # max() keeps the first of equal ones
            element = max(inside, key=lambda e, one=one: x[(*one, *e[2:])])
            expected[(*one, *element[2:])] += g[(*one, *place[2:])]
    np.testing.assert_allclose(max_pool_grad(g, out, x, *rest), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count_pads", [True, False])
@each_setting
def test_mean_and_its_gradient(setting, count_pads, rng):
    made = window_of(*setting)
    x = rng.normal(size=(3, 2, *made.size))
    out = avg_pool_forward(x, made, count_pads)
    g = rng.normal(size=out.shape)
    expected = np.zeros(x.shape)
    for place, inside in windows(made):
        count = math.prod(made.kernel) if count_pads else len(inside)
        np.testing.assert_allclose(out[place], sum(x[e] for e in inside) / count, rtol=1e-12, atol=1e-12)
        for e in inside:
            expected[e] += g[place] / count
    np.testing.assert_allclose(avg_pool_grad(g, made, count_pads), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count_pads", [True, False])
def test_a_last_window_beyond_the_padding_counts_with_ceil_mode_and_what_is_outside_never(count_pads):
    """7 elements padded by 1 and 0, kernel 3, stride 2: windows begin at -1, 1, 3, and the next, at 5, holds two."""
    x = np.array([[[[1.0, 2.0, 3.0, 4.0, 50.0, 60.0, 70.0]]]])
    facts = (1, 7), (1, 3), (1, 2), (0, 0, 1, 0)
    assert window_of(*facts).out_size == (1, 3)
    made = window_of(*facts, ceil=True)
    assert made.out_size == (1, 4)
    largest = max_pool_forward(x, made.kernel, made.stride, made.pads, made.out_size)
    assert largest.tolist() == [[[[2.0, 4.0, 60.0, 70.0]]]]
    first = 3 / (3 if count_pads else 2)
    assert avg_pool_forward(x, made, count_pads).tolist() == [[[[first, 3.0, 38.0, 65.0]]]]
    grad = avg_pool_grad(np.ones((1, 1, 1, 4)), made, count_pads)
    assert grad[0, 0, 0, 6] == 0.5


def test_a_window_that_would_begin_behind_the_picture_does_not_count():
    """3 elements padded by 0 and 1, kernel 2, stride 3: a window at 3 would hold padding only."""
    assert window_of((3,), (2,), (3,), (0, 1), ceil=True).out_size == (1,)


def test_volumes_take_their_own_divisor(rng):
    x = rng.normal(size=(1, 2, 2, 4, 2))
    halves = x.reshape(1, 2, 2, 2, 2, 2).sum(axis=(2, 4, 5))[:, :, None, :, None]
    np.testing.assert_allclose(ops.AvgPool3D(2, 2, divisor_override=5)(x), halves / 5)
    np.testing.assert_allclose(ops.avg_pool3d(x, 2, 2), halves / 8)
    np.testing.assert_array_equal(ops.max_pool3d(x, (2, 4, 2)), x.max(axis=(2, 3, 4), keepdims=True))


def test_same_counts_real_elements_only_in_a_mean():
    """3 columns, kernel 2, stride 2: the second window holds one real element."""
    x = np.array([[[[1.0, 3.0, 10.0]]]])
    np.testing.assert_array_equal(ops.AvgPool(kernel_size=(1, 2), strides=2, pad_mode="same")(x), [[[[2.0, 10.0]]]])


def test_padded_zeros_count_in_a_mean_unless_told():
    x = np.full((1, 1, 2, 2), 4.0)
    assert ops.avg_pool2d(x, 2, 2, 1).ravel().tolist() == [1.0] * 4
    assert ops.avg_pool2d(x, 2, 2, 1, count_include_pad=False).ravel().tolist() == [4.0] * 4


def test_a_mean_of_float16_is_summed_in_float32():
    """All ones: a running sum in float16 would stop at 2048 and give a mean of 0.5."""
    x = np.ones((1, 1, 64, 64), np.float16)
    out = ops.avg_pool2d(x, 64)
    assert out.dtype == np.float16
    assert out.item() == 1


def test_tiles_and_threads_do_not_change_the_result(rng, monkeypatch):
    x = rng.integers(0, 4, (13, 3, 8, 10)).astype(float)
    rest = ((3, 3), (2, 2), (1, 1, 1, 1))
    whole = max_pool_forward(x, *rest, (4, 5))
    g = rng.normal(size=whole.shape)
    grad = max_pool_grad(g, whole, x, *rest)
    monkeypatch.setattr(pool_kernels, "TILE_BYTES", 2 * x[0].nbytes)
    monkeypatch.setattr(pool_kernels, "THREAD_ELEMENTS", 0)
    monkeypatch.setattr(pool_kernels, "thread_count", lambda: 3)
    np.testing.assert_array_equal(max_pool_forward(x, *rest, (4, 5)), whole)
    np.testing.assert_array_equal(max_pool_grad(g, whole, x, *rest), grad)


# ---- adaptive ----


@pytest.mark.parametrize("output_size", [1, (2, 3), (4, 5), (7, 9), (None, 2), (3, None)])
def test_adaptive_windows_run_from_floor_to_ceil(output_size, rng):
    size = (5, 7)
    wanted = output_size if isinstance(output_size, tuple) else (output_size, output_size)
    rows, cols = (n if w is None else w for n, w in zip(size, wanted, strict=True))
    x = rng.normal(size=(2, 3, *size))
    mean, largest = ops.adaptive_avg_pool2d(x, output_size), ops.adaptive_max_pool2d(x, output_size)
    assert mean.shape == largest.shape == (2, 3, rows, cols)
    for y, z in np.ndindex(rows, cols):
        part = x[:, :, y * 5 // rows : math.ceil((y + 1) * 5 / rows), z * 7 // cols : math.ceil((z + 1) * 7 / cols)]
        np.testing.assert_allclose(mean[:, :, y, z], part.mean(axis=(2, 3)), rtol=1e-12)
        np.testing.assert_array_equal(largest[:, :, y, z], part.max(axis=(2, 3)))


def test_adaptive_max_gives_equal_elements_the_first_ones_gradient():
    """Two windows of rows 0-1 and 1-2 share row 1; all elements are equal: the first of each takes its gradient."""
    x = Parameter(np.ones((1, 1, 3, 2)))
    (grad,) = gradients(ops.adaptive_max_pool2d(x, (2, 1)), [x], np.array([[[[5.0], [7.0]]]]))
    assert grad[0, 0].tolist() == [[5.0, 0.0], [7.0, 0.0], [0.0, 0.0]]


# ---- attributes ----


def test_the_classes_have_mindspores_arguments(rng):
    x = rng.normal(size=(2, 3, 6, 8))
    np.testing.assert_array_equal(ops.MaxPool(2, 2, "valid", "NCHW")(x), ops.max_pool2d(x, 2))
    np.testing.assert_allclose(ops.AvgPool((2, 4), (2, 4), "same")(x), ops.AdaptiveAvgPool2D((3, 2))(x), rtol=1e-10)
    np.testing.assert_array_equal(ops.AdaptiveMaxPool2D((3, 4))(x), ops.max_pool2d(x, 2, 2))


X = np.ones((2, 3, 5, 6), np.float32)
WRONG = {
    "rank": (lambda: ops.max_pool2d(X[0], 2), r"MaxPool: a tensor of shape \(3, 5, 6\)"),
    "ints": (lambda: ops.max_pool2d(X.astype(int), 2), "MaxPool: x is int64"),
    "too large": (lambda: ops.max_pool2d(X, 6), "MaxPool: a kernel that covers 6 x 6 elements for a picture of 5 x 6"),
    "too much padding": (lambda: ops.max_pool2d(X, 2, 2, 2), "MaxPool: pad=2 with kernel_size=2"),
}


test_wrong_attributes_are_refused_with_the_numbers = refused(*WRONG.values(), error=ShapeError)


# ---- the sharding rule ----

each_pool = pytest.mark.parametrize("op", [OPS["max_pool"], OPS["avg_pool"]], ids=["max", "avg"])
OVERLAP = {"kernel_size": 3, "strides": 2, "pad_mode": "same"}
REFUSED = {
    "overlap": (8, OVERLAP, "kernel 3 and stride 2.*windows cross the slice borders"),
    "slices": (10, {"kernel_size": 2, "strides": 3, "pad_mode": "same"}, "slices of 5 elements with stride 3"),
    "result": (6, {"kernel_size": 2, "strides": 2}, "the result has 3 elements"),
    "padding": (8, {"kernel_size": 2, "strides": 2, "pad_mode": "pad", "pad": (1, 0, 0, 0)}, "padding 1, 0"),
}


@each_pool
@pytest.mark.parametrize(("height", "attrs", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_heights_that_may_not_be_cut_are_refused_with_the_reason(op, height, attrs, words):
    with pytest.raises(StrategyError, match=words):
        sharding_rule(op, ((4, 4, height, 6),), {**op.default_attrs, **attrs}, ((1, 1, 2, 1),), 8)


CUBE = {"kernel_size": 3, "strides": 1, "pad_mode": "same"}
PADS = {"kernel_size": 2, "strides": 2, "pad_mode": "PAD"}
VOLUMES = {
    "max": ("max_pool_3d", 8, CUBE, ((1, 1, 2, 1, 1),), "padding 1, 1. What ranks find outside is zero"),
    "real": ("avg_pool_3d", 8, {**CUBE, "count_include_pad": False}, ((1, 1, 1, 2, 1),), "count_include_pad=True"),
    "small": ("avg_pool_3d", 6, {**PADS, "pad": 1}, ((1, 1, 2, 1, 1),), "at most as large.*no padding"),
    "valid": ("max_pool_3d", 10, {**CUBE, "pad_mode": "VALID"}, ((1, 1, 2, 1, 1),), "pad_mode='valid', kernel 3"),
    "width": ("max_pool_3d", 8, {"kernel_size": 2, "strides": 2}, ((1, 1, 1, 1, 2),), "'w' stays whole"),
}


@pytest.mark.parametrize(("name", "size", "attrs", "strategy", "words"), VOLUMES.values(), ids=VOLUMES.keys())
def test_volumes_that_may_not_be_cut_are_refused_with_the_reason(name, size, attrs, strategy, words):
    op = OPS[name]
    with pytest.raises(StrategyError, match=words):
        sharding_rule(op, ((4, 4, size, size, size),), {**op.default_attrs, **attrs}, strategy, 8)


@pytest.mark.parametrize("counts", [{}, {"divisor_override": 5, "count_include_pad": False}])
def test_means_of_volumes_exchange_borders_where_windows_cross_them(counts):
    op = OPS["avg_pool_3d"]
    attrs = {**op.default_attrs, **CUBE, **counts}
    rule = sharding_rule(op, ((4, 4, 8, 8, 8),), attrs, ((1, 1, 4, 2, 1),), 8)
    assert [(dim, window) for dim, _, window in rule.windows] == [(2, (2, -1, 4, 2)), (3, (4, -1, 6, 4))]


@each_pool
def test_samples_channels_and_fitting_rows_may_be_cut(op):
    attrs = {**op.default_attrs, "kernel_size": 2, "strides": 2}
    assert ((2, 2, 2, 1),) in legal_strategies(op, ((4, 4, 8, 6),), attrs, 8)


def test_adaptive_pooling_keeps_height_and_width_whole():
    op = OPS["adaptive_avg_pool"]
    with pytest.raises(StrategyError, match="'h' stays whole"):
        sharding_rule(op, ((4, 4, 8, 8),), {"output_size": (2, 2)}, ((1, 1, 2, 1),), 8)
    assert ((4, 2, 1, 1),) in legal_strategies(op, ((4, 4, 8, 8),), {"output_size": (2, 2)}, 8)


def test_work_is_one_flop_per_element_of_a_window():
    op = OPS["max_pool"]
    windows_per_channel = 3 * 3  # of 6 x 8 elements, kernel (2, 3), stride 2
    expected = 2 * 5 * windows_per_channel * 2 * 3
    assert op.work_flops(((2, 5, 6, 8),), {**op.default_attrs, "kernel_size": (2, 3), "strides": 2}) == expected


def test_adaptive_pooling_reads_each_element_once():
    assert OPS["adaptive_avg_pool"].work_flops(((2, 5, 6, 8),), {"output_size": 1}) == 2 * 5 * 6 * 8
