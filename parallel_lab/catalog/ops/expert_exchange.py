"""Tokens go to the ranks that have their experts, and what these give comes back: one call on every rank, in inference.

    found = ops.moe_distribute_dispatch(x, expert_ids, "", 4, get_rank(), 8)       x: (t, h), expert_ids: (t, k) int32
    y = experts_of_this_rank(found[0], found[3])                                   rows of its first expert first
    ops.moe_distribute_combine(y, expert_ids, found[2], found[4], expert_scales, "", 4, get_rank(), 8)       (t, h)

Counts are exchanged first, rows after them (AlltoAllV). Signature and results are those of torch_npu's operators of the
same names; the page of MindSpore's own was not at hand. What they do on one node without quantization is done, and the
rest refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import integer
from ...base.errors import NotBuiltYet, ShapeError, shorten
from ...ops.collectives.point_to_point import array_of
from ...ops.expert_balance import load_of
from ...ops.expert_rows import permutation
from ...ops.spellings import function
from .exchanges import AlltoAllV

_ZERO = ("expert_shard_type", "shared_expert_rank_num", "quant_mode", "comm_quant_mode", "tp_rank_id")
_ALLOWED: dict[str, tuple[int | str, ...]] = {**dict.fromkeys(_ZERO, (0,)), "tp_world_size": (0, 1), "group_tp": ("",)}
_ALLOWED |= {"scales": (), "x_active_mask": ()}


def _checked(where: str, ids: Any, ranks: Any, rank: Any, experts: Any, group: str, more: dict[str, Any]) -> Any:
    """(expert ids, experts of a rank, a function that exchanges rows), all arguments checked."""
    for name, value in more.items():
        if value is not None and not (isinstance(value, (int, str)) and value in _ALLOWED[name]):
            hint = "No quantization, no shared experts on ranks of their own, no tensor parallel groups"
            raise NotBuiltYet(f"{name}={shorten(value)} is not available", where=where, hint=hint)
    ranks, experts = integer(1)(where, "ep_world_size", ranks), integer(1, 512)(where, "moe_expert_num", experts)
    exchange = AlltoAllV(group or None)
    me, members = exchange.place()
    ids = array_of(where, ids)
    for holds, what, allowed in (
        (len(members) == ranks, f"ep_world_size={ranks} in a group of {len(members)}", "The size of the group"),
        (members[integer(0, ranks - 1)(where, "ep_rank_id", rank)] == me, f"ep_rank_id={rank}", "This rank's place"),
        (experts % ranks == 0, f"{experts} experts on {ranks} ranks", "As many on each"),
        (ids.ndim == 2 and ids.dtype.kind in "iu", f"expert_ids {ids.dtype} of shape {ids.shape}", "(t, k) ints"),
        (
            ids.size == 0 or 0 <= ids.min() <= ids.max() < experts,
            "a number that names no expert",
            f"0 to {experts - 1}",
        ),
    ):
        if not holds:
            raise ShapeError(what, where=where, allowed=allowed)

    def exchanged(x: np.ndarray, sent: np.ndarray, received: np.ndarray) -> np.ndarray:
        """Rows for each rank in order, x: (rows, width) -> rows of each rank in order."""
        width = max(1, int(np.prod(x.shape[1:])))
        give, take = (each.astype(int).tolist() for each in (sent, received))
        made = AlltoAllV(group or None, width)(x.reshape(-1), give, take)
        return np.asarray(made.asnumpy() if hasattr(made, "asnumpy") else made).reshape(-1, *x.shape[1:])

    return ids, experts // ranks, exchanged


def _by_expert(received: np.ndarray) -> np.ndarray:
    """Rows come rank by rank, sorted by expert; where each stands expert by expert.  received: (ranks, own experts)."""
    ranks, own = received.shape
    return np.argsort(np.repeat(np.tile(np.arange(own), ranks), received.reshape(-1)), kind="stable")


@function(mint="")
def moe_distribute_dispatch(
    x,
    expert_ids,
    group_ep="",
    ep_world_size=1,
    ep_rank_id=0,
    moe_expert_num=1,
    *,
    scales=None,
    x_active_mask=None,
    expert_scales=None,
    group_tp="",
    tp_world_size=0,
    tp_rank_id=0,
    expert_shard_type=0,
    shared_expert_num=1,
    shared_expert_rank_num=0,
    quant_mode=0,
    global_bs=0,
    expert_token_nums_type=1,
):
    """Rows for the experts of this rank, from all ranks of `group_ep` (names and results: torch_npu's).

    x: (t, h), expert_ids: (t, k) int32, different ones in a row -> expand_x (a, h), rows by expert, then by rank, zeros
    behind them; dynamic_scales, None; expand_idx (t k,) int32, the number of a choice among those of this rank for its
    expert; expert_token_nums (e,) int64 of each own expert (expert_token_nums_type=0: added up); ep_recv_counts
    (ranks e,) int32, rows of each expert from each rank, added up; tp_recv_counts, None; expand_scales: (a,) the
    weights of the rows, with expert_scales (t, k), otherwise None.  a = global_bs min(e, k); global_bs 0: t ranks

    Every rank of the group calls it; no gradient. Raises NotBuiltYet and ShapeError.
    """
    where, x = "moe_distribute_dispatch", array_of("moe_distribute_dispatch", x)
    given = {name: value for name, value in locals().items() if name in _ALLOWED}
    ids, own, exchanged = _checked(where, expert_ids, ep_world_size, ep_rank_id, moe_expert_num, group_ep, given)
    if x.ndim != 2 or len(x) != len(ids):
        what = f"x of shape {x.shape} with expert_ids of shape {ids.shape}"
        raise ShapeError(what, where=where, allowed="(t, h) and (t, k)")
    token, choice, row_of = permutation(ids)
    load = load_of(ids, moe_expert_num)
    each = np.full(ep_world_size, own)
    received = exchanged(load.astype(np.int32).reshape(-1, 1), each, each).reshape(ep_world_size, own)
    sent = load.reshape(ep_world_size, own).sum(axis=1)
    order, room = _by_expert(received), (global_bs or len(x) * ep_world_size) * min(own, ids.shape[1])

    def bound(rows):
        came = exchanged(rows, sent, received.sum(axis=1))[order]
        return np.concatenate([came, np.zeros((max(room - len(came), 0), *rows.shape[1:]), rows.dtype)])

    weights = (
        None if expert_scales is None else bound(array_of(where, expert_scales)[token, choice].reshape(-1, 1))[:, 0]
    )
    starts = np.cumsum([0, *load])[ids.reshape(-1)]
    nums = received.sum(axis=0).astype(np.int64)
    counts = np.cumsum(received.T.reshape(-1)).astype(np.int32)
    place = (row_of - starts).astype(np.int32)
    return bound(x[token]), None, place, nums if expert_token_nums_type else np.cumsum(nums), counts, None, weights


@function(mint="")
def moe_distribute_combine(
    expand_x,
    expert_ids,
    expand_idx,
    ep_send_counts,
    expert_scales,
    group_ep="",
    ep_world_size=1,
    ep_rank_id=0,
    moe_expert_num=1,
    *,
    tp_send_counts=None,
    x_active_mask=None,
    group_tp="",
    tp_world_size=0,
    tp_rank_id=0,
    expert_shard_type=0,
    shared_expert_num=1,
    shared_expert_rank_num=0,
    global_bs=0,
    comm_quant_mode=0,
):
    """What experts made of the rows of `moe_distribute_dispatch`, back at their tokens: the weighted sum over choices.

    expand_x: (a, h), expert_ids: (t, k), expand_idx, ep_send_counts: as dispatch gave them, expert_scales: (t, k) ->
    (t, h).  Every rank of the group calls it; no gradient. Raises NotBuiltYet and ShapeError.
    """
    where, rows = "moe_distribute_combine", array_of("moe_distribute_combine", expand_x)
    given = {name: value for name, value in locals().items() if name in _ALLOWED}
    ids, own, exchanged = _checked(where, expert_ids, ep_world_size, ep_rank_id, moe_expert_num, group_ep, given)
    sums, place, weights = (array_of(where, each) for each in (ep_send_counts, expand_idx, expert_scales))
    if sums.shape != (own * ep_world_size,) or place.shape != (ids.size,) or weights.shape != ids.shape:
        what = f"ep_send_counts {sums.shape}, expand_idx {place.shape}, expert_scales {weights.shape}"
        raise ShapeError(what, where=where, allowed=f"({own * ep_world_size},), ({ids.size},) and {ids.shape}")
    received = np.diff(sums, prepend=0).reshape(own, ep_world_size).T
    load = load_of(ids, moe_expert_num)
    back = np.empty((received.sum(), rows.shape[1]), rows.dtype)
    back[_by_expert(received)] = rows[: len(back)]
    came = exchanged(back, received.sum(axis=1), load.reshape(ep_world_size, own).sum(axis=1))
    numbers = np.cumsum([0, *load])[ids.reshape(-1)] + place
    parts = came[numbers].reshape(*ids.shape, -1) * weights[..., None]
    return parts.sum(axis=1).astype(rows.dtype)
