"""The strip of operators above the picture: a short network's nodes and edges, with tensors and messages on the edges.

graph_strip(plan, messages)     long networks: `layers.flow_graph`
"""

from __future__ import annotations

from typing import Any

from ...graph.plan import Plan
from .picture import LOSS, tensor_entries


def graph_strip(plan: Plan, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Nodes and edges in columns: data and operators in row 0, parameters below (neighbours in different rows)."""
    entries = {e.value: e for e in tensor_entries(plan)}
    nodes: list[dict[str, Any]] = []
    column: dict[str, int] = {}
    edges: list[dict[str, Any]] = []

    def node(name: str, label: str, kind: str, at: int, row: int) -> None:
        column[name] = at
        nodes.append({"id": name, "label": label, "kind": kind, "column": at, "row": row})

    def free_row(at: int) -> int:
        taken = {n["row"] for n in nodes if abs(n["column"] - at) <= 1}
        return next(row for row in range(1, len(nodes) + 2) if row not in taken)

    def edge(source: str, target: str) -> None:
        shown = next((n for n in (f"{source}.partial", source) if n in entries), source)
        numbers = [
            m["number"]
            for m in messages
            if source in m["carries"] or (m["source"] == source and _on_edge(m, plan.graph.maker(source), target))
        ]
        edges.append({"from": plan.graph.maker(source), "to": target, "tensor": shown, "messages": numbers})

    roles = {i.name: i.role for i in plan.graph.inputs}
    into_loss = [i for n in plan.graph.nodes if n.name.startswith(LOSS) for i in n.ins if not i.startswith(LOSS)]
    for operator in plan.graph.nodes:
        if operator.name.startswith(LOSS):
            continue
        data = [plan.graph.maker(i) for i in operator.ins if roles.get(i) not in ("parameter", "scalar", "constant")]
        for name in data:
            if name not in column:
                node(name, name, "input", 0, sum(n["kind"] == "input" for n in nodes))
        at = 1 + max((column[name] for name in data), default=0)
        for name in operator.ins:
            if roles.get(name) == "parameter" and name not in column:
                node(name, name, "parameter", at - 1, free_row(at - 1))
        node(operator.name, operator.name, "operator", at, 0)
        for name in operator.ins:
            if roles.get(name) not in ("scalar", "constant"):
                edge(name, operator.name)
    if into_loss:
        operands = list(dict.fromkeys(n for n in into_loss if roles.get(n) not in ("scalar", "constant")))
        makers = [plan.graph.maker(n) for n in operands]
        at = 1 + max((column[n] for n in makers if n in column), default=0)
        for name in makers:
            if name not in column:
                node(name, name, "input", at - 1, free_row(at - 1))
        node("loss", "loss", "loss", at, 0)
        for name in operands:
            edge(name, "loss")
    return {"nodes": nodes, "edges": edges}


def _on_edge(message: dict[str, Any], source: str, target: str) -> bool:
    """Whether a message of `source` is drawn on this edge: its all_reduce on all edges, a redistribution on its own."""
    operator = message["operator"]
    return operator in (source, target) or target == "loss" and operator.startswith(LOSS)
