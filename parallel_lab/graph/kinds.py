"""Every kind of instruction, declared once: how a rank runs it, its check, its cost, how it is written, its gradient.

    KINDS["slice"].run(on, instr)                this rank's part of the operand
    KINDS["slice"].touched(plan, instr)          bytes read and written
    KINDS["all_gather"].asks                     "message": the interpreter asks the group for it

`KINDS` is the closed set: one `KindDef` here per kind of local work, and one per `CollectiveDef` of
`ops/collectives/definitions.py`. Read by the interpreter (`run/interpreter.py`), the check (`plan_verify.py`), the text
(`plan_text.py`), the costs (`cost/time.py`) and the gradients (`passes/differentiate.py`). A pass that brings a kind of
its own touches two files: its own and this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.errors import ShapeError
from ..layout.slices import copy_of
from ..ops.collectives.definitions import MESSAGES, CollectiveDef
from ..ops.machine.opdef import OPS
from .copies import COPIES, copied, copy_fault, shown_copy
from .instr import Instr, attr_pairs
from .instr_checks import (
    Makers,
    accumulate_fault,
    compute_fault,
    concat_fault,
    message_fault,
    split_fault,
    start_fault,
    wait_fault,
    window_fault,
)
from .instr_text import InstrText, printed_text, shown_compute, shown_message, shown_slice

Env = dict[str, np.ndarray]


@dataclass
class OnRank:
    """What an instruction runs with: plan, rank, its arrays by name; what prints (`show`), what allocates buckets
    (`empty`); the micro-batch, sums over earlier ones (how many, the sum), by name what waits for its turn to be
    added; by (loop, micro-batch) what each turn has made that backward reads; whether all values stay.
    """

    plan: Any
    rank: int
    env: Env
    show: Callable[[str], None] = print
    empty: Callable[[tuple[int, ...], Any], np.ndarray] = np.empty
    micro_batch: int = 0
    sums: dict[str, tuple[int, np.ndarray | None]] = field(default_factory=dict)
    early: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)
    turns: dict[tuple[str, int], list[Env]] = field(default_factory=dict)
    keep_all: bool = False


def _no_bytes(plan: Any, instr: Instr) -> int:
    return 0


def _through(plan: Any, instr: Instr) -> int:
    """Operands read and results written."""
    return sum(plan.value(name).slice_bytes for name in (*instr.ins, *instr.kept))


def _kept(plan: Any, instr: Instr) -> int:
    """The part that is kept, read and written."""
    return 2 * plan.value(instr.out).slice_bytes


def _only_for(plan: Any, instr: Instr, rank: int) -> InstrText:
    return InstrText(facts=f" {{for: {instr.name}}}")


@dataclass(frozen=True)
class KindDef:
    """One kind of instruction.

    kind, class_name   "slice", and MindSpore's operator (of a computation: that of the instruction)
    run       (OnRank, instruction) -> the array it makes, of several results their tuple; None: it is asked for
    asks      "" of local work; what the interpreter yields instead: "message", "start" or "wait"
    verify    (plan, instruction, makers of the values known so far, phase) -> what is wrong, or ""
    touched   (plan, instruction) -> bytes of memory it reads and writes; a view's are not counted
    view      whether its result is its operand's own memory under another shape
    flops     (plan, instruction) -> floating-point operations on a rank's slices
    shown     (plan, instruction, rank) -> how it is written
    vjp       (the backward pass, instruction, gradients of its results): its operands' gradients; None: none
    operands  how many it takes; None: any number
    message   the definition of the message it sends at once, or None
    """

    kind: str
    class_name: str = ""
    run: Callable[[OnRank, Instr], Any] | None = None
    asks: str = ""
    verify: Callable[[Any, Instr, Makers, str], str] = lambda plan, instr, known, phase: ""
    touched: Callable[[Any, Instr], int] = _no_bytes
    view: Callable[[Instr], bool] = lambda instr: False
    flops: Callable[[Any, Instr], int] = lambda plan, instr: 0
    shown: Callable[[Any, Instr, int], InstrText] = _only_for
    vjp: Callable[[Any, Instr, Any], None] | None = None
    operands: int | None = 1
    message: CollectiveDef | None = None


# ---- compute: an operator on slices ----


def _run_compute(on: OnRank, instr: Instr) -> Any:
    """The operator's results. What it refuses for its numbers (an index outside) is said with place and rank."""
    op, arrays = instr.opdef, [on.env[name] for name in instr.ins]
    attrs = dict(instr.attrs) | ({"over": ()} if on.keep_all and instr.attr("over") else {})
    if instr.offset_axes:
        shapes = tuple(a.shape for a in arrays)
        labels = op.offset_labels(op.signature_for(shapes, attrs)) if op.result_shape is None else ""
        parts = zip(instr.offset_axes, op.part_sizes(shapes, attrs, labels), strict=True)
        starts = tuple(instr.position(on.rank, axes) * size for axes, size in parts)
        attrs["offset"] = starts if len(starts) > 1 else starts[0]
    try:
        return op.compute(*arrays, **attrs)
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        place = f" ({instr.origin.place})" if instr.origin.place else ""
        raise ShapeError(str(error), where=f"{instr.name!r} on rank {on.rank}{place}") from error


def _flops(plan: Any, instr: Instr) -> int:
    return int(instr.opdef.work_flops(tuple(plan.value(n).slice_shape for n in instr.ins), dict(instr.attrs)))


# ---- slice, reshape: what redistribution does on one rank ----


def _run_slice(on: OnRank, instr: Instr) -> np.ndarray:
    array, dim = on.env[instr.ins[0]], instr.attr("dim")
    part = array.shape[dim] // instr.group_size
    start = instr.position(on.rank) * part
    # a copy: a view would keep the whole operand alive after the plan has dropped it
    return np.array(array[(slice(None),) * dim + (slice(start, start + part),)], order="C")


def _vjp_slice(back: Any, instr: Instr, gradients: Any) -> None:
    op = OPS["strided_slice_grad"]
    attrs = {"shape": back.values[instr.ins[0]].slice_shape, "dim": instr.attr("dim")}
    fields = {"op": op.name, "op_class": op.class_name, "attrs": attr_pairs(attrs)}
    fields |= {"offset_axes": (instr.axes,), "device_matrix": instr.device_matrix}
    fields["reason"] = "backward of a slice: zeros where the rank had dropped elements"
    value, operand = back.gradient_value(instr.ins[0]), back.array(gradients[0]).name
    back.give(instr.ins[0], back.rec.emit("compute", value, (operand,), f"{instr.out}.grad", **fields))


def _vjp_reshape(back: Any, instr: Instr, gradients: Any) -> None:
    value, operand = back.gradient_value(instr.ins[0]), back.array(gradients[0]).name
    attrs = attr_pairs({"shape": back.values[instr.ins[0]].slice_shape})
    back.give(instr.ins[0], back.rec.emit("reshape", value, (operand,), f"{instr.out}.grad", attrs=attrs))


# ---- concat, start, wait, split: several messages in one bucket, which travels while the rank computes ----


def _run_concat(on: OnRank, instr: Instr) -> np.ndarray:
    """The operands, each as (rows, its size / rows), side by side in a bucket."""
    value, at = on.plan.value(instr.out), 0
    bucket = on.empty(value.shape, value.dtype)
    for name in instr.ins:
        part = on.env[name].reshape(len(bucket), -1)
        copy_of(part, bucket[:, at : at + part.shape[1]])
        at += part.shape[1]
    return bucket


def _run_split(on: OnRank, instr: Instr) -> np.ndarray:
    columns = on.env[instr.ins[0]][:, instr.attr("start") : instr.attr("stop")]
    return np.ascontiguousarray(columns).reshape(instr.attr("shape"))


# ---- accumulate: sums over micro-batches ----


def _run_accumulate(on: OnRank, instr: Instr) -> np.ndarray | None:
    """The sum so far. Micro-batches are added in their order, whichever is first: bits do not depend on schedules."""
    waiting, (count, total) = on.early.setdefault(instr.out, {}), on.sums.get(instr.out, (0, None))
    waiting[on.micro_batch], turns = on.env[instr.ins[0]], on.plan.stage_of(on.rank).turns(instr.stage)
    while count < len(turns) and turns[count] in waiting:
        part = waiting.pop(turns[count])
        total = np.array(part) if total is None else np.add(total, part, out=total)
        count += 1
    if count < len(turns):
        on.sums[instr.out] = count, total
    return total


# ---- branch: where the two sides of an `if` meet ----


def _run_branch(on: OnRank, instr: Instr) -> np.ndarray:
    """The operand that is there; the other one was not computed."""
    condition, then, other = instr.ins
    return on.env[then if on.env[condition] else other]


# ---- loop, restore: the end of a turn of a `while`, and what the next one backward needs of it ----


def _run_loop(on: OnRank, instr: Instr) -> np.ndarray | None:
    """What a variable holds at the end; None: another turn follows."""
    return None if on.env[instr.ins[0]] else on.env[instr.ins[1]]


def _run_restore(on: OnRank, instr: Instr) -> np.ndarray:
    """Whether there is another turn to go back through; its values are there again."""
    turns = on.turns.get((instr.attr("of"), on.micro_batch), [])
    again = bool(turns)
    on.env.update(turns.pop().items() if again else ())
    return np.array(again)


# ---- print ----


def _run_print(on: OnRank, instr: Instr) -> np.ndarray:
    array = on.env[instr.ins[0]]
    on.show(printed_text(on.plan, instr, on.rank, array))
    return array


# ---- messages ----


def kind_of_message(definition: CollectiveDef) -> KindDef:
    """The instruction that sends a message at once."""
    return KindDef(
        definition.kind,
        definition.class_name,
        asks="message",
        verify=window_fault if definition.windowed else message_fault,
        shown=shown_message,
        vjp=(lambda back, instr, gradients: back.message_back(instr, gradients)) if definition.adjoint else None,
        operands=definition.operands,
        message=definition,
    )


KINDS: dict[str, KindDef] = {
    definition.kind: definition
    for definition in (
        KindDef(
            "compute",
            run=_run_compute,
            verify=compute_fault,
            touched=_through,
            view=lambda instr: instr.opdef.view or instr.op == "flatten",
            flops=_flops,
            shown=shown_compute,
            vjp=lambda back, instr, gradients: back.operator_back(instr, gradients),
            operands=None,
        ),
        *map(kind_of_message, MESSAGES.values()),
        KindDef(
            "slice", "StridedSlice", _run_slice, verify=message_fault, touched=_kept, shown=shown_slice, vjp=_vjp_slice
        ),
        KindDef(
            "split",
            "Split",
            _run_split,
            verify=split_fault,
            touched=_kept,
            view=lambda instr: instr.attr("rows") == 1,  # columns of a single row lie side by side
            shown=lambda plan, instr, rank: InstrText(
                (instr.attr("start"), instr.attr("stop")), f" {{for: {instr.name}}}"
            ),
        ),
        KindDef(
            "concat",
            "Concat",
            _run_concat,
            verify=concat_fault,
            touched=_through,
            shown=lambda plan, instr, rank: InstrText(facts=f" {{rows: {instr.attr('rows')}}}"),
            operands=None,
        ),
        KindDef(
            "reshape",
            "Reshape",
            lambda on, instr: on.env[instr.ins[0]].reshape(instr.attr("shape")),
            verify=message_fault,
            view=lambda instr: True,  # slices are C-contiguous, so numpy copies nothing
            shown=lambda plan, instr, rank: InstrText((instr.attr("shape"),), f" {{for: {instr.name}}}"),
            vjp=_vjp_reshape,
        ),
        KindDef(
            "accumulate",
            "Accumulate",
            _run_accumulate,
            verify=accumulate_fault,
            touched=lambda plan, instr: 3 * plan.value(instr.out).slice_bytes,
            flops=lambda plan, instr: math.prod(plan.value(instr.out).slice_shape),
            shown=shown_compute,
            vjp=lambda back, instr, gradients: back.give(instr.ins[0], gradients[0]),
        ),
        KindDef(
            "branch",
            "Branch",
            _run_branch,
            verify=compute_fault,
            shown=shown_compute,
            vjp=lambda back, instr, gradients: back.branch_back(instr, gradients[0]),
            operands=None,
        ),
        KindDef(
            "loop",
            "Loop",
            _run_loop,
            verify=compute_fault,
            shown=shown_compute,  # backward goes through all variables together: `passes/loop_gradients.py`
            operands=None,
        ),
        KindDef("restore", "Restore", _run_restore, shown=_only_for, operands=None),
        *(KindDef(kind, name, copied, "", copy_fault, _kept, shown=shown_copy) for kind, name in COPIES.items()),
        KindDef("print", "Print", _run_print, shown=lambda plan, instr, rank: InstrText()),
        KindDef(
            "start", "Start", asks="start", verify=start_fault, view=lambda i: i.message != "send", shown=shown_message
        ),
        # a start and its wait stand for the same memory while an all_reduce happens in place
        KindDef("wait", "Wait", asks="wait", verify=wait_fault, view=lambda instr: instr.in_place),
    )
}


def class_name(instr: Instr) -> str:
    """MindSpore's name of what an instruction does; of a start that of its message."""
    return instr.op_class or KINDS[instr.message or instr.kind].class_name
