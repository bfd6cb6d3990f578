"""Work of one operator spread over threads, where the matrix library uses several; memory kept between steps.

OpenBLAS splits every single product among its threads; for the small products of a convolution (a tile of a few
samples) that is slower than one thread (measured: 12 ms against 7.7 ms, and several times that while other programs use
a core), and the copies between the products do not gain at all. Here each thread takes a part of the batch, with
products in one thread each.

A rank has one BLAS thread (ranks do not fight over cores), so it runs everything in its own thread.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

from ...base.system import IN_BROWSER, c_function

# Starting a thread costs about 0.1 ms (measured): not for less than 3 ms of work.
THREAD_FLOPS = 200_000_000
# OpenBLAS gives threads to products of more than 64^3 multiplications (interface/gemm.c); m k, k n, m n < 64^2 are less
THREADED_ELEMENTS = 4096


@lru_cache(maxsize=1)
def _blas():
    import threadpoolctl

    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def thread_count() -> int:
    """Threads that the matrix library may use now; 1 if it is not known."""
    return 1 if IN_BROWSER else max((library.num_threads or 1 for library in _blas().lib_controllers), default=1)


def one_blas_thread(*sizes: int) -> Any:
    """Inside, products run on one thread, as on a rank: the number of threads changes the bits of large ones.

    sizes  elements of all that is multiplied, and of the result: where all are small, one thread is what they get
    """
    small = bool(sizes) and max(sizes) < THREADED_ELEMENTS
    return nullcontext() if small or thread_count() == 1 else _blas().limit(limits=1)


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
    """Call work(0), ..., work(parts - 1), a thread each (0: this), products in one thread; raises the first error."""
    errors: dict[int, BaseException] = {}

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # handed to the caller below
            errors[number] = error

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(1, parts)]
    # also for one part: a product in several threads leaves the others spinning, on cores that ours want next
    with one_blas_thread():
        for thread in threads:
            thread.start()
        try:
            work(0)
        finally:
            for thread in threads:
                thread.join()
    if errors:
        raise errors[min(errors)]


# ---- keeping freed memory for the next step ----

# A training step makes and frees the same arrays again and again. glibc hands large ones back to the system each time,
# and the next step pays a page fault for every 4 KiB it touches: measured, a tenth of a convolutional net's step.
KEPT_BYTES = 64 << 20  # more than this that lies free at the end of the heap is still given back
LARGEST_BYTES = 32 << 20  # arrays from this size on get memory of their own (glibc's upper limit for it)
# mallopt(3): numbers of its parameters
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Keep up to 64 MiB of freed memory for arrays to come; whether that was possible (glibc only)."""
    mallopt = c_function("mallopt")
    options = ((M_MMAP_THRESHOLD, LARGEST_BYTES), (M_TRIM_THRESHOLD, KEPT_BYTES))
    return mallopt is not None and all(mallopt(parameter, size) for parameter, size in options)


def trim_memory() -> None:
    """Give all freed memory back to the system: nothing will need it soon (glibc only)."""
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)
