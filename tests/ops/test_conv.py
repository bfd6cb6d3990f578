"""Convolution: kernels against the sum written out, the pad arithmetic, the sharding rule with its windows, memory,
threads.

Every legal strategy, and gradients against finite differences, are in the battery (test_battery.py, test_eager.py).
"""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from parallel_lab import ShapeError, StrategyError, Tensor, ops
from parallel_lab.ops import OPS
from parallel_lab.ops.conv import conv_window
from parallel_lab.ops.kernels import conv as conv_kernels, threads
from parallel_lab.ops.kernels.conv import conv_forward, conv_input_grad, conv_weight_grad
from parallel_lab.ops.kernels.windows import output_size, windows
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.sharding import sharding_rule

CONV = OPS["convolution"]


def written_out(x, w, stride, dilation, pads, group):
    """The definition, element by element."""
    dims, outs = range(x.ndim - 2), []
    for d in dims:
        reach = dilation[d] * (w.shape[2 + d] - 1) + 1
        outs.append((x.shape[2 + d] + pads[2 * d] + pads[2 * d + 1] - reach) // stride[d] + 1)
    out = np.zeros((len(x), len(w), *outs))
    for f, y, c, k in itertools.product(range(len(w)), np.ndindex(*outs), range(w.shape[1]), np.ndindex(w.shape[2:])):
        e = [y[d] * stride[d] + k[d] * dilation[d] - pads[2 * d] for d in dims]
        if all(0 <= e[d] < x.shape[2 + d] for d in dims):
            out[(slice(None), f, *y)] += w[(f, c, *k)] * x[(slice(None), f // (len(w) // group) * w.shape[1] + c, *e)]
    return out


def by_windows(x, w, stride, pads):
    """The same through numpy's view of all windows: fast enough for large shapes."""
    padded = np.pad(x, ((0, 0), (0, 0), pads[:2], pads[2:]))
    view = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))[:, :, :: stride[0], :: stride[1]]
    return np.einsum("ncyxkl,ockl->noyx", view, w, optimize=True)


# x, weight, stride, dilation, pads (two per dim), group
SETTINGS = {
    "valid": ((2, 3, 6, 5), (4, 3, 3, 2), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    "padded": ((2, 3, 5, 4), (2, 3, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    "four pads": ((1, 2, 5, 6), (3, 2, 3, 3), (1, 1), (1, 1), (2, 0, 1, 3), 1),
    "stride": ((2, 2, 7, 8), (3, 2, 3, 3), (2, 3), (1, 1), (1, 1, 0, 1), 1),
    "stride beyond the kernel": ((2, 2, 8, 9), (3, 2, 1, 2), (3, 4), (1, 1), (0, 0, 0, 0), 1),
    "dilation": ((2, 2, 9, 8), (3, 2, 3, 2), (2, 1), (2, 3), (2, 1, 0, 3), 1),
    "padding beyond the picture": ((1, 2, 2, 2), (2, 2, 2, 2), (1, 1), (3, 3), (3, 3, 4, 2), 1),
    "1x1": ((3, 4, 3, 5), (6, 4, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    "1x1 with a stride": ((3, 4, 4, 5), (6, 4, 1, 1), (2, 2), (1, 1), (0, 0, 0, 0), 1),
    "rows only": ((2, 3, 7, 4), (2, 3, 3, 1), (1, 1), (2, 1), (0, 0, 0, 0), 1),
    "groups": ((2, 4, 5, 6), (6, 2, 3, 3), (2, 1), (1, 2), (1, 1, 2, 2), 2),
    "depthwise": ((2, 3, 5, 6), (3, 1, 3, 3), (1, 2), (1, 1), (1, 1, 1, 1), 3),
    "depthwise, two each": ((2, 3, 4, 4), (6, 1, 2, 2), (1, 1), (1, 1), (1, 0, 1, 0), 3),
    "one sample, one pixel": ((1, 3, 1, 1), (2, 3, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    "a volume": ((2, 2, 4, 3, 4), (3, 2, 2, 3, 2), (1, 1, 2), (2, 1, 1), (1, 0, 1, 1, 0, 2), 1),
    "a volume with a stride in groups": ((2, 4, 5, 4, 3), (2, 2, 3, 1, 2), (2, 2, 1), (1, 1, 1), (1, 1, 0, 0, 1, 0), 2),
    "a volume, gaps": ((1, 2, 7, 2, 2), (2, 2, 1, 1, 1), (3, 1, 1), (1, 1, 1), (2, 2, 0, 0, 0, 0), 1),
}
each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())


@each_setting
def test_the_result_is_the_sum_written_out(setting, rng):
    x, w, *rest = setting
    x, w = rng.normal(size=x), rng.normal(size=w)
    np.testing.assert_allclose(conv_forward(x, w, *rest), written_out(x, w, *rest), rtol=1e-12, atol=1e-12)


@each_setting
def test_both_gradients_are_the_transposed_maps(setting, rng):
    """<conv(x, w), g> is linear in x and in w, so gradients must give <x, g_x> and <w, g_w>, for any g."""
    x, w, *rest = setting
    x, w = rng.normal(size=x), rng.normal(size=w)
    check_gradients(x, w, rest, lambda x, w: written_out(x, w, *rest), rng, 1e-10)


def check_gradients(x, w, rest, conv, rng, rel):
    """The kernels' gradients against `conv`, a function of x and w."""
    g = rng.normal(size=conv(x, w).shape)
    grad_x, grad_w = conv_input_grad(g, w, x.shape[2:], *rest), conv_weight_grad(g, x, w.shape[2:], *rest)
    assert (grad_x.shape, grad_w.shape) == (x.shape, w.shape)
    other_x, other_w = rng.normal(size=x.shape), rng.normal(size=w.shape)
    assert (other_x * grad_x).sum() == pytest.approx((conv(other_x, w) * g).sum(), rel=rel)
    assert (other_w * grad_w).sum() == pytest.approx((conv(x, other_w) * g).sum(), rel=rel)


# several tiles, a last tile that is smaller, pictures side by side in one product
LARGE = {
    "many tiles": ((37, 16, 24, 24), (8, 16, 3, 3), (1, 1), (1, 1, 1, 1)),
    "side by side": ((150, 8, 4, 4), (6, 8, 3, 3), (1, 1), (1, 1, 1, 1)),
    "side by side, stride": ((150, 4, 9, 8), (6, 4, 3, 3), (2, 2), (0, 1, 1, 0)),
    "one pixel each": ((300, 32, 1, 1), (16, 32, 1, 1), (1, 1), (0, 0, 0, 0)),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("thread_number", [1, 3])
@pytest.mark.parametrize(("x", "w", "stride", "pads"), LARGE.values(), ids=LARGE.keys())
def test_tiles_and_threads_do_not_change_the_result(x, w, stride, pads, thread_number, rng, monkeypatch):
    monkeypatch.setattr(conv_kernels, "thread_count", lambda: thread_number)
    monkeypatch.setattr(conv_kernels, "THREAD_FLOPS", 0)
    x, w = rng.normal(size=x), rng.normal(size=w)
    expected = by_windows(x, w, stride, pads)
    np.testing.assert_allclose(conv_forward(x, w, stride, (1, 1), pads), expected, rtol=1e-10, atol=1e-10)
    check_gradients(x, w, (stride, (1, 1), pads), lambda x, w: by_windows(x, w, stride, pads), rng, 1e-9)


def test_float16_is_summed_in_float32(rng):
    """9 * 64 * (3.125 + 3) = 3528 exactly; a running sum in float16 (only even numbers beyond 2048) would miss it."""
    x, w = np.ones((1, 128, 3, 3), np.float16), np.full((2, 128, 3, 3), 3, np.float16)
    w[:, ::2] += np.float16(0.125)
    out = conv_forward(x, w, (1, 1), (1, 1), (0, 0, 0, 0))
    assert out.dtype == np.float16
    assert out.ravel().tolist() == [3528.0, 3528.0]


@pytest.mark.parametrize("which", ["forward", "input grad", "weight grad"])
def test_columns_live_for_one_tile_only(which, rng):
    """The whole im2col of this case is 9 times x, 75 MB; besides its result a kernel may hold a few tiles."""
    x, w = np.ones((32, 64, 32, 32), np.float32), np.ones((32, 64, 3, 3), np.float32)
    g = np.ones((32, 32, 32, 32), np.float32)
    rest = ((1, 1), (1, 1), (1, 1, 1, 1))
    run = {
        "forward": lambda: conv_forward(x, w, *rest),
        "input grad": lambda: conv_input_grad(g, w, (32, 32), *rest),
        "weight grad": lambda: conv_weight_grad(g, x, (3, 3), *rest),
    }[which]
    tracemalloc.start()
    try:
        out = run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - out.nbytes < 6 * conv_kernels.TILE_BYTES * threads.thread_count()


# ---- threads ----


def test_what_a_thread_raises_is_raised_by_the_caller():
    def work(number):
        if number:
            raise ValueError(f"part {number}")

    with pytest.raises(ValueError, match="part 1"):
        threads.spread_over_threads(work, 3)


@pytest.mark.parametrize(("samples", "tile", "count"), [(10, 4, 2), (1, 4, 3), (12, 4, 3), (7, 1, 7), (5, 2, 8)])
def test_ranges_cover_the_batch_once_in_whole_tiles(samples, tile, count):
    ranges = threads.batch_ranges(samples, tile, count)
    assert [i for r in ranges for i in r] == list(range(samples))
    assert len(ranges) <= count
    assert all(len(r) % tile == 0 for r in ranges[:-1])


# ---- attributes ----


@pytest.mark.quick(16)
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"), list(itertools.product((5, 8), (1, 2, 3, 5), (1, 2, 3), (1, 2)))
)
def test_same_gives_ceil_of_size_over_stride_with_the_odd_zero_after(size, kernel, stride, dilation):
    made = windows((size, 3), (kernel, 1), (stride, 1), (dilation, 1), pad_mode="same")
    top, bottom, left, right = made.pads
    assert bottom - top in (0, 1)
    assert (left, right) == (0, 0)
    assert output_size(size, kernel, stride, dilation, top, bottom) == -(-size // stride)
    if bottom:  # and with fewer zeros there would be fewer results, or the kernel would not fill its last place
        assert (size + top + bottom - dilation * (kernel - 1) - 1) % stride == 0


def test_same_with_stride_two_pads_below_and_right_only():
    """8 rows, kernel 3, stride 2: windows start at rows 0, 2, 4, 6; the last reads a row of zeros below the picture."""
    x = np.zeros((1, 1, 8, 8), np.float32)
    x[0, 0, 7, 7] = 1
    w = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    out = ops.conv2d(x, w, stride=2, pad_mode="same")
    assert out.shape == (1, 1, 4, 4)
    assert out[0, 0, 3, 3] == w[0, 0, 1, 1]
    assert np.count_nonzero(out) == 1


def test_the_function_has_mindspores_arguments(rng):
    x, w, b = rng.normal(size=(2, 3, 5, 5)), rng.normal(size=(4, 3, 3, 3)), rng.normal(size=4)
    plain = written_out(x, w, (2, 2), (1, 1), (1, 1, 1, 1), 1)
    np.testing.assert_allclose(ops.conv2d(x, w, b, 2, "pad", 1, 1, 1), plain + b[:, None, None], rtol=1e-12)
    np.testing.assert_allclose(ops.conv2d(x, w, stride=2, pad_mode="pad", padding=(1, 1)), plain, rtol=1e-12)


def test_the_class_has_mindspores_arguments(rng):
    x, w = rng.normal(size=(2, 3, 5, 6)), rng.normal(size=(4, 3, 3, 2))
    made = ops.Conv2D(4, (3, 2), 1, "pad", (1, 0, 2, 1), 2, 1, 1, "NCHW")(Tensor(x), Tensor(w))
    np.testing.assert_allclose(made.asnumpy(), written_out(x, w, (2, 2), (1, 1), (1, 0, 2, 1), 1), rtol=1e-12)


X, W = np.ones((2, 4, 5, 6), np.float32), np.ones((8, 4, 3, 3), np.float32)
WRONG = {
    "channels": (lambda: ops.conv2d(X, W[:, :3]), r"weight of shape \(8, 3, 3, 3\).*dim 1 is 4 / 1 = 4"),
    "rank": (lambda: ops.conv2d(X[0], W), r"shapes \(4, 5, 6\)"),
    "pad without its mode": (lambda: ops.conv2d(X, W, padding=1), "pad=1 with pad_mode='valid'.*pad_mode='pad'"),
    "too large": (lambda: ops.conv2d(X, W, dilation=3), "covers 7 x 7 elements for a picture of 5 x 6"),
    "out_channel": (lambda: ops.Conv2D(out_channel=7)(X, W), "out_channel=7"),
    "kernel_size": (lambda: ops.Conv2D(kernel_size=5)(X, W), "kernel_size=5"),
}


@pytest.mark.parametrize(("call", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_attributes_are_refused_with_both_numbers(call, words):
    with pytest.raises(ShapeError, match="Conv2D: .*" + words):
        call()


# ---- the sharding rule ----


def attrs_of(**given):
    return {**CONV.default_attrs, **given}


def test_device_matrix_and_maps_are_mindspores():
    """Conv2D ((n,i,h,w), (o,i,1,1)): D = [n,i,h,w,o]; x [4,3,2,1], weight [0,3,-,-], out [4,0,2,1], partial over i."""
    shapes, strategy = ((4, 4, 8, 8), (4, 4, 3, 3)), ((2, 2, 2, 2), (2, 2, 1, 1))
    rule = sharding_rule(CONV, shapes, attrs_of(pad_mode="same"), strategy, 32)
    assert rule.out.device_matrix == (2, 2, 2, 2, 2)
    assert [layout.tensor_map for layout in rule.ins] == [((4,), (3,), (2,), (1,)), ((0,), (3,), (), ())]
    assert rule.out.tensor_map == ((4,), (0,), (2,), (1,))
    assert rule.out.partial == (3,)


def test_work_is_two_flops_per_product():
    shapes = ((2, 4, 9, 8), (6, 2, 3, 5))
    attrs = attrs_of(group=2, stride=2, pad_mode="same")
    assert CONV.work_flops(shapes, attrs) == 2 * (2 * 6 * 5 * 4) * (2 * 3 * 5)


ROWS = ((1, 1, 2, 1), (1, 1, 1, 1))  # the picture's height split in two
PADDED, GROUPED = {"pad_mode": "pad"}, "splits '{}' 2 ways.*in 2 groups.*channels stay whole"
FAR = PADDED | {"stride": 3, "pad": (2, 1, 2, 1)}
REFUSED = {
    "groups": (8, (4, 2, 3, 3), {"group": 2}, ((1, 2, 1, 1), (1, 1, 1, 1)), GROUPED.format("i")),
    "groups, out": (8, (4, 2, 3, 3), {"group": 2}, ((1, 1, 1, 1), (2, 1, 1, 1)), GROUPED.format("o")),
    "kernel": (8, (4, 4, 2, 2), {"stride": 2}, ((1, 1, 1, 1), (1, 1, 2, 1)), "'k' stays whole"),
    "valid": (10, (4, 4, 3, 3), {}, ROWS, "pad_mode='valid', kernel 3 and stride 1"),
    "uneven result": (8, (4, 4, 2, 3), PADDED | {"pad": (0, 0, 1, 1)}, ROWS, "result has 7 elements"),
    "stride": (10, (4, 4, 1, 1), {"stride": (3, 1)}, ROWS, "slices of 5 elements with stride 3"),
    "small kernel, padded": (8, (4, 4, 1, 1), FAR, ROWS, "kernel 1, stride 3 and padding 2, 1.*no padding"),
    "left over": (8, (4, 4, 3, 3), PADDED | {"stride": 2, "pad": 1}, ROWS, r"8 \+ 1 \+ 1 elements.*leaves some over"),
    "beyond the neighbour": (8, (4, 4, 7, 7), {"pad_mode": "same"}, ((1, 1, 4, 1), (1, 1, 1, 1)), "splits 'h' 4 ways"),
}


@pytest.mark.parametrize(("height", "w", "attrs", "strategy", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_cuts_that_mindspore_refuses_are_refused_with_the_reason(height, w, attrs, strategy, words):
    with pytest.raises(StrategyError, match=words):
        sharding_rule(CONV, ((4, 4, height, 8), w), attrs_of(**attrs), strategy, 8)


ALLOWED = {
    "3x3 same": ((4, 4, 8, 8), (4, 4, 3, 3), {"pad_mode": "same"}),
    "3x3 same, stride 2": ((4, 4, 8, 8), (4, 4, 3, 3), {"pad_mode": "same", "stride": 2}),
    "patches": ((4, 4, 8, 8), (4, 4, 2, 2), {"stride": 2}),
    "1x1, stride 2": ((4, 4, 8, 8), (4, 4, 1, 1), {"stride": 2}),
    "7x7 padded by 3": ((4, 4, 8, 8), (4, 4, 7, 7), {"pad_mode": "pad", "pad": 3}),
}


@pytest.mark.parametrize(("x", "w", "attrs"), ALLOWED.values(), ids=ALLOWED.keys())
def test_height_and_width_can_be_cut_in_two(x, w, attrs):
    legal = legal_strategies(CONV, (x, w), attrs_of(**attrs), 8)
    assert ((1, 1, 2, 1), (1, 1, 1, 1)) in legal
    assert ((2, 1, 2, 2), (1, 1, 1, 1)) in legal


def strided(**more):
    return {"kernel_size": 3, "pad_mode": "same", "stride": 2, **more}


UP, UP_SHAPES = OPS["transposed_convolution"], ((4, 4, 8, 8), (4, 4, 3, 3))
UP_REFUSED = {
    "valid": ({"pad_mode": "valid", "input_size": (4, 4, 18, 17)}, ROWS, "splits 'h' 2 ways with pad_mode='valid'"),
    "stride": ({"stride": 3, "pad_mode": "pad", "input_size": (4, 4, 22, 24)}, ROWS, "11 elements with stride 3"),
    "groups": ({"group": 2, "input_size": (4, 8, 16, 16)}, ((1, 2, 1, 1), (2, 1, 1, 1)), "convolved in 2 groups"),
    "kernel": ({}, ((1, 1, 1, 1), (1, 1, 2, 1)), "'k' stays whole"),
    "channels": ({}, ((1, 2, 1, 1), (1, 1, 1, 1)), "Both inputs must split the contracted dim equally"),
}


@pytest.mark.parametrize(("attrs", "strategy", "words"), UP_REFUSED.values(), ids=UP_REFUSED.keys())
def test_cuts_that_a_transposed_convolution_refuses(attrs, strategy, words):
    attrs = {**UP.default_attrs, **strided(input_size=(4, 4, 16, 16)), **attrs}
    with pytest.raises(StrategyError, match=words):
        sharding_rule(UP, UP_SHAPES, attrs, strategy, 8)


def test_device_matrix_and_maps_of_a_transposed_convolution_are_mindspores():
    """((n,o,h,w), (o,i,1,1)): D = [n,o,h,w,i]; x [4,3,2,1], weight [3,0,-,-], out [4,0,2,1], partial over o."""
    attrs = {**UP.default_attrs, **strided(input_size=(4, 4, 16, 16))}
    rule = sharding_rule(UP, UP_SHAPES, attrs, ((2, 2, 2, 2), (2, 2, 1, 1)), 32)
    assert rule.out.device_matrix == (2, 2, 2, 2, 2)
    assert [layout.tensor_map for layout in rule.ins] == [((4,), (3,), (2,), (1,)), ((3,), (0,), (), ())]
    assert rule.out.tensor_map == ((4,), (0,), (2,), (1,))
    assert rule.out.partial == (3,)
    # rows 4 i to 4 i + 4 of x and one before: kernel 3, padded by 0 before, reaches one element back
    assert [window for *_, window in rule.windows] == [(4, -1, 5, 4), (4, -1, 5, 4)]


def test_the_width_of_a_volume_stays_whole():
    """Conv3D ((n,i,d,h,1), (o,i,1,1,1)): D = [n,i,d,h,o]; x [4,3,2,1,-], weight [0,3,-,-,-], out [4,0,2,1,-]."""
    op, shapes = OPS["convolution_3d"], ((2, 2, 4, 4, 4), (4, 2, 3, 3, 3))
    attrs = {**op.default_attrs, "pad_mode": "SAME"}
    rule = sharding_rule(op, shapes, attrs, ((2, 2, 2, 2, 1), (2, 2, 1, 1, 1)), 32)
    assert [layout.tensor_map for layout in rule.ins] == [((4,), (3,), (2,), (1,), ()), ((0,), (3,), (), (), ())]
    assert rule.out.tensor_map == ((4,), (0,), (2,), (1,), ())
    with pytest.raises(StrategyError, match="'w' stays whole"):
        sharding_rule(op, shapes, attrs, ((1, 1, 1, 1, 2), (1, 1, 1, 1, 1)), 8)


UP_WRONG = {
    "samples": ({"input_size": (3, 4, 16, 16)}, W[:4], r"input_size=\(3, 4, 16, 16\).*As many samples as x: 2"),
    "weight": ({"input_size": (2, 4, 10, 12)}, W, "dim 0 is the channels of x: 4"),
    "channels": ({"input_size": (2, 3, 10, 12)}, W[:4], "dim 1 is 3 / 1 = 3"),
    "too small": ({"input_size": (2, 4, 8, 12)}, W[:4], "read by 4 x 6 windows only"),
    "rank": ({"input_size": (2, 4, 10, 12)}, W[0], "A picture"),
}


@pytest.mark.parametrize(("attrs", "weight", "words"), UP_WRONG.values(), ids=UP_WRONG.keys())
def test_what_a_transposed_convolution_cannot_take_is_refused(attrs, weight, words):
    size = attrs["input_size"]
    with pytest.raises(ShapeError, match=f"(?s)Conv2DTranspose: .*{words}"):
        ops.Conv2DTranspose(4, 3, pad_mode="same", stride=2)(X, weight, size)


@pytest.mark.parametrize("name", ["patches", "1x1, stride 2"])
def test_slices_that_suffice_are_not_exchanged(name):
    x, w, attrs = ALLOWED[name]
    assert sharding_rule(CONV, (x, w), attrs_of(**attrs), ((1, 1, 2, 1), (1, 1, 1, 1)), 8).windows == ()


def test_a_slice_asks_for_one_row_of_each_neighbour():
    x, w, attrs = ALLOWED["3x3 same"]
    rule = sharding_rule(CONV, (x, w), attrs_of(**attrs), ((1, 1, 2, 2), (1, 1, 1, 1)), 8)
    # (dim of x, axes of the device matrix (1, 1, 2, 2, 1, repeat 2), (step, origin, length, slice)): rows 4 i - 1 to 4
    # i + 5
    assert rule.windows == ((2, (3,), (4, -1, 6, 4)), (3, (2,), (4, -1, 6, 4)))


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_parts_computed_from_their_windows_are_the_slices_of_the_whole(data):
    """Without padding, from zeros outside the picture: what a rank does after the exchange."""
    kernel, stride, dilation = (data.draw(st.integers(1, n)) for n in (4, 3, 2))
    before, after, spare, share, parts = (
        data.draw(st.integers(a, b)) for a, b in ((0, 3), (0, 3), (0, stride - 1), (1, 5), (2, 4))
    )
    count = share * parts
    size = (count - 1) * stride + dilation * (kernel - 1) + 1 + spare - before - after
    assume(size > 0)
    rng = np.random.default_rng(size * 7 + kernel)
    x, w = rng.normal(size=(2, 2, size, 3)), rng.normal(size=(3, 2, kernel, 2))
    whole = conv_forward(x, w, (stride, 1), (dilation, 1), (before, after, 0, 0))
    step, origin, length = conv_window(size, parts, kernel, stride, dilation, before, after)
    margin = abs(origin) + step * parts + length
    padded = np.pad(x, ((0, 0), (0, 0), (margin, margin), (0, 0)))
    for part in range(parts):
        start = margin + step * part + origin
        held = padded[:, :, start : start + length]
        mine = conv_forward(held, w, (stride, 1), (dilation, 1), (0, 0, 0, 0))
        wanted = whole[:, :, part * count // parts : (part + 1) * count // parts]
        np.testing.assert_allclose(mine, wanted, rtol=1e-12, atol=1e-12)


def test_a_slice_runs_without_padding_along_a_cut_dim_only():
    cuts = {"n": 1, "i": 1, "h": 2, "w": 1, "o": 2}
    local = CONV.localize(attrs_of(pad_mode="pad", pad=(1, 2, 3, 4), out_channel=6), cuts)
    assert (local["pad_mode"], local["pad"], local["out_channel"]) == (("valid", "pad"), (1, 2, 3, 4), 3)
    assert windows((5, 5), 3, 1, pad_mode=local["pad_mode"], pad=local["pad"]).pads == (0, 0, 3, 4)
    local = CONV.localize(attrs_of(pad_mode="same"), {**cuts, "w": 2})
    assert (local["pad_mode"], local["pad"]) == ("valid", 0)
