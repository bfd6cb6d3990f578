"""Pools of workers: `@pytest.fixture(scope="module", params=BACKENDS)` gives both. On the build machine no skips."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from parallel_lab.processes import mpi
from parallel_lab.processes.mpi.pool import MpiPool
from parallel_lab.processes.shm import WorkerPool

MISSING = [
    name for name, there in (("mpirun", mpi.find_mpirun()), ("mpi4py", importlib.util.find_spec("mpi4py"))) if not there
]
NEEDS_MPI = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not found")
SHARED_MEMORY, MPI = pytest.param(WorkerPool, id="shared_memory"), pytest.param(MpiPool, id="mpi", marks=NEEDS_MPI)
BACKENDS = [SHARED_MEMORY, MPI]
# of what is quick over MPI elsewhere: ranks under mpirun take half a second of a processor each to start
RARELY_OVER_MPI = [SHARED_MEMORY, pytest.param(*MPI.values, id="mpi", marks=[NEEDS_MPI, pytest.mark.exhaustive])]

LENT: dict[int, MpiPool] = {}  # by number of ranks


@contextlib.contextmanager
def lent(make: Callable[..., Any], ranks: int) -> Iterator[Any]:
    """A pool for a file of tests, whose calls may take 20 s. Over MPI it is the same for all files that a process runs
    one after the other, unless it has died; the folder's conftest ends it.
    """
    if make is not MpiPool:
        with make(ranks, timeout_s=20) as pool:
            yield noted(pool)
        return
    if ranks not in LENT or not LENT[ranks].alive:
        LENT[ranks] = MpiPool(ranks, timeout_s=20)
    yield noted(LENT[ranks])


def pool_of(backends: Sequence[Any], ranks: int = 3) -> Any:
    """A file's fixture, `pool = pool_of(BACKENDS)`: a pool of each backend, kept through all faults that must not cost
    the workers.
    """

    @pytest.fixture(scope="module", params=backends)
    def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
        with lent(request.param, ranks) as pool:
            yield pool

    return pool


def end_lent() -> None:
    while LENT:
        LENT.popitem()[1].close()


def noted(pool: Any) -> Any:
    """The pool, with the processes it starts with noted for `assert_usable`."""
    pool.pids_at_start = pool.pids
    return pool


def assert_usable(pool: Any) -> None:
    """A pool still has the workers that it started with (`noted`), and they meet nothing that was left under way."""
    assert pool.pids == pool.pids_at_start

    def program(comm):
        handles = [comm.start("all_reduce", np.full(size, comm.rank + 1.0)) for size in (1, 50_000)]
        return [set(comm.all_reduce(np.ones(1))), *(set(handle.wait()) for handle in handles)]

    n = pool.world_size
    assert pool.run(program) == [[{n}, {n * (n + 1) / 2}, {n * (n + 1) / 2}]] * n
