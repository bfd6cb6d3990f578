"""Communication that a script calls by hand: `ops.AllReduce()(x)` sends this rank's x and returns the combination, at
once.

    init()                                     # under a launcher: parallel-lab run, mpirun, msrun
    all_reduce = ops.AllReduce()               # sum over all ranks
    total = all_reduce(x)                      # every rank must call it, with the same shape

They go through the world that `communication.init` has connected (`context.current_world()`). Each has a gradient,
again a communication: what a rank holds in backward is its addend of the gradient, and the true gradient is the sum
over the ranks (MindSpore, AllReduce and its bprop).

    forward                     backward
    AllReduce(sum)              AllReduce(sum)
    AllGather                   ReduceScatter(sum)
    ReduceScatter(sum)          AllGather
    AlltoAll                    AlltoAll, dims swapped
    Broadcast from root         Reduce(sum) to root
    Reduce(sum) to dest         Broadcast from dest
    CollectiveScatter           CollectiveGather, and the other way round

AllReduce, AllGather and ReduceScatter with the attribute `fusion` may share a message inside a Cell, see `deferred.py`;
backward, each is one.

A compiled network has its communication from its strategies; there these raise TracedCommunication. Values handed from
one rank to another are in `point_to_point.py`. Names and arguments: MindSpore, ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError, WorldArgumentError
from ..machine.opdef import OpDef
from .base import Communication, checked_root, group_name, group_of, members_of, origin_of, reduction, whole
from .deferred import hold, holdable

__all__ = [
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "Barrier",
    "Broadcast",
    "CollectiveGather",
    "CollectiveScatter",
    "Reduce",
    "ReduceOp",
    "ReduceScatter",
]


class ReduceOp:
    """How values are combined."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"


NOTHING = (1,)  # shape of what a rank gets that is not the destination: one number without meaning, as in MindSpore


# ---- what is computed, and its gradient ----
#
# Not declared with @op: these are no operators of a graph, cannot be cut, and give nothing without a world. They are
# OpDefs all the same, so that the # tape remembers them like any other. Shapes: x is this rank's value.


def _definition(fn: Any, name: str, **options: Any) -> OpDef:
    return OpDef(
        name=fn.__name__.lstrip("_"),
        class_name=name,
        fn=fn,
        signature=None,
        positional=("x",),
        tensors=("x",),
        options=options,
        defaults={},
        result_shape=lambda shapes, **_: shapes[0],
        internal=True,
        __doc__=fn.__doc__,
    )


def _all_reduce(x, *, reduce, group):
    """x combined over the group.  x: (...) -> (...)."""
    world, members = members_of("AllReduce", group)
    return world.comm.all_reduce(x, reduce, members, tag=origin_of("AllReduce"))


def _all_gather(x, *, group):
    """The ranks' values one below the other.  x: (a, ...) -> (n a, ...)."""
    world, members = members_of("AllGather", group)
    return world.comm.all_gather(x, 0, members, tag=origin_of("AllGather"))


def _reduce_scatter(x, *, reduce, group):
    """This rank's rows of the combination.  x: (n a, ...) -> (a, ...)."""
    world, members = members_of("ReduceScatter", group)
    if not x.ndim or x.shape[0] % len(members):
        allowed = f"A first dim that divides by {len(members)}, the number of ranks in the group"
        raise ShapeError(f"a value of shape {x.shape}", where="ReduceScatter", allowed=allowed)
    return world.comm.reduce_scatter(x, reduce, 0, members, tag=origin_of("ReduceScatter"))


def _all_to_all(x, *, split_dim, concat_dim, group):
    """Piece i of every rank's x, joined.  x: (..., n a, ..., b, ...) -> (..., a, ..., n b, ...)."""
    world, members = members_of("AlltoAll", group)
    return world.comm.all_to_all(x, split_dim, concat_dim, members, tag=origin_of("AlltoAll"))


def _broadcast(x, *, root, group):
    """The root's value.  x: (...), on other ranks of the same shape -> (...)."""
    world, members = members_of("Broadcast", group)
    return world.comm.broadcast(x, checked_root("Broadcast", "root_rank", root, members), members)


def _reduce(x, *, dest, reduce, group):
    """The combination on member `dest`.  x: (...) -> (...), elsewhere (1,)."""
    world, members = members_of("Reduce", group)
    if dest >= len(members):
        raise WorldArgumentError(
            f"dest_rank={dest}", where="Reduce", allowed=f"A place in the group {members}, counted from 0"
        )
    total = world.comm.reduce(x, reduce, members[dest], members)
    return np.zeros(NOTHING, x.dtype) if total is None else total


def _gather(x, *, dest, group):
    """The ranks' values one below the other on rank `dest`.  x: (a, ...) -> (n a, ...), elsewhere (1,)."""
    world, members = members_of("CollectiveGather", group)
    joined = world.comm.gather(x, 0, checked_root("CollectiveGather", "dest_rank", dest, members), members)
    return np.zeros(NOTHING, x.dtype) if joined is None else joined


def _scatter(x, *, source, group):
    """This rank's rows of rank `source`'s value.  x: (n a, ...) -> (a, ...)."""
    world, members = members_of("CollectiveScatter", group)
    root = checked_root("CollectiveScatter", "src_rank", source, members)
    return world.comm.scatter(x if world.rank == root else None, 0, root, members)


_ALL_REDUCE = _definition(_all_reduce, "AllReduce", reduce="sum", group=None)
_ALL_GATHER = _definition(_all_gather, "AllGather", group=None)
_REDUCE_SCATTER = _definition(_reduce_scatter, "ReduceScatter", reduce="sum", group=None)
_ALL_TO_ALL = _definition(_all_to_all, "AlltoAll", split_dim=0, concat_dim=0, group=None)
_BROADCAST = _definition(_broadcast, "Broadcast", root=0, group=None)
_REDUCE = _definition(_reduce, "Reduce", dest=0, reduce="sum", group=None)
_GATHER = _definition(_gather, "CollectiveGather", dest=0, group=None)
_SCATTER = _definition(_scatter, "CollectiveScatter", source=0, group=None)


def _no_gradient(name: str, reduce: str) -> ArgumentError:
    return ArgumentError(
        f"{name} with op {reduce!r} has no gradient",
        where=name,
        allowed="op 'sum'",
        hint="ops.stop_gradient(x) before it",
    )


@_ALL_REDUCE.vjp
def _(g, out, x, *, reduce, group):
    total = _all_reduce(g, reduce="sum", group=group)
    if reduce == "sum":
        return (total,)
    if reduce == "prod":
        world, members = members_of("AllReduce", group)
        factors = world.comm.all_gather(x[None], 0, members, tag=origin_of("AllReduce, gradient"))
        return (total * np.prod(np.delete(factors, members.index(world.rank), axis=0), axis=0, dtype=x.dtype),)
    # equal extremes share the gradient equally, as in reduce_max, also when they lie on different ranks
    mask = (x == out).astype(g.dtype)
    return (mask * (total / _all_reduce(mask, reduce="sum", group=group)),)


@_ALL_GATHER.vjp
def _(g, out, x, *, group):
    return (_reduce_scatter(g, reduce="sum", group=group),)


@_REDUCE_SCATTER.vjp
def _(g, out, x, *, reduce, group):
    if reduce != "sum":
        raise _no_gradient("ReduceScatter", reduce)
    return (_all_gather(g, group=group),)


@_ALL_TO_ALL.vjp
def _(g, out, x, *, split_dim, concat_dim, group):
    return (_all_to_all(g, split_dim=concat_dim, concat_dim=split_dim, group=group),)


@_BROADCAST.vjp
def _(g, out, x, *, root, group):
    world, members = members_of("Broadcast", group)
    total = world.comm.reduce(g, "sum", root, members)
    return (np.zeros_like(g) if total is None else total,)


@_REDUCE.vjp
def _(g, out, x, *, dest, reduce, group):
    if reduce != "sum":
        raise _no_gradient("Reduce", reduce)
    world, members = members_of("Reduce", group)
    # away from the destination the result is no function of x: what came back for it does not count
    return (world.comm.broadcast(g if world.rank == members[dest] else np.zeros_like(x), members[dest], members),)


@_GATHER.vjp
def _(g, out, x, *, dest, group):
    return (_scatter(g, source=dest, group=group),)


@_SCATTER.vjp
def _(g, out, x, *, source, group):
    world, _ = members_of("CollectiveScatter", group)
    joined = _gather(g, dest=source, group=group)
    return (joined if world.rank == source else np.zeros_like(x),)


# ---- the operators ----


class _Collective(Communication):
    """Base of those that take one value and have a definition.

    fused_as   the kind of message that calls with one `fusion` number share; "": they do not
    """

    op: OpDef
    fused_as = ""

    def __call__(self, x: Any) -> Any:
        self.begin()
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            if isinstance(x, (list, tuple)) and any(hasattr(v, "dtype") for v in x):
                raise ArgumentTypeError(f"{len(x)} tensors", where=self.name, allowed="One Tensor")
            x = np.asarray(x)
        if self.fused_as and self.prim_attrs["fusion"] and hasattr(x, "__parallel_lab_later__"):
            world, members = group_of(self.name, self.attrs["group"])
            if holdable(self.fused_as, x.shape, len(members)):
                about = {
                    "world": world,
                    "members": members,
                    "fusion": self.prim_attrs["fusion"],
                    "reduce": self.attrs.get("reduce", ""),
                }
                (x,), attrs = self.op.bind((x,), self.attrs)
                return x.__parallel_lab_later__(self.op, attrs, hold(self.fused_as, self.name, x.data, **about))
        return self.op.call((x,), self.attrs)


def _not_bool(name: str, x: Any) -> None:
    if str(getattr(x, "dtype", "")) == "bool":
        raise ArgumentTypeError(
            "a value of dtype bool", where=name, allowed="Numbers", hint="Convert it: x.astype('int32')"
        )


class AllReduce(_Collective):
    """The combination of all ranks' values, on every rank.  x: (...) -> (...).

    op     ReduceOp.SUM, MAX, MIN or PROD
    group  name of a group (`create_group`); None: all ranks
    """

    op = _ALL_REDUCE
    fused_as = "all_reduce"

    def __init__(self, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        super().__init__({"reduce": reduction("AllReduce", op), "group": group_name("AllReduce", group)})

    def __call__(self, x: Any) -> Any:
        _not_bool(self.name, x)
        return super().__call__(x)


class AllGather(_Collective):
    """All ranks' values, one below the other, on every rank.  x: (a, ...) -> (n a, ...) for n ranks."""

    op = _ALL_GATHER
    fused_as = "all_gather"

    def __init__(self, group: str | None = None) -> None:
        super().__init__({"group": group_name("AllGather", group)})


class ReduceScatter(_Collective):
    """Each rank its own rows of the combination.  x: (n a, ...) -> (a, ...) for n ranks. op, group: as in AllReduce."""

    op = _REDUCE_SCATTER
    fused_as = "reduce_scatter"

    def __init__(self, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        super().__init__({"reduce": reduction("ReduceScatter", op), "group": group_name("ReduceScatter", group)})

    def __call__(self, x: Any) -> Any:
        _not_bool(self.name, x)
        return super().__call__(x)


class AlltoAll(_Collective):
    """x cut along split_dim, piece i for rank i of the group; what arrives is joined along concat_dim.

    split_count  number of pieces: that of the ranks in the group

    x: (..., n a, ..., b, ...) -> (..., a, ..., n b, ...)
    """

    op = _ALL_TO_ALL

    def __init__(self, split_count: int, split_dim: int, concat_dim: int, group: str | None = None) -> None:
        self.split_count = whole("AlltoAll", "split_count", split_count, 1)
        dims = {
            "split_dim": whole("AlltoAll", "split_dim", split_dim, None),
            "concat_dim": whole("AlltoAll", "concat_dim", concat_dim, None),
        }
        super().__init__({**dims, "group": group_name("AlltoAll", group)})

    def __call__(self, x: Any) -> Any:
        self.begin()
        members = members_of(self.name, self.attrs["group"])[1]
        if self.split_count != len(members):
            allowed = f"{len(members)}, the number of ranks in the group"
            raise WorldArgumentError(f"split_count={self.split_count}", where=self.name, allowed=allowed)
        return super().__call__(x)


class Broadcast(_Collective):
    """The root's value on every rank.  x: a Tensor, or a tuple of them, on every rank of the same shapes -> the root's.

    root_rank  a rank of the world
    """

    op = _BROADCAST

    def __init__(self, root_rank: int, group: str | None = None) -> None:
        super().__init__({"root": whole("Broadcast", "root_rank", root_rank), "group": group_name("Broadcast", group)})

    def __call__(self, x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return tuple(super(Broadcast, self).__call__(each) for each in x)
        return super().__call__(x)


class Reduce(_Collective):
    """The combination on one rank.  x: (...) -> (...) on that rank, one number without meaning (1,) on the others.

    dest_rank  the place of that rank in the group, from 0
    """

    op = _REDUCE

    def __init__(self, dest_rank: int, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        dest = whole("Reduce", "dest_rank", dest_rank)
        super().__init__({"dest": dest, "reduce": reduction("Reduce", op), "group": group_name("Reduce", group)})


class CollectiveGather(_Collective):
    """All ranks' values, one below the other, on rank `dest_rank` of the world.  x: (a, ...) -> (n a, ...) there, (1,)
    without meaning elsewhere.
    """

    op = _GATHER

    def __init__(self, dest_rank: int, group: str | None = None) -> None:
        dest = whole("CollectiveGather", "dest_rank", dest_rank)
        super().__init__({"dest": dest, "group": group_name("CollectiveGather", group)})


class CollectiveScatter(_Collective):
    """Each rank its own rows of the value of rank `src_rank` of the world.  x: (n a, ...), read there only -> (a,
    ...).
    """

    op = _SCATTER

    def __init__(self, src_rank: int = 0, group: str | None = None) -> None:
        source = whole("CollectiveScatter", "src_rank", src_rank)
        super().__init__({"source": source, "group": group_name("CollectiveScatter", group)})


class Barrier(Communication):
    """Return when all ranks of the group have called it."""

    def __init__(self, group: str | None = None) -> None:
        super().__init__({"group": group_name("Barrier", group)})

    def __call__(self) -> None:
        self.begin()
        world, members = members_of(self.name, self.attrs["group"])
        world.comm.barrier(members)
