"""Softmax behind the choice of one expert: its weight is 1, whatever the router says."""

from typing import Any

from ...nn.tensor.tensor import Tensor
from ...ops.activation import softmax
from ...ops.reduce import reduce_sum
from .models import Experts
from .network import Array
from .piece import Piece, ratio


class _AfterChoice(Experts):
    def gate(self, logits: Any, chosen: Array) -> Any:
        if self.wrong:
            return softmax(reduce_sum(logits * Tensor(chosen), axis=1, keepdims=True), -1)  # over the chosen one
        return super().gate(logits, chosen)


PIECE = Piece(
    "softmax after top-1",
    "NVIDIA/Megatron-LM#894",
    _AfterChoice,
    symptom="gradient of the router, next to one device's",
    right=1.0,
    wrong=0.0,  # of a constant
    finds=("loss", "gradients", "probe"),
    mends="Softmax first, where one expert is chosen",
    measure=ratio("gradient of router"),
)
