"""Settings, networks and steps of the cases. float64, so that a difference from one device is a defect."""

from __future__ import annotations

import numpy as np

from parallel_lab import nn, ops, value_and_grad
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train.checkpoint.values import optimizer_records

DATA = {"parallel_mode": "data_parallel", "gradients_mean": True}
ROWS = {"parallel_mode": "semi_auto_parallel"}  # each rank feeds its rows
SEMI = {**ROWS, "dataset_strategy": "full_batch"}
AUTO = {**SEMI, "parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"}
SHARDED = {"enable_parallel_optimizer": True, "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}}


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


def none_cut(size: int) -> tuple:
    return None, None


def first_cut(size: int) -> tuple:
    return cuts(size)[0], None


def tensors(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    return tuple(Tensor(a) for a in arrays)


def made_step(net, optimizer, *, loss_fn=None, change=lambda grads: grads):
    """A training step (x, y) -> (loss, logits) as tutorials write it. change: what is done to the gradients first."""
    loss_fn = loss_fn or SquareLoss()

    def forward(x, y):
        logits = net(x)
        return loss_fn(logits, y), logits

    grad_fn = value_and_grad(forward, None, optimizer.parameters, has_aux=True)

    def step(x, y):
        (loss, logits), grads = grad_fn(x, y)
        optimizer(change(grads))
        return loss, logits

    return step


def states(optimizer) -> dict[str, np.ndarray]:
    """The optimizer's states, whole: a collective where they are split, or held by one rank."""
    records = optimizer_records(optimizer, integrated=True)
    return {f"state {name}": record.array for name, record in records.items() if record.array.ndim}


def held(net, optimizer) -> tuple[dict, dict]:
    """What this rank holds: shapes of Parameters and of states."""
    kept = {name: sorted(array.shape for array in kinds.values()) for name, kinds in optimizer.states.items()}
    return {p.name: p.asnumpy().shape for p in net.get_parameters()}, kept
