"""Under sequence parallelism a norm's gradient is of a rank's own tokens, and nobody adds it up."""

from typing import Any

from .models import Block
from .piece import Piece, ratio, unsummed


class _OwnGradient(Block):
    def summed(self, name: str, gradient: Any) -> Any:
        if self.wrong and name == "norm":
            return gradient  # of a quarter of the tokens
        return super().summed(name, gradient)


PIECE = Piece(
    "norm gradient not summed",
    "NVIDIA/Megatron-LM#1446",
    _OwnGradient,
    symptom="gradient of the norm's weight, next to one device's",
    right=1.0,
    wrong=1 / 4,  # addends of four ranks
    finds=("gradients", "copies"),
    mends="all_reduce (sum) over the tensor-parallel ranks",
    measure=ratio("gradient of norm"),
    by_types=True,
    in_plan=unsummed("norm"),
)
