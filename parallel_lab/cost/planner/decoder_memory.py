"""Which layers a decoder's stages have, and what the fullest rank of a plan holds: many plans at once.

    stages_of(get_decoder("llama3_405b"), 16, 1)

States follow STATES and the level; activations are of the micro-batches that a schedule has on their way (`PEAKS`).
At level 3 a rank holds a layer whole at a time, with its gradient, and the tables from forward to backward, as
PyTorch's `fully_shard` does: what belongs to no layer is the root's, which is not divided again after forward (its
documentation, reshard_after_forward).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .decoder_point import STATES, Columns
from .decoders import BFLOAT16, FLOAT32, Decoder

LOGITS_FUSED, LOGITS_EAGER = 6, 12  # bytes of a logit that are there at once: result, softmax, gradient
MEMORY_KINDS = ("params", "grads", "optimizer", "activations", "workspace")
# micro-batches whose activations stage r of p holds, of m, with v chunks (theory: pipelines' peaks)
PEAKS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "1f1b": lambda p, r, m, v: np.minimum(m, p - r),
    **dict.fromkeys(("gpipe", "breadth_first"), lambda p, r, m, v: m + 0 * p),
    "eager_1f1b": lambda p, r, m, v: np.minimum(m, 2 * (p - 1 - r) + 1),
    "interleaved": lambda p, r, m, v: np.minimum(m * v, (v - 1) * p + 2 * (p - 1 - r) + 1) / v,
    **dict.fromkeys(("zb_h1", "zero_bubble_v"), lambda p, r, m, v: np.minimum(m, p)),
    "zb_h2": lambda p, r, m, v: np.minimum(m, 2 * p - 1),
    "v_half": lambda p, r, m, v: np.minimum(m, p / 2 + 1),
    "v_min": lambda p, r, m, v: np.minimum(m, p / 3 + 1),
    "dualpipe": lambda p, r, m, v: np.minimum(m, p + 1),
}


class Stage(NamedTuple):
    """Alike stages: the first, how many, layers without and with experts, whether table and head are there."""

    first: int
    count: int
    layers: tuple[int, int]
    table: bool
    head: bool


@lru_cache(maxsize=512)
def stages_of(decoder: Decoder, stages: int, parts: int) -> tuple[Stage, ...]:
    """Layers in order, the longest part as short as it can be; part k lies on stage k mod stages.

    A layer counts the elements of its matrices that a token meets, the head, behind the last layer, its own, as do the
    layer and the head of a module for a further token (as Llama 3, section 3.3.2, and DeepSeek-V3 divide theirs).
    """
    d, plain = decoder, decoder.layers - decoder.expert_layers
    head = d.vocab_size * d.hidden
    dense = d.attention_parameters + d.mlp_parameters
    experts = d.attention_parameters + (d.chosen + d.shared_experts) * d.products * d.hidden * d.expert_width
    last_of = head + d.extra_tokens * (head + (experts if d.experts else dense))
    counts = _divided((plain, dense), (d.expert_layers, experts), parts, last_of)
    held, at = [[0, 0] for _ in range(stages)], 0
    for part, count in enumerate(counts):
        first = max(0, min(at + count, plain) - at)
        held[part % stages][0] += first
        held[part % stages][1] += count - first
        at += count
    last = (parts - 1) % stages
    held[last][1 if decoder.experts else 0] += decoder.extra_tokens
    found: dict[tuple[Any, ...], list[int]] = {}
    for stage, (dense, experts) in enumerate(held):
        found.setdefault(((dense, experts), stage == 0, stage == last), []).append(stage)
    return tuple(Stage(those[0], len(those), *kind) for kind, those in found.items())


def _divided(first: tuple[int, int], last: tuple[int, int], parts: int, behind: int) -> list[int]:
    """How many of the layers each part gets, filled from the last part on, evenly where the longest stays the same.

    first, last  how many alike layers, and what each costs
    behind       costs of what lies behind the last layer
    """
    layers, most = first[0] + last[0], max(cost for count, cost in (first, last) if count)

    def filled(longest: int) -> list[int] | None:
        counts, left, room = [], layers, longest - behind
        for part in range(parts):
            even, count = -(-left // (parts - part)), 0
            for alike, cost in ((left - first[0], last[1]), (min(left, first[0]), first[1])):
                taken = max(0, min(alike, even - count, room // cost))
                room, count = room - taken * cost, count + taken
                if taken < alike:
                    break
            left -= count
            counts.append(count)
            room = longest
        return None if left or behind > longest else counts[::-1]

    low, high = max(most, behind), -(-layers // parts) * most + behind
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if filled(middle) else (middle + 1, high)
    found = filled(high)
    assert found is not None  # all in one part
    return found


def own_parameters(d: Decoder, stage: Stage, x: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of a rank of a stage: outside of experts, and of experts. Tables tied over stages: both hold one."""
    tables = stage.table + (stage.head and not (d.tied and stage.table))
    return d.own_parameters(*stage.layers, tables, x.tensor, x.expert * x.expert_tensor)


def state_columns(x: Columns, dense: Any, experts: Any) -> tuple[np.ndarray, ...]:
    """Bytes of weights, gradients and optimizer of so many parameters of a rank."""
    table = np.array([STATES[name] for name in STATES])[x.states]
    n = np.where(x.level > 0, x.data * x.context / x.replicas, 1)
    of_experts = x.data * x.context * x.tensor / (x.expert * x.expert_tensor)
    m = np.where(x.level > 0, np.maximum(1, of_experts / x.replicas), 1)
    whole, share = dense + experts, dense / n + experts / m
    weights = table[:, 0] * np.where(x.level == 3, share, whole)
    gradients = table[:, 1] * np.where(x.level >= 2, share, whole)
    optimizer = table[:, 2] * share * (1 - x.named("offload", "optimizer"))
    twice = 1 + x.named("schedule", "dualpipe")
    return weights * twice, gradients * twice, optimizer


def memory_of(
    d: Decoder,
    x: Columns,
    stages: Sequence[Stage],
    own: Sequence[tuple[Any, Any]],
    kinds: Mapping[bool, Any],
    tokens: Any,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Bytes by kind of the fullest rank, and which of `stages` it is.

    own     parameters of a rank of each stage, outside of experts and of experts
    kinds   {with experts: a `Layer`};  tokens: of a micro-batch on a rank
    """
    rows = np.zeros((len(stages), len(MEMORY_KINDS), len(x)))
    for at, (stage, pair) in enumerate(zip(stages, own, strict=True)):
        kept = sum(stage.layers[experts] * layer.kept_bytes for experts, layer in kinds.items())
        those = [layer for experts, layer in kinds.items() if stage.layers[experts]]
        workspace = np.max([layer.held_bytes + layer.again_bytes for layer in those], axis=0) if those else 0.0
        logits = np.where(x.fused * x.fused_loss == 1, LOGITS_FUSED, LOGITS_EAGER) * tokens * d.vocab_size / x.tensor
        layer_own = sum(pair) / max(1, sum(stage.layers))
        tables = (stage.table + (stage.head and not (d.tied and stage.table))) * d.vocab_size * d.hidden / x.tensor
        whole = np.where(x.level == 3, (BFLOAT16 + FLOAT32) * layer_own + BFLOAT16 * tables, 0)
        flying = np.zeros(len(x))
        for code in np.unique(x.schedule):
            peak = PEAKS[x.name_of("schedule", int(code))](x.stages, stage.first, x.micro_batches, x.chunks)
            flying = np.where(x.schedule == code, peak, flying)
        held = kept * np.where(x.named("offload", "activations"), np.minimum(flying, 2), flying)
        states, m = state_columns(x, *pair), x.micro_batches
        buffers = 2 * m * x.chunks - (stage.first == 0) * np.maximum(0, m - flying) - stage.head * m
        buffers = (buffers * d.hidden + stage.head * m * d.vocab_size) * tokens / x.tensor * BFLOAT16
        rest = stage.head * logits + whole + buffers * x.kept_messages * (x.stages > 1)
        rows[at] = [*states, held, workspace + rest]
    fullest = rows.sum(axis=1).argmax(axis=0)
    chosen = rows[fullest, :, np.arange(len(x))].T
    return dict(zip(MEMORY_KINDS, chosen, strict=True)), fullest
