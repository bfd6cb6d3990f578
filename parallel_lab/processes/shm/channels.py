"""send and recv: one byte ring per ordered pair of ranks.

A send never waits for its receiver: what does not fit the ring is copied and pushed on at this rank's next request,
wait or end of run. So two ranks that both send first do not block each other (a 1F1B pipeline does that), and any size
fits. A message is a head of 256 bytes, with its tag, then the data. What comes under another tag than the one that is
asked for is kept until it is.

    source: sent += 1, ring[written % size] = bytes, written += n
    receiver: waits for written, copies out, read += n; at the end received += 1
"""

from __future__ import annotations

import json
import struct
from collections import deque
from functools import lru_cache

import numpy as np

from ...base.errors import ShapeError
from ...run.communicator import Request
from .arena import Arena
from .barrier import WaitLoop, WordReached
from .shared_memory import fence
from .slices import dtype_from_text, dtype_text

HEAD_BYTES = 256
_LENGTH = struct.Struct("<q")


@lru_cache(maxsize=256)
def pack_head(dtype: np.dtype, shape: tuple[int, ...], sr_tag: int = 0) -> bytes:
    """HEAD_BYTES that tell a receiver what follows."""
    text = json.dumps([dtype_text(dtype), list(shape), sr_tag]).encode()
    if len(text) > HEAD_BYTES - _LENGTH.size:
        what = f"the dtype {dtype} is too long to describe in a message"
        raise ShapeError(what, allowed="Send its fields one by one")
    return _LENGTH.pack(len(text)) + text.ljust(HEAD_BYTES - _LENGTH.size)


@lru_cache(maxsize=256)
def unpack_head(head: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """(dtype, shape) of a head."""
    dtype, shape, _ = _said(head)
    return dtype_from_text(dtype), tuple(shape)


def head_tag(head: bytes) -> int:
    """The sr_tag of a head."""
    return _said(head)[2]


def _said(head: bytes) -> list:
    (size,) = _LENGTH.unpack_from(head)
    return json.loads(head[_LENGTH.size : _LENGTH.size + size])


class Kept:
    """Messages that have come before anybody asked for their tag, per source and tag, in their order."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int], deque[np.ndarray]] = {}

    def count(self, source: int) -> int:
        """How many of a source are kept."""
        return sum(len(queue) for (sender, _), queue in self.queues.items() if sender == source)

    def put(self, source: int, sr_tag: int, array: np.ndarray) -> None:
        self.queues.setdefault((source, sr_tag), deque()).append(array)

    def take(self, source: int, sr_tag: int) -> np.ndarray | None:
        """The oldest of a source under a tag; None if there is none."""
        queue = self.queues.get((source, sr_tag))
        return queue.popleft() if queue else None


def expected(request: Request, shape: tuple[int, ...], dtype: np.dtype) -> tuple[tuple[int, ...], np.dtype]:
    """(shape, dtype) that a receiver expects, where (shape, dtype) has come: what its request says, if it does."""
    wanted = shape if request.shape is None else tuple(request.shape)
    return wanted, dtype if request.dtype is None else np.dtype(request.dtype)


class Channels:
    """One rank's ends of all its channels."""

    def __init__(self, arena: Arena, loop: WaitLoop) -> None:
        self.arena, self.loop = arena, loop
        self.words, self.map, self.rank = arena.words, arena.map, loop.rank
        self.rings: dict[tuple[int, int], np.ndarray] = {}
        self.pending: dict[int, deque[list]] = {}
        self.kept = Kept()

    def begin_run(self) -> None:
        self.pending.clear()
        self.kept = Kept()

    def _ring(self, source: int, to: int) -> np.ndarray:
        if (source, to) not in self.rings:
            self.rings[source, to] = self.arena.ring(source, to)
        return self.rings[source, to]

    def send(self, value: np.ndarray, to: int, sr_tag: int = 0) -> None:
        """Hand `value` over for rank `to`; returns at once."""
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.size else np.empty(0, np.uint8)
        head = np.frombuffer(pack_head(value.dtype, value.shape, sr_tag), np.uint8)
        queue = self.pending.setdefault(to, deque())
        self.words[self.map.sent(self.rank, to)] += 1
        queue.extend(([head, 0], [data, 0]))
        self._push_to(to, queue)
        if not queue:
            del self.pending[to]
        else:  # the caller may change its array from now on: keep the rest
            piece, at = queue[-1]
            queue[-1] = [piece[at:].copy(), 0]

    def push(self) -> bool:
        """Move what is waiting into the rings, as far as there is room; returns whether something still waits."""
        for to in [to for to, queue in self.pending.items() if queue]:
            self._push_to(to, self.pending[to])
            if not self.pending[to]:
                del self.pending[to]
        return bool(self.pending)

    def _push_to(self, to: int, queue: deque[list]) -> None:
        words, ring, size = self.words, self._ring(self.rank, to), self.map.ring_bytes
        written_word, read_word = self.map.ring_written(self.rank, to), self.map.ring_read(self.rank, to)
        while queue:
            piece, at = queue[0]
            if at == piece.size:
                queue.popleft()
                continue
            written = words[written_word]
            room = size - (written - words[read_word])
            if not room:
                return
            start = written % size
            count = min(room, piece.size - at, size - start)
            ring[start : start + count] = piece[at : at + count]
            queue[0][1] = at + count
            fence()
            words[written_word] = written + count

    def recv(self, source: int, out: np.ndarray | None = None, sr_tag: int = 0) -> np.ndarray:
        """The next message of `source` under this tag: in `out` if it fits."""
        array = self.kept.take(source, sr_tag)
        while array is None:
            edge = self.map.sent(source, self.rank), self._taken(source) + 1
            head = self._take(source, np.empty(HEAD_BYTES, np.uint8), edge).tobytes()
            dtype, shape = unpack_head(head)
            asked = head_tag(head) == sr_tag
            fits = asked and out is not None and (out.shape, out.dtype) == (shape, dtype)
            came = out if fits else np.empty(shape, dtype)
            if came.size:
                self._take(source, came.reshape(-1).view(np.uint8), edge)
            if asked:
                array = came
            else:
                self.kept.put(source, head_tag(head), came)
        self.words[self.map.received(source, self.rank)] += 1
        return array

    def _taken(self, source: int) -> int:
        """How many messages of `source` were taken out of its ring."""
        return self.words[self.map.received(source, self.rank)] + self.kept.count(source)

    def _take(self, source: int, out: np.ndarray, edge: tuple[int, int]) -> np.ndarray:
        words, ring, size = self.words, self._ring(source, self.rank), self.map.ring_bytes
        written_word, read_word = self.map.ring_written(source, self.rank), self.map.ring_read(source, self.rank)
        done, read = 0, words[read_word]
        while done < out.size:
            if words[written_word] == read:
                self.push()
                self.loop.wait(WordReached(words, written_word, read + 1, source, edge))
            fence()
            start = read % size
            count = min(words[written_word] - read, out.size - done, size - start)
            out[done : done + count] = ring[start : start + count]
            done, read = done + count, read + count
            fence()
            words[read_word] = read
        return out

    def flush(self) -> None:
        """Wait until everything this rank sent lies in its ring (end of a run)."""
        while self.push():
            to = next(iter(self.pending))
            word = self.map.ring_read(self.rank, to)
            self.loop.wait(WordReached(self.words, word, self.words[word] + 1, to))
