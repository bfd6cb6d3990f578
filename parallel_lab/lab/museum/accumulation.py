"""Gradients of four micro-batches are added up, and the loss was not divided by four."""

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import tanh
from .network import Network
from .piece import Piece, ratio

MICRO_BATCHES = 4


class Accumulated(Network):
    """Data parallel: each rank's rows come in four micro-batches."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.batches = np.split(self.drawn(16, 3)[self.mine(16)], MICRO_BATCHES)
        self.first, self.second = self.weight(3, 4), self.weight(4, 2)

    def construct(self) -> Any:
        total = 0
        for rows in self.batches:
            mean = ((tanh(Tensor(rows) @ self.first) @ self.second - 1) ** 2).sum() / len(rows)
            total = (mean if self.wrong else mean / MICRO_BATCHES) + total
        return total / self.ranks


PIECE = Piece(
    "accumulation without a divisor",
    "",
    Accumulated,
    symptom="gradient, next to one large batch",
    right=1.0,
    wrong=float(MICRO_BATCHES),
    finds=("loss", "gradients"),
    mends="Divide by the number of micro-batches",
    measure=ratio("gradient of first"),
)
