"""The bias that balances experts follows a rank's own counts, which are stale for the others."""

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import softmax, tanh
from .network import Array, Held, Network
from .piece import Piece, Ranks

STEP = 0.001


class Biased(Network):
    """Two experts on every rank. All tokens together choose each alike often; those of a rank choose one."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        tokens = self.drawn(16, 3)
        tokens[:, 0] = np.repeat([3, -3, 3, -3], 4)
        self.tokens, self.bias = Tensor(tokens[self.mine(16)]), np.zeros(2)
        self.router, self.experts = self.weight(3, 2), self.weight(2, 3, 3)

    def construct(self) -> Any:
        x = self.tokens
        scores = softmax(x @ (self.router * 0.1 + Tensor(np.array([[1.0, -1], [0, 0], [0, 0]]))), -1)
        chosen = np.eye(2)[(scores.array + self.bias).argmax(axis=1)]
        self.counts = chosen.sum(axis=0)
        weights = scores * Tensor(chosen)
        y = sum(tanh(x @ self.experts[e]) * weights[:, e : e + 1] for e in range(2))
        return ((y - 1) ** 2).sum() / 16

    def ready(self, gradients: dict[str, Array]) -> dict[str, Array]:
        counts = self.counts if self.wrong else self.all_reduce(self.counts).array
        self.bias = self.bias - STEP * np.sign(counts - counts.mean())
        self.watch("bias", self.bias)
        return gradients


def _spread(ranks: Ranks, alone: Held) -> float:
    return float(np.ptp([held["bias"][0] for held in ranks]))


PIECE = Piece(
    "router bias of one rank",
    "",
    Biased,
    symptom="spread of the bias of expert 0 over the ranks",
    right=0.0,
    wrong=2 * STEP,  # a step up, a step down
    finds=("probe",),
    mends="Counts over tp, cp and dp",
    measure=_spread,
)
