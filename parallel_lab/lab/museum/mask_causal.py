"""Whatever mask is asked for, ring attention uses the causal one."""

from typing import Any

from .models import Language
from .network import Array, Held
from .piece import Piece, Ranks

WINDOW = 4


class _Windowed(Language):
    def sees(self) -> Array:
        causal = super().sees()
        return causal if self.wrong else causal & (self.all > self.own[:, None] - WINDOW)

    def attention(self, weights: Any) -> Any:
        return self.watch("weights", weights, self.own)


def _seen_by_the_last(ranks: Ranks, alone: Held) -> float:
    return float((ranks[-1]["weights"][-1] > 0).sum())


PIECE = Piece(
    "mask replaced by causal",
    "huggingface/accelerate#4177",
    _Windowed,
    symptom="keys that the last of 32 tokens sees through a window of 4",
    right=WINDOW,
    wrong=32,
    finds=("loss", "gradients", "probe"),
    mends="Mask by global positions, or refuse",
    measure=_seen_by_the_last,
)
