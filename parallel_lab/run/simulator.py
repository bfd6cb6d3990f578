"""All ranks in this process, in lock step.

`simulate(programs)` drives any rank programs (generators that yield `Request`s, from a plan or written by hand); a wait that can never end is a
`DeadlockError` at once, not a hang. `Simulator` runs a plan and can stop at every instruction to look at any rank:

    sim = Simulator(plan, values)
    sim.begin(x, label)
    while (tick := sim.next_instruction()) is not None:
        print(tick.instr.out, sim.value(tick.instr.out, rank=5))
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CollectiveMismatch, DeadlockError, PlanError, message
from ..plan import Plan
from .communicator import Request, answer, describe
from .interpreter import Env, Tick, gather_value, one_blas_thread, rank_step, slice_value, step_inputs

__all__ = ["Simulator", "simulate"]

RankProgram = Generator[Any, Any, Any]


class _Engine:
    """Drives rank programs; answers a collective when all its members have asked."""

    def __init__(self, programs: Mapping[int, RankProgram]) -> None:
        self.programs = dict(programs)
        self.waiting: dict[int, Request] = {}
        self.results: dict[int, Any] = {}
        self.counts: dict[int, int] = dict.fromkeys(self.programs, 0)

    def advance(self, rank: int, reply: Any = None) -> Tick | None:
        """Run one rank until it asks, ticks or ends."""
        try:
            asked = self.programs[rank].send(reply)
        except StopIteration as end:
            self.results[rank] = end.value
            return None
        if isinstance(asked, Tick):
            return asked
        self.counts[rank] += 1
        self.waiting[rank] = asked
        return None

    def answer_ready(self) -> dict[int, Any]:
        """Replies to every request that is complete now. Raises CollectiveMismatch."""
        replies: dict[int, Any] = {}
        for rank in sorted(self.waiting):
            if rank in replies:
                continue
            request = self.waiting[rank]
            if rank not in request.group:
                raise CollectiveMismatch(
                    message(f"rank {rank} called {describe(request)} for group {request.group}", allowed="A rank calls for its own groups")
                )
            members = [self.waiting.get(r) for r in request.group]
            if any(m is None for m in members):
                continue
            if request.kind in ("send", "recv"):
                source, target = members
                if (source.kind, target.kind, source.group) == ("send", "recv", target.group):
                    replies.update({request.group[0]: None, request.group[1]: np.array(source.value, order="C")})
                continue
            if all(m.group == request.group for m in members):
                replies.update(zip(request.group, answer(members), strict=True))
        for rank in replies:
            del self.waiting[rank]
        return replies

    def deadlock(self) -> DeadlockError:
        lines = [f"rank {r} waits in its call {self.counts[r]}, {describe(q)}, with {q.group}" for r, q in sorted(self.waiting.items())]
        ended = sorted(self.results)
        rest = f"; ranks {ended} have ended" if ended else ""
        return DeadlockError(
            message("; ".join(lines) + rest, where="deadlock", hint="All members of a group must make the same calls in the same order")
        )


def simulate(programs: Sequence[RankProgram] | Mapping[int, RankProgram]) -> list[Any]:
    """Run rank programs to their ends; returns what each returned, in rank order.

    Raises DeadlockError when ranks wait for each other for ever, CollectiveMismatch when members of a group disagree.
    """
    engine = _Engine(programs if isinstance(programs, Mapping) else dict(enumerate(programs)))
    for rank in list(engine.programs):
        while engine.advance(rank) is not None:
            pass
    while len(engine.results) < len(engine.programs):
        replies = engine.answer_ready()
        if not replies:
            raise engine.deadlock()
        for rank, reply in replies.items():
            while engine.advance(rank, reply) is not None:
                reply = None
    return [engine.results[r] for r in sorted(engine.programs)]


class Simulator:
    """A plan on simulated ranks.

    plan    what to run
    values  full tensors by name: parameters and optimizer states (`Session` prepares them); every rank gets its slices

    `envs[rank]` are the arrays of a rank. Computation uses one BLAS thread, as the processes do: results are equal bit for bit.
    """

    def __init__(self, plan: Plan, values: Mapping[str, np.ndarray]) -> None:
        self.plan = plan
        self.ranks = range(plan.device_num)
        self.envs: list[Env] = [{n: slice_value(plan, n, v, r) for n, v in values.items() if n in plan.value_table} for r in self.ranks]
        self._engine: _Engine | None = None

    def run_step(self, *inputs: Any, phases: Sequence[str] | None = None, observe: Callable[..., None] | None = None) -> np.ndarray:
        """One whole step on the global batch `inputs`; returns the first output in full (the loss).

        observe  called with (rank, phase, instruction, start, end) after every instruction
        """
        with one_blas_thread():
            programs = []
            for rank in self.ranks:
                self.envs[rank].update(step_inputs(self.plan, rank, inputs))
                seen = None if observe is None else (lambda *what, rank=rank: observe(rank, *what))
                programs.append(rank_step(self.plan, rank, self.envs[rank], phases=phases, observe=seen))
            simulate(programs)
        return self.full(self.plan.outputs[0])

    # ---- stepping ----

    def begin(self, *inputs: Any) -> None:
        """Start a step that `next_instruction` walks through. Values are kept until the next `begin`."""
        for rank in self.ranks:
            keep = {i.name for i in self.plan.graph.inputs} | {s.name for s in self.plan.states}
            self.envs[rank] = {n: v for n, v in self.envs[rank].items() if n in keep}
            self.envs[rank].update(step_inputs(self.plan, rank, inputs))
        self._engine = _Engine({r: rank_step(self.plan, r, self.envs[r], ticks=True) for r in self.ranks})

    def next_instruction(self) -> Tick | None:
        """Let every rank run one instruction; returns which, or None at the end of the step."""
        if self._engine is None:
            raise PlanError(message("no step was begun", where="Simulator.next_instruction", hint="Call begin(*inputs) first"))
        engine, ticks = self._engine, {}
        with one_blas_thread():
            for rank in self.ranks:
                tick = engine.advance(rank)
                if tick is not None:
                    ticks[rank] = tick
            while engine.waiting:
                replies = engine.answer_ready()
                if not replies:
                    raise engine.deadlock()
                for rank, reply in replies.items():
                    tick = engine.advance(rank, reply)
                    if tick is not None:
                        ticks[rank] = tick
        if not ticks:
            self._engine = None
            return None
        return ticks[0]

    # ---- looking ----

    def value(self, name: str, rank: int) -> np.ndarray:
        """The array called `name` on `rank` now. Raises PlanError if the rank does not hold it (yet, or any more)."""
        if name not in self.envs[rank]:
            self.plan.value(name)
            raise PlanError(
                message(f"rank {rank} does not hold {name!r} now", where="Simulator", hint="Values live from the instruction that makes them")
            )
        return self.envs[rank][name]

    def full(self, name: str) -> np.ndarray:
        """The full tensor, put together from the ranks' slices."""
        return gather_value(self.plan, name, [self.value(name, r) for r in self.ranks])
