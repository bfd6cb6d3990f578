"""Bytes that a rank of a run sends: per layer and micro-batch along each axis of `Degrees`, and per step for gradients.

    >>> from parallel_lab.cost.planner import get_decoder
    >>> run = Degrees(64, tensor=2, context=2, stages=2, expert=8)
    >>> found = run_messages(get_decoder("mixtral_8x7b"), run, samples=1, seq_length=8192)
    >>> found.tensor_bytes, found.context_bytes, found.expert_bytes
    (83886080, 50331648, 117440512)

    tp        with sequence parallelism 10, or 8, otherwise 8 times (t - 1) / t b s h e / CP; half of it in a layer with
              experts, whose tokens stay divided
    cp        keys and values of n_kv / t heads, as a ring, gathered or exchanged (`sequence_messages.py`)
    ep        4 T k (1 - 1 / EP) h e: T tokens of a rank, there and back, forward and backward; alike experts
    etp       rows are gathered among the ranks that split an expert, and scattered: 4 T k (ETP - 1) h e
    pp        b s h e / (CP t) at a border, forward, and as much backward
    per step  2 (n - 1) / n of a rank's gradients among its n replicas: dp x cp, and edp for experts

All numbers are predicted, for ring or pairwise algorithms; what of them is hidden, no formula of bytes says.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.checks import checked, choice, flag, integer
from ...base.errors import ArgumentError
from .decoders import BFLOAT16, Decoder
from .degrees import GRADIENT_BYTES, Degrees
from .sequence_messages import AttentionMessages, sequence_parallel_messages

CONTEXT_WAYS = ("ring", "gathered", "exchanged")
_COUNT = integer(1, 10**9)


@dataclass(frozen=True)
class RunMessages:
    """Bytes that a rank sends.

    tensor_bytes, context_bytes, expert_bytes, expert_tensor_bytes   of one layer and micro-batch, both passes
    border_bytes                  to the next stage, and as much comes back; 0 with one stage
    dense_gradient_bytes, expert_gradient_bytes   of all layers of a rank, per step
    """

    tensor_bytes: int
    context_bytes: int
    expert_bytes: int
    expert_tensor_bytes: int
    border_bytes: int
    dense_gradient_bytes: float
    expert_gradient_bytes: float


@checked(samples=_COUNT, seq_length=_COUNT, way=choice(*CONTEXT_WAYS), sequence_parallel=flag, gathered_again=flag)
@checked(dense=flag, number_bytes=_COUNT, exchange=_COUNT)
def run_messages(
    decoder: Decoder,
    run: Degrees,
    samples: int,
    seq_length: int,
    *,
    way: str = "ring",
    exchange: int = 1,
    sequence_parallel: bool = True,
    gathered_again: bool = True,
    dense: bool = False,
    number_bytes: int = BFLOAT16,
) -> RunMessages:
    """What a rank sends for a layer of a decoder, and for its gradients.

    samples, seq_length   of a micro-batch
    way                   of context parallelism: one of CONTEXT_WAYS
    exchange              ranks of a hybrid that exchange heads; the others ring or gather
    sequence_parallel     norms and residuals are divided among the ranks of tp
    gathered_again        inputs of products in backward, as Megatron does it
    dense                 a layer without experts, of a network with some

    Raises ArgumentError where the run does not fit (`Degrees.misfit`), and for experts on ranks of tp without sequence
    parallelism: all of them would send the same tokens (Megatron-LM issue 1587).
    """
    if why := run.misfit(decoder, seq_length, sequence_parallel=sequence_parallel):
        raise ArgumentError(why, where="run_messages", allowed="A run that fits the decoder")
    t, experts = run.tensor, bool(decoder.experts) and not dense
    if experts and t > 1 and not sequence_parallel:
        what = f"experts with tensor={t} and without sequence parallelism"
        raise ArgumentError(what, where="run_messages", allowed="sequence_parallel=True")
    own_tokens = seq_length // run.context
    if sequence_parallel:
        sizes = (samples, own_tokens, decoder.hidden, t, number_bytes)
        tensor = sequence_parallel_messages(*sizes, gathered_again=gathered_again).sent_bytes
    else:  # four all_reduces, of tokens that need not divide
        tensor = 8 * samples * own_tokens * decoder.hidden * number_bytes * (t - 1) // t
    heads = run.context if way == "exchanged" else exchange
    inner, outer = context_shapes(decoder, run, samples, seq_length, heads, number_bytes)
    rows = samples * own_tokens // t * decoder.chosen if experts else 0  # that a rank sends, and receives if balanced
    row_bytes = decoder.hidden * number_bytes
    border = samples * own_tokens * row_bytes // (t if sequence_parallel else 1)
    states = run.states(decoder)
    n, m = run.gradients.dense_group, run.gradients.expert_group
    return RunMessages(
        tensor // 2 if experts else tensor,
        _context_bytes(inner, outer, way),
        4 * rows * (run.expert - 1) * row_bytes // run.expert,
        4 * rows * (run.expert_tensor - 1) * row_bytes,
        border if run.stages > 1 else 0,
        2 * (n - 1) / n * states.dense_parameters * GRADIENT_BYTES,
        2 * (m - 1) / m * states.expert_parameters * GRADIENT_BYTES,
    )


def context_shapes(
    decoder: Decoder, run: Degrees, samples: int, tokens: int, exchange: int, number_bytes: int = BFLOAT16
) -> tuple[AttentionMessages, AttentionMessages]:
    """Attention with the heads of a rank of tp: of `exchange` ranks that exchange heads, and of the rings outside.

    Expanded latent keys and values differ in width: two heads of their mean are as wide.
    """
    heads = decoder.heads // run.tensor
    kv_heads = heads if decoder.latent else max(1, decoder.kv_heads // run.tensor)
    size = (decoder.score_width + decoder.value_width) // (2 * decoder.heads)
    inner = AttentionMessages(samples, tokens // run.context * exchange, heads, size, exchange, kv_heads, number_bytes)
    travel = max(kv_heads, exchange) // exchange
    return inner, AttentionMessages(
        samples, tokens, heads // exchange, size, run.context // exchange, travel, number_bytes
    )


def _context_bytes(inner: AttentionMessages, outer: AttentionMessages, way: str) -> int:
    """Both passes of one attention."""
    rings = outer.gathered() if way == "gathered" else outer.ring()
    heads = inner.exchanged()
    return rings.forward_bytes + rings.backward_bytes + heads.forward_bytes + heads.backward_bytes
