"""Work of one operator spread over threads, where the matrix library itself uses several.

OpenBLAS cuts every single product among its threads; for the small products of a convolution (a tile of a few samples) that is slower than one
thread (measured: 12 ms against 7.7 ms, and several times that while other programs use a core), and the copies between the products do not gain at
all. Here each thread takes a part of the batch, with products in one thread each.

A rank has one BLAS thread (ranks do not fight over cores), so it runs everything in its own thread.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache

__all__ = ["THREAD_FLOPS", "batch_ranges", "spread_over_threads", "thread_count"]

# Starting a thread costs about 0.1 ms (measured): not for less than 3 ms of work.
THREAD_FLOPS = 200_000_000


@lru_cache(maxsize=1)
def _blas():
    import threadpoolctl

    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def thread_count() -> int:
    """Threads that the matrix library may use now; 1 if it is not known."""
    return max((library.num_threads or 1 for library in _blas().lib_controllers), default=1)


def batch_ranges(samples: int, tile: int, threads: int) -> list[range]:
    """The samples in contiguous ranges of whole tiles, at most one range per thread.

    >>> batch_ranges(10, 4, 2)
    [range(0, 4), range(4, 10)]
    """
    tiles = -(-samples // tile)
    threads = max(1, min(threads, tiles))
    borders = [tile * (tiles * t // threads) for t in range(threads)] + [samples]
    return [range(a, b) for a, b in itertools.pairwise(borders)]


def spread_over_threads(work: Callable[[int], None], parts: int) -> None:
    """Call work(0), ..., work(parts - 1), each in a thread of its own, with products in one thread each; returns when all are done.

    The first part runs in the calling thread. What a part raises is raised here, the first part's error first.
    """
    errors: dict[int, BaseException] = {}

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # handed to the caller below
            errors[number] = error

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(1, parts)]
    # also for one part: a product in several threads leaves the others spinning, on the cores that our threads want next
    with _blas().limit(limits=1) if thread_count() > 1 else nullcontext():
        for thread in threads:
            thread.start()
        try:
            work(0)
        finally:
            for thread in threads:
                thread.join()
    if errors:
        raise errors[min(errors)]
