"""Convolution, pooling layers: initial values, strategies, refusals. Against PyTorch: `test_recorded_layers.py`."""

import numpy as np
import pytest

from parallel_lab import nn
from tests.nn.one_device import check_equals_one_device
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


@pytest.mark.parametrize("shard", [by_batch, by_channels])
def test_a_small_network_trains_as_on_one_device(shard):
    labels = np.arange(8, dtype=np.int32) % 4
    check_equals_one_device(Small, nn.CrossEntropyLoss(), (X, labels), shard)


test_what_picture_layers_refuse = refused(
    (lambda: nn.Conv2d(0, 4, 3), ValueError, "Conv2d: in_channels=0"),
    (lambda: nn.Conv2d(4, 4, 3.0), TypeError, "kernel_size=3.0"),
    (lambda: nn.Conv2d(4, 4, (3, 3, 3)), ValueError, "An int, or .height, width"),
    (lambda: nn.Conv2d(4, 6, 3, group=4), ValueError, "group=4 with in_channels=4, out_channels=6"),
    (lambda: nn.Conv2d(4, 4, 3, pad_mode="full"), ValueError, "pad_mode='full'. One of 'same'"),
    (lambda: nn.Conv2d(4, 4, 3, padding=1), ValueError, "padding=1 with pad_mode='same'.*pad_mode='pad'"),
    (lambda: nn.Conv2d(4, 4, 3, data_format="NHWC"), ValueError, "'NHWC'"),
    (lambda: nn.MaxPool2d(0), ValueError, "MaxPool2d: kernel_size=0"),
    (lambda: nn.AvgPool2d(2, 2, count_include_pad=0), TypeError, "count_include_pad=0"),
    (lambda: nn.AdaptiveAvgPool2d((1, 2, 3)), ValueError, "output_size="),
)
