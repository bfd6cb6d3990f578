"""Choices are ranked for capacity by logits in which 0 stands for not chosen; real ones are negative."""

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from .models import Experts
from .network import Array
from .piece import Piece, kept


class WithCapacity(Experts):
    """Each expert has as many slots as it has tokens: nothing need be dropped."""

    def logits(self, x: Any) -> Any:
        return -1 - (x @ self.router) ** 2

    def gate(self, logits: Any, chosen: Array) -> Any:
        ranked = np.where(chosen, logits.array, 0.0 if self.wrong else -np.inf)
        first = np.argsort(-ranked, axis=0, kind="stable")[: len(chosen) // 4]
        has_slot = np.zeros_like(chosen)
        np.put_along_axis(has_slot, first, chosen[first, np.arange(4)], axis=0)
        self.watch("kept", has_slot.sum() / len(chosen))
        return super().gate(logits, chosen) * Tensor(has_slot.sum(axis=1, keepdims=True))


PIECE = Piece(
    "capacity by masked logits",
    "deepspeedai/DeepSpeed#7986",
    WithCapacity,
    symptom="share of choices that are kept",
    right=1.0,
    wrong=0.0,  # every 0 ranks before every negative number
    finds=("loss", "gradients", "probe"),
    mends="Rank by probabilities, or mask by -inf",
    measure=kept("kept"),
)
