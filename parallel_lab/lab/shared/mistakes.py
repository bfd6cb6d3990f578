"""Real mistakes, switched on in a plan: the engine then runs the wrong program as it would run the right one.

def local_positions(instr):     # rotary positions that begin at 0 on every rank
    return replace(instr, offset_axes=()) if instr.op == "rotary_positions" else instr

wrong = with_mistake(plan, local_positions)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...graph.instr import Instr
from ...graph.plan import Plan


def with_mistake(plan: Plan, change: Callable[[Instr], Instr]) -> Plan:
    """The plan with `change(instr)` for every instruction: those that it returns as they are stay."""

    def changed(programs: tuple[tuple[str, tuple[Instr, ...]], ...]) -> tuple[tuple[str, tuple[Instr, ...]], ...]:
        return tuple((phase, tuple(map(change, program))) for phase, program in programs)

    return replace(plan, stages=tuple(replace(stage, programs=changed(stage.programs)) for stage in plan.stages))
