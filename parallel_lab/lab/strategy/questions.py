"""What the Strategy Lab asks before it shows: bytes of a message, the busiest edge, who holds the same part."""

from __future__ import annotations

from ...base.units import bytes_text
from ...graph.plan import Plan
from ..pictures import picture
from ..pictures.graph_strip import graph_strip
from ..shared.questions import Question

TABLES = ("tables",)


def strategy_questions(plan: Plan, rank: int, message: int | None, tensor: str, layered: bool) -> list[Question]:
    """message: the selected one, if any;  tensor: the one that is looked at;  layered: the graph has no edges"""
    about, table = plan.digest[:10], picture.message_table(plan, rank)
    questions = []
    if message is not None and table[message - 1]["group"]:
        m = table[message - 1]
        name = f"#{message}, the {m['collective']} of {m['operator']} ({m['phase']})"
        text = f"How many bytes does rank {rank} contribute to message {name}?"
        key = f"{about}, bytes of #{message}, rank {rank}"
        why = f"{bytes_text(m['bytes_predicted'])} because {m['reason']}"
        questions.append(Question(key, text, (m["bytes_predicted"],), why, unit="bytes", hides=TABLES))
    if not layered and (edges := _bytes_of_edges(plan, table)):
        most = max(edges.values())
        text = "Which tensor's messages carry the most bytes per rank in one step? Click its edge in the graph."
        right = tuple(name for name, size in edges.items() if size == most)
        why = f"{bytes_text(most)} per rank"
        names = tuple((e.value, e.label) for e in picture.tensor_entries(plan))
        questions.append(Question(f"{about}, edge", text, right, why, by="select_tensor", hides=TABLES, names=names))
    entry = next(e for e in picture.tensor_entries(plan) if e.value == tensor)
    layout = plan.value(entry.base).layout
    if plan.device_num > 1:
        mine = layout.slice_numbers(rank)
        others = [r for r in range(plan.device_num) if r != rank and layout.slice_numbers(r) == mine]
        text = f'Which rank holds the same part of "{entry.label}" as rank {rank}? Click it, or {rank} if none does.'
        right = tuple(others) or (rank,)
        why = f"ranks {' '.join(map(str, sorted((*others, rank))))} hold {_part(plan, entry, rank)}"
        key = f"{about}, part of {tensor}, rank {rank}"
        questions.append(Question(key, text, right, why, by="select_rank", hides=(*TABLES, "rank")))
    return questions


def _part(plan: Plan, entry: picture.TensorEntry, rank: int) -> str:
    value = plan.value(entry.base)
    return picture.slice_text(value.layout.slice_index(value.shape, rank), value.shape)


def _bytes_of_edges(plan: Plan, table: list[dict]) -> dict[str, int]:
    """Per tensor that stands on an edge the bytes of its messages."""
    sizes = {m["number"]: m["bytes_predicted"] for m in table if m["group"]}
    sizes_of = {}
    for edge in graph_strip(plan, table)["edges"]:
        total = sum(sizes.get(n, 0) for n in edge["messages"])
        if total:
            sizes_of[edge["tensor"]] = max(total, sizes_of.get(edge["tensor"], 0))
    return sizes_of
