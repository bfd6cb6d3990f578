"""The output of zigzag placement is gathered and not put in order."""

from typing import Any

import numpy as np

from .models import Language
from .network import Array
from .piece import Piece, wrong_rows


class _Zigzag(Language):
    def placed(self, at: int, parts: int) -> Array:
        chunks = np.split(np.arange(self.length), 2 * parts)
        return np.append(chunks[at], chunks[2 * parts - 1 - at])

    def finished(self, x: Any) -> Any:
        output = self.all_gather(x)
        return self.watch("output", output if self.wrong else output[np.argsort(self.all)])

    def targets(self) -> Array:
        return np.append(self.text[1:], -1)  # of the whole text: each rank has all of the output


PIECE = Piece(
    "output permuted",
    "pytorch/pytorch#152261",
    _Zigzag,
    symptom="tokens of 32 out of place",
    right=0,
    wrong=24,  # of the chunks 0 7 1 6 2 5 3 4 two stand where they belong
    finds=("loss", "gradients", "probe"),
    mends="Undo the placement before anybody looks",
    measure=lambda ranks, alone: wrong_rows("output")(ranks[:1], alone),
)
