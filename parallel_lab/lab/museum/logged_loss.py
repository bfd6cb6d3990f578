"""A loss that is a sum over sequence ranks is averaged for the log: TP 2, CP 2."""

from typing import Any

from .models import Language
from .piece import Piece, shown_loss


class _Displayed(Language):
    def sharing(self) -> tuple[int, ...]:
        first = self.rank % 2  # the two halves of the text; the other two ranks are copies
        return (first, first + 2) if self.ranks > 1 else (0,)

    def shown(self, share: Any) -> Any:
        total = super().shown(share)
        return total / len(self.sharing()) if self.wrong else total


PIECE = Piece(
    "logged loss halved",
    "pytorch/torchtitan#3280",
    _Displayed,
    symptom="displayed loss, next to one device's",
    right=1.0,
    wrong=1 / 2,  # the mean of two shares
    finds=("loss",),
    mends="Add up over the sequence's ranks, once",
    measure=shown_loss,
)
