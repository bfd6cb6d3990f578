"""The rules of a plan, checked instruction by instruction.

    defined       every operand exists when it is read; every value is made once
    kinds         only known kinds; operators are registered
    shapes        an operator's slice shapes give the slice shape of its result; a message's shapes fit its group
    layouts       folding forward instructions over layouts gives the layout the table says (rules for operators, `redistribution.apply` for steps)
    groups        axes exist, groups have at least two ranks
    state         every assignment has source and target of equal slice shape and dtype
    schedule      actions name programs that exist, forward before backward before update

A broken rule is a defect of a pass; the error shows the lines around it.
"""

from __future__ import annotations

import math

import numpy as np

from .errors import LayoutError, ParallelLabError, PlanError, message
from .graph.ir import COMMUNICATION, KINDS, Instr, Value
from .layout import TensorLayout
from .ops.registry import OPS
from .ops.sharding import sharding_rule

__all__ = ["verify_plan"]

# Up to here the elements themselves are followed; a lesson's nets are far below, and a check of this size takes about a millisecond.
MOST_RANKS, MOST_ELEMENTS = 16, 16_384


def verify_plan(plan) -> None:
    """Raise PlanError at the first instruction that breaks a rule."""
    made = {i.name for i in plan.graph.inputs} | {s.name for s in plan.states} | set(plan.scalars)
    for stage in plan.stages:
        known = set(made)
        order = [a.program for a in stage.actions]
        programs = dict(stage.programs)
        if sorted(order) != sorted(programs):
            raise PlanError(message(f"actions {order} do not run the programs {sorted(programs)}", where="plan schedule"))
        for phase in order:
            program = programs[phase]
            for position, instr in enumerate(program):
                fault = _fault(plan, instr, known, phase)
                if fault:
                    raise PlanError(message(fault, where=f"plan, {phase} instruction {position}") + "\n" + _around(program, position))
                known.add(instr.out)
    for target, source in plan.assignments:
        a, b = plan.value(target), plan.value(source)
        if (a.slice_shape, a.dtype) != (b.slice_shape, b.dtype):
            raise PlanError(
                message(f"{target!r} ({a.slice_shape} {a.dtype}) takes the value of {source!r} ({b.slice_shape} {b.dtype})", where="plan update")
            )
    for name in plan.outputs:
        if name not in known:
            raise PlanError(message(f"output {name!r} is never made", where="plan"))


def _around(program: tuple[Instr, ...], position: int) -> str:
    lines = []
    for i in range(max(0, position - 2), min(len(program), position + 3)):
        instr = program[i]
        marker = "   <-- here" if i == position else ""
        lines.append(f"  {i:4} %{instr.out} = {instr.op_class or instr.kind}({', '.join('%' + n for n in instr.ins)}){marker}")
    return "\n".join(lines)


def _fault(plan, instr: Instr, known: set[str], phase: str) -> str:
    if instr.kind not in KINDS:
        return f"kind {instr.kind!r} is not known"
    missing = [n for n in instr.ins if n not in known]
    if missing:
        return f"%{missing[0]} is read before it is made"
    if instr.out in known:
        return f"%{instr.out} is made twice"
    if instr.out not in plan.value_table:
        return f"%{instr.out} has no entry in the value table"
    size = math.prod(instr.device_matrix)
    if instr.device_matrix and size != plan.device_num:
        return f"device matrix {instr.device_matrix} has {size} ranks, the plan has {plan.device_num}"
    if any(not 0 <= a < len(instr.device_matrix) for a in instr.axes):
        return f"axes {instr.axes} do not exist in device matrix {instr.device_matrix}"
    ins = [plan.value(n) for n in instr.ins]
    out = plan.value(instr.out)
    try:
        if instr.kind == "compute":
            return _compute_fault(plan, instr, ins, out, phase)
        return _move_fault(instr, ins[0], out, phase)
    except LayoutError as error:
        return str(error)


def _compute_fault(plan, instr: Instr, ins: list[Value], out: Value, phase: str) -> str:
    op = OPS.get(instr.op)
    if op is None:
        return f"operator {instr.op!r} is not registered"
    attrs = dict(instr.attrs)
    shape, dtype = op.infer(tuple(v.slice_shape for v in ins), tuple(v.dtype for v in ins), attrs, instr.name)
    if (shape, dtype) != (out.slice_shape, out.dtype):
        return f"{instr.op_class} on slices {[v.slice_shape for v in ins]} gives {shape} {dtype}, the table says {out.slice_shape} {out.dtype}"
    if phase == "forward" and instr.strategy is not None:
        node = plan.graph.node(instr.name)
        shapes = plan.graph.shapes()
        try:
            rule = sharding_rule(op, tuple(shapes[i] for i in node.ins), dict(node.attrs), instr.strategy, plan.device_num)
        except ParallelLabError as error:
            return str(error)
        for name, have, want in zip(instr.ins, ins, rule.ins, strict=True):
            if have.layout is not None and have.shape and not have.layout.same_placement(want):
                return f"%{name} is laid out as {have.layout}, {instr.op_class} with strategy {instr.strategy} wants {want}"
        if not out.layout.same_placement(rule.out):
            return f"the result is laid out as {rule.out}, the table says {out.layout}"
    return ""


def _move_fault(instr: Instr, source: Value, out: Value, phase: str) -> str:
    if instr.kind in COMMUNICATION and instr.group_size < 2:
        return f"{instr.kind} over axes {instr.axes} of {instr.device_matrix} has a group of one rank"
    n, have, gives = instr.group_size, source.slice_shape, out.slice_shape

    def scaled(shape, dim, factor, divisor=1):
        return tuple(s * factor // divisor if i == dim else s for i, s in enumerate(shape))

    dim = instr.attr("dim", 0)
    expected = {
        "all_reduce": lambda: have,
        "all_gather": lambda: scaled(have, dim, n),
        "reduce_scatter": lambda: scaled(have, dim, 1, n),
        "slice": lambda: scaled(have, dim, 1, n),
        "all_to_all": lambda: scaled(scaled(have, instr.attr("split_dim"), 1, n), instr.attr("concat_dim"), n),
        "reshape": lambda: instr.attr("shape"),
    }.get(instr.kind)
    if expected is None:
        return ""
    wanted = expected()
    if wanted != gives or math.prod(have) % n and instr.kind in ("reduce_scatter", "slice"):
        return f"{instr.kind} of a slice {have} over {n} ranks gives {wanted}, the table says {gives}"
    if instr.kind == "reshape" and math.prod(have) != math.prod(gives):
        return f"reshape of a slice {have} to {gives}"
    return _layout_fault(instr, source, out) if phase == "forward" else ""


def _layout_fault(instr: Instr, source: Value, out: Value) -> str:
    """Do one forward move with the elements' numbers in place of the elements, and compare what every rank then holds with the table.

    Exact, but its cost grows with elements and ranks; large tensors have their shapes checked only (the same pass made them by the same rules).
    """
    ranks = source.layout.device_num
    if ranks > MOST_RANKS or math.prod(source.shape) > MOST_ELEMENTS:
        return ""
    have, want = _numbers(source), _numbers(out)
    dim = instr.attr("dim", 0)
    for rank in range(ranks):
        parts = [have[r] for r in instr.group(rank)]
        mine = have[rank]
        if instr.kind == "all_reduce":
            if any(not np.array_equal(p, mine) for p in parts):
                return f"all_reduce on rank {rank} combines different slices"
            got = mine
        elif instr.kind == "all_gather":
            got = np.concatenate(parts, axis=dim)
        elif instr.kind == "slice":
            got = np.split(mine, instr.group_size, axis=dim)[instr.position(rank)]
        elif instr.kind == "all_to_all":
            position = instr.group(rank).index(rank)
            pieces = [np.split(p, len(parts), axis=instr.attr("split_dim"))[position] for p in parts]
            got = np.concatenate(pieces, axis=instr.attr("concat_dim"))
        elif instr.kind == "reduce_scatter":
            got = np.split(mine, instr.group_size, axis=dim)[instr.group(rank).index(rank)]
        else:
            got = mine.reshape(out.slice_shape)
        if not np.array_equal(got.reshape(-1), want[rank].reshape(-1)):
            return f"{instr.kind} gives rank {rank} other elements than {out.layout} says"
    if instr.kind == "all_reduce" and source.layout.device_matrix == instr.device_matrix:
        left = tuple(x for x in source.layout.partial if x not in instr.axes)
        if not TensorLayout(source.layout.device_matrix, source.layout.tensor_map, left, source.layout.reduce).same_placement(out.layout):
            return f"all_reduce over axes {instr.axes} of {source.layout} does not leave {out.layout}"
    return ""


def _numbers(value: Value) -> list[np.ndarray]:
    """Per rank, the row-major numbers of the elements it holds."""
    numbers = np.arange(math.prod(value.shape)).reshape(value.shape)
    return [numbers[value.layout.slice_index(value.shape, rank)] for rank in range(value.layout.device_num)]
