"""The gradients of one training step, whatever messages they travel in: sizes, times, the numbers that MindSpore's
rules know them by, and par.

case = paper_case(GOLF_LINE)
case.best_groups()                                    # found by exact search: fusion golf, solved
case.groups("size", "data_parallel", Settings(size_mb=8))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...base.cluster import Cluster, Link
from ...base.settings.config import FUSION_THRESHOLD_MB
from ...base.settings.fusion_rules import Groups, index_groups, size_groups_by_bytes, size_groups_by_elements
from ...cost.overlap import Gradient, Overlap, Packing, all_reduce_line, best_grouping, best_threshold, predict_overlap
from ...cost.shared_cores import call_time_s, on_shared_cores
from ...graph.plan import Plan
from .lanes import Lanes, gradients_of, overlap_lanes, plan_lanes
from .subjects import GOLF, MB, Job

MODES = {
    "off": "nothing set: one by one, after backward",
    "each": "each alone, while backward goes on",
    "auto": f"auto: {FUSION_THRESHOLD_MB} MiB",
    "size": "size: a threshold in MiB",
    "index": "index: positions",
    "ids": "ids of the parameters",
}


@dataclass(frozen=True)
class Settings:
    """What the modes "size", "index" and "ids" are set to."""

    size_mb: int = 8
    indices: tuple[int, ...] = ()
    ids: Mapping[str, int] = field(default_factory=dict)
    wording: str = "inclusive"

    def comm_fusion(self, mode: str, count: int) -> dict[str, Any]:
        """As `set_auto_parallel_context(comm_fusion=...)` takes it, for `count` gradients; {} for "off" and "ids"."""
        config: dict[str, Any] = {"auto": None, "size": self.size_mb, "index": list(self.indices)}
        if mode == "each":
            first = int(self.wording == "first_n")
            return {"allreduce": {"mode": "index", "config": list(range(first, count - 1 + first)) or [first]}}
        return {"allreduce": {"mode": mode, "config": config[mode]}} if mode in config else {}


@dataclass(frozen=True)
class Score:
    """Fusion golf: the step's seconds, the best of every grouping, and of one size: (threshold in MB, seconds)."""

    step_s: float
    par_s: float
    best_size: tuple[int, float]

    @property
    def ratio(self) -> float:
        """Step to par: 1 is par."""
        return self.step_s / self.par_s


@dataclass(frozen=True)
class Case:
    """Gradients in the order of backward.

    positions   per gradient its number for mode "index", and for sizes in data_parallel
    layers      the number for sizes in the automatic modes: the first layer's is first
    itemsizes   bytes per element
    line        one message as a whole;  packing: what a bucket costs its rank
    rest_s      backward after the last gradient;  around_s: the step before backward, and after the last message is
                dealt with
    off, each   lanes without fusion, and with every gradient sent alone as soon as it is ready
    """

    gradients: tuple[Gradient, ...]
    positions: tuple[int, ...]
    layers: tuple[int, ...]
    itemsizes: tuple[int, ...]
    line: Link
    packing: Packing | None
    rest_s: float
    around_s: float
    off: Lanes
    each: Lanes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(g.name for g in self.gradients)

    def by_position(self, groups: Sequence[int]) -> Groups:
        """Group numbers in the order of the positions that index counts."""
        return tuple(group for _, group in sorted(zip(self.positions, groups, strict=True)))

    def groups(self, mode: str, parallel_mode: str, settings: Settings) -> Groups:
        """The message number of each gradient, by the rules. Raises ContextError for settings that a rule refuses."""
        count = len(self.gradients)
        if mode in ("off", "each"):
            return tuple(range(count))
        if mode == "ids":
            numbers = [settings.ids[name] for name in self.names]
            return tuple(number or -1 - place for place, number in enumerate(numbers))  # 0 travels alone
        if mode == "index":
            groups = index_groups(count, settings.indices, settings.wording)
            return tuple(groups[position] for position in self.positions)
        threshold_mb = FUSION_THRESHOLD_MB if mode == "auto" else settings.size_mb
        local = parallel_mode == "data_parallel"
        order = sorted(range(count), key=(self.positions if local else self.layers).__getitem__)
        sizes = [self.gradients[n].size_bytes for n in order]
        if local:
            groups = size_groups_by_bytes(sizes, threshold_mb)
        else:
            groups = size_groups_by_elements(
                [size // self.itemsizes[n] for size, n in zip(sizes, order, strict=True)], threshold_mb
            )
        by_place = dict(zip(order, groups, strict=True))
        return tuple(by_place[n] for n in range(count))

    def overlap(self, groups: Sequence[int], *, after_backward: bool = False) -> Overlap:
        """Backward and its messages for these groups."""
        return predict_overlap(
            self.gradients, groups, self.line, rest_s=self.rest_s, packing=self.packing, after_backward=after_backward
        )

    def best_groups(self) -> Groups:
        """The grouping with the shortest step."""
        return best_grouping(self.gradients, self.line, packing=self.packing, rest_s=self.rest_s)

    def score(self, parallel_mode: str) -> Score:
        """Par, and the best threshold; the step is that of par."""
        total_mb = -(-sum(g.size_bytes for g in self.gradients) // MB)
        thresholds = range(0 if parallel_mode == "data_parallel" else 1, total_mb + 2)

        def by_size(size_mb: int) -> Groups:
            return self.groups("size", parallel_mode, Settings(size_mb))

        size_mb, best = best_threshold(
            self.gradients, self.line, by_size, thresholds, packing=self.packing, rest_s=self.rest_s
        )
        par_s = self.around_s + self.overlap(self.best_groups()).step_s
        return Score(par_s, par_s, (size_mb, self.around_s + best.step_s))


def paper_case(line: Link) -> Case:
    """The puzzle "fusion golf" on a line: the rules number its gradients as they are listed, and packing is free."""
    count = len(GOLF)
    numbers, alone = tuple(range(count)), range(count)
    off = predict_overlap(GOLF, alone, line, after_backward=True)
    each = predict_overlap(GOLF, alone, line)
    return Case(GOLF, numbers, numbers, (4,) * count, line, None, 0.0, 0.0, overlap_lanes(off), overlap_lanes(each))


def network_case(job: Job, off: Plan, each: Plan, cluster: Cluster) -> Case:
    """The case of a network, from its plans without fusion and with every gradient alone."""
    lanes = {"off": plan_lanes(off, cluster), "each": plan_lanes(each, cluster)}
    gradients, rest_s = gradients_of(lanes["each"])
    sent = tuple(name for m in lanes["off"].messages for name in m.members)
    order = job.positions(sent, off.config.parallel_mode)
    layers = [i.name for i in off.parameters]
    itemsize = {i.name: np.dtype(i.dtype).itemsize for i in off.parameters}
    cluster = on_shared_cores(cluster, off.device_num)
    device, link = cluster.device, cluster.link_for(range(off.device_num))
    line = all_reduce_line(off.device_num, link, device.gamma_s_per_byte)
    line = replace(line, alpha_s=line.alpha_s + call_time_s(cluster))
    # a copy reads and writes; a view is an instruction of no bytes (`cost.time.local_time_s`)
    packing = Packing(Link(device.overhead_s, 2 / device.memory_bandwidth_bytes_per_s), unpack_s=device.overhead_s)
    alone = predict_overlap(gradients, range(len(gradients)), line, rest_s=rest_s)
    return Case(
        gradients,
        tuple(order.index(g.name) for g in gradients),
        tuple(layers.index(g.name) for g in gradients),
        tuple(itemsize[g.name] for g in gradients),
        line,
        packing,
        rest_s,
        lanes["each"].step_s - alone.step_s,
        lanes["off"],
        lanes["each"],
    )
