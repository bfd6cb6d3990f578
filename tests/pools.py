"""Pools of workers that the tests of a folder share: one of each size, started when a test first asks for it.

A test may leave no process behind (`conftest.py`); these are known there, and end behind the last test of the folder.
A pool that a test breaks on purpose is not one of these.
"""

from __future__ import annotations

from parallel_lab.processes.shm import WorkerPool

LIMIT_S, WARN_S = 120.0, 50.0  # of a collective: one rank may compile, on a busy machine, while the others wait
_pools: dict[int, WorkerPool] = {}  # by number of ranks


def shared_pool(ranks: int) -> WorkerPool:
    """The pool of this size."""
    if ranks not in _pools or not _pools[ranks].alive:
        _pools[ranks] = WorkerPool(ranks, timeout_s=LIMIT_S, warn_after_s=WARN_S)
    return _pools[ranks]


class SharedPools:
    """`pools[n]` is the shared pool of n ranks."""

    def __getitem__(self, ranks: int) -> WorkerPool:
        return shared_pool(ranks)


def shared_workers() -> set[int]:
    """The processes of all shared pools."""
    return {pid for pool in _pools.values() for pid in pool.pids}


def end_shared_pools() -> None:
    while _pools:
        _pools.popitem()[1].close()
