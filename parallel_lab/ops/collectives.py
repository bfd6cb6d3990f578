"""Communication that a script calls by hand: `ops.AllReduce()(x)` sends this rank's x and returns the combination, at once.

    init()                                     # under a launcher: parallel-lab run, mpirun, msrun
    all_reduce = ops.AllReduce()               # sum over all ranks
    total = all_reduce(x)                      # every rank must call it, with the same shape

They go through the world that `communication.init` has connected (`context.current_world()`). Each has a gradient, again a communication: what a rank
holds in backward is its addend of the gradient, and the true gradient is the sum over the ranks (MindSpore, AllReduce and its bprop).

    forward                     backward
    AllReduce(sum)              AllReduce(sum)
    AllGather                   ReduceScatter(sum)
    ReduceScatter(sum)          AllGather
    AlltoAll                    AlltoAll, dims swapped
    Broadcast from root         Reduce(sum) to root
    Reduce(sum) to dest         Broadcast from dest
    CollectiveScatter           CollectiveGather, and the other way round

A compiled network has its communication from its strategies; there these raise TracedCommunication. Names and arguments: MindSpore, ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import current_tracer, current_world
from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    ShapeError,
    StrategyError,
    TracedCommunication,
    WorldArgumentError,
    WorldError,
    WorldTypeError,
    message,
    shorten,
)
from ..origin import caller
from .registry import OpDef, Primitive

__all__ = [
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "Barrier",
    "Broadcast",
    "CollectiveGather",
    "CollectiveScatter",
    "NeighborExchange",
    "Receive",
    "Reduce",
    "ReduceOp",
    "ReduceScatter",
    "Send",
]


class ReduceOp:
    """How values are combined."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"


REDUCTIONS = (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PROD)
NOTHING = (1,)  # shape of what a rank gets that is not the destination: one number without meaning, as in MindSpore


# ---- the ends of the wire ----


def _world(where: str) -> Any:
    """The world this process is a rank of. Raises WorldError."""
    world = current_world()
    if world is None:
        hint = "Call init() first, in a script started with `parallel-lab run -n 8 script.py` or mpirun"
        raise WorldError(message("this process is not a rank of a world", where=where, allowed="Communication needs ranks to talk to", hint=hint))
    return world


def _members(where: str, group: str | None) -> tuple[Any, tuple[int, ...]]:
    """(world, ranks of the group this rank calls for)."""
    world = _world(where)
    members = tuple(world.group(group))
    if world.rank not in members:
        what = f"rank {world.rank} is not in group {group!r} {members}"
        raise WorldArgumentError(message(what, where=where, allowed="A rank communicates in groups it belongs to"))
    return world, members


def _origin(name: str) -> str:
    place = caller().place
    return f"{name} at {place}" if place else name


def _root(name: str, label: str, root: int, members: tuple[int, ...]) -> int:
    if root not in members:
        raise WorldArgumentError(message(f"{label}={root}", where=name, allowed=f"A rank of the group {members}"))
    return root


# ---- what is computed, and its gradient ----
#
# Not declared with @op: these are no operators of a graph, cannot be cut, and give nothing without a world. They are OpDefs all the same, so that the
# tape remembers them like any other. Shapes: x is this rank's value.


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
        infer_fn=lambda shapes, **_: shapes[0],
        internal=True,
        __doc__=fn.__doc__,
    )


def _all_reduce(x, *, reduce, group):
    """x combined over the group.  x: (...) -> (...)."""
    world, members = _members("AllReduce", group)
    return world.comm.all_reduce(x, reduce, members, tag=_origin("AllReduce"))


def _all_gather(x, *, group):
    """The ranks' values one below the other.  x: (a, ...) -> (n a, ...)."""
    world, members = _members("AllGather", group)
    return world.comm.all_gather(x, 0, members, tag=_origin("AllGather"))


def _reduce_scatter(x, *, reduce, group):
    """This rank's rows of the combination.  x: (n a, ...) -> (a, ...)."""
    world, members = _members("ReduceScatter", group)
    if not x.ndim or x.shape[0] % len(members):
        allowed = f"A first dim that divides by {len(members)}, the number of ranks in the group"
        raise ShapeError(message(f"a value of shape {x.shape}", where="ReduceScatter", allowed=allowed))
    return world.comm.reduce_scatter(x, reduce, 0, members, tag=_origin("ReduceScatter"))


def _all_to_all(x, *, split_dim, concat_dim, group):
    """Piece i of every rank's x, joined.  x: (..., n a, ..., b, ...) -> (..., a, ..., n b, ...)."""
    world, members = _members("AlltoAll", group)
    return world.comm.all_to_all(x, split_dim, concat_dim, members, tag=_origin("AlltoAll"))


def _broadcast(x, *, root, group):
    """The root's value.  x: (...), on other ranks of the same shape -> (...)."""
    world, members = _members("Broadcast", group)
    return world.comm.broadcast(x, _root("Broadcast", "root_rank", root, members), members)


def _reduce(x, *, dest, reduce, group):
    """The combination on member `dest`.  x: (...) -> (...), elsewhere (1,)."""
    world, members = _members("Reduce", group)
    if dest >= len(members):
        raise WorldArgumentError(message(f"dest_rank={dest}", where="Reduce", allowed=f"A place in the group {members}, counted from 0"))
    total = world.comm.reduce(x, reduce, members[dest], members)
    return np.zeros(NOTHING, x.dtype) if total is None else total


def _gather(x, *, dest, group):
    """The ranks' values one below the other on rank `dest`.  x: (a, ...) -> (n a, ...), elsewhere (1,)."""
    world, members = _members("CollectiveGather", group)
    joined = world.comm.gather(x, 0, _root("CollectiveGather", "dest_rank", dest, members), members)
    return np.zeros(NOTHING, x.dtype) if joined is None else joined


def _scatter(x, *, source, group):
    """This rank's rows of rank `source`'s value.  x: (n a, ...) -> (a, ...)."""
    world, members = _members("CollectiveScatter", group)
    root = _root("CollectiveScatter", "src_rank", source, members)
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
    return ArgumentError(message(f"{name} with op {reduce!r} has no gradient", where=name, allowed="op 'sum'", hint="ops.stop_gradient(x) before it"))


@_ALL_REDUCE.vjp
def _(g, out, x, *, reduce, group):
    total = _all_reduce(g, reduce="sum", group=group)
    if reduce == "sum":
        return (total,)
    if reduce == "prod":
        world, members = _members("AllReduce", group)
        factors = world.comm.all_gather(x[None], 0, members, tag=_origin("AllReduce, gradient"))
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
    world, members = _members("Broadcast", group)
    total = world.comm.reduce(g, "sum", root, members)
    return (np.zeros_like(g) if total is None else total,)


@_REDUCE.vjp
def _(g, out, x, *, dest, reduce, group):
    if reduce != "sum":
        raise _no_gradient("Reduce", reduce)
    world, members = _members("Reduce", group)
    # away from the destination the result is no function of x: what came back for it does not count
    return (world.comm.broadcast(g if world.rank == members[dest] else np.zeros_like(x), members[dest], members),)


@_GATHER.vjp
def _(g, out, x, *, dest, group):
    return (_scatter(g, source=dest, group=group),)


@_SCATTER.vjp
def _(g, out, x, *, source, group):
    world, _ = _members("CollectiveScatter", group)
    joined = _gather(g, dest=source, group=group)
    return (joined if world.rank == source else np.zeros_like(x),)


# ---- checks of arguments ----


def _group_name(where: str, group: Any) -> str | None:
    if group is not None and not isinstance(group, str):
        allowed = "The name of a group, as given to create_group; None for all ranks"
        raise WorldTypeError(message(f"group={shorten(group)}", where=where, allowed=allowed))
    return group


def _reduction(where: str, reduce: Any) -> str:
    allowed = f"One of {', '.join(map(repr, REDUCTIONS))}, such as ReduceOp.SUM"
    if not isinstance(reduce, str):
        raise ArgumentTypeError(message(f"op={shorten(reduce)}", where=where, allowed=allowed))
    if reduce not in REDUCTIONS:
        raise ArgumentError(message(f"op={reduce!r}", where=where, allowed=allowed))
    return reduce


def _whole(where: str, name: str, value: Any, least: int | None = 0) -> int:
    allowed = "An int" + ("" if least is None else f", at least {least}")
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=where, allowed=allowed))
    if least is not None and value < least:
        raise ArgumentError(message(f"{name}={value}", where=where, allowed=allowed))
    return int(value)


# ---- the operators ----


class _Communication(Primitive):
    """Base of the operators: what they share with other Primitives (a name, attributes), and that they take no strategy.

    Attribute `fusion` (`add_prim_attr("fusion", 1)`): messages of one group with equal numbers above 0 may travel as one; 0, the default: alone. It
    changes no result.
    """

    op: OpDef = _ALL_REDUCE

    def __init__(self, attrs: dict[str, Any]) -> None:
        super().__init__()
        self.attrs = attrs
        self.prim_attrs = {"group": attrs.get("group"), "fusion": 0}

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Raises StrategyError: what is sent is this rank's value, there is nothing to cut."""
        what = f"strategy {shorten(in_strategy)}"
        raise StrategyError(message(what, where=self.name, allowed="None: communication called by hand takes this rank's value as it is"))

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """Attach a named attribute; `fusion` is an int, at least 0. Returns self."""
        if name == "fusion":
            _whole(self.name, "fusion", value)
        return super().add_prim_attr(name, value)

    def _begin(self) -> None:
        """Refuse to run while a network is traced."""
        if current_tracer.get() is not None:
            allowed = "A compiled network has its messages from its strategies"
            hint = "Run it in stand_alone or data_parallel mode, where a network that communicates by hand runs operator by operator"
            raise TracedCommunication(message(f"{self.name} is called while a network is compiled", where=caller().place, allowed=allowed, hint=hint))

    def __call__(self, x: Any) -> Any:
        self._begin()
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            if isinstance(x, (list, tuple)) and any(hasattr(v, "dtype") for v in x):
                raise ArgumentTypeError(message(f"{len(x)} tensors", where=self.name, allowed="One Tensor"))
            x = np.asarray(x)
        return self.op.call((x,), self.attrs)

    def __repr__(self) -> str:
        shown = {**self.attrs, **self.prim_attrs}
        return f"Prim[{self.name}]<{', '.join(f'{k}={v}' for k, v in shown.items())}>"


def _not_bool(name: str, x: Any) -> None:
    if str(getattr(x, "dtype", "")) == "bool":
        raise ArgumentTypeError(message("a value of dtype bool", where=name, allowed="Numbers", hint="Convert it: x.astype('int32')"))


class AllReduce(_Communication):
    """The combination of all ranks' values, on every rank.  x: (...) -> (...).

    op     ReduceOp.SUM, MAX, MIN or PROD
    group  name of a group (`create_group`); None: all ranks
    """

    op = _ALL_REDUCE

    def __init__(self, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        super().__init__({"reduce": _reduction("AllReduce", op), "group": _group_name("AllReduce", group)})

    def __call__(self, x: Any) -> Any:
        _not_bool(self.name, x)
        return super().__call__(x)


class AllGather(_Communication):
    """All ranks' values, one below the other, on every rank.  x: (a, ...) -> (n a, ...) for n ranks."""

    op = _ALL_GATHER

    def __init__(self, group: str | None = None) -> None:
        super().__init__({"group": _group_name("AllGather", group)})


class ReduceScatter(_Communication):
    """Each rank its own rows of the combination.  x: (n a, ...) -> (a, ...) for n ranks. op, group: as in AllReduce."""

    op = _REDUCE_SCATTER

    def __init__(self, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        super().__init__({"reduce": _reduction("ReduceScatter", op), "group": _group_name("ReduceScatter", group)})

    def __call__(self, x: Any) -> Any:
        _not_bool(self.name, x)
        return super().__call__(x)


class AlltoAll(_Communication):
    """x cut along split_dim, piece i for rank i of the group; what arrives is joined along concat_dim.

    split_count  number of pieces: that of the ranks in the group

    x: (..., n a, ..., b, ...) -> (..., a, ..., n b, ...)
    """

    op = _ALL_TO_ALL

    def __init__(self, split_count: int, split_dim: int, concat_dim: int, group: str | None = None) -> None:
        self.split_count = _whole("AlltoAll", "split_count", split_count, 1)
        dims = {"split_dim": _whole("AlltoAll", "split_dim", split_dim, None), "concat_dim": _whole("AlltoAll", "concat_dim", concat_dim, None)}
        super().__init__({**dims, "group": _group_name("AlltoAll", group)})

    def __call__(self, x: Any) -> Any:
        self._begin()
        members = _members(self.name, self.attrs["group"])[1]
        if self.split_count != len(members):
            allowed = f"{len(members)}, the number of ranks in the group"
            raise WorldArgumentError(message(f"split_count={self.split_count}", where=self.name, allowed=allowed))
        return super().__call__(x)


class Broadcast(_Communication):
    """The root's value on every rank.  x: a Tensor, or a tuple of them, on every rank of the same shapes -> the root's.

    root_rank  a rank of the world
    """

    op = _BROADCAST

    def __init__(self, root_rank: int, group: str | None = None) -> None:
        super().__init__({"root": _whole("Broadcast", "root_rank", root_rank), "group": _group_name("Broadcast", group)})

    def __call__(self, x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return tuple(super(Broadcast, self).__call__(each) for each in x)
        return super().__call__(x)


class Reduce(_Communication):
    """The combination on one rank.  x: (...) -> (...) on that rank, one number without meaning (1,) on the others.

    dest_rank  the place of that rank in the group, from 0
    """

    op = _REDUCE

    def __init__(self, dest_rank: int, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        dest = _whole("Reduce", "dest_rank", dest_rank)
        super().__init__({"dest": dest, "reduce": _reduction("Reduce", op), "group": _group_name("Reduce", group)})


class CollectiveGather(_Communication):
    """All ranks' values, one below the other, on rank `dest_rank` of the world.  x: (a, ...) -> (n a, ...) there, (1,) without meaning elsewhere."""

    op = _GATHER

    def __init__(self, dest_rank: int, group: str | None = None) -> None:
        dest = _whole("CollectiveGather", "dest_rank", dest_rank)
        super().__init__({"dest": dest, "group": _group_name("CollectiveGather", group)})


class CollectiveScatter(_Communication):
    """Each rank its own rows of the value of rank `src_rank` of the world.  x: (n a, ...), read there only -> (a, ...)."""

    op = _SCATTER

    def __init__(self, src_rank: int = 0, group: str | None = None) -> None:
        source = _whole("CollectiveScatter", "src_rank", src_rank)
        super().__init__({"source": source, "group": _group_name("CollectiveScatter", group)})


class Barrier(_Communication):
    """Return when all ranks of the group have called it."""

    def __init__(self, group: str | None = None) -> None:
        super().__init__({"group": _group_name("Barrier", group)})

    def __call__(self) -> None:
        self._begin()
        world, members = _members(self.name, self.attrs["group"])
        world.comm.barrier(members)


class Send(_Communication):
    """Hand x to another rank, which takes it with Receive.  x: (...) -> x. No gradient flows through.

    sr_tag     0, or any int at least 0; what one rank sends another arrives in the order of the sends, whatever the tags
    dest_rank  the place of the receiver in the group, from 0
    group_back the group that gradients would travel in: accepted, and not used
    """

    def __init__(self, sr_tag: int, dest_rank: int, group: str | None = None, group_back: str | None = None) -> None:
        self.sr_tag, self.dest_rank = _whole("Send", "sr_tag", sr_tag), _whole("Send", "dest_rank", dest_rank)
        _group_name("Send", group_back)
        super().__init__({"group": _group_name("Send", group)})

    def __call__(self, x: Any) -> Any:
        self._begin()
        world, members = _members(self.name, self.attrs["group"])
        world.comm.send(_values(self.name, x), _other(self.name, "dest_rank", self.dest_rank, world, members))
        return x


class Receive(_Communication):
    """What another rank has handed over with Send.  -> array of `shape` and `dtype`, which must be those sent.

    sr_tag    as in Send
    src_rank  the place of the sender in the group, from 0
    """

    def __init__(self, sr_tag: int, src_rank: int, shape: Any, dtype: Any, group: str | None = None, group_back: str | None = None) -> None:
        self.sr_tag, self.src_rank = _whole("Receive", "sr_tag", sr_tag), _whole("Receive", "src_rank", src_rank)
        if not isinstance(shape, (list, tuple)):
            raise ArgumentTypeError(message(f"shape={shorten(shape)}", where="Receive", allowed="A list or tuple of ints"))
        self.shape, self.dtype = tuple(_whole("Receive", "shape", n) for n in shape), str(np.dtype(dtype))
        _group_name("Receive", group_back)
        super().__init__({"group": _group_name("Receive", group)})

    def __call__(self, x: Any = None) -> np.ndarray:
        """x: anything, which a script passes to say what comes before; not read."""
        self._begin()
        world, members = _members(self.name, self.attrs["group"])
        return world.comm.recv(_other(self.name, "src_rank", self.src_rank, world, members), self.shape, self.dtype)


class NeighborExchange(_Communication):
    """Several tensors to several ranks, and as many as are wanted from others, in one call. No gradient flows through.

    send_rank_ids, recv_rank_ids  ranks of the world, one per tensor
    recv_shapes, send_shapes      their shapes
    recv_type                     dtype of what arrives

    x: a tuple of Tensors, one per send_rank_id -> a tuple of arrays, one per recv_rank_id
    """

    def __init__(self, send_rank_ids: Any, recv_rank_ids: Any, recv_shapes: Any, send_shapes: Any, recv_type: Any, group: str | None = None) -> None:
        where = "NeighborExchange"
        self.send_rank_ids, self.recv_rank_ids = (tuple(_whole(where, "rank ids", r) for r in ids) for ids in (send_rank_ids, recv_rank_ids))
        self.recv_shapes, self.send_shapes = (tuple(tuple(shape) for shape in shapes) for shapes in (recv_shapes, send_shapes))
        for ids, shapes, label in ((self.send_rank_ids, self.send_shapes, "send"), (self.recv_rank_ids, self.recv_shapes, "recv")):
            if len(ids) != len(shapes):
                raise ArgumentError(message(f"{len(ids)} {label}_rank_ids and {len(shapes)} {label}_shapes", where=where, allowed="As many of each"))
        self.recv_type = str(np.dtype(recv_type))
        super().__init__({"group": _group_name(where, group)})

    def __call__(self, x: Any) -> tuple[np.ndarray, ...]:
        self._begin()
        world, members = _members(self.name, self.attrs["group"])
        values = [_values(self.name, each) for each in (x if isinstance(x, (tuple, list)) else (x,))]
        shapes = tuple(tuple(v.shape) for v in values)
        if shapes != self.send_shapes:
            raise ShapeError(message(f"values of shapes {shapes}", where=self.name, allowed=f"send_shapes {self.send_shapes}"))
        for rank in (*self.send_rank_ids, *self.recv_rank_ids):
            _root(self.name, "rank id", rank, members)
        for value, rank in zip(values, self.send_rank_ids, strict=True):
            world.comm.send(value, rank)
        pairs = zip(self.recv_rank_ids, self.recv_shapes, strict=True)
        return tuple(world.comm.recv(rank, shape, self.recv_type) for rank, shape in pairs)


def _values(where: str, x: Any) -> np.ndarray:
    """The numbers of x. Raises ArgumentTypeError where a gradient would be lost in silence."""
    if getattr(x, "requires_grad", False):
        hint = "ops.stop_gradient(x) says that none is wanted; AllReduce, AllGather and AlltoAll have gradients"
        raise ArgumentTypeError(message("a tensor made from parameters", where=where, allowed="Values without a gradient", hint=hint))
    return np.ascontiguousarray(x.asnumpy() if hasattr(x, "asnumpy") else x)


def _other(where: str, label: str, place: int, world: Any, members: tuple[int, ...]) -> int:
    """The rank at a place of the group, which must not be this one."""
    if place >= len(members) or members[place] == world.rank:
        what = f"{label}={place} on rank {world.rank}"
        raise WorldArgumentError(message(what, where=where, allowed=f"The place of another rank in the group {members}, counted from 0"))
    return members[place]
