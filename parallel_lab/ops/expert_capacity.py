"""Capacity: how many tokens an expert takes, by the rule of each library, and which are dropped where more want it.

    capacity(8, 4, 2, 1.25, "megatron")      5: 8 tokens make 16 choices, 4 for each of 4 experts, and a quarter more
    capacity(8, 4, 2, 1.25, "mesh_tf")       2: the choices are not counted, and it is rounded down

The libraries do not mean the same by "capacity factor": some count choices, some tokens; some round up, some down. Each
rule computes in the order of its code, because ceil(1.1 * 10) depends on it.

Sources: Fedus et al. 2021 (2); Mesh-TensorFlow moe.py; Megatron-Core moe_utils; mindspore.nn.transformer;
MindFormers TopkRouterV2; DeepSpeed sharded_moe; Tutel gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..base.checks import choice, integer, number
from ..base.errors import ArgumentError
from .activation import softmax_of
from .machine.operand_checks import floats
from .machine.registry import case, op
from .routing import ROUTERS, largest

CONVENTIONS: dict[str, Callable[..., float]] = {
    "switch": lambda t, e, k, factor: math.ceil(t / e * factor),
    "mesh_tf": lambda t, e, k, factor: min(t, int(t * factor / e)),
    "megatron": lambda t, e, k, factor: math.ceil(t * k / e * factor),
    "mindspore": lambda t, e, k, factor: math.ceil(k * t * factor / e),
    "mindformers_v2": lambda t, e, k, factor: min(t, math.ceil(k * t * factor / e)),
    "deepspeed": lambda t, e, k, factor: math.ceil(t / e * (factor * k)),
    "tutel": lambda t, e, k, factor: k * int(factor * math.ceil(t / e)),
}
AS_NEEDED = ("mindformers_v2", "tutel")  # where a factor of 0 or less has a meaning: by the busiest expert
ORDERS = ("choice_major", "token_major", "weight", "mindspore_v1")  # `kept_choices` explains them
ORDER_OF = {"megatron": "weight", "mindspore": "mindspore_v1"}  # convention: its default; of others "choice_major"
ROUTERS_TO_ROOM = ("softmax_topk", "softmax_topk_norm")


def capacity(
    tokens: int,
    experts: int,
    k: int,
    factor: float | None,
    convention: str = "megatron",
    *,
    mp: int = 1,
    minimum: int | None = None,
    load: int | None = None,
) -> int | None:
    """How many tokens of a group an expert takes. None: as many as come.

    tokens, experts, k   of the group; experts; choices of a token
    factor       of the mean; None: dropless (megatron); 0 or less: as needed (mindformers_v2 and tutel)
    convention   one of `CONVENTIONS`
    mp           mindformers_v2: it is a multiple of so many ranks, which cut it
    minimum      the least; None: 4 in deepspeed, otherwise 0
    load         rows of the busiest expert, where the factor says "as needed"

    Raises ArgumentError for k above the number of experts, and for a factor that leaves no room, or is below 0, in a
    convention where that means nothing.
    """
    where = "capacity"
    if convention not in CONVENTIONS:
        raise ArgumentError(f"convention={convention!r}", where=where, allowed=f"One of {', '.join(CONVENTIONS)}")
    if not 1 <= k <= experts:
        raise ArgumentError(f"k={k} of {experts} experts", where=where, allowed=f"From 1 to {experts}")
    if factor is None:
        if convention != "megatron":
            raise ArgumentError("factor=None", where=where, allowed="A number; None is dropless in megatron only")
        return None
    if factor <= 0 and convention in AS_NEEDED:
        if load is None:
            what = f"factor={factor:g} by {convention} is as many slots as the busiest expert needs"
            allowed = "Above 0 where a plan reserves slots before the router has chosen; dropless needs none"
            raise ArgumentError(what, where=where, allowed=allowed, hint="Rows of that expert are `load`")
        if convention == "mindformers_v2":
            return (load // mp + 1) * mp
        return load if factor == 0 else min(load, int(CONVENTIONS["tutel"](tokens, experts, k, -factor)))
    room = int(CONVENTIONS[convention](tokens, experts, k, factor))
    if factor >= 0:
        room = max(room, 4 if convention == "deepspeed" and minimum is None else minimum or 0)
    if convention == "mindformers_v2":
        room = math.ceil(room / mp) * mp
    if room < 1:
        what = f"factor={factor} leaves {tokens} tokens of {experts} experts a capacity of {room} ({convention})"
        raise ArgumentError(what, where=where, allowed="Room for a token at least", hint="Raise the factor")
    return room


# ---- which stay ----


def kept_choices(
    experts: np.ndarray, count: int, room: int | None, order: str = "choice_major", weights: np.ndarray | None = None
) -> np.ndarray:
    """Which choices find room.  experts: (t, k) from 0 to count - 1 -> (t, k) bool.

    room    of each expert; None: all stay
    order   "choice_major": all first choices, token by token, then all second ones (GShard, DeepSpeed, MindFormers)
            "token_major": all choices of the first token, then of the next (MindFormers' sdrop)
            "weight": the largest weights of an expert stay, the first token of equal ones (Megatron's "probs")
            "mindspore_v1": as "choice_major", of choices made by `mindspore_v1_choices`; dropped ones have weight 0
    weights   (t, k), for the last two
    """
    if order not in ORDERS or (order in ORDERS[2:]) > (weights is not None):
        raise ArgumentError(f"order={order!r}", where="kept_choices", allowed=f"{', '.join(ORDERS)} (with weights)")
    if order == "mindspore_v1":
        experts = np.where(weights, experts, -1)
    if room is None:
        return np.ones(experts.shape, bool)
    turn, numbers = turns(experts, order, weights).reshape(-1), experts.reshape(-1)
    kept = np.zeros(experts.size, bool)
    for expert in range(count):
        mine = np.flatnonzero(numbers == expert)
        kept[mine[np.argsort(turn[mine])[:room]]] = True
    return kept.reshape(experts.shape)


def turns(experts: np.ndarray, order: str, weights: np.ndarray | None = None) -> np.ndarray:
    """When each choice asks for room, from 0 on.  experts, weights: (t, k) -> (t, k) ints; see `kept_choices`."""
    t, k = experts.shape
    first = np.arange(t * k).reshape(t, k)
    if order in ("choice_major", "mindspore_v1"):
        return first.reshape(k, t).T
    if order == "token_major" or weights is None:
        return first
    turn = np.empty(t * k, int)
    turn[np.argsort(-weights, axis=None, kind="stable")] = np.arange(t * k)
    return turn.reshape(t, k)


def mindspore_v1_choices(logits: np.ndarray, k: int, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Choices of mindspore.nn.transformer's router, and which find room.  logits: (t, e) -> (t, k) int32, (t, k) bool.

    What is hidden before the next choice are the experts that *kept* the token. One whose first choice was dropped
    chooses the same expert again, is dropped again and is lost whole, where GShard's second choice would survive.
    """
    scores = softmax_of(logits)
    taken = np.zeros(scores.shape[-1], int)
    experts, kept = np.zeros((len(scores), k), np.int32), np.zeros((len(scores), k), bool)
    for turn in range(k):
        experts[:, turn] = largest(scores, 1)[:, 0]
        for token, expert in enumerate(experts[:, turn]):
            if taken[expert] < room:
                taken[expert] += 1
                kept[token, turn] = True
                scores[token, expert] = 0
    return experts, kept


@op(
    "...ne->...nk,...nk",
    name="RouteToRoom",
    attrs={"k": integer(1), "room": integer(1), "router": choice(*ROUTERS_TO_ROOM), "scale": number(0, above=True)},
    check=lambda operands, **_: floats(operands[0]),
    dtype=("int32", 0),
    sizes=lambda shapes, *, k, **_: {"k": k},
    whole="nek",
    flops=8,
    example=(case((8, 4), k=2, room=3), case((4, 2, 6, 4), k=2, room=2, router="softmax_topk", scale=2.0)),
)
def route_to_room(logits, *, k=1, room=1, router="softmax_topk_norm", scale=1.0):
    """Experts and weights, chosen by what has room.  logits: (..., n, e) -> (..., n, k) int32, (..., n, k).

    room     of each expert for the n tokens of a group: see `mindspore_v1_choices`. Dropped choices have weight 0
    router   one of `ROUTERS_TO_ROOM`; the weights of the second are divided by the sum of the kept ones
    scale    they are multiplied by it
    """
    groups = logits.reshape(-1, *logits.shape[-2:])
    experts, kept = (np.stack(each) for each in zip(*(mindspore_v1_choices(x, k, room) for x in groups), strict=True))
    scores = np.take_along_axis(softmax_of(groups), experts, axis=-1) * kept
    weights = ROUTERS[router].of_chosen(scores) * scale
    return tuple(x.reshape(*logits.shape[:-1], k) for x in (experts, weights.astype(logits.dtype, copy=False)))


@route_to_room.vjp
def _(g, out, logits, *, router, scale, **_):
    return (None if g[1] is None else route_to_room_grad(g[1], logits, *out, router=router, scale=scale),)


@op(result_shape=1, dtype=0)
def route_to_room_grad(g, logits, experts, weights, *, router, scale):
    """Gradient for the logits.  g: of the weights, (..., n, k), logits: (..., n, e), experts, weights: (..., n, k) ->
    (..., n, e).
    """
    return ROUTERS[router].gradient(g * scale, logits, experts, weights != 0).astype(g.dtype, copy=False)
