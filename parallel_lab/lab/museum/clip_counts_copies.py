"""The norm for clipping adds up squares over all ranks, copies among them."""

from .models import Block
from .network import Array, Held, Network
from .piece import Piece, Ranks

MOST = 0.1  # the norm that gradients are clipped to


def squares(gradients: dict[str, Array], *names: str) -> float:
    """The sum of the squares of some gradients."""
    return float(sum((gradients[name] ** 2).sum() for name in names))


def clipped(net: Network, gradients: dict[str, Array], total: float) -> dict[str, Array]:
    """Gradients, the squares of all adding up to `total`, with a norm of MOST."""
    net.watch("norm of all", total**0.5)
    return {name: gradient * min(1, MOST / total**0.5) for name, gradient in gradients.items()}


def norm_shown(ranks: Ranks, alone: Held) -> float:
    """The norm by which rank 0 clips, next to one device's."""
    return float(ranks[0]["norm of all"] / alone["norm of all"])


class _Counted(Block):
    def ready(self, gradients: dict[str, Array]) -> dict[str, Array]:
        own = squares(gradients, "up", "down")
        if self.wrong or self.rank == 0:
            own += squares(gradients, "norm")  # every rank has it
        return clipped(self, gradients, float(self.all_reduce(own)))


def four_copies(alone: Held) -> float:
    """The norm with four copies of the norm's gradient, next to that with one."""
    gradients = {name: alone[f"gradient of {name}"] for name in ("norm", "up", "down")}
    once, rest = squares(gradients, "norm"), squares(gradients, "up", "down")
    return ((4 * once + rest) / (once + rest)) ** 0.5


PIECE = Piece(
    "norm counts copies",
    "ROCm/TransformerEngine#715",
    _Counted,
    symptom="norm of all gradients, next to one device's",
    right=1.0,
    wrong=four_copies,
    finds=("gradients", "probe"),
    mends="Count copies once",
    measure=norm_shown,
)
