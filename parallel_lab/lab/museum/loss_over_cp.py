"""The loss is multiplied by the ranks of the sequence, and gradients are summed over them, not averaged."""

from typing import Any

from .models import Language
from .piece import Piece, ratio


class _Multiplied(Language):
    def share(self, *losses: Any) -> Any:
        return super().share(*losses) * self.ranks  # an average of gradients divides it again

    def shown(self, share: Any) -> Any:
        return super().shown(share) / self.ranks

    def summed(self, name: str, gradient: Any) -> Any:
        total = super().summed(name, gradient)
        return total if self.wrong else total / self.ranks


PIECE = Piece(
    "multiplied, not divided",
    "NVIDIA/Megatron-LM#906",
    _Multiplied,
    symptom="gradient, next to one device's",
    right=1.0,
    wrong=4.0,  # ranks of the sequence
    finds=("gradients",),
    mends="One convention of who divides",
    measure=ratio("gradient of head"),
)
