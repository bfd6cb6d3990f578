"""Lengths of documents are rounded down to multiples of the ranks."""

import numpy as np

from .models import Language
from .network import Array
from .piece import Piece, kept


class _Rounded(Language):
    length = 10

    def placed(self, at: int, parts: int) -> Array:
        share = self.length // parts if self.wrong else -(-self.length // parts)  # rounded up: 12 places, two empty
        return np.arange(at * share, (at + 1) * share)

    def targets(self) -> Array:
        self.watch("tokens", self.all_reduce((self.own < self.length).sum()))
        return super().targets()


PIECE = Piece(
    "last tokens ignored",
    "NVIDIA/TransformerEngine#1930",
    _Rounded,
    symptom="tokens of a document of 10 that take part",
    right=10,
    wrong=8,  # 4 ranks have 2 each
    finds=("loss", "gradients", "probe"),
    mends="Pad every document, and mask by its real length",
    measure=kept("tokens"),
)
