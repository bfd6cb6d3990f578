"""What an eager DTensor costs on real ranks: a product with its gather, next to the same two calls by hand.

    by hand    comm.all_gather(part of b); part of a @ all of b
    eager      a @ b, of DTensors split by rows

Both in turns on the same workers, medians of the slowest rank; and the Python of a small operator whose layouts are
known, in microseconds, on one rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from parallel_lab.base.hooks import set_world
from parallel_lab.base.system import cores
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import Shard
from parallel_lab.nn.tensor.dtensor import distribute_tensor
from parallel_lab.processes.shm import WorkerPool
from tests.bench.goals import Goal, goal_rows
from tests.bench.page import tables_text

SIZE, PAIRS, LIMIT, SMALL = 1024, 50, 1.3, 4


@dataclass(frozen=True)
class EagerCost:
    """Seconds of the product by hand and eager, on so many ranks; microseconds of a small operator."""

    ranks: int
    size: int
    by_hand_s: float
    eager_s: float
    small_us: float


def time_pairs(comm: Any, size: int, pairs: int) -> tuple[list[float], list[float], float]:
    """On a rank: seconds of each product by hand and of each eager one, in turns; of a small sum."""
    set_world(SimpleNamespace(rank=comm.rank, comm=comm))  # DTensors play this rank, over this communicator
    try:
        value = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
        mesh = DeviceMesh((comm.world_size,), ("tp",))
        a, b = (distribute_tensor(value, mesh, [Shard(0)]) for _ in range(2))
        mine, theirs = a.local(comm.rank), b.local(comm.rank)
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(pairs):
            for kept, call in zip(seconds, (lambda: mine @ comm.all_gather(theirs, dim=0), lambda: a @ b), strict=True):
                comm.barrier()
                begin = time.perf_counter()
                call()
                kept.append(time.perf_counter() - begin)
        small = distribute_tensor(value[:SMALL, :SMALL], DeviceMesh((comm.world_size,)), None)
        begin = time.perf_counter()
        for _ in range(1000):
            small + small
        return *seconds, (time.perf_counter() - begin) * 1e3
    finally:
        set_world(None)


def measure_dtensor(
    size: int = SIZE, pairs: int = PAIRS, *, tell: Callable[[str], object] = lambda text: None
) -> list[EagerCost]:
    """On 2, 4, ... ranks, up to the number of cores."""
    found = []
    for ranks in (1 << n for n in range(1, cores().bit_length()) if 1 << n <= cores()):
        tell(f"{ranks} ranks")
        with WorkerPool(ranks) as pool:
            of_ranks = pool.run(time_pairs, size, pairs)
        slowest = [median(max(times) for times in zip(*(r[i] for r in of_ranks), strict=True)) for i in (0, 1)]
        found.append(EagerCost(ranks, size, *slowest, min(r[2] for r in of_ranks)))
    return found


def dtensor_goals(found: list[EagerCost]) -> tuple[Goal, ...]:
    """Eager over by hand."""
    return tuple(
        Goal(f"{f.size} x {f.size} product, {f.ranks} ranks", "by hand", LIMIT, f.eager_s / f.by_hand_s) for f in found
    )


def dtensor_text(found: list[EagerCost]) -> str:
    """The table, the number of cores, the goals."""
    rows = [("ranks", "by hand", "eager", "a small operator")]
    rows += [
        (str(f.ranks), f"{1e3 * f.by_hand_s:.2f} ms", f"{1e3 * f.eager_s:.2f} ms", f"{f.small_us:.0f} us")
        for f in found
    ]
    return tables_text([(rows, 1), (goal_rows(dtensor_goals(found)), 2)], [f"{cores()} cores"])
