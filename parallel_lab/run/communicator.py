"""What a rank asks for, and the reference answer.

A rank program (the plan interpreter, or an exercise written by hand) is a generator that yields `Request`s and is sent the replies:

    def ring_sum(rank, x):
        total = yield Request("all_reduce", (0, 1, 2, 3), x)
        return total

A request can also be started, and waited for later, so that the rank works while its message travels:

    handle = yield Start(Request("all_reduce", (0, 1, 2, 3), x))
    ...
    total = yield Wait(handle)

Who answers differs: the simulator (`simulator.py`) when all members have asked, shared-memory workers (`shm/`) through their arena. `answer` below
is the specification of both: values are combined in group order, one member after the other, so every answerer gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import CollectiveMismatch, ShapeError, message, shorten
from ..halo import HALOS, Halo
from ..slices import REDUCERS

__all__ = [
    "COLLECTIVES",
    "REDUCERS",
    "REDUCTIONS",
    "Request",
    "Start",
    "Wait",
    "answer",
    "check_match",
    "check_request",
    "combine",
    "delivered",
    "describe",
    "detail",
    "payload_bytes",
    "reply_shape",
]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier", *HALOS)
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_ADDING = (*_REDUCING, "halo_reduce")
_NUMBERS = "biufc"  # kinds of dtypes that can be added and compared
# beside kind, group, dtype and shape: what all members say alike
_AGREED = {
    "all_reduce": ("reduce",),
    "reduce": ("reduce", "root"),
    "reduce_scatter": ("reduce", "dim"),
    "all_gather": ("dim",),
    "gather": ("dim", "root"),
    "scatter": ("dim", "root"),
    "all_to_all": ("split_dim", "concat_dim"),
    "broadcast": ("root",),
}
_plain_name = lru_cache(str)  # numpy takes a while to find it
REDUCTIONS = (*REDUCERS, "mean")  # the mean is the sum, divided by the members once it is complete


@dataclass(frozen=True)
class Request:
    """One communication request of one rank.

    kind        one of COLLECTIVES, or "send" / "recv"
    group       ranks that take part, ascending; for send and recv (source, destination)
    value       this rank's array; None for barrier, recv, and for the ranks of broadcast/scatter that are not the root
    reduce      "sum", "max", "min", "prod" or, of floats, "mean" (all_reduce, reduce_scatter, reduce)
    dim         all_gather, reduce_scatter, gather, scatter: the tensor dim that is joined or cut
    split_dim, concat_dim   all_to_all: the dim that is cut among the members, and the dim along which received pieces are joined
    window      halo_exchange, halo_reduce: (step, origin, length, part) along `dim`, see `parallel_lab/halo.py`
    root        broadcast, reduce, gather, scatter: a rank (not a position in the group)
    shape, dtype   recv, and broadcast/scatter off the root: what will arrive (for scatter: this rank's part)
    out         where the reply is to lie: a C-contiguous array of the reply's shape and dtype, which may be `value` itself (in place);
                None: new memory
    number      how many requests this rank made before in this group (filled by the answerer when None)
    origin      operator name and file:line, for messages about this request

    A send never waits for its receiver: the value is copied and lies ready, and what one rank sends another arrives in the order of the sends. A recv
    waits until its sender has sent. A message that nobody has received when the programs have ended is a CollectiveMismatch.

    A group, shape or window given as a list or range becomes a tuple, a value given as a list or number becomes an array (ShapeError if it cannot).
    """

    kind: str
    group: tuple[int, ...]
    value: np.ndarray | None = None
    reduce: str = "sum"
    dim: int = 0
    split_dim: int = 0
    concat_dim: int = 0
    window: tuple[int, int, int, int] | None = None
    root: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    number: int | None = None
    origin: str = ""
    out: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("group", "shape", "window"):
            given = getattr(self, name)
            if isinstance(given, (list, range)):
                object.__setattr__(self, name, tuple(given))
        self._make_plain()
        if self.value is not None and not isinstance(self.value, np.ndarray):
            try:
                object.__setattr__(self, "value", np.asarray(self.value))
            except ValueError as error:  # rows of different lengths
                where = f"{self.kind}{' at ' + self.origin if self.origin else ''}"
                raise ShapeError(message(f"the value {shorten(self.value)} is no array", where=where, allowed="A numpy array of numbers")) from error

    def _make_plain(self) -> None:
        """Numbers and names of numpy become Python's, whose texts are the same on all ranks: a root may come from np.argmin on one of them."""
        for name in ("dim", "split_dim", "concat_dim", "root", "reduce"):
            given = getattr(self, name)
            if isinstance(given, (np.integer, np.str_)):
                object.__setattr__(self, name, given.item())
        for name in ("group", "shape"):
            given = getattr(self, name)
            if isinstance(given, tuple) and any(isinstance(n, np.integer) for n in given):
                object.__setattr__(self, name, tuple(n.item() if isinstance(n, np.integer) else n for n in given))

    def descriptor(self) -> tuple:
        """What all members must agree on. Shapes are part of it: every collective here is over equal parts.

        Off the root of a broadcast or scatter there is no value; there `shape` and `dtype` stand in for it, and what is not given (None) fits
        anything."""
        if self.kind in ("barrier", "send", "recv"):
            return (self.kind, self.group)
        kind, n = self.kind, len(self.group)
        if self.value is not None:
            dtype, shape = _dtype_name(self.value.dtype), self.value.shape
            if kind == "scatter":
                shape = scatter_part(shape, self.dim, n)
        else:
            dtype = None if self.dtype is None else _dtype_name(np.dtype(self.dtype))
            shape = None if self.shape is None else tuple(self.shape)
        if kind in HALOS:
            return (kind, self.group, dtype, shape, self.dim, self.window and tuple(map(int, self.window)))
        return (kind, self.group, dtype, shape, *(getattr(self, name) for name in _AGREED[kind]))

    def numbered(self, number: int) -> Request:
        """The same request with its number; nothing is checked again."""
        other = object.__new__(Request)
        other.__dict__.update(self.__dict__, number=number)
        return other


@dataclass(frozen=True)
class Start:
    """Start a collective and go on; the reply is a handle for `Wait`.

    Its value must not be changed before the wait. Started collectives are answered in the order of their starts: all members of a group start the
    same ones in the same order, whatever they ask for in between.
    """

    request: Request


@dataclass(frozen=True)
class Wait:
    """Wait for what was started; the reply is that of the request. A handle is waited for once."""

    handle: Any


def _dtype_name(dtype: np.dtype) -> str:
    """str(dtype). Structured dtypes may be equal and have other names."""
    return _plain_name(dtype) if dtype.names is None else str(dtype)


def check_request(request: object, rank: int, ranks: Collection[int]) -> None:
    """What can be seen of one request alone, before any other member has asked: kind, group, root, reduction, value, dims, even pieces, out.

    rank   who asks
    ranks  every rank there is

    Raises CollectiveMismatch (kind, group, root, reduction) or ShapeError (value, dims), naming the rank and its call.
    """
    if not isinstance(request, Request):
        raise CollectiveMismatch(
            message(f"rank {rank} yielded {shorten(request)}", allowed="A rank program yields Requests", hint="yield Request(...)")
        )
    kind, group, value = request.kind, request.group, request.value
    if kind not in COLLECTIVES and kind not in ("send", "recv"):
        at = f" at {request.origin}" if request.origin else ""
        raise CollectiveMismatch(
            message(f"rank {rank} called {kind!r}{at}", where="unknown kind", allowed=f"One of {(*COLLECTIVES, 'send', 'recv')}")
        )

    def call() -> str:
        return f"rank {rank} called {describe(request)}"

    if not isinstance(group, tuple) or not group or not all(_is_int(r) for r in group):
        raise CollectiveMismatch(message(f"{call()} with group {shorten(group)}", allowed="A group is a tuple of ranks, such as (0, 1)"))
    outside = [r for r in group if r not in ranks]
    if outside:
        raise CollectiveMismatch(message(f"{call()} with group {group}, which names ranks {outside}", allowed=f"The ranks are {_ranks_text(ranks)}"))
    if kind in ("send", "recv"):
        if len(group) != 2 or group[0] == group[1] or group[kind == "recv"] != rank:
            allowed = (
                f"The group of send and recv is (source, destination), two ranks, and rank {rank} is the {'first' if kind == 'send' else 'second'}"
            )
            raise CollectiveMismatch(message(f"{call()} with group {group}", allowed=allowed))
    elif rank not in group:
        raise CollectiveMismatch(message(f"{call()} for group {group}", allowed="A rank calls for its own groups"))
    elif tuple(sorted(set(group))) != group:
        raise CollectiveMismatch(message(f"{call()} with group {group}, which is not ascending", allowed="Each rank once, in ascending order"))
    if kind in _ROOTED and (not _is_int(request.root) or request.root not in group):
        what = "without a root" if request.root is None else f"with root {request.root!r}, which is no member of its group"
        raise CollectiveMismatch(message(f"{call()} {what}", allowed=f"root is a rank of {group}"))
    if kind in _REDUCING and request.reduce not in REDUCTIONS:
        raise CollectiveMismatch(message(f"{call()} with reduce={request.reduce!r}", allowed=f"One of {sorted(REDUCTIONS)}"))
    _check_out(request, rank, call)
    if kind in ("barrier", "recv") or (kind in ("broadcast", "scatter") and rank != request.root):
        return
    if value is None:
        raise ShapeError(message(f"{call()} without a value", allowed="A numpy array of numbers"))
    if value.dtype.kind in "OSUT" or not value.dtype.itemsize or (kind in _ADDING and value.dtype.kind not in _NUMBERS):
        raise ShapeError(message(f"{call()}: values of dtype {value.dtype} cannot be sent", allowed="A numpy array of numbers"))
    if kind in _REDUCING and request.reduce == "mean" and value.dtype.kind not in "fc":
        raise ShapeError(message(f"{call()}: the mean of {value.dtype} values is no {value.dtype}", allowed="Floats", hint="Send it as float32"))
    parts = len(group)
    cuts = {"reduce_scatter": "dim", "scatter": "dim", "all_to_all": "split_dim"}.get(kind)
    joins = {"all_gather": "dim", "gather": "dim", "all_to_all": "concat_dim", "halo_exchange": "dim", "halo_reduce": "dim"}.get(kind)
    for name in filter(None, (cuts, joins)):
        dim = getattr(request, name)
        if not _is_int(dim) or not -value.ndim <= dim < value.ndim:
            allowed = f"An int from {-value.ndim} to {value.ndim - 1}" if value.ndim else "A value with dims"
            raise ShapeError(message(f"{call()}: {name}={dim!r} of a value of shape {value.shape}", allowed=allowed))
        if name == cuts and value.shape[dim] % parts:
            what = f"{call()}: dim {dim} of size {value.shape[dim]} cannot be cut into {parts} equal pieces"
            raise ShapeError(message(what, allowed=f"A dim that divides by {parts}", hint="Pad the value, or use another dim"))
    if kind in HALOS:
        _check_window(request, call)
    if request.out is not None and (request.root is None or request.root == rank or kind == "scatter"):
        wanted, dtype = reply_shape(request), value.dtype.newbyteorder("=")
        if request.out.shape != wanted or request.out.dtype != dtype:
            raise ShapeError(message(f"{call()}: out is {request.out.dtype} {request.out.shape}", allowed=f"{dtype} {wanted}, as the reply"))


def _check_out(request: Request, rank: int, call: Callable[[], str]) -> None:
    """Raise ShapeError unless `out` can take the reply, as far as that is known without the value."""
    out = request.out
    if out is None:
        return
    if not isinstance(out, np.ndarray) or not out.flags.c_contiguous or not out.flags.writeable:
        raise ShapeError(message(f"{call()} with out={shorten(out)}", allowed="A C-contiguous numpy array that can be written"))
    if request.kind in ("barrier", "send") or (request.kind in ("reduce", "gather") and request.root != rank):
        raise ShapeError(message(f"{call()} with out", allowed="No out: this rank has no reply"))
    for name, have in (("shape", out.shape), ("dtype", str(out.dtype))):
        given = getattr(request, name)
        if given is not None and (tuple(given) if name == "shape" else str(np.dtype(given))) != have:
            raise ShapeError(message(f"{call()} with {name}={given} and an out of {name} {have}", allowed="The same in both"))


def reply_shape(request: Request) -> tuple[int, ...]:
    """Shape of the reply to a request that has a value."""
    kind, shape, n = request.kind, request.value.shape, len(request.group)

    def scaled(shape: tuple[int, ...], dim: int, factor: int, divisor: int = 1) -> tuple[int, ...]:
        return tuple(size * factor // divisor if i == dim % len(shape) else size for i, size in enumerate(shape))

    if kind in ("all_gather", "gather"):
        return scaled(shape, request.dim, n)
    if kind in ("reduce_scatter", "scatter"):
        return scaled(shape, request.dim, 1, n)
    if kind == "all_to_all":
        return scaled(scaled(shape, request.split_dim, 1, n), request.concat_dim, n)
    if kind in HALOS:
        extent = Halo(*request.window, members=n).extents(kind)[1]
        return tuple(extent if i == request.dim % len(shape) else size for i, size in enumerate(shape))
    return shape


def _check_window(request: Request, call: Callable[[], str]) -> None:
    """Raise ShapeError unless neighbours can fill the windows of a halo request, and its value is a slice (or a window) of them."""
    window = request.window
    if not isinstance(window, tuple) or len(window) != 4 or not all(_is_int(n) for n in window):
        allowed = "Four ints: (step, origin, length, part); member i gets [step * i + origin, + length) of slices of `part` elements"
        raise ShapeError(message(f"{call()}: window={shorten(window)}", allowed=allowed))
    halo = Halo(*window, members=len(request.group))
    extent, size = halo.extents(request.kind)[0], request.value.shape[request.dim]
    if size != extent:
        what = f"{call()}: dim {request.dim} has {size} elements"
        raise ShapeError(message(what, allowed=f"A {'slice' if request.kind == 'halo_exchange' else 'window'} of {extent}, as window={window} says"))
    fault = halo.fault()
    if fault:
        raise ShapeError(message(f"{call()}: {fault}", allowed="Windows reach no further than the neighbouring slices"))


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _ranks_text(ranks: Collection[int]) -> str:
    known = sorted(ranks)
    return f"0 to {len(known) - 1}" if known == list(range(len(known))) else str(known)


def scatter_part(shape: tuple[int, ...], dim: int, parts: int) -> tuple[int, ...]:
    """Shape of one of `parts` equal pieces of `shape` along `dim`."""
    dim %= len(shape)
    return (*shape[:dim], shape[dim] // parts, *shape[dim + 1 :])


def check_match(requests: Sequence[Request], members: Sequence[int]) -> None:
    """Raise CollectiveMismatch unless all `requests` (one per rank in `members`) ask for the same thing."""
    # the root of a broadcast or scatter knows most; whoever gives less is compared in what it gives
    best = max(range(len(requests)), key=lambda i: sum(x is not None for x in requests[i].descriptor()))
    first = requests[best].descriptor()
    for request, rank in zip(requests, members, strict=True):
        given = request.descriptor()
        if len(given) != len(first) or any(x is not None and x != y for x, y in zip(given, first, strict=True)):
            raise CollectiveMismatch(
                message(
                    f"rank {members[best]} called {describe(requests[best])} and rank {rank} called {describe(request)}",
                    where=f"group {tuple(members)}, call {request.number if request.number is not None else '?'}",
                    allowed="All members of a group must make the same calls in the same order",
                )
            )


def describe(request: Request) -> str:
    """A request in words, for messages."""
    words = [request.kind]
    if request.value is not None:
        words.append(f"{request.value.dtype} {tuple(request.value.shape)}")
    return " ".join(filter(None, (*words, detail(request)))) + (f" at {request.origin}" if request.origin else "")


def detail(request: Request) -> str:
    """What sets a request apart from others of its kind, dtype and shape: reduction, root, dims, window; for messages and the flight recorder."""
    words = []
    if request.kind in _REDUCING:
        words.append(request.reduce if request.reduce in REDUCTIONS else repr(request.reduce))
    if request.root is not None:
        words.append(f"root {request.root}")
    if request.kind in ("all_gather", "gather", "scatter", "reduce_scatter", *HALOS):
        words.append(f"dim {request.dim}")
    if request.kind == "all_to_all":
        words.append(f"split dim {request.split_dim}, concat dim {request.concat_dim}")
    if request.kind in HALOS:
        words.append(f"window {shorten(request.window)}")
    return " ".join(words)


def cut(request: Request, parts: int, dim: int) -> list[np.ndarray]:
    """The value of `request` in `parts` equal pieces along `dim`. Raises ShapeError if that does not come out even."""
    shape = request.value.shape
    if not -len(shape) <= dim < len(shape) or shape[dim] % parts:
        raise ShapeError(
            message(f"a value of shape {shape} cannot be cut along dim {dim}", where=describe(request), allowed=f"A dim that divides by {parts}")
        )
    return np.split(request.value, parts, axis=dim)


def combine(values: Sequence[np.ndarray], reduce: str) -> np.ndarray:
    """Reduce arrays of equal shape in the given order: ((v0 + v1) + v2) + ...

    The order is the contract: floating-point sums depend on it, and every answerer must produce these bits.
    """
    ufunc = REDUCERS["sum" if reduce == "mean" else reduce]
    total = np.array(values[0], copy=True, order="C")
    for value in values[1:]:
        ufunc(total, value, out=total)
    if reduce == "mean":
        np.divide(total, total.dtype.type(len(values)), out=total)
    return total


def delivered(reply: np.ndarray | None, request: Request) -> np.ndarray | None:
    """The reply in the request's `out`, where it has one.

    Raises ShapeError when what arrived does not fit there (broadcast, recv: known only now).
    """
    if request.out is None or reply is None or reply is request.out:
        return reply
    if (reply.shape, reply.dtype.newbyteorder("=")) != (request.out.shape, request.out.dtype):
        what = f"{describe(request)}: {reply.dtype} {reply.shape} arrived, out is {request.out.dtype} {request.out.shape}"
        raise ShapeError(message(what, allowed="An out of the reply's shape and dtype"))
    request.out[...] = reply
    return request.out


def answer(requests: Sequence[Request]) -> list[np.ndarray | None]:
    """Replies to one complete collective; `requests[i]` is the request of `group[i]`. Replies are C-contiguous, in memory of their own or in `out`.

    all_reduce      every rank: the combination in group order
    reduce_scatter  rank i: piece i of the combination along `dim`
    all_gather      every rank: the values joined along `dim` in group order
    all_to_all      rank i: piece i (along split_dim) of every member's value, joined along concat_dim in group order
    broadcast       every rank: the root's value
    reduce, gather  the root: as all_reduce / all_gather; the others: None
    scatter         rank i: piece i of the root's value along `dim`
    barrier         None
    halo_exchange   rank i: window i of the values joined along `dim`, zeros outside
    halo_reduce     rank i: slice i of the sum of all windows, each put where it lies and added to zeros in group order

    Raises CollectiveMismatch when the members do not agree.
    """
    check_match(requests, requests[0].group)
    # every reply is complete before the first out is written: an out may be another's value (one process, several ranks)
    return [delivered(reply, request) for reply, request in zip(_answered(requests), requests, strict=True)]


def _answered(requests: Sequence[Request]) -> list[np.ndarray | None]:
    kind, group = requests[0].kind, requests[0].group
    n, first = len(requests), requests[0]
    if kind == "barrier":
        return [None] * n
    root = group.index(first.root) if first.root is not None else None
    if kind == "broadcast":
        return [np.array(requests[root].value, order="C") for _ in group]
    if kind == "scatter":
        return [np.array(p, order="C") for p in cut(requests[root], n, first.dim)]
    values = [r.value for r in requests]
    if kind in ("all_reduce", "reduce"):
        total = combine(values, first.reduce)
        return [total.copy() if kind == "all_reduce" or i == root else None for i in range(n)]
    if kind == "reduce_scatter":
        pieces = [cut(r, n, first.dim) for r in requests]
        return [combine([p[i] for p in pieces], first.reduce) for i in range(n)]
    if kind in ("all_gather", "gather"):
        joined = np.ascontiguousarray(np.concatenate(values, axis=first.dim))
        return [joined.copy() if kind == "all_gather" or i == root else None for i in range(n)]
    if kind == "all_to_all":
        pieces = [cut(r, n, first.split_dim) for r in requests]
        return [np.ascontiguousarray(np.concatenate([p[i] for p in pieces], axis=first.concat_dim)) for i in range(n)]
    if kind in HALOS:
        return _answer_halo(kind, values, first.dim % first.value.ndim, Halo(*first.window, members=n))
    raise CollectiveMismatch(message(f"unknown collective {kind!r}", allowed=f"One of {COLLECTIVES}"))


def _answer_halo(kind: str, values: list[np.ndarray], dim: int, halo: Halo) -> list[np.ndarray]:
    """Both halos, by way of the whole tensor with its surroundings: from the first element of any window or slice to the last."""
    windows, total = [halo.window(i) for i in range(halo.members)], halo.part * halo.members
    low, high = min(0, *(start for start, _ in windows)), max(total, *(stop for _, stop in windows))
    shape = [high - low if d == dim else size for d, size in enumerate(values[0].shape)]
    whole = np.zeros(shape, values[0].dtype.newbyteorder("="))
    slices = [(halo.part * i, halo.part * (i + 1)) for i in range(halo.members)]
    at, wanted = (slices, windows) if kind == "halo_exchange" else (windows, slices)

    def part(interval: tuple[int, int]) -> np.ndarray:
        return whole[(slice(None),) * dim + (slice(interval[0] - low, interval[1] - low),)]

    for value, interval in zip(values, at, strict=True):
        if kind == "halo_exchange":
            part(interval)[...] = value
        else:
            np.add(part(interval), value, out=part(interval))
    return [np.array(part(interval), order="C") for interval in wanted]


def payload_bytes(kind: str, group_size: int, in_bytes: int, window: tuple[int, int, int, int] | None = None, position: int | None = None) -> int:
    """Bytes one rank must send in the bandwidth-optimal form of a collective on a value of `in_bytes` bytes per rank.

    all_reduce 2(n-1)/n, reduce_scatter (n-1)/n, all_to_all (n-1)/n of the value; all_gather (n-1) times the value; broadcast, send: the value.
    (Chan et al. 2007, table 1.)  halo_exchange, halo_reduce: the strips for the neighbours, by `window` and the rank's position in the group
    (None: of the member that sends most).
    """
    n = group_size
    if n <= 1 or kind in ("barrier", "recv"):
        return 0
    if kind in HALOS:
        return Halo(*window, members=n).sent_bytes(kind, in_bytes, position)
    if kind == "all_reduce":
        return 2 * (n - 1) * in_bytes // n
    if kind in ("reduce_scatter", "all_to_all"):
        return (n - 1) * in_bytes // n
    if kind == "all_gather":
        return (n - 1) * in_bytes
    return in_bytes
