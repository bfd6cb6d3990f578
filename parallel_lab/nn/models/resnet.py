"""Residual networks (He et al. 2016, "Deep Residual Learning for Image Recognition", table 1 and section 4.2).

    net = resnet50(10, stem="cifar")          # 32x32 pictures: a 3x3 first convolution, no pooling
    net = resnet50(1001, stem="imagenet")     # 224x224: 7x7 with stride 2, then 3x3 max pooling with stride 2

Strides of 2 sit in the 3x3 convolution of a bottleneck (the form that is trained today), the shortcut is a 1x1
convolution where shapes change. Convolutions have no bias, because batch norm follows.
"""

from __future__ import annotations

from typing import Any

from ... import nn
from ...base.checks import checked, choice, integers, kept
from ...base.errors import ArgumentTypeError, shorten
from ...ops.elementwise import add
from ...ops.reduce import reduce_mean


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    padding = {"pad_mode": "pad", "padding": size // 2}
    return nn.Conv2d(inputs, outputs, size, stride, **padding, weight_init="he_normal")


class _Block(nn.Cell):
    """What both blocks share: the shortcut.  x: (n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = _conv(inputs, outputs, 1, stride)
            self.down_bn = nn.BatchNorm2d(outputs)
        self.add = add.primitive()
        self.relu = nn.ReLU()

    def _joined(self, branch: Any, x: Any) -> Any:
        return self.relu(self.add(branch, x if self.down is None else self.down_bn(self.down(x))))


class BasicBlock(_Block):
    """Two 3x3 convolutions and the shortcut (18 layers).  x: (n, c, h, w) -> (n, width, h / stride, w / stride)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__(inputs, width, stride)
        self.conv1, self.bn1, self.relu1 = _conv(inputs, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)

    def construct(self, x: Any) -> Any:
        y = self.relu1(self.bn1(self.conv1(x)))
        return self._joined(self.bn2(self.conv2(y)), x)


class Bottleneck(_Block):
    """1x1, 3x3, 1x1 convolutions, shortcut (50 layers).  x: (n, c, h, w) -> (n, 4 * width, h / stride, w / stride)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__(inputs, 4 * width, stride)
        self.conv1, self.bn1, self.relu1 = _conv(inputs, width, 1), nn.BatchNorm2d(width), nn.ReLU()
        self.conv2, self.bn2, self.relu2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()
        self.conv3, self.bn3 = _conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)

    def construct(self, x: Any) -> Any:
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        return self._joined(self.bn3(self.conv3(y)), x)


class ResNet(nn.Cell):
    """A residual network.  x: (n, channels, h, w) -> (n, class_num).

    block      BasicBlock or Bottleneck
    counts     blocks per stage; from the second stage on the first block halves height and width
    class_num  classes
    stem       "cifar": 3x3 convolution, for small pictures; "imagenet": 7x7 and 3x3 max pooling, both with stride 2
    width      channels of the first stage, doubled from stage to stage (64 in the paper)
    channels   of the pictures
    """

    @checked(counts=integers(1))
    @kept(stem=choice("cifar", "imagenet"))
    def __init__(
        self,
        block: type[_Block],
        counts: tuple[int, ...],
        class_num: int = 10,
        stem: str = "cifar",
        width: int = 64,
        channels: int = 3,
    ) -> None:
        super().__init__()
        if not (isinstance(block, type) and issubclass(block, _Block)):
            raise ArgumentTypeError(f"block={shorten(block)}", where="ResNet", allowed="BasicBlock or Bottleneck")
        self.conv1 = _conv(channels, width, 3) if stem == "cifar" else _conv(channels, width, 7, 2)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, pad_mode="same") if stem == "imagenet" else None
        blocks, inputs = [], width
        for stage, count in enumerate(counts):
            for number in range(count):
                blocks.append(block(inputs, width << stage, stride=2 if stage and not number else 1))
                inputs = block.expansion * (width << stage)
        self.blocks = nn.CellList(blocks)
        self.mean = reduce_mean.primitive()
        self.fc = nn.Dense(inputs, class_num)

    def construct(self, x: Any) -> Any:
        x = self.relu(self.bn1(self.conv1(x)))
        if self.pool is not None:
            x = self.pool(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(self.mean(x, (2, 3)))


def resnet18(class_num: int = 10, stem: str = "cifar", width: int = 64) -> ResNet:
    """The 18-layer network; see `ResNet`."""
    return ResNet(BasicBlock, (2, 2, 2, 2), class_num, stem, width)


def resnet50(class_num: int = 10, stem: str = "cifar", width: int = 64) -> ResNet:
    """The 50-layer network; see `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), class_num, stem, width)
