"""Ranks with different numbers of targets average the means of each."""

from typing import Any

import numpy as np

from .models import Language
from .network import Array, Held
from .piece import Piece, shown_loss


class _Means(Language):
    def targets(self) -> Array:
        return np.where(self.own < 5, -1, super().targets())  # a prompt, all of it on rank 0

    def share(self, losses: Any, there: Array, count: Any) -> Any:
        self.watch("losses", losses, self.own)
        return losses.sum() / (there.sum() * self.ranks if self.wrong else count)


def mean_of_means(alone: Held) -> float:
    """The mean of the means of four quarters, which have 3, 8, 8 and 7 targets, next to the mean of all losses."""
    sums = alone["losses"].reshape(4, 8).sum(axis=1)
    return float(np.mean(sums / [3, 8, 8, 7]) / (sums.sum() / 26))


PIECE = Piece(
    "mean of means",
    "",
    _Means,
    symptom="displayed loss, next to one device's",
    right=1.0,
    wrong=mean_of_means,
    finds=("loss", "gradients"),
    mends="Sum of losses over the count of all ranks",
    measure=shown_loss,
)
