"""The named calls of a rank's communicator: `comm.all_reduce(x)` for `comm.answer(Request("all_reduce", ...))`.

Those of shared memory and MPI derive from it, through `processes/checked_calls.py`, and bring `_answer`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..base.checks import INTS, is_int
from ..base.errors import CollectiveMismatch, shorten
from ..base.origin import caller as learners_line, short_file
from ..ops.collectives.definitions import MESSAGES
from .communicator import Handle, Request

# the hint of a CollectiveMismatch whose calls differ in nothing but where they stand
TWO_LINES = (
    "If two source lines are meant to meet, let all ranks run one line, or give both calls of comm the same tag=...; "
    "Parameters of two names meet as Tensors: w.value()"
)

Group = Iterable[int] | None  # ranks in order; None: all of them
Out = np.ndarray | None  # an array that receives the result; None: a new one

_OPERATORS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "ops") + os.sep


class MessageRecord(NamedTuple):
    """One request of a rank, as `comm.records` keeps it.

    index          number of the request on this rank, from 0
    kind           "all_reduce", "send", ...
    start_s, end_s  time.perf_counter() seconds
    size_bytes     what this rank sent: `payload_bytes` of what it gave; 0 for a recv or a barrier
    group, origin  the ranks that took part, and the source line (or the tag) of the call
    step           training step of the compiled program that made it; 0 outside of one
    """

    index: int
    kind: str
    start_s: float
    end_s: float
    size_bytes: int
    group: tuple[int, ...]
    origin: str
    step: int = 0


class Calls:
    """One method per kind of request; each fills in a Request and the caller's source line, and hands it to `_answer`.

    rank, world_size
    state       a dict that lives as long as the worker: parameters and the like, kept between runs
    recording   when True, every request appends a MessageRecord to `records`; a started one when complete
    step        training step that is noted in the records; compiled programs set it
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.state: dict[str, Any] = {}
        self.recording, self.step = False, 0
        self.records: list[MessageRecord] = []
        self._world = tuple(range(world_size))

    def _members(self, kind: str, group: Group, origin: str) -> tuple[int, ...]:
        """The group of a call; None is everybody. Raises CollectiveMismatch for anything but a group of ranks."""
        if group is None:
            return self._world
        try:
            members = tuple(group)
            hash(members)  # calls are known by their groups
        except TypeError:
            what = f"rank {self.rank} called {kind} at {origin} with group {shorten(group)}"
            raise CollectiveMismatch(what, allowed="A group is a tuple of ranks, such as (0, 1)") from None
        return members

    def _answer(self, request: Request, explicit: bool, *, quiet: bool = False) -> np.ndarray | None:
        """This rank's reply. explicit: origin is a tag, compared even if lines may differ; quiet: not recorded."""
        raise NotImplementedError

    def _begin(self, request: Request, explicit: bool) -> Handle:
        """Start a request; see `begin`."""
        raise NotImplementedError

    def _ask(self, kind: str, group: Group, tag: str, **fields: Any) -> Any:
        """This rank's reply: an array, or None where the call gives this rank nothing."""
        raise NotImplementedError

    # working while a message travels

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = "float32") -> np.ndarray:
        """A new array, contents arbitrary, in memory that other ranks can read, if there is any: saves a copy."""
        return np.empty(shape, dtype)

    def begin(self, request: Request) -> Handle:
        """Start `request` and return at once.

        Leave its value and its `out` alone until `handle.wait()`. Members of a group start the same
        collectives in one order; other calls between. Progress: in `progress`, `handle.done()`, waits. A send
        is done when its value may be reused, and its wait never waits for the receiver. Recvs that were started take
        the messages of their sr_tag in the order of the starts, before those that are called later.
        """
        return self._begin(request, bool(request.origin))

    def start(
        self, kind: str, x: ArrayLike | None = None, group: Group = None, *, tag: str = "", **fields: Any
    ) -> Handle:
        """Start a request by name, and go on while it travels.

            handle = comm.start("all_reduce", x, reduce="sum")
            ...
            total = handle.wait()

        group   of a send or recv: (source, destination)
        fields  what the call of that name takes: reduce, dim, root, split_dim, concat_dim, out, sr_tag, shape, dtype
        """
        raise NotImplementedError

    def progress(self) -> None:
        """Move started messages on, without waiting."""

    # the calls

    def all_reduce(
        self, x: ArrayLike, reduce: str = "sum", group: Group = None, *, out: Out = None, tag: str = ""
    ) -> np.ndarray:
        """x of any shape, equal on all members, combined in group order; into `out` (which may be x) if given."""
        return self._ask("all_reduce", group, tag, value=x, reduce=reduce, out=out)

    def all_gather(
        self, x: ArrayLike, dim: int = 0, group: Group = None, *, out: Out = None, tag: str = ""
    ) -> np.ndarray:
        """The members' values joined along `dim` in group order.  (..., s, ...) -> (..., n * s, ...)."""
        return self._ask("all_gather", group, tag, value=x, dim=dim, out=out)

    def reduce_scatter(
        self, x: ArrayLike, reduce: str = "sum", dim: int = 0, group: Group = None, *, out: Out = None, tag: str = ""
    ) -> np.ndarray:
        """This rank's piece, along `dim`, of the combination.  (..., n * s, ...) -> (..., s, ...)."""
        return self._ask("reduce_scatter", group, tag, value=x, reduce=reduce, dim=dim, out=out)

    def all_to_all(
        self,
        x: ArrayLike,
        split_dim: int = 0,
        concat_dim: int = 0,
        group: Group = None,
        *,
        out: Out = None,
        tag: str = "",
    ) -> np.ndarray:
        """x split along split_dim, piece i to member i; what arrives is joined along concat_dim in group order."""
        return self._ask("all_to_all", group, tag, value=x, split_dim=split_dim, concat_dim=concat_dim, out=out)

    def halo_exchange(
        self, x: ArrayLike, window: tuple[int, int, int, int], dim: int = 0, group: Group = None, *, tag: str = ""
    ) -> np.ndarray:
        """This rank's window (step, origin, length, part) of all slices.  (..., part, ...) -> (..., length, ...)."""
        return self._ask("halo_exchange", group, tag, value=x, window=window, dim=dim)

    def halo_reduce(
        self, x: ArrayLike, window: tuple[int, int, int, int], dim: int = 0, group: Group = None, *, tag: str = ""
    ) -> np.ndarray:
        """The sum of all windows' parts of a slice, halo_exchange's adjoint. (..., length, ...) -> (..., part, ...)."""
        return self._ask("halo_reduce", group, tag, value=x, window=window, dim=dim)

    def exchange(self, x: ArrayLike, route: tuple[Any, ...], group: Group = None, *, tag: str = "") -> np.ndarray:
        """This rank's slice of the new layout of `route` (`Route.attr`), from every rank's slice of the old one."""
        return self._ask("exchange", group, tag, value=x, route=route)

    def exchange_reduce(
        self, x: ArrayLike, route: tuple[Any, ...], group: Group = None, *, tag: str = ""
    ) -> np.ndarray:
        """What was taken of this rank's slice comes back and is added up: exchange's adjoint, new slice to old."""
        return self._ask("exchange_reduce", group, tag, value=x, route=route)

    def all_to_all_v(self, x: ArrayLike, route: tuple[Any, ...], group: Group = None, *, tag: str = "") -> np.ndarray:
        """Rows to every member, as many as `route` (`rows_route`) says: (..., rows_in, h) -> (..., rows_out, h)."""
        return self._ask("all_to_all_v", group, tag, value=x, route=route)

    def broadcast(
        self, x: ArrayLike | None = None, root: int = 0, group: Group = None, *, out: Out = None, tag: str = ""
    ) -> np.ndarray:
        """The root's value on every member. Off the root x may be None, or must have the root's shape and dtype."""
        return self._ask("broadcast", group, tag, value=x, root=root, out=out)

    def reduce(
        self, x: ArrayLike, reduce: str = "sum", root: int = 0, group: Group = None, *, out: Out = None, tag: str = ""
    ) -> np.ndarray | None:
        """The combination on the root, None elsewhere (where there is no `out`)."""
        return self._ask("reduce", group, tag, value=x, reduce=reduce, root=root, out=out)

    def gather(
        self, x: ArrayLike, dim: int = 0, root: int = 0, group: Group = None, *, out: Out = None, tag: str = ""
    ) -> np.ndarray | None:
        """The members' values joined along `dim` on the root, None elsewhere (where there is no `out`)."""
        return self._ask("gather", group, tag, value=x, dim=dim, root=root, out=out)

    def scatter(
        self,
        x: ArrayLike | None = None,
        dim: int = 0,
        root: int = 0,
        group: Group = None,
        *,
        out: Out = None,
        tag: str = "",
    ) -> np.ndarray:
        """This rank's piece of the root's value along `dim`; x is read on the root only."""
        value = x if is_int(root, kinds=INTS) and self.rank == root else None
        return self._ask("scatter", group, tag, value=value, dim=dim, root=root, out=out)

    def barrier(self, group: Group = None, *, tag: str = "") -> None:
        """Return when all members have called it."""
        self._ask("barrier", group, tag)

    def send(self, x: ArrayLike, to: int, *, sr_tag: int = 0) -> None:
        """Hand x to rank `to`; returns when it is copied, whether or not the other is ready."""
        self._ask("send", (self.rank, to), "", value=x, sr_tag=sr_tag)

    def recv(
        self,
        source: int,
        shape: Iterable[int] | None = None,
        dtype: DTypeLike | None = None,
        *,
        sr_tag: int = 0,
        out: Out = None,
    ) -> np.ndarray:
        """The next value that rank `source` sent with this sr_tag; shape and dtype, where given, must be those sent."""
        shape, dtype = None if shape is None else tuple(shape), None if dtype is None else str(np.dtype(dtype))
        return self._ask("recv", (source, self.rank), "", shape=shape, dtype=dtype, sr_tag=sr_tag, out=out)

    # what was sent

    def sent(self) -> tuple[MessageRecord, ...]:
        """The recorded messages in which this rank sent bytes, in the order in which they were complete.

            comm.recording = True
            comm.all_reduce(x)
            size_bytes = sum(message.size_bytes for message in comm.sent())

        Messages of before `recording` was set are missing.
        """
        return tuple(record for record in self.records if record.size_bytes)

    def _record(self, index: int, request: Request, group: tuple[int, ...], start_s: float, end_s: float) -> None:
        sent = self._bytes_sent(request)
        self.records.append(MessageRecord(index, request.kind, start_s, end_s, sent, group, request.origin, self.step))

    def _bytes_sent(self, request: Request) -> int:
        definition = MESSAGES[request.kind]
        if request.value is None or (definition.sender == "root" and request.root != self.rank):
            return 0
        position = request.group.index(self.rank)
        return definition.payload_bytes(
            request.value.nbytes, len(request.group), request.window or request.route, position
        )


def caller(depth: int) -> str:
    """file:line of the caller `depth` frames above; of an operator of this package, of the line that called it."""
    frame = sys._getframe(depth + 1)
    file = frame.f_code.co_filename
    return (learners_line().place if file.startswith(_OPERATORS) else "") or f"{short_file(file)}:{frame.f_lineno}"
