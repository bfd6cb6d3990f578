"""Bugs of tensor and sequence parallelism: a rank has slices of the products, and its own tokens for the norm."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import relu, softmax
from .models import Block
from .network import Array, Held, Network
from .piece import Piece, Ranks, averaged, ratio, shown_loss, unsummed


class _OwnGradient(Block):
    def summed(self, name: str, gradient: Any) -> Any:
        if self.wrong and name == "norm":
            return gradient  # of a quarter of the tokens
        return super().summed(name, gradient)


NORM_GRADIENT_UNSUMMED = Piece(
    "norm gradient not summed",
    "NVIDIA/Megatron-LM#1446",
    _OwnGradient,
    about="Under sequence parallelism a norm's gradient is of a rank's own tokens, and nobody adds it up.",
    symptom="gradient of the norm's weight, next to one device's",
    right=1.0,
    wrong=1 / 4,  # addends of four ranks
    finds=("gradients", "copies"),
    mends="all_reduce (sum) over the tensor-parallel ranks",
    measure=ratio("gradient of norm"),
    by_types=True,
    in_plan=unsummed("norm"),
)


class _MeanGradient(Block):
    def summed(self, name: str, gradient: Any) -> Any:
        total = super().summed(name, gradient)
        return total / self.ranks if self.wrong and name == "norm" else total


NORM_GRADIENT_AVERAGED = Piece(
    "norm gradient averaged",
    "EleutherAI/gpt-neox#1259",
    _MeanGradient,
    about="A sum of norm gradients over tensor-parallel ranks becomes a mean, as data parallel has it.",
    symptom="gradient of the norm's weight, next to one device's",
    right=1.0,
    wrong=1 / 4,  # of four ranks
    finds=("gradients",),  # copies stay equal
    mends="A sum: the ranks hold parts of one gradient",
    measure=ratio("gradient of norm"),
    in_plan=averaged("norm"),
)


class _Addend(Block):
    def shown(self, share: Any) -> Any:
        return share if self.wrong else super().shown(share)


PARTIAL_READ = Piece(
    "addend read as the sum",
    "pytorch/pytorch#144054",
    _Addend,
    # PyTorch's maintainers call it intended: the local part is what was asked for.
    about="A pending sum is read as a number: what comes is the addend of one rank.",
    symptom="loss that is shown, next to one device's, mean over ranks",
    right=1.0,
    wrong=1 / 4,  # addends of four ranks
    finds=("loss",),
    mends="Reduce first (full_tensor)",
    measure=shown_loss,
)


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


NONLINEARITY = Piece(
    "addends through ReLU",
    "",
    _Late,
    about="A nonlinearity takes addends: the sum comes behind it.",
    symptom="sum of what passes ReLU, next to one device's",
    right=1.0,
    wrong=of_addends,
    finds=("loss", "gradients", "probe"),
    mends="all_reduce before the nonlinearity",
    measure=_passed,
)


SEED = 7


class _Dropped(Block):
    def hidden(self, normed: Any) -> Any:
        hidden, own, rng = (super().hidden(normed), np.s_[:, self.mine(8)], np.random.default_rng(SEED))
        kept = rng.random(hidden.shape) < 0.5 if self.wrong else rng.random((16, 8))[own] < 0.5
        self.watch("kept", kept, own)
        return hidden * Tensor(2.0 * kept)


def _alike(ranks: Ranks, alone: Held) -> float:
    return float(sum(np.array_equal(one["kept"], other["kept"]) for one, other in combinations(ranks, 2)))


SAME_NOISE = Piece(
    "same noise",
    "",
    _Dropped,
    about="Tensor-parallel ranks drop the same columns: every rank draws from the same seed.",
    symptom="pairs of ranks that drop the same of their columns",
    right=0,
    wrong=6,  # all pairs of four
    finds=("loss", "gradients", "probe"),
    mends="Draw by the place in the whole tensor, or by (seed, rank)",
    measure=_alike,
)


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


CLIP_COUNTS_COPIES = Piece(
    "norm counts copies",
    "ROCm/TransformerEngine#715",
    _Counted,
    about="The norm for clipping adds up squares over all ranks, copies among them.",
    symptom="norm of all gradients, next to one device's",
    right=1.0,
    wrong=four_copies,
    finds=("gradients", "probe"),
    mends="Count copies once",
    measure=norm_shown,
)


class Heads(Network):
    """Four heads on four ranks, which read two heads of keys: rank r has a copy of number r // 2."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.tokens, own = Tensor(self.drawn(16, 3)), self.mine(4)
        self.q = self.weight(4, 3, 2, part=np.s_[own])
        self.k = self.weight(2, 3, 2, part=np.s_[own.start // 2 : (own.stop + 1) // 2])
        self.out = self.weight(4, 3, 3, part=np.s_[own])

    def construct(self) -> Any:
        x, addend = self.tokens, 0
        for head in range(self.q.shape[0]):
            scores = (x @ self.q[head]) @ (x @ self.k[head // 2]).transpose(1, 0)
            addend = softmax(scores, -1) @ x @ self.out[head] + addend
        y = self.all_reduce(addend)
        return (y * y).sum() / 16 / self.ranks  # every rank has it whole

    def summed(self, name: str, gradient: Any) -> Any:
        first = self.rank // 2 * 2
        if name == "k" and self.ranks > 1 and not self.wrong:
            return self.all_reduce(gradient, group=(first, first + 1))
        return super().summed(name, gradient)


KV_HEADS = Piece(
    "repeated heads",
    "hiyouga/LlamaFactory#10794",
    Heads,
    about="Fewer key heads than ranks: each is repeated, and its gradient is that of one copy.",
    symptom="gradient of a key head, next to one device's",
    right=1.0,
    wrong=1 / 2,  # addends of two copies
    finds=("gradients", "copies"),
    mends="Repeat forward, sum backward",
    measure=ratio("gradient of k"),
)
