"""Fewer key heads than ranks: each is repeated, and its gradient is that of one copy."""

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import softmax
from .network import Network
from .piece import Piece, ratio


class Heads(Network):
    """Four heads on four ranks, which read two heads of keys: rank r has a copy of number r // 2."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.tokens, own = Tensor(self.drawn(16, 3)), self.mine(4)
        self.q = self.weight(4, 3, 2, part=np.s_[own])
        self.k = self.weight(2, 3, 2, part=np.s_[own.start // 2 : (own.stop + 1) // 2])
        self.out = self.weight(4, 3, 3, part=np.s_[own])

    def construct(self) -> Any:
        x, addend = self.tokens, 0
        for head in range(self.q.shape[0]):
            scores = (x @ self.q[head]) @ (x @ self.k[head // 2]).transpose(1, 0)
            addend = softmax(scores, -1) @ x @ self.out[head] + addend
        y = self.all_reduce(addend)
        return (y * y).sum() / 16 / self.ranks  # every rank has it whole

    def summed(self, name: str, gradient: Any) -> Any:
        first = self.rank // 2 * 2
        if name == "k" and self.ranks > 1 and not self.wrong:
            return self.all_reduce(gradient, group=(first, first + 1))
        return super().summed(name, gradient)


PIECE = Piece(
    "repeated heads",
    "hiyouga/LlamaFactory#10794",
    Heads,
    symptom="gradient of a key head, next to one device's",
    right=1.0,
    wrong=1 / 2,  # addends of two copies
    finds=("gradients", "copies"),
    mends="Repeat forward, sum backward",
    measure=ratio("gradient of k"),
)
