"""Pass `replicate`: data_parallel's forward program: every rank runs the whole network on its part of the batch.

Nothing is split but the data, strategies are ignored (MindSpore, data_parallel), and no message is sent forward but
those that the network itself calls: it was traced on a rank's shapes, values and loss exist per rank. `differentiate`
adds an all_reduce per parameter.

What looks across samples sees one rank's samples only. Batch norm is the case that matters: its statistics are those of
the rank, so the result is not that of one device on the whole batch. An operator with the attribute `sync`
(`nn.BatchNorm2d(..., sync=True)`) averages its statistics over all ranks, or over those of a group, and makes them
equal again. Dropout takes dim 0 for the samples: every rank has the part of one device's mask that belongs to its rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...base.errors import TracedCommunication
from ...layout.tensor_layout import axes_of_groups, ranks_along
from ...ops.collectives.definitions import MESSAGES
from ..draft import Draft, counted, fresh_name
from ..instr import Instr, Value, attr_pairs
from ..ir import Node
from .dataset_strategy import input_values

DROPOUT = "dropout_at"  # the operator whose result depends on where its rows lie in the batch
_OF_ONE_DEVICE = "not those of one device on the whole batch (sync=True makes them so)"
OWN_SAMPLES = "statistics of this rank's own samples, 1/{} of the batch: " + _OF_ONE_DEVICE


def replicate(draft: Draft) -> Draft:
    """Make the forward program of data_parallel mode. Raises ShapeError when inputs do not fit the dataset strategy."""
    graph, device_num = draft.graph, draft.config.device_num
    values = input_values(draft)
    for source in graph.inputs:
        if source.role == "parameter":
            values[source.name] = source.whole(device_num)
    printed = dict(graph.prints)
    instrs: list[Instr] = []
    own = {i.name for i in graph.inputs if i.role == "data"}  # values that are made from this rank's samples

    def shown(name: str) -> None:
        if name in printed:
            label = fresh_name(f"{name}.print", values)
            values[label] = values[name]
            instrs.append(Instr("print", (label,), (name,), name, origin=printed[name]))

    for source in graph.inputs:
        shown(source.name)
    for node in graph.of_phase("forward"):
        if node.opdef.message:
            _send(node, device_num, instrs, values)
            own.add(node.name)
            shown(node.name)
            continue
        averaged = node.sync and device_num > 1
        outs = tuple(fresh_name(f"{name}.local", values) for name in node.outs) if averaged else node.outs
        kinds = [Value(shape, dtype, None) for shape, dtype in zip(node.shapes, node.dtypes, strict=True)]
        values.update(zip(outs, kinds, strict=True))
        alone = node.sync is False and device_num > 1
        instr = node.computed(node.ins, node.attrs, outs, reason=OWN_SAMPLES.format(device_num) if alone else "")
        if node.op == DROPOUT and device_num > 1 and node.ins[0] in own:
            instr = _own_rows(instr, node, graph.operand_shapes(node), device_num)
        instrs.append(instr)
        own.update(node.outs if own.intersection(node.ins) else [])
        for name, label, kind in zip(node.outs, outs, kinds, strict=True):
            if averaged:
                values[name] = kind
                _average(node, name, label, device_num, instrs, values)
            shown(name)
    sides = {name: n.when for n in graph.nodes if n.when for name in (n.name, *n.outs)}
    instrs = [replace(i, when=sides[i.name]) if i.name in sides else i for i in instrs]
    late = {name for n in graph.of_phase("update", "after") for name in n.outs}
    assigned = tuple((name, value) for name, value in graph.assigns if value not in late)
    bridges = tuple((name, name) for name in graph.read_late())
    done = draft.with_program("forward", graph.numbered(instrs), values, outputs=graph.outputs, bridges=bridges)
    return replace(done, forward_assignments=assigned).noted("replicate", counted(instrs))


def _send(node: Node, device_num: int, instrs: list[Instr], values: dict[str, Value]) -> None:
    """The message that a network's own communication is. What a Send returns is its operand."""
    kind, attrs = node.opdef.message, dict(node.attrs)
    group, full_attrs = attrs["group"], {"dim": 0, **attrs}
    about = {a: full_attrs[a] for a in MESSAGES[kind].attributes} | {"group": group, "fusion": attrs["fusion"]}
    n = len(group)
    place: dict[str, Any] = {
        "axes": (0,),
        "device_matrix": (device_num // n, n) if device_num % n == 0 else (device_num,),
    }
    place |= {"origin": node.origin, "op_class": node.op_class, "reason": "the network calls it"}
    out = fresh_name(f"{node.name}.sent", values) if kind == "send" else node.name
    instrs.append(Instr(kind, (out,), node.ins, node.name, attrs=attr_pairs(about), **place))
    values[out] = values[node.name] = Value(node.shape, node.dtype, None)
    if kind == "send":
        operator = {"op": "stop_gradient", "op_class": "Depend"}  # the gradient comes back from the receiver
        instrs.append(Instr("compute", node.outs, node.ins, node.name, origin=node.origin, **operator))


def _own_rows(instr: Instr, node: Node, shapes: tuple[tuple[int, ...], ...], device_num: int) -> Instr:
    """Dropout of one rank's rows of the batch: the mask of these rows in the whole batch, not equal on ranks."""
    op, attrs = node.opdef, dict(node.attrs)
    labels = op.offset_labels(op.signature_for(shapes, attrs))
    if not labels:
        return instr
    parts = {c: device_num if c == labels[0] else 1 for c in labels}
    places = tuple((0,) if c == labels[0] else () for c in labels)
    local = attrs if op.localize is None else op.localize(attrs, parts)
    return replace(instr, attrs=attr_pairs(local), offset_axes=places, device_matrix=(device_num,))


def _average(node: Node, name: str, label: str, device_num: int, instrs: list[Instr], values: dict[str, Value]) -> None:
    """The mean `name` over all ranks, or those of a group, of a value that each made from its own samples."""
    origin, total = node.origin.made("replicate"), fresh_name(f"{name}.sum", values)
    matrix, axes = ((device_num,), (0,)) if node.sync is True else axes_of_groups(node.sync or ()) or ((), ())
    if math.prod(matrix) != device_num:
        what = f"it exchanges within {node.sync}, in a plan for {device_num} ranks"
        allowed = "Groups of equal size and distance that together are all ranks; others run operator by operator"
        raise TracedCommunication(what, where=node.where, allowed=allowed)
    whose = "all ranks use the statistics of the whole batch" if node.sync is True else "groups of ranks share theirs"
    fields: dict[str, Any] = {
        "attrs": attr_pairs({"reduce": "sum", "fusion": 0}),
        "axes": axes,
        "device_matrix": matrix,
    }
    fields |= {"reason": f"{node.name!r} is synchronised: {whose}, not of their own part", "origin": origin}
    instrs.append(Instr("all_reduce", (total,), (label,), node.name, **fields))
    divide = attr_pairs({"count": len(ranks_along(matrix, axes, 0))})
    instrs.append(Instr("compute", (name,), (total,), node.name, "divide_by", "RealDiv", divide, origin=origin))
    values[total] = values[name]
