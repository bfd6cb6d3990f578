"""Arrays in shared memory: each rank's heap, a part of the block that it alone gives out and all ranks can read.

    x = comm.empty((1000, 1000))        # 64-byte aligned, contents arbitrary
    comm.all_reduce(x, out=x)           # the other ranks read it where it lies: nothing is copied in

Memory is given out first-fit, from the lowest address on, and comes back when the array and all its views are gone. On
Linux the pages behind an address exist only once they were asked for (posix_fallocate): memory that the system does not
have is SharedMemoryTooSmall here, never a signal at the first write. A heap whose addresses are used up gives ordinary
arrays; a collective on those copies, and is as correct.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
import weakref
from bisect import bisect_left
from collections import deque

import numpy as np

from ...base.errors import SharedMemoryTooSmall
from .arena import Arena
from .shared_memory import SPARSE, reserve, round_up

ALIGN = 64  # one cache line, and the widest vector register
COMMIT_BYTES = 1 << 20  # pages are asked for in steps of this size: a system call each
KEPT_BYTES = 64 << 20  # more than this that lies free at the top is given back to the system


def address_of(array: np.ndarray) -> int:
    """Address of the first element."""
    return array.__array_interface__["data"][0]


class SharedArrays:
    """The heap of one rank; only its process gives out memory of it.  start, size_bytes: its place in the block."""

    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena, self._rank = arena, rank
        self.start, self.size_bytes = arena.heap(rank)
        base = address_of(np.frombuffer(arena.bytes, np.uint8, 1))
        self._base, self._low, self._high = base, base + self.start, base + self.start + self.size_bytes
        self._top = 0  # everything from here on is free
        self._committed = 0 if SPARSE else self.size_bytes  # pages up to here exist
        self._free_starts: list[int] = []  # free pieces below the top, ascending, never touching each other
        self._free_sizes: list[int] = []
        self._given = 0  # arrays given out and not come back
        self._one_thread = threading.RLock()  # two that look at once would be given the same place
        # a garbage collection can end an array at any moment, also in the middle of `empty`: places (start, size) wait
        # here until there is time for them
        self._returned: deque[tuple[int, int]] = deque()

    @property
    def in_use(self) -> bool:
        """Whether any array has been given out and not come back."""
        return self._given > 0

    @property
    def used_bytes(self) -> int:
        """Bytes given out and not come back, rounded up to the alignment."""
        with self._one_thread:
            self._take_back()
        return self._top - sum(self._free_sizes)

    @property
    def committed_bytes(self) -> int:
        """Bytes of memory this heap holds from the system."""
        return self._committed

    def empty(self, shape: int | tuple[int, ...], dtype="float32") -> np.ndarray:
        """A C-contiguous array, contents arbitrary; in ordinary memory if the heap is full. SharedMemoryTooSmall."""
        dtype = np.dtype(dtype)
        dims = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)
        size = math.prod(dims) * dtype.itemsize
        if size <= 0 or dtype.hasobject:
            return np.empty(shape, dtype)
        taken = round_up(size, ALIGN)
        with self._one_thread:
            start = self._take(taken)
            self._given += start is not None
        if start is None:
            return np.empty(shape, dtype)
        array = np.ndarray(dims, dtype, self._arena.bytes, self.start + start)
        weakref.finalize(array, self._returned.append, (start, taken)).atexit = False
        return array

    def position(self, array: np.ndarray) -> int:
        """Where a C-contiguous array lies, in bytes from the start of the block; -1 if not in this heap."""
        if not self._given:
            return -1
        address = array.__array_interface__["data"][0]
        return address - self._base if self._low <= address and address + array.nbytes <= self._high else -1

    def _take(self, size: int) -> int | None:
        if self._returned:
            self._take_back()
        for i, free in enumerate(self._free_sizes):
            if free >= size:
                start = self._free_starts[i]
                if free == size:
                    del self._free_starts[i], self._free_sizes[i]
                else:
                    self._free_starts[i], self._free_sizes[i] = start + size, free - size
                return start
        start = self._top
        if start + size > self.size_bytes:
            return None
        if start + size > self._committed:
            self._commit(start + size)
        self._top = start + size
        return start

    def _commit(self, end: int) -> None:
        end = min(round_up(end, COMMIT_BYTES), self.size_bytes)
        try:
            reserve(self._arena.block.fd, self.start + self._committed, end - self._committed)
        except OSError as error:
            more = f"the system has no {end - self._committed} bytes of shared memory more ({error.strerror})"
            where = f"rank {self._rank}: memory for an array that all ranks can read"
            hint = "Drop arrays that are not needed, or use fewer ranks; the container's memory limit also applies"
            what = f"{more}; this rank holds {self._committed}"
            raise SharedMemoryTooSmall(what, where=where, hint=hint) from error
        self._committed = end

    def _take_back(self) -> None:
        while self._returned:
            self._merge(*self._returned.popleft())
            self._given -= 1
        if self._free_starts and self._free_starts[-1] + self._free_sizes[-1] == self._top:
            self._top = self._free_starts.pop()
            self._free_sizes.pop()
            self._give_back(KEPT_BYTES)

    def _merge(self, start: int, size: int) -> None:
        starts, sizes = self._free_starts, self._free_sizes
        i = bisect_left(starts, start)
        if i < len(starts) and start + size == starts[i]:
            size += sizes[i]
            del starts[i], sizes[i]
        if i and starts[i - 1] + sizes[i - 1] == start:
            sizes[i - 1] += size
        else:
            starts.insert(i, start)
            sizes.insert(i, size)

    def trim(self) -> None:
        """Hand all free pages above the top back to the system."""
        with self._one_thread:
            self._take_back()
            self._give_back(0)

    def _give_back(self, kept_bytes: int) -> None:
        """Hand pages that lie more than `kept_bytes` above the top back to the system."""
        keep = round_up(self._top + kept_bytes, COMMIT_BYTES)
        if SPARSE and self._committed > keep:
            with contextlib.suppress(OSError):  # refused by a sandbox, unknown to a file system: the pages stay
                self._arena.block.map.madvise(mmap.MADV_REMOVE, self.start + keep, self._committed - keep)
            self._committed = keep
