"""send and recv: one byte ring per ordered pair of ranks.

A send never waits for a receiver that does something else: what does not fit the ring is copied and pushed on at this
rank's next request, wait or end of run; of a send that was started it stays where it is until the handle is waited for.
So two ranks that both send first do not block each other (a 1F1B pipeline does that), and any size fits. A message is a
head of 256 bytes, with its tag, then the data. It goes to the oldest recv of its tag, straight into its `out`; what
comes before anybody asks for its tag is kept. Nothing is taken from a source that nothing is asked of.

    source: sent += 1, ring[written % size] = bytes, written += n
    receiver: waits for written, copies out, read += n; at the end received += 1
"""

from __future__ import annotations

import json
import struct
import time
from collections import deque
from functools import lru_cache

import numpy as np

from ...base.errors import ShapeError
from ...run.mail import Mail, Taker
from .arena import ABORT, Arena
from .barrier import Condition, Missing, WaitLoop, WordReached, yield_core
from .shared_memory import NEEDS_FENCE, fence
from .slices import dtype_from_text, dtype_text

HEAD_BYTES = 256
PIECE_BYTES = 128 << 10  # told to the other side at a time, so that both copy at once, within the caches
PATIENCE_S = 50e-6  # a receiver that takes nothing for so long does something else
_FIXED = struct.Struct("<qq")  # bytes of the text; where the data lies in the block, 0: behind the head


@lru_cache(maxsize=256)
def pack_head(dtype: np.dtype, shape: tuple[int, ...], sr_tag: int = 0) -> bytes:
    """HEAD_BYTES that tell a receiver what follows."""
    text = json.dumps([dtype_text(dtype), list(shape), sr_tag]).encode()
    if len(text) > HEAD_BYTES - _FIXED.size:
        what = f"the dtype {dtype} is too long to describe in a message"
        raise ShapeError(what, allowed="Send its fields one by one")
    return _FIXED.pack(len(text), 0) + text.ljust(HEAD_BYTES - _FIXED.size)


@lru_cache(maxsize=256)
def unpack_head(head: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """(dtype, shape) of a head."""
    dtype, shape, _ = _said(head)
    return dtype_from_text(dtype), tuple(shape)


def with_place(head: bytes, place: int) -> bytes:
    """The head of a message whose data lies at a byte of the block; 0: behind the head."""
    return head[:8] + place.to_bytes(8, "little") + head[16:]


def head_place(head: bytes | memoryview | np.ndarray) -> int:
    """Where the data of a message lies, as in `with_place`."""
    return _FIXED.unpack_from(head)[1]


def head_tag(head: bytes) -> int:
    """The sr_tag of a head."""
    return _said(head)[2]


def _said(head: bytes) -> list:
    size, _ = _FIXED.unpack_from(head)
    return json.loads(head[_FIXED.size : _FIXED.size + size])


class More(Condition):
    """That `source` has written more than was read; a rank that waits for long tells which message it waits for."""

    def __init__(self, channels: Channels, source: int) -> None:
        self.words, layout, rank = channels.words, channels.map, channels.rank
        self.channels, self.source = channels, source
        self.word, self.read = layout.ring_written(source, rank), self.words[layout.ring_read(source, rank)]
        self.bell = (self.word, layout.ring_asked(source, rank), self.read + 1)

    def test(self) -> bool:
        return self.words[self.word] > self.read

    def missing(self) -> Missing | None:
        return None if self.test() else (self.source, *self.channels.edge(self.source), False)


class Asked:
    """A recv that takes a message of `source`, in `out` if it fits; `array`: what has come."""

    __slots__ = ("array", "came", "channels", "out", "source")

    def __init__(self, channels: Channels, source: int, out: np.ndarray | None, came: Taker) -> None:
        self.channels, self.source, self.out, self.came = channels, source, out, came
        self.array: np.ndarray | None = None

    def __call__(self, array: np.ndarray) -> None:
        self.array = array
        self.channels.answered(self.source)
        self.came(array)


class _Coming:
    """The message of one source that is being read: its head, then the data; `bytes` are filled up to `done`."""

    __slots__ = ("array", "asked", "bytes", "done", "sr_tag")

    def __init__(self) -> None:
        self.bytes, self.done, self.sr_tag = np.empty(HEAD_BYTES, np.uint8), 0, 0
        self.array: np.ndarray | None = None
        self.asked: Asked | None = None


class Channels:
    """One rank's ends of all its channels."""

    def __init__(self, arena: Arena, loop: WaitLoop) -> None:
        self.arena, self.loop = arena, loop
        self.words, self.map, self.rank = arena.words, arena.map, loop.rank
        self.rings: dict[tuple[int, int], np.ndarray] = {}
        self.pending: dict[int, deque[list]] = {}
        self.begin_run()

    def begin_run(self) -> None:
        """Forget what a run that has ended left."""
        self.pending.clear()
        self.mail = Mail()
        self.asking: dict[int, int] = {}  # source -> how many recvs wait for it
        self.coming: dict[int, _Coming] = {}

    def _ring(self, source: int, to: int) -> np.ndarray:
        if (source, to) not in self.rings:
            self.rings[source, to] = self.arena.ring(source, to)
        return self.rings[source, to]

    def hand_over(self, value: np.ndarray, to: int, sr_tag: int = 0) -> None:
        """Send `value`, and return when the sender may change it."""
        self.let_go(self.send(value, to, sr_tag), to)

    def send(self, value: np.ndarray, to: int, sr_tag: int = 0) -> list:
        """Hand `value` over for rank `to`, as far as there is room; what `left` returns tells how much of it is left,
        and that part of the value stays as it is until then, or until `let_go`.
        """
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.size else np.empty(0, np.uint8)
        return self._queue(pack_head(value.dtype, value.shape, sr_tag), data, to)

    def _queue(self, head: bytes, data: np.ndarray, to: int) -> list:
        queue = self.pending.setdefault(to, deque())
        self.words[self.map.sent(self.rank, to)] += 1
        piece = [data, 0]
        queue.extend(([np.frombuffer(head, np.uint8), 0], piece))
        self._push_to(to, queue)
        if not queue:
            del self.pending[to]
        return piece

    @staticmethod
    def left(piece: list) -> int:
        """Bytes of a message that are not in the ring yet."""
        return piece[0].size - piece[1]

    def let_go(self, piece: list, to: int) -> None:
        """Return when the sender may change its array: while the receiver goes on taking, the rest follows what it has
        taken; when it does something else, the rest is copied.
        """
        word, clock = self.map.ring_read(self.rank, to), time.perf_counter
        seen, since = self.words[word], clock()
        while self.left(piece):
            now = clock()
            if self.words[word] != seen:
                seen, since = self.words[word], now
            elif now - since > PATIENCE_S or self.words[ABORT]:
                piece[:] = [piece[0][piece[1] :].copy(), 0]
                return
            else:
                yield_core()
            self._push_to(to, self.pending[to])
        if not self.pending.get(to, True):
            del self.pending[to]

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
            count = min(room, piece.size - at, size - start, PIECE_BYTES)
            ring[start : start + count] = piece[at : at + count]
            queue[0][1] = at + count
            fence()
            words[written_word] = written + count
            self.wake(to, written)

    def wake(self, to: int, before: int) -> None:
        """More than the `before` bytes are written: wake `to` if it sleeps until then."""
        if NEEDS_FENCE:
            fence()
        if self.words[self.map.ring_asked(self.rank, to)] > before and self.loop.futex is not None:
            self.loop.futex.wake(self.map.ring_written(self.rank, to))

    def recv(self, source: int, out: np.ndarray | None = None, sr_tag: int = 0) -> np.ndarray:
        """The next message of `source` under this tag that no recv before it takes: in `out` if it fits."""
        asked = self.ask(source, out, sr_tag)
        while asked.array is None:
            self.wait_for(source)
        return asked.array

    def ask(
        self, source: int, out: np.ndarray | None = None, sr_tag: int = 0, came: Taker = lambda array: None
    ) -> Asked:
        """Ask for the next message of `source` under this tag, and take what is there; `came` is called with it."""
        asked = Asked(self, source, out, came)
        self.asking[source] = self.asking.get(source, 0) + 1
        self.mail.ask((source, sr_tag), asked)
        self.pull(source)
        return asked

    def answered(self, source: int) -> None:
        """A message of `source` has gone to the rank that asked for it."""
        self.words[self.map.received(source, self.rank)] += 1
        self.asking[source] -= 1
        if not self.asking[source]:
            del self.asking[source]

    def wait_for(self, source: int) -> None:
        """Wait until `source` has written more, and take it."""
        self.push()
        self.loop.wait(self.more_of(source))
        self.pull(source)

    def more_of(self, source: int) -> More:
        """That `source` has written more than was read."""
        return More(self, source)

    def edge(self, source: int) -> tuple[int, int]:
        """The word and the value that tell whether `source` has sent one more than were taken out of its ring."""
        kept = sum(len(queue) for (sender, _), queue in self.mail.kept.items() if sender == source)
        return self.map.sent(source, self.rank), self.words[self.map.received(source, self.rank)] + kept + 1

    def pull_all(self) -> bool:
        """Take what lies in the rings of those of whom something is asked; returns whether more is to come."""
        for source in tuple(self.asking):
            self.pull(source)
        return bool(self.asking)

    def pull(self, source: int) -> None:
        """Take what lies in the ring of a source, as long as something is asked of it."""
        words, size = self.words, self.map.ring_bytes
        written_word, read_word = self.map.ring_written(source, self.rank), self.map.ring_read(source, self.rank)
        ring = self._ring(source, self.rank)
        while source in self.asking:
            coming = self.coming.get(source)
            if coming is None:
                coming = self.coming[source] = _Coming()
            read, target, at = words[read_word], coming.bytes, coming.done
            start = read % size
            count = min(words[written_word] - read, target.size - at, size - start, PIECE_BYTES)
            if count:
                fence()
                target[at : at + count] = ring[start : start + count]
                fence()
                words[read_word] = read + count
                coming.done += count
            elif at < target.size:
                return
            if coming.done == target.size and coming.array is None:
                self._open(coming, source)
            if coming.done == coming.bytes.size and coming.array is not None:
                del self.coming[source]
                if coming.asked is not None:
                    coming.asked(coming.array)
                else:
                    self.mail.put((source, coming.sr_tag), coming.array)

    def _open(self, coming: _Coming, source: int) -> None:
        """The head is there: where the data goes."""
        size, _ = _FIXED.unpack_from(coming.bytes)
        head = coming.bytes[: _FIXED.size + size].tobytes()  # what is behind is of another message
        dtype, shape = unpack_head(with_place(head, 0))
        coming.sr_tag = head_tag(head)
        asked = coming.asked = self.mail.taker((source, coming.sr_tag))
        out = None if asked is None else asked.out
        fits = out is not None and (out.shape, out.dtype) == (shape, dtype)
        array = coming.array = out if fits else np.empty(shape, dtype)
        coming.bytes, coming.done = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8), 0

    def flush(self) -> None:
        """Wait until everything this rank sent lies in its ring (end of a run)."""
        while self.push():
            to = next(iter(self.pending))
            word = self.map.ring_read(self.rank, to)
            self.loop.wait(WordReached(self.words, word, self.words[word] + 1, to))
