"""Values that a script hands from one rank to another: `ops.Send`, `ops.Receive`, `ops.NeighborExchange`, its V2.

    ops.Send(0, dest_rank=1)(x)                                   on rank 0
    ops.Receive(0, src_rank=0, shape=(3,), dtype="float32")()     on rank 1

A send returns when the value is copied; what one rank sends another under one `sr_tag` arrives in the order of the
sends. In a network that is compiled the gradient goes back the way the value came: a Send receives it, under the same
tag, and a Receive sends it, zeros if nothing used its value. Outside of one no gradient flows through. Names and
arguments: MindSpore, ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...base.checks import Check, checked, choice, integer, sequence_of
from ...base.dtypes import plain_array
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, WorldArgumentError, shorten
from ...base.hooks import current_tracer, current_world
from ..machine.calling import Operator
from ..machine.opdef import CALLS, OpDef
from ..machine.registry import OPS
from .base import Communication, a_group, checked_root, members_of
from .definitions import MESSAGES

__all__ = ["AlltoAllV", "BatchISendIRecv", "NeighborExchange", "NeighborExchangeV2", "Receive", "Send"]

_INTS = sequence_of(integer(0), "A list or tuple of ints, none below 0: (0,), with a comma", empty=True)
_SHAPES = sequence_of(_INTS, "A list or tuple of shapes, each a list or tuple of ints: ((2, 3),)", empty=True)


def _read_dtype(value: Any) -> str:
    dtype = np.dtype(value)  # raises TypeError itself
    if value is None or dtype.kind not in "biufcV" or dtype.names is not None:
        raise TypeError
    return str(dtype)


_DTYPE = Check("A dtype of numbers, such as mindspore.float32", _read_dtype)


def _message(kind: str, result_shape: Callable, dtype: Callable) -> OpDef:
    """What stands for a call in a traced network; a rank carries out its instruction, not `fn`."""
    name = MESSAGES[kind].class_name
    about = {"positional": ("x",), "tensors": ("x",), "options": {}, "defaults": {}}
    operator = CALLS[name] = Operator(name, name, lambda x, **attrs: x, None, **about, message=kind, internal=True)
    operator.result_shape, operator.dtype, operator.__doc__ = result_shape, dtype, MESSAGES[kind].reply
    return operator


_SEND = _message("send", lambda shapes, **attrs: shapes[0], lambda dtypes, **attrs: dtypes[0])
_RECEIVE = _message("recv", lambda shapes, **attrs: attrs["shape"], lambda dtypes, **attrs: attrs["dtype"])


class Send(Communication):
    """Hand x to another rank, which takes it with Receive.  x: (...) -> x, made of what the receiver gives back.

    sr_tag     an int, at least 0: of messages under one tag what was sent first arrives first; the receiver takes
               different tags in any order
    dest_rank  the place of the receiver in the group, from 0
    group_back the group that gradients travel in: the same ranks, and not needed to tell them
    """

    @checked(sr_tag=integer(0), dest_rank=integer(0), group=a_group, group_back=a_group)
    def __init__(self, sr_tag: int, dest_rank: int, group: str | None = None, group_back: str | None = None) -> None:
        self.sr_tag, self.dest_rank = sr_tag, dest_rank
        super().__init__({"group": group})

    def at_once(self, x: Any) -> Any:
        world, members = members_of(self.name, self.given["group"])
        to = _other(self.name, "dest_rank", self.dest_rank, world.rank, members)
        world.comm.send(_values(self.name, x), to, sr_tag=self.sr_tag)
        return x

    def traced(self, tracer: Any, x: Any) -> Any:
        rank, members = self.in_trace(tracer)
        to = _other(self.name, "dest_rank", self.dest_rank, rank, members)
        return self.recorded(tracer, _SEND, (tracer.operand(x, []),), sr_tag=self.sr_tag, group=(rank, to))


class Receive(Communication):
    """What rank `src_rank` of the group has sent, `sr_tag` as in Send.  -> array of `shape` and `dtype`, as sent."""

    takes = (0, 1)

    @checked(sr_tag=integer(0), src_rank=integer(0), shape=_INTS, dtype=_DTYPE, group=a_group, group_back=a_group)
    def __init__(
        self,
        sr_tag: int,
        src_rank: int,
        shape: Any,
        dtype: Any,
        group: str | None = None,
        group_back: str | None = None,
    ) -> None:
        self.sr_tag, self.src_rank, self.shape, self.dtype = sr_tag, src_rank, shape, dtype
        super().__init__({"group": group})

    def at_once(self, x: Any = None) -> Any:
        world, members = members_of(self.name, self.given["group"])
        source = _other(self.name, "src_rank", self.src_rank, world.rank, members)
        return world.comm.recv(source, self.shape, self.dtype, sr_tag=self.sr_tag)

    def traced(self, tracer: Any, x: Any = None) -> Any:
        rank, members = self.in_trace(tracer)
        source = _other(self.name, "src_rank", self.src_rank, rank, members)
        about = {"shape": self.shape, "dtype": self.dtype, "sr_tag": self.sr_tag}
        return self.recorded(tracer, _RECEIVE, (0,), **about, group=(source, rank))


class NeighborExchange(Communication):
    """Values sent to some ranks, and values received from some, in one call.

    send_rank_ids, recv_rank_ids  ranks of the world, one per tensor
    recv_shapes, send_shapes      their shapes
    recv_type                     dtype of what arrives

    x: a tuple of Tensors, one per send_rank_id -> a tuple of arrays, one per recv_rank_id
    """

    @checked(
        send_rank_ids=_INTS,
        recv_rank_ids=_INTS,
        recv_shapes=_SHAPES,
        send_shapes=_SHAPES,
        recv_type=_DTYPE,
        group=a_group,
    )
    def __init__(
        self,
        send_rank_ids: Any,
        recv_rank_ids: Any,
        recv_shapes: Any,
        send_shapes: Any,
        recv_type: Any,
        group: str | None = None,
    ) -> None:
        self.send_rank_ids, self.recv_rank_ids = send_rank_ids, recv_rank_ids
        self.recv_shapes, self.send_shapes, self.recv_type = recv_shapes, send_shapes, recv_type
        sides = (("send", send_rank_ids, self.send_shapes), ("recv", recv_rank_ids, self.recv_shapes))
        for label, ids, shapes in sides:
            if len(ids) != len(shapes):
                what = f"{len(ids)} {label}_rank_ids and {len(shapes)} {label}_shapes"
                raise ArgumentError(what, where="NeighborExchange", allowed="As many of each")
        super().__init__({"group": group})

    def _checked(self, values: list[Any], rank: int | None, members: tuple[int, ...]) -> None:
        shapes = tuple(tuple(v.shape) for v in values)
        if shapes != self.send_shapes:
            raise ShapeError(f"values of shapes {shapes}", where=self.name, allowed=f"send_shapes {self.send_shapes}")
        for other in (*self.send_rank_ids, *self.recv_rank_ids):
            _checked_other(self.name, other, rank, members)

    def at_once(self, x: Any) -> tuple[np.ndarray, ...]:
        world, members = members_of(self.name, self.given["group"])
        values = [_values(self.name, each) for each in (x if isinstance(x, (tuple, list)) else (x,))]
        self._checked(values, world.rank, members)
        for value, rank in zip(values, self.send_rank_ids, strict=True):
            world.comm.send(value, rank)
        pairs = zip(self.recv_rank_ids, self.recv_shapes, strict=True)
        return tuple(world.comm.recv(rank, shape, self.recv_type) for rank, shape in pairs)

    def traced(self, tracer: Any, x: Any) -> tuple[Any, ...]:
        me, members = self.in_trace(tracer)
        values = [tracer.operand(each, []) for each in (x if isinstance(x, (tuple, list)) else (x,))]
        # a program that nobody runs may be that of any rank, as in MindSpore: a run refuses what a rank sends itself
        self._checked(values, None if current_world() is None else me, members)
        for value, rank in zip(values, self.send_rank_ids, strict=True):
            self.recorded(tracer, _SEND, (value,), sr_tag=0, group=(me, rank))
        about = {"dtype": self.recv_type, "sr_tag": 0}
        pairs = zip(self.recv_rank_ids, self.recv_shapes, strict=True)
        return tuple(self.recorded(tracer, _RECEIVE, (0,), shape=s, **about, group=(r, me)) for r, s in pairs)


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


class NeighborExchangeV2(Communication):
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
                _checked_other(self.name, other, me, members)

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

    def at_once(self, x: Any) -> np.ndarray:
        world, members = members_of(self.name, self.given["group"])
        tile = _values(self.name, x)
        self._check(tile.shape, world.rank, members)
        for rank, place in self._sent(tile.shape):
            world.comm.send(tile[place], rank)
        parts = {(0, 0): tile}
        for sides, rank, shape in self._received(tile.shape):
            received = world.comm.recv(rank, shape, tile.dtype) if rank >= 0 else np.zeros(shape, tile.dtype)
            parts[sides] = received
        return self._joined(parts, np.concatenate)

    def traced(self, tracer: Any, x: Any) -> Any:
        me, members = self.in_trace(tracer)
        tile = tracer.operand(x, [])
        self._check(tile.shape, me, members)
        for rank, place in self._sent(tile.shape):
            self.recorded(tracer, _SEND, (tile[place],), sr_tag=0, group=(me, rank))
        parts, about = {(0, 0): tile}, {"dtype": str(tile.dtype), "sr_tag": 0}
        for sides, rank, shape in self._received(tile.shape):
            if rank >= 0:
                parts[sides] = self.recorded(tracer, _RECEIVE, (0,), shape=shape, **about, group=(rank, me))
            else:
                parts[sides] = np.zeros(shape, tile.dtype)
        return self._joined(parts, lambda several, axis: OPS["concat"](several, axis))


class _Pieces(Communication):
    """Base of those that send some ranks a piece each, and receive one from some."""

    def exchanged(self, sends: list[tuple[int, Any]], receives: list[tuple[int, tuple[int, ...], str]]) -> list[Any]:
        """(rank, value) of what is sent, (rank, shape, dtype) of what is received -> the values received."""
        tracer = current_tracer.get()
        if tracer is None:
            world, _ = members_of(self.name, self.given["group"])
            for rank, value in sends:
                world.comm.send(value, rank)
            return [world.comm.recv(*each) for each in receives]
        me, _ = self.in_trace(tracer)
        for rank, value in sends:
            self.recorded(tracer, _SEND, (value,), sr_tag=0, group=(me, rank))
        about = [{"shape": shape, "dtype": dtype, "sr_tag": 0, "group": (r, me)} for r, shape, dtype in receives]
        return [self.recorded(tracer, _RECEIVE, (0,), **each) for each in about]

    def traced(self, tracer: Any, *inputs: Any) -> Any:
        return self.at_once(*inputs)

    def place(self) -> tuple[int, tuple[int, ...]]:
        """(this rank, the ranks of the group)."""
        tracer = current_tracer.get()
        if tracer is not None:
            return self.in_trace(tracer)
        world, members = members_of(self.name, self.given["group"])
        return world.rank, members


class AlltoAllV(_Pieces):
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
        self.counts = tuple(_INTS("AlltoAllV", name, counts[name]) for name in names) if counts else None
        super().__init__({"group": self.group})

    def at_once(self, x: Any, send_numel_list: Any = None, recv_numel_list: Any = None) -> Any:
        me, members = self.place()
        given = [c.asnumpy().tolist() if hasattr(c, "asnumpy") else c for c in (send_numel_list, recv_numel_list)]
        named = zip(("send_numel_list", "recv_numel_list"), given, strict=True)
        counts = self.counts if self.counts is not None else tuple(_INTS(self.name, n, c) for n, c in named)
        x = x if current_tracer.get() is not None else _values(self.name, x)
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


class BatchISendIRecv(_Pieces):
    """Several values sent and received in one call.

    op_types        "isend" or "irecv", one per message
    remote_ranks    the ranks of the world that take and give them
    receive_shapes, receive_dtypes  of what is received, in that order

    x: a tuple of Tensors, one per isend -> a tuple: what is received, and a meaningless number for each message sent
    """

    @checked(remote_ranks=_INTS, receive_shapes=_SHAPES, group=a_group)
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
        self.receive_dtypes = tuple(_DTYPE("BatchISendIRecv", "receive_dtypes", each) for each in dtypes)
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
            _checked_other(self.name, other, me, members)
        given = [v for v in (x if isinstance(x, (list, tuple)) else (x,)) if v is not None]
        if len(given) != self.op_types.count("isend"):
            what, count = f"{len(given)} values", self.op_types.count("isend")
            raise ArgumentError(what, where=self.name, allowed=f"{count}, one per isend")
        values = iter(given if current_tracer.get() is not None else [_values(self.name, v) for v in given])
        facts = iter(zip(self.receive_shapes, self.receive_dtypes, strict=True))
        both = list(zip(self.op_types, self.remote_ranks, strict=True))
        sends = [(rank, next(values)) for kind, rank in both if kind == "isend"]
        came = iter(self.exchanged(sends, [(rank, *next(facts)) for kind, rank in both if kind == "irecv"]))
        return tuple(next(came) if kind == "irecv" else np.zeros((), np.float32) for kind in self.op_types)


def _pairs(lens: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """(top, bottom), (left, right)."""
    return lens[:2], lens[2:]


def _checked_other(where: str, other: int, me: int | None, members: tuple[int, ...]) -> None:
    """Raise WorldArgumentError unless `other` is another rank of the group, or any if `me` is None."""
    if checked_root(where, "rank id", other, members) == me:
        raise WorldArgumentError(f"rank id={other} on rank {me}", where=where, allowed=f"Other ranks of {members}")


def _values(where: str, x: Any) -> np.ndarray:
    """The numbers of x. Raises ArgumentTypeError where a gradient would be lost in silence."""
    if getattr(x, "requires_grad", False):
        hint = "ops.stop_gradient(x) says that none is wanted; AllReduce, AllGather and AlltoAll have gradients"
        what = "a tensor made from parameters"
        raise ArgumentTypeError(what, where=where, allowed="Values without a gradient", hint=hint)
    try:
        array = plain_array(x.asnumpy() if hasattr(x, "asnumpy") else x, order="C", where=where)
    except ArgumentTypeError:
        raise
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biufcV":
        raise ArgumentTypeError(f"x={shorten(x)}", where=where, allowed="A Tensor")
    return array


def _other(where: str, label: str, place: int, rank: int, members: tuple[int, ...]) -> int:
    """The rank at a place of the group, which must not be `rank`, this one."""
    if place >= len(members) or members[place] == rank:
        allowed = f"The place of another rank in the group {members}, counted from 0"
        raise WorldArgumentError(f"{label}={place} on rank {rank}", where=where, allowed=allowed)
    return members[place]
