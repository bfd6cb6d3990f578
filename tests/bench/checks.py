"""The cost of checking every collective: descriptors compared by members, flight record, abort word.
Timed where it stands alone: a barrier of a group of one does all that a call does before and after the data, with
no data and nobody to wait for. All ranks do it at once; the call itself is included: an upper limit.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.bench.groups import timed

CHECKED_BYTES = 256 << 10
ALONE, WHOLE = 1000, 40  # calls in a batch


@dataclass(frozen=True)
class CheckCost:
    """Medians over ranks, s: `call_s` of an all_reduce of CHECKED_BYTES, `checks_s` of a call without data or peers."""

    call_s: float
    checks_s: float

    @property
    def share(self) -> float:
        """checks_s / call_s."""
        return self.checks_s / self.call_s


def measure_checks(pool: Any, rounds: int) -> CheckCost:
    """Both in turns, on all ranks of a pool. Raises what `pool.run` raises."""
    by_rank = pool.run(_time_checks, max(3, rounds))
    whole, alone = (
        statistics.median(max(times) for times in zip(*rows, strict=True)) for rows in zip(*by_rank, strict=True)
    )
    return CheckCost(whole, alone)


def _time_checks(comm: Any, rounds: int) -> tuple[list[float], list[float]]:
    x, out = (np.zeros(CHECKED_BYTES // 4, np.float32) for _ in range(2))
    x.fill(0)
    alone = (comm.rank,)
    whole_s, alone_s = [], []
    for number in range(rounds + 1):
        whole = timed(lambda: comm.all_reduce(x, out=out), WHOLE, comm.barrier)["seconds"]
        empty = timed(lambda: comm.barrier(group=alone), ALONE, comm.barrier)["seconds"]
        if number:  # the first is warm-up
            whole_s.append(whole)
            alone_s.append(empty)
    return whole_s, alone_s
