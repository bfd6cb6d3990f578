"""Bugs of context parallelism: a rank has a slice of the text, and all weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.instr import Instr
from ...nn.tensor.own_gradient import OwnGradient
from ...nn.tensor.tensor import Tensor
from .models import Language
from .network import Array, Held, Network
from .piece import Piece, Ranks, kept, ratio, shown_loss, unsummed, wrong_rows


def _without_offset(instr: Instr) -> Instr:
    """The mistake in a plan: the operator is not given the offset of its slice."""
    return replace(instr, offset_axes=()) if instr.op == "rotary_positions" else instr


class _LocalPositions(Language):
    def positions(self) -> Array:
        return np.arange(len(self.own)) if self.wrong else self.own

    def turned(self, x: Any, positions: Array) -> Any:
        turned = super().turned(x, positions)
        self.watch("queries", x, self.own)  # they come before keys
        self.watch("turned queries", turned, self.own)
        return turned


def cosine(ranks: Ranks, alone: Held) -> float:
    """The cosine of the angle by which the last query of all was turned."""
    before, after = ranks[-1]["queries"][-1], ranks[-1]["turned queries"][-1]
    return float(before @ after / (before @ before))


LOCAL_POSITIONS = Piece(
    "local positions",
    "ISEEKYAN/Megatron-LM#208",
    _LocalPositions,
    about="Rotary positions begin at 0 on every rank.",
    symptom="cosine of the angle by which the last of 32 tokens is turned",
    right=float(np.cos(31)),
    wrong=float(np.cos(7)),  # its place on its rank
    finds=("loss", "gradients", "probe"),
    mends="The position is the index map of the placement",
    measure=cosine,
    in_plan=_without_offset,
)


class Ring(Network):
    """Attention to all ranks' keys in blocks of four; as in flash attention, backward makes the weights again."""

    def __init__(self, **place: Any) -> None:
        super().__init__(**place)
        self.tokens = Tensor(self.drawn(16, 3)[self.mine(16)])
        self.q, self.k, self.v = self.weight(3, 3), self.weight(3, 3), self.weight(3, 3)

    def construct(self) -> Any:
        x = self.tokens
        y = x + self.attention(x @ self.q, self.all_gather(x @ self.k), self.all_gather(x @ self.v))
        return (y * y).sum() / 16

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        exponentials = np.exp(q.array @ k.array.T)
        self.log_sum = np.log(exponentials.sum(axis=1, keepdims=True))  # over all blocks
        out = Tensor(exponentials / np.exp(self.log_sum) @ v.array)
        return OwnGradient("attention", self.backward)((out,), (q, k, v), several=False)

    def backward(self, values: Any, gradients: Any) -> list[Any]:
        out, q, k, v, g = (x.array for x in (*values, *gradients))
        dq, dk, dv, total = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), 0.0
        for block in np.split(np.arange(len(k)), len(k) // 4):
            scores = q @ k[block].T
            own = np.log(np.exp(scores).sum(axis=1, keepdims=True))
            weights = np.exp(scores - (own if self.wrong else self.log_sum))
            of_scores = weights * (g @ v[block].T - (g * out).sum(axis=1, keepdims=True))
            dq, dk[block], dv[block] = (dq + of_scores @ k[block], of_scores.T @ q, weights.T @ g)
            total += weights[0].sum()
        self.watch("sum of weights", total)
        return [Tensor(x) for x in (dq, dk, dv)]


BLOCK_LOG_SUM_EXP = Piece(
    "log-sum-exp of the block",
    "NVIDIA/Megatron-LM#1464, #1465",
    Ring,
    about="Backward of a ring normalises each block of weights by its own log-sum-exp.",
    symptom="sum of the weights of one token in the backward",
    right=1.0,
    wrong=4.0,  # 1 in each block
    finds=("gradients", "probe"),
    mends="The final log-sum-exp, which forward keeps",
    measure=kept("sum of weights"),
)


class _Multiplied(Language):
    def share(self, *losses: Any) -> Any:
        return super().share(*losses) * self.ranks  # an average of gradients divides it again

    def shown(self, share: Any) -> Any:
        return super().shown(share) / self.ranks

    def summed(self, name: str, gradient: Any) -> Any:
        total = super().summed(name, gradient)
        return total if self.wrong else total / self.ranks


LOSS_OVER_CP = Piece(
    "multiplied, not divided",
    "NVIDIA/Megatron-LM#906",
    _Multiplied,
    about="The loss is multiplied by the ranks of the sequence, and gradients are summed over them, not averaged.",
    symptom="gradient, next to one device's",
    right=1.0,
    wrong=4.0,  # ranks of the sequence
    finds=("gradients",),
    mends="One convention of who divides",
    measure=ratio("gradient of head"),
)


class _Displayed(Language):
    def sharing(self) -> tuple[int, ...]:
        first = self.rank % 2  # the two halves of the text; the other two ranks are copies
        return (first, first + 2) if self.ranks > 1 else (0,)

    def shown(self, share: Any) -> Any:
        total = super().shown(share)
        return total / len(self.sharing()) if self.wrong else total


LOGGED_LOSS = Piece(
    "logged loss halved",
    "pytorch/torchtitan#3280",
    _Displayed,
    about="A loss that is a sum over sequence ranks is averaged for the log: TP 2, CP 2.",
    symptom="displayed loss, next to one device's",
    right=1.0,
    wrong=1 / 2,  # the mean of two shares
    finds=("loss",),
    mends="Add up over the sequence's ranks, once",
    measure=shown_loss,
)


class _WithoutSequence(Language):
    def summed(self, name: str, gradient: Any) -> Any:
        data_parallel = (self.rank,)  # no other rank has another text
        return self.all_reduce(gradient, group=data_parallel if self.wrong else self.sharing())


GROUP_WITHOUT_SEQUENCE = Piece(
    "group without the sequence",
    "ByteDance-Seed/VeOmni#1115",
    _WithoutSequence,
    about="The group of data parallel omits the ranks that split the sequence: nothing is added up.",
    symptom="gradient, next to one device's",
    right=1.0,
    wrong=1 / 4,  # addends of four ranks
    finds=("gradients", "copies"),
    mends="The group of dp and cp together",
    measure=ratio("gradient of head"),
    by_types=True,
    in_plan=unsummed(""),
)


class _Rounded(Language):
    length = 10

    def placed(self, at: int, parts: int) -> Array:
        share = self.length // parts if self.wrong else -(-self.length // parts)  # rounded up: 12 places, two empty
        return np.arange(at * share, (at + 1) * share)

    def targets(self) -> Array:
        self.watch("tokens", self.all_reduce((self.own < self.length).sum()))
        return super().targets()


LAST_TOKENS = Piece(
    "last tokens ignored",
    "NVIDIA/TransformerEngine#1930",
    _Rounded,
    about="Lengths of documents are rounded down to multiples of the ranks.",
    symptom="tokens of a document of 10 that take part",
    right=10,
    wrong=8,  # 4 ranks have 2 each
    finds=("loss", "gradients", "probe"),
    mends="Pad every document, and mask by its real length",
    measure=kept("tokens"),
)


class _InShard(Language):
    def targets(self) -> Array:
        own = self.characters(self.own)
        return np.append(own[1:], -1) if self.wrong else super().targets()

    def share(self, losses: Any, there: Array, count: Any) -> Any:
        return super().share(losses, there, self.watch("targets", count))


LABELS_IN_SHARD = Piece(
    "labels shifted in shards",
    "hiyouga/LlamaFactory#10474",
    _InShard,
    about="Labels are shifted by one inside each shard.",
    symptom="targets of 32 tokens",
    right=31,
    wrong=28,  # one is lost in each shard
    finds=("loss", "gradients", "probe"),
    mends="Shift before the sequence is cut",
    measure=kept("targets"),
)


WINDOW = 4


class _Windowed(Language):
    def sees(self) -> Array:
        causal = super().sees()
        return causal if self.wrong else causal & (self.all > self.own[:, None] - WINDOW)

    def attention(self, weights: Any) -> Any:
        return self.watch("weights", weights, self.own)


def _seen_by_the_last(ranks: Ranks, alone: Held) -> float:
    return float((ranks[-1]["weights"][-1] > 0).sum())


MASK_CAUSAL = Piece(
    "mask replaced by causal",
    "huggingface/accelerate#4177",
    _Windowed,
    about="Whatever mask is asked for, ring attention uses the causal one.",
    symptom="keys that the last of 32 tokens sees through a window of 4",
    right=WINDOW,
    wrong=32,
    finds=("loss", "gradients", "probe"),
    mends="Mask by global positions, or refuse",
    measure=_seen_by_the_last,
)


class _Masked(Language):
    def targets(self) -> Array:
        return np.where(self.own < 24, super().targets(), -1)  # padding, all of it on rank 3

    def share(self, losses: Any, there: Array, count: Any) -> Any:
        return losses.sum() / (there.sum() * self.ranks if self.wrong else count)


def _ranks_with_nan(ranks: Ranks, alone: Held) -> float:
    return float(sum(np.isnan(held["loss"]) for held in ranks))


EMPTY_RANK = Piece(
    "mean of no targets",
    "NVIDIA-NeMo/Speech#14488",
    _Masked,
    about="A rank whose targets are all masked divides by their number.",
    symptom="ranks whose loss is nan",
    right=0,
    wrong=4,  # the sum has one addend that is nan
    finds=("loss", "gradients"),
    mends="Sum of losses over the count of all ranks",
    measure=_ranks_with_nan,
)


class _Means(Language):
    def targets(self) -> Array:
        return np.where(self.own < 5, -1, super().targets())  # a prompt, all of it on rank 0

    def share(self, losses: Any, there: Array, count: Any) -> Any:
        self.watch("losses", losses, self.own)
        return losses.sum() / (there.sum() * self.ranks if self.wrong else count)


def mean_of_means(alone: Held) -> float:
    """The mean of the means of four quarters, which have 3, 8, 8 and 7 targets, next to the mean of all losses."""
    sums = alone["losses"].reshape(4, 8).sum(axis=1)
    return float(np.mean(sums / [3, 8, 8, 7]) / (sums.sum() / 26))


MEAN_OF_MEANS = Piece(
    "mean of means",
    "",
    _Means,
    about="Ranks with different numbers of targets average the means of each.",
    symptom="displayed loss, next to one device's",
    right=1.0,
    wrong=mean_of_means,
    finds=("loss", "gradients"),
    mends="Sum of losses over the count of all ranks",
    measure=shown_loss,
)


class _Zigzag(Language):
    def placed(self, at: int, parts: int) -> Array:
        chunks = np.split(np.arange(self.length), 2 * parts)
        return np.append(chunks[at], chunks[2 * parts - 1 - at])

    def finished(self, x: Any) -> Any:
        output = self.all_gather(x)
        return self.watch("output", output if self.wrong else output[np.argsort(self.all)])

    def targets(self) -> Array:
        return np.append(self.text[1:], -1)  # of the whole text: each rank has all of the output


ZIGZAG_OUTPUT = Piece(
    "output permuted",
    "pytorch/pytorch#152261",
    _Zigzag,
    about="The output of zigzag placement is gathered and not put in order.",
    symptom="tokens of 32 out of place",
    right=0,
    wrong=24,  # of the chunks 0 7 1 6 2 5 3 4 two stand where they belong
    finds=("loss", "gradients", "probe"),
    mends="Undo the placement before anybody looks",
    measure=lambda ranks, alone: wrong_rows("output")(ranks[:1], alone),
)
