"""What comes back from the experts is sorted by expert, and is taken as it comes."""

from typing import Any

from .models import Experts
from .network import Array
from .piece import Piece, wrong_rows


class _AsItComes(Experts):
    def restored(self, rows: Any, order: Array) -> Any:
        return rows if self.wrong else super().restored(rows, order)


PIECE = Piece(
    "order not restored",
    "",
    _AsItComes,
    symptom="tokens of 16 that get what belongs to another",
    right=0,
    wrong=16,  # no expert's number is its token's place
    finds=("loss", "gradients", "probe"),
    mends="Apply the inverse of the order",
    measure=wrong_rows("y"),
)
