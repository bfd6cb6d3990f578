"""Large values in the ranks' own memory, read where they lie: one copy, from process to process, and no buffer (Linux:
process_vm_readv).

    tell where my value lies | meet | read what I need of everybody's | meet

The barriers are those of values in heaps, which every rank can read anyway. A place from PEER on is an address in its
rank's own memory.

Messages go the same way (`placed.py`), while the sender waits.

The system may forbid it: a sandbox, or a rule that only a debugger may read another process. So before the first large
value of a group its members try it on each other, and go this way only when all of them could; a receiver tries it on
the sender. Where the rule is Yama's (Ubuntu's), each rank lets the family of its parent read it, which are the ranks
of this run (PR_SET_PTRACER, Linux Documentation/admin-guide/LSM/Yama.rst).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from array import array

import numpy as np

from ....base.errors import message
from ....base.system import SYSTEM, c_function, prctl
from ....run.communicator import Request
from ..arena import ABORT, PID, TOKEN, Arena
from ..arrays import address_of
from ..barrier import WaitLoop
from ..collectives import Program
from ..groups import Check, Group
from ..slices import blocks, copy_in, positive_dim

PEER = 1 << 56  # places in the block are far below, addresses too: a process has 2**47
# of a value; below, the buffers stay in the cache
PEER_FROM_BYTES = dict.fromkeys(("all_reduce", "reduce_scatter", "all_to_all"), 16 << 20)
# of what lies in a piece one after the other; shorter runs take the system longer to find than to copy
RUN_BYTES = 4096
# read at a time where it is worked on: it stays in the second-level cache, and the call to the system counts little
BLOCK_BYTES = 512 * 1024
MOST_RUNS = 1024  # in one call to the system (UIO_MAXIOV)
LARGEST_READ = 16 << 20  # in one call, which nothing interrupts: a run that has been stopped is to end at once
NEWS_S = 5.0  # after which the death of a rank has surely been told
PR_SET_PTRACER = 0x59616D61


class PeerMemory:
    """Reading what other ranks have in their own memory. One per rank."""

    def __init__(self, arena: Arena, loop: WaitLoop) -> None:
        self.arena, self.loop, self.rank = arena, loop, loop.rank
        self._call = _system_call()
        self._runs = np.empty((MOST_RUNS, 2), np.uint64)  # address and bytes of each run there
        self._numbers = np.arange(MOST_RUNS, dtype=np.uint64)
        self._here, self._there = memoryview(array("Q", [0, 0])), memoryview(self._runs.reshape(-1))
        self._here_at, self._there_at = address_of(np.asarray(self._here)), address_of(self._runs)
        self._blocks: list[np.ndarray] = []  # two: adding reads the next one while it holds the one before
        self._token, self._found = np.array([_token(os.getpid(), self.rank)], np.uint64), np.empty(1, np.uint64)
        self._readable: dict[int, bool] = {}

    def begin_run(self) -> None:
        """Let the others find this rank's token."""
        if self._call is not None:
            self.arena.words[self.arena.map.slot(self.rank) + TOKEN] = address_of(self._token)

    def reads(self, rank: int) -> bool:
        """Whether this rank can read what `rank` has in its memory; not yet, while that has not begun the run."""
        found = self._readable.get(rank)
        if found is None and self._call is not None:
            address = self.arena.words[self.arena.map.slot(rank) + TOKEN]
            if address:
                found = self._readable[rank] = self._finds_token(rank, address)
        return bool(found)

    def _finds_token(self, rank: int, address: int) -> bool:
        pid = self.pid(rank)
        found = self.read(pid, address, 8, 1, 8, address_of(self._found))
        return found and int(self._found[0]) == _token(pid, rank)

    def wanted(self, group: Group, request: Request) -> bool:
        """Whether a request is to go this way. All members find the same: their kinds, shapes and dtypes are equal."""
        value = request.value
        if group.started or value.nbytes < PEER_FROM_BYTES.get(request.kind, sys.maxsize):
            return False
        if value.itemsize > BLOCK_BYTES or not value.dtype.isnative:  # results are native: read as what values are
            return False
        if request.kind == "all_reduce":
            return True
        dim = positive_dim(request.split_dim if request.kind == "all_to_all" else request.dim, value.ndim, request.kind)
        run = value.nbytes
        for size in value.shape[:dim]:
            run //= size
        return run // group.n >= RUN_BYTES

    def try_out(self, group: Group, check: Check) -> Program:
        """Find out, together, whether all members can read each other: `group.reads_far`."""
        yield from group.meet(check, -1 if self._call is None else self.place(self._token))
        addresses = [place - PEER for place in group.places()[0]]
        can_read = self._call is not None and min(addresses) >= 0
        can_read = can_read and all(map(self._finds_token, group.members, addresses))
        yield from group.meet(check, int(can_read))
        group.reads_far = min(group.places()[0]) > 0

    def place(self, mine: np.ndarray) -> int:
        """Where an array of this rank's own memory lies."""
        return PEER + address_of(mine)

    def piece(
        self, group: Group, member: int, place: int, dtype: np.dtype, shape: tuple[int, int], stride: int, start: int
    ) -> PeerPiece:
        """A (rows, run) part of a member's array from element `start` on, its rows `stride` elements apart."""
        if not self._blocks:
            self._blocks = [np.empty(BLOCK_BYTES, np.uint8) for _ in range(2)]
        address, stride_bytes = place - PEER + start * dtype.itemsize, stride * dtype.itemsize
        return PeerPiece(self, group.members[member], address, dtype, shape, stride_bytes, self._blocks[member & 1])

    def read(self, pid: int, address: int, stride: int, rows: int, run: int, at: int) -> bool:
        """Copy `rows` runs of `run` bytes, `stride` bytes apart from `address` of a process on, to `at`, one after the
        other. False where the system refuses, or the process has ended: `ctypes.get_errno()` tells. Raises when the run
        has been stopped.
        """
        self.loop.check_abort()
        if rows == 1 and run <= LARGEST_READ:
            self._there[0], self._there[1] = address, run
            self._here[0], self._here[1] = at, run
            return self._call(pid, self._here_at, 1, self._there_at, 1, 0) == run
        many = min(MOST_RUNS, max(LARGEST_READ // run, 1))
        for row in range(0, rows, many):
            count = min(many, rows - row)
            for column in range(0, run, LARGEST_READ):  # once, but for runs that take more than one call
                self.loop.check_abort()
                width = min(LARGEST_READ, run - column)
                runs = self._runs[:count]
                runs[:, 0] = self._numbers[:count] * np.uint64(stride) + np.uint64(address + row * stride + column)
                runs[:, 1] = width
                self._here[0], self._here[1] = at + row * run + column, count * width
                if self._call(pid, self._here_at, 1, self._there_at, count, 0) != count * width:
                    return False
        return True

    def fetch(self, rank: int, place: int, target: np.ndarray) -> bool:
        """Fill a C-contiguous array with what lies at `place` in the memory of a rank. False as in `read`."""
        ctypes.set_errno(0)
        return self.read(self.pid(rank), place - PEER, target.nbytes, 1, target.nbytes, address_of(target))

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return self.arena.words[self.arena.map.slot(rank) + PID]

    def explain(self, rank: int) -> None:
        """Raise why `read` failed, though it did not before: the rank has ended or left the call, or errno tells."""
        number, loop = ctypes.get_errno(), self.loop
        if number not in (errno.EPERM, errno.ENOMEM):
            end_s = time.monotonic() + NEWS_S
            while not loop.words[ABORT] and time.monotonic() < end_s:
                time.sleep(1e-3)
        if loop.words[ABORT]:
            raise loop.fault_error()
        what = f"rank {self.rank} cannot read the memory of rank {rank} any more: {os.strerror(number)}"
        hint = "Allocate large values by comm.empty, which every rank can read"
        loop.raise_fault("ParallelLabError", message(what, hint=hint))


class PeerPiece:
    """A (rows, run) part of an array in another rank's memory. piece[block] reads one of `slices.blocks(...,
    BLOCK_BYTES)` and holds until the next one but one of any piece is read, in order of members. Raises where the rank
    has ended.
    """

    def __init__(
        self,
        peers: PeerMemory,
        rank: int,
        address: int,
        dtype: np.dtype,
        shape: tuple[int, int],
        stride: int,
        scratch: np.ndarray,
    ) -> None:
        self._peers, self._rank, self._pid = peers, rank, peers.pid(rank)
        self._address, self._stride, self.dtype, self.shape = address, stride, dtype, shape
        self._scratch = scratch[: BLOCK_BYTES // dtype.itemsize * dtype.itemsize].view(dtype)
        self._scratch_at = address_of(scratch)

    def __getitem__(self, block: tuple[slice, slice]) -> np.ndarray:
        row, column = block[0].start, block[1].start
        rows, columns, itemsize = block[0].stop - row, block[1].stop - column, self.dtype.itemsize
        self._read(row * self._stride + column * itemsize, rows, columns * itemsize, self._scratch_at)
        return self._scratch[: rows * columns].reshape(rows, columns)

    def copy_to(self, target: np.ndarray) -> None:
        """target = all of it, in order.  target: a (rows, run) view of as many elements."""
        rows, run = self.shape
        if target.flags.c_contiguous and target.dtype == self.dtype:
            self._read(0, rows, run * self.dtype.itemsize, address_of(target))
            return
        for block in blocks(self.shape, self.dtype.itemsize, BLOCK_BYTES):
            found = self[block]
            start = block[0].start * run + block[1].start
            copy_in(target, start, start + found.size, found.reshape(-1))

    def _read(self, start: int, rows: int, run: int, at: int) -> None:
        ctypes.set_errno(0)  # a read that ends too early sets none
        if rows and run and not self._peers.read(self._pid, self._address + start, self._stride, rows, run, at):
            self._peers.explain(self._rank)


def _token(pid: int, rank: int) -> int:
    """What a rank keeps for the others to try to read."""
    return pid << 24 | rank << 4 | 0xA


def _system_call():
    """process_vm_readv; None where the system lacks it."""
    call = c_function("process_vm_readv", use_errno=True)
    if call is None or not SYSTEM.peer_memory:
        return None
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
    prctl(PR_SET_PTRACER, os.getppid())  # without Yama: no effect
    return call
