"""IR files of `set_context(save_graphs=True, save_graphs_path=...)`: a program as MindSpore's readers know it.

    rank_0/step_parallel_begin_0001.ir    operators on global shapes, each with its strategy
    rank_0/step_parallel_end_0002.ir      the same operators on slices, with what was inserted between them
    rank_0/17_validate_0003.ir            the forward and backward program
    rank_0/18_execute_0004.ir             everything a step runs, as rank 0 runs it

An operator's lines: what it computes, types of operands and result, its scope, its source line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..base.dtypes import BFLOAT16, as_dtype
from ..base.files import write_whole
from ..base.origin import Origin
from ..graph.draft import Draft
from ..graph.instr import Instr, Value
from ..graph.instr_text import message_shapes
from ..graph.ir import Node
from ..graph.kinds import class_name
from ..graph.plan import Plan
from ..layout.named_layout import strategy_counts
from ..ops.collectives.definitions import MESSAGES

_DIGITS = re.compile(r"_(\d{4,})\.ir$")


def write_graph_files(steps: Iterable[tuple[str, Draft | Plan]], folder: str, rank: int) -> list[Path]:
    """Write `compile_steps`' four files into `folder`/rank_<rank>; their paths. Later programs: higher numbers."""
    target = Path(folder) / f"rank_{rank}"
    target.mkdir(parents=True, exist_ok=True)
    plan = next(draft for _, draft in reversed(list(steps)) if isinstance(draft, Plan))
    number = max((int(m.group(1)) for p in target.glob("*.ir") if (m := _DIGITS.search(p.name))), default=0)
    texts = {
        "step_parallel_begin": begin_text(plan),
        "step_parallel_end": program_text(plan, rank, ("forward",)),
        "17_validate": program_text(plan, rank, ("forward", "backward")),
        "18_execute": program_text(plan, rank, ("forward", "backward", "update")),
    }
    return [write_whole(target / f"{name}_{number + i:04}.ir", text) for i, (name, text) in enumerate(texts.items(), 1)]


# ---- the operators as they were written, with strategies ----


def begin_text(plan: Plan) -> str:
    """The traced network on global shapes, with the strategy of every operator."""
    shapes, dtypes = plan.graph.shapes(), plan.graph.dtypes()
    labels, lines = _inputs(plan, {i.name: (i.shape, i.dtype) for i in plan.graph.inputs})
    for number, node in enumerate(plan.graph.nodes, 1):
        label = _made(labels, node.outs, number, "out")
        operands = ", ".join(_label(labels, name) for name in node.ins)
        types = ", ".join(_tensor(shapes[name], dtypes[name]) for name in node.ins)
        strategy = f" {{in_strategy: {_strategy(node.strategy)}}}" if node.strategy is not None else ""
        line = f"{label} = {node.op_class}({operands})"
        lines.append(f"{line} {{instance name: {_instance(node)}}} primitive_attrs: {_facts(node)}{strategy}")
        results = ", ".join(map(_tensor, node.shapes, node.dtypes))
        lines.append(f"    : ({types}) -> ({results})")
        lines += _places(node.origin)
    lines.append(f"Return({', '.join(_label(labels, name) for name in plan.graph.outputs)})")
    return "\n".join(lines) + "\n"


# ---- the program of slices ----


def program_text(plan: Plan, rank: int, phases: tuple[str, ...]) -> str:
    """What `rank` runs in these phases, on slices, messages and inserted operators included."""
    held = {i.name: plan.value(i.name) for i in plan.graph.inputs if i.name in plan.value_table}
    labels, lines = _inputs(plan, {name: (v.slice_shape, v.dtype) for name, v in held.items()})
    for state in plan.states if "update" in phases else ():
        if not plan.held_by(state.name, rank):
            continue
        labels[state.name] = f"%para{len(labels) + 1}_{state.name}"
        value = plan.value(state.name)
        lines.insert(-1, _declared(labels[state.name], state.name, "Ref", value.slice_shape, value.dtype))
    number = 0
    for phase in phases:
        for instr in plan.stage_of(rank).program(phase):
            if not instr.runs_on(rank):
                continue
            number += 1
            label = _made(labels, instr.outs, number, "equivout")
            lines += _instruction(plan, instr, rank, labels, label)
    lines.append(f"Return({', '.join(_label(labels, name) for name in plan.outputs if name in labels)})")
    return "\n".join(lines) + "\n"


def _instruction(plan: Plan, instr: Instr, rank: int, labels: dict[str, str], label: str) -> list[str]:
    ins, out = [plan.value(n) for n in instr.ins], plan.value(instr.out)
    node = plan.graph.node(instr.name)
    operands = [_label(labels, name) for name in instr.ins]
    given, kept = [v.slice_shape for v in ins], [plan.value(n) for n in instr.kept]
    results = [_tensor(v.slice_shape, v.dtype) for v in kept]
    attributes, strategy, after = "{}", "", ""
    if instr.is_communication:
        name, instance = class_name(instr), _message_instance(instr)
        if instr.attr("root") is not None and instr.ins[0] not in labels:
            # a rank that has nothing to send hands over the parameter that is to change
            operands = [_label(labels, instr.name)]
        group = instr.group(rank)
        joined = "-".join(map(str, group))
        facts = {"group_ranks": joined, "rank_list": group, "fusion": instr.attr("fusion", 0)}
        if instr.attr("reduce") is not None:
            facts = {"op": instr.attr("reduce"), **facts}
        if instr.attr("root") is not None:
            facts = {"root_rank": instr.attr("root"), **facts}
        attributes = _pairs(facts)
        before, gives = message_shapes(instr, ins[0], out)
        given, results = [before], [_tensor(gives, out.dtype)]
        dim, definition = instr.attr("dim", 0), MESSAGES[instr.message]
        if dim and bool(definition.cut) != bool(definition.join):
            # MindSpore's operators join and split along dim 0; the pieces then change places
            after = f"    # Split and Concat follow: along dim {dim}, {out.slice_shape}"
    elif instr.kind == "slice":
        name, instance = "StridedSlice", f"redistribution_op_{instr.out}StridedSlice"
        begin, end = _window(instr, rank, ins[0], out)
        operands += [str(begin), str(end), str((1,) * len(begin))]
    elif instr.kind == "reshape":
        name, instance = "Reshape", instr.out
        operands.append(str(instr.attr("shape")))
    else:
        name = class_name(instr)
        own = node is not None and instr.out.removesuffix(".partial") in node.outs
        instance = _instance(node) if own else instr.out
        attributes = _facts(node) if own else _pairs(dict(instr.attrs))
        if instr.strategy is not None:
            strategy = f" {{in_strategy: {_strategy(instr.strategy)}}}"
    types = ", ".join(_tensor(shape, v.dtype) for shape, v in zip(given, ins, strict=True))
    line = f"{label} = {name}({', '.join(operands)})"
    lines = [f"{line} {{instance name: {instance}}} primitive_attrs: {attributes}{strategy}"]
    lines.append(f"    : ({types}) -> ({', '.join(results)})")
    if instr.reason:
        lines.append(f"    # {instr.reason}")
    return lines + ([after] if after else []) + _places(instr.origin)


def _window(instr: Instr, rank: int, source: Value, out: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Begin and end of a slice, per dim, within the operand."""
    dim, have, gives = instr.attr("dim"), source.slice_shape, out.slice_shape
    part = have[dim] // instr.group_size
    first = instr.position(rank) * part
    begin = tuple(first if d == dim else 0 for d in range(len(have)))
    return begin, tuple(b + n for b, n in zip(begin, gives, strict=True)) if len(gives) == len(have) else have


# ---- words ----


def _inputs(plan: Plan, known: dict[str, tuple[tuple[int, ...], str]]) -> tuple[dict[str, str], list[str]]:
    """({value: how the file names it}, the header's lines)."""
    labels, lines, number = {}, [f"# {plan.graph.name}, {plan.device_num} devices, {plan.config.parallel_mode}"], 0
    for graph_input in plan.graph.inputs:
        if graph_input.role in ("parameter", "data", "constant") and graph_input.name in known:
            number += 1
            labels[graph_input.name] = f"%para{number}_{graph_input.name}"
            kind = "Ref" if graph_input.role == "parameter" else "Tensor"
            lines.append(_declared(labels[graph_input.name], graph_input.name, kind, *known[graph_input.name]))
    return labels, [*lines, ""]


def _declared(label: str, name: str, kind: str, shape: tuple[int, ...], dtype: str) -> str:
    return f"{label} : <{kind}[{_type(dtype)}], {shape}>{f', ref_key=:{name}' if kind == 'Ref' else ''}"


def _made(labels: dict[str, str], outs: tuple[str, ...], number: int, kind: str) -> str:
    """Label what line `number` makes, several results as "%3[0]", "%3[1]"; the line's own label."""
    label = f"%{number}({kind})"
    labels.update((name, f"%{number}[{i}]" if len(outs) > 1 else label) for i, name in enumerate(outs))
    return label


def _label(labels: dict[str, str], name: str) -> str:
    """How an operand is written: without what stands in brackets behind the number; a number as it is."""
    return labels[name].partition("(")[0] if name in labels else name.partition(":")[0]


def _instance(node: Node | None) -> str:
    return node.name.rpartition(".")[2] if node is not None else ""


def _message_instance(instr: Instr) -> str:
    """A message's name: MindSpore begins that of a gradient's otherwise than that of an operator's."""
    if instr.carried:
        return f"{'mirror' if instr.message == 'all_reduce' else 'parallel_optimizer'}_{instr.out}"
    if instr.attr("root") is not None:
        return f"parallel_optimizer_{instr.out}"
    return f"forward_op_{instr.out}" if instr.message == "all_reduce" else instr.out


def _facts(node: Node) -> str:
    """Attributes of an operator, and the strategy that the learner gave it."""
    facts = dict(node.attrs)
    if node.strategy_source == "user":
        facts["in_strategy"] = _strategy(node.strategy)
        facts["out_strategy"] = None if node.out_strategy is None else _strategy(node.out_strategy)
    return _pairs(facts)


def _pairs(facts: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{k}: {str(v).lower() if isinstance(v, bool) else v}" for k, v in facts.items()) + "}"


def _strategy(strategy: Any) -> str:
    """MindSpore's spelling: ((2, 4), (4, 1)), and ((2, 4)) for one operand."""
    return "(" + ", ".join(str(tuple(cuts)) for cuts in strategy_counts(strategy)) + ")"


def _type(dtype: str) -> str:
    name = as_dtype(dtype).name
    return "BFloat16" if name == BFLOAT16 else name[:1].upper() + name[1:]


def _tensor(shape: tuple[int, ...], dtype: str) -> str:
    return f"<Tensor[{_type(dtype)}], {tuple(shape)}>"


def _places(origin: Origin) -> list[str]:
    lines = [f"    # scope: ({origin.scope})"] if origin.scope else []
    if origin.file:
        lines.append(f"    # In file {origin.file}({origin.line})/        {origin.text}/")
    return lines
