"""A piece of the museum: a bug that cost people weeks, in a small network on four ranks, with a switch.

    piece = PIECES["norm gradient not summed"]
    piece.measured(wrong=True)                        0.25, where 1.0 is right
    piece.measured(wrong=True, executor="processes")  the same on four worker processes
    piece.found(wrong=True)                           {"gradients": "gradient of norm differs by ...", "copies": ...}

Its network trains for two steps (`network.py`), the same Cell on simulated ranks (threads, which a browser lacks), on
processes and, undivided, on one device. What the number is with the bug follows by hand, or from the undivided run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from ...base.checks import choice
from ...graph.instr import Instr
from ...processes.shm import WorkerPool
from ...run.simulator import simulate
from ..exercises.played_ranks import on_ranks
from .network import PLACES, Held, Network, train, train_worker
from .page import LOOKS, page

RANKS = 4
EXECUTORS = ("simulator", "processes")
ROUNDING = 1e-9  # more than float64 needs for networks of this size, less than any bug
Ranks = Sequence[Held]
Measure = Callable[[Ranks, Held], float]


# ---- numbers: what a piece shows of a run, next to one device's ----


def part_of(alone: Held, name: str, held: Held) -> np.ndarray:
    """What a rank should have under a name: its part of one device's."""
    return np.asarray(alone[name])[held[PLACES][name]]


def ratio(name: str) -> Measure:
    """What ranks have as a multiple of what one device has: its projection on it, the mean over ranks. Addends are,
    whatever they are, on the average a quarter of the sum that they add up to."""

    def measure(ranks: Ranks, alone: Held) -> float:
        pairs = [(held[name], part_of(alone, name, held)) for held in ranks]
        return float(
            np.mean([(have * should).sum() for have, should in pairs]) / np.mean([(s * s).sum() for _, s in pairs])
        )

    return measure


def shown_loss(ranks: Ranks, alone: Held) -> float:
    """The loss of the first step that is displayed, the mean over ranks, next to one device's."""
    return float(np.mean([held["loss"] for held in ranks]) / alone["loss"])


def kept(name: str) -> Measure:
    """A number that ranks have kept, rank 0's."""
    return lambda ranks, alone: float(ranks[0][name])


def wrong_rows(name: str) -> Measure:
    """Rows of the ranks that are not one device's."""

    def measure(ranks: Ranks, alone: Held) -> float:
        pairs = ((held[name], part_of(alone, name, held)) for held in ranks)
        return float(sum((np.abs(have - should) > ROUNDING).any(axis=-1).sum() for have, should in pairs))

    return measure


# ---- what finds bugs ----


def off(have: Any, should: Any) -> float:
    """The largest difference, as a share of the largest that should be; infinite where shapes differ or it is nan."""
    have, should = np.asarray(have, float), np.asarray(should, float)
    if have.shape != should.shape or not np.isfinite(have).all():
        return np.inf
    return float(np.abs(have - should).max(initial=0) / (np.abs(should).max(initial=0) or 1.0))


def differences(ranks: Ranks, alone: Held) -> dict[str, float]:
    """{name: how far the worst rank is off one device's}, in the order in which they are made."""
    return {name: max(off(h[name], part_of(alone, name, h)) for h in ranks) for name in alone if name != PLACES}


def _kind(name: str, alone: Held) -> str:
    """Which of FINDERS looks at a value; "": those after the first update, where everything follows from it."""
    if name == "loss" or name.startswith("gradient of "):
        return "loss" if name == "loss" else "gradients"
    return "" if name == "losses by step" or f"gradient of {name}" in alone else "probe"


def _differs(kind: str) -> Callable[[Ranks, Held], str]:
    def find(ranks: Ranks, alone: Held) -> str:
        found = ((n, by) for n, by in differences(ranks, alone).items() if by > ROUNDING and _kind(n, alone) == kind)
        return next((f"{name!r} is off by {by:.2g} of its largest element" for name, by in found), "")

    return find


def _copies(ranks: Ranks, alone: Held) -> str:
    for name in (name for name in alone if f"gradient of {name}" in alone):
        for (b, one), (a, other) in combinations(enumerate(ranks), 2):
            same_part = repr(one[PLACES][name]) == repr(other[PLACES][name])
            if same_part and not np.array_equal(one[name], other[name], equal_nan=True):
                return f"{name!r} differs between ranks {b} and {a}"
    return ""


FINDERS = {kind: _differs(kind) for kind in ("loss", "gradients", "probe")} | {"copies": _copies}


def unsummed(*names: str) -> Callable[[Instr], Instr]:
    """The mistake in a plan: gradients of parameters with these names are added up over a group of one rank."""
    return lambda instr: replace(instr, axes=()) if _sums(instr, names) else instr


def averaged(*names: str) -> Callable[[Instr], Instr]:
    """The mistake in a plan: of the gradients of these parameters the mean is taken, not the sum."""

    def change(instr: Instr) -> Instr:
        changed = tuple((name, "mean" if name == "reduce" else value) for name, value in instr.attrs)
        return replace(instr, attrs=changed) if _sums(instr, names) else instr

    return change


def _sums(instr: Instr, names: Sequence[str]) -> bool:
    parameter = instr.attr("parameter") if instr.kind == "all_reduce" else None
    return bool(parameter) and any(name in parameter for name in names)


# ---- a piece ----


@dataclass(frozen=True)
class Piece:
    """One bug.

    name, issue   "owner/repository#number", where people met it; "" of one that was constructed
    network       a Cell that trains on ranks, with a switch (`network.py`);  about: what it does wrong, in a sentence
    symptom       what the number is;  right, wrong: what it is; wrong may be a function of the undivided run
    finds         which of FINDERS show it, and no others do;  mends: what makes it right
    measure       the number, from what ranks hold and one device has
    in_plan       the mistake in an instruction of a lesson's plan (`shared/mistakes.py`), where it has one;
    by_types      whether types of its values (`graph/value_types.py`) find it there, before it runs
    """

    name: str
    issue: str
    network: type[Network]
    about: str
    symptom: str
    right: float
    wrong: float | Callable[[Held], float]
    finds: tuple[str, ...]
    mends: str
    measure: Measure
    in_plan: Callable[[Instr], Instr] | None = None
    by_types: bool = False

    @property
    def source(self) -> str:
        """Where people met it, in words."""
        return self.issue or "constructed"

    @property
    def shown_by(self) -> tuple[str, ...]:
        """What finds it, the types of a plan among them."""
        return (*self.finds, *["types"] * self.by_types)

    def alone(self, seed: int = 0) -> Held:
        """What one device has, undivided and without the bug."""
        return self.network(seed=seed).train_steps()

    def with_bug(self, seed: int = 0) -> float:
        """What the number is with the bug, by its formula."""
        return self.wrong(self.alone(seed)) if callable(self.wrong) else self.wrong

    def results(self, wrong: bool, seed: int = 0, ranks: int = RANKS) -> list[Held]:
        """What simulated ranks hold."""
        program = on_ranks(train)
        return simulate([program(rank, ranks, (self.network, wrong, seed)) for rank in range(ranks)])

    def on_workers(self, pool: WorkerPool, wrong: bool) -> list[Held]:
        """What four workers hold."""
        return pool.run(train_worker, self.network, wrong)

    def measured(self, wrong: bool, executor: str = "simulator") -> float:
        """The number, on four ranks.  executor: "simulator" or "processes". Raises ArgumentError."""
        choice(*EXECUTORS)("museum", "executor", executor)
        if executor == "simulator":
            return self.measure(self.results(wrong), self.alone())
        with WorkerPool(RANKS) as pool:
            return self.measure(self.on_workers(pool, wrong), self.alone())

    def found(self, wrong: bool = True) -> dict[str, str]:
        """{one of FINDERS: what it says}, "" where it sees nothing."""
        ranks, alone = self.results(wrong), self.alone()
        return {name: find(ranks, alone) for name, find in FINDERS.items()}

    def _repr_html_(self) -> str:
        right, wrong, alone = self.results(False), self.results(True), self.alone()
        found = {name: find(wrong, alone) for name, find in FINDERS.items()}
        return page(self, self.measure(right, alone), self.measure(wrong, alone), found)

    def __str__(self) -> str:
        shown = f"{self.symptom}: {self.right:.4g}, with the bug {self.with_bug():.4g}"
        found = "; ".join(LOOKS.get(name, "types of a plan") for name in self.shown_by)
        return f"{self.name} ({self.source})\n  {shown}\n  found by: {found}\n  mended by: {self.mends}"

    __repr__ = __str__
