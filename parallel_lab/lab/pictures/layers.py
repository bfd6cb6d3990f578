"""A long network as layers: the operators of a library layer are one node of the graph, one fold of the list.

    layers = plan_layers(plan, operator_layers(net))    # every node's: {"fc.matmul": "fc", "fc.bias_add": "fc", ...}
    flow_graph(plan, messages, layers)                  # nodes and edges, as `graph_strip` makes for short networks

A node says how the result of its layer is split and which messages its operators need; parameters are not drawn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...graph.plan import Plan
from .picture import LOSS, first_read, tensor_entries


def operator_of(name: str, operators: Mapping[str, Any]) -> str:
    """The operator that a node of the plan belongs to: itself, or the one that was called for it; "" for none.

    >>> operator_of("bn1.batch_norm.batch_norm_apply", {"bn1.batch_norm": 0})
    'bn1.batch_norm'
    >>> operator_of("rows_1", {"rows": 0}), operator_of("x", {})
    ('rows', '')
    """
    candidates = (candidate for found in _prefixes(name) for candidate in (found, re.sub(r"_\d+$", "", found)))
    return next((candidate for candidate in candidates if candidate in operators), "")


def _prefixes(name: str) -> list[str]:
    """`a.b.c`, `a.b` and `a` of "a.b.c"."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def plan_layers(plan: Plan, layers: Mapping[str, str]) -> dict[str, str]:
    """{node of the plan: its layer} from {operator: layer}, without the loss; a reshape belongs to its data's."""
    layer_of: dict[str, str] = {}
    known = set(layers.values())
    for node in plan.graph.nodes:
        if node.name.startswith(LOSS):
            continue
        operator = operator_of(node.name, layers)
        if operator:
            layer_of[node.name] = layers[operator]
            continue
        makers = map(plan.graph.maker, node.ins)
        own = next((layer_of[i] for i in makers if i in layer_of), node.name)
        layer_of[node.name] = next((around for around in _prefixes(node.name)[1:] if around in known), own)
    return layer_of


def parameter_layers(plan: Plan, layers: Mapping[str, str]) -> dict[str, str]:
    """{parameter: the layer that reads it first}."""
    roles = {i.name: i.role for i in plan.graph.inputs}
    layer_of: dict[str, str] = {}
    for node in plan.graph.nodes:
        for name in node.ins:
            if roles.get(name) == "parameter" and node.name in layers:
                layer_of.setdefault(name, layers[node.name])
    return layer_of


def flow_graph(plan: Plan, messages: list[dict[str, Any]], layers: Mapping[str, str]) -> dict[str, Any]:
    """Layers in columns, in the order in which data meets them; parallel ones (query, key, value) share a column.

    node   id, label, kind ("input", "operator", "loss"), column, row, tensor (what its result is called among the
           tensors, or None), splits (slices per dim of the result, or None), messages (numbers) and detail (class names
           of its operators)
    edge   from, to, tensor, messages (those that bring this tensor to this layer)
    """
    entries = {e.value for e in tensor_entries(plan)}
    roles = {i.name: i.role for i in plan.graph.inputs}
    of_parameter = parameter_layers(plan, layers)

    def place(name: str) -> str:
        """The node of the drawing that a value comes from; "" where it is not drawn."""
        if name.startswith(LOSS):
            return "loss"
        name = plan.graph.maker(name)
        return layers.get(name) or ("" if roles.get(name) in ("parameter", "scalar", "constant") else name)

    members: dict[str, list[Any]] = {}
    links: dict[tuple[str, str], str] = {}
    for node in plan.graph.nodes:
        here = place(node.name)
        members.setdefault(here, []).append(node)
        for name in node.ins:
            source = place(name)
            if source and source != here:
                links.setdefault((source, here), name)
    sources = {here: [a for a, b in links if b == here] for here in members}
    column: dict[str, int] = {}
    for here in members:  # a layer's sources come before it
        column[here] = 1 + max((column.get(s, 0) for s in sources[here]), default=0)
    for name in dict.fromkeys(a for a, _ in links if a not in members):  # data stands just before what reads it first
        column[name] = min(column[b] for a, b in links if a == name) - 1

    taken: set[tuple[int, int]] = set()
    rows: dict[str, int] = {}
    for name in sorted(column, key=lambda n: (column[n], n not in members)):
        before = [s for s in sources.get(name, ()) if column[s] == column[name] - 1 and s in rows]
        wanted = min((rows[s] for s in before), default=0)
        rows[name] = next(r for r in [wanted, *range(len(column))] if (column[name], r) not in taken)
        taken.add((column[name], rows[name]))

    def sent(name: str) -> list[int]:
        """Numbers of the messages that a layer's operators, and the gradients of its parameters, need."""
        numbers = []
        for m in messages:
            operators = m["carries"] or (m["operator"],)
            if name in {of_parameter.get(o) or layers.get(o) or place(o) for o in operators}:
                numbers.append(m["number"])
        return numbers

    nodes = []
    for name, at in column.items():
        seen = [n for n in members.get(name, ()) if not n.opdef.view]
        results = seen or members.get(name, ())
        result = first_read(plan, results[-1]) if results and name != "loss" else name
        value, last = plan.value_table.get(result), name.rpartition(".")[2]
        kind = "loss" if name == "loss" else "operator" if name in members else "input"
        has_layout = kind != "loss" and value is not None and value.layout is not None
        classes = ", ".join(dict.fromkeys(n.op_class for n in seen))
        nodes.append(
            {
                "id": name,
                "label": name if last.isdigit() else last,
                "kind": kind,
                "column": at,
                "row": rows[name],
                "tensor": result if result in entries else None,
                "cuts": list(value.layout.splits) if has_layout else None,
                "messages": sent(name),
                "detail": classes if kind == "operator" else kind,
            }
        )
    edges = []
    for (a, b), name in links.items():
        of_tensor = [m for m in messages if m["source"] == name]
        numbers = [m["number"] for m in of_tensor if (layers.get(m["operator"]) or place(m["operator"])) == b]
        shown = next((n for n in (name, f"{name}.partial") if n in entries), name)
        edges.append({"from": a, "to": b, "tensor": shown, "messages": numbers})
    return {"nodes": nodes, "edges": edges, "layers": True}
