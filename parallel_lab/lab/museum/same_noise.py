"""Tensor-parallel ranks drop the same columns: every rank draws from the same seed."""

from itertools import combinations
from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from .models import Block
from .network import Held
from .piece import Piece, Ranks

SEED = 7


class _Dropped(Block):
    def hidden(self, normed: Any) -> Any:
        hidden, own, rng = (super().hidden(normed), np.s_[:, self.mine(8)], np.random.default_rng(SEED))
        kept = rng.random(hidden.shape) < 0.5 if self.wrong else rng.random((16, 8))[own] < 0.5
        self.watch("kept", kept, own)
        return hidden * Tensor(2.0 * kept)


def _alike(ranks: Ranks, alone: Held) -> float:
    return float(sum(np.array_equal(one["kept"], other["kept"]) for one, other in combinations(ranks, 2)))


PIECE = Piece(
    "same noise",
    "",
    _Dropped,
    symptom="pairs of ranks that drop the same of their columns",
    right=0,
    wrong=6,  # all pairs of four
    finds=("loss", "gradients", "probe"),
    mends="Draw by the place in the whole tensor, or by (seed, rank)",
    measure=_alike,
)
