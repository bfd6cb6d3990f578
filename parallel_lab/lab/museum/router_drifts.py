"""Tensor-parallel ranks route different tokens, and each applies its own gradient to the router."""

from typing import Any

from .models import Experts
from .network import Held
from .piece import Piece, Ranks, unsummed


class _OwnRouter(Experts):
    def summed(self, name: str, gradient: Any) -> Any:
        if self.wrong and name == "router":
            return gradient  # of a quarter of the tokens
        return super().summed(name, gradient)


def _different(ranks: Ranks, alone: Held) -> float:
    return len({held["router"].tobytes() for held in ranks})


PIECE = Piece(
    "router drifts apart",
    "NVIDIA/Megatron-LM#599",
    _OwnRouter,
    symptom="different routers after two steps",
    right=1,
    wrong=4,
    finds=("gradients", "copies"),
    mends="all_reduce (sum) over the tensor-parallel ranks",
    measure=_different,
    by_types=True,
    in_plan=unsummed("gate"),
)
