"""Three networks of the museum, right as they stand; a piece takes one and does one thing wrong.

Block     norm, two layers split over ranks, residual: tensor parallelism with sequence parallelism
Language  tokens, rotary attention to the keys of all ranks, cross-entropy: context parallelism
Experts   a router, tokens to experts on other ranks and back: expert parallelism
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import softmax, tanh
from ...ops.class_losses import softmax_cross_entropy
from ...ops.reduce import reduce_mean, reduce_sum
from ...ops.unary import sqrt
from .network import Array, Network


class Block(Network):
    """A rank normalises its own tokens, computes a quarter of the columns for all, and gets its rows of the sum."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.tokens = Tensor(self.drawn(16, 4)[self.mine(16)])
        self.norm = self.weight(4)
        self.up = self.weight(4, 8, part=np.s_[:, self.mine(8)])
        self.down = self.weight(8, 4, part=np.s_[self.mine(8)])

    def construct(self) -> Any:
        scale = 1 / sqrt(reduce_mean(self.tokens * self.tokens, axis=1, keepdims=True))
        normed = self.all_gather(self.tokens * scale * self.norm)
        y = self.tokens + self.row(self.hidden(normed))
        return (y * y).sum() / 16

    def hidden(self, normed: Any) -> Any:
        """This rank's columns of the hidden values, for all tokens."""
        return tanh(normed @ self.up)

    def row(self, hidden: Any) -> Any:
        """This rank's rows of the second product, whose addends lie on all ranks."""
        return self.reduce_scatter(hidden @ self.down)


class Language(Network):
    """Each rank has a slice of one text, and predicts the next of 8 characters from those before."""

    length = 32

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.text = self.numbers.integers(0, 8, self.length)
        self.table, self.head = self.weight(8, 2), self.weight(2, 8)
        self.q, self.k, self.v = self.weight(2, 2), self.weight(2, 2), self.weight(2, 2)
        parts = len(self.sharing())
        self.own = self.placed(self.sharing().index(self.rank), parts)  # places of this rank's tokens in the text
        self.all = np.concatenate([self.placed(at, parts) for at in range(parts)])  # and of all ranks'

    def construct(self) -> Any:
        x = Tensor(np.eye(8)[self.characters(self.own)]) @ self.table
        q, k = (self.turned(x @ w, self.positions()) for w in (self.q, self.k))
        keys, values = self.all_gather(k), self.all_gather(x @ self.v)
        hidden = Tensor(np.where(self.sees(), 0, -1e9))
        x = x + self.attention(softmax(q @ keys.transpose(1, 0) + hidden, -1)) @ values
        targets = self.targets()
        losses = softmax_cross_entropy(self.finished(x) @ self.head, Tensor(np.eye(8)[targets]))[0]
        there = (targets >= 0).astype(float)
        return self.share(losses * Tensor(there), there, self.all_reduce(there.sum()))

    def placed(self, at: int, parts: int) -> Array:
        """The places of the tokens of one of so many parts."""
        return np.split(np.arange(self.length), parts)[at]

    def characters(self, places: Array) -> Array:
        return self.text[np.minimum(places, self.length - 1)]

    def positions(self) -> Array:
        """By which this rank's queries and keys are turned."""
        return self.own

    def turned(self, x: Any, positions: Array) -> Any:
        """Rotary positions: (n, 2), each row turned by as many radians."""
        angle = positions[:, None].astype(float)
        return x * Tensor(np.cos(angle)) + (x @ Tensor(np.array([[0, 1.0], [-1, 0]]))) * Tensor(np.sin(angle))

    def sees(self) -> Array:
        """Which keys of all ranks each query sees."""
        return self.all <= self.own[:, None]

    def attention(self, weights: Any) -> Any:
        """The weights of all keys, for this rank's queries."""
        return weights

    def targets(self) -> Array:
        """What comes after each token; -1: nothing."""
        return np.where(self.own < self.length - 1, self.characters(self.own + 1), -1)

    def finished(self, x: Any) -> Any:
        """What the head gets."""
        return x

    def share(self, losses: Any, there: Array, count: Any) -> Any:
        """This rank's share of the mean loss. there: 1 where there is a target, count: of them on all ranks."""
        return losses.sum() / count


class Experts(Network):
    """Each token goes to one of four experts, which lie on the ranks, and comes back times its router's weight."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.tokens = Tensor(self.drawn(16, 3)[self.mine(16)])
        self.router = self.weight(3, 4)
        self.experts = self.weight(4, 3, 3, part=np.s_[self.mine(4)])

    def construct(self) -> Any:
        x, n = self.tokens, self.tokens.shape[0]
        chosen = np.tile([1, 0, 3, 2], n // 4)
        order = np.argsort(chosen, kind="stable")
        rows = self.all_to_all(x[order].reshape(4, n // 4, 3), 0, 1)
        rows = self.all_to_all(tanh(rows @ self.experts), 1, 0)
        back = self.restored(rows.reshape(n, 3), order)
        y = self.watch("y", back * self.gate(self.logits(x), np.eye(4)[chosen]), self.mine(16))
        return self.share((x + y - 1) ** 2)

    def logits(self, x: Any) -> Any:
        """What the router says of each token."""
        return x @ self.router

    def gate(self, logits: Any, chosen: Array) -> Any:
        """The weight of each token's expert.  logits, chosen (one-hot): (n, 4) -> (n, 1)."""
        return reduce_sum(softmax(logits, -1) * Tensor(chosen), axis=1, keepdims=True)

    def restored(self, rows: Any, order: Array) -> Any:
        """Rows that were sorted by expert, in the order of the tokens."""
        return rows[np.argsort(order)]

    def share(self, errors: Any) -> Any:
        """This rank's share of the mean over all tokens."""
        return errors.sum() / 16
