"""What follows once the members of a group agree: a reply from the small values that came along, or moved data.

    all_reduce      each member adds its 1/n of the value in group order, then all send each other their parts
    reduce, reduce_scatter   the same addition; then the parts go to the root, or stay
    all_gather, gather, all_to_all, scatter   each piece from where it is to where it is needed, straight into the reply
                                              if it lies there in one run
    broadcast       the library's; in groups without a communicator of the library: pieces from the root, then every
                    member sends its piece to all
    halos, exchange   every piece from where it lies to where it is needed, by MPI's own types of parts of arrays

Written as generators of steps, for two drivers: a blocking call completes each step before it takes the next, a started
one (`nonblocking.py`) takes the next whenever it finds the last one complete. Pieces are sent from and into the arrays
themselves (`Request.out` included) as bytes. They travel as messages between pairs of ranks, not as collectives of the
library: no communicator has to be made for a group, which would wait for members that compute. Measured against Open
MPI's own (Ialltoallv and Iallgatherv, 2 to 8 ranks, 16 KiB to 16 MiB): 0.75 to 1.05 of their time.

Reproducible is the default: sums are made in group order, so the bits are those of `communicator.answer`, whatever MPI
it is and however it adds; the bytes that travel are the same (2(n-1)/n of the value for all_reduce). The library's own
sums match to rounding.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import message
from ...layout.route import Box, box_size
from ...layout.slices import REDUCERS
from ...ops.collectives.block_exchange import EXCHANGES
from ...ops.collectives.definitions import MESSAGES, combine
from ...run.communicator import Request, answer
from ...run.mail import expected
from ..shm.channels import pack_head, unpack_head
from ..shm.slices import as_pieces, positive_dim
from .handshake import Arrival, Asked, Handshake, pack_arrival

# up to here a value travels with the comparison: with its head it stays below the 4 KiB that Open MPI sends at once
SMALL_BYTES = 2048
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_ROOT_GIVES = ("broadcast", "scatter")
# What the library adds itself when it is asked to: floats, whose sums depend on the order anyway. With integers Open
# MPI 4.1 gives other sums (measured: int8 100 + 100 = 127, it saturates; the smaller of two uint64 above 2**63 is the
# wrong one).
_NATIVE_DTYPES, _NATIVE_REDUCERS = ("float32", "float64", "complex64", "complex128"), ("sum", "prod", "mean")


class Step(NamedTuple):
    """MPI requests that must be complete before the next step.  ranks: with whom; size_bytes: what is moved."""

    requests: list
    ranks: tuple[int, ...]
    size_bytes: int


Steps = Generator[Step, None, np.ndarray | None]


class Types:
    """Arrays for MPI: their bytes, counted in elements, so that arrays beyond 2 GiB pass."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._known: dict[int, Any] = {}

    def buffer(self, array: np.ndarray, box: Box | None = None) -> list:
        """A C-contiguous array as mpi4py takes it, or the part `box` of it, whose type is the caller's to free."""
        itemsize = array.dtype.itemsize
        kind = self._known.get(itemsize)
        if kind is None:
            kind = self._known[itemsize] = self._mpi.BYTE.Create_contiguous(itemsize).Commit()
        count = array.size
        if box is not None:
            sizes, starts = [s.stop - s.start for s in box], [s.start for s in box]
            count, kind = 1, kind.Create_subarray(array.shape, sizes, starts).Commit()
        return [array.reshape(-1).view(np.uint8), count, kind]


class _Call(NamedTuple):
    """One collective on its way.  tag: of the messages with a rank, by (rank, step)."""

    request: Request
    me: int  # positions in the group
    root: int | None
    tag: Callable[[int, int], int]

    @property
    def members(self) -> tuple[int, ...]:
        return self.request.group

    @property
    def n(self) -> int:
        return len(self.request.group)

    @property
    def others(self) -> range | list[int]:
        """Positions of the others, beginning after this one, so that not all send to the same member first."""
        return [(self.me + k) % self.n for k in range(1, self.n)]


class Movement:
    """Replies of one rank over `comm`; `library`: the MPI communicator of a group for whole collectives, or None."""

    def __init__(
        self,
        mpi: Any,
        types: Types,
        handshake: Handshake,
        comm: Any,
        *,
        reproducible: bool,
        library: Callable[[tuple[int, ...]], Any | None],
    ) -> None:
        self._mpi, self._types, self._handshake, self._comm = mpi, types, handshake, comm
        self._reproducible, self._library = reproducible, library
        self.rank = handshake.rank

    # before: what a member says on arriving

    def arrival(self, what: int, request: Request, asked: Asked) -> bytes:
        """The message with which this rank arrives at `request`, its value in it when it is small."""
        array, rooted = request.value, request.kind in _ROOT_GIVES
        extra, value = b"", None
        if array is not None and (not rooted or request.root == self.rank):
            extra = pack_head(array.dtype, array.shape) if rooted else b""
            value = memoryview(array.tobytes()) if self._small(request.kind, array.nbytes) else None
        return pack_arrival(what, self._handshake.run, Arrival(asked, extra, value))

    def _small(self, kind: str, size_bytes: int) -> bool:
        """Whether values travel with the comparison, whole; of an exchange nobody gets more than it needs."""
        return size_bytes <= SMALL_BYTES and kind not in EXCHANGES and (self._reproducible or kind not in _REDUCING)

    # after: the reply

    def steps(self, request: Request, found: Mapping[int, Arrival], tag: Callable[[int, int], int]) -> Steps:
        """The way to this rank's reply, returned, once all have arrived. `found`: what the others said, by rank;
        `tag`: (rank, number of the step) -> tag of the messages between that rank and this one.
        """
        kind, members = request.kind, request.group
        if kind == "barrier":
            return None
        root = None if request.root is None else members.index(request.root)
        call = _Call(request, members.index(self.rank), root, tag)
        if kind in _ROOT_GIVES:
            return (yield from self._from_root(call, found.get(request.root)))
        if self._small(kind, request.value.nbytes):
            return self._combined(call, found)
        return (yield from getattr(self, f"_{kind}")(call))

    def _combined(self, call: _Call, found: Mapping[int, Arrival]) -> np.ndarray | None:
        """The reply made here, from the small values of all members."""
        request, mine = call.request, call.request.value
        if call.root is not None and call.root != call.me:
            return None
        values = [
            mine if m == self.rank else np.frombuffer(found[m].value, mine.dtype).reshape(mine.shape)
            for m in call.members
        ]
        if request.kind in ("all_reduce", "reduce"):
            return combine(values, request.reduce)
        # without `out`, which belongs to this member's reply alone
        return answer([dataclasses.replace(request, value=value, out=None) for value in values])[call.me]

    def _place(self, call: _Call, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Where the reply is written: the request's `out` if the value need not be read any more, else new memory."""
        out, value = call.request.out, call.request.value
        # that it does not fit is said when all is over: the others need this member
        fits = out is not None and (out.shape, out.dtype) == (shape, dtype)
        if fits and (value is None or not np.may_share_memory(out, value) or self._in_place(call, out)):
            return out
        return np.empty(shape, dtype)

    @staticmethod
    def _in_place(call: _Call, out: np.ndarray) -> bool:
        """Whether `out` is the value itself, of a kind that allows for it."""
        value = call.request.value
        if call.request.kind not in ("all_reduce", "reduce", "broadcast") or value is None:
            return False
        return (out.ctypes.data, out.shape, out.dtype) == (value.ctypes.data, value.shape, value.dtype)

    def _swap(self, call: _Call, number: int, give: Mapping[int, np.ndarray], take: Mapping[int, np.ndarray]) -> Step:
        """Step `number`: give[j] goes to member j, take[j] is filled by it. Empty pieces are not sent."""
        requests, size_bytes = [], 0
        for start, pieces in ((self._comm.Irecv, take), (self._comm.Isend, give)):
            for j in call.others:
                if j in pieces and pieces[j].size:
                    peer = call.members[j]
                    requests.append(start(self._types.buffer(pieces[j]), peer, call.tag(peer, number)))
                    size_bytes += pieces[j].nbytes
        return Step(requests, tuple(call.members[j] for j in call.others if j in give or j in take), size_bytes)

    # sums

    def _add_up(
        self, call: _Call, give: Mapping[int, np.ndarray], into: np.ndarray, *, in_place: bool
    ) -> Generator[Step]:
        """into = the combination in group order of `give`, a flat addend per member; in_place: `into` is ours."""
        me, n, reduce = call.me, call.n, call.request.reduce
        rows = np.empty((n - 1, into.size), into.dtype)
        addends = {j: rows[i] for i, j in enumerate(j for j in range(n) if j != me)}
        yield self._swap(call, 0, give, addends)
        addends[me] = give[me]
        # the operations of `communicator.combine`; the order is the contract. Added where the sum shall lie, unless
        # this rank's addend is still there
        total = rows[0] if in_place and me else into
        if total is not addends[0]:
            np.copyto(total, addends[0])
        ufunc = REDUCERS["sum" if reduce == "mean" else reduce]
        for j in range(1, n):
            ufunc(total, addends[j], out=total)
        if reduce == "mean":
            np.divide(total, total.dtype.type(n), out=total)
        if total is not into:
            np.copyto(into, total)

    def _parts(self, call: _Call, flat: np.ndarray) -> dict[int, np.ndarray]:
        """A flat array as nearly equal parts, one per member."""
        borders = [flat.size * i // call.n for i in range(call.n + 1)]
        return {j: flat[a:b] for j, (a, b) in enumerate(itertools.pairwise(borders))}

    def _all_reduce(self, call: _Call) -> Steps:
        value = call.request.value
        out = self._place(call, value.shape, value.dtype)
        in_place = self._in_place(call, out)
        if (native := self._native(call)) is not None:
            comm, op = native
            # MPI's IN_PLACE is for all ranks or none, and another rank may have an `out` of its own
            given = value.copy().reshape(-1) if in_place else value.reshape(-1)
            yield Step([comm.Iallreduce(given, out.reshape(-1), op)], call.members, 2 * value.nbytes)
            return self._mean_of_sum(call, out)
        parts = self._parts(call, out.reshape(-1))
        mine = parts[call.me]
        yield from self._add_up(call, self._parts(call, value.reshape(-1)), mine, in_place=in_place)
        yield self._swap(call, 1, dict.fromkeys(call.others, mine), parts)
        return out

    def _reduce(self, call: _Call) -> Steps:
        value, at_root = call.request.value, call.me == call.root
        out = self._place(call, value.shape, value.dtype) if at_root else None
        in_place = at_root and self._in_place(call, out)
        if (native := self._native(call)) is not None:
            comm, op = native
            given = self._mpi.IN_PLACE if in_place else value.reshape(-1)
            into = out.reshape(-1) if at_root else None
            yield Step([comm.Ireduce(given, into, op, call.root)], call.members, value.nbytes)
            return self._mean_of_sum(call, out) if at_root else None
        addends = self._parts(call, value.reshape(-1))
        parts = self._parts(call, out.reshape(-1)) if at_root else {}
        mine = parts[call.me] if at_root else np.empty(addends[call.me].size, value.dtype)
        yield from self._add_up(call, addends, mine, in_place=in_place)
        yield self._swap(call, 1, {} if at_root else {call.root: mine}, parts)
        return out

    def _reduce_scatter(self, call: _Call) -> Steps:
        value, n = call.request.value, call.n
        dim = positive_dim(call.request.dim, value.ndim, "reduce_scatter")
        out = self._place(call, _divided(value.shape, dim, n), value.dtype)
        pieces = _pieces_first(value, dim, n)
        if (native := self._native(call)) is not None:
            comm, op = native
            moving = comm.Ireduce_scatter_block(pieces.reshape(-1), out.reshape(-1), op)
            yield Step([moving], call.members, value.nbytes)
            return self._mean_of_sum(call, out)
        yield from self._add_up(call, dict(enumerate(pieces)), out.reshape(-1), in_place=False)
        return out

    def _native(self, call: _Call) -> tuple[Any, Any] | None:
        """The library's communicator and operation for this reduction, or None: it is made here, in group order."""
        dtype, reduce = call.request.value.dtype, call.request.reduce
        able = dtype.isnative and dtype.name in _NATIVE_DTYPES and reduce in _NATIVE_REDUCERS
        if self._reproducible or not able:
            return None
        comm = self._library(call.members)
        return None if comm is None else (comm, self._mpi.PROD if reduce == "prod" else self._mpi.SUM)

    @staticmethod
    def _mean_of_sum(call: _Call, out: np.ndarray) -> np.ndarray:
        if call.request.reduce == "mean":
            np.divide(out, out.dtype.type(call.n), out=out)
        return out

    # pieces

    def _all_gather(self, call: _Call) -> Steps:
        value = call.request.value
        return (yield from self._joined(call, value.shape, call.request.dim, dict.fromkeys(range(call.n), value)))

    def _gather(self, call: _Call) -> Steps:
        value = call.request.value
        if call.me != call.root:
            yield self._swap(call, 0, {call.root: value}, {})
            return None
        return (yield from self._joined(call, value.shape, call.request.dim, {call.me: value}))

    def _all_to_all(self, call: _Call) -> Steps:
        value, n = call.request.value, call.n
        split = positive_dim(call.request.split_dim, value.ndim, "all_to_all")
        pieces = dict(enumerate(_pieces_first(value, split, n)))
        return (yield from self._joined(call, _divided(value.shape, split, n), call.request.concat_dim, pieces))

    def _joined(self, call: _Call, shape: tuple[int, ...], dim: int, give: Mapping[int, np.ndarray]) -> Steps:
        """What each member gives, joined along `dim`.  shape: of one member's; give: by member, this one included."""
        n, dtype = call.n, call.request.value.dtype
        dim = positive_dim(dim, len(shape), call.request.kind)
        out = self._place(call, (*shape[:dim], n * shape[dim], *shape[dim + 1 :]), dtype.newbyteorder("="))
        # joined along the first dim that counts they lie one after the other, and arrive where they belong
        direct = out.dtype == dtype and math.prod(shape[:dim]) == 1
        rows = out.reshape(n, *shape) if direct else np.empty((n, *shape), dtype)
        yield self._swap(call, 0, give, {j: rows[j] for j in call.others})
        rows[call.me] = give[call.me].reshape(shape)
        if not direct:
            np.concatenate(list(rows), axis=dim, out=out)
        return out

    def _from_root(self, call: _Call, arrival: Arrival | None) -> Steps:
        """Broadcast and scatter.  arrival: what the root said; None on the root itself."""
        request, value, scattered, n = call.request, call.request.value, call.request.kind == "scatter", call.n
        if arrival is None:
            dtype, shape, small = value.dtype, value.shape, self._small(request.kind, value.nbytes)
        else:
            dtype, shape = unpack_head(arrival.extra)
            small = arrival.value is not None
        dim = positive_dim(request.dim, len(shape), "scatter") if scattered else 0
        mine = _divided(shape, dim, n) if scattered else shape
        if arrival is not None and (wanted := expected(request, mine, dtype)) != (mine, dtype):
            what = f"rank {self.rank} expects {wanted[1]} {wanted[0]}, rank {request.root} gave {dtype} {mine} in "
            text = message(f"{what}{arrival.asked.entry(request.root)}", where=request.origin)
            self._handshake.raise_fault("CollectiveMismatch", text, ranks=sorted((self.rank, request.root)))
        if small:
            whole = value if arrival is None else np.frombuffer(arrival.value, dtype).reshape(shape)
            return np.array(np.split(whole, n, axis=dim)[call.me] if scattered else whole, order="C")
        if arrival is not None:  # a value off the root says nothing but its shape; `_place` need not spare it
            call = call._replace(request=dataclasses.replace(request, value=None))
        out = self._place(call, mine, dtype)
        yield from (self._scatter if scattered else self._broadcast)(call, value if arrival is None else None, dim, out)
        return out

    def _scatter(self, call: _Call, value: np.ndarray | None, dim: int, out: np.ndarray) -> Generator[Step]:
        if value is None:
            yield self._swap(call, 0, {}, {call.root: out})
            return
        pieces = _pieces_first(value, dim, call.n)
        yield self._swap(call, 0, dict(enumerate(pieces)), {})
        np.copyto(out, pieces[call.me].reshape(out.shape))

    def _broadcast(self, call: _Call, value: np.ndarray | None, dim: int, out: np.ndarray) -> Generator[Step]:
        if value is not None:
            np.copyto(out, value)
        comm = self._library(call.members)
        if comm is not None:
            yield Step([comm.Ibcast(self._types.buffer(out), call.root)], call.members, out.nbytes)
            return
        # the root sends each byte once, not once per member (van de Geijn's scatter and all_gather; Thakur et al. 2005,
        # section 4.2)
        parts = self._parts(call, out.reshape(-1))
        receivers = [j for j in call.others if j != call.root]
        at_root, mine = value is not None, parts[call.me]
        yield self._swap(call, 0, parts if at_root else {}, {} if at_root else {call.root: mine})
        yield self._swap(call, 1, dict.fromkeys(receivers, mine), {} if at_root else parts)

    def _piecewise(self, call: _Call) -> Steps:
        """Pieces go from their place in the value to their place in the reply; those that are added wait apart."""
        value, me = call.request.value, call.me
        parts = MESSAGES[call.request.kind].block_exchange(vars(call.request), call.n, value.shape)
        out = self._place(call, parts.reply, value.dtype.newbyteorder("="))
        out.fill(0)
        given, taken = parts.given[me], parts.taken[me]
        targets = {j: (out, box) for j, box in taken.items() if j != me}
        apart = parts.adds or out.dtype != value.dtype
        if apart:
            wholes = {j: tuple(slice(0, s.stop - s.start) for s in box) for j, (_, box) in targets.items()}
            targets = {j: (np.empty(out[taken[j]].shape, value.dtype), whole) for j, whole in wholes.items()}
        requests, size_bytes = [], 0
        for start, pieces in ((self._comm.Irecv, targets), (self._comm.Isend, {j: (value, given[j]) for j in given})):
            for j in call.others:
                if j in pieces and (size := box_size(pieces[j][1])):
                    buffer, peer = self._types.buffer(*pieces[j]), call.members[j]
                    requests.append(start(buffer, peer, call.tag(peer, 0)))
                    buffer[2].Free()  # MPI keeps the type until the piece has arrived
                    size_bytes += size * value.itemsize
        yield Step(requests, tuple(call.members[j] for j in call.others if j in given or j in taken), size_bytes)
        for j, box in taken.items():  # ascending: where pieces overlap, the addends come in group order
            if j == me or apart:
                parts.put(out[box], value[given[me]] if j == me else targets[j][0])
        return out

    _halo_exchange = _halo_reduce = _exchange = _exchange_reduce = _all_to_all_v = _piecewise


def _divided(shape: tuple[int, ...], dim: int, n: int) -> tuple[int, ...]:
    """The shape of one of n pieces along `dim`."""
    return (*shape[:dim], shape[dim] // n, *shape[dim + 1 :])


def _pieces_first(value: np.ndarray, dim: int, n: int) -> Sequence[np.ndarray]:
    """`value` as n pieces along `dim`: (n, elements), each in one run; its own memory where it lies so already."""
    pieces = as_pieces(value, dim, n, "pieces")
    return np.ascontiguousarray(pieces.transpose(1, 0, 2)).reshape(n, -1)
