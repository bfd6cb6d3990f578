"""A rank whose targets are all masked divides by their number."""

from typing import Any

import numpy as np

from .models import Language
from .network import Array, Held
from .piece import Piece, Ranks


class _Masked(Language):
    def targets(self) -> Array:
        return np.where(self.own < 24, super().targets(), -1)  # padding, all of it on rank 3

    def share(self, losses: Any, there: Array, count: Any) -> Any:
        return losses.sum() / (there.sum() * self.ranks if self.wrong else count)


def _ranks_with_nan(ranks: Ranks, alone: Held) -> float:
    return float(sum(np.isnan(held["loss"]) for held in ranks))


PIECE = Piece(
    "mean of no targets",
    "NVIDIA-NeMo/Speech#14488",
    _Masked,
    symptom="ranks whose loss is nan",
    right=0,
    wrong=4,  # the sum has one addend that is nan
    finds=("loss", "gradients"),
    mends="Sum of losses over the count of all ranks",
    measure=_ranks_with_nan,
)
