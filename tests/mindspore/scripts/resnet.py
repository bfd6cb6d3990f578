"""ResNet-50 (He et al. 2016, table 1) with MindSpore's layers: the file that `resnet50_distributed_training.py` expects
next to it.

The last batch norm of each block starts with gamma 0, so that a block begins as its shortcut (Goyal et al. 2017,
section 5.1): without it the rate of the tutorial makes the loss overflow.
"""

import mindspore.nn as nn
import mindspore.ops as ops


def conv(in_channels, out_channels, size, stride=1):
    return nn.Conv2d(in_channels, out_channels, size, stride, pad_mode="same")


class Bottleneck(nn.Cell):
    """1x1 down, 3x3, 1x1 up, and the input added; where the shape changes, the input goes through a 1x1 convolution."""

    def __init__(self, in_channels, out_channels, stride, norm):
        super().__init__()
        inner = out_channels // 4
        self.conv1, self.bn1 = conv(in_channels, inner, 1), norm(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride), norm(inner)
        self.conv3, self.bn3 = conv(inner, out_channels, 1), norm(out_channels, gamma_init="zeros")
        self.relu = nn.ReLU()
        self.add = ops.Add()
        self.changes = stride != 1 or in_channels != out_channels
        if self.changes:
            self.down, self.down_bn = conv(in_channels, out_channels, 1, stride), norm(out_channels)

    def construct(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        same = self.down_bn(self.down(x)) if self.changes else x
        return self.relu(self.add(out, same))


class ResNet(nn.Cell):
    def __init__(self, blocks, classes, norm):
        super().__init__()
        self.conv1, self.bn1, self.relu = conv(3, 64, 7, 2), norm(64), nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, pad_mode="same")
        layers, channels = [], 64
        for stage, count in enumerate(blocks):
            wide = 256 * 2**stage
            for i in range(count):
                layers.append(Bottleneck(channels, wide, 2 if i == 0 and stage else 1, norm))
                channels = wide
        self.layers = nn.SequentialCell(layers)
        self.mean = ops.ReduceMean(keep_dims=False)
        self.end = nn.Dense(channels, classes)

    def construct(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.end(self.mean(self.layers(x), (2, 3)))


def resnet50(batch_size, num_classes, sync=None):
    """The network; `batch_size` is there because the script gives it.

    sync  True: batch norm takes its statistics from the samples of all ranks (parallel_lab's own option; MindSpore's
          layer has none)
    """

    def norm(channels, **options):
        return nn.BatchNorm2d(channels, **options, **({} if sync is None else {"sync": sync}))

    return ResNet((3, 4, 6, 3), num_classes, norm)
