"""Bugs of expert parallelism: a rank has one of the experts, and its own tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...nn.tensor.tensor import Tensor
from ...ops.activation import softmax, tanh
from ...ops.reduce import reduce_mean, reduce_sum
from .models import Experts
from .network import Array, Held, Network
from .piece import Piece, Ranks, averaged, kept, ratio, unsummed, wrong_rows
from .sequence_parallel import clipped, norm_shown, squares


class Averaged(Experts):
    """As data parallel has it: the loss of a rank is the mean over its own tokens, and gradients are averaged."""

    def share(self, errors: Any) -> Any:
        return super().share(errors) * self.ranks

    def shown(self, share: Any) -> Any:
        return super().shown(share) / self.ranks

    def summed(self, name: str, gradient: Any) -> Any:
        share = 1 if self.wrong and name == "experts" else self.ranks  # one rank has an expert; all have tokens for it
        return super().summed(name, gradient) / share


EXPERT_DIVISOR = Piece(
    "experts over their own group",
    "databricks/megablocks#20, #86",
    Averaged,
    about="Gradients of experts are averaged over the ranks that share them, not over all that have tokens.",
    symptom="gradient of an expert, next to one device's",
    right=1.0,
    wrong=4.0,  # not divided by four
    finds=("gradients",),
    mends="Divide by dp * cp, as for every other parameter",
    measure=ratio("gradient of experts"),
    in_plan=averaged(""),
)


class Balanced(Network):
    """A router whose tokens are balanced over all ranks, and alike on each: those of rank r choose expert r."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.tokens = Tensor(np.repeat(np.eye(4), 4, axis=0)[self.mine(16)])
        self.router, self.experts = self.weight(4, 4), self.weight(4, 3)

    def construct(self) -> Any:
        scores = softmax(self.tokens @ (self.router * 0.1 + Tensor(3 * np.eye(4))), -1)
        counts = np.bincount(scores.array.argmax(axis=1), minlength=4)
        counts = counts if self.wrong else self.all_reduce(counts).array
        shares = Tensor(counts / counts.sum())
        balance = 4 * (shares * reduce_mean(scores, axis=0)).sum() / self.ranks
        self.watch("scores", scores, self.mine(16))
        self.watch("balance loss", self.all_reduce(balance))
        return ((scores @ self.experts - 1) ** 2).sum() / 16 + balance


BALANCE_PER_RANK = Piece(
    "balance loss per rank",
    "pytorch/torchtitan#2061",
    Balanced,
    about="The balance loss multiplies shares that each rank has counted for itself.",
    symptom="balance loss of a router that is balanced",
    right=1.0,
    wrong=lambda alone: 4 * alone["scores"].max(axis=1).mean(),  # each rank's share of its one expert is 1
    finds=("loss", "gradients", "probe"),
    mends="Counts of all ranks; a rank's own scores will do",
    measure=kept("balance loss"),
)


STEP = 0.001


class Biased(Network):
    """Two experts on every rank. All tokens together choose each alike often; those of a rank choose one."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        tokens = self.drawn(16, 3)
        tokens[:, 0] = np.repeat([3, -3, 3, -3], 4)
        self.tokens, self.bias = Tensor(tokens[self.mine(16)]), np.zeros(2)
        self.router, self.experts = self.weight(3, 2), self.weight(2, 3, 3)

    def construct(self) -> Any:
        x = self.tokens
        scores = softmax(x @ (self.router * 0.1 + Tensor(np.array([[1.0, -1], [0, 0], [0, 0]]))), -1)
        chosen = np.eye(2)[(scores.array + self.bias).argmax(axis=1)]
        self.counts = chosen.sum(axis=0)
        weights = scores * Tensor(chosen)
        y = sum(tanh(x @ self.experts[e]) * weights[:, e : e + 1] for e in range(2))
        return ((y - 1) ** 2).sum() / 16

    def ready(self, gradients: dict[str, Array]) -> dict[str, Array]:
        counts = self.counts if self.wrong else self.all_reduce(self.counts).array
        self.bias = self.bias - STEP * np.sign(counts - counts.mean())
        self.watch("bias", self.bias)
        return gradients


def _spread(ranks: Ranks, alone: Held) -> float:
    return float(np.ptp([held["bias"][0] for held in ranks]))


ROUTER_BIAS = Piece(
    "router bias of one rank",
    "",
    Biased,
    about="The bias that balances experts follows a rank's own counts, which are stale for the others.",
    symptom="spread of the bias of expert 0 over the ranks",
    right=0.0,
    wrong=2 * STEP,  # a step up, a step down
    finds=("probe",),
    mends="Counts over tp, cp and dp",
    measure=_spread,
)


class _AsItComes(Experts):
    def restored(self, rows: Any, order: Array) -> Any:
        return rows if self.wrong else super().restored(rows, order)


ORDER_NOT_RESTORED = Piece(
    "order not restored",
    "",
    _AsItComes,
    about="What comes back from the experts is sorted by expert, and is taken as it comes.",
    symptom="tokens of 16 that get what belongs to another",
    right=0,
    wrong=16,  # no expert's number is its token's place
    finds=("loss", "gradients", "probe"),
    mends="Apply the inverse of the order",
    measure=wrong_rows("y"),
)


class _OwnRouter(Experts):
    def summed(self, name: str, gradient: Any) -> Any:
        if self.wrong and name == "router":
            return gradient  # of a quarter of the tokens
        return super().summed(name, gradient)


def _different(ranks: Ranks, alone: Held) -> float:
    return len({held["router"].tobytes() for held in ranks})


ROUTER_DRIFTS = Piece(
    "router drifts apart",
    "NVIDIA/Megatron-LM#599",
    _OwnRouter,
    about="Tensor-parallel ranks route different tokens, and each applies its own gradient to the router.",
    symptom="different routers after two steps",
    right=1,
    wrong=4,
    finds=("gradients", "copies"),
    mends="all_reduce (sum) over the tensor-parallel ranks",
    measure=_different,
    by_types=True,
    in_plan=unsummed("gate"),
)


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


CAPACITY_ZEROS = Piece(
    "capacity by masked logits",
    "deepspeedai/DeepSpeed#7986",
    WithCapacity,
    about="Choices are ranked for capacity by logits in which 0 stands for not chosen; real ones are negative.",
    symptom="share of choices that are kept",
    right=1.0,
    wrong=0.0,  # every 0 ranks before every negative number
    finds=("loss", "gradients", "probe"),
    mends="Rank by probabilities, or mask by -inf",
    measure=kept("kept"),
)


class _AfterChoice(Experts):
    def gate(self, logits: Any, chosen: Array) -> Any:
        if self.wrong:
            return softmax(reduce_sum(logits * Tensor(chosen), axis=1, keepdims=True), -1)  # over the chosen one
        return super().gate(logits, chosen)


TOP_ONE_WEIGHT = Piece(
    "softmax after top-1",
    "NVIDIA/Megatron-LM#894",
    _AfterChoice,
    about="Softmax behind the choice of one expert: its weight is 1, whatever the router says.",
    symptom="gradient of the router, next to one device's",
    right=1.0,
    wrong=0.0,  # of a constant
    finds=("loss", "gradients", "probe"),
    mends="Softmax first, where one expert is chosen",
    measure=ratio("gradient of router"),
)


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


CLIP_OMITS_EXPERTS = Piece(
    "norm omits experts",
    "NVIDIA/Megatron-LM#5916",
    _Omitted,
    about="The norm for clipping adds up over the ranks of dense gradients, and omits the experts of other ranks.",
    symptom="norm of all gradients on rank 0, next to one device's",
    right=1.0,
    wrong=own_experts,
    finds=("gradients", "copies", "probe"),
    mends="Experts: sum of squares over all their ranks",
    measure=norm_shown,
)
