"""send and recv of places that call again, each message like the last one: those that fit the ring of two ranks whole,
and larger ones, in shared arrays those from 512 KiB on, that are read where they lie (`placed.py`).

    send      ring[written:] = head, value            written += head + value        wake the receiver if it sleeps
    recv      look at written | is the head the last one's?  out = ring[read:]        read += head + value

    send      ring[written:] = head, place            written += head                wait until it is read
    recv      look at written | is the head the last one's?  out = what lies there    read += head

A value that goes over the ring's end is copied in two parts. What is different takes the way of `channels.py`, which
reads and writes the same ring: another dtype, shape or sr_tag, a message that finds no room or whose head goes over the
ring's end, a large one that its receiver cannot read, messages that are kept or were asked for before.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter
from types import CodeType

import numpy as np

from ....base.dtypes import plain_array
from ....base.origin import short_file
from ....run.calls import caller
from ....run.communicator import Request
from ...flight import FLIGHT_RECORDS, KEPT_CALLS
from ..arena import ABORT
from ..barrier import STOLEN_S, yield_core
from ..channels import HEAD_BYTES, head_place, pack_head, with_place
from ..comm import NOTE, Communicator, KnownCall
from ..shared_memory import NEEDS_FENCE, fence
from .peer_memory import PeerMemory
from .placed import PlacedChannels

FAR_BYTES = 512 << 10  # of a value in the block; smaller ones are through the ring before their place is known

Give = Callable[[np.ndarray], bool]
Take = Callable[[np.ndarray | None], np.ndarray | None]


class FastMessages(Communicator):
    """A communicator whose send and recv look up their place."""

    def _make_channels(self) -> PlacedChannels:
        return PlacedChannels(self._arena, self._loop, self._arrays, PeerMemory(self._arena, self._loop))

    def _begin_run(self) -> None:
        self._places: dict[tuple, tuple[CodeType, Give | Take]] = {}  # the code is kept, so that its id stays its own
        super()._begin_run()

    def _forget_calls(self) -> None:
        super()._forget_calls()
        self._places.clear()

    def send(self, x, to: int, *, sr_tag: int = 0) -> None:
        """Hand x to rank `to`; returns when it is copied, whether or not the other is ready."""
        frame, key = sys._getframe(1), None
        if type(x) is np.ndarray and x.flags.c_contiguous and not self.recording:
            try:
                key = id(frame.f_code), frame.f_lasti, x.dtype, x.shape, to, sr_tag
                place = self._places.get(key)
            except TypeError:  # not a rank
                key = place = None
            if place is not None and place[1](x):
                return
        origin = caller(1)
        value = plain_array(x, order="C", where="send")
        request = Request("send", self._members("send", (self.rank, to), origin), value, origin=origin, sr_tag=sr_tag)
        self._answer(request, False)
        if key is not None and place is None:
            self._remember_place(key, frame, request, value)

    def recv(self, source: int, shape=None, dtype=None, *, sr_tag: int = 0, out=None) -> np.ndarray:
        """The next value that rank `source` sent with this sr_tag; shape and dtype, where given, must be those sent."""
        frame, key = sys._getframe(1), None
        if (out is None or (type(out) is np.ndarray and out.flags.carray)) and not self.recording:
            try:
                place = None if out is None else (out.dtype, out.shape)
                key = id(frame.f_code), frame.f_lasti, source, shape, dtype, sr_tag, place
                place = self._places.get(key)
            except TypeError:
                key = place = None
            if place is not None:
                got = place[1](out)
                if got is not None:
                    return got
        origin = caller(1)
        wanted = None if shape is None else tuple(shape), None if dtype is None else str(np.dtype(dtype))
        fields = {"shape": wanted[0], "dtype": wanted[1], "sr_tag": sr_tag, "out": out}
        request = Request("recv", self._members("recv", (source, self.rank), origin), origin=origin, **fields)
        reply = self._answer(request, False)
        if key is not None:
            self._remember_place(key, frame, request, reply)
        return reply

    def _remember_place(self, key: tuple, frame, request: Request, value: np.ndarray) -> None:
        """Let a place go the short way from now on; its last message was `value`."""
        code, dtype = frame.f_code, value.dtype
        source, to = request.group
        own = request.origin == f"{short_file(code.co_filename)}:{frame.f_lineno}"
        if not own or source == to or dtype.kind not in "fiubc" or not dtype.isnative or not value.size:
            self._places.pop(key, None)
            return
        if len(self._places) >= KEPT_CALLS:
            self._places.clear()
        send, far = request.kind == "send", HEAD_BYTES + value.nbytes > self._arena.map.ring_bytes
        if not far and value.nbytes >= FAR_BYTES:
            far = self._arrays.position(value) >= 0 if send else self._channels.came_placed
        ways = (self._giver, self._placer) if send else (self._taker, self._fetcher)
        self._places[key] = code, ways[far](self._call(request, False), source, to, value, request.sr_tag)

    # What a call needs is bound once: attributes and calls that are left out are half of a small message's time.

    def _giver(self, known: KnownCall, source: int, to: int, like: np.ndarray, sr_tag: int) -> Give:
        """What sends values like `like`: writes a message to its ring, whole; False, and nothing done, where that
        cannot be.
        """
        head = _known_head(like, sr_tag)
        words, data, channels, loop = self._words, self._bytes, self._channels, self._loop
        sent, written_word, read_word, asked, size, ring = self._ring_words(source, to, "sent")
        total, requests, group, slot = HEAD_BYTES + like.nbytes, self._requests_word, known.group, known.slot
        records, ends, ends_at, room_until = self._records_at, self._ends, self._ends_at, 0

        def give(x: np.ndarray) -> bool:
            nonlocal room_until
            if get_ident() != loop.thread:
                loop.check_caller()
            if words[ABORT]:
                raise loop.fault_error()
            if loop.progress is not None:
                self._move_on()
                if to in channels.pending:
                    return False
            written = words[written_word]
            end, start = written + total, written % size
            if end > room_until:
                if not channels.comes(read_word, end - size, total):
                    return False
                room_until = words[read_word] + size
            over = start + total - size  # bytes that lie at the ring's beginning
            if over > total - HEAD_BYTES:
                return False
            index = self._index
            self._index = index + 1
            record, number = index % FLIGHT_RECORDS, group.number
            group.number = number + 1
            NOTE(data, records[record], index, number, perf_counter(), 0.0, slot)
            if NEEDS_FENCE:
                fence()
            words[requests] = index + 1
            words[sent] += 1
            start += ring
            data[start : start + len(head)] = head
            value = x.data.cast("B")
            if over > 0:
                whole = total - HEAD_BYTES - over
                data[start + HEAD_BYTES : start + total - over] = value[:whole]
                data[ring : ring + over] = value[whole:]
            else:
                data[start + HEAD_BYTES : start + total] = value
            if NEEDS_FENCE:
                fence()
            words[written_word] = end
            if words[asked] > written:
                channels.wake(to, written)
            ends[ends_at[record]] = perf_counter()
            return True

        return give

    def _taker(self, known: KnownCall, source: int, to: int, like: np.ndarray, sr_tag: int) -> Take:
        """What receives values like `like`: the next message, if it is like that; None, and nothing taken, where it is
        not, or is not next.
        """
        head, dtype, shape = _known_head(like, sr_tag), like.dtype, like.shape
        words, data, channels, loop = self._words, self._bytes, self._channels, self._loop
        received, written_word, read_word, asked, size, ring = self._ring_words(source, to, "received")
        more = channels.more_of(source)
        total, requests, group, slot = HEAD_BYTES + like.nbytes, self._requests_word, known.group, known.slot
        records, ends, ends_at, queue = self._records_at, self._ends, self._ends_at, (source, sr_tag)

        def take(out: np.ndarray | None) -> np.ndarray | None:
            if get_ident() != loop.thread:
                loop.check_caller()
            if words[ABORT]:
                raise loop.fault_error()
            if source in channels.asking or source in channels.coming or channels.mail.kept.get(queue):
                return None
            if loop.progress is not None:
                self._move_on()
            read = words[read_word]
            start = read % size
            over = start + total - size
            if over > total - HEAD_BYTES:
                return None
            index, record = self._index, self._index % FLIGHT_RECORDS
            number, now = group.number, perf_counter()
            self._index, group.number = index + 1, number + 1
            NOTE(data, records[record], index, number, now, 0.0, slot)
            if NEEDS_FENCE:
                fence()
            words[requests] = index + 1
            if words[written_word] == read and now >= loop.calm_until:
                # the first look of `WaitLoop.wait`: calls that are left out are seen
                start_s = now
                yield_core()
                now = perf_counter()
                if now - start_s > STOLEN_S:
                    loop.lost_time(now, now - start_s)
            if words[written_word] == read:
                more.read, more.bell = read, (written_word, asked, read + 1)
                loop.wait(more, now)
            if NEEDS_FENCE:
                fence()
            start += ring
            if words[written_word] - read < total or data[start : start + len(head)] != head:
                # taken by the other way, as the same call
                group.number, self._index = number, index
                words[requests] = index
                return None
            if out is None:
                out = np.empty(shape, dtype)
            value = out.data.cast("B")
            if over > 0:
                whole = total - HEAD_BYTES - over
                value[:whole] = data[start + HEAD_BYTES : start + total - over]
                value[whole:] = data[ring : ring + over]
            else:
                value[:] = data[start + HEAD_BYTES : start + total]
            if NEEDS_FENCE:
                fence()
            words[read_word] = read + total
            words[received] += 1
            ends[ends_at[record]] = perf_counter()
            return out

        return take

    def _placer(self, known: KnownCall, source: int, to: int, like: np.ndarray, sr_tag: int) -> Give:
        """As `_giver`, what lets the receiver read a value where it lies."""
        head, channels, group = pack_head(like.dtype, like.shape, sr_tag), self._channels, known.group

        def give(x: np.ndarray) -> bool:
            self.progress()
            place = channels.lendable(x, to)
            if place < 0:
                return False
            number = group.number
            group.number = number + 1
            index = self._note_start(number, known.slot)
            channels.lend(x, place, head, to)
            self._ends[self._ends_at[index % FLIGHT_RECORDS]] = perf_counter()
            return True

        return give

    def _fetcher(self, known: KnownCall, source: int, to: int, like: np.ndarray, sr_tag: int) -> Take:
        """As `_taker`, what reads a value where it lies."""
        head, dtype, shape = _known_head(like, sr_tag), like.dtype, like.shape
        words, data, channels, group = self._words, self._bytes, self._channels, known.group
        received, written_word, read_word, asked, size, ring = self._ring_words(source, to, "received")
        more, length, queue = channels.more_of(source), len(head), (source, sr_tag)

        def take(out: np.ndarray | None) -> np.ndarray | None:
            self.progress()
            if source in channels.asking or source in channels.coming or channels.mail.kept.get(queue):
                return None
            read = words[read_word]
            start = read % size
            if start + length > size:
                return None
            number = group.number
            group.number = number + 1
            index = self._note_start(number, known.slot)
            if words[written_word] == read:
                channels.say_waiting(source)
                more.read, more.bell = read, (written_word, asked, read + 1)
                self._loop.wait(more)
            if NEEDS_FENCE:
                fence()
            found = bytes(data[ring + start : ring + start + length])
            place = head_place(found)
            if not place or words[written_word] - read < HEAD_BYTES or with_place(found, 0) != head:
                # taken by the other way, as the same call
                group.number, self._index = number, index
                words[self._requests_word] = index
                return None
            if out is None:
                out = np.empty(shape, dtype)
            words[read_word] = read + HEAD_BYTES
            channels.fetch(source, place, out.reshape(-1).view(np.uint8))
            words[received] += 1
            self._ends[self._ends_at[index % FLIGHT_RECORDS]] = perf_counter()
            return out

        return take

    def _ring_words(self, source: int, to: int, count: str) -> tuple[int, int, int, int, int, int]:
        """(word that counts messages, those of the ring: written, read and asked; its bytes, and where it starts)."""
        layout = self._arena.map
        words = (layout.ring_written(source, to), layout.ring_read(source, to), layout.ring_asked(source, to))
        start = layout.ring_start + (source * layout.world_size + to) * layout.ring_bytes
        return getattr(layout, count)(source, to), *words, layout.ring_bytes, start


def _known_head(like: np.ndarray, sr_tag: int) -> bytes:
    """The head without what fills it up: neither written nor compared."""
    return pack_head(like.dtype, like.shape, sr_tag).rstrip()
