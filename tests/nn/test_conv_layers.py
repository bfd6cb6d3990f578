"""Convolution, pooling layers: initial values, strategies, refusals. Against PyTorch: `test_recorded_layers.py`."""

import itertools

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, nn, ops
from parallel_lab.base.errors import ArgumentError
from tests.crossed import each_of
from tests.nn.one_device import check_equals_one_device, messages
from tests.refusals import refused

X = np.random.default_rng(6).normal(size=(8, 4, 6, 5))


def test_initial_weights_are_uniform_within_one_over_the_root_of_what_they_sum():
    """MindSpore, nn.Conv2d: HeUniform(sqrt(5)), bound sqrt(6 / (1 + 5) / fan_in)."""
    layer = nn.Conv2d(16, 64, 3, has_bias=True, group=2)
    bound = 1 / np.sqrt(8 * 9)
    assert layer.weight.shape == (64, 8, 3, 3)
    for values in (layer.weight.asnumpy(), layer.bias.asnumpy()):
        assert 0.9 * bound < np.abs(values).max() <= bound
        assert values.std() == pytest.approx(bound / np.sqrt(3), rel=0.2)


class Small(nn.Cell):
    """Convolution, batch norm, pooling, classes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, has_bias=True, dtype=np.float64)
        self.bn, self.relu, self.pool = nn.BatchNorm2d(8, dtype=np.float64), nn.ReLU(), nn.MaxPool2d(2, 2)
        self.mean, self.flatten, self.fc = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dense(8, 4, dtype=np.float64)

    def construct(self, x):
        return self.fc(self.flatten(self.mean(self.pool(self.relu(self.bn(self.conv(x)))))))


# ---- transposed, rows, volumes ----


def spread_out(x, weight, stride, dilation, group):
    """Every element of x times the kernel, added at its place: all results that any element reaches."""
    (n, c, *size), (_, out, *kernel) = x.shape, weight.shape
    reach = [(s - 1) * st + d * (k - 1) + 1 for s, st, d, k in zip(size, stride, dilation, kernel, strict=True)]
    y = np.zeros((n, out * group, *reach))
    for i, o, q, k in itertools.product(range(c), range(out), np.ndindex(*size), np.ndindex(*kernel)):
        place = [a * st + b * d for a, st, b, d in zip(q, stride, k, dilation, strict=True)]
        y[(slice(None), i // (c // group) * out + o, *place)] += x[(slice(None), i, *q)] * weight[(i, o, *k)]
    return y


TRANSPOSED = {
    "same": ({"kernel_size": 3, "stride": 2}, (0, 1, 0, 1), 0),
    "same, kernel below the stride": ({"kernel_size": (1, 3), "stride": (3, 1)}, (0, -2, 1, 1), 0),
    "valid": ({"kernel_size": (3, 2), "stride": (2, 3), "pad_mode": "valid", "group": 2}, (0, 0, 0, -1), 0),
    "pad": ({"kernel_size": 3, "dilation": 2, "pad_mode": "pad", "padding": (1, 0, 2, 1)}, (1, 0, 2, 1), 0),
    "more": ({"kernel_size": 3, "stride": 2, "pad_mode": "pad", "padding": 1}, (1, 1, 1, 1), (1, 0)),
}


@pytest.mark.parametrize("how", TRANSPOSED)
def test_a_transposed_convolution_spreads_every_element_and_crops_what_the_padding_says(how):
    """crop: rows and columns less on each side (negative: zeros more), from the pad arithmetic of MindSpore's layer."""
    settings, (top, bottom, left, right), more = TRANSPOSED[how]
    layer = nn.Conv2dTranspose(4, 6, output_padding=more, has_bias=True, dtype=np.float64, **settings)
    pairs = [v if isinstance(v, tuple) else (v, v) for v in (layer.stride, layer.dilation)]
    x = X[:2, :, :3, :4]
    full = spread_out(x, layer.weight.asnumpy(), *pairs, layer.group)
    down, across = (more, more) if isinstance(more, int) else more
    full = np.pad(full, ((0, 0), (0, 0), (0, max(0, down - bottom)), (0, max(0, across - right))))
    rows = slice(top, full.shape[2] - max(0, bottom - down))
    columns = slice(left, full.shape[3] - max(0, right - across))
    expected = full[:, :, rows, columns] + layer.bias.asnumpy()[:, None, None]
    np.testing.assert_allclose(layer(Tensor(x)).asnumpy(), expected, rtol=1e-10, atol=1e-12)


@each_of("make, other", (nn.Conv1d, nn.Conv2d), (nn.Conv1dTranspose, nn.Conv2dTranspose))
def test_rows_are_pictures_of_height_one(make, other):
    settings = {"has_bias": True, "dtype": np.float64, "weight_init": "normal", "pad_mode": "pad"}
    rows = make(4, 6, 3, stride=2, padding=(2, 1), **settings)
    pictures = other(4, 6, (1, 3), stride=(1, 2), padding=(0, 0, 2, 1), **settings)
    pictures.weight.set_data(rows.weight.asnumpy())
    pictures.bias.set_data(rows.bias.asnumpy())
    x = X[:, :, 0]
    np.testing.assert_array_equal(rows(Tensor(x)).asnumpy(), pictures(Tensor(x[:, :, None])).asnumpy()[:, :, 0])


class Volumes(nn.Cell):
    """A convolution of volumes, their largest elements, a picture per depth, twice as large."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 3, has_bias=True, dtype=np.float64)
        self.pool, self.mean = nn.MaxPool3d(2, 2), ops.ReduceMean()
        self.up = nn.Conv2dTranspose(4, 2, 3, stride=2, has_bias=True, dtype=np.float64)

    def construct(self, x):
        return self.up(self.mean(self.pool(self.conv(x)), 2))


@pytest.mark.exhaustive
def test_volumes_and_transposed_pictures_split_in_space_train_as_on_one_device(rng):
    def shard(net):
        net.conv.conv3d.shard(((2, 1, 2, 2, 1), (1, 1, 1, 1, 1)))
        net.pool.max_pool_3d.shard(((2, 1, 2, 2, 1),))
        net.up.conv2d_transpose.shard(((2, 2, 2, 1), (2, 1, 1, 1)))

    batch = rng.normal(size=(2, 2, 4, 8, 6)), rng.normal(size=(2, 2, 8, 6))
    plan = check_equals_one_device(Volumes, nn.MSELoss(), batch, shard)
    assert [i.attr("dim") for i in messages(plan) if i.kind == "halo_exchange"] == [2, 3, 2]


def by_batch(net):
    return None


def by_channels(net):
    net.conv.conv2d.shard(((2, 1, 1, 1), (4, 1, 1, 1)))
    net.conv.bias_add.shard(((2, 4, 1, 1), (4,)))
    net.bn.batch_norm.shard(((2, 4, 1, 1), *((4,),) * 4))
    net.relu.relu.shard(((2, 4, 1, 1),))
    net.pool.max_pool.shard(((2, 4, 1, 1),))
    net.mean.adaptive_avg_pool.shard(((2, 4, 1, 1),))
    net.fc.matmul.shard(((2, 1), (4, 1)))
    net.fc.bias_add.shard(((2, 4), (4,)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("shard", [by_batch, by_channels])
def test_a_small_network_trains_as_on_one_device(shard):
    labels = np.arange(8, dtype=np.int32) % 4
    check_equals_one_device(Small, nn.CrossEntropyLoss(), (X, labels), shard)


test_what_picture_layers_refuse = refused(
    (lambda: nn.Conv2dTranspose(4, 4, 3, output_padding=1), ValueError, "output_padding=1.*pad_mode='pad'"),
    (lambda: nn.Conv2dTranspose(4, 4, 3, 2, "pad", output_padding=2), ValueError, "less than stride or dilation"),
    (lambda: nn.Conv2dTranspose(4, 4, 3)(Tensor(X[0])), ShapeError, r"Conv2dTranspose: .*\(n, c, h, w\)"),
    (lambda: nn.MaxPool3d(2, 2)(Tensor(X)), ShapeError, r"MaxPool3D: .*A volume \(n, c, d, h, w\)"),
    (lambda: nn.Conv2d(4, 6, 3, group=4), ValueError, "group=4 with in_channels=4, out_channels=6"),
    (lambda: nn.Conv2d(4, 4, 3, padding=1), ValueError, "padding=1 with pad_mode='same'.*pad_mode='pad'"),
)


@each_of(
    "layer, of_window",
    (nn.MaxPool1d, lambda windows: windows.max(-1)),
    (nn.AvgPool1d, lambda windows: windows.mean(-1)),
)
def test_pooling_of_rows_is_that_of_each_window(layer, of_window):
    x = np.random.default_rng(0).standard_normal((2, 3, 9)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, axis=2)
    np.testing.assert_allclose(layer(3, 2)(Tensor(x)).asnumpy(), of_window(windows[:, :, ::2]), rtol=1e-6)
    assert layer(3, 2, "same")(Tensor(x)).shape == (2, 3, 5)
    assert layer(3, 1, pad_mode="pad", padding=(1, 0))(Tensor(x)).shape == (2, 3, 8)
    with pytest.raises(ShapeError, match=r"\(n, c, l\)"):
        layer(3)(Tensor(x[0]))
    with pytest.raises(ArgumentError, match="pad_mode='pad'"):
        layer(3, padding=1)


def test_upsample_is_interpolation():
    x = Tensor(np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2))
    np.testing.assert_array_equal(
        nn.Upsample(scale_factor=2.0)(x).asnumpy(), np.repeat(np.repeat(x.asnumpy(), 2, 2), 2, 3)
    )
    with pytest.raises(ShapeError, match="bilinear"):
        nn.Upsample((4, 4), mode="area")(x)
