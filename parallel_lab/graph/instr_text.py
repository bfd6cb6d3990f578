"""How an instruction is written in a plan's text: what stands next to its name and operands.

    InstrText(args=((0, 4), (2, 8), (1, 1)), facts=" {instance name: redistribution_op, for: matmul}")

`kinds.py` says which kind is written how; `plan_text.py` writes the lines, with MindSpore's words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..layout.route import box_size
from ..layout.tensor_layout import slice_text
from ..ops.collectives.definitions import MESSAGES
from .instr import Instr, Value


class InstrText(NamedTuple):
    """How an instruction is written: `args` in the brackets, `facts` behind, lines `before` and `after` its types."""

    args: tuple[Any, ...] = ()
    facts: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


_TYPE_NAMES = {name: name.capitalize() for name in ("float32", "float64", "float16", "int32", "int64", "bool")}
_TYPE_NAMES["bfloat16"] = "BFloat16"


def tensor_text(value: Value, shape: tuple[int, ...] | None = None) -> str:
    """The type of a rank's slice: "<Tensor[Float32], (2, 3)>"."""
    return f"<Tensor[{_TYPE_NAMES.get(value.dtype, value.dtype)}], {value.slice_shape if shape is None else shape}>"


def global_shapes(plan: Any, instr: Instr) -> list[tuple[int, ...]]:
    """Shapes of the whole operands; of a window, which exists per rank only, that of the tensor it was taken from."""
    ins = [plan.value(name) for name in instr.ins]
    node = plan.graph.node(instr.name) if instr.strategy is not None else None
    if node is None or all(v.layout is not None or not v.shape for v in ins):
        return [v.shape for v in ins]
    return list(plan.graph.operand_shapes(node))


def message_shapes(instr: Instr, source: Value, out: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Slice shapes before and after a message, in the form MindSpore's operators have (along dim 0)."""
    have, gives, n = source.slice_shape, out.slice_shape, instr.group_size
    definition = MESSAGES.get(instr.message)
    if definition is None or bool(definition.join) == bool(definition.cut):
        return have, gives
    if definition.join and have:
        return have, (have[0] * n, *have[1:])
    if definition.cut and gives:
        return (gives[0] * n, *gives[1:]), gives
    return have, gives


def shown_compute(plan: Any, instr: Instr, rank: int) -> InstrText:
    """An operator: its attributes and strategy, and the shapes of the whole tensors."""
    attrs = ", ".join(f"{k}: {v}" for k, v in instr.attrs if k not in ("fusion", "reduce", "dim"))
    facts = f" {{instance name: {instr.name}}}" + (f" {{{attrs}}}" if attrs else "")
    facts += f" {{in_strategy: {instr.strategy}}}" if instr.strategy is not None else ""
    ins, out = [plan.value(name) for name in instr.ins], plan.value(instr.out)
    if out.layout is None or (instr.strategy is None and any(v.layout is None and v.shape for v in ins)):
        return InstrText(facts=facts)
    whole = ", ".join(str(shape) for shape in global_shapes(plan, instr))
    shapes = ", ".join(str(plan.value(name).shape) if name else "_" for name in instr.outs)
    return InstrText(facts=facts, after=(f"    # global: ({whole}) -> {shapes}",))


def shown_slice(plan: Any, instr: Instr, rank: int) -> InstrText:
    """A slice: begin, end and strides within the operand."""
    dim, shape = instr.attr("dim"), plan.value(instr.out).slice_shape
    start = instr.position(rank) * shape[dim]
    begin = tuple(start if i == dim else 0 for i in range(len(shape)))
    end = tuple(first + size for first, size in zip(begin, shape, strict=True))
    return InstrText((begin, end, (1,) * len(shape)), f" {{instance name: redistribution_op, for: {instr.name}}}")


def shown_message(plan: Any, instr: Instr, rank: int) -> InstrText:
    """A message: what it is for, its group, and what MindSpore's operator, which knows dim 0 only, needs around it."""
    definition, source, out = MESSAGES[instr.message], plan.value(instr.ins[0]), plan.value(instr.out)
    carries = bool(instr.carried)
    if instr.attr("root") is not None or (carries and instr.message != "all_reduce"):
        kind = "parallel_optimizer"
    elif carries:
        kind = "mirror"
    else:
        kind = "forward_op" if instr.kind == "all_reduce" or definition.windowed else "redistribution_op"
    facts = {"group_ranks": "-".join(map(str, instr.group(rank))), "fusion": instr.attr("fusion", 0)}
    facts |= {"op": instr.attr("reduce")} if instr.attr("reduce") else {}
    dims = definition.attributes if definition.cut and definition.join else ()
    facts |= {name: instr.attr(name) for name in (*dims, "root") if instr.attr(name) is not None}
    name = instr.name if instr.by_hand else f"{kind}, for: {instr.name}"
    shown = f" {{instance name: {name}}} {{{', '.join(f'{k}: {v}' for k, v in facts.items())}}}"
    before: tuple[str, ...] = ()
    words = _halo_words if definition.windowed else _exchange_words
    after = (f"    # {words(instr, rank)}",) if definition.piecewise else ()
    dim, n = instr.attr("dim", 0), instr.group_size
    if dim and definition.join and not definition.cut:
        after = (f"    then Split(axis 0, {n} parts), Concat(axis {dim}) -> ({tensor_text(out)})",)
    if dim and definition.cut and not definition.join:
        before = (f"    after Split(axis {dim}, {n} parts), Concat(axis 0) of ({tensor_text(source)})",)
    return InstrText((), shown + (" started" if instr.kind == "start" else ""), before, after)


def _halo_words(instr: Instr, rank: int) -> str:
    """What a halo brings to one rank."""
    halo, me = instr.halo, instr.position(rank)
    (start, stop), (low, high) = halo.window(me), (halo.part * me, halo.part * (me + 1))
    group = instr.group(rank)
    taken = [(group[j], b - a) for j in halo.neighbours(me) for a, b in [halo.taken(instr.kind, me, j)] if b > a]
    strips = " and ".join(f"{count} of rank {other}" for other, count in taken) or "none of another rank"
    where = f"along dim {instr.attr('dim')} of {halo.part * halo.members}: {strips}"
    if instr.kind == "halo_exchange":
        outside = max(0, min(stop, 0) - start) + max(0, stop - max(start, halo.part * halo.members))
        zeros = f", {outside} zeros outside the tensor" if outside else ""
        return f"this rank gets [{start}, {stop}) {where}{zeros}"
    return f"this rank adds up its slice [{low}, {high}) {where}"


def _exchange_words(instr: Instr, rank: int) -> str:
    """What an exchange brings to one rank."""
    definition, group = MESSAGES[instr.message], instr.group(rank)
    me = group.index(rank)
    taken = definition.block_exchange(dict(instr.attrs), len(group)).taken[me]
    came = [f"{box_size(box)} from rank {group[j]}" for j, box in taken.items() if j != me] or ["nothing from others"]
    what, does = ("rows", "keeps, if all are alike,") if definition.operands == 2 else ("elements", "keeps")
    own = f"{box_size(taken[me]) if me in taken else 0} {what} of its own"
    return f"this rank {'adds up' if definition.adds else does} {own} and gets {', '.join(came)}"


def printed_text(plan: Any, instr: Instr, rank: int, array: np.ndarray) -> str:
    """What a print instruction shows on one rank: whose slice it is, where the line stands, and the numbers."""
    value, place = plan.value(instr.ins[0]), f"printed at {instr.origin.place}\n{array}"
    if value.layout is None:  # every rank runs the network on its own rows
        return f"rank {rank}: its own {instr.name} {value.shape}, {place}"
    index = slice_text(value.layout.slice_index(value.shape, rank), value.shape) if value.shape else ""
    return f"rank {rank}: {instr.name}{index} of {value.shape} ({value.layout}), {place}"
