"""The museum: bugs that cost people weeks, each in a network that trains on four ranks, with a switch.

museum.PIECES["local positions"]      in a notebook its page: the number, what mends and finds it, the lines; or printed
print(museum.tour())                  all of them, measured; the first are those of lessons 14 to 16
"""

from __future__ import annotations

from ...base.units import table_lines
from . import context_parallel as cp, data_parallel as dp, expert_parallel as ep, sequence_parallel as sp
from .piece import Piece as Piece

_PIECES = (
    *(sp.NORM_GRADIENT_UNSUMMED, sp.NORM_GRADIENT_AVERAGED, cp.LOCAL_POSITIONS, cp.BLOCK_LOG_SUM_EXP),
    *(ep.EXPERT_DIVISOR, ep.BALANCE_PER_RANK, ep.ORDER_NOT_RESTORED),
    *(cp.LOSS_OVER_CP, cp.LOGGED_LOSS, cp.GROUP_WITHOUT_SEQUENCE, cp.LAST_TOKENS, cp.LABELS_IN_SHARD, cp.MASK_CAUSAL),
    *(cp.EMPTY_RANK, cp.ZIGZAG_OUTPUT, sp.KV_HEADS, ep.ROUTER_DRIFTS, ep.CAPACITY_ZEROS, ep.TOP_ONE_WEIGHT),
    *(ep.CLIP_OMITS_EXPERTS, sp.CLIP_COUNTS_COPIES, sp.PARTIAL_READ, sp.SAME_NOISE, cp.MEAN_OF_MEANS, dp.LOSS_SCALE),
    *(sp.NONLINEARITY, ep.ROUTER_BIAS, dp.BATCH_NORM, dp.ACCUMULATION),
)
PIECES: dict[str, Piece] = {piece.name: piece for piece in _PIECES}


def tour(executor: str = "simulator") -> str:
    """A line per piece: its name, where people met it, the number as it should be and as it is with the bug, and which
    of its loss, its gradients, values inside, copies on ranks and the types of a plan show it."""
    measured = ((p, p.measured(False, executor), p.measured(True, executor)) for p in PIECES.values())
    rows = [(p.name, p.source, p.symptom, f"{a:.4g}", f"{b:.4g}", ", ".join(p.shown_by)) for p, a, b in measured]
    return "\n".join(table_lines([("bug", "issue", "symptom", "right", "wrong", "shown by"), *rows]))
