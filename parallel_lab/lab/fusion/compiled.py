"""The Fusion Lab's networks, plans and cases, each made once for its settings.

setup, plans = Setup("chain", 4, "data_parallel", get_cluster("laptop")), Plans()
plans.plan(setup, "size", Settings(size_mb=4));  plans.case(setup).best_groups()
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from ...base.cluster import Cluster, Link
from ...graph.plan import Plan
from ..code.data import DATA
from ..code.program import Program, program_of
from .case import Case, Score, Settings, network_case, paper_case
from .subjects import GOLF, GOLF_LINE, SUBJECTS, Job, Subject

KEPT = 32  # plans


class Setup(NamedTuple):
    """What gradients and their times depend on; how they are fused is not among it.

    costs      of the cluster, with the line of one's own in it;  own_line: what a message costs, where that was set
    """

    subject_name: str
    devices: int
    parallel_mode: str
    costs: Cluster
    own_line: Link | None = None

    @property
    def subject(self) -> Subject:
        return SUBJECTS[self.subject_name]

    @property
    def on_paper(self) -> bool:
        """Whether it is the puzzle, without a network."""
        return self.subject.job is None


class Plans:
    """Networks, plans and cases by their settings. A branch of a lab has a copy."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._plans: dict[str, Plan] = {}
        self._cases: dict[Setup, Case] = {}
        self._scores: dict[Setup, Score] = {}
        self._programs: dict[tuple[str, int], Program] = {}

    def copy(self) -> Plans:
        """What is made in the copy is not in this one."""
        other = copy.copy(self)
        vars(other).update({name: dict(kept) for name, kept in vars(self).items()})
        return other

    def job(self, setup: Setup) -> Job:
        """The network of a subject that has one, with its data."""
        if setup.subject_name not in self._jobs:
            self._jobs = {setup.subject_name: setup.subject.job()}
        return self._jobs[setup.subject_name]

    def last_position(self, setup: Setup) -> int:
        """The largest that an index can name."""
        return len(GOLF if setup.on_paper else self.job(setup).net.trainable_params()) - 1

    def comm_fusion(self, setup: Setup, mode: str, settings: Settings) -> dict[str, Any]:
        """As `set_auto_parallel_context(comm_fusion=...)` takes it."""
        return settings.comm_fusion(mode, self.last_position(setup) + 1)

    def plan(self, setup: Setup, mode: str, settings: Settings) -> Plan:
        """The plan of a network; of a new one where it has ids, as a network keeps those of its parameters for good."""
        job = self._jobs.get(setup.subject_name)
        if mode == "ids" or (job is not None and any(p.comm_fusion_given for p in job.net.trainable_params())):
            self._jobs = {}
        how = {"devices": setup.devices, "parallel_mode": setup.parallel_mode}
        how |= {"comm_fusion": self.comm_fusion(setup, mode, settings)}
        how |= {"ids": settings.ids if mode == "ids" else None, "fusion_index": settings.wording}
        key = f"{setup.subject_name} {how}"
        if key not in self._plans:
            while len(self._plans) >= KEPT:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = self.job(setup).compile(**how)
        return self._plans[key]

    def case(self, setup: Setup, settings: Settings) -> Case:
        """The gradients, whatever messages they travel in."""
        if setup not in self._cases:
            if setup.on_paper:
                self._cases[setup] = paper_case(setup.own_line or GOLF_LINE)
            else:
                off, each = (self.plan(setup, mode, settings) for mode in ("off", "each"))
                self._cases[setup] = network_case(self.job(setup), off, each, setup.costs)
        return self._cases[setup]

    def score(self, setup: Setup, settings: Settings) -> Score:
        """Par, and the best threshold."""
        if setup not in self._scores:
            self._scores[setup] = self.case(setup, settings).score(setup.parallel_mode)
        return self._scores[setup]

    def whole_program(self, setup: Setup) -> Program:
        """The network on global shapes, its batch split: nothing in it depends on fusion."""
        key = setup.subject_name, setup.devices
        if key not in self._programs:
            job = self.job(setup)
            plan = job.compile(devices=setup.devices, parallel_mode="semi_auto_parallel", comm_fusion={})
            self._programs[key] = program_of(plan, job.optimizer, DATA[setup.subject.data], "")
        return self._programs[key]
