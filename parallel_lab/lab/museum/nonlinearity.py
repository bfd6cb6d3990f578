"""A nonlinearity takes addends: the sum comes behind it."""

from typing import Any

import numpy as np

from ...ops.activation import relu
from .models import Block
from .network import Held
from .piece import Piece, Ranks


class _Late(Block):
    def row(self, hidden: Any) -> Any:
        self.watch("hidden", hidden, np.s_[:, self.mine(8)])
        self.watch("second", self.down, self.mine(8))
        addend = hidden @ self.down
        y = self.reduce_scatter(relu(addend)) if self.wrong else relu(self.reduce_scatter(addend))
        return self.watch("passed", y, self.mine(16))


def _passed(ranks: Ranks, alone: Held) -> float:
    return float(sum(held["passed"].sum() for held in ranks) / alone["passed"].sum())


def of_addends(alone: Held) -> float:
    """The sum of what ReLU makes of four addends, next to what it makes of their sums."""
    addends = [alone["hidden"][:, r : r + 2] @ alone["second"][r : r + 2] for r in range(0, 8, 2)]
    return float(sum(np.maximum(addend, 0).sum() for addend in addends) / np.maximum(sum(addends), 0).sum())


PIECE = Piece(
    "addends through ReLU",
    "",
    _Late,
    symptom="sum of what passes ReLU, next to one device's",
    right=1.0,
    wrong=of_addends,
    finds=("loss", "gradients", "probe"),
    mends="all_reduce before the nonlinearity",
    measure=_passed,
)
