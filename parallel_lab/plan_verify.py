"""The rules of a plan, checked instruction by instruction.

    defined       every operand exists when it is read; every value is made once
    kinds         only known kinds; operators are registered
    shapes        an operator's slice shapes give the slice shape of its result; a message's shapes fit its group
    layouts       forward operators have the layouts of their strategy; every message and slice brings each rank the elements that the table says
    windows       a halo's slices lie side by side along its group, its windows reach direct neighbours only; an operator reads just the windows that
                  its strategy asks for
    buckets       what was started is waited for once; a part that is cut out of a bucket is what its own message would have brought
    groups        axes exist, groups have at least two ranks; a sum's group holds addends of one sum, all different
    state         every assignment has a source that was made, of the target's slice shape and dtype; gradients and outputs are made;
                  a gradient is laid out as its parameter, and an update computes with no partial sum
    owners        what one rank alone holds is read by that rank alone, or sent by it; messages are everybody's
    stages        every rank belongs to one stage
    schedule      actions name programs that exist, forward before backward before update

A broken rule is a defect of a pass; the error shows the lines around it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import numpy as np

from .errors import ParallelLabError, PlanError, message
from .graph.ir import COMMUNICATION, KINDS, LOCAL_MODES, Instr, Value
from .halo import HALOS
from .layout import TensorLayout
from .ops.registry import OPS
from .ops.sharding import ShardingRule, sharding_rule

__all__ = ["verify_plan"]

# The instruction that made each value known so far; None for what the plan is given.
Makers = dict[str, Instr | None]

# Up to here the elements themselves are followed; a lesson's nets are far below, and a check of this size takes about a millisecond.
MOST_RANKS, MOST_ELEMENTS = 16, 16_384


def verify_plan(plan) -> None:
    """Raise PlanError at the first instruction that breaks a rule."""
    made = {i.name for i in plan.graph.inputs} | {s.name for s in plan.states} | set(plan.scalars)
    ranks = [r for stage in plan.stages for r in stage.ranks]
    if ranks != list(range(plan.device_num)):
        raise PlanError(message(f"the stages have {len(ranks)} ranks", where="plan stages", allowed=f"Ranks 0 to {plan.device_num - 1}, each once"))
    for stage in plan.stages:
        known: Makers = dict.fromkeys(made)
        programs = dict(stage.programs)
        order, parts = [(a.program, a.micro_batch) for a in stage.actions], {(p, i.micro_batch) for p, program in programs.items() for i in program}
        if len(set(order)) < len(order) or not parts <= set(order) or not {p for p, _ in order} <= set(programs):
            raise PlanError(message(f"actions {[p for p, _ in order]} do not run the programs {sorted(programs)}", where="plan schedule"))
        for action in stage.actions:
            phase, program = action.program, programs[action.program]
            for position, instr in stage.part(action):
                fault = _fault(plan, instr, known, phase)
                if fault:
                    raise PlanError(message(fault, where=f"plan, {phase} instruction {position}") + "\n" + _around(program, position))
                known[instr.out] = instr
    assigned = (*plan.forward_assignments, *plan.assignments)
    for what, name in [("the new value of " + t, s) for t, s in assigned] + [("the gradient of " + p, g) for p, g in plan.gradients]:
        if name not in known:
            raise PlanError(message(f"{what}, {name!r}, is never made", where="plan"))
    for stage in plan.stages:
        kinds = [(i.kind, i.out if i.kind == "start" else i.ins[0]) for _, p in stage.programs for i in p if i.kind in ("start", "wait")]
        waits = Counter(name for kind, name in kinds if kind == "wait")
        wrong = next((name for kind, name in kinds if kind == "start" and waits[name] != 1), None)
        if wrong is not None:
            raise PlanError(message(f"%{wrong} is started once and waited for {waits[wrong]} times", where="plan"))
    for name, gradient in plan.gradients:
        a, b = plan.value(name), plan.value(gradient)
        if a.shape != b.shape or b.layout is None or not b.layout.same_placement(a.layout):
            raise PlanError(message(f"the gradient of {name!r} is laid out as {b.layout}, the parameter as {a.layout}", where="plan"))
    for target, source in assigned:
        a, b = plan.value(target), plan.value(source)
        if (a.slice_shape, a.dtype) != (b.slice_shape, b.dtype):
            raise PlanError(
                message(f"{target!r} ({a.slice_shape} {a.dtype}) takes the value of {source!r} ({b.slice_shape} {b.dtype})", where="plan")
            )
        if plan.owner_of(source) not in (None, plan.owner_of(target)):
            raise PlanError(message(f"{target!r} takes the value of {source!r}, which rank {plan.owner_of(source)} alone holds", where="plan"))
    for target, source in plan.forward_assignments:
        a, b = plan.value(target), plan.value(source)
        # a value without a layout is each rank's own (data_parallel: running statistics of its part of the batch)
        if a.layout is None or (b.layout is not None and not a.layout.same_placement(b.layout)):
            raise PlanError(message(f"{target!r} is laid out as {a.layout} and takes a value laid out as {b.layout}", where="plan"))
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


def _fault(plan, instr: Instr, known: Makers, phase: str) -> str:
    if instr.kind not in KINDS:
        return f"kind {instr.kind!r} is not known"
    missing = [n for n in instr.ins if n not in known]
    if missing:
        return f"%{missing[0]} is read before it is made"
    if instr.out in known:
        return f"%{instr.out} is made twice"
    if instr.owner is not None and (instr.is_communication or not 0 <= instr.owner < plan.device_num):
        return f"%{instr.out} is made by rank {instr.owner} alone, and is a message" if instr.is_communication else f"there is no rank {instr.owner}"
    reader = instr.attr("root") if instr.kind == "broadcast" else instr.owner
    elsewhere = next((n for n in instr.ins if plan.owner_of(n) not in (None, reader)), None)
    if elsewhere is not None:
        return f"%{elsewhere} is held by rank {plan.owner_of(elsewhere)} alone, and read by {'all' if reader is None else reader}"
    if instr.out not in plan.value_table:
        return f"%{instr.out} has no entry in the value table"
    size = math.prod(instr.device_matrix)
    if instr.device_matrix and size != plan.device_num:
        return f"device matrix {instr.device_matrix} has {size} ranks, the plan has {plan.device_num}"
    taken = (*instr.axes, *(a for axes in instr.offset_axes for a in axes))
    if any(not 0 <= a < len(instr.device_matrix) for a in taken) or len(set(taken)) < len(taken):
        return f"axes {taken} are no different axes of device matrix {instr.device_matrix}"
    if instr.kind not in ("compute", "concat") and len(instr.ins) != 1:
        return f"{instr.kind} has {len(instr.ins)} operands, and takes one"
    ins = [plan.value(n) for n in instr.ins]
    out = plan.value(instr.out)
    try:
        pending = next((n for n, v in zip(instr.ins, ins, strict=True) if v.layout is not None and v.layout.is_partial), None)
        if instr.kind in ("concat", "start", "wait", "split"):
            return _bucket_fault(plan, instr, ins, out, known, phase)
        if phase == "update" and pending is not None and instr.kind != "all_reduce":
            return f"%{pending} is a partial sum, and updates take whole gradients"
        if instr.kind == "compute":
            return _compute_fault(plan, instr, ins, out, known, phase)
        if instr.kind in HALOS and instr.group_size > 1:
            return _halo_fault(instr, ins[0], out, known, phase)
        # in data_parallel mode values exist per rank: there are no layouts that a message could break
        return _move_fault(instr, ins[0], out, "" if plan.config.parallel_mode in LOCAL_MODES else phase)
    except ParallelLabError as error:
        return str(error)


def _compute_fault(plan, instr: Instr, ins: list[Value], out: Value, known: Makers, phase: str) -> str:
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
        for name, have, want in _slices_read(plan, instr, rule, known):
            if have.layout is None and have.shape:
                return f"%{name} has no layout"
            if have.layout is not None and have.shape and not have.layout.same_placement(want):
                return f"%{name} is laid out as {have.layout}, {instr.op_class} with strategy {instr.strategy} wants {want}"
        if out.layout is None:
            return f"%{instr.out} has no layout"
        expected = rule.out.whole() if node.keeps_own_part(plan.device_num) else rule.out
        if not out.layout.same_placement(expected):
            return f"the result is laid out as {expected}, the table says {out.layout}"
    return ""


def _slices_read(plan, instr: Instr, rule: ShardingRule, known: Makers) -> list[tuple[str, Value, TensorLayout]]:
    """(name, value, layout the strategy wants) of the operands; of a windowed one, the slices its windows were made of.

    Raises PlanError unless the windowed operand was made by just the halo_exchanges that the strategy asks for.
    """
    first = instr.ins[0] if instr.ins else ""
    for dim, axes, window in reversed(rule.windows):
        maker = known.get(first)
        made = maker and (maker.kind, maker.attr("dim"), maker.axes, maker.device_matrix, maker.attr("window"))
        if made != ("halo_exchange", dim, axes, rule.out.device_matrix, window):
            what = f"%{first} is no halo_exchange along dim {dim} of windows {window}"
            raise PlanError(message(what, where=f"{instr.op_class} with strategy {instr.strategy}"))
        first = maker.ins[0]
    names = (first, *instr.ins[1:]) if instr.ins else ()
    return [(name, plan.value(name), want) for name, want in zip(names, rule.ins, strict=True)]


def _halo_fault(instr: Instr, source: Value, out: Value, known: Makers, phase: str) -> str:
    """A halo's slices lie side by side along its group; its windows have no layout, and come from slices or from windows along another dim."""
    dim, halo = instr.attr("dim"), instr.halo
    have, gives, (before, after) = source.slice_shape, out.slice_shape, halo.extents(instr.kind)
    wanted = tuple(after if d == dim else size for d, size in enumerate(have))
    if have[dim] != before or wanted != gives:
        shapes = f"a slice {have} with window {instr.attr('window')} along dim {dim}"
        return f"{instr.kind} of {shapes} takes {before} elements and gives {wanted}, the table says {gives}"
    fault = halo.fault()
    if fault:
        return f"{instr.kind}: {fault}"
    slices, windows = (source, out) if instr.kind == "halo_exchange" else (out, source)
    if windows.layout is not None:
        return f"{instr.kind}: windows overlap, so they have no layout, but the table says {windows.layout}"
    layout, maker = slices.layout, known.get(instr.ins[0])
    if layout is None:
        chained = maker is not None and maker.kind == "halo_exchange" and maker.attr("dim") != dim
        return "" if chained or phase != "forward" else f"%{instr.ins[0]} has no layout"
    if layout.is_partial and phase == "forward":
        return f"{instr.kind} of a value that is partial ({layout})"
    for rank in range(min(layout.device_num, MOST_RANKS)):
        index, first = layout.slice_index(slices.shape, rank), layout.slice_index(slices.shape, instr.group(rank)[0])
        elsewhere = any(a != b for d, (a, b) in enumerate(zip(index, first, strict=True)) if d != dim)
        if elsewhere or index[dim].start != halo.part * instr.position(rank) or slices.shape[dim] != halo.part * halo.members:
            return f"{instr.kind}: dim {dim} of {layout} is not cut into one slice of {halo.part} per rank of the group {instr.group(rank)}"
    return ""


def _bucket_fault(plan, instr: Instr, ins: list[Value], out: Value, known: Makers, phase: str) -> str:
    """A bucket is packed, started, waited for and cut up again; each part that comes out is what a message of its own would have brought."""
    source, maker = ins[0], known.get(instr.ins[0])
    if instr.kind == "concat":
        rows = instr.attr("rows")
        sizes = [math.prod(v.slice_shape) for v in ins]
        fits = all(size % rows == 0 for size in sizes) and {v.dtype for v in ins} == {out.dtype} and out.shape == (rows, sum(sizes) // rows)
        return "" if fits else f"concat of slices {[v.slice_shape for v in ins]} in {rows} rows gives no {out.shape} {out.dtype}"
    if instr.kind == "start":
        reply = replace(instr, kind=instr.message)
        # what travels alone has its layouts; of a bucket each part is looked at where it comes out
        return _move_fault(reply, source, out, "" if plan.config.parallel_mode in LOCAL_MODES or instr.attr("members") is not None else phase)
    if instr.kind == "wait":
        if maker is None or maker.kind != "start":
            return f"%{instr.ins[0]} was not started"
        same = (source.slice_shape, source.dtype) == (out.slice_shape, out.dtype)
        return "" if same else f"%{instr.ins[0]} brings {source.slice_shape} {source.dtype}, the table says {out.slice_shape} {out.dtype}"
    start = known.get(maker.ins[0]) if maker is not None and maker.kind == "wait" else None
    concat = known.get(start.ins[0]) if start is not None else None
    if concat is None or concat.kind != "concat" or not 0 <= instr.attr("member") < len(concat.ins):
        return f"%{instr.ins[0]} is no bucket that has come back"
    parts = [math.prod(plan.value(name).slice_shape) // concat.attr("rows") for name in concat.ins]
    at = sum(parts[: instr.attr("member")])
    if (instr.attr("start"), instr.attr("stop")) != (at, at + parts[instr.attr("member")]):
        return f"columns {instr.attr('start')} to {instr.attr('stop')} are not those of operand {instr.attr('member')} of %{concat.out}"
    alone = replace(start, kind=start.message, ins=(concat.ins[instr.attr("member")],), out=instr.out)
    return _move_fault(alone, plan.value(alone.ins[0]), out, "" if plan.config.parallel_mode in LOCAL_MODES else phase)


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
    reduce = "sum" if instr.attr("reduce") == "mean" else instr.attr("reduce")  # a mean adds up the same addends
    if source.layout is not None and source.layout.is_partial and reduce not in (None, source.layout.reduce):
        return f"{instr.kind} {instr.attr('reduce')} of a value whose parts combine by {source.layout.reduce}"
    return _layout_fault(instr, source, out, phase)


def _layout_fault(instr: Instr, source: Value, out: Value, phase: str) -> str:
    """Whether one move brings every rank the elements, and the addends, that the table says it then holds; "" if so."""
    if source.layout is None or out.layout is None:
        # helper values of gradient rules exist per rank only
        return f"%{instr.ins[0] if source.layout is None else instr.out} has no layout" if phase == "forward" else ""
    dims = tuple(instr.attr(name) for name in ("dim", "split_dim", "concat_dim"))
    return _elements_fault(instr.kind, dims, instr.axes, instr.device_matrix, source, out)


@lru_cache(maxsize=4096)
def _elements_fault(kind: str, dims: tuple[int | None, ...], axes: tuple[int, ...], device_matrix: tuple[int, ...], source: Value, out: Value) -> str:
    """Do the move with the elements' numbers in place of the elements, and compare what every rank then holds with the table.

    Exact, but its cost grows with elements and ranks; large tensors have their shapes checked only (the same pass made them by the same rules). Kept,
    because many plans of one lesson make the same moves.
    """
    ranks = source.layout.device_num
    if ranks > MOST_RANKS or math.prod(source.shape) > MOST_ELEMENTS:
        return ""
    have, want = _numbers(source), _numbers(out)
    instr = Instr(kind, "", ("",), axes=axes, device_matrix=device_matrix)
    dim, split_dim, concat_dim = dims
    for rank in range(ranks):
        mine = have[rank]
        if kind == "reshape":
            got = mine
        elif kind == "slice":
            got = np.split(mine, instr.group_size, axis=dim)[instr.position(rank)]
        else:
            group = instr.group(rank)
            parts = [have[r] for r in group]
            if kind == "all_reduce":
                if any(not np.array_equal(p, mine) for p in parts):
                    return f"all_reduce on rank {rank} combines different slices"
                got = mine
            elif kind == "all_gather":
                got = np.concatenate(parts, axis=dim)
            elif kind == "all_to_all":
                position = group.index(rank)
                got = np.concatenate([np.split(p, len(parts), axis=split_dim)[position] for p in parts], axis=concat_dim)
            else:
                got = np.split(mine, len(parts), axis=dim)[group.index(rank)]
        if not np.array_equal(got.reshape(-1), want[rank].reshape(-1)):
            return f"{kind} gives rank {rank} other elements than {out.layout} says"
        before, after = set(source.layout.partial_group(rank)), set(out.layout.partial_group(rank))
        together = set(instr.group(rank)) if kind in ("all_reduce", "reduce_scatter") else {rank}
        if not together <= before:
            return f"{kind} combines ranks {sorted(together)}, but rank {rank}'s value has its addends on ranks {sorted(before)} ({source.layout})"
        if together & after != {rank} or len(together) * len(after) != len(before):
            return f"{kind} over ranks {sorted(together)} of {source.layout} does not leave {out.layout}"
    return ""


def _numbers(value: Value) -> list[np.ndarray]:
    """Per rank, the row-major numbers of the elements it holds."""
    numbers = np.arange(math.prod(value.shape)).reshape(value.shape)
    return [numbers[value.layout.slice_index(value.shape, rank)] for rank in range(value.layout.device_num)]
