"""The museum: bugs that cost people weeks, each in a network that trains on four ranks, with a switch.

museum.PIECES["local positions"]      in a notebook its page: the number, what mends and finds it, the lines; or printed
print(museum.tour())                  all of them, measured; the first are those of lessons 14 to 16
"""

from __future__ import annotations

from ...base.units import table_lines
from . import (
    accumulation,
    balance_per_rank,
    batch_norm,
    block_log_sum_exp,
    capacity_zeros,
    clip_counts_copies,
    clip_omits_experts,
    empty_rank,
    expert_divisor,
    group_without_sequence,
    kv_heads,
    labels_in_shard,
    last_tokens,
    local_positions,
    logged_loss,
    loss_over_cp,
    loss_scale,
    mask_causal,
    mean_of_means,
    nonlinearity,
    norm_gradient_averaged,
    norm_gradient_unsummed,
    order_not_restored,
    partial_read,
    router_bias,
    router_drifts,
    same_noise,
    top_one_weight,
    zigzag_output,
)
from .piece import Piece as Piece

_ROOMS = (
    norm_gradient_unsummed,
    norm_gradient_averaged,
    local_positions,
    block_log_sum_exp,
    expert_divisor,
    balance_per_rank,
    order_not_restored,
    loss_over_cp,
    logged_loss,
    group_without_sequence,
    last_tokens,
    labels_in_shard,
    mask_causal,
    empty_rank,
    zigzag_output,
    kv_heads,
    router_drifts,
    capacity_zeros,
    top_one_weight,
    clip_omits_experts,
    clip_counts_copies,
    partial_read,
    same_noise,
    mean_of_means,
    loss_scale,
    nonlinearity,
    router_bias,
    batch_norm,
    accumulation,
)
PIECES: dict[str, Piece] = {room.PIECE.name: room.PIECE for room in _ROOMS}


def tour(executor: str = "simulator") -> str:
    """A line per piece: its name, where people met it, the number as it should be and as it is with the bug, and which
    of its loss, its gradients, values inside, copies on ranks and the types of a plan show it."""
    measured = ((p, p.measured(False, executor), p.measured(True, executor)) for p in PIECES.values())
    rows = [(p.name, p.source, p.symptom, f"{a:.4g}", f"{b:.4g}", ", ".join(p.shown_by)) for p, a, b in measured]
    return "\n".join(table_lines([("bug", "issue", "symptom", "right", "wrong", "shown by"), *rows]))
