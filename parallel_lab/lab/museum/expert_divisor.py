"""Gradients of experts are averaged over the ranks that share them, not over all that have tokens."""

from typing import Any

from .models import Experts
from .piece import Piece, averaged, ratio


class Averaged(Experts):
    """As data parallel has it: the loss of a rank is the mean over its own tokens, and gradients are averaged."""

    def share(self, errors: Any) -> Any:
        return super().share(errors) * self.ranks

    def shown(self, share: Any) -> Any:
        return super().shown(share) / self.ranks

    def summed(self, name: str, gradient: Any) -> Any:
        share = 1 if self.wrong and name == "experts" else self.ranks  # one rank has an expert; all have tokens for it
        return super().summed(name, gradient) / share


PIECE = Piece(
    "experts over their own group",
    "databricks/megablocks#20, #86",
    Averaged,
    symptom="gradient of an expert, next to one device's",
    right=1.0,
    wrong=4.0,  # not divided by four
    finds=("gradients",),
    mends="Divide by dp * cp, as for every other parameter",
    measure=ratio("gradient of experts"),
    in_plan=averaged(""),
)
