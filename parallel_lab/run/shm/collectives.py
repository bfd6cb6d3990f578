"""The collectives through the arena: who writes which bytes, who reads them, and in which order they are added.

A collective is a generator that yields what it waits for (`barrier.Wait`) and returns this rank's reply. Whoever drives it waits (`comm.py`), or
looks again later (`started.py`).

Every rank has two buffers. A step is: write to one of them, meet, read the members' buffers of the same parity; the next step uses the other one, so
one meeting per step is enough (a member can be at most one step behind, and still reads the other buffer).

    all_gather      write my flat range              | read everybody's
    broadcast       the root writes                  | the others read
    scatter         the root writes n pieces         | member i reads piece i
    all_to_all      write n pieces, one per member   | read piece `me` of everybody
    reduce_scatter  write n pieces                   | add piece `me` of everybody, in group order
    all_reduce      of small values: `one_meeting.py`, of large ones: `large_sum.py`
    halos           write a strip for each neighbour | read the neighbours' strips for me

A value that lies in its rank's heap is not written: the others read it where it lies. When all values do, there are no steps: one meeting to know
where, then everybody reads what it needs, and one meeting when all have finished. Very large values of all_reduce, reduce_scatter and all_to_all are
read where they lie in private memory too, if the system allows it (`far.py`).

The order of addition is `communicator.combine`'s: ((v0 + v1) + v2) + ... in group order, element by element, so the bits are those of `answer`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...errors import ShapeError, message
from ...halo import Halo
from ..communicator import REDUCERS, Request, delivered, reply_shape
from .arena import Arena
from .barrier import Meeting, Missing, Wait
from .channels import HEAD_BYTES, pack_head, unpack_head
from .far import BLOCK_BYTES, FAR, Far, FarPiece
from .groups import Check, Group
from .heap import Heap, address_of
from .large_sum import PIECE_BYTES, LargeSum
from .one_meeting import Small
from .one_step import OneStep, fits_one_step
from .slices import as_pieces, blocks, copy_in, copy_in_turns, copy_out, positive_dim

__all__ = ["SMALL_BYTES", "Collectives", "Prepared", "Program", "combine_into"]

SMALL_BYTES = 64 * 1024  # up to here who comes last adds everything: n times the reading, but one meeting instead of two
STEP_BYTES = 1 << 20  # of a buffer in one step: the buffers of 8 ranks, twice, then stay in the cache that all cores share
EXCHANGE_STEP_BYTES = 1 << 19  # the same where every member has something for every other: all of them write all, and read all
HEAP_FROM_BYTES = 4096  # looking where a value lies takes a microsecond

Program = Generator[Wait, None, np.ndarray | None]
Prepared = Small | LargeSum | OneStep


class Collectives:
    """Whole requests of one rank as generators: `program(group, request, check, loose)`.

    started   for collectives that are started and waited for later: they have buffers of their own
    """

    def __init__(self, arena: Arena, meeting: Meeting, heap: Heap, far: Far, *, started: bool = False) -> None:
        self.arena, self.meeting, self.heap, self.far, self.rank = arena, meeting, heap, far, meeting.rank
        self.capacity = arena.map.buffer_bytes
        self.small_bytes = min(SMALL_BYTES, self.capacity // 2)
        self.starts = [[_place(arena, r, parity, started) for parity in (0, 1)] for r in range(arena.map.world_size)]
        self.last: Group | None = None
        self._scratch = np.empty(0, np.uint8)

    def begin_run(self) -> None:
        self.last = None

    def program(self, group: Group, request: Request, check: Check, loose: tuple[int, int], prepared: Prepared | None = None) -> Program:
        """This rank's part in answering `request`. Raises on every member when one does not take part."""
        while not group.joined and not group.join():
            yield group.joining()
        if request.kind == "barrier":  # touches no buffer
            yield from self._first_meeting(group, check, loose)
            return None
        yield from self.switch_to(group)
        if group.summed_seq == group.seq and request.kind not in ("all_reduce", "reduce"):
            group.take_other_buffer()
        if group.reads_far is None and self.far.wanted(group, request):
            yield from self.far.try_out(group, check)
        if prepared is not None:
            reply = yield from prepared.program(group, request.value, request.out, check, loose)
        else:
            reply = yield from getattr(self, f"_{request.kind}")(group, request, check, loose)
        group.finish()
        return reply

    def switch_to(self, group: Group) -> Generator[Wait, None, None]:
        """Make the buffers those of `group`: members of the last group may still read from mine."""
        last = self.last
        if last is not group:
            if last is not None:
                while not last.finished.test():  # they have all they need, so this wait is short
                    yield last.finished
            self.last = group

    def prepared(self, group: Group, request: Request) -> Prepared | None:
        """The prepared form of a request; None where there is none."""
        if fits_one_step(request, self.capacity, STEP_BYTES):
            return OneStep(group, request, self.heap, self.starts, combine_into)
        if request.kind not in ("all_reduce", "reduce"):
            return None
        half = self.capacity // 2
        if request.value.nbytes <= self.small_bytes:
            return Small(group, request, self.starts, half, combine_into)
        far = self.far if self.far.wanted(group, request) else None
        return LargeSum(group, request, self.heap, far, self.starts, half, combine_into)

    # the parts of all of them

    def _first_meeting(self, group: Group, check: Check, loose: tuple[int, int], value_at: int = -1, result_at: int = -1) -> Program:
        """Meet, and compare what only some members give. Tells the others where this member's value and result lie."""
        if value_at >= 0 or loose != (0, 0) or group.started:
            group.tell(value_at, result_at, loose)
        if not group.come(check):
            yield group.met
        if loose != (0, 0):
            group.compare(loose)

    def _meet(self, group: Group, check: Check) -> Program:
        if not group.come(check):
            yield group.met

    def _ranges(self, count: int, itemsize: int, parts: int, head_bytes: int = 0) -> list[tuple[int, int]]:
        """Cut `count` elements into ranges that fit a buffer holding `parts` of each. An empty value has one: it is compared like others."""
        element_bytes, capacity = max(itemsize, 1) * parts, self.capacity - head_bytes
        step_bytes = STEP_BYTES if parts == 1 else EXCHANGE_STEP_BYTES
        room = min(capacity // element_bytes, max(step_bytes // element_bytes, 1))
        if room < 1:
            what = f"one element for each of {parts} members takes {itemsize * parts} bytes, a buffer has {self.capacity}"
            raise ShapeError(message(what, hint="Give a larger arena_bytes"))
        return [(start, min(start + room, count)) for start in range(0, max(count, 1), room)]

    def _row(self, group: Group, member: int, dtype: np.dtype, count: int, offset_bytes: int = 0, *, ahead: int) -> np.ndarray:
        """`count` elements of a member's buffer, flat.  ahead: 1 before the meeting that announces them, 0 after it."""
        start = self.starts[group.members[member]][(group.seq + ahead + group.shift) & 1] + offset_bytes
        return group.view(start, dtype, count)

    def _position(self, value: np.ndarray) -> int:
        return self.heap.position(value) if value.nbytes >= HEAP_FROM_BYTES else -1

    def _readable(self, group: Group, request: Request, value: np.ndarray, value_at: int) -> int:
        """The place of a value, also where only the system can read it for others; -1 where it has to go through the buffers."""
        return self.far.place(value) if value_at < 0 and group.reads_far and self.far.wanted(group, request) else value_at

    def _theirs(self, group: Group, member: int, place: int, pieces: np.ndarray) -> np.ndarray | FarPiece:
        """A member's piece for this rank, (rows, run), where it lies; `pieces` are those of this rank's own value."""
        rows, n, run = pieces.shape
        if member == group.me:
            return pieces[:, member, :]
        if place < FAR:
            return group.view(place, pieces.dtype, pieces.size).reshape(pieces.shape)[:, group.me, :]
        return self.far.piece(group, member, place, pieces.dtype, (rows, run), n * run, group.me * run)

    def _result(self, request: Request, value: np.ndarray, value_at: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Memory for the reply: `out`, or new memory, which others can write to if the value lies where they can."""
        if request.out is not None:
            return request.out
        return self.heap.empty(shape, dtype) if value_at >= 0 else np.empty(shape, dtype)

    def _apart(self, value: np.ndarray, out: np.ndarray | None, value_at: int) -> tuple[np.ndarray, int]:
        """(value, its place), copied: writing to `out` would change it before it has been read."""
        copy = self.heap.empty(value.shape, value.dtype) if value_at >= 0 else np.empty(value.shape, value.dtype)
        copy[...] = value
        return copy, self._position(copy)

    def scratch(self, dtype: np.dtype, count: int) -> np.ndarray:
        """`count` elements of memory of this rank alone, flat; valid until the next call."""
        size = count * dtype.itemsize
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint8)
        return self._scratch[:size].view(dtype)

    # values go out whole

    def _all_gather(self, group: Group, request: Request, check: Check, loose: tuple[int, int]) -> Program:
        value, n = request.value, group.n
        wanted = request.kind == "all_gather" or request.root == self.rank
        dim = positive_dim(request.dim, value.ndim, request.kind)
        value_at, out, joined = self._position(value), None, None
        if wanted:
            out = self._result(request, value, -1, reply_shape(request), value.dtype.newbyteorder("="))
            joined = as_pieces(out, dim, n, request.kind)
            if request.out is not None and np.may_share_memory(value, out) and not _is_piece(value, out, joined, group.me):
                value, value_at = self._apart(value, out, value_at)
        flat = value.reshape(-1)
        ranges = self._ranges(value.size, value.itemsize, 1)
        places: list[int] = []
        for step, (start, stop) in enumerate(ranges):
            if value_at < 0:
                self._row(group, group.me, value.dtype, stop - start, ahead=1)[...] = flat[start:stop]
            if step:
                yield from self._meet(group, check)
            else:
                yield from self._first_meeting(group, check, loose, value_at)
                places, _ = group.places()
                if min(places) >= 0:
                    break
            for i in range(n):
                if joined is not None and stop > start:
                    copy_in(joined[:, i, :], start, stop, self._source(group, i, places[i], value.dtype, start, stop))
        if min(places) >= 0 and joined is not None:
            for i in range(n):  # in one order for all: what one has read is in the cache for the others
                piece = joined[:, i, :]
                if i != group.me or not np.may_share_memory(value, out):
                    copy_in_turns(piece, group.view(places[i], value.dtype, value.size).reshape(piece.shape), self.meeting.let_others_run)
        yield from self._until_read(group, check, places, request.root)
        return out

    _gather = _all_gather

    def _source(self, group: Group, member: int, place: int, dtype: np.dtype, start: int, stop: int) -> np.ndarray:
        """Elements [start:stop] of a member's value: where it lies, or from its buffer."""
        if place >= 0:
            return group.view(place + start * dtype.itemsize, dtype, stop - start)
        return self._row(group, member, dtype, stop - start, ahead=0)

    def _until_read(self, group: Group, check: Check, places: list[int], root: int | None = None) -> Program:
        """Values that were read where they lie belong to their ranks again when everybody has finished.  root: the only one that reads."""
        if root is None:
            if max(places) >= 0:
                yield from self._meet(group, check)
                group.check_held()
            return
        if max(places) >= 0:
            group.check_held()
        group.finish()
        if places[group.me] >= 0 and self.rank != root:
            reader = group.members.index(root)
            yield Reached(group, reader)

    def _broadcast(self, group: Group, request: Request, check: Check, loose: tuple[int, int]) -> Program:
        root = group.members.index(request.root)
        if self.rank != request.root:
            return (yield from self._receive_down(group, request, root, check, loose, parts=1, piece=0))
        value = request.value
        flat, value_at = value.reshape(-1), self._position(value)

        def write(start: int, stop: int, rows: list[np.ndarray]) -> None:
            rows[0][...] = flat[start:stop]

        yield from self._down(group, value.dtype, value.shape, check, loose, value_at, write=write)
        if request.out is None:
            return np.array(value, order="C")
        if request.out is not value:
            request.out[...] = value
        return request.out

    def _scatter(self, group: Group, request: Request, check: Check, loose: tuple[int, int]) -> Program:
        n, root, value = group.n, group.members.index(request.root), request.value
        if self.rank != request.root:
            return (yield from self._receive_down(group, request, root, check, loose, parts=n, piece=group.me))
        dim = positive_dim(request.dim, value.ndim, "scatter")
        pieces = as_pieces(value, dim, n, "scatter")

        def write(start: int, stop: int, rows: list[np.ndarray]) -> None:
            for i, row in enumerate(rows):
                copy_out(pieces[:, i, :], start, stop, row)

        shape = (*value.shape[:dim], value.shape[dim] // n, *value.shape[dim + 1 :])
        value_at = self._position(value) if pieces.shape[0] == 1 else -1  # pieces of an inner dim are gathered first
        yield from self._down(group, value.dtype, shape, check, loose, value_at, write=write, parts=n)
        mine = np.array(pieces[:, root, :], order="C").reshape(shape)
        return delivered(mine, request)

    def _down(self, group: Group, dtype: np.dtype, shape: tuple[int, ...], check: Check, loose, value_at: int, *, write, parts: int = 1) -> Program:
        """The root's side of broadcast and scatter. Each range is headed by what it is, for members that were not told."""
        head = np.frombuffer(pack_head(dtype, shape), np.uint8)
        for step, (start, stop) in enumerate(self._ranges(math.prod(shape), dtype.itemsize, parts, HEAD_BYTES)):
            self._row(group, group.me, head.dtype, HEAD_BYTES, ahead=1)[...] = head
            size = stop - start
            if size > 0 and value_at < 0:
                flat = self._row(group, group.me, dtype, size * parts, HEAD_BYTES, ahead=1)
                write(start, stop, [flat[i * size : (i + 1) * size] for i in range(parts)])
            if step:
                yield from self._meet(group, check)
            else:
                yield from self._first_meeting(group, check, loose, value_at)
            if value_at >= 0:  # all of it is there for the others to read
                group.finish()
                while not group.finished.test():
                    yield group.finished
                return

    def _receive_down(self, group: Group, request: Request, root: int, check: Check, loose, *, parts: int, piece: int) -> Program:
        # the first meeting tells what comes; its size decides how many more follow
        yield from self._first_meeting(group, check, loose)
        dtype, shape = unpack_head(self._row(group, root, np.dtype(np.uint8), HEAD_BYTES, ahead=0).tobytes())
        wanted = (shape if request.shape is None else tuple(request.shape), dtype if request.dtype is None else np.dtype(request.dtype))
        if wanted != (shape, dtype):
            mine = f"rank {self.rank} expects {wanted[1]} {wanted[0]} from {request.kind} #{group.number - 1}"
            what = f"{mine}, rank {request.root} gave {dtype} {shape}"
            self.meeting.raise_fault("CollectiveMismatch", message(what), ranks=sorted((self.rank, request.root)))
        fits = request.out is not None and (request.out.shape, request.out.dtype) == (shape, dtype)
        out = request.out if fits else np.empty(shape, dtype)
        flat = np.asarray(out).reshape(-1)
        value_at = group.told(root)[0]
        if value_at >= 0:
            copy_in_turns(flat, group.view(value_at + piece * out.nbytes, dtype, out.size), self.meeting.let_others_run)
            group.check_held()
            return delivered(out, request)
        for step, (start, stop) in enumerate(self._ranges(out.size, dtype.itemsize, parts, HEAD_BYTES)):
            if step:
                yield from self._meet(group, check)
            size = stop - start
            if size > 0:
                flat[start:stop] = self._row(group, root, dtype, size * parts, HEAD_BYTES, ahead=0)[piece * size : (piece + 1) * size]
        return delivered(out, request)

    # values go out in pieces

    def _pieces_out(self, group: Group, pieces: np.ndarray, start: int, stop: int) -> None:
        """Write range [start:stop] of every piece (rows, n, run) but my own to my buffer."""
        size, me = stop - start, group.me
        mine = self._row(group, me, pieces.dtype, size * group.n, ahead=1)
        if len(pieces) == 1:
            rows = mine.reshape(group.n, size)
            rows[:me], rows[me + 1 :] = pieces[0, :me, start:stop], pieces[0, me + 1 :, start:stop]
            return
        for i in range(group.n):
            if i != me:
                copy_out(pieces[:, i, :], start, stop, mine[i * size : (i + 1) * size])

    def _piece_for_me(self, group: Group, member: int, place: int, pieces: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Range [start:stop] of a member's piece for this rank, flat; `pieces` are those of this rank's own value."""
        size, me = stop - start, group.me
        if member == me:
            piece = pieces[:, me, :]
        elif place < 0:
            return self._row(group, member, pieces.dtype, size * group.n, ahead=0)[me * size : (me + 1) * size]
        else:
            piece = group.view(place, pieces.dtype, pieces.size).reshape(pieces.shape)[:, me, :]
        if len(piece) == 1:
            return piece[0, start:stop]
        flat = np.empty(size, pieces.dtype)
        copy_out(piece, start, stop, flat)
        return flat

    def _reduce_scatter(self, group: Group, request: Request, check: Check, loose: tuple[int, int]) -> Program:
        value, n = request.value, group.n
        dim = positive_dim(request.dim, value.ndim, "reduce_scatter")
        value_at = self._position(value)
        out = self._result(request, value, value_at, reply_shape(request), value.dtype)
        pieces = as_pieces(value, dim, n, "reduce_scatter")
        in_place = request.out is not None and np.may_share_memory(value, out)
        if in_place and not _is_piece(out, value, pieces, group.me):
            (value, value_at), in_place = self._apart(value, out, value_at), False
            pieces = as_pieces(value, dim, n, "reduce_scatter")
        value_at = self._readable(group, request, value, value_at)
        flat = out.reshape(-1)
        places: list[int] = []
        for step, (start, stop) in enumerate(self._ranges(out.size, value.itemsize, n)):
            if value_at < 0:
                self._pieces_out(group, pieces, start, stop)
            if step:
                yield from self._meet(group, check)
            else:
                yield from self._first_meeting(group, check, loose, value_at)
                places, _ = group.places()
                if min(places) >= 0:
                    break
            rows = [self._piece_for_me(group, i, places[i], pieces, start, stop) for i in range(n)]
            self._combine(rows, request.reduce, flat[start:stop], in_place)
        if min(places) >= 0:
            values = [self._theirs(group, i, places[i], pieces) for i in range(n)]
            result = out.reshape(values[group.me].shape)
            size_bytes = BLOCK_BYTES if max(places) >= FAR else PIECE_BYTES
            for block in blocks(result.shape, result.itemsize, size_bytes):
                self._combine((v[block] for v in values), request.reduce, result[block], in_place)
        yield from self._until_read(group, check, places)
        return out

    def _combine(self, rows: Iterable[np.ndarray], reduce: str, out: np.ndarray, in_place: bool) -> None:
        """`combine_into`, also where `out` is one of the rows."""
        if in_place and out.size:
            total = self.scratch(out.dtype, out.size).reshape(out.shape)
            combine_into(rows, reduce, total)
            out[...] = total
        else:
            combine_into(rows, reduce, out)

    def _all_to_all(self, group: Group, request: Request, check: Check, loose: tuple[int, int]) -> Program:
        value, n = request.value, group.n
        split = positive_dim(request.split_dim, value.ndim, "all_to_all")
        concat = positive_dim(request.concat_dim, value.ndim, "all_to_all")
        value_at = self._position(value)
        out = self._result(request, value, -1, reply_shape(request), value.dtype.newbyteorder("="))
        if request.out is not None and np.may_share_memory(value, out):
            value, value_at = self._apart(value, out, value_at)
        value_at = self._readable(group, request, value, value_at)
        pieces, joined = as_pieces(value, split, n, "all_to_all"), as_pieces(out, concat, n, "all_to_all")
        shape = [size // n if d == split else size for d, size in enumerate(value.shape)]
        places: list[int] = []
        for step, (start, stop) in enumerate(self._ranges(math.prod(shape), value.itemsize, n)):
            if value_at < 0:
                self._pieces_out(group, pieces, start, stop)
            if step:
                yield from self._meet(group, check)
            else:
                yield from self._first_meeting(group, check, loose, value_at)
                places, _ = group.places()
                if min(places) >= 0:
                    break
            for i in range(n):
                if stop > start:
                    copy_in(joined[:, i, :], start, stop, self._piece_for_me(group, i, places[i], pieces, start, stop))
        if min(places) >= 0:
            slots = out.reshape((*shape[:concat], n, *shape[concat:]))  # the joined dim as (member, its size)
            whole = (*value.shape[:split], n, shape[split], *value.shape[split + 1 :])
            for i in range(n):
                if i != group.me and places[i] >= FAR:
                    self._theirs(group, i, places[i], pieces).copy_to(joined[:, i, :])
                    continue
                theirs = value if i == group.me else group.view(places[i], value.dtype, value.size)
                source = theirs.reshape(whole)[(slice(None),) * split + (group.me,)]
                copy_in_turns(slots[(slice(None),) * concat + (i,)], source, self.meeting.let_others_run)
        yield from self._until_read(group, check, places)
        return out

    # only strips at the borders go out

    def _halo_exchange(self, group: Group, request: Request, check: Check, loose: tuple[int, int]) -> Program:
        routes, value, out, result = _halo_views(group, request)
        targets = {j: result[:, part] for j, part in routes.taken.items()}
        yield from self._strips(group, routes, value, targets, check, loose)
        targets[group.me][...] = value[:, routes.given[group.me]]
        return delivered(out, request)

    def _halo_reduce(self, group: Group, request: Request, check: Check, loose: tuple[int, int]) -> Program:
        routes, value, out, result = _halo_views(group, request)
        # strips are put aside: where windows overlap, the element takes the addend of the rank before it first
        strips = {j: np.empty((len(result), part.stop - part.start), out.dtype) for j, part in routes.taken.items() if j != group.me}
        yield from self._strips(group, routes, value, strips, check, loose)
        strips[group.me] = value[:, routes.given[group.me]]
        for j, part in routes.taken.items():
            mine = result[:, part]
            np.add(mine, strips[j], out=mine)
        return delivered(out, request)

    def _strips(
        self, group: Group, routes: _Routes, value: np.ndarray, targets: dict[int, np.ndarray], check: Check, loose: tuple[int, int]
    ) -> Program:
        """Hand each neighbour its strip of `value` (rows, run), and put what each neighbour gives into its target (rows, strip).

        A buffer holds two pieces: for the member before, for the member after. All members take as many steps as the longest strip needs, so that
        they meet equally often.
        """
        me = group.me
        sent = [(j, value[:, part]) for j, part in routes.given.items() if j != me]
        for step, (start, stop) in enumerate(self._ranges(routes.longest * len(value), value.itemsize, 2)):
            size = stop - start
            mine = self._row(group, me, value.dtype, 2 * size, ahead=1)
            for j, strip in sent:
                copy_out(strip, start, min(stop, strip.size), mine[size if j > me else 0 :])
            if step:
                yield from self._meet(group, check)
            else:
                yield from self._first_meeting(group, check, loose)
            for j, _ in sent:
                row = self._row(group, j, value.dtype, 2 * size, ahead=0)
                copy_in(targets[j], start, min(stop, targets[j].size), row[0 if j > me else size :])


def _place(arena: Arena, rank: int, parity: int, started: bool) -> int:
    """Byte of the block at which a buffer starts."""
    return arena.map.data_start + (4 * rank + 2 * started + parity) * arena.map.buffer_bytes


def _is_piece(small: np.ndarray, large: np.ndarray, pieces: np.ndarray, member: int) -> bool:
    """Whether `small` is the memory of piece `member` of `large`, whose pieces as (rows, n, run) are `pieces`."""
    return len(pieces) == 1 and address_of(small) == address_of(large) + member * pieces.shape[2] * large.itemsize


class Reached:
    """Waiting until one member has read what it needs from this rank's memory."""

    bell = None

    def __init__(self, group: Group, member: int) -> None:
        self.group, self.member, self.seq = group, member, group.seq

    def test(self) -> bool:
        group = self.group
        return group.words[group.done[self.member]] >= self.seq

    def examine(self) -> None:
        pass

    def missing(self) -> Missing | None:
        group = self.group
        return None if self.test() else (group.members[self.member], group.done[self.member], self.seq, group.started)


@dataclass(frozen=True)
class _Routes:
    """Which part of each row one member of a halo gives to whom, and where that which it gets goes; by member, itself included, ascending.

    longest   elements per row of the longest strip of all members
    """

    given: dict[int, slice]
    taken: dict[int, slice]
    longest: int


@lru_cache(maxsize=256)
def _routes(halo: Halo, kind: str, me: int, inner: int) -> _Routes:
    """inner   elements in memory per element along the dim"""
    members = sorted((*halo.neighbours(me), me))
    given, taken = ({j: slice(start * inner, stop * inner) for j in members for start, stop in [of(kind, me, j)]} for of in (halo.given, halo.taken))
    return _Routes(given, taken, inner * max(count for i in range(halo.members) for count in (0, *halo.sent(kind, i))))


def _halo_views(group: Group, request: Request) -> tuple[_Routes, np.ndarray, np.ndarray, np.ndarray]:
    """(routes, value as (rows, run along the dim), result of zeros, the result as (rows, run)) of a halo request."""
    value = request.value
    dim, halo = positive_dim(request.dim, value.ndim, request.kind), Halo(*request.window, members=len(group.members))
    shape = (*value.shape[:dim], halo.extents(request.kind)[1], *value.shape[dim + 1 :])
    out = np.zeros(shape, value.dtype.newbyteorder("="))
    rows, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    routes = _routes(halo, request.kind, group.me, inner)
    return routes, value.reshape(rows, value.shape[dim] * inner), out, out.reshape(rows, shape[dim] * inner)


def combine_into(rows: Iterable[np.ndarray], reduce: str, out: np.ndarray) -> None:
    """`communicator.combine` of two equal rows or more, into `out` (which is none of them). They are taken one by one."""
    ufunc = REDUCERS["sum" if reduce == "mean" else reduce]
    rows, count = iter(rows), 1
    total = next(rows)
    for count, row in enumerate(rows, 2):  # noqa: B007 - it is the number of rows in the end
        total = ufunc(total, row, out=out)
    if reduce == "mean":
        np.divide(out, out.dtype.type(count), out=out)
