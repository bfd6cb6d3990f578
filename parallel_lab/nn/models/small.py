"""Small networks, each one class.

LeNet5                 LeCun et al. 1998, as in tutorials: two convolutions with max pooling, three dense layers, ReLU
TransformerClassifier  Vaswani et al. 2017, an encoder that sorts sequences into classes: embeddings, encoder
                       layers, the mean over positions, scores
WideDeep               Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems": a linear model of sparse
                       features next to a deep one of embeddings. Its tables are what one device cannot hold;
                       `split_embeddings` (strategies.py) splits them by rows or by columns
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ... import nn
from ...base.checks import checked, choice, integer, integers
from ...base.errors import ArgumentError
from ...ops.elementwise import add, mul
from ...ops.gather import gather
from ...ops.reduce import reduce_mean, reduce_sum
from ...ops.shape import expand_dims, reshape, shape as shape_of
from ..initializer import initializer
from ..tensor.parameter import Parameter
from .gpt import TokenNetwork


class LeNet5(nn.Cell):
    """Pictures of digits to class scores.  x: (n, num_channel, size, size), size 16, 20, 24, ... -> (n, num_class)."""

    @checked(size=integer(16))
    def __init__(self, num_class: int = 10, num_channel: int = 1, size: int = 32) -> None:
        super().__init__()
        if size % 4:
            raise ArgumentError(f"size={size}", where="LeNet5", allowed="A multiple of 4, at least 16")
        side = ((size - 4) // 2 - 4) // 2  # two valid 5x5 convolutions, each followed by 2x2 pooling
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid", has_bias=True)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True)
        self.pool1, self.pool2, self.flatten = nn.MaxPool2d(2, 2), nn.MaxPool2d(2, 2), nn.Flatten()
        self.fc1, self.fc2, self.fc3 = nn.Dense(16 * side * side, 120), nn.Dense(120, 84), nn.Dense(84, num_class)
        self.relu1, self.relu2, self.relu3, self.relu4 = (nn.ReLU() for _ in range(4))

    def construct(self, x: Any) -> Any:
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        x = self.relu3(self.fc1(self.flatten(x)))
        return self.fc3(self.relu4(self.fc2(x)))


class TransformerClassifier(TokenNetwork):
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
        super().__init__(hidden, heads, seq_length, vocab_size, "normal")
        inner, form = 4 * hidden if inner is None else inner, {"batch_first": True, "norm_first": norm_first}
        layer = nn.TransformerEncoderLayer(hidden, heads, inner, dropout, "gelu", **form)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.mean = reduce_mean.primitive()
        self.head = nn.Dense(hidden, class_num)

    def construct(self, ids: Any) -> Any:
        return self.head(self.mean(self.encoder(self.embedded(ids)), 1))


class WideDeep(nn.Cell):
    """Click scores.  ids: (n, field_size) int, weights: (n, field_size) -> (n, 1), for nn.BCEWithLogitsLoss.

    vocab_size      rows of both tables: how many different features there are
    field_size      features per sample; `weights` is 1 for a category and the value of a continuous feature
    embedding_size  columns of the deep table
    layers          widths of the deep network's hidden layers
    target          "CPU": both tables lie on the host, and are looked up there; "DEVICE": on the device

    wide  sum over fields of table[id] * weight, plus a bias;   deep  embeddings * weights, joined, dense layers, ReLU
    """

    @checked(field_size=integer(1), target=choice("CPU", "DEVICE"))
    def __init__(
        self,
        vocab_size: int,
        field_size: int,
        embedding_size: int = 16,
        layers: Sequence[int] = (64, 32),
        target: str = "DEVICE",
    ) -> None:
        super().__init__()
        layers = integers(1)("WideDeep", "layers", layers) if layers != () else ()
        self.field_size, self.embedding_size = field_size, embedding_size
        self.wide_table = Parameter(initializer("normal", (vocab_size, 1)), name="wide_table")
        self.wide_bias = Parameter(initializer("zeros", (1,)), name="wide_bias")
        self.deep_table = Parameter(initializer("normal", (vocab_size, embedding_size)), name="deep_table")
        self.wide_gather, self.deep_gather = gather.primitive(), gather.primitive()
        for lookup in (self.wide_gather, self.deep_gather) if target == "CPU" else ():
            lookup.set_device("CPU")
        self.wide_mul, self.deep_mul = mul.primitive(), mul.primitive()
        self.wide_sum, self.wide_add = reduce_sum.primitive(), add.primitive()
        self.expand, self.reshape = expand_dims.primitive(), reshape.primitive()
        widths = (field_size * embedding_size, *layers)
        self.dense = nn.CellList([nn.Dense(a, b, activation="relu") for a, b in itertools.pairwise(widths)])
        self.out = nn.Dense(widths[-1], 1)
        self.add = add.primitive()

    def construct(self, ids: Any, weights: Any) -> Any:
        weights = self.expand(weights, -1)
        wide = self.wide_sum(self.wide_mul(self.wide_gather(self.wide_table, ids, 0), weights), 1)
        deep = self.deep_mul(self.deep_gather(self.deep_table, ids, 0), weights)
        deep = self.reshape(deep, (shape_of(ids)[0], self.field_size * self.embedding_size))
        for layer in self.dense:
            deep = layer(deep)
        return self.add(self.wide_add(wide, self.wide_bias), self.out(deep))
