"""Values that a script hands from one rank to another: `ops.Send`, `ops.Receive`, `ops.NeighborExchange`.

    ops.Send(0, dest_rank=1)(x)                                   on rank 0
    ops.Receive(0, src_rank=0, shape=(3,), dtype="float32")()     on rank 1

A send returns when the value is copied; what one rank sends another under one `sr_tag` arrives in the order of the
sends. In a network that is compiled the gradient goes back the way the value came: a Send receives it, under the same
tag, and a Receive sends it, zeros if nothing used its value. Outside of one no gradient flows through. More of
them are in `catalog/ops/exchanges.py`. Names and arguments: MindSpore, ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...base.checks import Check, checked, integer, sequence_of
from ...base.dtypes import plain_array
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, WorldArgumentError, shorten
from ...base.hooks import current_tracer, current_world
from ..machine.calling import Operator
from ..machine.opdef import CALLS, OpDef
from .base import Communication, a_group, checked_root, members_of
from .definitions import MESSAGES

__all__ = ["NeighborExchange", "Receive", "Send"]

INTS = sequence_of(integer(0), "A list or tuple of ints, none below 0: (0,), with a comma", empty=True)
SHAPES = sequence_of(INTS, "A list or tuple of shapes, each a list or tuple of ints: ((2, 3),)", empty=True)


def _read_dtype(value: Any) -> str:
    dtype = np.dtype(value)  # raises TypeError itself
    if value is None or dtype.kind not in "biufcV" or dtype.names is not None:
        raise TypeError
    return str(dtype)


DTYPE = Check("A dtype of numbers, such as mindspore.float32", _read_dtype)


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
        world.comm.send(array_of(self.name, x), to, sr_tag=self.sr_tag)
        return x

    def traced(self, tracer: Any, x: Any) -> Any:
        rank, members = self.in_trace(tracer)
        to = _other(self.name, "dest_rank", self.dest_rank, rank, members)
        return self.recorded(tracer, _SEND, (tracer.operand(x, []),), sr_tag=self.sr_tag, group=(rank, to))


class Receive(Communication):
    """What rank `src_rank` of the group has sent, `sr_tag` as in Send.  -> array of `shape` and `dtype`, as sent."""

    takes = (0, 1)

    @checked(sr_tag=integer(0), src_rank=integer(0), shape=INTS, dtype=DTYPE, group=a_group, group_back=a_group)
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


class Exchange(Communication):
    """Base of those that hand values to some ranks, and receive values from some, at once and in a trace alike."""

    def traced(self, tracer: Any, *inputs: Any) -> Any:
        return self.at_once(*inputs)

    def place(self) -> tuple[int, tuple[int, ...]]:
        """(this rank, the ranks of the group)."""
        tracer = current_tracer.get()
        if tracer is not None:
            return self.in_trace(tracer)
        world, members = members_of(self.name, self.given["group"])
        return world.rank, members

    def value(self, x: Any) -> Any:
        """What is handed on: an array, in a trace a traced value."""
        tracer = current_tracer.get()
        return array_of(self.name, x) if tracer is None else tracer.operand(x, [])

    def exchanged(
        self, sends: Iterable[tuple[int, Any]], receives: Iterable[tuple[int, tuple[int, ...], Any]]
    ) -> list[Any]:
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


class NeighborExchange(Exchange):
    """Values sent to some ranks, and values received from some, in one call.

    send_rank_ids, recv_rank_ids  ranks of the world, one per tensor
    recv_shapes, send_shapes      their shapes
    recv_type                     dtype of what arrives

    x: a tuple of Tensors, one per send_rank_id -> a tuple of arrays, one per recv_rank_id
    """

    @checked(
        send_rank_ids=INTS, recv_rank_ids=INTS, recv_shapes=SHAPES, send_shapes=SHAPES, recv_type=DTYPE, group=a_group
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
            checked_other(self.name, other, rank, members)

    def at_once(self, x: Any) -> tuple[Any, ...]:
        me, members = self.place()
        values = [self.value(each) for each in (x if isinstance(x, (tuple, list)) else (x,))]
        # a program that nobody runs may be that of any rank, as in MindSpore: a run refuses what a rank sends itself
        self._checked(values, None if current_world() is None else me, members)
        received = zip(self.recv_rank_ids, self.recv_shapes, strict=True)
        sends = zip(self.send_rank_ids, values, strict=True)
        return tuple(self.exchanged(sends, [(rank, shape, self.recv_type) for rank, shape in received]))


def checked_other(where: str, other: int, me: int | None, members: tuple[int, ...]) -> None:
    """Raise WorldArgumentError unless `other` is another rank of the group, or any if `me` is None."""
    if checked_root(where, "rank id", other, members) == me:
        raise WorldArgumentError(f"rank id={other} on rank {me}", where=where, allowed=f"Other ranks of {members}")


def array_of(where: str, x: Any) -> np.ndarray:
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
