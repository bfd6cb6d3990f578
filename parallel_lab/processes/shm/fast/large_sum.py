"""all_reduce and reduce of large values: every member adds its share.

Private values pass through the buffers in ranges, three stages one step behind the other:

    write range t to my buffer | add my 1/n of range t-1, of everybody's | read everybody's 1/n of range t-2        meet

The first half of a buffer holds the range, the second half this member's added part. What one member writes in a step
no other reads in it.

Values that lie in shared arrays are added where they are, a piece at a time, and each piece of the sum is written
wherever it is wanted: two barriers, and nothing is copied that does not have to be. Very large private ones are read
where they are as well, if the system allows it (`peer_memory.py`): each member adds its share in its own result, and
then reads the other shares there.
"""

from __future__ import annotations

import numpy as np

from ....run.communicator import Request
from ..arrays import SharedArrays, address_of
from ..collectives import Prepared, Program, combine_into, share
from ..groups import Check, Group
from ..slices import TURN_BYTES, blocks
from .peer_memory import BLOCK_BYTES as PEER_BLOCK_BYTES, PEER, PeerMemory, PeerPiece

# of a value that takes more than one range: the buffers of 8 ranks then stay in the cache that all cores share
RANGE_BYTES = 1 << 19
PIECE_BYTES = 128 * 1024  # what is added at a time: it stays in the second-level cache while it goes round
KEPT_SETS = 64  # sets of prepared views of values in shared arrays; a training step has one per bucket
KEPT_PIECES = 64  # pieces of a set; more of them are made each time, which is little compared with adding them


class LargeSum(Prepared):
    """What a large all_reduce or reduce needs in one group, made once: starts[member][parity], the byte where a buffer
    starts; `half` of a buffer in bytes; `peers` reads the others' own memory (None: too small for it).
    """

    is_sum = True

    def __init__(
        self, group: Group, request: Request, arrays: SharedArrays, peers: PeerMemory | None, starts: list, half: int
    ) -> None:
        self.arrays, self.peers, self.reduce = arrays, peers, request.reduce
        self.dtype, self.size = request.value.dtype, request.value.size
        self.root = None if request.root is None else group.members.index(request.root)
        self.wanted = self.root is None or self.root == group.me
        room = half if request.value.nbytes <= half else min(half, RANGE_BYTES)
        room = max(room // self.dtype.itemsize, 1)
        self.ranges = [slice(a, min(a + room, self.size)) for a in range(0, self.size, room)]
        last = self.ranges[-1]
        mine = [[starts[member][parity] for member in group.members] for parity in (0, 1)]
        counts = room, last.stop - last.start
        # [parity][whether it is the last range]: all others are of one size
        self.stages = [[_Stage(group, at, half, self.dtype, count) for count in counts] for at in mine]
        self.scratch = np.empty(min(self.size, max(PIECE_BYTES // self.dtype.itemsize, 1)), self.dtype)
        self.sets: dict[tuple, list] = {}

    def program(self, group: Group, value: np.ndarray, out: np.ndarray | None, check: Check) -> Program:
        """The whole collective."""
        if self.peers is not None and group.reads_far is None:
            yield from self.peers.try_out(group, check)
        arrays, wanted, out_at = self.arrays, self.wanted, -1
        value_at = arrays.position(value)
        if not wanted:
            out = None
        else:
            empty = arrays.empty if value_at >= 0 else np.empty
            if out is None:
                out = empty(value.shape, self.dtype)
            elif out is not value and np.may_share_memory(value, out) and address_of(value) != address_of(out):
                # writing to `out` would change the value before it has been read
                copy = empty(value.shape, self.dtype)
                copy[...] = value
                value, value_at = copy, arrays.position(copy)
            if out is value:
                out_at = value_at
            elif value_at >= 0 and out.dtype == self.dtype:  # others write there, in the values' byte order
                out_at = arrays.position(out)
        if self.peers is not None and group.reads_far:
            value_at = value_at if value_at >= 0 else self.peers.place(value)
            out_at = out_at if out_at >= 0 else self.peers.place(out)
        flat, sums = value.reshape(-1), out.reshape(-1) if wanted else None
        ranges, stages, base = self.ranges, self.stages, group.seq + group.shift
        count, last = len(ranges), len(ranges) - 1
        if value_at < 0:
            stages[(base + 1) & 1][last == 0].mine[...] = flat[ranges[0]]
        yield from group.meet(check, value_at, out_at)
        places = None
        if group.some_near():
            places, results = group.places()
            if self.root is not None:
                results = [results[self.root]]
            far, near = max(*places, *results) >= PEER, min(*places, *results) >= 0
            if far:
                self._add_my_share(group, flat, sums, places)
                if not group.come(check):
                    yield group.met
                self._read_sums(group, sums, results)
            elif near:
                self._add_in_place(group, places, results)
            if far or near:
                yield from group.give_back(check)
                return out
        for t in range(1, count + 2):
            parity = (base + t) & 1  # of range t - 1; those before and after it lie in the other buffers
            if t < count and value_at < 0:
                stages[parity ^ 1][t == last].mine[...] = flat[ranges[t]]
            if t <= count:
                stage = stages[parity][t - 1 == last]
                rows = stage.addends if places is None else self._rows(group, stage, places, ranges[t - 1])
                combine_into(rows, self.reduce, stage.total)
            if t >= 2 and wanted:
                start, stage = ranges[t - 2].start, stages[parity ^ 1][t - 2 == last]
                for (low, high), total in zip(stage.shares, stage.totals, strict=True):
                    sums[start + low : start + high] = total
            if t <= count and not group.come(check):
                yield group.met
        group.summed_seq = group.seq
        if places is not None:
            yield from group.give_back(check)
        return out

    def _rows(self, group: Group, stage: _Stage, places: list[int], part: slice) -> list[np.ndarray]:
        """Everybody's values of a range in my share, where some lie in shared arrays."""
        low, high = stage.shares[group.me]
        first = (part.start + low) * self.dtype.itemsize
        return [
            row if place < 0 else group.view(place + first, self.dtype, high - low)
            for row, place in zip(stage.addends, places, strict=True)
        ]

    def _add_in_place(self, group: Group, places: list[int], results: list[int]) -> None:
        key = (*places, *results)
        pieces = self.sets.get(key)
        if pieces is None:
            low, high = share(self.size, group.me, group.n)
            bytes_, step, pieces = group.arena.bytes, self.scratch.size, []
            values, outs = (
                [np.frombuffer(bytes_, self.dtype, self.size, at) for at in where] for where in (places, results)
            )
            aside = results[0] in places[2:]  # a sum there would change an addend before it has been read
            for start in range(low, high, step):
                part = slice(start, min(start + step, high))
                totals = [out[part] for out in outs]
                total = self.scratch[: part.stop - start] if aside else totals.pop(0)
                pieces.append(([v[part] for v in values], total, totals))
            if len(pieces) <= KEPT_PIECES:
                if len(self.sets) >= KEPT_SETS:
                    self.sets.clear()
                self.sets[key] = pieces
        for rows, total, outs in pieces:
            combine_into(rows, self.reduce, total)
            for out in outs:
                out[...] = total

    def _add_my_share(self, group: Group, flat: np.ndarray, sums: np.ndarray, places: list[int]) -> None:
        """My share of the sum, in my result, of everybody's values where they lie."""
        values = [self._part(group, member, place, flat) for member, place in enumerate(places)]
        low, high = share(self.size, group.me, group.n)
        result = sums[low:high].reshape(1, -1)
        shared = np.may_share_memory(flat, sums)
        scratch = np.empty(PEER_BLOCK_BYTES // self.dtype.itemsize, self.dtype) if shared else None
        for block in blocks(result.shape, self.dtype.itemsize, PEER_BLOCK_BYTES):
            target = result[block]
            total = scratch[: target.size].reshape(target.shape) if shared else target
            combine_into((value[block] for value in values), self.reduce, total)
            if shared:
                target[...] = total

    def _read_sums(self, group: Group, sums: np.ndarray, results: list[int]) -> None:
        """The others' shares of the sum, from their results; in one order and in turns, for the sake of the cache."""
        step = max(TURN_BYTES // self.dtype.itemsize, 1)
        for member, place in enumerate(results):
            if member == group.me:
                continue
            low, high = share(self.size, member, group.n)
            for start in range(low, high, step):
                stop = min(start + step, high)
                self._read(group, member, place, start, sums[start:stop].reshape(1, -1))
                group.loop.let_others_run()

    def _read(self, group: Group, member: int, place: int, start: int, target: np.ndarray) -> None:
        """target (1, run) = a member's array from element `start` on."""
        if place < PEER:
            target[...] = group.view(place, self.dtype, self.size)[start : start + target.size]
        else:
            self.peers.piece(group, member, place, self.dtype, target.shape, target.size, start).copy_to(target)

    def _part(self, group: Group, member: int, place: int, mine: np.ndarray) -> np.ndarray | PeerPiece:
        """This rank's share of a member's array, (1, size), where it lies; `mine` is its own."""
        low, high = share(self.size, group.me, group.n)
        if member == group.me:
            return mine[low:high].reshape(1, -1)
        if place < PEER:
            return group.view(place, self.dtype, self.size)[low:high].reshape(1, -1)
        return self.peers.piece(group, member, place, self.dtype, (1, high - low), high - low, low)


class _Stage:
    """Views of a range in one parity's buffers: `mine` to be written; everybody's `addends` of my share, `total` for
    their sum; `totals` of all shares, `shares` where they belong, as (low, high).
    """

    def __init__(self, group: Group, starts: list[int], half: int, dtype: np.dtype, count: int) -> None:
        def view(at: int, size: int) -> np.ndarray:
            return np.frombuffer(group.arena.bytes, dtype, size, at)

        self.shares = [share(count, i, group.n) for i in range(group.n)]
        low, high = self.shares[group.me]
        self.mine = view(starts[group.me], count)
        self.addends = [view(start + low * dtype.itemsize, high - low) for start in starts]
        self.totals = [view(start + half, high - low) for start, (low, high) in zip(starts, self.shares, strict=True)]
        self.total = self.totals[group.me]
