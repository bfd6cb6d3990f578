"""Who answers the rows of `five_d.json`: a function for each family, which calls public names only.

    ask("cp_index", placement="zigzag", n=8, P=2, rank=0)       [0, 1, 6, 7]

A function takes the inputs of a row by name and returns what the row's `expected` holds: a number, a list, or a dict
of them. Families stand in alphabetical order under their names; a name without a function is not answered yet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parallel_lab.cost.expert_placement import place_experts
from parallel_lab.layout.placements import Placement, VisibleKeys, attention_work
from parallel_lab.ops import expert_balance, expert_capacity, routing
from parallel_lab.ops.expert_rows import Dispatch, bytes_leaving, drops_of, permutation

Answer = dict[str, Any]
Rows = list[list[float]]
ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("five_d.json").read_text(encoding="utf-8"))["cases"]
FAMILIES: dict[str, Callable[..., Any]] = {}


def family(function: Callable[..., Any]) -> Callable[..., Any]:
    """Enter a function under its own name."""
    FAMILIES[function.__name__] = function
    return function


def ask(name: str, **inputs: Any) -> Any:
    """The answer to a row of a family. Raises KeyError for a family without a function."""
    return FAMILIES[name](**inputs)


def agrees(answer: Any, expected: Any, tolerance: dict[str, Any]) -> bool:
    """Whether an answer is what a row expects: equal, or each number within `abs` or within `rel` (either will do)."""
    if isinstance(expected, dict):
        return set(answer) == set(expected) and all(agrees(answer[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list):
        pairs = zip(answer, expected, strict=False)
        return len(answer) == len(expected) and all(agrees(mine, theirs, tolerance) for mine, theirs in pairs)
    if tolerance.get("exact") or not isinstance(expected, (int, float)):
        return answer == expected
    return math.isclose(answer, expected, rel_tol=tolerance.get("rel", 0.0), abs_tol=tolerance.get("abs", 0.0))


# ---- all_gather_cp_bytes ----


# ---- balance_loss ----


@family
def balance_loss(logits: Rows, k: int, how: str, ranks: int) -> float:
    if how in ("mindspore", "mindspore_v1", "per_choice"):
        return expert_balance.loss_per_choice(np.array(logits), k)
    scores = "sigmoid" if how.startswith("sigmoid") else "softmax"
    parts = ranks if how in ("mean_of_ranks", "mindformers", "per_rank") else 1
    return expert_balance.balance_loss(np.array(logits), k, scores, parts=parts)


# ---- bias_update ----


@family
def bias_update(load: list[int], rate: float, centred: bool = False) -> list[float]:
    return expert_balance.bias_change(np.array(load), rate, centred=centred).tolist()


# ---- capacity ----


@family
def capacity(tokens: int, experts: int, k: int, factor: float, convention: str, **further: int) -> int | None:
    return expert_capacity.capacity(tokens, experts, k, factor, convention, **further)


# ---- cp_index ----


@family
def cp_index(placement: str, n: int, P: int, rank: int) -> list[int]:
    return Placement(placement, n, P).positions(rank).tolist()


# ---- cp_loss_scale ----


# ---- cp_masked_share ----


@family
def cp_masked_share(P: int, c: int) -> float:
    return float(attention_work(Placement.of_rank_tokens("contiguous", c, P)).computed_share)


# ---- cp_rank_work ----


@family
def cp_rank_work(placement: str, n: int, P: int) -> Answer:
    work = attention_work(Placement(placement, n, P))
    return {"per_rank": work.per_rank, "longest_per_step": work.longest_per_step, "time": work.time}


# ---- cp_useful_share ----


@family
def cp_useful_share(placement: str, P: int, c: int) -> Answer:
    share = attention_work(Placement.of_rank_tokens(placement, c, P)).useful_share
    return {"numerator": share.numerator, "denominator": share.denominator, "share": float(share)}


# ---- dispatch_bytes ----


# ---- dispatch_splits ----


@family
def dispatch_splits(
    ep: int, k: int, order: str, capacity: int, h: int, bytes: int, logits_sets: dict[str, Rows]
) -> Answer:
    logits = np.stack([np.array(logits_sets["abc"[r % 3]]) + 0.01 * r for r in range(ep)])
    dropless = order == "dropless"
    made = Dispatch.of_logits(logits, k, *(() if dropless else (capacity, order)))
    return {
        "input_splits": made.sent.tolist(),
        "output_splits": made.sent.T.tolist(),
        "busiest_over_mean": made.busiest_over_mean,
        "bytes_leaving_rank": bytes_leaving(made.sent, h * bytes),
    }


# ---- distinct_places ----


# ---- document_balance ----


@family
def document_balance(documents: list[int], P: int, placement: str) -> Answer:
    work = attention_work(Placement.packed(placement, documents, P), VisibleKeys(documents=documents))
    over_mean = float(work.longest_over_mean)
    return {"pairs": work.per_rank, "max_over_mean": over_mean, "share": float(work.useful_share)}


# ---- drops ----


@family
def drops(logits: Rows, k: int, capacity: int, order: str) -> Answer:
    rows = np.array(logits)
    if order not in expert_capacity.ORDERS:
        return drops_of(*expert_capacity.mindspore_v1_choices(rows, k, capacity), rows.shape[1])
    made = Dispatch.of_logits(rows[None], k, capacity, order)
    return drops_of(made.experts[0], made.kept[0], rows.shape[1])


# ---- eplb ----


@family
def eplb(load: list[float], replicas: int, devices: int, **further: int) -> Answer:
    placed = place_experts(load, replicas, devices, **further)
    return {"copies": list(placed.copies), "max_over_mean": placed.max_over_mean, "before": placed.before}


# ---- flash_sp_messages ----


# ---- flops_per_token ----


# ---- gates ----


@family
def gates(logits: Rows, k: int, router: str, bias: list[float] | None = None, **further: Any) -> Answer:
    own = None if bias is None else np.array(bias)
    experts, weights = routing.choose(np.array(logits), k, routing.router_named(router), bias=own, **further)
    return {"experts": experts.tolist(), "weights": weights.tolist()}


# ---- gradient_groups ----


# ---- group_limited ----


@family
def group_limited(
    a: float, tokens: int, experts: int, k: int, groups: int, group_top: int, router: str, **further: Any
) -> Answer:
    logits = 1.5 * np.sin(a * (np.arange(tokens * experts) + 1)).reshape(tokens, experts)
    return gates(logits.tolist(), k, router, groups=groups, best_groups=group_top, **further)


# ---- head_tail ----


# ---- layer_activations ----


# ---- measured_flops_per_token ----


# ---- mesh_groups ----


# ---- mfu ----


# ---- overlap ----


# ---- padded_exchange ----


# ---- parameter_parts ----


# ---- parameters ----


# ---- permute ----


@family
def permute(experts: list[list[int]], order: str) -> Answer:
    token, choice, row_of_flat = permutation(np.array(experts), order)
    return {"token": token.tolist(), "choice": choice.tolist(), "row_of_flat": row_of_flat.tolist()}


# ---- rank_states ----


# ---- ring_backward ----


# ---- ring_bytes ----


# ---- ring_forward ----


# ---- ring_mistakes ----


# ---- seq_loss ----


@family
def seq_loss(sequences: list[Rows], k: int, scores: str) -> Answer:
    logits = np.array(sequences)
    each = expert_balance.sequence_losses(logits, k, scores)
    together = expert_balance.balance_loss(np.concatenate(logits), k, scores)
    return {"each": each.tolist(), "mean": each.mean(), "over_all_tokens": together}


# ---- sp_memory ----


# ---- sp_messages ----


# ---- ulysses_bytes ----


# ---- usp_bytes ----


# ---- window_ring ----


@family
def window_ring(placement: str, P: int, c: int, window: int) -> Answer:
    work = attention_work(Placement.of_rank_tokens(placement, c, P), VisibleKeys(window=window))
    return {"steps_with_work": work.steps_with_work, "time": work.time, "share": float(work.useful_share)}


# ---- z_loss ----


@family
def z_loss(logits: Rows) -> float:
    return expert_balance.z_loss(np.array(logits))
