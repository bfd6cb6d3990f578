"""A pending sum is read as a number: what comes is the addend of one rank.

PyTorch's maintainers call it intended: the local part is what was asked for.
"""

from typing import Any

from .models import Block
from .piece import Piece, shown_loss


class _Addend(Block):
    def shown(self, share: Any) -> Any:
        return share if self.wrong else super().shown(share)


PIECE = Piece(
    "addend read as the sum",
    "pytorch/pytorch#144054",
    _Addend,
    symptom="loss that is shown, next to one device's, mean over ranks",
    right=1.0,
    wrong=1 / 4,  # addends of four ranks
    finds=("loss",),
    mends="Reduce first (full_tensor)",
    measure=shown_loss,
)
