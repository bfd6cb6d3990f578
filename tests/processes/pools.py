"""Pools of real workers as backends: `@pytest.fixture(scope="module", params=BACKENDS)` gives a test both.

On the build machine a skip is a failure (tests/conftest.py).
"""

from __future__ import annotations

import importlib.util
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
BACKENDS = [pytest.param(WorkerPool, id="shared_memory"), pytest.param(MpiPool, id="mpi", marks=NEEDS_MPI)]


def assert_usable(pool: Any) -> None:
    """A pool still has the workers that it started with (`pids_at_start`, noted by its fixture), and they work."""
    assert pool.pids == pool.pids_at_start
    assert pool.run(lambda comm: comm.all_reduce(np.ones(1))[0]) == [float(pool.world_size)] * pool.world_size
