"""What the ranks of a pipeline stage do in one step, and when: their programs, run by actions, one after the other.

    0F0 0B0 0F1 0B1 0update0        stage 0: forward and backward of micro-batch 0, then of 1; then the update

A program is written once and run for every micro-batch; what it does once runs with the first of them, or the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .ir import Instr


@dataclass(frozen=True)
class Action:
    """A cell of a schedule, "0F0": run `program` ("F", "B", "W", "send", "recv", "update") on `micro_batch`."""

    stage: int
    kind: str
    micro_batch: int
    program: str

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class Stage:
    """Ranks first..first+count of the plan, their programs, and the order in which they run them."""

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
        runs: dict[str, list[Action]] = {}
        for action in self.actions:
            runs.setdefault(action.program, []).append(action)
        found: dict[Action, tuple[tuple[int, Instr], ...]] = {}
        for phase, actions in runs.items():
            program, parts = tuple(enumerate(self.program(phase))), {}
            for action in actions:
                now = ("", *["first"] * (action is actions[0]), *["last"] * (action is actions[-1]))
                if now not in parts:
                    parts[now] = tuple((position, instr) for position, instr in program if instr.once in now)
                found[action] = parts[now]
        return found

    @cached_property
    def last_actions(self) -> dict[str | int, Action]:
        """The last action that runs a program, and the last one of a micro-batch before the update."""
        return {a.program: a for a in self.actions} | {a.micro_batch: a for a in self.actions if a.program != "update"}
