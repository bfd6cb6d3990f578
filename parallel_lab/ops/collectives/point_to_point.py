"""Values that a script hands from one rank to another: `ops.Send`, `ops.Receive`, `ops.NeighborExchange`.

    ops.Send(0, dest_rank=1)(x)                                   on rank 0
    ops.Receive(0, src_rank=0, shape=(3,), dtype="float32")()     on rank 1

No gradient flows through them. A send returns when the value is copied; what one rank sends another arrives in the
order of the sends. Names and arguments: MindSpore, ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import checked, integer, sequence_of
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, WorldArgumentError
from .base import Communication, a_group, checked_root, members_of

__all__ = ["NeighborExchange", "Receive", "Send"]

_INTS = sequence_of(integer(0), "A list or tuple of ints, none below 0", empty=True)


class Send(Communication):
    """Hand x to another rank, which takes it with Receive.  x: (...) -> x. No gradient flows through.

    sr_tag     an int, at least 0: of messages under one tag what was sent first arrives first; the receiver takes
               different tags in any order
    dest_rank  the place of the receiver in the group, from 0
    group_back the group that gradients would travel in: accepted, and not used
    """

    @checked(sr_tag=integer(0), dest_rank=integer(0), group=a_group, group_back=a_group)
    def __init__(self, sr_tag: int, dest_rank: int, group: str | None = None, group_back: str | None = None) -> None:
        self.sr_tag, self.dest_rank = sr_tag, dest_rank
        super().__init__({"group": group})

    def __call__(self, x: Any) -> Any:
        self.begin()
        world, members = members_of(self.name, self.attrs["group"])
        to = _other(self.name, "dest_rank", self.dest_rank, world, members)
        world.comm.send(_values(self.name, x), to, sr_tag=self.sr_tag)
        return x


class Receive(Communication):
    """What rank `src_rank` of the group has sent, `sr_tag` as in Send.  -> array of `shape` and `dtype`, as sent."""

    @checked(sr_tag=integer(0), src_rank=integer(0), shape=_INTS, group=a_group, group_back=a_group)
    def __init__(
        self,
        sr_tag: int,
        src_rank: int,
        shape: Any,
        dtype: Any,
        group: str | None = None,
        group_back: str | None = None,
    ) -> None:
        self.sr_tag, self.src_rank, self.shape, self.dtype = sr_tag, src_rank, shape, str(np.dtype(dtype))
        super().__init__({"group": group})

    def __call__(self, x: Any = None) -> np.ndarray:
        """x: anything, which a script passes to say what comes before; not read."""
        self.begin()
        world, members = members_of(self.name, self.attrs["group"])
        source = _other(self.name, "src_rank", self.src_rank, world, members)
        return world.comm.recv(source, self.shape, self.dtype, sr_tag=self.sr_tag)


class NeighborExchange(Communication):
    """Several tensors to several ranks, and as many as are wanted from others, in one call. No gradient flows through.

    send_rank_ids, recv_rank_ids  ranks of the world, one per tensor
    recv_shapes, send_shapes      their shapes
    recv_type                     dtype of what arrives

    x: a tuple of Tensors, one per send_rank_id -> a tuple of arrays, one per recv_rank_id
    """

    @checked(send_rank_ids=_INTS, recv_rank_ids=_INTS, group=a_group)
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
        self.recv_shapes, self.send_shapes = (tuple(map(tuple, shapes)) for shapes in (recv_shapes, send_shapes))
        sides = (("send", send_rank_ids, self.send_shapes), ("recv", recv_rank_ids, self.recv_shapes))
        for label, ids, shapes in sides:
            if len(ids) != len(shapes):
                what = f"{len(ids)} {label}_rank_ids and {len(shapes)} {label}_shapes"
                raise ArgumentError(what, where="NeighborExchange", allowed="As many of each")
        self.recv_type = str(np.dtype(recv_type))
        super().__init__({"group": group})

    def __call__(self, x: Any) -> tuple[np.ndarray, ...]:
        self.begin()
        world, members = members_of(self.name, self.attrs["group"])
        values = [_values(self.name, each) for each in (x if isinstance(x, (tuple, list)) else (x,))]
        shapes = tuple(tuple(v.shape) for v in values)
        if shapes != self.send_shapes:
            raise ShapeError(f"values of shapes {shapes}", where=self.name, allowed=f"send_shapes {self.send_shapes}")
        for rank in (*self.send_rank_ids, *self.recv_rank_ids):
            checked_root(self.name, "rank id", rank, members)
        for value, rank in zip(values, self.send_rank_ids, strict=True):
            world.comm.send(value, rank)
        pairs = zip(self.recv_rank_ids, self.recv_shapes, strict=True)
        return tuple(world.comm.recv(rank, shape, self.recv_type) for rank, shape in pairs)


def _values(where: str, x: Any) -> np.ndarray:
    """The numbers of x. Raises ArgumentTypeError where a gradient would be lost in silence."""
    if getattr(x, "requires_grad", False):
        hint = "ops.stop_gradient(x) says that none is wanted; AllReduce, AllGather and AlltoAll have gradients"
        what = "a tensor made from parameters"
        raise ArgumentTypeError(what, where=where, allowed="Values without a gradient", hint=hint)
    return np.ascontiguousarray(x.asnumpy() if hasattr(x, "asnumpy") else x)


def _other(where: str, label: str, place: int, world: Any, members: tuple[int, ...]) -> int:
    """The rank at a place of the group, which must not be this one."""
    if place >= len(members) or members[place] == world.rank:
        allowed = f"The place of another rank in the group {members}, counted from 0"
        raise WorldArgumentError(f"{label}={place} on rank {world.rank}", where=where, allowed=allowed)
    return members[place]
