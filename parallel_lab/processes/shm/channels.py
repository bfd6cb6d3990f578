"""send and recv: one byte ring per ordered pair of ranks.

A send never waits for its receiver: what does not fit the ring is copied and pushed on at this rank's next request,
wait or end of run. So two ranks that both send first do not block each other (a 1F1B pipeline does that), and any size
fits. A message is a head of 256 bytes, then the data.

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
def pack_head(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """HEAD_BYTES that tell a receiver what follows."""
    text = json.dumps([dtype_text(dtype), list(shape)]).encode()
    if len(text) > HEAD_BYTES - _LENGTH.size:
        what = f"the dtype {dtype} is too long to describe in a message"
        raise ShapeError(what, allowed="Send its fields one by one")
    return _LENGTH.pack(len(text)) + text.ljust(HEAD_BYTES - _LENGTH.size)


@lru_cache(maxsize=256)
def unpack_head(head: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """(dtype, shape) of a head."""
    (size,) = _LENGTH.unpack_from(head)
    dtype, shape = json.loads(head[_LENGTH.size : _LENGTH.size + size])
    return dtype_from_text(dtype), tuple(shape)


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

    def begin_run(self) -> None:
        self.pending.clear()

    def _ring(self, source: int, to: int) -> np.ndarray:
        if (source, to) not in self.rings:
            self.rings[source, to] = self.arena.ring(source, to)
        return self.rings[source, to]

    def send(self, value: np.ndarray, to: int) -> None:
        """Hand `value` over for rank `to`; returns at once."""
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.size else np.empty(0, np.uint8)
        head = np.frombuffer(pack_head(value.dtype, value.shape), np.uint8)
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

    def recv(self, source: int, out: np.ndarray | None = None) -> tuple[np.ndarray, np.dtype, tuple[int, ...]]:
        """(array, dtype, shape) of the next message of `source`; the array is `out` if the message fits it."""
        edge = self.map.sent(source, self.rank), self.words[self.map.received(source, self.rank)] + 1
        dtype, shape = unpack_head(self._take(source, np.empty(HEAD_BYTES, np.uint8), edge).tobytes())
        if out is None or (out.shape, out.dtype) != (shape, dtype):
            out = np.empty(shape, dtype)
        if out.size:
            self._take(source, out.reshape(-1).view(np.uint8), edge)
        self.words[self.map.received(source, self.rank)] += 1
        return out, dtype, shape

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
