"""The bookkeeping of one rank's step: which arrays live, under which names, and what takes a new value when.

    frame.begin(action)          the arrays that an action reads and writes: the step's, or those of its micro-batch
    frame.put(instr, result)     what an instruction has made gets its names
    frame.drop(position)         arrays that nothing reads any more go; parameters and states take their new values
    frame.end(action)            what the network writes during forward is handed on; a finished micro-batch goes

`interpreter.rank_step` runs the instructions in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ..graph.actions import Action
from ..graph.instr import Instr
from ..graph.kinds import Env, OnRank
from ..graph.plan import Plan


class MicroBatch:
    """A rank's arrays as one micro-batch sees them: its own, kept as `env[name, number]`, before those of the step."""

    def __init__(self, plan: Plan, env: dict[Any, np.ndarray], number: int, step: int) -> None:
        self.env, self.number = env, number
        # every micro-batch has random masks of its own, and goes on with the parameters as it received them
        counts = {"step": step * plan.micro_batches + number, "micro_batch": number}
        counters = (i for i in plan.graph.inputs if i.role in counts)
        self.update((i.name, np.asarray(counts[i.role], i.dtype)) for i in counters)
        self.update((target, env[target]) for target, _ in plan.forward_assignments if target in env)

    def __getitem__(self, name: str) -> np.ndarray:
        own = self.env.get((name, self.number))
        return self.env[name] if own is None else own

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        self.env[name, self.number] = array

    def __contains__(self, name: str) -> bool:
        return (name, self.number) in self.env

    def update(self, pairs: Iterable[tuple[str, np.ndarray]]) -> None:
        self.env.update(((name, self.number), array) for name, array in pairs)

    def pop(self, name: str, default: Any = None) -> Any:
        return self.env.pop((name, self.number), default)

    def end(self) -> None:
        """Drop every array that it has made."""
        for key in [key for key in self.env if type(key) is tuple and key[1] == self.number]:
            del self.env[key]


class Frame(OnRank):
    """What the instructions of one step run with, on one rank.

    arrays    the step's arrays by name: parameters, states, inputs, results; those of a micro-batch by (name, number)
    env       where the running action reads and writes: `arrays`, or the `MicroBatch` over them
    replaced  names of the parameters and states that have new values

    phases    run only these programs;  step: how many steps were taken before, on which random masks depend
    keep_all  nothing is dropped, and new values take their targets' names at the end of the step: for stepping through
    others    fields of `OnRank`
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        arrays: Env,
        *,
        phases: Collection[str] | None = None,
        step: int = 0,
        keep_all: bool = False,
        replaced: list[str] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(plan, rank, arrays, keep_all=keep_all, **others)
        self.arrays, self.step = arrays, step
        self.env: Any = arrays
        self.replaced: list[str] = [] if replaced is None else replaced
        self.stage = plan.stage_of(rank)
        self.actions = [a for a in self.stage.actions if phases is None or a.program in phases]
        self._last_early = next((a for a in reversed(self.actions) if not a.of_step), None)
        self._last_uses, self._replacements = plan.last_uses(rank), plan.replacements(rank)
        self._micro_batches: dict[int, MicroBatch] = {}
        self._new_values: Env = {}
        made = {name for instr in self.stage.program("reduce") for name in instr.kept}
        self._assigned = [[p for p in plan.forward_assignments if (p[1] in made) is late] for late in (False, True)]
        self._written: set[tuple[int, str]] = set()  # (micro-batch, Parameter) that `construct` wrote
        arrays.update((name, value) for name, value in plan.scalars.items() if name not in arrays)
        arrays.update((i.name, np.asarray(step, i.dtype)) for i in plan.graph.inputs if i.role == "step")
        if phases is None or "backward" in phases:
            for _, gradient in plan.gradients:
                arrays.pop(gradient, None)  # that of the step before

    def begin(self, action: Action) -> None:
        """The instructions of `action` come next."""
        number = self.micro_batch = action.micro_batch
        self.env = self.arrays
        if self.plan.micro_batches > 1 and not action.of_step:
            if number not in self._micro_batches:
                self._micro_batches[number] = MicroBatch(self.plan, self.arrays, number, self.step)
            self.env = self._micro_batches[number]
        self._dead = self._last_uses[action]
        self._replaced_now = self._replacements if action.program == "update" else {}

    def runs(self, instr: Instr) -> bool:
        """Whether this rank runs an instruction: not another rank's alone, nor on a side of an `if` not taken."""
        mine = instr.runs_on(self.rank)
        return mine and (not instr.when or all(bool(self.env[name]) == side for name, side in instr.when))

    def put(self, instr: Instr, result: Any) -> None:
        """Keep what an instruction has made: an array, or a tuple of them; unnamed results are not kept."""
        places = (self.arrays,) if instr.of_step else (self.env, self.arrays) if self.keep_all else (self.env,)
        for arrays in places:
            if type(result) is tuple:
                arrays.update((name, array) for name, array in zip(instr.outs, result, strict=True) if name)
            else:
                arrays[instr.out] = result

    def next_turn(self, part: Sequence[tuple[int, Instr]], at: int) -> int:
        """Where a loop that goes on does so: at the next of its variables, `part[at]`, or with a new turn. Then all
        variables have their new values, and what backward reads of the last turn is kept.
        """
        name = part[at - 1][1].loop
        if at < len(part) and part[at][1].loop == name:
            return at
        first = next(n for n, (_, instr) in enumerate(part) if (name, True) in instr.when)
        kept = {key: self.env[key] for key in self.plan.kept_of_turns.get(name, ()) if key in self.env}
        self.turns.setdefault((name, self.micro_batch), []).append(kept)
        variables = [i for _, i in part[first:at] if i.loop == name]
        self.env.update([(i.ins[1], self.env[i.ins[2]]) for i in variables])
        return first

    def drop(self, position: int) -> None:
        """The instruction at `position` of the action's program has run: drop what nothing reads any more."""
        if self._replaced_now:
            pairs = self._replaced_now.get(position, ())
            held = [(target, source) for target, source in pairs if self.plan.held_by(target, self.rank)]
            self._new_values.update((target, self.arrays[source]) for target, source in held)
        if self.keep_all:
            return
        for name in self._dead.get(position, ()):
            if self.env.pop(name, None) is None:
                self.arrays.pop(name, None)
        if self._new_values:
            self.arrays.update(self._new_values)
            self.replaced += self._new_values
            self._new_values.clear()

    def end(self, action: Action) -> None:
        """All instructions of `action` have run.

        Parameters that `construct` writes change when all of forward and backward has run, for backward reads what
        forward has read. With micro-batches each keeps that for itself, and the next reads the new value, written once.
        What copies of the network add up first is written when "reduce" has run.
        """
        within, late = self.env is not self.arrays, action.program == "reduce"
        pairs = self._assigned[late]
        if pairs and (late or (action.program == "forward" if within else action is self._last_early)):
            left = [pair for pair in pairs if (action.micro_batch, pair[0]) not in self._written]
            ended = [p for p in left if self.stage.ends(action, p[1]) and self.plan.held_by(p[1], self.rank)]
            held = [*(pair for pair in left if pair[1] in self.env), *ended]
            self._written.update((action.micro_batch, t) for t, _ in held)
            self.arrays.update({target: self.env[source] for target, source in held})
            self.replaced += dict(held)
        if within and self.stage.ends_micro_batch(action):
            self.env.end()

    def close(self) -> Env:
        """The arrays at the end of the step."""
        self.arrays.update(self._new_values)
        return self.arrays
