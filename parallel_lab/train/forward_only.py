"""The part of a training plan that makes its outputs: what `Session.outputs` runs.

    stage 0   0F0 0F1 0B0 ... 0update0       ->     0F0 0F1 0reduce0
    stage 1   1F0 1B0 1F1 ... 1update0       ->     1F0 1F1

Stages tell each other the loss when all have trained, and copies of the network add up theirs then. The instructions
that do this stay, in the program "reduce" of their stage; what forward sends for backward alone is not sent. A value
lives as long as forward needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..base.errors import PlanError
from ..graph.actions import Action, Stage
from ..graph.instr import Instr
from ..graph.plan import Plan


def forward_only(plan: Plan) -> Plan:
    """The plan without gradients and update; nothing that the network writes is kept (running statistics, selection
    biases). Raises PlanError where an output is made of gradients.
    """
    forward = [i for stage in plan.stages for i in stage.program("forward")]
    later = [(phase, i) for stage in plan.stages for phase, program in stage.programs for i in program]
    later = [(phase, i) for phase, i in later if phase != "forward"]
    values, taken, needed = set(plan.outputs), _taken(forward), set()
    while more := [(p, i) for p, i in later if id(i) not in needed and (values & {*i.kept} or _border(i) in taken)]:
        for phase, instr in more:
            if phase != "reduce" and _border(instr) is None:
                what = f"{instr.name or instr.out!r}, which an output depends on, runs in {phase}"
                hint = "Compile the network without the training step, and give that plan a Session"
                raise PlanError(what, where="Session.outputs", allowed="Outputs that forward makes", hint=hint)
            values.update(instr.ins)
            taken |= _taken([instr])
            needed.add(id(instr))
    stages = tuple(_stage(stage, needed, taken) for stage in plan.stages)
    left_out = dict.fromkeys(("gradients", "value_gradients", "assignments", "forward_assignments"), ())
    return replace(plan, stages=stages, **left_out).verify()


def _stage(stage: Stage, needed: set[int], taken: set[int]) -> Stage:
    """A stage's forward, without messages that nobody takes, and what is `needed` of what it runs later."""
    forward = tuple(i for i in stage.program("forward") if _border(i) is None or _border(i) in taken)
    later = tuple(i for phase, program in stage.programs if phase != "forward" for i in program if id(i) in needed)
    actions = [a for a in stage.actions if a.program == "forward"]
    if later:
        actions.append(Action(0, "reduce", 0, "reduce"))
    programs = (("forward", forward), *([("reduce", later)] if later else []))
    return replace(stage, programs=programs, actions=tuple(actions))


def _border(instr: Instr) -> int | None:
    """The number of the message between stages that an instruction starts or waits for; None: of another one."""
    started = instr.kind in ("start", "wait") and instr.attr("shift") is not None
    return instr.attr("sr_tag") if started else None


def _taken(program: Iterable[Instr]) -> set[int]:
    """The messages between stages that these instructions receive."""
    return {_border(i) for i in program if _border(i) is not None and i.attr("message") == "recv"}
