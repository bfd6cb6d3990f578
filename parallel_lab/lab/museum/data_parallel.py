"""Bugs of data parallelism: ranks have rows of their own, and all weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import tanh
from ...ops.reduce import reduce_sum
from ...ops.unary import sqrt
from .network import Array, Held, Network
from .piece import Piece, Ranks, ratio

MICRO_BATCHES = 4


class Accumulated(Network):
    """Data parallel: each rank's rows come in four micro-batches."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.batches = np.split(self.drawn(16, 3)[self.mine(16)], MICRO_BATCHES)
        self.first, self.second = self.weight(3, 4), self.weight(4, 2)

    def construct(self) -> Any:
        total = 0
        for rows in self.batches:
            mean = ((tanh(Tensor(rows) @ self.first) @ self.second - 1) ** 2).sum() / len(rows)
            total = (mean if self.wrong else mean / MICRO_BATCHES) + total
        return total / self.ranks


ACCUMULATION = Piece(
    "accumulation without a divisor",
    "",
    Accumulated,
    about="Gradients of four micro-batches are added up, and the loss was not divided by four.",
    symptom="gradient, next to one large batch",
    right=1.0,
    wrong=float(MICRO_BATCHES),
    finds=("loss", "gradients"),
    mends="Divide by the number of micro-batches",
    measure=ratio("gradient of first"),
)


SCALE, LARGEST = 1024.0, float(np.finfo(np.float16).max)


class Scaled(Network):
    """Data parallel in mixed precision: a float16 cannot hold the gradients of rank 2 times 1024."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        rows, targets = self.drawn(16, 3), self.drawn(16, 2)
        targets[8:12] *= 1000
        self.rows, self.targets = (Tensor(rows[self.mine(16)]), Tensor(targets[self.mine(16)]))
        self.first, self.second = self.weight(3, 4), self.weight(4, 2)

    def construct(self) -> Any:
        self.watch("rows", self.rows, self.mine(16))
        made = self.watch("made", tanh(self.rows @ self.first), self.mine(16))
        second = self.watch("weights", self.second)
        return (self.watch("errors", made @ second - self.targets, self.mine(16)) ** 2).sum() / 16

    def summed(self, name: str, gradient: Any) -> Any:
        return gradient  # `ready` adds them up, scaled

    def ready(self, gradients: dict[str, Array]) -> dict[str, Array]:
        scale = scale_of(gradients)
        if not self.wrong:
            scale = float(self.all_reduce(scale, "min"))
        return {name: self.all_reduce(gradient * scale).array / scale for name, gradient in gradients.items()}


def scale_of(gradients: dict[str, Array]) -> float:
    """The largest scale at which a float16 holds them."""
    scale = SCALE
    while max(np.abs(gradient).max() for gradient in gradients.values()) * scale > LARGEST:
        scale /= 2
    return scale


def added_at_own_scales(alone: Held) -> float:
    """What four quarters of the batch add up to, each at its scale, on a rank that has not met an overflow."""
    total, whole = 0.0, alone["gradient of second"]
    for quarter in np.split(np.arange(16), 4):
        rows, made, of_errors = (alone[name][quarter] for name in ("rows", "made", "errors"))
        second = made.T @ of_errors / 8
        first = rows.T @ (of_errors / 8 @ alone["weights"].T * (1 - made * made))
        total = total + second * scale_of({"first": first, "second": second}) / SCALE
    return float((total * whole).sum() / (whole * whole).sum())


LOSS_SCALE = Piece(
    "loss scale of one rank",
    "",
    Scaled,
    about="One rank has met an overflow and halved its loss scale; the others have not.",
    symptom="gradient on rank 0, next to one device's",
    right=1.0,
    wrong=added_at_own_scales,
    finds=("gradients", "copies"),
    mends="The scale is agreed on: a minimum over all ranks",
    measure=lambda ranks, alone: ratio("gradient of second")(ranks[:1], alone),
)


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


BATCH_NORM = Piece(
    "BatchNorm per rank",
    "",
    Normalised,
    about="Batch norm takes mean and variance of a rank's own rows.",
    symptom="variance of a channel on rank 0, next to that of all rows",
    right=1.0,
    wrong=lambda alone: alone["y"][:4, 0].var() / alone["y"][:, 0].var(),
    finds=("loss", "gradients", "probe"),
    mends="Sum and count over all ranks (sync=True)",
    measure=_variance,
)
