"""The hunt: a training with one bug among the suspects shown. Every look costs; few points win.

    hunt = Hunt("gpt", suspects=8, seed=3)
    hunt.probe("blocks.0.norm1", rank=1, step=0)        1 point: the value next to the right run's
    hunt.compare(0, 1)                                  2 points: what differs between two ranks that should be copies
    hunt.name(operator, kind, mend)                     whether that is it;  hunt.spent, hunt.par

A class that shares a seed hunts the same bug. Who begins again knows more than at first: points stay, and par does not
count any more.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field

from ...base.checks import integer
from ...base.errors import ArgumentError, shorten
from ...base.units import plural
from ...graph.plan import Plan
from ...graph.value_types import named
from .cases import COMPARE, LEVELS, NETS, PROBE, STEPS, Look, label_of, new_case
from .par import MOST

YES = "yes"


@dataclass(frozen=True)
class Asked:
    """A look that was taken."""

    look: Look
    cost: int
    answer: str


@dataclass
class Hunt:
    """A hunt for one bug.

    net       one of NETS;  suspects: how many are shown, 2 to 16;  level: one of LEVELS;  seed: draws the bugs
    tries     how often it was begun;  before: points of the earlier ones

    Raises ArgumentError.
    """

    net: str = "mlp"
    suspects: int = 8
    level: str = "quiet"
    seed: int = 0
    asked: list[Asked] = field(default_factory=list)
    verdict: str = ""
    tries: int = 1
    before: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("net", NETS), ("level", LEVELS)):
            if getattr(self, name) not in allowed:
                given = f"{name}={shorten(getattr(self, name))}"
                raise ArgumentError(given, where="Hunt", allowed=f"One of {', '.join(allowed)}")
        integer(2, MOST)("Hunt", "suspects", self.suspects)
        integer(0, 10**6)("Hunt", "seed", self.seed)
        self.case = new_case(self.net, self.suspects, self.level, self.seed)
        self.solver = self.case.solver

    @property
    def plan(self) -> Plan:
        """The right plan: what the training should be."""
        return self.case.training.plan

    @property
    def labels(self) -> list[tuple[str, str]]:
        """(operator, kind) of each suspect: what is to be named."""
        return [label_of(one) for one in self.case.suspects]

    @property
    def par(self) -> int:
        """Points that surely suffice in a first try, proved: whatever the looks, the names and the loss say."""
        return int(self.solver.par)

    @property
    def spent(self) -> int:
        """Points so far, in all tries."""
        return self.before + sum(one.cost for one in self.asked)

    @property
    def found(self) -> bool:
        """Whether the bug was named."""
        return any(a.look[0] == "name" and a.answer == YES for a in self.asked)

    @property
    def left(self) -> frozenset[int]:
        """Numbers of the suspects that fit the loss and all answers, also those to names."""
        case, looks = self.case, [a.look for a in self.asked]
        return frozenset(n for n in case.start if all(self._says(n, k) == self._says(case.culprit, k) for k in looks))

    def _says(self, suspect: int, look: Look) -> object:
        if look[0] == "name":
            return self.case.named(suspect, *look[1:])
        return self.case.answers[suspect][self.case.looks.index(look)]

    def sealed(self) -> str:
        """All that answers looks and judges names, for a page: JSON, scrambled so that nobody reads it by accident.

        patterns: of each look, which suspects answer alike;  said: the bug's answer to it, a number of `words`
        """
        case, words = self.case, {}
        columns = list(zip(*case.answers, strict=True))
        bug = case.suspects[case.culprit].mutant
        hunt = {
            "looks": case.looks,
            "patterns": ["".join(f"{column.index(said):x}" for said in column) for column in columns],
            "said": [words.setdefault(column[case.culprit], len(words)) for column in columns],
            "words": list(words),
            "names": [[*label_of(one), one.mutant.mend] for one in case.suspects],
            "start": sorted(case.start),
            "culprit": case.culprit,
            "found": f"Found: {bug.kind} at {named(bug.instr)}; mended by {bug.mend}.",
            "par": self.par,
            "costs": [PROBE, COMPARE],
            "asked": [[one.look, one.answer, one.cost] for one in self.asked],
            "before": self.before,
            "tries": self.tries,
            "verdict": self.verdict,
        }
        text = json.dumps(hunt, separators=(",", ":")).encode()
        return base64.b64encode(bytes(byte ^ (31 + 7 * at) & 255 for at, byte in enumerate(text))).decode()

    def begin_again(self) -> None:
        """Nothing asked, nothing named; what was spent stays."""
        if self.asked:
            self.before, self.tries = self.spent, self.tries + 1
        self.asked, self.verdict = [], ""

    def probe(self, tensor: str, rank: int, step: int = 0) -> str:
        """Look at one value: how it compares with the right run. One point. Raises ArgumentError."""
        look = "probe", tensor, rank, step
        if look not in self.case.looks:
            known = dict.fromkeys(one[1] for one in self.case.looks if one[0] == "probe")
            given = f"{shorten(tensor)} on rank {shorten(rank)} in step {shorten(step)}"
            ranks = f"ranks 0 to {self.plan.device_num - 1}, steps 0 to {STEPS - 1}"
            raise ArgumentError(given, where="probe", allowed=f"{ranks}; one of {', '.join(known)}")
        return self._noted(look, PROBE)

    def compare(self, rank_a: int, rank_b: int) -> str:
        """Which gradients differ between two ranks that hold copies of them. Two points. Raises ArgumentError."""
        one, other = sorted(integer(0, self.plan.device_num - 1)("compare", "rank", r) for r in (rank_a, rank_b))
        if one == other:
            raise ArgumentError(f"rank {one} twice", where="compare", allowed="Two ranks")
        return self._noted(("compare", one, other), COMPARE)

    def _noted(self, look: Look, cost: int) -> str:
        said = self.case.answer(look)
        self.asked.append(Asked(look, 0 if self.found else cost, said))  # after the end nothing costs
        return said

    def name(self, operator: str, kind: str, mend: str) -> bool:
        """Name the bug: operator and kind as `labels` say, and what mends it (`KINDS[kind].mend`).

        Whether all three are right; else two points more. `verdict` says which are, in the end points next to par.
        """
        right, look = self.case.named(self.case.culprit, operator, kind, mend), ("name", operator, kind, mend)
        if self.found:
            return all(right)
        if all(right):
            self.asked.append(Asked(look, 0, YES))
            bug, points = self.case.suspects[self.case.culprit].mutant, plural(self.spent, "point")
            end = f"{points}, par {self.par}" if self.tries == 1 else f"{points} in {self.tries} tries: tried before"
            self.verdict = f"Found: {bug.kind} at {named(bug.instr)}; mended by {bug.mend}. {end}."
            return True
        parts = zip(("operator", "kind", "mend"), right, strict=True)
        said = ", ".join(f"the {part} is {'right' if is_right else 'another'}" for part, is_right in parts)
        self.asked.append(Asked(look, COMPARE, said))
        self.verdict = f"Not yet: {said}. {COMPARE} points more."
        return False
