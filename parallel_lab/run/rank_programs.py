"""Ring attention, and Ulysses, as rank programs: generators of requests, for any number of ranks, 3 and 6 too.

    def program(rank):
        out, lse = yield from ring_attention(rank, 3, *mine[rank], placement="zigzag")
        return (yield from ring_attention_back(rank, 3, g[rank], out, lse, *mine[rank], placement="zigzag"))

    simulate([program(rank) for rank in range(3)])
    ring_results(q, k, v, Placement("zigzag", 12, 3))           the same from whole arrays
    exchange_attention(rank, 3, *mine[rank], g=g[rank])         heads exchanged against tokens

What runs is what a compiled plan unfolds to (`ops/context_attention.py`), on this rank's arrays, with its messages as
requests. Two mistakes that people make can be switched on.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np

from ..base.checks import choice, integer
from ..base.errors import ShapeError
from ..layout.placements import Placement
from ..ops.context_attention import (
    SETTINGS,
    attention_block,
    attention_block_grad,
    context_attention,
    context_attention_grad,
    ring,
    ring_back,
)
from ..ops.machine import unfolding
from .communicator import Request, Start, Wait
from .simulator import simulate

MISTAKES = ("mean_of_blocks", "local_lse_in_backward")
NAMES = ("out", "lse", "dq", "dk", "dv")
Array = np.ndarray
RankProgram = Generator[Request | Start | Wait, Any, tuple[Array, ...]]


def as_requests(program: unfolding.Program, group: tuple[int, ...]) -> RankProgram:
    """A rank program of operators with its messages as requests among `group`; returns what the program returns."""
    answer = None
    try:
        while True:
            asked = program.send(answer)
            if isinstance(asked, unfolding.Wait):
                answer = yield Wait(asked.handle)
            else:
                answer = yield Start(Request(asked.kind, group, asked.value, **asked.attrs))
    except StopIteration as end:
        return end.value


def ring_attention(
    rank: int,
    ranks: int,
    q: Array,
    k: Array,
    v: Array,
    *,
    mistake: str = "",
    stop_after: int | None = None,
    **settings: Any,
) -> RankProgram:
    """Attention of this rank's queries to all keys.  q: (b, c, g, r, d), k, v: (b, c, g, d) -> out: (b, c, g, r, d),
    lse: (b, c, g, r).

    ranks       how many share the sequence, c tokens each, in the order of `placement`
    settings    of `ops.context_attention`: causal, window, documents, scale, placement, compute_all
    stop_after  the result of this step and those before it, step 0 being the rank's own keys; the ring goes on
    mistake     "mean_of_blocks": the blocks' results are averaged, whatever the sums of their exponentials are

    Raises ArgumentError for an unknown mistake or a step that is not there.
    """
    where = "ring_attention"
    mistake = choice("", MISTAKES[0])(where, "mistake", mistake)
    last = (integer(0, ranks - 1) | None)(where, "stop_after", stop_after)
    kept: list[Any] = []
    seen = np.zeros(q.shape[:-1], int)  # how many blocks each row has seen a key of

    def block(*operands: Array, turn: int, **attrs: Any) -> Any:
        state = operands[3:]
        if mistake:
            out, lse = attention_block.compute(*operands[:3], turn=turn, **attrs)
            sees = lse > -np.inf
            seen[...] += sees
            earlier = state[0] if state else np.zeros_like(out)
            result = earlier + (out - earlier) * (sees / np.maximum(seen, 1))[..., None], lse
        else:
            result = attention_block.compute(*operands, turn=turn, **attrs)
        if turn == last:
            kept.extend(x.copy() for x in result)  # the next block works in their memory
        return result

    out, lse = yield from as_requests(ring(block, (q, k, v), _attrs(rank, ranks, settings)), tuple(range(ranks)))
    return tuple(kept) if kept else (out, lse)


def ring_attention_back(
    rank: int,
    ranks: int,
    g: Array,
    out: Array,
    lse: Array,
    q: Array,
    k: Array,
    v: Array,
    *,
    mistake: str = "",
    **settings: Any,
) -> RankProgram:
    """Gradients of `ring_attention` for q, k and v, from that of its result.

    g, out: (b, c, g, r, d), lse: (b, c, g, r), q: (b, c, g, r, d), k, v: (b, c, g, d) -> like q, k, v

    mistake  "local_lse_in_backward": each block's weights are normalised by that block alone, and add up to 1 in each
    """
    mistake = choice("", MISTAKES[1])("ring_attention_back", "mistake", mistake)

    def block(g: Array, inner: Array, lse: Array, q: Array, k: Array, v: Array, *of_q: Array, **attrs: Any) -> Any:
        if mistake:
            out, lse = attention_block.compute(q, k, v, **attrs)
            inner = (g * out).sum(axis=-1)
        return attention_block_grad.compute(g, inner, lse, q, k, v, *of_q, **attrs)

    inner = (g * out).sum(axis=-1)
    program = ring_back(block, (g, inner, lse, q, k, v), _attrs(rank, ranks, settings))
    return (yield from as_requests(program, tuple(range(ranks))))


def exchange_attention(
    rank: int, ranks: int, q: Array, k: Array, v: Array, *, g: Array | None = None, **settings: Any
) -> RankProgram:
    """The same by DeepSpeed-Ulysses: heads are exchanged against tokens, and results come back. Operands and results as
    in `ring_attention`; with g, the gradient of out, it returns (out, lse, dq, dk, dv).

    Where ranks are more than key heads each head is repeated, and the gradients of its copies are added up.

    Raises ShapeError unless ranks divide the heads, and key heads divide ranks or are divided by them.
    """
    group, (b, c, groups, shared, d) = tuple(range(ranks)), q.shape
    repeats = ranks // math.gcd(groups, ranks)
    if shared % repeats or repeats not in (1, ranks // groups):
        given = f"{ranks} ranks for {groups * shared} heads that read {groups} key heads"
        allowed = "Ranks that divide the key heads, or are a multiple of them that divides the heads"
        raise ShapeError(given, where="exchange_attention", allowed=allowed)
    settings = {"ranks": ranks, **settings}
    mine = [q.reshape(b, c, groups * repeats, -1, d), *(np.repeat(x, repeats, 2) for x in (k, v))]
    if g is not None:
        mine.append(g.reshape(mine[0].shape))
    whole = []
    for x in mine:
        whole.append((yield Request("all_to_all", group, x, split_dim=2, concat_dim=1)))
    results = context_attention.compute(*whole[:3], **settings)
    if g is not None:
        of_out, (out, lse) = whole.pop(), results
        results += context_attention_grad.compute(of_out, (of_out * out).sum(-1), lse, *whole, **settings)
    home = []
    for x in results:
        home.append((yield Request("all_to_all", group, x, split_dim=1, concat_dim=2)))
    of_queries = (x.reshape(b, c, groups, shared, *x.shape[4:]) for x in home[:3])
    return (*of_queries, *(x.reshape(b, c, groups, repeats, d).sum(axis=3) for x in home[3:]))


def ring_results(
    q: Array,
    k: Array,
    v: Array,
    placement: Placement,
    *,
    g: Array | None = None,
    mistake: str = "",
    stop_after: int | None = None,
    **settings: Any,
) -> dict[str, Array]:
    """One head's attention and gradients from a ring of simulated ranks, rows in the order of the sequence.

    q, k, v, g: (n, d), g the gradient of the result -> out: (n, d), lse: (n,) and, with g, dq, dk, dv: (n, d).
    stop_after: out and lse as they are after that step. Others as in `ring_attention` and `ring_attention_back`.
    """
    ranks, settings = placement.ranks, {"placement": placement.kind, **settings}
    parts = [np.split(x[placement.order][None, :, None], ranks, axis=1) for x in (q, k, v)]
    to_out = None if g is None else np.split(g[placement.order][None, :, None, None], ranks, axis=1)
    choice("", *MISTAKES)("ring_results", "mistake", mistake)
    of_forward, of_backward = (mistake if mistake == which else "" for which in MISTAKES)

    def program(rank: int) -> RankProgram:
        mine = parts[0][rank][:, :, :, None], parts[1][rank], parts[2][rank]
        how: dict[str, Any] = {"mistake": of_forward, "stop_after": stop_after, **settings}
        out, lse = yield from ring_attention(rank, ranks, *mine, **how)
        if to_out is None:
            return out, lse
        back = ring_attention_back(rank, ranks, to_out[rank], out, lse, *mine, mistake=of_backward, **settings)
        return (out, lse, *(yield from back))

    by_rank = simulate([program(rank) for rank in range(ranks)])
    joined = (np.concatenate(each, axis=1)[0, placement.inverse] for each in zip(*by_rank, strict=True))
    return {
        name: x.reshape(len(x), -1) if name != "lse" else x.reshape(-1) for name, x in zip(NAMES, joined, strict=False)
    }


def _attrs(rank: int, ranks: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a block on this rank, as the compiler would give them."""
    attrs = {**SETTINGS, "ranks": ranks, **settings, "parts": (1, ranks, 1, 1)}
    del attrs["method"]
    return attrs | {"offset": (0, rank, 0, 0)}
