"""The shared block of a worker pool: its map of words, the flight recorder and the fault notes.

    words      control | channels (8 words per pair) | one slot per rank | groups: a register and words per rank
               (`groups.py`)
    flight     64 records per rank, what it asked for last, and their texts (`flight.py`)
    faults     one note per rank and one for the parent: why everybody must stop
    data       two buffers per rank through which collectives move arrays, and two more for started ones
    channels   one byte ring per ordered pair of ranks, for send and recv
    heaps      one per rank: arrays that other ranks read where they lie (`arrays.py`)

Rules that keep it correct without locks. Every word is an aligned 8-byte integer with one writer (the abort word and a
few of a group's excepted: several may set them, each to a value of its own, and whichever stays is a valid answer).
What a word announces is written before the word. x86 keeps both the order of stores and the order of loads, so nothing
more is needed there. ARM does not; `fence()` gives the order with a lock that nobody else holds: its release followed
by its acquire keeps everything before from mixing with everything after (ARMv8 store-release and load-acquire are
ordered among each other). That is reasoned from the manual: the package is tested on x86 only.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..faults import unread_text
from ..flight import (
    FLIGHT_BYTES,
    FLIGHT_HEAD,
    FLIGHT_RECORDS,
    TEXT_BYTES,
    TEXT_LENGTH,
    TEXT_SLOTS,
    FlightEntry,
    entry_from_text,
)
from .shared_memory import PAGE, SPARSE, SharedBlock, fence, round_up

# control words: author of the fault + 1 (0: none); 0 run, 1 pause, 2 stop; number of the current run; when a rank saw
# that none but ranks compute
ABORT, CONTROL, RUN, QUIET_NS = range(4)
CONTROL_WORDS = 64  # 512 bytes in all
SLOT_WORDS = 24  # three cache lines per rank, so that ranks do not share lines
FAULT_BYTES = 16 * 1024
MIN_BUFFER = 4096
# of a block, unless something else is asked for: room for all rings of 8 ranks. They are reserved as addresses, pages
# are taken when first written; where a block has to have its pages at once, less
ARENA_BYTES = (100 if SPARSE else 64) << 20
# at most: 1 MiB and its head fit; with a quarter, a stream of 64 or 96 KiB messages takes twice as long, and with twice
# as much a ring is less in the caches: 64 KiB and 1 MiB take 1.2 times as long
RING_BYTES = (1 << 20) + PAGE
MAX_GROUPS = 4096  # groups, started collectives' apart, whose first member is one and the same rank, in one run
GROUP_WORDS = 1 << 16  # words for their barriers, per rank: 390 groups of 8
# Heaps are an odd number of these apart. Ranks use their heaps alike, and the first-level cache of AMD's processors
# since Zen tells lines of one set apart by a hash of address bits 12 to 27: equal places in heaps a large power of two
# apart would drive each other out of it (Lipp et al. 2020, "Take A Way: Exploring the Security Implications of AMD's
# Cache Way Predictors"). Sums of 16 MiB took 1.15 times as long.
HEAP_UNIT = 1 << 16

# words of a slot; PROGRAM and LANE: a `Wait` of the rank's program, and one of the oldest of its started collectives;
# KEEPS: whether it has values for jobs to come; TOKEN: an address in its own memory (`fast/peer_memory.py`);
# RAISED: the run that an error of its own ends, whoever's was first
PID, FINISHED, REQUESTS, STARTED, PROGRAM, LANE, KEEPS, TOKEN, RAISED = 0, 1, 2, 3, 4, 11, 18, 19, 20
MOVING = 1  # stamp of a LANE: something is started, and not known to wait for anybody; 0: nothing is
_WAIT = struct.Struct("<6Q")


class Wait(NamedTuple):
    """What a rank waits for, as it tells the watch (`watch.py`): `stamp`, another for each wait; the `peer`, the `word`
    it will write, the `value` that ends it; `of_started`: in its started collectives; `entry`: index + 1 of the request
    (0: the newest); `since_ns`: time.monotonic_ns().
    """

    stamp: int
    peer: int
    word: int
    value: int
    of_started: bool
    entry: int
    since_ns: int


@dataclass(frozen=True)
class ArenaMap:
    """Where everything lies: words counted in 8 bytes from the block's start, the rest in bytes. `buffer_bytes`: one of
    a rank's four data buffers; `ring_bytes`: one channel ring.
    """

    world_size: int
    buffer_bytes: int
    ring_bytes: int

    @classmethod
    def for_budget(cls, world_size: int, arena_bytes: int) -> ArenaMap:
        """Half of `arena_bytes` for collectives' buffers (and as many again for started ones), the rest for channels.
        A buffer is at most 2 MiB: larger steps do not stay in the caches (all_reduce uses half of one per step).
        """
        buffer_bytes = min(max(arena_bytes // (4 * world_size) // PAGE * PAGE, MIN_BUFFER), 2 << 20)
        rest = arena_bytes - 2 * world_size * buffer_bytes
        ring_bytes = min(max(rest // world_size**2 // PAGE * PAGE, MIN_BUFFER), RING_BYTES)
        return cls(world_size, buffer_bytes, ring_bytes)

    @cached_property
    def row(self) -> int:
        return round_up(self.world_size, 8)

    def _pair(self, table: int, first: int, second: int) -> int:
        return CONTROL_WORDS + table * self.world_size * self.row + first * self.row + second

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

    def ring_asked(self, source: int, to: int) -> int:
        """What `to` has asked to be woken for: once so many bytes are written."""
        return self._pair(4, to, source)

    def ring_waits(self, source: int, to: int) -> int:
        """`to` stays in a wait for messages of `source` until half as many bytes are written; odd: it can read the
        memory of `source` (`fast/placed.py`).
        """
        return self._pair(5, to, source)

    def placed_taken(self, source: int, to: int) -> int:
        """Messages that `to` has read where they lie."""
        return self._pair(6, source, to)

    def placed_asked(self, source: int, to: int) -> int:
        """What `source` has asked to be woken for: once so many are taken."""
        return self._pair(7, source, to)

    def slot(self, rank: int) -> int:
        return CONTROL_WORDS + 8 * self.world_size * self.row + rank * SLOT_WORDS

    def register(self, leader: int) -> int:
        """Word that counts the groups `leader` has entered; behind it, per group, its digest and its first word."""
        return round_up(self.slot(self.world_size), 8) + leader * (8 + 2 * MAX_GROUPS)

    @property
    def group_words(self) -> int:
        """Words per leader for the barriers of its groups: some of the largest, however many ranks there are."""
        return max(GROUP_WORDS, 32 * round_up(24 * self.world_size, 64))

    def groups(self, leader: int) -> int:
        """First word for the barriers of the groups of `leader`."""
        return self.register(self.world_size) + leader * self.group_words

    @property
    def words(self) -> int:
        return self.groups(self.world_size)

    @property
    def flight_start(self) -> int:
        return round_up(8 * self.words, PAGE)

    @property
    def text_start(self) -> int:
        return self.flight_start + self.world_size * FLIGHT_RECORDS * FLIGHT_BYTES

    @property
    def fault_start(self) -> int:
        return self.text_start + self.world_size * TEXT_SLOTS * TEXT_BYTES

    @property
    def data_start(self) -> int:
        return round_up(self.fault_start + (self.world_size + 1) * FAULT_BYTES, PAGE)

    def buffer(self, rank: int, parity: int, started: bool) -> int:
        """Byte at which a data buffer starts."""
        return self.data_start + (4 * rank + 2 * started + parity) * self.buffer_bytes

    @property
    def ring_start(self) -> int:
        return self.data_start + self.world_size * 4 * self.buffer_bytes

    @property
    def size_bytes(self) -> int:
        return self.ring_start + self.world_size**2 * self.ring_bytes


class Arena:
    """A block, its map, and typed access to both. Parent and workers make one each around the same `SharedBlock`."""

    def __init__(self, block: SharedBlock, layout: ArenaMap) -> None:
        self.block, self.map = block, layout
        self.bytes = memoryview(block.map)
        self.words = self.bytes[: 8 * layout.words].cast("Q")

    def ring(self, source: int, to: int) -> np.ndarray:
        """One channel as (ring_bytes,) uint8."""
        start = self.map.ring_start + (source * self.map.world_size + to) * self.map.ring_bytes
        return np.frombuffer(self.bytes, np.uint8, self.map.ring_bytes, start)

    def heap(self, rank: int) -> tuple[int, int]:
        """(start, size) of the heap of `rank`, in bytes; a size of 0 where the system gave none."""
        units = self.block.heaps_bytes // self.map.world_size // HEAP_UNIT
        size = max((units - 1) | 1, 0) * HEAP_UNIT  # the largest odd number of them
        return self.block.heaps_start + rank * size, size

    def begin_run(self, run: int) -> None:
        """Parent, with all workers idle: forget groups, channels, waits and faults of the last run."""
        first, last = CONTROL_WORDS, self.map.slot(0)
        self.bytes[8 * first : 8 * last] = bytes(8 * (last - first))
        for rank in range(self.map.world_size):
            slot = self.map.slot(rank)
            for word in range(slot + FINISHED, slot + SLOT_WORDS):
                self.words[word] = 0
            self.words[self.map.register(rank)] = 0
        self.words[CONTROL], self.words[RUN], self.words[ABORT] = 0, run, 0

    def trim(self) -> None:
        """Parent, with all workers idle: give back the memory through which data has moved."""
        if SPARSE:
            start = round_up(self.map.data_start, PAGE)
            with contextlib.suppress(OSError):  # a sandbox that does not know the call: the pages stay
                self.block.map.madvise(mmap.MADV_REMOVE, start, self.map.size_bytes // PAGE * PAGE - start)

    # flight recorder

    def flight_offset(self, rank: int, index: int) -> int:
        return self.map.flight_start + (rank * FLIGHT_RECORDS + index % FLIGHT_RECORDS) * FLIGHT_BYTES

    def _text_offset(self, rank: int, slot: int) -> int:
        return self.map.text_start + (rank * TEXT_SLOTS + slot % TEXT_SLOTS) * TEXT_BYTES

    def write_text(self, rank: int, slot: int, text: bytes) -> None:
        """Keep the text of a call of `rank` in `slot`."""
        at = self._text_offset(rank, slot)
        body = at + TEXT_LENGTH.size
        self.bytes[body : body + len(text)] = text
        TEXT_LENGTH.pack_into(self.bytes, at, len(text))

    def entry(
        self, rank: int, index: int, number: int, slot: int, start_s: float = 0.0, end_s: float | None = None
    ) -> FlightEntry | None:
        """The call of `rank` whose text lies in `slot`; None while it is being written."""
        at = self._text_offset(rank, slot)
        (size,) = TEXT_LENGTH.unpack_from(self.bytes, at)
        body = at + TEXT_LENGTH.size
        try:
            return entry_from_text(rank, index, number, bytes(self.bytes[body : body + size]), start_s, end_s)
        except (ValueError, TypeError):
            return None

    def recorded(self, rank: int, index: int) -> FlightEntry | None:
        """The request of `rank` with that index; None if its record is not kept any more."""
        stored, number, start_s, end_s, slot = FLIGHT_HEAD.unpack_from(self.bytes, self.flight_offset(rank, index))
        return self.entry(rank, index, number, slot, start_s, end_s or None) if stored == index else None

    def flight(self, rank: int) -> list[FlightEntry]:
        """The last requests of `rank` in this run, oldest first, without a record that is being overwritten."""
        count = self.words[self.map.slot(rank) + REQUESTS]
        entries = (self.recorded(rank, index) for index in range(max(0, count - FLIGHT_RECORDS), count))
        return [entry for entry in entries if entry is not None]

    def last_entry(self, rank: int) -> FlightEntry | None:
        """The newest request of `rank`, or None."""
        count = self.words[self.map.slot(rank) + REQUESTS]
        for index in range(count - 1, max(-1, count - 1 - FLIGHT_RECORDS), -1):
            entry = self.recorded(rank, index)
            if entry is not None:
                return entry
        return None

    def waiting_entry(self, rank: int) -> FlightEntry | None:
        """The request that `rank` waits for, which may be one that it started before, or its newest."""
        wait = self.wait(rank, PROGRAM)
        entry = self.recorded(rank, wait.entry - 1) if wait and wait.entry else None
        return entry or self.last_entry(rank)

    # waits

    def wait(self, rank: int, where: int) -> Wait | None:
        """What `rank` waits for, in its program or in its lane; None: for nothing, or it is just being written."""
        at = self.map.slot(rank) + where
        stamp = self.words[at]
        if not stamp or (where == LANE and stamp == MOVING):
            return None
        wait = Wait(stamp, *_WAIT.unpack_from(self.bytes, 8 * (at + 1)))
        return wait if self.words[at] == stamp else None

    def write_wait(self, rank: int, where: int, wait: Wait) -> None:
        """Tell what `rank` waits for."""
        at = self.map.slot(rank) + where
        self.words[at] = MOVING if where == LANE else 0
        fence()
        _WAIT.pack_into(self.bytes, 8 * (at + 1), *wait[1:])
        fence()
        self.words[at] = wait.stamp

    # fault notes

    def write_fault(self, author: int, kind: str, text: str, **attributes: object) -> None:
        """Note why all must stop; the first fault of a run is kept.  author: a rank, or world_size for the parent"""
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
        if not self.words[ABORT]:  # another rank may have told its own while this one wrote
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
                    return unread_text(source, to, sent, received)
        return ""

    def close(self) -> None:
        """Give the block back; the arena cannot be used afterwards."""
        with contextlib.suppress(BufferError):  # arrays over the buffers still live; see SharedBlock.close
            self.words.release()
            self.bytes.release()
        self.block.close()
