"""Ranks of a test as threads with one barrier: for tests about files, not about processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def run_ranks(world_size: int, body: Callable[[int, Callable[[], Any]], Any]) -> list[Any]:
    """[body(rank, barrier)] of all ranks, within 30 s. What a rank raises is raised here, once all have ended."""
    barrier, results, errors = threading.Barrier(world_size, timeout=30), [None] * world_size, []

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank, barrier.wait)
        except threading.BrokenBarrierError:
            return  # another rank has failed
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
