"""A transformer encoder that sorts sequences into classes (Vaswani et al. 2017): embeddings, encoder layers, the mean over positions, scores."""

from __future__ import annotations

from typing import Any

from .. import nn, ops
from ..errors import ShapeError, message
from ..nn import initializer
from ..tensor import Parameter

__all__ = ["TransformerClassifier"]


class TransformerClassifier(nn.Cell):
    """Class scores of token sequences.  ids: (n, s) int, s at most seq_length -> (n, class_num).

    vocab_size, seq_length      tokens; longest sequence
    hidden, layers, heads       width, encoder layers, attention heads per layer
    inner                       width between a layer's dense layers (default 4 * hidden)
    norm_first, dropout         as in nn.TransformerEncoderLayer
    """

    def __init__(
        self,
        vocab_size: int,
        class_num: int,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 4,
        seq_length: int = 32,
        inner: int | None = None,
        norm_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden, self.heads, self.seq_length = hidden, heads, seq_length
        self.token_table = Parameter(initializer.initializer("normal", (vocab_size, hidden)), name="token_table")
        self.position_table = Parameter(initializer.initializer("normal", (seq_length, hidden)), name="position_table")
        self.embed, self.position, self.add = ops.Gather(), ops.StridedSlice(), ops.Add()
        inner = 4 * hidden if inner is None else inner
        layer = nn.TransformerEncoderLayer(hidden, heads, inner, dropout, "gelu", batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.mean = ops.ReduceMean()
        self.head = nn.Dense(hidden, class_num)

    def construct(self, ids: Any) -> Any:
        shape = ops.shape(ids)
        if len(shape) != 2 or shape[1] > self.seq_length:
            allowed = f"(n, s) with s at most {self.seq_length} (seq_length)"
            raise ShapeError(message(f"ids of shape {shape}", where="TransformerClassifier", allowed=allowed))
        positions = self.position_table
        if shape[1] < self.seq_length:
            positions = self.position(positions, (0, 0), (shape[1], self.hidden), (1, 1))
        x = self.encoder(self.add(self.embed(self.token_table, ids, 0), positions))
        return self.head(self.mean(x, 1))
