"""What it costs that every collective is checked: the descriptor that members compare, the flight record, the abort word.

The checks cannot be switched off, so they are timed where they stand alone: a barrier of a group of one does all that every call does before and
after the data (it finds the caller's line, looks at the abort word, checks the request and its descriptor, keeps the flight record) and has no data
and nobody to wait for; the reference answer to such a request (`communicator.answer`), timed by itself, is taken off. All ranks do it at the same
time, as in a collective, and share the cores there are. It holds the making of the request and the call too, so it is an upper limit.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..run.communicator import Request, answer
from .groups import timed

__all__ = ["CHECKED_BYTES", "CheckCost", "measure_checks"]

CHECKED_BYTES = 256 << 10
ALONE, WHOLE = 1000, 40  # calls in a batch


@dataclass(frozen=True)
class CheckCost:
    """Medians, in seconds, of what each rank of a pool does at the same time.

    call_s    one all_reduce of CHECKED_BYTES, into an array made before
    checks_s  one call without data and without others: what is left of it are checks, record and the call itself
    """

    call_s: float
    checks_s: float

    @property
    def share(self) -> float:
        """checks_s / call_s."""
        return self.checks_s / self.call_s


def measure_checks(pool: Any, rounds: int) -> CheckCost:
    """Both in turns, on all ranks of a pool. Raises what `pool.run` raises."""
    by_rank = pool.run(_time_checks, max(3, rounds))
    whole, alone, bare = (statistics.median(max(times) for times in zip(*rows, strict=True)) for rows in zip(*by_rank, strict=True))
    return CheckCost(whole, max(0.0, alone - bare))


def _time_checks(comm: Any, rounds: int) -> tuple[list[float], list[float], list[float]]:
    x, out = (np.zeros(CHECKED_BYTES // 4, np.float32) for _ in range(2))
    x.fill(0)
    alone = (comm.rank,)
    request = Request("barrier", alone, origin="bench")
    whole_s, alone_s, bare_s = [], [], []
    for number in range(rounds + 1):
        whole = timed(lambda: comm.all_reduce(x, out=out), WHOLE, comm.barrier)["seconds"]
        empty = timed(lambda: comm.barrier(group=alone), ALONE, comm.barrier)["seconds"]
        bare = timed(lambda: answer([request]), ALONE, comm.barrier)["seconds"]
        if number:  # the first is warm-up
            whole_s.append(whole)
            alone_s.append(empty)
            bare_s.append(bare)
    return whole_s, alone_s, bare_s
