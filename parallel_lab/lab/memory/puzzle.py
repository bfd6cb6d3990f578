"""The puzzle "largest model under the cap": how wide may the stack be, so that no rank ever holds more than the
capacity?

    find_par(Settings(devices=8, optimizer="Adam"), capacity_bytes=4 * 2**20)
    # Par(width=..., settings=Settings(level="level3", ...), ...)

The score is the number of parameters; it counts if the fullest rank stays under the line. Par is found by search: every
level, shard size and way to accumulate, each with the widest stack that fits, by halving the interval (wider stacks
never take less). Optimizer, devices and capacity are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from ...base.errors import ParallelLabError
from .count import Count, predicted_ranks
from .subjects import ACCUMULATIONS, LEVELS, WIDTHS, Job, Settings, get_subject


@dataclass(frozen=True)
class Par:
    """The largest model under the cap: settings, its score, predicted bytes of the fullest rank, plans tried so far."""

    width: int
    settings: Settings
    parameters: int
    peak_bytes: int
    tried: int


@dataclass(frozen=True)
class Score:
    """The learner's model: its parameters, whether each rank's peak (counted or predicted: `source`) fits; the par."""

    parameters: int
    fits: bool
    peak_bytes: int
    source: str
    par: Par | None = None

    @property
    def ratio(self) -> float | None:
        """Score to par: 1 is par. None before par is known, and for a model that does not fit."""
        return self.parameters / self.par.parameters if self.par is not None and self.fits else None


def choices(given: Settings) -> Iterator[Settings]:
    """Every way to compile for these devices with this optimizer, without settings that change nothing."""
    sizes = [s for s in (-1, 2, 4) if s < given.devices]
    free = replace(given, threshold_kb=0)
    for mode, levels in LEVELS.items():
        for level, parts in product(levels, ACCUMULATIONS):
            for size in sizes if level.startswith("level") else (-1,):
                shards = (True, False) if level == "level1" and parts > 1 else (True,)
                for shard in shards:
                    how = {"accumulation": parts, "shard_size": size, "accumulation_shard": shard}
                    yield replace(free, parallel_mode=mode, level=level, **how)


def find_par(
    given: Settings,
    capacity_bytes: int,
    stopped: Callable[[], bool] = lambda: False,
    count: Callable[[float, float], None] = lambda done, total: None,
) -> Par | None:
    """The widest stack that fits, of `given` devices and optimizer, over `choices`; None: none fits, or `stopped()`.

    count   takes how many of them were looked at, and how many there are
    """
    stack = get_subject("stack").job
    jobs: dict[int, Job] = {}
    best: Par | None = None
    tried = 0
    listed = tuple(choices(given))
    for done, settings in enumerate(listed):
        count(done, len(listed))

        def peak(width: int, settings: Settings = settings) -> int:
            nonlocal tried
            if width not in jobs:
                jobs[width] = stack(width)
            tried += 1
            return fullest(predicted_ranks(jobs[width].compile(settings))).peak_bytes

        if stopped():
            return None
        low = -1 if best is None else WIDTHS.index(best.width)
        try:
            if low + 1 == len(WIDTHS) or peak(WIDTHS[low + 1]) > capacity_bytes:
                continue  # no better than what was found
        except ParallelLabError:
            continue  # settings that do not go together
        low, high = low + 1, len(WIDTHS)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if peak(WIDTHS[middle]) <= capacity_bytes else (low, middle)
        width = WIDTHS[low]
        best = Par(width, settings, jobs[width].parameter_count, peak(width), tried)
    return None if best is None else replace(best, tried=tried)


def fullest(counts: tuple[Count, ...]) -> Count:
    """The rank that holds most at its peak; the first of several."""
    return max(counts, key=lambda c: c.peak_bytes)
