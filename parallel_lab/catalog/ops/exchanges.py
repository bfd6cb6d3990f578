"""Several values exchanged in one call: borders of tiles, pieces of named sizes, lists of sends and receives.

They communicate as `ops.NeighborExchange` does (`ops/collectives/point_to_point.py`). Names and arguments: MindSpore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...base.checks import Check, checked, choice, integer, sequence_of
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, shorten
from ...base.hooks import current_tracer
from ...ops.collectives.base import a_group
from ...ops.collectives.point_to_point import DTYPE, INTS, SHAPES, Exchange, array_of, checked_other
from ...ops.machine.registry import OPS, PRIMITIVES


def _exactly(check: Check, count: int, allowed: str) -> Check:
    """A list or tuple of `count` values."""
    several = sequence_of(check, allowed)

    def read(value: Any) -> tuple[int, ...]:
        numbers = several.read(value)
        if len(numbers) != count or len({n for n in numbers if n >= 0}) < sum(n >= 0 for n in numbers) and count == 8:
            raise ValueError
        return numbers

    return Check(allowed, read)


_NEIGHBOURS = _exactly(integer(-1), 8, "8 ints, each rank once: top, top right, right, and so on clockwise; -1: nobody")
_LENGTHS = _exactly(integer(0), 4, "4 ints, none below 0: top, bottom, left, right")
# (down, right) of the neighbours, in MindSpore's order
_AROUND = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))


class NeighborExchangeV2(Exchange):
    """The borders of a tile, exchanged with the ranks around it.

    send_rank_ids, recv_rank_ids  ranks of the world above, above right, right, and so on clockwise; -1: nobody
    send_lens, recv_lens          how many rows and columns: top, bottom, left, right
    data_format                   "NCHW"

    x: (n, c, h, w) -> (n, c, top + h + bottom, left + w + right), what is received around it; zeros from nobody
    """

    @checked(
        send_rank_ids=_NEIGHBOURS,
        send_lens=_LENGTHS,
        recv_rank_ids=_NEIGHBOURS,
        recv_lens=_LENGTHS,
        data_format=choice("NCHW"),
        group=a_group,
    )
    def __init__(
        self,
        send_rank_ids: Any,
        send_lens: Any,
        recv_rank_ids: Any,
        recv_lens: Any,
        data_format: str,
        group: str | None = None,
    ) -> None:
        self.send_rank_ids, self.send_lens = send_rank_ids, send_lens
        self.recv_rank_ids, self.recv_lens, self.data_format = recv_rank_ids, recv_lens, data_format
        super().__init__({"group": group})

    def _check(self, shape: tuple[int, ...], me: int, members: tuple[int, ...]) -> None:
        """Raise ShapeError and WorldArgumentError if they do not fit the tile or the group."""
        allowed = f"(n, c, h, w), with rows and columns enough for send_lens {self.send_lens}"
        if len(shape) != 4 or max(self.send_lens[:2]) > shape[2] or max(self.send_lens[2:]) > shape[3]:
            raise ShapeError(f"a value of shape {tuple(shape)}", where=self.name, allowed=allowed)
        for other in (*self.send_rank_ids, *self.recv_rank_ids):
            if other >= 0:
                checked_other(self.name, other, me, members)

    def _sent(self, shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[slice, ...]]]:
        """(rank, where the strip for it lies) of what is sent."""
        for rank, sides in zip(self.send_rank_ids, _AROUND, strict=True):
            place = [slice(None), slice(None)]
            for side, size, (before, after) in zip(sides, shape[2:], _pairs(self.send_lens), strict=True):
                place.append(
                    slice(0, before) if side < 0 else slice(size - after, size) if side > 0 else slice(0, size)
                )
            if rank >= 0 and all(cut.stop > cut.start for cut in place[2:]):
                yield rank, tuple(place)

    def _received(self, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], int, tuple[int, ...]]]:
        """(direction, rank, shape) of what stands around the tile."""
        for rank, sides in zip(self.recv_rank_ids, _AROUND, strict=True):
            sizes = [
                (before, size, after)[side + 1]
                for side, size, (before, after) in zip(sides, shape[2:], _pairs(self.recv_lens), strict=True)
            ]
            if all(sizes):
                yield sides, rank, (*shape[:2], *sizes)

    @staticmethod
    def _joined(parts: dict[tuple[int, int], Any], join: Callable) -> Any:
        """The tile with what is around it."""
        rows = [[parts[down, right] for right in (-1, 0, 1) if (down, right) in parts] for down in (-1, 0, 1)]
        wide = [row[0] if len(row) == 1 else join(row, 3) for row in rows if row]
        return wide[0] if len(wide) == 1 else join(wide, 2)

    def at_once(self, x: Any) -> Any:
        me, members = self.place()
        tile = self.value(x)
        self._check(tile.shape, me, members)
        around, dtype = list(self._received(tile.shape)), str(tile.dtype)
        sends = ((rank, tile[place]) for rank, place in self._sent(tile.shape))
        came = iter(self.exchanged(sends, [(rank, shape, dtype) for _, rank, shape in around if rank >= 0]))
        parts = {side: next(came) if rank >= 0 else np.zeros(shape, tile.dtype) for side, rank, shape in around}
        traced = current_tracer.get() is not None
        return self._joined({**parts, (0, 0): tile}, OPS["concat"] if traced else np.concatenate)


class AlltoAllV(Exchange):
    """Each rank of the group a piece of x, of the size that is named, and a piece of each, one after the other.

    group, block_size   as `AlltoAllV(group, block_size)(x, send_numel_list, recv_numel_list)`: counts of blocks
    send_numel_list, recv_numel_list   the older form has them first: `AlltoAllV([2, 3], [2, 1])(x)`

    x: (sum of what is sent,) -> (sum of what is received,), elements in the order of the ranks
    """

    takes = (1, 3)

    def __init__(self, *given: Any, group: str | None = None, block_size: int = 1, **counts: Any) -> None:
        own = [x for x in given if isinstance(x, (list, tuple))]
        rest = [x for x in given if not isinstance(x, (list, tuple))]
        names = ("send_numel_list", "recv_numel_list")
        counts = {**dict(zip(names, own, strict=False)), **counts}
        counts.pop("split_sizes_empty", None)
        if len(given) > 3 or (counts and set(counts) != set(names)):
            raise ArgumentTypeError(f"called with {shorten(given)}", where="AlltoAllV", allowed=self.__doc__ or "")
        self.group = a_group("AlltoAllV", "group", rest[0] if rest else group)
        self.block_size = integer(1)("AlltoAllV", "block_size", rest[1] if len(rest) > 1 else block_size)
        self.counts = tuple(INTS("AlltoAllV", name, counts[name]) for name in names) if counts else None
        super().__init__({"group": self.group})

    def at_once(self, x: Any, send_numel_list: Any = None, recv_numel_list: Any = None) -> Any:
        me, members = self.place()
        given = [c.asnumpy().tolist() if hasattr(c, "asnumpy") else c for c in (send_numel_list, recv_numel_list)]
        named = zip(("send_numel_list", "recv_numel_list"), given, strict=True)
        counts = self.counts if self.counts is not None else tuple(INTS(self.name, n, c) for n, c in named)
        x = x if current_tracer.get() is not None else array_of(self.name, x)
        send, receive = (tuple(n * self.block_size for n in each) for each in counts)
        if not len(send) == len(receive) == len(members) or tuple(x.shape) != (sum(send),):
            what = f"a value of shape {tuple(x.shape)}, send_numel_list {counts[0]}, recv_numel_list {counts[1]}"
            allowed = f"A value of one dim, and {len(members)} counts in both, as many as ranks"
            raise ShapeError(what, where=self.name, allowed=allowed)
        ends = np.cumsum([0, *send]).tolist()
        pieces = {rank: x[a:b] for rank, a, b in zip(members, ends, ends[1:], strict=False)}
        own = members.index(me)
        if send[own] != receive[own]:
            what, allowed = f"this rank sends itself {send[own]} and receives {receive[own]}", "Equal counts"
            raise ShapeError(what, where=self.name, allowed=allowed)
        sends = [(r, pieces[r]) for r, n in zip(members, send, strict=True) if n and r != me]
        receives = [(r, (n,), str(x.dtype)) for r, n in zip(members, receive, strict=True) if n and r != me]
        came = dict(zip([r for r, *_ in receives], self.exchanged(sends, receives), strict=True))
        parts = [pieces[me] if r == me else came[r] for r, n in zip(members, receive, strict=True) if n]
        return OPS["concat"](parts, 0) if len(parts) > 1 else parts[0] if parts else x[:0]


class BatchISendIRecv(Exchange):
    """Several values sent and received in one call.

    op_types        "isend" or "irecv", one per message
    remote_ranks    the ranks of the world that take and give them
    receive_shapes, receive_dtypes  of what is received, in that order

    x: a tuple of Tensors, one per isend -> a tuple: what is received, and a meaningless number for each message sent
    """

    @checked(remote_ranks=INTS, receive_shapes=SHAPES, group=a_group)
    def __init__(
        self,
        op_types: Any,
        remote_ranks: Any,
        receive_shapes: Any = (),
        receive_dtypes: Any = (),
        group: str | None = None,
    ) -> None:
        listed = list(op_types) if isinstance(op_types, (list, tuple)) else [op_types]
        self.op_types = tuple(choice("isend", "irecv")("BatchISendIRecv", "op_types", each) for each in listed)
        self.remote_ranks, self.receive_shapes = remote_ranks, receive_shapes
        dtypes = (receive_dtypes,) if not isinstance(receive_dtypes, (list, tuple)) else receive_dtypes
        self.receive_dtypes = tuple(DTYPE("BatchISendIRecv", "receive_dtypes", each) for each in dtypes)
        received = self.op_types.count("irecv")
        if len(remote_ranks) != len(self.op_types) or {len(self.receive_dtypes), len(receive_shapes)} != {received}:
            what = f"{len(self.op_types)} op_types, {len(remote_ranks)} remote_ranks, {len(receive_shapes)} shapes and "
            allowed = "A rank per message, a shape and a dtype per irecv"
            raise ArgumentError(f"{what}{len(self.receive_dtypes)} dtypes", where="BatchISendIRecv", allowed=allowed)
        super().__init__({"group": group})

    takes = (0, 1)

    def at_once(self, x: Any = ()) -> tuple[Any, ...]:
        me, members = self.place()
        for other in self.remote_ranks:
            checked_other(self.name, other, me, members)
        given = [v for v in (x if isinstance(x, (list, tuple)) else (x,)) if v is not None]
        if len(given) != self.op_types.count("isend"):
            what, count = f"{len(given)} values", self.op_types.count("isend")
            raise ArgumentError(what, where=self.name, allowed=f"{count}, one per isend")
        values = iter(given if current_tracer.get() is not None else [array_of(self.name, v) for v in given])
        facts = iter(zip(self.receive_shapes, self.receive_dtypes, strict=True))
        both = list(zip(self.op_types, self.remote_ranks, strict=True))
        sends = [(rank, next(values)) for kind, rank in both if kind == "isend"]
        came = iter(self.exchanged(sends, [(rank, *next(facts)) for kind, rank in both if kind == "irecv"]))
        return tuple(next(came) if kind == "irecv" else np.zeros((), np.float32) for kind in self.op_types)


def _pairs(lens: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """(top, bottom), (left, right)."""
    return lens[:2], lens[2:]


PRIMITIVES.update({each.__name__: each for each in (AlltoAllV, BatchISendIRecv, NeighborExchangeV2)})
