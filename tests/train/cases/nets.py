"""Networks of the cases. float64, so that a difference from one device is a defect and not rounding."""

from __future__ import annotations

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor

DATA = {"parallel_mode": "data_parallel", "gradients_mean": True}


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def batch(rows: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """x: (rows, 12), y: (rows, 16), the same on every rank."""
    return numbers(5, rows, 12), numbers(6, rows, 16)


class Net(nn.Cell):
    """(n, 12) -> (n, 16): two products with a bias and tanh between. split: strategies of the two products, or None."""

    def __init__(self, cut=(None, None), dtype=np.float64, bias="bias"):
        super().__init__()
        self.w = Parameter(numbers(3, 12, 8).astype(dtype), name="w")
        self.b = Parameter(numbers(4, 8).astype(dtype), name=bias)
        self.v = Parameter(numbers(7, 8, 16).astype(dtype), name="v")
        self.fc1, self.add, self.act, self.fc2 = ops.MatMul(), ops.Add(), ops.Tanh(), ops.MatMul()
        for primitive, strategy in zip((self.fc1, self.fc2), cut, strict=True):
            if strategy is not None:
                primitive.shard(strategy)

    def construct(self, x):
        return self.fc2(self.act(self.add(self.fc1(x, self.w), self.b)), self.v)


class SquareLoss(nn.Cell):
    """Mean over everything, so that the mean of equal parts' losses is the whole's."""

    def construct(self, out, label):
        return ops.reduce_mean(ops.square(out - label))


def cuts(size: int) -> tuple:
    """Strategies for `size` ranks in which the contraction of the first product and columns of the second are split."""
    half = size // 2
    return ((half, 2), (2, 1)), ((1, 2), (2, half))


def constant(array) -> Tensor:
    return Tensor(np.asarray(array))
