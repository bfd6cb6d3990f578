"""Plans for the cost tests."""

from __future__ import annotations

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.graph.compiler import compile_network
from parallel_lab.graph.plan import Plan
from parallel_lab.nn.tensor.parameter import Parameter

F32 = 4  # bytes


class SeedNet(nn.Cell):
    """x (16, 32) -> MatMul w (32, 16) -> ReLU -> MatMul w2 (16, 16); both products' contracted dim split 4 ways."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(np.full((32, 16), 0.01, np.float32), name="w")
        self.weight2 = Parameter(np.full((16, 16), 0.02, np.float32), name="w2")
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU().shard(((2, 4),))
        self.matmul2 = ops.MatMul().shard(((2, 4), (4, 1)))

    def construct(self, x):
        return self.matmul2(self.relu(self.matmul(x, self.weight)), self.weight2)


OPTIMIZERS = {
    "none": lambda params: None,
    "momentum": lambda params: nn.Momentum(params, 0.2, 0.1),
    "adam_weight_decay": lambda params: nn.AdamWeightDecay(params),
}


def seed_inputs() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((16, 32), np.float32), np.zeros((16, 16), np.float32)


def seed_plan(optimizer: str = "momentum", device_num: int = 8) -> Plan:
    net = SeedNet()
    options = {"device_num": device_num, "dataset_strategy": "full_batch"}
    return compile_network(
        net, *seed_inputs(), loss=nn.MSELoss(), optimizer=OPTIMIZERS[optimizer](net.trainable_params()), **options
    )


def product_plan(strategy: tuple, shapes: tuple = ((16, 32), (32, 24)), device_num: int = 8) -> Plan:
    """One matrix product and nothing else: x of shapes[0], fed in full, times w of shapes[1]."""
    w = Parameter(np.ones(shapes[1], np.float32), name="w")
    matmul = ops.MatMul().shard(strategy)

    def product(x):
        return matmul(x, w)

    return compile_network(
        product, np.ones(shapes[0], np.float32), device_num=device_num, dataset_strategy="full_batch"
    )


def only(plan: Plan, kind: str):
    """The one instruction of this kind."""
    (found,) = [i for _, i in plan.instructions() if i.kind == kind]
    return found
