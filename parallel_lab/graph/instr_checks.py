"""Whether one instruction brings every rank what the value table says: the fault, or "" (used by `kinds.py`)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np

from ..base.errors import ParallelLabError, PlanError
from ..layout.tensor_layout import TensorLayout
from ..ops.collectives.definitions import MESSAGES
from ..ops.machine.opdef import OPS
from ..ops.machine.sharding import sharding_rule
from ..ops.machine.split_labels import ShardingRule
from .instr import Instr, Pairs, Value

# The instruction that made each value known so far; None for an input of the plan.
Makers = dict[str, Instr | None]

# Up to here the elements themselves are followed, in about a millisecond; a lesson's nets are far below.
MOST_RANKS, MOST_ELEMENTS = 16, 16_384


def compute_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """What is wrong with an operator's slice shapes, or with layouts its strategy does not give; or ""."""
    op, ins = OPS.get(instr.op), [plan.value(name) for name in instr.ins]
    if op is None:
        return f"operator {instr.op!r} is not registered"
    attrs = dict(instr.attrs)
    results = op.infer(tuple(v.slice_shape for v in ins), tuple(v.dtype for v in ins), attrs, instr.name)
    if len(results.shapes) != len(instr.outs):
        return f"{instr.op_class} gives {len(results.shapes)} results, the instruction names {len(instr.outs)}"
    for name, shape, dtype in zip(instr.outs, results.shapes, results.dtypes, strict=True):
        if name and (shape, dtype) != ((out := plan.value(name)).slice_shape, out.dtype):
            gives = f"{instr.op_class} on slices {[v.slice_shape for v in ins]} gives {shape} {dtype}"
            return f"{gives}, the table says {out.slice_shape} {out.dtype}"
    if phase != "forward" or instr.strategy is None:
        return ""
    node = plan.graph.node(instr.name)
    try:
        whole = plan.graph.operand_shapes(node)
        rule = sharding_rule(op, whole, dict(node.attrs), instr.strategy, plan.config.device_num)
    except ParallelLabError as error:
        return str(error)
    for name, have, want in _slices_read(plan, instr, rule, makers):
        if have.layout is None and have.shape:
            return f"%{name} has no layout"
        if have.layout is not None and have.shape and not have.layout.same_placement(want):
            wants = f"{instr.op_class} with strategy {instr.strategy} wants {want}"
            return f"%{name} is laid out as {have.layout}, {wants}"
    for name, layout in zip(instr.outs, rule.outs, strict=True):
        layout_now = plan.value(name).layout if name else layout
        if layout_now is None:
            return f"%{name} has no layout"
        expected = layout.whole() if node.keeps_own_part(plan.config.device_num) else layout
        if name and not layout_now.same_placement(expected):
            return f"the result is laid out as {expected}, the table says {layout_now}"
    return ""


def _slices_read(plan: Any, instr: Instr, rule: ShardingRule, makers: Makers) -> list[tuple[str, Value, TensorLayout]]:
    """(name, value, layout the strategy wants) of operands; of a windowed one, of the slices behind its windows.

    Raises PlanError unless the windowed operand was made by just the halo_exchanges that the strategy asks for.
    """
    first = instr.ins[0] if instr.ins else ""
    for dim, axes, window in reversed(rule.windows):
        maker = makers.get(first)
        expected = ("halo_exchange", dim, axes, rule.out.device_matrix, window)
        found = maker and (maker.kind, maker.attr("dim"), maker.axes, maker.device_matrix, maker.attr("window"))
        if maker is None or found != expected:
            what = f"%{first} is not a halo_exchange along dim {dim} of windows {window}"
            raise PlanError(what, where=f"{instr.op_class} with strategy {instr.strategy}")
        first = maker.ins[0]
    names = (first, *instr.ins[1:]) if instr.ins else ()
    return [(name, plan.value(name), want) for name, want in zip(names, rule.ins, strict=True)]


def accumulate_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """A sum over micro-batches is what they give."""
    source, out = plan.value(instr.ins[0]), plan.value(instr.out)
    if (source.slice_shape, source.dtype) == (out.slice_shape, out.dtype):
        return ""
    return f"%{instr.ins[0]} is {source.slice_shape} {source.dtype}, its sum {out.slice_shape} {out.dtype}"


def halo_fault(instr: Instr, source: Value, out: Value, makers: Makers, phase: str) -> str:
    """A halo's slices lie along its group; its windows, without layout, come from slices or other windows."""
    dim, halo = instr.attr("dim"), instr.halo
    have, gives, (before, after) = source.slice_shape, out.slice_shape, halo.extents(instr.kind)
    expected = tuple(after if d == dim else size for d, size in enumerate(have))
    if have[dim] != before or expected != gives:
        shapes = f"a slice {have} with window {instr.attr('window')} along dim {dim}"
        return f"{instr.kind} of {shapes} takes {before} elements and gives {expected}, the table says {gives}"
    fault = halo.fault()
    if fault:
        return f"{instr.kind}: {fault}"
    slices, windows = (source, out) if instr.kind == "halo_exchange" else (out, source)
    if windows.layout is not None:
        return f"{instr.kind}: windows overlap, so they have no layout, but the table says {windows.layout}"
    layout, maker = slices.layout, makers.get(instr.ins[0])
    if layout is None:
        chained = maker is not None and maker.kind == "halo_exchange" and maker.attr("dim") != dim
        return "" if chained or phase != "forward" else f"%{instr.ins[0]} has no layout"
    if layout.is_partial and phase == "forward":
        return f"{instr.kind} of a value that is partial ({layout})"
    for rank in range(min(layout.device_num, MOST_RANKS)):
        index, first = layout.slice_index(slices.shape, rank), layout.slice_index(slices.shape, instr.group(rank)[0])
        elsewhere = any(a != b for d, (a, b) in enumerate(zip(index, first, strict=True)) if d != dim)
        apart = index[dim].start != halo.part * instr.position(rank)
        if elsewhere or apart or slices.shape[dim] != halo.part * halo.members:
            cut = f"one slice of {halo.part} per rank of the group {instr.group(rank)}"
            return f"{instr.kind}: dim {dim} of {layout} is not split into {cut}"
    return ""


def move_fault(instr: Instr, source: Value, out: Value, phase: str) -> str:
    """What is wrong with a message, a slice or a reshape, or "": shapes fit its group, every rank gets the right
    elements, and sums combine addends of one sum, all different.  phase: "" where values have no layouts to break.
    """
    definition, n = MESSAGES.get(instr.kind), instr.group_size
    have, gives = source.slice_shape, out.slice_shape
    if definition is not None and n < 2:
        return f"{instr.kind} over axes {instr.axes} of {instr.device_matrix} has a group of one rank"
    if definition is not None and not definition.symmetric:
        return ""  # what the root alone has, or gets, is not a slice that a layout could describe
    if definition is not None and definition.fault_of and (fault := definition.fault_of(have, dict(instr.attrs), n)):
        return f"{instr.kind} of a slice {have}: {fault[0]}"
    if definition is not None:
        cut = instr.attr(definition.cut) if definition.cut else None
        expected = definition.reply_shape(have, dict(instr.attrs), n)
    elif instr.kind == "reshape":
        if math.prod(have) != math.prod(gives):
            return f"reshape of a slice {have} to {gives}"
        expected, cut = instr.attr("shape"), None
    else:
        cut = instr.attr("dim")
        expected = tuple(size // n if d == cut else size for d, size in enumerate(have))
    if expected != gives or (cut is not None and have[cut] % n):
        return f"{instr.kind} of a slice {have} over {n} ranks gives {expected}, the table says {gives}"
    if instr.attr("of_slices") or instr.kind == "all_to_all_v":
        return ""  # the step itself calls it, on whatever each rank has; or which rows come is known at run time
    fits = ("sum", "avg") if instr.attr("reduce") == "mean" else (instr.attr("reduce"),)  # a mean adds up addends, too
    if source.layout is not None and source.layout.is_partial and source.layout.reduce not in fits != (None,):
        return f"{instr.kind} {instr.attr('reduce')} of a value whose parts combine by {source.layout.reduce}"
    if source.layout is None or out.layout is None:
        # helper values of gradient rules exist per rank only
        return f"%{instr.ins[0] if source.layout is None else instr.out} has no layout" if phase == "forward" else ""
    if source.layout.device_num > MOST_RANKS or math.prod(source.shape) > MOST_ELEMENTS:
        return ""
    kind, dims = instr.kind, tuple((name, v) for name, v in instr.attrs if name.endswith("dim") or name == "route")
    if kind == "exchange_reduce":  # is right if the exchange that it takes back is
        kind, (out, source) = "exchange", (replace(v, layout=v.placed.whole()) for v in (source, out))
    return _elements_fault(kind, dims, instr.axes, instr.device_matrix, source, out)


def _layout_phase(plan: Any, phase: str) -> str:
    """The phase, for a check of layouts; "" in data_parallel mode, where values exist per rank, without layouts."""
    return "" if plan.config.local else phase


def message_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """A message, a slice or a reshape brings what the value table says; see `move_fault`."""
    return move_fault(instr, plan.value(instr.ins[0]), plan.value(instr.out), _layout_phase(plan, phase))


def window_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """A halo_exchange or halo_reduce does; see `halo_fault`."""
    if instr.group_size < 2:
        return message_fault(plan, instr, makers, phase)
    return halo_fault(instr, plan.value(instr.ins[0]), plan.value(instr.out), makers, phase)


def concat_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """A bucket has room for its operands, each as (rows, its size / rows)."""
    ins, out, rows = [plan.value(name) for name in instr.ins], plan.value(instr.out), instr.attr("rows")
    sizes = [math.prod(v.slice_shape) for v in ins]
    whole = all(size % rows == 0 for size in sizes) and {v.dtype for v in ins} == {out.dtype}
    if whole and out.shape == (rows, sum(sizes) // rows):
        return ""
    return f"concat of slices {[v.slice_shape for v in ins]} in {rows} rows gives no {out.shape} {out.dtype}"


def start_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """A started message brings what the same message would at once."""
    # what travels alone has its layouts; of a bucket each part is looked at where it comes out
    phase = "" if instr.attr("members") is not None else _layout_phase(plan, phase)
    reply = replace(instr, kind=instr.message)
    return move_fault(reply, plan.value(instr.ins[0]), plan.value(instr.out), phase)


def wait_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """A wait is for a started message."""
    source, out, maker = plan.value(instr.ins[0]), plan.value(instr.out), makers.get(instr.ins[0])
    if maker is None or maker.kind != "start":
        return f"%{instr.ins[0]} was not started"
    if (source.slice_shape, source.dtype) == (out.slice_shape, out.dtype):
        return ""
    return f"%{instr.ins[0]} brings {source.slice_shape} {source.dtype}, the table says {out.slice_shape} {out.dtype}"


def split_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """A part that is taken out of a bucket is what a message of its own would have brought."""
    maker, member = makers.get(instr.ins[0]), instr.attr("member")
    start = makers.get(maker.ins[0]) if maker is not None and maker.kind == "wait" else None
    concat = makers.get(start.ins[0]) if start is not None else None
    if start is None or concat is None or concat.kind != "concat" or not 0 <= member < len(concat.ins):
        return f"%{instr.ins[0]} is not a bucket that has arrived"
    parts = [math.prod(plan.value(name).slice_shape) // concat.attr("rows") for name in concat.ins]
    at = sum(parts[:member])
    if (instr.attr("start"), instr.attr("stop")) != (at, at + parts[member]):
        columns = f"columns {instr.attr('start')} to {instr.attr('stop')}"
        return f"{columns} are not those of operand {member} of %{concat.out}"
    alone = replace(start, kind=start.message, ins=(concat.ins[member],), outs=instr.outs)
    return move_fault(alone, plan.value(alone.ins[0]), plan.value(instr.out), _layout_phase(plan, phase))


@lru_cache(maxsize=4096)
def _elements_fault(
    kind: str, dims: Pairs, axes: tuple[int, ...], device_matrix: tuple[int, ...], source: Value, out: Value
) -> str:
    """Do the move with the elements' numbers as elements and compare all ranks; of large tensors only shapes."""
    definition = MESSAGES.get(kind)
    instr = Instr(kind, ("",), ("",), attrs=dims, axes=axes, device_matrix=device_matrix)
    have, want, before_layout, after_layout = _numbers(source), _numbers(out), source.placed, out.placed
    answer = None if definition is None else definition.answer
    for rank in range(before_layout.device_num):
        group = instr.group(rank) if definition else (rank,)
        if rank == group[0]:
            parts = [have[r] for r in group]
            if definition is not None and answer is not None:
                # addends of one element bear its number: their maximum is their minimum
                most = answer(parts, {**dict(dims), "reduce": "max"})
                least = answer(parts, {**dict(dims), "reduce": "min"}) if definition.reducing else most
                got = cast(list[np.ndarray], most)  # all are receivers: `move_fault` leaves messages of a root alone
                if any(not np.array_equal(a, b) for a, b in zip(got, cast(list[np.ndarray], least), strict=True)):
                    return f"{kind} on rank {rank} combines different slices"
            elif kind == "slice":
                got = [np.split(have[rank], instr.group_size, axis=instr.attr("dim"))[instr.position(rank)]]
            else:
                got = parts
            for member, mine in zip(group, got, strict=True):
                if not np.array_equal(mine.reshape(-1), want[member].reshape(-1)):
                    return f"{kind} gives rank {member} other elements than {out.layout} says"
        before, after = set(before_layout.partial_group(rank)), set(after_layout.partial_group(rank))
        together = set(group) if definition is not None and definition.reducing else {rank}
        if not together <= before:
            held = f"rank {rank}'s value has its partial sums on ranks {sorted(before)} ({source.layout})"
            return f"{kind} combines ranks {sorted(together)}, but {held}"
        if together & after != {rank} or len(together) * len(after) != len(before):
            return f"{kind} over ranks {sorted(together)} of {source.layout} does not leave {out.layout}"
    return ""


def _numbers(value: Value) -> list[np.ndarray]:
    """Per rank, the row-major numbers of the elements it holds."""
    numbers = np.arange(math.prod(value.shape)).reshape(value.shape)
    return [numbers[value.placed.slice_index(value.shape, rank)] for rank in range(value.placed.device_num)]
