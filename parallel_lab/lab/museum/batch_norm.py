"""Batch norm takes mean and variance of a rank's own rows."""

from typing import Any

from ...nn.tensor.tensor import Tensor
from ...ops.activation import tanh
from ...ops.reduce import reduce_sum
from ...ops.unary import sqrt
from .network import Held, Network
from .piece import Piece, Ranks


class Normalised(Network):
    """Data parallel: a layer, batch norm, a layer."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.rows = Tensor(self.drawn(16, 3)[self.mine(16)])
        self.first, self.scale, self.second = (self.weight(3, 4), self.weight(4), self.weight(4, 2))

    def construct(self) -> Any:
        y = self.watch("y", self.rows @ self.first, self.mine(16))
        count = len(y.array) if self.wrong else 16
        mean = self.over_ranks(reduce_sum(y, axis=0)) / count
        variance = self.watch("variance", self.over_ranks(reduce_sum((y - mean) ** 2, axis=0)) / count)
        return ((tanh((y - mean) / sqrt(variance) * self.scale) @ self.second - 1) ** 2).sum() / 16

    def over_ranks(self, value: Any) -> Any:
        return value if self.wrong else self.all_reduce(value)


def _variance(ranks: Ranks, alone: Held) -> float:
    return float(ranks[0]["variance"][0] / alone["variance"][0])


PIECE = Piece(
    "BatchNorm per rank",
    "",
    Normalised,
    symptom="variance of a channel on rank 0, next to that of all rows",
    right=1.0,
    wrong=lambda alone: alone["y"][:4, 0].var() / alone["y"][:, 0].var(),
    finds=("loss", "gradients", "probe"),
    mends="Sum and count over all ranks (sync=True)",
    measure=_variance,
)
