"""The rules of a plan, checked instruction by instruction.

    defined       every operand exists when it is read; every value is made once
    kinds         only known kinds; operators are registered
    shapes        an operator's slice shapes give the slice shape of its result; a message's shapes fit its group
    layouts       forward operators have their strategy's layouts; messages and slices bring the table's elements
    windows       a halo's slices lie side by side along its group, its windows reach direct neighbours only; an
                  operator reads just the windows that its strategy asks for
    buckets       what was started is waited for once; parts are what their own messages would have brought
    groups        axes exist, groups have at least two ranks; a sum's group holds addends of one sum, all different
    state         every assignment has a source that was made, of the target's slice shape and dtype; gradients and
                  outputs are made; a gradient is laid out as its parameter, and an update computes with no partial sum
    owners        what one rank alone holds is read by that rank alone, or sent by it; messages are everybody's
    places        an instruction reads and makes everything in one memory, of the device or of the host; copies cross
    stages        every rank belongs to one stage
    branches      what decides whether an instruction runs is one bool that its ranks hold whole; what one side of an
                  `if` makes is read on that side, and where both meet
    schedule      actions name programs that exist, forward before backward before update; no stages wait in a circle

What an instruction of one kind must fulfil stands with its kind, in `kinds.py`; here is what holds for all of them, and
for the plan as a whole. A broken rule is a defect of a pass; the error shows the lines around it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..base.errors import ParallelLabError, PlanError, message
from .actions import OF_STEP, Stage
from .copies import place_fault
from .instr import Instr
from .instr_checks import Makers
from .kinds import KINDS

_OF_BUCKETS = ("concat", "start", "wait", "split")  # what they carry is looked at where it comes out


def verify_plan(plan: Any) -> None:
    """Raise PlanError at the first instruction that breaks a rule."""
    inputs = {i.name for i in plan.graph.inputs} | {s.name for s in plan.states} | set(plan.scalars)
    ranks = [rank for stage in plan.stages for rank in stage.ranks]
    expected = range(len(plan.stages) * plan.config.device_num)
    if ranks != list(expected):
        allowed = f"Ranks 0 to {len(expected) - 1}, each once"
        raise PlanError(f"the stages have {len(ranks)} ranks", where="plan stages", allowed=allowed)
    everything: Makers = {}
    host = frozenset(plan.host)
    for stage in plan.stages:
        makers: Makers = dict.fromkeys(inputs)
        programs, order = dict(stage.programs), [(a.program, a.stage, a.micro_batch) for a in stage.actions]
        expected = {
            (phase, k, n)
            for phase, program in programs.items()
            for k in ({0} if phase in OF_STEP else {i.stage for i in program})
            for n in ((0,) if phase in OF_STEP else stage.turns(k))
        }
        if len(set(order)) < len(order) or set(order) != expected:
            what = f"actions {[p for p, *_ in order]} do not run the programs {sorted(programs)}"
            raise PlanError(what, where="plan schedule", allowed="Each program once for each micro-batch")
        checked: set[tuple[str, int]] = set()
        for action in stage.actions:
            phase, program = action.program, programs[action.program]
            for position, instr in stage.part(action):
                if (phase, position) in checked:
                    continue
                checked.add((phase, position))
                if fault := _fault(plan, stage, instr, makers, phase, host):
                    what = message(fault, where=f"plan, {phase} instruction {position}")
                    raise PlanError(f"{what}\n{_around(program, position)}")
                makers.update(dict.fromkeys(instr.kept, instr))
        everything |= makers
    if fault := _fault_of_waits(plan):
        raise PlanError(fault, where="plan schedule", allowed="An order in which every action has what it reads")
    for fault in _faults_of_results(plan, everything):
        raise PlanError(fault, where="plan")


def _fault_of_waits(plan: Any) -> str:
    """What the stages wait for when none of them can go on, or ""."""
    left = [[(a.stage, a.kind, a.micro_batch) for a in s.actions if not a.of_step] for s in plan.stages]
    to_come = {key for keys in left for key in keys}

    def waits(keys: list[tuple[int, str, int]]) -> tuple[int, str, int] | None:
        part, kind, n = keys[0]
        needs = {"F": [(part - 1, "F", n)], "B": [(part, "F", n), (part + 1, "B", n)]}.get(kind, [(part, "B", n)])
        return next((key for key in needs if key in to_come), None)

    before = -1
    while before != (before := len(to_come)):
        for keys in left:
            while keys and waits(keys) is None:
                to_come.discard(keys.pop(0))
    blocked = [(key, keys[0]) for keys in left if keys and (key := waits(keys)) is not None]
    names = [["{}{}{}".format(*key) for key in pair] for pair in blocked]
    return "; ".join(f"a stage waits for {key} before {action}" for key, action in names)


def _faults_of_results(plan: Any, makers: Makers) -> Iterator[str]:
    """What is wrong with buckets, gradients, new values and outputs, after all instructions have run."""
    assigned = (*plan.forward_assignments, *plan.assignments)
    new = [(f"the new value of {target}", source) for target, source in assigned]
    for what, name in (*new, *((f"the gradient of {name}", gradient) for name, gradient in plan.gradients)):
        if name not in makers:
            yield f"{what}, {name!r}, is never made"
    for stage in plan.stages:
        instrs = [i for _, program in stage.programs for i in program]
        waits = Counter(i.ins[0] for i in instrs if i.kind == "wait")
        for name in (i.out for i in instrs if i.kind == "start"):
            if waits[name] != 1:
                yield f"%{name} is started once and waited for {waits[name]} times"
    for name, gradient in plan.gradients:
        a, b = plan.value(name), plan.value(gradient)
        if a.shape != b.shape or b.layout is None or not b.layout.same_placement(a.layout):
            yield f"the gradient of {name!r} is laid out as {b.layout}, the parameter as {a.layout}"
    host = frozenset(plan.host)
    for target, source in assigned:
        a, b = plan.value(target), plan.value(source)
        if (a.slice_shape, a.dtype) != (b.slice_shape, b.dtype):
            yield f"{target!r} ({a.slice_shape} {a.dtype}) takes the value of {source!r} ({b.slice_shape} {b.dtype})"
        if (target in host) != (source in host):
            yield f"{target!r} and its new value {source!r} do not lie in one memory"
        if plan.owner_of(source) not in (None, plan.owner_of(target)):
            yield f"{target!r} takes the value of {source!r}, which rank {plan.owner_of(source)} alone holds"
    for target, source in plan.forward_assignments:
        a, b = plan.value(target), plan.value(source)
        # a value without a layout is each rank's own (data_parallel: running statistics of its part of the batch)
        if a.layout is None or (b.layout is not None and not a.layout.same_placement(b.layout)):
            yield f"{target!r} is laid out as {a.layout} and takes a value laid out as {b.layout}"
    for name in plan.outputs:
        if name not in makers:
            yield f"output {name!r} is never made"


def _around(program: tuple[Instr, ...], position: int) -> str:
    lines = []
    for at, i in list(enumerate(program))[max(0, position - 2) : position + 3]:
        outs, ins = (", ".join("%" + name for name in names) for names in (i.kept, i.ins))
        line = f"  {at:4} {outs} = {i.op_class or i.kind}({ins})"[:300]
        lines.append(f"{line}{'   <-- here' if at == position else ''}")
    return "\n".join(lines)


def _is_number(plan: Any, name: str) -> bool:
    """Whether every rank knows a value as a number, in whichever memory."""
    source = plan.graph.input(name)
    return name in plan.scalars or (source is not None and source.is_number)


def _fault_of_branches(plan: Any, instr: Instr, makers: Makers) -> str:
    """What is wrong with the conditions under which an instruction runs, or ""."""
    for name, _ in (*instr.when, *([(instr.ins[0], True)] if instr.kind in ("branch", "loop") and instr.ins else [])):
        value = plan.value(name)
        if (value.slice_shape, value.dtype) != ((), "bool") or (value.layout is not None and value.layout.is_partial):
            return f"%{name} ({value.slice_shape} {value.dtype}) decides whether %{instr.out} is made"
    for at, name in enumerate(instr.ins):
        maker = makers[name]
        decides = at and (instr.kind == "branch" or (instr.kind == "loop" and at == 2))
        taken = (*instr.when, (instr.ins[0], at == 1 or instr.kind == "loop")) if decides else instr.when
        if maker is None or maker.made_when == taken[: len(maker.made_when)]:
            continue
        same = zip(maker.made_when, taken, strict=False)
        if len(maker.made_when) > len(taken) or not all(a == b or (a, b) in plan.sides_back for a, b in same):
            return f"%{name} is made on one side of an if, and %{instr.out} is not"
    return ""


def _fault(plan: Any, stage: Stage, instr: Instr, makers: Makers, phase: str, host: frozenset[str]) -> str:
    kind = KINDS.get(instr.kind)
    if kind is None:
        return f"kind {instr.kind!r} is not known"
    missing = [n for n in instr.reads if n not in makers]
    if missing:
        return f"%{missing[0]} is read before it is made"
    results = instr.kept
    if not results or not makers.keys().isdisjoint(results):
        return f"%{next(n for n in results if n in makers)} is made twice" if results else f"{instr.kind} makes nothing"
    if fault := _fault_of_branches(plan, instr, makers):
        return fault
    if instr.owner is not None and instr.is_communication:
        return f"%{instr.out} is made by rank {instr.owner} alone, and is a message"
    if instr.owner is not None and not 0 <= instr.owner < plan.device_num:
        return f"there is no rank {instr.owner}"
    reader = instr.attr("root") if instr.kind == "broadcast" else instr.owner
    elsewhere = next((n for n in instr.ins if plan.owner_of(n) not in (None, reader)), None)
    if elsewhere is not None:
        holder = f"rank {plan.owner_of(elsewhere)} alone"
        return f"%{elsewhere} is held by {holder}, and read by {'all' if reader is None else reader}"
    unknown = [n for n in results if n not in plan.value_table]
    if unknown:
        return f"%{unknown[0]} has no entry in the value table"
    size = math.prod(instr.device_matrix)
    if instr.device_matrix and size != stage.count:
        return f"device matrix {instr.device_matrix} has {size} ranks, the stage has {stage.count}"
    taken = (*instr.axes, *(a for axes in instr.offset_axes for a in axes))
    if any(not 0 <= a < len(instr.device_matrix) for a in taken) or len(set(taken)) < len(taken):
        return f"axes {taken} are not different axes of device matrix {instr.device_matrix}"
    if kind.operands not in (None, len(instr.ins)):
        return f"{instr.kind} has {len(instr.ins)} operands, and takes one"
    if fault := place_fault(instr, host, lambda name: _is_number(plan, name)):
        return fault
    partial = next((n for n in instr.ins if (layout := plan.value(n).layout) is not None and layout.is_partial), None)
    if phase == "update" and partial is not None and instr.kind not in ("all_reduce", "copy_to_device", *_OF_BUCKETS):
        return f"%{partial} is a partial sum, and updates take whole gradients"
    try:
        return kind.verify(plan, instr, makers, phase)
    except ParallelLabError as error:
        return str(error)
