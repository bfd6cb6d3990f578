"""LeNet-5 (LeCun et al. 1998), in the form that tutorials use: two convolutions with max pooling, three dense layers, ReLU."""

from __future__ import annotations

from typing import Any

from .. import nn
from ..errors import ArgumentError, message
from ..nn.checks import whole_number

__all__ = ["LeNet5"]


class LeNet5(nn.Cell):
    """Pictures of digits to class scores.  x: (n, num_channel, 32, 32) -> (n, num_class).

    num_class, num_channel  classes; 1 for grey pictures, 3 for colour
    size                    height and width of the pictures, a multiple of 4 from 16 on; 28 for MNIST as it is
    """

    def __init__(self, num_class: int = 10, num_channel: int = 1, size: int = 32) -> None:
        super().__init__()
        if whole_number(size, "LeNet5", "size", least=16) % 4:
            raise ArgumentError(message(f"size={size}", where="LeNet5", allowed="A multiple of 4, at least 16"))
        side = ((size - 4) // 2 - 4) // 2  # two valid 5x5 convolutions, each followed by 2x2 pooling
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid", has_bias=True)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Dense(16 * side * side, 120)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Dense(120, 84)
        self.relu4 = nn.ReLU()
        self.fc3 = nn.Dense(84, num_class)

    def construct(self, x: Any) -> Any:
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        x = self.relu3(self.fc1(self.flatten(x)))
        return self.fc3(self.relu4(self.fc2(x)))
