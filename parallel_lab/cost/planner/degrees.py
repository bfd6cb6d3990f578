"""How many ways a run divides its ranks, which ranks form each group, and which gradients are summed over whom.

    >>> run = Degrees(64, stages=4, expert=8)
    >>> run.data, run.gradients.dense_group, run.gradients.expert_group, run.gradients.divisor
    (16, 16, 2, 16)

The same ranks stand in two grids, written with the fastest axis first (Megatron's default order):

    everything else   tp - cp - dp - pp        rank = tp + TP (cp + CP (dp + DP pp))
    experts           etp - ep - edp - pp      EDP = TP CP DP / (ETP EP) replicas of each expert

Sequence parallelism adds no ranks (it lives in the groups of tp), and neither do experts; context parallelism does, and
shares its samples: DP ranks have different ones. With a loss that is the mean of a rank's own tokens:

    parameter                          summed over                     divided by
    dense                              dp x cp                         DP CP
    norms, row biases, router          the same, and tp if the         DP CP
                                       sequence is split there
    experts                            edp                             DP CP, not EDP

An expert's gradient holds every token of the ranks that send it rows, each once: only the sum over replicas is smaller.
Divided by its own EDP replicas it is EP ETP / TP times too large, the mistake found anew in at least five projects
(Megatron-Core `distributed_data_parallel.py`, PyTorch issue 160285).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product

from ...base.checks import checked, choice, flag, integer, sequence_of
from ...base.errors import ArgumentError
from .decoders import Decoder

_COUNT = integer(1, 10**9)
WEIGHT_BYTES, GRADIENT_BYTES, ADAM_BYTES = 2, 4, 12  # of a parameter: bfloat16, float32, its copy and two moments


def axis_groups(axes: Sequence[tuple[str, int]], axis: str) -> tuple[tuple[int, ...], ...]:
    """Groups of ranks along an axis of a grid, in the order of their first ranks.

    axes   (name, size), the fastest first: rank = i0 + n0 (i1 + n1 (i2 + ...))
    axis   a name, or several joined by "-": ranks that differ in those only, such as "cp-dp"

    >>> axis_groups([("tp", 2), ("cp", 2), ("dp", 2)], "dp")
    ((0, 4), (1, 5), (2, 6), (3, 7))
    """
    sizes = {name: _COUNT("axis_groups", f"size of {name}", size) for name, size in axes}
    chosen = [choice(*sizes)("axis_groups", "axis", name) for name in axis.split("-")]
    strides, stride = {}, 1
    for name, size in sizes.items():
        strides[name] = stride
        stride *= size

    def reached(names: list[str]) -> list[int]:
        steps = [[strides[name] * i for i in range(sizes[name])] for name in names]
        return sorted(sum(place) for place in product(*steps))

    members = reached(chosen)
    return tuple(tuple(first + m for m in members) for first in reached([n for n in sizes if n not in chosen]))


@dataclass(frozen=True)
class GradientRule:
    """Over how many ranks gradients are summed, and divided by what; losses are means of a rank's own tokens.

    dense_group, expert_group   replicas over which gradients are summed: dp x cp, and edp
    divisor                     of both: dp x cp, times the micro-batches if their losses are added
    context                     ranks that share a sequence
    """

    dense_group: int
    expert_group: int
    divisor: int
    context: int

    @property
    def replicas(self) -> tuple[int, int]:
        """Replicas of dense parameters, and of experts."""
        return self.dense_group, self.expert_group

    @property
    def expert_factor_if_divided_by_own_group(self) -> float:
        """How many times too large an expert's gradient is if it is divided by its own replicas."""
        return self.divisor / self.expert_group

    @property
    def dense_factor_if_context_forgotten(self) -> int:
        """How many times too large gradients are if they are divided by the copies of the data alone."""
        return self.context

    @property
    def expert_prescale(self) -> float:
        """What an expert's gradient is multiplied with before a collective that averages over its replicas."""
        return self.expert_group / self.divisor


@dataclass(frozen=True)
class RankStates:
    """Parameters of an average rank, and bytes of weights, gradients and Adam's states."""

    dense_parameters: float
    expert_parameters: float
    size_bytes: float


@dataclass(frozen=True)
class Degrees:
    """Ranks of a run, and how many of them divide what.

    world          ranks in all
    tensor         that split a layer; context: a sequence; stages: pipeline stages
    expert         that hold different experts; expert_tensor: that split one expert
    data           what is left: ranks with different samples

    Raises ArgumentError where the numbers do not divide each other.
    """

    world: int
    tensor: int = 1
    context: int = 1
    stages: int = 1
    expert: int = 1
    expert_tensor: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _COUNT("Degrees", name, value)
        one_copy = self.tensor * self.context * self.stages
        if self.world % one_copy:
            what = f"world={self.world} with tensor x context x stages = {one_copy}"
            raise ArgumentError(what, where="Degrees", allowed="A multiple")
        if self.stage_ranks % (self.expert * self.expert_tensor):
            what = f"expert x expert_tensor = {self.expert * self.expert_tensor} on {self.stage_ranks} ranks of a stage"
            raise ArgumentError(what, where="Degrees", allowed="A divisor: experts use the ranks that are there")

    @property
    def stage_ranks(self) -> int:
        """Ranks of a pipeline stage."""
        return self.world // self.stages

    @property
    def data(self) -> int:
        """DP: ranks with different samples."""
        return self.stage_ranks // (self.tensor * self.context)

    @property
    def expert_data(self) -> int:
        """EDP: replicas of each expert."""
        return self.stage_ranks // (self.expert * self.expert_tensor)

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """(name, size) of the grid of everything but experts, the fastest axis first."""
        return (("tp", self.tensor), ("cp", self.context), ("dp", self.data), ("pp", self.stages))

    @property
    def expert_axes(self) -> tuple[tuple[str, int], ...]:
        """The same of the experts' grid."""
        return (("etp", self.expert_tensor), ("ep", self.expert), ("edp", self.expert_data), ("pp", self.stages))

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Groups along an axis of either grid, or along several of one joined by "-" (`axis_groups`)."""
        known = {name for name, _ in self.axes}
        return axis_groups(self.axes if set(axis.split("-")) <= known else self.expert_axes, axis)

    @cached_property
    def gradients(self) -> GradientRule:
        """Over whom gradients are summed, and divided by what."""
        copies = self.data * self.context
        return GradientRule(copies, self.expert_data, copies, self.context)

    @checked("Degrees.states", level=integer(0, 3))
    def states(self, decoder: Decoder, level: int = 0) -> RankStates:
        """Bytes of model states of an average rank: tables and norms are divided like matrices.

        level  0 every replica holds all; 1 Adam's states are divided among replicas, 2 gradients too, 3 weights too

        Weights 2 bytes, gradients in float32, Adam 12. Dense replicas are dp x cp, an expert's edp: the same level
        divides experts among fewer ranks (Megatron's distributed optimizer: 6 + 12 / d bytes).
        """
        experts = decoder.parts["experts"]
        dense = (decoder.parameters - experts) / (self.tensor * self.stages)
        own = experts / (self.expert_tensor * self.expert * self.stages)
        return RankStates(dense, own, sum(self.state_bytes(dense, own, level)))

    def state_bytes(self, dense: float, experts: float, level: int = 0) -> tuple[float, float, float]:
        """Bytes of weights, gradients and Adam's states, of so many parameters of a rank; level: as in `states`."""
        n, m = self.gradients.replicas if level else (1, 1)
        whole, share = dense + experts, dense / n + experts / m
        weights, gradients = (
            WEIGHT_BYTES * (share if level == 3 else whole),
            GRADIENT_BYTES * (share if level >= 2 else whole),
        )
        return weights, gradients, ADAM_BYTES * share

    @checked("Degrees.misfit", seq_length=_COUNT, sequence_parallel=flag)
    def misfit(self, decoder: Decoder, seq_length: int, *, sequence_parallel: bool = True) -> str:
        """Why a decoder cannot be divided so: "" if it can; a chunk of the tokens for each rank; where each has two, a
        point says so (`decoder_misfit`).
        """
        t, c, heads, kv = self.tensor, self.context, decoder.heads, decoder.kv_heads
        rules = (
            (heads % t == 0, f"{heads} heads on {t} ranks"),
            (kv % t == 0 or t % kv == 0 or decoder.latent is not None, f"{kv} heads of keys on {t} ranks"),
            (
                seq_length % (c * (t if sequence_parallel else 1)) == 0,
                f"{seq_length} tokens in {c * t} pieces ({'cp tp' if c > 1 else 'tp'})",
            ),
            (self.stages <= decoder.layers, f"{decoder.layers} layers on {self.stages} stages"),
            (
                self.expert == 1 or (decoder.experts > 0 and decoder.experts % self.expert == 0),
                f"{decoder.experts} experts on {self.expert} ranks",
            ),
        )
        return next((text for holds, text in rules if not holds), "")


@dataclass(frozen=True)
class LossMeans:
    """One loss, averaged in three ways.

    right                        over all valid tokens: sums of token losses, divided by the count of all ranks
    mean_of_means                of the ranks' own means: a rank with few tokens weighs as much as a full one
    sample_sums_averaged_factor  token sums over the count of their sample, averaged over dp x cp: times this too small
    """

    right: float
    mean_of_means: float
    sample_sums_averaged_factor: float


def loss_means(
    valid_tokens: Sequence[Sequence[int]], mean_losses: Sequence[Sequence[float]] | None = None
) -> LossMeans:
    """The loss of ranks with unequal counts of valid tokens (packing, padding, short documents), right and wrong.

    valid_tokens  [dp][cp], tokens that count on each rank; at least one of all
    mean_losses   [dp][cp], the mean loss of each rank's tokens; None: rank i (dp major) has i + 1

    An empty rank's mean counts 0. The cp ranks of a sample each add their part of its mean, so a mean over dp x cp
    divides once too often, by cp (Megatron-LM issues 673 and 906).

    >>> loss_means([[6, 2]])
    LossMeans(right=1.25, mean_of_means=1.5, sample_sums_averaged_factor=0.5)
    """
    rows = [sequence_of(integer(0), "A list of counts")("loss_means", "valid_tokens", row) for row in valid_tokens]
    counts = [n for row in rows for n in row]
    if len({len(row) for row in rows}) != 1 or not sum(counts):
        allowed = "[dp][cp] counts, as many for every sample, at least one above 0"
        raise ArgumentError(f"valid_tokens={valid_tokens}", where="loss_means", allowed=allowed)
    losses = range(1, len(counts) + 1) if mean_losses is None else [x for row in mean_losses for x in row]
    if len(losses) != len(counts):
        what = f"{len(losses)} losses for {len(counts)} ranks"
        raise ArgumentError(what, where="loss_means", allowed="One for each rank")
    right = math.fsum(n * x for n, x in zip(counts, losses, strict=True)) / sum(counts)
    means = math.fsum(x for n, x in zip(counts, losses, strict=True) if n) / len(counts)
    return LossMeans(right, means, float(Fraction(1, len(rows[0]))))
