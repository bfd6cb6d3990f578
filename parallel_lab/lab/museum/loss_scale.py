"""One rank has met an overflow and halved its loss scale; the others have not."""

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import tanh
from .network import Array, Held, Network
from .piece import Piece, ratio

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


PIECE = Piece(
    "loss scale of one rank",
    "",
    Scaled,
    symptom="gradient on rank 0, next to one device's",
    right=1.0,
    wrong=added_at_own_scales,
    finds=("gradients", "copies"),
    mends="The scale is agreed on: a minimum over all ranks",
    measure=lambda ranks, alone: ratio("gradient of second")(ranks[:1], alone),
)
