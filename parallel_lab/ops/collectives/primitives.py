"""Communication that a script calls by hand: `ops.AllReduce()(x)` sends this rank's x and returns the combination, at
once.

    init()                                     # under a launcher: parallel-lab run, mpirun, msrun
    all_reduce = ops.AllReduce()               # sum over all ranks
    total = all_reduce(x)                      # every rank must call it, with the same shape

They go through the world that `communication.init` has connected (`context.current_world()`). Each has a gradient,
again a communication, the `adjoint` of its declaration (`definitions.py`): what a rank holds in backward is its addend
of the gradient, and the true gradient is the sum over the ranks (MindSpore, AllReduce and its bprop).

AllReduce, AllGather and ReduceScatter with the attribute `fusion` may share a message inside a Cell, see `deferred.py`;
backward, each is one.

In a network that data_parallel or hybrid_parallel mode compiles they are instructions of the plan (`graph/passes/
replicate.py`); where operators are split, messages follow from strategies, and these raise TracedCommunication. Values
handed from one rank to another are in `point_to_point.py`. Names and arguments: MindSpore, ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import checked, integer
from ...base.errors import ArgumentTypeError, ShapeError, WorldArgumentError, shorten
from ..machine.calling import Operator
from ..machine.opdef import CALLS, OpDef
from ..machine.registry import OPS
from .base import REDUCTION, Communication, a_group, checked_root, group_of, members_of, name_of, origin_of
from .deferred import hold, holdable
from .definitions import MESSAGES, without_gradient

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
# Not declared with @op: these cannot be split, and give nothing without a world. They are OpDefs all the same, so that
# tape and tracer take them like any other. Shapes: x is this rank's value.


ROOTS = {"broadcast": "root_rank", "reduce": "dest_rank", "gather": "dest_rank", "scatter": "src_rank"}


def _request_settings(kind: str, attrs: dict[str, Any], members: tuple[int, ...]) -> dict[str, Any]:
    """Attributes of the request. Raises WorldArgumentError for a root that is not in the group: of Reduce a place in
    it, of others a rank.
    """
    message, settings = MESSAGES[kind], {"dim": 0, **attrs}
    name, root = message.class_name, ROOTS.get(kind)
    if kind == "reduce":
        if settings["root"] >= len(members):
            allowed = f"A place in the group {members}, counted from 0"
            raise WorldArgumentError(f"{root}={settings['root']}", where=name, allowed=allowed)
        settings["root"] = members[settings["root"]]
    elif root:
        checked_root(name, root, settings["root"], members)
    return {a: settings[a] for a in message.attributes}


def _check_pieces(kind: str, shape: tuple[int, ...], attrs: dict[str, Any], n: int) -> None:
    """Raise ShapeError unless a value of this shape can be split, or joined, among n ranks along the dims asked for."""
    message, name = MESSAGES[kind], MESSAGES[kind].class_name
    for label in dict.fromkeys(a for a in (message.cut, message.join) if a):
        dim = attrs[label]
        if not -len(shape) <= dim < len(shape) or (label == message.cut and shape[dim] % n):
            at = "first dim" if dim == 0 else f"dim {dim}, {label},"
            ends = f" that divides by {n}, the number of ranks in the group" if label == message.cut else ""
            raise ShapeError(f"a value of shape {shape}", where=name, allowed=f"A {at}{ends}")


def _traced_shape(kind: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> tuple[int, ...]:
    """Shape of what a rank gets; `received`: whether this one gets the reply of a rooted message."""
    if not attrs.get("received", True):
        return NOTHING
    about, members = {"dim": 0, **attrs}, attrs["group"]
    _check_pieces(kind, shape, about, len(members))
    return MESSAGES[kind].reply_shape(shape, about, len(members))


def _definition(kind: str, /, **options: Any) -> OpDef:
    """The OpDef of a kind of message in `MESSAGES`; its gradient is the adjoint's reply.

    options  default attributes. In a network that is compiled: those of the request, and `group`, the ranks

    At once there is `operand` too, the name of a Parameter that is sent.
    """
    message = MESSAGES[kind]
    name = message.class_name

    def fn(x: np.ndarray, *, group: str | None, operand: str, **attrs: Any) -> np.ndarray:
        _, members = members_of(name, group)
        if kind == "reduce_scatter":
            _check_pieces(kind, x.shape, {"dim": 0}, len(members))
        reply = _exchange(kind, x, group, operand, **_request_settings(kind, attrs, members))
        return np.zeros(NOTHING, x.dtype) if reply is None else reply

    def vjp(g: np.ndarray, out: Any, x: np.ndarray, *, group: str | None, **attrs: Any) -> tuple[np.ndarray]:
        if attrs.get("reduce", "sum") != "sum":
            raise without_gradient(name, attrs["reduce"])
        world, members = members_of(name, group)
        request = _request_settings(kind, attrs, members)
        if message.receiver == "root" and world.rank != request["root"]:
            # away from the destination the result does not depend on x: the gradient that came back is dropped
            g = np.zeros_like(x)
        back = _exchange(message.adjoint, g, group, **message.adjoint_attrs(request))
        return (np.zeros_like(x) if back is None else back,)

    operator = CALLS[name] = Operator(
        name=name,
        class_name=name,
        fn=fn,
        signature=None,
        positional=("x",),
        tensors=("x",),
        options={**options, "operand": ""},
        defaults={},
        dtype=0,
        result_shape=lambda shapes, **attrs: _traced_shape(kind, shapes[0], attrs),
        message=kind,
        internal=True,
        __doc__=message.reply,
    )
    operator.vjp(vjp)
    return operator


def _exchange(kind: str, x: np.ndarray, group: str | None, operand: str = "", **attrs: Any) -> np.ndarray | None:
    """What a message of this rank's x brings it; None where it is not a receiver."""
    message = MESSAGES[kind]
    world, members = members_of(message.class_name, group)
    if kind == "all_reduce":
        world.note_sum(x, members)
    if operand:
        return world.comm.named(kind, x, operand, members, origin_of(message.class_name), **attrs)
    tag = {"tag": origin_of(message.class_name)} if message.symmetric else {}
    return getattr(world.comm, kind)(x, group=members, **attrs, **tag)


_ALL_REDUCE = _definition("all_reduce", reduce="sum", group=None)


@_ALL_REDUCE.vjp
def _(g, out, x, *, reduce, group, operand):
    total = _exchange("all_reduce", g, group, reduce="sum")
    if reduce == "sum":
        return (total,)
    if reduce == "prod":
        world, members = members_of("AllReduce", group)
        factors = world.comm.all_gather(x[None], 0, members, tag=origin_of("AllReduce, gradient"))
        return (total * np.prod(np.delete(factors, members.index(world.rank), axis=0), axis=0, dtype=x.dtype),)
    # equal extremes share the gradient equally, as in reduce_max, also when they lie on different ranks
    mask = (x == out).astype(g.dtype)
    return (mask * (total / _exchange("all_reduce", mask, group, reduce="sum")),)


# ---- the operators ----


class _Collective(Communication):
    """Base of those that take one value. fused_as: kind of message that calls of one `fusion` number share, or ""."""

    op: OpDef
    fused_as = ""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(attrs)

    def at_once(self, x: Any) -> Any:
        x = self.one_tensor(x)
        if self.fused_as and self.prim_attrs["fusion"] and hasattr(x, "__parallel_lab_later__"):
            world, members = group_of(self.name, self.given["group"])
            if holdable(self.fused_as, x.shape, len(members)):
                about = {"world": world, "members": members, "fusion": self.prim_attrs["fusion"]}
                (x,), attrs = self.op.bind((x,), self.given)
                about |= {"reduce": self.given.get("reduce", ""), "operand": name_of(x)}
                return x.__parallel_lab_later__(self.op, attrs, hold(self.fused_as, self.name, x.array, **about))
        return self.op.call((x,), {**self.given, "operand": name_of(x)})

    def one_tensor(self, x: Any) -> Any:
        """The input. Raises ArgumentTypeError for several, and for truth values that are to be added up."""
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            if isinstance(x, (list, tuple)) and any(hasattr(v, "dtype") for v in x):
                raise ArgumentTypeError(f"{len(x)} tensors", where=self.name, allowed="One Tensor")
            try:
                x = np.asarray(x)
            except (TypeError, ValueError):
                x = np.asarray(None)
            if x.dtype.kind not in "biufc":
                raise ArgumentTypeError(f"x={shorten(x)}", where=self.name, allowed="A Tensor")
        if self.fused_as and MESSAGES[self.fused_as].reducing and str(x.dtype) == "bool":
            hint = "Convert it: x.astype('int32')"
            raise ArgumentTypeError("a value of dtype bool", where=self.name, allowed="Numbers", hint=hint)
        return x

    def check_group(self, members: tuple[int, ...]) -> None:
        """Raise WorldArgumentError for a group that does not fit the attributes."""

    def traced(self, tracer: Any, x: Any) -> Any:
        rank, members = self.in_trace(tracer)
        self.check_group(members)
        x, kind = tracer.operand(self.one_tensor(x), []), self.op.message
        settings = _request_settings(kind, self.given, members)
        if len(members) == 1:
            _check_pieces(kind, x.shape, settings, 1)
            return OPS["reshape"](x, shape=x.shape)
        if MESSAGES[kind].receiver == "root":
            settings["received"] = rank == settings["root"]
        return self.recorded(tracer, self.op, (x,), **settings, group=members)


class AllReduce(_Collective):
    """The combination of all ranks' values, on every rank.  x: (...) -> (...).

    Ranks compare the source line of a call, and the name of a Parameter. In a loop over other tensors that is one line:
    a rank with another order of them adds unlike tensors, and nothing shows it. `comm.all_reduce(x, tag=name)` does.

    op     ReduceOp.SUM, MAX, MIN or PROD
    group  name of a group (`create_group`); None: all ranks
    """

    op = _ALL_REDUCE
    fused_as = "all_reduce"

    @checked(op=REDUCTION, group=a_group)
    def __init__(self, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        super().__init__(reduce=op, group=group)


class AllGather(_Collective):
    """All ranks' values, one below the other, on every rank.  x: (a, ...) -> (n a, ...) for n ranks."""

    op = _definition("all_gather", group=None)
    fused_as = "all_gather"

    @checked(group=a_group)
    def __init__(self, group: str | None = None) -> None:
        super().__init__(group=group)


class ReduceScatter(_Collective):
    """Each rank its own rows of the combination.  x: (n a, ...) -> (a, ...) for n ranks. op, group: as in AllReduce."""

    op = _definition("reduce_scatter", reduce="sum", group=None)
    fused_as = "reduce_scatter"

    @checked(op=REDUCTION, group=a_group)
    def __init__(self, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        super().__init__(reduce=op, group=group)


class AlltoAll(_Collective):
    """x split along split_dim into split_count pieces, one per rank of the group; received ones join along concat_dim.

    x: (..., n a, ..., b, ...) -> (..., a, ..., n b, ...)
    """

    op = _definition("all_to_all", split_dim=0, concat_dim=0, group=None)

    @checked(split_count=integer(1), split_dim=integer(), concat_dim=integer(), group=a_group)
    def __init__(self, split_count: int, split_dim: int, concat_dim: int, group: str | None = None) -> None:
        self.split_count = split_count
        super().__init__(split_dim=split_dim, concat_dim=concat_dim, group=group)

    def check_group(self, members: tuple[int, ...]) -> None:
        if self.split_count != len(members):
            allowed = f"{len(members)}, the number of ranks in the group"
            raise WorldArgumentError(f"split_count={self.split_count}", where=self.name, allowed=allowed)

    def at_once(self, x: Any) -> Any:
        self.check_group(members_of(self.name, self.given["group"])[1])
        return super().at_once(x)


class Broadcast(_Collective):
    """`root_rank`'s value, a rank of the world, on all ranks.  x: a Tensor or tuple, everywhere of equal shapes."""

    op = _definition("broadcast", root=0, group=None)

    @checked(root_rank=integer(0), group=a_group)
    def __init__(self, root_rank: int, group: str | None = None) -> None:
        super().__init__(root=root_rank, group=group)

    def __call__(self, *inputs: Any) -> Any:
        if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
            return tuple(super(Broadcast, self).__call__(each) for each in inputs[0])
        return super().__call__(*inputs)


class Reduce(_Collective):
    """The combination on rank `dest_rank` of the group.  x: (...) -> (...) there, a meaningless (1,) on the others."""

    op = _definition("reduce", root=0, reduce="sum", group=None)

    @checked(dest_rank=integer(0), op=REDUCTION, group=a_group)
    def __init__(self, dest_rank: int, op: str = ReduceOp.SUM, group: str | None = None) -> None:
        super().__init__(root=dest_rank, reduce=op, group=group)


class CollectiveGather(_Collective):
    """All ranks' values, joined, on rank `dest_rank` of the world.  x: (a, ...) -> (n a, ...) there, (1,) elsewhere."""

    op = _definition("gather", root=0, group=None)

    @checked(dest_rank=integer(0), group=a_group)
    def __init__(self, dest_rank: int, group: str | None = None) -> None:
        super().__init__(root=dest_rank, group=group)


class CollectiveScatter(_Collective):
    """Each rank its own rows of the value of rank `src_rank` of the world.  x: (n a, ...), read there -> (a, ...)."""

    op = _definition("scatter", root=0, group=None)

    @checked(src_rank=integer(0), group=a_group)
    def __init__(self, src_rank: int = 0, group: str | None = None) -> None:
        super().__init__(root=src_rank, group=group)


_BARRIER = _definition("barrier", group=None)


class Barrier(Communication):
    """Return when all ranks of the group have called it."""

    @checked(group=a_group)
    def __init__(self, group: str | None = None) -> None:
        super().__init__({"group": group})

    takes = (0, 0)

    def at_once(self) -> None:
        world, members = members_of(self.name, self.given["group"])
        world.comm.barrier(members)

    def traced(self, tracer: Any) -> None:
        _, members = self.in_trace(tracer)
        if len(members) > 1:
            self.recorded(tracer, _BARRIER, (0,), group=members)
