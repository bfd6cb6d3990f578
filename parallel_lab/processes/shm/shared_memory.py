"""The memory that parent and workers share, and the order in which writes to it are seen.

A block has a fixed part, which the arena's map divides (`arena.py`), and behind it the heaps of the ranks (`heap.py`).
The heaps are addresses only:
on Linux a page of them exists once its rank has asked the system for it, so they can be far larger than the memory.

The block has no name. On Linux it is a memfd, on other POSIX systems an unlinked temporary file, both handed to workers
as a descriptor; on Windows a mapping with a random tag, which vanishes with its last handle. So nothing can stay
behind, however processes end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import secrets
import sys
import tempfile
import threading

from multiprocess import reduction

from ...base.errors import SharedMemoryTooSmall

PAGE = 4096
SPARSE = hasattr(os, "memfd_create") and hasattr(os, "posix_fallocate")  # pages exist when they are asked for: Linux
# Bytes of all heaps together, the first that the system gives; 0: values are copied. Sparse ones cost addresses only (a
# process has 2**47).
HEAPS_BYTES = (1 << 38, 1 << 34, 1 << 30, 0) if SPARSE else (64 << 20, 0)

NEEDS_FENCE = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686")


def _make_fence(needed: bool):
    if not needed:
        return lambda: None
    lock = threading.Lock()
    lock.acquire()

    def ordered() -> None:
        lock.release()
        lock.acquire()

    return ordered


fence = _make_fence(NEEDS_FENCE)


def round_up(value: int, step: int) -> int:
    """The least multiple of `step` that is not below `value`."""
    return -(-value // step) * step


class SharedBlock:
    """`size_bytes` of zeroed memory that parent and workers see, and the heaps behind them; pickled while a process
    starts, it carries its descriptor along.

    heaps_start, heaps_bytes   where the heaps lie, and their size; 0 where the system gives no more than the fixed part

    Raises SharedMemoryTooSmall when the system refuses.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.heaps_start = round_up(size_bytes, PAGE)
        self.heaps_bytes = 0
        self.fd, self.tag = -1, ""
        try:
            if sys.platform == "win32":
                self._make_mapping()
                return
            if hasattr(os, "memfd_create"):
                self.fd = os.memfd_create("parallel_lab", os.MFD_CLOEXEC)
                os.ftruncate(self.fd, size_bytes)
            else:
                with tempfile.TemporaryFile(prefix="parallel_lab") as file:  # unlinked from the start
                    self.fd = os.dup(file.fileno())
                os.ftruncate(self.fd, size_bytes)
                if hasattr(os, "posix_fallocate"):  # a file on a full disk would be SIGBUS at the first write
                    os.posix_fallocate(self.fd, 0, size_bytes)
            for heaps_bytes in HEAPS_BYTES:
                if self._grow(heaps_bytes):
                    break
        except (OSError, ValueError, OverflowError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise SharedMemoryTooSmall(
                f"the system refused {size_bytes} bytes of shared memory ({error})",
                where="WorkerPool",
                hint="Give a smaller arena_bytes, or fewer ranks; `ulimit -f` and the container's memory limit "
                "also apply",
            ) from error

    def _make_mapping(self) -> None:
        """Windows: the page file gives fixed part and heaps, or the fixed part alone."""
        for heaps_bytes in HEAPS_BYTES:
            self.tag = f"parallel_lab-{secrets.token_hex(16)}"
            try:
                self.map = mmap.mmap(-1, self.heaps_start + heaps_bytes, tagname=self.tag)
            except OSError:
                if not heaps_bytes:
                    raise
                continue
            self.heaps_bytes = heaps_bytes
            return

    def _grow(self, heaps_bytes: int) -> bool:
        """Map the file with that much room for heaps. False if a limit forbids it; raises OSError if not even the fixed
        part can be mapped.
        """
        if not heaps_bytes:
            os.ftruncate(self.fd, self.size_bytes)
            self.map = mmap.mmap(self.fd, self.size_bytes)
            return True
        try:
            os.ftruncate(self.fd, self.heaps_start + heaps_bytes)
            if not SPARSE and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, self.heaps_start, heaps_bytes)
            self.map = mmap.mmap(self.fd, self.heaps_start + heaps_bytes)
        except (
            OSError,
            ValueError,
            OverflowError,
        ):  # ulimit -f, ulimit -v, a full disk: without heaps values are copied
            return False
        self.heaps_bytes = heaps_bytes
        self._leave_out_of_dumps()
        return True

    @classmethod
    def attached(cls, fd: int, size_bytes: int) -> SharedBlock:
        """The block behind a descriptor that another process made and handed over; this one owns the descriptor from
        now on.
        """
        block = cls.__new__(cls)
        block.size_bytes, block.heaps_start, block.tag, block.fd = size_bytes, round_up(size_bytes, PAGE), "", fd
        block._map_descriptor()
        return block

    def __getstate__(self) -> dict:
        handle = None if self.tag else reduction.DupFd(self.fd)
        return {"size_bytes": self.size_bytes, "heaps_bytes": self.heaps_bytes, "tag": self.tag, "handle": handle}

    def __setstate__(self, state: dict) -> None:
        self.size_bytes, self.tag, self.fd = state["size_bytes"], state["tag"], -1
        self.heaps_start, self.heaps_bytes = round_up(self.size_bytes, PAGE), state["heaps_bytes"]
        if self.tag:
            self.map = mmap.mmap(-1, self.heaps_start + self.heaps_bytes, tagname=self.tag)
        else:
            self.fd = state["handle"].detach()
            self._map_descriptor()

    def _map_descriptor(self) -> None:
        """Map all of the file; what lies behind the fixed part are the heaps."""
        whole = os.fstat(self.fd).st_size
        self.heaps_bytes = max(0, whole - self.heaps_start)
        self.map = mmap.mmap(self.fd, whole)
        self._leave_out_of_dumps()

    def _leave_out_of_dumps(self) -> None:
        """A core dump of a crashed rank would otherwise look at every page there could be."""
        if SPARSE and self.heaps_bytes and hasattr(mmap, "MADV_DONTDUMP"):
            with contextlib.suppress(OSError):  # a sandbox that does not know the call: dumps are slow there
                self.map.madvise(mmap.MADV_DONTDUMP, self.heaps_start, self.heaps_bytes)

    def close(self) -> None:
        """Give the memory back. Views of it that still live keep the mapping, not the descriptor."""
        with contextlib.suppress(
            BufferError
        ):  # an array still looks at it; the system frees the pages with the last view
            self.map.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
