"""The collectives through the arena: who writes which bytes, who reads them, and in which order they are added.

Every rank has two buffers. A step is: write to one of them, meet, read the members' buffers of the same parity; the next step uses the other one, so
one meeting per step is enough (a member can be at most one step behind, and still reads the other buffer).

    all_gather      write my flat range              | read everybody's
    broadcast       the root writes                  | the others read
    scatter         the root writes n pieces         | member i reads piece i
    all_to_all      write n pieces, one per member   | read piece `me` of everybody
    reduce_scatter  write n pieces                   | add piece `me` of everybody, in group order
    all_reduce      small: write all of it           | add everybody's, in group order (each for itself)
                    large: write range t             | add my 1/n of range t-1 into my buffer | read everybody's 1/n of range t-2   (in one step)
    halos           write a strip for each neighbour | read the neighbours' strips for me

The order of addition is `communicator.combine`'s: ((v0 + v1) + v2) + ... in group order, element by element, so the bits are those of `answer`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...errors import ShapeError, message
from ...halo import HALOS, Halo
from ..communicator import REDUCERS, Request
from .arena import Arena
from .barrier import Meeting, digest
from .channels import HEAD_BYTES, pack_head, unpack_head
from .slices import as_pieces, copy_in, copy_out, positive_dim

__all__ = ["Collectives", "Group", "digests"]

SMALL_BYTES = 16 * 1024  # up to here each member adds everything itself: n times the reading, but one meeting instead of three
VIEWS = 256  # kept views of buffers per group; a training step uses few different sizes


class Group:
    """What a rank keeps about one group: members, its place, the parity of the next step, views of the members' buffers."""

    def __init__(self, members: tuple[int, ...], rank: int, buffers: list[list[np.ndarray]]) -> None:
        self.members = members
        self.me = members.index(rank)
        self.peers = [m for m in members if m != rank]
        self.buffers = [[buffers[m][parity] for m in members] for parity in (0, 1)]
        self.parity = 0
        self.number = 0
        self._views: dict[tuple, list[np.ndarray]] = {}

    def rows(self, dtype: np.dtype, count: int, offset_bytes: int = 0, parity: int | None = None) -> list[np.ndarray]:
        """Per member, `count` elements of its buffer of this step, as flat arrays."""
        parity = self.parity if parity is None else parity
        key = (parity, dtype, count, offset_bytes)
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= VIEWS:
                self._views.clear()
            stop = offset_bytes + count * dtype.itemsize
            views = self._views[key] = [b[offset_bytes:stop].view(dtype) for b in self.buffers[parity]]
        return views


class Collectives:
    """Answers whole requests for one rank: `run(group, request, check, loose)`."""

    def __init__(self, arena: Arena, meeting: Meeting) -> None:
        self.arena, self.meeting, self.rank = arena, meeting, meeting.rank
        self.capacity = arena.map.buffer_bytes
        self.buffers = [[arena.buffer(r, parity) for parity in (0, 1)] for r in range(arena.map.world_size)]
        self.last: Group | None = None
        self.marks: list[tuple[int, int]] = []

    def begin_run(self) -> None:
        self.last, self.marks = None, []

    def run(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray | None:
        """This rank's reply. Raises on every member when one does not take part."""
        if request.kind == "barrier":  # touches no buffer
            return self.meeting.meet(group.peers, check, loose)
        if self.last is not group:
            # others may still read my buffers for the last group; they have all they need, so this wait is short
            self.meeting.wait_released(self.marks)
            self.last = group
        reply = getattr(self, f"_{request.kind}")(group, request, check, loose)
        self.meeting.release(group.peers)
        sequence = self.meeting.sequence
        self.marks = [(peer, sequence[peer]) for peer in group.peers]
        return reply

    def _steps(self, group: Group, count: int, itemsize: int, parts: int, check: int, loose: tuple[int, int] | None, head_bytes: int = 0):
        """Cut `count` elements into ranges that fit a buffer holding `parts` of each; yields (start, stop, meet).

        The caller writes, calls meet(), reads. Empty values still meet once, so that they are checked like others.
        """
        room = (self.capacity - head_bytes) // (max(itemsize, 1) * parts)
        if room < 1:
            what = f"one element for each of {parts} members takes {itemsize * parts} bytes, a buffer has {self.capacity}"
            raise ShapeError(message(what, hint="Give a larger arena_bytes"))

        def meet() -> None:
            self.meeting.meet(group.peers, check, loose)

        for start in range(0, max(count, 1), room):
            yield start, min(start + room, count), meet
            group.parity ^= 1

    # values go out whole

    def _all_gather(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray | None:
        value, n = request.value, len(group.members)
        wanted = request.kind == "all_gather" or request.root == self.rank
        dim = positive_dim(request.dim, value.ndim, request.kind)
        flat, out, joined = value.reshape(-1), None, None
        if wanted:
            # concatenate turns foreign byte orders into the machine's; an empty one tells the dtype it would give
            dtype = np.concatenate((np.empty(0, value.dtype), np.empty(0, value.dtype))).dtype
            out = np.empty((*value.shape[:dim], n * value.shape[dim], *value.shape[dim + 1 :]), dtype)
            joined = as_pieces(out, dim, n, request.kind)
        for start, stop, meet in self._steps(group, value.size, value.itemsize, 1, check, loose):
            rows = group.rows(value.dtype, stop - start)
            rows[group.me][...] = flat[start:stop]
            meet()
            if joined is not None and stop > start:
                for i, row in enumerate(rows):
                    copy_in(joined[:, i, :], start, stop, row)
        return out

    _gather = _all_gather

    def _broadcast(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray:
        root = group.members.index(request.root)
        if self.rank == request.root:
            out = np.array(request.value, order="C")
            self._down(group, root, out.dtype, out.shape, check, loose, write=lambda a, b, rows: rows[0].__setitem__(..., out.reshape(-1)[a:b]))
            return out
        return self._receive_down(group, request, root, check, loose, parts=1, piece=0)

    def _scatter(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray:
        n, root = len(group.members), group.members.index(request.root)
        if self.rank != request.root:
            return self._receive_down(group, request, root, check, loose, parts=n, piece=group.me)
        dim = positive_dim(request.dim, request.value.ndim, "scatter")
        pieces = as_pieces(request.value, dim, n, "scatter")

        def write(start: int, stop: int, rows: list[np.ndarray]) -> None:
            for i, row in enumerate(rows):
                copy_out(pieces[:, i, :], start, stop, row)

        shape = (*request.value.shape[:dim], request.value.shape[dim] // n, *request.value.shape[dim + 1 :])
        self._down(group, root, request.value.dtype, shape, check, loose, write=write, parts=n)
        return np.ascontiguousarray(np.split(request.value, n, axis=dim)[root]).copy()

    def _down(self, group: Group, root: int, dtype: np.dtype, shape: tuple[int, ...], check: int, loose, *, write, parts: int = 1) -> None:
        """The root's side of broadcast and scatter. Each range is headed by what it is, for members that were not told."""
        head = np.frombuffer(pack_head(dtype, shape), np.uint8)
        count = int(np.prod(shape, dtype=np.int64))
        for start, stop, meet in self._steps(group, count, dtype.itemsize, parts, check, loose, HEAD_BYTES):
            group.buffers[group.parity][root][:HEAD_BYTES] = head
            size = stop - start
            if size > 0:
                flat = group.rows(dtype, size * parts, HEAD_BYTES)[root]
                write(start, stop, [flat[i * size : (i + 1) * size] for i in range(parts)])
            meet()

    def _receive_down(self, group: Group, request: Request, root: int, check: int, loose, *, parts: int, piece: int) -> np.ndarray:
        # the first meeting tells what comes; its size decides how many more follow
        self.meeting.meet(group.peers, check, loose)
        dtype, shape = unpack_head(group.buffers[group.parity][root][:HEAD_BYTES].tobytes())
        wanted = (shape if request.shape is None else tuple(request.shape), dtype if request.dtype is None else np.dtype(request.dtype))
        if wanted != (shape, dtype):
            mine = f"rank {self.rank} expects {wanted[1]} {wanted[0]} from {request.kind} #{group.number - 1}"
            what = f"{mine}, rank {request.root} gave {dtype} {shape}"
            self.meeting.raise_fault("CollectiveMismatch", message(what), ranks=sorted((self.rank, request.root)))
        out = np.empty(shape, dtype)
        flat, first = out.reshape(-1), True
        for start, stop, meet in self._steps(group, out.size, dtype.itemsize, parts, check, loose, HEAD_BYTES):
            if not first:
                meet()
            first, size = False, stop - start
            if size > 0:
                flat[start:stop] = group.rows(dtype, size * parts, HEAD_BYTES)[root][piece * size : (piece + 1) * size]
        return out

    # values go out in pieces

    def _pieces_out(self, group: Group, pieces: np.ndarray, start: int, stop: int) -> list[np.ndarray]:
        """Write range [start:stop] of every piece (rows, n, run) to my buffer; returns the rows that will hold my piece, per member."""
        n, size = len(group.members), stop - start
        rows = group.rows(pieces.dtype, size * n)
        mine = rows[group.me]
        for i in range(n):
            copy_out(pieces[:, i, :], start, stop, mine[i * size : (i + 1) * size])
        return [row[group.me * size : (group.me + 1) * size] for row in rows]

    def _reduce_scatter(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray:
        value, n = request.value, len(group.members)
        dim = positive_dim(request.dim, value.ndim, "reduce_scatter")
        pieces = as_pieces(value, dim, n, "reduce_scatter")
        out = np.empty((*value.shape[:dim], value.shape[dim] // n, *value.shape[dim + 1 :]), value.dtype)
        flat = out.reshape(-1)
        for start, stop, meet in self._steps(group, out.size, value.itemsize, n, check, loose):
            rows = self._pieces_out(group, pieces, start, stop)
            meet()
            _combine_into(rows, request.reduce, flat[start:stop])
        return out

    def _all_to_all(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray:
        value, n = request.value, len(group.members)
        split = positive_dim(request.split_dim, value.ndim, "all_to_all")
        concat = positive_dim(request.concat_dim, value.ndim, "all_to_all")
        pieces = as_pieces(value, split, n, "all_to_all")
        shape = [size // n if d == split else size for d, size in enumerate(value.shape)]
        count = int(np.prod(shape, dtype=np.int64))
        shape[concat] *= n
        dtype = np.concatenate((np.empty(0, value.dtype), np.empty(0, value.dtype))).dtype
        out = np.empty(shape, dtype)
        joined = as_pieces(out, concat, n, "all_to_all")
        for start, stop, meet in self._steps(group, count, value.itemsize, n, check, loose):
            rows = self._pieces_out(group, pieces, start, stop)
            meet()
            if stop > start:
                for i, row in enumerate(rows):
                    copy_in(joined[:, i, :], start, stop, row)
        return out

    # only strips at the borders go out

    def _halo_exchange(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray:
        routes, value, out, result = _halo_views(group, request)
        targets = {j: result[:, part] for j, part in routes.taken.items()}
        self._strips(group, routes, value, targets, check, loose)
        targets[group.me][...] = value[:, routes.given[group.me]]
        return out

    def _halo_reduce(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray:
        routes, value, out, result = _halo_views(group, request)
        # strips are put aside: where windows overlap, the element takes the addend of the rank before it first
        strips = {j: np.empty((len(result), part.stop - part.start), out.dtype) for j, part in routes.taken.items() if j != group.me}
        self._strips(group, routes, value, strips, check, loose)
        strips[group.me] = value[:, routes.given[group.me]]
        for j, part in routes.taken.items():
            mine = result[:, part]
            np.add(mine, strips[j], out=mine)
        return out

    def _strips(
        self, group: Group, routes: _Routes, value: np.ndarray, targets: dict[int, np.ndarray], check: int, loose: tuple[int, int] | None
    ) -> None:
        """Hand each neighbour its strip of `value` (rows, run), and put what each neighbour gives into its target (rows, strip).

        A buffer holds two pieces: for the member before, for the member after. All members take as many steps as the longest strip needs, so that
        they meet equally often.
        """
        me = group.me
        sent = [(j, value[:, part]) for j, part in routes.given.items() if j != me]
        for start, stop, meet in self._steps(group, routes.longest * len(value), value.itemsize, 2, check, loose):
            size = stop - start
            rows = group.rows(value.dtype, 2 * size)
            for j, strip in sent:
                copy_out(strip, start, min(stop, strip.size), rows[me][size if j > me else 0 :])
            meet()
            for j, _ in sent:
                copy_in(targets[j], start, min(stop, targets[j].size), rows[j][0 if j > me else size :])

    # values are added

    def _all_reduce(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None) -> np.ndarray | None:
        value = request.value
        wanted = request.kind == "all_reduce" or request.root == self.rank
        if value.nbytes > min(SMALL_BYTES, self.capacity):
            return self._reduce_in_steps(group, request, check, loose, wanted)
        rows = group.rows(value.dtype, value.size)
        rows[group.me][...] = value.reshape(-1)
        self.meeting.meet(group.peers, check, loose)
        group.parity ^= 1
        if not wanted:
            return None
        out = np.empty(value.shape, value.dtype)
        _combine_into(rows, request.reduce, out.reshape(-1))
        return out

    _reduce = _all_reduce

    def _reduce_in_steps(self, group: Group, request: Request, check: int, loose: tuple[int, int] | None, wanted: bool) -> np.ndarray | None:
        """Ranges go through three stages, each one step behind the other: copied in, added by their owners, copied out.

        The first half of a buffer holds the range, the second half this rank's added part. In a step with parity p, range t is written to p
        and range t-2 read from p's second half, while range t-1 lies in the other buffer: what one member writes no other reads.
        """
        value, n, me = request.value, len(group.members), group.me
        itemsize, flat = value.itemsize, value.reshape(-1)
        half = self.capacity // 2
        room = max(half // itemsize, 1)
        out = np.empty(value.shape, value.dtype) if wanted else None
        out_flat = out.reshape(-1) if wanted else None
        ranges = [(a, min(a + room, value.size)) for a in range(0, value.size, room)]
        base, count = group.parity, len(ranges)
        for t in range(count + 2):
            parity = (base + t) & 1
            if t < count:
                a, b = ranges[t]
                group.rows(value.dtype, b - a, parity=parity)[me][...] = flat[a:b]
            if 0 <= t - 1 < count:
                a, b = ranges[t - 1]
                low, high = (b - a) * me // n, (b - a) * (me + 1) // n
                rows = [row[low:high] for row in group.rows(value.dtype, b - a, parity=parity ^ 1)]
                _combine_into(rows, request.reduce, group.rows(value.dtype, high - low, half, parity ^ 1)[me])
            if 0 <= t - 2 < count and wanted:
                a, b = ranges[t - 2]
                for i in range(n):
                    low, high = (b - a) * i // n, (b - a) * (i + 1) // n
                    out_flat[a + low : a + high] = group.rows(value.dtype, high - low, half, parity)[i]
            if t <= count:
                self.meeting.meet(group.peers, check, loose)
        group.parity = (base + count) & 1
        return out


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


def _combine_into(rows: list[np.ndarray], reduce: str, out: np.ndarray) -> None:
    """`communicator.combine` of equal rows, into `out` (which is none of them)."""
    ufunc = REDUCERS["sum" if reduce == "mean" else reduce]
    ufunc(rows[0], rows[1], out=out)  # a group has two members at least: one alone is answered without the arena
    for row in rows[2:]:
        ufunc(out, row, out=out)
    if reduce == "mean":
        np.divide(out, out.dtype.type(len(rows)), out=out)


def digests(request: Request, explicit_origin: bool) -> tuple[int, tuple[int, int] | None]:
    """(check, loose) for `Meeting.meet`; the caller mixes the number of the call into `check`.

    Symmetric collectives compare everything, source line included: two all_reduce calls in swapped order differ in nothing else. Rooted ones and
    barriers are often written on different lines for the root and the others, so there the origin counts only when it was given on purpose, and
    the shape of a broadcast or scatter only where it is known.
    """
    kind, group = request.kind, request.group
    origin = digest(request.origin) if request.origin else 0
    if kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", *HALOS):
        return digest(request.descriptor(), origin), None
    loose_origin = origin if explicit_origin else 0
    if kind in ("reduce", "gather"):
        return digest(request.descriptor()), (loose_origin, 0)
    if kind in ("broadcast", "scatter"):
        known = request.value is not None or (request.shape is not None and request.dtype is not None)
        shape = digest(request.descriptor()) if known else 0
        return digest(kind, group, request.root, request.dim if kind == "scatter" else 0), (loose_origin, shape)
    return digest(kind, group), (loose_origin, 0)
