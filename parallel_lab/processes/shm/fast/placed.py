"""Large messages: only their head goes through the ring, and tells where the data lies: in the block, or in the
sender's own memory, where the receiver can read that (`peer_memory.py`).

    its receiver waits for this very message, and can read the value where it is
                   one copy, into the receiver's array; the sender waits for it
    any other      it is copied to the sender's heap (`arrays.py`), from where the receiver takes it when it comes,
                   whatever the sender does then

A receiver that waits says so: in `ring_waits` stands more than has been written, and whether it can read the sender's
memory. It stays there until more comes, so who reads that, and writes more, knows that its message is taken now. A
sender looks for it as long as a copy would take: who waits so long and copies then loses half its time at most (ski
rental; Karlin et al. 1988). As long it looks for a receiver that has not taken what is parked, and may take it soon:
the same memory is used again, out of the cache.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

import numpy as np

from ....base.errors import SharedMemoryTooSmall
from ..arena import ABORT, Arena
from ..arrays import SharedArrays
from ..barrier import STOLEN_S, WaitLoop, WordReached, yield_core
from ..channels import Channels, _Coming, head_place, pack_head, with_place
from ..shared_memory import NEEDS_FENCE, fence
from .peer_memory import PEER, PeerMemory

# of a value; below, the ring is as fast
PLACED_BYTES = 128 << 10
MOST_PARKED = 2  # messages for one receiver; of more, a sender waits a moment whether the oldest is taken
LEAST_PATIENCE_S, COPY_BYTES_PER_S = 50e-6, 8e9  # a yield or two; as long as copying takes
# of a value that is being read: so long its sender looks before it sleeps, and no longer, as a core that falls idle
# takes over readers of the other one (alone, two ranks take 0.7 times as long for 1 MiB)
SPUN_BYTES = 1 << 20
YIELDS, OTHERS = 8, 4  # at least, in that time; ranks of one core that copy as much


class PlacedChannels(Channels):
    """One rank's ends of all its channels; large values are read where they lie."""

    def __init__(self, arena: Arena, loop: WaitLoop, arrays: SharedArrays, peers: PeerMemory) -> None:
        self.arrays, self.peers = arrays, peers
        self.placed: dict[int, int] = {}  # by receiver: messages of this run that it is to read where they lie
        self.parked: dict[int, deque[tuple[int, np.ndarray]]] = {}  # their copies: which of them, memory
        super().__init__(arena, loop)

    def begin_run(self) -> None:
        super().begin_run()
        self.peers.begin_run()
        self.placed.clear()
        self.parked.clear()

    def hand_over(self, value: np.ndarray, to: int, sr_tag: int = 0) -> None:
        place = self.readable(value, to) if value.nbytes >= PLACED_BYTES else -1
        if place < 0:
            super().hand_over(value, to, sr_tag)
            return
        self._place(value, place, to, sr_tag)
        self.wait_until_read(value, to)

    def wait_until_read(self, value: np.ndarray, to: int) -> None:
        """Wait until `to` has read what was placed for it last."""
        number, words = self.placed[to], self.words
        taken, asked = self.map.placed_taken(self.rank, to), self.map.placed_asked(self.rank, to)
        if not self._comes(taken, number, min(value.nbytes, SPUN_BYTES)):
            self.loop.wait(WordReached(words, taken, number, to, asked=asked))

    def readable(self, value: np.ndarray, to: int) -> int:
        """Where `to`, which stays in a wait for what this rank writes next, reads a value; -1: it is not so."""
        words, waits, written = self.words, self.map.ring_waits(self.rank, to), self.map.ring_written(self.rank, to)
        place = self.arrays.position(value)
        if to == self.rank or self.pending.get(to) or (place < 0 and words[waits] and not words[waits] & 1):
            return -1
        if not self._comes(waits, 2 * (words[written] + 1), value.nbytes):
            return -1
        return self.peers.place(value) if place < 0 and words[waits] & 1 else place

    def _comes(self, word: int, value: int, size_bytes: int) -> bool:
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
            # what other ranks of this core copy meanwhile is no loss; where they compute, it takes longer
            copying = now - before < STOLEN_S + OTHERS * patience_s
            left_s -= min(now - before, patience_s / YIELDS) if copying else patience_s
        return False

    def send(self, value: np.ndarray, to: int, sr_tag: int = 0) -> list:
        if value.nbytes < PLACED_BYTES or self.pending.get(to):
            return super().send(value, to, sr_tag)
        parked, taken = self.parked.setdefault(to, deque()), self.map.placed_taken(self.rank, to)
        if len(parked) > MOST_PARKED:
            self._comes(taken, parked[-MOST_PARKED][0], value.nbytes)
        while parked and parked[0][0] <= self.words[taken]:
            parked.popleft()
        try:
            copy = self.arrays.empty(value.nbytes, np.uint8)
        except SharedMemoryTooSmall:
            return super().send(value, to, sr_tag)
        place = self.arrays.position(copy)
        if place < 0:  # the heap is full
            return super().send(value, to, sr_tag)
        self.arena.bytes[place : place + value.nbytes] = memoryview(value.reshape(-1).view(np.uint8))
        parked.append((self._place(value, place, to, sr_tag), copy))
        return [copy[:0], 0]

    def _place(self, value: np.ndarray, place: int, to: int, sr_tag: int) -> int:
        """Send the head of a message that lies at `place`; returns its number among such messages."""
        number = self.count(to)
        self._queue(with_place(pack_head(value.dtype, value.shape, sr_tag), place), np.empty(0, np.uint8), to)
        return number

    def count(self, to: int) -> int:
        """The number of one more message that `to` reads where it lies."""
        self.placed[to] = number = self.placed.get(to, 0) + 1
        return number

    def wait_for(self, source: int) -> None:
        self.say_waiting(source)
        super().wait_for(source)

    def say_waiting(self, source: int) -> None:
        """Tell `source` that this rank takes what it writes next at once, and whether its memory can be read."""
        read = self.words[self.map.ring_read(source, self.rank)]
        self.words[self.map.ring_waits(source, self.rank)] = 2 * (read + 1) + self.peers.reads(source)

    def _open(self, coming: _Coming, source: int) -> None:
        place = head_place(coming.bytes)
        super()._open(coming, source)
        if place:
            self.fetch(source, place, coming.bytes)
            coming.done = coming.bytes.size

    def fetch(self, source: int, place: int, target: np.ndarray) -> None:
        """Fill an array of bytes with what lies at a place, and tell the sender."""
        words, taken = self.words, self.map.placed_taken(source, self.rank)
        if place >= PEER:
            self.peers.fetch(source, place, target)
        else:
            memoryview(target)[:] = self.arena.bytes[place : place + target.size]
        self.loop.check_abort()  # a sender that has heard of a fault may have changed it meanwhile
        if NEEDS_FENCE:
            fence()
        words[taken] += 1
        if words[self.map.placed_asked(source, self.rank)] >= words[taken] and self.loop.futex is not None:
            self.loop.futex.wake(taken)
