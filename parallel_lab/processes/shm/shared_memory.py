"""The memory that parent and workers share, and the order in which writes to it are seen.

A block has a fixed part, which the arena's map divides (`arena.py`), and behind it the heaps of the ranks
(`arrays.py`). The heaps are addresses only: a page of them exists once its rank has asked the system for it, so they
can be far larger than the memory.

The block has no name, so nothing can stay behind, however processes end: it is a memfd, or, where there is no such call
(Macs, conda's Python), an unlinked temporary file, handed to workers as a descriptor. Only where a running process can
be given no descriptor does memory that it is to see have a name, in the user's own folder.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from multiprocess import connection, reduction

from ...base.errors import SharedMemoryTooSmall
from ...base.system import REFUSED, SYSTEM
from ..own_folder import OwnFolder

PAGE = 4096
SPARSE = SYSTEM.memory_files  # pages exist when they are asked for
# Bytes of all heaps together, the first that the system gives; 0: values are copied. Sparse ones cost addresses only (a
# process has 2**47).
HEAPS_BYTES = (1 << 38, 1 << 34, 1 << 30, 0) if SPARSE else (64 << 20, 0)

NEEDS_FENCE = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686")


_ZEROS = bytes(1 << 20)


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


def _nameless_file() -> int:
    """The descriptor of a file that goes with its last descriptor and mapping."""
    if SYSTEM.memory_files:
        try:
            return os.memfd_create("parallel_lab", os.MFD_CLOEXEC)
        except OSError as error:
            if error.errno not in REFUSED:
                raise
    with tempfile.TemporaryFile(prefix="parallel_lab") as file:  # unlinked from the start
        return os.dup(file.fileno())


def _mend(error: Exception, hint: str) -> str:
    """What to try: `hint`, which is about size, except where no size would be small enough."""
    if getattr(error, "errno", None) not in (*REFUSED, errno.ENOENT, errno.EROFS):
        return hint
    return "Allow memfd_create in the sandbox's profile, or set TMPDIR to a folder where files can be made"


def _file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def reserve(fd: int, start: int, size: int) -> None:
    """Let `size` zeroed bytes of a file from `start` on surely be there: on a full disk the first write to one that is
    not would end the process. Raises OSError.
    """
    if SYSTEM.reserved_files:
        try:
            os.posix_fallocate(fd, start, size)
            return
        except OSError as error:
            if error.errno not in REFUSED:
                raise
    while size > 0:
        written = os.pwrite(fd, _ZEROS[:size], start)  # ranks share one position of the file
        start, size = start + written, size - written


class Parcel:
    """`size` bytes that are written once, by the code that fills `memory`, and read by many processes where they lie:
    `send` hands them over, `received` maps them there. Raises SharedMemoryTooSmall.

    folder   gives the folder for its file, where a descriptor cannot be handed over: it must live until all receivers
             have it, which is when they have done what it is for
    """

    def __init__(self, size: int, folder: Callable[[], OwnFolder]) -> None:
        self._path = None if SYSTEM.sent_descriptors else folder().path / secrets.token_hex(6)
        self._fd = _nameless_file() if self._path is None else _file(self._path)
        try:
            reserve(self._fd, 0, size)
            self.memory = mmap.mmap(self._fd, size)
        except OSError as error:
            self._forget()
            what = f"the system refused {size} bytes of shared memory for values that a job gives its ranks ({error})"
            hint = _mend(error, "Hand over less at a time; the container's memory limit also applies")
            raise SharedMemoryTooSmall(what, where="WorkerPool", hint=hint) from error

    def _forget(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # not made, or forgotten before
            fd, self._fd = self._fd, -1
            os.close(fd)
        if self._path is not None:
            with contextlib.suppress(OSError):  # with its folder
                self._path.unlink(missing_ok=True)

    __del__ = _forget

    def send(self, pipe: connection.Connection) -> None:
        """Hand it over to the process at the other end, whose id does not matter."""
        if self._path is None:
            send_descriptor(pipe, self._fd)
        else:
            pipe.send_bytes(os.fsencode(self._path))

    @staticmethod
    def received(pipe: connection.Connection, folder: str) -> mmap.mmap:
        """The memory of one that was sent; what this process writes there stays its own.  folder: "" if it has none"""
        if not folder:
            fd = received_descriptor(pipe)
        else:
            fd = os.open(os.fsdecode(pipe.recv_bytes()), os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE)
        finally:
            os.close(fd)


def send_descriptor(pipe: connection.Connection, fd: int) -> None:
    """Hand a file over to the process at the other end. From Python 3.14 on, multiprocess would read an answer from the
    pipe, where the other end may just be saying something else.
    """
    with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        socket.send_fds(end, [b"."], [fd])


def received_descriptor(pipe: connection.Connection) -> int:
    """The file that `send_descriptor` hands over. Raises EOFError where the other end is gone."""
    with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        found = socket.recv_fds(end, 1, 1)[1]
    if not found:
        raise EOFError
    return found[0]


class SharedBlock:
    """`size_bytes` of zeroed memory that parent and workers see, the heaps behind (`heaps_start`, `heaps_bytes`: 0
    where the system gives no more); pickled while a process starts, with its descriptor. `path`: of a file that others
    open (`opened`), None: it has no name. Raises SharedMemoryTooSmall.
    """

    def __init__(self, size_bytes: int, path: Path | None = None) -> None:
        self.fd = -1
        try:
            self.fd = _nameless_file() if path is None else _file(path)
            for heaps_bytes in HEAPS_BYTES:
                try:
                    self._make(size_bytes, heaps_bytes)
                    break
                except (OSError, ValueError, OverflowError):  # ulimit -f, ulimit -v, a full disk
                    if not heaps_bytes:
                        raise
        except (OSError, ValueError, OverflowError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            what = f"the system refused {size_bytes} bytes of shared memory ({error})"
            limits = "`ulimit -f` and the container's memory limit also apply"
            hint = _mend(error, f"Give a smaller arena_bytes, or fewer ranks; {limits}")
            raise SharedMemoryTooSmall(what, where="WorkerPool", hint=hint) from error

    def _make(self, size_bytes: int, heaps_bytes: int) -> None:
        whole = round_up(size_bytes, PAGE) + heaps_bytes if heaps_bytes else size_bytes
        os.ftruncate(self.fd, whole)
        if not SPARSE:  # a file on a full disk would be SIGBUS at the first write
            reserve(self.fd, 0, whole)
        self._map(self.fd, size_bytes)

    def _map(self, fd: int, size_bytes: int) -> None:
        """Map the file behind a descriptor; what lies behind the fixed part are the heaps."""
        whole = os.fstat(fd).st_size
        self.fd, self.size_bytes, self.heaps_start = fd, size_bytes, round_up(size_bytes, PAGE)
        self.heaps_bytes = max(0, whole - self.heaps_start)
        self.map = mmap.mmap(fd, whole)
        if SPARSE and self.heaps_bytes and hasattr(mmap, "MADV_DONTDUMP"):
            # a core dump of a crashed rank would otherwise look at every page there could be
            with contextlib.suppress(OSError):  # a sandbox that does not know the call: dumps are slow there
                self.map.madvise(mmap.MADV_DONTDUMP, self.heaps_start, self.heaps_bytes)

    @classmethod
    def attached(cls, fd: int, size_bytes: int) -> SharedBlock:
        """The block behind a descriptor that another process handed over, which belongs to this one from now on."""
        block = cls.__new__(cls)
        block._map(fd, size_bytes)
        return block

    def __getstate__(self) -> tuple:
        return reduction.DupFd(self.fd), self.size_bytes

    def __setstate__(self, state: tuple) -> None:
        self._map(state[0].detach(), state[1])

    def close(self) -> None:
        """Give the memory back. Views of it that still live keep the mapping, not the descriptor."""
        with contextlib.suppress(BufferError):  # an array still looks at it; its pages go with the last view
            self.map.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
