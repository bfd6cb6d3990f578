"""Wide & Deep (Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems"): a linear model of sparse features beside a deep one of embeddings.

Its tables are what one device cannot hold; `split_embeddings` (strategies.py) cuts them by rows or by columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .. import nn, ops
from ..nn.checks import int_tuple, whole_number
from ..nn.initializer import initializer
from ..tensor import Parameter

__all__ = ["WideDeep"]


class WideDeep(nn.Cell):
    """Click scores.  ids: (n, field_size) int, weights: (n, field_size) -> (n, 1), before the sigmoid (loss: nn.BCEWithLogitsLoss).

    vocab_size      rows of both tables: how many different features there are
    field_size      features per sample; `weights` is 1 for a category and the value of a continuous feature
    embedding_size  columns of the deep table
    layers          widths of the deep network's hidden layers

    wide  sum over fields of table[id] * weight, plus a bias;   deep  embeddings * weights, joined, through dense layers with ReLU
    """

    def __init__(self, vocab_size: int, field_size: int, embedding_size: int = 16, layers: Sequence[int] = (64, 32)) -> None:
        super().__init__()
        whole_number(field_size, "WideDeep", "field_size", least=1)
        layers = int_tuple(layers, "WideDeep", "layers") if layers != () else ()
        self.field_size, self.embedding_size = field_size, embedding_size
        self.wide_table = Parameter(initializer("normal", (vocab_size, 1)), name="wide_table")
        self.wide_bias = Parameter(initializer("zeros", (1,)), name="wide_bias")
        self.deep_table = Parameter(initializer("normal", (vocab_size, embedding_size)), name="deep_table")
        self.wide_gather, self.deep_gather = ops.Gather(), ops.Gather()
        self.wide_mul, self.deep_mul = ops.Mul(), ops.Mul()
        self.wide_sum, self.wide_add = ops.ReduceSum(), ops.Add()
        self.expand, self.reshape = ops.ExpandDims(), ops.Reshape()
        widths = (field_size * embedding_size, *layers)
        self.dense = nn.CellList([nn.Dense(a, b, activation="relu") for a, b in itertools.pairwise(widths)])
        self.out = nn.Dense(widths[-1], 1)
        self.add = ops.Add()

    def construct(self, ids: Any, weights: Any) -> Any:
        weights = self.expand(weights, -1)
        wide = self.wide_sum(self.wide_mul(self.wide_gather(self.wide_table, ids, 0), weights), 1)
        deep = self.deep_mul(self.deep_gather(self.deep_table, ids, 0), weights)
        deep = self.reshape(deep, (ops.shape(ids)[0], self.field_size * self.embedding_size))
        for layer in self.dense:
            deep = layer(deep)
        return self.add(self.wide_add(wide, self.wide_bias), self.out(deep))
