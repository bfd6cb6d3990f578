"""How one rank sees a plan: as text (the IR the seeds print) and as plain data.

MindSpore gathers along dim 0 only: an all_gather along another dim is printed as AllGather, Split and Concat.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..base.collector import without_collector
from ..base.dtypes import as_dtype
from ..base.origin import short_file
from ..layout.named_layout import LayoutStrategy, strategy_counts
from ..layout.tensor_layout import slice_text
from ..ops.collectives.definitions import MESSAGES
from .actions import Action
from .copies import COPIES, runs_on_host
from .instr import Instr, Value, attr_pairs
from .instr_text import global_shapes, message_shapes, tensor_text
from .kinds import KINDS, class_name


@without_collector
def rank_view(plan: Any, rank: int) -> dict[str, Any]:
    """The plan as `rank` sees it.

    ops      name, op (MindSpore's class), strategy, in_global, out_global, in_slice, out_slice (results that are read),
             phase, origin
    params   name, global, slice, layout, index (where the slice lies);  inputs: the same for data
    comm     messages, and inserted slices with an empty group: kind, op, group, in_shape, out_shape, dtype, bytes (of
             what the rank hands over: its operand, the strips of a halo; 0 for a slice), phase, fusion, reduce, reason,
             origin; parameter: whose gradient or slice it carries, or ""; bucket: what it travels in if messages were
             fused, or ""; overlapped: whether it travels while the rank computes
    buckets  what travels as one message: name, kind, group, members (parameters), bytes, phase, fusion
    copies   between device and host: name, kind, value, bytes, phase, micro_batch, reason
    """
    stage = plan.stage_of(rank)
    ops, comm, buckets, copies = [], [], [], []
    for action in stage.actions:
        phase = action.program
        carried = buckets_of(stage.program(phase))
        for _, instr in stage.part(action):
            if not instr.runs_on(rank):
                continue
            ins, out = [plan.value(n) for n in instr.ins], plan.value(instr.out)
            if instr.kind in COPIES:
                copies.append(_copy_entry(instr, out, action))
            elif instr.kind == "compute":
                if phase != "forward" or instr.strategy is not None:
                    outs = [plan.value(n) for n in instr.kept]
                    ops.append(_op_entry(instr, ins, outs, phase, global_shapes(plan, instr)))
            elif instr.kind == "start" and instr.attr("members") is not None:
                parts = bucket_messages(plan, instr, *carried[instr.out])
                comm += [_comm_entry(*part, phase, rank, instr.name) for part in parts]
                buckets.append(_bucket_entry(instr, ins[0], phase, rank))
            elif instr.is_communication or instr.kind == "slice":
                comm.append(_comm_entry(instr, ins, out, phase, rank))
    # operators of the network as they were written, also those without an instruction of their own (reshapes)
    forward = {op["name"]: op for op in ops if op["phase"] == "forward"}
    names = sorted(plan.value_table)
    nodes = [n for n in plan.graph.nodes if n.opdef.view or n.name in forward]
    written = [_view_entry(plan, n, names) if n.opdef.view else forward[n.name] for n in nodes]
    described: dict[str, list[dict[str, Any]]] = {"parameter": [], "data": []}
    for source in plan.graph.inputs:
        if source.role in described and source.name in plan.value_table and plan.held_by(source.name, rank):
            described[source.role].append(_input_entry(plan, source, rank - stage.first))
    return {
        "rank": rank,
        "device_num": plan.device_num,
        "ops": written + [op for op in ops if op["phase"] != "forward"],
        "params": described["parameter"],
        "inputs": described["data"],
        "comm": comm,
        "buckets": buckets,
        "copies": copies,
    }


def _copy_entry(instr: Instr, out: Value, action: Action) -> dict[str, Any]:
    entry = {"name": instr.out, "kind": instr.kind, "value": instr.ins[0], "bytes": out.slice_bytes}
    return entry | {"phase": action.program, "micro_batch": action.micro_batch, "reason": instr.reason}


def _op_entry(
    instr: Instr, ins: list[Value], outs: list[Value], phase: str, wholes: list[tuple[int, ...]]
) -> dict[str, Any]:
    strategy, layouts = instr.strategy, None
    if isinstance(strategy, LayoutStrategy):
        layouts = [layout.to_dict() | {"alias_name": layout.alias_name} for layout in strategy]
    return {
        "name": instr.name,
        "op": instr.op_class,
        "strategy": None if strategy is None else [list(t) for t in strategy_counts(strategy)],
        "layouts": layouts,
        "in_global": [list(s) for s in wholes],
        "out_global": [list(v.shape) for v in outs],
        "in_slice": [list(v.slice_shape) for v in ins],
        "out_slice": [list(v.slice_shape) for v in outs],
        "phase": phase,
        "reason": instr.reason,
        "origin": dict(vars(instr.origin)),
    }


def _view_entry(plan: Any, node: Any, names: list[str]) -> dict[str, Any]:
    """A reshape: slices of its operand, and what its first reader gets. names: those of all values, sorted."""
    prefix = f"{node.name}.for."
    at = bisect_left(names, prefix)
    moved = plan.value(names[at]) if at < len(names) and names[at].startswith(prefix) else None
    source = plan.value_table.get(node.ins[0])
    return {
        "name": node.name,
        "op": node.op_class,
        "strategy": None,
        "in_global": [list(shape) for shape in plan.graph.operand_shapes(node)],
        "out_global": [list(node.shape)],
        "in_slice": [list(source.slice_shape)] if source is not None else None,
        "out_slice": [list(moved.slice_shape)] if moved is not None else None,
        "phase": "forward",
        "origin": dict(vars(node.origin)),
    }


def buckets_of(program: tuple[Instr, ...]) -> dict[str, tuple[Instr, list[Instr]]]:
    """{the start of a bucket: (the concat that fills it, the splits that empty it)}."""
    by_out = {i.out: i for i in program}
    buckets: dict[str, tuple[Instr, list[Instr]]] = {}
    for split in program:
        if split.kind == "split":
            start = by_out[by_out[split.ins[0]].ins[0]]
            buckets.setdefault(start.out, (by_out[start.ins[0]], []))[1].append(split)
    return buckets


def bucket_messages(
    plan: Any, start: Instr, concat: Instr, splits: list[Instr]
) -> Iterator[tuple[Instr, list[Value], Value]]:
    """The messages that a bucket stands for, as they were before they were fused: (instruction, operands, result)."""
    for split in splits:
        operand = concat.ins[split.attr("member")]
        attrs = {k: start.attr(k) for k in ("dim", "reduce", "fusion") if start.attr(k) is not None}
        attrs["parameter"] = start.attr("members")[split.attr("member")]
        alone = replace(split, kind=start.message, ins=(operand,), attrs=attr_pairs(attrs))
        alone = replace(alone, axes=start.axes, device_matrix=start.device_matrix)
        yield alone, [plan.value(operand)], plan.value(split.out)


def _bucket_entry(instr: Instr, source: Value, phase: str, rank: int) -> dict[str, Any]:
    return {
        "name": instr.name,
        "kind": instr.message,
        "group": list(instr.group(rank)),
        "members": list(instr.attr("members")),
        "bytes": source.slice_bytes,
        "phase": phase,
        "fusion": instr.attr("fusion", 0),
    }


def _handed_bytes(instr: Instr, operand_bytes: int, rank: int) -> int:
    """Bytes of an operand that `rank` hands over: all; the pieces for others; off a root nothing."""
    definition = MESSAGES.get(instr.message)
    if definition is not None and not definition.gives(rank, instr.attr("root")):
        return 0
    if definition is None or not definition.piecewise:
        return operand_bytes
    return definition.payload_bytes(operand_bytes, instr.group_size, instr.how, instr.position(rank))


def _comm_entry(instr: Instr, ins: list[Value], out: Value, phase: str, rank: int, bucket: str = "") -> dict[str, Any]:
    have, gives = message_shapes(instr, ins[0], out)
    itemsize = as_dtype(ins[0].dtype).itemsize
    return {
        "kind": instr.message or instr.kind,
        "op": class_name(instr),
        "name": instr.name,
        "group": list(instr.group(rank)) if instr.is_communication else [],
        "in_shape": list(have),
        "out_shape": list(gives),
        "dtype": ins[0].dtype,
        "bytes": _handed_bytes(instr, math.prod(have) * itemsize, rank) if instr.is_communication else 0,
        "phase": phase,
        "fusion": instr.attr("fusion", 0),
        "reduce": instr.attr("reduce"),
        "parameter": instr.attr("parameter", ""),
        "bucket": bucket,
        "overlapped": instr.kind == "start" or bool(bucket),
        "reason": instr.reason,
        "origin": dict(vars(instr.origin)),
    }


def _input_entry(plan: Any, source: Any, rank: int) -> dict[str, Any]:
    value = plan.value(source.name)
    tensor_map = [axes[0] if len(axes) == 1 else list(axes) or -1 for axes in value.layout.tensor_map]
    return {
        "name": source.name,
        "global": list(value.shape),
        "slice": list(value.slice_shape),
        "dtype": source.dtype,
        "layout": {"device_matrix": list(value.layout.device_matrix), "tensor_map": tensor_map},
        "index": _index(value, rank),
    }


def _index(value: Value, rank: int) -> str:
    """Where a rank's slice lies: "[8:16, :]"."""
    return slice_text(value.placed.slice_index(value.shape, rank), value.shape)


def plan_text(plan: Any, rank: int, phases: tuple[str, ...]) -> str:
    """The program of one rank, in the manner of the IR files MindSpore saves."""
    stage = plan.stage_of(rank)
    head, fed = f"# {plan.graph.name}: rank {rank} of {plan.device_num}", plan.config.dataset_strategy
    lines = [f"{head}, dataset_strategy {fed!r}, plan {plan.digest}"]
    lines += [f"# pass {name}: {note}" for name, note in plan.notes]
    numbers: dict[str, str] = {}
    host = frozenset(plan.host)
    lines.append("# inputs")
    for graph_input in plan.graph.inputs:
        shown = graph_input.role in ("data", "parameter", "constant") and graph_input.name in plan.value_table
        if shown and plan.held_by(graph_input.name, rank):
            value, numbers[graph_input.name] = plan.value(graph_input.name), f"%{graph_input.name}"
            facts = f"{graph_input.role}{', on the host' * (graph_input.name in host)}, {value.layout}"
            held = f"{_index(value, rank - stage.first)} of {value.shape}  {{{facts}}}"
            lines.append(f"%{graph_input.name} : {tensor_text(value)} = {held}")
    for state in plan.states:
        if plan.held_by(state.name, rank):
            numbers[state.name] = f"%{state.name}"
            kind = "state, on the host" if state.name in host else "state"
            lines.append(f"%{state.name} : {tensor_text(plan.value(state.name))}  {{{kind}}}")
    named = len(numbers)
    for action in stage.actions:
        if action.program in phases:
            lines.append(f"# {action.program} ({action})")
            for _, instr in stage.part(action):
                lines += (
                    _instr_lines(plan, instr, rank, numbers, len(numbers) - named, host) if instr.runs_on(rank) else []
                )
            if action.program == "update":
                mine = [pair for pair in plan.assignments if plan.held_by(pair[0], rank)]
                lines += [f"%{target} <- {numbers.get(source, source)}" for target, source in mine]
    if "forward" in phases:
        outputs = [o for o in plan.outputs if o in numbers]
        lines.append("# returns " + ", ".join(f"{numbers[o]} ({plan.value(o).layout})" for o in outputs))
    return "\n".join(lines)


def named_lines(text: str) -> list[str]:
    """The lines of a `plan_text` with names of values instead of numbers: "%fc.grad = MatMul(%fc, %w)"."""
    lines = text.splitlines()
    names = {number: name for line in lines if " = " in line for number, name in _MADE.findall(line.split(" = ")[0])}
    return [
        line if "#" in line[:5] else _NUMBER.sub(lambda n: f"%{names[n[1]]}" if n[1] in names else n[0], line)
        for line in lines
    ]


_MADE = re.compile(r"%(\d+)\(([^()\s]+)\)")
_NUMBER = re.compile(r"%(\d+)(?:\([^()\s]+\))?(?![\w.])")  # not the parameter "%0.weight"


def _shown_when(instr: Instr) -> str:
    """On which side of which `if` an instruction runs: " {if: %equal}", " {if: not %equal}"; "" of all others."""
    return "".join(f" {{if: {'' if side else 'not '}%{name}}}" for name, side in instr.when)


def _instr_lines(
    plan: Any, instr: Instr, rank: int, numbers: dict[str, str], count: int, host: frozenset[str]
) -> list[str]:
    """The lines of an instruction; results become numbers from `count` on, those that nothing reads are "_"."""
    ins, outs = [plan.value(n) for n in instr.ins], [plan.value(n) if n else None for n in instr.outs]
    operands = [numbers.get(n) or n.rpartition(":")[0] or n for n in instr.ins]
    numbers.update((name, f"%{count + i}") for i, name in enumerate(instr.kept))
    named = ", ".join(f"{numbers[name]}({name})" if name else "_" for name in instr.outs)
    shown = KINDS[instr.kind].shown(plan, instr, rank)
    args = ", ".join([*operands, *map(str, shown.args)])
    slice_shapes, gives = [v.slice_shape for v in ins], None
    if instr.is_communication:
        slice_shapes[0], gives = message_shapes(instr, ins[0], plan.value(instr.out))
    types = ", ".join(tensor_text(v, shape) for v, shape in zip(ins, slice_shapes, strict=True))
    results = ", ".join("_" if v is None else tensor_text(v, gives) for v in outs)
    facts = f"{shown.facts}{_shown_when(instr)}{' {on the host}' * runs_on_host(instr, host)}"
    lines = [
        f"{named} = {class_name(instr)}({args}){facts}",
        *shown.before,
        f"    : ({types}) -> ({results})",
        *shown.after,
    ]
    if instr.reason:
        lines.append(f"    # why: {instr.reason}")
    if instr.origin.scope:
        lines.append(f"    # scope: ({instr.origin.scope})")
    if instr.origin.file:
        lines.append(f"    # In file {short_file(instr.origin.file)}({instr.origin.line})/        {instr.origin.text}/")
    return lines
