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

from parallel_lab.layout.placements import Placement, VisibleKeys, attention_work

Answer = dict[str, Any]
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


# ---- bias_update ----


# ---- capacity ----


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


# ---- distinct_places ----


# ---- document_balance ----


@family
def document_balance(documents: list[int], P: int, placement: str) -> Answer:
    work = attention_work(Placement.packed(placement, documents, P), VisibleKeys(documents=documents))
    over_mean = float(work.longest_over_mean)
    return {"pairs": work.per_rank, "max_over_mean": over_mean, "share": float(work.useful_share)}


# ---- drops ----


# ---- eplb ----


# ---- flash_sp_messages ----


# ---- flops_per_token ----


# ---- gates ----


# ---- gradient_groups ----


# ---- group_limited ----


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


# ---- rank_states ----


# ---- ring_backward ----


# ---- ring_bytes ----


# ---- ring_forward ----


# ---- ring_mistakes ----


# ---- seq_loss ----


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
