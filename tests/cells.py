"""Small networks for tests, without a class for each.

net = cell(lambda net, x: net.relu(net.matmul(x, net.w)), w=new_parameter([16, 16], "w"), matmul=ops.MatMul(), ...)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
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


def layered(
    widths: Sequence[int],
    activation: Callable[[Any], Any],
    strategies: Iterable[Any] = (),
    norm: nn.Cell | None = None,
    **options: Any,
) -> nn.Cell:
    """Dense layers `l.0`, ..., each with activation and strategy (if any); then `norm`. options: nn.Dense's"""

    def construct(net: nn.Cell, x: Any) -> Any:
        for layer in net.l:
            x = activation(layer(x))
        return x if norm is None else net.norm(x)

    layers = nn.CellList([nn.Dense(a, b, **options) for a, b in itertools.pairwise(widths)])
    for layer, strategy in zip(layers, strategies, strict=False):
        if strategy is not None:
            layer.matmul.shard(strategy)
    return cell(construct, l=layers, **({} if norm is None else {"norm": norm}))
