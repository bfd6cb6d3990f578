"""The balance loss multiplies shares that each rank has counted for itself."""

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import softmax
from ...ops.reduce import reduce_mean
from .network import Network
from .piece import Piece, kept


class Balanced(Network):
    """A router whose tokens are balanced over all ranks, and alike on each: those of rank r choose expert r."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.tokens = Tensor(np.repeat(np.eye(4), 4, axis=0)[self.mine(16)])
        self.router, self.experts = self.weight(4, 4), self.weight(4, 3)

    def construct(self) -> Any:
        scores = softmax(self.tokens @ (self.router * 0.1 + Tensor(3 * np.eye(4))), -1)
        counts = np.bincount(scores.array.argmax(axis=1), minlength=4)
        counts = counts if self.wrong else self.all_reduce(counts).array
        shares = Tensor(counts / counts.sum())
        balance = 4 * (shares * reduce_mean(scores, axis=0)).sum() / self.ranks
        self.watch("scores", scores, self.mine(16))
        self.watch("balance loss", self.all_reduce(balance))
        return ((scores @ self.experts - 1) ** 2).sum() / 16 + balance


PIECE = Piece(
    "balance loss per rank",
    "pytorch/torchtitan#2061",
    Balanced,
    symptom="balance loss of a router that is balanced",
    right=1.0,
    wrong=lambda alone: 4 * alone["scores"].max(axis=1).mean(),  # each rank's share of its one expert is 1
    finds=("loss", "gradients", "probe"),
    mends="Counts of all ranks; a rank's own scores will do",
    measure=kept("balance loss"),
)
