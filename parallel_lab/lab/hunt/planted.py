"""Bugs planted in a training, and the proof that they matter: gradients that differ from those of the right plan.

    found = plant(plan, "missing", site=3, seed=0)
    found.mutant.plan, found.changed           what to run; {parameter: largest difference of its gradient on any rank}
    found = plant(plan, "stale", training=Training(plan, values, batch))       two steps, with the optimizer

A mutant that changes no gradient bit for bit is not a bug, and None; so is one that does not run to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ...base.dtypes import as_dtype, kind_of
from ...base.errors import ParallelLabError
from ...graph.plan import Plan
from ...run.simulator import Simulator
from ...train.session import initial_values
from .mutants import Mutant, Site, mutant, sites

Slices = dict[str, list[np.ndarray]]
Watch = Callable[[Simulator, int], Callable[..., None]]


@dataclass(frozen=True)
class Training:
    """A plan, what it starts from, a batch.

    values  full tensors of parameters and states;  steps: 1 where only its gradients matter
    """

    plan: Plan
    values: Mapping[str, np.ndarray]
    batch: tuple[np.ndarray, ...]
    steps: int = 2

    @classmethod
    def of(cls, plan: Plan, net: Any, optimizer: Any, batch: Sequence[Any], steps: int = 2) -> Training:
        """A training of a network by an optimizer (None: gradients alone)."""
        values = initial_values(plan, net, optimizer)
        return cls(plan, values, tuple(np.asarray(x) for x in batch), steps if optimizer is not None else 1)

    @classmethod
    def drawn(cls, plan: Plan, seed: int = 0) -> Training:
        """One step with random parameters and data, ints 0 or 1; states are 1: what is updated is not used."""
        rng = np.random.default_rng(seed)

        def random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
            floats = kind_of(as_dtype(dtype)) == "f"
            return (rng.normal(size=shape) if floats else rng.integers(0, 2, shape)).astype(as_dtype(dtype))

        values = {i.name: random(plan.value(i.name).shape, plan.value(i.name).dtype) for i in plan.parameters}
        values |= {s.name: np.ones(v.shape, as_dtype(v.dtype)) for s in plan.states if (v := plan.value(s.name))}
        return cls(plan, values, tuple(random(plan.value(i.name).shape, i.dtype) for i in plan.data_inputs), 1)

    @cached_property
    def right(self) -> tuple[list[float], list[Slices]]:
        """What `run` gives for its own plan, run once."""
        return self.run()

    def run(self, plan: Plan | None = None, watch: Watch | None = None) -> tuple[list[float], list[Slices]]:
        """Losses and gradients of each step, every rank's slices, of this plan or one with other instructions.

        watch  called with the simulator and the step: what `Simulator.run_step` calls after every instruction
        """
        plan = plan or self.plan
        simulator = Simulator(plan, self.values)
        losses, gradients = [], []
        for step in range(self.steps):
            observe = None if watch is None else watch(simulator, step)
            with np.errstate(all="ignore"):
                losses.append(float(np.mean(simulator.run_step(*self.batch, observe=observe))))
            names = dict.fromkeys(g for _, g in plan.gradients)
            held = {g: [env[g] for env in simulator.envs if g in env] for g in names}
            gradients.append({name: [np.array(a) for a in held[g]] for name, g in plan.gradients})
        return losses, gradients


@dataclass(frozen=True)
class Planted:
    """A bug in a training.

    changed   {parameter: largest difference of its gradient on any rank in any step, next to its largest element}
    losses    of the right run;  wrong_losses: of the one with the bug
    """

    training: Training
    mutant: Mutant
    changed: dict[str, float]
    losses: list[float] = field(default_factory=list)
    wrong_losses: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        most = max(self.changed, key=self.changed.__getitem__)
        return f"{self.mutant}; {len(self.changed)} gradients change, most {most!r} by {self.changed[most]:.2g}"


def plant(
    plan: Plan, kind: str, site: Site | int | None = None, seed: int = 0, *, training: Training | None = None
) -> Planted | None:
    """A bug of one of `mutants.KINDS` at a site, or at one drawn uniformly over all there are.

    seed      draws the site, if need be, and what the kind leaves open
    training  what it is planted in; None: gradients of drawn parameters and data

    None where it cannot be planted, or changes no gradient. Raises ArgumentError.
    """
    if site is None:
        known = sites(plan, kind)
        if not known:
            return None
        site = known[int(np.random.default_rng(seed).integers(len(known)))]
    return proved(mutant(plan, kind, site, seed), training or Training.drawn(plan, seed))


def proved(found: Mutant | None, training: Training, watch: Watch | None = None) -> Planted | None:
    """The mutant with the gradients that it changes; None: it changes none, or does not run.  watch: as of a run"""
    if found is None:
        return None
    losses, right = training.right
    try:
        wrong_losses, wrong = training.run(found.plan, watch)
    except (ParallelLabError, ValueError, ArithmeticError, KeyError):
        return None  # it does not pass without a word
    changed = differences(right, wrong)
    return Planted(training, found, changed, losses, wrong_losses) if changed else None


def differences(right: Sequence[Slices], wrong: Sequence[Slices]) -> dict[str, float]:
    """{name: largest difference on any rank in any step, as a share of its largest element}, of those that differ."""
    found: dict[str, float] = {}
    for before, after in zip(right, wrong, strict=True):
        for name, slices in before.items():
            pairs = list(zip(slices, after[name], strict=True))
            if any(not np.array_equal(a, b, equal_nan=True) for a, b in pairs):
                most = max(float(np.abs(a).max(initial=0)) for a, _ in pairs) or 1.0
                off = max(float(np.abs(np.subtract(a, b, dtype=float)).max(initial=0)) for a, b in pairs)
                found[name] = max(found.get(name, 0.0), off / most)
    return found
