"""Backward of a ring normalises each block of weights by its own log-sum-exp."""

from typing import Any

import numpy as np

from ...nn.tensor.own_gradient import OwnGradient
from ...nn.tensor.tensor import Tensor
from .network import Network
from .piece import Piece, kept


class Ring(Network):
    """Attention to all ranks' keys in blocks of four; as in flash attention, backward makes the weights again."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.tokens = Tensor(self.drawn(16, 3)[self.mine(16)])
        self.q, self.k, self.v = self.weight(3, 3), self.weight(3, 3), self.weight(3, 3)

    def construct(self) -> Any:
        x = self.tokens
        y = x + self.attention(x @ self.q, self.all_gather(x @ self.k), self.all_gather(x @ self.v))
        return (y * y).sum() / 16

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        exponentials = np.exp(q.array @ k.array.T)
        self.log_sum = np.log(exponentials.sum(axis=1, keepdims=True))  # over all blocks
        out = Tensor(exponentials / np.exp(self.log_sum) @ v.array)
        return OwnGradient("attention", self.backward)((out,), (q, k, v), several=False)

    def backward(self, values: Any, gradients: Any) -> list[Any]:
        out, q, k, v, g = (x.array for x in (*values, *gradients))
        dq, dk, dv, total = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), 0.0
        for block in np.split(np.arange(len(k)), len(k) // 4):
            scores = q @ k[block].T
            own = np.log(np.exp(scores).sum(axis=1, keepdims=True))
            weights = np.exp(scores - (own if self.wrong else self.log_sum))
            of_scores = weights * (g @ v[block].T - (g * out).sum(axis=1, keepdims=True))
            dq, dk[block], dv[block] = (dq + of_scores @ k[block], of_scores.T @ q, weights.T @ g)
            total += weights[0].sum()
        self.watch("sum of weights", total)
        return [Tensor(x) for x in (dq, dk, dv)]


PIECE = Piece(
    "log-sum-exp of the block",
    "NVIDIA/Megatron-LM#1464, #1465",
    Ring,
    symptom="sum of the weights of one token in the backward",
    right=1.0,
    wrong=4.0,  # 1 in each block
    finds=("gradients", "probe"),
    mends="The final log-sum-exp, which forward keeps",
    measure=kept("sum of weights"),
)
