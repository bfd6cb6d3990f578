"""Alpa's numbers next to ours: its costs of collectives, its latency of a pipeline, its choice of stages and
sub-meshes.

    found = choose_stages(time_s, layers=8, devices=4, micro_batches=16)       time_s(first, last, devices)
    found.stages          ((0, 4, 2), (4, 8, 2)): layers 0 to 3 on two devices, 4 to 7 on two
    found.latency_s       sum of the stages' times, and (micro-batches - 1) times the slowest

All devices are spent, each stage on a sub-mesh of one of the sizes. For every time that the slowest stage may take, a
dynamic program over layers and devices finds the least sum; the least of all is the optimum of this latency. (Zheng et
al. 2022, sections 4.2 and 5.2, algorithm 1.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...base.checks import checked, choice, integer, number, sequence_of
from ...base.errors import ArgumentError
from ...base.units import time_text

_COUNT = integer(1)

_ALPA = {"all_gather": (1.0, 0.1), "all_reduce": (2.0, 0.01), "reduce_scatter": (1.0, 0.001)}


@checked(kind=choice(*_ALPA, "all_to_all"), size_bytes=number(0), group_size=_COUNT, alpha=number(0), beta=number(0))
def alpa_cost(kind: str, size_bytes: float, group_size: int, alpha: float = 1.0, beta: float = 1.0) -> float:
    """Alpa's cost of a collective on a value of `size_bytes` (the whole one): no seconds, a number to compare.

    alpha + beta * (n - 1) / n * S (twice that for all_reduce), cut to a whole number, and a little that tells the kinds
    apart; all_to_all alpha + beta * (n - 1) / n^2 * S * 1.5. Zheng et al. 2022, their device mesh's cost functions.

    >>> alpa_cost("all_reduce", 128 * 128 * 4, 4)
    98305.01
    """
    share = (group_size - 1) / group_size * size_bytes
    if kind == "all_to_all":
        return alpha + beta * share / group_size * 1.5
    times, mark = _ALPA[kind]
    return int(alpha + beta * times * share) + mark


@checked(micro_batches=_COUNT)
def alpa_pipeline_s(times_s: Sequence[float], micro_batches: int) -> float:
    """Alpa's latency of a pipeline: sum of the stages' times and (micro-batches - 1) times the slowest.

    Exact for GPipe; for 1F1B with uneven stages at least as long as the clock (`cost/schedules/clock.py`).

    >>> alpa_pipeline_s((4, 4, 4, 4), 8)
    44.0
    """
    if not times_s or any(not t >= 0 for t in times_s):
        raise ArgumentError(f"times_s={times_s!r}", where="alpa_pipeline_s", allowed="A time of at least 0 per stage")
    return math.fsum(times_s) + (micro_batches - 1) * max(times_s)


@dataclass(frozen=True)
class StageChoice:
    """Stages of a pipeline, each with devices of its own.

    stages      (first layer, layer behind the last, devices) of each, in order
    times_s     seconds of a micro-batch on each, forward and backward
    """

    stages: tuple[tuple[int, int, int], ...]
    times_s: tuple[float, ...]
    micro_batches: int

    @property
    def latency_s(self) -> float:
        """Seconds of a step, as Alpa counts them: exact for GPipe, an upper bound for 1F1B."""
        return alpa_pipeline_s(self.times_s, self.micro_batches)

    def text(self) -> str:
        """A line per stage."""
        lines = [
            f"{len(self.stages)} stages, {self.micro_batches} micro-batches: {time_text(self.latency_s)} predicted"
        ]
        for (first, last, devices), time_s in zip(self.stages, self.times_s, strict=True):
            lines.append(f"  layers {first} to {last - 1} on {devices} devices: {time_text(time_s)}")
        return "\n".join(lines)


@checked(layers=_COUNT, devices=_COUNT, micro_batches=_COUNT)
@checked(submeshes=sequence_of(integer(1), "Whole numbers of at least 1 in a list or tuple", empty=True))
def choose_stages(
    time_s: Callable[[int, int, int], float],
    layers: int,
    devices: int,
    micro_batches: int,
    *,
    submeshes: Sequence[int] = (),
    memory_bytes: Callable[[int, int, int, int], float] | None = None,
    memory_limit: float | None = None,
) -> StageChoice:
    """The stages of least latency: where a chain of layers is cut, and how many devices each part gets.

    time_s        seconds of a micro-batch of layers first to last - 1 on so many devices; inf: cannot be
    submeshes     sizes that a stage may have; (): the powers of two up to `devices`
    memory_bytes  of a device: (first, last, devices, micro-batches on their way); in 1F1B as many as stages are left

    Raises ArgumentError where no stages fit.
    """
    sizes = tuple(sorted(set(submeshes))) or tuple(1 << n for n in range(devices.bit_length()) if 1 << n <= devices)
    spans = [(first, last) for first in range(layers) for last in range(first + 1, layers + 1)]
    times = {(*span, n): time_s(*span, n) for span, n in itertools.product(spans, sizes) if n <= devices}

    def best(slowest_s: float) -> tuple[float, tuple[tuple[int, int, int], ...]]:
        """(least sum, stages) with no stage slower than that."""

        @cache
        def rest(first: int, left: int, stages: int) -> tuple[float, tuple[Any, ...]]:
            """The least sum for layers `first` and later, on exactly `left` devices, in exactly so many stages."""
            if stages == 0:
                return (0.0, ()) if first == layers and left == 0 else (math.inf, ())
            least_rest: tuple[float, tuple[Any, ...]] = math.inf, ()
            for last, n in itertools.product(range(first + 1, layers - stages + 2), sizes):
                if n > left or times[first, last, n] > slowest_s:
                    continue
                if memory_bytes is not None and memory_limit is not None:
                    on_the_way = min(stages, micro_batches)
                    if memory_bytes(first, last, n, on_the_way) > memory_limit:
                        continue
                behind, others = rest(last, left - n, stages - 1)
                if times[first, last, n] + behind < least_rest[0]:
                    least_rest = times[first, last, n] + behind, ((first, last, n), *others)
            return least_rest

        return min((rest(0, devices, stages) for stages in range(1, min(layers, devices) + 1)), key=lambda one: one[0])

    least, chosen = math.inf, ()
    for slowest_s in sorted({t for t in times.values() if math.isfinite(t)}):
        if (micro_batches - 1) * slowest_s + slowest_s >= least:
            break  # the sum is at least the slowest
        total, stages = best(slowest_s)
        latency = total + (micro_batches - 1) * max((times[stage] for stage in stages), default=math.inf)
        if latency < least:
            least, chosen = latency, stages
    if not chosen:
        what = f"no stages of {layers} layers fit on {devices} devices"
        hint = "Stages have sub-meshes of these sizes, and all devices are used: " + ", ".join(map(str, sizes))
        raise ArgumentError(what, where="choose_stages", allowed="Stages whose times and bytes are finite", hint=hint)
    return StageChoice(chosen, tuple(times[stage] for stage in chosen), micro_batches)
