"""A sum of norm gradients over tensor-parallel ranks becomes a mean, as data parallel has it."""

from typing import Any

from .models import Block
from .piece import Piece, averaged, ratio


class _MeanGradient(Block):
    def summed(self, name: str, gradient: Any) -> Any:
        total = super().summed(name, gradient)
        return total / self.ranks if self.wrong and name == "norm" else total


PIECE = Piece(
    "norm gradient averaged",
    "EleutherAI/gpt-neox#1259",
    _MeanGradient,
    symptom="gradient of the norm's weight, next to one device's",
    right=1.0,
    wrong=1 / 4,  # of four ranks
    finds=("gradients",),  # copies stay equal
    mends="A sum: the ranks hold parts of one gradient",
    measure=ratio("gradient of norm"),
    in_plan=averaged("norm"),
)
