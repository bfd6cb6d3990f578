"""A small GPT (Radford et al. 2019): causal transformer blocks, layer norm before each part, learned positions.

    net = GPT(vocab_size=256, hidden=256, layers=4, heads=4, seq_length=64)
    loss = LanguageModelLoss()
    loss(net(ids), next_ids)

Every matrix product, norm and sum is an operator of its own with a name, so that `models.tensor_parallel(net, dp, mp)`
can split it as Megatron-LM does (Shoeybi et al. 2019, section 3): per block one all_reduce after the attention and one
after the MLP forward, and as many backward.
"""

from __future__ import annotations

from typing import Any

from ... import nn
from ...base.checks import COPIES, checked, flag, integer, kept, probability
from ...base.errors import ArgumentError, ShapeError
from ...ops.attention import scaled_dot_product_attention
from ...ops.elementwise import add
from ...ops.gather import gather
from ...ops.linalg import matmul
from ...ops.shape import reshape, shape as shape_of
from ...ops.slicing import strided_slice
from .. import initializer
from ..tensor.parameter import Parameter

INITIAL = 0.02  # standard deviation of initial weights (Radford et al. 2019)


def _dense(inputs: int, outputs: int, **options: Any) -> nn.Dense:
    return nn.Dense(inputs, outputs, weight_init=initializer.Normal(INITIAL), bias_init="zeros", **options)


class TokenNetwork(nn.Cell):
    """What networks of token sequences share: a table of tokens, one of positions; rule: of their initial values."""

    @kept(hidden=integer(1), heads=integer(1), seq_length=integer(1))
    def __init__(self, hidden: int, heads: int, seq_length: int, vocab_size: int, rule: Any) -> None:
        super().__init__()
        self.token_table = Parameter(initializer.initializer(rule, (vocab_size, hidden)))
        self.position_table = Parameter(initializer.initializer(rule, (seq_length, hidden)))
        self.embed, self.position, self.add = gather.primitive(), strided_slice.primitive(), add.primitive()

    def embedded(self, ids: Any) -> Any:
        """The rows of tokens and positions, added.  ids: (n, s) int, s at most seq_length -> (n, s, hidden)."""
        shape = shape_of(ids)
        if len(shape) != 2 or shape[1] > self.seq_length:
            allowed = f"(n, s) with s at most {self.seq_length} (seq_length)"
            raise ShapeError(f"ids of shape {shape}", where=type(self).__name__, allowed=allowed)
        positions = self.position_table
        if shape[1] < self.seq_length:
            positions = self.position(positions, (0, 0), (shape[1], self.hidden), (1, 1))
        return self.add(self.embed(self.token_table, ids, 0), positions)


class CausalSelfAttention(nn.Cell):
    """Each position looks at itself and those before it.  x: (n, s, hidden) -> (n, s, hidden).

    Split by heads, q, k and v are split by columns, the output projection by rows.
    """

    @checked(heads=integer(1))
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        if hidden % heads:
            what = f"hidden={hidden} with heads={heads}"
            raise ArgumentError(what, where="CausalSelfAttention", allowed="heads divides hidden")
        self.hidden, self.heads = hidden, heads
        self.query, self.key, self.value = _dense(hidden, hidden), _dense(hidden, hidden), _dense(hidden, hidden)
        self.split_heads, self.join_heads = reshape.primitive(), reshape.primitive()
        self.attention = scaled_dot_product_attention.primitive(is_causal=True, input_layout="BSND")
        self.out = _dense(hidden, hidden)

    def construct(self, x: Any) -> Any:
        n, s, _ = shape_of(x)
        shape = (n, s, self.heads, self.hidden // self.heads)
        q, k, v = (self.split_heads(p(x), shape) for p in (self.query, self.key, self.value))
        return self.out(self.join_heads(self.attention(q, k, v), (n, s, self.hidden)))


class MLP(nn.Cell):
    """Two dense layers with GELU between them.  x: (n, s, hidden) -> (n, s, hidden)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc1 = _dense(hidden, inner, activation="gelu")
        self.fc2 = _dense(inner, hidden)

    def construct(self, x: Any) -> Any:
        return self.fc2(self.fc1(x))


class GPTBlock(nn.Cell):
    """Attention and MLP, each added to what it was given.  x: (n, s, hidden) -> (n, s, hidden)."""

    def __init__(self, hidden: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm((hidden,), epsilon=1e-5), CausalSelfAttention(hidden, heads)
        self.norm2, self.mlp = nn.LayerNorm((hidden,), epsilon=1e-5), MLP(hidden, inner)
        self.add1, self.add2 = add.primitive(), add.primitive()
        self.dropout1 = nn.Dropout(p=dropout) if dropout else None
        self.dropout2 = nn.Dropout(p=dropout) if dropout else None

    def construct(self, x: Any) -> Any:
        y = self.attention(self.norm1(x))
        x = self.add1(x, y if self.dropout1 is None else self.dropout1(y))
        y = self.mlp(self.norm2(x))
        return self.add2(x, y if self.dropout2 is None else self.dropout2(y))


class GPT(TokenNetwork):
    """Scores for the next token at every position.  ids: (n, s) int, s at most seq_length -> (n * s, vocab_size).

    vocab_size, seq_length   tokens; longest sequence
    hidden, layers, heads    width, blocks, attention heads per block
    inner                    width inside the MLPs (default 4 * hidden)
    tied                     the scores use the token table itself, transposed (Press and Wolf 2017)
    dropout                  after attention and MLP, while training
    """

    @checked(hidden=integer(1), layers=integer(0, COPIES), dropout=probability, inner=integer(1) | None)
    @kept(vocab_size=integer(1), tied=flag)
    def __init__(
        self,
        vocab_size: int,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 4,
        seq_length: int = 32,
        inner: int | None = None,
        tied: bool = False,
        dropout: float = 0.0,
    ) -> None:
        rule, inner = initializer.Normal(INITIAL), 4 * hidden if inner is None else inner
        super().__init__(hidden, heads, seq_length, vocab_size, rule)
        self.blocks = nn.CellList([GPTBlock(hidden, heads, inner, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.rows = reshape.primitive()
        self.scores = matmul.primitive(transpose_b=True)
        self.head = None if tied else Parameter(initializer.initializer(rule, (vocab_size, hidden)))

    def construct(self, ids: Any) -> Any:
        x = self.embedded(ids)
        for block in self.blocks:
            x = block(x)
        x = self.rows(self.norm(x), (-1, self.hidden))
        return self.scores(x, self.token_table if self.tied else self.head)


class LanguageModelLoss(nn.Cell):
    """Mean cross-entropy over all positions.  scores: (n * s, vocab_size), next_ids: (n, s) int -> ()."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = reshape.primitive()
        self.cross_entropy = nn.CrossEntropyLoss()

    def construct(self, scores: Any, next_ids: Any) -> Any:
        return self.cross_entropy(scores, self.rows(next_ids, (-1,)))
