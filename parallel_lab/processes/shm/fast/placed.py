"""Large messages: only their head goes through the ring, and tells where the data lies: in the block, or in the
sender's own memory, where the receiver can read that (`peer_memory.py`).

    send         the value is lent: the sender waits until it is read, in one copy, into the receiver's array
    the receiver does something else
                 the sender copies the value to its heap (`arrays.py`), tells so in a record behind the head, and goes
                 on; the receiver takes it when it comes, whatever the sender does then
    a send that is started, or whose value the receiver cannot read
                 it is copied to the heap at once

A receiver that waits says so: in `ring_waits` stands more than has been written, and whether it can read the sender's
memory. It stays there until more comes, so a rank that reads that knows that its message is taken now. For any other
receiver a sender looks as long as a copy would take: a sender that waits so long and copies then loses half its time at
most (ski rental; Karlin et al. 1988). As long it looks for a receiver that has not taken what is parked, and may take
it soon: the same memory is used again, out of the cache.

Both may act at once: the receiver reads what is lent while its sender gives up. So who has read looks whether a record
has come meanwhile. None has: the sender was waiting all the time, and the value is whole. Else the receiver reads
again, from the copy. A record that comes later is skipped, as what would have been the next head.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

import numpy as np

from ....base.errors import SharedMemoryTooSmall
from ..arena import ABORT, Arena
from ..arrays import SharedArrays
from ..barrier import STOLEN_S, WaitLoop, WordReached, yield_core
from ..channels import HEAD_BYTES, Channels, _Coming, head_place, pack_head, with_place
from ..shared_memory import NEEDS_FENCE, fence
from .peer_memory import PEER, PeerMemory

# of a value; below, the ring is as fast
PLACED_BYTES = 128 << 10
MOST_PARKED = 2  # messages for one receiver; of more, a sender waits a moment whether the oldest is taken
LEAST_PATIENCE_S, COPY_BYTES_PER_S = 50e-6, 8e9  # a yield or two; as long as copying takes
# of a value that is being read: so long its sender looks before it sleeps, and no longer, as a core that falls idle
# takes over readers of the other one (alone, two ranks take 0.7 times as long for 1 MiB)
SPUN_BYTES = 1 << 20
LENT = 1 << 60  # instead of a head: the sender waits, or a record follows
MOVED = b"\xff" * 8  # instead of a head's length, which is positive
RECORD = MOVED.ljust(HEAD_BYTES)
YIELDS, OTHERS = 8, 4  # at least, in that time; ranks of one core that copy as much


class PlacedChannels(Channels):
    """One rank's ends of all its channels; large values are read where they lie."""

    def __init__(self, arena: Arena, loop: WaitLoop, arrays: SharedArrays, peers: PeerMemory) -> None:
        self.arrays, self.peers = arrays, peers
        self.placed: dict[int, int] = {}  # by receiver: messages of this run that it is to read where they lie
        self.parked: dict[int, deque[tuple[int, np.ndarray]]] = {}  # their copies: which of them, memory
        self.pairs: dict[tuple[int, int], tuple[int, int, int, int, int, int]] = {}
        self.came_placed = False  # the last message that did not take a known place's way
        self.spare: np.ndarray | None = None  # for the copy of what is lent now, where it has to lie in the heap
        super().__init__(arena, loop)

    def begin_run(self) -> None:
        super().begin_run()
        self.peers.begin_run()
        self.placed.clear()
        self.parked.clear()

    def hand_over(self, value: np.ndarray, to: int, sr_tag: int = 0) -> None:
        place = self.lendable(value, to) if value.nbytes >= PLACED_BYTES else -1
        if place < 0:
            super().hand_over(value, to, sr_tag)
        else:
            self.lend(value, place, pack_head(value.dtype, value.shape, sr_tag), to)

    def lendable(self, value: np.ndarray, to: int) -> int:
        """Where `to` can read a value while this rank waits; -1: it cannot, or no room is left to say so."""
        words, (_, written, read, waits, _, _), size = self.words, self._pair(self.rank, to), self.map.ring_bytes
        place = self.arrays.position(value)
        if to == self.rank or self.pending.get(to) or not self.comes(waits, 1, value.nbytes):
            return -1
        end, self.spare = words[written], None
        if max(end % size, end - words[read]) + 2 * HEAD_BYTES > size:  # head, record
            return -1
        if words[waits] & 1:
            return self.peers.place(value) if place < 0 else place
        if place >= 0:  # the copy, if there will be one, has to lie in the block
            self.spare = self._heap_bytes(value.nbytes)
            place = -1 if self.spare is None else place
        return place

    def lend(self, value: np.ndarray, place: int, head: bytes, to: int) -> None:
        """Send a message whose data lies at a place of `lendable`; returns when the sender may change the value."""
        words, (sent, written, read, waits, taken, asked) = self.words, self._pair(self.rank, to)
        words[sent] += 1
        number, end = self._count(to), words[written] + HEAD_BYTES
        waiting = words[waits] >= 2 * (end - HEAD_BYTES + 1)
        self._write(with_place(head, place | LENT), to)
        if waiting or self.comes(read, end, value.nbytes):
            if not self.comes(taken, number, min(value.nbytes, SPUN_BYTES)):
                self.loop.wait(WordReached(words, taken, number, to, asked=asked))
            self.spare = None
            return
        self.loop.check_abort()
        copy = self._heap_bytes(value.nbytes) if self.spare is None else self.spare
        self.spare = None
        if copy is None:
            copy = np.empty(value.nbytes, np.uint8)  # `flush` waits until it is read
        copy[...] = value.reshape(-1).view(np.uint8)
        self._still_parked(to).append((number, copy))
        place = self.arrays.position(copy)
        self._write(with_place(RECORD, self.peers.place(copy) if place < 0 else place), to)

    def _pair(self, source: int, to: int) -> tuple[int, int, int, int, int, int]:
        """Words of two ranks: sent, ring_written, ring_read, ring_waits, placed_taken, placed_asked."""
        found = self.pairs.get((source, to))
        if found is None:
            of = self.map
            names = of.sent, of.ring_written, of.ring_read, of.ring_waits, of.placed_taken, of.placed_asked
            found = self.pairs[source, to] = tuple(name(source, to) for name in names)
        return found

    def _write(self, head: bytes, to: int) -> None:
        """Put a head or a record into the ring, where there is room."""
        word = self._pair(self.rank, to)[1]
        written = self.words[word]
        start = written % self.map.ring_bytes
        self._ring(self.rank, to)[start : start + HEAD_BYTES] = np.frombuffer(head, np.uint8)
        fence()
        self.words[word] = written + HEAD_BYTES
        self.wake(to, written)

    def _heap_bytes(self, size: int) -> np.ndarray | None:
        """So many bytes of this rank's heap; None: there are no more."""
        try:
            found = self.arrays.empty(size, np.uint8)
        except SharedMemoryTooSmall:
            return None
        return None if self.arrays.position(found) < 0 else found

    def comes(self, word: int, value: int, size_bytes: int) -> bool:
        """Whether a word reaches a value while so much could be copied."""
        words, clock = self.words, perf_counter
        if words[word] >= value:
            return True
        left_s = patience_s = LEAST_PATIENCE_S + size_bytes / COPY_BYTES_PER_S
        now = clock()
        while left_s > 0 and not words[ABORT]:
            before = now
            yield_core()
            if words[word] >= value:
                return True
            now = clock()
            # what other ranks of this core copy meanwhile is not a loss; where they compute, it takes longer
            copying = now - before < STOLEN_S + OTHERS * patience_s
            left_s -= min(now - before, patience_s / YIELDS) if copying else patience_s
        return False

    def send(self, value: np.ndarray, to: int, sr_tag: int = 0) -> list:
        if value.nbytes < PLACED_BYTES or self.pending.get(to):
            return super().send(value, to, sr_tag)
        parked = self._still_parked(to)
        if len(parked) > MOST_PARKED:
            oldest = parked[-MOST_PARKED][0]
            self.comes(self.map.placed_taken(self.rank, to), oldest, value.nbytes)
            parked = self._still_parked(to)
        copy = self._heap_bytes(value.nbytes)
        if copy is None:
            return super().send(value, to, sr_tag)
        place = self.arrays.position(copy)
        copy[...] = value.reshape(-1).view(np.uint8)
        parked.append((self._count(to), copy))
        self._queue(with_place(pack_head(value.dtype, value.shape, sr_tag), place), np.empty(0, np.uint8), to)
        return [copy[:0], 0]

    def _still_parked(self, to: int) -> deque[tuple[int, np.ndarray]]:
        """What `to` has not read of its parked messages."""
        parked, taken = self.parked.setdefault(to, deque()), self.words[self.map.placed_taken(self.rank, to)]
        while parked and parked[0][0] <= taken:
            parked.popleft()
        return parked

    def _count(self, to: int) -> int:
        """The number of one more message that `to` reads where it lies."""
        self.placed[to] = number = self.placed.get(to, 0) + 1
        return number

    def flush(self) -> None:
        super().flush()
        for to, parked in self.parked.items():
            for number, copy in parked:
                if self.arrays.position(copy) < 0:
                    self.loop.wait(WordReached(self.words, self.map.placed_taken(self.rank, to), number, to))

    def wait_for(self, source: int) -> None:
        self.say_waiting(source)
        super().wait_for(source)

    def say_waiting(self, source: int) -> None:
        """Tell `source` that this rank takes what it writes next at once, and whether its memory can be read."""
        _, _, read, waits, _, _ = self._pair(source, self.rank)
        self.words[waits] = 2 * (self.words[read] + 1) + self.peers.reads(source)

    def _open(self, coming: _Coming, source: int) -> None:
        if coming.bytes[: len(MOVED)].tobytes() == MOVED:  # the value was read in time
            coming.done = 0
            return
        place = head_place(coming.bytes)
        self.came_placed = place > 0
        super()._open(coming, source)
        if place:
            self.fetch(source, place, coming.bytes)
            coming.done = coming.bytes.size

    def fetch(self, source: int, place: int, target: np.ndarray) -> None:
        """Fill an array of bytes with what lies at the place in a head that was read, and tell the sender."""
        words, (_, written, read, _, taken, asked) = self.words, self._pair(source, self.rank)
        lent = place & LENT
        whole = False
        if not lent or words[written] == words[read]:
            whole = self._copy(source, place & ~LENT, target)
        if lent:
            fence()
            if words[written] > words[read]:  # a record
                fence()
                start = words[read] % self.map.ring_bytes
                place = head_place(self._ring(source, self.rank)[start : start + HEAD_BYTES])
                words[read] += HEAD_BYTES
                whole = self._copy(source, place, target)
        if not whole:
            self.peers.explain(source)
        self.loop.check_abort()  # a sender that has heard of a fault may have changed it meanwhile
        if NEEDS_FENCE:
            fence()
        words[taken] += 1
        if words[asked] >= words[taken] and self.loop.futex is not None:
            self.loop.futex.wake(taken)

    def _copy(self, source: int, place: int, target: np.ndarray) -> bool:
        """Fill an array of bytes with what lies at a place; False: it cannot be read, or not any more."""
        if place >= PEER:
            return self.peers.fetch(source, place, target)
        memoryview(target)[:] = self.arena.bytes[place : place + target.size]
        return True
