"""Routers: which k experts work on a token, and how much the result of each counts.

    logits of a token       [2.0, 1.0, 0.5, -1.0]
    softmax_topk, k=2       experts [0, 1], weights [0.61, 0.22]      the softmax of all experts, cut off
    softmax_topk_norm       experts [0, 1], weights [0.73, 0.27]      the same, divided by its sum
    topk_softmax            experts [0, 1], weights [0.73, 0.27]      the softmax of the chosen ones

A router is a line of `ROUTERS`: how logits become scores, and how the scores of the chosen become weights. Which are
chosen: the k largest scores, the lower index of equal ones; a bias per expert may be added for the choice alone, and
groups of experts may be left out. No gradient flows through the choice: a router learns by its weights.

Sources: Shazeer et al. 2017 (top-k), Lepikhin et al. 2020 (GShard), Fedus et al. 2021 (Switch), Zhou et al. 2022
(expert choice), DeepSeek-V2 and V3 (groups, sigmoid, bias), Megatron-Core (softmax before or after).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.checks import choice, integer, number
from ..base.errors import ArgumentError
from .activation import sigmoid_of, softmax_gradient_of, softmax_of
from .machine.operand_checks import floats
from .machine.registry import case, op

TINY = 1e-20  # added to the sum that weights are divided by (DeepSeek-V3, MindFormers)


@dataclass(frozen=True)
class Router:
    """One way to make weights of logits.

    scores       "softmax" over all experts, or "sigmoid" of each
    after        whether the softmax is taken over the chosen experts only, after the choice, which logits make
    normalised   whether the weights of a token are divided by their sum
    """

    scores: str = "softmax"
    after: bool = False
    normalised: bool = False

    def of_all(self, logits: np.ndarray) -> np.ndarray:
        """What the choice compares.  logits: (..., e) -> (..., e)."""
        return logits if self.after else softmax_of(logits) if self.scores == "softmax" else sigmoid_of(logits)

    def of_chosen(self, scores: np.ndarray) -> np.ndarray:
        """The weights.  scores: of the chosen, (..., k) -> (..., k)."""
        if self.after:
            return softmax_of(scores)
        return scores / (scores.sum(axis=-1, keepdims=True) + TINY) if self.normalised else scores

    def gradient(self, g: np.ndarray, logits: np.ndarray, experts: np.ndarray, kept: Any = True) -> np.ndarray:
        """Gradient for the logits.  g: of the weights, (..., k), experts: (..., k), kept: bools, others have no weight
        -> (..., e).
        """
        scores, g = self.of_all(logits), g * kept
        chosen = np.take_along_axis(scores, experts, axis=-1) * kept
        weights = self.of_chosen(chosen)
        if self.after:
            g = softmax_gradient_of(g, weights)
        elif self.normalised:
            g = (g - (g * weights).sum(axis=-1, keepdims=True)) * kept / (chosen.sum(axis=-1, keepdims=True) + TINY)
        spread = np.zeros_like(scores)
        np.put_along_axis(spread, experts, g, axis=-1)
        if self.after:
            return spread
        return softmax_gradient_of(spread, scores) if self.scores == "softmax" else spread * scores * (1 - scores)


ROUTERS = {
    "softmax_topk": Router(),  # Switch, OLMoE, DeepSeek-V2; Megatron's pre-softmax
    "softmax_topk_norm": Router(normalised=True),  # Mixtral (HF), Qwen3, MindFormers
    "topk_softmax": Router(after=True),  # Mixtral's own code, Megatron's default
    "sigmoid": Router("sigmoid"),  # torchtitan
    "sigmoid_norm": Router("sigmoid", normalised=True),  # DeepSeek-V3, Moonlight
}


# ---- scores and choices, on arrays ----


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Where the k largest of the last dim are, the largest first; of equal ones the lower index.  -> (..., k) ints."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :k]


def within_groups(values: np.ndarray, groups: int, best_groups: int, group_sum: int) -> np.ndarray:
    """The values of experts in the best groups, -inf elsewhere.  values: (..., e) -> (..., e).

    groups        into how many equal ones the experts fall, in order
    best_groups   how many of them a token may use
    group_sum     a group's value is the sum of so many of its largest values: 1 in DeepSeek-V2, 2 in V3
    """
    grouped = values.reshape(*values.shape[:-1], groups, -1)
    value = np.sort(grouped, axis=-1)[..., ::-1][..., :group_sum].sum(axis=-1)
    open_to = np.zeros(value.shape, bool)
    np.put_along_axis(open_to, largest(value, best_groups), True, axis=-1)
    return np.where(open_to[..., None], grouped, -np.inf).reshape(values.shape)


def check_routing(
    experts: int, k: int, router: str, groups: int = 1, best_groups: int = 1, group_sum: int | None = None
) -> None:
    """Raise ArgumentError for numbers that no token can follow."""
    fault = routing_fault(experts, k, groups, best_groups, group_sum)
    if router not in ROUTERS:
        fault = f"router={router!r}", f"One of {', '.join(ROUTERS)}"
    if fault is not None:
        raise ArgumentError(fault[0], where="route", allowed=fault[1])


def routing_fault(experts: int, k: int, groups: int, best_groups: int, group_sum: int | None) -> tuple[str, str] | None:
    """What is wrong with the numbers of a routing, and what is allowed; None if nothing is."""
    if not 1 <= k <= experts:
        return f"k={k} of {experts} experts", "A token chooses each expert once at most: k from 1 to their number"
    if experts % groups:
        return f"groups={groups} of {experts} experts", "Groups of equal size: their number divides that of experts"
    if not 1 <= best_groups <= groups:
        return f"best_groups={best_groups} of {groups} groups", f"From 1 to {groups}"
    if group_sum is not None and not 1 <= group_sum <= experts // groups:
        return f"group_sum={group_sum} in groups of {experts // groups}", f"From 1 to {experts // groups}"
    if k > best_groups * (experts // groups):
        what = f"k={k} with {best_groups} groups of {experts // groups} experts"
        return what, f"At most {best_groups * (experts // groups)}: the chosen groups have no more experts"
    return None


def choose(
    logits: np.ndarray,
    k: int,
    router: str = "softmax_topk",
    *,
    bias: np.ndarray | None = None,
    scale: float = 1.0,
    groups: int = 1,
    best_groups: int = 1,
    group_sum: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each token and their weights.  logits: (..., e) -> (..., k) int32, (..., k) in logits' dtype.

    router        one of `ROUTERS`
    bias          (e,), added to the scores for the choice, not in the weights
    scale         the weights are multiplied by it (2.5 in DeepSeek-V3)
    groups, best_groups, group_sum   experts outside of a token's best groups are left out: see `within_groups`;
                  group_sum None: k / best_groups, at least 1 (Megatron)

    The k-th and the next score decide: where they are equal the lower index is chosen. Raises ArgumentError.
    """
    check_routing(logits.shape[-1], k, router, groups, best_groups, group_sum)
    if bias is not None and bias.shape != logits.shape[-1:]:
        what = f"bias of shape {bias.shape} for {logits.shape[-1]} experts"
        raise ArgumentError(what, where="route", allowed=f"A number for each: {logits.shape[-1:]}")
    rule = ROUTERS[router]
    scores = rule.of_all(logits)
    values = scores if bias is None else scores + bias
    if groups > 1:
        values = within_groups(values, groups, best_groups, group_sum or max(k // best_groups, 1))
    experts = largest(values, k)
    weights = rule.of_chosen(np.take_along_axis(scores, experts, axis=-1))
    return experts.astype(np.int32), (weights * scale).astype(logits.dtype, copy=False)


# ---- the operator ----


def _check_route(operands, *, k, router, scale, groups, best_groups, group_sum):
    experts = operands[0].shape[-1]
    return floats(operands[0]) or routing_fault(experts, k, groups, best_groups, group_sum or None)


@op(
    "...e,e->...k,...k",
    name="RouteTokens",
    attrs={
        "k": integer(1),
        "router": choice(*ROUTERS),
        "scale": number(0, above=True),
        "groups": integer(1),
        "best_groups": integer(1),
        "group_sum": integer(0),
    },
    check=_check_route,
    dtype=("int32", 0),
    sizes=lambda shapes, *, k, **_: {"k": k},
    whole="ek",
    flops=8,
    example=(
        case((8, 6), (6,), k=2),
        case((2, 4, 6), (6,), k=3, router="softmax_topk_norm"),
        case((8, 6), (6,), k=2, router="topk_softmax", scale=2.0),
        case((8, 4), (4,), k=2, router="sigmoid", low=-1.0, high=1.0),
        case((8, 8), (8,), k=2, router="sigmoid_norm", groups=4, best_groups=2),
    ),
)
def route_tokens(logits, bias, *, k=1, router="softmax_topk", scale=1.0, groups=1, best_groups=1, group_sum=0):
    """The experts of each token and their weights.  logits: (..., e), bias: (e,) -> (..., k) int32, (..., k).

    Tokens may be split, experts not. group_sum=0: k / best_groups. See `choose`.
    """
    limits = {"groups": groups, "best_groups": best_groups, "group_sum": group_sum or None}
    return choose(logits, k, router, bias=bias, scale=scale, **limits)


@route_tokens.vjp
def _(g, out, logits, bias, *, router, scale, **_):
    return (None if g[1] is None else route_tokens_grad(g[1], logits, out[0], router=router, scale=scale)), None


@op(result_shape=1, dtype=0)
def route_tokens_grad(g, logits, experts, *, router, scale):
    """Gradient for the logits.  g: of the weights, (..., k), logits: (..., e), experts: (..., k) -> (..., e)."""
    return ROUTERS[router].gradient(g * scale, logits, experts).astype(g.dtype, copy=False)
