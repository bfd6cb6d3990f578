"""The norm for clipping adds up over the ranks of dense gradients, and omits the experts of other ranks."""

from .clip_counts_copies import clipped, norm_shown, squares
from .models import Experts
from .network import Array, Held
from .piece import Piece


class _Omitted(Experts):
    def ready(self, gradients: dict[str, Array]) -> dict[str, Array]:
        experts = squares(gradients, "experts")
        total = squares(gradients, "router") + (experts if self.wrong else float(self.all_reduce(experts)))
        return clipped(self, gradients, total)


def own_experts(alone: Held) -> float:
    """The norm with one expert, next to that with four."""
    router, experts = alone["gradient of router"], alone["gradient of experts"]
    dense = (router**2).sum()
    return float(((dense + (experts[0] ** 2).sum()) / (dense + (experts**2).sum())) ** 0.5)


PIECE = Piece(
    "norm omits experts",
    "NVIDIA/Megatron-LM#5916",
    _Omitted,
    symptom="norm of all gradients on rank 0, next to one device's",
    right=1.0,
    wrong=own_experts,
    finds=("gradients", "copies", "probe"),
    mends="Experts: sum of squares over all their ranks",
    measure=norm_shown,
)
