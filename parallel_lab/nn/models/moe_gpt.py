"""A GPT whose MLPs are layers of experts (Fedus et al. 2021; Jiang et al. 2024: Mixtral has them in every block).

net = MoEGPT(vocab_size=64, hidden=16, experts=8, k=2, moe={"balance_factor": 0.01, "expert_parallel": 4})
loss = MoELanguageModelLoss()
loss(net(ids), next_ids)                      # the network returns its scores and the balance losses' sum
models.expert_parallel(net, dp=4, ep=4)       # tokens split 4 ways, 2 experts on each rank
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import nn
from ...base.checks import COPIES, checked, integer, kept
from ...ops.elementwise import add
from ...ops.linalg import matmul
from ...ops.shape import reshape
from .. import initializer
from ..tensor.parameter import Parameter
from .gpt import INITIAL, CausalSelfAttention, LanguageModelLoss, TokenNetwork


class MoEBlock(nn.Cell):
    """Attention and experts, each added to what it was given.  x: (n, s, hidden) -> the same, and the experts' loss."""

    def __init__(self, hidden: int, heads: int, moe: Mapping[str, Any]) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm((hidden,), epsilon=1e-5), CausalSelfAttention(hidden, heads)
        self.norm2, self.moe = nn.LayerNorm((hidden,), epsilon=1e-5), nn.MoE(hidden, **moe)
        self.add1, self.add2 = add.primitive(), add.primitive()

    def construct(self, x: Any) -> tuple[Any, Any]:
        x = self.add1(x, self.attention(self.norm1(x)))
        y, loss = self.moe(self.norm2(x))
        return self.add2(x, y), loss


class MoEGPT(TokenNetwork):
    """Scores for the next token, and the losses of all layers of experts, added.

    ids: (n, s) int -> (n * s, vocab_size), ().  inner: width inside an expert (default 2 * hidden); moe: further
    arguments of `nn.MoE`; the others as those of `GPT` and `nn.MoE`.
    """

    @checked(hidden=integer(1), layers=integer(1, COPIES), inner=integer(1) | None)
    @kept(vocab_size=integer(1))
    def __init__(
        self,
        vocab_size: int,
        hidden: int = 16,
        layers: int = 2,
        heads: int = 2,
        seq_length: int = 16,
        experts: int = 4,
        k: int = 2,
        inner: int | None = None,
        moe: Mapping[str, Any] | None = None,
    ) -> None:
        rule = initializer.Normal(INITIAL)
        super().__init__(hidden, heads, seq_length, vocab_size, rule)
        own = {"inner": inner or 2 * hidden, "experts": experts, "k": k, "weight_init": rule, **(moe or {})}
        self.blocks = nn.CellList([MoEBlock(hidden, heads, own) for _ in range(layers)])
        self.norm = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.rows, self.scores, self.add_loss = reshape.primitive(), matmul.primitive(transpose_b=True), add.primitive()
        self.head = Parameter(initializer.initializer(rule, (vocab_size, hidden)))

    def construct(self, ids: Any) -> tuple[Any, Any]:
        x, total = self.embedded(ids), None
        for block in self.blocks:
            x, loss = block(x)
            total = loss if total is None else self.add_loss(total, loss)
        return self.scores(self.rows(self.norm(x), (-1, self.hidden)), self.head), total


class MoELanguageModelLoss(LanguageModelLoss):
    """Mean cross-entropy over all positions, plus the experts' losses.  (scores, losses), next_ids: (n, s) -> ()."""

    def __init__(self) -> None:
        super().__init__()
        self.add = add.primitive()

    def construct(self, scores: Any, next_ids: Any) -> Any:
        scores, losses = scores
        return self.add(super().construct(scores, next_ids), losses)
