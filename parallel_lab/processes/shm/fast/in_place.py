"""Values of several steps that all members can read where they lie: in shared arrays, or in each other's own memory.

    tell where my value lies | meet | read what I need of everybody's | meet

Where some member's value cannot be read, all take the plain way; next to the copies a barrier is little.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ....run.communicator import Request, delivered
from ..arrays import SharedArrays
from ..channels import pack_head
from ..collectives import Collectives, Prepared, Program, combine_into, result_array
from ..groups import Check, Group
from ..slices import as_pieces, blocks, copy_in_turns, positive_dim
from .large_sum import PIECE_BYTES
from .peer_memory import BLOCK_BYTES, PEER, PeerMemory, PeerPiece


class InPlace(Prepared):
    """all_gather, reduce_scatter, all_to_all, a root's broadcast of large values; `peers` reads others' memory."""

    def __init__(self, plain: Collectives, arrays: SharedArrays, peers: PeerMemory | None, request: Request) -> None:
        self.plain, self.arrays, self.peers = plain, arrays, peers
        self.request = dataclasses.replace(request, value=None, out=None)

    def program(self, group: Group, value: np.ndarray, out: np.ndarray | None, check: Check) -> Program:
        """The whole collective."""
        request, value_at = dataclasses.replace(self.request, value=value, out=out), self.arrays.position(value)
        if request.kind == "broadcast":
            return (yield from self._broadcast(group, request, value_at, check))
        if self.peers is not None and group.reads_far is None:
            yield from self.peers.try_out(group, check)
        if out is not None and np.may_share_memory(value, out):
            # what is written to `out` would change the value while others read it
            copy = (self.arrays.empty if value_at >= 0 else np.empty)(value.shape, value.dtype)
            copy[...] = value
            value, value_at = copy, self.arrays.position(copy)
            request = dataclasses.replace(request, value=value)
        shared = value_at >= 0
        if not shared and self.peers is not None and group.reads_far:
            value_at = self.peers.place(value)
        yield from group.meet(check, value_at)
        places, _ = group.places()
        if min(places) < 0:
            return (yield from self.plain.plain(group, request, check))
        reply = getattr(self, f"_{request.kind}")(group, request, places, shared)
        yield from group.give_back(check)
        return reply

    def _broadcast(self, group: Group, request: Request, value_at: int, check: Check) -> Program:
        value = request.value
        if value_at < 0:
            return (yield from self.plain.plain(group, request, check))
        head = np.frombuffer(pack_head(value.dtype, value.shape), np.uint8)
        start = self.plain.starts[group.rank][(group.seq + 1 + group.shift) & 1]
        group.view(start, head.dtype, head.size)[...] = head
        yield from group.meet(check, value_at)
        group.finish()
        yield from group.all_finished()
        return np.array(value, order="C") if request.out is None else delivered(value, request)

    def _all_gather(self, group: Group, request: Request, places: list[int], shared: bool) -> np.ndarray:
        value = request.value
        out = result_array(request, value.dtype.newbyteorder("="))
        joined = as_pieces(out, positive_dim(request.dim, value.ndim, request.kind), group.n, request.kind)
        # in one order for all: what one has read is in the cache for the others
        for member, place in enumerate(places):
            piece = joined[:, member, :]
            theirs = value if member == group.me else group.view(place, value.dtype, value.size)
            copy_in_turns(piece, theirs.reshape(piece.shape), group.loop.let_others_run)
        return out

    def _reduce_scatter(self, group: Group, request: Request, places: list[int], shared: bool) -> np.ndarray:
        value = request.value
        pieces = as_pieces(value, positive_dim(request.dim, value.ndim, request.kind), group.n, request.kind)
        out = result_array(request, value.dtype, self.arrays.empty if shared else np.empty)
        values = [self._theirs(group, member, place, pieces) for member, place in enumerate(places)]
        result = out.reshape(values[group.me].shape)
        size_bytes = BLOCK_BYTES if max(places) >= PEER else PIECE_BYTES
        for block in blocks(result.shape, result.itemsize, size_bytes):
            combine_into((theirs[block] for theirs in values), request.reduce, result[block])
        return out

    def _all_to_all(self, group: Group, request: Request, places: list[int], shared: bool) -> np.ndarray:
        value, n, kind = request.value, group.n, request.kind
        split = positive_dim(request.split_dim, value.ndim, kind)
        concat = positive_dim(request.concat_dim, value.ndim, kind)
        pieces = as_pieces(value, split, n, kind)
        out = result_array(request, value.dtype.newbyteorder("="))
        joined = as_pieces(out, concat, n, kind)
        shape = [size // n if d == split else size for d, size in enumerate(value.shape)]
        slots = out.reshape((*shape[:concat], n, *shape[concat:]))  # the joined dim as (member, its size)
        whole = (*value.shape[:split], n, shape[split], *value.shape[split + 1 :])
        for member, place in enumerate(places):
            if member != group.me and place >= PEER:
                self._theirs(group, member, place, pieces).copy_to(joined[:, member, :])
                continue
            theirs = value if member == group.me else group.view(place, value.dtype, value.size)
            source = theirs.reshape(whole)[(slice(None),) * split + (group.me,)]
            copy_in_turns(slots[(slice(None),) * concat + (member,)], source, group.loop.let_others_run)
        return out

    def _theirs(self, group: Group, member: int, place: int, pieces: np.ndarray) -> np.ndarray | PeerPiece:
        """A member's piece for this rank, (rows, run), where it lies; `pieces` are those of this rank's own value."""
        rows, n, run = pieces.shape
        if member == group.me:
            return pieces[:, member, :]
        if place < PEER:
            return group.view(place, pieces.dtype, pieces.size).reshape(pieces.shape)[:, group.me, :]
        return self.peers.piece(group, member, place, pieces.dtype, (rows, run), n * run, group.me * run)
