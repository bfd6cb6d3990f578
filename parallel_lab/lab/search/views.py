"""A plan of the Search Lab as it is drawn: where it lies in the picture of costs, and its net, operator by operator,
with the slices of every result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...graph.plan import Plan
from ...ops.machine.primitive import Strategy
from ..pictures.picture import TensorEntry, first_read, tensor_entries, tensor_picture
from .arguments import WEIGHTS, factors
from .space import Argued, Candidate, Point, Space

SHOWN = ("rank", "block", "slice", "addend", "addends", "text")  # of a card


def point_view(name: str, point: Point) -> dict[str, Any]:
    """Where a plan lies: cost and bytes per device, predicted."""
    terms = [float(f"{value:.4g}") for value in point.terms.values()]
    return {"id": name, "cost": float(f"{point.cost:.4g}"), "memory": point.memory_bytes, "terms": terms}


def plan_view(space: Space, name: str, point: Point) -> dict[str, Any]:
    """What a snapshot has of the plan that is drawn."""
    return {"net_of": net_view(space.plan(point.strategies), point.strategies), "shown": point_view(name, point)}


def candidates_view(
    argued: Argued, candidates: list[Candidate], name_of: Callable[[Candidate], str], pin: Any
) -> dict[str, Any]:
    """What a snapshot has of an operator: the best plan with each of its candidates.  pin: the one that it must have"""
    rows = []
    chosen = next((one.own for one in candidates if one.chosen), {})
    counts = {t.name: t.weight for t in argued.whole.terms}
    for one in candidates:
        term, more = one.term
        here = one.own[term] - chosen.get(term, 0.0)
        rows.append(
            {
                **point_view(name_of(one), one.point),
                "strategy": str(one.strategy),
                "own": [float(f"{value:.4g}") for value in one.own.values()],
                "term": term,
                "more": float(f"{more:.4g}"),
                "elsewhere": abs(here * counts[term]) < abs(more) / 2,
                "chosen": one.chosen,
                "pinned": pin == one.strategy,
            }
        )
    return {"candidates": rows}


def terms_view(argued: Argued, weights: Mapping[str, float]) -> list[dict[str, Any]]:
    """The terms of the costs, and how many times each of them counts."""
    now = {t.name: weights.get(t.name, 1.0) for t in argued.whole.terms}
    return [
        {"name": name, "value": f"{factor:g}", "choices": list(factors(WEIGHTS, factor))}
        for name, factor in now.items()
    ]


def net_view(plan: Plan, strategies: Mapping[str, Strategy]) -> list[dict[str, Any]]:
    """Every operator with its strategy, and how its result lies: picture and cards as the Strategy Lab has them."""
    entries = {entry.value: entry for entry in tensor_entries(plan)}
    rows = []
    for name, strategy in strategies.items():
        node = plan.graph.node(name)
        entry = _result(plan, node, entries)
        row: dict[str, Any] = {"name": name, "op": node.op_class, "strategy": str(strategy), "picture": None}
        if entry is not None:
            picture, cards = tensor_picture(plan, entry, "forward")
            kept = ("shape", "drawn", "partial", "slices", "label")
            row["picture"] = {part: picture[part] for part in kept}
            row["cards"] = [{part: card[part] for part in SHOWN} for card in cards]
        rows.append(row)
    return rows


def _result(plan: Plan, node: Any, entries: Mapping[str, TensorEntry]) -> TensorEntry | None:
    """What an operator leaves, before its sum is completed; of the loss what it reads. None: a number."""
    result = first_read(plan, node)
    read = [entry.value for entry in entries.values() if entry.owner == node.name]
    return next((entries[name] for name in (f"{result}.partial", result, *read) if name in entries), None)
