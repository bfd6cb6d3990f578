"""How one rank sees a plan: as text (the IR the seeds print) and as plain data.

MindSpore gathers along dim 0 only: an all_gather along another dim is printed, and its shapes are given, as AllGather on dim 0 followed by Split
and Concat; the plan itself holds one instruction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from .graph.ir import Instr, Value, attr_pairs
from .halo import HALOS
from .layout import TensorLayout, slice_text
from .named_layout import LayoutStrategy, strategy_counts
from .origin import short_file

__all__ = ["CLASS_NAMES", "message_shapes", "named_lines", "plan_text", "rank_view"]

CLASS_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AlltoAll",
    "halo_exchange": "NeighborExchangeV2",
    "halo_reduce": "NeighborExchangeV2Grad",
    "broadcast": "Broadcast",
    "send": "Send",
    "recv": "Receive",
    "slice": "StridedSlice",
    "reshape": "Reshape",
    "concat": "Concat",
    "split": "Split",
    "wait": "Wait",
}
_TYPE_NAMES = {
    "float32": "Float32",
    "float64": "Float64",
    "float16": "Float16",
    "int32": "Int32",
    "int64": "Int64",
    "bool": "Bool",
}


def message_shapes(instr: Instr, source: Value, out: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Slice shapes before and after a message, in the form MindSpore's operators have (gathering and scattering along dim 0)."""
    have, gives, n = source.slice_shape, out.slice_shape, instr.group_size
    if instr.message == "all_gather" and have:
        return have, (have[0] * n, *have[1:])
    if instr.message == "reduce_scatter" and gives:
        return (gives[0] * n, *gives[1:]), gives
    return have, gives


def _origin(instr_origin) -> dict[str, Any]:
    return {
        "file": instr_origin.file,
        "line": instr_origin.line,
        "text": instr_origin.text,
        "scope": instr_origin.scope,
        "made_by": instr_origin.made_by,
    }


def rank_view(plan, rank: int) -> dict[str, Any]:
    """The plan as `rank` sees it.

    ops      name, op (MindSpore's class), strategy, in_global, out_global, in_slice, out_slice, phase, origin
    params   name, global, slice, layout, index (where the slice lies);  inputs: the same for data
    comm     messages, and inserted slices with an empty group: kind, op, group, in_shape, out_shape, dtype, bytes (of what the rank hands over:
             its operand, the strips of a halo; 0 for a slice), phase, fusion, reduce, reason, origin; parameter: whose gradient or slice it carries,
             or ""; bucket: what it travels in if messages were fused, or ""; overlapped: whether it travels while the rank computes
    buckets  what travels as one message: name, kind, group, members (parameters), bytes, phase, fusion
    """
    stage = plan.stage_of(rank)
    ops, comm, buckets = [], [], []
    for action in stage.actions:
        phase = action.program
        for _, instr in stage.part(action):
            if not instr.runs_on(rank):
                continue
            ins, out = [plan.value(n) for n in instr.ins], plan.value(instr.out)
            if instr.kind == "compute":
                if phase != "forward" or instr.strategy is not None:
                    ops.append(_op_entry(instr, ins, out, phase, _global_shapes(plan, instr, ins)))
            elif instr.kind == "start" and instr.attr("members") is not None:
                comm += [_comm_entry(*part, phase, rank, instr.name) for part in _carried(plan, stage.program(phase), instr)]
                buckets.append(_bucket_entry(instr, ins[0], phase, rank))
            elif instr.is_communication or instr.kind == "slice":
                comm.append(_comm_entry(instr, ins, out, phase, rank))
    # operators of the network in the order they were written, those without an instruction of their own (reshapes) among them
    forward = {op["name"]: op for op in ops if op["phase"] == "forward"}
    written = [_view_entry(plan, n) if n.opdef.view else forward[n.name] for n in plan.graph.nodes if n.opdef.view or n.name in forward]
    described = {
        role: [_input_entry(plan, i, rank) for i in plan.graph.inputs if i.role == role and i.name in plan.value_table]
        for role in ("parameter", "data")
    }
    return {
        "rank": rank,
        "device_num": plan.device_num,
        "ops": written + [op for op in ops if op["phase"] != "forward"],
        "params": described["parameter"],
        "inputs": described["data"],
        "comm": comm,
        "buckets": buckets,
    }


def _shape(shape: tuple[int, ...]) -> list[int]:
    return list(shape)


def _global_shapes(plan, instr: Instr, ins: list[Value]) -> list[tuple[int, ...]]:
    """Shapes of the whole operands; of a windowed one, which exists per rank only, that of the tensor it was taken from."""
    node = plan.graph.node(instr.name) if instr.strategy is not None else None
    if node is None or all(v.layout is not None or not v.shape for v in ins):
        return [v.shape for v in ins]
    shapes = plan.graph.shapes()
    return [shapes[name] for name in node.ins]


def _op_entry(instr: Instr, ins: list[Value], out: Value, phase: str, global_shapes: list[tuple[int, ...]]) -> dict[str, Any]:
    return {
        "name": instr.name,
        "op": instr.op_class,
        "strategy": None if instr.strategy is None else [list(t) for t in strategy_counts(instr.strategy)],
        "layouts": [layout.to_dict() | {"alias_name": layout.alias_name} for layout in instr.strategy]
        if isinstance(instr.strategy, LayoutStrategy)
        else None,
        "in_global": [_shape(s) for s in global_shapes],
        "out_global": [_shape(out.shape)],
        "in_slice": [_shape(v.slice_shape) for v in ins],
        "out_slice": [_shape(out.slice_shape)],
        "phase": phase,
        "reason": instr.reason,
        "origin": _origin(instr.origin),
    }


def _view_entry(plan, node) -> dict[str, Any]:
    shapes = plan.graph.shapes()
    moved = next((v for n, v in plan.values if n.startswith(f"{node.name}.for.")), None)
    source = plan.value_table.get(node.ins[0])
    return {
        "name": node.name,
        "op": node.op_class,
        "strategy": None,
        "in_global": [_shape(shapes[i]) for i in node.ins],
        "out_global": [_shape(node.shape)],
        "in_slice": [_shape(source.slice_shape)] if source is not None else None,
        "out_slice": [_shape(moved.slice_shape)] if moved is not None else None,
        "phase": "forward",
        "origin": _origin(node.origin),
    }


def _carried(plan, program: tuple[Instr, ...], start: Instr) -> Iterator[tuple[Instr, list[Value], Value]]:
    """The messages that a bucket stands for, as they were before they were fused: (instruction, operands, result)."""
    by_out = {i.out: i for i in program}
    operands = by_out[start.ins[0]].ins
    back = {by_out[i.ins[0]].ins[0]: i.ins[0] for i in program if i.kind == "split"}  # start -> wait
    for split in program:
        if split.kind == "split" and split.ins[0] == back.get(start.out):
            operand = operands[split.attr("member")]
            attrs = {k: start.attr(k) for k in ("dim", "reduce", "fusion") if start.attr(k) is not None} | {
                "parameter": start.attr("members")[split.attr("member")]
            }
            alone = replace(start, kind=start.message, ins=(operand,), out=split.out, name=split.name, attrs=attr_pairs(attrs), reason=split.reason)
            yield replace(alone, origin=split.origin), [plan.value(operand)], plan.value(split.out)


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


def _comm_entry(instr: Instr, ins: list[Value], out: Value, phase: str, rank: int, bucket: str = "") -> dict[str, Any]:
    have, gives = message_shapes(instr, ins[0], out)
    itemsize = np.dtype(ins[0].dtype).itemsize
    return {
        "kind": instr.message or instr.kind,
        "op": CLASS_NAMES[instr.message or instr.kind],
        "name": instr.name,
        "group": list(instr.group(rank)) if instr.is_communication else [],
        "in_shape": _shape(have),
        "out_shape": _shape(gives),
        "dtype": ins[0].dtype,
        "bytes": instr.handed_bytes(math.prod(have) * itemsize, rank) if instr.is_communication else 0,
        "phase": phase,
        "fusion": instr.attr("fusion", 0),
        "reduce": instr.attr("reduce"),
        "parameter": instr.attr("parameter", ""),
        "bucket": bucket,
        "overlapped": instr.kind == "start" or bool(bucket),
        "reason": instr.reason,
        "origin": _origin(instr.origin),
    }


def _layout_entry(layout: TensorLayout) -> dict[str, Any]:
    return {"device_matrix": list(layout.device_matrix), "tensor_map": [a[0] if len(a) == 1 else list(a) or -1 for a in layout.tensor_map]}


def _input_entry(plan, given, rank: int) -> dict[str, Any]:
    value = plan.value(given.name)
    return {
        "name": given.name,
        "global": _shape(value.shape),
        "slice": _shape(value.slice_shape),
        "dtype": given.dtype,
        "layout": _layout_entry(value.layout),
        "index": slice_text(value.layout.slice_index(value.shape, rank), value.shape),
    }


# ---- text ----


def _tensor(shape: tuple[int, ...], dtype: str) -> str:
    return f"<Tensor[{_TYPE_NAMES.get(dtype, dtype)}], {shape}>"


def plan_text(plan, rank: int, phases: tuple[str, ...]) -> str:
    """The program of one rank, in the manner of the IR files MindSpore saves."""
    stage = plan.stage_of(rank)
    lines = [f"# {plan.graph.name}: rank {rank} of {plan.device_num}, dataset_strategy {plan.config.dataset_strategy!r}, plan {plan.digest}"]
    lines += [f"# pass {name}: {note}" for name, note in plan.notes]
    numbers: dict[str, str] = {}
    lines.append("# inputs")
    for given in plan.graph.inputs:
        if given.role in ("data", "parameter", "constant") and given.name in plan.value_table:
            value = plan.value(given.name)
            index = slice_text(value.layout.slice_index(value.shape, rank), value.shape)
            numbers[given.name] = f"%{given.name}"
            lines.append(f"%{given.name} : {_tensor(value.slice_shape, given.dtype)} = {index} of {value.shape}  {{{given.role}, {value.layout}}}")
    for state in plan.states:
        if not plan.held_by(state.name, rank):
            continue
        value = plan.value(state.name)
        numbers[state.name] = f"%{state.name}"
        lines.append(f"%{state.name} : {_tensor(value.slice_shape, value.dtype)}  {{state}}")
    named = len(numbers)
    for action in stage.actions:
        if action.program in phases:
            lines.append(f"# {action.program} ({action})")
            for _, instr in stage.part(action):
                lines += _instr_lines(plan, instr, rank, numbers, len(numbers) - named) if instr.runs_on(rank) else []
            if action.program == "update":
                lines += [f"%{target} <- {numbers.get(source, source)}" for target, source in plan.assignments if plan.held_by(target, rank)]
    if "forward" in phases:
        lines.append("# returns " + ", ".join(f"{numbers[o]} ({plan.value(o).layout})" for o in plan.outputs))
    return "\n".join(lines)


def named_lines(text: str) -> list[str]:
    """The lines of a `plan_text` with the name of each value in the place of its number: "%fc.grad = MatMul(%fc, %w)"."""
    lines = text.splitlines()
    names = {made[1]: made[2] for line in lines if (made := _MADE.match(line))}
    return [line if "#" in line[:5] else _NUMBER.sub(lambda n: f"%{names[n[1]]}" if n[1] in names else n[0], line) for line in lines]


_MADE = re.compile(r"%(\d+)\(([^()\s]+)\) = ")
_NUMBER = re.compile(r"%(\d+)(?:\([^()\s]+\))?(?![\w.])")  # not the parameter "%0.weight"


def _name(numbers: dict[str, str], name: str) -> str:
    if name in numbers:
        return numbers[name]
    return name.rpartition(":")[0] or name


def _instr_lines(plan, instr: Instr, rank: int, numbers: dict[str, str], count: int) -> list[str]:
    """The lines of an instruction; its result becomes number `count`."""
    ins, out = [plan.value(n) for n in instr.ins], plan.value(instr.out)
    operands = [_name(numbers, n) for n in instr.ins]
    number = numbers[instr.out] = f"%{count}"
    attrs = ", ".join(f"{k}: {v}" for k, v in instr.attrs if k not in ("fusion", "reduce", "dim"))
    chosen = f" {{in_strategy: {instr.strategy}}}" if instr.strategy is not None else ""
    if instr.kind == "compute":
        extra = f" {{{attrs}}}" if attrs else ""
        head = f"{number}({instr.out}) = {instr.op_class}({', '.join(operands)}) {{instance name: {instr.name}}}{extra}{chosen}"
        lines = [head, *_types(ins, out)]
        if out.layout is not None and (instr.strategy is not None or all(v.layout is not None or not v.shape for v in ins)):
            lines.append(f"    # global: ({', '.join(str(s) for s in _global_shapes(plan, instr, ins))}) -> {out.shape}")
    elif instr.kind == "concat":
        lines = [f"{number}({instr.out}) = {CLASS_NAMES['concat']}({', '.join(operands)}) {{rows: {instr.attr('rows')}}}", *_types(ins, out)]
    else:
        lines = _move_lines(plan, instr, rank, number, operands[0], ins[0], out)
    if instr.reason:
        lines.append(f"    # why: {instr.reason}")
    if instr.origin.scope:
        lines.append(f"    # scope: ({instr.origin.scope})")
    if instr.origin.file:
        lines.append(f"    # In file {short_file(instr.origin.file)}({instr.origin.line})/        {instr.origin.text}/")
    return lines


def _types(ins: list[Value], out: Value) -> list[str]:
    return [f"    : ({', '.join(_tensor(v.slice_shape, v.dtype) for v in ins)}) -> ({_tensor(out.slice_shape, out.dtype)})"]


def _halo_words(instr: Instr, rank: int) -> str:
    """What a halo brings to one rank."""
    halo, me = instr.halo, instr.position(rank)
    (start, stop), (low, high) = halo.window(me), (halo.part * me, halo.part * (me + 1))
    group = instr.group(rank)
    taken = [(group[j], b - a) for j in halo.neighbours(me) for a, b in [halo.taken(instr.kind, me, j)] if b > a]
    strips = " and ".join(f"{count} of rank {other}" for other, count in taken) or "none of another rank"
    if instr.kind == "halo_exchange":
        outside = max(0, min(stop, 0) - start) + max(0, stop - max(start, halo.part * halo.members))
        zeros = f", {outside} zeros outside the tensor" if outside else ""
        return f"this rank gets [{start}, {stop}) along dim {instr.attr('dim')} of {halo.part * halo.members}: {strips}{zeros}"
    return f"this rank adds up its slice [{low}, {high}) along dim {instr.attr('dim')} of {halo.part * halo.members}: {strips}"


def _move_lines(plan, instr: Instr, rank: int, number: str, operand: str, source: Value, out: Value) -> list[str]:
    name = CLASS_NAMES.get(instr.message or instr.kind, instr.kind)
    have, gives = message_shapes(instr, source, out)
    if instr.kind == "print":
        return [f"{number}({instr.out}) = Print({operand})", f"    : ({_tensor(have, source.dtype)})"]
    if instr.kind == "slice":
        dim, n = instr.attr("dim"), out.slice_shape
        start = instr.position(rank) * n[dim]
        begin = tuple(start if i == dim else 0 for i in range(len(n)))
        end = tuple(start + s if i == dim else s for i, s in enumerate(n))
        head = f"{number}({instr.out}) = {name}({operand}, {begin}, {end}, {(1,) * len(n)}) {{instance name: redistribution_op, for: {instr.name}}}"
    elif instr.kind == "reshape":
        head = f"{number}({instr.out}) = {name}({operand}, {instr.attr('shape')}) {{for: {instr.name}}}"
    elif instr.kind == "wait":
        head = f"{number}({instr.out}) = {name}({operand}) {{for: {instr.name}}}"
    elif instr.kind == "split":
        head = f"{number}({instr.out}) = {name}({operand}, {instr.attr('start')}, {instr.attr('stop')}) {{for: {instr.name}}}"
    else:
        ranks = "-".join(map(str, instr.group(rank)))
        carries = bool(instr.carried)
        sharded = (carries and instr.message != "all_reduce") or instr.attr("root") is not None
        kind = "forward_op" if instr.kind in ("all_reduce", *HALOS) else "redistribution_op"
        kind = "parallel_optimizer" if sharded else "mirror" if carries else kind
        reduce = f", op: {instr.attr('reduce')}" if instr.attr("reduce") else ""
        dims = {"split_dim": instr.attr("split_dim"), "concat_dim": instr.attr("concat_dim")} if instr.kind == "all_to_all" else {}
        dims |= {"root": instr.attr("root")} if instr.attr("root") is not None else {}
        shown = "".join(f", {k}: {v}" for k, v in dims.items())
        head = (
            f"{number}({instr.out}) = {name}({operand}) {{instance name: {kind}, for: {instr.name}}} "
            f"{{group_ranks: {ranks}, fusion: {instr.attr('fusion', 0)}{reduce}{shown}}}" + (" started" if instr.kind == "start" else "")
        )
    lines = [head, f"    : ({_tensor(have, source.dtype)}) -> ({_tensor(gives, out.dtype)})"]
    if instr.kind in HALOS:
        lines.append("    # " + _halo_words(instr, rank))
    dim = instr.attr("dim", 0)
    if instr.message == "all_gather" and dim:
        lines.append(f"    then Split(axis 0, {instr.group_size} parts), Concat(axis {dim}) -> ({_tensor(out.slice_shape, out.dtype)})")
    if instr.message == "reduce_scatter" and dim:
        lines.insert(1, f"    after Split(axis {dim}, {instr.group_size} parts), Concat(axis 0) of ({_tensor(source.slice_shape, source.dtype)})")
    return lines
