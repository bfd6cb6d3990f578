"""Labels are shifted by one inside each shard."""

from typing import Any

import numpy as np

from .models import Language
from .network import Array
from .piece import Piece, kept


class _InShard(Language):
    def targets(self) -> Array:
        own = self.characters(self.own)
        return np.append(own[1:], -1) if self.wrong else super().targets()

    def share(self, losses: Any, there: Array, count: Any) -> Any:
        return super().share(losses, there, self.watch("targets", count))


PIECE = Piece(
    "labels shifted in shards",
    "hiyouga/LlamaFactory#10474",
    _InShard,
    symptom="targets of 32 tokens",
    right=31,
    wrong=28,  # one is lost in each shard
    finds=("loss", "gradients", "probe"),
    mends="Shift before the sequence is cut",
    measure=kept("targets"),
)
