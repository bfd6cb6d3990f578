"""The collectives through the arena: which rank writes which bytes, which ones read them, and in which order they are
added.

Every rank has two buffers. A step is: write to one of them, meet, read the members' buffers of the same parity; the
next step uses the other one, so one barrier per step is enough (a member can be at most one step behind, and still
reads the other buffer). What does not fit takes as many steps as it needs, range by range.

    all_gather      write my range                   | read everybody's
    all_reduce      write my range                   | add my share of everybody's, in group order
                    write the sum of my share        | read everybody's
    reduce_scatter  write n pieces                   | add piece `me` of everybody, in group order
    all_to_all      write n pieces, one per member   | read piece `me` of everybody
    broadcast       the root writes                  | the others read
    scatter         the root writes n pieces         | member i reads piece i
    halos, exchange write a piece for each taker     | read everybody's piece for me

A collective is a generator that yields what it waits for (`barrier.Condition`) and returns this rank's reply. Its
caller waits (`comm.py`), or looks again later (`nonblocking.py`).

The order of addition is `communicator.combine`'s: ((v0 + v1) + v2) + ... in group order, element by element, so the
bits are those of `answer`. Shorter ways with the same bits are in `fast/`; nothing here needs them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterable

import numpy as np

from ...base.errors import ShapeError, message
from ...layout.slices import REDUCERS
from ...ops.collectives.definitions import MESSAGES
from ...run.communicator import Request, delivered, reply_shape
from ...run.mail import expected
from .arena import Arena
from .barrier import Condition, WaitLoop
from .channels import HEAD_BYTES, pack_head, unpack_head
from .groups import Check, Group
from .slices import as_pieces, copy_in, copy_in_turns, copy_out, positive_dim

STEP_BYTES = 1 << 20  # of a buffer in one step: the buffers of 8 ranks, twice, then stay in the cache all cores share
EXCHANGE_STEP_BYTES = 1 << 19  # the same where every member has something for every other: all write all, and read all

Program = Generator[Condition, None, np.ndarray | None]


class Prepared:
    """A shorter way for one call (`fast/`)."""

    is_sum = False  # whether it leaves alone what another sum has written (`Group.take_other_buffer`)
    small = False  # whether it is a `Short` one

    def program(self, group: Group, value: np.ndarray | None, out: np.ndarray | None, check: Check) -> Program:
        """This rank's part in the collective."""
        raise NotImplementedError


class Short(Prepared):
    """A way with one wait. A place that calls again takes its parts one by one: a generator takes as long again."""

    small = True
    gives = True  # whether this rank gives something
    waits: Condition | None = None  # what all wait until; None: until the members have come

    def give(self, value: np.ndarray | None, turn: int) -> None:
        """Write what this rank gives to its buffer `turn`."""
        raise NotImplementedError

    def last(self, group: Group) -> None:
        """What the member does that finds everybody there, where `waits` is for it."""

    def take(self, group: Group, value: np.ndarray | None, out: np.ndarray | None, turn: int) -> np.ndarray | None:
        """The reply."""
        raise NotImplementedError

    def program(self, group: Group, value: np.ndarray | None, out: np.ndarray | None, check: Check) -> Program:
        """The whole collective."""
        turn = (group.seq + 1 + group.shift) & 1
        self.give(value, turn)
        if check.told or group.started:
            group.tell(check)
        if not group.come(check, self.waits is None):
            yield self.waits or group.met
        elif self.waits is not None:
            self.last(group)
        if check.told:
            group.compare(check)
        return self.take(group, value, out, turn)


class Collectives:
    """One rank's requests as generators `program(group, request, check)`; `started` ones have their own buffers."""

    def __init__(self, arena: Arena, loop: WaitLoop, *, started: bool = False) -> None:
        self.arena, self.loop, self.rank = arena, loop, loop.rank
        self.capacity = arena.map.buffer_bytes
        self.starts = [[arena.map.buffer(r, parity, started) for parity in (0, 1)] for r in range(arena.map.world_size)]
        self.last: Group | None = None

    def begin_run(self) -> None:
        self.last = None

    def prepared(self, group: Group, request: Request) -> Prepared | None:
        """A shorter way for the requests that are like this one; all members find the same, from what they agree on."""
        return None

    def program(self, group: Group, request: Request, check: Check, prepared: Prepared | None = None) -> Program:
        """This rank's part in answering `request`. Raises on every member when one does not take part."""
        while not group.joined and not group.join():
            yield group.joining()
        if request.kind == "barrier":  # touches no buffer
            yield from group.meet(check)
            return None
        yield from self.switch_to(group)
        group.take_other_buffer(prepared is not None and prepared.is_sum)
        if prepared is not None:
            reply = yield from prepared.program(group, request.value, request.out, check)
        else:
            reply = yield from self.plain(group, request, check)
        group.finish()
        return reply

    def plain(self, group: Group, request: Request, check: Check) -> Program:
        """The way that needs nothing but the buffers."""
        value, out = request.value, request.out
        if request.kind != "broadcast" and value is not None and out is not None and np.may_share_memory(value, out):
            # what is written to `out` would change the value before it has been read; a root's value is read first
            request = dataclasses.replace(request, value=value.copy())
        return (yield from getattr(self, f"_{request.kind}")(group, request, check))

    def switch_to(self, group: Group) -> Generator[Condition, None, None]:
        """Make the buffers those of `group`: members of the last group may still read from mine."""
        if self.last is not group:
            if self.last is not None:  # its members have all they need, so this wait is short
                yield from self.last.all_finished()
            self.last = group

    # the parts of all of them

    def _ranges(self, count: int, itemsize: int, parts: int, head_bytes: int = 0) -> list[tuple[int, int]]:
        """Ranges of `count` elements that fit a buffer holding `parts` of each; an empty value has one too."""
        element_bytes, capacity = max(itemsize, 1) * parts, self.capacity - head_bytes
        step_bytes = STEP_BYTES if parts == 1 else EXCHANGE_STEP_BYTES
        room = min(capacity // element_bytes, max(step_bytes // element_bytes, 1))
        if room < 1:
            taken = f"one element for each of {parts} members takes {itemsize * parts} bytes"
            raise ShapeError(f"{taken}, a buffer has {self.capacity}", hint="Give a larger arena_bytes")
        return [(start, min(start + room, count)) for start in range(0, max(count, 1), room)]

    def _row(
        self, group: Group, member: int, dtype: np.dtype, count: int, offset_bytes: int = 0, *, ahead: int
    ) -> np.ndarray:
        """`count` elements of a member's buffer, flat.  ahead: 1 before the barrier that announces them, 0 after it."""
        start = self.starts[group.members[member]][(group.seq + ahead + group.shift) & 1] + offset_bytes
        return group.view(start, dtype, count)

    # values go out whole

    def _all_gather(self, group: Group, request: Request, check: Check) -> Program:
        value, n, out, joined = request.value, group.n, None, None
        dim = positive_dim(request.dim, value.ndim, request.kind)
        if request.root is None or request.root == self.rank:
            out = result_array(request, value.dtype.newbyteorder("="))
            joined = as_pieces(out, dim, n, request.kind)
        flat = value.reshape(-1)
        for start, stop in self._ranges(value.size, value.itemsize, 1):
            self._row(group, group.me, value.dtype, stop - start, ahead=1)[...] = flat[start:stop]
            yield from group.meet(check)
            if joined is not None and stop > start:
                for i in range(n):
                    copy_in(joined[:, i, :], start, stop, self._row(group, i, value.dtype, stop - start, ahead=0))
        return out

    _gather = _all_gather

    def _all_reduce(self, group: Group, request: Request, check: Check) -> Program:
        value, n, out = request.value, group.n, None
        dtype = value.dtype
        if request.root is None or request.root == self.rank:
            out = result_array(request, dtype)
        flat = value.reshape(-1)
        for start, stop in self._ranges(value.size, value.itemsize, 1):
            count = stop - start
            self._row(group, group.me, dtype, count, ahead=1)[...] = flat[start:stop]
            yield from group.meet(check)
            low, high = share(count, group.me, n)
            rows = [self._row(group, i, dtype, count, ahead=0)[low:high] for i in range(n)]
            combine_into(rows, request.reduce, self._row(group, group.me, dtype, high - low, ahead=1))
            yield from group.meet(check)
            for i in range(n) if out is not None else ():
                low, high = share(count, i, n)
                out.reshape(-1)[start + low : start + high] = self._row(group, i, dtype, high - low, ahead=0)
        return out

    _reduce = _all_reduce

    # the root's value goes out

    def _broadcast(self, group: Group, request: Request, check: Check) -> Program:
        value = request.value
        if self.rank != request.root:
            return (yield from self._receive_down(group, request, check, parts=1, piece=0))
        yield from self._down(group, value.dtype, value.shape, value.reshape(1, 1, -1), check)
        return np.array(value, order="C") if request.out is None else delivered(value, request)

    def _scatter(self, group: Group, request: Request, check: Check) -> Program:
        n, value = group.n, request.value
        if self.rank != request.root:
            return (yield from self._receive_down(group, request, check, parts=n, piece=group.me))
        dim = positive_dim(request.dim, value.ndim, "scatter")
        pieces = as_pieces(value, dim, n, "scatter")
        shape = (*value.shape[:dim], value.shape[dim] // n, *value.shape[dim + 1 :])
        yield from self._down(group, value.dtype, shape, pieces, check)
        return delivered(np.array(pieces[:, group.me, :], order="C").reshape(shape), request)

    def _down(self, group: Group, dtype: np.dtype, shape: tuple[int, ...], pieces: np.ndarray, check: Check) -> Program:
        """The root's side; each range is headed by `shape` and `pieces` (rows, parts, run) of what a member gets."""
        head, parts = np.frombuffer(pack_head(dtype, shape), np.uint8), pieces.shape[1]
        for start, stop in self._ranges(math.prod(shape), dtype.itemsize, parts, HEAD_BYTES):
            self._row(group, group.me, head.dtype, HEAD_BYTES, ahead=1)[...] = head
            size = stop - start
            if size > 0:
                flat = self._row(group, group.me, dtype, size * parts, HEAD_BYTES, ahead=1)
                for i in range(parts):
                    copy_out(pieces[:, i, :], start, stop, flat[i * size : (i + 1) * size])
            yield from group.meet(check)

    def _receive_down(self, group: Group, request: Request, check: Check, *, parts: int, piece: int) -> Program:
        root = group.members.index(request.root)
        yield from group.meet(check)  # tells what comes, and so how many barriers follow
        dtype, shape = unpack_head(self._row(group, root, np.dtype(np.uint8), HEAD_BYTES, ahead=0).tobytes())
        wanted = expected(request, shape, dtype)
        if wanted != (shape, dtype):
            mine = f"rank {self.rank} expects {wanted[1]} {wanted[0]} from {request.kind} #{group.number - 1}"
            text = message(f"{mine}, rank {request.root} gave {dtype} {shape}")
            self.loop.mismatch(text, self.rank, request.root)
        fits = request.out is not None and (request.out.shape, request.out.dtype) == (shape, dtype)
        out = request.out if fits else np.empty(shape, dtype)
        flat = np.asarray(out).reshape(-1)
        value_at = group.places()[0][root]
        if value_at >= 0:  # a root may say where its value lies, instead of writing it (`fast/`)
            copy_in_turns(flat, group.view(value_at, dtype, out.size), self.loop.let_others_run)
            group.check_held()
            return delivered(out, request)
        for start, stop in self._ranges(out.size, dtype.itemsize, parts, HEAD_BYTES):
            if start:
                yield from group.meet(check)
            size = stop - start
            if size > 0:
                row = self._row(group, root, dtype, size * parts, HEAD_BYTES, ahead=0)
                flat[start:stop] = row[piece * size : (piece + 1) * size]
        return delivered(out, request)

    # values go out in pieces

    def _swap(
        self, group: Group, pieces: np.ndarray, start: int, stop: int, check: Check
    ) -> Generator[Condition, None, list[np.ndarray]]:
        """Hand range [start:stop] of every piece (rows, n, run) to its member; everybody's range for me, flat."""
        size, dtype, n = stop - start, pieces.dtype, group.n
        mine = self._row(group, group.me, dtype, size * n, ahead=1)
        for i in range(n):
            copy_out(pieces[:, i, :], start, stop, mine[i * size : (i + 1) * size])
        yield from group.meet(check)
        where = slice(group.me * size, (group.me + 1) * size)
        return [self._row(group, i, dtype, size * n, ahead=0)[where] for i in range(n)]

    def _reduce_scatter(self, group: Group, request: Request, check: Check) -> Program:
        value = request.value
        pieces = as_pieces(value, positive_dim(request.dim, value.ndim, request.kind), group.n, request.kind)
        out = result_array(request, value.dtype)
        for start, stop in self._ranges(out.size, value.itemsize, group.n):
            rows = yield from self._swap(group, pieces, start, stop, check)
            combine_into(rows, request.reduce, out.reshape(-1)[start:stop])
        return out

    def _all_to_all(self, group: Group, request: Request, check: Check) -> Program:
        value, n, kind = request.value, group.n, request.kind
        pieces = as_pieces(value, positive_dim(request.split_dim, value.ndim, kind), n, kind)
        out = result_array(request, value.dtype.newbyteorder("="))
        joined = as_pieces(out, positive_dim(request.concat_dim, value.ndim, kind), n, kind)
        for start, stop in self._ranges(value.size // n, value.itemsize, n):
            rows = yield from self._swap(group, pieces, start, stop, check)
            for i in range(n) if stop > start else ():
                copy_in(joined[:, i, :], start, stop, rows[i])
        return out

    # members give each other pieces of different sizes: halos, exchanges

    def _piecewise(self, group: Group, request: Request, check: Check) -> Program:
        """Write the pieces for others, read those for me. A buffer has as many places as a member gives pieces at most;
        the longest piece gives all members' steps.
        """
        value, me = request.value, group.me
        parts = MESSAGES[request.kind].block_exchange(vars(request), group.n, value.shape)
        out = np.zeros(parts.reply, value.dtype.newbyteorder("="))
        takers = [(at, value[parts.given[me][j]]) for at, j in enumerate(parts.takers(me))]
        came = {j: out[box] for j, box in parts.taken[me].items()}
        if parts.adds:  # kept apart until all is here: an element takes its addends in group order
            came = {j: np.empty(place.shape, out.dtype) for j, place in came.items() if j != me}
        places = {j: parts.takers(j).index(me) for j in came if j != me}
        for start, stop in self._ranges(parts.longest, value.itemsize, max(parts.most_takers, 1)):
            size, count = stop - start, (stop - start) * parts.most_takers
            mine = self._row(group, me, value.dtype, count, ahead=1)
            for at, piece in takers:
                copy_out(piece, start, min(stop, piece.size), mine[at * size :])
            yield from group.meet(check)
            for j, at in places.items():
                row = self._row(group, j, value.dtype, count, ahead=0)
                copy_in(came[j], start, min(stop, came[j].size), row[at * size :])
        for j, box in parts.taken[me].items():
            if j == me or parts.adds:
                parts.put(out[box], value[parts.given[me][me]] if j == me else came[j])
        return delivered(out, request)

    _halo_exchange = _halo_reduce = _exchange = _exchange_reduce = _all_to_all_v = _piecewise


def result_array(request: Request, dtype: np.dtype, empty: Callable = np.empty) -> np.ndarray:
    """Where the reply goes: `out`, or a new array.  dtype: of the reply"""
    return empty(reply_shape(request), dtype) if request.out is None else request.out


def copied(found: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """`found` in `out`, or else a new copy."""
    if out is None:
        return found.copy()
    if out is not found:
        out[...] = found
    return out


def share(size: int, member: int, n: int) -> tuple[int, int]:
    """[low:high] of `size` elements that `member` of `n` adds; borders at multiples of 16: no shared cache line."""
    return (size * member // n // 16 * 16, size if member == n - 1 else size * (member + 1) // n // 16 * 16)


def combine_into(rows: Iterable[np.ndarray], reduce: str, out: np.ndarray) -> None:
    """`communicator.combine` of two equal rows or more, into `out`, which is another array."""
    ufunc = REDUCERS["sum" if reduce == "mean" else reduce]
    rows, count = iter(rows), 1
    total = next(rows)
    for count, row in enumerate(rows, 2):  # noqa: B007 - it is the number of rows in the end
        total = ufunc(total, row, out=out)
    if reduce == "mean":
        np.divide(out, out.dtype.type(count), out=out)
