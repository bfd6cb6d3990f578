"""The shared block of a worker pool: nameless memory, its map of words, the flight recorder and the fault notes.

    words      control | arrivals (receiver x sender) | channels (4 counters per pair) | one slot per rank
    flight     64 records of 512 bytes per rank: what it asked for last
    faults     one note per rank and one for the parent: why everybody must stop
    data       two buffers per rank, through which collectives move arrays
    channels   one byte ring per ordered pair of ranks, for send and recv

Rules that keep it correct without locks. Every word is an aligned 8-byte integer with one writer (the abort word excepted: several may set it, each
to its own nonzero value, and whichever stays is a valid answer). What a word announces is written before the word. x86 keeps both the order
of stores and the order of loads, so nothing more is needed there. ARM does not; `fence()` gives the order with a lock that nobody else holds: its
release followed by its acquire keeps everything before from mixing with everything after (ARMv8 store-release and load-acquire are ordered
among each other). That is reasoned from the architecture manual, not measured: the package is tested on x86 only.

The block has no name. On Linux it is a memfd, on other POSIX systems an unlinked temporary file, both handed to workers as a descriptor; on
Windows a mapping with a random tag, which vanishes with its last handle. So nothing can stay behind, however processes end.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import platform
import secrets
import struct
import sys
import tempfile
import threading
from dataclasses import dataclass

import numpy as np
from multiprocess import reduction

from ...errors import SharedMemoryTooSmall, message

__all__ = ["ABORT", "CONTROL", "FLIGHT_RECORDS", "RUN", "Arena", "ArenaMap", "FlightEntry", "SharedBlock", "fence"]

ABORT, CONTROL, RUN = 0, 1, 2  # control words: author of the fault + 1 (0: none); 0 run, 1 pause, 2 stop; number of the current run
CONTROL_WORDS = 64  # one page line each for the few control words would be waste: 512 bytes in all
SLOT_WORDS = 16  # two cache lines per rank, so that ranks do not share lines
FLIGHT_RECORDS = 64
FLIGHT_BYTES = 512
FLIGHT_HEAD = struct.Struct("<qqddq")  # index, number in the group, start_s, end_s (0: not over), bytes of text
FAULT_BYTES = 16 * 1024
PAGE = 4096
MIN_BUFFER = 4096

PID, FINISHED, REQUESTS, WAIT_STAMP, WAIT_PEER, WAIT_INDEX, WAIT_VALUE, WAIT_SINCE_NS, LOOSE_ORIGIN, LOOSE_SHAPE, STARTED = range(
    11
)  # words of a slot

_NEEDS_FENCE = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686")


def _make_fence():
    if not _NEEDS_FENCE:
        return lambda: None
    lock = threading.Lock()
    lock.acquire()

    def ordered() -> None:
        lock.release()
        lock.acquire()

    return ordered


fence = _make_fence()


class SharedBlock:
    """`size_bytes` of zeroed memory that parent and workers see; pickled while a process starts, it carries its descriptor along.

    Raises SharedMemoryTooSmall when the system refuses.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.fd, self.tag = -1, ""
        try:
            if sys.platform == "win32":
                self.tag = f"parallel_lab-{secrets.token_hex(16)}"
                self.map = mmap.mmap(-1, size_bytes, tagname=self.tag)
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
            self.map = mmap.mmap(self.fd, size_bytes)
        except (OSError, ValueError, OverflowError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise SharedMemoryTooSmall(
                message(
                    f"the system refused {size_bytes} bytes of shared memory ({error})",
                    where="WorkerPool",
                    hint="Give a smaller arena_bytes, or fewer ranks; `ulimit -f` and the container's memory limit also apply",
                )
            ) from error

    @classmethod
    def attached(cls, fd: int, size_bytes: int) -> SharedBlock:
        """The block behind a descriptor that another process made and handed over; this one owns the descriptor from now on."""
        block = cls.__new__(cls)
        block.size_bytes, block.tag, block.fd = size_bytes, "", fd
        block.map = mmap.mmap(fd, size_bytes)
        return block

    def __getstate__(self) -> dict:
        return {"size_bytes": self.size_bytes, "tag": self.tag, "handle": None if self.tag else reduction.DupFd(self.fd)}

    def __setstate__(self, state: dict) -> None:
        self.size_bytes, self.tag, self.fd = state["size_bytes"], state["tag"], -1
        if self.tag:
            self.map = mmap.mmap(-1, self.size_bytes, tagname=self.tag)
        else:
            self.fd = state["handle"].detach()
            self.map = mmap.mmap(self.fd, self.size_bytes)

    def close(self) -> None:
        """Give the memory back. Views of it that still live keep the mapping, not the descriptor."""
        with contextlib.suppress(BufferError):  # an array still looks at it; the system frees the pages with the last view
            self.map.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class ArenaMap:
    """Where everything lies. Words are counted in 8 bytes from the start of the block, the rest in bytes.

    world_size     ranks
    buffer_bytes   one data buffer; every rank has two
    ring_bytes     one channel ring
    """

    world_size: int
    buffer_bytes: int
    ring_bytes: int

    @classmethod
    def for_budget(cls, world_size: int, arena_bytes: int) -> ArenaMap:
        """Half of `arena_bytes` for the buffers of collectives, half for channels.

        A buffer is at most 2 MiB: all_reduce uses half of it for one step, and steps of about 1 MiB per rank were fastest (they stay in cache).
        """
        half = arena_bytes // 2
        buffer_bytes = min(max(half // (2 * world_size) // PAGE * PAGE, MIN_BUFFER), 2 << 20)
        ring_bytes = min(max(half // world_size**2 // PAGE * PAGE, MIN_BUFFER), 1 << 20)
        return cls(world_size, buffer_bytes, ring_bytes)

    @property
    def row(self) -> int:
        return _round_up(self.world_size, 8)

    def arrival(self, receiver: int, sender: int) -> int:
        """Word in which `sender` tells `receiver` how far it has come in the collectives they share."""
        return CONTROL_WORDS + receiver * self.row + sender

    def _pair(self, table: int, first: int, second: int) -> int:
        return CONTROL_WORDS + (1 + table) * self.world_size * self.row + first * self.row + second

    def sent(self, source: int, to: int) -> int:
        """Messages `source` has handed over for `to`, those still in its own memory included."""
        return self._pair(0, to, source)

    def received(self, source: int, to: int) -> int:
        """Messages `to` has taken whole."""
        return self._pair(1, source, to)

    def ring_written(self, source: int, to: int) -> int:
        return self._pair(2, to, source)

    def ring_read(self, source: int, to: int) -> int:
        return self._pair(3, source, to)

    def slot(self, rank: int) -> int:
        return CONTROL_WORDS + 5 * self.world_size * self.row + rank * SLOT_WORDS

    @property
    def words(self) -> int:
        return self.slot(self.world_size)

    @property
    def flight_start(self) -> int:
        return _round_up(8 * self.words, PAGE)

    @property
    def fault_start(self) -> int:
        return self.flight_start + self.world_size * FLIGHT_RECORDS * FLIGHT_BYTES

    @property
    def data_start(self) -> int:
        return _round_up(self.fault_start + (self.world_size + 1) * FAULT_BYTES, PAGE)

    @property
    def ring_start(self) -> int:
        return self.data_start + self.world_size * 2 * self.buffer_bytes

    @property
    def size_bytes(self) -> int:
        return self.ring_start + self.world_size**2 * self.ring_bytes


@dataclass(frozen=True)
class FlightEntry:
    """One request as the flight recorder kept it.

    index     how many requests this rank made before in this run (all groups together)
    number    how many it made before in this group
    start_s, end_s   time.perf_counter() of the worker; end_s is None while the request is not answered
    """

    rank: int
    index: int
    number: int
    kind: str
    group: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    detail: str
    origin: str
    start_s: float
    end_s: float | None

    def __str__(self) -> str:
        data = f" {self.dtype} {self.shape}" if self.dtype else ""
        detail = f" {self.detail}" if self.detail else ""
        origin = f" at {self.origin}" if self.origin else ""
        members = "..".join(str(r) for r in (self.group[0], self.group[-1])) if len(self.group) > 8 else ", ".join(map(str, self.group))
        return f"{self.kind} #{self.number}{data}{detail} of group ({members}){origin}"


def flight_text(kind: str, group: tuple[int, ...], dtype: str, shape: tuple[int, ...], detail: str, origin: str) -> bytes:
    """The constant part of a flight record, at most FLIGHT_BYTES minus the head."""
    limit = FLIGHT_BYTES - FLIGHT_HEAD.size
    first, last = group[0], group[-1]
    members = [first, last] if group == tuple(range(first, last + 1)) and len(group) > 2 else None
    for cut in (300, 120, 60, 0):
        packed = [kind, members or list(group), members is not None, dtype[:60], list(shape)[:16], detail[:60], origin[-cut:] if cut else ""]
        text = json.dumps(packed, separators=(",", ":")).encode()
        if len(text) <= limit:
            return text
    return json.dumps([kind, [first, last], True, "", [], "", ""]).encode()  # a group of very many scattered ranks


class Arena:
    """A block, its map, and typed access to both. Parent and workers make one each around the same `SharedBlock`."""

    def __init__(self, block: SharedBlock, layout: ArenaMap) -> None:
        self.block, self.map = block, layout
        self.bytes = memoryview(block.map)
        self.words = self.bytes[: 8 * layout.words].cast("Q")

    def buffer(self, rank: int, parity: int) -> np.ndarray:
        """One data buffer as (buffer_bytes,) uint8."""
        start = self.map.data_start + (2 * rank + parity) * self.map.buffer_bytes
        return np.frombuffer(self.bytes, np.uint8, self.map.buffer_bytes, start)

    def ring(self, source: int, to: int) -> np.ndarray:
        """One channel as (ring_bytes,) uint8."""
        start = self.map.ring_start + (source * self.map.world_size + to) * self.map.ring_bytes
        return np.frombuffer(self.bytes, np.uint8, self.map.ring_bytes, start)

    def begin_run(self, run: int) -> None:
        """Parent, with all workers idle: forget arrivals, channels, waits and faults of the last run."""
        first, last = CONTROL_WORDS, self.map.slot(0)
        self.bytes[8 * first : 8 * last] = bytes(8 * (last - first))
        for rank in range(self.map.world_size):
            slot = self.map.slot(rank)
            for word in range(slot + FINISHED, slot + SLOT_WORDS):
                self.words[word] = 0
        self.words[CONTROL], self.words[RUN], self.words[ABORT] = 0, run, 0

    # flight recorder

    def flight_offset(self, rank: int, index: int) -> int:
        return self.map.flight_start + (rank * FLIGHT_RECORDS + index % FLIGHT_RECORDS) * FLIGHT_BYTES

    def flight(self, rank: int) -> list[FlightEntry]:
        """The last requests of `rank` in the current run, oldest first; a record that is being overwritten is left out."""
        count = self.words[self.map.slot(rank) + REQUESTS]
        entries = []
        for index in range(max(0, count - FLIGHT_RECORDS), count):
            at = self.flight_offset(rank, index)
            stored, number, start_s, end_s, size = FLIGHT_HEAD.unpack_from(self.bytes, at)
            body = at + FLIGHT_HEAD.size
            try:
                kind, group, ranged, dtype, shape, detail, origin = json.loads(bytes(self.bytes[body : body + size]))
            except (ValueError, TypeError):
                continue
            if stored != index:
                continue
            members = tuple(range(group[0], group[1] + 1)) if ranged else tuple(group)
            entries.append(FlightEntry(rank, index, number, kind, members, dtype, tuple(shape), detail, origin, start_s, end_s or None))
        return entries

    def last_entry(self, rank: int) -> FlightEntry | None:
        """The newest request of `rank`, or None."""
        entries = self.flight(rank)
        return entries[-1] if entries else None

    # fault notes

    def write_fault(self, author: int, kind: str, text: str, **attributes: object) -> None:
        """Leave a note and set the abort word. `author` is a rank, or world_size for the parent. The first fault of a run is kept."""
        if self.words[ABORT]:
            return
        limit = FAULT_BYTES - 8
        note = json.dumps({"kind": kind, "text": text[:4000], **attributes}, default=str).encode()
        if len(note) > limit:
            note = json.dumps({"kind": kind, "text": text[:1000]}).encode()
        at = self.map.fault_start + author * FAULT_BYTES
        self.bytes[at + 8 : at + 8 + len(note)] = note
        struct.pack_into("<q", self.bytes, at, len(note))
        fence()
        self.words[ABORT] = author + 1

    def read_fault(self) -> tuple[int, dict] | None:
        """(author, note) of the fault that stopped the run, or None."""
        code = self.words[ABORT]
        if not code:
            return None
        fence()
        at = self.map.fault_start + (code - 1) * FAULT_BYTES
        (size,) = struct.unpack_from("<q", self.bytes, at)
        return code - 1, json.loads(bytes(self.bytes[at + 8 : at + 8 + size]))

    # messages

    def unread(self) -> str:
        """What is wrong with the messages of a run that has ended: one that nobody has received; "" when nothing is."""
        for source in range(self.map.world_size):
            for to in range(self.map.world_size):
                sent, received = self.words[self.map.sent(source, to)], self.words[self.map.received(source, to)]
                if sent != received:
                    what = f"rank {source} sent {sent} message{'s' if sent != 1 else ''} to rank {to}, which received {received}"
                    return message(what, allowed="Every send needs its recv")
        return ""

    def close(self) -> None:
        """Give the block back; the arena cannot be used afterwards."""
        with contextlib.suppress(BufferError):  # arrays over the buffers still live; see SharedBlock.close
            self.words.release()
            self.bytes.release()
        self.block.close()
