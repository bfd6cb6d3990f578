"""Keeping freed memory for the next step.

A training step makes and frees the same arrays again and again. glibc hands large ones back to the system each time, and the next step pays a page
fault for every 4 KiB it touches: measured, a tenth of a convolutional net's step.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

__all__ = ["keep_freed_memory"]

KEPT_BYTES = 64 << 20  # more than this that lies free at the end of the heap is still given back
LARGEST_BYTES = 32 << 20  # arrays from this size on get memory of their own (glibc's upper limit for it)
# mallopt(3): numbers of its parameters
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Let this process keep up to 64 MiB of freed memory for arrays to come. Whether that was possible: glibc only. Called again, does nothing."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
