"""`Program`: a plan at work on one rank. It has the plan, the values that this rank holds, and takes one step.

    program = Program(plan, comm, values)          # its slices of parameters and states
    program.env.update(inputs)                     # its slices of a batch
    program.step(0)                                # forward, backward, update: what the plan lists

A session keeps one on every worker (`rank_steps.py`). What `jit`, Model, AutoParallel, compiled Cells and regions call
is a `CompiledProgram`, whose values are the learner's own Parameters and optimizer; where this process is not a
rank it is a `Rehearsal`. The interpreter is the simulator's; requests go to the rank's communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..graph.kinds import Env
from ..graph.plan import Plan
from ..run.communicator import Start, Wait
from ..run.interpreter import rank_step
from .finite import PlanCheck, gradients_of
from .replicas import Replicas


class Program:
    """A plan on one rank.

    plan, comm   what to run; this rank's communicator, or None for a plan of one device
    env          {value: this rank's array}; a step changes it
    copies       compares what several ranks hold, where it is set
    left         (steps taken, names with new values of the step after them): what a failed step has changed
    """

    def __init__(self, plan: Plan, comm: Any, env: Env, *, taken: int = 0) -> None:
        self.plan, self.comm, self.env = plan, comm, env
        self.rank = 0 if comm is None else comm.rank
        self.left: tuple[int, list[str]] = (taken, [])
        self.copies: Replicas | None = None
        self._finite: PlanCheck | None = None

    def step(
        self, number: int, *, finite: bool = False, settings: Callable[[], Mapping[str, Any]] = dict, **options: Any
    ) -> None:
        """Take step `number` on the inputs in `env`, within `computing(plan)`.

        finite    whether NaN and infinities are an error (NonFinite)
        settings  {name: value} of what changes the copies, compared with them
        options   phases, observe and show of `rank_step`
        """
        if self.copies is not None and self.copies.due():
            held = {name: self.env[name] for name in self.copies.names if self.plan.held_by(name, self.rank)}
            self.copies.compare(held, settings(), number)
        self.left, check = (number, []), self._check() if finite else None
        options |= {"step": number, "replaced": self.left[1]}
        if check is None:
            step_on(self.comm, self.plan, self.env, **options)
        else:
            check.begin(number)
            step_on(self.comm, self.plan, self.env, check.look, **options)
            check.end()
        self.left = number + 1, []

    def _check(self) -> PlanCheck:
        """What looks for NaN and infinities."""
        if self._finite is None:
            self._finite = PlanCheck(self.plan, self.rank, self.env, gradients_of(self.plan))
        return self._finite


def step_on(comm: Any, plan: Plan, env: Env, look: Callable | None = None, **options: Any) -> Env:
    """One step of a plan on this rank. comm: None for a plan of one device. look: as in `drive`; options: those of
    `rank_step`.
    """
    if comm is None:
        return drive(rank_step(plan, 0, env, **options), None)
    return drive(rank_step(plan, comm.rank, env, empty=comm.empty, progress=comm.progress, **options), comm, look)


def drive(program: Any, comm: Any, look: Callable | None = None) -> Any:
    """Run one rank's generator; `comm` answers what it asks for.  look: called with each request before"""
    reply = None
    while True:
        try:
            request = program.send(reply)
        except StopIteration as end:
            return end.value
        if look is not None and not isinstance(request, Wait):
            look(request.request if isinstance(request, Start) else request)
        match request:
            case Start(started):
                reply = comm.begin(started)
            case Wait(handle):
                reply = handle.wait()
            case _:
                reply = comm.answer(request)
