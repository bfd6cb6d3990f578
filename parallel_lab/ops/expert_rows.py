"""Rows of experts: tokens are copied to the experts they chose, and what these give comes back, weighted and added.

    experts of 4 tokens    [[1, 0], [0, 2], [1, 2], [2, 0]]
    sorted by expert       token  0 1 3 | 0 2 | 1 2 3          row of (token, choice): [[3, 0], [1, 5], [4, 6], [7, 2]]
    slots, room for 2      token  0 1 | 0 2 | 1 2              choice by choice; token 3 finds no room: rows -1

`row_of` says where the copy of each (token, choice) lies, so that two ways to place them, packed (`sorted_rows`) and in
slots of equal size (`slot_rows`), share what copies (`dispatch_rows`) and what adds (`combine_rows`).

Packed rows travel by `exchange_rows`. Tokens lie in o * p groups, one per rank where all are split; the p ranks next to
each other have the experts among them, e / p each. What a rank gives each of them differs, and follows from `counts`,
rows of every group for every expert, which all of the p know before: so a rank knows where each row comes from. Memory
is reserved for the most that can come; behind the rows that did come are zeros.

    counts (p, e) of 2 ranks and 4 experts     [[3, 1, 0, 4], [2, 2, 2, 2]]
    rank 0 gives rank 1 4 rows and gets 4;  rank 1 has then 0 + 4 of rank 0, and 2 + 2 of its own

Slots need no such message: they are a plain tensor (o, p, e, room, h), and to split e where p was split is an
all_to_all of equal pieces.

Sources: Lepikhin et al. 2020 (slots); Megatron-Core's token dispatcher (counts to all, rows, back).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.checks import choice, flag, integer
from ..base.errors import ArgumentError
from .collectives.block_exchange import row_splits
from .expert_balance import load_of
from .expert_capacity import ORDERS, kept_choices, mindspore_v1_choices, turns
from .machine.operand_checks import floats, ints
from .machine.registry import case, op
from .routing import choose

# ---- on arrays ----


def permutation(experts: np.ndarray, order: str = "token_major") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Copies sorted by expert.  experts: (t, k) -> token and choice of each row, row of each flat (token, choice).

    order   of equal experts, and of the last result: "token_major" (MoeTokenPermute: the flat (t, k), sorted stably) or
            "choice_major" (MindFormers: of its transpose)
    """
    t, k = experts.shape
    flat = (experts if order == "token_major" else experts.T).reshape(-1)
    sorted_ = np.argsort(flat, kind="stable")
    token, choice = (sorted_ // k, sorted_ % k) if order == "token_major" else (sorted_ % t, sorted_ // t)
    return token, choice, np.argsort(sorted_, kind="stable")


@dataclass(frozen=True)
class Dispatch:
    """What ranks send each other where each routes its own tokens.

    experts   (ranks, t, k), the choices;  kept: (ranks, t, k) bool, which found room
    counts    (ranks, e), rows of each rank for each expert
    """

    experts: np.ndarray
    kept: np.ndarray
    counts: np.ndarray

    @classmethod
    def of_logits(
        cls,
        logits: np.ndarray,
        k: int,
        room: int | None = None,
        order: str = "choice_major",
        router: str = "softmax_topk",
    ) -> Dispatch:
        """From the logits of each rank's tokens, (ranks, t, e). room, order: see `kept_choices`; None: dropless. Order
        "mindspore_v1": as `mindspore_v1_choices` chooses and drops, which needs a room.
        """
        if logits.shape[-1] % len(logits):
            allowed = "As many experts on each rank"
            raise ArgumentError(f"{logits.shape[-1]} experts on {len(logits)} ranks", where="Dispatch", allowed=allowed)
        if order == "mindspore_v1" and room is not None:
            made = [mindspore_v1_choices(own, k, room) for own in logits]
            experts, kept = np.stack([e for e, _ in made]), [mine for _, mine in made]
        else:
            experts, weights = choose(logits, k, router)
            pairs = zip(experts, weights, strict=True)
            kept = [kept_choices(e, logits.shape[-1], room, order, w) for e, w in pairs]
        counts = [kept_load(e, mine, logits.shape[-1]) for e, mine in zip(experts, kept, strict=True)]
        return cls(experts, np.stack(kept), np.stack(counts))

    @property
    def sent(self) -> np.ndarray:
        """Rows that each rank gives each, itself included: (ranks, ranks). Received: its transpose."""
        return exchange_splits(self.counts)[0]

    @property
    def busiest_over_mean(self) -> float:
        """Rows of the busiest rank over the mean."""
        return busiest_over_mean(self.sent.sum(axis=0))


def drops_of(experts: np.ndarray, kept: np.ndarray, count: int) -> dict[str, Any]:
    """Kept choices as 0 and 1, how many were dropped, tokens that lost all, rows of each expert.  (t, k) each."""
    lost = int((~kept.any(axis=1)).sum())
    load = kept_load(experts, kept, count).tolist()
    return {"kept": kept.astype(int).tolist(), "dropped": int((~kept).sum()), "tokens_lost": lost, "load": load}


def exchange_splits(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that each rank sends to each, and receives.  counts: (ranks, e), rows of each rank for each expert."""
    ranks, experts = counts.shape
    sent = counts.reshape(ranks, ranks, experts // ranks).sum(axis=-1)
    return sent, sent.T


def busiest_over_mean(received: np.ndarray) -> float:
    """How much longer the layer takes than if balanced: rows of the busiest rank over the mean.  received: (ranks,).
    Without any row nobody waits: 1.
    """
    return float(received.max() / received.mean()) if received.any() else 1.0


def kept_load(experts: np.ndarray, kept: np.ndarray, count: int) -> np.ndarray:
    """Rows of each expert.  experts: (t, k), kept: (t, k) bool -> (count,)."""
    return load_of(np.where(kept, experts, count), count)


def bytes_leaving(sent: np.ndarray, row_bytes: int) -> list[int]:
    """Bytes that each rank sends to others.  sent: (ranks, ranks), rows of each for each."""
    return ((sent.sum(axis=1) - np.diag(sent)) * row_bytes).tolist()


# ---- where copies lie ----


def _by_group(function, *arrays):
    """`function` of each group of tokens: of the last two dims of the arrays; its results, stacked as they were."""
    groups = arrays[0].shape[:-2]
    flat = [x.reshape(math.prod(groups), *x.shape[len(groups) :]) for x in arrays]
    results = zip(*(function(*own) for own in zip(*flat, strict=True)), strict=True)
    return tuple(np.stack(each).reshape(*groups, *each[0].shape) for each in results)


_PLACES = {"dtype": "int32", "whole": "nke", "sizes": lambda shapes, *, expert_num, **_: {"e": expert_num}, "flops": 4}


@op(
    "...nk->...nk,...e",
    name="SortedRows",
    attrs={"expert_num": integer(1)},
    check=lambda operands, **_: ints(operands[0], "experts"),
    example=(case((8, 2), ints={0: 4}, expert_num=4), case((4, 2, 3, 2), ints={0: 6}, expert_num=5)),
    **_PLACES,
)
def sorted_rows(experts, *, expert_num=1):
    """Rows of copies sorted by expert, token by token within each.  experts: (..., n, k) -> (..., n, k), (..., e).

    The first, int32: the row of each (token, choice); the second: rows of each expert. A number that names no expert
    is a dropped choice: row -1.
    """

    def of_group(own):
        inside = (own >= 0) & (own < expert_num)
        order = np.argsort(np.where(inside, own, expert_num), axis=None, kind="stable")
        rows = np.argsort(order, kind="stable").reshape(own.shape)
        return np.where(inside, rows, -1).astype(np.int32), load_of(own, expert_num).astype(np.int32)

    return _by_group(of_group, experts)


@op(
    "...nk,...nk->...nk,...e",
    name="SlotRows",
    attrs={"expert_num": integer(1), "room": integer(1), "order": choice(*ORDERS)},
    check=lambda operands, **_: ints(operands[0], "experts") or floats(operands[1]),
    example=(
        case((8, 2), (8, 2), ints={0: 4}, expert_num=4, room=3),
        case((4, 2, 3, 2), (4, 2, 3, 2), ints={0: 4}, expert_num=4, room=1, order="weight"),
    ),
    **_PLACES,
)
def slot_rows(experts, weights, *, expert_num=1, room=1, order="choice_major"):
    """Rows of copies in slots: each expert has `room` of them.  experts, weights: (..., n, k) -> (..., n, k), (..., e).

    The first, int32: expert * room + place, in the order in which they found room, or -1 of a dropped choice; the
    second: slots taken. order: see `kept_choices`.
    """

    def of_group(own, own_weights):
        kept = kept_choices(own, expert_num, room, order, own_weights)
        turn, place = turns(own, order, own_weights).reshape(-1), np.zeros(own.size, np.int64)
        numbers = np.where(kept, own, -1).reshape(-1)
        for expert in np.unique(numbers[numbers >= 0]):
            mine = np.flatnonzero(numbers == expert)
            place[mine[np.argsort(turn[mine])]] = np.arange(len(mine))
        rows = np.where(kept, own * room + place.reshape(own.shape), -1)
        return rows.astype(np.int32), kept_load(own, kept, expert_num).astype(np.int32)

    return _by_group(of_group, experts, weights)


# ---- copies, and their sums ----


@op(
    "...nh,...nk->...rh",
    name="DispatchRows",
    attrs={"rows": integer(1)},
    check=lambda operands, **_: ints(operands[1], "row_of"),
    dtype=0,
    sizes=lambda shapes, *, rows: {"r": rows},
    whole="nkr",
    flops=0,
    example=(case((8, 6), (8, 1), ints={1: 4}, rows=5), case((2, 4, 6), (2, 4, 2), ints={1: 6}, rows=8)),
)
def dispatch_rows(x, row_of, *, rows=1):
    """Copies of tokens in their rows, zeros elsewhere.  x: (..., n, h), row_of: (..., n, k) -> (..., rows, h).

    Copies that share a row are added; those of `sorted_rows` and `slot_rows` never do.
    """

    def of_group(own, numbers):
        made, kept = np.zeros((rows, own.shape[-1]), own.dtype), numbers >= 0
        np.add.at(made, numbers[kept], own[np.nonzero(kept)[0]])
        return (made,)

    return _by_group(of_group, x, row_of)[0]


@op(result_shape=lambda shapes, **_: (*shapes[1][:-1], shapes[0][-1]), dtype=0)
def dispatch_rows_grad(g, row_of):
    """Gradient for the tokens: the sum of their copies'.  g: (..., r, h), row_of: (..., n, k) -> (..., n, h)."""
    return sum(picked_rows(g, row_of[..., j]) for j in range(row_of.shape[-1]))


@dispatch_rows.vjp
def _(g, out, x, row_of, *, rows):
    return dispatch_rows_grad(g, row_of), None


def picked_rows(rows, numbers):
    """Rows by number, zeros for -1.  rows: (..., r, h), numbers: (..., n) -> (..., n, h)."""
    picked = np.take_along_axis(rows, np.maximum(numbers, 0)[..., None], axis=-2)
    picked[numbers < 0] = 0
    return picked


@op(
    "...rh,...nk,...nk->...nh",
    name="CombineRows",
    check=lambda operands, **_: floats(operands[1]) or ints(operands[2], "row_of"),
    dtype=0,
    whole="nkr",
    flops=lambda s: 2 * s.n * s.k * s.h,
    example=(case((5, 6), (8, 1), (8, 1), ints={2: 5}), case((2, 8, 6), (2, 4, 2), (2, 4, 2), ints={2: 8})),
)
def combine_rows(rows, weights, row_of):
    """What a token's experts gave, weighted and added, choice by choice; a dropped choice gives nothing.

    rows: (..., r, h), weights, row_of: (..., n, k) -> (..., n, h)
    """
    parts = (picked_rows(rows, row_of[..., j]) * weights[..., j, None] for j in range(row_of.shape[-1]))
    return sum(parts).astype(rows.dtype, copy=False)


@op(result_shape=lambda shapes, *, rows: (*shapes[1][:-2], rows, shapes[0][-1]), dtype=0)
def combine_rows_grad(g, weights, row_of, *, rows):
    """Gradient for the rows.  g: (..., n, h), weights, row_of: (..., n, k) -> (..., rows, h)."""

    def of_group(own, own_weights, numbers):
        made, kept = np.zeros((rows, own.shape[-1]), own.dtype), numbers >= 0
        np.add.at(made, numbers[kept], own[np.nonzero(kept)[0]] * own_weights[kept][:, None])
        return (made,)

    return _by_group(of_group, g, weights, row_of)[0]


@op(result_shape=2, dtype=1)
def combine_rows_weight_grad(g, rows, row_of):
    """Gradient for the weights.  g: (..., n, h), rows: (..., r, h), row_of: (..., n, k) -> (..., n, k)."""
    return np.stack([np.vecdot(g, picked_rows(rows, row_of[..., j])) for j in range(row_of.shape[-1])], axis=-1)


@combine_rows.vjp
def _(g, out, rows, weights, row_of):
    count = int(rows.shape[-2])
    return combine_rows_grad(g, weights, row_of, rows=count), combine_rows_weight_grad(g, rows, row_of), None


# ---- rows travel ----


def _check_exchange(operands, *, rows, back):
    x, counts = (each.shape for each in operands)
    if x[1] != counts[1] or counts[2] % x[1]:
        return f"x has shape {x}, counts {counts}", "(o, p, n, h) and (o, p, e), where p divides e"
    return ints(operands[1], "counts")


def _whole_groups(signature, cuts, sizes, **_):
    """Ranks that exchange rows have a group each."""
    if cuts["p"] == 1 or (cuts["p"], cuts["o"]) == (sizes["p"], sizes["o"]):
        return None
    what = f"splits {sizes['o']} x {sizes['p']} groups of tokens {cuts['o']} x {cuts['p']} ways"
    return what, "All groups split, so that each rank has one; or dim 1 whole"


@op(
    "opnh,oae->opmh",
    name="ExchangeRows",
    attrs={"rows": integer(1), "back": flag},
    check=_check_exchange,
    dtype=0,
    sizes=lambda shapes, *, rows, **_: {"m": rows},
    whole="naem",
    restrict=_whole_groups,
    axes="opnhaem",
    exchanges="p",
    flops=0,
    example=(
        case((2, 2, 6, 4), (2, 2, 2), ints={1: 3}, rows=10),
        case((1, 4, 8, 2), (1, 4, 4), ints={1: 2}, rows=8),
        case((2, 2, 10, 4), (2, 2, 2), ints={1: 3}, rows=6, back=True),
    ),
)
def exchange_rows(x, counts, *, rows=1, back=False):
    """Each group's rows go to the places of their experts.  x: (o, p, n, h) -> (o, p, rows, h).

    counts  (o, p, e) ints: rows of every group for every expert, e / p next to each other at each place
    rows    room for the rows that come; zeros behind them
    back    the other way: what came returns to the groups

    Row i of what a place gives goes to the place that it is for, in order; what comes lies in order of the givers. On
    ranks that split p it is an all_to_all_v among p ranks.
    """
    made = np.zeros((*x.shape[:2], rows, x.shape[3]), x.dtype)
    for own, own_made, own_counts in zip(x, made, counts, strict=True):
        splits = row_splits(own_counts, back)
        given, taken = starts(splits), starts(splits.T)
        for i, j in np.ndindex(splits.shape):
            count = splits[i, j]
            own_made[j, taken[j, i] : taken[j, i] + count] = own[i, given[i, j] : given[i, j] + count]
    return made


@exchange_rows.vjp
def _(g, out, x, counts, *, back, **_):
    return exchange_rows(g, counts, rows=int(x.shape[2]), back=not back), None


def starts(splits):
    """Where each part begins.  splits: (p, p), counts of parts along each row -> (p, p)."""
    return np.cumsum(splits, axis=1) - splits


# ---- what experts compute on packed rows ----


def _each_expert(counts, experts, offset, *arrays):
    """Every expert here: (group, its number here, its rows, the arrays of its place).

    counts: (o, p, e), experts: so many are here, from number `offset` on;  arrays: (o, experts, r, ...), packed rows
    """
    own = counts.shape[2] // counts.shape[1]  # of a place
    for o, of_groups in enumerate(counts.reshape(*counts.shape[:2], -1, own)):
        for place in range(experts // own):
            here = of_groups[:, offset // own + place]
            first = np.cumsum(here).reshape(here.shape) - here
            packed = [x[o, place * own : (place + 1) * own].reshape(-1, x.shape[-1]) for x in arrays]
            for expert in range(own):
                pairs = zip(first[:, expert], here[:, expert], strict=True)
                rows = np.concatenate([np.arange(start, start + count) for start, count in pairs])
                yield o, place * own + expert, rows, packed


def _check_product(operands, **_):
    x, counts = (each.shape for each in operands[:2])
    if counts[2] != x[1] or counts[2] % counts[1]:
        return f"x has shape {x}, counts {counts}", "(o, e, r, h) and (o, p, e), where p divides e"
    return ints(operands[1], "counts")


def _whole_places(signature, cuts, sizes, **_):
    """A rank has all experts of a place, or of several."""
    if sizes["a"] % cuts["e"] == 0:
        return None
    what = f"splits {sizes['e']} experts {cuts['e']} ways, whose rows lie at {sizes['a']} places"
    return what, "A count that divides the places"


_PLACED = {"dtype": 0, "part_size": lambda shapes, attrs: shapes[0][1]}


@op(
    "oerh,oag,ehf->oerf",
    name="ExpertProduct",
    check=_check_product,
    whole="agr",
    restrict=_whole_places,
    axes="oerhfag",
    offset="e",
    flops=lambda s: 2 * s.o * s.e * s.r * s.h * s.f,
    example=(
        case((2, 4, 8, 4), (2, 4, 4), (4, 4, 6), ints={1: 3}),
        case((2, 4, 6, 4), (2, 2, 4), (4, 4, 6), ints={1: 3}),
        case((1, 2, 4, 4), (1, 1, 2), (2, 4, 6), ints={1: 5}),
    ),
    **_PLACED,
)
def expert_product(x, counts, weight, *, offset=0):
    """Every row times the matrix of its expert.  x: (o, e, r, h), weight: (e, h, f) -> (o, e, r, f).

    counts  (o, p, e) ints: rows of every group for every expert; 0 behind the last row

    Rows as `exchange_rows` brings them, (o, p, rows, h), in the shape (o, e, rows p / e, h), so that the dim that is
    split is that of the experts. At each place lie those of group 0, sorted by expert, then those of group 1; the rows
    of an expert are multiplied together, in the order of the tokens.
    """
    made = np.zeros((*x.shape[:3], weight.shape[2]), np.result_type(x, weight))
    for _, expert, rows, (own, result) in _each_expert(counts, x.shape[1], offset, x, made):
        result[rows] = own[rows] @ weight[expert]
    return made.astype(x.dtype, copy=False)


@op(result_shape=lambda shapes: (*shapes[0][:3], shapes[2][1]), **_PLACED)
def expert_product_grad(g, counts, weight, *, offset=0):
    """Gradient for the rows.  g: (o, e, r, f), counts: (o, p, e), weight: (e, h, f) -> (o, e, r, h)."""
    made = np.zeros((*g.shape[:3], weight.shape[1]), g.dtype)
    for _, expert, rows, (own, result) in _each_expert(counts, g.shape[1], offset, g, made):
        result[rows] = own[rows] @ weight[expert].T
    return made


@op(result_shape=lambda shapes: (shapes[0][1], shapes[1][3], shapes[0][3]), **_PLACED)
def expert_product_weight_grad(g, x, counts, *, offset=0):
    """Gradient for the weight; 0 of an expert without a row.  g: (o, e, r, f), x: (o, e, r, h) -> (e, h, f)."""
    made = np.zeros((g.shape[1], x.shape[3], g.shape[3]), g.dtype)
    for _, expert, rows, (own_g, own) in _each_expert(counts, g.shape[1], offset, g, x):
        if len(rows):
            made[expert] += own[rows].T @ own_g[rows]
    return made


@expert_product.vjp
def _(g, out, x, counts, weight):
    return expert_product_grad(g, counts, weight), None, expert_product_weight_grad(g, x, counts)


# ---- what experts compute in slots ----


@op(
    "opech,ehf->opecf",
    name="SlotProduct",
    axes="opechf",
    flops=lambda s: 2 * s.o * s.p * s.e * s.c * s.h * s.f,
    dtype=0,
    example=case((2, 2, 4, 3, 4), (4, 4, 6)),
)
def slot_product(x, weight):
    """Every slot times the matrix of its expert.  x: (o, p, e, c, h), weight: (e, h, f) -> (o, p, e, c, f)."""
    return np.matmul(x, weight).astype(x.dtype, copy=False)


@op(result_shape=lambda shapes: (*shapes[0][:4], shapes[1][1]), dtype=0)
def slot_product_grad(g, weight):
    """Gradient for the slots.  g: (o, p, e, c, f), weight: (e, h, f) -> (o, p, e, c, h)."""
    return np.matmul(g, np.swapaxes(weight, 1, 2))


@op(result_shape=lambda shapes: (shapes[0][2], shapes[1][4], shapes[0][4]), dtype=0)
def slot_product_weight_grad(g, x):
    """Gradient for the weight.  g: (o, p, e, c, f), x: (o, p, e, c, h) -> (e, h, f)."""
    rows = [np.moveaxis(each, 2, 0).reshape(g.shape[2], -1, each.shape[-1]) for each in (x, g)]
    return np.matmul(np.swapaxes(rows[0], 1, 2), rows[1])


@slot_product.vjp
def _(g, out, x, weight):
    return slot_product_grad(g, weight), slot_product_weight_grad(g, x)
