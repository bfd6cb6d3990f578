"""Predicted and measured times of the labs on this machine: how far they are apart, lab by lab.

The machine is fitted first (`fit_machine`), on steps of tiny tensors, products, copies and messages; nothing is fitted
to what is predicted here. Memory, Recompute, Redistribution and the Cost Lab measure no times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from parallel_lab.base.cluster import get_cluster
from parallel_lab.base.system import cores
from parallel_lab.base.units import time_text
from parallel_lab.cost.shared_cores import SharedMachine
from parallel_lab.lab.fusion.case import Settings as FusionSettings
from parallel_lab.lab.fusion.subjects import get_subject
from parallel_lab.lab.lessons.collectives import NAMES, RANKS, algorithm_times
from parallel_lab.lab.pipeline.run import prepared
from parallel_lab.lab.pipeline.settings import Settings as PipelineSettings
from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.search.subjects import SUBJECTS as SEARCHED
from parallel_lab.lab.shared.step_times import step_times
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.processes.measure import fit_link, fit_machine
from parallel_lab.processes.shm import WorkerPool
from tests.bench.goals import Goal, goal_rows
from tests.bench.page import ratio_text, tables_text

APART_LIMIT = 2.0  # of predicted and measured, the larger over the smaller
SIZE_BYTES = 64 << 10


@dataclasses.dataclass(frozen=True)
class Case:
    """What a lab predicts and measures, in seconds;  named_s: predicted for the laptop profile, or None."""

    lab: str
    what: str
    ranks: int
    predicted_s: float
    measured_s: float
    named_s: float | None = None

    @property
    def apart(self) -> float:
        return max(self.predicted_s / self.measured_s, self.measured_s / self.predicted_s)


def measure_labs(
    ranks: int = 8, steps: int = 30, *, tell: Callable[[str], object] = lambda text: None
) -> tuple[SharedMachine, list[Case]]:
    """The fitted machine, and each lab's times on it. steps: that count; ranks: of the machine and the larger cases."""
    with WorkerPool(ranks) as pool:
        tell("fitting this machine")
        machine = fit_machine(pool, world_size=max(ranks, RANKS))
        found = []
        for case in _cases(machine, pool, steps):
            tell(f"{case.lab}: {case.what}")
            found.append(case)
    return machine, found


def _cases(machine: SharedMachine, pool: Any, steps: int) -> Iterator[Case]:
    ranks = pool.world_size
    for net in ("quickstart", "dense", "transformer"):
        lab = StrategyLab(net, devices=ranks)
        yield _case("Strategy", net, (lab.plan, *lab._job()), machine, pool, steps)
    for name in ("chain", "dense"):
        job, settings = get_subject(name).job(), FusionSettings()
        fusion = settings.comm_fusion("size", len(job.net.trainable_params()))
        plan = job.compile(devices=ranks, parallel_mode="data_parallel", comm_fusion=fusion)
        yield _case("Fusion", name, (plan, job.net, job.optimizer, job.batches), machine, pool, steps)
    plan, job = SearchLab("quickstart", devices=ranks).plan, SEARCHED["quickstart"].kept
    yield _case("Search", "winner, quickstart", (plan, job.net, job.optimizer, job.batches), machine, pool, steps)
    with WorkerPool(4) as four:
        for name in ("gpipe", "1f1b"):
            trial = prepared(PipelineSettings(stages=4, micro_batches=8).with_name(name), (), "bench")
            one = trial.plan, trial.net, trial.optimizer, trial.batches
            yield _case("Pipeline", name, one, machine, four, steps)
    for size_bytes, name, alone_s, here_s, measured_s in algorithm_times(fit_link(2, repeats=20)):
        if size_bytes == SIZE_BYTES and name in NAMES:
            yield Case("Stepper, lesson 02", f"{name}, 64 KiB", RANKS, here_s, measured_s, alone_s)


def _case(lab: str, what: str, job: tuple[Any, ...], machine: SharedMachine, pool: Any, steps: int) -> Case:
    times = step_times(*job, machine, steps=steps, pool=pool)
    named = step_times(*job, get_cluster("laptop"), steps=1, pool=pool)
    return Case(lab, what, pool.world_size, times.predicted_s, times.measured_s, named.predicted_s)


def labs_goals(cases: list[Case]) -> tuple[Goal, ...]:
    """Each lab's worst case."""
    worst = {case.lab: case for case in sorted(cases, key=lambda case: case.apart)}
    what = "predicted and measured, larger over smaller"
    return tuple(
        Goal(f"{lab}: {what}", "each other", APART_LIMIT, case.apart, case.what) for lab, case in worst.items()
    )


def labs_text(machine: SharedMachine, cases: list[Case]) -> str:
    """Table, goals and the fitted machine."""
    rows = [("lab", "what", "ranks", "named profile", "this machine", "measured", "predicted/measured")]
    for case in cases:
        times = (time_text(t) if t is not None else "-" for t in (case.named_s, case.predicted_s, case.measured_s))
        rows.append((case.lab, case.what, str(case.ranks), *times, ratio_text(case.predicted_s / case.measured_s)))
    device = machine.device
    notes = [
        f"{machine.device_num} ranks, {cores()} cores; a rank on a core of its own: {device.flops_per_s / 1e9:.3g} "
        f"Gflop/s, {device.memory_bandwidth_bytes_per_s / 1e9:.3g} GB/s, {device.overhead_s * 1e6:.3g} us an "
        f"instruction, {machine.call_s * 1e6:.3g} us a message, {machine.link.beta_s_per_byte * 1e9:.3g} ns per byte",
        "Memory, Recompute, Redistribution and the Cost Lab measure no times.",
    ]
    return tables_text([(rows, 2), (goal_rows(labs_goals(cases)), 2)], notes)
