"""all_gather, reduce_scatter, all_to_all and broadcast of values that fit a buffer, prepared, in one step: write my
value to my buffer, as the others will read it | meet | read from everybody. Each training step makes these calls, and
eight ranks on two cores push each other out of the caches, so nothing is looked up or made again. Larger values:
`collectives.py`. Shared arrays are read in place.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ....run.communicator import Request
from ..arrays import SharedArrays, address_of
from ..channels import HEAD_BYTES, pack_head
from ..collectives import Program, Short, combine_into, copied
from ..groups import Check, Group
from ..slices import positive_dim

# below, copying to the buffer is cheaper than telling where the value lies and one more barrier
NEAR_FROM_BYTES = 16 * 1024
# below, one copy of the whole is as fast as two of the pieces on either side of a rank's own
APART_FROM_BYTES = 256 * 1024
KEPT_SETS = 64  # sets of views of values in shared arrays; a training step needs a few

Views = list[np.ndarray]


def fits_one_step(request: Request, capacity: int, step_bytes: int) -> bool:
    """Whether a request fits a buffer of `capacity` bytes, and a step of the general way: from what all agree on."""
    if request.kind == "broadcast":
        # a member that does not know what will come takes the plain way, which must meet as often
        most = min(capacity - HEAD_BYTES, step_bytes)
        if request.value is not None:
            return request.value.nbytes <= most
        known = request.shape is not None and request.dtype is not None
        return known and math.prod(request.shape) * np.dtype(request.dtype).itemsize <= most
    return request.kind in ("all_gather", "reduce_scatter", "all_to_all") and 0 < request.value.nbytes <= capacity


class OneStep(Short):
    """What one such call needs in one group, made once; starts[member][parity]: byte where that buffer starts."""

    def __init__(self, group: Group, request: Request, arrays: SharedArrays, starts: list[list[int]]) -> None:
        self.group, self.arrays = group, arrays
        self.kind, self.reduce, self.head, self.root = request.kind, request.reduce, None, None
        self.at_once: Views | None = None  # [parity]: everybody's pieces for a rank, as they lie in its result
        self.sets: dict[tuple, tuple[Views, Views]] = {}
        self.apart: tuple | None = None  # index of the pieces before a rank's own, of those after it, and of its own
        starts = [starts[member] for member in group.members]
        if request.kind == "broadcast":
            self._prepare_broadcast(request, starts)
            return
        value, n, me, kind = request.value, group.n, group.me, request.kind
        self.dtype, self.shape, self.size = value.dtype, value.shape, value.size
        self.small = value.nbytes < NEAR_FROM_BYTES
        dim = positive_dim(request.split_dim if kind == "all_to_all" else request.dim, value.ndim, kind)
        before = (slice(None),) * dim
        mine = [self._view(start, self.size) for start in starts[me]]
        if kind == "all_gather":
            piece, at = value.shape, 0
            self.mine = [view.reshape(piece) for view in mine]
        else:
            piece = (*value.shape[:dim], value.shape[dim] // n, *value.shape[dim + 1 :])
            at = me * math.prod(piece) * self.dtype.itemsize
            # my buffer holds the pieces one after the other; as a view with the dims of the value, the dim that is
            # split twice: (..., n, size / n, ...)
            order = (*range(1, dim + 1), 0, *range(dim + 1, value.ndim + 1))
            self.mine = [view.reshape(n, *piece).transpose(order) for view in mine]
            if self.small and not dim:  # as the value lies
                self.mine = [view.reshape(value.shape) for view in mine]
            if value.nbytes >= APART_FROM_BYTES:
                self.apart = (*before, slice(me)), (*before, slice(me + 1, None)), (*before, me)
        # dims in which the pieces of a value lie apart, and the index before that of the member; those of the result
        self.parts = self.slots = (*piece[:dim], n, *piece[dim:]), before
        count = math.prod(piece)
        self.theirs = [[self._view(start[parity] + at, count).reshape(piece) for start in starts] for parity in (0, 1)]
        if kind == "all_to_all":
            concat = positive_dim(request.concat_dim, value.ndim, kind)
            self.slots = (*piece[:concat], n, *piece[concat:]), (slice(None),) * concat
        steps = {later[0] - start[0] for start, later in itertools.pairwise(starts)}
        if kind != "reduce_scatter" and len(steps) == 1 and min(steps) > 0:
            (shape, index), strides = self.slots, [*self.theirs[0][0].strides]
            strides.insert(len(index), *steps)
            self.at_once = [
                np.ndarray(shape, self.dtype, group.arena.bytes, start + at, strides) for start in starts[0]
            ]

    def _prepare_broadcast(self, request: Request, starts: list[list[int]]) -> None:
        value, group = request.value, self.group
        self.root = group.members.index(request.root)
        self.gives = self.root == group.me
        self.shape = tuple(request.shape) if value is None else value.shape
        self.dtype = np.dtype(request.dtype) if value is None else value.dtype
        self.size = math.prod(self.shape)
        self.small = self.size * self.dtype.itemsize < NEAR_FROM_BYTES
        self.theirs = [self._view(start + HEAD_BYTES, self.size).reshape(self.shape) for start in starts[self.root]]
        self.mine = [np.frombuffer(group.arena.bytes, np.uint8, HEAD_BYTES, start) for start in starts[self.root]]
        self.head = np.frombuffer(pack_head(self.dtype, self.shape), np.uint8)

    def _view(self, start: int, count: int) -> np.ndarray:
        return np.frombuffer(self.group.arena.bytes, self.dtype, count, start)

    def give(self, value: np.ndarray | None, turn: int) -> None:
        mine = self.mine[turn]
        if self.root is None:
            mine[...] = value if mine.ndim == value.ndim else value.reshape(mine.shape)
        elif self.gives:
            mine[...] = self.head
            self.theirs[turn][...] = value

    def take(self, group: Group, value: np.ndarray | None, out: np.ndarray | None, turn: int) -> np.ndarray:
        if self.root is not None:
            return copied(value if self.gives else self.theirs[turn], out)
        if out is None:
            out = self._new(-1)
        if self.at_once is None:
            self._read(self.theirs[turn], out)
        else:
            out.reshape(self.slots[0])[...] = self.at_once[turn]
        return out

    def _read(self, rows: Views, out: np.ndarray, left_out: int = -1) -> None:
        """The result from all members' pieces; `left_out`: a member whose piece is there."""
        if self.kind == "reduce_scatter":
            combine_into(rows, self.reduce, out)
            return
        shape, index = self.slots
        joined = out.reshape(shape)
        for member, row in enumerate(rows):  # in one order for all: what one has read is in the cache for the others
            if member != left_out:
                joined[(*index, member)] = row

    def program(self, group: Group, value: np.ndarray | None, out: np.ndarray | None, check: Check) -> Program:
        if self.small:
            return (yield from super().program(group, value, out, check))
        if self.root is not None:
            return (yield from self._broadcast(group, value, out, check))
        value_at = self.arrays.position(value)
        given = out is not None
        if not given:
            out = self._new(value_at)
        parts = value if self.kind == "all_gather" else value.reshape(self.parts[0])
        shared = given and value_at >= 0 and np.may_share_memory(value, out)
        if shared and not self._is_piece(value, out):
            value_at = -1  # what is written to `out` changes the value while others read it: they get a copy
        parity, apart = (group.seq + 1 + group.shift) & 1, None
        if value_at < 0:
            mine = self.mine[parity]
            if self.apart is None or (given and np.may_share_memory(value, out)):
                mine[...] = parts
            else:  # a rank's own piece stays where it is
                *others, apart = self.apart
                for where in others:
                    mine[where] = parts[where]
        yield from group.meet(check, value_at)
        rows, near = self.theirs[parity], group.some_near()
        if near:
            rows = self._where_they_lie(rows, group.places()[0])
        if apart is not None:
            rows = [*rows]
            rows[group.me] = parts[apart]
        if shared and self.kind == "reduce_scatter":
            total = np.empty(out.shape, self.dtype)
            self._read(rows, total)
            out[...] = total
        else:
            self._read(rows, out, group.me if shared and value_at >= 0 else -1)
        if near:
            yield from group.give_back(check)
        return out

    def _new(self, value_at: int) -> np.ndarray:
        if self.kind == "reduce_scatter":
            shape = self.theirs[0][0].shape
            return self.arrays.empty(shape, self.dtype) if value_at >= 0 else np.empty(shape, self.dtype)
        dims, index = self.slots
        dim = len(index)
        return np.empty((*dims[:dim], dims[dim] * dims[dim + 1], *dims[dim + 2 :]), self.dtype.newbyteorder("="))

    def _is_piece(self, value: np.ndarray, out: np.ndarray) -> bool:
        """Whether the smaller of the two is this rank's own piece of the other: nobody else reads or writes it."""
        if self.kind == "all_to_all" or math.prod(self.parts[0][: len(self.parts[1])]) != 1:
            return False
        small, large = (value, out) if self.kind == "all_gather" else (out, value)
        return address_of(small) == address_of(large) + self.group.me * small.nbytes

    def _where_they_lie(self, rows: Views, places: list[int]) -> Views:
        """What this rank reads of each member: where it lies, or else in its buffer, which is `rows`."""
        key = (id(rows), *places)
        found = self.sets.get(key)
        if found is None:
            if len(self.sets) >= KEPT_SETS:
                self.sets.clear()
            dims, index = self.parts
            found = []
            for row, place in zip(rows, places, strict=True):
                if place < 0:
                    found.append(row)
                elif self.kind == "all_gather":
                    found.append(self._view(place, self.size).reshape(self.shape))
                else:
                    found.append(self._view(place, self.size).reshape(dims)[(*index, self.group.me)])
            self.sets[key] = found
        return found

    def _broadcast(self, group: Group, value: np.ndarray | None, out: np.ndarray | None, check: Check) -> Program:
        parity, value_at = (group.seq + 1 + group.shift) & 1, -1
        if self.gives:
            value_at = self.arrays.position(value)
            self.mine[parity][...] = self.head
            if value_at < 0:
                self.theirs[parity][...] = value
        yield from group.meet(check, value_at)
        if not self.gives:
            place = group.places()[0][self.root]
            found = self.theirs[parity] if place < 0 else group.view(place, self.dtype, self.size).reshape(self.shape)
            out = copied(found, out)
            if place >= 0:
                group.check_held()
            return out
        if value_at >= 0:
            group.finish()
            yield from group.all_finished()
        return copied(value, out)
