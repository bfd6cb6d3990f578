"""From a finished draft to a verified plan."""

from __future__ import annotations

import base64
from dataclasses import fields, replace
from typing import Any

import numpy as np

from .actions import OF_STEP, Stage
from .draft import Draft
from .insert_copies import with_copies
from .instr import Instr
from .plan import PHASES, Plan, State
from .stage_programs import divided, orders_of, splits_backward, stage_programs


def freeze(draft: Draft, constants: dict[str, np.ndarray]) -> Plan:
    """The plan of a finished draft, verified."""
    pairs = (*draft.gradients, *draft.assignments, *draft.forward_assignments)
    read = {n for _, i in draft.instructions() for n in i.reads} | {n for _, n in pairs} | set(draft.outputs)
    placed = with_copies(draft, *stage_programs(draft))
    orders = orders_of(draft, placed.programs)
    changes: dict[str, Any] = {"host": tuple(sorted(placed.host)), **placed.pairs}
    draft, stage_parts, values = replace(draft, **changes), placed.programs, placed.values
    if splits_backward(orders):
        stage_parts = [divided(mine, draft) for mine in stage_parts]
    programs = [tuple((p, _kept(mine[p], read)) for p in PHASES if mine.get(p)) for mine in stage_parts]
    used = {n for mine in programs for _, p in mine for i in p for n in (*i.reads, *i.kept)}
    inputs = {i.name for i in draft.graph.inputs if i.role not in ("constant", "scalar", "gradient", "updated")}
    used |= inputs.union(draft.outputs, (s for s, _, _ in draft.states))
    plan_fields = {f.name: getattr(draft, f.name) for f in fields(Plan) if hasattr(draft, f.name)}
    n, stages = draft.config.device_num, []
    for mine, actions in zip(programs, orders, strict=True):
        has = {(phase, 0 if phase in OF_STEP else i.stage) for phase, program in mine for i in program}
        done = tuple(a for a in actions if (a.program, a.stage) in has)  # nothing to do: no gradient was asked for
        stages.append(Stage(n * len(stages), n, mine, done))
    plan_fields["stages"] = tuple(stages)
    plan_fields["values"] = tuple((name, value) for name, value in sorted(values.items()) if name in used)
    plan_fields["states"] = tuple(State(*s) for s in draft.states)
    texts = {n: base64.b64encode(np.ascontiguousarray(a).tobytes()).decode() for n, a in constants.items()}
    plan_fields["constants"] = tuple((n, str(a.dtype), a.shape, texts[n]) for n, a in constants.items())
    plan = Plan(**plan_fields).verify()
    vars(plan)["as_compiled"] = True
    return plan


def _kept(program: tuple[Instr, ...], read: set[str]) -> tuple[Instr, ...]:
    """A program in which of several results only those have a name that are `read`, or else the first."""
    instrs = []
    for instr in program:
        if len(instr.outs) > 1:
            outs = tuple(name if name in read else "" for name in instr.outs)
            instr = replace(instr, outs=outs if any(outs) else (instr.outs[0], *outs[1:]))
        instrs.append(instr)
    return tuple(instrs)
