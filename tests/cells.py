"""Small networks for tests, without a class for each.

net = cell(lambda net, x: net.relu(net.matmul(x, net.w)), w=new_parameter([16, 16], "w"), matmul=ops.MatMul(), ...)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parallel_lab import nn


def cell(construct: Callable[..., Any], **parts: Any) -> nn.Cell:
    """A Cell with these parameters, operators and layers, which computes `construct(net, *inputs)`."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    Net.construct = construct
    return Net()
