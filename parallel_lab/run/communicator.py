"""What a rank asks for, and the reference answer.

A rank program (plan interpreter, or written by hand) is a generator that yields `Request`s and is sent replies:

    def ring_sum(rank, x):
        total = yield Request("all_reduce", (0, 1, 2, 3), x)
        return total

A request can also be started, and waited for later, so that the rank works while its message travels:

    handle = yield Start(Request("all_reduce", (0, 1, 2, 3), x))
    ...
    total = yield Wait(handle)

The simulator (`simulator.py`) answers when all members have asked, shared-memory workers (`shm/`) answer through
their arena. `answer` specifies both: values are combined in group order, so all give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, cast

import numpy as np

from ..base.checks import INTS, is_int
from ..base.dtypes import kind_of, plain_array
from ..base.errors import ArgumentTypeError, CollectiveMismatch, ParallelLabError, ShapeError, message, shorten
from ..base.unchecked import unchecked
from ..layout.slices import copy_of
from ..ops.collectives.definitions import MESSAGES, REDUCTIONS, apart

NUMBERS = "A numpy array of numbers"
_NUMBERS = "biufc"  # kinds of dtypes that can be added and compared
_plain_name = lru_cache(str)  # numpy takes a while to find it


@dataclass(frozen=True)
class Request:
    """One communication request of one rank.

    kind        one of `ops.collectives.definitions.MESSAGES`
    group       ranks that take part, ascending; for send and recv (source, destination)
    value       this rank's array; None for barrier, recv, and for the ranks of broadcast/scatter that are not the root
    reduce      "sum", "max", "min", "prod" or, of floats, "mean" (all_reduce, reduce_scatter, reduce)
    dim         all_gather, reduce_scatter, gather, scatter: the tensor dim that is joined or split
    split_dim, concat_dim   all_to_all: the dims split among members, and along which pieces are joined
    window      halo_exchange, halo_reduce: (step, origin, length, part) along `dim`, see `ops/collectives/halo.py`
    route       exchange, exchange_reduce: `Route.attr` of `layout/route.py`; all_to_all_v: `rows_route`
    root        broadcast, reduce, gather, scatter: a rank (not a position in the group)
    shape, dtype   recv, and broadcast/scatter off the root: what will arrive (for scatter: this rank's part)
    sr_tag      send, recv: which of the queues between the two ranks
    out         C-contiguous array for the reply, of its shape and dtype, may be `value` (in place); None: new memory
    number      earlier requests of this rank in this group (None: filled in);  origin: operator name and file:line

    A send never waits for its receiver: the value is copied and lies ready, and what one rank sends another under one
    `sr_tag` arrives in the order of the sends. A recv waits for its sender. A message that was not received at the end:
    CollectiveMismatch.

    A group, shape or window given as a list or range becomes a tuple, a value given as a list or number becomes an
    array (ShapeError if it cannot). Numbers and names of numpy become Python's, whose texts are the same on all ranks:
    a root may come from np.argmin on one of them.
    """

    kind: str
    group: tuple[int, ...]
    value: np.ndarray | None = None
    reduce: str = "sum"
    dim: int = 0
    split_dim: int = 0
    concat_dim: int = 0
    window: tuple[int, int, int, int] | None = None
    route: tuple[Any, ...] | None = None
    root: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    sr_tag: int = 0
    number: int | None = None
    origin: str = ""
    out: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("group", "shape", "window"):
            field = getattr(self, name)
            several = isinstance(field, (tuple, list, range))
            if several and (type(field) is not tuple or any(isinstance(n, np.integer) for n in field)):
                plain = tuple(n.item() if isinstance(n, np.integer) else n for n in field)
                object.__setattr__(self, name, plain)
        for name in ("dim", "split_dim", "concat_dim", "root", "reduce", "sr_tag"):
            field = getattr(self, name)
            if isinstance(field, (np.integer, np.str_)):
                object.__setattr__(self, name, field.item())
        if self.value is not None and type(self.value) is not np.ndarray:
            try:
                object.__setattr__(self, "value", plain_array(self.value, where=self.kind))
            except ArgumentTypeError:
                raise
            except ValueError as error:  # rows of different lengths
                where = f"{self.kind}{' at ' + self.origin if self.origin else ''}"
                what = f"the value {shorten(self.value)} is not an array"
                raise ShapeError(what, where=where, allowed=NUMBERS) from error

    def descriptor(self) -> tuple[Any, ...]:
        """What all members must agree on, shapes too (equal parts); None, for a missing value, fits anything."""
        definition = MESSAGES[self.kind]
        if not definition.is_collective or not definition.sender:
            return (self.kind, self.group)
        if self.value is not None:
            dtype, shape = _dtype_name(self.value.dtype), self.value.shape
            if definition.sender == "root" and definition.cut:  # the others know their own part only
                shape = definition.reply_shape(shape, vars(self), len(self.group))
        else:
            dtype = None if self.dtype is None else _dtype_name(np.dtype(self.dtype))
            shape = None if self.shape is None else tuple(self.shape)
        return (self.kind, self.group, dtype, shape, *(getattr(self, name) for name in definition.attributes))

    def numbered(self, number: int) -> Request:
        """The same request with its number; nothing is checked again."""
        return unchecked(Request, **{**vars(self), "number": number})


class Handle:
    """What was started. `wait()` gives its reply, once; `end_s`: perf_counter() when it was noticed complete."""

    end_s: float | None = None

    def wait(self) -> np.ndarray | None:
        """Wait until the group has answered; the reply. Raises as `answer`, and PlanError at a second call."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether `wait` would return at once. Makes progress."""
        raise NotImplementedError


@dataclass(frozen=True)
class Start:
    """Start a request, collectives in one order on all members. The reply is a handle; the value stays until `Wait`."""

    request: Request


@dataclass(frozen=True)
class Wait:
    """Wait for a started request; the reply is that of the request. A handle is waited for once."""

    handle: Any


def _dtype_name(dtype: np.dtype) -> str:
    """str(dtype). Structured dtypes may be equal and have other names."""
    return _plain_name(dtype) if dtype.names is None else str(dtype)


def check_request(request: object, rank: int, ranks: Collection[int]) -> None:
    """Check what one request shows alone: kind, group, root, reduction, value, dims, even pieces, out.

    rank   the one that asks
    ranks  every rank there is

    Raises CollectiveMismatch (kind, group, root, reduction) or ShapeError (value, dims), naming the rank and its call.
    """
    if not isinstance(request, Request):
        what, allowed = f"rank {rank} yielded {shorten(request)}", "A rank program yields Requests"
        raise CollectiveMismatch(what, allowed=allowed, hint="yield Request(...)")
    kind, group, value = request.kind, request.group, request.value
    definition = MESSAGES.get(kind) if isinstance(kind, str) else None
    if definition is None:
        at = f" at {request.origin}" if request.origin else ""
        what, allowed = f"rank {rank} called {kind!r}{at}", f"One of {tuple(MESSAGES)}"
        raise CollectiveMismatch(what, where="unknown kind", allowed=allowed)

    def refuse(error: type[ParallelLabError], what: str, allowed: str, hint: str = "") -> NoReturn:
        raise error(f"rank {rank} called {describe(request)}{what}", allowed=allowed, hint=hint)

    if not isinstance(group, tuple) or not group or not all(is_int(r, kinds=INTS) for r in group):
        refuse(CollectiveMismatch, f" with group {shorten(group)}", "A group is a tuple of ranks, such as (0, 1)")
    outside = [r for r in group if r not in ranks]
    if outside:
        what = f" with group {group}, which names ranks {outside}"
        refuse(CollectiveMismatch, what, f"The ranks are {_ranks_text(ranks)}")
    if not definition.is_collective:
        if len(group) != 2 or group[0] == group[1] or group[kind == "recv"] != rank:
            place = "first" if kind == "send" else "second"
            allowed = f"The group of send and recv is (source, destination), two ranks, and rank {rank} is the {place}"
            refuse(CollectiveMismatch, f" with group {group}", allowed)
        if not is_int(request.sr_tag, 0, kinds=INTS):
            refuse(CollectiveMismatch, f" with sr_tag={shorten(request.sr_tag)}", "A tag is an int, at least 0")
    elif rank not in group:
        refuse(CollectiveMismatch, f" for group {group}", "A rank calls for its own groups")
    elif tuple(sorted(set(group))) != group:
        what = f" with group {group}, which is not ascending"
        refuse(CollectiveMismatch, what, "Each rank once, in ascending order")
    if definition.rooted and (not is_int(request.root, kinds=INTS) or request.root not in group):
        root = f" with root {request.root!r}, which is not a member of its group"
        what = " without a root" if request.root is None else root
        refuse(CollectiveMismatch, what, f"root is a rank of {group}")
    if definition.reducing and not (isinstance(request.reduce, str) and request.reduce in REDUCTIONS):
        refuse(CollectiveMismatch, f" with reduce={request.reduce!r}", f"One of {sorted(REDUCTIONS)}")
    if request.out is not None:
        _check_out(request, rank, refuse)
    if not definition.sender or (definition.sender == "root" and rank != request.root):
        return
    if value is None:
        refuse(ShapeError, " without a value", NUMBERS)
    kind = kind_of(value.dtype)
    if kind in "OSUT" or not value.dtype.itemsize or (definition.adds and kind not in _NUMBERS):
        refuse(ShapeError, f": values of dtype {value.dtype} cannot be sent", NUMBERS)
    if definition.reducing and request.reduce == "mean" and kind not in "fc":
        what = f": the mean of {value.dtype} values is no {value.dtype}"
        refuse(ShapeError, what, "Floats", "Send it as float32")
    parts = len(group)
    for name in (a for a in definition.attributes if a.endswith("dim")):
        dim = getattr(request, name)
        if not is_int(dim, kinds=INTS) or not -value.ndim <= dim < value.ndim:
            allowed = f"An int from {-value.ndim} to {value.ndim - 1}" if value.ndim else "A value with dims"
            refuse(ShapeError, f": {name}={dim!r} of a value of shape {value.shape}", allowed)
        if name == definition.cut and value.shape[dim] % parts:
            what = f": dim {dim} of size {value.shape[dim]} cannot be split into {parts} equal pieces"
            refuse(ShapeError, what, f"A dim that divides by {parts}", "Pad the value, or use another dim")
    fault = definition.fault_of(value.shape, vars(request), parts) if definition.fault_of is not None else None
    if fault is not None:
        refuse(ShapeError, f": {fault[0]}", fault[1])
    if request.out is not None and (definition.receiver == "all" or request.root == rank):
        expected, dtype = reply_shape(request), value.dtype.newbyteorder("=")
        if request.out.shape != expected or request.out.dtype != dtype:
            what = f": out is {request.out.dtype} {request.out.shape}"
            refuse(ShapeError, what, f"{dtype} {expected}, as the reply")


def _check_out(request: Request, rank: int, refuse: Callable[..., NoReturn]) -> None:
    """Raise ShapeError unless `out` can take the reply, as far as that is known without the value."""
    out = request.out
    if not isinstance(out, np.ndarray) or not out.flags.c_contiguous or not out.flags.writeable:
        refuse(ShapeError, f" with out={shorten(out)}", "A C-contiguous numpy array that can be written")
    receiver = MESSAGES[request.kind].receiver
    if not receiver or (receiver == "root" and request.root != rank):
        refuse(ShapeError, " with out", "No out: this rank has no reply")
    for name, have in (("shape", out.shape), ("dtype", str(out.dtype))):
        field = getattr(request, name)
        if field is not None and (tuple(field) if name == "shape" else str(np.dtype(field))) != have:
            refuse(ShapeError, f" with {name}={field} and an out of {name} {have}", "The same in both")


def reply_shape(request: Request) -> tuple[int, ...]:
    """Shape of the reply to a request that has a value."""
    value = cast(np.ndarray, request.value)
    return MESSAGES[request.kind].reply_shape(value.shape, vars(request), len(request.group))


def _ranks_text(ranks: Collection[int]) -> str:
    ordered = sorted(ranks)
    return f"0 to {len(ordered) - 1}" if ordered == list(range(len(ordered))) else str(ordered)


def check_match(requests: Sequence[Request], members: Sequence[int]) -> None:
    """Raise CollectiveMismatch unless all `requests` (one per rank in `members`) ask for the same thing."""
    # the root of a broadcast or scatter knows most; a rank that gives less is compared in what it gives
    best = max(range(len(requests)), key=lambda i: sum(x is not None for x in requests[i].descriptor()))
    first = requests[best].descriptor()
    for request, rank in zip(requests, members, strict=True):
        own = request.descriptor()
        if len(own) != len(first) or any(x is not None and x != y for x, y in zip(own, first, strict=True)):
            calls = zip((members[best], rank), (requests[best], request), strict=True)
            what = " and ".join(f"rank {member} called {describe(call)}" for member, call in calls)
            where = f"group {tuple(members)}, call {'?' if request.number is None else request.number}"
            allowed = "All members of a group must make the same calls in the same order"
            raise CollectiveMismatch(what, where=where, allowed=allowed)


def describe(request: Request) -> str:
    """A request in words, for messages."""
    words = [request.kind]
    if request.value is not None:
        words.append(f"{request.value.dtype} {tuple(request.value.shape)}")
    return " ".join(filter(None, (*words, detail(request)))) + (f" at {request.origin}" if request.origin else "")


def detail(request: Request) -> str:
    """What tells a request from others of its kind, dtype and shape: reduction, root, dims, window."""
    words = []
    for name in MESSAGES[request.kind].attributes:
        field = getattr(request, name)
        if name == "reduce":
            words.append(field if isinstance(field, str) and field in REDUCTIONS else repr(field))
        elif name in ("window", "route"):
            words.append(f"{name} {shorten(field)}")
        elif field is not None and name not in ("shape", "dtype") and (name != "sr_tag" or field):
            words.append(f"{name.replace('_', ' ')} {field}")
    return " ".join(words)


def delivered(reply: np.ndarray | None, request: Request) -> np.ndarray | None:
    """The reply in the request's `out`, if any. Raises ShapeError if it does not fit (broadcast, recv)."""
    if request.out is None or reply is None or reply is request.out:
        return reply
    if (reply.shape, reply.dtype.newbyteorder("=")) != (request.out.shape, request.out.dtype):
        arrived = f"{reply.dtype} {reply.shape} arrived, out is {request.out.dtype} {request.out.shape}"
        raise ShapeError(f"{describe(request)}: {arrived}", allowed="An out of the reply's shape and dtype")
    return copy_of(reply, request.out)


def answer(requests: Sequence[Request]) -> list[np.ndarray | None]:
    """Replies to a complete collective, as new C-contiguous arrays or `out`. CollectiveMismatch: members disagree."""
    check_match(requests, requests[0].group)
    # every reply is complete before the first out is written: in one process an out may be another rank's value
    replies = apart(_answered(requests), [request.out for request in requests])
    return list(map(delivered, replies, requests))


def _answered(requests: Sequence[Request]) -> list[np.ndarray | None]:
    first, definition = requests[0], MESSAGES[requests[0].kind]
    sides = definition.sender, definition.receiver
    sends, receives = ([side == "all" or (side and rank == first.root) for rank in first.group] for side in sides)
    values = [request.value if gives else None for request, gives in zip(requests, sends, strict=True)]
    assert definition.answer is not None, f"a {first.kind} is delivered, not answered"
    replies = definition.answer(values, vars(first))
    return [reply if gets else None for reply, gets in zip(replies, receives, strict=True)]


def not_waited_for(rank: int, request: Request) -> str:
    """What is wrong with a run that ended while what it started had not been waited for."""
    what = f"rank {rank} has started {describe(request)} and never waited for it"
    return message(what, allowed="Every start needs its wait", hint="Call handle.wait() before the run ends")
