"""Programs of DTensors that `jit` compiles: each call runs a plan, on the simulator or on ranks that are processes.

step = jit(lambda x, w: value_and_grad(loss, (0, 1))(x, w))
value, (gx, gw) = step(x, w)            DTensors, laid out as the same call gives them at once
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.hooks import current_world
from ..graph.dtensor_programs import DTensorProgram, Result, compile_dtensors
from ..graph.forms import leaves, map_form, tensors_of
from ..graph.kinds import Env
from ..graph.plan import Plan
from ..layout.slices import cut
from ..nn.tensor.dtensor import DTensor
from ..nn.tensor.dtensor_calls import on_ranks
from ..nn.tensor.dtensor_surroundings import Surroundings, loss_var
from ..run.computing import computing
from ..run.interpreter import rank_step
from ..run.simulator import simulate
from .comparison import compare_programs
from .program import step_on


class DTensorFunction:
    """A function or Cell of DTensors that runs compiled: a program for each form, layout, shape and dtype of arguments.

    last   the program that ran last;  plan: its plan
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.programs: dict[Any, list[tuple[DTensorProgram, list[Any]]]] = {}
        self.last: DTensorProgram | None = None
        self.calls = 0

    @property
    def plan(self) -> Plan | None:
        return None if self.last is None else self.last.plan

    def __call__(self, *args: Any) -> Any:
        """What the function returns. Gradients that its `backward` gives, and what it writes in place, are there
        afterwards, as if it had run at once. Results remember nothing of how they were made.
        """
        form, tensors = tensors_of(args)
        world, around = current_world(), (*Surroundings.now()[0][:4], loss_var.get())
        key = repr(form), around, tuple(map(_kind, tensors))
        programs = self.programs.setdefault(key, [])
        program = next((p for p, kinds in programs if kinds == _kinds(p)), None)
        if program is None:
            program = compile_dtensors(self.fn, args)
            if world is not None and world.world_size > 1:
                compare_programs(program.plan, world, {})
            programs.append((program, _kinds(program)))
        self.last, self.calls = program, self.calls + 1
        changes = (*program.writes, *program.grads)
        wanted = [r for r in (*leaves(program.form), *(r for _, r in changes)) if isinstance(r, Result)]
        results = tuple(dict.fromkeys(wanted))
        names = (*program.inputs, *program.held)
        found = run(program.plan, names, results, self.calls - 1, *tensors, *program.held.values())
        filled = dict(zip(results, found, strict=True))
        sources = {**dict(enumerate(tensors)), **program.held}
        for at, result in program.writes:
            write(sources[at], filled[result])
        for at, result in program.grads:
            before, grad = sources[at].grad, filled[result]
            sources[at].grad = grad if before is None else before + grad
        for function in program.after:
            function()
        return map_form(lambda part: filled[part] if isinstance(part, Result) else part, program.form)


def _kind(x: Any) -> Any:
    """What of a tensor the program depends on."""
    lies = (x.layout, x.requires_grad) if isinstance(x, DTensor) else ()
    return tuple(x.shape), str(x.dtype), *lies


def _kinds(program: DTensorProgram) -> list[Any]:
    """What a program depends on besides its arguments, as it is now."""
    return [*map(_kind, program.held.values()), *(value() for value, _ in program.guards)]


@on_ranks(changes=True)
def write(x: Any, new: Any) -> None:
    """Let a DTensor hold what was written in place; its gradient was used."""
    x._locals, x._grad = new._locals, None


@on_ranks()
def run(plan: Plan, names: tuple[str, ...], results: tuple[Result, ...], step: int, *tensors: Any) -> tuple[Any, ...]:
    """The results of a program on the ranks that this process plays.  names: of the values that `tensors` give"""

    def env(rank: int) -> Env:
        made = {name: cut(array, plan.value(name).layout, rank) for name, array in plan.constant_arrays.items()}
        for name, x in zip(names, tensors, strict=True):
            array = x._locals[rank] if isinstance(x, DTensor) else np.asarray(getattr(x, "array", x))
            made[name] = np.require(array, requirements="C")
        return made

    world = current_world()
    with computing(plan):
        if world is not None:
            envs = {world.rank: step_on(world.comm, plan, env(world.rank), step=step)}
        else:
            programs = {rank: rank_step(plan, rank, env(rank), step=step) for rank in range(plan.device_num)}
            envs = dict(zip(programs, simulate(programs), strict=True))
    return tuple(r.filled({rank: np.asarray(env[r.name]) for rank, env in envs.items()}) for r in results)
