"""What the ranks of a pipeline stage do in one step, and when: their programs, run by actions, one after the other.

    0F0 0B0 0F1 0B1 0update0        stage 0: forward and backward of micro-batch 0, then of 1; then the update

A program is written once and run for every micro-batch; what it does once runs with the first of them, or the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .instr import Instr

# kind of action -> what it runs
PROGRAMS = {"F": "forward", "B": "backward", "W": "weights", "reduce": "reduce", "update": "update"}
OF_STEP = ("reduce", "update")  # programs that run once, when all micro-batches are done


@dataclass(frozen=True)
class Action:
    """A cell of a schedule, "0F0": run part `stage` of `program` (kinds: those of PROGRAMS) on `micro_batch`."""

    stage: int
    kind: str
    micro_batch: int
    program: str

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @property
    def of_step(self) -> bool:
        """Whether it belongs to no micro-batch."""
        return self.program in OF_STEP


@dataclass(frozen=True)
class Stage:
    """Ranks first..first+count of the plan, their programs, and the order in which they run them.

    A pipelined network has parts 0, 1, 2, ... in the order of its data flow, which MindSpore calls stages too; ranks
    that have several of them (chunks) run them by actions of their own.
    """

    first: int
    count: int
    programs: tuple[tuple[str, tuple[Instr, ...]], ...]
    actions: tuple[Action, ...]

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)

    def program(self, phase: str) -> tuple[Instr, ...]:
        return dict(self.programs).get(phase, ())

    def part(self, action: Action) -> tuple[tuple[int, Instr], ...]:
        """What an action runs: (position in its program, instruction), without what another micro-batch does once."""
        return self._parts[action]

    @cached_property
    def _parts(self) -> dict[Action, tuple[tuple[int, Instr], ...]]:
        runs: dict[tuple[str, int], list[Action]] = {}
        for action in self.actions:
            runs.setdefault((action.program, action.stage), []).append(action)
        by_action: dict[Action, tuple[tuple[int, Instr], ...]] = {}
        for (phase, part), actions in runs.items():
            whole, parts = enumerate(self.program(phase)), {}
            program = [(at, instr) for at, instr in whole if phase in OF_STEP or instr.stage == part]
            for action in actions:
                now = ("", *["first"] * (action is actions[0]), *["last"] * (action is actions[-1]))
                if now not in parts:
                    parts[now] = tuple((position, instr) for position, instr in program if instr.once in now)
                by_action[action] = parts[now]
        return by_action

    def ends(self, action: Action, name: str = "") -> bool:
        """Whether this is the last time that its part of the program runs in a step, and no other part makes `name`."""
        return (
            self._last[action.program, action.stage] is action and self._makers.get(name, action.stage) == action.stage
        )

    @cached_property
    def _makers(self) -> dict[str, int]:
        return {name: instr.stage for instr in self.program("forward") for name in instr.kept}

    def ends_micro_batch(self, action: Action) -> bool:
        """Whether this is the last thing done with a micro-batch."""
        return not action.of_step and self._last[action.micro_batch] is action

    @cached_property
    def _last(self) -> dict[Any, Action]:
        before = [a for a in self.actions if not a.of_step]
        return {(a.program, a.stage): a for a in self.actions} | {a.micro_batch: a for a in before}

    def turns(self, part: int) -> tuple[int, ...]:
        """The micro-batches that a part runs for on this stage, in order: all, unless another stage has a copy."""
        return self._turns.get(part, ())

    @cached_property
    def _turns(self) -> dict[int, tuple[int, ...]]:
        numbers_of: dict[int, list[int]] = {}
        for action in sorted((a for a in self.actions if a.kind == "F"), key=lambda a: a.micro_batch):
            numbers_of.setdefault(action.stage, []).append(action.micro_batch)
        return {part: tuple(numbers) for part, numbers in numbers_of.items()}

    @cached_property
    def names(self) -> frozenset[str]:
        """The values that its programs read or make."""
        return frozenset(name for _, program in self.programs for i in program for name in (*i.reads, *i.kept))
